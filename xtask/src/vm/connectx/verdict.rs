//! The model's verdict on a guest: the rules that the guest broke, and whether the model itself can
//! be trusted.

use std::process::ExitStatus;

/// The number of lines shown of complaints and logs.
pub(super) const SHOWN: usize = 40;

/// The result of a model's run.
#[derive(PartialEq, Eq, Debug, Default)]
pub(in crate::vm) struct Verdict {
    /// The rules that the guest broke, a line each.
    pub(in crate::vm) complaints: Vec<String>,
    /// Observations that may be a fault or a program's choice, a line each; they fail no run.
    pub(in crate::vm) notes: Vec<String>,
    /// The reason for which the model's result cannot be trusted.
    pub(in crate::vm) problem: Option<String>,
}

/// Start of a note's line in the model's file.
const NOTE: &str = "note: ";

impl Verdict {
    /// Reads the model's file of complaints and notes, after its end with this status.
    pub(super) fn new(file: &str, status: anyhow::Result<ExitStatus>) -> Self {
        let (notes, complaints): (Vec<_>, Vec<_>) =
            file.lines().map(str::to_owned).partition(|line| line.starts_with(NOTE));
        let problem = match status {
            Ok(status) => problem(status, &complaints),
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
        if !self.complaints.is_empty() {
            lines
                .push(format!("the ConnectX model complained {} times of the guest:", self.complaints.len()));
            lines.extend(self.complaints.iter().take(SHOWN).map(|line| format!("    {line}")));
            if let Some(more @ 1..) = self.complaints.len().checked_sub(SHOWN) {
                lines.push(format!("    and {more} more"));
            }
        }
        lines.extend(self.notes.iter().take(SHOWN).map(|note| format!("the ConnectX model's {note}")));
        if let Some(more @ 1..) = self.notes.len().checked_sub(SHOWN) {
            lines.push(format!("and {more} more notes"));
        }
        if let Some(problem) = &self.problem {
            lines.push(format!("the ConnectX model failed: {problem}"));
        }
        lines.join("\n")
    }
}

/// Returns a failure of the model itself that its end shows.
fn problem(status: ExitStatus, complaints: &[String]) -> Option<String> {
    match status.code() {
        Some(0) if !complaints.is_empty() => Some("it complained and exited with 0".to_owned()),
        Some(0) => None,
        Some(1) if complaints.is_empty() => {
            Some("its status reports complaints, and its file of complaints is empty".to_owned())
        }
        Some(1) => None,
        _ => Some(format!("it ended with {status}")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn broken_rules_fail_a_run_unless_allowed_and_a_broken_model_always() {
        let complaints = vec!["cq 5: overrun".to_owned()];
        let rules = Verdict { complaints, ..Verdict::default() };
        assert!(rules.is_failure(true) && !rules.is_failure(false));
        assert!(rules.text().contains("complained 1 times") && rules.text().contains("cq 5: overrun"));
        let broken = Verdict { problem: Some("it crashed".to_owned()), ..Verdict::default() };
        assert!(broken.is_failure(true) && broken.is_failure(false));
        let fine = Verdict::default();
        assert!(!fine.is_failure(true) && fine.text().is_empty());
    }

    #[test]
    fn notes_are_shown_and_fail_no_run() {
        let verdict = Verdict::new("note: function 0: odd\n", Ok(ExitStatus::from_raw(0)));
        assert!(!verdict.is_failure(true) && verdict.problem.is_none());
        assert_eq!(verdict.text(), "the ConnectX model's note: function 0: odd");
        let both = Verdict::new("cq 5: overrun\nnote: odd\n", Ok(ExitStatus::from_raw(1 << 8)));
        assert_eq!((both.complaints.len(), both.notes.len()), (1, 1));
        let many = Verdict { notes: vec!["note: x".to_owned(); SHOWN + 2], ..Verdict::default() };
        assert!(many.text().ends_with("and 2 more notes"));
    }

    #[test]
    fn a_status_that_does_not_fit_the_complaints_is_a_problem() {
        let exit = |code: i32| ExitStatus::from_raw(code << 8);
        let some = ["x".to_owned()];
        assert_eq!(problem(exit(0), &[]), None);
        assert_eq!(problem(exit(1), &some), None);
        assert!(problem(exit(0), &some).is_some());
        assert!(problem(exit(1), &[]).is_some());
        assert!(problem(exit(2), &[]).is_some());
        assert!(problem(ExitStatus::from_raw(11), &some).is_some());
    }
}
