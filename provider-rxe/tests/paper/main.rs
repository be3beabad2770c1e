//! Tests of the provider against a simulated kernel: every byte written, every rejection, every
//! wrap of the ring.
//!
//! # Safety
//! Posting is unsafe because a device reads and writes the memory named by work requests. A paper
//! device accesses no such memory. Posted inline data is in a slice that lives across the call.
#![allow(unsafe_code)]

mod asked;
mod objects;
mod parts;
mod polling;
mod random;
mod receiving;
mod resizing;
mod rollback;
mod sending;
mod shared;
mod states;

use provider_rxe::paper::{PaperCq, PaperDevice, PaperQp, PaperQueue};
use verbs_core::provider::{RecvQueue, SendQueue};
use verbs_core::types::{PostError, QpInitAttr, QpState, QpType, RecvWr, SendFlags, SendOp, SendWr, Sge};
use zerocopy::{Immutable, IntoBytes};

/// Returns a device whose kernel the test simulates.
fn device() -> PaperDevice {
    // SAFETY: the tests own the descriptors in their scripts and may give them away, and no memory
    // is posted to these queues. A test has one thread, or joins the posting threads before it uses
    // the kernel's ends.
    unsafe { PaperDevice::new() }
}

/// The slots' initial bytes, which remain where nothing is written.
const STALE: u8 = 0xa5;

/// A queue pair in RTS with stale slots, its device and its completion queue.
struct Fixture {
    device: PaperDevice,
    cq: PaperCq,
    qp: PaperQp,
}

impl Fixture {
    fn new(attr: QpInitAttr) -> Self {
        let device = device();
        let cq = device.create_cq(64);
        let mut qp = device.create_qp(cq.handle, attr);
        device.move_to(&mut qp, QpState::RTS);
        qp.sq.fill(STALE);
        qp.rq.fill(STALE);
        Self { device, cq, qp }
    }

    fn of_type(qp_type: QpType) -> Self {
        Self::new(QpInitAttr { qp_type, ..PaperDevice::rc() })
    }

    fn send(&mut self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        // SAFETY: see the crate's root.
        unsafe { self.qp.parts.sq.post_send(wrs) }
    }

    fn recv(&mut self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        // SAFETY: see the crate's root.
        unsafe { self.qp.parts.rq.post_recv(wrs) }
    }
}

/// The expected bytes of a slot: stale, except for those written by `put`.
struct Expected(Vec<u8>);

impl Expected {
    fn stale(len: usize) -> Self {
        Self(vec![STALE; len])
    }

    fn put<T: IntoBytes + Immutable>(mut self, offset: usize, value: T) -> Self {
        let bytes = value.as_bytes();
        self.0[offset..offset + bytes.len()].copy_from_slice(bytes);
        self
    }
}

/// Returns all memory shared by the two ends, to detect any change.
fn snapshot(queue: &PaperQueue) -> Vec<u8> {
    (0..queue.size()).map(|at| queue.peek::<u8>(at)).collect()
}

fn sge(n: u64) -> Sge {
    Sge { addr: 0x10_0000 + n * 0x1000, length: 100 + n as u32, lkey: 0x700 + n as u32 }
}

fn plain<'a>(op: SendOp<'a>, sge: &'a [Sge]) -> SendWr<'a> {
    SendWr { wr_id: 0x1122_3344_5566_7788, op, sge, flags: SendFlags::SIGNALED }
}
