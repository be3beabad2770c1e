//! A simulation of the device's side of the queues in plain memory, for tests and benchmarks.
//!
//! A [`PaperQp`] has a queue pair's queues, a completion queue for both, and a page of registers.
//! It exposes the stored bytes and writes completions; it moves no data. A [`PaperSrq`] has a
//! shared receive queue and takes receives from it as the device does. A [`PaperDevice`] is an open
//! device, and programs can create objects on it.
//!
//! Every function panics on misuse, because it is for tests.
//!
//! The module is public for this crate's tests and benchmarks; the crate `verbs` does not re-export
//! it. It is not behind a feature, because programs and tests could then no longer share builds of
//! this crate and the crates above it.
//!
//! # Safety
//! The memory of the queues is accessed without synchronisation: the caller of [`PaperQp::new`]
//! uses all of it on one thread. The device's end of a shared receive queue reads an entry after
//! the doorbell record that covers it. The poster does not write the entry until it has completed.
#![allow(unsafe_code)]
// A module for tests: a panic is a bug in the test.
#![allow(clippy::missing_panics_doc)]

mod device;

pub use self::device::PaperDevice;
#[cfg(test)]
pub(crate) use self::device::{NULL_KEY, REPLY};

use core::marker::PhantomData;
use std::collections::BTreeSet;
use std::sync::Arc;

use verbs_core::ring::Region;
use verbs_core::types::{QpCap, QpState, QpType, Wc};

use crate::device::regions::Regions;
use crate::doorbell::{BlueFlame, Record};
use crate::queue::cq::{
    CQE_FIELDS, Completion, CqeCompression, Lists, Poller, Queues, Receives, RecvLists, Ring, SendLists,
};
use crate::queue::record::SrqRecord;
use crate::queue::resources::QueueResources;
use crate::queue::rq::{self, Rq};
use crate::queue::sq::{self, Frames, Parts, Sq};
use crate::queue::srq::{self, SrqQueue};
use crate::wqe::{BLOCK, UNIT};

/// The queue pair number of a paper queue pair.
pub const QP_NUM: u32 = 0x00_abcd;

/// The user index of a paper queue pair.
pub const USER_INDEX: u32 = 0x12;

/// The handle of a paper queue pair's protection domain.
pub(crate) const PD: u32 = 3;

/// The offsets of the doorbell records in their region, in bytes.
const RECV_RECORD: usize = 0;
const SEND_RECORD: usize = 4;
const CQ_RECORD: usize = 64;

/// The offset of the BlueFlame register in its page, in bytes.
pub const REGISTER: usize = 0xa00;
const HALF: usize = 256;

/// The shape of a paper queue pair.
#[derive(Clone, Copy, Debug)]
pub struct PaperShape {
    /// The queue pair's type.
    pub qp_type: QpType,
    /// The number of blocks in the send queue.
    pub blocks: u32,
    /// The number of blocks in the longest send request.
    pub blocks_of_request: u32,
    /// The maximum number of inline bytes in a send.
    pub max_inline: u32,
    /// The maximum number of elements in a send.
    pub max_send_sge: u32,
    /// The minimum number of header bytes that an entry must hold, for raw packets.
    pub min_inline: u32,
    /// The maximum length of a segmented send's header in bytes, for raw packets.
    pub max_tso_header: u32,
    /// Whether requests without inline data are also stored into the register.
    pub prefers_blue_flame: bool,
    /// The number of entries in the receive queue.
    pub entries: u32,
    /// The maximum number of elements in a receive.
    pub max_recv_sge: u32,
    /// The number of entries in the completion queue.
    pub cqes: u32,
    /// The size of a completion queue entry, in bytes.
    pub cqe_size: usize,
    /// The format of compressed completions.
    pub compression: Option<CqeCompression>,
}

impl Default for PaperShape {
    fn default() -> Self {
        Self {
            qp_type: QpType::RC,
            blocks: 16,
            blocks_of_request: 4,
            max_inline: 200,
            max_send_sge: 10,
            min_inline: 18,
            max_tso_header: 0,
            prefers_blue_flame: true,
            entries: 8,
            max_recv_sge: 3,
            cqes: 16,
            cqe_size: 64,
            compression: None,
        }
    }
}

/// The fields of a completion that a test writes.
#[derive(Clone, Copy, Debug, Default)]
pub struct PaperCqe {
    /// The kind of the entry.
    pub opcode: u8,
    /// The opcode of the request.
    pub wqe_opcode: u8,
    /// The position of the request in its queue.
    pub wqe_counter: u16,
    /// The length of the message in bytes.
    pub byte_cnt: u32,
    /// The immediate data, the invalidated remote key, or the partition key index.
    pub imm_inval_pkey: u32,
    /// The flags, the service level, and the sender's queue pair number.
    pub flags_rqpn: u32,
    /// The sender's local id.
    pub slid: u16,
    /// The path bits of the local address.
    pub ml_path: u8,
    /// The vendor's error syndrome, then the error syndrome.
    pub syndromes: [u8; 2],
    /// The format bits, for data or other completions in the entry.
    pub format: u8,
    /// The timestamp.
    pub timestamp: u64,
    /// The VLAN tag.
    pub vlan_info: u16,
    /// The results of verifying a frame's checksums.
    pub frame: [u8; 2],
}

/// A queue pair and its completion queue, in plain memory.
#[derive(Debug)]
pub struct PaperQp {
    /// The send queue.
    pub sq: Sq,
    /// The receive queue.
    pub rq: Rq,
    poller: Poller,
    shape: PaperShape,
    buffer: Region,
    cqes: Region,
    records: Region,
    registers: Region,
    /// The receives in its shared receive queue, if it has one.
    srq: Option<Arc<SrqRecord>>,
    srq_lists: Option<RecvLists>,
    /// The regions that requests may name, in the protection domain [`PD`].
    pub(crate) regions: Arc<Regions>,
    /// The number of completions written.
    written: u32,
    _one_thread: PhantomData<*const ()>,
}

/// Returns memory for a completion queue's ring, followed by a copy of its entries. A reader that
/// runs past the end of the ring finds completions there.
fn ring_memory(cqes: u32, cqe_size: usize) -> Region {
    Region::plain(2 * cqes as usize * cqe_size)
}

impl PaperQp {
    /// Creates a queue pair in RESET.
    ///
    /// # Safety
    /// The queue pair and its queues stay on one thread, even if the queues are moved out of the
    /// queue pair.
    pub unsafe fn new(shape: PaperShape) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self::build(shape, None, None) }
    }

    /// Creates a queue pair in RESET that takes its receives from a shared receive queue.
    ///
    /// # Safety
    /// Same as [`new`](Self::new).
    pub unsafe fn of_srq(shape: PaperShape, srq: &PaperSrq) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self::build(shape, Some(Arc::clone(&srq.requests)), Some(srq.lists())) }
    }

    /// Creates a queue pair in RESET, with a shared receive queue if one is given.
    ///
    /// # Safety
    /// Same as [`new`](Self::new).
    unsafe fn build(shape: PaperShape, srq: Option<Arc<SrqRecord>>, srq_lists: Option<RecvLists>) -> Self {
        let units = shape.max_recv_sge.next_power_of_two();
        let sq_at = shape.entries as usize * units as usize * UNIT;
        let [buffer, records, registers] =
            [sq_at + shape.blocks as usize * BLOCK, 128, 4096].map(Region::plain);
        let cqes = ring_memory(shape.cqes, shape.cqe_size);
        let max_post = shape.blocks / shape.blocks_of_request;
        let cap = QpCap {
            max_send_wr: max_post,
            max_recv_wr: shape.entries,
            max_send_sge: shape.max_send_sge,
            max_recv_sge: shape.max_recv_sge,
            max_inline_data: shape.max_inline,
        };
        // SAFETY: all memory belongs to this queue pair; a paper device does nothing by itself.
        let (record, bell, ring) = unsafe {
            let record = |at| Record::new(&records, at);
            let bell = BlueFlame::new(&registers, REGISTER, HALF, true);
            let ring = Ring::new(cqes.clone(), shape.cqes, shape.cqe_size).compressed(shape.compression);
            ([record(RECV_RECORD), record(SEND_RECORD), record(CQ_RECORD)], bell, ring)
        };
        let [recv_record, send_record, cq_record] = record;
        let resources = Arc::new(QueueResources::of_test(buffer.clone(), records.clone()));
        let sq = Sq::new(Parts {
            qp_num: QP_NUM,
            qp_type: shape.qp_type,
            sq_sig_all: false,
            shape: sq::Shape {
                blocks: shape.blocks,
                blocks_of_request: shape.blocks_of_request,
                max_post,
                cap,
            },
            offset: sq_at,
            record: send_record,
            bell,
            prefers_blue_flame: shape.prefers_blue_flame,
            has_windows: true,
            frames: Frames {
                min_inline: shape.min_inline,
                max_tso_header: shape.max_tso_header,
                has_ip_csum: shape.qp_type == QpType::RAW_PACKET,
            },
            resources: Arc::clone(&resources),
        });
        let rq = Rq::new(rq::Shape { entries: shape.entries, units, cap }, recv_record, resources);
        let rq = if shape.qp_type == QpType::RAW_PACKET { rq.held_back() } else { rq };
        let poller = Poller::new(ring, cq_record);
        let qp = Self {
            sq,
            rq,
            poller,
            shape,
            buffer,
            cqes,
            records,
            registers,
            srq,
            srq_lists,
            regions: Arc::default(),
            written: 0,
            _one_thread: PhantomData,
        };
        qp.poller.shared().begin(USER_INDEX, qp.queues());
        qp
    }

    fn queues(&self) -> Queues {
        let recv = match &self.srq {
            Some(requests) => Receives::Shared(Arc::clone(requests)),
            None => Receives::Own(Arc::clone(self.rq.requests())),
        };
        let own = || Arc::downgrade(self.sq.resources());
        let send = SendLists {
            resources: own(),
            pd: PD,
            offset: self.buffer.len() - self.shape.blocks as usize * BLOCK,
            blocks: self.shape.blocks,
        };
        let units = self.shape.max_recv_sge.next_power_of_two();
        let recv_lists = self.srq_lists.clone().unwrap_or_else(|| RecvLists {
            resources: own(),
            pd: PD,
            entries: self.shape.entries,
            units,
            head: 0,
        });
        let lists = Lists { regions: Arc::clone(&self.regions), send: Some(send), recv: Some(recv_lists) };
        Queues {
            send: Some(Arc::clone(self.sq.requests())),
            recv: Some(recv),
            lists: Some(Arc::new(lists)),
            ..Queues::default()
        }
    }

    /// Moves the queue pair to a state. RESET also makes the completion queue skip earlier
    /// completions.
    pub fn move_to(&mut self, state: QpState) {
        self.sq.moved_to(state);
        self.rq.moved_to(state);
        if state == QpState::RESET {
            self.poller.shared().end(USER_INDEX, Some(self.queues()));
        }
    }

    /// Ends the queue pair and notifies the completion queue.
    pub fn destroy(&self) {
        self.sq.resources().end();
        self.poller.shared().end(USER_INDEX, None);
    }

    /// Returns the poller and the queues in the poller's table.
    #[cfg(test)]
    pub(crate) fn poller(&mut self) -> (&mut Poller, Queues) {
        let queues = self.queues();
        (&mut self.poller, queues)
    }

    /// Drops the completion queue and keeps the other queues.
    #[cfg(test)]
    pub(crate) fn without_cq(self) -> (Sq, Rq) {
        drop(self.poller);
        (self.sq, self.rq)
    }

    /// Adds another queue pair to the completion queue's table.
    #[cfg(test)]
    pub(crate) fn begin(&self, user_index: u32, queues: Queues) {
        self.poller.shared().begin(user_index, queues);
    }

    /// Notifies the completion queue that another queue pair has ended.
    #[cfg(test)]
    pub(crate) fn end(&self, user_index: u32) {
        self.poller.shared().end(user_index, None);
    }

    /// Notifies the completion queue that another queue pair was reset and has new queues.
    #[cfg(test)]
    pub(crate) fn reset(&self, user_index: u32, queues: Queues) {
        self.poller.shared().end(user_index, Some(queues));
    }

    /// Makes the completion queue continue at an index. No completion may have been written yet.
    #[cfg(test)]
    pub(crate) fn skip_to(&mut self, index: u32) {
        assert!(self.written == 0 && index % self.shape.cqes == self.shape.cqes - 2);
        self.written = index;
        self.poller.skip_to(index);
        for entry in 0..self.shape.cqes {
            // The owner of the previous round, because the device has written nothing in this
            // round.
            let round = u8::from(
                (index.wrapping_sub(self.shape.cqes - 2).wrapping_add(entry)) & self.shape.cqes != 0,
            );
            let at = (entry as usize + 1) * self.shape.cqe_size - 1;
            // SAFETY: one thread, see the head of the file.
            unsafe { self.cqes.write(at, 0xf0 | (1 - round)) };
        }
    }

    /// Replaces the completion queue's ring with a ring of `cqes` entries. The device marks the end
    /// of the old ring unless `is_silent`. Returns whether the end was marked.
    #[cfg(test)]
    pub(crate) fn resize(&mut self, cqes: u32, is_silent: bool) -> bool {
        if !is_silent {
            self.write(PaperCqe { opcode: 5, ..PaperCqe::default() });
        }
        self.shape.cqes = cqes;
        self.cqes = ring_memory(cqes, self.shape.cqe_size);
        // SAFETY: the memory is new.
        let ring = unsafe { Ring::new(self.cqes.clone(), cqes, self.shape.cqe_size) };
        self.poller.replace(ring, || Ok(())).expect("the command succeeds")
    }

    /// Adds optional fields to the queue's completions.
    #[cfg(test)]
    pub(crate) fn with_fields(&mut self, fields: verbs_core::types::CqWcFlags) {
        self.poller.optional.fields = fields;
    }

    /// Copies completions to `wcs` and returns their number.
    #[inline(always)]
    pub fn poll(&mut self, wcs: &mut [Wc]) -> usize {
        self.poller.poll(wcs)
    }

    /// Returns a reference to the next completion.
    #[inline(always)]
    pub fn lend(&mut self) -> Option<Completion<'_>> {
        self.poller.next()
    }

    /// Returns the polled entries to the device.
    #[inline(always)]
    pub fn end_poll(&mut self) {
        self.poller.end_poll();
    }

    /// Writes a completion as the device does, with the owner bit last.
    pub fn write(&mut self, cqe: PaperCqe) {
        self.write_of(USER_INDEX, cqe);
    }

    /// Writes a completion with the given user index.
    pub fn write_of(&mut self, user_index: u32, cqe: PaperCqe) {
        let at = (self.written & (self.shape.cqes - 1)) as usize * self.shape.cqe_size + self.shape.cqe_size
            - CQE_FIELDS;
        let owner = u8::from(self.written & self.shape.cqes != 0);
        let ring = self.shape.cqes as usize * self.shape.cqe_size;
        let put = |offset: usize, bytes: &[u8]| {
            for (byte, value) in bytes.iter().enumerate() {
                for at in [at, at + ring] {
                    // SAFETY: one thread, see the head of the file.
                    unsafe { self.cqes.write(at + offset + byte, *value) };
                }
            }
        };
        put(17, &[cqe.ml_path]);
        put(22, &cqe.slid.to_be_bytes());
        put(24, &cqe.flags_rqpn.to_be_bytes());
        put(32, &user_index.to_be_bytes());
        put(36, &cqe.imm_inval_pkey.to_be_bytes());
        put(44, &cqe.byte_cnt.to_be_bytes());
        put(28, &cqe.frame);
        put(30, &cqe.vlan_info.to_be_bytes());
        put(48, &cqe.timestamp.to_be_bytes());
        // An error entry has the syndromes in the last bytes of the timestamp.
        if cqe.syndromes != [0; 2] {
            put(54, &cqe.syndromes);
        }
        put(56, &((u32::from(cqe.wqe_opcode) << 24) | QP_NUM).to_be_bytes());
        put(60, &cqe.wqe_counter.to_be_bytes());
        put(63, &[cqe.opcode << 4 | cqe.format | owner]);
        self.written = self.written.wrapping_add(1);
    }

    /// Writes a tag matching completion with the given user index. `first` contains the entry's
    /// first bytes.
    #[cfg(test)]
    pub(crate) fn write_tag(
        &mut self,
        user_index: u32,
        cqe: PaperCqe,
        first: [u8; 16],
        app_op: u8,
        index: u16,
    ) {
        let at = (self.written & (self.shape.cqes - 1)) as usize * self.shape.cqe_size + self.shape.cqe_size
            - CQE_FIELDS;
        let [high, low] = index.to_be_bytes();
        // SAFETY: one thread, see the head of the file.
        unsafe {
            self.cqes.write(at, first);
            self.cqes.write(at + 40, [1, app_op, high, low]);
        }
        self.write_of(user_index, cqe);
        // SAFETY: as above. Other completions have the fields of a packet's source in these bytes.
        unsafe { self.cqes.write(at, first) };
    }

    /// Writes completions as a compressed block: mini entries first, then the title. The device
    /// leaves the other entries unchanged.
    #[cfg(test)]
    pub(crate) fn write_block(&mut self, user_index: u32, title: PaperCqe, minis: &[[u8; 8]]) {
        let first = self.written;
        for (part, number) in minis.chunks(8).zip(0_u32..) {
            let at = first.wrapping_add(if number == 0 { 1 } else { 8 * number });
            let place = (at & (self.shape.cqes - 1)) as usize * self.shape.cqe_size + self.shape.cqe_size
                - CQE_FIELDS;
            // The remaining bytes are undefined; here they look like an entry of the next round.
            let mut bytes = [u8::from(at & self.shape.cqes == 0); CQE_FIELDS];
            bytes[..8 * part.len()].copy_from_slice(part.as_flattened());
            for (byte, value) in bytes.into_iter().enumerate() {
                // SAFETY: one thread, see the head of the file.
                unsafe { self.cqes.write(place + byte, value) };
            }
        }
        let byte_cnt = minis.len() as u32;
        self.write_of(user_index, PaperCqe { byte_cnt, format: 12, ..title });
        self.written = first.wrapping_add(byte_cnt);
    }

    /// Returns the fields of the completion queue entry at an index.
    #[cfg(test)]
    pub(crate) fn cqe(&self, index: u32) -> Vec<u8> {
        let end = (index & (self.shape.cqes - 1)) as usize * self.shape.cqe_size + self.shape.cqe_size;
        read(&self.cqes, end - CQE_FIELDS, CQE_FIELDS)
    }

    /// Writes a completion that contains data. In format 4, the data is in the entry's fields; in
    /// other formats, it is in the entry's first half.
    #[cfg(test)]
    pub(crate) fn write_with(&mut self, cqe: PaperCqe, data: &[u8]) {
        let (place, size) = (self.written & (self.shape.cqes - 1), self.shape.cqe_size);
        let before = if cqe.format == 4 { size - CQE_FIELDS } else { 0 };
        let at = place as usize * size + before;
        self.write(cqe);
        for (byte, value) in data.iter().enumerate() {
            // SAFETY: one thread, see the head of the file.
            unsafe { self.cqes.write(at + byte, *value) };
        }
    }

    /// Returns the bytes of `count` send queue blocks, also across the end of the queue.
    pub fn blocks(&self, first: u32, count: u32) -> Vec<u8> {
        let start = self.buffer.len() - self.shape.blocks as usize * BLOCK;
        let at = |block: u32| start + (block & (self.shape.blocks - 1)) as usize * BLOCK;
        (first..first + count).flat_map(|block| read(&self.buffer, at(block), BLOCK)).collect()
    }

    /// Returns the bytes of a receive queue entry.
    pub fn entry(&self, entry: u32) -> Vec<u8> {
        let len = self.shape.max_recv_sge.next_power_of_two() as usize * UNIT;
        read(&self.buffer, (entry & (self.shape.entries - 1)) as usize * len, len)
    }

    /// Returns the counters of the doorbell records: for receives, for sends, and for the
    /// completion queue.
    pub fn records(&self) -> [u32; 3] {
        [RECV_RECORD, SEND_RECORD, CQ_RECORD].map(|at| {
            let bytes = read(&self.records, at, 4);
            u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
        })
    }

    /// Returns the first `len` bytes of one half of the register and clears the half.
    pub fn take_register(&self, half: usize, len: usize) -> Vec<u8> {
        let at = REGISTER + half * HALF;
        let bytes = read(&self.registers, at, len);
        for offset in 0..HALF {
            // SAFETY: one thread, see the head of the file.
            unsafe { self.registers.write(at + offset, 0_u8) };
        }
        bytes
    }
}

/// A shared receive queue in plain memory.
#[derive(Debug)]
pub struct PaperSrq {
    /// The shared receive queue.
    pub queue: SrqQueue,
    /// The device's end of the queue.
    pub device: PaperSrqDevice,
    requests: Arc<SrqRecord>,
}

/// The device's end of a shared receive queue. It may be on a different thread from the queue.
#[derive(Debug)]
pub struct PaperSrqDevice {
    shape: srq::Shape,
    memory: Region,
    record: Record,
    /// The index of the next entry in the linked list.
    next: u16,
    /// The number of receives taken, modulo 2^16.
    taken: u16,
    /// The indices of the entries that were taken but not completed.
    unfinished: BTreeSet<u16>,
}

impl PaperSrq {
    /// Creates a shared receive queue with `entries` entries of `units` units each.
    pub fn new(entries: u32, units: u32) -> Self {
        let shape = srq::Shape { entries, units };
        let (memory, records) = (Region::plain(shape.len()), Region::plain(64));
        // SAFETY: all memory belongs to this queue; both ends access the record as an atomic, and
        // the device's end follows the rules at the head of the file.
        let [ours, record] = [(); 2].map(|()| unsafe { Record::new(&records, 0) });
        let queue = SrqQueue::new(shape, ours, Arc::new(QueueResources::of_test(memory.clone(), records)));
        let requests = Arc::clone(queue.requests());
        let device = PaperSrqDevice { shape, memory, record, next: 0, taken: 0, unfinished: BTreeSet::new() };
        Self { queue, device, requests }
    }

    /// Returns the receives posted to the queue.
    #[cfg(test)]
    pub(crate) const fn requests(&self) -> &Arc<SrqRecord> {
        &self.requests
    }

    fn lists(&self) -> RecvLists {
        let srq::Shape { entries, units } = self.device.shape;
        RecvLists { resources: Arc::downgrade(self.queue.resources()), pd: PD, entries, units, head: 1 }
    }
}

impl PaperSrqDevice {
    /// Takes the next receive from the list, if the doorbell record covers it, and returns the
    /// index of its entry.
    pub fn take(&mut self) -> Option<u16> {
        let posted = self.record.load();
        assert!(posted <= 0xffff, "a counter of {posted:#x}");
        if posted as u16 == self.taken {
            return None;
        }
        let entry = self.next;
        assert!(u32::from(entry) < self.shape.entries, "a link to entry {entry}");
        assert!(self.unfinished.insert(entry), "entry {entry} is posted already");
        self.taken = self.taken.wrapping_add(1);
        let bytes = self.entry(entry);
        assert!(bytes[..2] == [0; 2] && bytes[4..UNIT] == [0; 12], "reserved bytes of {bytes:x?}");
        self.next = u16::from_be_bytes([bytes[2], bytes[3]]);
        Some(entry)
    }

    /// Ends the receive in an entry on the device's side. The caller writes the completion
    /// afterwards.
    pub fn complete(&mut self, entry: u16) {
        assert!(self.unfinished.remove(&entry), "entry {entry} was not taken");
    }

    /// Returns the bytes of a taken entry.
    pub fn entry(&self, entry: u16) -> Vec<u8> {
        let len = self.shape.units as usize * UNIT;
        read(&self.memory, usize::from(entry) * len, len)
    }
}

fn read(region: &Region, at: usize, len: usize) -> Vec<u8> {
    // SAFETY: see the head of the file.
    (at..at + len).map(|at| unsafe { region.read::<u8>(at) }).collect()
}

/// A source of pseudo-random numbers below a limit.
#[cfg(test)]
pub(crate) struct Dice(pub(crate) u32);

#[cfg(test)]
impl Dice {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 8) as usize % limit
    }
}
