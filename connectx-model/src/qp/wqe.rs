//! Decodes the segments of a work request into an operation for the engine.
//!
//! ```text
//! ctrl ─┬─ (XRC) shared receive queue ─┐
//!       └─ (UD) address vector ────────┴─ (RDMA) remote address ─ (atomic) operands ─ data …
//! data: inline bytes, elements of memory keys, or one inline segment in front of elements
//! ```
//! There are two kinds of [`Mistake`]. With a rule, the mistake is something a provider must never
//! write. Without one, a program can request it from a correct provider, and hardware completes it
//! with an error.
//!
//! # References
//! PRM, "send WQE construction"; rdma-core `providers/mlx5/mlx5dv.h`; UCX
//! `src/uct/ib/mlx5/rc/rc_mlx5.inl` (headers inline in front of elements)

use roce::engine::{Payload, SendFlags, SendOp, Sge, Status};

use super::matching::ListChange;
use super::umr::Umr;
use super::{Service, udav};
use crate::complaint::Rule;
use crate::layout::wqe::{atomic, ctrl, data, inline, remote_address, xrc};
use crate::port::Port;

/// Opcodes of work requests.
pub(crate) mod opcode {
    pub(crate) const NOP: u8 = 0x00;
    pub(crate) const SEND_INVAL: u8 = 0x01;
    pub(crate) const WRITE: u8 = 0x08;
    pub(crate) const WRITE_IMM: u8 = 0x09;
    pub(crate) const SEND: u8 = 0x0a;
    pub(crate) const SEND_IMM: u8 = 0x0b;
    pub(crate) const READ: u8 = 0x10;
    pub(crate) const COMPARE_SWAP: u8 = 0x11;
    pub(crate) const FETCH_ADD: u8 = 0x12;
    pub(crate) const UMR: u8 = 0x25;
    pub(crate) const TAG_MATCHING: u8 = 0x28;
}

/// Completion modes: only after errors, or always.
///
/// # References
/// rdma-core `mlx5dv.h` (`MLX5_WQE_CTRL_CQ_UPDATE`); Linux `include/linux/mlx5/qp.h`
pub(crate) const COMPLETE_ERRORS: u64 = 0;
pub(crate) const COMPLETE_ALWAYS: u64 = 2;

/// Control segment, the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ctrl {
    pub(crate) index: u16,
    pub(crate) opcode: u8,
    pub(crate) qpn: u32,
    /// Length of the work request in units of 16 bytes.
    pub(crate) ds: usize,
    pub(crate) signaled: bool,
    pub(crate) imm: u32,
    fence: u32,
    solicited: bool,
}

/// A valid work request.
#[derive(Debug)]
pub(crate) enum Work {
    /// Executed by the engine.
    Send { op: SendOp, flags: SendFlags, bytes: Bytes, remote_srq: u32 },
    /// Executed by the model.
    Local(Local),
}

/// Work request not implemented in the engine.
#[derive(Debug)]
pub(crate) enum Local {
    /// Only completes.
    Nop,
    /// Changes a memory key.
    Umr(Umr),
    /// Changes a matching list.
    List(ListChange),
    /// Ends with an error.
    Fail(Status),
    /// Ends with an injected error.
    Forced { syndrome: u8, vendor: u8 },
}

/// Local bytes of a work request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Bytes {
    Elements {
        /// Inline bytes in front of the elements.
        before: Vec<u8>,
        sges: Vec<Sge>,
    },
    Inline(Vec<u8>),
}

impl Bytes {
    /// Returns elements without bytes in front of them.
    pub(crate) fn elements(sges: Vec<Sge>) -> Self {
        Self::Elements { before: Vec::new(), sges }
    }

    /// Returns the engine's form. Bytes in front of elements are omitted: the caller makes them an
    /// element.
    pub(crate) fn payload(&self) -> Payload<'_> {
        match self {
            Self::Elements { sges, .. } => Payload::Sges(sges),
            Self::Inline(bytes) => Payload::Inline(bytes),
        }
    }
}

/// Reason why a work request cannot execute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mistake {
    /// Status of the completion.
    pub(crate) status: Status,
    /// The broken rule and the violation; `None` if a correct provider may post the work request on
    /// a program's behalf.
    pub(crate) complaint: Option<(Rule, String)>,
}

impl Mistake {
    /// Returns a mistake of the provider.
    pub(crate) fn new(rule: Rule, what: impl Into<String>) -> Self {
        Self { status: Status::LocalQpOperation, complaint: Some((rule, what.into())) }
    }

    /// Returns a mistake of the program.
    pub(crate) fn program(status: Status) -> Self {
        Self { status, complaint: None }
    }
}

impl Ctrl {
    /// Parses the first 16 bytes.
    ///
    /// # Errors
    /// An undefined bit is set, so no other field can be trusted.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Mistake> {
        if let Some((offset, bits)) = ctrl::TABLE.reserved(bytes) {
            return Err(Mistake::new(
                Rule::WqeReserved,
                format!("bits {bits:#x} of control dword {offset:#x}"),
            ));
        }
        let stream = ctrl::DCI_STREAM.get(bytes);
        if ctrl::OPMOD.is_set(bytes) || stream != 0 {
            let what = format!("operation modifier {:#x}, stream {stream:#x}", ctrl::OPMOD.get(bytes));
            return Err(Mistake::new(Rule::WqeReserved, what));
        }
        // Small fence, fence, strong ordering, small fence and fence.
        let fence = ctrl::FM.get32(bytes);
        if fence > 4 {
            return Err(Mistake::new(Rule::WqeFence, format!("fence mode {fence}")));
        }
        let completion = ctrl::CE.get(bytes);
        if !matches!(completion, COMPLETE_ERRORS | COMPLETE_ALWAYS) {
            return Err(Mistake::new(Rule::WqeCompletionMode, format!("completion mode {completion}")));
        }
        Ok(Self {
            index: ctrl::WQE_INDEX.get(bytes) as u16,
            opcode: ctrl::OPCODE.get(bytes) as u8,
            qpn: ctrl::QPN.get32(bytes),
            ds: ctrl::DS.get32(bytes) as usize,
            signaled: completion == COMPLETE_ALWAYS,
            imm: ctrl::IMM.get32(bytes),
            fence,
            solicited: ctrl::SE.is_set(bytes),
        })
    }
}

/// Returns whether the checksum of a work request is correct: the exclusive or of all its bytes is
/// 0xff.
pub(crate) fn signature_is_right(bytes: &[u8]) -> bool {
    bytes.iter().fold(0, |sum, byte| sum ^ byte) == 0xff
}

/// Decodes a work request of `ds * 16` bytes.
///
/// # Errors
/// The work request cannot execute.
pub(crate) fn decode(service: Service, port: &Port, ctrl: &Ctrl, bytes: &[u8]) -> Result<Work, Mistake> {
    let mut rest = Segments { rest: bytes.get(16..).unwrap_or_default() };
    match ctrl.opcode {
        opcode::NOP => return Ok(Work::Local(Local::Nop)),
        opcode::UMR => {
            return if matches!(service, Service::Ud | Service::Qp0 | Service::Qp1 | Service::XrcTarget) {
                Err(Mistake::program(Status::LocalQpOperation))
            } else {
                super::umr::decode(service, ctrl, rest.rest)
            };
        }
        opcode::TAG_MATCHING => {
            return super::matching::decode(bytes).map(|change| Work::Local(Local::List(change)));
        }
        _ => {}
    }
    if !is_known(ctrl.opcode) {
        return Err(Mistake::new(Rule::WqeOpcode, format!("opcode {:#x}", ctrl.opcode)));
    }
    if !is_offered(service, ctrl.opcode) {
        return Err(Mistake::program(Status::LocalQpOperation));
    }
    let remote_srq = if service == Service::XrcInitiator {
        let segment = rest.take(xrc::SIZE)?;
        if segment[0] != 0 {
            return Err(Mistake::new(Rule::WqeReserved, "upper bits of a shared receive queue's number"));
        }
        xrc::SRQN.get32(segment)
    } else {
        0
    };
    let op = match service {
        Service::Ud | Service::Qp0 | Service::Qp1 => {
            let to = udav::destination(port, rest.take(udav::SIZE)?)?;
            SendOp::Datagram { to, imm: (ctrl.opcode == opcode::SEND_IMM).then_some(ctrl.imm) }
        }
        _ => operation(ctrl, &mut rest)?,
    };
    let bytes = rest.bytes()?;
    let is_atomic = matches!(op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. });
    match &bytes {
        // A program may request these.
        Bytes::Elements { before, .. }
            if !before.is_empty() && (is_atomic || matches!(op, SendOp::Read { .. })) =>
        {
            return Err(Mistake::program(Status::LocalQpOperation));
        }
        Bytes::Inline(_) if is_atomic || matches!(op, SendOp::Read { .. }) => {
            return Err(Mistake::program(Status::LocalQpOperation));
        }
        Bytes::Elements { sges, .. } if is_atomic => {
            let length: u64 = sges.iter().map(|sge| u64::from(sge.length)).sum();
            if length != 8 {
                return Err(Mistake::new(Rule::WqeAtomic, format!("the result has {length} bytes")));
            }
        }
        _ => {}
    }
    if let SendOp::CompareSwap { addr, .. } | SendOp::FetchAdd { addr, .. } = op
        && addr % 8 != 0
    {
        // The peer would give this response.
        return Err(Mistake::program(Status::RemoteInvalidRequest));
    }
    let flags =
        SendFlags { signaled: ctrl.signaled, solicited: ctrl.solicited, fence: matches!(ctrl.fence, 2..=4) };
    Ok(Work::Send { op, flags, bytes, remote_srq })
}

fn is_known(opcode: u8) -> bool {
    use opcode::*;
    matches!(opcode, SEND_INVAL | WRITE | WRITE_IMM | SEND | SEND_IMM | READ | COMPARE_SWAP | FETCH_ADD)
}

/// Returns whether a service has an operation, by IBTA table 37.
fn is_offered(service: Service, opcode: u8) -> bool {
    use opcode::*;
    match service {
        Service::Rc | Service::XrcInitiator => true,
        Service::Uc => matches!(opcode, WRITE | WRITE_IMM | SEND | SEND_IMM),
        Service::Ud | Service::Qp0 | Service::Qp1 => matches!(opcode, SEND | SEND_IMM),
        Service::XrcTarget | Service::RegUmr => false,
    }
}

/// Returns the operation of a connected queue pair's work request.
fn operation(ctrl: &Ctrl, rest: &mut Segments<'_>) -> Result<SendOp, Mistake> {
    match ctrl.opcode {
        opcode::SEND => return Ok(SendOp::Send { imm: None }),
        opcode::SEND_IMM => return Ok(SendOp::Send { imm: Some(ctrl.imm) }),
        opcode::SEND_INVAL => return Ok(SendOp::SendInvalidate { rkey: ctrl.imm }),
        _ => {}
    }
    let segment = rest.take(remote_address::SIZE)?;
    if let Some((_, bits)) = remote_address::TABLE.reserved(segment) {
        return Err(Mistake::new(Rule::WqeReserved, format!("bits {bits:#x} after a remote key")));
    }
    let (addr, rkey) = (remote_address::VA.get(segment), remote_address::RKEY.get32(segment));
    Ok(match ctrl.opcode {
        opcode::WRITE => SendOp::Write { addr, rkey, imm: None },
        opcode::WRITE_IMM => SendOp::Write { addr, rkey, imm: Some(ctrl.imm) },
        opcode::READ => SendOp::Read { addr, rkey },
        _ => {
            let operands = rest.take(atomic::SIZE)?;
            let swap_add = atomic::SWAP_ADD.get(operands);
            if ctrl.opcode == opcode::FETCH_ADD {
                // In this case nothing writes the word to compare: it may hold bytes of an older
                // work request.
                SendOp::FetchAdd { addr, rkey, add: swap_add }
            } else {
                SendOp::CompareSwap { addr, rkey, compare: atomic::COMPARE.get(operands), swap: swap_add }
            }
        }
    })
}

/// The segments not decoded so far.
struct Segments<'a> {
    rest: &'a [u8],
}

impl<'a> Segments<'a> {
    /// Returns the next segment, of this length.
    fn take(&mut self, len: usize) -> Result<&'a [u8], Mistake> {
        let (segment, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or_else(|| Mistake::new(Rule::WqeSize, format!("a segment of {len} bytes exceeds it")))?;
        self.rest = rest;
        Ok(segment)
    }

    /// Decodes the data segments: all remaining bytes.
    fn bytes(&mut self) -> Result<Bytes, Mistake> {
        let mut before = Vec::new();
        if self.rest.first().is_some_and(|byte| byte & 0x80 != 0) {
            before = self.inline()?;
            if self.rest.is_empty() {
                return Ok(Bytes::Inline(before));
            }
        }
        let mut elements = Vec::with_capacity(self.rest.len() / data::SIZE);
        while !self.rest.is_empty() {
            let segment = self.take(data::SIZE)?;
            if segment[0] & 0x80 != 0 {
                return Err(Mistake::new(Rule::WqeInline, "inline data behind other data"));
            }
            let length = data::BYTE_COUNT.get32(segment);
            if length == 0 {
                // The device would read this as 2 GiB.
                return Err(Mistake::new(Rule::WqeSize, "an element of length 0"));
            }
            elements.push(Sge { addr: data::ADDRESS.get(segment), length, lkey: data::LKEY.get32(segment) });
        }
        Ok(Bytes::Elements { before, sges: elements })
    }

    /// Decodes a segment of inline bytes.
    fn inline(&mut self) -> Result<Vec<u8>, Mistake> {
        // Bits 30 to 10 are not part of the length.
        if let Some((_, bits)) = inline::TABLE.reserved(self.rest) {
            return Err(Mistake::new(Rule::WqeInline, format!("bits {bits:#x} beside the length")));
        }
        let len = inline::BYTE_COUNT.get32(self.rest) as usize;
        let Some((segment, rest)) = self.rest.split_at_checked((inline::SIZE + len).next_multiple_of(16))
        else {
            let what = format!("{len} inline bytes in {} bytes of segments", self.rest.len());
            return Err(Mistake::new(Rule::WqeInline, what));
        };
        self.rest = rest;
        Ok(segment.get(inline::SIZE..inline::SIZE + len).unwrap_or_default().to_vec())
    }
}
