//! Reliable connections: every operation, with the data verified.

use verbs::{Context, Mtu, Provider, RecvWr, SendFlags, SendOp, SendWr, WcOpcode};
use verbs_fixtures::both;
use verbs_fixtures::fabric::{
    Arena, PORT, Pair, Shape, imm, pattern, post_recv, post_send, signalled, wait, wait_for,
};
use verbs_harness::runner::{Case, CaseResult};

use super::SUITE;

pub(super) fn cases() -> Vec<Case> {
    both!(
        SUITE,
        rc_send_arrives_whole_whatever_its_length,
        rc_send_arrives_whole_with_every_mtu,
        rc_send_carries_immediate_data,
        rc_write_changes_exactly_the_bytes_it_names,
        rc_write_with_immediate_data_completes_a_receive,
        rc_read_brings_what_is_there,
        rc_short_reads_bring_what_is_there_and_nothing_else,
        rc_compare_and_swap_swaps_only_what_compares,
        rc_fetch_and_add_wraps_around,
        rc_inline_data_is_free_when_posting_returns,
        rc_elements_are_gathered_and_scattered_in_order,
        rc_nothing_is_a_message_too,
        rc_fenced_send_sees_what_was_read_before,
        rc_both_directions_at_once,
    )
}

/// Lengths in bytes, around the packet size and well beyond it.
const LENGTHS: &[usize] = &[1, 3, 4, 63, 1023, 1024, 1025, 4096, 65_536, 1 << 20];

fn rc_send_arrives_whole_whatever_its_length<P: Provider>(context: &Context<P>) -> CaseResult {
    send_lengths(context, &Shape::default(), LENGTHS)
}

fn rc_send_arrives_whole_with_every_mtu<P: Provider>(context: &Context<P>) -> CaseResult {
    // MTUs that fit the link: a guest's veth pair carries Ethernet frames with 1500 bytes; loopback
    // carries more than the largest MTU.
    let active = context.query_port(PORT)?.active_mtu;
    let fit = [Mtu::MTU_256, Mtu::MTU_512, Mtu::MTU_1024, Mtu::MTU_2048, Mtu::MTU_4096];
    let fit = fit.into_iter().filter(|path_mtu| path_mtu.0 <= active.0);
    assert!(fit.clone().count() >= 3, "{active}");
    for path_mtu in fit {
        let lengths = [255, 256, 257, 512, 1025, 4097, 9000];
        send_lengths(context, &Shape { path_mtu, ..Shape::default() }, &lengths)?;
    }
    Ok(())
}

fn send_lengths<P: Provider>(context: &Context<P>, shape: &Shape, lengths: &[usize]) -> CaseResult {
    let mut pair = Pair::new(context, shape)?;
    for (round, &len) in lengths.iter().enumerate() {
        let (from, into) = (Arena::new(&pair.pd, len)?, Arena::new(&pair.pd, len + 8)?);
        let (sent, untouched) = (pattern(round as u32, len), pattern(77, 8));
        from.write(0, &sent);
        into.write(len, &untouched);
        post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[into.sge(0..len + 8)] }])?;
        post_send(&mut pair.a.qp, &[signalled(1, SendOp::Send, &[from.sge(0..len)])])?;
        wait_for(&mut pair.a.cq, 1, WcOpcode::SEND)?;
        let wc = wait_for(&mut pair.b.cq, 2, WcOpcode::RECV)?;
        assert_eq!((wc.byte_len as usize, wc.qp_num), (len, pair.b.qp.qp_num()));
        assert_eq!(imm(&wc), None);
        assert!(into.read(0..len) == sent, "{len} bytes were garbled");
        assert_eq!(into.read(len..len + 8), untouched, "bytes behind the message");
    }
    Ok(())
}

fn rc_send_carries_immediate_data<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let (from, into) = (Arena::new(&pair.pd, 16)?, Arena::new(&pair.pd, 16)?);
    from.write(0, b"with a number on");
    // The bytes of the first number differ, so that a wrong byte order is noticed.
    for imm_data in [0x0102_0304, 0, u32::MAX] {
        post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[into.sge(0..16)] }])?;
        post_send(&mut pair.a.qp, &[signalled(1, SendOp::SendWithImm { imm_data }, &[from.sge(0..16)])])?;
        wait_for(&mut pair.a.cq, 1, WcOpcode::SEND)?;
        let wc = wait_for(&mut pair.b.cq, 2, WcOpcode::RECV)?;
        assert_eq!((imm(&wc), wc.byte_len), (Some(imm_data), 16));
    }
    assert_eq!(into.read(0..16), b"with a number on");
    Ok(())
}

fn rc_write_changes_exactly_the_bytes_it_names<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let (from, target) = (Arena::new(&pair.pd, 8192)?, Arena::new(&pair.pd, 8192)?);
    for (seed, range) in [(1, 0..1), (2, 5..12), (3, 1000..3500), (4, 0..8192)] {
        let before = pattern(100 + seed, 8192);
        target.write(0, &before);
        let len = range.len();
        from.write(0, &pattern(seed, len));
        let op = SendOp::RdmaWrite { remote_addr: target.addr() + range.start as u64, rkey: target.rkey() };
        post_send(&mut pair.a.qp, &[signalled(9, op, &[from.sge(0..len)])])?;
        wait_for(&mut pair.a.cq, 9, WcOpcode::RDMA_WRITE)?;
        let mut expected = before;
        expected[range].copy_from_slice(&pattern(seed, len));
        assert!(target.read(0..8192) == expected, "a write of {len} bytes");
    }
    assert!(verbs_fixtures::fabric::is_empty(&mut pair.b.cq), "the target is not told");
    Ok(())
}

fn rc_write_with_immediate_data_completes_a_receive<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let (from, target) = (Arena::new(&pair.pd, 3000)?, Arena::new(&pair.pd, 3000)?);
    let landing = Arena::new(&pair.pd, 64)?;
    from.write(0, &pattern(5, 3000));
    post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[landing.sge(0..64)] }])?;
    let op =
        SendOp::RdmaWriteWithImm { remote_addr: target.addr(), rkey: target.rkey(), imm_data: 0xcafe_0001 };
    post_send(&mut pair.a.qp, &[signalled(1, op, &[from.sge(0..3000)])])?;
    wait_for(&mut pair.a.cq, 1, WcOpcode::RDMA_WRITE)?;
    let wc = wait_for(&mut pair.b.cq, 2, WcOpcode::RECV_RDMA_WITH_IMM)?;
    assert_eq!((imm(&wc), wc.byte_len), (Some(0xcafe_0001), 3000));
    assert_eq!(target.read(0..3000), pattern(5, 3000));
    assert_eq!(landing.read(0..64), [0; 64], "the receive's own memory is not written");
    Ok(())
}

fn rc_read_brings_what_is_there<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let (into, source) = (Arena::new(&pair.pd, 65_536)?, Arena::new(&pair.pd, 65_536)?);
    for (round, &len) in LENGTHS.iter().enumerate().filter(|(_, len)| **len < 65_536) {
        let there = pattern(round as u32 + 40, len);
        source.write(7, &there);
        let op = SendOp::RdmaRead { remote_addr: source.addr() + 7, rkey: source.rkey() };
        post_send(&mut pair.a.qp, &[signalled(3, op, &[into.sge(0..len)])])?;
        let wc = wait_for(&mut pair.a.cq, 3, WcOpcode::RDMA_READ)?;
        assert_eq!(wc.byte_len as usize, len);
        assert!(into.read(0..len) == there, "a read of {len} bytes");
    }
    Ok(())
}

/// Reads about as much data as fits into a completion. All of the queue pair's operations are
/// signalled, because devices then put response data into completions.
fn rc_short_reads_bring_what_is_there_and_nothing_else<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape { sq_sig_all: true, ..Shape::default() })?;
    let (into, source) = (Arena::new(&pair.pd, 256)?, Arena::new(&pair.pd, 256)?);
    for (round, len) in [1, 8, 31, 32, 33, 63, 64, 65].into_iter().enumerate() {
        let there = pattern(round as u32 + 60, len);
        source.write(3, &there);
        into.write(0, &[0xa5; 256]);
        let op = SendOp::RdmaRead { remote_addr: source.addr() + 3, rkey: source.rkey() };
        // Reads into two pieces of memory. A short read uses only the first.
        let (first, second) = (len.min(20), len.saturating_sub(20));
        let sge = [into.sge(5..5 + first), into.sge(100..100 + second)];
        let sge = if second == 0 { &sge[..1] } else { &sge };
        post_send(&mut pair.a.qp, &[SendWr { wr_id: 3, op, sge, flags: SendFlags::empty() }])?;
        let wc = wait_for(&mut pair.a.cq, 3, WcOpcode::RDMA_READ)?;
        assert_eq!(wc.byte_len as usize, len);
        let mut expected = vec![0xa5; 256];
        expected[5..5 + first].copy_from_slice(&there[..first]);
        expected[100..100 + second].copy_from_slice(&there[first..]);
        assert!(into.read(0..256) == expected, "a read of {len} bytes");
    }
    Ok(())
}

fn rc_compare_and_swap_swaps_only_what_compares<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let (result, target) = (Arena::new(&pair.pd, 8)?, Arena::new(&pair.pd, 24)?);
    target.write(8, &0x1111_2222_3333_4444_u64.to_ne_bytes());
    for (compare, swap, before, after) in [
        (0x1111_2222_3333_4444, 5, 0x1111_2222_3333_4444, 5),
        (0x1111_2222_3333_4444, 6, 5, 5),
        (5, u64::MAX, 5, u64::MAX),
    ] {
        let op =
            SendOp::AtomicCmpAndSwp { remote_addr: target.addr() + 8, rkey: target.rkey(), compare, swap };
        post_send(&mut pair.a.qp, &[signalled(4, op, &[result.sge(0..8)])])?;
        wait_for(&mut pair.a.cq, 4, WcOpcode::COMP_SWAP)?;
        assert_eq!((result.number(0), target.number(8)), (before, after));
    }
    assert_eq!((target.number(0), target.number(16)), (0, 0), "its neighbours");
    Ok(())
}

fn rc_fetch_and_add_wraps_around<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let (result, target) = (Arena::new(&pair.pd, 8)?, Arena::new(&pair.pd, 24)?);
    let mut expected = u64::MAX - 2;
    target.write(8, &expected.to_ne_bytes());
    for add in [1, 7, u64::MAX, 1 << 40] {
        let op = SendOp::AtomicFetchAndAdd { remote_addr: target.addr() + 8, rkey: target.rkey(), add };
        post_send(&mut pair.a.qp, &[signalled(4, op, &[result.sge(0..8)])])?;
        wait_for(&mut pair.a.cq, 4, WcOpcode::FETCH_ADD)?;
        assert_eq!(result.number(0), expected);
        expected = expected.wrapping_add(add);
        assert_eq!(target.number(8), expected);
    }
    assert_eq!((target.number(0), target.number(16)), (0, 0), "its neighbours");
    Ok(())
}

fn rc_inline_data_is_free_when_posting_returns<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let into = Arena::new(&pair.pd, 64)?;
    let max = pair.a.qp.cap().max_inline_data as usize;
    assert!(max >= 64);
    for len in [0, 1, 13, 64] {
        let recv = [into.sge(0..64)];
        post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &recv }])?;
        let mut data = pattern(len as u32, len);
        pair.a.qp.post_send_inline(1, SendOp::Send, SendFlags::SIGNALED, &data)?;
        data.fill(0xee);
        wait_for(&mut pair.a.cq, 1, WcOpcode::SEND)?;
        assert_eq!(wait_for(&mut pair.b.cq, 2, WcOpcode::RECV)?.byte_len as usize, len);
        assert_eq!(into.read(0..len), pattern(len as u32, len));
    }
    let target = Arena::new(&pair.pd, 64)?;
    let op = SendOp::RdmaWrite { remote_addr: target.addr() + 1, rkey: target.rkey() };
    pair.a.qp.post_send_inline(3, op, SendFlags::SIGNALED, &pattern(8, 40))?;
    wait_for(&mut pair.a.cq, 3, WcOpcode::RDMA_WRITE)?;
    assert_eq!(target.read(0..42), [&[0], &pattern(8, 40)[..], &[0]].concat());
    // The keys are invalid, because the device does not look up inline data.
    let sge =
        [verbs::Sge { lkey: 0xdead_beef, ..target.sge(1..21) }, verbs::Sge { lkey: 7, ..target.sge(21..41) }];
    let flags = SendFlags::SIGNALED | SendFlags::INLINE;
    post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[into.sge(0..64)] }])?;
    post_send(&mut pair.a.qp, &[SendWr { wr_id: 4, op: SendOp::Send, sge: &sge, flags }])?;
    wait_for(&mut pair.a.cq, 4, WcOpcode::SEND)?;
    assert_eq!(wait_for(&mut pair.b.cq, 2, WcOpcode::RECV)?.byte_len, 40);
    assert_eq!(into.read(0..40), pattern(8, 40));
    Ok(())
}

fn rc_elements_are_gathered_and_scattered_in_order<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let (from, into) = (Arena::new(&pair.pd, 8192)?, Arena::new(&pair.pd, 8192)?);
    from.write(0, &pattern(3, 8192));
    let whole = pattern(3, 8192);
    // Out of order, with gaps and an empty element. The boundaries differ between the two sides.
    let gather = [4000..6500, 0..1, 10..10, 100..1500];
    let scatter = [7000..7003, 0..2000, 2500..4398];
    let message: Vec<u8> = gather.iter().flat_map(|range| whole[range.clone()].to_vec()).collect();
    let (send, recv) = (gather.map(|range| from.sge(range)), scatter.clone().map(|range| into.sge(range)));
    let check = |what: &str| {
        let arrived: Vec<u8> = scatter.iter().flat_map(|range| into.read(range.clone())).collect();
        assert!(arrived == message, "{what}");
        assert_eq!(into.read(2000..2500), [0; 500], "{what}: the gap");
        into.write(0, &[0; 8192]);
    };
    post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &recv }])?;
    post_send(&mut pair.a.qp, &[signalled(1, SendOp::Send, &send)])?;
    wait_for(&mut pair.a.cq, 1, WcOpcode::SEND)?;
    assert_eq!(wait_for(&mut pair.b.cq, 2, WcOpcode::RECV)?.byte_len as usize, message.len());
    check("send");

    let target = Arena::new(&pair.pd, message.len())?;
    let (remote_addr, rkey) = (target.addr(), target.rkey());
    post_send(&mut pair.a.qp, &[signalled(3, SendOp::RdmaWrite { remote_addr, rkey }, &send)])?;
    wait_for(&mut pair.a.cq, 3, WcOpcode::RDMA_WRITE)?;
    assert!(target.read(0..message.len()) == message, "write");

    post_send(&mut pair.a.qp, &[signalled(5, SendOp::RdmaRead { remote_addr, rkey }, &recv)])?;
    wait_for(&mut pair.a.cq, 5, WcOpcode::RDMA_READ)?;
    check("read");
    Ok(())
}

fn rc_nothing_is_a_message_too<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    let arena = Arena::new(&pair.pd, 64)?;
    arena.write(0, &pattern(1, 64));
    for (recv, send) in [(vec![], vec![]), (vec![arena.sge(0..32)], vec![arena.sge(40..40)])] {
        post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &recv }])?;
        post_send(&mut pair.a.qp, &[signalled(1, SendOp::SendWithImm { imm_data: 7 }, &send)])?;
        wait_for(&mut pair.a.cq, 1, WcOpcode::SEND)?;
        let wc = wait_for(&mut pair.b.cq, 2, WcOpcode::RECV)?;
        assert_eq!((wc.byte_len, imm(&wc)), (0, Some(7)));
    }
    // A write of no bytes leaves the memory unchanged.
    let write = SendOp::RdmaWrite { remote_addr: arena.addr(), rkey: arena.rkey() };
    post_send(&mut pair.a.qp, &[signalled(3, write, &[])])?;
    wait_for(&mut pair.a.cq, 3, WcOpcode::RDMA_WRITE)?;
    let read = SendOp::RdmaRead { remote_addr: arena.addr(), rkey: arena.rkey() };
    post_send(&mut pair.a.qp, &[signalled(4, read, &[])])?;
    assert_eq!(wait_for(&mut pair.a.cq, 4, WcOpcode::RDMA_READ)?.byte_len, 0);
    assert_eq!(arena.read(0..64), pattern(1, 64));
    Ok(())
}

fn rc_fenced_send_sees_what_was_read_before<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    const LEN: usize = 20_000;
    let (middle, source, into) =
        (Arena::new(&pair.pd, LEN)?, Arena::new(&pair.pd, LEN)?, Arena::new(&pair.pd, LEN)?);
    for round in 0..10 {
        source.write(0, &pattern(round, LEN));
        post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[into.sge(0..LEN)] }])?;
        let middle_sge = [middle.sge(0..LEN)];
        let read = SendOp::RdmaRead { remote_addr: source.addr(), rkey: source.rkey() };
        post_send(
            &mut pair.a.qp,
            &[
                SendWr { wr_id: 1, op: read, sge: &middle_sge, flags: SendFlags::empty() },
                SendWr {
                    wr_id: 3,
                    op: SendOp::Send,
                    sge: &middle_sge,
                    flags: SendFlags::FENCE | SendFlags::SIGNALED,
                },
            ],
        )?;
        wait_for(&mut pair.b.cq, 2, WcOpcode::RECV)?;
        wait_for(&mut pair.a.cq, 3, WcOpcode::SEND)?;
        assert!(into.read(0..LEN) == pattern(round, LEN), "round {round}: sent before it was read");
    }
    Ok(())
}

fn rc_both_directions_at_once<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &Shape::default())?;
    const COUNT: usize = 8;
    const LEN: usize = 3000;
    let make = || Arena::new(&pair.pd, COUNT * LEN);
    let (a_out, a_in, b_out, b_in) = (make()?, make()?, make()?, make()?);
    a_out.write(0, &pattern(1, COUNT * LEN));
    b_out.write(0, &pattern(2, COUNT * LEN));
    let part = |n: usize| n * LEN..(n + 1) * LEN;
    for n in 0..COUNT {
        post_recv(&mut pair.a.qp, &[RecvWr { wr_id: 100 + n as u64, sge: &[a_in.sge(part(n))] }])?;
        post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 100 + n as u64, sge: &[b_in.sge(part(n))] }])?;
    }
    for n in 0..COUNT {
        post_send(&mut pair.a.qp, &[signalled(n as u64, SendOp::Send, &[a_out.sge(part(n))])])?;
        post_send(&mut pair.b.qp, &[signalled(n as u64, SendOp::Send, &[b_out.sge(part(n))])])?;
    }
    for end in [&mut pair.a, &mut pair.b] {
        let wcs = wait(&mut end.cq, 2 * COUNT)?;
        // Each queue completes in posting order. The order between the queues is undefined.
        for (opcode, first) in [(WcOpcode::SEND, 0), (WcOpcode::RECV, 100)] {
            let ids: Vec<u64> = wcs.iter().filter(|wc| wc.opcode == opcode).map(|wc| wc.wr_id).collect();
            assert_eq!(ids, (first..first + COUNT as u64).collect::<Vec<_>>(), "{wcs:?}");
        }
    }
    assert!(b_in.read(0..COUNT * LEN) == pattern(1, COUNT * LEN));
    assert!(a_in.read(0..COUNT * LEN) == pattern(2, COUNT * LEN));
    Ok(())
}
