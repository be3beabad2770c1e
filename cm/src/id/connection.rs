//! [`Connection`]: the part of an id changed by calls and events.

use verbs::state::{Errored, Init, Rts};
use verbs::{Ece, HandleError, Qp, Result};

use super::key::GroupKey;
use crate::device::Limits;
use crate::types::ConnParam;

/// The part of an id that calls and events change.
#[derive(Debug, Default)]
pub(crate) struct Connection {
    pub(super) qp: HeldQp,
    /// The number of the last queue pair created for the id, and whether that queue pair uses a
    /// shared receive queue.
    pub(super) made: Option<(u32, bool)>,
    /// The ECE options offered by this side.
    pub(super) local_ece: Ece,
    /// The peer's ECE options.
    pub(super) remote_ece: Ece,
    /// The RNR timer set by the program for queue pairs of the id.
    pub(super) min_rnr_timer: Option<u8>,
    /// The RNR timer passed with the id's queue pair, if any.
    pub(super) its_rnr_timer: Option<u8>,
    /// The read and atomic depths that the peer requested.
    pub(super) asked: Option<Limits>,
    /// Whether the connection failed after the peer's reply. The failure was already reported to
    /// the program.
    pub(super) failed: bool,
    pub(super) groups: Vec<Member>,
}

impl Connection {
    /// Returns the RNR timer for a queue pair whose state the id changes.
    ///
    /// The kernel's attributes have code 0, the longest time, which delays a message without a
    /// receive by 655 ms. Programs may override this default. The peer sees the time only in the
    /// RNR NAK.
    pub(super) fn rnr_timer(&self) -> u8 {
        self.its_rnr_timer.or(self.min_rnr_timer).unwrap_or(ConnParam::MIN_RNR_TIMER)
    }
}

/// The queue pair that an id holds.
#[derive(Debug, Default)]
pub(super) enum HeldQp {
    /// No queue pair: none was created yet, the program has taken it, or the program manages its
    /// own.
    #[default]
    None,
    /// The queue pair waits for the peer.
    Init(Qp<Init>),
    /// The queue pair is connected.
    Rts(Qp<Rts>),
    /// The connection has failed.
    Errored(Qp<Errored>),
}

impl HeldQp {
    /// Moves the queue pair to the error state. If that fails, its state is unchanged.
    pub(super) fn fail(self) -> (Self, Result<()>) {
        match self {
            Self::Init(qp) => qp.to_error().map_or_else(
                |HandleError { handle, error }| (Self::Init(handle), Err(error)),
                |qp| (Self::Errored(qp), Ok(())),
            ),
            Self::Rts(qp) => qp.to_error().map_or_else(
                |HandleError { handle, error }| (Self::Rts(handle), Err(error)),
                |qp| (Self::Errored(qp), Ok(())),
            ),
            held => (held, Ok(())),
        }
    }

    /// Returns the queue pair in the error state, or unchanged if the transition fails.
    pub(super) fn failed(self) -> Self {
        self.fail().0
    }
}

/// A group membership of an id.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) key: GroupKey,
    /// The kernel's handle for the membership.
    pub(super) number: u32,
}
