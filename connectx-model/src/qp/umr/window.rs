//! Binding and unbinding memory windows: converts a UMR to an operation for the engine.
//!
//! ```text
//!                  mask                                             checks         list
//! bind,   type 1   key, free, length, start, rights                 -              one piece
//! bind,   type 2   key, free, length, start, rights, queue pair     must be free   one piece
//! unbind, type 1   key, free                                        -              -
//! unbind, type 2   key, free, queue pair                            queue pair     -
//! ```
//! If a bind's mask omitted one of the fields above, the field would keep its value from an older
//! bind, so the model rejects such a bind. Missing or additional checks are only reported, because
//! a device executes the request anyway. The list is one 64-byte unit, with the piece at offset 0.
//!
//! Invariant: a type 2 request on a type 1 window causes no complaint, because `ibv_wr_bind_mw` and
//! `IBV_WR_LOCAL_INV` write a type 2 request for every window.
//!
//! # References
//! rdma-core `set_umr_control_seg`, `set_umr_mkey_seg`, `set_umr_data_seg`

use roce::engine::{Access, MwType, SendFlags, SendOp, Status};

use crate::bus::Bus;
use crate::complaint::Rule;
use crate::function::Function;
use crate::layout::mkey::mkc;
use crate::layout::wqe::klm;
use crate::qp::request::{Bytes, Ctrl, Mistake, Work};
use crate::qp::umr::{ANY_QP, FREE, KEY, QPN};
use crate::state::mkey::{self, Kind};
use crate::state::work::{Check, List, Local, Umr};

/// The mask bits that every change of a window must have.
const ALWAYS: u64 = 1 << KEY | 1 << FREE;

/// The mask bits that a bind must have: those of every change, length, start address, local write
/// right, remote rights.
const BIND: u64 = ALWAYS | 1 | 1 << 6 | 0xf << 18;

/// A mask bit that a change of a window may have in addition: the local read right.
const HARMLESS: u64 = 1 << 17;

impl<B: Bus> Function<B> {
    /// Converts a UMR that targets a window to an operation for the engine. Returns other work
    /// unchanged.
    ///
    /// # Errors
    /// A [`Mistake`] if the change is not valid for a window.
    pub(in crate::qp) fn of_window(&mut self, ctrl: &Ctrl, work: Work) -> Result<Work, Mistake> {
        let Work::Local(Local::Umr(umr)) = &work else { return Ok(work) };
        let Some(Kind::Window(kind)) = self.core.mkeys.get(umr.key >> 8).map(|key| key.kind) else {
            return Ok(work);
        };
        let op = umr.window(kind, ctrl.qpn)?;
        if let Some(what) = umr.odd_form(kind) {
            let what = format!("queue pair {:#x}: window {:#x} {what}", ctrl.qpn, umr.key);
            self.core.log.complain(Rule::UmrForm, what);
        }
        let flags = SendFlags { signaled: ctrl.signaled, solicited: false, fence: true };
        Ok(Work::Send { op, flags, bytes: Bytes::elements(Vec::new()), remote_srq: 0 })
    }
}

impl Umr {
    /// Returns the engine operation for this change of a window of type `kind`, requested on queue
    /// pair `qpn`.
    ///
    /// # Errors
    /// A [`Mistake`] if the change is not valid for the window.
    fn window(&self, kind: MwType, qpn: u32) -> Result<SendOp, Mistake> {
        let broken = |what: String| Err(Mistake::new(Rule::WqeUmr, what));
        let names_qp = self.changes(QPN);
        let needed =
            if self.frees() { ALWAYS } else { BIND } | if kind == MwType::Two { 1 << QPN } else { 0 };
        if self.mask & needed != needed {
            return broken(format!("a window without mask bits {:#x}", needed & !self.mask));
        }
        let beyond = self.mask & !(BIND | HARMLESS | 1 << QPN);
        if beyond != 0 {
            return broken(format!("a window with mask bits {beyond:#x}"));
        }
        if self.offset != 0 {
            return broken(format!("the list of a window at offset {:#x}", self.offset));
        }
        let owner = mkc::QPN.get32(&self.context);
        let expected = if self.frees() { ANY_QP } else { qpn };
        if names_qp && owner != expected {
            return broken(format!("a window for queue pair {owner:#x} instead of {expected:#x}"));
        }
        if names_qp && kind == MwType::One {
            let as_type_2 = if self.frees() { self.check_qpn } else { self.check == Check::Free };
            if !as_type_2 {
                return broken("a window of type 1 with a queue pair".into());
            }
            if self.opens() {
                return Err(Mistake::program(Status::WindowBind));
            }
        }
        if self.frees() { Ok(self.unbind(kind)) } else { self.bind() }
    }

    fn new_rkey(&self) -> u32 {
        self.key & !0xff | mkc::MKEY_7_0.get32(&self.context)
    }

    fn unbind(&self, kind: MwType) -> SendOp {
        match kind {
            MwType::Two => SendOp::LocalInvalidate { rkey: self.key },
            MwType::One => SendOp::Bind {
                window: self.key,
                new_rkey: self.new_rkey(),
                lkey: 0,
                addr: 0,
                length: 0,
                access: mkey::access(&[0; mkc::SIZE]),
            },
        }
    }

    fn bind(&self) -> Result<SendOp, Mistake> {
        let broken = |what: String| Err(Mistake::new(Rule::WqeUmr, what));
        let List::Inline(list) = &self.list else {
            return broken("a bind without its piece inline".into());
        };
        if list.len() != LIST {
            return broken(format!("a bind with {} bytes of list", list.len()));
        }
        let (length, piece) = (mkc::LEN.get(&self.context), klm::BYTE_COUNT.get32(list));
        if length == 0 || u64::from(piece) != length {
            return broken(format!("a window of {length} bytes on a piece of {piece}"));
        }
        let (addr, start) = (klm::VA.get(list), mkc::START_ADDR.get(&self.context));
        // In the engine, every region permits binding; a window has separate access rights.
        let mut access = mkey::access(&self.context);
        access.0 &= !Access::MW_BIND.0;
        if start == 0 && addr != 0 {
            access = access | Access::ZERO_BASED;
        } else if start != addr {
            return broken("a window that begins neither at its piece's address nor at 0".into());
        }
        let lkey = klm::MKEY.get32(list);
        Ok(SendOp::Bind { window: self.key, new_rkey: self.new_rkey(), lkey, addr, length, access })
    }

    /// Describes how this change of a window differs from libmlx5's form; `None` if it does not.
    fn odd_form(&self, kind: MwType) -> Option<String> {
        let two = kind == MwType::Two;
        let check = if two && self.opens() { Check::Free } else { Check::Nothing };
        if self.check != check {
            return Some(format!("checks {:?} instead of {check:?}", self.check));
        }
        // On type 1 windows, `IBV_WR_LOCAL_INV` also names and checks the queue pair.
        let check_qpn = self.frees() && self.changes(QPN);
        if self.check_qpn != check_qpn {
            let how = if check_qpn { "does not check" } else { "checks" };
            return Some(format!("{how} the queue pair"));
        }
        if !self.is_inline || !self.has_offset {
            return Some(format!("has the flags inline {} and offset {}", self.is_inline, self.has_offset));
        }
        match &self.list {
            List::Inline(list) if list.iter().skip(klm::SIZE).any(|byte| *byte != 0) => {
                Some("has bytes behind its piece".into())
            }
            _ => None,
        }
    }
}

/// Size of a window's list, in bytes. Lists are padded to units of this size.
const LIST: usize = 64;
