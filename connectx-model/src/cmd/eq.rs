//! Event queues: CREATE_EQ, DESTROY_EQ, QUERY_EQ.
//!
//! Invariant: an event queue's pages have space for all of its entries before the first event is
//! written.

use crate::bus::Bus;
use crate::caps::MAX_EQS;
use crate::checks::{bad, buffer, busy, missing, reserved};
use crate::config::VECTORS;
use crate::function::Function;
use crate::layout::caps::cmd_hca_cap;
use crate::layout::eq::{create_eq_in, create_eq_out, destroy_eq_in, eqc, query_eq_in, query_eq_out};
use crate::layout::{put, qword};
use crate::refusal::{Refusal, Status};
use crate::state::eq::{EQE_SIZE, Eq};

pub(super) fn create_eq<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    let core = &mut function.core;
    let context = create_eq_in::EQ_CONTEXT_ENTRY.bytes(input);
    reserved(&eqc::TABLE, context)?;
    let log_size = eqc::LOG_EQ_SIZE.get32(context);
    let most = core.caps.general(cmd_hca_cap::LOG_MAX_EQ_SZ);
    if log_size > most {
        let what = format!("2^{log_size} entries, the maximum is 2^{most}");
        return Err(bad(what));
    }
    let vector = eqc::INTR.get32(context);
    if vector >= u32::from(VECTORS) {
        let what = format!("vector {vector} of {VECTORS}");
        return Err(bad(what));
    }
    let uar = eqc::UAR_PAGE.get32(context);
    if !core.hca.uars.contains(uar) {
        return Err(missing(format!("UAR {uar:#x}, which is not allocated")));
    }
    let pages = buffer(
        &core.bus,
        input.get(create_eq_in::PAS..).unwrap_or_default(),
        eqc::LOG_PAGE_SIZE.get32(context),
        eqc::PAGE_OFFSET.get(context),
        EQE_SIZE << log_size,
    )?;
    if core.eqs.len() >= MAX_EQS as usize {
        return Err(Refusal::fair(Status::ExceedLimit));
    }
    let eqn = core.hca.eqns.take().ok_or(Refusal::fair(Status::NoResources))?;
    let mask = create_eq_in::EVENT_BITMASK.bytes(input);
    let mut kept = [0; 64];
    put(&mut kept, 0, context);
    core.eqs.insert(
        eqn,
        Eq {
            eqn,
            context: kept,
            pages,
            log_size,
            uar,
            vector: vector as u16,
            events: std::array::from_fn(|place| qword(mask, place * 8)),
            producer: 0,
            consumer: 0,
            armed: false,
        },
    );
    create_eq_out::EQ_NUMBER.set(output, eqn);
    Ok(())
}

fn no_such_queue(eqn: u32) -> Refusal {
    missing(format!("event queue {eqn}, which does not exist"))
}

pub(super) fn destroy_eq<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Refusal> {
    let core = &mut function.core;
    let eqn = destroy_eq_in::EQ_NUMBER.get32(input);
    if !core.eqs.contains_key(&eqn) {
        return Err(no_such_queue(eqn));
    }
    if let Some(cq) = core.cqs.values().find(|cq| cq.eqn == eqn) {
        return Err(busy(format!("event queue {eqn} is in use by completion queue {:#x}", cq.cqn)));
    }
    core.eqs.remove(&eqn);
    core.hca.eqns.give_back(eqn);
    Ok(())
}

/// Event queue states, as in the context.
const ARMED: u32 = 9;
const FIRED: u32 = 10;

pub(super) fn query_eq<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    let eqn = query_eq_in::EQ_NUMBER.get32(input);
    let eq = function.core.eqs.get(&eqn).ok_or_else(|| no_such_queue(eqn))?;
    let mut context = eq.context;
    eqc::ST.set(&mut context, if eq.armed { ARMED } else { FIRED });
    eqc::CONSUMER_COUNTER.set(&mut context, eq.consumer);
    eqc::PRODUCER_COUNTER.set(&mut context, eq.producer);
    put(output, query_eq_out::EQ_CONTEXT_ENTRY.offset, &context);
    query_eq_out::EVENT_BITMASK.set(output, eq.events[0]);
    Ok(())
}
