//! [`Context`]: an open device.
//!
//! # Safety
//! The caller's obligations for registered memory are passed on unchanged.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use uverbs_abi::ib_user_verbs::IbUverbsAsyncEventDesc;
use verbs_core::provider::{
    ContextOps, DeviceOps, MrChange, ParentDomainAttr, QpParents, QpParts, ReregError, SrqParents, SrqParts,
    WaitOps,
};
use verbs_core::types::{
    AccessFlags, Advice, AdviseFlags, AhAttr, CqInitAttr, DeviceAttr, DeviceAttrEx, DmAttr, Gid, GidEntry,
    GidType, MwType, PortAttr, QpInitAttr, RtValues, Sge, SrqInitAttr,
};
use verbs_core::{Cause, Errno, Result};

use crate::device::error::{check_port, refusal, within};
use crate::device::event_pipe::EventPipe;
use crate::device::sink::Channel;
use crate::device::state::DeviceState;
use crate::device::{Device, limits};
use crate::io::Counters;
use crate::io::link::PortLink;
use crate::objects::ah::Ah;
use crate::objects::comp_channel::CompChannels;
use crate::objects::cq::{Cq, CqHandle};
use crate::objects::dm::Dm;
use crate::objects::mr::Mr;
use crate::objects::mw::Mw;
use crate::objects::pd::Pd;
use crate::objects::qp::Qp;
use crate::objects::soft::Soft;
use crate::objects::srq::Srq;
use crate::objects::td::Td;
use crate::objects::xrcd::Xrcd;

/// An open device. Each context has separate events and completion channels.
#[derive(Debug)]
pub struct Context {
    device: Arc<Device>,
    /// The channel for asynchronous events of the objects created from this context.
    events: Channel,
    async_fd: Arc<OwnedFd>,
    channels: CompChannels,
}

impl Context {
    pub(crate) fn open(device: &Arc<Device>) -> Result<Self> {
        device.check("open_device")?;
        let pair = EventPipe::pair(size_of::<IbUverbsAsyncEventDesc>());
        let (events, async_fd) = pair.map_err(|errno| device.error("open_device", errno))?;
        let (events, async_fd) = (Arc::new(events), Arc::new(async_fd));
        let channels = CompChannels::new().map_err(|errno| device.error("open_device", errno))?;
        device.control("open_device", |core, _| {
            core.sink.add_context(&events).map_err(|refused| refusal(device, "open_device", refused))
        })?;
        Ok(Self {
            device: Arc::clone(device),
            events: Channel { pipe: events, reader: Arc::clone(&async_fd) },
            async_fd,
            channels,
        })
    }

    /// Returns the numbers of packets sent, received and lost since the device was created.
    pub fn counters(&self) -> Counters {
        self.device.socket.counters()
    }

    /// Returns the completion channel with this descriptor.
    fn channel(&self, fd: BorrowedFd<'_>) -> Result<Channel> {
        let pipe = self.channels.pipe(fd).map_err(|errno| self.device.error("create_cq", errno))?;
        let pipe = pipe.ok_or_else(|| {
            let cause = Cause::Foreign { what: "completion channel" };
            self.device.error("create_cq", Errno::INVAL).because(cause)
        })?;
        Ok(Channel { reader: Arc::clone(pipe.socket()), pipe })
    }
}

impl DeviceOps for Context {
    fn device_name(&self) -> &str {
        &self.device.name
    }

    fn num_comp_vectors(&self) -> u32 {
        limits::COMP_VECTORS
    }

    /// Always succeeds, even in a forked child: all soft devices have the same limits.
    fn query_device(&self) -> Result<DeviceAttr> {
        Ok(DeviceAttr {
            atomic_cap: self.device.checked_memory.atomic_cap(),
            ..limits::device_attr(self.device.guid)
        })
    }

    fn query_device_ex(&self) -> Result<DeviceAttrEx> {
        Ok(DeviceAttrEx { orig_attr: self.query_device()?, ..limits::device_attr_ex(self.device.guid) })
    }

    fn query_port(&self, port_num: u8) -> Result<PortAttr> {
        self.device.check("query_port")?;
        check_port(&self.device, "query_port", port_num)?;
        let mtu = self.device.mtu().map_err(|errno| self.device.error("query_port", errno))?;
        let qkey_viol_cntr = limits::qkey_viol_cntr(self.counters().datagrams_wrong_qkey);
        // A failed look-up is an error, not a port that is down.
        let interface = self
            .device
            .socket
            .link()
            .map_err(|errno| self.device.error("query_port", Errno::from_raw(errno as i32)))?;
        let is_active = interface.is_some_and(|interface| interface.is_up);
        Ok(PortAttr { qkey_viol_cntr, ..limits::port_attr(mtu, is_active) })
    }

    fn query_gid_table(&self) -> Result<Vec<GidEntry>> {
        self.device.check("query_gid")?;
        let first = gid_entry(&self.device);
        let at = |gid_index| first.map(|entry| GidEntry { gid_index, ..entry });
        Ok((0..limits::GIDS).filter_map(at).collect())
    }

    fn query_gid_entry(&self, port_num: u8, gid_index: u32) -> Result<Option<GidEntry>> {
        self.device.check("query_gid")?;
        check_port(&self.device, "query_gid", port_num)?;
        match gid_index {
            ..limits::GIDS => Ok(gid_entry(&self.device).map(|entry| GidEntry { gid_index, ..entry })),
            _ if gid_index < limits::GID_TABLE => Ok(None),
            _ => {
                let cause = Cause::Gid { port_num, index: gid_index, table_len: limits::GID_TABLE };
                Err(self.device.error("query_gid", Errno::INVAL).because(cause))
            }
        }
    }

    fn query_pkey(&self, port_num: u8, index: u16) -> Result<u16> {
        self.device.check("query_pkey")?;
        check_port(&self.device, "query_pkey", port_num)?;
        within(&self.device, "query_pkey", "pkey index", index.into(), 0, 0)?;
        Ok(limits::PKEY)
    }

    fn async_fd(&self) -> Result<BorrowedFd<'_>> {
        self.device.check("get_async_event")?;
        Ok(self.async_fd.as_fd())
    }

    fn waits(&self) -> Option<Arc<dyn WaitOps>> {
        Some(Arc::clone(&self.device) as Arc<dyn WaitOps>)
    }

    fn create_comp_channel(&self) -> Result<OwnedFd> {
        self.device.check("create_comp_channel")?;
        self.channels.create().map_err(|errno| self.device.error("create_comp_channel", errno))
    }
}

impl ContextOps<Soft> for Context {
    fn provider_name(&self) -> &'static str {
        "soft"
    }

    fn device(&self) -> &dyn DeviceOps {
        self
    }

    fn alloc_pd(&self) -> Result<Pd> {
        Pd::alloc(&self.device)
    }

    unsafe fn reg_mr(
        &self,
        pd: &Pd,
        addr: *mut u8,
        length: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<Mr> {
        // SAFETY: the caller fulfils the same contract.
        unsafe { Mr::register(&self.device, pd, addr, length, iova, access) }
    }

    unsafe fn rereg_mr(&self, mr: &mut Mr, change: &MrChange<'_, Soft>) -> Result<(), ReregError> {
        // SAFETY: the caller fulfils the same contract.
        unsafe { mr.rereg(&self.device, change) }
    }

    fn alloc_null_mr(&self, pd: &Pd) -> Result<Mr> {
        Mr::null(&self.device, pd)
    }

    fn advise_mr(&self, pd: &Pd, advice: Advice, flags: AdviseFlags, sges: &[Sge]) -> Result<()> {
        Mr::advise(&self.device, pd, advice, flags, sges)
    }

    /// Always false: nothing is pinned, and a forked child has no device.
    fn pins_memory(&self) -> bool {
        false
    }

    fn alloc_dm(&self, attr: &DmAttr) -> Result<Dm> {
        Dm::alloc(&self.device, attr)
    }

    fn reg_dm_mr(&self, pd: &Pd, dm: &Dm, offset: u64, length: u64, access: AccessFlags) -> Result<Mr> {
        Mr::register_dm(&self.device, pd, dm, offset, length, access)
    }

    fn alloc_td(&self) -> Result<Td> {
        Td::alloc(&self.device)
    }

    fn alloc_parent_domain(&self, attr: &ParentDomainAttr<'_, Soft>) -> Result<Pd> {
        Pd::alloc_parent(&self.device, attr)
    }

    fn create_cq(&self, parent_domain: Option<&Pd>, attr: &CqInitAttr<'_>) -> Result<(Cq, CqHandle)> {
        self.device.check("create_cq")?;
        let parent = parent_domain.map(|pd| pd.for_cq(&self.device, "create_cq")).transpose()?;
        let channel = attr.channel.map(|fd| self.channel(fd)).transpose()?;
        Cq::create(&self.device, attr, parent, channel, &self.events)
    }

    fn create_qp(&self, parents: &QpParents<'_, Soft>, attr: &QpInitAttr) -> Result<QpParts<Soft>> {
        Qp::create(&self.device, parents, attr, &self.events)
    }

    fn create_srq(&self, parents: &SrqParents<'_, Soft>, attr: &SrqInitAttr) -> Result<SrqParts<Soft>> {
        Srq::create(&self.device, parents, attr, &self.events)
    }

    fn open_xrcd(&self, file: Option<BorrowedFd<'_>>, oflags: i32) -> Result<Xrcd> {
        Xrcd::open(&self.device, file, oflags)
    }

    fn open_qp(&self, xrcd: &Xrcd, qp_num: u32, user_handle: u64) -> Result<QpParts<Soft>> {
        Qp::open(&self.device, xrcd, qp_num, user_handle, &self.events)
    }

    fn query_rt_values(&self) -> Result<RtValues> {
        self.device.check("query_rt_values")?;
        Ok(RtValues { raw_clock: self.device.now().0 })
    }

    fn create_ah(&self, pd: &Pd, attr: &AhAttr) -> Result<Ah> {
        Ah::create(&self.device, pd, attr)
    }

    fn alloc_mw(&self, pd: &Pd, mw_type: MwType) -> Result<Mw> {
        Mw::alloc(&self.device, pd, mw_type)
    }
}

/// Returns the only entry of the GID table, or `None` while no interface has the address.
fn gid_entry(device: &DeviceState) -> Option<GidEntry> {
    if !PortLink::on(&device.socket).has_gid {
        return None;
    }
    let name = device.interface().ok().flatten().map(|(name, _)| name);
    let index = name.and_then(|name| nix::net::if_::if_nametoindex(name.as_str()).ok());
    Some(GidEntry {
        gid: Gid(device.gid),
        gid_index: 0,
        port_num: limits::PORT.into(),
        gid_type: GidType::ROCE_V2,
        ndev_ifindex: index.unwrap_or(0),
    })
}
