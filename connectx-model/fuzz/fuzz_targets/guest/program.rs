//! Interprets the fuzz input as a program: a sequence of guest actions. Most objects that a program
//! names exist, so that its mistakes reach deep code.

use connectx_model::function::BAR0_SIZE;
use connectx_model::layout::Table;
use connectx_model::layout::iseg::command_entry;
use connectx_model::layout::wqe::{ctrl, datagram};
use connectx_model::layout::{cq, eq, eth, hca, memic, mkey, put, qp, srq, steering, vport};
use connectx_model::port::PortKind;

use crate::driver::{DATA, Driver, MEMORY, Pair, input};

/// The rest of the fuzz input. After the last byte, the input continues with zeros.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        match self.0 {
            [first, rest @ ..] => {
                self.0 = rest;
                *first
            }
            [] => 0,
        }
    }

    fn word(&mut self) -> u32 {
        u32::from_be_bytes([(); 4].map(|()| self.byte()))
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.byte()).collect()
    }

    fn pick<T: Copy>(&mut self, list: &[T]) -> Option<T> {
        let place = usize::from(self.byte());
        list.get(place % list.len().max(1)).copied()
    }

    /// Returns a number for a field: often an object number, an address or a boundary value.
    fn value(&mut self, driver: &Driver) -> u64 {
        match self.byte() % 8 {
            0 => 0,
            1 => self.byte().into(),
            2 => self.word().into(),
            3 => u64::from(self.word()) << 32 | u64::from(self.word()),
            4 => u64::MAX,
            5 => self.place(),
            _ => driver
                .handles
                .iter()
                .rev()
                .nth(usize::from(self.byte() % 16))
                .map_or(1, |handle| (*handle).into()),
        }
    }

    /// Returns an address that is usually in memory and often at the start of a page.
    fn place(&mut self) -> u64 {
        let address = u64::from(self.word()) % (MEMORY + 0x1000);
        if self.byte() % 4 == 0 { address } else { address & !0xfff }
    }
}

/// Executes the fuzz input as a program.
pub fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    let how = input.byte();
    let port = if how & 1 == 0 { PortKind::Ib } else { PortKind::Roce };
    let functions = if how & 2 == 0 { 1 } else { 2 };
    let mut driver = Driver::new(port, functions);
    if how & 4 == 0 {
        (0..functions).for_each(|function| driver.boot(function));
        if how & 8 == 0 {
            pairs(&mut driver, &mut input);
        }
    }
    for _ in 0..ACTIONS {
        if input.0.is_empty() {
            break;
        }
        act(&mut driver, &mut input, functions);
    }
    // Whatever the program was, time can pass and the state can be listed.
    for _ in 0..8 {
        let Some(due) = driver.fabric.deadline() else { break };
        driver.now = driver.now.max(due);
        driver.fabric.expire(driver.now);
    }
    let list = driver.fabric.control("list", driver.now);
    let complaints = driver.fabric.take_complaints();
    // Shows what the program has reached.
    if std::env::var_os("CONNECTX_SHOW").is_some() {
        complaints.iter().for_each(|complaint| eprintln!("{complaint}"));
        eprintln!("{list}");
    }
}

/// Maximum number of actions in a program.
const ACTIONS: usize = 200;

/// Creates two queue pairs that are connected to each other.
fn pairs(driver: &mut Driver, input: &mut Input<'_>) {
    let service = input.pick(&[0, 0, 1, 2, 3]).unwrap_or(0);
    let last = usize::from(driver.fabric.len() > 1);
    let made: Vec<Pair> = [0, last]
        .map(|function| {
            let cqn = driver.create_cq(function, u32::from(input.byte() % 6));
            driver.create_qp(function, service, cqn, (0, 0))
        })
        .into();
    for (one, other) in [(made[0], made[1]), (made[1], made[0])] {
        driver.connect(one, service, other);
    }
}

fn act(driver: &mut Driver, input: &mut Input<'_>, functions: usize) {
    let function = usize::from(input.byte()) % functions;
    match input.byte() % 20 {
        0 => {
            let (offset, len) =
                (u64::from(input.word()) % BAR0_SIZE, input.pick(&[1, 2, 4, 8, 16, 64]).unwrap_or(4));
            let bytes = input.bytes(len);
            driver.store(function, offset, &bytes);
        }
        1 => {
            let offset = driver.uar(function) + u64::from(input.word() % 0x1000);
            let bytes = input.pick(&[4usize, 8, 8, 64]).map(|len| input.bytes(len)).unwrap_or_default();
            driver.store(function, offset, &bytes);
        }
        2 => {
            let mut into = vec![0; input.pick(&[1, 2, 4, 8, 64]).unwrap_or(4)];
            let (bar, offset) = (u32::from(input.byte() % 3), u64::from(input.word()) % BAR0_SIZE);
            driver.fabric.bar_read(function, bar, offset, &mut into, driver.now);
        }
        3 => {
            let offset = u64::from(input.word()) % 4096;
            let len = input.pick(&[1usize, 2, 4]).unwrap_or(4).min((4096 - offset) as usize);
            let bytes = input.bytes(len);
            driver.fabric.config_write(function, offset, &bytes);
            let mut back = vec![0; len];
            driver.fabric.config_read(function, offset, &mut back);
        }
        4 => {
            let (place, len) = (input.place(), usize::from(input.byte() % 65));
            let bytes = input.bytes(len);
            driver.poke(place, &bytes);
        }
        5..=7 => command(driver, input, function),
        8..=13 => post(driver, input),
        14 => receive(driver, input),
        15 => {
            // Arms a completion queue, with arbitrary values.
            let cqn = input.pick(&driver.cqns).unwrap_or(1);
            let word = input.word();
            let register = driver.uar(function) + 0x20;
            driver.store(function, register, &(u64::from(word) << 32 | u64::from(cqn)).to_be_bytes());
        }
        16 => {
            driver.now = driver.now + u64::from(input.word());
            driver.fabric.expire(driver.now);
        }
        17 => {
            if let Some(line) = input.pick(LINES) {
                driver.fabric.control(line, driver.now);
            }
        }
        18 => match input.byte() % 8 {
            0 => {
                driver.fabric.reset(function);
                driver.boot(function);
            }
            1 => driver.boot(function),
            2 => {
                let cqn = input.pick(&driver.cqns).unwrap_or(1);
                driver.create_xrc_srq(function, cqn);
            }
            3 => {
                let rq = (u32::from(input.byte() % 8), input.value(driver) as u32 & 0xff_ffff);
                let cqn = input.pick(&driver.cqns).unwrap_or(1);
                driver.create_qp(function, u32::from(input.byte() % 16), cqn, rq);
            }
            _ => pairs(driver, input),
        },
        _ => {
            // Reports the consumer index of an event queue.
            let register = driver.uar(function) + if input.byte() & 1 == 0 { 0x40 } else { 0x48 };
            let value = driver.eqns[function] << 24 | input.word() & 0xff_ffff;
            driver.store(function, register, &value.to_be_bytes());
        }
    }
}

/// Lines of the fault language from which a program chooses.
const LINES: &[&str] = &[
    "events hold",
    "events release",
    "events release 1",
    "port down",
    "port up",
    "fatal",
    "remove",
    "clear",
    "completion qpn=next syndrome=0x15",
    "completion qpn=next syndrome=0x04 side=recv",
    "completion qpn=next syndrome=0x05",
    "command opcode=0x500 status=0x05",
    "after send 2: completion qpn=next syndrome=0x22",
    "after packet 3: port down",
    "after command 0x400 1: remove",
    "complaints take",
];

/// Posts a work request, usually with at most one mistake.
fn post(driver: &mut Driver, input: &mut Input<'_>) {
    let Some(mut pair) = pick(driver, input) else { return };
    let opcode =
        input.pick(&[0x0au8, 0x0b, 0x08, 0x09, 0x10, 0x11, 0x12, 0x25, 0x00, 0x01, 0x0e]).unwrap_or(0x0a);
    let mut wqe = vec![0; ctrl::SIZE];
    ctrl::WQE_INDEX.set(&mut wqe, pair.head);
    ctrl::OPCODE.set(&mut wqe, opcode);
    ctrl::QPN.set(&mut wqe, pair.qpn);
    ctrl::CE.set(&mut wqe, 2u32);
    let key = driver.keys[pair.function];
    let kind = input.byte();
    if kind & 1 != 0 {
        let mut vector = vec![0; datagram::SIZE];
        datagram::Q_KEY.set(&mut vector, 0x1234u32);
        datagram::EXTENDED.set(&mut vector, 1u32);
        datagram::DQPN.set(&mut vector, input.pick(&driver.pairs).map_or(1, |pair| pair.qpn));
        datagram::RLID_UDP_SPORT.set(&mut vector, u32::from(input.byte() % 4));
        wqe.extend(vector);
    }
    if kind & 2 != 0 {
        wqe.extend(srqn(input.value(driver) as u32));
    }
    if matches!(opcode, 0x08..=0x12) && opcode & 0xe != 0x0a {
        let peer = driver.keys[usize::from(input.byte()) % driver.fabric.len().max(1)];
        wqe.extend((DATA + u64::from(input.byte()) * 8).to_be_bytes());
        wqe.extend(peer.to_be_bytes());
        wqe.extend([0; 4]);
    }
    if matches!(opcode, 0x11 | 0x12) {
        wqe.extend(input.bytes(16));
    }
    if opcode == 0x25 {
        let len = usize::from(input.byte()) % 13 * 16;
        wqe.extend(input.bytes(len));
    }
    for _ in 0..input.byte() % 4 {
        if kind & 4 != 0 {
            let len = usize::from(input.byte() % 40);
            let mut inline = (0x8000_0000 | len as u32).to_be_bytes().to_vec();
            inline.extend(input.bytes(len));
            inline.resize(inline.len().next_multiple_of(16), 0);
            wqe.extend(inline);
        } else {
            let len = if input.byte() % 8 == 0 { input.word() } else { input.word() % 0x3000 };
            wqe.extend(element(DATA + u64::from(input.byte()) * 64, len, key));
        }
    }
    let units = wqe.len().div_ceil(16) as u32;
    ctrl::DS.set(&mut wqe, units);
    if input.byte() % 4 == 0 {
        let (at, byte) = (usize::from(input.byte()) % wqe.len(), input.byte());
        wqe[at] ^= byte;
    }
    for (n, part) in wqe.chunks(16).enumerate() {
        let at = (u64::from(pair.head) * 64 + n as u64 * 16) % 0x400;
        driver.poke(pair.buffer + 0x400 + at, part);
    }
    pair.head = pair.head.wrapping_add(wqe.len().div_ceil(64) as u16);
    let rings = input.byte();
    if rings % 16 != 0 {
        driver.poke(pair.record + 4, &u32::from(pair.head).to_be_bytes());
    }
    let register = driver.uar(pair.function) + 0x800 + pair.half * 256;
    if rings % 8 != 1 {
        driver.store(pair.function, register, &wqe[..8]);
        if rings & 16 != 0 {
            for (n, part) in wqe.chunks(8).enumerate().skip(1) {
                driver.store(pair.function, register + n as u64 * 8 % 256, part);
            }
        }
        pair.half ^= 1;
    }
    keep(driver, pair);
}

fn receive(driver: &mut Driver, input: &mut Input<'_>) {
    let Some(mut pair) = pick(driver, input) else { return };
    let key = driver.keys[pair.function];
    for _ in 0..input.byte() % 20 {
        let at = pair.buffer + u64::from(pair.recv_head % 16) * 64;
        let mut list = element(DATA + u64::from(input.byte()) * 256, u32::from(input.byte()) * 64, key);
        list.extend(element(0, 0, 0x100));
        if input.byte() % 8 == 0 {
            list = input.bytes(64);
        }
        driver.poke(at, &list);
        pair.recv_head = pair.recv_head.wrapping_add(1);
    }
    driver.poke(pair.record, &u32::from(pair.recv_head).to_be_bytes());
    keep(driver, pair);
}

fn pick(driver: &Driver, input: &mut Input<'_>) -> Option<Pair> {
    input.pick(&driver.pairs)
}

fn keep(driver: &mut Driver, pair: Pair) {
    if let Some(kept) =
        driver.pairs.iter_mut().find(|kept| kept.buffer == pair.buffer && kept.qpn == pair.qpn)
    {
        *kept = pair;
    }
}

fn element(address: u64, len: u32, key: u32) -> Vec<u8> {
    [&len.to_be_bytes()[..], &key.to_be_bytes(), &address.to_be_bytes()].concat()
}

fn srqn(number: u32) -> [u8; 16] {
    let mut segment = [0; 16];
    segment[..4].copy_from_slice(&(number & 0xff_ffff).to_be_bytes());
    segment
}

/// Executes a command from the table. The program selects the fields and bytes that differ from 0.
fn command(driver: &mut Driver, input_bytes: &mut Input<'_>, function: usize) {
    let Some((opcode, table)) = input_bytes.pick(COMMANDS) else { return };
    let mut request = input(opcode, table.size);
    for _ in 0..input_bytes.byte() % 12 {
        let value = input_bytes.value(driver);
        if let Some(field) = input_bytes.pick(table.fields).filter(|field| field.name != "OPCODE") {
            field.set(&mut request, value);
        }
    }
    for part in table.parts {
        for _ in 0..input_bytes.byte() % 16 {
            let inside = part.bytes_mut(&mut request);
            let at = usize::from(input_bytes.byte()) * 4 % inside.len().max(4);
            let value = (input_bytes.value(driver) as u32).to_be_bytes();
            put(inside, at, &value);
        }
    }
    for _ in 0..input_bytes.byte() % 20 {
        request.extend(input_bytes.place().to_be_bytes());
    }
    let out_len = input_bytes.pick(&[0x400u32, 0x10, 8, 0x2000, 0]).unwrap_or(0x400);
    let mutation = input_bytes.byte();
    let (at, byte) = (usize::from(input_bytes.byte() % 64), input_bytes.byte());
    driver.command_as(function, &request, out_len, |entry| {
        if mutation % 8 == 0 {
            entry[at] ^= byte;
            command_entry::OWNER.set(entry, 1u32);
        }
    });
}

const COMMANDS: &[(u16, &Table)] = &[
    (0x100, &hca::query_hca_cap_in::TABLE),
    (0x101, &hca::query_adapter_in::TABLE),
    (0x102, &hca::init_hca_in::TABLE),
    (0x103, &hca::teardown_hca_in::TABLE),
    (0x104, &hca::enable_hca_in::TABLE),
    (0x105, &hca::disable_hca_in::TABLE),
    (0x107, &hca::query_pages_in::TABLE),
    (0x108, &hca::manage_pages_in::TABLE),
    (0x109, &hca::set_hca_cap_in::TABLE),
    (0x200, &mkey::create_mkey_in::TABLE),
    (0x201, &mkey::query_mkey_in::TABLE),
    (0x202, &mkey::destroy_mkey_in::TABLE),
    (0x205, &memic::alloc_memic_in::TABLE),
    (0x206, &memic::dealloc_memic_in::TABLE),
    (0x301, &eq::create_eq_in::TABLE),
    (0x302, &eq::destroy_eq_in::TABLE),
    (0x303, &eq::query_eq_in::TABLE),
    (0x400, &cq::create_cq_in::TABLE),
    (0x401, &cq::destroy_cq_in::TABLE),
    (0x402, &cq::query_cq_in::TABLE),
    (0x403, &cq::modify_cq_in::TABLE),
    (0x500, &qp::create_qp_in::TABLE),
    (0x501, &qp::destroy_qp_in::TABLE),
    (0x502, &qp::rst2init_qp_in::TABLE),
    (0x503, &qp::rst2init_qp_in::TABLE),
    (0x504, &qp::rst2init_qp_in::TABLE),
    (0x505, &qp::rst2init_qp_in::TABLE),
    (0x506, &qp::rst2init_qp_in::TABLE),
    (0x507, &qp::destroy_qp_in::TABLE),
    (0x50a, &qp::destroy_qp_in::TABLE),
    (0x50b, &qp::query_qp_in::TABLE),
    (0x50d, &vport::mad_ifc_in::TABLE),
    (0x700, &srq::create_srq_in::TABLE),
    (0x701, &srq::destroy_srq_in::TABLE),
    (0x702, &srq::query_srq_in::TABLE),
    (0x703, &srq::arm_rq_in::TABLE),
    (0x705, &srq::create_xrc_srq_in::TABLE),
    (0x706, &srq::destroy_xrc_srq_in::TABLE),
    (0x707, &srq::query_xrc_srq_in::TABLE),
    (0x708, &srq::arm_xrc_srq_in::TABLE),
    (0x754, &vport::query_nic_vport_context_in::TABLE),
    (0x755, &vport::modify_nic_vport_context_in::TABLE),
    (0x761, &vport::set_roce_address_in::TABLE),
    (0x762, &vport::query_hca_vport_context_in::TABLE),
    (0x764, &vport::query_hca_vport_gid_in::TABLE),
    (0x765, &vport::query_hca_vport_pkey_in::TABLE),
    (0x771, &hca::alloc_q_counter_in::TABLE),
    (0x773, &hca::query_q_counter_in::TABLE),
    (0x800, &mkey::alloc_pd_in::TABLE),
    (0x801, &mkey::dealloc_pd_in::TABLE),
    (0x802, &hca::alloc_uar_in::TABLE),
    (0x803, &hca::dealloc_uar_in::TABLE),
    (0x805, &connectx_model::layout::register::access_register_in::TABLE),
    (0x806, &qp::attach_to_mcg_in::TABLE),
    (0x807, &qp::detach_from_mcg_in::TABLE),
    (0x80e, &mkey::alloc_xrcd_in::TABLE),
    (0x80f, &mkey::dealloc_xrcd_in::TABLE),
    (0x816, &mkey::alloc_transport_domain_in::TABLE),
    (0x900, &eth::create_tir_in::TABLE),
    (0x901, &eth::modify_tir_in::TABLE),
    (0x904, &eth::create_sq_in::TABLE),
    (0x905, &eth::modify_sq_in::TABLE),
    (0x906, &eth::destroy_sq_in::TABLE),
    (0x908, &eth::create_rq_in::TABLE),
    (0x909, &eth::modify_rq_in::TABLE),
    (0x90a, &eth::destroy_rq_in::TABLE),
    (0x90c, &srq::create_rmp_in::TABLE),
    (0x90d, &srq::modify_rmp_in::TABLE),
    (0x90e, &srq::destroy_rmp_in::TABLE),
    (0x912, &eth::create_tis_in::TABLE),
    (0x916, &eth::create_rqt_in::TABLE),
    (0x930, &steering::create_flow_table_in::TABLE),
    (0x933, &steering::create_flow_group_in::TABLE),
    (0x936, &steering::set_fte_in::TABLE),
    (0x938, &steering::delete_fte_in::TABLE),
];
