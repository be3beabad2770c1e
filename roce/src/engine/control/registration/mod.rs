//! Creates, changes and destroys memory regions and windows.

use crate::engine::Engine;
use crate::engine::memory::Memory;
use crate::engine::memory_regions::{ALL_PDS, MrChange};
use crate::engine::scatter;
use crate::engine::types::{Access, MemoryAttr, MwType, Pd, Refused, Sge, WindowRange};

impl<M: Memory> Engine<M> {
    /// Registers memory. Returns its key, which is both the local and the remote key.
    ///
    /// # Errors
    /// [`Refused::NoRoom`] if [`Config::max_keys`](crate::engine::Config::max_keys) keys exist
    /// already; [`Refused::NoSuchObject`] for an unknown protection domain; [`Refused::Invalid`]
    /// for a range that wraps around, or for remote write or atomic rights without local write.
    ///
    /// # References
    /// IBTA 10.6.3, 11.2.8.1
    pub fn reg_mr(&mut self, attr: &MemoryAttr, region: M::Region) -> Result<u32, Refused> {
        self.use_pd(attr.pd)?;
        let objects = &mut self.objects;
        let inserted = objects.memory_regions.insert(attr, region, &mut *objects.random);
        inserted.inspect_err(|_| self.leave_pd(attr.pd))
    }

    /// Registers memory under a key whose low 8 bits are `variant`, for devices whose driver
    /// changes keys later: see [`update_mr`](Self::update_mr).
    ///
    /// Dependencies between access rights are not checked. If `invalidate` is true,
    /// LOCAL_INVALIDATE and SEND_WITH_INVALIDATE may invalidate the key. A later change may also
    /// permit this.
    ///
    /// # Errors
    /// [`Refused::NoRoom`] if [`Config::max_keys`](crate::engine::Config::max_keys) keys exist
    /// already; [`Refused::NoSuchObject`] for an unknown protection domain; [`Refused::Invalid`]
    /// for a range that wraps around.
    pub fn reg_mr_keyed(
        &mut self,
        attr: &MemoryAttr,
        region: M::Region,
        variant: u8,
        invalidate: bool,
    ) -> Result<u32, Refused> {
        self.use_pd(attr.pd)?;
        let objects = &mut self.objects;
        let inserted =
            objects.memory_regions.insert_keyed(attr, region, variant, invalidate, &mut *objects.random);
        inserted.inspect_err(|_| self.leave_pd(attr.pd))
    }

    /// Registers a null region. It contains every address and can be used by the queue pairs of all
    /// protection domains, but keeps no domain in use. Peers may read and write the region with the
    /// same key. Atomics and windows are not supported.
    ///
    /// # Errors
    /// [`Refused::NoRoom`] if [`Config::max_keys`](crate::engine::Config::max_keys) keys exist
    /// already.
    pub fn reg_mr_for_all(&mut self, region: M::Region) -> Result<u32, Refused> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let attr = MemoryAttr { pd: ALL_PDS, iova: 0, length: u64::MAX, access };
        let objects = &mut self.objects;
        objects.memory_regions.insert(&attr, region, &mut *objects.random)
    }

    /// Changes a registration completely or not at all. Returns its key, which is a new key if the
    /// change includes a new variant.
    ///
    /// Only the upper 24 bits of `key` are used, because the owner may not know the current
    /// variant.
    ///
    /// # Errors
    /// [`Refused::NoSuchObject`] for an unknown key or protection domain; [`Refused::Invalid`] for
    /// a range that wraps around; [`Refused::Busy`] if windows are bound to the registration and
    /// the change would move or invalidate it.
    pub fn update_mr(&mut self, key: u32, change: MrChange<M::Region>) -> Result<u32, Refused> {
        let (_, attr) = self.mr_by_index(key >> 8).ok_or(Refused::NoSuchObject)?;
        let (from, to) = (attr.pd, change.pd.unwrap_or(attr.pd));
        self.use_pd(to)?;
        let changed = self.objects.memory_regions.change(key >> 8, change);
        self.leave_pd(if changed.is_ok() { from } else { to });
        changed
    }

    /// Returns the current key and the attributes of a registration. `index` is the upper 24 bits
    /// of the key.
    pub fn mr_by_index(&self, index: u32) -> Option<(u32, MemoryAttr)> {
        self.objects.memory_regions.region_at(index).map(|(key, attr, _)| (key, *attr))
    }

    /// Unbinds all windows on a registration, because its owner reclaims the memory even if windows
    /// are in use. `index` is the upper 24 bits of the registration's key.
    pub fn unbind_windows(&mut self, index: u32) {
        self.objects.memory_regions.drop_windows_on(index);
    }

    /// Returns the memory range accessible through a window; `None` if the window is not bound.
    /// `index` is the upper 24 bits of the window's key.
    pub fn window_by_index(&self, index: u32) -> Option<WindowRange> {
        self.objects.memory_regions.window_at(index)
    }

    /// Returns the [`Memory`]'s representation of a registration. `index` is the upper 24 bits of
    /// its key.
    pub fn region_by_index(&self, index: u32) -> Option<&M::Region> {
        self.objects.memory_regions.memory_at(index)
    }

    /// Returns whether a registration is valid. A change or an invalidation may have made it
    /// invalid. `index` is the upper 24 bits of its key.
    pub fn mr_is_valid(&self, index: u32) -> Option<bool> {
        self.objects.memory_regions.region_at(index).map(|(_, _, valid)| valid)
    }

    /// Deregisters memory and returns its region. The engine does not access the region afterwards.
    ///
    /// # Errors
    /// [`Refused::Busy`] while a window is bound to the region; [`Refused::NoSuchObject`] for an
    /// unknown key.
    pub fn dereg_mr(&mut self, key: u32) -> Result<M::Region, Refused> {
        let (pd, region) = self.objects.memory_regions.remove_region(key)?;
        self.leave_pd(pd);
        Ok(region)
    }

    /// Copies the first `dst.len()` bytes of the elements into `dst`. Used by devices that have
    /// other work queues besides queue pairs.
    ///
    /// # Errors
    /// [`Refused::Invalid`] if the elements are too short, or a key, its protection domain or a
    /// range is invalid.
    pub fn gather(&mut self, pd: Pd, sges: &[Sge], dst: &mut [u8]) -> Result<(), Refused> {
        let objects = &mut self.objects;
        scatter::gather(&objects.memory_regions, &mut objects.memory, pd, sges, 0, dst)
            .map_err(|_| Refused::Invalid("the elements are too short or may not be read"))
    }

    /// Copies `src` into the memory of the elements.
    ///
    /// # Errors
    /// [`Refused::Invalid`] as for [`gather`](Self::gather), or if a key does not allow writing.
    pub fn scatter(&mut self, pd: Pd, sges: &[Sge], src: &[u8]) -> Result<(), Refused> {
        let objects = &mut self.objects;
        scatter::scatter(&objects.memory_regions, &mut objects.memory, pd, sges, 0, src)
            .map_err(|_| Refused::Invalid("the elements are too short or may not be written"))
    }

    /// Allocates an unbound memory window and returns its key.
    ///
    /// # Errors
    /// [`Refused::NoRoom`] if [`Config::max_keys`](crate::engine::Config::max_keys) keys exist
    /// already; [`Refused::NoSuchObject`] for an unknown protection domain.
    pub fn alloc_mw(&mut self, pd: Pd, kind: MwType) -> Result<u32, Refused> {
        self.use_pd(pd)?;
        let objects = &mut self.objects;
        let inserted = objects.memory_regions.insert_window(pd, kind, &mut *objects.random);
        inserted.inspect_err(|_| self.leave_pd(pd))
    }

    /// Allocates a memory window as [`alloc_mw`](Self::alloc_mw) does, under a key whose low 8 bits
    /// are `variant`.
    ///
    /// # Errors
    /// Same as [`alloc_mw`](Self::alloc_mw).
    pub fn alloc_mw_keyed(&mut self, pd: Pd, kind: MwType, variant: u8) -> Result<u32, Refused> {
        self.use_pd(pd)?;
        let objects = &mut self.objects;
        let inserted = objects.memory_regions.insert_window_keyed(pd, kind, variant, &mut *objects.random);
        inserted.inspect_err(|_| self.leave_pd(pd))
    }

    /// Deallocates a memory window, bound or not.
    ///
    /// Only the upper 24 bits of `rkey` are used, because work requests choose the low 8 bits.
    ///
    /// # Errors
    /// [`Refused::NoSuchObject`] if the key does not belong to a window.
    pub fn dealloc_mw(&mut self, rkey: u32) -> Result<(), Refused> {
        let pd = self.objects.memory_regions.remove_window(rkey)?;
        self.leave_pd(pd);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
