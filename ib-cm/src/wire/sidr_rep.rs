//! SIDR_REP, service id resolution response: names the datagram queue pair of a service.
//!
//! # References
//! IBTA 12.11.2; Linux `CM_SIDR_REP_*`.

use super::{PrivateData, ServiceId};

/// The private data of a SIDR_REP.
pub type Data = PrivateData<136>;

/// Additional information, in a format defined by the status.
pub type Info = PrivateData<72>;

message!("a SIDR_REP", {
    /// The id of the request, from its SIDR_REQ.
    request_id: u32 = 0:0, 32;
    /// The outcome of the resolution.
    status: Status = 4:0, 8;
    /// Length of the additional information in bytes, at most 72.
    info_length: u8 = 5:0, 8;
    /// High 16 bits of the vendor id.
    vendor_id_high: u16 = 6:0, 16;
    /// The number of the datagram queue pair, 24 bits.
    qpn: u32 = 8:0, 24;
    /// Low byte of the vendor id.
    vendor_id_low: u8 = 11:0, 8;
    /// The id of the service.
    service_id: ServiceId = 12:0, 64;
    /// Queue key of the datagram queue pair.
    qkey: u32 = 20:0, 32;
    /// Additional information.
    info: Info = 24:0, 576;
    /// Private data.
    private_data: Data = 96:0, 1088;
});

impl Repr {
    /// Returns the 24-bit id of the vendor that defines the options in the attribute modifier.
    pub fn vendor_id(&self) -> u32 {
        u32::from(self.vendor_id_high) << 8 | u32::from(self.vendor_id_low)
    }

    /// Returns a copy of this response with `vendor_id`.
    #[must_use]
    pub fn with_vendor_id(self, vendor_id: u32) -> Self {
        Self { vendor_id_high: (vendor_id >> 8) as u16, vendor_id_low: vendor_id as u8, ..self }
    }
}

number! {
    /// The outcome of a service id resolution.
    Status(u8);
    /// The response contains a queue pair number.
    VALID = 0, "the service has a queue pair";
    /// No listener has the service id.
    UNSUPPORTED = 1, "no listener has this service id: is the server running, on this port?";
    /// The listener rejected the request.
    REJECTED = 2, "the server rejected the request";
    /// The listener has no queue pair available.
    NO_QP = 3, "the server has no queue pair left";
    /// The service is on another port.
    REDIRECT = 4, "another port has the service";
    /// The class version of the request is not supported.
    UNSUPPORTED_VERSION = 5, "the peer does not support this class version";
}
