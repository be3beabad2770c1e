//! The contract between this crate and a provider, for provider authors and for programs that use a
//! provider's own objects.
//!
//! Start at [`Provider`], which names the objects of a provider, and at [`Driver`], which opens
//! devices. [`Erased`] is the provider of handles that hide their actual provider.
//!
//! # Stability
//! Semantic versioning does not cover this module yet. Any release may add required methods to
//! these traits, or change signatures. The crate root re-exports the names used in signatures of
//! handles. These names are stable; the items of re-exported traits are not.

#[doc(inline)]
pub use verbs_core::provider::{
    AhOps, Awaited, CompCntrOps, Completion, ContextOps, CountersOps, CqOps, Destroy, DeviceOps, DmOps,
    DmahOps, Driver, Erased, ErasedAh, ErasedCompCntr, ErasedCompletion, ErasedCounters, ErasedCq,
    ErasedCqHandle, ErasedDm, ErasedDmah, ErasedFlow, ErasedFlowAction, ErasedMr, ErasedMw, ErasedPd,
    ErasedQp, ErasedRecvQueue, ErasedRwqIndTable, ErasedSendQueue, ErasedSrq, ErasedSrqQueue, ErasedTd,
    ErasedWq, ErasedWqQueue, ErasedXrcd, EventsRead, FastPath, FlowActionOps, FlowOps, FlowRule, MrChange,
    MrInitAttr, MrMemory, MrOps, MwOps, NamedProvider, Next, Notifier, OpenedContext, ParentDomainAttr,
    PdOps, Provider, QpExtras, QpOps, QpParents, QpParts, QueueAllocator, QueueMemory, RecvQueue,
    RegionState, ReregError, RwqIndTableOps, SendQueue, SrqOps, SrqParents, SrqParts, TdOps, Unsupported,
    WAIT_FILES, Wait, WaitOps, WqOps, WqParents, WqParts, Wr, WrBatch, WrError, XrcdOps, erase, unsupported,
};
