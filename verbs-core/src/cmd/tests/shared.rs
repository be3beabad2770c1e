//! Shared receive queues, XRC domains, and the queue pairs that use them: each command through the
//! ioctl and through its write struct.

use super::*;
use crate::types::{SrqInitAttr, SrqType, TmCap};

/// The parents of an XRC shared receive queue.
pub(super) const XRC: srq::SrqHandles = srq::SrqHandles { pd: 1, xrcd: Some(2), cq: Some(3) };

pub(super) fn attr() -> SrqInitAttr {
    SrqInitAttr {
        srq_type: SrqType::XRC,
        max_wr: 16,
        max_sge: 4,
        srq_limit: 5,
        tm: TmCap::default(),
        user_handle: 0x77,
    }
}

/// Returns numbers as bytes, as the kernel writes them.
fn words<const N: usize>(numbers: [u32; N]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

/// Returns the same numbers in the notation of the script.
fn hex<const N: usize>(numbers: [u32; N]) -> String {
    words(numbers).iter().map(|byte| format!("{byte:02x}")).collect()
}

const REFUSED: Reply = Reply::Errno(Errno::PROTONOSUPPORT);

#[test]
fn create_srq_sends_what_it_was_asked_for_on_both_ways() {
    let basic = SrqInitAttr { srq_type: SrqType::BASIC, ..attr() };
    let parents = srq::SrqHandles { pd: 1, xrcd: None, cq: None };
    let ioctl = "ioctl 5.0: 0x0 new handle, 0x9 u64 0x0, 0x4 u64 0x77, 0x1 handle 1, 0x5 u32 0x10, 0x6 u32 0x4, \
                 0x7 u32 0x5, 0xb out 4 bytes, 0xc out 4 bytes, 0x1001 out 24 bytes";
    let write = format!("write 32: in {}{}, out 16+24", "00".repeat(8), hex([0x77, 0, 1, 16, 4, 5]));
    let scripted = Scripted::new([
        Expect::command(ioctl, Reply::outputs([&words([9])[..], &words([31]), &words([6]), &[1; 24]])),
        Expect::command(ioctl, REFUSED),
        Expect::anything(REFUSED),
        Expect::command(&write, Reply::outputs([&words([9, 31, 6, 0])[..], &[1; 24]])),
    ]);
    let uverbs = on(&scripted);
    for _ in 0..2 {
        let mut driver = [0; 24];
        let info = srq::create_srq(&uverbs, &parents, &basic, None, Uhw::reply(&mut driver)).unwrap();
        assert_eq!(info, srq::SrqInfo { handle: 9, srq_num: 0, max_wr: 31, max_sge: 6 });
        assert_eq!(driver, [1; 24]);
    }
    assert_eq!(scripted.remaining(), 0);
}

#[test]
fn a_queue_of_the_kind_xrc_names_its_domain_and_completion_queue_and_gets_a_number() {
    let ioctl = "ioctl 5.0: 0x2 handle 2, 0x3 handle 3, 0xd out 4 bytes, 0x0 new handle, 0x9 u64 0x1, \
                 0x4 u64 0x77, 0x1 handle 1, 0x5 u32 0x10, 0x6 u32 0x4, 0x7 u32 0x5, 0xb out 4 bytes, \
                 0xc out 4 bytes";
    let write =
        format!("write 39: in {}{}, out 16+0", "00".repeat(8), hex([0x77, 0, 1, 1, 16, 4, 5, 0, 2, 3]));
    let scripted = Scripted::new([
        Expect::command(ioctl, Reply::outputs([&words([77])[..], &words([9]), &words([31]), &words([6])])),
        Expect::command(ioctl, REFUSED),
        Expect::anything(REFUSED),
        Expect::command(&write, Reply::outputs([&words([9, 31, 6, 77])[..]])),
    ]);
    let uverbs = on(&scripted);
    for _ in 0..2 {
        let info = srq::create_srq(&uverbs, &XRC, &attr(), None, Uhw::none()).unwrap();
        assert_eq!(info, srq::SrqInfo { handle: 9, srq_num: 77, max_wr: 31, max_sge: 6 });
    }
}

#[test]
fn a_queue_with_tag_matching_names_its_completion_queue_and_its_tags() {
    let tm = SrqInitAttr { srq_type: SrqType::TM, tm: TmCap { max_num_tags: 64, max_ops: 8 }, ..attr() };
    let parents = srq::SrqHandles { pd: 1, xrcd: None, cq: Some(3) };
    let ioctl = "ioctl 5.0: 0x3 handle 3, 0x8 u32 0x40, 0x0 new handle, 0x9 u64 0x2, 0x4 u64 0x77, 0x1 handle 1, \
                 0x5 u32 0x10, 0x6 u32 0x4, 0x7 u32 0x5, 0xb out 4 bytes, 0xc out 4 bytes";
    let write =
        format!("write 39: in {}{}, out 16+0", "00".repeat(8), hex([0x77, 0, 2, 1, 16, 4, 5, 64, 0, 3]));
    let scripted = Scripted::new([
        Expect::command(ioctl, REFUSED),
        Expect::anything(REFUSED),
        Expect::command(&write, Reply::outputs([&words([9, 31, 6, 0])[..]])),
    ]);
    assert_eq!(srq::create_srq(&on(&scripted), &parents, &tm, None, Uhw::none()).unwrap().handle, 9);
}

#[test]
fn a_queue_without_the_parents_of_its_kind_never_reaches_the_kernel() {
    let scripted = Scripted::default();
    let uverbs = on(&scripted);
    let none = srq::SrqHandles { pd: 1, xrcd: None, cq: None };
    for (srq_type, parents) in [
        (SrqType::XRC, none),
        (SrqType::XRC, srq::SrqHandles { xrcd: Some(2), ..none }),
        (SrqType::XRC, srq::SrqHandles { cq: Some(3), ..none }),
        (SrqType::TM, none),
    ] {
        let attr = SrqInitAttr { srq_type, ..attr() };
        let error = srq::create_srq(&uverbs, &parents, &attr, None, Uhw::none()).unwrap_err();
        assert_eq!((error.verb, error.errno), ("create_srq", Errno::INVAL));
    }
}

#[test]
#[allow(unsafe_code)]
fn modify_srq_sends_only_what_the_mask_names_and_the_input_of_the_driver() {
    let attr = SrqAttr { max_wr: 100, max_sge: 7, srq_limit: 9 };
    // SAFETY: a scripted kernel writes nothing.
    let uhw = || unsafe { Uhw::none().with_input(&[0xab; 8]) };
    let scripted = Scripted::new([
        Expect::command(
            &format!("ioctl 0.0: 0x2 u64 0x21, 0x0 in {}, 0x1000 in {}", hex([5, 1, 100, 0]), "ab".repeat(8)),
            REFUSED,
        ),
        Expect::command(
            &format!("write 33: in {}+{}, out 0+0", hex([5, 1, 100, 0]), "ab".repeat(8)),
            Reply::ok(),
        ),
        Expect::command(&format!("write 33: in {}, out 0+0", hex([5, 2, 0, 9])), Reply::ok()),
    ]);
    let uverbs = on(&scripted);
    srq::modify_srq(&uverbs, 5, &attr, SrqAttrMask::MAX_WR, uhw()).unwrap();
    srq::modify_srq(&uverbs, 5, &attr, SrqAttrMask::LIMIT, Uhw::none()).unwrap();
    assert_eq!(scripted.remaining(), 0);
}

#[test]
fn a_queried_shared_receive_queue_reads_as_it_was_sent() {
    let scripted = Scripted::new([
        Expect::anything(Reply::Errno(Errno::NOTTY)),
        Expect::command(
            &format!("write 34: in {}{}, out 16+0", "00".repeat(8), hex([5, 0])),
            Reply::outputs([&words([31, 6, 4, 0])[..]]),
        ),
    ]);
    let attr = srq::query_srq(&on(&scripted), 5).unwrap();
    assert_eq!(attr, SrqAttr { max_wr: 31, max_sge: 6, srq_limit: 4 });
}

#[test]
fn a_shared_receive_queue_and_a_domain_are_destroyed_on_both_ways() {
    let scripted = Scripted::new([
        Expect::command("ioctl 5.1: 0x1 out 4 bytes, 0x0 handle 5", REFUSED),
        Expect::anything(REFUSED),
        Expect::command(
            &format!("write 35: in {}{}, out 4+0", "00".repeat(8), hex([5, 0])),
            Reply::outputs([&words([0])[..]]),
        ),
        Expect::command("ioctl 10.0: 0x0 handle 6", REFUSED),
        Expect::command(&format!("write 38: in {}, out 0+0", hex([6])), Reply::ok()),
    ]);
    let uverbs = on(&scripted);
    srq::destroy_srq(&uverbs, 5).unwrap();
    xrcd::close_xrcd(&uverbs, 6).unwrap();
    assert_eq!(scripted.remaining(), 0);
}

#[test]
fn a_domain_of_its_own_has_no_file() {
    let scripted = Scripted::new([
        Expect::anything(Reply::Errno(Errno::NOTTY)),
        Expect::command(
            &format!("write 37: in {}{}, out 4+0", "00".repeat(8), hex([u32::MAX, 0o100])),
            Reply::outputs([&words([7])[..]]),
        ),
    ]);
    assert_eq!(xrcd::open_xrcd(&on(&scripted), None, libc::O_CREAT), Ok(7));
}

#[test]
fn a_queue_pair_names_its_shared_receive_queue() {
    let parents = qp::QpHandles { srq: Some(8), xrcd: Some(9), ..QP_PARENTS };
    let ioctl = "ioctl 4.0: 0x2 handle 1, 0x4 handle 2, 0x5 handle 3, 0x0 new handle, 0x9 u64 0x2, 0x7 u64 0x77, \
                 0x8 in 0100000002000000030000000400000005000000, 0xa u32 0x1000, 0x3 handle 8, 0xd out 20 bytes, \
                 0xe out 4 bytes";
    let caps = hex([1, 2, 3, 4, 5]);
    let write =
        format!("write 24: in {}{}{caps}01020100, out 32+0", "00".repeat(8), hex([0x77, 0, 1, 2, 3, 8]));
    let scripted = Scripted::new([
        Expect::command(ioctl, REFUSED),
        Expect::anything(REFUSED),
        Expect::command(&write, Reply::outputs([&words([6, 17, 1, 0, 3, 0, 5, 0])[..]])),
    ]);
    let info = qp::create_qp(&on(&scripted), &parents, &qp_attr(), None, Uhw::none()).unwrap();
    assert_eq!((info.handle, info.qp_num, info.cap.max_recv_wr), (6, 17, 0));
}

#[test]
fn an_xrc_target_names_its_domain_alone_and_an_initiator_no_queue_for_receives() {
    let parents = qp::QpHandles { srq: Some(8), xrcd: Some(9), ..QP_PARENTS };
    let target = QpInitAttr { qp_type: QpType::XRC_RECV, sq_sig_all: false, ..qp_attr() };
    let initiator = QpInitAttr { qp_type: QpType::XRC_SEND, sq_sig_all: false, ..qp_attr() };
    let reply = || Reply::outputs([&words([6, 17, 0, 0, 0, 0, 0, 0])[..]]);
    let zeros = "00".repeat(8);
    let scripted = Scripted::new([
        Expect::command(
            "ioctl 4.0: 0x1 handle 9, 0x0 new handle, 0x9 u64 0xa, 0x7 u64 0x77, \
             0x8 in 0100000002000000030000000400000005000000, 0xd out 20 bytes, 0xe out 4 bytes",
            REFUSED,
        ),
        Expect::anything(REFUSED),
        Expect::command(
            &format!(
                "write 24: in {zeros}{}{}000a0000, out 32+0",
                hex([0x77, 0, 9, 0, 0, 0]),
                hex([1, 2, 3, 4, 5])
            ),
            reply(),
        ),
        Expect::command(
            &format!(
                "write 24: in {zeros}{}{}00090000, out 32+0",
                hex([0x77, 0, 1, 2, 0, 0]),
                hex([1, 0, 3, 0, 5])
            ),
            reply(),
        ),
    ]);
    let uverbs = on(&scripted);
    for attr in [target, initiator] {
        assert_eq!(qp::create_qp(&uverbs, &parents, &attr, None, Uhw::none()).unwrap().qp_num, 17);
    }
    assert_eq!(scripted.remaining(), 0);
}

#[test]
fn an_opened_target_is_named_by_its_domain_and_its_number() {
    let scripted = Scripted::new([
        Expect::anything(Reply::Errno(Errno::NOTTY)),
        Expect::command(
            &format!(
                "write 40: in {}{}0a{}, out 32+0",
                "00".repeat(8),
                hex([0x77, 0, 9, 17]),
                "00".repeat(7)
            ),
            Reply::outputs([&words([6, 17, 0, 0, 0, 0, 0, 0])[..]]),
        ),
    ]);
    let info = qp::open_qp(&on(&scripted), 9, 17, 0x77, Uhw::none()).unwrap();
    assert_eq!((info.handle, info.qp_num), (6, 17));
}
