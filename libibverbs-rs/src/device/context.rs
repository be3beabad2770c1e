//! [`Context`]: an open device and its queries. The methods that create a device's objects are in
//! the files of these objects.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use verbs_core::provider::{ContextOps, Erased, NamedProvider, OpenedContext, Provider};
use verbs_core::types::{DeviceAttr, DeviceAttrEx, Gid, GidEntry, PortAttr, RtValues};
use verbs_core::{Cause, Errno, Error, Result};

use crate::device::gid;
use crate::handle::error::HandleError;
use crate::handle::registry::{Child, Parent, Registry, Tally};

/// An open device. Cheap to clone. All objects created from a context keep the device open.
///
/// ```text
/// Context ─┬─ Pd ─┬─ Mr, Buf, Exposed
///          │      ├─ Ah
///          │      └─ Qp ──► its two Cqs
///          ├─ CompChannel
///          └─ Cq ──► its CompChannel
/// ```
///
/// # References
/// `ibv_open_device(3)`
#[doc(alias = "ibv_context")]
pub struct Context<P: Provider = Erased> {
    inner: Arc<Inner<P>>,
}

struct Inner<P: Provider> {
    raw: Raw<P>,
    registry: Arc<Registry>,
}

enum Raw<P: Provider> {
    Own(Box<P::Context>),
    /// An erased context and the cast to its provider, made by `downcast`. Clones and children of
    /// the erased handle stay valid.
    Within(Arc<Inner<Erased>>, AsProvider<P>),
}

/// A function that casts an erased context to its provider's own type.
type AsProvider<P> = fn(&dyn ContextOps<Erased>) -> Option<&<P as Provider>::Context>;

impl<P: Provider> Context<P> {
    /// Wraps a provider's context. Programs open a [`Device`](crate::Device) instead.
    pub fn from_raw(raw: P::Context) -> Self
    where
        P::Context: Sized,
    {
        Self::from_box(Box::new(raw))
    }

    pub(crate) fn from_box(raw: Box<P::Context>) -> Self {
        let registry = Registry::new(raw.device().device_name());
        Self { inner: Arc::new(Inner { raw: Raw::Own(raw), registry }) }
    }

    /// Returns the provider's own context, for features beyond verbs.
    // The panics below are unreachable.
    #[allow(clippy::missing_panics_doc)]
    pub fn raw(&self) -> &P::Context {
        match &self.inner.raw {
            Raw::Own(context) => context,
            Raw::Within(erased, as_provider) => match &erased.raw {
                Raw::Own(context) => as_provider(&**context).expect("downcast compared the type"),
                Raw::Within(..) => unreachable!("an erased context is within no other"),
            },
        }
    }

    /// Returns the device's name (`rxe0`).
    #[doc(alias = "ibv_get_device_name")]
    pub fn device_name(&self) -> &str {
        self.inner.registry.device()
    }

    /// Returns the provider's name (`rxe`).
    pub fn provider_name(&self) -> &'static str {
        self.raw().provider_name()
    }

    /// Returns the meaning of the [`vendor_err`](crate::Wc::vendor_err) in a failed completion from
    /// this device; `None` if the meaning is not public, which is the usual case. The
    /// [`status`](crate::Wc::status) always states the kind of failure.
    ///
    /// ```no_run
    /// # fn f(context: verbs::Context, mut cq: verbs::Cq) {
    /// if let Some(completed) = cq.poll_one()
    ///     && let Err(error) = completed.wc.ok()
    /// {
    ///     let vendor = context.vendor_err_text(error.vendor_err).unwrap_or("no public meaning");
    ///     eprintln!("{error}: {vendor}");
    /// }
    /// # }
    /// ```
    pub fn vendor_err_text(&self, vendor_err: u32) -> Option<&'static str> {
        self.raw().vendor_err_text(vendor_err)
    }

    /// Returns the number of completion vectors, one of which
    /// [`CqInit::comp_vector`](crate::CqInit::comp_vector) selects.
    pub fn num_comp_vectors(&self) -> u32 {
        self.raw().device().num_comp_vectors()
    }

    /// Queries the device's limits and capabilities.
    ///
    /// # Errors
    /// Any errno the kernel returns; notably `EIO` once the device is gone.
    ///
    /// # References
    /// `ibv_query_device(3)`
    #[doc(alias = "ibv_query_device")]
    pub fn query_device(&self) -> Result<DeviceAttr> {
        self.raw().device().query_device()
    }

    /// Queries the device's limits and capabilities in the extended form. Fields that an older
    /// kernel does not report are zero.
    ///
    /// # Errors
    /// Same as [`query_device`](Self::query_device).
    ///
    /// # References
    /// `ibv_query_device_ex(3)`
    #[doc(alias = "ibv_query_device_ex")]
    pub fn query_device_ex(&self) -> Result<DeviceAttrEx> {
        self.raw().device().query_device_ex()
    }

    /// Queries the state and attributes of a port. Port numbers start at 1.
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Limit`], which states the valid range, for a port that does not
    /// exist; otherwise as [`query_device`](Self::query_device).
    ///
    /// # References
    /// `ibv_query_port(3)`
    #[doc(alias = "ibv_query_port")]
    pub fn query_port(&self, port_num: u8) -> Result<PortAttr> {
        self.raw().device().query_port(port_num)
    }

    /// Returns the time on the device's clock, the source of
    /// [`Completion::completion_ts`](crate::Completion::completion_ts). The clock ticks at
    /// [`hca_core_clock`](DeviceAttrEx::hca_core_clock) kHz.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device has no readable clock (rxe).
    ///
    /// # References
    /// `ibv_query_rt_values_ex(3)`
    #[doc(alias = "ibv_query_rt_values_ex")]
    pub fn query_rt_values(&self) -> Result<RtValues> {
        self.raw().query_rt_values()
    }

    /// Queries the effective speed of a port, in units of 100 Mbit/s. If the kernel does not report
    /// the speed, the result is the number of lanes times the speed per lane.
    ///
    /// # Errors
    /// Same as [`query_port`](Self::query_port); `EOPNOTSUPP` for a width or a speed unknown to
    /// this library.
    ///
    /// # References
    /// `ibv_query_port_speed(3)`
    #[doc(alias = "ibv_query_port_speed")]
    pub fn query_port_speed(&self, port_num: u8) -> Result<u64> {
        self.raw().device().query_port_speed(port_num)
    }

    /// Returns a GID from a port's GID table; [`Gid::ZERO`] for an empty entry, as in C.
    ///
    /// # Errors
    /// Same as [`query_gid_entry`](Self::query_gid_entry).
    ///
    /// # References
    /// `ibv_query_gid(3)`
    #[doc(alias = "ibv_query_gid")]
    pub fn query_gid(&self, port_num: u8, gid_index: u32) -> Result<Gid> {
        Ok(self.query_gid_entry(port_num, gid_index)?.map_or(Gid::ZERO, |entry| entry.gid))
    }

    /// Returns an entry of a port's GID table with its type and network interface; `None` for an
    /// empty entry.
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Limit`] for a port that does not exist, with [`Cause::Gid`] and the
    /// table's length for an index outside the table; otherwise as
    /// [`query_device`](Self::query_device).
    ///
    /// # References
    /// `ibv_query_gid_ex(3)`
    #[doc(alias = "ibv_query_gid_ex")]
    #[doc(alias = "ibv_query_gid_type")]
    pub fn query_gid_entry(&self, port_num: u8, gid_index: u32) -> Result<Option<GidEntry>> {
        self.raw().device().query_gid_entry(port_num, gid_index)
    }

    /// Returns every valid entry of every port's GID table.
    ///
    /// # Errors
    /// Same as [`query_device`](Self::query_device).
    ///
    /// # References
    /// `ibv_query_gid_table(3)`
    #[doc(alias = "ibv_query_gid_table")]
    pub fn gid_table(&self) -> Result<Vec<GidEntry>> {
        self.raw().device().query_gid_table()
    }

    /// Returns the source GID that suits most programs. Do not use a fixed index instead, because
    /// indexes change with the host's network configuration.
    ///
    /// RoCE v2 comes before InfiniBand and RoCE v1; within a protocol, a routable IPv4 address
    /// comes before a global IPv6 address, and link-local addresses and loopback come last. Among
    /// equal entries, the lowest index wins.
    ///
    /// # Errors
    /// `ENODATA` with [`Cause::Gid`] if the port has no GID; as [`query_port`](Self::query_port) if
    /// the port does not exist.
    pub fn find_gid(&self, port_num: u8) -> Result<GidEntry> {
        let mut best = gid::Best::default();
        self.raw().device().visit_gids(port_num, &mut |entry| best.offer(entry))?;
        if let Some(entry) = best.get() {
            return Ok(entry);
        }
        let table_len = self.query_port(port_num)?.gid_tbl_len;
        let cause = Cause::Gid { port_num, index: 0, table_len };
        Err(self.error("find_gid", Errno::NODATA).because(cause))
    }

    /// Returns an entry of a port's partition key table, in host byte order.
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Limit`] for a port that does not exist or an index outside the table;
    /// otherwise any errno from reading sysfs.
    ///
    /// # References
    /// `ibv_query_pkey(3)`
    #[doc(alias = "ibv_query_pkey")]
    pub fn query_pkey(&self, port_num: u8, index: u16) -> Result<u16> {
        self.raw().device().query_pkey(port_num, index)
    }

    /// Returns the index of a partition key in a port's table. A key that differs only in the top
    /// bit, the membership type, does not match.
    ///
    /// # Errors
    /// `ENODATA` if the table lacks the key; otherwise as [`query_pkey`](Self::query_pkey) and
    /// [`query_port`](Self::query_port).
    ///
    /// # References
    /// `ibv_get_pkey_index(3)`
    #[doc(alias = "ibv_get_pkey_index")]
    pub fn pkey_index(&self, port_num: u8, pkey: u16) -> Result<u16> {
        for index in 0..self.query_port(port_num)?.pkey_tbl_len {
            if self.query_pkey(port_num, index)? == pkey {
                return Ok(index);
            }
        }
        Err(self.error("get_pkey_index", Errno::NODATA))
    }

    /// Returns a copy of the device file's descriptor, for sharing this context with another
    /// process or library ([`import_device`](crate::import_device)). The kernel driver must support
    /// sharing; rxe does not, so importing its file fails.
    ///
    /// # Safety
    /// The descriptor gives full control of the context. The receiver may import existing objects,
    /// but must destroy and change only objects that it created itself.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for a device without a file; any errno from `dup(2)`, notably `EMFILE`.
    ///
    /// # References
    /// `ibv_import_device(3)`
    #[doc(alias = "ibv_import_device")]
    #[allow(unsafe_code)]
    pub unsafe fn export_device(&self) -> Result<OwnedFd> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.raw().export_device() }
    }

    /// Closes the device if this is its last handle and no object created from it remains.
    /// Otherwise the device closes once its last handle and object are gone.
    ///
    /// # Errors
    /// Returns the handle and `EBUSY` with [`Cause::InUse`], which names the kind of the remaining
    /// objects.
    ///
    /// # References
    /// `ibv_close_device(3)`
    #[doc(alias = "ibv_close_device")]
    pub fn close(self) -> Result<(), HandleError<Self>> {
        let inner = match Arc::try_unwrap(self.inner) {
            Ok(inner) => inner,
            Err(inner) => {
                let error = inner.registry.in_use("close_device", inner.registry.users());
                return Err(HandleError { handle: Self { inner }, error });
            }
        };
        match inner.raw {
            Raw::Own(_) => Ok(()),
            Raw::Within(erased, as_provider) => Context { inner: erased }.close().map_err(|failed| {
                failed.map(|Context { inner: erased }| Self {
                    inner: Arc::new(Inner {
                        raw: Raw::Within(erased, as_provider),
                        registry: inner.registry,
                    }),
                })
            }),
        }
    }

    /// Returns the provider's own context for a call that creates an object, after checking that
    /// memory is available for the call's small allocations.
    ///
    /// # Errors
    /// Same as [`Registry::room`].
    pub(crate) fn creating(&self, verb: &'static str) -> Result<&P::Context> {
        self.registry().room(verb)?;
        Ok(self.raw())
    }

    pub(crate) fn registry(&self) -> &Arc<Registry> {
        &self.inner.registry
    }

    pub(crate) fn error(&self, verb: &'static str, errno: Errno) -> Error {
        self.inner.registry.error(verb, errno)
    }

    pub(crate) fn parent(&self) -> Parent {
        Arc::<Inner<P>>::clone(&self.inner)
    }

    pub(crate) fn child(&self, tally: &Tally) -> Child {
        Child::new(self.parent(), tally)
    }
}

impl Context<Erased> {
    pub(crate) fn from_opened(opened: OpenedContext) -> Self {
        Self::from_box(opened)
    }

    /// Returns the same open device with its provider known at compile time. The data path of its
    /// objects needs no indirect calls.
    ///
    /// # Errors
    /// Returns the handle if the device belongs to another provider.
    pub fn downcast<P: NamedProvider>(self) -> Result<Context<P>, HandleError<Self>> {
        if self.raw().downcast_ref::<P>().is_none() {
            return Err(HandleError::of_another_provider(self));
        }
        let registry = Arc::clone(&self.inner.registry);
        Ok(Context {
            inner: Arc::new(Inner {
                raw: Raw::Within(self.inner, <dyn ContextOps<Erased>>::downcast_ref::<P>),
                registry,
            }),
        })
    }
}

impl<P: Provider> Clone for Context<P> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<P: Provider> fmt::Debug for Context<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("device", &self.device_name())
            .field("provider", &self.provider_name())
            .finish_non_exhaustive()
    }
}
