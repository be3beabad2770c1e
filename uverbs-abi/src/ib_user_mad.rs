//! `include/uapi/rdma/ib_user_mad.h`: management datagrams from user space, read and written on
//! `/dev/infiniband/umadN`.
//!
//! The registration ioctls are numbered in [`rdma_user_ioctl`](crate::rdma_user_ioctl).

use crate::endian::{Be16, Be32};
use crate::macros::header;

header! {
    "rdma/ib_user_mad.h";

    /// Version of this ABI, as in `/sys/class/infiniband_mad/abi_version`.
    pub consts define: u32 {
        IB_USER_MAD_ABI_VERSION = 5,
    }

    /// Header of a management datagram without a P_Key index, for files on which the index is not
    /// enabled.
    pub struct IbUserMadHdrOld = ib_user_mad_hdr_old {
        /// Agent id.
        pub id: u32,
        /// 0, or `ETIMEDOUT` for a request without a response.
        pub status: u32,
        /// Timeout in milliseconds.
        pub timeout_ms: u32,
        /// Number of retransmissions by the kernel.
        pub retries: u32,
        /// Total size of header and data, in bytes.
        pub length: u32,
        /// Remote queue pair number.
        pub qpn: Be32,
        /// Q_Key.
        pub qkey: Be32,
        /// Remote LID.
        pub lid: Be16,
        /// Service level.
        pub sl: u8,
        /// Low bits of the local LID (path bits).
        pub path_bits: u8,
        /// Nonzero if the GRH fields are used.
        pub grh_present: u8,
        /// Index into the port's GID table.
        pub gid_index: u8,
        /// Hop limit, IPv4 TTL.
        pub hop_limit: u8,
        /// Traffic class, IPv4 TOS.
        pub traffic_class: u8,
        /// Remote GID.
        pub gid: [u8; 16],
        /// IPv6 flow label, 20 bits.
        pub flow_label: Be32,
    }

    /// Header of a management datagram, with a P_Key index.
    pub struct IbUserMadHdr = ib_user_mad_hdr {
        /// Agent id.
        pub id: u32,
        /// 0, or `ETIMEDOUT` for a request without a response.
        pub status: u32,
        /// Timeout in milliseconds.
        pub timeout_ms: u32,
        /// Number of retransmissions by the kernel.
        pub retries: u32,
        /// Total size of header and data, in bytes.
        pub length: u32,
        /// Remote queue pair number.
        pub qpn: Be32,
        /// Q_Key.
        pub qkey: Be32,
        /// Remote LID.
        pub lid: Be16,
        /// Service level.
        pub sl: u8,
        /// Low bits of the local LID (path bits).
        pub path_bits: u8,
        /// Nonzero if the GRH fields are used.
        pub grh_present: u8,
        /// Index into the port's GID table.
        pub gid_index: u8,
        /// Hop limit, IPv4 TTL.
        pub hop_limit: u8,
        /// Traffic class, IPv4 TOS.
        pub traffic_class: u8,
        /// Remote GID.
        pub gid: [u8; 16],
        /// IPv6 flow label, 20 bits.
        pub flow_label: Be32,
        /// Index into the P_Key table.
        pub pkey_index: u16,
        /// Reserved, zero.
        pub reserved: [u8; 6],
    }

    /// A management datagram as read and written; its data follows.
    #[repr(align(8))]
    pub struct IbUserMad = ib_user_mad {
        /// The agent, the timeout and the peer's address. The MAD itself is in the data that
        /// follows.
        pub hdr: IbUserMadHdr,
    }

    /// Number of C `long`s in the 128-bit method mask, for a 64-bit `long`.
    pub consts define: usize {
        IB_USER_MAD_LONGS_PER_METHOD_MASK = 2,
    }

    /// Argument of `IB_USER_MAD_REGISTER_AGENT`.
    pub struct IbUserMadRegReq = ib_user_mad_reg_req {
        /// Agent id, set by the kernel.
        pub id: u32,
        /// 128 bits, one per method of the agent. C has an array of `long`s aligned to 4 bytes, so
        /// the order of the two words in a `long` depends on the machine's byte order.
        pub method_mask: [u32; 4],
        /// Queue pair number, 0 or 1.
        pub qpn: u8,
        /// Management class whose unsolicited datagrams the agent receives, 0 for none.
        pub mgmt_class: u8,
        /// Version of `mgmt_class`.
        pub mgmt_class_version: u8,
        /// Vendor OUI, for the vendor classes 0x30 to 0x4f.
        pub oui: [u8; 3],
        /// RMPP version; nonzero to use RMPP.
        pub rmpp_version: u8,
        /// Padding, implicit in C.
        pub _pad: [u8; 1],
    }

    /// Argument of `IB_USER_MAD_REGISTER_AGENT2`.
    pub struct IbUserMadRegReq2 = ib_user_mad_reg_req2 {
        /// Agent id, set by the kernel.
        pub id: u32,
        /// Queue pair number, 0 or 1.
        pub qpn: u32,
        /// Management class whose unsolicited datagrams the agent receives, 0 for none.
        pub mgmt_class: u8,
        /// Version of `mgmt_class`.
        pub mgmt_class_version: u8,
        /// Reserved, zero.
        pub res: u16,
        /// `IB_USER_MAD_*` bits. If a bit is unknown, the ioctl fails with `EINVAL` and the kernel
        /// stores all supported bits here.
        pub flags: u32,
        /// One bit per requested method.
        pub method_mask: [u64; 2],
        /// Vendor OUI, for the vendor classes 0x30 to 0x4f.
        pub oui: u32,
        /// RMPP version; nonzero to use RMPP.
        pub rmpp_version: u8,
        /// Reserved, zero.
        pub reserved: [u8; 3],
    }

    /// Flag of [`IbUserMadRegReq2::flags`].
    pub consts anonymous: u32 {
        /// User space does RMPP itself.
        IB_USER_MAD_USER_RMPP = 1,
    }

    /// All registration flags known to the kernel.
    pub consts define: u32 {
        IB_USER_MAD_REG_FLAGS_CAP = IB_USER_MAD_USER_RMPP,
    }
}
