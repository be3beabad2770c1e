//! [`vendor_err_text`]: the vendor's error syndromes whose meaning is public.

/// Returns the meaning of a failed completion's [`vendor_err`](verbs_core::types::Wc::vendor_err);
/// `None` if the meaning is not public.
///
/// The device's manual does not list the syndromes. rdma-core and UCX define one of them, while
/// Linux and DPDK print all as numbers; the vendor's support can interpret the others. The
/// [`status`](verbs_core::types::Wc::status) always contains the kind of error.
///
/// # References
/// rdma-core `providers/mlx5/mlx5.h` (`MLX5_CQE_VENDOR_SYNDROME_ODP_PFAULT`); UCX
/// `src/uct/ib/mlx5/ib_mlx5.h` (`UCT_IB_MLX5_CQE_VENDOR_SYND_ODP`)
pub const fn vendor_err_text(vendor_err: u32) -> Option<&'static str> {
    match vendor_err {
        0x93 => Some("page fault of a shared receive queue's memory that is paged on demand"),
        _ => None,
    }
}
