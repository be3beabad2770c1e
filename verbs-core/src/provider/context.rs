//! An open device: [`DeviceOps`], its queries, and [`ContextOps`], the objects that are made from
//! it.
//!
//! # Safety
//! The unsafe function declares what its callers promise when they register memory.

#![allow(unsafe_code)]

use core::any::Any;
use core::fmt::Debug;
use std::os::fd::{BorrowedFd, OwnedFd};

use super::{Provider, QpParts};
use crate::Result;
use crate::types::{
    AccessFlags, AhAttr, Av, CqInitAttr, DeviceAttr, DeviceAttrEx, GidEntry, PortAttr, QpInitAttr,
};

/// An open device: what can be asked of it, and its event files. Nothing here depends on the
/// provider's objects.
pub trait DeviceOps: Debug + Send + Sync {
    /// Returns the device's name (`rxe0`).
    fn device_name(&self) -> &str;

    /// Returns the number of completion vectors to choose from.
    fn num_comp_vectors(&self) -> u32;

    /// Queries the device's attributes.
    ///
    /// # Errors
    /// Any errno that the kernel returns; notably `EIO` once the device is gone.
    fn query_device(&self) -> Result<DeviceAttr>;

    /// Queries the device's attributes, with those that kernels added over the years.
    ///
    /// # Errors
    /// As [`query_device`](Self::query_device).
    fn query_device_ex(&self) -> Result<DeviceAttrEx>;

    /// Queries a port, counted from 1.
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Limit`](crate::Cause::Limit) for a port that does not exist.
    fn query_port(&self, port_num: u8) -> Result<PortAttr>;

    /// Returns every valid entry of every port's GID table, in one call where the kernel can.
    ///
    /// # Errors
    /// As [`query_device`](Self::query_device).
    fn query_gid_table(&self) -> Result<Vec<GidEntry>>;

    /// Returns one entry of a port's GID table; `None` for an empty one.
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Limit`](crate::Cause::Limit) for a port, with
    /// [`Cause::Gid`](crate::Cause::Gid) for an index that does not exist.
    fn query_gid_entry(&self, port_num: u8, gid_index: u32) -> Result<Option<GidEntry>>;

    /// Returns one entry of a port's partition key table, in host order.
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Limit`](crate::Cause::Limit) for a port or an index that does not
    /// exist.
    fn query_pkey(&self, port_num: u8, index: u16) -> Result<u16>;

    /// Returns the file at which the device's asynchronous events arrive: records of
    /// `ib_uverbs_async_event_desc`.
    ///
    /// # Errors
    /// Any errno that the kernel returns when it opens the file; notably `EMFILE`.
    fn async_fd(&self) -> Result<BorrowedFd<'_>>;

    /// Opens a file at which completion events arrive: the `u64` user handles of completion queues.
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

    /// Registers `length` bytes at `addr`, which the device knows as `iova` from then on.
    ///
    /// # Safety
    /// While the region is registered the device may read the bytes, and with
    /// [`LOCAL_WRITE`](AccessFlags::LOCAL_WRITE) write them, whenever a work request or a peer says
    /// so. The bytes must stay mapped, and whoever accesses them must be ready for that.
    ///
    /// # Errors
    /// [`Cause::Memlock`](crate::Cause::Memlock) where `RLIMIT_MEMLOCK` is in the way; `EFAULT` for
    /// memory that is not mapped, or is read-only and registered for writing; any other errno that
    /// the kernel returns.
    unsafe fn reg_mr(
        &self,
        pd: &P::Pd,
        addr: *mut u8,
        length: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<P::Mr>;

    /// Creates a completion queue, and what names it to [`create_qp`](Self::create_qp).
    ///
    /// # Errors
    /// [`Cause::Limit`](crate::Cause::Limit) for a size or vector that the device does not have;
    /// any other errno that the kernel returns.
    fn create_cq(&self, attr: &CqInitAttr<'_>) -> Result<(P::Cq, P::CqHandle)>;

    /// Creates a queue pair, in the state RESET, with its queues. The completion queues have not
    /// been destroyed.
    ///
    /// # Errors
    /// [`Cause::Limit`](crate::Cause::Limit) for a size that the device does not have; any other
    /// errno that the kernel returns.
    fn create_qp(
        &self,
        pd: &P::Pd,
        send_cq: &P::CqHandle,
        recv_cq: &P::CqHandle,
        attr: &QpInitAttr,
    ) -> Result<QpParts<P>>;

    /// Creates an address handle: the path to a peer, resolved.
    ///
    /// # Errors
    /// [`Cause::Gid`](crate::Cause::Gid) for a source that does not exist; any other errno that the
    /// kernel returns.
    fn create_ah(&self, pd: &P::Pd, attr: &AhAttr) -> Result<P::Ah>;
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

    /// Returns the key for this process' own work requests.
    fn lkey(&self) -> u32;

    /// Returns the key for peers.
    fn rkey(&self) -> u32;
}

/// An address handle.
pub trait AhOps: Any + Debug + Send + Sync {
    /// Returns what a datagram's work request carries.
    fn av(&self) -> &Av;
}
