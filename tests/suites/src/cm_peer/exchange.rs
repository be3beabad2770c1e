//! Verified messages and datagrams.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::{Duration, Instant};

use rdmacm::{PeerUd, PortSpace};
use verbs::state::Rts;
use verbs::{Completed, Qp, SendOp, Wc};
use verbs_harness::pattern;
use verbs_harness::runner::{CaseResult, fail};

use crate::cm_fabric::Parts;
use crate::fabric::{PATIENCE, PORT};

/// The lengths of messages, by turns.
const LENGTHS: [usize; 5] = [1, 100, 1024, 5000, 60_000];

/// Returns the length of the messages of a round.
pub const fn length_of(round: u64) -> usize {
    LENGTHS[round as usize % LENGTHS.len()]
}

/// The length of receives, in bytes.
pub const LONGEST: usize = 60_000;

/// Sends and receives messages by turns and verifies each byte. A receive of [`LONGEST`] bytes must
/// be posted before, and is posted again afterwards. All sends have completed on return.
///
/// # Errors
/// A wrong message, or no message in time.
pub fn exchange(parts: &mut Parts, qp: &mut Qp<Rts>, begins: bool, rounds: u64) -> CaseResult {
    let mut sends = 0;
    for round in 0..rounds {
        let len = length_of(round);
        let seed = |of_beginner: bool| pattern::seed_of(&[round, u64::from(of_beginner)]);
        if begins {
            parts.send(qp, &pattern::filled(seed(true), len))?;
        }
        let received = loop {
            let completed = parts.complete()?;
            if completed.opcode.is_recv() {
                break completed;
            }
            sends += 1;
        };
        verify(received, seed(!begins), len)?;
        parts.post_recv(qp, LONGEST)?;
        if !begins {
            parts.send(qp, &pattern::filled(seed(false), len))?;
        }
    }
    while sends < rounds {
        let completed = parts.complete()?;
        if completed.opcode.is_recv() {
            return fail("a message beyond the last");
        }
        sends += 1;
    }
    Ok(())
}

fn verify(received: Completed, seed: u64, wanted: usize) -> CaseResult {
    let len = received.received();
    if len != wanted {
        return fail(format_args!("{len} bytes arrived instead of {wanted}"));
    }
    let buf = received.into_buf()?;
    pattern::check(seed, &buf[..len]).or_else(fail)
}

/// The length of the global routing header before a datagram.
const GRH: usize = 40;

/// The length of a datagram, in bytes.
const LENGTH: usize = 200;

/// A received datagram.
struct Datagram {
    wc: Wc,
    grh: Vec<u8>,
    text: Vec<u8>,
}

/// Sends datagrams to a service until each is answered, because both may be lost.
///
/// # Errors
/// No answer in time, or an answer from another sender.
pub fn ask(parts: &mut Parts, qp: &mut Qp<Rts>, service: &PeerUd, rounds: u64) -> CaseResult {
    /// The time after which a datagram is sent again.
    const AGAIN: Duration = Duration::from_millis(500);
    let ah = parts.pd.create_ah(&service.ah_attr)?;
    for round in 0..rounds {
        let question = pattern::filled(seed_of(round, true), LENGTH);
        let question = [&round.to_be_bytes()[..], &question].concat();
        let answer = pattern::filled(seed_of(round, false), LENGTH);
        let deadline = Instant::now() + PATIENCE;
        let mut sent: Option<Instant> = None;
        loop {
            if sent.is_none_or(|at| at.elapsed() > AGAIN) {
                parts.post(qp, SendOp::UdSend { to: ah.to(service.qp_num, service.qkey) }, &question)?;
                sent = Some(Instant::now());
            }
            if let Some(Datagram { wc, text, .. }) = poll(parts, qp)? {
                if wc.src_qp != service.qp_num {
                    return fail(format_args!("a datagram of another queue pair: {wc:?}"));
                }
                // Another text answers an earlier question that was sent twice.
                if text == answer {
                    break;
                }
            }
            if Instant::now() > deadline {
                return fail(format_args!("datagram {round} has no answer after {PATIENCE:?}"));
            }
        }
    }
    Ok(())
}

/// Answers datagrams until `is_over` returns true; it is called between them.
///
/// # Errors
/// Those of verbs and of `is_over`; a datagram other than a question.
pub fn answer(
    parts: &mut Parts,
    qp: &mut Qp<Rts>,
    mut is_over: impl FnMut() -> CaseResult<bool>,
) -> CaseResult {
    // Some devices use an address handle until the datagram has left.
    let mut peers = BTreeMap::new();
    while !is_over()? {
        let Some(Datagram { wc, grh, text }) = poll(parts, qp)? else { continue };
        let Some((round, question)) = text.split_first_chunk() else {
            return fail("a datagram that is short");
        };
        let round = u64::from_be_bytes(*round);
        pattern::check(seed_of(round, true), question).or_else(fail)?;
        let ah = match peers.entry(wc.src_qp) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(parts.pd.create_ah_from_wc(PORT, &wc, &grh)?),
        };
        let op = SendOp::UdSend { to: ah.to(wc.src_qp, PortSpace::UDP_QKEY) };
        parts.post(qp, op, &pattern::filled(seed_of(round, false), LENGTH))?;
    }
    Ok(())
}

/// Posts receives for datagrams.
///
/// # Errors
/// Those of verbs.
pub fn post_receives(parts: &Parts, qp: &mut Qp<Rts>) -> CaseResult {
    (0..8).try_for_each(|_| parts.post_recv(qp, GRH + 8 + LENGTH))
}

/// Returns a received datagram and posts a receive for the next one.
fn poll(parts: &mut Parts, qp: &mut Qp<Rts>) -> CaseResult<Option<Datagram>> {
    let Some(completed) = parts.cq.poll_one() else {
        // The peer may be waiting for this processor.
        std::thread::yield_now();
        return Ok(None);
    };
    let completed = completed.ok()?;
    if !completed.opcode.is_recv() {
        return Ok(None);
    }
    let wc = completed.wc;
    let buf = completed.into_buf()?;
    let datagram = Datagram { wc, grh: buf[..GRH].to_vec(), text: buf[GRH..wc.received()].to_vec() };
    parts.post_recv(qp, GRH + 8 + LENGTH)?;
    Ok(Some(datagram))
}

fn seed_of(round: u64, is_question: bool) -> u64 {
    pattern::seed_of(&[round, 100 + u64::from(is_question)])
}
