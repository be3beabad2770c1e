//! The calls of a [`ChoiceId`]: some select the backend, the rest go to the selected backend.

use std::net::Ipv4Addr;
use std::sync::Arc;

use verbs::{AsyncEventType, Cause, Ece, Errno, Error, QpAttr, QpAttrMask, QpState, Result};

use super::{Backend, ChoiceId, Chosen, Soft, Source, bound_to, is_reached_by_soft};
use crate::cmd::option::IdOption;
use crate::cmd::query::{Addresses, DeviceKey, Gids};
use crate::types::{Address, ConnParam, EventType, PathRecord, Service, ServiceRecord};

impl Backend for ChoiceId {
    fn bind(&self, address: &Address) -> Result<()> {
        let mut inner = self.write();
        if inner.chosen != Chosen::Not {
            return inner.backend().bind(address);
        }
        match (bound_to(address), address.ip()) {
            (Chosen::Both, Some(ip)) => self.bind_both(&mut inner, ip),
            (Chosen::Soft, _) => {
                inner.soft.bind(address)?;
                inner.chosen = Chosen::Soft;
                Ok(())
            }
            _ => {
                let kernel = self.make(&inner)?;
                kernel.bind(address)?;
                inner.kernel = Some(kernel);
                inner.chosen = Chosen::Kernel;
                Ok(())
            }
        }
    }

    fn resolve_addr(&self, source: Option<&Address>, destination: &Address, timeout_ms: u32) -> Result<()> {
        let mut inner = self.write();
        if !inner.may_choose() {
            return inner.backend().resolve_addr(source, destination, timeout_ms);
        }
        let bound = match inner.chosen {
            Chosen::Both => inner.soft.addresses()?.local,
            _ => inner.bound,
        };
        // An address bound on both backends is not a device's address.
        let source = source.filter(|_| bound.is_none());
        let is_soft = is_reached_by_soft(&inner.channel, self.space, source, destination);
        let way = if is_soft { Chosen::Soft } else { Chosen::Kernel };
        let resolve = |id: &dyn Backend| id.resolve_addr(source, destination, timeout_ms);
        // The selection changes only after the call has succeeded.
        match (inner.chosen, way) {
            (was, way) if was == way => resolve(inner.backend())?,
            (Chosen::Kernel, Chosen::Soft) => {
                let soft = self.make_soft(&inner)?;
                bound.map_or(Ok(()), |bound| soft.bind(&bound))?;
                resolve(&*soft)?;
                inner.soft = soft;
                inner.kernel = None;
            }
            (_, Chosen::Soft) => {
                resolve(&*inner.soft)?;
                inner.kernel = None;
            }
            (was, _) => {
                let kernel = match inner.kernel.take() {
                    Some(kernel) => kernel,
                    None => {
                        let kernel = self.make(&inner)?;
                        bound.map_or(Ok(()), |bound| kernel.bind(&bound))?;
                        kernel
                    }
                };
                let resolved = resolve(&*kernel);
                if resolved.is_ok() || was == Chosen::Both {
                    inner.kernel = Some(kernel);
                }
                resolved?;
                if was != Chosen::Not {
                    // A new soft id, without a port, replaces the old one.
                    inner.soft = self.make_soft(&inner)?;
                }
            }
        }
        (inner.chosen, inner.bound, inner.is_tentative) = (way, bound, true);
        Ok(())
    }

    fn resolve_route(&self, timeout_ms: u32) -> Result<()> {
        self.with(|id| id.resolve_route(timeout_ms))
    }

    fn resolve_service(&self, service: Service<'_>) -> Result<()> {
        let mut inner = self.write();
        // Services exist only on an InfiniBand fabric.
        if inner.chosen == Chosen::Not {
            inner.kernel = Some(self.make(&inner)?);
            inner.chosen = Chosen::Kernel;
        }
        inner.backend().resolve_service(service)
    }

    fn listen(&self, backlog: u32) -> Result<()> {
        let mut inner = self.write();
        if inner.chosen == Chosen::Not {
            self.bind_both(&mut inner, (Ipv4Addr::UNSPECIFIED, 0).into())?;
        }
        // The soft id listens first: if another process holds its name, the kernel id is still
        // unchanged. A kernel id cannot stop listening.
        inner.backend().listen(backlog)?;
        match (inner.chosen, &inner.kernel) {
            (Chosen::Both, Some(kernel)) => {
                kernel.listen(backlog).inspect_err(|_| inner.soft.stop_listening())
            }
            _ => Ok(()),
        }
    }

    fn connect(&self, param: &ConnParam<'_>, ece: Ece) -> Result<()> {
        self.with(|id| id.connect(param, ece))
    }

    fn accept(&self, uid: u64, param: Option<&ConnParam<'_>>, ece: Ece) -> Result<()> {
        self.with(|id| id.accept(uid, param, ece))
    }

    fn reject(&self, data: &[u8], reason: u8) -> Result<()> {
        self.with(|id| id.reject(data, reason))
    }

    fn disconnect(&self) -> Result<()> {
        self.with(|id| id.disconnect())
    }

    fn notify(&self, event: AsyncEventType) -> Result<()> {
        self.with(|id| id.notify(event))
    }

    fn init_qp_attr(&self, state: QpState) -> Result<(QpAttr, QpAttrMask)> {
        self.with(|id| id.init_qp_attr(state))
    }

    fn addresses(&self) -> Result<Addresses> {
        self.with(|id| id.addresses())
    }

    fn gids(&self) -> Result<Gids> {
        self.with(|id| id.gids())
    }

    fn devices(&self) -> Result<Vec<DeviceKey>> {
        let inner = self.read();
        let mut devices = inner.backend().devices()?;
        if let (Chosen::Both, Some(kernel)) = (inner.chosen, &inner.kernel) {
            devices.extend(kernel.devices()?);
        }
        Ok(devices)
    }

    fn paths(&self) -> Result<Vec<PathRecord>> {
        self.with(|id| id.paths())
    }

    fn services(&self) -> Result<Vec<ServiceRecord>> {
        self.with(|id| id.services())
    }

    fn set_option(&self, option: IdOption<'_>) -> Result<()> {
        let mut inner = self.write();
        if let (Chosen::Both, Some(kernel)) = (inner.chosen, &inner.kernel) {
            kernel.set_option(option)?;
        }
        inner.backend().set_option(option)?;
        match option {
            IdOption::Tos(tos) => inner.options.tos = Some(tos),
            IdOption::ReuseAddr(on) => inner.options.reuse = Some(on),
            IdOption::AfOnly(on) => inner.options.af_only = Some(on),
            IdOption::AckTimeout(timeout) => inner.options.ack_timeout = Some(timeout),
            IdOption::IbPath(_) => {}
        }
        Ok(())
    }

    fn join(&self, uid: u64, address: &Address, send_only: bool) -> Result<u32> {
        self.with(|id| id.join(uid, address, send_only))
    }

    fn leave(&self, membership: u32) -> Result<()> {
        self.with(|id| id.leave(membership))
    }

    fn write_event(&self, event: EventType, status: i32, arg: u64) -> Result<()> {
        self.with(|id| id.write_event(event, status, arg))
    }

    fn migrate(&self, to: &dyn Source) -> Result<()> {
        let mut inner = self.write();
        let foreign = || {
            let cause = Cause::Other { reason: super::super::OTHER_CHANNEL.into() };
            Error::new("migrate_id", "", Errno::INVAL).because(cause)
        };
        match inner.chosen {
            Chosen::Soft => inner.soft.migrate(to),
            Chosen::Kernel => {
                inner.kernel.as_ref().map_or(Ok(()), |kernel| kernel.migrate(to))?;
                // The soft id holds the events that the program wrote before the selection.
                let _ = inner.soft.migrate(to);
                Ok(())
            }
            Chosen::Not | Chosen::Both => {
                let (Some(ucma), Some(soft)) = (to.kernel(), Soft::from_source(to)) else {
                    return Err(foreign());
                };
                inner.kernel.as_ref().map_or(Ok(()), |kernel| kernel.migrate(to))?;
                inner.ucma = Arc::clone(ucma);
                inner.channel = soft.clone();
                inner.soft.migrate(to)
            }
        }
    }

    fn kernel_number(&self) -> Option<u32> {
        // The id's events carry the cookie from the beginning.
        None
    }

    fn computes_init(&self) -> bool {
        self.read().backend().computes_init()
    }
}
