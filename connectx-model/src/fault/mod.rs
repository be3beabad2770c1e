//! [`Faults`]: the faults injected into one function.
//!
//! ```text
//! control socket, script ── a line ──► Fabric::control
//!                                       ├──► immediate: port, fatal, remove, cq-overrun, list, ...
//!                                       └──► Faults: pending commands, completions, events
//! ```
//! The module `language` parses the lines.
//!
//! Invariant: the number of pending faults is bounded, and held events are released in order.

mod language;

use std::collections::VecDeque;

pub(crate) use language::{Action, Condition, Events, Side, parse};

/// The pending faults of a function, its script lines and its held events.
#[derive(Debug, Default)]
pub struct Faults {
    commands: Vec<CommandFault>,
    completions: Vec<CompletionFault>,
    script: Vec<Rule>,
    /// Script lines whose condition has been met.
    due: Vec<String>,
    /// The event types to hold back, if any.
    holding: Option<Events>,
    held: VecDeque<HeldEvent>,
    removed: bool,
}

/// A fault that makes commands fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommandFault {
    pub(crate) opcode: u16,
    pub(crate) status: u8,
    pub(crate) syndrome: u32,
    /// Number of commands that the fault still applies to.
    pub(crate) left: u32,
}

/// A fault that makes a work request fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompletionFault {
    /// The number of the queue pair; `None` for any queue pair.
    pub(crate) qpn: Option<u32>,
    pub(crate) side: Side,
    pub(crate) syndrome: u8,
    pub(crate) vendor: u8,
}

/// An event that has not been delivered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeldEvent {
    pub(crate) eqn: u32,
    pub(crate) kind: u8,
    pub(crate) sub_type: u8,
    pub(crate) data: [u8; 28],
}

/// A script line whose condition has not been met.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    condition: Condition,
    /// Number of occurrences until the line executes.
    left: u64,
    line: String,
}

/// Maximum number of pending entries of each kind: command faults, work request faults, script
/// lines.
const WAITING: usize = 1000;
/// Maximum number of held events.
const HELD: usize = 4096;

impl Faults {
    /// Returns the status and the syndrome of the fault pending for this command, if any.
    pub(crate) fn command(&mut self, opcode: u16) -> Option<(u8, u32)> {
        self.happened(Condition::Command(opcode));
        let place = self.commands.iter().position(|fault| fault.opcode == opcode)?;
        let fault = self.commands.get_mut(place)?;
        let answer = (fault.status, fault.syndrome);
        fault.left = fault.left.saturating_sub(1);
        if fault.left == 0 {
            self.commands.remove(place);
        }
        Some(answer)
    }

    /// Removes and returns the fault pending for a posted send on this queue pair, if any.
    pub(crate) fn send(&mut self, qpn: u32) -> Option<CompletionFault> {
        self.happened(Condition::Send);
        self.completion(qpn, Side::Send)
    }

    /// Removes and returns the fault pending for a packet to a queue pair. Only a packet that
    /// consumes a receive triggers a fault.
    pub(crate) fn receive(&mut self, qpn: u32, consumes: bool) -> Option<CompletionFault> {
        self.happened(Condition::Packet);
        if consumes { self.completion(qpn, Side::Receive) } else { None }
    }

    /// Puts back a fault that could not be applied to its queue pair.
    pub(crate) fn give_back(&mut self, fault: CompletionFault) {
        self.completions.insert(0, fault);
    }

    fn completion(&mut self, qpn: u32, side: Side) -> Option<CompletionFault> {
        let of = |fault: &CompletionFault| fault.side == side && fault.qpn.is_none_or(|wanted| wanted == qpn);
        let place = self.completions.iter().position(of)?;
        Some(self.completions.remove(place))
    }

    /// Returns whether events of this type are held back.
    pub(crate) fn holds_events(&self, kind: u8) -> bool {
        self.holding.is_some_and(|events| events.contain(kind))
    }

    /// Holds an event back. If there are now too many, removes and returns the oldest held event.
    #[must_use]
    pub(crate) fn hold(&mut self, event: HeldEvent) -> Option<HeldEvent> {
        self.held.push_back(event);
        (self.held.len() > HELD).then(|| self.held.pop_front()).flatten()
    }

    /// Returns whether the function was removed. If so, all bits of registers read as 1, and stores
    /// and packets have no effect.
    pub(crate) fn removed(&self) -> bool {
        self.removed
    }

    /// Drops the held events when the function is reset.
    pub(crate) fn restart(&mut self) {
        self.held.clear();
    }

    /// Removes and returns the script lines whose condition has been met.
    pub(crate) fn take_due(&mut self) -> Vec<String> {
        std::mem::take(&mut self.due)
    }

    /// Adds a fault that makes commands fail.
    pub(crate) fn add_command(&mut self, fault: CommandFault) -> Result<(), Full> {
        push(&mut self.commands, fault)
    }

    /// Adds a fault that makes a work request fail.
    pub(crate) fn add_completion(&mut self, fault: CompletionFault) -> Result<(), Full> {
        push(&mut self.completions, fault)
    }

    /// Adds a script line that executes after `count` occurrences of a condition.
    pub(crate) fn add_rule(&mut self, condition: Condition, count: u64, line: String) -> Result<(), Full> {
        push(&mut self.script, Rule { condition, left: count, line })
    }

    /// Starts holding back events of these types.
    pub(crate) fn set_holding(&mut self, events: Events) {
        self.holding = Some(events);
    }

    /// Removes and returns the `count` oldest held events. Without a count, releases all of them
    /// and stops holding.
    pub(crate) fn release(&mut self, count: Option<usize>) -> Vec<HeldEvent> {
        if count.is_none() {
            self.holding = None;
        }
        let count = count.unwrap_or(usize::MAX).min(self.held.len());
        self.held.drain(..count).collect()
    }

    /// Removes the function from the bus.
    pub(crate) fn remove(&mut self) {
        self.removed = true;
    }

    /// Returns the number of pending command faults, work request faults, script lines and held
    /// events, in this order.
    pub(crate) fn waiting(&self) -> [usize; 4] {
        [self.commands.len(), self.completions.len(), self.script.len(), self.held.len()]
    }

    fn happened(&mut self, what: Condition) {
        if self.script.is_empty() {
            return;
        }
        let Self { script, due, .. } = self;
        script.retain_mut(|rule| {
            if rule.condition != what {
                return true;
            }
            rule.left = rule.left.saturating_sub(1);
            if rule.left == 0 {
                due.push(std::mem::take(&mut rule.line));
            }
            rule.left > 0
        });
    }
}

/// The error for a fault that would exceed the maximum number of pending faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

fn push<T>(list: &mut Vec<T>, item: T) -> Result<(), Full> {
    if list.len() >= WAITING {
        return Err(Full);
    }
    list.push(item);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completion(qpn: Option<u32>, side: Side, syndrome: u8) -> CompletionFault {
        CompletionFault { qpn, side, syndrome, vendor: 0 }
    }

    #[test]
    fn a_command_fails_as_often_as_was_asked_and_others_do_not() {
        let mut faults = Faults::default();
        faults.add_command(CommandFault { opcode: 0x500, status: 6, syndrome: 9, left: 2 }).unwrap();
        assert_eq!(faults.command(0x501), None);
        assert_eq!(faults.command(0x500), Some((6, 9)));
        assert_eq!(faults.command(0x500), Some((6, 9)));
        assert_eq!(faults.command(0x500), None);
    }

    #[test]
    fn a_completion_fault_waits_for_its_queue_pair_and_side() {
        let mut faults = Faults::default();
        faults.add_completion(completion(Some(7), Side::Send, 1)).unwrap();
        faults.add_completion(completion(None, Side::Receive, 2)).unwrap();
        assert_eq!((faults.send(8), faults.receive(8, false)), (None, None));
        assert_eq!(faults.receive(8, true).map(|fault| fault.syndrome), Some(2));
        assert_eq!(faults.send(7).map(|fault| fault.syndrome), Some(1));
        assert_eq!((faults.send(7), faults.receive(7, true)), (None, None));
    }

    #[test]
    fn a_line_is_due_once_when_its_occasion_came_so_often() {
        let mut faults = Faults::default();
        faults.add_rule(Condition::Send, 2, "port down".into()).unwrap();
        faults.add_rule(Condition::Command(0x400), 1, "remove".into()).unwrap();
        faults.send(1);
        assert!(faults.take_due().is_empty());
        faults.command(0x400);
        faults.send(2);
        faults.send(3);
        assert_eq!(faults.take_due(), ["remove", "port down"]);
        assert!(faults.take_due().is_empty());
    }

    #[test]
    fn held_events_come_in_their_order_and_no_more_are_held_than_there_is_room() {
        let mut faults = Faults::default();
        let event = |eqn| HeldEvent { eqn, kind: 9, sub_type: 0, data: [0; 28] };
        assert!(!faults.holds_events(9));
        faults.set_holding(Events::AllButCommands);
        assert!(faults.holds_events(9) && !faults.holds_events(0x0a));
        for eqn in 0..HELD as u32 {
            assert_eq!(faults.hold(event(eqn)), None);
        }
        assert_eq!(faults.hold(event(9999)), Some(event(0)));
        assert_eq!(faults.release(Some(2)), [event(1), event(2)]);
        assert!(faults.holds_events(9));
        assert_eq!(faults.release(None).len(), HELD - 2);
        assert!(!faults.holds_events(9));
    }

    #[test]
    fn pending_faults_are_bounded() {
        let mut faults = Faults::default();
        for _ in 0..WAITING {
            faults.add_completion(completion(None, Side::Send, 1)).unwrap();
        }
        assert_eq!(faults.add_completion(completion(None, Side::Send, 1)), Err(Full));
    }
}
