//! The fault language: its lines and their parser.
//!
//! ```text
//! command opcode=CREATE_QP|0x500 status=0x.. [syndrome=0x..] [count=N]
//!                             the next such commands fail
//! completion qpn=0x..|next syndrome=0x.. [vendor=0x..] [side=send|recv]
//!                             a work request fails: the oldest outstanding one, or else the next
//! cq-overrun cqn=0x..         a completion queue overruns
//! events hold [kind=0x..]     holds events: of a type, or all except command completions
//! events release [N]          releases the oldest N events; without N all, and stops holding
//! port down, port up          changes the link
//! fatal [syndrome=0x..]       the device fails
//! remove                      surprise removal of the function
//! clear                       clears pending faults; a removed function is back after power-on
//! list                        lists objects; of Ethernet receive queues, also how far they are
//! complaints                  counts complaints
//! complaints take             returns complaints and removes them
//! trace mark TEXT             writes a mark into the trace
//! trace compare MARK MARK     compares two sections, recorded on two libraries
//! after command OPCODE [N]: LINE
//! after send [N]: LINE
//! after packet [N]: LINE      executes LINE after N occurrences from now
//! ```
//!
//! `function N` before a line selects the function; the default is the first. Numbers are decimal
//! or, with 0x, hexadecimal. `#` starts a comment, except after `trace mark`.

/// A parsed line: its action and the function that the action applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) function: usize,
    pub(crate) action: Action,
}

/// The action that a line requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Command { opcode: u16, status: u8, syndrome: u32, count: u32 },
    Completion { qpn: Option<u32>, side: Side, syndrome: u8, vendor: u8 },
    CqOverrun { cqn: u32 },
    Hold(Events),
    Release(Option<usize>),
    Port { up: bool },
    Fatal { syndrome: u8 },
    Remove,
    Clear,
    List,
    Complaints { take: bool },
    Mark(String),
    Compare(String, String),
    After { condition: Condition, count: u64, line: String },
}

/// One of a queue pair's two queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Send,
    Receive,
}

/// The kind of event that a script line waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// A command with this opcode executes.
    Command(u16),
    /// A send is posted to any queue pair.
    Send,
    /// A packet arrives at any queue pair.
    Packet,
}

/// The set of event types to hold back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Events {
    /// All event types except command completions, without which the driver would hang.
    AllButCommands,
    /// This event type only.
    OfType(u8),
}

impl Events {
    /// Returns whether the set contains the event type `kind`.
    pub(crate) fn contain(self, kind: u8) -> bool {
        match self {
            Self::AllButCommands => kind != COMMAND_EVENT,
            Self::OfType(wanted) => kind == wanted,
        }
    }
}

/// The event type of command completions.
const COMMAND_EVENT: u8 = 0x0a;

/// The default syndrome: an internal error, the first syndrome in the manual.
const INTERNAL_ERROR: u64 = 0x01;

/// Parses a line. `opcode` converts a command name to its opcode.
///
/// # Errors
/// Returns a description of the mistake.
pub(crate) fn parse(line: &str, opcode: &dyn Fn(&str) -> Option<u16>) -> Result<Line, String> {
    let (function, rest) = match line.trim().strip_prefix("function ") {
        Some(rest) => {
            let (index, rest) =
                rest.trim_start().split_once(' ').ok_or("a line must follow the function's number")?;
            (number(index)? as usize, rest)
        }
        None => (0, line),
    };
    let rest = rest.trim();
    let (verb, text) = rest.split_once(' ').unwrap_or((rest, ""));
    let action = match verb {
        "trace" => match text.trim().split_once(' ') {
            Some(("mark", text)) if !text.trim().is_empty() => Action::Mark(text.trim().to_owned()),
            Some(("compare", text)) => match text.split_whitespace().collect::<Vec<_>>()[..] {
                [first, second] => Action::Compare(first.to_owned(), second.to_owned()),
                _ => return Err("expected trace compare MARK MARK".into()),
            },
            _ => return Err("expected trace mark TEXT or trace compare MARK MARK".into()),
        },
        "after" => after(text, opcode)?,
        _ => action(verb, text.split('#').next().unwrap_or_default(), opcode)?,
    };
    Ok(Line { function, action })
}

fn after(text: &str, opcode: &dyn Fn(&str) -> Option<u16>) -> Result<Action, String> {
    let (when, line) = text.split_once(':').ok_or("expected a condition, a colon and a line")?;
    let mut words = when.split_whitespace();
    let condition = match words.next() {
        Some("command") => {
            Condition::Command(command(words.next().ok_or("after command needs an opcode")?, opcode)?)
        }
        Some("send") => Condition::Send,
        Some("packet") => Condition::Packet,
        _ => return Err("expected after command OPCODE, after send, or after packet".into()),
    };
    let count = words.next().map_or(Ok(1), number)?;
    if count == 0 || words.next().is_some() {
        return Err("expected at most one number of occurrences, at least 1".into());
    }
    // The line is parsed again when it executes. Parsing it here reports a mistake immediately.
    parse(line, opcode)?;
    Ok(Action::After { condition, count, line: line.trim().to_owned() })
}

fn action(verb: &str, text: &str, opcode: &dyn Fn(&str) -> Option<u16>) -> Result<Action, String> {
    let mut words = Words::new(text);
    let action = match verb {
        "command" => Action::Command {
            opcode: command(words.key("opcode").ok_or("opcode= is missing")?, opcode)?,
            status: words.number("status", u8::MAX.into())?.ok_or("status= is missing")? as u8,
            syndrome: words.number("syndrome", u32::MAX.into())?.unwrap_or(0) as u32,
            count: words.number("count", u32::MAX.into())?.unwrap_or(1) as u32,
        },
        "completion" => Action::Completion {
            qpn: match words.key("qpn").ok_or("qpn= is missing")? {
                "next" => None,
                qpn => Some(within("qpn", number(qpn)?, OBJECTS)? as u32),
            },
            syndrome: words.number("syndrome", u8::MAX.into())?.ok_or("syndrome= is missing")? as u8,
            vendor: words.number("vendor", u8::MAX.into())?.unwrap_or(0) as u8,
            side: match words.key("side") {
                None | Some("send") => Side::Send,
                Some("recv") => Side::Receive,
                Some(other) => return Err(format!("side={other}: expected send or recv")),
            },
        },
        "cq-overrun" => {
            Action::CqOverrun { cqn: words.number("cqn", OBJECTS)?.ok_or("cqn= is missing")? as u32 }
        }
        "events" => match words.next() {
            Some("hold") => Action::Hold(match words.number("kind", u8::MAX.into())? {
                Some(kind) => Events::OfType(kind as u8),
                None => Events::AllButCommands,
            }),
            Some("release") => {
                let count = words.next().map(number).transpose()?;
                Action::Release(count.map(|count| usize::try_from(count).unwrap_or(usize::MAX)))
            }
            _ => return Err("expected events hold or events release".into()),
        },
        "port" => match words.next() {
            Some("up") => Action::Port { up: true },
            Some("down") => Action::Port { up: false },
            _ => return Err("expected port up or port down".into()),
        },
        "fatal" => Action::Fatal {
            syndrome: words.number("syndrome", u8::MAX.into())?.unwrap_or(INTERNAL_ERROR) as u8,
        },
        "remove" => Action::Remove,
        "clear" => Action::Clear,
        "list" => Action::List,
        "complaints" => match words.next() {
            None => Action::Complaints { take: false },
            Some("take") => Action::Complaints { take: true },
            Some(other) => return Err(format!("unexpected word {other} after complaints")),
        },
        other => return Err(format!("unknown verb {other:?}")),
    };
    match words.left() {
        Some(word) => Err(format!("unexpected word {word}")),
        None => Ok(action),
    }
}

/// Mask for object numbers, which are 24 bits wide.
const OBJECTS: u64 = 0x00ff_ffff;

/// The words of a line that are not parsed yet.
struct Words<'a>(Vec<&'a str>);

impl<'a> Words<'a> {
    fn new(text: &'a str) -> Self {
        Self(text.split_whitespace().collect())
    }

    /// Removes and returns the next word without a key.
    fn next(&mut self) -> Option<&'a str> {
        let place = self.0.iter().position(|word| !word.contains('='))?;
        Some(self.0.remove(place))
    }

    /// Removes the word that starts with `key=` and returns the text after it.
    fn key(&mut self, key: &str) -> Option<&'a str> {
        let value = |word: &&'a str| word.strip_prefix(key).and_then(|rest| rest.strip_prefix('='));
        let place = self.0.iter().position(|word| value(word).is_some())?;
        value(&self.0.remove(place))
    }

    fn number(&mut self, key: &str, max: u64) -> Result<Option<u64>, String> {
        self.key(key).map(|value| within(key, number(value)?, max)).transpose()
    }

    fn left(&self) -> Option<&'a str> {
        self.0.first().copied()
    }
}

fn command(text: &str, opcode: &dyn Fn(&str) -> Option<u16>) -> Result<u16, String> {
    match opcode(text) {
        Some(opcode) => Ok(opcode),
        None => {
            Ok(within("opcode", number(text).map_err(|_| format!("unknown command {text}"))?, 0xffff)? as u16)
        }
    }
}

fn number(text: &str) -> Result<u64, String> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    }
    .map_err(|_| format!("{text} is not a number"))
}

fn within(what: &str, value: u64, max: u64) -> Result<u64, String> {
    if value > max { Err(format!("{what}={value:#x} exceeds {max:#x}")) } else { Ok(value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opcode(name: &str) -> Option<u16> {
        [("CREATE_QP", 0x500), ("CREATE_CQ", 0x400)].iter().find(|known| known.0 == name).map(|known| known.1)
    }

    fn say(line: &str) -> Action {
        parse(line, &opcode).unwrap().action
    }

    #[test]
    fn every_line_parses_to_its_action() {
        let create_qp = Action::Command { opcode: 0x500, status: 6, syndrome: 0, count: 1 };
        assert_eq!(say("command opcode=CREATE_QP status=0x6"), create_qp);
        assert_eq!(
            say("command status=15 count=3 opcode=0x123 syndrome=0xabcdef01"),
            Action::Command { opcode: 0x123, status: 15, syndrome: 0xabcd_ef01, count: 3 }
        );
        assert_eq!(
            say("completion qpn=0x12 syndrome=0x15"),
            Action::Completion { qpn: Some(0x12), side: Side::Send, syndrome: 0x15, vendor: 0 }
        );
        assert_eq!(
            say("completion qpn=next syndrome=4 vendor=0x51 side=recv"),
            Action::Completion { qpn: None, side: Side::Receive, syndrome: 4, vendor: 0x51 }
        );
        assert_eq!(say("cq-overrun cqn=0x3"), Action::CqOverrun { cqn: 3 });
        assert_eq!(say("events hold"), Action::Hold(Events::AllButCommands));
        assert_eq!(say("events hold kind=0x9"), Action::Hold(Events::OfType(9)));
        assert_eq!(say("events release"), Action::Release(None));
        assert_eq!(say("events release 5"), Action::Release(Some(5)));
        assert_eq!(say("port down # now"), Action::Port { up: false });
        assert_eq!(say("  port up"), Action::Port { up: true });
        assert_eq!(say("fatal"), Action::Fatal { syndrome: 1 });
        assert_eq!(say("fatal syndrome=0x10"), Action::Fatal { syndrome: 0x10 });
        assert_eq!((say("remove"), say("clear"), say("list")), (Action::Remove, Action::Clear, Action::List));
        assert_eq!(say("complaints"), Action::Complaints { take: false });
        assert_eq!(say("complaints take"), Action::Complaints { take: true });
        assert_eq!(say("trace mark run #2: mine"), Action::Mark("run #2: mine".into()));
        assert_eq!(say("trace compare one two"), Action::Compare("one".into(), "two".into()));
    }

    #[test]
    fn a_function_may_be_named_and_is_the_first_otherwise() {
        assert_eq!(parse("function 1 remove", &opcode), Ok(Line { function: 1, action: Action::Remove }));
        assert_eq!(parse("remove", &opcode), Ok(Line { function: 0, action: Action::Remove }));
        assert!(parse("function 1", &opcode).is_err());
        assert!(parse("function one remove", &opcode).is_err());
    }

    #[test]
    fn a_line_may_wait_for_an_occurrence() {
        let after = |condition, count, line: &str| Action::After { condition, count, line: line.into() };
        assert_eq!(
            say("after command CREATE_CQ 3: port down"),
            after(Condition::Command(0x400), 3, "port down")
        );
        assert_eq!(say("after send: remove"), after(Condition::Send, 1, "remove"));
        assert_eq!(
            say("after packet 10: after send 2: fatal"),
            after(Condition::Packet, 10, "after send 2: fatal")
        );
        for wrong in
            ["after send 10: nothing", "after send 0: remove", "after: remove", "after command NOPE: remove"]
        {
            assert!(parse(wrong, &opcode).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_malformed_line_is_rejected_with_the_reason() {
        for (line, why) in [
            ("", "unknown verb"),
            ("dance", "unknown verb \"dance\""),
            ("command opcode=CREATE_QP", "status"),
            ("command opcode=NOPE status=1", "NOPE"),
            ("command opcode=CREATE_QP status=0x100", "0xff"),
            ("command opcode=CREATE_QP status=1 colour=3", "colour=3"),
            ("completion qpn=next", "syndrome"),
            ("completion qpn=0x1000000 syndrome=1", "0xffffff"),
            ("completion qpn=next syndrome=1 side=left", "side=left"),
            ("cq-overrun cqn=x", "x is not a number"),
            ("events", "hold"),
            ("port sideways", "up"),
            ("list all", "unexpected word all"),
            ("trace mark ", "TEXT"),
            ("trace compare one", "MARK MARK"),
        ] {
            let error = parse(line, &opcode).unwrap_err();
            assert!(error.contains(why), "{line}: {error}");
        }
    }
}
