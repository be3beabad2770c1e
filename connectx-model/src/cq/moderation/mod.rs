//! Moderation of completion events: one event for several completions.
//!
//! ```text
//!            arm                  a completion that counts
//!   fired ──────────► armed, 0 held ───────────► armed, 1 held, until a time
//!     ▲                     │ moderation is off                │
//!     └─────────────────────┴──────────────────────────────────┘ CQ_MAX_COUNT are held,
//!                                                                or the time: one event
//! ```
//! A completion counts if it would raise an event without moderation. The event is raised no later
//! than `CQ_PERIOD` microseconds after the first such completion.
//!
//! The manual leaves three points open. In this model, the period of an idle queue begins with the
//! first completion. Arming the queue counts earlier completions that are still unread, and keeps
//! their deadline. A change of the parameters applies from the next completion.
//!
//! # References
//! PRM, "completion queue context" (`cq_period`, `cq_max_count`); `ibv_modify_cq(3)`; Linux
//! `drivers/infiniband/hw/mlx5/cq.c` (`mlx5_ib_modify_cq`)

use crate::bus::Bus;
use crate::function::Core;
use crate::state::cq::Cq;

impl<B: Bus> Core<B> {
    /// Adds to the count of completions that would raise an event. Returns whether moderation
    /// delays the event.
    pub(super) fn hold(&mut self, cqn: u32, completions: u32) -> bool {
        let now = self.now;
        let Some(cq) = self.cqs.get_mut(&cqn) else { return false };
        let Some((count, period)) = cq.moderation() else { return false };
        cq.held.completions = cq.held.completions.saturating_add(completions);
        if cq.held.completions >= count {
            return false;
        }
        let until = *cq.held.until.get_or_insert(now + period);
        self.next_held = Some(self.next_held.map_or(until, |next| next.min(until)));
        true
    }

    /// Raises the delayed events whose time has come.
    pub(crate) fn raise_held(&mut self) {
        let now = self.now;
        if self.next_held.is_none_or(|next| next > now) {
            return;
        }
        let is_due = |cq: &&Cq| cq.held.until.is_some_and(|until| until <= now);
        let due: Vec<u32> = self.cqs.values().filter(is_due).map(|cq| cq.cqn).collect();
        for cqn in due {
            self.raise(cqn);
        }
        self.next_held = self.cqs.values().filter_map(|cq| cq.held.until).min();
    }
}

#[cfg(test)]
mod tests;
