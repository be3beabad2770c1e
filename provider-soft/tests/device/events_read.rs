//! Destroying an object returns the number of its events that the program has read. Every event
//! that was read counts, and no unread event does.
//!
//! # Safety
//! Work requests are posted raw and name no memory.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{MsgFlags, recv};
use provider_soft::{Soft, SoftDevice};
use verbs_core::provider::{
    ContextOps, CqOps, Destroy, Erased, EventsRead, NamedProvider, Provider, QpOps, QpParents, QpParts,
    RecvQueue, SendQueue, SrqOps, SrqParents, SrqParts, erase,
};
use verbs_core::transition;
use verbs_core::types::{
    AhAttr, AsyncEventType, CqInitAttr, CqModeration, GlobalRoute, Mtu, QpAttr, QpAttrMask, QpCap,
    QpInitAttr, QpState, QpType, RecvWr, SendFlags, SendOp, SendWr, SrqAttr, SrqAttrMask, SrqInitAttr,
    SrqType, TmCap, Wc,
};

/// The time limit of a step, far longer than any step takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);
const PORT: u8 = 1;
/// The length of an event in a completion channel, in bytes.
const COMP_EVENT: usize = 8;
/// The length of an asynchronous event, in bytes.
const ASYNC_EVENT: usize = 16;

// User handles, which name the objects in events. Objects of different kinds may share a handle.
const CQ: u64 = 0x1234_5678_9abc;
const SRQ: u64 = CQ;
const SENDER: u64 = CQ;
const RECEIVER: u64 = CQ + 1;

/// Two connected queue pairs and their dependencies; the receiver has a shared receive queue.
struct Objects<P: Provider> {
    pd: P::Pd,
    cq: P::Cq,
    srq: SrqParts<P>,
    sender: QpParts<P>,
    receiver: QpParts<P>,
}

impl<P: Provider> Objects<P> {
    fn new(context: &P::Context, cqe: u32, channel: Option<BorrowedFd<'_>>) -> Self {
        let pd = context.alloc_pd().unwrap();
        let attr = CqInitAttr { user_handle: CQ, channel, ..CqInitAttr::new(cqe) };
        let (cq, handle) = context.create_cq(None, &attr).unwrap();
        let attr = SrqInitAttr {
            srq_type: SrqType::BASIC,
            max_wr: 8,
            max_sge: 0,
            srq_limit: 0,
            tm: TmCap::default(),
            user_handle: SRQ,
        };
        let srq = context.create_srq(&SrqParents { pd: &pd, xrcd: None, cq: None }, &attr).unwrap();
        let cap = QpCap { max_send_wr: 8, ..QpCap::default() };
        let parents = QpParents { srq: Some(&srq.srq), ..QpParents::new(&pd, &handle, &handle) };
        let [mut sender, mut receiver] = [SENDER, RECEIVER].map(|user_handle| {
            let attr = QpInitAttr { qp_type: QpType::RC, cap, sq_sig_all: true, user_handle };
            context.create_qp(&parents, &attr).unwrap()
        });
        let numbers = (sender.qp.qp_num(), receiver.qp.qp_num());
        connect::<P>(context, &mut sender, numbers.1);
        connect::<P>(context, &mut receiver, numbers.0);
        Self { pd, cq, srq, sender, receiver }
    }

    /// Sends a message, which consumes a receive of the shared receive queue.
    fn send(&mut self) {
        // SAFETY: the requests name no memory.
        unsafe {
            self.srq.queue.post_recv(&[RecvWr { wr_id: 0, sge: &[] }]).unwrap();
            let wr = SendWr { wr_id: 1, op: SendOp::Send, sge: &[], flags: SendFlags::SIGNALED };
            self.sender.sq.post_send(&[wr]).unwrap();
        }
    }

    fn poll(&mut self, count: usize) {
        let start = Instant::now();
        let mut polled = 0;
        while polled < count {
            assert!(start.elapsed() < PATIENCE, "{polled} of {count} completions came");
            polled += self.cq.poll(&mut [Wc::default(); 4]);
        }
    }

    /// Raises an event of the completion queue.
    fn raise_comp(&mut self) {
        self.cq.req_notify(false).unwrap();
        self.send();
        self.poll(2);
    }

    /// Raises an event of the shared receive queue.
    fn raise_limit(&mut self) {
        let attr = SrqAttr { srq_limit: 1, ..SrqAttr::default() };
        self.srq.srq.modify(&mut self.srq.queue, &attr, SrqAttrMask::LIMIT).unwrap();
        self.send();
        self.poll(2);
    }

    /// Destroys all objects and returns the number of events read for each of them.
    fn destroy(self) -> Counts {
        let Self { pd, cq, srq, sender, receiver } = self;
        let counts = Counts {
            sender: sender.qp.destroy_counting_events().unwrap(),
            receiver: receiver.qp.destroy_counting_events().unwrap(),
            srq: srq.srq.destroy_counting_events().unwrap(),
            cq: cq.destroy_counting_events().unwrap(),
        };
        assert_eq!(pd.destroy_counting_events().unwrap(), EventsRead::default(), "it has no events");
        counts
    }
}

/// The number of events read for each object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    sender: EventsRead,
    receiver: EventsRead,
    srq: EventsRead,
    cq: EventsRead,
}

fn connect<P: Provider>(context: &P::Context, parts: &mut QpParts<P>, dest_qp_num: u32) {
    let dgid = context.device().query_gid_entry(PORT, 0).unwrap().unwrap().gid;
    let grh = GlobalRoute { dgid, ..GlobalRoute::default() };
    let attr = QpAttr {
        port_num: PORT,
        ah_attr: AhAttr { grh: Some(grh), port_num: PORT, ..AhAttr::default() },
        path_mtu: Mtu::MTU_1024,
        dest_qp_num,
        min_rnr_timer: 1,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        ..QpAttr::default()
    };
    for to in [QpState::INIT, QpState::RTR, QpState::RTS] {
        let required = transition::lookup(QpType::RC, parts.qp.state(), to).unwrap().required;
        move_to::<P>(parts, &QpAttr { qp_state: to, ..attr }, required);
    }
}

fn move_to<P: Provider>(parts: &mut QpParts<P>, attr: &QpAttr, mask: QpAttrMask) {
    let QpParts { qp, sq, rq } = parts;
    qp.modify(sq, rq, attr, mask | QpAttrMask::STATE).unwrap();
}

/// Raises an event of a queue pair with an empty send queue.
fn raise_drained<P: Provider>(parts: &mut QpParts<P>) {
    let attr = QpAttr { qp_state: QpState::SQD, en_sqd_async_notify: true, ..QpAttr::default() };
    move_to::<P>(parts, &attr, QpAttrMask::EN_SQD_ASYNC_NOTIFY);
    move_to::<P>(parts, &QpAttr { qp_state: QpState::RTS, ..QpAttr::default() }, QpAttrMask::empty());
}

/// Waits until `count` records of `len` bytes can be read.
fn wait_for(fd: BorrowedFd<'_>, count: usize, len: usize) {
    let start = Instant::now();
    let mut bytes = [0; 1024];
    loop {
        let there =
            recv(fd.as_raw_fd(), &mut bytes, MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT).unwrap_or(0);
        if there == count * len {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "{there} bytes of {count} records of {len} came");
        thread::yield_now();
    }
}

/// Reads an event record, if there is one.
fn read<const LEN: usize>(fd: BorrowedFd<'_>) -> Option<[u8; LEN]> {
    let mut record = [0; LEN];
    let len = recv(fd.as_raw_fd(), &mut record, MsgFlags::MSG_DONTWAIT).ok()?;
    assert_eq!(len, LEN);
    Some(record)
}

/// Reads an asynchronous event and counts it for its object.
fn read_async(fd: BorrowedFd<'_>, counts: &mut Counts) {
    let record = read::<ASYNC_EVENT>(fd).expect("an event is there");
    let element = u64::from_ne_bytes(record[..8].try_into().unwrap());
    let event_type = u32::from_ne_bytes(record[8..12].try_into().unwrap());
    let object = match (AsyncEventType(event_type), element) {
        (AsyncEventType::CQ_ERR, CQ) => &mut counts.cq,
        (AsyncEventType::SRQ_LIMIT_REACHED, SRQ) => &mut counts.srq,
        (_, SENDER) => &mut counts.sender,
        (_, RECEIVER) => &mut counts.receiver,
        event => panic!("{event:?} is of no object"),
    };
    object.asynchronous += 1;
}

/// Defines each test twice: with the provider's own types and with erased types.
macro_rules! each_form {
    ($($name:ident)*) => {
        mod own {
            $(#[test]
            fn $name() {
                super::$name::<super::Soft>(&super::open());
            })*
        }
        mod erased {
            $(#[test]
            fn $name() {
                super::$name::<super::Erased>(&*super::erase::<super::Soft>(super::open()));
            })*
        }
    };
}

each_form! {
    completion_events_that_were_read_are_counted_and_the_others_are_gone
    asynchronous_events_that_were_read_are_counted_by_object
    the_event_of_an_overrun_is_counted
    a_thread_that_reads_meanwhile_gets_as_many_events_as_are_counted
    an_event_without_a_channel_is_none
}

fn open() -> provider_soft::Context {
    Soft::open(&SoftDevice::auto().unwrap()).unwrap()
}

fn completion_events_that_were_read_are_counted_and_the_others_are_gone<P: Provider>(context: &P::Context) {
    let channel = context.device().create_comp_channel().unwrap();
    let channel = channel.as_fd();
    for read_first in [0, 2, 4] {
        let mut objects = Objects::<P>::new(context, 16, Some(channel));
        for _ in 0..4 {
            objects.raise_comp();
        }
        // The device holds its lock until an event is written, and this call waits for the lock.
        objects.cq.modify(CqModeration::default()).unwrap();
        for _ in 0..read_first {
            assert_eq!(read(channel), Some(CQ.to_ne_bytes()));
        }
        let cq = EventsRead { comp: read_first, asynchronous: 0 };
        assert_eq!(objects.destroy(), Counts { cq, ..Counts::default() });
        assert_eq!(read::<COMP_EVENT>(channel), None, "an unread event outlived its queue");
    }
}

fn asynchronous_events_that_were_read_are_counted_by_object<P: Provider>(context: &P::Context) {
    let events = context.device().async_fd().unwrap();
    for read_first in 0..=6 {
        let mut objects = Objects::<P>::new(context, 16, None);
        for _ in 0..2 {
            raise_drained(&mut objects.sender);
            raise_drained(&mut objects.receiver);
            objects.raise_limit();
        }
        wait_for(events, 6, ASYNC_EVENT);
        let mut counts = Counts::default();
        for _ in 0..read_first {
            read_async(events, &mut counts);
        }
        assert_eq!(objects.destroy(), counts, "{read_first} of 6 were read");
        assert_eq!(read::<ASYNC_EVENT>(events), None, "an unread event outlived its object");
    }
}

fn the_event_of_an_overrun_is_counted<P: Provider>(context: &P::Context) {
    let events = context.device().async_fd().unwrap();
    for is_read in [false, true] {
        let mut objects = Objects::<P>::new(context, 1, None);
        // The message adds two completions to the queue.
        objects.send();
        let start = Instant::now();
        let mut bytes = [0; 1024];
        let cq_err = AsyncEventType::CQ_ERR.0.to_ne_bytes();
        loop {
            // Makes the device progress without removing a completion.
            let _ = objects.cq.poll(&mut []);
            objects.cq.req_notify(false).unwrap();
            let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
            let there = recv(events.as_raw_fd(), &mut bytes, flags).unwrap_or(0);
            if bytes[..there].chunks(ASYNC_EVENT).any(|record| record[8..12] == cq_err) {
                break;
            }
            assert!(start.elapsed() < PATIENCE, "the queue has room for one completion, and got two");
        }
        let mut counts = Counts::default();
        while is_read && counts.cq.asynchronous == 0 {
            read_async(events, &mut counts);
        }
        let ended = objects.destroy();
        assert_eq!(ended.cq, EventsRead { comp: 0, asynchronous: is_read.into() });
        assert_eq!(ended, counts);
    }
}

fn a_thread_that_reads_meanwhile_gets_as_many_events_as_are_counted<P: Provider>(context: &P::Context) {
    let channel = context.device().create_comp_channel().unwrap();
    let channel = channel.as_fd();
    for _ in 0..50 {
        let mut objects = Objects::<P>::new(context, 16, Some(channel));
        let is_gone = AtomicBool::new(false);
        thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut count = 0;
                loop {
                    // Checked before reading, so events that arrive before the end are all counted.
                    let ends = is_gone.load(Ordering::Acquire);
                    while read::<COMP_EVENT>(channel).is_some() {
                        count += 1;
                    }
                    if ends {
                        return count;
                    }
                    thread::yield_now();
                }
            });
            for _ in 0..8 {
                objects.raise_comp();
            }
            let counts = objects.destroy();
            is_gone.store(true, Ordering::Release);
            assert_eq!(counts.cq, EventsRead { comp: reader.join().unwrap(), asynchronous: 0 });
        });
    }
}

fn an_event_without_a_channel_is_none<P: Provider>(context: &P::Context) {
    let mut objects = Objects::<P>::new(context, 16, None);
    objects.raise_comp();
    assert_eq!(objects.destroy(), Counts::default());
}
