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

/// Returns an option value's name. The same names stand for architectures in Linux, QEMU and
/// compilers, for sanitizers in compilers, and for ports on the command lines of the model and the
/// suites.
pub(crate) fn name_of(value: impl clap::ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}
