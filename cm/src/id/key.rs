//! [`IdKey`], [`GroupKey`]: the keys that name ids and memberships in events.

use core::fmt;

use verbs_core::slots::SlotId;

/// The key that names an id in events. A key is reused only after 2³¹ other ids of the process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdKey(pub(crate) SlotId);

/// The key that names a group membership in events.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupKey(pub(crate) SlotId);

impl fmt::Display for IdKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for IdKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IdKey({self})")
    }
}

impl fmt::Debug for GroupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GroupKey({})", self.0)
    }
}
