//! The suites: one file each, and each case named by what is true.
//!
//! | suite | what it shows |
//! |---|---|
//! | [`interop`] | our tools and rdma-core's are interchangeable |
//! | [`c_abi`] | unmodified programs run on our `libibverbs.so.1` as they do on C's |
//! | [`fallback`] | everything works where a kernel, or a filter, refuses the newer ways to it |
//! | [`conformance`] | what verbs promise of data, completions and events |
//! | [`transition`] | the QP transition table is the running kernel's |
//! | [`lifecycle`] | what is dropped, forgotten, closed or killed, as the kernel sees it |
//! | [`fork`] | registered memory of a process that forks stays with the device |
//! | [`negative`] | what is refused, and whether the reason is told |
//! | [`cm`] | connections by address |
//! | [`listener`] | listeners and connectors above them |
//! | [`cm_tools`], [`cm_rates`], [`cm_flags`] | our tools for them, with rdma-core's |
//! | [`soft`] | provider-soft and the kernel's rxe are each other's peers |
//! | [`fuzz`] | random calls in safe code change no buffer that the program holds |
//! | [`empty_root`] | static builds run where there is nothing else |
//!
//! [`mlx5`] holds the suites of another guest.

pub mod c_abi;
pub mod cm;
pub mod cm_flags;
pub mod cm_rates;
pub mod cm_tools;
pub mod conformance;
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

use crate::runner::Case;

/// The cases that ask nothing of the kernel, and so run on a device that a provider brings too.
pub fn of_any_device() -> Vec<Case> {
    [conformance::cases(), lifecycle::of_any_device(), negative::of_any_device(), cm::of_any_device()]
        .into_iter()
        .flatten()
        .collect()
}

/// Every case, in the order in which they run.
pub fn all() -> Vec<Case> {
    [
        interop::cases(),
        c_abi::cases(),
        fallback::cases(),
        empty_root::cases(),
        conformance::cases(),
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
