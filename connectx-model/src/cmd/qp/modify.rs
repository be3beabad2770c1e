//! Queue pair transitions, with their required and optional attributes.
//!
//! ```text
//!  RESET ──RST2INIT──► INIT ──INIT2RTR──► RTR ──RTR2RTS──► RTS ◄──SQERR2RTS── SQ error
//!                      └─┘ INIT2INIT                       └─┘ RTS2RTS
//!  any ──2ERR──► ERR            any ──2RST──► RESET         RTS ◄──SQD2RTS─── SQ drained
//! ```
//! A transition sets all of its required attributes, and those optional attributes that the mask
//! selects. The device ignores the other fields of the context. A queue pair's state differs from
//! the driver's view only after a failure.
//!
//! # References
//! PRM, "queue pair state transitions"; IBTA figure 124, 11.2.5.2

use roce::engine::{Access, AttrChange, Network, Qpn, State};

use crate::bus::Bus;
use crate::checks::{engine, missing};
use crate::cmd::qp::path::{attribute, check_fields, check_port, mac, pkey, read};
use crate::cmd::qp::{check_reserved, ece, name};
use crate::complaint::Rule;
use crate::destination::Destination;
use crate::function::{Core, Function};
use crate::layout::Field;
use crate::layout::caps::cmd_hca_cap;
use crate::layout::qp::{ads, qp_2err_in, qp_2rst_in, qpc, rst2init_qp_in, rst2init_qp_out};
use crate::refusal::{Refusal, Status};
use crate::state::qp::Service;

/// The mask bits that select optional attributes.
mod optional {
    pub(super) const ALTERNATE_PATH: u32 = 1 << 0;
    pub(super) const RRE: u32 = 1 << 1;
    pub(super) const RAE: u32 = 1 << 2;
    pub(super) const RWE: u32 = 1 << 3;
    pub(super) const PKEY_INDEX: u32 = 1 << 4;
    pub(super) const Q_KEY: u32 = 1 << 5;
    pub(super) const RNR_TIMEOUT: u32 = 1 << 6;
    pub(super) const PM_STATE: u32 = 1 << 10;
    pub(super) const PORT: u32 = 1 << 16;
    pub(super) const COUNTER_SET: u32 = 1 << 25;
    pub(super) const ACCESS: u32 = RRE | RAE | RWE;
}

/// A transition. It determines the old and the new state, and the required attributes for each
/// service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transition {
    RstToInit,
    InitToInit,
    InitToRtr,
    RtrToRts,
    RtsToRts,
    SqErrToRts,
    SqdToRts,
}

impl Transition {
    fn ends(self) -> (State, State) {
        match self {
            Self::RstToInit => (State::Reset, State::Init),
            Self::InitToInit => (State::Init, State::Init),
            Self::InitToRtr => (State::Init, State::Rtr),
            Self::RtrToRts => (State::Rtr, State::Rts),
            Self::RtsToRts => (State::Rts, State::Rts),
            Self::SqErrToRts => (State::Sqe, State::Rts),
            Self::SqdToRts => (State::Sqd, State::Rts),
        }
    }

    /// Returns the mask of optional attributes that a transition allows.
    fn allows(self, service: Service) -> u32 {
        use optional::{
            ACCESS, ALTERNATE_PATH, COUNTER_SET, PKEY_INDEX, PM_STATE, PORT, Q_KEY, RNR_TIMEOUT, RWE,
        };
        let reliable = matches!(service, Service::Rc | Service::XrcInitiator | Service::XrcTarget);
        match (self, service) {
            (Self::RstToInit, _) | (_, Service::RegUmr) => 0,
            (Self::InitToInit, Service::Ud | Service::Qp0 | Service::Qp1) => PKEY_INDEX | Q_KEY | PORT,
            (Self::InitToInit, Service::Uc) => RWE | PKEY_INDEX | PORT,
            (Self::InitToInit, _) => ACCESS | PKEY_INDEX | PORT,
            (Self::InitToRtr, Service::Ud | Service::Qp0 | Service::Qp1) => PKEY_INDEX | Q_KEY,
            (Self::InitToRtr, Service::Uc) => ALTERNATE_PATH | RWE | PKEY_INDEX,
            (Self::InitToRtr, _) => ALTERNATE_PATH | ACCESS | PKEY_INDEX,
            (_, Service::Ud | Service::Qp0 | Service::Qp1) => Q_KEY | self.counter(COUNTER_SET),
            (Self::RtrToRts | Self::RtsToRts, Service::Uc) => {
                ALTERNATE_PATH | RWE | PM_STATE | self.counter(COUNTER_SET)
            }
            (Self::RtrToRts | Self::RtsToRts, _) => {
                ALTERNATE_PATH | ACCESS | PM_STATE | RNR_TIMEOUT | self.counter(COUNTER_SET)
            }
            (Self::SqErrToRts | Self::SqdToRts, Service::Uc) => RWE,
            (Self::SqErrToRts | Self::SqdToRts, _) => ACCESS | if reliable { RNR_TIMEOUT } else { 0 },
        }
    }

    fn counter(self, bit: u32) -> u32 {
        if self == Self::RtsToRts { bit } else { 0 }
    }
}

/// Defines one handler per transition command.
macro_rules! transitions {
    ($($function:ident: $transition:ident;)*) => {$(
        pub(crate) fn $function<B: Bus>(
            function: &mut Function<B>,
            input: &[u8],
            output: &mut [u8],
        ) -> Result<(), Refusal> {
            modify(function, input, output, Transition::$transition)
        }
    )*};
}

transitions! {
    rst2init: RstToInit;
    init2init: InitToInit;
    init2rtr: InitToRtr;
    rtr2rts: RtrToRts;
    rts2rts: RtsToRts;
    sqerr2rts: SqErrToRts;
    sqd2rts: SqdToRts;
}

fn modify<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    output: &mut [u8],
    transition: Transition,
) -> Result<(), Refusal> {
    // These fields have the same offset in the inputs and outputs of all transitions. Inputs
    // without connection options reserve that field.
    let qpn = rst2init_qp_in::QPN.get32(input);
    let mask = rst2init_qp_in::OPT_PARAM_MASK.get32(input);
    let context = rst2init_qp_in::QPC.bytes(input);
    let asked = rst2init_qp_in::ECE.get32(input);
    check_reserved(context)?;
    let qp = function.core.qps.get(&qpn).ok_or_else(|| missing(name(qpn)))?;
    let (service, mut kept) = (qp.service, qp.context);
    let (state, _) = function.engine.query_qp(Qpn(qpn)).map_err(|refused| engine(refused, &name(qpn)))?;
    let (from, to) = transition.ends();
    if state != from {
        return Err(elsewhere(qpn, state, from));
    }
    let unknown = mask & !transition.allows(service);
    if unknown != 0 {
        return Err(attribute(format!(
            "{transition:?} of {service:?} with optional attributes {unknown:#x}, which it does not allow"
        )));
    }
    let mut change = AttrChange { state: Some(to), ..AttrChange::default() };
    required(&function.core, service, transition, context, &mut kept, &mut change)?;
    options(&function.core, service, mask, context, &mut kept, &mut change)?;
    apply(function, qpn, &change)?;
    if let Some(path) = change.path.filter(|path| path.network == Network::Udp) {
        let mac = mac(qpc::PRIMARY_ADDRESS_PATH.bytes(context));
        function.core.destinations.add(Destination { gid: path.remote, mac, qpn });
    }
    if let Some(qp) = function.core.qps.get_mut(&qpn) {
        qp.context = kept;
        if asked != 0 {
            qp.ece = ece::agreed(service, asked);
            rst2init_qp_out::ECE.set(output, qp.ece);
        }
    }
    if transition == Transition::RstToInit {
        start(&mut function.core, qpn);
    }
    // Work requests posted before the transition are processed now.
    function.state_changed(qpn);
    Ok(())
}

/// Checks that both doorbell records of a queue pair start at 0, and records the first bytes of its
/// receive queue.
fn start<B: Bus>(core: &mut Core<B>, qpn: u32) {
    let Some(record) = core.qps.get(&qpn).and_then(|qp| qp.doorbell_record) else { return };
    core.needs_start(record, &format!("{}, receives", name(qpn)));
    core.needs_start(record.saturating_add(4), &format!("{}, sends", name(qpn)));
    core.remember_receives(qpn);
}

/// Returns the [`Refusal`] for a transition from `from` while the queue pair is in `state`.
fn elsewhere(qpn: u32, state: State, from: State) -> Refusal {
    match state {
        // The queue pair may have failed without the driver's knowledge.
        State::Err | State::Sqe => Refusal::fair(Status::BadQpState),
        _ => {
            let what = format!("{} is in {state:?}, not in {from:?}", name(qpn));
            Refusal::broken(Status::BadQpState, Rule::QpTransition, what)
        }
    }
}

fn apply<B: Bus>(function: &mut Function<B>, qpn: u32, change: &AttrChange) -> Result<(), Refusal> {
    let Function { engine: transport, core, .. } = function;
    let now = core.now;
    transport.modify_qp(Qpn(qpn), change, now, core).map_err(|refused| engine(refused, &name(qpn)))
}

/// Copies `fields` from a context to the stored context.
fn take(kept: &mut [u8], context: &[u8], fields: &[Field]) {
    for field in fields {
        field.set(kept, field.get(context));
    }
}

fn rights(context: &[u8]) -> Access {
    let bits = [
        (qpc::RRE, Access::REMOTE_READ),
        (qpc::RWE, Access::REMOTE_WRITE),
        (qpc::RAE, Access::REMOTE_ATOMIC),
    ];
    bits.iter().filter(|(bit, _)| bit.is_set(context)).fold(Access::NONE, |all, (_, right)| all | *right)
}

/// Applies the attributes that a transition requires.
fn required<B: Bus>(
    core: &Core<B>,
    service: Service,
    transition: Transition,
    context: &[u8],
    kept: &mut [u8],
    change: &mut AttrChange,
) -> Result<(), Refusal> {
    let connected = service.is_connected();
    let reliable = matches!(service, Service::Rc | Service::XrcInitiator | Service::XrcTarget);
    let primary = qpc::PRIMARY_ADDRESS_PATH.bytes(context);
    match transition {
        Transition::RstToInit => {
            if ads::VHCA_PORT_NUM.get(primary) != 1 {
                return Err(attribute(format!("port {}", ads::VHCA_PORT_NUM.get(primary))));
            }
            change.pkey = Some(pkey(&core.port, primary)?);
            let path = qpc::PRIMARY_ADDRESS_PATH.bytes_mut(kept);
            take(path, primary, &[ads::PKEY_INDEX, ads::VHCA_PORT_NUM]);
            take(kept, context, &[qpc::PM_STATE, qpc::COUNTER_SET_ID]);
            if connected {
                access(context, kept, change)?;
            } else {
                queue_key(context, kept, change);
            }
        }
        Transition::InitToRtr => {
            let (mtu, log_msg) = (qpc::MTU.get32(context), qpc::LOG_MSG_MAX.get32(context));
            if !(1..=5).contains(&mtu) {
                return Err(attribute(format!("path MTU {mtu}")));
            }
            core.at_most("bytes of message", log_msg, cmd_hca_cap::LOG_MAX_MSG)?;
            if log_msg == 0 {
                return Err(attribute("a maximum message of one byte"));
            }
            change.path_mtu = Some(128 << mtu);
            take(kept, context, &[qpc::MTU, qpc::LOG_MSG_MAX]);
            if connected {
                change.path = Some(read(&core.port, primary)?);
                change.dest_qpn = Some(qpc::REMOTE_QPN.get32(context));
                change.rq_psn = Some(qpc::NEXT_RCV_PSN.get32(context));
                take(kept, context, &[qpc::REMOTE_QPN, qpc::NEXT_RCV_PSN]);
                keep_path(kept, primary);
            }
            if reliable {
                let log = qpc::LOG_RRA_MAX.get32(context);
                change.max_dest_rd_atomic = Some(outstanding(core, log, cmd_hca_cap::LOG_MAX_RA_RES_QP)?);
                change.min_rnr_timer = Some(qpc::MIN_RNR_NAK.get(context) as u8);
                take(kept, context, &[qpc::LOG_RRA_MAX, qpc::MIN_RNR_NAK]);
            }
        }
        Transition::RtrToRts => {
            change.sq_psn = Some(qpc::NEXT_SEND_PSN.get32(context));
            take(kept, context, &[qpc::NEXT_SEND_PSN, qpc::LOG_ACK_REQ_FREQ]);
            if reliable {
                let log = qpc::LOG_SRA_MAX.get32(context);
                change.max_rd_atomic = Some(outstanding(core, log, cmd_hca_cap::LOG_MAX_RA_REQ_QP)?);
                change.timeout = Some(ads::ACK_TIMEOUT.get(primary) as u8);
                change.retry_cnt = Some(qpc::RETRY_COUNT.get(context) as u8);
                change.rnr_retry = Some(qpc::RNR_RETRY.get(context) as u8);
                take(kept, context, &[qpc::LOG_SRA_MAX, qpc::RETRY_COUNT, qpc::RNR_RETRY]);
                take(qpc::PRIMARY_ADDRESS_PATH.bytes_mut(kept), primary, &[ads::ACK_TIMEOUT]);
            }
        }
        Transition::InitToInit | Transition::RtsToRts | Transition::SqErrToRts | Transition::SqdToRts => {}
    }
    Ok(())
}

/// Converts a log2 maximum of outstanding reads and atomics to a number. Rejects a value above the
/// capability.
fn outstanding<B: Bus>(core: &Core<B>, log: u32, capability: Field) -> Result<u8, Refusal> {
    core.at_most("outstanding reads and atomics", log, capability)?;
    Ok(1 << log)
}

fn access(context: &[u8], kept: &mut [u8], change: &mut AttrChange) -> Result<(), Refusal> {
    if qpc::RAE.is_set(context) && !qpc::ATOMIC_MODE.is_set(context) {
        return Err(attribute("atomic access without an atomic mode"));
    }
    take(kept, context, &[qpc::RRE, qpc::RWE, qpc::RAE, qpc::ATOMIC_MODE]);
    change.access = Some(rights(kept));
    Ok(())
}

fn queue_key(context: &[u8], kept: &mut [u8], change: &mut AttrChange) {
    take(kept, context, &[qpc::Q_KEY]);
    change.qkey = Some(qpc::Q_KEY.get32(context));
}

/// Copies the primary path to the stored context, except for the fields that the transition to INIT
/// has set.
fn keep_path(kept: &mut [u8], primary: &[u8]) {
    let path = qpc::PRIMARY_ADDRESS_PATH.bytes_mut(kept);
    let before = [ads::PKEY_INDEX, ads::VHCA_PORT_NUM].map(|field| (field, field.get(path)));
    path.copy_from_slice(primary);
    for (field, value) in before {
        field.set(path, value);
    }
}

/// Applies the optional attributes that the mask selects.
fn options<B: Bus>(
    core: &Core<B>,
    service: Service,
    mask: u32,
    context: &[u8],
    kept: &mut [u8],
    change: &mut AttrChange,
) -> Result<(), Refusal> {
    let primary = qpc::PRIMARY_ADDRESS_PATH.bytes(context);
    let rights_named = [(optional::RRE, qpc::RRE), (optional::RWE, qpc::RWE), (optional::RAE, qpc::RAE)];
    if mask & optional::ACCESS != 0 {
        if mask & optional::RAE != 0 && qpc::RAE.is_set(context) && !qpc::ATOMIC_MODE.is_set(context) {
            return Err(attribute("atomic access without an atomic mode"));
        }
        for (_, field) in rights_named.iter().filter(|(bit, _)| mask & bit != 0) {
            take(kept, context, &[*field]);
        }
        if mask & optional::RAE != 0 {
            take(kept, context, &[qpc::ATOMIC_MODE]);
        }
        change.access = Some(rights(kept));
    }
    if mask & optional::PKEY_INDEX != 0 {
        change.pkey = Some(pkey(&core.port, primary)?);
        take(qpc::PRIMARY_ADDRESS_PATH.bytes_mut(kept), primary, &[ads::PKEY_INDEX]);
    }
    if mask & optional::Q_KEY != 0 && !service.is_connected() {
        queue_key(context, kept, change);
    }
    if mask & optional::RNR_TIMEOUT != 0 {
        change.min_rnr_timer = Some(qpc::MIN_RNR_NAK.get(context) as u8);
        take(kept, context, &[qpc::MIN_RNR_NAK]);
    }
    if mask & optional::PORT != 0 {
        check_port(primary)?;
        take(qpc::PRIMARY_ADDRESS_PATH.bytes_mut(kept), primary, &[ads::VHCA_PORT_NUM]);
    }
    if mask & optional::PM_STATE != 0 {
        take(kept, context, &[qpc::PM_STATE]);
    }
    if mask & optional::ALTERNATE_PATH != 0 {
        // The alternate path is stored only for queries: paths never migrate in this model.
        let alternate = qpc::SECONDARY_ADDRESS_PATH.bytes(context);
        check_port(alternate)?;
        check_fields(&core.port, alternate)?;
        qpc::SECONDARY_ADDRESS_PATH.bytes_mut(kept).copy_from_slice(alternate);
    }
    if mask & optional::COUNTER_SET != 0 {
        take(kept, context, &[qpc::COUNTER_SET_ID]);
    }
    Ok(())
}

pub(crate) fn to_error<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Refusal> {
    let qpn = qp_2err_in::QPN.get32(input);
    if !function.core.qps.contains_key(&qpn) {
        return Err(missing(name(qpn)));
    }
    // Work requests posted before this command are flushed too.
    function.refill(qpn);
    apply(function, qpn, &AttrChange { state: Some(State::Err), ..AttrChange::default() })?;
    function.state_changed(qpn);
    Ok(())
}

pub(crate) fn to_reset<B: Bus>(
    function: &mut Function<B>,
    input: &[u8],
    _: &mut [u8],
) -> Result<(), Refusal> {
    let qpn = qp_2rst_in::QPN.get32(input);
    if !function.core.qps.contains_key(&qpn) {
        return Err(missing(name(qpn)));
    }
    function.core.note_unannounced(qpn);
    apply(function, qpn, &AttrChange { state: Some(State::Reset), ..AttrChange::default() })?;
    function.core.abandon_entries(qpn);
    function.core.attention.forget(qpn);
    function.core.paging.forget(qpn);
    if let Some(qp) = function.core.qps.get_mut(&qpn) {
        qp.restart();
    }
    Ok(())
}
