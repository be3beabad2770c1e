//! The names of the cases.

use std::collections::BTreeSet;

use verbs_conformance::cases;

#[test]
fn every_case_has_a_topic_and_a_name_of_its_own() {
    let names: Vec<_> = cases().into_iter().map(|case| case.name).collect();
    let distinct: BTreeSet<_> = names.iter().collect();
    assert_eq!(distinct.len(), names.len());
    assert!(names.contains(&"conformance.rc.rc_send_carries_immediate_data erased".to_owned()));
}
