//! [`Driver`]: a guest's driver. It boots functions and connects queue pairs, so that the fuzzer's
//! mistakes reach deep code.
//!
//! The driver makes no assumption about the model's responses, because earlier commands may be
//! arbitrary.

use connectx_model::bus::{Bus as _, PlainBus};
use connectx_model::fabric::Fabric;
use connectx_model::function::{Config, Function, UAR_SIZE};
use connectx_model::layout::cq::{cqc, create_cq_in};
use connectx_model::layout::eq::{create_eq_in, eqc};
use connectx_model::layout::iseg::{command_entry, command_in, initial_seg, mailbox};
use connectx_model::layout::mkey::{create_mkey_in, mkc};
use connectx_model::layout::qp::{ads, create_qp_in, qpc, rst2init_qp_in};
use connectx_model::layout::srq::{create_xrc_srq_in, xrc_srqc};
use connectx_model::layout::{dword, put};
use connectx_model::port::PortKind;
use connectx_model::trace::Trace;
use roce::engine::Time;

/// Size of the guest's memory, in bytes.
pub const MEMORY: u64 = 1 << 20;
const PAGE: u64 = 0x1000;
const COMMANDS: u64 = 0x1000;
const INPUT: u64 = 0x2_0000;
const OUTPUT: u64 = 0x4_0000;
const BOXES: u64 = 32;
const STEP: u64 = 0x400;
const EVENTS: u64 = 0x6_0000;
/// Address of the first queue. Each queue has a page.
const QUEUES: u64 = 0x8_0000;
const QUEUE_PAGES: u64 = 32;
/// Address of the first doorbell record. The records are 16 bytes apart.
const RECORDS: u64 = 0xc_0000;
/// Address of the data that work requests send and receive.
pub const DATA: u64 = 0xd_0000;

/// A queue pair that the driver has created.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    pub qpn: u32,
    pub function: usize,
    /// Address of the page with both queues: 1 KiB of receives, then 1 KiB of sends.
    pub buffer: u64,
    pub record: u64,
    pub head: u16,
    pub recv_head: u16,
    pub half: u64,
}

/// The functions and the guest that drives them.
pub struct Driver {
    pub fabric: Fabric<PlainBus>,
    pub bus: PlainBus,
    pub now: Time,
    pub port: PortKind,
    pub uars: [u32; 2],
    pub eqns: [u32; 2],
    pub pds: [u32; 2],
    pub keys: [u32; 2],
    pub cqns: Vec<u32>,
    pub pairs: Vec<Pair>,
    /// The values that earlier commands returned where an object number would be.
    pub handles: Vec<u32>,
    queues: u64,
    records: u64,
    token: u8,
}

impl Driver {
    /// Returns a driver whose functions are in the power-on state.
    pub fn new(port: PortKind, functions: usize) -> Self {
        let bus = PlainBus::new(MEMORY as usize);
        let made = (0..functions).map(|index| {
            Function::new(Config { index, port, scatter_to_cqe: true }, bus.clone(), Trace::off())
        });
        Self {
            fabric: Fabric::new(made.collect()),
            bus: bus.clone(),
            now: Time(1_000_000),
            port,
            uars: [0; 2],
            eqns: [0; 2],
            pds: [0; 2],
            keys: [0; 2],
            cqns: Vec::new(),
            pairs: Vec::new(),
            handles: Vec::new(),
            queues: 0,
            records: 0,
            token: 0,
        }
    }

    pub fn store(&mut self, function: usize, offset: u64, bytes: &[u8]) {
        self.fabric.bar_write(function, 0, offset, bytes, self.now);
    }

    pub fn poke(&self, address: u64, bytes: &[u8]) {
        // Writing outside memory fails, as it would for a guest.
        let _ = self.bus.write(address % MEMORY, bytes);
    }

    /// Returns the address of a page for a queue. Pages are reused in rotation.
    pub fn page(&mut self) -> u64 {
        self.queues += 1;
        QUEUES + self.queues % QUEUE_PAGES * PAGE
    }

    pub fn record(&mut self) -> u64 {
        self.records += 1;
        RECORDS + self.records % 0x400 * 16
    }

    /// Boots a function, including its event queues.
    pub fn boot(&mut self, function: usize) {
        let queue = COMMANDS + function as u64 * PAGE;
        self.store(function, initial_seg::CMDQ_PHY_ADDR_63_32.dword as u64, &[0; 4]);
        self.store(function, initial_seg::CMDQ_PHY_ADDR_31_12.dword as u64, &(queue as u32).to_be_bytes());
        self.command(function, &input(0x104, 0x10));
        self.command(function, &with(input(0x10b, 0x10), 8, 1));
        for when in [1, 2] {
            let wanted = dword(&self.command(function, &with(input(0x107, 0x10), 4, when)), 12).min(1024);
            let mut give = with(with(input(0x108, 0x10), 4, 1), 12, wanted);
            // The device does not access these pages, so they need not lie in memory.
            let first = MEMORY + (function as u64 * 2 + u64::from(when)) * 1024 * PAGE;
            give.extend((0..u64::from(wanted)).flat_map(|page| (first + page * PAGE).to_be_bytes()));
            self.command(function, &give);
        }
        self.command(function, &input(0x102, 0x20));
        let [uar, pd] = [0x802, 0x800].map(|opcode| self.made(function, &input(opcode, 0x10)));
        (self.uars[function], self.pds[function]) = (uar, pd);
        for (vector, events) in [(0, u64::MAX), (1, 0)] {
            let mut request = input(0x301, create_eq_in::SIZE);
            let context = create_eq_in::EQ_CONTEXT_ENTRY.bytes_mut(&mut request);
            eqc::LOG_EQ_SIZE.set(context, 6u32);
            eqc::UAR_PAGE.set(context, uar);
            eqc::INTR.set(context, vector as u32);
            put(&mut request, create_eq_in::EVENT_BITMASK.offset, &events.to_be_bytes());
            request.extend((EVENTS + (function as u64 * 2 + vector) * PAGE).to_be_bytes());
            self.eqns[function] = self.made(function, &request);
        }
        let mut request = input(0x200, create_mkey_in::KLM_PAS_MTT);
        let context = create_mkey_in::MEMORY_KEY_MKEY_ENTRY.bytes_mut(&mut request);
        for right in [mkc::LR, mkc::LW, mkc::RR, mkc::RW, mkc::A, mkc::LENGTH64] {
            right.set(context, 1u32);
        }
        mkc::QPN.set(context, 0xff_ffffu32);
        mkc::MKEY_7_0.set(context, 0x42u32);
        mkc::PD.set(context, pd);
        self.keys[function] = self.made(function, &request) << 8 | 0x42;
    }

    pub fn create_cq(&mut self, function: usize, log_size: u32) -> u32 {
        let (page, record) = (self.page(), self.record());
        let mut request = input(0x400, create_cq_in::PAS);
        let context = create_cq_in::CQ_CONTEXT.bytes_mut(&mut request);
        cqc::LOG_CQ_SIZE.set(context, log_size);
        cqc::UAR_PAGE.set(context, self.uars[function]);
        cqc::C_EQN_OR_APU_ELEMENT.set(context, self.eqns[function]);
        cqc::DBR_ADDR.set(context, record);
        request.extend(page.to_be_bytes());
        let cqn = self.made(function, &request);
        self.cqns.push(cqn);
        cqn
    }

    pub fn create_xrc_srq(&mut self, function: usize, cqn: u32) {
        let (page, record) = (self.page(), self.record());
        let mut request = input(0x705, create_xrc_srq_in::PAS);
        let context = create_xrc_srq_in::XRC_SRQ_CONTEXT_ENTRY.bytes_mut(&mut request);
        xrc_srqc::LOG_XRC_SRQ_SIZE.set(context, 4u32);
        xrc_srqc::LOG_RQ_STRIDE.set(context, 1u32);
        xrc_srqc::CQN.set(context, cqn);
        xrc_srqc::PD.set(context, self.pds[function]);
        xrc_srqc::DB_RECORD_ADDR_L.set(context, record >> 2);
        request.extend(page.to_be_bytes());
        self.made(function, &request);
    }

    /// Creates a queue pair in the RESET state, with 16 send blocks and 16 receives of 64 bytes
    /// each.
    pub fn create_qp(&mut self, function: usize, service: u32, cqn: u32, rq: (u32, u32)) -> Pair {
        let (buffer, record) = (self.page(), self.record());
        let mut request = input(0x500, create_qp_in::PAS);
        let context = create_qp_in::QPC.bytes_mut(&mut request);
        for (field, value) in [
            (qpc::ST, service),
            (qpc::PM_STATE, 3),
            (qpc::PD, self.pds[function]),
            (qpc::LOG_SQ_SIZE, 4),
            (qpc::UAR_PAGE, self.uars[function]),
            (qpc::CQN_SND, cqn),
            (qpc::CQN_RCV, cqn),
            (qpc::LOG_RQ_SIZE, 4),
            (qpc::LOG_RQ_STRIDE, 2),
            (qpc::RQ_TYPE, rq.0),
            (qpc::SRQN_RMPN_XRQN, rq.1),
        ] {
            field.set(context, value);
        }
        qpc::DBR_ADDR.set(context, record);
        request.extend(buffer.to_be_bytes());
        let qpn = self.made(function, &request);
        let pair = Pair { qpn, function, buffer, record, head: 0, recv_head: 0, half: 0 };
        self.pairs.push(pair);
        pair
    }

    /// Moves a queue pair from RESET to RTS, connected to the queue pair `to`.
    pub fn connect(&mut self, pair: Pair, service: u32, to: Pair) {
        let mut context = [0; qpc::SIZE];
        qpc::PM_STATE.set(&mut context, 3u32);
        ads::VHCA_PORT_NUM.set(qpc::PRIMARY_ADDRESS_PATH.bytes_mut(&mut context), 1u32);
        if service >= 2 && service != 3 {
            qpc::Q_KEY.set(&mut context, 0x1234u32);
        } else {
            let reliable = u32::from(service != 1);
            for (field, value) in
                [(qpc::RWE, 1), (qpc::RRE, reliable), (qpc::RAE, reliable), (qpc::ATOMIC_MODE, reliable)]
            {
                field.set(&mut context, value);
            }
        }
        self.modify(pair, 0x502, &context);
        let mut context = [0; qpc::SIZE];
        qpc::MTU.set(&mut context, 3u32);
        qpc::LOG_MSG_MAX.set(&mut context, 30u32);
        let path = qpc::PRIMARY_ADDRESS_PATH.bytes_mut(&mut context);
        ads::VHCA_PORT_NUM.set(path, 1u32);
        if service != 2 {
            // The first function's LID is 1, the second's is 2.
            ads::RLID.set(path, to.function as u32 + 1);
            qpc::REMOTE_QPN.set(&mut context, to.qpn);
            qpc::NEXT_RCV_PSN.set(&mut context, 7u32);
        }
        if matches!(service, 0 | 3) {
            qpc::LOG_RRA_MAX.set(&mut context, 2u32);
            qpc::MIN_RNR_NAK.set(&mut context, 12u32);
        }
        self.modify(pair, 0x503, &context);
        let mut context = [0; qpc::SIZE];
        qpc::NEXT_SEND_PSN.set(&mut context, 7u32);
        if matches!(service, 0 | 3) {
            qpc::LOG_SRA_MAX.set(&mut context, 2u32);
            qpc::RETRY_COUNT.set(&mut context, 2u32);
            qpc::RNR_RETRY.set(&mut context, 2u32);
            ads::ACK_TIMEOUT.set(qpc::PRIMARY_ADDRESS_PATH.bytes_mut(&mut context), 10u32);
        }
        self.modify(pair, 0x504, &context);
    }

    pub fn modify(&mut self, pair: Pair, opcode: u16, context: &[u8]) {
        let mut request = input(opcode, rst2init_qp_in::SIZE);
        rst2init_qp_in::QPN.set(&mut request, pair.qpn);
        put(&mut request, rst2init_qp_in::QPC.offset, context);
        self.command(pair.function, &request);
    }

    /// Executes a command and returns the number of the created object.
    pub fn made(&mut self, function: usize, request: &[u8]) -> u32 {
        dword(&self.command(function, request), 8) & 0xff_ffff
    }

    /// Executes a command and returns the inline part of its output.
    pub fn command(&mut self, function: usize, request: &[u8]) -> [u8; 16] {
        self.command_as(function, request, 0x400, |_| {})
    }

    /// Executes a command, after `change` has modified its command entry.
    pub fn command_as(
        &mut self,
        function: usize,
        request: &[u8],
        out_len: u32,
        change: impl FnOnce(&mut [u8; 64]),
    ) -> [u8; 16] {
        self.token = self.token.wrapping_add(1).max(1);
        let mut entry = [0; command_entry::SIZE];
        command_entry::TYPE.set(&mut entry, 7u32);
        command_entry::INPUT_LENGTH.set(&mut entry, request.len() as u32);
        command_entry::OUTPUT_LENGTH.set(&mut entry, out_len);
        command_entry::TOKEN.set(&mut entry, self.token);
        command_entry::OWNER.set(&mut entry, 1u32);
        let (inline, rest) = request.split_at(request.len().min(16));
        put(&mut entry, command_entry::INPUT_INLINE.offset, inline);
        if !rest.is_empty() {
            command_entry::INPUT_MAILBOX.set(&mut entry, INPUT);
        }
        if out_len > 16 {
            command_entry::OUTPUT_MAILBOX.set(&mut entry, OUTPUT);
        }
        let boxes = out_len.saturating_sub(16).div_ceil(512);
        for place in 0..u64::from(boxes).min(BOXES) {
            self.mailbox(OUTPUT, place, &[], u64::from(boxes));
        }
        let chunks = rest.len().div_ceil(512) as u64;
        for (place, chunk) in rest.chunks(512).take(BOXES as usize).enumerate() {
            self.mailbox(INPUT, place as u64, chunk, chunks);
        }
        change(&mut entry);
        let queue = COMMANDS + function as u64 * PAGE;
        self.poke(queue, &entry);
        self.store(function, initial_seg::COMMAND_DOORBELL_VECTOR.dword as u64, &1u32.to_be_bytes());
        let mut done = [0; 64];
        let _ = self.bus.read(queue, &mut done);
        let mut answer = [0; 16];
        answer.copy_from_slice(command_entry::OUTPUT_INLINE.bytes(&done));
        self.handles.push(dword(&answer, 8) & 0xff_ffff);
        answer
    }

    fn mailbox(&self, base: u64, place: u64, bytes: &[u8], count: u64) {
        let mut block = [0; mailbox::SIZE];
        put(&mut block, 0, bytes);
        let next = if place + 1 == count { 0 } else { base + (place + 1) * STEP };
        mailbox::NEXT.set(&mut block, next);
        mailbox::BLOCK_NUMBER.set(&mut block, place as u32);
        mailbox::TOKEN.set(&mut block, self.token);
        self.poke(base + place * STEP, &block);
    }

    /// Returns the offset of a function's UAR page in BAR 0.
    pub fn uar(&self, function: usize) -> u64 {
        u64::from(self.uars[function]) * UAR_SIZE
    }
}

/// Returns a command input of `len` bytes. All bytes are 0 except for the opcode.
pub fn input(opcode: u16, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    command_in::OPCODE.set(&mut bytes, opcode);
    bytes
}

fn with(mut request: Vec<u8>, offset: usize, value: u32) -> Vec<u8> {
    let value = dword(&request, offset) | value;
    put(&mut request, offset, &value.to_be_bytes());
    request
}
