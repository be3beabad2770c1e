//! The command interface: what the driver asks for through the command queue.
//!
//! | module | commands |
//! |---|---|
//! | `queue` | entries, mailboxes, completion |
//! | `hca` | life of the function: enabling, ISSI, pages, capabilities, UARs, counters |
//! | `eq` | event queues |
//! | `pd`, `mkey`, `cq`, `qp`, `srq` | objects of the data path |
//! | `context` | what the contexts of queues have in common |
//! | `vport` | the port: contexts, GIDs, partition keys, RoCE addresses, MADs |
//! | `register` | registers behind ACCESS_REG |
//! | `eth`, `tir`, `steering` | Ethernet queues, what leads to and from them, flow tables |
//!
//! Each family of commands is a file with a list of [`Command`]s: opcode, name, tables, and the function that carries it out. What
//! is the same for all of them is done once, here: lengths, reserved bits, modifiers, the state of the function.

#[cfg(test)]
pub(crate) mod bench;
pub(crate) mod context;
pub(crate) mod cq;
pub(crate) mod eq;
pub(crate) mod eth;
pub(crate) mod hca;
pub(crate) mod mkey;
pub(crate) mod pd;
pub(crate) mod qp;
pub(crate) mod queue;
pub(crate) mod register;
pub(crate) mod srq;
pub(crate) mod steering;
pub(crate) mod tir;
pub(crate) mod vport;

use std::collections::BTreeMap;

use crate::bus::Bus;
use crate::complaint::Rule;
use crate::function::Function;
use crate::layout::Table;
use crate::layout::iseg::{command_in, command_out};
use crate::trace::format;

/// A command that the function knows.
#[derive(Debug)]
pub(crate) struct Command<B: Bus> {
    pub(crate) opcode: u16,
    pub(crate) name: &'static str,
    /// The table of its input, for lengths and reserved bits. What is longer is a list: see [`LISTS`].
    pub(crate) input: &'static Table,
    /// How many bytes its output has at least.
    pub(crate) output: usize,
    /// Carries it out. `output` is as long as the driver has room for, and zeroed; status and syndrome are set by the caller.
    pub(crate) run: Run<B>,
}

/// Carries a command out: its input, its output.
pub(crate) type Run<B> = fn(&mut Function<B>, &[u8], &mut [u8]) -> Result<(), Refusal>;

/// How a command ended that was refused, byte 0 of its output, which is 0 otherwise.
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
    /// A completion queue would be smaller than what waits in it.
    BadCqSize = 0x40,
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

/// Every command that a function knows.
pub(crate) fn commands<B: Bus>() -> BTreeMap<u16, Command<B>> {
    let families = [
        hca::commands(),
        eq::commands(),
        vport::commands(),
        register::commands(),
        eth::commands(),
        tir::commands(),
        steering::commands(),
        pd::commands(),
        mkey::commands(),
        cq::commands(),
        qp::commands(),
        srq::commands(),
    ];
    families.into_iter().flatten().map(|command| (command.opcode, command)).collect()
}

/// Modifiers other than 0, of commands that have them.
const MODIFIERS: &[(u16, std::ops::RangeInclusive<u32>)] = &[
    // Capability groups, twice their number and whether current.
    (0x100, 0..=0x43),
    (0x109, 0..=0x43),
    // When pages are needed; whether they are given or taken.
    (0x107, 1..=3),
    (0x108, 0..=2),
    // Which port's state.
    (0x750, 0..=2),
    (0x751, 0..=2),
    // Writing or reading.
    (0x805, 0..=1),
    // What a MAD is checked for, not at all.
    (0x50d, 0..=3),
    // Resizing a completion queue.
    (0x403, 0..=1),
    // Which kind of shared receive queue is armed.
    (0x703, 1..=1),
    (0x708, 1..=1),
    // Whether there is a root.
    (0x92f, 0..=1),
    // Setting a flow table's entry, or changing it.
    (0x936, 0..=1),
];

/// Commands that a list follows, or a register; they check its length themselves. The others are as long as their table: Linux
/// sends what its own structures have, which from 6.1 to 7.2 is that to the byte.
///
/// | opcodes | what follows |
/// |---|---|
/// | 0x108 | pages given |
/// | 0x200 | translations of a memory key |
/// | 0x301, 0x400, 0x403, 0x500, 0x700, 0x705, 0x904, 0x908, 0x90c | pages of queues |
/// | 0x755 | addresses that a port hears |
/// | 0x805 | a register |
/// | 0x916, 0x917 | receive queues of a table |
/// | 0x936 | destinations and counters of a flow |
const LISTS: &[u16] = &[
    0x108, 0x200, 0x301, 0x400, 0x403, 0x500, 0x700, 0x705, 0x755, 0x805, 0x904, 0x908, 0x90c, 0x916, 0x917,
    0x936,
];

impl<B: Bus> Function<B> {
    /// Carries out one command, and tells what to answer.
    pub(crate) fn dispatch(&mut self, input: &[u8], out_len: usize) -> Vec<u8> {
        let mut output = vec![0; out_len];
        let opcode = command_in::OPCODE.get(input) as u16;
        let name = self.commands.get(&opcode).map_or("unknown", |command| command.name);
        let injected = self.core.faults.command(opcode);
        let (status, syndrome) = match injected {
            Some((status, syndrome)) => (status, syndrome),
            None => match self.run(opcode, input, &mut output) {
                Ok(()) => (0, 0),
                Err(refusal) => {
                    output.fill(0);
                    if let Some((rule, what)) = refusal.complaint {
                        self.core.log.complain(rule, format!("{name} ({opcode:#x}): {what}"));
                    }
                    (refusal.status as u8, refusal.syndrome)
                }
            },
        };
        command_out::STATUS.set(&mut output, status);
        command_out::SYNDROME.set(&mut output, syndrome);
        let table = self.commands.get(&opcode).map_or(&command_in::TABLE, |command| command.input);
        self.core.log.trace.line(|| format::command(name, table, input, &output));
        output
    }

    /// What every command is checked for, then the command.
    fn run(&mut self, opcode: u16, input: &[u8], output: &mut [u8]) -> Result<(), Refusal> {
        let Some(command) = self.commands.get(&opcode) else {
            return Err(Refusal::broken(
                Status::BadOp,
                Rule::CommandOpcode,
                "this function does not know it",
            ));
        };
        let (table, run) = (command.input, command.run);
        if input.len() < table.size {
            let what = format!("{} bytes of input, {} are needed", input.len(), table.size);
            return Err(Refusal::broken(Status::BadInputLength, Rule::CommandLength, what));
        }
        if input.len() > table.size && !LISTS.contains(&opcode) {
            let what = format!("{} bytes of input, {} are all that there are", input.len(), table.size);
            return Err(Refusal::broken(Status::BadInputLength, Rule::CommandLength, what));
        }
        if output.len() < command.output {
            let what = format!("{} bytes of output, {} are needed", output.len(), command.output);
            return Err(Refusal::broken(Status::BadOutputLength, Rule::CommandLength, what));
        }
        if let Some((offset, bits)) = table.reserved(input) {
            let what = format!("bits {bits:#x} of dword {offset:#x}");
            return Err(Refusal::broken(Status::BadParam, Rule::CommandReserved, what));
        }
        let uid = command_in::UID.get(input);
        if uid != 0 {
            let what = format!("user context {uid}: there are none");
            return Err(Refusal::broken(Status::BadParam, Rule::CommandParameter, what));
        }
        let modifier = command_in::OP_MOD.get32(input);
        let known = MODIFIERS.iter().find(|(of, _)| *of == opcode).map_or(&(0..=0), |(_, known)| known);
        if !known.contains(&modifier) {
            return Err(Refusal::broken(
                Status::BadParam,
                Rule::CommandModifier,
                format!("modifier {modifier:#x}"),
            ));
        }
        let stage = self.core.hca.stage;
        if !hca::allowed(opcode, stage) {
            let what = format!("in a function that is {stage}");
            return Err(Refusal::broken(Status::BadSysState, Rule::CommandState, what));
        }
        run(self, input, output)
    }
}

#[cfg(test)]
mod tests;
