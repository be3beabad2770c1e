//! Progress messages on stderr, which `--quiet` hides.

/// Lines about what is going on, on stderr.
pub(crate) struct Progress {
    quiet: bool,
}

impl Progress {
    /// Shows lines, or nothing.
    pub(crate) fn new(quiet: bool) -> Self {
        Progress { quiet }
    }

    /// Shows a line unless told to be quiet.
    pub(crate) fn say(&self, line: &str) {
        if !self.quiet {
            eprintln!("vm: {line}");
        }
    }

    /// Whether lines are hidden.
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }
}
