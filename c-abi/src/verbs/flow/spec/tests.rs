//! Rules as bytes, in the layout that verbs.h has on x86-64: the type, the size, and the filters,
//! which begin at byte 6 or 8, depending on their alignment.

use core::ptr::without_provenance_mut;

use super::*;

const INVALID: Result<Rule, Errno> = Err(Errno::INVAL);

/// Returns the bytes of a specification that states the size `size`.
fn spec_stating(size: usize, spec_type: u32, start: usize, parts: &[&[u8]], len: usize) -> Vec<u8> {
    let mut bytes = spec_type.to_ne_bytes().to_vec();
    bytes.extend((size as u16).to_ne_bytes());
    bytes.resize(start, 0xee);
    parts.iter().for_each(|part| bytes.extend_from_slice(part));
    bytes.resize(len, 0xee);
    bytes
}

fn spec(size: usize, spec_type: u32, start: usize, parts: &[&[u8]]) -> Vec<u8> {
    spec_stating(size, spec_type, start, parts, size)
}

/// Reads a rule with these specifications from an odd address.
fn rule(specs: &[&[u8]]) -> Result<Rule, Errno> {
    let mut bytes = vec![0xee];
    bytes.extend([0; 4]);
    bytes.extend(IBV_FLOW_ATTR_SNIFFER.to_ne_bytes());
    // Programs do not set the size of the rule.
    bytes.extend(0_u16.to_ne_bytes());
    bytes.extend(9_u16.to_ne_bytes());
    bytes.extend([specs.len() as u8, 2, 0xee, 0xee]);
    bytes.extend(IBV_FLOW_ATTR_FLAGS_DONT_TRAP.to_ne_bytes());
    specs.iter().for_each(|spec| bytes.extend_from_slice(spec));
    // SAFETY: the specifications follow the attributes.
    unsafe { rule_from_c(bytes[1..].as_ptr().cast()) }
}

/// Reads a rule with one specification and returns the specification.
fn read(spec: &[u8]) -> Result<Spec, Errno> {
    rule(&[spec]).map(|rule| rule.specs[0])
}

use crate::abi::c::{IBV_FLOW_ATTR_FLAGS_DONT_TRAP, IBV_FLOW_ATTR_SNIFFER};

/// A specification that matches a header, for each type: its bytes, and the expected results inside
/// and outside a tunnel. The values are the bytes 1, 2, 3 and so on; the mask bytes begin at 0x81.
struct Header {
    spec_type: u32,
    start: usize,
    /// The length of a filter including its padding.
    filter: usize,
    size: usize,
    is_inner_too: bool,
    grows: bool,
    expected: fn(bool) -> Spec,
}

/// Returns a number in packet byte order: the bytes `first`, `first + 1` and so on.
fn u16_at(first: u8) -> u16 {
    u16::from_be_bytes([first, first + 1])
}

fn u32_at(first: u8) -> u32 {
    u32::from_be_bytes(bytes_at(first))
}

fn bytes_at<const N: usize>(first: u8) -> [u8; N] {
    core::array::from_fn(|index| first + index as u8)
}

fn both<F>(at: fn(u8) -> F) -> FlowMatch<F> {
    FlowMatch { val: at(1), mask: at(0x81) }
}

fn ports_at(first: u8) -> FlowTcpUdpFilter {
    FlowTcpUdpFilter { dst_port: u16_at(first), src_port: u16_at(first + 2) }
}

const HEADERS: &[Header] = &[
    Header {
        spec_type: 0x20,
        start: 6,
        filter: 16,
        size: 40,
        is_inner_too: true,
        grows: false,
        expected: |is_inner| FlowSpec::Eth {
            fields: both(|at| FlowEthFilter {
                dst_mac: bytes_at(at),
                src_mac: bytes_at(at + 6),
                ether_type: u16_at(at + 12),
                vlan_tag: u16_at(at + 14),
            }),
            is_inner,
        },
    },
    Header {
        spec_type: 0x30,
        start: 8,
        filter: 8,
        size: 24,
        is_inner_too: true,
        grows: false,
        expected: |is_inner| FlowSpec::Ipv4 {
            fields: both(|at| FlowIpv4Filter {
                src_ip: bytes_at::<4>(at).into(),
                dst_ip: bytes_at::<4>(at + 4).into(),
            }),
            is_inner,
        },
    },
    Header {
        spec_type: 0x31,
        start: 8,
        filter: 40,
        size: 88,
        is_inner_too: true,
        grows: true,
        expected: |is_inner| FlowSpec::Ipv6 {
            fields: both(|at| FlowIpv6Filter {
                src_ip: bytes_at::<16>(at).into(),
                dst_ip: bytes_at::<16>(at + 16).into(),
                flow_label: u32_at(at + 32),
                next_hdr: at + 36,
                traffic_class: at + 37,
                hop_limit: at + 38,
            }),
            is_inner,
        },
    },
    Header {
        spec_type: 0x32,
        start: 8,
        filter: 12,
        size: 32,
        is_inner_too: true,
        grows: true,
        expected: |is_inner| FlowSpec::Ipv4Ext {
            fields: both(|at| FlowIpv4ExtFilter {
                src_ip: bytes_at::<4>(at).into(),
                dst_ip: bytes_at::<4>(at + 4).into(),
                proto: at + 8,
                tos: at + 9,
                ttl: at + 10,
                flags: at + 11,
            }),
            is_inner,
        },
    },
    Header {
        spec_type: 0x34,
        start: 8,
        filter: 8,
        size: 24,
        is_inner_too: true,
        grows: false,
        expected: |is_inner| FlowSpec::Esp {
            fields: both(|at| FlowEspFilter { spi: u32_at(at), seq: u32_at(at + 4) }),
            is_inner,
        },
    },
    Header {
        spec_type: 0x40,
        start: 6,
        filter: 4,
        size: 16,
        is_inner_too: true,
        grows: false,
        expected: |is_inner| FlowSpec::Tcp { fields: both(ports_at), is_inner },
    },
    Header {
        spec_type: 0x41,
        start: 6,
        filter: 4,
        size: 16,
        is_inner_too: true,
        grows: false,
        expected: |is_inner| FlowSpec::Udp { fields: both(ports_at), is_inner },
    },
    Header {
        spec_type: 0x50,
        start: 8,
        filter: 4,
        size: 16,
        is_inner_too: false,
        grows: true,
        expected: |_| FlowSpec::VxlanTunnel(both(|at| FlowTunnelFilter { tunnel_id: u32_at(at) })),
    },
    Header {
        spec_type: 0x51,
        start: 8,
        filter: 8,
        size: 24,
        is_inner_too: false,
        grows: false,
        expected: |_| {
            FlowSpec::Gre(both(|at| FlowGreFilter {
                c_ks_res0_ver: u16_at(at),
                protocol: u16_at(at + 2),
                key: u32_at(at + 4),
            }))
        },
    },
    Header {
        spec_type: 0x60,
        start: 8,
        filter: 4,
        size: 16,
        is_inner_too: true,
        grows: false,
        expected: |is_inner| FlowSpec::Mpls {
            fields: both(|at| FlowMplsFilter { label: u32_at(at) }),
            is_inner,
        },
    },
];

impl Header {
    /// Returns the bytes with another type, and with `more` bytes after each filter. In the mask,
    /// these bytes are zero except the last one.
    fn bytes(&self, spec_type: u32, more: usize, last: u8) -> Vec<u8> {
        let numbers = |first: u8| (0..self.filter as u8).map(|index| first + index).collect::<Vec<_>>();
        let (mut val, mut mask) = (numbers(1), numbers(0x81));
        val.resize(self.filter + more, 0xff);
        mask.resize(self.filter + more, 0);
        if let Some(byte) = mask[self.filter..].last_mut() {
            *byte = last;
        }
        spec(self.size + 2 * more, spec_type, self.start, &[&val, &mask])
    }
}

#[test]
fn a_header_is_read_with_numbers_in_host_order_inside_and_outside_of_tunnels() {
    for header in HEADERS {
        let outer = header.bytes(header.spec_type, 0, 0);
        assert_eq!(read(&outer), Ok((header.expected)(false)), "{:#x}", header.spec_type);
        let inner = read(&header.bytes(header.spec_type | 0x100, 0, 0));
        let expected = if header.is_inner_too { Ok((header.expected)(true)) } else { Err(Errno::INVAL) };
        assert_eq!(inner, expected, "{:#x}, inner", header.spec_type);
    }
}

#[test]
fn a_header_of_a_wrong_size_is_refused() {
    for header in HEADERS {
        let mut bytes = header.bytes(header.spec_type, 0, 0);
        bytes.resize(256, 0xff);
        let sizes = [0, 1, 7, header.size - 8, header.size - 2, header.size + 2, header.size + 8];
        for size in sizes.into_iter().filter(|size| *size < header.size || !header.grows) {
            bytes[4..6].copy_from_slice(&(size as u16).to_ne_bytes());
            assert_eq!(read(&bytes), Err(Errno::INVAL), "{:#x} of {size} bytes", header.spec_type);
        }
    }
}

#[test]
fn a_filter_that_grew_is_read_if_the_mask_has_nothing_new() {
    for header in HEADERS.iter().filter(|header| header.grows) {
        for more in [1, 4, 8] {
            let same = read(&header.bytes(header.spec_type, more, 0));
            assert_eq!(same, Ok((header.expected)(false)), "{:#x}, {more} more", header.spec_type);
            let unknown = read(&header.bytes(header.spec_type, more, 1));
            assert_eq!(unknown, Err(Errno::OPNOTSUPP), "{:#x}, {more} more", header.spec_type);
        }
    }
}

#[test]
fn actions_are_read_and_need_their_objects() {
    let tag = spec(12, 0x1000, 8, &[&0x12_3456_u32.to_ne_bytes()]);
    let drop = spec(8, 0x1001, 8, &[]);
    let pointer = |spec_type, address: usize| spec(16, spec_type, 8, &[&address.to_ne_bytes()]);
    let rule = rule(&[&tag, &drop, &pointer(0x1002, 0x40), &pointer(0x1003, 0x80)]).unwrap();
    let expected: [Spec; 4] = [
        FlowSpec::ActionTag(0x12_3456),
        FlowSpec::ActionDrop,
        FlowSpec::ActionHandle(without_provenance_mut(0x40)),
        FlowSpec::ActionCount(without_provenance_mut(0x80)),
    ];
    assert_eq!(rule.specs, expected);
    for spec_type in [0x1002, 0x1003] {
        assert_eq!(read(&pointer(spec_type, 0)), Err(Errno::INVAL), "{spec_type:#x} of nothing");
    }
    for (spec_type, size) in [(0x1000, 12), (0x1001, 8), (0x1002, 16), (0x1003, 16)] {
        for wrong in [size - 4, size + 4] {
            let bytes = spec_stating(wrong, spec_type, 8, &[&[1; 8]], 64);
            assert_eq!(read(&bytes), Err(Errno::INVAL), "{spec_type:#x} of {wrong} bytes");
        }
        let inner = spec(size, spec_type | 0x100, 8, &[&[1; 8][..size - 8]]);
        assert_eq!(read(&inner), Err(Errno::INVAL), "{spec_type:#x}, inner");
    }
}

#[test]
fn a_rule_keeps_its_attributes_and_the_order_of_its_specifications() {
    let (first, second) = (&HEADERS[0], &HEADERS[6]);
    let rule =
        rule(&[&first.bytes(first.spec_type, 0, 0), &second.bytes(second.spec_type | 0x100, 0, 0)]).unwrap();
    assert_eq!((rule.attr_type, rule.priority, rule.port), (FlowAttrType::SNIFFER, 9, 2));
    assert_eq!(rule.flags, FlowFlags::DONT_TRAP);
    assert_eq!(rule.specs, [(first.expected)(false), (second.expected)(true)]);
}

#[test]
fn a_rule_needs_no_specification() {
    assert_eq!(rule(&[]).map(|rule| rule.specs.len()), Ok(0));
}

#[test]
fn a_type_that_no_release_has_is_refused_wherever_it_stands() {
    let known = HEADERS[0].bytes(0x20, 0, 0);
    for spec_type in [0, 0x21, 0x33, 0x61, 0x100, 0x1004, 0x220, u32::MAX] {
        let unknown = spec(40, spec_type, 8, &[]);
        assert_eq!(rule(&[&unknown]), INVALID, "{spec_type:#x}");
        assert_eq!(rule(&[&known, &unknown]), INVALID, "{spec_type:#x}, second");
    }
}

#[test]
fn a_member_that_no_release_has_is_refused() {
    let mut attr = [0_u32; 5];
    // SAFETY: the rule has no specifications.
    unsafe {
        assert!(rule_from_c(attr.as_ptr().cast()).is_ok());
        attr[0] = 1;
        assert_eq!(rule_from_c(attr.as_ptr().cast()), INVALID);
    }
}
