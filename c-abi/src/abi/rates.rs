//! Conversions of static rates.
//!
//! # Safety
//! The functions are exported under names reserved by this library's version script.
#![allow(unsafe_code)]

use core::ffi::c_int;

use verbs_core::types::Rate;

use crate::abi::c::{IBV_RATE_MAX, ibv_rate};

/// Returns a rate as a multiple of 2.5 Gbit/s; -1 for a rate that is not such a multiple, for an
/// unknown rate, and for `IBV_RATE_MAX`.
///
/// # References
/// `ibv_rate_to_mult(3)`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_rate_to_mult(rate: ibv_rate) -> c_int {
    number(rate, Rate::mult)
}

/// Returns the rate that is `mult` times 2.5 Gbit/s; `IBV_RATE_MAX` if the rate does not exist.
///
/// # References
/// `mult_to_ibv_rate(3)`
#[unsafe(no_mangle)]
pub extern "C" fn mult_to_ibv_rate(mult: c_int) -> ibv_rate {
    rate(mult, Rate::from_mult)
}

/// Returns a rate in Mbit/s; -1 for an unknown rate and for `IBV_RATE_MAX`.
///
/// # References
/// `ibv_rate_to_mbps(3)`
#[unsafe(no_mangle)]
pub extern "C" fn ibv_rate_to_mbps(rate: ibv_rate) -> c_int {
    number(rate, Rate::mbps)
}

/// Returns the rate of exactly this many Mbit/s; `IBV_RATE_MAX` if the rate does not exist.
///
/// # References
/// `mbps_to_ibv_rate(3)`
#[unsafe(no_mangle)]
pub extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> ibv_rate {
    rate(mbps, Rate::from_mbps)
}

fn number(rate: ibv_rate, convert: fn(Rate) -> Option<u32>) -> c_int {
    let rate = u8::try_from(rate).ok().map(Rate);
    rate.and_then(convert).and_then(|number| c_int::try_from(number).ok()).unwrap_or(-1)
}

fn rate(number: c_int, convert: fn(u32) -> Option<Rate>) -> ibv_rate {
    u32::try_from(number).ok().and_then(convert).map_or(IBV_RATE_MAX, |rate| rate.0.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The results of rdma-core 44.0: each rate, its multiple of 2.5 Gbit/s, and the rate in
    /// Mbit/s.
    const RATES: &[(ibv_rate, c_int, c_int)] = &[
        (2, 1, 2_500),
        (3, 4, 10_000),
        (4, 12, 30_000),
        (5, 2, 5_000),
        (6, 8, 20_000),
        (7, 16, 40_000),
        (8, 24, 60_000),
        (9, 32, 80_000),
        (10, 48, 120_000),
        (11, -1, 14_062),
        (12, -1, 56_250),
        (13, -1, 112_500),
        (14, -1, 168_750),
        (15, -1, 25_781),
        (16, -1, 103_125),
        (17, -1, 206_250),
        (18, -1, 309_375),
        (19, 11, 28_125),
        (20, 20, 53_125),
        (21, 160, 425_000),
        (22, 240, 637_500),
        (23, 320, 850_000),
        (24, 480, 1_275_000),
    ];

    #[test]
    fn every_rate_has_the_numbers_of_the_c_library() {
        for rate in (0..300).chain([0x1_0002, ibv_rate::MAX]) {
            let (_, mult, mbps) = RATES.iter().find(|row| row.0 == rate).copied().unwrap_or((rate, -1, -1));
            assert_eq!((ibv_rate_to_mult(rate), ibv_rate_to_mbps(rate)), (mult, mbps), "{rate}");
        }
    }

    #[test]
    fn every_number_has_the_rate_of_the_c_library_or_none() {
        for number in (-2..1_300_000).chain([c_int::MIN, c_int::MAX]) {
            let rate = |column: fn(&(ibv_rate, c_int, c_int)) -> c_int| {
                // -1 means that the rate is not a multiple.
                RATES.iter().find(|row| number > 0 && column(row) == number).map_or(IBV_RATE_MAX, |row| row.0)
            };
            assert_eq!(mult_to_ibv_rate(number), rate(|row| row.1), "{number}");
            assert_eq!(mbps_to_ibv_rate(number), rate(|row| row.2), "{number}");
        }
    }
}
