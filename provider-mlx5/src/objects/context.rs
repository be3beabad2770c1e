//! The open device: the kernel's context and the creation of ConnectX objects.
//!
//! # Safety
//! The functions that register memory pass on their callers' guarantees unchanged.
#![allow(unsafe_code)]

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use uverbs_abi::mlx5_abi::Mlx5IbAllocPdResp;
use uverbs_abi::mlx5_user_ioctl_verbs::Mlx5IbUapiQueryPort;
use verbs_core::channel::{DriverAttrs, Uhw};
use verbs_core::discovery::DeviceInfo;
use verbs_core::kernel::{KernelDmah, KernelFlowAction, KernelMr, KernelMw, KernelPd, KernelRwqIndTable};
use verbs_core::provider::{
    ContextOps, DeviceOps, DmOps, Driver, FlowRule, MrChange, MrInitAttr, MrMemory, NamedProvider,
    OpenedContext, ParentDomainAttr, PdOps as _, QpExtras, QpParents, QpParts, ReregError, SrqParents,
    SrqParts, WqParents, WqParts, XrcdOps, erase,
};
use verbs_core::types::{
    AccessFlags, Advice, AdviseFlags, AhAttr, CqInitAttr, DmAttr, DmahAttr, FlowActionEspAttr, MrAttr,
    MwType, QpCreateAttr, QpInitAttr, RtValues, Sge, SrqInitAttr, WqInitAttr,
};
use verbs_core::{Cause, Errno, Error, Result};
use zerocopy::IntoBytes;

use crate::cmd;
use crate::device::regions::RegionInfo;
use crate::device::{DRIVER_ID, Device};
use crate::direct::{ClockInfo, ContextDirect, UarDirect};
use crate::doorbell::registers::Register;
use crate::doorbell::uar::Name;
use crate::objects::ah::Ah;
use crate::objects::counters::Counters;
use crate::objects::cq::{Cq, CqHandle};
use crate::objects::dm::Dm;
use crate::objects::flow::Flow;
use crate::objects::mlx5::Mlx5;
use crate::objects::mr::Mr;
use crate::objects::pd::{Pd, Td};
use crate::objects::qp::{Qp, ScatterToCqe};
use crate::objects::srq::Srq;
use crate::objects::wq::Wq;
use crate::objects::xrcd::Xrcd;
use crate::queue::cq::{CqeCompression, vendor_err_text};

/// An open ConnectX device.
#[derive(Debug)]
pub struct Context {
    device: Arc<Device>,
}

impl NamedProvider for Mlx5 {
    const DRIVER: Driver = Driver {
        name: "mlx5",
        driver_id: DRIVER_ID,
        min_abi: 1,
        max_abi: 1,
        matches: named_mlx5,
        devices: Vec::new,
        open: open_erased,
        import: Some(import_erased),
    };

    fn open(device: &DeviceInfo) -> Result<Context> {
        if !Self::DRIVER.has(device) {
            let reason = "mlx5 does not drive this device: open it as `Context`".into();
            let error = Error::new("open_device", device.name(), Errno::NODEV);
            return Err(error.because(Cause::Other { reason }));
        }
        Self::DRIVER.check_abi("open_device", device)?;
        Ok(Context { device: Device::open(device)? })
    }
}

/// Returns whether a device has a ConnectX name. Used if the kernel does not report the driver.
fn named_mlx5(device: &DeviceInfo) -> bool {
    device.name().starts_with("mlx5_")
}

fn open_erased(device: &DeviceInfo) -> Result<OpenedContext> {
    Mlx5::open(device).map(erase::<Mlx5>)
}

fn import_erased(device: &DeviceInfo, file: OwnedFd) -> Result<OpenedContext> {
    Mlx5::DRIVER.check_abi("import_device", device)?;
    Ok(erase::<Mlx5>(Context { device: Device::import(device, file)? }))
}

impl Context {
    /// Returns a context over a device.
    pub(crate) const fn over(device: Arc<Device>) -> Self {
        Self { device }
    }

    /// Returns the device. No object may use the context yet.
    #[cfg(test)]
    pub(crate) fn into_device(self) -> Arc<Device> {
        self.device
    }

    fn kernel(&self) -> &Arc<verbs_core::kernel::KernelContext> {
        &self.device.kernel
    }

    /// Rejects an empty region. The driver rejects it too, but logs a kernel warning if it
    /// registers memory through work requests.
    ///
    /// # References
    /// Linux `drivers/infiniband/hw/mlx5/mr.c`, `alloc_cacheable_mr`
    fn check_length(&self, verb: &'static str, length: usize) -> Result<()> {
        if length > 0 {
            return Ok(());
        }
        let cause = Cause::Other { reason: "the region has no bytes".into() };
        Err(self.device.error(verb, Errno::INVAL).because(cause))
    }

    /// Describes the device for direct access: see [`direct`](crate::direct).
    pub fn direct(&self) -> ContextDirect {
        self.device.direct()
    }

    /// Returns the kernel's conversion of the device's clock to nanoseconds since 1970.
    ///
    /// # Errors
    /// `EINVAL` if the kernel offers no conversion; `EBUSY` if the kernel keeps updating it.
    pub fn clock_info(&self) -> Result<ClockInfo> {
        self.device.clock.info().map_err(|errno| {
            let reason = match errno {
                Errno::BUSY => "the kernel does not finish an update of its conversion; try again",
                _ => "the kernel offers no conversion of the device's clock",
            };
            self.device.error("get_clock_info", errno).because(Cause::Other { reason: reason.into() })
        })
    }

    /// Creates a completion queue with entries of `cqe_size` bytes, either 64 or 128; `None`
    /// selects the value of the environment variable `MLX5_CQE_SIZE` or, if it is not set, 64.
    ///
    /// # Errors
    /// Same as [`create_cq`](ContextOps::create_cq); `EINVAL` for any other size.
    pub fn create_cq_sized(
        &self,
        parent_domain: Option<&Pd>,
        attr: &CqInitAttr<'_>,
        cqe_size: Option<u32>,
    ) -> Result<(Cq, CqHandle)> {
        self.create_cq_with(parent_domain, attr, cqe_size, None)
    }

    /// Creates a completion queue whose completions the device may compress. The device writes
    /// several similar completions as one entry and a few bytes per completion, which saves bus
    /// bandwidth. Polling expands them. `cqe_size` is as for
    /// [`create_cq_sized`](Self::create_cq_sized).
    ///
    /// Completions compressed together share the timestamp of the first completion.
    ///
    /// The environment variable `MLX5_ENABLE_CQE_COMPRESSION`, unless it is 0, enables compression
    /// for all of the process's queues that have 64-byte entries and no timestamps, if the device
    /// compresses [hashes](CqeCompression::Hash).
    ///
    /// # Errors
    /// Same as [`create_cq_sized`](Self::create_cq_sized); `EOPNOTSUPP` for a format or an entry
    /// size the device does not support for compression.
    ///
    /// # References
    /// `mlx5dv_create_cq(3)`
    #[doc(alias = "mlx5dv_create_cq")]
    pub fn create_cq_compressed(
        &self,
        parent_domain: Option<&Pd>,
        attr: &CqInitAttr<'_>,
        cqe_size: Option<u32>,
        compression: CqeCompression,
    ) -> Result<(Cq, CqHandle)> {
        self.create_cq_with(parent_domain, attr, cqe_size, Some(compression))
    }

    fn create_cq_with(
        &self,
        parent_domain: Option<&Pd>,
        attr: &CqInitAttr<'_>,
        cqe_size: Option<u32>,
        compression: Option<CqeCompression>,
    ) -> Result<(Cq, CqHandle)> {
        let parent = parent_domain
            .map(|pd| Ok::<_, Error>((pd.for_cq(&self.device)?, pd.allocator().cloned())))
            .transpose()?;
        Cq::create(&self.device, parent, attr, cqe_size, compression)
    }

    /// Creates a queue pair and selects whether its completions may contain received or fetched
    /// data.
    ///
    /// # Errors
    /// Same as [`create_qp_ex`](ContextOps::create_qp_ex).
    pub fn create_qp_scattering(
        &self,
        parents: &QpParents<'_, Mlx5>,
        attr: &QpInitAttr,
        extras: &QpExtras<'_, Mlx5>,
        scatter: ScatterToCqe,
    ) -> Result<QpParts<Mlx5>> {
        match extras.rss {
            Some(rss) => Qp::create_rss(&self.device, parents, attr, &extras.attr, rss),
            None => Qp::create(&self.device, parents, attr, &extras.attr, scatter),
        }
    }

    /// Returns the region object for a kernel region. `addr` is the memory's address in this
    /// process, if any.
    fn placed(
        &self,
        region: KernelMr,
        pd: &Pd,
        addr: Option<usize>,
        length: u64,
        iova: u64,
        access: AccessFlags,
    ) -> Mr {
        Mr::new(&self.device, region, RegionInfo::new(pd.handle(), addr, length, iova, access))
    }

    /// Allocates a doorbell register that accepts whole requests, and returns the register's page.
    ///
    /// # Errors
    /// `ENOMEM` if the device has no register left, or the environment permits none; `EOPNOTSUPP`
    /// if the driver allocated the registers with the context, because their numbers in the device
    /// are then unknown.
    pub fn take_uar(&self) -> Result<UarDirect> {
        let register = self.device.registers.take(&self.device.kernel);
        if register.is_shared() || register.is_beside_orphan() {
            let reason = "no doorbell register is left that no queue pair has, or MLX5_TOTAL_UUARS and \
                          MLX5_SHUT_UP_BF leave none; close queue pairs, or open another context";
            let cause = Cause::Other { reason: reason.into() };
            return Err(self.device.error("devx_alloc_uar", Errno::NOMEM).because(cause));
        }
        self.uar(register)
    }

    /// Returns the page with the context's shared registers, which take only 8-byte doorbells.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the driver allocated the registers with the context, because their numbers
    /// in the device are then unknown.
    pub fn shared_uar(&self) -> Result<UarDirect> {
        self.uar(self.device.registers.share())
    }

    fn uar(&self, register: Register) -> Result<UarDirect> {
        let Name::Page(page_id) = register.name() else {
            let reason = "the driver does not tell the numbers of registers that come with the context";
            let cause = Cause::Other { reason: reason.into() };
            return Err(self.device.error("devx_alloc_uar", Errno::OPNOTSUPP).because(cause));
        };
        Ok(UarDirect { register, page_id })
    }

    /// Returns the properties of a port on the device's switch.
    ///
    /// # Errors
    /// `EOPNOTSUPP` on kernels without the query; any other errno the kernel returns, notably
    /// `EINVAL` for a port that the device lacks.
    pub fn query_switch_port(&self, port_num: u32) -> Result<Mlx5IbUapiQueryPort> {
        cmd::query_port(self.device.kernel.uverbs(), port_num)
    }

    /// Writes the sysfs path of the device's data-direct function to `path`, followed by a null
    /// byte.
    ///
    /// # Errors
    /// `EOPNOTSUPP` on kernels without data direct; any other errno the kernel returns, notably
    /// `ENODEV` for a device without such a function, and `ENOSPC` for a buffer that is too short.
    pub fn data_direct_sysfs_path(&self, path: &mut [u8]) -> Result<()> {
        cmd::data_direct_sysfs_path(self.device.kernel.uverbs(), path)
    }
}

impl ContextOps<Mlx5> for Context {
    fn provider_name(&self) -> &'static str {
        Mlx5::DRIVER.name
    }

    fn device(&self) -> &dyn DeviceOps {
        &*self.device
    }

    fn vendor_err_text(&self, vendor_err: u32) -> Option<&'static str> {
        vendor_err_text(vendor_err)
    }

    fn alloc_pd(&self) -> Result<Pd> {
        let mut reply = Mlx5IbAllocPdResp::default();
        let kernel = KernelPd::alloc_uhw(self.kernel(), Uhw::reply(reply.as_mut_bytes()))?;
        Ok(Pd::new(&self.device, kernel, Some(reply.pdn)))
    }

    unsafe fn reg_mr(
        &self,
        pd: &Pd,
        addr: *mut u8,
        length: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<Mr> {
        self.device.check_regions("reg_mr")?;
        self.check_length("reg_mr", length)?;
        // SAFETY: the caller makes the same promise.
        let region = unsafe { pd.kernel().reg_mr(addr, length, iova, access) }?;
        let own = Some(addr.expose_provenance());
        Ok(self.placed(region, pd, own, length as u64, iova, access))
    }

    unsafe fn reg_mr_ex(&self, pd: &Pd, attr: &MrInitAttr<'_, Mlx5>) -> Result<Mr> {
        let MrInitAttr { memory, length, iova, access, dmah } = *attr;
        self.device.check_regions("reg_mr_ex")?;
        self.check_length("reg_mr_ex", length)?;
        // SAFETY: the caller makes the same promise.
        let region = unsafe { pd.kernel().reg_mr_ex(memory, length, iova, access, dmah) }?;
        let own = match memory {
            MrMemory::Addr(addr) => Some(addr.expose_provenance()),
            MrMemory::DmaBuf { .. } => None,
        };
        Ok(self.placed(region, pd, own, length as u64, iova, access))
    }

    unsafe fn reg_dmabuf_mr(
        &self,
        pd: &Pd,
        fd: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<Mr> {
        self.device.check_regions("reg_dmabuf_mr")?;
        // SAFETY: the caller makes the same promise.
        let region = unsafe { pd.kernel().reg_dmabuf_mr(fd, offset, length, iova, access) }?;
        Ok(self.placed(region, pd, None, length as u64, iova, access))
    }

    unsafe fn rereg_mr(&self, mr: &mut Mr, change: &MrChange<'_, Mlx5>) -> Result<(), ReregError> {
        let MrChange { memory, pd, access } = *change;
        if let Some((_, length, _)) = memory {
            self.check_length("rereg_mr", length).map_err(ReregError::unchanged)?;
        }
        // SAFETY: the caller makes the same promise.
        unsafe { mr.rereg((memory, pd.map(Pd::kernel), access)) }
    }

    fn alloc_null_mr(&self, _pd: &Pd) -> Result<Mr> {
        Mr::null(&self.device)
    }

    fn advise_mr(&self, pd: &Pd, advice: Advice, flags: AdviseFlags, sges: &[Sge]) -> Result<()> {
        pd.kernel().advise_mr(advice, flags, sges)
    }

    fn alloc_dm(&self, attr: &DmAttr) -> Result<Dm> {
        Dm::alloc(&self.device, attr)
    }

    fn reg_dm_mr(&self, pd: &Pd, dm: &Dm, offset: u64, length: u64, access: AccessFlags) -> Result<Mr> {
        const VERB: &str = "reg_dm_mr";
        if !Arc::ptr_eq(dm.device(), &self.device) {
            return Err(self
                .device
                .error(VERB, Errno::INVAL)
                .because(Cause::Foreign { what: "device memory" }));
        }
        dm.check(VERB, offset, length)?;
        self.device.check_regions(VERB)?;
        let region = pd.kernel().reg_dm_mr(dm.handle(), offset, length, access)?;
        Ok(self.placed(region, pd, None, length, 0, access))
    }

    fn alloc_dmah(&self, attr: &DmahAttr) -> Result<KernelDmah> {
        KernelDmah::alloc(self.kernel(), attr)
    }

    fn alloc_td(&self) -> Result<Td> {
        Ok(Td::alloc(&self.device))
    }

    fn alloc_parent_domain(&self, attr: &ParentDomainAttr<'_, Mlx5>) -> Result<Pd> {
        Pd::alloc_parent(&self.device, attr)
    }

    unsafe fn export_device(&self) -> Result<OwnedFd> {
        // SAFETY: the caller makes the same promise.
        unsafe { self.kernel().export() }
    }

    fn import_pd(&self, handle: u32) -> Result<Pd> {
        Ok(Pd::new(&self.device, KernelPd::import(self.kernel(), handle), None))
    }

    fn import_mr(&self, pd: &Pd, handle: u32) -> Result<(Mr, MrAttr)> {
        self.device.check_regions("import_mr")?;
        let (region, attr) = pd.kernel().import_mr(handle)?;
        let info = RegionInfo::new(pd.handle(), None, attr.length, attr.iova, AccessFlags::empty());
        Ok((Mr::imported(&self.device, region, info), attr))
    }

    fn import_dm(&self, handle: u32) -> Result<Dm> {
        Dm::import(&self.device, handle)
    }

    fn create_cq(&self, parent_domain: Option<&Pd>, attr: &CqInitAttr<'_>) -> Result<(Cq, CqHandle)> {
        self.create_cq_sized(parent_domain, attr, None)
    }

    fn create_qp(&self, parents: &QpParents<'_, Mlx5>, attr: &QpInitAttr) -> Result<QpParts<Mlx5>> {
        Qp::create(&self.device, parents, attr, &QpCreateAttr::default(), ScatterToCqe::Usual)
    }

    fn create_qp_ex(
        &self,
        parents: &QpParents<'_, Mlx5>,
        attr: &QpInitAttr,
        extras: &QpExtras<'_, Mlx5>,
    ) -> Result<QpParts<Mlx5>> {
        self.create_qp_scattering(parents, attr, extras, ScatterToCqe::Usual)
    }

    fn create_srq(&self, parents: &SrqParents<'_, Mlx5>, attr: &SrqInitAttr) -> Result<SrqParts<Mlx5>> {
        Srq::create(&self.device, parents, attr)
    }

    fn create_ah(&self, pd: &Pd, attr: &AhAttr) -> Result<Ah> {
        Ah::create(&self.device, pd.kernel(), attr)
    }

    fn query_rt_values(&self) -> Result<RtValues> {
        let cycles = self.device.clock.cycles();
        let raw_clock = cycles.ok_or_else(|| {
            let reason = "the driver maps no clock of the device".into();
            self.device.error("query_rt_values", Errno::OPNOTSUPP).because(Cause::Other { reason })
        })?;
        Ok(RtValues { raw_clock })
    }

    fn open_xrcd(&self, file: Option<BorrowedFd<'_>>, oflags: i32) -> Result<Xrcd> {
        Xrcd::open(&self.device, file, oflags)
    }

    fn open_qp(&self, xrcd: &Xrcd, qp_num: u32, user_handle: u64) -> Result<QpParts<Mlx5>> {
        Qp::open(&self.device, xrcd.handle(), qp_num, user_handle)
    }

    fn alloc_mw(&self, pd: &Pd, mw_type: MwType) -> Result<KernelMw> {
        pd.kernel().alloc_mw(mw_type)
    }

    fn create_wq(&self, parents: &WqParents<'_, Mlx5>, attr: &WqInitAttr) -> Result<WqParts<Mlx5>> {
        Wq::create(&self.device, parents, attr)
    }

    fn create_rwq_ind_table(&self, wqs: &[&Wq]) -> Result<KernelRwqIndTable> {
        Wq::create_table(&self.device, wqs)
    }

    fn create_flow(&self, qp: &Qp, rule: FlowRule<'_, Mlx5>) -> Result<Flow> {
        Flow::create(&self.device, qp, rule)
    }

    fn create_flow_action_esp(&self, attr: &FlowActionEspAttr) -> Result<KernelFlowAction> {
        KernelFlowAction::create_esp(self.kernel(), attr, DriverAttrs::none())
    }

    fn create_counters(&self) -> Result<Counters> {
        Counters::create(&self.device)
    }
}
