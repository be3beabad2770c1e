//! Memory keys: CREATE_MKEY, QUERY_MKEY, DESTROY_MKEY.
//!
//! The data path of memory keys is in [`crate::mkey`].

use roce::engine::{MrChange, MwType, Pd, Refused};

use crate::bus::Bus;
use crate::caps::LOG_MAX_KLM_LIST;
use crate::checks::{bad, engine, missing, none_of, not_offered, reserved};
use crate::complaint::Rule;
use crate::function::Function;
use crate::layout::mkey::{
    create_mkey_in, create_mkey_out, destroy_mkey_in, mkc, query_mkey_in, query_mkey_out,
};
use crate::layout::wqe::klm;
use crate::refusal::{Refusal, Status};
use crate::state::mkey::{self, AccessMode, Kind, List, Mapping, Mkey, OCTWORD, Region, attr, invalidable};

/// The queue pair number in the context of a memory key that all queue pairs in its domain may use.
const ANY_QP: u64 = 0x00ff_ffff;
/// Maximum list length, in octwords, of a free key that counts as a memory window. Drivers create
/// windows with this value.
const WINDOW_OCTWORDS: u32 = 4;
/// Maximum length of a page list in octwords, log2. Such a list describes 1 TiB in 4 KiB pages.
const LOG_MAX_OCTWORDS: u32 = 27;

pub(super) fn create<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    let mut context = [0; mkc::SIZE];
    context.copy_from_slice(create_mkey_in::MEMORY_KEY_MKEY_ENTRY.bytes(input));
    let list = input.get(create_mkey_in::KLM_PAS_MTT..).unwrap_or_default();
    let mode = check(&context, input)?;
    function.core.needs_pd(mkc::PD.get32(&context))?;
    if mode == AccessMode::Memic {
        function.core.needs_memic(&context)?;
    }
    let actual = create_mkey_in::TRANSLATIONS_OCTWORD_ACTUAL_SIZE.get(input);
    let capacity = mkc::TRANSLATIONS_OCTWORD_SIZE.get32(&context);
    if list.len() as u64 != actual * OCTWORD as u64 || actual > u64::from(capacity) {
        let what = format!("{} bytes of list, {actual} octwords in use of {capacity}", list.len());
        return Err(Refusal::broken(Status::BadParam, Rule::CommandPages, what));
    }
    let list = if create_mkey_in::PG_ACCESS.is_set(input) {
        List::with_rights(mode, list)
    } else {
        List::new(mode, list)
    };
    let free = mkc::FREE.is_set(&context);
    let (kind, index) = if mode == AccessMode::Pieces && free && capacity <= WINDOW_OCTWORDS {
        let kind = if mkc::EN_RINVAL.is_set(&context) { MwType::Two } else { MwType::One };
        let (pd, variant) = (Pd(mkc::PD.get32(&context)), mkc::MKEY_7_0.get(&context) as u8);
        let key = function.engine.alloc_mw_keyed(pd, kind, variant);
        (Kind::Window(kind), key.map_err(|refused| engine(refused, "the key"))? >> 8)
    } else {
        if mode == AccessMode::Pages && (!free || list.len() > 0) {
            check_pages(&context, &list, free)?;
        }
        // The key is created without a mapping; its list adds the mapping later.
        let (attr, variant) = (attr(&context), mkc::MKEY_7_0.get(&context) as u8);
        // The mapping needs the key's index, which is known only after creation.
        let nothing = Region { index: 0, pd: attr.pd, mapping: Mapping::Nothing };
        let key = function.engine.reg_mr_keyed(&attr, nothing, variant, invalidable(&context));
        let key = key.map_err(|refused| engine(refused, "the key"))?;
        let closed = MrChange { valid: Some(false), ..MrChange::default() };
        function.engine.update_mr(key, closed).map_err(|refused| engine(refused, "the key"))?;
        (Kind::Region, key >> 8)
    };
    let done = function.core.mkeys.insert(index, Mkey::new(context, kind, mode, capacity, list));
    let done =
        done.and_then(|()| if kind == Kind::Region { function.remap(index).map(|_| ()) } else { Ok(()) });
    if let Err(refused) = done {
        remove(function, index);
        return Err(engine(refused, "the key"));
    }
    create_mkey_out::MKEY_INDEX.set(output, index);
    Ok(())
}

/// Checks the context of a new key, but not its list. Returns the key's access mode.
fn check(context: &[u8], input: &[u8]) -> Result<AccessMode, Refusal> {
    reserved(&mkc::TABLE, context)?;
    none_of(&[create_mkey_in::MKEY_UMEM_VALID, create_mkey_in::DATA_DIRECT], input)?;
    none_of(
        &[
            mkc::BSF_EN,
            mkc::SYNC_UMR,
            mkc::EXPECTED_SIGERR_COUNT,
            mkc::BSF_OCTWORD_SIZE,
            mkc::MA_TRANSLATION_MODE,
            mkc::CROSSING_TARGET_VHCA_ID,
            mkc::PCIE_TPH_EN,
        ],
        context,
    )?;
    let mode = AccessMode::from_context(context).ok_or_else(|| not_offered("the access mode"))?;
    if mkc::QPN.get(context) != ANY_QP {
        return Err(bad(format!("a key for queue pair {:#x} only", mkc::QPN.get(context))));
    }
    let capacity = mkc::TRANSLATIONS_OCTWORD_SIZE.get32(context);
    if matches!(mode, AccessMode::Physical | AccessMode::Memic) && capacity != 0 {
        return Err(bad("a key of contiguous memory with a list"));
    }
    let longest = if mode == AccessMode::Pieces { LOG_MAX_KLM_LIST } else { LOG_MAX_OCTWORDS };
    if u64::from(capacity) > 1 << longest {
        return Err(Refusal::broken(
            Status::ExceedLimit,
            Rule::CommandParameter,
            format!("a list of {capacity} octwords"),
        ));
    }
    if mkc::FREE.is_set(context) && !mkc::UMR_EN.is_set(context) {
        return Err(bad("a free key that no work request may modify"));
    }
    Ok(mode)
}

/// Checks that a key's page list is aligned and long enough for the key's range.
fn check_pages(context: &[u8], list: &List, free: bool) -> Result<(), Refusal> {
    let wrong = |what: String| Refusal::broken(Status::BadParam, Rule::CommandPages, what);
    let needed = mkey::check_pages(context, list).map_err(wrong)?;
    // A list consists of whole octwords, which hold two pages each.
    let endless = mkc::LENGTH64.is_set(context);
    if (endless || needed.checked_next_multiple_of(2) != Some(list.pages())) && !free {
        return Err(wrong(format!("{} pages for a range that needs {needed}", list.pages())));
    }
    Ok(())
}

pub(super) fn query<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    let index = query_mkey_in::MKEY_INDEX.get32(input);
    let key = function.core.mkeys.get(index).ok_or_else(|| missing(format!("memory key {index:#x}")))?;
    let mut context = key.context;
    if let (Kind::Region, Some((present, attr))) = (key.kind, function.engine.mr_by_index(index)) {
        // Users' work requests may have changed the key since its creation.
        mkc::MKEY_7_0.set(&mut context, present & 0xff);
        mkc::PD.set(&mut context, attr.pd.0);
        mkc::FREE.set(&mut context, function.engine.mr_is_valid(index) != Some(true));
    }
    key.list().peek(query_mkey_out::BSF0_KLM0_PAS_MTT0_1.bytes_mut(output));
    // After a page fault, the driver queries the memory that a window is bound to.
    if let Some(window) = function.engine.window_by_index(index) {
        mkc::MKEY_7_0.set(&mut context, window.rkey & 0xff);
        mkc::FREE.set(&mut context, 0u32);
        mkc::START_ADDR.set(&mut context, window.iova);
        mkc::LEN.set(&mut context, window.length);
        let piece = query_mkey_out::BSF0_KLM0_PAS_MTT0_1.bytes_mut(output);
        klm::BYTE_COUNT.set(piece, window.length);
        klm::MKEY.set(piece, window.lkey);
        klm::VA.set(piece, window.addr);
    }
    query_mkey_out::MEMORY_KEY_MKEY_ENTRY.bytes_mut(output).copy_from_slice(&context);
    Ok(())
}

pub(super) fn destroy<B: Bus>(function: &mut Function<B>, input: &[u8], _: &mut [u8]) -> Result<(), Refusal> {
    let index = destroy_mkey_in::MKEY_INDEX.get32(input);
    let key = function.core.mkeys.get(index).ok_or_else(|| missing(format!("memory key {index:#x}")))?;
    let done = match key.kind {
        Kind::Window(_) => function.destroy_window(index),
        Kind::Region => {
            let (present, _) = function.engine.mr_by_index(index).ok_or_else(|| missing("the key"))?;
            function.engine.dereg_mr(present).map(|_| ())
        }
    };
    match done {
        Ok(()) => {
            function.core.mkeys.remove(index);
            Ok(())
        }
        // A user may deregister memory while windows are bound to it; the driver cannot detect
        // that.
        Err(Refused::Busy) => Err(Refusal::fair(Status::ResourceBusy)),
        Err(refused) => Err(engine(refused, &format!("memory key {index:#x}"))),
    }
}

/// Removes a key that could not be created completely.
fn remove<B: Bus>(function: &mut Function<B>, index: u32) {
    function.core.mkeys.remove(index);
    let _ = match function.engine.mr_by_index(index) {
        Some((key, _)) => function.engine.dereg_mr(key).map(|_| ()),
        None => function.destroy_window(index),
    };
}

#[cfg(test)]
mod tests;
