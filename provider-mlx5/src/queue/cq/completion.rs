//! [`Completion`]: an entry of the ring together with its request, borrowed from the poller.
//!
//! # References
//! `ibv_poll_cq(3)`, `ibv_create_cq_ex(3)`; rdma-core `providers/mlx5/cq.c`

use core::fmt;
use std::sync::Arc;

use verbs_core::provider::Completion as CompletionOps;
use verbs_core::types::{CqWcFlags, Wc, WcFlags, WcOpcode, WcStatus, WcTmInfo};

use super::cqe::{Cqe, cqe_opcode};
use crate::device::{Device, clock};
use crate::queue::record::Kind;

/// The optional fields of a queue's completions.
#[derive(Debug, Default)]
pub(crate) struct Optional {
    pub(crate) fields: CqWcFlags,
    /// The device whose clock converts times.
    pub(crate) device: Option<Arc<Device>>,
    /// Whether the device writes system times into completions.
    pub(crate) is_real_time: bool,
}

/// A completion, borrowed from the poller.
#[derive(Clone, Copy)]
pub struct Completion<'a> {
    cqe: Cqe<'a>,
    wr_id: u64,
    status: WcStatus,
    kind: Kind,
    optional: Option<&'a Optional>,
}

impl<'a> Completion<'a> {
    pub(super) const fn new(cqe: Cqe<'a>, wr_id: u64, status: WcStatus, kind: Kind) -> Self {
        Self { cqe, wr_id, status, kind, optional: None }
    }

    /// Returns the completion with the optional fields of its queue.
    #[inline(always)]
    pub(super) const fn with_optional(self, optional: &'a Optional) -> Self {
        Self { optional: Some(optional), ..self }
    }

    /// Returns the optional fields, if `field` is among them.
    fn optional(&self, field: CqWcFlags) -> Option<&'a Optional> {
        self.optional.filter(|optional| optional.fields.contains(field))
    }

    /// Writes a successful tag matching completion to `wc`.
    #[cold]
    fn write_of_tag(&self, wc: &mut Wc) {
        *wc = Wc {
            wr_id: self.wr_id,
            opcode: self.opcode(),
            byte_len: self.byte_len(),
            imm_data: self.imm_data(),
            qp_num: self.qp_num(),
            wc_flags: self.wc_flags(),
            ..Wc::default()
        };
    }

    /// Returns whether the completion belongs to a receive.
    #[inline(always)]
    fn is_receive(&self) -> bool {
        (cqe_opcode::RESP_WR_IMM..=cqe_opcode::RESP_SEND_INV).contains(&(self.cqe.op_own() >> 4))
    }
}

impl CompletionOps for Completion<'_> {
    #[inline(always)]
    fn wr_id(&self) -> u64 {
        self.wr_id
    }

    #[inline(always)]
    fn status(&self) -> WcStatus {
        self.status
    }

    #[inline(always)]
    fn opcode(&self) -> WcOpcode {
        match self.cqe.op_own() >> 4 {
            cqe_opcode::REQ => self.cqe.sent_opcode(self.kind),
            cqe_opcode::REQ_ERR => WcOpcode::SEND,
            _ if self.kind.is_of_tag() => self.cqe.tag_opcode(),
            opcode => Cqe::received_opcode(opcode),
        }
    }

    #[inline(always)]
    fn vendor_err(&self) -> u32 {
        let has_none = self.status == WcStatus::SUCCESS || self.kind.is_of_tag();
        if has_none { 0 } else { self.cqe.vendor_syndrome().into() }
    }

    #[inline(always)]
    fn byte_len(&self) -> u32 {
        if !self.kind.has_more() {
            return 0;
        }
        match self.cqe.op_own() >> 4 {
            cqe_opcode::REQ => self.cqe.sent_len(self.kind),
            _ if self.is_receive() => self.cqe.byte_cnt(),
            _ => 0,
        }
    }

    #[inline(always)]
    fn imm_data(&self) -> u32 {
        if self.is_receive() { self.cqe.received_imm(self.cqe.op_own() >> 4) } else { 0 }
    }

    #[inline(always)]
    fn qp_num(&self) -> u32 {
        self.cqe.qp_num()
    }

    #[inline(always)]
    fn src_qp(&self) -> u32 {
        if self.is_receive() { self.cqe.flags_rqpn() & 0xff_ffff } else { 0 }
    }

    #[inline(always)]
    fn wc_flags(&self) -> WcFlags {
        if self.kind.is_of_tag() {
            self.cqe.tag_flags(self.kind)
        } else if self.is_receive() {
            self.cqe.received_flags(self.cqe.op_own() >> 4, self.kind)
        } else {
            WcFlags::empty()
        }
    }

    #[inline(always)]
    fn pkey_index(&self) -> u16 {
        if self.is_receive() { self.cqe.imm_inval_pkey() as u16 } else { 0 }
    }

    #[inline(always)]
    fn slid(&self) -> u16 {
        if self.is_receive() { self.cqe.slid() } else { 0 }
    }

    #[inline(always)]
    fn sl(&self) -> u8 {
        if self.is_receive() { (self.cqe.flags_rqpn() >> 24 & 0xf) as u8 } else { 0 }
    }

    #[inline(always)]
    fn dlid_path_bits(&self) -> u8 {
        if self.is_receive() { self.cqe.ml_path() & 0x7f } else { 0 }
    }

    fn completion_ts(&self) -> Option<u64> {
        self.optional(CqWcFlags::COMPLETION_TIMESTAMP)?;
        Some(self.cqe.timestamp())
    }

    fn completion_wallclock_ns(&self) -> Option<u64> {
        let optional = self.optional(CqWcFlags::COMPLETION_TIMESTAMP_WALLCLOCK)?;
        let timestamp = self.cqe.timestamp();
        if optional.is_real_time {
            return Some(clock::real_time(timestamp));
        }
        optional.device.as_ref()?.clock.wall_clock(timestamp)
    }

    fn cvlan(&self) -> Option<u16> {
        self.optional(CqWcFlags::CVLAN)?;
        Some(self.cqe.vlan_info())
    }

    fn flow_tag(&self) -> Option<u32> {
        self.optional(CqWcFlags::FLOW_TAG)?;
        Some(self.cqe.flow_tag())
    }

    fn tm_info(&self) -> Option<WcTmInfo> {
        self.optional(CqWcFlags::TM_INFO)?;
        if self.kind.is_of_tag() { self.cqe.tm_info() } else { None }
    }

    /// Writes the same values as the field readers, but tests the entry's kind only once.
    #[inline(always)]
    fn write_to(&self, wc: &mut Wc) {
        if self.status != WcStatus::SUCCESS {
            let (wr_id, status, qp_num) = (self.wr_id, self.status, self.cqe.qp_num());
            *wc = Wc { wr_id, status, qp_num, ..Wc::default() };
            wc.vendor_err = self.vendor_err();
            wc.opcode = self.opcode();
        } else if self.kind.is_of_tag() {
            self.write_of_tag(wc);
        } else if self.is_receive() {
            self.cqe.write_received(self.cqe.op_own() >> 4, self.wr_id, self.kind, wc);
        } else {
            self.cqe.write_sent(self.wr_id, self.kind, wc);
        }
    }
}

impl fmt::Debug for Completion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut wc = Wc::default();
        self.write_to(&mut wc);
        wc.fmt(f)
    }
}
