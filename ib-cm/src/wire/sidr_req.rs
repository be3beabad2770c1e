//! SIDR_REQ, service id resolution request: which queue pair takes datagrams for a service.
//!
//! # References
//! IBTA 12.11.1; linux `CM_SIDR_REQ_*`.

use super::{PrivateData, ServiceId};

/// The private data of a SIDR_REQ.
pub type Data = PrivateData<216>;

message!("a SIDR_REQ", {
    /// The id that the sender has given to the request.
    request_id: u32 = 0:0, 32;
    /// Partition key.
    partition_key: u16 = 4:0, 16;
    /// The service that is asked for.
    service_id: ServiceId = 8:0, 64;
    /// Private data.
    private_data: Data = 16:0, 1728;
});
