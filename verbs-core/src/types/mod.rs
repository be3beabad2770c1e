//! The values that verbs speak in. Plain data: no handle, no pointer that is followed, no system call.

mod access;
mod address;
mod cq;
mod device_attr;
mod event;
mod gid;
mod open_enum;
mod port_attr;
mod qp_attr;
mod wc;
mod wr;

pub use access::AccessFlags;
pub use address::{AhAttr, Av, GlobalRoute, UdAddr};
pub use cq::CqInitAttr;
pub use device_attr::{
    AtomicCap, CqModerationCaps, DeviceAttr, DeviceAttrEx, DeviceCapFlags, OdpCaps, OdpGeneralCaps,
    OdpTransportCaps, PacketPacingCaps, PciAtomicCaps, RawPacketCaps, RssCaps, TmCaps, TsoCaps,
};
pub use event::AsyncEventType;
pub use gid::{Gid, GidEntry, GidType, Guid};
pub(crate) use open_enum::open_enum;
pub use port_attr::{LinkLayer, Mtu, PortAttr, PortCapFlags, PortState};
pub use qp_attr::{MigState, QpAttr, QpAttrMask, QpCap, QpInitAttr, QpInitInfo, QpState, QpType};
pub use wc::{Wc, WcFlags, WcOpcode, WcStatus};
pub use wr::{PostError, PostReason, RecvWr, SendFlags, SendOp, SendWr, Sge};
