//! Events of a queue pair with several handles, and their counts.

use std::os::fd::AsRawFd;

use nix::sys::socket::{MsgFlags, recv};

use super::*;
use crate::ring::ring;

fn channel() -> Channel {
    let (pipe, reader) = EventPipe::pair(size_of::<IbUverbsAsyncEventDesc>()).unwrap();
    Channel { pipe: Arc::new(pipe), reader: Arc::new(reader) }
}

/// Reads events until there are no more, and at most `max`; returns their number.
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
    sink.add_qp(QpEnd { qpn, sq, rq, send_cq: none, recv_cq: none, sharers }).unwrap();
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
