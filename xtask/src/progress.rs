//! Progress messages on stderr, which `--quiet` hides.

/// Shows messages, or hides them.
#[derive(Clone, Copy)]
pub(crate) struct Progress {
    quiet: bool,
}

impl Progress {
    /// Shows messages, or hides them if `quiet`.
    pub(crate) fn new(quiet: bool) -> Self {
        Progress { quiet }
    }

    /// Shows a line, unless messages are hidden.
    pub(crate) fn say(self, line: &str) {
        if !self.quiet {
            eprintln!("vm: {line}");
        }
    }
}
