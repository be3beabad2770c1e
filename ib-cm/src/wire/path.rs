//! A path in a REQ, 44 bytes: addresses as seen by the sender, and parameters for packets on the
//! path.
//!
//! On RoCE the GIDs are the addresses and local ids have no meaning. If the hop limit exceeds 1, as
//! is usual for RoCEv2, Linux sends the permissive local id with `subnet_local` clear. Otherwise
//! Linux sends local id 0 with `subnet_local` set.
//!
//! # References
//! IBTA 12.6.5, 12.7 (fields 52 to 95 and 96 to 139 of the REQ).

use super::Gid;
use super::field::Field;

/// Length of a path, in bytes.
pub const LEN: usize = 44;

/// The permissive local id, for paths between different subnets or over IP.
pub const PERMISSIVE_LID: u16 = 0xffff;

layout!("a path", LEN, 0, {
    /// Local id of the sender's port.
    local_lid: u16 = 0:0, 16;
    /// Local id of the receiver's port.
    remote_lid: u16 = 2:0, 16;
    /// GID of the sender's port.
    local_gid: Gid = 4:0, 128;
    /// GID of the receiver's port.
    remote_gid: Gid = 20:0, 128;
    /// Flow label, 20 bits.
    flow_label: u32 = 36:0, 20;
    /// Static rate, a 6-bit code.
    packet_rate: u8 = 39:2, 6;
    /// Traffic class.
    traffic_class: u8 = 40:0, 8;
    /// Hop limit.
    hop_limit: u8 = 41:0, 8;
    /// Service level, 4 bits.
    sl: u8 = 42:0, 4;
    /// Whether both ports are in the same subnet.
    subnet_local: bool = 42:4, 1;
    /// The sender's acknowledgement timeout for its queue pair, a 5-bit code.
    local_ack_timeout: u8 = 43:0, 5;
});

impl Field for Repr {
    fn get(bytes: &[u8], first: usize, _: usize) -> Self {
        let rest = bytes.get(first / 8..).unwrap_or_default();
        Packet::new_checked(rest).map(|packet| Self::parse(&packet)).unwrap_or_default()
    }

    fn put(self, bytes: &mut [u8], first: usize, _: usize) {
        let rest = bytes.get_mut(first / 8..).unwrap_or_default();
        if let Ok(mut packet) = Packet::new_checked(rest) {
            self.emit(&mut packet);
        }
    }
}
