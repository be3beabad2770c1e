//! Tag matching: list operations, messages, rendezvous, and requests that break a rule.

use super::*;
use crate::layout::cqe::tm_cqe;
use crate::layout::srq::{create_xrq_in, create_xrq_out, query_xrq_out, wq, xrqc};
use crate::layout::wqe::{srq_next, tag_matching};

const NO_PACKET: u32 = 6;
const RECEIVED: u32 = 2;
const INDEX_OF_QUEUE: u32 = 0x00_7777;

const CONSUMED: u32 = 0x1;
const EXPECTED: u32 = 0x2;
const UNEXPECTED: u32 = 0x3;
const NO_TAG: u32 = 0x4;
const APPEND: u32 = 0x5;
const REMOVE: u32 = 0x6;
const NOOP: u32 = 0x7;
const CONSUMED_MESSAGE: u32 = 0xa;
const CONSUMED_MESSAGE_SOFTWARE: u32 = 0xb;
const CANCELED: u32 = 0xc;

const EAGER: u8 = 3;
const RENDEZVOUS: u8 = 1;

/// A sender, a receiver whose shared receive queue has a matching list, and the queue pair that
/// changes the list.
struct Tags {
    bed: Bed,
    /// The completion queue of the sender.
    sends: Cq,
    /// The completion queue of the matching list.
    cq: Cq,
    sender: Pair,
    receiver: Pair,
    commands: Pair,
    number: u32,
    buffer: u64,
    record: u64,
    posted: u32,
    memory: Memory,
}

const ENTRIES: u16 = 8;
/// Offsets in the registered memory, in bytes.
const SOURCE: u64 = 0x1000;
const RECEIVES: u64 = 0x2000;

impl Tags {
    fn new() -> Self {
        Self::with(true, true)
    }

    /// Creates the queue pairs. With `offload`, the device executes rendezvous for the matching
    /// list. With `no_sq`, the receiver has no send queue.
    fn with(offload: bool, no_sq: bool) -> Self {
        let mut bed = Bed::with(PortKind::Ib, 1, true);
        let (sends, cq) = (bed.cq(0, 6, 64), bed.cq(0, 6, 64));
        let (buffer, record) = (bed.hosts[0].alloc(1), bed.hosts[0].alloc(1));
        let mut input = input(0x717, create_xrq_in::SIZE);
        let pd = bed.pds[0];
        let context = create_xrq_in::XRQ_CONTEXT.bytes_mut(&mut input);
        for (field, value) in [
            (xrqc::TOPOLOGY, 1),
            (xrqc::OFFLOAD, u32::from(offload)),
            (xrqc::USER_INDEX, INDEX_OF_QUEUE),
            (xrqc::CQN, cq.cqn),
            (xrqc::LOG_MATCHING_LIST_SZ, 3),
        ] {
            field.set(context, value);
        }
        let queue = xrqc::WQ.bytes_mut(context);
        wq::PD.set(queue, pd);
        wq::DBR_ADDR.set(queue, record);
        wq::LOG_WQ_STRIDE.set(queue, 6u32);
        wq::LOG_WQ_SZ.set(queue, 3u32);
        input.extend(buffer.to_be_bytes());
        let number = create_xrq_out::XRQN.get32(&bed.ok(0, &input));
        for entry in 0..ENTRIES {
            bed.poke(0, buffer + u64::from(entry) * 64 + 2, &((entry + 1) % ENTRIES).to_be_bytes());
        }
        let shared = [(qpc::RQ_TYPE, 1), (qpc::SRQN_RMPN_XRQN, number)];
        let leak = |more: Vec<(Field, u32)>| -> &'static [(Field, u32)] { Box::leak(more.into()) };
        let commands = bed.pair(&cq, &Shape { more: leak(shared.to_vec()), ..Shape::default() });
        bed.init(&commands, RC);
        let itself = commands.clone();
        bed.connect(&commands, RC, &itself);
        let sender = bed.pair(&sends, &Shape::default());
        let mut more = shared.to_vec();
        let mut shape = Shape::default();
        if no_sq {
            more.extend([(qpc::NO_SQ, 1), (qpc::OFFLOAD_TYPE, 1), (qpc::CS_RES, 1)]);
            shape.log_sq = 0;
        }
        shape.more = leak(more);
        let receiver = bed.pair(&cq, &shape);
        for pair in [&sender, &receiver] {
            bed.init(pair, RC);
        }
        bed.connect(&sender, RC, &receiver);
        bed.connect(&receiver, RC, &sender);
        let memory = bed.memory(0, 3);
        Self { bed, sends, cq, sender, receiver, commands, number, buffer, record, posted: 0, memory }
    }

    /// Posts `count` receives of 256 bytes to the shared queue.
    fn receives(&mut self, count: u32) {
        for entry in self.posted..self.posted + count {
            let at = self.buffer + u64::from(entry % u32::from(ENTRIES)) * 64;
            let va = self.memory.va + RECEIVES + u64::from(entry) * 0x100;
            self.bed.poke(0, at + srq_next::SIZE as u64, &list(&[(va, 0x100, self.memory.key)], 3));
        }
        self.posted += count;
        self.bed.poke(0, self.record, &self.posted.to_be_bytes());
    }

    /// Returns a work request with a list operation.
    fn change(&self, fields: &[(Field, u64)], data: Option<[u8; 16]>) -> Vec<u8> {
        let mut segment = [0; tag_matching::SIZE];
        for (field, value) in fields {
            field.set(&mut segment, *value);
        }
        let wqe = self.bed.begin(&self.commands, opcode::TAG_MATCHING).set(ctrl::CE, 0).raw(&segment);
        data.into_iter().fold(wqe, |wqe, data| wqe.raw(&data)).done()
    }

    fn post(&mut self, wqe: &[u8]) {
        let Self { bed, commands, .. } = self;
        bed.post(commands, wqe);
    }

    /// Appends an entry whose buffer has `length` bytes and starts at `offset` in the registered
    /// memory.
    fn append(&mut self, next: u16, tag: u64, offset: u64, length: u32) -> [u8; 64] {
        let fields = [
            (tag_matching::OPCODE, 1),
            (tag_matching::CQE_REQ, 1),
            (tag_matching::INDEX, next.into()),
            (tag_matching::APPEND_TAG, tag),
            (tag_matching::APPEND_MASK, !0),
        ];
        let data = element(self.memory.va + offset, length, self.memory.key);
        let wqe = self.change(&fields, Some(if length == 0 { element(0, 0, 0x100) } else { data }));
        self.post(&wqe);
        self.next()
    }

    fn remove(&mut self, index: u16) -> [u8; 64] {
        let fields =
            [(tag_matching::OPCODE, 2), (tag_matching::CQE_REQ, 1), (tag_matching::INDEX, index.into())];
        let wqe = self.change(&fields, None);
        self.post(&wqe);
        self.next()
    }

    /// Reports that software has handled `count` unexpected messages.
    fn sync(&mut self, count: u16) -> [u8; 64] {
        let fields = [
            (tag_matching::CQE_REQ, 1),
            (tag_matching::SW_CNT_VALID, 1),
            (tag_matching::SW_CNT, count.into()),
        ];
        let wqe = self.change(&fields, None);
        self.post(&wqe);
        self.next()
    }

    /// Sends a message of `len` bytes, including its 16-byte header.
    fn message(&mut self, operation: u8, tag: u64, len: u32) {
        let mut bytes = vec![0; len as usize];
        bytes.iter_mut().enumerate().for_each(|(n, byte)| *byte = n as u8);
        let header = [&[operation, 0, 0, 0, 0, 0, 0, 9][..], &tag.to_be_bytes()].concat();
        bytes[..16].copy_from_slice(&header);
        self.raw(&bytes);
    }

    /// Requests a rendezvous for `length` bytes of the source memory.
    fn request(&mut self, tag: u64, length: u32, rkey: u32) {
        let header = [&[RENDEZVOUS, 0, 0, 0, 0, 0, 0, 9][..], &tag.to_be_bytes()].concat();
        let source = (self.memory.va + SOURCE).to_be_bytes();
        let bytes = [&header[..], &source, &rkey.to_be_bytes(), &length.to_be_bytes()].concat();
        self.raw(&bytes);
    }

    fn raw(&mut self, bytes: &[u8]) {
        let Self { bed, sender, memory, .. } = self;
        bed.poke(0, memory.address + SOURCE + 0x800, bytes);
        let wqe = bed.begin(sender, opcode::SEND);
        let wqe = wqe.element(memory.va + SOURCE + 0x800, bytes.len() as u32, memory.key).done();
        bed.post(sender, &wqe);
    }

    /// Returns the next completion for the matching list. It must exist.
    #[track_caller]
    fn next(&mut self) -> [u8; 64] {
        let Self { bed, cq, .. } = self;
        let entry = bed.poll(cq).expect("a completion");
        if ![SEND_ERROR, RECV_ERROR].contains(&cqe::OPCODE.get32(&entry)) {
            assert_eq!(cqe::SRQN_USER_INDEX.get32(&entry), INDEX_OF_QUEUE);
        }
        entry
    }

    fn is_quiet(&mut self) -> bool {
        let Self { bed, cq, .. } = self;
        bed.poll(cq).is_none()
    }

    fn at(&self, offset: u64) -> u8 {
        self.bed.peek::<1>(0, self.memory.address + offset)[0]
    }

    /// Queries the shared receive queue and returns its context.
    fn context(&mut self) -> Vec<u8> {
        let mut query = input(0x719, 16);
        query[8..12].copy_from_slice(&self.number.to_be_bytes());
        query_xrq_out::XRQ_CONTEXT.bytes(&self.bed.ok(0, &query)).to_vec()
    }
}

/// Returns the opcode, the operation, the entry index and the length in a completion.
fn told(entry: &[u8; 64]) -> (u32, u32, u32, u32) {
    assert_eq!(tm_cqe::APP.get32(entry), 1);
    (
        cqe::OPCODE.get32(entry),
        tm_cqe::APP_OP.get32(entry),
        tm_cqe::APP_INFO.get32(entry),
        cqe::BYTE_CNT.get32(entry),
    )
}

/// Returns the tag in a completion.
fn tag(entry: &[u8; 64]) -> u64 {
    u64::from_be_bytes(*tm_cqe::TMH.bytes(entry).last_chunk().unwrap())
}

#[test]
fn an_eager_message_of_one_packet_completes_its_tag_at_once() {
    let mut tags = Tags::new();
    let added = tags.append(1, 7, 0, 0x100);
    assert_eq!(told(&added), (NO_PACKET, APPEND, 0, 0));
    assert_eq!((tag(&added), cqe::WQE_COUNTER.get32(&added)), (0, 0));
    tags.message(EAGER, 7, 20);
    let entry = tags.next();
    assert_eq!((told(&entry), tag(&entry)), ((RECEIVED, CONSUMED_MESSAGE, 0, 4), 7));
    assert_eq!(&tm_cqe::TMH.bytes(&entry)[..8], [EAGER, 0, 0, 0, 0, 0, 0, 9]);
    assert_eq!((0..4).map(|at| tags.at(at)).collect::<Vec<_>>(), [16, 17, 18, 19], "without the header");
    assert!(tags.is_quiet());
}

#[test]
fn an_eager_message_of_several_packets_completes_its_tag_twice() {
    let mut tags = Tags::new();
    tags.append(1, 7, 0, 0x1000);
    tags.message(EAGER, 7, 0x800 + 16);
    let (first, second) = (tags.next(), tags.next());
    assert_eq!((told(&first), tag(&first)), ((NO_PACKET, CONSUMED, 0, 0), 7));
    assert_eq!((told(&second), tag(&second)), ((RECEIVED, EXPECTED, 0, 0x800), 0));
    assert_eq!((tags.at(0), tags.at(0x7ff)), (16, 15));
}

#[test]
fn a_message_that_matches_no_tag_takes_a_receive_with_its_header() {
    let mut tags = Tags::new();
    tags.receives(2);
    tags.append(1, 7, 0, 0x100);
    tags.message(EAGER, 8, 20);
    let entry = tags.next();
    assert_eq!((told(&entry), tag(&entry)), ((RECEIVED, UNEXPECTED, 0, 20), 0));
    assert_eq!(cqe::WQE_COUNTER.get32(&entry), 0);
    assert_eq!((tags.at(RECEIVES), tags.at(RECEIVES + 19)), (EAGER, 19));
    tags.message(0, 7, 20);
    assert_eq!(told(&tags.next()), (RECEIVED, NO_TAG, 0, 20));
    tags.message(EAGER, 7, 20);
    assert_eq!(told(&tags.next()), (RECEIVED, CONSUMED_MESSAGE, 0, 4), "it is still listed");
}

#[test]
fn an_unexpected_message_counts_once_although_it_waits_for_a_receive() {
    let mut tags = Tags::new();
    tags.message(EAGER, 8, 20);
    // The peer repeats its request.
    tags.bed.pass(1_000_000);
    assert!(tags.is_quiet());
    tags.receives(1);
    tags.bed.pass(10_000_000);
    assert_eq!(told(&tags.next()).1, UNEXPECTED);
    let context = tags.context();
    assert_eq!(xrqc::HW_PHASE_CNT.get(&context), 1);
}

#[test]
fn a_tag_that_was_added_out_of_step_waits_for_the_count() {
    let mut tags = Tags::new();
    tags.receives(4);
    tags.message(EAGER, 7, 20);
    assert_eq!(told(&tags.next()).1, UNEXPECTED);
    let added = tags.append(1, 7, 0, 0x100);
    assert_eq!(tm_cqe::HW_PHASE_CNT.get32(&added), 1, "the driver compares it");
    tags.message(EAGER, 7, 20);
    assert_eq!(told(&tags.next()).1, UNEXPECTED);
    let context = tags.context();
    let fields = [xrqc::APPEND_NEXT_INDEX, xrqc::SW_PHASE_CNT, xrqc::HW_PHASE_CNT];
    assert_eq!(fields.map(|field| field.get32(&context)), [1, 0, 2]);
    assert_eq!(told(&tags.sync(2)), (NO_PACKET, NOOP, 0, 0));
    tags.message(EAGER, 7, 20);
    assert_eq!(told(&tags.next()).1, CONSUMED_MESSAGE);
}

#[test]
fn a_removal_succeeds_until_a_message_has_consumed_the_tag() {
    let mut tags = Tags::new();
    tags.append(1, 7, 0, 0);
    tags.append(2, 8, 0, 0);
    let removed = tags.remove(0);
    assert_eq!((told(&removed).1, tm_cqe::SUCCESS.get(&removed)), (REMOVE, 1));
    tags.message(EAGER, 8, 16);
    assert_eq!(told(&tags.next()), (RECEIVED, CONSUMED_MESSAGE, 1, 0));
    let late = tags.remove(1);
    assert_eq!((told(&late).1, tm_cqe::SUCCESS.get(&late)), (REMOVE, 0));
}

#[test]
fn a_change_completes_only_if_it_asks_for_it() {
    let mut tags = Tags::new();
    let quiet = tags.change(&[], None);
    tags.post(&quiet);
    assert!(tags.is_quiet());
    assert_eq!(told(&tags.sync(0)).1, NOOP);
}

#[test]
fn the_device_reads_the_data_of_a_rendezvous_and_tells_the_sender() {
    let mut tags = Tags::new();
    let Tags { bed, sender, memory, .. } = &mut tags;
    bed.post_recv(sender, &[(memory.va + RECEIVES, 0x100, memory.key)]);
    bed.poke(0, memory.address + SOURCE, b"rendezvous");
    tags.append(1, 7, 0x10, 10);
    let key = tags.memory.key;
    tags.request(7, 10, key);
    let (first, second) = (tags.next(), tags.next());
    assert_eq!((told(&first), tag(&first)), ((NO_PACKET, CONSUMED, 0, 0), 7));
    assert_eq!((told(&second), tag(&second)), ((RECEIVED, EXPECTED, 0, 10), 0));
    assert_eq!(&tags.bed.peek::<10>(0, tags.memory.address + 0x10), b"rendezvous");
    let Tags { bed, sends, .. } = &mut tags;
    assert_eq!(bed.drain(sends), [(SUCCESS, 0), (RECEIVED, 0)]);
    let finished: [u8; 32] = tags.bed.peek(0, tags.memory.address + RECEIVES);
    let mut request: [u8; 32] = tags.bed.peek(0, tags.memory.address + SOURCE + 0x800);
    request[0] = 2;
    assert_eq!(finished, request, "all but the operation");
}

#[test]
fn a_hundred_rendezvous_in_a_row_reuse_the_indexes() {
    let mut tags = Tags::new();
    let key = tags.memory.key;
    for turn in 0..100 {
        let Tags { bed, sender, memory, .. } = &mut tags;
        bed.post_recv(sender, &[(memory.va + RECEIVES, 0x100, memory.key)]);
        tags.append((turn + 1) % 8, 7, 0x10, 10);
        tags.request(7, 10, key);
        let index = u32::from(turn % 8);
        assert_eq!(told(&tags.next()), (NO_PACKET, CONSUMED, index, 0));
        assert_eq!(told(&tags.next()), (RECEIVED, EXPECTED, index, 10));
        let Tags { bed, sends, .. } = &mut tags;
        assert_eq!(bed.drain(sends).len(), 2);
    }
}

#[test]
fn software_gets_the_request_of_a_rendezvous_that_the_device_does_not_execute() {
    for (offload, no_sq, room) in [(true, true, 40), (false, true, 0x100), (true, false, 0x100)] {
        let mut tags = Tags::with(offload, no_sq);
        tags.append(1, 7, 0, room);
        let key = tags.memory.key;
        tags.request(7, 50, key);
        let entry = tags.next();
        let expected = (RECEIVED, CONSUMED_MESSAGE_SOFTWARE, 0, 32);
        assert_eq!((told(&entry), tag(&entry)), (expected, 7), "{offload}, {no_sq}");
        assert_eq!((tags.at(0), tags.at(31)), (RENDEZVOUS, 50));
    }
}

#[test]
fn a_rendezvous_whose_memory_cannot_be_read_is_canceled() {
    let mut tags = Tags::new();
    tags.append(1, 7, 0, 0x100);
    tags.request(7, 10, 0x1234);
    let (first, second) = (tags.next(), tags.next());
    assert_eq!(told(&first).1, CONSUMED);
    assert_eq!(told(&second), (NO_PACKET, CANCELED, 0, 0));
    assert_eq!(tags.bed.state(&tags.receiver), State::Err);
    // The index is free again, so it can be used.
    tags.append(2, 8, 0, 0);
    assert_eq!(told(&tags.append(0, 9, 0, 0)).2, 2);
}

#[test]
fn a_message_that_is_longer_than_its_buffer_is_canceled() {
    for (len, completions) in [(64, &[CANCELED][..]), (0x800, &[CONSUMED, CANCELED])] {
        let mut tags = Tags::new();
        tags.append(1, 7, 0, 0x20);
        tags.message(EAGER, 7, len);
        for operation in completions {
            assert_eq!(told(&tags.next()).1, *operation, "{len} bytes");
        }
        assert!(tags.is_quiet());
        let Tags { bed, sends, .. } = &mut tags;
        assert_eq!(bed.poll(sends).map(|entry| error(&entry)), Some((SEND_ERROR, 0x12)));
    }
}

#[test]
fn the_end_of_a_queue_pair_cancels_the_message_that_it_receives() {
    for command in [0x50a, 0x501] {
        let mut tags = Tags::new();
        tags.append(1, 7, 0, 0x100);
        let consumed = crate::tags::Consumed {
            qpn: tags.receiver.qpn,
            buffer: None,
            header: [0; 16],
            transfer: crate::tags::Transfer::Packets,
        };
        let list =
            tags.bed.fabric.functions[0].core.srqs.get_mut(&tags.number).unwrap().tags.as_mut().unwrap();
        list.take(&crate::tags::Message::Eager { tag: 7 }).unwrap();
        list.consume(0, consumed);
        tags.bed.name(&tags.receiver.clone(), command);
        assert_eq!(told(&tags.next()).1, CANCELED, "{command:#x}");
    }
}

#[test]
fn a_write_with_immediate_data_takes_a_receive_without_matching() {
    let mut tags = Tags::new();
    tags.receives(1);
    tags.append(1, 7, 0, 0x100);
    let Tags { bed, sender, memory, .. } = &mut tags;
    let wqe = bed.begin(sender, opcode::WRITE_IMM).remote(memory.va, memory.key);
    let wqe = wqe.element(memory.va, 16, memory.key).done();
    bed.post(sender, &wqe);
    let entry = tags.next();
    assert_eq!((cqe::OPCODE.get(&entry), tm_cqe::APP.get(&entry)), (1, 0));
}

#[test]
fn requests_of_another_form_are_rejected() {
    type Make = fn(&Tags) -> Vec<u8>;
    let cases: [(&str, Make); 9] = [
        ("an operation that is not defined", |tags| tags.change(&[(tag_matching::OPCODE, 3)], None)),
        ("an addition without a buffer", |tags| tags.change(&[(tag_matching::OPCODE, 1)], None)),
        ("a removal with one", |tags| tags.change(&[(tag_matching::OPCODE, 2)], Some(element(0, 0, 0x100)))),
        ("a buffer without bytes", |tags| {
            tags.change(&[(tag_matching::OPCODE, 1), (tag_matching::INDEX, 1)], Some(element(0, 0, 5)))
        }),
        ("a bit above a length", |tags| {
            let mut data = element(1, 1, 5);
            data[0] = 0x80;
            tags.change(&[(tag_matching::OPCODE, 1), (tag_matching::INDEX, 1)], Some(data))
        }),
        ("a reserved bit", |tags| {
            let mut wqe = tags.change(&[], None);
            wqe[16 + 1] |= 1;
            wqe
        }),
        ("reserved bytes", |tags| {
            let mut wqe = tags.change(&[], None);
            wqe[16 + 8] = 1;
            wqe
        }),
        ("a completion of the control segment", |tags| {
            let mut wqe = tags.change(&[], None);
            ctrl::CE.set(&mut wqe, 2u32);
            wqe
        }),
        ("nothing behind the control segment", |tags| {
            tags.bed.begin(&tags.commands, opcode::TAG_MATCHING).set(ctrl::CE, 0).done()
        }),
    ];
    for (what, wqe) in cases {
        let mut tags = Tags::new();
        let wqe = wqe(&tags);
        tags.post(&wqe);
        assert_eq!(tags.bed.rules(), [Rule::WqeTagMatching], "{what}");
        assert_eq!(error(&tags.next()), (SEND_ERROR, 2), "{what}");
    }
}

#[test]
fn a_queue_pair_without_a_list_changes_none() {
    let mut tags = Tags::new();
    let Tags { bed, sender, .. } = &mut tags;
    let wqe = bed.begin(sender, opcode::TAG_MATCHING).set(ctrl::CE, 0).raw(&[0; 32]).done();
    bed.post(sender, &wqe);
    assert_eq!(tags.bed.rules(), [Rule::WqeTagMatching]);
}

#[test]
fn indexes_outside_of_the_list_or_in_use_are_rejected() {
    for (operation, index) in [(1u64, 8u64), (1, 1), (1, 0), (2, 8)] {
        let mut tags = Tags::new();
        tags.append(1, 7, 0, 0);
        let data = (operation == 1).then(|| element(0, 0, 0x100));
        let wqe = tags.change(&[(tag_matching::OPCODE, operation), (tag_matching::INDEX, index)], data);
        tags.post(&wqe);
        assert_eq!(tags.bed.rules(), [Rule::TagIndex], "{operation} {index}");
        assert_eq!(error(&tags.next()), (SEND_ERROR, 2));
    }
}

#[test]
fn other_services_and_offloads_are_refused() {
    let tags = Tags::new();
    let (number, cq) = (tags.number, tags.cq.clone());
    let mut bed = tags.bed;
    for (service, more, rule) in [
        (UC, vec![], None),
        (RC, vec![(qpc::OFFLOAD_TYPE, 1)], Some(Rule::CommandCapability)),
        (
            RC,
            vec![(qpc::OFFLOAD_TYPE, 2), (qpc::NO_SQ, 1), (qpc::LOG_SQ_SIZE, 0)],
            Some(Rule::CommandCapability),
        ),
    ] {
        let mut input = input(0x500, create_qp_in::PAS);
        let context = create_qp_in::QPC.bytes_mut(&mut input);
        for (field, value) in [
            (qpc::ST, service),
            (qpc::PM_STATE, 3),
            (qpc::PD, bed.pds[0]),
            (qpc::LOG_SQ_SIZE, 4),
            (qpc::UAR_PAGE, bed.hosts[0].uar),
            (qpc::CQN_SND, cq.cqn),
            (qpc::CQN_RCV, cq.cqn),
            (qpc::RQ_TYPE, 1),
            (qpc::SRQN_RMPN_XRQN, number),
        ]
        .into_iter()
        .chain(more)
        {
            field.set(context, value);
        }
        let output = bed.command(0, &input);
        assert_ne!(command_out::STATUS.get(&output), 0);
        assert_eq!(bed.rules(), Vec::from_iter(rule), "{service}");
    }
}
