//! [`KernelContext`]: the part of an open device shared by all providers of kernel devices.
//!
//! A provider wraps it in a context of the provider's type and adds queues, doorbells and address
//! vectors. Objects without driver-specific data are implemented here: protection domains, memory
//! regions, memory windows and DMA handles ([`KernelPd`], [`KernelMr`], [`KernelMw`],
//! [`KernelDmah`]). The module `flow` contains flow rules, flow actions, counters and tables of
//! work queues.
//!
//! # Safety
//! A [`KernelContext`] has the right to command its device ([`Uverbs`]). It uses the right for
//! queries and for the objects above. Each object destroys only itself. The context passes the
//! right on only through [`KernelContext::uverbs`] and [`Kernel::new`], which are unsafe.

mod flow;
mod groups;
mod limits;
mod objects;
mod right;

use core::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use uverbs_abi::ib_user_ioctl_verbs::IbUverbsCoreSupport;

use crate::channel::{DriverAttrs, Uhw, Uverbs};
use crate::cmd;
use crate::cmd::context::ContextInfo;
use crate::discovery::DeviceInfo;
use crate::errno::Errno;
use crate::error::{Error, Result};
use crate::provider::DeviceOps;
use crate::types::{AccessFlags, CompCntrCaps, DeviceAttr, DeviceAttrEx, GidEntry, LinkLayer, PortAttr};

pub use flow::{KernelCompCntr, KernelCounters, KernelFlow, KernelFlowAction, KernelRwqIndTable};
pub use groups::Groups;
pub use objects::{KernelDmah, KernelMr, KernelMw, KernelPd};
pub use right::Kernel;

/// An open kernel device, shared by all objects created on it.
#[derive(Debug)]
pub struct KernelContext {
    uverbs: Uverbs,
    ibdev_path: PathBuf,
    num_comp_vectors: u32,
    core_support: u64,
    /// The number of ports reported by netlink, which may exceed 255.
    phys_port_cnt: Option<u32>,
    /// The asynchronous event file, opened with the first object that can raise events, because a
    /// context used only for queries needs none.
    async_fd: OnceLock<OwnedFd>,
    fw_ver: fn(u64) -> String,
}

impl KernelContext {
    /// Opens a device whose driver has the id `driver_id`. `fw_ver` formats its firmware version.
    ///
    /// # Errors
    /// `ENODEV` for a device that is known to have another driver;
    /// [`Cause::File`](crate::Cause::File) if the device's file cannot be opened; any errno the
    /// kernel returns.
    pub fn open(device: &DeviceInfo, driver_id: u32, fw_ver: fn(u64) -> String) -> Result<Arc<Self>> {
        Self::open_uhw(device, driver_id, fw_ver, Uhw::none())
    }

    /// Opens a device like [`open`](Self::open), with the driver's part of the command in `uhw`.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    #[allow(unsafe_code)]
    pub fn open_uhw(
        device: &DeviceInfo,
        driver_id: u32,
        fw_ver: fn(u64) -> String,
        uhw: Uhw<'_>,
    ) -> Result<Arc<Self>> {
        if device.driver_id().is_some_and(|id| id.0 != driver_id) {
            return Err(Error::new("open_device", device.name(), Errno::NODEV));
        }
        // SAFETY: this module uses the right to command as `Uverbs` requires (see the top of the
        // file). The driver is the one reported by the kernel; if it reported none, it rejects
        // ioctls meant for another driver.
        let uverbs = unsafe { Uverbs::open(device, driver_id) }?;
        Self::with_ports(uverbs, device.ibdev_path(), fw_ver, uhw, device.phys_port_cnt())
    }

    /// Shares the context of a device's file opened by another owner, for example another process
    /// that sent the descriptor.
    ///
    /// # Errors
    /// `ENODEV` for a device known to have another driver; [`Cause::File`](crate::Cause::File) for
    /// a file of another device; `EOPNOTSUPP` if the driver does not share contexts; any other
    /// errno the kernel returns.
    pub fn import(
        device: &DeviceInfo,
        file: OwnedFd,
        driver_id: u32,
        fw_ver: fn(u64) -> String,
    ) -> Result<Arc<Self>> {
        Self::import_with(device, file, driver_id, fw_ver, DriverAttrs::none())
    }

    /// Shares a context like [`import`](Self::import). The query includes the attributes that the
    /// driver defines, in `driver`.
    ///
    /// # Errors
    /// The errors of [`import`](Self::import).
    #[allow(unsafe_code)]
    pub fn import_with(
        device: &DeviceInfo,
        file: OwnedFd,
        driver_id: u32,
        fw_ver: fn(u64) -> String,
        driver: DriverAttrs<'_>,
    ) -> Result<Arc<Self>> {
        if device.driver_id().is_some_and(|id| id.0 != driver_id) {
            return Err(Error::new("import_device", device.name(), Errno::NODEV));
        }
        // SAFETY: as in `open`. The other owner's objects have other handles, and objects created
        // from this context destroy only themselves.
        let uverbs = unsafe { Uverbs::import(device, file, driver_id) }?;
        Self::import_over(uverbs, device.ibdev_path(), fw_ver, driver)
    }

    /// Shares a context over a given command channel, such as a scripted kernel. `driver` contains
    /// the attributes that the driver defines.
    ///
    /// # Errors
    /// Any errno the kernel returns when the context is queried; notably `EOPNOTSUPP` if the driver
    /// does not share contexts.
    pub fn import_over(
        uverbs: Uverbs,
        ibdev_path: &Path,
        fw_ver: fn(u64) -> String,
        driver: DriverAttrs<'_>,
    ) -> Result<Arc<Self>> {
        let info = cmd::context::query_context(&uverbs, driver)?;
        Ok(Self::with_info(uverbs, ibdev_path, fw_ver, info, None))
    }

    /// Creates a context over a given command channel, such as a scripted kernel. `uhw` contains
    /// the driver's part of the command.
    ///
    /// # Errors
    /// Any errno the kernel returns for the command that creates the context.
    pub fn new(
        uverbs: Uverbs,
        ibdev_path: &Path,
        fw_ver: fn(u64) -> String,
        uhw: Uhw<'_>,
    ) -> Result<Arc<Self>> {
        Self::with_ports(uverbs, ibdev_path, fw_ver, uhw, None)
    }

    fn with_ports(
        uverbs: Uverbs,
        ibdev_path: &Path,
        fw_ver: fn(u64) -> String,
        uhw: Uhw<'_>,
        phys_port_cnt: Option<u32>,
    ) -> Result<Arc<Self>> {
        let info = cmd::context::get_context(&uverbs, uhw)?;
        if let Some(fd) = &info.async_fd {
            uverbs.keeps(fd.as_fd());
        }
        Ok(Self::with_info(uverbs, ibdev_path, fw_ver, info, phys_port_cnt))
    }

    fn with_info(
        uverbs: Uverbs,
        ibdev_path: &Path,
        fw_ver: fn(u64) -> String,
        info: ContextInfo,
        phys_port_cnt: Option<u32>,
    ) -> Arc<Self> {
        Arc::new(Self {
            uverbs,
            ibdev_path: ibdev_path.to_owned(),
            num_comp_vectors: info.num_comp_vectors,
            core_support: info.core_support,
            phys_port_cnt,
            async_fd: info.async_fd.map_or_else(OnceLock::new, OnceLock::from),
            fw_ver,
        })
    }

    /// Returns the device's attributes and the driver-specific attributes in `uhw`.
    ///
    /// # Errors
    /// The errors of [`DeviceOps::query_device_ex`].
    pub fn query_device_ex_uhw(&self, uhw: Uhw<'_>) -> Result<DeviceAttrEx> {
        let attr = cmd::device::query_device_ex(&self.uverbs, self.fw_ver, uhw)?;
        Ok(DeviceAttrEx { phys_port_cnt_ex: self.phys_port_cnt.unwrap_or(attr.phys_port_cnt_ex), ..attr })
    }

    /// Returns the interface for commanding the context.
    ///
    /// Providers call [`Kernel::uverbs`] instead, which is safe.
    ///
    /// # Safety
    /// The caller must use the right to command as [`Uverbs`] requires.
    #[allow(unsafe_code)]
    pub const unsafe fn uverbs(&self) -> &Uverbs {
        &self.uverbs
    }

    /// Returns a copy of the device file's descriptor, for another owner of the same context.
    ///
    /// # Safety
    /// Same as [`ContextOps::export_device`](crate::provider::ContextOps::export_device).
    ///
    /// # Errors
    /// `EOPNOTSUPP` for a channel without a file; any errno from `dup(2)`.
    #[allow(unsafe_code)]
    pub unsafe fn export(&self) -> Result<OwnedFd> {
        let error = |errno| self.uverbs.error("export_device", errno);
        let file = self.uverbs.cmd_fd().ok_or_else(|| error(Errno::OPNOTSUPP))?;
        file.try_clone().map_err(|io| error(Errno::from_io(&io)))
    }

    fn gid_entry(
        &self,
        port_num: u8,
        gid_index: u32,
        link_layer: impl FnOnce() -> Result<LinkLayer>,
    ) -> Result<Option<GidEntry>> {
        match cmd::gid::query_gid_entry(&self.uverbs, port_num, gid_index) {
            Ok(entry) => Ok(entry),
            Err(Some(error)) => Err(error),
            Err(None) => cmd::gid::sysfs_gid_entry(&self.ibdev_path, port_num, gid_index, link_layer()?)
                .map_err(|errno| self.uverbs.error("query_gid", outside_is_invalid(errno))),
        }
    }

    /// Returns the GID table with a single command; `None` if the kernel lacks the command or the
    /// table does not fit one reply.
    fn gid_table_at_once(&self) -> Result<Option<Vec<GidEntry>>> {
        match cmd::gid::query_gid_table(&self.uverbs) {
            Err(error) if error.errno == Errno::INVAL => Ok(None),
            reply => reply,
        }
    }

    /// Reads a port's GID table entry by entry and passes each valid entry to `visit`.
    fn read_gids(&self, port_num: u8, visit: &mut dyn FnMut(GidEntry) -> ControlFlow<()>) -> Result<()> {
        let port = self.query_port(port_num)?;
        for index in 0..port.gid_tbl_len {
            let Some(entry) = self.gid_entry(port_num, index, || Ok(port.link_layer))? else { continue };
            if visit(entry).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Returns the access rights without the optional rights that this kernel does not support.
    fn access_for_kernel(&self, access: AccessFlags) -> AccessFlags {
        if IbUverbsCoreSupport::from_bits_retain(self.core_support as _)
            .contains(IbUverbsCoreSupport::IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS)
        {
            access
        } else {
            access - AccessFlags::OPTIONAL_RANGE
        }
    }
}

impl DeviceOps for KernelContext {
    fn device_name(&self) -> &str {
        self.uverbs.device_name()
    }

    fn num_comp_vectors(&self) -> u32 {
        self.num_comp_vectors
    }

    fn async_fd(&self) -> Result<BorrowedFd<'_>> {
        if let Some(fd) = self.async_fd.get() {
            return Ok(fd.as_fd());
        }
        let fd = cmd::context::alloc_async_fd(&self.uverbs)?;
        // If two threads open a file at the same time, one of the files is closed.
        let kept = self.async_fd.get_or_init(|| fd).as_fd();
        self.uverbs.keeps(kept);
        Ok(kept)
    }

    fn query_device(&self) -> Result<DeviceAttr> {
        cmd::device::query_device(&self.uverbs, self.fw_ver)
    }

    fn query_device_ex(&self) -> Result<DeviceAttrEx> {
        self.query_device_ex_uhw(Uhw::none())
    }

    fn query_port(&self, port_num: u8) -> Result<PortAttr> {
        cmd::device::query_port(&self.uverbs, port_num).map_err(|error| self.explain_port(error, port_num))
    }

    fn query_port_speed(&self, port_num: u8) -> Result<u64> {
        match cmd::device::query_port_speed(&self.uverbs, port_num) {
            Ok(Some(speed)) => Ok(speed),
            Ok(None) => {
                let speed = self.query_port(port_num)?.speed_100mbps();
                speed.ok_or_else(|| self.uverbs.error("query_port_speed", Errno::OPNOTSUPP))
            }
            Err(error) => Err(self.explain_port(error, port_num)),
        }
    }

    fn query_gid_table(&self) -> Result<Vec<GidEntry>> {
        if let Some(entries) = self.gid_table_at_once()? {
            return Ok(entries);
        }
        let mut entries = Vec::new();
        let mut has_room = true;
        for port_num in 1..=self.query_device()?.phys_port_cnt {
            self.read_gids(port_num, &mut |entry| {
                has_room &= entries.try_reserve(1).is_ok();
                if !has_room {
                    return ControlFlow::Break(());
                }
                entries.push(entry);
                ControlFlow::Continue(())
            })?;
        }
        if has_room { Ok(entries) } else { Err(self.uverbs.error("query_gid_table", Errno::NOMEM)) }
    }

    fn visit_gids(&self, port_num: u8, visit: &mut dyn FnMut(GidEntry) -> ControlFlow<()>) -> Result<()> {
        let Some(entries) = self.gid_table_at_once()? else { return self.read_gids(port_num, visit) };
        let _ = entries.into_iter().filter(|entry| entry.port_num == u32::from(port_num)).try_for_each(visit);
        Ok(())
    }

    fn query_gid_entry(&self, port_num: u8, gid_index: u32) -> Result<Option<GidEntry>> {
        self.gid_entry(port_num, gid_index, || Ok(self.query_port(port_num)?.link_layer))
            .map_err(|error| self.explain_gid(error, port_num, gid_index))
    }

    fn query_pkey(&self, port_num: u8, index: u16) -> Result<u16> {
        cmd::gid::sysfs_pkey(&self.ibdev_path, port_num, index).map_err(|errno| {
            let error = self.uverbs.error("query_pkey", outside_is_invalid(errno));
            self.explain_pkey(error, port_num, index)
        })
    }

    fn create_comp_channel(&self) -> Result<OwnedFd> {
        cmd::context::create_comp_channel(&self.uverbs)
    }

    fn query_comp_cntr_caps(&self) -> Result<CompCntrCaps> {
        cmd::counters::query_comp_cntr_caps(&self.uverbs)
    }
}

/// Converts the errno for an index outside a sysfs table, whose file does not exist, to `EINVAL`.
fn outside_is_invalid(errno: Errno) -> Errno {
    if errno == Errno::NOENT { Errno::INVAL } else { errno }
}

#[cfg(test)]
mod tests;
