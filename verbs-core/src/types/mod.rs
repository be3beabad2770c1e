//! The arguments and results of verbs. They are plain data: no handles, no pointers to follow, no
//! system calls.

mod access;
mod address;
mod counters;
mod cq;
mod data_in_order;
mod device_attr;
mod ece;
pub(crate) mod event;
pub(crate) mod flags;
mod flow;
mod fork;
mod gid;
mod grh;
mod mr;
mod mw;
pub(crate) mod names;
mod open_enum;
mod parse;
mod port_attr;
mod qp_attr;
mod qp_create;
mod rate;
mod rate_limit;
mod srq;
#[cfg(test)]
mod tests;
mod tm;
mod wc;
mod wq;
mod wr;

pub use access::AccessFlags;
pub use address::{AhAttr, Av, GlobalRoute, UdAddr};
pub use counters::{
    CompCntrAttachOps, CompCntrCaps, CompCntrEntry, CompCntrType, CounterAttachAttr, CounterDescription,
    ReadCountersFlags,
};
pub use cq::{CqFlags, CqInitAttr, CqModeration, CqWcFlags, RtValues, WcTmInfo};
pub use data_in_order::DataInOrder;
pub use device_attr::{
    AtomicCap, CqModerationCaps, DeviceAttr, DeviceAttrEx, DeviceCapFlags, OdpCaps, OdpGeneralCaps,
    OdpTransportCaps, PacketPacingCaps, PciAtomicCaps, PciAtomicOpSize, RawPacketCaps, RssCaps, TmCapFlags,
    TmCaps, TsoCaps,
};
pub use ece::Ece;
pub use event::AsyncEventType;
pub use flow::{
    AesKey, EspAttr, EspEncap, EspFlags, EspIvAlgo, EspKeymat, EspReplay, FlowActionEspAttr, FlowAttr,
    FlowAttrType, FlowEspFilter, FlowEthFilter, FlowFlags, FlowGreFilter, FlowIpv4ExtFilter, FlowIpv4Filter,
    FlowIpv6Filter, FlowMatch, FlowMplsFilter, FlowSpec, FlowSpecType, FlowTcpUdpFilter, FlowTunnelFilter,
};
pub use fork::ForkStatus;
pub use gid::{Gid, GidEntry, GidType, Guid};
pub use grh::Grh;
pub use mr::{Advice, AdviseFlags, DmAttr, DmahAttr, MrAttr, TphMemType};
pub use mw::{MwBindInfo, MwType, inc_rkey};
pub(crate) use open_enum::open_enum;
pub use parse::ParseError;
pub use port_attr::{
    LinkLayer, Mtu, PortAttr, PortCapFlags, PortCapFlags2, PortFlags, PortSpeed, PortState, PortWidth,
};
pub use qp_attr::{MigState, QpAttr, QpAttrMask, QpCap, QpInitAttr, QpInitInfo, QpState, QpType};
pub use qp_create::{QpCreateAttr, QpCreateFlags, QpSendOps};
pub use rate::Rate;
pub use rate_limit::RateLimit;
pub use srq::{SrqAttr, SrqAttrMask, SrqInitAttr, SrqType, TmCap};
pub use tm::{OpsFlags, OpsWr, Rvh, TmOp, Tmh, TmhOp};
pub use wc::{Wc, WcError, WcFlags, WcOpcode, WcStatus};
pub use wq::{
    RxHashConf, RxHashFields, RxHashFunction, WqAttr, WqFlags, WqFlagsChange, WqInitAttr, WqState, WqType,
};
pub use wr::{
    FlushPlacement, FlushSelectivity, OpKind, PostError, PostReason, RecvWr, SendFlags, SendOp, SendWr, Sge,
};
