//! The open device: the kernel's context and the creation of rxe's objects.
//!
//! # Safety
//! The functions that register memory pass on their callers' guarantees unchanged.
//!
//! This file obtains the right to send commands to the context, once for the whole crate. The
//! [`Kernel`] does not leave the crate. The objects meet the requirements of
//! [`Uverbs`](verbs_core::channel::Uverbs). Each changes and destroys only the kernel object it
//! created, when its owner requests it. A queue pair posts only requests whose safety the callers
//! of the unsafe posting functions guarantee.
#![allow(unsafe_code)]

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use uverbs_abi::ib_user_ioctl_verbs::RdmaDriverId;
use verbs_core::discovery::DeviceInfo;
use verbs_core::fork::ForkLock;
use verbs_core::kernel::{Kernel, KernelContext, KernelDmah, KernelMw, KernelPd};
use verbs_core::provider::{
    ContextOps, DeviceOps, Driver, MrChange, NamedProvider, OpenedContext, QpParents, QpParts, ReregError,
    SrqParents, SrqParts, erase,
};
use verbs_core::types::{
    AccessFlags, Advice, AdviseFlags, AhAttr, CqInitAttr, DeviceCapFlags, DmahAttr, MrAttr, MwType,
    QpInitAttr, QpType, Sge, SrqInitAttr,
};
use verbs_core::{Cause, Errno, Error, Result};

use crate::ah::Ah;
use crate::cq::{Cq, CqHandle};
use crate::mr::Mr;
use crate::mr::Paged;
use crate::qp::Qp;
use crate::rxe::Rxe;
use crate::srq::Srq;

/// An open rxe device.
#[derive(Debug)]
pub struct Context {
    kernel: Kernel,
    paged: Arc<Paged>,
    caps: ForkLock<Option<DeviceCapFlags>>,
}

impl Context {
    /// Creates a context over the kernel's context of an rxe device, real or simulated.
    pub(crate) fn new(kernel: Arc<KernelContext>) -> Self {
        // SAFETY: the crate uses the right as argued at the head of this file.
        let kernel = unsafe { Kernel::new(kernel) };
        Self { kernel, paged: Arc::default(), caps: ForkLock::default() }
    }

    /// Returns the device's capabilities, notably for binding windows (Linux 6.1), flushes and
    /// atomic writes (Linux 6.2). A kernel without one of these capabilities does not know the
    /// opcode, so such requests are rejected before posting.
    pub(crate) fn caps(&self) -> DeviceCapFlags {
        self.caps.get_or_init(|| {
            // A kernel without the query is too old for these capabilities.
            self.kernel.query_device_ex().map_or(DeviceCapFlags::empty(), |attr| attr.device_cap_flags_ex)
        })
    }
}

impl NamedProvider for Rxe {
    const DRIVER: Driver = Driver {
        name: "rxe",
        driver_id: RdmaDriverId::RDMA_DRIVER_RXE.0,
        min_abi: 1,
        max_abi: 2,
        matches: named_rxe,
        devices: Vec::new,
        open: open_erased,
        import: Some(import_erased),
    };

    fn open(device: &DeviceInfo) -> Result<Context> {
        if !Self::DRIVER.has(device) {
            return Err(Error::new("open_device", device.name(), Errno::NODEV));
        }
        Self::DRIVER.check_abi("open_device", device)?;
        KernelContext::open(device, RdmaDriverId::RDMA_DRIVER_RXE.0, fw_ver).map(Context::new)
    }
}

/// Returns whether a device has a usual rxe name. Used if the kernel does not report the driver.
fn named_rxe(device: &DeviceInfo) -> bool {
    device.name().starts_with("rxe")
}

fn open_erased(device: &DeviceInfo) -> Result<OpenedContext> {
    Rxe::open(device).map(erase::<Rxe>)
}

fn import_erased(device: &DeviceInfo, file: OwnedFd) -> Result<OpenedContext> {
    Rxe::DRIVER.check_abi("import_device", device)?;
    let kernel = KernelContext::import(device, file, RdmaDriverId::RDMA_DRIVER_RXE.0, fw_ver)?;
    Ok(erase::<Rxe>(Context::new(kernel)))
}

/// Formats the firmware version of rxe devices: three 16-bit numbers.
pub(crate) fn fw_ver(raw: u64) -> String {
    format!("{}.{}.{}", (raw >> 32) & 0xffff, (raw >> 16) & 0xffff, raw & 0xffff)
}

impl ContextOps<Rxe> for Context {
    fn provider_name(&self) -> &'static str {
        Rxe::DRIVER.name
    }

    fn device(&self) -> &dyn DeviceOps {
        &**self.kernel
    }

    fn alloc_pd(&self) -> Result<KernelPd> {
        KernelPd::alloc(&self.kernel)
    }

    unsafe fn reg_mr(
        &self,
        pd: &KernelPd,
        addr: *mut u8,
        length: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<Mr> {
        // SAFETY: the caller makes the same promise.
        let region = unsafe { pd.reg_mr(addr, length, iova, access) }?;
        Ok(Mr::new(&self.kernel, &self.paged, region, access))
    }

    // `reg_mr_ex` keeps the trait's default, which sends the older `REG_MR` command: the newer
    // method does not pass the `iova` to rxe (seen on 7.2, where requests are rejected).

    unsafe fn reg_dmabuf_mr(
        &self,
        pd: &KernelPd,
        fd: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<Mr> {
        // SAFETY: the caller makes the same promise.
        let region = unsafe { pd.reg_dmabuf_mr(fd, offset, length, iova, access) }?;
        Ok(Mr::new(&self.kernel, &self.paged, region, access))
    }

    unsafe fn rereg_mr(&self, mr: &mut Mr, change: &MrChange<'_, Rxe>) -> Result<(), ReregError> {
        // SAFETY: the caller makes the same promise.
        unsafe { mr.rereg(change) }
    }

    fn advise_mr(&self, pd: &KernelPd, advice: Advice, flags: AdviseFlags, sges: &[Sge]) -> Result<()> {
        self.paged.advise(pd, advice, flags, sges)
    }

    fn alloc_dmah(&self, attr: &DmahAttr) -> Result<KernelDmah> {
        KernelDmah::alloc(&self.kernel, attr)
    }

    unsafe fn export_device(&self) -> Result<OwnedFd> {
        // SAFETY: the caller makes the same promise.
        unsafe { self.kernel.export() }
    }

    fn import_pd(&self, handle: u32) -> Result<KernelPd> {
        Ok(KernelPd::import(&self.kernel, handle))
    }

    fn import_mr(&self, pd: &KernelPd, handle: u32) -> Result<(Mr, MrAttr)> {
        let (region, attr) = pd.import_mr(handle)?;
        // Not added to the set, because the region may be pinned; advice about it is rejected.
        Ok((Mr::new(&self.kernel, &self.paged, region, AccessFlags::empty()), attr))
    }

    fn create_cq(&self, parent_domain: Option<&KernelPd>, attr: &CqInitAttr<'_>) -> Result<(Cq, CqHandle)> {
        if parent_domain.is_some() {
            let reason = "rxe has no parent domains, in which a completion queue could be made".into();
            let error = Error::new("create_cq", self.kernel.device_name(), Errno::OPNOTSUPP);
            return Err(error.because(Cause::Other { reason }));
        }
        Cq::create(&self.kernel, attr)
    }

    fn create_qp(&self, parents: &QpParents<'_, Rxe>, attr: &QpInitAttr) -> Result<QpParts<Rxe>> {
        let of_type = Cause::QpType { qp_type: attr.qp_type };
        let has_all = parents.pd.is_some() && parents.send_cq.is_some() && parents.recv_cq.is_some();
        if !has_all || parents.xrcd.is_some() {
            return Err(Error::new("create_qp", self.kernel.device_name(), Errno::OPNOTSUPP).because(of_type));
        }
        // Only these types have operations that depend on capabilities.
        let is_connected = matches!(attr.qp_type, QpType::RC | QpType::UC);
        let caps = if is_connected { self.caps() } else { DeviceCapFlags::empty() };
        Qp::create(&self.kernel, parents, attr, caps)
    }

    fn create_srq(&self, parents: &SrqParents<'_, Rxe>, attr: &SrqInitAttr) -> Result<SrqParts<Rxe>> {
        Srq::create(&self.kernel, parents.pd, attr)
    }

    fn create_ah(&self, pd: &KernelPd, attr: &AhAttr) -> Result<Ah> {
        Ah::create(&self.kernel, pd, attr)
    }

    fn alloc_mw(&self, pd: &KernelPd, mw_type: MwType) -> Result<KernelMw> {
        pd.alloc_mw(mw_type)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_firmware_version_is_three_numbers() {
        assert_eq!(fw_ver(0), "0.0.0");
        assert_eq!(fw_ver(0xffff_0001_0002_0003), "1.2.3");
    }
}
