//! [`Trace`]: what happened, in lines of text.
//!
//! Invariant: a line is only made where somebody reads it.

use std::fmt;
use std::io::Write;

/// Where lines go.
#[derive(Default)]
pub struct Trace {
    to: Option<Box<dyn Write + Send>>,
}

impl Trace {
    /// Lines go nowhere.
    pub fn off() -> Self {
        Self::default()
    }

    /// Lines go there. What cannot be written is lost.
    pub fn to(writer: Box<dyn Write + Send>) -> Self {
        Self { to: Some(writer) }
    }

    /// One line.
    pub fn line(&mut self, text: impl FnOnce() -> String) {
        if let Some(to) = &mut self.to {
            let _ = writeln!(to, "{}", text());
        }
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace").field("on", &self.to.is_some()).finish()
    }
}
