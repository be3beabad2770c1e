//! Reliable connections: lengths around the path MTU, alignments, empty and very long messages.

use core::ops::Range;

use verbs::{Context, Mtu, PostReason, Provider, RecvWr, RtsAttr, SendFlags, SendOp, SendWr, Sge, WcOpcode};
use verbs_fixtures::both;
use verbs_fixtures::fabric::{
    Arena, PORT, Pair, Shape, imm, is_empty, pattern, post_recv, post_send, signalled, wait_for,
};
use verbs_harness::runner::{Case, CaseResult};

use super::SUITE;

pub(super) fn cases() -> Vec<Case> {
    both!(
        SUITE,
        a_send_of_each_length_around_the_mtu_arrives_whole,
        a_write_of_each_length_around_the_mtu_arrives_whole,
        a_write_with_immediate_of_each_length_around_the_mtu_arrives_whole,
        a_read_of_each_length_around_the_mtu_arrives_whole,
        a_write_copies_between_addresses_of_any_alignment,
        a_read_copies_between_addresses_of_any_alignment,
        a_message_may_end_in_any_element_of_its_receive,
        a_read_is_scattered_wherever_its_packets_end,
        megabytes_arrive_by_each_operation,
        empty_messages_take_receives_in_their_turn,
        a_write_with_immediate_takes_a_receive_of_any_length,
        inline_data_rides_on_each_operation_that_sends,
    )
}

/// The byte that marks unchanged memory.
const UNTOUCHED: u8 = 0xee;

/// A pair, with memory on both sides for messages of up to `len` bytes.
struct Setup<P: Provider> {
    pair: Pair<P>,
    from: Arena<P>,
    into: Arena<P>,
    len: usize,
}

impl<P: Provider> Setup<P> {
    fn new(context: &Context<P>, shape: &Shape, len: usize) -> CaseResult<Self> {
        let pair = Pair::new(context, shape)?;
        let (from, into) = (Arena::new(&pair.pd, len)?, Arena::new(&pair.pd, len)?);
        Ok(Self { pair, from, into, len })
    }

    /// Fills the source and marks the destination.
    fn fill(&self, seed: u32) {
        self.from.write(0, &pattern(seed, self.len));
        self.into.write(0, &vec![UNTOUCHED; self.len]);
    }

    /// Checks that this part of the source is at offset `at` in the destination and that the rest
    /// of the destination is unchanged.
    fn arrived(&self, seed: u32, part: Range<usize>, at: usize) {
        let mut expected = vec![UNTOUCHED; self.len];
        expected[at..at + part.len()].copy_from_slice(&pattern(seed, self.len)[part.clone()]);
        assert!(self.into.read(0..self.len) == expected, "bytes {part:?} at {at}");
    }
}

/// Calls `transfer` with each length around each path MTU, in both directions. `transfer` copies
/// the first bytes of the source to the given offset in the destination.
fn around_each_mtu<P: Provider>(
    context: &Context<P>,
    transfer: impl Fn(&mut Setup<P>, usize, usize) -> CaseResult,
) -> CaseResult {
    const AT: usize = 8;
    // MTUs that fit the link: a guest's veth pair carries Ethernet frames with 1500 bytes.
    let active = context.query_port(PORT)?.active_mtu;
    let fit: Vec<Mtu> = Mtu::NAMED.iter().copied().filter(|mtu| mtu.bytes() <= active.bytes()).collect();
    assert!(fit.len() >= 3, "{active}");
    for path_mtu in fit {
        let mtu = path_mtu.bytes().unwrap_or(0) as usize;
        let mut setup = Setup::new(context, &Shape { path_mtu, ..Shape::default() }, 6 * mtu)?;
        for (seed, len) in
            (1..).zip([1, mtu - 1, mtu, mtu + 1, 2 * mtu - 1, 2 * mtu, 2 * mtu + 1, 5 * mtu - 3])
        {
            for direction in ["there", "back"] {
                setup.fill(seed);
                transfer(&mut setup, len, AT)
                    .map_err(|stop| stop.context(format_args!("{len} bytes {direction}, MTU {mtu}")))?;
                setup.arrived(seed, 0..len, AT);
                let Pair { a, b, .. } = &mut setup.pair;
                core::mem::swap(a, b);
            }
        }
    }
    Ok(())
}

fn a_send_of_each_length_around_the_mtu_arrives_whole<P: Provider>(context: &Context<P>) -> CaseResult {
    around_each_mtu(context, |Setup { pair, from, into, .. }, len, at| {
        post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[into.sge(at..at + len)] }])?;
        post_send(&mut pair.a.qp, &[signalled(1, SendOp::Send, &[from.sge(0..len)])])?;
        wait_for(&mut pair.a.cq, 1, WcOpcode::SEND)?;
        assert_eq!(wait_for(&mut pair.b.cq, 2, WcOpcode::RECV)?.byte_len as usize, len);
        Ok(())
    })
}

fn a_write_of_each_length_around_the_mtu_arrives_whole<P: Provider>(context: &Context<P>) -> CaseResult {
    around_each_mtu(context, |Setup { pair, from, into, .. }, len, at| {
        let op = SendOp::RdmaWrite { remote_addr: into.addr() + at as u64, rkey: into.rkey() };
        post_send(&mut pair.a.qp, &[signalled(1, op, &[from.sge(0..len)])])?;
        wait_for(&mut pair.a.cq, 1, WcOpcode::RDMA_WRITE)?;
        assert!(is_empty(&mut pair.b.cq), "the peer of a write has no completion");
        Ok(())
    })
}

fn a_write_with_immediate_of_each_length_around_the_mtu_arrives_whole<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    around_each_mtu(context, |Setup { pair, from, into, .. }, len, at| {
        let (remote_addr, rkey) = (into.addr() + at as u64, into.rkey());
        // The last packet, or the only one, carries the immediate data.
        let imm_data = 0x0100_0000 | len as u32;
        let op = SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data };
        post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[] }])?;
        post_send(&mut pair.a.qp, &[signalled(1, op, &[from.sge(0..len)])])?;
        wait_for(&mut pair.a.cq, 1, WcOpcode::RDMA_WRITE)?;
        let wc = wait_for(&mut pair.b.cq, 2, WcOpcode::RECV_RDMA_WITH_IMM)?;
        assert_eq!((wc.byte_len as usize, imm(&wc)), (len, Some(imm_data)));
        Ok(())
    })
}

fn a_read_of_each_length_around_the_mtu_arrives_whole<P: Provider>(context: &Context<P>) -> CaseResult {
    around_each_mtu(context, |Setup { pair, from, into, .. }, len, at| {
        let op = SendOp::RdmaRead { remote_addr: from.addr(), rkey: from.rkey() };
        post_send(&mut pair.a.qp, &[signalled(1, op, &[into.sge(at..at + len)])])?;
        let wc = wait_for(&mut pair.a.cq, 1, WcOpcode::RDMA_READ)?;
        assert_eq!(wc.byte_len as usize, len);
        assert!(is_empty(&mut pair.b.cq), "the peer of a read has no completion");
        Ok(())
    })
}

const ALIGNMENTS: [usize; 6] = [0, 1, 2, 3, 5, 7];

/// Copies data between all pairs of alignments. `copy` returns the request that copies `len` bytes
/// from one offset in the source to another in the destination.
fn all_alignments<P: Provider>(
    context: &Context<P>,
    opcode: WcOpcode,
    copy: impl for<'a> Fn(&Setup<P>, usize, usize, usize) -> (SendOp<'static>, Sge),
) -> CaseResult {
    let mut setup = Setup::new(context, &Shape::default(), 2100)?;
    let mut seed = 0;
    for source in ALIGNMENTS {
        for destination in ALIGNMENTS {
            for len in [3, 1021, 2050] {
                seed += 1;
                setup.fill(seed);
                let (op, sge) = copy(&setup, source, 8 + destination, len);
                post_send(&mut setup.pair.a.qp, &[signalled(1, op, &[sge])])?;
                wait_for(&mut setup.pair.a.cq, 1, opcode)?;
                setup.arrived(seed, source..source + len, 8 + destination);
            }
        }
    }
    Ok(())
}

fn a_write_copies_between_addresses_of_any_alignment<P: Provider>(context: &Context<P>) -> CaseResult {
    all_alignments(context, WcOpcode::RDMA_WRITE, |setup, source, destination, len| {
        let Setup { from, into, .. } = setup;
        let remote_addr = into.addr() + destination as u64;
        (SendOp::RdmaWrite { remote_addr, rkey: into.rkey() }, from.sge(source..source + len))
    })
}

fn a_read_copies_between_addresses_of_any_alignment<P: Provider>(context: &Context<P>) -> CaseResult {
    all_alignments(context, WcOpcode::RDMA_READ, |setup, source, destination, len| {
        let Setup { from, into, .. } = setup;
        let remote_addr = from.addr() + source as u64;
        (SendOp::RdmaRead { remote_addr, rkey: from.rkey() }, into.sge(destination..destination + len))
    })
}

/// Checks that the first bytes of the source fill these parts of the destination in order and that
/// nothing else was written.
fn filled_in_order<P: Provider>(setup: &Setup<P>, seed: u32, parts: &[Range<usize>], len: usize) {
    let mut expected = vec![UNTOUCHED; setup.len];
    let sent = pattern(seed, setup.len);
    let mut rest = &sent[..len];
    for part in parts {
        let (now, later) = rest.split_at(rest.len().min(part.len()));
        expected[part.start..part.start + now.len()].copy_from_slice(now);
        rest = later;
    }
    assert!(rest.is_empty() && setup.into.read(0..setup.len) == expected, "{len} bytes in {parts:?}");
}

fn a_message_may_end_in_any_element_of_its_receive<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut setup = Setup::new(context, &Shape::default(), 5000)?;
    // 5, 1500, 3 and 2000 bytes, with gaps and not in address order.
    let parts = [4000..4005, 100..1600, 3996..3999, 1700..3700];
    let recv = parts.clone().map(|part| setup.into.sge(part));
    for (seed, len) in (1..).zip([0, 1, 4, 5, 6, 1028, 1504, 1505, 1506, 1508, 1509, 2048, 3507, 3508]) {
        setup.fill(seed);
        let Setup { pair, from, .. } = &mut setup;
        post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &recv }])?;
        post_send(&mut pair.a.qp, &[signalled(1, SendOp::Send, &[from.sge(0..len)])])?;
        wait_for(&mut pair.a.cq, 1, WcOpcode::SEND)?;
        assert_eq!(wait_for(&mut pair.b.cq, 2, WcOpcode::RECV)?.byte_len as usize, len);
        filled_in_order(&setup, seed, &parts, len);
    }
    Ok(())
}

fn a_read_is_scattered_wherever_its_packets_end<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut setup = Setup::new(context, &Shape::default(), 5000)?;
    // Elements that end before, at and after the end of a 1024-byte packet; an element that spans
    // two packet ends; an element within a packet.
    for (seed, [one, two, three]) in
        (1..).zip([[1023, 1, 1024], [1024, 1024, 1], [1025, 2046, 1], [1, 2048, 500], [7, 5, 1011]])
    {
        let parts = [3500..3500 + one, 10..10 + two, 2100..2100 + three];
        let len = one + two + three;
        setup.fill(seed);
        let local = parts.clone().map(|part| setup.into.sge(part));
        let Setup { pair, from, .. } = &mut setup;
        let op = SendOp::RdmaRead { remote_addr: from.addr(), rkey: from.rkey() };
        post_send(&mut pair.a.qp, &[signalled(1, op, &local)])?;
        assert_eq!(wait_for(&mut pair.a.cq, 1, WcOpcode::RDMA_READ)?.byte_len as usize, len);
        filled_in_order(&setup, seed, &parts, len);
    }
    Ok(())
}

fn megabytes_arrive_by_each_operation<P: Provider>(context: &Context<P>) -> CaseResult {
    // Not a multiple of the packet size.
    const LEN: usize = (4 << 20) + 5;
    // On a busy machine, the time between two of the 4097 packets may exceed the usual timeout.
    let rts = RtsAttr { timeout: 16, retry_cnt: 7, ..Shape::default().rts };
    let mut setup = Setup::new(context, &Shape { rts, ..Shape::default() }, LEN)?;
    let Setup { pair, from, into, .. } = &mut setup;
    let sent = pattern(3, LEN);
    from.write(0, &sent);
    let (remote_addr, rkey) = (into.addr(), into.rkey());
    for (op, opcode) in [
        (SendOp::Send, WcOpcode::SEND),
        (SendOp::RdmaWrite { remote_addr, rkey }, WcOpcode::RDMA_WRITE),
        (SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data: 1 }, WcOpcode::RDMA_WRITE),
        (SendOp::RdmaRead { remote_addr: from.addr(), rkey: from.rkey() }, WcOpcode::RDMA_READ),
    ] {
        into.write(0, &vec![UNTOUCHED; LEN]);
        if matches!(op, SendOp::Send | SendOp::RdmaWriteWithImm { .. }) {
            post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[into.sge(0..LEN)] }])?;
        }
        let local = if opcode == WcOpcode::RDMA_READ { into.sge(0..LEN) } else { from.sge(0..LEN) };
        post_send(&mut pair.a.qp, &[signalled(1, op, &[local])])?;
        wait_for(&mut pair.a.cq, 1, opcode)?;
        let received = match op {
            SendOp::Send => wait_for(&mut pair.b.cq, 2, WcOpcode::RECV)?.byte_len,
            SendOp::RdmaWriteWithImm { .. } => {
                wait_for(&mut pair.b.cq, 2, WcOpcode::RECV_RDMA_WITH_IMM)?.byte_len
            }
            _ => LEN as u32,
        };
        assert_eq!(received as usize, LEN, "{op:?}");
        assert!(into.read(0..LEN) == sent, "{op:?}");
    }
    Ok(())
}

fn empty_messages_take_receives_in_their_turn<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut setup = Setup::new(context, &Shape::default(), 64)?;
    setup.fill(1);
    let Setup { pair, from, into, .. } = &mut setup;
    let (remote_addr, rkey) = (into.addr(), into.rkey());
    for wr_id in 10..14 {
        post_recv(&mut pair.b.qp, &[RecvWr { wr_id, sge: &[into.sge(32..40)] }])?;
    }
    // The last message carries a byte and shows which receive is next.
    let byte = [from.sge(0..1)];
    let ops = [
        (SendOp::Send, WcOpcode::SEND),
        (SendOp::RdmaWrite { remote_addr, rkey }, WcOpcode::RDMA_WRITE),
        (SendOp::SendWithImm { imm_data: 1 }, WcOpcode::SEND),
        (SendOp::RdmaRead { remote_addr, rkey }, WcOpcode::RDMA_READ),
        (SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data: 2 }, WcOpcode::RDMA_WRITE),
        (SendOp::Send, WcOpcode::SEND),
    ];
    let wrs: Vec<SendWr<'_>> = (0..)
        .zip(ops)
        .map(|(wr_id, (op, _))| signalled(wr_id, op, if wr_id == 5 { &byte } else { &[] }))
        .collect();
    post_send(&mut pair.a.qp, &wrs)?;
    for (wr_id, (_, opcode)) in (0..).zip(ops) {
        wait_for(&mut pair.a.cq, wr_id, opcode)?;
    }
    for (wr_id, opcode, len, immediate) in [
        (10, WcOpcode::RECV, 0, None),
        (11, WcOpcode::RECV, 0, Some(1)),
        (12, WcOpcode::RECV_RDMA_WITH_IMM, 0, Some(2)),
        (13, WcOpcode::RECV, 1, None),
    ] {
        let wc = wait_for(&mut pair.b.cq, wr_id, opcode)?;
        assert_eq!((wc.byte_len, imm(&wc)), (len, immediate), "receive {wr_id}");
    }
    setup.arrived(1, 0..1, 32);
    Ok(())
}

fn a_write_with_immediate_takes_a_receive_of_any_length<P: Provider>(context: &Context<P>) -> CaseResult {
    const LEN: usize = 3000;
    let mut setup = Setup::new(context, &Shape::default(), LEN)?;
    let landing = Arena::new(&setup.pair.pd, 64)?;
    let lists = [
        vec![],
        vec![landing.sge(0..0)],
        vec![landing.sge(0..1)],
        vec![landing.sge(0..10), landing.sge(20..64)],
        // A key that belongs to no region.
        vec![Sge { lkey: !landing.lkey(), ..landing.sge(0..64) }],
    ];
    for (seed, list) in (1..).zip(&lists) {
        setup.fill(seed);
        let Setup { pair, from, into, .. } = &mut setup;
        let op = SendOp::RdmaWriteWithImm { remote_addr: into.addr(), rkey: into.rkey(), imm_data: seed };
        post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: list }])?;
        post_send(&mut pair.a.qp, &[signalled(1, op, &[from.sge(0..LEN)])])?;
        wait_for(&mut pair.a.cq, 1, WcOpcode::RDMA_WRITE)?;
        let wc = wait_for(&mut pair.b.cq, 2, WcOpcode::RECV_RDMA_WITH_IMM)?;
        assert_eq!((wc.byte_len as usize, imm(&wc)), (LEN, Some(seed)));
        setup.arrived(seed, 0..LEN, 0);
    }
    assert_eq!(landing.read(0..64), [0; 64]);
    Ok(())
}

fn inline_data_rides_on_each_operation_that_sends<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut setup = Setup::new(context, &Shape::default(), 128)?;
    let Setup { pair, from, into, .. } = &mut setup;
    let (remote_addr, rkey) = (into.addr() + 3, into.rkey());
    let flags = SendFlags::SIGNALED | SendFlags::INLINE;
    for (seed, (op, opcode, received)) in (1..).zip([
        (SendOp::Send, WcOpcode::SEND, Some(WcOpcode::RECV)),
        (SendOp::SendWithImm { imm_data: 9 }, WcOpcode::SEND, Some(WcOpcode::RECV)),
        (SendOp::RdmaWrite { remote_addr, rkey }, WcOpcode::RDMA_WRITE, None),
        (
            SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data: 9 },
            WcOpcode::RDMA_WRITE,
            Some(WcOpcode::RECV_RDMA_WITH_IMM),
        ),
    ]) {
        let bytes = pattern(seed, 128);
        from.write(0, &bytes);
        into.write(0, &[UNTOUCHED; 128]);
        // Out of order. One element has an odd length, and one is empty.
        let list = [from.sge(100..107), from.sge(0..0), from.sge(3..40)];
        let message = [&bytes[100..107], &bytes[3..40]].concat();
        if received.is_some() {
            post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[into.sge(3..67)] }])?;
        }
        post_send(&mut pair.a.qp, &[SendWr { wr_id: 1, op, sge: &list, flags }])?;
        // Posting has copied the data.
        from.write(0, &[0; 128]);
        wait_for(&mut pair.a.cq, 1, opcode)?;
        if let Some(received) = received {
            assert_eq!(wait_for(&mut pair.b.cq, 2, received)?.byte_len, 44);
        }
        let arrived = [&[UNTOUCHED; 3], &message[..], &[UNTOUCHED; 81]].concat();
        assert_eq!(into.read(0..128), arrived, "{op:?}");
    }
    let read = SendOp::RdmaRead { remote_addr, rkey };
    let inline = SendWr { wr_id: 1, op: read, sge: &[from.sge(0..8)], flags };
    let refused = post_send(&mut pair.a.qp, &[inline]).expect_err("a read brings data, and sends none");
    let flags = SendFlags::INLINE;
    assert_eq!(refused.reason, PostReason::UnsupportedFlags { op: read.kind(), flags });
    Ok(())
}
