//! [`EventType`]: the type of an event.

use verbs_core::open_enum;

open_enum! {
    /// The type of an event, a value of `rdma_cm_event_type`. [`EventKind`](crate::EventKind) also
    /// holds the event's data.
    ///
    /// # References
    /// `rdma_get_cm_event(3)`, `rdma_event_str(3)`
    #[doc(alias = "rdma_cm_event_type")]
    #[doc(alias = "rdma_event_str")]
    pub enum EventType(u32) {
        /// The peer's address was resolved; the id has a device.
        #[doc(alias = "RDMA_CM_EVENT_ADDR_RESOLVED")]
        ADDR_RESOLVED = 0, "RDMA_CM_EVENT_ADDR_RESOLVED";
        /// The peer's address was not resolved.
        #[doc(alias = "RDMA_CM_EVENT_ADDR_ERROR")]
        ADDR_ERROR = 1, "RDMA_CM_EVENT_ADDR_ERROR";
        /// The route was resolved.
        #[doc(alias = "RDMA_CM_EVENT_ROUTE_RESOLVED")]
        ROUTE_RESOLVED = 2, "RDMA_CM_EVENT_ROUTE_RESOLVED";
        /// The route was not resolved.
        #[doc(alias = "RDMA_CM_EVENT_ROUTE_ERROR")]
        ROUTE_ERROR = 3, "RDMA_CM_EVENT_ROUTE_ERROR";
        /// A peer requests a connection to a listener.
        #[doc(alias = "RDMA_CM_EVENT_CONNECT_REQUEST")]
        CONNECT_REQUEST = 4, "RDMA_CM_EVENT_CONNECT_REQUEST";
        /// The peer accepted; the program changes the queue pair's state itself.
        #[doc(alias = "RDMA_CM_EVENT_CONNECT_RESPONSE")]
        CONNECT_RESPONSE = 5, "RDMA_CM_EVENT_CONNECT_RESPONSE";
        /// The connection failed.
        #[doc(alias = "RDMA_CM_EVENT_CONNECT_ERROR")]
        CONNECT_ERROR = 6, "RDMA_CM_EVENT_CONNECT_ERROR";
        /// The peer did not reply.
        #[doc(alias = "RDMA_CM_EVENT_UNREACHABLE")]
        UNREACHABLE = 7, "RDMA_CM_EVENT_UNREACHABLE";
        /// The peer did not accept.
        #[doc(alias = "RDMA_CM_EVENT_REJECTED")]
        REJECTED = 8, "RDMA_CM_EVENT_REJECTED";
        /// The connection is established.
        #[doc(alias = "RDMA_CM_EVENT_ESTABLISHED")]
        ESTABLISHED = 9, "RDMA_CM_EVENT_ESTABLISHED";
        /// The connection has ended.
        #[doc(alias = "RDMA_CM_EVENT_DISCONNECTED")]
        DISCONNECTED = 10, "RDMA_CM_EVENT_DISCONNECTED";
        /// The device was removed.
        #[doc(alias = "RDMA_CM_EVENT_DEVICE_REMOVAL")]
        DEVICE_REMOVAL = 11, "RDMA_CM_EVENT_DEVICE_REMOVAL";
        /// The id has joined a multicast group.
        #[doc(alias = "RDMA_CM_EVENT_MULTICAST_JOIN")]
        MULTICAST_JOIN = 12, "RDMA_CM_EVENT_MULTICAST_JOIN";
        /// The id could not join a multicast group, or has lost its membership.
        #[doc(alias = "RDMA_CM_EVENT_MULTICAST_ERROR")]
        MULTICAST_ERROR = 13, "RDMA_CM_EVENT_MULTICAST_ERROR";
        /// The hardware address of the id's network interface has changed.
        #[doc(alias = "RDMA_CM_EVENT_ADDR_CHANGE")]
        ADDR_CHANGE = 14, "RDMA_CM_EVENT_ADDR_CHANGE";
        /// The timewait of an ended connection is over.
        #[doc(alias = "RDMA_CM_EVENT_TIMEWAIT_EXIT")]
        TIMEWAIT_EXIT = 15, "RDMA_CM_EVENT_TIMEWAIT_EXIT";
        /// A service was resolved.
        #[doc(alias = "RDMA_CM_EVENT_ADDRINFO_RESOLVED")]
        ADDRINFO_RESOLVED = 16, "RDMA_CM_EVENT_ADDRINFO_RESOLVED";
        /// A service was not resolved.
        #[doc(alias = "RDMA_CM_EVENT_ADDRINFO_ERROR")]
        ADDRINFO_ERROR = 17, "RDMA_CM_EVENT_ADDRINFO_ERROR";
        /// An event written by the program.
        #[doc(alias = "RDMA_CM_EVENT_USER")]
        USER = 18, "RDMA_CM_EVENT_USER";
        /// An event written by a library for its own use.
        #[doc(alias = "RDMA_CM_EVENT_INTERNAL")]
        INTERNAL = 19, "RDMA_CM_EVENT_INTERNAL";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_twenty_events_have_the_numbers_and_names_of_c() {
        assert_eq!(EventType::NAMED.len(), 20);
        for (number, event) in EventType::NAMED.iter().enumerate() {
            assert_eq!(event.0, number as u32);
            assert_eq!(event.to_string(), format!("RDMA_CM_EVENT_{event:?}"));
        }
        assert_eq!(EventType(20).to_string(), "unknown (20)");
    }
}
