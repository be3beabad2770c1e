//! [`RateLimit`]: the pace at which a queue pair sends.

/// The pace at which a queue pair sends packets.
///
/// # References
/// `ibv_modify_qp_rate_limit(3)`
#[doc(alias = "ibv_qp_rate_limit_attr")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RateLimit {
    /// The rate in kbit/s, between
    /// [`qp_rate_limit_min` and `qp_rate_limit_max`](super::PacketPacingCaps) of the device; 0 for
    /// no limit.
    pub rate_limit: u32,
    /// The bytes that may leave at once; 0 leaves the choice to the device.
    pub max_burst_sz: u32,
    /// The usual length of a packet in bytes, by which the device spaces them; 0 leaves the choice
    /// to the device.
    pub typical_pkt_sz: u16,
}
