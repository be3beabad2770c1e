//! `include/uapi/rdma/rdma_user_ioctl.h`: ioctl numbers of umad and hfi1. For uverbs, see
//! [`RDMA_VERBS_IOCTL`](crate::rdma_user_ioctl_cmds::RDMA_VERBS_IOCTL).
//!
//! The structs of the hfi1 numbers belong to `rdma/hfi/hfi1_ioctl.h`, which is outside this crate.
//! Only their sizes appear here.

use crate::ib_user_mad::{IbUserMadRegReq, IbUserMadRegReq2};
use crate::ioctl::{io, ior, iow, iowr};
use crate::macros::header;
use crate::rdma_user_ioctl_cmds::RDMA_IOCTL_MAGIC;

header! {
    "rdma/rdma_user_ioctl.h";

    /// Former name of [`RDMA_IOCTL_MAGIC`].
    pub consts define: u32 {
        IB_IOCTL_MAGIC = RDMA_IOCTL_MAGIC,
    }

    /// umad ioctl request.
    pub consts define: u32 {
        IB_USER_MAD_REGISTER_AGENT = iowr(RDMA_IOCTL_MAGIC, 0x01, size_of::<IbUserMadRegReq>()),
        IB_USER_MAD_UNREGISTER_AGENT = iow(RDMA_IOCTL_MAGIC, 0x02, size_of::<u32>()),
        IB_USER_MAD_ENABLE_PKEY = io(RDMA_IOCTL_MAGIC, 0x03),
        IB_USER_MAD_REGISTER_AGENT2 = iowr(RDMA_IOCTL_MAGIC, 0x04, size_of::<IbUserMadRegReq2>()),
    }

    /// hfi1 (Omni-Path) ioctl request. The size of its struct comes from the hfi1 header on 64-bit
    /// machines.
    pub consts define: u32 {
        HFI1_IOCTL_ASSIGN_CTXT = iowr(RDMA_IOCTL_MAGIC, 0xe1, 28),
        HFI1_IOCTL_CTXT_INFO = iow(RDMA_IOCTL_MAGIC, 0xe2, 40),
        HFI1_IOCTL_USER_INFO = iow(RDMA_IOCTL_MAGIC, 0xe3, 120),
        HFI1_IOCTL_TID_UPDATE = iowr(RDMA_IOCTL_MAGIC, 0xe4, 24),
        HFI1_IOCTL_TID_FREE = iowr(RDMA_IOCTL_MAGIC, 0xe5, 24),
        HFI1_IOCTL_CREDIT_UPD = io(RDMA_IOCTL_MAGIC, 0xe6),
        HFI1_IOCTL_RECV_CTRL = iow(RDMA_IOCTL_MAGIC, 0xe8, 4),
        HFI1_IOCTL_POLL_TYPE = iow(RDMA_IOCTL_MAGIC, 0xe9, 4),
        HFI1_IOCTL_ACK_EVENT = iow(RDMA_IOCTL_MAGIC, 0xea, 8),
        HFI1_IOCTL_SET_PKEY = iow(RDMA_IOCTL_MAGIC, 0xeb, 2),
        HFI1_IOCTL_CTXT_RESET = io(RDMA_IOCTL_MAGIC, 0xec),
        HFI1_IOCTL_TID_INVAL_READ = iowr(RDMA_IOCTL_MAGIC, 0xed, 24),
        HFI1_IOCTL_GET_VERS = ior(RDMA_IOCTL_MAGIC, 0xee, 4),
    }
}
