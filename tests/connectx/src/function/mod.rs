//! [`Function`]: one PCI function and all its state.
//!
//! | module | what it is |
//! |---|---|
//! | `pci` | configuration space |
//! | `iseg` | the initialisation segment |
//! | `uar` | doorbells |
//! | `pages` | buffers of guest pages |
//!
//! A function is the transport engine and [`Core`], everything else. They are apart because the engine tells what
//! happened through a [`Sink`](roce::engine::Sink), which is the core: completions become entries in the guest's memory while the engine runs.

pub(crate) mod iseg;
pub(crate) mod pages;
pub(crate) mod pci;
pub(crate) mod uar;

use std::collections::{BTreeMap, BTreeSet};

use roce::engine::{Engine, Time};

use crate::bus::Bus;
use crate::caps::Capabilities;
use crate::cmd::queue::CommandQueue;
use crate::complaint::{Complaint, Complaints, Rule};
use crate::cq::Cq;
use crate::eq::Eq;
use crate::eth::Ethernet;
use crate::fault::Faults;
use crate::mkey::{Mkeys, Translated};
use crate::port::{Port, PortKind};
use crate::qp::{Attention, Qp};
use crate::srq::Srq;
use crate::trace::Trace;

use self::iseg::Iseg;
use self::pci::Pci;
use self::uar::Uars;

/// How a function is made.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Its place in the fabric: chooses GUIDs, the LID, the MAC address.
    pub index: usize,
    /// What its port is.
    pub port: PortKind,
    /// Payload of small messages comes in the completion, where the driver asks for it.
    pub scatter_to_cqe: bool,
}

/// One PCI function.
#[derive(Debug)]
pub struct Function<B: Bus> {
    pub(crate) engine: Engine<Translated<B>>,
    pub(crate) core: Core<B>,
}

/// A function without its transport engine.
#[derive(Debug)]
pub(crate) struct Core<B: Bus> {
    pub(crate) config: Config,
    pub(crate) bus: B,
    pub(crate) log: Log,
    /// The time of the call that runs.
    pub(crate) now: Time,
    pub(crate) pci: Pci,
    pub(crate) iseg: Iseg,
    pub(crate) cmdq: CommandQueue,
    pub(crate) caps: Capabilities,
    pub(crate) port: Port,
    pub(crate) faults: Faults,
    pub(crate) uars: Uars,
    pub(crate) eqs: BTreeMap<u32, Eq>,
    pub(crate) cqs: BTreeMap<u32, Cq>,
    pub(crate) qps: BTreeMap<u32, Qp>,
    pub(crate) attention: Attention,
    pub(crate) srqs: BTreeMap<u32, Srq>,
    pub(crate) mkeys: Mkeys,
    pub(crate) pds: BTreeSet<u32>,
    pub(crate) xrcds: BTreeSet<u32>,
    pub(crate) transport_domains: BTreeSet<u32>,
    pub(crate) eth: Ethernet,
}

/// What the model has to say: complaints and the trace.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) complaints: Complaints,
    pub(crate) trace: Trace,
}

impl Log {
    /// A rule was broken.
    pub(crate) fn complain(&mut self, rule: Rule, what: impl Into<String>) {
        let what = what.into();
        self.trace.line(|| format!("complaint {rule:?} {what}"));
        self.complaints.add(rule, what);
    }
}

impl<B: Bus> Function<B> {
    /// The complaints since the last call.
    pub fn take_complaints(&mut self) -> Vec<Complaint> {
        self.core.log.complaints.take()
    }
}

/// BAR 0: registers, then UAR pages.
pub const BAR0: u32 = 0;
/// BAR 2: the MSI-X table and its pending bits, which the front end keeps.
pub const BAR2: u32 = 2;
/// How many bytes BAR 0 has.
pub const BAR0_SIZE: u64 = 32 << 20;
/// How many bytes BAR 2 has.
pub const BAR2_SIZE: u64 = 0x2000;
/// How many MSI-X vectors there are.
pub const VECTORS: u16 = 8;
/// How many bytes of BAR 0 the initialisation segment takes; UAR pages follow.
pub const ISEG_SIZE: u64 = 0x4000;
/// How many bytes a UAR page has.
pub const UAR_SIZE: u64 = 0x1000;
