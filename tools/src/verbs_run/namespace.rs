//! [`enter`]: moves this process to a mount namespace where it may change mounts.
//!
//! Root gets only a mount namespace. Another user also gets a user namespace, which maps its user
//! and group to themselves. Programs such as `mpirun` do not run as root, and programs that see
//! another user cannot share memory with processes outside. Other users' files appear to belong to
//! `nobody` (65534), with the same rights as before.
//!
//! New mounts on the machine also appear in the namespace. Mounts in the namespace stay there.
//!
//! # References
//! `unshare(2)`, `mount(2)` (`MS_SLAVE`), `user_namespaces(7)`

use std::fmt;
use std::fs;
use std::io;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getegid, geteuid};

/// The reason why the rights are missing, as a sentence.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal(String);

impl Refusal {
    /// Describes a failed step.
    pub fn new(step: &str, error: &io::Error) -> Self {
        let errno = Errno::from_raw(error.raw_os_error().unwrap_or(0));
        Self(format!("{LOST}: {step} ({error}){}", Policy::read().hint(errno)))
    }

    /// Creates a refusal from the sentence that another process of this program printed.
    pub fn of_check(sentence: &str) -> Self {
        Self(if sentence.contains(LOST) { sentence.to_owned() } else { format!("{LOST}: {sentence}") })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The consequence of missing rights.
const LOST: &str = "programs that look for RDMA devices in /sys/class/infiniband or /dev/infiniband (UCX, Open MPI, \
                    MPICH, NIXL, Mooncake) will not find the soft devices";

/// Moves this process to a new mount namespace. The process must have only one thread.
///
/// # Errors
/// Fails if the kernel rejects a step. The process may then be in a user namespace without its user
/// ID, so another process must try this first.
pub fn enter() -> Result<(), Refusal> {
    let refused = |step: &'static str| move |errno: Errno| Refusal::new(step, &errno.into());
    match unshare(CloneFlags::CLONE_NEWNS) {
        Err(Errno::EPERM) => {
            let (user, group) = (geteuid(), getegid());
            let both = CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS;
            unshare(both).map_err(refused("the kernel refuses a user namespace"))?;
            let map = |file: &str, content: String| {
                let step = "the kernel refuses to map the user into a user namespace";
                fs::write(file, content).map_err(|error| Refusal::new(step, &error))
            };
            map("/proc/self/setgroups", "deny".into())?;
            map("/proc/self/uid_map", format!("{user} {user} 1"))?;
            map("/proc/self/gid_map", format!("{group} {group} 1"))?;
        }
        result => result.map_err(refused("the kernel refuses a mount namespace"))?,
    }
    let flags = MsFlags::MS_REC | MsFlags::MS_SLAVE;
    mount(None::<&str>, "/", None::<&str>, flags, None::<&str>).map_err(refused("the kernel refuses mounts"))
}

/// The machine's settings that can forbid namespaces.
#[derive(Debug, Default)]
struct Policy {
    /// The seccomp mode; 2 if a filter restricts system calls.
    seccomp: Option<u32>,
    /// `user.max_user_namespaces`
    max_user_namespaces: Option<u32>,
    /// `kernel.unprivileged_userns_clone`, in Debian's kernels.
    unprivileged_userns_clone: Option<u32>,
    /// `kernel.apparmor_restrict_unprivileged_userns`, in Ubuntu's kernels.
    apparmor_restrict_unprivileged_userns: Option<u32>,
}

impl Policy {
    fn read() -> Self {
        let number = |text: &str| text.trim().parse().ok();
        let setting = |name: &str| number(&fs::read_to_string(format!("/proc/sys/{name}")).ok()?);
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        Self {
            seccomp: status.lines().find_map(|line| number(line.strip_prefix("Seccomp:")?)),
            max_user_namespaces: setting("user/max_user_namespaces"),
            unprivileged_userns_clone: setting("kernel/unprivileged_userns_clone"),
            apparmor_restrict_unprivileged_userns: setting("kernel/apparmor_restrict_unprivileged_userns"),
        }
    }

    /// Returns the setting that explains an errno, together with a remedy, as the end of a
    /// sentence.
    fn hint(&self, errno: Errno) -> &'static str {
        match errno {
            Errno::ENOSPC if self.max_user_namespaces == Some(0) => {
                ", because the sysctl user.max_user_namespaces is 0"
            }
            Errno::ENOSPC => ", because there are as many as the sysctl user.max_user_namespaces permits",
            Errno::EPERM | Errno::EACCES if self.apparmor_restrict_unprivileged_userns == Some(1) => {
                ", because AppArmor restricts users other than root: start it as root, or set the sysctl \
                 kernel.apparmor_restrict_unprivileged_userns to 0"
            }
            Errno::EPERM if self.unprivileged_userns_clone == Some(0) => {
                ", because the sysctl kernel.unprivileged_userns_clone is 0: start it as root, or set it to 1"
            }
            Errno::EPERM | Errno::EACCES | Errno::ENOSYS if self.seccomp == Some(2) => {
                ", because of a seccomp filter, such as the one of Docker: docker run --security-opt \
                 seccomp=unconfined --security-opt apparmor=unconfined"
            }
            Errno::EINVAL | Errno::ENOSYS => ", which it was built without",
            _ => "",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_that_forbids_a_namespace_is_named() {
        let none = Policy::default();
        let ubuntu = Policy { apparmor_restrict_unprivileged_userns: Some(1), ..Policy::default() };
        let docker = Policy { seccomp: Some(2), ..Policy::default() };
        let limited = Policy { max_user_namespaces: Some(0), ..Policy::default() };
        let debian = Policy { unprivileged_userns_clone: Some(0), ..Policy::default() };
        for (policy, errno, word) in [
            (&ubuntu, Errno::EACCES, "AppArmor"),
            (&ubuntu, Errno::EPERM, "AppArmor"),
            (&docker, Errno::EPERM, "seccomp"),
            (&limited, Errno::ENOSPC, "user.max_user_namespaces is 0"),
            (&none, Errno::ENOSPC, "as many as"),
            (&debian, Errno::EPERM, "unprivileged_userns_clone"),
            (&none, Errno::EINVAL, "built without"),
        ] {
            assert!(policy.hint(errno).contains(word), "{policy:?} {errno}");
        }
        assert_eq!(none.hint(Errno::EPERM), "");
    }

    #[test]
    fn a_refusal_is_one_sentence_that_says_what_is_lost() {
        let refusal = Refusal::new("a step", &io::Error::from_raw_os_error(1)).to_string();
        assert!(refusal.starts_with(LOST) && refusal.contains("a step") && !refusal.contains('\n'));
        assert_eq!(Refusal::of_check(&refusal).to_string(), refusal);
        assert_eq!(Refusal::of_check("it failed").to_string(), format!("{LOST}: it failed"));
    }
}
