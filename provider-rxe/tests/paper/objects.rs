//! Objects: the commands to the kernel, its possible replies, and clean-up after malformed replies.

use uverbs_abi::ib_user_verbs::IbUverbsQueryDeviceResp;
use uverbs_abi::rdma_user_rxe::{RxeCreateAhResp, RxeCreateCqResp, RxeCreateQpResp};
use verbs_core::channel::{Expect, Reply};
use verbs_core::discovery::{DevNum, DeviceInfo, DeviceParts, NodeType, RdmaDriverId};
use verbs_core::provider::{
    AhOps, ContextOps, CqOps, Destroy, ErasedCq, ErasedQp, EventsRead, MrOps, NamedProvider, PdOps, QpOps,
    QpParents, QpParts, SendQueue, erase,
};
use verbs_core::types::{
    AccessFlags, AhAttr, CqInitAttr, Gid, GlobalRoute, Guid, QpCap, QpInitAttr, QpState, QpType, SendOp, Wc,
};
use verbs_core::{Cause, Errno};
use zerocopy::IntoBytes;

use super::{Fixture, plain, sge};
use provider_rxe::Rxe;
use provider_rxe::paper::{PaperDevice, PaperQueue};

/// Expects the command that destroys an unusable object.
fn destroyed(object: &str) -> Expect {
    Expect::command(object, Reply::ok())
}

const DESTROY_CQ: &str = "ioctl 3.1: 0x1 out 8 bytes, 0x0 handle 3";
const DESTROY_QP: &str = "ioctl 4.1: 0x1 out 4 bytes, 0x0 handle 4";

#[test]
fn a_completion_queue_is_asked_for_with_room_for_its_mapping() {
    let device = crate::device();
    let queue = PaperQueue::new(64, 64);
    let reply = RxeCreateCqResp { mi: PaperDevice::mminfo(PaperDevice::CQ_OFFSET, &queue) };
    let fd = std::os::fd::AsRawFd::as_raw_fd(&device.context.device().async_fd().unwrap());
    let command = format!(
        "ioctl 3.0: 0x0 new handle, 0x6 out 4 bytes, 0x1 u32 0x28, 0x2 u64 0x99, 0x4 u32 0x1, 0x7? fd {fd}, 0x1001 out 16 bytes"
    );
    device.script.expect([Expect::command(
        &command,
        Reply::outputs([&3_u32.to_ne_bytes(), &63_u32.to_ne_bytes(), reply.as_bytes()]),
    )]);
    device.expect_map(PaperDevice::CQ_OFFSET, &queue);
    let attr = CqInitAttr { comp_vector: 1, user_handle: 0x99, ..CqInitAttr::new(40) };
    let (cq, _) = device.context.create_cq(None, &attr).unwrap();
    assert_eq!((cq.handle(), cq.cqe()), (3, 63));
    device.script.expect([destroyed(DESTROY_CQ)]);
    cq.destroy().map_err(|(_, error)| error).unwrap();
}

#[test]
fn the_events_that_were_read_are_those_that_the_kernel_counted() {
    fn destroy(device: &PaperDevice, object: impl Destroy, command: &str, counts: &[u32]) -> EventsRead {
        let bytes: Vec<u8> = counts.iter().flat_map(|count| count.to_ne_bytes()).collect();
        device.script.expect([Expect::command(command, Reply::outputs([&bytes]))]);
        object.destroy_counting_events().map_err(|(_, error)| error).unwrap()
    }
    let of_cq = EventsRead { comp: 3, asynchronous: 1 };
    let of_qp = EventsRead { comp: 0, asynchronous: 2 };
    let Fixture { device, cq, qp } = Fixture::of_type(QpType::RC);
    assert_eq!(destroy(&device, qp.parts.qp, DESTROY_QP, &[2]), of_qp);
    assert_eq!(destroy(&device, cq.cq, DESTROY_CQ, &[3, 1]), of_cq);
    let Fixture { device, cq, qp } = Fixture::of_type(QpType::RC);
    assert_eq!(destroy(&device, ErasedQp::new(qp.parts.qp), DESTROY_QP, &[2]), of_qp);
    assert_eq!(destroy(&device, ErasedCq::new(cq.cq), DESTROY_CQ, &[3, 1]), of_cq);
}

#[test]
fn a_queue_pair_knows_what_the_kernel_answered() {
    let fixture = Fixture::of_type(QpType::RC);
    let qp = &fixture.qp.parts.qp;
    assert_eq!((qp.handle(), qp.qp_num(), qp.qp_type()), (4, PaperDevice::QP_NUM, QpType::RC));
    assert_eq!(qp.cap(), PaperDevice::rc().cap);
    fixture.device.script.expect([destroyed(DESTROY_QP)]);
    fixture.qp.parts.qp.destroy().map_err(|(_, error)| error).unwrap();
    fixture.device.script.expect([destroyed(DESTROY_CQ)]);
    fixture.cq.cq.destroy().map_err(|(_, error)| error).unwrap();
    assert_eq!(fixture.cq.queue.count(), 0);
}

#[test]
fn the_capacity_is_that_of_the_mapped_queues() {
    let device = crate::device();
    let cq = device.create_cq(16);
    let qp = device.create_qp_over(
        cq.handle,
        PaperDevice::rc(),
        PaperQueue::new(64, 512),
        PaperQueue::new(32, 128),
    );
    let cap = qp.unwrap().parts.qp.cap();
    assert_eq!((cap.max_send_wr, cap.max_recv_wr), (63, 31), "although the kernel replied 15");
}

#[test]
fn an_object_that_the_kernel_keeps_comes_back_alive() {
    let fixture = Fixture::of_type(QpType::RC);
    fixture.device.script.expect([Expect::command(DESTROY_CQ, Reply::Errno(Errno::BUSY))]);
    let (mut cq, error) = fixture.cq.cq.destroy().unwrap_err();
    assert_eq!(error.errno, Errno::BUSY);
    assert_eq!(cq.poll(&mut [Wc::default()]), 0);
    fixture.device.script.expect([Expect::command(DESTROY_QP, Reply::Errno(Errno::BUSY))]);
    let QpParts { qp, mut sq, .. } = fixture.qp.parts;
    let (_qp, error) = qp.destroy().unwrap_err();
    assert_eq!(error.errno, Errno::BUSY);
    // SAFETY: a paper device accesses no memory named by work requests.
    unsafe { sq.post_send(&[plain(SendOp::Send, &[sge(1)])]) }.unwrap();
    assert_eq!(fixture.qp.sq.count(), 1, "its queue is still mapped");
    for failed in [Errno::NODEV, Errno::IO] {
        let device = crate::device();
        let cq = device.create_cq(16).cq;
        device.script.expect([Expect::command(DESTROY_CQ, Reply::Errno(failed))]);
        let (cq, error) = cq.destroy().unwrap_err();
        assert_eq!(error.errno, failed, "an error proves nothing");
        device.script.expect([Expect::command(DESTROY_CQ, Reply::ok())]);
        cq.destroy().unwrap();
    }
}

#[test]
fn a_completion_queues_reply_cut_at_any_length_leaves_nothing_behind() {
    let queue = PaperQueue::new(16, 64);
    let reply = RxeCreateCqResp { mi: PaperDevice::mminfo(PaperDevice::CQ_OFFSET, &queue) };
    for len in 0..=12 {
        let device = crate::device();
        device.script.expect([PaperDevice::cq_reply(15, &reply.as_bytes()[..len])]);
        if len == 12 {
            // Offset and size are complete; the rest is padding.
            device.expect_map(PaperDevice::CQ_OFFSET, &queue);
            device.context.create_cq(None, &PaperDevice::cq_attr()).unwrap();
            continue;
        }
        device.script.expect([destroyed(DESTROY_CQ)]);
        let error = device.context.create_cq(None, &PaperDevice::cq_attr()).unwrap_err();
        assert_eq!(error.verb, "create_cq", "{len}");
        assert_eq!(device.script.remaining(), 0, "{len}");
    }
}

#[test]
fn a_queue_pairs_reply_cut_at_any_length_leaves_nothing_behind() {
    let (sq, rq) = (PaperQueue::new(16, 512), PaperQueue::new(16, 128));
    let reply = RxeCreateQpResp {
        rq_mi: PaperDevice::mminfo(PaperDevice::RQ_OFFSET, &rq),
        sq_mi: PaperDevice::mminfo(PaperDevice::SQ_OFFSET, &sq),
    };
    let attr = PaperDevice::rc();
    for len in 0..=28 {
        let device = crate::device();
        let cq = device.create_cq(16);
        device.script.expect([PaperDevice::qp_reply(&attr.cap, &reply.as_bytes()[..len])]);
        if len >= 12 {
            device.expect_map(PaperDevice::RQ_OFFSET, &rq);
        }
        if len == 28 {
            device.expect_map(PaperDevice::SQ_OFFSET, &sq);
            device.context.create_qp(&QpParents::new(&device.pd, &cq.handle, &cq.handle), &attr).unwrap();
            continue;
        }
        device.script.expect([destroyed(DESTROY_QP)]);
        let error =
            device.context.create_qp(&QpParents::new(&device.pd, &cq.handle, &cq.handle), &attr).unwrap_err();
        assert_eq!(error.verb, "create_qp", "{len}");
        assert_eq!(device.script.remaining(), 0, "{len}");
    }
}

#[test]
fn a_mapping_that_fails_takes_the_object_with_it() {
    let device = crate::device();
    let queue = PaperQueue::new(16, 64);
    let reply = RxeCreateCqResp { mi: PaperDevice::mminfo(PaperDevice::CQ_OFFSET, &queue) };
    // No mapping is expected, so it fails with EINVAL.
    device.script.expect([PaperDevice::cq_reply(15, reply.as_bytes()), destroyed(DESTROY_CQ)]);
    let error = device.context.create_cq(None, &PaperDevice::cq_attr()).unwrap_err();
    assert_eq!((error.verb, error.errno), ("create_cq", Errno::INVAL));
}

#[test]
fn a_header_that_does_not_fit_its_mapping_is_refused() {
    // Header words and the mapped length: 384 bytes of header and 16 slots of 64.
    const SIZE: usize = 384 + 16 * 64;
    let cases: [(u32, u32, usize, &str); 11] = [
        (6, 15, SIZE - 1, "do not fit"),
        (6, 15, 384, "do not fit"),
        (6, 15, 383, "shorter than its header"),
        (6, 31, SIZE, "do not fit"),
        (7, 15, SIZE, "do not fit"),
        (6, 14, SIZE, "not a power of two"),
        (6, u32::MAX, SIZE, "do not fit"),
        (5, 15, SIZE, "too small"),
        (0, 15, SIZE, "too small"),
        (63, 1, SIZE, "do not fit"),
        (64, 0, SIZE, "impossible size"),
    ];
    for (log2_stride, mask, size, what) in cases {
        let device = crate::device();
        let queue = PaperQueue::new(16, 64);
        queue.poke(0, log2_stride);
        queue.poke(4, mask);
        let mut reply = RxeCreateCqResp { mi: PaperDevice::mminfo(PaperDevice::CQ_OFFSET, &queue) };
        reply.mi.size = size as u32;
        device.script.expect([PaperDevice::cq_reply(15, reply.as_bytes())]);
        device.expect_map_of(PaperDevice::CQ_OFFSET, size, &queue);
        device.script.expect([destroyed(DESTROY_CQ)]);
        let error = device.context.create_cq(None, &PaperDevice::cq_attr()).unwrap_err();
        assert!(matches!(error.cause, Cause::BadReply { .. }), "{error}");
        assert!(error.to_string().contains(what), "{error}");
    }
}

#[test]
fn slots_too_small_for_the_longest_list_are_refused() {
    let attr = PaperDevice::rc();
    // 4 SGEs: 208 + 64 bytes for a send, 40 + 64 for a receive.
    for (sq_stride, rq_stride, fits) in [(256, 128, false), (512, 64, false), (512, 128, true)] {
        let device = crate::device();
        let cq = device.create_cq(16);
        if !fits {
            // The creation is expected first, and is queued by `create_qp_over`.
            let (sq, rq) = (PaperQueue::new(16, sq_stride), PaperQueue::new(16, rq_stride));
            let reply = RxeCreateQpResp {
                rq_mi: PaperDevice::mminfo(PaperDevice::RQ_OFFSET, &rq),
                sq_mi: PaperDevice::mminfo(PaperDevice::SQ_OFFSET, &sq),
            };
            device.script.expect([PaperDevice::qp_reply(&attr.cap, reply.as_bytes()), destroyed(DESTROY_QP)]);
            device.expect_map(PaperDevice::RQ_OFFSET, &rq);
            device.expect_map(PaperDevice::SQ_OFFSET, &sq);
            let error = device
                .context
                .create_qp(&QpParents::new(&device.pd, &cq.handle, &cq.handle), &attr)
                .unwrap_err();
            assert!(error.to_string().contains("too small"), "{error}");
        } else {
            let (sq, rq) = (PaperQueue::new(16, sq_stride), PaperQueue::new(16, rq_stride));
            device.create_qp_over(cq.handle, attr, sq, rq).unwrap();
        }
    }
}

#[test]
fn a_capacity_that_the_kernel_invents_is_refused() {
    for cap in [
        QpCap { max_send_sge: u32::MAX, ..PaperDevice::rc().cap },
        QpCap { max_recv_sge: u32::MAX, ..PaperDevice::rc().cap },
        QpCap { max_inline_data: u32::MAX, ..PaperDevice::rc().cap },
    ] {
        let device = crate::device();
        let cq = device.create_cq(16);
        let (sq, rq) = (PaperQueue::new(16, 512), PaperQueue::new(16, 128));
        let reply = RxeCreateQpResp {
            rq_mi: PaperDevice::mminfo(PaperDevice::RQ_OFFSET, &rq),
            sq_mi: PaperDevice::mminfo(PaperDevice::SQ_OFFSET, &sq),
        };
        device.script.expect([PaperDevice::qp_reply(&cap, reply.as_bytes()), destroyed(DESTROY_QP)]);
        device.expect_map(PaperDevice::RQ_OFFSET, &rq);
        device.expect_map(PaperDevice::SQ_OFFSET, &sq);
        let error = device
            .context
            .create_qp(&QpParents::new(&device.pd, &cq.handle, &cq.handle), &PaperDevice::rc())
            .unwrap_err();
        assert!(matches!(error.cause, Cause::BadReply { .. }), "{error}");
    }
}

/// Returns the error of a queue pair rejected by the kernel with `EINVAL`.
fn refused(cap: QpCap, probe: Option<u32>) -> String {
    let device = crate::device();
    let cq = device.create_cq(16);
    let told = IbUverbsQueryDeviceResp { max_qp_wr: 16384, max_sge: 32, ..Default::default() };
    let told = || Expect::anything(Reply::outputs([told.as_bytes()]));
    device.script.expect([Expect::anything(Reply::Errno(Errno::INVAL)), told()]);
    if let Some(max_inline_data) = probe {
        let cap = QpCap { max_send_sge: 32, max_inline_data, ..QpCap::default() };
        device.script.expect([told(), PaperDevice::qp_reply(&cap, &[]), destroyed(DESTROY_QP)]);
    }
    let attr = QpInitAttr { cap, ..PaperDevice::rc() };
    let error =
        device.context.create_qp(&QpParents::new(&device.pd, &cq.handle, &cq.handle), &attr).unwrap_err();
    assert_eq!((error.errno, device.script.remaining()), (Errno::INVAL, 0));
    error.to_string()
}

#[test]
fn a_queue_pair_that_is_too_large_names_the_limit() {
    let cap = QpCap::default();
    for (cap, text) in [
        (QpCap { max_send_wr: 16385, ..cap }, "max_send_wr 16385 exceeds the device's 16384"),
        (QpCap { max_recv_wr: 20000, ..cap }, "max_recv_wr 20000 exceeds the device's 16384"),
        (QpCap { max_send_sge: 33, ..cap }, "max_send_sge 33 exceeds the device's 32"),
        (QpCap { max_recv_sge: 99, ..cap }, "max_recv_sge 99 exceeds the device's 32"),
    ] {
        assert_eq!(refused(cap, None), format!("create_qp on rxe0: {text} (EINVAL)"));
    }
    let cap = QpCap { max_inline_data: 513, ..cap };
    let text = "create_qp on rxe0: max_inline_data 513 exceeds the device's 512 (EINVAL)";
    assert_eq!(refused(cap, Some(512)), text);
    let other = QpCap { max_inline_data: 100, ..cap };
    assert_eq!(
        refused(other, Some(512)),
        "create_qp on rxe0: Invalid argument (EINVAL)",
        "the device has enough inline data"
    );
}

#[test]
fn an_address_handle_is_a_number_or_a_path_by_kernel() {
    let device = crate::device();
    let ah = device.create_ah(&AhAttr::default(), 0x1234).unwrap();
    assert_eq!(ah.av().bytes(14), Some(&0x1234_u32.to_ne_bytes()[..]));
    assert_eq!(ah.av().bytes(13), None, "the tag is not another provider's");
    device.script.expect([Expect::command("ioctl 6.0: 0x0 handle 9", Reply::ok())]);
    ah.destroy().map_err(|(_, error)| error).unwrap();

    // The reply has no number, so the provider writes the path from the GID table, which this
    // kernel returns with one command.
    let attr = AhAttr {
        grh: Some(GlobalRoute { dgid: Gid([9; 16]), sgid_index: 1, ..GlobalRoute::default() }),
        port_num: 1,
        ..AhAttr::default()
    };
    let mut entry = [0_u8; 32];
    entry[..16].copy_from_slice(&[7; 16]);
    entry[16..20].copy_from_slice(&1_u32.to_ne_bytes());
    entry[20..24].copy_from_slice(&1_u32.to_ne_bytes());
    entry[24..28].copy_from_slice(&2_u32.to_ne_bytes());
    let table = || Expect::anything(Reply::outputs([&entry, &1_u64.to_ne_bytes()]));
    let created = || {
        let reply = RxeCreateAhResp::default();
        Expect::anything(Reply::outputs([&9_u32.to_ne_bytes(), reply.as_bytes()]))
    };
    device.script.expect([created(), table()]);
    let ah = device.context.create_ah(&device.pd, &attr).unwrap();
    let bytes = ah.av().bytes(14).unwrap();
    assert_eq!((bytes.len(), bytes[0], bytes[1]), (88, 1, 2));
    assert_eq!(bytes[8..24], [9; 16], "the destination");

    // The source is outside the table, so the kernel's handle is destroyed again.
    let grh = GlobalRoute { sgid_index: 5, ..attr.grh.unwrap() };
    device.script.expect([created(), table(), Expect::command("ioctl 6.0: 0x0 handle 9", Reply::ok())]);
    let error = device.context.create_ah(&device.pd, &AhAttr { grh: Some(grh), ..attr }).unwrap_err();
    assert!(matches!(error.cause, Cause::Gid { index: 5, .. }), "{error}");
}

#[test]
fn arming_is_a_command() {
    let fixture = Fixture::of_type(QpType::RC);
    for solicited in [0_u8, 1] {
        let text = format!("ioctl 0.0: 0x2 u64 0x17, 0x0 in 03000000{solicited:02x}000000");
        fixture.device.script.expect([Expect::command(&text, Reply::ok())]);
        fixture.cq.cq.req_notify(solicited == 1).unwrap();
    }
}

#[test]
fn an_erased_device_makes_the_same_objects() {
    let device = crate::device();
    let script = device.script.clone();
    let context = erase::<Rxe>(device.context);
    // SAFETY: the test has one thread.
    let expect_map = |at, queue: &PaperQueue| script.expect_map(at, queue.size(), unsafe { queue.region() });
    assert_eq!((context.device().device_name(), context.provider_name()), ("rxe0", "rxe"));
    assert!(context.downcast_ref::<Rxe>().is_some());
    script.expect([Expect::anything(Reply::outputs([&8_u32.to_ne_bytes()]))]);
    let pd = context.alloc_pd().unwrap();
    assert_eq!(pd.handle(), 8);
    let queue = PaperQueue::new(16, 64);
    let reply = RxeCreateCqResp { mi: PaperDevice::mminfo(1, &queue) };
    script.expect([PaperDevice::cq_reply(15, reply.as_bytes())]);
    expect_map(1, &queue);
    let (cq, handle) = context.create_cq(None, &PaperDevice::cq_attr()).unwrap();
    assert_eq!((cq.handle(), cq.cqe()), (PaperDevice::CQ_HANDLE, 15));
    let (sq, rq) = (PaperQueue::new(16, 512), PaperQueue::new(16, 128));
    let reply = RxeCreateQpResp { rq_mi: PaperDevice::mminfo(2, &rq), sq_mi: PaperDevice::mminfo(3, &sq) };
    script.expect([PaperDevice::qp_reply(&PaperDevice::rc().cap, reply.as_bytes())]);
    expect_map(2, &rq);
    expect_map(3, &sq);
    let QpParts { qp, sq, rq } =
        context.create_qp(&QpParents::new(&pd, &handle, &handle), &PaperDevice::rc()).unwrap();
    assert!(sq.downcast::<provider_rxe::Sq>().is_ok() && rq.downcast::<provider_rxe::Rq>().is_ok());
    let qp = qp.downcast::<provider_rxe::Qp>().unwrap();
    assert_eq!((qp.state(), qp.cap()), (QpState::RESET, PaperDevice::rc().cap));
    let _erased_again = ErasedQp::new(qp);

    script.expect([Expect::anything(Reply::outputs([[1_u32, 0x11, 0x22, 0].as_bytes()]))]);
    let mut memory = [0_u8; 64];
    // SAFETY: a paper device accesses no memory.
    let mr = unsafe { context.reg_mr(&pd, memory.as_mut_ptr(), 64, 0, AccessFlags::LOCAL_WRITE) }.unwrap();
    assert_eq!((mr.lkey(), mr.rkey()), (0x11, 0x22));
}

#[test]
fn the_driver_says_which_devices_are_its_own() {
    assert_eq!((Rxe::DRIVER.name, Rxe::DRIVER.driver_id), ("rxe", 14));
    assert_eq!((Rxe::DRIVER.min_abi, Rxe::DRIVER.max_abi), (1, 2));
}

/// Returns a device with this ABI version of the driver but another device's file, so that every
/// open fails.
fn of_abi(abi_version: u32) -> DeviceInfo {
    let parts = DeviceParts {
        name: "rxe0".into(),
        dev_name: "uverbs0".into(),
        dev: DevNum { major: 1, minor: 3 },
        node_type: NodeType::CA,
        node_guid: Guid(1),
        index: None,
        driver_id: Some(RdmaDriverId::RDMA_DRIVER_RXE),
        abi_version,
        phys_port_cnt: Some(1),
        ibdev_path: "/nonexistent".into(),
        cdev_path: "/dev/null".into(),
    };
    // SAFETY: the device is rejected.
    unsafe { DeviceInfo::from_parts(parts) }
}

#[test]
fn a_device_of_another_abi_is_refused_with_its_version_and_the_range() {
    for abi in [0, 3, u32::MAX] {
        let error = Rxe::open(&of_abi(abi)).unwrap_err();
        assert_eq!(error.errno, Errno::NODEV);
        let both = format!("ABI version {abi}, the provider rxe 1 to 2");
        assert!(error.to_string().contains(&both), "{error}");
    }
    for abi in [1, 2] {
        let error = Rxe::open(&of_abi(abi)).unwrap_err();
        assert!(matches!(error.cause, Cause::File { .. }), "the file is next: {error}");
    }
}
