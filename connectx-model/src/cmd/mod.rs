//! The command interface: executes the commands in the driver's command queue.
//!
//! | module | commands |
//! |---|---|
//! | `table` | all commands, one row each |
//! | `queue` | entries, mailboxes, completion |
//! | `hca` | lifecycle of the function: enabling, ISSI, pages, capabilities, UARs, counters |
//! | `eq` | event queues |
//! | `pd`, `mkey`, `memic`, `cq`, `qp`, `srq` | data path objects |
//! | `context` | context checks common to all queue types |
//! | `vport` | the port: contexts, GIDs, partition keys, RoCE addresses, MADs |
//! | `register` | registers behind ACCESS_REG |
//! | `eth`, `tir`, `steering` | Ethernet queues, objects between them and the wire, flow tables |
//!
//! Each command has one row in `table`: opcode, name, structures, stages, modifiers, handler. The
//! handlers of each command family are in one file. This file makes the checks common to all
//! commands: opcode, lengths, reserved bits, modifiers, and the stage of the function.

#[cfg(test)]
pub(crate) mod bench;
pub(crate) mod context;
pub(crate) mod cq;
pub(crate) mod eq;
pub(crate) mod eth;
pub(crate) mod hca;
pub(crate) mod memic;
pub(crate) mod mkey;
pub(crate) mod pd;
pub(crate) mod qp;
pub(crate) mod queue;
pub(crate) mod register;
pub(crate) mod srq;
pub(crate) mod steering;
pub(crate) mod table;
pub(crate) mod tir;
pub(crate) mod vport;

use crate::bus::Bus;
use crate::cmd::table::command;
use crate::complaint::Rule;
use crate::function::Function;
use crate::layout::iseg::{command_in, command_out};
use crate::refusal::{Refusal, Status};
use crate::trace::format;

impl<B: Bus> Function<B> {
    /// Executes one command and returns its output.
    pub(crate) fn dispatch(&mut self, input: &[u8], out_len: usize) -> Vec<u8> {
        let mut output = vec![0; out_len];
        let opcode = command_in::OPCODE.get(input) as u16;
        let name = command::<B>(opcode).map_or("unknown", |command| command.name);
        // Completions for earlier doorbells are written before the command changes the state of
        // their queue.
        self.core.close_all();
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
        // The driver may look for completions as soon as the command has completed.
        self.core.close_all();
        command_out::STATUS.set(&mut output, status);
        command_out::SYNDROME.set(&mut output, syndrome);
        let table = command::<B>(opcode).map_or(&command_in::TABLE, |command| command.input);
        self.core.log.trace.line(|| format::command(name, table, input, &output));
        output
    }

    /// Makes the checks common to all commands, then calls the command's handler.
    fn run(&mut self, opcode: u16, input: &[u8], output: &mut [u8]) -> Result<(), Refusal> {
        let Some(command) = command::<B>(opcode) else {
            return Err(Refusal::broken(Status::BadOp, Rule::CommandOpcode, "unknown opcode"));
        };
        let (table, run) = (command.input, command.run);
        if input.len() < table.size {
            let what = format!("{} bytes of input, {} are needed", input.len(), table.size);
            return Err(Refusal::broken(Status::BadInputLength, Rule::CommandLength, what));
        }
        if input.len() > table.size && command.list.is_none() {
            let what = format!("{} bytes of input, the maximum is {}", input.len(), table.size);
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
            let what = format!("user context {uid}, which does not exist");
            return Err(Refusal::broken(Status::BadParam, Rule::CommandParameter, what));
        }
        let modifier = command_in::OP_MOD.get32(input);
        if !command.modifiers.contains(&modifier) {
            return Err(Refusal::broken(
                Status::BadParam,
                Rule::CommandModifier,
                format!("modifier {modifier:#x}"),
            ));
        }
        let stage = self.core.hca.stage;
        if !command.stages.contains(&stage) {
            let what = format!("the function is {stage}");
            return Err(Refusal::broken(Status::BadSysState, Rule::CommandState, what));
        }
        run(self, input, output)
    }
}

#[cfg(test)]
mod tests;
