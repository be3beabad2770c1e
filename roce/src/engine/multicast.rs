//! [`Groups`]: multicast groups and their members.
//!
//! # References
//! IBTA 10.5 (multicast)

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::types::{Config, Gid, Qpn, Refused};

/// The destination queue pair number of multicast packets.
pub(crate) const MULTICAST_QPN: u32 = 0xff_ffff;

/// The queue pairs that have joined each multicast group.
#[derive(Debug, Default)]
pub(crate) struct Groups(BTreeMap<Gid, Vec<Qpn>>);

impl Groups {
    /// Adds a queue pair to a group. Returns whether it was newly added.
    pub(crate) fn join(&mut self, group: Gid, qpn: Qpn, config: &Config) -> Result<bool, Refused> {
        if !is_multicast(&group) {
            return Err(Refused::Invalid("the address is not that of a multicast group"));
        }
        if !self.0.contains_key(&group) && self.0.len() >= config.max_groups as usize {
            return Err(Refused::NoRoom);
        }
        let members = self.0.entry(group).or_default();
        if members.contains(&qpn) {
            return Ok(false);
        }
        if members.len() >= config.max_group_members as usize {
            return Err(Refused::NoRoom);
        }
        members.push(qpn);
        Ok(true)
    }

    pub(crate) fn leave(&mut self, group: Gid, qpn: Qpn) -> Result<(), Refused> {
        let members = self.0.get_mut(&group).ok_or(Refused::NoSuchObject)?;
        let position = members.iter().position(|member| *member == qpn).ok_or(Refused::NoSuchObject)?;
        members.swap_remove(position);
        if members.is_empty() {
            self.0.remove(&group);
        }
        Ok(())
    }

    pub(crate) fn leave_all(&mut self, qpn: Qpn) {
        self.0.retain(|_, members| {
            members.retain(|member| *member != qpn);
            !members.is_empty()
        });
    }

    /// Returns the number of members of a group.
    pub(crate) fn members(&self, group: &Gid) -> usize {
        self.0.get(group).map_or(0, Vec::len)
    }

    /// Returns the `n`th member of a group, counted from 0.
    pub(crate) fn member(&self, group: &Gid, n: usize) -> Option<Qpn> {
        self.0.get(group)?.get(n).copied()
    }
}

/// Returns whether an address names a multicast group: `ff00::/8` or an IPv4 multicast address
/// mapped into IPv6.
fn is_multicast(gid: &Gid) -> bool {
    gid[0] == 0xff || (is_ipv4(gid) && gid[12] & 0xf0 == 0xe0)
}

/// Returns whether an address is an IPv4 address mapped into IPv6.
pub(crate) fn is_ipv4(gid: &Gid) -> bool {
    gid[..10] == [0; 10] && gid[10..12] == [0xff; 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_and_their_members_are_bounded() {
        let mut groups = Groups::default();
        let config = Config { max_groups: 2, max_group_members: 2, ..Config::default() };
        let group = |n: u8| [0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, n];
        for (n, qpn, joined) in [
            (1, 20, Ok(true)),
            (1, 21, Ok(true)),
            (1, 21, Ok(false)),
            (1, 22, Err(Refused::NoRoom)),
            (2, 20, Ok(true)),
            (3, 20, Err(Refused::NoRoom)),
        ] {
            assert_eq!(groups.join(group(n), Qpn(qpn), &config), joined, "group {n}, queue pair {qpn}");
        }
        groups.leave(group(2), Qpn(20)).unwrap();
        groups.join(group(3), Qpn(20), &config).unwrap();
        groups.leave_all(Qpn(20));
        assert_eq!((groups.members(&group(1)), groups.members(&group(3))), (1, 0));
        assert_eq!((groups.member(&group(1), 0), groups.member(&group(3), 0)), (Some(Qpn(21)), None));
    }
}
