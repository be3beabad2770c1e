//! [`Reason`]: the reason given in a REJ.
//!
//! # References
//! IBTA 12.6.7.2; Linux `enum ib_cm_rej_reason`.

number! {
    /// The reason given in a REJ. It displays as a sentence for operators.
    Reason(u16);
    /// No queue pair is available.
    NO_QP = 1, "the peer has no queue pair left";
    /// No end-to-end context (EEC) is available.
    NO_EEC = 2, "the peer has no end-to-end context left";
    /// Another resource is unavailable.
    NO_RESOURCES = 3, "the peer has no resources left for the connection";
    /// A response did not arrive in time, or the sender gave up.
    TIMEOUT = 4, "the peer gave up waiting, or no longer wants the connection";
    /// The request contains a field or value that is not supported.
    UNSUPPORTED = 5, "the peer does not support the request";
    /// The sender does not know a communication id in the message.
    INVALID_COMM_ID = 6, "the peer does not know the connection";
    /// The sender does not know the communication instance.
    INVALID_COMM_INSTANCE = 7, "the peer does not know this instance of the connection";
    /// No listener has the service id.
    INVALID_SERVICE_ID = 8, "nothing listens at this service id: is the server running, on this port?";
    /// The transport service is not supported.
    INVALID_TRANSPORT_TYPE = 9, "the peer does not support this kind of queue pair";
    /// A connection with this queue pair or communication id exists at the sender.
    STALE_CONN = 10, "the peer still has an earlier connection with the same queue pair: connect again";
    /// The reliable datagram channel does not exist.
    RDC_NOT_EXIST = 11, "the reliable datagram channel does not exist";
    /// A GID of the primary path is invalid; the additional information is a valid GID.
    INVALID_GID = 12, "the peer refuses a GID of the path: does the request come from this address?";
    /// A local id of the primary path is invalid.
    INVALID_LID = 13, "the peer refuses a local id of the path";
    /// The primary path's service level is invalid.
    INVALID_SL = 14, "the peer refuses the service level of the path";
    /// The primary path's traffic class is invalid.
    INVALID_TRAFFIC_CLASS = 15, "the peer refuses the traffic class of the path";
    /// The primary path's hop limit is invalid.
    INVALID_HOP_LIMIT = 16, "the peer refuses the hop limit of the path";
    /// The primary path's packet rate is invalid.
    INVALID_PACKET_RATE = 17, "the peer refuses the packet rate of the path";
    /// A GID of the alternate path is invalid.
    INVALID_ALT_GID = 18, "the peer refuses a GID of the alternate path";
    /// A local id of the alternate path is invalid.
    INVALID_ALT_LID = 19, "the peer refuses a local id of the alternate path";
    /// The alternate path's service level is invalid.
    INVALID_ALT_SL = 20, "the peer refuses the service level of the alternate path";
    /// The alternate path's traffic class is invalid.
    INVALID_ALT_TRAFFIC_CLASS = 21, "the peer refuses the traffic class of the alternate path";
    /// The alternate path's hop limit is invalid.
    INVALID_ALT_HOP_LIMIT = 22, "the peer refuses the hop limit of the alternate path";
    /// The alternate path's packet rate is invalid.
    INVALID_ALT_PACKET_RATE = 23, "the peer refuses the packet rate of the alternate path";
    /// Another port handles communication management; the additional information names it.
    PORT_CM_REDIRECT = 24, "the peer asks to send the request to another port";
    /// The service is on another port; the additional information names it.
    PORT_REDIRECT = 25, "the peer asks to connect to another port";
    /// The sender does not support a path MTU this large.
    INVALID_MTU = 26, "the peer's path MTU is smaller";
    /// The sender supports fewer outstanding reads and atomics than requested.
    INSUFFICIENT_RESP_RESOURCES = 27, "the peer responds to fewer reads and atomics at a time";
    /// The sender's consumer rejected the connection request.
    CONSUMER_DEFINED = 28, "the peer's program rejected the connection";
    /// The sender does not support the requested number of RNR retries.
    INVALID_RNR_RETRY = 29, "the peer refuses the number of RNR retries";
    /// The requester's communication id is already in use.
    DUPLICATE_LOCAL_COMM_ID = 30, "the peer has another connection with this communication id";
    /// The class version is not supported; the additional information is the supported version.
    INVALID_CLASS_VERSION = 31, "the peer has another version of communication management";
    /// The primary path's flow label is invalid.
    INVALID_FLOW_LABEL = 32, "the peer refuses the flow label of the path";
    /// The alternate path's flow label is invalid.
    INVALID_ALT_FLOW_LABEL = 33, "the peer refuses the flow label of the alternate path";
    /// The sender does not support the requested vendor options (enhanced connection
    /// establishment).
    VENDOR_OPTION_NOT_SUPPORTED = 35, "the peer does not support the options of the device's vendor";
}

number! {
    /// The kind of message that an MRA or REJ responds to.
    MsgResponse(u8);
    /// A REQ.
    REQ = 0, "REQ";
    /// A REP.
    REP = 1, "REP";
    /// Another kind of message, or none.
    OTHER = 2, "another message";
}
