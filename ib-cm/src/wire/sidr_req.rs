//! SIDR_REQ, service id resolution request: looks up the datagram queue pair of a service.
//!
//! # References
//! IBTA 12.11.1; Linux `CM_SIDR_REQ_*`.

use super::{PrivateData, ServiceId};

/// The private data of a SIDR_REQ.
pub type Data = PrivateData<216>;

message!("a SIDR_REQ", {
    /// The sender's id for this request.
    request_id: u32 = 0:0, 32;
    /// The partition key.
    partition_key: u16 = 4:0, 16;
    /// The id of the requested service.
    service_id: ServiceId = 8:0, 64;
    /// Private data.
    private_data: Data = 16:0, 1728;
});
