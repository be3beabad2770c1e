//! Plans: the fixed list, each part of `--whole`, and the guests that a command line names.
//!
//! A plan runs its stages in two lanes, because a build keeps others out of its folder and leaves a
//! processor idle while it links. The second lane also builds the guests' programs. Guests run
//! last, two at a time.

use std::thread;

use super::guest::{self, Guest, list};
use super::host::{self, Stage};
use super::part::Part;
use super::stage::StageResult;
use super::{Args, Only};

/// The stages and guests to run.
#[derive(Default)]
pub(super) struct Plan {
    /// Stages that take seconds and run first.
    text: &'static [Stage],
    /// Stages that build in the workspace's folder.
    workspace: &'static [Stage],
    /// Stages that build elsewhere.
    beside: &'static [Stage],
    guests: Vec<Guest>,
}

impl Plan {
    /// Returns the plan for every commit.
    fn fixed() -> Self {
        Self { text: host::TEXT, workspace: host::WORKSPACE, beside: host::BESIDE, guests: list::fixed() }
    }

    /// Returns the plan for a command line without `--whole`.
    pub(super) fn without_parts(args: &Args) -> Self {
        let fixed = Self::fixed();
        match args.only {
            Some(Only::Text) => Self { text: fixed.text, ..Self::default() },
            Some(Only::Host) => Self { guests: Vec::new(), ..fixed },
            Some(Only::Vm) => Self { guests: fixed.guests, ..Self::default() },
            None => match list::chosen(args) {
                Some(guests) => Self { guests, ..Self::default() },
                None => fixed,
            },
        }
    }

    /// Returns the plan for a part of `--whole`.
    pub(super) fn of_part(part: Part) -> Self {
        let (workspace, beside) = host::of_part(part);
        Self { text: &[], workspace, beside, guests: list::of_part(part) }
    }

    /// Returns the names of the plan's stages and guests.
    pub(super) fn names(&self) -> Vec<String> {
        let stages = [self.text, self.workspace, self.beside].concat();
        let stages = stages.into_iter().map(|(name, _)| name.to_owned());
        stages.chain(self.guests.iter().map(Guest::stage)).collect()
    }

    /// Runs the plan.
    pub(super) fn run(&self, timeout: u64, vm_required: bool) -> Vec<StageResult> {
        let mut results = host::run(self.text, "");
        thread::scope(|scope| {
            // Downloads kernels while the host's stages run.
            let prepared = scope.spawn(|| guest::prepare(&self.guests));
            let beside = scope.spawn(|| {
                let mut results = host::run(self.beside, "[beside] ");
                let guests = prepared.join().expect("a lane without a panic");
                let built = guest::build(&guests, &mut results);
                (results, guests, built)
            });
            results.extend(host::run(self.workspace, ""));
            let (beside, guests, built) = beside.join().expect("a lane without a panic");
            results.extend(beside);
            results.extend(guest::stages(&guests, &built, timeout, vm_required));
        });
        results
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;
    use crate::cargo;

    /// Returns the cells in the table rows below a heading in docs/testing.md.
    fn rows(heading: &str) -> Vec<Vec<String>> {
        let page = std::fs::read_to_string(cargo::root().join("docs/testing.md")).unwrap();
        let section = page.split("\n## ").find(|section| section.starts_with(heading)).expect(heading);
        let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).skip(1).collect();
        section.lines().filter(|line| line.starts_with('|')).skip(2).map(cells).collect()
    }

    #[test]
    fn the_list_of_every_commit_is_the_one_on_the_page() {
        let listed: Vec<String> = rows("On every commit").into_iter().map(|row| row[0].clone()).collect();
        assert_eq!(listed, Plan::fixed().names());
    }

    #[test]
    fn each_part_is_the_one_on_the_page_and_has_a_short_form_on_every_commit() {
        let (listed, fixed) = (rows("Parts of --whole"), rows("On every commit"));
        assert_eq!((listed.len(), listed[0][0].as_str()), (Part::value_variants().len() + 1, "every commit"));
        for (part, row) in Part::value_variants().iter().zip(&listed[1..]) {
            let name = format!("`{}`", part.to_possible_value().unwrap().get_name());
            assert_eq!(row[0], name);
            assert_eq!(row[1], Plan::of_part(*part).names().join("; "), "{name}");
            assert!(fixed.iter().any(|row| row[2].contains(&name)), "{name} has no short form");
        }
    }
}
