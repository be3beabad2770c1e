//! `conformance`: the cases of this project's own API, on a ConnectX device.
//!
//! The cases were written for devices with Ethernet ports, and for what rxe and soft devices do
//! where the specification leaves a choice. Those that a ConnectX device decides otherwise are
//! skipped, with the reason ([`OTHERWISE`]), until they ask the device.

use super::Setup;
use crate::fabric;
use crate::runner::{Case, skip};
use crate::suites::conformance;

/// Cases that do not run yet: the reason, and their topics and names. A topic alone stands for all
/// of its cases.
const OTHERWISE: &[(&str, &[&str])] = &[
    (
        "Linux's mlx5 driver has no way to the state SQD, which the case visits",
        &[
            "flushes.a_full_queue_has_room_once_it_is_flushed",
            "flushes.a_refused_batch_is_not_flushed",
            "flushes.memory_of_flushed_requests_comes_back",
            "flushes.two_completion_queues_get_their_own_flushes",
            "rc_queues.a_full_send_queue_refuses_one_more_and_loses_none",
            "states.RC_in_SQD_takes_what_the_table_says_and_nothing_else",
            "states.UC_in_SQD_takes_what_the_table_says_and_nothing_else",
            "states.UD_in_RTS_takes_what_the_table_says_and_nothing_else",
            "states.UD_in_SQD_takes_what_the_table_says_and_nothing_else",
            "states.a_drained_queue_pair_changes_its_path",
            "states.a_queue_pair_is_used_again_and_again",
            "states.a_queue_that_drains_under_load_loses_nothing",
            "states.a_send_queue_that_did_not_fail_needs_no_recovery",
            "states.a_state_that_the_queue_pair_is_not_in_is_refused_as_its_present_one",
            "states.messages_arrive_while_the_send_queue_is_drained",
            "states.only_states_that_take_work_requests_take_them",
            "states.sends_that_wait_in_sqd_are_flushed_in_the_error_state",
            "states.sends_that_wait_in_sqd_are_forgotten_by_a_reset",
            "states.sends_wait_while_the_send_queue_is_drained",
            "states.the_error_state_may_be_entered_from_every_state",
        ],
    ),
    (
        "the mlx5 driver reports rights of reads and atomics only where the peer may have some outstanding",
        &[
            "attributes.the_attributes_of_every_step_are_queried_as_they_were_set",
            "states.UC_in_INIT_takes_what_the_table_says_and_nothing_else",
            "states.UC_in_RESET_takes_what_the_table_says_and_nothing_else",
            "states.UC_in_RTR_takes_what_the_table_says_and_nothing_else",
            "states.UC_in_RTS_takes_what_the_table_says_and_nothing_else",
            "states.UC_in_SQE_takes_what_the_table_says_and_nothing_else",
        ],
    ),
    (
        "the device takes alternate paths, which the case wants to be refused",
        &[
            "attributes.a_path_without_migration_is_migrated",
            "attributes.an_alternate_path_is_refused",
            "states.RC_in_INIT_takes_what_the_table_says_and_nothing_else",
            "states.RC_in_RTR_takes_what_the_table_says_and_nothing_else",
            "states.RC_in_RTS_takes_what_the_table_says_and_nothing_else",
        ],
    ),
    (
        "the device has what the case wants to be refused, or has other limits",
        &[
            "attributes.a_port_and_a_partition_that_do_not_exist_are_refused",
            "attributes.a_rate_limit_is_refused_with_its_verb",
            "attributes.an_initiator_without_reads_fails_them",
            "attributes.ece_and_data_in_order_are_not_promised",
            "attributes.values_at_their_limits_are_taken",
            "attributes.values_beyond_their_limits_are_refused_by_name",
            "cq.a_field_that_the_device_lacks_is_refused_by_name",
            "cq.a_flag_that_the_device_lacks_is_refused_by_name",
            "cq.timestamps_grow_and_lie_between_readings_of_the_clock",
            "cq_events.moderation_ends_with_a_count_of_zero",
            "cq_events.moderation_of_solicited_events_counts_solicited_messages",
            "cq_events.moderation_waits_for_the_count",
            "cq_events.moderation_waits_for_the_period",
            "datagram.ud_datagram_may_be_as_long_as_the_mtu_and_not_longer",
            "device.sizes_beyond_the_limits_are_refused_with_them",
            "memory.mr_change_that_is_refused_leaves_the_region",
            "memory.mr_of_a_dma_buf_is_refused_where_there_are_none",
            "memory.mr_of_no_bytes_has_no_byte_to_access",
            "memory.mr_that_is_zero_based_is_addressed_from_zero",
            "unsupported.counters_are_refused_by_name",
            "unsupported.properties_of_queue_pairs_are_refused_by_name",
            "unsupported.tables_of_work_queues_are_refused_by_name",
        ],
    ),
    (
        "a completion queue takes one completion more than it reports, which the case does not allow for",
        &[
            "cq.a_queue_serves_other_queue_pairs_after_an_overrun",
            "cq.an_overrun_is_reported_and_keeps_the_completions_before_it",
            "threads.each_asynchronous_event_goes_to_one_thread",
        ],
    ),
    (
        "nothing in the guest keeps the device's own clock at the time of the system",
        &["cq.wall_clock_times_are_those_of_the_system"],
    ),
    (
        "the provider refuses IGNORE_OVERRUN, whose entries would change while they are read",
        &["cq.an_overrun_that_is_ignored_is_not_reported"],
    ),
    (
        "a request for an event raises it at once while there are completions that were not polled",
        &[
            "cq_events.arming_lends_the_completions_from_before",
            "cq_events.completions_that_were_there_raise_no_event_and_the_next_one_does",
            "cq_events.one_channel_serves_many_queues",
        ],
    ),
    (
        "the device's rules for windows differ from rxe's, which the case wants",
        &[
            "mw.a_closed_window_takes_access_away",
            "mw.a_key_changes_in_its_low_8_bits_only",
            "mw.a_key_that_is_not_the_windows_present_one_is_not_invalidated",
            "mw.a_region_without_the_right_takes_no_window",
            "mw.a_window_of_type_1_is_not_invalidated",
            "mw.a_window_of_type_2_is_not_bound_to_nothing",
            "mw.revoked_memory_is_plain_memory",
            "mw.the_key_of_a_region_is_not_invalidated",
        ],
    ),
    (
        "the case resizes as fast as it can, and on the model a resize takes longer than a message",
        &["cq_resize.a_queue_is_resized_while_messages_arrive"],
    ),
    (
        "the case takes the interface of rxe or of a soft device down",
        &["events", "rc_order.an_outage_of_the_link_repeats_no_effect"],
    ),
];

/// Those that need an Ethernet port.
const OF_ETHERNET: &[&str] = &[
    "datagram.ud_datagram_arrives_behind_a_route_header",
    "datagram.ud_path_from_a_gid_that_does_not_exist_is_refused",
    "datagram.ud_path_needs_a_header_on_ethernet",
    "datagram.ud_route_header_names_both_addresses_and_what_the_path_says",
    "device.an_active_port_has_a_gid_a_partition_and_an_mtu",
    "device.gid_entries_name_a_network_interface",
    "device.the_gid_found_for_a_program_is_in_the_table",
];

/// Returns the cases of the suite.
pub fn cases(setup: Setup) -> Vec<Case> {
    conformance::cases().into_iter().map(|case| judged(setup, case)).collect()
}

/// Returns the case, as a skip if it does not run here.
fn judged(setup: Setup, case: Case) -> Case {
    let Case { name, deadline, run } = case;
    let reason = reason(setup, &name);
    let run = move || match reason {
        Some(reason) => skip(reason),
        None => run(),
    };
    Case { name, deadline, run: Box::new(run) }
}

fn reason(setup: Setup, name: &str) -> Option<&'static str> {
    let name = name.strip_prefix("conformance.").unwrap_or(name);
    let name = name.split_once(' ').map_or(name, |(name, _)| name);
    let topic = name.split_once('.').map_or(name, |(topic, _)| topic);
    let is_listed = |cases: &[&str]| cases.iter().any(|case| *case == name || *case == topic);
    if setup.port == super::Port::Ib && is_listed(OF_ETHERNET) {
        return Some("the case needs an Ethernet port");
    }
    OTHERWISE.iter().find(|(_, cases)| is_listed(cases)).map(|(reason, _)| *reason)
}

/// The variable that names the device under test, and its value.
pub fn variable() -> (String, String) {
    (fabric::VARIABLE.to_owned(), super::device(0))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_case_that_is_skipped_exists() {
        let names: BTreeSet<String> = conformance::cases()
            .into_iter()
            .flat_map(|case| {
                let name = case.name.strip_prefix("conformance.").map(str::to_owned).unwrap_or_default();
                let name = name.split(' ').next().map(str::to_owned).unwrap_or_default();
                let topic = name.split('.').next().map(str::to_owned).unwrap_or_default();
                [name, topic]
            })
            .collect();
        for case in OTHERWISE.iter().flat_map(|(_, cases)| *cases).chain(OF_ETHERNET) {
            assert!(names.contains(*case), "{case}");
        }
    }
}
