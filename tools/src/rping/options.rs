//! The command line of `rping`.

use std::ffi::OsStr;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt;

use crate::cm::address::lookup_host;
use crate::console::Console;
use crate::ctext::atoi;
use crate::getopt::{Getopt, Spec};

/// The option letters. As in C, `-t` is accepted with its value, then rejected as misuse.
pub const SPEC: Spec = Spec::new("a:I:Pp:C:S:t:scvVdq", &[]);

/// The command-line options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Whether this side waits for a connection.
    pub server: bool,
    /// The address to listen on or to connect to, with the port from `-p`.
    pub address: SocketAddr,
    /// The source address. `None` to let routing choose.
    pub source: Option<SocketAddr>,
    /// Whether the server serves many connections at a time, until it is killed.
    pub persistent: bool,
    /// Whether to print the data of each ping.
    pub verbose: bool,
    /// Whether the client checks the returned data.
    pub validate: bool,
    /// Whether to print each step.
    pub debug: bool,
    /// Whether the program creates and modifies the queue pair itself.
    pub own_qp: bool,
    /// The length of the data, in bytes.
    pub size: usize,
    /// The number of pings; 0 for no limit.
    pub count: u32,
}

impl Options {
    /// Parses a command line.
    ///
    /// # Errors
    /// Returns the exit status for misuse; the C program's message has been printed.
    pub fn parse(mut getopt: Getopt, console: &mut Console) -> Result<Self, i32> {
        let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let mut options = Self {
            server: false,
            address: any,
            source: None,
            persistent: false,
            verbose: false,
            validate: false,
            debug: false,
            own_qp: false,
            size: 64,
            count: 0,
        };
        let (mut role, mut port, mut ret) = (None, 7174, 0);
        while let Some(option) = getopt.next() {
            // GNU's messages are disabled.
            let Ok(option) = option else { return Err(usage(console)) };
            let number = atoi(option.arg.as_bytes());
            let mut debug = Debug { on: options.debug, console };
            match option.val {
                b'a' => match host(&option.arg, debug.console) {
                    Ok(address) => (options.address, ret) = (address, 0),
                    Err(code) => ret = code,
                },
                b'I' => match host(&option.arg, debug.console) {
                    Ok(address) => (options.source, ret) = (Some(address), 0),
                    Err(code) => ret = code,
                },
                b'P' => options.persistent = true,
                b'p' => {
                    // As in C, only the low 16 bits of the number are used.
                    port = number as u16;
                    debug.say(format_args!("port {number}\n"));
                }
                b's' => {
                    role = Some(true);
                    debug.say(format_args!("server\n"));
                }
                b'c' => {
                    role = Some(false);
                    debug.say(format_args!("client\n"));
                }
                b'S' => match usize::try_from(number) {
                    Ok(size) if (MIN_SIZE..LIMIT).contains(&size) => {
                        options.size = size;
                        debug.say(format_args!("size {number}\n"));
                    }
                    _ => {
                        let range = format_args!("(valid range is {MIN_SIZE} to {LIMIT})");
                        debug.console.complain(format_args!("Invalid size {number} {range}"));
                        ret = INVALID;
                    }
                },
                b'C' => match u32::try_from(number) {
                    Ok(count) => {
                        options.count = count;
                        debug.say(format_args!("count {number}\n"));
                    }
                    Err(_) => {
                        debug.console.complain(format_args!("Invalid count {number}"));
                        ret = INVALID;
                    }
                },
                b'v' => {
                    options.verbose = true;
                    debug.say(format_args!("verbose\n"));
                }
                b'V' => {
                    options.validate = true;
                    debug.say(format_args!("validate data\n"));
                }
                b'd' => options.debug = true,
                b'q' => options.own_qp = true,
                _ => return Err(usage(console)),
            }
        }
        if ret != 0 {
            return Err(ret);
        }
        options.server = role.ok_or_else(|| usage(console))?;
        options.address.set_port(port);
        Ok(options)
    }
}

/// The console during parsing. The option `-d` takes effect where it appears on the command line.
struct Debug<'a> {
    on: bool,
    console: &'a mut Console,
}

impl Debug<'_> {
    fn say(&mut self, text: std::fmt::Arguments<'_>) {
        if self.on {
            self.console.say(text);
        }
    }
}

/// Resolves a host name or an IP address. Prints an error to `console` and returns its code.
fn host(name: &OsStr, console: &mut Console) -> Result<SocketAddr, i32> {
    lookup_host(name).map_err(|unresolved| {
        let text = unresolved.text();
        console.say(format_args!("getaddrinfo failed ({text}) - invalid hostname or IP address\n"));
        unresolved.code
    })
}

fn usage(console: &mut Console) -> i32 {
    console.say(USAGE);
    INVALID
}

/// The exit status for misuse, `EINVAL`.
const INVALID: i32 = 22;

/// The minimum length of the data, in bytes, with space for the longest ping number.
const MIN_SIZE: usize = 23;

/// The exclusive upper limit on the data's length, in bytes.
const LIMIT: usize = 64 * 1024;

const USAGE: &str = "\
rping -s [-vVd] [-S size] [-C count] [-a addr] [-p port]
rping -c [-vVd] [-S size] [-C count] [-I addr] -a addr [-p port]
\t-c\t\tclient side
\t-I\t\tSource address to bind to for client.
\t-s\t\tserver side.  To bind to any address with IPv6 use -a ::0
\t-v\t\tdisplay ping data to stdout
\t-V\t\tvalidate ping data
\t-d\t\tdebug printfs
\t-S size \tping data size
\t-C count\tping count times
\t-a addr\t\taddress
\t-p port\t\tport
\t-P\t\tpersistent server mode allowing multiple connections
\t-q\t\tuse self-created, self-modified QP
";

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> (Result<Options, i32>, String, String) {
        let args = line.split_whitespace().map(Into::into).collect();
        let mut console = Console::captured("rping");
        let options = Options::parse(Getopt::new(SPEC, "rping".into(), args, false), &mut console);
        (options, console.said(), console.complaints())
    }

    #[test]
    fn a_server_listens_on_any_address_unless_it_is_told_one() {
        let (options, said, complaints) = parse("-s");
        let options = options.expect("a server");
        assert!(options.server && !options.persistent && !options.own_qp);
        assert_eq!(
            (options.address.to_string(), options.size, options.count),
            ("0.0.0.0:7174".into(), 64, 0)
        );
        assert_eq!((said, complaints), (String::new(), String::new()));
        let options = parse("-sPqvV -a ::0 -p 9").0.expect("a server");
        assert_eq!(options.address.to_string(), "[::]:9");
        assert!(options.persistent && options.own_qp && options.verbose && options.validate);
    }

    #[test]
    fn a_client_has_an_address_of_each_side() {
        let options = parse("-c -a 192.0.2.1 -I 192.0.2.9 -C 3 -S 100 -p 70000").0.expect("a client");
        assert!(!options.server);
        assert_eq!(options.address.to_string(), "192.0.2.1:4464");
        assert_eq!(options.source.map(|source| source.to_string()).as_deref(), Some("192.0.2.9:0"));
        assert_eq!((options.count, options.size), (3, 100));
        let scoped = parse("-c -a fe80::1%lo").0.expect("a client");
        assert_eq!(scoped.address.to_string(), "[fe80::1%1]:7174");
    }

    #[test]
    fn debug_speaks_of_the_options_behind_it() {
        let (_, said, _) = parse("-c -d -p 7x -vV -S 23 -C 0x9 -s");
        assert_eq!(said, "port 7\nverbose\nvalidate data\nsize 23\ncount 0\nserver\n");
    }

    #[test]
    fn sizes_and_counts_beyond_their_range_are_named_and_all_of_them() {
        let (refused, said, complaints) = parse("-s -S 22 -C -3 -S 65536 -S -5");
        assert_eq!((refused, said.as_str()), (Err(22), ""));
        assert_eq!(
            complaints,
            "Invalid size 22 (valid range is 23 to 65536)\nInvalid count -3\n\
             Invalid size 65536 (valid range is 23 to 65536)\nInvalid size -5 (valid range is 23 to 65536)\n"
        );
        assert!(parse("-s -S 65535 -S 23").0.is_ok());
    }

    #[test]
    fn misuse_prints_the_usage_alone() {
        for line in ["", "-v", "-x", "-s -t 3", "-s -p"] {
            assert_eq!(parse(line), (Err(22), USAGE.to_owned(), String::new()), "{line}");
        }
    }

    #[test]
    fn a_later_address_makes_an_earlier_one_good() {
        let (refused, said, _) = parse("-c -a fe80::1%nosuch");
        assert_eq!(refused, Err(-2));
        let line = "getaddrinfo failed (Name or service not known) - invalid hostname or IP address\n";
        assert_eq!(said, line);
        assert!(parse("-c -a fe80::1%nosuch -a 127.0.0.1").0.is_ok());
    }
}
