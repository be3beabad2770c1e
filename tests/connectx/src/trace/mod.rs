//! [`Trace`]: what happened, in lines of text.
//!
//! | module | what it is |
//! |---|---|
//! | `format` | a function for every kind of line |
//! | [`parse`] | lines read back |
//! | [`compare`] | two traces that should say the same |
//!
//! A line is the function's number, what kind of line it is, and `key=value` as often as needed:
//! ```text
//! 0 store uar=0x21 offset=0x800 size=0x8 index=0x0 opcode=0x8 qpn=0x7 ds=0x3 bytes=0000000800000703
//! ```
//! No line tells of time, so that two runs that do the same have the same lines.
//!
//! Invariant: a line is only made where somebody reads it.

pub mod compare;
pub mod format;
pub mod parse;

use std::fmt;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

/// Where lines of one function go.
#[derive(Clone, Default)]
pub struct Trace {
    function: usize,
    to: Option<Arc<Mutex<dyn Write + Send>>>,
}

impl Trace {
    /// Lines go nowhere.
    pub fn off() -> Self {
        Self::default()
    }

    /// Lines go there. What cannot be written is lost.
    pub fn to(writer: impl Write + Send + 'static) -> Self {
        Self { function: 0, to: Some(Arc::new(Mutex::new(writer))) }
    }

    /// The same place, for lines of this function.
    pub fn of(&self, function: usize) -> Self {
        Self { function, to: self.to.clone() }
    }

    /// One line.
    pub fn line(&mut self, text: impl FnOnce() -> String) {
        if let Some(to) = &self.to {
            let mut to = to.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = writeln!(to, "{} {}", self.function, text());
        }
    }

    /// What was written can be read from now on.
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
