//! The choice of a GID table entry for programs that do not select one:
//! [`Context::find_gid`](crate::Context::find_gid).
//!
//! The order of the table follows the network configuration: a host's routable RoCE v2 address may
//! move from index 1 to index 7. A fixed index may then select RoCE v1 or an unreachable link-local
//! address.

use std::ops::ControlFlow;

use verbs_core::types::{Gid, GidEntry, GidType};

/// The best of the GID table entries offered for a port. Entries are offered in index order.
#[derive(Default)]
pub(crate) struct Best(Option<GidEntry>);

impl Best {
    /// Keeps the entry if it is better than the current best. Breaks once no later entry can be
    /// better.
    pub(crate) fn offer(&mut self, entry: GidEntry) -> ControlFlow<()> {
        if !entry.gid.is_zero() && self.0.is_none_or(|best| rank(&entry) < rank(&best)) {
            self.0 = Some(entry);
        }
        if self.0.is_some_and(|best| rank(&best) == (0, 0)) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    pub(crate) const fn get(self) -> Option<GidEntry> {
        self.0
    }
}

/// Returns the rank of an entry; the lowest rank is the best.
fn rank(entry: &GidEntry) -> (u8, u8) {
    (protocol(entry.gid_type), reach(&entry.gid))
}

/// Returns the rank of a protocol; 0 is the best. A port runs either InfiniBand or RoCE, so only
/// the two RoCE versions compete.
fn protocol(gid_type: GidType) -> u8 {
    match gid_type {
        GidType::ROCE_V2 => 0,
        GidType::IB => 1,
        GidType::ROCE_V1 => 2,
        _ => 3,
    }
}

/// Returns the rank of an address by its scope; 0 is the best.
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

    /// Returns the index of the best entry and the number of entries examined.
    fn best(table: &[GidEntry]) -> (Option<u32>, usize) {
        let mut best = Best::default();
        let mut seen = 0;
        let _ = table.iter().try_for_each(|entry| {
            seen += 1;
            best.offer(*entry)
        });
        (best.get().map(|entry| entry.gid_index), seen)
    }

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
        assert_eq!(best(&table), (Some(7), 6));
        assert_eq!(best(&table[..5]), (Some(3), 5));
        assert_eq!(best(&table[..3]), (Some(2), 3));
        assert_eq!(best(&table[..2]), (Some(1), 2));
    }

    #[test]
    fn roce_v1_is_better_than_nothing_and_infiniband_has_its_own() {
        assert_eq!(best(&[entry(0, GidType::ROCE_V1, TEN)]), (Some(0), 1));
        let ib = [entry(0, GidType::IB, LINK_LOCAL), entry(1, GidType::IB, GLOBAL)];
        assert_eq!(best(&ib), (Some(1), 2));
    }

    #[test]
    fn empty_entries_do_not_count() {
        assert_eq!(best(&[entry(1, GidType::ROCE_V2, Gid::ZERO)]), (None, 1));
    }

    #[test]
    fn the_lower_index_wins_among_equals_and_ends_the_search() {
        let table =
            [entry(3, GidType::ROCE_V2, Ipv4Addr::new(192, 168, 0, 1)), entry(5, GidType::ROCE_V2, TEN)];
        assert_eq!(best(&table), (Some(3), 1));
        let link_local = [entry(0, GidType::ROCE_V2, LINK_LOCAL), entry(1, GidType::ROCE_V2, LINK_LOCAL)];
        assert_eq!(best(&link_local), (Some(0), 2));
    }
}
