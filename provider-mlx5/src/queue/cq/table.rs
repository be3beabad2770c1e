//! [`Table`]: the queues that complete to a completion queue, by user index.

use std::sync::Arc;

use super::lists::Lists;
use crate::queue::record::{Kind, RecvRecord, SendRecord, SrqRecord};
use crate::queue::srq::TagRecord;

/// The queues of a queue pair that complete to this completion queue: one or both. A shared receive
/// queue of the kind XRC or TM has its own user index, without other queues.
#[derive(Clone, Debug)]
pub(crate) struct Queues {
    pub(crate) send: Option<Arc<SendRecord>>,
    pub(crate) recv: Option<Receives>,
    /// The kind of each receive of the queue pair.
    pub(crate) recv_kind: Kind,
    /// The location of the request lists, for a queue pair whose completions may contain data.
    pub(crate) lists: Option<Arc<Lists>>,
}

impl Default for Queues {
    fn default() -> Self {
        Self { send: None, recv: None, recv_kind: Kind::RECEIVE, lists: None }
    }
}

/// The source of a queue pair's receives.
#[derive(Clone, Debug)]
pub(crate) enum Receives {
    /// The queue pair's own receive queue.
    Own(Arc<RecvRecord>),
    /// A shared receive queue.
    Shared(Arc<SrqRecord>),
    /// A shared receive queue with a tag list; the record also has the tags.
    Tagged(Arc<TagRecord>),
}

impl Receives {
    /// Marks the receive in an entry as ended and returns its `wr_id`; `None` if the entry has no
    /// receive.
    #[inline(always)]
    pub(super) fn complete(&self, entry: u16) -> Option<u64> {
        match self {
            Self::Own(requests) => Some(requests.complete(entry)),
            Self::Shared(requests) => requests.complete(entry),
            Self::Tagged(tags) => tags.receives().complete(entry),
        }
    }
}

/// A queue pair in the table, or a shared receive queue with its own user index.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) user_index: u32,
    /// `None` once the queue pair or shared receive queue is destroyed.
    pub(super) queues: Option<Queues>,
    /// The index before which completions belong to former uses of the user index.
    pub(super) since: Option<u32>,
    /// The former uses whose completions the poller has not yet passed, in order.
    former: Vec<EndedUse>,
}

/// An ended use of the user index by a queue pair.
#[derive(Debug)]
struct EndedUse {
    /// The index before which completions belong to this use, or to an earlier use.
    until: u32,
    /// The shared receive queue that supplied the receives, if any.
    srq: Option<Arc<SrqRecord>>,
}

impl Entry {
    pub(super) const fn new(user_index: u32, queues: Queues) -> Self {
        Self { user_index, queues: Some(queues), since: None, former: Vec::new() }
    }

    /// Ends the current use at index `until`. If there are new queues, a new use begins.
    pub(super) fn end(&mut self, until: u32, queues: Option<Queues>) {
        let ended = core::mem::replace(&mut self.queues, queues);
        let srq = ended.and_then(|queues| match queues.recv {
            Some(Receives::Shared(requests)) => Some(requests),
            _ => None,
        });
        self.since = Some(until);
        match self.former.last_mut() {
            Some(last) if last.srq.as_ref().map(Arc::as_ptr) == srq.as_ref().map(Arc::as_ptr) => {
                last.until = until;
            }
            _ => self.former.push(EndedUse { until, srq }),
        }
    }

    /// Moves the ends of the former uses forward by one, because their completions have moved.
    pub(super) fn move_on(&mut self) {
        for ended in &mut self.former {
            ended.until = ended.until.wrapping_add(1);
        }
        self.since = self.since.map(|since| since.wrapping_add(1));
    }

    /// Removes the former uses; the poller has passed their completions.
    pub(super) fn forget(&mut self) {
        self.since = None;
        self.former.clear();
    }

    /// Frees the entry of a receive whose completion, at index `at`, belongs to a former use of the
    /// user index. The program does not see the completion, but the shared receive queue still
    /// needs the entry.
    #[cold]
    pub(super) fn release(&self, at: u32, entry: u16) {
        if let Some(EndedUse { srq: Some(requests), .. }) =
            self.former.iter().find(|ended| lies_before(at, ended.until))
        {
            requests.complete(entry);
        }
    }
}

/// Returns whether one index lies before another.
#[inline(always)]
pub(super) const fn lies_before(at: u32, until: u32) -> bool {
    at.wrapping_sub(until).cast_signed() < 0
}

/// The entries by user index, in two levels: a context assigns user indices densely, but a
/// completion queue has few of them.
#[derive(Debug, Default)]
pub(super) struct Table {
    pages: Vec<Option<Box<Page>>>,
}

/// A page of entries. They are boxed so that each keeps its address while others are added and
/// removed.
type Page = [Option<Box<Entry>>; PAGE];

const PAGE: usize = 256;

impl Table {
    /// Returns the entry with a user index.
    #[inline]
    pub(super) fn get(&self, user_index: u32) -> Option<&Entry> {
        let (page, place) = split(user_index);
        self.pages.get(page)?.as_ref()?[place].as_deref()
    }

    pub(super) fn get_mut(&mut self, user_index: u32) -> Option<&mut Entry> {
        let (page, place) = split(user_index);
        self.pages.get_mut(page)?.as_mut()?[place].as_deref_mut()
    }

    /// Inserts an entry in place of any entry with the same user index.
    pub(super) fn insert(&mut self, entry: Entry) {
        let (page, place) = split(entry.user_index);
        if self.pages.len() <= page {
            self.pages.resize_with(page + 1, || None);
        }
        let page = self.pages[page].get_or_insert_with(|| Box::new([const { None }; PAGE]));
        page[place] = Some(Box::new(entry));
    }

    /// Removes the entry with a user index.
    pub(super) fn remove(&mut self, user_index: u32) {
        let (page, place) = split(user_index);
        if let Some(Some(page)) = self.pages.get_mut(page) {
            page[place] = None;
        }
    }
}

/// Returns the page for a user index and the index within that page.
const fn split(user_index: u32) -> (usize, usize) {
    (user_index as usize / PAGE, user_index as usize % PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_of_a_former_life_frees_an_entry_of_the_queue_of_that_life() {
        let [first, second, last] = [(); 3].map(|()| SrqRecord::new(8));
        let queues = |requests| Queues {
            send: None,
            recv: Some(Receives::Shared(Arc::clone(requests))),
            ..Queues::default()
        };
        let own = Queues { send: None, recv: Some(Receives::Own(RecvRecord::new(8))), ..Queues::default() };
        let mut entry = Entry::new(1, queues(&first));
        // Two uses with the same shared receive queue, one use with none, and one with another.
        for (until, next) in [(u32::MAX, queues(&first)), (1, own), (3, queues(&second)), (5, queues(&last))]
        {
            entry.end(until, Some(next));
        }
        assert_eq!((entry.since, entry.former.len()), (Some(5), 3));
        // A resize moves all completions by one index.
        entry.move_on();
        for (at, expected) in [
            (u32::MAX - 1, [true, false]),
            (0, [true, false]),
            (1, [true, false]),
            (2, [false, false]),
            (3, [false, false]),
            (4, [false, true]),
            (5, [false, true]),
            (6, [false, false]),
        ] {
            for requests in [&first, &second, &last] {
                requests.mark(3, 1 << 3);
            }
            entry.release(at, 3);
            let freed = [&first, &second].map(|requests| requests.complete(3).is_none());
            assert_eq!(freed, expected, "{at}");
            assert!(last.complete(3).is_some(), "the queue of the use that goes on");
        }
        assert!(lies_before(5, entry.since.unwrap()) && !lies_before(6, entry.since.unwrap()));
        entry.forget();
        assert_eq!([&first, &second].map(Arc::strong_count), [1, 1]);
    }
}
