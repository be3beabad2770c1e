//! Checks and decodes the queue pair context in a CREATE_QP command.

use roce::engine::{CqId, InlineCompletion, Pd, QpInit, Service as Transport, SrqId, XrcDomain};

use crate::bus::Bus;
use crate::checks::{bad, buffer, doorbell_record, missing, none_of, not_offered};
use crate::complaint::Rule;
use crate::function::Core;
use crate::layout::caps::cmd_hca_cap;
use crate::layout::qp::qpc;
use crate::pages::Pages;
use crate::refusal::{Refusal, Status};
use crate::state::qp::{BASIC_BLOCK, Qp, ReceiveShape, Receives, Run, SendShape, Service};

/// Context fields of features that are not modelled, and fields that only transitions set.
const NOT_OFFERED: &[crate::layout::Field] = &[
    qpc::LAG_TX_PORT_AFFINITY,
    qpc::ISOLATE_VL_TC,
    qpc::DP_ORDERING_FORCE,
    qpc::DP_ORDERING_1,
    qpc::RETRY_MODE,
    qpc::PACKET_PACING_RATE_LIMIT_INDEX,
    qpc::LOG_NUM_DCI_STREAM_CHANNELS,
    qpc::LOG_NUM_DCI_ERRORED_STREAMS,
    qpc::RMSN,
    qpc::DC_ACCESS_KEY,
    qpc::DBR_UMEM_VALID,
];

/// Offload type of a queue pair whose send queue the device manages, for rendezvous.
const OFFLOADS_RENDEZVOUS: u64 = 1;

/// Checks and decodes a context. The caller sets the queue pair number, and the protection domain
/// if the context names none.
pub(super) fn read<B: Bus>(core: &Core<B>, context: &[u8], list: &[u8]) -> Result<Qp, Refusal> {
    none_of(NOT_OFFERED, context)?;
    // A user may request these features, and the driver does not check whether the function offers
    // them.
    let asked = [qpc::CD_MASTER, qpc::CD_SLAVE_SEND, qpc::CD_SLAVE_RECEIVE, qpc::REQ_E2E_CREDIT_MODE];
    if asked.iter().any(|field| field.is_set(context)) {
        return Err(Refusal::fair(Status::BadParam));
    }
    if qpc::STATE.is_set(context) {
        return Err(bad("the context of a new queue pair has a state"));
    }
    let no_sq = qpc::NO_SQ.is_set(context);
    let service = match (qpc::ST.get(context), no_sq) {
        (0x0, _) => Service::Rc,
        (0x1, _) => Service::Uc,
        (0x2, _) => Service::Ud,
        (0x3, false) => Service::XrcInitiator,
        (0x3, true) => Service::XrcTarget,
        (0x7, _) => Service::Qp0,
        (0x8, _) => Service::Qp1,
        (0xc, _) => Service::RegUmr,
        (other, _) => return Err(not_offered(format!("service type {other:#x}"))),
    };
    let pd = qpc::PD.get32(context);
    // The kernel's queue pair for registrations has no protection domain: its work requests only
    // change memory keys.
    let own_pd = service == Service::RegUmr && pd == 0;
    if !own_pd {
        core.needs_pd(pd)?;
    }
    let (send_cqn, recv_cqn) = (qpc::CQN_SND.get32(context), qpc::CQN_RCV.get32(context));
    core.needs_cq(send_cqn)?;
    core.needs_cq(recv_cqn)?;
    let xrcd = qpc::XRCD.get32(context);
    if service.is_xrc() && !core.xrcds.contains(xrcd) {
        return Err(missing(format!("XRC domain {xrcd:#x}")));
    }
    let rq = receives(core, context, service)?;
    let rq_bytes = if let Receives::Own(shape) = &rq { shape.bytes() } else { 0 };
    let log_size = qpc::LOG_SQ_SIZE.get32(context);
    core.at_most("basic blocks", log_size, cmd_hca_cap::LOG_MAX_QP_SZ)?;
    let sq = (!no_sq).then_some(SendShape { offset: rq_bytes, log_size });
    if no_sq && log_size != 0 {
        return Err(bad(format!("an absent send queue of 2^{log_size} blocks")));
    }
    if sq.is_some() && rq_bytes % BASIC_BLOCK != 0 {
        let what = format!("a send queue after {rq_bytes} bytes of receive queue");
        return Err(Refusal::broken(Status::BadParam, Rule::CommandPages, what));
    }
    let uar = qpc::UAR_PAGE.get32(context);
    if sq.is_some() {
        core.needs_uar(uar)?;
    }
    let matches = match &rq {
        Receives::Shared(srqn) => core.srqs.get(srqn).is_some_and(|srq| srq.tags.is_some()),
        _ => false,
    };
    if matches && service != Service::Rc {
        // Tag matching is offered only on reliable connections, but the driver does not check this.
        return Err(Refusal::fair(Status::BadParam));
    }
    let offload = qpc::OFFLOAD_TYPE.get(context);
    if offload != 0 && !(offload == OFFLOADS_RENDEZVOUS && matches && no_sq) {
        return Err(not_offered(format!("offload type {offload:#x}")));
    }
    let mut scatter_to_cqe = scatter(core, context, send_cqn, recv_cqn)?;
    if matches {
        // Payload in the completion would replace the message's tag header.
        scatter_to_cqe.1 = 0;
    }
    let (pages, doorbell) = rings(core, context, list, rq_bytes + sq.map_or(0, |sq| sq.bytes()))?;
    let mut kept = [0; qpc::SIZE];
    kept.copy_from_slice(context);
    Ok(Qp {
        qpn: 0,
        service,
        context: kept,
        pages,
        doorbell_record: doorbell,
        uar,
        user_index: qpc::USER_INDEX.get32(context),
        send_cqn,
        recv_cqn,
        pd,
        own_pd,
        sq,
        rq,
        scatter_to_cqe,
        signature: qpc::WQ_SIGNATURE.is_set(context),
        offloads_rendezvous: offload == OFFLOADS_RENDEZVOUS,
        ece: 0,
        run: Run::default(),
    })
}

/// Returns the common buffer of both queues and the address of the doorbell record. A queue pair
/// without queues has neither.
fn rings<B: Bus>(
    core: &Core<B>,
    context: &[u8],
    list: &[u8],
    bytes: u64,
) -> Result<(Pages, Option<u64>), Refusal> {
    if bytes == 0 {
        return if list.is_empty() {
            Ok((Pages::default(), None))
        } else {
            let what = format!("{} bytes of page list without a queue", list.len());
            Err(Refusal::broken(Status::BadParam, Rule::CommandPages, what))
        };
    }
    let (log_page_size, offset) = (qpc::LOG_PAGE_SIZE.get32(context), qpc::PAGE_OFFSET.get(context));
    let pages = buffer(&core.bus, list, log_page_size, offset, bytes)?;
    let doorbell = qpc::DBR_ADDR.get(context);
    doorbell_record(&core.bus, doorbell)?;
    Ok((pages, Some(doorbell)))
}

/// Returns the source of the queue pair's receives.
fn receives<B: Bus>(core: &Core<B>, context: &[u8], service: Service) -> Result<Receives, Refusal> {
    let srqn = qpc::SRQN_RMPN_XRQN.get32(context);
    match (qpc::RQ_TYPE.get(context), service) {
        (0, Service::XrcInitiator | Service::XrcTarget) => Err(bad("a receive queue of an XRC queue pair")),
        (0, _) => {
            let log_size = qpc::LOG_RQ_SIZE.get32(context);
            let log_stride = qpc::LOG_RQ_STRIDE.get32(context) + 4;
            core.at_most("receives", log_size, cmd_hca_cap::LOG_MAX_QP_SZ)?;
            if 1 << log_stride > core.caps.general(cmd_hca_cap::MAX_WQE_SZ_RQ) {
                return Err(bad(format!("receives of 2^{log_stride} bytes")));
            }
            Ok(Receives::Own(ReceiveShape {
                log_size,
                log_stride,
                signature: qpc::WQ_SIGNATURE.is_set(context),
            }))
        }
        // For these services, Linux names an XRC shared receive queue; for all others, a queue of
        // another kind.
        (1, Service::XrcInitiator) => core.needs_srq(srqn, true).map(|()| Receives::None),
        (1, Service::XrcTarget) => core.needs_srq(srqn, true).map(|()| Receives::Named),
        (1, _) => core.needs_srq(srqn, false).map(|()| Receives::Shared(srqn)),
        (3, _) => Ok(Receives::None),
        (other, _) => Err(not_offered(format!("receive queue type {other}"))),
    }
}

/// Returns the maximum payload length, in bytes, of a send completion and of a receive completion.
fn scatter<B: Bus>(
    core: &Core<B>,
    context: &[u8],
    send_cqn: u32,
    recv_cqn: u32,
) -> Result<(u32, u32), Refusal> {
    let size = |value: u64, cqn: u32| match value {
        0 => Ok(0),
        0x1 | 0x11 => Ok(32),
        // Only a 128-byte entry has space for 64 bytes of payload, in its first half.
        0x2 | 0x22 if core.cqs.get(&cqn).is_some_and(|cq| cq.entry_size == 128) => Ok(64),
        other => Err(bad(format!("scatter to completion {other:#x} on completion queue {cqn:#x}"))),
    };
    let (requests, responses) = (qpc::CS_REQ.get(context), qpc::CS_RES.get(context));
    if !matches!(requests, 0 | 0x11 | 0x22) || !matches!(responses, 0..=2) {
        return Err(bad(format!("scatter to completion {requests:#x}, {responses:#x}")));
    }
    let sizes = (size(requests, send_cqn)?, size(responses, recv_cqn)?);
    Ok(if core.config.scatter_to_cqe { sizes } else { (0, 0) })
}

/// Converts a queue pair to the transport engine's parameters.
pub(super) fn engine_init(qp: &Qp) -> QpInit {
    let service = match qp.service {
        // A queue pair for registrations sends no packets, so its transport has no effect.
        Service::Rc | Service::RegUmr => Transport::Rc,
        Service::Uc => Transport::Uc,
        Service::Ud | Service::Qp0 | Service::Qp1 => Transport::Ud,
        Service::XrcInitiator => Transport::XrcInitiator,
        Service::XrcTarget => Transport::XrcTarget,
    };
    let source = qpc::DETH_SQPN.get32(&qp.context);
    QpInit {
        srq: if let Receives::Shared(srqn) = qp.rq { Some(SrqId(srqn)) } else { None },
        xrc_domain: (qp.service == Service::XrcTarget).then(|| XrcDomain(qpc::XRCD.get32(&qp.context))),
        cap: qp.cap(),
        well_known: match qp.service {
            Service::Qp0 => Some(0),
            Service::Qp1 => Some(1),
            _ => None,
        },
        deth_source: (service == Transport::Ud && source != 0).then_some(source),
        inline_completion: InlineCompletion {
            requester: qp.scatter_to_cqe.0,
            responder: qp.scatter_to_cqe.1,
        },
        ..QpInit::new(service, Pd(qp.pd), CqId(qp.send_cqn), CqId(qp.recv_cqn))
    }
}
