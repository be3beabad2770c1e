//! REQ, request for communication: the properties of the sender's queue pair, the requested service
//! and the paths between both ports.
//!
//! The RDC bit and the end-to-end context numbers belong to reliable datagrams. No known device
//! supports them; the values are only passed on.
//!
//! # References
//! IBTA 12.6.5, 12.7; Linux `include/rdma/ibta_vol1_c12.h` (`CM_REQ_*`); annex A14 (extended
//! transport type).

use super::{Mtu, PrivateData, ServiceId, path};

/// The private data of a REQ.
pub type Data = PrivateData<92>;

message!("a REQ", {
    /// The sender's communication id for the connection.
    local_comm_id: u32 = 0:0, 32;
    /// The id of the vendor that defines the options in the attribute modifier, 24 bits.
    vendor_id: u32 = 5:0, 24;
    /// The id of the requested service.
    service_id: ServiceId = 8:0, 64;
    /// GUID of the sender's channel adapter.
    local_ca_guid: u64 = 16:0, 64;
    /// The sender's queue key; 0 for connections.
    local_qkey: u32 = 28:0, 32;
    /// Number of the sender's queue pair, 24 bits.
    local_qpn: u32 = 32:0, 24;
    /// The maximum number of outstanding reads and atomics from the receiver to the sender.
    responder_resources: u8 = 35:0, 8;
    /// The number of the sender's end-to-end context.
    local_eecn: u32 = 36:0, 24;
    /// The maximum number of outstanding reads and atomics from the sender to the receiver.
    initiator_depth: u8 = 39:0, 8;
    /// The number of the receiver's end-to-end context.
    remote_eecn: u32 = 40:0, 24;
    /// The time allowed for the receiver's response, a 5-bit code.
    remote_cm_response_timeout: u8 = 43:0, 5;
    /// Transport service: 0 reliable connection, 1 unreliable connection, 2 reliable datagram, 3
    /// see `extended_transport_type`.
    transport_service_type: u8 = 43:5, 2;
    /// Whether the sender's device implements end-to-end flow control (credits).
    end_to_end_flow_control: bool = 43:7, 1;
    /// The first packet sequence number that the receiver must send, 24 bits.
    starting_psn: u32 = 44:0, 24;
    /// The time that the sender needs to respond to a message, a 5-bit code.
    local_cm_response_timeout: u8 = 47:0, 5;
    /// The number of times that the receiver's queue pair retransmits a packet.
    retry_count: u8 = 47:5, 3;
    /// The partition key.
    partition_key: u16 = 48:0, 16;
    /// The path MTU.
    path_mtu: Mtu = 50:0, 4;
    /// Whether a reliable datagram channel exists.
    rdc_exists: bool = 50:4, 1;
    /// The number of times the receiver's queue pair retries after RNR NAKs; 7 means no limit.
    rnr_retry_count: u8 = 50:5, 3;
    /// The number of times either side may repeat a message.
    max_cm_retries: u8 = 51:0, 4;
    /// Whether the sender's queue pair has a shared receive queue.
    srq: bool = 51:4, 1;
    /// The extended transport type: 1 is XRC.
    extended_transport_type: u8 = 51:5, 3;
    /// The path that both sides use first.
    primary: path::Repr = 52:0, 352;
    /// The alternate path, for path migration; absent if its `local_lid` is 0.
    alternate: path::Repr = 96:0, 352;
    /// Private data.
    private_data: Data = 140:0, 736;
});

impl Repr {
    /// Returns whether the request has an alternate path, by the rule that Linux uses.
    pub fn has_alternate(&self) -> bool {
        self.alternate.local_lid != 0
    }
}
