//! Checks shared by the contexts of all queues: buffers in pages, doorbell records, references to
//! other objects.

use roce::engine::Refused;

use super::refusal::{Refusal, Status};
use crate::bus::Bus;
use crate::complaint::Rule;
use crate::function::Core;
use crate::function::pages::Pages;
use crate::layout::{Field, Table, qword};
use crate::qp::Qp;
use crate::srq::SrqKind;

/// Minimum page size, log2; page size fields count from it.
pub(crate) const ADAPTER_PAGE_SHIFT: u32 = 12;

/// Returns the refusal of an unacceptable parameter.
pub(crate) fn bad(what: impl Into<String>) -> Refusal {
    Refusal::broken(Status::BadParam, Rule::CommandParameter, what)
}

/// Returns the refusal of a reference to a missing object.
pub(crate) fn missing(what: impl Into<String>) -> Refusal {
    Refusal::broken(Status::BadResource, Rule::CommandObject, what)
}

/// Returns the refusal to destroy an object that is in use.
pub(crate) fn busy(what: impl Into<String>) -> Refusal {
    Refusal::broken(Status::ResourceBusy, Rule::CommandBusy, what)
}

/// Returns the refusal of a feature not offered by the function.
pub(crate) fn not_offered(what: impl Into<String>) -> Refusal {
    Refusal::broken(Status::BadParam, Rule::CommandCapability, what)
}

/// Converts a refusal of the transport engine.
pub(crate) fn engine(refused: Refused, what: &str) -> Refusal {
    match refused {
        Refused::NoRoom | Refused::NoMemory { .. } | Refused::NoNumbers => Refusal::fair(Status::NoResources),
        Refused::NoSuchObject => missing(format!("{what} does not exist")),
        Refused::Busy => busy(format!("{what} is in use")),
        Refused::Transition { from, to } => {
            let what = format!("{what}: from {from:?} to {to:?}");
            Refusal::broken(Status::BadQpState, Rule::QpTransition, what)
        }
        // A user chose these values and the driver passed them on.
        Refused::Invalid(_) => Refusal::fair(Status::BadParam),
    }
}

/// Rejects bits not named in the table.
pub(crate) fn reserved(table: &Table, bytes: &[u8]) -> Result<(), Refusal> {
    match table.reserved(bytes) {
        None => Ok(()),
        Some((offset, bits)) => {
            let what = format!("bits {bits:#x} of dword {offset:#x} of {}", table.name);
            Err(Refusal::broken(Status::BadParam, Rule::CommandReserved, what))
        }
    }
}

/// Rejects nonzero fields of features not offered by the function.
pub(crate) fn none_of(fields: &[Field], bytes: &[u8]) -> Result<(), Refusal> {
    match fields.iter().find(|field| field.is_set(bytes)) {
        None => Ok(()),
        Some(field) => Err(not_offered(format!("{} is {:#x}", field.name, field.get(bytes)))),
    }
}

/// Returns a queue's buffer: `len` bytes, starting `offset` 64ths of a page into the first page of
/// the list.
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

/// Rejects a doorbell record unless it is 8 aligned bytes of memory.
pub(crate) fn doorbell_record<B: Bus>(bus: &B, address: u64) -> Result<(), Refusal> {
    if !address.is_multiple_of(8) {
        let what = format!("{address:#x} is not aligned");
        return Err(Refusal::broken(Status::BadParam, Rule::CommandDoorbellRecord, what));
    }
    bus.read(address, &mut [0; 8]).map_err(|fault| {
        Refusal::broken(Status::BadParam, Rule::CommandDoorbellRecord, format!("{address:#x}: {fault}"))
    })
}

fn present<B: Bus>(bus: &B, address: u64, what: &str) -> Result<(), Refusal> {
    bus.read(address, &mut [0; 1])
        .map_err(|fault| Refusal::broken(Status::BadParam, Rule::DmaFault, format!("{what}: {fault}")))
}

/// Limit of this process's memory for all queues of a function, in bytes.
pub(crate) const MAX_QUEUES: u64 = 2 << 30;
/// Approximate bytes kept by the transport engine for each work request, besides its elements and
/// inline data.
const WORK_REQUEST: u64 = 256;

/// Returns the memory of a page list, in bytes.
pub(crate) fn list_bytes(pages: &Pages) -> u64 {
    pages.list().len() as u64 * 8
}

/// Returns the memory of a queue pair, in bytes. The transport engine reserves the maximum for each
/// request.
pub(crate) fn qp_bytes(qp: &Qp) -> u64 {
    let cap = qp.cap();
    let send = WORK_REQUEST + u64::from(cap.max_send_sge) * 16 + u64::from(cap.max_inline_data);
    let recv = WORK_REQUEST + u64::from(cap.max_recv_sge) * 16;
    u64::from(cap.max_send_wr) * send + u64::from(cap.max_recv_wr) * recv + list_bytes(&qp.pages)
}

/// Returns the memory of a shared receive queue, in bytes.
pub(crate) fn srq_bytes(log_size: u32, stride: u64, pages: &Pages) -> u64 {
    ((WORK_REQUEST + stride) << log_size) + list_bytes(pages)
}

impl<B: Bus> Core<B> {
    /// Rejects a size or count, log2, that exceeds the capability.
    pub(crate) fn at_most(&self, what: &str, log: u32, capability: Field) -> Result<(), Refusal> {
        let most = self.caps.general(capability);
        if log > most { Err(bad(format!("2^{log} {what}, the maximum is 2^{most}"))) } else { Ok(()) }
    }

    /// Rejects a queue of `bytes` if too little of this process's memory is left. Guest memory does
    /// not bound `bytes`, because a guest may name a page repeatedly.
    pub(crate) fn room_for(&self, bytes: u64) -> Result<(), Refusal> {
        let cqs = self.cqs.values().map(|cq| list_bytes(&cq.pages));
        let qps = self.qps.values().map(qp_bytes);
        let srqs = self.srqs.values().map(|srq| srq_bytes(srq.log_size, srq.stride, &srq.pages));
        let taken: u64 = cqs.chain(qps).chain(srqs).sum();
        if taken.saturating_add(bytes) > MAX_QUEUES {
            Err(Refusal::fair(Status::NoResources))
        } else {
            Ok(())
        }
    }

    /// Rejects the number of an unallocated protection domain.
    pub(crate) fn needs_pd(&self, pd: u32) -> Result<(), Refusal> {
        if self.pds.contains(&pd) { Ok(()) } else { Err(missing(format!("protection domain {pd:#x}"))) }
    }

    /// Rejects the number of an unallocated UAR page.
    pub(crate) fn needs_uar(&self, uar: u32) -> Result<(), Refusal> {
        if self.hca.uars.contains(uar) { Ok(()) } else { Err(missing(format!("UAR {uar:#x}"))) }
    }

    /// Rejects the number of a missing completion queue.
    pub(crate) fn needs_cq(&self, cqn: u32) -> Result<(), Refusal> {
        if self.cqs.contains_key(&cqn) { Ok(()) } else { Err(missing(format!("completion queue {cqn:#x}"))) }
    }

    /// Rejects the number of a missing shared receive queue; `xrc` selects XRC or the other kinds.
    pub(crate) fn needs_srq(&self, srqn: u32, xrc: bool) -> Result<(), Refusal> {
        match self.srqs.get(&srqn) {
            Some(srq) if (srq.kind == SrqKind::Xrc) == xrc => Ok(()),
            Some(srq) => Err(missing(format!("shared receive queue {srqn:#x} is {:?}", srq.kind))),
            None => Err(missing(format!("shared receive queue {srqn:#x}"))),
        }
    }

    /// Adds a user of a completion queue.
    pub(crate) fn use_cq(&mut self, cqn: u32) {
        if let Some(cq) = self.cqs.get_mut(&cqn) {
            cq.users += 1;
        }
    }

    /// Removes a user of a completion queue.
    pub(crate) fn leave_cq(&mut self, cqn: u32) {
        if let Some(cq) = self.cqs.get_mut(&cqn) {
            cq.users = cq.users.saturating_sub(1);
        }
    }
}
