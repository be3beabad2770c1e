//! RTU, ready to use: reports that the requester's queue pair can send.
//!
//! # References
//! IBTA 12.6.9; Linux `CM_RTU_*`.

use super::PrivateData;

/// The private data of an RTU.
pub type Data = PrivateData<224>;

message!("an RTU", {
    /// The sender's communication id.
    local_comm_id: u32 = 0:0, 32;
    /// The receiver's communication id.
    remote_comm_id: u32 = 4:0, 32;
    /// Private data.
    private_data: Data = 8:0, 1792;
});
