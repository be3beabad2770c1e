//! MRA, message receipt acknowledgement: its sender needs more time for an answer.
//!
//! # References
//! IBTA 12.6.6; linux `CM_MRA_*`.

use super::{Answered, PrivateData};

/// The private data of an MRA.
pub type Data = PrivateData<222>;

message!("an MRA", {
    /// The sender's communication id.
    local_comm_id: u32 = 0:0, 32;
    /// The receiver's communication id.
    remote_comm_id: u32 = 4:0, 32;
    /// The kind of message that is acknowledged.
    message_mraed: Answered = 8:0, 2;
    /// The time that the sender needs, a code of 5 bits.
    service_timeout: u8 = 9:0, 5;
    /// Private data.
    private_data: Data = 10:0, 1776;
});
