//! Completion queues: CREATE_CQ, DESTROY_CQ, QUERY_CQ, MODIFY_CQ.
//!
//! On a resize, the device writes a last entry ([`RESIZE`]) to the old buffer. Later completions go
//! to the new buffer, where the producer index continues. The reader copies the unread entries
//! before the resize entry to the new buffer. Each entry moves forward by one index, so the copied
//! entries end right before the device's next entry:
//!
//! ```text
//! old: … c c+1 … p-1 [resize at p]           new: … c+1 … p   p+1 ◄── next entry of the device
//!        └──── moved by one ────────────────────► └──────┘
//! ```

use crate::bus::Bus;
use crate::checks::{bad, buffer, busy, doorbell_record, missing, none_of, not_offered, reserved};
use crate::cmd::context::list_bytes;
use crate::function::{Core, Function};
use crate::layout::caps::cmd_hca_cap;
use crate::layout::cq::{
    cqc, create_cq_in, create_cq_out, destroy_cq_in, modify_cq_in, query_cq_in, query_cq_out,
};
use crate::layout::cqe::cqe;
use crate::layout::{Field, put};
use crate::refusal::{Refusal, Status};
use crate::state::compression::Compression;
use crate::state::cq::{Arm, Cq, CqRun, Held};

/// Opcode of the last entry in a buffer that a resize replaces.
const RESIZE: u32 = 5;

pub(super) fn create<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    let core = &mut function.core;
    none_of(&[create_cq_in::CQ_UMEM_VALID], input)?;
    let mut context = [0; cqc::SIZE];
    context.copy_from_slice(create_cq_in::CQ_CONTEXT.bytes(input));
    reserved(&cqc::TABLE, &context)?;
    none_of(NOT_OFFERED, &context)?;
    if cqc::STATUS.is_set(&context) || cqc::ST.is_set(&context) {
        return Err(bad("the context of a new completion queue has a state"));
    }
    let uar = cqc::UAR_PAGE.get32(&context);
    core.needs_uar(uar)?;
    let eqn = cqc::C_EQN_OR_APU_ELEMENT.get32(&context);
    if !core.eqs.contains_key(&eqn) {
        return Err(missing(format!("event queue {eqn:#x}")));
    }
    let (log_size, entry_size) = size(core, &context)?;
    let compression = Compression::from_context(core, &context, entry_size)?;
    let pages = buffer(
        &core.bus,
        input.get(create_cq_in::PAS..).unwrap_or_default(),
        cqc::LOG_PAGE_SIZE.get32(&context),
        cqc::PAGE_OFFSET.get(&context),
        entry_size << log_size,
    )?;
    let doorbell = cqc::DBR_ADDR.get(&context);
    doorbell_record(&core.bus, doorbell)?;
    core.room_for(list_bytes(&pages))?;
    let cqn = core.cqns.take().ok_or(Refusal::fair(Status::NoResources))?;
    let cq = Cq {
        cqn,
        context,
        pages,
        log_size,
        entry_size,
        uar,
        eqn,
        doorbell_record: doorbell,
        ignore_overrun: cqc::OI.is_set(&context),
        producer: 0,
        armed: None,
        held: Held::default(),
        compression,
        in_error: false,
        users: 0,
        run: CqRun::default(),
    };
    core.cqs.insert(cqn, cq);
    create_cq_out::CQN.set(output, cqn);
    Ok(())
}

/// Context fields of features for which the function has no capability.
const NOT_OFFERED: &[Field] = &[
    cqc::DBR_UMEM_VALID,
    cqc::APU_CQ,
    cqc::CC,
    cqc::CQE_COMPRESSION_LAYOUT,
    cqc::CQ_PERIOD_MODE,
    cqc::SCQE_BREAK_MODERATION_EN,
];

/// Returns the number of entries, log2, and the size of an entry, in bytes.
fn size<B: Bus>(core: &Core<B>, context: &[u8]) -> Result<(u32, u64), Refusal> {
    let log_size = cqc::LOG_CQ_SIZE.get32(context);
    core.at_most("entries", log_size, cmd_hca_cap::LOG_MAX_CQ_SZ)?;
    match cqc::CQE_SZ.get(context) {
        0 => Ok((log_size, 64)),
        // Padded entries (2) have another format but the same positions as 128-byte entries (1).
        1 | 2 => Ok((log_size, 128)),
        other => Err(bad(format!("entry size {other}"))),
    }
}

pub(super) fn destroy<B: Bus>(function: &mut Function<B>, input: &[u8], _: &mut [u8]) -> Result<(), Refusal> {
    let (core, cqn) = (&mut function.core, destroy_cq_in::CQN.get32(input));
    core.needs_cq(cqn)?;
    let users = core.cqs.get(&cqn).map_or(0, |cq| cq.users);
    if users > 0 {
        return Err(busy(format!("completion queue {cqn:#x} is in use by {users} queues")));
    }
    core.note_repeated(cqn);
    core.cqs.remove(&cqn);
    core.cqns.give_back(cqn);
    Ok(())
}

/// Completion queue states, as in the context.
///
/// # References
/// PRM, "completion queue context"
const ST_SOLICITED_ARMED: u32 = 0x6;
const ST_ARMED: u32 = 0x9;
const ST_FIRED: u32 = 0xa;
/// Status of an overrun completion queue, as in the context.
const STATUS_OVERFLOW: u32 = 0x9;

pub(super) fn query<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    let (core, cqn) = (&mut function.core, query_cq_in::CQN.get32(input));
    core.needs_cq(cqn)?;
    let Some(cq) = core.cqs.get(&cqn) else { return Err(missing("the completion queue")) };
    let mut context = cq.context;
    cqc::STATUS.set(&mut context, if cq.in_error { STATUS_OVERFLOW } else { 0 });
    let state = match cq.armed {
        Some(Arm::Next) => ST_ARMED,
        Some(Arm::Solicited) => ST_SOLICITED_ARMED,
        None => ST_FIRED,
    };
    cqc::ST.set(&mut context, state);
    cqc::PRODUCER_COUNTER.set(&mut context, cq.producer);
    cqc::CONSUMER_COUNTER.set(&mut context, consumer(&core.bus, cq));
    query_cq_out::CQ_CONTEXT.bytes_mut(output).copy_from_slice(&context);
    for (n, page) in cq.pages.list().iter().enumerate() {
        put(output, query_cq_out::PAS + n * 8, &page.to_be_bytes());
    }
    Ok(())
}

/// Returns the consumer index in the doorbell record, or its last known value if the record is
/// unreadable.
fn consumer<B: Bus>(bus: &B, cq: &Cq) -> u32 {
    let mut word = [0; 4];
    match bus.read(cq.doorbell_record, &mut word) {
        Ok(()) => u32::from_be_bytes(word) & 0x00ff_ffff,
        Err(_) => cq.run.consumer,
    }
}

/// Bits that select the fields changed by MODIFY_CQ: period, count, overrun. A change of the period
/// mode is rejected, because it needs a capability that is not offered.
const MODIFY_PERIOD: u32 = 1 << 0;
const MODIFY_COUNT: u32 = 1 << 1;
const MODIFY_OVERRUN: u32 = 1 << 2;
const MODIFY_PERIOD_MODE: u32 = 1 << 4;
/// Bits that select the fields changed by a resize: size, page offset, page size. A resize needs
/// all three.
const RESIZE_ALL: u32 = 7;

pub(super) fn modify<B: Bus>(function: &mut Function<B>, input: &[u8], _: &mut [u8]) -> Result<(), Refusal> {
    let (core, cqn) = (&mut function.core, modify_cq_in::CQN.get32(input));
    core.needs_cq(cqn)?;
    none_of(&[modify_cq_in::CQ_UMEM_VALID], input)?;
    let context = modify_cq_in::CQ_CONTEXT.bytes(input);
    reserved(&cqc::TABLE, context)?;
    let select = modify_cq_in::MODIFY_FIELD_SELECT.get32(input);
    if modify_cq_in::OP_MOD.get(input) == 1 {
        return resize(function, cqn, select, input);
    }
    if select & MODIFY_PERIOD_MODE != 0 {
        return Err(not_offered("a change of CQ_PERIOD_MODE"));
    }
    let known = MODIFY_PERIOD | MODIFY_COUNT | MODIFY_OVERRUN;
    if select & !known != 0 || input.len() > modify_cq_in::PAS {
        return Err(bad(format!("a change of fields {select:#x} with {} bytes of input", input.len())));
    }
    let Some(cq) = core.cqs.get_mut(&cqn) else { return Err(missing("the completion queue")) };
    let changes =
        [(MODIFY_PERIOD, cqc::CQ_PERIOD), (MODIFY_COUNT, cqc::CQ_MAX_COUNT), (MODIFY_OVERRUN, cqc::OI)];
    for (_, field) in changes.iter().filter(|(bit, _)| select & bit != 0) {
        field.set(&mut cq.context, field.get(context));
    }
    cq.ignore_overrun = cqc::OI.is_set(&cq.context);
    Ok(())
}

fn resize<B: Bus>(function: &mut Function<B>, cqn: u32, select: u32, input: &[u8]) -> Result<(), Refusal> {
    if select != RESIZE_ALL {
        return Err(bad(format!("a resize with field select {select:#x}")));
    }
    let core = &mut function.core;
    let context = modify_cq_in::CQ_CONTEXT.bytes(input);
    let (log_size, entry_size) = size(core, context)?;
    let pages = buffer(
        &core.bus,
        input.get(modify_cq_in::PAS..).unwrap_or_default(),
        cqc::LOG_PAGE_SIZE.get32(context),
        cqc::PAGE_OFFSET.get(context),
        entry_size << log_size,
    )?;
    core.room_for(list_bytes(&pages))?;
    let Some(cq) = core.cqs.get_mut(&cqn) else { return Err(missing("the completion queue")) };
    if entry_size != cq.entry_size {
        return Err(bad(format!("entries of {entry_size} bytes instead of {}", cq.entry_size)));
    }
    if cq.in_error {
        return Err(Refusal::fair(Status::BadResourceState));
    }
    // A user may request fewer entries than are unread, and may have let the queue fill up.
    let waiting = u64::from(cq.producer.wrapping_sub(consumer(&core.bus, cq)) & 0x00ff_ffff);
    if waiting + 1 > 1 << log_size || waiting + 1 > 1 << cq.log_size {
        return Err(Refusal::fair(Status::BadCqSize));
    }
    // The last entry of the old buffer raises no event.
    let mut last = [0; cqe::SIZE];
    cqe::OPCODE.set(&mut last, RESIZE);
    core.put(cqn, &mut last, &[]).map_err(|_| Refusal::fair(Status::InternalError))?;
    let Some(cq) = core.cqs.get_mut(&cqn) else { return Err(missing("the completion queue")) };
    (cq.pages, cq.log_size) = (pages, log_size);
    if let Some(compression) = &mut cq.compression {
        compression.replaced();
    }
    for field in [cqc::LOG_CQ_SIZE, cqc::PAGE_OFFSET, cqc::LOG_PAGE_SIZE] {
        field.set(&mut cq.context, field.get(context));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
