//! Verbs that rxe and soft devices lack: each fails with `EOPNOTSUPP` and an error with its name.
//!
//! A case is skipped on a device whose attributes announce the verb. It fails on a device that
//! supports a verb without announcing it, including verbs without such an attribute.

use std::fmt::Debug;

use verbs::{
    CompCntrType, Context, CqInit, DeviceAttrEx, DeviceCapFlags, Errno, Error, FlowActionEspAttr, FlowAttr,
    FlowSpec, OpsFlags, OpsWr, PostReason, Provider, QpCreateAttr, QpCreateFlags, QpInit, QpType,
    RawPacketCaps, SrqInit, TmCap, TmOp, WqInit,
};
use verbs_fixtures::both;
use verbs_fixtures::fabric::{is_mlx5, post_srq_ops};
use verbs_harness::runner::{Case, CaseResult, fail, skip};

use super::SUITE;

pub(super) fn cases() -> Vec<Case> {
    both!(
        SUITE,
        work_queues_are_refused_by_name,
        tables_of_work_queues_are_refused_by_name,
        flow_rules_are_refused_by_name,
        flow_actions_are_refused_by_name,
        counters_are_refused_by_name,
        completion_counters_are_refused_by_name,
        tag_matching_is_refused_by_name,
        a_shared_queue_without_tags_takes_no_operations_on_them,
        properties_of_queue_pairs_are_refused_by_name,
    )
}

/// Skips a case on a device whose attributes announce the verb.
fn skip_if_announced<P: Provider>(
    context: &Context<P>,
    is_announced: impl FnOnce(&DeviceAttrEx) -> bool,
) -> CaseResult {
    if is_announced(&context.query_device_ex()?) { skip("the device announces the verb") } else { Ok(()) }
}

/// Checks that an unannounced verb fails with `EOPNOTSUPP`. The error must name the verb and the
/// device.
fn refused<T: Debug, P: Provider>(context: &Context<P>, verb: &str, result: Result<T, Error>) -> CaseResult {
    match result {
        Ok(made) => fail(format_args!("{verb} made what the device does not announce: {made:?}")),
        Err(error) if error.errno == Errno::OPNOTSUPP && error.verb == verb => {
            assert_eq!(&*error.device, context.device_name());
            let text = error.to_string();
            assert!(text.starts_with(&format!("{verb} on {}: ", context.device_name())), "{text}");
            Ok(())
        }
        Err(error) => fail(format_args!("{verb}: {error}")),
    }
}

fn work_queues_are_refused_by_name<P: Provider>(context: &Context<P>) -> CaseResult {
    skip_if_announced(context, |attr| attr.max_wq_type_rq > 0)?;
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(&CqInit::new(16))?);
    refused(context, "create_wq", pd.create_wq(&WqInit::new(&cq)))?;
    // The failed attempt does not keep the objects in use.
    cq.close()?;
    pd.close()?;
    Ok(())
}

fn tables_of_work_queues_are_refused_by_name<P: Provider>(context: &Context<P>) -> CaseResult {
    if is_mlx5()? {
        return skip("ConnectX has tables of work queues, at Ethernet ports");
    }
    skip_if_announced(context, |attr| attr.rss_caps.max_rwq_indirection_tables > 0)?;
    refused(context, "create_rwq_ind_table", context.create_rwq_ind_table(&[]))
}

fn flow_rules_are_refused_by_name<P: Provider>(context: &Context<P>) -> CaseResult {
    skip_if_announced(context, |attr| {
        attr.device_cap_flags_ex.contains(DeviceCapFlags::MANAGED_FLOW_STEERING)
    })?;
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(&CqInit::new(16))?);
    let qp = pd.create_qp(&QpInit::new(QpType::UD, &cq))?;
    let rule = FlowAttr::new(1).with(FlowSpec::ActionDrop);
    refused(context, "create_flow", context.create_flow(&qp, rule))?;
    qp.close()?;
    Ok(())
}

fn flow_actions_are_refused_by_name<P: Provider>(context: &Context<P>) -> CaseResult {
    let attr = FlowActionEspAttr::default();
    refused(context, "create_flow_action_esp", context.create_flow_action_esp(&attr))
}

fn counters_are_refused_by_name<P: Provider>(context: &Context<P>) -> CaseResult {
    if is_mlx5()? {
        return skip("ConnectX has counters of flow rules");
    }
    refused(context, "create_counters", context.create_counters())
}

fn completion_counters_are_refused_by_name<P: Provider>(context: &Context<P>) -> CaseResult {
    let caps = context.query_comp_cntr_caps();
    if caps.as_ref().is_ok_and(|caps| caps.max_counters > 0) {
        return skip("the device announces completion counters");
    }
    refused(context, "query_comp_cntr_caps", caps)?;
    for cntr_type in [CompCntrType::WRS, CompCntrType::BYTES] {
        refused(context, "create_comp_cntr", context.create_comp_cntr(cntr_type))?;
    }
    Ok(())
}

fn tag_matching_is_refused_by_name<P: Provider>(context: &Context<P>) -> CaseResult {
    skip_if_announced(context, |attr| attr.tm_caps.max_num_tags > 0)?;
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(&CqInit::new(16))?);
    let tm = TmCap { max_num_tags: 8, max_ops: 8 };
    refused(context, "create_srq", pd.create_tm_srq(&cq, tm, &SrqInit::new(16)))?;
    // The failed attempt does not keep the objects in use.
    cq.close()?;
    pd.close()?;
    Ok(())
}

fn a_shared_queue_without_tags_takes_no_operations_on_them<P: Provider>(context: &Context<P>) -> CaseResult {
    let pd = context.alloc_pd()?;
    let mut srq = pd.create_srq(&SrqInit::new(16))?;
    let sync = OpsWr { wr_id: 1, op: TmOp::Sync, flags: OpsFlags::TM_SYNC, unexpected_cnt: 0 };
    let error = post_srq_ops(&mut srq, &mut [sync]).unwrap_err();
    assert_eq!((error.accepted, error.reason), (0, PostReason::NoTagMatching));
    assert_eq!(error.reason.errno(), Errno::OPNOTSUPP);
    Ok(())
}

fn properties_of_queue_pairs_are_refused_by_name<P: Provider>(context: &Context<P>) -> CaseResult {
    let (pd, cq) = (context.alloc_pd()?, context.create_cq(&CqInit::new(16))?);
    if is_mlx5()? {
        return skip(
            "ConnectX has them for some types, and Linux's mlx5 refuses them with EINVAL for others",
        );
    }
    let attr = context.query_device_ex()?;
    let create_flags = QpCreateFlags::SCATTER_FCS;
    for (is_announced, ex) in [
        (
            attr.raw_packet_caps.contains(RawPacketCaps::SCATTER_FCS),
            QpCreateAttr { create_flags, ..QpCreateAttr::default() },
        ),
        (false, QpCreateAttr { source_qpn: Some(7), ..QpCreateAttr::default() }),
        (attr.tso_caps.max_tso > 0, QpCreateAttr { max_tso_header: 64, ..QpCreateAttr::default() }),
    ] {
        if is_announced {
            return skip(format_args!("the device announces {ex:?}"));
        }
        let init = QpInit { ex, ..QpInit::new(QpType::UD, &cq) };
        refused(context, "create_qp_ex", pd.create_qp(&init))?;
    }
    Ok(())
}
