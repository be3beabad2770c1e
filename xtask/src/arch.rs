//! The architectures that programs are built for, and guests have.

/// An architecture.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub(crate) enum Arch {
    /// amd64 of Debian
    #[default]
    #[value(name = "x86_64")]
    X86_64,
    /// arm64 of Debian
    Aarch64,
}

impl Arch {
    /// Debian's name of it, at the end of a kernel's packages as well.
    pub(crate) fn debian(self) -> &'static str {
        match self {
            Arch::X86_64 => "amd64",
            Arch::Aarch64 => "arm64",
        }
    }
}

/// Returns the name that an option has for a value. Architectures have the same name in Linux, QEMU
/// and compilers, sanitizers in compilers, and ports on the command lines of the model and of the
/// suites.
pub(crate) fn name_of(value: impl clap::ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}
