//! [`MemoryRegions`]: memory regions and windows by key, with their access rights, protection
//! domains and address ranges.
//!
//! A key is `number << 8 | variant`. Both are random, so no key can be derived from another. The
//! owner of a window chooses the variant at each bind. The owner of a region may also choose the
//! variant ([`MemoryRegions::insert_keyed`]).
//!
//! ```text
//! window:  alloc ──► free ──bind──► bound ──invalidate (type 2), bind of length 0 (type 1)──► free
//!                                     └──bind again (type 1)──► bound
//! region:  insert ──► valid ──change, invalidate (if allowed)──► invalid ──change──► valid
//! ```
//! In this diagram, `change` is a later change by the region's owner.
//!
//! Invariant: a bound window refers to a region that exists, is valid and has not moved. A region
//! with bound windows can be neither removed nor moved.
//!
//! # References
//! IBTA 10.6 (memory management), 10.6.7 (windows), 9.4.1 (send with invalidate)

mod change;

pub use change::MrChange;

use rdma_sans_io::Random;

use super::table::Table;
use super::types::{Access, MemoryAttr, MwType, Pd, Qpn, Refused};

/// Memory regions and windows by key.
#[derive(Debug)]
pub(crate) struct MemoryRegions<R> {
    /// The regions and windows, by the upper 24 bits of the key.
    entries: Table<Entry<R>>,
    /// The number of bound type 2 windows.
    bound_to_qps: u32,
}

#[derive(Debug)]
enum Entry<R> {
    Region(Region<R>),
    Window(Window),
}

#[derive(Debug)]
struct Region<R> {
    /// The low 8 bits of the region's key, plus the bit [`INVALID`], which no key has.
    variant: u16,
    attr: MemoryAttr,
    region: R,
    /// The number of windows bound to the region.
    windows: u32,
    /// Whether work requests and peers may invalidate the region.
    invalidate: bool,
}

/// The protection domain of a region that serves all domains. No real domain has this number,
/// because there are far fewer domains.
pub(crate) const ALL_PDS: Pd = Pd(u32::MAX);

/// The bit of [`Region::variant`] that marks a region as invalid. An invalid region rejects all
/// access.
const INVALID: u16 = 1 << 8;

#[derive(Clone, Copy, Debug)]
struct Window {
    variant: u8,
    pd: Pd,
    kind: MwType,
    bound: Option<Bound>,
}

/// The part of a region that is accessible through a window.
#[derive(Clone, Copy, Debug)]
struct Bound {
    /// The upper 24 bits of the region's key.
    region: u32,
    /// The offset of the window's first byte in the region.
    offset: u64,
    /// The address of the window's first byte, as used in peers' requests.
    iova: u64,
    length: u64,
    access: Access,
    /// The number of the queue pair whose requests may use the window (type 2).
    qpn: Qpn,
}

/// The arguments of a bind work request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bind {
    pub(crate) window: u32,
    /// The key whose low 8 bits become the variant. The upper bits are ignored, as on ConnectX and
    /// rxe.
    pub(crate) new_rkey: u32,
    pub(crate) lkey: u32,
    pub(crate) addr: u64,
    pub(crate) length: u64,
    pub(crate) access: Access,
}

/// Error: a bind or an invalidation was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyRefused;

impl<R> MemoryRegions<R> {
    pub(crate) fn new(max: u32) -> Self {
        Self { entries: Table::new(max, 24, 1), bound_to_qps: 0 }
    }

    pub(crate) fn insert(
        &mut self,
        attr: &MemoryAttr,
        region: R,
        random: &mut dyn Random,
    ) -> Result<u32, Refused> {
        // IBTA 10.6.3: the owner must be able to write memory that peers may change.
        let changes = Access::REMOTE_WRITE.0 | Access::REMOTE_ATOMIC.0;
        if attr.access.0 & changes != 0 && !attr.access.contains(Access::LOCAL_WRITE) {
            return Err(Refused::Invalid("remote write and remote atomic need local write"));
        }
        let variant = random.draw().ok_or(Refused::NoNumbers)? as u8;
        self.insert_keyed(attr, region, variant, false, random)
    }

    /// Inserts a region under a key whose low 8 bits are `variant`. Dependencies between access
    /// rights are not checked.
    pub(crate) fn insert_keyed(
        &mut self,
        attr: &MemoryAttr,
        region: R,
        variant: u8,
        invalidate: bool,
        random: &mut dyn Random,
    ) -> Result<u32, Refused> {
        check_range(attr.iova, attr.length)?;
        let entry =
            Entry::Region(Region { variant: variant.into(), attr: *attr, region, windows: 0, invalidate });
        let number = self.entries.insert(entry, random)?;
        Ok(number << 8 | u32::from(variant))
    }

    pub(crate) fn remove_region(&mut self, key: u32) -> Result<(Pd, R), Refused> {
        match self.entries.get(key >> 8) {
            Some(Entry::Region(region)) if region.variant as u8 == key as u8 => {
                if region.windows > 0 {
                    return Err(Refused::Busy);
                }
            }
            _ => return Err(Refused::NoSuchObject),
        }
        match self.entries.remove(key >> 8) {
            Some(Entry::Region(region)) => Ok((region.attr.pd, region.region)),
            _ => Err(Refused::NoSuchObject),
        }
    }

    pub(crate) fn insert_window(
        &mut self,
        pd: Pd,
        kind: MwType,
        random: &mut dyn Random,
    ) -> Result<u32, Refused> {
        let variant = random.draw().ok_or(Refused::NoNumbers)? as u8;
        self.insert_window_keyed(pd, kind, variant, random)
    }

    pub(crate) fn insert_window_keyed(
        &mut self,
        pd: Pd,
        kind: MwType,
        variant: u8,
        random: &mut dyn Random,
    ) -> Result<u32, Refused> {
        let entry = Entry::Window(Window { variant, pd, kind, bound: None });
        let number = self.entries.insert(entry, random)?;
        Ok(number << 8 | u32::from(variant))
    }

    /// Removes a window. The low 8 bits of `rkey` are ignored.
    pub(crate) fn remove_window(&mut self, rkey: u32) -> Result<Pd, Refused> {
        let Some(Entry::Window(Window { pd, .. })) = self.entries.get(rkey >> 8) else {
            return Err(Refused::NoSuchObject);
        };
        let pd = *pd;
        self.unbind(rkey >> 8);
        self.entries.remove(rkey >> 8);
        Ok(pd)
    }

    /// Unbinds the type 2 windows that only queue pair `qpn` may use.
    pub(crate) fn drop_windows_of(&mut self, qpn: Qpn) {
        let mut position = 0;
        while self.bound_to_qps > 0
            && let Some(number) = self.entries.number_at(position)
        {
            position += 1;
            if let Some(Entry::Window(Window { kind: MwType::Two, bound: Some(bound), .. })) =
                self.entries.get(number)
                && bound.qpn == qpn
            {
                self.unbind(number);
            }
        }
    }

    /// Unbinds the windows on a region. `index` is the upper 24 bits of the region's key.
    pub(crate) fn drop_windows_on(&mut self, index: u32) {
        let mut position = 0;
        while matches!(self.entries.get(index), Some(Entry::Region(region)) if region.windows > 0)
            && let Some(number) = self.entries.number_at(position)
        {
            position += 1;
            if let Some(Entry::Window(Window { bound: Some(bound), .. })) = self.entries.get(number)
                && bound.region == index
            {
                self.unbind(number);
            }
        }
    }

    /// Binds a window on behalf of a work request of queue pair `qpn`.
    ///
    /// # References
    /// IBTA 10.6.7.2 (rejected binds)
    pub(crate) fn bind(&mut self, pd: Pd, qpn: Qpn, bind: &Bind) -> Result<(), KeyRefused> {
        let window = *self.window(bind.window).ok_or(KeyRefused)?;
        if window.pd != pd {
            return Err(KeyRefused);
        }
        // A type 2 window must be invalidated before it is bound again and cannot be bound to an
        // empty range.
        if window.kind == MwType::Two && (window.bound.is_some() || bind.length == 0) {
            return Err(KeyRefused);
        }
        let bound = if bind.length == 0 { None } else { Some(self.bound(pd, qpn, bind)?) };
        let number = bind.window >> 8;
        self.unbind(number);
        if let Some(Entry::Window(window)) = self.entries.get_mut(number) {
            window.variant = bind.new_rkey as u8;
            window.bound = bound;
        }
        if let Some(bound) = bound {
            self.bound_to_qps += u32::from(window.kind == MwType::Two);
            if let Some(Entry::Region(region)) = self.entries.get_mut(bound.region) {
                region.windows += 1;
            }
        }
        Ok(())
    }

    /// Returns the part of a region that a bind would make accessible.
    fn bound(&self, pd: Pd, qpn: Qpn, bind: &Bind) -> Result<Bound, KeyRefused> {
        let region = self.region(bind.lkey).ok_or(KeyRefused)?;
        let changes = Access::REMOTE_WRITE.0 | Access::REMOTE_ATOMIC.0;
        let rights = region.attr.access.contains(Access::MW_BIND)
            && (bind.access.0 & changes == 0 || region.attr.access.contains(Access::LOCAL_WRITE));
        if region.attr.pd != pd || !rights {
            return Err(KeyRefused);
        }
        let offset =
            offset(region.attr.iova, region.attr.length, bind.addr, bind.length).ok_or(KeyRefused)?;
        let iova = if bind.access.contains(Access::ZERO_BASED) { 0 } else { bind.addr };
        Ok(Bound { region: bind.lkey >> 8, offset, iova, length: bind.length, access: bind.access, qpn })
    }

    /// Invalidates a type 2 window, or a region that permits invalidation, on behalf of a work
    /// request or a peer of queue pair `qpn`.
    ///
    /// # References
    /// IBTA 10.6.7.2: type 1 windows, registered regions and regions with bound windows cannot be
    /// invalidated
    pub(crate) fn invalidate(&mut self, pd: Pd, qpn: Qpn, rkey: u32) -> Result<(), KeyRefused> {
        match self.window(rkey) {
            Some(Window { kind: MwType::Two, pd: of, bound, .. })
                if *of == pd && bound.is_none_or(|bound| bound.qpn == qpn) =>
            {
                self.unbind(rkey >> 8);
                Ok(())
            }
            None => self.invalidate_region(pd, rkey),
            _ => Err(KeyRefused),
        }
    }

    fn unbind(&mut self, number: u32) {
        let Some(Entry::Window(window)) = self.entries.get_mut(number) else { return };
        let Some(bound) = window.bound.take() else { return };
        self.bound_to_qps -= u32::from(window.kind == MwType::Two);
        if let Some(Entry::Region(region)) = self.entries.get_mut(bound.region) {
            region.windows -= 1;
        }
    }

    #[inline]
    fn region(&self, key: u32) -> Option<&Region<R>> {
        match self.entries.get(key >> 8)? {
            Entry::Region(region) if region.variant == u16::from(key as u8) => Some(region),
            _ => None,
        }
    }

    #[inline]
    fn window(&self, rkey: u32) -> Option<&Window> {
        match self.entries.get(rkey >> 8)? {
            Entry::Window(window) if window.variant == rkey as u8 => Some(window),
            _ => None,
        }
    }

    /// Returns the region of `lkey` and the offset of `addr` in it, if the region contains the
    /// range and its owner has the access `need`.
    ///
    /// # References
    /// IBTA 10.6.3 (L_Key checks)
    #[inline]
    pub(crate) fn local(&self, pd: Pd, lkey: u32, addr: u64, length: u64, need: Access) -> Option<(&R, u64)> {
        let Region { attr, region, .. } = self.region(lkey)?;
        if (attr.pd != pd && attr.pd != ALL_PDS) || !attr.access.contains(need) {
            return None;
        }
        Some((region, offset(attr.iova, attr.length, addr, length)?))
    }

    /// Returns the region of `rkey` and the offset of `addr` in it, if the range is accessible and
    /// a peer of queue pair `qpn` has the access `need`.
    ///
    /// The caller must check the queue pair's access rights.
    ///
    /// # References
    /// IBTA 9.7.4.1 (R_Key validation), 10.6.7.2 (a type 2 window belongs to its queue pair)
    #[inline]
    pub(crate) fn remote(
        &self,
        pd: Pd,
        qpn: Qpn,
        rkey: u32,
        addr: u64,
        length: u64,
        need: Access,
    ) -> Option<(&R, u64)> {
        match self.entries.get(rkey >> 8)? {
            Entry::Region(_) => self.local(pd, rkey, addr, length, need),
            Entry::Window(window) => {
                let bound = window.bound.filter(|_| window.variant == rkey as u8 && window.pd == pd)?;
                if !bound.access.contains(need) || (window.kind == MwType::Two && bound.qpn != qpn) {
                    return None;
                }
                let inside = offset(bound.iova, bound.length, addr, length)?;
                let Some(Entry::Region(region)) = self.entries.get(bound.region) else { return None };
                Some((&region.region, bound.offset + inside))
            }
        }
    }
}

impl<R> MemoryRegions<R> {
    /// Returns the first address and the length of the region or bound window with key `rkey`.
    /// Access is not checked.
    pub(crate) fn extent(&self, rkey: u32) -> Option<(u64, u64)> {
        match self.entries.get(rkey >> 8)? {
            Entry::Region(region) => Some((region.attr.iova, region.attr.length)),
            Entry::Window(window) => window.bound.map(|bound| (bound.iova, bound.length)),
        }
    }
}

fn check_range(iova: u64, length: u64) -> Result<(), Refused> {
    if length > 0 && iova.checked_add(length - 1).is_none() {
        return Err(Refused::Invalid("the region wraps around the end of the address space"));
    }
    Ok(())
}

/// Returns the offset of `addr` in the `size` bytes at `iova`, if all `length` bytes from `addr`
/// lie inside. No computation here overflows.
#[inline]
fn offset(iova: u64, size: u64, addr: u64, length: u64) -> Option<u64> {
    let offset = addr.checked_sub(iova)?;
    (length <= size.checked_sub(offset)?).then_some(offset)
}

#[cfg(test)]
mod tests;
