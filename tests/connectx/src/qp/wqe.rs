//! What the segments of a work request mean: from bytes to what the engine is asked for.
//!
//! ```text
//! ctrl ─┬─ (XRC) shared receive queue ─┐
//!       └─ (UD) address vector ────────┴─ (write, read, atomic) remote address ─ (atomic) operands ─ data …
//! data: inline bytes, or elements of memory keys
//! ```
//! Two kinds of mistakes are told apart: what a provider may never write is a [`Mistake`] with a rule; what a program can ask
//! a correct provider for, and hardware answers with an error, is one without.
//!
//! # References
//! PRM, "send WQE construction"; rdma-core `providers/mlx5/mlx5dv.h`

use roce::engine::{Payload, SendFlags, SendOp, Sge, Status};

use super::umr::Umr;
use super::{Service, udav};
use crate::complaint::Rule;
use crate::layout::wqe::{atomic, ctrl, data, inline, remote_address, xrc};
use crate::port::Port;

/// Numbers of operations.
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
}

/// The first segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ctrl {
    pub(crate) index: u16,
    pub(crate) opcode: u8,
    pub(crate) qpn: u32,
    /// Units of 16 bytes that the work request has.
    pub(crate) ds: usize,
    pub(crate) signaled: bool,
    pub(crate) imm: u32,
    fence: u32,
    solicited: bool,
}

/// A work request that may be carried out.
#[derive(Debug)]
pub(crate) enum Work {
    /// By the engine.
    Send { op: SendOp, flags: SendFlags, bytes: Bytes, remote_srq: u32 },
    /// By the model.
    Local(Local),
}

/// What the engine does not have.
#[derive(Debug)]
pub(crate) enum Local {
    /// Nothing, but for its completion.
    Nop,
    /// A memory key is changed.
    Umr(Umr),
    /// It ends with an error.
    Fail(Status),
    /// It ends with an error that a test asked for.
    Forced { syndrome: u8, vendor: u8 },
}

/// The local bytes of a work request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Bytes {
    Elements(Vec<Sge>),
    Inline(Vec<u8>),
}

impl Bytes {
    pub(crate) fn payload(&self) -> Payload<'_> {
        match self {
            Self::Elements(sges) => Payload::Sges(sges),
            Self::Inline(bytes) => Payload::Inline(bytes),
        }
    }
}

/// Why a work request cannot be carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mistake {
    /// How it completes.
    pub(crate) status: Status,
    /// The rule that was broken, and how; none where a correct provider may have been asked for it.
    pub(crate) complaint: Option<(Rule, String)>,
}

impl Mistake {
    /// The provider's.
    pub(crate) fn of(rule: Rule, what: impl Into<String>) -> Self {
        Self { status: Status::LocalQpOperation, complaint: Some((rule, what.into())) }
    }

    /// The program's.
    pub(crate) fn program(status: Status) -> Self {
        Self { status, complaint: None }
    }
}

impl Ctrl {
    /// Of the first 16 bytes.
    ///
    /// # Errors
    /// Bits that are not defined, so that nothing else can be believed.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Mistake> {
        if let Some((offset, bits)) = ctrl::TABLE.reserved(bytes) {
            return Err(Mistake::of(
                Rule::WqeReserved,
                format!("bits {bits:#x} of control dword {offset:#x}"),
            ));
        }
        let stream = ctrl::DCI_STREAM.get(bytes);
        if ctrl::OPMOD.is_set(bytes) || stream != 0 {
            let what = format!("operation modifier {:#x}, stream {stream:#x}", ctrl::OPMOD.get(bytes));
            return Err(Mistake::of(Rule::WqeReserved, what));
        }
        // Small fence, fence, strong ordering, small fence and fence.
        let fence = ctrl::FM.get32(bytes);
        if fence > 4 {
            return Err(Mistake::of(Rule::WqeFence, format!("fence mode {fence}")));
        }
        let completion = ctrl::CE.get(bytes);
        if completion == 1 {
            return Err(Mistake::of(Rule::WqeReserved, "completion mode 1"));
        }
        Ok(Self {
            index: ctrl::WQE_INDEX.get(bytes) as u16,
            opcode: ctrl::OPCODE.get(bytes) as u8,
            qpn: ctrl::QPN.get32(bytes),
            ds: ctrl::DS.get32(bytes) as usize,
            signaled: completion >= 2,
            imm: ctrl::IMM.get32(bytes),
            fence,
            solicited: ctrl::SE.is_set(bytes),
        })
    }
}

/// Is the checksum of a work request right? All its bytes, this one among them, give ones.
pub(crate) fn signature_is_right(bytes: &[u8]) -> bool {
    bytes.iter().fold(0, |sum, byte| sum ^ byte) == 0xff
}

/// What a work request of `ds * 16` bytes asks for.
///
/// # Errors
/// It cannot be carried out.
pub(crate) fn decode(service: Service, port: &Port, ctrl: &Ctrl, bytes: &[u8]) -> Result<Work, Mistake> {
    let mut rest = Segments { rest: bytes.get(16..).unwrap_or_default() };
    match ctrl.opcode {
        opcode::NOP => return Ok(Work::Local(Local::Nop)),
        opcode::UMR => {
            return if matches!(service, Service::Ud | Service::Qp0 | Service::Qp1 | Service::XrcTarget) {
                Err(Mistake::program(Status::LocalQpOperation))
            } else {
                super::umr::decode(ctrl, rest.rest)
            };
        }
        _ => {}
    }
    if !is_known(ctrl.opcode) {
        return Err(Mistake::of(Rule::WqeOpcode, format!("opcode {:#x}", ctrl.opcode)));
    }
    if !is_offered(service, ctrl.opcode) {
        return Err(Mistake::program(Status::LocalQpOperation));
    }
    let remote_srq = if service == Service::XrcInitiator {
        let segment = rest.take(xrc::SIZE)?;
        if segment[0] != 0 {
            return Err(Mistake::of(Rule::WqeReserved, "the upper bits of a shared receive queue's number"));
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
        Bytes::Elements(sges) if is_atomic => {
            let length: u64 = sges.iter().map(|sge| u64::from(sge.length)).sum();
            if length != 8 {
                return Err(Mistake::of(Rule::WqeAtomic, format!("the result has {length} bytes")));
            }
        }
        // A program may have asked for it.
        Bytes::Inline(_) if is_atomic || matches!(op, SendOp::Read { .. }) => {
            return Err(Mistake::program(Status::LocalQpOperation));
        }
        _ => {}
    }
    if let SendOp::CompareSwap { addr, .. } | SendOp::FetchAdd { addr, .. } = op
        && addr % 8 != 0
    {
        // What the peer would say.
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

/// IBTA table 37.
fn is_offered(service: Service, opcode: u8) -> bool {
    use opcode::*;
    match service {
        Service::Rc | Service::XrcInitiator => true,
        Service::Uc => matches!(opcode, WRITE | WRITE_IMM | SEND | SEND_IMM),
        Service::Ud | Service::Qp0 | Service::Qp1 => matches!(opcode, SEND | SEND_IMM),
        Service::XrcTarget | Service::RegUmr => false,
    }
}

/// What a connected queue pair's work request does.
fn operation(ctrl: &Ctrl, rest: &mut Segments<'_>) -> Result<SendOp, Mistake> {
    match ctrl.opcode {
        opcode::SEND => return Ok(SendOp::Send { imm: None }),
        opcode::SEND_IMM => return Ok(SendOp::Send { imm: Some(ctrl.imm) }),
        opcode::SEND_INVAL => return Ok(SendOp::SendInvalidate { rkey: ctrl.imm }),
        _ => {}
    }
    let segment = rest.take(remote_address::SIZE)?;
    if let Some((_, bits)) = remote_address::TABLE.reserved(segment) {
        return Err(Mistake::of(Rule::WqeReserved, format!("bits {bits:#x} behind a remote key")));
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
                // The word to compare is not written then: what stands there is of another work request.
                SendOp::FetchAdd { addr, rkey, add: swap_add }
            } else {
                SendOp::CompareSwap { addr, rkey, compare: atomic::COMPARE.get(operands), swap: swap_add }
            }
        }
    })
}

/// The segments that were not looked at yet.
struct Segments<'a> {
    rest: &'a [u8],
}

impl<'a> Segments<'a> {
    /// The next segment, of so many bytes.
    fn take(&mut self, len: usize) -> Result<&'a [u8], Mistake> {
        let (segment, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or_else(|| Mistake::of(Rule::WqeSize, format!("a segment of {len} bytes does not fit it")))?;
        self.rest = rest;
        Ok(segment)
    }

    /// The data segments: everything that is left.
    fn bytes(&mut self) -> Result<Bytes, Mistake> {
        if self.rest.first().is_some_and(|byte| byte & 0x80 != 0) {
            return self.inline();
        }
        let mut elements = Vec::with_capacity(self.rest.len() / data::SIZE);
        while !self.rest.is_empty() {
            let segment = self.take(data::SIZE)?;
            if segment[0] & 0x80 != 0 {
                return Err(Mistake::of(Rule::WqeInline, "inline data behind an element"));
            }
            let length = data::BYTE_COUNT.get32(segment);
            if length == 0 {
                // It would be 2 GiB.
                return Err(Mistake::of(Rule::WqeSize, "an element of length 0"));
            }
            elements.push(Sge { addr: data::ADDRESS.get(segment), length, lkey: data::LKEY.get32(segment) });
        }
        Ok(Bytes::Elements(elements))
    }

    fn inline(&mut self) -> Result<Bytes, Mistake> {
        // Bits 30 to 10 are no length.
        if let Some((_, bits)) = inline::TABLE.reserved(self.rest) {
            return Err(Mistake::of(Rule::WqeInline, format!("bits {bits:#x} beside the length")));
        }
        let len = inline::BYTE_COUNT.get32(self.rest) as usize;
        let units = (inline::SIZE + len).div_ceil(16);
        if units * 16 != self.rest.len() {
            let what = format!("{len} inline bytes in {} bytes of segments", self.rest.len());
            return Err(Mistake::of(Rule::WqeInline, what));
        }
        let bytes = self.rest.get(inline::SIZE..inline::SIZE + len).unwrap_or_default().to_vec();
        self.rest = &[];
        Ok(Bytes::Inline(bytes))
    }
}
