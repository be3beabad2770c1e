//! The architectures of programs and guests.

/// An architecture.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub(crate) enum Arch {
    /// Debian's amd64
    #[default]
    #[value(name = "x86_64")]
    X86_64,
    /// Debian's arm64
    Aarch64,
}

impl Arch {
    /// Returns Debian's name for the architecture. The names of kernel packages end with it.
    pub(crate) fn debian(self) -> &'static str {
        match self {
            Arch::X86_64 => "amd64",
            Arch::Aarch64 => "arm64",
        }
    }
}

/// Returns an option value's name. Linux, QEMU and compilers use the same architecture names,
/// compilers the same sanitizer names, and the command lines of the model and of the suites the
/// same port names.
pub(crate) fn name_of(value: impl clap::ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}
