//! [`Kernel`] and [`KernelId`]: the kernel's connection manager.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use uverbs_abi::rdma_user_cm::{RdmaUcmEventResp, RdmaUcmEventRespParam};
use verbs::{AsyncEventType, Cause, Ece, Errno, Error, QpAttr, QpAttrMask, QpState, QpType, Result};

use super::{Backend, Param, RawEvent, Source};
use crate::channel::Ucma;
use crate::cmd;
use crate::cmd::option::IdOption;
use crate::cmd::query::{Addresses, DeviceKey, Gids};
use crate::device;
use crate::types::{
    Address, ConnParam, EventType, PathRecord, PeerParam, PeerUd, PortSpace, Service, ServiceRecord,
};

/// A source of events: an open file of the kernel's connection manager.
#[derive(Debug)]
pub(crate) struct Kernel(pub(crate) Arc<Ucma>);

/// A kernel id. Dropping it destroys the id.
#[derive(Debug)]
pub(crate) struct KernelId {
    number: u32,
    /// The file that the id belongs to. Commands hold the lock for reading, because moving the id
    /// to another file invalidates its handle on the old file.
    file: RwLock<Arc<Ucma>>,
    /// Whether the id is a listener.
    listens: AtomicBool,
    /// The earlier files of a listener, which still hold its unread requests.
    former: Mutex<Vec<Arc<Ucma>>>,
}

impl KernelId {
    /// Takes ownership of an id on the file of `ucma`.
    pub(crate) fn new(ucma: &Arc<Ucma>, number: u32) -> Self {
        let file = RwLock::new(Arc::clone(ucma));
        Self { number, file, listens: AtomicBool::new(false), former: Mutex::default() }
    }

    fn with<T>(&self, call: impl FnOnce(&Ucma, u32) -> T) -> T {
        call(&self.file.read().unwrap_or_else(PoisonError::into_inner), self.number)
    }
}

impl Backend for KernelId {
    fn bind(&self, address: &Address) -> Result<()> {
        self.with(|ucma, id| {
            if cmd::probe::takes_ib(ucma) {
                cmd::addr::bind(ucma, id, address)
            } else {
                cmd::addr::bind_ip(ucma, id, address)
            }
        })
    }

    fn resolve_addr(&self, source: Option<&Address>, destination: &Address, timeout_ms: u32) -> Result<()> {
        self.with(|ucma, id| {
            if cmd::probe::takes_ib(ucma) {
                cmd::addr::resolve_addr(ucma, id, source, destination, timeout_ms)
            } else {
                cmd::addr::resolve_ip(ucma, id, source, destination, timeout_ms)
            }
        })
    }

    fn resolve_route(&self, timeout_ms: u32) -> Result<()> {
        self.with(|ucma, id| cmd::addr::resolve_route(ucma, id, timeout_ms))
    }

    fn resolve_service(&self, service: Service<'_>) -> Result<()> {
        self.with(|ucma, id| cmd::addr::resolve_ib_service(ucma, id, service))
    }

    fn listen(&self, backlog: u32) -> Result<()> {
        self.with(|ucma, id| cmd::conn::listen(ucma, id, backlog))?;
        self.listens.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn connect(&self, param: &ConnParam<'_>, ece: Ece) -> Result<()> {
        self.with(|ucma, id| cmd::conn::connect(ucma, id, param, ece))
    }

    fn accept(&self, uid: u64, param: Option<&ConnParam<'_>>, ece: Ece) -> Result<()> {
        self.with(|ucma, id| cmd::conn::accept(ucma, id, uid, param, ece))
    }

    fn reject(&self, data: &[u8], reason: u8) -> Result<()> {
        self.with(|ucma, id| cmd::conn::reject(ucma, id, data, reason))
    }

    fn disconnect(&self) -> Result<()> {
        self.with(cmd::conn::disconnect)
    }

    fn notify(&self, event: AsyncEventType) -> Result<()> {
        self.with(|ucma, id| cmd::conn::notify(ucma, id, event))
    }

    fn init_qp_attr(&self, state: QpState) -> Result<(QpAttr, QpAttrMask)> {
        self.with(|ucma, id| cmd::conn::init_qp_attr(ucma, id, state))
    }

    fn addresses(&self) -> Result<Addresses> {
        self.with(|ucma, id| {
            if cmd::probe::takes_ib(ucma) {
                cmd::query::query_addr(ucma, id)
            } else {
                cmd::query::query_route(ucma, id).map(|(addresses, ..)| addresses)
            }
        })
    }

    fn gids(&self) -> Result<Gids> {
        self.with(|ucma, id| {
            if cmd::probe::takes_ib(ucma) {
                cmd::query::query_gid(ucma, id)
            } else {
                cmd::query::query_route(ucma, id).map(|(_, gids, _)| gids)
            }
        })
    }

    fn devices(&self) -> Result<Vec<DeviceKey>> {
        let addresses = self.addresses()?;
        match (addresses.device, addresses.local.and_then(|local| local.ip())) {
            (Some(device), _) => Ok(vec![device]),
            (None, Some(local)) if local.ip().is_unspecified() => device::keys_of_kernel(),
            _ => Ok(Vec::new()),
        }
    }

    fn paths(&self) -> Result<Vec<PathRecord>> {
        self.with(|ucma, id| {
            if cmd::probe::takes_ib(ucma) {
                cmd::query::query_path(ucma, id)
            } else {
                cmd::query::query_route(ucma, id).map(|(.., paths)| paths)
            }
        })
    }

    fn services(&self) -> Result<Vec<ServiceRecord>> {
        self.with(cmd::query::query_ib_service)
    }

    fn set_option(&self, option: IdOption<'_>) -> Result<()> {
        self.with(|ucma, id| cmd::option::set_option(ucma, id, option))
    }

    fn join(&self, uid: u64, address: &Address, send_only: bool) -> Result<u32> {
        self.with(|ucma, id| {
            if cmd::probe::takes_ib(ucma) {
                return cmd::mcast::join_mcast(ucma, id, uid, address, send_only);
            }
            if send_only {
                let cause = Cause::KernelLacks { what: "members of multicast groups that only send" };
                return Err(Error::new("join_multicast", "", Errno::OPNOTSUPP).because(cause));
            }
            cmd::mcast::join_ip_mcast(ucma, id, uid, address)
        })
    }

    fn leave(&self, membership: u32) -> Result<()> {
        // The number of events already read does not matter, because their cookie is stale.
        self.with(|ucma, _| cmd::mcast::leave_mcast(ucma, membership).map(drop))
    }

    fn write_event(&self, event: EventType, status: i32, arg: u64) -> Result<()> {
        self.with(|ucma, id| cmd::event::write_cm_event(ucma, id, event, status, arg))
    }

    fn migrate(&self, to: &dyn Source) -> Result<()> {
        let Some(to) = to.kernel() else {
            let cause = Cause::Other { reason: super::OTHER_CHANNEL.into() };
            return Err(Error::new("migrate_id", "", Errno::INVAL).because(cause));
        };
        let mut file = self.file.write().unwrap_or_else(PoisonError::into_inner);
        cmd::id::migrate_id(to, self.number, &file)?;
        let left = core::mem::replace(&mut *file, Arc::clone(to));
        if self.listens.load(Ordering::Relaxed) && !Arc::ptr_eq(&left, to) {
            let mut former = self.former.lock().unwrap_or_else(PoisonError::into_inner);
            former.retain(|file| !Arc::ptr_eq(file, to));
            if !former.iter().any(|file| Arc::ptr_eq(file, &left)) {
                former.push(left);
            }
            former.iter().for_each(|file| to.has_come_from(file));
        }
        Ok(())
    }

    fn kernel_number(&self) -> Option<u32> {
        Some(self.number)
    }

    fn computes_init(&self) -> bool {
        self.with(|ucma, _| ucma.computes_init())
    }
}

impl Drop for KernelId {
    fn drop(&mut self) {
        // librdmacm waits here until the program has acknowledged all events it has read, because
        // they point to the id. Events here carry a cookie, which is now stale.
        let _ = self.with(cmd::id::destroy_id);
    }
}

impl Source for Kernel {
    fn create_id(&self, uid: u64, space: PortSpace, qp_type: QpType) -> Result<Box<dyn Backend>> {
        let number = cmd::id::create_id(&self.0, uid, space, qp_type)?;
        Ok(Box::new(KernelId::new(&self.0, number)))
    }

    fn next(&self) -> Result<Option<RawEvent>> {
        let Some(resp) = cmd::event::get_event(&self.0)? else { return Ok(None) };
        let RdmaUcmEventResp { uid, id, event, status, param, ece, .. } = resp;
        let event = EventType(event);
        let request: Option<Box<dyn Backend>> = match event {
            EventType::CONNECT_REQUEST => {
                // A request that arrived before its listener moved here is still on the old file.
                // Other requests are on none of these files, because handles are unique.
                let former = self.0.former_files();
                let _ = former.iter().any(|file| cmd::id::migrate_id(&self.0, id, file).is_ok());
                Some(Box::new(KernelId::new(&self.0, id)))
            }
            _ => None,
        };
        Ok(Some(RawEvent {
            uid,
            kernel_number: (uid == 0).then_some(id),
            event,
            status: status as i32,
            param: Box::new(param),
            ece: Ece { vendor_id: ece.vendor_id, options: ece.attr_mod },
            request,
        }))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }

    fn kernel(&self) -> Option<&Arc<Ucma>> {
        Some(&self.0)
    }
}

impl Param for RdmaUcmEventRespParam {
    fn conn(&self) -> PeerParam {
        PeerParam::from(&self.as_conn())
    }

    fn ud(&self) -> PeerUd {
        PeerUd::from(&self.as_ud())
    }

    fn arg(&self) -> u64 {
        let [low, high] = self.as_arg32().map(u32::to_ne_bytes);
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&low);
        bytes[4..].copy_from_slice(&high);
        u64::from_ne_bytes(bytes)
    }
}
