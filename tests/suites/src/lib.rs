//! The suites for the host and for guests, one file each. Each case is named after the behaviour
//! that it checks.
//!
//! | suite | content |
//! |---|---|
//! | [`interop`] | our tools and rdma-core's are interchangeable |
//! | [`c_abi`] | unmodified programs behave the same on our and rdma-core's libraries |
//! | [`mlx5`] | the suites of another guest: ConnectX |
//! | [`fallback`] | everything works where a kernel or a filter rejects the newer interfaces |
//! | [`conformance`](verbs_conformance) | the verbs' guarantees about data, completions, events |
//! | [`transition`] | the QP transition table matches the running kernel's table |
//! | [`fork`] | the device keeps using the registered memory of a forking process |
//! | [`negative`] | rejections, with their reasons |
//! | [`listener`] | listeners and connectors, built on connections by address |
//! | [`cm_flags`], [`cm_tools`], [`cm_rates`] | connection tools, ours and rdma-core's |
//! | [`soft`] | provider-soft and the kernel's rxe interoperate |
//! | [`cm`] | connections by address |
//! | [`lifecycle`] | dropped, forgotten, closed and killed objects, as the kernel sees them |
//! | [`fuzz`] | random calls in safe code change no buffer that the program holds |
//! | [`empty_root`] | static builds run in an otherwise empty root |
//! | [`cm_sides`] | not a suite: the two sides of the tools, on one device or on two functions |
//!
//! The features `soft`, `rxe` and `mlx5` choose the providers that cases and random calls name.
//! `soft`, the default, is for host programs. `rxe`, `mlx5` or both are for guest programs, which
//! also need the feature `guest`. `kernel` stands for all three.
//!
//! # Tests elsewhere
//! | test | location |
//! |---|---|
//! | the harness: cases, processes, tools | `tests/harness` |
//! | pairs, connected ids, peers | `tests/fixtures` |
//! | programs in C and their output | `tests/c` |
//! | random calls | `tests/api-fuzz` |
//! | pages compared with sources | `tests/sources`, `c-abi/tests`, `cm/tests/names` |
//! | C programs on our libraries and soft devices | `c-abi/tests/programs`, `c-abi/tests/c` |
//! | interleavings of threads (loom) | `provider-soft`, `verbs-core`, `libibverbs-rs` |
//! | protocols in virtual time, with faults | `roce/tests/sim`, `ib-cm/tests/{sim,flood}.rs` |
//! | the order of barriers in the built code | `provider-mlx5/benches/sites` |
//! | fuzz targets, sanitizers, other targets | `fuzz`, `sanitizer`, `aarch64`, `musl` of xtask |

pub mod c_abi;
pub mod cm;
pub mod cm_flags;
pub mod cm_rates;
pub mod cm_sides;
pub mod cm_tools;
pub mod empty_root;
pub mod fallback;
pub mod fork;
pub mod fuzz;
pub mod interop;
pub mod lifecycle;
pub mod listener;
pub mod mlx5;
pub mod negative;
pub mod soft;
pub mod transition;

use verbs_harness::runner::Case;

/// Returns the cases that need nothing from the kernel and therefore also run on a provider's own
/// devices.
pub fn of_any_device() -> Vec<Case> {
    [verbs_conformance::cases(), lifecycle::of_any_device(), negative::of_any_device(), cm::of_any_device()]
        .into_iter()
        .flatten()
        .collect()
}

/// Returns every case, in execution order.
pub fn all() -> Vec<Case> {
    [
        interop::cases(),
        c_abi::cases(),
        fallback::cases(),
        empty_root::cases(),
        verbs_conformance::cases(),
        transition::cases(),
        lifecycle::cases(),
        fork::cases(),
        negative::cases(),
        cm::cases(),
        listener::cases(),
        cm_tools::cases(),
        cm_rates::cases(),
        cm_flags::cases(),
        fuzz::cases(),
        soft::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Compiles, as doctests, the examples in READMEs whose packages do not depend on the API.
#[cfg(doctest)]
mod readmes {
    #[doc = include_str!("../../../README.md")]
    struct Project;
    #[doc = include_str!("../../../provider-mlx5/README.md")]
    struct Mlx5;
    #[doc = include_str!("../../../provider-rxe/README.md")]
    struct Rxe;
    #[doc = include_str!("../../../provider-soft/README.md")]
    struct Soft;
}
