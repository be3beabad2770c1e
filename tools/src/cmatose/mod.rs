//! `ucmatose`, `udaddy` and `mckey`: many ids on one event channel, each with a queue pair, and
//! messages over all of them.
//!
//! | file | content |
//! |---|---|
//! | [`ucmatose`] | reliable connections |
//! | [`udaddy`] | datagrams between services |
//! | [`mckey`] | datagrams to the members of a multicast group |
//! | [`load`] | an id's messages: memory, receives, sends, completions |
//! | [`datagrams`] | an id's datagram queue pair, for `udaddy` and `mckey` |
//!
//! Invariant: a failed step returns the same value as the C program ([`Ret`]). The program prints
//! the value at the end, and its low byte is the exit status.
//!
//! # Differences from the C programs
//! - A work request that completes with an error ends the run with `-EIO`. The C programs count it
//!   as a message.
//! - `ucmatose` checks for events while it waits for messages, and ends with the same error if a
//!   peer is gone. The C `ucmatose` waits forever. A datagram program cannot detect that its peer
//!   is gone.
//! - As in C, `udaddy` and `ucmatose` reject connection requests beyond `-c`.
//!
//! # References
//! `ucmatose(1)`, `udaddy(1)`, `mckey(1)`

pub mod datagrams;
pub mod load;
pub mod mckey;
pub mod ucmatose;
pub mod udaddy;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use rdmacm::{Event, EventChannel};
use verbs::{Errno, Error};

use crate::console::{Console, Failed};
use crate::ctext::{strtol, strtoul};
use crate::getopt::{Getopt, Opt, Spec};
use crate::{cm, getopt};

/// The value that the C program returns from a failed step: −1 for a call whose errno has been
/// reported, an errno, a negative errno, or an event's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ret(pub i32);

impl Ret {
    /// A call failed, and its errno has been reported.
    pub const CALL: Self = Self(-1);

    /// Returns the negated errno.
    pub const fn negative(errno: Errno) -> Self {
        Self(-errno.raw())
    }
}

/// The result of a step.
pub type Result<T = (), E = Ret> = core::result::Result<T, E>;

/// Runs a program: parses the command line, creates the run and returns the exit status.
fn program<O>(
    name: &str,
    mut args: impl Iterator<Item = OsString>,
    parse: fn(Vec<OsString>, &mut Console) -> Result<O, Failed>,
    run: fn(&O, &mut Console) -> Result<u8, u8>,
) -> u8 {
    let mut console = Console::new(args.next().unwrap_or_else(|| name.into()));
    let ran = match parse(args.collect(), &mut console) {
        Ok(options) => run(&options, &mut console),
        Err(Failed) => Err(1),
    };
    ran.unwrap_or_else(|status| status)
}

/// Parses a command line with `take`, which returns `None` for an unknown option.
///
/// # Errors
/// Fails if the command line is invalid; the error and the usage have been reported.
fn parse(
    spec: Spec,
    usage: &str,
    args: Vec<OsString>,
    console: &mut Console,
    mut take: impl FnMut(Opt, &mut Console) -> Option<()>,
) -> Result<(), Failed> {
    let posixly_correct = std::env::var_os("POSIXLY_CORRECT").is_some();
    let mut getopt = Getopt::new(spec, console.program().to_owned(), args, posixly_correct);
    while let Some(option) = getopt.next() {
        let understood = match option {
            Ok(option) => take(option, console),
            Err(misuse) => misused(&misuse, console),
        };
        if understood.is_none() {
            let program = console.program().display().to_string();
            console.say(format_args!("usage: {program}\n{usage}"));
            return Err(Failed);
        }
    }
    Ok(())
}

fn misused(misuse: &getopt::Misuse, console: &mut Console) -> Option<()> {
    console.misuse(misuse);
    None
}

/// Prints the end of a run, then returns the exit status.
fn end(result: Result, console: &mut Console) -> u8 {
    let status = result.map_or_else(|Ret(status)| status, |()| 0);
    console.say(format_args!("return status {status}\n"));
    status as u8
}

/// Opens the event channel; as in C, a failure exits with 1.
fn channel(console: &mut Console) -> Result<EventChannel, u8> {
    cm::create_event_channel(console).map_err(|_| 1)
}

/// Creates the same number of ids as the C program.
///
/// # Errors
/// Returns the exit status if there are too many ids or an id cannot be created; the failure has
/// been reported.
fn allocate<N>(
    name: &str,
    count: i32,
    console: &mut Console,
    mut make: impl FnMut() -> verbs::Result<N>,
) -> Result<Vec<N>, u8> {
    let mut nodes = Vec::new();
    // A negative number becomes a huge one in C.
    if usize::try_from(count).is_err() || nodes.try_reserve_exact(count as usize).is_err() {
        console.say(format_args!("{name}: unable to allocate memory for test nodes\n"));
        return Err(1);
    }
    for _ in 0..count {
        nodes.push(make().map_err(|error| {
            console.reason(error);
            1_u8
        })?);
    }
    Ok(nodes)
}

/// Reports an event's failure and returns its status as the step's result. As in C, the program
/// continues after status 0.
fn failed(name: &str, event: Event, console: &mut Console) -> Result {
    let status = event.status.0;
    console.say(format_args!("{name}: event: {}, error: {status}\n", event.event_type()));
    if let Err(error) = event.ok() {
        console.reason(error);
    }
    if status == 0 { Ok(()) } else { Err(Ret(status)) }
}

/// Reports the failure of a librdmacm call.
fn call_failed(name: &str, words: &str, error: &Error, console: &mut Console) -> Ret {
    cm::perror(format_args!("{name}: {words}"), error, console);
    Ret::CALL
}

/// Parses a number like `atoi(3)`.
pub(crate) fn atoi(arg: &OsStr) -> i32 {
    // Always base 10, even with a prefix.
    let text = arg.as_bytes();
    let blanks = text.iter().take_while(|byte| matches!(byte, b' ' | b'\t'..=b'\r')).count();
    let (sign, digits) = match &text[blanks..] {
        [sign @ (b'-' | b'+'), digits @ ..] => (Some(*sign), digits),
        digits => (None, digits),
    };
    let zeros = digits.iter().take_while(|byte| **byte == b'0').count();
    let number = [sign.as_slice(), &digits[zeros..]].concat();
    strtol(&number) as i32
}

/// Parses a byte like `(uint8_t) strtoul(text, NULL, 0)`.
fn byte(arg: &OsStr) -> u8 {
    strtoul(arg.as_bytes()) as u8
}

/// Returns whether a value begins with a word, ignoring case.
fn begins(value: &OsStr, word: &str) -> bool {
    value.as_bytes().get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_decimal_whatever_it_begins_with() {
        for (text, number) in [
            ("10", 10),
            ("010", 10),
            ("0x10", 0),
            (" \t-007x", -7),
            ("+3", 3),
            ("", 0),
            ("x", 0),
            ("00", 0),
            ("4294967297", 1),
            ("-", 0),
        ] {
            assert_eq!(atoi(OsStr::new(text)), number, "{text:?}");
        }
    }

    #[test]
    fn the_exit_status_is_the_low_byte_of_the_number() {
        for (result, status, text) in [
            (Ok(()), 0, "return status 0\n"),
            (Err(Ret::CALL), 255, "return status -1\n"),
            (Err(Ret(8)), 8, "return status 8\n"),
            (Err(Ret::negative(Errno::NOMEM)), 244, "return status -12\n"),
        ] {
            let mut console = Console::captured("prog");
            assert_eq!(end(result, &mut console), status);
            assert_eq!(console.said(), text);
        }
    }
}
