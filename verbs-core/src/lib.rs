//! The code that the API and the providers of RDMA verbs share: the provider contract, which
//! rdma-core keeps in `driver.h`, and the kernel interface below it.
//!
//! | module | what it is |
//! |---|---|
//! | [`discovery`] | which RDMA devices there are: netlink, then sysfs |
//! | [`channel`] | commands to the kernel's uverbs, and a scripted double for tests |
//! | [`cmd`] | one function per kernel method |
//! | [`types`] | the values that verbs take and return: attributes, work requests, completions |
//! | [`checks`] | the checks of work requests that all providers make |
//! | [`environment`] | environment variables, ignored in set-user-ID programs |
//! | [`explain`] | the causes of refused values, the same for all providers |
//! | [`transition`] | which attributes which QP transition takes |
//! | [`ring`] | cursors, doorbells and barriers for queues shared with a device |
//! | [`fork`] | pages with registered memory that are excluded from forks |
//! | [`neighbour`] | the Ethernet address of a RoCE destination |
//! | [`exposed`] | memory that peers may touch, as threads of this process access it |
//! | [`words`] | aligned words copied to and from such memory |
//! | [`thread`] | threads of the libraries |
//! | [`random`] | numbers that strangers cannot guess |
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
