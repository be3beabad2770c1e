//! Reliable connections: full queues, signalling, completion fields, solicited events, batches.

use verbs::{
    Context, Errno, PostError, PostReason, Provider, QpAttr, QpAttrMask, QpCap, QpState, RecvWr, SendFlags,
    SendOp, SendWr, WcFlags, WcOpcode, WcStatus,
};
use verbs_fixtures::both;
use verbs_fixtures::fabric::{
    Arena, PATIENCE, Pair, Shape, eventually, has_sqd, hold, is_empty, is_rxe, pattern, post_recv, post_send,
    signalled, wait, wait_for,
};
use verbs_harness::runner::{Case, CaseResult, fail};

use super::SUITE;

pub(super) fn cases() -> Vec<Case> {
    both!(
        SUITE,
        a_full_send_queue_refuses_one_more_and_loses_none,
        a_full_receive_queue_refuses_one_more_and_loses_none,
        a_queue_that_is_kept_full_wraps_around_in_order,
        each_operation_completes_only_where_it_is_signalled,
        with_sq_sig_all_each_operation_completes,
        each_completion_names_its_operation_and_its_queue_pair,
        solicited_events_come_for_immediates_and_not_for_writes,
        a_raw_batch_as_long_as_the_queue_executes_in_order,
        a_raw_batch_that_is_longer_than_the_queue_posts_nothing,
    )
}

/// Posts requests one by one until the queue rejects a request. Returns the number of accepted
/// requests.
fn fill(mut post: impl FnMut(u64) -> Result<(), PostError>) -> CaseResult<u64> {
    for n in 0..1000 {
        if let Err(full) = post(n) {
            assert_eq!((full.accepted, full.reason), (0, PostReason::QueueFull));
            assert_eq!(full.reason.errno(), Errno::NOMEM);
            return Ok(n);
        }
    }
    fail("the queue takes requests without end")
}

fn small() -> Shape {
    let cap = QpCap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 16 };
    Shape { cap, ..Shape::default() }
}

fn a_full_send_queue_refuses_one_more_and_loses_none<P: Provider>(context: &Context<P>) -> CaseResult {
    let Pair { mut a, pd, mut b, .. } = Pair::new(context, &small())?;
    let (from, into) = (Arena::new(&pd, 8 * 128)?, Arena::new(&pd, 8 * 128)?);
    from.write(0, &pattern(1, 8 * 128));
    let (remote_addr, rkey) = (into.addr(), into.rkey());
    // rxe's requester considers an empty queue drained only if the next slot has never been used:
    // it checks the state of the slot's former request (`req_check_sq_drain_done`, seen on 7.2).
    let rounds = if is_rxe()? { 1 } else { 3 };
    let drains = has_sqd()?;
    for round in 0..rounds {
        into.write(0, &[0; 8 * 128]);
        // Requests wait in SQD or behind a blocked send, so no completion frees a slot.
        hold(&mut a.qp)?;
        if drains {
            // A queue pair can leave SQD only once its queue is drained.
            eventually("the send queue is drained", || {
                a.qp.query(QpAttrMask::STATE).is_ok_and(|(attr, _)| !attr.sq_draining)
            })?;
        }
        let count = fill(|n| {
            let is_send = n == 0 && !drains;
            let write = SendOp::RdmaWrite { remote_addr: remote_addr + 8 * n, rkey };
            let op = if is_send { SendOp::Send } else { write };
            let at = 8 * n as usize;
            post_send(&mut a.qp, &[signalled(n, op, &[from.sge(at..at + 8)])])
        })?;
        // A queue may have more slots than it reports.
        assert!((u64::from(a.qp.cap().max_send_wr)..128).contains(&count), "round {round}: {count}");
        if drains {
            a.qp.modify(&QpAttr { qp_state: QpState::RTS, ..QpAttr::default() }, QpAttrMask::STATE)?;
        } else {
            post_recv(&mut b.qp, &[RecvWr { wr_id: 0, sge: &[into.sge(0..8)] }])?;
        }
        let ended: Vec<_> = wait(&mut a.cq, count as usize)?.iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(ended, (0..count).map(|n| (n, WcStatus::SUCCESS)).collect::<Vec<_>>());
        if !drains {
            // A receive's memory belongs to the device until its completion has been polled.
            wait(&mut b.cq, 1)?;
        }
        let written = 8 * count as usize;
        assert_eq!(into.read(0..written), pattern(1, 8 * 128)[..written], "round {round}");
        assert!(
            into.read(written..8 * 128).iter().all(|byte| *byte == 0),
            "the refused request was executed"
        );
    }
    Ok(())
}

fn a_full_receive_queue_refuses_one_more_and_loses_none<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &small())?;
    let (from, into) = (Arena::new(&pair.pd, 8 * 128)?, Arena::new(&pair.pd, 8 * 128)?);
    from.write(0, &pattern(1, 8 * 128));
    let part = |n: u64| 8 * n as usize..8 * n as usize + 8;
    for round in 1..4 {
        into.write(0, &[0; 8 * 128]);
        let count =
            fill(|wr_id| post_recv(&mut pair.b.qp, &[RecvWr { wr_id, sge: &[into.sge(part(wr_id))] }]))?;
        assert!((u64::from(pair.b.qp.cap().max_recv_wr)..128).contains(&count), "round {round}: {count}");
        for n in 0..count {
            post_send(&mut pair.a.qp, &[signalled(n, SendOp::Send, &[from.sge(part(n))])])?;
            wait_for(&mut pair.a.cq, n, WcOpcode::SEND)?;
            wait_for(&mut pair.b.cq, n, WcOpcode::RECV)?;
            assert_eq!(into.read(part(n)), from.read(part(n)), "round {round}");
        }
    }
    Ok(())
}

fn a_queue_that_is_kept_full_wraps_around_in_order<P: Provider>(context: &Context<P>) -> CaseResult {
    const COUNT: u64 = 1000;
    const SLOTS: u64 = 8;
    const ROOM: usize = 2500;
    let mut pair = Pair::new(context, &small())?;
    let make = || Arena::new(&pair.pd, SLOTS as usize * ROOM);
    let (from, into) = (make()?, make()?);
    let start = |n: u64| (n % SLOTS) as usize * ROOM;
    // Lengths from one packet to three. The message begins with its number.
    let len = |n: u64| 8 + (n * 389 % 2400) as usize;
    for wr_id in 0..SLOTS {
        let sge = [into.sge(start(wr_id)..start(wr_id) + ROOM)];
        post_recv(&mut pair.b.qp, &[RecvWr { wr_id, sge: &sge }])?;
    }
    let mut posted = 0;
    for done in 0..COUNT {
        while posted < COUNT.min(done + SLOTS) {
            from.write(start(posted), &posted.to_ne_bytes());
            let sge = [from.sge(start(posted)..start(posted) + len(posted))];
            post_send(&mut pair.a.qp, &[signalled(posted, SendOp::Send, &sge)])?;
            posted += 1;
        }
        wait_for(&mut pair.a.cq, done, WcOpcode::SEND)?;
        let wc = wait_for(&mut pair.b.cq, done, WcOpcode::RECV)?;
        assert_eq!((wc.byte_len as usize, into.number(start(done))), (len(done), done));
        let sge = [into.sge(start(done)..start(done) + ROOM)];
        post_recv(&mut pair.b.qp, &[RecvWr { wr_id: done + SLOTS, sge: &sge }])?;
    }
    Ok(())
}

/// An operation on a reliable connection, the opcode and length in its completion, and the opcode
/// in the completion of the receive that it uses. The length is undefined for sends and writes.
type Operation = (SendOp<'static>, WcOpcode, Option<u32>, Option<WcOpcode>);

const LEN: usize = 3000;

fn operations<P: Provider>(arena: &Arena<P>) -> [Operation; 7] {
    let (remote_addr, rkey) = (arena.addr(), arena.rkey());
    let received = Some(WcOpcode::RECV_RDMA_WITH_IMM);
    [
        (SendOp::Send, WcOpcode::SEND, None, Some(WcOpcode::RECV)),
        (SendOp::SendWithImm { imm_data: 0xfedc_ba98 }, WcOpcode::SEND, None, Some(WcOpcode::RECV)),
        (SendOp::RdmaWrite { remote_addr, rkey }, WcOpcode::RDMA_WRITE, None, None),
        (
            SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data: 0xfedc_ba98 },
            WcOpcode::RDMA_WRITE,
            None,
            received,
        ),
        (SendOp::RdmaRead { remote_addr, rkey }, WcOpcode::RDMA_READ, Some(LEN as u32), None),
        (SendOp::AtomicFetchAndAdd { remote_addr, rkey, add: 1 }, WcOpcode::FETCH_ADD, Some(8), None),
        (
            SendOp::AtomicCmpAndSwp { remote_addr, rkey, compare: 0, swap: 1 },
            WcOpcode::COMP_SWAP,
            Some(8),
            None,
        ),
    ]
}

/// Posts one request per operation, in one call, and the necessary receives. Only the last request
/// is signalled. When it completes, all earlier requests are done.
fn post_all<P: Provider>(
    pair: &mut Pair<P>,
    local: &Arena<P>,
    target: &Arena<P>,
    flags: impl Fn(u64) -> SendFlags,
) -> CaseResult {
    let (long, eight) = ([local.sge(0..LEN)], [local.sge(0..8)]);
    let mut wrs = Vec::new();
    for (wr_id, (op, opcode, _, received)) in (0..).zip(operations(target)) {
        if received.is_some() {
            post_recv(&mut pair.b.qp, &[RecvWr { wr_id, sge: &[target.sge(0..LEN)] }])?;
        }
        let is_atomic = [WcOpcode::FETCH_ADD, WcOpcode::COMP_SWAP].contains(&opcode);
        let sge = if is_atomic { &eight } else { &long };
        wrs.push(SendWr { wr_id, op, sge, flags: flags(wr_id) });
    }
    Ok(post_send(&mut pair.a.qp, &wrs)?)
}

fn each_operation_completes_only_where_it_is_signalled<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let (local, target) = (Arena::new(&pair.pd, LEN)?, Arena::new(&pair.pd, LEN)?);
    let opcodes = operations(&target).map(|(_, opcode, ..)| opcode);
    let last = opcodes.len() as u64 - 1;
    for which in 0..=last {
        let signal = |n: u64| {
            if n == which || n == last { SendFlags::SIGNALED } else { SendFlags::empty() }
        };
        post_all(&mut pair, &local, &target, signal)?;
        for wr_id in if which == last { vec![last] } else { vec![which, last] } {
            wait_for(&mut pair.a.cq, wr_id, opcodes[wr_id as usize])?;
        }
        assert!(is_empty(&mut pair.a.cq), "a silent request completed beside {which}");
        // Receives complete even if their sends are unsignalled.
        let received: Vec<_> = wait(&mut pair.b.cq, 3)?.iter().map(|wc| wc.wr_id).collect();
        assert_eq!(received, [0, 1, 3]);
    }
    Ok(())
}

fn with_sq_sig_all_each_operation_completes<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape { sq_sig_all: true, ..Shape::default() })?;
    let (local, target) = (Arena::new(&pair.pd, LEN)?, Arena::new(&pair.pd, LEN)?);
    post_all(&mut pair, &local, &target, |_| SendFlags::empty())?;
    for (wr_id, (_, opcode, ..)) in (0..).zip(operations(&target)) {
        wait_for(&mut pair.a.cq, wr_id, opcode)?;
    }
    assert!(is_empty(&mut pair.a.cq));
    Ok(())
}

fn each_completion_names_its_operation_and_its_queue_pair<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let (local, target) = (Arena::new(&pair.pd, LEN)?, Arena::new(&pair.pd, LEN)?);
    post_all(&mut pair, &local, &target, |_| SendFlags::SIGNALED)?;
    for (wr_id, (op, opcode, len, received)) in (0..).zip(operations(&target)) {
        let wc = wait_for(&mut pair.a.cq, wr_id, opcode)?;
        // rxe also sets the immediate data flag for the sender (`make_send_cqe`).
        let flags = if is_rxe()? { wc.wc_flags - WcFlags::WITH_IMM } else { wc.wc_flags };
        assert_eq!((wc.qp_num, flags), (pair.a.qp.qp_num(), WcFlags::empty()), "{op:?}");
        assert_eq!(len.unwrap_or(wc.byte_len), wc.byte_len, "{op:?}");
        let Some(received) = received else { continue };
        let wc = wait_for(&mut pair.b.cq, wr_id, received)?;
        assert_eq!((wc.qp_num, wc.byte_len as usize), (pair.b.qp.qp_num(), LEN), "{op:?}");
        // rxe sets the flag for a global routing header on every message, although only datagrams
        // have the header.
        let flags = if is_rxe()? { wc.wc_flags - WcFlags::GRH } else { wc.wc_flags };
        if matches!(op, SendOp::Send) {
            assert_eq!(flags, WcFlags::empty());
        } else {
            assert_eq!((flags, wc.imm_data), (WcFlags::WITH_IMM, 0xfedc_ba98), "{op:?}");
        }
    }
    Ok(())
}

fn solicited_events_come_for_immediates_and_not_for_writes<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape { events: true, ..Shape::default() })?;
    let (local, target) = (Arena::new(&pair.pd, 8)?, Arena::new(&pair.pd, 8)?);
    let (remote_addr, rkey) = (target.addr(), target.rkey());
    let write = SendOp::RdmaWrite { remote_addr, rkey };
    let read = SendOp::RdmaRead { remote_addr, rkey };
    let write_imm = SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data: 1 };
    let sge = [local.sge(0..8)];
    for solicited in [write_imm, SendOp::SendWithImm { imm_data: 1 }, SendOp::Send] {
        pair.b.cq.req_notify(true)?;
        for (op, flags, raises) in [
            (write, SendFlags::SOLICITED, false),
            (read, SendFlags::empty(), false),
            (write_imm, SendFlags::empty(), false),
            (SendOp::SendWithImm { imm_data: 1 }, SendFlags::empty(), false),
            (solicited, SendFlags::SOLICITED, true),
        ] {
            let receives = !matches!(op, SendOp::RdmaWrite { .. } | SendOp::RdmaRead { .. });
            if receives {
                post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[target.sge(0..8)] }])?;
            }
            let flags = flags | SendFlags::SIGNALED;
            post_send(&mut pair.a.qp, &[SendWr { wr_id: 1, op, sge: &sge, flags }])?;
            wait(&mut pair.a.cq, 1)?;
            wait(&mut pair.b.cq, usize::from(receives))?;
            let Some(channel) = &pair.b.channel else { return fail("no channel") };
            if raises {
                let event = channel.wait(Some(PATIENCE))?;
                assert_eq!(event.map(|event| event.cq), Some(pair.b.cq.id()), "{op:?}");
            } else {
                assert_eq!(channel.next_event()?, None, "{op:?} with {flags:?} raised an event");
            }
        }
    }
    Ok(())
}

fn a_raw_batch_as_long_as_the_queue_executes_in_order<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &small())?;
    let (target, into) = (Arena::new(&pair.pd, 8 * 8)?, Arena::new(&pair.pd, 8 * 8)?);
    let (addr, rkey) = (target.addr(), target.rkey());
    // More rounds than the ring has slots.
    for round in 0..20_u64 {
        target.write(0, &[0; 64]);
        into.write(0, &[0; 64]);
        for n in [1, 2, 3, 5, 6, 7] {
            post_recv(&mut pair.b.qp, &[RecvWr { wr_id: n as u64, sge: &[into.sge(8 * n..8 * n + 8)] }])?;
        }
        let number = |n: u64| (round << 32 | n).to_ne_bytes();
        let mut wr = pair.a.qp.wr_start();
        for n in 0..8 {
            wr.wr_id = n;
            wr.wr_flags = if n % 4 == 3 { SendFlags::SIGNALED } else { SendFlags::empty() };
            match n % 4 {
                0 => wr.rdma_write(rkey, addr + 8 * n).set_inline_data(&number(n)),
                1 => wr.send().set_inline_data(&number(n)),
                2 => wr.send_imm(n as u32).set_inline_data_list(&[&number(n)[..3], &number(n)[3..]]),
                _ => wr.rdma_write_imm(rkey, addr + 8 * n, n as u32).set_inline_data(&number(n)),
            }
        }
        assert_eq!(wr.len(), 8);
        assert_eq!(wr.complete()?, 8);
        wait_for(&mut pair.a.cq, 3, WcOpcode::RDMA_WRITE)?;
        wait_for(&mut pair.a.cq, 7, WcOpcode::RDMA_WRITE)?;
        let received: Vec<_> = wait(&mut pair.b.cq, 6)?
            .iter()
            .map(|wc| (wc.wr_id, wc.opcode, verbs_fixtures::fabric::imm(wc), wc.byte_len))
            .collect();
        let expected = [1, 2, 3, 5, 6, 7].map(|n: u32| {
            let opcode = if n % 4 == 3 { WcOpcode::RECV_RDMA_WITH_IMM } else { WcOpcode::RECV };
            (u64::from(n), opcode, (n % 4 != 1).then_some(n), 8)
        });
        assert_eq!(received, expected, "round {round}");
        for n in 0..8 {
            let place = if n % 4 == 1 || n % 4 == 2 { &into } else { &target };
            assert_eq!(place.read(8 * n..8 * n + 8), number(n as u64), "round {round}, request {n}");
        }
    }
    Ok(())
}

fn a_raw_batch_that_is_longer_than_the_queue_posts_nothing<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &small())?;
    let target = Arena::new(&pair.pd, 8)?;
    let (addr, rkey) = (target.addr(), target.rkey());
    for round in 0..20_u64 {
        let mut wr = pair.a.qp.wr_start();
        wr.wr_flags = SendFlags::SIGNALED;
        for _ in 0..100 {
            wr.rdma_write(rkey, addr).set_inline_data(b"too many");
        }
        let refused = wr.complete().expect_err("100 requests for a queue of 8");
        assert_eq!(refused.reason, PostReason::QueueFull);
        assert!((8..100).contains(&refused.position), "{refused:?}");
        // The rejected batch has left the queue, which accepts other requests.
        let mut wr = pair.a.qp.wr_start();
        (wr.wr_id, wr.wr_flags) = (round, SendFlags::SIGNALED);
        wr.rdma_write(rkey, addr).set_inline_data(&round.to_ne_bytes());
        wr.complete()?;
        wait_for(&mut pair.a.cq, round, WcOpcode::RDMA_WRITE)?;
        assert!(is_empty(&mut pair.a.cq), "a request of the refused batch completed");
        assert_eq!(target.number(0), round);
    }
    Ok(())
}
