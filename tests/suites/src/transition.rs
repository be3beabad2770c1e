//! `transition`: compares the table in [`verbs_core::transition`] with the running kernel's table.
//!
//! The commands bypass the provider, which would consult the table before it calls the kernel.
//!
//! # Safety
//! The context and the objects that the commands use belong to this suite. Nothing is posted to the
//! queues.
#![allow(unsafe_code)]

use uverbs_abi::ib_user_ioctl_verbs::RdmaDriverId;
use uverbs_abi::rdma_user_rxe::{RxeCreateCqResp, RxeCreateQpResp};
use verbs::provider::{DeviceOps as _, PdOps as _};
use verbs::{Cause, CqInitAttr, Errno, QpAttr, QpAttrMask, QpInitAttr, QpState, QpType};
use verbs_core::channel::{Uhw, Uverbs};
use verbs_core::cmd;
use verbs_core::cmd::qp::QpHandles;
use verbs_core::kernel::{KernelContext, KernelPd};
use verbs_core::transition::{self, Transition};
use verbs_fixtures::fabric::{self, PORT, QKEY, Shape};
use verbs_harness::runner::{Case, CaseResult, fail};
use verbs_harness::tools::DEVICE;
use zerocopy::{FromZeros as _, IntoBytes as _};

const SUITE: &str = "transition";

/// The target states that programs can request. Only the device moves a queue pair to SQE.
const STATES: [QpState; 6] =
    [QpState::RESET, QpState::INIT, QpState::RTR, QpState::RTS, QpState::SQD, QpState::ERR];

/// Returns the suite's cases.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for qp_type in [QpType::RC, QpType::UC, QpType::UD] {
        for from in STATES {
            cases.push(Case::new(SUITE, format!("{qp_type} from {from}"), move || from_state(qp_type, from)));
        }
    }
    cases
}

/// Compares the table with the kernel for one state: missing attributes, forbidden attributes,
/// illegal transitions and legal transitions.
fn from_state(qp_type: QpType, from: QpState) -> CaseResult {
    let kernel = Kernel::open()?;
    let mut refused = 0;
    for to in STATES {
        let Some(transition) = transition::lookup(qp_type, from, to) else {
            let qp = kernel.qp_in(qp_type, from)?;
            let all = transition::transitions(qp_type).filter(|t| t.to == to);
            let richest = all.map(|t| t.required).fold(QpAttrMask::empty(), |a, b| a | b);
            for mask in [QpAttrMask::STATE, QpAttrMask::STATE | richest] {
                kernel.refuses(qp_type, qp, from, to, mask)?;
                refused += 1;
            }
            kernel.is_still(qp, from)?;
            continue;
        };
        let qp = kernel.qp_in(qp_type, from)?;
        for mask in wrong_masks(&transition) {
            kernel.refuses(qp_type, qp, from, to, mask)?;
            refused += 1;
        }
        kernel.is_still(qp, from)?;
        let mask = transition.required | QpAttrMask::STATE;
        transition::check(qp_type, from, to, mask).map_err(|cause| {
            verbs_harness::runner::Stop::Failed(format!("the table refuses its own row: {cause}"))
        })?;
        if let Err(error) = kernel.modify(qp, to, mask) {
            return fail(format_args!("{qp_type} {from} to {to} with what is required: {error}"));
        }
        kernel.is_still(qp, to)?;
    }
    assert!(refused > 20, "only {refused} refusals were seen");
    Ok(())
}

/// Returns the required mask with each of its attributes left out in turn and with each forbidden
/// attribute added in turn.
fn wrong_masks(transition: &Transition) -> impl Iterator<Item = QpAttrMask> + '_ {
    let base = transition.required | QpAttrMask::STATE;
    let missing = transition.required.iter().map(move |bit| base - bit);
    let named = QpAttrMask::all().iter_names().map(|(_, bit)| bit);
    // With `CUR_STATE`, the kernel may use another row of its table.
    let odd = QpAttrMask::CUR_STATE | QpAttrMask::RATE_LIMIT | QpAttrMask::CAP;
    let forbidden = named.filter(move |bit| !odd.intersects(*bit) && transition.forbidden(*bit) == *bit);
    missing.chain(forbidden.map(move |bit| base | bit))
}

/// A device whose commands this suite sends directly. Dropping it destroys all its objects.
struct Kernel {
    context: std::sync::Arc<KernelContext>,
    pd: KernelPd,
    cq: u32,
    path: verbs::AhAttr,
}

fn commands(context: &KernelContext) -> &Uverbs {
    // SAFETY: see the head of this file.
    unsafe { context.uverbs() }
}

impl Kernel {
    fn open() -> CaseResult<Self> {
        let device = verbs::devices()?.find(DEVICE)?;
        let path = fabric::path(&device.open()?.find_gid(PORT)?);
        let context = KernelContext::open(device.info(), RdmaDriverId::RDMA_DRIVER_RXE.0, |_| String::new())?;
        let pd = KernelPd::alloc(&context)?;
        let mut reply = RxeCreateCqResp::new_zeroed();
        let attr = CqInitAttr::new(16);
        let uhw = Uhw::reply(reply.as_mut_bytes());
        let cq = cmd::cq::create_cq(commands(&context), &attr, None, uhw)?.handle;
        Ok(Self { context, pd, cq, path })
    }

    /// Creates a queue pair and moves it to a state.
    fn qp_in(&self, qp_type: QpType, state: QpState) -> CaseResult<u32> {
        let mut reply = RxeCreateQpResp::new_zeroed();
        let cap = Shape::default().cap;
        let attr = QpInitAttr { qp_type, cap, sq_sig_all: false, user_handle: 0 };
        let event_fd = Some(self.context.async_fd()?);
        let uhw = Uhw::reply(reply.as_mut_bytes());
        let uverbs = commands(&self.context);
        let parents = QpHandles {
            pd: Some(self.pd.handle()),
            send_cq: Some(self.cq),
            recv_cq: Some(self.cq),
            ..QpHandles::default()
        };
        let qp = cmd::qp::create_qp(uverbs, &parents, &attr, event_fd, uhw)?.handle;
        let way: &[QpState] = match state {
            QpState::RESET => &[],
            QpState::INIT => &[QpState::INIT],
            QpState::RTR => &[QpState::INIT, QpState::RTR],
            QpState::RTS => &[QpState::INIT, QpState::RTR, QpState::RTS],
            QpState::SQD => &[QpState::INIT, QpState::RTR, QpState::RTS, QpState::SQD],
            _ => &[QpState::INIT, QpState::ERR],
        };
        let mut at = QpState::RESET;
        for &to in way {
            let required = transition::lookup(qp_type, at, to).map(|row| row.required).unwrap_or_default();
            self.modify(qp, to, required | QpAttrMask::STATE)?;
            at = to;
        }
        if state == QpState::SQD {
            // Until the queue is drained, the queue pair rejects transitions.
            fabric::eventually("the send queue is drained", || {
                let mask = QpAttrMask::STATE | QpAttrMask::EN_SQD_ASYNC_NOTIFY;
                cmd::qp::query_qp(uverbs, qp, mask).is_ok_and(|(attr, _)| !attr.sq_draining)
            })?;
        }
        self.is_still(qp, state)?;
        Ok(qp)
    }

    /// Requests a transition to `to` with the given mask. Each attribute that a mask can select has
    /// a value.
    fn modify(&self, qp: u32, to: QpState, mask: QpAttrMask) -> verbs::Result<()> {
        let attr = QpAttr {
            qp_state: to,
            path_mtu: verbs::Mtu::MTU_1024,
            qkey: QKEY,
            dest_qp_num: 0x11,
            ah_attr: self.path,
            alt_ah_attr: self.path,
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
            port_num: PORT,
            alt_port_num: PORT,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            ..QpAttr::default()
        };
        cmd::qp::modify_qp(commands(&self.context), qp, &attr, mask)
    }

    fn refuses(&self, qp_type: QpType, qp: u32, from: QpState, to: QpState, mask: QpAttrMask) -> CaseResult {
        match transition::check(qp_type, from, to, mask) {
            Err(Cause::IllegalTransition { .. } | Cause::TransitionAttributes { .. }) => {}
            other => {
                return fail(format_args!("the table says {other:?} of {qp_type} {from} to {to}, {mask:?}"));
            }
        }
        match self.modify(qp, to, mask) {
            Err(error) if error.errno == Errno::INVAL => Ok(()),
            other => {
                fail(format_args!("the kernel says {other:?} of {qp_type} {from} to {to} with {mask:?}"))
            }
        }
    }

    fn is_still(&self, qp: u32, state: QpState) -> CaseResult {
        let (attr, _) = cmd::qp::query_qp(commands(&self.context), qp, QpAttrMask::STATE)?;
        if attr.qp_state == state {
            Ok(())
        } else {
            fail(format_args!("it is in {} and not in {state}", attr.qp_state))
        }
    }
}
