//! [`Skipped`]: a device that is there and not in the list, and why.

use core::fmt;
use std::path::PathBuf;

use uverbs_abi::ib_user_ioctl_verbs::RdmaDriverId;

use crate::Errno;

/// A device that was found and left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// The RDMA device's name, or the character device's where the former could not be learned.
    /// What is not printable is escaped.
    pub name: String,
    /// Why.
    pub reason: SkipReason,
}

/// Why a device was left out. `Display` is a sentence that says what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SkipReason {
    /// Its file in `/dev/infiniband` cannot be found.
    NodeMissing {
        /// Where it should be.
        path: PathBuf,
        /// What `stat(2)` said.
        errno: Errno,
    },
    /// The kernel has no character device for it.
    NoChardev {
        /// What the kernel said when asked for one; `None` if it was not asked.
        errno: Option<Errno>,
    },
    /// Its name, or its character device's, could not be a file's name.
    BadName,
    /// sysfs has it, but what is needed could not be read.
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What `open(2)` or `read(2)` said.
        errno: Errno,
    },
    /// sysfs has it, but what was read makes no sense.
    Nonsense {
        /// The file.
        path: PathBuf,
    },
    /// No provider drives it.
    NoProvider {
        /// The kernel driver's id, where it is known.
        driver_id: Option<RdmaDriverId>,
    },
    /// The kernel driver speaks another version of its ABI than the provider.
    AbiOutOfRange {
        /// What the kernel driver speaks.
        abi: u32,
        /// The provider that would drive it.
        provider: &'static str,
        /// The oldest that the provider knows.
        min: u32,
        /// The newest that the provider knows.
        max: u32,
    },
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.reason)
    }
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NodeMissing { path, errno: Errno::NOENT | Errno::NOTDIR } => write!(
                f,
                "{} is missing: let udev create it (udevadm trigger), or give it to the container",
                path.display()
            ),
            Self::NodeMissing { path, errno } => {
                write!(
                    f,
                    "{} cannot be looked at ({errno}): check the permissions on its way",
                    path.display()
                )
            }
            Self::NoChardev { errno } => {
                f.write_str("the kernel has no uverbs device for it")?;
                if let Some(errno) = errno {
                    write!(f, " ({errno})")?;
                }
                f.write_str(": load the module ib_uverbs")
            }
            Self::BadName => f.write_str("its name cannot be a file's name: rename it (rdma dev set)"),
            Self::Unreadable { path, errno } => {
                write!(f, "{} cannot be read ({errno}): check that sysfs is mounted whole", path.display())
            }
            Self::Nonsense { path } => {
                write!(f, "what {} says makes no sense: check that it is the kernel's sysfs", path.display())
            }
            Self::NoProvider { driver_id: Some(id) } => match driver_name(*id) {
                Some(name) => {
                    write!(f, "no provider for the kernel driver {name}: build with one, or register one")
                }
                None => {
                    write!(
                        f,
                        "no provider for kernel driver number {}: update this program, or register one",
                        id.0
                    )
                }
            },
            Self::NoProvider { driver_id: None } => {
                f.write_str("no provider knows it by name or bus id: build with one, or register one")
            }
            Self::AbiOutOfRange { abi, provider, min, max } => {
                let which = if abi > max { "this program" } else { "the kernel" };
                write!(
                    f,
                    "the kernel driver speaks ABI version {abi}, the provider {provider} {min} to {max}: update {which}"
                )
            }
        }
    }
}

/// The kernel driver's name, as rdma-core names its provider.
fn driver_name(id: RdmaDriverId) -> Option<String> {
    match id {
        RdmaDriverId::RDMA_DRIVER_UNKNOWN => None,
        // Two drivers have had this number, and the first is gone.
        RdmaDriverId::RDMA_DRIVER_IRDMA => Some("irdma".into()),
        _ => Some(id.name()?.strip_prefix("RDMA_DRIVER_")?.to_lowercase()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentence(reason: SkipReason) -> String {
        Skipped { name: "rxe0".into(), reason }.to_string()
    }

    #[test]
    fn every_reason_says_what_to_do() {
        assert_eq!(
            sentence(SkipReason::NodeMissing { path: "/dev/infiniband/uverbs0".into(), errno: Errno::NOENT }),
            "rxe0: /dev/infiniband/uverbs0 is missing: let udev create it (udevadm trigger), or give it to the \
             container"
        );
        assert_eq!(
            sentence(SkipReason::NodeMissing {
                path: "/dev/infiniband/uverbs0".into(),
                errno: Errno::ACCESS
            }),
            "rxe0: /dev/infiniband/uverbs0 cannot be looked at (EACCES): check the permissions on its way"
        );
        assert_eq!(
            sentence(SkipReason::NoChardev { errno: Some(Errno::OPNOTSUPP) }),
            "rxe0: the kernel has no uverbs device for it (EOPNOTSUPP): load the module ib_uverbs"
        );
    }

    #[test]
    fn a_missing_provider_is_named_after_the_kernel_driver() {
        let names = |id| sentence(SkipReason::NoProvider { driver_id: Some(RdmaDriverId(id)) });
        assert_eq!(names(18), "rxe0: no provider for the kernel driver siw: build with one, or register one");
        assert!(names(9).contains("irdma"));
        for id in [0, 2222, u32::MAX] {
            assert!(names(id).contains(&format!("number {id}:")), "{}", names(id));
        }
    }

    #[test]
    fn an_abi_out_of_range_says_which_side_to_update() {
        let reason = |abi| SkipReason::AbiOutOfRange { abi, provider: "rxe", min: 1, max: 2 };
        assert!(
            sentence(reason(3))
                .ends_with("speaks ABI version 3, the provider rxe 1 to 2: update this program")
        );
        assert!(sentence(reason(0)).ends_with("update the kernel"));
    }
}
