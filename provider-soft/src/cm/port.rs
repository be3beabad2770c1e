//! [`Port`]: a soft device of this process, as used by a connection manager.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use verbs_core::Errno;
use verbs_core::discovery::{DeviceInfo, OwnDevice, Skipped};
use verbs_core::types::{Gid, Guid, Mtu};

use crate::device::{Device, limits};
use crate::objects::soft::DRIVER_ID;
use crate::registration;

/// The only port of a soft device of this process. A value of this type keeps the device and its
/// address alive.
#[derive(Clone, Debug)]
pub struct Port {
    pub(super) device: Arc<Device>,
}

impl Port {
    /// The number of the port.
    pub const NUMBER: u8 = limits::PORT;
    /// The index of the port's address in the GID table.
    pub const GID_INDEX: u32 = 0;
    /// The only partition key, at index 0: the default partition, full member.
    pub const PKEY: u16 = limits::PKEY;
    /// The time within which the device acknowledges a packet (`local_ca_ack_delay`), as a 5-bit
    /// code: 4.096 µs × 2ᶜᵒᵈᵉ.
    pub const ACK_DELAY: u8 = limits::ACK_DELAY;

    /// Returns the port of a device, or `None` unless it is a soft device of this process.
    pub fn from_device(device: &DeviceInfo) -> Option<Self> {
        let device = device.own().and_then(OwnDevice::downcast_ref::<Arc<Device>>)?;
        (!device.is_forked()).then(|| Self { device: Arc::clone(device) })
    }

    /// Returns the ports of all live devices of this process in order of creation: the devices
    /// requested by `VERBS_SOFT` and the devices created by the program. The first call creates the
    /// requested devices, unless listing devices has already done so.
    pub fn all() -> Vec<Self> {
        registration::requested(|_| ());
        Device::live().into_iter().map(|device| Self { device }).collect()
    }

    /// Returns the first device requested by `VERBS_SOFT` that could not be created, with the
    /// reason.
    pub fn missing() -> Option<Skipped> {
        registration::requested(|made| made.iter().find_map(|made| made.as_ref().err().cloned()))
    }

    /// Returns the port at an address.
    pub fn with_address(address: IpAddr) -> Option<Self> {
        let address = address.to_canonical();
        Self::all().into_iter().find(|port| port.address() == address)
    }

    /// Returns the device, for opening it.
    pub fn device(&self) -> DeviceInfo {
        let own = OwnDevice::new(Arc::clone(&self.device));
        DeviceInfo::brought(&self.device.name, DRIVER_ID, self.device.guid, own)
    }

    /// Returns the device's name.
    pub fn name(&self) -> &str {
        &self.device.name
    }

    /// Returns the device's IP address.
    pub fn address(&self) -> IpAddr {
        self.device.socket.address()
    }

    /// Returns whether the port has the address of a destination. A link-local IPv6 destination
    /// must be on the port's interface, unless it names no interface.
    pub(super) fn is_at(&self, destination: SocketAddr) -> bool {
        self.address() == destination.ip().to_canonical() && self.is_in_scope(destination)
    }

    /// Returns whether packets from the port reach the link of a link-local destination. Always
    /// true for other destinations.
    pub(super) fn is_in_scope(&self, destination: SocketAddr) -> bool {
        let SocketAddr::V6(to) = destination else { return true };
        !to.ip().is_unicast_link_local() || [0, self.scope_id()].contains(&to.scope_id())
    }

    /// Returns the index of the interface if the address is link-local IPv6, and 0 otherwise.
    pub fn scope_id(&self) -> u32 {
        self.device.socket.scope()
    }

    /// Returns this process's slot at an address shared with other processes: the upper 8 bits of
    /// its queue pair numbers. Communication ids must have the same upper 8 bits. Returns 0 if the
    /// address belongs to this process alone.
    pub fn slot(&self) -> u8 {
        self.device.socket.slot()
    }

    /// Returns the address as a GID.
    pub fn gid(&self) -> Gid {
        Gid(self.device.gid)
    }

    /// Returns the node GUID of the device.
    pub fn node_guid(&self) -> Guid {
        self.device.guid
    }

    /// Returns whether the address was chosen automatically, so that programs cannot know it in
    /// advance.
    pub fn is_auto(&self) -> bool {
        self.device.is_auto
    }

    /// Returns whether the device exchanges packets with other hosts. If not, packets from other
    /// hosts are dropped.
    pub fn reaches_network(&self) -> bool {
        self.device.socket.reaches_network()
    }

    /// Returns the largest path MTU supported by the port's interface.
    ///
    /// # Errors
    /// Any errno of `getifaddrs(3)`, notably `EMFILE`.
    pub fn active_mtu(&self) -> Result<Mtu, Errno> {
        Ok(limits::port_attr(self.device.mtu()?, true).active_mtu)
    }

    /// Returns the largest path MTU to a device at an address of this machine: the smaller of the
    /// MTUs of that address's interface and of this port.
    ///
    /// # Errors
    /// The errors of [`active_mtu`](Self::active_mtu).
    pub(super) fn mtu_to_local(&self, address: IpAddr) -> Result<Mtu, Errno> {
        Ok(limits::port_attr(self.device.mtu_to_local(address)?, true).active_mtu)
    }

    /// Returns the reason why packets of a multicast group cannot reach the port, with a remedy.
    /// There are two cases: the group belongs to the other address family, or the loopback
    /// interface has no route for the group.
    pub fn group_obstacle(&self, group: IpAddr) -> Option<String> {
        self.device.socket.group_obstacle(group.to_canonical())
    }

    /// Returns whether this process currently uses the device's general services interface.
    pub fn has_gsi(&self) -> bool {
        self.device.control("has_gsi", |core, _| Ok(core.sink.gsi.is_some())).unwrap_or(false)
    }
}
