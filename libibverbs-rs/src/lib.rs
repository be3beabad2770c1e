//! RDMA verbs in pure Rust, from the system call up: no C library linked.
//!
//! ```
//! use verbs::{AhAttr, CqInit, GlobalRoute, InitAttr, QpCap, QpInit, QpType, RtrAttr, RtsAttr, SendFlags, SendOp};
//!
//! # #[cfg(not(feature = "soft"))]
//! # fn main() {}
//! # #[cfg(feature = "soft")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A device that needs no hardware; `verbs::devices()?.find("mlx5_0")?.open()?` opens one that is there.
//! let context = verbs::soft::auto()?.open()?;
//! let pd = context.alloc_pd()?;
//! let mut cq = context.create_cq(&CqInit::new(16))?;
//! let cap = QpCap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
//! let init = QpInit { qp_type: QpType::RC, send_cq: &cq, recv_cq: &cq, cap, sq_sig_all: false };
//! let qp = pd.create_qp(&init)?;
//!
//! // The queue pair talks to itself here; two programs would tell each other these three through a socket.
//! let (gid, qp_num, psn) = (context.find_gid(1)?, qp.qp_num(), qp.psn());
//! let route = GlobalRoute { dgid: gid.gid, sgid_index: gid.gid_index, hop_limit: 64, ..Default::default() };
//! let ah_attr = AhAttr { grh: Some(route), port_num: 1, ..AhAttr::default() };
//!
//! let qp = qp.to_init(&InitAttr::default()).map_err(|(_, error)| error)?;
//! let qp = qp.to_rtr(&RtrAttr::new(ah_attr, qp_num, psn)).map_err(|(_, error)| error)?;
//! let mut qp = qp.to_rts(&RtsAttr::default()).map_err(|(_, error)| error)?;
//!
//! // Buffers move into the queue, and come back with their completions.
//! let mut out = pd.alloc_buf(4096)?;
//! out[..5].copy_from_slice(b"hello");
//! qp.park_recv(pd.alloc_buf(4096)?, ..).map_err(|error| error.reason)?;
//! qp.park_send(SendOp::Send, SendFlags::empty(), out, ..5).map_err(|error| error.reason)?;
//!
//! let mut received = None;
//! while received.is_none() {
//!     let mut completions = cq.poll();
//!     while let Some(completion) = completions.next() {
//!         assert!(completion.is_success(), "{}", completion.status());
//!         let buf = qp.reclaim(&completion).and_then(verbs::Parcel::into_buf).expect("it was parked");
//!         if completion.opcode().is_recv() {
//!             received = Some(buf[..completion.byte_len() as usize].to_vec());
//!         }
//!     }
//! }
//! assert_eq!(received.as_deref(), Some(&b"hello"[..]));
//! # Ok(())
//! # }
//! ```
//!
//! # What is where
//! | | C | here |
//! |---|---|---|
//! | devices | `ibv_get_device_list` | [`devices`], [`DeviceList`], [`Device`] |
//! | an open device | `ibv_context` | [`Context`], [`AsyncEvents`] |
//! | memory | `ibv_mr` | [`Buf`], [`Exposed`]; raw: [`Mr`] |
//! | queues | `ibv_cq`, `ibv_qp` | [`Cq`], [`Completions`], [`CompChannel`], [`Qp`], its [`state`]s |
//! | the rest | `ibv_pd`, `ibv_ah` | [`Pd`], [`Ah`] |
//! | values | `ibv_send_wr`, `ibv_qp_attr`, … | the same names in CamelCase: [`SendWr`], [`QpAttr`], … |
//!
//! Searching these pages for a C name finds what stands for it.
//!
//! # Ownership
//! Parents are cheap to clone, children hold their parents, so nothing goes away below something that needs it, in
//! whatever order handles are dropped. Dropping destroys as far as the kernel agrees and leaks what it refuses to take back
//! ([`on_leak`]); `close` says why instead, and gives the handle back. Polling and posting take `&mut`: that is the lock.
//!
//! # Safety in layers
//! 1. [`Qp::post_send`] and [`Qp::post_recv`] are unsafe: addresses and keys, for any scheme of ownership.
//! 2. [`Qp::park_send`] and [`Qp::park_recv`] are safe: a [`Buf`] moves into the queue and comes back with the proof that
//!    its work request has ended, a [`Completion`].
//!
//! Peers reach only memory that was [exposed](Pd::expose), and exposed memory has no `&[u8]`.
//!
//! # Providers
//! Handles hide their provider unless the program names it: [`Device::open_as`], or `downcast` on any handle, give
//! `Context<Rxe>`, `Qp<Rts, Rxe>`, `Cq<Rxe>`, whose data path has no indirect calls. Both paths are the same code.
//! [`register`] and [`DeviceList::with_drivers`] add providers; those built in are features of this crate.
//!
//! A provider may bring devices of its own: `verbs::soft` is RoCE v2 over UDP sockets, on any machine and without
//! rights. The environment variable `VERBS_SOFT` puts such devices into every program's list.
//!
//! # Fork
//! Open devices after `fork(2)`, or let the child call only `exec(3)` or `_exit(2)`.
//!
//! - Devices of the kernel: the child shares the parent's open device file and mapped queues. A handle
//!   that is dropped or closed in the child destroys the parent's object, and posting in the child
//!   posts to the parent's queues. Registered memory stays the parent's: since Linux 5.12 a fork copies
//!   pinned pages for the child. On older kernels, a page that the parent writes after the fork may be
//!   replaced by a copy that the device does not access. This crate does not exclude registered memory
//!   from forks with `madvise(MADV_DONTFORK)`, as `ibv_fork_init(3)` makes libibverbs do.
//! - `soft` devices: in the child every call fails with `ENODEV` and [`Cause::Forked`], polling finds
//!   nothing, and dropping a handle does not affect the parent. The child can open devices of its own.

#![allow(clippy::result_large_err)]

mod ah;
mod buffer;
mod comp_channel;
mod context;
mod cq;
mod device;
mod event;
mod exposed;
mod gid;
mod live;
mod mr;
mod pd;
mod qp;
mod registry;
mod remote;

pub use ah::Ah;
pub use buffer::Buf;
pub use comp_channel::{CompChannel, CqEvent};
pub use context::Context;
pub use cq::{Completion, Completions, Cq, CqInit};
pub use device::{Device, DeviceList, devices, register};
pub use event::{AsyncEvent, AsyncEvents, Element};
pub use exposed::{Exposed, RemoteAccess};
pub use live::on_leak;
pub use mr::Mr;
pub use pd::Pd;
pub use qp::attr::{InitAttr, QpInit, RtrAttr, RtsAttr};
pub use qp::half::{RecvHalf, SendHalf};
pub use qp::parked::{Parcel, ParkError, ParkReason};
pub use qp::{Qp, state};
pub use registry::{CqId, QpId};
pub use remote::RemoteMr;

#[doc(hidden)]
pub use verbs_core::discovery::DeviceParts;
pub use verbs_core::discovery::{
    DevNum, DeviceInfo, Found, NetlinkError, NodeType, OwnDevice, RdmaDriverId, SkipReason, Skipped, Source,
    TransportType,
};
pub use verbs_core::provider::{Driver, Erased, NamedProvider, Provider};
#[doc(inline)]
pub use verbs_core::types::*;
pub use verbs_core::{Cause, Errno, Error, Result, provider};

/// The Soft-RoCE provider.
#[cfg(feature = "rxe")]
pub mod rxe {
    // By name: the provider's queues on paper are for its own tests.
    pub use provider_rxe::{Ah, Completion, Context, Cq, Qp, Rq, Rxe, Sq};
}

#[cfg(feature = "soft")]
pub mod soft;

/// The provider's queues on paper, which a program could share between threads, are not passed on.
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

/// The README's example is compiled with the documentation's own.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
