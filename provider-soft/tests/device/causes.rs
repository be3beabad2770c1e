//! Values that a soft device rejects with the same cause as a kernel device.
//!
//! # Safety
//! See [`common`].
#![allow(unsafe_code)]

use crate::common::{Arena, End, NO_PEER, PORT, QKEY, Shape, gid, open, path, recv, send, wait_ok};
use verbs::{
    AccessFlags, AhAttr, Cause, CqInit, Errno, GlobalRoute, HandleError, InitAttr, Mtu, QpType, RtrAttr,
    RtsAttr, SendOp, UdAddr,
};

#[test]
fn what_infiniband_programs_get_wrong_on_roce_has_a_cause() {
    let context = open();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(&CqInit::new(4)).unwrap());
    let error = pd.create_ah(&AhAttr::lid(PORT, 7)).unwrap_err();
    assert_eq!((error.errno, error.cause), (Errno::INVAL, Cause::NoGrh { port_num: PORT }));
    let elsewhere = AhAttr { port_num: 3, ..path(gid(&context)) };
    let error = pd.create_ah(&elsewhere).unwrap_err();
    assert!(matches!(error.cause, Cause::Limit { name: "ah_attr.port_num", asked: 3, .. }), "{error}");
    let far = GlobalRoute { sgid_index: 300, ..GlobalRoute::default() };
    let error = pd.create_ah(&AhAttr { grh: Some(far), ..AhAttr::default() }).unwrap_err();
    assert!(matches!(error.cause, Cause::Gid { index: 300, .. }), "{error}");

    let init = verbs::QpInit { cap: Shape::default().cap, ..verbs::QpInit::new(QpType::RC, &cq) };
    let mut qp = pd.create_qp(&init).unwrap().to_init(&InitAttr::default()).unwrap();
    let good = RtrAttr::new(path(gid(&context)), 0x11, 0x22);
    let psn = Cause::Limit { name: "rq_psn", asked: 1 << 24, min: 0, max: 0xff_ffff };
    let qpn = Cause::Limit { name: "dest_qp_num", asked: 1 << 24, min: 0, max: 0xff_ffff };
    for (rtr, cause) in [
        (RtrAttr { ah_attr: AhAttr::lid(PORT, 7), ..good }, Cause::NoGrh { port_num: PORT }),
        (RtrAttr { path_mtu: Mtu(0), ..good }, Cause::Mtu { mtu: Mtu(0) }),
        (RtrAttr { rq_psn: 1 << 24, ..good }, psn),
        (RtrAttr { dest_qp_num: 1 << 24, ..good }, qpn),
    ] {
        let HandleError { handle, error } = qp.to_rtr(&rtr).map(drop).unwrap_err();
        assert_eq!((error.errno, error.cause), (Errno::INVAL, cause));
        qp = handle;
    }
    let qp = qp.to_rtr(&good).unwrap();
    let error = qp.to_rts(&RtsAttr { sq_psn: Some(1 << 31), ..RtsAttr::default() }).unwrap_err().error;
    assert!(matches!(error.cause, Cause::Limit { name: "sq_psn", .. }), "{error}");

    let raw = verbs::QpInit { qp_type: QpType::RAW_PACKET, ..init };
    let error = pd.create_qp(&raw).unwrap_err();
    let cause = Cause::QpType { qp_type: QpType::RAW_PACKET };
    assert_eq!((error.errno, error.cause), (Errno::OPNOTSUPP, cause));
}

#[test]
fn rights_that_a_region_cannot_have_have_a_cause() {
    let pd = open().alloc_pd().unwrap();
    let bytes = Box::leak(Box::new([0_u64; 8]));
    let (addr, len) = (bytes.as_mut_ptr().cast(), 64);
    let (write, atomic) = (AccessFlags::REMOTE_WRITE, AccessFlags::REMOTE_ATOMIC);
    let (durable, unknown) = (AccessFlags::FLUSH_PERSISTENT, AccessFlags::from_bits_retain(1 << 10));
    for (access, errno, cause) in [
        (write | AccessFlags::REMOTE_READ, Errno::INVAL, Cause::NeedsLocalWrite { access: write }),
        (write | atomic, Errno::INVAL, Cause::NeedsLocalWrite { access: write | atomic }),
        (AccessFlags::LOCAL_WRITE | durable, Errno::OPNOTSUPP, Cause::Access { access: durable }),
        (AccessFlags::LOCAL_WRITE | unknown, Errno::INVAL, Cause::Access { access: unknown }),
    ] {
        // SAFETY: leaked memory, used by nothing else.
        let error = unsafe { pd.reg_mr(addr, len, access) }.unwrap_err();
        assert_eq!((error.errno, error.cause), (errno, cause));
    }
    let ignored = AccessFlags::LOCAL_WRITE | AccessFlags::HUGETLB | AccessFlags::RELAXED_ORDERING;
    // SAFETY: as above.
    unsafe { pd.reg_mr(addr, len, ignored) }.unwrap();
}

#[test]
fn a_datagram_is_answered_along_the_path_that_it_took() {
    let (first, second, shape) = (open(), open(), Shape::for_type(QpType::UD));
    let connect = |context| End::new(context, &shape).connect(&shape, gid(context), NO_PEER);
    let (mut a, mut b) = (connect(&first), connect(&second));
    let (from, into) = (Arena::new(&a.pd, 64), Arena::new(&b.pd, 64));
    let source = first.find_gid(PORT).unwrap();
    let ah = a.pd.create_ah(&AhAttr::new(&source, gid(&second))).unwrap();
    recv(&mut b.qp, 1, &[into.sge(0..64)]);
    let to = UdAddr { av: ah.av(), remote_qpn: b.qp.qp_num(), remote_qkey: QKEY };
    send(&mut a.qp, 1, SendOp::UdSend { to }, &[from.sge(0..8)]);
    let wc = wait_ok(&mut b.cq, 1);
    wait_ok(&mut a.cq, 1);

    let received = into.read(0..64);
    let back = second.init_ah_from_wc(PORT, &wc, &received).unwrap();
    assert_eq!(back.grh.map(|grh| (grh.dgid, grh.sgid_index)), Some((gid(&first), 0)));
    let back = b.pd.create_ah_from_wc(PORT, &wc, &received).unwrap();
    recv(&mut a.qp, 2, &[from.sge(0..64)]);
    let to = UdAddr { av: back.av(), remote_qpn: wc.src_qp, remote_qkey: QKEY };
    send(&mut b.qp, 2, SendOp::UdSend { to }, &[into.sge(0..8)]);
    assert_eq!(wait_ok(&mut a.cq, 2).src_qp, b.qp.qp_num());

    let error = second.init_ah_from_wc(PORT, &wc, &received[..39]).unwrap_err();
    assert!(matches!(error.cause, Cause::Parse(_)), "{error}");
    let error = first.init_ah_from_wc(PORT, &wc, &received).unwrap_err();
    let cause = Cause::NoSuchGid { port_num: PORT, gid: gid(&second) };
    assert_eq!((error.errno, error.cause), (Errno::NODATA, cause), "it was sent to the other device");
}
