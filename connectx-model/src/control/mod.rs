//! Executes lines of the fault language.

use roce::engine::Time;

use crate::bus::Bus;
use crate::cmd::table::Command;
use crate::fabric::Fabric;
use crate::fault::{Action, CommandFault, CompletionFault, Faults, Full, Side, parse};
use crate::function::Function;
use crate::state::eq::EventType;
use crate::trace::{self, format};

impl<B: Bus> Fabric<B> {
    /// Executes a line of the fault language. Returns the reply, whose last line begins with `ok`
    /// or `error`.
    pub fn control(&mut self, line: &str, now: Time) -> String {
        let answer = match self.carry_out(line, now) {
            Ok(answer) => answer,
            Err(why) => format!("error {why}"),
        };
        // A released event or a failed function may have packets to send.
        self.expire(now);
        answer
    }

    /// Executes the lines of a script in order. Skips empty lines and lines that begin with `#`.
    ///
    /// # Errors
    /// Returns the number of the first line that fails, and the reason. Earlier lines have been
    /// executed.
    pub fn script(&mut self, text: &str, now: Time) -> Result<(), String> {
        for (place, line) in text.lines().enumerate() {
            if line.trim().is_empty() || line.trim_start().starts_with('#') {
                continue;
            }
            self.carry_out(line, now).map_err(|why| format!("line {}: {why}", place + 1))?;
        }
        Ok(())
    }

    /// Returns the number of violations recorded since the control channel last removed the
    /// complaints.
    pub fn complaint_count(&self) -> u64 {
        self.functions.iter().map(|function| function.core.log.complaints.count()).sum()
    }

    /// Executes the script lines whose condition has been met. Returns whether there were any.
    pub(crate) fn run_due(&mut self, now: Time) -> bool {
        let mut some = false;
        // A line may meet the condition of another line. The loop ends because each line executes
        // only once.
        loop {
            let due: Vec<String> =
                self.functions.iter_mut().flat_map(|function| function.core.faults.take_due()).collect();
            if due.is_empty() {
                return some;
            }
            some = true;
            for line in due {
                // The line was valid when it was added, but the objects it names may no longer
                // exist.
                let answer = self.carry_out(&line, now).unwrap_or_else(|why| format!("error {why}"));
                if let Some(function) = self.functions.first_mut() {
                    function.core.log.trace.line(|| format::mark(&format!("{line}: {answer}")));
                }
            }
        }
    }

    fn carry_out(&mut self, line: &str, now: Time) -> Result<String, String> {
        let opcode = |name: &str| self.functions.first().and_then(|function| function.opcode(name));
        let line = parse(line, &opcode)?;
        match line.action {
            Action::List => Ok(self.list()),
            Action::Complaints { take: false } => Ok(format!("ok {}", self.complaint_count())),
            Action::Complaints { take: true } => Ok(self.hand_over_complaints()),
            action => {
                let function = self.functions.get_mut(line.function).ok_or("the function does not exist")?;
                function.core.now = function.core.now.max(now);
                function.inject(action)
            }
        }
    }

    fn hand_over_complaints(&mut self) -> String {
        let count = self.complaint_count();
        let mut answer = String::new();
        for complaint in self.take_complaints() {
            // Each complaint takes one line, even if it quotes a line break.
            answer += &complaint.to_string().replace('\n', " ");
            answer.push('\n');
        }
        for function in &mut self.functions {
            function.core.log.complaints.forget();
        }
        answer + &format!("ok {count}")
    }

    fn list(&mut self) -> String {
        let mut answer = String::new();
        for (place, function) in self.functions.iter_mut().enumerate() {
            let core = &function.core;
            let [commands, completions, rules, events] = core.faults.waiting();
            answer += &format!(
                "function {place} {} port={} commands={commands} completions={completions} rules={rules} events={events}\n",
                if core.faults.removed() { "removed" } else { "present" },
                if core.port.up { "up" } else { "down" },
            );
            for eq in core.eqs.values() {
                answer += &format!("eq function={place} eqn={:#x} unread={}\n", eq.eqn, eq.unread());
            }
            for cq in core.cqs.values() {
                let state = if cq.in_error { "error" } else { "ok" };
                answer +=
                    &format!("cq function={place} cqn={:#x} state={state} users={}\n", cq.cqn, cq.users);
            }
            for srq in core.srqs.values() {
                answer += &format!("srq function={place} srqn={:#x} kind={:?}\n", srq.srqn, srq.kind);
            }
            for qp in core.qps.values() {
                let state = function.state(qp.qpn);
                answer += &format!(
                    "qp function={place} qpn={:#x} service={:?} state={state:?}\n",
                    qp.qpn, qp.service
                );
            }
            let core = &mut function.core;
            for (rqn, rq) in &core.eth.rqs {
                let posted = rq.queue.receive_head(&core.bus, &mut core.log).unwrap_or(0);
                answer += &format!(
                    "rq function={place} rqn={rqn:#x} state={:?} posted={posted} used={}\n",
                    rq.state, rq.consumed
                );
            }
        }
        answer + "ok"
    }
}

impl<B: Bus> Function<B> {
    /// Returns the opcode of the command called `name`.
    fn opcode(&self, name: &str) -> Option<u16> {
        Command::<B>::ALL.iter().find(|command| command.name == name).map(|command| command.opcode)
    }

    /// Compares two sections of the trace. Returns the reply: `ok` and the number of compared
    /// lines, or the difference as lines that begin with `|`.
    fn compare(&mut self, first: &str, second: &str) -> Result<String, String> {
        let mut section = |mark: &str| {
            let text = self.core.log.trace.section(mark).map_err(|error| format!("{mark}: {error}"))?;
            let text = text.ok_or_else(|| format!("the trace has no section {mark:?} in a file"))?;
            trace::parse::parse(&text).map_err(|error| format!("{mark}: {error}"))
        };
        let (first, second) = (section(first)?, section(second)?);
        Ok(match trace::differential::compare(&first, &second) {
            Ok(lines) => format!("ok {lines} lines"),
            Err(difference) => {
                let lines: String = difference.lines().map(|line| format!("| {line}\n")).collect();
                lines + "ok different"
            }
        })
    }

    fn inject(&mut self, action: Action) -> Result<String, String> {
        let full = |Full| "too many faults are pending".to_owned();
        match action {
            Action::Command { opcode, status, syndrome, count } => {
                let fault = CommandFault { opcode, status, syndrome, left: count };
                self.core.faults.add_command(fault).map_err(full)?;
            }
            Action::Completion { qpn, side, syndrome, vendor } => {
                if let Some(qpn) = qpn {
                    if !self.core.qps.contains_key(&qpn) {
                        return Err(format!("queue pair {qpn:#x} does not exist"));
                    }
                    let failed = match side {
                        Side::Send => self.fail_send(qpn, syndrome, vendor),
                        Side::Receive => self.fail_recv(qpn, syndrome, vendor),
                    };
                    if failed {
                        return Ok("ok now".into());
                    }
                }
                let fault = CompletionFault { qpn, side, syndrome, vendor };
                self.core.faults.add_completion(fault).map_err(full)?;
                return Ok("ok waiting".into());
            }
            Action::CqOverrun { cqn } => {
                if !self.core.cqs.contains_key(&cqn) {
                    return Err(format!("completion queue {cqn:#x} does not exist"));
                }
                self.core.cq_error(cqn);
            }
            Action::Hold(events) => self.core.faults.set_holding(events),
            Action::Release(count) => {
                let events = self.core.faults.release(count);
                let released = events.len();
                events.into_iter().for_each(|event| self.core.deliver(&event));
                return Ok(format!("ok {released}"));
            }
            Action::Port { up } => self.core.set_link(up),
            Action::Fatal { syndrome } => {
                let now = self.core.now;
                self.core.iseg.fail(syndrome, now);
                self.core.event(EventType::InternalError, 0, &[0; 28]);
            }
            Action::Remove => {
                // A reset ends all activity. Without objects, the function neither accesses memory
                // nor raises interrupts.
                self.reset();
                self.core.faults.remove();
            }
            Action::Clear => {
                let events = self.core.faults.release(None);
                events.into_iter().for_each(|event| self.core.deliver(&event));
                let was_removed = self.core.faults.removed();
                self.core.faults = Faults::default();
                if was_removed {
                    self.reset();
                }
            }
            Action::Mark(text) => self.core.log.trace.mark(&text),
            Action::Compare(first, second) => return self.compare(&first, &second),
            Action::After { condition, count, line } => {
                self.core.faults.add_rule(condition, count, line).map_err(full)?;
            }
            // These actions concern the fabric, which handles them.
            Action::List | Action::Complaints { .. } => {}
        }
        Ok("ok".into())
    }
}

#[cfg(test)]
mod tests;
