//! [`Cq`]: the completion queue as a kernel object and its event requests.
//!
//! ```text
//!   req_notify   doorbell record: number of events, kind, consumer's index ──► register
//! ```
//!
//! An event request contains the number of events read by the program. The device raises at most
//! one event per number, so a record that the device reads late does not raise a second event.
//!
//! # Safety
//! The device uses the queue's memory from the command that creates or resizes the queue until the
//! command that destroys it. The kernel pins the pages, so a queue dropped without being destroyed
//! may be unmapped; its doorbell record then stays in use.
//!
//! # References
//! `ibv_create_cq(3)`, `ibv_req_notify_cq(3)`, `ibv_resize_cq(3)`; rdma-core
//! `providers/mlx5/verbs.c` (`create_cq`), `cq.c` (`mlx5_arm_cq`)
#![allow(unsafe_code)]

use core::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use uverbs_abi::mlx5_abi::{Mlx5IbCreateCq, Mlx5IbCreateCqFlags, Mlx5IbCreateCqResp, Mlx5IbResizeCq};
use uverbs_abi::mlx5_user_ioctl_cmds::MLX5_IB_ATTR_CREATE_CQ_UAR_INDEX;
use verbs_core::channel::{Attr, DriverAttrs, Uhw};
use verbs_core::fork::Lost;
use verbs_core::provider::{CqOps, Destroy, DeviceOps as _, EventsRead};
use verbs_core::types::{CqFlags, CqInitAttr, CqModeration, CqWcFlags, Wc};
use verbs_core::{Cause, Errno, Error, Result, cmd, environment, explain};
use zerocopy::IntoBytes;

use crate::device::Device;
use crate::direct::{CqDirect, QueueDirect};
use crate::doorbell::dbrec::Slot;
use crate::doorbell::{ArmRegister, Record};
use crate::memory::{Allocator, QueueMemory, Resource};
use crate::queue::cq::{
    COMPRESSION_VARIABLE, CQE_FIELDS, Completion, CqeCompression, Optional, Poller, Ring, SharedCq,
};

/// libmlx5's environment variable for the size of an entry.
const SIZE: &str = "MLX5_CQE_SIZE";

/// Returns the size of an entry in bytes: the program's choice, otherwise the environment's,
/// otherwise 64.
///
/// # Errors
/// [`Cause::Other`] for an invalid entry size.
fn stride(asked: Option<u32>, variable: Option<String>) -> Result<usize, Cause> {
    let of_environment = || variable.map(|value| value.trim().parse().unwrap_or(0));
    match asked.or_else(of_environment).map_or(CQE_FIELDS, |size| size as usize) {
        size @ (64 | 128) => Ok(size),
        _ => Err(Cause::Other { reason: "an entry of a completion queue has 64 or 128 bytes".into() }),
    }
}

/// The maximum number of entries in a queue: its counters have 24 bits and must distinguish two
/// rounds through the queue.
const MAX_ENTRIES: u32 = 1 << 22;

/// The value of `any_at` before the first event request.
const NEVER: u64 = u64::MAX;

/// A completion queue.
pub struct Cq {
    poller: Poller,
    handle: u32,
    cqn: u32,
    entries: u32,
    /// The size of an entry, in bytes.
    stride: usize,
    /// The number of events the program has read.
    events: Arc<AtomicU32>,
    /// The value of `events` at the last request for an event on any completion; [`NEVER`] before
    /// the first such request.
    any_at: AtomicU64,
    arm_record: Record,
    arm: ArmRegister,
    slot: Slot,
    memory: QueueMemory,
    device: Arc<Device>,
    /// The parent domain's allocator, if it has one.
    allocator: Option<Allocator>,
    /// A reference that keeps the queue's parent domain in use.
    _parent: Option<Arc<()>>,
}

/// A handle to a completion queue, for queue pairs that complete to it. It is usable while another
/// thread polls the queue.
#[derive(Clone)]
pub struct CqHandle {
    pub(crate) handle: u32,
    pub(crate) shared: Arc<SharedCq>,
    pub(crate) device: Arc<Device>,
}

impl CqHandle {
    /// Checks that an object on a device can complete to this queue. [`Device::cqs`] must be held
    /// from this call to the end of the command.
    ///
    /// # Errors
    /// `EINVAL` for a queue of another device and for a destroyed queue, whose handle may now name
    /// another queue; `ENODEV` in a forked child whose parent was using the queue.
    pub(crate) fn check(&self, device: &Arc<Device>, verb: &'static str) -> Result<()> {
        if !Arc::ptr_eq(&self.device, device) || self.shared.is_over() {
            let cause = Cause::Foreign { what: "completion queue" };
            return Err(device.error(verb, Errno::INVAL).because(cause));
        }
        if self.shared.is_lost() { Err(device.of_parent(verb, Lost)) } else { Ok(()) }
    }
}

impl fmt::Debug for CqHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CqHandle({})", self.handle)
    }
}

/// Returns the number of entries in a queue for at least `cqe` completions; the device keeps one
/// entry free.
fn entries_for(cqe: u32) -> Result<u32, Cause> {
    explain::within("cqe", cqe.into(), 1, (MAX_ENTRIES - 1).into())?;
    Ok((cqe + 1).next_power_of_two())
}

/// Returns whether the device writes the system's time into the completions of a queue with these
/// fields: the device supports this, and the program does not also request the device's clock.
fn is_real_time(device: &Device, asked: CqWcFlags) -> bool {
    device.has_real_time
        && asked.contains(CqWcFlags::COMPLETION_TIMESTAMP_WALLCLOCK)
        && !asked.contains(CqWcFlags::COMPLETION_TIMESTAMP)
}

/// Returns which of the requested fields completions can contain.
fn fields(device: &Device, asked: CqWcFlags) -> CqWcFlags {
    let wall_clock = CqWcFlags::COMPLETION_TIMESTAMP_WALLCLOCK;
    let has_wall_clock = device.clock.has_wall_clock() || is_real_time(device, asked);
    let of_clock = if has_wall_clock { wall_clock } else { CqWcFlags::empty() };
    let common = CqWcFlags::STANDARD | CqWcFlags::CVLAN | CqWcFlags::FLOW_TAG | CqWcFlags::TM_INFO;
    common | CqWcFlags::COMPLETION_TIMESTAMP | of_clock
}

impl Cq {
    pub(crate) fn create(
        device: &Arc<Device>,
        parent: Option<(Arc<()>, Option<Allocator>)>,
        attr: &CqInitAttr<'_>,
        cqe_size: Option<u32>,
        compression: Option<CqeCompression>,
    ) -> Result<(Self, CqHandle)> {
        const VERB: &str = "create_cq";
        let error = |errno| device.error(VERB, errno);
        // An entry that changes while it is read could name another request.
        let flags = attr.flags - CqFlags::SINGLE_THREADED;
        if !flags.is_empty() {
            return Err(error(Errno::OPNOTSUPP).because(Cause::CqFlags { flags }));
        }
        explain::wc_flags(attr.wc_flags, fields(device, attr.wc_flags))
            .map_err(|cause| error(Errno::OPNOTSUPP).because(cause))?;
        let entries = entries_for(attr.cqe).map_err(|cause| error(Errno::INVAL).because(cause))?;
        let stride = stride(cqe_size, environment::variable(SIZE))
            .map_err(|cause| error(Errno::INVAL).because(cause))?;
        let variable = environment::variable(COMPRESSION_VARIABLE);
        let compression = CqeCompression::of_queue(device, compression, variable, attr.wc_flags, stride)?;
        let (parent, allocator) = parent.unzip();
        let allocator = allocator.flatten();
        let len = entries as usize * stride;
        let memory = QueueMemory::for_object(allocator.as_ref(), Resource::Cq, len, 0)
            .map_err(|errno| device.short(VERB, errno, len))?;
        let slot = device.records.take_for(allocator.as_ref()).map_err(error)?;
        // SAFETY: the memory is new and used only by the ring.
        let ring = unsafe { Ring::new(memory.region().clone(), entries, stride) }.compressed(compression);
        // SAFETY: the slot is this queue's, and the records live in it.
        let (consumer, arm_record) = unsafe { (slot.record(Slot::FIRST), slot.record(Slot::SECOND)) };
        // Without a page number, the driver uses the first page that came with the context, as the
        // registers do. A number too large for the struct is passed as an attribute.
        let page = device.registers.arm_page_id();
        let page_of_struct = page.and_then(|number| u16::try_from(number).ok());
        let page_of_attr = page.filter(|_| page_of_struct.is_none());
        let is_real_time = is_real_time(device, attr.wc_flags);
        let mut flags = Mlx5IbCreateCqFlags::empty();
        flags.set(Mlx5IbCreateCqFlags::MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX, page_of_struct.is_some());
        flags.set(Mlx5IbCreateCqFlags::MLX5_IB_CREATE_CQ_FLAGS_REAL_TIME_TS, is_real_time);
        let request = Mlx5IbCreateCq {
            buf_addr: memory.address(),
            db_addr: slot.address(),
            cqe_size: stride as u32,
            cqe_comp_en: compression.is_some().into(),
            cqe_comp_res_format: compression.map_or(0, |form| form.bits() as u8),
            flags: flags.bits(),
            uar_page_index: page_of_struct.unwrap_or(0),
            ..Default::default()
        };
        let mut reply = Mlx5IbCreateCqResp::default();
        let event_fd = device.kernel.async_fd()?;
        // SAFETY: the addresses belong to the queue's memory and its records, which are lent to the
        // device until the queue is destroyed; see the module's documentation.
        let uhw = unsafe { Uhw::reply(reply.as_mut_bytes()).with_input(request.as_bytes()) };
        let asked = CqInitAttr { cqe: entries - 1, ..*attr };
        let driver = match page_of_attr {
            // SAFETY: a number from the driver.
            Some(number) => unsafe {
                DriverAttrs::new([Attr::u32(MLX5_IB_ATTR_CREATE_CQ_UAR_INDEX, number)])
            },
            None => DriverAttrs::none(),
        };
        let info = cmd::cq::create_cq_with(device.kernel.uverbs(), &asked, Some(event_fd), driver, uhw)
            .map_err(|error| device.kernel.explain_create_cq(error, attr))?;
        slot.lend();
        memory.set_known(true);
        let mut poller = Poller::new(ring, consumer);
        let device_of_fields = (!CqWcFlags::STANDARD.contains(attr.wc_flags)).then(|| Arc::clone(device));
        poller.optional = Optional { fields: attr.wc_flags, device: device_of_fields, is_real_time };
        let shared = Arc::clone(poller.shared());
        let cq = Self {
            poller,
            handle: info.handle,
            cqn: reply.cqn,
            entries,
            stride,
            events: Arc::default(),
            any_at: AtomicU64::new(NEVER),
            arm_record,
            arm: device.registers.arm(),
            slot,
            memory,
            device: Arc::clone(device),
            allocator,
            _parent: parent,
        };
        Ok((cq, CqHandle { handle: info.handle, shared, device: Arc::clone(device) }))
    }

    /// Describes the queue for direct access: see [`direct`](crate::direct).
    pub fn direct(&self) -> CqDirect {
        CqDirect {
            ring: QueueDirect {
                buf: self.memory.region().pointer(0, 0),
                entries: self.entries,
                stride: self.stride as u32,
            },
            records: self.slot.direct(),
            registers: self.device.registers.arm_page(),
            cqn: self.cqn,
        }
    }

    fn resize_to(&mut self, cqe: u32) -> Result<()> {
        const VERB: &str = "resize_cq";
        let error = |errno| self.device.error(VERB, errno);
        let unread = self.poller.unread();
        let entries = entries_for(cqe).map_err(|cause| error(Errno::INVAL).because(cause))?;
        explain::resized("cqe", cqe.into(), unread, (MAX_ENTRIES - 1).into())
            .map_err(|cause| error(Errno::INVAL).because(cause))?;
        if entries == self.entries {
            return Ok(());
        }
        if unread == self.entries {
            let reason = "the queue has no entry left for the mark of its end: poll a completion before";
            return Err(error(Errno::BUSY).because(Cause::Other { reason: reason.into() }));
        }
        let len = entries as usize * self.stride;
        let memory = QueueMemory::for_object(self.allocator.as_ref(), Resource::Cq, len, 0)
            .map_err(|errno| self.device.short(VERB, errno, len))?;
        // SAFETY: the memory is new and used only by the ring.
        let ring = unsafe { Ring::new(memory.region().clone(), entries, self.stride) };
        let cqe_size = self.stride as u16;
        let request = Mlx5IbResizeCq { buf_addr: memory.address(), cqe_size, ..Default::default() };
        // SAFETY: the address belongs to the new memory, which is lent to the device until the
        // queue is destroyed or resized again.
        let uhw = unsafe { Uhw::none().with_input(request.as_bytes()) };
        let (device, handle) = (&self.device, self.handle);
        let is_whole = self.poller.replace(ring, || {
            cmd::cq::resize_cq(device.kernel.uverbs(), handle, entries - 1, uhw)
                .map_err(|error| device.kernel.explain_resize_cq(error, cqe, unread as usize))
                .map(drop)
        })?;
        // The kernel has replaced the old memory, which the device no longer uses.
        memory.set_known(true);
        self.memory.set_known(false);
        (self.memory, self.entries) = (memory, entries);
        if is_whole {
            return Ok(());
        }
        let reason = "the device did not mark the end of the old queue: completions may be lost";
        Err(self.device.error(VERB, Errno::IO).because(Cause::Other { reason: reason.into() }))
    }
}

impl CqOps for Cq {
    type Completion<'a> = Completion<'a>;

    fn handle(&self) -> u32 {
        self.handle
    }

    fn cqe(&self) -> u32 {
        self.entries - 1
    }

    #[inline(always)]
    fn next(&mut self) -> Option<Completion<'_>> {
        self.poller.next()
    }

    #[inline(always)]
    fn next_of_several(&mut self) -> Option<Completion<'_>> {
        self.poller.next_of_several()
    }

    #[inline(always)]
    fn end_poll(&mut self) {
        self.poller.end_poll();
    }

    #[inline(always)]
    fn poll(&mut self, wcs: &mut [Wc]) -> usize {
        self.poller.poll(wcs)
    }

    fn req_notify(&self, solicited_only: bool) -> Result<()> {
        const SOLICITED_ONLY: u32 = 1 << 24;
        let events = self.events.load(Ordering::Acquire);
        // The device keeps the last of two requests; verbs keep the broader one.
        if !solicited_only {
            self.any_at.store(events.into(), Ordering::Relaxed);
        }
        let number = (events & 3) << 28;
        let is_any = self.any_at.load(Ordering::Relaxed) == u64::from(events);
        let kind = if is_any { 0 } else { SOLICITED_ONLY };
        // Lent completions have been seen by the program but not yet returned to the device.
        let word = number | kind | self.poller.place();
        self.arm_record.store(word);
        self.arm.ring(word, self.cqn);
        Ok(())
    }

    fn event_counter(&self) -> Option<Arc<AtomicU32>> {
        Some(Arc::clone(&self.events))
    }

    fn wc_flags(&self) -> CqWcFlags {
        CqWcFlags::STANDARD | self.poller.optional.fields
    }

    fn resize(&mut self, cqe: u32) -> Result<()> {
        self.resize_to(cqe)
    }

    fn modify(&self, moderation: CqModeration) -> Result<()> {
        cmd::cq::modify_cq(self.device.kernel.uverbs(), self.handle, moderation)
            .map_err(|error| self.device.kernel.explain_modify_cq(error, moderation))
    }
}

impl Destroy for Cq {
    fn destroy(self) -> Result<(), (Self, Error)> {
        self.destroy_counting_events().map(drop)
    }

    fn destroy_counting_events(self) -> Result<EventsRead, (Self, Error)> {
        let device = Arc::clone(&self.device);
        // From here on, no object can be created with the handle.
        let _cqs = match device.cqs_to_destroy("destroy_cq") {
            Ok(cqs) => cqs,
            Err(error) => return Err((self, error)),
        };
        self.poller.shared().set_over(true);
        match cmd::cq::destroy_cq(device.kernel.uverbs(), self.handle) {
            Ok(events) => {
                self.slot.take_back();
                self.memory.set_known(false);
                Ok(events)
            }
            Err(error) => {
                self.poller.shared().set_over(false);
                Err((self, error))
            }
        }
    }
}

impl fmt::Debug for Cq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cq")
            .field("device", &self.device.kernel.device_name())
            .field("handle", &self.handle)
            .field("cqn", &self.cqn)
            .field("poller", &self.poller)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use verbs_core::channel::{Expect, Reply};
    use verbs_core::ring::Region;

    use super::*;
    use crate::forked::is_true_in_child;
    use crate::queue::cq::Queues;

    #[test]
    fn a_queue_has_one_entry_more_than_completions() {
        for (cqe, entries) in [(1, 2), (2, 4), (3, 4), (255, 256), (256, 512), ((1 << 22) - 1, 1 << 22)] {
            assert_eq!(entries_for(cqe).unwrap(), entries);
        }
        for cqe in [0, 1 << 22, u32::MAX] {
            assert!(matches!(entries_for(cqe), Err(Cause::Limit { name: "cqe", .. })), "{cqe}");
        }
    }

    /// The size of an entry in these tests, in bytes.
    const STRIDE: usize = 64;

    /// Returns a queue with 8 entries whose arm register is at the start of `registers`.
    fn cq(device: &Arc<Device>, registers: &Region) -> Cq {
        let slot = device.records.take().unwrap();
        let memory = QueueMemory::new(8 * STRIDE).unwrap();
        // SAFETY: all memory belongs to this queue and is unknown to any device.
        let (ring, consumer, arm_record, arm) = unsafe {
            let ring = Ring::new(memory.region().clone(), 8, STRIDE);
            (ring, slot.record(Slot::FIRST), slot.record(Slot::SECOND), ArmRegister::new(registers, 0))
        };
        Cq {
            poller: Poller::new(ring, consumer),
            handle: 5,
            cqn: 0x12_3456,
            entries: 8,
            stride: STRIDE,
            events: Arc::default(),
            any_at: AtomicU64::new(NEVER),
            arm_record,
            arm,
            slot,
            memory,
            allocator: None,
            device: Arc::clone(device),
            _parent: None,
        }
    }

    /// Returns the command that creates a queue with these fields.
    fn command(has_real_time: bool, page_id: u32, wc_flags: CqWcFlags) -> String {
        let (mut device, script) = crate::device::tests::device();
        let its = Arc::get_mut(&mut device).expect("no object has it");
        its.has_real_time = has_real_time;
        its.registers = crate::doorbell::registers::tests::on_page(page_id, 1);
        // SAFETY: the call accesses no memory. The context takes the file and closes it.
        let events = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        script.expect([
            Expect::anything(Reply::outputs([&events.to_ne_bytes()])),
            Expect::anything(Reply::outputs([&7_u32.to_ne_bytes(), &3_u32.to_ne_bytes()])),
        ]);
        let attr = CqInitAttr { wc_flags, ..CqInitAttr::new(3) };
        core::mem::forget(Cq::create(&device, None, &attr, None, None).unwrap());
        script.seen().pop().expect("a command")
    }

    /// Returns the flags and the page number from the driver's input.
    fn flags_and_page(command: &str) -> &str {
        let (_, input) = command.split_once("0x1000 in ").expect("the driver's input");
        &input[2 * core::mem::offset_of!(Mlx5IbCreateCq, flags)..][..8]
    }

    #[test]
    fn the_number_of_the_page_that_arms_is_in_the_struct_or_an_attribute_if_it_is_too_long() {
        let short = command(false, 0xffff, CqWcFlags::STANDARD);
        assert!(!short.contains("0x1002"), "{short}");
        assert_eq!(flags_and_page(&short), "0200ffff");
        let long = command(false, 0x1_0000, CqWcFlags::STANDARD);
        assert!(long.contains("0x1002 u32 0x10000"), "{long}");
        assert_eq!(flags_and_page(&long), "00000000");
    }

    #[test]
    fn a_device_that_writes_the_systems_time_is_asked_for_it_where_no_other_clock_is() {
        let (raw, wall) = (CqWcFlags::COMPLETION_TIMESTAMP, CqWcFlags::COMPLETION_TIMESTAMP_WALLCLOCK);
        assert_eq!(flags_and_page(&command(true, 9, wall)), "06000900");
        assert_eq!(flags_and_page(&command(true, 9, raw)), "02000900");
        let (device, _) = crate::device::tests::device();
        // The device lacks the page for converting its clock.
        let attr = CqInitAttr { wc_flags: wall, ..CqInitAttr::new(3) };
        let refused = Cq::create(&device, None, &attr, None, None).map(drop).unwrap_err();
        assert_eq!(refused.errno, Errno::OPNOTSUPP);
        let is_both = is_real_time(&device, raw | wall);
        assert!(!is_both);
    }

    #[test]
    fn a_request_for_an_event_has_its_number_its_kind_and_the_place_of_the_next_completion() {
        let ((device, _), registers) = (crate::device::tests::device(), Region::plain(64));
        let mut cq = cq(&device, &registers);
        for (events, solicited_only, index, expected) in [
            (0, true, 0, 0x0100_0000),
            (0, false, 0, 0),
            // The broader request stays in force until its event has been read.
            (0, true, 3, 3),
            (1, true, 3, 0x1100_0003),
            (3, false, 0x00ff_ffff, 0x30ff_ffff),
            (4, true, 0x0100_0002, 0x0100_0002),
            (7, true, 0xfe00_0002, 0x3100_0002),
        ] {
            cq.events.store(events, Ordering::Relaxed);
            cq.poller.index = index;
            cq.req_notify(solicited_only).unwrap();
            // SAFETY: one thread.
            let [word, cqn] = unsafe { registers.read::<[u32; 2]>(0) }.map(u32::from_be);
            assert_eq!((word, cqn), (expected, 0x12_3456), "{events}, {solicited_only}, {index:#x}");
            // SAFETY: as above.
            let records = [Slot::FIRST, Slot::SECOND].map(|at| unsafe { cq.slot.record(at) }.load());
            assert_eq!(records, [0, expected], "nothing is returned");
        }
    }

    #[test]
    fn the_record_of_a_request_is_stored_before_the_register_rings() {
        let ((device, _), registers) = (crate::device::tests::device(), Region::plain(64));
        let mut cq = cq(&device, &registers);
        // SAFETY: the test has one thread, which reads the bytes that both write: the later store
        // remains.
        cq.arm_record = unsafe { Record::new(&registers, 4) };
        cq.req_notify(true).unwrap();
        // SAFETY: as above.
        assert_eq!(u32::from_be(unsafe { registers.read::<u32>(4) }), 0x12_3456);
    }

    #[test]
    fn a_queue_that_would_lose_completions_is_not_resized() {
        let ((device, _), registers) = (crate::device::tests::device(), Region::plain(64));
        let mut cq = cq(&device, &registers);
        let arrive = |cq: &Cq, count: usize| {
            for entry in 0..count {
                // SAFETY: one thread; the last byte of an entry, for a send in the first round.
                unsafe { cq.memory.region().write((entry + 1) * STRIDE - 1, 0_u8) };
            }
        };
        arrive(&cq, 5);
        let error = cq.resize(3).unwrap_err();
        assert!(matches!(error.cause, Cause::Limit { name: "cqe", min: 4, .. }), "{error}");
        // Five completions fit, because 4 entries are rounded up to 8.
        cq.resize(4).unwrap();
        cq.resize(7).unwrap();
        arrive(&cq, 8);
        assert_eq!(cq.resize(20).unwrap_err().errno, Errno::BUSY);
    }

    #[test]
    fn an_entry_has_the_size_of_the_program_or_of_the_environment() {
        let env = |value: &str| Some(value.to_owned());
        for (asked, variable, size) in [
            (None, None, Some(64)),
            (None, env("128"), Some(128)),
            (Some(64), env("128"), Some(64)),
            (Some(128), None, Some(128)),
            (None, env("32"), None),
            (None, env("many"), None),
            (Some(0), env("64"), None),
        ] {
            assert_eq!(stride(asked, variable.clone()).ok(), size, "{asked:?} {variable:?}");
        }
    }

    #[test]
    fn the_driver_learns_which_page_arms_unless_it_came_with_the_context() {
        use verbs_core::channel::{Expect, Reply};
        let devices = [crate::device::tests::device(), crate::device::tests::with_registers(0)];
        for ((device, script), [flags, page]) in devices.into_iter().zip([["0200", "0900"], ["0000", "0000"]])
        {
            // SAFETY: the call accesses no memory. The context takes the file and closes it.
            let events = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
            script.expect([
                Expect::anything(Reply::outputs([&events.to_ne_bytes()])),
                Expect::anything(Reply::Errno(Errno::IO)),
            ]);
            let attr = CqInitAttr::new(1);
            Cq::create(&device, None, &attr, Some(64), None).unwrap_err();
            let seen = script.seen();
            let (_, input) = seen.last().unwrap().split_once("0x1000 in ").expect("the driver's input");
            assert_eq!([&input[44..48], &input[48..52]], [flags, page]);
        }
    }

    #[test]
    fn a_name_is_good_for_its_own_device_until_its_queue_is_destroyed() {
        let ((device, _), (other, _)) = (crate::device::tests::device(), crate::device::tests::device());
        let slot = device.records.take().unwrap();
        let memory = QueueMemory::new(2 * 64).unwrap();
        // SAFETY: the memory and the record are new and unknown to any device.
        let (ring, consumer) =
            unsafe { (Ring::new(memory.region().clone(), 2, 64), slot.record(Slot::FIRST)) };
        let shared = Arc::clone(Poller::new(ring, consumer).shared());
        let name = CqHandle { handle: 5, shared, device: Arc::clone(&device) };
        let check = |device| name.check(device, "create_qp").map_err(|error| error.errno);
        assert_eq!((check(&device), check(&other)), (Ok(()), Err(Errno::INVAL)));
        name.shared.set_over(true);
        assert_eq!(check(&device), Err(Errno::INVAL));
        name.shared.set_over(false);
        assert_eq!(check(&device), Ok(()));
        // In a child whose parent was polling the queue or ending one of its queue pairs.
        name.shared.locked(|_| {
            assert!(is_true_in_child(|| {
                name.shared.begin(7, Queues::default());
                name.shared.end(7, None);
                name.shared.locked(|_| {});
                assert!(name.shared.with_changes(|_| ()).is_err());
                name.shared.take(|changes| {
                    assert!(changes.is_empty());
                    false
                });
                check(&device) == Err(Errno::NODEV)
            }));
        });
    }

    #[test]
    fn a_child_destroys_no_queue_while_its_parent_was_destroying_one() {
        let (device, _) = crate::device::tests::device();
        let creating = device.cqs("create_qp").unwrap();
        assert!(is_true_in_child(|| device.cqs_to_destroy("destroy_cq").is_ok()));
        drop(creating);
        let _destroying = device.cqs_to_destroy("destroy_cq").unwrap();
        assert!(is_true_in_child(|| {
            let errnos = [device.cqs("create_qp").map(drop), device.cqs_to_destroy("destroy_cq").map(drop)];
            errnos.into_iter().all(|result| result.is_err_and(|error| error.errno == Errno::NODEV))
        }));
    }
}
