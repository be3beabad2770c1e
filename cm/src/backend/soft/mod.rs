//! [`Soft`] and [`SoftId`]: connections between soft devices, without a kernel connection manager.
//!
//! | file | content |
//! |---|---|
//! | [`manager`] | **start here**: the lock, the calls, the thread |
//! | [`wait`] | the work of the thread: its files and its deadlines |
//! | [`state`] | everything protected by the lock |
//! | [`key`] | identifiers of ids and of the files that the thread waits for |
//! | [`record`] | the record of an id, and its states |
//! | [`address`], [`listen`] | binding, resolving, listening |
//! | [`backlog`] | a listener's unread requests |
//! | [`request`] | a request of this side, before the path to the peer is known |
//! | [`connect`] | connecting, accepting, rejecting, disconnecting |
//! | [`control`] | the end of an id; its cookie, options and channel |
//! | [`presence`] | devices that appear and disappear; the addresses of this machine |
//! | [`peers`] | peers on this machine whose process dies silently |
//! | [`event`] | turns protocol events into events of ids |
//! | [`origin`] | checks the addresses in a request |
//! | [`query`] | addresses, paths, attributes of queue pairs |
//! | [`group`] | multicast groups |
//! | [`adapter`] | a device in use: queue pair 1 and the protocol's state machine |
//! | [`ports`] | the ports used by ids |
//! | [`queue`], [`chunks`], [`param`] | unread events, and their parameters |
//!
//! [`ib_cm`] implements the protocol; [`provider_soft::cm`] implements management datagrams and the
//! lookup of devices by address. Events, states and errnos match Linux's `cma.c` on RoCE, so
//! programs see no difference:
//!
//! - The program or the API changes the queue pair's state: a peer's reply is `CONNECT_RESPONSE`.
//! - A backlog counts unread requests. A request beyond the backlog is dropped, so that its peer
//!   sends it again; a datagram request is rejected. Unlike in Linux, each source address has a
//!   share of the backlog ([`backlog`]).
//! - Private data have the fixed length of the message.
//!
//! # Differences from Linux
//! - Ports below 1024 need no privilege ([`ports`]).
//! - InfiniBand addresses (`AF_IB`) fail with `EAFNOSUPPORT`, and setting a path with `EOPNOTSUPP`.
//! - A request to an address of this machine without a listener is rejected without a message if no
//!   device would reply. Listeners have names ([`provider_soft::cm::ListenerCache::find`]). A
//!   request therefore also finds a listener that appeared on another device after the address was
//!   resolved. A silent peer on another machine times out, as on Linux.
//! - The kernel notifies the peers of a killed process. Here peers on the same machine watch the
//!   process ([`peers`]).
//! - A device is removed when its address leaves its interface ([`presence`]). Until then, ids keep
//!   their devices alive.
//!
//! # References
//! linux `drivers/infiniband/core/cma.c`, `ucma.c`; IBTA volume 1, annex A11 (RDMA IP CM)

mod adapter;
mod address;
mod backlog;
mod chunks;
mod connect;
mod control;
mod event;
mod group;
mod key;
mod listen;
mod manager;
mod origin;
mod param;
mod peers;
mod ports;
mod presence;
mod query;
mod queue;
mod record;
mod request;
mod state;
#[cfg(test)]
mod tests;
mod wait;

use core::any::Any;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use verbs::{AsyncEventType, Cause, Ece, Errno, Error, QpAttr, QpAttrMask, QpState, QpType, Result};

use self::key::Key;
use self::manager::{Manager, is_forked, manager};
use self::queue::Queue;
use super::{Backend, RawEvent, Source};
use crate::cmd::option::IdOption;
use crate::cmd::query::{Addresses, DeviceKey, Gids};
use crate::types::{Address, ConnParam, EventType, PathRecord, PortSpace, Service, ServiceRecord};

/// The soft ids' part of an event channel.
#[derive(Clone, Debug)]
pub(crate) struct Soft {
    queue: Arc<Queue>,
    /// The reason why the channel cannot have kernel ids, if any.
    kernel_error: Option<Arc<Error>>,
}

/// An id on a soft device. Dropping it destroys the id.
#[derive(Debug)]
pub(crate) struct SoftId {
    manager: &'static Manager,
    key: Key,
    kernel_error: Option<Arc<Error>>,
}

impl Soft {
    /// Creates a source without events.
    ///
    /// # Errors
    /// Any errno from `eventfd(2)`.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Ok(Arc::new(Self { queue: Queue::new()?, kernel_error: None }))
    }

    /// Creates the source of a channel without the kernel's connection manager. `error` is the
    /// reason why the kernel's is missing.
    ///
    /// # Errors
    /// Same as [`new`](Self::new).
    pub(crate) fn without_kernel(error: &Arc<Error>) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { queue: Queue::new()?, kernel_error: Some(Arc::clone(error)) }))
    }

    /// Returns the soft part of a channel's source; `None` if the channel cannot have soft ids.
    pub(super) fn from_source(source: &dyn Source) -> Option<&Self> {
        source.soft()?.downcast_ref()
    }

    /// Returns whether a listener in another process replied to an earlier query for a destination
    /// and still exists.
    pub(super) fn knows_listener(&self, space: PortSpace, to: SocketAddr) -> bool {
        const VERB: &str = "resolve_addr";
        let known = |manager: &Manager| manager.call(VERB, |state| Ok(state.listeners.is_known(space.0, to)));
        manager(VERB).and_then(known).unwrap_or(false)
    }
}

impl Source for Soft {
    fn create_id(&self, uid: u64, space: PortSpace, qp_type: QpType) -> Result<Box<dyn Backend>> {
        const VERB: &str = "create_id";
        if space.name().is_none() {
            let reason = format!("soft devices have no port space {space}");
            return Err(Error::new(VERB, "", Errno::INVAL).because(Cause::Other { reason: reason.into() }));
        }
        let manager = manager(VERB)?;
        let key = manager.call(VERB, |state| state.create(&self.queue, uid, space, qp_type))?;
        Ok(Box::new(SoftId { manager, key, kernel_error: self.kernel_error.clone() }))
    }

    fn next(&self) -> Result<Option<RawEvent>> {
        // At the fork, another thread of the parent may have held the queue's lock.
        if is_forked() {
            return Err(Error::new("get_cm_event", "", Errno::NODEV).because(Cause::Forked));
        }
        Ok(self.queue.next())
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.queue.fd()
    }

    fn soft(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl SoftId {
    /// Returns the error for an address that no soft device has or reaches: the error from opening
    /// the kernel's connection manager. Returns `None` if opening it succeeded or its file is
    /// missing.
    fn unreached(&self, verb: &'static str) -> Option<Error> {
        let error = self.kernel_error.as_ref().filter(|error| error.errno != Errno::NOENT)?;
        Some(Error::new(verb, "", error.errno).because(error.cause.clone()))
    }

    fn not_supported<T>(verb: &'static str, reason: &'static str) -> Result<T> {
        Err(Error::new(verb, "", Errno::OPNOTSUPP).because(Cause::Other { reason: reason.into() }))
    }
}

impl Backend for SoftId {
    fn bind(&self, address: &Address) -> Result<()> {
        let bound = self.manager.call("bind_addr", |state| state.bind(self.key, address));
        bound.map_err(|error| {
            let reason = match (error.errno, address.ip()) {
                (Errno::NODEV, Some(ip)) => {
                    let ip = ip.ip();
                    let soft = format!("no soft device of this process has {ip}: VERBS_SOFT={ip} makes one");
                    match &self.kernel_error {
                        Some(kernel) => format!("{soft}; none of the kernel is asked: {kernel}"),
                        None => soft,
                    }
                }
                (Errno::BUSY, _) => "another part of this process has queue pair 1 of the device".into(),
                _ => return error,
            };
            if error.cause == Cause::Unknown {
                error.because(Cause::Other { reason: reason.into() })
            } else {
                error
            }
        })
    }

    fn resolve_addr(&self, source: Option<&Address>, destination: &Address, timeout_ms: u32) -> Result<()> {
        const VERB: &str = "resolve_addr";
        let unreached = self.unreached(VERB);
        let called = self.manager.call(VERB, |state| {
            state.resolve_addr(self.key, source, destination, timeout_ms, unreached.is_some())
        });
        match (called, unreached) {
            (Err(error), Some(kernel)) if error.errno == Errno::NODEV && error.cause == Cause::Unknown => {
                Err(kernel)
            }
            (called, _) => called.map_err(of_names),
        }
    }

    fn resolve_route(&self, _: u32) -> Result<()> {
        self.manager.call("resolve_route", |state| state.resolve_route(self.key))
    }

    fn resolve_service(&self, _: Service<'_>) -> Result<()> {
        Self::not_supported("resolve_addrinfo", NO_FABRIC)
    }

    fn listen(&self, backlog: u32) -> Result<()> {
        self.manager.call("listen", |state| state.listen(self.key, backlog))
    }

    fn stop_listening(&self) {
        // This fails only in a forked child, where the listener belongs to the parent.
        let _ = self.manager.call("listen", |state| state.stop_listening(self.key));
    }

    fn connect(&self, param: &ConnParam<'_>, ece: Ece) -> Result<()> {
        self.manager.call("connect", |state| state.connect(self.key, param, ece)).map_err(of_names)
    }

    fn accept(&self, uid: u64, param: Option<&ConnParam<'_>>, ece: Ece) -> Result<()> {
        match param {
            Some(param) => self.manager.call("accept", |state| {
                state.accept(self.key, param, ece)?;
                state.report_from_here(self.key, uid)
            }),
            None => self.manager.call("establish", |state| state.establish(self.key)),
        }
    }

    fn reject(&self, data: &[u8], reason: u8) -> Result<()> {
        self.manager.call("reject", |state| state.reject(self.key, data, reason))
    }

    fn forget(&self) {
        // This fails only in a forked child, where the request belongs to the parent.
        let _ = self.manager.call("reject", |state| {
            state.forget(self.key);
            Ok(())
        });
    }

    fn disconnect(&self) -> Result<()> {
        self.manager.call("disconnect", |state| state.disconnect(self.key))
    }

    fn notify(&self, event: AsyncEventType) -> Result<()> {
        self.manager.call("notify", |state| state.notify(self.key, event))
    }

    fn init_qp_attr(&self, qp_state: QpState) -> Result<(QpAttr, QpAttrMask)> {
        self.manager.call("init_qp_attr", |state| state.init_qp_attr(self.key, qp_state))
    }

    fn addresses(&self) -> Result<Addresses> {
        self.manager.call("query_addr", |state| state.addresses(self.key))
    }

    fn gids(&self) -> Result<Gids> {
        self.manager.call("query_gid", |state| state.gids(self.key))
    }

    fn devices(&self) -> Result<Vec<DeviceKey>> {
        self.manager.call("query_addr", |state| state.devices(self.key))
    }

    fn paths(&self) -> Result<Vec<PathRecord>> {
        self.manager.call("query_path", |state| state.paths(self.key))
    }

    fn services(&self) -> Result<Vec<ServiceRecord>> {
        Self::not_supported("query_addrinfo", NO_FABRIC)
    }

    fn set_option(&self, option: IdOption<'_>) -> Result<()> {
        const VERB: &str = "set_option";
        if matches!(option, IdOption::IbPath(_)) {
            return Self::not_supported(VERB, "a soft device finds the route itself: resolve the route");
        }
        self.manager.call(VERB, |state| state.set_option(self.key, option))
    }

    fn join(&self, uid: u64, address: &Address, _send_only: bool) -> Result<u32> {
        const VERB: &str = "join_multicast";
        self.manager.call(VERB, |state| state.join(self.key, uid, address)).map_err(|error| {
            let Some(group) = address.ip().filter(|_| error.errno == Errno::NETUNREACH) else { return error };
            match self.manager.call(VERB, |state| Ok(state.group_obstacle(self.key, group.ip()))) {
                Ok(Some(reason)) => error.because(Cause::Other { reason: reason.into() }),
                _ => error,
            }
        })
    }

    fn leave(&self, membership: u32) -> Result<()> {
        self.manager.call("leave_multicast", |state| state.leave(self.key, membership))
    }

    fn write_event(&self, event: EventType, status: i32, arg: u64) -> Result<()> {
        self.manager.call("write_cm_event", |state| state.write_event(self.key, event, status, arg))
    }

    fn migrate(&self, to: &dyn Source) -> Result<()> {
        const VERB: &str = "migrate_id";
        let Some(to) = Soft::from_source(to) else {
            let cause = Cause::Other { reason: super::OTHER_CHANNEL.into() };
            return Err(Error::new(VERB, "", Errno::INVAL).because(cause));
        };
        self.manager.call(VERB, |state| state.migrate(self.key, &to.queue))
    }

    fn kernel_number(&self) -> Option<u32> {
        None
    }

    fn computes_init(&self) -> bool {
        true
    }

    fn set_cookie(&self, uid: u64) {
        // This fails only in a forked child, whose ids report no events.
        let _ = self.manager.call("create_id", |state| state.set_cookie(self.key, uid));
    }
}

impl Drop for SoftId {
    fn drop(&mut self) {
        // This fails only in a forked child, where the connection belongs to the parent.
        let _ = self.manager.call("destroy_id", |state| {
            state.destroy(self.key);
            Ok(())
        });
    }
}

/// Adds the reason to an error from resolving or connecting: a listener on this machine could not
/// be queried for its devices, or the address has no route.
fn of_names(error: Error) -> Error {
    let reason = match error.errno {
        _ if error.cause != Cause::Unknown => return error,
        Errno::AGAIN => "too many clients wait for the reply of the program that listens: try again later",
        Errno::PERM | Errno::ACCESS if error.verb == "resolve_addr" => {
            "the system refuses the way to the address: it is a broadcast address or one that a route or a filter \
             prohibits; or the sandbox of this process (Landlock, AppArmor, SELinux) keeps it from abstract Unix \
             sockets, by which it finds listeners of this machine"
        }
        Errno::PERM | Errno::ACCESS => {
            "this process may not connect to abstract Unix sockets, by which it finds listeners of this machine: \
             its sandbox (Landlock, AppArmor, SELinux) forbids it"
        }
        _ => return error,
    };
    error.because(Cause::Other { reason: reason.into() })
}

/// The reason why soft devices cannot look up services.
const NO_FABRIC: &str = "a soft device has no subnet administrator, which knows services";
