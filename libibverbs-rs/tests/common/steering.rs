//! Paper's work queues, RSS tables, flow rules, flow actions and counters.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use verbs::provider::{
    CompCntrOps, CountersOps, FlowActionOps, FlowOps, FlowRule, QpOps, RwqIndTableOps, WqOps,
};
use verbs::{
    CompCntrAttachOps, CompCntrEntry, CounterAttachAttr, Errno, Error, FlowActionEspAttr, FlowSpec,
    ReadCountersFlags, Result, WqAttr, WqInitAttr, WqState,
};

use super::provider::{Handle, Paper, PaperQp, PaperQueue};
use super::{Kind, Object, World};

objects! {
    PaperWq = "destroy_wq" { attr: WqInitAttr, state: Mutex<WqState> };
    PaperTable = "destroy_rwq_ind_table" {};
    PaperFlow = "destroy_flow" {};
    PaperAction = "destroy_flow_action" { changes: Mutex<u32> };
    PaperCounters = "destroy_counters" { attached: Mutex<Vec<CounterAttachAttr>> };
    PaperCntr = "destroy_comp_cntr" { values: Mutex<BTreeMap<CompCntrEntry, u64>> };
}

fn object(world: &Arc<World>, kind: Kind, uses: Vec<u32>, user_handle: u64) -> Handle {
    Handle::new(world, Object { kind, uses, user_handle, ..Object::default() })
}

impl PaperWq {
    pub fn create(world: &Arc<World>, pd: u32, cq: u32, attr: &WqInitAttr) -> (Self, PaperQueue) {
        let handle = object(world, Kind::Wq, vec![pd, cq], attr.user_handle);
        let queue = PaperQueue::new(world, handle.number(), attr.max_wr, attr.max_sge);
        (Self { handle, attr: *attr, state: Mutex::new(WqState::RESET) }, queue)
    }
}

impl PaperTable {
    pub fn create(world: &Arc<World>, wqs: &[&PaperWq]) -> Self {
        let uses = wqs.iter().map(|wq| wq.handle()).collect();
        Self { handle: object(world, Kind::Table, uses, 0) }
    }
}

impl PaperFlow {
    pub fn create(world: &Arc<World>, qp: &PaperQp, rule: FlowRule<'_, Paper>) -> Self {
        let named = rule.specs.iter().filter_map(|spec| match spec {
            FlowSpec::ActionHandle(action) => Some(action.handle()),
            FlowSpec::ActionCount(counters) => Some(counters.handle()),
            _ => None,
        });
        let uses = named.chain([qp.handle()]).collect();
        Self { handle: object(world, Kind::Flow, uses, 0) }
    }
}

impl PaperAction {
    pub fn create(world: &Arc<World>) -> Self {
        Self { handle: object(world, Kind::Action, Vec::new(), 0), changes: Mutex::default() }
    }
}

impl PaperCounters {
    pub fn create(world: &Arc<World>) -> Self {
        Self { handle: object(world, Kind::Counters, Vec::new(), 0), attached: Mutex::default() }
    }
}

impl PaperCntr {
    pub fn create(world: &Arc<World>) -> Self {
        Self { handle: object(world, Kind::CompCntr, Vec::new(), 0), values: Mutex::default() }
    }

    /// Records the attached operations in the list of failures, so that a test can check them.
    pub fn attach(&self, world: &World, qp: &PaperQp, ops: CompCntrAttachOps) -> Result<()> {
        world.state().live.get_mut(&qp.handle()).unwrap().uses.push(self.handle.number());
        self.inc(CompCntrEntry::ERR, ops.bits().into())
    }
}

impl WqOps for PaperWq {
    type Queue = PaperQueue;

    fn handle(&self) -> u32 {
        self.handle.number()
    }
    fn wq_num(&self) -> u32 {
        self.handle.number() + 100
    }
    fn state(&self) -> WqState {
        *self.state.lock().unwrap()
    }
    fn max_wr(&self) -> u32 {
        self.attr.max_wr
    }
    fn max_sge(&self) -> u32 {
        self.attr.max_sge
    }
    fn modify(&self, _queue: &mut PaperQueue, attr: &WqAttr) -> Result<()> {
        let mut state = self.state.lock().unwrap();
        if attr.curr_wq_state.is_some_and(|assumed| assumed != *state) {
            return Err(Error::new("modify_wq", "paper", Errno::INVAL));
        }
        *state = attr.wq_state.unwrap_or(*state);
        Ok(())
    }
}

impl RwqIndTableOps for PaperTable {
    fn handle(&self) -> u32 {
        self.handle.number()
    }
    fn ind_tbl_num(&self) -> u32 {
        self.handle.number() + 200
    }
}

impl FlowOps for PaperFlow {
    fn handle(&self) -> u32 {
        self.handle.number()
    }
}

impl FlowActionOps for PaperAction {
    fn handle(&self) -> u32 {
        self.handle.number()
    }
    fn modify_esp(&self, _attr: &FlowActionEspAttr) -> Result<()> {
        *self.changes.lock().unwrap() += 1;
        Ok(())
    }
}

impl CountersOps for PaperCounters {
    type Flow = PaperFlow;

    fn handle(&self) -> u32 {
        self.handle.number()
    }
    fn attach_point_flow(&self, attr: &CounterAttachAttr, flow: Option<&PaperFlow>) -> Result<()> {
        if flow.is_some() {
            return Err(Error::new("attach_counters_point_flow", "paper", Errno::OPNOTSUPP));
        }
        self.attached.lock().unwrap().push(*attr);
        Ok(())
    }
    /// Sets each counter to `10 * n + 1`, where `n` is the number of its description.
    fn read(&self, values: &mut [u64], _flags: ReadCountersFlags) -> Result<()> {
        for attr in self.attached.lock().unwrap().iter() {
            values[attr.index as usize] = u64::from(attr.counter_desc.0) * 10 + 1;
        }
        Ok(())
    }
}

impl CompCntrOps for PaperCntr {
    fn handle(&self) -> u32 {
        self.handle.number()
    }
    fn set(&self, entry: CompCntrEntry, value: u64) -> Result<()> {
        self.values.lock().unwrap().insert(entry, value);
        Ok(())
    }
    fn inc(&self, entry: CompCntrEntry, amount: u64) -> Result<()> {
        *self.values.lock().unwrap().entry(entry).or_default() += amount;
        Ok(())
    }
    fn read(&self, entry: CompCntrEntry) -> Result<u64> {
        Ok(self.values.lock().unwrap().get(&entry).copied().unwrap_or_default())
    }
}
