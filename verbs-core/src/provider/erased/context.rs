//! The erased context: [`ErasedContext`] is a provider's context whose methods take and return
//! erased objects.
//!
//! # Safety
//! Each unsafe call has the same requirements as the function that contains it.
#![allow(unsafe_code)]

use core::any::Any;
use std::os::fd::{BorrowedFd, OwnedFd};

use super::{
    Erased, ErasedAh, ErasedCompCntr, ErasedCounters, ErasedCq, ErasedCqHandle, ErasedDm, ErasedDmah,
    ErasedFlow, ErasedFlowAction, ErasedMr, ErasedMw, ErasedPd, ErasedQp, ErasedRecvQueue, ErasedRwqIndTable,
    ErasedSendQueue, ErasedSrq, ErasedSrqQueue, ErasedTd, ErasedWq, ErasedWqQueue, ErasedXrcd,
};
use crate::errno::Errno;
use crate::error::{Cause, Error, Result};
use crate::provider::{
    ContextOps, DeviceOps, FlowRule, MrChange, MrInitAttr, ParentDomainAttr, Provider, QpExtras, QpParents,
    QpParts, ReregError, SrqParents, SrqParts, WqParents, WqParts,
};
use crate::types::{
    AccessFlags, Advice, AdviseFlags, AhAttr, CompCntrAttachOps, CompCntrType, CqInitAttr, DmAttr, DmahAttr,
    FlowActionEspAttr, MrAttr, MwType, QpInitAttr, RtValues, Sge, SrqInitAttr, WqInitAttr,
};

/// Erases a provider's context.
pub fn erase<P: Provider<Context: Sized>>(context: P::Context) -> Box<dyn ContextOps<Erased>> {
    Box::new(ErasedContext::<P>(context))
}

/// A provider's context, used as the context of [`Erased`].
#[derive(Debug)]
struct ErasedContext<P: Provider<Context: Sized>>(P::Context);

impl dyn ContextOps<Erased> {
    /// Returns a reference to the provider's own context; `None` for another provider.
    pub fn downcast_ref<P: Provider<Context: Sized>>(&self) -> Option<&P::Context> {
        let any: &dyn Any = self;
        any.downcast_ref::<ErasedContext<P>>().map(|erased| &erased.0)
    }
}

impl<P: Provider<Context: Sized>> ErasedContext<P> {
    fn foreign(&self, verb: &'static str, what: &'static str) -> Error {
        let device = self.0.device().device_name();
        Error::new(verb, device, Errno::INVAL).because(Cause::Foreign { what })
    }

    fn pd<'a>(&self, verb: &'static str, pd: &'a ErasedPd) -> Result<&'a P::Pd> {
        pd.downcast_ref().ok_or_else(|| self.foreign(verb, "protection domain"))
    }

    fn cq<'a>(&self, verb: &'static str, cq: &'a ErasedCqHandle) -> Result<&'a P::CqHandle> {
        cq.downcast_ref().ok_or_else(|| self.foreign(verb, "completion queue"))
    }

    fn qp<'a>(&self, verb: &'static str, qp: &'a ErasedQp) -> Result<&'a P::Qp> {
        qp.downcast_ref().ok_or_else(|| self.foreign(verb, "queue pair"))
    }

    fn qp_parents<'a>(
        &self,
        verb: &'static str,
        parents: &QpParents<'a, Erased>,
    ) -> Result<QpParents<'a, P>> {
        let QpParents { pd, send_cq, recv_cq, srq, xrcd } = *parents;
        Ok(QpParents {
            pd: pd.map(|pd| self.pd(verb, pd)).transpose()?,
            send_cq: send_cq.map(|cq| self.cq(verb, cq)).transpose()?,
            recv_cq: recv_cq.map(|cq| self.cq(verb, cq)).transpose()?,
            srq: srq.map(|srq| self.srq(verb, srq)).transpose()?,
            xrcd: xrcd.map(|xrcd| self.xrcd(verb, xrcd)).transpose()?,
        })
    }

    fn srq<'a>(&self, verb: &'static str, srq: &'a ErasedSrq) -> Result<&'a P::Srq> {
        srq.downcast_ref().ok_or_else(|| self.foreign(verb, "shared receive queue"))
    }

    fn dmah<'a>(&self, verb: &'static str, dmah: &'a ErasedDmah) -> Result<&'a P::Dmah> {
        dmah.downcast_ref().ok_or_else(|| self.foreign(verb, "DMA handle"))
    }

    fn td<'a>(&self, verb: &'static str, td: &'a ErasedTd) -> Result<&'a P::Td> {
        td.downcast_ref().ok_or_else(|| self.foreign(verb, "thread domain"))
    }

    fn xrcd<'a>(&self, verb: &'static str, xrcd: &'a ErasedXrcd) -> Result<&'a P::Xrcd> {
        xrcd.downcast_ref().ok_or_else(|| self.foreign(verb, "XRC domain"))
    }
}

/// Erases a queue pair and its queues.
fn erase_qp<P: Provider>(parts: QpParts<P>) -> QpParts<Erased> {
    let QpParts { qp, sq, rq } = parts;
    QpParts { qp: ErasedQp::new(qp), sq: ErasedSendQueue::new(sq), rq: ErasedRecvQueue::new(rq) }
}

impl<P: Provider<Context: Sized>> ContextOps<Erased> for ErasedContext<P> {
    fn provider_name(&self) -> &'static str {
        self.0.provider_name()
    }
    fn device(&self) -> &dyn DeviceOps {
        self.0.device()
    }
    fn vendor_err_text(&self, vendor_err: u32) -> Option<&'static str> {
        self.0.vendor_err_text(vendor_err)
    }
    fn alloc_pd(&self) -> Result<ErasedPd> {
        self.0.alloc_pd().map(ErasedPd::new)
    }
    unsafe fn reg_mr(
        &self,
        pd: &ErasedPd,
        addr: *mut u8,
        length: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<ErasedMr> {
        let pd = self.pd("reg_mr", pd)?;
        // SAFETY: the caller upholds the same contract.
        unsafe { self.0.reg_mr(pd, addr, length, iova, access) }.map(ErasedMr::new)
    }
    unsafe fn reg_mr_ex(&self, pd: &ErasedPd, attr: &MrInitAttr<'_, Erased>) -> Result<ErasedMr> {
        const VERB: &str = "reg_mr";
        let MrInitAttr { memory, length, iova, access, dmah } = *attr;
        let dmah = dmah.map(|dmah| self.dmah(VERB, dmah)).transpose()?;
        let attr = MrInitAttr { memory, length, iova, access, dmah };
        // SAFETY: the caller upholds the same contract.
        unsafe { self.0.reg_mr_ex(self.pd(VERB, pd)?, &attr) }.map(ErasedMr::new)
    }
    unsafe fn reg_dmabuf_mr(
        &self,
        pd: &ErasedPd,
        fd: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        iova: u64,
        access: AccessFlags,
    ) -> Result<ErasedMr> {
        let pd = self.pd("reg_dmabuf_mr", pd)?;
        // SAFETY: the caller upholds the same contract.
        unsafe { self.0.reg_dmabuf_mr(pd, fd, offset, length, iova, access) }.map(ErasedMr::new)
    }
    unsafe fn rereg_mr(&self, mr: &mut ErasedMr, change: &MrChange<'_, Erased>) -> Result<(), ReregError> {
        const VERB: &str = "rereg_mr";
        let MrChange { memory, pd, access } = *change;
        let pd = pd.map(|pd| self.pd(VERB, pd)).transpose().map_err(ReregError::unchanged)?;
        let Some(mr) = mr.downcast_mut::<P::Mr>() else {
            return Err(ReregError::unchanged(self.foreign(VERB, "memory region")));
        };
        // SAFETY: the caller upholds the same contract.
        unsafe { self.0.rereg_mr(mr, &MrChange { memory, pd, access }) }
    }
    fn alloc_null_mr(&self, pd: &ErasedPd) -> Result<ErasedMr> {
        self.0.alloc_null_mr(self.pd("alloc_null_mr", pd)?).map(ErasedMr::new)
    }
    fn advise_mr(&self, pd: &ErasedPd, advice: Advice, flags: AdviseFlags, sges: &[Sge]) -> Result<()> {
        self.0.advise_mr(self.pd("advise_mr", pd)?, advice, flags, sges)
    }
    fn pins_memory(&self) -> bool {
        self.0.pins_memory()
    }
    fn alloc_dm(&self, attr: &DmAttr) -> Result<ErasedDm> {
        self.0.alloc_dm(attr).map(ErasedDm::new)
    }
    fn reg_dm_mr(
        &self,
        pd: &ErasedPd,
        dm: &ErasedDm,
        offset: u64,
        length: u64,
        access: AccessFlags,
    ) -> Result<ErasedMr> {
        const VERB: &str = "reg_dm_mr";
        let dm = dm.downcast_ref().ok_or_else(|| self.foreign(VERB, "device memory"))?;
        self.0.reg_dm_mr(self.pd(VERB, pd)?, dm, offset, length, access).map(ErasedMr::new)
    }
    fn alloc_dmah(&self, attr: &DmahAttr) -> Result<ErasedDmah> {
        self.0.alloc_dmah(attr).map(ErasedDmah::new)
    }
    fn alloc_td(&self) -> Result<ErasedTd> {
        self.0.alloc_td().map(ErasedTd::new)
    }
    fn alloc_parent_domain(&self, attr: &ParentDomainAttr<'_, Erased>) -> Result<ErasedPd> {
        const VERB: &str = "alloc_parent_domain";
        let ParentDomainAttr { pd, td, allocator, allow_cc_unprotected_alloc } = *attr;
        let td = td.map(|td| self.td(VERB, td)).transpose()?;
        let attr = ParentDomainAttr { pd: self.pd(VERB, pd)?, td, allocator, allow_cc_unprotected_alloc };
        self.0.alloc_parent_domain(&attr).map(ErasedPd::new)
    }
    unsafe fn export_device(&self) -> Result<OwnedFd> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.0.export_device() }
    }
    fn import_pd(&self, handle: u32) -> Result<ErasedPd> {
        self.0.import_pd(handle).map(ErasedPd::new)
    }
    fn import_mr(&self, pd: &ErasedPd, handle: u32) -> Result<(ErasedMr, MrAttr)> {
        let (mr, attr) = self.0.import_mr(self.pd("import_mr", pd)?, handle)?;
        Ok((ErasedMr::new(mr), attr))
    }
    fn import_dm(&self, handle: u32) -> Result<ErasedDm> {
        self.0.import_dm(handle).map(ErasedDm::new)
    }
    fn create_cq(
        &self,
        parent_domain: Option<&ErasedPd>,
        attr: &CqInitAttr<'_>,
    ) -> Result<(ErasedCq, ErasedCqHandle)> {
        let parent_domain = parent_domain.map(|pd| self.pd("create_cq", pd)).transpose()?;
        let (cq, handle) = self.0.create_cq(parent_domain, attr)?;
        Ok((ErasedCq::new(cq), ErasedCqHandle::new(handle)))
    }
    fn create_qp(&self, parents: &QpParents<'_, Erased>, attr: &QpInitAttr) -> Result<QpParts<Erased>> {
        let parents = self.qp_parents("create_qp", parents)?;
        self.0.create_qp(&parents, attr).map(erase_qp)
    }
    fn create_qp_ex(
        &self,
        parents: &QpParents<'_, Erased>,
        attr: &QpInitAttr,
        extras: &QpExtras<'_, Erased>,
    ) -> Result<QpParts<Erased>> {
        const VERB: &str = "create_qp_ex";
        let parents = self.qp_parents(VERB, parents)?;
        let rss = match extras.rss {
            None => None,
            Some((table, hash)) => {
                let foreign = || self.foreign(VERB, "table of work queues");
                Some((table.downcast_ref().ok_or_else(foreign)?, hash))
            }
        };
        let extras = QpExtras { attr: extras.attr, rss };
        self.0.create_qp_ex(&parents, attr, &extras).map(erase_qp)
    }
    fn open_qp(&self, xrcd: &ErasedXrcd, qp_num: u32, user_handle: u64) -> Result<QpParts<Erased>> {
        self.0.open_qp(self.xrcd("open_qp", xrcd)?, qp_num, user_handle).map(erase_qp)
    }
    fn create_ah(&self, pd: &ErasedPd, attr: &AhAttr) -> Result<ErasedAh> {
        let pd = self.pd("create_ah", pd)?;
        self.0.create_ah(pd, attr).map(ErasedAh::new)
    }
    fn query_rt_values(&self) -> Result<RtValues> {
        self.0.query_rt_values()
    }
    fn create_srq(&self, parents: &SrqParents<'_, Erased>, attr: &SrqInitAttr) -> Result<SrqParts<Erased>> {
        const VERB: &str = "create_srq";
        let SrqParents { pd, xrcd, cq } = *parents;
        let parents = SrqParents {
            pd: self.pd(VERB, pd)?,
            xrcd: xrcd.map(|xrcd| self.xrcd(VERB, xrcd)).transpose()?,
            cq: cq.map(|cq| self.cq(VERB, cq)).transpose()?,
        };
        let SrqParts { srq, queue } = self.0.create_srq(&parents, attr)?;
        Ok(SrqParts { srq: ErasedSrq::new(srq), queue: ErasedSrqQueue::new(queue) })
    }
    fn open_xrcd(&self, file: Option<BorrowedFd<'_>>, oflags: i32) -> Result<ErasedXrcd> {
        self.0.open_xrcd(file, oflags).map(ErasedXrcd::new)
    }
    fn alloc_mw(&self, pd: &ErasedPd, mw_type: MwType) -> Result<ErasedMw> {
        self.0.alloc_mw(self.pd("alloc_mw", pd)?, mw_type).map(ErasedMw::new)
    }
    fn create_wq(&self, parents: &WqParents<'_, Erased>, attr: &WqInitAttr) -> Result<WqParts<Erased>> {
        const VERB: &str = "create_wq";
        let parents = WqParents { pd: self.pd(VERB, parents.pd)?, cq: self.cq(VERB, parents.cq)? };
        let WqParts { wq, queue } = self.0.create_wq(&parents, attr)?;
        Ok(WqParts { wq: ErasedWq::new(wq), queue: ErasedWqQueue::new(queue) })
    }
    fn create_rwq_ind_table(&self, wqs: &[&ErasedWq]) -> Result<ErasedRwqIndTable> {
        let foreign = || self.foreign("create_rwq_ind_table", "work queue");
        let wqs: Result<Vec<&P::Wq>> = wqs.iter().map(|wq| wq.downcast_ref().ok_or_else(foreign)).collect();
        self.0.create_rwq_ind_table(&wqs?).map(ErasedRwqIndTable::new)
    }
    fn create_flow(&self, qp: &ErasedQp, rule: FlowRule<'_, Erased>) -> Result<ErasedFlow> {
        const VERB: &str = "create_flow";
        let qp = self.qp(VERB, qp)?;
        let rule = rule.try_map(
            |action| action.downcast_ref().ok_or_else(|| self.foreign(VERB, "flow action")),
            |counters| counters.downcast_ref().ok_or_else(|| self.foreign(VERB, "counters object")),
        )?;
        self.0.create_flow(qp, rule).map(ErasedFlow::new)
    }
    fn create_flow_action_esp(&self, attr: &FlowActionEspAttr) -> Result<ErasedFlowAction> {
        self.0.create_flow_action_esp(attr).map(ErasedFlowAction::new)
    }
    fn create_counters(&self) -> Result<ErasedCounters> {
        self.0.create_counters().map(ErasedCounters::new)
    }
    fn create_comp_cntr(&self, cntr_type: CompCntrType) -> Result<ErasedCompCntr> {
        self.0.create_comp_cntr(cntr_type).map(ErasedCompCntr::new)
    }
    fn qp_attach_comp_cntr(
        &self,
        qp: &ErasedQp,
        cntr: &ErasedCompCntr,
        ops: CompCntrAttachOps,
    ) -> Result<()> {
        const VERB: &str = "qp_attach_comp_cntr";
        let qp = self.qp(VERB, qp)?;
        let cntr = cntr.downcast_ref().ok_or_else(|| self.foreign(VERB, "completion counter"))?;
        self.0.qp_attach_comp_cntr(qp, cntr, ops)
    }
}
