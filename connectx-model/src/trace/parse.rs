//! [`Entry`]: a parsed line of a trace.

use std::fmt;

/// A parsed line of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The line number in the file, starting at 1.
    pub line: usize,
    /// The index of the function in the fabric.
    pub function: usize,
    /// The kind of line.
    pub kind: String,
    /// The keys and values, in the order in which they occur in the line.
    pub fields: Vec<(String, String)>,
}

impl Entry {
    /// Returns the value of a key, if the line has this key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.fields.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>6}: {} {}", self.line, self.function, self.kind)?;
        self.fields.iter().try_for_each(|(key, value)| write!(f, " {key}={value}"))
    }
}

/// A malformed line: the error of [`parse`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoEntry {
    /// The number of the line, starting at 1.
    pub line: usize,
    /// The reason why the line is malformed.
    pub why: &'static str,
}

impl fmt::Display for NoEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

impl std::error::Error for NoEntry {}

/// Parses all lines of a trace.
///
/// # Errors
/// [`NoEntry`] for the first malformed line.
pub fn parse(text: &str) -> Result<Vec<Entry>, NoEntry> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(place, line)| {
            entry(line)
                .map_err(|why| NoEntry { line: place + 1, why })
                .map(|entry| Entry { line: place + 1, ..entry })
        })
        .collect()
}

/// Returns the lines after a mark with this text, up to the next mark; `None` if there is no such
/// mark.
pub fn section<'a>(entries: &'a [Entry], mark: &str) -> Option<&'a [Entry]> {
    let is_mark = |entry: &Entry| entry.kind == "mark";
    let start = entries.iter().position(|entry| is_mark(entry) && entry.get("text") == Some(mark))? + 1;
    let rest = entries.get(start..)?;
    let len = rest.iter().position(is_mark).unwrap_or(rest.len());
    rest.get(..len)
}

fn entry(line: &str) -> Result<Entry, &'static str> {
    let (function, rest) = line.trim().split_once(' ').ok_or("no kind")?;
    let function = function.parse().map_err(|_| "does not begin with a function number")?;
    let (kind, mut rest) = rest.split_once(' ').unwrap_or((rest, ""));
    let mut fields = Vec::new();
    while !rest.trim_start().is_empty() {
        let (key, behind) = rest.trim_start().split_once('=').ok_or("a word without a value")?;
        if key.contains(' ') {
            return Err("a word without a value");
        }
        let (value, behind) = match behind.strip_prefix('"') {
            Some(quoted) => unquote(quoted)?,
            None => {
                let (value, behind) = behind.split_once(' ').unwrap_or((behind, ""));
                (value.to_owned(), behind)
            }
        };
        fields.push((key.to_owned(), value));
        rest = behind;
    }
    Ok(Entry { line: 0, function, kind: kind.to_owned(), fields })
}

/// Splits a quoted value at its closing quote. Returns the unescaped value and the rest of the
/// line. Only quotes and backslashes may be escaped.
fn unquote(text: &str) -> Result<(String, &str), &'static str> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((place, char)) = chars.next() {
        match char {
            '"' => return Ok((value, text.get(place + 1..).unwrap_or_default())),
            '\\' => match chars.next() {
                Some((_, char @ ('"' | '\\' | '\''))) => value.push(char),
                Some((_, char)) => value.extend(['\\', char]),
                None => return Err("a quote without an end"),
            },
            char => value.push(char),
        }
    }
    Err("a quote without an end")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::complaint::Rule;
    use crate::trace::format;

    #[test]
    fn a_written_line_parses_to_its_fields() {
        let line = format!(
            "1 {}\n\n0 {}\n",
            format::record(format::Queue::Send, 7, 3),
            format::mark("say \"it\" \\ 2=3")
        );
        let entries = parse(&line).unwrap();
        assert_eq!((entries[0].function, entries[0].kind.as_str(), entries[0].line), (1, "record", 1));
        assert_eq!((entries[0].get("qpn"), entries[0].get("value")), (Some("0x7"), Some("0x3")));
        assert_eq!((entries[1].get("text"), entries[1].line), (Some("say \"it\" \\ 2=3"), 3));
        let complaint = parse(&format!("0 {}", format::complaint(Rule::WqeIndex, "index 3 at 2"))).unwrap();
        assert_eq!(complaint[0].get("rule"), Some("WqeIndex"));
        assert_eq!(complaint[0].get("what"), Some("index 3 at 2"));
    }

    #[test]
    fn a_malformed_line_is_reported() {
        for (text, line) in
            [("record queue=sq", 1), ("0 mark text=\"x\n", 1), ("0 mark\n0 record 7", 2), ("0", 1)]
        {
            assert_eq!(parse(text).unwrap_err().line, line, "{text}");
        }
    }

    #[test]
    fn a_section_lasts_from_its_mark_to_the_next() {
        let text = "0 mark text=\"a\"\n0 wqe qpn=0x1\n0 wqe qpn=0x2\n0 mark text=\"b\"\n0 cqe cqn=0x1\n";
        let entries = parse(text).unwrap();
        assert_eq!(section(&entries, "a").unwrap().len(), 2);
        assert_eq!(section(&entries, "b").unwrap()[0].kind, "cqe");
        assert_eq!(section(&entries, "c"), None);
    }
}
