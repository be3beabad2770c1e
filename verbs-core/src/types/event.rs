//! [`AsyncEventType`]: the kinds of asynchronous events. [`EventsRead`]: the number of events read.
//! [`TAG_LIST`]: marks the events of a queue pair that only the provider knows.

use super::open_enum;

open_enum! {
    /// The kind of an asynchronous event.
    ///
    /// # References
    /// `ibv_get_async_event(3)`
    #[doc(alias = "ibv_event_type")]
    #[doc(alias = "ibv_event_type_str")]
    pub enum AsyncEventType(u32) {
        /// A completion queue overflowed or failed.
        #[doc(alias = "IBV_EVENT_CQ_ERR")]
        CQ_ERR = 0, "CQ error";
        /// A queue pair failed, and no completion could report it.
        #[doc(alias = "IBV_EVENT_QP_FATAL")]
        QP_FATAL = 1, "local work queue catastrophic error";
        /// The peer's request was invalid, and the queue pair moved to the error state.
        #[doc(alias = "IBV_EVENT_QP_REQ_ERR")]
        QP_REQ_ERR = 2, "invalid request local work queue error";
        /// The peer's request violated access rights, and the queue pair moved to the error state.
        #[doc(alias = "IBV_EVENT_QP_ACCESS_ERR")]
        QP_ACCESS_ERR = 3, "local access violation work queue error";
        /// The first packet arrived before the queue pair was ready to send.
        #[doc(alias = "IBV_EVENT_COMM_EST")]
        COMM_EST = 4, "communication established";
        /// The send queue is drained (SQD).
        #[doc(alias = "IBV_EVENT_SQ_DRAINED")]
        SQ_DRAINED = 5, "send queue drained";
        /// The connection moved to its alternate path.
        #[doc(alias = "IBV_EVENT_PATH_MIG")]
        PATH_MIG = 6, "path migrated";
        /// The connection could not move to its alternate path.
        #[doc(alias = "IBV_EVENT_PATH_MIG_ERR")]
        PATH_MIG_ERR = 7, "path migration request error";
        /// The device has failed or is gone.
        #[doc(alias = "IBV_EVENT_DEVICE_FATAL")]
        DEVICE_FATAL = 8, "local catastrophic error";
        /// A port came up.
        #[doc(alias = "IBV_EVENT_PORT_ACTIVE")]
        PORT_ACTIVE = 9, "port active";
        /// A port went down.
        #[doc(alias = "IBV_EVENT_PORT_ERR")]
        PORT_ERR = 10, "port error";
        /// A port's local id changed.
        #[doc(alias = "IBV_EVENT_LID_CHANGE")]
        LID_CHANGE = 11, "LID change";
        /// A port's partition keys changed.
        #[doc(alias = "IBV_EVENT_PKEY_CHANGE")]
        PKEY_CHANGE = 12, "P_Key change";
        /// A port's subnet manager changed.
        #[doc(alias = "IBV_EVENT_SM_CHANGE")]
        SM_CHANGE = 13, "SM change";
        /// A shared receive queue failed.
        #[doc(alias = "IBV_EVENT_SRQ_ERR")]
        SRQ_ERR = 14, "SRQ catastrophic error";
        /// A shared receive queue holds fewer receives than its limit.
        #[doc(alias = "IBV_EVENT_SRQ_LIMIT_REACHED")]
        SRQ_LIMIT_REACHED = 15, "SRQ limit reached";
        /// A queue pair in the error state consumed its last receive from a shared receive queue.
        #[doc(alias = "IBV_EVENT_QP_LAST_WQE_REACHED")]
        QP_LAST_WQE_REACHED = 16, "last WQE reached";
        /// The subnet manager requests all clients to register again.
        #[doc(alias = "IBV_EVENT_CLIENT_REREGISTER")]
        CLIENT_REREGISTER = 17, "client reregistration";
        /// A port's GID table changed.
        #[doc(alias = "IBV_EVENT_GID_CHANGE")]
        GID_CHANGE = 18, "GID table change";
        /// A work queue failed.
        #[doc(alias = "IBV_EVENT_WQ_FATAL")]
        WQ_FATAL = 19, "WQ fatal";
        /// A port's speed changed.
        #[doc(alias = "IBV_EVENT_DEVICE_SPEED_CHANGE")]
        DEVICE_SPEED_CHANGE = 20, "Device link speed change";
    }
}

impl AsyncEventType {
    /// Returns whether the event's object is a queue pair.
    pub const fn concerns_qp(self) -> bool {
        matches!(
            self,
            Self::QP_FATAL
                | Self::QP_REQ_ERR
                | Self::QP_ACCESS_ERR
                | Self::COMM_EST
                | Self::SQ_DRAINED
                | Self::PATH_MIG
                | Self::PATH_MIG_ERR
                | Self::QP_LAST_WQE_REACHED
        )
    }
}

/// The bit that marks the `user_handle` of the internal queue pair behind a tag list. The other
/// bits are the `user_handle` of its shared receive queue, the only object that the program knows.
/// Neither user-space addresses nor [slot ids](crate::slots) have this bit set.
pub const TAG_LIST: u64 = 1 << 63;

/// Returns the type and the `user_handle` of an event as reported to the program. An event of a tag
/// list's queue pair becomes [`SRQ_ERR`](AsyncEventType::SRQ_ERR) of the shared receive queue,
/// because that queue pair leaves RTS only if it fails.
pub const fn for_program(event_type: AsyncEventType, user_handle: u64) -> (AsyncEventType, u64) {
    if event_type.concerns_qp() && user_handle & TAG_LIST != 0 {
        (AsyncEventType::SRQ_ERR, user_handle & !TAG_LIST)
    } else {
        (event_type, user_handle)
    }
}

/// The numbers of an object's events that a program has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventsRead {
    /// The number of completion events.
    pub comp: u32,
    /// The number of asynchronous events.
    pub asynchronous: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_of_a_tag_list_names_the_shared_receive_queue() {
        use AsyncEventType as E;
        for event_type in [E::QP_FATAL, E::QP_REQ_ERR, E::QP_ACCESS_ERR, E::QP_LAST_WQE_REACHED] {
            assert_eq!(for_program(event_type, 7 | TAG_LIST), (E::SRQ_ERR, 7), "{event_type}");
            assert_eq!(for_program(event_type, 7), (event_type, 7), "{event_type}");
        }
        for event_type in [E::SRQ_ERR, E::CQ_ERR, E::WQ_FATAL, E::DEVICE_FATAL, E(77)] {
            assert_eq!(for_program(event_type, u64::MAX), (event_type, u64::MAX), "{event_type}");
        }
    }
}
