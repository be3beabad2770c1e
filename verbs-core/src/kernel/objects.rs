//! Objects without driver-specific data: [`KernelPd`], [`KernelMr`], [`KernelMw`], [`KernelDmah`].
//!
//! An imported object belongs to another owner of the same open file, so destroying it here only
//! drops its handle.
//!
//! # Safety
//! The callers of [`KernelPd::reg_mr`], [`KernelPd::reg_mr_ex`] and [`KernelMr::rereg`] must meet
//! the requirements on registered memory.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::KernelContext;
use crate::channel::Uhw;
use crate::cmd;
use crate::cmd::mr::{Change, Memory, MrInfo};
use crate::error::{Error, Result};
use crate::provider::{Destroy, DmahOps, MrOps, MwOps, PdOps};
use crate::types::{AccessFlags, Advice, AdviseFlags, DmahAttr, MrAttr, MwType, Sge};

/// A kernel protection domain.
#[derive(Debug)]
pub struct KernelPd {
    context: Arc<KernelContext>,
    handle: u32,
    is_own: bool,
}

impl KernelPd {
    /// Allocates a protection domain, for a driver that adds no data.
    ///
    /// # Errors
    /// Any errno the kernel returns; notably `ENOMEM`.
    pub fn alloc(context: &Arc<KernelContext>) -> Result<Self> {
        Self::alloc_uhw(context, Uhw::none())
    }

    /// Allocates a protection domain, with the driver's part of the command in `uhw`.
    ///
    /// # Errors
    /// The errors of [`alloc`](Self::alloc).
    pub fn alloc_uhw(context: &Arc<KernelContext>, uhw: Uhw<'_>) -> Result<Self> {
        let handle = cmd::pd::alloc_pd(&context.uverbs, uhw)
            .map_err(|error| context.explain_shortage(error, "protection domains", |device| device.max_pd))?;
        Ok(Self { context: Arc::clone(context), handle, is_own: true })
    }

    /// Returns the protection domain with this handle. Another owner of the same open file destroys
    /// it. Sends no command.
    pub fn import(context: &Arc<KernelContext>, handle: u32) -> Self {
        Self { context: Arc::clone(context), handle, is_own: false }
    }

    /// Registers `length` bytes at `addr`. Work requests and peers address the first byte as
    /// `iova`.
    ///
    /// # Safety
    /// Same as [`ContextOps::reg_mr`](crate::provider::ContextOps::reg_mr).
    ///
    /// # Errors
    /// The errors of [`ContextOps::reg_mr`](crate::provider::ContextOps::reg_mr).
    pub unsafe fn reg_mr(
        &self,
        addr: *mut u8,
        length: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<KernelMr> {
        let context = &self.context;
        let access = context.access_for_kernel(access);
        // SAFETY: the caller upholds the same contract.
        let info = unsafe { cmd::mr::reg_mr(&context.uverbs, self.handle, addr, length, iova, access) };
        self.registered(info, Some((addr.addr() as u64, iova)), length, access)
    }

    /// Registers memory in the extended form: with a DMA handle, or from a dma-buf.
    ///
    /// # Safety
    /// Same as [`ContextOps::reg_mr_ex`](crate::provider::ContextOps::reg_mr_ex).
    ///
    /// # Errors
    /// The errors of [`ContextOps::reg_mr_ex`](crate::provider::ContextOps::reg_mr_ex).
    pub unsafe fn reg_mr_ex(
        &self,
        memory: Memory<'_>,
        length: usize,
        iova: u64,
        access: AccessFlags,
        dmah: Option<&KernelDmah>,
    ) -> Result<KernelMr> {
        let context = &self.context;
        let access = context.access_for_kernel(access);
        let dmah = dmah.map(DmahOps::handle);
        let start = match memory {
            Memory::Addr(addr) => addr.addr() as u64,
            Memory::DmaBuf { offset, .. } => offset,
        };
        // SAFETY: the caller upholds the same contract.
        let info =
            unsafe { cmd::mr::reg_mr_ex(&context.uverbs, self.handle, memory, length, iova, access, dmah) };
        self.registered(info, Some((start, iova)), length, access)
    }

    /// Registers `length` bytes of a dma-buf, starting at `offset`.
    ///
    /// # Safety
    /// Same as [`ContextOps::reg_dmabuf_mr`](crate::provider::ContextOps::reg_dmabuf_mr).
    ///
    /// # Errors
    /// The errors of [`ContextOps::reg_dmabuf_mr`](crate::provider::ContextOps::reg_dmabuf_mr).
    pub unsafe fn reg_dmabuf_mr(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<KernelMr> {
        let context = &self.context;
        let access = context.access_for_kernel(access);
        // SAFETY: the caller upholds the same contract.
        let info =
            unsafe { cmd::mr::reg_dmabuf_mr(&context.uverbs, self.handle, fd, offset, length, iova, access) };
        self.registered(info, Some((offset, iova)), length, access)
    }

    /// Registers `length` bytes of the device memory with this handle, starting at `offset`.
    ///
    /// # Errors
    /// The errors of [`ContextOps::reg_dm_mr`](crate::provider::ContextOps::reg_dm_mr).
    pub fn reg_dm_mr(
        &self,
        dm_handle: u32,
        offset: u64,
        length: u64,
        access: AccessFlags,
    ) -> Result<KernelMr> {
        let context = &self.context;
        // The kernel accepts only zero-based addresses.
        let access = context.access_for_kernel(access) | AccessFlags::ZERO_BASED;
        let info = cmd::mr::reg_dm_mr(&context.uverbs, self.handle, dm_handle, offset, length, access);
        self.registered(info, None, usize::try_from(length).unwrap_or(usize::MAX), access)
    }

    /// Advises the device about the pages of scatter/gather elements in on-demand paged regions.
    ///
    /// # Errors
    /// The errors of [`ContextOps::advise_mr`](crate::provider::ContextOps::advise_mr).
    pub fn advise_mr(&self, advice: Advice, flags: AdviseFlags, sges: &[Sge]) -> Result<()> {
        cmd::mr::advise_mr(&self.context.uverbs, self.handle, advice, flags, sges)
    }

    /// Returns the memory region with this handle on the same open file, and its attributes.
    ///
    /// # Errors
    /// The errors of [`ContextOps::import_mr`](crate::provider::ContextOps::import_mr).
    pub fn import_mr(&self, handle: u32) -> Result<(KernelMr, MrAttr)> {
        let attr = cmd::mr::query_mr(&self.context.uverbs, handle)?;
        let info = MrInfo { handle, lkey: attr.lkey, rkey: attr.rkey };
        Ok((KernelMr { context: Arc::clone(&self.context), info, is_own: false }, attr))
    }

    fn registered(
        &self,
        info: Result<MrInfo>,
        start: Option<(u64, u64)>,
        length: usize,
        access: AccessFlags,
    ) -> Result<KernelMr> {
        let context = Arc::clone(&self.context);
        let info = info.map_err(|error| context.explain_reg_mr(error, start, Some(length as u64), access))?;
        Ok(KernelMr { context, info, is_own: true })
    }

    /// Allocates a memory window, for a driver that adds no data.
    ///
    /// # Errors
    /// The errors of [`ContextOps::alloc_mw`](crate::provider::ContextOps::alloc_mw).
    pub fn alloc_mw(&self, mw_type: MwType) -> Result<KernelMw> {
        let context = Arc::clone(&self.context);
        let info = cmd::mw::alloc_mw(&context.uverbs, self.handle, mw_type, Uhw::none())
            .map_err(|error| context.explain_shortage(error, "memory windows", |device| device.max_mw))?;
        Ok(KernelMw { context, info, mw_type })
    }
}

impl PdOps for KernelPd {
    fn handle(&self) -> u32 {
        self.handle
    }
}

impl Destroy for KernelPd {
    fn destroy(self) -> Result<(), (Self, Error)> {
        if !self.is_own {
            return Ok(());
        }
        match cmd::pd::dealloc_pd(&self.context.uverbs, self.handle) {
            Ok(()) => Ok(()),
            Err(error) => Err((self, error)),
        }
    }
}

/// A kernel memory region.
#[derive(Debug)]
pub struct KernelMr {
    context: Arc<KernelContext>,
    info: MrInfo,
    is_own: bool,
}

impl KernelMr {
    /// Changes the region in place. Its keys may change.
    ///
    /// # Safety
    /// Same as [`ContextOps::rereg_mr`](crate::provider::ContextOps::rereg_mr).
    ///
    /// # Errors
    /// The errors of [`ContextOps::rereg_mr`](crate::provider::ContextOps::rereg_mr). The state of
    /// the region afterwards depends on the driver; the provider handles it.
    pub unsafe fn rereg(
        &mut self,
        memory: Option<(*mut u8, usize, u64)>,
        pd: Option<&KernelPd>,
        access: Option<AccessFlags>,
    ) -> Result<()> {
        let context = &self.context;
        let access = access.map(|access| context.access_for_kernel(access));
        let change = Change { memory, pd_handle: pd.map(PdOps::handle), access };
        // SAFETY: the caller upholds the same contract.
        let info = unsafe { cmd::mr::rereg_mr(&context.uverbs, self.info.handle, &change) };
        self.info = info.map_err(|error| {
            let start = memory.map(|(addr, _, iova)| (addr.addr() as u64, iova));
            let length = memory.map(|(_, length, _)| length as u64);
            context.explain_reg_mr(error, start, length, access.unwrap_or_default())
        })?;
        Ok(())
    }
}

impl MrOps for KernelMr {
    fn handle(&self) -> u32 {
        self.info.handle
    }

    fn lkey(&self) -> u32 {
        self.info.lkey
    }

    fn rkey(&self) -> u32 {
        self.info.rkey
    }
}

impl Destroy for KernelMr {
    fn destroy(self) -> Result<(), (Self, Error)> {
        if !self.is_own {
            return Ok(());
        }
        match cmd::mr::dereg_mr(&self.context.uverbs, self.info.handle) {
            Ok(()) => Ok(()),
            Err(error) => Err((self, error)),
        }
    }
}

/// A kernel DMA handle.
#[derive(Debug)]
pub struct KernelDmah {
    context: Arc<KernelContext>,
    handle: u32,
}

impl KernelDmah {
    /// Allocates a DMA handle.
    ///
    /// # Errors
    /// The errors of [`ContextOps::alloc_dmah`](crate::provider::ContextOps::alloc_dmah).
    pub fn alloc(context: &Arc<KernelContext>, attr: &DmahAttr) -> Result<Self> {
        let handle = cmd::dmah::alloc_dmah(&context.uverbs, attr)?;
        Ok(Self { context: Arc::clone(context), handle })
    }
}

impl DmahOps for KernelDmah {
    fn handle(&self) -> u32 {
        self.handle
    }
}

impl Destroy for KernelDmah {
    fn destroy(self) -> Result<(), (Self, Error)> {
        match cmd::dmah::dealloc_dmah(&self.context.uverbs, self.handle) {
            Ok(()) => Ok(()),
            Err(error) => Err((self, error)),
        }
    }
}

/// A kernel memory window.
#[derive(Debug)]
pub struct KernelMw {
    context: Arc<KernelContext>,
    info: cmd::mw::MwInfo,
    mw_type: MwType,
}

impl MwOps for KernelMw {
    fn handle(&self) -> u32 {
        self.info.handle
    }

    fn rkey(&self) -> u32 {
        self.info.rkey
    }

    fn mw_type(&self) -> MwType {
        self.mw_type
    }
}

impl Destroy for KernelMw {
    fn destroy(self) -> Result<(), (Self, Error)> {
        match cmd::mw::dealloc_mw(&self.context.uverbs, self.info.handle) {
            Ok(()) => Ok(()),
            Err(error) => Err((self, error)),
        }
    }
}
