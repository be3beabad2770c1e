//! Destination MAC addresses used by RoCE senders.

use roce::engine::Gid;

use super::two::two;
use super::*;

const DATAGRAMS: Shape = Shape { service: UD, log_sq: 4, log_rq: 2, log_stride: 6, more: &[] };

/// Sends a datagram to this GID and MAC address. Returns the broken rules.
fn sent(bed: &mut Bed, from: &mut Pair, to: &Pair, gid: &Gid, mac: [u8; 6]) -> Vec<Rule> {
    let mut vector = bed.vector(to);
    datagram::RGID.bytes_mut(&mut vector).copy_from_slice(gid);
    datagram::RMAC.bytes_mut(&mut vector).copy_from_slice(&mac);
    let wqe = bed.begin(from, opcode::SEND).set(ctrl::CE, 0).raw(&vector).inline(b"x").done();
    bed.post(from, &wqe);
    assert_eq!(bed.state(from), State::Rts, "it is only reported");
    bed.rules()
}

#[test]
fn a_datagram_uses_the_mac_address_of_the_port_that_owns_the_gid() {
    let (mut bed, [here, mut there], [_, memory]) = two(PortKind::Roce);
    let (mut one, mut other) = bed.connected([&here, &there], &DATAGRAMS);
    let [own, remote] = [0, 1].map(|n| {
        let port = &bed.fabric.functions[n].core.port;
        (port.gid(0).unwrap(), port.mac())
    });
    for n in 0..3 {
        bed.post_recv(&mut other, &[(memory.va + n * 0x100, 0x100, memory.key)]);
    }
    assert_eq!(sent(&mut bed, &mut one, &other, &remote.0, remote.1), []);
    let mut wrong = remote.1;
    wrong[5] ^= 1;
    for mac in [wrong, own.1] {
        assert_eq!(sent(&mut bed, &mut one, &other, &remote.0, mac), [Rule::DestinationMac]);
    }
    assert_eq!(bed.drain(&mut there).len(), 3, "each arrives");
    let itself = one.clone();
    assert_eq!(sent(&mut bed, &mut one, &itself, &own.0, own.1), []);
    assert_eq!(sent(&mut bed, &mut one, &itself, &own.0, remote.1), [Rule::DestinationMac]);
    let mut absent = remote.0;
    absent[15] = 77;
    assert_eq!(sent(&mut bed, &mut one, &other, &absent, wrong), []);
}

#[test]
fn a_multicast_datagram_uses_the_mac_address_of_the_group() {
    let (mut bed, [here, there], _) = two(PortKind::Roce);
    let (mut one, mut other) = bed.connected([&here, &there], &DATAGRAMS);
    other.qpn = 0xff_ffff;
    let version_6 = [0xff, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4];
    let version_4 = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xe0, 0x82, 3, 4];
    let unicast = bed.fabric.functions[1].core.port.mac();
    for (gid, mac) in [(version_6, [0x33, 0x33, 1, 2, 3, 4]), (version_4, [0x01, 0x00, 0x5e, 2, 3, 4])] {
        assert_eq!(sent(&mut bed, &mut one, &other, &gid, mac), []);
        assert_eq!(sent(&mut bed, &mut one, &other, &gid, unicast), [Rule::DestinationMac]);
        let [a, b, c, d, e, f] = mac;
        assert_eq!(sent(&mut bed, &mut one, &other, &gid, [a, b, c, d, e, f ^ 1]), [Rule::DestinationMac]);
    }
}

#[test]
fn a_connection_uses_the_mac_address_of_its_peer() {
    let (mut bed, [here, _], _) = two(PortKind::Roce);
    for bit in [0u32, 1] {
        let one = bed.pair(&here, &Shape::default());
        bed.init(&one, RC);
        let mut command = input(0x503, rst2init_qp_in::SIZE);
        rst2init_qp_in::QPN.set(&mut command, one.qpn);
        let context = rst2init_qp_in::QPC.bytes_mut(&mut command);
        qpc::MTU.set(context, 3u32);
        qpc::LOG_MSG_MAX.set(context, 30u32);
        let path = qpc::PRIMARY_ADDRESS_PATH.bytes_mut(context);
        bed.path(1, path);
        ads::RMAC_47_32.set(path, ads::RMAC_47_32.get32(path) ^ bit << 15);
        bed.command(0, &command);
        assert_eq!(bed.state(&one), State::Rtr);
        assert_eq!(bed.rules(), if bit == 0 { vec![] } else { vec![Rule::DestinationMac] });
    }
}
