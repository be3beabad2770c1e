//! A connection and its part in each step.
//!
//! ```text
//!   client  create_id ─ bind ─ resolve_addr ─ resolve_route ─ create_qp ─ init_qp ─ connect
//!                                                                     answer_response ─ disconnect
//!   server  take_request ─ answer_request ─ (ESTABLISHED) ─ answer_disconnect
//!   both    destroy_qp ─ destroy_id
//! ```

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rdmacm::{CmId, ConnParam, PortSpace};
use verbs::state::{Init, Reset, Rtr, Rts};
use verbs::{Cq, CqInit, Errno, Error, Pd, Qp, QpAttr, QpAttrMask, QpCap, QpInit, QpState, QpType};

use super::Run;
use crate::cmtime::steps::{Step, Times};

/// A connection.
#[derive(Debug, Default)]
pub(super) struct Conn {
    pub(super) times: Times,
    pub(super) end: Mutex<End>,
}

/// One end of a connection.
#[derive(Debug, Default)]
pub(super) struct End {
    qp: Held,
    pub(super) id: Option<CmId>,
    /// The peer's index.
    peer: usize,
    /// The number of remaining retries.
    retries: i32,
    pub(super) has_disconnected: bool,
}

/// A queue pair in any state.
#[derive(Debug, Default)]
pub(super) enum Held {
    /// No queue pair.
    #[default]
    None,
    Reset(Qp<Reset>),
    Init(Qp<Init>),
    Rtr(Qp<Rtr>),
    Rts(Qp<Rts>),
}

/// The objects shared by all queue pairs.
#[derive(Debug)]
pub(super) struct Verbs {
    cq: Cq,
    pd: Pd,
}

impl End {
    /// Returns one end of a new connection to a peer.
    pub(super) fn with_peer(peer: usize) -> Self {
        Self { peer, ..Self::default() }
    }
}

impl Held {
    /// Moves the queue pair to its next state.
    fn step(self, attr: &QpAttr, mask: QpAttrMask) -> Result<Self, Error> {
        match self {
            Self::Reset(qp) => qp.modify_to(attr, mask).map(Self::Init).map_err(|refused| refused.error),
            Self::Init(qp) => qp.modify_to(attr, mask).map(Self::Rtr).map_err(|refused| refused.error),
            Self::Rtr(qp) => qp.modify_to(attr, mask).map(Self::Rts).map_err(|refused| refused.error),
            held => Ok(held),
        }
    }

    fn qp_num(&self) -> Option<u32> {
        Some(match self {
            Self::None => return None,
            Self::Reset(qp) => qp.qp_num(),
            Self::Init(qp) => qp.qp_num(),
            Self::Rtr(qp) => qp.qp_num(),
            Self::Rts(qp) => qp.qp_num(),
        })
    }
}

impl Run {
    pub(super) fn create_id(&self, index: usize) {
        self.conns[index].times.start(Step::FullConnect);
        let id = self.channel.create_id(PortSpace::TCP);
        let id = id.unwrap_or_else(|error| self.fatal("rdma_create_id", &error));
        self.enter(id.key(), index);
        self.end(index).id = Some(id);
    }

    pub(super) fn bind(&self, index: usize) {
        self.with_id(index, "rdma_bind_addr", |id, _| id.bind_addr(self.source));
    }

    pub(super) fn resolve_addr(&self, index: usize) {
        self.end(index).retries = self.options.retries;
        self.conns[index].times.start(Step::ResolveAddr);
        let timeout = self.options.timeout;
        self.with_id(index, "rdma_resolve_addr", |id, peer| match self.peers[peer].address {
            Some(to) => id.resolve_addr(Some(self.source), to, timeout),
            None => Err(Error::new("resolve_addr", "", Errno::AFNOSUPPORT)),
        });
    }

    pub(super) fn resolve_route(&self, index: usize) {
        self.end(index).retries = self.options.retries;
        self.conns[index].times.start(Step::ResolveRoute);
        self.with_id(index, "rdma_resolve_route", |id, _| id.resolve_route(self.options.timeout));
    }

    /// Calls a function with the connection's id and its peer's index.
    fn with_id(&self, index: usize, call: &str, run: impl FnOnce(&CmId, usize) -> Result<(), Error>) {
        let end = self.end(index);
        if let Some(id) = &end.id
            && let Err(error) = run(id, end.peer)
        {
            self.fatal(call, &error);
        }
    }

    pub(super) fn create_qp(&self, index: usize) {
        let with_qps = self.with_qps.load(Ordering::Acquire);
        let verbs = self.verbs(index);
        let times = &self.conns[index].times;
        times.start(Step::CreateQp);
        if with_qps {
            let mut init = QpInit { sq_sig_all: true, ..QpInit::new(QpType::RC, &verbs.cq) };
            init.cap = QpCap { max_send_wr: 1, max_recv_wr: 1, ..init.cap };
            let qp = verbs.pd.create_qp(&init);
            let qp = qp.unwrap_or_else(|error| self.fatal("ibv_create_qp", &error));
            self.end(index).qp = Held::Reset(qp);
        } else {
            self.pause();
        }
        times.end(Step::CreateQp);
        self.complete(Step::CreateQp);
    }

    /// Returns the objects shared by all queue pairs. Creates them on the first connection's
    /// device.
    fn verbs(&self, index: usize) -> Arc<Verbs> {
        let mut verbs = self.verbs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(verbs) = &*verbs {
            return Arc::clone(verbs);
        }
        self.say("\tAllocating verbs resources\n");
        let end = self.end(index);
        let context = match end.id.as_ref().map(CmId::context) {
            Some(Ok(context)) => context,
            Some(Err(error)) => self.fatal("ibv_alloc_pd", &error),
            None => self.fatal("ibv_alloc_pd", &Error::new("alloc_pd", "", Errno::INVAL)),
        };
        let pd = context.alloc_pd().unwrap_or_else(|error| self.fatal("ibv_alloc_pd", &error));
        let cq = context.create_cq(&CqInit::new(1));
        let cq = cq.unwrap_or_else(|error| self.fatal("ibv_create_cq", &error));
        Arc::clone(verbs.insert(Arc::new(Verbs { cq, pd })))
    }

    pub(super) fn init_qp(&self, index: usize) {
        self.modify(index, QpState::INIT, Step::InitQpAttr, Step::InitQp);
    }

    /// Moves a connection's queue pair to its next state, in two steps.
    fn modify(&self, index: usize, state: QpState, attr_step: Step, step: Step) {
        let times = &self.conns[index].times;
        let mut end = self.end(index);
        let Some(id) = &end.id else { return };
        times.start(attr_step);
        let attr = id.init_qp_attr(state);
        let (attr, mask) = attr.unwrap_or_else(|error| self.fatal("rdma_init_qp_attr", &error));
        times.end(attr_step);
        times.start(step);
        match std::mem::take(&mut end.qp) {
            Held::None => self.pause(),
            held => {
                let moved = held.step(&attr, mask);
                end.qp = moved.unwrap_or_else(|error| self.fatal("ibv_modify_qp", &error));
            }
        }
        times.end(step);
        self.complete(step);
    }

    fn pause(&self) {
        match self.pause.load(Ordering::Acquire) {
            0 => {}
            pause => thread::sleep(Duration::from_micros(pause)),
        }
    }

    fn param(&self, end: &End) -> ConnParam<'static> {
        let invented = || self.next_qpn.fetch_add(1, Ordering::AcqRel);
        ConnParam {
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: 0,
            rnr_retry_count: 0,
            qp_num: end.qp.qp_num().unwrap_or_else(invented),
            ..ConnParam::default()
        }
    }

    pub(super) fn connect(&self, index: usize) {
        let end = self.end(index);
        let Some(id) = &end.id else { return };
        let param = self.param(&end);
        self.conns[index].times.start(Step::Connect);
        id.connect_with(&param).unwrap_or_else(|error| self.fatal("rdma_connect", &error));
    }

    /// Prepares the client's queue pair after the server's reply.
    pub(in crate::cmtime) fn answer_response(&self, index: usize) {
        let times = &self.conns[index].times;
        self.modify(index, QpState::RTR, Step::RtrQpAttr, Step::RtrQp);
        self.modify(index, QpState::RTS, Step::RtsQpAttr, Step::RtsQp);
        times.start(Step::Establish);
        if let Some(id) = &self.end(index).id {
            // As in C, a peer that is already gone is reported as the connection's end.
            let _ = id.establish();
        }
        times.end(Step::Establish);
        times.end(Step::Connect);
        times.end(Step::FullConnect);
        self.complete(Step::Connect);
    }

    /// Prepares the server's queue pair and accepts the connection.
    pub(in crate::cmtime) fn answer_request(&self, index: usize) {
        self.create_qp(index);
        self.modify(index, QpState::INIT, Step::InitQpAttr, Step::InitQp);
        self.modify(index, QpState::RTR, Step::RtrQpAttr, Step::RtrQp);
        self.modify(index, QpState::RTS, Step::RtsQpAttr, Step::RtsQp);
        let end = self.end(index);
        let Some(id) = &end.id else { return };
        id.accept_with(&self.param(&end)).unwrap_or_else(|error| self.fatal("failure accepting", &error));
    }

    pub(super) fn disconnect(&self, index: usize) {
        self.disconnect_id(index);
        self.complete(Step::Disconnect);
    }

    /// Ends the server's side of a connection.
    pub(in crate::cmtime) fn answer_disconnect(&self, index: usize) {
        self.end(index).has_disconnected = true;
        self.disconnect_id(index);
        if self.disconnected.load(Ordering::Acquire) >= self.count() {
            self.times.end(Step::Disconnect);
        }
        self.complete(Step::Disconnect);
    }

    fn disconnect_id(&self, index: usize) {
        let times = &self.conns[index].times;
        times.start(Step::Disconnect);
        if let Some(id) = &self.end(index).id {
            // As in C, a connection that has already ended is not a failure.
            let _ = id.disconnect();
        }
        times.end(Step::Disconnect);
    }

    pub(super) fn destroy_qp(&self, index: usize) {
        drop(std::mem::take(&mut self.end(index).qp));
    }

    pub(super) fn destroy_id(&self, index: usize) {
        let id = self.end(index).id.take();
        drop(id);
    }

    /// Resolves the address or route again. Returns false if no retries are left or the call fails.
    pub(in crate::cmtime) fn retry(&self, index: usize, step: Step) -> bool {
        let mut end = self.end(index);
        let left = end.retries;
        end.retries = left.wrapping_sub(1);
        if left == 0 {
            return false;
        }
        let Some(id) = &end.id else { return false };
        let timeout = self.options.timeout;
        if step == Step::ResolveRoute {
            return id.resolve_route(timeout).is_ok();
        }
        let to = self.peers[end.peer].address;
        to.is_some_and(|to| id.resolve_addr(Some(self.source), to, timeout).is_ok())
    }
}
