//! [`Time`] and the protocol's timeout codes.
//!
//! # References
//! IBTA 12.7.3 and 12.7.21 (5-bit codes); Linux `cm_convert_to_ms`, `cm_ack_timeout`.

pub use rdma_sans_io::Time;

/// The number of nanoseconds in a millisecond.
pub const MILLISECOND: u64 = 1_000_000;

/// Converts a timeout code to nanoseconds, rounded as in Linux: 4.096 µs × 2^`code` counts as
/// 2^(`code` - 8) ms, and at least 1 ms. Only the low 5 bits of `code` are used.
pub const fn nanoseconds(code: u8) -> u64 {
    MILLISECOND << (code & 0x1f).saturating_sub(8)
}

/// Returns the code for a queue pair's acknowledgement timeout: the travel time of two packets plus
/// `ack_delay`, the delay of the peer's device. Each step of a code doubles the time. The result is
/// the larger of the two codes, plus 1 if the other is smaller by at most 1.
pub const fn ack_timeout(ack_delay: u8, packet_life_time: u8) -> u8 {
    let packets = packet_life_time.saturating_add(1);
    let code = if packets >= ack_delay {
        packets.saturating_add((ack_delay >= packets - 1) as u8)
    } else {
        ack_delay.saturating_add((packets >= ack_delay - 1) as u8)
    };
    if code > 31 { 31 } else { code }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_rounded_as_linux_rounds() {
        for (code, ms) in
            [(0, 1), (8, 1), (9, 2), (16, 256), (18, 1024), (20, 4096), (24, 65_536), (31, 1 << 23)]
        {
            assert_eq!(nanoseconds(code), ms * MILLISECOND, "code {code}");
        }
    }

    #[test]
    fn the_acknowledgement_timeout_is_the_longer_time_and_a_step_where_the_other_is_near() {
        for (ack_delay, life_time, code) in [
            (0, 16, 17),
            (15, 16, 17),
            (16, 16, 18),
            (17, 16, 18),
            (18, 16, 19),
            (19, 16, 19),
            (0, 0, 2),
            (31, 31, 31),
        ] {
            assert_eq!(ack_timeout(ack_delay, life_time), code, "{ack_delay}, {life_time}");
        }
    }
}
