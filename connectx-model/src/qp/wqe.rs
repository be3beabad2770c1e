//! Decodes the segments of a work request into an operation for the engine.
//!
//! ```text
//! ctrl ─┬─ (XRC) shared receive queue ─┐
//!       └─ (UD) address vector ────────┴─ (RDMA) remote address ─ (atomic) operands ─ data …
//! data: inline bytes, elements of memory keys, or one inline segment in front of elements
//! ```
//! There are two kinds of [`Mistake`]. If a mistake names a rule, no provider may write such a work
//! request. If it names none, a program can make a correct provider write the work request, and
//! hardware completes it with an error.
//!
//! # References
//! PRM, "send WQE construction"; rdma-core `providers/mlx5/mlx5dv.h`; UCX
//! `src/uct/ib/mlx5/rc/rc_mlx5.inl` (headers inline in front of elements)

use roce::engine::{SendFlags, SendOp, Sge, Status};

use crate::complaint::Rule;
use crate::layout::wqe::{atomic, data, inline, remote_address, xrc};
use crate::port::Port;
use crate::qp::request::{Bytes, Ctrl, Mistake, Work, opcode};
use crate::qp::udav;
use crate::state::qp::Service;
use crate::state::work::Local;

/// Returns whether the checksum of a work request is correct: the exclusive OR of all bytes is
/// 0xff.
pub(crate) fn signature_is_right(bytes: &[u8]) -> bool {
    bytes.iter().fold(0, |sum, byte| sum ^ byte) == 0xff
}

/// Decodes a work request of `ds * 16` bytes.
///
/// # Errors
/// A [`Mistake`] if the work request cannot be executed.
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
        // A program may request inline data with these operations.
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
        // The peer would respond with this error.
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

/// Returns whether a service supports an operation, according to IBTA table 37.
fn is_offered(service: Service, opcode: u8) -> bool {
    use opcode::*;
    match service {
        Service::Rc | Service::XrcInitiator => true,
        Service::Uc => matches!(opcode, WRITE | WRITE_IMM | SEND | SEND_IMM),
        Service::Ud | Service::Qp0 | Service::Qp1 => matches!(opcode, SEND | SEND_IMM),
        Service::XrcTarget | Service::RegUmr => false,
    }
}

/// Decodes the operation of a work request on a connected queue pair.
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
                // A fetch-and-add does not use the compare operand, which may contain bytes of an
                // older work request.
                SendOp::FetchAdd { addr, rkey, add: swap_add }
            } else {
                SendOp::CompareSwap { addr, rkey, compare: atomic::COMPARE.get(operands), swap: swap_add }
            }
        }
    })
}

/// The segments that have not been decoded yet.
struct Segments<'a> {
    rest: &'a [u8],
}

impl<'a> Segments<'a> {
    /// Removes and returns the next `len` bytes.
    fn take(&mut self, len: usize) -> Result<&'a [u8], Mistake> {
        let (segment, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or_else(|| Mistake::new(Rule::WqeSize, format!("a segment of {len} bytes exceeds it")))?;
        self.rest = rest;
        Ok(segment)
    }

    /// Decodes the data segments, which take up all the remaining bytes.
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
                // The device would interpret this length as 2 GiB.
                return Err(Mistake::new(Rule::WqeSize, "an element of length 0"));
            }
            elements.push(Sge { addr: data::ADDRESS.get(segment), length, lkey: data::LKEY.get32(segment) });
        }
        Ok(Bytes::Elements { before, sges: elements })
    }

    /// Decodes an inline data segment.
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
