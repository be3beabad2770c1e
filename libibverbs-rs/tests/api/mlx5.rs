//! ConnectX queue options and raw requests through this crate's handles, on a device whose kernel
//! is a script.
//!
//! # Safety
//! The test's only thread also acts as the device. No memory named by a request is accessed.
#![cfg(feature = "mlx5")]
#![allow(unsafe_code)]

use core::mem::offset_of;

use nix::sys::eventfd::{EfdFlags, EventFd};
use provider_mlx5::paper::{PaperCqe, PaperDevice};
use uverbs_abi::mlx5_abi::Mlx5IbCreateQp;
use verbs::mlx5::{CqOptions, Mlx5, QpOptions, ScatterToCqe};
use verbs::state::{Init, Rtr, Rts};
use verbs::{Context, Cq, CqInit, Errno, Pd, PostReason, Qp, QpAttr, QpAttrMask, QpInit, QpType, WcOpcode};
use verbs_core::channel::{Expect, Reply, Scripted};

/// `MLX5_QP_FLAG_SCATTER_CQE` and `MLX5_QP_FLAG_ALLOW_SCATTER_CQE`.
const SCATTER: u32 = 1 << 1 | 1 << 8;

/// A queue pair with its completion queue. The objects are not dropped, because the script has no
/// destroy commands.
struct Bed {
    context: Context<Mlx5>,
    pd: Pd<Mlx5>,
    cq: Cq<Mlx5>,
    qp: Qp<Rts, Mlx5>,
    script: Scripted,
}

fn bed(cq_options: CqOptions, qp_options: QpOptions) -> &'static mut Bed {
    Box::leak(Box::new(owned(cq_options, qp_options)))
}

fn owned(cq_options: CqOptions, qp_options: QpOptions) -> Bed {
    // SAFETY: see the head of the file.
    let PaperDevice { context, script } = unsafe { PaperDevice::new(64) };
    let context = Context::<Mlx5>::from_raw(context);
    PaperDevice::expect_pd(&script);
    let pd = context.alloc_pd().unwrap();
    let events = EventFd::from_flags(EfdFlags::EFD_CLOEXEC).unwrap();
    PaperDevice::expect_events(&script, events.into());
    PaperDevice::expect_cq(&script, 15);
    let cq = context.create_cq_with(&CqInit::new(15), cq_options).unwrap();
    PaperDevice::expect_qp(&script);
    PaperDevice::expect_windows(&script);
    let mut init = QpInit::new(QpType::RC, &cq);
    (init.cap.max_send_wr, init.cap.max_recv_wr) = (4, 4);
    let qp = pd.create_qp_with(&init, qp_options).unwrap();
    script.expect([(); 3].map(|()| Expect::anything(Reply::ok())));
    let (attr, mask) = (QpAttr::default(), QpAttrMask::empty());
    let qp = qp.modify_to::<Init>(&attr, mask).unwrap().modify_to::<Rtr>(&attr, mask).unwrap();
    let qp = qp.modify_to::<Rts>(&attr, mask).unwrap();
    Bed { context, pd, cq, qp, script }
}

fn usual() -> &'static mut Bed {
    bed(CqOptions::default(), QpOptions::default())
}

impl Bed {
    /// Returns a 16-byte unit of the send queue.
    fn unit(&self, unit: usize) -> [u8; 16] {
        let sq = self.qp.direct().sq;
        assert!(unit < (sq.entries * sq.stride / 16) as usize);
        // SAFETY: the address is inside the queue, which lives; see the head of the file.
        unsafe { sq.buf.cast::<[u8; 16]>().add(unit).read_volatile() }
    }

    /// Returns the number of blocks announced to the device.
    fn rung(&self) -> u32 {
        // SAFETY: the second record of a live queue pair is for its sends.
        u32::from_be(unsafe { self.qp.direct().records.add(1).read_volatile() })
    }

    /// Completes the request in a block.
    fn complete(&self, place: u32, block: u16) {
        let cqe = PaperCqe { wqe_opcode: 8, wqe_counter: block, ..PaperCqe::default() };
        // SAFETY: see the head of the file.
        unsafe { PaperDevice::complete(self.cq.direct().ring, place, cqe) };
    }
}

/// Returns a request of three 16-byte units, which fill one block.
fn request(qp_num: u32) -> [[u8; 16]; 3] {
    let [_, high, middle, low] = qp_num.to_be_bytes();
    [[0, 9, 9, 8, high, middle, low, 3, 0, 0, 0, 8, 0, 0, 0, 0], [0x11; 16], [0x22; 16]]
}

#[test]
fn a_raw_request_reaches_the_queue_with_its_index_and_the_doorbell() {
    let bed = usual();
    let request = request(bed.qp.qp_num());
    for wr_id in [7, 8] {
        // SAFETY: see the head of the file.
        unsafe { bed.qp.post_raw(wr_id, &request) }.unwrap();
    }
    assert_eq!(bed.rung(), 2);
    for block in [0, 1] {
        let control = [&[0, 0, block, 8], &request[0][4..]].concat();
        assert_eq!(bed.unit(usize::from(block) * 4)[..], control);
        assert_eq!([1, 2].map(|unit| bed.unit(usize::from(block) * 4 + unit)), [[0x11; 16], [0x22; 16]]);
    }
    bed.complete(0, 1);
    let wc = bed.cq.poll_one().unwrap().wc;
    assert_eq!((wc.wr_id, wc.opcode, wc.qp_num), (8, WcOpcode::DRIVER2, bed.qp.qp_num()));
}

#[test]
fn raw_requests_of_a_batch_reach_the_device_together_or_not_at_all() {
    let bed = usual();
    let request = request(bed.qp.qp_num());
    for is_rung in [false, true] {
        let mut wr = bed.qp.wr_start();
        for wr_id in [1, 2] {
            wr.wr_id = wr_id;
            // SAFETY: see the head of the file; the call puts in this one request.
            unsafe { wr.put_raw(|sq, wr_id| sq.post_raw(wr_id, &request)) };
        }
        assert_eq!(wr.len(), 2);
        if is_rung {
            assert_eq!(wr.complete(), Ok(2));
        } else {
            wr.abort();
        }
        assert_eq!(bed.rung(), if is_rung { 2 } else { 0 });
    }
    for is_rung in [false, true] {
        let mut batch = bed.qp.batch();
        // SAFETY: see the head of the file.
        unsafe { batch.put_raw(3, &request) }.unwrap();
        assert_eq!(batch.len(), 1);
        if is_rung {
            assert_eq!(batch.ring(), Ok(1));
        } else {
            drop(batch);
        }
        assert_eq!(bed.rung(), if is_rung { 3 } else { 2 });
    }
    bed.complete(0, 1);
    bed.complete(1, 2);
    assert_eq!([(); 2].map(|()| bed.cq.poll_one().unwrap().wr_id), [2, 3]);
}

#[test]
fn a_refused_raw_request_ends_its_batch_and_stays_out_of_the_queue() {
    let bed = usual();
    let request = request(bed.qp.qp_num());
    let mut wr = bed.qp.wr_start();
    // SAFETY: see the head of the file; each call puts in at most this one request.
    unsafe {
        wr.put_raw(|sq, wr_id| sq.post_raw(wr_id, &request));
        wr.put_raw(|sq, wr_id| sq.post_raw(wr_id, &request[..2]));
        wr.put_raw(|_, _| unreachable!("a request was refused"));
    }
    let error = wr.complete().unwrap_err();
    assert!(matches!(error.reason, PostReason::TooManySge { given: 2, .. }), "{error}");
    assert_eq!((error.position, bed.rung()), (1, 0));
    // SAFETY: as above.
    let refused = unsafe { bed.qp.post_raw(1, &[]) }.unwrap_err();
    assert!(matches!(refused, PostReason::TooManySge { given: 0, .. }), "{refused}");
    assert_eq!(bed.rung(), 0);
}

#[test]
fn a_half_posts_raw_requests_too() {
    let Bed { context, pd, cq, qp, script: _ } = owned(CqOptions::default(), QpOptions::default());
    let (records, request) = (qp.direct().records, request(qp.qp_num()));
    let (mut send, recv) = qp.into_split();
    // SAFETY: see the head of the file.
    unsafe { send.post_raw(4, &request) }.unwrap();
    // SAFETY: the second record belongs to a live queue pair.
    assert_eq!(u32::from_be(unsafe { records.add(1).read_volatile() }), 1);
    core::mem::forget((send, recv, cq, pd, context));
}

#[test]
fn a_completion_queue_has_entries_of_the_size_that_it_asks_for() {
    for (cqe_size, stride) in [(None, 64), (Some(64), 64), (Some(128), 128)] {
        let bed = bed(CqOptions { cqe_size, ..CqOptions::default() }, QpOptions::default());
        let ring = bed.cq.direct().ring;
        assert_eq!((ring.stride, ring.entries), (stride, 16));
        let request = request(bed.qp.qp_num());
        // SAFETY: see the head of the file.
        unsafe { bed.qp.post_raw(5, &request) }.unwrap();
        bed.complete(0, 0);
        assert_eq!(bed.cq.poll_one().unwrap().wr_id, 5);
    }
    // SAFETY: see the head of the file.
    let PaperDevice { context, .. } = unsafe { PaperDevice::new(64) };
    let context = Context::<Mlx5>::from_raw(context);
    let options = CqOptions { cqe_size: Some(96), ..CqOptions::default() };
    let error = context.create_cq_with(&CqInit::new(15), options).unwrap_err();
    assert_eq!((error.verb, error.errno), ("create_cq", Errno::INVAL), "{error}");
    core::mem::forget(context);
}

#[test]
fn the_driver_learns_whether_data_may_come_with_completions() {
    for (scatter_to_cqe, flags) in
        [(ScatterToCqe::Usual, 0), (ScatterToCqe::Never, 0), (ScatterToCqe::Always, SCATTER)]
    {
        let bed = bed(CqOptions::default(), QpOptions { scatter_to_cqe });
        let seen = bed.script.seen();
        let told: Vec<_> = seen.iter().filter_map(|command| flags_of(command)).collect();
        assert_eq!(told, [flags], "{scatter_to_cqe:?}: {seen:#?}");
    }
}

/// Returns the command's scatter-to-CQE flags; `None` unless it creates a queue pair.
fn flags_of(command: &str) -> Option<u32> {
    let input = command.split_once("0x1000 in ")?.1;
    let at = offset_of!(Mlx5IbCreateQp, flags);
    let byte = |at: usize| u8::from_str_radix(input.get(2 * at..2 * at + 2)?, 16).ok();
    let is_of_qp = input.split(' ').next()?.len() >= 2 * size_of::<Mlx5IbCreateQp>();
    let bytes = [byte(at)?, byte(at + 1)?, byte(at + 2)?, byte(at + 3)?];
    is_of_qp.then(|| u32::from_ne_bytes(bytes) & SCATTER)
}

#[test]
fn a_vendor_error_has_its_meaning_by_the_context() {
    let bed = usual();
    assert!(bed.context.vendor_err_text(0x93).is_some_and(|text| text.contains("page fault")));
    assert_eq!(bed.context.vendor_err_text(0x81), None);
}
