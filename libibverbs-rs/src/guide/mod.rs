//! The manual: one page per subject, in reading order.
//!
//! An item's documentation describes the item alone. These pages show how items work together: the
//! decisions a program makes and their costs, the errors, and the library's guarantees.
//!
//! | page | subject |
//! |---|---|
//! | [`memory`] | registered memory: own, borrowed, shared with peers |
//! | [`queue_pairs`] | the transports, connecting, posting, shared receive queues, destruction |
//! | [`completions`] | polling, waiting, the size of a completion queue |
//! | [`events`] | asynchronous events of queues, ports and the device |
//! | [`errors`] | failed calls, refused requests, failed requests |
//! | [`threads`] | handles shared between threads and handles owned by one |
//! | [`fork`] | child processes |
//! | [`unplug`] | a device that breaks or is removed |
//! | [`testing`] | programs under test, without hardware |
//! | [`connectx`] | ConnectX beyond verbs: queue options, raw requests, direct access |
//! | [`from_c`] | from libibverbs in C |
//! | [`from_ibverbs`] | from the crate `ibverbs` |
//! | [`from_sideway`] | from the crate `sideway` |
//!
//! Each example runs on a soft device ([`testing`]), which every machine has. On another device,
//! only the line that opens it differs: `verbs::devices()?.find("mlx5_0")?.open()?`. The examples
//! of [`connectx`] are only compiled, because they need a ConnectX device to run.

// Links in the pages name items as a program does.
#[cfg(doc)]
#[allow(unused_imports)]
use crate::*;

/// Defines a module for each page of the guide. The examples in the pages need the feature `soft`.
macro_rules! pages {
    ($($name:ident = $file:literal;)*) => {
        $(
            #[cfg_attr(feature = "soft", doc = include_str!($file))]
            #[cfg_attr(not(feature = "soft"), doc = "This page is built with the feature `soft`.")]
            pub mod $name {}
        )*
    };
}

pages! {
    memory = "memory.md";
    queue_pairs = "queue_pairs.md";
    completions = "completions.md";
    events = "events.md";
    errors = "errors.md";
    threads = "threads.md";
    fork = "fork.md";
    unplug = "unplug.md";
    testing = "testing.md";
    from_c = "from_c.md";
    from_ibverbs = "from_ibverbs.md";
    from_sideway = "from_sideway.md";
}

#[cfg_attr(feature = "mlx5", doc = include_str!("connectx.md"))]
#[cfg_attr(not(feature = "mlx5"), doc = "This page is built with the feature `mlx5`.")]
pub mod connectx {}
