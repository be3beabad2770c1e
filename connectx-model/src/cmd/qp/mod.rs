//! Queue pairs: CREATE_QP, DESTROY_QP, QUERY_QP, multicast groups. The state transitions are in
//! `modify`.
//!
//! | module | contents |
//! |---|---|
//! | `ece` | connection options |
//! | `init` | checks and decodes a context |
//! | `modify` | transitions with their required and optional attributes |
//! | `path` | address paths |

mod ece;
mod init;
pub(super) mod modify;
mod path;

use roce::engine::{Gid, Pd, Qpn, State};

use crate::bus::Bus;
use crate::checks::{bad, engine, missing, none_of, reserved};
use crate::cmd::context::qp_bytes;
use crate::function::Function;
use crate::layout::put;
use crate::layout::qp::{
    ads, attach_to_mcg_in, create_qp_in, create_qp_out, destroy_qp_in, detach_from_mcg_in, qpc, query_qp_in,
    query_qp_out,
};
use crate::refusal::{Refusal, Status};
use crate::state::qp::{Receives, Service};

/// Returns a queue pair's name for use in complaints.
fn name(qpn: u32) -> String {
    format!("queue pair {qpn:#x}")
}

pub(super) fn create<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    none_of(
        &[
            create_qp_in::QPC_EXT,
            create_qp_in::INPUT_QPN,
            create_qp_in::OPT_PARAM_MASK,
            create_qp_in::WQ_UMEM_OFFSET,
            create_qp_in::WQ_UMEM_ID,
            create_qp_in::WQ_UMEM_VALID,
        ],
        input,
    )?;
    let context = create_qp_in::QPC.bytes(input);
    check_reserved(context)?;
    let list = input.get(create_qp_in::PAS..).unwrap_or_default();
    let mut qp = init::read(&function.core, context, list)?;
    qp.ece = ece::offered(qp.service, create_qp_in::ECE.get32(input));
    function.core.room_for(qp_bytes(&qp))?;
    if qp.own_pd {
        qp.pd = function.engine.alloc_pd().map_err(|refused| engine(refused, "a protection domain"))?.0;
    }
    let made = function.engine.create_qp(&init::engine_init(&qp));
    let qpn = match made {
        Ok(qpn) => qpn.0,
        Err(refused) => {
            if qp.own_pd {
                let _ = function.engine.dealloc_pd(Pd(qp.pd));
            }
            return Err(engine(refused, "the queue pair"));
        }
    };
    qp.qpn = qpn;
    create_qp_out::ECE.set(output, qp.ece);
    let core = &mut function.core;
    core.use_cq(qp.send_cqn);
    core.use_cq(qp.recv_cqn);
    if let Receives::Shared(srqn) = qp.rq
        && let Some(srq) = core.srqs.get_mut(&srqn)
    {
        srq.users += 1;
    }
    core.qps.insert(qpn, qp);
    create_qp_out::QPN.set(output, qpn);
    Ok(())
}

/// Rejects a context if any bit is set that neither its table nor the table of its address paths
/// names.
fn check_reserved(context: &[u8]) -> Result<(), Refusal> {
    reserved(&qpc::TABLE, context)?;
    reserved(&ads::TABLE, qpc::PRIMARY_ADDRESS_PATH.bytes(context))?;
    reserved(&ads::TABLE, qpc::SECONDARY_ADDRESS_PATH.bytes(context))
}

pub(super) fn destroy<B: Bus>(function: &mut Function<B>, input: &[u8], _: &mut [u8]) -> Result<(), Refusal> {
    let qpn = destroy_qp_in::QPN.get32(input);
    function.core.note_unannounced(qpn);
    function.core.abandon_entries(qpn);
    let qp = function.core.qps.remove(&qpn).ok_or_else(|| missing(name(qpn)))?;
    let gone = function.engine.destroy_qp(Qpn(qpn));
    if qp.own_pd {
        let _ = function.engine.dealloc_pd(Pd(qp.pd));
    }
    let core = &mut function.core;
    core.leave_cq(qp.send_cqn);
    core.leave_cq(qp.recv_cqn);
    if let Receives::Shared(srqn) = qp.rq
        && let Some(srq) = core.srqs.get_mut(&srqn)
    {
        srq.users = srq.users.saturating_sub(1);
    }
    core.attention.forget(qpn);
    core.paging.forget(qpn);
    gone.map_err(|refused| engine(refused, &name(qpn)))
}

/// Converts a state to its number in a context.
fn state_number(state: State) -> u32 {
    match state {
        State::Reset => 0,
        State::Init => 1,
        State::Rtr => 2,
        State::Rts => 3,
        State::Sqe => 4,
        State::Sqd => 5,
        State::Err => 6,
    }
}

/// State number of a queue pair whose send queue is draining.
const DRAINING: u32 = 7;

pub(super) fn query<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    none_of(&[query_qp_in::QPC_EXT], input)?;
    let qpn = query_qp_in::QPN.get32(input);
    let qp = function.core.qps.get(&qpn).ok_or_else(|| missing(name(qpn)))?;
    let (state, attr) = function.engine.query_qp(Qpn(qpn)).map_err(|refused| engine(refused, &name(qpn)))?;
    let mut context = qp.context;
    let drained = function.engine.sq_drained(Qpn(qpn)) == Ok(true);
    let number = if state == State::Sqd && !drained { DRAINING } else { state_number(state) };
    qpc::STATE.set(&mut context, number);
    if state != State::Reset {
        qpc::NEXT_SEND_PSN.set(&mut context, attr.sq_psn);
        qpc::NEXT_RCV_PSN.set(&mut context, attr.rq_psn);
    }
    qpc::HW_SQ_WQEBB_COUNTER.set(&mut context, qp.run.send.done);
    qpc::SW_SQ_WQEBB_COUNTER.set(&mut context, qp.run.send.rung);
    qpc::HW_RQ_COUNTER.set(&mut context, qp.run.recv.done);
    qpc::SW_RQ_COUNTER.set(&mut context, qp.run.recv.fetched);
    query_qp_out::ECE.set(output, qp.ece);
    query_qp_out::QPC.bytes_mut(output).copy_from_slice(&context);
    for (n, page) in qp.pages.list().iter().enumerate() {
        put(output, query_qp_out::QP_PAS_LIST + n * 8, &page.to_be_bytes());
    }
    Ok(())
}

fn group(part: &[u8]) -> Gid {
    let mut gid = [0; 16];
    gid.copy_from_slice(part);
    gid
}

/// Rejects any queue pair except a datagram queue pair; only those join multicast groups.
fn datagrams<B: Bus>(function: &Function<B>, qpn: u32) -> Result<Qpn, Refusal> {
    let qp = function.core.qps.get(&qpn).ok_or_else(|| missing(name(qpn)))?;
    match qp.service {
        Service::Ud => Ok(Qpn(qpn)),
        other => Err(bad(format!("{} is {other:?}, only datagram queue pairs join groups", name(qpn)))),
    }
}

pub(super) fn attach<B: Bus>(function: &mut Function<B>, input: &[u8], _: &mut [u8]) -> Result<(), Refusal> {
    let qpn = datagrams(function, attach_to_mcg_in::QPN.get32(input))?;
    let group = group(attach_to_mcg_in::MULTICAST_GID.bytes(input));
    function.engine.attach_mcast(qpn, group).map_err(|refused| engine(refused, "the group"))
}

pub(super) fn detach<B: Bus>(function: &mut Function<B>, input: &[u8], _: &mut [u8]) -> Result<(), Refusal> {
    let qpn = datagrams(function, detach_from_mcg_in::QPN.get32(input))?;
    let group = group(detach_from_mcg_in::MULTICAST_GID.bytes(input));
    // A user may leave a group that the queue pair has not joined: the driver does not count
    // members.
    function.engine.detach_mcast(qpn, group).map_err(|_| Refusal::fair(Status::BadParam))
}

#[cfg(test)]
mod tests;
