//! The command queue: command entries, mailboxes, command completion.
//!
//! ```text
//! doorbell bit n ──► entry n: owner, type, lengths, token
//!                      ├─ first 16 bytes of the input inline, the rest in mailboxes of 512 bytes
//!                      ├─ dispatch
//!                      ├─ first 16 bytes of the output inline, the rest in the driver's mailboxes
//!                      └─ delivery status and owner last; then a command event, if subscribed
//! ```
//!
//! Invariant: a malformed entry is not executed; its delivery status gives the reason. Invariant: a
//! chain of mailboxes is finite, because each mailbox contains its index.

use crate::bus::Bus;
use crate::complaint::Rule;
use crate::function::{Core, Function};
use crate::layout::iseg::{command_entry, mailbox};
use crate::layout::{eqe, put};
use crate::state::eq::EventType;
use crate::state::hca::{LOG_SIZE, LOG_STRIDE};

/// Maximum input length, in bytes. The longest inputs are page lists of memory keys; 16 MiB hold
/// the list for almost 8 GiB.
const MAX_INPUT: usize = 16 << 20;
/// Maximum output length, in bytes. No command needs as much.
const MAX_OUTPUT: usize = 1 << 20;
/// Number of input or output bytes that a command entry holds inline.
const INLINE: usize = 16;
/// Type of a command entry for the PCI transport.
const TYPE_PCI: u32 = 7;

/// Delivery status of a command entry. The command itself has a separate status in its output.
///
/// # References
/// PRM, "command delivery status"
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Delivery {
    Ok = 0x00,
    Token = 0x02,
    BlockNumber = 0x03,
    OutputPointer = 0x04,
    InputPointer = 0x05,
    InputLength = 0x07,
    OutputLength = 0x08,
    Reserved = 0x09,
    Descriptor = 0x10,
}

/// The reason why an entry was not executed: its delivery status, the broken rule and a
/// description.
struct Undelivered(Delivery, Rule, String);

impl<B: Bus> Function<B> {
    /// Executes the command entries whose bits are set in `vector`.
    pub(crate) fn ring_commands(&mut self, vector: u32) {
        for slot in (0..32).filter(|slot| vector >> slot & 1 != 0) {
            self.ring_command(slot);
        }
    }

    fn ring_command(&mut self, slot: u32) {
        let core = &mut self.core;
        if core.cmdq.address == 0 || slot >= 1 << LOG_SIZE {
            core.log
                .complain(Rule::CommandEntry, format!("doorbell for command {slot} without a command queue"));
            return;
        }
        let address = core.cmdq.address + (u64::from(slot) << LOG_STRIDE);
        let mut entry = [0; command_entry::SIZE];
        if let Err(fault) = core.bus.read(address, &mut entry) {
            core.log.complain(Rule::DmaFault, format!("command {slot}: {fault}"));
            return;
        }
        if !command_entry::OWNER.is_set(&entry) {
            core.log.complain(
                Rule::CommandEntry,
                format!("doorbell for command {slot}, whose entry the driver owns"),
            );
            return;
        }
        // If this command creates the event queue, it raises no event, because the queue did not
        // exist when the driver issued the command.
        let told = core.eqs.values().any(|eq| eq.takes(EventType::Command as u8));
        let delivery = match self.execute(&mut entry) {
            Ok(()) => Delivery::Ok,
            Err(Undelivered(delivery, rule, what)) => {
                self.core.log.complain(rule, format!("command {slot}: {what}"));
                delivery
            }
        };
        command_entry::STATUS.set(&mut entry, delivery as u32);
        command_entry::OWNER.set(&mut entry, 0u32);
        let core = &mut self.core;
        if let Err(fault) = core.bus.publish(address, &entry) {
            core.log.complain(Rule::DmaFault, format!("command {slot}: {fault}"));
        }
        let mut data = [0; 28];
        eqe::command::VECTOR.set(&mut data, 1u32 << slot);
        if told {
            core.event(EventType::Command, 0, &data);
        }
    }

    /// Collects the command's input from the entry and its mailboxes, executes the command, then
    /// writes the output.
    fn execute(&mut self, entry: &mut [u8; command_entry::SIZE]) -> Result<(), Undelivered> {
        let kind = command_entry::TYPE.get32(entry);
        if kind != TYPE_PCI {
            return Err(Undelivered(Delivery::Descriptor, Rule::CommandEntry, format!("type {kind}")));
        }
        if let Some((offset, bits)) = command_entry::TABLE.reserved(entry) {
            let what = format!("reserved bits {bits:#x} of dword {offset:#x} of the entry");
            return Err(Undelivered(Delivery::Reserved, Rule::CommandReserved, what));
        }
        let input = self.core.gather(entry)?;
        let out_len = command_entry::OUTPUT_LENGTH.get(entry) as usize;
        if !(8..=MAX_OUTPUT).contains(&out_len) {
            return Err(Undelivered(
                Delivery::OutputLength,
                Rule::CommandEntry,
                format!("{out_len} bytes of output"),
            ));
        }
        // The output mailboxes are checked before the command executes.
        let boxes = self.core.output_boxes(entry, out_len)?;
        let output = self.dispatch(&input, out_len);
        self.core.scatter(entry, &boxes, &output)
    }
}

impl<B: Bus> Core<B> {
    fn gather(&self, entry: &[u8]) -> Result<Vec<u8>, Undelivered> {
        let len = command_entry::INPUT_LENGTH.get(entry) as usize;
        if !(8..=MAX_INPUT).contains(&len) {
            return Err(Undelivered(
                Delivery::InputLength,
                Rule::CommandEntry,
                format!("{len} bytes of input"),
            ));
        }
        let mut input = command_entry::INPUT_INLINE.bytes(entry).to_vec();
        let first = command_entry::INPUT_MAILBOX.get(entry);
        let token = command_entry::TOKEN.get32(entry);
        self.walk(first, len.saturating_sub(INLINE), token, Delivery::InputPointer, |bytes, _| {
            input.extend_from_slice(mailbox::DATA.bytes(bytes));
        })?;
        input.truncate(len);
        Ok(input)
    }

    fn output_boxes(&self, entry: &[u8], len: usize) -> Result<Vec<u64>, Undelivered> {
        let mut boxes = Vec::new();
        let first = command_entry::OUTPUT_MAILBOX.get(entry);
        let token = command_entry::TOKEN.get32(entry);
        self.walk(first, len.saturating_sub(INLINE), token, Delivery::OutputPointer, |_, address| {
            boxes.push(address);
        })?;
        Ok(boxes)
    }

    /// Visits the chain of mailboxes that holds `len` bytes.
    fn walk(
        &self,
        first: u64,
        len: usize,
        token: u32,
        pointer: Delivery,
        mut visit: impl FnMut(&[u8], u64),
    ) -> Result<(), Undelivered> {
        let mut address = first;
        for number in 0..len.div_ceil(mailbox::DATA.len) {
            if address == 0 || !address.is_multiple_of(0x200) {
                let what = format!("mailbox {number} of {len} bytes at {address:#x}");
                return Err(Undelivered(pointer, Rule::CommandEntry, what));
            }
            let mut bytes = [0; mailbox::SIZE];
            if let Err(fault) = self.bus.read(address, &mut bytes) {
                return Err(Undelivered(pointer, Rule::DmaFault, fault.to_string()));
            }
            let theirs = mailbox::TOKEN.get32(&bytes);
            if theirs != token {
                let what = format!("mailbox {number} has token {theirs:#x}, its command has {token:#x}");
                return Err(Undelivered(Delivery::Token, Rule::CommandToken, what));
            }
            let block = mailbox::BLOCK_NUMBER.get(&bytes);
            if block != number as u64 {
                let what = format!("mailbox {number} has number {block}");
                return Err(Undelivered(Delivery::BlockNumber, Rule::CommandToken, what));
            }
            visit(&bytes, address);
            address = mailbox::NEXT.get(&bytes);
        }
        Ok(())
    }

    fn scatter(&self, entry: &mut [u8], boxes: &[u64], output: &[u8]) -> Result<(), Undelivered> {
        let (inline, rest) = output.split_at(output.len().min(INLINE));
        command_entry::OUTPUT_INLINE.bytes_mut(entry).fill(0);
        put(entry, command_entry::OUTPUT_INLINE.offset, inline);
        for (address, bytes) in boxes.iter().zip(rest.chunks(mailbox::DATA.len)) {
            if let Err(fault) = self.bus.write(*address, bytes) {
                return Err(Undelivered(Delivery::OutputPointer, Rule::DmaFault, fault.to_string()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
