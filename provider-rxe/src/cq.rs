//! The completion queue. The kernel fills it. Polling makes no system call. Requesting an event
//! makes one system call.
//!
//! A completion borrows its entry from the queue: each field is read when its method is called. The
//! slot returns to the kernel after the borrow, with [`end_poll`](CqOps::end_poll) or the next call
//! of [`next`](CqOps::next).
//!
//! To resize a queue, the kernel creates another queue and copies the completions behind the
//! published index into it. All slots are therefore returned before the command. After the command,
//! the old queue is no longer read, because its completions are in the new queue.
//!
//! # Safety
//! An entry is transmuted into a [`Wc`]: both have the same integer fields at the same offsets, as
//! checked below. A queue is mapped once, from the reply to the command that created or resized it.
//!
//! # References
//! `ibv_poll_cq(3)`, `ibv_req_notify_cq(3)`, `ibv_resize_cq(3)`; Linux
//! `drivers/infiniband/sw/rxe/rxe_cq.c`, `rxe_queue.c` (`resize_finish`)
#![allow(unsafe_code)]

use core::fmt;
use core::mem::{align_of, offset_of, size_of};

use uverbs_abi::ib_user_verbs::IbUverbsWc;
use uverbs_abi::rdma_user_rxe::{RxeCreateCqResp, RxeResizeCqResp};
use verbs_core::channel::Uhw;
use verbs_core::for_each_completion_field;
use verbs_core::kernel::Kernel;
use verbs_core::provider::{
    Completion as CompletionOps, CqOps, Destroy, DeviceOps as _, EventsRead, Notifier,
};
use verbs_core::types::{CqInitAttr, CqModeration, CqWcFlags, Wc, WcFlags, WcOpcode, WcStatus};
use verbs_core::{Errno, Error, Result, cmd, explain};
use zerocopy::IntoBytes;

use crate::queue::{ConsumerEnd, Entry, Queue};

/// Reads a field of an entry.
macro_rules! field {
    ($entry:expr, $field:ident) => {
        $entry.get::<{ offset_of!(IbUverbsWc, $field) }, _>()
    };
}

/// A completion queue.
///
/// Dropped without [`destroy`](Destroy::destroy), it releases only the mapping of the queue. This
/// is sound while the kernel still writes completions: it writes them through its own mapping and
/// counts this process's mapping as a reference to the pages (Linux
/// `drivers/infiniband/sw/rxe/rxe_mmap.c`).
pub struct Cq {
    end: ConsumerEnd<IbUverbsWc>,
    context: Kernel,
    handle: u32,
    cqe: u32,
}

/// The kernel's handle for the completion queue, usable while another thread polls the queue.
#[derive(Clone, Copy, Debug)]
pub struct CqHandle(pub(crate) u32);

/// Requests events through a kernel command. The command needs only the queue's handle.
#[derive(Debug)]
struct KernelNotifier {
    context: Kernel,
    handle: u32,
}

impl Notifier for KernelNotifier {
    fn req_notify(&self, solicited_only: bool) -> Result<()> {
        cmd::cq::req_notify_cq(self.context.uverbs(), self.handle, solicited_only)
    }
}

impl Cq {
    pub(crate) fn create(context: &Kernel, attr: &CqInitAttr<'_>) -> Result<(Self, CqHandle)> {
        let uverbs = context.uverbs();
        explain::wc_flags(attr.wc_flags, CqWcFlags::STANDARD)
            .map_err(|cause| uverbs.error("create_cq", Errno::OPNOTSUPP).because(cause))?;
        let mut reply = RxeCreateCqResp::default();
        let event_fd = context.async_fd()?;
        let info = cmd::cq::create_cq(uverbs, attr, Some(event_fd), Uhw::reply(reply.as_mut_bytes()))
            .map_err(|error| context.explain_create_cq(error, attr))?;
        // SAFETY: the kernel has just created the queue, and `mi` comes from its reply.
        match unsafe { Queue::map(uverbs, "create_cq", &reply.mi, size_of::<IbUverbsWc>()) } {
            Ok(queue) => {
                let end = ConsumerEnd::new(queue);
                let cq = Self { end, context: context.clone(), handle: info.handle, cqe: info.cqe };
                Ok((cq, CqHandle(info.handle)))
            }
            Err(error) => {
                // The mapping's error is the one to report. If the queue cannot be destroyed,
                // closing the context destroys it.
                let _ = cmd::cq::destroy_cq(uverbs, info.handle);
                Err(error)
            }
        }
    }
}

impl CqOps for Cq {
    type Completion<'a> = Completion<'a>;

    fn handle(&self) -> u32 {
        self.handle
    }

    fn cqe(&self) -> u32 {
        self.cqe
    }

    #[inline(always)]
    fn next(&mut self) -> Option<Completion<'_>> {
        // Returning the slot here costs one store. Without it, a program that takes completions one
        // by one and posts again for each could overflow a queue it has polled empty.
        self.end.give_back();
        self.end.next().map(Completion)
    }

    #[inline(always)]
    fn next_of_several(&mut self) -> Option<Completion<'_>> {
        self.end.next().map(Completion)
    }

    #[inline(always)]
    fn end_poll(&mut self) {
        self.end.give_back();
    }

    #[inline]
    fn poll(&mut self, wcs: &mut [Wc]) -> usize {
        let mut flags = 0_u32;
        let polled = self.end.take(wcs, |entry, wc| {
            let its: u32 = field!(entry, wc_flags);
            flags |= its;
            *wc = as_it_is(&entry);
        });
        // Out of line and after the loop, to keep the loop small and free of calls.
        if flags & TRANSLATED != 0 { translate_all(polled) } else { polled.len() }
    }

    fn req_notify(&self, solicited_only: bool) -> Result<()> {
        cmd::cq::req_notify_cq(self.context.uverbs(), self.handle, solicited_only)
    }

    fn notifier(&self) -> Option<Box<dyn Notifier>> {
        Some(Box::new(KernelNotifier { context: self.context.clone(), handle: self.handle }))
    }

    /// Removes a queue pair's completions and moves the other completions together. The queued
    /// completions belong to this process. The kernel adds no completion for a queue pair once the
    /// command that resets or destroys it has returned.
    fn purge(&mut self, qp_num: u32) {
        self.end.retain(|entry| {
            let its: u32 = field!(entry, qp_num);
            its != qp_num
        });
    }

    /// Same as [`CqOps::resize`]. If the new queue cannot be mapped (`ENOMEM`), polling returns no
    /// completions until another call succeeds. The kernel keeps the completions until then.
    fn resize(&mut self, cqe: u32) -> Result<()> {
        let uverbs = self.context.uverbs();
        self.end.give_back();
        let unread = self.end.count();
        let mut reply = RxeResizeCqResp::default();
        let cqe = cmd::cq::resize_cq(uverbs, self.handle, cqe, Uhw::reply(reply.as_mut_bytes()))
            .map_err(|error| self.context.explain_resize_cq(error, cqe, unread))?;
        self.cqe = cqe;
        self.end.skip_all();
        // SAFETY: the kernel has just created the queue, and `mi` comes from its reply.
        let queue = unsafe { Queue::map(uverbs, "resize_cq", &reply.mi, size_of::<IbUverbsWc>()) }?;
        self.end = ConsumerEnd::new(queue);
        Ok(())
    }

    /// Sends the command, although none of the rxe drivers whose sources were read supports it. The
    /// kernel decides.
    fn modify(&self, moderation: CqModeration) -> Result<()> {
        cmd::cq::modify_cq(self.context.uverbs(), self.handle, moderation)
    }
}

impl Destroy for Cq {
    fn destroy(self) -> Result<(), (Self, Error)> {
        self.destroy_counting_events().map(drop)
    }

    fn destroy_counting_events(self) -> Result<EventsRead, (Self, Error)> {
        // Dropping `self` unmaps the queue, after the kernel has released it.
        cmd::cq::destroy_cq(self.context.uverbs(), self.handle).map_err(|error| (self, error))
    }
}

impl fmt::Debug for Cq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cq")
            .field("device", &self.context.device_name())
            .field("handle", &self.handle)
            .field("cqe", &self.cqe)
            .field("end", &self.end)
            .finish()
    }
}

/// A completion, returned by [`Cq::next`](CqOps::next) and borrowed from its queue.
#[derive(Clone, Copy)]
pub struct Completion<'a>(Entry<'a, IbUverbsWc>);

/// Reads a field of an entry and converts it to the type of the [`Wc`] field.
macro_rules! reader {
    ($entry:expr, status) => {
        WcStatus(field!($entry, status))
    };
    ($entry:expr, opcode) => {
        WcOpcode(field!($entry, opcode))
    };
    ($entry:expr, imm_data) => {
        imm_data(field!($entry, ex), field!($entry, wc_flags))
    };
    ($entry:expr, wc_flags) => {
        wc_flags(field!($entry, wc_flags))
    };
    ($entry:expr, $field:ident) => {
        field!($entry, $field)
    };
}

macro_rules! completion {
    ($($(#[$doc:meta])* $field:ident: $type:ty;)*) => {
        impl CompletionOps for Completion<'_> {
            $(#[inline(always)] fn $field(&self) -> $type { reader!(self.0, $field) })*

            #[inline(always)]
            fn write_to(&self, wc: &mut Wc) {
                *wc = as_it_is(&self.0);
                translate(wc);
            }

            #[inline(always)]
            fn write_to_c(&self, wc: &mut Wc) {
                *wc = as_it_is(&self.0);
                // In the entry, immediate data is big-endian and a key is in host order.
                let raw_flags = wc.wc_flags.bits();
                if raw_flags & KERNEL_WITH_INVALIDATE != 0 {
                    wc.wc_flags = wc_flags(raw_flags);
                }
            }
        }
    };
}

for_each_completion_field!(completion);

/// Returns the entry as a [`Wc`], without [translating](translate) any field.
#[inline(always)]
fn as_it_is(entry: &Entry<'_, IbUverbsWc>) -> Wc {
    const { SAME_LAYOUT };
    // SAFETY: `SAME_LAYOUT`; a `Wc` consists of integers, so any bits are valid.
    unsafe { core::mem::transmute::<IbUverbsWc, Wc>(entry.copy()) }
}

/// Translates the fields that differ between an entry and a [`Wc`].
#[inline]
fn translate(wc: &mut Wc) {
    let raw_flags = wc.wc_flags.bits();
    if raw_flags & TRANSLATED != 0 {
        wc.imm_data = imm_data(wc.imm_data, raw_flags);
        wc.wc_flags = wc_flags(raw_flags);
    }
}

/// Translates all entries as [`translate`] does and returns their number.
#[inline(never)]
fn translate_all(wcs: &mut [Wc]) -> usize {
    let count = wcs.len();
    wcs.iter_mut().for_each(translate);
    count
}

/// Entries that need translation have at least one of these flags. Without any of them, immediate
/// data is zero.
const TRANSLATED: u32 = KERNEL_WITH_INVALIDATE | WcFlags::WITH_INV.bits() | WcFlags::WITH_IMM.bits();

/// Asserts that [`Wc`] and a completion entry have the same fields at the same offsets.
const SAME_LAYOUT: () = {
    macro_rules! same {
        ($($field:ident = $entry:ident),*) => {
            $(assert!(offset_of!(Wc, $field) == offset_of!(IbUverbsWc, $entry), stringify!($field));)*
        };
    }
    same!(wr_id = wr_id, status = status, opcode = opcode, vendor_err = vendor_err, byte_len = byte_len);
    same!(imm_data = ex, qp_num = qp_num, src_qp = src_qp, wc_flags = wc_flags, pkey_index = pkey_index);
    same!(slid = slid, sl = sl, dlid_path_bits = dlid_path_bits);
    assert!(size_of::<Wc>() == size_of::<IbUverbsWc>() && align_of::<Wc>() <= align_of::<IbUverbsWc>());
    assert!(size_of::<WcStatus>() == 4 && size_of::<WcOpcode>() == 4 && size_of::<WcFlags>() == 4);
};

impl fmt::Debug for Completion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut wc = Wc::default();
        self.write_to(&mut wc);
        wc.fmt(f)
    }
}

/// The kernel's `IB_WC_WITH_INVALIDATE`. From bit 2 upwards, the kernel's flags differ from the
/// flags of the verbs API.
const KERNEL_WITH_INVALIDATE: u32 = 1 << 2;

/// Returns the flags in the encoding of the verbs API. The kernel copies its internal flags into
/// the entry. rxe never sets `IP_CSUM_OK`, whose bit means another flag in the verbs API, because
/// rxe verifies no checksums.
#[inline(always)]
const fn wc_flags(raw: u32) -> WcFlags {
    let moved = (raw & KERNEL_WITH_INVALIDATE) << 1;
    WcFlags::from_bits_retain((raw & !KERNEL_WITH_INVALIDATE) | moved)
}

/// Returns the value of the entry's union: big-endian for immediate data, host order for an
/// invalidated key.
#[inline(always)]
const fn imm_data(raw: u32, raw_flags: u32) -> u32 {
    if wc_flags(raw_flags).contains(WcFlags::WITH_INV) { raw } else { u32::from_be(raw) }
}
