//! [`Pd`]: a protection domain and the creation of its objects.
//!
//! # Safety
//! The unsafe code here is the raw registration of memory, which relies on its caller's promise.

#![allow(unsafe_code)]

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use verbs_core::Result;
use verbs_core::fork::Excluded;
use verbs_core::provider::{
    ContextOps, Erased, MrInitAttr, MrMemory, NamedProvider, ParentDomainAttr, PdOps, Provider,
};
use verbs_core::types::{AccessFlags, Advice, AdviseFlags, AhAttr, MwType, Sge, TmCap};

use crate::device::ah::Ah;
use crate::device::context::Context;
use crate::device::td::{ParentDomainInit, Td};
use crate::handle::error::HandleError;
use crate::handle::kernel_handle::KernelHandle;
use crate::handle::registry::{Child, PdId, Tally};
use crate::memory::buffer::Buf;
use crate::memory::dm::{Dm, Dmah};
use crate::memory::exposed::{Exposed, RemoteAccess};
use crate::memory::frozen::FrozenBuf;
use crate::memory::mr::{self, Mr, MrInit};
use crate::memory::mw::Mw;
use crate::memory::stable::{StableBytes, StableMemory};
use crate::memory::window::Window;
use crate::qp::Qp;
use crate::qp::attr::QpInit;
use crate::qp::state::Reset;
use crate::queue::cq::CqHandle;
use crate::queue::srq::{Srq, SrqInit};

/// A protection domain: a queue pair can access only the memory regions and address handles of its
/// own domain. Cheap to clone.
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
    users: Users,
}

/// Counts of the objects keeping a domain alive.
#[derive(Default)]
struct Users {
    ahs: Tally,
    cqs: Tally,
    mrs: Tally,
    mws: Tally,
    parent_domains: Tally,
    qps: Tally,
    srqs: Tally,
    wqs: Tally,
}

/// The dependencies of a domain: its device, or the two domains of a parent domain.
struct Parents {
    _above: Child,
    _td: Option<Child>,
}

enum Raw<P: Provider> {
    Own(KernelHandle<P::Pd, Parents>),
    /// The domain behind an erased one, made by `downcast`; the erased one's clones and children
    /// live on.
    Within(Arc<Inner<Erased>>),
}

impl<P: Provider> Pd<P> {
    pub(crate) fn alloc(context: &Context<P>) -> Result<Self> {
        Ok(Self::of_context(context, context.creating("alloc_pd")?.alloc_pd()?))
    }

    pub(crate) fn import(context: &Context<P>, handle: u32) -> Result<Self> {
        Ok(Self::of_context(context, context.creating("import_pd")?.import_pd(handle)?))
    }

    fn of_context(context: &Context<P>, raw: P::Pd) -> Self {
        let parents = Parents { _above: context.child(&context.registry().pd_tally), _td: None };
        Self::new(context, raw, parents, PdId::next())
    }

    fn new(context: &Context<P>, raw: P::Pd, parents: Parents, id: PdId) -> Self {
        Self {
            inner: Arc::new(Inner {
                raw: Raw::Own(KernelHandle::new(raw, parents)),
                id,
                context: context.clone(),
                users: Users::default(),
            }),
        }
    }

    /// Returns the open device of the domain.
    pub fn context(&self) -> &Context<P> {
        &self.inner.context
    }

    /// Returns the provider's own protection domain, for features beyond verbs.
    // The panics below are unreachable.
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

    /// Returns the kernel's handle, for another owner of the same context
    /// ([`Context::import_pd`]).
    pub fn handle(&self) -> u32 {
        self.raw().handle()
    }

    /// Allocates a parent domain: the same protection domain, with a thread domain and a queue
    /// allocator for the objects made in it. Queue pairs of both domains can use memory registered
    /// in either. Completion queues join it by
    /// [`CqInit::parent_domain`](crate::CqInit::parent_domain).
    ///
    /// ```
    /// # #[cfg(feature = "soft")]
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use verbs::{CqInit, ParentDomainInit};
    /// let context = verbs::soft::auto()?.open()?;
    /// let (pd, td) = (context.alloc_pd()?, context.alloc_td()?);
    /// let init = ParentDomainInit { td: Some(&td), ..ParentDomainInit::default() };
    /// let parent = pd.alloc_parent_domain(&init)?;
    /// let cq = context.create_cq(&CqInit { parent_domain: Some(&parent), ..CqInit::new(16) })?;
    /// let buf = parent.alloc_buf(4096)?;
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "soft"))]
    /// # fn main() {}
    /// ```
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the provider has none (rxe), or cannot use the allocator (soft devices);
    /// `EINVAL` for a thread domain of another device.
    ///
    /// # References
    /// `ibv_alloc_parent_domain(3)`
    #[doc(alias = "ibv_alloc_parent_domain")]
    pub fn alloc_parent_domain(&self, init: &ParentDomainInit<'_, P>) -> Result<Self> {
        let ParentDomainInit { td, allocator, allow_cc_unprotected_alloc } = *init;
        let td_of = td.map(Td::raw);
        let attr = ParentDomainAttr { pd: self.raw(), td: td_of, allocator, allow_cc_unprotected_alloc };
        let raw = self.context().creating("alloc_parent_domain")?.alloc_parent_domain(&attr)?;
        let above = self.child(&self.inner.users.parent_domains);
        let parents = Parents { _above: above, _td: td.map(|td| td.shared.user()) };
        Ok(Self::new(self.context(), raw, parents, self.id()))
    }

    /// Registers memory of the caller, for raw posting with any scheme of ownership.
    /// [`alloc_buf`](Self::alloc_buf) and [`register`](Self::register) are the safe alternatives.
    ///
    /// # Safety
    /// While the region is registered, the device may read the bytes and, with
    /// [`LOCAL_WRITE`](AccessFlags::LOCAL_WRITE), write them: whenever a work request names them
    /// or, with remote rights, a peer does. The bytes must stay mapped, and every other access to
    /// them must tolerate this. The bytes of an [on-demand paged](AccessFlags::ON_DEMAND) region
    /// need not stay mapped: the device accesses the current mapping at their addresses, and a
    /// request to an unmapped address fails. With the address 0 and `usize::MAX` bytes such a
    /// region covers all memory of this process, and the same rules apply to every byte named by a
    /// request or a peer.
    ///
    /// On rxe (seen on Linux 7.2), the device accesses the start of each page of an [on-demand
    /// paged](AccessFlags::ON_DEMAND) region, ignoring the offset in the page. There such a region
    /// must not share its pages, and each packet must begin at the start of one.
    ///
    /// # Errors
    /// - `ENOMEM` with [`Cause::Memlock`](crate::Cause::Memlock) if `RLIMIT_MEMLOCK` is too small.
    /// - `EFAULT` for unmapped memory, or read-only memory registered for writing; soft devices add
    ///   [`Cause::Inaccessible`](crate::Cause::Inaccessible).
    /// - `EINVAL` with [`Cause::NeedsLocalWrite`](crate::Cause::NeedsLocalWrite) for remote writes
    ///   or atomics without local writes, and with [`Cause::Limit`](crate::Cause::Limit) for a
    ///   region longer than the device's [`max_mr_size`](crate::DeviceAttr::max_mr_size).
    /// - `EOPNOTSUPP` with [`Cause::Access`](crate::Cause::Access) for access rights the device
    ///   lacks; `EINVAL` for rights that no device has.
    /// - Any other errno the kernel returns; notably `ENOMEM` if the device has no region left.
    ///
    /// # References
    /// `ibv_reg_mr(3)`
    #[doc(alias = "ibv_reg_mr")]
    pub unsafe fn reg_mr(&self, addr: *mut u8, length: usize, access: AccessFlags) -> Result<Mr<P>> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.reg_mr_iova(addr, length, addr.expose_provenance() as u64, access) }
    }

    /// Registers memory as [`reg_mr`](Self::reg_mr) does. Work requests and peers address its first
    /// byte as `iova`.
    ///
    /// # Safety
    /// As [`reg_mr`](Self::reg_mr).
    ///
    /// # Errors
    /// As [`reg_mr`](Self::reg_mr).
    ///
    /// # References
    /// `ibv_reg_mr_iova(3)`
    #[doc(alias = "ibv_reg_mr_iova")]
    pub unsafe fn reg_mr_iova(
        &self,
        addr: *mut u8,
        length: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<Mr<P>> {
        let iova = if access.contains(AccessFlags::ZERO_BASED) { 0 } else { iova };
        let excluded = self.exclude("reg_mr", addr, length, access)?;
        // SAFETY: the caller's promise is the same.
        let raw = unsafe { self.register_raw(addr, length, iova, access) }?;
        let parents = mr::Parents::new(self.child_mr(), excluded, None);
        Ok(Mr::new(self, raw, parents, iova, length, access))
    }

    /// Registers memory in the extended form: of a dma-buf, or with a DMA handle.
    ///
    /// # Safety
    /// As [`reg_mr`](Self::reg_mr), also for the bytes of a dma-buf.
    ///
    /// # Errors
    /// As [`reg_mr`](Self::reg_mr) and [`reg_dmabuf_mr`](Self::reg_dmabuf_mr); `EOPNOTSUPP` for a
    /// DMA handle unsupported by the device or the kernel (before 6.17).
    ///
    /// # References
    /// `ibv_reg_mr_ex(3)`
    #[doc(alias = "ibv_reg_mr_ex")]
    pub unsafe fn reg_mr_ex(&self, init: &MrInit<'_, P>) -> Result<Mr<P>> {
        let MrInit { memory, length, access, iova, dmah } = *init;
        let (excluded, default) = match memory {
            MrMemory::Addr(addr) => {
                (self.exclude("reg_mr", addr, length, access)?, addr.expose_provenance() as u64)
            }
            MrMemory::DmaBuf { offset, .. } => (Excluded::NONE, offset),
        };
        let iova = if access.contains(AccessFlags::ZERO_BASED) { 0 } else { iova.unwrap_or(default) };
        let attr = MrInitAttr { memory, length, iova, access, dmah: dmah.map(Dmah::raw) };
        // SAFETY: the caller's promise is the same.
        let raw = unsafe { self.context().creating("reg_mr")?.reg_mr_ex(self.raw(), &attr) }?;
        let dmah = dmah.map(|dmah| dmah.shared.user());
        let parents = mr::Parents::new(self.child_mr(), excluded, dmah);
        Ok(Mr::new(self, raw, parents, iova, length, access))
    }

    /// Registers `length` bytes of a dma-buf, for example of a GPU's memory, from `offset` on. Work
    /// requests and peers address its first byte as `iova`.
    ///
    /// # Safety
    /// As [`reg_mr`](Self::reg_mr), for the bytes of the dma-buf.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device registers no dma-bufs (rxe and soft devices); `EINVAL` if
    /// `offset` and `iova` have different offsets in their pages; any other errno the kernel
    /// returns, notably `EBADF` for a file of another kind.
    ///
    /// # References
    /// `ibv_reg_dmabuf_mr(3)`
    #[doc(alias = "ibv_reg_dmabuf_mr")]
    pub unsafe fn reg_dmabuf_mr(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<Mr<P>> {
        let context = self.context().raw();
        // SAFETY: the caller's promise is the same.
        let raw = unsafe { context.reg_dmabuf_mr(self.raw(), fd, offset, length, iova, access) }?;
        let parents = mr::Parents::new(self.child_mr(), Excluded::NONE, None);
        Ok(Mr::new(self, raw, parents, iova, length, access))
    }

    /// Registers `length` bytes of device memory from `offset` on. Work requests and peers address
    /// them from 0 on.
    ///
    /// # Errors
    /// `EINVAL` for a range outside the memory, or memory of another device; `EOPNOTSUPP` for
    /// rights the device lacks; any other errno the kernel returns.
    ///
    /// # References
    /// `ibv_reg_dm_mr(3)`
    #[doc(alias = "ibv_reg_dm_mr")]
    pub fn reg_dm_mr(&self, dm: &Dm<P>, offset: u64, length: usize, access: AccessFlags) -> Result<Mr<P>> {
        let access = access | AccessFlags::ZERO_BASED;
        let raw = self.context().creating("reg_dm_mr")?.reg_dm_mr(
            self.raw(),
            dm.raw(),
            offset,
            length as u64,
            access,
        )?;
        let parents = mr::Parents::new(self.child_mr(), Excluded::NONE, Some(dm.shared.user()));
        Ok(Mr::new(self, raw, parents, 0, length, access))
    }

    /// Allocates a null region: elements with its local key read as zeros and discard writes, at
    /// any address. Its remote key gives peers no access; with the local key peers read zeros, and
    /// their writes are discarded.
    ///
    /// An element with its key lets a receive skip a part of a message.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device has none (rxe); `ENOMEM` if the device has no region left.
    ///
    /// # References
    /// `ibv_alloc_null_mr(3)`
    #[doc(alias = "ibv_alloc_null_mr")]
    pub fn alloc_null_mr(&self) -> Result<Mr<P>> {
        let raw = self.context().creating("alloc_null_mr")?.alloc_null_mr(self.raw())?;
        let parents = mr::Parents::new(self.child_mr(), Excluded::NONE, None);
        Ok(Mr::new(self, raw, parents, 0, usize::MAX, AccessFlags::LOCAL_WRITE))
    }

    /// Returns a memory region registered by another owner of the same context, by its handle.
    /// Dropping it deregisters nothing.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the provider or the kernel (before 5.9) imports none; `ENOENT` for an
    /// invalid handle; any other errno the kernel returns.
    ///
    /// # References
    /// `ibv_import_mr(3)`
    #[doc(alias = "ibv_import_mr")]
    pub fn import_mr(&self, handle: u32) -> Result<Mr<P>> {
        let (raw, attr) = self.context().creating("import_mr")?.import_mr(self.raw(), handle)?;
        let parents = mr::Parents::new(self.child_mr(), Excluded::NONE, None);
        let length = usize::try_from(attr.length).unwrap_or(usize::MAX);
        // Only the other owner knows the rights.
        Ok(Mr::new(self, raw, parents, attr.iova, length, AccessFlags::empty()))
    }

    /// Advises the device about the pages of elements in on-demand paged regions of this domain.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device takes no advice (rxe takes it since Linux 6.17) or not this kind;
    /// `EINVAL` for a flag it does not know; `ENOENT`, `EPERM`, `EINVAL` or `EFAULT` for elements
    /// outside such regions, with the errnos of `ibv_advise_mr(3)` on soft devices; any other errno
    /// the kernel returns.
    ///
    /// # References
    /// `ibv_advise_mr(3)`
    #[doc(alias = "ibv_advise_mr")]
    pub fn advise_mr(&self, advice: Advice, flags: AdviseFlags, sges: &[Sge]) -> Result<()> {
        self.context().raw().advise_mr(self.raw(), advice, flags, sges)
    }

    /// Allocates zeroed, page-aligned memory registered for local use, for safe posting.
    ///
    /// It is ordinary memory of the process, as `ibv_alloc_buf` allocates, except for mlx5 devices
    /// of confidential guests ([`CC_DMA_BOUNCE`](crate::DeviceCapFlags::CC_DMA_BOUNCE)).
    ///
    /// # Errors
    /// `ENOMEM`: with [`Cause::Memlock`](crate::Cause::Memlock) if `RLIMIT_MEMLOCK` is too small,
    /// otherwise if the system has no memory or the device no region left; any other errno the
    /// kernel returns.
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
    /// The memory: `ENOMEM` with [`Cause::Memlock`](crate::Cause::Memlock) if `RLIMIT_MEMLOCK` is
    /// too small, or without the cause if the device has no region left; any other errno the kernel
    /// returns.
    ///
    /// # References
    /// `ibv_reg_mr(3)`
    #[doc(alias = "ibv_reg_mr")]
    pub fn register<M: StableMemory>(&self, memory: M) -> Result<Buf, HandleError<M>> {
        Buf::register(self, memory)
    }

    /// Registers read-only memory of the program, in place: a mapped file, shared or static bytes.
    /// [`FrozenBuf::into_memory`] returns it.
    ///
    /// # Errors
    /// As [`register`](Self::register).
    ///
    /// # References
    /// `ibv_reg_mr(3)`
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_bytes<M: StableBytes>(&self, memory: M) -> Result<FrozenBuf, HandleError<M>> {
        if let Err(error) = self.context().registry().room("reg_mr") {
            return Err(HandleError { handle: memory, error });
        }
        let memory = Box::new(memory);
        let (base, len) = (memory.stable_ptr().cast_mut(), memory.stable_len());
        // SAFETY: `StableBytes` says that the bytes stay mapped, and are not written, until the
        // value is used, which happens after the region is deregistered. A frozen buffer only
        // reads, and without `LOCAL_WRITE` so does the device.
        unsafe { Buf::register_at(self, memory, base, len, AccessFlags::empty()) }.map(Buf::freeze)
    }

    /// Lets peers access a piece of memory. They have the rights in both `access` and the queue
    /// pair's access flags.
    ///
    /// # Errors
    /// The piece: `EINVAL` for no right at all; otherwise as [`register`](Self::register).
    #[doc(alias = "ibv_reg_mr")]
    pub fn expose(&self, buf: Buf, access: RemoteAccess) -> Result<Exposed, HandleError<Buf>> {
        Exposed::new(self, buf, access)
    }

    /// Exposes a piece of memory to peers only through bound [`Window`]s. The memory is registered
    /// once for all bindings.
    ///
    /// # Errors
    /// The piece: as [`register`](Self::register).
    #[doc(alias = "IBV_ACCESS_MW_BIND")]
    pub fn expose_to_windows(&self, buf: Buf) -> Result<Exposed, HandleError<Buf>> {
        Exposed::to_windows(self, buf)
    }

    /// Allocates a memory window for raw posting, bound to no region.
    /// [`alloc_window`](Self::alloc_window) is the safe alternative.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device, or the kernel's driver, has no windows of the type (rxe before
    /// Linux 6.1); any other errno the kernel returns, notably `ENOMEM`.
    ///
    /// # References
    /// `ibv_alloc_mw(3)`
    #[doc(alias = "ibv_alloc_mw")]
    pub fn alloc_mw(&self, mw_type: MwType) -> Result<Mw<P>> {
        let raw = self.context().creating("alloc_mw")?.alloc_mw(self.raw(), mw_type)?;
        Ok(Mw::new(raw, self.child(&self.inner.users.mws)))
    }

    /// Allocates a memory window that the domain's queue pairs bind to exposed memory.
    ///
    /// # Errors
    /// As [`alloc_mw`](Self::alloc_mw).
    ///
    /// # References
    /// `ibv_alloc_mw(3)`
    #[doc(alias = "ibv_alloc_mw")]
    pub fn alloc_window(&self, mw_type: MwType) -> Result<Window> {
        self.alloc_mw(mw_type).map(|mw| Window::new(mw, self.id()))
    }

    /// Creates a queue pair, in the state RESET.
    ///
    /// # Errors
    /// - `EINVAL` with [`Cause::Limit`](crate::Cause::Limit) for a capacity beyond the device's
    ///   limits.
    /// - `EOPNOTSUPP` with [`Cause::QpType`](crate::Cause::QpType) for a type the device lacks;
    ///   `EINVAL` with the same cause for an unknown type number, and from some kernels.
    /// - `EINVAL` with [`Cause::Foreign`](crate::Cause::Foreign) for a completion queue, shared
    ///   receive queue or table of work queues of another open device, with
    ///   [`Cause::Closed`](crate::Cause::Closed) for a closed or dropped one.
    /// - `EPERM` for a raw packet queue pair without `CAP_NET_RAW`.
    /// - `EOPNOTSUPP` of the verb `create_qp_ex` for attributes in [`QpInit::ex`] the device lacks,
    ///   and for [`QpInit::rss`] if it has no tables of work queues.
    /// - Any other errno of the kernel or of the system's random source; notably `ENOMEM`.
    ///
    /// # References
    /// `ibv_create_qp(3)`
    #[doc(alias = "ibv_create_qp")]
    #[doc(alias = "ibv_create_qp_ex")]
    pub fn create_qp(&self, init: &QpInit<P>) -> Result<Qp<Reset, P>> {
        Qp::create(self, init)
    }

    /// Creates a shared receive queue, for queue pairs of any protection domain.
    ///
    /// The memory of its receives belongs to this domain. On rxe, its queue pairs must too.
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Limit`](crate::Cause::Limit) for a size beyond the device's limits;
    /// `EOPNOTSUPP` for a device without shared receive queues; any other errno the kernel returns,
    /// notably `ENOMEM`.
    ///
    /// # References
    /// `ibv_create_srq(3)`
    #[doc(alias = "ibv_create_srq")]
    #[doc(alias = "IBV_SRQ_INIT_ATTR_PD")]
    #[doc(alias = "IBV_SRQ_INIT_ATTR_TYPE")]
    pub fn create_srq(&self, init: &SrqInit) -> Result<Srq<P>> {
        Srq::create(self, init)
    }

    /// Creates a shared receive queue with tag matching: a message whose tag is in the queue's tag
    /// list arrives in the memory of that tag ([`Srq::post_srq_ops`]), any other in a receive. The
    /// operations on the list complete in `cq`, given as a `&Cq` or a [`CqHandle`].
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Limit`](crate::Cause::Limit) for a size beyond the device's limits,
    /// with [`Cause::Foreign`](crate::Cause::Foreign) for a completion queue of another open
    /// device, with [`Cause::Closed`](crate::Cause::Closed) for a closed completion queue;
    /// `EOPNOTSUPP` for a device without tag matching (rxe, soft devices, ConnectX with RoCE
    /// ports); any other errno the kernel returns.
    ///
    /// # References
    /// `ibv_create_srq_ex(3)`
    #[doc(alias = "ibv_create_srq_ex")]
    #[doc(alias = "IBV_SRQ_INIT_ATTR_CQ")]
    #[doc(alias = "IBV_SRQ_INIT_ATTR_PD")]
    #[doc(alias = "IBV_SRQ_INIT_ATTR_TM")]
    #[doc(alias = "IBV_SRQ_INIT_ATTR_TYPE")]
    pub fn create_tm_srq(&self, cq: impl Into<CqHandle<P>>, tm: TmCap, init: &SrqInit) -> Result<Srq<P>> {
        Srq::create_tm(self, &cq.into(), tm, init)
    }

    /// Creates an address handle: the path to a peer, for datagrams.
    ///
    /// # Errors
    /// - `EINVAL` with [`Cause::Limit`](crate::Cause::Limit) for a nonexistent port or a GID index
    ///   beyond 255, with [`Cause::NoGrh`](crate::Cause::NoGrh) for a path without a GRH on RoCE,
    ///   with [`Cause::Gid`](crate::Cause::Gid) for a source GID index outside the table.
    /// - `ENODATA` with [`Cause::Gid`](crate::Cause::Gid) for an empty entry of the GID table.
    /// - Any other errno the kernel returns; notably `ENETUNREACH` and `EHOSTUNREACH` for a
    ///   destination without a route.
    ///
    /// # References
    /// `ibv_create_ah(3)`
    #[doc(alias = "ibv_create_ah")]
    pub fn create_ah(&self, attr: &AhAttr) -> Result<Ah<P>> {
        let raw = self.context().creating("create_ah")?.create_ah(self.raw(), attr)?;
        Ok(Ah::new(raw, self.child(&self.inner.users.ahs)))
    }

    /// Deallocates the domain if this is its last handle and no object made in it is left.
    /// Otherwise it is deallocated with its last handle and object.
    ///
    /// # Errors
    /// The handle: `EBUSY` with [`Cause::InUse`](crate::Cause::InUse), which names the kind of
    /// objects left; any other errno the kernel returns.
    ///
    /// # References
    /// `ibv_dealloc_pd(3)`
    #[doc(alias = "ibv_dealloc_pd")]
    pub fn close(self) -> Result<(), HandleError<Self>> {
        let inner = match Arc::try_unwrap(self.inner) {
            Ok(inner) => inner,
            Err(inner) => {
                let error = inner.context.registry().in_use("dealloc_pd", inner.users.name());
                return Err(HandleError { handle: Self { inner }, error });
            }
        };
        let Inner { raw, id, context, users } = inner;
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
        let handle = Self { inner: Arc::new(Inner { raw, id, context, users }) };
        Err(HandleError { handle, error })
    }

    /// Registers memory and returns the provider's memory region without a handle around it.
    ///
    /// # Safety
    /// As [`reg_mr`](Self::reg_mr).
    ///
    /// # Errors
    /// As [`reg_mr`](Self::reg_mr).
    pub(crate) unsafe fn register_raw(
        &self,
        addr: *mut u8,
        length: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<P::Mr> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.context().creating("reg_mr")?.reg_mr(self.raw(), addr, length, iova, access) }
    }

    /// Excludes the pages of a new region from forks if necessary.
    ///
    /// # Errors
    /// The errno of `madvise(2)`.
    pub(crate) fn exclude(
        &self,
        verb: &'static str,
        addr: *mut u8,
        length: usize,
        access: AccessFlags,
    ) -> Result<Excluded> {
        if !mr::is_pinned(self.context(), access) {
            return Ok(Excluded::NONE);
        }
        Excluded::new(addr, length).map_err(|errno| self.context().registry().error(verb, errno))
    }

    pub(crate) fn id(&self) -> PdId {
        self.inner.id
    }

    pub(crate) fn child_cq(&self) -> Child {
        self.child(&self.inner.users.cqs)
    }

    pub(crate) fn child_mr(&self) -> Child {
        self.child(&self.inner.users.mrs)
    }

    pub(crate) fn child_qp(&self) -> Child {
        self.child(&self.inner.users.qps)
    }

    pub(crate) fn child_srq(&self) -> Child {
        self.child(&self.inner.users.srqs)
    }

    pub(crate) fn child_wq(&self) -> Child {
        self.child(&self.inner.users.wqs)
    }

    fn child(&self, tally: &Tally) -> Child {
        Child::new(Arc::<Inner<P>>::clone(&self.inner), tally)
    }
}

impl Users {
    /// Names the objects that keep the domain alive besides one handle, as a plural noun.
    fn name(&self) -> &'static str {
        let tallies = [
            (&self.qps, "queue pairs"),
            (&self.srqs, "shared receive queues"),
            (&self.wqs, "work queues"),
            (&self.cqs, "completion queues"),
            (&self.mws, "memory windows"),
            (&self.mrs, "memory regions"),
            (&self.ahs, "address handles"),
            (&self.parent_domains, "parent domains"),
        ];
        tallies.into_iter().find(|(tally, _)| tally.any()).map_or("clones of the handle", |(_, what)| what)
    }
}

impl Pd<Erased> {
    /// Returns the same protection domain with its provider named.
    ///
    /// # Errors
    /// The handle, when the device belongs to another provider.
    pub fn downcast<P: NamedProvider>(self) -> Result<Pd<P>, HandleError<Self>> {
        let Ok(context) = self.inner.context.clone().downcast::<P>() else {
            return Err(HandleError::of_another_provider(self));
        };
        Ok(Pd {
            inner: Arc::new(Inner {
                id: self.inner.id,
                raw: Raw::Within(self.inner),
                context,
                users: Users::default(),
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
