//! [`Fabric`]: connected functions.
//!
//! ```text
//! store ──► Function ──packets──► route ──► Function (other or same) ──► ... until none is left
//! ```
//! InfiniBand packets are routed by the destination LID, RoCE packets by the destination GID. RoCE
//! senders must use the MAC address that belongs to the GID. Multicast packets reach all functions,
//! including the sender. Ethernet frames reach the other function; the sender loops back its own
//! frames if needed. A port that is down neither sends nor receives.
//!
//! Invariant: one call carries a bounded number of packets. If packets remain, [`Fabric::deadline`]
//! requests the next call immediately.

pub(crate) mod wire;

use roce::engine::{Arrival, Network, Path, Time};

use crate::bus::Bus;
use crate::complaint::{Complaint, Rule};
use crate::config::{BAR0, ISEG_SIZE};
use crate::destination::{Destination, group_mac};
use crate::function::Function;

/// One or two functions and the wire between their ports.
#[derive(Debug)]
pub struct Fabric<B: Bus> {
    pub(crate) functions: Vec<Function<B>>,
    /// Whether packets remained when the last call reached its limit.
    busy: bool,
    now: Time,
    packet: Vec<u8>,
}

/// Maximum number of packets carried in one call, together some tens of megabytes.
const PACKETS: usize = 1 << 13;
/// Maximum length of a packet in bytes: headers, path MTU, trailer.
const PACKET: usize = 4096 + 256;
/// Length of the invariant checksum (ICRC), in bytes. Its value is not checked, because this wire
/// never corrupts bits.
const ICRC: usize = 4;
/// The lowest LID of multicast groups.
const MULTICAST_LID: u16 = 0xc000;

impl<B: Bus> Fabric<B> {
    /// Returns a fabric that connects these functions.
    pub fn new(functions: Vec<Function<B>>) -> Self {
        Self { functions, busy: false, now: Time::default(), packet: vec![0; PACKET] }
    }

    /// Returns the number of functions.
    pub fn len(&self) -> usize {
        self.functions.len()
    }

    /// Returns whether the fabric has no functions.
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }

    /// Reads registers in a BAR of a function.
    pub fn bar_read(&mut self, function: usize, bar: u32, offset: u64, into: &mut [u8], now: Time) {
        self.tick(now);
        match self.functions.get_mut(function) {
            Some(function) => function.bar_read(bar, offset, into, now),
            None => into.fill(0xff),
        }
    }

    /// Writes registers in a BAR of a function, then carries the resulting packets.
    pub fn bar_write(&mut self, function: usize, bar: u32, offset: u64, from: &[u8], now: Time) {
        self.tick(now);
        let Some(function) = self.functions.get_mut(function) else { return };
        if bar == BAR0 && offset < ISEG_SIZE {
            // Earlier doorbells must take effect before a command does.
            function.release(None);
        }
        function.bar_write(bar, offset, from, now);
        self.pump();
    }

    /// Reads from a function's configuration space.
    pub fn config_read(&mut self, function: usize, offset: u64, into: &mut [u8]) {
        match self.functions.get_mut(function) {
            Some(function) => function.config_read(offset, into),
            None => into.fill(0xff),
        }
    }

    /// Writes to a function's configuration space.
    pub fn config_write(&mut self, function: usize, offset: u64, from: &[u8]) {
        if let Some(function) = self.functions.get_mut(function) {
            function.config_write(offset, from);
        }
    }

    /// Resets a function to its state after power-on.
    pub fn reset(&mut self, function: usize) {
        if let Some(function) = self.functions.get_mut(function) {
            function.reset();
        }
    }

    /// Advances time to `now`, executes what is due and carries the resulting packets.
    pub fn expire(&mut self, now: Time) {
        self.tick(now);
        for function in &mut self.functions {
            function.expire(self.now);
        }
        self.pump();
    }

    /// Returns the latest time by which [`expire`](Self::expire) must be called if no other call
    /// comes earlier; `None` if no call is needed.
    pub fn deadline(&self) -> Option<Time> {
        if self.busy {
            return Some(self.now);
        }
        self.functions.iter().filter_map(Function::deadline).min()
    }

    /// Ends the run: complains about doorbells whose second half is missing.
    pub fn finish(&mut self) {
        self.functions.iter_mut().for_each(Function::drop_half_stores);
    }

    /// Removes and returns the stored complaints about all functions.
    pub fn take_complaints(&mut self) -> Vec<Complaint> {
        self.functions.iter_mut().flat_map(Function::take_complaints).collect()
    }

    /// Removes and returns the stored notes about all functions.
    pub fn take_notes(&mut self) -> Vec<String> {
        self.functions.iter_mut().flat_map(|function| function.core.log.complaints.take_notes()).collect()
    }

    /// Returns the total number of notes recorded about all functions.
    pub fn note_count(&self) -> u64 {
        self.functions.iter().map(|function| function.core.log.complaints.note_count()).sum()
    }

    fn tick(&mut self, now: Time) {
        self.now = self.now.max(now);
    }

    /// Carries packets until none is left or the limit per call is reached, then checks the
    /// destination MAC addresses that the senders used.
    pub(crate) fn pump(&mut self) {
        self.carry_all();
        self.functions.iter_mut().for_each(|function| function.core.close_all());
        self.check_destinations();
    }

    fn carry_all(&mut self) {
        let now = self.now;
        for function in &mut self.functions {
            function.core.now = function.core.now.max(now);
            function.settle();
            function.look();
        }
        self.run_due(now);
        let mut left = PACKETS;
        self.busy = false;
        loop {
            let mut idle = true;
            for sender in 0..self.functions.len() {
                while let Some(steps) = self.carry(sender) {
                    idle = false;
                    left = left.saturating_sub(steps);
                    if left == 0 {
                        self.busy = true;
                        return;
                    }
                }
            }
            // A script line may be waiting for one of the packets just carried.
            if idle && !self.run_due(now) {
                return;
            }
        }
    }

    /// Carries one packet or Ethernet frame from a function. Returns the cost in packets, or `None`
    /// if the function has nothing to send.
    fn carry(&mut self, sender: usize) -> Option<usize> {
        let function = self.functions.get_mut(sender)?;
        let mut packet = std::mem::take(&mut self.packet);
        let transmit = function.next_packet(&mut packet);
        let up = function.core.port.up;
        if let Some(transmit) = transmit
            && up
        {
            let end = (transmit.len + ICRC).min(packet.len());
            let bytes = packet.get_mut(..end).unwrap_or_default();
            if let Some(icrc) = bytes.get_mut(transmit.len..) {
                icrc.fill(0);
            }
            let multicast = is_multicast(&transmit.path);
            if let Some(function) = self.functions.get_mut(sender) {
                function.core.port.counters.sent(end, multicast);
            }
            self.deliver(&transmit.path, multicast, &wire::arrival(&transmit), bytes);
        }
        self.packet = packet;
        if transmit.is_some() { Some(1) } else { self.carry_frame(sender) }
    }

    /// Carries one Ethernet frame from a function to all others. Returns the cost in packets, or
    /// `None` if the function has nothing to send.
    fn carry_frame(&mut self, sender: usize) -> Option<usize> {
        let (steps, frame) = self.functions.get_mut(sender)?.step_frames()?;
        let Some(frame) = frame else { return Some(steps) };
        for (other, function) in self.functions.iter_mut().enumerate() {
            if other != sender {
                function.frame_in(&frame);
            }
        }
        Some(steps)
    }

    /// Complains about senders that use a wrong MAC address for the destination GID. If the GID
    /// belongs to no port and no group, any MAC address is accepted.
    fn check_destinations(&mut self) {
        for sender in 0..self.functions.len() {
            let Some(function) = self.functions.get_mut(sender) else { return };
            for Destination { gid, mac, qpn } in function.core.destinations.take() {
                let mut right: Vec<_> = group_mac(&gid).into_iter().collect();
                if right.is_empty() {
                    right = self.functions.iter().flat_map(|other| other.core.port.macs_of(&gid)).collect();
                }
                if !right.is_empty() && !right.contains(&mac) {
                    let what = format!("queue pair {qpn:#x}: {mac:x?} for {gid:x?}, which has {right:x?}");
                    if let Some(function) = self.functions.get_mut(sender) {
                        function.core.log.complain(Rule::DestinationMac, what);
                    }
                }
            }
        }
    }

    fn deliver(&mut self, path: &Path, multicast: bool, arrival: &Arrival, packet: &[u8]) {
        for function in &mut self.functions {
            let port = &mut function.core.port;
            let is_for_it = multicast
                || match path.network {
                    Network::Udp => port.has_gid(&path.remote),
                    Network::Grh | Network::Local => port.lid() == path.dlid,
                };
            if is_for_it && port.up {
                port.counters.received(packet.len(), multicast);
                function.take_in(arrival, packet);
            }
        }
    }
}

fn is_multicast(path: &Path) -> bool {
    match path.network {
        Network::Udp => group_mac(&path.remote).is_some(),
        Network::Grh | Network::Local => path.dlid >= MULTICAST_LID && path.dlid != u16::MAX,
    }
}
