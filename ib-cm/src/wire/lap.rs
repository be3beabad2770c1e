//! LAP, load alternate path: offers a second path for an established connection.
//!
//! # References
//! IBTA 12.8.1; Linux `CM_LAP_*`.

use super::{Gid, PrivateData};

/// The private data of a LAP.
pub type Data = PrivateData<168>;

message!("a LAP", {
    /// The sender's communication id.
    local_comm_id: u32 = 0:0, 32;
    /// The receiver's communication id.
    remote_comm_id: u32 = 4:0, 32;
    /// Number of the receiver's queue pair, 24 bits.
    remote_qpn: u32 = 12:0, 24;
    /// The time allowed for the receiver's response, a 5-bit code.
    remote_cm_response_timeout: u8 = 15:0, 5;
    /// Local id of the sender's port.
    local_lid: u16 = 20:0, 16;
    /// Local id of the receiver's port.
    remote_lid: u16 = 22:0, 16;
    /// GID of the sender's port.
    local_gid: Gid = 24:0, 128;
    /// GID of the receiver's port.
    remote_gid: Gid = 40:0, 128;
    /// Flow label, 20 bits.
    flow_label: u32 = 56:0, 20;
    /// Traffic class.
    traffic_class: u8 = 59:0, 8;
    /// Hop limit.
    hop_limit: u8 = 60:0, 8;
    /// Static rate, a 6-bit code.
    packet_rate: u8 = 61:2, 6;
    /// Service level, 4 bits.
    sl: u8 = 62:0, 4;
    /// Whether both ports are in the same subnet.
    subnet_local: bool = 62:4, 1;
    /// The sender's acknowledgement timeout, a 5-bit code.
    local_ack_timeout: u8 = 63:0, 5;
    /// Private data.
    private_data: Data = 64:0, 1344;
});
