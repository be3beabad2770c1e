//! [`Function`]: one PCI function and all its state.
//!
//! | module | contents |
//! |---|---|
//! | `config` | parameters of a new function |
//! | `pci` | configuration space |
//! | `iseg` | the initialisation segment |
//! | `uar` | doorbells |
//! | `wire` | packets, time |
//! | `pages` | buffers of guest pages |
//! | `record` | doorbell records |
//!
//! A function consists of the transport engine and [`Core`], which holds everything else. They are
//! separate because the engine reports events to a [`Sink`](roce::engine::Sink). The core is that
//! sink: it writes completions into guest memory while the engine runs.

pub(crate) mod config;
pub(crate) mod iseg;
pub(crate) mod pages;
pub(crate) mod pci;
pub(crate) mod record;
pub(crate) mod uar;
pub(crate) mod wire;

use std::collections::{BTreeMap, BTreeSet};

use roce::engine::{Engine, Time};

use crate::bus::Bus;
use crate::caps::{
    Capabilities, LOG_MAX_CQ, LOG_MAX_MCG, LOG_MAX_MKEY, LOG_MAX_PD, LOG_MAX_QP, LOG_MAX_SRQ, MAX_QP_MCG,
};
use crate::cmd::hca::Hca;
use crate::cmd::queue::CommandQueue;
use crate::cmd::table::{Command, commands};
use crate::complaint::{Complaint, Complaints, Rule};
use crate::cq::Cq;
use crate::destination::Destinations;
use crate::eq::Eq;
use crate::eth::Ethernet;
use crate::fault::Faults;
use crate::ids::{Ascending, Ids};
use crate::memic::{self, Memic};
use crate::mkey::{Mkeys, Translated};
use crate::paging::Paging;
use crate::port::Port;
use crate::qp::{Attention, Qp};
use crate::srq::Srq;
use crate::trace::{Trace, format};

pub use self::config::Config;

use self::iseg::Iseg;
use self::pci::Pci;
use self::uar::Uars;

/// One PCI function.
#[derive(Debug)]
pub struct Function<B: Bus> {
    pub(crate) engine: Engine<Translated<B>>,
    pub(crate) core: Core<B>,
    pub(crate) commands: BTreeMap<u16, Command<B>>,
}

/// A function without its transport engine.
#[derive(Debug)]
pub(crate) struct Core<B: Bus> {
    pub(crate) config: Config,
    pub(crate) bus: B,
    pub(crate) log: Log,
    /// Time of the current call.
    pub(crate) now: Time,
    pub(crate) pci: Pci,
    pub(crate) iseg: Iseg,
    pub(crate) cmdq: CommandQueue,
    pub(crate) hca: Hca,
    pub(crate) caps: Capabilities,
    pub(crate) port: Port,
    pub(crate) faults: Faults,
    pub(crate) uars: Uars,
    pub(crate) eqs: BTreeMap<u32, Eq>,
    pub(crate) cqs: BTreeMap<u32, Cq>,
    pub(crate) cqns: Ids,
    /// Earliest time when a moderated event may be due.
    pub(crate) next_held: Option<Time>,
    pub(crate) qps: BTreeMap<u32, Qp>,
    pub(crate) attention: Attention,
    pub(crate) paging: Paging,
    pub(crate) destinations: Destinations,
    pub(crate) srqs: BTreeMap<u32, Srq>,
    pub(crate) mkeys: Mkeys,
    pub(crate) memic: Memic,
    pub(crate) pds: BTreeSet<u32>,
    pub(crate) xrcds: Ids,
    pub(crate) transport_domains: Ids,
    pub(crate) eth: Ethernet,
}

/// Complaints and the trace.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) complaints: Complaints,
    pub(crate) trace: Trace,
}

impl Log {
    /// Records the violation of a rule.
    pub(crate) fn complain(&mut self, rule: Rule, what: impl Into<String>) {
        let what = what.into();
        self.trace.line(|| format::complaint(rule, &what));
        self.complaints.add(rule, what);
    }
}

impl<B: Bus> Function<B> {
    /// Returns a function in its state after power-on.
    pub fn new(config: Config, bus: B, trace: Trace) -> Self {
        let log = Log { complaints: Complaints::new(config.index), trace };
        let core = Core::new(config, bus, log, Faults::default());
        let commands = commands().into_iter().map(|command| (command.opcode, command)).collect();
        Self { engine: engine(&core), core, commands }
    }

    /// Returns the complaints since the last call.
    pub fn take_complaints(&mut self) -> Vec<Complaint> {
        self.core.log.complaints.take()
    }

    /// Reads from a BAR. Bytes outside of registers and device memory read as 0.
    pub fn bar_read(&mut self, bar: u32, offset: u64, into: &mut [u8], now: Time) {
        self.core.tick(now);
        if self.core.removed() {
            into.fill(0xff);
        } else if bar == BAR0 && offset < ISEG_SIZE {
            self.iseg_read(offset, into);
        } else if bar == BAR0 && memic::contains(offset) {
            self.memic_read(offset, into);
        } else {
            into.fill(0);
        }
    }

    /// Writes to a BAR: a register, a doorbell in a UAR page, or device memory.
    pub fn bar_write(&mut self, bar: u32, offset: u64, from: &[u8], now: Time) {
        self.core.tick(now);
        if self.core.removed() || bar != BAR0 {
            return;
        }
        if offset < ISEG_SIZE {
            self.iseg_write(offset, from);
        } else if memic::contains(offset) {
            self.memic_write(offset, from);
        } else {
            self.uar_write(offset, from);
        }
    }

    /// Resets the function to its state after power-on. Pending injected faults remain.
    pub fn reset(&mut self) {
        self.drop_half_stores();
        let core = &mut self.core;
        let (config, bus, now) = (core.config, core.bus.clone(), core.now);
        let (log, mut faults) = (std::mem::take(&mut core.log), std::mem::take(&mut core.faults));
        faults.restart();
        self.core = Core::new(config, bus, log, faults);
        self.core.now = now;
        self.engine = engine(&self.core);
    }

    /// Destroys all objects: except for the stage, everything is as before INIT_HCA.
    pub(crate) fn drop_objects(&mut self) {
        self.drop_half_stores();
        let fresh = Core::new(self.core.config, self.core.bus.clone(), Log::default(), Faults::default());
        let core = &mut self.core;
        core.uars = fresh.uars;
        core.eqs = fresh.eqs;
        core.cqs = fresh.cqs;
        core.cqns = fresh.cqns;
        core.next_held = fresh.next_held;
        core.qps = fresh.qps;
        core.attention = fresh.attention;
        core.paging = fresh.paging;
        core.srqs = fresh.srqs;
        core.mkeys = fresh.mkeys;
        core.memic = fresh.memic;
        core.pds = fresh.pds;
        core.xrcds = fresh.xrcds;
        core.transport_domains = fresh.transport_domains;
        core.eth = fresh.eth;
        core.hca.drop_objects();
        core.port.forget();
        self.engine = engine(core);
    }

    /// Clears everything except the registers, after the driver has disabled the interface.
    pub(crate) fn disable_interface(&mut self) {
        self.drop_objects();
        self.core.hca = Hca::default();
        self.core.caps = Capabilities::new(&self.core.config);
        self.core.cmdq = CommandQueue::default();
    }
}

impl<B: Bus> Core<B> {
    fn new(config: Config, bus: B, log: Log, faults: Faults) -> Self {
        Self {
            config,
            bus,
            log,
            now: Time::default(),
            pci: Pci::new(config.port),
            iseg: Iseg::default(),
            cmdq: CommandQueue::default(),
            hca: Hca::default(),
            caps: Capabilities::new(&config),
            port: Port::new(config.port, config.index),
            faults,
            uars: Uars::default(),
            eqs: BTreeMap::new(),
            cqs: BTreeMap::new(),
            cqns: Ids::new(1..=(1 << LOG_MAX_CQ) - 1),
            next_held: None,
            qps: BTreeMap::new(),
            attention: Attention::default(),
            paging: Paging::default(),
            destinations: Destinations::default(),
            srqs: BTreeMap::new(),
            mkeys: Mkeys::default(),
            memic: Memic::default(),
            pds: BTreeSet::new(),
            xrcds: Ids::new(1..=(1 << LOG_MAX_PD) - 1),
            transport_domains: Ids::new(1..=(1 << LOG_MAX_PD) - 1),
            eth: Ethernet::default(),
        }
    }

    /// Advances time; an earlier time has no effect.
    fn tick(&mut self, now: Time) {
        self.now = self.now.max(now);
    }

    fn removed(&self) -> bool {
        self.faults.removed()
    }
}

/// Maximum number of bytes of requests in flight. Packets are copied from memory to memory.
const WINDOW: u32 = 1 << 20;

fn engine<B: Bus>(core: &Core<B>) -> Engine<Translated<B>> {
    let config = roce::engine::Config {
        max_qp: 1 << LOG_MAX_QP,
        max_keys: 1 << LOG_MAX_MKEY,
        max_srq: 1 << LOG_MAX_SRQ,
        max_pd: 1 << LOG_MAX_PD,
        max_groups: 1 << LOG_MAX_MCG,
        max_group_members: MAX_QP_MCG,
        window_bytes: WINDOW,
        ..roce::engine::Config::default()
    };
    let memory =
        Translated { bus: core.bus.clone(), memic: core.memic.clone(), targets: core.mkeys.targets() };
    Engine::new(config, memory, Ascending::for_function(core.config.index))
}

/// BAR 0: registers, UAR pages, device memory.
pub const BAR0: u32 = 0;
/// BAR 2: the MSI-X table and its pending bits, which the front end implements.
pub const BAR2: u32 = 2;
/// Size of BAR 0 in bytes.
pub const BAR0_SIZE: u64 = 64 << 20;
/// Size of the registers and UAR pages in BAR 0, in bytes.
pub const UARS_SIZE: u64 = 32 << 20;
/// Offset of device memory in BAR 0.
pub const MEMIC_START: u64 = UARS_SIZE;
/// Size of device memory in bytes: Linux's maximum (`MLX5_MAX_MEMIC_PAGES`).
pub const MEMIC_SIZE: u64 = 1 << 20;
/// Size of BAR 2 in bytes.
pub const BAR2_SIZE: u64 = 0x2000;
/// Number of MSI-X vectors.
pub const VECTORS: u16 = 8;
/// Size of the initialisation segment at the start of BAR 0, in bytes; UAR pages follow.
pub const ISEG_SIZE: u64 = 0x4000;
/// Size of a UAR page in bytes.
pub const UAR_SIZE: u64 = 0x1000;
