//! Objects without driver-specific data: [`KernelPd`], [`KernelMr`].
//!
//! # Safety
//! The caller of [`KernelPd::reg_mr`] makes the promises about the memory.
#![allow(unsafe_code)]

use std::sync::Arc;

use super::KernelContext;
use crate::channel::Uhw;
use crate::provider::{Destroy, MrOps, PdOps};
use crate::types::AccessFlags;
use crate::{Error, Result, cmd};

/// A protection domain of the kernel.
#[derive(Debug)]
pub struct KernelPd {
    context: Arc<KernelContext>,
    handle: u32,
}

impl KernelPd {
    /// Allocates a protection domain, for a driver that needs no data of its own in it.
    ///
    /// # Errors
    /// Any errno that the kernel returns; notably `ENOMEM`.
    pub fn alloc(context: &Arc<KernelContext>) -> Result<Self> {
        let handle = cmd::pd::alloc_pd(&context.uverbs, Uhw::none())?;
        Ok(Self { context: Arc::clone(context), handle })
    }

    /// Registers `length` bytes at `addr`, which work requests and peers address as `iova`.
    ///
    /// # Safety
    /// As [`ContextOps::reg_mr`](crate::provider::ContextOps::reg_mr).
    ///
    /// # Errors
    /// As [`ContextOps::reg_mr`](crate::provider::ContextOps::reg_mr).
    pub unsafe fn reg_mr(
        &self,
        addr: *mut u8,
        length: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<KernelMr> {
        let context = Arc::clone(&self.context);
        let access = context.access_for_kernel(access);
        // SAFETY: the caller's promise is the same.
        let info = unsafe { cmd::mr::reg_mr(&context.uverbs, self.handle, addr, length, iova, access) }
            .map_err(|error| context.explain_reg_mr(error, length, access))?;
        Ok(KernelMr { context, info })
    }
}

impl PdOps for KernelPd {
    fn handle(&self) -> u32 {
        self.handle
    }
}

impl Destroy for KernelPd {
    fn destroy(self) -> Result<(), (Self, Error)> {
        match cmd::pd::dealloc_pd(&self.context.uverbs, self.handle) {
            Ok(()) => Ok(()),
            Err(error) => Err((self, error)),
        }
    }
}

/// A memory region of the kernel.
#[derive(Debug)]
pub struct KernelMr {
    context: Arc<KernelContext>,
    info: cmd::mr::MrInfo,
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
        match cmd::mr::dereg_mr(&self.context.uverbs, self.info.handle) {
            Ok(()) => Ok(()),
            Err(error) => Err((self, error)),
        }
    }
}
