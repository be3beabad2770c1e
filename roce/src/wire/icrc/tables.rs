//! CRC-32 by table look-ups, 16 bytes per step: for machines without carry-less multiplication and
//! for short pieces.

use super::poly::POLYNOMIAL;

/// The effect of one byte: the state after one zero byte, for each starting state below 256.
const BYTE: [u32; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < table.len() {
        let mut state = i as u32;
        let mut bit = 0;
        while bit < 8 {
            state = state >> 1 ^ POLYNOMIAL & (state & 1).wrapping_neg();
            bit += 1;
        }
        table[i] = state;
        i += 1;
    }
    table
};

/// Returns the effect of one byte on the state `distance` bytes later.
const fn byte_at(distance: usize) -> [u32; 256] {
    let mut table = BYTE;
    let mut i = 0;
    while i < table.len() {
        let mut step = 0;
        while step < distance {
            table[i] = table[i] >> 8 ^ BYTE[(table[i] & 0xff) as usize];
            step += 1;
        }
        i += 1;
    }
    table
}

static BYTES: [[u32; 256]; 16] = {
    let mut tables = [[0; 256]; 16];
    let mut distance = 0;
    while distance < tables.len() {
        tables[distance] = byte_at(distance);
        distance += 1;
    }
    tables
};

/// Returns the CRC state after `bytes`, processed one at a time. Used only to compute constants.
pub(super) const fn update_slowly(mut state: u32, bytes: &[u8]) -> u32 {
    let mut i = 0;
    while i < bytes.len() {
        state = state >> 8 ^ BYTE[((state ^ bytes[i] as u32) & 0xff) as usize];
        i += 1;
    }
    state
}

/// Returns the effect of a word of four bytes placed `behind` bytes before the end of its block.
#[inline(always)]
fn word(value: u32, behind: usize) -> u32 {
    let [a, b, c, d] = value.to_le_bytes();
    BYTES[behind + 3][usize::from(a)]
        ^ BYTES[behind + 2][usize::from(b)]
        ^ BYTES[behind + 1][usize::from(c)]
        ^ BYTES[behind][usize::from(d)]
}

/// Returns the CRC state after `bytes`.
pub(super) fn update(mut state: u32, bytes: &[u8]) -> u32 {
    let (blocks, rest) = bytes.as_chunks::<16>();
    for block in blocks {
        let [a, b, c, d] = words(block);
        state = word(state ^ a, 12) ^ word(b, 8) ^ word(c, 4) ^ word(d, 0);
    }
    let (quads, rest) = rest.as_chunks::<4>();
    for quad in quads {
        state = word(state ^ u32::from_le_bytes(*quad), 0);
    }
    for byte in rest {
        state = state >> 8 ^ BYTES[0][usize::from(state as u8 ^ byte)];
    }
    state
}

#[inline(always)]
fn words(block: &[u8; 16]) -> [u32; 4] {
    let value = u128::from_le_bytes(*block);
    [value as u32, (value >> 32) as u32, (value >> 64) as u32, (value >> 96) as u32]
}

// Fields of IP and UDP headers, by the number of bytes between them and the end of the UDP header.
// The UDP length ends two bytes before that end. IPv4's length and identification are bytes 2 to 5
// of 20; IPv6's length is bytes 4 and 5 of 40.

/// Returns the effect of the UDP length on the state after the UDP header.
#[inline(always)]
pub(super) fn at_udp_length(length: u16) -> u32 {
    let [hi, lo] = length.to_be_bytes();
    BYTES[3][usize::from(hi)] ^ BYTES[2][usize::from(lo)]
}

/// Returns the effect of IPv4's total length and identification on the state after the UDP header.
#[inline(always)]
pub(super) fn at_ipv4_length_and_id(length: u16, id: u16) -> u32 {
    static AT: [[u32; 256]; 4] = [byte_at(25), byte_at(24), byte_at(23), byte_at(22)];
    let ([a, b], [c, d]) = (length.to_be_bytes(), id.to_be_bytes());
    AT[0][usize::from(a)] ^ AT[1][usize::from(b)] ^ AT[2][usize::from(c)] ^ AT[3][usize::from(d)]
}

/// The effect of IPv4's DF bit on the state after the UDP header.
pub(super) const AT_IPV4_DONT_FRAGMENT: u32 = byte_at(21)[0x40];

/// Returns the effect of IPv6's payload length on the state after the UDP header.
#[inline(always)]
pub(super) fn at_ipv6_length(length: u16) -> u32 {
    static AT: [[u32; 256]; 2] = [byte_at(43), byte_at(42)];
    let [hi, lo] = length.to_be_bytes();
    AT[0][usize::from(hi)] ^ AT[1][usize::from(lo)]
}
