//! Rejections of commands on Ethernet objects, and the order in which the objects are destroyed.

use super::*;
use crate::layout::hca;
use crate::state::eth::Ethernet;

#[test]
fn a_queue_goes_only_where_it_can_and_in_reset_takes_no_doorbells() {
    let mut one = Host::new(0);
    assert_eq!(one.refused(one.modify_sq(0, 1)), Rule::CommandState, "it is ready");
    assert_eq!(one.refused(one.modify_sq(1, 2)), Rule::CommandParameter);
    one.make(one.modify_sq(1, 3));
    assert_eq!(one.refused(one.modify_sq(3, 1)), Rule::CommandState);
    one.make(one.modify_sq(3, 0));
    let doorbell = one.place(one.send(&frame(PEER, 100)));
    one.record();
    one.function.ring_eth(one.uar, doorbell, None);
    assert_eq!(one.complaint(), Rule::WqeState);
    one.make(one.modify_rq(1, 3));
    assert_eq!(one.refused(one.modify_rq(1, 0)), Rule::CommandState);
}

#[test]
fn referenced_objects_are_not_destroyed_and_missing_ones_not_referenced() {
    let mut one = Host::new(0);
    let destroy =
        |opcode, table: &Table, field: Field, number: u32| Input::new(opcode, table).set(field, number);
    let rq = |number| destroy(0x90a, &commands::destroy_rq_in::TABLE, commands::destroy_rq_in::RQN, number);
    let tir =
        |number| destroy(0x902, &commands::destroy_tir_in::TABLE, commands::destroy_tir_in::TIRN, number);
    let tis =
        |number| destroy(0x914, &commands::destroy_tis_in::TABLE, commands::destroy_tis_in::TISN, number);
    let rqt =
        |number| destroy(0x918, &commands::destroy_rqt_in::TABLE, commands::destroy_rqt_in::RQTN, number);
    let fields = (steering::destroy_flow_table_in::TABLE_ID, &steering::destroy_flow_table_in::TABLE);
    let table = |number| destroy(0x931, fields.1, fields.0, number);
    let eth = &one.function.core.eth;
    let (tisn, rqtn) = (*eth.tises.keys().next().unwrap(), *eth.rqts.keys().next().unwrap());
    for busy in [rq(one.rqn), tir(one.tirn), tis(tisn), rqt(rqtn), table(one.table)] {
        assert_eq!(one.refused(busy), Rule::CommandBusy);
    }
    for missing in [rq(one.sqn), tir(tisn), tis(rqtn), rqt(one.tirn), table(tisn)] {
        assert_eq!(one.refused(missing), Rule::CommandObject);
    }
    assert_eq!(one.refused(one.create_sq(0x999)), Rule::CommandObject, "no such TIS");
}

#[test]
fn everything_is_destroyed_in_the_order_that_drivers_have() {
    let mut one = Host::new(0);
    let table = one.table;
    let group = *one.function.core.eth.steering.tables[&table].groups.keys().next().unwrap();
    one.make(
        Input::new(0x938, &steering::delete_fte_in::TABLE).set(steering::delete_fte_in::TABLE_ID, table),
    );
    one.make(
        Input::new(0x934, &steering::destroy_flow_group_in::TABLE)
            .set(steering::destroy_flow_group_in::TABLE_ID, table)
            .set(steering::destroy_flow_group_in::GROUP_ID, group),
    );
    one.make(
        Input::new(0x931, &steering::destroy_flow_table_in::TABLE)
            .set(steering::destroy_flow_table_in::TABLE_ID, table),
    );
    one.make(
        Input::new(0x902, &commands::destroy_tir_in::TABLE).set(commands::destroy_tir_in::TIRN, one.tirn),
    );
    let rqtn = *one.function.core.eth.rqts.keys().next().unwrap();
    one.make(Input::new(0x918, &commands::destroy_rqt_in::TABLE).set(commands::destroy_rqt_in::RQTN, rqtn));
    one.make(Input::new(0x90a, &commands::destroy_rq_in::TABLE).set(commands::destroy_rq_in::RQN, one.rqn));
    one.make(Input::new(0x906, &commands::destroy_sq_in::TABLE).set(commands::destroy_sq_in::SQN, one.sqn));
    let tisn = *one.function.core.eth.tises.keys().next().unwrap();
    one.make(Input::new(0x914, &commands::destroy_tis_in::TABLE).set(commands::destroy_tis_in::TISN, tisn));
    let core = &one.function.core;
    assert!(core.eth.sqs.is_empty() && core.eth.rqs.is_empty());
    assert!(core.eth.steering.tables.is_empty() && core.eth.steering.roots.is_empty());
    assert_eq!((core.eth.steering.parts, core.cqs.values().map(|cq| cq.users).sum::<u32>()), (0, 0));
}

#[test]
fn entries_and_groups_stay_inside_of_their_tables_and_lead_upwards() {
    let mut one = Host::new(0);
    let table = one.table;
    let group = |first: u32, last: u32| {
        Input::new(0x933, &steering::create_flow_group_in::TABLE)
            .set(steering::create_flow_group_in::TABLE_ID, table)
            .set(steering::create_flow_group_in::START_FLOW_INDEX, first)
            .set(steering::create_flow_group_in::END_FLOW_INDEX, last)
    };
    assert_eq!(one.refused(group(4, 16)), Rule::CommandParameter, "of 16 entries");
    assert_eq!(one.refused(group(3, 5)), Rule::CommandParameter, "where another is");
    assert_eq!(one.refused(group(6, 5)), Rule::CommandParameter);
    let number = one.make(group(4, 5));
    let entry = |index: u32, to: u32| {
        Input::new(0x936, &steering::set_fte_in::TABLE)
            .set(steering::set_fte_in::TABLE_ID, table)
            .set(steering::set_fte_in::FLOW_INDEX, index)
            .part(steering::set_fte_in::FLOW_CONTEXT, |context| {
                steering::flow_context::GROUP_ID.set(context, number);
                steering::flow_context::ACTION.set(context, 4u32);
                steering::flow_context::DESTINATION_LIST_SIZE.set(context, 1u32);
            })
            .list(&to.to_be_bytes())
            .list(&[0; 4])
    };
    let tir = 2 << 24 | one.tirn;
    assert_eq!(one.refused(entry(6, tir)), Rule::CommandParameter, "outside of its group");
    assert_eq!(one.refused(entry(4, 2 << 24 | 0x999)), Rule::CommandObject);
    assert_eq!(one.refused(entry(4, 1 << 24 | table)), Rule::CommandParameter, "to itself");
    one.make(entry(4, tir));
    assert_eq!(one.refused(entry(4, tir)), Rule::CommandBusy);
}

/// Returns a SET_FLOW_TABLE_ENTRY input for an entry with `destinations` references to the TIR and
/// `counters` references to a counter.
fn wide_entry(one: &Host, index: u32, destinations: u32, counters: u32, counter: u32) -> Input {
    let tir = 2 << 24 | one.tirn;
    let group = *one.function.core.eth.steering.tables[&one.table].groups.keys().next().unwrap();
    let mut entry = Input::new(0x936, &steering::set_fte_in::TABLE)
        .set(steering::set_fte_in::TABLE_ID, one.table)
        .set(steering::set_fte_in::FLOW_INDEX, index)
        .part(steering::set_fte_in::FLOW_CONTEXT, |context| {
            steering::flow_context::GROUP_ID.set(context, group);
            steering::flow_context::ACTION.set(context, 4u32);
            steering::flow_context::DESTINATION_LIST_SIZE.set(context, destinations);
            steering::flow_context::FLOW_COUNTER_LIST_SIZE.set(context, counters);
        });
    for place in [tir].repeat(destinations as usize).into_iter().chain([counter].repeat(counters as usize)) {
        entry = entry.list(&place.to_be_bytes()).list(&[0; 4]);
    }
    entry
}

#[test]
fn an_entry_leads_to_no_more_than_is_offered_and_counts_once() {
    let mut one = Host::new(0);
    let counter = one.make(Input::new(0x939, &steering::alloc_flow_counter_in::TABLE));
    assert_eq!(one.refused(wide_entry(&one, 1, 257, 0, 0)), Rule::CommandParameter);
    assert_eq!(one.refused(wide_entry(&one, 1, 1, 2, counter)), Rule::CommandParameter);
    let before = one.function.core.eth.steering.parts;
    one.make(wide_entry(&one, 1, 256, 1, counter));
    assert_eq!(one.function.core.eth.steering.parts, before + 258);
    one.make(wide_entry(&one, 1, 2, 0, 0).set(steering::set_fte_in::OP_MOD, 1u32));
    assert_eq!(one.function.core.eth.steering.parts, before + 3, "what it leads to was changed");
    one.make(
        Input::new(0x938, &steering::delete_fte_in::TABLE)
            .set(steering::delete_fte_in::TABLE_ID, one.table)
            .set(steering::delete_fte_in::FLOW_INDEX, 1u32),
    );
    assert_eq!(one.function.core.eth.steering.parts, before);
}

#[test]
fn the_destinations_of_all_entries_are_bounded() {
    let mut one = Host::new(0);
    one.function.core.eth.steering.parts = crate::state::steering::MAX_PARTS - 4;
    let output = one.function.dispatch(&wide_entry(&one, 1, 4, 0, 0).0, 0x110);
    assert_ne!(output[0], 0, "no room, which no driver is to blame for");
    assert!(one.function.take_complaints().is_empty());
    one.make(wide_entry(&one, 1, 3, 0, 0));
}

#[test]
fn there_are_as_many_objects_as_are_offered() {
    let mut one = Host::new(0);
    let domain = one.domain;
    let tis = || {
        Input::new(0x912, &commands::create_tis_in::TABLE)
            .part(commands::create_tis_in::CTX, |context| tisc::TRANSPORT_DOMAIN.set(context, domain))
    };
    let most = 1 << one.function.core.caps.general(crate::layout::caps::cmd_hca_cap::LOG_MAX_TIS);
    while one.function.core.eth.tises.len() < most {
        one.make(tis());
    }
    assert_ne!(one.function.dispatch(&tis().0, 0x110)[0], 0);
    assert!(one.function.take_complaints().is_empty());
}

#[test]
fn rings_are_as_offered() {
    use crate::layout::caps::cmd_hca_cap as general;
    let mut one = Host::new(0);
    let offered = |one: &Host, field| one.function.core.caps.general(field);
    let strided = |one: &Host, log_stride: u32| {
        one.create_rq().part(commands::create_rq_in::CTX, |context| {
            wq::LOG_WQ_STRIDE.set(rqc::WQ.bytes_mut(context), log_stride);
            wq::LOG_WQ_SZ.set(rqc::WQ.bytes_mut(context), 0u32);
        })
    };
    let (least, most) =
        (offered(&one, general::LOG_MIN_STRIDE_SZ_RQ), offered(&one, general::LOG_MAX_STRIDE_SZ_RQ));
    one.make(strided(&one, least));
    one.make(strided(&one, most));
    assert_eq!(one.refused(strided(&one, least - 1)), Rule::CommandParameter);
    assert_eq!(one.refused(strided(&one, most + 1)), Rule::CommandParameter);
    let sized = |one: &Host, log_size: u32| {
        let pages = (16u64 << log_size).div_ceil(0x1000);
        let mut input = one.create_rq().part(commands::create_rq_in::CTX, |context| {
            wq::LOG_WQ_STRIDE.set(rqc::WQ.bytes_mut(context), 4u32);
            wq::LOG_WQ_SZ.set(rqc::WQ.bytes_mut(context), log_size);
        });
        input.0.truncate(commands::create_rq_in::TABLE.size);
        (0..pages).fold(input, |input, page| input.list(&(0x100_0000 + page * 0x1000).to_be_bytes()))
    };
    let most = offered(&one, general::LOG_MAX_WQ_SZ);
    one.make(sized(&one, most));
    assert_eq!(one.refused(sized(&one, most + 1)), Rule::CommandParameter);
}

#[test]
fn resources_of_ethernet_queues_are_not_freed() {
    let mut one = Host::new(0);
    let counter = one.make(Input::new(0x771, &hca::alloc_q_counter_in::TABLE)) & 0xff;
    let mut modify = one.modify_rq(1, 1).set(commands::modify_rq_in::MODIFY_BITMASK, 8u32);
    rqc::COUNTER_SET_ID.set(commands::modify_rq_in::CTX.bytes_mut(&mut modify.0), counter);
    one.make(modify);
    let (uar, pd) = (one.uar, one.pd);
    // The harness's event queues also use this UAR page.
    one.function.core.eqs.clear();
    let give_back = || {
        [
            Input::new(0x803, &hca::dealloc_uar_in::TABLE).set(hca::dealloc_uar_in::UAR, uar),
            Input::new(0x801, &mkey::dealloc_pd_in::TABLE).set(mkey::dealloc_pd_in::PD, pd),
            Input::new(0x772, &hca::dealloc_q_counter_in::TABLE)
                .set(hca::dealloc_q_counter_in::COUNTER_SET_ID, counter),
        ]
    };
    // The key in this domain is destroyed first, so that only the queues use the domain.
    let key =
        Input::new(0x202, &mkey::destroy_mkey_in::TABLE).set(mkey::destroy_mkey_in::MKEY_INDEX, one.key >> 8);
    one.make(key);
    for command in give_back() {
        assert_eq!(one.refused(command), Rule::CommandBusy);
    }
    one.function.core.eth = Ethernet::default();
    for command in give_back() {
        one.make(command);
    }
}

#[test]
fn a_teardown_tells_of_ethernet_objects_and_keys_that_are_left() {
    let mut one = Host::new(0);
    one.make(Input::new(0x939, &steering::alloc_flow_counter_in::TABLE));
    one.make(Input::new(0x103, &hca::teardown_hca_in::TABLE));
    let complaints = one.function.take_complaints();
    let [left] = &complaints[..] else { panic!("{complaints:?}") };
    let kinds =
        ["memory key", "send queue", "receive queue", "TIS", "TIR", "RQT", "flow table", "flow counter"];
    for kind in kinds {
        assert!(left.to_string().contains(&format!("1 {kind}")), "{kind}: {left}");
    }
}
