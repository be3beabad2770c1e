//! `conformance`, `lifecycle`, `negative`, `fork` and `fuzz`: the cases of this project's API, on a
//! ConnectX device.
//!
//! The cases query the device where the specification leaves a choice. Cases that misuse the device
//! on purpose make the model complain ([`PROVOKED`]).

use verbs_fixtures::fabric;
use verbs_fixtures::functions::device;
use verbs_harness::runner::Case;

use crate::{fork, fuzz, lifecycle, negative};

/// Cases that break a rule of the model on purpose: the rule, then the cases' topics and names.
pub const PROVOKED: &[(&str, &[&str])] = &[
    (
        "CqOverrun",
        &[
            "cq.an_overrun_is_reported_and_keeps_the_completions_before_it",
            "events.a_completion_queue_that_overflows_is_told",
            "threads.each_asynchronous_event_goes_to_one_thread",
        ],
    ),
    ("QpTransition", &["states.a_state_that_the_queue_pair_is_not_in_is_refused_as_its_present_one"]),
];

/// Cases that break a rule on purpose unless the kernel rejects the call first, in the same form.
pub const LET_THROUGH: &[(&str, &[&str])] =
    &[("QpAttribute", &["attributes.a_port_and_a_partition_that_do_not_exist_are_refused"])];

/// Returns the suites' cases.
pub fn cases() -> Vec<Case> {
    [
        verbs_conformance::cases(),
        lifecycle::of_any_kernel_device(),
        negative::of_any_device(),
        fork::cases(),
        fuzz::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Returns the rule of the model that a case breaks on purpose and whether the case does so on
/// every kernel.
pub fn provoked(name: &str) -> Option<(&'static str, bool)> {
    let always = entry(PROVOKED, name).map(|rule| (rule, true));
    always.or_else(|| entry(LET_THROUGH, name).map(|rule| (rule, false)))
}

/// Returns the rule in a case's table entry.
fn entry(table: &[(&'static str, &[&str])], name: &str) -> Option<&'static str> {
    // Some cases run again in another suite.
    const SUITES: &[&str] = &["conformance.", "compressed.conformance.", "registers.", "scattered."];
    let name = SUITES.iter().find_map(|suite| name.strip_prefix(suite)).unwrap_or(name);
    let name = name.split_once(' ').map_or(name, |(name, _)| name);
    table.iter().find(|(_, cases)| cases.contains(&name)).map(|(head, _)| *head)
}

/// Returns the environment variable that names the device under test, with its value.
pub fn variable() -> (String, String) {
    (fabric::VARIABLE.to_owned(), device(0))
}
