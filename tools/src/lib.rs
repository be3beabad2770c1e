//! rdma-core's programs, with the same flags, output, exit codes and messages.
//!
//! - For devices: `ibv_asyncwatch`, `ibv_devices`, `ibv_devinfo`, `ibv_rc_pingpong`,
//!   `ibv_srq_pingpong`, `ibv_uc_pingpong`, `ibv_ud_pingpong` and `ibv_xsrq_pingpong`.
//! - For connections by address: `cmtime`, `mckey`, `rdma_client`, `rdma_server`, `rdma_xclient`,
//!   `rdma_xserver`, `rping`, `ucmatose` and `udaddy`.
//!
//! `verbs-run` has no counterpart in rdma-core. It runs another program on our `libibverbs.so.1`.
//!
//! From top to bottom; a file imports only files below it:
//!
//! | file | content |
//! |---|---|
//! | [`verbs_run`] | `verbs-run` |
//! | [`asyncwatch`] | `ibv_asyncwatch` |
//! | [`devinfo`] | `ibv_devinfo` |
//! | [`devices`] | `ibv_devices` |
//! | [`rping`] | `rping` |
//! | [`cmtime`] | `cmtime` |
//! | [`cmatose`] | `ucmatose`, `udaddy` and `mckey` |
//! | [`pingpong`] | the five ping-pongs |
//! | [`cm`] | `rdma_client`, `rdma_server`, `rdma_xclient`, `rdma_xserver`; shared parts |
//! | [`ctext`] | numbers and addresses, parsed and printed like the C library |
//! | [`console`] | standard output and standard error, in order |
//! | [`getopt`] | command lines, parsed like GNU `getopt_long(3)` |
//!
//! A new tool needs a module here, a file in `src/bin/`, and its name in
//! `verbs_harness::tools::PROGRAMS`. Tests then report every other place where it is missing.
//!
//! Invariant: the programs print the same bytes as the newest rdma-core, except for output that
//! depends on the run. The reason for a failure, which rdma-core does not print, follows on
//! standard error. It is on a separate line that begins with the program's name. `--json` and
//! `--verify` are the only additional options. Only their full names are accepted, and the usage
//! text omits them, so that misuse prints the same text.
//!
//! Numbers on command lines are parsed with `strtol(3)` and similar functions, as in rdma-core's
//! programs: `-n abc` is 0, and `-s 99999999999999` keeps its low 32 bits. The ping-pongs report
//! this on standard error.

pub mod asyncwatch;
pub mod cm;
pub mod cmatose;
pub mod cmtime;
pub mod console;
pub mod ctext;
pub mod devices;
pub mod devinfo;
pub mod getopt;
pub mod pingpong;
pub mod rping;
pub mod verbs_run;

/// The program without a counterpart in rdma-core.
pub const LAUNCHER: &str = "verbs-run";
