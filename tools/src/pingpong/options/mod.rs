//! The command lines of the programs.

mod program;
mod table;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use verbs::Mtu;

use crate::console::{Console, Failed};
use crate::ctext::{is_number, strtol, strtoul};
use crate::getopt::{Getopt, Opt};
use program::MAX_QP;
pub use program::Program;
use table::{Usage, VERIFY};

/// The command-line options. Numbers have the same width as in C and wrap around in the same way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The ping-pong program.
    pub program: Program,
    /// The host to connect to; `None` to wait for a connection.
    pub server: Option<OsString>,
    /// The TCP port.
    pub port: u16,
    /// The device's name; `None` for the first device.
    pub ib_dev: Option<OsString>,
    /// The device's port.
    pub ib_port: u8,
    /// The length of a message, in bytes.
    pub size: u32,
    /// The maximum payload of a packet.
    pub mtu: Mtu,
    /// The number of queue pairs of `ibv_srq_pingpong`.
    pub num_qp: u32,
    /// The number of clients that the server of `ibv_xsrq_pingpong` waits for.
    pub clients: i32,
    /// The number of messages per client.
    pub tests: i32,
    /// The number of receives to post at a time.
    pub rx_depth: u32,
    /// The number of round trips.
    pub iters: u32,
    /// The service level.
    pub sl: u8,
    /// Whether to sleep until there are completions, instead of polling.
    pub events: bool,
    /// The index of the local GID; `None` to connect without a GID.
    pub gid_idx: Option<u32>,
    /// Whether memory is paged on demand.
    pub odp: bool,
    /// Whether the memory region covers all memory, on demand.
    pub implicit_odp: bool,
    /// Whether the memory is prefetched.
    pub prefetch: bool,
    /// Whether completions carry time stamps.
    pub timestamps: bool,
    /// Whether to check received data in the same cases as the C program.
    pub validate: bool,
    /// Whether every message is different and every received byte is checked. The C program lacks
    /// this option, so both sides must be our programs.
    pub verify: bool,
    /// Whether to use the device's own memory.
    pub device_memory: bool,
    /// Whether to use memory shared between a confidential guest and its host.
    pub cc_unprotected: bool,
}

/// The defaults of `ibv_rc_pingpong`.
impl Default for Options {
    fn default() -> Self {
        Self::for_program(Program::Rc)
    }
}

impl Options {
    /// Returns the defaults of a program.
    pub fn for_program(program: Program) -> Self {
        Self {
            program,
            server: None,
            port: 18515,
            ib_dev: None,
            ib_port: 1,
            // As in C, the usage text of ibv_ud_pingpong says 2048.
            size: if program == Program::Ud { 1024 } else { 4096 },
            mtu: Mtu::MTU_1024,
            num_qp: if program == Program::Srq { 16 } else { 1 },
            clients: 1,
            tests: 5,
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

impl Options {
    /// Parses the command line.
    ///
    /// # Errors
    /// Fails if the command line is invalid; the error has been reported.
    pub fn parse(program: Program, mut getopt: Getopt, console: &mut Console) -> Result<Self, Failed> {
        let mut options = Self::for_program(program);
        while let Some(option) = getopt.next() {
            let understood = match option {
                Ok(option) => {
                    options.warn_of_misread(&option, console);
                    options.take(option)
                }
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
        if program == Program::Xsrq && options.server.is_some() {
            options.clients = 1;
        }
        match options.contradiction() {
            None => Ok(options),
            Some(line) => {
                console.complain(line);
                Err(Failed)
            }
        }
    }

    /// Reports a value whose number differs from its text. Like the C programs, the ping-pongs use
    /// the result of `strtol(3)` and `strtoul(3)`, so scripts get the same numbers from both.
    fn warn_of_misread(&self, option: &Opt, console: &mut Console) {
        let has_number = match option.val {
            b'p' | b'i' | b's' | b'm' | b'q' | b'r' | b'n' | b'l' | b'g' => true,
            b'c' => self.program == Program::Xsrq,
            _ => false,
        };
        let text = option.arg.as_bytes();
        if has_number && !is_number(text) {
            let (name, arg) = (char::from(option.val), text.escape_ascii());
            console.reason(format_args!(
                "-{name} {arg} is not a 32-bit number and is read as {}",
                strtoul(text) as u32 as i32
            ));
        }
    }

    /// Applies an option. Returns `None` if its value is invalid.
    fn take(&mut self, option: Opt) -> Option<()> {
        let unsigned = |arg: &OsStr| strtoul(arg.as_bytes()) as u32;
        let signed = |arg: &OsStr| strtol(arg.as_bytes()) as i32;
        let Opt { val, arg } = option;
        let of_xsrq = self.program == Program::Xsrq;
        match val {
            b'p' => self.port = u16::try_from(unsigned(&arg)).ok()?,
            b'd' => self.ib_dev = Some(arg),
            b'i' => {
                // The device rejects port 0 of ibv_xsrq_pingpong.
                let least = if of_xsrq { 0 } else { 1 };
                self.ib_port = Some(signed(&arg)).filter(|port| *port >= least)? as u8;
            }
            b's' => {
                self.size = unsigned(&arg);
                if self.program == Program::Srq && self.size == 0 {
                    return None;
                }
            }
            b'm' => self.mtu = u32::try_from(signed(&arg)).ok().and_then(Mtu::from_bytes)?,
            b'q' => self.num_qp = unsigned(&arg),
            b'r' => self.rx_depth = unsigned(&arg),
            b'n' if of_xsrq => self.tests = signed(&arg),
            b'n' => self.iters = unsigned(&arg),
            b'l' => self.sl = signed(&arg) as u8,
            b'e' => self.events = true,
            b'g' => self.gid_idx = u32::try_from(signed(&arg)).ok(),
            b'o' => self.odp = true,
            b'O' => (self.odp, self.implicit_odp) = (true, true),
            b'P' => self.prefetch = true,
            b't' => self.timestamps = true,
            b'c' if of_xsrq => self.clients = signed(&arg),
            b'c' => self.validate = true,
            VERIFY => self.verify = true,
            b'j' => self.device_memory = true,
            // Posting here is always as fast as with the new functions in C, so this option has no
            // effect.
            b'N' => {}
            b'U' => self.cc_unprotected = true,
            _ => return None,
        }
        Some(())
    }

    /// Returns the C program's message for mutually exclusive options.
    fn contradiction(&self) -> Option<String> {
        let Self { num_qp, rx_depth, .. } = *self;
        let line = if self.odp && self.device_memory {
            "DM memory region can't be on demand"
        } else if self.cc_unprotected && self.odp {
            "CoCo unprotected memory cannot be used with ODP"
        } else if self.cc_unprotected && self.device_memory {
            "CoCo unprotected memory cannot be used with device memory"
        } else if self.prefetch && !self.odp {
            "prefetch is valid only with on-demand memory region"
        } else if self.program == Program::Srq && num_qp > rx_depth {
            let (depth, qps) = (rx_depth as i32, num_qp as i32);
            return Some(format!(
                "rx_depth {depth} is too small for {qps} QPs -- must have at least one receive per QP."
            ));
        } else if num_qp == 0 {
            // The C program waits forever.
            "num_qp must be at least 1"
        } else if num_qp >= MAX_QP {
            // As in C, the number in the message is too low by one.
            return Some(format!("num_qp {} must be less than {}", num_qp as i32, MAX_QP - 1));
        } else {
            return None;
        };
        Some(line.to_owned())
    }
}

fn usage(program: Program, console: &mut Console) -> Failed {
    let name = console.program().display().to_string();
    console.say(Usage { program, name: &name });
    Failed
}

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
        for program in [Program::Rc, Program::Uc, Program::Ud, Program::Srq, Program::Xsrq] {
            assert_eq!(parse_of(program, &[]), Ok(Options::for_program(program)));
            let has_verify = !matches!(program, Program::Srq | Program::Xsrq);
            assert_eq!(parse_of(program, &["--verify"]).is_ok(), has_verify, "{program:?}");
            assert_eq!(parse_of(program, &["-m", "512"]).is_ok(), program != Program::Ud, "{program:?}");
            assert_eq!(parse_of(program, &["-q", "2"]).is_ok(), program == Program::Srq, "{program:?}");
            let has_odp = !matches!(program, Program::Uc | Program::Ud);
            assert_eq!(parse_of(program, &["-o"]).is_ok(), has_odp, "{program:?}");
            for of_rc in ["-O", "-t", "-j", "-N", "-U"] {
                assert_eq!(
                    parse_of(program, &[of_rc]).is_ok(),
                    program == Program::Rc,
                    "{program:?} {of_rc}"
                );
            }
        }
        for program in [Program::Rc, Program::Uc, Program::Ud] {
            assert!(parse_of(program, &all).is_ok(), "{program:?}");
        }
        assert_eq!(
            (Options::for_program(Program::Uc).size, Options::for_program(Program::Ud).size),
            (4096, 1024)
        );
        assert_eq!(
            (Options::for_program(Program::Rc).num_qp, Options::for_program(Program::Srq).num_qp),
            (1, 16)
        );
    }

    #[test]
    fn a_value_that_is_no_number_is_read_as_by_c_with_a_warning() {
        let parsed = |args: &[&str]| {
            let args: Vec<_> = args.iter().map(Into::into).collect();
            let mut console = Console::captured("pp");
            let options = Options::parse(
                Program::Rc,
                Getopt::new(Program::Rc.spec(), "pp".into(), args, false),
                &mut console,
            );
            (options.expect("options"), console.complaints())
        };
        let (options, told) = parsed(&["-n", "abc", "-s", "99999999999999"]);
        assert_eq!((options.iters, options.size), (0, 276_447_231));
        assert_eq!(
            told,
            "pp: -n abc is not a 32-bit number and is read as 0\n\
             pp: -s 99999999999999 is not a 32-bit number and is read as 276447231\n"
        );
        for fine in ["0", "-1", "010", "0x1f", " 7", "+3", "4294967295"] {
            assert_eq!(parsed(&["-n", fine]).1, "", "{fine}");
        }
    }

    #[test]
    fn the_programs_with_a_shared_receive_queue_have_their_own_meanings() {
        let args = |line: &'static str| line.split(' ').collect::<Vec<_>>();
        let srq = parse_of(Program::Srq, &args("-q 3 -r 7 -n 9 -o -c host")).expect("options");
        assert_eq!((srq.num_qp, srq.rx_depth, srq.iters), (3, 7, 9));
        assert!(srq.odp && srq.validate && srq.server.is_some());
        let xsrq = parse_of(Program::Xsrq, &args("-c 3 --num_tests=9 -o -i 0")).expect("options");
        assert_eq!((xsrq.clients, xsrq.tests, xsrq.ib_port, xsrq.validate), (3, 9, 0, false));
        // A client has only one peer.
        let client = parse_of(Program::Xsrq, &args("-c 3 host")).expect("options");
        assert_eq!(client.clients, 1);
        assert_eq!(parse_of(Program::Xsrq, &["-i", "-1"]), Err(Failed));
        assert_eq!(parse_of(Program::Srq, &["-s", "0"]), Err(Failed));
    }

    #[test]
    fn numbers_of_queue_pairs_that_c_refuses_are_refused_in_its_words() {
        let complaint = |args: &[&str]| {
            let args = args.iter().map(Into::into).collect();
            let getopt = Getopt::new(Program::Srq.spec(), "pp".into(), args, false);
            let mut console = Console::captured("pp");
            assert_eq!(Options::parse(Program::Srq, getopt, &mut console), Err(Failed));
            console.complaints()
        };
        let too_small = "rx_depth 15 is too small for 16 QPs -- must have at least one receive per QP.\n";
        assert_eq!(complaint(&["-r", "15"]), too_small);
        assert_eq!(complaint(&["-q", "256"]), "num_qp 256 must be less than 255\n");
        assert_eq!(complaint(&["-q", "0"]), "num_qp must be at least 1\n");
        assert!(parse_of(Program::Srq, &["-q", "255"]).is_ok());
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
