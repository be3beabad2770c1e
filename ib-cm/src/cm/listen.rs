//! Listeners: the services for which the caller accepts requests, and the limits on waiting
//! requests.

use std::collections::BTreeMap;

use super::Cm;
use super::types::{CmId, ListenId, Refused};
use crate::wire::{Gid, ServiceId};

/// All listeners and the counts of their waiting requests.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    listeners: BTreeMap<ListenId, Listener>,
    /// Listeners with a single service id, by this id.
    by_service: BTreeMap<ServiceId, ListenId>,
    /// Listeners that match service ids under a mask. Linear search suffices for these few.
    masked: Vec<ListenId>,
    /// The number of requests waiting for the caller's response.
    pending: usize,
    /// The number of waiting requests from each source address.
    by_source: BTreeMap<Gid, usize>,
    created: u64,
}

#[derive(Debug)]
struct Listener {
    service_id: ServiceId,
    mask: u64,
    backlog: usize,
    pending: usize,
}

impl Listener {
    /// Returns whether any service id under `service_id` and `mask` also belongs to this listener.
    fn overlaps(&self, service_id: ServiceId, mask: u64) -> bool {
        (self.service_id.0 ^ service_id.0) & self.mask & mask == 0
    }
}

impl Listeners {
    pub(super) fn len(&self) -> usize {
        self.listeners.len()
    }

    /// Returns the listener that a request for `service_id` addresses.
    pub(super) fn find(&self, service_id: ServiceId) -> Option<ListenId> {
        let masked = || {
            let is_its = |id: &&ListenId| {
                self.listeners.get(id).is_some_and(|listener| listener.overlaps(service_id, u64::MAX))
            };
            self.masked.iter().find(is_its)
        };
        self.by_service.get(&service_id).or_else(masked).copied()
    }

    /// Returns whether the listener may queue one more request from the address `source`. `max` is
    /// the limit for all listeners together.
    ///
    /// No address may have more waiting requests than there are free slots. One flooding address
    /// gets half of the slots, and two get a third each. A slot always remains for another address.
    pub(super) fn has_room(&self, id: ListenId, source: &Gid, max: usize) -> bool {
        let free = max.saturating_sub(self.pending);
        self.by_source.get(source).copied().unwrap_or(0) < free
            && self.listeners.get(&id).is_some_and(|listener| listener.pending < listener.backlog)
    }

    pub(super) fn add_pending(&mut self, id: ListenId, source: Gid) {
        self.pending += 1;
        *self.by_source.entry(source).or_default() += 1;
        if let Some(listener) = self.listeners.get_mut(&id) {
            listener.pending += 1;
        }
    }

    fn remove_pending(&mut self, id: ListenId, source: Gid) {
        self.pending = self.pending.saturating_sub(1);
        if let Some(count) = self.by_source.get_mut(&source) {
            *count -= 1;
            if *count == 0 {
                self.by_source.remove(&source);
            }
        }
        if let Some(listener) = self.listeners.get_mut(&id) {
            listener.pending = listener.pending.saturating_sub(1);
        }
    }
}

impl Cm {
    /// Starts a listener for service ids equal to `service_id` in the bits of `mask`; `u64::MAX`
    /// selects this id only. The listener receives connection requests and service id resolution
    /// requests. At most `backlog` requests wait for the caller at a time. Further requests are
    /// dropped, so their senders try again later.
    ///
    /// # Errors
    /// [`Refused::Listening`] if another listener has one of the service ids; [`Refused::NoRoom`];
    /// [`Refused::Invalid`] if `backlog` is 0.
    pub fn listen(&mut self, service_id: ServiceId, mask: u64, backlog: usize) -> Result<ListenId, Refused> {
        let service_id = ServiceId(service_id.0 & mask);
        if backlog == 0 {
            return Err(Refused::Invalid("a backlog of 0 takes no request"));
        }
        let listeners = &mut self.listeners;
        let taken = if mask == u64::MAX && listeners.masked.is_empty() {
            listeners.by_service.contains_key(&service_id)
        } else {
            listeners.listeners.values().any(|listener| listener.overlaps(service_id, mask))
        };
        if taken {
            return Err(Refused::Listening);
        }
        if listeners.len() >= self.config.max_listeners {
            return Err(Refused::NoRoom);
        }
        listeners.created += 1;
        let id = ListenId(listeners.created);
        listeners.listeners.insert(id, Listener { service_id, mask, backlog, pending: 0 });
        if mask == u64::MAX {
            listeners.by_service.insert(service_id, id);
        } else {
            listeners.masked.push(id);
        }
        Ok(id)
    }

    /// Closes a listener. Requests already queued remain valid, even if the caller has not fetched
    /// their events yet.
    ///
    /// # Errors
    /// [`Refused::NoSuchId`].
    pub fn unlisten(&mut self, id: ListenId) -> Result<(), Refused> {
        let listeners = &mut self.listeners;
        let listener = listeners.listeners.remove(&id).ok_or(Refused::NoSuchId)?;
        if listeners.by_service.get(&listener.service_id) == Some(&id) {
            listeners.by_service.remove(&listener.service_id);
        }
        listeners.masked.retain(|masked| *masked != id);
        Ok(())
    }

    /// Removes a request from its listener's backlog once the caller has responded. Does nothing if
    /// the backlog does not contain it.
    pub(super) fn settle(&mut self, id: CmId) {
        let Some(connection) = self.table.get_mut(id) else { return };
        if let Some((listener, source)) = connection.pending.take() {
            self.listeners.remove_pending(listener, source);
        }
    }
}
