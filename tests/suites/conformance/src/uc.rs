//! Unreliable connections: messages arrive complete or are lost; the sender gets no error.

use verbs::state::Errored;
use verbs::{
    AccessFlags, Context, Provider, QpState, QpType, RecvWr, SendFlags, SendOp, SendWr, WcOpcode, WcStatus,
};
use verbs_fixtures::both;
use verbs_fixtures::fabric::{
    Arena, Pair, Remote, Shape, connect, create_qp, eventually, imm, is_empty, is_local_key_error, is_rxe,
    pattern, post_recv, post_send, rxe_is_before, signalled, wait, wait_for, wait_one, wait_status,
};
use verbs_harness::runner::{Case, CaseResult, skip};

use super::SUITE;

pub(super) fn cases() -> Vec<Case> {
    both!(
        SUITE,
        uc_send_and_write_arrive,
        uc_send_without_a_receive_is_lost_and_nobody_is_told,
        uc_takes_no_read_and_no_atomic,
        uc_message_of_many_packets_arrives_whole_at_each_mtu,
        uc_empty_messages_arrive,
        uc_messages_keep_their_order,
        uc_write_with_immediate_leaves_the_memory_of_its_receive,
        uc_write_with_immediate_without_a_receive_is_lost,
        uc_write_with_a_wrong_key_vanishes,
        uc_write_without_the_right_vanishes,
        uc_message_that_does_not_fit_its_receive_vanishes,
        uc_send_to_a_number_that_does_not_exist_completes_without_retries,
        uc_gather_and_scatter_lists_need_not_match,
        uc_inline_data_is_copied_when_it_is_posted,
        uc_both_directions_at_once,
        uc_error_state_flushes_both_queues_in_order,
        uc_wrong_local_key_ends_the_send_queue,
        uc_reset_queue_pair_can_be_connected_again,
    )
}

fn uc_send_and_write_arrive<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::for_type(QpType::UC))?;
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
            // The sender's completion does not show whether the write has arrived.
            None => eventually("the write arrives", || into.read(4999..5000) == from.read(4999..5000))?,
        }
        assert!(into.read(0..5000) == pattern(1, 5000), "{op:?}");
    }
    Ok(())
}

fn uc_send_without_a_receive_is_lost_and_nobody_is_told<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::for_type(QpType::UC))?;
    let arena = Arena::new(&pair.pd, 64)?;
    let sge = [arena.sge(0..16)];
    arena.write(0, &pattern(1, 16));
    post_send(&mut pair.a.qp, &[signalled(1, SendOp::SendWithImm { imm_data: 1 }, &sge)])?;
    wait_for(&mut pair.a.cq, 1, WcOpcode::SEND)?;
    // The completion shows only that the message was sent. When a later write has arrived, so has
    // the message.
    let write = SendOp::RdmaWrite { remote_addr: arena.addr() + 48, rkey: arena.rkey() };
    post_send(&mut pair.a.qp, &[signalled(4, write, &sge)])?;
    wait_for(&mut pair.a.cq, 4, WcOpcode::RDMA_WRITE)?;
    eventually("the write arrives", || arena.read(48..64) == pattern(1, 16))?;
    // A later message shows that the first was lost rather than late.
    post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[arena.sge(32..48)] }])?;
    post_send(&mut pair.a.qp, &[signalled(3, SendOp::SendWithImm { imm_data: 2 }, &sge)])?;
    wait_for(&mut pair.a.cq, 3, WcOpcode::SEND)?;
    assert_eq!(imm(&wait_for(&mut pair.b.cq, 2, WcOpcode::RECV)?), Some(2));
    assert!(is_empty(&mut pair.b.cq));
    Ok(())
}

fn uc_takes_no_read_and_no_atomic<P: Provider>(context: &Context<P>) -> CaseResult {
    for qp_type in [QpType::UC, QpType::UD] {
        let mut pair = Pair::new(context, &Shape::for_type(qp_type))?;
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

/// Waits until all earlier messages have arrived or are lost, by waiting for a later write.
fn settle<P: Provider>(pair: &mut Pair<P>) -> CaseResult {
    let arena = Arena::new(&pair.pd, 16)?;
    arena.write(0, &pattern(77, 8));
    let write = SendOp::RdmaWrite { remote_addr: arena.addr() + 8, rkey: arena.rkey() };
    post_send(&mut pair.a.qp, &[signalled(999, write, &[arena.sge(0..8)])])?;
    wait_for(&mut pair.a.cq, 999, WcOpcode::RDMA_WRITE)?;
    eventually("the write arrives", || arena.read(8..16) == pattern(77, 8))
}

fn uc_message_of_many_packets_arrives_whole_at_each_mtu<P: Provider>(context: &Context<P>) -> CaseResult {
    use verbs::Mtu;
    const LEN: usize = 20_001;
    let active = context.query_port(verbs_fixtures::fabric::PORT)?.active_mtu;
    for path_mtu in [Mtu::MTU_256, Mtu::MTU_512, Mtu::MTU_1024, Mtu::MTU_2048, Mtu::MTU_4096] {
        if path_mtu > active {
            break;
        }
        let mut pair = Pair::new(context, &Shape { path_mtu, ..Shape::for_type(QpType::UC) })?;
        let (from, into) = (Arena::new(&pair.pd, LEN)?, Arena::new(&pair.pd, LEN + 1)?);
        from.write(0, &pattern(path_mtu.0.into(), LEN));
        post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[into.sge(0..LEN + 1)] }])?;
        post_send(&mut pair.a.qp, &[signalled(1, SendOp::Send, &[from.sge(0..LEN)])])?;
        wait_for(&mut pair.a.cq, 1, WcOpcode::SEND)?;
        let wc = wait_for(&mut pair.b.cq, 2, WcOpcode::RECV)?;
        assert_eq!((wc.byte_len as usize, wc.qp_num), (LEN, pair.b.qp.qp_num()), "{path_mtu}");
        assert!(into.read(0..LEN) == pattern(path_mtu.0.into(), LEN), "{path_mtu}");
        assert_eq!(into.read(LEN..LEN + 1), [0], "behind the message");
    }
    Ok(())
}

fn uc_empty_messages_arrive<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::for_type(QpType::UC))?;
    let arena = Arena::new(&pair.pd, 8)?;
    let (remote_addr, rkey) = (arena.addr(), arena.rkey());
    for (op, opcode, told) in [
        (SendOp::Send, WcOpcode::RECV, None),
        (SendOp::SendWithImm { imm_data: 5 }, WcOpcode::RECV, Some(5)),
        (SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data: 6 }, WcOpcode::RECV_RDMA_WITH_IMM, Some(6)),
    ] {
        post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[] }])?;
        post_send(&mut pair.a.qp, &[signalled(1, op, &[])])?;
        wait_one(&mut pair.a.cq)?.ok()?;
        let wc = wait_for(&mut pair.b.cq, 2, opcode)?;
        assert_eq!((wc.byte_len, imm(&wc)), (0, told), "{op:?}");
    }
    Ok(())
}

fn uc_messages_keep_their_order<P: Provider>(context: &Context<P>) -> CaseResult {
    const COUNT: u32 = 16;
    let mut pair = Pair::new(context, &Shape::for_type(QpType::UC))?;
    let arena = Arena::new(&pair.pd, 2000)?;
    for n in 0..COUNT {
        post_recv(&mut pair.b.qp, &[RecvWr { wr_id: n.into(), sge: &[arena.sge(0..2000)] }])?;
    }
    for n in 0..COUNT {
        // Messages of one packet and of two packets, alternately.
        let sge = [arena.sge(0..if n % 2 == 0 { 10 } else { 2000 })];
        post_send(&mut pair.a.qp, &[signalled(n.into(), SendOp::SendWithImm { imm_data: n }, &sge)])?;
    }
    let ids = |wcs: &[verbs::Wc]| wcs.iter().map(|wc| wc.wr_id).collect::<Vec<_>>();
    let sent = wait(&mut pair.a.cq, COUNT as usize)?;
    let received = wait(&mut pair.b.cq, COUNT as usize)?;
    let expected: Vec<u64> = (0..COUNT.into()).collect();
    assert_eq!((ids(&sent), ids(&received)), (expected.clone(), expected));
    for (n, wc) in received.iter().enumerate() {
        assert_eq!((wc.status, imm(wc)), (WcStatus::SUCCESS, Some(n as u32)), "{wc:?}");
        assert_eq!(wc.byte_len, if n % 2 == 0 { 10 } else { 2000 });
    }
    Ok(())
}

fn uc_write_with_immediate_leaves_the_memory_of_its_receive<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::for_type(QpType::UC))?;
    let arena = Arena::new(&pair.pd, 192)?;
    arena.write(0, &pattern(1, 64));
    let (remote_addr, rkey) = (arena.addr() + 64, arena.rkey());
    post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[arena.sge(128..192)] }])?;
    let write = SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data: 3 };
    post_send(&mut pair.a.qp, &[signalled(1, write, &[arena.sge(0..64)])])?;
    let wc = wait_for(&mut pair.b.cq, 2, WcOpcode::RECV_RDMA_WITH_IMM)?;
    assert_eq!((imm(&wc), wc.byte_len), (Some(3), 64));
    assert_eq!((arena.read(64..128), arena.read(128..192)), (pattern(1, 64), vec![0; 64]));
    Ok(())
}

fn uc_write_with_immediate_without_a_receive_is_lost<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::for_type(QpType::UC))?;
    let arena = Arena::new(&pair.pd, 64)?;
    let (remote_addr, rkey, sge) = (arena.addr() + 32, arena.rkey(), [arena.sge(0..8)]);
    let write = |imm_data| SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data };
    post_send(&mut pair.a.qp, &[signalled(1, write(1), &sge)])?;
    wait_for(&mut pair.a.cq, 1, WcOpcode::RDMA_WRITE)?;
    settle(&mut pair)?;
    post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[] }])?;
    post_send(&mut pair.a.qp, &[signalled(3, write(2), &sge)])?;
    wait_for(&mut pair.a.cq, 3, WcOpcode::RDMA_WRITE)?;
    assert_eq!(imm(&wait_for(&mut pair.b.cq, 2, WcOpcode::RECV_RDMA_WITH_IMM)?), Some(2));
    Ok(())
}

/// Posts a write that the receiver's keys do not permit. The sender gets no error, nothing is
/// written and the connection continues.
fn vanishes<P: Provider>(pair: &mut Pair<P>, into: &Arena<P>, remote_addr: u64, rkey: u32) -> CaseResult {
    let from = Arena::new(&pair.pd, 16)?;
    from.write(0, &[0xff; 16]);
    let write = SendOp::RdmaWrite { remote_addr, rkey };
    post_send(&mut pair.a.qp, &[signalled(1, write, &[from.sge(0..16)])])?;
    wait_for(&mut pair.a.cq, 1, WcOpcode::RDMA_WRITE)?;
    settle(pair)?;
    assert_eq!(into.read(0..64), vec![0; 64]);
    assert!(is_empty(&mut pair.b.cq));
    assert_eq!((pair.a.qp.state()?, pair.b.qp.state()?), (QpState::RTS, QpState::RTS));
    Ok(())
}

fn uc_write_with_a_wrong_key_vanishes<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::for_type(QpType::UC))?;
    let into = Arena::new(&pair.pd, 64)?;
    vanishes(&mut pair, &into, into.addr(), into.rkey() ^ 0x0055_0000)?;
    // A write must not reach beyond the region either.
    vanishes(&mut pair, &into, into.addr() + 56, into.rkey())
}

fn uc_write_without_the_right_vanishes<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::for_type(QpType::UC))?;
    let into = Arena::with_access(&pair.pd, 64, AccessFlags::LOCAL_WRITE)?;
    vanishes(&mut pair, &into, into.addr(), into.rkey())
}

fn uc_message_that_does_not_fit_its_receive_vanishes<P: Provider>(context: &Context<P>) -> CaseResult {
    if is_rxe()? {
        return skip("after such a message rxe receives nothing more on the connection (seen on Linux 6.1)");
    }
    let mut pair = Pair::new(context, &Shape::for_type(QpType::UC))?;
    let arena = Arena::new(&pair.pd, 128)?;
    post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[arena.sge(64..80)] }])?;
    post_send(&mut pair.a.qp, &[signalled(1, SendOp::Send, &[arena.sge(0..17)])])?;
    wait_for(&mut pair.a.cq, 1, WcOpcode::SEND)?;
    settle(&mut pair)?;
    // The next message uses the receive (IBTA 9.9.3, class D).
    post_send(&mut pair.a.qp, &[signalled(3, SendOp::SendWithImm { imm_data: 4 }, &[arena.sge(0..16)])])?;
    wait_for(&mut pair.a.cq, 3, WcOpcode::SEND)?;
    let wc = wait_for(&mut pair.b.cq, 2, WcOpcode::RECV)?;
    assert_eq!((imm(&wc), wc.byte_len), (Some(4), 16));
    Ok(())
}

fn uc_send_to_a_number_that_does_not_exist_completes_without_retries<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    let shape = Shape::for_type(QpType::UC);
    let pair = Pair::new(context, &shape)?;
    let mut cq = context.create_cq(&verbs::CqInit::new(16))?;
    let lonely = create_qp(&pair.pd, &cq, &shape)?;
    let mut lonely = connect(context, lonely, &shape, Remote { qp_num: 0x00_fff0, psn: 1 })?;
    let arena = Arena::new(&pair.pd, 5000)?;
    for wr_id in 1..=5 {
        post_send(&mut lonely, &[signalled(wr_id, SendOp::Send, &[arena.sge(0..5000)])])?;
        wait_for(&mut cq, wr_id, WcOpcode::SEND)?;
    }
    assert_eq!(lonely.state()?, QpState::RTS);
    Ok(())
}

fn uc_gather_and_scatter_lists_need_not_match<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::for_type(QpType::UC))?;
    let (from, into) = (Arena::new(&pair.pd, 3000)?, Arena::new(&pair.pd, 3000)?);
    from.write(0, &pattern(3, 3000));
    let (gather, scatter) = (
        [from.sge(0..1), from.sge(1..2500), from.sge(2500..3000)],
        [into.sge(0..1500), into.sge(1500..3000)],
    );
    post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &scatter }])?;
    post_send(&mut pair.a.qp, &[signalled(1, SendOp::Send, &gather)])?;
    wait_for(&mut pair.a.cq, 1, WcOpcode::SEND)?;
    assert_eq!(wait_for(&mut pair.b.cq, 2, WcOpcode::RECV)?.byte_len, 3000);
    assert!(into.read(0..3000) == pattern(3, 3000));
    Ok(())
}

fn uc_inline_data_is_copied_when_it_is_posted<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::for_type(QpType::UC))?;
    let into = Arena::new(&pair.pd, 64)?;
    post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[into.sge(0..64)] }])?;
    pair.a.qp.post_send_inline(1, SendOp::Send, SendFlags::SIGNALED, b"of the moment")?;
    wait_for(&mut pair.a.cq, 1, WcOpcode::SEND)?;
    assert_eq!(wait_for(&mut pair.b.cq, 2, WcOpcode::RECV)?.byte_len, 13);
    assert_eq!(into.read(0..13), b"of the moment");
    Ok(())
}

fn uc_both_directions_at_once<P: Provider>(context: &Context<P>) -> CaseResult {
    const COUNT: u64 = 8;
    let mut pair = Pair::new(context, &Shape::for_type(QpType::UC))?;
    let arena = Arena::new(&pair.pd, 3000)?;
    for end in [&mut pair.a, &mut pair.b] {
        for n in 0..COUNT {
            post_recv(&mut end.qp, &[RecvWr { wr_id: 100 + n, sge: &[arena.sge(0..3000)] }])?;
        }
    }
    for n in 0..COUNT {
        for end in [&mut pair.a, &mut pair.b] {
            post_send(&mut end.qp, &[signalled(n, SendOp::Send, &[arena.sge(0..3000)])])?;
        }
    }
    for end in [&mut pair.a, &mut pair.b] {
        let wcs = wait(&mut end.cq, 2 * COUNT as usize)?;
        assert!(wcs.iter().all(|wc| wc.status == WcStatus::SUCCESS), "{wcs:?}");
        let received = wcs.iter().filter(|wc| wc.opcode == WcOpcode::RECV).map(|wc| wc.wr_id);
        assert!(received.eq(100..100 + COUNT), "{wcs:?}");
    }
    Ok(())
}

fn uc_error_state_flushes_both_queues_in_order<P: Provider>(context: &Context<P>) -> CaseResult {
    let pair = Pair::new(context, &Shape::for_type(QpType::UC))?;
    let arena = Arena::new(&pair.pd, 8)?;
    let mut end = pair.b;
    for wr_id in [1, 2, 3] {
        post_recv(&mut end.qp, &[RecvWr { wr_id, sge: &[arena.sge(0..8)] }])?;
    }
    let mut qp: verbs::Qp<Errored, P> = end.qp.to_error()?;
    for wr_id in [1, 2, 3] {
        wait_status(&mut end.cq, wr_id, WcStatus::WR_FLUSH_ERR)?;
    }
    if rxe_is_before(6, 1)? {
        // In this state, rxe's requester on this kernel exits at once and does not wake the task
        // that flushes.
        return Ok(());
    }
    post_send(&mut qp, &[signalled(4, SendOp::Send, &[arena.sge(0..8)])])?;
    wait_status(&mut end.cq, 4, WcStatus::WR_FLUSH_ERR)?;
    if is_rxe()? {
        // Posting a receive makes no system call, so rxe does not notice it in the error state.
        return Ok(());
    }
    post_recv(&mut qp, &[RecvWr { wr_id: 5, sge: &[arena.sge(0..8)] }])?;
    wait_status(&mut end.cq, 5, WcStatus::WR_FLUSH_ERR)
}

fn uc_wrong_local_key_ends_the_send_queue<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::for_type(QpType::UC))?;
    let arena = Arena::new(&pair.pd, 8)?;
    let mut wrong = arena.sge(0..8);
    wrong.lkey ^= 0x0055_0000;
    let sges = [[wrong], [arena.sge(0..8)]];
    let wrs = [
        signalled(1, SendOp::Send, &sges[0]),
        SendWr { wr_id: 2, op: SendOp::Send, sge: &sges[1], flags: SendFlags::SIGNALED },
    ];
    post_send(&mut pair.a.qp, &wrs)?;
    let first = wait_one(&mut pair.a.cq)?;
    assert!(first.wr_id == 1 && is_local_key_error(first.status)?, "{first:?}");
    wait_status(&mut pair.a.cq, 2, WcStatus::WR_FLUSH_ERR)?;
    // By the specification, the receive queue continues (SQE). rxe ends both queues.
    let state = pair.a.qp.state()?;
    assert!([QpState::SQE, QpState::ERR].contains(&state), "{state}");
    Ok(())
}

fn uc_reset_queue_pair_can_be_connected_again<P: Provider>(context: &Context<P>) -> CaseResult {
    let shape = Shape::for_type(QpType::UC);
    let Pair { pd, a, b, .. } = Pair::new(context, &shape)?;
    let arena = Arena::new(&pd, 16)?;
    let (a_qp, b_qp) = (a.qp.to_reset()?, b.qp.to_reset()?);
    let (to_a, to_b) = (Remote::from_qp(&a_qp), Remote::from_qp(&b_qp));
    let mut sender = connect(context, a_qp, &shape, to_b)?;
    let mut receiver = connect(context, b_qp, &shape, to_a)?;
    let (mut a_cq, mut b_cq) = (a.cq, b.cq);
    post_recv(&mut receiver, &[RecvWr { wr_id: 2, sge: &[arena.sge(8..16)] }])?;
    post_send(&mut sender, &[signalled(1, SendOp::Send, &[arena.sge(0..8)])])?;
    wait_for(&mut a_cq, 1, WcOpcode::SEND)?;
    wait_for(&mut b_cq, 2, WcOpcode::RECV)?;
    Ok(())
}
