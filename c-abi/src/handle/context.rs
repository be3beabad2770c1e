//! [`Opened`]: an open device, and the dispatch of verbs to its provider.
//!
//! Control operations are methods of [`ProviderContext`], generic over the provider. [`verb!`]
//! selects the context's provider and calls its method; the reasons are in
//! `docs/decisions/0046-control-verbs-of-c-are-generic.md`.
//!
//! Only this file lists the providers. Other files name a provider only for behaviour specific to
//! it: the errnos of its C library, ConnectX operations, the files and the memory of soft devices.
//!
//! # Safety
//! A pointer to an `ibv_context` from this library is a pointer into its [`Opened`], which lives
//! until `ibv_close_device`.
#![allow(unsafe_code)]

use core::mem::offset_of;
use core::ptr::NonNull;

use provider_mlx5::Mlx5;
use provider_rxe::Rxe;
use provider_soft::Soft;
use verbs_core::provider::{ContextOps, DeviceOps, Erased, OpenedContext, Provider};

use crate::abi::c::{ibv_context, verbs_context};
use crate::handle::cmd_fd::CmdFd;
use crate::handle::live_objects::LiveObjects;

/// A provider's open device.
pub(crate) struct ProviderContext<P: Provider> {
    /// The owner of the provider's context; `context` points into it.
    opened: OpenedContext,
    context: NonNull<P::Context>,
    pub(crate) live: LiveObjects,
}

impl<P: Provider> ProviderContext<P> {
    fn new(opened: OpenedContext, context: NonNull<P::Context>) -> Self {
        Self { opened, context, live: LiveObjects::new() }
    }

    pub(crate) fn context(&self) -> &P::Context {
        // SAFETY: the owner is part of this value and never moves its context.
        unsafe { self.context.as_ref() }
    }

    /// Returns the context with its provider type erased.
    pub(crate) fn erased(&self) -> &dyn ContextOps<Erased> {
        &*self.opened
    }

    /// Returns the provider's context if the device is a ConnectX device.
    pub(crate) fn mlx5(&self) -> Option<&provider_mlx5::Context> {
        self.opened.downcast_ref::<Mlx5>()
    }
}

/// An open device of any provider.
pub(crate) enum AnyProviderContext {
    Soft(ProviderContext<Soft>),
    Mlx5(ProviderContext<Mlx5>),
    Rxe(ProviderContext<Rxe>),
    Other(ProviderContext<Erased>),
}

impl AnyProviderContext {
    pub(crate) fn new(opened: OpenedContext) -> Self {
        if let Some(soft) = opened.downcast_ref::<Soft>().map(NonNull::from) {
            Self::Soft(ProviderContext::new(opened, soft))
        } else if let Some(mlx5) = opened.downcast_ref::<Mlx5>().map(NonNull::from) {
            Self::Mlx5(ProviderContext::new(opened, mlx5))
        } else if let Some(rxe) = opened.downcast_ref::<Rxe>().map(NonNull::from) {
            Self::Rxe(ProviderContext::new(opened, rxe))
        } else {
            let erased = NonNull::from(&*opened);
            Self::Other(ProviderContext::new(opened, erased))
        }
    }
}

/// Calls a method of [`ProviderContext`] on an [`AnyProviderContext`].
macro_rules! dispatch {
    ($provided:expr, $method:ident($($argument:expr),* $(,)?)) => {
        match $provided {
            $crate::handle::context::AnyProviderContext::Soft(provided) => provided.$method($($argument),*),
            $crate::handle::context::AnyProviderContext::Mlx5(provided) => provided.$method($($argument),*),
            $crate::handle::context::AnyProviderContext::Rxe(provided) => provided.$method($($argument),*),
            $crate::handle::context::AnyProviderContext::Other(provided) => provided.$method($($argument),*),
        }
    };
}

/// Calls a method of [`ProviderContext`] for the provider of an open context, as in
/// `verb!(context, alloc_pd(context))`.
macro_rules! verb {
    ($context:expr, $method:ident($($argument:expr),* $(,)?)) => {
        $crate::handle::context::dispatch!(
            $crate::handle::context::provided($context),
            $method($($argument),*)
        )
    };
}

pub(crate) use {dispatch, verb};

/// An open device.
#[repr(C)]
pub(crate) struct Opened {
    c: verbs_context,
    provided: AnyProviderContext,
    _cmd_fd: Option<CmdFd>,
}

impl Opened {
    /// Boxes an open device and returns the pointer to pass to the program.
    pub(crate) fn boxed(
        c: verbs_context,
        provided: AnyProviderContext,
        cmd_fd: Option<CmdFd>,
    ) -> *mut ibv_context {
        let opened = Box::into_raw(Box::new(Self { c, provided, _cmd_fd: cmd_fd }));
        // SAFETY: the box was just created.
        unsafe { &raw mut (*opened).c.context }
    }

    /// Closes the device and frees the box.
    ///
    /// # Safety
    /// `context` must be open and must not be used afterwards.
    pub(crate) unsafe fn free(context: *mut ibv_context) {
        // SAFETY: `boxed` created the box.
        drop(unsafe { Box::from_raw(outer(context)) });
    }
}

/// Returns the [`Opened`] that contains a context.
///
/// # Safety
/// `context` must be open.
const unsafe fn outer(context: *mut ibv_context) -> *mut Opened {
    // SAFETY: the context lies in an `Opened`, whose first field contains it.
    unsafe { context.byte_sub(offset_of!(verbs_context, context)).cast() }
}

const _: () = assert!(offset_of!(Opened, c) == 0);

/// Returns the open device of a context, for [`verb!`].
///
/// # Safety
/// `context` must be open.
pub(crate) unsafe fn provided<'a>(context: *mut ibv_context) -> &'a AnyProviderContext {
    // SAFETY: the caller passes an open context.
    unsafe { &(*outer(context)).provided }
}

/// Returns the provider's context with its type erased.
///
/// # Safety
/// `context` must be open.
pub(crate) unsafe fn erased<'a>(context: *mut ibv_context) -> &'a dyn ContextOps<Erased> {
    // SAFETY: the caller passes an open context.
    unsafe { verb!(context, erased()) }
}

/// Returns the device of a context, for queries.
///
/// # Safety
/// `context` must be open.
pub(crate) unsafe fn device_ops<'a>(context: *mut ibv_context) -> &'a dyn DeviceOps {
    // SAFETY: the caller passes an open context.
    unsafe { erased(context) }.device()
}

/// Returns the provider's context if the device is a ConnectX device.
///
/// # Safety
/// `context` must be open.
pub(crate) unsafe fn mlx5<'a>(context: *mut ibv_context) -> Option<&'a provider_mlx5::Context> {
    // SAFETY: the caller passes an open context.
    match unsafe { provided(context) } {
        AnyProviderContext::Mlx5(provided) => Some(provided.context()),
        _ => None,
    }
}
