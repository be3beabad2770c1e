//! UMR: work requests that change memory keys and windows.
//!
//! ```text
//! ctrl (its immediate: the key) ─ UMR control ─ key context ─┬─ inline list, padded to 64 bytes
//!                                                            ├─ element that points to the list
//!                                                            └─ nothing
//! ```
//! A mask selects which fields of the key's context to change. All other fields keep their values.
//! Their bytes in the work request are ignored, because drivers leave bytes of older work requests
//! there. The engine executes changes to windows ([`window`]). The model itself executes changes to
//! memory keys, once all earlier work requests have ended.
//!
//! # References
//! PRM, "UMR"; Linux `drivers/infiniband/hw/mlx5/umr.c`, `wr.c`; rdma-core `set_bind_wr`

mod window;

use roce::engine::{Refused, Sge, Status};

use crate::bus::Bus;
use crate::complaint::Rule;
use crate::function::Function;
use crate::layout::Field;
use crate::layout::mkey::mkc;
use crate::layout::wqe::{data, umr_ctrl};
use crate::qp::request::{Ctrl, Mistake, Work};
use crate::state::mkey::{self, AccessMode, OCTWORD};
use crate::state::qp::Service;
use crate::state::work::{Check, List, Local, Umr};

/// For each mask bit, the context fields that it selects.
const MASK: &[(u32, &[Field])] = &[
    (0, &[mkc::LEN, mkc::LENGTH64]),
    (1, &[mkc::LOG_PAGE_SIZE]),
    (6, &[mkc::START_ADDR]),
    (PD, &[mkc::PD]),
    (8, &[mkc::EN_RINVAL]),
    (KEY, &[mkc::MKEY_7_0]),
    (QPN, &[mkc::QPN]),
    (17, &[mkc::LR]),
    (18, &[mkc::LW]),
    (19, &[mkc::RR]),
    (20, &[mkc::RW]),
    (21, &[mkc::A]),
    (23, &[mkc::SMALL_FENCE_ON_RDMA_READ_RESPONSE]),
    (25, &[mkc::RELAXED_ORDERING_WRITE]),
    (FREE, &[mkc::FREE]),
    (47, &[mkc::RELAXED_ORDERING_READ]),
];

const PD: u32 = 7;
const KEY: u32 = 13;
const QPN: u32 = 14;
pub(super) const FREE: u32 = 29;

/// The queue pair number in the context of a memory key that every queue pair may use.
const ANY_QP: u32 = 0xff_ffff;

/// Decodes a UMR from the segments after the control segment.
///
/// # Errors
/// A [`Mistake`] if the segments break a rule.
pub(super) fn decode(service: Service, ctrl: &Ctrl, bytes: &[u8]) -> Result<Work, Mistake> {
    let broken = |what: String| Mistake::new(Rule::WqeUmr, what);
    let Some((head, rest)) = bytes.split_at_checked(umr_ctrl::SIZE + mkc::SIZE) else {
        return Err(Mistake::new(Rule::WqeSize, "a UMR without a control segment and a context"));
    };
    let (control, given) = head.split_at(umr_ctrl::SIZE);
    if let Some((offset, bits)) = umr_ctrl::TABLE.reserved(control) {
        return Err(broken(format!("bits {bits:#x} of dword {offset:#x} of its control")));
    }
    let mask = umr_ctrl::MKEY_MASK.get(control);
    let known = MASK.iter().fold(0, |known, (bit, _)| known | 1 << bit);
    if mask & !known != 0 {
        return Err(broken(format!("mask bits {:#x}", mask & !known)));
    }
    // Only the driver's own queue pair may move keys between domains. Any other could give a
    // program access to the memory of other programs.
    if mask >> PD & 1 != 0 && service != Service::RegUmr {
        return Err(broken("the protection domain in the mask".into()));
    }
    let check = match umr_ctrl::CHECK_FREE.get(control) {
        0 => Check::Nothing,
        1 => Check::Free,
        2 => Check::Valid,
        _ => return Err(broken("conflicting checks for free and not free".into())),
    };
    let is_inline = umr_ctrl::INLINE.is_set(control);
    let list = match (rest.len(), is_inline) {
        (0, _) => List::Nothing,
        (len, true) if len % 64 == 0 => List::Inline(rest.to_vec()),
        (data::SIZE, false) if rest[0] & 0x80 == 0 => List::At(Sge {
            addr: data::ADDRESS.get(rest),
            length: data::BYTE_COUNT.get32(rest),
            lkey: data::LKEY.get32(rest),
        }),
        (len, _) => return Err(Mistake::new(Rule::WqeSize, format!("{len} bytes after a UMR's context"))),
    };
    let (announced, follow) = (umr_ctrl::KLM_OCTOWORDS.get32(control) as usize * OCTWORD, list.len());
    if announced != follow {
        return Err(broken(format!("{announced} announced bytes of list, and {follow} that follow")));
    }
    let has_offset = umr_ctrl::TRANSLATION_OFFSET_EN.is_set(control);
    let offset =
        umr_ctrl::TRANSLATION_OFFSET_42_16.get(control) << 16 | umr_ctrl::TRANSLATION_OFFSET.get(control);
    if offset != 0 && !has_offset {
        return Err(broken(format!("offset {offset:#x} without the flag that declares one")));
    }
    let mut context = [0; mkc::SIZE];
    context.copy_from_slice(given);
    let umr = Umr {
        key: ctrl.imm,
        check,
        check_qpn: umr_ctrl::CHECK_QPN.is_set(control),
        is_inline,
        has_offset,
        mask,
        context,
        offset: usize::try_from(offset).unwrap_or(usize::MAX),
        list,
    };
    if umr.frees() && follow != 0 {
        return Err(broken(format!("{follow} bytes of list for a key that becomes free")));
    }
    Ok(Work::Local(Local::Umr(umr)))
}

impl List {
    /// Returns the length of the list, in bytes.
    fn len(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Inline(bytes) => bytes.len(),
            Self::At(sge) => sge.length as usize,
        }
    }
}

impl Umr {
    fn changes(&self, bit: u32) -> bool {
        self.mask >> bit & 1 != 0
    }

    /// Returns whether this UMR makes the key free.
    fn frees(&self) -> bool {
        self.changes(FREE) && mkc::FREE.is_set(&self.context)
    }

    /// Returns whether this UMR makes the key valid.
    fn opens(&self) -> bool {
        self.changes(FREE) && !mkc::FREE.is_set(&self.context)
    }

    /// Describes the requested check if no driver requests it with this kind of change to a memory
    /// key.
    ///
    /// # References
    /// Linux `set_reg_wr`, `set_linv_umr_seg`, `mlx5r_umr_revoke_mr`,
    /// `mlx5r_umr_set_update_xlt_ctrl_seg`; rdma-core `set_umr_control_seg` (`IBV_WR_LOCAL_INV`)
    fn odd_check(&self, mode: AccessMode) -> Option<String> {
        let what = if self.frees() && self.check != Check::Nothing {
            "frees"
        } else if self.opens() && mode == AccessMode::Pages && self.check != Check::Free {
            "opens"
        } else if self.check_qpn && !self.frees() {
            "does not free"
        } else {
            return None;
        };
        let qpn = if self.check_qpn { " and the queue pair" } else { "" };
        Some(format!("it {what} key {:#x} and checks {:?}{qpn}", self.key, self.check))
    }
}

impl<B: Bus> Function<B> {
    /// Executes a UMR that changes a memory key, for a work request on queue pair `qpn`. All
    /// earlier work requests of the queue pair must have ended.
    ///
    /// # Errors
    /// Returns the completion status for the work request. If a rule was broken, the complaint has
    /// been recorded.
    pub(super) fn change_key(&mut self, qpn: u32, umr: &Umr) -> Result<(), Status> {
        let refused = Err(Status::WindowBind);
        let index = umr.key >> 8;
        let Some(qp) = self.core.qps.get(&qpn) else { return refused };
        let (pd, any_domain) = (qp.pd, qp.service == Service::RegUmr);
        let Some((present, attr)) = self.engine.mr_by_index(index) else { return refused };
        let is_valid = self.engine.mr_is_valid(index).unwrap_or(false);
        let Some(key) = self.core.mkeys.get(index) else { return refused };
        let before = key.context;
        if let Some(what) = umr.odd_check(key.mode) {
            self.core.log.complain(Rule::UmrForm, format!("queue pair {qpn:#x}: {what}"));
        }
        if umr.changes(QPN) && mkc::QPN.get32(&umr.context) != ANY_QP {
            self.core.log.complain(Rule::WqeUmr, format!("key {:#x} for one queue pair only", umr.key));
            return refused;
        }
        if !mkc::UMR_EN.is_set(&before) {
            self.core.log.complain(Rule::WqeUmr, format!("key {:#x} was created without UMR", umr.key));
            return refused;
        }
        let wrong_state = match umr.check {
            Check::Nothing => false,
            Check::Free => is_valid,
            Check::Valid => !is_valid,
        };
        let wrong_key = !umr.changes(KEY) && present != umr.key;
        let wrong_domain = !any_domain && attr.pd.0 != pd;
        if wrong_state || wrong_key || wrong_domain {
            return refused;
        }
        let mut context = before;
        // Only the engine tracks local and remote invalidations.
        mkc::FREE.set(&mut context, u32::from(!is_valid));
        for (_, fields) in MASK.iter().filter(|(bit, _)| umr.changes(*bit)) {
            for field in *fields {
                field.set(&mut context, field.get(&umr.context));
            }
        }
        let list = self.list((!any_domain).then_some(pd), umr)?;
        let Some(key) = self.core.mkeys.get(index) else { return refused };
        // Lists are padded to units of 64 bytes, so the padding may extend beyond the key's list.
        let offset = umr.offset.saturating_mul(OCTWORD);
        let room = (key.capacity as usize).saturating_mul(OCTWORD).saturating_sub(offset);
        let (list, padding) = list.split_at(list.len().min(room));
        if !padding.iter().all(|byte| *byte == 0) {
            self.core.log.complain(
                Rule::WqeUmr,
                format!("the list of key {:#x} has no room for the entries", umr.key),
            );
            return refused;
        }
        // The driver can revoke memory even while windows are bound to it.
        if any_domain && umr.frees() {
            self.engine.unbind_windows(index);
        }
        match self.put(index, context, offset, list) {
            Ok(()) => Ok(()),
            Err(why) => {
                if let Some(what) = why {
                    self.core.log.complain(Rule::WqeUmr, format!("key {:#x}: {what}", umr.key));
                }
                refused
            }
        }
    }

    /// Sets a key's context and the entries of its list from `offset`. On an error, the key does
    /// not change.
    ///
    /// # Errors
    /// Returns a description if the change breaks a rule, otherwise `None`.
    fn put(
        &mut self,
        index: u32,
        context: [u8; mkc::SIZE],
        offset: usize,
        list: &[u8],
    ) -> Result<(), Option<String>> {
        let why = |refused| match refused {
            Refused::Invalid(what) => Some(what.to_owned()),
            _ => None,
        };
        let Some(key) = self.core.mkeys.get_mut(index) else { return Err(None) };
        let before = std::mem::replace(&mut key.context, context);
        let is_valid = self.engine.mr_is_valid(index).unwrap_or(false);
        let (mut unmapped, mut undo) = (false, None);
        let done = (|| {
            if !list.is_empty() {
                self.unmap(index).map_err(why)?;
                unmapped = true;
                undo = Some(self.core.mkeys.fill(index, offset, list).map_err(why)?);
            }
            let key = self.core.mkeys.get(index).ok_or(None)?;
            if key.mode == AccessMode::Pages && (!mkc::FREE.is_set(&context) || !list.is_empty()) {
                mkey::check_pages(&context, key.list()).map_err(Some)?;
            }
            self.remap(index).map_err(why)
        })();
        if done.is_ok() {
            return Ok(());
        }
        if let Some(undo) = undo {
            self.core.mkeys.undo(index, &undo);
        }
        let context = |function: &mut Self, context| {
            if let Some(key) = function.core.mkeys.get_mut(index) {
                key.context = context;
            }
        };
        if unmapped {
            let mut present = before;
            mkc::FREE.set(&mut present, u32::from(!is_valid));
            context(self, present);
            // The earlier state was valid and has not changed since then.
            let _ = self.remap(index);
        }
        context(self, before);
        done.map(|_| ())
    }

    /// Returns the list that a UMR contains or points to. `pd` is the queue pair's protection
    /// domain; `None` for the driver's own queue pair, which has no domain.
    fn list(&mut self, pd: Option<u32>, umr: &Umr) -> Result<Vec<u8>, Status> {
        match &umr.list {
            List::Nothing => Ok(Vec::new()),
            List::Inline(bytes) => Ok(bytes.clone()),
            List::At(sge) => {
                let mut bytes = vec![0; umr.list.len()];
                let of_key = || self.engine.mr_by_index(sge.lkey >> 8).map(|(_, attr)| attr.pd);
                let pd = pd.map(roce::engine::Pd).or_else(of_key).ok_or(Status::LocalProtection)?;
                let found = self.engine.gather(pd, &[*sge], &mut bytes);
                found.map_err(|_| Status::LocalProtection)?;
                Ok(bytes)
            }
        }
    }
}
