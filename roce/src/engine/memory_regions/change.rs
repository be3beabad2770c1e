//! [`MrChange`]: a change to a region by its owner. The region's index stays the same.

use super::{Entry, INVALID, KeyRefused, MemoryRegions, Window, check_range};
use crate::engine::types::{Access, MemoryAttr, Pd, Refused, WindowRange};

/// A change to a region. `None` leaves an attribute unchanged.
///
/// # References
/// Programmer's Reference Manual, UMR (user memory registration) work requests
#[derive(Debug)]
pub struct MrChange<R> {
    /// The new low 8 bits of the key.
    pub new_variant: Option<u8>,
    /// The new protection domain.
    pub pd: Option<Pd>,
    /// The new access rights. Dependencies between them are not checked.
    pub access: Option<Access>,
    /// The new address of the first byte, as used in work requests, and the new length in bytes.
    pub iova_and_length: Option<(u64, u64)>,
    /// The new representation of the region for [`Memory`](crate::engine::Memory). Windows on the
    /// region use it, too. The previous representation is dropped.
    pub region: Option<R>,
    /// Whether the region is valid. Access to an invalid region is rejected as with an unknown key.
    pub valid: Option<bool>,
    /// Whether work requests and peers may invalidate the region.
    pub invalidate: Option<bool>,
}

impl<R> Default for MrChange<R> {
    fn default() -> Self {
        Self {
            new_variant: None,
            pd: None,
            access: None,
            iova_and_length: None,
            region: None,
            valid: None,
            invalidate: None,
        }
    }
}

impl<R> MemoryRegions<R> {
    /// Returns a region's current key, its attributes and whether it is valid.
    pub(crate) fn region_at(&self, index: u32) -> Option<(u32, &MemoryAttr, bool)> {
        match self.entries.get(index)? {
            Entry::Region(region) => {
                let key = index << 8 | u32::from(region.variant as u8);
                Some((key, &region.attr, region.variant & INVALID == 0))
            }
            Entry::Window(_) => None,
        }
    }

    /// Returns the memory range accessible through a bound window.
    pub(crate) fn window_at(&self, index: u32) -> Option<WindowRange> {
        let Entry::Window(Window { variant, bound: Some(bound), .. }) = self.entries.get(index)? else {
            return None;
        };
        let (lkey, attr, _) = self.region_at(bound.region)?;
        let addr = attr.iova.wrapping_add(bound.offset);
        let rkey = index << 8 | u32::from(*variant);
        Some(WindowRange { rkey, iova: bound.iova, length: bound.length, lkey, addr })
    }

    /// Returns the [`Memory`](crate::engine::Memory)'s representation of a region.
    pub(crate) fn memory_at(&self, index: u32) -> Option<&R> {
        match self.entries.get(index)? {
            Entry::Region(region) => Some(&region.region),
            Entry::Window(_) => None,
        }
    }

    /// Changes a region completely or not at all. Returns the region's new key.
    pub(crate) fn change(&mut self, index: u32, change: MrChange<R>) -> Result<u32, Refused> {
        let Some(Entry::Region(region)) = self.entries.get_mut(index) else {
            return Err(Refused::NoSuchObject);
        };
        // A window gives access to a range of the region, within the region's domain. The region's
        // representation may change while windows are bound.
        let moves = change.pd.is_some() || change.iova_and_length.is_some();
        if region.windows > 0 && (moves || change.valid == Some(false)) {
            return Err(Refused::Busy);
        }
        if let Some((iova, length)) = change.iova_and_length {
            check_range(iova, length)?;
            (region.attr.iova, region.attr.length) = (iova, length);
        }
        let valid = change.valid.unwrap_or(region.variant & INVALID == 0);
        let variant = change.new_variant.unwrap_or(region.variant as u8);
        region.variant = u16::from(variant) | if valid { 0 } else { INVALID };
        region.attr.pd = change.pd.unwrap_or(region.attr.pd);
        region.attr.access = change.access.unwrap_or(region.attr.access);
        region.invalidate = change.invalidate.unwrap_or(region.invalidate);
        if let Some(memory) = change.region {
            region.region = memory;
        }
        Ok(index << 8 | u32::from(variant))
    }

    /// Invalidates a region on behalf of a work request or a peer of a queue pair in domain `pd`.
    pub(super) fn invalidate_region(&mut self, pd: Pd, rkey: u32) -> Result<(), KeyRefused> {
        match self.entries.get_mut(rkey >> 8) {
            Some(Entry::Region(region))
                if region.variant == u16::from(rkey as u8)
                    && region.attr.pd == pd
                    && region.invalidate
                    && region.windows == 0 =>
            {
                region.variant |= INVALID;
                Ok(())
            }
            _ => Err(KeyRefused),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Bind;
    use super::*;
    use crate::engine::testing::random;
    use crate::engine::types::{MwType, Qpn};

    const PD: Pd = Pd(1);
    const QPN: Qpn = Qpn(17);
    const ALL: Access = Access(0xf | 1 << 4);

    /// Returns a table that holds a region of 64 bytes at 0x1000, along with the region's key. The
    /// key ends with 0x42.
    fn keyed(invalidate: bool) -> (MemoryRegions<char>, u32) {
        let mut regions = MemoryRegions::new(100);
        let attr = MemoryAttr { pd: PD, iova: 0x1000, length: 64, access: ALL };
        let key = regions.insert_keyed(&attr, 'a', 0x42, invalidate, &mut random()).unwrap();
        (regions, key)
    }

    fn found(regions: &MemoryRegions<char>, pd: Pd, key: u32, addr: u64, length: u64) -> Option<(char, u64)> {
        let local = regions.local(pd, key, addr, length, Access::LOCAL_WRITE).map(|(r, offset)| (*r, offset));
        let remote =
            regions.remote(pd, QPN, key, addr, length, Access::REMOTE_READ).map(|(r, offset)| (*r, offset));
        assert_eq!(local, remote, "the owner and its peers see the same");
        local
    }

    #[test]
    fn the_low_bits_of_a_key_are_the_owners() {
        let (mut regions, key) = keyed(false);
        assert_eq!(key & 0xff, 0x42);
        let window = regions.insert_window_keyed(PD, MwType::Two, 0x42, &mut random()).unwrap();
        assert_eq!(window & 0xff, 0x42);
        assert_ne!(window, key);
        let attr = MemoryAttr { pd: PD, iova: 0, length: 8, access: Access::REMOTE_WRITE };
        assert!(
            regions.insert_keyed(&attr, 'b', 0, false, &mut random()).is_ok(),
            "rights are the owner's as well"
        );
        let wraps = MemoryAttr { iova: u64::MAX, ..attr };
        assert!(matches!(
            regions.insert_keyed(&wraps, 'b', 0, false, &mut random()),
            Err(Refused::Invalid(_))
        ));
    }

    #[test]
    fn a_key_whose_variant_has_moved_is_found_by_its_index_alone() {
        let (mut regions, key) = keyed(false);
        let new = regions.change(key >> 8, MrChange { new_variant: Some(7), ..MrChange::default() }).unwrap();
        assert_eq!(new, key & !0xff | 7);
        assert_eq!(
            (found(&regions, PD, key, 0x1000, 1), found(&regions, PD, new, 0x1000, 1)),
            (None, Some(('a', 0)))
        );
        assert_eq!(regions.region_at(key >> 8).map(|(key, _, valid)| (key, valid)), Some((new, true)));
        assert_eq!(regions.remove_region(key), Err(Refused::NoSuchObject));
        assert_eq!(regions.remove_region(new), Ok((PD, 'a')));
        assert!(regions.region_at(key >> 8).is_none());
    }

    #[test]
    fn everything_about_a_region_can_change() {
        let (mut regions, key) = keyed(false);
        let change = MrChange {
            pd: Some(Pd(2)),
            access: Some(Access::REMOTE_WRITE),
            iova_and_length: Some((0x8000, 16)),
            region: Some('b'),
            ..MrChange::default()
        };
        assert_eq!(regions.change(key >> 8, change), Ok(key));
        assert_eq!(found(&regions, PD, key, 0x8000, 1), None);
        let write = |regions: &MemoryRegions<char>, addr, length| {
            regions
                .remote(Pd(2), QPN, key, addr, length, Access::REMOTE_WRITE)
                .map(|(r, offset)| (*r, offset))
        };
        assert_eq!(write(&regions, 0x8001, 15), Some(('b', 1)));
        assert_eq!((write(&regions, 0x8001, 16), write(&regions, 0x1000, 1)), (None, None));
        let wraps = MrChange {
            iova_and_length: Some((u64::MAX, 2)),
            pd: Some(PD),
            region: Some('c'),
            ..MrChange::default()
        };
        assert!(matches!(regions.change(key >> 8, wraps), Err(Refused::Invalid(_))));
        assert_eq!(write(&regions, 0x8001, 15), Some(('b', 1)), "a refused change changes nothing");
    }

    #[test]
    fn an_invalid_region_is_a_key_that_there_is_not() {
        let (mut regions, key) = keyed(false);
        let valid = |valid| MrChange { valid: Some(valid), ..MrChange::default() };
        assert_eq!(regions.change(key >> 8, valid(false)), Ok(key));
        assert_eq!(found(&regions, PD, key, 0x1000, 0), None);
        assert_eq!(regions.region_at(key >> 8).map(|(key, _, valid)| (key, valid)), Some((key, false)));
        let window = regions.insert_window(PD, MwType::One, &mut random()).unwrap();
        let access = Access::REMOTE_READ;
        let bind = Bind { window, new_rkey: window, lkey: key, addr: 0x1000, length: 1, access };
        assert_eq!(regions.bind(PD, QPN, &bind), Err(KeyRefused));
        let change = MrChange { new_variant: Some(9), ..MrChange::default() };
        let moved = regions.change(key >> 8, change).unwrap();
        assert_eq!(
            found(&regions, PD, moved, 0x1000, 1),
            None,
            "a new variant does not make the region valid"
        );
        assert_eq!(regions.change(key >> 8, valid(true)), Ok(moved));
        assert_eq!(found(&regions, PD, moved, 0x1000, 1), Some(('a', 0)));
        regions.change(key >> 8, valid(false)).unwrap();
        assert_eq!(regions.remove_region(moved), Ok((PD, 'a')), "an invalid region can be removed, too");
    }

    #[test]
    fn work_requests_invalidate_only_what_was_made_for_it() {
        let (mut regions, key) = keyed(false);
        assert_eq!(regions.invalidate(PD, QPN, key), Err(KeyRefused));
        regions.change(key >> 8, MrChange { invalidate: Some(true), ..MrChange::default() }).unwrap();
        assert_eq!(regions.invalidate(Pd(2), QPN, key), Err(KeyRefused), "another domain");
        assert_eq!(regions.invalidate(PD, QPN, key ^ 1), Err(KeyRefused), "another key");
        assert_eq!(regions.invalidate(PD, QPN, key), Ok(()));
        assert_eq!(found(&regions, PD, key, 0x1000, 1), None);
        assert_eq!(regions.invalidate(PD, QPN, key), Err(KeyRefused), "it is invalid already");
    }

    #[test]
    fn what_a_window_shows_does_not_move() {
        let (mut regions, key) = keyed(true);
        let window = regions.insert_window_keyed(PD, MwType::Two, 3, &mut random()).unwrap();
        let access = Access::REMOTE_READ;
        let bind = Bind { window, new_rkey: window ^ 1, lkey: key, addr: 0x1010, length: 16, access };
        regions.bind(PD, QPN, &bind).unwrap();
        let changes: [MrChange<char>; 3] = [
            MrChange { pd: Some(PD), ..MrChange::default() },
            MrChange { iova_and_length: Some((0x1000, 8)), ..MrChange::default() },
            MrChange { valid: Some(false), ..MrChange::default() },
        ];
        for change in changes {
            assert_eq!(regions.change(key >> 8, change), Err(Refused::Busy));
        }
        assert_eq!(regions.invalidate(PD, QPN, key), Err(KeyRefused));
        let through =
            |regions: &MemoryRegions<char>| regions.remote(PD, QPN, window ^ 1, 0x1010, 16, access).is_some();
        assert!(through(&regions));
        regions.change(key >> 8, MrChange { new_variant: Some(1), ..MrChange::default() }).unwrap();
        assert!(through(&regions), "the owner's key is not the key of the window");
        regions.change(key >> 8, MrChange { region: Some('b'), ..MrChange::default() }).unwrap();
        let shown = regions.remote(PD, QPN, window ^ 1, 0x1010, 16, access).map(|(region, _)| *region);
        assert_eq!(shown, Some('b'), "other pages at the same addresses");
        regions.drop_windows_on(window >> 8);
        regions.drop_windows_on(u32::MAX);
        assert!(through(&regions), "these are no regions");
        regions.drop_windows_on(key >> 8);
        assert!(!through(&regions));
        assert_eq!(
            regions.change(key >> 8, MrChange { valid: Some(false), ..MrChange::default() }),
            Ok(key & !0xff | 1)
        );
    }

    #[test]
    fn a_window_is_no_region_to_change() {
        let mut regions: MemoryRegions<char> = MemoryRegions::new(4);
        let window = regions.insert_window(PD, MwType::One, &mut random()).unwrap();
        assert!(regions.region_at(window >> 8).is_none());
        assert_eq!(regions.change(window >> 8, MrChange::default()), Err(Refused::NoSuchObject));
        assert_eq!(regions.change(u32::MAX >> 8, MrChange::default()), Err(Refused::NoSuchObject));
    }
}
