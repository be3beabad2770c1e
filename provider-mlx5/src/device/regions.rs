//! [`Regions`]: a context's memory regions, found by local key.
//!
//! The process itself copies data that comes with a completion. For such data the device has
//! checked no key, so the poller performs the device's checks: it looks up the region by the
//! element's key, and compares the protection domain, the range and the rights. It also locates the
//! bytes, which are at the element's address only if the region was registered with that address.
//!
//! A region is in the table from its registration until its deregistration is requested. A later
//! request that names it is a bug in the program and completes with an error. A region imported
//! into the context that registered it keeps its one entry, which the imported handle neither adds
//! nor removes.
//!
//! In a forked child whose parent was changing the table, the table is [lost](Regions::is_lost).

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use verbs_core::fork::{ForkReadGuard, ForkRwLock, Lost};
use verbs_core::types::AccessFlags;

/// The table's entry for a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegionInfo {
    /// The handle of the region's protection domain.
    pub(crate) pd: u32,
    /// The address that requests use for the region's first byte.
    pub(crate) iova: u64,
    pub(crate) length: u64,
    /// The address of the region's first byte in this process; `None` if the process cannot access
    /// the memory: device memory, a dma-buf, or another process's memory.
    pub(crate) addr: Option<usize>,
    pub(crate) is_writable: bool,
}

impl RegionInfo {
    /// Returns the entry for memory at an address in this process, or, with `None`, for memory the
    /// process cannot access.
    pub(crate) const fn new(
        pd: u32,
        addr: Option<usize>,
        length: u64,
        iova: u64,
        access: AccessFlags,
    ) -> Self {
        let iova = if access.contains(AccessFlags::ZERO_BASED) { 0 } else { iova };
        Self { pd, iova, length, addr, is_writable: access.contains(AccessFlags::LOCAL_WRITE) }
    }
}

/// The destination of the bytes for a list element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// The memory at this address.
    At(usize),
    /// Nowhere: the key belongs to the null region.
    Discard,
}

/// The regions of a context; see the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    by_key: ForkRwLock<BTreeMap<u32, RegionInfo>>,
    /// The key shared by all null regions.
    null_key: Option<u32>,
}

impl Regions {
    /// Creates an empty table. `null_key` is the key of the device's null regions.
    pub(crate) fn new(null_key: Option<u32>) -> Self {
        Self { by_key: ForkRwLock::default(), null_key }
    }

    /// Returns whether a thread of a parent process was changing the table at the fork.
    pub(crate) fn is_lost(&self) -> bool {
        self.by_key.is_lost()
    }

    /// Adds a region before any request names it. The caller has checked that the table is not
    /// [lost](Self::is_lost). A table can be lost only at a fork.
    pub(crate) fn add(&self, lkey: u32, info: RegionInfo) {
        if let Ok(mut by_key) = self.by_key.write() {
            by_key.insert(lkey, info);
        }
    }

    /// Adds a region that another handle registered, in this process or another process. Returns
    /// the new entry, or `None` if the key already has one. As for [`add`](Self::add), the table
    /// must not be lost.
    pub(crate) fn add_imported(&self, lkey: u32, info: RegionInfo) -> Option<RegionInfo> {
        let mut by_key = self.by_key.write().ok()?;
        match by_key.entry(lkey) {
            Entry::Vacant(entry) => Some(*entry.insert(info)),
            Entry::Occupied(_) => None,
        }
    }

    /// Removes an imported region that was [added](Self::add_imported), unless another region now
    /// has its key.
    ///
    /// # Errors
    /// [`Lost`] in a forked child whose parent was changing the table.
    pub(crate) fn remove_imported(&self, lkey: u32, info: RegionInfo) -> Result<(), Lost> {
        let mut by_key = self.by_key.write()?;
        if by_key.get(&lkey) == Some(&info) {
            by_key.remove(&lkey);
        }
        Ok(())
    }

    /// Removes a region before the kernel may reuse its key.
    ///
    /// # Errors
    /// [`Lost`] in a forked child whose parent was changing the table.
    pub(crate) fn remove(&self, lkey: u32) -> Result<Option<RegionInfo>, Lost> {
        Ok(self.by_key.write()?.remove(&lkey))
    }

    /// Returns whether this process can access the memory of every region.
    pub(crate) fn all_in_reach(&self) -> bool {
        self.view().is_ok_and(|view| view.by_key.values().all(|info| info.addr.is_some()))
    }

    /// Returns a view of the regions. No region can be removed while the view lives.
    ///
    /// # Errors
    /// [`Lost`] in a forked child whose parent was changing the table.
    pub(crate) fn view(&self) -> Result<View<'_>, Lost> {
        Ok(View { by_key: self.by_key.read()?, null_key: self.null_key })
    }
}

/// The regions, locked against changes.
#[derive(Debug)]
pub(crate) struct View<'a> {
    by_key: ForkReadGuard<'a, BTreeMap<u32, RegionInfo>>,
    null_key: Option<u32>,
}

impl View<'_> {
    /// Returns the target for `length` bytes of an element, after the checks that the device makes
    /// for a queue in this protection domain.
    pub(crate) fn target(&self, pd: u32, lkey: u32, address: u64, length: u32) -> Option<Target> {
        if Some(lkey) == self.null_key {
            return Some(Target::Discard);
        }
        let info = self.by_key.get(&lkey)?;
        let offset = address.checked_sub(info.iova)?;
        let is_inside = offset.checked_add(length.into()).is_some_and(|end| end <= info.length);
        if !is_inside || info.pd != pd || !info.is_writable {
            return None;
        }
        Some(Target::At(info.addr?.checked_add(usize::try_from(offset).ok()?)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forked::is_true_in_child;

    const RIGHTS: AccessFlags = AccessFlags::LOCAL_WRITE;

    #[test]
    fn a_second_name_leaves_the_place_of_a_region_alone() {
        let (here, beyond) =
            (RegionInfo::new(5, Some(0x1000), 64, 0x1000, RIGHTS), RegionInfo::new(6, None, 64, 0, RIGHTS));
        let regions = Regions::new(None);
        regions.add(1, here);
        assert_eq!(regions.add_imported(1, beyond), None);
        assert_eq!(regions.view().unwrap().target(5, 1, 0x1000, 8), Some(Target::At(0x1000)));
        // A region of another process: while it exists, the process cannot access all of the
        // context's memory.
        assert_eq!(regions.add_imported(2, beyond), Some(beyond));
        assert!(!regions.all_in_reach());
        regions.remove_imported(2, beyond).unwrap();
        assert!(regions.all_in_reach());
        // Its owner has deregistered it, and the key now belongs to a region of this process.
        assert_eq!(regions.add_imported(2, beyond), Some(beyond));
        regions.add(2, here);
        regions.remove_imported(2, beyond).unwrap();
        assert_eq!(regions.view().unwrap().target(5, 2, 0x1000, 8), Some(Target::At(0x1000)));
    }

    #[test]
    fn an_element_has_a_target_where_the_device_had_written() {
        let regions = Regions::new(Some(7));
        regions.add(1, RegionInfo::new(5, Some(0x1000), 64, 0x8000, RIGHTS));
        regions.add(2, RegionInfo::new(5, Some(0x1000), 64, 0x1000, AccessFlags::empty()));
        regions.add(3, RegionInfo::new(5, Some(0x2000), 64, 0x2000, RIGHTS | AccessFlags::ZERO_BASED));
        regions.add(4, RegionInfo::new(5, Some(0), u64::MAX, 0, RIGHTS));
        for (pd, lkey, address, length, target) in [
            (5, 1, 0x8000, 64, Some(Target::At(0x1000))),
            (5, 1, 0x8004, 60, Some(Target::At(0x1004))),
            (5, 1, 0x8004, 61, None),
            (5, 1, 0x7fff, 2, None),
            (5, 1, u64::MAX, 2, None),
            (6, 1, 0x8000, 64, None),
            (5, 2, 0x1000, 1, None),
            (5, 3, 8, 8, Some(Target::At(0x2008))),
            (5, 4, 0x7fff_0000, 8, Some(Target::At(0x7fff_0000))),
            (5, 8, 0x8000, 1, None),
            (9, 7, 1, 64, Some(Target::Discard)),
        ] {
            assert_eq!(
                regions.view().unwrap().target(pd, lkey, address, length),
                target,
                "{lkey} at {address:#x}"
            );
        }
    }

    #[test]
    fn a_region_out_of_reach_has_no_target() {
        let regions = Regions::new(None);
        assert!(regions.all_in_reach());
        regions.add(1, RegionInfo::new(5, None, 64, 0, RIGHTS));
        assert!(!regions.all_in_reach() && regions.view().unwrap().target(5, 1, 0, 8).is_none());
        assert!(regions.remove(1).unwrap().is_some() && regions.all_in_reach());
        assert_eq!(regions.remove(1), Ok(None));
    }

    #[test]
    fn a_child_removes_regions_unless_its_parent_was_changing_the_table() {
        let regions = Regions::new(None);
        regions.add(1, RegionInfo::new(5, None, 64, 0, RIGHTS));
        let reads = regions.view();
        assert!(is_true_in_child(|| regions.remove(1).is_ok_and(|info| info.is_some())));
        drop(reads);
        let writes = regions.by_key.write();
        assert!(is_true_in_child(|| regions.is_lost()
            && regions.remove(1) == Err(Lost)
            && regions.view().is_err()
            && !regions.all_in_reach()));
        drop(writes);
        assert!(!regions.is_lost() && regions.remove(1).is_ok());
    }
}
