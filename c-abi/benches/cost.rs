//! Compares the cost of the data path through the C functions with the cost of the provider's own
//! functions, on queues of the same kind. The rxe and ConnectX queues are in plain memory, without
//! a kernel ([`paper`], [`mlx5`]). The soft queues belong to devices in this process ([`soft`]).
//!
//! ```text
//!   cargo bench -p libibverbs-c               table of instructions per operation
//!   cargo bench -p libibverbs-c -- --check    the same; fails beyond a limit
//! ```
//!
//! The measured functions do the work of the inline functions in verbs.h: they load a pointer from
//! `ibv_context.ops`, `ibv_qp_ex` or `ibv_cq_ex`, and call through it. Instructions are counted as
//! in the benchmark of provider-rxe: including all callees, minus the instructions of an empty
//! function. The table requires valgrind.
//!
//! If rdma-core's libmlx5 is installed, a C program makes the same calls on it, with a device in
//! plain memory. Its instruction counts appear beside ours for ConnectX ([`libmlx5`]); `--check`
//! fails unless ours are lower. Without it, previously recorded numbers are used.
//!
//! Another table covers a C program's calls to the linked `libibverbs.so.1` on a soft device
//! ([`library`]).
//!
//! # Safety
//! The devices access no memory that work requests name. Objects are live and used by one thread.
//! The measured functions are exported under unique names, so that callgrind finds them.
#![allow(unsafe_code)]

#[path = "../tests/abi/mod.rs"]
mod abi;
mod calls;
mod libmlx5;
mod library;
mod mlx5;
mod paper;
mod soft;
mod world;

use std::hint::black_box;
use std::process::{Command, ExitCode};

use callgrind::{count_in, count_instructions};
use provider_mlx5::Mlx5;
use provider_rxe::Rxe;
use provider_soft::Soft;
use verbs_core::provider::RecvQueue as _;

use calls::*;
use libmlx5::Libmlx5;
use world::{Measured, REMOTE, RKEY, World};

/// The number of calls over which instructions are counted.
const COUNTED_CALLS: u32 = 256;
/// Like [`COUNTED_CALLS`], for soft devices, whose queues are not emptied during the measurement.
const COUNTED_SOFT_CALLS: u32 = 64;
/// The maximum number of additional instructions per operation compared with the static API, if the
/// program makes one call per operation.
const ABOVE: f64 = 30.0;

/// An operation to measure, through the static API and through the C functions.
struct Case<P: Measured> {
    operation: &'static str,
    /// The number of operations per call.
    per_call: u32,
    /// The names of the measured functions, static and C, as callgrind shows them. For ConnectX,
    /// `libmlx5/cost.c` has a function with the second name.
    symbols: [&'static str; 2],
    calls: [fn(&mut World<P>); 2],
    /// Prepares the queues for `calls` further calls, or for as many as fit.
    ready: fn(&mut World<P>, calls: u32, per_call: u32),
    /// The maximum number of additional instructions per operation compared with the static API. If
    /// the program makes several calls per operation, the limit allows 30 for each.
    above: f64,
    /// The number of instructions per operation in rdma-core's provider; the C functions must stay
    /// below it.
    rdma_core: Option<f64>,
}

macro_rules! cases {
    ($cases:ident: $provider:ident; $(
        $operation:literal, $per_call:literal, $ready:ident, $above:expr, $rdma_core:expr =>
        $static:ident($static_world:ident) $static_body:block
        $c:ident($c_world:ident) $c_body:block
    )*) => {
        $(
            #[unsafe(no_mangle)]
            #[inline(never)]
            fn $static($static_world: &mut World<$provider>) $static_body

            #[unsafe(no_mangle)]
            #[inline(never)]
            fn $c($c_world: &mut World<$provider>) {
                // SAFETY: the objects are live; the requests and arrays belong to the world.
                unsafe { $c_body }
            }
        )*

        const $cases: &[Case<$provider>] = &[$(Case {
            operation: $operation,
            per_call: $per_call,
            symbols: [stringify!($static), stringify!($c)],
            calls: [$static, $c],
            ready: $ready,
            above: $above,
            rdma_core: $rdma_core,
        }),*];
    };
}

/// The number of instructions per operation in rdma-core's librxe. docs/benchmarks.md describes how
/// these were counted.
const SEND: Option<f64> = Some(185.0);
const WR: Option<f64> = Some(125.0);
const RECV: Option<f64> = Some(121.0);
const POLL: Option<f64> = Some(40.0);

cases! {
    ON_PAPER: Rxe;

    "post_send, send", 1, drained, ABOVE, SEND =>
    c_cost_send_1_static(w) { post_send(w, 0, 1) }
    c_cost_send_1_c(w) { c_post_send(w, 0) }

    "post_send, send", 16, drained, ABOVE, SEND =>
    c_cost_send_16_static(w) { post_send(w, 0, 16) }
    c_cost_send_16_c(w) { c_post_send(w, 1) }

    "post_send, write", 1, drained, ABOVE, SEND =>
    c_cost_write_1_static(w) { post_send(w, 1, 1) }
    c_cost_write_1_c(w) { c_post_send(w, 2) }

    "post_send, write", 16, drained, ABOVE, SEND =>
    c_cost_write_16_static(w) { post_send(w, 1, 16) }
    c_cost_write_16_c(w) { c_post_send(w, 3) }

    "post_send, 8 B inline", 1, drained, ABOVE, None =>
    c_cost_inline_1_static(w) { post_send(w, 2, 1) }
    c_cost_inline_1_c(w) { c_post_send(w, 4) }

    "post_send, 8 B inline", 16, drained, ABOVE, None =>
    c_cost_inline_16_static(w) { post_send(w, 2, 16) }
    c_cost_inline_16_c(w) { c_post_send(w, 5) }

    "wr, send", 1, drained, 55.0, WR =>
    c_cost_wr_send_1_static(w) {
        batch(w, 1, |wr, sge, _| {
            // SAFETY: the device accesses no memory of work requests.
            unsafe { wr.send().set_sge(sge) }
        });
    }
    c_cost_wr_send_1_c(w) { c_batch(w, 1, c_wr_send, c_set_sge) }

    "wr, send", 16, drained, ABOVE, WR =>
    c_cost_wr_send_16_static(w) {
        batch(w, 16, |wr, sge, _| {
            // SAFETY: the device accesses no memory of work requests.
            unsafe { wr.send().set_sge(sge) }
        });
    }
    c_cost_wr_send_16_c(w) { c_batch(w, 16, c_wr_send, c_set_sge) }

    "wr, write", 1, drained, 70.0, None =>
    c_cost_wr_write_1_static(w) {
        batch(w, 1, |wr, sge, _| {
            // SAFETY: the device accesses no memory of work requests.
            unsafe { wr.rdma_write(RKEY, REMOTE).set_sge(sge) }
        });
    }
    c_cost_wr_write_1_c(w) { c_batch(w, 1, c_wr_write, c_set_sge) }

    "wr, write", 16, drained, 44.0, None =>
    c_cost_wr_write_16_static(w) {
        batch(w, 16, |wr, sge, _| {
            // SAFETY: the device accesses no memory of work requests.
            unsafe { wr.rdma_write(RKEY, REMOTE).set_sge(sge) }
        });
    }
    c_cost_wr_write_16_c(w) { c_batch(w, 16, c_wr_write, c_set_sge) }

    "wr, 8 B inline", 1, drained, 57.0, None =>
    c_cost_wr_inline_1_static(w) {
        batch(w, 1, |wr, _, data| wr.send().set_inline_data(data));
    }
    c_cost_wr_inline_1_c(w) { c_batch(w, 1, c_wr_send, c_set_inline) }

    "wr, 8 B inline", 16, drained, ABOVE, None =>
    c_cost_wr_inline_16_static(w) {
        batch(w, 16, |wr, _, data| wr.send().set_inline_data(data));
    }
    c_cost_wr_inline_16_c(w) { c_batch(w, 16, c_wr_send, c_set_inline) }

    "post_recv", 1, drained, ABOVE, RECV =>
    c_cost_recv_1_static(w) {
        post_recv(w, 1);
    }
    c_cost_recv_1_c(w) { c_post_recv(w, 0) }

    "post_recv", 16, drained, ABOVE, RECV =>
    c_cost_recv_16_static(w) {
        post_recv(w, 16);
    }
    c_cost_recv_16_c(w) { c_post_recv(w, 1) }

    "post_srq_recv", 1, drained, ABOVE, RECV =>
    c_cost_srq_1_static(w) {
        // SAFETY: the device accesses no memory of work requests.
        black_box(unsafe { w.ends.srq.post_recv(&w.recvs[..1]) }).unwrap();
    }
    c_cost_srq_1_c(w) { c_post_srq_recv(w.ends.c_srq, w, 0) }

    "post_srq_recv", 16, drained, ABOVE, RECV =>
    c_cost_srq_16_static(w) {
        // SAFETY: the device accesses no memory of work requests.
        black_box(unsafe { w.ends.srq.post_recv(&w.recvs) }).unwrap();
    }
    c_cost_srq_16_c(w) { c_post_srq_recv(w.ends.c_srq, w, 1) }

    "poll_cq", 1, completed, ABOVE, None =>
    c_cost_poll_1_static(w) { poll(w, 1) }
    c_cost_poll_1_c(w) { c_poll(w, 1) }

    "poll_cq", 2, completed, ABOVE, POLL =>
    c_cost_poll_2_static(w) { poll(w, 2) }
    c_cost_poll_2_c(w) { c_poll(w, 2) }

    "poll_cq", 16, completed, ABOVE, POLL =>
    c_cost_poll_16_static(w) { poll(w, 16) }
    c_cost_poll_16_c(w) { c_poll(w, 16) }

    "poll_cq, empty", 1, drained, ABOVE, None =>
    c_cost_empty_static(w) { poll(w, 8) }
    c_cost_empty_c(w) { c_poll(w, 8) }

    "start_poll, 4 fields", 1, completed, 55.0, None =>
    c_cost_lend_1_static(w) { lend(w, 1) }
    c_cost_lend_1_c(w) { c_lend(w, 1) }

    "start_poll, 4 fields", 16, completed, 31.0, None =>
    c_cost_lend_16_static(w) { lend(w, 16) }
    c_cost_lend_16_c(w) { c_lend(w, 16) }
}

cases! {
    ON_SOFT: Soft;

    "post_send, send", 1, held, ABOVE, None =>
    c_cost_soft_send_1_static(w) { post_send(w, 0, 1) }
    c_cost_soft_send_1_c(w) { c_post_send(w, 0) }

    "post_send, send", 16, held, ABOVE, None =>
    c_cost_soft_send_16_static(w) { post_send(w, 0, 16) }
    c_cost_soft_send_16_c(w) { c_post_send(w, 1) }

    "wr, send", 1, held, 59.0, None =>
    c_cost_soft_wr_1_static(w) {
        batch(w, 1, |wr, sge, _| {
            // SAFETY: in SQD the device starts no request.
            unsafe { wr.send().set_sge(sge) }
        });
    }
    c_cost_soft_wr_1_c(w) { c_batch(w, 1, c_wr_send, c_set_sge) }

    "wr, send", 16, held, 39.0, None =>
    c_cost_soft_wr_16_static(w) {
        batch(w, 16, |wr, sge, _| {
            // SAFETY: in SQD the device starts no request.
            unsafe { wr.send().set_sge(sge) }
        });
    }
    c_cost_soft_wr_16_c(w) { c_batch(w, 16, c_wr_send, c_set_sge) }

    "post_recv", 1, held, ABOVE, None =>
    c_cost_soft_recv_1_static(w) { post_recv(w, 1) }
    c_cost_soft_recv_1_c(w) { c_post_recv(w, 0) }

    "post_recv", 16, held, ABOVE, None =>
    c_cost_soft_recv_16_static(w) { post_recv(w, 16) }
    c_cost_soft_recv_16_c(w) { c_post_recv(w, 1) }

    "poll_cq", 1, flushed, 50.0, None =>
    c_cost_soft_poll_1_static(w) { poll(w, 1) }
    c_cost_soft_poll_1_c(w) { c_poll(w, 1) }

    "poll_cq", 2, flushed, 35.0, None =>
    c_cost_soft_poll_2_static(w) { poll(w, 2) }
    c_cost_soft_poll_2_c(w) { c_poll(w, 2) }

    "poll_cq", 16, flushed, ABOVE, None =>
    c_cost_soft_poll_16_static(w) { poll(w, 16) }
    c_cost_soft_poll_16_c(w) { c_poll(w, 16) }

    "start_poll, 4 fields", 1, flushed, 55.0, None =>
    c_cost_soft_lend_1_static(w) { lend(w, 1) }
    c_cost_soft_lend_1_c(w) { c_lend(w, 1) }

    "start_poll, 4 fields", 16, flushed, 40.0, None =>
    c_cost_soft_lend_16_static(w) { lend(w, 16) }
    c_cost_soft_lend_16_c(w) { c_lend(w, 16) }
}

/// The number of instructions per operation in rdma-core's libmlx5. docs/benchmarks.md describes
/// how these were counted and why the limits over the static API are higher here.
const MLX5_INLINE: Option<f64> = Some(398.0);
const MLX5_INLINE_16: Option<f64> = Some(193.0);
const MLX5_SGE: Option<f64> = Some(368.0);
const MLX5_WR: Option<f64> = Some(311.0);
const MLX5_WR_16: Option<f64> = Some(127.0);
const MLX5_POLL: Option<f64> = Some(180.0);
const MLX5_POLL_16: Option<f64> = Some(111.0);

cases! {
    ON_MLX5: Mlx5;

    "post_send, inline", 1, ready, ABOVE, MLX5_INLINE =>
    c_cost_mlx5_inline_1_static(w) { post_send(w, 3, 1) }
    c_cost_mlx5_inline_1_c(w) { c_post_send(w, 6) }

    "post_send, inline", 16, ready, ABOVE, MLX5_INLINE_16 =>
    c_cost_mlx5_inline_16_static(w) { post_send(w, 3, 16) }
    c_cost_mlx5_inline_16_c(w) { c_post_send(w, 7) }

    "post_send, write", 1, ready, ABOVE, MLX5_SGE =>
    c_cost_mlx5_write_1_static(w) { post_send(w, 1, 1) }
    c_cost_mlx5_write_1_c(w) { c_post_send(w, 2) }

    "post_send, write", 16, ready, ABOVE, None =>
    c_cost_mlx5_write_16_static(w) { post_send(w, 1, 16) }
    c_cost_mlx5_write_16_c(w) { c_post_send(w, 3) }

    "wr, inline", 1, ready, 78.0, MLX5_WR =>
    c_cost_mlx5_wr_inline_1_static(w) {
        batch(w, 1, |wr, _, data| wr.rdma_write(RKEY, REMOTE).set_inline_data(data));
    }
    c_cost_mlx5_wr_inline_1_c(w) { c_batch(w, 1, c_wr_write, c_set_inline) }

    "wr, inline", 16, ready, 53.0, MLX5_WR_16 =>
    c_cost_mlx5_wr_inline_16_static(w) {
        batch(w, 16, |wr, _, data| wr.rdma_write(RKEY, REMOTE).set_inline_data(data));
    }
    c_cost_mlx5_wr_inline_16_c(w) { c_batch(w, 16, c_wr_write, c_set_inline) }

    "wr, write", 1, ready, 63.0, None =>
    c_cost_mlx5_wr_write_1_static(w) {
        batch(w, 1, |wr, sge, _| {
            // SAFETY: the device accesses no memory of work requests.
            unsafe { wr.rdma_write(RKEY, REMOTE).set_sge(sge) }
        });
    }
    c_cost_mlx5_wr_write_1_c(w) { c_batch(w, 1, c_wr_write, c_set_sge) }

    "wr, write", 16, ready, 43.0, None =>
    c_cost_mlx5_wr_write_16_static(w) {
        batch(w, 16, |wr, sge, _| {
            // SAFETY: the device accesses no memory of work requests.
            unsafe { wr.rdma_write(RKEY, REMOTE).set_sge(sge) }
        });
    }
    c_cost_mlx5_wr_write_16_c(w) { c_batch(w, 16, c_wr_write, c_set_sge) }

    "post_recv", 1, ready, ABOVE, None =>
    c_cost_mlx5_recv_1_static(w) {
        post_recv(w, 1);
    }
    c_cost_mlx5_recv_1_c(w) { c_post_recv(w, 0) }

    "post_recv", 16, ready, ABOVE, None =>
    c_cost_mlx5_recv_16_static(w) {
        post_recv(w, 16);
    }
    c_cost_mlx5_recv_16_c(w) { c_post_recv(w, 1) }

    "poll_cq", 1, sent, 70.0, MLX5_POLL =>
    c_cost_mlx5_poll_1_static(w) { poll(w, 1) }
    c_cost_mlx5_poll_1_c(w) { c_poll(w, 1) }

    "poll_cq", 16, sent, 53.0, MLX5_POLL_16 =>
    c_cost_mlx5_poll_16_static(w) { poll(w, 16) }
    c_cost_mlx5_poll_16_c(w) { c_poll(w, 16) }

    "poll_cq, empty", 1, ready, ABOVE, None =>
    c_cost_mlx5_empty_static(w) { poll(w, 8) }
    c_cost_mlx5_empty_c(w) { c_poll(w, 8) }

    "start_poll, 4 fields", 1, sent, 67.0, None =>
    c_cost_mlx5_lend_1_static(w) { lend(w, 1) }
    c_cost_mlx5_lend_1_c(w) { c_lend(w, 1) }

    "start_poll, 4 fields", 16, sent, 44.0, None =>
    c_cost_mlx5_lend_16_static(w) { lend(w, 16) }
    c_cost_mlx5_lend_16_c(w) { c_lend(w, 16) }
}

/// A measured function that does nothing.
const EMPTY: &str = "c_cost_nothing";

#[unsafe(no_mangle)]
#[inline(never)]
fn c_cost_nothing(world: *mut ()) {
    black_box(world);
}

fn drained(world: &mut World<Rxe>, _calls: u32, _per_call: u32) {
    world.ends.drain();
}

fn completed(world: &mut World<Rxe>, calls: u32, per_call: u32) {
    world.ends.complete(calls * per_call);
}

/// Returns at once, because ConnectX queues have space for all requests.
fn ready(_: &mut World<Mlx5>, _calls: u32, _per_call: u32) {}

fn sent(world: &mut World<Mlx5>, calls: u32, per_call: u32) {
    world.ends.complete(calls * per_call);
}

/// Returns at once, because the soft device accepts all requests without starting them.
fn held(_: &mut World<Soft>, _calls: u32, _per_call: u32) {}

fn flushed(world: &mut World<Soft>, calls: u32, per_call: u32) {
    world.flush(calls * per_call);
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, symbol] = args.as_slice()
        && flag == "--count"
    {
        run_calls(symbol);
        return ExitCode::SUCCESS;
    }
    if !args.iter().any(|arg| arg == "--bench") {
        return try_calls();
    }
    let tables = || {
        let on_paper = table("rxe on paper", ON_PAPER, COUNTED_CALLS, None)?;
        let on_mlx5 = table("mlx5 on paper", ON_MLX5, COUNTED_CALLS, Libmlx5::find()?.as_ref())?;
        let on_soft = table("soft", ON_SOFT, COUNTED_SOFT_CALLS, None)?;
        Ok::<_, String>(library::table()? && on_paper && on_mlx5 && on_soft)
    };
    match tables() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) if args.iter().any(|arg| arg == "--check") => ExitCode::FAILURE,
        Ok(false) => ExitCode::SUCCESS,
        Err(why) => {
            println!("instructions were not measured: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the number of instructions that one call of a measured function takes. The measured
/// process has a soft device (`VERBS_SOFT`).
fn count(symbol: &str, calls: u32) -> Result<f64, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut valgrind = Command::new("valgrind");
    valgrind.env("VERBS_SOFT", "auto");
    count_in(valgrind, &program, &["--count", symbol], symbol, calls)
}

/// Prints a table and returns whether all limits are met. The instruction counts of an installed
/// library are limits as well.
fn table<P: Measured>(
    title: &str,
    cases: &[Case<P>],
    calls: u32,
    installed: Option<&Libmlx5>,
) -> Result<bool, String> {
    let empty = count_instructions(EMPTY, COUNTED_CALLS)?;
    println!(
        "{title:<22} {:>7} {:>8} {:>8} {:>7} {:>6} {:>9} {:>12}",
        "a call",
        "static",
        "C",
        "above",
        "limit",
        "rdma-core",
        installed.map_or_else(String::new, |library| format!("libmlx5 {}", library.version))
    );
    let mut are_met = true;
    for case in cases {
        let per_call = f64::from(case.per_call);
        let each = |symbol| count(symbol, calls).map(|all| (all - empty) / per_call);
        let [own, c] = [each(case.symbols[0])?, each(case.symbols[1])?];
        let theirs = installed.map(|library| library.count(case.symbols[1])).transpose()?;
        let theirs = theirs.map(|all| all / per_call);
        let is_below = |theirs: Option<f64>| theirs.is_none_or(|theirs| c < theirs);
        let is_met = c - own <= case.above && is_below(case.rdma_core) && is_below(theirs);
        are_met &= is_met;
        println!(
            "{:<22} {:>7} {own:>8.1} {c:>8.1} {:>7.1} {:>6.0} {:>9} {:>12}{}",
            case.operation,
            case.per_call,
            c - own,
            case.above,
            case.rdma_core.map_or_else(String::new, |theirs| format!("{theirs:.0}")),
            theirs.map_or_else(String::new, |theirs| format!("{theirs:.1}")),
            if is_met { "" } else { "  over a limit" }
        );
    }
    Ok(are_met)
}

/// Runs each measured call in a separate process, without counting. `cargo test` runs this to catch
/// changes to the paper devices' commands.
fn try_calls() -> ExitCode {
    let symbols = symbols(ON_PAPER).chain(symbols(ON_MLX5)).chain(symbols(ON_SOFT));
    let (mut passed, mut failed) = (0, 0);
    for symbol in symbols {
        let ended = std::env::current_exe()
            .and_then(|program| {
                Command::new(program).args(["--count", symbol]).env("VERBS_SOFT", "auto").output()
            })
            .map(|output| (output.status, String::from_utf8_lossy(&output.stderr).into_owned()));
        match ended {
            Ok((status, _)) if status.success() => {
                println!("ok {symbol}");
                passed += 1;
            }
            Ok((status, said)) => {
                println!("FAIL {symbol}: {status}: {}", said.lines().next().unwrap_or_default());
                failed += 1;
            }
            Err(error) => {
                println!("FAIL {symbol}: {error}");
                failed += 1;
            }
        }
    }
    println!("{passed} passed, {failed} failed, 0 skipped");
    ExitCode::from(u8::from(failed > 0))
}

/// Returns the symbols of both measured functions of every case.
fn symbols<P: Measured>(cases: &'static [Case<P>]) -> impl Iterator<Item = &'static str> {
    cases.iter().flat_map(|case| case.symbols)
}

/// Calls the measured function `symbol` repeatedly.
fn run_calls(symbol: &str) {
    if symbol == EMPTY {
        return (0..COUNTED_CALLS).for_each(|_| c_cost_nothing(core::ptr::null_mut()));
    }
    let is_found = run_case(ON_PAPER, symbol, paper::world, (COUNTED_CALLS, paper::SLOTS - 1))
        || run_case(ON_MLX5, symbol, mlx5::world, (COUNTED_CALLS, mlx5::SLOTS))
        || run_case(ON_SOFT, symbol, soft::world, (COUNTED_SOFT_CALLS, soft::SLOTS));
    assert!(is_found, "{symbol}");
}

/// Calls the function `symbol` `left` times if it belongs to `cases`, in batches that fit into the
/// queues. Returns whether it belongs to them.
fn run_case<P: Measured>(
    cases: &[Case<P>],
    symbol: &str,
    world: fn() -> World<P>,
    (mut left, room): (u32, u32),
) -> bool {
    let mut each_form = cases.iter().flat_map(|case| (0..2).map(move |form| (case, form)));
    let Some((case, form)) = each_form.find(|(case, form)| case.symbols[*form] == symbol) else {
        return false;
    };
    let mut world = world();
    while left > 0 {
        let now = left.min(room / case.per_call);
        (case.ready)(&mut world, now, case.per_call);
        for _ in 0..now {
            world.wr_id += u64::from(case.per_call);
            world.polled = 0;
            (case.calls[form])(&mut world);
            let expected = if case.operation == "poll_cq" { case.per_call } else { 0 };
            assert_eq!(world.polled, expected as usize);
        }
        left -= now;
    }
    true
}
