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

    /// The name that Linux, QEMU and compilers have for it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Arch::X86_64 => "x86_64",
            Arch::Aarch64 => "aarch64",
        }
    }
}
