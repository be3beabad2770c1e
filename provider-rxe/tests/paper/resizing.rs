//! Resizing a completion queue: the kernel copies unpolled completions into another queue.

use provider_rxe::paper::{PaperDevice, PaperQueue};
use uverbs_abi::ib_user_verbs::IbUverbsWc;
use uverbs_abi::rdma_user_rxe::RxeResizeCqResp;
use verbs_core::channel::{Expect, Reply};
use verbs_core::provider::{Completion as _, ContextOps as _, CqOps, ErasedCq};
use verbs_core::types::{CqFlags, CqInitAttr, CqModeration, CqWcFlags, Wc};
use verbs_core::{Cause, Errno};
use zerocopy::IntoBytes;

const OFFSET: u64 = 0x5000_0000;

fn entry(wr_id: u64) -> IbUverbsWc {
    IbUverbsWc { wr_id, ..Default::default() }
}

/// Expects RESIZE_CQ and replies with a queue of `slots` slots.
fn expect_resize(device: &PaperDevice, slots: u32) -> PaperQueue {
    let queue = PaperQueue::new(slots, 64);
    let reply = RxeResizeCqResp { mi: PaperDevice::mminfo(OFFSET, &queue) };
    let core = [slots - 1, 0];
    device.script.expect([Expect::anything(Reply::outputs([core.as_bytes(), reply.as_bytes()]))]);
    queue
}

fn rest(cq: &mut impl CqOps) -> Vec<u64> {
    let mut wcs = [Wc::default(); 32];
    let count = cq.poll(&mut wcs);
    wcs[..count].iter().map(|wc| wc.wr_id).collect()
}

#[test]
fn what_was_not_polled_comes_out_of_the_new_queue_in_order() {
    let device = crate::device();
    let mut paper = device.create_cq(8);
    (0..6).for_each(|n| assert!(paper.queue.put(entry(n))));
    assert_eq!(paper.cq.next().unwrap().wr_id(), 0);
    assert_eq!(paper.cq.next().unwrap().wr_id(), 1);
    let new = expect_resize(&device, 32);
    (2..6).for_each(|n| assert!(new.put(entry(n))));
    device.expect_map(OFFSET, &new);
    paper.cq.resize(20).unwrap();
    assert_eq!(paper.queue.count(), 0, "the slots of lent completions were returned before");
    assert_eq!(paper.cq.cqe(), 31);
    assert!(new.put(entry(6)));
    assert_eq!(rest(&mut paper.cq), [2, 3, 4, 5, 6]);
    assert_eq!(new.count(), 0);
}

#[test]
fn completions_that_an_erased_queue_has_fetched_come_before_those_of_the_new_queue() {
    let device = crate::device();
    let paper = device.create_cq(32);
    let mut erased = ErasedCq::new(paper.cq);
    (0..20).for_each(|n| assert!(paper.queue.put(entry(n))));
    assert_eq!(erased.next().unwrap().wr_id(), 0);
    let new = expect_resize(&device, 8);
    (16..20).for_each(|n| assert!(new.put(entry(n))));
    device.expect_map(OFFSET, &new);
    erased.resize(7).unwrap();
    assert_eq!(rest(&mut erased), (1..20).collect::<Vec<_>>());
}

#[test]
fn a_size_that_the_kernel_refuses_leaves_the_queue_as_it_was() {
    let device = crate::device();
    let mut paper = device.create_cq(8);
    (0..6).for_each(|n| assert!(paper.queue.put(entry(n))));
    assert_eq!(paper.cq.next().unwrap().wr_id(), 0);
    device.script.expect([
        Expect::anything(Reply::Errno(Errno::INVAL)),
        // The query for the limit.
        Expect::anything(Reply::Errno(Errno::IO)),
    ]);
    let error = paper.cq.resize(4).unwrap_err();
    assert_eq!((error.verb, error.errno), ("resize_cq", Errno::INVAL));
    assert_eq!(paper.cq.cqe(), 7);
    assert_eq!(rest(&mut paper.cq), [1, 2, 3, 4, 5]);
}

#[test]
fn a_new_queue_that_cannot_be_mapped_repeats_no_completion_and_another_call_finds_them() {
    let device = crate::device();
    let mut paper = device.create_cq(8);
    (0..3).for_each(|n| assert!(paper.queue.put(entry(n))));
    expect_resize(&device, 32);
    assert!(paper.cq.resize(20).is_err(), "no mapping is scripted");
    assert_eq!(rest(&mut paper.cq), [0; 0], "the kernel has copied them");
    assert!(paper.cq.next().is_none());
    let new = expect_resize(&device, 32);
    (0..3).for_each(|n| assert!(new.put(entry(n))));
    device.expect_map(OFFSET, &new);
    paper.cq.resize(20).unwrap();
    assert_eq!(rest(&mut paper.cq), [0, 1, 2]);
}

#[test]
fn fields_that_entries_do_not_have_are_refused_before_the_kernel_is_asked() {
    let device = crate::device();
    let asked = CqWcFlags::STANDARD | CqWcFlags::COMPLETION_TIMESTAMP | CqWcFlags::CVLAN;
    let error =
        device.context.create_cq(None, &CqInitAttr { wc_flags: asked, ..CqInitAttr::new(1) }).unwrap_err();
    let wc_flags = CqWcFlags::COMPLETION_TIMESTAMP | CqWcFlags::CVLAN;
    assert_eq!((error.errno, &error.cause), (Errno::OPNOTSUPP, &Cause::CqWcFlags { wc_flags }));
    assert_eq!(
        error.to_string(),
        "create_cq on rxe0: the device's completions do not have the fields COMPLETION_TIMESTAMP, CVLAN (EOPNOTSUPP)"
    );
}

#[test]
fn a_queue_in_a_domain_is_refused_before_the_kernel_is_asked() {
    let device = crate::device();
    let error = device.context.create_cq(Some(&device.pd), &CqInitAttr::new(1)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "create_cq on rxe0: rxe has no parent domains, in which a completion queue could be made (EOPNOTSUPP)"
    );
}

#[test]
fn the_kernel_decides_about_flags_and_moderation() {
    let device = crate::device();
    device.script.expect([Expect::anything(Reply::Errno(Errno::OPNOTSUPP))]);
    let attr = CqInitAttr { flags: CqFlags::IGNORE_OVERRUN, ..CqInitAttr::new(1) };
    let error = device.context.create_cq(None, &attr).unwrap_err();
    assert_eq!(error.cause, Cause::CqFlags { flags: CqFlags::IGNORE_OVERRUN });
    let paper = device.create_cq(8);
    device.script.expect([Expect::anything(Reply::Errno(Errno::OPNOTSUPP)), Expect::anything(Reply::ok())]);
    let moderation = CqModeration { cq_count: 4, cq_period: 10 };
    assert_eq!(paper.cq.modify(moderation).unwrap_err().errno, Errno::OPNOTSUPP);
    paper.cq.modify(moderation).unwrap();
}
