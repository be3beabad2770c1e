//! Frames: sends on raw packet queue pairs.
//!
//! The device needs a frame's header in the entry for steering. A device that can read headers from
//! memory needs no copy.
//!
//! ```text
//!   offset  0        4           6     8   12            14
//!           │ 0      │ checksums │ mss │ 0 │ header size │ header ...
//! ```
//!
//! # Safety
//! [`Frame::new`] reads the first bytes of a frame through the addresses in its list. The caller of
//! [`post_send`](verbs_core::provider::SendQueue::post_send) guarantees that these addresses name
//! memory of this process.
//!
//! # References
//! `ibv_post_send(3)`; rdma-core `providers/mlx5/qp.c` (`copy_eth_inline_headers`,
//! `set_tso_eth_seg`), `mlx5dv.h` (`mlx5_wqe_eth_seg`)
#![allow(unsafe_code)]

use core::iter;

use verbs_core::types::{PostReason, SendFlags, SendOp, SendWr, Sge};

use crate::wqe::{UNIT, Words, inline_units, opcode, pair};

/// The properties of frames on a queue pair.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Frames {
    /// The number of header bytes that an entry must contain: 0 or [`L2_HEADER`].
    pub(crate) min_inline: u32,
    /// The maximum header length of a segmented send, in bytes; 0 if the device does not segment.
    pub(crate) max_tso_header: u32,
    /// Whether the device computes the checksums of network and transport headers.
    pub(crate) has_ip_csum: bool,
}

impl Frames {
    /// Returns the number of units in an Ethernet segment with a header of this length.
    pub(crate) const fn units(header: u32) -> u32 {
        1 + header.saturating_sub(START as u32).div_ceil(UNIT as u32)
    }
}

/// The length of an Ethernet header with a VLAN tag, in bytes.
pub(crate) const L2_HEADER: u32 = 18;

/// The length of an Ethernet header without a VLAN tag, in bytes. No frame is shorter.
const MIN_HEADER: u32 = 14;

/// The number of header bytes in the Ethernet segment's first unit.
const START: usize = 2;

/// The flags for the checksums of the outer network and transport headers.
const CHECKSUMS: u32 = 0xc0;

/// The segments of a frame: its Ethernet segment and the list after the header.
pub(super) struct Frame<'a> {
    pub(super) opcode: u8,
    /// The first unit, with the first bytes of the header.
    start: Words,
    /// The header bytes after the first unit.
    header: &'a [u8],
    /// The list; its first `skipped` bytes are header bytes the Ethernet segment contains.
    list: &'a [Sge],
    skipped: u32,
    /// The length of the list without the skipped bytes.
    pub(super) length: u32,
}

impl<'a> Frame<'a> {
    /// Returns the segments of a request whose gather list covers `length` bytes. Copies the header
    /// to `room`.
    ///
    /// # Errors
    /// [`PostReason::FrameTooShort`] for a header or frame below the minimum;
    /// [`PostReason::HeaderTooLong`] for a segmented send's header beyond the maximum.
    ///
    /// # Safety
    /// The first [`L2_HEADER`] bytes of the list must be readable memory of this process.
    pub(super) unsafe fn new(
        frames: &Frames,
        wr: &SendWr<'a>,
        length: u32,
        room: &'a mut [u8; L2_HEADER as usize],
    ) -> Result<Self, PostReason> {
        if let SendOp::Tso { hdr, mss } = wr.op {
            let given = hdr.len() as u64;
            if given < MIN_HEADER.into() {
                return Err(PostReason::FrameTooShort { given, min: MIN_HEADER });
            }
            let max = frames.max_tso_header;
            if given > max.into() {
                return Err(PostReason::HeaderTooLong { given, max });
            }
            return Ok(Self::with_header(wr, opcode::TSO, mss, hdr, 0, length));
        }
        let (min, copied) = (MIN_HEADER.max(frames.min_inline), frames.min_inline);
        if length < min {
            return Err(PostReason::FrameTooShort { given: length.into(), min });
        }
        let header = &mut room[..copied as usize];
        // SAFETY: the caller promises that these bytes are memory of this process.
        unsafe { gather(wr.sge, header) };
        Ok(Self::with_header(wr, opcode::SEND, 0, header, copied, length - copied))
    }

    /// Returns the segments for a frame with this header. The data is the rest of the list after
    /// the first `skipped` bytes, and is `length` bytes long.
    fn with_header(
        wr: &SendWr<'a>,
        opcode: u8,
        mss: u16,
        header: &'a [u8],
        skipped: u32,
        length: u32,
    ) -> Self {
        let csum = if wr.flags.contains(SendFlags::IP_CSUM) { CHECKSUMS } else { 0 };
        let (start, rest) = header.split_at(header.len().min(START));
        let start = start.iter().fold(0, |word, byte| word << 8 | u32::from(*byte));
        let size = (header.len() as u32) << 16;
        let start = [pair(0, csum << 24 | u32::from(mss)), pair(0, size | start)];
        Self { opcode, start, header: rest, list: wr.sge, skipped, length }
    }

    /// Returns the units of the Ethernet segment in order.
    pub(super) fn ethernet(&self) -> impl Iterator<Item = Words> {
        iter::once(self.start).chain(self.header.chunks(UNIT).map(words))
    }

    /// Returns the list without the header bytes.
    pub(super) fn data(&self) -> impl Iterator<Item = Sge> {
        behind(self.list, self.skipped)
    }
}

/// Returns up to 16 bytes as a unit, padded with zeros.
fn words(bytes: &[u8]) -> Words {
    let mut unit = [0; UNIT];
    unit[..bytes.len()].copy_from_slice(bytes);
    let word = |at: usize| u64::from_be_bytes(core::array::from_fn(|byte| unit[at + byte]));
    [word(0), word(8)]
}

/// Returns a list without its first `skipped` bytes.
fn behind(list: &[Sge], mut skipped: u32) -> impl Iterator<Item = Sge> {
    list.iter().map(move |sge| {
        let own = skipped.min(sge.length);
        skipped -= own;
        Sge { addr: sge.addr + u64::from(own), length: sge.length - own, ..*sge }
    })
}

/// Fills `to` with the first bytes of a list's elements.
///
/// # Safety
/// These bytes must be readable memory of this process.
unsafe fn gather(list: &[Sge], to: &mut [u8]) {
    let mut copied = 0;
    for sge in list {
        let from = core::ptr::with_exposed_provenance::<u8>(sge.addr as usize);
        let count = (to.len() - copied).min(sge.length as usize);
        for (at, byte) in to[copied..copied + count].iter_mut().enumerate() {
            // Volatile, because peers may write the frame's region at any time.
            // SAFETY: the caller's promise.
            *byte = unsafe { from.add(at).read_volatile() };
        }
        copied += count;
    }
}

/// The first bytes of the header are at the end of the first unit.
const _: () = assert!(Frames::units(0) == 1 && Frames::units(L2_HEADER) == 2 && inline_units(0) == 0);

#[cfg(test)]
mod tests {
    use verbs_core::provider::SendQueue as _;
    use verbs_core::types::{QpState, QpType};

    use super::*;
    use crate::paper::{PaperQp, PaperShape, QP_NUM};

    const SHAPE: PaperShape = PaperShape {
        qp_type: QpType::RAW_PACKET,
        blocks: 16,
        blocks_of_request: 2,
        max_inline: 60,
        max_send_sge: 3,
        min_inline: 18,
        max_tso_header: 34,
        prefers_blue_flame: true,
        entries: 8,
        max_recv_sge: 3,
        cqes: 16,
        cqe_size: 64,
        compression: None,
    };

    fn ready(shape: PaperShape) -> PaperQp {
        // SAFETY: the test has one thread.
        let mut qp = unsafe { PaperQp::new(shape) };
        for state in [QpState::INIT, QpState::RTR, QpState::RTS] {
            qp.move_to(state);
        }
        qp
    }

    /// Returns a list of pieces of memory.
    fn list(pieces: &[&[u8]]) -> Vec<Sge> {
        let sge = |piece: &&[u8]| Sge {
            addr: piece.as_ptr().expose_provenance() as u64,
            length: piece.len() as u32,
            lkey: 0xaabb_ccdd,
        };
        pieces.iter().map(sge).collect()
    }

    /// Returns the data segment for a piece of memory, from the offset `from`.
    fn data(piece: &[u8], from: usize) -> Vec<u8> {
        let length = (piece.len() - from) as u32;
        let addr = piece[from..].as_ptr().addr() as u64;
        [&length.to_be_bytes()[..], &[0xaa, 0xbb, 0xcc, 0xdd], &addr.to_be_bytes()].concat()
    }

    /// Returns the bytes of a control segment and an Ethernet segment.
    fn head(opcode: u8, ds: u8, csum: u8, mss: u16, header: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0, 0, 0, opcode];
        bytes.extend((QP_NUM << 8 | u32::from(ds)).to_be_bytes());
        bytes.extend([0, 0, 0, 0x08, 0, 0, 0, 0]);
        bytes.extend([0, 0, 0, 0, csum, 0]);
        bytes.extend(mss.to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend((header.len() as u16).to_be_bytes());
        bytes.extend(header);
        bytes.resize(bytes.len().max(32).next_multiple_of(16), 0);
        bytes
    }

    fn posted(
        shape: PaperShape,
        op: SendOp<'_>,
        sge: &[Sge],
        flags: SendFlags,
    ) -> Result<Vec<u8>, PostReason> {
        let mut qp = ready(shape);
        let wr = SendWr { wr_id: 1, op, sge, flags: flags | SendFlags::SIGNALED };
        // SAFETY: a paper device accesses no memory, and the list names borrowed bytes.
        unsafe { qp.sq.post_one(&wr)? };
        qp.sq.ring().unwrap();
        let bytes = qp.blocks(0, 2);
        let ds = usize::from(bytes[7] & 0x3f);
        assert_eq!(qp.records()[1], ds.div_ceil(4) as u32);
        Ok(bytes[..ds * UNIT].to_vec())
    }

    #[test]
    fn the_header_of_a_frame_is_copied_from_the_start_of_its_list() {
        let frame: Vec<u8> = (0..64).collect();
        let (a, b, c) = (&frame[..10], &frame[10..18], &frame[18..]);
        for (pieces, expected) in [
            (&[&frame[..]][..], vec![data(&frame, 18)]),
            (&[&frame[..18], c], vec![data(c, 0)]),
            (&[a, b, c], vec![data(c, 0)]),
            (&[a, &frame[10..]], vec![data(&frame, 18)]),
            (&[&[], &frame, c], vec![data(&frame, 18), data(c, 0)]),
            (&[&frame[..18]], vec![]),
        ] {
            let bytes = posted(SHAPE, SendOp::Send, &list(pieces), SendFlags::empty()).unwrap();
            let head = head(0x0a, 3 + expected.len() as u8, 0, 0, &frame[..18]);
            assert_eq!(bytes, [head, expected.concat()].concat(), "{pieces:?}");
        }
    }

    #[test]
    fn a_device_that_needs_no_header_gets_the_list() {
        let frame: Vec<u8> = (0..64).collect();
        let shape = PaperShape { min_inline: 0, ..SHAPE };
        let bytes = posted(shape, SendOp::Send, &list(&[&frame]), SendFlags::IP_CSUM).unwrap();
        assert_eq!(bytes, [head(0x0a, 3, 0xc0, 0, &[]), data(&frame, 0)].concat());
    }

    #[test]
    fn inline_data_is_what_is_behind_the_header() {
        let frame: Vec<u8> = (0..60).collect();
        let flags = SendFlags::INLINE | SendFlags::IP_CSUM;
        for (pieces, copied) in [(&[&frame[..]][..], 18), (&[&frame[..9], &frame[9..]], 18)] {
            let bytes = posted(SHAPE, SendOp::Send, &list(pieces), flags).unwrap();
            let mut expected = head(0x0a, 6, 0xc0, 0, &frame[..copied]);
            expected.extend((0x8000_0000 | (60 - copied as u32)).to_be_bytes());
            expected.extend(&frame[copied..]);
            assert_eq!(bytes[..expected.len()], expected);
            assert_eq!(bytes.len(), 96);
        }
        let shape = PaperShape { min_inline: 0, ..SHAPE };
        let bytes = posted(shape, SendOp::Send, &list(&[&frame]), SendFlags::INLINE).unwrap();
        let expected = [head(0x0a, 6, 0, 0, &[]), 0x8000_003c_u32.to_be_bytes().to_vec(), frame].concat();
        assert_eq!(bytes, expected);
    }

    #[test]
    fn a_segmented_send_has_its_header_in_the_entry_and_the_list_behind_it() {
        let (header, payload): (Vec<u8>, Vec<u8>) = ((0..34).collect(), vec![7; 3000]);
        for length in [14, 18, 19, 34] {
            let hdr = &header[..length];
            let op = SendOp::Tso { hdr, mss: 1448 };
            let bytes = posted(SHAPE, op, &list(&[&payload]), SendFlags::IP_CSUM).unwrap();
            let ds = 1 + 1 + (length - 2).div_ceil(16) + 1;
            let expected = [head(0x0e, ds as u8, 0xc0, 1448, hdr), data(&payload, 0)].concat();
            assert_eq!(bytes, expected, "{length}");
        }
    }

    #[test]
    fn frames_and_headers_of_wrong_lengths_are_refused() {
        let bytes = [0; 60];
        let frame = |shape, length: usize| {
            posted(shape, SendOp::Send, &list(&[&bytes[..length]]), SendFlags::empty()).unwrap_err()
        };
        assert_eq!(frame(SHAPE, 17), PostReason::FrameTooShort { given: 17, min: 18 });
        let shape = PaperShape { min_inline: 0, ..SHAPE };
        assert_eq!(frame(shape, 13), PostReason::FrameTooShort { given: 13, min: 14 });
        let segmented = |length: usize| {
            let op = SendOp::Tso { hdr: &bytes[..length], mss: 1 };
            posted(SHAPE, op, &[], SendFlags::empty()).unwrap_err()
        };
        assert_eq!(segmented(13), PostReason::FrameTooShort { given: 13, min: 14 });
        assert_eq!(segmented(35), PostReason::HeaderTooLong { given: 35, max: 34 });
    }

    #[test]
    fn a_full_queue_refuses_frames() {
        let (frame, mut qp) = ([0; 64], ready(SHAPE));
        let list = list(&[&frame]);
        let wr = SendWr { wr_id: 1, op: SendOp::Send, sge: &list, flags: SendFlags::empty() };
        for _ in 0..8 {
            // SAFETY: a paper device accesses no memory, and the list names borrowed bytes.
            unsafe { qp.sq.post_one(&wr) }.unwrap();
        }
        // SAFETY: as above.
        assert_eq!(unsafe { qp.sq.post_one(&wr) }, Err(PostReason::QueueFull));
    }

    #[test]
    fn a_frame_wraps_at_the_end_of_the_queue() {
        let frame: Vec<u8> = (0..60).collect();
        let mut qp = ready(SHAPE);
        let short = SendWr { wr_id: 1, op: SendOp::Send, sge: &list(&[&frame]), flags: SendFlags::SIGNALED };
        for round in 0..15_u16 {
            // SAFETY: a paper device accesses no memory.
            unsafe { qp.sq.post_send(&[short]) }.unwrap();
            qp.write(crate::paper::PaperCqe { wqe_opcode: 0xa, wqe_counter: round, ..Default::default() });
            assert!(qp.lend().is_some());
        }
        let long = SendWr { flags: SendFlags::INLINE, ..short };
        // SAFETY: as above, and inline data is borrowed.
        unsafe { qp.sq.post_send(&[long]) }.unwrap();
        // A control segment, an Ethernet segment, the rest of the header, and the first 12 inline
        // bytes.
        let bytes = qp.blocks(15, 2);
        assert_eq!(bytes[30..48], frame[..18]);
        assert_eq!(bytes[48..52], 0x8000_002a_u32.to_be_bytes());
        assert_eq!(bytes[52..94], frame[18..]);
        assert_eq!(qp.records()[1], 17);
    }
}
