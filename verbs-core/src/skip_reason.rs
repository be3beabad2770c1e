//! [`SkipReason`]: the reason why an existing device is missing from the list.

use core::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use uverbs_abi::ib_user_ioctl_verbs::RdmaDriverId;

use nix::sys::resource::{Resource, getrlimit};

use crate::errno::Errno;

/// The reason why a device was skipped. `Display` writes a sentence with advice for an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SkipReason {
    /// The device's file in `/dev/infiniband` cannot be found.
    NodeMissing {
        /// The expected path.
        path: PathBuf,
        /// The errno from `stat(2)`.
        errno: Errno,
    },
    /// The kernel has no character device for the device.
    NoChardev {
        /// The errno from querying the kernel; `None` if the kernel was not queried.
        errno: Option<Errno>,
    },
    /// The name of the device or of its character device is not a valid file name.
    BadName,
    /// sysfs lists the device, but a required file could not be read.
    Unreadable {
        /// The path of the file.
        path: PathBuf,
        /// The errno from `open(2)` or `read(2)`.
        errno: Errno,
    },
    /// sysfs lists the device, but the content of a file is malformed.
    Nonsense {
        /// The path of the file.
        path: PathBuf,
    },
    /// No provider supports the device's driver.
    NoProvider {
        /// The kernel driver's id, if known.
        driver_id: Option<RdmaDriverId>,
    },
    /// The provider does not support the kernel driver's ABI version.
    AbiOutOfRange {
        /// The kernel driver's ABI version.
        abi: u32,
        /// The provider for this driver.
        provider: &'static str,
        /// The oldest version that the provider supports.
        min: u32,
        /// The newest version that the provider supports.
        max: u32,
    },
    /// The device was requested from a provider, which cannot bind the device's address.
    Address {
        /// The device's IP address.
        address: IpAddr,
        /// The UDP port.
        port: u16,
        /// The errno from `bind(2)`.
        errno: Errno,
    },
    /// The device was requested from a provider, which cannot write the device's packets to a file.
    Capture {
        /// The path of the capture file.
        path: PathBuf,
        /// The errno from `open(2)` or `write(2)`; `EEXIST` if the file has other contents.
        errno: Errno,
    },
    /// The device was requested from a provider, which cannot use the folder for finding other
    /// devices.
    Folder {
        /// The path of the folder.
        path: PathBuf,
        /// The errno from `open(2)` or `access(2)`; `EPERM` if other users can change the folder.
        errno: Errno,
    },
    /// The device was requested from a provider, which cannot parse the request.
    Request {
        /// The environment variable with the request.
        variable: &'static str,
        /// The text of the request.
        asked: Box<str>,
        /// A description of the valid requests.
        expected: &'static str,
    },
}

impl SkipReason {
    /// Returns whether the program or its environment requested the device from a provider. If not,
    /// discovery found the device.
    pub const fn was_asked_for(&self) -> bool {
        matches!(
            self,
            Self::Address { .. } | Self::Capture { .. } | Self::Folder { .. } | Self::Request { .. }
        )
    }

    /// Returns the errno for opening a skipped device: the system's errno, if there is one.
    pub fn errno(&self) -> Errno {
        match self {
            Self::NodeMissing { errno, .. }
            | Self::Unreadable { errno, .. }
            | Self::Address { errno, .. }
            | Self::Capture { errno, .. }
            | Self::Folder { errno, .. } => *errno,
            Self::NoChardev { errno } => errno.unwrap_or(Errno::NODEV),
            Self::Request { .. } => Errno::INVAL,
            Self::BadName | Self::Nonsense { .. } | Self::NoProvider { .. } | Self::AbiOutOfRange { .. } => {
                Errno::NODEV
            }
        }
    }
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NodeMissing { path, errno: Errno::NOENT | Errno::NOTDIR } => write!(
                f,
                "{} is missing: let udev create it (udevadm trigger), or pass it into the container",
                path.display()
            ),
            Self::NodeMissing { path, errno: Errno::MFILE }
            | Self::Unreadable { path, errno: Errno::MFILE } => {
                write!(f, "{}: {}", path.display(), AllDescriptors)
            }
            Self::NodeMissing { path, errno } => {
                write!(
                    f,
                    "{} cannot be accessed ({errno}): check the permissions of its directories",
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
            Self::BadName => f.write_str("its name is not a valid file name: rename it (rdma dev set)"),
            Self::Unreadable { path, errno } => {
                write!(f, "{} cannot be read ({errno}): check that sysfs is mounted whole", path.display())
            }
            Self::Nonsense { path } => {
                write!(f, "{} is malformed: check that it is the kernel's sysfs", path.display())
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
            Self::Address { address, port, errno: Errno::ADDRINUSE } => write!(
                f,
                "UDP port {port} of {address} is taken: by another device of this process, by a process of another user or with \
                 VERBS_SOFT=auto (ss -ulpn), or by the kernel's rdma_rxe, which takes it on every address of its network \
                 namespace; use another address or namespace (unshare --net), end that process, or unload the module \
                 (modprobe -r rdma_rxe)"
            ),
            Self::Address { address, port, errno: Errno::TIMEDOUT } => write!(
                f,
                "UDP port {port} of {address} cannot be shared: no process that has it answers, perhaps because all are \
                 stopped; continue or end one of them (ss -xlp | grep verbs-soft/share)"
            ),
            Self::Address { address, port, errno: Errno::USERS } => write!(
                f,
                "UDP port {port} of {address} is shared by as many processes as can share it: use another address too"
            ),
            Self::Address { address: IpAddr::V6(v6), errno: Errno::ADDRNOTAVAIL, .. }
                if v6.is_unicast_link_local() =>
            {
                write!(
                    f,
                    "the interface does not have {v6}: name one that does, as in {v6}%eth0 (ip address)"
                )
            }
            Self::Address { address, errno: Errno::ADDRNOTAVAIL, .. } => {
                write!(f, "{address} is not an address of this machine: use one that it has (ip address)")
            }
            Self::Address { address, port, errno: Errno::MFILE } => {
                write!(f, "UDP port {port} of {address}: {AllDescriptors}")
            }
            Self::Address { address, port, errno: errno @ (Errno::PERM | Errno::ACCESS) } => write!(
                f,
                "UDP port {port} of {address} is not permitted to this process ({errno}): let the seccomp filter, such as a \
                 container's, or the security module allow it"
            ),
            Self::Address { address, port, errno } => {
                write!(f, "UDP port {port} of {address} cannot be bound: {} ({errno})", errno.description())
            }
            Self::Capture { path, errno: Errno::EXIST } => write!(
                f,
                "{} has other contents than captured packets: remove it, or name another file for packets",
                path.display()
            ),
            Self::Capture { path, errno } => write!(
                f,
                "packets cannot be written to {}: {} ({errno}); name another file for packets",
                path.display(),
                errno.description()
            ),
            Self::Folder { path, errno: Errno::PERM } => write!(
                f,
                "devices cannot meet in the folder {}, which other users can change: make it this user's or root's (chown), \
                 without permission for others to write (chmod go-w)",
                path.display()
            ),
            Self::Folder { path, errno } => write!(
                f,
                "devices cannot meet in the folder {}: {} ({errno}); name a folder that this user can write to",
                path.display(),
                errno.description()
            ),
            Self::Request { variable, asked, expected } => {
                write!(f, "{variable} asks for {asked:?}: it takes {expected}")
            }
        }
    }
}

/// The advice to the operator after `EMFILE`.
pub const MANY_DESCRIPTORS: &str =
    "the process has as many open descriptors as it may have: raise its limit (ulimit -n, LimitNOFILE=)";

/// Formats the advice for `EMFILE`, including the limit.
struct AllDescriptors;

impl fmt::Display for AllDescriptors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match getrlimit(Resource::RLIMIT_NOFILE) {
            Ok((limit, _)) => write!(
                f,
                "the process has all of the {limit} descriptors that it may have open: raise the limit (ulimit -n, \
                 LimitNOFILE=)"
            ),
            Err(_) => f.write_str(MANY_DESCRIPTORS),
        }
    }
}

/// Returns the kernel driver's name as rdma-core spells it.
fn driver_name(id: RdmaDriverId) -> Option<String> {
    match id {
        RdmaDriverId::RDMA_DRIVER_UNKNOWN => None,
        // The kernel used this number for two drivers; the first was removed.
        RdmaDriverId::RDMA_DRIVER_IRDMA => Some("irdma".into()),
        _ => Some(id.name()?.strip_prefix("RDMA_DRIVER_")?.to_lowercase()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discovery::Skipped;

    fn sentence(reason: SkipReason) -> String {
        Skipped { name: "rxe0".into(), reason }.to_string()
    }

    #[test]
    fn every_reason_says_what_to_do() {
        assert_eq!(
            sentence(SkipReason::NodeMissing { path: "/dev/infiniband/uverbs0".into(), errno: Errno::NOENT }),
            "rxe0: /dev/infiniband/uverbs0 is missing: let udev create it (udevadm trigger), or pass it into the \
             container"
        );
        assert_eq!(
            sentence(SkipReason::NodeMissing {
                path: "/dev/infiniband/uverbs0".into(),
                errno: Errno::ACCESS
            }),
            "rxe0: /dev/infiniband/uverbs0 cannot be accessed (EACCES): check the permissions of its directories"
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
    fn a_brought_device_that_cannot_be_had_says_whose_address_it_is() {
        let of = |errno| SkipReason::Address { address: "192.0.2.1".parse().unwrap(), port: 4791, errno };
        assert!(of(Errno::ADDRINUSE).was_asked_for() && !SkipReason::BadName.was_asked_for());
        assert_eq!(
            sentence(of(Errno::ADDRINUSE)),
            "rxe0: UDP port 4791 of 192.0.2.1 is taken: by another device of this process, by a process of another user or \
             with VERBS_SOFT=auto (ss -ulpn), or by the kernel's rdma_rxe, which takes it on every address of its network \
             namespace; use another address or namespace (unshare --net), end that process, or unload the module \
             (modprobe -r rdma_rxe)"
        );
        assert!(sentence(of(Errno::TIMEDOUT)).contains("no process that has it answers"));
        assert!(sentence(of(Errno::USERS)).contains("as many processes as can share it"));
        assert!(sentence(of(Errno::ADDRNOTAVAIL)).contains("192.0.2.1 is not an address of this machine"));
        let filtered = sentence(of(Errno::PERM));
        assert!(filtered.contains("(EPERM)") && filtered.contains("seccomp"), "{filtered}");
        let full = sentence(of(Errno::MFILE));
        assert!(
            full.contains("ulimit -n") && full.contains("all of the ") && !full.contains("another address"),
            "{full}"
        );
        let folder = |errno| sentence(SkipReason::Folder { path: "/tmp/meet".into(), errno });
        assert!(folder(Errno::PERM).contains("/tmp/meet, which other users can change: "));
        assert!(folder(Errno::NOENT).contains("(ENOENT); name a folder"));
        let request = SkipReason::Request {
            variable: "VERBS_SOFT",
            asked: "300.1.1.1\n".into(),
            expected: "auto, or IP addresses separated by commas",
        };
        assert_eq!(
            sentence(request),
            "rxe0: VERBS_SOFT asks for \"300.1.1.1\\n\": it takes auto, or IP addresses separated by commas"
        );
    }

    #[test]
    fn what_was_left_out_is_an_error_where_it_alone_was_wanted() {
        let reason =
            SkipReason::Address { address: "::1".parse().unwrap(), port: 4791, errno: Errno::ADDRNOTAVAIL };
        let error = Skipped { name: "soft0".into(), reason }.into_error("bind");
        assert_eq!(
            error.to_string(),
            "bind on soft0: ::1 is not an address of this machine: use one that it has (ip address) (EADDRNOTAVAIL)"
        );
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
