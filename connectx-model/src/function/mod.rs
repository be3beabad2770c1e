//! [`Function`]: one PCI function with all its state.
//!
//! The module `record` reads doorbell records.
//!
//! A function consists of the transport engine and [`Core`], which holds everything else. The two
//! are separate because the engine reports events to a [`Sink`](roce::engine::Sink). The core is
//! this sink: it writes completions to guest memory while the engine runs.

pub(crate) mod record;

use std::collections::{BTreeMap, BTreeSet};

use roce::engine::{Engine, Time};

use crate::bus::Bus;
use crate::caps::{
    Capabilities, LOG_MAX_CQ, LOG_MAX_MCG, LOG_MAX_MKEY, LOG_MAX_PD, LOG_MAX_QP, LOG_MAX_SRQ, MAX_QP_MCG,
};
use crate::complaint::{Complaint, Complaints};
use crate::destination::Destinations;
use crate::fault::Faults;
use crate::ids::{Ascending, Ids};
use crate::memic::{self, Memic};
use crate::port::Port;
use crate::state::cq::Cq;
use crate::state::eq::Eq;
use crate::state::eth::Ethernet;
use crate::state::hca::{CommandQueue, Hca};
use crate::state::mkey::{Mkeys, Translated};
use crate::state::paging::Paging;
use crate::state::qp::{Attention, Qp};
use crate::state::srq::Srq;
use crate::trace::Trace;

pub use crate::config::Config;
use crate::state::config_space::Pci;
use crate::state::iseg::Iseg;
use crate::state::uar::Uars;

pub use crate::config::{
    BAR0, BAR0_SIZE, BAR2, BAR2_SIZE, ISEG_SIZE, MEMIC_SIZE, MEMIC_START, UAR_SIZE, UARS_SIZE, VECTORS,
};
use crate::log::Log;

/// One PCI function.
#[derive(Debug)]
pub struct Function<B: Bus> {
    pub(crate) engine: Engine<Translated<B>>,
    pub(crate) core: Core<B>,
}

/// The state of a function, except for its transport engine.
#[derive(Debug)]
pub(crate) struct Core<B: Bus> {
    pub(crate) config: Config,
    pub(crate) bus: B,
    pub(crate) log: Log,
    /// The time of the current call.
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
    /// The earliest time at which a moderated completion event is due.
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

impl<B: Bus> Function<B> {
    /// Returns a function in its power-on state.
    pub fn new(config: Config, bus: B, trace: Trace) -> Self {
        let log = Log { complaints: Complaints::new(config.index), trace };
        let core = Core::new(config, bus, log, Faults::default());
        Self { engine: engine(&core), core }
    }

    /// Removes and returns the stored complaints about the function.
    pub fn take_complaints(&mut self) -> Vec<Complaint> {
        self.core.log.complaints.take()
    }

    /// Reads from a BAR. Bytes outside registers and device memory read as 0.
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

    /// Resets the function to its power-on state. Pending injected faults remain.
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

    /// Destroys all objects. Except for the stage, the function is then in its state before
    /// INIT_HCA.
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

    /// Clears all state except the registers, once the driver has disabled the interface.
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

    /// Advances the function's time. An earlier time has no effect.
    fn tick(&mut self, now: Time) {
        self.now = self.now.max(now);
    }

    fn removed(&self) -> bool {
        self.faults.removed()
    }
}

/// Maximum number of request bytes in flight. A small window suffices, because packets are copied
/// from memory to memory.
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
