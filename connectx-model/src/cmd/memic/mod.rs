//! Device memory: ALLOC_MEMIC, DEALLOC_MEMIC.
//!
//! The module [`crate::memic`] implements the memory itself.

use crate::bus::Bus;
use crate::checks::{bad, busy, missing};
use crate::config::{MEMIC_SIZE, MEMIC_START};
use crate::function::{Core, Function};
use crate::layout::memic::{alloc_memic_in, alloc_memic_out, dealloc_memic_in};
use crate::layout::mkey::mkc;
use crate::memic::{LOG_MAX_ALIGNMENT, LOG_UNIT, MAX_AREA};
use crate::refusal::{Refusal, Status};

pub(super) fn alloc<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Refusal> {
    let start = alloc_memic_in::RANGE_START_ADDR.get(input);
    let range_size = alloc_memic_in::RANGE_SIZE.get(input);
    let size = alloc_memic_in::MEMIC_SIZE.get(input);
    let log_alignment = alloc_memic_in::LOG_MEMIC_ADDR_ALIGNMENT.get32(input);
    let range = start..start.checked_add(range_size).ok_or_else(|| bad("a range that wraps"))?;
    if start < MEMIC_START || range.end > MEMIC_START + MEMIC_SIZE {
        return Err(bad(format!("{range:#x?} is not in device memory")));
    }
    if size == 0 || !size.is_multiple_of(1 << LOG_UNIT) || size > range_size {
        return Err(bad(format!("{size} bytes in a range of {range_size}")));
    }
    if log_alignment > LOG_MAX_ALIGNMENT {
        return Err(bad(format!("an alignment of 2^{log_alignment} units")));
    }
    if size > MAX_AREA.into() {
        // The driver leaves the check of this limit to the device.
        return Err(Refusal::fair(Status::ExceedLimit));
    }
    let found = function.core.memic.alloc(&range, size, 1 << (LOG_UNIT + log_alignment));
    let address = found.ok_or(Refusal::fair(Status::NoResources))?;
    alloc_memic_out::MEMIC_START_ADDR.set(output, address);
    Ok(())
}

pub(super) fn dealloc<B: Bus>(function: &mut Function<B>, input: &[u8], _: &mut [u8]) -> Result<(), Refusal> {
    let core = &mut function.core;
    let address = dealloc_memic_in::MEMIC_START_ADDR.get(input);
    let size = dealloc_memic_in::MEMIC_SIZE.get(input);
    let there = core.memic.size_of(address).ok_or_else(|| missing(format!("device memory {address:#x}")))?;
    if size != there {
        return Err(bad(format!("{size} of {there} bytes at {address:#x}")));
    }
    if core.mkeys.uses_memic(address, size) {
        return Err(busy(format!("a memory key opens device memory {address:#x}")));
    }
    core.memic.free(address);
    Ok(())
}

impl<B: Bus> Core<B> {
    /// Checks the context of a memory key for device memory. The key's range must lie within one
    /// allocated area.
    pub(super) fn needs_memic(&self, context: &[u8]) -> Result<(), Refusal> {
        if mkc::LENGTH64.is_set(context) || mkc::FREE.is_set(context) || mkc::UMR_EN.is_set(context) {
            return Err(bad("a key of device memory without bounds, or that work requests may modify"));
        }
        let (start, len) = (mkc::START_ADDR.get(context), mkc::LEN.get(context));
        if self.memic.holds(start, len) {
            Ok(())
        } else {
            Err(missing(format!("device memory: {len} bytes at {start:#x}")))
        }
    }
}

#[cfg(test)]
mod tests;
