//! Makes objects of each kind from existing objects. If a parent is missing, makes the parent
//! instead.
//!
//! [`Lacking`] lists the kinds that a device lacks. The device must make exactly the other kinds.

use std::fmt;
use std::sync::Arc;

use verbs::state::Reset;
use verbs::{
    AccessFlags, Buf, Cause, Context, CqFlags, CqHandle, CqInit, CqModeration, CqWcFlags, DeviceAttrEx,
    Errno, Error, HandleError, MrChange, MrInit, MwType, OdpGeneralCaps, ParentDomainInit, Pd, Provider, Qp,
    QpCap, QpInit, QpType, RemoteAccess, RtrAttr, RtsAttr, SendFlags, SendOp, SrqAttr, SrqAttrMask,
    SrqHandle, SrqInit, Xrcd, XrcdInit,
};
use verbs_fixtures::fabric::{
    Remote, group_lid, has_sqd, init_attr, is_mlx5, is_rxe, is_soft, next_completed, path, reg_mr_ex, rereg,
    rxe_is_before,
};
use verbs_harness::runner::{CaseResult, Stop, fail};

use super::thing::{Held, Thing};
use super::{ARENA, Churn, MOST, ROOT, group_of};

/// A kind of object, or a way to make one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Ah,
    BoundWindow,
    Buf,
    Channel,
    Context,
    Cq,
    Events,
    Exposed,
    ForWindows,
    Frozen,
    Halves,
    Member,
    Mr,
    MrChanged,
    MrExtended,
    MrNull,
    MrOnDemand,
    Mw,
    ParentDomain,
    Pd,
    Qp,
    Srq,
    Td,
    Window,
    XrcInitiator,
    XrcSrq,
    XrcTarget,
    Xrcd,
}

/// The kinds, each with its relative frequency.
pub(super) const KINDS: [(Kind, u64); 28] = [
    (Kind::Ah, 6),
    (Kind::BoundWindow, 1),
    (Kind::Buf, 8),
    (Kind::Channel, 4),
    (Kind::Context, 3),
    (Kind::Cq, 8),
    (Kind::Events, 3),
    (Kind::Exposed, 4),
    (Kind::ForWindows, 2),
    (Kind::Frozen, 4),
    (Kind::Halves, 1),
    (Kind::Member, 1),
    (Kind::Mr, 6),
    (Kind::MrChanged, 2),
    (Kind::MrExtended, 2),
    (Kind::MrNull, 2),
    (Kind::MrOnDemand, 2),
    (Kind::Mw, 4),
    (Kind::ParentDomain, 3),
    (Kind::Pd, 6),
    (Kind::Qp, 6),
    (Kind::Srq, 4),
    (Kind::Td, 3),
    (Kind::Window, 4),
    (Kind::XrcInitiator, 2),
    (Kind::XrcSrq, 2),
    (Kind::XrcTarget, 2),
    (Kind::Xrcd, 3),
];

/// The objects that one call makes: the requested object first, then its dependencies.
type Made<P> = Result<Vec<Held<P>>, NotMade>;

/// The reasons why an object was not made.
pub(super) enum NotMade {
    /// A parent of this kind is missing in the context with this number.
    Needs(Kind, u32),
    Refused(Error),
    Failed(Stop),
}

impl From<Error> for NotMade {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

impl<T> From<HandleError<T>> for NotMade {
    fn from(failed: HandleError<T>) -> Self {
        Self::Refused(failed.error)
    }
}

impl From<Stop> for NotMade {
    fn from(stop: Stop) -> Self {
        Self::Failed(stop)
    }
}

impl<P: Provider> Churn<P> {
    /// Makes an object of a random kind, or its parent if the parent is missing. Returns `false` if
    /// the device rejects a kind that it lacks.
    ///
    /// # Errors
    /// Fails if the device rejects a kind that it must have, or makes a kind that it is listed to
    /// lack.
    pub(super) fn make(&mut self) -> CaseResult<bool> {
        let mut choice = self.choices.below(KINDS.iter().map(|(_, weight)| weight).sum());
        let chosen = KINDS.iter().find(|(_, weight)| {
            let is_it = choice < *weight;
            choice = choice.wrapping_sub(*weight);
            is_it
        });
        let chosen = chosen.map_or(Kind::Pd, |(kind, _)| *kind);
        let (mut kind, mut context) = (chosen, None);
        loop {
            match self.try_make(kind, context) {
                Ok(_) if self.root.lacking.has(kind) => {
                    return fail(format_args!("{kind:?} was made, which the device is listed to lack"));
                }
                Ok(made) => {
                    *self.made.entry(kind).or_default() += 1;
                    for held in made {
                        if held.context == ROOT {
                            self.note_slot(&held.thing)?;
                        }
                        self.things.push(held);
                    }
                    return Ok(true);
                }
                Err(NotMade::Needs(parent, of)) => (kind, context) = (parent, Some(of)),
                // A rejected XRC domain also counts as a rejection of the objects in it.
                Err(NotMade::Refused(error))
                    if self.root.lacking.has(chosen) && is_told_missing(kind, &error)? =>
                {
                    *self.refused.entry(format!("{chosen:?}")).or_default() += 1;
                    return Ok(false);
                }
                Err(NotMade::Refused(error)) => return fail(format_args!("{kind:?}: {error}")),
                Err(NotMade::Failed(stop)) => return Err(stop.context(format_args!("{kind:?}"))),
            }
        }
    }

    /// Makes an object, in the given context if there is one.
    fn try_make(&mut self, kind: Kind, of: Option<u32>) -> Made<P> {
        let (context, thing) = match kind {
            Kind::Context => {
                self.next_context += 1;
                (self.next_context, Thing::Context((self.open)()?))
            }
            Kind::Channel => {
                self.of_context(of, |context| context.create_comp_channel().map(Thing::Channel))?
            }
            Kind::Events => self.of_context(of, |context| context.async_events().map(Thing::Events))?,
            Kind::Pd => self.of_context(of, |context| context.alloc_pd().map(Thing::Pd))?,
            Kind::Td => self.of_context(of, |context| context.alloc_td().map(Thing::Td))?,
            Kind::Xrcd => {
                self.of_context(of, |context| context.open_xrcd(&XrcdInit::default()).map(Thing::Xrcd))?
            }
            Kind::Cq => self.cq(of)?,
            Kind::Ah => {
                let attr = path(&self.root.gid);
                self.of_pd(of, |pd| pd.create_ah(&attr).map(Thing::Ah))?
            }
            Kind::MrNull => self.of_pd(of, |pd| pd.alloc_null_mr().map(Thing::Mr))?,
            Kind::Mw | Kind::Window => {
                let mw_type = self.choices.one_of(&[MwType::TYPE_1, MwType::TYPE_2]);
                self.of_pd(of, |pd| match kind {
                    Kind::Mw => pd.alloc_mw(mw_type).map(Thing::Mw),
                    _ => pd.alloc_window(mw_type).map(Thing::Window),
                })?
            }
            Kind::Buf => return self.bufs(of),
            Kind::Frozen | Kind::Exposed | Kind::ForWindows => self.memory(kind, of)?,
            Kind::Mr | Kind::MrChanged | Kind::MrExtended | Kind::MrOnDemand => self.region(kind, of)?,
            Kind::ParentDomain => self.parent_domain(of)?,
            Kind::Srq => self.srq(of)?,
            Kind::XrcSrq => {
                let (context, xrcd) = self.xrcd(of)?;
                let (pd, cq) = (self.pd_of(context)?, self.cq_of(context)?);
                let srq = xrcd.create_srq(&pd, cq, &SrqInit::new(1 + self.choices.below(8) as u32))?;
                (context, Thing::Srq(srq, None))
            }
            Kind::XrcTarget => {
                let (context, xrcd) = self.xrcd(of)?;
                let target = xrcd.create_target()?;
                (context, self.raised_target(target)?)
            }
            Kind::Qp => {
                let qp_type = self.choices.one_of(&[QpType::RC, QpType::UC, QpType::UD]);
                self.qp(qp_type, of)?
            }
            Kind::XrcInitiator => self.qp(QpType::XRC_SEND, of)?,
            Kind::Halves => {
                let (context, qp, _) = self.new_qp(QpType::RC, of)?;
                let (send, recv) = self.up(qp)?.into_split();
                (context, Thing::Halves(send, recv))
            }
            Kind::Member => self.member(of)?,
            Kind::BoundWindow => return self.bound_window(of),
        };
        Ok(vec![Held { context, thing }])
    }

    /// Returns the context with the given number, or any context.
    fn context(&mut self, of: Option<u32>) -> (u32, Context<P>) {
        let root = (ROOT, self.root.context.clone());
        if of == Some(ROOT) || (of.is_none() && self.choices.below(2) == 0) {
            return root;
        }
        let found = self.pick(|held| {
            let context = match &held.thing {
                Thing::Context(context) => context,
                Thing::Pd(pd) => pd.context(),
                Thing::Xrcd(xrcd) => xrcd.context(),
                _ => return None,
            };
            of.is_none_or(|of| of == held.context).then(|| (held.context, context.clone()))
        });
        found.unwrap_or(root)
    }

    fn of_context(
        &mut self,
        of: Option<u32>,
        make: impl FnOnce(&Context<P>) -> verbs::Result<Thing<P>>,
    ) -> Result<(u32, Thing<P>), NotMade> {
        let (number, context) = self.context(of);
        Ok((number, make(&context)?))
    }

    fn of_pd(
        &mut self,
        of: Option<u32>,
        make: impl FnOnce(&Pd<P>) -> verbs::Result<Thing<P>>,
    ) -> Result<(u32, Thing<P>), NotMade> {
        let (number, pd) = self.pd(of)?;
        Ok((number, make(&pd)?))
    }

    /// Returns a domain of the context with the given number, or any domain.
    fn pd(&mut self, of: Option<u32>) -> Result<(u32, Pd<P>), NotMade> {
        let of = of.unwrap_or_else(|| self.context(None).0);
        Ok((of, self.pd_of(of)?))
    }

    fn pd_of(&mut self, of: u32) -> Result<Pd<P>, NotMade> {
        let found = self.pick(|held| match &held.thing {
            Thing::Pd(pd) if held.context == of => Some(pd.clone()),
            _ => None,
        });
        found.ok_or(NotMade::Needs(Kind::Pd, of))
    }

    fn cq_of(&mut self, of: u32) -> Result<CqHandle<P>, NotMade> {
        let found = self.pick(|held| match &held.thing {
            Thing::Cq(cq) if held.context == of => Some(cq.handle()),
            _ => None,
        });
        found.ok_or(NotMade::Needs(Kind::Cq, of))
    }

    fn xrcd(&mut self, of: Option<u32>) -> Result<(u32, Xrcd<P>), NotMade> {
        let of = of.unwrap_or_else(|| self.context(None).0);
        let found = self.pick(|held| match &held.thing {
            Thing::Xrcd(xrcd) if held.context == of => Some((of, xrcd.clone())),
            _ => None,
        });
        found.ok_or(NotMade::Needs(Kind::Xrcd, of))
    }

    fn srq_of(&mut self, of: u32) -> Option<(SrqHandle<P>, Pd<P>)> {
        self.pick(|held| match &held.thing {
            Thing::Srq(srq, Some(pd)) if held.context == of => Some((srq.handle(), pd.clone())),
            _ => None,
        })
    }

    fn cq(&mut self, of: Option<u32>) -> Result<(u32, Thing<P>), NotMade> {
        let (of, context) = self.context(of);
        let choices = &mut self.choices;
        // Makes queues large enough on ConnectX, which stops a completion queue after an overrun.
        let least = if is_mlx5()? { MOST as u32 * 4 } else { 1 };
        let cqe = least + choices.below(64) as u32;
        let (resized, way) = (least + choices.below(200) as u32, choices.below(8));
        let parent = if way == 3 { self.parent_of_pd(of)? } else { None };
        let parent_domain = parent.as_ref();
        let channel = self.things.iter().find_map(|held| match &held.thing {
            Thing::Channel(channel) if held.context == of && way % 2 == 0 => Some(channel),
            _ => None,
        });
        let (flags, wc_flags) = match way {
            4 => (CqFlags::SINGLE_THREADED, CqWcFlags::STANDARD),
            5 => (CqFlags::IGNORE_OVERRUN, CqWcFlags::STANDARD),
            6 => (CqFlags::empty(), CqWcFlags::COMPLETION_TIMESTAMP),
            7 => (CqFlags::empty(), CqWcFlags::COMPLETION_TIMESTAMP_WALLCLOCK),
            _ => (CqFlags::empty(), CqWcFlags::empty()),
        };
        let init = CqInit { channel, flags, wc_flags, parent_domain, ..CqInit::new(cqe) };
        let made = context.create_cq(&init);
        let is_refused =
            matches!(&made, Err(Error { cause: Cause::CqFlags { .. } | Cause::CqWcFlags { .. }, .. }));
        // rxe supports neither ignored overruns nor timestamps. Our ConnectX provider lacks only
        // the former.
        let is_lacking = is_rxe()? && way > 4 || is_mlx5()? && way == 5;
        refused_as_listed((flags, wc_flags), is_refused, is_lacking)?;
        let mut cq = if is_refused {
            // The rejection leaves nothing behind, so a plain queue is made instead.
            *self.refused.entry("CqWithProperties".to_owned()).or_default() += 1;
            context.create_cq(&CqInit::new(cqe))?
        } else {
            made?
        };
        match way {
            0 => cq.req_notify(false)?,
            1 => cq.resize(resized)?,
            2 => {
                let moderated = cq.modify(CqModeration { cq_count: 4, cq_period: 100 });
                let is_refused = moderated.as_ref().is_err_and(|error| error.errno == Errno::OPNOTSUPP);
                refused_as_listed("moderation", is_refused, is_rxe()?)?;
                if !is_refused {
                    moderated?;
                }
            }
            _ => {}
        }
        Ok((of, Thing::Cq(cq)))
    }

    /// Allocates a parent domain in the context, if the context has a domain. Afterwards, only a
    /// completion queue keeps the parent domain alive.
    fn parent_of_pd(&mut self, of: u32) -> Result<Option<Pd<P>>, NotMade> {
        let Ok(pd) = self.pd_of(of) else { return Ok(None) };
        let parent = pd.alloc_parent_domain(&ParentDomainInit::default());
        let is_refused = parent.as_ref().is_err_and(|error| error.errno == Errno::OPNOTSUPP);
        refused_as_listed("a parent domain", is_refused, is_rxe()?)?;
        if is_refused { Ok(None) } else { Ok(Some(parent?)) }
    }

    fn buf(&mut self, pd: &Pd<P>) -> Result<Buf, NotMade> {
        let len = self.choices.one_of(&[1, 100, 4096, 20_000]);
        Ok(match self.choices.below(4) {
            0 => pd.register(vec![0_u8; len])?,
            _ => pd.alloc_buf(len)?,
        })
    }

    /// Allocates a buffer. One buffer in three is split into two pieces.
    fn bufs(&mut self, of: Option<u32>) -> Made<P> {
        let (context, pd) = self.pd(of)?;
        let mut buf = self.buf(&pd)?;
        let mut made = Vec::new();
        if self.choices.below(3) == 0 {
            let tail = buf.split_off(buf.len() / 2);
            made.push(Held { context, thing: Thing::Buf(tail) });
        }
        made.push(Held { context, thing: Thing::Buf(buf) });
        Ok(made)
    }

    fn memory(&mut self, kind: Kind, of: Option<u32>) -> Result<(u32, Thing<P>), NotMade> {
        let (of, pd) = self.pd(of)?;
        let thing = match kind {
            Kind::Frozen if self.choices.below(2) == 0 => {
                let bytes: Arc<[u8]> = vec![7; 1 + self.choices.below(5000) as usize].into();
                Thing::Frozen(pd.register_bytes(bytes)?)
            }
            Kind::Frozen => Thing::Frozen(self.buf(&pd)?.freeze()),
            Kind::ForWindows => Thing::Exposed(pd.expose_to_windows(self.buf(&pd)?)?),
            _ => {
                let rights = [RemoteAccess::READ, RemoteAccess::WRITE, RemoteAccess::ATOMIC];
                let access = self.choices.one_of(&rights);
                Thing::Exposed(pd.expose(self.buf(&pd)?, access)?)
            }
        };
        Ok((of, thing))
    }

    fn region(&mut self, kind: Kind, of: Option<u32>) -> Result<(u32, Thing<P>), NotMade> {
        let (of, pd) = self.pd(of)?;
        let start = self.choices.below(ARENA as u64 / 2) as usize;
        let end = start + 1 + self.choices.below((ARENA - start) as u64) as usize;
        let access = self.choices.one_of(&[
            AccessFlags::empty(),
            AccessFlags::LOCAL_WRITE,
            AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ,
            AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_ATOMIC,
        ]);
        let other = if self.choices.below(2) == 0 { Some(self.pd_of(of)?) } else { None };
        let arena = &self.root.arena;
        let mr = match kind {
            Kind::MrExtended => {
                let (addr, length) = arena.part(start..end);
                reg_mr_ex(&pd, &MrInit::new(addr, length, access).iova(addr.addr() as u64))?
            }
            Kind::MrOnDemand => arena.register(&pd, start..end, None, access | AccessFlags::ON_DEMAND)?,
            Kind::MrChanged => {
                // Without this right, the kernel pins the pages only for reading. rxe does not pin
                // them again later.
                let access = access | AccessFlags::LOCAL_WRITE;
                let mut mr = arena.register(&pd, start..end, None, access)?;
                let change = match &other {
                    Some(other) => MrChange::new().pd(other),
                    None => MrChange::new().access(AccessFlags::LOCAL_WRITE),
                };
                rereg(&mut mr, &change).map_err(|failed| failed.error)?;
                mr
            }
            _ => arena.register(&pd, start..end, None, access)?,
        };
        Ok((of, Thing::Mr(mr)))
    }

    fn parent_domain(&mut self, of: Option<u32>) -> Result<(u32, Thing<P>), NotMade> {
        let (of, pd) = self.pd(of)?;
        let has_td = self.choices.below(3) > 0;
        let td = self.things.iter().find_map(|held| match &held.thing {
            Thing::Td(td) if held.context == of && has_td => Some(td),
            _ => None,
        });
        let parent = pd.alloc_parent_domain(&ParentDomainInit { td, ..ParentDomainInit::default() })?;
        Ok((of, Thing::Pd(parent)))
    }

    fn srq(&mut self, of: Option<u32>) -> Result<(u32, Thing<P>), NotMade> {
        let (of, pd) = self.pd(of)?;
        let choices = &mut self.choices;
        let (max_wr, max_sge) = (8 + choices.below(32) as u32, 1 + choices.below(3) as u32);
        let mut srq = pd.create_srq(&SrqInit { max_wr, max_sge, srq_limit: 0 })?;
        for _ in 0..self.choices.below(4) {
            srq.post_recv_buf(self.buf(&pd)?, ..).map_err(|error| NotMade::Failed(error.into()))?;
        }
        match self.choices.below(3) {
            0 => srq.arm(2)?,
            1 => {
                let attr = SrqAttr { max_wr: max_wr + 40, ..SrqAttr::default() };
                let is_refused = srq.modify(&attr, SrqAttrMask::MAX_WR).is_err();
                refused_as_listed("another size of a shared receive queue", is_refused, is_mlx5()?)?;
            }
            _ => {}
        }
        Ok((of, Thing::Srq(srq, Some(pd))))
    }

    /// Creates a queue pair in RESET. Also returns its domain, unless it shares a receive queue.
    #[allow(clippy::type_complexity)]
    fn new_qp(
        &mut self,
        qp_type: QpType,
        of: Option<u32>,
    ) -> Result<(u32, Qp<Reset, P>, Option<Pd<P>>), NotMade> {
        let (of, pd) = self.pd(of)?;
        let (send_cq, recv_cq) = (self.cq_of(of)?, self.cq_of(of)?);
        let shares = [QpType::RC, QpType::UD].contains(&qp_type) && self.choices.below(3) == 0;
        let srq = if shares { self.srq_of(of) } else { None };
        let (srq, pd, own) = match srq {
            Some((srq, pd)) => (Some(srq), pd, None),
            None => (None, pd.clone(), Some(pd)),
        };
        let choices = &mut self.choices;
        let cap = QpCap {
            max_send_wr: 2 + choices.below(30) as u32,
            max_recv_wr: 2 + choices.below(30) as u32,
            max_send_sge: 1 + choices.below(4) as u32,
            max_recv_sge: 1 + choices.below(4) as u32,
            max_inline_data: choices.below(64) as u32,
        };
        let init = QpInit { cap, recv_cq, srq, ..QpInit::new(qp_type, send_cq) };
        Ok((of, pd.create_qp(&init)?, own))
    }

    fn rtr(&self, remote: Remote) -> RtrAttr {
        RtrAttr::new(path(&self.root.gid), remote.qp_num, remote.psn)
    }

    /// Connects a queue pair to itself.
    fn up(&self, qp: Qp<Reset, P>) -> Result<Qp<verbs::state::Rts, P>, NotMade> {
        let own = Remote::from_qp(&qp);
        Ok(qp.to_init(&init_attr())?.to_rtr(&self.rtr(own))?.to_rts(&RtsAttr::default())?)
    }

    /// Creates a queue pair in a random state.
    fn qp(&mut self, qp_type: QpType, of: Option<u32>) -> Result<(u32, Thing<P>), NotMade> {
        let (of, qp, pd) = self.new_qp(qp_type, of)?;
        let own = Remote::from_qp(&qp);
        let state = self.choices.below(7);
        if state == 0 {
            return Ok((of, Thing::QpReset(qp)));
        }
        let mut qp = qp.to_init(&init_attr())?;
        if let Some(pd) = pd.as_ref().filter(|_| qp_type != QpType::XRC_SEND) {
            for _ in 0..self.choices.below(3) {
                // This memory is in flight when the queue pair is destroyed.
                let buf = self.buf(pd)?;
                qp.post_recv_buf(buf, ..).map_err(|error| NotMade::Failed(error.into()))?;
            }
        }
        Ok((
            of,
            match state {
                1 => Thing::QpInit(qp),
                2 => Thing::QpRtr(qp.to_rtr(&self.rtr(own))?),
                3 if has_sqd().unwrap_or(true) => {
                    Thing::QpSqd(qp.to_rtr(&self.rtr(own))?.to_rts(&RtsAttr::default())?.to_sqd(false)?)
                }
                4 => Thing::QpErrored(qp.to_rtr(&self.rtr(own))?.to_error()?),
                5 => Thing::QpReset(qp.to_rtr(&self.rtr(own))?.to_reset()?),
                _ => {
                    let mut qp = qp.to_rtr(&self.rtr(own))?.to_rts(&RtsAttr::default())?;
                    // rxe on Linux 6.12 and later warns if memory is deregistered while packets
                    // refer to it.
                    if let Some(pd) = pd.filter(|_| qp_type == QpType::RC)
                        && !is_rxe()?
                    {
                        let sent = qp.post_send_buf(SendOp::Send, SendFlags::empty(), pd.alloc_buf(64)?, ..);
                        sent.map_err(|error| NotMade::Failed(error.into()))?;
                    }
                    Thing::QpRts(qp)
                }
            },
        ))
    }

    fn raised_target(&mut self, target: Qp<Reset, P>) -> Result<Thing<P>, NotMade> {
        let own = Remote::from_qp(&target);
        Ok(match self.choices.below(3) {
            0 => Thing::QpReset(target),
            1 => Thing::QpInit(target.to_init(&init_attr())?),
            _ => Thing::QpRtr(target.to_init(&init_attr())?.to_rtr(&self.rtr(own))?),
        })
    }

    /// Makes a queue pair that is a member of multicast groups.
    fn member(&mut self, of: Option<u32>) -> Result<(u32, Thing<P>), NotMade> {
        let (of, qp, _) = self.new_qp(QpType::UD, of)?;
        let mut qp = qp.to_init(&init_attr())?;
        let lid = group_lid().unwrap_or(0);
        for group in 0..1 + self.choices.below(3) as u32 {
            qp.attach_mcast(&group_of(group), lid)?;
        }
        if self.choices.below(2) == 0 {
            qp.detach_mcast(&group_of(0), lid)?;
        }
        Ok((of, Thing::QpInit(qp)))
    }

    /// Makes a window bound to memory, together with its queue pair and its memory.
    fn bound_window(&mut self, of: Option<u32>) -> Made<P> {
        let (context, pd) = self.pd(of)?;
        let (_, open) = self.context(Some(context));
        // Tried first, because some kernels do not support windows.
        drop(pd.alloc_window(MwType::TYPE_2)?);
        let mut cq = open.create_cq(&CqInit::new(8))?;
        let mut qp = self.up(pd.create_qp(&QpInit::new(QpType::RC, &cq))?)?;
        let memory = pd.expose_to_windows(pd.alloc_buf(4096)?)?;
        let window = pd.alloc_window(self.choices.one_of(&[MwType::TYPE_1, MwType::TYPE_2]))?;
        let posted = qp.post_bind(SendFlags::empty(), window, &memory, ..100, RemoteAccess::READ);
        posted.map_err(|error| NotMade::Failed(error.into()))?;
        let mut made = Vec::new();
        // The other windows, about half, end in flight with the queue pair.
        if self.choices.below(2) == 0 {
            let window = next_completed(&mut cq)?.into_window();
            made.push(Thing::Window(window.map_err(|error| NotMade::Failed(error.into()))?));
        }
        made.extend([Thing::QpRts(qp), Thing::Exposed(memory), Thing::Cq(cq)]);
        Ok(made.into_iter().map(|thing| Held { context, thing }).collect())
    }
}

/// The kinds that the device under test lacks.
#[derive(Debug)]
pub(super) struct Lacking(Vec<Kind>);

impl Lacking {
    /// Returns the kinds that the device lacks. They are known for rxe and soft devices but queried
    /// from ConnectX.
    pub(super) fn for_pd<P: Provider>(pd: &Pd<P>, attr: &DeviceAttrEx) -> CaseResult<Self> {
        let mut lacking = Vec::new();
        if is_mlx5()? {
            if !attr.odp_caps.general_caps.contains(OdpGeneralCaps::SUPPORT) {
                lacking.push(Kind::MrOnDemand);
            }
            // No attribute reports whether the device has a null key.
            if pd.alloc_null_mr().is_err_and(|error| error.errno == Errno::OPNOTSUPP) {
                lacking.push(Kind::MrNull);
            }
        }
        if is_rxe()? {
            lacking.extend([Kind::MrNull, Kind::ParentDomain, Kind::Td]);
            lacking.extend([Kind::XrcInitiator, Kind::XrcSrq, Kind::XrcTarget, Kind::Xrcd]);
        }
        for (kinds, (major, minor)) in [
            (&[Kind::BoundWindow, Kind::Mw, Kind::Window][..], (6, 1)),
            (&[Kind::MrChanged], (6, 5)),
            (&[Kind::MrOnDemand], (6, 15)),
        ] {
            if rxe_is_before(major, minor)? {
                lacking.extend(kinds);
            }
        }
        Ok(Self(lacking))
    }

    fn has(&self, kind: Kind) -> bool {
        self.0.contains(&kind)
    }
}

/// Fails unless the device's result agrees with the list of missing kinds.
fn refused_as_listed(what: impl fmt::Debug, is_refused: bool, is_lacking: bool) -> CaseResult {
    match (is_refused, is_lacking) {
        (true, false) => fail(format_args!("refused, which the device is listed to have: {what:?}")),
        (false, true) => fail(format_args!("made, which the device is listed to lack: {what:?}")),
        _ => Ok(()),
    }
}

/// Returns whether an error reports that the device lacks a kind.
fn is_told_missing(kind: Kind, error: &Error) -> CaseResult<bool> {
    Ok(match kind {
        // Some kernels report unsupported rights as invalid (seen on Linux 6.1).
        Kind::MrOnDemand if !is_soft()? => [Errno::INVAL, Errno::OPNOTSUPP].contains(&error.errno),
        Kind::XrcInitiator => matches!(error.cause, Cause::QpType { .. }),
        _ => error.errno == Errno::OPNOTSUPP,
    })
}
