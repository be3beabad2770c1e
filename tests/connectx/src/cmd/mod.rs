//! The command interface: what the driver asks for through the command queue.
//!
//! | module | commands |
//! |---|---|
//! | `queue` | entries, mailboxes, completion |
//!
//! Each family of commands is a file with a list of [`Command`]s: opcode, name, tables, and the function that carries it out. What
//! is the same for all of them is done once, here: lengths, reserved bits, the state of the function.

pub(crate) mod queue;

use crate::bus::Bus;
use crate::complaint::Rule;
use crate::function::Function;
use crate::layout::Table;

/// A command that the function knows.
#[derive(Debug)]
pub(crate) struct Command<B: Bus> {
    pub(crate) opcode: u16,
    pub(crate) name: &'static str,
    /// The table of its input, for lengths and reserved bits. What is longer is a list.
    pub(crate) input: &'static Table,
    /// How many bytes its output has at least.
    pub(crate) output: usize,
    /// Carries it out. `output` is as long as the driver has room for, and zeroed; status and syndrome are set by the caller.
    pub(crate) run: fn(&mut Function<B>, input: &[u8], output: &mut [u8]) -> Result<(), Refusal>,
}

/// How a command ended, byte 0 of its output.
///
/// # References
/// PRM, "command return status"
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(dead_code)]
pub(crate) enum Status {
    Ok = 0x00,
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
    BadInputLength = 0x50,
    BadOutputLength = 0x51,
}

/// Why a command is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: Status,
    pub(crate) syndrome: u32,
    /// The rule that was broken; none where asking was fair.
    pub(crate) complaint: Option<(Rule, String)>,
}

impl Refusal {
    /// A rule was broken.
    pub(crate) fn broken(status: Status, rule: Rule, what: impl Into<String>) -> Self {
        // Syndromes are the firmware's own; a driver only shows them. These are recognisable.
        Self { status, syndrome: 0x00c0_0000 | rule as u32, complaint: Some((rule, what.into())) }
    }

    /// No rule was broken: there is no room, or the driver tries what is there.
    pub(crate) fn fair(status: Status) -> Self {
        Self { status, syndrome: 0x00c1_0000 | status as u32, complaint: None }
    }
}
