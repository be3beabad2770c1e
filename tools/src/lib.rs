//! `ibv_devices`, `ibv_devinfo` and `ibv_rc_pingpong`, with rdma-core's flags, output, exit codes and messages.
//!
//! | file | what it is |
//! |---|---|
//! | [`devices`] | `ibv_devices` |
//! | [`devinfo`] | `ibv_devinfo` |
//! | [`pingpong`] | `ibv_rc_pingpong` |
//! | [`getopt`] | command lines, as GNU `getopt_long(3)` reads them |
//! | [`ctext`] | numbers and addresses, as C's library reads and prints them |
//! | [`console`] | standard output and standard error, in order |
//!
//! A new tool takes a module here, a file in `src/bin/`, and its name in [`PROGRAMS`]; tests then name every place that lacks it.
//!
//! Invariant: what the programs print is what those of the newest rdma-core print, byte for byte where it does not depend
//! on the run. What rdma-core does not say, the reason of a failure, follows on standard error in a line of its own, which
//! begins with the program's name. `--json` is the one option that rdma-core does not have: it is found by its full name
//! alone and the usage text leaves it out, so that misuse reads the same.

pub mod console;
pub mod ctext;
pub mod devices;
pub mod devinfo;
pub mod getopt;
pub mod pingpong;

/// The names of the programs, in alphabetical order.
///
/// Every other list of them is made from this one or compared with it: `src/bin/`, the table above and the documents by
/// this crate's tests; the suites and the programs that the suites copy by `verbs-tests`.
pub const PROGRAMS: &[&str] = &["ibv_devices", "ibv_devinfo", "ibv_rc_pingpong"];
