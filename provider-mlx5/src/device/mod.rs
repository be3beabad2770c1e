//! [`Device`]: the shared state of a context's objects and the negotiation with the kernel's driver
//! when the context is opened.
//!
//! The command that creates the context declares that completions may contain user indices
//! (version 1) and that this provider allocates doorbell registers one page at a time. Older
//! drivers may lack either:
//!
//! | driver | request | reply | result |
//! |---|---|---|---|
//! | Linux 5.8 and newer | all fields | no registers | registers are allocated for queue pairs |
//! | Linux 4.11 and newer | all fields | registers | the context's registers are used ([`uar`]) |
//! | Linux 4.5 and newer | up to `lib_caps` | registers | as above, but a page has one UAR |
//! | before Linux 4.5 | up to `max_cqe_version` | no version | opening fails |
//!
//! A driver that rejects a request with unknown fields gets a shorter request. Reply fields that
//! the driver does not know are 0, and 0 stands for the driver's behaviour before the field
//! existed. No object of this provider needs DevX, so the context is opened without it.
//!
//! `MLX5_DYN_UAR=0` in the environment requests registers with the context even on Linux 5.8 or
//! newer. Such a context cannot be imported, and the numbers of its registers in the device are
//! unknown (`mlx5dv_devx_alloc_uar`).
//!
//! # Safety
//! The command's input contains no addresses.
//!
//! This file obtains the right to send commands to the context, once for the whole crate. The
//! [`Kernel`] does not leave the crate. The objects meet the requirements of
//! [`Uverbs`](verbs_core::channel::Uverbs): each changes and destroys only the kernel object it
//! created, when its owner requests it. A queue posts only requests whose safety the callers of the
//! unsafe posting functions guarantee.
//!
//! # References
//! rdma-core `providers/mlx5/mlx5.c` (`mlx5_alloc_context`); Linux
//! `drivers/infiniband/hw/mlx5/main.c` (`mlx5_ib_alloc_ucontext`)
//!
//! [`uar`]: crate::doorbell::uar
#![allow(unsafe_code)]

pub(crate) mod clock;
mod query;
pub(crate) mod regions;
pub(crate) mod user_index;

use core::mem::offset_of;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use uverbs_abi::ib_user_ioctl_verbs::RdmaDriverId;
use uverbs_abi::mlx5_abi::{
    Mlx5IbAllocUcontextReqV2, Mlx5IbAllocUcontextResp, Mlx5IbAllocUcontextRespMask, Mlx5IbQueryDeviceResp,
    Mlx5LibCaps, Mlx5UserCmdsSuppUhw, Mlx5UserInlineMode,
};
use verbs_core::channel::{DriverAttrs, Uhw};
use verbs_core::discovery::DeviceInfo;
use verbs_core::fork::{ForkLock, ForkReadGuard, ForkRwLock, ForkWriteGuard, Lost};
use verbs_core::kernel::{Kernel, KernelContext};
use verbs_core::provider::DeviceOps as _;
use verbs_core::ring::barrier;
use verbs_core::types::{DeviceCapFlags, LinkLayer, PortFlags};
use verbs_core::{Cause, Errno, Error, Result, environment};
use zerocopy::IntoBytes;

use crate::device::clock::Clock;
use crate::device::regions::Regions;
use crate::device::user_index::{UserIndex, UserIndices};
use crate::direct::ContextDirect;
use crate::doorbell::dbrec::RecordPool;
use crate::doorbell::registers::Registers;

/// The number of registers requested from a driver that allocates them with the context. Queue
/// pairs without a dedicated register use them.
const TOTAL_BFREGS: u32 = 16;

/// The number of requested registers that the driver dedicates to one queue pair each.
const LOW_LATENCY_BFREGS: u32 = 4;

/// The environment variable that, if set to 0, requests registers with the context.
const DYN_UAR: &str = "MLX5_DYN_UAR";

/// The version of completion queue entries that contain user indices.
pub(crate) const CQE_VERSION: u8 = 1;

/// The shared state of a context's objects.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) kernel: Kernel,
    pub(crate) limits: Limits,
    pub(crate) registers: Arc<Registers>,
    pub(crate) clock: Clock,
    pub(crate) regions: Arc<Regions>,
    /// Whether the context was imported. Another owner of the device's file may have registered
    /// memory that this context can then import.
    pub(crate) is_imported: bool,
    pub(crate) records: Arc<RecordPool>,
    /// Held for reading while creating an object that completes to a queue, and for writing while
    /// destroying a completion queue, because the kernel may reuse its handle at once.
    cq_names: ForkRwLock<()>,
    user_indices: Arc<UserIndices>,
    /// Whether the driver accepts and returns enhanced connection establishment (ECE) options.
    pub(crate) has_ece: bool,
    /// Whether the device can write the system's time into completions.
    pub(crate) has_real_time: bool,
    /// Whether the device requires a copy of each frame's link layer header in the send queue
    /// entry.
    pub(crate) needs_l2_header: bool,
    /// The key of the null region. Reads through this key return zeros; writes are discarded.
    pub(crate) null_key: Option<u32>,
    /// Whether the driver resolves the Ethernet address for an address handle.
    pub(crate) resolves_ah: bool,
    caps: ForkLock<Option<DeviceCapFlags>>,
    /// The driver-specific part of the device's attributes.
    queried: ForkLock<Option<Mlx5IbQueryDeviceResp>>,
    /// The driver's reply to the command that creates the context.
    reply: Mlx5IbAllocUcontextResp,
    ports: ForkLock<Option<Arc<[Port]>>>,
}

/// The limits of a device, reported by its driver on opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// The maximum size of a send queue entry, in bytes.
    pub(crate) max_sq_desc_sz: u32,
    /// The maximum size of a receive queue entry, in bytes.
    pub(crate) max_rq_desc_sz: u32,
    /// The maximum number of blocks in a send queue.
    pub(crate) max_send_wqebb: u32,
    /// The maximum number of entries in a receive queue.
    pub(crate) max_recv_wr: u32,
    /// The maximum number of entries in a shared receive queue.
    pub(crate) max_srq_recv_wr: u32,
}

/// The port properties that address handles need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Port {
    pub(crate) is_ethernet: bool,
    pub(crate) needs_grh: bool,
    pub(crate) gid_tbl_len: u32,
}

impl Device {
    /// Opens a device.
    ///
    /// # Errors
    /// `ENODEV` for a device of another driver; `EOPNOTSUPP` for a driver or a device that is too
    /// old; any errno the kernel returns.
    pub(crate) fn open(info: &DeviceInfo) -> Result<Arc<Self>> {
        let has_dyn_uar = environment::variable(DYN_UAR).is_none_or(|value| value.trim() != "0");
        let (kernel, reply) =
            negotiate(has_dyn_uar, |uhw| KernelContext::open_uhw(info, DRIVER_ID, fw_ver, uhw))?;
        Self::new(kernel, &reply)
    }

    /// Opens a device through a file opened by another owner, and shares that owner's context.
    ///
    /// # Errors
    /// Same as [`open`](Self::open); `EINVAL` for a context created with registers, because the
    /// owners would use the same registers.
    pub(crate) fn import(info: &DeviceInfo, file: OwnedFd) -> Result<Arc<Self>> {
        use uverbs_abi::mlx5_user_ioctl_cmds::MLX5_IB_ATTR_QUERY_CONTEXT_RESP_UCTX;
        let mut reply = Mlx5IbAllocUcontextResp::default();
        let attr =
            verbs_core::channel::Attr::output(MLX5_IB_ATTR_QUERY_CONTEXT_RESP_UCTX, reply.as_mut_bytes());
        // SAFETY: the attribute is the driver's and lends the reply for the duration of the
        // command.
        let attrs = unsafe { DriverAttrs::new([attr]) };
        let kernel = KernelContext::import_with(info, file, DRIVER_ID, fw_ver, attrs)?;
        if reply.tot_bfregs != 0 {
            let reason = "the doorbell registers came with the context: its owner keeps them to itself";
            let cause = Cause::Other { reason: reason.into() };
            return Err(Error::new("import_device", info.name(), Errno::INVAL).because(cause));
        }
        let mut device = Self::new(kernel, &reply)?;
        if let Some(device) = Arc::get_mut(&mut device) {
            device.is_imported = true;
        }
        Ok(device)
    }

    /// Creates a context over the kernel's context, with the driver's reply.
    ///
    /// # Errors
    /// Same as [`open`](Self::open).
    pub(crate) fn new(kernel: Arc<KernelContext>, reply: &Mlx5IbAllocUcontextResp) -> Result<Arc<Self>> {
        // SAFETY: the crate uses the right as argued at the head of this file.
        let kernel = unsafe { Kernel::new(kernel) };
        let refused = |reason: &'static str| {
            let cause = Cause::Other { reason: reason.into() };
            kernel.uverbs().error("open_device", Errno::OPNOTSUPP).because(cause)
        };
        if !barrier::ORDERS_REGISTERS {
            return Err(refused("this architecture has no barriers for registers of a device"));
        }
        if reply.cqe_version != CQE_VERSION {
            return Err(refused(
                "completions do not carry numbers of the program: use Linux 4.5 or newer, and current \
                 firmware of the device",
            ));
        }
        let has = |bit| Mlx5IbAllocUcontextRespMask::from_bits_retain(reply.comp_mask).contains(bit);
        let commands = Mlx5UserCmdsSuppUhw::from_bits_retain(reply.cmds_supp_uhw);
        let registers = Registers::new(&kernel, reply)?;
        let null_key = has(Mlx5IbAllocUcontextRespMask::MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_DUMP_FILL_MKEY)
            .then_some(reply.dump_fill_mkey);
        Ok(Arc::new(Self {
            limits: Limits {
                max_sq_desc_sz: reply.max_sq_desc_sz.into(),
                max_rq_desc_sz: reply.max_rq_desc_sz.into(),
                max_send_wqebb: reply.max_send_wqebb,
                max_recv_wr: reply.max_recv_wr,
                max_srq_recv_wr: reply.max_srq_recv_wr,
            },
            registers: Arc::new(registers),
            clock: Clock::new(&kernel, reply),
            regions: Arc::new(Regions::new(null_key)),
            is_imported: false,
            records: Arc::default(),
            cq_names: ForkRwLock::default(),
            user_indices: Arc::default(),
            has_ece: has(Mlx5IbAllocUcontextRespMask::MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_ECE),
            has_real_time: has(Mlx5IbAllocUcontextRespMask::MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_REAL_TIME_TS),
            needs_l2_header: reply.eth_min_inline != Mlx5UserInlineMode::MLX5_USER_INLINE_MODE_NONE.0,
            null_key,
            resolves_ah: commands.contains(Mlx5UserCmdsSuppUhw::MLX5_USER_CMDS_SUPP_UHW_CREATE_AH),
            kernel,
            caps: ForkLock::default(),
            queried: ForkLock::default(),
            reply: *reply,
            ports: ForkLock::default(),
        }))
    }

    /// Prevents the destruction of completion queues while the guard lives.
    ///
    /// # Errors
    /// `ENODEV` in a forked child whose parent was destroying a completion queue.
    pub(crate) fn cqs(&self, verb: &'static str) -> Result<ForkReadGuard<'_, ()>> {
        self.cq_names.read().map_err(|lost| self.of_parent(verb, lost))
    }

    /// Prevents the creation of objects that complete to a queue while the guard lives.
    ///
    /// # Errors
    /// Same as [`cqs`](Self::cqs).
    pub(crate) fn cqs_to_destroy(&self, verb: &'static str) -> Result<ForkWriteGuard<'_, ()>> {
        self.cq_names.write().map_err(|lost| self.of_parent(verb, lost))
    }

    /// Checks that regions can be registered in this process.
    ///
    /// # Errors
    /// `ENODEV` in a forked child whose parent was changing the table of regions.
    pub(crate) fn check_regions(&self, verb: &'static str) -> Result<()> {
        if self.regions.is_lost() { Err(self.of_parent(verb, Lost)) } else { Ok(()) }
    }

    /// Returns the error for a verb that needs a lock held by another thread of the parent process
    /// at the fork.
    pub(crate) fn of_parent(&self, verb: &'static str, lost: Lost) -> Error {
        let reason =
            "another thread of the parent process was using the device at the fork; open the device again";
        self.error(verb, lost.into()).because(Cause::Other { reason: reason.into() })
    }

    /// Allocates a user index, which completions will contain.
    ///
    /// # Errors
    /// Same as [`UserIndices::take`].
    pub(crate) fn user_index(&self, verb: &'static str) -> Result<UserIndex> {
        self.user_indices.take().map_err(|errno| {
            if errno != Errno::NOMEM {
                return self.of_parent(verb, Lost);
            }
            let reason = "the context has as many queue pairs and shared receive queues as completions tell \
                          apart; close some, or open another context";
            self.kernel.uverbs().error(verb, Errno::NOMEM).because(Cause::Other { reason: reason.into() })
        })
    }

    /// Returns the device's capabilities; empty if the query fails.
    fn caps(&self) -> DeviceCapFlags {
        let known = *self.caps.lock_or(|| None);
        known.unwrap_or_else(|| match self.kernel.query_device() {
            Ok(attr) => self.caps.get_or_init(|| attr.device_cap_flags),
            Err(_) => DeviceCapFlags::empty(),
        })
    }

    /// Returns whether the device supports memory windows bound by work requests.
    pub(crate) fn has_windows(&self) -> bool {
        self.caps().intersects(DeviceCapFlags::MEM_WINDOW | DeviceCapFlags::MEM_WINDOW_TYPE_2B)
    }

    /// Returns whether the device computes and verifies the checksums of frames.
    pub(crate) fn has_ip_csum(&self) -> bool {
        self.caps().contains(DeviceCapFlags::RAW_IP_CSUM)
    }

    /// Returns the driver-specific part of the device's attributes.
    pub(crate) fn queried(&self) -> Result<Mlx5IbQueryDeviceResp> {
        let known = *self.queried.lock_or(|| None);
        if let Some(queried) = known {
            return Ok(queried);
        }
        let (_, reply) = self.query_all()?;
        Ok(self.queried.get_or_init(|| reply))
    }

    /// Describes the device for direct access.
    pub(crate) fn direct(&self) -> ContextDirect {
        let mask = Mlx5IbAllocUcontextRespMask::from_bits_retain(self.reply.comp_mask);
        ContextDirect {
            cqe_version: self.reply.cqe_version,
            has_real_time: mask
                .contains(Mlx5IbAllocUcontextRespMask::MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_REAL_TIME_TS),
            has_blue_flame: self.reply.bf_reg_size > 0,
            max_dynamic_registers: self.reply.num_dyn_bfregs,
            max_clock_info_update_nsec: self.clock.overflow_period(),
            core_clock: self.clock.register(),
            flow_action_flags: self.reply.flow_action_flags.into(),
            // Same as libmlx5, which opens a device even if its query fails.
            queried: match self.has_own_attrs() {
                true => self.queried().unwrap_or_default(),
                false => Mlx5IbQueryDeviceResp::default(),
            },
        }
    }

    /// Returns whether the driver adds driver-specific attributes to the device query. Other
    /// drivers reject a query for them.
    pub(crate) fn has_own_attrs(&self) -> bool {
        let commands = Mlx5UserCmdsSuppUhw::from_bits_retain(self.reply.cmds_supp_uhw);
        commands.contains(Mlx5UserCmdsSuppUhw::MLX5_USER_CMDS_SUPP_UHW_QUERY_DEVICE)
    }

    /// Returns the properties of a port; `None` if the port does not exist.
    ///
    /// # Errors
    /// Any errno the kernel returns for the port queries.
    pub(crate) fn port(&self, port_num: u8) -> Result<Option<Port>> {
        let known = self.ports.lock_or(|| None).clone();
        let ports = match known {
            Some(ports) => ports,
            None => {
                let count = self.kernel.query_device()?.phys_port_cnt;
                let query = |port_num| {
                    let attr = self.kernel.query_port(port_num)?;
                    let is_ethernet = attr.link_layer == LinkLayer::ETHERNET;
                    let needs_grh = attr.flags.contains(PortFlags::GRH_REQUIRED);
                    Ok(Port { is_ethernet, needs_grh, gid_tbl_len: attr.gid_tbl_len })
                };
                let ports: Arc<[Port]> = (1..=count).map(query).collect::<Result<_>>()?;
                *self.ports.lock_or(|| None) = Some(Arc::clone(&ports));
                ports
            }
        };
        Ok(usize::from(port_num).checked_sub(1).and_then(|port| ports.get(port)).copied())
    }

    /// Returns the error for a queue whose memory, `bytes` long, could not be allocated.
    pub(crate) fn short(&self, verb: &'static str, errno: Errno, bytes: usize) -> Error {
        let error = self.error(verb, errno);
        if errno == Errno::NOMEM { error.because(Cause::Allocation { bytes: bytes as u64 }) } else { error }
    }

    /// Returns an error with this verb and device.
    pub(crate) fn error(&self, verb: &'static str, errno: Errno) -> Error {
        self.kernel.uverbs().error(verb, errno)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // The kernel frees the register pages with the last owner of the file. Another owner,
        // however, may open and close contexts over the file at any time.
        if self.is_imported {
            self.registers.free(&self.kernel);
        }
    }
}

/// Opens a context with the longest request the driver accepts and returns the driver's reply.
///
/// # Errors
/// The driver's errno for the shortest request.
fn negotiate(
    has_dyn_uar: bool,
    mut open: impl FnMut(Uhw<'_>) -> Result<Arc<KernelContext>>,
) -> Result<(Arc<KernelContext>, Mlx5IbAllocUcontextResp)> {
    let dyn_uar = if has_dyn_uar { Mlx5LibCaps::MLX5_LIB_CAP_DYN_UAR } else { Mlx5LibCaps::empty() };
    let request = Mlx5IbAllocUcontextReqV2 {
        total_num_bfregs: TOTAL_BFREGS,
        num_low_latency_bfregs: LOW_LATENCY_BFREGS,
        max_cqe_version: CQE_VERSION,
        lib_caps: (Mlx5LibCaps::MLX5_LIB_CAP_4K_UAR | dyn_uar).bits(),
        ..Default::default()
    };
    let mut with = |len: usize| {
        let mut reply = Mlx5IbAllocUcontextResp::default();
        // SAFETY: the request consists of numbers.
        let uhw = unsafe { Uhw::reply(reply.as_mut_bytes()).with_input(&request.as_bytes()[..len]) };
        open(uhw).map(|context| (context, reply))
    };
    let is_unknown = |error: &Error| matches!(error.errno, Errno::OPNOTSUPP | Errno::INVAL);
    let shorter = |error: Error| if is_unknown(&error) { Ok(()) } else { Err(error) };
    for len in [request.as_bytes().len(), offset_of!(Mlx5IbAllocUcontextReqV2, lib_caps)] {
        match with(len) {
            Ok(opened) => return Ok(opened),
            Err(error) => shorter(error)?,
        }
    }
    with(offset_of!(Mlx5IbAllocUcontextReqV2, max_cqe_version))
}

/// The kernel's id of the mlx5 driver.
pub(crate) const DRIVER_ID: u32 = RdmaDriverId::RDMA_DRIVER_MLX5.0;

/// The tag of address vectors from this provider.
pub(crate) const AV_TAG: u32 = DRIVER_ID;

/// Formats the firmware version: three 16-bit numbers.
pub(crate) fn fw_ver(raw: u64) -> String {
    format!("{}.{}.{:04}", (raw >> 32) & 0xffff, (raw >> 16) & 0xffff, raw & 0xffff)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;

    use uverbs_abi::ib_user_verbs::IbUverbsQueryDeviceResp;
    use verbs_core::channel::{Expect, Reply, Scripted, Uverbs};
    use verbs_core::discovery::{DevNum, DeviceParts, NodeType};
    use verbs_core::provider::NamedProvider as _;
    use verbs_core::ring::{Region, page_size};
    use verbs_core::types::Guid;

    use super::*;
    use crate::doorbell::uar::Name;
    pub(crate) use crate::paper::NULL_KEY;
    use crate::paper::{PaperDevice, REPLY};

    /// Opens a kernel context over a script.
    fn context(script: &Scripted, uhw: Uhw<'_>) -> Result<Arc<KernelContext>> {
        // SAFETY: the kernel is a script without a device.
        let uverbs = unsafe { Uverbs::new(Box::new(script.clone()), DRIVER_ID, "mlx5_0") };
        KernelContext::new(uverbs, Path::new("/nonexistent"), fw_ver, uhw)
    }

    /// Expects any command and replies as the kernel and the driver do to the creation of a
    /// context.
    fn opened(reply: &[u8]) -> Expect {
        Expect::anything(Reply::outputs([&1_u32.to_ne_bytes(), &0_u64.to_ne_bytes(), reply]))
    }

    /// Returns a context over a scripted kernel.
    pub(crate) fn kernel() -> (Kernel, Scripted) {
        let script = Scripted::new([opened(&[])]);
        // SAFETY: the kernel is a script without a device.
        (unsafe { Kernel::new(context(&script, Uhw::none()).unwrap()) }, script)
    }

    /// Opens a device over a scripted kernel.
    pub(crate) fn device() -> (Arc<Device>, Scripted) {
        // SAFETY: the kernel is a script without a device.
        let PaperDevice { context, script } = unsafe { PaperDevice::new(1024) };
        (context.into_device(), script)
    }

    /// Opens a device whose context has 2 registers from the start and may allocate up to
    /// `num_dyn_bfregs` more.
    pub(crate) fn with_registers(num_dyn_bfregs: u32) -> (Arc<Device>, Scripted) {
        let (kernel, script) = kernel();
        script.expect_map(0x300 * page_size() as u64, page_size(), Region::plain(page_size()));
        let reply = Mlx5IbAllocUcontextResp { tot_bfregs: 2, num_dyn_bfregs, ..REPLY };
        (Device::new(Arc::clone(&kernel), &reply).unwrap(), script)
    }

    /// Returns a device with one Ethernet port, whose driver resolves Ethernet addresses.
    pub(crate) fn ethernet() -> (Arc<Device>, Scripted) {
        let (mut device, script) = device();
        let one = Arc::get_mut(&mut device).expect("no object has it");
        one.ports =
            ForkLock::new(Some([Port { is_ethernet: true, needs_grh: true, gid_tbl_len: 256 }].into()));
        one.resolves_ah = true;
        (device, script)
    }

    #[test]
    fn a_context_that_shares_its_file_frees_its_pages_and_another_leaves_them_to_the_kernel() {
        let (mut shared, script) = device();
        Arc::get_mut(&mut shared).expect("no object has it").is_imported = true;
        let page = [2_u32.to_ne_bytes(), 4096_u32.to_ne_bytes(), 7_u32.to_ne_bytes()];
        let reply = Reply::outputs([&page[0], &0x4000_u64.to_ne_bytes(), &page[1], &page[2]]);
        let free = |text| Expect::command(text, Reply::ok());
        script.expect([
            Expect::anything(reply),
            free("ioctl 4104.4097: 0x1000 handle 2"),
            free("ioctl 4104.4097: 0x1000 handle 1"),
        ]);
        script.expect_map(0x4000, 4096, Region::plain(4096));
        // Both registers belong to one page, which is freed once.
        drop([(); 2].map(|()| shared.registers.take(&shared.kernel)));
        drop(shared);
        assert_eq!(script.remaining(), 0);
        let (own, script) = device();
        let before = script.seen().len();
        drop(own);
        assert_eq!(script.seen().len(), before);
    }

    #[test]
    fn what_the_device_can_do_is_asked_again_after_a_failure_and_then_known() {
        let (device, script) = device();
        script.expect([Expect::anything(Reply::Errno(Errno::INTR))]);
        assert!(!device.has_windows());
        let reply = IbUverbsQueryDeviceResp { device_cap_flags: 1 << 17, ..Default::default() };
        script.expect([Expect::anything(Reply::outputs([reply.as_bytes()]))]);
        assert!(device.has_windows() && device.has_windows());
        assert_eq!(script.remaining(), 0);
    }

    #[test]
    fn a_firmware_version_is_three_numbers_of_which_the_last_has_four_digits() {
        assert_eq!(fw_ver(0x0010_001c_07d6), "16.28.2006");
        assert_eq!(fw_ver(0x0010_001c_0006), "16.28.0006");
    }

    /// The request: 16 registers, 4 of them low-latency, no flags, then the completion version and
    /// the library's capabilities.
    const FIRST: &str = "10000000040000000000000000000000";
    const VERSION: &str = "0100000000000000";

    /// Expects the command that creates a context, with the request `request`.
    fn get_context(request: &str, reply: Reply) -> Expect {
        let len = size_of::<Mlx5IbAllocUcontextResp>();
        let text = format!(
            "ioctl 0.3: 0x0 out 4 bytes, 0x1 out 8 bytes, 0x1000 in {request}, 0x1001 out {len} bytes"
        );
        Expect::command(&text, reply)
    }

    fn replied(reply: &[u8]) -> Reply {
        Reply::outputs([&1_u32.to_ne_bytes(), &0_u64.to_ne_bytes(), reply])
    }

    fn negotiated(script: &Scripted, has_dyn_uar: bool) -> Result<Mlx5IbAllocUcontextResp> {
        Ok(negotiate(has_dyn_uar, |uhw| context(script, uhw))?.1)
    }

    #[test]
    fn a_current_driver_takes_the_whole_request() {
        for (has_dyn_uar, caps) in [(true, "0300000000000000"), (false, "0100000000000000")] {
            let request = format!("{FIRST}{VERSION}{caps}");
            let script = Scripted::new([get_context(&request, replied(REPLY.as_bytes()))]);
            let reply = negotiated(&script, has_dyn_uar).unwrap();
            assert_eq!(reply.as_bytes(), REPLY.as_bytes());
        }
    }

    #[test]
    fn a_longer_reply_is_cut_off_and_a_shorter_one_ends_in_zeros() {
        let whole = REPLY.as_bytes();
        for len in 0..whole.len() + 16 {
            let mut reply = whole.to_vec();
            // Fields of a newer driver.
            reply.resize(len, 0xff);
            let script = Scripted::new([Expect::anything(replied(&reply))]);
            let mut expected = whole.to_vec();
            expected.iter_mut().skip(len).for_each(|byte| *byte = 0);
            assert_eq!(negotiated(&script, true).unwrap().as_bytes(), expected, "{len} bytes");
        }
    }

    #[test]
    fn a_device_of_another_abi_is_refused_with_its_version_and_the_range() {
        let of_abi = |abi_version| {
            let parts = DeviceParts {
                name: "mlx5_0".into(),
                dev_name: "uverbs0".into(),
                dev: DevNum { major: 1, minor: 3 },
                node_type: NodeType::CA,
                node_guid: Guid(1),
                index: None,
                driver_id: Some(RdmaDriverId::RDMA_DRIVER_MLX5),
                abi_version,
                phys_port_cnt: Some(1),
                ibdev_path: "/nonexistent".into(),
                // A file other than the device's.
                cdev_path: "/dev/null".into(),
            };
            // SAFETY: opening the device is rejected.
            unsafe { DeviceInfo::from_parts(parts) }
        };
        for abi in [0, 2, u32::MAX] {
            let error = crate::Mlx5::open(&of_abi(abi)).unwrap_err();
            assert_eq!(error.errno, Errno::NODEV);
            let both = format!("ABI version {abi}, the provider mlx5 1 to 1");
            assert!(error.to_string().contains(&both), "{error}");
        }
        let error = crate::Mlx5::open(&of_abi(1)).unwrap_err();
        assert!(matches!(error.cause, Cause::File { .. }), "the file is next: {error}");
    }

    #[test]
    fn an_older_driver_gets_a_shorter_request() {
        for errno in [Errno::OPNOTSUPP, Errno::INVAL] {
            let whole = format!("{FIRST}{VERSION}0300000000000000");
            let of_4_5 = format!("{FIRST}{VERSION}");
            let refused = |request: &str| get_context(request, Reply::Errno(errno));
            let script = Scripted::new([
                refused(&whole),
                get_context(&of_4_5, replied(&REPLY.as_bytes()[..48])),
                refused(&whole),
                refused(&of_4_5),
                get_context(FIRST, replied(&REPLY.as_bytes()[..40])),
                refused(&whole),
                refused(&of_4_5),
                refused(FIRST),
            ]);
            let versions = [(); 2].map(|()| negotiated(&script, true).unwrap().cqe_version);
            assert_eq!(versions, [1, 0]);
            assert_eq!(negotiated(&script, true).unwrap_err().errno, errno);
        }
    }

    #[test]
    fn a_failure_that_is_not_of_the_request_is_not_tried_again() {
        for errno in [Errno::NOMEM, Errno::AGAIN, Errno::IO] {
            let script = Scripted::new([Expect::anything(Reply::Errno(errno))]);
            assert_eq!(negotiated(&script, true).unwrap_err().errno, errno);
        }
    }

    /// Opens a device whose driver replies with only `len` bytes and allocates the registers with
    /// the context.
    fn with_reply_of(len: usize) -> Result<Arc<Device>> {
        let (kernel, script) = kernel();
        script.expect_map(0x300 * page_size() as u64, page_size(), Region::plain(page_size()));
        let mut reply = Mlx5IbAllocUcontextResp {
            tot_bfregs: 2,
            cmds_supp_uhw: Mlx5UserCmdsSuppUhw::MLX5_USER_CMDS_SUPP_UHW_CREATE_AH.bits(),
            eth_min_inline: Mlx5UserInlineMode::MLX5_USER_INLINE_MODE_NONE.0,
            num_dyn_bfregs: 1024,
            comp_mask: REPLY.comp_mask,
            ..REPLY
        };
        reply.as_mut_bytes()[len..].fill(0);
        if len <= offset_of!(Mlx5IbAllocUcontextResp, dump_fill_mkey) {
            // A driver sets the bits of the fields it supports.
            reply.comp_mask = 0;
        }
        Device::new(Arc::clone(&kernel), &reply)
    }

    #[test]
    fn fields_that_a_driver_does_not_report_have_the_meaning_of_before() {
        macro_rules! until {
            ($field:ident) => {
                with_reply_of(offset_of!(Mlx5IbAllocUcontextResp, $field))
            };
        }
        let error = until!(cqe_version).unwrap_err();
        assert_eq!(error.errno, Errno::OPNOTSUPP);
        assert!(error.to_string().contains("Linux 4.5"), "{error}");
        // The driver does not resolve addresses, and the device needs a header in each entry.
        let device = until!(cmds_supp_uhw).unwrap();
        assert_eq!((device.resolves_ah, device.needs_l2_header), (false, true));
        let device = until!(eth_min_inline).unwrap();
        assert_eq!((device.resolves_ah, device.needs_l2_header), (true, true));
        // A page of registers has one UAR, and no more can be allocated.
        let device = until!(log_uar_size).unwrap();
        assert_eq!((device.needs_l2_header, device.null_key), (false, None));
        assert_eq!(device.registers.take(&device.kernel).name(), Name::Chosen);
        assert_eq!(device.direct().max_dynamic_registers, 0);
        // The driver does not report a key that discards writes; the missing field reads as 0.
        let device = until!(dump_fill_mkey).unwrap();
        assert_eq!((device.null_key, device.direct().max_dynamic_registers), (None, 1024));
        let device = with_reply_of(size_of::<Mlx5IbAllocUcontextResp>()).unwrap();
        assert_eq!(device.null_key, Some(NULL_KEY));
    }

    #[test]
    fn registers_that_came_with_the_context_are_the_first_that_arm_and_the_last_that_are_taken() {
        let (device, script) = with_registers(1024);
        script.expect_map(0x600 * page_size() as u64, page_size(), Region::plain(page_size()));
        let names = [(); 3].map(|()| {
            let register = device.registers.take(&device.kernel);
            let name = register.name();
            core::mem::forget(register);
            name
        });
        // The second page is rejected.
        assert_eq!(names, [Name::Later(0), Name::Later(0), Name::Chosen]);
        assert_eq!(device.registers.arm_page_id(), None);
    }
}
