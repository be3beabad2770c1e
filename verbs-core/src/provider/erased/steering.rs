//! Erased work queues and their tables, flow rules, flow actions and counters.
//!
//! # Safety
//! Each unsafe call has the same requirements as the function that contains it.
#![allow(unsafe_code)]
// Objects are returned by value so that they are not lost; destruction is not a hot path.
#![allow(clippy::result_large_err)]

use core::any::Any;

use super::foreign;
use crate::error::{Error, Result};
use crate::provider::{
    CompCntrOps, CountersOps, Destroy, FlowActionOps, FlowOps, RecvQueue, RwqIndTableOps, WqOps,
};
use crate::types::{
    CompCntrEntry, CounterAttachAttr, FlowActionEspAttr, OpsWr, PostError, PostReason, ReadCountersFlags,
    RecvWr, WqAttr, WqState,
};

erased_object! {
    /// The erased queue inside a work queue.
    pub ErasedWqQueue, RecvQueue, RecvQueue
}
recv_queue_through_box!(ErasedWqQueue);

erased_object! {
    /// An erased work queue.
    pub ErasedWq, DynWq, WqOps + Destroy
}

destroy_through_box! {
    ErasedWq, DynWq: WqOps {
        /// Modifies the queue like [`WqOps::modify`]; returns `None` for a queue of another
        /// provider.
        fn modify_erased(&self, queue: &mut ErasedWqQueue, attr: &WqAttr) -> Option<Result<()>> {
            let queue: &mut dyn Any = &mut *queue.0;
            Some(self.modify(queue.downcast_mut::<T::Queue>()?, attr))
        }
    }
}

impl WqOps for ErasedWq {
    type Queue = ErasedWqQueue;

    fn handle(&self) -> u32 {
        self.0.handle()
    }
    fn wq_num(&self) -> u32 {
        self.0.wq_num()
    }
    fn state(&self) -> WqState {
        self.0.state()
    }
    fn max_wr(&self) -> u32 {
        self.0.max_wr()
    }
    fn max_sge(&self) -> u32 {
        self.0.max_sge()
    }
    fn modify(&self, queue: &mut ErasedWqQueue, attr: &WqAttr) -> Result<()> {
        self.0.modify_erased(queue, attr).unwrap_or_else(|| Err(foreign("modify_wq", "work queue")))
    }
}

erased_object! {
    /// An erased table of work queues.
    pub ErasedRwqIndTable, DynRwqIndTable, RwqIndTableOps + Destroy
}
destroy_through_box!(ErasedRwqIndTable, DynRwqIndTable: RwqIndTableOps);

impl RwqIndTableOps for ErasedRwqIndTable {
    fn handle(&self) -> u32 {
        self.0.handle()
    }
    fn ind_tbl_num(&self) -> u32 {
        self.0.ind_tbl_num()
    }
}

erased_object! {
    /// An erased flow rule.
    pub ErasedFlow, DynFlow, FlowOps + Destroy
}
destroy_through_box!(ErasedFlow, DynFlow: FlowOps);

impl FlowOps for ErasedFlow {
    fn handle(&self) -> u32 {
        self.0.handle()
    }
}

erased_object! {
    /// An erased flow action.
    pub ErasedFlowAction, DynFlowAction, FlowActionOps + Destroy
}
destroy_through_box!(ErasedFlowAction, DynFlowAction: FlowActionOps);

impl FlowActionOps for ErasedFlowAction {
    fn handle(&self) -> u32 {
        self.0.handle()
    }
    fn modify_esp(&self, attr: &FlowActionEspAttr) -> Result<()> {
        self.0.modify_esp(attr)
    }
}

erased_object! {
    /// An erased set of counters.
    pub ErasedCounters, DynCounters, CountersOps + Destroy
}

destroy_through_box! {
    ErasedCounters, DynCounters: CountersOps {
        /// Adds a counter like [`CountersOps::attach_point_flow`]; returns `None` for a rule of
        /// another provider.
        fn attach_erased(&self, attr: &CounterAttachAttr, flow: Option<&ErasedFlow>) -> Option<Result<()>> {
            let flow = match flow {
                Some(flow) => Some(flow.downcast_ref::<T::Flow>()?),
                None => None,
            };
            Some(self.attach_point_flow(attr, flow))
        }
    }
}

impl CountersOps for ErasedCounters {
    type Flow = ErasedFlow;

    fn handle(&self) -> u32 {
        self.0.handle()
    }
    fn attach_point_flow(&self, attr: &CounterAttachAttr, flow: Option<&ErasedFlow>) -> Result<()> {
        let attached = self.0.attach_erased(attr, flow);
        attached.unwrap_or_else(|| Err(foreign("attach_counters_point_flow", "flow rule")))
    }
    fn read(&self, values: &mut [u64], flags: ReadCountersFlags) -> Result<()> {
        self.0.read(values, flags)
    }
}

erased_object! {
    /// An erased completion counter.
    pub ErasedCompCntr, DynCompCntr, CompCntrOps + Destroy
}
destroy_through_box!(ErasedCompCntr, DynCompCntr: CompCntrOps);

impl CompCntrOps for ErasedCompCntr {
    fn handle(&self) -> u32 {
        self.0.handle()
    }
    fn set(&self, entry: CompCntrEntry, value: u64) -> Result<()> {
        self.0.set(entry, value)
    }
    fn inc(&self, entry: CompCntrEntry, amount: u64) -> Result<()> {
        self.0.inc(entry, amount)
    }
    fn read(&self, entry: CompCntrEntry) -> Result<u64> {
        self.0.read(entry)
    }
}
