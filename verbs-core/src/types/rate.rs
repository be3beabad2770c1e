//! [`Rate`]: the static rate of a path.

use super::open_enum;

open_enum! {
    /// The static rate of a path, which limits the packet rate to a destination that is slower than
    /// the port.
    ///
    /// # References
    /// `ibv_rate_to_mbps(3)`, `ibv_rate_to_mult(3)`; IBTA volume 1, section 9.11 (static rate
    /// control)
    #[doc(alias = "ibv_rate")]
    pub enum Rate(u8) {
        /// The port's own rate.
        #[doc(alias = "IBV_RATE_MAX")]
        MAX = 0, "max";
        /// 2.5 Gbit/s.
        #[doc(alias = "IBV_RATE_2_5_GBPS")]
        GBPS_2_5 = 2, "2.5 Gbps";
        /// 5 Gbit/s.
        #[doc(alias = "IBV_RATE_5_GBPS")]
        GBPS_5 = 5, "5 Gbps";
        /// 10 Gbit/s.
        #[doc(alias = "IBV_RATE_10_GBPS")]
        GBPS_10 = 3, "10 Gbps";
        /// 20 Gbit/s.
        #[doc(alias = "IBV_RATE_20_GBPS")]
        GBPS_20 = 6, "20 Gbps";
        /// 30 Gbit/s.
        #[doc(alias = "IBV_RATE_30_GBPS")]
        GBPS_30 = 4, "30 Gbps";
        /// 40 Gbit/s.
        #[doc(alias = "IBV_RATE_40_GBPS")]
        GBPS_40 = 7, "40 Gbps";
        /// 60 Gbit/s.
        #[doc(alias = "IBV_RATE_60_GBPS")]
        GBPS_60 = 8, "60 Gbps";
        /// 80 Gbit/s.
        #[doc(alias = "IBV_RATE_80_GBPS")]
        GBPS_80 = 9, "80 Gbps";
        /// 120 Gbit/s.
        #[doc(alias = "IBV_RATE_120_GBPS")]
        GBPS_120 = 10, "120 Gbps";
        /// 14 Gbit/s.
        #[doc(alias = "IBV_RATE_14_GBPS")]
        GBPS_14 = 11, "14 Gbps";
        /// 56 Gbit/s.
        #[doc(alias = "IBV_RATE_56_GBPS")]
        GBPS_56 = 12, "56 Gbps";
        /// 112 Gbit/s.
        #[doc(alias = "IBV_RATE_112_GBPS")]
        GBPS_112 = 13, "112 Gbps";
        /// 168 Gbit/s.
        #[doc(alias = "IBV_RATE_168_GBPS")]
        GBPS_168 = 14, "168 Gbps";
        /// 25 Gbit/s.
        #[doc(alias = "IBV_RATE_25_GBPS")]
        GBPS_25 = 15, "25 Gbps";
        /// 100 Gbit/s.
        #[doc(alias = "IBV_RATE_100_GBPS")]
        GBPS_100 = 16, "100 Gbps";
        /// 200 Gbit/s.
        #[doc(alias = "IBV_RATE_200_GBPS")]
        GBPS_200 = 17, "200 Gbps";
        /// 300 Gbit/s.
        #[doc(alias = "IBV_RATE_300_GBPS")]
        GBPS_300 = 18, "300 Gbps";
        /// 28 Gbit/s.
        #[doc(alias = "IBV_RATE_28_GBPS")]
        GBPS_28 = 19, "28 Gbps";
        /// 50 Gbit/s.
        #[doc(alias = "IBV_RATE_50_GBPS")]
        GBPS_50 = 20, "50 Gbps";
        /// 400 Gbit/s.
        #[doc(alias = "IBV_RATE_400_GBPS")]
        GBPS_400 = 21, "400 Gbps";
        /// 600 Gbit/s.
        #[doc(alias = "IBV_RATE_600_GBPS")]
        GBPS_600 = 22, "600 Gbps";
        /// 800 Gbit/s.
        #[doc(alias = "IBV_RATE_800_GBPS")]
        GBPS_800 = 23, "800 Gbps";
        /// 1200 Gbit/s.
        #[doc(alias = "IBV_RATE_1200_GBPS")]
        GBPS_1200 = 24, "1200 Gbps";
    }
}

impl Rate {
    /// Returns the rate in Mbit/s; `None` for [`MAX`](Self::MAX) and for an unspecified rate.
    ///
    /// # References
    /// `ibv_rate_to_mbps(3)`
    #[doc(alias = "ibv_rate_to_mbps")]
    pub fn mbps(self) -> Option<u32> {
        TABLE.iter().find(|row| row.0 == self).map(|row| row.1)
    }

    /// Returns the rate of exactly `mbps` Mbit/s, as returned by [`mbps`](Self::mbps); `None` if no
    /// rate matches.
    ///
    /// # References
    /// `mbps_to_ibv_rate(3)`
    #[doc(alias = "mbps_to_ibv_rate")]
    pub fn from_mbps(mbps: u32) -> Option<Self> {
        TABLE.iter().find(|row| row.1 == mbps).map(|row| row.0)
    }

    /// Returns the rate as a multiple of 2.5 Gbit/s; `None` if the rate is not such a multiple or
    /// [`mbps`](Self::mbps) returns `None`.
    ///
    /// # References
    /// `ibv_rate_to_mult(3)`
    #[doc(alias = "ibv_rate_to_mult")]
    pub fn mult(self) -> Option<u32> {
        TABLE.iter().find(|row| row.0 == self).and_then(|row| row.2)
    }

    /// Returns the rate equal to `mult` times 2.5 Gbit/s; `None` if no rate matches.
    ///
    /// # References
    /// `mult_to_ibv_rate(3)`
    #[doc(alias = "mult_to_ibv_rate")]
    pub fn from_mult(mult: u32) -> Option<Self> {
        TABLE.iter().find(|row| row.2 == Some(mult)).map(|row| row.0)
    }
}

/// Returns the port's own rate.
impl Default for Rate {
    fn default() -> Self {
        Self::MAX
    }
}

/// The known rates, each in Mbit/s and as a multiple of 2.5 Gbit/s. Rates with 64b/66b coding are
/// named after the data rate, but their Mbit/s include the coding. The multiple of some rates, such
/// as 28 and 50 Gbit/s, is nominal.
const TABLE: &[(Rate, u32, Option<u32>)] = &[
    (Rate::GBPS_2_5, 2_500, Some(1)),
    (Rate::GBPS_5, 5_000, Some(2)),
    (Rate::GBPS_10, 10_000, Some(4)),
    (Rate::GBPS_20, 20_000, Some(8)),
    (Rate::GBPS_30, 30_000, Some(12)),
    (Rate::GBPS_40, 40_000, Some(16)),
    (Rate::GBPS_60, 60_000, Some(24)),
    (Rate::GBPS_80, 80_000, Some(32)),
    (Rate::GBPS_120, 120_000, Some(48)),
    (Rate::GBPS_14, 14_062, None),
    (Rate::GBPS_56, 56_250, None),
    (Rate::GBPS_112, 112_500, None),
    (Rate::GBPS_168, 168_750, None),
    (Rate::GBPS_25, 25_781, None),
    (Rate::GBPS_100, 103_125, None),
    (Rate::GBPS_200, 206_250, None),
    (Rate::GBPS_300, 309_375, None),
    (Rate::GBPS_28, 28_125, Some(11)),
    (Rate::GBPS_50, 53_125, Some(20)),
    (Rate::GBPS_400, 425_000, Some(160)),
    (Rate::GBPS_600, 637_500, Some(240)),
    (Rate::GBPS_800, 850_000, Some(320)),
    (Rate::GBPS_1200, 1_275_000, Some(480)),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rate_but_the_ports_own_converts_and_back() {
        assert_eq!(Rate::NAMED.len(), TABLE.len() + 1);
        for rate in Rate::NAMED.iter().filter(|rate| **rate != Rate::MAX) {
            let mbps = rate.mbps().unwrap();
            assert_eq!(Rate::from_mbps(mbps), Some(*rate), "{rate}");
            if let Some(mult) = rate.mult() {
                assert_eq!(Rate::from_mult(mult), Some(*rate), "{rate}");
                assert!(mbps.abs_diff(mult * 2500) <= mbps / 16, "{rate} is not about {mult} times 2.5");
            }
        }
    }

    #[test]
    fn no_number_is_taken_for_a_rate_that_it_is_not() {
        for rate in [Rate::MAX, Rate(1), Rate(25), Rate(255)] {
            assert_eq!((rate.mbps(), rate.mult()), (None, None), "{rate}");
        }
        assert_eq!((Rate::from_mbps(0), Rate::from_mbps(100_000), Rate::from_mult(0)), (None, None, None));
        assert_eq!((Rate::GBPS_14.mult(), Rate::GBPS_100.mbps()), (None, Some(103_125)));
    }
}
