//! Shared receive queues: SRQ, XRC SRQ, RMP (receive memory pool), XRQ (tag matching). Also their
//! limit events.
//!
//! | commands | context | since |
//! |---|---|---|
//! | CREATE_SRQ … ARM_RQ | `srqc` | interface step 0 |
//! | CREATE_XRC_SRQ … ARM_XRC_SRQ | `xrc_srqc` | step 1, for XRC |
//! | CREATE_XRQ … ARM_RQ | `xrqc` with a `wq` | step 1, for tag matching |
//! | CREATE_RMP … MODIFY_RMP | `rmpc` with a `wq` | step 1, for all others |

use roce::engine::{CqId, Pd, SrqId, XrcDomain};

use crate::bus::Bus;
use crate::checks::{bad, buffer, busy, doorbell_record, engine, missing, none_of, not_offered, reserved};
use crate::cmd::context::srq_bytes;
use crate::function::Function;
use crate::layout::caps::cmd_hca_cap;
use crate::layout::srq::{
    arm_rq_in, arm_xrc_srq_in, create_rmp_in, create_rmp_out, create_srq_in, create_srq_out,
    create_xrc_srq_in, create_xrc_srq_out, create_xrq_in, create_xrq_out, destroy_rmp_in, destroy_srq_in,
    destroy_xrc_srq_in, destroy_xrq_in, modify_rmp_in, query_rmp_in, query_rmp_out, query_srq_in,
    query_srq_out, query_xrc_srq_in, query_xrc_srq_out, query_xrq_in, query_xrq_out, rmpc, srqc, wq,
    xrc_srqc, xrqc,
};
use crate::layout::{Field, Part};
use crate::pages::Pages;
use crate::refusal::{Refusal, Status};
use crate::state::srq::{Srq, SrqKind, SrqRun};
use crate::tags::Tags;

/// State of an RMP that is ready for use.
const RMP_READY: u64 = 1;

/// The properties that all kinds of shared receive queues have, read from their contexts.
struct Shape {
    kind: SrqKind,
    context: Vec<u8>,
    log_size: u32,
    /// Size of a receive, in bytes, log2.
    log_stride: u32,
    /// Page size relative to the minimum page size, log2.
    log_page_size: u32,
    page_offset: u64,
    pd: u32,
    lwm: u32,
    doorbell_record: u64,
    cqn: Option<u32>,
    xrcd: Option<u32>,
    user_index: u32,
    tags: Option<Tags>,
}

/// Rejects work request signatures. They are not modelled, but a user may request them.
fn signed(field: Field, context: &[u8]) -> Result<(), Refusal> {
    if field.is_set(context) { Err(Refusal::fair(Status::BadParam)) } else { Ok(()) }
}

pub(super) fn create_srq<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    let context = create_srq_in::SRQ_CONTEXT_ENTRY.bytes(input);
    reserved(&srqc::TABLE, context)?;
    signed(srqc::WQ_SIGNATURE, context)?;
    none_of(&[srqc::CONT_SRQ, srqc::RLKY], context)?;
    if srqc::STATE.is_set(context) || srqc::WQE_CNT.is_set(context) {
        return Err(bad("the context of a new shared receive queue has a state"));
    }
    let shape = Shape {
        kind: SrqKind::Basic,
        context: context.to_vec(),
        log_size: srqc::LOG_SRQ_SIZE.get32(context),
        log_stride: srqc::LOG_RQ_STRIDE.get32(context) + 4,
        log_page_size: srqc::LOG_PAGE_SIZE.get32(context),
        page_offset: srqc::PAGE_OFFSET.get(context),
        pd: srqc::PD.get32(context),
        lwm: srqc::LWM.get32(context),
        doorbell_record: srqc::DBR_ADDR.get(context),
        cqn: None,
        xrcd: None,
        user_index: 0,
        tags: None,
    };
    let srqn = create(function, shape, input.get(create_srq_in::PAS..).unwrap_or_default())?;
    create_srq_out::SRQN.set(output, srqn);
    Ok(())
}

pub(super) fn create_xrc_srq<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    let context = create_xrc_srq_in::XRC_SRQ_CONTEXT_ENTRY.bytes(input);
    reserved(&xrc_srqc::TABLE, context)?;
    signed(xrc_srqc::WQ_SIGNATURE, context)?;
    none_of(&[create_xrc_srq_in::XRC_SRQ_UMEM_VALID], input)?;
    none_of(
        &[
            xrc_srqc::CONT_SRQ,
            xrc_srqc::RLKY,
            xrc_srqc::BASIC_CYCLIC_RCV_WQE,
            xrc_srqc::DBR_UMEM_VALID,
            xrc_srqc::USER_INDEX_EQUAL_XRC_SRQN,
        ],
        context,
    )?;
    if xrc_srqc::STATE.is_set(context) || xrc_srqc::WQE_CNT.is_set(context) {
        return Err(bad("the context of a new shared receive queue has a state"));
    }
    let low = xrc_srqc::DB_RECORD_ADDR_L.get(context) << 2;
    let shape = Shape {
        kind: SrqKind::Xrc,
        context: context.to_vec(),
        log_size: xrc_srqc::LOG_XRC_SRQ_SIZE.get32(context),
        log_stride: xrc_srqc::LOG_RQ_STRIDE.get32(context) + 4,
        log_page_size: xrc_srqc::LOG_PAGE_SIZE.get32(context),
        page_offset: xrc_srqc::PAGE_OFFSET.get(context),
        pd: xrc_srqc::PD.get32(context),
        lwm: xrc_srqc::LWM.get32(context),
        doorbell_record: xrc_srqc::DB_RECORD_ADDR_H.get(context) << 32 | low,
        cqn: Some(xrc_srqc::CQN.get32(context)),
        xrcd: Some(xrc_srqc::XRCD.get32(context)),
        user_index: xrc_srqc::USER_INDEX.get32(context),
        tags: None,
    };
    let srqn = create(function, shape, input.get(create_xrc_srq_in::PAS..).unwrap_or_default())?;
    create_xrc_srq_out::XRC_SRQN.set(output, srqn);
    Ok(())
}

pub(super) fn create_rmp<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    let context = create_rmp_in::CTX.bytes(input);
    let queue = rmpc::WQ.bytes(context);
    reserved(&rmpc::TABLE, context)?;
    reserved(&wq::TABLE, queue)?;
    signed(wq::WQ_SIGNATURE, queue)?;
    none_of(&[rmpc::BASIC_CYCLIC_RCV_WQE], context)?;
    none_of(&other_wq_fields(), queue)?;
    if rmpc::STATE.get(context) != RMP_READY {
        return Err(bad(format!("a new receive memory pool in state {:#x}", rmpc::STATE.get(context))));
    }
    let shape = Shape {
        kind: SrqKind::Rmp,
        context: context.to_vec(),
        log_size: wq::LOG_WQ_SZ.get32(queue),
        log_stride: wq::LOG_WQ_STRIDE.get32(queue),
        log_page_size: wq::LOG_WQ_PG_SZ.get32(queue),
        page_offset: wq::PAGE_OFFSET.get(queue),
        pd: wq::PD.get32(queue),
        lwm: wq::LWM.get32(queue),
        doorbell_record: wq::DBR_ADDR.get(queue),
        cqn: None,
        xrcd: None,
        user_index: 0,
        tags: None,
    };
    let list = input.get(create_rmp_in::CTX.offset + rmpc::WQ.offset + wq::PAS..).unwrap_or_default();
    let rmpn = create(function, shape, list)?;
    create_rmp_out::RMPN.set(output, rmpn);
    Ok(())
}

pub(super) fn create_xrq<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    let context = create_xrq_in::XRQ_CONTEXT.bytes(input);
    let queue = xrqc::WQ.bytes(context);
    if !function.core.caps.offers(cmd_hca_cap::TAG_MATCHING) {
        return Err(not_offered("tag matching"));
    }
    reserved(&xrqc::TABLE, context)?;
    reserved(&wq::TABLE, queue)?;
    signed(wq::WQ_SIGNATURE, queue)?;
    none_of(&other_wq_fields(), queue)?;
    none_of(&[xrqc::RLKEY], context)?;
    let state = [xrqc::STATE, xrqc::APPEND_NEXT_INDEX, xrqc::SW_PHASE_CNT, xrqc::HW_PHASE_CNT];
    if state.iter().any(|field| field.is_set(context)) {
        return Err(bad("the context of a new queue with tag matching has a state"));
    }
    let (topology, offload) = (xrqc::TOPOLOGY.get(context), xrqc::OFFLOAD.get(context));
    if topology != TAG_MATCHING || offload > RENDEZVOUS {
        return Err(not_offered(format!("topology {topology:#x} with offload {offload:#x}")));
    }
    let log_list = xrqc::LOG_MATCHING_LIST_SZ.get32(context);
    function.core.at_most("entries of a matching list", log_list, cmd_hca_cap::LOG_TAG_MATCHING_LIST_SZ)?;
    let shape = Shape {
        kind: SrqKind::Xrq,
        context: context.to_vec(),
        log_size: wq::LOG_WQ_SZ.get32(queue),
        log_stride: wq::LOG_WQ_STRIDE.get32(queue),
        log_page_size: wq::LOG_WQ_PG_SZ.get32(queue),
        page_offset: wq::PAGE_OFFSET.get(queue),
        pd: wq::PD.get32(queue),
        lwm: wq::LWM.get32(queue),
        doorbell_record: wq::DBR_ADDR.get(queue),
        cqn: Some(xrqc::CQN.get32(context)),
        xrcd: None,
        user_index: xrqc::USER_INDEX.get32(context),
        tags: Some(Tags::new(log_list, offload == RENDEZVOUS)),
    };
    let xrqn = create(function, shape, input.get(create_xrq_in::SIZE..).unwrap_or_default())?;
    create_xrq_out::XRQN.set(output, xrqn);
    Ok(())
}

/// Topology value of an XRQ with a matching list.
const TAG_MATCHING: u64 = 1;
/// Offload value of an XRQ that executes rendezvous.
const RENDEZVOUS: u64 = 1;

/// Returns the work queue fields that only Ethernet queues use. A shared receive queue is a linked
/// list, work queue type 0.
fn other_wq_fields() -> Vec<Field> {
    wq::TABLE.fields.iter().filter(|field| !WQ_FIELDS.contains(field)).copied().collect()
}

/// Work queue fields that an RMP or an XRQ uses.
const WQ_FIELDS: &[Field] = &[
    wq::WQ_SIGNATURE,
    wq::PAGE_OFFSET,
    wq::LWM,
    wq::PD,
    wq::DBR_ADDR,
    wq::LOG_WQ_STRIDE,
    wq::LOG_WQ_PG_SZ,
    wq::LOG_WQ_SZ,
];

/// Checks the common properties, then creates the queue in the engine and in the model.
fn create<B: Bus>(function: &mut Function<B>, shape: Shape, list: &[u8]) -> Result<u32, Refusal> {
    let core = &mut function.core;
    core.needs_pd(shape.pd)?;
    if let Some(cqn) = shape.cqn {
        core.needs_cq(cqn)?;
    }
    if let Some(xrcd) = shape.xrcd.filter(|xrcd| !core.xrcds.contains(*xrcd)) {
        return Err(missing(format!("XRC domain {xrcd:#x}")));
    }
    core.at_most("receives", shape.log_size, cmd_hca_cap::LOG_MAX_SRQ_SZ)?;
    // A receive has at least a next segment and one scatter element.
    let most = core.caps.general(cmd_hca_cap::MAX_WQE_SZ_RQ);
    if shape.log_stride < 5 || 1 << shape.log_stride > most {
        return Err(bad(format!("receives of 2^{} bytes", shape.log_stride)));
    }
    let len = 1u64 << (shape.log_size + shape.log_stride);
    let pages: Pages = buffer(&core.bus, list, shape.log_page_size, shape.page_offset, len)?;
    doorbell_record(&core.bus, shape.doorbell_record)?;
    core.room_for(srq_bytes(shape.log_size, 1 << shape.log_stride, &pages))?;
    if shape.lwm > 1 << shape.log_size {
        return Err(bad(format!("a limit of {} of 2^{} receives", shape.lwm, shape.log_size)));
    }
    let elements = (1 << shape.log_stride) / 16 - 1;
    let made =
        function.engine.create_srq(Pd(shape.pd), 1 << shape.log_size, elements, shape.xrcd.map(XrcDomain));
    let srq = made.map_err(|refused| engine(refused, "the shared receive queue"))?;
    if let Some(cqn) = shape.cqn {
        let _ = function.engine.set_srq_cq(srq, CqId(cqn));
        function.core.use_cq(cqn);
    }
    if shape.tags.is_some() {
        let _ = function.engine.set_srq_matching(srq);
    }
    function.core.needs_start(shape.doorbell_record, &format!("shared receive queue {:#x}", srq.0));
    let made = Srq {
        srqn: srq.0,
        kind: shape.kind,
        context: shape.context,
        pages,
        log_size: shape.log_size,
        stride: 1 << shape.log_stride,
        doorbell_record: shape.doorbell_record,
        cqn: shape.cqn.unwrap_or(0),
        user_index: shape.user_index,
        xrcd: shape.xrcd,
        users: 0,
        tags: shape.tags,
        run: SrqRun::default(),
    };
    function.core.srqs.insert(srq.0, made);
    if shape.lwm > 0 {
        arm(function, shape.kind, srq.0, shape.lwm)?;
    }
    Ok(srq.0)
}

impl Srq {
    /// Returns whether the queue is of the kind that a command expects.
    fn is(&self, kind: SrqKind) -> bool {
        self.kind == kind
    }
}

pub(super) fn destroy_srq<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Refusal> {
    destroy(function, SrqKind::Basic, destroy_srq_in::SRQN.get32(input))
}

pub(super) fn destroy_xrc_srq<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Refusal> {
    destroy(function, SrqKind::Xrc, destroy_xrc_srq_in::XRC_SRQN.get32(input))
}

pub(super) fn destroy_rmp<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Refusal> {
    destroy(function, SrqKind::Rmp, destroy_rmp_in::RMPN.get32(input))
}

pub(super) fn destroy_xrq<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Refusal> {
    destroy(function, SrqKind::Xrq, destroy_xrq_in::XRQN.get32(input))
}

fn destroy<B: Bus>(function: &mut Function<B>, kind: SrqKind, srqn: u32) -> Result<(), Refusal> {
    let srq = function.core.srqs.get(&srqn).filter(|srq| srq.is(kind));
    let (users, cqn) =
        srq.map(|srq| (srq.users, srq.cqn)).ok_or_else(|| missing(format!("{kind:?} {srqn:#x}")))?;
    if users > 0 {
        return Err(busy(format!("{kind:?} {srqn:#x} is in use by {users} queue pairs")));
    }
    function
        .engine
        .destroy_srq(SrqId(srqn))
        .map_err(|refused| engine(refused, &format!("{kind:?} {srqn:#x}")))?;
    function.core.srqs.remove(&srqn);
    if matches!(kind, SrqKind::Xrc | SrqKind::Xrq) {
        function.core.leave_cq(cqn);
    }
    Ok(())
}

pub(super) fn query_srq<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    let number = query_srq_in::SRQN.get32(input);
    query(function, SrqKind::Basic, number, query_srq_out::SRQ_CONTEXT_ENTRY, output)
}

pub(super) fn query_xrc_srq<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    let number = query_xrc_srq_in::XRC_SRQN.get32(input);
    query(function, SrqKind::Xrc, number, query_xrc_srq_out::XRC_SRQ_CONTEXT_ENTRY, output)
}

pub(super) fn query_rmp<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    let number = query_rmp_in::RMPN.get32(input);
    query(function, SrqKind::Rmp, number, query_rmp_out::RMP_CONTEXT, output)
}

pub(super) fn query_xrq<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    let number = query_xrq_in::XRQN.get32(input);
    query(function, SrqKind::Xrq, number, query_xrq_out::XRQ_CONTEXT, output)
}

fn query<B: Bus>(
    function: &mut Function<B>,
    kind: SrqKind,
    srqn: u32,
    place: Part,
    output: &mut [u8],
) -> Result<(), Refusal> {
    let srq = function.core.srqs.get(&srqn).filter(|srq| srq.is(kind));
    let srq = srq.ok_or_else(|| missing(format!("{kind:?} {srqn:#x}")))?;
    let mut context = srq.context.clone();
    let posted = function.engine.srq_outstanding(SrqId(srqn)).unwrap_or(0);
    // The limit at which an armed queue raises its event; 0 once the event has been sent.
    let limit = function.engine.srq_limit(SrqId(srqn)).unwrap_or(0);
    match kind {
        SrqKind::Basic => {
            srqc::STATE.set(&mut context, u32::from(srq.run.broken));
            srqc::LWM.set(&mut context, limit);
            srqc::WQE_CNT.set(&mut context, posted);
        }
        SrqKind::Xrc => {
            xrc_srqc::STATE.set(&mut context, u32::from(srq.run.broken));
            xrc_srqc::LWM.set(&mut context, limit);
            xrc_srqc::WQE_CNT.set(&mut context, posted);
        }
        SrqKind::Rmp => {
            rmpc::STATE.set(&mut context, if srq.run.broken { 3u32 } else { RMP_READY as u32 });
            wq::LWM.set(rmpc::WQ.bytes_mut(&mut context), limit);
        }
        SrqKind::Xrq => {
            xrqc::STATE.set(&mut context, u32::from(srq.run.broken));
            wq::LWM.set(xrqc::WQ.bytes_mut(&mut context), limit);
            if let Some(tags) = &srq.tags {
                xrqc::APPEND_NEXT_INDEX.set(&mut context, tags.next);
                xrqc::SW_PHASE_CNT.set(&mut context, tags.software);
                xrqc::HW_PHASE_CNT.set(&mut context, tags.hardware);
            }
        }
    }
    let place = place.bytes_mut(output);
    let len = place.len().min(context.len());
    place[..len].copy_from_slice(&context[..len]);
    Ok(())
}

pub(super) fn arm_srq<B: Bus>(function: &mut Function<B>, input: &[u8], _: &mut [u8]) -> Result<(), Refusal> {
    let limit = arm_rq_in::LWM.get32(input);
    let kind = if arm_rq_in::OP_MOD.get(input) == OF_XRQ { SrqKind::Xrq } else { SrqKind::Basic };
    arm(function, kind, arm_rq_in::SRQ_NUMBER.get32(input), limit)
}

pub(super) fn arm_xrc_srq<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Refusal> {
    let limit = arm_xrc_srq_in::LWM.get32(input);
    arm(function, SrqKind::Xrc, arm_xrc_srq_in::XRC_SRQN.get32(input), limit)
}

/// Value of the ARM_RQ modifier that selects an XRQ.
const OF_XRQ: u64 = 2;

/// Arms a queue: requests one event when fewer than `limit` receives remain. A limit of 0 requests
/// no event.
fn arm<B: Bus>(function: &mut Function<B>, kind: SrqKind, srqn: u32, limit: u32) -> Result<(), Refusal> {
    let srq = function.core.srqs.get(&srqn).filter(|srq| srq.is(kind));
    let log_size = srq.map(|srq| srq.log_size).ok_or_else(|| missing(format!("{kind:?} {srqn:#x}")))?;
    if limit > 1 << log_size {
        return Err(Refusal::fair(Status::BadParam));
    }
    function
        .engine
        .arm_srq(SrqId(srqn), limit)
        .map_err(|refused| engine(refused, &format!("{kind:?} {srqn:#x}")))
}

pub(super) fn modify_rmp<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Refusal> {
    let context = modify_rmp_in::CTX.bytes(input);
    let queue = rmpc::WQ.bytes(context);
    reserved(&rmpc::TABLE, context)?;
    reserved(&wq::TABLE, queue)?;
    let rmpn = modify_rmp_in::RMPN.get32(input);
    let srq = function.core.srqs.get(&rmpn).filter(|srq| srq.is(SrqKind::Rmp));
    srq.ok_or_else(|| missing(format!("receive memory pool {rmpn:#x}")))?;
    let (from, to) = (modify_rmp_in::RMP_STATE.get(input), rmpc::STATE.get(context));
    if (from, to) != (RMP_READY, RMP_READY) {
        return Err(bad(format!("a receive memory pool from state {from:#x} to {to:#x}")));
    }
    if !modify_rmp_in::LWM.is_set(input) {
        return Ok(());
    }
    arm(function, SrqKind::Rmp, rmpn, wq::LWM.get32(queue))
}

#[cfg(test)]
mod tests;
