//! [`Exposed`]: memory that peers may access.
//!
//! No `&[u8]` exists while memory is exposed, because a peer may write at any time. Programs access
//! it through atomic words and by copying. A copy can be torn: it may mix bytes written by two
//! peers or hold half of a write. Aligned words of 8 bytes are copied whole. The copies use relaxed
//! atomic accesses, because a device may be another thread of this process (provider-soft), which
//! accesses such memory in the same way: see [`verbs_core::exposed`].
//!
//! # Safety
//! The unsafe code here registers memory for peers and copies to and from it. Numbers in brackets
//! refer to the contract of [`Provider`].

#![allow(unsafe_code)]

use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::RangeBounds;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bitflags::bitflags;
use verbs_core::exposed::ExposedBytes;
use verbs_core::provider::{Destroy, MrOps, Provider};
use verbs_core::types::{AccessFlags, AtomicCap, DeviceCapFlags};
use verbs_core::{Cause, Errno, Error, Result};

use crate::device::context::Context;
use crate::device::pd::Pd;
use crate::handle::error::HandleError;
use crate::handle::kernel_handle::KernelHandle;
use crate::handle::registry::{PdId, Registry};
use crate::memory::buffer::Buf;
use crate::memory::remote::RemoteMr;

bitflags! {
    /// The rights of peers to access exposed memory.
    ///
    /// [`all`](Self::all) contains the rights of all devices; most devices reject some of them.
    /// [`Context::remote_access`](crate::Context::remote_access) returns the rights of one device.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct RemoteAccess: u32 {
        /// The right to execute RDMA reads.
        #[doc(alias = "IBV_ACCESS_REMOTE_READ")]
        const READ = AccessFlags::REMOTE_READ.bits();
        /// The right to execute RDMA writes.
        #[doc(alias = "IBV_ACCESS_REMOTE_WRITE")]
        const WRITE = AccessFlags::REMOTE_WRITE.bits();
        /// The right to execute atomic operations.
        #[doc(alias = "IBV_ACCESS_REMOTE_ATOMIC")]
        const ATOMIC = AccessFlags::REMOTE_ATOMIC.bits();
        /// The right to execute flushes to global visibility.
        #[doc(alias = "IBV_ACCESS_FLUSH_GLOBAL")]
        const FLUSH_GLOBAL = AccessFlags::FLUSH_GLOBAL.bits();
        /// The right to execute flushes to persistence, for persistent memory.
        #[doc(alias = "IBV_ACCESS_FLUSH_PERSISTENT")]
        const FLUSH_PERSISTENT = AccessFlags::FLUSH_PERSISTENT.bits();
    }
}

/// The access flags that a queue pair needs for this access:
/// [`InitAttr::access`](crate::InitAttr::access).
impl From<RemoteAccess> for AccessFlags {
    fn from(access: RemoteAccess) -> Self {
        Self::from_bits_retain(access.bits())
    }
}

/// Memory that peers may access, with the rights given when it was exposed, until its last share is
/// dropped. Made by [`Pd::expose`](crate::Pd::expose), or by
/// [`Pd::expose_to_windows`](crate::Pd::expose_to_windows) if requests grant and revoke access.
/// Cheap to clone.
///
/// Only the bytes of the [`Buf`] are exposed, under their own key; neighbouring bytes are not. The
/// queue pair must allow the access too: [`ConnectAttr::access`](crate::ConnectAttr::access), or
/// [`InitAttr::access`](crate::InitAttr::access).
///
/// Exposed memory can be posted as well, for sends, receives and RDMA reads.
///
/// A peer may write the memory at any time, so it cannot be borrowed as bytes:
///
/// ```compile_fail,E0308
/// # fn f(exposed: &verbs::Exposed) {
/// let bytes: &[u8] = exposed;
/// # }
/// ```
#[derive(Clone)]
pub struct Exposed {
    inner: Arc<Inner>,
}

struct Inner {
    addr: u64,
    len: usize,
    lkey: u32,
    rkey: u32,
    pd: PdId,
    bytes: ExposedBytes,
    devices: Arc<Registry>,
    /// Whether peers have access only through bound windows.
    is_for_windows: bool,
    /// Whether the device may still write through a window binding that has ended.
    is_lingering: AtomicBool,
    registration: Mutex<Box<dyn Registration>>,
}

/// A provider's memory region over a buffer. The trait hides the provider, so all tables of memory
/// in flight have one type.
trait Registration: Send {
    fn deregister(self: Box<Self>) -> Result<Buf, (Box<dyn Registration>, Error)>;
}

impl<T: MrOps + Destroy> Registration for KernelHandle<T, Buf> {
    fn deregister(self: Box<Self>) -> Result<Buf, (Box<dyn Registration>, Error)> {
        self.close()
            .map_err(|HandleError { handle, error }| (Box::new(handle) as Box<dyn Registration>, error))
    }
}

impl<P: Provider> Context<P> {
    /// Returns the peer accesses supported by this device. Use them for
    /// [`ConnectAttr::access`](crate::ConnectAttr::access) and [`Pd::expose`](crate::Pd::expose) to
    /// permit everything the device supports for ordinary memory; [`RemoteAccess::all`] includes
    /// rights refused by most devices. [`RemoteAccess::FLUSH_PERSISTENT`] is not included, because
    /// it needs persistent memory.
    ///
    /// ```
    /// # #[cfg(feature = "soft")]
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use verbs::RemoteAccess;
    ///
    /// let context = verbs::soft::auto()?.open()?;
    /// let access = context.remote_access()?;
    /// assert!(access.contains(RemoteAccess::READ | RemoteAccess::WRITE | RemoteAccess::ATOMIC));
    /// let memory = context.alloc_pd()?;
    /// let exposed = memory.expose(memory.alloc_buf(4096)?, access)?;
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "soft"))]
    /// # fn main() {}
    /// ```
    ///
    /// # Errors
    /// Same as [`query_device`](Self::query_device).
    pub fn remote_access(&self) -> Result<RemoteAccess> {
        let device = self.query_device_ex()?;
        let caps = device.device_cap_flags_ex | device.orig_attr.device_cap_flags;
        let mut access = RemoteAccess::READ | RemoteAccess::WRITE;
        access.set(RemoteAccess::ATOMIC, device.orig_attr.atomic_cap != AtomicCap::NONE);
        access.set(RemoteAccess::FLUSH_GLOBAL, caps.contains(DeviceCapFlags::FLUSH_GLOBAL));
        Ok(access)
    }
}

impl<P: Provider> Pd<P> {
    /// Lets peers access a buffer. Peers have the rights that are in both `access` and the queue
    /// pair's access flags.
    ///
    /// # Errors
    /// Returns the buffer with the error: `EINVAL` for an empty `access`; otherwise as
    /// [`register`](Self::register).
    #[doc(alias = "ibv_reg_mr")]
    pub fn expose(&self, buf: Buf, access: RemoteAccess) -> Result<Exposed, HandleError<Buf>> {
        Exposed::new(self, buf, access)
    }

    /// Exposes a buffer to peers, but only through bound [`Window`](crate::Window)s. The memory is
    /// registered once for all bindings.
    ///
    /// # Errors
    /// Returns the buffer with an error as from [`register`](Self::register).
    #[doc(alias = "IBV_ACCESS_MW_BIND")]
    pub fn expose_to_windows(&self, buf: Buf) -> Result<Exposed, HandleError<Buf>> {
        Exposed::to_windows(self, buf)
    }
}

impl Exposed {
    pub(crate) fn new<P: Provider>(
        pd: &Pd<P>,
        buf: Buf,
        access: RemoteAccess,
    ) -> Result<Self, HandleError<Buf>> {
        // A region without remote rights is accessed by plain copies (promise 13 of the contract),
        // which would race with the copies here.
        let access = access & RemoteAccess::all();
        if access.is_empty() {
            let reason = "memory is exposed with at least one right, such as READ, WRITE or ATOMIC".into();
            let registry = pd.context().registry();
            let error = registry.error("expose", Errno::INVAL).because(Cause::Other { reason });
            return Err(HandleError { handle: buf, error });
        }
        Self::register(pd, buf, access.into())
    }

    pub(crate) fn to_windows<P: Provider>(pd: &Pd<P>, buf: Buf) -> Result<Self, HandleError<Buf>> {
        Self::register(pd, buf, AccessFlags::MW_BIND)
    }

    fn register<P: Provider>(pd: &Pd<P>, buf: Buf, access: AccessFlags) -> Result<Self, HandleError<Buf>> {
        let is_for_windows = access.contains(AccessFlags::MW_BIND);
        let access = access | AccessFlags::LOCAL_WRITE;
        // While the provider's code runs, unwinding must not free memory, because the provider may
        // have made a key for it.
        let buf = ManuallyDrop::new(buf);
        // SAFETY: the `Buf` owns the bytes, and the kernel handle keeps it until the region is
        // deregistered [12]; until then they are accessed through `ExposedBytes` only. After an
        // error no region exists [18].
        let raw = unsafe { pd.register_raw(buf.start().as_ptr(), buf.len(), buf.addr(), access) };
        let buf = ManuallyDrop::into_inner(buf);
        let raw = match raw {
            Ok(raw) => raw,
            Err(error) => return Err(HandleError { handle: buf, error }),
        };
        let start = buf.start();
        let (addr, len) = (buf.addr(), buf.len());
        // From here on, unwinding destroys the region before it releases the memory.
        let handle = KernelHandle::new(raw, buf);
        // SAFETY: the kept `Buf` owns the bytes, which are initialised. They are registered as a
        // whole under their own key, and this process accesses them only like this, including a
        // device that is one of its threads [13].
        let bytes = unsafe { ExposedBytes::new(start.as_ptr(), len) };
        let inner = Inner {
            addr,
            len,
            lkey: handle.get().lkey(),
            rkey: handle.get().rkey(),
            pd: pd.id(),
            bytes,
            devices: Arc::clone(pd.context().registry()),
            is_for_windows,
            is_lingering: AtomicBool::new(false),
            registration: Mutex::new(Box::new(handle)),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Returns the address, length and key that peers use to access the memory. The key of memory
    /// that is [exposed to windows](Pd::expose_to_windows) gives no access.
    pub fn remote(&self) -> RemoteMr {
        RemoteMr { addr: self.addr(), length: self.len() as u64, rkey: self.rkey() }
    }

    /// Returns the address of the first byte, for peers and work requests.
    pub fn addr(&self) -> u64 {
        self.inner.addr
    }

    /// Returns the length of the memory in bytes.
    pub fn len(&self) -> usize {
        self.inner.len
    }

    /// Returns whether the memory is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the remote key, for peers.
    pub fn rkey(&self) -> u32 {
        self.inner.rkey
    }

    /// Returns the local key, for work requests of this process.
    pub fn lkey(&self) -> u32 {
        self.inner.lkey
    }

    /// Copies bytes from the memory, starting at `offset`. The copy can be torn.
    ///
    /// # Panics
    /// If the bytes extend beyond the end of the memory.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) {
        let wanted = into.len();
        assert!(self.inner.bytes.read(offset, into), "{wanted} bytes at {offset} of {}", self.len());
    }

    /// Copies bytes to the memory, starting at `offset`.
    ///
    /// # Panics
    /// If the bytes extend beyond the end of the memory.
    pub fn write_at(&self, offset: usize, from: &[u8]) {
        let written = self.inner.bytes.write(offset, from);
        assert!(written, "{} bytes at {offset} of {}", from.len(), self.len());
    }

    /// Returns the 8 bytes at `offset` as an atomic word in the machine's byte order; `None` if
    /// they are not aligned to 8 bytes or extend beyond the end.
    ///
    /// A peer's RDMA atomics are atomic with respect to accesses by this process if the device
    /// guarantees it ([`DeviceAttr::atomic_cap`](crate::DeviceAttr::atomic_cap)). On soft devices
    /// they always are, except in memory that the kernel accesses for the device: see [the
    /// guide](crate::guide::memory).
    ///
    /// ```no_run
    /// # fn f(counters: &verbs::Exposed) -> Option<()> {
    /// use std::sync::atomic::Ordering;
    /// while counters.atomic(0)?.load(Ordering::Acquire) < 10 {}
    /// # Some(())
    /// # }
    /// ```
    pub fn atomic(&self, offset: usize) -> Option<&AtomicU64> {
        self.inner.bytes.word(offset)
    }

    /// Calls `each` with the bytes of a range in order, in pieces of at most 8 bytes, without
    /// copying the whole range.
    ///
    /// # Panics
    /// If the range lies outside the memory.
    pub fn for_each_piece(&self, range: impl RangeBounds<usize>, mut each: impl FnMut(&[u8])) {
        let within = crate::memory::mr::within(range, self.len());
        let (mut offset, len) =
            within.unwrap_or_else(|(start, end)| panic!("{start}..{end} of {} bytes", self.len()));
        let end = offset + len;
        while offset < end {
            // Ends at the next boundary of an access word.
            let aligned = 8 - (self.inner.addr as usize + offset) % 8;
            let len = aligned.min(end - offset);
            let mut piece = [0; 8];
            self.read_at(offset, &mut piece[..len]);
            each(&piece[..len]);
            offset += len;
        }
    }

    /// Returns the bytes as plain memory. Only for memory that was [exposed to
    /// windows](Pd::expose_to_windows) and has no bound window, so peers have no access.
    ///
    /// Unlike [`unexpose`](Self::unexpose), this needs no system call. Afterwards, windows can be
    /// bound to the memory again.
    ///
    /// # Errors
    /// - `EBUSY` with [`Cause::InUse`](crate::Cause::InUse) while other shares live, held by bound
    ///   windows, requests in flight or the program.
    /// - `EINVAL` with [`Cause::Other`](crate::Cause::Other) for memory that peers can access
    ///   through its own key.
    /// - `EBUSY` with [`Cause::Other`](crate::Cause::Other) if the device may still write through
    ///   an ended binding, as rxe may after a local revocation: `unexpose` stops these writes. A
    ///   peer's invalidation has no such effect.
    ///
    /// ```compile_fail,E0502
    /// # use verbs::{Exposed, Qp, Window, state::Rts};
    /// # fn f(qp: &mut Qp<Rts>, mut memory: Exposed, window: Window) {
    /// # use verbs::{RemoteAccess, SendFlags};
    /// let bytes = memory.bytes_mut().unwrap();
    /// qp.post_bind(SendFlags::empty(), window, &memory, .., RemoteAccess::WRITE);
    /// bytes[0] = 1;
    /// # }
    /// ```
    pub fn bytes_mut(&mut self) -> Result<&mut [u8], Error> {
        const VERB: &str = "bytes_mut";
        if !self.is_for_windows() {
            let reason = "peers can access the memory by its own key: unexpose returns plain memory".into();
            let error = self.inner.devices.error(VERB, Errno::INVAL);
            return Err(error.because(Cause::Other { reason }));
        }
        // This only checks uniqueness. The slice is made from the address below, because a borrow
        // from `get_mut` would extend to the errors.
        if Arc::get_mut(&mut self.inner).is_none() {
            return Err(self.inner.devices.in_use(VERB, "windows, or other shares of the same memory"));
        }
        if self.inner.is_lingering.load(Ordering::Relaxed) {
            let reason =
                "a window was revoked on a device that may still write for it: unexpose waits for that";
            let error = self.inner.devices.error(VERB, Errno::BUSY);
            return Err(error.because(Cause::Other { reason: reason.into() }));
        }
        let start = core::ptr::with_exposed_provenance_mut::<u8>(self.inner.addr as usize);
        // SAFETY: the kept `Buf` owns the bytes, which are initialised; it exposed its address. No
        // other share exists, and the borrow of this one keeps it so. The region has no remote
        // rights [11], so that the device accesses it for requests of this process and through
        // windows. Requests in flight and bound windows hold shares, which they release only when
        // their accesses have ended, or after `is_lingering` was set (`crate::memory::window`). The
        // uniqueness check synchronises with the releases of all other shares.
        Ok(unsafe { core::slice::from_raw_parts_mut(start, self.inner.len) })
    }

    /// Returns whether windows can be bound to the memory.
    pub fn is_for_windows(&self) -> bool {
        self.inner.is_for_windows
    }

    /// Records that the device may still write through a window binding that has ended.
    pub(crate) fn mark_lingering(&self) {
        self.inner.is_lingering.store(true, Ordering::Relaxed);
    }

    /// Revokes the key and returns the memory. Dropping the last share revokes the key and releases
    /// the memory.
    ///
    /// # Errors
    /// Returns the memory with the error. Peers may still be able to access the memory.
    ///
    /// - `EBUSY` with [`Cause::InUse`](crate::Cause::InUse) while other shares live, including
    ///   those in flight or held by bound windows.
    /// - `ETIMEDOUT` on rxe if the kernel gave up waiting for its own references to be released.
    ///   Every later call returns the same error, and dropping leaks the memory.
    /// - Any other errno the kernel returns; notably `EIO` if the device fails to destroy the key.
    #[doc(alias = "ibv_dereg_mr")]
    pub fn unexpose(self) -> Result<Buf, HandleError<Self>> {
        let inner = match Arc::try_unwrap(self.inner) {
            Ok(inner) => inner,
            Err(inner) => {
                let error = inner.devices.in_use("dereg_mr", "other shares of the same memory");
                return Err(HandleError { handle: Self { inner }, error });
            }
        };
        let Inner { addr, len, lkey, rkey, pd, bytes, devices, is_for_windows, is_lingering, registration } =
            inner;
        let registration = registration.into_inner().unwrap_or_else(PoisonError::into_inner);
        registration.deregister().map_err(|(registration, error)| {
            let registration = Mutex::new(registration);
            let inner = Inner {
                addr,
                len,
                lkey,
                rkey,
                pd,
                bytes,
                devices,
                is_for_windows,
                is_lingering,
                registration,
            };
            HandleError { handle: Self { inner: Arc::new(inner) }, error }
        })
    }

    pub(crate) fn pd_id(&self) -> PdId {
        self.inner.pd
    }
}

impl fmt::Debug for Exposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Exposed").field(&self.remote()).finish()
    }
}
