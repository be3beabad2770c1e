//! REP, reply to a request for communication: the properties of the responder's queue pair.
//!
//! # References
//! IBTA 12.6.8; Linux `CM_REP_*`.

use super::PrivateData;

/// The private data of a REP.
pub type Data = PrivateData<196>;

message!("a REP", {
    /// The sender's communication id for the connection.
    local_comm_id: u32 = 0:0, 32;
    /// The receiver's communication id, from its REQ.
    remote_comm_id: u32 = 4:0, 32;
    /// The sender's queue key; 0 for connections.
    local_qkey: u32 = 8:0, 32;
    /// Number of the sender's queue pair, 24 bits; 0 for XRC.
    local_qpn: u32 = 12:0, 24;
    /// High byte of the vendor id.
    vendor_id_high: u8 = 15:0, 8;
    /// The number of the sender's end-to-end context or, for XRC, of the sender's target queue
    /// pair.
    local_eecn: u32 = 16:0, 24;
    /// Middle byte of the vendor id.
    vendor_id_middle: u8 = 19:0, 8;
    /// The first packet sequence number that the receiver must send, 24 bits.
    starting_psn: u32 = 20:0, 24;
    /// Low byte of the vendor id.
    vendor_id_low: u8 = 23:0, 8;
    /// The maximum number of outstanding reads and atomics from the receiver to the sender.
    responder_resources: u8 = 24:0, 8;
    /// The maximum number of outstanding reads and atomics from the sender to the receiver.
    initiator_depth: u8 = 25:0, 8;
    /// The acknowledgement delay of the sender's device, a 5-bit code.
    target_ack_delay: u8 = 26:0, 5;
    /// The outcome for the alternate path: 0 accepted, 1 not supported, 2 rejected.
    failover_accepted: u8 = 26:5, 2;
    /// Whether the sender's device implements end-to-end flow control (credits).
    end_to_end_flow_control: bool = 26:7, 1;
    /// The number of times the receiver's queue pair retries after RNR NAKs; 7 means no limit.
    rnr_retry_count: u8 = 27:0, 3;
    /// Whether the sender's queue pair has a shared receive queue.
    srq: bool = 27:3, 1;
    /// GUID of the sender's channel adapter.
    local_ca_guid: u64 = 28:0, 64;
    /// Private data.
    private_data: Data = 36:0, 1568;
});

impl Repr {
    /// Returns the 24-bit id of the vendor that defines the options in the attribute modifier.
    pub fn vendor_id(&self) -> u32 {
        u32::from_be_bytes([0, self.vendor_id_high, self.vendor_id_middle, self.vendor_id_low])
    }

    /// Returns a copy of this reply with `vendor_id`.
    #[must_use]
    pub fn with_vendor_id(self, vendor_id: u32) -> Self {
        let [_, vendor_id_high, vendor_id_middle, vendor_id_low] = vendor_id.to_be_bytes();
        Self { vendor_id_high, vendor_id_middle, vendor_id_low, ..self }
    }
}
