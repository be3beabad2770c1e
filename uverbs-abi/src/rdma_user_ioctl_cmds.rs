//! `include/uapi/rdma/rdma_user_ioctl_cmds.h`: the header and attributes of the uverbs ioctl.
//!
//! One call is an [`IbUverbsIoctlHdr`] naming an object and a method (ids in
//! [`ib_user_ioctl_cmds`](crate::ib_user_ioctl_cmds)), directly followed by `num_attrs`
//! [`IbUverbsAttr`]s.

use crate::ioctl::iowr;
use crate::macros::header;

header! {
    "rdma/rdma_user_ioctl_cmds.h";

    /// ioctl type of all RDMA character devices.
    pub consts define: u32 {
        RDMA_IOCTL_MAGIC = 0x1b,
    }

    /// The only ioctl request of uverbs. Its argument is an [`IbUverbsIoctlHdr`] and its
    /// attributes.
    pub consts define: u32 {
        RDMA_VERBS_IOCTL = iowr(RDMA_IOCTL_MAGIC, 1, size_of::<IbUverbsIoctlHdr>()),
    }

    /// Flag of [`IbUverbsAttr::flags`].
    pub consts anonymous: u16 {
        /// The kernel must fail if the attribute is unknown.
        UVERBS_ATTR_F_MANDATORY = 1 << 0,
        /// Set by the kernel if it has written this output.
        UVERBS_ATTR_F_VALID_OUTPUT = 1 << 1,
    }

    /// One attribute of a uverbs ioctl.
    pub struct IbUverbsAttr = ib_uverbs_attr {
        /// Attribute id, numbered within the method.
        pub attr_id: u16,
        /// Size in bytes of a pointer attribute or an id array; 0 for a handle. Input of up to 8
        /// bytes is stored in `data` itself.
        pub len: u16,
        /// `UVERBS_ATTR_F_*` bits.
        pub flags: u16,
        /// Variant of an enum attribute, otherwise zero.
        pub attr_data: IbUverbsAttrAttrData,
        /// User address, inline bytes, handle, or file descriptor.
        pub data: u64 | data_s64,
    }

    /// The variant of an enum attribute, otherwise reserved.
    pub union IbUverbsAttrAttrData = ib_uverbs_attr.attr_data: u16 {
        /// The variant, in enum attributes.
        pub enum_data: IbUverbsAttrEnumData => as_enum_data, from_enum_data,
        /// Reserved, zero.
        pub reserved: u16 => as_reserved, from_reserved,
    }

    /// The selected variant of an enum attribute.
    pub struct IbUverbsAttrEnumData = ib_uverbs_attr.attr_data.enum_data {
        /// Number of the variant.
        pub elem_id: u8,
        /// Reserved, zero.
        pub reserved: u8,
    }

    /// Header of a uverbs ioctl; `num_attrs` entries of [`IbUverbsAttr`] follow.
    pub struct IbUverbsIoctlHdr = ib_uverbs_ioctl_hdr {
        /// Size of this header and all attributes, in bytes.
        pub length: u16,
        /// `UVERBS_OBJECT_*`, or an object id of the driver.
        pub object_id: u16,
        /// Method of the object.
        pub method_id: u16,
        /// Number of attributes that follow.
        pub num_attrs: u16,
        /// Reserved, zero.
        pub reserved1: u64,
        /// [`RdmaDriverId`](crate::ib_user_ioctl_verbs::RdmaDriverId) of the device; must match if
        /// a driver attribute is given.
        pub driver_id: u32,
        /// Reserved, zero.
        pub reserved2: u32,
    }
}
