//! Forged packets that a device accepts or drops, and numbers that an attacker must not be able to
//! predict.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::time::{Duration, Instant};

use crate::common::{Arena, End, Remote, Shape, gid, open, pair_on, recv, send, wait_ok};
use provider_soft::{Soft, SoftDevice};
use roce::wire::icrc::{Flow, Icrc, compute};
use roce::wire::{Headers, ICRC_LEN, Opcode, Psn, UDP_PORT, bth};
use verbs::provider::NamedProvider;
use verbs::{Context, QpCap, SendOp};

const PATIENCE: Duration = Duration::from_secs(20);

fn address(context: &Context<Soft>) -> IpAddr {
    Ipv6Addr::from(gid(context).0).to_canonical()
}

/// Sends an 8-byte message of 0xee to a queue pair, from the peer's address but not from the peer's
/// UDP port.
fn forge(from: IpAddr, to: IpAddr, remote: Remote) {
    let socket = UdpSocket::bind((from, 0)).unwrap();
    let flow = Flow { src: from, dst: to, src_port: socket.local_addr().unwrap().port(), dst_port: UDP_PORT };
    assert_ne!(flow.src_port, UDP_PORT);
    let headers = Headers::new(bth::Repr::new(Opcode::RC_SEND_ONLY, remote.qp_num, Psn::new(remote.psn)));
    let mut packet = vec![0; headers.len()];
    headers.emit(&mut packet);
    packet.extend([0xee; 8]);
    let crc = compute(Icrc::new(flow).seed(0, true, packet.len() + ICRC_LEN), &packet);
    packet.extend(crc.to_le_bytes());
    assert_eq!(socket.send_to(&packet, (to, UDP_PORT)).unwrap(), packet.len());
}

#[test]
fn a_forged_message_from_another_port_is_accepted_unless_ports_are_strict() {
    for strict in [false, true] {
        let device = SoftDevice::builder().strict_ports(strict).auto().unwrap();
        let (victim, peer) = (Context::from_raw(Soft::open(&device).unwrap()), open());
        let (mut a, mut b) = pair_on(&victim, &peer, &Shape::default());
        let (into, from) = (Arena::new(&a.pd, 24), Arena::new(&b.pd, 8));
        for n in 0..3 {
            recv(&mut a.qp, n, &[into.sge(n as usize * 8..n as usize * 8 + 8)]);
        }
        send(&mut b.qp, 10, SendOp::Send, &[from.sge(0..8)]);
        wait_ok(&mut a.cq, 0);
        wait_ok(&mut b.cq, 10);
        assert_eq!(victim.raw().counters().unexpected_port, 0);
        // The attacker knows both numbers of the connection.
        let remote = Remote { qp_num: a.qp.qp_num(), psn: b.qp.psn() + 1 };
        forge(address(&peer), address(&victim), remote);
        if !strict {
            wait_ok(&mut a.cq, 1);
            assert_eq!(into.read(8..16), [0xee; 8]);
            continue;
        }
        let deadline = Instant::now() + PATIENCE;
        while victim.raw().counters().unexpected_port == 0 {
            assert!(a.cq.poll().next().is_none(), "a forged message completed a receive");
            assert!(Instant::now() < deadline, "{:?}", victim.raw().counters());
        }
        send(&mut b.qp, 11, SendOp::Send, &[from.sge(0..8)]);
        wait_ok(&mut a.cq, 1);
        wait_ok(&mut b.cq, 11);
        assert_eq!(into.read(8..16), [0; 8], "the peer's message took the receive");
        assert_eq!(victim.raw().counters().unexpected_port, 1);
    }
}

#[test]
fn queue_pairs_of_a_full_device_have_different_numbers_and_are_all_reachable() {
    let context = open();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(&verbs::CqInit::new(4)).unwrap();
    let cap = QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let init = verbs::QpInit { cap, ..verbs::QpInit::new(verbs::QpType::RC, &cq) };
    let max = context.query_device().unwrap().max_qp as usize;
    // Two more queue pairs are created at the end, with queues for traffic.
    let others: Vec<_> = (2..max).map(|_| pd.create_qp(&init).unwrap()).collect();
    let (mut a, mut b) = pair_on(&context, &context, &Shape::default());
    assert!(pd.create_qp(&init).is_err(), "one more than max_qp");
    let numbers: BTreeSet<u32> =
        others.iter().map(|qp| qp.qp_num()).chain([a.qp.qp_num(), b.qp.qp_num()]).collect();
    assert_eq!(numbers.len(), max);
    let arena = Arena::new(&a.pd, 8);
    let into = Arena::new(&b.pd, 8);
    for n in 0..10 {
        recv(&mut b.qp, n, &[into.sge(0..8)]);
        send(&mut a.qp, n, SendOp::Send, &[arena.sge(0..8)]);
        wait_ok(&mut a.cq, n);
        wait_ok(&mut b.cq, n);
    }
    drop(others);
    assert!(pd.create_qp(&init).is_ok());
}

#[test]
fn numbers_of_a_device_do_not_follow_from_each_other() {
    const MADE: usize = 64;
    let context = open();
    let ends: Vec<_> = (0..MADE).map(|_| End::new(&context, &Shape::default())).collect();
    let pd = context.alloc_pd().unwrap();
    let keys: Vec<u32> = (0..MADE).map(|_| Arena::new(&pd, 8).rkey()).collect();
    let qpns: Vec<u32> = ends.iter().map(|end| end.qp.qp_num()).collect();
    let psns: Vec<u32> = ends.iter().map(|end| end.qp.psn()).collect();
    let variants: Vec<u32> = keys.iter().map(|key| key & 0xff).collect();
    let follows = variants.windows(2).filter(|two| two[1].wrapping_sub(two[0]) & 0xff == 1).count();
    // For random 8-bit values, on average 0.25 of the 63 steps are 1, and 57 of the 64 values are
    // distinct.
    assert!(follows < 10 && variants.iter().collect::<BTreeSet<_>>().len() > 40, "{variants:x?}");
    // The upper 8 bits of a queue pair number belong to the process (decision 0042).
    let places = keys.iter().map(|key| key >> 8).collect();
    for (numbers, drawn) in [(qpns, 0xffff), (psns, 0xff_ffff), (places, 0xff_ffff)] {
        let steps: BTreeSet<u32> =
            numbers.windows(2).map(|two| two[1].wrapping_sub(two[0]) & 0xff_ffff).collect();
        // For random 24-bit values, two of the 63 steps are equal with a probability of 1 in 8,600.
        assert!(steps.len() >= MADE - 3, "{numbers:x?}");
        let (or, and) = numbers.iter().fold((0, u32::MAX), |(or, and), n| (or | n, and & n));
        assert_eq!((or & drawn, and & drawn), (drawn, 0), "a bit that never changes");
    }
}
