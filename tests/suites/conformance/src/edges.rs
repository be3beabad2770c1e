//! Edge-triggered event loops (`EPOLLET`, as in tokio and mio): every event after the last read of
//! a descriptor causes an edge.
//!
//! A loop reads a descriptor until it has no event left and then waits. Another thread causes the
//! events, each while the loop looks for more events or already waits.

use std::os::fd::AsFd;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use rdmacm::{Address, CmId, Connection, Connector, EventChannel, EventType, Listener, PortSpace};
use verbs::{
    AsyncEventType, CompChannel, Context, CqInit, Element, Provider, QpInit, RecvWr, SendFlags, SendOp,
    SendWr, SrqInit,
};
use verbs_fixtures::both;
use verbs_fixtures::cm_fabric::{RESOLVING, arrived, here, with_port};
use verbs_fixtures::fabric::{PATIENCE, Remote, connect, post_send, post_srq_recv, wait};
use verbs_harness::cases;
use verbs_harness::runner::{Case, CaseResult, fail, skip};

use super::SUITE;
use super::cq::{Loop, SHAPE, message_memory};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = both!(
        SUITE,
        a_completion_channel_makes_an_edge_for_each_event_after_the_last_look,
        a_completion_channel_makes_an_edge_for_the_events_of_many_queues,
        asynchronous_events_make_an_edge_each_after_the_last_look,
    );
    cases.extend(cases!(
        SUITE,
        an_event_channel_makes_an_edge_for_each_event_after_the_last_look,
        a_channel_that_is_read_after_a_move_of_ids_makes_an_edge_for_each_later_event,
        a_listener_makes_an_edge_for_each_client_after_the_last_look,
        the_control_of_a_connection_makes_an_edge_at_its_end,
    ));
    cases
}

const ROUNDS: usize = 50;

/// The number of rounds with connections. It is smaller, because each round makes a connection.
const CONNECTIONS: usize = 10;

/// A loop that waits for edges on one descriptor.
struct EdgeLoop(Epoll);

impl EdgeLoop {
    fn around(file: &impl AsFd) -> CaseResult<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(file, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 0))?;
        Ok(Self(epoll))
    }

    /// Reads `count` events. At each edge, reads events until `next` returns no more.
    fn take(&self, count: usize, mut next: impl FnMut() -> CaseResult<bool>) -> CaseResult {
        let (patience, mut taken) = (EpollTimeout::try_from(PATIENCE)?, 0);
        while taken < count {
            if self.0.wait(&mut [EpollEvent::empty()], patience)? == 0 {
                let has_lost = next()?;
                let why = if has_lost { "an event without an edge" } else { "neither an edge nor an event" };
                return fail(format_args!("{why}, after {taken} of {count} events"));
            }
            while next()? {
                taken += 1;
            }
        }
        if taken == count { Ok(()) } else { fail(format_args!("{taken} events instead of {count}")) }
    }

    /// Reads `count` events that another thread causes, each as soon as the previous event has been
    /// read.
    fn follow(
        &self,
        count: usize,
        mut make: impl FnMut() -> CaseResult + Send,
        mut next: impl FnMut() -> CaseResult<bool>,
    ) -> CaseResult {
        let (took, is_taken) = mpsc::channel();
        thread::scope(|scope| {
            let maker = scope.spawn(move || -> CaseResult {
                for _ in 0..count {
                    make()?;
                    if is_taken.recv().is_err() {
                        // The loop has failed.
                        break;
                    }
                }
                Ok(())
            });
            let taken = self.take(count, || {
                let is_some = next()?;
                if is_some {
                    // The other thread may have failed, which is reported below.
                    let _ = took.send(());
                }
                Ok(is_some)
            });
            drop(took);
            maker.join().unwrap_or_else(|_| fail("the thread that makes the events panicked"))?;
            taken
        })
    }
}

fn has_event(channel: &CompChannel) -> CaseResult<bool> {
    Ok(channel.next_event()?.is_some())
}

fn a_completion_channel_makes_an_edge_for_each_event_after_the_last_look<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    let channel = context.create_comp_channel()?;
    let mut own = Loop::new(context, &CqInit { channel: Some(&channel), ..CqInit::new(64) })?;
    let mut wr_id = 0;
    let make = move || {
        own.recvs.req_notify(false)?;
        own.fill(wr_id..wr_id + 1)?;
        own.expect(wr_id..wr_id + 1)?;
        wr_id += 1;
        Ok(())
    };
    EdgeLoop::around(&channel)?.follow(ROUNDS, make, || has_event(&channel))
}

fn a_completion_channel_makes_an_edge_for_the_events_of_many_queues<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    const QUEUES: usize = 4;
    let channel = context.create_comp_channel()?;
    let init = CqInit { channel: Some(&channel), ..CqInit::new(64) };
    let mut owns: Vec<_> = (0..QUEUES).map(|_| Loop::new(context, &init)).collect::<CaseResult<_>>()?;
    let edges = EdgeLoop::around(&channel)?;
    for round in 0..10 {
        for own in &mut owns {
            own.recvs.req_notify(false)?;
            own.fill(round..round + 1)?;
        }
        edges.take(QUEUES, || has_event(&channel))?;
        owns.iter_mut().try_for_each(|own| own.expect(round..round + 1))?;
    }
    Ok(())
}

fn asynchronous_events_make_an_edge_each_after_the_last_look<P: Provider>(
    context: &Context<P>,
) -> CaseResult {
    let events = context.async_events()?;
    let (pd, mut cq) = (context.alloc_pd()?, context.create_cq(&CqInit::new(64))?);
    let (memory, mut srq) = (message_memory(&pd)?, pd.create_srq(&SrqInit::new(16))?);
    let qp =
        pd.create_qp(&QpInit { cap: SHAPE.cap, srq: Some(srq.handle()), ..QpInit::new(SHAPE.qp_type, &cq) })?;
    let own = Remote::from_qp(&qp);
    let mut qp = connect(context, qp, &SHAPE, own)?;
    let element = Element::Srq(srq.id());
    let recv = [RecvWr { wr_id: 1, sge: &[memory.sge(0..8)] }];
    post_srq_recv(&mut srq, &recv)?;
    // Each round uses one of two receives, which leaves fewer than the limit.
    let reach_limit = || -> CaseResult {
        post_srq_recv(&mut srq, &recv)?;
        srq.arm(2)?;
        let sge = [memory.sge(8..16)];
        let wr = SendWr { wr_id: 1, op: SendOp::Send, sge: &sge, flags: SendFlags::SIGNALED };
        post_send(&mut qp, &[wr])?;
        wait(&mut cq, 2)?;
        Ok(())
    };
    EdgeLoop::around(&events)?.follow(ROUNDS, reach_limit, || {
        let Some(event) = events.next_event()? else { return Ok(false) };
        assert_eq!((event.element, event.event_type), (element, AsyncEventType::SRQ_LIMIT_REACHED));
        Ok(true)
    })
}

/// Returns an address of the device under test, to be resolved.
fn resolvable() -> CaseResult<Address> {
    Ok(with_port(here()?, PortSpace::TCP, 7471))
}

/// Causes an event on a channel: the result of resolving an address.
fn resolve(channel: &EventChannel, address: Address) -> CaseResult<CmId> {
    let id = channel.create_id(PortSpace::TCP)?;
    id.resolve_addr(None, address, RESOLVING)?;
    Ok(id)
}

fn is_resolved(channel: &EventChannel) -> CaseResult<bool> {
    match channel.try_next_event()? {
        Some(event) if event.event_type() == EventType::ADDR_RESOLVED => Ok(true),
        Some(event) => fail(format_args!("{event:?}")),
        None => Ok(false),
    }
}

fn an_event_channel_makes_an_edge_for_each_event_after_the_last_look() -> CaseResult {
    let (address, channel) = (resolvable()?, EventChannel::new()?);
    // Keeps the ids, because a dropped id takes its unread events along.
    let mut ids = Vec::new();
    let make = || {
        ids.push(resolve(&channel, address)?);
        Ok(())
    };
    EdgeLoop::around(&channel)?.follow(ROUNDS, make, || is_resolved(&channel))
}

/// Events that a moved id brings along cause no edge on a channel with only kernel ids. A loop
/// therefore reads the channel once after the move, as [`CmId::migrate`] requires.
fn a_channel_that_is_read_after_a_move_of_ids_makes_an_edge_for_each_later_event() -> CaseResult {
    let (address, from, to) = (resolvable()?, EventChannel::new()?, EventChannel::new()?);
    let edges = EdgeLoop::around(&to)?;
    let mut ids = Vec::new();
    for _ in 0..CONNECTIONS {
        let id = resolve(&from, address)?;
        arrived(&from)?;
        id.migrate(&to)?;
        assert!(is_resolved(&to)?);
        assert!(!is_resolved(&to)?);
        ids.push(id);
        let make = || {
            ids.push(resolve(&to, address)?);
            Ok(())
        };
        edges.follow(2, make, || is_resolved(&to))?;
    }
    Ok(())
}

/// Returns a listener at the address of the device under test.
fn listener() -> CaseResult<Listener> {
    match here()?.ip() {
        Some(address) => Ok(Listener::bind(address)?),
        None => skip("the device has no IP address"),
    }
}

fn client(listener: &Listener) -> CaseResult<Connection> {
    let connector =
        Connector { resolve_timeout: PATIENCE, connect_timeout: PATIENCE, ..Connector::default() };
    Ok(connector.connect(listener.local_addr())?)
}

/// Connects a client and returns it with the connection that the listener accepts.
fn connected(listener: &Listener) -> CaseResult<(Connection, Connection)> {
    thread::scope(|scope| {
        let client = scope.spawn(|| client(listener));
        let server = listener.accept_within(PATIENCE);
        let client = client.join().unwrap_or_else(|_| fail("the client panicked"))?;
        match server? {
            Some(server) => Ok((client, server)),
            None => fail("no connection came"),
        }
    })
}

fn a_listener_makes_an_edge_for_each_client_after_the_last_look() -> CaseResult {
    let listener = listener()?;
    let connect = || client(&listener).map(drop);
    EdgeLoop::around(&listener)?
        .follow(CONNECTIONS, connect, || Ok(listener.accept_within(Duration::ZERO)?.is_some()))
}

fn the_control_of_a_connection_makes_an_edge_at_its_end() -> CaseResult {
    let listener = listener()?;
    for _ in 0..CONNECTIONS {
        let (client, server) = connected(&listener)?;
        let edges = EdgeLoop::around(&server.control)?;
        assert_eq!(server.control.end()?, None);
        let mut client = Some(client);
        let end = || {
            client = None;
            Ok(())
        };
        let mut is_over = false;
        edges.follow(1, end, || {
            let ends = !is_over && server.control.end()?.is_some();
            is_over |= ends;
            Ok(ends)
        })?;
    }
    Ok(())
}
