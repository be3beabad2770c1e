//! Tests of the data path on plain memory, from work requests to completions.
//!
//! [`Bed`] consists of one or two connected functions and their driver's memory. It posts both
//! valid and invalid requests.

mod checks;
mod errors;
mod fences;
mod macs;
mod matching;
mod memic;
mod paging;
mod posted;
mod receives;
mod rules;
mod sends;
mod two;
mod umr;
mod windows;
mod wraps;

use roce::engine::{State, Time};

use crate::bus::{Bus, PlainBus};
use crate::complaint::Rule;
use crate::config::{BAR0, Config, UAR_SIZE};
use crate::fabric::Fabric;
use crate::function::Function;
use crate::layout::cq::{cqc, create_cq_in, create_cq_out};
use crate::layout::cqe::{cqe, error_cqe};
use crate::layout::eqe::eqe;
use crate::layout::iseg::command_out;
use crate::layout::mkey::{alloc_pd_out, create_mkey_in, create_mkey_out, mkc};
use crate::layout::qp::{ads, create_qp_in, create_qp_out, qpc, rst2init_qp_in};
use crate::layout::wqe::{atomic, ctrl, data, datagram, inline, remote_address};
use crate::layout::{Field, dword};
use crate::pci::uar::{BLUE_FLAME, HALF_SIZE};
use crate::port::PortKind;
use crate::qp::request::opcode;
use crate::testing::{Host, PAGE, input};
use crate::trace::Trace;

/// The functions under test and the memory of their drivers.
pub(crate) struct Bed {
    pub(crate) fabric: Fabric<PlainBus>,
    pub(crate) hosts: Vec<Host>,
    pub(crate) pds: Vec<u32>,
    pub(crate) now: Time,
}

/// A completion queue as its driver sees it.
#[derive(Clone, Debug)]
pub(crate) struct Cq {
    pub(crate) function: usize,
    pub(crate) cqn: u32,
    pub(crate) buffer: u64,
    pub(crate) log_size: u32,
    pub(crate) entry_size: u64,
    pub(crate) record: u64,
    pub(crate) consumer: u32,
    pub(crate) sequence: u32,
}

/// A queue pair as its driver sees it.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    pub(crate) function: usize,
    pub(crate) qpn: u32,
    pub(crate) buffer: u64,
    pub(crate) record: u64,
    pub(crate) recv_slots: u32,
    pub(crate) stride: u64,
    pub(crate) blocks: u32,
    pub(crate) head: u16,
    pub(crate) recv_head: u16,
    pub(crate) half: u64,
    /// The start of the last work request, whose first 8 bytes are the doorbell.
    pub(crate) last: Vec<u8>,
    /// Whether [`Bed::begin`] sets a small fence because the last work request was a UMR.
    pub(crate) fences: bool,
}

/// A region of registered memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub(crate) key: u32,
    /// The start address in work requests.
    pub(crate) va: u64,
    /// The guest-physical start address.
    pub(crate) address: u64,
}

/// The parameters for creating a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) service: u32,
    pub(crate) log_sq: u32,
    pub(crate) log_rq: u32,
    pub(crate) log_stride: u32,
    pub(crate) more: &'static [(Field, u32)],
}

pub(crate) const RC: u32 = 0;
pub(crate) const UC: u32 = 1;
pub(crate) const UD: u32 = 2;
pub(crate) const XRC: u32 = 3;
pub(crate) const REG_UMR: u32 = 0xc;

pub(crate) const USER_INDEX: u32 = 0x5a_0000;
pub(crate) const QKEY: u32 = 0x1234;

impl Default for Shape {
    fn default() -> Self {
        Self { service: RC, log_sq: 4, log_rq: 2, log_stride: 6, more: &[] }
    }
}

/// Returns the opcode and the position of the work request in a completion.
pub(crate) fn brief(entry: &[u8; 64]) -> (u32, u32) {
    (cqe::OPCODE.get32(entry), cqe::WQE_COUNTER.get32(entry))
}

/// Returns the opcode and the syndrome in an error completion.
pub(crate) fn error(entry: &[u8; 64]) -> (u32, u32) {
    (error_cqe::OPCODE.get32(entry), error_cqe::SYNDROME.get32(entry))
}

pub(crate) const SUCCESS: u32 = 0;
pub(crate) const SEND_ERROR: u32 = 13;
pub(crate) const RECV_ERROR: u32 = 14;

impl Bed {
    /// Returns a test bed with booted functions.
    pub(crate) fn new(port: PortKind, functions: usize) -> Self {
        Self::with(port, functions, false)
    }

    pub(crate) fn with(port: PortKind, functions: usize, scatter_to_cqe: bool) -> Self {
        let mut hosts = Vec::new();
        let mut up = Vec::new();
        for index in 0..functions {
            let mut host = Host::new();
            let config = Config { index, port, scatter_to_cqe };
            let mut function = Function::new(config, host.bus.clone(), Trace::off());
            host.boot(&mut function);
            hosts.push(host);
            up.push(function);
        }
        let now = Time(2_000_000);
        let mut bed = Self { fabric: Fabric::new(up), hosts, pds: Vec::new(), now };
        for function in 0..functions {
            let pd = bed.alloc_pd(function);
            bed.pds.push(pd);
        }
        bed
    }

    /// Returns a test bed with one function that has an InfiniBand port.
    pub(crate) fn ib() -> Self {
        Self::new(PortKind::Ib, 1)
    }

    pub(crate) fn alloc_pd(&mut self, function: usize) -> u32 {
        alloc_pd_out::PD.get32(&self.ok(function, &input(0x800, 16)))
    }

    pub(crate) fn bus(&self, function: usize) -> &PlainBus {
        &self.hosts[function].bus
    }

    /// Executes a command that must succeed. Returns its output.
    #[track_caller]
    pub(crate) fn ok(&mut self, function: usize, input: &[u8]) -> Vec<u8> {
        let output = self.command(function, input);
        let complaints = self.fabric.take_complaints();
        assert_eq!(
            (command_out::STATUS.get(&output), complaints),
            (0, vec![]),
            "{:#x}",
            dword(input, 0) >> 16
        );
        output
    }

    pub(crate) fn command(&mut self, function: usize, input: &[u8]) -> Vec<u8> {
        self.fabric.functions[function].core.now = self.now;
        let output = self.fabric.functions[function].dispatch(input, 0x400);
        self.fabric.pump();
        output
    }

    pub(crate) fn store(&mut self, function: usize, uar: u32, register: u64, bytes: &[u8]) {
        let offset = u64::from(uar) * UAR_SIZE + register;
        self.fabric.bar_write(function, BAR0, offset, bytes, self.now);
    }

    /// Advances time, stopping at each deadline on the way.
    pub(crate) fn pass(&mut self, nanoseconds: u64) {
        let end = self.now + nanoseconds;
        for _ in 0..10_000 {
            let due = self.fabric.deadline().filter(|due| *due <= end);
            let Some(due) = due else { break };
            self.now = self.now.max(due);
            self.fabric.expire(self.now);
        }
        self.now = end;
        self.fabric.expire(end);
    }

    /// Returns the rules broken since the last call.
    pub(crate) fn rules(&mut self) -> Vec<Rule> {
        self.fabric.take_complaints().iter().map(|complaint| complaint.rule).collect()
    }

    pub(crate) fn peek<const N: usize>(&self, function: usize, address: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.bus(function).read(address, &mut bytes).unwrap();
        bytes
    }

    pub(crate) fn poke(&self, function: usize, address: u64, bytes: &[u8]) {
        self.bus(function).write(address, bytes).unwrap();
    }

    /// Allocates a buffer. Returns its address and its page list.
    fn pages(&mut self, function: usize, bytes: u64) -> (u64, Vec<u8>) {
        let count = bytes.div_ceil(PAGE).max(1);
        let first = self.hosts[function].alloc(count);
        let list = (0..count).flat_map(|page| (first + page * PAGE).to_be_bytes()).collect();
        (first, list)
    }

    pub(crate) fn cq(&mut self, function: usize, log_size: u32, entry_size: u64) -> Cq {
        self.cq_with(function, log_size, entry_size, &[])
    }

    /// Creates a completion queue with these fields set in its context.
    pub(crate) fn cq_with(
        &mut self,
        function: usize,
        log_size: u32,
        entry_size: u64,
        more: &[(Field, u32)],
    ) -> Cq {
        let (buffer, list) = self.pages(function, entry_size << log_size);
        for n in 0..1 << log_size {
            self.poke(function, buffer + (n + 1) * entry_size - 1, &[0xf0]);
        }
        let record = self.hosts[function].alloc(1);
        let eqn = self.hosts[function].completions.as_ref().unwrap().eqn;
        let mut input = input(0x400, create_cq_in::PAS);
        let context = create_cq_in::CQ_CONTEXT.bytes_mut(&mut input);
        cqc::CQE_SZ.set(context, u32::from(entry_size == 128));
        cqc::LOG_CQ_SIZE.set(context, log_size);
        cqc::UAR_PAGE.set(context, self.hosts[function].uar);
        cqc::C_EQN_OR_APU_ELEMENT.set(context, eqn);
        cqc::DBR_ADDR.set(context, record);
        for (field, value) in more {
            field.set(context, *value);
        }
        input.extend(list);
        let cqn = create_cq_out::CQN.get32(&self.ok(function, &input));
        Cq { function, cqn, buffer, log_size, entry_size, record, consumer: 0, sequence: 0 }
    }

    /// Consumes and returns the next completion.
    pub(crate) fn poll(&mut self, cq: &mut Cq) -> Option<[u8; 64]> {
        let entry = self.glance(cq)?;
        cq.consumer = (cq.consumer + 1) & 0xff_ffff;
        self.poke(cq.function, cq.record, &cq.consumer.to_be_bytes());
        Some(entry)
    }

    /// Returns the next completion but leaves it in the queue.
    pub(crate) fn glance(&mut self, cq: &Cq) -> Option<[u8; 64]> {
        let slot = u64::from(cq.consumer) & ((1 << cq.log_size) - 1);
        let entry: [u8; 64] = self.peek(cq.function, cq.buffer + (slot + 1) * cq.entry_size - 64);
        let turn = cq.consumer >> cq.log_size & 1;
        (cqe::OPCODE.get(&entry) != 15 && cqe::OWNER.get32(&entry) == turn).then_some(entry)
    }

    /// Consumes all completions and returns each as [`brief`] does.
    pub(crate) fn drain(&mut self, cq: &mut Cq) -> Vec<(u32, u32)> {
        std::iter::from_fn(|| self.poll(cq)).map(|entry| brief(&entry)).collect()
    }

    /// Arms a completion queue for the next completion, or for the next solicited one.
    pub(crate) fn arm(&mut self, cq: &Cq, solicited: bool) {
        let word = cq.sequence << 28 | u32::from(solicited) << 24 | cq.consumer;
        self.poke(cq.function, cq.record + 4, &word.to_be_bytes());
        let value = u64::from(word) << 32 | u64::from(cq.cqn);
        let uar = self.hosts[cq.function].uar;
        self.store(cq.function, uar, 0x20, &value.to_be_bytes());
    }

    /// Returns the number of completion events raised since the last call.
    pub(crate) fn completion_events(&mut self, function: usize) -> usize {
        let host = &mut self.hosts[function];
        let bus = host.bus.clone();
        let queue = host.completions.as_mut().unwrap();
        std::iter::from_fn(|| queue.next(&bus)).count()
    }

    /// Returns the types of the events raised since the last call, except completion events.
    pub(crate) fn events(&mut self, function: usize) -> Vec<u32> {
        let host = &mut self.hosts[function];
        let bus = host.bus.clone();
        let queue = host.events.as_mut().unwrap();
        std::iter::from_fn(|| queue.next(&bus)).map(|entry| eqe::EVENT_TYPE.get32(&entry)).collect()
    }

    pub(crate) fn pair(&mut self, cq: &Cq, shape: &Shape) -> Pair {
        self.pair_of(cq, self.pds[cq.function], shape)
    }

    pub(crate) fn pair_of(&mut self, cq: &Cq, pd: u32, shape: &Shape) -> Pair {
        let function = cq.function;
        let has_rq = !shape.more.iter().any(|(field, value)| *field == qpc::RQ_TYPE && *value != 0);
        let recv_bytes = if has_rq { 1u64 << (shape.log_rq + shape.log_stride) } else { 0 };
        let has_sq = !shape.more.contains(&(qpc::NO_SQ, 1));
        let (buffer, mut list) = self.pages(function, recv_bytes + (64 << shape.log_sq));
        if !has_rq && !has_sq {
            list.clear();
        }
        let record = self.hosts[function].alloc(1);
        let mut input = input(0x500, create_qp_in::PAS);
        let context = create_qp_in::QPC.bytes_mut(&mut input);
        for (field, value) in [
            (qpc::ST, shape.service),
            (qpc::PM_STATE, 3),
            (qpc::PD, pd),
            (qpc::LOG_SQ_SIZE, shape.log_sq),
            (qpc::UAR_PAGE, self.hosts[function].uar),
            (qpc::USER_INDEX, USER_INDEX),
            (qpc::CQN_SND, cq.cqn),
            (qpc::CQN_RCV, cq.cqn),
        ] {
            field.set(context, value);
        }
        if has_rq {
            qpc::LOG_RQ_SIZE.set(context, shape.log_rq);
            qpc::LOG_RQ_STRIDE.set(context, shape.log_stride - 4);
        }
        for (field, value) in shape.more {
            field.set(context, *value);
        }
        qpc::DBR_ADDR.set(context, record);
        input.extend(list);
        let qpn = create_qp_out::QPN.get32(&self.ok(function, &input));
        Pair {
            function,
            qpn,
            buffer,
            record,
            recv_slots: if has_rq { 1 << shape.log_rq } else { 0 },
            stride: 1 << shape.log_stride,
            blocks: 1 << shape.log_sq,
            head: 0,
            recv_head: 0,
            half: 0,
            last: Vec::new(),
            fences: false,
        }
    }

    /// Executes the transition command `opcode` with the given context.
    #[track_caller]
    pub(crate) fn modify(&mut self, pair: &Pair, opcode: u16, context: &[u8]) {
        let mut input = input(opcode, rst2init_qp_in::SIZE);
        rst2init_qp_in::QPN.set(&mut input, pair.qpn);
        rst2init_qp_in::QPC.bytes_mut(&mut input).copy_from_slice(context);
        self.ok(pair.function, &input);
    }

    pub(crate) fn init(&mut self, pair: &Pair, service: u32) {
        self.modify(pair, 0x502, &Self::init_context(service));
    }

    /// Returns the context for the transition from RESET to INIT.
    pub(crate) fn init_context(service: u32) -> [u8; qpc::SIZE] {
        let mut context = [0; qpc::SIZE];
        qpc::PM_STATE.set(&mut context, 3u32);
        if service == UD {
            qpc::Q_KEY.set(&mut context, QKEY);
        } else if service != REG_UMR {
            for field in [qpc::RRE, qpc::RWE, qpc::RAE] {
                field.set(&mut context, u32::from(service != UC || field == qpc::RWE));
            }
            qpc::ATOMIC_MODE.set(&mut context, if service == UC { 0 } else { 1u32 });
        }
        ads::VHCA_PORT_NUM.set(qpc::PRIMARY_ADDRESS_PATH.bytes_mut(&mut context), 1u32);
        context
    }

    /// Fills in the path to the port of function `to`.
    fn path(&self, to: usize, path: &mut [u8]) {
        let port = &self.fabric.functions[to].core.port;
        ads::VHCA_PORT_NUM.set(path, 1u32);
        match port.kind {
            PortKind::Ib => ads::RLID.set(path, port.lid()),
            PortKind::Roce => {
                ads::RGID_RIP.bytes_mut(path).copy_from_slice(&port.gid(0).unwrap());
                ads::HOP_LIMIT.set(path, 64u32);
                ads::UDP_SPORT.set(path, 0xc000u32);
                let [a, b, c, d, e, f] = port.mac();
                ads::RMAC_47_32.set(path, u16::from_be_bytes([a, b]));
                ads::RMAC_31_0.set(path, u32::from_be_bytes([c, d, e, f]));
            }
        }
    }

    /// Moves a queue pair from INIT to RTS, connected to the queue pair `to`.
    pub(crate) fn connect(&mut self, pair: &Pair, service: u32, to: &Pair) {
        let mut context = [0; qpc::SIZE];
        qpc::MTU.set(&mut context, 3u32);
        qpc::LOG_MSG_MAX.set(&mut context, 30u32);
        if service != UD {
            self.path(to.function, qpc::PRIMARY_ADDRESS_PATH.bytes_mut(&mut context));
            qpc::REMOTE_QPN.set(&mut context, to.qpn);
            qpc::NEXT_RCV_PSN.set(&mut context, 7u32);
        }
        if matches!(service, RC | XRC) {
            qpc::LOG_RRA_MAX.set(&mut context, 2u32);
            qpc::MIN_RNR_NAK.set(&mut context, 12u32);
        }
        self.modify(pair, 0x503, &context);
        let mut context = [0; qpc::SIZE];
        qpc::NEXT_SEND_PSN.set(&mut context, 7u32);
        if matches!(service, RC | XRC) {
            qpc::LOG_SRA_MAX.set(&mut context, 2u32);
            qpc::RETRY_COUNT.set(&mut context, 7u32);
            qpc::RNR_RETRY.set(&mut context, 6u32);
            ads::ACK_TIMEOUT.set(qpc::PRIMARY_ADDRESS_PATH.bytes_mut(&mut context), 14u32);
        }
        self.modify(pair, 0x504, &context);
    }

    /// Returns two connected queue pairs. The second one belongs to the last function.
    pub(crate) fn connected(&mut self, cqs: [&Cq; 2], shape: &Shape) -> (Pair, Pair) {
        let one = self.pair(cqs[0], shape);
        let two = self.pair(cqs[1], shape);
        self.init(&one, shape.service);
        self.init(&two, shape.service);
        self.connect(&one, shape.service, &two);
        self.connect(&two, shape.service, &one);
        (one, two)
    }

    /// Executes a command whose only parameter is the queue pair number: the transition to the
    /// error state (0x507) or to RESET (0x50a), or the destruction (0x501).
    #[track_caller]
    pub(crate) fn name(&mut self, pair: &Pair, opcode: u16) {
        let mut input = input(opcode, 16);
        rst2init_qp_in::QPN.set(&mut input, pair.qpn);
        self.ok(pair.function, &input);
        self.clear_record(pair, opcode);
    }

    /// Clears the doorbell record if `opcode` is the transition to RESET.
    fn clear_record(&self, pair: &Pair, opcode: u16) {
        if opcode == 0x50a {
            self.poke(pair.function, pair.record, &[0; 8]);
        }
    }

    /// Same as [`name`](Self::name), but checks neither the status nor the complaints.
    pub(crate) fn name_quietly(&mut self, pair: &Pair, opcode: u16) {
        let mut input = input(opcode, 16);
        rst2init_qp_in::QPN.set(&mut input, pair.qpn);
        self.command(pair.function, &input);
        self.clear_record(pair, opcode);
    }

    pub(crate) fn state(&self, pair: &Pair) -> State {
        self.fabric.functions[pair.function].state(pair.qpn)
    }

    /// Returns registered memory with all access rights.
    pub(crate) fn memory(&mut self, function: usize, pages: u64) -> Memory {
        self.memory_with(function, pages, &[mkc::LR, mkc::LW, mkc::RR, mkc::RW, mkc::A])
    }

    pub(crate) fn memory_with(&mut self, function: usize, pages: u64, rights: &[Field]) -> Memory {
        let address = self.hosts[function].alloc(pages);
        let va = 0x7f00_0000_0000 + address;
        let mut input = input(0x200, create_mkey_in::KLM_PAS_MTT);
        let octwords = pages.div_ceil(2) as u32;
        create_mkey_in::TRANSLATIONS_OCTWORD_ACTUAL_SIZE.set(&mut input, octwords);
        let context = create_mkey_in::MEMORY_KEY_MKEY_ENTRY.bytes_mut(&mut input);
        for right in rights {
            right.set(context, 1u32);
        }
        mkc::ACCESS_MODE_1_0.set(context, 1u32);
        mkc::UMR_EN.set(context, 1u32);
        mkc::QPN.set(context, 0xff_ffffu32);
        mkc::MKEY_7_0.set(context, 0x42u32);
        mkc::PD.set(context, self.pds[function]);
        mkc::START_ADDR.set(context, va);
        mkc::LEN.set(context, pages * PAGE);
        mkc::TRANSLATIONS_OCTWORD_SIZE.set(context, octwords);
        mkc::LOG_PAGE_SIZE.set(context, 12u32);
        for page in 0..u64::from(octwords) * 2 {
            let entry = if page < pages { address + page * PAGE } else { 0 };
            input.extend(entry.to_be_bytes());
        }
        let index = create_mkey_out::MKEY_INDEX.get32(&self.ok(function, &input));
        Memory { key: index << 8 | 0x42, va, address }
    }

    /// Places a work request at the current position of the send queue, even if its index is wrong.
    /// The doorbell is not rung.
    pub(crate) fn put(&mut self, pair: &mut Pair, wqe: &[u8]) {
        let begin = u64::from(pair.recv_slots) * pair.stride;
        let ring = u64::from(pair.blocks) * 64;
        for (n, byte) in wqe.chunks(16).enumerate() {
            let at = (u64::from(pair.head) * 64 + n as u64 * 16) % ring;
            self.poke(pair.function, pair.buffer + begin + at, byte);
        }
        pair.last = wqe.to_vec();
        pair.fences = ctrl::OPCODE.get32(wqe) == opcode::UMR.into();
        pair.head = pair.head.wrapping_add(wqe.len().div_ceil(64) as u16);
    }

    /// Writes the send queue's head to the doorbell record.
    pub(crate) fn update_record(&mut self, pair: &Pair) {
        self.poke(pair.function, pair.record + 4, &u32::from(pair.head).to_be_bytes());
    }

    /// Returns the offset of the register half to use for the next doorbell.
    pub(crate) fn register(&self, pair: &Pair) -> u64 {
        BLUE_FLAME + pair.half * HALF_SIZE
    }

    /// Rings the doorbell for the last work request placed in the queue.
    pub(crate) fn ring(&mut self, pair: &mut Pair) {
        self.update_record(pair);
        let (uar, register) = (self.hosts[pair.function].uar, self.register(pair));
        let doorbell = pair.last[..8].to_vec();
        self.store(pair.function, uar, register, &doorbell);
        pair.half ^= 1;
    }

    /// Places a work request in the queue and rings the doorbell.
    pub(crate) fn post(&mut self, pair: &mut Pair, wqe: &[u8]) {
        self.put(pair, wqe);
        self.ring(pair);
    }

    /// Starts building a signalled work request with the given opcode.
    pub(crate) fn begin(&self, pair: &Pair, opcode: u8) -> Wqe {
        let mut bytes = vec![0; 16];
        ctrl::WQE_INDEX.set(&mut bytes, pair.head);
        ctrl::OPCODE.set(&mut bytes, opcode);
        ctrl::QPN.set(&mut bytes, pair.qpn);
        ctrl::CE.set(&mut bytes, 2u32);
        ctrl::FM.set(&mut bytes, u32::from(pair.fences));
        Wqe(bytes)
    }

    /// Returns a work request that is a NOP.
    pub(crate) fn nop(&self, pair: &Pair) -> Vec<u8> {
        self.begin(pair, opcode::NOP).done()
    }

    /// Returns a work request that sends `bytes` inline.
    pub(crate) fn send(&self, pair: &Pair, bytes: &[u8]) -> Vec<u8> {
        self.begin(pair, opcode::SEND).inline(bytes).done()
    }

    /// Posts a receive with these elements.
    pub(crate) fn post_recv(&mut self, pair: &mut Pair, sges: &[(u64, u32, u32)]) {
        let slot = u64::from(pair.recv_head) & u64::from(pair.recv_slots - 1);
        let at = pair.buffer + slot * pair.stride;
        self.poke(pair.function, at, &list(sges, pair.stride as usize / 16));
        pair.recv_head = pair.recv_head.wrapping_add(1);
        self.poke(pair.function, pair.record, &u32::from(pair.recv_head).to_be_bytes());
    }

    /// Returns an address vector for datagrams to the queue pair `to`.
    pub(crate) fn vector(&self, to: &Pair) -> Vec<u8> {
        let mut vector = vec![0; datagram::SIZE];
        datagram::Q_KEY.set(&mut vector, QKEY);
        datagram::EXTENDED.set(&mut vector, 1u32);
        datagram::DQPN.set(&mut vector, to.qpn);
        let port = &self.fabric.functions[to.function].core.port;
        match port.kind {
            PortKind::Ib => datagram::RLID_UDP_SPORT.set(&mut vector, port.lid()),
            PortKind::Roce => {
                datagram::GRH.set(&mut vector, 1u32);
                datagram::HOP_LIMIT.set(&mut vector, 64u32);
                datagram::RLID_UDP_SPORT.set(&mut vector, 0xc000u32);
                datagram::RMAC.bytes_mut(&mut vector).copy_from_slice(&port.mac());
                datagram::RGID.bytes_mut(&mut vector).copy_from_slice(&port.gid(0).unwrap());
            }
        }
        vector
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert_eq!(self.fabric.take_complaints(), [], "complaints that the test did not look at");
        }
    }
}

/// Returns the bytes of a receive list. If there is space, the list ends with a terminator.
pub(crate) fn list(sges: &[(u64, u32, u32)], room: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (addr, length, key) in sges {
        bytes.extend(element(*addr, *length, *key));
    }
    if sges.len() < room {
        bytes.extend(element(0, 0, 0x100));
    }
    bytes
}

pub(crate) fn element(addr: u64, length: u32, key: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    data::BYTE_COUNT.set(&mut bytes, length);
    data::LKEY.set(&mut bytes, key);
    data::ADDRESS.set(&mut bytes, addr);
    bytes
}

/// A work request being built.
#[derive(Clone, Debug)]
pub(crate) struct Wqe(pub(crate) Vec<u8>);

impl Wqe {
    pub(crate) fn set(mut self, field: Field, value: u32) -> Self {
        field.set(&mut self.0, value);
        self
    }

    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn remote(self, va: u64, key: u32) -> Self {
        let mut segment = [0; remote_address::SIZE];
        remote_address::VA.set(&mut segment, va);
        remote_address::RKEY.set(&mut segment, key);
        self.raw(&segment)
    }

    pub(crate) fn operands(self, swap_add: u64, compare: u64) -> Self {
        let mut segment = [0; atomic::SIZE];
        atomic::SWAP_ADD.set(&mut segment, swap_add);
        atomic::COMPARE.set(&mut segment, compare);
        self.raw(&segment)
    }

    pub(crate) fn element(self, addr: u64, length: u32, key: u32) -> Self {
        self.raw(&element(addr, length, key))
    }

    pub(crate) fn inline(self, bytes: &[u8]) -> Self {
        let mut segment = vec![0; (inline::SIZE + bytes.len()).next_multiple_of(16)];
        inline::IS_INLINE.set(&mut segment, 1u32);
        inline::BYTE_COUNT.set(&mut segment, bytes.len() as u32);
        segment[inline::SIZE..inline::SIZE + bytes.len()].copy_from_slice(bytes);
        self.raw(&segment)
    }

    /// Sets the length of the work request and returns its bytes.
    pub(crate) fn done(mut self) -> Vec<u8> {
        let units = self.0.len().div_ceil(16) as u32;
        ctrl::DS.set(&mut self.0, units);
        self.0
    }
}
