//! Events: stale ids, calls that wait and calls that do not wait.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Kind, World};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use verbs::{
    AsyncEventType, Cause, CompChannel, Context, Cq, CqId, CqInit, Element, Errno, Error, InitAttr, Provider,
    QpCap, QpInit, QpType, RtrAttr, RtsAttr, SendFlags, SendOp, SrqInit, TmCap,
};
use verbs_core::provider::TAG_LIST;

both! {
    an_event_names_the_queue_that_asked_for_it
    events_of_queues_that_are_gone_are_skipped
    forged_events_are_skipped
    a_channel_waits_or_says_that_there_is_nothing
    an_asynchronous_event_names_its_object
    asynchronous_events_of_objects_that_are_gone_are_skipped
    an_event_of_a_tag_list_is_an_error_of_its_shared_receive_queue
    every_stream_takes_from_the_same_events
    a_record_of_the_wrong_length_is_an_error
    a_stream_that_has_ended_is_an_error
    waiting_ends_with_its_time_or_with_an_event
}

/// Returns a channel and a completion queue that uses the channel.
fn channel_and_cq<P: Provider>(context: &Context<P>) -> (CompChannel, Cq<P>) {
    let channel = context.create_comp_channel().unwrap();
    let cq = context.create_cq(&CqInit { channel: Some(&channel), ..CqInit::new(8) }).unwrap();
    (channel, cq)
}

/// Returns the queue that the next event names. The event must be pending.
fn next(channel: &CompChannel) -> CqId {
    channel.next_event().unwrap().expect("an event").cq
}

fn is_readable(fd: impl AsFd) -> bool {
    let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).unwrap() == 1
}

fn an_event_names_the_queue_that_asked_for_it<P: Provider>(world: &World, context: Context<P>) {
    let (channel, quiet) = channel_and_cq(&context);
    let mut cq = context.create_cq(&CqInit { channel: Some(&channel), ..CqInit::new(8) }).unwrap();
    let cap = QpCap { max_send_wr: 4, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 8 };
    let init = QpInit { recv_cq: quiet.handle(), cap, ..QpInit::new(QpType::RC, &cq) };
    let qp = context.alloc_pd().unwrap().create_qp(&init).unwrap().to_init(&InitAttr::default()).unwrap();
    let mut qp = qp.to_rtr(&RtrAttr::unconnected()).unwrap().to_rts(&RtsAttr::default()).unwrap();
    let mut send = || {
        qp.post_send_inline(1, SendOp::Send, SendFlags::SIGNALED, b"x").unwrap();
        world.complete(qp.qp_num(), false, b"x");
    };
    send();
    assert!(!is_readable(&channel), "nobody asked");
    cq.req_notify(false).unwrap();
    send();
    send();
    assert!(is_readable(&channel));
    assert_ne!(cq.id(), quiet.id());
    assert_eq!(next(&channel), cq.id());
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
    assert_eq!(next(&channel), cq.id());
}

fn forged_events_are_skipped<P: Provider>(world: &World, context: Context<P>) {
    let (channel, cq) = channel_and_cq(&context);
    let own = world.user_handle(Kind::Cq);
    for forged in [0, 1, own + 1, own ^ (1 << 32), u64::MAX, 0x7fff_dead_beef] {
        world.raise(&channel, forged);
    }
    world.raise(&channel, own);
    assert_eq!(next(&channel), cq.id());
    assert_eq!(channel.next_event().unwrap(), None);
}

fn a_channel_waits_or_says_that_there_is_nothing<P: Provider>(world: &World, context: Context<P>) {
    let (channel, cq) = channel_and_cq(&context);
    assert_eq!(channel.next_event().unwrap(), None);
    let own = world.user_handle(Kind::Cq);
    let channel = Arc::new(channel);
    let sharer = Arc::clone(&channel);
    let waiting = thread::spawn(move || sharer.wait(None));
    world.raise(&*channel, own);
    let told = crate::common::within("an event that was raised", move || waiting.join().unwrap());
    assert_eq!(told.unwrap().unwrap().cq, cq.id());
}

fn an_asynchronous_event_names_its_object<P: Provider>(world: &World, context: Context<P>) {
    let events = context.async_events().unwrap();
    let (_channel, cq) = channel_and_cq(&context);
    let cap = QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let init = QpInit { cap, ..QpInit::new(QpType::UD, &cq) };
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
        (7, 77, Element::Unknown(7), "element 0x7: unknown (77)"),
    ];
    for (raw, event_type, element, text) in cases {
        world.raise_async(raw, event_type);
        let event = events.next_event().unwrap().unwrap();
        assert_eq!((event.element, event.event_type), (element, AsyncEventType(event_type)));
        assert_eq!(event.to_string(), text);
    }
}

fn asynchronous_events_of_objects_that_are_gone_are_skipped<P: Provider>(world: &World, context: Context<P>) {
    let events = context.async_events().unwrap();
    let (_channel, cq) = channel_and_cq(&context);
    let stale = world.user_handle(Kind::Cq);
    drop(cq);
    world.raise_async(stale, 0);
    // The id of a queue pair never names a completion queue.
    world.raise_async(stale, 1);
    world.raise_async(1, 10);
    assert_eq!(events.next_event().unwrap().unwrap().element, Element::Port(1));
    assert_eq!(events.next_event().unwrap(), None);
}

fn an_event_of_a_tag_list_is_an_error_of_its_shared_receive_queue<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(&CqInit::new(4)).unwrap());
    let tm = TmCap { max_num_tags: 4, max_ops: 4 };
    let srq = pd.create_tm_srq(&cq, tm, &SrqInit::new(4)).unwrap();
    let events = context.async_events().unwrap();
    let user_handle = world.user_handle(Kind::Srq);
    world.raise_async(user_handle | TAG_LIST, AsyncEventType::QP_LAST_WQE_REACHED.0);
    let event = events.next_event().unwrap().expect("the program learns of it");
    assert_eq!((event.element, event.event_type), (Element::Srq(srq.id()), AsyncEventType::SRQ_ERR));
    srq.close().unwrap();
    world.raise_async(user_handle | TAG_LIST, AsyncEventType::QP_FATAL.0);
    assert_eq!(events.next_event().unwrap(), None);
}

fn every_stream_takes_from_the_same_events<P: Provider>(world: &World, context: Context<P>) {
    let (one, other) = (context.async_events().unwrap(), context.async_events().unwrap());
    world.raise_async(1, 9);
    world.raise_async(1, 10);
    assert!(is_readable(&one) && is_readable(&other));
    assert_eq!(one.next_event().unwrap().unwrap().event_type, AsyncEventType::PORT_ACTIVE);
    assert_eq!(other.next_event().unwrap().unwrap().event_type, AsyncEventType::PORT_ERR);
    assert!(!is_readable(&one) && !is_readable(&other));
}

/// Checks that `error` is the error that an event stream returns for an invalid record.
fn assert_no_record(error: &Error, verb: &str) {
    assert_eq!((error.verb, error.errno), (verb, Errno::IO));
    assert_eq!(error.cause, Cause::BadReply { what: "an event of the wrong length" });
}

fn a_record_of_the_wrong_length_is_an_error<P: Provider>(world: &World, context: Context<P>) {
    let (channel, cq) = channel_and_cq(&context);
    let own = world.user_handle(Kind::Cq);
    for len in 1..8 {
        // A truncated record that would name the queue if it were complete.
        world.raise_bytes(&channel, &own.to_ne_bytes()[..len]);
        assert_no_record(&channel.next_event().unwrap_err(), "get_cq_event");
    }
    world.raise(&channel, own);
    assert_eq!(next(&channel), cq.id(), "the stream goes on behind it");

    let events = context.async_events().unwrap();
    for len in 1..16 {
        world.raise_async_bytes(&[&1_u64.to_ne_bytes()[..], &9_u32.to_ne_bytes(), &[0; 4]].concat()[..len]);
        assert_no_record(&events.next_event().unwrap_err(), "get_async_event");
    }
    world.raise_async(1, 9);
    assert_eq!(
        events.next_event().unwrap().unwrap().element,
        Element::Port(1),
        "the stream goes on behind it"
    );
}

fn a_stream_that_has_ended_is_an_error<P: Provider>(world: &World, context: Context<P>) {
    let channel = context.create_comp_channel().unwrap();
    let events = context.async_events().unwrap();
    world.hang_up();
    let told = crate::common::within("the end of both streams", move || {
        [channel.wait(None).unwrap_err(), channel.wait(None).unwrap_err(), events.wait(None).unwrap_err()]
    });
    assert_no_record(&told[0], "get_cq_event");
    assert_no_record(&told[1], "get_cq_event");
    assert_no_record(&told[2], "get_async_event");
}

fn waiting_ends_with_its_time_or_with_an_event<P: Provider>(world: &World, context: Context<P>) {
    let (channel, cq) = channel_and_cq(&context);
    let events = context.async_events().unwrap();
    assert_eq!(channel.wait(Some(Duration::ZERO)).unwrap(), None);
    assert_eq!(events.wait(Some(Duration::ZERO)).unwrap(), None);
    let (short, start) = (Duration::from_millis(20), Instant::now());
    assert_eq!(channel.wait(Some(short)).unwrap(), None);
    assert!(start.elapsed() >= short, "{:?}", start.elapsed());
    let stale = world.user_handle(Kind::Cq) + 1;
    for timeout in [Some(Duration::ZERO), Some(crate::common::PATIENCE), Some(Duration::MAX), None] {
        // An event of a destroyed queue does not end a wait.
        world.raise(&channel, stale);
        world.raise(&channel, world.user_handle(Kind::Cq));
        assert_eq!(channel.wait(timeout).unwrap().unwrap().cq, cq.id());
        world.raise_async(1, 9);
        assert_eq!(events.wait(timeout).unwrap().unwrap().element, Element::Port(1));
    }
    world.raise(&channel, stale);
    assert_eq!(channel.wait(Some(Duration::ZERO)).unwrap(), None);
    assert_eq!(channel.as_raw_fd(), channel.as_fd().as_raw_fd());
}
