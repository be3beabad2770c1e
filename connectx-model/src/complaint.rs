//! [`Rule`]: a requirement on drivers and programs. [`Complaint`]: one violation of a rule. A note
//! is an observation that does not fail the run, because a program may have requested the
//! behaviour.
//!
//! The model rejects a violation as the device would, and records a complaint that fails the run.
//! Some violations are only reported and not rejected, because the damage is already done or a real
//! device could not detect them. The documentation of these rules says so.

use std::fmt;

/// Defines [`Rule`] from a list of names and texts.
macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident: $text:literal,)*) => {
        /// A requirement of the manual that the model enforces.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Rule {
            $(#[doc = concat!($text, ".")] $(#[doc = ""] #[$doc])* $name,)*
        }

        impl Rule {
            /// All rules.
            pub const ALL: &[Rule] = &[$(Rule::$name),*];

            /// Returns the rule as a sentence.
            pub const fn text(self) -> &'static str {
                match self { $(Rule::$name => $text,)* }
            }
        }
    };
}

rules! {
    // Command interface.
    CommandEntry: "a command entry belongs to the device, has type 7, and lengths that its mailboxes hold",
    CommandToken: "the mailboxes of a command carry its token and are numbered from 0",
    CommandOpcode: "a command has an opcode that the function implements",
    CommandModifier: "a command has a modifier that is defined for it",
    CommandReserved: "reserved bits of a command or a context are 0",
    CommandLength: "a command has the length of its input with any list, and room for its output",
    CommandState: "a command is issued in a state of the function that allows it",
    CommandObject: "a command refers to an object that exists",
    /// TEARDOWN_HCA only reports a violation, because the device drops all remaining objects.
    CommandBusy: "an object is destroyed after all its users",
    CommandParameter: "parameters of a command are within the capabilities",
    CommandPages: "a buffer's page list is aligned and covers the buffer exactly",
    CommandDoorbellRecord: "a doorbell record is aligned to 8 bytes and lies in memory",
    CommandCapability: "a driver uses and sets only capabilities that the function offers",
    QpTransition: "a queue pair makes only transitions that its state allows",
    QpAttribute: "a transition has all its required attributes and no others than its optional ones",
    // Doorbells.
    DoorbellRegister: "a store into a UAR page targets a register and has the register's size",
    DoorbellUar: "a doorbell goes to an allocated UAR page, the one of its object",
    DoorbellObject: "a doorbell refers to an object that exists",
    /// A violation is only reported: the model ignores these bits. libmlx5 and Linux write 0 to
    /// them in all records.
    DoorbellRecordBits: "the bits of a doorbell record above its counter are 0",
    /// A violation is only reported: the model counts from 0, as a device does. libmlx5 and Linux
    /// clear the record when they create the queue, and a queue pair's record also after a
    /// transition to RESET. A program that posts in the RESET state, which IBTA 10.3.1.1 forbids,
    /// breaks this rule too, because libmlx5 does not check the state.
    DoorbellRecordStart: "a doorbell record is 0 at RST2INIT_QP and at the creation of a shared receive queue",
    DoorbellRecordFirst: "a doorbell record is written before the doorbell is rung",
    /// A violation is only reported, because the doorbell starts no work.
    DoorbellStale: "a doorbell announces at least one new work request",
    /// On an Ethernet send queue, a violation is only reported and the posted requests are sent.
    DoorbellOrder: "a doorbell carries the head of the last work request that was posted",
    /// Drivers on 32-bit systems store a doorbell as two halves, the lower address first (rdma-core
    /// `util/mmio.c`, Linux `include/linux/mlx5/doorbell.h`). A single half is ignored.
    DoorbellHalf: "the second half of a doorbell follows the first",
    /// The model ignores the store, and the stores that continue it.
    BlueFlameHalf: "the halves of a BlueFlame register are used alternately",
    /// The model ignores words that arrive out of order. The first word has already rung the
    /// doorbell.
    BlueFlameOrder: "the words of a BlueFlame store arrive in ascending order without gaps",
    /// The model detects a difference only after the doorbell has rung. It executes the work
    /// request in the queue and then puts the queue pair in the error state. On an Ethernet send
    /// queue, a difference is only reported.
    BlueFlameContent: "a work request stored through BlueFlame equals the one in the queue",
    /// A violation is only reported: early Linux drivers stored the last of several frames
    /// (`mlx5e_sq_xmit` with `bf_budget`), so devices accept this. libmlx5 stores a request only if
    /// it was posted alone (`post_send_db`); otherwise it rings the doorbell with the first 8 bytes
    /// of the last request.
    BlueFlameSingle: "a work request is stored through BlueFlame only if its doorbell announces no other",
    EqDoorbell: "an event queue's consumer index does not pass its producer",
    CqDoorbell: "a completion queue's consumer index does not pass its producer and does not decrease",
    CqArmSequence: "the record and the doorbell of an armed completion queue agree",
    // Sends.
    WqeOpcode: "a work request has a defined opcode",
    WqeIndex: "a work request carries its index in the queue",
    WqeQpn: "a work request carries its queue pair's number",
    WqeSize: "a work request is at least as long as its segments and at most as long as the device allows",
    WqeReserved: "reserved bits of a work request are 0",
    WqeOverrun: "no more work requests are posted than the queue holds",
    WqeState: "sends are posted in a state that allows them",
    /// libmlx5 puts either inline data or elements in a work request. UCX stores a header inline in
    /// front of elements (`rc_mlx5.inl`).
    WqeInline: "inline data has its declared length, and is one segment in front of all elements",
    /// This rule excludes queue pairs, whose keys the program chooses: there an invalid key causes
    /// an error completion without a complaint.
    WqeKey: "a driver's Ethernet send uses an existing key of its protection domain that covers the range",
    WqeAddressVector: "a datagram's address vector has the extended form and sets no bits that its port reserves",
    /// A violation is only reported: the model routes packets by GID, and a device sends to any MAC
    /// address.
    DestinationMac: "a RoCE sender uses the MAC address of the destination GID's owner or group",
    WqeAtomic: "an atomic operation has a result of 8 bytes",
    /// The mask of a bind or unbind selects all fields that the change needs.
    WqeUmr: "a UMR changes only mutable fields of a key that allows it, with a list that fits the key",
    /// A violation is only reported: a device executes the work request anyway. The required forms
    /// follow libmlx5 (`set_bind_wr`) and the Linux driver (wr.c, umr.c).
    UmrForm: "a UMR has the checks, flags and padding that drivers write for its kind",
    /// A violation is only reported: the model executes work requests in order even without a
    /// fence. The rule follows libmlx5 (`fm_cache`) and the Linux driver (`next_fence`). Linux sets
    /// no fence after an invalidation by its own UMR, so a UMR whose mask selects only the free bit
    /// needs none.
    UmrFence: "a work request after a UMR carries a small fence or stronger ordering",
    WqeSignature: "a work request carries a correct checksum if the queue pair asked for one, and none otherwise",
    WqeFence: "fence bits have a defined value",
    /// libmlx5 and Linux use only modes 0 and 2. Neither defines mode 1. Linux defines mode 3, an
    /// event with each completion (`MLX5_WQE_CTRL_CQ_UPDATE_AND_EQE`).
    WqeCompletionMode: "a work request asks for a completion after errors only (0) or always (2)",
    WqeTagMatching: "a tag matching request has the form that its operation needs, on a queue pair with a matching list",
    TagIndex: "a tag matching request names an index of the list, and as the next one an index that is free",
    /// A violation is only reported: the device has executed the work request as it was at the
    /// doorbell. The model compares the two when the work request ends, except after a fatal device
    /// error. The rule follows libmlx5's `mlx5_wq_overflow` and Linux's `mlx5r_wq_overflow`, which
    /// reuse a position after its request completes.
    WqeChanged: "a work request stays unchanged in its queue from the doorbell until it ends",
    // Receives.
    RecvTerminator: "a receive list shorter than its stride ends with a complete terminator",
    /// The device treats a length of 0 as 2 GiB. libmlx5 omits such elements from the receives of
    /// queue pairs and work queues (`mlx5_post_recv`, `mlx5_post_wq_recv`). In shared receive
    /// queues libmlx5 keeps them (`mlx5_post_srq_recv`), so a program may request 2 GiB there.
    RecvLength: "an element of a receive queue's list has a length that is not 0",
    RecvKey: "a driver's Ethernet receive uses an existing key of its protection domain that covers the range",
    /// A violation is only reported: it is not known how a device treats a wrong checksum.
    RecvSignature: "a receive carries a correct checksum if the queue pair asked for one",
    /// A violation is only reported: the device has used the receive as it was when it read the
    /// doorbell record. The model compares the two when the receive completes, except after a fatal
    /// device error. The rule follows `mlx5_wq_overflow` and, for shared receive queues, libmlx5's
    /// `mlx5_post_srq_recv` and Linux's `mlx5_ib_post_srq_recv`. These functions link an entry
    /// before posting it, and leave it alone until it completes.
    RecvChanged: "a receive and its link stay unchanged in their queue until it completes",
    RecvOverrun: "no more receives are posted than the queue holds",
    /// A violation is only reported: a device may ignore these bytes.
    SrqReserved: "a shared receive queue's entry has no reserved bits and no checksum",
    SrqLink: "a shared receive queue's links stay inside the queue and form no cycle",
    // Memory.
    /// libmlx5 follows this rule when it copies (`mlx5_access_dm`).
    MemicWord: "a processor accesses device memory in aligned words of 4 bytes",
    MemicArea: "a processor accesses device memory only where it is allocated",
    DmaFault: "the device is given only addresses of existing memory",
    PageFaultResume: "a page fault is resumed once, with its token, its type and its queue",
    // Completion queues.
    /// A violation is only reported: its effect appears only when the driver reads the entries in
    /// the next round. The rule follows Linux's `mlx5e_cqes_update_owner`. DPDK marks the entries
    /// as unwritten, which is equivalent.
    CqOwner: "entries of a compressed block are returned with owner bits that the next turn does not take for its own",
    CqOverrun: "a completion queue has room for every completion",
    EqOverrun: "an event queue has room for every event",
    // The PCI function.
    RegisterAccess: "the initialisation segment is accessed in aligned dwords where it has registers",
}

/// One violation of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint {
    /// The index of the offending function in the fabric.
    pub function: usize,
    /// The broken rule.
    pub rule: Rule,
    /// A description of the violation.
    pub what: String,
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "function {}: {:?}: {} ({})", self.function, self.rule, self.what, self.rule.text())
    }
}

/// The complaints and notes about one function. All are counted, but only the first 1000 of each
/// are stored.
#[derive(Debug, Default)]
pub struct Complaints {
    function: usize,
    kept: Vec<Complaint>,
    count: u64,
    notes: Vec<String>,
    note_count: u64,
}

/// The maximum number of stored complaints, and of stored notes: a hostile guest can cause
/// millions.
const KEPT: usize = 1000;

impl Complaints {
    /// Returns an empty list for the function with this index in the fabric.
    pub fn new(function: usize) -> Self {
        Self { function, ..Self::default() }
    }

    /// Records a complaint.
    pub fn add(&mut self, rule: Rule, what: impl Into<String>) {
        self.count += 1;
        if self.kept.len() < KEPT {
            self.kept.push(Complaint { function: self.function, rule, what: what.into() });
        }
    }

    /// Records a note.
    pub fn note(&mut self, what: impl fmt::Display) {
        self.note_count += 1;
        if self.notes.len() < KEPT {
            self.notes.push(format!("function {}: {what}", self.function));
        }
    }

    /// Removes and returns the stored notes. The count does not change.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// Returns the number of notes recorded, including those not stored.
    pub fn note_count(&self) -> u64 {
        self.note_count
    }

    /// Removes and returns the stored complaints. The count does not change.
    pub fn take(&mut self) -> Vec<Complaint> {
        std::mem::take(&mut self.kept)
    }

    /// Removes all complaints and resets their count, once the caller has checked them. Notes
    /// remain.
    pub fn forget(&mut self) {
        self.kept.clear();
        self.count = 0;
    }

    /// Returns the number of complaints recorded, including those not stored.
    pub fn count(&self) -> u64 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_are_counted_beyond_those_that_are_kept() {
        let mut complaints = Complaints::new(1);
        for _ in 0..KEPT + 5 {
            complaints.add(Rule::WqeIndex, "index 3 at 2");
        }
        assert_eq!(complaints.count(), KEPT as u64 + 5);
        assert_eq!(complaints.take().len(), KEPT);
    }

    #[test]
    fn notes_are_counted_apart_and_stay_when_complaints_are_forgotten() {
        let mut complaints = Complaints::new(1);
        for _ in 0..KEPT + 5 {
            complaints.note("odd");
        }
        complaints.forget();
        assert_eq!((complaints.count(), complaints.note_count()), (0, KEPT as u64 + 5));
        let notes = complaints.take_notes();
        assert_eq!((notes.len(), notes[0].as_str()), (KEPT, "function 1: odd"));
    }

    #[test]
    fn a_complaint_names_function_rule_and_violation() {
        let mut complaints = Complaints::new(1);
        complaints.add(Rule::WqeIndex, "index 3 at 2");
        let text = complaints.take()[0].to_string();
        assert!(text.contains("function 1") && text.contains("WqeIndex") && text.contains("index 3 at 2"));
    }
}
