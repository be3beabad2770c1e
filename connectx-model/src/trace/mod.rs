//! [`Trace`]: device activity as lines of text.
//!
//! | module | contents |
//! |---|---|
//! | `format` | formats each kind of line |
//! | [`parse`] | parses lines |
//! | [`compare`] | compares two traces |
//! | [`differential`] | compares the traces of one program with two libraries |
//!
//! A line consists of the function's number, the kind of line and `key=value` pairs:
//! ```text
//! 0 record queue=sq qpn=0x7 value=0x3
//! ```
//! Lines contain no times, so that runs with the same activity have the same lines.
//!
//! Invariant: a line is formatted only if the trace is on.

pub mod compare;
pub mod differential;
pub mod format;
pub mod parse;

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Read as _, Seek as _, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// A trace as seen by one function: its lines go to a shared destination, or are discarded.
#[derive(Clone, Default)]
pub struct Trace {
    function: usize,
    to: Option<Arc<Mutex<Sink>>>,
}

/// The destination that all functions share.
struct Sink {
    writer: Box<dyn Write + Send>,
    /// The file behind the writer, if there is one.
    path: Option<PathBuf>,
    /// Number of bytes written.
    len: u64,
    /// For each section name, the last section with this name: the offset of its first byte, and
    /// the offset of its end once the section has ended.
    sections: HashMap<String, (u64, Option<u64>)>,
    /// The name of the section that has not ended yet.
    last: Option<String>,
}

impl Sink {
    fn line(&mut self, function: usize, text: &str) {
        let line = format!("{function} {text}\n");
        let _ = self.writer.write_all(line.as_bytes());
        self.len += line.len() as u64;
    }

    fn section(&mut self, name: &str) -> io::Result<Option<String>> {
        let (Some(path), Some((begin, end))) = (&self.path, self.sections.get(name)) else { return Ok(None) };
        self.writer.flush()?;
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(*begin))?;
        let mut text = String::new();
        file.take(end.unwrap_or(self.len).saturating_sub(*begin)).read_to_string(&mut text)?;
        Ok(Some(text))
    }
}

impl Trace {
    /// Returns a trace that discards lines.
    pub fn off() -> Self {
        Self::default()
    }

    /// Returns a trace that writes lines to `writer`. Write errors are ignored.
    pub fn to(writer: impl Write + Send + 'static) -> Self {
        Self::sink(Box::new(writer), None)
    }

    /// Returns a trace that writes lines to a new file.
    ///
    /// # Errors
    /// Any error from creating the file.
    pub fn to_file(path: &Path) -> io::Result<Self> {
        Ok(Self::sink(Box::new(BufWriter::new(File::create(path)?)), Some(path.to_owned())))
    }

    fn sink(writer: Box<dyn Write + Send>, path: Option<PathBuf>) -> Self {
        let sink = Sink { writer, path, len: 0, sections: HashMap::new(), last: None };
        Self { function: 0, to: Some(Arc::new(Mutex::new(sink))) }
    }

    /// Returns a trace for another function, with the same destination.
    pub fn for_function(&self, function: usize) -> Self {
        Self { function, to: self.to.clone() }
    }

    /// Writes one line. `text` is called only if the trace is on.
    pub fn line(&mut self, text: impl FnOnce() -> String) {
        if let Some(to) = &self.to {
            to.lock().unwrap_or_else(PoisonError::into_inner).line(self.function, &text());
        }
    }

    /// Writes a mark, which starts a section.
    pub fn mark(&mut self, text: &str) {
        let Some(to) = &self.to else { return };
        let mut to = to.lock().unwrap_or_else(PoisonError::into_inner);
        let end = to.len;
        if let Some(last) = to.last.replace(text.to_owned())
            && let Some((_, open)) = to.sections.get_mut(&last)
        {
            *open = Some(end);
        }
        to.line(self.function, &format::mark(text));
        let begin = to.len;
        to.sections.insert(text.to_owned(), (begin, None));
    }

    /// Returns the lines after the last mark with this text, up to the next mark or the end.
    /// Returns `None` if there is no such mark or the trace is not written to a file.
    ///
    /// # Errors
    /// Any error from reading the file.
    pub fn section(&mut self, mark: &str) -> io::Result<Option<String>> {
        let Some(to) = &self.to else { return Ok(None) };
        to.lock().unwrap_or_else(PoisonError::into_inner).section(mark)
    }

    /// Flushes buffered lines.
    pub fn flush(&mut self) {
        if let Some(to) = &self.to {
            let _ = to.lock().unwrap_or_else(PoisonError::into_inner).writer.flush();
        }
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace").field("function", &self.function).field("on", &self.to.is_some()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_read_back_from_the_file_while_the_trace_goes_on() {
        let path = std::env::temp_dir().join(format!("connectx-trace-sections-{}", std::process::id()));
        let mut trace = Trace::to_file(&path).unwrap();
        trace.line(|| "wqe qpn=0x1".into());
        trace.mark("one");
        trace.for_function(1).line(|| "wqe qpn=0x2".into());
        trace.mark("two");
        trace.line(|| "wqe qpn=0x3".into());
        assert_eq!(trace.section("one").unwrap().as_deref(), Some("1 wqe qpn=0x2\n"));
        assert_eq!(trace.section("two").unwrap().as_deref(), Some("0 wqe qpn=0x3\n"));
        assert_eq!(trace.section("three").unwrap(), None);
        trace.mark("one");
        assert_eq!(trace.section("two").unwrap().as_deref(), Some("0 wqe qpn=0x3\n"));
        assert_eq!(trace.section("one").unwrap().as_deref(), Some(""), "not the last one of this name");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(Trace::to(Vec::new()).section("one").unwrap(), None);
        assert_eq!(Trace::off().section("one").unwrap(), None);
    }
}
