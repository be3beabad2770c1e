//! The attributes of each queue pair transition: state × state × type → required and optional.
//!
//! [`check`] explains a bare `EINVAL` from the kernel. [`lookup`] and [`transitions`] expose the
//! table, for code that builds masks or documents from it. The table itself is one page below and
//! reads like the table in the specification.
//!
//! This is the table of the kernel's RDMA core, used by nearly every InfiniBand and RoCE driver,
//! plus the changes that uverbs makes to a mask first. It does not cover:
//! - **iWARP**: there, the connection manager modifies the queue pair, with masks that would be
//!   wrong here.
//! - **drivers with their own rules**, such as mlx5 for a queue pair with a source QPN, which takes
//!   no attributes.
//! - **[`QpType::DRIVER`] and types without a name**: their provider decides, so [`check`] accepts
//!   everything.
//! - **SMI and GSI**: only the kernel uses these queue pairs; no program can create one.
//! - **values**: a nonexistent port, a privileged Q_Key. Nor does it cover one rejection by uverbs
//!   that does not depend on values: the table lists `AV` for UC from SQD to SQD, but uverbs adds
//!   `PORT`, which UC does not accept there. Therefore, no UC queue pair of a kernel device can
//!   change its path in SQD. UC queue pairs of other devices can.
//!
//! A rejection by [`check`] is therefore a sound explanation once the kernel has rejected the mask,
//! and a sound guess before that.
//!
//! Invariant: [`check`] accepts a mask that the core of any kernel since 5.10 passes to the driver,
//! even if another kernel rejects it. This matters for packet pacing ([`QpAttrMask::RATE_LIMIT`]).
//! Since Linux 7.2, the driver decides in every transition whether to accept `RATE_LIMIT`. Before,
//! the core accepted it only where the table lists it (for RC only since Linux 7.0).
//!
//! # References
//! `ibv_modify_qp(3)`; IBTA volume 1, sections 10.3.1 (states) and 11.2.5.2 (attributes of a
//! transition); Linux, `qp_state_table` and `ib_modify_qp_is_ok` in
//! `drivers/infiniband/core/verbs.c`, `modify_qp` in `drivers/infiniband/core/uverbs_cmd.c`

use crate::error::Cause;
use crate::types::{QpAttr, QpAttrMask, QpState, QpType};

/// The table of transitions. A transition that is not listed is illegal. A type that is not listed
/// for a transition accepts no attributes in it.
///
/// Each row lists the old states and the new state, then in braces the types with their
/// `[required]` and `[optional]` attributes.
const TABLE: &[Edge] = table! {
    RESET INIT RTR RTS SQD SQE ERR => RESET {}
          INIT RTR RTS SQD SQE ERR => ERR {}

    RESET => INIT {
        RC UC XRC_SEND XRC_RECV: [PKEY_INDEX PORT ACCESS_FLAGS] [];
        UD:                      [PKEY_INDEX PORT QKEY] [];
        RAW_PACKET:              [PORT] [];
    }
    INIT => INIT {
        RC UC XRC_SEND XRC_RECV: [] [PKEY_INDEX PORT ACCESS_FLAGS];
        UD:                      [] [PKEY_INDEX PORT QKEY];
    }
    INIT => RTR {
        RC:          [AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER]
                     [PKEY_INDEX ACCESS_FLAGS ALT_PATH RATE_LIMIT];
        XRC_RECV:    [AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER]
                     [PKEY_INDEX ACCESS_FLAGS ALT_PATH];
        UC XRC_SEND: [AV PATH_MTU DEST_QPN RQ_PSN]
                     [PKEY_INDEX ACCESS_FLAGS ALT_PATH];
        UD:          [] [PKEY_INDEX QKEY];
    }
    RTR => RTS {
        RC:         [SQ_PSN TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC]
                    [CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE MIN_RNR_TIMER RATE_LIMIT];
        XRC_SEND:   [SQ_PSN TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC]
                    [CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE];
        XRC_RECV:   [SQ_PSN TIMEOUT]
                    [CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE MIN_RNR_TIMER];
        UC:         [SQ_PSN] [CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE];
        UD:         [SQ_PSN] [CUR_STATE QKEY];
        RAW_PACKET: [] [RATE_LIMIT];
    }
    RTS => RTS {
        RC:          [] [CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE MIN_RNR_TIMER RATE_LIMIT];
        XRC_RECV:    [] [CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE MIN_RNR_TIMER];
        UC XRC_SEND: [] [CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE];
        UD:          [] [CUR_STATE QKEY];
        RAW_PACKET:  [] [RATE_LIMIT];
    }
    RTS => SQD {
        RC UC UD XRC_SEND XRC_RECV: [] [EN_SQD_ASYNC_NOTIFY];
    }
    SQD => RTS {
        RC XRC_RECV: [] [CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE MIN_RNR_TIMER];
        UC XRC_SEND: [] [CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE];
        UD:          [] [CUR_STATE QKEY];
    }
    SQD => SQD {
        RC:       [] [PKEY_INDEX PORT AV ACCESS_FLAGS ALT_PATH PATH_MIG_STATE TIMEOUT RETRY_CNT RNR_RETRY
                      MAX_QP_RD_ATOMIC MAX_DEST_RD_ATOMIC MIN_RNR_TIMER];
        XRC_SEND: [] [PKEY_INDEX PORT AV ACCESS_FLAGS ALT_PATH PATH_MIG_STATE TIMEOUT RETRY_CNT RNR_RETRY
                      MAX_QP_RD_ATOMIC];
        XRC_RECV: [] [PKEY_INDEX PORT AV ACCESS_FLAGS ALT_PATH PATH_MIG_STATE TIMEOUT
                      MAX_DEST_RD_ATOMIC MIN_RNR_TIMER];
        UC:       [] [PKEY_INDEX AV ACCESS_FLAGS ALT_PATH PATH_MIG_STATE];
        UD:       [] [PKEY_INDEX QKEY];
    }
    SQE => RTS {
        UC: [] [CUR_STATE ACCESS_FLAGS];
        UD: [] [CUR_STATE QKEY];
    }
};

/// The types covered by [`TABLE`].
const TYPES: [QpType; 6] =
    [QpType::RC, QpType::UC, QpType::UD, QpType::XRC_SEND, QpType::XRC_RECV, QpType::RAW_PACKET];

/// A transition of one queue pair type, with its attributes.
///
/// [`QpAttrMask::STATE`] is in none of the sets: it is always allowed, and without it the queue
/// pair stays in its state. The three sets are disjoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// The state before the transition.
    pub from: QpState,
    /// The state after the transition.
    pub to: QpState,
    /// The attributes required in the mask.
    pub required: QpAttrMask,
    /// The attributes allowed in the mask.
    pub optional: QpAttrMask,
    /// The attributes allowed without effect, or with a device-dependent effect. Those for the half
    /// that an XRC queue pair lacks are dropped by uverbs. `RATE_LIMIT` is left to the driver.
    pub tolerated: QpAttrMask,
}

impl Transition {
    /// Returns the required attributes missing from `mask`.
    pub const fn missing(&self, mask: QpAttrMask) -> QpAttrMask {
        self.required.difference(mask)
    }

    /// Returns the attributes in `mask` that the transition does not accept, including unnamed
    /// bits.
    pub const fn forbidden(&self, mask: QpAttrMask) -> QpAttrMask {
        let taken = self.required.union(self.optional).union(self.tolerated).union(QpAttrMask::STATE);
        mask.difference(taken)
    }
}

/// Returns the transition of a queue pair type between two states. `None` if the transition does
/// not exist or the table does not cover the type.
///
/// # References
/// IBTA volume 1, section 11.2.5.2
pub fn lookup(qp_type: QpType, from: QpState, to: QpState) -> Option<Transition> {
    if !TYPES.contains(&qp_type) {
        return None;
    }
    let edge = TABLE.iter().find(|edge| edge.to == to && edge.from.contains(&from))?;
    let (required, optional) = match edge.rows.iter().find(|row| row.types.contains(&qp_type)) {
        Some(row) => (row.required, row.optional),
        None => (QpAttrMask::empty(), QpAttrMask::empty()),
    };
    let tolerated = tolerated(qp_type).difference(required).difference(optional);
    Some(Transition { from, to, required, optional, tolerated })
}

/// Returns every transition of a queue pair type, in the order of the states; none for types
/// outside the table.
pub fn transitions(qp_type: QpType) -> impl Iterator<Item = Transition> {
    let to_any = move |&from| QpState::NAMED.iter().filter_map(move |&to| lookup(qp_type, from, to));
    QpState::NAMED.iter().flat_map(to_any)
}

/// Checks whether a queue pair may move from state `from` to state `to` with this mask;
/// [`endpoints`] derives the states from the attributes. `Ok` for types outside the table.
///
/// ```
/// use verbs_core::transition;
/// use verbs_core::types::{QpAttrMask, QpState, QpType};
///
/// let mask = QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::QKEY;
/// assert!(transition::check(QpType::UD, QpState::RESET, QpState::INIT, mask).is_ok());
///
/// let refused = transition::check(QpType::RC, QpState::RESET, QpState::INIT, mask).unwrap_err();
/// assert_eq!(refused.to_string(), "RC RESET to INIT misses ACCESS_FLAGS and does not take QKEY");
/// ```
///
/// # Errors
/// - [`Cause::IllegalTransition`]: the transition does not exist.
/// - [`Cause::TransitionAttributes`]: the transition exists, but not with this mask.
///
/// # References
/// `ibv_modify_qp(3)`
pub fn check(qp_type: QpType, from: QpState, to: QpState, mask: QpAttrMask) -> Result<(), Cause> {
    if !TYPES.contains(&qp_type) {
        return Ok(());
    }
    let Some(transition) = lookup(qp_type, from, to) else {
        // mlx5 stores a rate limit that is set alone until RTS, even in states where attributes
        // cannot change in place.
        let paces_in_place = from == to && mask == QpAttrMask::RATE_LIMIT;
        return if paces_in_place { Ok(()) } else { Err(Cause::IllegalTransition { qp_type, from, to }) };
    };
    let (missing, forbidden) = (transition.missing(mask), transition.forbidden(mask));
    if missing.is_empty() && forbidden.is_empty() {
        return Ok(());
    }
    Err(Cause::TransitionAttributes { qp_type, from, to, missing, forbidden })
}

/// Returns the states before and after applying `attr` to a queue pair, as the kernel sees them.
/// `at` is the presumed current state. The first result is `cur_qp_state` if the mask has
/// [`CUR_STATE`](QpAttrMask::CUR_STATE), and otherwise `at`. The second is `qp_state` if the mask
/// has [`STATE`](QpAttrMask::STATE), and otherwise the first.
pub const fn endpoints(at: QpState, attr: &QpAttr, mask: QpAttrMask) -> (QpState, QpState) {
    let from = if mask.contains(QpAttrMask::CUR_STATE) { attr.cur_qp_state } else { at };
    let to = if mask.contains(QpAttrMask::STATE) { attr.qp_state } else { from };
    (from, to)
}

/// Returns the attributes that every transition of a type accepts in addition to its table row.
fn tolerated(qp_type: QpType) -> QpAttrMask {
    let other_half = match qp_type {
        QpType::XRC_SEND => QpAttrMask::MAX_DEST_RD_ATOMIC | QpAttrMask::MIN_RNR_TIMER,
        QpType::XRC_RECV => QpAttrMask::MAX_QP_RD_ATOMIC | QpAttrMask::RETRY_CNT | QpAttrMask::RNR_RETRY,
        _ => QpAttrMask::empty(),
    };
    other_half | QpAttrMask::RATE_LIMIT
}

/// Transitions from several states to one state, with the same attributes.
struct Edge {
    from: &'static [QpState],
    to: QpState,
    rows: &'static [Row],
}

/// The required and optional attributes for some queue pair types.
struct Row {
    types: &'static [QpType],
    required: QpAttrMask,
    optional: QpAttrMask,
}

/// Allows [`TABLE`] to be written as a table.
macro_rules! table {
    ($(
        $($from:ident)+ => $to:ident {
            $($($qp_type:ident)+: [$($required:ident)*] [$($optional:ident)*];)*
        }
    )*) => {
        &[$(Edge {
            from: &[$(QpState::$from),+],
            to: QpState::$to,
            rows: &[$(Row {
                types: &[$(QpType::$qp_type),+],
                required: QpAttrMask::empty()$(.union(QpAttrMask::$required))*,
                optional: QpAttrMask::empty()$(.union(QpAttrMask::$optional))*,
            }),*],
        }),*]
    };
}
use table;

#[cfg(test)]
mod tests;
