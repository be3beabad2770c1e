//! MRA, message receipt acknowledgement: tells the peer that the sender needs more time to respond.
//!
//! # References
//! IBTA 12.6.6; Linux `CM_MRA_*`.

use super::{MsgResponse, PrivateData};

/// The private data of an MRA.
pub type Data = PrivateData<222>;

message!("an MRA", {
    /// The sender's communication id.
    local_comm_id: u32 = 0:0, 32;
    /// The receiver's communication id.
    remote_comm_id: u32 = 4:0, 32;
    /// The kind of message being acknowledged.
    message_mraed: MsgResponse = 8:0, 2;
    /// The time that the sender needs, a 5-bit code.
    service_timeout: u8 = 9:0, 5;
    /// Private data.
    private_data: Data = 10:0, 1776;
});
