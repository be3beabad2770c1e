//! [`Work`]: a decoded work request. [`Ctrl`]: its control segment.

use roce::engine::Payload;
use roce::engine::SendFlags;
use roce::engine::SendOp;
use roce::engine::Sge;
use roce::engine::Status;

use crate::complaint::Rule;
use crate::layout::wqe::ctrl;
use crate::state::work::Local;

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

/// Completion modes of a work request: a completion only after errors, or always.
///
/// # References
/// rdma-core `mlx5dv.h` (`MLX5_WQE_CTRL_CQ_UPDATE`); Linux `include/linux/mlx5/qp.h`
pub(crate) const COMPLETE_ERRORS: u64 = 0;

pub(crate) const COMPLETE_ALWAYS: u64 = 2;

/// The control segment, which is the first segment of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ctrl {
    pub(crate) index: u16,
    pub(crate) opcode: u8,
    pub(crate) qpn: u32,
    /// Length of the work request, in units of 16 bytes.
    pub(crate) ds: usize,
    pub(crate) signaled: bool,
    pub(crate) imm: u32,
    pub(crate) fence: u32,
    pub(crate) solicited: bool,
}

/// A decoded work request that breaks no rule.
#[derive(Debug)]
pub(crate) enum Work {
    /// A work request that the engine executes.
    Send { op: SendOp, flags: SendFlags, bytes: Bytes, remote_srq: u32 },
    /// A work request that the model executes itself.
    Local(Local),
}

/// The local data of a work request.
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
    /// Returns elements without inline bytes in front of them.
    pub(crate) fn elements(sges: Vec<Sge>) -> Self {
        Self::Elements { before: Vec::new(), sges }
    }

    /// Converts the data to the engine's form. Inline bytes in front of elements are omitted: the
    /// caller must turn them into an element.
    pub(crate) fn payload(&self) -> Payload<'_> {
        match self {
            Self::Elements { sges, .. } => Payload::Sges(sges),
            Self::Inline(bytes) => Payload::Inline(bytes),
        }
    }
}

/// The reason why a work request cannot be executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mistake {
    /// The status to report in the completion.
    pub(crate) status: Status,
    /// The broken rule and the violation; `None` if a correct provider may post such a work request
    /// on a program's behalf.
    pub(crate) complaint: Option<(Rule, String)>,
}

impl Mistake {
    /// Returns a mistake made by the provider.
    pub(crate) fn new(rule: Rule, what: impl Into<String>) -> Self {
        Self { status: Status::LocalQpOperation, complaint: Some((rule, what.into())) }
    }

    /// Returns a mistake made by the program.
    pub(crate) fn program(status: Status) -> Self {
        Self { status, complaint: None }
    }
}

impl Ctrl {
    /// Decodes the control segment: the first 16 bytes of a work request.
    ///
    /// # Errors
    /// A [`Mistake`] if an undefined bit is set or a field has an undefined value.
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
        // The defined values are: 1 small fence, 2 fence, 3 strong ordering, 4 small fence and
        // fence.
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
