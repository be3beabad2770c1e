//! Work queues, RSS tables, flow rules, flow actions and counters on paper: their lifetimes, and
//! the calls that reach the provider.

use crate::common::{Kind, World};
use verbs::state::{Init, Reset};
use verbs::{
    AsyncEventType, Cause, CompCntrAttachOps, CompCntrType, Context, CounterAttachAttr, CounterDescription,
    CqInit, Element, Errno, FlowActionEspAttr, FlowAttr, FlowSpec, InitAttr, Provider, Qp, QpInit, QpType,
    ReadCountersFlags, Rss, RxHashConf, RxHashFields, RxHashFunction, SrqInit, Wq, WqAttr, WqInit, WqState,
};

both! {
    a_work_queue_moves_between_its_states
    a_fatal_error_of_a_work_queue_names_it
    a_table_keeps_its_work_queues
    a_work_queue_of_a_table_is_not_closed
    a_queue_pair_receives_through_a_table_and_keeps_it
    a_queue_pair_receives_through_a_table_or_a_shared_receive_queue
    a_flow_rule_keeps_what_it_names
    a_flow_rule_keeps_a_queue_pair_that_is_dropped
    a_flow_rule_keeps_the_memory_of_a_queue_pair_that_is_dropped
    a_flow_rule_keeps_a_queue_pair_whose_halves_are_dropped
    a_queue_pair_with_flow_rules_is_not_closed
    a_flow_rule_that_the_kernel_keeps_leaks_its_queue_pair
    counters_are_attached_and_read_by_their_index
    completion_counters_have_two_values
    a_queue_pair_keeps_the_counter_that_it_counts_in
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

fn toeplitz() -> RxHashConf {
    RxHashConf {
        rx_hash_function: RxHashFunction::TOEPLITZ,
        rx_hash_key: [7; 40].into(),
        rx_hash_fields_mask: RxHashFields::SRC_IPV4 | RxHashFields::DST_IPV4,
    }
}

fn a_queue_pair_receives_through_a_table_and_keeps_it<P: Provider>(world: &World, context: Context<P>) {
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(&CqInit::new(8)).unwrap();
    let (one, other) = (wq(&context), wq(&context));
    let table = context.create_rwq_ind_table(&[&one, &other]).unwrap();
    let rss = Rss::new(&table, toeplitz());
    let init = QpInit { rss: Some(rss.clone()), ..QpInit::new(QpType::UD, &cq) };
    let qp = pd.create_qp(&init).unwrap();
    assert_eq!(world.state().rss, Some(toeplitz()));
    assert_eq!((qp.cap().max_send_wr, qp.cap().max_recv_wr, qp.cap().max_recv_sge), (16, 0, 0));

    let failed = table.close().unwrap_err();
    assert_eq!((failed.error.verb, failed.error.errno), ("destroy_rwq_ind_table", Errno::BUSY));
    assert_eq!(failed.error.cause, Cause::InUse { by: "queue pairs" });
    drop((failed.handle, one, other));
    assert!(world.census().contains(&Kind::Table), "the queue pair keeps it");
    drop(qp);
    assert!(!world.census().contains(&Kind::Table) && !world.census().contains(&Kind::Wq));

    let error = pd.create_qp(&init).unwrap_err();
    assert_eq!(error.cause, Cause::Closed { what: "table of work queues" });
    drop((cq, pd, context));
    world.assert_empty();
}

fn a_queue_pair_receives_through_a_table_or_a_shared_receive_queue<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(&CqInit::new(8)).unwrap();
    let (wq, srq) = (wq(&context), pd.create_srq(&SrqInit::new(4)).unwrap());
    let table = context.create_rwq_ind_table(&[&wq]).unwrap();
    let rss = Some(Rss::new(&table, toeplitz()));
    let init = QpInit { rss, srq: Some(srq.handle()), ..QpInit::new(QpType::UD, &cq) };
    let error = pd.create_qp(&init).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "create_qp on {}: a queue pair that receives through a table has no shared receive queue (EINVAL)",
            context.device_name()
        )
    );
    drop((init, srq, wq, table, cq, pd, context));
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

fn a_flow_rule_keeps_a_queue_pair_that_is_dropped<P: Provider>(world: &World, context: Context<P>) {
    let qp = qp(&context);
    let [one, other] = [(); 2].map(|()| context.create_flow(&qp, FlowAttr::new(1)).unwrap());
    drop(qp);
    let needed = [Kind::Pd, Kind::Cq, Kind::Qp];
    assert!(needed.iter().all(|kind| world.census().contains(kind)), "{:?}", world.census());
    one.close().unwrap();
    assert!(world.census().contains(&Kind::Qp), "the other rule keeps it");
    drop(other);
    assert!(!needed.iter().any(|kind| world.census().contains(kind)), "{:?}", world.census());
    let destroyed = world.state().destroyed.clone();
    let order: Vec<Kind> = destroyed
        .iter()
        .map(|&(kind, _)| kind)
        .filter(|kind| [Kind::Flow, Kind::Qp].contains(kind))
        .collect();
    assert_eq!(order, [Kind::Flow, Kind::Flow, Kind::Qp]);
    drop(context);
    world.assert_empty();
}

fn a_flow_rule_keeps_the_memory_of_a_queue_pair_that_is_dropped<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(&CqInit::new(8)).unwrap();
    let qp = pd.create_qp(&QpInit::new(QpType::UD, &cq)).unwrap();
    let mut qp: Qp<Init, P> = qp.to_init(&InitAttr::default()).unwrap();
    qp.post_recv_buf(pd.alloc_buf(64).unwrap(), ..).unwrap();
    let flow = context.create_flow(&qp, FlowAttr::new(1)).unwrap();
    drop((qp, cq, pd));
    assert!(world.census().contains(&Kind::Mr), "the device may still write it");
    flow.close().unwrap();
    assert!(!world.census().contains(&Kind::Mr));
    drop(context);
    world.assert_empty();
}

fn a_flow_rule_keeps_a_queue_pair_whose_halves_are_dropped<P: Provider>(world: &World, context: Context<P>) {
    let qp = qp(&context);
    let flow = context.create_flow(&qp, FlowAttr::new(1)).unwrap();
    drop(qp.into_split());
    assert!(world.census().contains(&Kind::Qp));
    drop(flow);
    assert!(!world.census().contains(&Kind::Qp));
    drop(context);
    world.assert_empty();
}

fn a_queue_pair_with_flow_rules_is_not_closed<P: Provider>(world: &World, context: Context<P>) {
    let qp = qp(&context);
    let flow = context.create_flow(&qp, FlowAttr::new(1)).unwrap();
    let failed = qp.close().unwrap_err();
    assert_eq!((failed.error.verb, failed.error.errno), ("destroy_qp", Errno::BUSY));
    assert_eq!(failed.error.cause, Cause::InUse { by: "flow rules" });
    // The returned handle still works and keeps its rules.
    let qp = failed.handle.to_init(&InitAttr::default()).unwrap();
    let failed = qp.dismantle().unwrap_err();
    flow.close().unwrap();
    failed.handle.close().unwrap();
    drop(context);
    world.assert_empty();
}

fn a_flow_rule_that_the_kernel_keeps_leaks_its_queue_pair<P: Provider>(world: &World, context: Context<P>) {
    let qp = qp(&context);
    let flow = context.create_flow(&qp, FlowAttr::new(1)).unwrap();
    world.state().refuse.insert(Kind::Flow, Errno::IO);
    drop(qp);
    drop(flow);
    assert!([Kind::Flow, Kind::Qp].iter().all(|kind| world.census().contains(kind)), "{:?}", world.census());
    assert!(world.state().broken.is_empty(), "nothing was destroyed in the wrong order");
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

fn a_queue_pair_keeps_the_counter_that_it_counts_in<P: Provider>(world: &World, context: Context<P>) {
    let cntr = context.create_comp_cntr(CompCntrType::WRS).unwrap();
    let qp = qp(&context);
    cntr.attach(&qp, CompCntrAttachOps::SEND).unwrap();
    let failed = cntr.close().unwrap_err();
    assert_eq!((failed.error.verb, failed.error.errno), ("destroy_comp_cntr", Errno::BUSY));
    assert_eq!(failed.error.cause, Cause::InUse { by: "queue pairs" });
    drop(failed.handle);
    assert!(world.census().contains(&Kind::CompCntr));
    drop(qp);
    assert!(!world.census().contains(&Kind::CompCntr));
    drop(context);
    world.assert_empty();
}

#[test]
#[cfg(feature = "rxe")]
fn objects_name_their_provider() {
    use crate::common::Paper;
    use verbs::rxe::Rxe;
    use verbs::{CompCntr, Counters, Flow, FlowAction, RwqIndTable};

    let (world, device) = crate::common::world("steering-named");
    let context = device.open().unwrap();
    let (wq, qp) = (wq(&context), qp(&context));
    let table = context.create_rwq_ind_table(&[&wq]).unwrap();
    let action = context.create_flow_action_esp(&FlowActionEspAttr::default()).unwrap();
    let counters = context.create_counters().unwrap();
    let cntr = context.create_comp_cntr(CompCntrType::WRS).unwrap();
    let rule = FlowAttr::new(1).with(FlowSpec::ActionHandle(&action)).with(FlowSpec::ActionCount(&counters));
    let flow = context.create_flow(&qp, rule).unwrap();

    // A shared object keeps its type.
    let in_use = |by| Cause::InUse { by };
    let failed = wq.downcast::<Paper>().unwrap_err();
    assert_eq!(failed.error.cause, in_use("tables of work queues"));
    let wq = failed.handle;
    let failed = action.downcast::<Paper>().unwrap_err();
    assert_eq!(failed.error.cause, in_use("flow rules"));
    let action = failed.handle;
    let failed = counters.downcast::<Paper>().unwrap_err();
    assert_eq!(failed.error.cause, in_use("flow rules"));
    let counters = failed.handle;

    // Naming another provider is rejected and returns the handle.
    let cntr = cntr.downcast::<Rxe>().unwrap_err().handle;
    let flow = flow.downcast::<Rxe>().unwrap_err().handle;
    let table = table.downcast::<Rxe>().unwrap_err().handle;
    let wq = wq.downcast::<Rxe>().unwrap_err().handle;

    // A rule created through the erased handle keeps the queue pair of the named handle alive.
    let qp: Qp<Reset, Paper> = qp.downcast().unwrap();
    let flow: Flow<Paper> = flow.downcast().unwrap();
    let failed = qp.close().unwrap_err();
    assert_eq!(failed.error.cause, in_use("flow rules"));
    drop(failed.handle);
    assert!(world.census().contains(&Kind::Qp));
    flow.close().unwrap();
    assert!(!world.census().contains(&Kind::Qp));

    let action = action.downcast::<Rxe>().unwrap_err().handle;
    let counters = counters.downcast::<Rxe>().unwrap_err().handle;
    let action: FlowAction<Paper> = action.downcast().unwrap();
    let counters: Counters<Paper> = counters.downcast().unwrap();
    let cntr: CompCntr<Paper> = cntr.downcast().unwrap();
    let table: RwqIndTable<Paper> = table.downcast().unwrap();
    table.close().unwrap();
    let mut wq: Wq<Paper> = wq.downcast().unwrap();
    wq.modify(&WqAttr { wq_state: Some(WqState::RDY), ..WqAttr::default() }).unwrap();
    drop((wq, action, counters, cntr, context));
    world.assert_empty();
}

#[test]
fn objects_of_another_device_are_refused() {
    let (world, device) = crate::common::world("steering-own");
    let (other_world, other) = crate::common::world("steering-other");
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
    let table = other.create_rwq_ind_table(&[&wq(&other)]).unwrap();
    let cq = own.create_cq(&CqInit::new(8)).unwrap();
    let init = QpInit { rss: Some(Rss::new(&table, toeplitz())), ..QpInit::new(QpType::UD, &cq) };
    let error = own.alloc_pd().unwrap().create_qp(&init).unwrap_err();
    assert_eq!(error.cause, foreign("table of work queues"));
    drop((table, init, cq));
    let cntr = own.create_comp_cntr(CompCntrType::BYTES).unwrap();
    let error = cntr.attach(&qp, CompCntrAttachOps::SEND).unwrap_err();
    assert_eq!(error.cause, foreign("queue pair"));
    drop((own_qp, cntr, own));
    world.assert_empty();
    drop((qp, counters, action, other));
    other_world.assert_empty();
}
