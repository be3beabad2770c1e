//! The types and constants of rdma-core's `infiniband/verbs.h` and `rdma/rdma_cma.h`, release 65,
//! that cross the boundary between a C program and this library.
//!
//! | file | contents |
//! |---|---|
//! | `address.rs` | GIDs, global routes, address handles and their attributes, rates |
//! | `device.rs` | a device, its capabilities, fork support |
//! | `device_attr.rs` | the attributes of a device |
//! | `port.rs` | the attributes of a port |
//! | `context.rs` | an open device and its operation table |
//! | `context_ex.rs` | `verbs_context`: the second operation table, in front of the open device |
//! | `pd.rs` | protection, thread and parent domains, XRC domains |
//! | `mr.rs` | memory regions, access rights, advice, buffers, DMA handles |
//! | `mw.rs`, `dm.rs` | memory windows, device memory |
//! | `cq.rs`, `cq_ex.rs` | completion channels and queues; a queue with its operation table |
//! | `wc.rs` | completions |
//! | `qp.rs`, `qp_attr.rs`, `qp_ex.rs` | queue pairs: creation, attributes, the operation table |
//! | `wr.rs` | work requests |
//! | `srq.rs`, `tm.rs` | shared receive queues, tag matching |
//! | `wq.rs` | work queues, indirection tables, receive hashing |
//! | `flow.rs`, `flow_action.rs` | flow rules and their actions |
//! | `counters.rs` | counters for flow rules, completion counters |
//! | `event.rs` | asynchronous events, the device's current values |
//! | `sa.rs` | the path record of `infiniband/sa.h` |
//! | `rdma_cma.rs` | the types of `rdma/rdma_cma.h` |
//! | `mlx5dv.rs` | the types of `infiniband/mlx5dv.h` |
//! | `macros.rs`, `layout.rs` | the notation of these files and the checks of their layout |
//!
//! Names are identical to C, except that `type` and `priv` end in `_` here. rdma-core's manual
//! pages describe the types and fields; this module states where Rust differs from C:
//!
//! - A C enum is an alias of an integer type, because a program may pass any number: `c_uint`,
//!   `c_int` if a value is negative, or the type of the field that holds the flags.
//! - A field of the C type `__be16`, `__be32` or `__be64` is a plain integer in big-endian order.
//! - Functions are `Option<unsafe extern "C" fn>`, so that a zeroed table is valid.
//! - Unions that are anonymous in C have a name: see `macros.rs`.
//!
//! Structs grow from release to release, at the end or, like `verbs_context`, at the front.
//! Programs compiled against an older header lack the newer fields; `tests/golden.rs` lists the
//! differences.

#![allow(non_camel_case_types, non_snake_case, missing_docs)]

mod address;
mod context;
mod context_ex;
mod counters;
mod cq;
mod cq_ex;
mod device;
mod device_attr;
mod dm;
mod event;
mod flow;
mod flow_action;
pub mod layout;
mod macros;
pub mod mlx5dv;
mod mr;
mod mw;
mod pd;
mod port;
mod qp;
mod qp_attr;
mod qp_ex;
mod rdma_cma;
mod sa;
mod srq;
mod tm;
mod wc;
mod wq;
mod wr;

pub use self::address::*;
pub use self::context::*;
pub use self::context_ex::*;
pub use self::counters::*;
pub use self::cq::*;
pub use self::cq_ex::*;
pub use self::device::*;
pub use self::device_attr::*;
pub use self::dm::*;
pub use self::event::*;
pub use self::flow::*;
pub use self::flow_action::*;
pub use self::mr::*;
pub use self::mw::*;
pub use self::pd::*;
pub use self::port::*;
pub use self::qp::*;
pub use self::qp_attr::*;
pub use self::qp_ex::*;
pub use self::rdma_cma::*;
pub use self::sa::*;
pub use self::srq::*;
pub use self::tm::*;
pub use self::wc::*;
pub use self::wq::*;
pub use self::wr::*;

/// The layouts of all definitions in verbs.h, for the golden test.
#[doc(hidden)]
pub const LAYOUT: &[&[layout::Item]] = &[
    address::LAYOUT,
    context::LAYOUT,
    context_ex::LAYOUT,
    counters::LAYOUT,
    cq::LAYOUT,
    cq_ex::LAYOUT,
    device::LAYOUT,
    device_attr::LAYOUT,
    dm::LAYOUT,
    event::LAYOUT,
    flow::LAYOUT,
    flow_action::LAYOUT,
    mr::LAYOUT,
    mw::LAYOUT,
    pd::LAYOUT,
    port::LAYOUT,
    qp::LAYOUT,
    qp_attr::LAYOUT,
    qp_ex::LAYOUT,
    sa::LAYOUT,
    srq::LAYOUT,
    tm::LAYOUT,
    wc::LAYOUT,
    wq::LAYOUT,
    wr::LAYOUT,
];

/// The layouts of all definitions in `rdma/rdma_cma.h`, for the golden test.
#[doc(hidden)]
pub const RDMA_LAYOUT: &[&[layout::Item]] = &[rdma_cma::LAYOUT];
