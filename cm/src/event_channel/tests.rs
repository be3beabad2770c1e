//! Tests of waiting, threads and channels with several sources.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::thread;

use uverbs_abi::rdma_user_cm::RdmaUcmEventResp;
use verbs::Ece;
use zerocopy::IntoBytes;

use super::*;
use crate::backend::Backend;
use crate::channel::{Expect, Reply, Scripted};
use crate::types::EventType;
use crate::{EventKind, PortSpace};

/// A source with events in memory; its file belongs to a scripted kernel.
#[derive(Debug)]
struct Memory {
    events: Mutex<VecDeque<u64>>,
    file: Scripted,
}

impl Memory {
    fn new() -> Arc<Self> {
        Arc::new(Self { events: Mutex::default(), file: Scripted::default() })
    }

    fn put(&self, uid: u64) {
        self.events.lock().unwrap().push_back(uid);
        self.file.wake();
    }
}

impl Source for Memory {
    fn create_id(&self, _: u64, _: PortSpace, _: QpType) -> Result<Box<dyn Backend>> {
        Err(Error::new("create_id", "", verbs::Errno::NODEV))
    }

    fn next(&self) -> Result<Option<RawEvent>> {
        Ok(self.events.lock().unwrap().pop_front().map(|uid| RawEvent {
            uid,
            kernel_number: None,
            event: EventType::USER,
            status: 0,
            param: Box::new(uverbs_abi::rdma_user_cm::RdmaUcmEventRespParam::default()),
            ece: Ece::default(),
            request: None,
        }))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        crate::channel::Channel::fd(&self.file)
    }
}

/// Returns an id of a separate kernel, used for its cookie.
fn id(kernel: &Scripted) -> CmId {
    kernel.expect([Expect::anything(Reply::bytes(&[9, 0, 0, 0]))]);
    let source: Arc<dyn Source> = Arc::new(Kernel(kernel.ucma(true)));
    EventChannel::from_sources(source, Vec::new()).unwrap().create_id(PortSpace::TCP).unwrap()
}

fn is_readable(channel: &EventChannel) -> bool {
    let mut fds = [PollFd::new(channel.as_fd(), PollFlags::POLLIN)];
    ppoll(&mut fds, Some(TimeSpec::from_duration(Duration::ZERO)), None).unwrap() == 1
}

#[test]
fn waiting_ends_with_the_time_that_is_given() {
    for more in [vec![], vec![Memory::new() as Arc<dyn Source>]] {
        let channel = EventChannel::from_sources(Memory::new(), more).unwrap();
        assert!(channel.try_next_event().unwrap().is_none());
        assert!(channel.next_event_within(Duration::ZERO).unwrap().is_none());
        let start = Instant::now();
        assert!(channel.next_event_within(Duration::from_millis(20)).unwrap().is_none());
        assert!(start.elapsed() >= Duration::from_millis(20));
    }
    let wait = |left| milliseconds(Duration::from_nanos(left)).as_millis();
    assert_eq!([0, 1, 1_000_000, 1_000_001].map(wait), [0, 1, 1, 2].map(Some));
}

#[test]
fn one_descriptor_serves_the_sources_of_a_channel_in_turn() {
    let kernel = Scripted::default();
    let id = id(&kernel);
    let uid = id.key().0.0;
    let (one, other) = (Memory::new(), Memory::new());
    let sources: [Arc<dyn Source>; 2] = [one.clone(), other.clone()];
    let [first, second] = sources;
    let channel = EventChannel::from_sources(first, vec![second]).unwrap();
    assert!(!is_readable(&channel));
    for source in [&one, &other] {
        source.put(uid);
        assert!(is_readable(&channel));
        let event = channel.next_event().unwrap();
        assert!(event.id == id.key() && matches!(event.kind, EventKind::User(0)), "{event:?}");
        assert!(channel.try_next_event().unwrap().is_none());
    }
    // A busy source does not starve the other source.
    for (busy, silent) in [(&one, &other), (&other, &one)] {
        (0..4 * BURST).for_each(|_| busy.put(uid));
        silent.put(uid);
        for _ in 0..3 * BURST {
            channel.next_event().unwrap();
        }
        assert!(silent.events.lock().unwrap().is_empty());
        busy.events.lock().unwrap().clear();
    }
    kernel.expect([Expect::anything(Reply::ok())]);
    drop(id);
}

#[test]
fn two_threads_at_one_channel_get_each_event_once() {
    const EVENTS: usize = 200;
    let kernel = Scripted::default();
    let id = id(&kernel);
    let source = Memory::new();
    let channel = EventChannel::from_sources(source.clone(), Vec::new()).unwrap();
    let taken = Mutex::new(0);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while *taken.lock().unwrap() < EVENTS {
                    // The file stays readable, so a thread that finds nothing tries again.
                    if channel.next_event_within(Duration::from_millis(1)).unwrap().is_some() {
                        *taken.lock().unwrap() += 1;
                    }
                }
            });
        }
        (0..EVENTS).for_each(|_| source.put(id.key().0.0));
    });
    assert_eq!(taken.into_inner().unwrap(), EVENTS);
    assert!(channel.try_next_event().unwrap().is_none());
    kernel.expect([Expect::anything(Reply::ok())]);
    drop(id);
}

#[test]
fn a_stale_event_is_skipped_for_the_next_one() {
    let kernel = Scripted::default();
    let source: Arc<dyn Source> = Arc::new(Kernel(kernel.ucma(true)));
    let channel = EventChannel::from_sources(source, Vec::new()).unwrap();
    kernel.expect([Expect::anything(Reply::bytes(&[9, 0, 0, 0]))]);
    let id = channel.create_id(PortSpace::TCP).unwrap();
    let event = |uid| RdmaUcmEventResp { uid, event: 2, ..RdmaUcmEventResp::default() };
    let read = |uid| Expect::anything(Reply::bytes(event(uid).as_bytes()));
    kernel.expect([read(u64::MAX), read(id.key().0.0)]);
    let found = channel.next_event().unwrap();
    assert!(found.id == id.key() && matches!(found.kind, EventKind::RouteResolved), "{found:?}");
    kernel.expect([Expect::anything(Reply::ok())]);
    drop(id);
}

#[test]
fn a_channel_and_its_ids_may_be_used_by_any_thread() {
    fn shared<T: Send + Sync>() {}
    shared::<EventChannel>();
    shared::<CmId>();
    fn sent<T: Send>() {}
    sent::<Event>();
}

#[cfg(feature = "soft")]
#[test]
fn an_address_that_no_soft_device_reaches_says_why_the_kernel_does_not_open() {
    let _device = crate::own_device::own_device();
    let channel_without_kernel = |errno| {
        let cause = Cause::File { path: "/dev/infiniband/rdma_cm".into(), hint: "no permission" };
        let error = Error::new("create_event_channel", "", errno).because(cause);
        let channel = EventChannel::with(Err(error), true).unwrap();
        assert_eq!(channel.kernel_error().map(|error| error.errno), Some(errno));
        channel
    };
    // This documentation address is routed to the default interface, if any.
    let to = ([192, 0, 2, 1], 7471);
    let within = Duration::from_secs(2);

    let channel = channel_without_kernel(verbs::Errno::ACCESS);
    let id = channel.create_id(PortSpace::TCP).unwrap();
    let error = id.resolve_addr(None, to, within).unwrap_err();
    if error.errno == verbs::Errno::NETUNREACH {
        println!("SKIP: no route leads out of this machine");
        return;
    }
    assert_eq!(error.errno, verbs::Errno::ACCESS, "{error}");
    let text = error.to_string();
    assert!(text.starts_with("resolve_addr") && text.contains("/dev/infiniband/rdma_cm"), "{text}");

    // A machine without the file has no kernel device either.
    let channel = channel_without_kernel(verbs::Errno::NOENT);
    let id = channel.create_id(PortSpace::TCP).unwrap();
    id.resolve_addr(None, to, within).unwrap();
    let event = channel.next_event_within(within).unwrap().unwrap();
    assert!(matches!(event.kind, EventKind::AddrError), "{event:?}");
    assert_eq!(event.status.errno(), Some(verbs::Errno::NODEV));
}
