//! Code shared by the verbs API and its providers: the provider contract (`driver.h` in rdma-core)
//! and the kernel interface below it.
//!
//! The modules from top to bottom; each imports only modules below it:
//!
//! | part | module | contents |
//! |---|---|---|
//! | contract | [`kernel`] | the part of an open device shared by all kernel-device providers |
//! | | [`provider`] | **start here**: the contract of providers and [`Erased`](provider::Erased) |
//! | system calls | [`cmd`] | one function per kernel method |
//! | | [`channel`] | commands to the kernel's uverbs, and a scripted double for tests |
//! | | [`neighbour`] | the Ethernet address of a RoCE destination |
//! | | [`host_address`] | this host's preferred IP address, for programs that need only one |
//! | | [`slots`] | slot + generation ids, passed to the kernel as `user_handle` |
//! | | [`fork`] | registered memory excluded from forks; locks that survive a fork |
//! | | [`discovery`] | the RDMA devices of the system: netlink, then sysfs |
//! | process | [`thread`] | threads started by the libraries |
//! | | [`room`] | checks for available memory before a call |
//! | | [`random`] | unguessable numbers |
//! | | [`environment`] | environment variables, ignored in set-user-ID programs |
//! | memory | [`exposed`] | access by this process to memory exposed to peers |
//! | | [`words`] | aligned words copied to and from such memory |
//! | | [`ring`] | cursors, doorbells and barriers for queues shared with a device |
//! | values | [`checks`] | the checks of work requests that all providers make |
//! | | [`transition`] | the attributes of each QP transition, as data |
//! | | [`explain`] | checks that find the cause of a rejected value, shared by all providers |
//! | | [`error`] | an error with its verb, device, errno and cause |
//! | | `skip_reason` | the reason why an existing device is missing from the list |
//! | | [`types`] | arguments and results of verbs: attributes, work requests, completions |
//! | | [`errno`] | error numbers |
//! | tests | `unsafe_commands` | attempts to send commands without unsafe code; none compiles |
//!
//! # Path of a query
//! ```text
//!   Context::query_port          libibverbs-rs   the API
//!   DeviceOps::query_port        provider        KernelContext's, for every kernel device
//!   cmd::device::query_port      cmd             the ioctl's attributes; the write() struct
//!   Uverbs::try_ioctl            channel         if not supported: INVOKE_WRITE or write()
//!   FdChannel::ioctl             channel         the system call
//!   explain_port                 kernel/limits   after EINVAL: the limit that was exceeded
//! ```
//!
//! Programs use the crate `verbs` instead; this crate is for provider authors.

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
pub mod fork;
pub mod host_address;
pub mod kernel;
pub mod neighbour;
pub mod provider;
pub mod random;
pub mod ring;
pub mod room;
mod skip_reason;
pub mod slots;
pub mod thread;
pub mod transition;
#[cfg(doctest)]
mod unsafe_commands;
pub mod words;

/// Compiles the README's example as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
