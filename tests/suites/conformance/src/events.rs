//! Completion channels and asynchronous events.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use verbs::state::{Rtr, Rts};
use verbs::{
    AsyncEvent, AsyncEventType, AsyncEvents, CompChannel, Context, Cq, CqId, CqInit, Element, Errno,
    GidEntry, PortState, Provider, Qp, QpAttr, QpAttrMask, QpState, RecvWr, RtsAttr, SendFlags, SendOp,
    SendWr, WcOpcode, WcStatus,
};
use verbs_fixtures::fabric::{
    Arena, Link, PATIENCE, PORT, Pair, Remote, Shape, connect, create_qp, eventually, has_sqd, init_attr,
    is_ethernet, is_rxe, is_soft, needs_sqd, open, post_recv, post_send, rtr_attr, wait_for,
    wait_remote_access_error, wait_status,
};
use verbs_fixtures::{both, both_with_link};
use verbs_harness::runner::{Case, CaseResult, fail, skip};
use verbs_harness::sandbox::ip;

use super::SUITE;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = both!(
        SUITE,
        one_event_for_each_time_that_was_asked,
        a_solicited_event_comes_for_solicited_messages_only,
        a_completion_queue_that_overflows_is_told,
        queues_of_one_channel_are_told_apart,
        the_first_packet_before_rts_is_told_once,
        a_queue_pair_in_rts_is_established_without_an_event,
        a_request_that_violates_rights_is_told_to_the_responder,
        an_invalid_request_is_told_to_the_responder,
        a_drained_send_queue_is_told_where_that_was_asked,
        events_of_a_closed_queue_pair_are_dropped,
        waiting_for_an_event_ends_with_the_time,
        events_are_waited_for_by_another_thread,
        events_go_to_the_open_that_made_the_object,
    );
    cases.extend(both_with_link!(
        SUITE,
        a_link_that_goes_down_and_up_is_told,
        each_open_of_a_device_is_told_of_its_port,
        a_message_outlasts_a_link_that_is_down,
        a_port_that_loses_its_address_loses_its_gid,
    ));
    cases
}

const EVENTS: Shape = Shape { events: true, ..DEFAULT };
const DEFAULT: Shape = Shape {
    qp_type: verbs::QpType::RC,
    cap: verbs::QpCap {
        max_send_wr: 16,
        max_recv_wr: 16,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    },
    cqe: 64,
    sq_sig_all: false,
    events: false,
    path_mtu: verbs::Mtu::MTU_1024,
    rts: RtsAttr { sq_psn: None, timeout: 10, retry_cnt: 3, rnr_retry: 7, max_rd_atomic: 1 },
};

fn channel<P: Provider>(end: &verbs_fixtures::fabric::End<P>) -> CaseResult<&CompChannel> {
    end.channel.as_ref().map_or_else(|| fail("no channel"), Ok)
}

/// Waits for the next event on a channel and returns the queue that raised it.
fn wait_for_event(channel: &CompChannel) -> CaseResult<CqId> {
    match channel.wait(Some(PATIENCE))? {
        Some(event) => Ok(event.cq),
        None => fail(format_args!("no event after {PATIENCE:?}")),
    }
}

/// Sends 8 bytes from a to b and waits for both completions.
fn send_one<P: Provider>(pair: &mut Pair<P>, arena: &Arena<P>, flags: SendFlags) -> CaseResult {
    post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[arena.sge(0..8)] }])?;
    let wr =
        SendWr { wr_id: 1, op: SendOp::Send, sge: &[arena.sge(8..16)], flags: flags | SendFlags::SIGNALED };
    post_send(&mut pair.a.qp, &[wr])?;
    wait_for(&mut pair.a.cq, 1, WcOpcode::SEND)?;
    wait_for(&mut pair.b.cq, 2, WcOpcode::RECV)?;
    Ok(())
}

fn one_event_for_each_time_that_was_asked<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &EVENTS)?;
    let arena = Arena::new(&pair.pd, 16)?;
    send_one(&mut pair, &arena, SendFlags::SOLICITED)?;
    assert_eq!(channel(&pair.b)?.next_event()?, None, "none was asked for");
    for round in 0..3 {
        pair.b.cq.req_notify(false)?;
        send_one(&mut pair, &arena, SendFlags::empty())?;
        assert_eq!(wait_for_event(channel(&pair.b)?)?, pair.b.cq.id(), "round {round}");
        // Arming covers only one event.
        send_one(&mut pair, &arena, SendFlags::empty())?;
        assert_eq!(channel(&pair.b)?.next_event()?, None, "round {round}");
    }
    Ok(())
}

fn a_solicited_event_comes_for_solicited_messages_only<P: Provider>(context: &Context<P>) -> CaseResult {
    let mut pair = Pair::new(context, &EVENTS)?;
    let arena = Arena::new(&pair.pd, 16)?;
    pair.b.cq.req_notify(true)?;
    send_one(&mut pair, &arena, SendFlags::empty())?;
    assert_eq!(channel(&pair.b)?.next_event()?, None, "an unsolicited message raised an event");
    send_one(&mut pair, &arena, SendFlags::SOLICITED)?;
    assert_eq!(wait_for_event(channel(&pair.b)?)?, pair.b.cq.id());
    Ok(())
}

fn a_completion_queue_that_overflows_is_told<P: Provider>(context: &Context<P>) -> CaseResult {
    let events = context.async_events()?;
    let mut pair = Pair::new(context, &Shape { cqe: 1, cap: Shape::default().cap, ..DEFAULT })?;
    let arena = Arena::new(&pair.pd, 16)?;
    let (recv, send) = ([arena.sge(0..8)], [arena.sge(8..16)]);
    let count = u64::from(pair.b.cq.cqe()) * 4 + 4;
    let mut sent = 0;
    for wr_id in 0..count {
        // An overflow loses completions, so the sender may get a wrong status or no completion.
        if post_recv(&mut pair.b.qp, &[RecvWr { wr_id, sge: &recv }]).is_err() {
            break;
        }
        let wr = SendWr { wr_id, op: SendOp::Send, sge: &send, flags: SendFlags::empty() };
        if post_send(&mut pair.a.qp, &[wr]).is_err() {
            break;
        }
        sent = wr_id;
    }
    let mut seen = Vec::new();
    eventually("the queue's event", || {
        seen.extend(events.next_event().ok().flatten());
        seen.iter().any(|event| event.event_type == AsyncEventType::CQ_ERR)
    })
    .map_err(|_| {
        verbs_harness::runner::Stop::Failed(format!("no CQ_ERR after {sent} messages, only {seen:?}"))
    })?;
    let of_queue: Vec<_> = seen.iter().filter(|e| e.event_type == AsyncEventType::CQ_ERR).collect();
    assert_eq!(of_queue[0].element, Element::Cq(pair.b.cq.id()), "{seen:?}");
    Ok(())
}

fn queues_of_one_channel_are_told_apart<P: Provider>(context: &Context<P>) -> CaseResult {
    let channel = context.create_comp_channel()?;
    let mut pair = Pair::new(context, &DEFAULT)?;
    let arena = Arena::new(&pair.pd, 16)?;
    let init = CqInit { channel: Some(&channel), ..CqInit::new(16) };
    let mut cqs = [context.create_cq(&init)?, context.create_cq(&init)?];
    for which in [0, 1, 1, 0] {
        let qp = create_qp(&pair.pd, &cqs[which], &DEFAULT)?;
        let own = Remote::from_qp(&qp);
        let mut qp = connect(context, qp, &DEFAULT, own)?;
        for cq in &mut cqs {
            cq.req_notify(false)?;
        }
        post_recv(&mut qp, &[RecvWr { wr_id: 2, sge: &[arena.sge(0..8)] }])?;
        let wr = SendWr { wr_id: 1, op: SendOp::Send, sge: &[arena.sge(8..16)], flags: SendFlags::SIGNALED };
        post_send(&mut qp, &[wr])?;
        assert_eq!(wait_for_event(&channel)?, cqs[which].id());
        verbs_fixtures::fabric::wait(&mut cqs[which], 2)?;
        // If the queue was armed late, the second completion may cause another event. The other
        // queue causes none.
        while let Some(event) = channel.next_event()? {
            assert_eq!(event.cq, cqs[which].id());
        }
    }
    pair.a.cq.req_notify(false)?;
    Ok(())
}

/// Waits for the next event of this kind and skips the events before it.
fn event_of(events: &AsyncEvents, event_type: AsyncEventType) -> CaseResult<AsyncEvent> {
    let deadline = Instant::now() + PATIENCE;
    let mut seen = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match events.wait(Some(left))? {
            Some(event) if event.event_type == event_type => return Ok(event),
            Some(event) => seen.push(event),
            None => return fail(format_args!("no {event_type} after {PATIENCE:?}, only {seen:?}")),
        }
    }
}

fn expect(events: &AsyncEvents, element: Element, event_type: AsyncEventType) -> CaseResult {
    assert_eq!(event_of(events, event_type)?.element, element, "{event_type}");
    Ok(())
}

fn a_link_that_goes_down_and_up_is_told<P: Provider>(context: &Context<P>, link: Link) -> CaseResult {
    let events = context.async_events()?;
    for _ in 0..2 {
        link.set("down")?;
        let told = expect(&events, Element::Port(PORT), AsyncEventType::PORT_ERR);
        let down = context.query_port(PORT)?.state;
        // Restores the link even after a failure, because other cases need it.
        link.set("up")?;
        told?;
        assert_ne!(down, PortState::ACTIVE);
        expect(&events, Element::Port(PORT), AsyncEventType::PORT_ACTIVE)?;
        eventually("the port is active", || {
            context.query_port(PORT).is_ok_and(|port| port.state == PortState::ACTIVE)
        })?;
        gid_is_back(context)?;
    }
    Ok(())
}

fn each_open_of_a_device_is_told_of_its_port<P: Provider>(context: &Context<P>, link: Link) -> CaseResult {
    let other = open()?;
    let (one, two) = (context.async_events()?, other.async_events()?);
    link.set("down")?;
    let told = [&one, &two].map(|events| expect(events, Element::Port(PORT), AsyncEventType::PORT_ERR));
    link.set("up")?;
    for told in told {
        told?;
    }
    for events in [&one, &two] {
        expect(events, Element::Port(PORT), AsyncEventType::PORT_ACTIVE)?;
    }
    gid_is_back(context)
}

/// Waits until the port again has the GID that the cases use. On Ethernet, the GID belongs to an
/// address. The kernel removes this GID while the link is down.
fn gid_is_back<P: Provider>(context: &Context<P>) -> CaseResult {
    let of_address = is_ethernet(context)?;
    eventually("the port's GID is back", || {
        context.find_gid(PORT).is_ok_and(|gid| !of_address || gid.gid.to_ipv4().is_some())
    })
}

/// A message posted while the link is down arrives once it is up.
fn a_message_outlasts_a_link_that_is_down<P: Provider>(context: &Context<P>, link: Link) -> CaseResult {
    if is_rxe()? {
        return skip("rxe flushes the source GID of a link that is down, and with it the path");
    }
    // The retries last far longer than `ip` needs: (4 × 7 - 1) × 268 ms.
    let rts = RtsAttr { timeout: 16, retry_cnt: 7, ..DEFAULT.rts };
    let mut pair = Pair::new(context, &Shape { rts, ..DEFAULT })?;
    let arena = Arena::new(&pair.pd, 16)?;
    link.set("down")?;
    post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[arena.sge(0..8)] }])?;
    let wr = SendWr { wr_id: 1, op: SendOp::Send, sge: &[arena.sge(8..16)], flags: SendFlags::SIGNALED };
    let posted = post_send(&mut pair.a.qp, &[wr]);
    link.set("up")?;
    posted?;
    wait_for(&mut pair.a.cq, 1, WcOpcode::SEND)?;
    wait_for(&mut pair.b.cq, 2, WcOpcode::RECV)?;
    Ok(())
}

fn a_port_that_loses_its_address_loses_its_gid<P: Provider>(context: &Context<P>, link: Link) -> CaseResult {
    let Link::Interface(name) = link else { return skip("the port has no network interface") };
    if is_soft()? { its_only_address(context, name) } else { a_second_address(context, name) }
}

/// Adds and removes a second address. Linux keeps the port's other GIDs and its state.
fn a_second_address<P: Provider>(context: &Context<P>, name: &str) -> CaseResult {
    const ADDRESS: &str = "10.77.0.1/32";
    let is_there = |table: &[GidEntry]| {
        table.iter().any(|entry| entry.gid.to_ipv4() == Some(Ipv4Addr::new(10, 77, 0, 1)))
    };
    let events = context.async_events()?;
    let before = context.gid_table()?;
    assert!(!is_there(&before));
    ip(&["addr", "add", ADDRESS, "dev", name])?;
    let told = expect(&events, Element::Port(PORT), AsyncEventType::GID_CHANGE);
    let found =
        eventually("the address has a GID", || context.gid_table().is_ok_and(|table| is_there(&table)));
    // Removes the address even after a failure, because the other form of the case adds it again.
    ip(&["addr", "del", ADDRESS, "dev", name])?;
    told.and(found)?;
    expect(&events, Element::Port(PORT), AsyncEventType::GID_CHANGE)?;
    eventually("the GID goes", || context.gid_table().is_ok_and(|table| !is_there(&table)))?;
    assert_eq!(context.gid_table()?, before);
    assert_eq!(context.query_port(PORT)?.state, PortState::ACTIVE);
    Ok(())
}

/// A soft device's port has the GID for its interface's address. The port is active while there is
/// an address.
fn its_only_address<P: Provider>(context: &Context<P>, name: &str) -> CaseResult {
    let events = context.async_events()?;
    let before = context.gid_table()?;
    ip(&["addr", "del", "127.0.0.1/8", "dev", name])?;
    expect(&events, Element::Port(PORT), AsyncEventType::GID_CHANGE)?;
    expect(&events, Element::Port(PORT), AsyncEventType::PORT_ERR)?;
    assert_eq!(context.gid_table()?, []);
    assert_eq!(context.find_gid(PORT).unwrap_err().errno, Errno::NODATA);
    assert_ne!(context.query_port(PORT)?.state, PortState::ACTIVE);
    ip(&["addr", "add", "127.0.0.1/8", "dev", name])?;
    expect(&events, Element::Port(PORT), AsyncEventType::GID_CHANGE)?;
    expect(&events, Element::Port(PORT), AsyncEventType::PORT_ACTIVE)?;
    assert_eq!(context.gid_table()?, before);
    Ok(())
}

/// A queue pair and its completion queue.
type InState<S, P> = (Qp<S, P>, Cq<P>);

/// Returns a queue pair in RTR and its peer in RTS.
fn half_open<P: Provider>(context: &Context<P>) -> CaseResult<(InState<Rtr, P>, InState<Rts, P>)> {
    let pd = context.alloc_pd()?;
    let (a_cq, b_cq) = (context.create_cq(&CqInit::new(16))?, context.create_cq(&CqInit::new(16))?);
    let (a, b) = (create_qp(&pd, &a_cq, &DEFAULT)?, create_qp(&pd, &b_cq, &DEFAULT)?);
    let (to_a, to_b) = (Remote::from_qp(&a), Remote::from_qp(&b));
    let a = a.to_init(&init_attr())?.to_rtr(&rtr_attr(context, &DEFAULT, to_b)?)?;
    Ok(((a, a_cq), (connect(context, b, &DEFAULT, to_a)?, b_cq)))
}

fn the_first_packet_before_rts_is_told_once<P: Provider>(context: &Context<P>) -> CaseResult {
    if is_rxe()? {
        return skip("rxe raises no COMM_EST");
    }
    let events = context.async_events()?;
    let ((mut a, mut a_cq), (mut b, mut b_cq)) = half_open(context)?;
    for wr_id in 0..3 {
        post_recv(&mut a, &[RecvWr { wr_id, sge: &[] }])?;
        let wr = SendWr { wr_id, op: SendOp::Send, sge: &[], flags: SendFlags::SIGNALED };
        post_send(&mut b, &[wr])?;
        wait_for(&mut b_cq, wr_id, WcOpcode::SEND)?;
        wait_for(&mut a_cq, wr_id, WcOpcode::RECV)?;
    }
    expect(&events, Element::Qp(a.id()), AsyncEventType::COMM_EST)?;
    assert_eq!(events.next_event()?, None, "once for a connection");
    Ok(())
}

fn a_queue_pair_in_rts_is_established_without_an_event<P: Provider>(context: &Context<P>) -> CaseResult {
    let events = context.async_events()?;
    let mut pair = Pair::new(context, &DEFAULT)?;
    let arena = Arena::new(&pair.pd, 16)?;
    send_one(&mut pair, &arena, SendFlags::empty())?;
    assert_eq!(events.next_event()?, None);
    Ok(())
}

/// Makes b reject a request from a that uses no receive, so that b gets no completion.
fn refused_request<P: Provider>(
    context: &Context<P>,
    op: impl FnOnce(&Arena<P>) -> SendOp<'static>,
) -> CaseResult<(AsyncEvents, Pair<P>)> {
    let events = context.async_events()?;
    let mut pair = Pair::new(context, &DEFAULT)?;
    let arena = Arena::new(&pair.pd, 16)?;
    let sge = [arena.sge(0..8)];
    let wr = SendWr { wr_id: 1, op: op(&arena), sge: &sge, flags: SendFlags::SIGNALED };
    post_send(&mut pair.a.qp, &[wr])?;
    wait_remote_access_error(&mut pair.a.cq, 1)?;
    Ok((events, pair))
}

fn a_request_that_violates_rights_is_told_to_the_responder<P: Provider>(context: &Context<P>) -> CaseResult {
    if is_rxe()? {
        return skip("rxe raises no QP_ACCESS_ERR");
    }
    let (events, pair) = refused_request(context, |arena| SendOp::RdmaWrite {
        remote_addr: arena.addr(),
        rkey: !arena.rkey(),
    })?;
    expect(&events, Element::Qp(pair.b.qp.id()), AsyncEventType::QP_ACCESS_ERR)?;
    assert_eq!(events.next_event()?, None, "the requester's completion told it");
    Ok(())
}

fn an_invalid_request_is_told_to_the_responder<P: Provider>(context: &Context<P>) -> CaseResult {
    if is_rxe()? {
        return skip("rxe raises no QP_REQ_ERR");
    }
    let events = context.async_events()?;
    let mut pair = Pair::new(context, &DEFAULT)?;
    let arena = Arena::new(&pair.pd, 16)?;
    // The responder accepts no outstanding reads, so any read is one too many (IBTA 9.7.4.1.5).
    needs_sqd()?;
    let mut drained = pair.b.qp.to_sqd(false)?;
    drained.modify(&QpAttr::default(), QpAttrMask::MAX_DEST_RD_ATOMIC)?;
    pair.b.qp = drained.resume()?;
    let op = SendOp::RdmaRead { remote_addr: arena.addr(), rkey: arena.rkey() };
    post_send(
        &mut pair.a.qp,
        &[SendWr { wr_id: 1, op, sge: &[arena.sge(0..8)], flags: SendFlags::SIGNALED }],
    )?;
    wait_status(&mut pair.a.cq, 1, WcStatus::REM_INV_REQ_ERR)?;
    expect(&events, Element::Qp(pair.b.qp.id()), AsyncEventType::QP_REQ_ERR)
}

fn a_drained_send_queue_is_told_where_that_was_asked<P: Provider>(context: &Context<P>) -> CaseResult {
    needs_sqd()?;
    let events = context.async_events()?;
    let Pair { mut a, mut b, pd, .. } = Pair::new(context, &DEFAULT)?;
    let arena = Arena::new(&pd, 16)?;
    let (into, from) = ([arena.sge(0..8)], [arena.sge(8..16)]);
    let mut told = 0;
    for (round, notify) in [(0, true), (1, false), (2, true)] {
        for wr_id in 0..4 {
            post_recv(&mut b.qp, &[RecvWr { wr_id, sge: &into }])?;
            let wr = SendWr { wr_id, op: SendOp::Send, sge: &from, flags: SendFlags::SIGNALED };
            post_send(&mut a.qp, &[wr])?;
        }
        let qp = a.qp.to_sqd(notify)?;
        // rxe raises the event even if the program did not request it.
        if notify || is_rxe()? {
            expect(&events, Element::Qp(qp.id()), AsyncEventType::SQ_DRAINED)?;
            told += 1;
        }
        eventually("the send queue is drained", || qp.is_drained().unwrap_or(false))?;
        assert_eq!(events.next_event()?, None, "round {round}");
        a.qp = qp.resume()?;
        verbs_fixtures::fabric::wait(&mut a.cq, 4)?;
        verbs_fixtures::fabric::wait(&mut b.cq, 4)?;
    }
    assert_eq!(told, if is_rxe()? { 3 } else { 2 });
    Ok(())
}

/// Makes the device raise one event for the pair and returns it: for a drained send queue or, on a
/// device that cannot drain, for a request that violates the responder's access rights.
fn raise<P: Provider>(pair: &mut Pair<P>) -> CaseResult<(Element, AsyncEventType)> {
    if has_sqd()? {
        let drained = QpAttr { qp_state: QpState::SQD, en_sqd_async_notify: true, ..QpAttr::default() };
        pair.a.qp.modify(&drained, QpAttrMask::STATE | QpAttrMask::EN_SQD_ASYNC_NOTIFY)?;
        let is_drained = || pair.a.qp.query(QpAttrMask::STATE).is_ok_and(|(attr, _)| !attr.sq_draining);
        eventually("the send queue is drained", is_drained)?;
        return Ok((Element::Qp(pair.a.qp.id()), AsyncEventType::SQ_DRAINED));
    }
    let arena = Arena::new(&pair.pd, 16)?;
    let op = SendOp::RdmaWrite { remote_addr: arena.addr(), rkey: !arena.rkey() };
    let wr = SendWr { wr_id: 1, op, sge: &[arena.sge(0..8)], flags: SendFlags::SIGNALED };
    post_send(&mut pair.a.qp, &[wr])?;
    wait_status(&mut pair.a.cq, 1, WcStatus::REM_ACCESS_ERR)?;
    Ok((Element::Qp(pair.b.qp.id()), AsyncEventType::QP_ACCESS_ERR))
}

fn events_of_a_closed_queue_pair_are_dropped<P: Provider>(context: &Context<P>) -> CaseResult {
    let events = context.async_events()?;
    let (mut first, mut second) = (Pair::new(context, &DEFAULT)?, Pair::new(context, &DEFAULT)?);
    raise(&mut first)?;
    let (element, event_type) = raise(&mut second)?;
    // The event may not have arrived yet, or may already be readable from the file.
    first.a.qp.close()?;
    first.b.qp.close()?;
    expect(&events, element, event_type)?;
    assert_eq!(events.next_event()?, None);
    Ok(())
}

fn waiting_for_an_event_ends_with_the_time<P: Provider>(context: &Context<P>) -> CaseResult {
    let events = context.async_events()?;
    let limit = Duration::from_millis(20);
    let start = Instant::now();
    assert_eq!(events.wait(Some(limit))?, None);
    assert!(start.elapsed() >= limit);
    assert_eq!(events.wait(Some(Duration::ZERO))?, None);
    assert_eq!(events.try_iter().count(), 0);
    Ok(())
}

fn events_are_waited_for_by_another_thread<P: Provider>(context: &Context<P>) -> CaseResult {
    let events = context.async_events()?;
    let mut pair = Pair::new(context, &DEFAULT)?;
    let (told, expected) = std::thread::scope(|scope| -> CaseResult<_> {
        let waiting = scope.spawn(|| events.wait(Some(PATIENCE)));
        let expected = raise(&mut pair)?;
        Ok((waiting.join().expect("the thread does not panic"), expected))
    })?;
    let event = told?.expect("the event within its time");
    assert_eq!((event.element, event.event_type), expected);
    Ok(())
}

/// Each context opened on a device gets only its own objects' events.
fn events_go_to_the_open_that_made_the_object<P: Provider>(context: &Context<P>) -> CaseResult {
    let other = open()?;
    let (ours, theirs) = (context.async_events()?, other.async_events()?);
    let mut pair = Pair::new(context, &DEFAULT)?;
    let (element, event_type) = raise(&mut pair)?;
    expect(&ours, element, event_type)?;
    assert_eq!(theirs.next_event()?, None);
    Ok(())
}
