//! An open device: its queries ([`DeviceOps`]) and the objects created from it ([`ContextOps`]).
//!
//! # Safety
//! The unsafe functions state the requirements on their callers, which register memory.

#![allow(unsafe_code)]

use core::any::Any;
use core::fmt::Debug;
use core::ops::ControlFlow;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::{
    FlowRule, MrChange, MrInitAttr, MrMemory, ParentDomainAttr, Provider, QpExtras, QpParents, QpParts,
    ReregError, SrqParents, SrqParts, WaitOps, WqParents, WqParts, unsupported,
};
use crate::errno::Errno;
use crate::error::{Error, Result};
use crate::types::{
    AccessFlags, Advice, AdviseFlags, AhAttr, Av, CompCntrAttachOps, CompCntrCaps, CompCntrType, CqInitAttr,
    DeviceAttr, DeviceAttrEx, DmAttr, DmahAttr, FlowActionEspAttr, GidEntry, MrAttr, MwType, PortAttr,
    QpInitAttr, RtValues, Sge, SrqInitAttr, WqInitAttr,
};

/// An open device: its queries and event files, which do not depend on the provider's object types.
pub trait DeviceOps: Debug + Send + Sync {
    /// Returns the device's name (`rxe0`).
    fn device_name(&self) -> &str;

    /// Returns the number of completion vectors; vectors are numbered from 0.
    fn num_comp_vectors(&self) -> u32;

    /// Queries the device's attributes.
    ///
    /// # Errors
    /// Any errno the kernel returns; notably `EIO` once the device is gone.
    fn query_device(&self) -> Result<DeviceAttr>;

    /// Queries the device's attributes, including those added by later kernels.
    ///
    /// # Errors
    /// The errors of [`query_device`](Self::query_device).
    fn query_device_ex(&self) -> Result<DeviceAttrEx>;

    /// Queries the port with this number, from 1.
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Limit`](crate::Cause::Limit) for a nonexistent port; otherwise as
    /// [`query_device`](Self::query_device).
    fn query_port(&self, port_num: u8) -> Result<PortAttr>;

    /// Queries the effective speed of a port, in 100 Mbit/s. If the kernel does not report the
    /// speed, returns the port's width times the speed per lane.
    ///
    /// # Errors
    /// The errors of [`query_port`](Self::query_port); `EOPNOTSUPP` for an unknown width or speed.
    fn query_port_speed(&self, port_num: u8) -> Result<u64> {
        let port = self.query_port(port_num)?;
        port.speed_100mbps()
            .ok_or_else(|| Error::new("query_port_speed", self.device_name(), Errno::OPNOTSUPP))
    }

    /// Returns every valid entry of every port's GID table, with a single command if the kernel
    /// supports it.
    ///
    /// # Errors
    /// The errors of [`query_device`](Self::query_device).
    fn query_gid_table(&self) -> Result<Vec<GidEntry>>;

    /// Passes the valid entries of a port's GID table to `visit`, in index order, until `visit`
    /// breaks. If no single command can return the table, the entries are read one by one, so a
    /// visit that ends early costs less than reading the whole table.
    ///
    /// # Errors
    /// The errors of [`query_gid_table`](Self::query_gid_table). A nonexistent port has no entries,
    /// or results in `EINVAL` if the entries are read one by one.
    fn visit_gids(&self, port_num: u8, visit: &mut dyn FnMut(GidEntry) -> ControlFlow<()>) -> Result<()> {
        let table = self.query_gid_table()?;
        let _ = table.into_iter().filter(|entry| entry.port_num == u32::from(port_num)).try_for_each(visit);
        Ok(())
    }

    /// Returns one entry of a port's GID table; `None` if the entry is empty.
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Limit`](crate::Cause::Limit) for a nonexistent port and with
    /// [`Cause::Gid`](crate::Cause::Gid) for a nonexistent index; otherwise as
    /// [`query_device`](Self::query_device).
    fn query_gid_entry(&self, port_num: u8, gid_index: u32) -> Result<Option<GidEntry>>;

    /// Returns one entry of a port's partition key table, in host order.
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Limit`](crate::Cause::Limit) for a nonexistent port or index;
    /// otherwise any errno from reading sysfs.
    fn query_pkey(&self, port_num: u8, index: u16) -> Result<u16>;

    /// Returns the device's asynchronous event file, whose records are
    /// `ib_uverbs_async_event_desc`.
    ///
    /// # Errors
    /// Any errno the kernel returns when it opens the file; notably `EMFILE`.
    fn async_fd(&self) -> Result<BorrowedFd<'_>>;

    /// Opens a completion event file, whose records are the `u64` user handles of completion
    /// queues.
    ///
    /// # Errors
    /// Any errno the kernel returns; notably `EMFILE`.
    fn create_comp_channel(&self) -> Result<OwnedFd>;

    /// Returns the interface for waiting threads, if the program's threads do the device's work.
    fn waits(&self) -> Option<Arc<dyn WaitOps>> {
        None
    }

    /// Queries the device's completion counters.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device or the kernel has no completion counters; otherwise as
    /// [`query_device`](Self::query_device).
    fn query_comp_cntr_caps(&self) -> Result<CompCntrCaps> {
        Err(Error::new("query_comp_cntr_caps", self.device_name(), Errno::OPNOTSUPP))
    }
}

/// An open device: the objects created from it.
pub trait ContextOps<P: Provider>: Any + Debug + Send + Sync {
    /// Returns the provider's name (`rxe`).
    fn provider_name(&self) -> &'static str;

    /// Returns the interface for querying the device.
    fn device(&self) -> &dyn DeviceOps;

    /// Returns the meaning of a failed completion's [`vendor_err`](crate::types::Wc::vendor_err);
    /// `None` for a value without a public meaning.
    fn vendor_err_text(&self, vendor_err: u32) -> Option<&'static str> {
        let _ = vendor_err;
        None
    }

    /// Allocates a protection domain.
    ///
    /// # Errors
    /// Any errno the kernel returns; notably `ENOMEM`.
    fn alloc_pd(&self) -> Result<P::Pd>;

    /// Registers `length` bytes at `addr`. Work requests and peers address the first byte as
    /// `iova`.
    ///
    /// # Safety
    /// While the region is registered, the device may read the bytes, and with
    /// [`LOCAL_WRITE`](AccessFlags::LOCAL_WRITE) write them, whenever a work request or a peer
    /// requests it. The bytes must stay mapped, and other code that accesses them must allow for
    /// these accesses.
    ///
    /// # Errors
    /// `ENOMEM` with [`Cause::Memlock`](crate::Cause::Memlock) for a region beyond
    /// `RLIMIT_MEMLOCK`; `EFAULT` for memory that is unmapped, or read-only but registered for
    /// writing; `EINVAL` for contradictory rights and `EOPNOTSUPP` for rights the device lacks; any
    /// other errno the kernel returns.
    unsafe fn reg_mr(
        &self,
        pd: &P::Pd,
        addr: *mut u8,
        length: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<P::Mr>;

    /// Registers memory in the extended form: with a DMA handle, or from a dma-buf.
    ///
    /// # Safety
    /// The requirements of [`reg_mr`](Self::reg_mr) apply, also to the bytes of a dma-buf.
    ///
    /// # Errors
    /// The errors of [`reg_mr`](Self::reg_mr) and [`reg_dmabuf_mr`](Self::reg_dmabuf_mr);
    /// `EOPNOTSUPP` for a DMA handle the device cannot use.
    unsafe fn reg_mr_ex(&self, pd: &P::Pd, attr: &MrInitAttr<'_, P>) -> Result<P::Mr> {
        let MrInitAttr { memory, length, iova, access, dmah } = *attr;
        if dmah.is_some() {
            return Err(unsupported(self.device(), "reg_mr_ex"));
        }
        match memory {
            // SAFETY: the caller upholds the same contract.
            MrMemory::Addr(addr) => unsafe { self.reg_mr(pd, addr, length, iova, access) },
            MrMemory::DmaBuf { fd, offset } => {
                // SAFETY: the caller upholds the same contract.
                unsafe { self.reg_dmabuf_mr(pd, fd, offset, length, iova, access) }
            }
        }
    }

    /// Registers `length` bytes of a dma-buf, starting at `offset`. Work requests and peers address
    /// the first byte as `iova`.
    ///
    /// # Safety
    /// Same as [`reg_mr`](Self::reg_mr), for the bytes of the dma-buf.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device does not register dma-bufs; any other errno the kernel returns.
    unsafe fn reg_dmabuf_mr(
        &self,
        pd: &P::Pd,
        fd: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<P::Mr> {
        let _ = (pd, fd, offset, length, iova, access);
        Err(unsupported(self.device(), "reg_dmabuf_mr"))
    }

    /// Changes a memory region in place. Its keys may change.
    ///
    /// After `Ok`, the device does not access old memory that the region no longer covers. A peer's
    /// request already in progress may finish with the old rights.
    ///
    /// # Safety
    /// Same as [`reg_mr`](Self::reg_mr), for the new memory, and for the old memory with the new
    /// rights.
    ///
    /// # Errors
    /// The error and the state of the region: `EOPNOTSUPP` if the device cannot change regions, or
    /// not in this way; `EINVAL` for an empty change; `EBUSY` while memory windows are bound to the
    /// region; otherwise as [`reg_mr`](Self::reg_mr).
    unsafe fn rereg_mr(&self, mr: &mut P::Mr, change: &MrChange<'_, P>) -> Result<(), ReregError> {
        let _ = (mr, change);
        Err(ReregError::unchanged(unsupported(self.device(), "rereg_mr")))
    }

    /// Allocates a null region. Elements with its local key read as zeros, and writes to them are
    /// discarded. Its remote key gives no access.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device has no null region; otherwise as [`reg_mr`](Self::reg_mr).
    fn alloc_null_mr(&self, pd: &P::Pd) -> Result<P::Mr> {
        let _ = pd;
        Err(unsupported(self.device(), "alloc_null_mr"))
    }

    /// Advises the device about the pages of scatter/gather elements in a protection domain's
    /// on-demand paged regions.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device does not support advice; `EINVAL` for unsupported advice or an
    /// unsupported flag; any other errno the kernel returns, notably for elements outside on-demand
    /// paged regions.
    fn advise_mr(&self, pd: &P::Pd, advice: Advice, flags: AdviseFlags, sges: &[Sge]) -> Result<()> {
        let _ = (pd, advice, flags, sges);
        Err(unsupported(self.device(), "advise_mr"))
    }

    /// Returns whether registration pins pages. Before Linux 5.12, a fork may replace pinned pages
    /// while the device uses the old pages.
    fn pins_memory(&self) -> bool {
        true
    }

    /// Allocates device memory.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device offers no device memory; any other errno the kernel returns.
    fn alloc_dm(&self, attr: &DmAttr) -> Result<P::Dm> {
        let _ = attr;
        Err(unsupported(self.device(), "alloc_dm"))
    }

    /// Registers `length` bytes of device memory, starting at `offset`. Work requests and peers
    /// address the first byte as 0.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device offers no device memory; `EINVAL` for a range outside the device
    /// memory; any other errno the kernel returns.
    fn reg_dm_mr(
        &self,
        pd: &P::Pd,
        dm: &P::Dm,
        offset: u64,
        length: u64,
        access: AccessFlags,
    ) -> Result<P::Mr> {
        let _ = (pd, dm, offset, length, access);
        Err(unsupported(self.device(), "reg_dm_mr"))
    }

    /// Allocates a DMA handle.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device has no DMA handles; any other errno the kernel returns.
    fn alloc_dmah(&self, attr: &DmahAttr) -> Result<P::Dmah> {
        let _ = attr;
        Err(unsupported(self.device(), "alloc_dmah"))
    }

    /// Allocates a thread domain.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the provider has no thread domains.
    fn alloc_td(&self) -> Result<P::Td> {
        Err(unsupported(self.device(), "alloc_td"))
    }

    /// Allocates a parent domain: a protection domain that shares the objects of `attr.pd`, with a
    /// thread domain and an allocator for objects created in it.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the provider has no parent domains or cannot use an allocator; `EINVAL` for
    /// a parent of another device.
    fn alloc_parent_domain(&self, attr: &ParentDomainAttr<'_, P>) -> Result<P::Pd> {
        let _ = attr;
        Err(unsupported(self.device(), "alloc_parent_domain"))
    }

    /// Returns a copy of the device file's descriptor, for another owner of the same context.
    ///
    /// # Safety
    /// Code that holds the descriptor can command the context. Recipients must meet the
    /// requirements listed at [`Uverbs`](crate::channel::Uverbs#the-right-to-command).
    ///
    /// # Errors
    /// `EOPNOTSUPP` for a device without a file; any errno from `dup(2)`, notably `EMFILE`.
    unsafe fn export_device(&self) -> Result<OwnedFd> {
        Err(unsupported(self.device(), "export_device"))
    }

    /// Returns the protection domain with this handle on the same open file. Destroying the
    /// returned object destroys nothing in the kernel.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the provider cannot import protection domains. An invalid handle causes
    /// errors only when objects are created in the domain.
    fn import_pd(&self, handle: u32) -> Result<P::Pd> {
        let _ = handle;
        Err(unsupported(self.device(), "import_pd"))
    }

    /// Returns the memory region with this handle on the same open file, and its attributes.
    /// Destroying the returned region destroys nothing in the kernel.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the provider or the kernel cannot import regions; `ENOENT` for an invalid
    /// handle; any other errno the kernel returns.
    fn import_mr(&self, pd: &P::Pd, handle: u32) -> Result<(P::Mr, MrAttr)> {
        let _ = (pd, handle);
        Err(unsupported(self.device(), "import_mr"))
    }

    /// Returns the device memory with this handle on the same open file. Destroying the returned
    /// object destroys nothing in the kernel.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the provider cannot import device memory; any other errno the kernel
    /// returns.
    fn import_dm(&self, handle: u32) -> Result<P::Dm> {
        let _ = handle;
        Err(unsupported(self.device(), "import_dm"))
    }

    /// Creates a completion queue and its handle for [`create_qp`](Self::create_qp).
    ///
    /// The queue may use memory from a parent domain's allocator and be dedicated to the thread of
    /// the parent domain's thread domain. The parent domain must be destroyed after the queue.
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Limit`](crate::Cause::Limit) for an invalid size or vector; `EINVAL`
    /// for a protection domain that is not a parent domain or belongs to another device;
    /// `EOPNOTSUPP` for any domain if the provider has no parent domains; any other errno the
    /// kernel returns.
    fn create_cq(&self, parent_domain: Option<&P::Pd>, attr: &CqInitAttr<'_>)
    -> Result<(P::Cq, P::CqHandle)>;

    /// Creates a queue pair in the state RESET, with its queues. The completion queues must not
    /// have been destroyed.
    ///
    /// # Errors
    /// [`Cause::Limit`](crate::Cause::Limit) for a size beyond the device's limit;
    /// [`Cause::QpType`](crate::Cause::QpType) for a type the device does not support; `EINVAL` for
    /// a missing parent that the type requires; any other errno the kernel returns.
    fn create_qp(&self, parents: &QpParents<'_, P>, attr: &QpInitAttr) -> Result<QpParts<P>>;

    /// Creates a queue pair like [`create_qp`](Self::create_qp), with properties that only some
    /// devices have.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device lacks one of these properties; otherwise as
    /// [`create_qp`](Self::create_qp).
    fn create_qp_ex(
        &self,
        parents: &QpParents<'_, P>,
        attr: &QpInitAttr,
        extras: &QpExtras<'_, P>,
    ) -> Result<QpParts<P>> {
        let _ = (parents, attr, extras);
        Err(unsupported(self.device(), "create_qp_ex"))
    }

    /// Creates an address handle, which holds the resolved path to a peer.
    ///
    /// # Errors
    /// [`Cause::Gid`](crate::Cause::Gid) for a nonexistent source GID;
    /// [`Cause::NoGrh`](crate::Cause::NoGrh) for a path without a GRH on an Ethernet port; any
    /// other errno the kernel returns.
    fn create_ah(&self, pd: &P::Pd, attr: &AhAttr) -> Result<P::Ah>;

    /// Returns the current value of the device's clock.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if programs cannot read the device's clock.
    fn query_rt_values(&self) -> Result<RtValues> {
        Err(unsupported(self.device(), "query_rt_values"))
    }

    /// Creates a shared receive queue: its control object and its queue.
    ///
    /// # Errors
    /// [`Cause::Limit`](crate::Cause::Limit) for a size beyond the device's limit; `EOPNOTSUPP` for
    /// a kind the device does not support; any other errno the kernel returns.
    fn create_srq(&self, parents: &SrqParents<'_, P>, attr: &SrqInitAttr) -> Result<SrqParts<P>> {
        let _ = (parents, attr);
        Err(unsupported(self.device(), "create_srq"))
    }

    /// Opens the XRC domain of a file's inode or, without a file, creates a new domain.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device has no XRC domains; `EAGAIN` if the file has no domain and
    /// `oflags` lacks `O_CREAT`; `EINVAL` if the file has a domain and `oflags` contains `O_EXCL`;
    /// any other errno the kernel returns.
    fn open_xrcd(&self, file: Option<BorrowedFd<'_>>, oflags: i32) -> Result<P::Xrcd> {
        let _ = (file, oflags);
        Err(unsupported(self.device(), "open_xrcd"))
    }

    /// Opens the XRC target ([`QpType::XRC_RECV`](crate::types::QpType::XRC_RECV)) with this
    /// number. The target may have been created through another context that shares the domain. It
    /// is destroyed with the last queue pair created or opened for it. Its queues accept no
    /// requests.
    ///
    /// # Errors
    /// `EINVAL` if the number belongs to no XRC target in the domain; `EOPNOTSUPP` if the device
    /// has no XRC targets; any other errno the kernel returns.
    fn open_qp(&self, xrcd: &P::Xrcd, qp_num: u32, user_handle: u64) -> Result<QpParts<P>> {
        let _ = (xrcd, qp_num, user_handle);
        Err(unsupported(self.device(), "open_qp"))
    }

    /// Allocates an unbound memory window.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device lacks this window type; any other errno the kernel returns.
    fn alloc_mw(&self, pd: &P::Pd, mw_type: MwType) -> Result<P::Mw> {
        let _ = (pd, mw_type);
        Err(unsupported(self.device(), "alloc_mw"))
    }

    /// Creates a work queue in the state RESET: its control object and its queue.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device lacks this kind of queue; [`Cause::Limit`](crate::Cause::Limit)
    /// for a size beyond the device's limit; any other errno the kernel returns.
    fn create_wq(&self, parents: &WqParents<'_, P>, attr: &WqInitAttr) -> Result<WqParts<P>> {
        let _ = (parents, attr);
        Err(unsupported(self.device(), "create_wq"))
    }

    /// Creates a table of work queues. A queue may occur more than once.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device has no such tables; `EINVAL` for a number of entries that is not
    /// a power of 2 or exceeds the device's limit; any other errno the kernel returns.
    fn create_rwq_ind_table(&self, wqs: &[&P::Wq]) -> Result<P::RwqIndTable> {
        let _ = wqs;
        Err(unsupported(self.device(), "create_rwq_ind_table"))
    }

    /// Creates a flow rule for a queue pair.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device does not support flow rules or one of the specifications; `EPERM`
    /// without `CAP_NET_RAW`; any other errno the kernel returns, notably `EINVAL` for headers in
    /// the wrong order.
    fn create_flow(&self, qp: &P::Qp, rule: FlowRule<'_, P>) -> Result<P::Flow> {
        let _ = (qp, rule);
        Err(unsupported(self.device(), "create_flow"))
    }

    /// Creates a flow action that encrypts or decrypts ESP packets.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device does not support ESP actions or one of the attributes; any other
    /// errno the kernel returns.
    fn create_flow_action_esp(&self, attr: &FlowActionEspAttr) -> Result<P::FlowAction> {
        let _ = attr;
        Err(unsupported(self.device(), "create_flow_action_esp"))
    }

    /// Creates a set of counters for flow rules.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device has no counters for flow rules; any other errno the kernel
    /// returns.
    fn create_counters(&self) -> Result<P::Counters> {
        Err(unsupported(self.device(), "create_counters"))
    }

    /// Creates a completion counter.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device lacks counters of this kind; any other errno the kernel returns.
    fn create_comp_cntr(&self, cntr_type: CompCntrType) -> Result<P::CompCntr> {
        let _ = cntr_type;
        Err(unsupported(self.device(), "create_comp_cntr"))
    }

    /// Makes a completion counter count the operations `ops` of a queue pair.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for operations the device cannot count; any other errno the kernel returns.
    fn qp_attach_comp_cntr(&self, qp: &P::Qp, cntr: &P::CompCntr, ops: CompCntrAttachOps) -> Result<()> {
        let _ = (qp, cntr, ops);
        Err(unsupported(self.device(), "qp_attach_comp_cntr"))
    }
}

/// A protection domain.
pub trait PdOps: Any + Debug + Send + Sync {
    /// Returns the kernel's handle for the protection domain.
    fn handle(&self) -> u32;
}

/// An address handle.
pub trait AhOps: Any + Debug + Send + Sync {
    /// Returns the address vector for a datagram's work request.
    fn av(&self) -> &Av;
}
