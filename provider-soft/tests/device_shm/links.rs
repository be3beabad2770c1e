//! Tests of which packets travel through memory, and of the events after which they use UDP.

use provider_soft::{CheckedMemory, Counters, Soft, SoftDevice};
use verbs::{AccessFlags, Context, Dm, DmAttr, Mr, Mtu, NamedProvider, QpType, RtsAttr, SendOp, UdAddr};

use crate::common::*;

fn counters(context: &Context<Soft>) -> Counters {
    context.raw().counters()
}

/// Sends `count` messages in both directions and checks their data.
fn exchange(a: &mut End, b: &mut End, count: u64) {
    let (left, right) = (Arena::new(&a.pd, 10_000), Arena::new(&b.pd, 10_000));
    for n in 0..count {
        transfer((a, &left), (b, &right), n);
        transfer((b, &right), (a, &left), n);
    }
}

/// Sends a message from the first half of an arena to the second half of another.
fn transfer(sender: (&mut End, &Arena), receiver: (&mut End, &Arena), n: u64) {
    let ((sender, from), (receiver, into)) = (sender, receiver);
    let data = pattern(n as usize, 5000);
    from.write(0, &data);
    recv(&mut receiver.qp, n, &[into.sge(5000..10_000)]);
    send(&mut sender.qp, n, SendOp::Send, &[from.sge(0..5000)]);
    wait_ok(&mut receiver.cq, n);
    wait_ok(&mut sender.cq, n);
    assert!(into.read(5000..10_000) == data, "message {n}");
}

#[test]
fn packets_of_connected_queue_pairs_travel_through_memory_from_the_first_on() {
    for qp_type in [QpType::RC, QpType::UC] {
        let (mut a, mut b) = pair(&Shape::for_type(qp_type));
        exchange(&mut a, &mut b, 50);
        for context in [&a.context, &b.context] {
            let counters = counters(context);
            assert_eq!((counters.sent, counters.received), (0, 0), "{qp_type:?} {counters:?}");
            // A message is one packet although the path MTU is 1024 bytes. The other packets are
            // acknowledgements.
            let most = if qp_type == QpType::RC { 100 } else { 50 };
            assert!((50..=most).contains(&counters.shm_sent), "{counters:?}");
            assert!((50..=most).contains(&counters.shm_received), "{counters:?}");
            assert!(counters.shm_sent_bytes > 50 * 5000, "{counters:?}");
        }
        assert_eq!(counters(&a.context).shm_sent, counters(&b.context).shm_received);
    }
}

/// Tests sizes around multiples of the longest packet with all operations that need several
/// packets.
#[test]
fn long_messages_are_packets_of_16_kib_whatever_the_path_mtu() {
    const LONG: usize = 16 << 10;
    for path_mtu in [Mtu::MTU_256, Mtu::MTU_4096] {
        // No timeout, because a retransmitted packet would be counted twice.
        let rts = RtsAttr { timeout: 0, ..Shape::default().rts };
        let (mut a, mut b) = pair(&Shape { path_mtu, rts, ..Shape::default() });
        let (from, into) = (Arena::new(&a.pd, 4 * LONG), Arena::new(&b.pd, 4 * LONG));
        let (remote_addr, rkey) = (into.addr(), into.rkey());
        let mut n = 0;
        for len in [LONG - 1, LONG, LONG + 1, 2 * LONG, 3 * LONG + 7] {
            for op in [
                SendOp::Send,
                SendOp::RdmaWrite { remote_addr, rkey },
                SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data: 5 },
                SendOp::RdmaRead { remote_addr, rkey },
            ] {
                let (data, is_read) = (pattern(n as usize, len), matches!(op, SendOp::RdmaRead { .. }));
                let takes_recv = matches!(op, SendOp::Send | SendOp::RdmaWriteWithImm { .. });
                let (full, empty) = if is_read { (&into, &from) } else { (&from, &into) };
                full.write(0, &data);
                empty.write(0, &vec![0; len]);
                if takes_recv {
                    recv(&mut b.qp, n, &[into.sge(0..len)]);
                }
                let before = [counters(&a.context), counters(&b.context)];
                send(&mut a.qp, n, op, &[from.sge(0..len)]);
                wait_ok(&mut a.cq, n);
                if takes_recv {
                    wait_ok(&mut b.cq, n);
                }
                assert!(empty.read(0..len) == data, "{op:?} of {len} bytes");
                let sender = usize::from(is_read);
                let sent = counters(&[&a, &b][sender].context).shm_sent - before[sender].shm_sent;
                assert_eq!(sent, len.div_ceil(LONG) as u64, "{op:?} of {len} bytes");
                n += 1;
            }
        }
    }
}

/// A function that registers a receive buffer in one kind of memory.
type Make<'a> = &'a dyn Fn(&End) -> Target;

/// A receive buffer, by kind of memory.
enum Target {
    Arena(Arena),
    Device(Dm<Soft>, Mr<Soft>),
}

impl Target {
    fn write(&self, bytes: &[u8]) {
        match self {
            Self::Arena(arena) => arena.write(0, bytes),
            Self::Device(dm, _) => dm.copy_to(0, bytes).unwrap(),
        }
    }

    fn read(&self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0xaa; len];
        match self {
            Self::Arena(arena) => return arena.read(0..len),
            Self::Device(dm, _) => dm.copy_from(0, &mut bytes).unwrap(),
        }
        bytes
    }

    fn mr(&self) -> &Mr<Soft> {
        let (Self::Arena(Arena { mr, .. }) | Self::Device(_, mr)) = self;
        mr
    }
}

#[test]
fn a_message_of_any_length_at_any_offset_changes_no_other_byte_of_any_kind_of_memory() {
    const LEN: usize = 3000;
    let checked = || {
        let device = SoftDevice::builder().checked_memory(CheckedMemory::All).auto().unwrap();
        Context::from_raw(Soft::open(&device).unwrap())
    };
    let own = AccessFlags::LOCAL_WRITE;
    let all = own | REMOTE;
    let arena = |access| move |end: &End| Target::Arena(Arena::with_access(&end.pd, LEN, access));
    let device = |end: &End| {
        let dm = end.context.alloc_dm(&DmAttr { length: LEN as u64, log_align: 0 }).unwrap();
        let mr = end.pd.reg_dm_mr(&dm, 0, LEN, all).unwrap();
        Target::Device(dm, mr)
    };
    let kinds: [(Context<Soft>, Make<'_>); 5] = [
        (open(), &arena(own)),
        (open(), &arena(all)),
        (open(), &arena(all | AccessFlags::ON_DEMAND)),
        (checked(), &arena(all)),
        (open(), &device),
    ];
    for (kind, (context, target)) in kinds.iter().enumerate() {
        let (mut a, mut b) = pair_on(&open(), context, &Shape::default());
        let (from, target) = (Arena::new(&a.pd, LEN + 16), target(&b));
        let mut n = 0;
        for (len, offset) in
            [1, 60, 100, 255, 1024, 2600].into_iter().flat_map(|len| (0..17).map(move |at| (len, at)))
        {
            let (sent, place) = (pattern(n, len), offset..offset + len);
            let source = 8 + n % 8..8 + n % 8 + len;
            from.write(source.start, &sent);
            target.write(&[0x55; LEN]);
            let wr_id = n as u64;
            let sge = [target.mr().sge(place.clone())];
            let (remote_addr, rkey) = (target.mr().addr() + offset as u64, target.mr().rkey());
            let op = match n % 4 {
                0 => Some(SendOp::Send),
                1 => Some(SendOp::SendWithImm { imm_data: 7 }),
                2 if kind > 0 => Some(SendOp::RdmaWrite { remote_addr, rkey }),
                _ => None,
            };
            if let Some(op) = op {
                let is_send = n % 4 < 2;
                if is_send {
                    recv(&mut b.qp, wr_id, &sge);
                }
                send(&mut a.qp, wr_id, op, &[from.sge(source)]);
                wait_ok(&mut a.cq, wr_id);
                if is_send {
                    wait_ok(&mut b.cq, wr_id);
                }
            } else {
                let op =
                    SendOp::RdmaRead { remote_addr: from.addr() + source.start as u64, rkey: from.rkey() };
                send(&mut b.qp, wr_id, op, &sge);
                wait_ok(&mut b.cq, wr_id);
            }
            let mut expected = vec![0x55; LEN];
            expected[place].copy_from_slice(&sent);
            assert!(target.read(LEN) == expected, "{len} bytes at {offset} of memory {kind}, message {n}");
            n += 1;
        }
        assert_eq!(counters(context).received, 0);
        assert!(counters(context).shm_received >= n as u64);
    }
}

#[test]
fn packets_of_a_device_to_itself_travel_through_memory_while_a_program_polls_and_while_it_sleeps() {
    for events in [false, true] {
        let device = open();
        let (mut a, mut b) = pair_on(&device, &device, &Shape { events, ..Shape::default() });
        exchange(&mut a, &mut b, 50);
        let (from, into) = (Arena::new(&a.pd, 8), Arena::new(&b.pd, 8));
        for n in 0..if events { 50 } else { 0 } {
            b.cq.req_notify(false).unwrap();
            recv(&mut b.qp, n, &[into.sge(0..8)]);
            send(&mut a.qp, n, SendOp::Send, &[from.sge(0..8)]);
            b.channel.as_ref().unwrap().next_event().unwrap();
            wait_ok(&mut b.cq, n);
            wait_ok(&mut a.cq, n);
        }
        let counters = counters(&device);
        assert_eq!((counters.sent, counters.received), (0, 0), "{counters:?}");
        assert_eq!(counters.shm_sent, counters.shm_received);
        assert!(counters.shm_sent >= 200);
    }
}

#[test]
fn without_the_setting_on_either_side_packets_use_udp() {
    let alone = || {
        let device = SoftDevice::builder().shared_memory(false).auto().unwrap();
        Context::from_raw(Soft::open(&device).unwrap())
    };
    for (left, right) in [(open(), alone()), (alone(), open()), (alone(), alone())] {
        let (mut a, mut b) = pair_on(&left, &right, &Shape::default());
        exchange(&mut a, &mut b, 5);
        for context in [&left, &right] {
            let counters = counters(context);
            assert_eq!((counters.shm_sent, counters.shm_received), (0, 0), "{counters:?}");
            assert!(counters.sent > 0);
        }
    }
}

#[test]
fn datagrams_begin_on_udp_and_stay_in_order_when_they_change_to_memory() {
    const LEN: usize = 100;
    let (left, right, shape) = (open(), open(), Shape::for_type(QpType::UD));
    let connect = |context| End::new(context, &shape).connect(&shape, gid(context), NO_PEER);
    let (mut a, mut b) = (connect(&left), connect(&right));
    let (from, into) = (Arena::new(&a.pd, LEN), Arena::new(&b.pd, LEN + 40));
    let ah = a.pd.create_ah(&path(gid(&right))).unwrap();
    let to = UdAddr { av: ah.av(), remote_qpn: b.qp.qp_num(), remote_qkey: QKEY };
    let mut number = 0;
    eventually("a datagram travels through memory", || {
        from.write(0, &pattern(number, LEN));
        recv(&mut b.qp, number as u64, &[into.sge(0..LEN + 40)]);
        send(&mut a.qp, number as u64, SendOp::UdSend { to }, &[from.sge(0..LEN)]);
        wait_ok(&mut b.cq, number as u64);
        wait_ok(&mut a.cq, number as u64);
        assert!(into.read(40..LEN + 40) == pattern(number, LEN), "datagram {number}");
        number += 1;
        counters(&left).shm_sent > 0
    });
    let (sender, receiver) = (counters(&left), counters(&right));
    assert_eq!(sender.sent + sender.shm_sent, number as u64);
    assert!(sender.sent > 0 && receiver.shm_received > 0);
}

#[test]
fn a_device_that_ends_and_begins_again_at_its_address_is_met_again() {
    let left = open();
    let address = own_address(40);
    for _ in 0..3 {
        let device = SoftDevice::bind(address).unwrap();
        let right = Context::from_raw(Soft::open(&device).unwrap());
        drop(device);
        let (mut a, mut b) = pair_on(&left, &right, &Shape::default());
        exchange(&mut a, &mut b, 3);
        let counters = counters(&right);
        assert_eq!((counters.sent, counters.received), (0, 0), "{counters:?}");
    }
    assert_eq!(counters(&left).sent, 0);
}

#[test]
fn a_capture_has_packets_of_memory_with_the_icrc_of_datagrams() {
    use roce::wire::icrc::{Flow, Icrc, Verdict};

    let file = std::env::temp_dir().join(format!("verbs-shm-{}.pcap", std::process::id()));
    let _ = std::fs::remove_file(&file);
    let device = SoftDevice::builder().capture(&file).auto().unwrap();
    let left = Context::from_raw(Soft::open(&device).unwrap());
    let (mut a, mut b) = pair_on(&left, &open(), &Shape::default());
    exchange(&mut a, &mut b, 2);
    let counters = counters(&left);
    let bytes = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let (mut rest, mut directions) = (&bytes[24..], [0, 0]);
    while !rest.is_empty() {
        let len = u32::from_ne_bytes(rest[8..12].try_into().unwrap()) as usize;
        let ip = &rest[16 + 20..16 + len];
        let [src, dst] = [12, 16].map(|at| <[u8; 4]>::try_from(&ip[at..at + 4]).unwrap().into());
        let icrc = Icrc::new(Flow { src, dst, src_port: 4791, dst_port: 4791 });
        assert!(matches!(icrc.check(&ip[28..], 0), Verdict::Exact), "{ip:?}");
        directions[usize::from(rest[16 + 10] == 4)] += 1;
        rest = &rest[16 + len..];
    }
    assert_eq!((counters.sent, counters.received), (0, 0));
    assert_eq!(directions, [counters.shm_received, counters.shm_sent]);
}

#[test]
fn faults_are_injected_into_packets_of_memory() {
    let faults = "loss=5%,duplicate=5%,reorder=5%,corrupt=5%,jitter=10us,seed=7".parse().unwrap();
    let device = SoftDevice::builder().faults(faults).auto().unwrap();
    let left = Context::from_raw(Soft::open(&device).unwrap());
    let rts = RtsAttr { timeout: 8, ..Shape::default().rts };
    let (mut a, mut b) = pair_on(&left, &open(), &Shape { rts, ..Shape::default() });
    exchange(&mut a, &mut b, 50);
    let counters = counters(&left);
    assert_eq!(counters.sent, 0);
    let injected = [counters.injected_losses, counters.injected_duplicates, counters.injected_corruptions];
    assert!(injected.iter().all(|count| *count > 0), "{counters:?}");
}
