//! The only table of options: name, letter, supporting programs and usage text.
//!
//! An option whose text differs between programs has a row for each text. The rows follow the order
//! of the C program's usage texts and tables. This order shows in GNU's message about an ambiguous
//! abbreviation.

use std::fmt;

use super::program::Program::{self, Rc, Srq, Uc, Ud, Xsrq};
use crate::getopt::{Long, Spec};

/// A table row: the option, its programs and its lines of the usage text.
struct Row(Long, &'static [Program], &'static str);

/// The internal letter of `--verify`, which has no short option.
pub(super) const VERIFY: u8 = b'V';

const ALL: &[Program] = &[Rc, Uc, Ud, Srq, Xsrq];
const BUT_XSRQ: &[Program] = &[Rc, Uc, Ud, Srq];

// The mix of tabs and blanks is the same as in C.
const ROWS: &[Row] = &[
    Row(
        Long::value("port", b'p'),
        ALL,
        "  -p, --port=<port>      listen on/connect to port <port> (default 18515)\n",
    ),
    Row(
        Long::value("ib-dev", b'd'),
        ALL,
        "  -d, --ib-dev=<dev>     use IB device <dev> (default first device found)\n",
    ),
    Row(
        Long::value("ib-port", b'i'),
        ALL,
        "  -i, --ib-port=<port>   use port <port> of IB device (default 1)\n",
    ),
    Row(
        Long::value("size", b's'),
        &[Rc, Uc, Srq, Xsrq],
        "  -s, --size=<size>      size of message to exchange (default 4096)\n",
    ),
    Row(
        Long::value("size", b's'),
        &[Ud],
        "  -s, --size=<size>      size of message to exchange (default 2048)\n",
    ),
    Row(Long::value("mtu", b'm'), &[Rc, Uc, Srq, Xsrq], "  -m, --mtu=<size>       path MTU (default 1024)\n"),
    Row(Long::value("num-qp", b'q'), &[Srq], "  -q, --num-qp=<num>     number of QPs to use (default 16)\n"),
    Row(
        Long::value("clients", b'c'),
        &[Xsrq],
        "  -c, --clients=<n>      number of clients (on server only, default 1)\n",
    ),
    Row(
        Long::value("num_tests", b'n'),
        &[Xsrq],
        "  -n, --num_tests=<n>    number of tests per client (default 5)\n",
    ),
    Row(
        Long::value("rx-depth", b'r'),
        BUT_XSRQ,
        "  -r, --rx-depth=<dep>   number of receives to post at a time (default 500)\n",
    ),
    Row(
        Long::value("iters", b'n'),
        &[Rc, Uc, Ud],
        "  -n, --iters=<iters>    number of exchanges (default 1000)\n",
    ),
    Row(
        Long::value("iters", b'n'),
        &[Srq],
        "  -n, --iters=<iters>    number of exchanges per QP(default 1000)\n",
    ),
    Row(Long::value("sl", b'l'), &[Rc, Uc, Srq, Xsrq], "  -l, --sl=<sl>          service level value\n"),
    Row(
        Long::value("sl", b'l'),
        &[Ud],
        "  -l, --sl=<SL>          send messages with service level <SL> (default 0)\n",
    ),
    Row(Long::flag("events", b'e'), ALL, "  -e, --events           sleep on CQ events (default poll)\n"),
    Row(Long::flag("odp", b'o'), &[Xsrq], "  -o, --odp\t\t    use on demand paging\n"),
    Row(Long::value("gid-idx", b'g'), ALL, "  -g, --gid-idx=<gid index> local port gid index\n"),
    Row(Long::flag("odp", b'o'), &[Rc, Srq], "  -o, --odp\t\t    use on demand paging\n"),
    Row(Long::flag("iodp", b'O'), &[Rc], "  -O, --iodp\t\t    use implicit on demand paging\n"),
    Row(Long::flag("prefetch", b'P'), &[Rc], "  -P, --prefetch\t    prefetch an ODP MR\n"),
    Row(Long::flag("ts", b't'), &[Rc], "  -t, --ts\t            get CQE with timestamp\n"),
    Row(Long::flag("chk", b'c'), &[Rc], "  -c, --chk\t            validate received buffer\n"),
    Row(Long::flag("chk", b'c'), &[Uc, Ud, Srq], "  -c, --chk              validate received buffer\n"),
    Row(Long::flag("dm", b'j'), &[Rc], "  -j, --dm\t            use device memory\n"),
    Row(Long::flag("new_send", b'N'), &[Rc], "  -N, --new_send            use new post send WR API\n"),
    Row(
        Long::flag("allow-cc-unprotected", b'U'),
        &[Rc],
        "  -U, --allow-cc-unprotected  allow allocation of unprotected/shared
                            memory on CoCo guests\n",
    ),
    Row(Long::extension("verify", VERIFY), &[Rc, Uc, Ud], ""),
];

impl Program {
    fn rows(self) -> impl Iterator<Item = &'static Row> {
        ROWS.iter().filter(move |Row(_, programs, _)| programs.contains(&self))
    }

    /// Returns the options of the C program, plus `--verify` if each message can be different.
    pub fn spec(self) -> Spec {
        Spec::from_long(self.rows().map(|Row(option, ..)| *option))
    }
}

/// The usage text of a program that was started under the given name.
pub(super) struct Usage<'a> {
    pub(super) program: Program,
    pub(super) name: &'a str,
}

impl fmt::Display for Usage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { program, name } = *self;
        writeln!(f, "Usage:")?;
        writeln!(f, "  {name}            start a server and wait for connection")?;
        writeln!(f, "  {name} <host>     connect to server at <host>")?;
        writeln!(f, "\nOptions:")?;
        program.rows().try_for_each(|Row(.., text)| f.write_str(text))
    }
}
