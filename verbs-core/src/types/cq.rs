//! [`CqInitAttr`]: the attributes of a new completion queue, and the arguments of other completion
//! queue calls.

use std::os::fd::BorrowedFd;

use super::flags::bitflags;

/// The attributes of a new completion queue:
/// `CqInitAttr { comp_vector: 1, ..CqInitAttr::new(256) }`.
///
/// # References
/// `ibv_create_cq(3)`, `ibv_create_cq_ex(3)`
#[doc(alias = "ibv_cq_init_attr_ex")]
#[derive(Clone, Copy, Debug)]
pub struct CqInitAttr<'a> {
    /// The capacity, in completions; the device may round up.
    pub cqe: u32,
    /// The completion channel for events, as its file descriptor.
    pub channel: Option<BorrowedFd<'a>>,
    /// The completion vector (interrupt) for events, below
    /// [`num_comp_vectors`](crate::provider::DeviceOps::num_comp_vectors).
    pub comp_vector: u32,
    /// The id reported in this queue's events: slot + generation, never a pointer.
    pub user_handle: u64,
    /// The properties of the queue.
    pub flags: CqFlags,
    /// The fields that the queue's completions must contain.
    pub wc_flags: CqWcFlags,
}

impl CqInitAttr<'_> {
    /// Returns the attributes of a queue for `cqe` completions, without a channel, flags or
    /// optional fields.
    pub const fn new(cqe: u32) -> Self {
        Self {
            cqe,
            channel: None,
            comp_vector: 0,
            user_handle: 0,
            flags: CqFlags::empty(),
            wc_flags: CqWcFlags::empty(),
        }
    }
}

bitflags! {
    /// Properties of a new completion queue.
    ///
    /// # References
    /// `ibv_create_cq_ex(3)`
    #[doc(alias = "ibv_create_cq_attr_flags")]
    #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
    pub struct CqFlags: u32 {
        /// Only one thread polls the queue. Every provider accepts the flag and ignores it, because
        /// polling takes `&mut` and no lock.
        #[doc(alias = "IBV_CREATE_CQ_ATTR_SINGLE_THREADED")]
        const SINGLE_THREADED = 1;
        /// A completion that does not fit is lost without an event, and the queue pair continues.
        /// The program must make the queue large enough or tolerate the loss.
        #[doc(alias = "IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN")]
        const IGNORE_OVERRUN = 1 << 1;

        const _ = !0;
    }
}

bitflags! {
    /// Completion fields requested from a new completion queue.
    ///
    /// Every queue has the [`STANDARD`](Self::STANDARD) fields, whether requested or not.
    ///
    /// # References
    /// `ibv_create_cq_ex(3)`
    #[doc(alias = "ibv_create_cq_wc_flags")]
    #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
    pub struct CqWcFlags: u32 {
        /// The number of received bytes.
        #[doc(alias = "IBV_WC_EX_WITH_BYTE_LEN")]
        const BYTE_LEN = 1;
        /// Immediate data.
        #[doc(alias = "IBV_WC_EX_WITH_IMM")]
        const IMM = 1 << 1;
        /// The local queue pair number.
        #[doc(alias = "IBV_WC_EX_WITH_QP_NUM")]
        const QP_NUM = 1 << 2;
        /// The sender's queue pair number.
        #[doc(alias = "IBV_WC_EX_WITH_SRC_QP")]
        const SRC_QP = 1 << 3;
        /// The sender's local id.
        #[doc(alias = "IBV_WC_EX_WITH_SLID")]
        const SLID = 1 << 4;
        /// The service level.
        #[doc(alias = "IBV_WC_EX_WITH_SL")]
        const SL = 1 << 5;
        /// The low bits of the destination local id.
        #[doc(alias = "IBV_WC_EX_WITH_DLID_PATH_BITS")]
        const DLID_PATH_BITS = 1 << 6;
        /// The time of the completion on the device's clock.
        #[doc(alias = "IBV_WC_EX_WITH_COMPLETION_TIMESTAMP")]
        const COMPLETION_TIMESTAMP = 1 << 7;
        /// The VLAN tag of a received packet (raw Ethernet).
        #[doc(alias = "IBV_WC_EX_WITH_CVLAN")]
        const CVLAN = 1 << 8;
        /// The tag of the flow rule that a received packet matched (raw Ethernet).
        #[doc(alias = "IBV_WC_EX_WITH_FLOW_TAG")]
        const FLOW_TAG = 1 << 9;
        /// The header of a tag-matching message.
        #[doc(alias = "IBV_WC_EX_WITH_TM_INFO")]
        const TM_INFO = 1 << 10;
        /// The time of the completion, in nanoseconds since 1970.
        #[doc(alias = "IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK")]
        const COMPLETION_TIMESTAMP_WALLCLOCK = 1 << 11;

        const _ = !0;
    }
}

impl CqWcFlags {
    /// The fields in the completions of every queue.
    #[doc(alias = "IBV_WC_STANDARD_FLAGS")]
    pub const STANDARD: Self = Self::BYTE_LEN
        .union(Self::IMM)
        .union(Self::QP_NUM)
        .union(Self::SRC_QP)
        .union(Self::SLID)
        .union(Self::SL)
        .union(Self::DLID_PATH_BITS);
}

/// The moderation of a completion queue's events: one event reports several completions.
///
/// An armed queue raises its event when `cq_count` completions that would each raise an event have
/// arrived, or `cq_period` microseconds after the first of them. If either number is 0, the first
/// completion raises the event.
///
/// # References
/// `ibv_modify_cq(3)`
#[doc(alias = "ibv_moderate_cq")]
#[doc(alias = "ibv_modify_cq_attr")]
#[doc(alias = "IBV_CQ_ATTR_MODERATE")]
#[doc(alias = "ibv_cq_attr_mask")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CqModeration {
    /// The number of completions after which the event is raised.
    pub cq_count: u16,
    /// The maximum delay of the event, in microseconds.
    pub cq_period: u16,
}

/// The header of a tag-matching message, as reported in the message's completion.
#[doc(alias = "ibv_wc_tm_info")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WcTmInfo {
    /// The tag of the message.
    pub tag: u64,
    /// A value added by the sender.
    #[doc(alias = "priv")]
    pub private: u32,
}

/// The device values that change at run time, such as the clock.
///
/// # References
/// `ibv_query_rt_values_ex(3)`
#[doc(alias = "ibv_values_ex")]
#[doc(alias = "IBV_VALUES_MASK_RAW_CLOCK")]
#[doc(alias = "ibv_values_mask")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RtValues {
    /// The device's clock, which also stamps
    /// [`completion_ts`](crate::provider::Completion::completion_ts), in ticks of
    /// [`hca_core_clock`](super::DeviceAttrEx::hca_core_clock).
    pub raw_clock: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standard_fields_are_those_of_verbs() {
        assert_eq!(CqWcFlags::STANDARD.bits(), 0x7f);
        assert_eq!(CqWcFlags::COMPLETION_TIMESTAMP_WALLCLOCK.bits(), 1 << 11);
        assert_eq!(CqWcFlags::all().iter_names().count(), 12);
    }
}
