//! [`Binding`]: a server's address before it listens.

use std::net::SocketAddr;

use verbs::{Context, Result};

use super::listener::{self, Listener, ListenerInit};
use super::{ToAddresses, lookup};
use crate::EventChannel;
use crate::event::ConnectRequest;
use crate::id::CmId;

/// A bound address that does not listen yet. A server first creates the objects shared by its
/// connections, on the devices of the address. Then it [listens](Self::listen).
///
/// ```
/// use rdmacm::{Binding, ConnParam, Connector, ListenerInit};
/// use verbs::{CqInit, QpInit, QpType, SrqInit};
///
/// # fn main() -> verbs::Result<()> {
/// # let device = verbs::soft::auto()?;
/// # let host = device.open()?.find_gid(1)?.gid.to_ipv6().to_canonical();
/// # let address = (host, 0);
/// # /*
/// let address = "192.0.2.1:7471";
/// # */
/// let binding = Binding::new(address, &ListenerInit::default())?;
/// let context = binding.context()?;
/// let pd = context.alloc_pd()?;
/// let cq = context.create_cq(&CqInit::new(4096))?;
/// // One receive queue for all clients.
/// let mut srq = pd.create_srq(&SrqInit::new(1024))?;
/// for _ in 0..1024 {
///     srq.post_recv_buf(pd.alloc_buf(4096)?, ..)?;
/// }
/// let (send_cq, recv_queue) = (cq.handle(), srq.handle());
/// let listener = binding.listen(move |request| {
///     let init = QpInit {
///         send_cq: send_cq.clone(),
///         recv_cq: send_cq.clone(),
///         srq: Some(recv_queue.clone()),
///         ..QpInit::new(QpType::RC, &cq)
///     };
///     let qp = request.id.create_qp(&pd, &init)?;
///     request.id.accept(qp, &ConnParam::default())?;
///     Ok(Some(()))
/// })?;
/// # let to = listener.local_addr();
/// # let other = std::thread::spawn(move || Connector::default().connect(to));
/// let client = listener.accept()?;
/// # let _other = other.join().expect("it has connected")?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Binding {
    id: CmId,
    channel: EventChannel,
    address: SocketAddr,
    init: ListenerInit,
}

impl Binding {
    /// Binds to the first address that can be bound. Port 0 stands for any port
    /// ([`local_addr`](Self::local_addr)).
    ///
    /// # Errors
    /// The errors of [`EventChannel::new`] and [`CmId::bind_addr`]; `ENOENT` for an unknown name.
    #[doc(alias = "rdma_bind_addr")]
    pub fn new(address: impl ToAddresses, init: &ListenerInit) -> Result<Self> {
        let channel = EventChannel::new()?;
        let (id, address) = listener::bind(&channel, lookup(address)?, init, |_| Ok(()))?;
        Ok(Self { id, channel, address, init: *init })
    }

    /// Returns the bound address and port.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Returns the context of the device at the address. All connections share this context.
    ///
    /// # Errors
    /// The errors of [`CmId::context`]; `EINVAL` for an address with several devices, such as
    /// `0.0.0.0`. Use [`contexts`](Self::contexts) for such addresses.
    pub fn context(&self) -> Result<Context> {
        self.id.context()
    }

    /// Returns the contexts of all devices at the address: one device, or all current devices for
    /// an unspecified address. Connections use one of these contexts, or the context of a device
    /// that appeared later.
    ///
    /// # Errors
    /// Same as [`CmId::contexts`].
    pub fn contexts(&self) -> Result<Vec<Context>> {
        self.id.contexts()
    }

    /// Listens and passes each request to `setup`, as [`Listener::bind_with`] does.
    ///
    /// # Errors
    /// The errors of [`CmId::listen`], notably `EADDRINUSE`; any errno from `eventfd(2)`,
    /// `timerfd_create(2)` and `epoll_create1(2)`.
    pub fn listen<T>(
        self,
        setup: impl Fn(&ConnectRequest) -> Result<Option<T>> + Send + Sync + 'static,
    ) -> Result<Listener<T>> {
        let Self { id, channel, address, init } = self;
        id.listen(init.backlog)?;
        Listener::with_id(channel, (id, address), &init, setup)
    }
}
