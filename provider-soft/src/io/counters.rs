//! What left, what came, what was lost and why.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number with one writer at a time and any readers.
///
/// Two writers at once may lose an increment, nothing else: a locked instruction for each packet is not worth more.
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
        /// What left, what came, what was lost and why: numbers since the device was made, one moment's values.
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
    /// Packets not sent: nothing leads to their destination (ENETUNREACH, EHOSTUNREACH, ECONNREFUSED), or it is of the
    /// other address family.
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
    /// ([`SoftBuilder::strict_ports`](crate::SoftBuilder::strict_ports)). They count as received, too.
    unexpected_port,
    /// Packets dropped: shorter than BTH and ICRC, cut off, or from no IP address.
    malformed,
    /// The most packets that one turn has sent. A turn is the time that one thread works on the device's engine without a break;
    /// the acknowledgements that a control call sends first count as well.
    turn_packets_max,
    /// The most bytes, from BTH to pad, that one turn has sent.
    turn_bytes_max,
    /// Transmissions that ended with read responses left because their peers had used up their credit
    /// ([`roce::engine::Config::answer_rate`]).
    answers_rested,
    /// Transmissions that ended with read responses left because the socket's send queue held more than a window
    /// ([`roce::engine::Config::window_bytes`]).
    answers_held,
}
