//! `beyond`: this project's API for ConnectX features beyond verbs, with the provider named:
//! options of completion queues and queue pairs, requests in the device's format, direct access and
//! the meaning of vendor errors.
//!
//! # Safety
//! Requests in the device's format name an [`Arena`], like the raw requests of [`fabric`]. Queue
//! entries are read from the memory of live queues with volatile accesses, because the device
//! writes them.
#![allow(unsafe_code)]

use std::time::Instant;

use verbs::mlx5::direct::QueueDirect;
use verbs::mlx5::{CqOptions, CqeCompression, Mlx5, QpOptions, ScatterToCqe};
use verbs::state::Rts;
use verbs::{
    Cause, Context, Cq, CqInit, Errno, ParentDomainInit, Pd, PostReason, Qp, QpInit, QpType, RecvWr,
    SendFlags, SendOp, SendWr, Sge, SrqInit, WcOpcode, WcStatus,
};
use verbs_fixtures::control::Control;
use verbs_fixtures::fabric::{
    self, Arena, PATIENCE, Remote, Shape, pattern, post_recv, post_send, wait, wait_for,
};
use verbs_harness::runner::{Case, CaseResult, fail};

const SUITE: &str = "beyond";

/// Returns the suite's cases.
pub fn cases() -> Vec<Case> {
    let one = |name: &str, run: fn() -> CaseResult| Case::new(SUITE, name, run);
    vec![
        one("a_completion_queue_has_entries_of_the_size_that_it_asks_for", sized),
        one("the_completions_of_a_compressed_queue_are_expanded", compressed),
        one("short_data_comes_with_completions_where_a_queue_pair_asks_for_it", scattered),
        one("a_raw_request_writes_to_the_peer_by_each_way_of_posting", raw),
        one("a_raw_request_that_is_refused_or_taken_back_writes_nothing", not_raw),
        one("a_shared_receive_queue_describes_its_list", shared),
        one("each_queue_describes_what_the_others_tell_of_it", described),
        one("objects_with_options_end_in_the_order_of_others", ended),
        one("objects_with_options_raise_events_with_their_ids", events),
        one("parents_of_another_device_are_refused", foreign),
        one("a_vendor_error_has_its_meaning", vendor),
    ]
}

/// A queue pair connected to itself, with a completion queue per direction.
struct Looped {
    context: Context<Mlx5>,
    pd: Pd<Mlx5>,
    sends: Cq<Mlx5>,
    receives: Cq<Mlx5>,
    qp: Qp<Rts, Mlx5>,
}

fn open() -> CaseResult<Context<Mlx5>> {
    Ok(fabric::device()?.open_as()?)
}

fn looped(cq: CqOptions, qp: QpOptions) -> CaseResult<Looped> {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let shape = Shape::default();
    let make = || context.create_cq_with(&CqInit::new(shape.cqe), cq);
    let (sends, receives) = (make()?, make()?);
    let init = QpInit { cap: shape.cap, recv_cq: receives.handle(), ..QpInit::new(QpType::RC, &sends) };
    let qp = pd.create_qp_with(&init, qp)?;
    let own = Remote::from_qp(&qp);
    let qp = fabric::connect(&context, qp, &shape, own)?;
    Ok(Looped { context, pd, sends, receives, qp })
}

/// Sends a message of `len` bytes from one offset in the arena to another.
fn send(looped: &mut Looped, arena: &Arena<Mlx5>, len: usize) -> CaseResult {
    let data = pattern(len as u32, len);
    arena.write(0, &data);
    arena.write(512, &vec![0; len]);
    post_recv(&mut looped.qp, &[RecvWr { wr_id: 1, sge: &[arena.sge(512..512 + len)] }])?;
    let sge = [arena.sge(0..len)];
    post_send(&mut looped.qp, &[fabric::signalled(2, SendOp::Send, &sge)])?;
    let received = wait_for(&mut looped.receives, 1, WcOpcode::RECV)?;
    assert_eq!(received.byte_len as usize, len);
    wait_for(&mut looped.sends, 2, WcOpcode::SEND)?;
    assert_eq!(arena.read(512..512 + len), data);
    Ok(())
}

/// Returns the last byte of a completion queue entry: the operation, the format and the owner.
fn last_byte(ring: QueueDirect, entry: u32) -> u8 {
    assert!(entry < ring.entries);
    let offset = (entry + 1) * ring.stride - 1;
    // SAFETY: the last byte of a ring entry of a live queue.
    unsafe { ring.buf.add(offset as usize).read_volatile() }
}

/// The format bits: data in the entry, or the title of a compressed block.
const FORMAT: u8 = 0xc;

fn sized() -> CaseResult {
    for (cqe_size, stride) in [(None, 64), (Some(64), 64), (Some(128), 128)] {
        let mut looped = looped(CqOptions { cqe_size, ..CqOptions::default() }, QpOptions::default())?;
        for cq in [&looped.sends, &looped.receives] {
            assert_eq!(cq.direct().ring.stride, stride, "{cqe_size:?}");
        }
        let arena = Arena::new(&looped.pd, 1024)?;
        for len in [1, 32, 64, 100] {
            send(&mut looped, &arena, len)?;
        }
        looped.receives.resize(300)?;
        let ring = looped.receives.direct().ring;
        assert_eq!((ring.stride, ring.entries), (stride, 512), "after a resize");
        send(&mut looped, &arena, 100)?;
    }
    let context = open()?;
    let init = CqInit::new(16);
    let options = CqOptions { cqe_size: Some(96), ..CqOptions::default() };
    let error = context.create_cq_with(&init, options).unwrap_err();
    assert_eq!((error.verb, error.errno), ("create_cq", Errno::INVAL), "{error}");
    Ok(())
}

fn compressed() -> CaseResult {
    const COUNT: usize = 17;
    for form in [CqeCompression::Hash, CqeCompression::Csum, CqeCompression::CsumStridx] {
        let options = CqOptions { compression: Some(form), ..CqOptions::default() };
        let mut looped = looped(options, QpOptions::default())?;
        let arena = Arena::new(&looped.pd, 4096)?;
        let sges: Vec<[Sge; 1]> = (0..COUNT).map(|n| [arena.sge(n * 64..n * 64 + 40 + n)]).collect();
        let into = [arena.sge(2048..4096)];
        let receives: Vec<_> = (0..COUNT).map(|n| RecvWr { wr_id: n as u64, sge: &into }).collect();
        post_recv(&mut looped.qp, &receives)?;
        let sends: Vec<_> =
            sges.iter().enumerate().map(|(n, sge)| fabric::signalled(n as u64, SendOp::Send, sge)).collect();
        post_send(&mut looped.qp, &sends)?;
        for cq in [&looped.receives, &looped.sends] {
            let ring = cq.direct().ring;
            let deadline = Instant::now() + PATIENCE;
            while last_byte(ring, 0) >> 4 == 15 {
                if Instant::now() > deadline {
                    return fail(format_args!("{form:?}: no completion after {PATIENCE:?}"));
                }
                std::thread::yield_now();
            }
            assert_eq!(last_byte(ring, 0) & FORMAT, FORMAT, "{form:?}: the device compressed nothing");
        }
        let received = wait(&mut looped.receives, COUNT)?;
        let sent = wait(&mut looped.sends, COUNT)?;
        for (n, (received, sent)) in received.iter().zip(&sent).enumerate() {
            assert_eq!((received.wr_id, received.status), (n as u64, WcStatus::SUCCESS), "{form:?}");
            assert_eq!((received.byte_len as usize, received.opcode), (40 + n, WcOpcode::RECV), "{form:?}");
            assert_eq!((sent.wr_id, sent.status, sent.opcode), (n as u64, WcStatus::SUCCESS, WcOpcode::SEND));
        }
    }
    let options = CqOptions { compression: Some(CqeCompression::Hash), ..CqOptions::default() };
    let options = CqOptions { cqe_size: Some(96), ..options };
    let error = open()?.create_cq_with(&CqInit::new(16), options).unwrap_err();
    assert_eq!(error.errno, Errno::INVAL, "{error}");
    Ok(())
}

fn scattered() -> CaseResult {
    const LEN: usize = 24;
    for (scatter_to_cqe, is_scattered) in
        [(ScatterToCqe::Usual, false), (ScatterToCqe::Never, false), (ScatterToCqe::Always, true)]
    {
        let mut looped = looped(CqOptions::default(), QpOptions { scatter_to_cqe })?;
        let arena = Arena::new(&looped.pd, 1024)?;
        send(&mut looped, &arena, LEN)?;
        let has_data = |cq: &Cq<Mlx5>, entry| last_byte(cq.direct().ring, entry) & FORMAT != 0;
        assert_eq!(has_data(&looped.receives, 0), is_scattered, "{scatter_to_cqe:?}, a receive");
        let data = pattern(7, LEN);
        arena.write(256, &data);
        let op = SendOp::RdmaRead { remote_addr: arena.addr() + 256, rkey: arena.rkey() };
        let sge = [arena.sge(768..768 + LEN)];
        post_send(&mut looped.qp, &[fabric::signalled(3, op, &sge)])?;
        wait_for(&mut looped.sends, 3, WcOpcode::RDMA_READ)?;
        assert_eq!(arena.read(768..768 + LEN), data);
        assert_eq!(has_data(&looped.sends, 1), is_scattered, "{scatter_to_cqe:?}, a read");
        // Longer data does not fit.
        send(&mut looped, &arena, 100)?;
        assert!(!has_data(&looped.receives, 1), "{scatter_to_cqe:?}, a long receive");
    }
    Ok(())
}

/// Returns a signalled RDMA write in the device's format.
fn rdma_write(qp_num: u32, to: (u64, u32), from: Sge) -> [[u8; 16]; 3] {
    const RDMA_WRITE: u32 = 0x08;
    const CQ_UPDATE: u32 = 0x08;
    let (remote_addr, rkey) = to;
    let words = |words: [u32; 4]| {
        let mut unit = [0; 16];
        for (bytes, word) in unit.chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&word.to_be_bytes());
        }
        unit
    };
    let halves = |addr: u64| [(addr >> 32) as u32, addr as u32];
    let [remote_high, remote_low] = halves(remote_addr);
    let [high, low] = halves(from.addr);
    [
        words([RDMA_WRITE, qp_num << 8 | 3, CQ_UPDATE, 0]),
        words([remote_high, remote_low, rkey, 0]),
        words([from.length, from.lkey, high, low]),
    ]
}

fn raw() -> CaseResult {
    let Looped { context: _context, pd, mut sends, receives: _receives, mut qp } =
        looped(CqOptions::default(), QpOptions::default())?;
    let arena = Arena::new(&pd, 1024)?;
    arena.write(0, &pattern(1, 8 * 16));
    let qp_num = qp.qp_num();
    let request = |n: usize| {
        let to = (arena.addr() + 512 + n as u64 * 16, arena.rkey());
        rdma_write(qp_num, to, arena.sge(n * 16..n * 16 + 16))
    };
    let mut done = 0;
    let mut arrived = |sends: &mut Cq<Mlx5>, count: usize| -> CaseResult {
        for _ in 0..count {
            let wc = wait_for(sends, done as u64, WcOpcode::DRIVER2)?;
            assert_eq!(wc.qp_num, qp_num);
            let place = done * 16..done * 16 + 16;
            assert_eq!(arena.read(512 + place.start..512 + place.end), arena.read(place), "request {done}");
            done += 1;
        }
        Ok(())
    };

    // SAFETY: a write between parts of an arena, addressed to this queue pair.
    unsafe { qp.post_raw(0, &request(0)) }?;
    arrived(&mut sends, 1)?;

    let mut wr = qp.wr_start();
    for n in [1, 2] {
        wr.wr_id = n as u64;
        // SAFETY: as above; the call adds only this request.
        unsafe { wr.put_raw(|sq, wr_id| sq.post_raw(wr_id, &request(n))) };
    }
    assert_eq!(wr.complete()?, 2);
    arrived(&mut sends, 2)?;

    // Together with ordinary verbs requests.
    let mut batch = qp.batch();
    // SAFETY: as above.
    unsafe { batch.put_raw(3, &request(3)) }?;
    let to = SendOp::RdmaWrite { remote_addr: arena.addr() + 1000, rkey: arena.rkey() };
    batch.post_inline(90, to, SendFlags::empty(), b"between")?;
    // SAFETY: as above.
    unsafe { batch.put_raw(4, &request(4)) }?;
    assert_eq!((batch.len(), batch.ring()?), (3, 3));
    arrived(&mut sends, 2)?;
    assert_eq!(arena.read(1000..1007), b"between");

    let (mut send, recv) = qp.into_split();
    // SAFETY: as above.
    unsafe { send.post_raw(5, &request(5)) }?;
    arrived(&mut sends, 1)?;
    let qp = Qp::from_halves(send, recv).map_err(|failed| failed.error)?;
    Ok(qp.close()?)
}

fn not_raw() -> CaseResult {
    let Looped { context: _context, pd, mut sends, receives: _receives, mut qp } =
        looped(CqOptions::default(), QpOptions::default())?;
    let arena = Arena::new(&pd, 1024)?;
    arena.write(0, &[7; 16]);
    let request = rdma_write(qp.qp_num(), (arena.addr() + 512, arena.rkey()), arena.sge(0..16));

    // SAFETY: as in `raw`; the queue rejects the request.
    let refused = unsafe { qp.post_raw(1, &request[..2]) }.unwrap_err();
    assert!(matches!(refused, PostReason::TooManySge { given: 2, .. }), "{refused}");
    // SAFETY: as above.
    let refused = unsafe { qp.batch().put_raw(1, &[]) }.unwrap_err();
    assert!(matches!(refused, PostReason::TooManySge { given: 0, .. }), "{refused}");
    let mut wr = qp.wr_start();
    // SAFETY: as above.
    unsafe { wr.put_raw(|sq, wr_id| sq.post_raw(wr_id, &request)) };
    // SAFETY: as above.
    unsafe { wr.put_raw(|sq, wr_id| sq.post_raw(wr_id, &request[..1])) };
    // SAFETY: as above; the batch has ended.
    unsafe { wr.put_raw(|_, _| panic!("a request after a refused one")) };
    let error = wr.complete().unwrap_err();
    assert_eq!(error.position, 1, "{error}");
    let mut batch = qp.batch();
    // SAFETY: as above.
    unsafe { batch.put_raw(1, &request) }?;
    assert!(batch.abort().is_empty());
    let mut full = qp.batch();
    let refused = loop {
        // SAFETY: as above.
        if let Err(reason) = unsafe { full.put_raw(1, &request) } {
            break reason;
        }
    };
    assert_eq!(refused, PostReason::QueueFull);
    drop(full);

    // The next doorbell posts only its own request.
    let op = SendOp::RdmaWrite { remote_addr: arena.addr() + 600, rkey: arena.rkey() };
    qp.post_send_inline(9, op, SendFlags::SIGNALED, b"last")?;
    wait_for(&mut sends, 9, WcOpcode::RDMA_WRITE)?;
    assert_eq!((arena.read(512..528), arena.read(600..604)), (vec![0; 16], b"last".to_vec()));
    assert!(sends.poll_one().is_none());
    Ok(())
}

fn shared() -> CaseResult {
    let Looped { context, pd, receives: mut cq, .. } = looped(CqOptions::default(), QpOptions::default())?;
    let mut srq = pd.create_srq(&SrqInit::new(30))?;
    let arena = Arena::new(&pd, 1024)?;
    let fresh = srq.direct();
    assert!(fresh.queue.entries.is_power_of_two() && fresh.queue.entries > srq.max_wr(), "{fresh:?}");
    assert_eq!((fresh.head, fresh.tail), (0, fresh.queue.entries - 1));
    let into = [arena.sge(512..1024)];
    let receives = [1, 2, 3].map(|wr_id| RecvWr { wr_id, sge: &into });
    fabric::post_srq_recv(&mut srq, &receives)?;
    let used = srq.direct();
    assert_eq!((used.head, used.tail), (3, fresh.tail));
    assert_eq!((used.queue, used.record, used.srqn), (fresh.queue, fresh.record, fresh.srqn));
    // SAFETY: the record of a live queue.
    assert_eq!(u32::from_be(unsafe { used.record.read_volatile() }), 3);

    // The queue still works with verbs, because reading the description changes nothing.
    let init = QpInit { srq: Some(srq.handle()), ..QpInit::new(QpType::RC, &cq) };
    let qp = pd.create_qp(&init)?;
    let own = Remote::from_qp(&qp);
    let mut qp = fabric::connect(&context, qp, &Shape::default(), own)?;
    let sge = [arena.sge(0..32)];
    for wr_id in [1, 2, 3] {
        let send = SendWr { wr_id: 9, op: SendOp::Send, sge: &sge, flags: SendFlags::empty() };
        post_send(&mut qp, &[send])?;
        wait_for(&mut cq, wr_id, WcOpcode::RECV)?;
    }
    let turned = srq.direct();
    assert_eq!(turned.head, 3, "{turned:?}");
    let last = RecvWr { wr_id: 4, sge: &into };
    fabric::post_srq_recv(&mut srq, &[last])?;
    post_send(&mut qp, &[SendWr { wr_id: 9, op: SendOp::Send, sge: &sge, flags: SendFlags::empty() }])?;
    wait_for(&mut cq, 4, WcOpcode::RECV)?;
    Ok(())
}

fn described() -> CaseResult {
    let Looped { context, pd, sends, receives, qp } = looped(CqOptions::default(), QpOptions::default())?;
    assert_eq!(context.direct().cqe_version, 1);
    assert_eq!(pd.direct()?.pdn, pd.raw().direct()?.pdn);
    let (of_sends, of_receives) = (sends.direct(), receives.direct());
    assert_ne!(of_sends.cqn, of_receives.cqn);
    assert_ne!(of_sends.ring.buf, of_receives.ring.buf);
    let (of_qp, cap) = (qp.direct(), qp.cap());
    assert!(of_qp.sq.entries >= cap.max_send_wr && of_qp.rq.entries >= cap.max_recv_wr, "{of_qp:?}");
    assert_eq!(of_qp.sq.stride, 64);
    assert_eq!(of_qp, qp.raw().direct());
    Ok(())
}

fn ended() -> CaseResult {
    let options = CqOptions { cqe_size: Some(128), ..CqOptions::default() };
    let never = QpOptions { scatter_to_cqe: ScatterToCqe::Never };
    let Looped { context, pd, sends, receives, qp } = looped(options, never)?;
    let failed = sends.close().unwrap_err();
    assert_eq!(failed.error.errno, Errno::BUSY, "{failed}");
    assert!(matches!(failed.error.cause, Cause::InUse { .. }), "{failed}");
    let failed_pd = pd.close().unwrap_err();
    assert_eq!(failed_pd.error.errno, Errno::BUSY, "{failed_pd}");
    let failed_context = context.close().unwrap_err();
    assert_eq!(failed_context.error.errno, Errno::BUSY, "{failed_context}");
    // A dropped completion queue is destroyed with its last queue pair.
    drop((failed, receives));
    qp.close()?;
    failed_pd.handle.close()?;
    Ok(failed_context.handle.close()?)
}

fn events() -> CaseResult {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let channel = context.create_comp_channel()?;
    let init = CqInit { channel: Some(&channel), ..CqInit::new(64) };
    let options = CqOptions { cqe_size: Some(128), ..CqOptions::default() };
    let mut cq = context.create_cq_with(&init, options)?;
    let qp = pd.create_qp_with(&QpInit::new(QpType::RC, &cq), QpOptions::default())?;
    let own = Remote::from_qp(&qp);
    let mut qp = fabric::connect(&context, qp, &Shape::default(), own)?;
    cq.req_notify(false)?;
    qp.post_send_op(1, SendOp::RdmaWrite { remote_addr: 0, rkey: 0 }, SendFlags::SIGNALED)?;
    let event = channel.wait(Some(PATIENCE))?;
    assert_eq!(event.map(|event| event.cq), Some(cq.id()));
    fabric::wait_one(&mut cq)?;
    qp.close()?;
    Ok(cq.close()?)
}

fn foreign() -> CaseResult {
    let (context, other) = (open()?, open()?);
    let (pd, other_pd) = (context.alloc_pd()?, other.alloc_pd()?);
    let parent = other_pd.alloc_parent_domain(&ParentDomainInit::default())?;
    let init = CqInit { parent_domain: Some(&parent), ..CqInit::new(16) };
    let error = context.create_cq_with(&init, CqOptions::default()).unwrap_err();
    assert!(error.errno == Errno::INVAL && matches!(error.cause, Cause::Foreign { .. }), "{error}");
    let cq = other.create_cq_with(&CqInit::new(16), CqOptions::default())?;
    let error = pd.create_qp_with(&QpInit::new(QpType::RC, &cq), QpOptions::default()).unwrap_err();
    assert!(error.errno == Errno::INVAL && matches!(error.cause, Cause::Foreign { .. }), "{error}");
    Ok(())
}

fn vendor() -> CaseResult {
    /// The number that Linux and rdma-core print for page faults on shared receive queues.
    const PAGE_FAULT: u32 = 0x93;
    let Looped { context, pd, mut sends, receives: _receives, mut qp } =
        looped(CqOptions::default(), QpOptions::default())?;
    let arena = Arena::new(&pd, 64)?;
    Control::tell(&format!("completion qpn={:#x} syndrome=0x22 vendor={PAGE_FAULT:#x}", qp.qp_num()))?;
    let op = SendOp::RdmaWrite { remote_addr: arena.addr() + 32, rkey: arena.rkey() };
    let sge = [arena.sge(0..8)];
    post_send(&mut qp, &[fabric::signalled(1, op, &sge)])?;
    let wc = fabric::wait_one(&mut sends)?;
    assert_eq!((wc.wr_id, wc.vendor_err), (1, PAGE_FAULT), "{wc:?}");
    for text in [context.vendor_err_text(wc.vendor_err), fabric::open()?.vendor_err_text(wc.vendor_err)] {
        assert!(text.is_some_and(|text| text.contains("page fault")), "{text:?}");
    }
    assert_eq!(context.vendor_err_text(0), None);
    assert_eq!(context.vendor_err_text(0x5a), None);
    Ok(())
}
