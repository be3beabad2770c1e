//! [`Driver`]: a small driver for tests, on plain memory. It sends both valid and invalid requests.
//!
//! ```text
//! let mut driver = Driver::new(PortKind::Ib);
//! driver.boot();                                    // initialised, with UAR page and queues
//! let out = driver.ok(&input(0x800, 0x10), 0x10);   // a command that must work
//! driver.refused(&input(0x801, 0x10), 0x10, Rule::CommandObject);
//! ```
//! [`Host`] is the driver without its function, for tests that own the function elsewhere.
//!
//! Invariant: when a driver is dropped, no unexpected complaint is left.

use roce::engine::Time;

use crate::bus::{Bus, PlainBus};
use crate::complaint::Rule;
use crate::config::{BAR0, Config, UAR_SIZE};
use crate::function::Function;
use crate::layout::eq::{create_eq_in, create_eq_out, eqc};
use crate::layout::hca::{alloc_uar_out, manage_pages_in, query_pages_out};
use crate::layout::iseg::{command_entry, command_in, command_out, initial_seg, mailbox};
use crate::layout::mkey::{create_mkey_in, mkc};
use crate::layout::{Field, dword, eqe, put};
use crate::port::PortKind;
use crate::trace::Trace;

/// Size of the host's memory, in bytes.
const MEMORY: usize = 32 << 20;
/// Size of a page, in bytes.
pub(crate) const PAGE: u64 = 0x1000;
/// Number of entries in the event queues that [`Host::boot`] creates, log2.
const LOG_EQ: u32 = 8;
/// Offset of the register in a UAR page that arms an event queue.
const EQ_ARM: u64 = 0x40;

/// A function together with its driver.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) function: Function<PlainBus>,
    pub(crate) host: Host,
}

/// The driver's side: guest memory and the addresses of the driver's structures.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) bus: PlainBus,
    pub(crate) now: Time,
    /// The number of the allocated UAR page, valid after [`Host::boot`].
    pub(crate) uar: u32,
    /// The event queue for all events except completions and command completions.
    pub(crate) events: Option<EventQueue>,
    /// The event queue for completions.
    pub(crate) completions: Option<EventQueue>,
    next_page: u64,
    queue: u64,
    token: u8,
}

/// An event queue as its driver sees it.
#[derive(Clone, Debug)]
pub(crate) struct EventQueue {
    pub(crate) eqn: u32,
    pub(crate) buffer: u64,
    pub(crate) log_size: u32,
    pub(crate) consumer: u32,
}

/// Returns a command input of `len` bytes. All bytes are 0 except for the opcode.
pub(crate) fn input(opcode: u16, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    command_in::OPCODE.set(&mut bytes, opcode);
    bytes
}

/// Returns a CREATE_MKEY input for `len` bytes of device memory, as the Linux driver would write
/// it, with `changes` applied.
pub(crate) fn memic_key(pd: u32, start: u64, len: u64, changes: &[(Field, u64)]) -> Vec<u8> {
    let mut input = input(0x200, create_mkey_in::KLM_PAS_MTT);
    let context = create_mkey_in::MEMORY_KEY_MKEY_ENTRY.bytes_mut(&mut input);
    let driver = [
        (mkc::ACCESS_MODE_4_2, 1),
        (mkc::ACCESS_MODE_1_0, 1),
        (mkc::LR, 1),
        (mkc::LW, 1),
        (mkc::QPN, 0x00ff_ffff),
        (mkc::PD, pd.into()),
        (mkc::START_ADDR, start),
        (mkc::LEN, len),
    ];
    driver.iter().chain(changes).for_each(|(field, value)| field.set(context, *value));
    input
}

impl Driver {
    /// Returns a driver with its function in the power-on state.
    pub(crate) fn new(port: PortKind) -> Self {
        let host = Host::new();
        let config = Config { index: 0, port, scatter_to_cqe: true };
        Self { function: Function::new(config, host.bus.clone(), Trace::off()), host }
    }

    /// Boots the function; see [`Host::boot`].
    pub(crate) fn boot(&mut self) {
        self.host.boot(&mut self.function);
    }

    /// Returns a driver with a booted function.
    pub(crate) fn booted(port: PortKind) -> Self {
        let mut driver = Self::new(port);
        driver.boot();
        driver
    }

    /// Executes a command and returns its output, whatever its status.
    pub(crate) fn command(&mut self, input: &[u8], out_len: usize) -> Vec<u8> {
        self.host.command(&mut self.function, input, out_len)
    }

    /// Executes a command that must succeed without a complaint.
    pub(crate) fn ok(&mut self, input: &[u8], out_len: usize) -> Vec<u8> {
        self.host.ok(&mut self.function, input, out_len)
    }

    /// Executes a command that must fail and break only this rule. Returns the command's status.
    pub(crate) fn refused(&mut self, input: &[u8], out_len: usize, rule: Rule) -> u8 {
        let output = self.command(input, out_len);
        assert_eq!(self.rules(), [rule]);
        let status = command_out::STATUS.get32(&output) as u8;
        assert_ne!(status, 0);
        status
    }

    /// Returns the rules broken since the last call, in order.
    pub(crate) fn rules(&mut self) -> Vec<Rule> {
        self.function.take_complaints().iter().map(|complaint| complaint.rule).collect()
    }

    /// Writes `bytes` to BAR 0.
    pub(crate) fn store(&mut self, offset: u64, bytes: &[u8]) {
        self.function.bar_write(BAR0, offset, bytes, self.host.now);
    }

    /// Reads a register of BAR 0.
    pub(crate) fn load(&mut self, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        self.function.bar_read(BAR0, offset, &mut bytes, self.host.now);
        u32::from_be_bytes(bytes)
    }

    /// Returns the next event from the queue for all events except completions; `None` if there is
    /// none.
    pub(crate) fn event(&mut self) -> Option<[u8; 64]> {
        self.host.events.as_mut()?.next(&self.host.bus)
    }

    /// Returns the next event from the queue for completions; `None` if there is none.
    pub(crate) fn completion_event(&mut self) -> Option<[u8; 64]> {
        self.host.completions.as_mut()?.next(&self.host.bus)
    }

    /// Reports the consumer index of an event queue and arms it.
    pub(crate) fn arm(&mut self, queue: &EventQueue) {
        self.host.arm(&mut self.function, queue);
    }
}

impl Host {
    /// Returns a host with zeroed memory.
    pub(crate) fn new() -> Self {
        Self {
            bus: PlainBus::new(MEMORY),
            now: Time(1_000_000),
            uar: 0,
            events: None,
            completions: None,
            // Address 0 is not used, because it counts as invalid.
            next_page: PAGE,
            queue: 0,
            token: 0,
        }
    }

    /// Allocates zeroed pages. Returns the address of the first.
    pub(crate) fn alloc(&mut self, pages: u64) -> u64 {
        let start = self.next_page;
        self.next_page += pages * PAGE;
        assert!(self.next_page <= MEMORY as u64, "out of memory");
        start
    }

    /// Boots a function as a driver does: command queue, pages, INIT_HCA, a UAR page, armed event
    /// queues.
    pub(crate) fn boot(&mut self, function: &mut Function<PlainBus>) {
        self.set_queue(function);
        self.ok(function, &input(0x104, 0x10), 8);
        self.ok(function, &set(input(0x10b, 0x10), 0x08, 1), 8);
        for when in [1, 2] {
            self.give_pages(function, when);
        }
        self.ok(function, &input(0x102, 0x20), 8);
        self.uar = alloc_uar_out::UAR.get32(&self.ok(function, &input(0x802, 0x10), 0x10));
        let all_but_commands = !(1 << 0x0a);
        let events = self.create_eq(function, LOG_EQ, 0, all_but_commands);
        let completions = self.create_eq(function, LOG_EQ, 1, 0);
        self.arm(function, &events);
        self.arm(function, &completions);
        self.events = Some(events);
        self.completions = Some(completions);
        self.bus.take_raised();
    }

    /// Gives the function the pages that it requests, at boot (1) or for INIT_HCA (2).
    pub(crate) fn give_pages(&mut self, function: &mut Function<PlainBus>, when: u32) {
        let wanted =
            query_pages_out::NUM_PAGES.get32(&self.ok(function, &set(input(0x107, 0x10), 0x04, when), 0x10));
        let first = self.alloc(wanted.into());
        let mut give = set(set(input(0x108, 0x10), 0x04, 1), 0x0c, wanted);
        give.resize(manage_pages_in::PAS + wanted as usize * 8, 0);
        for place in 0..wanted as usize {
            let page = first + place as u64 * PAGE;
            put(&mut give, manage_pages_in::PAS + place * 8, &page.to_be_bytes());
        }
        self.ok(function, &give, 0x10);
    }

    /// Creates an event queue in contiguous pages.
    pub(crate) fn create_eq(
        &mut self,
        function: &mut Function<PlainBus>,
        log_size: u32,
        vector: u32,
        events: u64,
    ) -> EventQueue {
        let (request, buffer) = self.eq_request(log_size, vector, events);
        let eqn = create_eq_out::EQ_NUMBER.get32(&self.ok(function, &request, 0x10));
        EventQueue { eqn, buffer, log_size, consumer: 0 }
    }

    /// Returns a CREATE_EQ input, together with the address of the queue's buffer.
    pub(crate) fn eq_request(&mut self, log_size: u32, vector: u32, events: u64) -> (Vec<u8>, u64) {
        let bytes = 64u64 << log_size;
        let pages = bytes.div_ceil(PAGE);
        let buffer = self.alloc(pages);
        for entry in 0..1u64 << log_size {
            self.bus.write(buffer + entry * 64 + 63, &[1]).unwrap();
        }
        let mut request = input(0x301, create_eq_in::SIZE);
        let context = create_eq_in::EQ_CONTEXT_ENTRY.bytes_mut(&mut request);
        eqc::LOG_EQ_SIZE.set(context, log_size);
        eqc::UAR_PAGE.set(context, self.uar);
        eqc::INTR.set(context, vector);
        put(&mut request, create_eq_in::EVENT_BITMASK.offset, &events.to_be_bytes());
        request.extend(self.page_list(buffer, pages));
        (request, buffer)
    }

    /// Returns the page list of contiguous pages.
    pub(crate) fn page_list(&self, first: u64, pages: u64) -> Vec<u8> {
        (0..pages).flat_map(|page| (first + page * PAGE).to_be_bytes()).collect()
    }

    /// Reports the consumer index of an event queue and arms it.
    pub(crate) fn arm(&mut self, function: &mut Function<PlainBus>, queue: &EventQueue) {
        let value = queue.eqn << 24 | queue.consumer & 0x00ff_ffff;
        let offset = u64::from(self.uar) * UAR_SIZE + EQ_ARM;
        function.bar_write(BAR0, offset, &value.to_be_bytes(), self.now);
    }

    /// Sets the address of the command queue in the initialisation segment.
    pub(crate) fn set_queue(&mut self, function: &mut Function<PlainBus>) {
        self.queue = self.alloc(1);
        let (high, low) = ((self.queue >> 32) as u32, self.queue as u32);
        let (first, second) =
            (initial_seg::CMDQ_PHY_ADDR_63_32.dword, initial_seg::CMDQ_PHY_ADDR_31_12.dword);
        function.bar_write(BAR0, first as u64, &high.to_be_bytes(), self.now);
        function.bar_write(BAR0, second as u64, &low.to_be_bytes(), self.now);
    }

    /// Executes a command that must succeed without a complaint.
    pub(crate) fn ok(&mut self, function: &mut Function<PlainBus>, input: &[u8], out_len: usize) -> Vec<u8> {
        let output = self.command(function, input, out_len);
        assert_eq!(function.take_complaints(), []);
        assert_eq!(command_out::STATUS.get(&output), 0, "opcode {:#x}", command_in::OPCODE.get(input));
        output
    }

    /// Executes a command in the first entry of the command queue. Returns the command's output,
    /// whatever its status.
    pub(crate) fn command(
        &mut self,
        function: &mut Function<PlainBus>,
        input: &[u8],
        out_len: usize,
    ) -> Vec<u8> {
        let entry = self.entry(input, out_len);
        let done = self.submit(function, 0, &entry);
        assert_eq!(command_entry::STATUS.get(&done), 0, "delivery");
        self.output(&done)
    }

    /// Returns a command entry that is ready for the device. Writes its mailboxes to memory.
    pub(crate) fn entry(&mut self, input: &[u8], out_len: usize) -> [u8; command_entry::SIZE] {
        self.token = self.token.wrapping_add(1).max(1);
        let mut entry = [0; command_entry::SIZE];
        command_entry::TYPE.set(&mut entry, 7u32);
        command_entry::INPUT_LENGTH.set(&mut entry, input.len() as u32);
        command_entry::OUTPUT_LENGTH.set(&mut entry, out_len as u32);
        command_entry::TOKEN.set(&mut entry, self.token);
        command_entry::OWNER.set(&mut entry, 1u32);
        let (inline, rest) = input.split_at(input.len().min(16));
        put(&mut entry, command_entry::INPUT_INLINE.offset, inline);
        let boxes = self.mailboxes(rest);
        command_entry::INPUT_MAILBOX.set(&mut entry, boxes);
        let boxes = self.mailboxes(&vec![0; out_len.saturating_sub(16)]);
        command_entry::OUTPUT_MAILBOX.set(&mut entry, boxes);
        entry
    }

    /// Writes a chain of mailboxes that contain these bytes and the current token. Returns the
    /// chain's address, or 0 if `bytes` is empty.
    fn mailboxes(&mut self, bytes: &[u8]) -> u64 {
        let chunks: Vec<&[u8]> = bytes.chunks(mailbox::DATA.len).collect();
        let first = if chunks.is_empty() { 0 } else { self.alloc(chunks.len() as u64) };
        for (place, chunk) in chunks.iter().enumerate() {
            let address = first + place as u64 * PAGE;
            let last = place + 1 == chunks.len();
            let mut bytes = [0; mailbox::SIZE];
            put(&mut bytes, 0, chunk);
            mailbox::NEXT.set(&mut bytes, if last { 0 } else { address + PAGE });
            mailbox::BLOCK_NUMBER.set(&mut bytes, place as u32);
            mailbox::TOKEN.set(&mut bytes, self.token);
            self.bus.write(address, &bytes).unwrap();
        }
        first
    }

    /// Passes a command entry to the device and rings the command doorbell. Returns the entry as
    /// the device leaves it. The mailboxes stay allocated.
    pub(crate) fn submit(
        &mut self,
        function: &mut Function<PlainBus>,
        slot: u32,
        entry: &[u8; command_entry::SIZE],
    ) -> [u8; command_entry::SIZE] {
        let address = self.queue + u64::from(slot) * command_entry::SIZE as u64;
        self.bus.write(address, entry).unwrap();
        let doorbell = initial_seg::COMMAND_DOORBELL_VECTOR.dword as u64;
        function.bar_write(BAR0, doorbell, &(1u32 << slot).to_be_bytes(), self.now);
        let mut done = [0; command_entry::SIZE];
        self.bus.read(address, &mut done).unwrap();
        done
    }

    /// Returns the output that a completed command entry refers to.
    pub(crate) fn output(&mut self, entry: &[u8; command_entry::SIZE]) -> Vec<u8> {
        let len = command_entry::OUTPUT_LENGTH.get(entry) as usize;
        let mut output = command_entry::OUTPUT_INLINE.bytes(entry).to_vec();
        let mut next = command_entry::OUTPUT_MAILBOX.get(entry);
        while output.len() < len {
            let mut bytes = [0; mailbox::SIZE];
            self.bus.read(next, &mut bytes).unwrap();
            output.extend_from_slice(mailbox::DATA.bytes(&bytes));
            next = mailbox::NEXT.get(&bytes);
        }
        output.truncate(len);
        output
    }
}

/// Returns `input` with these bits set in the dword at `offset`.
pub(crate) fn set(mut input: Vec<u8>, offset: usize, bits: u32) -> Vec<u8> {
    let value = dword(&input, offset) | bits;
    put(&mut input, offset, &value.to_be_bytes());
    input
}

impl EventQueue {
    /// Returns the next event if the device has written one.
    pub(crate) fn next(&mut self, bus: &PlainBus) -> Option<[u8; 64]> {
        let index = self.consumer & ((1 << self.log_size) - 1);
        let mut entry = [0; 64];
        bus.read(self.buffer + u64::from(index) * 64, &mut entry).unwrap();
        let turn = self.consumer >> self.log_size & 1;
        if eqe::eqe::OWNER.get32(&entry) != turn {
            return None;
        }
        self.consumer += 1;
        Some(entry)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.function.take_complaints(), [], "complaints that the test did not look at");
        }
    }
}
