//! DREQ, request for communication release: asks the peer to release the connection.
//!
//! # References
//! IBTA 12.6.10; Linux `CM_DREQ_*`.

use super::PrivateData;

/// The private data of a DREQ.
pub type Data = PrivateData<220>;

message!("a DREQ", {
    /// The sender's communication id.
    local_comm_id: u32 = 0:0, 32;
    /// The receiver's communication id.
    remote_comm_id: u32 = 4:0, 32;
    /// Number of the receiver's queue pair, 24 bits.
    remote_qpn: u32 = 8:0, 24;
    /// Private data.
    private_data: Data = 12:0, 1760;
});
