//! Rejected calls, which must leave nothing behind.

use std::fs::File;
use std::os::fd::AsFd;

use verbs::{
    AccessFlags, AhAttr, CompCntrType, CqInit, DeviceCapFlags, DmAttr, DmahAttr, FlowActionEspAttr, FlowAttr,
    FlowSpec, GlobalRoute, MrInit, Provider, QpCap, QpCreateAttr, QpInit, QpType, RtrAttr, SrqInit, WqInit,
    XrcdInit,
};
use verbs_fixtures::fabric::{PORT, init_attr, is_ethernet, is_mlx5, path, reg_mr_ex};
use verbs_harness::runner::{CaseResult, fail};

use super::Churn;
use super::thing::Thing;

/// The number of calls that [`Churn::refusal`] chooses from.
const CALLS: u64 = 27;

impl<P: Provider> Churn<P> {
    /// Makes a call that must be rejected. On a device with rare features, it may succeed and make
    /// an object, which is dropped.
    pub(super) fn refusal(&mut self) -> CaseResult {
        let call = self.choices.below(CALLS);
        let (context, pd) = (self.root.context.clone(), self.root.pd.clone());
        // A completion queue in another context, or a completion queue that no longer exists.
        let foreign = self.pick(|held| match &held.thing {
            Thing::Cq(cq) if held.context != super::ROOT => Some(cq.handle()),
            _ => None,
        });
        let gone = || -> CaseResult<_> { Ok(context.create_cq(&CqInit::new(1))?.handle()) };
        let qp = |ex: QpCreateAttr, qp_type: QpType, cap: Option<QpCap>| -> CaseResult<_> {
            let cq = context.create_cq(&CqInit::new(4))?;
            let init = QpInit::new(qp_type, &cq);
            let init = QpInit { ex, cap: cap.unwrap_or(init.cap), ..init };
            Ok(pd.create_qp(&init).err())
        };
        let usual = path(&self.root.gid);
        let (name, error) = match call {
            0 => ("create_cq of 0", context.create_cq(&CqInit::new(0)).err()),
            1 => ("create_cq too large", context.create_cq(&CqInit::new(1 << 30)).err()),
            2 => {
                let init = CqInit { comp_vector: 9999, ..CqInit::new(4) };
                ("create_cq of a vector", context.create_cq(&init).err())
            }
            3 => {
                let channel = (self.open)()?.create_comp_channel()?;
                let init = CqInit { channel: Some(&channel), ..CqInit::new(4) };
                ("create_cq foreign", context.create_cq(&init).err())
            }
            4 => {
                let mut cq = context.create_cq(&CqInit::new(4))?;
                ("resize_cq", cq.resize(1 << 30).err())
            }
            5 => {
                let cap = QpCap { max_send_wr: 1 << 30, ..QpInit::new(QpType::RC, gone()?).cap };
                ("create_qp too large", qp(QpCreateAttr::default(), QpType::RC, Some(cap))?)
            }
            6 => ("create_qp of no type", qp(QpCreateAttr::default(), QpType(77), None)?),
            7 => {
                let ex = QpCreateAttr { max_tso_header: 64, ..QpCreateAttr::default() };
                ("create_qp_ex", qp(ex, QpType::UD, None)?)
            }
            8 => ("create_qp closed", pd.create_qp(&QpInit::new(QpType::RC, gone()?)).err()),
            9 => {
                let cq = foreign.map_or_else(gone, Ok)?;
                ("create_qp foreign", pd.create_qp(&QpInit::new(QpType::RC, cq)).err())
            }
            10 => {
                let cq = context.create_cq(&CqInit::new(4))?;
                let qp = pd.create_qp(&QpInit::new(QpType::RC, &cq))?.to_init(&init_attr())?;
                // A GID index beyond every table.
                let grh = usual.grh.map(|grh| GlobalRoute { sgid_index: 200, ..grh });
                let attr = RtrAttr::new(AhAttr { grh, ..usual }, qp.qp_num(), 0);
                ("modify_qp", qp.to_rtr(&attr).err().map(|failed| failed.error))
            }
            11 => {
                let cq = context.create_cq(&CqInit::new(4))?;
                let mut qp = pd.create_qp(&QpInit::new(QpType::UD, &cq))?;
                let Some(own) = usual.grh.map(|grh| grh.dgid) else { return fail("no GRH") };
                ("attach_mcast", qp.attach_mcast(&own, 0).err())
            }
            12 if is_ethernet(&context)? => {
                ("create_ah without GRH", pd.create_ah(&AhAttr::lid(PORT, 1)).err())
            }
            13 => {
                let grh = usual.grh.map(|grh| GlobalRoute { sgid_index: 200, ..grh });
                ("create_ah of a GID", pd.create_ah(&AhAttr { grh, ..usual }).err())
            }
            12 | 14 => ("create_ah of a port", pd.create_ah(&AhAttr { port_num: 9, ..usual }).err()),
            15 => {
                // Remote write access requires local write access.
                let access = AccessFlags::REMOTE_WRITE;
                ("reg_mr", self.root.arena.register(&pd, 0..4096, None, access).err())
            }
            16 => {
                let (file, access) = (File::open("/dev/null")?, AccessFlags::LOCAL_WRITE);
                let init = MrInit::dmabuf(file.as_fd(), 0, 4096, access).iova(0);
                ("reg_dmabuf_mr", reg_mr_ex(&pd, &init).err())
            }
            17 => ("import_mr", pd.import_mr(0x00ff_fff0).err()),
            18 => ("create_srq", pd.create_srq(&SrqInit::new(1 << 30)).err()),
            19 => {
                let file = File::open("/dev/null")?;
                let init = XrcdInit { file: Some(file.as_fd()), ..XrcdInit::default() };
                // A file without a domain.
                ("open_xrcd", context.open_xrcd(&init).err())
            }
            20 => {
                let cq = context.create_cq(&CqInit::new(4))?;
                ("create_wq", pd.create_wq(&WqInit::new(&cq)).err())
            }
            21 => ("create_rwq_ind_table", context.create_rwq_ind_table(&[]).err()),
            22 => {
                let cq = context.create_cq(&CqInit::new(4))?;
                let qp = pd.create_qp(&QpInit::new(QpType::UD, &cq))?;
                let rule = FlowAttr::new(PORT).with(FlowSpec::ActionDrop);
                ("create_flow", context.create_flow(&qp, rule).err())
            }
            23 => {
                let action = context.create_flow_action_esp(&FlowActionEspAttr::default());
                ("create_flow_action", action.err())
            }
            24 => ("create_counters", context.create_counters().err()),
            25 => {
                let counter = context.create_comp_cntr(CompCntrType::WRS).err();
                ("create_comp_cntr", counter.and(context.alloc_dmah(&DmahAttr::default()).err()))
            }
            _ => {
                // More than any device has.
                let attr = DmAttr { length: 1 << 62, log_align: 0 };
                ("alloc_dm", context.alloc_dm(&attr).err())
            }
        };
        let attr = &self.root.attr;
        let may_succeed = match name {
            "create_wq" => attr.max_wq_type_rq > 0,
            "create_flow" => attr.device_cap_flags_ex.contains(DeviceCapFlags::MANAGED_FLOW_STEERING),
            "create_counters" => is_mlx5()?,
            _ => false,
        };
        if error.is_none() && !may_succeed {
            return fail(format_args!("{name} was not refused"));
        }
        *self.refused.entry(name.to_owned()).or_default() += 1;
        Ok(())
    }
}
