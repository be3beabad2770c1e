//! The suites: one file each. Each case is named after the behaviour it checks.
//!
//! | suite | content |
//! |---|---|
//! | [`interop`] | our tools and rdma-core's are interchangeable |
//! | [`c_abi`] | unmodified programs behave the same on our `libibverbs.so.1` and on C's |
//! | [`fallback`] | everything works where a kernel or a filter refuses the newer interfaces |
//! | [`conformance`](verbs_conformance) | the verbs' promises about data, completions and events |
//! | [`transition`] | the QP transition table matches the running kernel's |
//! | [`lifecycle`] | dropped, forgotten, closed and killed objects as the kernel sees them |
//! | [`fork`] | the device keeps using the registered memory of a forking process |
//! | [`negative`] | refusals with their reasons |
//! | [`cm`] | connections by address |
//! | [`listener`] | listeners and connectors above them |
//! | [`cm_tools`], [`cm_rates`], [`cm_flags`] | our tools for them, with rdma-core's |
//! | [`soft`] | provider-soft and the kernel's rxe interoperate |
//! | [`fuzz`] | random calls in safe code change no buffer held by the program |
//! | [`empty_root`] | static builds run in an otherwise empty root |
//!
//! [`mlx5`] holds the suites of another guest.

pub mod c_abi;
pub mod cm;
pub mod cm_flags;
pub mod cm_rates;
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

/// The cases that need nothing of the kernel and therefore also run on a provider's device.
pub fn of_any_device() -> Vec<Case> {
    [verbs_conformance::cases(), lifecycle::of_any_device(), negative::of_any_device(), cm::of_any_device()]
        .into_iter()
        .flatten()
        .collect()
}

/// Every case, in execution order.
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
