//! The cost of the data path: posting and polling on queues in plain memory, without a device.
//!
//! ```text
//!   cargo bench -p provider-mlx5               table of instructions per operation
//!   cargo bench -p provider-mlx5 -- --check    fails beyond a limit
//!   cargo bench -p provider-mlx5 -- --sites    fails if a barrier is not where it belongs
//! ```
//!
//! The last two columns count the atomic read-modify-writes and the nested function calls per
//! measured call. Atomics are allowed only for shared receive queues; nested calls are forbidden in
//! the form `constant`.
//!
//! callgrind counts instructions: the program runs itself under `valgrind`, once per case. The
//! counts include the measured function and its callees, minus an empty function's counts.
//! Doorbells are stores into plain memory. The caller checks whether posting succeeded.
//!
//! Work requests are built before the measurement, like the list of a C program, and are unknown to
//! the compiler at the call. The exception is the form `constant`: the measured function builds the
//! request itself, like a program, and the compiler sees the operation.
//!
//! # Safety
//! Posting is unsafe because a device reads and writes the memory named by work requests; a paper
//! device does not. The measured functions are exported under their own names, so that callgrind
//! finds them; no other function has these names.
#![allow(unsafe_code)]

mod sites;

use std::hint::black_box;
use std::process::ExitCode;

use provider_mlx5::paper::{PaperCqe, PaperQp, PaperShape, PaperSrq};
use verbs_core::provider::{
    Completion as _, ErasedRecvQueue, ErasedSendQueue, RecvQueue as _, SendQueue, WrBatch,
};
use verbs_core::types::{QpState, RecvWr, SendFlags, SendOp, SendWr, Sge, Wc};

use callgrind::{Cost, count, count_instructions};

/// The capacity of each queue, in receives, completions or blocks. A request may take up to 3
/// blocks.
const SLOTS: u32 = 8192;
/// The number of calls over which instructions are counted.
const COUNTED_CALLS: u32 = 256;

struct World {
    qp: PaperQp,
    /// The erased queues of another queue pair.
    erased_sq: ErasedSendQueue,
    erased_rq: ErasedRecvQueue,
    srq: PaperSrq,
    /// A queue pair that takes its receives from `srq`.
    sharer: PaperQp,
    sge: Sge,
    inline: Sge,
    sends: [SendWr<'static>; 16],
    inlines: [SendWr<'static>; 16],
    recvs: [RecvWr<'static>; 16],
    wr_id: u64,
    wcs: [Vec<Wc>; 2],
    polled: usize,
}

static DATA: [u8; 8] = [7; 8];

impl World {
    fn new() -> Self {
        let shape = PaperShape {
            blocks: 4 * SLOTS,
            entries: SLOTS,
            cqes: SLOTS,
            blocks_of_request: 3,
            max_inline: 28,
            max_send_sge: 2,
            ..PaperShape::default()
        };
        // SAFETY: there is one thread.
        let [mut qp, mut erased] = [(); 2].map(|()| unsafe { PaperQp::new(shape) });
        let srq = PaperSrq::new(SLOTS, 4);
        // SAFETY: as above.
        let sharer = unsafe { PaperQp::of_srq(PaperShape { cqes: SLOTS, ..PaperShape::default() }, &srq) };
        for state in [QpState::INIT, QpState::RTR, QpState::RTS] {
            qp.move_to(state);
            erased.move_to(state);
        }
        let sge = Sge { addr: 0x1000, length: 64, lkey: 7 };
        let inline = Sge { addr: DATA.as_ptr().expose_provenance() as u64, length: 8, lkey: 0 };
        let lists: &'static [Sge; 2] = Box::leak(Box::new([sge, inline]));
        let op = SendOp::RdmaWrite { remote_addr: 0x2000, rkey: 9 };
        let flags = SendFlags::SIGNALED;
        let send = |list: &'static [Sge], flags| SendWr { wr_id: 0, op, sge: list, flags };
        Self {
            qp,
            erased_sq: ErasedSendQueue::new(erased.sq),
            erased_rq: ErasedRecvQueue::new(erased.rq),
            srq,
            sharer,
            sge,
            inline,
            sends: [send(&lists[..1], flags); 16],
            inlines: [send(&lists[1..], flags | SendFlags::INLINE); 16],
            recvs: [RecvWr { wr_id: 0, sge: &lists[..1] }; 16],
            wr_id: 0,
            wcs: [1, 16].map(|count| vec![Wc::default(); count]),
            polled: 0,
        }
    }
}

struct Case {
    operation: &'static str,
    form: &'static str,
    per_call: u32,
    symbol: &'static str,
    call: fn(&mut World),
    ready: fn(&mut World, u32),
    /// The target number of instructions per operation.
    target: Option<f64>,
    /// The maximum number of instructions per operation.
    limit: f64,
}

impl Case {
    /// Returns whether the case must not call functions. This applies to posting in the form
    /// `constant` and to single operations with a target. A list is always stored by a call to one
    /// provider function.
    fn is_to_call_nothing(&self) -> bool {
        self.form == "constant" || self.form == "static" && self.per_call == 1 && self.target.is_some()
    }

    /// Returns the exceeded limit, if any.
    fn excess(&self, instructions: f64, cost: Cost) -> Option<&'static str> {
        // Receives from a shared receive queue complete in any order, on any polling thread.
        let is_shared = self.operation.contains("srq") || self.operation.contains("shared");
        if instructions > self.limit {
            Some("  over the limit")
        } else if cost.atomics > 0.0 && !is_shared {
            Some("  has atomic read-modify-writes")
        } else if cost.calls > 0.0 && self.is_to_call_nothing() {
            Some("  calls a function")
        } else {
            None
        }
    }
}

macro_rules! cases {
    ($($operation:literal, $form:literal, $per_call:literal, $ready:ident, $target:expr, $limit:expr => $name:ident($world:ident) $body:block)*) => {
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
            target: $target,
            limit: $limit,
        }),*];
    };
}

cases! {
    "write, 8 bytes inline", "constant", 1, nothing, Some(90.0), 64.0 => mlx5_bench_inline_1_constant(w) {
        let sge = [Sge { length: 8, ..w.inline }];
        let op = SendOp::RdmaWrite { remote_addr: 0x2000, rkey: 9 };
        let wr = SendWr { wr_id: w.wr_id, op, sge: &sge, flags: SendFlags::SIGNALED | SendFlags::INLINE };
        // SAFETY: the inline memory is static.
        unsafe { w.qp.sq.post_send(&[wr]) }.unwrap();
    }
    "write, 8 bytes inline", "static", 1, nothing, Some(90.0), 88.0 => mlx5_bench_inline_1_static(w) {
        // SAFETY: as above.
        unsafe { w.qp.sq.post_send(&w.inlines[..1]) }.unwrap();
    }
    "write, 8 bytes inline", "static", 16, nothing, Some(60.0), 59.0 => mlx5_bench_inline_16_static(w) {
        // SAFETY: as above.
        unsafe { w.qp.sq.post_send(&w.inlines) }.unwrap();
    }
    "write, 1 SGE", "constant", 1, nothing, Some(90.0), 71.0 => mlx5_bench_sge_1_constant(w) {
        let sge = [w.sge];
        let op = SendOp::RdmaWrite { remote_addr: 0x2000, rkey: 9 };
        let wr = SendWr { wr_id: w.wr_id, op, sge: &sge, flags: SendFlags::SIGNALED };
        // SAFETY: a paper device accesses no memory named by work requests.
        unsafe { w.qp.sq.post_send(&[wr]) }.unwrap();
    }
    "write, 1 SGE", "static", 1, nothing, Some(90.0), 90.0 => mlx5_bench_sge_1_static(w) {
        // SAFETY: a paper device accesses no memory named by work requests.
        unsafe { w.qp.sq.post_send(&w.sends[..1]) }.unwrap();
    }
    "write, 1 SGE", "static", 16, nothing, Some(60.0), 60.0 => mlx5_bench_sge_16_static(w) {
        // SAFETY: a paper device accesses no memory named by work requests.
        unsafe { w.qp.sq.post_send(&w.sends) }.unwrap();
    }
    "WrBatch, 8 bytes inline", "static", 16, nothing, Some(45.0), 45.0 => mlx5_bench_batch_16_static(w) {
        let mut batch = WrBatch::start(&mut w.qp.sq);
        batch.wr_flags = SendFlags::SIGNALED;
        for wr_id in w.wr_id..w.wr_id + 16 {
            batch.wr_id = wr_id;
            batch.rdma_write(9, 0x2000).set_inline_data(&DATA);
        }
        batch.complete().unwrap();
    }
    "WrBatch, 8 bytes inline", "erased", 16, nothing, Some(75.0), 101.5 => mlx5_bench_batch_16_erased(w) {
        let mut batch = WrBatch::start(&mut w.erased_sq);
        batch.wr_flags = SendFlags::SIGNALED;
        for wr_id in w.wr_id..w.wr_id + 16 {
            batch.wr_id = wr_id;
            batch.rdma_write(9, 0x2000).set_inline_data(&DATA);
        }
        batch.complete().unwrap();
    }
    "write, 8 bytes inline", "erased", 1, nothing, None, 109.0 => mlx5_bench_inline_1_erased(w) {
        // SAFETY: as above.
        unsafe { w.erased_sq.post_send(&w.inlines[..1]) }.unwrap();
    }
    "write, 1 SGE", "erased", 16, nothing, None, 62.5 => mlx5_bench_sge_16_erased(w) {
        // SAFETY: a paper device accesses no memory named by work requests.
        unsafe { w.erased_sq.post_send(&w.sends) }.unwrap();
    }
    "post_recv, 1 SGE", "static", 1, nothing, Some(60.0), 45.0 => mlx5_bench_recv_1_static(w) {
        // SAFETY: a paper device accesses no memory named by work requests.
        unsafe { w.qp.rq.post_recv(&w.recvs[..1]) }.unwrap();
    }
    "post_recv, 1 SGE", "static", 16, nothing, Some(35.0), 34.5 => mlx5_bench_recv_16_static(w) {
        // SAFETY: a paper device accesses no memory named by work requests.
        unsafe { w.qp.rq.post_recv(&w.recvs) }.unwrap();
    }
    "post_recv, 1 SGE", "erased", 1, nothing, None, 61.0 => mlx5_bench_recv_1_erased(w) {
        // SAFETY: a paper device accesses no memory named by work requests.
        unsafe { w.erased_rq.post_recv(&w.recvs[..1]) }.unwrap();
    }
    "post_srq_recv, 1 SGE", "static", 1, nothing, None, 84.0 => mlx5_bench_srq_1_static(w) {
        // SAFETY: a paper device accesses no memory named by work requests.
        unsafe { w.srq.queue.post_recv(&w.recvs[..1]) }.unwrap();
    }
    "post_srq_recv, 1 SGE", "static", 16, nothing, None, 57.0 => mlx5_bench_srq_16_static(w) {
        // SAFETY: a paper device accesses no memory named by work requests.
        unsafe { w.srq.queue.post_recv(&w.recvs) }.unwrap();
    }
    "poll, by value", "static", 1, sent, Some(60.0), 59.0 => mlx5_bench_poll_1_static(w) {
        w.polled = w.qp.poll(&mut w.wcs[0]);
    }
    "poll, by value", "static", 16, sent, Some(35.0), 35.0 => mlx5_bench_poll_16_static(w) {
        w.polled = w.qp.poll(&mut w.wcs[1]);
    }
    "poll of receives", "static", 1, received, None, 136.0 => mlx5_bench_poll_recv_1_static(w) {
        w.polled = black_box(w.qp.poll(&mut w.wcs[0]));
    }
    "poll of receives", "static", 16, received, None, 80.0 => mlx5_bench_poll_recv_16_static(w) {
        // A separate function, although its code equals another case's.
        w.polled = black_box(w.qp.poll(&mut w.wcs[1]));
    }
    "poll of shared receives", "static", 16, shared, None, 100.5 => mlx5_bench_poll_srq_16_static(w) {
        w.polled = black_box(w.sharer.poll(&mut w.wcs[1]));
    }
    "poll, lending", "static", 1, sent, Some(60.0), 58.0 => mlx5_bench_lend_1_static(w) { lend(&mut w.qp, 1) }
    "poll, lending", "static", 16, sent, Some(35.0), 48.7 => mlx5_bench_lend_16_static(w) { lend(&mut w.qp, 16) }
}

/// Polls completions one by one and reads the fields that programs usually read.
#[inline(always)]
fn lend(qp: &mut PaperQp, count: usize) {
    for _ in 0..count {
        let completion = qp.lend().expect("it was completed");
        black_box((completion.wr_id(), completion.status(), completion.byte_len()));
    }
    qp.end_poll();
}

const EMPTY: Case = Case {
    operation: "nothing",
    form: "",
    per_call: 1,
    symbol: "mlx5_bench_empty",
    call: mlx5_bench_empty,
    ready: nothing,
    target: None,
    limit: 0.0,
};

#[unsafe(no_mangle)]
#[inline(never)]
fn mlx5_bench_empty(w: &mut World) {
    black_box(w);
}

fn nothing(_: &mut World, _: u32) {}

/// Completes sends as the device does.
fn sent(world: &mut World, count: u32) {
    for wqe_counter in 0..count {
        world.qp.write(PaperCqe { wqe_opcode: 8, wqe_counter: wqe_counter as u16, ..PaperCqe::default() });
    }
}

fn received(world: &mut World, count: u32) {
    for wqe_counter in 0..count {
        world.qp.write(PaperCqe { opcode: 2, wqe_counter: wqe_counter as u16, ..PaperCqe::default() });
    }
}

/// Completes receives from the shared receive queue.
fn shared(world: &mut World, count: u32) {
    let sge = [world.sge];
    for wr_id in 0..count.into() {
        // SAFETY: a paper device accesses no memory named by work requests.
        unsafe { world.srq.queue.post_recv(&[RecvWr { wr_id, sge: &sge }]) }.unwrap();
        let wqe_counter = world.srq.device.take().expect("it was posted");
        world.srq.device.complete(wqe_counter);
        world.sharer.write(PaperCqe { opcode: 2, wqe_counter, ..PaperCqe::default() });
    }
}

fn run_calls(case: &Case, world: &mut World) {
    (case.ready)(world, COUNTED_CALLS * case.per_call);
    for _ in 0..COUNTED_CALLS {
        world.wr_id += u64::from(case.per_call);
        (case.call)(world);
        assert!(
            !case.operation.starts_with("poll")
                || case.operation.ends_with("lending")
                || world.polled == case.per_call as usize
        );
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, symbol] = args.as_slice()
        && flag == "--count"
    {
        let case = CASES.iter().chain([&EMPTY]).find(|case| case.symbol == symbol).expect("a case");
        let mut world = World::new();
        // The poller applies pending changes before the measurement.
        sent(&mut world, 1);
        world.qp.lend();
        shared(&mut world, 1);
        world.sharer.lend();
        world.sharer.end_poll();
        run_calls(case, &mut world);
        return ExitCode::SUCCESS;
    }
    if args.iter().any(|arg| arg == "--sites") {
        return match sites::check() {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(why) => {
                println!("FAIL sites: {why}");
                ExitCode::FAILURE
            }
        };
    }
    let check = args.iter().any(|arg| arg == "--check");
    let empty = match count_instructions(EMPTY.symbol, COUNTED_CALLS) {
        Ok(empty) => empty,
        Err(why) => {
            println!("instructions were not measured: {why}");
            return if check { ExitCode::FAILURE } else { ExitCode::SUCCESS };
        }
    };
    println!(
        "{:<24} {:>8} {:>9} {:>13} {:>9} {:>9} {:>9} {:>7}",
        "operation", "a call", "form", "instr/op", "target", "limit", "atomics", "calls"
    );
    let mut failed = false;
    for case in CASES {
        let cost = match count(case.symbol, COUNTED_CALLS) {
            Ok(cost) => cost,
            Err(why) => {
                println!("{}: {why}", case.symbol);
                failed = true;
                continue;
            }
        };
        let count = (cost.instructions - empty) / f64::from(case.per_call);
        let why = case.excess(count, cost);
        failed |= why.is_some();
        println!(
            "{:<24} {:>8} {:>9} {count:>13.1} {:>9} {:>9.0} {:>9.1} {:>7.1}{}",
            case.operation,
            case.per_call,
            case.form,
            case.target.map_or_else(String::new, |target| format!("{target:.0}")),
            case.limit,
            cost.atomics,
            cost.calls,
            why.unwrap_or_default()
        );
    }
    if check && failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
