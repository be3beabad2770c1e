//! The cookies of ids and of memberships in groups, which events carry.
//!
//! ```text
//!   cookie ─► id             CREATE_ID, ACCEPT
//!          ─► id, membership JOIN_MCAST
//!   kernel's number ─► cookie, for events of a request that was not accepted yet
//! ```
//!
//! One table serves the process, because ids move between channels and take their events along. A
//! cookie becomes stale with its id: an event that was read before, or that another thread is
//! reading, names nothing any more. So nothing waits for events to be acknowledged, as C does.
//!
//! Invariant: no id is dropped under the lock, because its end takes the lock.

use std::collections::BTreeMap;
use std::sync::Weak;

use verbs_core::Errno;
use verbs_core::fork::{ForkGuard, ForkLock};
use verbs_core::slots::{SlotId, Slots};

use crate::id::IdInner;

static TABLE: ForkLock<Table> = ForkLock::new(Table { cookies: Slots::new(), by_number: BTreeMap::new() });

struct Table {
    cookies: Slots<Entry>,
    by_number: BTreeMap<u32, SlotId>,
}

/// The owner of a cookie.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// The id.
    pub(crate) id: Weak<IdInner>,
    /// Whether the cookie is that of a membership of the id.
    pub(crate) is_group: bool,
}

/// Reserves a cookie, whose events are skipped until it is [entered](enter).
///
/// # Errors
/// `ENOMEM`.
pub(crate) fn reserve() -> Result<SlotId, Errno> {
    table().cookies.try_insert(Entry { id: Weak::new(), is_group: false })
}

/// Gives a cookie to its owner.
pub(crate) fn enter(cookie: SlotId, entry: Entry) {
    if let Some(place) = table().cookies.get_mut(cookie) {
        *place = entry;
    }
}

/// Gives the kernel's number of an id the id's cookie.
pub(crate) fn enter_number(number: u32, cookie: SlotId) {
    table().by_number.insert(number, cookie);
}

/// Makes a cookie stale.
pub(crate) fn remove(cookie: SlotId) {
    table().cookies.remove(cookie);
}

/// Removes the kernel's number of an id, before the kernel gives it to another one.
pub(crate) fn remove_number(number: u32, cookie: SlotId) {
    let mut table = table();
    if table.by_number.get(&number) == Some(&cookie) {
        table.by_number.remove(&number);
    }
}

/// Returns the owner of an event's cookie; failing that, of the kernel's number.
pub(crate) fn find(uid: u64, number: Option<u32>) -> Option<(SlotId, Entry)> {
    let table = table();
    let cookie = match number {
        Some(number) if uid == 0 => *table.by_number.get(&number)?,
        _ => SlotId(uid),
    };
    table.cookies.get(cookie).map(|entry| (cookie, entry.clone()))
}

/// Locks the table. A child whose parent had the lock at the fork gets an empty one, and loses the
/// events of ids that it inherited, which are its parent's.
fn table() -> ForkGuard<'static, Table> {
    TABLE.lock_or(|| Table { cookies: Slots::of_child(), by_number: BTreeMap::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_cookie_finds_nothing_and_neither_does_its_number() {
        let cookie = reserve().unwrap();
        enter(cookie, Entry { id: Weak::new(), is_group: true });
        enter_number(0xffff_0001, cookie);
        assert!(find(cookie.0, None).is_some_and(|(found, entry)| found == cookie && entry.is_group));
        assert!(find(0, Some(0xffff_0001)).is_some());
        assert!(find(cookie.0, Some(5)).is_some(), "a cookie comes before the number");
        remove(cookie);
        assert!(find(cookie.0, None).is_none() && find(0, Some(0xffff_0001)).is_none());
        // The number has another id by now: the end of the first one leaves it alone.
        let next = reserve().unwrap();
        enter_number(0xffff_0001, next);
        remove_number(0xffff_0001, cookie);
        assert!(find(0, Some(0xffff_0001)).is_some_and(|(found, _)| found == next));
        remove_number(0xffff_0001, next);
        remove(next);
        assert!(find(0, Some(0xffff_0001)).is_none());
    }

    #[test]
    fn cookies_that_nobody_gave_find_nothing() {
        for uid in [0, 1 << 32, u64::MAX] {
            assert!(find(uid, None).is_none(), "{uid}");
        }
    }
}
