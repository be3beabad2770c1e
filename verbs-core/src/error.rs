//! [`Error`]: which verb failed, on which device, with which errno, and why as far as it can be known.

use core::fmt;

use crate::Errno;
use crate::discovery::SkipReason;
use crate::types::{QpAttrMask, QpState, QpType};

/// What every verb of the control path returns.
pub type Result<T, E = Error> = core::result::Result<T, E>;

/// A verb that failed.
///
/// `Display` writes a sentence that an operator can act on:
/// `create_qp on rxe0: max_send_wr 2000000 exceeds the device's 1048576 (EINVAL)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The verb, by its name without `ibv_` (`"create_qp"`).
    pub verb: &'static str,
    /// The device, or an empty string where there is none yet.
    pub device: Box<str>,
    /// What the kernel said, or what it would have said.
    pub errno: Errno,
    /// Why, where that can be known.
    pub cause: Cause,
}

impl Error {
    /// A verb that failed with nothing known beyond the errno.
    pub fn new(verb: &'static str, device: &str, errno: Errno) -> Self {
        Self { verb, device: device.into(), errno, cause: Cause::Unknown }
    }

    /// The same error, with its cause.
    #[must_use]
    pub fn because(mut self, cause: Cause) -> Self {
        self.cause = cause;
        self
    }
}

/// Why a verb failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// Only the errno is known.
    Unknown,
    /// A limit of the device, or of the protocol, was passed.
    Limit {
        /// Its name, as the attribute is called.
        name: &'static str,
        /// What was asked for.
        asked: u64,
        /// The least that is allowed.
        min: u64,
        /// The most that is allowed.
        max: u64,
    },
    /// A QP transition that does not exist for the type.
    IllegalTransition {
        /// The transport service.
        qp_type: QpType,
        /// Where it was.
        from: QpState,
        /// Where it should go.
        to: QpState,
    },
    /// A QP transition with the wrong attributes.
    TransitionAttributes {
        /// The transport service.
        qp_type: QpType,
        /// Where it was.
        from: QpState,
        /// Where it should go.
        to: QpState,
        /// What it needs and did not get.
        missing: QpAttrMask,
        /// What it got and does not take.
        forbidden: QpAttrMask,
    },
    /// Locked memory is limited, and the region is larger.
    Memlock {
        /// The limit (`RLIMIT_MEMLOCK`), in bytes.
        limit: u64,
        /// The region's length, in bytes.
        asked: u64,
    },
    /// The port has no such GID, or an empty one.
    Gid {
        /// The port.
        port_num: u8,
        /// The index.
        index: u32,
        /// How many entries the table has; 0 where that is not known.
        table_len: u32,
    },
    /// The kernel is too old for it, or built without it.
    KernelLacks {
        /// What it lacks.
        what: &'static str,
    },
    /// The kernel's answer was too short or makes no sense.
    BadReply {
        /// What was wrong with it.
        what: &'static str,
    },
    /// Objects made from this one are still alive.
    InUse {
        /// What kind they are.
        by: &'static str,
    },
    /// An object of another device, context or protection domain was given.
    Foreign {
        /// Which object.
        what: &'static str,
    },
    /// A file could not be used.
    File {
        /// Its path.
        path: Box<str>,
        /// What to do about it.
        hint: &'static str,
    },
    /// No device has the name, or none is there at all.
    NoDevice {
        /// What was looked for.
        name: Box<str>,
        /// Devices that are there, separated by `, `. Empty when there are none.
        present: Box<str>,
        /// Devices that were found and left out, with reasons, separated by `; `. Empty when there are none.
        skipped: Box<str>,
    },
    /// The device that was wanted is one that no list would have.
    LeftOut {
        /// Why.
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
            Cause::Unknown => write!(f, ": {} ({})", self.errno.description(), self.errno),
            cause => write!(f, ": {cause} ({})", self.errno),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("cause unknown"),
            Self::Limit { name, asked, max, .. } if asked > max => {
                write!(f, "{name} {asked} exceeds the device's {max}")
            }
            Self::Limit { name, asked, min, .. } => {
                write!(f, "{name} {asked} is below the least possible, {min}")
            }
            Self::IllegalTransition { qp_type, from, to } => {
                write!(f, "an {qp_type} queue pair cannot go from {from} to {to}")
            }
            Self::TransitionAttributes { qp_type, from, to, missing, forbidden } => {
                write!(f, "{qp_type} {from} to {to}")?;
                if !missing.is_empty() {
                    write!(f, " misses {}", AttrNames(*missing))?;
                }
                if !forbidden.is_empty() {
                    let and = if missing.is_empty() { "" } else { " and" };
                    write!(f, "{and} does not take {}", AttrNames(*forbidden))?;
                }
                Ok(())
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
            Self::KernelLacks { what } => write!(f, "this kernel has no {what}"),
            Self::BadReply { what } => write!(f, "the kernel's reply makes no sense: {what}"),
            Self::InUse { by } => write!(f, "still in use by {by}"),
            Self::Foreign { what } => write!(f, "the {what} belongs to another device"),
            Self::File { path, hint: "" } => write!(f, "{path}"),
            Self::File { path, hint } => write!(f, "{path}: {hint}"),
            Self::NoDevice { name, present, skipped } => {
                match (name.is_empty(), present.is_empty()) {
                    (true, true) => f.write_str("there is no RDMA device")?,
                    (true, false) => f.write_str("there is no RDMA device with an empty name")?,
                    (false, _) => write!(f, "there is no RDMA device {name}")?,
                }
                if !present.is_empty() {
                    write!(f, ", only {present}")?;
                }
                if skipped.is_empty() { Ok(()) } else { write!(f, "; left out: {skipped}") }
            }
            Self::LeftOut { reason } => reason.fmt(f),
        }
    }
}

/// The names of attributes, as `ibv_modify_qp(3)` writes them, without `IBV_QP_`.
struct AttrNames(QpAttrMask);

impl fmt::Display for AttrNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        let mut names = self.0.iter_names();
        for (name, _) in names.by_ref() {
            write!(f, "{separator}{name}")?;
            separator = ", ";
        }
        let rest = names.remaining().bits();
        if rest != 0 { write!(f, "{separator}{rest:#x}") } else { Ok(()) }
    }
}

impl std::error::Error for Error {}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        let kind = Self::from(error.errno).kind();
        Self::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn without_a_cause_the_errno_speaks() {
        let error = Error::new("open_device", "", Errno::ACCESS);
        assert_eq!(error.to_string(), "open_device: Permission denied (EACCES)");
    }
}
