//! Reliable connections: the order of requests, of their data and of their completions.

use verbs::{Context, Provider, RecvWr, RtsAttr, SendFlags, SendOp, SendWr, Sge, WcOpcode, WcStatus};
use verbs_fixtures::fabric::{
    Arena, Link, Pair, Remote, Shape, connect, create_qp, imm, is_empty, is_rxe, pattern, post_recv,
    post_send, rxe_ignores_rnr_timer, signalled, wait, wait_for,
};
use verbs_fixtures::{both, both_with_link};
use verbs_harness::runner::{Case, CaseResult, skip};

use super::SUITE;
use super::attributes::pair_from;
use super::failures::slow_to_be_ready;
use super::states::stays_empty;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = both!(
        SUITE,
        only_sends_and_immediates_take_receives,
        immediate_data_stays_with_its_message,
        writes_are_there_when_the_send_behind_them_arrives,
        data_of_a_write_is_there_when_its_immediate_arrives,
        writes_to_one_place_end_with_the_last,
        a_read_brings_what_was_written_before_it,
        a_fenced_write_leaves_the_result_of_the_read_before_it,
        fenced_requests_hand_data_from_one_to_the_next,
        mixed_operations_complete_in_the_order_of_posting,
        both_ends_read_from_each_other_at_once,
        one_end_reads_while_the_other_sends,
        a_queue_pair_connected_to_itself_executes_every_operation,
        connections_do_not_mix_their_messages,
        sequence_numbers_wrap_amid_requests_in_flight,
        messages_behind_one_without_a_receive_keep_their_order,
    );
    cases.extend(both_with_link!(SUITE, an_outage_of_the_link_repeats_no_effect));
    cases
}

const SILENT: SendFlags = SendFlags::empty();

fn silent<'a>(op: SendOp<'a>, sge: &'a [Sge]) -> SendWr<'a> {
    SendWr { wr_id: 99, op, sge, flags: SILENT }
}

fn write<P: Provider>(arena: &Arena<P>, at: usize) -> SendOp<'static> {
    SendOp::RdmaWrite { remote_addr: arena.addr() + at as u64, rkey: arena.rkey() }
}

fn write_imm<P: Provider>(arena: &Arena<P>, at: usize, imm_data: u32) -> SendOp<'static> {
    SendOp::RdmaWriteWithImm { remote_addr: arena.addr() + at as u64, rkey: arena.rkey(), imm_data }
}

fn read<P: Provider>(arena: &Arena<P>, at: usize) -> SendOp<'static> {
    SendOp::RdmaRead { remote_addr: arena.addr() + at as u64, rkey: arena.rkey() }
}

fn add<P: Provider>(arena: &Arena<P>, at: usize, add: u64) -> SendOp<'static> {
    SendOp::AtomicFetchAndAdd { remote_addr: arena.addr() + at as u64, rkey: arena.rkey(), add }
}

/// Waits for all expected completions, which must be successful and in this order.
fn wait_in_order<P: Provider>(cq: &mut verbs::Cq<P>, expected: &[(u64, WcOpcode)]) -> CaseResult {
    let ended: Vec<_> = wait(cq, expected.len())?.iter().map(|wc| (wc.wr_id, wc.opcode, wc.status)).collect();
    let expected: Vec<_> =
        expected.iter().map(|(wr_id, opcode)| (*wr_id, *opcode, WcStatus::SUCCESS)).collect();
    assert_eq!(ended, expected);
    Ok(())
}

/// A request, the opcode of its completion and its local memory.
type Request<'a> = (SendOp<'a>, WcOpcode, &'a [Sge]);

/// Posts requests on A, all signalled. They must complete in order, as must B's first `receives`
/// receives.
fn end_in_order<P: Provider>(pair: &mut Pair<P>, requests: &[Request<'_>], receives: usize) -> CaseResult {
    let wrs: Vec<_> = (0..).zip(requests).map(|(wr_id, (op, _, sge))| signalled(wr_id, *op, sge)).collect();
    post_send(&mut pair.a.qp, &wrs)?;
    let expected: Vec<_> = (0..).zip(requests).map(|(wr_id, (_, opcode, _))| (wr_id, *opcode)).collect();
    wait_in_order(&mut pair.a.cq, &expected)?;
    let received: Vec<_> = (0..receives as u64).map(|n| (n, WcOpcode::RECV)).collect();
    wait_in_order(&mut pair.b.cq, &received)
}

fn only_sends_and_immediates_take_receives<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let (local, target) = (Arena::new(&pair.pd, 64)?, Arena::new(&pair.pd, 64)?);
    for wr_id in 100..110 {
        post_recv(&mut pair.b.qp, &[RecvWr { wr_id, sge: &[target.sge(32..64)] }])?;
    }
    let sge = [local.sge(0..8)];
    let ops = [
        write(&target, 0),
        SendOp::Send,
        read(&target, 0),
        write_imm(&target, 0, 7),
        add(&target, 0, 1),
        SendOp::SendWithImm { imm_data: 8 },
    ];
    let wrs: Vec<_> = (0..18).map(|n| signalled(n, ops[n as usize % 6], &sge)).collect();
    post_send(&mut pair.a.qp, &wrs)?;
    wait(&mut pair.a.cq, 18)?;
    let taken: Vec<_> = wait(&mut pair.b.cq, 9)?.iter().map(|wc| (wc.wr_id, wc.opcode, imm(wc))).collect();
    let expected: Vec<_> = (0..3)
        .flat_map(|round| {
            [
                (100 + 3 * round, WcOpcode::RECV, None),
                (101 + 3 * round, WcOpcode::RECV_RDMA_WITH_IMM, Some(7)),
                (102 + 3 * round, WcOpcode::RECV, Some(8)),
            ]
        })
        .collect();
    assert_eq!(taken, expected);
    // Exactly one receive is left.
    assert!(is_empty(&mut pair.b.cq));
    post_send(&mut pair.a.qp, &[signalled(18, SendOp::Send, &sge)])?;
    wait_for(&mut pair.a.cq, 18, WcOpcode::SEND)?;
    wait_for(&mut pair.b.cq, 109, WcOpcode::RECV)?;
    Ok(())
}

fn immediate_data_stays_with_its_message<P: Provider>(context: &Context<P>) -> CaseResult {
    const COUNT: usize = 30;
    let mut pair = Pair::new(context, &Shape::default())?;
    let (from, into) = (Arena::new(&pair.pd, 3000)?, Arena::new(&pair.pd, 3000)?);
    let recv = [into.sge(0..3000)];
    let recvs: Vec<_> = (0..COUNT as u64).map(|wr_id| RecvWr { wr_id, sge: &recv }).collect();
    post_recv(&mut pair.b.qp, &recvs)?;
    // Messages of one packet and of several packets, with and without immediate data.
    let sges: Vec<_> = (0..COUNT).map(|n| [from.sge(0..100 * n)]).collect();
    let immediate = |n: usize| (n % 3 != 1).then_some(0x8000_0001 + 0x0001_0100 * n as u32);
    let wrs: Vec<_> = (0..COUNT)
        .map(|n| {
            let op = immediate(n).map_or(SendOp::Send, |imm_data| SendOp::SendWithImm { imm_data });
            signalled(n as u64, op, &sges[n])
        })
        .collect();
    post_send(&mut pair.a.qp, &wrs)?;
    wait(&mut pair.a.cq, COUNT)?;
    let arrived: Vec<_> =
        wait(&mut pair.b.cq, COUNT)?.iter().map(|wc| (wc.wr_id as usize, wc.byte_len, imm(wc))).collect();
    assert_eq!(arrived, (0..COUNT).map(|n| (n, 100 * n as u32, immediate(n))).collect::<Vec<_>>());
    Ok(())
}

fn writes_are_there_when_the_send_behind_them_arrives<P: Provider>(context: &Context<P>) -> CaseResult {
    const LEN: usize = 3000;
    const WRITES: usize = 7;
    let mut pair = Pair::new(context, &Shape::default())?;
    let (from, into) = (Arena::new(&pair.pd, WRITES * LEN)?, Arena::new(&pair.pd, WRITES * LEN)?);
    for round in 0..20 {
        from.write(0, &pattern(round, WRITES * LEN));
        post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[] }])?;
        let sges: Vec<_> = (0..WRITES).map(|n| [from.sge(n * LEN..(n + 1) * LEN)]).collect();
        // In descending address order, so that the addresses cannot explain the order of arrival.
        let mut wrs: Vec<_> = (0..WRITES).rev().map(|n| silent(write(&into, n * LEN), &sges[n])).collect();
        wrs.push(signalled(1, SendOp::Send, &[]));
        post_send(&mut pair.a.qp, &wrs)?;
        wait_for(&mut pair.b.cq, 2, WcOpcode::RECV)?;
        assert!(into.read(0..WRITES * LEN) == pattern(round, WRITES * LEN), "round {round}");
        wait_for(&mut pair.a.cq, 1, WcOpcode::SEND)?;
    }
    Ok(())
}

fn data_of_a_write_is_there_when_its_immediate_arrives<P: Provider>(context: &Context<P>) -> CaseResult {
    const LEN: usize = 20_000;
    let mut pair = Pair::new(context, &Shape::default())?;
    let (from, into) = (Arena::new(&pair.pd, LEN)?, Arena::new(&pair.pd, LEN)?);
    for round in 0..20 {
        from.write(0, &pattern(round, LEN));
        post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[] }])?;
        post_send(&mut pair.a.qp, &[signalled(1, write_imm(&into, 0, round), &[from.sge(0..LEN)])])?;
        wait_for(&mut pair.b.cq, 2, WcOpcode::RECV_RDMA_WITH_IMM)?;
        assert!(into.read(0..LEN) == pattern(round, LEN), "round {round}");
        wait_for(&mut pair.a.cq, 1, WcOpcode::RDMA_WRITE)?;
    }
    Ok(())
}

fn writes_to_one_place_end_with_the_last<P: Provider>(context: &Context<P>) -> CaseResult {
    const WRITES: usize = 16;
    const LEN: usize = 2500;
    let mut pair = Pair::new(context, &Shape::default())?;
    let (from, into) = (Arena::new(&pair.pd, WRITES * LEN)?, Arena::new(&pair.pd, 2 * LEN)?);
    let bytes = pattern(4, WRITES * LEN);
    from.write(0, &bytes);
    let mut expected = vec![0; 2 * LEN];
    let sges: Vec<_> = (0..WRITES).map(|n| [from.sge(n * LEN..(n + 1) * LEN)]).collect();
    let mut wrs = Vec::new();
    for n in 0..WRITES {
        // Each write overlaps the previous write.
        let at = n * 997 % LEN;
        expected[at..at + LEN].copy_from_slice(&bytes[n * LEN..(n + 1) * LEN]);
        wrs.push(silent(write(&into, at), &sges[n]));
    }
    wrs.push(signalled(1, write(&into, 0), &[]));
    post_send(&mut pair.a.qp, &wrs)?;
    wait_for(&mut pair.a.cq, 1, WcOpcode::RDMA_WRITE)?;
    assert!(into.read(0..2 * LEN) == expected);
    Ok(())
}

fn a_read_brings_what_was_written_before_it<P: Provider>(context: &Context<P>) -> CaseResult {
    const LEN: usize = 10_000;
    let mut pair = Pair::new(context, &Shape::default())?;
    let make = || Arena::new(&pair.pd, LEN);
    let (from, target, back) = (make()?, make()?, make()?);
    for round in 0..10 {
        from.write(0, &pattern(round, LEN));
        let (out, result) = ([from.sge(0..LEN)], [back.sge(0..LEN)]);
        // Neither a completion nor a fence separates the write from the read.
        let wrs = [silent(write(&target, 0), &out), signalled(2, read(&target, 0), &result)];
        post_send(&mut pair.a.qp, &wrs)?;
        wait_for(&mut pair.a.cq, 2, WcOpcode::RDMA_READ)?;
        assert!(back.read(0..LEN) == pattern(round, LEN), "round {round}");
    }
    Ok(())
}

fn a_fenced_write_leaves_the_result_of_the_read_before_it<P: Provider>(context: &Context<P>) -> CaseResult {
    const LEN: usize = 20_000;
    let mut pair = Pair::new(context, &Shape::default())?;
    let make = || Arena::new(&pair.pd, LEN);
    let (from, target, back) = (make()?, make()?, make()?);
    target.write(0, &pattern(0, LEN));
    for round in 1..10 {
        from.write(0, &pattern(round, LEN));
        let (out, result) = ([from.sge(0..LEN)], [back.sge(0..LEN)]);
        let flags = SendFlags::FENCE | SendFlags::SIGNALED;
        let wrs =
            [silent(read(&target, 0), &result), SendWr { wr_id: 2, op: write(&target, 0), sge: &out, flags }];
        post_send(&mut pair.a.qp, &wrs)?;
        wait_for(&mut pair.a.cq, 2, WcOpcode::RDMA_WRITE)?;
        assert!(back.read(0..LEN) == pattern(round - 1, LEN), "round {round}: the read");
        assert!(target.read(0..LEN) == pattern(round, LEN), "round {round}: the write");
    }
    Ok(())
}

fn fenced_requests_hand_data_from_one_to_the_next<P: Provider>(context: &Context<P>) -> CaseResult {
    const LEN: usize = 5000;
    let mut pair = Pair::new(context, &Shape::default())?;
    // The peer's memory has three slots; the data passes through two slots on this side.
    let (local, remote) = (Arena::new(&pair.pd, 2 * LEN)?, Arena::new(&pair.pd, 3 * LEN)?);
    let (one, two) = ([local.sge(0..LEN)], [local.sge(LEN..2 * LEN)]);
    for round in 0..10 {
        remote.write(0, &pattern(round, LEN));
        let fenced = |op, sge| SendWr { flags: SendFlags::FENCE, ..silent(op, sge) };
        let last =
            SendWr { wr_id: 5, flags: SendFlags::FENCE | SendFlags::SIGNALED, ..silent(SendOp::Send, &two) };
        let into = Arena::new(&pair.pd, LEN)?;
        post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 6, sge: &[into.sge(0..LEN)] }])?;
        let wrs = [
            silent(read(&remote, 0), &one),
            fenced(write(&remote, LEN), &one),
            silent(read(&remote, LEN), &two),
            fenced(write(&remote, 2 * LEN), &two),
            last,
        ];
        post_send(&mut pair.a.qp, &wrs)?;
        wait_for(&mut pair.b.cq, 6, WcOpcode::RECV)?;
        wait_for(&mut pair.a.cq, 5, WcOpcode::SEND)?;
        assert!(remote.read(0..3 * LEN) == pattern(round, LEN).repeat(3), "round {round}");
        assert!(into.read(0..LEN) == pattern(round, LEN), "round {round}");
    }
    Ok(())
}

/// Mixes long reads with requests that are acknowledged at once.
fn mixed_operations_complete_in_the_order_of_posting<P: Provider>(context: &Context<P>) -> CaseResult {
    const LEN: usize = 10_000;
    const ROUNDS: usize = 6;
    let mut pair = Pair::new(context, &Shape::default())?;
    let (source, target) = (Arena::new(&pair.pd, LEN)?, Arena::new(&pair.pd, ROUNDS * 8 + 8)?);
    let (local, results) = (Arena::new(&pair.pd, ROUNDS * LEN)?, Arena::new(&pair.pd, ROUNDS * 8)?);
    let (numbers, into) = (Arena::new(&pair.pd, ROUNDS * 8)?, Arena::new(&pair.pd, ROUNDS * 8)?);
    source.write(0, &pattern(1, LEN));
    numbers.write(0, &pattern(2, ROUNDS * 8));
    let eight = |arena: &Arena<P>, n: usize| [arena.sge(n * 8..n * 8 + 8)];
    let sges: Vec<_> = (0..ROUNDS)
        .map(|n| ([local.sge(n * LEN..(n + 1) * LEN)], eight(&numbers, n), eight(&results, n)))
        .collect();
    let mut requests: Vec<Request<'_>> = Vec::new();
    for (n, (long, number, result)) in sges.iter().enumerate() {
        post_recv(&mut pair.b.qp, &[RecvWr { wr_id: n as u64, sge: &eight(&into, n) }])?;
        requests.extend([
            (read(&source, 0), WcOpcode::RDMA_READ, &long[..]),
            (SendOp::Send, WcOpcode::SEND, &number[..]),
            (write(&target, n * 8), WcOpcode::RDMA_WRITE, &number[..]),
            (add(&target, ROUNDS * 8, 1), WcOpcode::FETCH_ADD, &result[..]),
        ]);
    }
    end_in_order(&mut pair, &requests, ROUNDS)?;
    assert!(local.read(0..ROUNDS * LEN) == pattern(1, LEN).repeat(ROUNDS), "the reads");
    assert_eq!(into.read(0..ROUNDS * 8), pattern(2, ROUNDS * 8), "the sends");
    assert_eq!(target.read(0..ROUNDS * 8), pattern(2, ROUNDS * 8), "the writes");
    let found: Vec<_> = (0..ROUNDS).map(|n| results.number(n * 8)).collect();
    assert_eq!(found, (0..ROUNDS as u64).collect::<Vec<_>>(), "the atomics");
    Ok(())
}

fn both_ends_read_from_each_other_at_once<P: Provider>(context: &Context<P>) -> CaseResult {
    cross(context, true)
}

fn one_end_reads_while_the_other_sends<P: Provider>(context: &Context<P>) -> CaseResult {
    cross(context, false)
}

/// Makes one end read from the other, which reads or sends in the opposite direction at the same
/// time.
fn cross<P: Provider>(context: &Context<P>, other_reads: bool) -> CaseResult {
    const COUNT: usize = 8;
    const LEN: usize = 10_000;
    let mut pair = Pair::new(context, &Shape::default())?;
    let make = || Arena::new(&pair.pd, COUNT * LEN);
    let (a_has, a_gets, a_reads) = (make()?, make()?, make()?);
    let (b_has, b_reads) = (make()?, make()?);
    a_has.write(0, &pattern(1, COUNT * LEN));
    b_has.write(0, &pattern(2, COUNT * LEN));
    let part = |n: usize| n * LEN..(n + 1) * LEN;
    for n in 0..COUNT {
        post_recv(&mut pair.a.qp, &[RecvWr { wr_id: 100 + n as u64, sge: &[a_gets.sge(part(n))] }])?;
    }
    for n in 0..COUNT {
        let wr_id = n as u64;
        post_send(&mut pair.a.qp, &[signalled(wr_id, read(&b_has, n * LEN), &[a_reads.sge(part(n))])])?;
        let (op, sge) = if other_reads {
            (read(&a_has, n * LEN), b_reads.sge(part(n)))
        } else {
            (SendOp::Send, b_has.sge(part(n)))
        };
        post_send(&mut pair.b.qp, &[signalled(wr_id, op, &[sge])])?;
    }
    let all = |opcode, first: u64| (first..first + COUNT as u64).map(|id| (id, opcode)).collect::<Vec<_>>();
    let requests = all(if other_reads { WcOpcode::RDMA_READ } else { WcOpcode::SEND }, 0);
    wait_in_order(&mut pair.b.cq, &requests)?;
    let receives = if other_reads { 0 } else { COUNT };
    let wcs = wait(&mut pair.a.cq, COUNT + receives)?;
    assert!(wcs.iter().all(|wc| wc.status == WcStatus::SUCCESS), "{wcs:?}");
    // Each queue completes in order. The order between the queues is undefined.
    let of =
        |opcode| wcs.iter().filter(|wc| wc.opcode == opcode).map(|wc| (wc.wr_id, opcode)).collect::<Vec<_>>();
    assert_eq!(of(WcOpcode::RDMA_READ), all(WcOpcode::RDMA_READ, 0));
    assert!(a_reads.read(0..COUNT * LEN) == pattern(2, COUNT * LEN), "the reads of a");
    if other_reads {
        assert!(b_reads.read(0..COUNT * LEN) == pattern(1, COUNT * LEN), "the reads of b");
    } else {
        assert_eq!(of(WcOpcode::RECV), all(WcOpcode::RECV, 100));
        assert!(a_gets.read(0..COUNT * LEN) == pattern(2, COUNT * LEN), "the messages of b");
    }
    Ok(())
}

fn a_queue_pair_connected_to_itself_executes_every_operation<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    const LEN: usize = 3000;
    let shape = Shape::default();
    let pd = context.alloc_pd()?;
    let mut cq = context.create_cq(&verbs::CqInit::new(shape.cqe))?;
    let qp = create_qp(&pd, &cq, &shape)?;
    let own = Remote::from_qp(&qp);
    let mut qp = connect(context, qp, &shape, own)?;
    let (from, into) = (Arena::new(&pd, LEN)?, Arena::new(&pd, LEN)?);
    let (remote_addr, rkey) = (into.addr(), into.rkey());
    let swap = SendOp::AtomicCmpAndSwp { remote_addr, rkey, compare: 41, swap: 42 };
    for (seed, (op, opcode, received)) in (1..).zip([
        (SendOp::Send, WcOpcode::SEND, Some(WcOpcode::RECV)),
        (SendOp::SendWithImm { imm_data: 5 }, WcOpcode::SEND, Some(WcOpcode::RECV)),
        (write(&into, 0), WcOpcode::RDMA_WRITE, None),
        (write_imm(&into, 0, 5), WcOpcode::RDMA_WRITE, Some(WcOpcode::RECV_RDMA_WITH_IMM)),
        // Reads the written data back.
        (read(&into, 0), WcOpcode::RDMA_READ, None),
        (add(&into, 0, 1), WcOpcode::FETCH_ADD, None),
        (swap, WcOpcode::COMP_SWAP, None),
    ]) {
        let is_atomic = [WcOpcode::FETCH_ADD, WcOpcode::COMP_SWAP].contains(&opcode);
        let before = if opcode == WcOpcode::RDMA_READ { seed - 1 } else { seed };
        if is_atomic {
            into.write(0, &(if opcode == WcOpcode::COMP_SWAP { 41 } else { 40_u64 }).to_ne_bytes());
        } else {
            from.write(0, &pattern(seed, LEN));
        }
        if received.is_some() {
            post_recv(&mut qp, &[RecvWr { wr_id: 2, sge: &[into.sge(0..LEN)] }])?;
        }
        let sge = [from.sge(0..if is_atomic { 8 } else { LEN })];
        post_send(&mut qp, &[signalled(1, op, &sge)])?;
        let wcs = wait(&mut cq, 1 + usize::from(received.is_some()))?;
        let mut ended: Vec<_> = wcs.iter().map(|wc| (wc.wr_id, wc.opcode, wc.status)).collect();
        ended.sort_unstable_by_key(|(wr_id, ..)| *wr_id);
        let expected: Vec<_> = [Some((1, opcode)), received.map(|received| (2, received))]
            .into_iter()
            .flatten()
            .map(|(wr_id, opcode)| (wr_id, opcode, WcStatus::SUCCESS))
            .collect();
        assert_eq!(ended, expected, "{op:?}");
        if is_atomic {
            let old = if opcode == WcOpcode::COMP_SWAP { 41 } else { 40 };
            assert_eq!((from.number(0), into.number(0)), (old, old + 1), "{op:?}");
        } else {
            assert!(into.read(0..LEN) == pattern(before, LEN), "{op:?}");
            assert!(from.read(0..LEN) == pattern(before, LEN), "{op:?}");
        }
    }
    Ok(())
}

fn connections_do_not_mix_their_messages<P: Provider>(context: &Context<P>) -> CaseResult {
    const PAIRS: usize = 6;
    const COUNT: usize = 5;
    const LEN: usize = 2500;
    let mut pairs = Vec::new();
    for n in 0..PAIRS {
        let pair = Pair::new(context, &Shape::default())?;
        let (from, into) = (Arena::new(&pair.pd, COUNT * LEN)?, Arena::new(&pair.pd, 2 * COUNT * LEN)?);
        from.write(0, &pattern(n as u32, COUNT * LEN));
        pairs.push((pair, from, into));
    }
    for n in 0..COUNT {
        for (pair, from, into) in &mut pairs {
            let (wr_id, part) = (n as u64, n * LEN..(n + 1) * LEN);
            post_recv(&mut pair.b.qp, &[RecvWr { wr_id, sge: &[into.sge(part.clone())] }])?;
            let sge = [from.sge(part)];
            let wrs = [silent(write(into, (COUNT + n) * LEN), &sge), signalled(wr_id, SendOp::Send, &sge)];
            post_send(&mut pair.a.qp, &wrs)?;
        }
    }
    for (n, (pair, _, into)) in pairs.iter_mut().enumerate() {
        let ids = 0..COUNT as u64;
        wait_in_order(&mut pair.a.cq, &ids.clone().map(|id| (id, WcOpcode::SEND)).collect::<Vec<_>>())?;
        wait_in_order(&mut pair.b.cq, &ids.map(|id| (id, WcOpcode::RECV)).collect::<Vec<_>>())?;
        let sent = pattern(n as u32, COUNT * LEN).repeat(2);
        assert!(into.read(0..2 * COUNT * LEN) == sent, "connection {n}");
    }
    Ok(())
}

fn sequence_numbers_wrap_amid_requests_in_flight<P: Provider>(context: &Context<P>) -> CaseResult {
    const LEN: usize = 5000;
    const ROUNDS: usize = 6;
    // Three requests of 5 packets in each round. The packet sequence numbers wrap within a read, a
    // write and a send, as well as between them.
    for start in [0xff_fffd, 0xff_fff8, 0xff_fff3, 0xff_fff1, 0xff_ffd8] {
        let mut pair = pair_from(context, &Shape::default(), start)?;
        let make = |len| Arena::new(&pair.pd, len);
        let (source, target) = (make(LEN)?, make(2 * LEN)?);
        let (local, into) = (make(ROUNDS * LEN)?, make(ROUNDS * LEN)?);
        source.write(0, &pattern(start, LEN));
        target.write(0, &pattern(start + 1, LEN));
        let out = [source.sge(0..LEN)];
        let part = |n: usize| n * LEN..(n + 1) * LEN;
        let results: Vec<_> = (0..ROUNDS).map(|n| [local.sge(part(n))]).collect();
        let mut requests: Vec<Request<'_>> = Vec::new();
        for (n, result) in results.iter().enumerate() {
            post_recv(&mut pair.b.qp, &[RecvWr { wr_id: n as u64, sge: &[into.sge(part(n))] }])?;
            requests.extend([
                (read(&target, 0), WcOpcode::RDMA_READ, &result[..]),
                (write(&target, LEN), WcOpcode::RDMA_WRITE, &out[..]),
                (SendOp::Send, WcOpcode::SEND, &out[..]),
            ]);
        }
        end_in_order(&mut pair, &requests, ROUNDS)?;
        assert!(local.read(0..ROUNDS * LEN) == pattern(start + 1, LEN).repeat(ROUNDS), "from {start:#x}");
        assert!(into.read(0..ROUNDS * LEN) == pattern(start, LEN).repeat(ROUNDS), "from {start:#x}");
        assert!(target.read(LEN..2 * LEN) == pattern(start, LEN), "from {start:#x}");
    }
    Ok(())
}

fn messages_behind_one_without_a_receive_keep_their_order<P: Provider>(context: &Context<P>) -> CaseResult {
    const COUNT: usize = 5;
    const LEN: usize = 3000;
    if rxe_ignores_rnr_timer()? {
        return skip("rxe of this kernel repeats at once, and does not wait for the RNR timer");
    }
    let mut pair = slow_to_be_ready(context)?;
    let make = || Arena::new(&pair.pd, COUNT * LEN);
    let (from, into, written) = (make()?, make()?, make()?);
    from.write(0, &pattern(6, COUNT * LEN));
    let part = |n: usize| n * LEN..(n + 1) * LEN;
    for n in 0..COUNT {
        let sge = [from.sge(part(n))];
        let wrs = [signalled(n as u64, SendOp::Send, &sge), silent(write(&written, n * LEN), &sge)];
        post_send(&mut pair.a.qp, &wrs)?;
    }
    // The first send is not accepted yet. Nothing overtakes it, not even the writes, which need no
    // receive.
    stays_empty(&mut pair.a.cq)?;
    assert!(is_empty(&mut pair.b.cq));
    assert_eq!(written.read(0..COUNT * LEN), [0; COUNT * LEN]);
    for n in 0..COUNT {
        post_recv(&mut pair.b.qp, &[RecvWr { wr_id: n as u64, sge: &[into.sge(part(n))] }])?;
    }
    let ids = 0..COUNT as u64;
    wait_in_order(&mut pair.b.cq, &ids.clone().map(|id| (id, WcOpcode::RECV)).collect::<Vec<_>>())?;
    wait_in_order(&mut pair.a.cq, &ids.map(|id| (id, WcOpcode::SEND)).collect::<Vec<_>>())?;
    assert!(into.read(0..COUNT * LEN) == pattern(6, COUNT * LEN));
    Ok(())
}

fn an_outage_of_the_link_repeats_no_effect<P: Provider>(context: &Context<P>, link: Link) -> CaseResult {
    const LEN: usize = 5000;
    const ROUNDS: u64 = 4;
    if is_rxe()? {
        return skip("rxe flushes the source GID of a link that is down, and with it the path");
    }
    // The retries last far longer than `ip` needs: (4 × 7 - 1) × 268 ms.
    let rts = RtsAttr { timeout: 16, retry_cnt: 7, ..Shape::default().rts };
    let mut pair = Pair::new(context, &Shape { rts, ..Shape::default() })?;
    let make = |len| Arena::new(&pair.pd, len);
    let (from, into, back) = (make(LEN)?, make(LEN)?, make(LEN)?);
    let (word, results) = (make(8)?, make(8 * ROUNDS as usize)?);
    let (out, result) = ([from.sge(0..LEN)], [back.sge(0..LEN)]);
    let eight: Vec<_> = (0..ROUNDS as usize).map(|n| [results.sge(n * 8..n * 8 + 8)]).collect();
    for round in 0..ROUNDS {
        from.write(0, &pattern(round as u32, LEN));
        post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 9, sge: &[into.sge(0..LEN)] }])?;
        let wrs = [
            signalled(1, add(&word, 0, 1), &eight[round as usize]),
            signalled(2, SendOp::Send, &out),
            signalled(3, read(&into, 0), &result),
        ];
        // Some packets may be lost, of requests and of responses, and are retransmitted.
        let posted = post_send(&mut pair.a.qp, &wrs);
        link.set("down")?;
        link.set("up")?;
        posted?;
        let expected = [(1, WcOpcode::FETCH_ADD), (2, WcOpcode::SEND), (3, WcOpcode::RDMA_READ)];
        wait_in_order(&mut pair.a.cq, &expected)?;
        wait_for(&mut pair.b.cq, 9, WcOpcode::RECV)?;
        assert!(back.read(0..LEN) == pattern(round as u32, LEN), "round {round}");
        assert_eq!((results.number(8 * round as usize), word.number(0)), (round, round + 1));
    }
    assert!(is_empty(&mut pair.b.cq), "a message arrived twice");
    Ok(())
}
