//! [`Paging`]: the page faults of a function.

use std::collections::BTreeMap;

use roce::engine::Stall;

/// The pending page faults, and the accesses whose faults the driver could not resolve.
#[derive(Debug, Default)]
pub(crate) struct Paging {
    pub(crate) pending: BTreeMap<u32, PageFault>,
    last_token: u32,
    /// The accesses that will fail when they are repeated, by queue pair number and half.
    pub(crate) lost: BTreeMap<(u32, Half), Stall>,
}

/// A page fault that the driver has not resumed yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageFault {
    pub(crate) kind: u32,
    /// Number of the queue to resume, as the driver must name it.
    pub(crate) wq: u32,
    pub(crate) qpn: u32,
    pub(crate) stall: Stall,
    /// Whether the queue pair was destroyed or reset after the fault.
    pub(crate) orphan: bool,
}

/// A part of a queue pair that waits for pages independently of the other parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Half {
    Requester,
    Responder,
    ReadResponses,
}

/// Mask for tokens, which are 24 bits wide.
pub(crate) const TOKEN: u32 = 0x00ff_ffff;

/// Maximum number of faults stored for destroyed queue pairs. The driver may drop such a fault
/// without resuming it.
pub(crate) const MAX_ORPHANS: usize = 1024;

/// The bits of a fault type.
///
/// # References
/// Linux `include/linux/mlx5/driver.h`, `MLX5_PFAULT_REQUESTOR`; `device.h`, `MLX5_WQE_PF_TYPE_RMP`
pub(crate) const REQUESTER: u32 = 1;
pub(crate) const WRITE: u32 = 2;
pub(crate) const RDMA: u32 = 4;
pub(crate) const SHARED_QUEUE: u32 = 0;

impl Paging {
    /// Marks as orphaned the faults of a queue pair that is being destroyed or reset. The driver
    /// may still resume them.
    pub(crate) fn forget(&mut self, qpn: u32) {
        self.lost.retain(|(of, _), _| *of != qpn);
        for fault in self.pending.values_mut().filter(|fault| fault.qpn == qpn) {
            fault.orphan = true;
        }
        let orphans: Vec<u32> =
            self.pending.iter().filter(|(_, fault)| fault.orphan).map(|(token, _)| *token).collect();
        for token in orphans.iter().take(orphans.len().saturating_sub(MAX_ORPHANS)) {
            self.pending.remove(token);
        }
    }

    pub(crate) fn waits(&self, qpn: u32, half: Half) -> bool {
        self.pending
            .values()
            .any(|fault| fault.qpn == qpn && !fault.orphan && Half::from_stall(&fault.stall) == half)
    }

    /// Returns a token that no pending fault uses.
    pub(crate) fn token(&mut self) -> u32 {
        // The loop ends, because there are more tokens than possible pending faults.
        loop {
            self.last_token = self.last_token.wrapping_add(1) & TOKEN;
            if !self.pending.contains_key(&self.last_token) {
                return self.last_token;
            }
        }
    }
}

impl Half {
    pub(crate) fn from_stall(stall: &Stall) -> Self {
        match stall {
            Stall::Send { .. } | Stall::Response { .. } => Self::Requester,
            Stall::Receive { .. } | Stall::Remote { .. } => Self::Responder,
            Stall::ReadResponse { .. } => Self::ReadResponses,
        }
    }
}

#[cfg(test)]
impl Paging {
    /// Adds a pending fault without raising an event.
    pub(crate) fn pretend(&mut self, qpn: u32, stall: Stall) {
        let token = self.token();
        self.pending.insert(token, PageFault { kind: REQUESTER, wq: qpn, qpn, stall, orphan: false });
    }

    /// Returns the number of pending faults.
    pub(crate) fn len(&self) -> usize {
        self.pending.len()
    }
}
