//! The command lines of `rdma_server`, `rdma_client`, `rdma_xserver` and `rdma_xclient`.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use crate::console::Console;
use crate::getopt::{Getopt, Spec};

/// The four programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// `rdma_server`: receives a message and sends one back.
    Server,
    /// `rdma_client`: sends a message and waits for it to come back.
    Client,
    /// `rdma_xserver`: receives a message, optionally over XRC.
    Xserver,
    /// `rdma_xclient`: sends a message, optionally over XRC.
    Xclient,
}

/// The command-line options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The address to listen on or to connect to; `None` for any address.
    pub server: Option<OsString>,
    /// The port to listen on or to connect to.
    pub port: OsString,
    /// Whether to use XRC instead of RC.
    pub xrc: bool,
}

impl Program {
    /// Returns the program's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Server => "rdma_server",
            Self::Client => "rdma_client",
            Self::Xserver => "rdma_xserver",
            Self::Xclient => "rdma_xclient",
        }
    }

    /// Returns the option letters.
    pub const fn spec(self) -> Spec {
        Spec::new(
            match self {
                Self::Server | Self::Client => "s:p:",
                Self::Xserver => "p:c:",
                Self::Xclient => "s:p:c:",
            },
            &[],
        )
    }

    /// Returns the address used without `-s`.
    const fn server(self) -> Option<&'static str> {
        match self {
            Self::Server => Some("0.0.0.0"),
            Self::Client | Self::Xclient => Some("127.0.0.1"),
            Self::Xserver => None,
        }
    }

    fn usage(self, console: &mut Console) {
        let name = console.program().display().to_string();
        console.say(format_args!("usage: {name}\n"));
        console.say(match self {
            Self::Server | Self::Client => "\t[-s server_address]\n",
            Self::Xserver => "",
            Self::Xclient => "\t[-s server]\n",
        });
        console.say("\t[-p port_number]\n");
        if matches!(self, Self::Xserver | Self::Xclient) {
            console.say("\t[-c communication type]\n");
            console.say("\t    r - RC: reliable-connected (default)\n");
            console.say("\t    x - XRC: extended-reliable-connected\n");
        }
    }
}

impl Options {
    /// Parses a command line.
    ///
    /// # Errors
    /// Returns the exit status for misuse; the error has been reported.
    pub fn parse(program: Program, mut getopt: Getopt, console: &mut Console) -> Result<Self, i32> {
        let server = program.server().map(OsString::from);
        let mut options = Self { server, port: "7471".into(), xrc: false };
        while let Some(option) = getopt.next() {
            let option = match option {
                Ok(option) => option,
                Err(misuse) => {
                    console.misuse(&misuse);
                    program.usage(console);
                    return Err(1);
                }
            };
            match option.val {
                b's' => options.server = Some(option.arg),
                b'p' if program == Program::Xclient => options.port = cut(option.arg),
                b'p' => options.port = option.arg,
                _ => match option.arg.as_bytes().first() {
                    // As in C, `r` does not switch back to RC.
                    Some(b'r' | b'R') => {}
                    Some(b'x' | b'X') => options.xrc = true,
                    _ => {
                        program.usage(console);
                        return Err(1);
                    }
                },
            }
        }
        Ok(options)
    }
}

/// Truncates a port to the buffer size of the C `rdma_xclient`.
fn cut(port: OsString) -> OsString {
    let mut bytes = port.into_vec();
    bytes.truncate(5);
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(program: Program, line: &str) -> (Result<Options, i32>, String, String) {
        let args = line.split_whitespace().map(Into::into).collect();
        let mut console = Console::captured("prog");
        let getopt = Getopt::new(program.spec(), "prog".into(), args, false);
        let options = Options::parse(program, getopt, &mut console);
        (options, console.said(), console.complaints())
    }

    #[test]
    fn each_program_has_its_own_default_address() {
        let server = |program| parse(program, "").0.expect("no option is needed").server;
        assert_eq!(server(Program::Server), Some("0.0.0.0".into()));
        assert_eq!(server(Program::Client), Some("127.0.0.1".into()));
        assert_eq!(server(Program::Xclient), Some("127.0.0.1".into()));
        assert_eq!(server(Program::Xserver), None);
    }

    #[test]
    fn the_communication_type_is_one_letter_of_any_case() {
        for (line, xrc) in [("-c r", false), ("-c xrc", true), ("-c X -c R", true), ("", false)] {
            assert_eq!(parse(Program::Xserver, line).0.expect("a type").xrc, xrc, "{line}");
        }
    }

    #[test]
    fn a_port_of_xclient_has_five_characters() {
        let port = |program| parse(program, "-p 123456").0.expect("a port").port;
        assert_eq!((port(Program::Xclient), port(Program::Client)), ("12345".into(), "123456".into()));
    }

    #[test]
    fn misuse_is_named_in_gnus_words_and_the_usage_follows() {
        let usage = "usage: prog\n\t[-s server_address]\n\t[-p port_number]\n";
        let complaint = "prog: invalid option -- 'x'\n";
        for program in [Program::Server, Program::Client] {
            assert_eq!(parse(program, "-x"), (Err(1), usage.into(), complaint.into()));
        }
        let kinds = "\t[-p port_number]\n\t[-c communication type]\n\t    r - RC: reliable-connected (default)\n\
                     \t    x - XRC: extended-reliable-connected\n";
        let silent = (Err(1), format!("usage: prog\n{kinds}"), String::new());
        assert_eq!(parse(Program::Xserver, "-c q"), silent);
        let no_server = "prog: invalid option -- 's'\n";
        assert_eq!(parse(Program::Xserver, "-s 1"), (Err(1), silent.1, no_server.into()));
        let usage = format!("usage: prog\n\t[-s server]\n{kinds}");
        let no_value = "prog: option requires an argument -- 'p'\n";
        assert_eq!(parse(Program::Xclient, "-p"), (Err(1), usage, no_value.into()));
    }
}
