//! XRC: requests that name a shared receive queue in their target's domain.

use std::fs::File;
use std::os::fd::AsFd;

use verbs::state::{Init, Rtr, Rts};
use verbs::{
    AccessFlags, Cause, Context, Cq, CqInit, DeviceCapFlags, Errno, Mw, MwBindInfo, MwType, PostReason,
    Provider, Qp, QpInit, QpType, SendFlags, SendOp, Srq, SrqInit, WcOpcode, WcStatus, Xrcd, XrcdInit,
    inc_rkey,
};
use verbs_fixtures::both;
use verbs_fixtures::fabric::{
    Arena, Remote, Shape, filled, imm, init_attr, is_empty, next_completed, pattern, post_send,
    post_srq_recv, rtr_attr, signalled, wait_for, wait_one, wait_status,
};
use verbs_harness::runner::{Case, CaseResult, fail, skip};

use super::SUITE;

pub(super) fn cases() -> Vec<Case> {
    both!(
        SUITE,
        a_send_goes_into_the_shared_queue_that_it_names,
        a_receive_completes_in_the_completion_queue_of_its_shared_queue,
        a_write_with_immediate_data_takes_a_receive_of_the_shared_queue,
        a_write_and_a_read_use_the_domain_of_the_shared_queue,
        an_atomic_uses_the_domain_of_the_shared_queue,
        a_number_that_no_shared_queue_has_is_refused,
        a_shared_queue_of_another_domain_is_refused,
        an_initiator_posts_only_operations_that_name_a_shared_queue,
        a_target_posts_nothing,
        an_initiator_binds_windows_and_invalidates_their_keys,
        posted_buffers_come_back_on_both_sides,
        a_domain_is_shared_by_its_file,
        a_domain_of_a_file_is_made_and_found_as_asked_for,
        a_target_is_opened_by_its_number,
        an_opened_target_lives_until_its_last_handle,
        a_domain_in_use_is_not_closed,
    )
}

/// Opens a domain. On a device that does not announce XRC, checks that it rejects the call and
/// skips the case.
fn open<P: Provider>(context: &Context<P>, init: &XrcdInit<'_>) -> CaseResult<Xrcd<P>> {
    let is_announced = context.query_device()?.device_cap_flags.contains(DeviceCapFlags::XRC);
    match context.open_xrcd(init) {
        Err(error) if error.errno == Errno::OPNOTSUPP && !is_announced => skip("the device has no XRC"),
        Ok(_) if !is_announced => fail("an XRC domain of a device that announces none"),
        opened => Ok(opened?),
    }
}

/// An initiator and its target, with two shared receive queues in the target's domain.
struct Fabric<P: Provider> {
    context: Context<P>,
    pd: verbs::Pd<P>,
    xrcd: Xrcd<P>,
    initiator: Qp<Rts, P>,
    send_cq: Cq<P>,
    target: Qp<Rtr, P>,
    srqs: [Srq<P>; 2],
    cqs: [Cq<P>; 2],
    arena: Arena<P>,
}

impl<P: Provider> Fabric<P> {
    fn new(context: &Context<P>) -> CaseResult<Self> {
        let xrcd = open(context, &XrcdInit::default())?;
        let pd = context.alloc_pd()?;
        let cqs = [context.create_cq(&CqInit::new(16))?, context.create_cq(&CqInit::new(16))?];
        let init = SrqInit::new(8);
        let srqs = [xrcd.create_srq(&pd, &cqs[0], &init)?, xrcd.create_srq(&pd, &cqs[1], &init)?];
        let send_cq = context.create_cq(&CqInit::new(16))?;
        let shape = Shape::for_type(QpType::XRC_SEND);
        let init = QpInit { cap: shape.cap, ..QpInit::new(QpType::XRC_SEND, &send_cq) };
        let (initiator, target) = (pd.create_qp(&init)?, xrcd.create_target()?);
        let (to_initiator, to_target) = (Remote::from_qp(&initiator), Remote::from_qp(&target));
        let initiator = initiator.to_init(&init_attr())?;
        let initiator = initiator.to_rtr(&rtr_attr(context, &shape, to_target)?)?.to_rts(&shape.rts)?;
        let target = target.to_init(&init_attr())?.to_rtr(&rtr_attr(context, &shape, to_initiator)?)?;
        let arena = Arena::new(&pd, 8192)?;
        Ok(Self { context: context.clone(), pd, xrcd, initiator, send_cq, target, srqs, cqs, arena })
    }

    fn number(&self, srq: usize) -> u32 {
        self.srqs[srq].srq_num().unwrap_or(0)
    }

    /// Posts a receive of 256 bytes at byte 256 × `wr_id` of the arena.
    fn post(&mut self, srq: usize, wr_id: u64) -> CaseResult {
        let at = wr_id as usize * 256;
        let sge = [self.arena.sge(at..at + 256)];
        Ok(post_srq_recv(&mut self.srqs[srq], &[verbs::RecvWr { wr_id, sge: &sge }])?)
    }

    /// Posts an operation for a shared receive queue, with `len` bytes at offset 4096.
    fn request(&mut self, remote_srqn: u32, op: &SendOp<'_>, len: usize) -> CaseResult {
        let sge = [self.arena.sge(4096..4096 + len)];
        Ok(post_send(&mut self.initiator, &[signalled(1, SendOp::Xrc { remote_srqn, op }, &sge)])?)
    }
}

fn a_send_goes_into_the_shared_queue_that_it_names<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut fabric = Fabric::new(context)?;
    fabric.arena.write(4096, &pattern(1, 2000));
    for (srq, wr_id) in [(0, 1), (1, 2), (0, 3)] {
        fabric.post(srq, wr_id)?;
    }
    for (srq, wr_id) in [(1, 2), (0, 1), (0, 3)] {
        let op = SendOp::SendWithImm { imm_data: wr_id as u32 };
        fabric.request(fabric.number(srq), &op, 200)?;
        wait_for(&mut fabric.send_cq, 1, WcOpcode::SEND)?;
        let wc = wait_for(&mut fabric.cqs[srq], wr_id, WcOpcode::RECV)?;
        assert_eq!((wc.byte_len, imm(&wc), wc.qp_num), (200, Some(wr_id as u32), fabric.target.qp_num()));
        let at = wr_id as usize * 256;
        assert_eq!(fabric.arena.read(at..at + 200), pattern(1, 200));
    }
    Ok(())
}

fn a_receive_completes_in_the_completion_queue_of_its_shared_queue<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    let mut fabric = Fabric::new(context)?;
    fabric.post(1, 2)?;
    fabric.request(fabric.number(1), &SendOp::Send, 8)?;
    wait_for(&mut fabric.cqs[1], 2, WcOpcode::RECV)?;
    assert!(is_empty(&mut fabric.cqs[0]));
    Ok(())
}

fn a_write_with_immediate_data_takes_a_receive_of_the_shared_queue<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    let mut fabric = Fabric::new(context)?;
    fabric.arena.write(4096, &pattern(2, 100));
    fabric.post(0, 5)?;
    let (remote_addr, rkey) = (fabric.arena.addr(), fabric.arena.rkey());
    let op = SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data: 9 };
    fabric.request(fabric.number(0), &op, 100)?;
    wait_for(&mut fabric.send_cq, 1, WcOpcode::RDMA_WRITE)?;
    let wc = wait_for(&mut fabric.cqs[0], 5, WcOpcode::RECV_RDMA_WITH_IMM)?;
    assert_eq!((imm(&wc), wc.byte_len), (Some(9), 100));
    assert_eq!(fabric.arena.read(0..100), pattern(2, 100));
    Ok(())
}

fn a_write_and_a_read_use_the_domain_of_the_shared_queue<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut fabric = Fabric::new(context)?;
    fabric.arena.write(4096, &pattern(3, 3000));
    let (remote_addr, rkey) = (fabric.arena.addr(), fabric.arena.rkey());
    fabric.request(fabric.number(0), &SendOp::RdmaWrite { remote_addr, rkey }, 3000)?;
    wait_for(&mut fabric.send_cq, 1, WcOpcode::RDMA_WRITE)?;
    fabric.arena.write(4096, &[0; 3000]);
    fabric.request(fabric.number(1), &SendOp::RdmaRead { remote_addr, rkey }, 3000)?;
    wait_for(&mut fabric.send_cq, 1, WcOpcode::RDMA_READ)?;
    assert_eq!(fabric.arena.read(4096..7096), pattern(3, 3000));
    // The key and the shared queue belong to different domains.
    let foreign = Arena::new(&fabric.context.alloc_pd()?, 64)?;
    let op = SendOp::RdmaRead { remote_addr: foreign.addr(), rkey: foreign.rkey() };
    fabric.request(fabric.number(0), &op, 64)?;
    wait_status(&mut fabric.send_cq, 1, WcStatus::REM_ACCESS_ERR)
}

fn an_atomic_uses_the_domain_of_the_shared_queue<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut fabric = Fabric::new(context)?;
    fabric.arena.write(0, &40_u64.to_ne_bytes());
    let (remote_addr, rkey) = (fabric.arena.addr(), fabric.arena.rkey());
    fabric.request(fabric.number(0), &SendOp::AtomicFetchAndAdd { remote_addr, rkey, add: 2 }, 8)?;
    wait_for(&mut fabric.send_cq, 1, WcOpcode::FETCH_ADD)?;
    assert_eq!((fabric.arena.number(0), fabric.arena.number(4096)), (42, 40));
    Ok(())
}

fn a_number_that_no_shared_queue_has_is_refused<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut fabric = Fabric::new(context)?;
    fabric.post(0, 1)?;
    let unknown = (1..).find(|number| (0..2).all(|srq| fabric.number(srq) != *number)).unwrap_or(0);
    fabric.request(unknown, &SendOp::Send, 8)?;
    wait_status(&mut fabric.send_cq, 1, WcStatus::REM_INV_REQ_ERR)?;
    assert!(is_empty(&mut fabric.cqs[0]) && is_empty(&mut fabric.cqs[1]));
    Ok(())
}

fn a_shared_queue_of_another_domain_is_refused<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut fabric = Fabric::new(context)?;
    let other = open(context, &XrcdInit::default())?;
    let cq = context.create_cq(&CqInit::new(4))?;
    let mut srq = other.create_srq(&fabric.pd, &cq, &SrqInit::new(4))?;
    post_srq_recv(&mut srq, &[verbs::RecvWr { wr_id: 1, sge: &[fabric.arena.sge(0..8)] }])?;
    fabric.request(srq.srq_num().unwrap_or(0), &SendOp::Send, 8)?;
    wait_status(&mut fabric.send_cq, 1, WcStatus::REM_INV_REQ_ERR)
}

fn an_initiator_posts_only_operations_that_name_a_shared_queue<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    let mut fabric = Fabric::new(context)?;
    let sge = [fabric.arena.sge(0..8)];
    let nested = SendOp::Xrc { remote_srqn: 1, op: &SendOp::Send };
    let twice = SendOp::Xrc { remote_srqn: 1, op: &nested };
    for op in [SendOp::Send, SendOp::RdmaRead { remote_addr: 0, rkey: 0 }, twice] {
        let error = post_send(&mut fabric.initiator, &[signalled(1, op, &sge)]).unwrap_err();
        assert!(matches!(error.reason, PostReason::UnsupportedOp { .. }), "{error}");
    }
    let error = verbs_recv(&mut fabric.initiator);
    assert_eq!(error, Some(PostReason::SharedRecvQueue));
    Ok(())
}

/// Posts an empty receive and returns the reason if it is rejected.
fn verbs_recv<S: verbs::state::CanPostRecv, P: Provider>(qp: &mut Qp<S, P>) -> Option<PostReason> {
    verbs_fixtures::fabric::post_recv(qp, &[verbs::RecvWr { wr_id: 1, sge: &[] }])
        .err()
        .map(|error| error.reason)
}

fn a_target_posts_nothing<P: Provider>(context: &Context<P>) -> CaseResult {
    let fabric = Fabric::new(context)?;
    let shape = Shape::for_type(QpType::XRC_RECV);
    let mut target = fabric.target.to_rts(&shape.rts)?;
    assert_eq!(verbs_recv(&mut target), Some(PostReason::SharedRecvQueue));
    let sge = [fabric.arena.sge(0..8)];
    for op in [SendOp::Send, SendOp::Xrc { remote_srqn: 1, op: &SendOp::Send }] {
        let error = post_send(&mut target, &[signalled(1, op, &sge)]).unwrap_err();
        assert!(matches!(error.reason, PostReason::UnsupportedOp { .. }), "{error}");
    }
    Ok(())
}

fn an_initiator_binds_windows_and_invalidates_their_keys<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut fabric = Fabric::new(context)?;
    let memory = Arena::with_access(&fabric.pd, 64, AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND)?;
    let mw_access_flags = AccessFlags::REMOTE_WRITE;
    let info = MwBindInfo { lkey: memory.lkey(), addr: memory.addr(), length: 64, mw_access_flags };
    fabric.arena.write(4096, &[7; 8]);
    let [first, second] = [MwType::TYPE_1, MwType::TYPE_2].map(|mw_type| fabric.pd.alloc_mw(mw_type));
    let (first, second) = (first?, second?);
    let bind = |fabric: &mut Fabric<P>, mw: &Mw<P>, rkey, bind_info: &MwBindInfo| -> CaseResult<u32> {
        let op = SendOp::BindMw { mw_type: mw.mw_type(), rkey, new_rkey: inc_rkey(rkey), bind_info };
        post_send(&mut fabric.initiator, &[signalled(1, op, &[])])?;
        wait_for(&mut fabric.send_cq, 1, WcOpcode::BIND_MW)?;
        Ok(inc_rkey(rkey))
    };
    // A type 2 window belongs to the initiator, which receives nothing. The initiator can
    // invalidate its key.
    let invalidate_rkey = bind(&mut fabric, &second, second.rkey(), &info)?;
    post_send(&mut fabric.initiator, &[signalled(2, SendOp::LocalInv { invalidate_rkey }, &[])])?;
    wait_for(&mut fabric.send_cq, 2, WcOpcode::LOCAL_INV)?;
    // A type 1 window gives access to every queue pair in the domain, including the target.
    let rkey = bind(&mut fabric, &first, first.rkey(), &info)?;
    let write = SendOp::RdmaWrite { remote_addr: memory.addr() + 8, rkey };
    fabric.request(fabric.number(0), &write, 8)?;
    wait_for(&mut fabric.send_cq, 1, WcOpcode::RDMA_WRITE)?;
    assert_eq!(memory.read(0..16), [[0; 8], [7; 8]].concat());
    bind(&mut fabric, &first, rkey, &MwBindInfo::default())?;
    fabric.request(fabric.number(0), &write, 8)?;
    wait_status(&mut fabric.send_cq, 1, WcStatus::REM_ACCESS_ERR)
}

fn posted_buffers_come_back_on_both_sides<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut fabric = Fabric::new(context)?;
    for srq in &mut fabric.srqs {
        srq.post_recv_buf(fabric.pd.alloc_buf(300)?, ..)?;
    }
    for srq in [1, 0] {
        let op = SendOp::Xrc { remote_srqn: fabric.number(srq), op: &SendOp::Send };
        let buf = filled(&fabric.pd, srq as u32, 300)?;
        fabric.initiator.post_send_buf(op, SendFlags::empty(), buf, ..)?;
        let completed = next_completed(&mut fabric.cqs[srq])?;
        assert_eq!(completed.into_buf().expect("a buffer")[..], pattern(srq as u32, 300));
        next_completed(&mut fabric.send_cq)?.into_buf()?;
    }
    let op = SendOp::Xrc { remote_srqn: fabric.number(0), op: &SendOp::Send };
    fabric.srqs[0].post_recv_buf(fabric.pd.alloc_buf(8)?, ..)?;
    fabric.initiator.post_send_inline(7, op, SendFlags::SIGNALED, b"inline")?;
    assert_eq!(next_completed(&mut fabric.cqs[0])?.into_buf().expect("a buffer")[..6], *b"inline");
    Ok(())
}

/// Opens the same file again, which creates a new open file description.
fn file() -> CaseResult<File> {
    Ok(File::open(std::env::current_exe()?)?)
}

fn a_domain_is_shared_by_its_file<P: Provider>(context: &Context<P>) -> CaseResult {
    let (one, other) = (file()?, file()?);
    let first = open(context, &XrcdInit { file: Some(one.as_fd()), create: true, exclusive: false })?;
    // Another file description of the same inode, in another context.
    let opened = verbs_fixtures::fabric::open()?;
    let second = open(&opened, &XrcdInit { file: Some(other.as_fd()), create: false, exclusive: false })?;
    let target = first.create_target()?;
    let shared: Qp<verbs::state::Reset> = second.open_target(target.qp_num())?;
    assert_eq!(shared.qp_num(), target.qp_num());
    let private = open(&opened, &XrcdInit::default())?;
    let error = private.open_target::<verbs::state::Reset>(target.qp_num()).unwrap_err();
    assert_eq!((error.verb, error.errno), ("open_qp", Errno::INVAL));
    Ok(())
}

fn a_domain_of_a_file_is_made_and_found_as_asked_for<P: Provider>(context: &Context<P>) -> CaseResult {
    drop(open(context, &XrcdInit::default())?);
    let file = file()?;
    let init = |create, exclusive| XrcdInit { file: Some(file.as_fd()), create, exclusive };
    assert_eq!(context.open_xrcd(&init(false, false)).unwrap_err().errno, Errno::AGAIN);
    let made = context.open_xrcd(&init(true, true))?;
    assert_eq!(context.open_xrcd(&init(true, true)).unwrap_err().errno, Errno::INVAL);
    let found = context.open_xrcd(&init(false, false))?;
    made.close()?;
    drop(context.open_xrcd(&init(false, false))?);
    found.close()?;
    assert_eq!(context.open_xrcd(&init(false, false)).unwrap_err().errno, Errno::AGAIN);
    Ok(())
}

fn a_target_is_opened_by_its_number<P: Provider>(context: &Context<P>) -> CaseResult {
    let xrcd = open(context, &XrcdInit::default())?;
    let target = xrcd.create_target()?.to_init(&init_attr())?;
    let opened: Qp<Init, P> = xrcd.open_target(target.qp_num())?;
    assert_eq!((opened.qp_num(), opened.qp_type()), (target.qp_num(), QpType::XRC_RECV));
    assert_ne!(opened.id(), target.id(), "each handle has events of its own");
    let error = xrcd.open_target::<Rts>(target.qp_num()).unwrap_err();
    assert_eq!(error.errno, Errno::INVAL);
    let error = xrcd.open_target::<Init>(target.qp_num() ^ 1).unwrap_err();
    assert_eq!((error.verb, error.errno), ("open_qp", Errno::INVAL));
    Ok(())
}

fn an_opened_target_lives_until_its_last_handle<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut fabric = Fabric::new(context)?;
    let opened: Qp<Rtr, P> = fabric.xrcd.open_target(fabric.target.qp_num())?;
    let Fabric { target, .. } = fabric;
    target.close()?;
    fabric = Fabric { target: opened, ..fabric };
    fabric.post(0, 1)?;
    fabric.request(fabric.number(0), &SendOp::Send, 8)?;
    wait_for(&mut fabric.cqs[0], 1, WcOpcode::RECV)?;
    wait_for(&mut fabric.send_cq, 1, WcOpcode::SEND)?;
    let Fabric { target, mut initiator, mut send_cq, arena, srqs, .. } = fabric;
    target.close()?;
    let sge = [arena.sge(0..8)];
    let op = SendOp::Xrc { remote_srqn: srqs[0].srq_num().unwrap_or(0), op: &SendOp::Send };
    post_send(&mut initiator, &[signalled(2, op, &sge)])?;
    assert_eq!(wait_one(&mut send_cq)?.status, WcStatus::RETRY_EXC_ERR);
    Ok(())
}

fn a_domain_in_use_is_not_closed<P: Provider>(context: &Context<P>) -> CaseResult {
    let xrcd = open(context, &XrcdInit::default())?;
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(&CqInit::new(4))?);
    let srq = xrcd.create_srq(&pd, &cq, &SrqInit::new(4))?;
    let failed = xrcd.close().unwrap_err();
    assert_eq!(failed.error.cause, Cause::InUse { by: "shared receive queues" });
    assert_eq!(cq.close().unwrap_err().error.errno, Errno::BUSY, "the shared queue completes there");
    srq.close()?;
    let xrcd = failed.handle;
    let target = xrcd.create_target()?;
    let failed = xrcd.close().unwrap_err();
    assert_eq!(failed.error.cause, Cause::InUse { by: "queue pairs" });
    target.close()?;
    Ok(failed.handle.close()?)
}
