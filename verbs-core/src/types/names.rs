//! [`Names`]: the flags in a set, by name.

use core::fmt;

/// Writes the names of flags, separated by commas, and the bits without a name as a number.
pub(crate) struct Names<F>(pub(crate) F);

impl<F: bitflags::Flags<Bits = u32>> fmt::Display for Names<F> {
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
