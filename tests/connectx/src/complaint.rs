//! [`Rule`]: what a driver or a program must keep to. [`Complaints`]: who did not.
//!
//! A rule that is broken is refused as the device would refuse it, and is complained of: the run that broke it has failed. Where
//! nothing is left to refuse, because the harm is done or no device could see it, the rule says that it is reported alone.

use std::fmt;

/// Names the rules, and says each in words.
macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident: $text:literal,)*) => {
        /// A rule of the manual that the model enforces.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Rule {
            $(#[doc = concat!($text, ".")] $(#[doc = ""] #[$doc])* $name,)*
        }

        impl Rule {
            /// Every rule.
            pub const ALL: &[Rule] = &[$(Rule::$name),*];

            /// What it says.
            pub const fn text(self) -> &'static str {
                match self { $(Rule::$name => $text,)* }
            }
        }
    };
}

rules! {
    // The command interface.
    CommandEntry: "a command entry belongs to the device, has type 7, and lengths that its mailboxes hold",
    CommandToken: "the mailboxes of a command carry its token, numbered from 0",
    CommandOpcode: "a command has an opcode that this function knows",
    CommandModifier: "a command has a modifier that it knows",
    CommandReserved: "reserved bits of a command or a context are 0",
    CommandLength: "a command is as long as its input, with its list if it has one, and has room for its output",
    CommandState: "a command comes in a state of the function that takes it",
    CommandObject: "a command names an object that exists",
    /// Of a teardown it is reported alone: the device drops whatever is left.
    CommandBusy: "an object is destroyed after all that uses it",
    CommandParameter: "parameters of a command are within the capabilities",
    CommandPages: "a buffer's page list is aligned and as long as the buffer",
    CommandDoorbellRecord: "a doorbell record is aligned to 8 bytes and is memory",
    CommandCapability: "what a driver sets as capability is what the function offered",
    QpTransition: "a queue pair goes only from one state to the next",
    QpAttribute: "a transition comes with what it needs and with nothing that it may not change",
    // Doorbells.
    DoorbellRegister: "a store into a UAR goes to a register, with the register's size",
    DoorbellUar: "a store goes into a UAR page that is allocated, and is the object's",
    DoorbellObject: "a doorbell names an object that exists",
    DoorbellRecordFirst: "a doorbell record is written before the doorbell is rung",
    /// Reported alone: there is nothing that it could ring.
    DoorbellStale: "a doorbell has something new to tell",
    /// An Ethernet send queue only reports it: what stands in the queue is sent.
    DoorbellOrder: "a doorbell carries the head of the last work request that was posted",
    /// Otherwise the store is ignored, with what follows it.
    BlueFlameHalf: "the halves of a BlueFlame register take turns",
    /// The words out of order are ignored; that the doorbell rang with the first is not taken back.
    BlueFlameOrder: "the words of a BlueFlame store come in ascending order without a hole",
    /// What differs is found when the doorbell has rung: the work request is carried out as it stands in the queue, and the
    /// queue pair goes to error. An Ethernet send queue only reports it.
    BlueFlameContent: "what is stored through BlueFlame is what stands in the queue",
    EqDoorbell: "an event queue's consumer index does not pass its producer",
    CqDoorbell: "a completion queue's consumer index does not pass its producer, nor go back",
    CqArmSequence: "an armed completion queue's record and doorbell say the same",
    // Sends.
    WqeOpcode: "a work request has an opcode that there is",
    WqeIndex: "a work request carries its place in the queue",
    WqeQpn: "a work request carries its queue pair's number",
    WqeSize: "a work request is not shorter than its segments, nor longer than the device takes",
    WqeReserved: "reserved bits of a work request are 0",
    WqeOverrun: "no more is posted than the queue holds",
    WqeState: "sends are posted in a state that takes them",
    WqeInline: "inline data is as long as it says, and not mixed with elements",
    /// A queue pair's keys are its program's: a wrong one is an error completion, and no complaint.
    WqeKey: "a driver's Ethernet send names a key that exists, is of its protection domain and covers the range",
    WqeAddressVector: "a datagram's address vector is of the extended form, without reserved bits",
    WqeAtomic: "an atomic operation has a result of 8 bytes",
    WqeUmr: "a UMR changes what may be changed, of a key that may be, with a list that fits it",
    WqeSignature: "a work request carries a checksum exactly where the queue pair asked for it, and a right one",
    WqeFence: "fence bits are ones that are defined",
    // Receives.
    RecvTerminator: "a receive list shorter than its stride ends with the terminator, a whole one",
    RecvKey: "a driver's Ethernet receive names a key that exists, is of its protection domain and covers the range",
    RecvOverrun: "no more receives are posted than the queue holds",
    SrqLink: "a shared receive queue's links stay inside of the queue, and do not bite their tail",
    // Memory.
    DmaFault: "the device is pointed only to memory that is there",
    // Completion queues.
    CqOverrun: "a completion queue has room for what completes",
    EqOverrun: "an event queue has room for what happens",
    // The PCI function.
    RegisterAccess: "the initialisation segment is accessed in aligned dwords where it has registers",
}

/// A rule that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint {
    /// Which function of the fabric was driven so.
    pub function: usize,
    /// Which rule.
    pub rule: Rule,
    /// What was done.
    pub what: String,
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "function {}: {:?}: {} ({})", self.function, self.rule, self.what, self.rule.text())
    }
}

/// The complaints of one function: the first of them in full, all of them counted.
#[derive(Debug, Default)]
pub struct Complaints {
    function: usize,
    kept: Vec<Complaint>,
    count: u64,
}

/// A hostile guest makes millions.
const KEPT: usize = 1000;

impl Complaints {
    /// None yet, of this function.
    pub fn new(function: usize) -> Self {
        Self { function, ..Self::default() }
    }

    /// One more.
    pub fn add(&mut self, rule: Rule, what: impl Into<String>) {
        self.count += 1;
        if self.kept.len() < KEPT {
            self.kept.push(Complaint { function: self.function, rule, what: what.into() });
        }
    }

    /// The first thousand since the last call.
    pub fn take(&mut self) -> Vec<Complaint> {
        std::mem::take(&mut self.kept)
    }

    /// As if there had been none: a test broke rules on purpose, and has seen that.
    pub fn forget(&mut self) {
        self.kept.clear();
        self.count = 0;
    }

    /// How many there were in all.
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
    fn a_complaint_says_who_what_and_why() {
        let mut complaints = Complaints::new(1);
        complaints.add(Rule::WqeIndex, "index 3 at 2");
        let text = complaints.take()[0].to_string();
        assert!(text.contains("function 1") && text.contains("WqeIndex") && text.contains("index 3 at 2"));
    }
}
