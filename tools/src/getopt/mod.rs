//! [`Getopt`]: command lines, parsed like GNU `getopt_long(3)` and with the same messages.
//!
//! Scripts rely on details where other parsers differ: clustered flags (`-ev`), attached values
//! (`-drxe0`), abbreviated long options (`--ib-d rxe0`), options after operands, and the text of
//! every error message. Options are returned one at a time and in order, because a program may act
//! on an option before it reads the next.
//!
//! Without long options, parses like `getopt(3)`, which treats the second dash of `--help` as a
//! letter.
//!
//! Not supported, because none of these programs uses them: optional values, `-W` and
//! `getopt_long_only`.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::{fmt, iter};

/// A long option.
#[derive(Clone, Copy, Debug)]
pub struct Long {
    /// The option's name, without the dashes.
    pub name: &'static str,
    /// Whether the option takes a value.
    pub has_arg: bool,
    /// The letter of its short option.
    pub val: u8,
    /// Whether the C program lacks this option. Only the full name is accepted, so that the
    /// existing abbreviations and their messages stay the same.
    pub extension: bool,
}

impl Long {
    /// Returns an option that takes no value.
    pub const fn flag(name: &'static str, val: u8) -> Self {
        Self { name, has_arg: false, val, extension: false }
    }

    /// Returns an option that takes a value.
    pub const fn value(name: &'static str, val: u8) -> Self {
        Self { name, has_arg: true, val, extension: false }
    }

    /// Returns an option that takes no value and that the C program lacks.
    pub const fn extension(name: &'static str, val: u8) -> Self {
        Self { name, has_arg: false, val, extension: true }
    }
}

/// The options of a program.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The letters in C notation: `"d:i:lv"`, with a colon after each letter that takes a value.
    pub short: Cow<'static, str>,
    /// The long options.
    pub long: Cow<'static, [Long]>,
}

impl Spec {
    /// Returns the options of a program whose letters and long options are listed separately.
    pub const fn new(short: &'static str, long: &'static [Long]) -> Self {
        Self { short: Cow::Borrowed(short), long: Cow::Borrowed(long) }
    }

    /// Returns the options of a program that has a long option for each letter.
    pub fn from_long(long: impl IntoIterator<Item = Long>) -> Self {
        let long: Vec<Long> = long.into_iter().collect();
        let letters = long.iter().filter(|option| !option.extension);
        let short = letters.flat_map(|option| {
            let colon = option.has_arg.then_some(':');
            iter::once(char::from(option.val)).chain(colon)
        });
        Self { short: short.collect(), long: long.into() }
    }
}

/// An option, as given by the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opt {
    /// The option's letter.
    pub val: u8,
    /// The option's value. Empty if it takes no value.
    pub arg: OsString,
}

/// An error in an option, with GNU's message as bytes, because it quotes the argument.
#[derive(Clone, PartialEq, Eq)]
pub struct Misuse(pub Vec<u8>);

impl fmt::Debug for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Misuse").field(&String::from_utf8_lossy(&self.0)).finish()
    }
}

/// A command line being parsed.
#[derive(Clone, Debug)]
pub struct Getopt {
    spec: Spec,
    program: OsString,
    args: Vec<OsString>,
    /// The index of the next element of `args`.
    next: usize,
    /// The remaining letters of a cluster.
    cluster: Vec<u8>,
    operands: Vec<OsString>,
    posixly_correct: bool,
}

impl Getopt {
    /// Starts parsing `args`, which exclude the program's name. Messages begin with `program`.
    ///
    /// With `posixly_correct`, the first operand ends the options. C uses the environment variable
    /// `POSIXLY_CORRECT`.
    pub fn new(spec: Spec, program: OsString, args: Vec<OsString>, posixly_correct: bool) -> Self {
        let (next, cluster, operands) = (0, Vec::new(), Vec::new());
        Self { spec, program, args, next, cluster, operands, posixly_correct }
    }

    /// Returns the next option or error; `None` at the end of the options.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<Result<Opt, Misuse>> {
        if self.cluster.is_empty() {
            self.cluster = loop {
                let arg = self.take()?;
                match arg.as_bytes() {
                    b"--" => {
                        self.take_the_rest();
                        return None;
                    }
                    [b'-', b'-', long @ ..] if !self.spec.long.is_empty() => return Some(self.long(long)),
                    [b'-', letters @ ..] if !letters.is_empty() => break letters.to_vec(),
                    _ => self.operands.push(arg),
                }
                if self.posixly_correct && !self.operands.is_empty() {
                    self.take_the_rest();
                    return None;
                }
            };
        }
        Some(self.short())
    }

    /// Returns the operands in order. Call this after [`next`](Self::next) has returned `None`.
    pub fn into_operands(self) -> Vec<OsString> {
        self.operands
    }

    fn take(&mut self) -> Option<OsString> {
        let arg = self.args.get_mut(self.next)?;
        self.next += 1;
        Some(std::mem::take(arg))
    }

    fn take_the_rest(&mut self) {
        self.operands.extend(self.args.drain(self.next..));
    }

    /// Parses the next letter of the cluster.
    fn short(&mut self) -> Result<Opt, Misuse> {
        let val = self.cluster.remove(0);
        let known = self.spec.short.bytes().position(|letter| letter == val && val != b':');
        let Some(at) = known else {
            return Err(self.misuse(&[b"invalid option -- '", &[val], b"'"]));
        };
        if self.spec.short.as_bytes().get(at + 1) != Some(&b':') {
            return Ok(Opt { val, arg: OsString::new() });
        }
        if !self.cluster.is_empty() {
            return Ok(Opt { val, arg: OsString::from_vec(std::mem::take(&mut self.cluster)) });
        }
        match self.take() {
            Some(arg) => Ok(Opt { val, arg }),
            None => Err(self.misuse(&[b"option requires an argument -- '", &[val], b"'"])),
        }
    }

    /// Parses a long option; `typed` is the text after the two dashes.
    fn long(&mut self, typed: &[u8]) -> Result<Opt, Misuse> {
        let (name, glued) = match typed.iter().position(|&byte| byte == b'=') {
            Some(at) => (&typed[..at], Some(&typed[at + 1..])),
            None => (typed, None),
        };
        let option = self.find(name).map_err(|candidates| match candidates.as_slice() {
            [] => self.misuse(&[b"unrecognized option '--", typed, b"'"]),
            _ => {
                let names: Vec<u8> =
                    candidates.iter().flat_map(|name| format!(" '--{name}'").into_bytes()).collect();
                self.misuse(&[b"option '--", typed, b"' is ambiguous; possibilities:", &names])
            }
        })?;
        let full = option.name.as_bytes();
        let arg = match (option.has_arg, glued) {
            (true, Some(glued)) => OsStr::from_bytes(glued).to_owned(),
            (true, None) => {
                self.take().ok_or_else(|| self.misuse(&[b"option '--", full, b"' requires an argument"]))?
            }
            (false, Some(_)) => {
                return Err(self.misuse(&[b"option '--", full, b"' doesn't allow an argument"]));
            }
            (false, None) => OsString::new(),
        };
        Ok(Opt { val: option.val, arg })
    }

    /// Finds the option with this name, or the only option with this abbreviation. The error lists
    /// all options with the abbreviation.
    fn find(&self, name: &[u8]) -> Result<Long, Vec<&'static str>> {
        if let Some(option) = self.spec.long.iter().find(|option| option.name.as_bytes() == name) {
            return Ok(*option);
        }
        let begins_so = |option: &&Long| !option.extension && option.name.as_bytes().starts_with(name);
        let candidates: Vec<&Long> = self.spec.long.iter().filter(begins_so).collect();
        match candidates.as_slice() {
            [option] => Ok(**option),
            _ => Err(candidates.iter().map(|option| option.name).collect()),
        }
    }

    fn misuse(&self, parts: &[&[u8]]) -> Misuse {
        let mut line = self.program.as_bytes().to_vec();
        line.extend_from_slice(b": ");
        line.extend(parts.concat());
        Misuse(line)
    }
}

#[cfg(test)]
mod tests;
