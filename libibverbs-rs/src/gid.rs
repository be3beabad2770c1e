//! The default entry of a GID table, for programs that do not select one:
//! [`Context::find_gid`](crate::Context::find_gid).
//!
//! The order of the table follows the network configuration: the routable RoCE v2 address of a host
//! has index 1 on one day and index 7 on the next, and a fixed index may select RoCE v1, or a
//! link-local address that no peer can reach.

use verbs_core::types::{Gid, GidEntry, GidType};

/// Returns the best entry of a port.
pub(crate) fn best(table: &[GidEntry], port_num: u8) -> Option<GidEntry> {
    table
        .iter()
        .filter(|entry| entry.port_num == u32::from(port_num) && !entry.gid.is_zero())
        .min_by_key(|entry| (protocol(entry.gid_type), reach(&entry.gid), entry.gid_index))
        .copied()
}

/// Returns the rank of a protocol; 0 is the best. A port has either InfiniBand or RoCE, so that
/// only the two versions of RoCE compete.
fn protocol(gid_type: GidType) -> u8 {
    match gid_type {
        GidType::ROCE_V2 => 0,
        GidType::IB => 1,
        GidType::ROCE_V1 => 2,
        _ => 3,
    }
}

/// Returns the rank of an address by its reach; 0 is the farthest.
fn reach(gid: &Gid) -> u8 {
    match gid.to_ipv4() {
        Some(v4) if v4.is_loopback() => 4,
        Some(v4) if v4.is_link_local() => 2,
        Some(_) => 0,
        None if gid.to_ipv6().is_loopback() => 4,
        None if gid.to_ipv6().is_unicast_link_local() => 3,
        None => 1,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    fn entry(gid_index: u32, gid_type: GidType, gid: impl Into<Gid>) -> GidEntry {
        GidEntry { gid: gid.into(), gid_index, port_num: 1, gid_type, ndev_ifindex: 2 }
    }

    const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
    const GLOBAL: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
    const TEN: Ipv4Addr = Ipv4Addr::new(10, 9, 9, 1);

    #[test]
    fn a_routable_ipv4_address_wins_wherever_it_stands() {
        let table = [
            entry(0, GidType::ROCE_V1, LINK_LOCAL),
            entry(1, GidType::ROCE_V2, LINK_LOCAL),
            entry(2, GidType::ROCE_V2, Ipv4Addr::new(169, 254, 0, 1)),
            entry(3, GidType::ROCE_V2, GLOBAL),
            entry(6, GidType::ROCE_V1, TEN),
            entry(7, GidType::ROCE_V2, TEN),
        ];
        assert_eq!(best(&table, 1).map(|entry| entry.gid_index), Some(7));
        assert_eq!(best(&table[..5], 1).map(|entry| entry.gid_index), Some(3));
        assert_eq!(best(&table[..3], 1).map(|entry| entry.gid_index), Some(2));
        assert_eq!(best(&table[..2], 1).map(|entry| entry.gid_index), Some(1));
    }

    #[test]
    fn roce_v1_is_better_than_nothing_and_infiniband_has_its_own() {
        assert_eq!(best(&[entry(0, GidType::ROCE_V1, TEN)], 1).map(|entry| entry.gid_index), Some(0));
        let ib = [entry(0, GidType::IB, LINK_LOCAL), entry(1, GidType::IB, GLOBAL)];
        assert_eq!(best(&ib, 1).map(|entry| entry.gid_index), Some(1));
    }

    #[test]
    fn other_ports_and_empty_entries_do_not_count() {
        let elsewhere = GidEntry { port_num: 2, ..entry(0, GidType::ROCE_V2, TEN) };
        assert_eq!(best(&[elsewhere, entry(1, GidType::ROCE_V2, Gid::ZERO)], 1), None);
    }

    #[test]
    fn the_lower_index_wins_among_equals() {
        let table =
            [entry(5, GidType::ROCE_V2, TEN), entry(3, GidType::ROCE_V2, Ipv4Addr::new(192, 168, 0, 1))];
        assert_eq!(best(&table, 1).map(|entry| entry.gid_index), Some(3));
    }
}
