//! Progress messages on stderr, which `--quiet` hides.

use std::sync::atomic::{AtomicBool, Ordering};

static IS_QUIET: AtomicBool = AtomicBool::new(false);

/// Hides messages from now on.
pub(crate) fn hide() {
    IS_QUIET.store(true, Ordering::Relaxed);
}

/// Shows a line, unless messages are hidden.
pub(crate) fn say(line: &str) {
    if !IS_QUIET.load(Ordering::Relaxed) {
        eprintln!("xtask: {line}");
    }
}
