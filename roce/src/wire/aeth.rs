//! ACK extended transport header: a syndrome and the responder's message sequence number.
//!
//! ```text
//! syndrome   7   6 5    4   0
//!          +---+------+-------+
//!          | 0 | kind | value |   kind 0 ACK: credit code; 1 RNR NAK: timer code; 3 NAK: why
//!          +---+------+-------+
//! ```
//!
//! # References
//! IBTA 9.3 (layout), 9.7.5 (syndromes, NAK codes), table 45 (RNR timer codes), 9.7.7 (credits).

use super::MASK_24;

header!(4, "AETH");

impl<T: AsRef<[u8]>> Packet<T> {
    /// The kind of acknowledgement and its value.
    #[inline(always)]
    pub fn syndrome(&self) -> Syndrome {
        Syndrome(self.get::<1>(0)[0])
    }

    /// The message sequence number, 24 bits: the number of messages completed by the responder.
    #[inline(always)]
    pub fn msn(&self) -> u32 {
        u32::from_be_bytes(self.get(0)) & MASK_24
    }
}

/// The decoded fields of an AETH.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repr {
    /// The kind of acknowledgement and its value.
    pub syndrome: Syndrome,
    /// Message sequence number, 24 bits.
    pub msn: u32,
}

impl Repr {
    /// Reads every field of `packet`.
    #[inline(always)]
    pub fn parse<T: AsRef<[u8]>>(packet: &Packet<T>) -> Self {
        Self { syndrome: packet.syndrome(), msn: packet.msn() }
    }

    /// Writes every field to `packet`.
    #[inline(always)]
    pub fn emit<T: AsMut<[u8]>>(&self, packet: &mut Packet<T>) {
        packet.put(0, (u32::from(self.syndrome.0) << 24 | self.msn & MASK_24).to_be_bytes());
    }
}

/// The syndrome byte. Every value is valid here; [`decode`](Syndrome::decode) returns its meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Syndrome(pub u8);

/// The decoded meaning of an AETH syndrome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// All packets up to this PSN have arrived. The credit code stands for the number of further
    /// messages that the responder can receive.
    Ack(Credits),
    /// Receiver not ready: the requester resends the packet after the timer expires.
    RnrNak(RnrTimer),
    /// Negative acknowledge: the responder rejected the packet.
    Nak(NakCode),
    /// A syndrome not defined by the specification.
    Reserved(u8),
}

impl Syndrome {
    /// A positive acknowledge without end-to-end credits.
    pub const ACK: Self = Self(Credits::UNLIMITED.0);

    /// A positive acknowledge with credits.
    #[inline(always)]
    pub const fn ack(credits: Credits) -> Self {
        Self(credits.0 & 0x1f)
    }

    /// A receiver-not-ready negative acknowledge (RNR NAK).
    #[inline(always)]
    pub const fn rnr_nak(timer: RnrTimer) -> Self {
        Self(1 << 5 | timer.0 & 0x1f)
    }

    /// A negative acknowledge with a reason code.
    #[inline(always)]
    pub const fn nak(code: NakCode) -> Self {
        Self(3 << 5 | code.0 & 0x1f)
    }

    /// Returns the meaning of the syndrome.
    #[inline(always)]
    pub const fn decode(self) -> Kind {
        let value = self.0 & 0x1f;
        match self.0 >> 5 {
            0 => Kind::Ack(Credits(value)),
            1 => Kind::RnrNak(RnrTimer(value)),
            3 => Kind::Nak(NakCode(value)),
            _ => Kind::Reserved(self.0),
        }
    }
}

/// A NAK code, 5 bits: the reason why a packet was rejected. Unknown codes are valid here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NakCode(pub u8);

impl NakCode {
    /// One or more packets before this packet are missing.
    pub const PSN_SEQUENCE_ERROR: Self = Self(0);
    /// The request is malformed or not supported by the responder.
    pub const INVALID_REQUEST: Self = Self(1);
    /// The remote key, the address range or the access right is invalid.
    pub const REMOTE_ACCESS_ERROR: Self = Self(2);
    /// The responder could not execute the request.
    pub const REMOTE_OPERATIONAL_ERROR: Self = Self(3);
    /// Invalid request; reliable datagram service only.
    pub const INVALID_RD_REQUEST: Self = Self(4);
}

/// An RNR timer code, 5 bits; known as `min_rnr_timer` in verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RnrTimer(pub u8);

impl RnrTimer {
    /// Returns the time to wait, in nanoseconds: 10 µs to 655.36 ms. Only the low 5 bits are used.
    #[inline(always)]
    pub const fn nanoseconds(self) -> u64 {
        RNR_10_US[(self.0 & 0x1f) as usize] as u64 * 10_000
    }
}

/// The RNR timer values of table 45, in units of 10 µs, by code.
const RNR_10_US: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
    3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// A credit code, 5 bits: the number of receives posted by the responder, rounded down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Credits(pub u8);

impl Credits {
    /// The responder reports no credits. The requester may send without limit and gets RNR NAKs
    /// instead.
    pub const UNLIMITED: Self = Self(0x1f);

    /// Returns the code for the largest number of credits not above `count`.
    pub const fn at_most(count: u32) -> Self {
        let mut code = 0;
        while code < 30 && CREDITS[code as usize + 1] as u32 <= count {
            code += 1;
        }
        Self(code)
    }

    /// Returns the number of credits; `None` if unlimited. Only the low 5 bits are used.
    #[inline(always)]
    pub const fn count(self) -> Option<u32> {
        match self.0 & 0x1f {
            0x1f => None,
            code => Some(CREDITS[code as usize] as u32),
        }
    }
}

/// The number of credits for each code from 0 to 30.
const CREDITS: [u16; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
    4096, 6144, 8192, 12288, 16384, 24576, 32768,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rnr_timers_are_those_of_table_45() {
        for (code, ns) in
            [(0, 655_360_000), (1, 10_000), (5, 60_000), (12, 640_000), (14, 1_280_000), (31, 491_520_000)]
        {
            assert_eq!(RnrTimer(code).nanoseconds(), ns, "code {code}");
        }
        assert!((1..31).all(|code| RnrTimer(code).nanoseconds() < RnrTimer(code + 1).nanoseconds()));
    }

    #[test]
    fn credits_round_down_to_a_code() {
        for (count, code) in [(0, 0), (1, 1), (5, 4), (6, 5), (7, 5), (100, 13), (40_000, 30), (u32::MAX, 30)]
        {
            assert_eq!(Credits::at_most(count), Credits(code), "{count}");
        }
        for code in 0..31 {
            assert_eq!(Credits::at_most(Credits(code).count().unwrap()), Credits(code));
        }
        assert_eq!(Credits::UNLIMITED.count(), None);
    }

    #[test]
    fn syndromes_decode_to_what_they_were_made_of() {
        for value in 0..32 {
            assert_eq!(Syndrome::ack(Credits(value)).decode(), Kind::Ack(Credits(value)));
            assert_eq!(Syndrome::rnr_nak(RnrTimer(value)).decode(), Kind::RnrNak(RnrTimer(value)));
            assert_eq!(Syndrome::nak(NakCode(value)).decode(), Kind::Nak(NakCode(value)));
        }
        assert_eq!(Syndrome(0x40).decode(), Kind::Reserved(0x40));
        assert_eq!(Syndrome(0x80).decode(), Kind::Reserved(0x80));
        assert_eq!(Syndrome::nak(NakCode::REMOTE_ACCESS_ERROR), Syndrome(0x62));
        assert_eq!(Syndrome::ACK, Syndrome(0x1f));
    }
}
