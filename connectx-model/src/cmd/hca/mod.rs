//! The lifecycle of the function, and the objects that belong to the function as a whole.
//!
//! ```text
//! Disabled ──ENABLE_HCA──► Enabled ──INIT_HCA──► Initialised
//!    ▲                      │    ▲                  │
//!    └──────DISABLE_HCA─────┘    └───TEARDOWN_HCA───┘
//! ```
//!
//! The function requests pages at boot and before INIT_HCA. It keeps them while initialised and
//! returns them on request before DISABLE_HCA. The model stores nothing in these pages.
//!
//! Invariant: objects exist only while the function is initialised.

use std::collections::BTreeSet;

use crate::bus::Bus;
use crate::checks::engine;
use crate::complaint::Rule;
use crate::function::{Core, Function};
use crate::layout::{hca, put, qword};
use crate::refusal::{Refusal, Status};
use crate::state::hca::{Hca, Stage};
use crate::state::mkey::NULL_MKEY;

/// Number of pages that the function requests at boot.
const BOOT_PAGES: usize = 4;
/// Number of additional pages that the function requests before INIT_HCA.
const INIT_PAGES: usize = 12;
/// Maximum number of pages that a driver may give. No driver gives as many without a request.
const MAX_PAGES: usize = 1024;
/// Highest supported interface step sequence ID (ISSI); current drivers use it.
const MAX_ISSI: u32 = 1;

/// Rejects a command for another function; only function 0 exists.
fn own_function(number: u64) -> Result<(), Refusal> {
    if number == 0 {
        return Ok(());
    }
    Err(Refusal::broken(Status::BadParam, Rule::CommandParameter, format!("function {number}")))
}

pub(super) fn enable_hca<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Refusal> {
    own_function(hca::enable_hca_in::FUNCTION_ID.get(input))?;
    function.core.hca.stage = Stage::Enabled;
    Ok(())
}

pub(super) fn disable_hca<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Refusal> {
    own_function(hca::disable_hca_in::FUNCTION_ID.get(input))?;
    let hca = &mut function.core.hca;
    if !hca.pages.is_empty() {
        let what = format!("the driver has not reclaimed {} pages", hca.pages.len());
        return Err(Refusal::broken(Status::BadSysState, Rule::CommandBusy, what));
    }
    *hca = Hca::default();
    Ok(())
}

pub(super) fn init_hca<B: Bus>(function: &mut Function<B>, _: &[u8], _: &mut [u8]) -> Result<(), Refusal> {
    let hca = &mut function.core.hca;
    if hca.pages.len() < BOOT_PAGES + INIT_PAGES {
        let what =
            format!("the driver gave {} pages, {} are needed", hca.pages.len(), BOOT_PAGES + INIT_PAGES);
        return Err(Refusal::broken(Status::BadSysState, Rule::CommandState, what));
    }
    hca.stage = Stage::Initialised;
    Ok(())
}

pub(super) fn teardown_hca<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Refusal> {
    let profile = hca::teardown_hca_in::PROFILE.get(input);
    if profile != 0 {
        let what = format!("profile {profile}: only an orderly teardown is offered");
        return Err(Refusal::broken(Status::BadParam, Rule::CommandParameter, what));
    }
    // The device drops all remaining objects. If any remain, the driver has lost track of them.
    if let Some(left) = function.core.objects_left() {
        function.core.log.complain(Rule::CommandBusy, format!("TEARDOWN_HCA with objects left: {left}"));
    }
    function.drop_objects();
    function.core.hca.stage = Stage::Enabled;
    Ok(())
}

impl<B: Bus> Core<B> {
    /// Returns the kinds of remaining objects with their counts; `None` if no object remains.
    fn objects_left(&self) -> Option<String> {
        let kinds = [
            ("EQ", self.eqs.len()),
            ("CQ", self.cqs.len()),
            ("QP", self.qps.len()),
            ("SRQ", self.srqs.len()),
            ("PD", self.pds.len()),
            ("XRC domain", self.xrcds.len()),
            ("transport domain", self.transport_domains.len()),
            ("UAR", self.hca.uars.len()),
            ("counter set", self.hca.counters.len()),
            ("memory key", self.mkeys.len()),
            ("area of device memory", self.memic.len()),
            ("send queue", self.eth.sqs.len()),
            ("receive queue", self.eth.rqs.len()),
            ("TIS", self.eth.tises.len()),
            ("TIR", self.eth.tirs.len()),
            ("RQT", self.eth.rqts.len()),
            ("flow table", self.eth.steering.tables.len()),
            ("flow counter", self.eth.steering.counters.len()),
        ];
        let left: Vec<_> = kinds
            .iter()
            .filter(|(_, count)| *count > 0)
            .map(|(kind, count)| format!("{count} {kind}"))
            .collect();
        (!left.is_empty()).then(|| left.join(", "))
    }

    /// Returns whether the UAR page serves the doorbells of any queue that must be destroyed first.
    ///
    /// Completion queues do not count: if a program closes its device without destroying them, the
    /// driver frees the page before the queues. Such a queue still works, but can no longer be
    /// armed.
    fn uar_in_use(&self, uar: u32) -> bool {
        self.eqs.values().any(|eq| eq.uar == uar)
            || self.qps.values().any(|qp| qp.uar == uar)
            || self.eth.sqs.values().any(|sq| sq.queue.uar == uar)
    }
}

pub(super) fn query_issi<B: Bus>(
    function: &mut Function<B>,
    _: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    hca::query_issi_out::CURRENT_ISSI.set(output, function.core.hca.issi);
    hca::query_issi_out::SUPPORTED_ISSI_DW0.set(output, (1u32 << (MAX_ISSI + 1)) - 1);
    Ok(())
}

pub(super) fn set_issi<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Refusal> {
    let issi = hca::set_issi_in::CURRENT_ISSI.get32(input);
    if issi > MAX_ISSI {
        return Err(Refusal::broken(
            Status::BadParam,
            Rule::CommandParameter,
            format!("interface step {issi}"),
        ));
    }
    function.core.hca.issi = issi;
    Ok(())
}

pub(super) fn query_pages<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    own_function(hca::query_pages_in::FUNCTION_ID.get(input))?;
    let given = function.core.hca.pages.len();
    let wanted = match hca::query_pages_in::OP_MOD.get(input) {
        1 => BOOT_PAGES.saturating_sub(given),
        2 => (BOOT_PAGES + INIT_PAGES).saturating_sub(given),
        _ => 0,
    };
    hca::query_pages_out::NUM_PAGES.set(output, wanted as u32);
    Ok(())
}

pub(super) fn manage_pages<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    own_function(hca::manage_pages_in::FUNCTION_ID.get(input))?;
    let count = hca::manage_pages_in::INPUT_NUM_ENTRIES.get(input) as usize;
    let hca = &mut function.core.hca;
    let given = hca::manage_pages_in::OP_MOD.get(input) == 1;
    let needed = hca::manage_pages_in::PAS + if given { count * 8 } else { 0 };
    if input.len() != needed {
        let what = format!("{} bytes of input, {needed} are needed for {count} pages", input.len());
        return Err(Refusal::broken(Status::BadInputLength, Rule::CommandLength, what));
    }
    match hca::manage_pages_in::OP_MOD.get(input) {
        // The driver reports that it cannot give the requested pages.
        0 => Ok(()),
        1 => give_pages(hca, input, count),
        _ => take_pages(hca, output, count),
    }
}

fn give_pages(hca: &mut Hca, input: &[u8], count: usize) -> Result<(), Refusal> {
    let list = input.get(hca::manage_pages_in::PAS..).unwrap_or_default();
    let pages: BTreeSet<u64> = list.chunks_exact(8).map(|entry| qword(entry, 0)).collect();
    let twice = pages.len() < count || !pages.is_disjoint(&hca.pages);
    if let Some(page) = pages.iter().find(|page| !page.is_multiple_of(0x1000)) {
        return Err(Refusal::broken(
            Status::BadParam,
            Rule::CommandPages,
            format!("page {page:#x} is not aligned"),
        ));
    }
    if twice {
        return Err(Refusal::broken(Status::BadParam, Rule::CommandPages, "the driver gave a page twice"));
    }
    if hca.pages.len() + count > MAX_PAGES {
        return Err(Refusal::broken(
            Status::ExceedLimit,
            Rule::CommandParameter,
            format!("{count} more pages exceed the maximum"),
        ));
    }
    hca.pages.extend(pages);
    Ok(())
}

fn take_pages(hca: &mut Hca, output: &mut [u8], count: usize) -> Result<(), Refusal> {
    let room = output.len().saturating_sub(hca::manage_pages_out::PAS) / 8;
    if room < count {
        let what = format!("room for {room} pages in the output, {count} are needed");
        return Err(Refusal::broken(Status::BadOutputLength, Rule::CommandLength, what));
    }
    // An initialised function keeps the pages that it requested.
    let kept = if hca.stage == Stage::Initialised { BOOT_PAGES + INIT_PAGES } else { 0 };
    let count = hca.pages.len().saturating_sub(kept).min(count);
    for place in 0..count {
        let Some(page) = hca.pages.pop_last() else { break };
        put(output, hca::manage_pages_out::PAS + place * 8, &page.to_be_bytes());
    }
    hca::manage_pages_out::OUTPUT_NUM_ENTRIES.set(output, count as u32);
    Ok(())
}

pub(super) fn query_hca_cap<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    own_function(
        hca::query_hca_cap_in::FUNCTION_ID.get(input) | hca::query_hca_cap_in::OTHER_FUNCTION.get(input),
    )?;
    let modifier = hca::query_hca_cap_in::OP_MOD.get32(input);
    let Some(bytes) = function.core.caps.query(modifier >> 1, modifier & 1 != 0) else {
        let what = format!("capability group {:#x} is not offered", modifier >> 1);
        return Err(Refusal::broken(Status::BadParam, Rule::CommandModifier, what));
    };
    put(output, hca::query_hca_cap_out::CAPABILITY.offset, bytes);
    Ok(())
}

pub(super) fn set_hca_cap<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Refusal> {
    own_function(
        hca::set_hca_cap_in::FUNCTION_ID.get(input) | hca::set_hca_cap_in::OTHER_FUNCTION.get(input),
    )?;
    let group = hca::set_hca_cap_in::OP_MOD.get32(input) >> 1;
    let wanted = hca::set_hca_cap_in::CAPABILITY.bytes(input);
    function.core.caps.set(group, wanted)
}

pub(super) fn query_adapter<B: Bus>(_: &mut Function<B>, _: &[u8], output: &mut [u8]) -> Result<(), Refusal> {
    hca::query_adapter_out::IEEE_VENDOR_ID.set(output, 0x2c9u32);
    hca::query_adapter_out::VSD_VENDOR_ID.set(output, 0x15b3u32);
    put(output, hca::query_adapter_out::VSD_CONTD_PSID.offset, b"MODEL0000001");
    Ok(())
}

/// The key that ends a scatter list. This key and the null key have fixed values; the function
/// chooses the dump-fill key.
const TERMINATE_LKEY: u32 = 0x100;

pub(super) fn query_special_contexts<B: Bus>(
    function: &mut Function<B>,
    _: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    let key = function.dump_fill_key().map_err(|refused| engine(refused, "the dump-fill key"))?;
    hca::query_special_contexts_out::DUMP_FILL_MKEY.set(output, key);
    hca::query_special_contexts_out::TERMINATE_SCATTER_LIST_MKEY.set(output, TERMINATE_LKEY);
    hca::query_special_contexts_out::NULL_MKEY.set(output, NULL_MKEY);
    Ok(())
}

pub(super) fn page_fault_resume<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Refusal> {
    use hca::page_fault_resume_in::{ERROR, PAGE_FAULT_TYPE, TOKEN, WQ_NUMBER};
    let (kind, wq) = (PAGE_FAULT_TYPE.get32(input), WQ_NUMBER.get32(input));
    function.resume_page_fault(TOKEN.get32(input), kind, wq, ERROR.is_set(input))
}

pub(super) fn alloc_uar<B: Bus>(
    function: &mut Function<B>,
    _: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    let uar = function.core.hca.uars.take().ok_or(Refusal::fair(Status::NoResources))?;
    hca::alloc_uar_out::UAR.set(output, uar);
    Ok(())
}

pub(super) fn dealloc_uar<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Refusal> {
    let uar = hca::dealloc_uar_in::UAR.get32(input);
    if function.core.uar_in_use(uar) {
        let what = format!("UAR {uar:#x} is in use by queues");
        return Err(Refusal::broken(Status::ResourceBusy, Rule::CommandBusy, what));
    }
    if !function.core.hca.uars.give_back(uar) {
        let what = format!("UAR {uar:#x}, which is not allocated");
        return Err(Refusal::broken(Status::BadResource, Rule::CommandObject, what));
    }
    function.drop_half_store(uar);
    Ok(())
}

pub(super) fn alloc_q_counter<B: Bus>(
    function: &mut Function<B>,
    _: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    let counter = function.core.hca.counters.take().ok_or(Refusal::fair(Status::NoResources))?;
    hca::alloc_q_counter_out::COUNTER_SET_ID.set(output, counter);
    Ok(())
}

fn counter_exists<B: Bus>(function: &Function<B>, counter: u32) -> Result<(), Refusal> {
    if function.core.hca.counters.contains(counter) {
        return Ok(());
    }
    let what = format!("counter set {counter}, which is not allocated");
    Err(Refusal::broken(Status::BadResource, Rule::CommandObject, what))
}

pub(super) fn dealloc_q_counter<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Refusal> {
    let counter = hca::dealloc_q_counter_in::COUNTER_SET_ID.get32(input);
    counter_exists(function, counter)?;
    if function.core.eth.counts_in(counter) {
        let what = format!("counter set {counter} is in use by receive queues");
        return Err(Refusal::broken(Status::ResourceBusy, Rule::CommandBusy, what));
    }
    function.core.hca.counters.give_back(counter);
    Ok(())
}

pub(super) fn query_q_counter<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Refusal> {
    counter_exists(function, hca::query_q_counter_in::COUNTER_SET_ID.get32(input))
}

pub(super) fn set_driver_version<B: Bus>(_: &mut Function<B>, _: &[u8], _: &mut [u8]) -> Result<(), Refusal> {
    Ok(())
}

pub(super) fn nop<B: Bus>(_: &mut Function<B>, _: &[u8], _: &mut [u8]) -> Result<(), Refusal> {
    Ok(())
}

#[cfg(test)]
mod tests;
