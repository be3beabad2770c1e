//! Tests that invalid commands on Ethernet objects are rejected, one rule at a time.

use super::*;

/// Builds a valid command for this host.
type Made = fn(&Host) -> Input;

fn tis(one: &Host) -> Input {
    let domain = one.domain;
    Input::new(0x912, &commands::create_tis_in::TABLE)
        .part(commands::create_tis_in::CTX, |context| tisc::TRANSPORT_DOMAIN.set(context, domain))
}

fn tir(one: &Host) -> Input {
    let (domain, rqn) = (one.domain, one.rqn);
    Input::new(0x900, &commands::create_tir_in::TABLE).part(commands::create_tir_in::CTX, |context| {
        tirc::TRANSPORT_DOMAIN.set(context, domain);
        tirc::INLINE_RQN.set(context, rqn);
    })
}

fn rqt(one: &Host) -> Input {
    Input::new(0x916, &commands::create_rqt_in::TABLE)
        .part(commands::create_rqt_in::RQT_CONTEXT, |context| {
            rqtc::RQT_MAX_SIZE.set(context, 4u32);
            rqtc::RQT_ACTUAL_SIZE.set(context, 1u32);
        })
        .list(&one.rqn.to_be_bytes())
}

fn modify_rqt(one: &Host) -> Input {
    let rqtn = *one.function.core.eth.rqts.keys().next().unwrap();
    Input::new(0x917, &commands::modify_rqt_in::TABLE)
        .set(commands::modify_rqt_in::RQTN, rqtn)
        .set(commands::modify_rqt_in::RQN_LIST, 1u32)
        .part(commands::modify_rqt_in::CTX, |context| rqtc::RQT_ACTUAL_SIZE.set(context, 1u32))
        .list(&one.rqn.to_be_bytes())
}

fn modify_tir(one: &Host) -> Input {
    Input::new(0x901, &commands::modify_tir_in::TABLE)
        .set(commands::modify_tir_in::TIRN, one.tirn)
        .set(commands::modify_tir_in::HASH, 1u32)
}

fn modify_tis(one: &Host) -> Input {
    let tisn = *one.function.core.eth.tises.keys().next().unwrap();
    Input::new(0x913, &commands::modify_tis_in::TABLE)
        .set(commands::modify_tis_in::TISN, tisn)
        .set(commands::modify_tis_in::PRIO, 1u32)
}

fn sq(one: &Host) -> Input {
    one.create_sq(0)
}

#[test]
fn reserved_bits_of_contexts_are_refused() {
    let cases: [(Made, Part, &Table); 10] = [
        (sq, commands::create_sq_in::CTX, &sqc::TABLE),
        (|one| one.modify_sq(1, 1), commands::modify_sq_in::CTX, &sqc::TABLE),
        (Host::create_rq, commands::create_rq_in::CTX, &rqc::TABLE),
        (|one| one.modify_rq(1, 1), commands::modify_rq_in::CTX, &rqc::TABLE),
        (tis, commands::create_tis_in::CTX, &tisc::TABLE),
        (modify_tis, commands::modify_tis_in::CTX, &tisc::TABLE),
        (tir, commands::create_tir_in::CTX, &tirc::TABLE),
        (modify_tir, commands::modify_tir_in::CTX, &tirc::TABLE),
        (rqt, commands::create_rqt_in::RQT_CONTEXT, &rqtc::TABLE),
        (modify_rqt, commands::modify_rqt_in::CTX, &rqtc::TABLE),
    ];
    for (which, (command, part, table)) in cases.into_iter().enumerate() {
        let mut one = Host::new(0);
        // A bit that no field covers, in the part of the input that is a context.
        let bit = (0..part.len * 8).find(|bit| {
            let mut context = vec![0; part.len];
            context[bit / 8] = 0x80 >> (bit % 8);
            table.reserved(&context).is_some()
        });
        let bit = bit.unwrap();
        let spoiled = command(&one).part(part, |context| context[bit / 8] |= 0x80 >> (bit % 8));
        assert_eq!(one.refused(spoiled), Rule::CommandReserved, "command {which}");
        one.make(command(&one));
    }
}

/// A valid command, a part of its input, a field in that part, a value that breaks a rule, and the
/// rule.
type Case = (Made, Part, Field, u64, Rule);

#[test]
fn contexts_with_missing_features_are_rejected() {
    use Rule::{CommandCapability as Offer, CommandObject as Object, CommandParameter as Parameter};
    let (sq_part, rq_part) = (commands::create_sq_in::CTX, commands::create_rq_in::CTX);
    let (tis_part, tir_part) = (commands::create_tis_in::CTX, commands::create_tir_in::CTX);
    let (rqt_part, change_rqt) = (commands::create_rqt_in::RQT_CONTEXT, commands::modify_rqt_in::CTX);
    let cases: &[Case] = &[
        (sq, sq_part, sqc::REG_UMR, 1, Offer),
        (sq, sq_part, sqc::STATE, 1, Parameter),
        (sq, sq_part, sqc::STATE, 2, Parameter),
        (sq, sq_part, sqc::TIS_LST_SZ, 2, Parameter),
        (Host::create_rq, rq_part, rqc::SCATTER_FCS, 1, Offer),
        (Host::create_rq, rq_part, rqc::STATE, 1, Parameter),
        (tis, tis_part, tisc::TLS_EN, 1, Offer),
        (tis, tis_part, tisc::TRANSPORT_DOMAIN, 0xfff, Object),
        (tir, tir_part, tirc::TUNNELED_OFFLOAD_EN, 1, Offer),
        (tir, tir_part, tirc::TRANSPORT_DOMAIN, 0xfff, Object),
        (tir, tir_part, tirc::RX_HASH_FN, 3, Parameter),
        (tir, tir_part, tirc::DISP_TYPE, 2, Parameter),
        (tir, tir_part, tirc::INLINE_RQN, 0xfff, Object),
        (tir, tir_part, tirc::DISP_TYPE, 1, Object),
        (modify_tir, commands::modify_tir_in::CTX, tirc::RX_HASH_FN, 3, Parameter),
        (rqt, rqt_part, rqtc::LIST_Q_TYPE, 1, Offer),
        (rqt, rqt_part, rqtc::RQT_MAX_SIZE, 257, Parameter),
        (rqt, rqt_part, rqtc::RQT_MAX_SIZE, 0, Parameter),
        (modify_rqt, change_rqt, rqtc::LIST_Q_TYPE, 1, Offer),
    ];
    for (command, part, field, value, rule) in cases {
        let mut one = Host::new(0);
        let spoiled = command(&one).part(*part, |context| field.set(context, *value));
        assert_eq!(one.refused(spoiled), *rule, "{} {value}", field.name);
        one.make(command(&one));
    }
}

#[test]
fn changes_that_are_not_offered_or_change_nothing_are_refused() {
    let mut one = Host::new(0);
    let change = |input: Input, field: Field, value: u32| input.set(field, value);
    let lag = change(modify_tis(&one), commands::modify_tis_in::LAG_TX_PORT_AFFINITY, 1);
    assert_eq!(one.refused(lag), Rule::CommandCapability);
    let sq = change(one.modify_sq(1, 1), commands::modify_sq_in::MODIFY_BITMASK, 4);
    assert_eq!(one.refused(sq), Rule::CommandCapability);
    let rq = change(one.modify_rq(1, 1), commands::modify_rq_in::MODIFY_BITMASK, 4);
    assert_eq!(one.refused(rq), Rule::CommandCapability);
    let merge = change(modify_tir(&one), commands::modify_tir_in::PACKET_MERGE, 1)
        .part(commands::modify_tir_in::CTX, |context| tirc::PACKET_MERGE_MASK.set(context, 1u32));
    assert_eq!(one.refused(merge), Rule::CommandCapability);
    let nothing = change(modify_rqt(&one), commands::modify_rqt_in::RQN_LIST, 0);
    assert_eq!(one.refused(nothing), Rule::CommandParameter);
    let nobody = 0xfffu32.to_be_bytes();
    let mut list = modify_rqt(&one);
    let end = list.0.len() - 4;
    list.0[end..].copy_from_slice(&nobody);
    assert_eq!(one.refused(list), Rule::CommandObject);
}

#[test]
fn objects_that_do_not_exist_are_neither_changed_nor_queried_nor_destroyed() {
    use commands::*;
    let mut one = Host::new(0);
    let cases: &[(u16, &Table, Field)] = &[
        (0x905, &modify_sq_in::TABLE, modify_sq_in::SQN),
        (0x906, &destroy_sq_in::TABLE, destroy_sq_in::SQN),
        (0x907, &query_sq_in::TABLE, query_sq_in::SQN),
        (0x909, &modify_rq_in::TABLE, modify_rq_in::RQN),
        (0x90a, &destroy_rq_in::TABLE, destroy_rq_in::RQN),
        (0x90b, &query_rq_in::TABLE, query_rq_in::RQN),
        (0x901, &modify_tir_in::TABLE, modify_tir_in::TIRN),
        (0x902, &destroy_tir_in::TABLE, destroy_tir_in::TIRN),
        (0x903, &query_tir_in::TABLE, query_tir_in::TIRN),
        (0x913, &modify_tis_in::TABLE, modify_tis_in::TISN),
        (0x914, &destroy_tis_in::TABLE, destroy_tis_in::TISN),
        (0x915, &query_tis_in::TABLE, query_tis_in::TISN),
        (0x917, &modify_rqt_in::TABLE, modify_rqt_in::RQTN),
        (0x918, &destroy_rqt_in::TABLE, destroy_rqt_in::RQTN),
        (0x919, &query_rqt_in::TABLE, query_rqt_in::RQTN),
        (
            0x93a,
            &steering::dealloc_flow_counter_in::TABLE,
            steering::dealloc_flow_counter_in::FLOW_COUNTER_ID,
        ),
        (0x93b, &steering::query_flow_counter_in::TABLE, steering::query_flow_counter_in::FLOW_COUNTER_ID),
        (0x932, &steering::query_flow_table_in::TABLE, steering::query_flow_table_in::TABLE_ID),
        (0x938, &steering::delete_fte_in::TABLE, steering::delete_fte_in::TABLE_ID),
        (0x934, &steering::destroy_flow_group_in::TABLE, steering::destroy_flow_group_in::TABLE_ID),
        (0x92f, &steering::set_flow_table_root_in::TABLE, steering::set_flow_table_root_in::TABLE_ID),
    ];
    for (opcode, table, field) in cases {
        let command = Input::new(*opcode, table).set(*field, 0x7fffu32);
        assert_eq!(one.refused(command), Rule::CommandObject, "{opcode:#x}");
    }
}

#[test]
fn flow_tables_with_missing_features_are_rejected() {
    use Rule::{CommandCapability as Offer, CommandObject as Object, CommandParameter as Parameter};
    use steering::create_flow_table_in as fields;
    let mut one = Host::new(0);
    let cases: &[(Field, u32, Rule)] = &[
        (fields::OTHER_VPORT, 1, Offer),
        (fields::TERMINATION_TABLE, 1, Offer),
        (fields::TABLE_TYPE, 2, Offer),
        (fields::LEVEL, 129, Parameter),
        (fields::LOG_SIZE, 21, Parameter),
        (fields::TABLE_MISS_ACTION, 2, Parameter),
    ];
    for (field, value, rule) in cases {
        let command = Input::new(0x930, &fields::TABLE).set(*field, *value);
        assert_eq!(one.refused(command), *rule, "{} {value}", field.name);
    }
    let leads = |to: u32| {
        Input::new(0x930, &fields::TABLE).set(fields::TABLE_MISS_ACTION, 1u32).set(fields::TABLE_MISS_ID, to)
    };
    assert_eq!(one.refused(leads(0x999)), Object);
    assert_eq!(one.refused(leads(one.table)), Parameter, "of the same level");
    let group = *one.function.core.eth.steering.tables[&one.table].groups.keys().next().unwrap();
    let destroy = Input::new(0x934, &steering::destroy_flow_group_in::TABLE)
        .set(steering::destroy_flow_group_in::TABLE_ID, one.table);
    assert_eq!(one.refused(destroy), Object, "no group");
    let destroy = Input::new(0x934, &steering::destroy_flow_group_in::TABLE)
        .set(steering::destroy_flow_group_in::TABLE_ID, one.table)
        .set(steering::destroy_flow_group_in::GROUP_ID, group);
    assert_eq!(one.refused(destroy), Rule::CommandBusy);
    let delete = Input::new(0x938, &steering::delete_fte_in::TABLE)
        .set(steering::delete_fte_in::TABLE_ID, one.table)
        .set(steering::delete_fte_in::FLOW_INDEX, 9u32);
    assert_eq!(one.refused(delete), Object, "no entry");
}

/// Returns a SET_FLOW_TABLE_ENTRY input for index 1. The entry refers to the TIR and to a counter.
fn entry(one: &Host, counter: u32) -> Input {
    let group = *one.function.core.eth.steering.tables[&one.table].groups.keys().next().unwrap();
    Input::new(0x936, &steering::set_fte_in::TABLE)
        .set(steering::set_fte_in::TABLE_ID, one.table)
        .set(steering::set_fte_in::FLOW_INDEX, 1u32)
        .part(steering::set_fte_in::FLOW_CONTEXT, |context| {
            steering::flow_context::GROUP_ID.set(context, group);
            steering::flow_context::ACTION.set(context, 12u32);
            steering::flow_context::DESTINATION_LIST_SIZE.set(context, 1u32);
            steering::flow_context::FLOW_COUNTER_LIST_SIZE.set(context, 1u32);
        })
        .list(&(2 << 24 | one.tirn).to_be_bytes())
        .list(&[0; 4])
        .list(&counter.to_be_bytes())
        .list(&[0; 4])
}

#[test]
fn entries_with_missing_objects_are_rejected_and_a_counter_in_use_stays() {
    use Rule::{CommandCapability as Offer, CommandObject as Object};
    let mut one = Host::new(0);
    let counter = one.make(Input::new(0x939, &steering::alloc_flow_counter_in::TABLE));
    let cases: &[(Field, u32, Rule)] = &[
        (steering::flow_context::ACTION, 0x10, Offer),
        (steering::flow_context::EXTENDED_DESTINATION, 1, Offer),
        (steering::flow_context::MODIFY_HEADER_ID, 1, Offer),
        (steering::flow_context::GROUP_ID, 0x999, Object),
    ];
    for (field, value, rule) in cases {
        let spoiled = entry(&one, counter)
            .part(steering::set_fte_in::FLOW_CONTEXT, |context| field.set(context, *value));
        assert_eq!(one.refused(spoiled), *rule, "{}", field.name);
    }
    let to = |kind: u32, id: u32| {
        let mut input = entry(&one, counter);
        let at = steering::set_fte_in::TABLE.size;
        input.0[at..at + 4].copy_from_slice(&(kind << 24 | id).to_be_bytes());
        input
    };
    let spoiled = [(to(0, 1), Offer), (to(2, 0x999), Object), (to(1, 0x999), Object)];
    for (spoiled, rule) in spoiled {
        assert_eq!(one.refused(spoiled), rule);
    }
    assert_eq!(one.refused(entry(&one, 0x999)), Object, "no counter");
    assert_eq!(
        one.refused(entry(&one, counter).set(steering::set_fte_in::OP_MOD, 1u32)),
        Object,
        "no entry to change"
    );
    one.make(entry(&one, counter));
    assert_eq!(one.refused(entry(&one, counter)), Rule::CommandBusy, "there is one");
    let dealloc = Input::new(0x93a, &steering::dealloc_flow_counter_in::TABLE)
        .set(steering::dealloc_flow_counter_in::FLOW_COUNTER_ID, counter);
    assert_eq!(one.refused(dealloc), Rule::CommandBusy);
}
