//! The cost of the data path: posting and polling on queues in plain memory, without a kernel or a
//! device.
//!
//! ```text
//!   cargo bench -p provider-rxe               table of nanoseconds and instructions per operation
//!   cargo bench -p provider-rxe -- --check    no timing; fails beyond a limit in instructions
//! ```
//!
//! callgrind counts instructions: the program runs itself under `valgrind` once per case. The
//! counts include the measured function and its callees, minus an empty function's counts, and do
//! not depend on the machine's speed or load. Without valgrind, the table has no counts, and
//! `--check` fails.
//!
//! Work requests are built before the measurement, like the list of a C program. They are opaque to
//! the compiler at the call. The exception is the form `constant`: the measured function builds the
//! request itself, as programs do, and the compiler sees the operation. Queues are drained and
//! refilled between calls, outside the measurement.
//!
//! # Safety
//! Posting is unsafe because a device reads and writes the memory named by work requests; a paper
//! device does not. The measured functions are exported under their own names for callgrind; no
//! other function has these names.
#![allow(unsafe_code)]

use std::hint::black_box;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use callgrind::count_instructions;
use provider_rxe::paper::{PaperDevice, PaperQueue};
use provider_rxe::{Cq, Rq, Sq, SrqQueue};
use verbs_core::provider::{
    Completion, CqOps, ErasedCq, ErasedRecvQueue, ErasedSendQueue, ErasedSrqQueue, RecvQueue, SendQueue,
    WrBatch,
};
use verbs_core::types::{QpState, RecvWr, SendFlags, SendOp, SendWr, Sge, Wc};

/// Number of slots in each queue.
const SLOTS: u32 = 1024;
/// Number of calls over which instructions are counted.
const COUNTED_CALLS: u32 = 256;
/// Time spent on each case.
const TIMED: Duration = Duration::from_millis(200);
/// Maximum number of instructions added to an operation by erasure.
const ERASURE: f64 = 30.0;

/// Send, receive, shared receive and completion queues, static and erased, over memory shared by
/// both sides.
struct World {
    sq: Sq,
    rq: Rq,
    srq: SrqQueue,
    cq: Cq,
    erased_sq: ErasedSendQueue,
    erased_rq: ErasedRecvQueue,
    erased_srq: ErasedSrqQueue,
    erased_cq: ErasedCq,
    send_queues: [PaperQueue; 2],
    recv_queues: [PaperQueue; 2],
    shared_queues: [PaperQueue; 2],
    completion_queues: [PaperQueue; 2],
    sge: Sge,
    sends: [SendWr<'static>; 16],
    recvs: [RecvWr<'static>; 16],
    /// `lists` holds one request with 4 SGEs, `inlines` one with 32 bytes of inline data.
    lists: [SendWr<'static>; 1],
    inlines: [SendWr<'static>; 1],
    wr_id: u64,
    /// Buffers for 1, 2 and 16 completions.
    wcs: [Vec<Wc>; 3],
    /// Number of completions found by the last call.
    polled: usize,
}

impl World {
    fn new() -> Self {
        // SAFETY: there is one thread, and no memory is posted to these queues.
        let device = unsafe { PaperDevice::new() };
        let mut attr = PaperDevice::rc();
        attr.cap.max_send_wr = SLOTS - 1;
        attr.cap.max_recv_wr = SLOTS - 1;
        let [cq, erased_cq] = [(); 2].map(|()| device.create_cq(SLOTS));
        let [qp, erased_qp] = [(); 2].map(|()| {
            let mut qp = device.create_qp(cq.handle, attr);
            device.move_to(&mut qp, QpState::RTS);
            qp
        });
        let [(srq, shared), (erased_srq, erased_shared)] = [(); 2].map(|()| device.create_srq(SLOTS));
        let sge = Sge { addr: 0x1000, length: 64, lkey: 7 };
        let sges: &'static [Sge; 16] = Box::leak(Box::new([sge; 16]));
        let list = |n: usize| core::slice::from_ref(&sges[n]);
        let flags = SendFlags::SIGNALED;
        static DATA: [u8; 32] = [7; 32];
        let inline: &'static [Sge; 1] = Box::leak(Box::new([Sge {
            addr: DATA.as_ptr().expose_provenance() as u64,
            length: 32,
            lkey: 0,
        }]));
        Self {
            sends: core::array::from_fn(|n| SendWr { wr_id: 0, op: SendOp::Send, sge: list(n), flags }),
            lists: [SendWr { wr_id: 0, op: SendOp::Send, sge: &sges[..4], flags }],
            inlines: [SendWr { wr_id: 0, op: SendOp::Send, sge: inline, flags: flags | SendFlags::INLINE }],
            recvs: core::array::from_fn(|n| RecvWr { wr_id: 0, sge: list(n) }),
            send_queues: [qp.sq, erased_qp.sq],
            recv_queues: [qp.rq, erased_qp.rq],
            shared_queues: [shared, erased_shared],
            completion_queues: [cq.queue, erased_cq.queue],
            sq: qp.parts.sq,
            rq: qp.parts.rq,
            srq: srq.queue,
            cq: cq.cq,
            erased_sq: ErasedSendQueue::new(erased_qp.parts.sq),
            erased_rq: ErasedRecvQueue::new(erased_qp.parts.rq),
            erased_srq: ErasedSrqQueue::new(erased_srq.queue),
            erased_cq: ErasedCq::new(erased_cq.cq),
            sge,
            wr_id: 0,
            wcs: [1, 2, 16].map(|count| vec![Wc::default(); count]),
            polled: 0,
        }
    }

    /// Empties the posted queues, as the kernel does between calls.
    fn drain(&mut self) {
        let queues = [&self.send_queues, &self.recv_queues, &self.shared_queues];
        queues.into_iter().flatten().for_each(PaperQueue::drain);
    }

    /// Completes `count` requests, as the kernel does between calls.
    fn complete(&mut self, count: u32) {
        self.completion_queues.iter().for_each(|queue| queue.refill(count));
    }
}

/// An operation to measure.
struct Case {
    operation: &'static str,
    form: &'static str,
    /// Number of operations per call.
    per_call: u32,
    /// The name of the measured function in callgrind's output.
    symbol: &'static str,
    call: fn(&mut World),
    /// Prepares the queues for `calls` more calls of `per_call` operations each. All operations
    /// must fit in the queues.
    ready: fn(&mut World, calls: u32, per_call: u32),
    /// Maximum number of instructions per operation.
    limit: Limit,
}

#[derive(Clone, Copy)]
enum Limit {
    None,
    Instructions(f64),
    /// The instruction count of the case with this symbol, plus [`ERASURE`].
    ErasedFrom(&'static str),
}

macro_rules! cases {
    ($($operation:literal, $form:literal, $per_call:literal, $ready:ident, $limit:expr => $name:ident($world:ident) $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            #[inline(never)]
            fn $name($world: &mut World) $body
        )*

        const CASES: &[Case] = &[$(Case {
            operation: $operation,
            form: $form,
            per_call: $per_call,
            symbol: stringify!($name),
            call: $name,
            ready: $ready,
            limit: $limit,
        }),*];
    };
}

cases! {
    "post_send, 1 SGE", "constant", 1, drained, Limit::Instructions(90.0) => rxe_bench_send_1_constant(w) {
        let sge = [w.sge];
        let wr = SendWr { wr_id: w.wr_id, op: SendOp::Send, sge: &sge, flags: SendFlags::SIGNALED };
        // SAFETY: a paper device accesses no memory named by work requests.
        black_box(unsafe { w.sq.post_send(&[wr]) }).unwrap();
    }
    "post_send, 1 SGE", "static", 1, drained, Limit::Instructions(90.0) => rxe_bench_send_1_static(w) {
        // SAFETY: a paper device accesses no memory named by work requests.
        black_box(unsafe { w.sq.post_send(&w.sends[..1]) }).unwrap();
    }
    "post_send, 1 SGE", "erased", 1, drained, Limit::ErasedFrom("rxe_bench_send_1_static") => rxe_bench_send_1_erased(w) {
        // SAFETY: a paper device accesses no memory named by work requests.
        black_box(unsafe { w.erased_sq.post_send(&w.sends[..1]) }).unwrap();
    }
    "post_send, 1 SGE", "static", 16, drained, Limit::Instructions(90.0) => rxe_bench_send_16_static(w) {
        // SAFETY: a paper device accesses no memory named by work requests.
        black_box(unsafe { w.sq.post_send(&w.sends) }).unwrap();
    }
    "post_send, 1 SGE", "erased", 16, drained, Limit::ErasedFrom("rxe_bench_send_16_static") => rxe_bench_send_16_erased(w) {
        // SAFETY: a paper device accesses no memory named by work requests.
        black_box(unsafe { w.erased_sq.post_send(&w.sends) }).unwrap();
    }
    "WrBatch, 1 SGE", "static", 16, drained, Limit::Instructions(60.0) => rxe_bench_batch_16_static(w) {
        // SAFETY: a paper device accesses no memory named by work requests.
        black_box(unsafe { batch(&mut w.sq, w.wr_id, w.sge) });
    }
    "WrBatch, 1 SGE", "erased", 16, drained, Limit::None => rxe_bench_batch_16_erased(w) {
        // SAFETY: a paper device accesses no memory named by work requests.
        black_box(unsafe { batch(&mut w.erased_sq, w.wr_id, w.sge) });
    }
    "post_send, 4 SGEs", "static", 1, drained, Limit::None => rxe_bench_send_list_static(w) {
        // SAFETY: a paper device accesses no memory named by work requests.
        black_box(unsafe { w.sq.post_send(&w.lists) }).unwrap();
    }
    "post_send, inline", "static", 1, drained, Limit::None => rxe_bench_send_inline_static(w) {
        // SAFETY: the work request's memory is static.
        black_box(unsafe { w.sq.post_send(&w.inlines) }).unwrap();
    }
    "post_recv, 1 SGE", "static", 1, drained, Limit::Instructions(60.0) => rxe_bench_recv_1_static(w) {
        // SAFETY: a paper device accesses no memory named by work requests.
        black_box(unsafe { w.rq.post_recv(&w.recvs[..1]) }).unwrap();
    }
    "post_recv, 1 SGE", "erased", 1, drained, Limit::ErasedFrom("rxe_bench_recv_1_static") => rxe_bench_recv_1_erased(w) {
        // SAFETY: a paper device accesses no memory named by work requests.
        black_box(unsafe { w.erased_rq.post_recv(&w.recvs[..1]) }).unwrap();
    }
    "post_recv, 1 SGE", "static", 16, drained, Limit::Instructions(60.0) => rxe_bench_recv_16_static(w) {
        // SAFETY: a paper device accesses no memory named by work requests.
        black_box(unsafe { w.rq.post_recv(&w.recvs) }).unwrap();
    }
    "post_recv, 1 SGE", "erased", 16, drained, Limit::ErasedFrom("rxe_bench_recv_16_static") => rxe_bench_recv_16_erased(w) {
        // SAFETY: a paper device accesses no memory named by work requests.
        black_box(unsafe { w.erased_rq.post_recv(&w.recvs) }).unwrap();
    }
    "post_srq_recv, 1 SGE", "static", 1, drained, Limit::Instructions(60.0) => rxe_bench_srq_1_static(w) {
        // SAFETY: a paper device accesses no memory named by work requests.
        black_box(unsafe { w.srq.post_recv(&w.recvs[..1]) }).unwrap();
    }
    "post_srq_recv, 1 SGE", "erased", 1, drained, Limit::ErasedFrom("rxe_bench_srq_1_static") => rxe_bench_srq_1_erased(w) {
        // SAFETY: a paper device accesses no memory named by work requests.
        black_box(unsafe { w.erased_srq.post_recv(&w.recvs[..1]) }).unwrap();
    }
    "post_srq_recv, 1 SGE", "static", 16, drained, Limit::Instructions(60.0) => rxe_bench_srq_16_static(w) {
        // SAFETY: a paper device accesses no memory named by work requests.
        black_box(unsafe { w.srq.post_recv(&w.recvs) }).unwrap();
    }
    "post_srq_recv, 1 SGE", "erased", 16, drained, Limit::ErasedFrom("rxe_bench_srq_16_static") => rxe_bench_srq_16_erased(w) {
        // SAFETY: a paper device accesses no memory named by work requests.
        black_box(unsafe { w.erased_srq.post_recv(&w.recvs) }).unwrap();
    }
    "poll, lending", "static", 1, completed, Limit::Instructions(30.0) => rxe_bench_lend_1_static(w) { lend(&mut w.cq, 1) }
    "poll, lending", "static", 2, completed, Limit::Instructions(30.0) => rxe_bench_lend_2_static(w) { lend(&mut w.cq, 2) }
    "poll, lending", "static", 16, completed, Limit::Instructions(30.0) => rxe_bench_lend_16_static(w) { lend(&mut w.cq, 16) }
    "poll, lending", "erased", 16, completed, Limit::ErasedFrom("rxe_bench_lend_16_static") => rxe_bench_lend_16_erased(w) { lend(&mut w.erased_cq, 16) }
    "poll, every field", "static", 16, completed, Limit::Instructions(60.0) => rxe_bench_fields_16_static(w) { lend_fields(&mut w.cq, 16) }
    "poll, every field", "erased", 16, completed, Limit::ErasedFrom("rxe_bench_fields_16_static") => rxe_bench_fields_16_erased(w) { lend_fields(&mut w.erased_cq, 16) }
    "poll, by value", "static", 1, completed, Limit::None => rxe_bench_poll_1_static(w) {
        w.polled = w.cq.poll(&mut w.wcs[0]);
    }
    "poll, by value", "erased", 1, completed, Limit::ErasedFrom("rxe_bench_poll_1_static") => rxe_bench_poll_1_erased(w) {
        w.polled = w.erased_cq.poll(&mut w.wcs[0]);
    }
    "poll, by value", "static", 2, completed, Limit::Instructions(30.0) => rxe_bench_poll_2_static(w) {
        w.polled = w.cq.poll(&mut w.wcs[1]);
    }
    "poll, by value", "erased", 2, completed, Limit::ErasedFrom("rxe_bench_poll_2_static") => rxe_bench_poll_2_erased(w) {
        w.polled = w.erased_cq.poll(&mut w.wcs[1]);
    }
    "poll, by value", "static", 16, completed, Limit::Instructions(30.0) => rxe_bench_poll_16_static(w) {
        w.polled = w.cq.poll(&mut w.wcs[2]);
    }
    "poll, by value", "erased", 16, completed, Limit::ErasedFrom("rxe_bench_poll_16_static") => rxe_bench_poll_16_erased(w) {
        w.polled = w.erased_cq.poll(&mut w.wcs[2]);
    }
}

/// Builds and posts a batch of 16 requests.
///
/// # Safety
/// Same as [`SendQueue::post_send`](verbs_core::provider::SendQueue::post_send).
#[inline(always)]
unsafe fn batch(queue: &mut impl SendQueue, first: u64, sge: Sge) -> usize {
    let mut batch = WrBatch::start(queue);
    batch.wr_flags = SendFlags::SIGNALED;
    for wr_id in first..first + 16 {
        batch.wr_id = wr_id;
        // SAFETY: the caller makes the same promise.
        unsafe { batch.send().set_sge(sge) };
    }
    batch.complete().unwrap()
}

/// An empty measured function, whose count is subtracted from the others.
const EMPTY: Case = Case {
    operation: "nothing",
    form: "",
    per_call: 1,
    symbol: "rxe_bench_empty",
    call: rxe_bench_empty,
    ready: drained,
    limit: Limit::None,
};

#[unsafe(no_mangle)]
#[inline(never)]
fn rxe_bench_empty(w: &mut World) {
    black_box(w);
}

fn drained(world: &mut World, _calls: u32, _per_call: u32) {
    world.drain();
}

fn completed(world: &mut World, calls: u32, per_call: u32) {
    world.complete(calls * per_call);
}

/// Polls completions one by one and reads the fields that programs usually read.
#[inline(always)]
fn lend(cq: &mut impl CqOps, count: usize) {
    for _ in 0..count {
        let completion = cq.next().expect("it was completed");
        black_box((completion.wr_id(), completion.status(), completion.byte_len()));
    }
    cq.end_poll();
}

/// Polls completions one by one and reads every field, including the optional ones.
#[inline(always)]
fn lend_fields(cq: &mut impl CqOps, count: usize) {
    for _ in 0..count {
        let completion = cq.next().expect("it was completed");
        black_box((completion.wr_id(), completion.status(), completion.opcode(), completion.vendor_err()));
        black_box((completion.byte_len(), completion.imm_data(), completion.qp_num(), completion.src_qp()));
        black_box((completion.wc_flags(), completion.slid(), completion.sl(), completion.dlid_path_bits()));
        black_box((completion.completion_ts(), completion.completion_wallclock_ns(), completion.cvlan()));
        black_box((completion.flow_tag(), completion.tm_info()));
    }
    cq.end_poll();
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, symbol] = args.as_slice()
        && flag == "--count"
    {
        let case = CASES.iter().chain([&EMPTY]).find(|case| case.symbol == symbol).expect("a case");
        run_calls(case, &mut World::new(), COUNTED_CALLS);
        return ExitCode::SUCCESS;
    }
    let check = args.iter().any(|arg| arg == "--check");
    let empty = count_instructions(EMPTY.symbol, COUNTED_CALLS);
    if let Err(why) = &empty {
        println!("instructions were not measured: {why}");
        if check {
            return ExitCode::FAILURE;
        }
    }
    println!(
        "{:<20} {:>8} {:>8} {:>9} {:>13} {:>9}",
        "operation", "a call", "form", "ns/op", "instr/op", "limit"
    );
    let mut counted: Vec<(&str, f64)> = Vec::new();
    let mut failed = false;
    for case in CASES {
        let time = if check { None } else { Some(time_per_operation(case)) };
        let instructions = match &empty {
            Ok(empty) => match count_instructions(case.symbol, COUNTED_CALLS) {
                Ok(all) => Some((all - empty) / f64::from(case.per_call)),
                Err(why) => {
                    println!("{}: {why}", case.symbol);
                    failed = true;
                    None
                }
            },
            Err(_) => None,
        };
        let limit = match case.limit {
            Limit::None => None,
            Limit::Instructions(limit) => Some(limit),
            Limit::ErasedFrom(symbol) => {
                counted.iter().find(|(counted, _)| *counted == symbol).map(|(_, count)| count + ERASURE)
            }
        };
        counted.extend(instructions.map(|count| (case.symbol, count)));
        let over = matches!((instructions, limit), (Some(count), Some(limit)) if count > limit);
        failed |= over;
        println!(
            "{:<20} {:>8} {:>8} {:>9} {:>13} {:>9}{}",
            case.operation,
            case.per_call,
            case.form,
            time.map_or_else(String::new, |ns| format!("{ns:.1}")),
            instructions.map_or_else(String::new, |count| format!("{count:.1}")),
            limit.map_or_else(String::new, |limit| format!("{limit:.0}")),
            if over { "  over the limit" } else { "" }
        );
    }
    if check && failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Calls a case `calls` times, in chunks that fit in the queues.
fn run_calls(case: &Case, world: &mut World, calls: u32) {
    let portion = (SLOTS - 1) / case.per_call;
    let mut left = calls;
    while left > 0 {
        let now = left.min(portion);
        (case.ready)(world, now, case.per_call);
        for _ in 0..now {
            world.wr_id += u64::from(case.per_call);
            (case.call)(world);
            assert!(!case.operation.ends_with("by value") || world.polled == case.per_call as usize);
        }
        left -= now;
    }
}

/// Returns the time per operation in nanoseconds: the minimum over many chunks, because a
/// disturbance can only make a chunk slower.
fn time_per_operation(case: &Case) -> f64 {
    let mut world = World::new();
    let portion = (SLOTS - 1) / case.per_call;
    let mut best = Duration::MAX;
    let end = Instant::now() + TIMED;
    while Instant::now() < end {
        (case.ready)(&mut world, portion, case.per_call);
        let start = Instant::now();
        for _ in 0..portion {
            world.wr_id += u64::from(case.per_call);
            (case.call)(&mut world);
        }
        best = best.min(start.elapsed());
    }
    best.as_nanos() as f64 / f64::from(portion * case.per_call)
}
