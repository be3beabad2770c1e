//! Work queues, tables of them, flow rules, flow actions and counters on paper: what keeps what
//! alive, and which calls reach the provider.

mod common;

use common::{Kind, World};
use verbs::state::Reset;
use verbs::{
    AsyncEventType, Cause, CompCntrAttachOps, CompCntrType, Context, CounterAttachAttr, CounterDescription,
    CqInit, Element, Errno, FlowActionEspAttr, FlowAttr, FlowSpec, Provider, Qp, QpInit, QpType,
    ReadCountersFlags, Wq, WqAttr, WqInit, WqState,
};

both! {
    a_work_queue_moves_between_its_states
    a_fatal_error_of_a_work_queue_names_it
    a_table_keeps_its_work_queues
    a_work_queue_of_a_table_is_not_closed
    a_flow_rule_keeps_what_it_names
    counters_are_attached_and_read_by_their_index
    completion_counters_have_two_values
}

fn wq<P: Provider>(context: &Context<P>) -> Wq<P> {
    let cq = context.create_cq(&CqInit::new(8)).unwrap();
    context.alloc_pd().unwrap().create_wq(&WqInit { max_wr: 4, ..WqInit::new(&cq) }).unwrap()
}

fn qp<P: Provider>(context: &Context<P>) -> Qp<Reset, P> {
    let cq = context.create_cq(&CqInit::new(8)).unwrap();
    context.alloc_pd().unwrap().create_qp(&QpInit::new(QpType::UD, &cq)).unwrap()
}

fn a_work_queue_moves_between_its_states<P: Provider>(world: &World, context: Context<P>) {
    let mut wq = wq(&context);
    assert_eq!((wq.state(), wq.max_wr(), wq.max_sge()), (WqState::RESET, 4, 1));
    let attr = WqAttr { wq_state: Some(WqState::RDY), ..WqAttr::default() };
    wq.modify(&attr).unwrap();
    assert_eq!(wq.state(), WqState::RDY);
    let attr = WqAttr { curr_wq_state: Some(WqState::ERR), ..attr };
    assert_eq!(wq.modify(&attr).unwrap_err().errno, Errno::INVAL);
    wq.close().unwrap();
    drop(context);
    world.assert_empty();
}

fn a_fatal_error_of_a_work_queue_names_it<P: Provider>(world: &World, context: Context<P>) {
    let events = context.async_events().unwrap();
    let wq = wq(&context);
    let raw = world.user_handle(Kind::Wq);
    world.raise_async(raw, 19);
    let event = events.next_event().unwrap().unwrap();
    assert_eq!((event.element, event.event_type), (Element::Wq(wq.id()), AsyncEventType::WQ_FATAL));
    assert_eq!(event.to_string(), "work queue #0.1: WQ fatal");
    drop(wq);
    world.raise_async(raw, 19);
    assert_eq!(events.next_event().unwrap(), None, "the work queue is gone");
}

fn a_table_keeps_its_work_queues<P: Provider>(world: &World, context: Context<P>) {
    let (one, other) = (wq(&context), wq(&context));
    let table = context.create_rwq_ind_table(&[&one, &other, &one, &one]).unwrap();
    drop((one, other));
    assert_eq!(world.census(), [Kind::Pd, Kind::Pd, Kind::Cq, Kind::Cq, Kind::Wq, Kind::Wq, Kind::Table]);
    table.close().unwrap();
    drop(context);
    world.assert_empty();
}

fn a_work_queue_of_a_table_is_not_closed<P: Provider>(world: &World, context: Context<P>) {
    let wq = wq(&context);
    let table = context.create_rwq_ind_table(&[&wq]).unwrap();
    let failed = wq.close().unwrap_err();
    assert_eq!(failed.error.cause, Cause::InUse { by: "tables of work queues" });
    drop(table);
    failed.handle.close().unwrap();
    drop(context);
    world.assert_empty();
}

fn a_flow_rule_keeps_what_it_names<P: Provider>(world: &World, context: Context<P>) {
    let qp = qp(&context);
    let action = context.create_flow_action_esp(&FlowActionEspAttr::default()).unwrap();
    action.modify_esp(&FlowActionEspAttr::default()).unwrap();
    let counters = context.create_counters().unwrap();
    let rule = FlowAttr::new(1).with(FlowSpec::ActionHandle(&action)).with(FlowSpec::ActionCount(&counters));
    let flow = context.create_flow(&qp, rule).unwrap();
    let failed = action.close().unwrap_err();
    assert_eq!(failed.error.cause, Cause::InUse { by: "flow rules" });
    drop(failed.handle);
    let failed = counters.close().unwrap_err();
    assert_eq!(failed.error.cause, Cause::InUse { by: "flow rules" });
    drop(failed.handle);
    let steering = [Kind::Flow, Kind::Action, Kind::Counters];
    assert!(world.census().ends_with(&steering), "{:?}", world.census());
    flow.close().unwrap();
    assert!(!world.census().iter().any(|kind| steering.contains(kind)), "{:?}", world.census());
    drop((qp, context));
    world.assert_empty();
}

fn counters_are_attached_and_read_by_their_index<P: Provider>(world: &World, context: Context<P>) {
    let counters = context.create_counters().unwrap();
    for (counter_desc, index) in [(CounterDescription::PACKETS, 2), (CounterDescription::BYTES, 0)] {
        counters.attach_point_flow(&CounterAttachAttr { counter_desc, index }, None).unwrap();
    }
    let mut values = [0; 3];
    counters.read(&mut values, ReadCountersFlags::PREFER_CACHED).unwrap();
    assert_eq!(values, [11, 0, 1]);

    let qp = qp(&context);
    let flow = context.create_flow(&qp, FlowAttr::new(1)).unwrap();
    let attr = CounterAttachAttr { counter_desc: CounterDescription::BYTES, index: 1 };
    assert_eq!(counters.attach_point_flow(&attr, Some(&flow)).unwrap_err().errno, Errno::OPNOTSUPP);
    drop((flow, qp, counters, context));
    world.assert_empty();
}

fn completion_counters_have_two_values<P: Provider>(world: &World, context: Context<P>) {
    let cntr = context.create_comp_cntr(CompCntrType::WRS).unwrap();
    cntr.set(5).unwrap();
    cntr.inc(2).unwrap();
    cntr.set_err(100).unwrap();
    cntr.inc_err(1).unwrap();
    assert_eq!((cntr.read().unwrap(), cntr.read_err().unwrap()), (7, 101));
    let qp = qp(&context);
    cntr.attach(&qp, CompCntrAttachOps::RDMA_WRITE).unwrap();
    assert_eq!(cntr.read_err().unwrap(), 101 + 16, "the provider saw the operations");
    drop(qp);
    cntr.close().unwrap();
    let error = context.query_comp_cntr_caps().unwrap_err();
    assert_eq!((error.verb, error.errno), ("query_comp_cntr_caps", Errno::OPNOTSUPP));
    drop(context);
    world.assert_empty();
}

#[test]
fn objects_of_another_device_are_refused() {
    let (world, device) = common::world("steering-own");
    let (other_world, other) = common::world("steering-other");
    let (own, other) = (device.open().unwrap(), other.open().unwrap());
    let foreign = |what| Cause::Foreign { what };

    let error = own.create_rwq_ind_table(&[&wq(&other)]).unwrap_err();
    assert_eq!(error.cause, foreign("work queue"));
    let qp = qp(&other);
    let error = own.create_flow(&qp, FlowAttr::new(1)).unwrap_err();
    assert_eq!(error.cause, foreign("queue pair"));
    let counters = other.create_counters().unwrap();
    let own_qp = self::qp(&own);
    let rule = FlowAttr::new(1).with(FlowSpec::ActionCount(&counters));
    let error = own.create_flow(&own_qp, rule).unwrap_err();
    assert_eq!(error.cause, foreign("set of counters"));
    let action = other.create_flow_action_esp(&FlowActionEspAttr::default()).unwrap();
    let rule = FlowAttr::new(1).with(FlowSpec::ActionHandle(&action));
    let error = own.create_flow(&own_qp, rule).unwrap_err();
    assert_eq!(error.cause, foreign("flow action"));
    let cntr = own.create_comp_cntr(CompCntrType::BYTES).unwrap();
    let error = cntr.attach(&qp, CompCntrAttachOps::SEND).unwrap_err();
    assert_eq!(error.cause, foreign("queue pair"));
    drop((own_qp, cntr, own));
    world.assert_empty();
    drop((qp, counters, action, other));
    other_world.assert_empty();
}
