//! The cookies of ids and of group memberships, which events carry.
//!
//! ```text
//!   cookie ─► id             CREATE_ID, ACCEPT
//!          ─► id, membership JOIN_MCAST
//!   kernel's handle ─► cookie, for events of a request that was not accepted yet
//! ```
//!
//! The process has one table, because ids move between channels along with their events. A cookie
//! becomes stale with its id: events already read, or being read by another thread, then name no
//! id. Unlike in C, nothing waits for events to be acknowledged.
//!
//! Invariant: no id is dropped under the lock, because its destruction takes the lock.

use std::collections::BTreeMap;
use std::sync::Weak;

use verbs_core::Errno;
use verbs_core::fork::{ForkGuard, ForkLock};
use verbs_core::slots::{SlotId, Slots};

use super::IdInner;

static TABLE: ForkLock<Table> = ForkLock::new(Table { cookies: Slots::new(), by_number: BTreeMap::new() });

struct Table {
    cookies: Slots<Entry>,
    by_number: BTreeMap<u32, SlotId>,
}

/// The owner of a cookie.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// A weak reference to the id.
    pub(crate) id: Weak<IdInner>,
    /// Whether the cookie belongs to a membership of the id.
    pub(crate) is_group: bool,
}

/// Reserves a cookie. Events with the cookie are skipped until it is [entered](enter).
///
/// # Errors
/// `ENOMEM` if the table cannot grow.
pub(crate) fn reserve() -> Result<SlotId, Errno> {
    table().cookies.try_insert(Entry { id: Weak::new(), is_group: false })
}

/// Records `entry` as the owner of `cookie`.
pub(crate) fn enter(cookie: SlotId, entry: Entry) {
    if let Some(place) = table().cookies.get_mut(cookie) {
        *place = entry;
    }
}

/// Associates the kernel's handle for an id with the id's cookie.
pub(crate) fn enter_number(number: u32, cookie: SlotId) {
    table().by_number.insert(number, cookie);
}

/// Removes a cookie, so that events with it become stale.
pub(crate) fn remove(cookie: SlotId) {
    table().cookies.remove(cookie);
}

/// Removes the kernel's handle for an id, before the kernel reuses the handle.
pub(crate) fn remove_number(number: u32, cookie: SlotId) {
    let mut table = table();
    if table.by_number.get(&number) == Some(&cookie) {
        table.by_number.remove(&number);
    }
}

/// Returns the owner of an event, found by its cookie or, without a cookie, by the kernel's handle.
pub(crate) fn find(uid: u64, number: Option<u32>) -> Option<(SlotId, Entry)> {
    let table = table();
    let cookie = match number {
        Some(number) if uid == 0 => *table.by_number.get(&number)?,
        _ => SlotId(uid),
    };
    table.cookies.get(cookie).map(|entry| (cookie, entry.clone()))
}

/// Locks the table. A child whose parent held the lock at the fork gets an empty table and loses
/// the events of inherited ids, which belong to its parent.
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
        // The handle already belongs to another id, so the end of the first id must not remove it.
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
