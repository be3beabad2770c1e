//! Datagrams of each protocol at a simulated port, and Ethernet addresses that need no network.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{BorrowedFd, OwnedFd};

use nix::errno::Errno as NixErrno;
use verbs_core::types::{DeviceAttr, DeviceAttrEx, GidEntry, GidType, PortAttr};
use verbs_core::{Error, Result};

use super::*;

/// A device that has only a GID table.
#[derive(Debug)]
struct Table(Vec<GidEntry>);

impl Table {
    fn lacks<T>(&self, verb: &'static str) -> Result<T> {
        Err(Error::new(verb, self.device_name(), Errno::OPNOTSUPP))
    }
}

impl DeviceOps for Table {
    fn device_name(&self) -> &str {
        "paper0"
    }
    fn num_comp_vectors(&self) -> u32 {
        1
    }
    fn query_device(&self) -> Result<DeviceAttr> {
        self.lacks("query_device")
    }
    fn query_device_ex(&self) -> Result<DeviceAttrEx> {
        self.lacks("query_device")
    }
    fn query_port(&self, _port_num: u8) -> Result<PortAttr> {
        self.lacks("query_port")
    }
    fn query_gid_table(&self) -> Result<Vec<GidEntry>> {
        Ok(self.0.clone())
    }
    fn query_gid_entry(&self, port_num: u8, gid_index: u32) -> Result<Option<GidEntry>> {
        if port_num != 1 {
            return Err(Error::new("query_gid", self.device_name(), Errno::INVAL));
        }
        Ok(self.0.iter().find(|entry| entry.gid_index == gid_index).copied())
    }
    fn query_pkey(&self, _port_num: u8, _index: u16) -> Result<u16> {
        self.lacks("query_pkey")
    }
    fn async_fd(&self) -> Result<BorrowedFd<'_>> {
        self.lacks("get_async_event")
    }
    fn create_comp_channel(&self) -> Result<OwnedFd> {
        self.lacks("create_comp_channel")
    }
}

const HERE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const THERE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const LOCAL: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
const PEER: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

fn entry(gid_index: u32, gid_type: GidType, gid: impl Into<Gid>) -> GidEntry {
    GidEntry { gid: gid.into(), gid_index, port_num: 1, gid_type, ndev_ifindex: 0 }
}

/// Returns the GID table entries of one interface for both protocols, in the kernel's order.
fn table() -> Table {
    let other = GidEntry { port_num: 2, ..entry(9, GidType::ROCE_V2, HERE) };
    Table(vec![
        other,
        entry(0, GidType::ROCE_V1, IpAddr::from(LOCAL)),
        entry(1, GidType::ROCE_V2, IpAddr::from(LOCAL)),
        entry(2, GidType::ROCE_V1, HERE),
        entry(3, GidType::ROCE_V2, HERE),
    ])
}

/// Returns the header of RoCE v2 over IPv4, preceded by 20 bytes of arbitrary content.
fn ipv4(first: u8, protocol: u8, to: Ipv4Addr) -> [u8; 40] {
    let mut header = [first; 40];
    let start = [0x45, 0x10, 0x00, 0x3c, 0x00, 0x00, 0x40, 0x00, 63, protocol, 0, 0];
    header[20..32].copy_from_slice(&start);
    header[32..36].copy_from_slice(&THERE.octets());
    header[36..].copy_from_slice(&to.octets());
    let sum: u32 =
        header[20..].as_chunks::<2>().0.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    header[30..32].copy_from_slice(&(!((folded & 0xffff) + (folded >> 16)) as u16).to_be_bytes());
    header
}

/// Returns a GRH, or the header of RoCE v2 over IPv6: traffic class 0xab, flow label 0xcdef0, hop
/// limit 7.
fn ipv6(next_header: u8, to: [u8; 16]) -> [u8; 40] {
    let mut header = [0; 40];
    header[..8].copy_from_slice(&[0x6a, 0xbc, 0xde, 0xf0, 0, 24, next_header, 7]);
    header[8..24].copy_from_slice(&PEER);
    header[24..].copy_from_slice(&to);
    header
}

/// Calls `ibv_init_ah_from_wc` for a completion with these flags. Returns its result, the errno,
/// and the attributes.
fn init(header: Option<&[u8; 40]>, wc_flags: u32) -> (c_int, NixErrno, ibv_ah_attr) {
    // SAFETY: all zeros are a completion.
    let mut wc: ibv_wc = unsafe { core::mem::zeroed() };
    (wc.slid, wc.sl, wc.dlid_path_bits, wc.wc_flags) = (5, 6, 7, wc_flags);
    let mut attr = core::mem::MaybeUninit::<ibv_ah_attr>::uninit();
    let grh = header.map_or(core::ptr::null(), |header| header.as_ptr().cast());
    NixErrno::clear();
    // SAFETY: the pointers refer to a completion, 40 bytes or null, and memory for the result.
    unsafe {
        let result = init_ah_from_wc(&table(), 1, &raw const wc, grh, attr.as_mut_ptr());
        (result, NixErrno::last(), attr.assume_init())
    }
}

fn gid(attr: &ibv_ah_attr) -> [u8; 16] {
    // SAFETY: all bytes were written.
    unsafe { attr.grh.dgid.raw }
}

#[test]
fn a_reply_leaves_by_the_entry_that_the_datagram_was_sent_to() {
    let mapped = Gid::from(HERE).0;
    for (header, index, dgid, flow_label, hop_limit, traffic_class) in [
        (ipv4(0, 17, HERE), 3, Gid::from(THERE).0, 0, 63, 0x10),
        // If the first bytes look like IPv6, the checksum decides. The protocol does not matter.
        (ipv4(0x60, 17, HERE), 3, Gid::from(THERE).0, 0, 63, 0x10),
        (ipv4(0xff, 99, HERE), 3, Gid::from(THERE).0, 0, 63, 0x10),
        (ipv6(Grh::UDP, LOCAL), 1, PEER, 0xcdef0, 7, 0xab),
        (ipv6(Grh::IBA, LOCAL), 0, PEER, 0xcdef0, 7, 0xab),
        (ipv6(Grh::IBA, mapped), 2, PEER, 0xcdef0, 7, 0xab),
    ] {
        let (result, _, attr) = init(Some(&header), IBV_WC_GRH);
        assert_eq!((result, attr.is_global, gid(&attr)), (0, 1, dgid));
        let grh = attr.grh;
        assert_eq!((grh.sgid_index, grh.hop_limit, grh.traffic_class), (index, hop_limit, traffic_class));
        assert_eq!(grh.flow_label, flow_label);
        assert_eq!((attr.dlid, attr.sl, attr.src_path_bits, attr.port_num), (5, 6, 7, 1));
        assert_eq!(attr.static_rate, 0);
    }
}

#[test]
fn a_completion_without_a_header_gives_a_local_path() {
    for header in [None, Some(&[0xff; 40])] {
        let (result, _, attr) = init(header, 2);
        assert_eq!((result, attr.is_global, attr.dlid, attr.port_num), (0, 0, 5, 1));
        assert_eq!((gid(&attr), attr.grh.flow_label), ([0; 16], 0));
    }
}

#[test]
fn a_datagram_that_cannot_be_replied_to_has_an_errno() {
    let mut group = [0; 16];
    group[0] = 0xff;
    for (header, errno) in [
        (None, NixErrno::EINVAL),
        (Some([0; 40]), NixErrno::EPROTONOSUPPORT),
        (Some(ipv6(6, LOCAL)), NixErrno::EPROTONOSUPPORT),
        (Some(ipv6(Grh::UDP, group)), NixErrno::EINVAL),
        (Some(ipv6(6, group)), NixErrno::EINVAL),
        (Some(ipv4(0, 17, Ipv4Addr::new(239, 1, 2, 3))), NixErrno::EINVAL),
        // A GID that the port lacks, and a GID that it has only with the other protocol.
        (Some(ipv6(Grh::UDP, PEER)), NixErrno::EINVAL),
        (Some(ipv6(Grh::UDP, Gid::from(THERE).0)), NixErrno::EINVAL),
    ] {
        let (result, last, attr) = init(header.as_ref(), IBV_WC_GRH);
        assert_eq!((result, last, attr.is_global), (-1, errno, 1), "{header:?}");
    }
}

#[test]
fn an_address_of_this_host_has_that_of_its_interface() {
    let here = Gid::from(Ipv4Addr::LOCALHOST);
    let table = Table(vec![entry(4, GidType::ROCE_V2, Ipv4Addr::LOCALHOST)]);
    assert_eq!(resolve(&table, 1, 4, &here), Ok(EthPath { mac: [0; 6], vlan: None }));
    // With the interface's index, as kernels report it.
    let lo = neighbour::interface_with(Ipv4Addr::LOCALHOST.into()).unwrap();
    let table = Table(vec![GidEntry { ndev_ifindex: lo, ..table.0[0] }]);
    assert_eq!(resolve(&table, 1, 4, &here), Ok(EthPath { mac: [0; 6], vlan: None }));
}

#[test]
fn errors_of_resolving_are_those_of_the_c_library() {
    let dgid = Gid::from(THERE);
    // A nonexistent port, an empty entry, and a group, whose address no interface has.
    let table = Table(vec![entry(1, GidType::ROCE_V2, Ipv4Addr::new(239, 1, 2, 3))]);
    for (port_num, index, code) in [(2, 1, -1), (1, 0, -libc::EINVAL), (1, 1, -libc::EINVAL)] {
        NixErrno::clear();
        assert_eq!(resolve(&table, port_num, index, &dgid), Err(code));
        assert_eq!(NixErrno::last(), NixErrno::EINVAL);
    }
    let gone = Table(vec![GidEntry { ndev_ifindex: i32::MAX as u32, ..table.0[0] }]);
    assert_eq!(resolve(&gone, 1, 1, &dgid), Err(-libc::EHOSTUNREACH));
}
