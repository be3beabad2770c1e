//! Counters of packets sent, received and lost, by reason.

use std::sync::atomic::{AtomicU64, Ordering};

use roce::engine::DroppedDatagrams;

/// A number with one writer at a time and any readers.
///
/// Two writers at once may lose an increment, nothing else: a locked instruction for each packet is
/// not worth more.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    /// Counts `n` more.
    #[inline(always)]
    pub(crate) fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Raises the number to `n` where it is less.
    #[inline(always)]
    pub(crate) fn raise(&self, n: u64) {
        if n > self.0.load(Ordering::Relaxed) {
            self.0.store(n, Ordering::Relaxed);
        }
    }

    /// Takes over what was counted elsewhere.
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

        /// The numbers as they are counted.
        #[derive(Debug, Default)]
        pub(crate) struct Counts {
            $(pub(crate) $name: Count,)*
        }

        impl Counts {
            /// All of them, each as it is now.
            pub(crate) fn read(&self) -> Counters {
                Counters { $($name: self.$name.read(),)* }
            }
        }
    };
}

impl Counts {
    /// Takes over the engine's numbers of dropped datagrams, if they have changed.
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
    /// Packets that the kernel took.
    sent,
    /// Their bytes, from BTH to ICRC.
    sent_bytes,
    /// System calls that sent at least one.
    sends,
    /// Packets that shared a datagram with others of their flow (UDP GSO).
    joined,
    /// Sends that were put off because the socket's buffer was full.
    blocked,
    /// Packets not sent: nothing leads to their destination (ENETUNREACH, EHOSTUNREACH,
    /// ECONNREFUSED), or it is of the other address family.
    unreachable,
    /// Packets not sent: longer than the route's MTU (EMSGSIZE).
    too_long,
    /// Packets not sent: forbidden by a rule of this host (EPERM, EACCES).
    forbidden,
    /// Packets not sent: no memory or queue for them (ENOBUFS, ENOMEM).
    no_buffer,
    /// Packets not sent for another reason.
    not_sent,
    /// Datagrams of several packets that the device or route refused (EIO), sent one by one.
    gso_refused,
    /// Packets that arrived and are right.
    received,
    /// Their bytes, from BTH to ICRC.
    received_bytes,
    /// System calls that brought at least one.
    receives,
    /// Packets whose ICRC is right for another IPv4 identification than a peer of this kind sends.
    other_id,
    /// Packets dropped: ICRC wrong.
    bad_icrc,
    /// Packets dropped: from another UDP port than their queue pair's peer sends from
    /// ([`SoftBuilder::strict_ports`](crate::SoftBuilder::strict_ports)). They count as received,
    /// too.
    unexpected_port,
    /// Packets dropped: shorter than BTH and ICRC, cut off, or from no IP address.
    malformed,
    /// Datagrams dropped, for any of the reasons below. They count as received, too; a multicast
    /// datagram counts once for each member that drops it.
    datagrams_dropped,
    /// Datagrams dropped: no receive was posted.
    datagrams_no_receive,
    /// Datagrams dropped: the receive was too short for the datagram and the 40 bytes before it.
    /// The receive completed with `LOC_LEN_ERR`.
    datagrams_too_short,
    /// Datagrams dropped: their queue key was not the queue pair's. Also `qkey_viol_cntr` of
    /// [`PortAttr`](verbs_core::types::PortAttr).
    datagrams_wrong_qkey,
    /// Datagrams dropped: no queue pair had the destination number.
    datagrams_unknown_qpn,
    /// Datagrams dropped: no queue pair had joined the destination group.
    datagrams_not_member,
    /// Datagrams dropped: management datagrams that the connection manager was too slow for
    /// ([`cm::Gsi`](crate::cm::Gsi)).
    datagrams_mads_full,
    /// Datagrams dropped for another reason: a queue pair of another type or state, another
    /// partition key, a receive whose memory cannot be written, a malformed packet.
    datagrams_other,
    /// The most packets that one turn has sent. A turn is the time that one thread works on the
    /// device's engine without a break; the acknowledgements that a control call sends first count
    /// as well.
    turn_packets_max,
    /// The most bytes, from BTH to pad, that one turn has sent.
    turn_bytes_max,
    /// Transmissions that ended with read responses left because their peers had used up their
    /// credit ([`roce::engine::Config::answer_rate`]).
    answers_rested,
    /// Transmissions that ended with read responses left because the socket's send queue held more
    /// than a window ([`roce::engine::Config::window_bytes`]).
    answers_held,
}
