//! [`Group`]: a membership in a multicast group.

use core::ffi::c_void;

use rdmacm::GroupKey;
use verbs_core::fork::ForkLock;
use verbs_core::types::Gid;

use super::tally::Tally;

/// A membership in a multicast group.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) key: GroupKey,
    /// The group's address, which the program passes to leave the group.
    pub(super) address: Vec<u8>,
    /// The address of the context that the program passed.
    pub(super) context: usize,
    pub(super) only_sends: bool,
    /// The GID and LID of the queue pair's multicast group, once it is attached.
    pub(super) attached: ForkLock<Option<(Gid, u16)>>,
    pub(super) tally: Tally,
}

impl Group {
    /// Returns the context pointer that the program passed.
    pub(super) fn context(&self) -> *mut c_void {
        core::ptr::with_exposed_provenance_mut(self.context)
    }
}
