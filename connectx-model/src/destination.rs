//! [`Destinations`]: the destination MAC addresses that senders on a RoCE port use.
//!
//! The kernel resolves the MAC address of a destination GID. The provider or the driver writes it
//! into address vectors and queue pair contexts. This model routes packets by GID, so a wrong MAC
//! address would have no effect. Instead, [`Fabric`](crate::fabric::Fabric) compares the MAC
//! address with that of the GID's owner.
//!
//! # References
//! Linux `ib_resolve_eth_dmac` in `drivers/infiniband/core/verbs.c`; rdma-core
//! `libibverbs/neigh.c`; RFC 1112, 6.4; RFC 2464, 7

use std::collections::BTreeSet;

use roce::engine::Gid;

/// A MAC address.
pub(crate) type Mac = [u8; 6];

/// A destination to which a queue pair sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Destination {
    pub(crate) gid: Gid,
    pub(crate) mac: Mac,
    /// The number of the sending queue pair.
    pub(crate) qpn: u32,
}

/// The destinations that the fabric has not checked yet.
#[derive(Debug, Default)]
pub(crate) struct Destinations {
    unchecked: BTreeSet<Destination>,
}

/// Maximum number of destinations stored between two checks; further destinations remain unchecked.
const MOST: usize = 1 << 10;

impl Destinations {
    /// Adds a destination to the next check.
    pub(crate) fn add(&mut self, destination: Destination) {
        if self.unchecked.len() < MOST {
            self.unchecked.insert(destination);
        }
    }

    /// Removes and returns the unchecked destinations.
    pub(crate) fn take(&mut self) -> BTreeSet<Destination> {
        std::mem::take(&mut self.unchecked)
    }
}

/// Returns the MAC address of a multicast GID; `None` for any other GID.
pub(crate) fn group_mac(gid: &Gid) -> Option<Mac> {
    match *gid {
        [0xff, .., a, b, c, d] => Some([0x33, 0x33, a, b, c, d]),
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xe0..=0xef, b, c, d] => {
            Some([0x01, 0x00, 0x5e, b & 0x7f, c, d])
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_the_mac_address_of_its_ip_version() {
        let mut gid = [0; 16];
        gid[10..].copy_from_slice(&[0xff, 0xff, 239, 0x81, 2, 3]);
        assert_eq!(group_mac(&gid), Some([0x01, 0x00, 0x5e, 0x01, 2, 3]));
        gid[12] = 240;
        assert_eq!(group_mac(&gid), None);
        gid[0] = 0xff;
        assert_eq!(group_mac(&gid), Some([0x33, 0x33, 240, 0x81, 2, 3]));
    }

    #[test]
    fn a_guest_cannot_fill_memory_with_destinations() {
        let mut destinations = Destinations::default();
        for qpn in 0..MOST as u32 + 5 {
            destinations.add(Destination { gid: [0; 16], mac: [0; 6], qpn });
        }
        assert_eq!(destinations.take().len(), MOST);
        assert!(destinations.take().is_empty());
    }
}
