//! The cost of each control call, with few and with many live objects of its kind.
//!
//! # Safety
//! Regions are re-registered with the same memory, which is leaked.

#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use provider_soft::Soft;
use verbs::{
    AhAttr, CqInit, CqModeration, Gid, GlobalRoute, MrChange, MwType, ParentDomainInit, QpAttrMask, QpInit,
    QpType, SrqAttr, SrqAttrMask, SrqInit, XrcdInit,
};

use crate::ends::{PORT, Side, connect, register};
use crate::{Result, Table};

/// The number of live objects of the measured kind. The next constant is a large number, with the
/// limit for the ratio of costs.
const FEW: usize = 16;
const MANY: (usize, f64) = (10_000, LIMIT);

/// The limit for the ratio of costs with many and with few objects. A cost that grows with the
/// number of objects is many times higher with 10,000 objects.
const LIMIT: f64 = 2.0;

/// The limit for the ratio of costs of channels. For each channel, the kernel compares the
/// channel's name with 1/256 of all other names.
const CHANNEL_LIMIT: f64 = 4.0;

/// The number of calls in one timed batch.
const BATCH: usize = 64;

/// The duration of one measurement, which consists of several batches.
const BUDGET: Duration = Duration::from_millis(100);

/// Measures a call with few and with many live objects.
///
/// `make` creates an object. `call` makes the measured call on the object with the given index.
fn slope<T>(
    table: &mut Table,
    name: &str,
    (most, limit): (usize, f64),
    mut make: impl FnMut() -> Result<T>,
    mut call: impl FnMut(&mut Vec<T>, usize) -> Result<()>,
) -> Result<()> {
    let name = format!("control, {name}");
    if !table.wants(&name) {
        return Ok(());
    }
    let mut objects = Vec::new();
    let mut costs = [0.0; 2];
    let counts = if table.is_full { [FEW, most] } else { [1, 4] };
    for (cost, count) in costs.iter_mut().zip(counts) {
        while objects.len() < count {
            objects.push(make()?);
        }
        let budget = if table.is_full { BUDGET } else { Duration::ZERO };
        // A few objects, used repeatedly, so both measurements find them in the processor's cache.
        let mut chosen = (0..count).step_by(count.div_ceil(FEW)).cycle();
        let (mut best, begin) = (f64::MAX, Instant::now());
        loop {
            let start = Instant::now();
            for at in chosen.by_ref().take(BATCH) {
                call(&mut objects, at)?;
            }
            best = best.min(start.elapsed().as_nanos() as f64 / BATCH as f64);
            if begin.elapsed() >= budget {
                break;
            }
        }
        *cost = best;
    }
    table.row(&name, costs[0], costs[1], costs[1] / costs[0], Some(limit));
    Ok(())
}

/// Measures creating an object together with destroying an older object.
fn create<T>(table: &mut Table, name: &str, most: (usize, f64), make: impl Fn() -> Result<T>) -> Result<()> {
    slope(table, &format!("create and destroy {name}"), most, &make, |objects, at| {
        objects[at] = make()?;
        Ok(())
    })
}

pub(crate) fn measure(table: &mut Table) -> Result<()> {
    let side = Side::new(4, false)?;
    let Side { context, pd, .. } = &side;
    create(table, "protection domain", MANY, || Ok(context.alloc_pd()?))?;
    create(table, "parent domain", MANY, || Ok(pd.alloc_parent_domain(&ParentDomainInit::default())?))?;
    create(table, "memory region", MANY, || register(pd, 8))?;
    create(table, "null region", MANY, || Ok(pd.alloc_null_mr()?))?;
    for mw_type in [MwType::TYPE_1, MwType::TYPE_2] {
        create(table, &format!("memory window, {mw_type:?}"), MANY, || Ok(pd.alloc_mw(mw_type)?))?;
    }
    create(table, "completion queue", MANY, || Ok(context.create_cq(&CqInit::new(4))?))?;
    create(table, "completion channel", (10_000, CHANNEL_LIMIT), || Ok(context.create_comp_channel()?))?;
    create(table, "queue pair, RC", MANY, || side.create_qp())?;
    let ud = QpInit::new(QpType::UD, &side.cq);
    create(table, "queue pair, UD", MANY, || Ok(pd.create_qp(&ud)?))?;
    create(table, "shared receive queue", MANY, || Ok(pd.create_srq(&SrqInit::new(4))?))?;
    let ah = AhAttr {
        grh: Some(GlobalRoute { dgid: context.find_gid(PORT)?.gid, hop_limit: 64, ..GlobalRoute::default() }),
        port_num: PORT,
        ..AhAttr::default()
    };
    create(table, "address handle", MANY, || Ok(pd.create_ah(&ah)?))?;
    create(table, "XRC domain", MANY, || Ok(context.open_xrcd(&XrcdInit::default())?))?;
    let xrcd = context.open_xrcd(&XrcdInit::default())?;
    create(table, "XRC target", MANY, || Ok(xrcd.create_target()?))?;
    create(table, "XRC shared receive queue", MANY, || {
        Ok(xrcd.create_srq(pd, &side.cq, &SrqInit::new(4))?)
    })?;
    opens(table)?;
    changes(table, &side)?;
    groups(table, &side)
}

/// Measures opening devices. Each device needs a thread, and each open context some descriptors.
fn opens(table: &mut Table) -> Result<()> {
    let device = verbs::soft::builder().shared_memory(false).auto()?;
    create(table, "open of a device", (1000, LIMIT), || Ok(device.open_as::<Soft>()?))?;
    create(table, "device", (100, LIMIT), || {
        let device = verbs::soft::builder().shared_memory(false).auto()?;
        Ok(device.open_as::<Soft>()?)
    })
}

/// Measures calls that change or query an object.
fn changes(table: &mut Table, side: &Side) -> Result<()> {
    let Side { context, pd, .. } = side;
    let pair = || Ok(Some([side.create_qp()?, side.create_qp()?]));
    slope(table, "connect and reset two queue pairs", (5000, LIMIT), pair, |pairs, at| {
        let Some(qps) = pairs[at].take() else { return Err("a queue pair is lost".into()) };
        let [one, other] = connect([side, side], qps)?;
        pairs[at] = Some([one.to_reset()?, other.to_reset()?]);
        Ok(())
    })?;
    slope(
        table,
        "query queue pair",
        MANY,
        || side.create_qp(),
        |qps, at| {
            qps[at].query(QpAttrMask::STATE)?;
            Ok(())
        },
    )?;
    let mr = || register(pd, 8);
    slope(table, "register memory again", MANY, mr, |mrs, at| {
        // SAFETY: the change does not replace the memory.
        unsafe { mrs[at].rereg(&MrChange::new().pd(pd)) }?;
        Ok(())
    })?;
    let cq = || Ok(context.create_cq(&CqInit::new(4))?);
    slope(table, "resize completion queue", MANY, cq, |cqs, at| Ok(cqs[at].resize(4)?))?;
    slope(table, "moderate completion queue", MANY, cq, |cqs, at| {
        Ok(cqs[at].modify(CqModeration { cq_count: 1, cq_period: 0 })?)
    })?;
    let channel = context.create_comp_channel()?;
    let armed = || Ok(context.create_cq(&CqInit { channel: Some(&channel), ..CqInit::new(4) })?);
    slope(table, "request an event", MANY, armed, |cqs, at| Ok(cqs[at].req_notify(false)?))?;
    create(table, "completion queue of one channel", MANY, armed)?;
    let srq = || Ok(pd.create_srq(&SrqInit::new(4))?);
    slope(table, "change shared receive queue", MANY, srq, |srqs, at| {
        Ok(srqs[at].modify(&SrqAttr { srq_limit: 1, ..SrqAttr::default() }, SrqAttrMask::LIMIT)?)
    })?;
    slope(table, "query shared receive queue", MANY, srq, |srqs, at| {
        srqs[at].query()?;
        Ok(())
    })
}

/// Measures leaving and joining a multicast group, with as many queue pairs as a group can have.
fn groups(table: &mut Table, side: &Side) -> Result<()> {
    let group = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 192, 1, 1]);
    let init = QpInit::new(QpType::UD, &side.cq);
    let member = || {
        let mut qp = side.pd.create_qp(&init)?;
        qp.attach_mcast(&group, 0)?;
        Ok(qp)
    };
    slope(table, "attach and detach member of a group", (256, LIMIT), member, |qps, at| {
        qps[at].detach_mcast(&group, 0)?;
        Ok(qps[at].attach_mcast(&group, 0)?)
    })
}
