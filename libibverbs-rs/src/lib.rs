//! RDMA verbs in pure Rust, from the system call up: no C library is compiled or linked.
//!
//! RDMA lets programs exchange messages and access each other's memory without a system call or a
//! copy for each message. This crate does what rdma-core's libibverbs and its providers do: it
//! finds and opens devices, creates their objects through the kernel's uverbs,
//! and posts and polls in queues shared with the device.
//!
//! ```
//! use std::time::Duration;
//!
//! use verbs::{ConnectAttr, CqInit, QpInit, QpType, SendFlags, SendOp};
//!
//! # #[cfg(not(feature = "soft"))]
//! # fn main() {}
//! # #[cfg(feature = "soft")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A device in software, which every machine has. A hardware device opens by its name:
//! // `verbs::devices()?.find("mlx5_0")?.open()?`.
//! let context = verbs::soft::auto()?.open()?;
//! let pd = context.alloc_pd()?;
//! let mut cq = context.create_cq(&CqInit::new(16))?;
//! let qp = pd.create_qp(&QpInit::new(QpType::RC, &cq))?;
//!
//! // This queue pair connects to itself. Two programs exchange their endpoints over a stream:
//! // `let peer = own.exchange(&mut stream)?`.
//! let port = context.port(1)?;
//! let own = qp.endpoint(&port);
//! let mut qp = qp.connect(&port, &own, &ConnectAttr::default())?;
//!
//! // Buffers move into the queue, and return with their completions.
//! let mut out = pd.alloc_buf(4096)?;
//! out[..5].copy_from_slice(b"hello");
//! qp.post_recv_buf(pd.alloc_buf(4096)?, ..)?;
//! qp.post_send_buf(SendOp::Send, SendFlags::empty(), out, ..5)?;
//!
//! let mut received = None;
//! while received.is_none() {
//!     let completed = cq.poll_within(Duration::from_secs(5))?.ok()?;
//!     let (is_recv, len) = (completed.opcode.is_recv(), completed.received());
//!     let buf = completed.into_buf()?;
//!     if is_recv {
//!         received = Some(buf[..len].to_vec());
//!     }
//! }
//! assert_eq!(received.as_deref(), Some(&b"hello"[..]));
//! # Ok(())
//! # }
//! ```
//!
//! The program takes the steps of every RDMA program:
//!
//! 1. Open a device: [`devices`] lists them, [`Device::open`] returns a [`Context`].
//! 2. Allocate a protection domain, a [`Pd`], and register memory in it: a [`Buf`].
//! 3. Create a completion queue, a [`Cq`], and on it a queue pair, a [`Qp`]: a send queue and a
//!    receive queue.
//! 4. Exchange [`Endpoint`]s with the peer, and [`connect`](Qp::connect).
//! 5. Post sends and receives, and poll their completions.
//!
//! # Guide
//! [`guide`] is the manual, a page for each subject, with examples that run:
//!
//! 1. [Memory](guide::memory), [queue pairs](guide::queue_pairs) and
//!    [completions](guide::completions): what every program uses.
//! 2. [Events](guide::events) and [errors](guide::errors): what can happen to it.
//! 3. [Threads](guide::threads), [fork](guide::fork) and [unplug](guide::unplug): the process and
//!    the machine around it.
//! 4. [Testing](guide::testing), without hardware.
//! 5. From [C](guide::from_c), from [`ibverbs`](guide::from_ibverbs), from
//!    [`sideway`](guide::from_sideway): the calls of each, and ours.
//!
//! The repository's examples are programs to start from: `kv` (RDMA reads and writes), `ud_chat`
//! (datagrams), `event_loop` (epoll), `tokio_channel`, `accept_threads`, `zero_copy` and
//! `rc_loopback`.
//!
//! # Types by their C names
//! | object | in C | here |
//! |---|---|---|
//! | devices | `ibv_get_device_list` | [`devices`], [`DeviceList`], [`Device`] |
//! | an open device | `ibv_context` | [`Context`], [`AsyncEvents`] |
//! | memory | `ibv_mr` | [`Buf`], [`FrozenBuf`], [`Exposed`], [`RemoteMr`] |
//! | borrowed memory | `ibv_mr` | [`Scope`], [`ScopedBuf`], [`ScopedBytes`], [`ScopedQp`] |
//! | raw memory | `ibv_mr` | [`Mr`], [`MrInit`], [`MrChange`] |
//! | memory of the device | `ibv_dm`, `ibv_dmah` | [`Dm`], [`Dmah`] |
//! | windows | `ibv_mw` | [`Window`], [`Invalidated`]; raw: [`Mw`] |
//! | completions | `ibv_cq`, `ibv_wc` | [`Cq`], [`CqHandle`], [`Completion`], [`Completed`] |
//! | completion events | `ibv_comp_channel` | [`CompChannel`], [`CqEvent`] |
//! | queue pairs | `ibv_qp` | [`Qp`], its [`state`]s, [`Endpoint`], [`SendBatch`] |
//! | raw batches | `ibv_wr_start`, `ibv_wr_complete` | [`WrBatch`] |
//! | halves of a queue pair | none | [`SendHalf`], [`RecvHalf`] |
//! | shared receive queues | `ibv_srq`, `ibv_xrcd` | [`Srq`], [`SrqHandle`], [`Xrcd`] |
//! | work queues | `ibv_wq` | [`Wq`], [`RwqIndTable`], [`Rss`] |
//! | flow rules | `ibv_flow`, `ibv_counters` | [`Flow`], [`Counters`], [`CompCntr`] |
//! | the rest | `ibv_pd`, `ibv_td`, `ibv_ah` | [`Pd`], [`Td`], [`Ah`] |
//! | values | `ibv_send_wr`, `ibv_qp_attr`, … | the names in CamelCase: [`SendWr`], [`QpAttr`], … |
//!
//! A search of these pages for a C name finds its counterpart.
//!
//! # Ownership
//! Handles of devices and protection domains are cheap to clone. Each object keeps its parents
//! alive, so a program may drop handles in any order. Dropping a handle destroys its object if the
//! kernel permits it, and otherwise leaks the object ([`on_leak`]); `close` instead returns the
//! reason and the handle ([`HandleError`]).
//!
//! Polling and posting take `&mut self`: exclusive access replaces the locks of libibverbs.
//!
//! # Safety in layers
//! 1. [`Qp::post_send`] and [`Qp::post_recv`] are unsafe: they take addresses and keys, for any
//!    scheme of ownership.
//! 2. [`Qp::post_send_buf`] and [`Qp::post_recv_buf`] are safe: the queue owns the memory until its
//!    work request has ended, then polling returns it. The poller needs neither the queue pair nor
//!    a lock for that.
//! 3. [`Pd::scope`] is safe, too: it registers borrowed slices as [`ScopedBuf`]s and returns when
//!    no request in flight uses them.
//!
//! [`WrBatch`] builds requests by the calls of `ibv_wr_start`, at the first layer; [`SendBatch`]
//! batches sends at the second.
//!
//! Peers can access only [exposed](Pd::expose) memory, which has no `&[u8]`. A posted request
//! revokes the access of a [`Window`] without deregistering the memory.
//!
//! # Errors
//! Control verbs return [`Error`]: the verb, the device, the errno and the cause, as a sentence.
//! Calls that consume a handle or memory return it with the error: [`HandleError`],
//! [`PostBufError`]. Failed completions are [`WcError`]s. `?` converts each of them into [`Error`]
//! and [`std::io::Error`].
//!
//! An `# Errors` section lists the errnos to expect. Each control verb can also fail with `EIO` if
//! the device is gone or fails the command ([`Cause`] says which), and with `ENOMEM`.
//!
//! # Providers
//! A provider is the driver of one kind of device. Handles hide their provider unless the program
//! names it: [`Device::open_as`] and `downcast` on any handle return `Context<Rxe>`, `Qp<Rts,
//! Rxe>`, `Cq<Rxe>`, whose data path has no indirect calls. Both paths are the same code. The
//! features `rxe` and `soft` of this crate build providers in; [`register`] and
//! [`DeviceList::with_drivers`] add others.
//!
//! A provider may bring its own devices: `verbs::soft` is RoCE v2 over UDP sockets, on any machine
//! and without special rights. The environment variable `VERBS_SOFT` adds such devices to the list
//! of any program.
//!
//! # Fork
//! Open devices after `fork(2)`, or let the child call only `exec(3)` or `_exit(2)`:
//! [`guide::fork`].
//!
//! # Inside
//! | module | content |
//! |---|---|
//! | `device`, `context`, `pd` | the device list, an open device, a protection domain |
//! | `kernel_handle` | **start here**: a kernel object, its dependencies, the order of release |
//! | `registry` | the state shared by all handles of an open device; ids in events |
//! | `shared` | a kernel object used by others, and the count of its users |
//! | `buffer`, `numbers`, `frozen` | memory: owned, viewed as numbers, shared read-only |
//! | `exposed`, `stable`, `mr`, `remote` | memory: open to peers, the program's, raw; a peer's |
//! | `window`, `mw` | access of peers granted by requests: windows on exposed memory, raw windows |
//! | `dm`, `td` | device memory and DMA handles; thread domains and parent domains |
//! | `fork` | protection of registered memory from forks |
//! | `qp` | queue pairs: states as types, posting, batches, scopes, halves, endpoints |
//! | `memory`, `in_flight` | memory of safe posting, its owner, and **why safe posting is sound** |
//! | `cq`, `comp_channel`, `event` | polling, waiting, asynchronous events |
//! | `srq`, `xrcd`, `wq` | shared receive queues, XRC domains, receive queues of tables |
//! | `flow`, `counters` | rules that steer packets, counters |
//! | `ah`, `gid` | address handles, the choice of a GID |
//! | `handle_error`, `post_error` | errors that return a handle or memory |
//! | `mlx5`, `soft` | ConnectX features beyond verbs, soft devices |
//! | `guide` | the manual in Markdown, whose examples are doctests on soft devices |

#![allow(clippy::result_large_err)]

mod ah;
mod buffer;
mod comp_channel;
mod context;
mod counters;
mod cq;
mod device;
mod dm;
mod event;
mod exposed;
mod flow;
mod fork;
mod frozen;
mod gid;
mod handle_error;
mod in_flight;
mod kernel_handle;
mod memory;
mod mr;
mod mw;
mod numbers;
mod pd;
mod post_error;
mod qp;
mod registry;
mod remote;
mod shared;
mod srq;
mod stable;
mod td;
mod window;
mod wq;
mod xrcd;

pub use ah::Ah;
pub use buffer::Buf;
pub use comp_channel::{CompChannel, CqEvent};
pub use context::Context;
pub use counters::{CompCntr, Counters};
pub use cq::{Completed, Completion, Completions, Cq, CqHandle, CqInit};
pub use device::{Device, DeviceList, devices, import_device, register};
pub use dm::{Dm, Dmah};
pub use event::{AsyncEvent, AsyncEvents, Element};
pub use exposed::{Exposed, RemoteAccess};
pub use flow::{Flow, FlowAction};
pub use fork::{fork_init, is_fork_initialized};
pub use frozen::FrozenBuf;
pub use handle_error::HandleError;
pub use in_flight::Returned;
pub use kernel_handle::on_leak;
pub use memory::{Memory, PostMemory};
pub use mr::{Mr, MrChange, MrInit};
pub use mw::Mw;
pub use numbers::Number;
pub use pd::Pd;
pub use post_error::{PostBufError, PostBufReason};
pub use qp::attr::{InitAttr, QpInit, RtrAttr, RtsAttr};
pub use qp::endpoint::{ConnectAttr, Endpoint, Port};
pub use qp::post::SendBatch;
pub use qp::scope::{Lent, QueuePairs, Scope, ScopedBuf, ScopedBytes, ScopedMemory, ScopedQp};
pub use qp::split::{RecvHalf, SendHalf};
pub use qp::{Qp, state};
pub use registry::{CqId, QpId, SrqId, WqId};
pub use remote::RemoteMr;
pub use srq::{Srq, SrqHandle, SrqInit};
pub use stable::{StableBytes, StableMemory};
pub use td::{ParentDomainInit, Td};
pub use window::{Invalidated, Window};
pub use wq::{Rss, RwqIndTable, Wq, WqInit};
pub use xrcd::{Xrcd, XrcdInit};

#[doc(hidden)]
pub use verbs_core::discovery::DeviceParts;
pub use verbs_core::discovery::{
    DevNum, DeviceInfo, Found, NetlinkError, NodeType, OwnDevice, RdmaDriverId, SkipReason, Skipped, Source,
    TransportType,
};
pub use verbs_core::provider::{
    Driver, Erased, NamedProvider, Provider, QueueAllocator, QueueMemory, RegionState, ReregError, Wr,
    WrBatch, WrError,
};
#[doc(inline)]
pub use verbs_core::types::*;
pub use verbs_core::{Cause, Errno, Error, Result, provider};

#[cfg(feature = "mlx5")]
pub mod mlx5;

/// The Soft-RoCE provider.
#[cfg(feature = "rxe")]
pub mod rxe {
    // Re-exported by name, because the provider's queues on paper are for its own tests.
    pub use provider_rxe::{Ah, Completion, Context, Cq, CqHandle, Mr, Qp, Rq, Rxe, Sq, Srq, SrqQueue};
    pub use verbs_core::kernel::{KernelMw as Mw, KernelPd as Pd};
}

pub mod guide;

#[cfg(feature = "soft")]
pub mod soft;

/// The provider's queues on paper are not re-exported, because a program could share them between
/// threads.
///
/// ```compile_fail
/// use verbs::rxe::paper::PaperQueue;
/// ```
/// ```
/// # #[cfg(feature = "rxe")]
/// use verbs::rxe::Rxe;
/// ```
#[cfg(doctest)]
struct Paper;

/// Compiles the README's example as a doctest.
#[cfg(all(doctest, feature = "soft"))]
#[doc = include_str!("../README.md")]
struct Readme;
