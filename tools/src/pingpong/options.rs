//! The command lines of the programs.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;

use verbs::{Grh, Mtu, QpType};

use crate::console::{Console, Failed};
use crate::ctext::{strtol, strtoul};
use crate::getopt::{Getopt, Long, Opt, Spec};

/// The programs. They differ in the transport service of their queue pairs, and in a few words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// `ibv_rc_pingpong`: a reliable connection.
    Rc,
    /// `ibv_uc_pingpong`: an unreliable connection.
    Uc,
    /// `ibv_ud_pingpong`: unreliable datagrams.
    Ud,
}

impl Program {
    /// The program's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "ibv_rc_pingpong",
            Self::Uc => "ibv_uc_pingpong",
            Self::Ud => "ibv_ud_pingpong",
        }
    }

    /// The transport service of its queue pairs.
    pub const fn qp_type(self) -> QpType {
        match self {
            Self::Rc => QpType::RC,
            Self::Uc => QpType::UC,
            Self::Ud => QpType::UD,
        }
    }

    /// The bytes in front of a received message: the GRH of a datagram.
    pub const fn header_len(self) -> usize {
        match self {
            Self::Rc | Self::Uc => 0,
            Self::Ud => Grh::LEN,
        }
    }

    /// The options of C's program, and one of our own.
    pub const fn spec(self) -> Spec {
        match self {
            Self::Rc => RC,
            Self::Uc => UC,
            Self::Ud => UD,
        }
    }
}

/// The options. Numbers have the width of those of C's program, and wrap around like them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The program.
    pub program: Program,
    /// The host to connect to; `None`: wait for a connection.
    pub server: Option<OsString>,
    /// The TCP port.
    pub port: u16,
    /// The device; `None`: the first one.
    pub ib_dev: Option<OsString>,
    /// The device's port.
    pub ib_port: u8,
    /// The length of a message, in bytes.
    pub size: u32,
    /// The largest payload of a packet.
    pub mtu: Mtu,
    /// The number of receives that are posted at a time.
    pub rx_depth: u32,
    /// The number of times that the message goes back and forth.
    pub iters: u32,
    /// The service level.
    pub sl: u8,
    /// Whether to sleep until there are completions instead of polling.
    pub events: bool,
    /// The index of the local GID; `None`: connect without a GID.
    pub gid_idx: Option<u32>,
    /// Whether memory is paged on demand.
    pub odp: bool,
    /// Whether the memory region covers all memory, on demand.
    pub implicit_odp: bool,
    /// Whether the memory is prefetched.
    pub prefetch: bool,
    /// Whether completions carry time stamps.
    pub timestamps: bool,
    /// Whether to check the received data where C's program does.
    pub validate: bool,
    /// Whether every message differs and every received byte is checked. C's program does not have
    /// this option: both sides must be ours.
    pub verify: bool,
    /// Whether to use the device's own memory.
    pub device_memory: bool,
    /// Whether to use memory that a confidential guest shares with its host.
    pub cc_unprotected: bool,
}

/// The defaults of `ibv_rc_pingpong`.
impl Default for Options {
    fn default() -> Self {
        Self::of(Program::Rc)
    }
}

impl Options {
    /// The defaults of a program.
    pub fn of(program: Program) -> Self {
        Self {
            program,
            server: None,
            port: 18515,
            ib_dev: None,
            ib_port: 1,
            // The usage text of ibv_ud_pingpong says 2048, in C as well.
            size: if program == Program::Ud { 1024 } else { 4096 },
            mtu: Mtu::MTU_1024,
            rx_depth: 500,
            iters: 1000,
            sl: 0,
            events: false,
            gid_idx: None,
            odp: false,
            implicit_odp: false,
            prefetch: false,
            timestamps: false,
            validate: false,
            verify: false,
            device_memory: false,
            cc_unprotected: false,
        }
    }
}

const RC: Spec = Spec {
    short: "p:d:i:s:m:r:n:l:eg:oOPtcjNU",
    long: &[
        Long::value("port", b'p'),
        Long::value("ib-dev", b'd'),
        Long::value("ib-port", b'i'),
        Long::value("size", b's'),
        Long::value("mtu", b'm'),
        Long::value("rx-depth", b'r'),
        Long::value("iters", b'n'),
        Long::value("sl", b'l'),
        Long::flag("events", b'e'),
        Long::value("gid-idx", b'g'),
        Long::flag("odp", b'o'),
        Long::flag("iodp", b'O'),
        Long::flag("prefetch", b'P'),
        Long::flag("ts", b't'),
        Long::flag("chk", b'c'),
        Long::flag("dm", b'j'),
        Long::flag("new_send", b'N'),
        Long::flag("allow-cc-unprotected", b'U'),
        Long::extension("verify", VERIFY),
    ],
};

const UC: Spec = Spec {
    short: "p:d:i:s:m:r:n:l:eg:c",
    long: &[
        Long::value("port", b'p'),
        Long::value("ib-dev", b'd'),
        Long::value("ib-port", b'i'),
        Long::value("size", b's'),
        Long::value("mtu", b'm'),
        Long::value("rx-depth", b'r'),
        Long::value("iters", b'n'),
        Long::value("sl", b'l'),
        Long::flag("events", b'e'),
        Long::value("gid-idx", b'g'),
        Long::flag("chk", b'c'),
        Long::extension("verify", VERIFY),
    ],
};

const UD: Spec = Spec {
    short: "p:d:i:s:r:n:l:eg:c",
    long: &[
        Long::value("port", b'p'),
        Long::value("ib-dev", b'd'),
        Long::value("ib-port", b'i'),
        Long::value("size", b's'),
        Long::value("rx-depth", b'r'),
        Long::value("iters", b'n'),
        Long::value("sl", b'l'),
        Long::flag("events", b'e'),
        Long::value("gid-idx", b'g'),
        Long::flag("chk", b'c'),
        Long::extension("verify", VERIFY),
    ],
};

/// The letter of `--verify`, which has none on the command line.
const VERIFY: u8 = b'V';

impl Options {
    /// Reads the command line.
    ///
    /// # Errors
    /// The command line is wrong; the error has been reported.
    pub fn parse(program: Program, mut getopt: Getopt, console: &mut Console) -> Result<Self, Failed> {
        let mut options = Self::of(program);
        while let Some(option) = getopt.next() {
            let understood = match option {
                Ok(option) => options.take(option),
                Err(misuse) => {
                    console.misuse(&misuse);
                    None
                }
            };
            understood.ok_or_else(|| usage(program, console))?;
        }
        let mut operands = getopt.into_operands().into_iter();
        options.server = operands.next();
        if operands.next().is_some() {
            return Err(usage(program, console));
        }
        match options.contradiction() {
            None => Ok(options),
            Some(line) => {
                console.complain(line);
                Err(Failed)
            }
        }
    }

    /// Applies an option; `None` if its value is invalid.
    fn take(&mut self, option: Opt) -> Option<()> {
        let unsigned = |arg: &OsStr| strtoul(arg.as_bytes()) as u32;
        let signed = |arg: &OsStr| strtol(arg.as_bytes()) as i32;
        let Opt { val, arg } = option;
        match val {
            b'p' => self.port = u16::try_from(unsigned(&arg)).ok()?,
            b'd' => self.ib_dev = Some(arg),
            b'i' => self.ib_port = Some(signed(&arg)).filter(|port| *port >= 1)? as u8,
            b's' => self.size = unsigned(&arg),
            b'm' => self.mtu = u32::try_from(signed(&arg)).ok().and_then(Mtu::from_bytes)?,
            b'r' => self.rx_depth = unsigned(&arg),
            b'n' => self.iters = unsigned(&arg),
            b'l' => self.sl = signed(&arg) as u8,
            b'e' => self.events = true,
            b'g' => self.gid_idx = u32::try_from(signed(&arg)).ok(),
            b'o' => self.odp = true,
            b'O' => (self.odp, self.implicit_odp) = (true, true),
            b'P' => self.prefetch = true,
            b't' => self.timestamps = true,
            b'c' => self.validate = true,
            VERIFY => self.verify = true,
            b'j' => self.device_memory = true,
            // There is one way to post, which is as fast as C's new one.
            b'N' => {}
            b'U' => self.cc_unprotected = true,
            _ => return None,
        }
        Some(())
    }

    /// Returns C's message for options that exclude each other.
    fn contradiction(&self) -> Option<&'static str> {
        if self.odp && self.device_memory {
            Some("DM memory region can't be on demand")
        } else if self.cc_unprotected && self.odp {
            Some("CoCo unprotected memory cannot be used with ODP")
        } else if self.cc_unprotected && self.device_memory {
            Some("CoCo unprotected memory cannot be used with device memory")
        } else if self.prefetch && !self.odp {
            Some("prefetch is valid only with on-demand memory region")
        } else {
            None
        }
    }
}

fn usage(program: Program, console: &mut Console) -> Failed {
    let name = console.program().display().to_string();
    console.say(Usage(program, &name));
    Failed
}

/// The usage text of a program, under the name with which it was started.
struct Usage<'a>(Program, &'a str);

impl fmt::Display for Usage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(program, name) = *self;
        let (size, sl) = match program {
            Program::Rc | Program::Uc => (4096, USAGE_OF_SL),
            Program::Ud => (2048, USAGE_OF_SL_OF_UD),
        };
        writeln!(f, "Usage:")?;
        writeln!(f, "  {name}            start a server and wait for connection")?;
        writeln!(f, "  {name} <host>     connect to server at <host>")?;
        f.write_str(USAGE_OF_ENDS)?;
        writeln!(f, "  -s, --size=<size>      size of message to exchange (default {size})")?;
        if program != Program::Ud {
            writeln!(f, "  -m, --mtu=<size>       path MTU (default 1024)")?;
        }
        write!(f, "{USAGE_OF_ROUNDS}{sl}{USAGE_OF_EVENTS}")?;
        f.write_str(if program == Program::Rc { USAGE_OF_RC } else { USAGE_OF_CHECK })
    }
}

const USAGE_OF_ENDS: &str = "
Options:
  -p, --port=<port>      listen on/connect to port <port> (default 18515)
  -d, --ib-dev=<dev>     use IB device <dev> (default first device found)
  -i, --ib-port=<port>   use port <port> of IB device (default 1)
";

const USAGE_OF_ROUNDS: &str = "  -r, --rx-depth=<dep>   number of receives to post at a time (default 500)
  -n, --iters=<iters>    number of exchanges (default 1000)
";

const USAGE_OF_SL: &str = "  -l, --sl=<sl>          service level value\n";

const USAGE_OF_SL_OF_UD: &str =
    "  -l, --sl=<SL>          send messages with service level <SL> (default 0)\n";

const USAGE_OF_EVENTS: &str = "  -e, --events           sleep on CQ events (default poll)
  -g, --gid-idx=<gid index> local port gid index
";

const USAGE_OF_CHECK: &str = "  -c, --chk              validate received buffer\n";

// Tabs and blanks are mixed as in C.
const USAGE_OF_RC: &str = "  -o, --odp\t\t    use on demand paging
  -O, --iodp\t\t    use implicit on demand paging
  -P, --prefetch\t    prefetch an ODP MR
  -t, --ts\t            get CQE with timestamp
  -c, --chk\t            validate received buffer
  -j, --dm\t            use device memory
  -N, --new_send            use new post send WR API
  -U, --allow-cc-unprotected  allow allocation of unprotected/shared
                            memory on CoCo guests
";

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_of(program: Program, args: &[&str]) -> Result<Options, Failed> {
        let getopt = Getopt::new(program.spec(), "pp".into(), args.iter().map(Into::into).collect(), false);
        Options::parse(program, getopt, &mut Console::captured("pp"))
    }

    fn parse(args: &[&str]) -> Result<Options, Failed> {
        parse_of(Program::Rc, args)
    }

    #[test]
    fn each_program_has_its_own_options_and_defaults() {
        let all = "-p 1 -d x -i 2 -s 3 -r 4 -n 5 -l 6 -e -g 7 -c --verify";
        let all: Vec<&str> = all.split(' ').collect();
        for program in [Program::Rc, Program::Uc, Program::Ud] {
            assert_eq!(parse_of(program, &[]), Ok(Options::of(program)));
            assert!(parse_of(program, &all).is_ok(), "{program:?}");
            assert_eq!(parse_of(program, &["-m", "512"]).is_ok(), program != Program::Ud, "{program:?}");
            for of_rc in ["-o", "-O", "-t", "-j", "-N", "-U"] {
                assert_eq!(
                    parse_of(program, &[of_rc]).is_ok(),
                    program == Program::Rc,
                    "{program:?} {of_rc}"
                );
            }
        }
        assert_eq!((Options::of(Program::Uc).size, Options::of(Program::Ud).size), (4096, 1024));
    }

    #[test]
    fn nothing_asked_is_what_c_does_by_default() {
        assert_eq!(parse(&[]), Ok(Options::default()));
    }

    #[test]
    fn every_option_is_taken_in() {
        let line = "-p 0x10 -d rxe0 -i 2 -s 010 -m 4096 -r 3 -n 4 -l 5 -eg 6 -tcNU peer";
        let args: Vec<&str> = line.split(' ').collect();
        let expected = Options {
            server: Some("peer".into()),
            port: 16,
            ib_dev: Some("rxe0".into()),
            ib_port: 2,
            size: 8,
            mtu: Mtu::MTU_4096,
            rx_depth: 3,
            iters: 4,
            sl: 5,
            events: true,
            gid_idx: Some(6),
            timestamps: true,
            validate: true,
            cc_unprotected: true,
            ..Options::default()
        };
        assert_eq!(parse(&args), Ok(expected));
        assert_eq!(parse(&["--verify"]), Ok(Options { verify: true, ..Options::default() }));
        let odp = Options { odp: true, implicit_odp: true, prefetch: true, ..Options::default() };
        assert_eq!(parse(&["--iodp", "--prefetch"]), Ok(odp));
    }

    #[test]
    fn a_negative_gid_index_is_none_as_in_c() {
        assert_eq!(parse(&["-g", "-1"]).map(|options| options.gid_idx), Ok(None));
        assert_eq!(parse(&["-g", "0"]).map(|options| options.gid_idx), Ok(Some(0)));
    }

    #[test]
    fn what_makes_no_sense_is_misuse() {
        for args in [
            &["-p", "65536"][..],
            &["-p", "-1"],
            &["-i", "0"],
            &["-i", "x"],
            &["-m", "1000"],
            &["-m", "-256"],
            &["one", "two"],
            &["-h"],
            &["-oj"],
            &["-oU"],
            &["-jU"],
            &["-P"],
        ] {
            assert_eq!(parse(args), Err(Failed), "{args:?}");
        }
    }
}
