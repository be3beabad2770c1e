//! Tests every operation of every service, between two devices in one process and within one
//! device.

use crate::common::{
    Arena, End, NO_PEER, PATIENCE, QKEY, Shape, eventually, gid, open, pair, pair_on, path, pattern,
    post_recv, post_send, recv, send, wait, wait_ok,
};
use verbs::state::{Rts, Sqd};
use verbs::{
    Mtu, QpAttr, QpAttrMask, QpCap, QpType, RecvWr, SendFlags, SendOp, SendWr, UdAddr, WcFlags, WcOpcode,
};

#[test]
fn a_message_arrives_within_one_device() {
    let device = open();
    let (mut a, mut b) = pair_on(&device, &device, &Shape::default());
    let arena = Arena::new(&a.pd, 64);
    let into = Arena::new(&b.pd, 64);
    arena.write(0, b"hello");
    recv(&mut b.qp, 2, &[into.sge(0..64)]);
    send(&mut a.qp, 1, SendOp::Send, &[arena.sge(0..5)]);
    let sent = wait_ok(&mut a.cq, 1);
    let received = wait_ok(&mut b.cq, 2);
    assert_eq!((sent.opcode, sent.qp_num), (WcOpcode::SEND, a.qp.qp_num()));
    assert_eq!((received.opcode, received.byte_len, received.qp_num), (WcOpcode::RECV, 5, b.qp.qp_num()));
    assert_eq!(into.read(0..6), b"hello\0");
}

#[test]
fn messages_of_all_sizes_arrive_by_every_path_mtu() {
    for path_mtu in [Mtu::MTU_256, Mtu::MTU_1024, Mtu::MTU_4096] {
        let (mut a, mut b) = pair(&Shape { path_mtu, ..Shape::default() });
        const MAX: usize = 1 << 20;
        let (from, into) = (Arena::new(&a.pd, MAX), Arena::new(&b.pd, MAX));
        for (n, len) in [0, 1, 3, 255, 256, 257, 4095, 4096, 4097, 65536, 70001, MAX].into_iter().enumerate()
        {
            let data = pattern(n, len);
            from.write(0, &data);
            recv(&mut b.qp, n as u64, &[into.sge(0..MAX)]);
            send(&mut a.qp, n as u64, SendOp::Send, &[from.sge(0..len)]);
            assert_eq!(wait_ok(&mut b.cq, n as u64).byte_len as usize, len);
            wait_ok(&mut a.cq, n as u64);
            assert!(into.read(0..len) == data, "{len} bytes by {path_mtu}");
        }
    }
}

#[test]
fn lists_are_gathered_and_scattered() {
    let (mut a, mut b) = pair(&Shape::default());
    let (from, into) = (Arena::new(&a.pd, 9000), Arena::new(&b.pd, 9000));
    from.write(0, &pattern(1, 9000));
    recv(&mut b.qp, 2, &[into.sge(8000..8001), into.sge(0..3000), into.sge(4000..7000)]);
    send(
        &mut a.qp,
        1,
        SendOp::Send,
        &[from.sge(0..1000), from.sge(2000..2001), from.sge(3000..6000), from.sge(0..0)],
    );
    assert_eq!(wait_ok(&mut b.cq, 2).byte_len, 4001);
    wait_ok(&mut a.cq, 1);
    let data = pattern(1, 9000);
    let sent = [&data[..1000], &data[2000..2001], &data[3000..6000]].concat();
    let received = [into.read(8000..8001), into.read(0..3000), into.read(4000..5000)].concat();
    assert!(received == sent);
}

#[test]
fn immediate_data_and_inline_data_arrive() {
    for qp_type in [QpType::RC, QpType::UC] {
        let (mut a, mut b) = pair(&Shape::for_type(qp_type));
        let into = Arena::new(&b.pd, 128);
        let text = b"inline data is copied when it is posted";
        for (n, op) in [
            SendOp::SendWithImm { imm_data: 0x0102_0304 },
            SendOp::RdmaWriteWithImm {
                remote_addr: into.addr() + 64,
                rkey: into.rkey(),
                imm_data: 0x0102_0304,
            },
        ]
        .into_iter()
        .enumerate()
        {
            recv(&mut b.qp, 2, &[into.sge(0..64)]);
            a.qp.post_send_inline(1, op, SendFlags::SIGNALED, text).unwrap();
            wait_ok(&mut a.cq, 1);
            let wc = wait_ok(&mut b.cq, 2);
            assert_eq!((wc.wc_flags, wc.imm_data), (WcFlags::WITH_IMM, 0x0102_0304));
            assert_eq!(wc.byte_len as usize, text.len());
            assert_eq!(wc.opcode, [WcOpcode::RECV, WcOpcode::RECV_RDMA_WITH_IMM][n]);
            assert_eq!(into.read(n * 64..n * 64 + text.len()), text, "{qp_type}");
        }
    }
}

#[test]
fn inline_data_arrives_as_it_was_when_it_was_posted() {
    for qp_type in [QpType::RC, QpType::UC] {
        let shape = Shape::for_type(qp_type);
        let (a, mut b) = pair(&shape);
        let (from, into) = (Arena::new(&a.pd, 64), Arena::new(&b.pd, 128));
        let End { qp, mut cq, .. } = a;
        let (listed, mut lent) = (pattern(1, 39), pattern(2, 39));
        let sent = [listed.clone(), lent.clone()];
        from.write(0, &listed);
        // Nothing is sent while the queue is drained, so a device that does not copy inline data
        // would send the bytes written later.
        let mut qp = qp.modify_to::<Sqd>(&QpAttr::default(), QpAttrMask::empty()).unwrap();
        let flags = SendFlags::SIGNALED | SendFlags::INLINE;
        let sge = [from.sge(0..20), from.sge(20..39)];
        post_send(&mut qp, &[SendWr { wr_id: 1, op: SendOp::Send, sge: &sge, flags }]).unwrap();
        qp.post_send_inline(2, SendOp::Send, SendFlags::SIGNALED, &lent).unwrap();
        from.write(0, &[0xee; 64]);
        lent.fill(0xee);
        recv(&mut b.qp, 1, &[into.sge(0..64)]);
        recv(&mut b.qp, 2, &[into.sge(64..128)]);
        let _qp = qp.modify_to::<Rts>(&QpAttr::default(), QpAttrMask::empty()).unwrap();
        for (n, sent) in sent.iter().enumerate() {
            wait_ok(&mut cq, n as u64 + 1);
            assert_eq!(wait_ok(&mut b.cq, n as u64 + 1).byte_len, 39);
            assert_eq!(&into.read(n * 64..n * 64 + 39), sent, "{qp_type}");
        }
    }
}

#[test]
fn writes_reads_and_atomics_reach_the_peers_memory() {
    let (mut a, mut b) = pair(&Shape::default());
    let (local, remote) = (Arena::new(&a.pd, 20000), Arena::new(&b.pd, 20000));
    let (remote_addr, rkey) = (remote.addr(), remote.rkey());
    let data = pattern(3, 10000);
    local.write(0, &data);
    send(&mut a.qp, 1, SendOp::RdmaWrite { remote_addr: remote_addr + 1, rkey }, &[local.sge(0..10000)]);
    assert_eq!(wait_ok(&mut a.cq, 1).opcode, WcOpcode::RDMA_WRITE);
    assert!(remote.read(1..10001) == data);
    send(&mut a.qp, 2, SendOp::RdmaRead { remote_addr: remote_addr + 1, rkey }, &[local.sge(10000..20000)]);
    let wc = wait_ok(&mut a.cq, 2);
    assert_eq!((wc.opcode, wc.byte_len), (WcOpcode::RDMA_READ, 10000));
    assert!(local.read(10000..20000) == data);

    let before = remote.number(8);
    let at = remote_addr + 8;
    send(&mut a.qp, 3, SendOp::AtomicFetchAndAdd { remote_addr: at, rkey, add: 5 }, &[local.sge(0..8)]);
    assert_eq!(wait_ok(&mut a.cq, 3).opcode, WcOpcode::FETCH_ADD);
    assert_eq!((local.number(0), remote.number(8)), (before, before.wrapping_add(5)));
    for (compare, stays) in [(1, true), (before.wrapping_add(5), false)] {
        let op = SendOp::AtomicCmpAndSwp { remote_addr: at, rkey, compare, swap: 99 };
        send(&mut a.qp, 4, op, &[local.sge(0..8)]);
        let wc = wait_ok(&mut a.cq, 4);
        assert_eq!((wc.opcode, wc.byte_len), (WcOpcode::COMP_SWAP, 8));
        assert_eq!(local.number(0), before.wrapping_add(5));
        assert_eq!(remote.number(8) != 99, stays);
    }
    assert!(b.cq.poll().next().is_none(), "the peer's program is not told");
}

#[test]
fn datagrams_carry_their_sender_and_a_grh() {
    let (contexts, shape) = ([open(), open()], Shape::for_type(QpType::UD));
    let [mut a, mut b] =
        contexts.each_ref().map(|context| End::new(context, &shape).connect(&shape, gid(context), NO_PEER));
    let (from, into) = (Arena::new(&a.pd, 2000), Arena::new(&b.pd, 2000));
    from.write(0, &pattern(5, 1000));
    recv(&mut b.qp, 2, &[into.sge(0..2000)]);
    let ah = a.pd.create_ah(&path(gid(&contexts[1]))).unwrap();
    let to = UdAddr { av: ah.av(), remote_qpn: b.qp.qp_num(), remote_qkey: QKEY };
    let op = SendOp::UdSendWithImm { to, imm_data: 7 };
    send(&mut a.qp, 1, op, &[from.sge(0..1000)]);
    wait_ok(&mut a.cq, 1);
    let wc = wait_ok(&mut b.cq, 2);
    assert_eq!((wc.byte_len, wc.src_qp, wc.imm_data), (1040, a.qp.qp_num(), 7));
    assert_eq!(wc.wc_flags, WcFlags::GRH | WcFlags::WITH_IMM);
    assert!(into.read(40..1040) == pattern(5, 1000));
    // With RoCE v2 over IPv4, the IP header occupies the last 20 bytes of the GRH.
    assert_eq!(into.read(32..36), gid(&contexts[0]).0[12..]);

    // A datagram with a wrong queue key is dropped without an error.
    let wrong = UdAddr { remote_qkey: QKEY + 1, ..to };
    recv(&mut b.qp, 3, &[into.sge(0..2000)]);
    send(&mut a.qp, 3, SendOp::UdSend { to: wrong }, &[from.sge(0..8)]);
    wait_ok(&mut a.cq, 3);
    send(&mut a.qp, 4, SendOp::UdSend { to }, &[from.sge(0..9)]);
    wait_ok(&mut a.cq, 4);
    assert_eq!(wait_ok(&mut b.cq, 3).byte_len, 49);
}

#[test]
fn many_messages_go_round_the_rings_in_order() {
    const COUNT: usize = 5000;
    let cap = QpCap { max_send_wr: 7, max_recv_wr: 9, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    for qp_type in [QpType::RC, QpType::UC] {
        let (mut a, mut b) = pair(&Shape { cap, cqe: 20, ..Shape::for_type(qp_type) });
        let (from, into) = (Arena::new(&a.pd, 8 * COUNT), Arena::new(&b.pd, 8 * COUNT));
        for n in 0..COUNT {
            from.write(n * 8, &n.to_ne_bytes());
        }
        let (mut sent, mut received, mut posted) = (0, 0, 0);
        let (mut under_way, mut ready) = (0, 0);
        eventually("everything arrives", || {
            while posted < COUNT && ready < 9 {
                recv(&mut b.qp, posted as u64, &[into.sge(posted * 8..posted * 8 + 8)]);
                (posted, ready) = (posted + 1, ready + 1);
            }
            // UC loses a message that arrives without a posted receive.
            while sent < COUNT && under_way < 7 && sent < posted {
                send(&mut a.qp, sent as u64, SendOp::Send, &[from.sge(sent * 8..sent * 8 + 8)]);
                (sent, under_way) = (sent + 1, under_way + 1);
            }
            let mut completions = a.cq.poll();
            while let Some(wc) = completions.next() {
                assert!(wc.is_success(), "{wc:?}");
                under_way -= 1;
            }
            let mut completions = b.cq.poll();
            while let Some(wc) = completions.next() {
                assert!(wc.is_success() && wc.wr_id() == received as u64, "{wc:?}");
                (received, ready) = (received + 1, ready - 1);
            }
            received == COUNT
        });
        assert!(into.read(0..8 * COUNT) == from.read(0..8 * COUNT));
    }
}

#[test]
fn unsignalled_sends_give_their_slots_back_without_a_completion() {
    let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let (mut a, b) = pair(&Shape { cap, ..Shape::default() });
    let (local, remote) = (Arena::new(&a.pd, 64), Arena::new(&b.pd, 64));
    let op = SendOp::RdmaWrite { remote_addr: remote.addr(), rkey: remote.rkey() };
    for n in 0..50 {
        let wr = SendWr { wr_id: n, op, sge: &[local.sge(0..8)], flags: SendFlags::empty() };
        eventually("there is room", || {
            let posted = post_send(&mut a.qp, &[wr]).is_ok();
            assert!(a.cq.poll().next().is_none());
            posted
        });
    }
    eventually("there is room", || {
        assert!(a.cq.poll().next().is_none());
        post_send(&mut a.qp, &[SendWr { wr_id: 99, op, sge: &[local.sge(0..8)], flags: SendFlags::SIGNALED }])
            .is_ok()
    });
    wait_ok(&mut a.cq, 99);
}

#[test]
fn both_ends_poll_from_their_own_threads() {
    const COUNT: u64 = 2000;
    let (a, b) = pair(&Shape::default());
    let play = |mut end: End, first: bool| {
        let arena = Arena::new(&end.pd, 16);
        recv(&mut end.qp, 0, &[arena.sge(8..16)]);
        for n in 0..COUNT {
            let (sends, receives) = if first { (n, 0) } else { (0, n) };
            let _ = (sends, receives);
            if first {
                arena.write(0, &n.to_ne_bytes());
                send(&mut end.qp, 1, SendOp::Send, &[arena.sge(0..8)]);
            }
            let mut seen = 0;
            let until = std::time::Instant::now() + PATIENCE;
            while seen < if first { 2 } else { 1 } {
                for wc in wait(&mut end.cq, 1) {
                    assert!(
                        wc.status == verbs::WcStatus::SUCCESS && std::time::Instant::now() < until,
                        "{wc:?}"
                    );
                    seen += u32::from(first || wc.opcode == WcOpcode::RECV);
                    if wc.opcode == WcOpcode::RECV {
                        assert_eq!(arena.number(8), n);
                        post_recv(&mut end.qp, &[RecvWr { wr_id: 0, sge: &[arena.sge(8..16)] }]).unwrap();
                    }
                }
            }
            if !first {
                arena.write(0, &n.to_ne_bytes());
                send(&mut end.qp, 1, SendOp::Send, &[arena.sge(0..8)]);
            }
        }
        end
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| play(b, false));
        let _a = play(a, true);
        let _b = other.join().unwrap();
    });
}

#[test]
fn a_queue_pair_sends_inline_what_its_elements_have_room_for() {
    let context = open();
    for (asked, granted) in [(0, 64), (64, 64), (65, 65)] {
        let cap = QpCap { max_inline_data: asked, ..Shape::default().cap };
        let end = End::new(&context, &Shape { cap, ..Shape::default() });
        assert_eq!(end.qp.cap().max_inline_data, granted);
    }
}
