//! [`Buf`]: registered memory, owned by this process and posted to queues.
//!
//! ```text
//!       alloc_buf, register                post_send_buf, post_recv_buf
//!   (none) ────────────► Buf (idle) ───────────────────────────────► in flight in a queue pair
//!                        │ ▲  │ ▲  ▲                                      │
//!                 expose │ │  │ │  └──────────────────────────────────────┘ reclaim, close
//!                        ▼ │  ▼ │ thaw
//!       unexpose ◄─ Exposed  FrozenBuf ◄─ freeze
//! ```
//!
//! Invariant: the pieces of one allocation are disjoint, and each has exactly one owner. The owner
//! of a `Buf` is the only code that reads or writes its bytes. While the device may access them,
//! the `Buf` is inside a table of memory in flight, a [`FrozenBuf`](crate::FrozenBuf) or an
//! [`Exposed`](crate::Exposed), where no code can reach it.
//!
//! # Safety
//! The unsafe code here registers memory and makes slices of it, justified by the invariant above.
//! Numbers in brackets refer to the contract of [`Provider`].

#![allow(unsafe_code)]

use core::any::{Any, TypeId, type_name};
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use core::{fmt, slice};
use std::sync::Arc;

use memmap2::MmapMut;
use verbs_core::fork::Excluded;
use verbs_core::provider::{Destroy, MrOps, Provider};
use verbs_core::types::AccessFlags;
use verbs_core::{Cause, Errno, Error, Result, room};

use crate::device::pd::Pd;
use crate::handle::error::HandleError;
use crate::handle::kernel_handle::KernelHandle;
use crate::handle::registry::{Child, PdId, Registry};
use crate::memory::stable::StableMemory;

/// Registered memory owned by this process: all or part of an allocation.
///
/// The device may read and write it while it is in flight; peers cannot access it. Made by
/// [`Pd::alloc_buf`], or by [`Pd::register`] from the program's memory.
///
/// A queue owns posted memory, so no other code reads or writes the memory until it is returned:
///
/// ```compile_fail,E0382
/// # fn f(mut qp: verbs::Qp<verbs::state::Rts>, mut buf: verbs::Buf) {
/// qp.post_recv_buf(buf, ..);
/// buf[0] = 1;
/// # }
/// ```
#[doc(alias = "ibv_mr")]
pub struct Buf {
    region: Arc<Region>,
    offset: usize,
    len: usize,
}

/// An allocation and its registration, shared by all pieces.
struct Region {
    base: NonNull<u8>,
    lkey: u32,
    pd: PdId,
    devices: Arc<Registry>,
    /// Whether the device and the owner of a piece may write the memory.
    is_writable: bool,
    registration: Box<dyn Registration>,
}

// SAFETY: `base` blocked the auto impl. It points at memory that `registration` owns, and each byte
// is accessed only through the one `Buf` whose piece contains it, or through the owner of that
// `Buf`.
unsafe impl Send for Region {}
// SAFETY: as above; shared access to a region reads only its numbers.
unsafe impl Sync for Region {}

/// A provider's memory region and its memory. The trait hides the provider, so all tables of memory
/// in flight have one type.
trait Registration: Send {
    /// Deregisters the region and returns the memory.
    #[allow(clippy::type_complexity)]
    fn deregister(self: Box<Self>) -> Result<Box<dyn Any + Send>, (Box<dyn Registration>, Error)>;

    /// Returns the type of the registered memory.
    fn memory_type(&self) -> TypeId;

    /// Returns the type name of the registered memory.
    fn memory_name(&self) -> &'static str;
}

/// Registered memory with a share of its protection domain.
struct Registered<M> {
    // Released first, while the memory is mapped.
    _excluded: Excluded,
    memory: Box<M>,
    _pd: Child,
}

impl<T: MrOps + Destroy, M: Send + 'static> Registration for KernelHandle<T, Registered<M>> {
    fn deregister(self: Box<Self>) -> Result<Box<dyn Any + Send>, (Box<dyn Registration>, Error)> {
        match self.close() {
            Ok(registered) => Ok(registered.memory),
            Err(HandleError { handle, error }) => Err((Box::new(handle), error)),
        }
    }

    fn memory_type(&self) -> TypeId {
        TypeId::of::<M>()
    }

    fn memory_name(&self) -> &'static str {
        type_name::<M>()
    }
}

impl<P: Provider> Pd<P> {
    /// Allocates zeroed, page-aligned memory registered for local use, for safe posting.
    ///
    /// The memory is ordinary process memory, as from `ibv_alloc_buf`, except on mlx5 devices in
    /// confidential guests ([`CC_DMA_BOUNCE`](crate::DeviceCapFlags::CC_DMA_BOUNCE)).
    ///
    /// # Errors
    /// `ENOMEM` with [`Cause::Memlock`](crate::Cause::Memlock) if `RLIMIT_MEMLOCK` is too small, or
    /// without the cause if the system is out of memory or the device has no region left; any other
    /// errno the kernel returns.
    ///
    /// # References
    /// `ibv_reg_mr(3)`, `ibv_alloc_buf(3)`
    #[doc(alias = "ibv_reg_mr")]
    #[doc(alias = "ibv_alloc_buf")]
    #[doc(alias = "ibv_reg_buf_mr")]
    #[doc(alias = "IBV_REG_MR_MASK_BUF")]
    pub fn alloc_buf(&self, len: usize) -> Result<Buf> {
        Buf::alloc(self, len)
    }

    /// Registers the program's memory for local use, in place and without copying.
    /// [`Buf::into_memory`] returns the memory.
    ///
    /// ```
    /// # #[cfg(feature = "soft")]
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let pd = verbs::soft::auto()?.open()?.alloc_pd()?;
    /// let buf = pd.register(vec![7_u8; 4096])?;
    /// assert_eq!(buf[4095], 7);
    /// let bytes: Vec<u8> = buf.into_memory()?;
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "soft"))]
    /// # fn main() {}
    /// ```
    ///
    /// # Errors
    /// Returns the memory with the error: `ENOMEM` with [`Cause::Memlock`](crate::Cause::Memlock)
    /// if `RLIMIT_MEMLOCK` is too small, or without the cause if the device has no region left; any
    /// other errno the kernel returns.
    ///
    /// # References
    /// `ibv_reg_mr(3)`
    #[doc(alias = "ibv_reg_mr")]
    pub fn register<M: StableMemory>(&self, memory: M) -> Result<Buf, HandleError<M>> {
        Buf::register(self, memory)
    }
}

impl Buf {
    pub(crate) fn alloc<P: Provider>(pd: &Pd<P>, len: usize) -> Result<Self> {
        const VERB: &str = "alloc_buf";
        let registry = pd.context().registry();
        let shortage = || registry.error(VERB, Errno::NOMEM).because(Cause::Allocation { bytes: len as u64 });
        if len > isize::MAX as usize {
            return Err(shortage());
        }
        let map = MmapMut::map_anon(len.max(1)).map_err(|error| match Errno::from_io(&error) {
            Errno::NOMEM => shortage(),
            errno => registry.error(VERB, errno),
        })?;
        room::remains(len).map_err(|_| shortage())?;
        Self::register(pd, Allocated { map, len }).map_err(|failed| failed.error)
    }

    pub(crate) fn register<P: Provider, M: StableMemory>(
        pd: &Pd<P>,
        memory: M,
    ) -> Result<Self, HandleError<M>> {
        if let Err(error) = pd.context().registry().room("reg_mr") {
            return Err(HandleError { handle: memory, error });
        }
        let mut memory = Box::new(memory);
        let (base, len) = (memory.stable_mut_ptr(), memory.stable_len());
        // SAFETY: `StableMemory` says that the bytes are mapped and accessed through `base` only
        // until the value is used, and it is used only once the region is deregistered.
        unsafe { Self::register_at(pd, memory, base, len, AccessFlags::LOCAL_WRITE) }
    }

    /// Registers `len` bytes at `base`, which `memory` owns.
    ///
    /// # Safety
    /// The bytes must stay mapped, initialised, and accessed only through the buffer, until
    /// `memory` is used; with `LOCAL_WRITE` they must be writable through `base`.
    pub(crate) unsafe fn register_at<P: Provider, M: Send + 'static>(
        pd: &Pd<P>,
        memory: Box<M>,
        base: *mut u8,
        len: usize,
        access: AccessFlags,
    ) -> Result<Self, HandleError<M>> {
        let registry = pd.context().registry();
        let excluded = match pd.exclude("reg_mr", base, len, access) {
            Ok(excluded) => excluded,
            Err(error) => return Err(HandleError { handle: *memory, error }),
        };
        // While the provider's code runs, unwinding must not release memory, because the provider
        // may have made a key for it.
        let memory = ManuallyDrop::new(memory);
        // SAFETY: the bytes stay mapped until the kernel handle has deregistered the region, or
        // registering has failed [18]; from here on they are accessed through `base` only, by the
        // rules of this module.
        let raw = unsafe {
            let iova = base.expose_provenance() as u64;
            pd.register_raw(base, len, iova, access)
        };
        let memory = ManuallyDrop::into_inner(memory);
        let raw = match raw {
            Ok(raw) => raw,
            Err(error) => return Err(HandleError { handle: *memory, error }),
        };
        // From here on, unwinding destroys the region before it releases the memory.
        let handle = KernelHandle::new(raw, Registered { _excluded: excluded, memory, _pd: pd.child_mr() });
        let lkey = handle.get().lkey();
        let region = Region {
            base: NonNull::new(base).unwrap_or(NonNull::dangling()),
            lkey,
            pd: pd.id(),
            devices: Arc::clone(registry),
            is_writable: access.contains(AccessFlags::LOCAL_WRITE),
            registration: Box::new(handle),
        };
        Ok(Self { region: Arc::new(region), offset: 0, len })
    }

    /// Returns the buffer's length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the buffer is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address of the first byte, for work requests.
    pub fn addr(&self) -> u64 {
        self.start().as_ptr().expose_provenance() as u64
    }

    /// Returns the key for work requests of this process. The key covers the whole allocation.
    pub fn lkey(&self) -> u32 {
        self.region.lkey
    }

    /// Splits the buffer in two: this buffer keeps the bytes before `at`, the returned buffer
    /// starts at `at`.
    ///
    /// The two buffers share a registration and can be in different queues at the same time.
    ///
    /// # Panics
    /// If `at` lies beyond the end.
    #[must_use = "the bytes from `at` on are in the returned piece"]
    pub fn split_off(&mut self, at: usize) -> Self {
        assert!(at <= self.len, "split at {at}, but there are {} bytes", self.len);
        let tail = Self { region: Arc::clone(&self.region), offset: self.offset + at, len: self.len - at };
        self.len = at;
        tail
    }

    /// Appends the buffer that starts at the end of this buffer, undoing
    /// [`split_off`](Self::split_off).
    ///
    /// # Errors
    /// Returns `tail` if it does not start at the end of this buffer, in the same allocation.
    pub fn unsplit(&mut self, tail: Self) -> Result<(), HandleError<Self>> {
        if !Arc::ptr_eq(&self.region, &tail.region) || self.offset + self.len != tail.offset {
            let reason = "the piece does not follow this one in the same allocation";
            return Err(HandleError::refused(tail, "unsplit", reason));
        }
        self.len += tail.len;
        Ok(())
    }

    /// Deregisters and releases the allocation. Dropping its last piece does the same and leaks
    /// memory the kernel refuses to deregister.
    ///
    /// # Errors
    /// Returns the buffer with the error: `EBUSY` with [`Cause::InUse`] while other pieces of the
    /// allocation live; any other errno the kernel returns.
    #[doc(alias = "ibv_dereg_mr")]
    #[doc(alias = "ibv_free_buf")]
    pub fn close(self) -> Result<(), HandleError<Self>> {
        self.deregister().map(drop)
    }

    /// Deregisters memory [registered](Pd::register) in place and returns the memory.
    ///
    /// # Errors
    /// Returns the buffer with the error: `EBUSY` with [`Cause::InUse`] while other pieces of the
    /// allocation live; `EINVAL` with [`Cause::Other`] if the memory does not have the type `M`;
    /// any other errno the kernel returns.
    #[doc(alias = "ibv_dereg_mr")]
    // The panic below is unreachable.
    #[allow(clippy::missing_panics_doc)]
    pub fn into_memory<M: StableMemory>(self) -> Result<M, HandleError<Self>> {
        self.into_memory_of::<M>()
    }

    pub(crate) fn into_memory_of<M: 'static>(self) -> Result<M, HandleError<Self>> {
        if self.region.registration.memory_type() != TypeId::of::<M>() {
            let (has, asked) = (self.region.registration.memory_name(), type_name::<M>());
            let reason = format!("the buffer holds {has}, not {asked}").into();
            let error = self.region.devices.error("dereg_mr", Errno::INVAL);
            let error = error.because(Cause::Other { reason });
            return Err(HandleError { handle: self, error });
        }
        let memory = self.deregister()?;
        Ok(*memory.downcast().expect("the type was just compared"))
    }

    /// Deregisters the region and returns the memory.
    fn deregister(self) -> Result<Box<dyn Any + Send>, HandleError<Self>> {
        let Self { region, offset, len } = self;
        let region = match Arc::try_unwrap(region) {
            Ok(region) => region,
            Err(region) => {
                let error = region.devices.in_use("dereg_mr", "other pieces of the same allocation");
                return Err(HandleError { handle: Self { region, offset, len }, error });
            }
        };
        let Region { base, lkey, pd, devices, is_writable, registration } = region;
        registration.deregister().map_err(|(registration, error)| {
            let region = Region { base, lkey, pd, devices, is_writable, registration };
            HandleError { handle: Self { region: Arc::new(region), offset, len }, error }
        })
    }

    /// Returns whether the device and the owner may write the memory: false only inside a
    /// [`FrozenBuf`](crate::FrozenBuf).
    pub(crate) fn is_writable(&self) -> bool {
        self.region.is_writable
    }

    pub(crate) fn devices(&self) -> &Registry {
        &self.region.devices
    }

    pub(crate) fn pd_id(&self) -> PdId {
        self.region.pd
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        // SAFETY: a piece lies within its allocation.
        unsafe { self.region.base.add(self.offset) }
    }
}

/// Zeroed pages allocated by this library.
struct Allocated {
    map: MmapMut,
    len: usize,
}

// SAFETY: the mapping stays until the value is dropped, and is at least `len` bytes long; anonymous
// memory is zeroed.
unsafe impl StableMemory for Allocated {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    fn stable_len(&self) -> usize {
        self.len
    }
}

impl Deref for Buf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the piece lies within live, initialised memory; only this `Buf` gives access to
        // it. It is in no queue, so that every request that named it has ended [3, 5, 9], and no
        // peer can access it [11, 12].
        unsafe { slice::from_raw_parts(self.start().as_ptr(), self.len) }
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the slice borrows this `Buf` mutably. A `Buf` that is not writable
        // is inside a `FrozenBuf`, which borrows it immutably only.
        unsafe { slice::from_raw_parts_mut(self.start().as_ptr(), self.len) }
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buf")
            .field("addr", &format_args!("{:#x}", self.addr()))
            .field("len", &self.len)
            .field("lkey", &self.region.lkey)
            .finish_non_exhaustive()
    }
}
