//! Unreliable connections and datagrams.

use verbs::{Context, Provider, QpType, RecvWr, SendFlags, SendOp, WcFlags, WcOpcode};

use super::SUITE;
use crate::both;
use crate::fabric::{
    Arena, PORT, Pair, QKEY, Remote, Shape, eventually, imm, is_empty, path, pattern, post_recv, post_send,
    signalled, wait_for,
};
use crate::runner::{Case, CaseResult};

pub(super) fn cases() -> Vec<Case> {
    both!(
        SUITE,
        uc_send_and_write_arrive,
        uc_send_without_a_receive_is_lost_and_nobody_is_told,
        uc_takes_no_read_and_no_atomic,
        ud_datagram_arrives_behind_a_route_header,
        ud_datagram_with_the_wrong_key_is_dropped,
        ud_datagrams_of_two_senders_are_told_apart,
    )
}

fn uc_send_and_write_arrive<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::of(QpType::UC))?;
    let (from, into) = (Arena::new(&pair.pd, 5000)?, Arena::new(&pair.pd, 5000)?);
    from.write(0, &pattern(1, 5000));
    let sge = [from.sge(0..5000)];
    let (remote_addr, rkey) = (into.addr(), into.rkey());
    for (op, len, opcode, recv_opcode, imm_data) in [
        (SendOp::Send, 5000, WcOpcode::SEND, Some(WcOpcode::RECV), None),
        (
            SendOp::SendWithImm { imm_data: 0x0a0b_0c0d },
            5000,
            WcOpcode::SEND,
            Some(WcOpcode::RECV),
            Some(0x0a0b_0c0d),
        ),
        (SendOp::RdmaWrite { remote_addr, rkey }, 5000, WcOpcode::RDMA_WRITE, None, None),
        (
            SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data: 9 },
            5000,
            WcOpcode::RDMA_WRITE,
            Some(WcOpcode::RECV_RDMA_WITH_IMM),
            Some(9),
        ),
    ] {
        into.write(0, &[0; 5000]);
        if recv_opcode.is_some() {
            post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[into.sge(0..5000)] }])?;
        }
        post_send(&mut pair.a.qp, &[signalled(1, op, &sge)])?;
        wait_for(&mut pair.a.cq, 1, opcode)?;
        match recv_opcode {
            Some(opcode) => {
                let wc = wait_for(&mut pair.b.cq, 2, opcode)?;
                assert_eq!((imm(&wc), wc.byte_len), (imm_data, len));
            }
            // The sender's completion says that it was sent, not that it arrived.
            None => eventually("the write arrives", || into.read(4999..5000) == from.read(4999..5000))?,
        }
        assert!(into.read(0..5000) == pattern(1, 5000), "{op:?}");
    }
    Ok(())
}

fn uc_send_without_a_receive_is_lost_and_nobody_is_told<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::of(QpType::UC))?;
    let arena = Arena::new(&pair.pd, 64)?;
    let sge = [arena.sge(0..16)];
    arena.write(0, &pattern(1, 16));
    post_send(&mut pair.a.qp, &[signalled(1, SendOp::SendWithImm { imm_data: 1 }, &sge)])?;
    wait_for(&mut pair.a.cq, 1, WcOpcode::SEND)?;
    // A completion says that it was sent. A write that was sent after it and is here says that it
    // was here, too.
    let write = SendOp::RdmaWrite { remote_addr: arena.addr() + 48, rkey: arena.rkey() };
    post_send(&mut pair.a.qp, &[signalled(4, write, &sge)])?;
    wait_for(&mut pair.a.cq, 4, WcOpcode::RDMA_WRITE)?;
    eventually("the write arrives", || arena.read(48..64) == pattern(1, 16))?;
    // What comes after it shows that it was lost rather than late.
    post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[arena.sge(32..48)] }])?;
    post_send(&mut pair.a.qp, &[signalled(3, SendOp::SendWithImm { imm_data: 2 }, &sge)])?;
    wait_for(&mut pair.a.cq, 3, WcOpcode::SEND)?;
    assert_eq!(imm(&wait_for(&mut pair.b.cq, 2, WcOpcode::RECV)?), Some(2));
    assert!(is_empty(&mut pair.b.cq));
    Ok(())
}

fn uc_takes_no_read_and_no_atomic<P: Provider>(context: &Context<P>) -> CaseResult {
    for qp_type in [QpType::UC, QpType::UD] {
        let mut pair = Pair::new(context, &Shape::of(qp_type))?;
        let arena = Arena::new(&pair.pd, 64)?;
        let (remote_addr, rkey, sge) = (arena.addr(), arena.rkey(), [arena.sge(0..8)]);
        for op in [
            SendOp::RdmaRead { remote_addr, rkey },
            SendOp::AtomicFetchAndAdd { remote_addr, rkey, add: 1 },
            SendOp::AtomicCmpAndSwp { remote_addr, rkey, compare: 0, swap: 1 },
        ] {
            let error = post_send(&mut pair.a.qp, &[signalled(1, op, &sge)]).unwrap_err();
            assert_eq!(
                (error.accepted, error.reason),
                (0, verbs::PostReason::UnsupportedOp { op: op.kind(), qp_type }),
                "{qp_type} {op:?}"
            );
        }
        assert!(is_empty(&mut pair.a.cq));
    }
    Ok(())
}

/// The size of the header before a datagram in the receive's memory.
const GRH: usize = 40;

fn ud_datagram_arrives_behind_a_route_header<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::of(QpType::UD))?;
    let gid = context.find_gid(PORT)?;
    let ah = pair.pd.create_ah(&path(&gid))?;
    let to = ah.to(pair.b.qp.qp_num(), QKEY);
    let (from, into) = (Arena::new(&pair.pd, 1024)?, Arena::new(&pair.pd, 2048)?);
    for (seed, len) in [(1, 1), (2, 500), (3, 1024)] {
        from.write(0, &pattern(seed, len));
        into.write(0, &[0; 2048]);
        let sge = [from.sge(0..len)];
        for op in [SendOp::UdSend { to }, SendOp::UdSendWithImm { to, imm_data: seed << 24 }] {
            post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[into.sge(0..2048)] }])?;
            post_send(&mut pair.a.qp, &[signalled(1, op, &sge)])?;
            wait_for(&mut pair.a.cq, 1, WcOpcode::SEND)?;
            let wc = wait_for(&mut pair.b.cq, 2, WcOpcode::RECV)?;
            let with_imm = matches!(op, SendOp::UdSendWithImm { .. });
            assert_eq!(imm(&wc), with_imm.then_some(seed << 24));
            assert!(wc.wc_flags.contains(WcFlags::GRH), "{wc:?}");
            assert_eq!((wc.byte_len as usize, wc.src_qp), (GRH + len, pair.a.qp.qp_num()));
            assert_eq!(into.read(GRH..GRH + len), pattern(seed, len));
            assert_eq!(into.read(GRH + len..2048), vec![0; 2048 - GRH - len], "behind the datagram");
        }
    }
    // The header of a RoCE v2 packet over IPv4 is in the last 20 of the 40 bytes: version 4, and
    // from whom to whom.
    let header = into.read(20..GRH);
    let ip = gid.gid.to_ipv4().map(|ip| ip.octets()).unwrap_or_default();
    assert_eq!((header[0] >> 4, &header[12..16], &header[16..20]), (4, &ip[..], &ip[..]));
    // Inline too.
    post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[into.sge(0..2048)] }])?;
    pair.a.qp.post_send_inline(5, SendOp::UdSend { to }, SendFlags::SIGNALED, b"inline")?;
    wait_for(&mut pair.a.cq, 5, WcOpcode::SEND)?;
    wait_for(&mut pair.b.cq, 2, WcOpcode::RECV)?;
    assert_eq!(into.read(GRH..GRH + 6), b"inline");
    Ok(())
}

fn ud_datagram_with_the_wrong_key_is_dropped<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::of(QpType::UD))?;
    let ah = pair.pd.create_ah(&path(&context.find_gid(PORT)?))?;
    let arena = Arena::new(&pair.pd, 256)?;
    let sge = [arena.sge(0..8)];
    post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[arena.sge(8..256)] }])?;
    for (imm_data, qkey) in [(1, QKEY + 1), (2, QKEY)] {
        let to = ah.to(pair.b.qp.qp_num(), qkey);
        post_send(&mut pair.a.qp, &[signalled(1, SendOp::UdSendWithImm { to, imm_data }, &sge)])?;
        wait_for(&mut pair.a.cq, 1, WcOpcode::SEND)?;
    }
    assert_eq!(imm(&wait_for(&mut pair.b.cq, 2, WcOpcode::RECV)?), Some(2));
    // With the top bit the sender's own key is used.
    post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 3, sge: &[arena.sge(8..256)] }])?;
    let to = ah.to(pair.b.qp.qp_num(), 1 << 31);
    post_send(&mut pair.a.qp, &[signalled(1, SendOp::UdSendWithImm { to, imm_data: 3 }, &sge)])?;
    wait_for(&mut pair.a.cq, 1, WcOpcode::SEND)?;
    assert_eq!(imm(&wait_for(&mut pair.b.cq, 3, WcOpcode::RECV)?), Some(3));
    Ok(())
}

fn ud_datagrams_of_two_senders_are_told_apart<P: Provider>(context: &Context<P>) -> CaseResult {
    let shape = Shape::of(QpType::UD);
    let mut pair = Pair::new(context, &shape)?;
    let ah = pair.pd.create_ah(&path(&context.find_gid(PORT)?))?;
    let third = crate::fabric::create_qp(&pair.pd, &pair.a.cq, &shape)?;
    let nobody = Remote { qp_num: 0, psn: 0 };
    let mut third = crate::fabric::connect(context, third, &shape, nobody)?;
    let arena = Arena::new(&pair.pd, 512)?;
    let sge = [arena.sge(0..8)];
    let to = ah.to(pair.b.qp.qp_num(), QKEY);
    let (first_num, third_num) = (pair.a.qp.qp_num(), third.qp_num());
    for wr_id in 0..4 {
        post_recv(&mut pair.b.qp, &[RecvWr { wr_id, sge: &[arena.sge(64..512)] }])?;
    }
    for wr_id in 0..4 {
        let qp = if wr_id % 2 == 0 { &mut pair.a.qp } else { &mut third };
        post_send(qp, &[signalled(wr_id, SendOp::UdSend { to }, &sge)])?;
        let sent = wait_for(&mut pair.a.cq, wr_id, WcOpcode::SEND)?;
        let wc = wait_for(&mut pair.b.cq, wr_id, WcOpcode::RECV)?;
        let sender = if wr_id % 2 == 0 { first_num } else { third_num };
        assert_eq!((sent.qp_num, wc.src_qp, wc.qp_num), (sender, sender, pair.b.qp.qp_num()));
    }
    Ok(())
}
