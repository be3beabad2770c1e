//! [`Steering`]: tables of entries that send received frames to TIRs.
//!
//! ```text
//!   root ──► table ──entry that matches──► table ──► ... ──► TIR (or several) ──► RQ, or one of a RQT
//!              └──none──► the table for misses, or the frame is dropped
//! ```
//! The rule for received frames: from the root of the receive tables on, in each table the entry of the lowest index that
//! matches decides. What is matched are the outer headers of layers 2 to 4; anything else (metadata, inner headers) is 0 to a
//! match. Tables that a driver makes for what is sent, and for RDMA, are kept and never asked: what is sent goes to the wire, and
//! RDMA to its queue pair.
//!
//! Invariant: a table leads only to tables of higher levels, so that no walk is endless.
//!
//! # References
//! PRM, "flow tables"

use std::collections::{BTreeMap, BTreeSet};

use crate::layout::Field;
use crate::layout::steering::fte_match_set_lyr_2_4 as headers;

use super::frame::{Parsed, TCP, UDP};

/// How many bytes match criteria and values have.
pub(crate) const MATCH_SIZE: usize = 0x200;
/// No driver needs more, and a hostile one is to stop somewhere.
pub(crate) const MAX_TABLES: usize = 1 << 12;
/// Entries and groups of all tables.
pub(crate) const MAX_ENTRIES: usize = 1 << 16;
/// How many tables and receivers one frame reaches.
const MAX_STEPS: usize = 256;

/// The receive tables; the only kind that is asked.
pub(crate) const RECEIVE: u8 = 0;

/// Flow tables, their groups and entries, and counters.
#[derive(Debug, Default)]
pub(crate) struct Steering {
    pub(crate) tables: BTreeMap<u32, FlowTable>,
    /// The table where each kind begins.
    pub(crate) roots: BTreeMap<u8, u32>,
    /// What counters counted: packets and bytes.
    pub(crate) counters: BTreeMap<u32, (u64, u64)>,
    /// Entries and groups of all tables.
    pub(crate) entries: usize,
}

/// A flow table.
#[derive(Debug)]
pub(crate) struct FlowTable {
    pub(crate) kind: u8,
    pub(crate) level: u8,
    pub(crate) log_size: u8,
    /// Where a frame goes that nothing matches.
    pub(crate) miss: Option<u32>,
    pub(crate) groups: BTreeMap<u32, FlowGroup>,
    pub(crate) entries: BTreeMap<u32, FlowEntry>,
}

/// A part of a table whose entries match the same fields.
#[derive(Debug)]
pub(crate) struct FlowGroup {
    pub(crate) first: u32,
    pub(crate) last: u32,
    /// Which parts of the criteria count, a bit each.
    pub(crate) enabled: u8,
    pub(crate) criteria: Box<[u8; MATCH_SIZE]>,
}

/// What happens to frames that match.
#[derive(Debug)]
pub(crate) struct FlowEntry {
    pub(crate) group: u32,
    pub(crate) value: Box<[u8; MATCH_SIZE]>,
    pub(crate) tag: u32,
    /// Nobody gets them.
    pub(crate) drop: bool,
    pub(crate) destinations: Vec<Destination>,
    pub(crate) counters: Vec<u32>,
}

/// Where an entry leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    Table(u32),
    Tir(u32),
}

/// A TIR that a frame reached, and the tag of the entry that led there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reached {
    pub(crate) tirn: u32,
    pub(crate) tag: u32,
}

impl Steering {
    /// Where a received frame goes.
    pub(crate) fn walk(&mut self, frame: &[u8]) -> Vec<Reached> {
        let Self { tables, roots, counters, .. } = self;
        let mut reached = Vec::new();
        let Some(parsed) = Parsed::new(frame) else { return reached };
        let packet = matched(frame, &parsed);
        let mut next: Vec<u32> = roots.get(&RECEIVE).copied().into_iter().collect();
        let mut steps = 0;
        while let Some(table) = next.pop().and_then(|id| tables.get(&id)) {
            steps += 1;
            if steps > MAX_STEPS {
                break;
            }
            let Some(entry) = table.find(&packet) else {
                next.extend(table.miss);
                continue;
            };
            for counter in &entry.counters {
                if let Some((packets, bytes)) = counters.get_mut(counter) {
                    *packets += 1;
                    *bytes += frame.len() as u64;
                }
            }
            if entry.drop {
                continue;
            }
            for destination in entry.destinations.iter().take(MAX_STEPS) {
                match destination {
                    Destination::Table(id) => next.push(*id),
                    Destination::Tir(tirn) if reached.len() < MAX_STEPS => {
                        reached.push(Reached { tirn: *tirn, tag: entry.tag });
                    }
                    Destination::Tir(_) => (),
                }
            }
        }
        reached
    }

    /// Does an entry or a miss lead to this table?
    pub(crate) fn leads_to_table(&self, id: u32) -> bool {
        self.tables.values().any(|table| table.miss == Some(id) || table.leads_to(Destination::Table(id)))
    }

    /// The TIRs that entries lead to.
    pub(crate) fn tirs(&self) -> BTreeSet<u32> {
        let entries = self.tables.values().flat_map(|table| table.entries.values());
        let tirn = |destination: &Destination| match destination {
            Destination::Tir(tirn) => Some(*tirn),
            Destination::Table(_) => None,
        };
        entries.flat_map(|entry| entry.destinations.iter().filter_map(tirn)).collect()
    }
}

impl FlowTable {
    fn find(&self, packet: &[u8; MATCH_SIZE]) -> Option<&FlowEntry> {
        self.entries.values().find(|entry| {
            self.groups.get(&entry.group).is_some_and(|group| group.matches(packet, &entry.value))
        })
    }

    fn leads_to(&self, to: Destination) -> bool {
        self.entries.values().any(|entry| entry.destinations.contains(&to))
    }
}

impl FlowGroup {
    fn matches(&self, packet: &[u8; MATCH_SIZE], value: &[u8; MATCH_SIZE]) -> bool {
        let parts = self.criteria.chunks(0x40).zip(packet.chunks(0x40)).zip(value.chunks(0x40));
        parts.enumerate().all(|(part, ((criteria, packet), value))| {
            // Parts without a bit of their own in the mask are the reserved end.
            let enabled = self.enabled.checked_shr(part as u32).is_some_and(|bits| bits & 1 != 0);
            let bytes = criteria.iter().zip(packet).zip(value);
            !enabled || bytes.into_iter().all(|((mask, packet), value)| packet & mask == value & mask)
        })
    }
}

/// A frame's headers as match values have them.
fn matched(frame: &[u8], parsed: &Parsed) -> [u8; MATCH_SIZE] {
    let mut all = [0; MATCH_SIZE];
    let to = &mut all[..];
    let mut set = |field: Field, value: u16| field.set(to, value);
    set(headers::ETHERTYPE, parsed.ethertype);
    if let Some(tag) = parsed.vlan {
        set(headers::FIRST_PRIO, tag >> 13);
        set(headers::FIRST_CFI, tag >> 12);
        set(headers::FIRST_VID, tag);
        set(if parsed.service_vlan { headers::SVLAN_TAG } else { headers::CVLAN_TAG }, 1);
    }
    if let Some(ip) = &parsed.ip {
        set(headers::IP_VERSION, ip.version.into());
        set(headers::IP_PROTOCOL, ip.protocol.into());
        set(headers::IP_DSCP, u16::from(ip.tos >> 2));
        set(headers::IP_ECN, ip.tos.into());
        set(headers::FRAG, ip.fragment.into());
        set(headers::TTL_HOPLIMIT, ip.ttl.into());
        let word = |at: usize| {
            let bytes = frame.get(at..).and_then(|rest| rest.first_chunk());
            bytes.map_or(0, |bytes| u16::from_be_bytes(*bytes))
        };
        match ip.protocol {
            TCP if !ip.fragment => {
                set(headers::TCP_SPORT, word(ip.l4));
                set(headers::TCP_DPORT, word(ip.l4 + 2));
                set(headers::TCP_FLAGS, word(ip.l4 + 12));
            }
            UDP if !ip.fragment => {
                set(headers::UDP_SPORT, word(ip.l4));
                set(headers::UDP_DPORT, word(ip.l4 + 2));
            }
            _ => (),
        }
    }
    let mut copy = |part: crate::layout::Part, from: &[u8]| {
        let place = part.of_mut(&mut all);
        let from = from.get(..place.len()).unwrap_or(from);
        // An IPv4 address stands in the last bytes of its place.
        let start = place.len() - from.len();
        place[start..].copy_from_slice(from);
    };
    copy(headers::DMAC, frame.get(..6).unwrap_or_default());
    copy(headers::SMAC, frame.get(6..12).unwrap_or_default());
    if let Some(ip) = &parsed.ip {
        let (source, length) = if ip.version == 4 { (parsed.l3 + 12, 4) } else { (parsed.l3 + 8, 16) };
        copy(headers::SRC_IP, frame.get(source..source + length).unwrap_or_default());
        copy(headers::DST_IP, frame.get(source + length..source + 2 * length).unwrap_or_default());
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(level: u8, miss: Option<u32>) -> FlowTable {
        FlowTable {
            kind: RECEIVE,
            level,
            log_size: 4,
            miss,
            groups: BTreeMap::new(),
            entries: BTreeMap::new(),
        }
    }

    fn group(enabled: u8, set: impl FnOnce(&mut [u8])) -> FlowGroup {
        let mut criteria = Box::new([0; MATCH_SIZE]);
        set(&mut criteria[..]);
        FlowGroup { first: 0, last: 15, enabled, criteria }
    }

    fn entry(group: u32, to: Destination, set: impl FnOnce(&mut [u8])) -> FlowEntry {
        let mut value = Box::new([0; MATCH_SIZE]);
        set(&mut value[..]);
        FlowEntry { group, value, tag: 0, drop: false, destinations: vec![to], counters: vec![9] }
    }

    /// Root 1: frames for 02:…:01 go on to table 2, others to table 3. Table 2: TCP to TIR 10, the rest to TIR 11.
    fn steering() -> Steering {
        let mut steering = Steering::default();
        let mut root = table(0, Some(3));
        root.groups.insert(0, group(1, |criteria| headers::DMAC.of_mut(criteria).fill(0xff)));
        root.entries.insert(
            5,
            entry(0, Destination::Table(2), |value| {
                headers::DMAC.of_mut(value).copy_from_slice(&[2, 0, 0, 0, 0, 1]);
            }),
        );
        let mut types = table(1, None);
        types.groups.insert(
            0,
            group(1, |criteria| {
                headers::IP_VERSION.set(criteria, 0xfu8);
                headers::IP_PROTOCOL.set(criteria, 0xffu8);
            }),
        );
        types.groups.insert(1, group(0, |_| ()));
        types.entries.insert(
            0,
            entry(0, Destination::Tir(10), |value| {
                headers::IP_VERSION.set(value, 4u8);
                headers::IP_PROTOCOL.set(value, TCP);
            }),
        );
        types.entries.insert(1, entry(1, Destination::Tir(11), |_| ()));
        let mut others = table(1, None);
        others.groups.insert(0, group(8, |criteria| criteria.fill(0xff)));
        others.entries.insert(0, entry(0, Destination::Tir(12), |value| value.fill(0xff)));
        steering.tables.extend([(1, root), (2, types), (3, others)]);
        steering.roots.insert(RECEIVE, 1);
        steering.counters.insert(9, (0, 0));
        steering
    }

    fn frame(last: u8, protocol: u8) -> Vec<u8> {
        let mut frame =
            vec![2, 0, 0, 0, 0, last, 2, 0, 0, 0, 0, 9, 8, 0, 0x45, 0, 0, 20, 0, 0, 0, 0, 64, protocol];
        frame.resize(60, 0);
        frame
    }

    #[test]
    fn the_first_entry_that_matches_decides_in_each_table() {
        let mut steering = steering();
        assert_eq!(steering.walk(&frame(1, TCP)), [Reached { tirn: 10, tag: 0 }]);
        assert_eq!(steering.walk(&frame(1, UDP)), [Reached { tirn: 11, tag: 0 }]);
        assert_eq!(steering.counters[&9], (4, 240), "two entries for each");
    }

    #[test]
    fn a_miss_leads_on_or_drops_and_what_a_frame_does_not_have_is_never_matched() {
        let mut steering = steering();
        assert_eq!(steering.walk(&frame(2, TCP)), []);
        steering.roots.clear();
        assert_eq!(steering.walk(&frame(1, TCP)), []);
    }

    #[test]
    fn a_circle_ends() {
        let mut steering = steering();
        steering.tables.get_mut(&3).unwrap().miss = Some(1);
        assert_eq!(steering.walk(&frame(2, TCP)), []);
    }

    #[test]
    fn what_is_led_to_is_known() {
        let steering = steering();
        assert_eq!([1, 2, 3, 4].map(|id| steering.leads_to_table(id)), [false, true, true, false]);
        assert_eq!(steering.tirs(), BTreeSet::from([10, 11, 12]));
    }
}
