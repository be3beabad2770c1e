//! [`Context`]: an open device, and what can be asked of it.

use std::fmt;
use std::sync::Arc;

use verbs_core::provider::{ContextOps, Erased, NamedProvider, OpenedContext, Provider};
use verbs_core::types::{DeviceAttr, DeviceAttrEx, Gid, GidEntry, PortAttr};
use verbs_core::{Cause, Errno, Error, Result};

use crate::gid;
use crate::registry::{Child, Parent, Registry, Tally};
use crate::{AsyncEvents, CompChannel, Cq, CqInit, HandleError, Pd};

/// An open device. Cheap to clone; everything made from it keeps it open.
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
    /// Made static, while clones and children of the erased one live on.
    Within(Arc<Inner<Erased>>, AsProvider<P>),
}

/// Looks at an erased context as a provider's own.
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

    /// The provider's own context, for what it has beyond verbs.
    // Nothing that a program does makes it panic.
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

    /// The device's name (`rxe0`).
    #[doc(alias = "ibv_get_device_name")]
    pub fn device_name(&self) -> &str {
        self.inner.registry.device()
    }

    /// The provider's name (`rxe`).
    pub fn provider_name(&self) -> &'static str {
        self.raw().provider_name()
    }

    /// How many completion vectors there are to choose from in [`CqInit::comp_vector`].
    pub fn num_comp_vectors(&self) -> u32 {
        self.raw().device().num_comp_vectors()
    }

    /// Asks what the device can do.
    ///
    /// # Errors
    /// What the kernel answers.
    ///
    /// # References
    /// `ibv_query_device(3)`
    #[doc(alias = "ibv_query_device")]
    pub fn query_device(&self) -> Result<DeviceAttr> {
        self.raw().device().query_device()
    }

    /// Asks what the device can do, with everything that was added over the years; what an older
    /// kernel does not tell is zero.
    ///
    /// # Errors
    /// What the kernel answers.
    ///
    /// # References
    /// `ibv_query_device_ex(3)`
    #[doc(alias = "ibv_query_device_ex")]
    pub fn query_device_ex(&self) -> Result<DeviceAttrEx> {
        self.raw().device().query_device_ex()
    }

    /// Asks a port, from 1, how it is.
    ///
    /// # Errors
    /// [`Cause::Limit`] for a port that does not exist, with the range of those that do.
    ///
    /// # References
    /// `ibv_query_port(3)`
    #[doc(alias = "ibv_query_port")]
    pub fn query_port(&self, port_num: u8) -> Result<PortAttr> {
        self.raw().device().query_port(port_num)
    }

    /// An entry of a port's GID table; [`Gid::ZERO`] for an empty one, as in C.
    ///
    /// # Errors
    /// [`Cause::Gid`] for an index outside of the table, with the table's length.
    ///
    /// # References
    /// `ibv_query_gid(3)`
    #[doc(alias = "ibv_query_gid")]
    pub fn query_gid(&self, port_num: u8, gid_index: u32) -> Result<Gid> {
        Ok(self.query_gid_entry(port_num, gid_index)?.map_or(Gid::ZERO, |entry| entry.gid))
    }

    /// An entry of a port's GID table with its type and network interface; `None` for an empty one.
    ///
    /// # Errors
    /// [`Cause::Gid`] for an index outside of the table, with the table's length.
    ///
    /// # References
    /// `ibv_query_gid_ex(3)`
    #[doc(alias = "ibv_query_gid_ex")]
    #[doc(alias = "ibv_query_gid_type")]
    pub fn query_gid_entry(&self, port_num: u8, gid_index: u32) -> Result<Option<GidEntry>> {
        self.raw().device().query_gid_entry(port_num, gid_index)
    }

    /// Every valid entry of every port's GID table.
    ///
    /// # Errors
    /// What the kernel answers.
    ///
    /// # References
    /// `ibv_query_gid_table(3)`
    #[doc(alias = "ibv_query_gid_table")]
    pub fn gid_table(&self) -> Result<Vec<GidEntry>> {
        self.raw().device().query_gid_table()
    }

    /// The entry of a port's GID table that most programs want, and seldom find at the same index
    /// twice.
    ///
    /// RoCE v2 before InfiniBand and RoCE v1, and among those an IPv4 address before a global IPv6
    /// address before link-local ones; the lower index where two are as good.
    ///
    /// # Errors
    /// [`Cause::Gid`] where the port has none; as [`query_port`](Self::query_port) where there is
    /// no such port.
    pub fn find_gid(&self, port_num: u8) -> Result<GidEntry> {
        if let Some(entry) = gid::best(&self.gid_table()?, port_num) {
            return Ok(entry);
        }
        let table_len = self.query_port(port_num)?.gid_tbl_len;
        let cause = Cause::Gid { port_num, index: 0, table_len };
        Err(self.error("find_gid", Errno::NODATA).because(cause))
    }

    /// An entry of a port's partition key table, in host order.
    ///
    /// # Errors
    /// [`Cause::Limit`] for an index outside of the table.
    ///
    /// # References
    /// `ibv_query_pkey(3)`
    #[doc(alias = "ibv_query_pkey")]
    pub fn query_pkey(&self, port_num: u8, index: u16) -> Result<u16> {
        self.raw().device().query_pkey(port_num, index)
    }

    /// A protection domain: what memory regions, queue pairs and address handles are made in.
    ///
    /// # Errors
    /// What the kernel answers.
    ///
    /// # References
    /// `ibv_alloc_pd(3)`
    #[doc(alias = "ibv_alloc_pd")]
    pub fn alloc_pd(&self) -> Result<Pd<P>> {
        Pd::alloc(self)
    }

    /// A completion channel: where completion queues say that there is something to poll.
    ///
    /// # Errors
    /// What the kernel answers.
    ///
    /// # References
    /// `ibv_create_comp_channel(3)`
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn create_comp_channel(&self) -> Result<CompChannel> {
        CompChannel::create(self)
    }

    /// A completion queue.
    ///
    /// # Errors
    /// [`Cause::Limit`] for a size or vector that the device does not have; [`Cause::Foreign`] for
    /// another device's completion channel; otherwise what the kernel answers.
    ///
    /// # References
    /// `ibv_create_cq(3)`
    #[doc(alias = "ibv_create_cq")]
    pub fn create_cq(&self, init: &CqInit<'_>) -> Result<Cq<P>> {
        Cq::create(self, init)
    }

    /// The stream of the device's asynchronous events. Each event goes to one of the streams that
    /// wait.
    ///
    /// # Errors
    /// What the kernel answers.
    ///
    /// # References
    /// `ibv_get_async_event(3)`
    #[doc(alias = "ibv_get_async_event")]
    pub fn async_events(&self) -> Result<AsyncEvents> {
        AsyncEvents::open(self)
    }

    /// Closes the device, if this is all that is left of it. Dropping does the same, later.
    ///
    /// # Errors
    /// [`Cause::InUse`] with what is made from it and still alive, and the handle.
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

    /// The same open device with its provider named: its objects need no indirect calls.
    ///
    /// # Errors
    /// The handle, when the device is of another provider.
    pub fn downcast<P: NamedProvider>(self) -> Result<Context<P>, Self> {
        if self.raw().downcast_ref::<P>().is_none() {
            return Err(self);
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
