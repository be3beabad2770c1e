//! [`Steering`]: flow tables, whose entries direct received frames to TIRs.
//!
//! ```text
//!   root ──► table ──matching entry──► table ──► ... ──► TIR (or several) ──► RQ, or one of an RQT
//!              └──none──► the table for misses, or the frame is dropped
//! ```
//! A received frame starts at the root of the receive tables. In each table, the matching entry
//! with the lowest index applies. Entries match the outer headers of layers 2 to 4, including the
//! IPv6 flow label. All other fields (metadata, inner headers) count as 0. Tables for sent frames
//! and for RDMA are stored but not used: sent frames go to the wire, RDMA packets to their queue
//! pairs.
//!
//! Invariants: a table refers only to tables at higher levels, and a frame visits each table once,
//! so every walk ends. The number of entries compared in a walk is bounded: with a hostile driver's
//! tables, frames may be lost, but the model does not stay busy.
//!
//! # References
//! PRM, "flow tables"

use std::collections::{BTreeMap, BTreeSet};

use crate::frame::{Parsed, TCP, UDP};
use crate::layout::Field;
use crate::layout::steering::{fte_match_set_lyr_2_4 as headers, fte_match_set_misc as misc};

/// Size of match criteria and of match values, in bytes.
pub(crate) const MATCH_SIZE: usize = 0x200;
/// Maximum number of flow tables: more than any driver needs, but a bound for a hostile one.
pub(crate) const MAX_TABLES: usize = 1 << 12;
/// Maximum number of groups, entries, destinations and counters in all tables together.
pub(crate) const MAX_PARTS: usize = 1 << 16;
/// Maximum number of tables, and of TIRs, that one frame may reach.
const MAX_STEPS: usize = 256;
/// Maximum number of entries compared for one frame. A driver needs one entry for each of up to 128
/// addresses and 128 VLANs.
const MAX_LOOKS: usize = 1 << 11;

/// The number of the receive table kind. Frames use only this kind.
pub(crate) const RECEIVE: u8 = 0;

/// All flow tables with their groups and entries, and all flow counters.
#[derive(Debug, Default)]
pub(crate) struct Steering {
    pub(crate) tables: BTreeMap<u32, FlowTable>,
    /// The id of the root table, by table kind.
    pub(crate) roots: BTreeMap<u8, u32>,
    /// The numbers of packets and bytes counted, by counter.
    pub(crate) counters: BTreeMap<u32, (u64, u64)>,
    /// The total number of groups, entries, destinations and counters in all tables.
    pub(crate) parts: usize,
}

/// A flow table.
#[derive(Debug)]
pub(crate) struct FlowTable {
    pub(crate) kind: u8,
    pub(crate) level: u8,
    pub(crate) log_size: u8,
    /// The id of the table for frames that match no entry; `None` for the default action.
    pub(crate) miss: Option<u32>,
    pub(crate) groups: BTreeMap<u32, FlowGroup>,
    pub(crate) entries: BTreeMap<u32, FlowEntry>,
}

/// A range of entries in a table that match the same fields.
#[derive(Debug)]
pub(crate) struct FlowGroup {
    pub(crate) first: u32,
    pub(crate) last: u32,
    /// The nonzero words of the enabled match criteria, with their offsets.
    mask: Vec<(usize, u64)>,
}

/// An entry of a flow table.
#[derive(Debug)]
pub(crate) struct FlowEntry {
    pub(crate) group: u32,
    pub(crate) value: Box<[u8; MATCH_SIZE]>,
    pub(crate) tag: u32,
    /// Whether matching frames are dropped.
    pub(crate) drop: bool,
    pub(crate) destinations: Vec<Destination>,
    pub(crate) counters: Vec<u32>,
}

/// A destination of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    Table(u32),
    Tir(u32),
}

/// A TIR that a frame has reached, and the tag of the entry that led to the TIR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reached {
    pub(crate) tirn: u32,
    pub(crate) tag: u32,
}

impl Steering {
    /// Returns the TIRs that a received frame reaches; none if finding them takes too many steps or
    /// comparisons.
    pub(crate) fn walk(&mut self, frame: &[u8]) -> Vec<Reached> {
        let mut looks = MAX_LOOKS;
        self.walk_within(frame, &mut looks).unwrap_or_default()
    }

    /// Same as `walk`, with at most `looks` comparisons. Returns `None` if this limit or
    /// [`MAX_STEPS`] was reached.
    fn walk_within(&mut self, frame: &[u8], looks: &mut usize) -> Option<Vec<Reached>> {
        let Self { tables, roots, counters, .. } = self;
        let mut reached = Vec::new();
        let Some(parsed) = Parsed::new(frame) else { return Some(reached) };
        let packet = matched(frame, &parsed);
        let mut next: Vec<u32> = roots.get(&RECEIVE).copied().into_iter().collect();
        let mut visited = BTreeSet::new();
        while let Some(id) = next.pop() {
            if visited.len() >= MAX_STEPS {
                return None;
            }
            let Some(table) = tables.get(&id) else { continue };
            if !visited.insert(id) {
                continue;
            }
            let Some(entry) = table.find(&packet, looks)? else {
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
            for destination in &entry.destinations {
                match destination {
                    Destination::Table(id) => {
                        if !visited.contains(id) {
                            next.push(*id);
                        }
                    }
                    Destination::Tir(tirn) if reached.len() < MAX_STEPS => {
                        reached.push(Reached { tirn: *tirn, tag: entry.tag });
                    }
                    Destination::Tir(_) => (),
                }
            }
        }
        Some(reached)
    }

    /// Returns whether an entry or a table's miss action refers to the table `id`.
    pub(crate) fn leads_to_table(&self, id: u32) -> bool {
        self.tables.values().any(|table| table.miss == Some(id) || table.leads_to(Destination::Table(id)))
    }

    /// Returns the TIRs that entries use as destinations.
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
    /// Returns the first entry that matches a packet, or `Some(None)` if none does. Returns `None`
    /// if this takes more than `looks` comparisons.
    fn find(&self, packet: &[u8; MATCH_SIZE], looks: &mut usize) -> Option<Option<&FlowEntry>> {
        for entry in self.entries.values() {
            *looks = looks.checked_sub(1)?;
            if self.groups.get(&entry.group).is_some_and(|group| group.matches(packet, &entry.value)) {
                return Some(Some(entry));
            }
        }
        Some(None)
    }

    fn leads_to(&self, to: Destination) -> bool {
        self.entries.values().any(|entry| entry.destinations.contains(&to))
    }
}

impl FlowEntry {
    /// Returns the number of parts of this entry, as counted by [`MAX_PARTS`].
    pub(crate) fn parts(&self) -> usize {
        1 + self.destinations.len() + self.counters.len()
    }
}

impl FlowGroup {
    /// Returns a group with these match criteria. Each bit of `enabled` enables one part of the
    /// criteria.
    pub(crate) fn new(first: u32, last: u32, enabled: u8, criteria: &[u8; MATCH_SIZE]) -> Self {
        let mask = (0..MATCH_SIZE).step_by(WORD).filter_map(|at| {
            // `enabled` has no bits for the reserved parts at the end of the criteria.
            let counts = enabled.checked_shr((at / PART) as u32).is_some_and(|bits| bits & 1 != 0);
            let bits = word(criteria, at);
            (counts && bits != 0).then_some((at, bits))
        });
        Self { first, last, mask: mask.collect() }
    }

    fn matches(&self, packet: &[u8; MATCH_SIZE], value: &[u8; MATCH_SIZE]) -> bool {
        self.mask.iter().all(|(at, mask)| (word(packet, *at) ^ word(value, *at)) & mask == 0)
    }
}

/// Size of one part of the match criteria, in bytes.
const PART: usize = 0x40;
/// Number of bytes compared at a time.
const WORD: usize = 8;
/// Mask for the flow label in the first dword of an IPv6 header.
const FLOW_LABEL: u32 = 0xf_ffff;

fn word(bytes: &[u8; MATCH_SIZE], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u64::from_be_bytes(*word))
}

/// Returns a frame's header fields in the layout of match values.
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
        let place = part.bytes_mut(&mut all);
        let from = from.get(..place.len()).unwrap_or(from);
        // An IPv4 address occupies the last 4 bytes of its field.
        let start = place.len() - from.len();
        place[start..].copy_from_slice(from);
    };
    copy(headers::DMAC, frame.get(..6).unwrap_or_default());
    copy(headers::SMAC, frame.get(6..12).unwrap_or_default());
    if let Some(ip) = &parsed.ip {
        let (source, length) = if ip.version == 4 { (parsed.l3 + 12, 4) } else { (parsed.l3 + 8, 16) };
        copy(headers::SRC_IP, frame.get(source..source + length).unwrap_or_default());
        copy(headers::DST_IP, frame.get(source + length..source + 2 * length).unwrap_or_default());
        if ip.version == 6 {
            let first = frame.get(parsed.l3..).and_then(|rest| rest.first_chunk());
            let label = first.map_or(0, |bytes| u32::from_be_bytes(*bytes));
            misc::OUTER_IPV6_FLOW_LABEL.set(&mut all[PART..], label & FLOW_LABEL);
        }
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
        FlowGroup::new(0, 15, enabled, &criteria)
    }

    fn entry(group: u32, to: Destination, set: impl FnOnce(&mut [u8])) -> FlowEntry {
        let mut value = Box::new([0; MATCH_SIZE]);
        set(&mut value[..]);
        FlowEntry { group, value, tag: 0, drop: false, destinations: vec![to], counters: vec![9] }
    }

    /// Returns flow tables. In root table 1, frames for 02:…:01 go to table 2, all others go
    /// to table 3. In table 2, TCP frames go to TIR 10, all others go to TIR 11.
    fn steering() -> Steering {
        let mut steering = Steering::default();
        let mut root = table(0, Some(3));
        root.groups.insert(0, group(1, |criteria| headers::DMAC.bytes_mut(criteria).fill(0xff)));
        root.entries.insert(
            5,
            entry(0, Destination::Table(2), |value| {
                headers::DMAC.bytes_mut(value).copy_from_slice(&[2, 0, 0, 0, 0, 1]);
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
    fn a_miss_continues_or_drops_and_absent_headers_never_match() {
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
    fn a_table_that_many_entries_lead_to_is_visited_once() {
        let mut steering = steering();
        let root = steering.tables.get_mut(&1).unwrap();
        root.entries.get_mut(&5).unwrap().destinations =
            vec![Destination::Table(2), Destination::Table(3), Destination::Table(2)];
        steering.tables.get_mut(&3).unwrap().miss = Some(2);
        assert_eq!(steering.walk(&frame(1, TCP)), [Reached { tirn: 10, tag: 0 }]);
    }

    #[test]
    fn a_frame_for_which_too_many_entries_are_to_be_looked_at_is_dropped() {
        let mut steering = steering();
        let mut looks = 10;
        assert!(steering.walk_within(&frame(2, TCP), &mut looks).is_some());
        assert_eq!(looks, 8, "an entry of the root, one of the table for misses");
        // Each table has entries that match nothing, and leads to the next table on a miss.
        let never = |value: &mut [u8]| headers::DMAC.bytes_mut(value).fill(0xfe);
        for id in 10..20 {
            let mut table = table(id as u8, Some(id + 1));
            table.groups.insert(0, group(1, |criteria| headers::DMAC.bytes_mut(criteria).fill(0xff)));
            table.entries.extend((0..1000).map(|index| (index, entry(0, Destination::Tir(10), never))));
            steering.tables.insert(id, table);
        }
        steering.roots.insert(RECEIVE, 10);
        let mut looks = MAX_LOOKS;
        assert_eq!(steering.walk_within(&frame(2, TCP), &mut looks), None);
        assert_eq!((looks, steering.walk(&frame(2, TCP))), (0, vec![]));
        looks = 10_000;
        assert_eq!(steering.walk_within(&frame(2, TCP), &mut looks), Some(vec![]), "nothing matches");
        assert_eq!(looks, 0, "each entry once");
    }

    #[test]
    fn the_flow_label_of_ipv6_is_a_field_of_the_second_part() {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 9, 0x86, 0xdd];
        frame.extend([0x61, 0x2a, 0xbc, 0xde, 0, 0, UDP, 64]);
        frame.resize(62, 0);
        let label = |frame: &[u8]| {
            let packet = matched(frame, &Parsed::new(frame).unwrap());
            misc::OUTER_IPV6_FLOW_LABEL.get32(&packet[PART..])
        };
        assert_eq!(label(&frame), 0xa_bcde);
        frame[12..15].copy_from_slice(&[8, 0, 0x45]);
        assert_eq!(label(&frame), 0, "IPv4 has none");
    }

    #[test]
    fn a_match_compares_the_criteria_of_enabled_parts() {
        let matches = |enabled, at: usize| {
            let group = group(enabled, |criteria| criteria[at] = 0x0f);
            let (mut packet, value) = ([0; MATCH_SIZE], [0; MATCH_SIZE]);
            packet[at] = 0xf0;
            let same = group.matches(&packet, &value);
            packet[at] = 0xf1;
            (same, group.matches(&packet, &value))
        };
        assert_eq!([0, 0x3f, 0x1ff].map(|at| matches(0xff, at)), [(true, false); 3]);
        assert_eq!(matches(0xfd, 0x40), (true, true), "the second part does not count");
        assert_eq!(matches(0x02, 0x7f), (true, false));
    }

    #[test]
    fn referenced_tables_and_tirs_are_known() {
        let steering = steering();
        assert_eq!([1, 2, 3, 4].map(|id| steering.leads_to_table(id)), [false, true, true, false]);
        assert_eq!(steering.tirs(), BTreeSet::from([10, 11, 12]));
    }
}
