//! Destroying an id; its cookie, options and channel; events written by the program.
//!
//! # References
//! linux `rdma_destroy_id`, `ucma_set_option_id`, `ucma_migrate_id`

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use verbs::{Ece, Errno, QpType};

use super::key::Key;
use super::param::SoftParam;
use super::queue::{Entry, Queue};
use super::record::IdState;
use super::state::{Garbage, State};
use crate::cmd::option::IdOption;
use crate::types::EventType;

type Result<T> = core::result::Result<T, Errno>;

impl State {
    /// Destroys an id in any state: notifies its peer and discards its events.
    pub(super) fn destroy(&mut self, key: Key) {
        self.unlisten(key);
        let now = self.now();
        self.cancel_lookup(key);
        self.looks.remove(&key);
        let Some(id) = self.ids.remove(&key) else { return };
        if let Some(local) = id.local {
            self.ports.release(id.space.0, local.port(), key);
        }
        if let Some(adapter) = id.adapter.and_then(|number| self.adapters.get_mut(&number))
            && let Some(connection) = id.connection
        {
            adapter.connections.remove(&connection);
            adapter.cm.destroy(now, connection);
        }
        self.detach(id.adapter);
        self.unwatch(id.watch);
        self.garbage.push_back(Garbage::Requests(id.queue.discard(|entry| entry.owner == key)));
        self.garbage.push_back(Garbage::Id(Box::new(id)));
    }

    /// Ends all connections and requests because the process exits. Notifies their peers, as the
    /// kernel does when it closes the files of a process. Takes up to 0.63 s if a peer does not
    /// reply. Does not repeat messages if a device's lock is held by a thread that can no longer
    /// run.
    pub(super) fn farewell(&mut self) {
        let now = self.now();
        let mut is_free = true;
        for adapter in self.adapters.values_mut() {
            adapter.gsi.leave_requests();
            // The peer of an ended connection may still need a reply.
            is_free &= adapter.receive_at_exit(now);
            for connection in core::mem::take(&mut adapter.connections).into_keys() {
                adapter.cm.destroy(now, connection);
            }
            is_free &= adapter.send_at_exit();
        }
        if is_free {
            self.await_releases();
        }
    }

    /// Repeats release requests until all are confirmed or the time limit has passed. The kernel
    /// does this after the process has ended. Here, a peer that lost the only request would
    /// otherwise keep the connection.
    fn await_releases(&mut self) {
        let mut pause = FIRST_PAUSE;
        for _ in 0..PAUSES {
            let end = Instant::now() + pause;
            loop {
                let now = self.now();
                if !self.adapters.values_mut().all(|adapter| adapter.receive_at_exit(now)) {
                    return;
                }
                let waiting = self.adapters.values().filter(|adapter| adapter.cm.is_releasing());
                let file = |adapter| PollFd::new(AsFd::as_fd(adapter), PollFlags::POLLIN);
                let mut files: Vec<_> = waiting.map(|adapter| file(&adapter.gsi)).collect();
                if files.is_empty() {
                    return;
                }
                let left = end.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                // After an interruption, the loop only repeats the check.
                let _ = ppoll(&mut files, Some(TimeSpec::from_duration(left)), None);
            }
            for adapter in self.adapters.values_mut() {
                adapter.cm.repeat_releases();
                if !adapter.send_at_exit() {
                    return;
                }
            }
            pause *= 2;
        }
    }

    /// Sets the cookie carried by an id's events.
    pub(super) fn set_cookie(&mut self, key: Key, cookie: u64) -> Result<()> {
        self.id(key)?.cookie = cookie;
        Ok(())
    }

    /// Reports the events of an accepted request from now on (`ucma_accept`).
    pub(super) fn report_from_here(&mut self, key: Key, cookie: u64) -> Result<()> {
        let id = self.id(key)?;
        (id.cookie, id.is_silent) = (cookie, false);
        Ok(())
    }

    pub(super) fn set_option(&mut self, key: Key, option: IdOption<'_>) -> Result<()> {
        let id = self.id(key)?;
        match option {
            IdOption::Tos(tos) => id.options.tos = tos,
            // A listening id can no longer share its port.
            IdOption::ReuseAddr(on) if id.state == IdState::Idle || on && id.state != IdState::Listen => {
                id.options.reuse = on;
            }
            IdOption::AfOnly(on) if matches!(id.state, IdState::Idle | IdState::AddrBound) => {
                id.options.af_only = Some(on);
            }
            IdOption::AckTimeout(timeout) if matches!(id.qp_type, QpType::RC | QpType::XRC_SEND) => {
                // Only the lower 5 bits count, as in `modify_qp`.
                id.options.ack_timeout = Some(timeout & 31);
            }
            IdOption::ReuseAddr(_) | IdOption::AfOnly(_) | IdOption::AckTimeout(_) => {
                return Err(Errno::INVAL);
            }
            IdOption::IbPath(_) => return Err(Errno::OPNOTSUPP),
        }
        Ok(())
    }

    /// Queues an event written by the program.
    pub(super) fn write_event(&mut self, key: Key, event: EventType, status: i32, arg: u64) -> Result<()> {
        let id = self.id(key)?;
        id.queue.reserve()?;
        let (queue, cookie) = (Arc::clone(&id.queue), id.cookie);
        let (param, ece) = (SoftParam { arg, ..SoftParam::default() }, Ece::default());
        self.push(queue, Entry { owner: key, cookie, event, status, param, ece, request: None });
        Ok(())
    }

    /// Moves an id to another channel, with its unread events and a listener's unread requests.
    ///
    /// # Errors
    /// `ENOMEM` if memory is short. The id then stays on its channel, as do the events that did not
    /// fit.
    pub(super) fn migrate(&mut self, key: Key, to: &Arc<Queue>) -> Result<()> {
        let from = Arc::clone(&self.id(key)?.queue);
        if Arc::ptr_eq(&from, to) {
            return Ok(());
        }
        let move_request = |entry: &Entry| {
            let request = entry.request.as_ref().map(|request| request.key);
            if let Some(id) = request.and_then(|request| self.ids.get_mut(&request)) {
                id.queue = Arc::clone(to);
            }
        };
        from.move_to(to, |entry| entry.owner == key, move_request)?;
        self.id(key)?.queue = Arc::clone(to);
        self.wake_readers(Arc::clone(to));
        Ok(())
    }

    /// Queues an event for a group membership.
    pub(super) fn report_member(&mut self, key: Key, cookie: u64, event: EventType, param: SoftParam) {
        if let Some(id) = self.ids.get(&key) {
            let queue = Arc::clone(&id.queue);
            let (status, ece) = (0, Ece::default());
            self.push(queue, Entry { owner: key, cookie, event, status, param, ece, request: None });
        }
    }
}

/// The number of pauses between repeated release requests at exit. Each pause is twice as long as
/// the previous one.
const PAUSES: u32 = 6;
const FIRST_PAUSE: Duration = Duration::from_millis(10);
