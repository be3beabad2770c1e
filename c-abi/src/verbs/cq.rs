//! Completion queues and completions in arrays.
//!
//! # Safety
//! See the crate documentation. Each completion queue's lock guards the provider's completion queue
//! and the lent completion.
#![allow(unsafe_code)]

use core::any::Any;
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use provider_mlx5::CqeCompression;
use verbs_core::provider::{Completion as _, ContextOps as _, CqOps, Destroy as _, Notifier, Provider};
use verbs_core::types::{CqFlags, CqInitAttr, CqModeration, CqWcFlags, Wc};
use verbs_core::{Errno, Error};

use crate::abi::c::{
    IBV_CQ_ATTR_MODERATE, ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_modify_cq_attr, ibv_pd,
    ibv_wc,
};
use crate::abi::convert::count;
use crate::abi::errno::{code, fail, given_room, not_null, not_null_or_null, pointer, refused, unavailable};
use crate::handle::context::{ProviderContext, verb};
use crate::handle::destroyable::Destroyable;
use crate::handle::lock::{Attempt, Spin};
use crate::handle::object::{Object, check_handle, destroy_in_place, public};
use crate::handle::thread;
use crate::verbs::event::{is_acknowledged, wait_acknowledged};
use crate::verbs::{channel, cq_ex, pd};

/// The value of [`Cq::lender`] while no thread reads completions.
pub(crate) const NO_THREAD: usize = 0;

/// A completion lent by `ibv_start_poll`. The lock of its queue is held until `ibv_end_poll`.
pub(crate) type LentCompletion<P> = <<P as Provider>::Cq as CqOps>::Completion<'static>;

/// A provider's completion queue.
pub(crate) struct Cq<P: Provider> {
    pub(crate) queue: Spin<P::Cq>,
    /// The completion that the readers of `ibv_cq_ex` read, between `ibv_start_poll` and
    /// `ibv_end_poll`.
    pub(crate) lent: UnsafeCell<MaybeUninit<LentCompletion<P>>>,
    /// The [thread](thread::current) that is between `ibv_start_poll` and `ibv_end_poll`;
    /// [`NO_THREAD`] if there is none.
    pub(crate) lender: AtomicUsize,
    /// The queue's handle, for creating queue pairs.
    pub(crate) name: P::CqHandle,
    /// Counts the queue pairs that complete in this queue. Each holds a clone until its destruction
    /// is complete, because the provider stops counting a queue pair before its completions are
    /// removed.
    pub(crate) users: Arc<()>,
    /// Requests events without the queue's lock, if the provider can do so. A preempted poller then
    /// delays no request.
    notifier: Option<Destroyable<Box<dyn Notifier>>>,
    /// The number of events read, for providers that need it.
    events: Option<Arc<AtomicU32>>,
    handle: u32,
}

impl<P: Provider> Cq<P> {
    /// Requests a completion event.
    ///
    /// # Errors
    /// `EINVAL` for a destroyed queue; any error from the provider.
    fn req_notify(&self, solicited_only: bool) -> Result<(), Error> {
        const VERB: &str = "req_notify_cq";
        match &self.notifier {
            Some(notifier) => notifier.lend(VERB)?.req_notify(solicited_only),
            None => self.with_shared(VERB, |queue| queue.req_notify(solicited_only)),
        }
    }

    /// Calls `with` with the queue while holding its lock. A thread that reads a lent completion
    /// already holds the lock and keeps it.
    ///
    /// # Errors
    /// Same as [`Spin::why_not`]; any error from `with`.
    fn with_shared<R>(
        &self,
        verb: &'static str,
        with: impl FnOnce(&P::Cq) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let is_lender = self.lender.load(Ordering::Relaxed) == thread::current();
        if !is_lender && !self.queue.lock() {
            return Err(unavailable(verb, self.queue.why_not()));
        }
        // SAFETY: this thread holds the lock, perhaps since `start_poll`, and only reads lent
        // completions.
        let result = with(unsafe { self.queue.get_shared() });
        if !is_lender {
            // SAFETY: `lock` returned true above.
            unsafe { self.queue.unlock() };
        }
        result
    }
}

pub(crate) type CqObject<P> = Object<ibv_cq_ex, Cq<P>>;

/// Returns the provider's completion queue.
///
/// # Safety
/// `cq` must be a live queue of the provider.
pub(crate) unsafe fn from_raw<'a, P: Provider>(cq: *mut ibv_cq) -> &'a Cq<P> {
    // SAFETY: an `ibv_cq` is the head of an `ibv_cq_ex`.
    unsafe { CqObject::<P>::inner(cq.cast()) }
}

/// Returns the provider's completion queue if the public struct still has its handle.
///
/// # Safety
/// Same as [`from_raw`].
pub(crate) unsafe fn checked<'a, P: Provider>(
    cq: *mut ibv_cq,
    verb: &'static str,
) -> Result<&'a Cq<P>, Error> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let inner: &Cq<P> = CqObject::<P>::own(cq.cast(), verb)?;
        check_handle(public(&raw const (*cq).handle), inner.handle, verb)?;
        Ok(inner)
    }
}

/// The entry format of a new queue. Programs can choose it only on ConnectX devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entries {
    /// The size of an entry in bytes.
    pub(crate) size: Option<u32>,
    /// The format of compressed completions.
    pub(crate) compression: Option<CqeCompression>,
}

/// The attributes of a new queue, from `ibv_create_cq` or `ibv_create_cq_ex`.
pub(crate) struct Init {
    pub(crate) cqe: u32,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) comp_vector: u32,
    pub(crate) wc_flags: CqWcFlags,
    pub(crate) flags: CqFlags,
    pub(crate) parent_domain: *mut ibv_pd,
    pub(crate) entries: Entries,
}

impl<P: Provider> ProviderContext<P> {
    /// Creates a provider's queue with an entry format that the program has chosen.
    ///
    /// # Errors
    /// `EOPNOTSUPP` unless the device is a ConnectX device.
    fn create_of(
        &self,
        pd: Option<&P::Pd>,
        attr: &CqInitAttr<'_>,
        Entries { size, compression }: Entries,
    ) -> Result<(P::Cq, P::CqHandle), Error> {
        let reason = "only entries of ConnectX have a chosen size or format";
        let other = || refused("create_cq", Errno::OPNOTSUPP, reason);
        let context = self.mlx5().ok_or_else(other)?;
        let pd = match pd {
            Some(pd) => Some((pd as &dyn Any).downcast_ref::<provider_mlx5::Pd>().ok_or_else(other)?),
            None => None,
        };
        let mut made = Some(match compression {
            None => context.create_cq_sized(pd, attr, size)?,
            Some(compression) => context.create_cq_compressed(pd, attr, size, compression)?,
        });
        let made: &mut dyn Any = &mut made;
        // The provider is `mlx5`, so the types are the same.
        made.downcast_mut::<Option<(P::Cq, P::CqHandle)>>().and_then(Option::take).ok_or_else(other)
    }
}

/// Operations on completion queues.
///
/// # Safety
/// The methods have the same contracts as the exported functions.
impl<P: Provider> ProviderContext<P> {
    pub(crate) unsafe fn create_cq(
        &self,
        context: *mut ibv_context,
        init: &Init,
    ) -> Result<*mut ibv_cq_ex, Error> {
        // Events carry the object's address, so the box is allocated before the queue is created.
        let mut object = Box::<CqObject<P>>::new_uninit();
        let at: *mut ibv_cq_ex = object.as_mut_ptr().cast();
        // SAFETY: the channel and the domain are null or live.
        let (channel, parent) = unsafe {
            let channel = (!init.channel.is_null()).then(|| BorrowedFd::borrow_raw((*init.channel).fd));
            let parent = match init.parent_domain.is_null() {
                true => None,
                false => Some(pd::from_raw::<P>(init.parent_domain, "create_cq")?),
            };
            (channel, parent)
        };
        let known = CqFlags::SINGLE_THREADED | CqFlags::IGNORE_OVERRUN;
        // librxe ignores unknown flags.
        if !known.contains(init.flags) && self.context().provider_name() != "rxe" {
            return Err(refused("create_cq_ex", Errno::INVAL, "flags unknown to this library"));
        }
        let attr = CqInitAttr {
            channel,
            comp_vector: init.comp_vector,
            user_handle: at as u64,
            flags: init.flags & known,
            wc_flags: init.wc_flags,
            ..CqInitAttr::new(init.cqe)
        };
        let pd = parent.as_deref().map(|parent| &parent.pd);
        let (queue, name) = match init.entries {
            Entries { size: None, compression: None } => self.context().create_cq(pd, &attr)?,
            entries => self.create_of(pd, &attr, entries)?,
        };
        // SAFETY: the struct has integers, null pointers and functions that may be absent.
        let mut c: ibv_cq_ex = unsafe { core::mem::zeroed() };
        c.context = context;
        c.channel = init.channel;
        c.cq_context = init.cq_context;
        c.handle = queue.handle();
        c.cqe = queue.cqe() as c_int;
        c.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
        c.cond = libc::PTHREAD_COND_INITIALIZER;
        cq_ex::fill::<P>(&mut c);
        if !init.channel.is_null() {
            // SAFETY: the channel is live.
            unsafe { channel::count(init.channel, 1) };
        }
        let is_single_threaded = init.flags.contains(CqFlags::SINGLE_THREADED)
            || parent.is_some_and(|parent| parent.is_single_threaded);
        let handle = c.handle;
        let lent = UnsafeCell::new(MaybeUninit::uninit());
        let (events, notifier) = (queue.event_counter(), queue.notifier().map(Destroyable::new));
        let queue = Spin::new(queue, is_single_threaded);
        let lender = AtomicUsize::new(NO_THREAD);
        let inner = Cq { queue, lent, lender, name, users: Arc::default(), notifier, events, handle };
        object.write(Object::new(c, inner));
        Ok(Box::into_raw(object).cast())
    }

    unsafe fn resize_cq(&self, cq: *mut ibv_cq, cqe: u32) -> Result<(), Error> {
        // SAFETY: the queue is live.
        let inner = unsafe { checked::<P>(cq, "resize_cq")? };
        let resized = inner.queue.with(|queue| {
            queue.resize(cqe)?;
            // SAFETY: as above; the lock guards the field.
            unsafe { (*cq).cqe = queue.cqe() as c_int };
            Ok(())
        });
        resized.unwrap_or_else(|errno| Err(unavailable("resize_cq", errno)))
    }

    /// Counts an event that was read.
    pub(crate) unsafe fn count_event(&self, cq: *mut ibv_cq) {
        // SAFETY: the queue is live.
        if let Some(events) = unsafe { &from_raw::<P>(cq).events } {
            events.fetch_add(1, Ordering::Release);
        }
    }

    unsafe fn modify_cq(&self, cq: *mut ibv_cq, attr: &ibv_modify_cq_attr) -> Result<(), Error> {
        if attr.attr_mask != IBV_CQ_ATTR_MODERATE {
            // librxe does not implement this call, so the mask makes no difference there.
            let is_rxe = self.context().provider_name() == "rxe";
            let errno = if is_rxe { Errno::OPNOTSUPP } else { Errno::INVAL };
            return Err(refused("modify_cq", errno, "only the moderation can be changed"));
        }
        let (cq_count, cq_period) = (attr.moderate.cq_count, attr.moderate.cq_period);
        let moderation = CqModeration { cq_count, cq_period };
        // SAFETY: the queue is live.
        let inner = unsafe { checked::<P>(cq, "modify_cq")? };
        inner.with_shared("modify_cq", |queue| queue.modify(moderation))
    }

    unsafe fn destroy_cq(&self, cq: *mut ibv_cq) -> Result<(), Error> {
        // SAFETY: the queue is live. Threads that handle its last events may use it until they
        // acknowledge them: they find the lock held, and the queue ended.
        unsafe {
            let inner = checked::<P>(cq, "destroy_cq")?;
            if Arc::strong_count(&inner.users) > 1 {
                return Err(refused("destroy_cq", Errno::BUSY, "queues use it"));
            }
            if !inner.queue.lock() {
                return Err(unavailable("destroy_cq", inner.queue.why_not()));
            }
            let queue = NonNull::new_unchecked(inner.queue.as_ptr());
            let destroy = || destroy_in_place(queue, P::Cq::destroy_counting_events);
            let destroyed = match &inner.notifier {
                Some(notifier) => {
                    notifier.destroy_waiting("destroy_cq", |own| destroy().map_err(|error| (own, error)))
                }
                None => destroy(),
            };
            match &destroyed {
                Ok(_) => inner.queue.end(),
                Err(_) => inner.queue.unlock(),
            }
            let read = destroyed?;
            wait_acknowledged(&raw mut (*cq).mutex, &raw mut (*cq).cond, || {
                is_acknowledged((*cq).comp_events_completed, read.comp)
                    && is_acknowledged((*cq).async_events_completed, read.asynchronous)
            });
            let channel = (*cq).channel;
            ptr::drop_in_place(&raw const inner.name as *mut P::CqHandle);
            ptr::drop_in_place(&raw const inner.users as *mut Arc<()>);
            ptr::drop_in_place(&raw const inner.events as *mut Option<Arc<AtomicU32>>);
            CqObject::<P>::free(cq.cast());
            if !channel.is_null() {
                channel::count(channel, -1);
            }
        }
        Ok(())
    }
}

/// `ibv_poll_cq(3)`.
///
/// # Safety
/// `cq` must be a live queue of the provider, and `wc` must have space for `num_entries`
/// completions.
pub(crate) unsafe extern "C" fn poll<P: Provider>(
    cq: *mut ibv_cq,
    num_entries: c_int,
    wc: *mut ibv_wc,
) -> c_int {
    // SAFETY: the queue is live, and the array has space.
    unsafe {
        let queue = &from_raw::<P>(cq).queue;
        let attempt = queue.attempt();
        if !attempt.has_lock() {
            return poll_waiting::<P>(cq, num_entries, wc, attempt);
        }
        poll_locked(queue, num_entries, wc)
    }
}

/// Same as [`poll`], called if another thread holds the lock.
#[cold]
#[inline(never)]
unsafe extern "C" fn poll_waiting<P: Provider>(
    cq: *mut ibv_cq,
    num_entries: c_int,
    wc: *mut ibv_wc,
    attempt: Attempt,
) -> c_int {
    // SAFETY: as in `poll`.
    unsafe {
        let queue = &from_raw::<P>(cq).queue;
        if !queue.wait(attempt) {
            return 0;
        }
        poll_locked(queue, num_entries, wc)
    }
}

/// Polls a queue and releases its lock.
///
/// Completions are borrowed and copied one by one, because most calls find only one or two.
///
/// # Safety
/// The caller must hold the lock, and `wc` must have space for `num_entries` completions.
#[inline(always)]
unsafe fn poll_locked<Q: CqOps>(queue: &Spin<Q>, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: guaranteed by the caller. Both types of completions have the same layout, and consist
    // of integers. The reference to the queue ends before the lock is released.
    unsafe {
        let cq = queue.get();
        let mut polled = 0;
        while polled < num_entries {
            let Some(completion) = cq.next_of_several() else { break };
            completion.write_to_c(&mut *wc.cast::<Wc>().add(polled as usize));
            polled += 1;
        }
        cq.end_poll();
        queue.unlock();
        polled
    }
}

/// `ibv_req_notify_cq(3)`.
///
/// # Safety
/// `cq` must be a live queue of the provider.
pub(crate) unsafe extern "C" fn req_notify<P: Provider>(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the queue is live.
    code(unsafe { checked::<P>(cq, "req_notify_cq") }.and_then(|cq| cq.req_notify(solicited_only != 0)))
}

/// `ibv_create_cq(3)`.
///
/// # Safety
/// `context` must be open; `channel` must be null or live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    not_null_or_null!(context);
    let (Some(cqe), Some(comp_vector)) = (count(cqe), count(comp_vector)) else {
        return pointer(Err(refused("create_cq", Errno::INVAL, "a size below 1, or a negative vector")));
    };
    let init = Init {
        cqe: cqe as u32,
        cq_context,
        channel,
        comp_vector: comp_vector as u32,
        wc_flags: CqWcFlags::empty(),
        flags: CqFlags::empty(),
        parent_domain: ptr::null_mut(),
        entries: Entries::default(),
    };
    // SAFETY: guaranteed by the caller.
    pointer(unsafe { verb!(context, create_cq(context, &init)) }).cast()
}

/// `ibv_resize_cq(3)`.
///
/// # Safety
/// `cq` must be live.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    not_null!(cq);
    given_room!();
    let Some(cqe) = count(cqe) else { return fail(&refused("resize_cq", Errno::INVAL, "a size below 1")) };
    // SAFETY: the queue is live.
    code(unsafe { verb!((*cq).context, resize_cq(cq, cqe as u32)) })
}

/// `ibv_modify_cq(3)`.
///
/// # Safety
/// `cq` must be live, and `attr` must point to attributes.
pub(crate) unsafe extern "C" fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    not_null!(cq, attr);
    // SAFETY: guaranteed by the caller.
    code(unsafe { verb!((*cq).context, modify_cq(cq, &*attr)) })
}

/// `ibv_destroy_cq(3)`.
///
/// # Safety
/// `cq` must be live and must not be used afterwards if the call succeeds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    not_null!(cq);
    // SAFETY: the queue is live.
    code(unsafe { verb!((*cq).context, destroy_cq(cq)) })
}
