//! The commands that a program sends to uverbs, recorded and compared.
//!
//! | file | what it is |
//! |---|---|
//! | [`tracer`] | runs a program, and reads its calls from the outside |
//! | [`schema`] | names of objects, methods, attributes and fields, from the kernel's headers |
//! | [`decode`] | a call as a command with named fields |
//! | [`normal`] | commands whose numbers do not depend on the run |
//! | [`compare`] | the differences between two programs, and the table that explains them |
//!
//! A program marks its steps: it writes `step NAME` to the file -1, which fails, and which the
//! tracer sees.

pub mod compare;
pub mod decode;
pub mod normal;
pub mod schema;
pub mod tracer;

use uverbs_abi::rdma_user_ioctl_cmds::{IbUverbsAttr, IbUverbsIoctlHdr};

use crate::process::Finished;

/// A program's end, and its calls in order.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The end and the output.
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

/// An attribute, as it was sent and as it was after the call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawAttr {
    /// The attribute.
    pub head: IbUverbsAttr,
    /// The attribute after the call.
    pub after: IbUverbsAttr,
    /// The bytes that it pointed to; empty if it pointed to nothing.
    pub input: Vec<u8>,
    /// The same after the call.
    pub output: Vec<u8>,
}

/// A write command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Its number and flags.
    pub command: u32,
    /// All bytes, the headers included.
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
