//! Cases in processes with other environment variables for the provider: cases of the modules here,
//! and `conformance` cases again.

use verbs_harness::forked;
use verbs_harness::runner::Case;

/// Environment variables for a process.
pub(super) type Env = &'static [(&'static str, &'static str)];

/// Adds environment variables to a case. The case's process sets them before it opens a device.
pub(super) fn with(case: Case, env: Env) -> Case {
    case.after(move || forked::set_variables(env))
}

/// Returns the `conformance` cases on these topics with the provider known at compile time, for a
/// suite that sets environment variables.
pub(super) fn conformance(suite: &str, topics: &[&str], env: Env) -> Vec<Case> {
    let of_topic = |case: &Case| {
        let topic = case.name.strip_prefix("conformance.").and_then(|name| name.split('.').next());
        case.name.ends_with(" static") && topic.is_some_and(|topic| topics.contains(&topic))
    };
    let cases = verbs_conformance::cases().into_iter().filter(of_topic).map(|case| Case {
        name: format!("{suite}.{}", case.name.trim_start_matches("conformance.").trim_end_matches(" static")),
        ..case
    });
    cases.map(|case| with(case, env)).collect()
}
