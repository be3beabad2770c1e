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
//! This program takes the same steps as every RDMA program:
//!
//! 1. Open a device: [`devices`] lists the devices, [`Device::open`] returns a [`Context`].
//! 2. Allocate a protection domain, a [`Pd`], and register memory in it: a [`Buf`].
//! 3. Create a completion queue, a [`Cq`], and on it a queue pair, a [`Qp`]: a send queue and a
//!    receive queue.
//! 4. Exchange [`Endpoint`]s with the peer and [`connect`](Qp::connect).
//! 5. Post sends and receives, and poll their completions.
//!
//! # Guide
//! [`guide`] is the manual, one page per subject, with examples that run:
//!
//! 1. [Memory](guide::memory), [queue pairs](guide::queue_pairs) and
//!    [completions](guide::completions): what every program uses.
//! 2. [Events](guide::events) and [errors](guide::errors): what can happen to a program.
//! 3. [Threads](guide::threads), [fork](guide::fork) and [unplug](guide::unplug): the process and
//!    the machine that surround it.
//! 4. [Testing](guide::testing), without hardware.
//! 5. From [C](guide::from_c), from [`ibverbs`](guide::from_ibverbs), from
//!    [`sideway`](guide::from_sideway): the calls of each library, and ours.
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
//! | device memory | `ibv_dm`, `ibv_dmah` | [`Dm`], [`Dmah`] |
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
//! alive, so a program may drop handles in any order. Dropping a handle destroys its object, or
//! leaks the object if the kernel refuses to destroy it ([`on_leak`]). In that case, `close`
//! returns the reason and the handle ([`HandleError`]).
//!
//! Polling and posting take `&mut self`: exclusive access replaces the locks of libibverbs.
//!
//! # Safety in layers
//! 1. [`Qp::post_send`] and [`Qp::post_recv`] are unsafe: they take addresses and keys, for any
//!    ownership scheme.
//! 2. [`Qp::post_send_buf`] and [`Qp::post_recv_buf`] are safe: the queue owns the memory until its
//!    work request has ended. Polling then returns the memory. The poller needs neither the queue
//!    pair nor a lock for that.
//! 3. [`Pd::scope`] is safe, too: it registers borrowed slices as [`ScopedBuf`]s and returns when
//!    no request in flight uses them.
//!
//! [`WrBatch`] builds requests with the `ibv_wr_start` family of calls, at the first layer;
//! [`SendBatch`] batches sends at the second.
//!
//! Peers can access only [exposed](Pd::expose) memory, to which no `&[u8]` exists. A posted request
//! revokes access through a [`Window`] without deregistering the memory.
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
//! [`DeviceList::with_drivers`] add others. The contract, [`provider`], is not covered by semantic
//! versioning yet.
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
//! The folders, from top to bottom. No folder imports from a folder above it.
//!
//! | folder | content |
//! |---|---|
//! | `guide` | the manual in Markdown, whose examples are doctests on soft devices |
//! | `mlx5`, `soft`, `provider` | ConnectX features beyond verbs, soft devices, the contract |
//! | `steering` | rules that steer packets, counters |
//! | `qp` | queue pairs: states as types, posting, batches, scopes, halves, endpoints |
//! | `queue` | completion queues, their events, shared receive queues, XRC domains, work queues |
//! | `in_flight` | the owner of posted memory and **why safe posting is sound** |
//! | `memory` | buffers, read-only and exposed memory, windows, raw regions, device memory |
//! | `device` | the device list, an open device, its events, protection domains, address handles |
//! | `handle` | **start here**: a kernel object, its dependencies, the order of release |
//!
//! The `mod.rs` of a folder lists its files.

#![allow(clippy::result_large_err)]

mod device;
mod handle;
mod in_flight;
mod memory;
mod qp;
mod queue;
mod steering;

pub use device::ah::Ah;
pub use device::context::Context;
pub use device::event::{AsyncEvent, AsyncEvents, Element};
pub use device::fork::{fork_init, is_fork_initialized};
pub use device::pd::Pd;
pub use device::td::{ParentDomainInit, Td};
pub use device::{Device, DeviceList, devices, import_device, register};
pub use handle::error::HandleError;
pub use handle::kernel_handle::on_leak;
pub use handle::registry::{CqId, QpId, SrqId, WqId};
pub use in_flight::Returned;
pub use memory::buffer::Buf;
pub use memory::dm::{Dm, Dmah};
pub use memory::exposed::{Exposed, RemoteAccess};
pub use memory::frozen::FrozenBuf;
pub use memory::mr::{Mr, MrChange, MrInit};
pub use memory::mw::Mw;
pub use memory::numbers::Number;
pub use memory::post_error::{PostBufError, PostBufReason};
pub use memory::remote::RemoteMr;
pub use memory::scoped::{Lent, ScopedBuf, ScopedBytes, ScopedMemory};
pub use memory::stable::{StableBytes, StableMemory};
pub use memory::window::{Invalidated, Window};
pub use memory::{Memory, PostMemory};
pub use qp::attr::{InitAttr, QpInit, RtrAttr, RtsAttr};
pub use qp::endpoint::{ConnectAttr, Endpoint, Port};
pub use qp::post::{RecvQueue, SendBatch, SendQueue};
pub use qp::scope::{QueuePairs, Scope, ScopedQp};
pub use qp::split::{RecvHalf, SendHalf};
pub use qp::{Qp, state};
pub use queue::comp_channel::{CompChannel, CqEvent};
pub use queue::completion::{Completed, Completion, Completions};
pub use queue::cq::{Cq, CqHandle, CqInit};
pub use queue::srq::{Srq, SrqHandle, SrqInit};
pub use queue::wq::{Rss, RwqIndTable, Wq, WqInit};
pub use queue::xrcd::{Xrcd, XrcdInit};
pub use steering::counters::{CompCntr, Counters};
pub use steering::flow::{Flow, FlowAction};

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
pub use verbs_core::types::{
    AccessFlags, Advice, AdviseFlags, AesKey, AhAttr, AsyncEventType, AtomicCap, Av, CompCntrAttachOps,
    CompCntrCaps, CompCntrEntry, CompCntrType, CounterAttachAttr, CounterDescription, CqFlags, CqInitAttr,
    CqModeration, CqModerationCaps, CqWcFlags, DataInOrder, DeviceAttr, DeviceAttrEx, DeviceCapFlags, DmAttr,
    DmahAttr, Ece, EspAttr, EspEncap, EspFlags, EspIvAlgo, EspKeymat, EspReplay, FlowActionEspAttr, FlowAttr,
    FlowAttrType, FlowEspFilter, FlowEthFilter, FlowFlags, FlowGreFilter, FlowIpv4ExtFilter, FlowIpv4Filter,
    FlowIpv6Filter, FlowMatch, FlowMplsFilter, FlowSpec, FlowSpecType, FlowTcpUdpFilter, FlowTunnelFilter,
    FlushPlacement, FlushSelectivity, ForkStatus, Gid, GidEntry, GidType, GlobalRoute, Grh, Guid, LinkLayer,
    MigState, MrAttr, Mtu, MwBindInfo, MwType, OdpCaps, OdpGeneralCaps, OdpTransportCaps, OpKind, OpsFlags,
    OpsWr, PacketPacingCaps, ParseError, PciAtomicCaps, PciAtomicOpSize, PortAttr, PortCapFlags,
    PortCapFlags2, PortFlags, PortSpeed, PortState, PortWidth, PostError, PostReason, QpAttr, QpAttrMask,
    QpCap, QpCreateAttr, QpCreateFlags, QpInitAttr, QpInitInfo, QpSendOps, QpState, QpType, Rate, RateLimit,
    RawPacketCaps, ReadCountersFlags, RecvWr, RssCaps, RtValues, Rvh, RxHashConf, RxHashFields,
    RxHashFunction, SendFlags, SendOp, SendWr, Sge, SrqAttr, SrqAttrMask, SrqInitAttr, SrqType, TmCap,
    TmCapFlags, TmCaps, TmOp, Tmh, TmhOp, TphMemType, TsoCaps, UdAddr, Wc, WcError, WcFlags, WcOpcode,
    WcStatus, WcTmInfo, WqAttr, WqFlags, WqFlagsChange, WqInitAttr, WqState, WqType, inc_rkey,
};
pub use verbs_core::{Cause, Errno, Error, Result};

#[cfg(feature = "mlx5")]
pub mod mlx5;

/// The Soft-RoCE provider.
#[cfg(feature = "rxe")]
pub mod rxe {
    // Re-exported by name to leave out `paper`, the simulated queues for the provider's own tests.
    pub use provider_rxe::{Ah, Completion, Context, Cq, CqHandle, Mr, Qp, Rq, Rxe, Sq, Srq, SrqQueue};
    pub use verbs_core::kernel::{KernelMw as Mw, KernelPd as Pd};
}

pub mod guide;

pub mod provider;

#[cfg(feature = "soft")]
pub mod soft;

/// The provider's simulated queues (`paper`) are not re-exported, because a program could share
/// them between threads.
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
