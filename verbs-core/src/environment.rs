//! Environment variables of the libraries, all read through this module.
//!
//! A program with more rights than its caller (set-user-ID, set-group-ID, file capabilities) gets
//! its environment from that caller, which could name files to write and addresses to listen on. In
//! such a program, every variable is treated as unset. The kernel marks the program with
//! `AT_SECURE`, which `secure_getenv(3)` checks too. Dropping the rights later does not change the
//! mark.
//!
//! # Safety
//! `getauxval(3)` reads a table filled by the kernel before the program began.
#![allow(unsafe_code)]

use std::env;
use std::ffi::OsString;

use nix::errno::Errno;

/// Returns the value of a variable, or `None` if the variable is unset or the program has more
/// rights than its caller.
///
/// # References
/// `secure_getenv(3)`, `getauxval(3)`.
#[doc(alias = "secure_getenv")]
pub fn variable_os(name: &str) -> Option<OsString> {
    is_trusted().then(|| env::var_os(name))?
}

/// Returns the value of a variable as [`variable_os`] does, or `None` if the value is not UTF-8.
pub fn variable(name: &str) -> Option<String> {
    variable_os(name)?.into_string().ok()
}

/// Returns whether `AT_SECURE` is present and zero.
fn is_trusted() -> bool {
    Errno::clear();
    // SAFETY: any number is a valid argument.
    let secure = unsafe { libc::getauxval(libc::AT_SECURE) };
    // 0 is also returned for a missing entry.
    secure == 0 && Errno::last() != Errno::ENOENT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_the_rights_of_its_caller_reads_its_environment() {
        assert_eq!(variable_os("PATH"), env::var_os("PATH"));
        assert_eq!(variable("CARGO_PKG_NAME").as_deref(), option_env!("CARGO_PKG_NAME"));
        assert_eq!(variable("A_VARIABLE_THAT_IS_NOT_SET"), None);
    }
}
