//! [`parse`]: the command line of `verbs-run`.

use std::ffi::OsString;
use std::fmt;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

/// The action that a command line requests.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// `--help`
    Help,
    /// `--version`
    Version,
    /// Runs a command, or checks whether devices can be presented.
    Run(Options),
}

/// The options, plus the command and its arguments.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `--soft=ADDRESSES`: the value of `VERBS_SOFT`.
    pub soft: Option<String>,
    /// `--no-soft`
    pub no_soft: bool,
    /// `--no-namespace`
    pub no_namespace: bool,
    /// `--libraries DIR`
    pub libraries: Option<PathBuf>,
    /// `--scan DIR`, which may be repeated.
    pub scan: Vec<PathBuf>,
    /// `--check`
    pub is_check: bool,
    /// The command and its arguments. This is empty with `--check`.
    pub command: Vec<OsString>,
}

/// An error on the command line.
#[derive(Debug, PartialEq, Eq)]
pub enum Misuse {
    /// An option that does not exist.
    Unknown(String),
    /// An option without its required value.
    NoValue(&'static str),
    /// A value that is not a list of addresses.
    Addresses(String),
    /// Both `--soft` and `--no-soft`.
    SoftAndNoSoft,
    /// A missing command.
    NoCommand,
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(option) => write!(f, "unknown option {option}"),
            Self::NoValue(option) => write!(f, "the option {option} needs a value"),
            Self::Addresses(list) => {
                write!(f, "--soft={list}: expected auto, or IP addresses separated by commas")
            }
            Self::SoftAndNoSoft => f.write_str("--soft and --no-soft exclude each other"),
            Self::NoCommand => f.write_str("no command"),
        }
    }
}

/// The first lines of the help text.
pub const USAGE: &str = "\
usage: verbs-run [OPTION]... [--] COMMAND [ARGUMENT]...
       verbs-run --check [--soft=ADDRESSES]
       verbs-run --help | --version";

/// The output of `--help`.
pub const HELP: &str = "\
usage: verbs-run [OPTION]... [--] COMMAND [ARGUMENT]...
       verbs-run --check [--soft=ADDRESSES]
       verbs-run --help | --version

Runs an unmodified RDMA program on the libibverbs.so.1, librdmacm.so.1, libmlx5.so.1 and
libefa.so.1 of libibverbs-rs, with soft devices: RoCE v2 over UDP, without a kernel module,
privileges or hardware. The program finds them in its device list, in /sys/class/infiniband,
/sys/class/infiniband_verbs and /dev/infiniband. Nothing of the machine changes.

Options:
  --soft[=ADDRESSES]  the soft devices: auto, or addresses of this machine separated by commas.
                      The default is VERBS_SOFT, or auto if that variable is unset
  --no-soft           no soft devices: the program has the kernel's devices alone
  --scan DIR          also replace copies of libibverbs, librdmacm, libmlx5 and libefa below DIR.
                      Those of Python packages (NAME.libs in site-packages) are found without it
  --libraries DIR     the folder of our libraries, if it is not beside this program
  --no-namespace      only set variables: programs that look into /sys and /dev find no soft device
  --check             present the devices, print them, and exit with 0; exit with 1 and the reason
                      if a device cannot be created, or if mounts are forbidden here
  -h, --help          print this text
  --version           print the version

The files are in a mount namespace of the program. As another user than root it also has a user
namespace, in which it keeps its user and group. Where the kernel, a container or a security
policy forbids both, verbs-run says so in one sentence, and runs the program without the files.

Exit status: the command's own, or
  125  the command line is wrong, or the libraries are missing
  126  the command cannot be executed
  127  the command does not exist
";

/// Parses the arguments after the program's name.
///
/// # Errors
/// Returns the first error on the command line.
pub fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Action, Misuse> {
    let (mut options, mut asks_for_soft) = (Options::default(), false);
    let mut arguments = arguments.peekable();
    while let Some(argument) = arguments.next_if(|argument| argument.as_bytes().starts_with(b"-")) {
        let text = argument.to_string_lossy();
        let (name, value) = match text.split_once('=') {
            Some((name, _)) => (name, Some(after(&argument, name.len() + 1))),
            None => (&*text, None),
        };
        let mut folder = |name| {
            let value = value.clone().or_else(|| arguments.next());
            value.filter(|value| !value.is_empty()).map(PathBuf::from).ok_or(Misuse::NoValue(name))
        };
        match (name, &value) {
            ("--", None) => break,
            ("-h" | "--help", None) => return Ok(Action::Help),
            ("--version", None) => return Ok(Action::Version),
            ("--check", None) => options.is_check = true,
            ("--no-soft", None) => options.no_soft = true,
            ("--no-namespace", None) => options.no_namespace = true,
            ("--libraries", _) => options.libraries = Some(folder("--libraries")?),
            ("--scan", _) => options.scan.push(folder("--scan")?),
            ("--soft", Some(list)) => {
                let list = list.to_string_lossy().into_owned();
                if !is_list(&list) {
                    return Err(Misuse::Addresses(list));
                }
                options.soft = Some(list);
            }
            ("--soft", None) => {
                let is_value = |next: &OsString| next.to_str().is_some_and(is_list);
                let list = arguments.next_if(is_value).and_then(|list| list.into_string().ok());
                // Without a value, the option selects the default.
                options.soft = list.or(options.soft);
            }
            _ => return Err(Misuse::Unknown(text.into_owned())),
        }
        asks_for_soft |= name == "--soft";
    }
    if asks_for_soft && options.no_soft {
        return Err(Misuse::SoftAndNoSoft);
    }
    options.command = arguments.collect();
    if options.command.is_empty() && !options.is_check {
        return Err(Misuse::NoCommand);
    }
    Ok(Action::Run(options))
}

/// Returns the bytes of an argument, starting at this index.
fn after(argument: &OsString, index: usize) -> OsString {
    std::ffi::OsStr::from_bytes(&argument.as_bytes()[index..]).to_owned()
}

/// Returns whether a text is a valid value of `VERBS_SOFT`. No command has such a name.
fn is_list(text: &str) -> bool {
    let is_address = |element: &str| {
        let address = element.trim().split_once('%').map_or(element.trim(), |(address, _)| address);
        address == "auto" || address.parse::<IpAddr>().is_ok()
    };
    text.split(',').all(is_address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Action, Misuse> {
        parse(line.split_ascii_whitespace().map(OsString::from))
    }

    fn run(line: &str) -> Options {
        match parsed(line) {
            Ok(Action::Run(options)) => options,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn options_end_at_the_command() {
        let options = run("--scan a --scan=b --libraries c --no-namespace prog --soft --help -x");
        assert_eq!(options.scan, [PathBuf::from("a"), PathBuf::from("b")]);
        assert_eq!(options.libraries.as_deref(), Some(std::path::Path::new("c")));
        assert!(options.no_namespace && options.soft.is_none());
        assert_eq!(options.command, ["prog", "--soft", "--help", "-x"]);
        assert_eq!(run("-- --soft x").command, ["--soft", "x"]);
    }

    #[test]
    fn soft_takes_addresses_and_leaves_a_command_alone() {
        let soft = |line: &str| {
            let options = run(line);
            (options.soft.unwrap_or_default(), options.command.join(" ".as_ref()).into_string().unwrap())
        };
        let pair = |soft: &str, command: &str| (soft.to_owned(), command.to_owned());
        assert_eq!(soft("--soft ib_write_bw -d soft0"), pair("", "ib_write_bw -d soft0"));
        assert_eq!(soft("--soft auto prog"), pair("auto", "prog"));
        assert_eq!(soft("--soft 10.0.0.1,fe80::1%eth0 prog"), pair("10.0.0.1,fe80::1%eth0", "prog"));
        assert_eq!(soft("--soft=auto,10.0.0.1 prog"), pair("auto,10.0.0.1", "prog"));
        assert_eq!(parsed("--soft=eth0 prog"), Err(Misuse::Addresses("eth0".into())));
        assert_eq!(parsed("--soft= prog"), Err(Misuse::Addresses(String::new())));
        assert_eq!(parsed("--no-soft --soft prog"), Err(Misuse::SoftAndNoSoft));
    }

    #[test]
    fn mistakes_are_named() {
        assert_eq!(parsed("--hard true"), Err(Misuse::Unknown("--hard".into())));
        assert_eq!(parsed("--check=1"), Err(Misuse::Unknown("--check=1".into())));
        assert_eq!(parsed("--scan"), Err(Misuse::NoValue("--scan")));
        assert_eq!(parsed("--libraries= true"), Err(Misuse::NoValue("--libraries")));
        assert_eq!(parsed(""), Err(Misuse::NoCommand));
        assert_eq!(parsed("--"), Err(Misuse::NoCommand));
        assert_eq!(parsed("-h"), Ok(Action::Help));
        assert!(run("--check").is_check);
    }

    #[test]
    fn the_help_begins_with_the_usage_and_names_every_option() {
        assert!(HELP.starts_with(USAGE));
        for option in ["--soft", "--no-soft", "--scan", "--libraries", "--no-namespace", "--check"] {
            assert!(HELP.contains(&format!("\n  {option}")), "{option}");
        }
        assert!(HELP.lines().all(|line| line.len() <= 100));
    }
}
