//! The differences between the commands of two libraries and the table that explains them.

use core::fmt;
use std::collections::{BTreeSet, HashMap};

use super::normal::{Normal, Step, numbered};

/// A difference in one field of one command.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Difference {
    /// The name of the step where the results or commands differ.
    pub step: String,
    /// The name of the command; empty if the step's results differ.
    pub command: String,
    /// The name of the field that differs; empty if only one library sent the command.
    pub field: String,
    /// The value sent by rdma-core's library; `None` if it sends none.
    pub theirs: Option<String>,
    /// The value sent by this project's library; `None` if it sends none.
    pub ours: Option<String>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, command, field, theirs, ours } = self;
        let [theirs, ours] = [theirs, ours].map(|value| value.as_deref().unwrap_or(ABSENT));
        write!(f, "{step} | {command} | {field} | {theirs} | {ours}")
    }
}

/// The result printed for a successful step.
const DONE: &str = "done";

/// Stands for the missing value if a library sends none.
pub const ABSENT: &str = "-";

/// A row of the table: known differences, with the reason.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The name of the step. In this and the next four fields, `*` stands for any characters.
    pub step: &'static str,
    /// The name of the command.
    pub command: &'static str,
    /// The name of the field.
    pub field: &'static str,
    /// The value sent by rdma-core's library.
    pub theirs: &'static str,
    /// The value sent by this project's library.
    pub ours: &'static str,
    /// The guests that show the difference.
    pub guests: &'static str,
    /// The reason why the difference is correct.
    pub reason: &'static str,
}

impl Row {
    /// Returns whether the row explains a difference.
    pub fn explains(&self, difference: &Difference) -> bool {
        let Difference { step, command, field, theirs, ours } = difference;
        let is_value = |pattern, value: &Option<String>| matches(pattern, value.as_deref().unwrap_or(ABSENT));
        matches(self.step, step)
            && matches(self.command, command)
            && matches(self.field, field)
            && is_value(self.theirs, theirs)
            && is_value(self.ours, ours)
    }

    /// Returns whether the row applies to a guest, such as `6.1 ib`. Each entry in `guests` names a
    /// part of a guest's name.
    pub fn is_for(&self, guest: &str) -> bool {
        self.guests
            .split(", ")
            .any(|one| one.split(' ').all(|word| word == "all" || guest.split(' ').any(|of| of == word)))
    }
}

/// Returns the differences without a row and the rows without a difference.
pub fn unexplained<'d, 'r>(
    differences: &'d [Difference],
    rows: &'r [Row],
    guest: &str,
) -> (Vec<&'d Difference>, Vec<&'r Row>) {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.is_for(guest)).collect();
    let is_explained = |difference: &&Difference| rows.iter().any(|row| row.explains(difference));
    let left = differences.iter().filter(|difference| !is_explained(difference)).collect();
    let is_idle = |row: &&Row| !differences.iter().any(|difference| row.explains(difference));
    (left, rows.into_iter().filter(is_idle).collect())
}

/// Returns the differences between two runs of one program: in the printed results (a line `STEP:
/// RESULT` per step) and in the successful commands of each step. If a step failed under both
/// libraries, the last failed commands are compared too.
pub fn differences(theirs: (&[Step], &str), ours: (&[Step], &str)) -> Vec<Difference> {
    let mut found = Vec::new();
    let results = [theirs.1, ours.1].map(results);
    for name in merged(&names(theirs.0), &names(ours.0)) {
        let [one_result, other_result] = results.each_ref().map(|results| results.get(name).cloned());
        push(&mut found, name, "", "result", one_result.clone(), other_result.clone());
        let [one, other] = [theirs.0, ours.0].map(|steps| steps.iter().find(|step| step.name == name));
        let is_done = |result: &Option<String>| result.as_deref().is_none_or(|result| result == DONE);
        let failed = !is_done(&one_result) && !is_done(&other_result);
        let [one, other] = [one, other].map(|step| chosen(step, failed));
        commands(&mut found, name, &one, &other);
    }
    found
}

/// Returns the commands to compare in a step: all successful commands and, in a failed step, the
/// last failed command.
fn chosen(step: Option<&Step>, failed: bool) -> Vec<&Normal> {
    let all = step.map_or(&[][..], |step| &step.commands);
    let last = all.iter().rposition(|command| command.errno.is_some()).filter(|_| failed);
    let places = all.iter().enumerate().filter(|(place, one)| one.errno.is_none() || Some(*place) == last);
    places.map(|(_, command)| command).collect()
}

fn commands(found: &mut Vec<Difference>, step: &str, theirs: &[&Normal], ours: &[&Normal]) {
    for (one, other) in paired(theirs, ours) {
        match (one, other) {
            (Some(one), Some(other)) => {
                if one.errno != other.errno {
                    let errno = |of: &Normal| of.errno.map(|errno| errno.to_string());
                    push(found, step, &one.name, "errno", errno(one), errno(other));
                }
                let fields: BTreeSet<&String> = one.fields.keys().chain(other.fields.keys()).collect();
                for field in fields {
                    let value = |of: &Normal| of.fields.get(field).cloned();
                    push(found, step, &one.name, field, value(one), value(other));
                }
            }
            (Some(one), None) => push(found, step, &one.name, "", Some("sent".to_owned()), None),
            (None, Some(other)) => push(found, step, &other.name, "", None, Some("sent".to_owned())),
            (None, None) => {}
        }
    }
}

fn push(
    found: &mut Vec<Difference>,
    step: &str,
    command: &str,
    field: &str,
    theirs: Option<String>,
    ours: Option<String>,
) {
    if theirs != ours {
        let [step, command, field] = [step, command, field].map(str::to_owned);
        found.push(Difference { step, command, field, theirs, ours });
    }
}

/// Returns the steps' results by step name. Repeated names are numbered as in the steps.
fn results(output: &str) -> HashMap<String, String> {
    let mut results = HashMap::new();
    let mut counts: HashMap<&str, u32> = HashMap::new();
    for (name, result) in output.lines().filter_map(|line| line.rsplit_once(": ")) {
        let count = counts.entry(name).or_default();
        *count += 1;
        results.insert(numbered(name, *count), result.to_owned());
    }
    results
}

fn names(steps: &[Step]) -> Vec<&str> {
    steps.iter().map(|step| step.name.as_str()).collect()
}

/// Returns the names in the first list, followed by the names that only the second list has.
fn merged<'a>(one: &[&'a str], other: &[&'a str]) -> Vec<&'a str> {
    let alone = other.iter().filter(|name| !one.contains(name));
    one.iter().chain(alone).copied().collect()
}

/// Pairs commands with the same name, in order; the other commands stay unpaired. The traces of the
/// device show the order of commands with different names.
fn paired<'a>(theirs: &[&'a Normal], ours: &[&'a Normal]) -> Vec<(Option<&'a Normal>, Option<&'a Normal>)> {
    let mut left = ours.to_vec();
    let with_pair = theirs.iter().map(|&one| {
        let found = left.iter().position(|other| other.name == one.name);
        (Some(one), found.map(|place| left.remove(place)))
    });
    let mut pairs: Vec<_> = with_pair.collect();
    pairs.extend(left.into_iter().map(|other| (None, Some(other))));
    pairs
}

/// Returns whether a text matches a pattern. In patterns, `*` stands for any characters and `|`
/// separates alternatives.
fn matches(pattern: &str, text: &str) -> bool {
    pattern.split('|').any(|pattern| matches_one(pattern, text))
}

fn matches_one(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(text) = text.strip_prefix(start) else { return false };
    (0..=text.len()).any(|skipped| text.get(skipped..).is_some_and(|text| matches_one(rest, text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normal(name: &str, fields: &[(&str, &str)]) -> Normal {
        let fields = fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Normal { name: name.to_owned(), errno: None, fields }
    }

    fn step(name: &str, commands: Vec<Normal>) -> Step {
        Step { name: name.to_owned(), commands }
    }

    fn shown(theirs: &[Step], ours: &[Step]) -> Vec<String> {
        let output =
            |steps: &[Step]| steps.iter().map(|step| format!("{}: done\n", step.name)).collect::<String>();
        let found = differences((theirs, &output(theirs)), (ours, &output(ours)));
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_field_that_differs_and_one_that_is_missing_are_found() {
        let theirs = [step("s", vec![normal("A", &[("x", "1"), ("y", "2")])])];
        let ours = [step("s", vec![normal("A", &[("x", "3")])])];
        assert_eq!(shown(&theirs, &ours), ["s | A | x | 1 | 3", "s | A | y | 2 | -"]);
        assert!(shown(&theirs, &theirs).is_empty());
    }

    #[test]
    fn a_command_that_one_library_alone_sends_is_found_and_the_others_are_still_compared() {
        let theirs = [step("s", vec![normal("A", &[]), normal("B", &[]), normal("C", &[("x", "1")])])];
        let ours = [step("s", vec![normal("A", &[]), normal("D", &[]), normal("C", &[("x", "2")])])];
        assert_eq!(
            shown(&theirs, &ours),
            ["s | B |  | sent | -", "s | C | x | 1 | 2", "s | D |  | - | sent"]
        );
    }

    #[test]
    fn a_failed_command_counts_only_in_a_step_that_failed() {
        let failed = |errno| Normal { errno: Some(errno), ..normal("A", &[("x", "1")]) };
        let theirs = [step("s", vec![failed(22), normal("B", &[])])];
        let ours = [step("s", vec![normal("B", &[])])];
        assert!(shown(&theirs, &ours).is_empty());
        let [theirs, ours] = [22, 95].map(|errno| [step("s", vec![failed(errno)])]);
        assert!(shown(&theirs, &ours).is_empty());
        let found = differences((&theirs, "s: errno 5\n"), (&ours, "s: errno 5\n"));
        assert_eq!(found[0].to_string(), "s | A | errno | 22 | 95");
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn results_and_steps_of_one_program_alone_are_compared() {
        let one = [step("a", vec![]), step("b", vec![])];
        let found = differences((&one, "a: done\nb: errno 22\n"), (&one, "a: done\nb: errno 95\n"));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].to_string(), "b |  | result | errno 22 | errno 95");
        let found = differences((&one, "a: done\nb: done\n"), (&one[..1], "a: done\n"));
        assert_eq!(found[0].to_string(), "b |  | result | done | -");
    }

    #[test]
    fn rows_explain_what_they_describe_and_an_idle_row_is_found() {
        let row = |field, guests| Row {
            step: "create_*",
            command: "A|B",
            field,
            theirs: "*",
            ours: ABSENT,
            guests,
            reason: "",
        };
        let one = Difference {
            step: "create_cq".to_owned(),
            command: "B".to_owned(),
            field: "x".to_owned(),
            theirs: Some("1".to_owned()),
            ours: None,
        };
        let all = [one.clone(), Difference { ours: Some("2".to_owned()), ..one }];
        let rows = [row("x", "all"), row("y", "all"), row("z", "7.2 roce")];
        let (left, idle) = unexplained(&all, &rows, "6.1 ib");
        assert_eq!((left.len(), idle.len()), (1, 1));
        assert_eq!((left[0], idle[0].field), (&all[1], "y"));
        assert_eq!(unexplained(&all, &rows, "7.2 roce").1.len(), 2);
    }

    #[test]
    fn a_guest_has_every_word_of_one_of_the_rows_guests() {
        let row = |guests| Row { step: "", command: "", field: "", theirs: "", ours: "", guests, reason: "" };
        assert!(
            row("all").is_for("6.1 ib") && row("ib").is_for("6.1 ib") && row("7.2, 6.1 ib").is_for("6.1 ib")
        );
        assert!(!row("roce").is_for("6.1 ib") && !row("7.2 ib").is_for("6.1 ib"));
    }
}
