//! [`Tally`]: counts of calls and outcomes by kind. A fuzz run fails if it does not reach every
//! kind.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use verbs::WcStatus;

/// Kinds and their names in the output.
macro_rules! kinds {
    ($($name:ident = $text:literal),* $(,)?) => {
        /// A kind of call or outcome.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Kind { $($name),* }

        /// The names of all kinds, in order of declaration.
        const NAMES: &[&str] = &[$($text),*];
    };
}

kinds! {
    Step = "random step",
    ContextOpen = "context opened",
    ContextCloseRefused = "context close refused",
    PdAlloc = "domain made",
    PdDowncast = "domain named",
    PdCloseRefused = "domain close refused",
    CqCreate = "CQ made",
    CqDrop = "CQ dropped",
    CqClose = "CQ closed",
    CqCloseRefused = "CQ close refused",
    CqForget = "CQ forgotten",
    CqDowncast = "CQ named",
    CqSwap = "CQs swapped",
    CqNotify = "CQ armed",
    CqEvent = "CQ event read",
    CqCopied = "completions copied out",
    CqResize = "CQ enlarged",
    CqResizeRefused = "CQ of an odd size refused",
    CqArm = "CQ armed, its completions left",
    CqModerate = "CQ moderated",
    QpRc = "RC QP made",
    QpUc = "UC QP made",
    QpUd = "UD QP made",
    QpPair = "QPs connected to each other",
    QpOdd = "QP connected to anything",
    QpReset = "QP reset",
    QpError = "QP to error",
    QpSqd = "QP to SQD and back, or refused",
    QpModify = "QP modified at random",
    QpQuery = "QP queried",
    QpReclaimAll = "QP emptied after reset",
    QpDrop = "QP dropped",
    QpClose = "QP closed",
    QpDismantle = "QP dismantled",
    QpForget = "QP forgotten",
    QpDowncast = "QP named",
    QpSwap = "QPs swapped",
    QpPostedLost = "QP gone with memory in flight",
    QpElsewhere = "QP made on another thread's CQ",
    QpOnClosed = "QP on a closed CQ refused",
    BufAlloc = "buffer made",
    BufDrop = "buffer dropped",
    BufClose = "buffer closed",
    BufCloseRefused = "buffer close refused",
    BufForget = "buffer forgotten",
    BufSplit = "buffer split",
    BufUnsplit = "buffers joined",
    BufUnsplitRefused = "join refused",
    BufSwap = "buffers swapped",
    Expose = "memory exposed",
    Unexpose = "memory unexposed",
    ExposedDrop = "exposed memory dropped",
    ExposedForget = "exposed memory forgotten",
    ExposedWrite = "exposed memory written by its owner",
    PostSend = "send posted",
    PostSendImm = "send with immediate posted",
    PostUdSend = "datagram posted",
    PostUdSendImm = "datagram with immediate posted",
    PostWrite = "write posted",
    PostWriteImm = "write with immediate posted",
    PostRead = "read posted",
    PostCas = "compare and swap posted",
    PostFaa = "fetch and add posted",
    PostUnsignaled = "unsignalled request posted",
    PostSendAll = "several pieces posted to send",
    PostRecv = "receive posted",
    PostRecvAll = "several pieces posted to receive",
    PostFrozen = "read-only memory to send",
    PostExposed = "exposed memory to send or read into",
    PostExposedRecv = "exposed memory to receive",
    BatchPosted = "request put into a batch",
    BatchRung = "batch rung",
    BatchAborted = "batch aborted",
    BatchDropped = "batch dropped",
    BatchForgotten = "batch forgotten",
    Inline = "inline send",
    InlineRefused = "inline send refused",
    RefusedByType = "post without a method for it",
    RefusedRange = "odd range refused",
    RefusedForeign = "foreign buffer refused",
    RefusedReserved = "reserved number refused",
    RefusedReadOnly = "write of read-only memory refused",
    RefusedInlineExposed = "inline copy of exposed memory refused",
    RefusedOther = "post refused by the queue",
    HalvesThreads = "halves on two threads",
    HalvesCrossed = "halves of two QPs not joined",
    HalvesDrop = "halves dropped one after the other",
    MarketPut = "object given to another thread",
    MarketTake = "object taken from another thread",
    Completion = "completion polled",
    Ignored = "completion left alone",
    Reclaimed = "request's memory returned",
    ReclaimedLent = "reclaimed by a lent completion",
    ReclaimedOne = "reclaimed by an owned completion",
    ReclaimedCopy = "reclaimed by a copied completion",
    Chained = "unsignalled request's memory returned",
    DroppedHalfWay = "returned memory dropped half-way",
    Strayed = "returned memory sent to another thread",
    Collected = "returned memory taken from another thread",
    MissedFound = "memory of an ended QP found with another thread",
    ShownInFlight = "number in flight shown to a CQ",
    ShownOther = "completion of another CQ shown",
    ShownTwice = "completion shown twice",
    ShownMadeUp = "made-up completion shown",
    Freeze = "buffer frozen",
    FrozenClone = "read-only memory shared",
    FrozenSlice = "part of read-only memory shared",
    Thaw = "read-only memory thawed",
    ThawRefused = "thaw refused",
    Register = "program's memory registered",
    RegisterBytes = "program's memory registered read-only",
    IntoMemory = "program's memory taken back",
    IntoMemoryRefused = "taking back memory of another kind refused",
    RefusedObject = "object that the device lacks refused",
    SrqPost = "shared receive posted",
    SrqFull = "shared receive refused by a full queue",
    SrqReceived = "message taken from a shared receive",
    SrqArm = "SRQ armed",
    SrqResize = "SRQ enlarged",
    SrqInUse = "end of an SRQ in use refused",
    SrqDismantle = "SRQ dismantled",
    SrqDrop = "SRQ dropped below its QPs",
    SrqForget = "SRQ forgotten",
    XrcPost = "receive of an XRC domain posted",
    XrcSend = "send to a named SRQ posted",
    XrcReceived = "message taken from a named SRQ",
    XrcAccess = "memory of a named SRQ's domain written and read",
    XrcNoQueue = "send to an SRQ of another domain refused",
    XrcOpened = "XRC target opened once more",
    XrcInUse = "close of an XRC domain in use refused",
    XrcDismantle = "SRQ of an XRC domain dismantled",
    XrcDrop = "XRC domain dropped or forgotten in use",
    WindowBind = "window bound",
    WindowRevoke = "window revoked",
    WindowByPeer = "window invalidated by its peer",
    WindowEnd = "window ended while it was bound",
    RawCompleted = "raw batch completed",
    RawRefused = "raw batch refused by the queue",
    RawDropped = "raw batch aborted or dropped",
    RawUnwound = "raw batch unwound",
    RawForgotten = "raw batch forgotten",
    PostFlush = "flush posted, or refused by a device without it",
    PostAtomicWrite = "atomic write posted, or refused by a device without it",
    ScopePost = "borrowed memory posted",
    ScopeReclaim = "borrowed memory reclaimed",
    ScopeDone = "scope left with nothing in flight",
    ScopeEarly = "scope left with requests in flight",
    ScopePanic = "scope left by a panic",
    ScopeEscape = "completion kept beyond its scope",
    ScopeForeign = "borrowed memory refused outside of its scope",
    ScopePolled = "scope polled by another thread",
    CheckedFrozen = "read-only memory checked",
    CheckedPlain = "program's memory checked",
    CheckedHeld = "held buffer checked",
    CheckedSent = "sent buffer checked",
    CheckedMessage = "received message checked",
    CheckedRead = "read memory checked",
    CheckedOutside = "failed request checked around its range",
    CheckedRegion = "exposed memory's neighbours checked",
}

/// The count of each kind of call and of each completion status. The counters impose no memory
/// order, which could hide a race.
#[derive(Debug)]
pub struct Tally {
    kinds: Vec<AtomicU64>,
    statuses: Vec<AtomicU64>,
}

/// The number of status counters. The last one also counts all higher statuses.
const STATUSES: usize = 32;

impl Default for Tally {
    fn default() -> Self {
        let zeroes = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
        Self { kinds: zeroes(NAMES.len()), statuses: zeroes(STATUSES) }
    }
}

impl Tally {
    pub(super) fn add(&self, kind: Kind) {
        self.kinds[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn add_status(&self, status: WcStatus) {
        self.statuses[(status.0 as usize).min(STATUSES - 1)].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the counts by name.
    pub fn by_name(&self) -> BTreeMap<String, u64> {
        let kinds = self.kinds.iter().zip(NAMES).map(|(count, name)| ((*name).to_owned(), count));
        let statuses =
            (0..).zip(&self.statuses).map(|(status, count)| (status_name(WcStatus(status)), count));
        kinds
            .chain(statuses.filter(|(_, count)| count.load(Ordering::Relaxed) > 0))
            .map(|(name, count)| (name, count.load(Ordering::Relaxed)))
            .collect()
    }
}

pub(super) fn status_name(status: WcStatus) -> String {
    format!("status {status}")
}

/// Returns the number of random steps. Each step makes one or several calls.
pub fn steps(counts: &BTreeMap<String, u64>) -> u64 {
    counts.get(NAMES[Kind::Step as usize]).copied().unwrap_or(0)
}

/// Returns the kinds and statuses that every run must reach.
fn wanted() -> impl Iterator<Item = String> {
    let statuses = [WcStatus::SUCCESS, WcStatus::WR_FLUSH_ERR, WcStatus::REM_ACCESS_ERR].map(status_name);
    NAMES.iter().map(|name| (*name).to_owned()).chain(statuses)
}

/// Returns the kinds and statuses that every run must reach but this one has not.
pub fn missing(counts: &BTreeMap<String, u64>) -> Vec<String> {
    wanted().filter(|name| counts.get(name).is_none_or(|count| *count == 0)).collect()
}

/// Returns the rarest of the kinds and statuses that every run must reach, with its count.
pub(super) fn rarest(counts: &BTreeMap<String, u64>) -> Option<(String, u64)> {
    let count = |name: &String| counts.get(name).copied().unwrap_or(0);
    wanted().map(|name| (count(&name), name)).min().map(|(count, name)| (name, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_that_was_never_done_is_missing_by_name() {
        let tally = Tally::default();
        assert!(missing(&tally.by_name()).contains(&"QP forgotten".to_owned()));
        tally.add(Kind::QpForget);
        tally.add_status(WcStatus::SUCCESS);
        let missing = missing(&tally.by_name());
        assert!(!missing.contains(&"QP forgotten".to_owned()));
        assert_eq!(missing.len(), NAMES.len() - 1 + 2);
    }

    #[test]
    fn the_rarest_kind_is_one_that_a_run_has_to_reach() {
        let mut counts: BTreeMap<_, _> = wanted().map(|name| (name, 9)).collect();
        counts.insert("QP forgotten".to_owned(), 3);
        counts.insert("a status of no interest".to_owned(), 1);
        assert_eq!(rarest(&counts), Some(("QP forgotten".to_owned(), 3)));
    }
}
