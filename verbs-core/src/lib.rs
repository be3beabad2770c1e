//! Shared code of the verbs API and its providers: the provider contract (`driver.h` in rdma-core)
//! and the kernel interface below it.
//!
//! | module | contents |
//! |---|---|
//! | [`discovery`] | the RDMA devices of the system: netlink, then sysfs |
//! | [`channel`] | commands to the kernel's uverbs, and a scripted double for tests |
//! | [`cmd`] | one function per kernel method |
//! | [`types`] | arguments and results of verbs: attributes, work requests, completions |
//! | [`checks`] | the checks of work requests that all providers make |
//! | [`environment`] | environment variables, ignored in set-user-ID programs |
//! | [`explain`] | the causes of rejected values, the same for all providers |
//! | [`transition`] | the attributes of each QP transition |
//! | [`ring`] | cursors, doorbells and barriers for queues shared with a device |
//! | [`fork`] | pages of registered memory, excluded from forks |
//! | [`neighbour`] | the Ethernet address of a RoCE destination |
//! | [`exposed`] | this process's accesses to memory exposed to peers |
//! | [`words`] | aligned words copied to and from such memory |
//! | [`thread`] | threads of the libraries |
//! | [`random`] | unguessable numbers |
//! | [`room`] | a check for free memory before a call |
//! | [`provider`] | the contract of providers, and [`Erased`](provider::Erased) |
//! | [`slots`] | slot + generation ids, passed to the kernel as `user_handle` |
//!
//! Programs use the crate `verbs` instead; this crate is for authors of providers.

pub mod errno;
pub mod error;
pub mod types;

pub use errno::Errno;
pub use error::{Cause, Error, Result};
pub mod channel;
pub mod checks;
pub mod cmd;
pub mod discovery;
pub mod environment;
pub mod explain;
pub mod exposed;
#[cfg(doctest)]
mod fence;
pub mod fork;
pub mod kernel;
pub mod neighbour;
pub mod provider;
pub mod random;
pub mod ring;
pub mod room;
pub mod slots;
pub mod thread;
pub mod transition;
pub mod words;
