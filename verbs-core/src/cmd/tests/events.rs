//! The numbers of events read before their object was destroyed, as replied to each command form.

use super::{cq, on, qp, srq};
use crate::channel::{Expect, Reply, Scripted, Uverbs};
use crate::cmd::wq;
use crate::errno::Errno;
use crate::error::Result;
use crate::types::event::EventsRead;

/// A command, its ioctl, the replies through the ioctl and through the write struct, and the
/// numbers of events that both report.
type Case =
    (fn(&Uverbs, u32) -> Result<EventsRead>, &'static str, &'static [u32], &'static [u32], EventsRead);

const CASES: &[Case] = &[
    (
        cq::destroy_cq,
        "ioctl 3.1: 0x1 out 8 bytes, 0x0 handle 5",
        &[3, 2],
        &[3, 2],
        EventsRead { comp: 3, asynchronous: 2 },
    ),
    (
        qp::destroy_qp,
        "ioctl 4.1: 0x1 out 4 bytes, 0x0 handle 5",
        &[7],
        &[7],
        EventsRead { comp: 0, asynchronous: 7 },
    ),
    (
        srq::destroy_srq,
        "ioctl 5.1: 0x1 out 4 bytes, 0x0 handle 5",
        &[4],
        &[4],
        EventsRead { comp: 0, asynchronous: 4 },
    ),
    // The reply to the write struct has two numbers before the count and one after it.
    (
        wq::destroy_wq,
        "ioctl 12.1: 0x1 out 4 bytes, 0x0 handle 5",
        &[6],
        &[0, 16, 6, 0],
        EventsRead { comp: 0, asynchronous: 6 },
    ),
];

fn bytes(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

#[test]
fn the_number_of_events_that_were_read_comes_with_the_end_of_their_object() {
    for &(destroy, ioctl, reply, written, expected) in CASES {
        let by_ioctl = Scripted::new([Expect::command(ioctl, Reply::outputs([&bytes(reply)]))]);
        let reply = Reply::outputs([&bytes(written)]);
        let by_invoke_write = Scripted::new([
            Expect::command(ioctl, Reply::Errno(Errno::PROTONOSUPPORT)),
            Expect::anything(reply.clone()),
        ]);
        let by_write =
            Scripted::new([Expect::command(ioctl, Reply::Errno(Errno::NOTTY)), Expect::anything(reply)]);
        for scripted in [by_ioctl, by_invoke_write, by_write] {
            assert_eq!(destroy(&on(&scripted), 5), Ok(expected), "{ioctl}");
            assert_eq!(scripted.remaining(), 0, "{ioctl}");
        }
    }
}

#[test]
fn an_object_that_the_kernel_keeps_has_no_count() {
    for &(destroy, ..) in CASES {
        let scripted = Scripted::new([Expect::anything(Reply::Errno(Errno::BUSY))]);
        assert_eq!(destroy(&on(&scripted), 5).unwrap_err().errno, Errno::BUSY);
    }
}
