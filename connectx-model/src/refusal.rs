//! [`Refusal`]: the reason for rejecting a command.

use crate::complaint::Rule;

/// Status of a rejected command, in byte 0 of the command's output. On success, that byte is 0.
///
/// # References
/// PRM, "command return status"
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Status {
    InternalError = 0x01,
    BadOp = 0x02,
    BadParam = 0x03,
    BadSysState = 0x04,
    BadResource = 0x05,
    ResourceBusy = 0x06,
    ExceedLimit = 0x08,
    BadResourceState = 0x09,
    BadIndex = 0x0a,
    NoResources = 0x0f,
    BadQpState = 0x10,
    /// The new size is below the number of unread completions.
    BadCqSize = 0x40,
    BadInputLength = 0x50,
    BadOutputLength = 0x51,
}

/// The reason for rejecting a command: status, syndrome, and the broken rule if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: Status,
    pub(crate) syndrome: u32,
    /// The broken rule and a description of the violation; `None` if the request was legitimate.
    pub(crate) complaint: Option<(Rule, String)>,
}

impl Refusal {
    /// Returns the refusal of a command that breaks `rule`.
    pub(crate) fn broken(status: Status, rule: Rule, what: impl Into<String>) -> Self {
        // Firmware defines the syndromes, and drivers only print them. These values identify the
        // model as the source.
        Self { status, syndrome: 0x00c0_0000 | rule as u32, complaint: Some((rule, what.into())) }
    }

    /// Returns the refusal of a command that breaks no rule, for example because a resource ran out
    /// or the driver probes for a feature.
    pub(crate) fn fair(status: Status) -> Self {
        Self { status, syndrome: 0x00c1_0000 | status as u32, complaint: None }
    }
}
