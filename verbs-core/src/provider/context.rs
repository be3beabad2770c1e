//! An open device: its queries ([`DeviceOps`]), and the objects made from it ([`ContextOps`]).
//!
//! # Safety
//! The unsafe function declares the promises of its callers, who register memory.

#![allow(unsafe_code)]

use core::any::Any;
use core::fmt::Debug;
use std::os::fd::{BorrowedFd, OwnedFd};

use super::{Provider, QpParents, QpParts, SrqParents, SrqParts, unsupported};
use crate::Result;
use crate::types::{
    AccessFlags, AhAttr, Av, CqInitAttr, DeviceAttr, DeviceAttrEx, GidEntry, MwType, PortAttr, QpInitAttr,
    SrqInitAttr,
};

/// An open device: its queries and its event files. Nothing here depends on the provider's objects.
pub trait DeviceOps: Debug + Send + Sync {
    /// Returns the device's name (`rxe0`).
    fn device_name(&self) -> &str;

    /// Returns the number of completion vectors; a vector is below it.
    fn num_comp_vectors(&self) -> u32;

    /// Queries the device's attributes.
    ///
    /// # Errors
    /// Any errno that the kernel returns; notably `EIO` once the device is gone.
    fn query_device(&self) -> Result<DeviceAttr>;

    /// Queries the device's attributes, including those that later kernels added.
    ///
    /// # Errors
    /// As [`query_device`](Self::query_device).
    fn query_device_ex(&self) -> Result<DeviceAttrEx>;

    /// Queries a port, counted from 1.
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Limit`](crate::Cause::Limit) for a port that does not exist;
    /// otherwise as [`query_device`](Self::query_device).
    fn query_port(&self, port_num: u8) -> Result<PortAttr>;

    /// Returns every valid entry of every port's GID table, by one command if the kernel has it.
    ///
    /// # Errors
    /// As [`query_device`](Self::query_device).
    fn query_gid_table(&self) -> Result<Vec<GidEntry>>;

    /// Returns one entry of a port's GID table, or `None` if it is empty.
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Limit`](crate::Cause::Limit) for a port that does not exist, and with
    /// [`Cause::Gid`](crate::Cause::Gid) for an index that does not exist; otherwise as
    /// [`query_device`](Self::query_device).
    fn query_gid_entry(&self, port_num: u8, gid_index: u32) -> Result<Option<GidEntry>>;

    /// Returns one entry of a port's partition key table, in host order.
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Limit`](crate::Cause::Limit) for a port or an index that does not
    /// exist; otherwise any errno with which sysfs cannot be read.
    fn query_pkey(&self, port_num: u8, index: u16) -> Result<u16>;

    /// Returns the file of the device's asynchronous events, which are records of
    /// `ib_uverbs_async_event_desc`.
    ///
    /// # Errors
    /// Any errno that the kernel returns when it opens the file; notably `EMFILE`.
    fn async_fd(&self) -> Result<BorrowedFd<'_>>;

    /// Opens a file of completion events, which are the `u64` user handles of completion queues.
    ///
    /// # Errors
    /// Any errno that the kernel returns; notably `EMFILE`.
    fn create_comp_channel(&self) -> Result<OwnedFd>;
}

/// An open device: the objects that are made from it.
pub trait ContextOps<P: Provider>: Any + Debug + Send + Sync {
    /// Returns the provider's name (`rxe`).
    fn provider_name(&self) -> &'static str;

    /// Returns the device, for queries.
    fn device(&self) -> &dyn DeviceOps;

    /// Allocates a protection domain.
    ///
    /// # Errors
    /// Any errno that the kernel returns; notably `ENOMEM`.
    fn alloc_pd(&self) -> Result<P::Pd>;

    /// Registers `length` bytes at `addr`, which work requests and peers address as `iova`.
    ///
    /// # Safety
    /// While the region is registered the device may read the bytes, and with
    /// [`LOCAL_WRITE`](AccessFlags::LOCAL_WRITE) write them, whenever a work request or a peer
    /// demands it. The bytes must stay mapped, and code that accesses them must allow for these
    /// accesses.
    ///
    /// # Errors
    /// `ENOMEM` with [`Cause::Memlock`](crate::Cause::Memlock) for a region beyond
    /// `RLIMIT_MEMLOCK`; `EFAULT` for memory that is not mapped, or is read-only and registered for
    /// writing; `EINVAL` for rights that exclude each other and `EOPNOTSUPP` for rights that the
    /// device lacks; any other errno that the kernel returns.
    unsafe fn reg_mr(
        &self,
        pd: &P::Pd,
        addr: *mut u8,
        length: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<P::Mr>;

    /// Creates a completion queue, and its name for [`create_qp`](Self::create_qp).
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Limit`](crate::Cause::Limit) for a size or vector that the device
    /// does not have; any other errno that the kernel returns.
    fn create_cq(&self, attr: &CqInitAttr<'_>) -> Result<(P::Cq, P::CqHandle)>;

    /// Creates a queue pair in the state RESET, with its queues. The completion queues must not
    /// have been destroyed.
    ///
    /// # Errors
    /// [`Cause::Limit`](crate::Cause::Limit) for a size beyond the device's limit;
    /// [`Cause::QpType`](crate::Cause::QpType) for a type that the device does not have; `EINVAL`
    /// for a parent that the type needs and that is missing; any other errno that the kernel
    /// returns.
    fn create_qp(&self, parents: &QpParents<'_, P>, attr: &QpInitAttr) -> Result<QpParts<P>>;

    /// Creates an address handle, which holds the resolved path to a peer.
    ///
    /// # Errors
    /// [`Cause::Gid`](crate::Cause::Gid) for a source GID that does not exist;
    /// [`Cause::NoGrh`](crate::Cause::NoGrh) for a path without a GRH on an Ethernet port; any
    /// other errno that the kernel returns.
    fn create_ah(&self, pd: &P::Pd, attr: &AhAttr) -> Result<P::Ah>;

    /// Creates a shared receive queue, with its queue.
    ///
    /// # Errors
    /// [`Cause::Limit`](crate::Cause::Limit) for a size beyond the device's limit; `EOPNOTSUPP` for
    /// a kind that the device does not have; any other errno that the kernel returns.
    fn create_srq(&self, parents: &SrqParents<'_, P>, attr: &SrqInitAttr) -> Result<SrqParts<P>> {
        let _ = (parents, attr);
        Err(unsupported(self.device(), "create_srq"))
    }

    /// Opens an XRC domain: one of its own, or with a file the one of the file's inode.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device has none; any other errno that the kernel returns, notably
    /// `EEXIST`, `ENOENT` and `EBADF` for the file and the flags (`O_CREAT`, `O_EXCL`).
    fn open_xrcd(&self, file: Option<BorrowedFd<'_>>, oflags: i32) -> Result<P::Xrcd> {
        let _ = (file, oflags);
        Err(unsupported(self.device(), "open_xrcd"))
    }

    /// Allocates a memory window, which is bound to no region yet.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device has none of the type; any other errno that the kernel returns.
    fn alloc_mw(&self, pd: &P::Pd, mw_type: MwType) -> Result<P::Mw> {
        let _ = (pd, mw_type);
        Err(unsupported(self.device(), "alloc_mw"))
    }
}

/// A protection domain.
pub trait PdOps: Any + Debug + Send + Sync {
    /// Returns the kernel's handle.
    fn handle(&self) -> u32;
}

/// A memory region.
pub trait MrOps: Any + Debug + Send + Sync {
    /// Returns the kernel's handle.
    fn handle(&self) -> u32;

    /// Returns the key for work requests of this process.
    fn lkey(&self) -> u32;

    /// Returns the key for work requests of peers.
    fn rkey(&self) -> u32;
}

/// An address handle.
pub trait AhOps: Any + Debug + Send + Sync {
    /// Returns the address vector for a datagram's work request.
    fn av(&self) -> &Av;
}
