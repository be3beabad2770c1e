//! Events name objects by ids that go stale, and are waited for or not.

mod common;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread;

use common::{Kind, World};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use verbs::{
    AsyncEventType, AsyncEvents, Cause, CompChannel, Context, Cq, CqInit, Element, Errno, Error, InitAttr,
    Provider, QpCap, QpInit, QpType, RtrAttr, RtsAttr, SendFlags, SendOp,
};

both! {
    an_event_names_the_queue_that_asked_for_it
    events_of_queues_that_are_gone_are_skipped
    forged_events_are_skipped
    a_channel_waits_or_says_that_there_is_nothing
    an_asynchronous_event_names_its_object
    asynchronous_events_of_objects_that_are_gone_are_skipped
    every_stream_takes_from_the_same_events
    a_record_of_the_wrong_length_is_an_error
    a_stream_that_has_ended_is_an_error
}

/// A channel that does not wait, so that an event which is lost fails the test at once, and a queue that uses it.
fn channel_and_cq<P: Provider>(context: &Context<P>) -> (CompChannel, Cq<P>) {
    let channel = context.create_comp_channel().unwrap();
    channel.set_nonblocking(true).unwrap();
    let cq = context.create_cq(&CqInit { channel: Some(&channel), ..CqInit::new(8) }).unwrap();
    (channel, cq)
}

/// A stream that does not wait.
fn async_events<P: Provider>(context: &Context<P>) -> AsyncEvents {
    let events = context.async_events().unwrap();
    events.set_nonblocking(true).unwrap();
    events
}

fn is_readable(fd: impl AsFd) -> bool {
    let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).unwrap() == 1
}

fn an_event_names_the_queue_that_asked_for_it<P: Provider>(world: &World, context: Context<P>) {
    let (channel, quiet) = channel_and_cq(&context);
    let mut cq = context.create_cq(&CqInit { channel: Some(&channel), ..CqInit::new(8) }).unwrap();
    let cap = QpCap { max_send_wr: 4, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 8 };
    let init = QpInit { qp_type: QpType::RC, send_cq: &cq, recv_cq: &quiet, cap, sq_sig_all: false };
    let qp = context.alloc_pd().unwrap().create_qp(&init).unwrap().to_init(&InitAttr::default()).unwrap();
    let mut qp = qp.to_rtr(&RtrAttr::unconnected()).unwrap().to_rts(&RtsAttr::default()).unwrap();
    let mut send = || {
        qp.send_inline(1, SendOp::Send, SendFlags::SIGNALED, b"x").unwrap();
        world.complete(qp.qp_num(), false, b"x");
    };
    send();
    assert!(!is_readable(&channel), "nobody asked");
    cq.req_notify(false).unwrap();
    send();
    send();
    assert!(is_readable(&channel));
    assert_ne!(cq.id(), quiet.id());
    assert_eq!(channel.next_event().unwrap().cq, cq.id());
    assert!(!is_readable(&channel), "one event for one question");
}

fn events_of_queues_that_are_gone_are_skipped<P: Provider>(world: &World, context: Context<P>) {
    let (channel, cq) = channel_and_cq(&context);
    let (stale, stale_id) = (world.user_handle(Kind::Cq), cq.id());
    cq.close().unwrap();
    let cq = context.create_cq(&CqInit { channel: Some(&channel), ..CqInit::new(8) }).unwrap();
    assert_ne!(cq.id(), stale_id);
    world.raise(&channel, stale);
    world.raise(&channel, world.user_handle(Kind::Cq));
    assert_eq!(channel.next_event().unwrap().cq, cq.id());
}

fn forged_events_are_skipped<P: Provider>(world: &World, context: Context<P>) {
    let (channel, cq) = channel_and_cq(&context);
    let own = world.user_handle(Kind::Cq);
    for forged in [0, 1, own + 1, own ^ (1 << 32), u64::MAX, 0x7fff_dead_beef] {
        world.raise(&channel, forged);
    }
    world.raise(&channel, own);
    assert_eq!(channel.next_event().unwrap().cq, cq.id());
    assert_eq!(channel.next_event().unwrap_err().errno, Errno::AGAIN);
}

fn a_channel_waits_or_says_that_there_is_nothing<P: Provider>(world: &World, context: Context<P>) {
    let (channel, cq) = channel_and_cq(&context);
    let error = channel.next_event().unwrap_err();
    assert_eq!((error.verb, error.errno), ("get_cq_event", Errno::AGAIN));
    channel.set_nonblocking(false).unwrap();
    let own = world.user_handle(Kind::Cq);
    let channel = Arc::new(channel);
    let sharer = Arc::clone(&channel);
    let waiting = thread::spawn(move || sharer.next_event());
    world.raise(&*channel, own);
    let told = common::within("an event that was raised", move || waiting.join().unwrap());
    assert_eq!(told.unwrap().cq, cq.id());
}

fn an_asynchronous_event_names_its_object<P: Provider>(world: &World, context: Context<P>) {
    let mut events = async_events(&context);
    let (_channel, cq) = channel_and_cq(&context);
    let cap = QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let init = QpInit { qp_type: QpType::UD, send_cq: &cq, recv_cq: &cq, cap, sq_sig_all: false };
    let qp = context.alloc_pd().unwrap().create_qp(&init).unwrap();
    let (cq_handle, qp_handle) = (world.user_handle(Kind::Cq), world.user_handle(Kind::Qp));
    let cases = [
        (cq_handle, 0, Element::Cq(cq.id()), "completion queue #0.1: CQ error"),
        (qp_handle, 4, Element::Qp(qp.id()), "queue pair #0.1: communication established"),
        (qp_handle, 16, Element::Qp(qp.id()), "queue pair #0.1: last WQE reached"),
        (3, 8, Element::Device, "device: local catastrophic error"),
        (2, 9, Element::Port(2), "port 2: port active"),
        (1, 18, Element::Port(1), "port 1: GID table change"),
        (1, 20, Element::Port(1), "port 1: Device link speed change"),
        (256, 9, Element::Unknown(256), "element 0x100: port active"),
        (7, 15, Element::Srq(7), "shared receive queue 0x7: SRQ limit reached"),
        (7, 19, Element::Wq(7), "work queue 0x7: WQ fatal"),
        (7, 77, Element::Unknown(7), "element 0x7: unknown (77)"),
    ];
    for (raw, event_type, element, text) in cases {
        world.raise_async(raw, event_type);
        let event = events.next().unwrap();
        assert_eq!((event.element, event.event_type), (element, AsyncEventType(event_type)));
        assert_eq!(event.to_string(), text);
    }
}

fn asynchronous_events_of_objects_that_are_gone_are_skipped<P: Provider>(world: &World, context: Context<P>) {
    let mut events = async_events(&context);
    let (_channel, cq) = channel_and_cq(&context);
    let stale = world.user_handle(Kind::Cq);
    drop(cq);
    world.raise_async(stale, 0);
    // A queue pair's number is none of a completion queue's.
    world.raise_async(stale, 1);
    world.raise_async(1, 10);
    assert_eq!(events.next().unwrap().element, Element::Port(1));
    assert_eq!(events.next().unwrap_err().errno, Errno::AGAIN);
}

fn every_stream_takes_from_the_same_events<P: Provider>(world: &World, context: Context<P>) {
    let (mut one, mut other) = (async_events(&context), async_events(&context));
    world.raise_async(1, 9);
    world.raise_async(1, 10);
    assert!(is_readable(&one) && is_readable(&other));
    assert_eq!(one.next().unwrap().event_type, AsyncEventType::PORT_ACTIVE);
    assert_eq!(other.next().unwrap().event_type, AsyncEventType::PORT_ERR);
    assert!(!is_readable(&one) && !is_readable(&other));
}

/// The error of a stream of events for a record that is none.
fn assert_no_record(error: &Error, verb: &str) {
    assert_eq!((error.verb, error.errno), (verb, Errno::IO));
    assert_eq!(error.cause, Cause::BadReply { what: "an event of the wrong length" });
}

fn a_record_of_the_wrong_length_is_an_error<P: Provider>(world: &World, context: Context<P>) {
    let (channel, cq) = channel_and_cq(&context);
    let own = world.user_handle(Kind::Cq);
    for len in 1..8 {
        // The first bytes of a record that would name the queue if the rest were there.
        world.raise_bytes(&channel, &own.to_ne_bytes()[..len]);
        assert_no_record(&channel.next_event().unwrap_err(), "get_cq_event");
    }
    world.raise(&channel, own);
    assert_eq!(channel.next_event().unwrap().cq, cq.id(), "the stream goes on behind it");

    let mut events = async_events(&context);
    for len in 1..16 {
        world.raise_async_bytes(&[&1_u64.to_ne_bytes()[..], &9_u32.to_ne_bytes(), &[0; 4]].concat()[..len]);
        assert_no_record(&events.next().unwrap_err(), "get_async_event");
    }
    world.raise_async(1, 9);
    assert_eq!(events.next().unwrap().element, Element::Port(1), "the stream goes on behind it");
}

fn a_stream_that_has_ended_is_an_error<P: Provider>(world: &World, context: Context<P>) {
    // These wait: the end of a stream is no reason to do so.
    let channel = context.create_comp_channel().unwrap();
    let mut events = context.async_events().unwrap();
    world.hang_up();
    let told = common::within("the end of both streams", move || {
        [channel.next_event().unwrap_err(), channel.next_event().unwrap_err(), events.next().unwrap_err()]
    });
    assert_no_record(&told[0], "get_cq_event");
    assert_no_record(&told[1], "get_cq_event");
    assert_no_record(&told[2], "get_async_event");
}
