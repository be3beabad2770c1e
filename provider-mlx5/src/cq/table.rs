//! [`Table`]: the queues that complete to a completion queue, by the number that completions carry.

use std::sync::Arc;

use crate::record::{RecvRecord, SendRecord};

/// The queues of a queue pair that complete here: one or both.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queues {
    pub(crate) send: Option<Arc<SendRecord>>,
    pub(crate) recv: Option<Arc<RecvRecord>>,
}

/// A queue pair in the table.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) user_index: u32,
    /// `None` once it is destroyed.
    pub(super) queues: Option<Queues>,
    /// Completions at places before this one are of a former life of the queue pair.
    pub(super) since: Option<u32>,
}

/// Two levels, because a context numbers its queue pairs densely, and a completion queue has few of
/// them.
#[derive(Debug, Default)]
pub(super) struct Table {
    pages: Vec<Option<Box<Page>>>,
}

/// Boxed entries stay in place while others come and go.
type Page = [Option<Box<Entry>>; PAGE];

const PAGE: usize = 256;

impl Table {
    /// Returns the entry of a number.
    #[inline]
    pub(super) fn get(&self, user_index: u32) -> Option<&Entry> {
        let (page, place) = split(user_index);
        self.pages.get(page)?.as_ref()?[place].as_deref()
    }

    pub(super) fn get_mut(&mut self, user_index: u32) -> Option<&mut Entry> {
        let (page, place) = split(user_index);
        self.pages.get_mut(page)?.as_mut()?[place].as_deref_mut()
    }

    /// Puts an entry in, in the place of one of the same number.
    pub(super) fn insert(&mut self, entry: Entry) {
        let (page, place) = split(entry.user_index);
        if self.pages.len() <= page {
            self.pages.resize_with(page + 1, || None);
        }
        let page = self.pages[page].get_or_insert_with(|| Box::new([const { None }; PAGE]));
        page[place] = Some(Box::new(entry));
    }

    /// Removes the entry of a number.
    pub(super) fn remove(&mut self, user_index: u32) {
        let (page, place) = split(user_index);
        if let Some(Some(page)) = self.pages.get_mut(page) {
            page[place] = None;
        }
    }
}

/// The page of a number, and its place there.
const fn split(user_index: u32) -> (usize, usize) {
    (user_index as usize / PAGE, user_index as usize % PAGE)
}
