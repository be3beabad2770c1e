//! Send work requests: the encoding of each operation, and the rejected requests.

use core::mem::offset_of;

use uverbs_abi::Be32;
use uverbs_abi::rdma_user_rxe::{RxeAv, RxeSendWqe, RxeSendWr};
use verbs_core::provider::{AhOps, SendQueue};
use verbs_core::types::{
    AccessFlags, AhAttr, Av, FlushPlacement, FlushSelectivity, MwBindInfo, MwType, PostReason, QpCap,
    QpInitAttr, QpState, QpType, SendFlags, SendOp, SendWr, Sge, UdAddr,
};
use zerocopy::FromBytes;

use super::{Expected, Fixture, STALE, plain, sge, snapshot};
use provider_rxe::paper::{PaperDevice, PaperQueue};

const OP: usize = offset_of!(RxeSendWr, wr);
const LIST: usize = size_of::<RxeSendWqe>();

/// Returns the entry of a work request with the fields common to all operations.
fn entry(stride: usize, wr: &SendWr<'_>, opcode: u32, imm_data: u32, iova: u64) -> Expected {
    let length: u32 = wr.sge.iter().map(|sge| sge.length).sum();
    Expected::stale(stride)
        .put(0, wr.wr_id)
        .put(8, [0, opcode])
        .put(16, wr.flags.bits())
        .put(20, Be32::from_native(imm_data))
        .put(offset_of!(RxeSendWqe, status), [0_u32, 0])
        .put(offset_of!(RxeSendWqe, iova), iova)
        .put(offset_of!(RxeSendWqe, mask), [0_u32; 6])
        .put(offset_of!(RxeSendWqe, dma), [length, length, 0, wr.sge.len() as u32, 0, 0])
}

fn listed(mut expected: Expected, sges: &[Sge]) -> Expected {
    for (n, sge) in sges.iter().enumerate() {
        expected = expected.put(LIST + n * 16, sge.addr).put(LIST + n * 16 + 8, [sge.length, sge.lkey]);
    }
    expected
}

/// Posts one work request and returns the slot's bytes.
fn posted(fixture: &mut Fixture, wr: &SendWr<'_>) -> Vec<u8> {
    let index = fixture.qp.sq.indices().0;
    fixture.send(&[*wr]).unwrap();
    assert_eq!(fixture.qp.sq.count(), 1);
    let slot = fixture.qp.sq.slot(index);
    fixture.qp.sq.drain();
    slot
}

#[test]
fn each_operation_becomes_its_entry() {
    let mut fixture = Fixture::of_type(QpType::RC);
    let (remote_addr, rkey) = (0x7fff_0000_1238, 0xcafe);
    for sges in [&[sge(1)][..], &[sge(1), sge(2), sge(3)]] {
        let rdma = |expected: Expected| expected.put(OP, remote_addr).put(OP + 8, [rkey, 0]);
        let none = |expected: Expected| expected.put(OP, [0_u64; 2]);
        let check = |fixture: &mut Fixture, op, expect: &dyn Fn(&SendWr<'_>) -> Expected| {
            let wr = plain(op, sges);
            assert_eq!(posted(fixture, &wr), listed(expect(&wr), sges).0, "{op:?}");
        };
        check(&mut fixture, SendOp::Send, &|wr| none(entry(512, wr, 2, 0, 0)));
        check(&mut fixture, SendOp::SendWithImm { imm_data: 0x0102_0304 }, &|wr| {
            none(entry(512, wr, 3, 0x0102_0304, 0))
        });
        check(&mut fixture, SendOp::RdmaWrite { remote_addr, rkey }, &|wr| {
            rdma(entry(512, wr, 0, 0, remote_addr))
        });
        check(&mut fixture, SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data: 7 }, &|wr| {
            rdma(entry(512, wr, 1, 7, remote_addr))
        });
        check(&mut fixture, SendOp::RdmaRead { remote_addr, rkey }, &|wr| {
            rdma(entry(512, wr, 4, 0, remote_addr))
        });
    }
}

#[test]
fn each_atomic_becomes_its_entry() {
    let mut fixture = Fixture::of_type(QpType::RC);
    let (remote_addr, rkey) = (0x7fff_0000_1238, 0xcafe);
    let sges = [Sge { length: 8, ..sge(1) }];
    let swap = plain(SendOp::AtomicCmpAndSwp { remote_addr, rkey, compare: 0x1111, swap: 0x2222 }, &sges);
    let expected =
        entry(512, &swap, 5, 0, remote_addr).put(OP, [remote_addr, 0x1111, 0x2222]).put(OP + 24, [rkey, 0]);
    assert_eq!(posted(&mut fixture, &swap), listed(expected, &sges).0);
    let add = plain(SendOp::AtomicFetchAndAdd { remote_addr, rkey, add: 0x3333 }, &sges);
    let expected =
        entry(512, &add, 6, 0, remote_addr).put(OP, [remote_addr, 0x3333, 0]).put(OP + 24, [rkey, 0]);
    assert_eq!(posted(&mut fixture, &add), listed(expected, &sges).0);
}

#[test]
fn each_operation_on_a_key_becomes_its_entry() {
    let mut fixture = Fixture::of_type(QpType::RC);
    let sges = [sge(1), sge(2)];
    let send = plain(SendOp::SendWithInv { invalidate_rkey: 0x0102_0304 }, &sges);
    let expected = entry(512, &send, 9, 0, 0).put(20, 0x0102_0304_u32).put(OP, [0_u64; 2]);
    assert_eq!(posted(&mut fixture, &send), listed(expected, &sges).0, "the key is in host order");
    let invalidate = plain(SendOp::LocalInv { invalidate_rkey: 0x0102_0304 }, &[]);
    let expected = entry(512, &invalidate, 7, 0, 0).put(20, 0x0102_0304_u32).put(OP, [0_u64; 2]);
    assert_eq!(posted(&mut fixture, &invalidate), expected.0);
    let mw_access_flags = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
    let info = MwBindInfo { lkey: 0x2222, addr: 0x7fff_0000_1238, length: 1 << 33, mw_access_flags };
    let bind = plain(
        SendOp::BindMw {
            mw_type: MwType::TYPE_2,
            rkey: 0x3333_44ff,
            new_rkey: 0x3333_4400,
            bind_info: &info,
        },
        &[],
    );
    let expected = entry(512, &bind, 8, 0, 0)
        .put(OP, [0x7fff_0000_1238_u64, 1 << 33])
        .put(OP + 16, [0x2222_u32, 0x3333_44ff, 0x3333_4400, 6]);
    assert_eq!(posted(&mut fixture, &bind), expected.0);
}

#[test]
fn a_flush_carries_its_range_and_an_atomic_write_its_bytes() {
    let mut fixture = Fixture::of_type(QpType::RC);
    let (remote_addr, rkey) = (0x7fff_0000_1238, 0xcafe);
    let (placement, selectivity) = (FlushPlacement::GLOBAL, FlushSelectivity::MR);
    let flush = plain(SendOp::Flush { remote_addr, rkey, length: 77, placement, selectivity }, &[]);
    // The slots hold the elements of earlier requests, which the kernel must not find after a
    // flush. The kernel takes the length to send from the transfer state.
    let expected = entry(512, &flush, 14, 0, remote_addr)
        .put(offset_of!(RxeSendWqe, dma), [77_u32, 77, 0, 0, 0, 0])
        .put(OP, remote_addr)
        .put(OP + 8, [77, rkey])
        .put(OP + 16, [1_u8, 1, 0, 0, 0, 0, 0, 0])
        .put(LIST, [0_u64; 2]);
    assert_eq!(posted(&mut fixture, &flush), expected.0);
    let store = plain(SendOp::AtomicWrite { remote_addr, rkey, data: *b"8 bytes!" }, &[]);
    let expected = entry(512, &store, 15, 0, remote_addr)
        .put(offset_of!(RxeSendWqe, dma), [8_u32, 8, 0, 0, 0, 0])
        .put(OP, remote_addr)
        .put(OP + 8, [rkey, 0])
        .put(LIST, *b"8 bytes!");
    assert_eq!(posted(&mut fixture, &store), expected.0);
}

#[test]
fn an_atomic_write_fits_into_the_slots_of_a_queue_for_no_list() {
    let cap = QpCap { max_send_sge: 0, max_inline_data: 0, ..PaperDevice::rc().cap };
    let mut fixture = Fixture::new(QpInitAttr { cap, ..PaperDevice::rc() });
    let op = SendOp::AtomicWrite { remote_addr: 8, rkey: 1, data: *b"8 bytes!" };
    assert_eq!(posted(&mut fixture, &plain(op, &[]))[LIST..LIST + 8], *b"8 bytes!");
}

#[test]
fn a_datagram_carries_the_number_of_its_address_handle() {
    let mut fixture = Fixture::of_type(QpType::UD);
    let ah = fixture.device.create_ah(&AhAttr::default(), 0x55).unwrap();
    let to = UdAddr { av: ah.av(), remote_qpn: 0x1234, remote_qkey: 0x0101_0101 };
    let sges = [sge(1)];
    for (op, opcode, imm) in
        [(SendOp::UdSend { to }, 2, 0), (SendOp::UdSendWithImm { to, imm_data: 0xa0b0_c0d0 }, 3, 0xa0b0_c0d0)]
    {
        let wr = plain(op, &sges);
        let expected = entry(512, &wr, opcode, imm, 0).put(OP, [0x1234_u32, 0x0101_0101, 0, 0x55]);
        assert_eq!(posted(&mut fixture, &wr), listed(expected, &sges).0);
    }
}

#[test]
fn a_datagram_spells_its_path_where_the_kernel_numbers_none() {
    let mut fixture = Fixture::of_type(QpType::UD);
    let bytes: [u8; size_of::<RxeAv>()] = core::array::from_fn(|n| n as u8);
    let av = Av::new(14, &bytes);
    let wr = SendWr { sge: &[sge(1), sge(2)], ..plain(SendOp::UdSend { to: ud(&av) }, &[]) };
    let expected = entry(512, &wr, 2, 0, 0).put(OP, [0x77_u32, 5, 0, 0]).put(OP + 32, bytes);
    assert_eq!(posted(&mut fixture, &wr), listed(expected, wr.sge).0);
}

fn ud(av: &Av) -> UdAddr<'_> {
    UdAddr { av, remote_qpn: 0x77, remote_qkey: 5 }
}

#[test]
fn a_queue_key_with_the_top_bit_means_the_queue_pairs_own() {
    let mut fixture = Fixture::of_type(QpType::UD);
    let av = Av::new(14, &9_u32.to_ne_bytes());
    for (given, sent) in [(0x8000_0000, 0x1111_1111), (u32::MAX, 0x1111_1111), (0x7fff_ffff, 0x7fff_ffff)] {
        let to = UdAddr { remote_qkey: given, ..ud(&av) };
        let slot = posted(&mut fixture, &plain(SendOp::UdSend { to }, &[]));
        assert_eq!(u32::read_from_bytes(&slot[OP + 4..OP + 8]).unwrap(), sent, "{given:#x}");
    }
}

#[test]
fn flags_are_the_kernels_and_come_alone_or_together() {
    let mut fixture = Fixture::of_type(QpType::RC);
    let sges = [sge(1)];
    for bits in 0..16 {
        let flags = SendFlags::from_bits_retain(bits);
        let data = [7_u8; 8];
        let inline = [Sge { addr: data.as_ptr() as u64, length: 8, lkey: 0 }];
        let list = if flags.contains(SendFlags::INLINE) { &inline } else { &sges };
        let slot = posted(&mut fixture, &SendWr { flags, ..plain(SendOp::Send, list) });
        assert_eq!(u32::read_from_bytes(&slot[16..20]).unwrap(), bits);
    }
}

#[test]
fn inline_data_lies_behind_the_entry() {
    let mut fixture = Fixture::of_type(QpType::RC);
    let data: Vec<u8> = (0..200_u32).map(|n| (n * 7) as u8).collect();
    let piece =
        |from: usize, len: usize| Sge { addr: data[from..].as_ptr() as u64, length: len as u32, lkey: 0 };
    let lists: [&[Sge]; 7] = [
        &[],
        &[piece(0, 0)],
        &[piece(0, 1)],
        &[piece(3, 63)],
        &[piece(3, 64)],
        &[piece(0, 10), Sge::default(), piece(100, 20)],
        &[piece(0, 16), piece(20, 16), piece(40, 16), piece(60, 16)],
    ];
    for list in lists {
        let gathered: Vec<u8> = list
            .iter()
            .filter(|sge| sge.length > 0)
            .flat_map(|sge| {
                let from = (sge.addr - data.as_ptr() as u64) as usize;
                data[from..from + sge.length as usize].to_vec()
            })
            .collect();
        for (op, opcode, remote) in
            [(SendOp::Send, 2, 0), (SendOp::RdmaWrite { remote_addr: 0x2000, rkey: 0 }, 0, 0x2000_u64)]
        {
            let wr = SendWr { flags: SendFlags::INLINE, ..plain(op, list) };
            let mut expected = entry(512, &wr, opcode, 0, remote).put(OP, [remote, 0]);
            for (n, byte) in gathered.iter().enumerate() {
                expected = expected.put(LIST + n, *byte);
            }
            assert_eq!(posted(&mut fixture, &wr), expected.0, "{} bytes", gathered.len());
        }
    }
}

#[test]
fn inline_works_for_datagrams_too() {
    let mut fixture = Fixture::of_type(QpType::UD);
    let av = Av::new(14, &9_u32.to_ne_bytes());
    let data = [1_u8, 2, 3];
    let list = [Sge { addr: data.as_ptr() as u64, length: 3, lkey: 0 }];
    let wr = SendWr { flags: SendFlags::INLINE, ..plain(SendOp::UdSend { to: ud(&av) }, &list) };
    let slot = posted(&mut fixture, &wr);
    assert_eq!(slot[LIST..LIST + 4], [1, 2, 3, STALE]);
}

#[test]
fn every_count_of_sges_up_to_the_limit_is_taken() {
    let mut fixture = Fixture::of_type(QpType::RC);
    let all: Vec<Sge> = (0..4).map(sge).collect();
    for count in 0..=4 {
        let wr = plain(SendOp::Send, &all[..count]);
        let expected = entry(512, &wr, 2, 0, 0).put(OP, [0_u64; 2]);
        assert_eq!(posted(&mut fixture, &wr), listed(expected, &all[..count]).0, "{count}");
    }
}

#[test]
fn slots_may_be_larger_than_their_elements() {
    for stride in [512, 1024, 4096] {
        let device = crate::device();
        let cq = device.create_cq(16);
        let (sq, rq) = (PaperQueue::new(16, stride), PaperQueue::new(16, 128));
        let mut qp = device.create_qp_over(cq.handle, PaperDevice::rc(), sq, rq).unwrap();
        device.move_to(&mut qp, QpState::RTS);
        qp.sq.fill(STALE);
        let mut fixture = Fixture { device, cq, qp };
        for n in 0..40 {
            let wr = SendWr { wr_id: n, sge: &[sge(n)], ..plain(SendOp::Send, &[]) };
            let expected = entry(stride, &wr, 2, 0, 0).put(OP, [0_u64; 2]);
            assert_eq!(posted(&mut fixture, &wr), listed(expected, wr.sge).0);
            fixture.qp.sq.fill(STALE);
        }
    }
}

/// Posts a request that must be rejected and checks that no byte changed.
fn refused(fixture: &mut Fixture, wr: SendWr<'_>) -> PostReason {
    let before = snapshot(&fixture.qp.sq);
    let error = fixture.send(&[wr]).unwrap_err();
    assert_eq!(error.accepted, 0);
    assert_eq!(snapshot(&fixture.qp.sq), before, "{wr:?} is rejected but wrote something");
    error.reason
}

#[test]
fn each_type_has_its_operations_and_no_others() {
    let av = Av::new(14, &9_u32.to_ne_bytes());
    let (remote_addr, rkey, imm_data) = (0x1000, 2, 3);
    let eight = [Sge { length: 8, ..sge(0) }];
    let all = [
        (SendOp::Send, "RC UC"),
        (SendOp::SendWithImm { imm_data }, "RC UC"),
        (SendOp::UdSend { to: ud(&av) }, "UD"),
        (SendOp::UdSendWithImm { to: ud(&av), imm_data }, "UD"),
        (SendOp::RdmaWrite { remote_addr, rkey }, "RC UC"),
        (SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data }, "RC UC"),
        (SendOp::RdmaRead { remote_addr, rkey }, "RC"),
        (SendOp::AtomicCmpAndSwp { remote_addr, rkey, compare: 0, swap: 0 }, "RC"),
        (SendOp::AtomicFetchAndAdd { remote_addr, rkey, add: 0 }, "RC"),
    ];
    for qp_type in [QpType::RC, QpType::UC, QpType::UD] {
        let mut fixture = Fixture::of_type(qp_type);
        for (op, types) in all {
            let wr = plain(op, &eight);
            if types.contains(qp_type.name().unwrap()) {
                posted(&mut fixture, &wr);
            } else {
                let unsupported = PostReason::UnsupportedOp { op: op.kind(), qp_type };
                assert_eq!(refused(&mut fixture, wr), unsupported, "{qp_type} {op:?}");
            }
        }
    }
}

#[test]
fn too_much_is_refused_before_anything_is_written() {
    let mut fixture = Fixture::of_type(QpType::RC);
    let five: Vec<Sge> = (0..5).map(sge).collect();
    let inline = SendFlags::INLINE;
    let read = SendOp::RdmaRead { remote_addr: 0, rkey: 0 };
    let long = |lengths: &[u32]| lengths.iter().map(|&length| Sge { length, ..sge(0) }).collect::<Vec<_>>();

    let wr = plain(SendOp::Send, &five);
    assert_eq!(refused(&mut fixture, wr), PostReason::TooManySge { given: 5, max: 4 });
    assert_eq!(
        refused(&mut fixture, SendWr { flags: inline, ..wr }),
        PostReason::TooManySge { given: 5, max: 4 }
    );

    let list = long(&[65]);
    let wr = SendWr { flags: inline, ..plain(SendOp::Send, &list) };
    assert_eq!(refused(&mut fixture, wr), PostReason::InlineTooLong { given: 65, max: 64 });
    let list = long(&[32, 32, 1]);
    let wr = SendWr { flags: inline, ..plain(SendOp::Send, &list) };
    assert_eq!(refused(&mut fixture, wr), PostReason::InlineTooLong { given: 65, max: 64 });
    let list = long(&[u32::MAX; 4]);
    let wr = plain(SendOp::Send, &list);
    assert_eq!(refused(&mut fixture, wr), PostReason::MessageTooLong { given: 4 * u64::from(u32::MAX) });

    let list = long(&[0x8000_0001]);
    assert_eq!(
        refused(&mut fixture, plain(SendOp::Send, &list)),
        PostReason::MessageTooLong { given: 0x8000_0001 }
    );
    posted(&mut fixture, &plain(SendOp::Send, &long(&[0x8000_0000])));
    posted(&mut fixture, &plain(SendOp::Send, &long(&[0x7fff_ffff, 1])));

    let wr = SendWr { flags: inline, ..plain(read, &five[..1]) };
    let no_inline = PostReason::UnsupportedFlags { op: read.kind(), flags: inline };
    assert_eq!(refused(&mut fixture, wr), no_inline, "a read has nothing to send");
    for bits in [SendFlags::IP_CSUM.bits(), 1 << 20, u32::MAX] {
        let wr = SendWr { flags: SendFlags::from_bits_retain(bits), ..plain(SendOp::Send, &five[..1]) };
        let known = inline | SendFlags::FENCE | SendFlags::SIGNALED | SendFlags::SOLICITED;
        let unknown = PostReason::UnsupportedFlags { op: wr.op.kind(), flags: wr.flags - known };
        assert_eq!(refused(&mut fixture, wr), unknown, "flags {bits:#x}");
    }
}

#[test]
fn an_atomic_takes_eight_bytes_at_an_aligned_address() {
    let mut fixture = Fixture::of_type(QpType::RC);
    let swap = |remote_addr| SendOp::AtomicCmpAndSwp { remote_addr, rkey: 0, compare: 0, swap: 0 };
    let add = |remote_addr| SendOp::AtomicFetchAndAdd { remote_addr, rkey: 0, add: 0 };
    for lengths in [&[][..], &[0], &[4], &[7], &[9], &[16], &[8, 8]] {
        let list: Vec<Sge> = lengths.iter().map(|&length| Sge { length, ..sge(0) }).collect();
        let given = lengths.iter().copied().map(u64::from).sum();
        assert_eq!(refused(&mut fixture, plain(swap(8), &list)), PostReason::AtomicLength { given });
        assert_eq!(refused(&mut fixture, plain(add(8), &list)), PostReason::AtomicLength { given });
    }
    let list = [Sge { length: 3, ..sge(0) }, Sge { length: 5, ..sge(1) }];
    posted(&mut fixture, &plain(swap(8), &list));
    for remote_addr in 1..8 {
        let expected = PostReason::AtomicMisaligned { remote_addr };
        assert_eq!(refused(&mut fixture, plain(swap(remote_addr), &list)), expected);
        assert_eq!(refused(&mut fixture, plain(add(remote_addr), &list)), expected);
    }
}

#[test]
fn an_address_vector_of_another_provider_is_refused() {
    let mut fixture = Fixture::of_type(QpType::UD);
    for av in
        [Av::new(13, &9_u32.to_ne_bytes()), Av::new(14, &[]), Av::new(14, &[0; 5]), Av::new(14, &[0; 87])]
    {
        let wr = plain(SendOp::UdSend { to: ud(&av) }, &[]);
        assert_eq!(refused(&mut fixture, wr), PostReason::ForeignAv);
    }
}

#[test]
fn a_queue_without_sges_takes_only_empty_messages() {
    let mut attr = PaperDevice::rc();
    attr.cap.max_send_sge = 0;
    attr.cap.max_inline_data = 0;
    let mut fixture = Fixture::new(attr);
    let one = [sge(1)];
    assert_eq!(refused(&mut fixture, plain(SendOp::Send, &one)), PostReason::TooManySge { given: 1, max: 0 });
    posted(&mut fixture, &plain(SendOp::Send, &[]));
}

#[test]
fn a_full_queue_is_refused_until_the_kernel_takes_one_wherever_it_starts() {
    for start in 0..16 {
        let mut fixture = Fixture::of_type(QpType::RC);
        let one = [sge(1)];
        // Move the index there by posting and draining.
        for _ in 0..start {
            posted(&mut fixture, &plain(SendOp::Send, &one));
        }
        for n in 0..15 {
            fixture.send(&[SendWr { wr_id: n, ..plain(SendOp::Send, &one) }]).unwrap();
        }
        assert_eq!(refused(&mut fixture, plain(SendOp::Send, &one)), PostReason::QueueFull);
        assert_eq!(refused(&mut fixture, plain(SendOp::Send, &[])), PostReason::QueueFull);
        let atomic = SendOp::AtomicFetchAndAdd { remote_addr: 0, rkey: 0, add: 0 };
        let eight = [Sge { length: 8, ..sge(1) }];
        assert_eq!(refused(&mut fixture, plain(atomic, &eight)), PostReason::QueueFull);
        for n in 0..15 {
            let (wqe, _) = fixture.qp.sq.take::<RxeSendWqe>().unwrap();
            assert_eq!(wqe.wr.wr_id, n);
            fixture.send(&[SendWr { wr_id: n + 15, ..plain(SendOp::Send, &one) }]).unwrap();
        }
        assert_eq!(refused(&mut fixture, plain(SendOp::Send, &one)), PostReason::QueueFull);
        for n in 15..30 {
            assert_eq!(fixture.qp.sq.take::<RxeSendWqe>().unwrap().0.wr.wr_id, n);
        }
        assert!(fixture.qp.sq.take::<RxeSendWqe>().is_none());
    }
}

#[test]
fn a_batch_is_accepted_up_to_the_first_bad_one() {
    let mut fixture = Fixture::of_type(QpType::RC);
    let (one, two) = ([sge(1)], [sge(1), sge(2)]);
    let good = plain(SendOp::Send, &one);
    let other = plain(SendOp::Send, &two);
    let bad = plain(SendOp::AtomicFetchAndAdd { remote_addr: 1, rkey: 0, add: 0 }, &one);
    for (batch, accepted) in [
        (&[bad, good][..], 0),
        (&[good, bad, good], 1),
        (&[good, good, other, good, bad], 4),
        (&[other, bad], 1),
    ] {
        let error = fixture.send(batch).unwrap_err();
        assert_eq!((error.accepted, error.reason), (accepted, PostReason::AtomicLength { given: 101 }));
        assert_eq!(fixture.qp.sq.count() as usize, accepted, "the kernel sees the accepted requests");
        fixture.qp.sq.drain();
    }
    let error = fixture.send(&[good; 20]).unwrap_err();
    assert_eq!((error.accepted, error.reason), (15, PostReason::QueueFull));
    assert_eq!(fixture.qp.sq.count(), 15);
    fixture.qp.sq.drain();
    fixture.send(&[]).unwrap();
    assert_eq!(fixture.qp.sq.count(), 0);
}

#[test]
fn nothing_is_seen_before_the_queue_is_rung() {
    let mut fixture = Fixture::of_type(QpType::RC);
    let one = [sge(1)];
    let sq = &mut fixture.qp.parts.sq;
    for _ in 0..3 {
        // SAFETY: a paper device accesses no memory named by work requests.
        unsafe { sq.post_one(&plain(SendOp::Send, &one)) }.unwrap();
    }
    assert_eq!(fixture.qp.sq.count(), 0);
    fixture.qp.parts.sq.ring().unwrap();
    assert_eq!(fixture.qp.sq.count(), 3);
}

#[test]
fn an_index_that_the_kernel_never_wrote_leads_nowhere_else() {
    // The queue ends before the region. The bytes after it must not change.
    let attr = PaperDevice::rc();
    let paper = PaperQueue::new(64, 512);
    paper.poke(4, 15_u32);
    let device = crate::device();
    let cq = device.create_cq(16);
    let mut qp = device.create_qp_over(cq.handle, attr, paper, PaperQueue::new(16, 128)).unwrap();
    device.move_to(&mut qp, QpState::RTS);
    qp.sq.fill(STALE);
    let mut fixture = Fixture { device, cq, qp };
    let end = 384 + 16 * 512;
    let behind = |fixture: &Fixture| snapshot(&fixture.qp.sq)[end..].to_vec();
    let before = behind(&fixture);
    let (one, four) = ([sge(1)], [sge(1), sge(2), sge(3), sge(4)]);
    for hostile in [0, 1, 15, 16, 17, 63, 64, 0x7fff_ffff, 0x8000_0000, u32::MAX] {
        for n in 0..40 {
            let (producer, _) = fixture.qp.sq.indices();
            fixture.qp.sq.set_indices(if n % 7 == 0 { hostile } else { producer }, hostile.wrapping_add(n));
            // Only the written bytes matter, not whether the request is accepted.
            let _ = fixture.send(&[plain(SendOp::Send, &one), plain(SendOp::Send, &four)]);
            // SAFETY: a paper device accesses no memory named by work requests.
            let _ = unsafe { fixture.qp.parts.sq.post_one(&plain(SendOp::Send, &four)) };
            if n % 5 == 0 {
                fixture.qp.sq.set_indices(hostile.wrapping_add(n), producer);
                assert!(fixture.qp.parts.sq.rollback(usize::MAX) < 16);
            }
        }
    }
    assert_eq!(behind(&fixture), before);
}
