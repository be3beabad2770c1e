//! [`RejectReason`]: the reason why a peer did not accept a connection.

use verbs_core::open_enum;

open_enum! {
    /// The reason in a peer's reject message.
    ///
    /// # References
    /// IBTA volume 1, section 12.6.7.2 (rejection reason)
    #[doc(alias = "ib_cm_rej_reason")]
    pub enum RejectReason(u16) {
        /// The peer has no queue pair left.
        NO_QP = 1, "the peer has no queue pair left";
        /// The peer has no end-to-end context left.
        NO_EEC = 2, "the peer has no end-to-end context left";
        /// The peer has no resources left.
        NO_RESOURCES = 3, "the peer has no resources left";
        /// The peer waited too long for this side.
        TIMEOUT = 4, "the peer waited too long for this side";
        /// The peer does not support the request.
        UNSUPPORTED = 5, "the peer does not support the request";
        /// A communication id is invalid.
        INVALID_COMM_ID = 6, "a communication id is invalid";
        /// A communication instance is invalid.
        INVALID_COMM_INSTANCE = 7, "a communication instance is invalid";
        /// No program listens on the address and port.
        INVALID_SERVICE_ID = 8, "no program listens on this address and port";
        /// The listener uses another transport service.
        INVALID_TRANSPORT_TYPE = 9, "the listener has another transport service";
        /// The peer still has an earlier connection of this queue pair.
        STALE_CONN = 10, "the peer still has an earlier connection of this queue pair";
        /// The peer has no such reliable datagram channel.
        RDC_NOT_EXIST = 11, "the peer has no such reliable datagram channel";
        /// The peer cannot reach the GID.
        INVALID_GID = 12, "the peer cannot reach the GID of this side";
        /// The peer cannot reach this side's local id.
        INVALID_LID = 13, "the peer cannot reach the local id of this side";
        /// The service level is invalid.
        INVALID_SL = 14, "the peer does not take the service level";
        /// The traffic class is invalid.
        INVALID_TRAFFIC_CLASS = 15, "the peer does not take the traffic class";
        /// The hop limit is too small.
        INVALID_HOP_LIMIT = 16, "the hop limit is too small";
        /// The packet rate is invalid.
        INVALID_PACKET_RATE = 17, "the peer does not take the packet rate";
        /// The peer cannot reach the alternate GID.
        INVALID_ALT_GID = 18, "the peer cannot reach the alternate GID of this side";
        /// The peer cannot reach this side's alternate local id.
        INVALID_ALT_LID = 19, "the peer cannot reach the alternate local id of this side";
        /// The alternate service level is invalid.
        INVALID_ALT_SL = 20, "the peer does not take the alternate service level";
        /// The alternate traffic class is invalid.
        INVALID_ALT_TRAFFIC_CLASS = 21, "the peer does not take the alternate traffic class";
        /// The alternate hop limit is too small.
        INVALID_ALT_HOP_LIMIT = 22, "the alternate hop limit is too small";
        /// The alternate packet rate is invalid.
        INVALID_ALT_PACKET_RATE = 23, "the peer does not take the alternate packet rate";
        /// The service is at another port and connection manager.
        PORT_CM_REDIRECT = 24, "the service is at another port and connection manager";
        /// The service is at another port.
        PORT_REDIRECT = 25, "the service is at another port";
        /// The path MTU is invalid.
        INVALID_MTU = 26, "the peer does not take the path MTU";
        /// The peer cannot serve the requested number of concurrent reads.
        INSUFFICIENT_RESP_RESOURCES = 27, "the peer cannot serve as many reads at a time";
        /// The peer's program rejected the connection.
        CONSUMER_DEFINED = 28, "the peer's program rejected the connection";
        /// The peer does not support the requested number of RNR retries.
        INVALID_RNR_RETRY = 29, "the peer does not take the number of RNR retries";
        /// The communication id is in use.
        DUPLICATE_LOCAL_COMM_ID = 30, "the communication id is in use";
        /// The peer uses another version of the protocol.
        INVALID_CLASS_VERSION = 31, "the peer has another version of the protocol";
        /// The flow label is invalid.
        INVALID_FLOW_LABEL = 32, "the peer does not take the flow label";
        /// The alternate flow label is invalid.
        INVALID_ALT_FLOW_LABEL = 33, "the peer does not take the alternate flow label";
        /// The vendor's options ([`Ece`](verbs::Ece)) are not supported.
        VENDOR_OPTION_NOT_SUPPORTED = 35, "the peer does not support the vendor's options (ECE)";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_listener_is_told_in_words() {
        let text = RejectReason::INVALID_SERVICE_ID.to_string();
        assert!(text.contains("no program listens"), "{text}");
        assert_eq!(RejectReason(99).to_string(), "unknown (99)");
    }

    #[test]
    fn the_reasons_are_in_numerical_order_and_distinct() {
        assert!(RejectReason::NAMED.is_sorted_by(|a, b| a < b));
    }
}
