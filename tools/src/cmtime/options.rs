//! The command line.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use nix::ifaddrs::getifaddrs;

use crate::cmatose::atoi;
use crate::console::{Console, Failed};
use crate::getopt::{Getopt, Opt, Spec};

/// The option letters. As in C, `-S` takes a value, which is ignored. The usage text shows no
/// value.
const SPEC: Spec = Spec::new("B:b:C:c:Lm:n:P:p:q:r:S:t:", &[]);

const USAGE: &str = "\
\t-B bind_interface (only one of -B or -b accepted)
\t-b bind_address (only one of -B or -b accepted)
\t-C controller_address
\t[-c num_conns] connections per listener
\t[-L] run as listening server
\t[-m mimic_qp_delay_us]
\t[-n num_threads]
\t[-P num_peers] total number of peers
\t[-p oob_port]
\t[-q base_qpn]
\t[-r retries]
\t[-S] run socket baseline test, 2 peers only
\t[-t timeout_ms]
";

/// The role of a peer: to connect or to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The peer connects.
    Connect,
    /// The peer listens.
    Listen,
}

/// The command-line options. Numbers have the same width as in C and wrap around in the same way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The address to bind to.
    pub source: OsString,
    /// The address of the peer to connect to.
    pub controller: OsString,
    /// The number of connections between each pair of peers.
    pub connections: u32,
    /// Whether this peer connects or listens.
    pub role: Role,
    /// The length of the pause that replaces each queue pair step.
    pub mimic: Option<Duration>,
    /// The number of worker threads.
    pub threads: i32,
    /// The total number of peers.
    pub peers: u32,
    /// The controller's port.
    pub port: OsString,
    /// The first queue pair number for a run without queue pairs.
    pub base_qpn: u32,
    /// The number of times to retry resolution.
    pub retries: i32,
    /// Whether to connect TCP sockets instead of ids.
    pub sockets: bool,
    /// The timeout for resolving an address or a route.
    pub timeout: Duration,
}

impl Options {
    fn new() -> Self {
        Self {
            source: OsString::new(),
            controller: OsString::new(),
            connections: 100,
            role: Role::Connect,
            mimic: None,
            threads: 1,
            peers: 2,
            port: "7471".into(),
            base_qpn: 1000,
            retries: 2,
            sockets: false,
            timeout: Duration::from_millis(2000),
        }
    }

    /// Parses the command line.
    ///
    /// # Errors
    /// Fails if the command line is invalid, or it names an interface without an address. The
    /// failure has been reported.
    pub fn parse(args: Vec<OsString>, console: &mut Console) -> Result<Self, Failed> {
        let posixly_correct = std::env::var_os("POSIXLY_CORRECT").is_some();
        let mut getopt = Getopt::new(SPEC, console.program().to_owned(), args, posixly_correct);
        let mut options = Self::new();
        let (mut source, mut controller) = (None, None);
        while let Some(option) = getopt.next() {
            let Opt { val, arg } = option.map_err(|misuse| {
                console.misuse(&misuse);
                usage(console)
            })?;
            match val {
                b'B' | b'b' if source.is_some() => return Err(usage(console)),
                b'B' => source = Some(address_of(&arg, console)?),
                b'b' => source = Some(arg),
                b'C' => controller = Some(arg),
                _ => options.take(val, arg).ok_or_else(|| usage(console))?,
            }
        }
        match (source, controller) {
            (Some(source), Some(controller)) if !options.sockets || options.peers == 2 => {
                Ok(Self { source, controller, ..options })
            }
            _ => Err(usage(console)),
        }
    }

    /// Applies an option. Returns `None` if it is unknown or its value is invalid.
    fn take(&mut self, val: u8, arg: OsString) -> Option<()> {
        let unsigned = || atoi(&arg) as u32;
        match val {
            b'c' => self.connections = unsigned(),
            b'L' => self.role = Role::Listen,
            b'm' => self.mimic = Some(Duration::from_micros(unsigned().into())),
            b'n' => self.threads = atoi(&arg),
            b'P' => self.peers = Some(unsigned()).filter(|peers| *peers >= 2)?,
            b'p' => self.port = arg,
            b'q' => self.base_qpn = unsigned(),
            b'r' => self.retries = atoi(&arg),
            b'S' => self.sockets = true,
            b't' => self.timeout = Duration::from_millis(atoi(&arg).max(0) as u64),
            _ => return None,
        }
        Some(())
    }
}

fn usage(console: &mut Console) -> Failed {
    let program = console.program().display().to_string();
    console.say(format_args!("usage: {program}\n{USAGE}"));
    Failed
}

/// Returns the first IP address of an interface.
fn address_of(interface: &OsStr, console: &mut Console) -> Result<OsString, Failed> {
    let name = interface.display();
    let all = getifaddrs().map_err(|errno| {
        console.complain(format_args!("getifaddrs: {}", errno.desc()));
        Failed
    })?;
    let of_interface = all.filter(|entry| entry.interface_name.as_bytes() == interface.as_bytes());
    let found = of_interface.filter_map(|entry| entry.address).find_map(|address| {
        let v4 = address.as_sockaddr_in().map(|address| address.ip().to_string());
        v4.or_else(|| address.as_sockaddr_in6().map(|address| address.ip().to_string()))
    });
    let ip = found.ok_or_else(|| {
        console.complain(format_args!("Failed to find IP address for interface: {name}"));
        Failed
    })?;
    console.say(format_args!("Picking source address {ip} for interface {name}\n"));
    Ok(ip.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> (Result<Options, Failed>, String, String) {
        let mut console = Console::captured("prog");
        let args = line.split_whitespace().map(Into::into).collect();
        let options = Options::parse(args, &mut console);
        (options, console.said(), console.complaints())
    }

    #[test]
    fn the_options_have_the_defaults_and_widths_of_c() {
        let least = Options { source: "s".into(), controller: "c".into(), ..Options::new() };
        assert_eq!(parsed("-b s -C c").0, Ok(least));
        let line = "-b s -C c -c 7 -L -m 30 -n 4 -P 5 -p 1 -q 9 -r 3 -t 500";
        let all = Options {
            source: "s".into(),
            controller: "c".into(),
            connections: 7,
            role: Role::Listen,
            mimic: Some(Duration::from_micros(30)),
            threads: 4,
            peers: 5,
            port: "1".into(),
            base_qpn: 9,
            retries: 3,
            sockets: false,
            timeout: Duration::from_millis(500),
        };
        assert_eq!(parsed(line), (Ok(all), String::new(), String::new()));
        assert!(parsed("-b s -C c -S x").0.is_ok_and(|options| options.sockets));
    }

    #[test]
    fn what_is_missing_or_too_much_is_answered_with_the_usage() {
        let usage = format!("usage: prog\n{USAGE}");
        for (line, complaint) in [
            ("", ""),
            ("-b s", ""),
            ("-C c", ""),
            ("-b s -b s -C c", ""),
            ("-B lo -b s -C c", ""),
            ("-b s -C c -P 1", ""),
            ("-b s -C c -P 3 -S x", ""),
            ("-h", "prog: invalid option -- 'h'\n"),
            ("-b s -C c -S", "prog: option requires an argument -- 'S'\n"),
        ] {
            let (options, said, complaints) = parsed(line);
            let said =
                said.strip_prefix("Picking source address 127.0.0.1 for interface lo\n").unwrap_or(&said);
            assert_eq!((options, said, &*complaints), (Err(Failed), &*usage, complaint), "{line}");
        }
    }

    #[test]
    fn an_interface_stands_for_its_first_address() {
        let (options, said, _) = parsed("-B lo -C c");
        assert_eq!(options.expect("options").source, "127.0.0.1");
        assert_eq!(said, "Picking source address 127.0.0.1 for interface lo\n");
        let (options, said, complaints) = parsed("-B nosuch0 -C c");
        assert_eq!((options, said), (Err(Failed), String::new()));
        assert_eq!(complaints, "Failed to find IP address for interface: nosuch0\n");
    }
}
