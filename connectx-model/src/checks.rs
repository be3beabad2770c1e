//! Checks that several commands share.

use roce::engine::Refused;

use crate::bus::Bus;
use crate::complaint::Rule;
use crate::layout::{Field, Table, qword};
use crate::pages::Pages;
use crate::refusal::{Refusal, Status};

/// Minimum page size, log2; page size fields are relative to it.
pub(crate) const ADAPTER_PAGE_SHIFT: u32 = 12;

/// Returns the [`Refusal`] for an invalid parameter.
pub(crate) fn bad(what: impl Into<String>) -> Refusal {
    Refusal::broken(Status::BadParam, Rule::CommandParameter, what)
}

/// Returns the [`Refusal`] for a reference to a missing object.
pub(crate) fn missing(what: impl Into<String>) -> Refusal {
    Refusal::broken(Status::BadResource, Rule::CommandObject, what)
}

/// Returns the [`Refusal`] for destroying an object that is in use.
pub(crate) fn busy(what: impl Into<String>) -> Refusal {
    Refusal::broken(Status::ResourceBusy, Rule::CommandBusy, what)
}

/// Returns the [`Refusal`] for a feature that the function does not offer.
pub(crate) fn not_offered(what: impl Into<String>) -> Refusal {
    Refusal::broken(Status::BadParam, Rule::CommandCapability, what)
}

/// Converts the transport engine's error into a command's [`Refusal`].
pub(crate) fn engine(refused: Refused, what: &str) -> Refusal {
    match refused {
        Refused::NoRoom | Refused::NoMemory { .. } | Refused::NoNumbers => Refusal::fair(Status::NoResources),
        Refused::NoSuchObject => missing(format!("{what} does not exist")),
        Refused::Busy => busy(format!("{what} is in use")),
        Refused::Transition { from, to } => {
            let what = format!("{what}: from {from:?} to {to:?}");
            Refusal::broken(Status::BadQpState, Rule::QpTransition, what)
        }
        // `Invalid`: a user chose these values, and the driver passed them on unchecked.
        _ => Refusal::fair(Status::BadParam),
    }
}

/// Rejects a structure if any bit is set that its table does not name.
pub(crate) fn reserved(table: &Table, bytes: &[u8]) -> Result<(), Refusal> {
    match table.reserved(bytes) {
        None => Ok(()),
        Some((offset, bits)) => {
            let what = format!("bits {bits:#x} of dword {offset:#x} of {}", table.name);
            Err(Refusal::broken(Status::BadParam, Rule::CommandReserved, what))
        }
    }
}

/// Rejects a structure if any of `fields` is nonzero: they belong to features that the function
/// does not offer.
pub(crate) fn none_of(fields: &[Field], bytes: &[u8]) -> Result<(), Refusal> {
    match fields.iter().find(|field| field.is_set(bytes)) {
        None => Ok(()),
        Some(field) => Err(not_offered(format!("{} is {:#x}", field.name, field.get(bytes)))),
    }
}

/// Returns a queue's buffer of `len` bytes. The buffer starts in the first page of the list,
/// `offset` 64ths of a page from its beginning.
pub(crate) fn buffer<B: Bus>(
    bus: &B,
    list: &[u8],
    log_page_size: u32,
    offset: u64,
    len: u64,
) -> Result<Pages, Refusal> {
    let wrong = |what: String| Refusal::broken(Status::BadParam, Rule::CommandPages, what);
    let shift = log_page_size + ADAPTER_PAGE_SHIFT;
    if shift > 48 {
        return Err(wrong(format!("pages of 2^{shift} bytes")));
    }
    let offset = offset << (shift - 6);
    let needed = Pages::needed(shift, offset, len).ok_or_else(|| wrong(format!("{len} bytes")))?;
    if !list.len().is_multiple_of(8) || needed != list.len() as u64 / 8 {
        let given = list.len();
        return Err(wrong(format!(
            "{given} bytes of page list for {len} bytes, which need {needed} pages of 2^{shift}"
        )));
    }
    let pages: Vec<u64> = list.chunks_exact(8).map(|entry| qword(entry, 0)).collect();
    for page in &pages {
        if page & ((1 << shift) - 1) != 0 {
            return Err(wrong(format!("page {page:#x} is not aligned to 2^{shift}")));
        }
        present(bus, *page, "a page")?;
    }
    Pages::new(pages, shift, offset, len).ok_or_else(|| wrong(format!("{len} bytes")))
}

/// Rejects a doorbell record that is misaligned or lies outside memory. A record is 8 bytes,
/// aligned to 8.
pub(crate) fn doorbell_record<B: Bus>(bus: &B, address: u64) -> Result<(), Refusal> {
    if !address.is_multiple_of(8) {
        let what = format!("{address:#x} is not aligned");
        return Err(Refusal::broken(Status::BadParam, Rule::CommandDoorbellRecord, what));
    }
    bus.read(address, &mut [0; 8]).map_err(|fault| {
        Refusal::broken(Status::BadParam, Rule::CommandDoorbellRecord, format!("{address:#x}: {fault}"))
    })
}

pub(crate) fn present<B: Bus>(bus: &B, address: u64, what: &str) -> Result<(), Refusal> {
    bus.read(address, &mut [0; 1])
        .map_err(|fault| Refusal::broken(Status::BadParam, Rule::DmaFault, format!("{what}: {fault}")))
}
