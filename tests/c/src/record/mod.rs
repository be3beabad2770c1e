//! A program's commands to uverbs, recorded and compared.
//!
//! | file | content |
//! |---|---|
//! | [`tracer`] | runs a program, and reads its calls from outside |
//! | [`schema`] | names of objects, methods, attributes and fields, from the kernel's headers |
//! | [`decode`] | decodes a call into a command with named fields |
//! | [`normal`] | commands with numbers independent of the run |
//! | [`compare`] | the differences between two programs, and the table of their reasons |
//!
//! A program marks its steps by writing `step NAME` to the file descriptor -1. The write fails, but
//! the tracer sees it.

pub mod compare;
pub mod decode;
pub mod normal;
pub mod schema;
pub mod tracer;

use uverbs_abi::rdma_user_ioctl_cmds::{IbUverbsAttr, IbUverbsIoctlHdr};
use verbs_harness::process::Finished;

/// The end of a program and its calls in order.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The exit status and the output.
    pub finished: Finished,
    /// The calls.
    pub calls: Vec<Call>,
}

/// A call of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// The beginning of a step.
    Step(String),
    /// `ioctl(RDMA_VERBS_IOCTL)`.
    Ioctl(Ioctl),
    /// `write()` to an uverbs device.
    Write(Write),
    /// `mmap()` of an uverbs device.
    Map(Map),
}

/// An ioctl.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ioctl {
    /// Address of its header in the program.
    pub at: u64,
    /// The header.
    pub header: IbUverbsIoctlHdr,
    /// The attributes.
    pub attrs: Vec<RawAttr>,
    /// The call's result, negative for an errno.
    pub result: i64,
}

/// An attribute, before and after the call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawAttr {
    /// The attribute before the call.
    pub head: IbUverbsAttr,
    /// The attribute after the call.
    pub after: IbUverbsAttr,
    /// The bytes at its pointer before the call; empty without a pointer.
    pub input: Vec<u8>,
    /// The same bytes after the call.
    pub output: Vec<u8>,
}

/// A write command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Its number and flags.
    pub command: u32,
    /// All bytes, including the headers.
    pub bytes: Vec<u8>,
    /// The call's result, negative for an errno.
    pub result: i64,
}

/// A mapping of a device file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    /// Length in bytes.
    pub length: u64,
    /// `PROT_*` bits.
    pub protection: u64,
    /// `MAP_*` bits.
    pub flags: u64,
    /// Offset in bytes.
    pub offset: u64,
    /// The address, negative for an errno.
    pub result: i64,
}
