//! DREP, reply to a request for communication release: confirms that the connection is released.
//!
//! # References
//! IBTA 12.6.11; Linux `CM_DREP_*`.

use super::PrivateData;

/// The private data of a DREP.
pub type Data = PrivateData<224>;

message!("a DREP", {
    /// The sender's communication id.
    local_comm_id: u32 = 0:0, 32;
    /// The receiver's communication id.
    remote_comm_id: u32 = 4:0, 32;
    /// Private data.
    private_data: Data = 8:0, 1792;
});
