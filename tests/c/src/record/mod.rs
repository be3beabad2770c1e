//! A program's uverbs commands, recorded and compared.
//!
//! | file | content |
//! |---|---|
//! | [`tracer`] | runs a program and records its calls from outside |
//! | [`schema`] | names of objects, methods, attributes and fields, from the kernel's headers |
//! | [`decode`] | decodes a call into a command with named fields |
//! | [`normal`] | commands in a form that does not depend on the run |
//! | [`compare`] | the differences between two runs, and the table that explains them |
//!
//! A program marks its steps by writing `step NAME` to file descriptor -1. The write fails, but the
//! tracer sees it.

pub mod compare;
pub mod decode;
pub mod normal;
pub mod schema;
pub mod tracer;

use uverbs_abi::rdma_user_ioctl_cmds::{IbUverbsAttr, IbUverbsIoctlHdr};
use verbs_harness::process::Finished;

/// A program's result and its calls, in order.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The exit status and the output.
    pub finished: Finished,
    /// The program's recorded calls, in order.
    pub calls: Vec<Call>,
}

/// A call of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// The beginning of a step.
    Step(String),
    /// `ioctl(RDMA_VERBS_IOCTL)`.
    Ioctl(Ioctl),
    /// `write()` to a uverbs device.
    Write(Write),
    /// `mmap()` of a uverbs device.
    Map(Map),
}

/// An ioctl on a uverbs device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ioctl {
    /// The header's address in the program.
    pub at: u64,
    /// The header of the ioctl.
    pub header: IbUverbsIoctlHdr,
    /// The attributes.
    pub attrs: Vec<RawAttr>,
    /// The call's result, or a negative errno.
    pub result: i64,
}

/// An attribute, before and after the call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawAttr {
    /// The attribute before the call.
    pub head: IbUverbsAttr,
    /// The attribute after the call.
    pub after: IbUverbsAttr,
    /// The bytes that the attribute points to, before the call; empty without a pointer.
    pub input: Vec<u8>,
    /// The bytes that the attribute points to, after the call; empty without a pointer.
    pub output: Vec<u8>,
}

/// A command written to a uverbs device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The command's number and flags.
    pub command: u32,
    /// All bytes, including the headers.
    pub bytes: Vec<u8>,
    /// The call's result, or a negative errno.
    pub result: i64,
}

/// A mapping of a device file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    /// The length of the mapping, in bytes.
    pub length: u64,
    /// `PROT_*` bits.
    pub protection: u64,
    /// `MAP_*` bits.
    pub flags: u64,
    /// The offset passed to `mmap`, in bytes.
    pub offset: u64,
    /// The address of the mapping, or a negative errno.
    pub result: i64,
}
