//! [`Connection`]: the part of an id that calls and events change.

use verbs::state::{Errored, Init, Rts};
use verbs::{Ece, HandleError, Qp, Result};

use super::key::GroupKey;
use crate::device::Limits;
use crate::types::ConnParam;

/// The part of an id that calls and events change.
#[derive(Debug, Default)]
pub(crate) struct Connection {
    pub(super) qp: HeldQp,
    /// The last queue pair made by the id: its number, and whether it uses a shared receive queue.
    pub(super) made: Option<(u32, bool)>,
    /// The options offered by this side.
    pub(super) local_ece: Ece,
    /// The peer's options.
    pub(super) remote_ece: Ece,
    /// The timer set by the program for queue pairs of the id.
    pub(super) min_rnr_timer: Option<u8>,
    /// The timer of the id's queue pair, if the call set one.
    pub(super) its_rnr_timer: Option<u8>,
    /// The depths requested by the peer.
    pub(super) asked: Option<Limits>,
    /// Whether the connection failed after the peer's reply, as already reported to the program.
    pub(super) failed: bool,
    pub(super) groups: Vec<Member>,
}

impl Connection {
    /// Returns the timer for a queue pair moved by the id.
    ///
    /// The kernel's attributes have 0, the longest time, which delays a message without a receive
    /// by 655 ms. Programs may override this default. The peer sees the time only in the RNR NAK.
    pub(super) fn rnr_timer(&self) -> u8 {
        self.its_rnr_timer.or(self.min_rnr_timer).unwrap_or(ConnParam::MIN_RNR_TIMER)
    }
}

/// The queue pair that an id holds.
#[derive(Debug, Default)]
pub(super) enum HeldQp {
    /// None: the program has it, or moves the queue pair itself.
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
    /// Moves the queue pair to the error state. If that fails, it stays as it is.
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

    /// Returns the queue pair in the error state, or unchanged if it cannot be moved.
    pub(super) fn failed(self) -> Self {
        self.fail().0
    }
}

/// A membership of an id.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) key: GroupKey,
    /// The kernel's number for the membership.
    pub(super) number: u32,
}
