//! The Linux kernel's RDMA user ABI as Rust types: uverbs, rdma netlink, rdma_cm, umad, rxe, mlx5.
//!
//! Each kernel header has one module, with the header's name and order. A struct has its C name in
//! CamelCase; fields and constants are spelled as in C:
//!
//! | C | Rust |
//! |---|---|
//! | `struct ib_uverbs_wc` | [`IbUverbsWc`], `#[repr(C)]`, zerocopy's `FromBytes`, `IntoBytes` |
//! | `struct ib_uverbs_alloc_pd` | [`IbUverbsAllocPd`], input to the kernel: no `FromBytes` |
//! | `enum ib_uverbs_wc_opcode` | [`IbUverbsWcOpcode`], a newtype keeping unknown values |
//! | `enum ib_uverbs_access_flags` | [`IbUverbsAccessFlags`], bitflags keeping unknown bits |
//! | ids, `#define`s, unnamed enums | constants, e.g. [`UVERBS_METHOD_QP_CREATE`] |
//! | `union` | words with typed conversions by value, e.g. `RxeSendWrOp::from_rdma` |
//! | `__be16`, `__be32`, `__be64` | [`Be16`], [`Be32`], [`Be64`] |
//! | flexible array member | omitted: the data after a struct is sent and read separately |
//!
//! Three modules have other contents: `macros` has **the grammar of the `header!` blocks**,
//! `endian` the big-endian integers, and `ioctl` the encoding of ioctl numbers.
//!
//! [`IbUverbsWc`]: ib_user_verbs::IbUverbsWc
//! [`IbUverbsAllocPd`]: ib_user_verbs::IbUverbsAllocPd
//! [`IbUverbsWcOpcode`]: ib_user_verbs::IbUverbsWcOpcode
//! [`IbUverbsAccessFlags`]: ib_user_ioctl_verbs::IbUverbsAccessFlags
//! [`UVERBS_METHOD_QP_CREATE`]: ib_user_ioctl_cmds::UVERBS_METHOD_QP_CREATE
//!
//! Every type is plain data without padding, so a command is `as_bytes()` and a reply
//! `read_from_bytes()`:
//!
//! ```
//! use uverbs_abi::ib_user_verbs::{IbUverbsAllocPd, IbUverbsWcOpcode};
//! use zerocopy::IntoBytes;
//!
//! let command = IbUverbsAllocPd { response: 0x7000_1000 };
//! assert_eq!(command.as_bytes(), 0x7000_1000_u64.to_ne_bytes());
//!
//! assert_eq!(format!("{:?}", IbUverbsWcOpcode::IB_UVERBS_WC_RDMA_READ), "IB_UVERBS_WC_RDMA_READ");
//! assert_eq!(format!("{:?}", IbUverbsWcOpcode(77)), "IbUverbsWcOpcode(77)");
//! ```
//!
//! # Features
//!
//! uverbs and RDMA netlink are always included. Each feature adds the headers of one subsystem and
//! is on by default. The libraries of this project enable only the features they use, because
//! derives make every header slow to compile.
//!
//! | feature | modules |
//! |---|---|
//! | `cm` | `rdma_user_cm`, `ib_user_sa`, `socket` |
//! | `mad` | `ib_user_mad`, `rdma_user_ioctl` |
//! | `mlx5` | `mlx5_abi`, `mlx5_user_ioctl_cmds`, `mlx5_user_ioctl_verbs` |
//! | `rxe` | `rdma_user_rxe`, `socket` |
//! | `layout` | the layout of every definition as data, for the golden test |
//!
//! All layouts are compared with the kernel's own headers: `cargo xtask abi` compiles a probe
//! against them and writes `golden/`. The test `golden` compares this crate with those files.

#![no_std]
#![forbid(unsafe_code)]

#[cfg(any(target_pointer_width = "16", target_pointer_width = "32", target_endian = "big"))]
compile_error!(
    "uverbs-abi supports 64-bit little-endian processors only: it is tested on x86-64 and aarch64, and \
     nothing has shown that it is right elsewhere (docs/decisions/0039-64-bit-little-endian.md)"
);

mod endian;
mod ioctl;
#[doc(hidden)]
pub mod layout;
mod macros;

pub use endian::{Be16, Be32, Be64};

/// Declares the header modules and `HEADERS`, the list of layouts for the golden test.
macro_rules! headers {
    ($( $(#[cfg($cfg:meta)])? $module:ident ),* $(,)?) => {
        $( $(#[cfg($cfg)])? pub mod $module; )*

        /// The layouts of all headers.
        #[cfg(feature = "layout")]
        #[doc(hidden)]
        pub const HEADERS: &[layout::Header] = &[$( $(#[cfg($cfg)])? $module::LAYOUT ),*];
    };
}

headers! {
    ib_user_verbs,
    #[cfg(feature = "mad")]
    rdma_user_ioctl,
    rdma_user_ioctl_cmds,
    ib_user_ioctl_cmds,
    ib_user_ioctl_verbs,
    rdma_netlink,
    #[cfg(feature = "cm")]
    rdma_user_cm,
    #[cfg(feature = "mad")]
    ib_user_mad,
    #[cfg(feature = "cm")]
    ib_user_sa,
    #[cfg(feature = "rxe")]
    rdma_user_rxe,
    #[cfg(feature = "mlx5")]
    mlx5_abi,
    #[cfg(feature = "mlx5")]
    mlx5_user_ioctl_cmds,
    #[cfg(feature = "mlx5")]
    mlx5_user_ioctl_verbs,
    #[cfg(any(feature = "cm", feature = "rxe"))]
    socket,
}

// The kernel's __aligned_u64 is aligned to 8 everywhere. Rust's u64 is not on 32-bit x86.
static_assertions::const_assert_eq!(align_of::<u64>(), 8);

/// Compiles the README's example as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
