//! Counters of packets sent, received and lost, by reason.

use std::sync::atomic::{AtomicU64, Ordering};

use roce::engine::DroppedDatagrams;

/// A counter with one writer at a time and any number of readers.
///
/// Two concurrent writers may lose an increment but do no other harm. An exact count is not worth a
/// locked instruction per packet.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    /// Adds `n` to the counter.
    #[inline(always)]
    pub(crate) fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Raises the counter to `n` if it is lower.
    #[inline(always)]
    pub(crate) fn raise(&self, n: u64) {
        if n > self.0.load(Ordering::Relaxed) {
            self.0.store(n, Ordering::Relaxed);
        }
    }

    /// Replaces the count by a count made elsewhere.
    pub(crate) fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Packets sent, received and lost, by reason: a snapshot of counts since the device was
        /// created.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// The counters of a live device.
        #[derive(Debug, Default)]
        pub(crate) struct Counts {
            $(pub(crate) $name: Count,)*
        }

        impl Counts {
            /// Reads all counters, one after the other.
            pub(crate) fn read(&self) -> Counters {
                Counters { $($name: self.$name.read(),)* }
            }
        }
    };
}

impl Counts {
    /// Copies the engine's counts of dropped datagrams, if they have changed.
    #[inline]
    pub(crate) fn take_over(&self, dropped: &DroppedDatagrams) {
        if self.datagrams_dropped.read() != dropped.total {
            self.take_over_changed(dropped);
        }
    }

    #[cold]
    fn take_over_changed(&self, dropped: &DroppedDatagrams) {
        self.datagrams_no_receive.set(dropped.no_receive);
        self.datagrams_too_short.set(dropped.too_short);
        self.datagrams_wrong_qkey.set(dropped.wrong_qkey);
        self.datagrams_unknown_qpn.set(dropped.unknown_qpn);
        self.datagrams_not_member.set(dropped.not_member);
        self.datagrams_mads_full.set(dropped.mads_full);
        self.datagrams_other.set(dropped.other);
        self.datagrams_dropped.set(dropped.total);
    }
}

counters! {
    /// Packets accepted by the kernel. Packets through memory count in `shm_sent` instead.
    sent,
    /// Bytes of the packets in `sent`, from BTH to ICRC.
    sent_bytes,
    /// System calls that sent at least one packet.
    sends,
    /// Packets that shared a datagram with other packets of their flow (UDP GSO).
    joined,
    /// Sends postponed because the socket's buffer was full.
    blocked,
    /// Packets not sent: the destination is unreachable (ENETUNREACH, EHOSTUNREACH, ECONNREFUSED)
    /// or has an address of the other family.
    unreachable,
    /// Packets not sent: they were longer than the route's MTU (EMSGSIZE).
    too_long,
    /// Packets not sent: a rule of this host forbade them (EPERM, EACCES).
    forbidden,
    /// Packets not sent: the kernel had no memory or queue space for them (ENOBUFS, ENOMEM).
    no_buffer,
    /// Packets not sent for another reason.
    not_sent,
    /// Datagrams of several packets rejected by the interface or route (EIO), whose packets were
    /// then sent one by one.
    gso_refused,
    /// Valid packets received.
    received,
    /// Bytes of the packets in `received`, from BTH to ICRC.
    received_bytes,
    /// System calls that received at least one packet.
    receives,
    /// Packets sent through memory to a process on this machine.
    shm_sent,
    /// Bytes of the packets in `shm_sent`, from BTH to pad.
    shm_sent_bytes,
    /// Packets not sent through memory: the ring was full, and the receiving process had taken no
    /// packet from it for 20 ms.
    shm_dropped,
    /// Times this device woke a sleeping process: to receive packets sent through memory, or
    /// because the ring to which it sends had space again.
    shm_doorbells,
    /// Packets received through memory.
    shm_received,
    /// Bytes of the packets in `shm_received`, from BTH to pad.
    shm_received_bytes,
    /// Packets whose ICRC is correct only for an IPv4 identification unusual for this kind of peer.
    other_id,
    /// Packets dropped: the ICRC was wrong.
    bad_icrc,
    /// Packets dropped: the queue pair's peer sent them from an unexpected UDP port
    /// ([`SoftBuilder::strict_ports`](crate::SoftBuilder::strict_ports)). They also count as
    /// received.
    unexpected_port,
    /// Packets dropped: they were for another process that shares the address. The kernel had
    /// joined them with packets for this process; from then on, it joins no more packets.
    unknown_slot,
    /// Packets dropped: they were shorter than BTH and ICRC, truncated, or without an IP source
    /// address.
    malformed,
    /// Datagrams dropped, for any of the reasons below. They also count as received. A multicast
    /// datagram counts once for each member that drops it.
    datagrams_dropped,
    /// Datagrams dropped: no receive was posted.
    datagrams_no_receive,
    /// Datagrams dropped: the receive was too short for the datagram and the 40 bytes before it.
    /// The receive completed with `LOC_LEN_ERR`.
    datagrams_too_short,
    /// Datagrams dropped: their queue key differed from the queue pair's. Also reported in the
    /// field `qkey_viol_cntr` of [`PortAttr`](verbs_core::types::PortAttr).
    datagrams_wrong_qkey,
    /// Datagrams dropped: no queue pair had the destination number.
    datagrams_unknown_qpn,
    /// Datagrams dropped: no queue pair had joined the destination group.
    datagrams_not_member,
    /// Management datagrams dropped: they arrived too fast for the connection manager
    /// ([`cm::Gsi`](crate::cm::Gsi)).
    datagrams_mads_full,
    /// Datagrams dropped for another reason: a queue pair of another type or state, another
    /// partition key, a receive whose memory cannot be written, a malformed packet.
    datagrams_other,
    /// The largest number of packets sent in one turn, including acknowledgements sent before a
    /// control call. A turn is the time during which one thread works on the device's engine
    /// without interruption.
    turn_packets_max,
    /// The largest number of bytes, from BTH to pad, sent in one turn.
    turn_bytes_max,
    /// Transmissions that left read responses unsent because their peers had used up their credit
    /// ([`roce::engine::Config::response_rate`]).
    responses_rested,
    /// Transmissions that left read responses unsent because the socket's send queue held more than
    /// a window ([`roce::engine::Config::window_bytes`]).
    responses_held,
    /// Packets not sent: [`Faults`](crate::Faults) dropped them.
    injected_losses,
    /// Packets sent twice by [`Faults`](crate::Faults).
    injected_duplicates,
    /// Packets damaged by [`Faults`](crate::Faults).
    injected_corruptions,
    /// Packets delayed by [`Faults`](crate::Faults), for any reason.
    injected_delays,
}
