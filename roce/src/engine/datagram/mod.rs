//! Received datagrams: address checks and the GRH before the payload.
//!
//! # References
//! IBTA 9.8.3 (unreliable datagram), annex A17 (the substitute for the GRH)

use super::completion::{self, recv};
use super::environment::Environment;
use super::memory::{Memory, Sink};
use super::multicast::is_ipv4;
use super::qp::Qp;
use super::responder;
use super::scatter::SgeError;
use super::types::{Arrival, Completion, DropReason, Network, Service, Status};
use crate::wire::{Headers, ICRC_LEN, packet::pad_for};

/// The number of the special queue pair that accepts every queue key.
const SUBNET_MANAGEMENT: u32 = 0;

/// The number of bytes reserved for a GRH before the payload in a datagram's receive.
const GRH_LEN: usize = 40;

/// Delivers a datagram to a queue pair, or drops it without a reply.
///
/// A receive too short for the datagram completes with [`Status::LocalLength`], and the next
/// datagram uses the next receive. For a queue pair without a shared receive queue, IBTA 9.9.3
/// (class D) and the kernel's rxe (`rxe_resp.c`, `RESPST_ERR_LENGTH`) instead keep the receive for
/// the next datagram. A short receive would then stay at the front of the queue, and every datagram
/// of ordinary size would be dropped without informing the program. ConnectX completes such a
/// receive, as do IBTA and rxe for a shared receive queue (class E).
///
/// # Errors
/// Returns the reason why the datagram was dropped.
///
/// # References
/// IBTA 9.6.1 (Q_Key), 9.8.3, 9.9.3 (classes of errors)
pub(crate) fn receive<M: Memory, S: Sink>(
    qp: &mut Qp,
    env: &mut Environment<'_, M, S>,
    arrival: &Arrival,
    headers: &Headers,
    payload: &[u8],
) -> Result<(), DropReason> {
    let bth = &headers.bth;
    // Only UD operations have a DETH.
    let deth = headers.deth.as_ref().ok_or(DropReason::Other)?;
    if qp.service != Service::Ud
        || !qp.hears_requests()
        || !(responder::same_partition(qp.attr.pkey, bth.pkey) || qp.well_known.is_some())
        || bth.pad_cnt != pad_for(payload.len())
        || payload.len() > MAX_PAYLOAD
    {
        return Err(DropReason::Other);
    }
    if deth.qkey != qp.attr.qkey && qp.well_known != Some(SUBNET_MANAGEMENT) {
        return Err(DropReason::WrongQkey);
    }
    responder::establish(qp, env);
    if !responder::take(qp, env, qp.srq) {
        return Err(DropReason::NoReceive);
    }
    let transport_len = headers.len() + payload.len() + usize::from(bth.pad_cnt) + ICRC_LEN;
    let needed = (GRH_LEN + payload.len()) as u64;
    let put = if needed > qp.resp.current.length() {
        Err(SgeError::Length)
    } else {
        let grh = match arrival.network {
            // IBTA 11.4.1.2: the receive has space for a GRH, but no GRH has arrived to be written.
            Network::Local => responder::count(qp, GRH_LEN),
            Network::Udp | Network::Grh => responder::put(qp, env, &grh(arrival, transport_len)),
        };
        grh.and_then(|()| responder::put(qp, env, payload))
    };
    match put {
        Ok(()) => {
            let completion = Completion {
                byte_len: needed as u32,
                imm: headers.imm.map(|imm| imm.imm_data),
                src_qpn: deth.src_qp,
                grh: arrival.network != Network::Local,
                solicited: bth.se,
                sl: arrival.sl,
                slid: arrival.slid,
                ..recv::completion(qp, Status::Success)
            };
            recv::complete(qp, env, completion);
            Ok(())
        }
        Err(SgeError::Length) => {
            let failed = recv::completion(qp, Status::LocalLength);
            recv::complete(qp, env, failed);
            Err(DropReason::TooShort)
        }
        // Class A: a fault of this side's program.
        Err(SgeError::Protection) => {
            let failed = recv::completion(qp, Status::LocalProtection);
            recv::complete(qp, env, failed);
            completion::fail(qp, env);
            Err(DropReason::Other)
        }
    }
}

/// The largest path MTU, in bytes.
const MAX_PAYLOAD: usize = 4096;

/// Returns the GRH or its substitute, as far as the arrival's fields allow. The substitute is the
/// IPv6 header, or 20 zero bytes and the IPv4 header.
///
/// `transport_len` is the number of bytes from BTH to ICRC.
fn grh(arrival: &Arrival, transport_len: usize) -> [u8; GRH_LEN] {
    const UDP_LEN: usize = 8;
    const UDP: u8 = 17;
    // IBTA 8.3: the next header is an IBA transport header.
    const IBA: u8 = 0x1b;
    let mut grh = [0; GRH_LEN];
    let (class, flow) = (arrival.traffic_class, (arrival.flow_label & 0xf_ffff).to_be_bytes());
    let is_udp = arrival.network == Network::Udp;
    let (next, payload_len) = if is_udp { (UDP, UDP_LEN + transport_len) } else { (IBA, transport_len) };
    if is_udp && is_ipv4(&arrival.local) && is_ipv4(&arrival.remote) {
        let header = &mut grh[20..];
        header[0] = 4 << 4 | 5;
        header[1] = class;
        header[2..4].copy_from_slice(&((20 + payload_len) as u16).to_be_bytes());
        // Don't fragment is set; the identification is 0.
        header[6] = 0x40;
        header[8] = arrival.hop_limit;
        header[9] = next;
        header[12..16].copy_from_slice(&arrival.remote[12..]);
        header[16..20].copy_from_slice(&arrival.local[12..]);
        let sum =
            header.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum::<u32>();
        let folded = (sum & 0xffff) + (sum >> 16);
        let folded = (folded & 0xffff) + (folded >> 16);
        header[10..12].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    } else {
        grh[0] = 6 << 4 | class >> 4;
        grh[1] = class << 4 | flow[1];
        grh[2..4].copy_from_slice(&flow[2..]);
        grh[4..6].copy_from_slice(&(payload_len as u16).to_be_bytes());
        grh[6] = next;
        grh[7] = arrival.hop_limit;
        grh[8..24].copy_from_slice(&arrival.remote);
        grh[24..40].copy_from_slice(&arrival.local);
    }
    grh
}

#[cfg(test)]
mod tests;
