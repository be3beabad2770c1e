//! [`Engine::resume`]: continues after a [`Stall`].

use crate::engine::Engine;
use crate::engine::memory::{Memory, Sink};
use crate::engine::types::{Qpn, Stall, Time};

impl<M: Memory> Engine<M> {
    /// Continues after a stall reported to [`Sink::postpone`]. The engine repeats the memory
    /// access, which stalls again if the memory is still not present.
    ///
    /// Stalls of receives and of memory named by a peer need no call, because the peer repeats its
    /// request.
    pub fn resume(&mut self, qpn: Qpn, stall: &Stall, now: Time, sink: &mut impl Sink) {
        self.objects.with(qpn.0, now, sink, |qp, _| match stall {
            Stall::Send { .. } | Stall::Response { .. } => qp.req.stalled = false,
            Stall::ReadResponse { .. } => qp.resp.responses.stalled = false,
            Stall::Receive { .. } | Stall::Remote { .. } => {}
        });
    }
}
