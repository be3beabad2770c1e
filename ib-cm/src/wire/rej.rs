//! REJ, reject: rejects or ends a connection and gives the reason.
//!
//! # References
//! IBTA 12.6.7; Linux `CM_REJ_*`.

use super::{MsgResponse, PrivateData, Reason};

/// The private data of a REJ.
pub type Data = PrivateData<148>;

/// Additional reject information, in a format defined by the reason.
pub type Ari = PrivateData<72>;

message!("a REJ", {
    /// The sender's communication id; 0 if the sender has none.
    local_comm_id: u32 = 0:0, 32;
    /// The receiver's communication id; 0 if the sender does not know it.
    remote_comm_id: u32 = 4:0, 32;
    /// The kind of message being rejected.
    message_rejected: MsgResponse = 8:0, 2;
    /// Length of the additional information in bytes, at most 72.
    reject_info_length: u8 = 9:0, 7;
    /// The reason for the rejection.
    reason: Reason = 10:0, 16;
    /// Additional reject information.
    ari: Ari = 12:0, 576;
    /// Private data.
    private_data: Data = 84:0, 1184;
});
