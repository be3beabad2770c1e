use std::collections::BTreeSet;

use crate::bus::PlainBus;
use crate::complaint::Rule;
use crate::layout::iseg::command_out;
use crate::port::PortKind;
use crate::testing::{Driver, input, set};

use super::table::Command;
use super::*;
use crate::state::hca::Stage;

#[test]
fn every_opcode_and_every_name_stands_in_one_row() {
    let rows = Command::<PlainBus>::ALL;
    let opcodes: BTreeSet<_> = rows.iter().map(|row| row.opcode).collect();
    let names: BTreeSet<_> = rows.iter().map(|row| row.name).collect();
    assert_eq!(opcodes.len(), rows.len());
    assert_eq!(names.len(), rows.len());
}

#[test]
fn the_documentation_lists_the_commands_of_the_table_and_no_others() {
    let manual = include_str!("../../README.md");
    let (_, section) = manual.split_once("## Commands").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let listed: Vec<_> = section.split('`').skip(1).step_by(2).collect();
    let known: Vec<_> = Command::<PlainBus>::ALL.iter().map(|command| command.name).collect();
    assert_eq!(listed, known, "names in backquotes, in the order of the table");
}

#[test]
fn a_command_executes_only_at_the_stages_of_its_row() {
    for stage in [Stage::Disabled, Stage::Enabled, Stage::Initialised] {
        for command in Command::<PlainBus>::ALL.iter().filter(|command| !command.stages.contains(&stage)) {
            let mut driver = Driver::new(PortKind::Ib);
            driver.function.core.hca.stage = stage;
            let request = set(input(command.opcode, command.input.size), 4, *command.modifiers.start());
            let output = driver.function.dispatch(&request, command.output);
            assert_eq!(output[0], Status::BadSysState as u8, "{} at {stage}", command.name);
            assert_eq!(driver.rules(), [Rule::CommandState], "{} at {stage}", command.name);
        }
    }
}

#[test]
fn an_unknown_opcode_is_refused() {
    let mut driver = Driver::booted(PortKind::Ib);
    let status = driver.refused(&input(0x0fff, 0x10), 0x10, Rule::CommandOpcode);
    assert_eq!(status, Status::BadOp as u8);
}

#[test]
fn an_unknown_modifier_is_refused() {
    let mut driver = Driver::booted(PortKind::Ib);
    let status = driver.refused(&set(input(0x800, 0x10), 0x04, 1), 0x10, Rule::CommandModifier);
    assert_eq!(status, Status::BadParam as u8);
    driver.refused(&set(input(0x100, 0x10), 0x04, 0x44), 0x1010, Rule::CommandModifier);
}

#[test]
fn reserved_bits_of_every_command_are_refused() {
    let mut driver = Driver::booted(PortKind::Ib);
    for &Command { opcode, input: table, output, .. } in Command::<PlainBus>::ALL {
        // No command uses the upper half of the second dword of its input.
        let broken = set(input(opcode, table.size), 0x04, 1 << 31);
        driver.refused(&broken, output, Rule::CommandReserved);
    }
}

#[test]
fn every_command_is_as_long_as_its_input_and_has_room_for_its_output() {
    let mut driver = Driver::booted(PortKind::Ib);
    for &Command { opcode, input: table, list, output, .. } in Command::<PlainBus>::ALL {
        let status = driver.refused(&input(opcode, table.size - 4), output, Rule::CommandLength);
        assert_eq!(status, Status::BadInputLength as u8);
        if list.is_none() {
            let status = driver.refused(&input(opcode, table.size + 8), output, Rule::CommandLength);
            assert_eq!(status, Status::BadInputLength as u8);
        }
        if output > 8 {
            let status = driver.refused(&input(opcode, table.size), output - 4, Rule::CommandLength);
            assert_eq!(status, Status::BadOutputLength as u8);
        }
    }
}

#[test]
fn a_user_context_is_refused() {
    let mut driver = Driver::booted(PortKind::Ib);
    driver.refused(&set(input(0x800, 0x10), 0x00, 1), 0x10, Rule::CommandParameter);
}

#[test]
fn nothing_that_makes_objects_works_before_the_function_is_initialised() {
    let mut driver = Driver::new(PortKind::Ib);
    driver.host.set_queue(&mut driver.function);
    driver.ok(&input(0x104, 0x10), 8);
    let makes = |opcode: u16| matches!(opcode, 0x200..=0xfff if !matches!(opcode, 0x805 | 0x80d));
    for command in Command::<PlainBus>::ALL.iter().filter(|command| makes(command.opcode)) {
        let &Command { opcode, input: table, output, ref modifiers, .. } = command;
        let request = set(input(opcode, table.size), 4, *modifiers.start());
        let status = driver.refused(&request, output, Rule::CommandState);
        assert_eq!(status, Status::BadSysState as u8, "{opcode:#x}");
    }
}

#[test]
fn a_refusal_fills_status_and_syndrome_only() {
    let mut driver = Driver::booted(PortKind::Ib);
    let output = driver.command(&set(input(0x801, 0x10), 0x08, 0x123), 0x20);
    assert_eq!(driver.rules(), [Rule::CommandObject]);
    assert_eq!(command_out::STATUS.get(&output), Status::BadResource as u64);
    assert_ne!(command_out::SYNDROME.get(&output), 0);
    assert_eq!(output[8..], [0; 0x18]);
}

/// A generator of pseudorandom numbers, the same in every run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a random number, usually a small one.
    fn dword(&mut self) -> u32 {
        let value = self.next();
        match value >> 61 {
            0 => value as u32,
            1 => u32::MAX,
            2 => 1 << (value & 31),
            3 => (value as u32 & 0xff) << 12,
            _ => value as u32 & 0xf,
        }
    }
}

#[test]
fn every_command_of_a_guest_gets_an_answer() {
    for kind in [PortKind::Ib, PortKind::Roce] {
        let mut driver = Driver::booted(kind);
        let known = Command::<PlainBus>::ALL;
        let mut numbers = Numbers(0x5eed);
        let mut refused = 0;
        for _ in 0..20_000 {
            let Command { opcode, input: table, list, output, .. } =
                known[numbers.next() as usize % known.len()];
            // These commands would shut the function down.
            if matches!(opcode, 0x103 | 0x105) {
                continue;
            }
            let list = if list.is_some() { numbers.next() as usize % 8 * 8 } else { 0 };
            let mut request = input(opcode, table.size + list);
            // Changes a few dwords. In the input structure, only bits that the table names change;
            // in contexts and lists, any bits.
            for _ in 0..numbers.next() % 12 {
                let at = 4 + numbers.next() as usize % (request.len() - 4) / 4 * 4;
                let value = numbers.dword() & if at < table.size { table.known(at) } else { u32::MAX };
                request = set(request, at, value);
            }
            let answer = driver.function.dispatch(&request, output + list);
            refused += usize::from(answer[0] != 0);
        }
        assert!(refused > 0 && !driver.rules().is_empty());
        // The function still executes commands.
        driver.ok(&input(0x80d, 0x10), 8);
    }
}
