//! Two connected functions: InfiniBand and RoCE, multicast, ports that go down.

use super::*;
use crate::layout::vport::roce_addr_layout;

/// Returns a bed with two functions. Each has a completion queue and registered memory.
pub(super) fn two(port: PortKind) -> (Bed, [Cq; 2], [Memory; 2]) {
    let mut bed = Bed::new(port, 2);
    if port == PortKind::Roce {
        for function in 0..2u8 {
            let mut layout = [0; roce_addr_layout::SIZE];
            layout[10..16].copy_from_slice(&[0xff, 0xff, 192, 0, 2, function + 1]);
            roce_addr_layout::ROCE_VERSION.set(&mut layout, 2u32);
            let port = &mut bed.fabric.functions[usize::from(function)].core.port;
            let [a, b, c, d, e, f] = port.mac();
            roce_addr_layout::SOURCE_MAC_47_32.set(&mut layout, u16::from_be_bytes([a, b]));
            roce_addr_layout::SOURCE_MAC_31_0.set(&mut layout, u32::from_be_bytes([c, d, e, f]));
            assert!(port.set_roce_address(0, &layout));
        }
    }
    let cqs = [bed.cq(0, 6, 64), bed.cq(1, 6, 64)];
    let memories = [bed.memory(0, 4), bed.memory(1, 4)];
    (bed, cqs, memories)
}

#[test]
fn functions_reach_each_other_over_either_kind_of_port() {
    for port in [PortKind::Ib, PortKind::Roce] {
        let (mut bed, [mut here, mut there], [_, memory]) = two(port);
        let (mut one, mut other) = bed.connected([&here, &there], &Shape::default());
        bed.post_recv(&mut other, &[(memory.va, 0x100, memory.key)]);
        let wqe = bed.send(&one, b"over there");
        bed.post(&mut one, &wqe);
        assert_eq!((bed.drain(&mut here), bed.drain(&mut there)), (vec![(SUCCESS, 0)], vec![(2, 0)]));
        assert_eq!(&bed.peek::<10>(1, memory.address), b"over there");
    }
}

#[test]
fn a_datagram_over_roce_reports_its_kind_of_header() {
    let (mut bed, [mut here, mut there], [_, memory]) = two(PortKind::Roce);
    let shape = Shape { service: UD, ..Shape::default() };
    let (mut one, mut other) = bed.connected([&here, &there], &shape);
    bed.post_recv(&mut other, &[(memory.va, 0x100, memory.key)]);
    let wqe = bed.begin(&one, opcode::SEND).raw(&bed.vector(&other)).inline(b"datagram").done();
    bed.post(&mut one, &wqe);
    assert_eq!(bed.drain(&mut here), [(SUCCESS, 0)]);
    let entry = bed.poll(&mut there).unwrap();
    assert_eq!((cqe::GRH.get(&entry), cqe::SL.get(&entry)), (1, 2), "IPv4");
    assert_eq!(cqe::BYTE_CNT.get(&entry), 48);
    assert_eq!(&bed.peek::<8>(1, memory.address + 40), b"datagram");
    assert_eq!(&bed.peek::<4>(1, memory.address + 32), &[192, 0, 2, 1]);
}

#[test]
fn an_address_that_the_port_does_not_have_is_an_error() {
    let (mut bed, [mut here, there], _) = two(PortKind::Roce);
    let (mut one, other) = bed.connected([&here, &there], &Shape { service: UD, ..Shape::default() });
    let mut vector = bed.vector(&other);
    datagram::SGID_INDEX.set(&mut vector, 9u32);
    let wqe = bed.begin(&one, opcode::SEND).raw(&vector).done();
    bed.post(&mut one, &wqe);
    assert_eq!(bed.poll(&mut here).map(|entry| error(&entry)), Some((13, 0x02)));
}

#[test]
fn multicast_goes_to_every_member_and_to_the_sender_as_well() {
    let (mut bed, [mut here, mut there], memories) = two(PortKind::Ib);
    let shape = Shape { service: UD, ..Shape::default() };
    let (mut one, mut other) = bed.connected([&here, &there], &shape);
    let mut group = [0; 16];
    group[..2].copy_from_slice(&[0xff, 0x12]);
    for (pair, memory) in [(&mut one, memories[0]), (&mut other, memories[1])] {
        bed.post_recv(pair, &[(memory.va, 0x100, memory.key)]);
        let mut attach = input(0x806, crate::layout::qp::attach_to_mcg_in::SIZE);
        crate::layout::qp::attach_to_mcg_in::QPN.set(&mut attach, pair.qpn);
        crate::layout::qp::attach_to_mcg_in::MULTICAST_GID.bytes_mut(&mut attach).copy_from_slice(&group);
        bed.ok(pair.function, &attach);
    }
    let mut vector = bed.vector(&other);
    datagram::DQPN.set(&mut vector, 0xff_ffffu32);
    datagram::RLID_UDP_SPORT.set(&mut vector, 0xc001u32);
    datagram::GRH.set(&mut vector, 1u32);
    datagram::RGID.bytes_mut(&mut vector).copy_from_slice(&group);
    let wqe = bed.begin(&one, opcode::SEND).raw(&vector).inline(b"all").done();
    bed.post(&mut one, &wqe);
    let mut here: Vec<_> = bed.drain(&mut here);
    here.sort_unstable();
    assert_eq!((here, bed.drain(&mut there)), (vec![(SUCCESS, 0), (2, 0)], vec![(2, 0)]));
}

#[test]
fn packets_lost_while_the_port_was_down_are_sent_again_when_it_is_up() {
    let (mut bed, [mut here, there], [_, memory]) = two(PortKind::Ib);
    let (mut one, mut other) = bed.connected([&here, &there], &Shape::default());
    bed.post_recv(&mut other, &[(memory.va, 0x100, memory.key)]);
    bed.fabric.functions[1].core.port.up = false;
    let wqe = bed.send(&one, b"x");
    bed.post(&mut one, &wqe);
    assert_eq!(bed.drain(&mut here), []);
    bed.fabric.functions[1].core.port.up = true;
    bed.pass(200_000_000);
    assert_eq!(bed.drain(&mut here), [(SUCCESS, 0)]);
}

#[test]
fn much_is_carried_in_bounded_calls() {
    let (mut bed, [mut here, there], [from, to]) = two(PortKind::Ib);
    let (mut one, _) = bed.connected([&here, &there], &Shape { log_sq: 11, ..Shape::default() });
    for n in 0..2000 {
        let wqe = bed.begin(&one, opcode::WRITE).set(ctrl::CE, if n == 1999 { 2 } else { 0 });
        let wqe = wqe.remote(to.va, to.key).element(from.va, 0x4000, from.key).done();
        bed.put(&mut one, &wqe);
    }
    bed.ring(&mut one);
    assert_eq!(bed.drain(&mut here), [], "it is not done in one call");
    assert_eq!(bed.fabric.deadline(), Some(bed.now));
    bed.pass(1_000);
    assert_eq!(bed.drain(&mut here), [(SUCCESS, 1999)]);
}
