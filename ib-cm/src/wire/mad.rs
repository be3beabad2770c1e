//! MAD header, 24 bytes: class, method and attribute, which is the kind of message.
//!
//! # References
//! IBTA 13.4.3; 16.7.1 (the communication management class).

/// Length of the MAD header, in bytes.
pub const LEN: usize = 24;

layout!("the MAD header", LEN, 0, {
    /// The version of the MAD format: [`BASE_VERSION`].
    base_version: u8 = 0:0, 8;
    /// The management class: [`CLASS`].
    mgmt_class: u8 = 1:0, 8;
    /// The version of the management class: [`CLASS_VERSION`].
    class_version: u8 = 2:0, 8;
    /// The method, including the response bit.
    method: Method = 3:0, 8;
    /// The status of a response.
    status: u16 = 4:0, 16;
    /// The transaction id.
    tid: u64 = 8:0, 64;
    /// The kind of message.
    attr_id: Attribute = 16:0, 16;
    /// The attribute modifier. REQ, REP and SIDR_REP carry the options of enhanced connection
    /// establishment in it ([`Ece`](crate::wire::Ece)); in other messages it is 0.
    attr_mod: u32 = 20:0, 32;
});

/// The version of the MAD format.
pub const BASE_VERSION: u8 = 1;

/// The communication management class.
pub const CLASS: u8 = 0x07;

/// The version of the communication management class.
pub const CLASS_VERSION: u8 = 2;

/// The status of a response to an unsupported method, or to a method that this attribute does not
/// support.
pub const STATUS_UNSUPPORTED: u16 = 0x000c;

impl Repr {
    /// Returns the header of a communication management message.
    pub fn message(attr_id: Attribute, tid: u64, attr_mod: u32) -> Self {
        Self {
            base_version: BASE_VERSION,
            mgmt_class: CLASS,
            class_version: CLASS_VERSION,
            method: Method::SEND,
            status: 0,
            tid,
            attr_id,
            attr_mod,
        }
    }
}

number! {
    /// The method of a MAD.
    Method(u8);
    /// A request to read an attribute.
    GET = 0x01, "Get";
    /// A request to change an attribute.
    SET = 0x02, "Set";
    /// The method of every communication management message.
    SEND = 0x03, "Send";
    /// The response to a Get or Set request.
    GET_RESP = 0x81, "GetResp";
}

number! {
    /// The kind of message: an attribute of the communication management class.
    Attribute(u16);
    /// Properties of a management class on a port. For this class, Linux does not respond to
    /// requests for the attribute.
    CLASS_PORT_INFO = 0x0001, "ClassPortInfo";
    /// Request for communication.
    REQ = 0x0010, "REQ";
    /// Message receipt acknowledgement.
    MRA = 0x0011, "MRA";
    /// Reject.
    REJ = 0x0012, "REJ";
    /// Reply to a request for communication.
    REP = 0x0013, "REP";
    /// Ready to use.
    RTU = 0x0014, "RTU";
    /// Request for communication release.
    DREQ = 0x0015, "DREQ";
    /// Reply to a request for communication release.
    DREP = 0x0016, "DREP";
    /// Service id resolution request.
    SIDR_REQ = 0x0017, "SIDR_REQ";
    /// Service id resolution response.
    SIDR_REP = 0x0018, "SIDR_REP";
    /// Load alternate path.
    LAP = 0x0019, "LAP";
    /// Alternate path response.
    APR = 0x001a, "APR";
}
