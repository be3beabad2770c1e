//! [`Pd`]: a protection domain, and what is made in one.
//!
//! # Safety
//! The unsafe code here is the raw registration of memory, which passes the caller's promise on.

#![allow(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use verbs_core::Result;
use verbs_core::provider::{ContextOps, Erased, NamedProvider, Provider};
use verbs_core::types::{AccessFlags, AhAttr};

use crate::kernel_handle::KernelHandle;
use crate::qp::state::Reset;
use crate::registry::{Child, PdId, Tally};
use crate::stable::{StableBytes, StableMemory};
use crate::{Ah, Buf, Context, Exposed, FrozenBuf, HandleError, Mr, Qp, QpInit, RemoteAccess};

/// A protection domain: what queue pairs of one domain can reach, those of another cannot. Cheap to
/// clone.
///
/// # References
/// `ibv_alloc_pd(3)`
#[doc(alias = "ibv_pd")]
pub struct Pd<P: Provider = Erased> {
    inner: Arc<Inner<P>>,
}

struct Inner<P: Provider> {
    raw: Raw<P>,
    id: PdId,
    context: Context<P>,
    mrs: Tally,
    qps: Tally,
    ahs: Tally,
}

enum Raw<P: Provider> {
    Own(KernelHandle<P::Pd, Child>),
    /// Made static, while clones and children of the erased one live on.
    Within(Arc<Inner<Erased>>),
}

impl<P: Provider> Pd<P> {
    pub(crate) fn alloc(context: &Context<P>) -> Result<Self> {
        let raw = context.raw().alloc_pd()?;
        let child = context.child(&context.registry().pd_tally);
        Ok(Self {
            inner: Arc::new(Inner {
                raw: Raw::Own(KernelHandle::new(raw, child)),
                id: PdId::next(),
                context: context.clone(),
                mrs: Tally::default(),
                qps: Tally::default(),
                ahs: Tally::default(),
            }),
        })
    }

    /// The device it belongs to.
    pub fn context(&self) -> &Context<P> {
        &self.inner.context
    }

    /// The provider's own protection domain, for what it has beyond verbs.
    // Nothing that a program does makes it panic.
    #[allow(clippy::missing_panics_doc)]
    pub fn raw(&self) -> &P::Pd {
        match &self.inner.raw {
            Raw::Own(handle) => handle.get(),
            Raw::Within(erased) => match &erased.raw {
                Raw::Own(handle) => handle.get().downcast_ref().expect("downcast looked at the type"),
                Raw::Within(_) => unreachable!("an erased protection domain is within no other"),
            },
        }
    }

    /// Registers memory of the caller's: layer 1, for any scheme of ownership.
    /// [`alloc_buf`](Self::alloc_buf) is the safe way.
    ///
    /// # Safety
    /// While the region is registered the device may read the bytes, and with
    /// [`LOCAL_WRITE`](AccessFlags::LOCAL_WRITE) write them, whenever a work request or (with
    /// remote rights) a peer says so. The bytes must stay mapped, and whoever accesses them must be
    /// ready for that.
    ///
    /// # Errors
    /// [`Cause::Memlock`](crate::Cause::Memlock) where `RLIMIT_MEMLOCK` is in the way; otherwise
    /// what the kernel answers.
    ///
    /// # References
    /// `ibv_reg_mr(3)`
    #[doc(alias = "ibv_reg_mr")]
    pub unsafe fn reg_mr(&self, addr: *mut u8, length: usize, access: AccessFlags) -> Result<Mr<P>> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.reg_mr_iova(addr, length, addr.expose_provenance() as u64, access) }
    }

    /// As [`reg_mr`](Self::reg_mr), of memory that work requests address from `iova` on.
    ///
    /// # Safety
    /// As [`reg_mr`](Self::reg_mr).
    ///
    /// # Errors
    /// As [`reg_mr`](Self::reg_mr).
    #[doc(alias = "ibv_reg_mr_iova")]
    pub unsafe fn reg_mr_iova(
        &self,
        addr: *mut u8,
        length: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<Mr<P>> {
        // SAFETY: the caller's promise is the same.
        let raw = unsafe { self.register_raw(addr, length, iova, access) }?;
        Ok(Mr::new(raw, self.child(&self.inner.mrs), iova, length))
    }

    /// Page-aligned memory, zeroed and registered for local use: what safe posting sends from and
    /// receives into.
    ///
    /// # Errors
    /// [`Cause::Memlock`](crate::Cause::Memlock) where `RLIMIT_MEMLOCK` is in the way; `ENOMEM`
    /// where there is no memory; otherwise what the kernel answers.
    ///
    /// # References
    /// `ibv_reg_mr(3)`
    #[doc(alias = "ibv_reg_mr")]
    pub fn alloc_buf(&self, len: usize) -> Result<Buf> {
        Buf::alloc(self, len)
    }

    /// Registers memory of the program's for local use, in place: nothing is copied.
    /// [`Buf::into_memory`] returns it.
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
    /// The memory, and why: [`Cause::Memlock`](crate::Cause::Memlock) where `RLIMIT_MEMLOCK` is in
    /// the way; any errno that the kernel returns.
    ///
    /// # References
    /// `ibv_reg_mr(3)`
    #[doc(alias = "ibv_reg_mr")]
    pub fn register<M: StableMemory>(&self, memory: M) -> Result<Buf, HandleError<M>> {
        Buf::register(self, memory)
    }

    /// Registers read-only memory of the program's, in place: a mapped file, shared or static
    /// bytes. [`FrozenBuf::into_memory`] returns it.
    ///
    /// # Errors
    /// As [`register`](Self::register).
    ///
    /// # References
    /// `ibv_reg_mr(3)`
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_bytes<M: StableBytes>(&self, memory: M) -> Result<FrozenBuf, HandleError<M>> {
        let memory = Box::new(memory);
        let (base, len) = (memory.as_ptr().cast_mut(), memory.len());
        // SAFETY: `StableBytes` says that the bytes are mapped, and not written, until the value is
        // used, which is when it is deregistered. A frozen buffer only reads, and without
        // `LOCAL_WRITE` so does the device.
        unsafe { Buf::register_at(self, memory, base, len, AccessFlags::empty()) }.map(Buf::freeze)
    }

    /// Lets peers access a piece of memory, as far as `access` says and the queue pair's own access
    /// flags agree.
    ///
    /// # Errors
    /// The piece, and any errno that the kernel returns.
    #[doc(alias = "ibv_reg_mr")]
    pub fn expose(&self, buf: Buf, access: RemoteAccess) -> Result<Exposed, HandleError<Buf>> {
        Exposed::new(self, buf, access)
    }

    /// A queue pair, in the state RESET.
    ///
    /// # Errors
    /// [`Cause::Limit`](crate::Cause::Limit) for a size that the device does not have;
    /// [`Cause::Foreign`](crate::Cause::Foreign) for another device's completion queues; otherwise
    /// what the kernel answers.
    ///
    /// # References
    /// `ibv_create_qp(3)`
    #[doc(alias = "ibv_create_qp")]
    pub fn create_qp(&self, init: &QpInit<P>) -> Result<Qp<Reset, P>> {
        Qp::create(self, init)
    }

    /// An address handle: the path to a peer, for datagrams.
    ///
    /// # Errors
    /// [`Cause::Gid`](crate::Cause::Gid) for a source GID that does not exist; otherwise what the
    /// kernel answers.
    ///
    /// # References
    /// `ibv_create_ah(3)`
    #[doc(alias = "ibv_create_ah")]
    pub fn create_ah(&self, attr: &AhAttr) -> Result<Ah<P>> {
        let raw = self.context().raw().create_ah(self.raw(), attr)?;
        Ok(Ah::new(raw, self.child(&self.inner.ahs)))
    }

    /// Deallocates it, if nothing made in it is left. Dropping does the same, later.
    ///
    /// # Errors
    /// [`Cause::InUse`](crate::Cause::InUse) with what is made in it and still alive, or what the
    /// kernel answers, and the handle.
    ///
    /// # References
    /// `ibv_dealloc_pd(3)`
    #[doc(alias = "ibv_dealloc_pd")]
    pub fn close(self) -> Result<(), HandleError<Self>> {
        let inner = match Arc::try_unwrap(self.inner) {
            Ok(inner) => inner,
            Err(inner) => {
                let error = inner.context.registry().in_use("dealloc_pd", inner.users());
                return Err(HandleError { handle: Self { inner }, error });
            }
        };
        let Inner { raw, id, context, mrs, qps, ahs } = inner;
        let (raw, error) = match raw {
            Raw::Own(handle) => match handle.close() {
                Ok(_) => return Ok(()),
                Err(HandleError { handle, error }) => (Raw::Own(handle), error),
            },
            Raw::Within(erased) => match (Pd { inner: erased }).close() {
                Ok(()) => return Ok(()),
                Err(HandleError { handle, error }) => (Raw::Within(handle.inner), error),
            },
        };
        let handle = Self { inner: Arc::new(Inner { raw, id, context, mrs, qps, ahs }) };
        Err(HandleError { handle, error })
    }

    /// A provider's memory region, without the handle.
    ///
    /// # Safety
    /// As [`reg_mr`](Self::reg_mr).
    pub(crate) unsafe fn register_raw(
        &self,
        addr: *mut u8,
        length: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<P::Mr> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.context().raw().reg_mr(self.raw(), addr, length, iova, access) }
    }

    pub(crate) fn id(&self) -> PdId {
        self.inner.id
    }

    pub(crate) fn child_mr(&self) -> Child {
        self.child(&self.inner.mrs)
    }

    pub(crate) fn child_qp(&self) -> Child {
        self.child(&self.inner.qps)
    }

    fn child(&self, tally: &Tally) -> Child {
        Child::new(Arc::<Inner<P>>::clone(&self.inner), tally)
    }
}

impl<P: Provider> Inner<P> {
    /// What keeps it alive, besides a handle of it.
    fn users(&self) -> &'static str {
        let tallies =
            [(&self.qps, "queue pairs"), (&self.mrs, "memory regions"), (&self.ahs, "address handles")];
        tallies.into_iter().find(|(tally, _)| tally.any()).map_or("clones of the handle", |(_, what)| what)
    }
}

impl Pd<Erased> {
    /// The same protection domain with its provider named.
    ///
    /// # Errors
    /// The handle, when the device is of another provider.
    pub fn downcast<P: NamedProvider>(self) -> Result<Pd<P>, Self> {
        let Ok(context) = self.inner.context.clone().downcast::<P>() else { return Err(self) };
        Ok(Pd {
            inner: Arc::new(Inner {
                id: self.inner.id,
                raw: Raw::Within(self.inner),
                context,
                mrs: Tally::default(),
                qps: Tally::default(),
                ahs: Tally::default(),
            }),
        })
    }
}

impl<P: Provider> Clone for Pd<P> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<P: Provider> fmt::Debug for Pd<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pd").field("raw", self.raw()).finish_non_exhaustive()
    }
}
