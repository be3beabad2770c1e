//! [`Trace`]: device activity in lines of text.
//!
//! | module | contents |
//! |---|---|
//! | `format` | a function for each kind of line |
//! | [`parse`] | parses lines |
//! | [`compare`] | compares two traces |
//!
//! A line consists of the function's number, the kind of line, and `key=value` pairs:
//! ```text
//! 0 record queue=sq qpn=0x7 value=0x3
//! ```
//! No line contains a time, so that runs with the same activity have the same lines.
//!
//! Invariant: a line is formatted only if the trace is on.

pub mod compare;
pub mod format;
pub mod parse;

use std::fmt;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

/// Destination of the lines of one function.
#[derive(Clone, Default)]
pub struct Trace {
    function: usize,
    to: Option<Arc<Mutex<dyn Write + Send>>>,
}

impl Trace {
    /// Returns a trace that discards lines.
    pub fn off() -> Self {
        Self::default()
    }

    /// Returns a trace that writes lines to `writer`. Write errors are ignored.
    pub fn to(writer: impl Write + Send + 'static) -> Self {
        Self { function: 0, to: Some(Arc::new(Mutex::new(writer))) }
    }

    /// Returns a trace with the same destination for another function.
    pub fn of(&self, function: usize) -> Self {
        Self { function, to: self.to.clone() }
    }

    /// Writes one line.
    pub fn line(&mut self, text: impl FnOnce() -> String) {
        if let Some(to) = &self.to {
            let mut to = to.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = writeln!(to, "{} {}", self.function, text());
        }
    }

    /// Flushes buffered lines.
    pub fn flush(&mut self) {
        if let Some(to) = &self.to {
            let _ = to.lock().unwrap_or_else(PoisonError::into_inner).flush();
        }
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace").field("function", &self.function).field("on", &self.to.is_some()).finish()
    }
}
