//! The objects between Ethernet queues and the wire: CREATE, MODIFY, DESTROY and QUERY of TIS, TIR
//! and RQT.
//!
//! ```text
//!   SQ ──► TIS ──► wire ──► steering ──► TIR ──► RQ
//!                                         └────► RQT ──► RQ, RQ, ...
//! ```

use crate::bus::Bus;
use crate::caps::{LOG_MAX_RQT, LOG_MAX_RQT_SIZE, LOG_MAX_TIR, LOG_MAX_TIS};
use crate::checks::{bad, busy, missing, none_of, not_offered, reserved};
use crate::function::{Core, Function};
use crate::layout::eth::{rqtc, tirc, tisc};
use crate::layout::{dword, eth as layout, put};
use crate::refusal::{Refusal, Status};
use crate::state::eth::{Ethernet, Receivers, Rqt, Tir, Tis};

/// Dispersal values: a TIR delivers to one receive queue, or to the queues of a table (RQT).
const DIRECT: u32 = 0;
const INDIRECT: u32 = 1;
/// The highest number of a hash function: 0 is none, 1 XOR, 2 Toeplitz.
const MAX_HASH: u32 = 2;

/// Returns an unused object number, unless `have` objects have reached the limit.
fn number(eth: &mut Ethernet, have: usize, log_max: u32) -> Result<u32, Refusal> {
    let number = if have < 1 << log_max { eth.number() } else { None };
    number.ok_or(Refusal::fair(Status::NoResources))
}

fn needs_domain<B: Bus>(core: &Core<B>, domain: u32) -> Result<(), Refusal> {
    if core.transport_domains.contains(domain) {
        Ok(())
    } else {
        Err(missing(format!("transport domain {domain:#x}")))
    }
}

pub(super) fn create_tis<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    let core = &mut function.core;
    let mut context = [0; tisc::SIZE];
    context.copy_from_slice(layout::create_tis_in::CTX.bytes(input));
    reserved(&tisc::TABLE, &context)?;
    none_of(
        &[
            tisc::TLS_EN,
            tisc::STRICT_LAG_TX_PORT_AFFINITY,
            tisc::LAG_TX_PORT_AFFINITY,
            tisc::UNDERLAY_QPN,
            tisc::PD,
        ],
        &context,
    )?;
    let domain = tisc::TRANSPORT_DOMAIN.get32(&context);
    needs_domain(core, domain)?;
    let have = core.eth.tises.len();
    let tisn = number(&mut core.eth, have, LOG_MAX_TIS)?;
    core.eth.tises.insert(tisn, Tis { context, domain, users: 0 });
    layout::create_tis_out::TISN.set(output, tisn);
    Ok(())
}

pub(super) fn modify_tis<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Refusal> {
    use layout::modify_tis_in as fields;
    let tisn = fields::TISN.get32(input);
    let tis = function.core.eth.tises.get_mut(&tisn).ok_or_else(|| missing(format!("TIS {tisn:#x}")))?;
    let context = fields::CTX.bytes(input);
    reserved(&tisc::TABLE, context)?;
    none_of(&[fields::LAG_TX_PORT_AFFINITY, fields::STRICT_LAG_TX_PORT_AFFINITY], input)?;
    if fields::PRIO.is_set(input) {
        tisc::PRIO.set(&mut tis.context, tisc::PRIO.get(context));
    }
    Ok(())
}

pub(super) fn destroy_tis<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Refusal> {
    let (eth, tisn) = (&mut function.core.eth, layout::destroy_tis_in::TISN.get32(input));
    let tis = eth.tises.get(&tisn).ok_or_else(|| missing(format!("TIS {tisn:#x}")))?;
    if tis.users > 0 {
        return Err(busy(format!("TIS {tisn:#x} is in use by {} send queues", tis.users)));
    }
    eth.tises.remove(&tisn);
    eth.free_number(tisn);
    Ok(())
}

pub(super) fn query_tis<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    let tisn = layout::query_tis_in::TISN.get32(input);
    let tis = function.core.eth.tises.get(&tisn).ok_or_else(|| missing(format!("TIS {tisn:#x}")))?;
    layout::query_tis_out::TIS_CONTEXT.bytes_mut(output).copy_from_slice(&tis.context);
    Ok(())
}

pub(super) fn create_tir<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    let core = &mut function.core;
    let mut context = [0; tirc::SIZE];
    context.copy_from_slice(layout::create_tir_in::CTX.bytes(input));
    reserved(&tirc::TABLE, &context)?;
    none_of(
        &[
            tirc::TLS_EN,
            tirc::LRO_TIMEOUT_PERIOD_USECS,
            tirc::PACKET_MERGE_MASK,
            tirc::LRO_MAX_IP_PAYLOAD_SIZE,
            tirc::TUNNELED_OFFLOAD_EN,
        ],
        &context,
    )?;
    let domain = tirc::TRANSPORT_DOMAIN.get32(&context);
    needs_domain(core, domain)?;
    let hash = tirc::RX_HASH_FN.get32(&context);
    if hash > MAX_HASH {
        return Err(bad(format!("hash function {hash}")));
    }
    let to = match tirc::DISP_TYPE.get32(&context) {
        DIRECT => {
            let rqn = tirc::INLINE_RQN.get32(&context);
            if !core.eth.rqs.contains_key(&rqn) {
                return Err(missing(format!("receive queue {rqn:#x}")));
            }
            Receivers::Rq(rqn)
        }
        INDIRECT => {
            let rqtn = tirc::INDIRECT_TABLE.get32(&context);
            if !core.eth.rqts.contains_key(&rqtn) {
                return Err(missing(format!("RQT {rqtn:#x}")));
            }
            Receivers::Rqt(rqtn)
        }
        other => return Err(bad(format!("dispersal {other}"))),
    };
    let have = core.eth.tirs.len();
    let tirn = number(&mut core.eth, have, LOG_MAX_TIR)?;
    core.eth.tirs.insert(tirn, Tir { context, domain, to });
    layout::create_tir_out::TIRN.set(output, tirn);
    Ok(())
}

pub(super) fn modify_tir<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Refusal> {
    use layout::modify_tir_in as fields;
    let tirn = fields::TIRN.get32(input);
    let tir = function.core.eth.tirs.get_mut(&tirn).ok_or_else(|| missing(format!("TIR {tirn:#x}")))?;
    let context = fields::CTX.bytes(input);
    reserved(&tirc::TABLE, context)?;
    if fields::PACKET_MERGE.is_set(input) && tirc::PACKET_MERGE_MASK.is_set(context) {
        return Err(not_offered("large receive offload"));
    }
    if fields::HASH.is_set(input) {
        let hash = tirc::RX_HASH_FN.get32(context);
        if hash > MAX_HASH {
            return Err(bad(format!("hash function {hash}")));
        }
        tirc::RX_HASH_FN.set(&mut tir.context, hash);
        tirc::RX_HASH_SYMMETRIC.set(&mut tir.context, tirc::RX_HASH_SYMMETRIC.get(context));
        // The hash key and the mask of the fields to hash.
        let part = tirc::RX_HASH_TOEPLITZ_KEY.offset..0x58;
        if let (Some(to), Some(from)) = (tir.context.get_mut(part.clone()), context.get(part)) {
            to.copy_from_slice(from);
        }
    }
    if fields::SELF_LB_EN.is_set(input) {
        tirc::SELF_LB_BLOCK.set(&mut tir.context, tirc::SELF_LB_BLOCK.get(context));
    }
    Ok(())
}

pub(super) fn destroy_tir<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Refusal> {
    let (eth, tirn) = (&mut function.core.eth, layout::destroy_tir_in::TIRN.get32(input));
    if !eth.tirs.contains_key(&tirn) {
        return Err(missing(format!("TIR {tirn:#x}")));
    }
    if eth.steering.tirs().contains(&tirn) {
        return Err(busy(format!("TIR {tirn:#x} is in use by a flow table")));
    }
    eth.tirs.remove(&tirn);
    eth.free_number(tirn);
    Ok(())
}

pub(super) fn query_tir<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    let tirn = layout::query_tir_in::TIRN.get32(input);
    let tir = function.core.eth.tirs.get(&tirn).ok_or_else(|| missing(format!("TIR {tirn:#x}")))?;
    layout::query_tir_out::TIR_CONTEXT.bytes_mut(output).copy_from_slice(&tir.context);
    Ok(())
}

/// Returns the receive queues of a table, listed after its context.
fn rqs<B: Bus>(core: &Core<B>, context: &[u8], list: &[u8], max_size: u32) -> Result<Vec<u32>, Refusal> {
    reserved(&rqtc::TABLE, context)?;
    none_of(&[rqtc::LIST_Q_TYPE, rqtc::RQ_VHCA_ID_FORMAT], context)?;
    let size = rqtc::RQT_ACTUAL_SIZE.get32(context);
    if size == 0 || size > max_size || list.len() as u64 != u64::from(size) * 4 {
        return Err(bad(format!("{size} receive queues in {} bytes, the maximum is {max_size}", list.len())));
    }
    let rqs: Vec<u32> = (0..size as usize).map(|place| dword(list, place * 4)).collect();
    match rqs.iter().find(|rqn| !core.eth.rqs.contains_key(rqn)) {
        None => Ok(rqs),
        Some(rqn) => Err(missing(format!("receive queue {rqn:#x}"))),
    }
}

pub(super) fn create_rqt<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    let core = &mut function.core;
    let context = layout::create_rqt_in::RQT_CONTEXT.bytes(input);
    let list = input.get(layout::create_rqt_in::TABLE.size..).unwrap_or_default();
    let max_size = rqtc::RQT_MAX_SIZE.get32(context);
    if max_size > 1 << LOG_MAX_RQT_SIZE {
        return Err(bad(format!("{max_size} receive queues")));
    }
    let rqs = rqs(core, context, list, max_size)?;
    let have = core.eth.rqts.len();
    let rqtn = number(&mut core.eth, have, LOG_MAX_RQT)?;
    core.eth.rqts.insert(rqtn, Rqt { max_size, rqs });
    layout::create_rqt_out::RQTN.set(output, rqtn);
    Ok(())
}

pub(super) fn modify_rqt<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Refusal> {
    use layout::modify_rqt_in as fields;
    let (core, rqtn) = (&mut function.core, fields::RQTN.get32(input));
    let rqt = core.eth.rqts.get(&rqtn).ok_or_else(|| missing(format!("RQT {rqtn:#x}")))?;
    if !fields::RQN_LIST.is_set(input) {
        return Err(bad("a modification without a change"));
    }
    let list = input.get(fields::TABLE.size..).unwrap_or_default();
    let rqs = rqs(core, fields::CTX.bytes(input), list, rqt.max_size)?;
    if let Some(rqt) = core.eth.rqts.get_mut(&rqtn) {
        rqt.rqs = rqs;
    }
    Ok(())
}

pub(super) fn destroy_rqt<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Refusal> {
    let (eth, rqtn) = (&mut function.core.eth, layout::destroy_rqt_in::RQTN.get32(input));
    if !eth.rqts.contains_key(&rqtn) {
        return Err(missing(format!("RQT {rqtn:#x}")));
    }
    if eth.leads_to_rqt(rqtn) {
        return Err(busy(format!("RQT {rqtn:#x} is in use by a TIR")));
    }
    eth.rqts.remove(&rqtn);
    eth.free_number(rqtn);
    Ok(())
}

pub(super) fn query_rqt<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    let rqtn = layout::query_rqt_in::RQTN.get32(input);
    let rqt = function.core.eth.rqts.get(&rqtn).ok_or_else(|| missing(format!("RQT {rqtn:#x}")))?;
    let context = layout::query_rqt_out::RQT_CONTEXT.bytes_mut(output);
    rqtc::RQT_MAX_SIZE.set(context, rqt.max_size);
    rqtc::RQT_ACTUAL_SIZE.set(context, rqt.rqs.len() as u32);
    for (place, rqn) in rqt.rqs.iter().enumerate() {
        put(output, layout::query_rqt_out::TABLE.size + place * 4, &rqn.to_be_bytes());
    }
    Ok(())
}
