//! The layout records that `c_types!` generates for each type and constant, and the layouts on
//! which the library itself relies.
//!
//! The golden test compares all records with the C compiler's numbers for several releases of
//! verbs.h. The assertions below fail the build if a layout that programs rely on is wrong.

use core::mem::offset_of;

use verbs_core::types::{Sge, Wc};

use super::*;

/// One definition in verbs.h.
#[derive(Debug)]
pub enum Item {
    /// A struct or a union.
    Type(Type),
    /// Constants, as names and values.
    Constants(&'static [(&'static str, i128)]),
}

/// A struct or a union.
#[derive(Debug)]
pub struct Type {
    /// The name of the Rust type. It is also the tag in C, unless `path` differs.
    pub rust_name: &'static str,
    /// The path to a type that has no tag in C; may be empty. `None` if the type has a tag.
    pub path: Option<&'static str>,
    /// The size in bytes.
    pub size: usize,
    /// The alignment in bytes.
    pub align: usize,
    /// The fields in order, without padding.
    pub fields: &'static [Field],
}

/// A field of a [`Type`].
#[derive(Debug)]
pub struct Field {
    /// The name in Rust, where `type_` stands for `type` in C.
    pub name: &'static str,
    /// The offset in bytes from the start of the type.
    pub offset: usize,
    /// The size in bytes.
    pub size: usize,
}

/// Returns the path stated in an item of `c_types!`, if any.
pub(super) const fn path(stated: &[&'static str]) -> Option<&'static str> {
    match stated {
        [path, ..] => Some(*path),
        [] => None,
    }
}

macro_rules! same_fields {
    ($c:ty, $rust:ty: $($field:ident),*) => {
        const _: () = {
            assert!(size_of::<$c>() == size_of::<$rust>() && align_of::<$c>() == align_of::<$rust>());
            $( assert!(offset_of!($c, $field) == offset_of!($rust, $field)); )*
        };
    };
}

// The program's completion arrays are written, and its scatter/gather lists read, as verbs-core's
// types.
same_fields!(ibv_wc, Wc:
    wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags, pkey_index, slid, sl,
    dlid_path_bits);
same_fields!(ibv_sge, Sge: addr, length, lkey);

macro_rules! layout {
    ($($ty:ident $size:literal $({ $($field:ident $offset:literal),* })?;)*) => {
        $( const _: () = {
            assert!(size_of::<$ty>() == $size);
            $($( assert!(offset_of!($ty, $field) == $offset); )*)?
        }; )*
    };
}

#[cfg(target_pointer_width = "64")]
layout! {
    ibv_device 664 { node_type 16, transport_type 20, name 24, dev_name 88, dev_path 152, ibdev_path 408 };
    ibv_context_ops 256 {
        alloc_mw 56, bind_mw 64, dealloc_mw 72, poll_cq 88, req_notify_cq 96, post_srq_recv 160,
        post_send 200, post_recv 208
    };
    ibv_pd 16;
    ibv_ah 24;
    ibv_mr 48 { addr 16, length 24, handle 32, lkey 36, rkey 40 };
    ibv_mw 32;
    ibv_dm 32;
    ibv_comp_channel 16 { fd 8, refcnt 12 };
    ibv_wc 48;
    ibv_sge 16;
    ibv_send_wr 128 {
        sg_list 16, num_sge 24, opcode 28, send_flags 32, imm_data 36, wr 40, qp_type 72, ext 80
    };
    ibv_recv_wr 32;
    ibv_qp_attr 144;
    ibv_qp_init_attr 64;
    ibv_qp_init_attr_ex 136;
    ibv_device_attr 232;
    ibv_device_attr_ex 400;
    ibv_port_attr 56;
    _compat_ibv_port_attr 48;
    ibv_async_event 16;
    ibv_gid_entry 32;
    ibv_ah_attr 32;
    rdma_cm_id 416 {
        verbs 0, channel 8, context 16, qp 24, route 32, ps 344, port_num 348, event 352, send_cq_channel 360,
        send_cq 368, recv_cq_channel 376, recv_cq 384, srq 392, pd 400, qp_type 408
    };
    rdma_event_channel 4;
    rdma_conn_param 24;
    rdma_cm_event 80 { listen_id 8, event 16, status 20, param 24 };
    rdma_addrinfo 96;
}

// The offsets below follow from the sizes of a mutex and a condition variable, which differ between
// architectures.
#[cfg(all(target_arch = "x86_64", target_pointer_width = "64", target_os = "linux"))]
layout! {
    ibv_context 328 {
        device 0, ops 8, cmd_fd 264, async_fd 268, num_comp_vectors 272, mutex 280, abi_compat 320
    };
    verbs_context 696 {
        free_buf 0, query_port 48, create_cq_ex 248, priv_ 256, query_device_ex 264, create_qp_ex 312, sz 360,
        context 368
    };
    ibv_cq 128 {
        channel 8, cq_context 16, handle 24, cqe 28, mutex 32, cond 72, comp_events_completed 120
    };
    ibv_cq_ex 288 { comp_mask 128, status 132, wr_id 136, start_poll 144 };
    ibv_qp 160 { handle 48, qp_num 52, state 56, qp_type 60, mutex 64, cond 104 };
    ibv_qp_ex 360 { comp_mask 160, wr_id 168, wr_flags 176, wr_atomic_cmp_swp 184, wr_flush 352 };
    ibv_srq 128 { handle 24, mutex 32 };
    ibv_wq 152 { wq_num 32, handle 36, post_recv 48 };
}

// Verified with an aarch64 C compiler and rdma-core 65: a mutex is 8 bytes longer there.
#[cfg(all(target_arch = "aarch64", target_pointer_width = "64", target_os = "linux"))]
layout! {
    ibv_context 336 {
        device 0, ops 8, cmd_fd 264, async_fd 268, num_comp_vectors 272, mutex 280, abi_compat 328
    };
    verbs_context 704 {
        free_buf 0, query_port 48, create_cq_ex 248, priv_ 256, query_device_ex 264, create_qp_ex 312, sz 360,
        context 368
    };
    ibv_cq 136 {
        channel 8, cq_context 16, handle 24, cqe 28, mutex 32, cond 80, comp_events_completed 128
    };
    ibv_cq_ex 296 { comp_mask 136, status 140, wr_id 144, start_poll 152 };
    ibv_qp 168 { handle 48, qp_num 52, state 56, qp_type 60, mutex 64, cond 112 };
    ibv_qp_ex 368 { comp_mask 168, wr_id 176, wr_flags 184, wr_atomic_cmp_swp 192, wr_flush 360 };
    ibv_srq 136 { handle 24, mutex 32 };
    ibv_wq 160 { wq_num 32, handle 36, post_recv 48 };
}
