//! Programs under a sanitizer: the toolchain that builds them, and their environment.
//!
//! Only nightly toolchains have sanitizers. ThreadSanitizer has to see the standard library's own
//! accesses as well: otherwise a lock in it orders nothing, and every `Arc` that is dropped looks
//! like a race. The standard library is therefore built with the program ([`toolchain`]).

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};

use crate::{cargo, toolchain};

/// A sanitizer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sanitizer {
    /// AddressSanitizer: accesses to memory that is out of bounds or freed.
    Address,
    /// ThreadSanitizer: accesses that race.
    Thread,
}

impl Sanitizer {
    /// The compiler's name of it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Sanitizer::Address => "address",
            Sanitizer::Thread => "thread",
        }
    }

    /// Environment variable for programs under it. Leaks are not reported, because tests forget
    /// handles on purpose.
    pub(crate) const fn environment(self) -> (&'static str, &'static str) {
        match self {
            Sanitizer::Address => ("ASAN_OPTIONS", "detect_leaks=0:abort_on_error=1"),
            Sanitizer::Thread => ("TSAN_OPTIONS", "halt_on_error=1:second_deadlock_stack=1"),
        }
    }

    /// The compiler's flags. Copies are made without assembly, which sanitizers do not see.
    fn flags(self) -> String {
        format!(
            "-Zsanitizer={} --cfg verbs_portable_copies -Cdebug-assertions -Coverflow-checks",
            self.name()
        )
    }

    /// Builds a program of a package with the sanitizer, and returns the program's path.
    ///
    /// # Errors
    /// There is no nightly toolchain, its standard library's source is not available for threads,
    /// or the build fails.
    pub(crate) fn build(self, package: &str, program: &str) -> Result<PathBuf> {
        let mut toolchain = toolchain::nightly()?;
        if self == Sanitizer::Thread {
            toolchain = toolchain::with_source(&toolchain)?;
        }
        let dir = cargo::target_directory()?.join("sanitizer").join(self.name());
        let target = cargo::host_target();
        let mut command = toolchain::cargo_of(&toolchain);
        command
            .args(["build", "--quiet", "--release", "--package", package, "--bin", program])
            // The rest of the tests takes minutes to build.
            .arg("--no-default-features")
            .args(["--target", &target, "--target-dir"])
            .arg(&dir)
            // Its checks take most of the time of a run, and the optimiser most of a build.
            .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
            .env("RUSTFLAGS", self.flags());
        if self == Sanitizer::Thread {
            command.arg(format!("-Zbuild-std={}", toolchain::STD));
        }
        let status = command.status().context("cannot run the nightly toolchain's cargo")?;
        ensure!(status.success(), "{program} does not build with the {} sanitizer: {status}", self.name());
        Ok(dir.join(target).join("release").join(program))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_forgotten_on_purpose_is_no_leak_and_copies_are_seen() {
        assert!(Sanitizer::Address.environment().1.contains("detect_leaks=0"));
        for sanitizer in [Sanitizer::Address, Sanitizer::Thread] {
            assert!(sanitizer.flags().contains("--cfg verbs_portable_copies"));
            assert!(sanitizer.flags().contains(&format!("-Zsanitizer={}", sanitizer.name())));
        }
    }
}
