//! Completions: every field, copied and borrowed, and the return of slots to the kernel.

use uverbs_abi::Be32;
use uverbs_abi::ib_user_verbs::{IbUverbsWc, IbUverbsWcEx};
use verbs_core::provider::{Completion, CqOps, ErasedCq};
use verbs_core::types::{Wc, WcFlags, WcOpcode, WcStatus};

use provider_rxe::paper::PaperCq;

fn entry(n: u64) -> IbUverbsWc {
    IbUverbsWc { wr_id: n, opcode: 128, byte_len: n as u32 * 10, qp_num: 17, ..Default::default() }
}

fn cq(slots: u32) -> PaperCq {
    crate::device().create_cq(slots)
}

/// Polls the same completion in each of the three ways, checks that the results are equal, and
/// returns the result.
fn three_ways(entry: IbUverbsWc) -> Wc {
    let mut cq = cq(16);
    (0..3).for_each(|_| assert!(cq.queue.put(entry)));
    let mut by_value = [Wc::default()];
    assert_eq!(cq.cq.poll(&mut by_value), 1);
    let mut written = Wc::default();
    cq.cq.next().unwrap().write_to(&mut written);
    let lent = cq.cq.next().unwrap();
    let fields = Wc {
        wr_id: lent.wr_id(),
        status: lent.status(),
        opcode: lent.opcode(),
        vendor_err: lent.vendor_err(),
        byte_len: lent.byte_len(),
        imm_data: lent.imm_data(),
        qp_num: lent.qp_num(),
        src_qp: lent.src_qp(),
        wc_flags: lent.wc_flags(),
        pkey_index: lent.pkey_index(),
        slid: lent.slid(),
        sl: lent.sl(),
        dlid_path_bits: lent.dlid_path_bits(),
    };
    assert_eq!((by_value[0], written), (fields, fields));
    fields
}

#[test]
fn every_field_arrives_each_way() {
    let wc = three_ways(IbUverbsWc {
        wr_id: 0x0102_0304_0506_0708,
        status: 0x11,
        opcode: 0x22,
        vendor_err: 0x33,
        byte_len: 0x44,
        ex: IbUverbsWcEx::default(),
        qp_num: 0x55,
        src_qp: 0x66,
        wc_flags: 1,
        pkey_index: 0x77,
        slid: 0x88,
        sl: 0x99,
        dlid_path_bits: 0xaa,
        port_num: 0xbb,
        reserved: 0xcc,
    });
    let expected = Wc {
        wr_id: 0x0102_0304_0506_0708,
        status: WcStatus(0x11),
        opcode: WcOpcode(0x22),
        vendor_err: 0x33,
        byte_len: 0x44,
        imm_data: 0,
        qp_num: 0x55,
        src_qp: 0x66,
        wc_flags: WcFlags::GRH,
        pkey_index: 0x77,
        slid: 0x88,
        sl: 0x99,
        dlid_path_bits: 0xaa,
    };
    assert_eq!(wc, expected);
}

#[test]
fn unknown_status_opcode_and_flags_are_kept() {
    let wc = three_ways(IbUverbsWc { status: 77, opcode: u32::MAX, wc_flags: 0xffff_ff00, ..entry(1) });
    assert_eq!((wc.status, wc.opcode), (WcStatus(77), WcOpcode(u32::MAX)));
    assert_eq!(wc.wc_flags.bits(), 0xffff_ff00);
}

#[test]
fn immediate_data_is_the_number_that_was_sent() {
    let ex = IbUverbsWcEx::from_imm_data(Be32::from_native(0x0102_0304));
    let wc = three_ways(IbUverbsWc { ex, wc_flags: 2, ..entry(1) });
    assert_eq!((wc.imm_data, wc.wc_flags), (0x0102_0304, WcFlags::WITH_IMM));
}

#[test]
fn an_invalidated_key_is_a_number_under_the_flag_that_verbs_have_for_it() {
    let ex = IbUverbsWcEx::from_invalidate_rkey(0x0102_0304);
    // The kernel's IB_WC_WITH_INVALIDATE, the bit of IP_CSUM_OK in verbs.
    for raw in [4, 4 | 1] {
        let wc = three_ways(IbUverbsWc { ex, wc_flags: raw, ..entry(1) });
        assert_eq!(wc.imm_data, 0x0102_0304);
        assert_eq!(wc.wc_flags, WcFlags::WITH_INV | WcFlags::from_bits_retain(raw & 1));
    }
}

#[test]
fn for_c_immediate_data_stays_in_network_order_and_a_key_a_number() {
    let number = IbUverbsWcEx::from_imm_data(Be32::from_native(0x0102_0304));
    let key = IbUverbsWcEx::from_invalidate_rkey(0x0102_0304);
    for (ex, raw, imm_data, flags) in [
        (number, 2, 0x0102_0304_u32.to_be(), WcFlags::WITH_IMM),
        (key, 4, 0x0102_0304, WcFlags::WITH_INV),
        (key, 4 | 1, 0x0102_0304, WcFlags::WITH_INV | WcFlags::GRH),
    ] {
        let [mut ours, theirs] = [cq(2), cq(2)];
        let entry = IbUverbsWc { ex, wc_flags: raw, ..entry(1) };
        assert!(ours.queue.put(entry) && theirs.queue.put(entry));
        let (mut own, mut erased) = (Wc::default(), Wc::default());
        ours.cq.next().unwrap().write_to_c(&mut own);
        ErasedCq::new(theirs.cq).next().unwrap().write_to_c(&mut erased);
        assert_eq!((own.wr_id, own.imm_data, own.wc_flags), (1, imm_data, flags));
        assert_eq!(own, erased, "an erased completion converts the number");
    }
}

#[test]
fn completions_come_in_order_however_many_are_asked_for() {
    for room in [1, 2, 3, 7, 16, 40] {
        let mut cq = cq(16);
        let mut wcs = vec![Wc::default(); room];
        let (mut put, mut got) = (0, 0);
        for round in 0..100_u64 {
            for _ in 0..round % 16 {
                if cq.queue.put(entry(put)) {
                    put += 1;
                }
            }
            let there = (put - got) as usize;
            let count = cq.cq.poll(&mut wcs);
            assert_eq!(count, there.min(room));
            for wc in &wcs[..count] {
                assert_eq!((wc.wr_id, u64::from(wc.byte_len)), (got, got as u32 as u64 * 10));
                got += 1;
            }
            assert_eq!(u64::from(cq.queue.count()), put - got, "the call returns the slots");
        }
        assert!(got > 50);
    }
}

#[test]
fn nothing_is_polled_into_no_room_or_from_an_empty_queue() {
    let mut cq = cq(16);
    assert_eq!(cq.cq.poll(&mut [Wc::default()]), 0);
    assert!(cq.cq.next().is_none());
    cq.queue.put(entry(1));
    assert_eq!(cq.cq.poll(&mut []), 0);
    assert_eq!(cq.queue.count(), 1);
}

#[test]
fn a_slot_goes_back_once_its_completion_is_lent_no_more() {
    let mut cq = cq(4);
    (0..3).for_each(|n| assert!(cq.queue.put(entry(n))));
    assert!(!cq.queue.put(entry(3)), "full");
    let queue = cq.queue.clone();
    let lent = cq.cq.next().unwrap();
    assert!(!queue.put(entry(3)), "the first is still lent");
    assert_eq!(lent.wr_id(), 0);
    assert_eq!(cq.cq.next().unwrap().wr_id(), 1);
    assert!(queue.put(entry(3)), "the first is returned");
    assert!(!queue.put(entry(4)), "the second is not returned yet");
    cq.cq.end_poll();
    assert!(queue.put(entry(4)));
    let rest: Vec<u64> = core::iter::from_fn(|| cq.cq.next().map(|lent| lent.wr_id())).collect();
    assert_eq!(rest, [2, 3, 4]);
    assert_eq!(queue.count(), 0, "a poll that finds none returns all slots");
}

#[test]
fn lending_and_polling_mix() {
    let mut cq = cq(8);
    let mut wcs = [Wc::default(); 2];
    let mut next = 0;
    for round in 0..30 {
        (0..4).for_each(|n| assert!(cq.queue.put(entry(round * 4 + n))));
        assert_eq!(cq.cq.next().unwrap().wr_id(), next);
        assert_eq!(cq.cq.poll(&mut wcs), 2);
        assert_eq!([wcs[0].wr_id, wcs[1].wr_id], [next + 1, next + 2]);
        assert_eq!(cq.cq.next().unwrap().wr_id(), next + 3);
        assert!(cq.cq.next().is_none());
        next += 4;
    }
}

#[test]
fn a_purge_removes_the_completions_of_one_queue_pair_and_returns_their_slots() {
    let mut cq = cq(8);
    // Each round begins at another slot, so that the completions wrap around the end.
    for round in 0..8 {
        (0..7).for_each(|n| {
            let qp_num = if n % 3 == 1 { 18 } else { 17 };
            assert!(cq.queue.put(IbUverbsWc { qp_num, ..entry(n) }));
        });
        assert_eq!(cq.cq.next().unwrap().wr_id(), 0);
        cq.cq.purge(17);
        assert_eq!(cq.queue.count(), 2, "round {round}");
        // The kernel continues after these completions.
        assert!(cq.queue.put(entry(7)));
        cq.cq.purge(19);
        let rest: Vec<u64> = core::iter::from_fn(|| cq.cq.next().map(|lent| lent.wr_id())).collect();
        assert_eq!(rest, [1, 4, 7], "round {round}");
        cq.cq.purge(18);
        assert_eq!(cq.queue.count(), 0);
    }
}

#[test]
fn an_erased_queue_tells_the_same() {
    let (mut ours, theirs) = (cq(32), cq(32));
    let mut erased = ErasedCq::new(theirs.cq);
    let mut next = 0;
    for round in 0..50_u64 {
        for _ in 0..round % 20 {
            let flags = [0, 1, 2, 3, 4, 8][next as usize % 6];
            let ex = IbUverbsWcEx::from_invalidate_rkey(next as u32 * 0x0101);
            let entry = IbUverbsWc { wc_flags: flags, ex, ..entry(next) };
            if ours.queue.put(entry) {
                assert!(theirs.queue.put(entry));
                next += 1;
            }
        }
        let (mut a, mut b) = ([Wc::default(); 20], [Wc::default(); 20]);
        if round % 3 == 0 {
            let mut lent = Wc::default();
            let first = ours.cq.next().map(|completion| completion.write_to(&mut lent));
            let mut theirs = Wc::default();
            let also = erased.next().map(|completion| completion.write_to(&mut theirs));
            assert_eq!((first, lent), (also, theirs));
            ours.cq.end_poll();
        }
        let count = ours.cq.poll(&mut a);
        assert_eq!(count, erased.poll(&mut b));
        assert_eq!(a[..count], b[..count]);
    }
}

#[test]
fn an_index_that_the_kernel_never_wrote_leads_nowhere_else() {
    let mut cq = cq(4);
    let mut wcs = [Wc::default(); 8];
    for hostile in [3, 4, 5, 100, 0x7fff_ffff, 0x8000_0000, u32::MAX] {
        for consumer in [0, hostile] {
            cq.queue.set_indices(hostile, consumer);
            assert!(cq.cq.poll(&mut wcs) < 4);
            for _ in 0..8 {
                cq.cq.next();
            }
        }
    }
}
