//! A completion queue, and views of its completions.

use core::any::Any;
use core::fmt::Debug;
use core::sync::atomic::AtomicU32;
use std::sync::Arc;

use crate::errno::Errno;
use crate::error::{Error, Result};
use crate::types::{CqModeration, CqWcFlags, Wc, WcFlags, WcOpcode, WcStatus, WcTmInfo};

/// A completion queue. Polling takes `&mut self`, so no lock is needed.
pub trait CqOps: Any + Debug + Send + Sync {
    /// The view returned by [`next`](Self::next). Dropping a view frees nothing.
    type Completion<'a>: Completion + Copy
    where
        Self: Sized + 'a;

    /// Returns the kernel's handle for the queue.
    fn handle(&self) -> u32;

    /// Returns the capacity, in completions.
    fn cqe(&self) -> u32;

    /// Returns a view of the next completion, or `None` if the queue is empty.
    ///
    /// The completion's slot returns to the device no later than the next call to
    /// [`end_poll`](Self::end_poll).
    fn next(&mut self) -> Option<Self::Completion<'_>>
    where
        Self: Sized;

    /// Returns the next completion like [`next`](Self::next), for a call that copies several
    /// completions. The slots of earlier completions may stay with the program until
    /// [`end_poll`](Self::end_poll).
    #[inline(always)]
    fn next_of_several(&mut self) -> Option<Self::Completion<'_>>
    where
        Self: Sized,
    {
        self.next()
    }

    /// Returns to the device the slots of all completions read with [`next`](Self::next) or
    /// [`next_of_several`](Self::next_of_several).
    #[doc(alias = "ibv_end_poll")]
    fn end_poll(&mut self)
    where
        Self: Sized;

    /// Copies up to `wcs.len()` completions out of the queue and returns their number.
    fn poll(&mut self, wcs: &mut [Wc]) -> usize;

    /// Requests one event for the next completion, or, with `solicited_only`, for the next
    /// solicited or failed completion.
    ///
    /// Completions that were read stay valid: a C program may call this between `ibv_start_poll(3)`
    /// and `ibv_end_poll`. If events are requested twice, the broader request applies; if both
    /// requests are simultaneous, either may apply.
    ///
    /// # Errors
    /// Any errno the kernel returns; notably `EIO` once the device is gone.
    fn req_notify(&self, solicited_only: bool) -> Result<()>;

    /// Returns a notifier, which requests events while another thread polls the queue; `None` if an
    /// event request depends on the completions already polled. The notifier must not be used after
    /// the queue is destroyed, because it could then request events for another queue.
    fn notifier(&self) -> Option<Box<dyn Notifier>> {
        None
    }

    /// Returns the counter of this queue's events that were read from its channel; `None` if event
    /// requests carry no sequence number. The reader of an event increments the counter before
    /// passing the event on. A wrong count delays or repeats events and has no other effect.
    fn event_counter(&self) -> Option<Arc<AtomicU32>> {
        None
    }

    /// Returns the fields that the queue's completions contain.
    fn wc_flags(&self) -> CqWcFlags {
        CqWcFlags::STANDARD
    }

    /// Removes the unpolled completions of a queue pair that was reset or destroyed, if the
    /// provider [purges](super::Provider::PURGES). Completions of other queue pairs stay in order.
    ///
    /// The C library calls this for devices whose rdma-core driver removes such completions.
    /// provider-mlx5 skips them while it polls, without a call. With rxe they stay, as in
    /// rdma-core.
    fn purge(&mut self, qp_num: u32) {
        let _ = qp_num;
    }

    /// Resizes the queue to at least `cqe` completions. Unpolled completions stay in the queue, in
    /// order.
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Limit`](crate::Cause::Limit) for a size of 0, beyond the device's
    /// limit, or below the number of completions in the queue; `EOPNOTSUPP` if the provider does
    /// not resize queues; any other errno the kernel returns.
    fn resize(&mut self, cqe: u32) -> Result<()> {
        let _ = cqe;
        Err(Error::new("resize_cq", "", Errno::OPNOTSUPP))
    }

    /// Changes the moderation of the queue's events, starting with the next call to
    /// [`req_notify`](Self::req_notify).
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device does not moderate events; `EINVAL` with
    /// [`Cause::Limit`](crate::Cause::Limit) for values beyond
    /// [`cq_mod_caps`](crate::types::DeviceAttrEx::cq_mod_caps); any other errno the kernel
    /// returns.
    fn modify(&self, moderation: CqModeration) -> Result<()> {
        let _ = moderation;
        Err(Error::new("modify_cq", "", Errno::OPNOTSUPP))
    }
}

/// An object that requests events from a completion queue while another thread polls the queue.
pub trait Notifier: Debug + Send + Sync {
    /// Requests an event, like [`CqOps::req_notify`].
    ///
    /// # Errors
    /// The errors of [`CqOps::req_notify`].
    fn req_notify(&self, solicited_only: bool) -> Result<()>;
}

/// Calls a macro with the fields of a completion, one `#[doc] name: type;` each. This is the only
/// list of these fields.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_completion_field {
    ($with:ident) => {
        $with! {
            /// Returns the work request's `wr_id`.
            wr_id: u64;
            /// Returns the result of the work request.
            #[doc(alias = "ibv_wc_status_str")]
            status: $crate::types::WcStatus;
            /// Returns the operation.
            #[doc(alias = "ibv_wc_read_opcode")]
            opcode: $crate::types::WcOpcode;
            /// Returns the vendor-specific error syndrome.
            #[doc(alias = "ibv_wc_read_vendor_err")]
            vendor_err: u32;
            /// Returns the number of bytes received (receives, reads, atomics).
            #[doc(alias = "ibv_wc_read_byte_len")]
            byte_len: u32;
            /// Returns immediate data in host order, or the invalidated key; see
            /// [`wc_flags`](Self::wc_flags).
            #[doc(alias = "ibv_wc_read_imm_data")]
            #[doc(alias = "ibv_wc_read_invalidated_rkey")]
            imm_data: u32;
            /// Returns the local queue pair number.
            #[doc(alias = "ibv_wc_read_qp_num")]
            qp_num: u32;
            /// Returns the sender's queue pair number (UD).
            #[doc(alias = "ibv_wc_read_src_qp")]
            src_qp: u32;
            /// Returns the flags for the valid optional fields.
            #[doc(alias = "ibv_wc_read_wc_flags")]
            wc_flags: $crate::types::WcFlags;
            /// Returns the index of the partition key.
            pkey_index: u16;
            /// Returns the sender's local id (UD, InfiniBand).
            #[doc(alias = "ibv_wc_read_slid")]
            slid: u16;
            /// Returns the service level (UD). On RoCE v2, ConnectX and soft devices report the
            /// kind of the IP header here: 1 for IPv6, 2 for IPv4.
            #[doc(alias = "ibv_wc_read_sl")]
            sl: u8;
            /// Returns the low bits of the destination local id (UD, InfiniBand).
            #[doc(alias = "ibv_wc_read_dlid_path_bits")]
            dlid_path_bits: u8;
        }
    };
}

/// Calls a macro with the fields that a completion has only if its queue was created with them, one
/// `#[doc] name: type;` each, after the caller's tokens. This is the only list of these fields.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_optional_field {
    ($with:ident $($before:tt)*) => {
        $with! {
            $($before)*
            /// Returns the time of the completion on the device's clock, which ticks at
            /// `hca_core_clock` kHz; `None` for a queue created without
            /// [`CqWcFlags::COMPLETION_TIMESTAMP`].
            #[doc(alias = "ibv_wc_read_completion_ts")]
            completion_ts: u64;
            /// Returns the time of the completion in nanoseconds since 1970; `None` for a queue
            /// created without [`CqWcFlags::COMPLETION_TIMESTAMP_WALLCLOCK`].
            #[doc(alias = "ibv_wc_read_completion_wallclock_ns")]
            completion_wallclock_ns: u64;
            /// Returns the VLAN tag of a received packet; `None` for a queue created without
            /// [`CqWcFlags::CVLAN`].
            #[doc(alias = "ibv_wc_read_cvlan")]
            cvlan: u16;
            /// Returns the tag of the flow rule that a received packet matched; `None` for a queue
            /// created without [`CqWcFlags::FLOW_TAG`].
            #[doc(alias = "ibv_wc_read_flow_tag")]
            flow_tag: u32;
            /// Returns the header of a tag-matching message; `None` for a queue created without
            /// [`CqWcFlags::TM_INFO`].
            #[doc(alias = "ibv_wc_read_tm_info")]
            tm_info: $crate::types::WcTmInfo;
        }
    };
}

pub use {for_each_completion_field, for_each_optional_field};

/// Appends the optional fields to the list of completion fields.
macro_rules! with_optional_fields {
    ($($fields:tt)*) => { for_each_optional_field! { completion { $($fields)* } } };
}

/// Defines the trait [`Completion`] and its implementation for [`Wc`], with one accessor per field.
macro_rules! completion {
    (
        { $($(#[$doc:meta])* $field:ident: $type:ty;)* }
        $($(#[$optional_doc:meta])* $optional:ident: $optional_type:ty;)*
    ) => {
        /// A view of a completion, read from the queue on demand.
        ///
        /// If [`status`](Self::status) is not success, only `wr_id`, `status`, `qp_num`,
        /// `vendor_err` and the timestamps are valid.
        pub trait Completion {
            $($(#[$doc])* fn $field(&self) -> $type;)*

            $(
                $(#[$optional_doc])*
                #[inline(always)]
                fn $optional(&self) -> Option<$optional_type> {
                    None
                }
            )*

            /// Copies all fields into a [`Wc`].
            #[inline(always)]
            fn write_to(&self, wc: &mut Wc) {
                *wc = Wc { $($field: self.$field(),)* };
            }

            /// Copies all fields into a [`Wc`], with immediate data in network order, as in the C
            /// struct `ibv_wc`. An invalidated key stays a number.
            #[inline(always)]
            fn write_to_c(&self, wc: &mut Wc) {
                self.write_to(wc);
                if wc.wc_flags.contains(WcFlags::WITH_IMM) {
                    wc.imm_data = wc.imm_data.to_be();
                }
            }
        }

        impl Completion for &Wc {
            $(#[inline(always)] fn $field(&self) -> $type { self.$field })*

            #[inline(always)]
            fn write_to(&self, wc: &mut Wc) {
                *wc = **self;
            }
        }
    };
}

for_each_completion_field!(with_optional_fields);

// The list writes types with their paths, so that other crates can use it.
const _: fn(WcStatus, WcOpcode, WcFlags, WcTmInfo) = |_, _, _, _| {};
