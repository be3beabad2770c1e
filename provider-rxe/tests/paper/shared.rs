//! Shared receive queues: the commands to the kernel, the entries in the queue, and resizing. Only
//! a real kernel writes at the address in a command, so that part is not tested here.

use std::os::fd::AsRawFd;

use provider_rxe::paper::{PaperDevice, PaperQueue};
use provider_rxe::{Rxe, SrqQueue};
use uverbs_abi::ib_user_verbs::IbUverbsQueryDeviceResp;
use uverbs_abi::rdma_user_rxe::{RxeCreateQpResp, RxeCreateSrqResp, RxeRecvWqe};
use verbs_core::channel::{Expect, Reply};
use verbs_core::provider::{
    ContextOps, Destroy, EventsRead, QpOps, QpParents, QpParts, RecvQueue, SrqOps, SrqParents, SrqParts,
};
use verbs_core::types::{
    PostError, PostReason, QpInitAttr, RecvWr, Sge, SrqAttr, SrqAttrMask, SrqInitAttr, SrqType, TmCap,
};
use verbs_core::{Cause, Errno, Result};
use zerocopy::IntoBytes;

const SGE: Sge = Sge { addr: 0x1000, length: 16, lkey: 1 };
const OFFSET: u64 = 0x5000_0000;
const HANDLE: u32 = 8;

fn attr() -> SrqInitAttr {
    SrqInitAttr {
        srq_type: SrqType::BASIC,
        max_wr: 7,
        max_sge: 2,
        srq_limit: 3,
        tm: TmCap::default(),
        user_handle: 0x99,
    }
}

/// Creates a shared receive queue over a paper queue.
fn create(device: &PaperDevice, queue: &PaperQueue, command: Option<&str>) -> Result<SrqParts<Rxe>> {
    let driver = RxeCreateSrqResp { mi: PaperDevice::mminfo(OFFSET, queue), srq_num: 77, reserved: 0 };
    let words = |word: u32| word.to_ne_bytes();
    let reply = Reply::outputs([&words(HANDLE)[..], &words(7), &words(2), driver.as_bytes()]);
    let expect = match command {
        Some(command) => Expect::command(command, reply),
        None => Expect::anything(reply),
    };
    device.script.expect([expect]);
    device.expect_map(OFFSET, queue);
    let parents = SrqParents { pd: &device.pd, xrcd: None, cq: None };
    device.context.create_srq(&parents, &attr())
}

fn post(queue: &mut SrqQueue, wr_id: u64, count: usize) -> Result<(), PostError> {
    let list = vec![SGE; count];
    // SAFETY: a paper device accesses no memory.
    unsafe { queue.post_recv(&[RecvWr { wr_id, sge: &list }]) }
}

#[test]
fn a_shared_receive_queue_is_asked_for_with_room_for_its_mapping() {
    let device = crate::device();
    let queue = PaperQueue::new(8, 128);
    let fd = device.context.device().async_fd().unwrap().as_raw_fd();
    let command = format!(
        "ioctl 5.0: 0x0 new handle, 0x9 u64 0x0, 0x4 u64 0x99, 0x1 handle 2, 0x5 u32 0x7, 0x6 u32 0x2, \
         0x7 u32 0x3, 0xa fd {fd}, 0xb out 4 bytes, 0xc out 4 bytes, 0x1001 out 24 bytes"
    );
    let SrqParts { srq, .. } = create(&device, &queue, Some(&command)).unwrap();
    assert_eq!((srq.handle(), srq.srq_num()), (HANDLE, None));
    assert_eq!(srq.attr(), SrqAttr { max_wr: 7, max_sge: 2, srq_limit: 0 });
    device.script.expect([Expect::command("ioctl 5.1: 0x1 out 4 bytes, 0x0 handle 8", Reply::ok())]);
    srq.destroy().unwrap();
}

#[test]
fn the_events_that_were_read_are_those_that_the_kernel_counted() {
    let device = crate::device();
    let srq = create(&device, &PaperQueue::new(8, 128), None).unwrap().srq;
    let reply = Reply::outputs([&5_u32.to_ne_bytes()]);
    device.script.expect([Expect::command("ioctl 5.1: 0x1 out 4 bytes, 0x0 handle 8", reply)]);
    let read = srq.destroy_counting_events().unwrap();
    assert_eq!(read, EventsRead { comp: 0, asynchronous: 5 });
}

#[test]
fn other_kinds_never_reach_the_kernel() {
    let device = crate::device();
    let parents = SrqParents { pd: &device.pd, xrcd: None, cq: None };
    for srq_type in [SrqType::XRC, SrqType::TM] {
        let error = device.context.create_srq(&parents, &SrqInitAttr { srq_type, ..attr() }).unwrap_err();
        assert_eq!((error.verb, error.errno), ("create_srq", Errno::OPNOTSUPP));
    }
}

#[test]
fn a_queue_that_is_malformed_is_destroyed_again() {
    let device = crate::device();
    let queue = PaperQueue::new(8, 32);
    let destroyed = Expect::command("ioctl 5.1: 0x1 out 4 bytes, 0x0 handle 8", Reply::ok());
    let driver = RxeCreateSrqResp { mi: PaperDevice::mminfo(OFFSET, &queue), srq_num: 77, reserved: 0 };
    let words = |word: u32| word.to_ne_bytes();
    device.script.expect([
        Expect::anything(Reply::outputs([&words(HANDLE)[..], &words(7), &words(2), driver.as_bytes()])),
        destroyed,
    ]);
    device.expect_map(OFFSET, &queue);
    let parents = SrqParents { pd: &device.pd, xrcd: None, cq: None };
    let error = device.context.create_srq(&parents, &attr()).unwrap_err();
    assert!(matches!(error.cause, Cause::BadReply { .. }), "{error}");
    assert_eq!(device.script.remaining(), 0);
}

#[test]
fn receives_go_into_the_queue_until_it_is_full_without_a_system_call() {
    let device = crate::device();
    let paper = PaperQueue::new(8, 128);
    let SrqParts { mut queue, .. } = create(&device, &paper, None).unwrap();
    for wr_id in 0..7 {
        post(&mut queue, wr_id, (wr_id % 3) as usize).unwrap();
    }
    assert_eq!(post(&mut queue, 7, 1).unwrap_err().reason, PostReason::QueueFull);
    let error = post(&mut queue, 7, 3).unwrap_err();
    assert_eq!(error.reason, PostReason::TooManySge { given: 3, max: 2 });
    for wr_id in 0..7 {
        let (wqe, list) = paper.take::<RxeRecvWqe>().unwrap();
        let count = (wr_id % 3) as u32;
        assert_eq!((wqe.wr_id, wqe.dma.num_sge, wqe.dma.length), (wr_id, count, 16 * count));
        let words = [SGE.addr as u32, (SGE.addr >> 32) as u32, SGE.length, SGE.lkey];
        let of_one: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(list[..16 * count as usize], of_one.repeat(count as usize)[..]);
    }
    post(&mut queue, 8, 1).unwrap();
    assert_eq!(paper.count(), 1);
}

#[test]
fn a_queue_pair_with_a_shared_receive_queue_maps_its_send_queue_alone() {
    let device = crate::device();
    let (cq, paper, sq) = (device.create_cq(16), PaperQueue::new(8, 128), PaperQueue::new(16, 512));
    let SrqParts { srq, .. } = create(&device, &paper, None).unwrap();
    let reply =
        RxeCreateQpResp { sq_mi: PaperDevice::mminfo(PaperDevice::SQ_OFFSET, &sq), ..Default::default() };
    let attr: QpInitAttr = PaperDevice::rc();
    device.script.expect([PaperDevice::qp_reply(&attr.cap, reply.as_bytes())]);
    device.expect_map(PaperDevice::SQ_OFFSET, &sq);
    let parents = QpParents { srq: Some(&srq), ..QpParents::new(&device.pd, &cq.handle, &cq.handle) };
    let QpParts { qp, mut rq, .. } = device.context.create_qp(&parents, &attr).unwrap();
    assert_eq!((qp.cap().max_recv_wr, qp.cap().max_recv_sge), (0, 0));
    // SAFETY: a paper device accesses no memory.
    let error = unsafe { rq.post_recv(&[RecvWr { wr_id: 1, sge: &[] }]) }.unwrap_err();
    assert_eq!(error.reason, PostReason::SharedRecvQueue);
}

#[test]
fn a_size_below_the_receives_in_the_queue_never_reaches_the_kernel() {
    let device = crate::device();
    let paper = PaperQueue::new(8, 128);
    let SrqParts { srq, mut queue } = create(&device, &paper, None).unwrap();
    (0..5).for_each(|wr_id| post(&mut queue, wr_id, 1).unwrap());
    paper.take::<RxeRecvWqe>().unwrap();
    let limits = IbUverbsQueryDeviceResp { max_srq_wr: 100, ..Default::default() };
    for (max_wr, min) in [(3, 4), (0, 4), (101, 4)] {
        device.script.expect([Expect::anything(Reply::outputs([limits.as_bytes()]))]);
        let attr = SrqAttr { max_wr, ..SrqAttr::default() };
        let error = srq.modify(&mut queue, &attr, SrqAttrMask::MAX_WR).unwrap_err();
        let cause = Cause::Limit { name: "max_wr", asked: max_wr.into(), min, max: 100 };
        assert_eq!((error.errno, error.cause), (Errno::INVAL, cause));
    }
    assert_eq!((device.script.remaining(), paper.count()), (0, 4));
}

#[test]
fn a_size_whose_rounded_queue_holds_the_receives_reaches_the_kernel() {
    let limits = IbUverbsQueryDeviceResp { max_srq_wr: 100, ..Default::default() };
    for (receives, max_wr) in [(1, 1), (2, 2), (3, 2), (4, 4), (5, 4), (7, 4)] {
        let device = crate::device();
        let SrqParts { srq, mut queue } = create(&device, &PaperQueue::new(8, 128), None).unwrap();
        (0..receives).for_each(|wr_id| post(&mut queue, wr_id, 1).unwrap());
        let replies = [Reply::outputs([limits.as_bytes()]), Reply::Errno(Errno::NOSYS)];
        device.script.expect(replies.map(Expect::anything));
        let attr = SrqAttr { max_wr, ..SrqAttr::default() };
        let error = srq.modify(&mut queue, &attr, SrqAttrMask::MAX_WR).unwrap_err();
        assert_eq!((error.errno, device.script.remaining()), (Errno::NOSYS, 0), "{receives} to {max_wr}");
    }
}

#[test]
fn after_a_change_of_the_size_without_a_mapping_the_queue_accepts_nothing() {
    let device = crate::device();
    let paper = PaperQueue::new(8, 128);
    let SrqParts { srq, mut queue } = create(&device, &paper, None).unwrap();
    post(&mut queue, 1, 1).unwrap();
    let limits = IbUverbsQueryDeviceResp { max_srq_wr: 100, ..Default::default() };
    let told = || Expect::anything(Reply::outputs([limits.as_bytes()]));
    // This kernel does not return the new queue's mapping.
    device.script.expect([told(), Expect::anything(Reply::ok())]);
    let attr = SrqAttr { max_wr: 20, ..SrqAttr::default() };
    let error = srq.modify(&mut queue, &attr, SrqAttrMask::MAX_WR).unwrap_err();
    assert!(matches!(error.cause, Cause::BadReply { .. }), "{error}");
    assert_eq!(post(&mut queue, 2, 1).unwrap_err().reason, PostReason::QueueFull);
    device.script.expect([told()]);
    let error = srq.modify(&mut queue, &attr, SrqAttrMask::MAX_WR).unwrap_err();
    assert_eq!(error.errno, Errno::NOMEM);
    assert_eq!(paper.count(), 1, "the old queue is as it was");
}

#[test]
fn a_limit_is_changed_by_one_command() {
    let device = crate::device();
    let paper = PaperQueue::new(8, 128);
    let SrqParts { srq, mut queue } = create(&device, &paper, None).unwrap();
    let words = "08000000020000000000000005000000";
    device.script.expect([Expect::command(
        &format!("ioctl 0.0: 0x2 u64 0x21, 0x0 in {words}, 0x1000 in 0000000000000000"),
        Reply::ok(),
    )]);
    let attr = SrqAttr { srq_limit: 5, ..SrqAttr::default() };
    srq.modify(&mut queue, &attr, SrqAttrMask::LIMIT).unwrap();
    assert_eq!(device.script.remaining(), 0);
}

#[test]
fn the_queue_of_another_context_is_refused() {
    let (device, other) = (crate::device(), crate::device());
    let (paper, theirs) = (PaperQueue::new(8, 128), PaperQueue::new(8, 128));
    let SrqParts { srq, .. } = create(&device, &paper, None).unwrap();
    let SrqParts { mut queue, .. } = create(&other, &theirs, None).unwrap();
    let error = srq.modify(&mut queue, &SrqAttr::default(), SrqAttrMask::LIMIT).unwrap_err();
    assert!(matches!(error.cause, Cause::Foreign { .. }), "{error}");
}
