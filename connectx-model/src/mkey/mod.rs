//! Memory keys and their representation in the transport engine.
//!
//! ```text
//! CREATE_MKEY ─┬─ PA:  physical addresses ───────────────┐
//!              ├─ MTT: a list of pages ──────────────────┼─► a region of the engine
//!              ├─ KSM: a list of pieces of equal length ─┤
//!              ├─ MEMIC: device memory ──────────────────┤
//!              ├─ KLM: a list of pieces of other keys ───┘
//!              └─ KLM, free, of at most 4 pieces ─────────► a window; a bind fills it
//! free ──UMR──► valid ──UMR, invalidation──► free
//! ```
//! The engine checks keys, access rights, domains and ranges; this module locates the bytes. Each
//! region has a [`Mapping`] for this purpose. The mapping shares the key's list and is rebuilt
//! whenever the key changes ([`Function::remap`]).
//!
//! Pages may be absent, and pieces may name `NULL_MKEY`: see [`paging`](crate::paging).
//!
//! Invariant: a list grows only with the entries that the driver writes; announcing a length
//! allocates no memory. Each list exists once, and its length counts towards a limit.

use std::sync::Arc;

use roce::engine::{MemoryAttr, MrChange, Pd, Refused, Sge};

use crate::bus::Bus;
use crate::function::Function;
use crate::layout::mkey::mkc;
use crate::state::mkey::inlined::Inlined;
use crate::state::mkey::translate::Target;
use crate::state::mkey::{AccessMode, Kind, Mapping, Region, attr, invalidable};

impl<B: Bus> Function<B> {
    /// Returns the dump-fill key. Its memory reads as zeros and discards writes. The key is valid
    /// for queue pairs in all protection domains and for their peers (perftest's `--use-null-mr`
    /// passes it to the peer).
    ///
    /// # Errors
    /// [`Refused::NoRoom`] if there are too many keys.
    ///
    /// # References
    /// Linux `include/linux/mlx5/mlx5_ifc.h`, `dump_fill_mkey`; `ibv_alloc_null_mr(3)`
    pub(crate) fn dump_fill_key(&mut self) -> Result<u32, Refused> {
        if let Some(key) = self.core.mkeys.dump_fill {
            return Ok(key);
        }
        let region = Region { index: 0, pd: Pd(0), mapping: Mapping::Null };
        let key = self.engine.reg_mr_for_all(region)?;
        self.core.mkeys.dump_fill = Some(key);
        Ok(key)
    }

    /// Returns an element that refers to `bytes`. The element can be read as long as the caller
    /// keeps the `Arc`.
    ///
    /// # Errors
    /// [`Refused::NoRoom`] if there are too many keys.
    pub(crate) fn inlined(&mut self, bytes: &Arc<[u8]>) -> Result<Sge, Refused> {
        let (lkey, inlined) = match &self.core.mkeys.inlined {
            Some((key, inlined)) => (*key, inlined.clone()),
            None => {
                let inlined = Inlined::default();
                let mapping = Mapping::Inlined(inlined.clone());
                let key = self.engine.reg_mr_for_all(Region { index: 0, pd: Pd(0), mapping })?;
                self.core.mkeys.inlined = Some((key, inlined.clone()));
                (key, inlined)
            }
        };
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        Ok(Sge { addr: inlined.add(bytes), length, lkey })
    }

    /// Updates the engine's region from the context and list of a memory key: domain, range, access
    /// rights, variant, and whether the key is free.
    ///
    /// # Errors
    /// [`Refused::NoSuchObject`] if the key is not a region or its protection domain does not
    /// exist; [`Refused::Busy`] if a window is bound to the region; [`Refused::Invalid`] if the
    /// list does not cover the range. In these cases the region does not change.
    pub(crate) fn remap(&mut self, index: u32) -> Result<u32, Refused> {
        let key =
            self.core.mkeys.get(index).filter(|key| key.kind == Kind::Region).ok_or(Refused::NoSuchObject)?;
        let (context, mode) = (key.context, key.mode);
        let free = mkc::FREE.is_set(&context);
        let attr = attr(&context);
        let mapping = match key.mapping() {
            Some(mapping) => mapping,
            None if free => Mapping::Nothing,
            None => return Err(Refused::Invalid("the list does not cover the range")),
        };
        // Unchanged attributes are omitted, because the engine rejects changes of a region with
        // bound windows.
        let before = self.engine.mr_by_index(index).map(|(_, attr)| attr).ok_or(Refused::NoSuchObject)?;
        let same = (before.iova, before.length) == (attr.iova, attr.length);
        let change = MrChange {
            new_variant: Some(mkc::MKEY_7_0.get(&context) as u8),
            pd: (before.pd != attr.pd).then_some(attr.pd),
            access: Some(attr.access),
            iova_and_length: (!same).then_some((attr.iova, attr.length)),
            region: Some(Region { index, pd: attr.pd, mapping: mapping.clone() }),
            valid: Some(!free),
            invalidate: Some(invalidable(&context)),
        };
        let key = self.engine.update_mr(index << 8, change)?;
        let targets = &self.core.mkeys.targets;
        if free || matches!(mode, AccessMode::Pieces | AccessMode::Fixed) {
            // A piece must not refer to a key that itself consists of pieces (max_indirection),
            // because a chain of such keys could be endless.
            targets.remove(index);
        } else {
            let (readable, writable) = (mkc::LR.is_set(&context), mkc::LW.is_set(&context));
            let MemoryAttr { pd, iova, length, .. } = attr;
            targets.insert(Target { key, pd, readable, writable, iova, length, mapping });
        }
        Ok(key)
    }

    /// Unmaps a key's list from the engine until the next [`remap`](Self::remap), so that the list
    /// has no other users and can be changed in place.
    ///
    /// # Errors
    /// [`Refused::NoSuchObject`] if the key is not a region; otherwise any error from the engine.
    pub(crate) fn unmap(&mut self, index: u32) -> Result<(), Refused> {
        let (_, attr) = self.engine.mr_by_index(index).ok_or(Refused::NoSuchObject)?;
        let region = Region { index, pd: attr.pd, mapping: Mapping::Nothing };
        self.engine.update_mr(index << 8, MrChange { region: Some(region), ..MrChange::default() })?;
        self.core.mkeys.targets.remove(index);
        Ok(())
    }

    /// Deallocates a window.
    pub(crate) fn destroy_window(&mut self, index: u32) -> Result<(), Refused> {
        self.engine.dealloc_mw(index << 8)
    }
}
