//! [`Log`]: the complaints and the trace of a function.

use crate::complaint::{Complaints, Rule};
use crate::trace::{Trace, format};

/// The complaints and the trace of one function.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) complaints: Complaints,
    pub(crate) trace: Trace,
}

impl Log {
    /// Records the violation of a rule.
    pub(crate) fn complain(&mut self, rule: Rule, what: impl Into<String>) {
        let what = what.into();
        self.trace.line(|| format::complaint(rule, &what));
        self.complaints.add(rule, what);
    }
}

/// Mask for the counter of posted work requests in a doorbell record.
pub(crate) const POSTED: u32 = 0xffff;

/// Mask for the consumer index in a doorbell record.
pub(crate) const CONSUMED: u32 = 0x00ff_ffff;

impl Log {
    /// Returns the counter of posted work requests in a word of a doorbell record. Complains if
    /// bits above the counter are set.
    pub(crate) fn posted(&mut self, word: u32) -> u16 {
        self.counter(word, POSTED) as u16
    }

    pub(crate) fn counter(&mut self, word: u32, mask: u32) -> u32 {
        if word & !mask != 0 {
            self.complain(Rule::DoorbellRecordBits, format!("a doorbell record holds {word:#x}"));
        }
        word & mask
    }
}
