//! [`RateLimit`]: the send rate of a queue pair.

/// The send rate of a queue pair.
///
/// # References
/// `ibv_modify_qp_rate_limit(3)`
#[doc(alias = "ibv_qp_rate_limit_attr")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RateLimit {
    /// The rate in kbit/s, between the device's [`qp_rate_limit_min` and
    /// `qp_rate_limit_max`](super::PacketPacingCaps); 0 for no limit.
    pub rate_limit: u32,
    /// The maximum burst in bytes; 0 leaves the choice to the device.
    pub max_burst_sz: u32,
    /// The typical packet length in bytes, which the device uses to space packets; 0 leaves the
    /// choice to the device.
    pub typical_pkt_sz: u16,
}
