//! Conditions that must hold once the fabric is idle.

use roce::engine::{Service, State};

use crate::oracle::{word, written};
use crate::world::{Effect, Gone, Half, World};
use crate::{Check, ensure};

impl World {
    pub(crate) fn check_end(&mut self) -> Check {
        for half in 0..self.halves.len() {
            self.check_state(half).map_err(|what| format!("at the end, half {half}: {what}"))?;
            self.check_sends(half).map_err(|what| format!("at the end, half {half}: {what}"))?;
            self.check_recvs(half).map_err(|what| format!("at the end, half {half}: {what}"))?;
            self.check_peer_memory(half).map_err(|what| format!("at the end, half {half}: {what}"))?;
        }
        for srq in 0..self.srqs.len() {
            self.check_shared(srq).map_err(|what| format!("at the end, shared queue {srq}: {what}"))?;
        }
        self.check_counters()?;
        for place in &self.eps {
            let left = self.fabric.endpoint(place.id).engine().in_flight();
            ensure!(left == 0, "at the end, {} has {left} bytes in flight", place.id);
        }
        Ok(())
    }

    fn check_state(&self, half: usize) -> Check {
        let Half { failed, gone, .. } = self.halves[half];
        let state = self.state(half);
        let expected = match gone {
            Some(Gone::Destroyed) => state.is_none(),
            Some(Gone::Reset) => state == Some(State::Reset),
            Some(Gone::Error) => state == Some(State::Err),
            None if failed => state == Some(State::Err),
            None => state == Some(State::Rts) || state == Some(State::Err) && self.may_be_failed(half),
        };
        ensure!(expected, "it is in {state:?}");
        Ok(())
    }

    fn check_sends(&mut self, half: usize) -> Check {
        let sender = &self.halves[half];
        if matches!(sender.gone, Some(Gone::Destroyed | Gone::Reset)) {
            return Ok(());
        }
        let posted = sender.sends.len();
        ensure!(sender.retired_sends == posted, "{} of {posted} sends are retired", sender.retired_sends);
        for index in sender.ended..posted {
            let Half { sends, failed_at, .. } = &self.halves[half];
            // An unsignalled send may have succeeded before another send failed.
            ensure!(failed_at.is_none() && !sends[index].signaled, "send {index} does not complete");
            self.succeeded(half, index).map_err(|what| format!("send {index}: {what}"))?;
        }
        Ok(())
    }

    fn check_recvs(&mut self, half: usize) -> Check {
        let Half { ep, peer, service, .. } = self.halves[half];
        let id = self.eps[ep].id;
        let receiver = &self.halves[half];
        if !matches!(receiver.gone, Some(Gone::Destroyed | Gone::Reset)) {
            let (ended, retired, posted) =
                (receiver.ended_recvs, receiver.retired_recvs, receiver.recvs.len());
            ensure!(ended == retired, "{ended} receives have completed, {retired} are retired");
            let failed = self.state(half) == Some(State::Err);
            ensure!(!failed || ended == posted, "{ended} of {posted} receives are flushed");
        }
        let sender = &self.halves[peer];
        if service == Service::Rc && sender.gone.is_none() && self.state(peer) == Some(State::Rts) {
            // If a key cannot be invalidated, only the receive fails.
            let sent = sender.messages.iter().filter(|message| !message.unwanted).count();
            let delivered = receiver.delivered;
            ensure!(sent == delivered, "{delivered} of {sent} messages have arrived");
        }
        for (index, recv) in receiver.recvs.iter().enumerate() {
            let Some(holds) = &recv.holds else { continue };
            ensure!(
                self.fabric.bytes(id, &recv.region) == holds,
                "receive {index} changed after it had completed"
            );
        }
        Ok(())
    }

    fn check_shared(&mut self, srq: usize) -> Check {
        // A queue pair may hold a receive for a message whose end never arrived.
        let held = self.halves.iter().filter(|half| half.srq == Some(srq)).count();
        let shared = &self.srqs[srq];
        let (completed, retired) = (shared.completed, shared.retired);
        let agree = completed <= retired && retired <= completed + held;
        ensure!(agree, "{completed} have completed, {retired} are retired");
        let id = self.eps[shared.ep].id;
        for (index, recv) in shared.recvs.iter().enumerate() {
            let Some(holds) = &recv.holds else { continue };
            ensure!(
                self.fabric.bytes(id, &recv.region) == holds,
                "receive {index} changed after it had completed"
            );
        }
        Ok(())
    }

    /// Checks how this queue pair's writes and atomics have changed the peer's memory.
    fn check_peer_memory(&mut self, half: usize) -> Check {
        let sender = &self.halves[half];
        let peer = &self.halves[sender.peer];
        let (id, mtu) = (self.eps[peer.ep].id, sender.mtu() as usize);
        let area = self.fabric.bytes(id, &peer.area).to_vec();
        let sends = &sender.sends;
        if sender.service != Service::Rc {
            let writes: Vec<_> = sends.iter().filter_map(|send| written(&send.what)).collect();
            for (at, found) in area.iter().enumerate() {
                let covers = |(start, bytes): &(usize, &[u8])| {
                    at.checked_sub(*start).and_then(|at| bytes.get(at)) == Some(found)
                };
                let known = *found == peer.area_before[at] || writes.iter().any(covers);
                ensure!(known, "the peer's memory holds {found} at {at}, which was never written");
            }
            return Ok(());
        }
        // Sends before this index have been executed. Later writes may have been executed in part,
        // in order.
        let alive = sender.gone.is_none() && self.state(half) == Some(State::Rts);
        let certain = if alive { sends.len() } else { sender.failed_at.unwrap_or(sender.ended) };
        let mut model = peer.area_before.clone();
        for (at, bytes) in sends[..certain].iter().filter_map(|send| written(&send.what)) {
            model[at..at + bytes.len()].copy_from_slice(bytes);
        }
        let differs = |model: &[u8]| model.iter().zip(&area).position(|(a, b)| a != b);
        if let Some(at) = differs(&model) {
            let uncertain = sends[certain..].iter().filter_map(|send| written(&send.what));
            let mut packets = uncertain.flat_map(|(at, bytes)| {
                bytes.chunks(mtu).enumerate().map(move |(n, packet)| (at + n * mtu, packet))
            });
            let explained = packets.any(|(at, packet)| {
                model[at..at + packet.len()].copy_from_slice(packet);
                differs(&model).is_none()
            });
            ensure!(explained, "the peer's memory differs at {at}, and no part of the writes explains it");
        }
        let mut values = vec![peer.word.addr];
        for (index, send) in sends.iter().enumerate() {
            if let Effect::CompareSwap { after, .. } | Effect::FetchAdd { after, .. } = send.what {
                if index < certain {
                    values.clear();
                }
                values.push(after);
            }
        }
        let found = word(self.fabric.bytes(id, &peer.word));
        ensure!(values.contains(&found), "the peer's word is {found:#x}, not one of {values:x?}");
        Ok(())
    }

    fn check_counters(&mut self) -> Check {
        for place in &self.eps {
            let value = word(self.fabric.bytes(place.id, &place.counter));
            let counted = place.counted.len() as u64;
            let possible = counted <= value && value <= counted + place.uncounted;
            let uncounted = place.uncounted;
            ensure!(
                possible,
                "the counter of {} is {value}: {counted} sure, {uncounted} more possible",
                place.id
            );
            let beyond = place.counted.iter().find(|found| **found >= value);
            ensure!(
                beyond.is_none(),
                "the counter of {} is {value}, and {beyond:?} was found there",
                place.id
            );
        }
        Ok(())
    }
}
