//! Flow rules, flow actions, counters and tables of work queues without driver-specific data.

use std::sync::Arc;

use super::KernelContext;
use crate::channel::{DriverAttrs, Uhw};
use crate::cmd;
use crate::errno::Errno;
use crate::error::{Error, Result};
use crate::provider::{CompCntrOps, CountersOps, Destroy, FlowActionOps, FlowOps, RwqIndTableOps};
use crate::types::{
    CompCntrAttachOps, CompCntrEntry, CounterAttachAttr, FlowActionEspAttr, FlowAttr, ReadCountersFlags,
};

/// Defines an object that holds a kernel handle, and implements `Destroy` for it.
macro_rules! kernel_object {
    ($(#[$doc:meta])* $name:ident, $destroy:path) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name {
            context: Arc<KernelContext>,
            handle: u32,
        }

        impl Destroy for $name {
            fn destroy(self) -> Result<(), (Self, Error)> {
                match $destroy(&self.context.uverbs, self.handle) {
                    Ok(()) => Ok(()),
                    Err(error) => Err((self, error)),
                }
            }
        }
    };
}

kernel_object! {
    /// A kernel flow rule.
    KernelFlow, cmd::flow::destroy_flow
}

impl KernelFlow {
    /// Creates a rule for the queue pair with the handle `qp_handle`. The rule refers to flow
    /// actions and counters by handle.
    ///
    /// # Errors
    /// The errors of [`ContextOps::create_flow`](crate::provider::ContextOps::create_flow).
    pub fn create(context: &Arc<KernelContext>, qp_handle: u32, attr: &FlowAttr) -> Result<Self> {
        let handle = cmd::flow::create_flow(&context.uverbs, qp_handle, attr, Uhw::none())?;
        Ok(Self { context: Arc::clone(context), handle })
    }
}

impl FlowOps for KernelFlow {
    fn handle(&self) -> u32 {
        self.handle
    }
}

kernel_object! {
    /// A kernel flow action.
    KernelFlowAction, cmd::flow::destroy_flow_action
}

impl KernelFlowAction {
    /// Creates an ESP action, with the driver's attributes in `driver`.
    ///
    /// # Errors
    /// The errors of
    /// [`ContextOps::create_flow_action_esp`](crate::provider::ContextOps::create_flow_action_esp).
    pub fn create_esp(
        context: &Arc<KernelContext>,
        attr: &FlowActionEspAttr,
        driver: DriverAttrs<'_>,
    ) -> Result<Self> {
        let handle = cmd::flow::create_flow_action_esp(&context.uverbs, attr, driver)?;
        Ok(Self { context: Arc::clone(context), handle })
    }
}

impl FlowActionOps for KernelFlowAction {
    fn handle(&self) -> u32 {
        self.handle
    }

    fn modify_esp(&self, attr: &FlowActionEspAttr) -> Result<()> {
        cmd::flow::modify_flow_action_esp(&self.context.uverbs, self.handle, attr)
    }
}

kernel_object! {
    /// A set of counters in the kernel.
    KernelCounters, cmd::counters::destroy_counters
}

impl KernelCounters {
    /// Creates a set of counters.
    ///
    /// # Errors
    /// The errors of [`ContextOps::create_counters`](crate::provider::ContextOps::create_counters).
    pub fn create(context: &Arc<KernelContext>) -> Result<Self> {
        let handle = cmd::counters::create_counters(&context.uverbs)?;
        Ok(Self { context: Arc::clone(context), handle })
    }
}

impl CountersOps for KernelCounters {
    type Flow = KernelFlow;

    fn handle(&self) -> u32 {
        self.handle
    }

    /// Always fails, because the kernel has no method for attaching counters. A driver with
    /// counters has its own object type.
    fn attach_point_flow(&self, _attr: &CounterAttachAttr, _flow: Option<&KernelFlow>) -> Result<()> {
        Err(self.context.uverbs.error("attach_counters_point_flow", Errno::OPNOTSUPP))
    }

    fn read(&self, values: &mut [u64], flags: ReadCountersFlags) -> Result<()> {
        cmd::counters::read_counters(&self.context.uverbs, self.handle, values, flags)
    }
}

kernel_object! {
    /// A kernel completion counter.
    KernelCompCntr, cmd::counters::destroy_comp_cntr
}

impl KernelCompCntr {
    /// Creates a completion counter, with the driver's attributes in `driver`.
    ///
    /// # Errors
    /// The errors of
    /// [`ContextOps::create_comp_cntr`](crate::provider::ContextOps::create_comp_cntr).
    pub fn create(context: &Arc<KernelContext>, driver: DriverAttrs<'_>) -> Result<Self> {
        let handle = cmd::counters::create_comp_cntr(&context.uverbs, driver)?;
        Ok(Self { context: Arc::clone(context), handle })
    }

    /// Makes the counter count the operations `ops` of the queue pair with the handle `qp_handle`.
    ///
    /// # Errors
    /// The errors of
    /// [`ContextOps::qp_attach_comp_cntr`](crate::provider::ContextOps::qp_attach_comp_cntr).
    pub fn attach_to(&self, qp_handle: u32, ops: CompCntrAttachOps) -> Result<()> {
        cmd::counters::qp_attach_comp_cntr(&self.context.uverbs, qp_handle, self.handle, ops)
    }
}

impl CompCntrOps for KernelCompCntr {
    fn handle(&self) -> u32 {
        self.handle
    }

    fn set(&self, entry: CompCntrEntry, value: u64) -> Result<()> {
        cmd::counters::set_comp_cntr(&self.context.uverbs, self.handle, entry, value)
    }

    fn inc(&self, entry: CompCntrEntry, amount: u64) -> Result<()> {
        cmd::counters::inc_comp_cntr(&self.context.uverbs, self.handle, entry, amount)
    }

    fn read(&self, entry: CompCntrEntry) -> Result<u64> {
        cmd::counters::read_comp_cntr(&self.context.uverbs, self.handle, entry)
    }
}

/// A kernel table of work queues.
#[derive(Debug)]
pub struct KernelRwqIndTable {
    context: Arc<KernelContext>,
    info: cmd::rwq::RwqIndTableInfo,
}

impl KernelRwqIndTable {
    /// Creates a table of the work queues with these handles.
    ///
    /// # Errors
    /// The errors of
    /// [`ContextOps::create_rwq_ind_table`](crate::provider::ContextOps::create_rwq_ind_table).
    pub fn create(context: &Arc<KernelContext>, wq_handles: &[u32]) -> Result<Self> {
        let info = cmd::rwq::create_rwq_ind_table(&context.uverbs, wq_handles, Uhw::none())?;
        Ok(Self { context: Arc::clone(context), info })
    }
}

impl RwqIndTableOps for KernelRwqIndTable {
    fn handle(&self) -> u32 {
        self.info.handle
    }

    fn ind_tbl_num(&self) -> u32 {
        self.info.ind_tbl_num
    }
}

impl Destroy for KernelRwqIndTable {
    fn destroy(self) -> Result<(), (Self, Error)> {
        match cmd::rwq::destroy_rwq_ind_table(&self.context.uverbs, self.info.handle) {
            Ok(()) => Ok(()),
            Err(error) => Err((self, error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::{Expect, Reply};
    use crate::error::Cause;
    use crate::kernel::tests::context;
    use crate::provider::{ErasedCompCntr, ErasedCounters, ErasedFlow, ErasedFlowAction, ErasedRwqIndTable};
    use crate::types::CounterDescription;

    fn made(handle: u8) -> Expect {
        Expect::anything(Reply::outputs([&[handle]]))
    }

    fn done(text: &str) -> Expect {
        Expect::command(text, Reply::ok())
    }

    #[test]
    fn each_object_destroys_itself_hidden_or_named() {
        let (context, scripted) = context(0);
        scripted.expect([
            Expect::anything(Reply::outputs([&[0, 0, 0, 0, 5, 0, 0, 0]])),
            done("ioctl 9.0: 0x0 handle 5"),
            made(6),
            done("ioctl 13.2: 0x0 handle 6, 0x2 u32 0x1"),
            done("ioctl 13.1: 0x0 handle 6"),
            made(7),
            done("ioctl 15.2: 0x0 handle 7, 0x1 out 8 bytes, 0x2 u32 0x0"),
            done("ioctl 15.1: 0x0 handle 7"),
            made(8),
            done("ioctl 4.2: 0x0 handle 3, 0x1 handle 8, 0x2 u32 0x2"),
            done("ioctl 19.2: 0x0 handle 8, 0x1 u64 0x0, 0x2 u64 0x0, 0x3 u64 0x1"),
            done("ioctl 19.2: 0x0 handle 8, 0x1 u64 0x0, 0x2 u64 0x1, 0x3 u64 0x2"),
            done("ioctl 19.3: 0x0 handle 8, 0x1 u64 0x0, 0x2 out 8 bytes"),
            done("ioctl 19.1: 0x0 handle 8"),
            Expect::anything(Reply::outputs([&[0, 16, 9, 10].map(u32::to_ne_bytes).concat()])),
            done("ioctl 11.0: 0x0 handle 9"),
        ]);
        let flow = ErasedFlow::new(KernelFlow::create(&context, 3, &FlowAttr::new(1)).unwrap());
        assert_eq!(flow.handle(), 5);
        flow.destroy().unwrap();

        let esp = FlowActionEspAttr { esn: Some(1), ..FlowActionEspAttr::default() };
        let action =
            ErasedFlowAction::new(KernelFlowAction::create_esp(&context, &esp, DriverAttrs::none()).unwrap());
        assert_eq!(action.handle(), 6);
        action.modify_esp(&esp).unwrap();
        action.destroy().unwrap();

        let counters = ErasedCounters::new(KernelCounters::create(&context).unwrap());
        assert_eq!(counters.handle(), 7);
        counters.read(&mut [0], ReadCountersFlags::empty()).unwrap();
        counters.destroy().unwrap();

        let cntr = KernelCompCntr::create(&context, DriverAttrs::none()).unwrap();
        cntr.attach_to(3, CompCntrAttachOps::RECV).unwrap();
        let cntr = ErasedCompCntr::new(cntr);
        assert_eq!(cntr.handle(), 8);
        cntr.set(CompCntrEntry::COMP, 1).unwrap();
        cntr.inc(CompCntrEntry::COMP, 2).unwrap();
        cntr.read(CompCntrEntry::COMP).unwrap();
        cntr.destroy().unwrap();

        let table = ErasedRwqIndTable::new(KernelRwqIndTable::create(&context, &[1, 2]).unwrap());
        assert_eq!((table.handle(), table.ind_tbl_num()), (9, 10));
        table.destroy().unwrap();
    }

    #[test]
    fn an_object_that_cannot_be_destroyed_comes_back() {
        let (context, scripted) = context(0);
        scripted.expect([
            made(7),
            Expect::anything(Reply::Errno(Errno::BUSY)),
            done("ioctl 15.1: 0x0 handle 7"),
        ]);
        let counters = ErasedCounters::new(KernelCounters::create(&context).unwrap());
        let (counters, error) = counters.destroy().unwrap_err();
        assert_eq!((error.verb, error.errno), ("destroy_counters", Errno::BUSY));
        counters.destroy().unwrap();
    }

    /// The flow rule type of another provider.
    #[derive(Debug)]
    struct Other;

    impl FlowOps for Other {
        fn handle(&self) -> u32 {
            0
        }
    }

    impl Destroy for Other {
        fn destroy(self) -> Result<(), (Self, Error)> {
            Ok(())
        }
    }

    #[test]
    fn counters_are_attached_by_drivers_and_to_rules_of_their_own() {
        let (context, scripted) = context(0);
        scripted.expect([made(7)]);
        let counters = ErasedCounters::new(KernelCounters::create(&context).unwrap());
        let attr = CounterAttachAttr { counter_desc: CounterDescription::PACKETS, index: 0 };
        let error = counters.attach_point_flow(&attr, None).unwrap_err();
        assert_eq!((error.verb, error.errno), ("attach_counters_point_flow", Errno::OPNOTSUPP));
        let error = counters.attach_point_flow(&attr, Some(&ErasedFlow::new(Other))).unwrap_err();
        assert_eq!(error.errno, Errno::INVAL);
        assert!(matches!(error.cause, Cause::Foreign { what: "flow rule" }), "{error}");
    }
}
