//! Checks of work requests that every provider makes before it queues one.
//!
//! | check | reason |
//! |---|---|
//! | the queue pair type supports the operation | [`PostReason::UnsupportedOp`] |
//! | the queue pair does not use a shared receive queue | [`PostReason::SharedRecvQueue`] |
//! | the state accepts work requests | [`PostReason::InvalidState`] |
//! | the list has no more elements than the queue allows | [`PostReason::TooManySge`] |
//! | the message is not longer than 2 GiB | [`PostReason::MessageTooLong`] |
//! | a datagram is not longer than the port's MTU | [`PostReason::DatagramTooLong`] |
//! | the operation supports the flags | [`PostReason::UnsupportedFlags`] |
//! | inline data is not longer than the queue's limit | [`PostReason::InlineTooLong`] |
//! | an atomic has 8 local bytes | [`PostReason::AtomicLength`] |
//! | an atomic, or an atomic write, has an aligned address | [`PostReason::AtomicMisaligned`] |
//! | a bind grants only rights that a window can grant | [`PostReason::WindowAccess`] |
//! | a flush requests only defined kinds of visibility | [`PostReason::FlushKind`] |
//!
//! A provider with raw packet queue pairs adds a check: a frame contains the bytes that the device
//! needs ([`PostReason::FrameTooShort`]).
//!
//! The checks run in the table's order, so all providers give the same reason for the same request.
//! The provider itself checks for free space in the queue and the address vectors of datagrams.
//!
//! The C providers leave some of these faults to the device, which reports them in a completion. A
//! provider does the same for C programs: [`SendChecks::left_to_device`].
//!
//! [`SendChecks::is_plain`] and [`RecvChecks::is_plain`] are shortcuts for common requests, small
//! enough to be inlined into the data path. The shortcuts accept only requests that pass the full
//! checks.

use crate::types::{
    AccessFlags, FlushPlacement, FlushSelectivity, OpKind, PostReason, QpCap, QpState, QpType, RecvWr,
    SendFlags, SendOp, SendWr, Sge,
};

/// The maximum length of a message, in bytes.
///
/// # References
/// IBTA volume 1, section 9.7.3
pub const MAX_MESSAGE: u64 = 1 << 31;

/// The number of bytes of local memory that an atomic needs. A device may move 8 bytes regardless
/// of the list's length and then report a wrong `byte_len`.
pub const ATOMIC_LENGTH: u64 = 8;

/// A fault in a request that the device reports in the request's completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceFault {
    /// The message has this many bytes, more than the device can send as one message.
    /// (`IBV_WC_LOC_LEN_ERR`)
    Length(u64),
    /// The queue pair type or the device lacks the operation. (`IBV_WC_LOC_QP_OP_ERR`)
    Operation,
}

/// The maximum lengths within which an operation's common requests pass all checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainLimits {
    /// The maximum number of bytes in a request with one SGE; 0 if the operation has no common
    /// requests.
    pub max_length: u32,
    /// The maximum number of bytes in a request with inline data; 0 if the operation has no such
    /// requests.
    pub max_inline: u32,
}

/// The checks for a send queue, given its queue pair's type, capacity and state.
#[derive(Clone, Copy, Debug)]
pub struct SendChecks {
    /// A bit for each operation that may be posted now: none before RTS, then all operations that
    /// the type supports.
    accepts: u32,
    /// The bits of operations that [`is_plain`](Self::is_plain) accepts.
    accepts_plain: u32,
    /// The optional operations supported by this device.
    optional: u32,
    /// The optional flags supported by this device.
    optional_flags: SendFlags,
    max_sge: u32,
    max_inline: u32,
    /// The maximum number of bytes in a datagram, if the provider knows it.
    max_datagram: Option<u32>,
    qp_type: QpType,
    /// Whether queue pair types other than RC also support operations on windows.
    windows_of_every_type: bool,
    /// Whether some faults are left to the device.
    leaves_faults: bool,
}

impl SendChecks {
    /// Creates the checks for a queue in RESET, which accepts nothing.
    pub const fn new(qp_type: QpType, cap: &QpCap) -> Self {
        Self {
            accepts: 0,
            accepts_plain: 0,
            optional: 0,
            optional_flags: SendFlags::empty(),
            max_sge: cap.max_send_sge,
            max_inline: cap.max_inline_data,
            max_datagram: None,
            qp_type,
            windows_of_every_type: false,
            leaves_faults: false,
        }
    }

    /// Returns the same checks for a datagram queue pair (UD) with at most `bytes` of payload per
    /// datagram, the port's MTU.
    #[must_use]
    pub const fn with_max_datagram(self, bytes: u32) -> Self {
        Self { max_datagram: Some(bytes), ..self }
    }

    /// Returns the same checks for a device that supports flushes or atomic writes. Without this
    /// call, both operations are rejected, because some devices do not support their opcodes.
    #[must_use]
    pub const fn with_placement(self, flush: bool, atomic_write: bool) -> Self {
        let flush = if flush { bit(OpKind::FLUSH) } else { 0 };
        let atomic_write = if atomic_write { bit(OpKind::ATOMIC_WRITE) } else { 0 };
        Self { optional: self.optional | flush | atomic_write, ..self }
    }

    /// Returns the same checks for a device that supports memory windows. Without this call, binds
    /// and invalidations are rejected, because a kernel without windows may give their opcodes
    /// another meaning.
    #[must_use]
    pub const fn with_windows(self) -> Self {
        Self { optional: self.optional | WINDOWS, ..self }
    }

    /// Returns the same checks for a device that changes keys through every connected queue pair
    /// type, like ConnectX: UC invalidates local keys, and an XRC initiator supports all window
    /// operations of RC. Local binds and invalidations name no shared receive queue.
    #[must_use]
    pub const fn with_windows_of_every_type(self) -> Self {
        Self { windows_of_every_type: true, ..self.with_windows() }
    }

    /// Returns the same checks for a device that computes checksums for this queue's frames.
    /// Without this call, [`SendFlags::IP_CSUM`] is rejected.
    #[must_use]
    pub const fn with_ip_csum(self) -> Self {
        Self { optional_flags: self.optional_flags.union(SendFlags::IP_CSUM), ..self }
    }

    /// Returns the same checks for a device that segments this queue's frames (TSO). Without this
    /// call, segmented sends are rejected.
    #[must_use]
    pub const fn with_tso(self) -> Self {
        Self { optional: self.optional | bit(OpKind::TSO), ..self }
    }

    /// Leaves to the device the faults that the C providers do not check.
    pub const fn leave_faults_to_device(&mut self) {
        self.leaves_faults = true;
    }

    /// Returns the fault of a request that [`check`](Self::check) rejected for `reason`, if the
    /// fault is left to the device. In that case, the request has no other fault that the call
    /// would report.
    ///
    /// An operation on windows stays rejected on a device without windows, because its kernel may
    /// give the opcode another meaning. librxe also rejects such a bind.
    ///
    /// # Errors
    /// The reason for rejecting the request, if the fault is not left to the device.
    #[cold]
    pub fn left_to_device(&self, wr: &SendWr<'_>, reason: PostReason) -> Result<DeviceFault, PostReason> {
        if !self.leaves_faults {
            return Err(reason);
        }
        let fault = match reason {
            PostReason::MessageTooLong { given } | PostReason::DatagramTooLong { given, .. } => {
                DeviceFault::Length(given)
            }
            PostReason::UnsupportedOp { op, .. } => {
                let lacks_windows = bit(op) & WINDOWS & !self.optional != 0;
                if self.offered() == 0 || lacks_windows || op == OpKind::BIND_MW {
                    return Err(reason);
                }
                if self.accepts == 0 {
                    return Err(PostReason::InvalidState);
                }
                let max = if bit(op) & PLACEMENTS != 0 { 0 } else { self.max_sge };
                if wr.sge.len() > max as usize {
                    return Err(PostReason::TooManySge { given: wr.sge.len(), max });
                }
                DeviceFault::Operation
            }
            _ => return Err(reason),
        };
        let given = wr.sge.iter().map(|sge| u64::from(sge.length)).sum();
        if wr.flags.contains(SendFlags::INLINE) && given > u64::from(self.max_inline) {
            return Err(PostReason::InlineTooLong { given, max: self.max_inline });
        }
        Ok(fault)
    }

    /// Adapts the checks to the queue pair's new state.
    ///
    /// # References
    /// IBTA volume 1, section 10.3.1
    pub const fn moved_to(&mut self, state: QpState) {
        self.accepts = match state {
            QpState::RTS | QpState::SQD | QpState::SQE | QpState::ERR => self.offered(),
            _ => 0,
        };
        // Frames are never common requests.
        let is_plain = self.max_sge > 0 && !matches!(self.qp_type, QpType::RAW_PACKET);
        self.accepts_plain = if is_plain { self.accepts & PLAIN_OPERATIONS } else { 0 };
    }

    /// Returns the operations that the type and this device support, one bit each.
    const fn offered(&self) -> u32 {
        let of_type = operations(self.qp_type) | self.more_windows();
        of_type & (self.optional | !(PLACEMENTS | WINDOWS | bit(OpKind::TSO)))
    }

    /// Returns the window operations that the type supports on this device in addition to
    /// [`operations`].
    const fn more_windows(&self) -> u32 {
        match self.qp_type {
            QpType::UC | QpType::XRC_SEND if self.windows_of_every_type => LOCAL_OPERATIONS,
            _ => 0,
        }
    }

    /// Returns the maximum number of scatter/gather elements in a request.
    pub const fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// Returns the type of the queue pair.
    pub const fn qp_type(&self) -> QpType {
        self.qp_type
    }

    /// Returns whether this is a common request that passes all checks: a send, write or read with
    /// one SGE, and with flags that every operation accepts. Any other request needs
    /// [`check`](Self::check).
    #[inline(always)]
    pub fn is_plain(&self, wr: &SendWr<'_>) -> bool {
        self.accepts_plain & bit(wr.op.kind()) != 0
            && COMMON_FLAGS.contains(wr.flags)
            && matches!(wr.sge, [sge] if u64::from(sge.length) <= MAX_MESSAGE)
    }

    /// Returns whether this is a common request with inline data that passes all checks: a send or
    /// write with one SGE within the limit, and with flags that every operation accepts. Any other
    /// request needs [`check`](Self::check).
    #[inline(always)]
    pub fn is_plain_inline(&self, wr: &SendWr<'_>) -> bool {
        self.accepts_plain & INLINE_OPERATIONS & bit(wr.op.kind()) != 0
            && wr.flags.difference(COMMON_FLAGS) == SendFlags::INLINE
            && matches!(wr.sge, [sge] if sge.length <= self.max_inline)
    }

    /// Returns the maximum number of bytes accepted by [`is_plain`](Self::is_plain) and
    /// [`is_plain_inline`](Self::is_plain_inline) for requests with one SGE and no uncommon flags
    /// except [`INLINE`](SendFlags::INLINE). Valid until the next [`moved_to`](Self::moved_to).
    pub const fn plain_limits(&self, op: OpKind) -> PlainLimits {
        let accepts = self.accepts_plain & bit(op);
        PlainLimits {
            max_length: if accepts != 0 { MAX_MESSAGE as u32 } else { 0 },
            max_inline: if accepts & INLINE_OPERATIONS != 0 { self.max_inline } else { 0 },
        }
    }

    /// Checks a request and returns the length of its message in bytes; for a flush, the length of
    /// its range.
    ///
    /// # Errors
    /// The first reason that applies, in the order of the table in the module's documentation.
    #[inline]
    pub fn check(&self, wr: &SendWr<'_>) -> Result<u32, PostReason> {
        let kind = wr.op.kind();
        if self.accepts & bit(kind) == 0 {
            return Err(self.refusal(kind));
        }
        if let SendOp::Xrc { op, .. } = wr.op {
            return self.check_xrc(op, wr);
        }
        let length = list_length(wr.sge, self.max_sge)?;
        if let Some(max) = self.max_datagram
            && length > max
        {
            return Err(PostReason::DatagramTooLong { given: length.into(), max });
        }
        if !COMMON_FLAGS.contains(wr.flags) {
            self.check_rare_flags(wr, length)?;
        }
        if bit(kind) & (ATOMICS | PLACEMENTS | LOCAL_OPERATIONS) != 0 {
            return check_operands(wr, length);
        }
        Ok(length)
    }

    /// Checks that the state accepts requests.
    ///
    /// # Errors
    /// [`PostReason::InvalidState`].
    pub fn check_state(&self) -> Result<(), PostReason> {
        if self.accepts == 0 { Err(PostReason::InvalidState) } else { Ok(()) }
    }

    /// Checks the operation requested by an XRC initiator.
    #[inline(never)]
    fn check_xrc(&self, op: &SendOp<'_>, wr: &SendWr<'_>) -> Result<u32, PostReason> {
        let kind = op.kind();
        let accepts = XRC_OPERATIONS | if self.windows_of_every_type { SEND_INVALIDATE } else { 0 };
        if accepts & bit(kind) == 0 {
            return Err(PostReason::UnsupportedOp { op: kind, qp_type: self.qp_type });
        }
        let checks = Self { accepts, ..*self };
        checks.check(&SendWr { op: *op, ..*wr })
    }

    #[cold]
    fn refusal(&self, op: OpKind) -> PostReason {
        if self.offered() & bit(op) == 0 {
            PostReason::UnsupportedOp { op, qp_type: self.qp_type }
        } else {
            PostReason::InvalidState
        }
    }

    /// Checks flags other than `FENCE`, `SIGNALED` and `SOLICITED`.
    fn check_rare_flags(&self, wr: &SendWr<'_>, length: u32) -> Result<(), PostReason> {
        let op = wr.op.kind();
        let takes_inline = bit(op) & INLINE_OPERATIONS != 0;
        let common = COMMON_FLAGS.union(self.optional_flags);
        let taken = if takes_inline { common.union(SendFlags::INLINE) } else { common };
        let flags = wr.flags.difference(taken);
        if !flags.is_empty() {
            return Err(PostReason::UnsupportedFlags { op, flags });
        }
        if wr.flags.contains(SendFlags::INLINE) && length > self.max_inline {
            return Err(PostReason::InlineTooLong { given: length.into(), max: self.max_inline });
        }
        Ok(())
    }
}

/// The checks for a receive queue, given its capacity and state.
#[derive(Clone, Copy, Debug)]
pub struct RecvChecks {
    max_sge: u32,
    /// Whether the queue pair has left RESET.
    accepts: bool,
    /// Whether the queue pair has left RESET and its lists can have at least one SGE.
    accepts_plain: bool,
    /// Whether the queue pair takes its receives from a shared receive queue.
    is_shared: bool,
}

impl RecvChecks {
    /// Creates the checks for a queue in RESET, which accepts nothing.
    pub const fn new(cap: &QpCap) -> Self {
        Self { max_sge: cap.max_recv_sge, accepts: false, accepts_plain: false, is_shared: false }
    }

    /// Creates the checks for a queue pair that uses a shared receive queue, or receives nothing:
    /// every request is rejected.
    pub const fn of_shared() -> Self {
        Self { max_sge: 0, accepts: false, accepts_plain: false, is_shared: true }
    }

    /// Creates the checks for a shared receive queue, which has no state and always accepts
    /// receives.
    pub const fn of_srq(max_sge: u32) -> Self {
        Self { max_sge, accepts: true, accepts_plain: max_sge > 0, is_shared: false }
    }

    /// Adapts the checks to the queue pair's new state.
    ///
    /// # References
    /// IBTA volume 1, C10-97.2.1: nothing may be posted in RESET
    pub const fn moved_to(&mut self, state: QpState) {
        self.accepts = !matches!(state, QpState::RESET) && !self.is_shared;
        self.accepts_plain = self.accepts && self.max_sge > 0;
    }

    /// Returns the maximum number of scatter/gather elements in a request.
    pub const fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// Returns whether this is a common request, with one SGE, that passes all checks. Any other
    /// request needs [`check`](Self::check).
    #[inline(always)]
    pub fn is_plain(&self, wr: &RecvWr<'_>) -> bool {
        self.accepts_plain && matches!(wr.sge, [sge] if u64::from(sge.length) <= MAX_MESSAGE)
    }

    /// Checks a request and returns the length of its list in bytes.
    ///
    /// # Errors
    /// The first reason that applies, in the order of the table in the module's documentation.
    #[inline]
    pub fn check(&self, wr: &RecvWr<'_>) -> Result<u32, PostReason> {
        if !self.accepts {
            return Err(if self.is_shared { PostReason::SharedRecvQueue } else { PostReason::InvalidState });
        }
        list_length(wr.sge, self.max_sge)
    }
}

/// Returns the length of a list in bytes, or an error if it has too many elements.
#[inline]
fn list_length(list: &[Sge], max: u32) -> Result<u32, PostReason> {
    if list.len() > max as usize {
        return Err(PostReason::TooManySge { given: list.len(), max });
    }
    let length = list.iter().map(|sge| u64::from(sge.length)).sum();
    if length > MAX_MESSAGE {
        return Err(PostReason::MessageTooLong { given: length });
    }
    Ok(length as u32)
}

/// Checks the operands of an atomic, a flush, an atomic write or a local operation with a list of
/// `length` bytes, and returns the length of its message.
///
/// # References
/// IBTA volume 1, annex A19
#[inline(never)]
fn check_operands(wr: &SendWr<'_>, length: u32) -> Result<u32, PostReason> {
    let aligned = |remote_addr: u64| {
        let is_aligned = remote_addr.is_multiple_of(ATOMIC_LENGTH);
        if is_aligned { Ok(ATOMIC_LENGTH as u32) } else { Err(PostReason::AtomicMisaligned { remote_addr }) }
    };
    match wr.op {
        SendOp::AtomicCmpAndSwp { remote_addr, .. } | SendOp::AtomicFetchAndAdd { remote_addr, .. } => {
            if u64::from(length) != ATOMIC_LENGTH {
                return Err(PostReason::AtomicLength { given: length.into() });
            }
            aligned(remote_addr)
        }
        _ if !wr.sge.is_empty() => Err(PostReason::TooManySge { given: wr.sge.len(), max: 0 }),
        SendOp::AtomicWrite { remote_addr, .. } => aligned(remote_addr),
        SendOp::BindMw { bind_info, .. } => {
            let access = bind_info.mw_access_flags.difference(AccessFlags::WINDOW_RIGHTS);
            if access.is_empty() { Ok(0) } else { Err(PostReason::WindowAccess { access }) }
        }
        SendOp::Flush { length, placement, selectivity, .. } => {
            let exists = matches!(selectivity, FlushSelectivity::RANGE | FlushSelectivity::MR);
            let asks = !placement.is_empty() && FlushPlacement::all().contains(placement);
            if exists && asks { Ok(length) } else { Err(PostReason::FlushKind { placement, selectivity }) }
        }
        _ => Ok(length),
    }
}

/// Returns the operations that a queue pair type supports, one bit each.
const fn operations(qp_type: QpType) -> u32 {
    match qp_type {
        QpType::RC => SENDS | WRITES | READS | ATOMICS | SEND_INVALIDATE | LOCAL_OPERATIONS | PLACEMENTS,
        // No packet of the unreliable service carries a key to invalidate (IBTA volume 1, table
        // 38).
        QpType::UC => SENDS | WRITES | bit(OpKind::BIND_MW),
        QpType::UD => UD_SENDS,
        QpType::XRC_SEND => bit(OpKind::XRC),
        // A frame has no field for immediate data.
        QpType::RAW_PACKET => bit(OpKind::SEND) | bit(OpKind::TSO),
        _ => 0,
    }
}

/// Returns an operation's bit in a set of operations.
#[inline(always)]
const fn bit(kind: OpKind) -> u32 {
    1 << kind.0
}

/// The flags that every operation accepts.
const COMMON_FLAGS: SendFlags = SendFlags::FENCE.union(SendFlags::SIGNALED).union(SendFlags::SOLICITED);

const SENDS: u32 = bit(OpKind::SEND) | bit(OpKind::SEND_WITH_IMM);
const UD_SENDS: u32 = bit(OpKind::UD_SEND) | bit(OpKind::UD_SEND_WITH_IMM);
const WRITES: u32 = bit(OpKind::RDMA_WRITE) | bit(OpKind::RDMA_WRITE_WITH_IMM);
const READS: u32 = bit(OpKind::RDMA_READ);
const ATOMICS: u32 = bit(OpKind::ATOMIC_CMP_AND_SWP) | bit(OpKind::ATOMIC_FETCH_AND_ADD);
const SEND_INVALIDATE: u32 = bit(OpKind::SEND_WITH_INV);

/// Operations that send nothing and have no scatter/gather list.
const LOCAL_OPERATIONS: u32 = bit(OpKind::LOCAL_INV) | bit(OpKind::BIND_MW);

/// Operations on memory windows; devices need not support them.
const WINDOWS: u32 = SEND_INVALIDATE | LOCAL_OPERATIONS;

/// Operations of the memory placement extensions; devices need not support them.
const PLACEMENTS: u32 = bit(OpKind::FLUSH) | bit(OpKind::ATOMIC_WRITE);

/// Operations that an XRC initiator can request on every device.
const XRC_OPERATIONS: u32 = SENDS | WRITES | READS | ATOMICS;

/// Operations whose operands need no check.
const PLAIN_OPERATIONS: u32 = SENDS | WRITES | READS;

/// Operations whose data can be inline, because they only read local memory.
const INLINE_OPERATIONS: u32 = SENDS | UD_SENDS | WRITES | SEND_INVALIDATE;

#[cfg(test)]
mod tests;
