//! Devices that appear and disappear, and the addresses of this machine.
//!
//! ```text
//!   an address leaves its interface ─► its device is removed: DEVICE_REMOVAL of each id on it
//!   an address comes back, or a device is created ─► listeners on unspecified addresses use it
//! ```
//!
//! The manager's thread notices changes. Calls that select a device notice them too, so that a
//! program's earlier actions take effect. An id whose device was removed is unusable: its calls
//! return `ENXIO`, as on a kernel that has ended the id.
//!
//! # References
//! linux `cma_remove_one`, `cma_add_one`, `ucma_removal_event_handler`

use std::sync::atomic::{AtomicBool, Ordering};

use provider_soft::cm::{AddressWatch, Port};
use verbs::Errno;

use super::adapter::Adapter;
use super::key::Key;
use super::origin::{InterfaceAddress, Origin, interfaces};
use super::queue::Entry;
use super::record::IdState;
use super::state::{Garbage, State};
use crate::types::EventType;

/// Whether the process has created a device that no listener uses yet.
static HAS_NEW_PORT: AtomicBool = AtomicBool::new(false);

/// Records that the process has created a device.
pub(super) fn note_new_port() {
    HAS_NEW_PORT.store(true, Ordering::Release);
}

impl State {
    /// Handles changes of devices and addresses since the last check.
    pub(super) fn follow_devices(&mut self) {
        self.look_for_change();
        let has_changed = core::mem::take(&mut self.has_changed);
        let has_new = HAS_NEW_PORT.swap(false, Ordering::Acquire);
        if !has_changed && !has_new {
            return;
        }
        let is_gone = |adapter: &Adapter| adapter.has_address && !adapter.port.has_address();
        let gone = self.adapters.iter().filter(|(_, adapter)| is_gone(adapter));
        let gone: Vec<u64> = gone.map(|(number, _)| *number).collect();
        for number in gone {
            self.remove_device(number);
        }
        let ports = self.present_ports();
        let mut next = Key::default();
        while let Some(key) = self.next_id(&mut next, |_, id| id.listens_on_all()) {
            // Skips a device whose queue pair 1 is used by another part of the process.
            let _ = self.take_ports(key, &ports);
            self.set_reply(key, &ports);
        }
    }

    /// Discards the cached addresses of this machine if they may have changed.
    ///
    /// The kernel queues the report of a change before the changing call returns. The addresses are
    /// therefore valid while no report is pending.
    pub(super) fn look_for_change(&mut self) {
        if self.watch.as_ref().is_none_or(AddressWatch::has_changed) {
            self.has_changed |= self.watch.is_some();
            self.addresses = None;
        }
    }

    /// Returns whether a request's addresses are genuine.
    ///
    /// Listing this machine's addresses takes a dozen system calls. The list is cached until it
    /// changes, because unknown hosts may flood the device and local programs send a thousand
    /// requests at a time.
    ///
    /// # Errors
    /// Any errno from `getifaddrs(3)`, notably `EMFILE`.
    pub(super) fn is_genuine(&mut self, origin: Origin) -> Result<bool, Errno> {
        Ok(origin.is_plain() || origin.is_genuine_among(self.interfaces()?))
    }

    /// Returns whether a packet is known to come from this machine.
    pub(super) fn is_of_this_machine(&mut self, origin: &Origin) -> bool {
        origin.packet.is_loopback() || self.interfaces().is_ok_and(|interfaces| origin.is_local(interfaces))
    }

    /// Returns the addresses of this machine.
    fn interfaces(&mut self) -> Result<&[InterfaceAddress], Errno> {
        self.look_for_change();
        let addresses = match self.addresses.take() {
            Some(addresses) => addresses,
            None => self.spare.lend(interfaces)?,
        };
        Ok(self.addresses.insert(addresses))
    }

    /// Returns the process's ports, except ports of removed devices.
    pub(super) fn present_ports(&mut self) -> Vec<Port> {
        let ports = Port::all();
        let key = |port: &Port| (port.gid().0, port.scope_id());
        self.removed.retain(|gone| ports.iter().any(|port| key(port) == *gone && !port.has_address()));
        ports.into_iter().filter(|port| !self.removed.contains(&key(port))).collect()
    }

    /// Removes a device and all its ids.
    fn remove_device(&mut self, number: u64) {
        let mut next = Key::default();
        while let Some(key) = self.next_id(&mut next, |_, id| id.adapter == Some(number)) {
            self.remove_id(key);
        }
        for id in self.ids.values_mut() {
            if let Some(listener) = &mut id.listener {
                listener.adapters.retain(|other| *other != number);
            }
        }
        if let Some(adapter) = self.adapters.remove(&number) {
            adapter.unwatch(&self.epoll);
            let Adapter { gsi, port, .. } = adapter;
            self.removed.insert((port.gid().0, port.scope_id()));
            drop(gsi);
            self.forget_name(number);
            self.garbage.push_back(Garbage::Port(port));
        }
    }

    /// Moves an id whose device is gone to the state Removed, and reports the removal. The peer
    /// cannot be notified.
    fn remove_id(&mut self, key: Key) {
        self.unlisten(key);
        self.cancel_lookup(key);
        let Some(id) = self.ids.get_mut(&key) else { return };
        (id.state, id.adapter, id.connection) = (IdState::Removed, None, None);
        let watch = id.watch.take();
        // An unread request can no longer be accepted.
        let is_of = |entry: &Entry| entry.request.as_ref().is_some_and(|request| request.key == key);
        self.garbage.push_back(Garbage::Requests(id.queue.discard(is_of)));
        if let Some(local) = id.local {
            self.ports.release(id.space.0, local.port(), key);
        }
        self.unwatch(watch);
        self.report_outcome(key, EventType::DEVICE_REMOVAL, Ok(()));
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::Arc;

    use nix::sys::epoll::{Epoll, EpollCreateFlags};

    use super::*;

    #[test]
    fn the_addresses_of_this_machine_are_listed_once_until_they_change() {
        let mut state = State::new(Arc::new(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap()));
        if state.watch.is_none() {
            println!("SKIP: the kernel reports no changes");
            return;
        }
        let loopback = |last| IpAddr::from([127, 7, 7, last]);
        let (device, packet) = (loopback(7), loopback(8));
        let origin = Origin { device, packet, source: loopback(1), target: loopback(2) };
        assert_eq!(state.is_genuine(origin), Ok(true));
        state.addresses = Some(Vec::new());
        // Another program may change an address at the same time.
        assert!(state.is_genuine(origin) == Ok(false) || state.has_changed);
        state.follow_devices();
        state.addresses = None;
        assert_eq!(state.is_genuine(origin), Ok(true));
    }
}
