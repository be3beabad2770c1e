//! Queue pairs over a scripted kernel: the commands to the driver and the bytes for the device.

use core::mem::offset_of;

use uverbs_abi::mlx5_abi::Mlx5IbCreateQp;
use verbs_core::channel::{Expect, Reply, Scripted};
use verbs_core::kernel::KernelPd;
use verbs_core::provider::{QpParents, QpParts, RecvQueue as _, SendQueue as _};
use verbs_core::ring::{Region, page_size};
use verbs_core::types::{QpCreateAttr, QpInitAttr, RecvWr, SendFlags, SendOp, SendWr, Sge, Wc};

use super::create::without_recv;
use super::*;
use crate::device::Limits;
use crate::device::tests::{device, with_registers};
use crate::doorbell::Record;
use crate::doorbell::dbrec::Slot;
use crate::memory::tests::{in_a_process_of_its_own, with_no_more_than};
use crate::objects::cq::CqHandle;
use crate::objects::mlx5::Mlx5;
use crate::objects::pd::Pd;
use crate::queue::cq::{CQE_FIELDS, Poller, Ring};
use crate::queue::sizes::Room;

/// Returns a 4-entry completion queue and its memory.
pub(crate) fn cq(device: &Arc<Device>, handle: u32) -> (Poller, CqHandle, Region) {
    let memory = Region::plain(4 * CQE_FIELDS);
    // SAFETY: the memory is new and unknown to any device.
    let (ring, consumer) =
        unsafe { (Ring::new(memory.clone(), 4, CQE_FIELDS), Record::new(&Region::plain(64), 0)) };
    let poller = Poller::new(ring, consumer);
    let shared = Arc::clone(poller.shared());
    (poller, CqHandle { handle, shared, device: Arc::clone(device) }, memory)
}

/// Writes a completion of kind `opcode` for a queue's first request.
pub(crate) fn complete(cq: &Region, entry: usize, opcode: u8, user_index: u32) {
    // SAFETY: one thread.
    unsafe {
        cq.write(entry * CQE_FIELDS + 32, user_index.to_be());
        cq.write(entry * CQE_FIELDS + 63, opcode << 4);
    }
}

/// Polls a completion queue and returns the `wr_id`s.
pub(crate) fn polled(poller: &mut Poller) -> Vec<u64> {
    let mut wcs = [Wc::default(); 4];
    let count = poller.poll(&mut wcs);
    wcs[..count].iter().map(|wc| wc.wr_id).collect()
}

const ATTR: QpInitAttr = QpInitAttr {
    user_handle: 0,
    qp_type: QpType::RC,
    cap: QpCap { max_send_wr: 2, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 3, max_inline_data: 0 },
    sq_sig_all: true,
};

fn create(device: &Arc<Device>, script: &Scripted, send_cq: &CqHandle, recv_cq: &CqHandle) -> QpParts<Mlx5> {
    let pd = Pd::new(device, KernelPd::import(&device.kernel, 3), None);
    // SAFETY: the call accesses no memory. The context takes the file and closes it.
    let events = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    script.expect([
        // No register is left, so the queue pair shares one.
        Expect::anything(Reply::Errno(Errno::NOMEM)),
        Expect::anything(Reply::outputs([&events.to_ne_bytes()])),
        Expect::anything(Reply::outputs([&7_u32.to_ne_bytes(), &[0; 20], &0xabcd_u32.to_ne_bytes()])),
        // The query of the device's properties: no windows.
        Expect::anything(Reply::Errno(Errno::INVAL)),
    ]);
    let (parents, ex) = (QpParents::new(&pd, send_cq, recv_cq), QpCreateAttr::default());
    let mut parts = Qp::create(device, &parents, &ATTR, &ex, ScatterToCqe::Usual).unwrap();
    move_to(&mut parts, script, &[QpState::INIT, QpState::RTR, QpState::RTS]);
    parts
}

fn move_to(parts: &mut QpParts<Mlx5>, script: &Scripted, states: &[QpState]) {
    for &qp_state in states {
        script.expect([Expect::anything(Reply::ok())]);
        let attr = QpAttr { qp_state, ..QpAttr::default() };
        parts.qp.modify(&mut parts.sq, &mut parts.rq, &attr, QpAttrMask::STATE).unwrap();
    }
}

fn post(parts: &mut QpParts<Mlx5>, wr_id: u64) {
    let sge = [Sge { addr: 1, length: 1, lkey: 1 }];
    let wr = SendWr { wr_id, op: SendOp::Send, sge: &sge, flags: SendFlags::empty() };
    // SAFETY: no device has the queues.
    unsafe {
        parts.sq.post_send(&[wr]).unwrap();
        parts.rq.post_recv(&[RecvWr { wr_id: wr_id + 1, sge: &sge }]).unwrap();
        parts.rq.post_recv(&[RecvWr { wr_id: wr_id + 2, sge: &sge }]).unwrap();
    }
}

/// Returns a 32-bit number from the driver's input in a command.
fn word(command: &str, offset: usize) -> u32 {
    let input = command.split_once("0x1000 in ").expect("the driver's input").1;
    let byte = |at: usize| u8::from_str_radix(&input[2 * at..2 * at + 2], 16).unwrap();
    u32::from_ne_bytes(core::array::from_fn(|at| byte(offset + at)))
}

#[test]
fn the_driver_and_the_device_find_the_queues_where_they_are() {
    let (device, script) = device();
    let (_poller, handle, _) = cq(&device, 5);
    // The user index is not the first one.
    let other = device.user_index("create_qp").unwrap();
    let mut parts = create(&device, &script, &handle, &handle);
    assert_eq!(parts.qp.resources.user_index(), Some(other.number() + 1));
    let word = |offset| word(&script.seen()[4], offset);
    assert_eq!(word(offset_of!(Mlx5IbCreateQp, uidx)), other.number() + 1);
    assert_eq!(word(offset_of!(Mlx5IbCreateQp, rq_wqe_count)), 8);
    assert_eq!(word(offset_of!(Mlx5IbCreateQp, rq_wqe_shift)), 6, "4 units of 16 bytes");
    assert_eq!(word(offset_of!(Mlx5IbCreateQp, sq_wqe_count)), 8);
    assert_eq!(word(offset_of!(Mlx5IbCreateQp, bfreg_index)), 9, "the shared register's page");
    post(&mut parts, 1);
    let resources = &parts.qp.resources;
    // SAFETY: one thread.
    let records = [Slot::FIRST, Slot::SECOND].map(|at| unsafe { resources.records().record(at) }.load());
    assert_eq!(records, [2, 1], "receives, then sends");
    // SAFETY: as above.
    let control = unsafe { resources.memory().region().read::<[u8; 16]>(8 * 64) };
    // Every request completes, as the queue pair requests.
    assert_eq!(control, [0, 0, 0, 0x0a, 0, 0xab, 0xcd, 2, 0, 0, 0, 8, 0, 0, 0, 0]);
    script.expect([Expect::anything(Reply::ok())]);
    parts.qp.destroy().map_err(|(_, error)| error).unwrap();
}

/// Creates a queue pair on a device whose registers came with its context. The driver replies with
/// a register's number. Also returns the flags and the register number in the command.
fn create_with_register(
    device: &Arc<Device>,
    script: &Scripted,
    bfreg_index: u32,
    more: &[Expect],
) -> (Result<QpParts<Mlx5>>, [u32; 2]) {
    let pd = Pd::new(device, KernelPd::import(&device.kernel, 3), None);
    let (_poller, cq, _) = cq(device, 5);
    // SAFETY: the call accesses no memory. The context takes the file and closes it.
    let events = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    let reply = [&7_u32.to_ne_bytes()[..], &[0; 20], &0xabcd_u32.to_ne_bytes(), &bfreg_index.to_ne_bytes()];
    script.expect([Expect::anything(Reply::outputs([&events.to_ne_bytes()]))]);
    script.expect([Expect::anything(Reply::outputs(reply))]);
    script.expect(more.iter().cloned());
    let (parents, ex) = (QpParents::new(&pd, &cq, &cq), QpCreateAttr::default());
    let parts = Qp::create(device, &parents, &ATTR, &ex, ScatterToCqe::Usual);
    let seen = script.seen();
    let command =
        seen.iter().rfind(|command| command.contains("0x1000 in ")).expect("a command of the driver's");
    (
        parts,
        [offset_of!(Mlx5IbCreateQp, flags), offset_of!(Mlx5IbCreateQp, bfreg_index)]
            .map(|at| word(command, at)),
    )
}

#[test]
fn a_queue_pair_rings_the_register_that_the_driver_chose_for_it() {
    let (device, script) = with_registers(0);
    // The device's properties: no windows.
    let more = [Expect::anything(Reply::Errno(Errno::INVAL))];
    let (parts, command) = create_with_register(&device, &script, 1, &more);
    let parts = parts.unwrap();
    assert_eq!(command, [0, 0], "the driver chooses");
    let direct = parts.qp.direct().register.unwrap();
    assert_eq!((direct.register.addr().get() % page_size(), direct.size), (0xa00, 0));
    script.expect([Expect::anything(Reply::ok())]);
    parts.qp.destroy().map_err(|(_, error)| error).unwrap();
}

#[test]
fn a_queue_pair_with_a_register_that_the_context_does_not_have_is_destroyed() {
    let (device, script) = with_registers(0);
    let destroyed = Expect::command("ioctl 4.1: 0x1 out 4 bytes, 0x0 handle 7", Reply::ok());
    let (parts, _) = create_with_register(&device, &script, 4, &[destroyed]);
    assert!(matches!(parts.unwrap_err().cause, Cause::BadReply { .. }));
}

#[test]
fn a_queue_pair_has_a_register_of_a_page_that_was_mapped_for_it() {
    let (device, script) = with_registers(1024);
    script.expect_map(0x600 * page_size() as u64, page_size(), Region::plain(page_size()));
    let other = device.registers.take(&device.kernel);
    let more = [Expect::anything(Reply::Errno(Errno::INVAL))];
    let (parts, command) = create_with_register(&device, &script, u32::MAX, &more);
    let parts = parts.unwrap();
    assert_eq!(command, [uverbs_abi::mlx5_abi::MLX5_QP_FLAG_BFREG_INDEX, 0]);
    let direct = parts.qp.direct().register.unwrap();
    assert_eq!((direct.register.addr().get() % page_size(), direct.size), (0xa00, 256));
    drop(other);
    script.expect([Expect::anything(Reply::ok())]);
    parts.qp.destroy().map_err(|(_, error)| error).unwrap();
}

#[test]
fn the_sends_of_raw_packets_begin_at_a_page() {
    let (device, _script) = device();
    let attr = QpInitAttr { qp_type: QpType::RAW_PACKET, ..ATTR };
    let shapes = Shapes::new(&device, &attr, 0, Room::for_ops(None), true).unwrap();
    assert_eq!((shapes.recv_len(), shapes.send_at()), (512, page_size()));
    let shapes = Shapes::new(&device, &ATTR, 0, Room::for_ops(None), true).unwrap();
    assert_eq!((shapes.recv_len(), shapes.send_at()), (512, 512));
}

#[test]
fn a_reset_and_the_end_of_a_queue_pair_leave_no_completion_in_either_queue() {
    let (device, script) = device();
    let (mut sends, send_cq, of_sends) = cq(&device, 5);
    let (mut receives, recv_cq, of_receives) = cq(&device, 6);
    let mut parts = create(&device, &script, &send_cq, &recv_cq);
    let user_index = parts.qp.resources.user_index().unwrap();
    post(&mut parts, 10);
    complete(&of_sends, 0, 0, user_index);
    complete(&of_receives, 0, 2, user_index);
    assert_eq!((polled(&mut sends), polled(&mut receives)), (vec![10], vec![11]));
    for entry in [1, 2] {
        complete(&of_sends, entry, 0, user_index);
        complete(&of_receives, entry, 2, user_index);
        if entry == 1 {
            move_to(&mut parts, &script, &[QpState::RESET, QpState::INIT, QpState::RTR, QpState::RTS]);
            assert_eq!((polled(&mut sends), polled(&mut receives)), (vec![], vec![]), "after the reset");
            post(&mut parts, 20);
        }
    }
    script.expect([Expect::anything(Reply::ok())]);
    parts.qp.destroy().map_err(|(_, error)| error).unwrap();
    assert_eq!((polled(&mut sends), polled(&mut receives)), (vec![], vec![]), "after the end");
}

#[test]
fn a_reset_for_whose_records_there_is_no_memory_changes_nothing() {
    const NAME: &str = "objects::qp::tests::a_reset_for_whose_records_there_is_no_memory_changes_nothing";
    in_a_process_of_its_own(NAME, || {
        let (device, script) = device();
        let (_poller, handle, _) = cq(&device, 5);
        let mut parts = create(&device, &script, &handle, &handle);
        let attr = QpAttr { qp_state: QpState::RESET, ..QpAttr::default() };
        let mut reset = || parts.qp.modify(&mut parts.sq, &mut parts.rq, &attr, QpAttrMask::STATE);
        script.expect([Expect::anything(Reply::ok())]);
        // The records are small, but the call's other allocations need memory too.
        let error = with_no_more_than(16 << 10, &mut reset).unwrap_err();
        assert_eq!(error.errno, Errno::NOMEM);
        assert!(matches!(error.cause, Cause::Allocation { .. }), "{error}");
        assert_eq!(script.remaining(), 1, "the command was not sent");
        reset().unwrap();
    });
}

#[test]
fn a_queue_pair_without_receives_accepts_none() {
    let (device, script) = device();
    let (_poller, handle, _) = cq(&device, 5);
    let parts = create(&device, &script, &handle, &handle);
    let resources = Arc::clone(&parts.qp.resources);
    // SAFETY: no device reads the record.
    let record = unsafe { resources.records().record(Slot::FIRST) };
    let mut rq = Rq::empty(record, resources);
    rq.moved_to(QpState::INIT);
    // SAFETY: no device has the queue.
    let refused = unsafe { rq.post_recv(&[RecvWr { wr_id: 1, sge: &[] }]) }.unwrap_err();
    assert_eq!(refused.reason, verbs_core::types::PostReason::QueueFull);
}

#[test]
fn a_device_without_options_of_connections_refuses_those_of_its_vendor_as_unsupported() {
    let (device, script) = device();
    let ((_sends, send_cq, _), (_receives, recv_cq, _)) = (cq(&device, 5), cq(&device, 6));
    let mut parts = create(&device, &script, &send_cq, &recv_cq);
    for (vendor_id, errno) in [(VENDOR_ID, Errno::OPNOTSUPP), (1, Errno::INVAL)] {
        assert_eq!(parts.qp.set_ece(&Ece { vendor_id, options: 5 }).unwrap_err().errno, errno);
    }
}

#[test]
fn options_of_a_connection_are_those_that_the_driver_has_returned_since_they_were_set() {
    let (mut device, script) = device();
    let ece = |options| Ece { vendor_id: VENDOR_ID, options };
    Arc::get_mut(&mut device).expect("no object has it").has_ece = true;
    let ((_sends, send_cq, _), (_receives, recv_cq, _)) = (cq(&device, 5), cq(&device, 6));
    let mut parts = create(&device, &script, &send_cq, &recv_cq);
    parts.qp.get_ece = 7;
    assert_eq!(parts.qp.set_ece(&Ece { vendor_id: 1, options: 5 }).unwrap_err().errno, Errno::INVAL);
    assert_eq!(parts.qp.query_ece().unwrap(), ece(7));
    parts.qp.set_ece(&ece(5)).unwrap();
    assert_eq!(parts.qp.query_ece().unwrap(), ece(0));
    let reply = Mlx5IbModifyQpResp { ece_options: 4, ..Default::default() };
    script.expect([Expect::anything(Reply::outputs([&[0; 8], reply.as_bytes()]))]);
    let (attr, mask) = (QpAttr { qp_state: QpState::ERR, ..QpAttr::default() }, QpAttrMask::STATE);
    parts.qp.modify(&mut parts.sq, &mut parts.rq, &attr, mask).unwrap();
    assert_eq!(parts.qp.query_ece().unwrap(), ece(4));
    // The options the program set are sent once.
    script.expect([Expect::anything(Reply::ok())]);
    let attr = QpAttr { qp_state: QpState::RESET, ..QpAttr::default() };
    parts.qp.modify(&mut parts.sq, &mut parts.rq, &attr, mask).unwrap();
    assert_eq!(parts.qp.query_ece().unwrap(), ece(4));
}

#[test]
fn receive_sizes_that_are_ignored_do_not_exceed_the_device() {
    let limits = Limits {
        max_sq_desc_sz: 1024,
        max_rq_desc_sz: 512,
        max_send_wqebb: 32768,
        max_recv_wr: 32768,
        max_srq_recv_wr: 32767,
    };
    let asked = |max_recv_wr, max_recv_sge| {
        let cap = QpCap { max_recv_wr, max_recv_sge, max_send_wr: 7, ..QpCap::default() };
        let attr = QpInitAttr { qp_type: QpType::RC, cap, sq_sig_all: true, user_handle: 3 };
        let sent = without_recv(&attr, &limits);
        assert_eq!((sent.cap.max_send_wr, sent.sq_sig_all, sent.user_handle), (7, true, 3));
        (sent.cap.max_recv_wr, sent.cap.max_recv_sge)
    };
    // Sent in the same way by libmlx5; the driver accepts these sizes.
    assert_eq!(asked(32768, 32), (32768, 32));
    assert_eq!((asked(32769, 1), asked(1, 33), asked(u32::MAX, u32::MAX)), ((0, 0), (0, 0), (0, 0)));
}
