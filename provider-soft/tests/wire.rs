//! Tests of faults injected into the packets that a device sends, and of packet capture files.
#![allow(missing_docs)]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use common::*;
use provider_soft::{Soft, SoftBuilder, SoftDevice};
use verbs::{
    Cause, Context, Errno, NamedProvider, QpCap, QpType, RtsAttr, SendOp, SkipReason, UdAddr, WcStatus,
};

/// Whether packets between devices opened by [`common::open`] travel through memory.
const SHARED_MEMORY: bool = false;

fn open_with(set: impl FnOnce(SoftBuilder) -> SoftBuilder) -> Context<Soft> {
    Context::from_raw(
        Soft::open(&set(SoftDevice::builder().shared_memory(SHARED_MEMORY)).auto().unwrap()).unwrap(),
    )
}

fn open_with_faults(faults: &str) -> Context<Soft> {
    let faults = faults.parse().unwrap();
    open_with(|builder| builder.faults(faults))
}

#[test]
fn a_reliable_connection_survives_every_kind_of_fault() {
    const MESSAGES: usize = 200;
    const LEN: usize = 3000;
    let faults = "loss=5%,duplicate=5%,reorder=5%,corrupt=5%,jitter=10us,rate=10gbit,seed=7";
    let (left, right) = (open_with_faults(faults), open_with_faults(faults));
    // Timeout code 8 stands for about one millisecond.
    let rts = RtsAttr { timeout: 8, ..Shape::default().rts };
    let cap = QpCap { max_send_wr: MESSAGES as u32, ..Shape::default().cap };
    let (mut a, b) = pair_on(&left, &right, &Shape { rts, cap, cqe: 256, ..Shape::default() });
    let (from, into) = (Arena::new(&a.pd, MESSAGES * LEN), Arena::new(&b.pd, MESSAGES * LEN));
    from.write(0, &pattern(3, MESSAGES * LEN));
    for message in 0..MESSAGES {
        let at = message * LEN;
        let op = SendOp::RdmaWrite { remote_addr: into.addr() + at as u64, rkey: into.rkey() };
        send(&mut a.qp, message as u64, op, &[from.sge(at..at + LEN)]);
    }
    for (message, wc) in wait(&mut a.cq, MESSAGES).iter().enumerate() {
        assert_eq!((wc.wr_id, wc.status), (message as u64, WcStatus::SUCCESS));
    }
    assert!(into.read(0..MESSAGES * LEN) == pattern(3, MESSAGES * LEN), "the data differ");
    let (sender, receiver) = (left.raw().counters(), right.raw().counters());
    let injected = [
        sender.injected_losses,
        sender.injected_duplicates,
        sender.injected_corruptions,
        sender.injected_delays,
    ];
    assert!(injected.iter().all(|count| *count > 0), "{sender:?}");
    assert!(receiver.injected_losses + receiver.injected_corruptions > 0, "{receiver:?}");
    // The ICRC does not cover some bits, which switches may change.
    assert!(receiver.bad_icrc > 0 && receiver.bad_icrc <= sender.injected_corruptions, "{receiver:?}");
}

#[test]
fn lost_datagrams_are_those_that_do_not_arrive() {
    const COUNT: u64 = 200;
    let (left, right) = (open_with_faults("loss=30%,seed=1"), open());
    let shape = Shape::for_type(QpType::UD);
    let connect = |context| End::new(context, &shape).connect(&shape, gid(context), NO_PEER);
    let (mut a, mut b) = (connect(&left), connect(&right));
    let from = Arena::new(&a.pd, 8);
    let ah = a.pd.create_ah(&path(gid(&right))).unwrap();
    let to = UdAddr { av: ah.av(), remote_qpn: b.qp.qp_num(), remote_qkey: QKEY };
    for wr_id in 0..COUNT {
        send(&mut a.qp, wr_id, SendOp::UdSend { to }, &[from.sge(0..8)]);
        wait_ok(&mut a.cq, wr_id);
    }
    let sender = left.raw().counters();
    assert_eq!(sender.sent + sender.injected_losses, COUNT);
    assert!((30..=90).contains(&sender.injected_losses), "{sender:?}");
    // Without a receive, arriving datagrams are dropped and counted.
    eventually("the others arrive", || {
        assert!(b.cq.poll().next().is_none());
        right.raw().counters().received == sender.sent
    });
}

#[test]
fn a_delayed_message_wakes_a_program_that_sleeps() {
    let delay = Duration::from_millis(20);
    let (left, right) = (open_with_faults("delay=20ms"), open());
    let (mut a, mut b) = pair_on(&left, &right, &Shape { events: true, ..Shape::default() });
    let (from, into) = (Arena::new(&a.pd, 8), Arena::new(&b.pd, 8));
    recv(&mut b.qp, 1, &[into.sge(0..8)]);
    let posted = Instant::now();
    send(&mut a.qp, 2, SendOp::Send, &[from.sge(0..8)]);
    let received = b.cq.poll_within(PATIENCE).unwrap();
    assert_eq!((received.wr_id, received.status), (1, WcStatus::SUCCESS));
    assert!(posted.elapsed() >= delay, "{:?}", posted.elapsed());
    let sent = a.cq.poll_within(PATIENCE).unwrap();
    assert_eq!((sent.wr_id, sent.status), (2, WcStatus::SUCCESS));
    assert_eq!(left.raw().counters().injected_delays, left.raw().counters().sent);
}

/// A captured packet: whether it was sent, its source and destination addresses, and its bytes from
/// BTH to ICRC.
type Packet = (bool, [[u8; 4]; 2], Vec<u8>);

/// Parses the IPv4 packets in the bytes of a capture file.
fn parse(bytes: &[u8]) -> Vec<Packet> {
    let mut packets = Vec::new();
    let mut rest = &bytes[24..];
    while !rest.is_empty() {
        let len = u32::from_ne_bytes(rest[8..12].try_into().unwrap()) as usize;
        let (link, ip) = rest[16..16 + len].split_at(20);
        assert_eq!((&link[..2], ip[0], ip[9]), (&[8, 0][..], 0x45, 17));
        assert_eq!((usize::from(ip[2]) << 8 | usize::from(ip[3])) + 20, len);
        let addresses = [&ip[12..16], &ip[16..20]].map(|bytes| bytes.try_into().unwrap());
        packets.push((link[10] == 4, addresses, ip[28..].to_vec()));
        rest = &rest[16 + len..];
    }
    packets
}

#[test]
fn a_capture_has_every_packet_with_its_addresses() {
    let path = std::env::temp_dir().join(format!("verbs-wire-{}.pcap", std::process::id()));
    let _ = fs::remove_file(&path);
    let [left, right] = [(); 2].map(|()| open_with(|builder| builder.capture(&path)));
    let (mut a, mut b) = pair_on(&left, &right, &Shape::default());
    let (from, into) = (Arena::new(&a.pd, 20_000), Arena::new(&b.pd, 20_000));
    from.write(0, &pattern(1, 20_000));
    let op = SendOp::RdmaWrite { remote_addr: into.addr(), rkey: into.rkey() };
    send(&mut a.qp, 1, op, &[from.sge(0..20_000)]);
    wait_ok(&mut a.cq, 1);
    let addresses = [&left, &right].map(|context| gid(context).to_ipv4().unwrap().octets());
    let counters = || [&left, &right].map(|context| context.raw().counters());
    eventually("all packets are received", || {
        assert!(b.cq.poll().next().is_none() && a.cq.poll().next().is_none());
        counters().iter().map(|counters| counters.sent).sum::<u64>()
            == counters().iter().map(|counters| counters.received).sum::<u64>()
    });
    let packets = parse(&fs::read(&path).unwrap());
    fs::remove_file(&path).unwrap();
    let count = |sent, from| {
        packets.iter().filter(|(is_sent, [source, _], _)| (*is_sent, *source) == (sent, from)).count() as u64
    };
    for (at, counters) in counters().iter().enumerate() {
        let (own, peer) = (addresses[at], addresses[1 - at]);
        assert_eq!((count(true, own), count(false, peer)), (counters.sent, counters.received));
    }
    let mut sent = BTreeMap::new();
    for (is_sent, addresses, bytes) in &packets {
        assert_ne!(addresses[0], addresses[1]);
        *sent.entry((addresses, bytes)).or_insert(0) += if *is_sent { 1 } else { -1 };
    }
    assert!(sent.values().all(|count| *count == 0), "each packet was sent and received");
    assert!(packets.iter().any(|(_, _, bytes)| bytes.windows(500).any(|part| part == &pattern(1, 500)[..])));
}

#[test]
fn a_file_that_is_no_capture_is_kept_and_named() {
    let error = SoftDevice::builder().capture("/proc/version").auto().unwrap_err();
    assert!(matches!(error.errno, Errno::ACCESS | Errno::EXIST | Errno::IO), "{error}");
    assert!(error.to_string().contains("/proc/version"), "{error}");
    let Cause::LeftOut { reason } = &error.cause else { panic!("{error:?}") };
    assert!(matches!(**reason, SkipReason::Capture { .. }) && reason.was_asked_for(), "{error:?}");
}
