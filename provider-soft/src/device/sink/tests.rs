//! Tests of events and their counts: of completion queues, and of a queue pair with several
//! handles.

use std::os::fd::AsRawFd;

use nix::sys::socket::{MsgFlags, recv};

use roce::engine::{Opcode, Status};

use super::*;
use crate::sync::ring::{Spare, replace, ring};

fn channel() -> Channel {
    let (pipe, reader) = EventPipe::pair(size_of::<IbUverbsAsyncEventDesc>()).unwrap();
    Channel { pipe: Arc::new(pipe), reader: Arc::new(reader) }
}

/// Reads up to `max` events and returns their number.
fn read(channel: &Channel, max: u32) -> u32 {
    let mut record = [0; size_of::<IbUverbsAsyncEventDesc>()];
    let mut count = 0;
    while count < max && recv(channel.reader.as_raw_fd(), &mut record, MsgFlags::MSG_DONTWAIT).is_ok() {
        count += 1;
    }
    count
}

#[test]
fn each_handle_of_a_shared_queue_pair_has_counts_of_its_own() {
    let mut sink = EngineSink::new(Instant::now());
    let [first, second] = [channel(), channel()];
    let (qpn, none) = (Qpn(5), CqId(u32::MAX));
    // Handles of different contexts may have the same user handle.
    let sharers = vec![Sharer { events: first.clone(), user_handle: 7, number: 0, raised: 0 }];
    let (sq, rq) = (ring(1, 0).unwrap().1, ring(1, 0).unwrap().1);
    sink.add_qp(QpEnd { qpn, sq, rq, send_cq: none, recv_cq: none, sharers }, 8).unwrap();
    sink.event(Event::SqDrained(qpn));
    let (_, number) = sink.share_qp(qpn, second.clone(), 7).unwrap();
    sink.event(Event::SqDrained(qpn));
    sink.event(Event::SqDrained(qpn));

    assert_eq!((read(&first, 2), read(&second, 1)), (2, 1));
    let events = |asynchronous| EventsRead { comp: 0, asynchronous };
    assert_eq!(sink.unshare_qp(qpn, number), Some(events(1)), "of two");
    assert_eq!(read(&second, 9), 0, "the other one is gone");
    assert_eq!(sink.unshare_qp(qpn, number), None, "once");
    sink.event(Event::SqDrained(qpn));
    assert_eq!(sink.unshare_qp(qpn, 0), None, "the last handle stays until the queue pair ends");
    assert_eq!(sink.remove_qp(qpn), events(2), "of four");
    assert_eq!(read(&first, 9), 0, "the other ones are gone");
    assert_eq!(sink.remove_qp(qpn), events(0), "there is no such queue pair");
}

/// A completion queue for 4 completions. Events are requested without waiting for the device's
/// lock.
struct Requested {
    sink: EngineSink,
    cq: CqId,
    consumer: Consumer<Entry>,
    requests: Arc<EventRequests>,
    channel: Channel,
}

impl Requested {
    fn new() -> Self {
        let mut sink = EngineSink::new(Instant::now());
        let (channel, requests) = (channel(), Arc::new(EventRequests::new()));
        let (producer, consumer) = ring(4, 0).unwrap();
        let cq = sink.add_cq(end(producer, &channel, &requests), 1).unwrap();
        Self { sink, cq, consumer, requests, channel }
    }

    /// Adds an event request, for the lock holder to take later.
    fn request(&self, armed: Armed) {
        self.requests.add(armed, &self.consumer.published());
    }

    /// Takes the pending event requests and returns whether the queue is now armed.
    fn take(&mut self) -> bool {
        self.sink.take_requests(cq_slot(self.cq));
        self.sink.is_armed()
    }

    fn complete(&mut self, solicited: bool) {
        let completion = Completion {
            wr_id: 1,
            status: Status::Success,
            opcode: Opcode::Send,
            qpn: Qpn(5),
            byte_len: 0,
            imm: None,
            invalidated: None,
            src_qpn: 0,
            grh: false,
            solicited,
            sl: 0,
            slid: 0,
            vendor_err: 0,
        };
        self.sink.complete(self.cq, &completion).unwrap();
    }

    fn poll(&mut self) -> bool {
        let found = self.consumer.next().is_some();
        self.consumer.free_all();
        found
    }

    /// Reads the raised events and returns their number.
    fn events(&self) -> u32 {
        read(&self.channel, 9)
    }
}

fn end(producer: Producer<Entry>, channel: &Channel, requests: &Arc<EventRequests>) -> CqEnd {
    CqEnd {
        producer,
        channel: Some(channel.clone()),
        events: self::channel(),
        user_handle: 7,
        notify: Notify::new(),
        requests: Arc::clone(requests),
        solicited: 0,
        wc_flags: CqWcFlags::empty(),
        ignores_overrun: false,
        users: 0,
        has_overrun: false,
        is_moderated: false,
        raised: EventsRead::default(),
    }
}

#[test]
fn a_completion_whose_event_came_before_a_request_raises_no_other_and_the_next_one_does() {
    let mut queue = Requested::new();
    assert!(!queue.take(), "there was no request");
    queue.request(Armed::Next);
    assert!(queue.take() && queue.events() == 0);
    // perftest requests the next event before it polls the completion of the last event.
    for round in 0..10 {
        queue.complete(round % 2 == 0);
        assert_eq!(queue.events(), 1, "round {round}");
        queue.request(if round % 3 == 0 { Armed::Solicited } else { Armed::Next });
        queue.request(Armed::Next);
        assert!(queue.take() && queue.events() == 0, "round {round}");
        assert!(queue.poll() && !queue.poll());
    }
}

#[test]
fn an_unpolled_completion_without_an_event_raises_one_at_a_request() {
    for armed in [Armed::Solicited, Armed::Next] {
        let mut queue = Requested::new();
        queue.request(armed);
        queue.complete(true);
        assert!(!queue.take() && queue.events() == 1);
        // This completion arrives before the request, but after the event and the last poll for the
        // first completion.
        assert!(queue.poll());
        queue.complete(true);
        queue.request(armed);
        assert!(!queue.take() && queue.events() == 1, "{armed:?}");
        queue.request(armed);
        assert!(queue.take() && queue.events() == 0, "its event came before: {armed:?}");
    }
}

#[test]
fn a_completion_between_a_request_and_its_turn_raises_the_event_polled_or_not() {
    let mut queue = Requested::new();
    for is_polled in [false, true] {
        queue.request(Armed::Next);
        queue.complete(false);
        assert!(!is_polled || queue.poll());
        // The older request stays pending.
        queue.request(Armed::Next);
        assert_eq!(queue.events(), 0);
        assert!(!queue.take() && queue.events() == 1, "polled: {is_polled}");
        queue.complete(false);
        assert_eq!(queue.events(), 0, "one event for each request");
        while queue.poll() {}
    }
}

#[test]
fn a_request_of_an_armed_queue_shares_the_event_of_the_earlier_one() {
    for armed in [Armed::Solicited, Armed::Next] {
        let mut queue = Requested::new();
        queue.request(Armed::Next);
        assert!(queue.take());
        queue.request(armed);
        queue.complete(true);
        assert_eq!(queue.events(), 1);
        assert!(!queue.take(), "it is settled");
        queue.complete(true);
        assert_eq!(queue.events(), 0, "one event for one completion");
    }
}

#[test]
fn solicited_completions_alone_count_for_a_request_of_them() {
    let mut queue = Requested::new();
    queue.complete(true);
    assert!(queue.poll());
    queue.request(Armed::Solicited);
    queue.complete(false);
    assert!(queue.take() && queue.events() == 0, "the solicited one was polled before");
    queue.complete(true);
    assert_eq!(queue.events(), 1);
    while queue.poll() {}
    for behind in 0..3 {
        queue.request(Armed::Solicited);
        queue.complete(true);
        (0..behind).for_each(|_| queue.complete(false));
        assert!(!queue.take() && queue.events() == 1, "{behind} others came behind it");
        while queue.poll() {}
    }
    // A later request for all completions does not hide this request.
    queue.request(Armed::Solicited);
    queue.complete(true);
    queue.request(Armed::Next);
    assert!(!queue.take() && queue.events() == 1);
}

#[test]
fn completions_between_a_request_and_its_turn_count_for_moderation() {
    let mut queue = Requested::new();
    queue.sink.moderate(queue.cq, CqModeration { cq_count: 3, cq_period: u16::MAX });
    queue.request(Armed::Next);
    queue.complete(false);
    queue.complete(false);
    assert!(queue.take() && queue.events() == 0, "two of three");
    assert!(queue.sink.moderated_until().is_some(), "at the latest");
    queue.complete(false);
    assert_eq!(queue.events(), 1);
}

#[test]
fn a_resize_loses_no_request_and_raises_no_event() {
    let mut queue = Requested::new();
    for is_later in [false, true] {
        queue.request(Armed::Next);
        queue.complete(false);
        assert!(!queue.take() && queue.events() == 1);
        queue.request(Armed::Next);
        if is_later {
            queue.complete(false);
        }
        let end = queue.sink.cq(queue.cq).unwrap();
        replace(&mut end.producer, &mut queue.consumer, Spare::new(8).unwrap());
        assert_eq!((queue.take(), queue.events()), (!is_later, u32::from(is_later)));
        queue.complete(false);
        assert_eq!(queue.events(), u32::from(!is_later));
        while queue.poll() {}
    }
}

#[test]
fn a_request_of_a_queue_that_is_gone_concerns_no_later_queue() {
    let mut queue = Requested::new();
    queue.request(Armed::Next);
    queue.sink.remove_cq(queue.cq).unwrap();
    assert!(!queue.take(), "there is no queue");
    let (producer, _consumer) = ring(4, 0).unwrap();
    let end = end(producer, &queue.channel, &Arc::new(EventRequests::new()));
    assert_eq!(queue.sink.add_cq(end, 1), Ok(queue.cq));
    queue.request(Armed::Next);
    assert!(!queue.take(), "the request is of the first one");
}
