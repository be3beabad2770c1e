//! [`Core`]: the control object of a queue pair, kept alive by its flow rules.
//!
//! A program may drop a queue pair before its rules, but the kernel refuses to destroy it before
//! them. So destruction is deferred, as for a completion queue: the dropped core leaves the
//! provider's object in the state it shares with the rules. The last rule destroys this object.
//!
//! ```text
//! Qp, or both halves ── Core ── handle ─► the provider's object   Core dropped: the object moves
//!                        └───── rules ──► Deferred                 to `Deferred`
//!                                           ▲                     last Flow dropped: `Deferred` is
//!                                   Flow, Flow: QpUse             dropped, which destroys it
//! ```

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

use verbs_core::provider::Provider;

use crate::handle::error::HandleError;
use crate::handle::kernel_handle::KernelHandle;
use crate::handle::registry::{Child, Entry, RULES, Registry};
use crate::in_flight::InFlight;
use crate::memory::Memory;
use crate::memory::window::WithWindows;
use crate::queue::cq::CqUse;

/// The control object of a queue pair, without the queues for posting.
pub(super) struct Core<P: Provider> {
    /// Empty only while a method moves the handle out of the core.
    handle: KernelHandle<WithWindows<P::Qp>, Dependencies>,
    rules: Arc<Deferred>,
}

/// A flow rule's share of a queue pair: the queue pair is not destroyed while the share lives.
#[derive(Debug)]
pub(crate) struct QpUse {
    _rules: Arc<Deferred>,
}

/// The provider's object, if the queue pair was dropped while rules used it.
#[derive(Debug, Default)]
struct Deferred(Mutex<Option<Box<dyn Any + Send>>>);

/// The dependencies of a queue pair, released once it is destroyed.
pub(super) struct Dependencies {
    pub(super) sends: InFlight,
    pub(super) recvs: InFlight,
    /// Memory in flight before a RESET that does not end requests, kept until the queue pair is
    /// destroyed.
    pub(super) undead: Vec<Memory>,
    pub(super) entry: Entry,
    pub(super) registry: Arc<Registry>,
    pub(super) psn: u32,
    pub(super) _parents: Parents,
    /// The queue pair's completion counters.
    pub(super) counters: Mutex<Vec<Child>>,
}

/// The completion queues, shared receive queue, work queue table and domain that a queue pair uses.
pub(super) struct Parents {
    pub(super) _send_cq: Option<CqUse>,
    pub(super) _recv_cq: Option<CqUse>,
    pub(super) _srq: Option<Child>,
    /// The table of work queues to receive through.
    pub(super) _table: Option<Child>,
    /// The protection domain, or the XRC domain of a target.
    pub(super) _domain: Child,
}

impl<P: Provider> Core<P> {
    pub(super) fn new(qp: P::Qp, dependencies: Dependencies) -> Self {
        Self { handle: KernelHandle::new(WithWindows::new(qp), dependencies), rules: Arc::default() }
    }

    #[inline]
    pub(super) fn get(&self) -> &WithWindows<P::Qp> {
        self.handle.get()
    }

    #[inline]
    pub(super) fn get_mut(&mut self) -> &mut WithWindows<P::Qp> {
        self.handle.get_mut()
    }

    pub(super) fn dependencies(&self) -> &Dependencies {
        self.handle.dependencies()
    }

    pub(super) fn dependencies_mut(&mut self) -> &mut Dependencies {
        self.handle.dependencies_mut()
    }

    pub(super) fn parts_mut(&mut self) -> (&mut WithWindows<P::Qp>, &mut Dependencies) {
        self.handle.parts_mut()
    }

    /// Returns a share for a flow rule.
    pub(super) fn share(&self) -> QpUse {
        QpUse { _rules: Arc::clone(&self.rules) }
    }

    /// Destroys the queue pair and returns its dependencies.
    ///
    /// # Errors
    /// Returns the unchanged core with the error: `EBUSY` while the queue pair has flow rules, or
    /// the errno from the provider.
    #[allow(clippy::result_large_err)]
    pub(super) fn close(mut self) -> Result<Dependencies, HandleError<Self>> {
        if self.has_rules() {
            let error = self.dependencies().registry.in_use("destroy_qp", RULES);
            return Err(HandleError { handle: self, error });
        }
        let rules = Arc::clone(&self.rules);
        self.handle.detach().close().map_err(|failed| failed.map(|handle| Self { handle, rules }))
    }

    /// Converts the provider's object into an object of another provider.
    ///
    /// # Errors
    /// Returns the unchanged core if `map` gives the object back.
    #[allow(clippy::result_large_err)]
    pub(super) fn try_map<U: Provider>(
        mut self,
        map: impl FnOnce(P::Qp) -> Result<U::Qp, P::Qp>,
    ) -> Result<Core<U>, Self> {
        let rules = Arc::clone(&self.rules);
        match self.handle.detach().try_map(|qp| qp.try_map(map)) {
            Ok(handle) => Ok(Core { handle, rules }),
            Err(handle) => Err(Self { handle, rules }),
        }
    }

    /// Returns whether a flow rule has a share. No other thread adds one, because a share is made
    /// from the queue pair.
    fn has_rules(&mut self) -> bool {
        Arc::get_mut(&mut self.rules).is_none()
    }
}

impl<P: Provider> Drop for Core<P> {
    fn drop(&mut self) {
        if !self.handle.is_empty() && self.has_rules() {
            // If the last rule ends now, dropping this core's share destroys it.
            let mut deferred = self.rules.0.lock().unwrap_or_else(PoisonError::into_inner);
            *deferred = Some(Box::new(self.handle.detach()));
        }
    }
}

impl Dependencies {
    pub(super) fn drain(&mut self) -> Vec<Memory> {
        self.sends.drain().chain(self.recvs.drain()).collect()
    }
}
