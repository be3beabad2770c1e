//! Page faults: work requests that access absent pages.

use super::umr::Umr;
use super::windows::{Change, window};
use super::*;
use crate::layout::eqe::{rdma_page_fault, wqe_page_fault};
use crate::layout::hca::page_fault_resume_in;
use crate::layout::mkey::{query_mkey_in, query_mkey_out};
use crate::layout::wqe::{klm, umr_ctrl};
use crate::state::mkey::NULL_MKEY;

const PAGE_FAULT: u32 = 0x0c;
/// The type of the event for a responder that cannot access memory.
const WQ_ERROR: u32 = 0x05;
const PROTECTION_ERROR: (u32, u32) = (SEND_ERROR, 0x04);
const REMOTE_ERROR: (u32, u32) = (SEND_ERROR, 0x14);
const ABSENT: u64 = 0;
const READABLE: u64 = 1;
const PRESENT: u64 = 3;
/// A time long enough for a peer to repeat a request, in nanoseconds.
const REPEAT: u64 = 2_000_000;

/// Two connected queue pairs, memory whose pages may be absent, and a queue pair that makes the
/// pages present.
struct Paged {
    bed: Bed,
    cq: Cq,
    one: Pair,
    two: Pair,
    umr: Pair,
    umr_cq: Cq,
    /// Memory of two pages, initially absent.
    memory: Memory,
    /// Memory of two pages, always present.
    pinned: Memory,
}

/// A page fault, as described by its event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    sub_type: u32,
    kind: u32,
    token: u32,
    wq: u32,
    data: [u8; 28],
}

impl Paged {
    fn new(service: u32) -> Self {
        Self::with(&Shape { service, ..Shape::default() }, [ABSENT; 2])
    }

    fn with(shape: &Shape, rights: [u64; 2]) -> Self {
        Self::build(Bed::ib(), shape, rights)
    }

    fn build(mut bed: Bed, shape: &Shape, rights: [u64; 2]) -> Self {
        let (cq, umr_cq) = (bed.cq(0, 4, 64), bed.cq(0, 4, 64));
        let (one, two) = bed.connected([&cq, &cq], shape);
        let (umr, _) = bed.connected([&umr_cq, &umr_cq], &Shape::default());
        let memory = paged_key(&mut bed, rights);
        let pinned = bed.memory(0, 2);
        Self { bed, cq, one, two, umr, umr_cq, memory, pinned }
    }

    /// Changes the access rights of both pages with a UMR, as the driver does.
    #[track_caller]
    fn bring(&mut self, rights: [u64; 2]) {
        let mut list = [0; 64];
        for (page, rights) in rights.into_iter().enumerate().filter(|(_, rights)| *rights != ABSENT) {
            let entry = (self.memory.address + page as u64 * PAGE) | rights;
            list[page * 8..][..8].copy_from_slice(&entry.to_be_bytes());
        }
        let change = Umr::new(0).control(umr_ctrl::KLM_OCTOWORDS, 4);
        let wqe = change.wqe(&self.bed, &self.umr, self.memory.key, &list);
        self.bed.post(&mut self.umr, &wqe);
        assert_eq!(
            self.bed.drain(&mut self.umr_cq).iter().map(|(opcode, _)| *opcode).collect::<Vec<_>>(),
            [SUCCESS]
        );
        assert_eq!(self.bed.rules(), []);
    }

    /// Returns the next event, which must be a page fault; `None` if there is no event.
    fn fault(&mut self) -> Option<Seen> {
        let host = &mut self.bed.hosts[0];
        let bus = host.bus.clone();
        let entry = host.events.as_mut().unwrap().next(&bus)?;
        assert_eq!(eqe::EVENT_TYPE.get32(&entry), PAGE_FAULT);
        let sub_type = eqe::EVENT_SUB_TYPE.get32(&entry);
        let mut data = [0; 28];
        data.copy_from_slice(eqe::EVENT_DATA.bytes(&entry));
        let (kind, token, wq) = if sub_type == 0 {
            use wqe_page_fault::{PFTYPE, TOKEN, WQ};
            (PFTYPE.get32(&data), TOKEN.get32(&data), WQ.get32(&data))
        } else {
            use rdma_page_fault::{PFTYPE, TOKEN};
            (PFTYPE.get32(&data), TOKEN.get32(&data), TOKEN.get32(&data))
        };
        Some(Seen { sub_type, kind, token, wq, data })
    }

    #[track_caller]
    fn resume(&mut self, seen: Seen, error: bool) {
        self.bed.ok(0, &resume(seen.token, seen.kind, seen.wq, error));
    }

    /// Makes both pages present, resumes the fault, and gives the peer time to repeat its request.
    #[track_caller]
    fn resolve(&mut self, seen: Seen) {
        self.bring([PRESENT; 2]);
        self.resume(seen, false);
        self.bed.pass(REPEAT);
    }

    fn post_send(&mut self, memory: Memory, length: u32) {
        let wqe = self.bed.begin(&self.one, opcode::SEND).element(memory.va, length, memory.key).done();
        self.bed.post(&mut self.one, &wqe);
    }

    fn post_recv(&mut self, memory: Memory, length: u32) {
        self.bed.post_recv(&mut self.two, &[(memory.va, length, memory.key)]);
    }

    /// Posts a read, write or atomic. Its remote bytes are in `remote`, its local bytes in `local`.
    fn post_remote(&mut self, opcode: u8, remote: Memory, local: Memory, length: u32) {
        let wqe = self.bed.begin(&self.one, opcode).remote(remote.va, remote.key);
        let wqe = if opcode == opcode::FETCH_ADD { wqe.operands(5, 0) } else { wqe };
        let wqe = wqe.element(local.va, length, local.key).done();
        self.bed.post(&mut self.one, &wqe);
    }

    fn outcomes(&mut self) -> Vec<(u32, u32)> {
        let entries: Vec<_> = std::iter::from_fn(|| self.bed.poll(&mut self.cq)).collect();
        entries.iter().map(error).collect()
    }
}

/// Creates a key for two pages with these access rights.
fn paged_key(bed: &mut Bed, rights: [u64; 2]) -> Memory {
    let address = bed.hosts[0].alloc(2);
    let va = 0x6f00_0000_0000 + address;
    let mut input = input(0x200, create_mkey_in::KLM_PAS_MTT);
    create_mkey_in::PG_ACCESS.set(&mut input, 1u32);
    create_mkey_in::TRANSLATIONS_OCTWORD_ACTUAL_SIZE.set(&mut input, 1u32);
    let context = create_mkey_in::MEMORY_KEY_MKEY_ENTRY.bytes_mut(&mut input);
    for field in [mkc::LR, mkc::LW, mkc::RR, mkc::RW, mkc::A, mkc::ACCESS_MODE_1_0, mkc::UMR_EN] {
        field.set(context, 1u32);
    }
    mkc::QPN.set(context, 0xff_ffffu32);
    mkc::MKEY_7_0.set(context, 0x42u32);
    mkc::PD.set(context, bed.pds[0]);
    mkc::START_ADDR.set(context, va);
    mkc::LEN.set(context, 2 * PAGE);
    mkc::TRANSLATIONS_OCTWORD_SIZE.set(context, 4u32);
    mkc::LOG_PAGE_SIZE.set(context, 12u32);
    for (page, rights) in rights.into_iter().enumerate() {
        let entry = if rights == ABSENT { 0 } else { (address + page as u64 * PAGE) | rights };
        input.extend(entry.to_be_bytes());
    }
    let index = create_mkey_out::MKEY_INDEX.get32(&bed.ok(0, &input));
    Memory { key: index << 8 | 0x42, va, address }
}

fn resume(token: u32, kind: u32, wq: u32, error: bool) -> Vec<u8> {
    let mut input = input(0x204, page_fault_resume_in::SIZE);
    page_fault_resume_in::TOKEN.set(&mut input, token);
    page_fault_resume_in::PAGE_FAULT_TYPE.set(&mut input, kind);
    page_fault_resume_in::WQ_NUMBER.set(&mut input, wq);
    page_fault_resume_in::ERROR.set(&mut input, error);
    input
}

#[test]
fn a_send_waits_for_its_pages_and_those_behind_it_for_the_send() {
    let mut paged = Paged::new(RC);
    let (memory, pinned) = (paged.memory, paged.pinned);
    paged.bed.poke(0, memory.address + 0xfff, b"paged");
    paged.post_recv(pinned, 0x2000);
    paged.post_recv(pinned, 0x2000);
    let nop = paged.bed.nop(&paged.one);
    paged.bed.post(&mut paged.one, &nop);
    // The doorbell of a NOP may be the start of a BlueFlame store, so the model waits for the rest.
    paged.bed.pass(50_000_000);
    assert_eq!(paged.bed.drain(&mut paged.cq), [(SUCCESS, 0)]);
    paged.post_send(memory, 0x1100);
    paged.post_send(pinned, 4);
    let fault = paged.fault().unwrap();
    assert_eq!((fault.sub_type, fault.kind, fault.wq), (0, 1, paged.one.qpn));
    assert_eq!(wqe_page_fault::WQE_INDEX.get(&fault.data), 1);
    assert_eq!(wqe_page_fault::BYTES_COMMITTED.get(&fault.data), 0);
    assert_eq!((paged.fault(), paged.outcomes()), (None, vec![]));
    // Only the first page is present, so the next fault reports the number of bytes sent.
    paged.bring([PRESENT, ABSENT]);
    paged.resume(fault, false);
    let fault = paged.fault().unwrap();
    assert_eq!(wqe_page_fault::BYTES_COMMITTED.get(&fault.data), 0x1000);
    assert_eq!(paged.outcomes(), []);
    paged.resolve(fault);
    assert_eq!(paged.outcomes().len(), 4, "two sends and two receives");
    assert_eq!(&paged.bed.peek::<5>(0, pinned.address + 0xfff), b"paged");
}

#[test]
fn a_peer_is_told_to_wait_while_the_pages_of_a_receive_come() {
    let mut paged = Paged::new(RC);
    let (memory, pinned) = (paged.memory, paged.pinned);
    paged.bed.poke(0, pinned.address, b"in pages");
    paged.post_recv(memory, 0x2000);
    paged.post_send(pinned, 8);
    let fault = paged.fault().unwrap();
    assert_eq!((fault.sub_type, fault.kind, fault.wq), (0, 2, paged.two.qpn));
    assert_eq!(wqe_page_fault::PACKET_LENGTH.get(&fault.data), 8);
    paged.bed.pass(REPEAT);
    assert_eq!((paged.fault(), paged.outcomes()), (None, vec![]), "one event for all repetitions");
    paged.resolve(fault);
    assert_eq!(paged.bed.drain(&mut paged.cq).len(), 2);
    assert_eq!(&paged.bed.peek::<8>(0, memory.address), b"in pages");
}

#[test]
fn memory_that_a_peer_names_comes_before_the_request_executes() {
    for (opcode, kind, length) in
        [(opcode::WRITE, 6, 0x1234), (opcode::READ, 4, 0x1234), (opcode::FETCH_ADD, 6, 8)]
    {
        let mut paged = Paged::new(RC);
        let (memory, pinned) = (paged.memory, paged.pinned);
        let (from, into) = if opcode == opcode::WRITE { (pinned, memory) } else { (memory, pinned) };
        paged.bed.poke(0, from.address, &7u64.to_le_bytes());
        paged.post_remote(opcode, memory, pinned, length);
        let fault = paged.fault().unwrap();
        assert_eq!((fault.sub_type, fault.kind), (1, kind));
        assert_eq!(rdma_page_fault::R_KEY.get32(&fault.data), memory.key);
        assert_eq!(rdma_page_fault::RDMA_VA.get(&fault.data), memory.va);
        assert_eq!(rdma_page_fault::RDMA_OP_LEN.get32(&fault.data), length);
        paged.bed.pass(REPEAT);
        assert_eq!((paged.fault(), paged.outcomes()), (None, vec![]));
        paged.resolve(fault);
        assert_eq!(paged.bed.drain(&mut paged.cq), [(SUCCESS, 0)]);
        assert_eq!(paged.bed.peek::<8>(0, into.address), 7u64.to_le_bytes());
        if opcode == opcode::FETCH_ADD {
            assert_eq!(paged.bed.peek::<8>(0, from.address), 12u64.to_le_bytes(), "added once");
        }
    }
}

#[test]
fn a_result_is_asked_for_again_once_its_pages_are_there() {
    for (opcode, length) in [(opcode::READ, 0x1234), (opcode::FETCH_ADD, 8)] {
        let mut paged = Paged::new(RC);
        let (memory, pinned) = (paged.memory, paged.pinned);
        paged.bed.poke(0, pinned.address, &7u64.to_le_bytes());
        paged.post_remote(opcode, pinned, memory, length);
        let fault = paged.fault().unwrap();
        assert_eq!((fault.sub_type, fault.kind, fault.wq), (0, 3, paged.one.qpn));
        assert_eq!(paged.outcomes(), []);
        paged.resolve(fault);
        assert_eq!(paged.bed.drain(&mut paged.cq), [(SUCCESS, 0)]);
        assert_eq!(paged.bed.peek::<8>(0, memory.address), 7u64.to_le_bytes());
        let added = if opcode == opcode::FETCH_ADD { 5 } else { 0 };
        assert_eq!(paged.bed.peek::<8>(0, pinned.address), (7 + added as u64).to_le_bytes(), "added once");
    }
}

/// Posts a work request that causes a page fault.
type Post = fn(&mut Paged);

#[test]
fn a_fault_without_a_remedy_ends_in_an_error() {
    let cases: [(&str, Post, (u32, u32)); 4] = [
        ("send", |paged| paged.post_send(paged.memory, 8), PROTECTION_ERROR),
        ("result", |paged| paged.post_remote(opcode::READ, paged.pinned, paged.memory, 8), PROTECTION_ERROR),
        ("write", |paged| paged.post_remote(opcode::WRITE, paged.memory, paged.pinned, 8), REMOTE_ERROR),
        ("read", |paged| paged.post_remote(opcode::READ, paged.memory, paged.pinned, 8), REMOTE_ERROR),
    ];
    for (what, post, expected) in cases {
        let mut paged = Paged::new(RC);
        paged.post_recv(paged.pinned, 8);
        post(&mut paged);
        let fault = paged.fault().unwrap();
        paged.resume(fault, true);
        paged.bed.pass(REPEAT);
        let outcomes = paged.outcomes();
        assert!(outcomes.contains(&expected), "{what}: {outcomes:?}");
    }
}

#[test]
fn a_page_that_may_only_be_read_is_absent_for_who_writes() {
    let mut paged = Paged::with(&Shape::default(), [READABLE; 2]);
    let (memory, pinned) = (paged.memory, paged.pinned);
    paged.post_remote(opcode::READ, memory, pinned, 8);
    assert_eq!((paged.fault(), paged.outcomes().len()), (None, 1));
    paged.post_remote(opcode::WRITE, memory, pinned, 8);
    let fault = paged.fault().unwrap();
    paged.resolve(fault);
    assert_eq!(paged.outcomes().len(), 1);
    paged.bring([ABSENT; 2]);
    paged.post_remote(opcode::READ, memory, pinned, 8);
    let fault = paged.fault().unwrap();
    paged.resolve(fault);
    assert_eq!(paged.outcomes().len(), 1);
}

#[test]
fn a_fault_is_resumed_once_and_by_its_own_numbers() {
    let mut paged = Paged::new(RC);
    paged.post_recv(paged.pinned, 8);
    paged.post_send(paged.memory, 8);
    let Seen { token, kind, wq, .. } = paged.fault().unwrap();
    for (token, kind, wq) in [(token + 1, kind, wq), (token, kind ^ 2, wq), (token, kind, wq + 1)] {
        paged.bed.command(0, &resume(token, kind, wq, false));
        assert_eq!(paged.bed.rules(), [Rule::PageFaultResume]);
    }
    paged.bring([PRESENT; 2]);
    paged.bed.ok(0, &resume(token, kind, wq, false));
    assert_eq!(paged.bed.drain(&mut paged.cq).len(), 2);
    paged.bed.command(0, &resume(token, kind, wq, false));
    assert_eq!(paged.bed.rules(), [Rule::PageFaultResume]);
}

#[test]
fn a_fault_outlives_its_queue_pair_without_effect() {
    for opcode in [0x501, 0x50a] {
        let mut paged = Paged::new(RC);
        paged.post_remote(opcode::WRITE, paged.memory, paged.pinned, 8);
        let of_peer = paged.fault().unwrap();
        paged.bed.name(&paged.two.clone(), opcode);
        paged.resume(of_peer, false);
        paged.bed.name(&paged.one.clone(), 0x507);
    }
}

#[test]
fn faults_of_destroyed_queue_pairs_are_limited() {
    let mut paged = Paged::new(RC);
    let core = &mut paged.bed.fabric.functions[0].core;
    for _ in 0..3000 {
        let stall = roce::engine::Stall::Send { wr_id: 0, done: 0 };
        core.paging.pretend(paged.one.qpn, stall);
        core.paging.forget(paged.one.qpn);
    }
    assert_eq!(core.paging.len(), 1024);
}

#[test]
fn services_without_paging_fail_at_once() {
    let mut paged = Paged::new(UC);
    paged.post_send(paged.memory, 8);
    assert_eq!((paged.fault(), paged.outcomes()), (None, vec![PROTECTION_ERROR]));
}

#[test]
fn a_fault_through_a_window_leads_to_the_memory_that_the_window_shows() {
    let mut paged = Paged::new(RC);
    let (memory, pinned) = (paged.memory, paged.pinned);
    let window = window(&mut paged.bed, false);
    let bind = Change::bind(&paged.two, window | 5, false, (&memory, 0x1100, 0x80));
    let wqe = bind.wqe(&paged.bed, &paged.two, window);
    let mut two = paged.two.clone();
    paged.bed.post(&mut two, &wqe);
    assert_eq!(paged.bed.drain(&mut paged.cq).len(), 1);
    let shown = Memory { key: window | 5, va: memory.va + 0x1100, address: memory.address + 0x1100 };
    paged.post_remote(opcode::WRITE, shown, pinned, 8);
    let fault = paged.fault().unwrap();
    assert_eq!(rdma_page_fault::R_KEY.get32(&fault.data), shown.key);
    let mut query = input(0x201, query_mkey_in::SIZE);
    query_mkey_in::MKEY_INDEX.set(&mut query, window >> 8);
    let output = paged.bed.ok(0, &query);
    let context = query_mkey_out::MEMORY_KEY_MKEY_ENTRY.bytes(&output);
    assert_eq!((mkc::START_ADDR.get(context), mkc::LEN.get(context)), (shown.va, 0x80));
    let piece = query_mkey_out::BSF0_KLM0_PAS_MTT0_1.bytes(&output);
    assert_eq!((klm::BYTE_COUNT.get32(piece), klm::MKEY.get32(piece)), (0x80, memory.key));
    assert_eq!(klm::VA.get(piece), memory.va + 0x1100);
    paged.resolve(fault);
    assert_eq!(paged.bed.drain(&mut paged.cq), [(SUCCESS, 0)]);
}

#[test]
fn a_range_of_fixed_pieces_faults_where_the_null_key_is() {
    let mut paged = Paged::with(&Shape::default(), [PRESENT; 2]);
    let (memory, pinned) = (paged.memory, paged.pinned);
    // Two pieces of a page each: the second page of the memory, and no memory.
    let mut input = input(0x200, create_mkey_in::KLM_PAS_MTT);
    create_mkey_in::TRANSLATIONS_OCTWORD_ACTUAL_SIZE.set(&mut input, 4u32);
    let context = create_mkey_in::MEMORY_KEY_MKEY_ENTRY.bytes_mut(&mut input);
    for field in [mkc::LR, mkc::LW, mkc::RR, mkc::RW, mkc::UMR_EN, mkc::LENGTH64] {
        field.set(context, 1u32);
    }
    mkc::ACCESS_MODE_1_0.set(context, 3u32);
    mkc::QPN.set(context, 0xff_ffffu32);
    mkc::PD.set(context, paged.bed.pds[0]);
    mkc::TRANSLATIONS_OCTWORD_SIZE.set(context, 4u32);
    mkc::LOG_PAGE_SIZE.set(context, 12u32);
    let piece = |key, va| {
        let mut piece = [0; klm::SIZE];
        klm::BYTE_COUNT.set(&mut piece, PAGE as u32);
        klm::MKEY.set(&mut piece, key);
        klm::VA.set(&mut piece, va);
        piece
    };
    let first = piece(memory.key, memory.va + PAGE);
    let null = piece(NULL_MKEY, 0u64);
    input.extend([first, null, null, null].concat());
    let key = create_mkey_out::MKEY_INDEX.get32(&paged.bed.ok(0, &input)) << 8;
    let whole = |va| Memory { key, va, address: 0 };
    paged.bed.poke(0, memory.address + 0x1010, b"of a piece");
    paged.post_remote(opcode::READ, whole(0x10), pinned, 10);
    assert_eq!((paged.fault(), paged.outcomes().len()), (None, 1));
    assert_eq!(&paged.bed.peek::<10>(0, pinned.address), b"of a piece");
    paged.post_remote(opcode::READ, whole(0xff8), pinned, 16);
    let fault = paged.fault().unwrap();
    assert_eq!(rdma_page_fault::R_KEY.get32(&fault.data), key);
    let list = [first, piece(memory.key, memory.va), null, null].concat();
    let change = Umr::new(0).control(umr_ctrl::KLM_OCTOWORDS, 4);
    let wqe = change.wqe(&paged.bed, &paged.umr, key, &list);
    paged.bed.post(&mut paged.umr, &wqe);
    assert_eq!(paged.bed.drain(&mut paged.umr_cq).len(), 1);
    paged.resume(fault, false);
    paged.bed.pass(REPEAT);
    assert_eq!(paged.outcomes().len(), 1);
    // A page beyond the end of the list cannot be made present.
    paged.post_remote(opcode::READ, whole(0x4000), pinned, 8);
    assert_eq!((paged.bed.events(0), paged.outcomes()), (vec![WQ_ERROR], vec![REMOTE_ERROR]));
}
