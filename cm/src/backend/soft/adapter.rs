//! [`Adapter`]: a soft device in use: its queue pair 1 and its communication manager.
//!
//! ```text
//!   ids, time ─► Cm ─► poll_transmit ─► Gsi::send          the thread of a call, or the manager's
//!   Gsi::recv ─► Cm ─► poll_event ─► ids                   the manager's thread
//! ```
//!
//! An adapter exists while an id uses the device, and for [`LINGER`] more while connections of
//! dropped ids are released. It keeps the device, and its address, alive.

use std::collections::BTreeMap;

use ib_cm::Random;
use ib_cm::cm::{Address, Cm, CmId, Config, ListenId};
use ib_cm::time::Time;
use ib_cm::wire::{Ece as WireEce, ServiceId};
use verbs::soft::cm::{Gsi, MadAddress, Port};
use verbs::{Ece, Errno, Gid};

use super::record::Key;

/// A soft device in use.
#[derive(Debug)]
pub(super) struct Adapter {
    pub(super) port: Port,
    pub(super) gsi: Gsi,
    pub(super) cm: Cm,
    /// The ids of connections and resolutions.
    pub(super) connections: BTreeMap<CmId, Key>,
    /// The listeners of each service.
    pub(super) services: BTreeMap<ServiceId, (ListenId, Vec<Key>)>,
    /// The number of ids with this device.
    pub(super) users: usize,
    /// The end of an adapter without users whose connections are being released.
    pub(super) ends_at: Option<Time>,
}

/// The time for which the release of connections goes on without an id: a lost request is sent
/// again after 4.6 s.
pub(super) const LINGER: u64 = 10_000_000_000;

impl Adapter {
    /// Takes queue pair 1 of a device.
    ///
    /// # Errors
    /// As [`Port::take_gsi`], notably `EBUSY`.
    pub(super) fn new(port: &Port) -> Result<Self, Errno> {
        let gsi = port.take_gsi().map_err(|error| error.errno)?;
        let config =
            Config { node_guid: port.node_guid().0, ack_delay: Port::ACK_DELAY, ..Config::default() };
        Ok(Self {
            port: port.clone(),
            gsi,
            cm: Cm::new(config, SystemRandom),
            connections: BTreeMap::new(),
            services: BTreeMap::new(),
            users: 0,
            ends_at: None,
        })
    }

    pub(super) fn is_used(&self) -> bool {
        self.users > 0 || !self.services.is_empty()
    }

    /// Passes the MADs that have arrived to the communication manager.
    pub(super) fn receive(&mut self, now: Time) {
        let local = self.port.gid().0;
        while let Some(received) = self.gsi.recv() {
            let from = Address {
                qpn: received.from.qpn,
                traffic_class: received.from.traffic_class,
                ..Address::gsi(local, received.from.gid.0)
            };
            self.cm.input(now, &from, &received.mad);
            self.send();
        }
    }

    /// Sends the messages that wait. One that cannot be sent is lost, as on a network.
    pub(super) fn send(&mut self) {
        while let Some(transmit) = self.cm.poll_transmit() {
            let to = MadAddress {
                qpn: transmit.to.qpn,
                traffic_class: transmit.to.traffic_class,
                ..MadAddress::new(Gid(transmit.to.remote))
            };
            let _ = self.gsi.send(&to, &transmit.mad);
        }
    }

    /// Adds a listener of a service.
    ///
    /// # Errors
    /// `ENOMEM` with as many services as the communication manager takes.
    pub(super) fn listen(&mut self, service: ServiceId, key: Key) -> Result<(), Errno> {
        if let Some((_, keys)) = self.services.get_mut(&service) {
            keys.push(key);
            return Ok(());
        }
        // The backlog is that of the id: requests that no program has read.
        let listener = self.cm.listen(service, u64::MAX, usize::MAX).map_err(|_| Errno::NOMEM)?;
        self.services.insert(service, (listener, vec![key]));
        Ok(())
    }

    /// Removes a listener of a service.
    pub(super) fn unlisten(&mut self, service: ServiceId, key: Key) {
        let Some((listener, keys)) = self.services.get_mut(&service) else { return };
        keys.retain(|other| *other != key);
        if keys.is_empty() {
            let _ = self.cm.unlisten(*listener);
            self.services.remove(&service);
        }
    }
}

/// The kernel's random number generator.
#[derive(Debug)]
pub(super) struct SystemRandom;

impl Random for SystemRandom {
    fn draw(&mut self) -> Option<u32> {
        verbs_core::random::draw().ok()
    }
}

pub(super) const fn ece_to_wire(ece: Ece) -> WireEce {
    WireEce { vendor_id: ece.vendor_id, attr_mod: ece.options }
}

pub(super) const fn ece_from_wire(ece: WireEce) -> Ece {
    Ece { vendor_id: ece.vendor_id, options: ece.attr_mod }
}
