//! The model's verdict on a guest: the rules that the guest broke, and whether the model itself can
//! be trusted.

use std::process::ExitStatus;

/// The maximum number of lines shown from complaints and logs.
pub(super) const SHOWN: usize = 40;

/// The result of running a model.
#[derive(PartialEq, Eq, Debug, Default)]
pub(in crate::vm) struct Verdict {
    /// The rules broken by the guest, one per line.
    pub(in crate::vm) complaints: Vec<String>,
    /// Observations of a possible fault or a program's choice, one per line. No run fails for them.
    pub(in crate::vm) notes: Vec<String>,
    /// The reason the model's result cannot be trusted, if there is one.
    pub(in crate::vm) problem: Option<String>,
}

/// The start of a note's line in the model's file.
const NOTE: &str = "note: ";

impl Verdict {
    /// Reads the model's complaints and notes after the model has ended with this status.
    pub(super) fn new(file: &str, status: anyhow::Result<ExitStatus>) -> Self {
        let (notes, complaints): (Vec<_>, Vec<_>) =
            file.lines().map(str::to_owned).partition(|line| line.starts_with(NOTE));
        let problem = match status.map(|status| (status.code(), status)) {
            Ok((Some(0), _)) if !complaints.is_empty() => Some("it complained and exited with 0".to_owned()),
            Ok((Some(1), _)) if complaints.is_empty() => {
                Some("its status reports complaints, and its file of complaints is empty".to_owned())
            }
            Ok((Some(0 | 1), _)) => None,
            Ok((_, status)) => Some(format!("it ended with {status}")),
            Err(error) => Some(format!("{error:#}")),
        };
        Self { complaints, notes, problem }
    }

    /// Returns whether the run fails because of the verdict.
    pub(in crate::vm) fn is_failure(&self, strict: bool) -> bool {
        self.problem.is_some() || (strict && !self.complaints.is_empty())
    }

    /// Returns lines to show; empty if there is nothing to show.
    pub(in crate::vm) fn text(&self) -> String {
        let mut lines = Vec::new();
        let mut list = |start: &str, all: &[String], more: &str| {
            lines.extend(all.iter().take(SHOWN).map(|line| format!("{start}{line}")));
            let left = all.len().saturating_sub(SHOWN);
            lines.extend((left > 0).then(|| format!("and {left} more {more}")));
        };
        let title = format!("the ConnectX model complained {} times of the guest:", self.complaints.len());
        list("", if self.complaints.is_empty() { &[] } else { std::slice::from_ref(&title) }, "");
        list("    ", &self.complaints, "complaints");
        list("the ConnectX model's ", &self.notes, "notes");
        lines.extend(self.problem.iter().map(|problem| format!("the ConnectX model failed: {problem}")));
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    fn verdict(file: &str, code: i32) -> Verdict {
        Verdict::new(file, Ok(ExitStatus::from_raw(code << 8)))
    }

    #[test]
    fn broken_rules_fail_a_run_unless_allowed_and_a_broken_model_always() {
        let rules = verdict("cq 5: overrun\n", 1);
        assert!(rules.is_failure(true) && !rules.is_failure(false));
        assert!(rules.text().contains("complained 1 times") && rules.text().contains("cq 5: overrun"));
        // Statuses contradicting the complaints, then an end by a signal.
        let killed = Verdict::new("", Ok(ExitStatus::from_raw(11)));
        for broken in [verdict("x\n", 0), verdict("", 1), verdict("", 2), killed] {
            assert!(broken.is_failure(true) && broken.is_failure(false), "{broken:?}");
        }
        let fine = verdict("", 0);
        assert!(!fine.is_failure(true) && fine.text().is_empty());
    }

    #[test]
    fn notes_are_shown_and_fail_no_run() {
        let odd = verdict("note: function 0: odd\n", 0);
        assert!(!odd.is_failure(true));
        assert_eq!(odd.text(), "the ConnectX model's note: function 0: odd");
        let both = verdict("cq 5: overrun\nnote: odd\n", 1);
        assert_eq!((both.complaints.len(), both.notes.len()), (1, 1));
        let many = Verdict { notes: vec!["note: x".to_owned(); SHOWN + 2], ..Verdict::default() };
        assert!(many.text().ends_with("and 2 more notes"));
    }
}
