//! APR, alternate path response: the outcome of a LAP.
//!
//! # References
//! IBTA 12.8.2; Linux `CM_APR_*`.

use super::PrivateData;

/// The private data of an APR.
pub type Data = PrivateData<148>;

/// Additional information, in a format defined by the status.
pub type Info = PrivateData<72>;

message!("an APR", {
    /// The sender's communication id.
    local_comm_id: u32 = 0:0, 32;
    /// The receiver's communication id.
    remote_comm_id: u32 = 4:0, 32;
    /// Length of the additional information in bytes, at most 72.
    info_length: u8 = 8:0, 8;
    /// The outcome of the LAP.
    ap_status: Status = 9:0, 8;
    /// Additional information.
    info: Info = 12:0, 576;
    /// Private data.
    private_data: Data = 84:0, 1184;
});

number! {
    /// The outcome of a LAP.
    Status(u8);
    /// The peer has loaded the alternate path.
    LOADED = 0, "the alternate path is loaded";
    /// The communication id in the LAP is invalid.
    INVALID_COMM_ID = 1, "the communication id of the alternate path is invalid";
    /// The peer does not support alternate paths.
    UNSUPPORTED = 2, "the peer does not support alternate paths";
    /// The peer's consumer rejected the alternate path.
    REJECTED = 3, "the peer's program rejected the alternate path";
    /// The alternate path must be loaded through another port.
    REDIRECT = 4, "the peer asks for another port";
    /// The path is already the connection's alternate path.
    DUPLICATE = 5, "the path is the alternate path already";
    /// The queue pair number in the LAP is invalid.
    INVALID_QPN = 6, "the alternate path names another queue pair";
    /// A local id of the alternate path is invalid.
    INVALID_LID = 7, "a local id of the alternate path is invalid";
    /// A GID of the alternate path is invalid.
    INVALID_GID = 8, "a GID of the alternate path is invalid";
    /// The alternate path's flow label is invalid.
    INVALID_FLOW_LABEL = 9, "the flow label of the alternate path is invalid";
    /// The alternate path's traffic class is invalid.
    INVALID_TRAFFIC_CLASS = 10, "the traffic class of the alternate path is invalid";
    /// The alternate path's hop limit is invalid.
    INVALID_HOP_LIMIT = 11, "the hop limit of the alternate path is invalid";
    /// The alternate path's packet rate is invalid.
    INVALID_PACKET_RATE = 12, "the packet rate of the alternate path is invalid";
    /// The alternate path's service level is invalid.
    INVALID_SL = 13, "the service level of the alternate path is invalid";
}
