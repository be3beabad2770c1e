//! [`Error`]: a failed verb, its device, its errno and, if known, the cause.

use core::fmt;
use core::time::Duration;

use nix::sys::resource::{Resource, getrlimit};

use crate::errno::Errno;
use crate::skip_reason::SkipReason;
use crate::types::names::Names;
use crate::types::{
    AccessFlags, CqFlags, CqWcFlags, Gid, Mtu, ParseError, PostError, PostReason, QpAttrMask, QpState,
    QpType, WcError,
};

/// The result of every control-path verb.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// A failed verb.
///
/// `Display` writes a sentence an operator can act on: `create_qp on rxe0: max_send_wr 2000000
/// exceeds the device's 1048576 (EINVAL)`. `Debug` writes the same sentence, because `main` prints
/// a returned error with `Debug`; `{:#?}` writes the fields.
///
/// Rejected posts, failed completions and parse errors convert into this type. It converts into
/// [`std::io::Error`], so `?` works between them.
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    /// The name of the verb without `ibv_` (`"create_qp"`).
    pub verb: &'static str,
    /// The name of the device; empty if no device is involved.
    pub device: Box<str>,
    /// The errno that the kernel returned or would have returned.
    pub errno: Errno,
    /// The cause, if known.
    pub cause: Cause,
}

impl Error {
    /// Creates an error without a cause, or with the cause that is clear from the errno alone:
    /// [`Cause::Descriptors`] for `EMFILE`.
    pub fn new(verb: &'static str, device: &str, errno: Errno) -> Self {
        let cause = if errno == Errno::MFILE { descriptors() } else { Cause::Unknown };
        Self { verb, device: device.into(), errno, cause }
    }

    /// Returns the error with the given cause.
    #[must_use]
    pub fn because(mut self, cause: Cause) -> Self {
        self.cause = cause;
        self
    }

    /// Returns the maximum of an attribute if the verb failed because a larger value was requested
    /// ([`Cause::Limit`]).
    ///
    /// ```
    /// # use verbs_core::{Cause, Errno, Error};
    /// # let (asked, max) = (2_000_000, 1_048_576);
    /// # let limit = Cause::Limit { name: "max_send_wr", asked, min: 0, max };
    /// # let error = Error::new("create_qp", "rxe0", Errno::INVAL).because(limit);
    /// let mut max_send_wr = 2_000_000_u32;
    /// if let Some(max) = error.max_of("max_send_wr") {
    ///     max_send_wr = max;
    /// }
    /// assert_eq!(max_send_wr, 1_048_576);
    /// ```
    ///
    /// Returns `None` for another cause and for a limit that does not fit into `T`.
    pub fn max_of<T: TryFrom<u64>>(&self, attribute: &str) -> Option<T> {
        match self.cause {
            Cause::Limit { name, asked, max, .. } if name == attribute && asked > max => {
                T::try_from(max).ok()
            }
            _ => None,
        }
    }
}

/// The cause of a failed verb.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// Only the errno is known.
    Unknown,
    /// A value lies beyond a limit of the device or of the protocol. [`Error::max_of`] returns the
    /// maximum in the type of the attribute.
    Limit {
        /// The name of the attribute.
        name: &'static str,
        /// The requested value.
        asked: u64,
        /// The minimum valid value.
        min: u64,
        /// The maximum valid value.
        max: u64,
    },
    /// A range outside the memory, or a range whose end lies before its start.
    Range {
        /// The offset of the first byte.
        start: u64,
        /// The offset after the last byte.
        end: u64,
        /// The length of the memory, in bytes.
        length: u64,
    },
    /// A path MTU code that is not defined.
    Mtu {
        /// The MTU code.
        mtu: Mtu,
    },
    /// A path without a GRH on an Ethernet port. InfiniBand needs a GRH only between subnets, RoCE
    /// always.
    NoGrh {
        /// The port number.
        port_num: u8,
    },
    /// A memory region without [`AccessFlags::LOCAL_WRITE`], although its remote access rights
    /// require local write access.
    NeedsLocalWrite {
        /// The rights that require local write access.
        access: AccessFlags,
    },
    /// Access rights the device does not support.
    Access {
        /// The unsupported rights.
        access: AccessFlags,
    },
    /// A queue pair type the device does not support.
    QpType {
        /// The unsupported type.
        qp_type: QpType,
    },
    /// The call is only for queue pairs of another type.
    CallOfType {
        /// The type of this queue pair.
        qp_type: QpType,
        /// A sentence that names the type required by the call.
        needs: &'static str,
    },
    /// Completion queue properties the device does not support.
    CqFlags {
        /// The unsupported properties.
        flags: CqFlags,
    },
    /// Completion fields the device does not support.
    CqWcFlags {
        /// The unsupported fields.
        wc_flags: CqWcFlags,
    },
    /// An argument of the call is a closed object.
    Closed {
        /// The kind of the closed object.
        what: &'static str,
    },
    /// Any other reason.
    Other {
        /// The reason, as a sentence.
        reason: Box<str>,
    },
    /// A queue rejected a work request.
    Post(PostReason),
    /// A work request failed.
    Completion(WcError),
    /// Malformed text or bytes.
    Parse(ParseError),
    /// A transition that does not exist for the queue pair type.
    IllegalTransition {
        /// The transport service.
        qp_type: QpType,
        /// The state before the transition.
        from: QpState,
        /// The requested state.
        to: QpState,
    },
    /// A queue pair transition with the wrong attributes.
    TransitionAttributes {
        /// The transport service.
        qp_type: QpType,
        /// The state before the transition.
        from: QpState,
        /// The requested state.
        to: QpState,
        /// The required attributes missing from the mask.
        missing: QpAttrMask,
        /// The attributes in the mask that the transition does not accept.
        forbidden: QpAttrMask,
    },
    /// The device's maximum number of these objects already exists.
    AllInUse {
        /// The kind of objects, as a plural noun.
        what: &'static str,
        /// The device's maximum.
        max: u64,
    },
    /// The kernel or its driver rejected an object with `ENOMEM`: memory is short, or all programs
    /// together have reached the device's maximum.
    Shortage {
        /// The kind of objects, as a plural noun.
        what: &'static str,
        /// The device's maximum.
        max: u64,
    },
    /// The process could not allocate memory of this size: the system is short of memory, or a
    /// limit (`RLIMIT_AS`, a control group) is reached.
    Allocation {
        /// The size of the allocation, in bytes.
        bytes: u64,
    },
    /// The process has reached its limit of open descriptors.
    Descriptors {
        /// The limit on open descriptors (`RLIMIT_NOFILE`).
        limit: u64,
    },
    /// The peer is unreachable from the device's address: no route exists, no host replies, or the
    /// two addresses belong to different families.
    Unreachable {
        /// The address of the device's port.
        from: Gid,
        /// The address of the peer.
        to: Gid,
    },
    /// The region is larger than the limit on locked memory.
    Memlock {
        /// The limit (`RLIMIT_MEMLOCK`), in bytes.
        limit: u64,
        /// The region's length, in bytes.
        asked: u64,
    },
    /// The port has no such GID, or the entry is empty.
    Gid {
        /// The port number.
        port_num: u8,
        /// The index of the GID.
        index: u32,
        /// The number of entries in the table; 0 if unknown.
        table_len: u32,
    },
    /// No entry of the port's GID table has this address with the required protocol.
    NoSuchGid {
        /// The port number.
        port_num: u8,
        /// The missing address.
        gid: Gid,
    },
    /// An address outside the multicast ranges: `ff00::/8`, and `224.0.0.0/4` mapped into IPv6.
    NotMulticast {
        /// The invalid address.
        gid: Gid,
    },
    /// The queue pair is not attached to the multicast group.
    NotAttached {
        /// The group's address.
        gid: Gid,
    },
    /// The kernel lacks the feature: it is too old, was built without it, or its driver for the
    /// device does not support it.
    KernelLacks {
        /// The missing feature.
        what: &'static str,
    },
    /// The kernel's reply was too short or malformed.
    BadReply {
        /// The defect in the reply.
        what: &'static str,
    },
    /// The kernel has detached the device from this context, and every command fails with `EIO`:
    /// the device was removed, or its driver has reset it. Reopen the device if it comes back.
    DeviceGone,
    /// The device executes no commands, not even a query of its port: it has failed, and its driver
    /// has given up on it or is about to reset it. The errno comes from the driver: `EIO`, and from
    /// mlx5 also `ENOLINK` and `ENXIO`.
    DeviceFailed,
    /// The device or its driver failed this command (`EIO`) but executes others.
    CommandFailed,
    /// Another object, or the kernel, still uses the object.
    InUse {
        /// The user of the object.
        by: &'static str,
    },
    /// An argument belongs to another device or another context.
    Foreign {
        /// The kind of the object.
        what: &'static str,
    },
    /// A file cannot be used.
    File {
        /// The path of the file.
        path: Box<str>,
        /// A remedy; may be empty.
        hint: &'static str,
    },
    /// No device has this name, or the system has no device.
    NoDevice {
        /// The requested name; empty if any device would do.
        name: Box<str>,
        /// The devices that can be opened, separated by `, `; empty if there are none.
        present: Box<str>,
        /// The skipped devices with reasons, separated by `; `. Empty if there are none.
        skipped: Box<str>,
        /// Whether no device exists and `VERBS_SOFT=auto` in the environment would create a soft
        /// one.
        try_soft: bool,
    },
    /// The memory to be registered is inaccessible.
    Inaccessible {
        /// The first address of the inaccessible range.
        start: u64,
        /// The first address after the range.
        end: u64,
        /// The missing property of the range, such as `writable`.
        lacks: &'static str,
    },
    /// No completion arrived within the time limit.
    NoCompletion {
        /// The time spent polling.
        within: Duration,
    },
    /// A completion did not return the requested kind of memory.
    NotReturned {
        /// The `wr_id` of the completed request.
        wr_id: u64,
        /// The requested kind of memory.
        what: &'static str,
    },
    /// The device belongs to the process that opened it, and this process is a forked child.
    Forked,
    /// The requested device is missing from every list.
    LeftOut {
        /// The reason for skipping the device.
        reason: Box<SkipReason>,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.verb)?;
        if !self.device.is_empty() {
            write!(f, " on {}", self.device)?;
        }
        match &self.cause {
            Cause::Unknown => write!(f, ": {} ({})", words(self.errno), self.errno),
            cause => write!(f, ": {cause} ({})", self.errno),
        }
    }
}

/// Formats like `Display`; `{:#?}` writes the fields.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            return fmt::Display::fmt(self, f);
        }
        let Self { verb, device, errno, cause } = self;
        f.debug_struct("Error")
            .field("verb", verb)
            .field("device", device)
            .field("errno", errno)
            .field("cause", cause)
            .finish()
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("cause unknown"),
            Self::Limit { name, asked, max: 0, .. } if *asked > 0 => {
                // A capacity of 0 means that the device has no such object. A maximum index of 0
                // does not mean that.
                match name.strip_prefix("max_") {
                    Some(thing) => write!(f, "{name} {asked}, but the device has no {thing}"),
                    None => write!(f, "{name} {asked} is out of range: the only one is 0"),
                }
            }
            Self::Limit { name, asked, min, max } if is_choice(name) => {
                write!(f, "{name} {asked} is out of range: the device has {min}")?;
                if min == max { f.write_str(" alone") } else { write!(f, " to {max}") }
            }
            Self::Limit { name: name @ "length of private_data", asked, max, .. } if asked > max => {
                write!(f, "{name} {asked} exceeds the {max} bytes of a message of connection management")
            }
            Self::Limit { name, asked, max, .. } if asked > max => match bits(name, *max) {
                Some(bits) => write!(f, "{name} {asked} does not fit into {bits} bits: the most is {max}"),
                None => write!(f, "{name} {asked} exceeds the device's {max}"),
            },
            Self::Limit { name, asked, min, .. } => {
                write!(f, "{name} {asked} is below the least possible, {min}")
            }
            Self::Range { start, end, length } => {
                write!(f, "the range {start}..{end} lies outside of {length} bytes")
            }
            Self::Mtu { mtu } => write!(
                f,
                "there is no MTU with the code {}: 1 to 5 stand for 256, 512, 1024, 2048 and 4096 bytes",
                mtu.0
            ),
            Self::NoGrh { port_num } => write!(
                f,
                "port {port_num} is Ethernet (RoCE), where every path needs a GRH: set ah_attr.grh, or make the path \
                 with AhAttr::new"
            ),
            Self::NeedsLocalWrite { access } => write!(f, "{} needs LOCAL_WRITE as well", Names(*access)),
            Self::Access { access } => write!(f, "the device does not have the rights {}", Names(*access)),
            Self::QpType { qp_type } => write!(f, "the device has no queue pairs of the type {qp_type}"),
            Self::CallOfType { qp_type, needs } => {
                write!(f, "the queue pair is of the type {qp_type}, and {needs}")
            }
            Self::CqFlags { flags } => {
                write!(f, "the device has no completion queues with {}", Names(*flags))
            }
            Self::CqWcFlags { wc_flags } => {
                write!(f, "the device's completions do not have the fields {}", Names(*wc_flags))
            }
            Self::Closed { what } => write!(f, "the {what} was closed"),
            Self::Other { reason } => f.write_str(reason),
            Self::Post(reason) => reason.fmt(f),
            // `Error` names the device.
            Self::Completion(error) => WcError { device: "", ..*error }.fmt(f),
            Self::Parse(error) => error.fmt(f),
            Self::IllegalTransition { qp_type, from, to } => {
                write!(f, "an {qp_type} queue pair cannot go from {from} to {to}")
            }
            Self::TransitionAttributes { qp_type, from, to, missing, forbidden } => {
                write!(f, "{qp_type} {from} to {to}")?;
                if !missing.is_empty() {
                    write!(f, " misses {}", Names(*missing))?;
                }
                if !forbidden.is_empty() {
                    let and = if missing.is_empty() { "" } else { " and" };
                    write!(f, "{and} does not take {}", Names(*forbidden))?;
                }
                Ok(())
            }
            Self::AllInUse { what, max } => {
                write!(f, "the device has {max} {what}, and all are in use: destroy some first")
            }
            Self::Shortage { what, max } => write!(
                f,
                "memory is short, or all {max} {what} of the device are in use (`rdma resource show` counts them)"
            ),
            Self::Allocation { bytes } => write!(
                f,
                "the process gets no {bytes} bytes of memory: the system has no more, or a limit does not permit it \
                 (ulimit -v, MemoryMax=)"
            ),
            Self::Descriptors { limit } => write!(
                f,
                "the process has all of the {limit} descriptors that it may have open: raise the limit (ulimit -n, \
                 LimitNOFILE=) or close some"
            ),
            Self::Unreachable { from, to } => {
                let (from, to) = (from.address(), to.address());
                if from.is_ipv4() == to.is_ipv4() {
                    write!(f, "{to} is not reached from {from}: there is no route (`ip route get {to} from {from}`), or no host answers")
                } else {
                    write!(f, "{to} is not reached from {from}, which is of another address family")
                }
            }
            Self::Memlock { limit, asked } => write!(
                f,
                "{asked} bytes would have to be locked, but RLIMIT_MEMLOCK is {limit} bytes: raise it (ulimit -l, \
                 LimitMEMLOCK=) or register less"
            ),
            Self::Gid { port_num, index, table_len } => {
                write!(f, "port {port_num} has no GID at index {index}")?;
                if *table_len > 0 { write!(f, ": its table has {table_len} entries") } else { Ok(()) }
            }
            Self::NoSuchGid { port_num, gid } => {
                write!(f, "no entry of port {port_num}'s GID table is {gid}")
            }
            Self::NotMulticast { gid } => {
                write!(f, "{gid} is not the address of a multicast group (ff00::/8 or 224.0.0.0/4)")
            }
            Self::NotAttached { gid } => {
                write!(f, "the queue pair is not attached to the group {gid}")
            }
            Self::KernelLacks { what } => write!(f, "this kernel, or its driver, has no {what}"),
            Self::BadReply { what } => write!(f, "the kernel's reply is malformed: {what}"),
            Self::DeviceGone => f.write_str(
                "the device is gone: it was removed, or its driver has reset it; if it comes back, open it again",
            ),
            Self::DeviceFailed => f.write_str("the device has failed: it executes no commands"),
            Self::CommandFailed => f.write_str("the device failed the command, and executes others"),
            Self::InUse { by } => write!(f, "still in use by {by}"),
            Self::Foreign { what } => {
                write!(f, "the {what} belongs to another device, or was made from another context of this one")
            },
            Self::File { path, hint: "" } => write!(f, "{path}"),
            Self::File { path, hint } => write!(f, "{path}: {hint}"),
            Self::NoDevice { name, present, skipped, try_soft } => {
                match (name.is_empty(), present.is_empty()) {
                    (true, true) => f.write_str("there is no RDMA device")?,
                    (true, false) => f.write_str("there is no RDMA device with an empty name")?,
                    (false, _) => write!(f, "there is no RDMA device {name}")?,
                }
                if !present.is_empty() {
                    write!(f, ", only {present}")?;
                }
                if !skipped.is_empty() {
                    write!(f, "; left out: {skipped}")?;
                }
                if *try_soft {
                    f.write_str("; VERBS_SOFT=auto in the environment makes one in software (soft0)")?;
                }
                Ok(())
            }
            Self::Inaccessible { start, end, lacks } => {
                write!(f, "the memory at {start:#x}..{end:#x} is not {lacks}")
            }
            Self::NoCompletion { within } => write!(f, "no completion within {within:?}"),
            Self::NotReturned { wr_id, what } => write!(
                f,
                "request {wr_id:#x} returns no {what}: it was posted without one, or its queue pair was closed or reset \
                 before the poll"
            ),
            Self::Forked => f.write_str(
                "this process was forked after the device was made: find and open a device again in the child",
            ),
            Self::LeftOut { reason } => reason.fmt(f),
        }
    }
}

/// Returns the width in bits of a packet or command field whose maximum value is `max`: queue pair
/// numbers, packet sequence numbers, GID indexes, timers and retry counts.
fn bits(name: &str, max: u64) -> Option<u32> {
    match (name, max) {
        (_, 0xff) => Some(8),
        (_, 0xff_ffff) => Some(24),
        ("timeout" | "min_rnr_timer", 31) => Some(5),
        ("retry_cnt" | "rnr_retry", 7) => Some(3),
        _ => None,
    }
}

/// Returns whether an attribute selects one of the device's objects by number. For such an
/// attribute, errors name the valid range.
fn is_choice(name: &str) -> bool {
    ["port_num", "ah_attr.port_num", "comp_vector", "pkey_index", "pkey index"].contains(&name)
}

/// Returns the text for an errno without a known cause, with the most common reason.
fn words(errno: Errno) -> String {
    let text = errno.description();
    match errno {
        Errno::PERM => format!(
            "{text}: a capability is missing (such as CAP_NET_RAW), or a seccomp filter, such as a container's, \
             refuses the system call"
        ),
        Errno::NFILE => format!("{text}: all processes together have reached fs.file-max"),
        _ => text.into(),
    }
}

/// Returns the cause of `EMFILE`.
#[cold]
fn descriptors() -> Cause {
    match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((limit, _)) => Cause::Descriptors { limit },
        Err(_) => Cause::Unknown,
    }
}

impl std::error::Error for Error {}

impl From<PostReason> for Error {
    fn from(reason: PostReason) -> Self {
        Self::new("post", "", reason.errno()).because(Cause::Post(reason))
    }
}

impl From<PostError> for Error {
    fn from(error: PostError) -> Self {
        error.reason.into()
    }
}

impl From<WcError> for Error {
    fn from(error: WcError) -> Self {
        Self::new("poll_cq", error.device, Errno::IO).because(Cause::Completion(error))
    }
}

impl From<ParseError> for Error {
    fn from(error: ParseError) -> Self {
        Self::new("parse", "", Errno::INVAL).because(Cause::Parse(error))
    }
}

/// Implements conversion into [`std::io::Error`] through [`Error`].
macro_rules! into_io_error {
    ($($from:ty),*) => {$(
        impl From<$from> for std::io::Error {
            fn from(error: $from) -> Self {
                Error::from(error).into()
            }
        }
    )*};
}

into_io_error!(PostReason, PostError, WcError, ParseError);

impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        let kind = Self::from(error.errno).kind();
        Self::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Wc, WcStatus};

    #[test]
    fn a_passed_limit_reads_as_a_sentence() {
        let error = Error::new("create_qp", "rxe0", Errno::INVAL).because(Cause::Limit {
            name: "max_send_wr",
            asked: 2_000_000,
            min: 0,
            max: 1_048_576,
        });
        assert_eq!(
            error.to_string(),
            "create_qp on rxe0: max_send_wr 2000000 exceeds the device's 1048576 (EINVAL)"
        );
    }

    #[test]
    fn the_limit_of_an_attribute_has_the_type_of_the_attribute() {
        let limit = |asked| Cause::Limit { name: "max_sge", asked, min: 2, max: 300 };
        let error = Error::new("create_qp", "rxe0", Errno::INVAL);
        let large = error.clone().because(limit(400));
        assert_eq!((large.max_of("max_sge"), large.max_of("max_sge")), (Some(300_u32), Some(300_u64)));
        assert_eq!(large.max_of::<u32>("max_wr"), None);
        assert_eq!(large.max_of::<u8>("max_sge"), None, "it does not fit");
        assert_eq!(error.clone().because(limit(1)).max_of::<u32>("max_sge"), None, "below the least");
        assert_eq!(error.max_of::<u32>("max_sge"), None);
    }

    #[test]
    fn a_transition_names_what_it_misses_and_what_it_does_not_take() {
        let error = Error::new("modify_qp", "rxe0", Errno::INVAL).because(Cause::TransitionAttributes {
            qp_type: QpType::RC,
            from: QpState::INIT,
            to: QpState::RTR,
            missing: QpAttrMask::AV | QpAttrMask::DEST_QPN,
            forbidden: QpAttrMask::QKEY,
        });
        assert_eq!(
            error.to_string(),
            "modify_qp on rxe0: RC INIT to RTR misses AV, DEST_QPN and does not take QKEY (EINVAL)"
        );
    }

    #[test]
    fn a_main_that_returns_an_error_prints_its_sentence() {
        let error = Error::new("open_device", "rxe0", Errno::ACCESS);
        let boxed: Box<dyn std::error::Error> = Box::new(error.clone());
        assert_eq!(format!("{boxed:?}"), "open_device on rxe0: Permission denied (EACCES)");
        let fields = format!("{error:#?}");
        assert!(fields.contains("verb: \"open_device\"") && fields.contains("cause: Unknown"), "{fields}");
    }

    #[test]
    fn refused_posts_failed_completions_and_parse_errors_become_errors_by_a_question_mark() {
        fn all(step: u32) -> Result<()> {
            let wc = Wc { status: WcStatus::RETRY_EXC_ERR, wr_id: 3, qp_num: 17, ..Wc::default() };
            match step {
                0 => Err(PostReason::QueueFull)?,
                1 => Err(PostError { accepted: 2, reason: PostReason::ForeignAv })?,
                2 => wc.ok()?,
                _ => drop("nonsense".parse::<Gid>()?),
            }
            Ok(())
        }
        for (step, text) in [
            "post: the queue is full: poll completions before posting more (ENOMEM)",
            "post: the address handle belongs to another provider (EINVAL)",
            "poll_cq: work request 3 of queue pair 0x11 failed: transport retry counter exceeded: the peer did not \
             acknowledge: it is gone, its queue pair is not connected to this one, or packets are lost (EIO)",
            "parse: a GID is an IPv6 or IPv4 address (EINVAL)",
        ]
        .into_iter()
        .enumerate()
        {
            let error = all(step as u32).unwrap_err();
            assert_eq!(error.to_string(), text);
            let io = std::io::Error::from(error.clone());
            assert_eq!(io.to_string(), text);
            assert_eq!(io.get_ref().and_then(|inner| inner.downcast_ref()), Some(&error));
        }
    }

    #[test]
    fn a_device_that_has_none_of_something_is_not_said_to_have_zero() {
        for (name, text) in [
            ("max_inline_data", "max_inline_data 64, but the device has no inline_data"),
            ("pkey index", "pkey index 64 is out of range: the only one is 0"),
        ] {
            assert_eq!(Cause::Limit { name, asked: 64, min: 0, max: 0 }.to_string(), text);
        }
    }

    #[test]
    fn a_number_that_chooses_is_refused_with_the_range_of_choices() {
        for (name, asked, min, max, text) in [
            ("comp_vector", 9, 0, 3, "comp_vector 9 is out of range: the device has 0 to 3"),
            ("comp_vector", 9, 0, 0, "comp_vector 9 is out of range: the only one is 0"),
            ("pkey_index", 200, 0, 127, "pkey_index 200 is out of range: the device has 0 to 127"),
            ("port_num", 0, 1, 2, "port_num 0 is out of range: the device has 1 to 2"),
            ("port_num", 0, 1, 1, "port_num 0 is out of range: the device has 1 alone"),
        ] {
            assert_eq!(Cause::Limit { name, asked, min, max }.to_string(), text);
        }
    }

    #[test]
    fn an_errno_of_the_process_says_which_limit_it_met() {
        let full = Error::new("create_comp_channel", "soft0", Errno::MFILE);
        let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert_eq!(full.cause, Cause::Descriptors { limit });
        let text = format!(
            "create_comp_channel on soft0: the process has all of the {limit} descriptors that it may have open: raise \
             the limit (ulimit -n, LimitNOFILE=) or close some (EMFILE)"
        );
        assert_eq!(full.to_string(), text);
        let filtered = Error::new("open_device", "soft0", Errno::PERM).to_string();
        assert!(filtered.contains("seccomp") && filtered.ends_with("(EPERM)"), "{filtered}");
    }

    #[test]
    fn exhausted_objects_and_routes_that_do_not_exist_are_named() {
        let (from, to) = ("192.0.2.1".parse().unwrap(), "2001:db8::9".parse().unwrap());
        for (cause, text) in [
            (
                Cause::AllInUse { what: "queue pairs", max: 4000 },
                "the device has 4000 queue pairs, and all are in use: destroy some first",
            ),
            (
                Cause::Unreachable { from, to },
                "2001:db8::9 is not reached from 192.0.2.1, which is of another address family",
            ),
            (
                Cause::Unreachable { from, to: from },
                "192.0.2.1 is not reached from 192.0.2.1: there is no route (`ip route get 192.0.2.1 from 192.0.2.1`), or \
                 no host answers",
            ),
            (
                Cause::Allocation { bytes: 1 << 40 },
                "the process gets no 1099511627776 bytes of memory: the system has no more, or a limit does not permit it \
                 (ulimit -v, MemoryMax=)",
            ),
            (
                Cause::CallOfType { qp_type: QpType::RC, needs: "only UD queue pairs join groups" },
                "the queue pair is of the type RC, and only UD queue pairs join groups",
            ),
        ] {
            assert_eq!(cause.to_string(), text);
        }
    }

    #[test]
    fn without_a_cause_the_errno_speaks() {
        let error = Error::new("open_device", "", Errno::ACCESS);
        assert_eq!(error.to_string(), "open_device: Permission denied (EACCES)");
    }
}
