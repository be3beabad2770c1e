//! Queue pair states: the transitions and the behaviour in each state.

use std::time::{Duration, Instant};

use verbs::state::{Reset, Rts};
use verbs::{
    AccessFlags, Ah, Cause, Context, Cq, CqInit, Errno, MigState, Pd, PostReason, Provider, Qp, QpAttr,
    QpAttrMask, QpState, QpType, RecvWr, SendFlags, SendOp, SendWr, WcOpcode, WcStatus,
};
use verbs_core::transition::{self, Transition};
use verbs_fixtures::fabric::{
    Arena, PORT, Pair, QKEY, Remote, Shape, connect, create_qp, eventually, has_sqd, in_error, init_attr,
    is_empty, is_ethernet, is_local_key_error, is_mlx5, is_rxe, is_soft, needs_sqd, path, pattern, post_recv,
    post_send, rtr_attr, rxe_ignores_rnr_timer, signalled, wait, wait_for, wait_one, wait_status,
};
use verbs_fixtures::{both, with_named};
use verbs_harness::runner::{Case, CaseResult, fail, skip};

use super::SUITE;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for qp_type in [QpType::RC, QpType::UC, QpType::UD] {
        for from in QpState::NAMED.iter().copied().filter(|state| *state != QpState::UNKNOWN) {
            // A reliable connection has no SQE.
            if qp_type == QpType::RC && from == QpState::SQE {
                continue;
            }
            let name = format!("{qp_type}_in_{from}_takes_what_the_table_says_and_nothing_else");
            cases.push(Case::new(SUITE, format!("{name} erased"), move || {
                from_state(&verbs_fixtures::fabric::open()?, qp_type, from)
            }));
            cases.push(Case::new(SUITE, format!("{name} static"), move || {
                with_named!(verbs_fixtures::fabric::open_named()?, |context| from_state(
                    &context, qp_type, from
                ))
            }));
        }
    }
    cases.extend(both!(
        SUITE,
        a_refused_move_changes_nothing,
        a_state_that_the_queue_pair_is_not_in_is_refused_as_its_present_one,
        only_states_that_take_work_requests_take_them,
        receives_posted_before_rtr_are_used,
        messages_arrive_before_this_side_may_send,
        sends_wait_while_the_send_queue_is_drained,
        a_queue_that_drains_under_load_loses_nothing,
        messages_arrive_while_the_send_queue_is_drained,
        a_drained_queue_pair_changes_its_path,
        sends_that_wait_in_sqd_are_flushed_in_the_error_state,
        sends_that_wait_in_sqd_are_forgotten_by_a_reset,
        a_failed_datagram_stops_sends_and_not_receives,
        a_failed_unreliable_send_stops_sends_and_not_receives,
        sends_posted_in_sqe_are_flushed,
        a_send_queue_that_did_not_fail_needs_no_recovery,
        a_failed_reliable_connection_does_not_recover_without_a_reset,
        a_reset_queue_pair_hears_nothing_of_its_former_connection,
        a_reset_forgets_receives,
        a_queue_pair_is_used_again_and_again,
        the_error_state_may_be_entered_from_every_state,
    ));
    cases
}

/// A queue pair whose state only `modify` changes, so that its type does not reflect the state.
struct Free<P: Provider> {
    qp: Qp<Rts, P>,
    cq: Cq<P>,
    pd: Pd<P>,
    attr: QpAttr,
}

impl<P: Provider> Free<P> {
    /// Returns a queue pair in RESET and a value for each attribute that a mask can name.
    fn new(context: &Context<P>, qp_type: QpType) -> CaseResult<Self> {
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(&CqInit::new(16))?;
        let shape = Shape::for_type(qp_type);
        let qp = create_qp(&pd, &cq, &shape)?;
        let own = Remote::from_qp(&qp);
        let mut qp = connect(context, qp, &shape, own)?;
        let reset = QpAttr { qp_state: QpState::RESET, ..QpAttr::default() };
        qp.modify(&reset, QpAttrMask::STATE)?;
        let path = path(&context.find_gid(PORT)?);
        let attr = QpAttr {
            path_mtu: verbs::Mtu::MTU_1024,
            path_mig_state: MigState::MIGRATED,
            qkey: QKEY,
            rq_psn: 0x12_3456,
            sq_psn: 0x65_4321,
            dest_qp_num: qp.qp_num(),
            qp_access_flags: init_attr().access,
            ah_attr: path,
            alt_ah_attr: path,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 12,
            port_num: PORT,
            alt_port_num: PORT,
            timeout: 14,
            alt_timeout: 13,
            retry_cnt: 6,
            rnr_retry: 5,
            ..QpAttr::default()
        };
        Ok(Self { qp, cq, pd, attr })
    }

    /// Returns a queue pair in this state.
    fn in_state(context: &Context<P>, qp_type: QpType, state: QpState) -> CaseResult<Self> {
        use QpState as S;
        let way: &[QpState] = match state {
            S::RESET => &[],
            S::INIT => &[S::INIT],
            S::RTR => &[S::INIT, S::RTR],
            S::RTS | S::SQE => &[S::INIT, S::RTR, S::RTS],
            S::SQD => &[S::INIT, S::RTR, S::RTS, S::SQD],
            _ => &[S::INIT, S::ERR],
        };
        if state == S::SQD {
            needs_sqd()?;
        }
        let mut free = Self::new(context, qp_type)?;
        let mut at = S::RESET;
        for &to in way {
            let required = transition::lookup(qp_type, at, to).map(|row| row.required).unwrap_or_default();
            free.modify(at, to, required | QpAttrMask::STATE)?;
            at = to;
        }
        if state == S::SQE {
            fail_a_send(&free.pd, &mut free.qp, &mut free.cq)?;
        }
        free.is_in(state)?;
        Ok(free)
    }

    fn modify(&mut self, from: QpState, to: QpState, mask: QpAttrMask) -> verbs::Result<()> {
        let attr = QpAttr { cur_qp_state: from, qp_state: to, ..self.attr };
        self.qp.modify(&attr, mask)
    }

    /// Checks the state. In SQD, waits until further changes are possible.
    fn is_in(&self, state: QpState) -> CaseResult {
        assert_eq!(self.qp.state()?, state);
        if state == QpState::SQD {
            eventually("the send queue is drained", || {
                self.qp.query(QpAttrMask::STATE).is_ok_and(|(attr, _)| !attr.sq_draining)
            })?;
        }
        Ok(())
    }

    /// Checks that a query returns the attributes as they were set.
    fn has(&self, mask: QpAttrMask) -> CaseResult {
        let (queried, info) = self.qp.query(queryable())?;
        assert_eq!(info.cap, queried.cap);
        let given = &self.attr;
        macro_rules! same {
            ($($bit:ident: $($field:ident),+;)*) => {
                $(if mask.contains(QpAttrMask::$bit) {
                    $(assert_eq!(queried.$field, given.$field, "{}", stringify!($field));)+
                })*
            };
        }
        same! {
            PKEY_INDEX: pkey_index;
            PORT: port_num;
            QKEY: qkey;
            PATH_MTU: path_mtu;
            TIMEOUT: timeout;
            RETRY_CNT: retry_cnt;
            RNR_RETRY: rnr_retry;
            RQ_PSN: rq_psn;
            MAX_QP_RD_ATOMIC: max_rd_atomic;
            ALT_PATH: alt_pkey_index, alt_port_num, alt_timeout;
            MIN_RNR_TIMER: min_rnr_timer;
            SQ_PSN: sq_psn;
            MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
            PATH_MIG_STATE: path_mig_state;
            DEST_QPN: dest_qp_num;
        }
        if mask.contains(QpAttrMask::ACCESS_FLAGS) {
            assert_eq!(queried.qp_access_flags, self.rights(queried.max_dest_rd_atomic)?);
        }
        let to = |attr: &verbs::AhAttr| (attr.grh.map(|grh| (grh.dgid, grh.sgid_index)), attr.port_num);
        if mask.contains(QpAttrMask::AV) {
            assert_eq!(to(&queried.ah_attr), to(&given.ah_attr));
        }
        if mask.contains(QpAttrMask::ALT_PATH) {
            assert_eq!(to(&queried.alt_ah_attr), to(&given.alt_ah_attr));
        }
        Ok(())
    }
}

impl<P: Provider> Free<P> {
    /// Returns the access rights to expect from a query. ConnectX reports the rights for reads and
    /// atomics only while the peer may have some outstanding.
    fn rights(&self, max_dest_rd_atomic: u8) -> CaseResult<AccessFlags> {
        let given = self.attr.qp_access_flags;
        let is_bare = is_mlx5()? && (max_dest_rd_atomic == 0 || self.qp.qp_type() != QpType::RC);
        Ok(if is_bare { given & AccessFlags::REMOTE_WRITE } else { given })
    }
}

/// Returns every queryable attribute.
pub(super) fn queryable() -> QpAttrMask {
    let named = QpAttrMask::all().iter_names().map(|(_, bit)| bit);
    named.fold(QpAttrMask::empty(), QpAttrMask::union) - QpAttrMask::RATE_LIMIT
}

/// Makes a send fail because of its local key, which moves the queue pair to SQE. Skips the case on
/// rxe.
fn fail_a_send<P: Provider>(pd: &Pd<P>, qp: &mut Qp<Rts, P>, cq: &mut Cq<P>) -> CaseResult {
    if is_rxe()? {
        return skip("rxe has no SQE: a failed send moves the queue pair to the error state");
    }
    let arena = Arena::new(pd, 8)?;
    let wrong = verbs::Sge { lkey: !arena.lkey(), ..arena.sge(0..8) };
    let ah = own_address(pd, qp)?;
    post_send(qp, &[signalled(77, send(&ah, qp), &[wrong])])?;
    wait_status(cq, 77, WcStatus::LOC_PROT_ERR)
}

/// Creates an address handle for the same device.
fn own_address<P: Provider>(pd: &Pd<P>, qp: &Qp<Rts, P>) -> CaseResult<Ah<P>> {
    let (attr, _) = qp.query(QpAttrMask::AV)?;
    let attr = match attr.ah_attr.grh {
        Some(_) => attr.ah_attr,
        None => path(&verbs_fixtures::fabric::open()?.find_gid(PORT)?),
    };
    Ok(pd.create_ah(&attr)?)
}

/// Returns a send of the queue pair's type, addressed to itself.
fn send<'a, P: Provider>(ah: &'a Ah<P>, qp: &Qp<Rts, P>) -> SendOp<'a> {
    if qp.qp_type() == QpType::UD { SendOp::UdSend { to: ah.to(qp.qp_num(), QKEY) } } else { SendOp::Send }
}

/// Returns masks that a transition rejects, each with the cause.
fn wrong_masks(qp_type: QpType, row: &Transition) -> Vec<(QpAttrMask, Cause)> {
    let base = row.required | QpAttrMask::STATE;
    let cause = |missing, forbidden| Cause::TransitionAttributes {
        qp_type,
        from: row.from,
        to: row.to,
        missing,
        forbidden,
    };
    let none = QpAttrMask::empty();
    let missing = row.required.iter().map(|bit| (base - bit, cause(bit, none)));
    let named = QpAttrMask::all().iter_names().map(|(_, bit)| bit);
    let forbidden = named.filter(|bit| row.forbidden(*bit) == *bit && *bit != QpAttrMask::CUR_STATE);
    missing.chain(forbidden.map(|bit| (base | bit, cause(none, bit)))).collect()
}

/// Tries every transition from this state, with each invalid mask, with the required mask and with
/// each optional attribute.
fn from_state<P: Provider>(context: &Context<P>, qp_type: QpType, from: QpState) -> CaseResult {
    let mut free = Free::in_state(context, qp_type, from)?;
    for to in QpState::NAMED.iter().copied().filter(|state| *state != QpState::UNKNOWN) {
        let Some(row) = transition::lookup(qp_type, from, to) else {
            let error = free.modify(from, to, QpAttrMask::STATE).unwrap_err();
            assert_eq!(
                (error.errno, error.cause),
                (Errno::INVAL, Cause::IllegalTransition { qp_type, from, to })
            );
            free.is_in(from)?;
            continue;
        };
        for (mask, cause) in wrong_masks(qp_type, &row) {
            let error = free.modify(from, to, mask).unwrap_err();
            assert_eq!((error.errno, error.cause), (Errno::INVAL, cause), "{from} to {to} with {mask:?}");
        }
        free.is_in(from)?;
        for extra in row.optional.iter().chain([QpAttrMask::empty()]) {
            let mut free = Free::in_state(context, qp_type, from)?;
            let mask = row.required | QpAttrMask::STATE | extra;
            let done = free.modify(from, to, mask);
            if let Some((errnos, named)) = refused_by_the_device(context, qp_type, &row, extra)? {
                let error = done.unwrap_err();
                assert!(errnos.contains(&error.errno), "{from} to {to} with {extra:?}: {error}");
                assert!(error.to_string().contains(named), "{error}");
                free.is_in(from)?;
                continue;
            }
            if let Err(error) = done {
                return fail(format_args!("{qp_type} {from} to {to} with {extra:?}: {error}"));
            }
            free.is_in(to)?;
            if to != QpState::RESET {
                free.has(mask)?;
            }
        }
    }
    Ok(())
}

/// For a transition or attribute that the table allows but the device rejects, returns the possible
/// errnos and a word that the error message must contain.
fn refused_by_the_device<P: Provider>(
    context: &Context<P>,
    qp_type: QpType,
    row: &Transition,
    extra: QpAttrMask,
) -> CaseResult<Option<(&'static [Errno], &'static str)>> {
    let rxe = is_rxe()?;
    if row.to == QpState::SQD && !has_sqd()? {
        return Ok(Some((&[Errno::INVAL], "SQD")));
    }
    Ok(match extra {
        // The device lacks packet pacing, or paces only raw packets.
        QpAttrMask::RATE_LIMIT if is_mlx5()? => Some((&[Errno::INVAL, Errno::OPNOTSUPP], "")),
        QpAttrMask::RATE_LIMIT => Some((&[Errno::OPNOTSUPP], "")),
        // The kernel's core supports alternate paths only on InfiniBand. Soft devices have none.
        QpAttrMask::ALT_PATH if !is_ethernet(context)? => None,
        QpAttrMask::ALT_PATH if is_soft()? => Some((&[Errno::OPNOTSUPP], "")),
        QpAttrMask::ALT_PATH => Some((&[Errno::INVAL], "")),
        // uverbs adds PORT, which the core rejects in this transition.
        QpAttrMask::AV if rxe && qp_type == QpType::UC && row.from == QpState::SQD => {
            Some((&[Errno::INVAL], ""))
        }
        _ => None,
    })
}

fn a_refused_move_changes_nothing<P: Provider>(context: &Context<P>) -> CaseResult {
    for qp_type in [QpType::RC, QpType::UC, QpType::UD] {
        let mut free = Free::in_state(context, qp_type, QpState::RTS)?;
        let before = free.qp.query(queryable())?;
        free.attr = QpAttr { qkey: 1, qp_access_flags: AccessFlags::empty(), timeout: 1, ..free.attr };
        for (to, mask) in [
            (QpState::INIT, QpAttrMask::STATE),
            (QpState::RTR, QpAttrMask::STATE | QpAttrMask::RQ_PSN),
            (QpState::RTS, QpAttrMask::STATE | QpAttrMask::TIMEOUT),
            (QpState::SQE, QpAttrMask::STATE),
            (QpState::SQD, QpAttrMask::STATE | QpAttrMask::QKEY | QpAttrMask::ACCESS_FLAGS),
            (QpState::ERR, QpAttrMask::STATE | QpAttrMask::QKEY),
            (QpState::RESET, QpAttrMask::STATE | QpAttrMask::ACCESS_FLAGS),
            (QpState::UNKNOWN, QpAttrMask::STATE),
        ] {
            let refused = free.modify(QpState::RTS, to, mask);
            assert_eq!(refused.map_err(|error| error.errno), Err(Errno::INVAL), "{qp_type} to {to}");
        }
        assert_eq!(free.qp.query(queryable())?, before, "{qp_type}");
    }
    Ok(())
}

fn a_state_that_the_queue_pair_is_not_in_is_refused_as_its_present_one<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    if is_rxe()? {
        return skip("rxe believes cur_qp_state");
    }
    let mut free = Free::in_state(context, QpType::UD, QpState::RTS)?;
    for wrong in [QpState::SQD, QpState::SQE, QpState::RTR] {
        let mask = QpAttrMask::STATE | QpAttrMask::CUR_STATE;
        let required = transition::lookup(QpType::UD, wrong, QpState::RTS).map(|row| row.required);
        let error = free.modify(wrong, QpState::RTS, mask | required.unwrap_or_default()).unwrap_err();
        let text = format!("cur_qp_state is {wrong}, but the queue pair is in RTS (EINVAL)");
        assert!(error.to_string().ends_with(&text), "{error}");
    }
    free.modify(QpState::RTS, QpState::RTS, QpAttrMask::STATE | QpAttrMask::CUR_STATE)?;
    Ok(())
}

fn only_states_that_take_work_requests_take_them<P: Provider>(context: &Context<P>) -> CaseResult {
    use QpState as S;
    for qp_type in [QpType::RC, QpType::UC, QpType::UD] {
        for state in [S::RESET, S::INIT, S::RTR, S::RTS, S::SQD, S::ERR] {
            if state == S::SQD && !has_sqd()? {
                continue;
            }
            let mut free = Free::in_state(context, qp_type, state)?;
            let ah = free.pd.create_ah(&free.attr.ah_attr)?;
            let op = send(&ah, &free.qp);
            let sent = post_send(&mut free.qp, &[signalled(1, op, &[])]).map_err(|error| error.reason);
            let takes_sends = matches!(state, S::RTS | S::SQD | S::ERR);
            assert_eq!(
                sent,
                if takes_sends { Ok(()) } else { Err(PostReason::InvalidState) },
                "{qp_type} {state}"
            );
            let recv = RecvWr { wr_id: 2, sge: &[] };
            let posted = post_recv(&mut free.qp, &[recv]).map_err(|error| error.reason);
            let takes_receives = state != S::RESET;
            let expected = if takes_receives { Ok(()) } else { Err(PostReason::InvalidState) };
            assert_eq!(posted, expected, "{qp_type} {state}");
        }
    }
    Ok(())
}

/// A queue pair in RESET and its completion queue.
type Idle<P> = (Qp<Reset, P>, Cq<P>);

/// Returns two queue pairs in RESET on one device.
fn two<P: Provider>(context: &Context<P>) -> CaseResult<(Pd<P>, [Idle<P>; 2])> {
    let pd = context.alloc_pd()?;
    let make = || -> CaseResult<_> {
        let cq = context.create_cq(&CqInit::new(64))?;
        Ok((create_qp(&pd, &cq, &Shape::default())?, cq))
    };
    let ends = [make()?, make()?];
    Ok((pd, ends))
}

fn receives_posted_before_rtr_are_used<P: Provider>(context: &Context<P>) -> CaseResult {
    let shape = Shape::default();
    let (pd, [(a, mut a_cq), (b, mut b_cq)]) = two(context)?;
    let arena = Arena::new(&pd, 64)?;
    arena.write(32, &pattern(1, 32));
    let (to_a, to_b) = (Remote::from_qp(&a), Remote::from_qp(&b));
    let mut b = b.to_init(&init_attr())?;
    for wr_id in 0..3 {
        post_recv(&mut b, &[RecvWr { wr_id, sge: &[arena.sge(0..32)] }])?;
    }
    assert!(is_empty(&mut b_cq));
    let _b = b.to_rtr(&rtr_attr(context, &shape, to_a)?)?.to_rts(&shape.rts)?;
    let mut a = connect(context, a, &shape, to_b)?;
    for wr_id in 0..3 {
        post_send(&mut a, &[signalled(wr_id, SendOp::Send, &[arena.sge(32..64)])])?;
        wait_for(&mut a_cq, wr_id, WcOpcode::SEND)?;
        assert_eq!(wait_for(&mut b_cq, wr_id, WcOpcode::RECV)?.byte_len, 32);
    }
    assert_eq!(arena.read(0..32), pattern(1, 32));
    Ok(())
}

fn messages_arrive_before_this_side_may_send<P: Provider>(context: &Context<P>) -> CaseResult {
    let shape = Shape::default();
    let (pd, [(a, mut a_cq), (b, mut b_cq)]) = two(context)?;
    let arena = Arena::new(&pd, 64)?;
    let (to_a, to_b) = (Remote::from_qp(&a), Remote::from_qp(&b));
    let mut b = b.to_init(&init_attr())?.to_rtr(&rtr_attr(context, &shape, to_a)?)?;
    let mut a = connect(context, a, &shape, to_b)?;
    post_recv(&mut b, &[RecvWr { wr_id: 2, sge: &[arena.sge(0..8)] }])?;
    let write = SendOp::RdmaWrite { remote_addr: arena.addr(), rkey: arena.rkey() };
    let read = SendOp::RdmaRead { remote_addr: arena.addr(), rkey: arena.rkey() };
    let sge = [arena.sge(16..24)];
    post_send(
        &mut a,
        &[signalled(1, SendOp::Send, &sge), signalled(2, write, &sge), signalled(3, read, &sge)],
    )?;
    for (wr_id, opcode) in [(1, WcOpcode::SEND), (2, WcOpcode::RDMA_WRITE), (3, WcOpcode::RDMA_READ)] {
        wait_for(&mut a_cq, wr_id, opcode)?;
    }
    wait_for(&mut b_cq, 2, WcOpcode::RECV)?;
    assert_eq!(b.state()?, QpState::RTR);
    Ok(())
}

/// Checks that no completion arrives within a time that suffices for many messages.
pub(super) fn stays_empty<P: Provider>(cq: &mut Cq<P>) -> CaseResult {
    let deadline = Instant::now() + Duration::from_millis(30);
    while Instant::now() < deadline {
        let mut completions = cq.poll();
        if let Some(mut completion) = completions.next() {
            return fail(format_args!("{:?} was not expected", completion.to_wc()));
        }
        drop(completions);
        std::thread::yield_now();
    }
    Ok(())
}

pub(super) fn drain<P: Provider>(qp: Qp<Rts, P>) -> CaseResult<Qp<verbs::state::Sqd, P>> {
    needs_sqd()?;
    let qp = qp.to_sqd(false)?;
    eventually("the send queue is drained", || qp.is_drained().unwrap_or(false))?;
    Ok(qp)
}

fn sends_wait_while_the_send_queue_is_drained<P: Provider>(context: &Context<P>) -> CaseResult {
    let Pair { mut a, mut b, pd, .. } = Pair::new(context, &Shape::default())?;
    let arena = Arena::new(&pd, 64)?;
    let mut drained = drain(a.qp)?;
    for wr_id in 0..4 {
        post_recv(&mut b.qp, &[RecvWr { wr_id, sge: &[arena.sge(0..8)] }])?;
        post_send(&mut drained, &[signalled(wr_id, SendOp::Send, &[arena.sge(8..16)])])?;
    }
    stays_empty(&mut a.cq)?;
    assert!(is_empty(&mut b.cq));
    assert_eq!(drained.state()?, QpState::SQD);
    a.qp = drained.resume()?;
    for wr_id in 0..4 {
        wait_for(&mut a.cq, wr_id, WcOpcode::SEND)?;
        wait_for(&mut b.cq, wr_id, WcOpcode::RECV)?;
    }
    assert_eq!(a.qp.state()?, QpState::RTS);
    Ok(())
}

fn a_queue_that_drains_under_load_loses_nothing<P: Provider>(context: &Context<P>) -> CaseResult {
    let shape = Shape { cqe: 256, ..Shape::default() };
    let Pair { mut a, mut b, pd, .. } = Pair::new(context, &shape)?;
    let (from, into) = (Arena::new(&pd, 1 << 16)?, Arena::new(&pd, 1 << 16)?);
    for round in 0..10 {
        for wr_id in 0..16 {
            post_recv(&mut b.qp, &[RecvWr { wr_id, sge: &[into.sge(0..1 << 16)] }])?;
            post_send(&mut a.qp, &[signalled(wr_id, SendOp::Send, &[from.sge(0..1 << 16)])])?;
        }
        let drained = drain(a.qp)?;
        // Requests that had started have ended: as many messages have arrived as were acknowledged.
        let ended = wait_all(&mut a.cq);
        a.qp = drained.resume()?;
        let rest = wait(&mut a.cq, 16 - ended.len())?;
        let ids: Vec<_> = ended.iter().chain(&rest).map(|wc| (wc.wr_id, wc.status)).collect();
        let all: Vec<_> = (0..16).map(|wr_id| (wr_id, WcStatus::SUCCESS)).collect();
        assert_eq!(ids, all, "round {round}");
        let arrived: Vec<_> = wait(&mut b.cq, 16)?.iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(arrived, all, "round {round}");
    }
    Ok(())
}

/// Polls all available completions.
fn wait_all<P: Provider>(cq: &mut Cq<P>) -> Vec<verbs::Wc> {
    let mut wcs = vec![verbs::Wc::default(); 64];
    let count = cq.poll_into(&mut wcs);
    wcs.truncate(count);
    wcs
}

fn messages_arrive_while_the_send_queue_is_drained<P: Provider>(context: &Context<P>) -> CaseResult {
    let Pair { a, mut b, pd, .. } = Pair::new(context, &Shape::default())?;
    let arena = Arena::new(&pd, 64)?;
    let (mut a_cq, mut drained) = (a.cq, drain(a.qp)?);
    post_recv(&mut drained, &[RecvWr { wr_id: 2, sge: &[arena.sge(0..8)] }])?;
    let (remote_addr, rkey) = (arena.addr(), arena.rkey());
    let ops = [
        (SendOp::Send, WcOpcode::SEND),
        (SendOp::RdmaWrite { remote_addr, rkey }, WcOpcode::RDMA_WRITE),
        (SendOp::RdmaRead { remote_addr, rkey }, WcOpcode::RDMA_READ),
        (SendOp::AtomicFetchAndAdd { remote_addr, rkey, add: 1 }, WcOpcode::FETCH_ADD),
    ];
    for (op, opcode) in ops {
        post_send(&mut b.qp, &[signalled(1, op, &[arena.sge(8..16)])])?;
        wait_for(&mut b.cq, 1, opcode)?;
    }
    wait_for(&mut a_cq, 2, WcOpcode::RECV)?;
    Ok(())
}

fn a_drained_queue_pair_changes_its_path<P: Provider>(context: &Context<P>) -> CaseResult {
    let Pair { mut a, mut b, pd, .. } = Pair::new(context, &Shape::default())?;
    let arena = Arena::new(&pd, 16)?;
    let mut qp = a.qp;
    for traffic_class in [0, 8, 0x20] {
        let mut ah_attr = path(&context.find_gid(PORT)?);
        if let Some(grh) = &mut ah_attr.grh {
            (grh.traffic_class, grh.hop_limit) = (traffic_class, 17);
        }
        let mut drained = drain(qp)?;
        let attr = QpAttr {
            ah_attr,
            timeout: 11,
            retry_cnt: 5,
            rnr_retry: 4,
            max_rd_atomic: 2,
            ..QpAttr::default()
        };
        let mask = QpAttrMask::AV
            | QpAttrMask::TIMEOUT
            | QpAttrMask::RETRY_CNT
            | QpAttrMask::RNR_RETRY
            | QpAttrMask::MAX_QP_RD_ATOMIC;
        drained.modify(&attr, mask)?;
        let (queried, _) = drained.query(mask)?;
        // The kernel replaces the hop limit with the route's.
        let hop_limit = if is_rxe()? { 64 } else { 17 };
        let grh = queried.ah_attr.grh.map(|grh| (grh.traffic_class, grh.hop_limit));
        assert_eq!(grh, Some((traffic_class, hop_limit)));
        assert_eq!(
            (queried.timeout, queried.retry_cnt, queried.rnr_retry, queried.max_rd_atomic),
            (11, 5, 4, 2)
        );
        qp = drained.resume()?;
        post_recv(&mut b.qp, &[RecvWr { wr_id: 2, sge: &[arena.sge(0..8)] }])?;
        post_send(&mut qp, &[signalled(1, SendOp::Send, &[arena.sge(8..16)])])?;
        wait_for(&mut a.cq, 1, WcOpcode::SEND)?;
        wait_for(&mut b.cq, 2, WcOpcode::RECV)?;
    }
    Ok(())
}

fn sends_that_wait_in_sqd_are_flushed_in_the_error_state<P: Provider>(context: &Context<P>) -> CaseResult {
    let Pair { mut a, pd, .. } = Pair::new(context, &Shape::default())?;
    let arena = Arena::new(&pd, 16)?;
    let mut drained = drain(a.qp)?;
    let sge = [arena.sge(0..8)];
    for wr_id in 0..3 {
        let flags = if wr_id == 1 { SendFlags::empty() } else { SendFlags::SIGNALED };
        post_send(&mut drained, &[SendWr { wr_id, op: SendOp::Send, sge: &sge, flags }])?;
    }
    let qp = drained.to_error()?;
    for wr_id in 0..3 {
        wait_status(&mut a.cq, wr_id, WcStatus::WR_FLUSH_ERR)?;
    }
    in_error(&qp)?;
    Ok(())
}

fn sends_that_wait_in_sqd_are_forgotten_by_a_reset<P: Provider>(context: &Context<P>) -> CaseResult {
    let shape = Shape::default();
    let Pair { mut a, mut b, pd, .. } = Pair::new(context, &shape)?;
    let arena = Arena::new(&pd, 16)?;
    let mut drained = drain(a.qp)?;
    post_send(&mut drained, &[signalled(1, SendOp::SendWithImm { imm_data: 1 }, &[arena.sge(0..8)])])?;
    let a_reset = drained.to_reset()?;
    let b_reset = b.qp.to_reset()?;
    let (to_a, to_b) = (Remote::from_qp(&a_reset), Remote::from_qp(&b_reset));
    a.qp = connect(context, a_reset, &shape, to_b)?;
    b.qp = connect(context, b_reset, &shape, to_a)?;
    post_recv(&mut b.qp, &[RecvWr { wr_id: 2, sge: &[arena.sge(0..8)] }])?;
    post_send(&mut a.qp, &[signalled(3, SendOp::SendWithImm { imm_data: 3 }, &[arena.sge(0..8)])])?;
    wait_for(&mut a.cq, 3, WcOpcode::SEND)?;
    assert_eq!(wait_for(&mut b.cq, 2, WcOpcode::RECV)?.imm_data, 3);
    Ok(())
}

/// Makes the send queue of `a` fail in the middle of sends. Messages to `a` still complete. After
/// recovering, `a` sends again.
fn fails_and_recovers<P: Provider>(context: &Context<P>, qp_type: QpType) -> CaseResult {
    if is_rxe()? {
        return skip("rxe has no SQE: a failed send moves the queue pair to the error state");
    }
    let mut pair = Pair::new(context, &Shape::for_type(qp_type))?;
    let arena = Arena::new(&pair.pd, 256)?;
    let ah = pair.pd.create_ah(&path(&context.find_gid(PORT)?))?;
    let (a_num, b_num) = (pair.a.qp.qp_num(), pair.b.qp.qp_num());
    let to = |qp_num| match qp_type {
        QpType::UD => SendOp::UdSend { to: ah.to(qp_num, QKEY) },
        _ => SendOp::Send,
    };
    let (good, wrong) = (arena.sge(0..8), verbs::Sge { lkey: !arena.lkey(), ..arena.sge(0..8) });
    post_recv(&mut pair.a.qp, &[RecvWr { wr_id: 50, sge: &[arena.sge(64..128)] }])?;
    for wr_id in [60, 61] {
        post_recv(&mut pair.b.qp, &[RecvWr { wr_id, sge: &[arena.sge(128..192)] }])?;
    }
    let sges = [[good], [wrong], [good], [good]];
    let batch: Vec<_> = (1..).zip(&sges).map(|(id, sge)| signalled(id, to(b_num), sge)).collect();
    post_send(&mut pair.a.qp, &batch)?;
    let ended: Vec<_> = wait(&mut pair.a.cq, 4)?.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    let (fine, flushed) = (WcStatus::SUCCESS, WcStatus::WR_FLUSH_ERR);
    assert_eq!(ended, [(1, fine), (2, WcStatus::LOC_PROT_ERR), (3, flushed), (4, flushed)]);
    assert_eq!(pair.a.qp.state()?, QpState::SQE);
    wait_for(&mut pair.b.cq, 60, WcOpcode::RECV)?;
    // The receive queue still works.
    post_send(&mut pair.b.qp, &[signalled(5, to(a_num), &[good])])?;
    wait_for(&mut pair.b.cq, 5, WcOpcode::SEND)?;
    wait_for(&mut pair.a.cq, 50, WcOpcode::RECV)?;
    assert_eq!(pair.b.qp.state()?, QpState::RTS);
    pair.a.qp.recover_sq()?;
    assert_eq!(pair.a.qp.state()?, QpState::RTS);
    post_send(&mut pair.a.qp, &[signalled(6, to(b_num), &[good])])?;
    wait_for(&mut pair.a.cq, 6, WcOpcode::SEND)?;
    wait_for(&mut pair.b.cq, 61, WcOpcode::RECV)?;
    Ok(())
}

fn a_failed_datagram_stops_sends_and_not_receives<P: Provider>(context: &Context<P>) -> CaseResult {
    fails_and_recovers(context, QpType::UD)
}

fn a_failed_unreliable_send_stops_sends_and_not_receives<P: Provider>(context: &Context<P>) -> CaseResult {
    fails_and_recovers(context, QpType::UC)
}

fn sends_posted_in_sqe_are_flushed<P: Provider>(context: &Context<P>) -> CaseResult {
    for qp_type in [QpType::UC, QpType::UD] {
        let mut free = Free::in_state(context, qp_type, QpState::SQE)?;
        let arena = Arena::new(&free.pd, 8)?;
        let ah = free.pd.create_ah(&free.attr.ah_attr)?;
        for wr_id in 1..4 {
            let op = send(&ah, &free.qp);
            let wr = SendWr { wr_id, op, sge: &[arena.sge(0..8)], flags: SendFlags::empty() };
            post_send(&mut free.qp, &[wr])?;
            wait_status(&mut free.cq, wr_id, WcStatus::WR_FLUSH_ERR)?;
        }
        free.is_in(QpState::SQE)?;
    }
    Ok(())
}

fn a_send_queue_that_did_not_fail_needs_no_recovery<P: Provider>(context: &Context<P>) -> CaseResult {
    for qp_type in [QpType::RC, QpType::UC, QpType::UD] {
        let mut free = Free::in_state(context, qp_type, QpState::RTS)?;
        free.qp.recover_sq()?;
        free.is_in(QpState::RTS)?;
        for state in [QpState::SQD, QpState::ERR] {
            if state == QpState::SQD && !has_sqd()? {
                continue;
            }
            let mut free = Free::in_state(context, qp_type, state)?;
            let error = free.qp.recover_sq().unwrap_err();
            let cause = Cause::IllegalTransition { qp_type, from: state, to: QpState::RTS };
            assert_eq!((error.errno, error.cause), (Errno::INVAL, cause));
            free.is_in(state)?;
        }
    }
    Ok(())
}

fn a_failed_reliable_connection_does_not_recover_without_a_reset<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    let shape = Shape::default();
    let Pair { mut a, mut b, pd, .. } = Pair::new(context, &shape)?;
    let arena = Arena::new(&pd, 16)?;
    let wrong = verbs::Sge { lkey: !arena.lkey(), ..arena.sge(0..8) };
    post_send(&mut a.qp, &[signalled(1, SendOp::Send, &[wrong])])?;
    let wc = wait_one(&mut a.cq)?;
    assert!(is_local_key_error(wc.status)?, "{wc:?}");
    in_error(&a.qp)?;
    let error = a.qp.recover_sq().unwrap_err();
    assert!(matches!(error.cause, Cause::IllegalTransition { from: QpState::ERR, .. }), "{error}");
    let (a_reset, b_reset) = (a.qp.to_reset()?, b.qp.to_reset()?);
    let (to_a, to_b) = (Remote::from_qp(&a_reset), Remote::from_qp(&b_reset));
    a.qp = connect(context, a_reset, &shape, to_b)?;
    b.qp = connect(context, b_reset, &shape, to_a)?;
    post_recv(&mut b.qp, &[RecvWr { wr_id: 2, sge: &[arena.sge(0..8)] }])?;
    post_send(&mut a.qp, &[signalled(3, SendOp::Send, &[arena.sge(8..16)])])?;
    wait_for(&mut a.cq, 3, WcOpcode::SEND)?;
    wait_for(&mut b.cq, 2, WcOpcode::RECV)?;
    Ok(())
}

/// A peer that was not reset keeps sending, but nothing arrives on the new connection.
fn a_reset_queue_pair_hears_nothing_of_its_former_connection<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    if rxe_ignores_rnr_timer()? {
        return skip("rxe of this kernel repeats at once, and keeps the processor from all programs");
    }
    let shape = Shape::default();
    let Pair { mut a, mut b, pd, .. } = Pair::new(context, &shape)?;
    let third_cq = context.create_cq(&CqInit::new(16))?;
    let arena = Arena::new(&pd, 64)?;
    // The receiver is not ready, so the message is sent again and again.
    post_send(&mut a.qp, &[signalled(1, SendOp::SendWithImm { imm_data: 1 }, &[arena.sge(0..8)])])?;
    let b_reset = b.qp.to_reset()?;
    let c = create_qp(&pd, &third_cq, &shape)?;
    let (to_b, to_c) = (Remote::from_qp(&b_reset), Remote::from_qp(&c));
    b.qp = connect(context, b_reset, &shape, to_c)?;
    let mut c = connect(context, c, &shape, to_b)?;
    post_recv(&mut b.qp, &[RecvWr { wr_id: 2, sge: &[arena.sge(8..16)] }])?;
    wait_status(&mut a.cq, 1, WcStatus::RETRY_EXC_ERR)?;
    assert!(is_empty(&mut b.cq), "a packet of the former peer arrived");
    post_send(&mut c, &[signalled(3, SendOp::SendWithImm { imm_data: 3 }, &[arena.sge(0..8)])])?;
    assert_eq!(wait_for(&mut b.cq, 2, WcOpcode::RECV)?.imm_data, 3);
    Ok(())
}

fn a_reset_forgets_receives<P: Provider>(context: &Context<P>) -> CaseResult {
    let shape = Shape::default();
    let Pair { mut a, mut b, pd, .. } = Pair::new(context, &shape)?;
    let arena = Arena::new(&pd, 64)?;
    for wr_id in 10..14 {
        post_recv(&mut b.qp, &[RecvWr { wr_id, sge: &[arena.sge(0..8)] }])?;
    }
    let (a_reset, b_reset) = (a.qp.to_reset()?, b.qp.to_reset()?);
    assert!(is_empty(&mut b.cq), "a reset completes nothing");
    let (to_a, to_b) = (Remote::from_qp(&a_reset), Remote::from_qp(&b_reset));
    a.qp = connect(context, a_reset, &shape, to_b)?;
    b.qp = connect(context, b_reset, &shape, to_a)?;
    post_recv(&mut b.qp, &[RecvWr { wr_id: 20, sge: &[arena.sge(0..8)] }])?;
    post_send(&mut a.qp, &[signalled(1, SendOp::Send, &[arena.sge(8..16)])])?;
    wait_for(&mut a.cq, 1, WcOpcode::SEND)?;
    wait_for(&mut b.cq, 20, WcOpcode::RECV)?;
    Ok(())
}

fn a_queue_pair_is_used_again_and_again<P: Provider>(context: &Context<P>) -> CaseResult {
    let shape = Shape::default();
    let Pair { mut a, mut b, pd, .. } = Pair::new(context, &shape)?;
    let arena = Arena::new(&pd, 64)?;
    let (a_num, cap) = (a.qp.qp_num(), a.qp.cap());
    for round in 0..30 {
        post_recv(&mut b.qp, &[RecvWr { wr_id: round, sge: &[arena.sge(0..8)] }])?;
        let op = SendOp::SendWithImm { imm_data: round as u32 };
        post_send(&mut a.qp, &[signalled(round, op, &[arena.sge(8..16)])])?;
        wait_for(&mut a.cq, round, WcOpcode::SEND)?;
        assert_eq!(u64::from(wait_for(&mut b.cq, round, WcOpcode::RECV)?.imm_data), round);
        let (a_reset, b_reset) = match round % 3 {
            0 => (a.qp.to_reset()?, b.qp.to_reset()?),
            1 => (a.qp.to_error()?.to_reset()?, b.qp.to_error()?.to_reset()?),
            _ if has_sqd()? => (drain(a.qp)?.to_reset()?, drain(b.qp)?.to_reset()?),
            _ => (a.qp.to_reset()?, b.qp.to_error()?.to_reset()?),
        };
        assert_eq!((a_reset.qp_num(), a_reset.cap()), (a_num, cap));
        let (to_a, to_b) = (Remote::from_qp(&a_reset), Remote::from_qp(&b_reset));
        a.qp = connect(context, a_reset, &shape, to_b)?;
        b.qp = connect(context, b_reset, &shape, to_a)?;
    }
    Ok(())
}

fn the_error_state_may_be_entered_from_every_state<P: Provider>(context: &Context<P>) -> CaseResult {
    use QpState as S;
    for qp_type in [QpType::RC, QpType::UC, QpType::UD] {
        for state in [S::INIT, S::RTR, S::RTS, S::SQD, S::ERR] {
            if state == S::SQD && !has_sqd()? {
                continue;
            }
            let mut free = Free::in_state(context, qp_type, state)?;
            let posts = state != S::ERR;
            if posts {
                post_recv(&mut free.qp, &[RecvWr { wr_id: 1, sge: &[] }])?;
            }
            free.modify(state, S::ERR, QpAttrMask::STATE)?;
            if posts {
                wait_status(&mut free.cq, 1, WcStatus::WR_FLUSH_ERR)?;
            }
            free.is_in(S::ERR)?;
            // Only a reset leaves this state.
            for to in [S::INIT, S::RTR, S::RTS, S::SQD, S::SQE] {
                assert_eq!(
                    free.modify(S::ERR, to, QpAttrMask::STATE).map_err(|e| e.errno),
                    Err(Errno::INVAL)
                );
            }
            free.modify(S::ERR, S::RESET, QpAttrMask::STATE)?;
            free.is_in(S::RESET)?;
        }
    }
    Ok(())
}
