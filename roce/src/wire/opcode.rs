//! The BTH opcode: transport service and operation, which determine the headers that follow.
//!
//! # References
//! IBTA 9.2 and table 38 (opcodes), annexes A14 (XRC), A17 (CNP), A19 (flush, atomic write).

use core::fmt;

use super::{aeth, atomic_ack_eth, atomic_eth, bth, deth, feth, ieth, imm, reth, xrceth};

/// A BTH opcode. Each of the 256 values is valid here, known or not.
///
/// An operation unsupported by its service is not [known](Opcode::is_known), nor is any RD
/// operation, because RoCE does not support RD. An unknown opcode has no extended headers and is
/// neither request nor response.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opcode(pub u8);

/// The top three bits of an [`Opcode`]: the transport service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram. No device implements it.
    Rd,
    /// Unreliable datagram.
    Ud,
    /// Congestion notification.
    Cnp,
    /// Extended reliable connection.
    Xrc,
    /// Reserved (6) or manufacturer specific (7).
    Other(u8),
}

macro_rules! opcodes {
    ($($name:ident = $service:literal, $operation:literal;)*) => {
        impl Opcode {
            $(
                #[doc = concat!("Operation ", stringify!($operation), " of service ", stringify!($service), ".")]
                pub const $name: Self = Self($service << 5 | $operation);
            )*
        }

        const NAMES: &[(Opcode, &str)] = &[$((Opcode::$name, stringify!($name)),)*];
    };
}

opcodes! {
    RC_SEND_FIRST = 0, 0x00;
    RC_SEND_MIDDLE = 0, 0x01;
    RC_SEND_LAST = 0, 0x02;
    RC_SEND_LAST_WITH_IMMEDIATE = 0, 0x03;
    RC_SEND_ONLY = 0, 0x04;
    RC_SEND_ONLY_WITH_IMMEDIATE = 0, 0x05;
    RC_RDMA_WRITE_FIRST = 0, 0x06;
    RC_RDMA_WRITE_MIDDLE = 0, 0x07;
    RC_RDMA_WRITE_LAST = 0, 0x08;
    RC_RDMA_WRITE_LAST_WITH_IMMEDIATE = 0, 0x09;
    RC_RDMA_WRITE_ONLY = 0, 0x0a;
    RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE = 0, 0x0b;
    RC_RDMA_READ_REQUEST = 0, 0x0c;
    RC_RDMA_READ_RESPONSE_FIRST = 0, 0x0d;
    RC_RDMA_READ_RESPONSE_MIDDLE = 0, 0x0e;
    RC_RDMA_READ_RESPONSE_LAST = 0, 0x0f;
    RC_RDMA_READ_RESPONSE_ONLY = 0, 0x10;
    RC_ACKNOWLEDGE = 0, 0x11;
    RC_ATOMIC_ACKNOWLEDGE = 0, 0x12;
    RC_COMPARE_SWAP = 0, 0x13;
    RC_FETCH_ADD = 0, 0x14;
    RC_SEND_LAST_WITH_INVALIDATE = 0, 0x16;
    RC_SEND_ONLY_WITH_INVALIDATE = 0, 0x17;
    RC_FLUSH = 0, 0x1c;
    RC_ATOMIC_WRITE = 0, 0x1d;

    UC_SEND_FIRST = 1, 0x00;
    UC_SEND_MIDDLE = 1, 0x01;
    UC_SEND_LAST = 1, 0x02;
    UC_SEND_LAST_WITH_IMMEDIATE = 1, 0x03;
    UC_SEND_ONLY = 1, 0x04;
    UC_SEND_ONLY_WITH_IMMEDIATE = 1, 0x05;
    UC_RDMA_WRITE_FIRST = 1, 0x06;
    UC_RDMA_WRITE_MIDDLE = 1, 0x07;
    UC_RDMA_WRITE_LAST = 1, 0x08;
    UC_RDMA_WRITE_LAST_WITH_IMMEDIATE = 1, 0x09;
    UC_RDMA_WRITE_ONLY = 1, 0x0a;
    UC_RDMA_WRITE_ONLY_WITH_IMMEDIATE = 1, 0x0b;

    UD_SEND_ONLY = 3, 0x04;
    UD_SEND_ONLY_WITH_IMMEDIATE = 3, 0x05;

    CNP = 4, 0x01;

    XRC_SEND_FIRST = 5, 0x00;
    XRC_SEND_MIDDLE = 5, 0x01;
    XRC_SEND_LAST = 5, 0x02;
    XRC_SEND_LAST_WITH_IMMEDIATE = 5, 0x03;
    XRC_SEND_ONLY = 5, 0x04;
    XRC_SEND_ONLY_WITH_IMMEDIATE = 5, 0x05;
    XRC_RDMA_WRITE_FIRST = 5, 0x06;
    XRC_RDMA_WRITE_MIDDLE = 5, 0x07;
    XRC_RDMA_WRITE_LAST = 5, 0x08;
    XRC_RDMA_WRITE_LAST_WITH_IMMEDIATE = 5, 0x09;
    XRC_RDMA_WRITE_ONLY = 5, 0x0a;
    XRC_RDMA_WRITE_ONLY_WITH_IMMEDIATE = 5, 0x0b;
    XRC_RDMA_READ_REQUEST = 5, 0x0c;
    XRC_RDMA_READ_RESPONSE_FIRST = 5, 0x0d;
    XRC_RDMA_READ_RESPONSE_MIDDLE = 5, 0x0e;
    XRC_RDMA_READ_RESPONSE_LAST = 5, 0x0f;
    XRC_RDMA_READ_RESPONSE_ONLY = 5, 0x10;
    XRC_ACKNOWLEDGE = 5, 0x11;
    XRC_ATOMIC_ACKNOWLEDGE = 5, 0x12;
    XRC_COMPARE_SWAP = 5, 0x13;
    XRC_FETCH_ADD = 5, 0x14;
    XRC_SEND_LAST_WITH_INVALIDATE = 5, 0x16;
    XRC_SEND_ONLY_WITH_INVALIDATE = 5, 0x17;
    XRC_FLUSH = 5, 0x1c;
    XRC_ATOMIC_WRITE = 5, 0x1d;
}

/// The low five bits of an [`Opcode`]: operations, whose codes are the same in every service.
pub mod operation {
    /// First packet of a send.
    pub const SEND_FIRST: u8 = 0x00;
    /// Middle packet of a send.
    pub const SEND_MIDDLE: u8 = 0x01;
    /// Last packet of a send.
    pub const SEND_LAST: u8 = 0x02;
    /// Last packet of a send with immediate data.
    pub const SEND_LAST_WITH_IMMEDIATE: u8 = 0x03;
    /// Only packet of a send.
    pub const SEND_ONLY: u8 = 0x04;
    /// Only packet of a send with immediate data.
    pub const SEND_ONLY_WITH_IMMEDIATE: u8 = 0x05;
    /// First packet of an RDMA write.
    pub const RDMA_WRITE_FIRST: u8 = 0x06;
    /// Middle packet of an RDMA write.
    pub const RDMA_WRITE_MIDDLE: u8 = 0x07;
    /// Last packet of an RDMA write.
    pub const RDMA_WRITE_LAST: u8 = 0x08;
    /// Last packet of an RDMA write with immediate data.
    pub const RDMA_WRITE_LAST_WITH_IMMEDIATE: u8 = 0x09;
    /// Only packet of an RDMA write.
    pub const RDMA_WRITE_ONLY: u8 = 0x0a;
    /// Only packet of an RDMA write with immediate data.
    pub const RDMA_WRITE_ONLY_WITH_IMMEDIATE: u8 = 0x0b;
    /// RDMA read request.
    pub const RDMA_READ_REQUEST: u8 = 0x0c;
    /// First packet of an RDMA read response.
    pub const RDMA_READ_RESPONSE_FIRST: u8 = 0x0d;
    /// Middle packet of an RDMA read response.
    pub const RDMA_READ_RESPONSE_MIDDLE: u8 = 0x0e;
    /// Last packet of an RDMA read response.
    pub const RDMA_READ_RESPONSE_LAST: u8 = 0x0f;
    /// Only packet of an RDMA read response.
    pub const RDMA_READ_RESPONSE_ONLY: u8 = 0x10;
    /// Acknowledgement, positive or negative.
    pub const ACKNOWLEDGE: u8 = 0x11;
    /// Acknowledgement of an atomic, with the previous value.
    pub const ATOMIC_ACKNOWLEDGE: u8 = 0x12;
    /// Compare and swap.
    pub const COMPARE_SWAP: u8 = 0x13;
    /// Fetch and add.
    pub const FETCH_ADD: u8 = 0x14;
    /// Last packet of a send that invalidates a remote key.
    pub const SEND_LAST_WITH_INVALIDATE: u8 = 0x16;
    /// Only packet of a send that invalidates a remote key.
    pub const SEND_ONLY_WITH_INVALIDATE: u8 = 0x17;
    /// Flush to global visibility or persistence.
    pub const FLUSH: u8 = 0x1c;
    /// Atomic write of 8 bytes.
    pub const ATOMIC_WRITE: u8 = 0x1d;
}

impl Opcode {
    /// Returns the opcode of a service and an operation (its low 5 bits).
    #[inline(always)]
    pub const fn new(service: Service, operation: u8) -> Self {
        Self(service.code() << 5 | operation & 0x1f)
    }

    /// Returns the transport service.
    #[inline(always)]
    pub const fn service(self) -> Service {
        Service::from_code(self.0 >> 5)
    }

    /// Returns the [`operation`], below 32.
    #[inline(always)]
    pub const fn operation(self) -> u8 {
        self.0 & 0x1f
    }

    #[inline(always)]
    const fn has(self, flag: u32) -> bool {
        FLAGS[self.0 as usize] & flag != 0
    }

    /// Returns whether table 38 or an annex defines the opcode. RD opcodes are excluded.
    #[inline(always)]
    pub const fn is_known(self) -> bool {
        self.has(KNOWN)
    }

    /// Returns whether the packet is the first of a multi-packet message.
    #[inline(always)]
    pub const fn is_first(self) -> bool {
        FLAGS[self.0 as usize] & (START | END) == START
    }

    /// Returns whether the packet is neither the first nor the last of its message.
    #[inline(always)]
    pub const fn is_middle(self) -> bool {
        FLAGS[self.0 as usize] & (KNOWN | START | END) == KNOWN
    }

    /// Returns whether the packet is the last of a multi-packet message.
    #[inline(always)]
    pub const fn is_last(self) -> bool {
        FLAGS[self.0 as usize] & (START | END) == END
    }

    /// Returns whether the packet is the only one of its message.
    #[inline(always)]
    pub const fn is_only(self) -> bool {
        FLAGS[self.0 as usize] & (START | END) == START | END
    }

    /// Returns whether the packet is the first or only one of its message.
    #[inline(always)]
    pub const fn starts_message(self) -> bool {
        self.has(START)
    }

    /// Returns whether the packet is the last or only one of its message.
    #[inline(always)]
    pub const fn ends_message(self) -> bool {
        self.has(END)
    }

    /// Returns whether the packet goes from requester to responder.
    #[inline(always)]
    pub const fn is_request(self) -> bool {
        self.has(REQUEST)
    }

    /// Returns whether the packet goes from responder to requester: acknowledgements and read
    /// responses.
    #[inline(always)]
    pub const fn is_response(self) -> bool {
        self.has(RESPONSE)
    }

    /// Returns whether the packet is part of a send.
    #[inline(always)]
    pub const fn is_send(self) -> bool {
        self.has(SEND)
    }

    /// Returns whether the packet is part of an RDMA write.
    #[inline(always)]
    pub const fn is_rdma_write(self) -> bool {
        self.has(WRITE)
    }

    /// Returns whether the packet is an RDMA read request.
    #[inline(always)]
    pub const fn is_rdma_read_request(self) -> bool {
        self.is_request() && self.operation() == operation::RDMA_READ_REQUEST
    }

    /// Returns whether the packet is part of an RDMA read response.
    #[inline(always)]
    pub const fn is_rdma_read_response(self) -> bool {
        self.has(READ_RESPONSE)
    }

    /// Returns whether the operation is compare and swap, or fetch and add.
    #[inline(always)]
    pub const fn is_atomic(self) -> bool {
        self.has(ATOMIC_ETH)
    }

    /// Returns whether the request completes only with a specific response, not with a plain
    /// acknowledgement: reads, atomics, flushes and atomic writes.
    #[inline(always)]
    pub const fn has_own_response(self) -> bool {
        self.has(OWN_RESPONSE)
    }

    /// Returns whether payload may follow the headers.
    #[inline(always)]
    pub const fn has_payload(self) -> bool {
        self.has(PAYLOAD)
    }

    /// Returns whether immediate data follows.
    #[inline(always)]
    pub const fn has_imm(self) -> bool {
        self.has(IMM)
    }

    /// Returns whether a RETH follows.
    #[inline(always)]
    pub const fn has_reth(self) -> bool {
        self.has(RETH)
    }

    /// Returns whether an IETH follows.
    #[inline(always)]
    pub const fn has_ieth(self) -> bool {
        self.has(IETH)
    }

    /// Returns whether an AETH follows.
    #[inline(always)]
    pub const fn has_aeth(self) -> bool {
        self.has(AETH)
    }

    /// Returns whether an AtomicETH follows.
    #[inline(always)]
    pub const fn has_atomic_eth(self) -> bool {
        self.has(ATOMIC_ETH)
    }

    /// Returns whether an AtomicAckETH follows.
    #[inline(always)]
    pub const fn has_atomic_ack_eth(self) -> bool {
        self.has(ATOMIC_ACK_ETH)
    }

    /// Returns whether a DETH follows.
    #[inline(always)]
    pub const fn has_deth(self) -> bool {
        self.has(DETH)
    }

    /// Returns whether an XRCETH follows.
    #[inline(always)]
    pub const fn has_xrceth(self) -> bool {
        self.has(XRCETH)
    }

    /// Returns whether a FETH follows.
    #[inline(always)]
    pub const fn has_feth(self) -> bool {
        self.has(FETH)
    }

    /// Returns the length of the BTH and the extended headers after it, in bytes: 12 to
    /// [`MAX_HEADER_LEN`](super::packet::MAX_HEADER_LEN).
    #[inline(always)]
    pub const fn header_len(self) -> usize {
        HEADER_LEN[self.0 as usize] as usize
    }

    /// Returns the name of the opcode's constant, such as `RC_SEND_ONLY`; `None` if unknown.
    pub fn name(self) -> Option<&'static str> {
        NAMES.iter().find(|(opcode, _)| *opcode == self).map(|(_, name)| *name)
    }
}

impl Service {
    /// Returns the three-bit code of the service.
    #[inline(always)]
    pub const fn code(self) -> u8 {
        match self {
            Service::Rc => 0,
            Service::Uc => 1,
            Service::Rd => 2,
            Service::Ud => 3,
            Service::Cnp => 4,
            Service::Xrc => 5,
            Service::Other(code) => code & 7,
        }
    }

    /// Returns the service for the low three bits of `code`.
    #[inline(always)]
    pub const fn from_code(code: u8) -> Self {
        match code & 7 {
            0 => Service::Rc,
            1 => Service::Uc,
            2 => Service::Rd,
            3 => Service::Ud,
            4 => Service::Cnp,
            5 => Service::Xrc,
            other => Service::Other(other),
        }
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "Opcode({:#04x})", self.0),
        }
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

const KNOWN: u32 = 1 << 0;
const START: u32 = 1 << 1;
const END: u32 = 1 << 2;
const REQUEST: u32 = 1 << 3;
const RESPONSE: u32 = 1 << 4;
const PAYLOAD: u32 = 1 << 5;
const SEND: u32 = 1 << 6;
const WRITE: u32 = 1 << 7;
const READ_RESPONSE: u32 = 1 << 8;
const DETH: u32 = 1 << 9;
const XRCETH: u32 = 1 << 10;
const FETH: u32 = 1 << 11;
const RETH: u32 = 1 << 12;
const ATOMIC_ETH: u32 = 1 << 13;
const AETH: u32 = 1 << 14;
const ATOMIC_ACK_ETH: u32 = 1 << 15;
const IMM: u32 = 1 << 16;
const IETH: u32 = 1 << 17;
const OWN_RESPONSE: u32 = 1 << 18;

/// One row of table 38: the properties of an operation in the services that support it.
const fn operation_flags(op: u8) -> u32 {
    use operation::*;
    match op {
        SEND_FIRST => REQUEST | SEND | PAYLOAD | START,
        SEND_MIDDLE => REQUEST | SEND | PAYLOAD,
        SEND_LAST => REQUEST | SEND | PAYLOAD | END,
        SEND_LAST_WITH_IMMEDIATE => REQUEST | SEND | PAYLOAD | END | IMM,
        SEND_LAST_WITH_INVALIDATE => REQUEST | SEND | PAYLOAD | END | IETH,
        SEND_ONLY => REQUEST | SEND | PAYLOAD | START | END,
        SEND_ONLY_WITH_IMMEDIATE => REQUEST | SEND | PAYLOAD | START | END | IMM,
        SEND_ONLY_WITH_INVALIDATE => REQUEST | SEND | PAYLOAD | START | END | IETH,
        RDMA_WRITE_FIRST => REQUEST | WRITE | PAYLOAD | START | RETH,
        RDMA_WRITE_MIDDLE => REQUEST | WRITE | PAYLOAD,
        RDMA_WRITE_LAST => REQUEST | WRITE | PAYLOAD | END,
        RDMA_WRITE_LAST_WITH_IMMEDIATE => REQUEST | WRITE | PAYLOAD | END | IMM,
        RDMA_WRITE_ONLY => REQUEST | WRITE | PAYLOAD | START | END | RETH,
        RDMA_WRITE_ONLY_WITH_IMMEDIATE => REQUEST | WRITE | PAYLOAD | START | END | RETH | IMM,
        RDMA_READ_REQUEST => REQUEST | START | END | RETH | OWN_RESPONSE,
        RDMA_READ_RESPONSE_FIRST => RESPONSE | READ_RESPONSE | PAYLOAD | START | AETH,
        RDMA_READ_RESPONSE_MIDDLE => RESPONSE | READ_RESPONSE | PAYLOAD,
        RDMA_READ_RESPONSE_LAST => RESPONSE | READ_RESPONSE | PAYLOAD | END | AETH,
        RDMA_READ_RESPONSE_ONLY => RESPONSE | READ_RESPONSE | PAYLOAD | START | END | AETH,
        ACKNOWLEDGE => RESPONSE | START | END | AETH,
        ATOMIC_ACKNOWLEDGE => RESPONSE | START | END | AETH | ATOMIC_ACK_ETH,
        COMPARE_SWAP | FETCH_ADD => REQUEST | START | END | ATOMIC_ETH | OWN_RESPONSE,
        FLUSH => REQUEST | START | END | FETH | RETH | OWN_RESPONSE,
        ATOMIC_WRITE => REQUEST | START | END | RETH | PAYLOAD | OWN_RESPONSE,
        _ => return 0,
    }
    .wrapping_add(KNOWN)
}

/// One column of table 38: the operations of a service and the headers it adds.
const fn flags(opcode: Opcode) -> u32 {
    use operation::*;
    let op = opcode.operation();
    let flags = operation_flags(op);
    match opcode.service() {
        Service::Rc => flags,
        Service::Uc if op <= RDMA_WRITE_ONLY_WITH_IMMEDIATE => flags,
        Service::Ud if op == SEND_ONLY || op == SEND_ONLY_WITH_IMMEDIATE => flags | DETH,
        Service::Xrc if flags & REQUEST != 0 => flags | XRCETH,
        Service::Xrc => flags,
        // A CNP is neither request nor response, because it is outside every queue pair's sequence.
        Service::Cnp if opcode.0 == Opcode::CNP.0 => KNOWN | START | END | PAYLOAD,
        _ => 0,
    }
}

const FLAGS: [u32; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < table.len() {
        table[i] = flags(Opcode(i as u8));
        i += 1;
    }
    table
};

const HEADER_LEN: [u8; 256] = {
    const LENGTHS: [(u32, usize); 9] = [
        (DETH, deth::LEN),
        (XRCETH, xrceth::LEN),
        (FETH, feth::LEN),
        (RETH, reth::LEN),
        (ATOMIC_ETH, atomic_eth::LEN),
        (AETH, aeth::LEN),
        (ATOMIC_ACK_ETH, atomic_ack_eth::LEN),
        (IMM, imm::LEN),
        (IETH, ieth::LEN),
    ];
    let mut table = [bth::LEN as u8; 256];
    let mut i = 0;
    while i < table.len() {
        let mut k = 0;
        while k < LENGTHS.len() {
            if FLAGS[i] & LENGTHS[k].0 != 0 {
                table[i] += LENGTHS[k].1 as u8;
            }
            k += 1;
        }
        i += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = Opcode> {
        (0..=255).map(Opcode)
    }

    #[test]
    fn every_named_opcode_is_known_and_no_other() {
        for opcode in all() {
            assert_eq!(opcode.is_known(), opcode.name().is_some(), "{opcode}");
            assert_eq!(Opcode::new(opcode.service(), opcode.operation()), opcode);
        }
        assert_eq!(all().filter(|o| o.is_known()).count(), 25 + 12 + 2 + 1 + 25);
    }

    #[test]
    fn a_known_opcode_has_one_place_in_its_message() {
        for opcode in all() {
            let places = [opcode.is_first(), opcode.is_middle(), opcode.is_last(), opcode.is_only()];
            assert_eq!(places.iter().filter(|p| **p).count(), usize::from(opcode.is_known()), "{opcode}");
        }
    }

    #[test]
    fn a_known_opcode_is_either_request_or_response() {
        for opcode in all().filter(|o| *o != Opcode::CNP) {
            assert_eq!(opcode.is_known(), opcode.is_request() ^ opcode.is_response(), "{opcode}");
        }
        assert!(!Opcode::CNP.is_request() && !Opcode::CNP.is_response());
    }

    #[test]
    fn an_unknown_opcode_has_no_extended_headers() {
        for opcode in all().filter(|o| !o.is_known()) {
            assert_eq!(opcode.header_len(), 12, "{opcode}");
        }
    }

    #[test]
    fn header_lengths_are_those_of_table_38() {
        for (opcode, len) in [
            (Opcode::RC_SEND_MIDDLE, 12),
            (Opcode::RC_SEND_LAST_WITH_INVALIDATE, 16),
            (Opcode::RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE, 32),
            (Opcode::RC_RDMA_READ_REQUEST, 28),
            (Opcode::RC_RDMA_READ_RESPONSE_MIDDLE, 12),
            (Opcode::RC_ACKNOWLEDGE, 16),
            (Opcode::RC_ATOMIC_ACKNOWLEDGE, 24),
            (Opcode::RC_FETCH_ADD, 40),
            (Opcode::RC_FLUSH, 32),
            (Opcode::RC_ATOMIC_WRITE, 28),
            (Opcode::XRC_FLUSH, 36),
            (Opcode::UC_RDMA_WRITE_FIRST, 28),
            (Opcode::UD_SEND_ONLY_WITH_IMMEDIATE, 24),
            (Opcode::XRC_COMPARE_SWAP, 44),
            (Opcode::XRC_ACKNOWLEDGE, 16),
            (Opcode::CNP, 12),
        ] {
            assert_eq!(opcode.header_len(), len, "{opcode}");
        }
    }

    #[test]
    fn numbers_are_those_of_table_38() {
        assert_eq!(Opcode::RC_FETCH_ADD.0, 0x14);
        assert_eq!(Opcode::UC_RDMA_WRITE_ONLY.0, 0x2a);
        assert_eq!(Opcode::UD_SEND_ONLY.0, 0x64);
        assert_eq!(Opcode::CNP.0, 0x81);
        assert_eq!(Opcode::XRC_SEND_ONLY_WITH_INVALIDATE.0, 0xb7);
        assert_eq!(format!("{} {:?}", Opcode::RC_SEND_ONLY, Opcode(0x15)), "RC_SEND_ONLY Opcode(0x15)");
    }
}
