//! Binding and unbinding memory windows: requests as libmlx5 writes them, and deviations.

use super::umr::{ACCESS_ERROR, BIND_ERROR, FREE, KEY, QPN, Umr, bed, outcome, write};
use super::*;
use crate::layout::wqe::{klm, umr_ctrl};

/// The mask bits of a bind besides those for the key and the free bit: length, start address,
/// rights.
const RANGE: u64 = 1 | 1 << 6 | 0xf << 18;

/// Creates a window of type 2 if `two` is set, otherwise of type 1.
pub(super) fn window(bed: &mut Bed, two: bool) -> u32 {
    let mut input = input(0x200, create_mkey_in::KLM_PAS_MTT);
    let context = create_mkey_in::MEMORY_KEY_MKEY_ENTRY.bytes_mut(&mut input);
    for field in [mkc::FREE, mkc::UMR_EN, mkc::LR] {
        field.set(context, 1u32);
    }
    mkc::EN_RINVAL.set(context, u32::from(two));
    mkc::ACCESS_MODE_1_0.set(context, 2u32);
    mkc::QPN.set(context, 0xff_ffffu32);
    mkc::PD.set(context, bed.pds[0]);
    mkc::TRANSLATIONS_OCTWORD_SIZE.set(context, 4u32);
    create_mkey_out::MKEY_INDEX.get32(&bed.ok(0, &input)) << 8
}

/// A UMR that changes a window, with its list.
pub(super) struct Change {
    umr: Umr,
    list: Vec<u8>,
}

impl Change {
    /// Fills the key context with bytes of older work requests, except for the fields that `mask`
    /// selects.
    fn new(mask: u64, two: bool, owner: u32, key: u32) -> Self {
        let umr =
            Umr { context: [0xa5; mkc::SIZE], ..Umr::new(mask | FREE | KEY | if two { QPN } else { 0 }) };
        let umr = umr.control(umr_ctrl::TRANSLATION_OFFSET_EN, 1);
        let umr = umr.context(mkc::QPN, owner.into()).context(mkc::MKEY_7_0, (key & 0xff).into());
        Self { umr, list: Vec::new() }
    }

    /// Returns a bind that gives the window a new key, with read and write rights for peers.
    pub(super) fn bind(
        pair: &Pair,
        new: u32,
        two: bool,
        (memory, offset, length): (&Memory, u64, u64),
    ) -> Self {
        let Self { umr, .. } = Self::new(RANGE, two, if two { pair.qpn } else { 0xff_ffff }, new);
        let umr = umr.control(umr_ctrl::KLM_OCTOWORDS, 4).control(umr_ctrl::CHECK_FREE, two.into());
        let umr = umr.context(mkc::FREE, 0).context(mkc::LW, 0).context(mkc::A, 0);
        let umr = umr.context(mkc::RR, 1).context(mkc::RW, 1);
        let umr = umr.context(mkc::START_ADDR, memory.va + offset).context(mkc::LEN, length);
        let mut list = vec![0; 64];
        klm::BYTE_COUNT.set(&mut list, length);
        klm::MKEY.set(&mut list, memory.key);
        klm::VA.set(&mut list, memory.va + offset);
        Self { umr, list }
    }

    /// Returns an unbind. For a type 2 window, this is a local invalidation.
    pub(super) fn unbind(new: u32, two: bool) -> Self {
        let Self { umr, list } = Self::new(0, two, 0xff_ffff, new);
        Self { umr: umr.control(umr_ctrl::CHECK_QPN, two.into()).context(mkc::FREE, 1), list }
    }

    pub(super) fn wqe(&self, bed: &Bed, pair: &Pair, key: u32) -> Vec<u8> {
        self.umr.wqe(bed, pair, key, &self.list)
    }

    fn mask(&self) -> u64 {
        umr_ctrl::MKEY_MASK.get(&self.umr.control)
    }

    fn set_mask(&mut self, mask: u64) {
        umr_ctrl::MKEY_MASK.set(&mut self.umr.control, mask);
    }

    fn control(&mut self, field: Field, value: u32) {
        field.set(&mut self.umr.control, value);
    }
}

#[test]
fn a_window_gives_access_to_its_piece_until_it_is_unbound() {
    for two in [false, true] {
        // A type 2 window is valid only for peers of the queue pair that has bound it, here the
        // second one.
        let (mut bed, mut cq, mut one, mut other, memory, _) = bed();
        let key = window(&mut bed, two);
        let bind = Change::bind(&other, key | 5, two, (&memory, 0x2000, 0x100)).wqe(&bed, &other, key);
        bed.post(&mut other, &bind);
        assert_eq!(bed.drain(&mut cq), [(SUCCESS, 0)]);
        write(&mut bed, &mut one, memory.va + 0x20f0, key | 5);
        assert_eq!(bed.drain(&mut cq), [(SUCCESS, 0)]);
        assert_eq!(&bed.peek::<10>(0, memory.address + 0x20f0), b"through it");
        let unbind = Change::unbind(key | 5, two).wqe(&bed, &other, key | 5);
        bed.post(&mut other, &unbind);
        assert_eq!(bed.drain(&mut cq).len(), 1);
        write(&mut bed, &mut one, memory.va + 0x20f0, key | 5);
        let mut entries = std::iter::from_fn(|| bed.poll(&mut cq)).map(|entry| error(&entry));
        assert!(entries.any(|entry| entry == ACCESS_ERROR));
    }
}

#[test]
fn a_window_of_a_piece_that_its_region_does_not_have_is_a_bind_error() {
    let (mut bed, mut cq, _, mut other, memory, _) = bed();
    let key = window(&mut bed, true);
    let bind = Change::bind(&other, key | 5, true, (&memory, 0x3fff, 2)).wqe(&bed, &other, key);
    bed.post(&mut other, &bind);
    assert_eq!(bed.poll(&mut cq).map(|entry| error(&entry)), Some(BIND_ERROR));
}

/// Posts a bind changed by `change` or, after a valid bind, an unbind changed by `change`. Returns
/// the broken rules, and the opcode and the syndrome of the completion.
fn posted(two: bool, binds: bool, change: impl FnOnce(&mut Change)) -> (Vec<Rule>, (u32, u32)) {
    let (mut bed, mut cq, mut one, _, memory, _) = bed();
    let key = window(&mut bed, two);
    let mut request = Change::bind(&one, key | 5, two, (&memory, 0x2000, 0x100));
    let mut present = key;
    if !binds {
        let bind = request.wqe(&bed, &one, key);
        bed.post(&mut one, &bind);
        assert_eq!(bed.drain(&mut cq), [(SUCCESS, 0)]);
        present = key | 5;
        request = Change::unbind(key | 6, two);
    }
    change(&mut request);
    let wqe = request.wqe(&bed, &one, present);
    bed.post(&mut one, &wqe);
    let entry = bed.poll(&mut cq).unwrap();
    (bed.rules(), outcome(&entry))
}

/// Each type of window and each operation: whether the window is of type 2, and whether it is bound
/// or unbound.
const ALL: [(bool, bool); 4] = [(false, true), (false, false), (true, true), (true, false)];

fn refused() -> (Vec<Rule>, (u32, u32)) {
    (vec![Rule::WqeUmr], (SEND_ERROR, 0x02))
}

fn reported() -> (Vec<Rule>, (u32, u32)) {
    (vec![Rule::UmrForm], (SUCCESS, 0))
}

const PASSES: (Vec<Rule>, (u32, u32)) = (vec![], (SUCCESS, 0));

#[test]
fn a_window_is_rejected_if_the_mask_leaves_out_a_field_that_it_uses() {
    for (two, binds) in ALL {
        assert_eq!(posted(two, binds, |_| ()), PASSES, "type 2 {two}, bind {binds}");
        let bits: &[u32] = if binds { &[0, 6, 13, 18, 19, 20, 21, 29] } else { &[13, 29] };
        for bit in bits.iter().copied().chain(two.then_some(14)) {
            let made = posted(two, binds, |change| {
                assert_ne!(change.mask() & 1 << bit, 0);
                change.set_mask(change.mask() & !(1 << bit));
            });
            assert_eq!(made, refused(), "type 2 {two}, bind {binds}, bit {bit}");
        }
    }
}

#[test]
fn a_window_is_rejected_if_the_mask_names_a_field_that_windows_keep() {
    for (two, binds) in ALL {
        // Mask bits: page size, domain, remote invalidation, order of reads.
        for bit in [1, 7, 8, 47] {
            let made = posted(two, binds, |change| change.set_mask(change.mask() | 1 << bit));
            assert_eq!(made, refused(), "type 2 {two}, bind {binds}, bit {bit}");
        }
        let local_read = posted(two, binds, |change| change.set_mask(change.mask() | 1 << 17));
        assert_eq!(local_read, PASSES);
    }
    let queue_pair = |change: &mut Change| change.set_mask(change.mask() | QPN);
    for binds in [true, false] {
        assert_eq!(posted(false, binds, queue_pair), refused());
    }
}

#[test]
fn a_window_of_type_2_is_rejected_with_another_queue_pair_than_its_own() {
    for (binds, owner) in [(true, 0xff_ffffu32), (true, 0x77), (false, 0x77)] {
        let made = posted(true, binds, |change| mkc::QPN.set(&mut change.umr.context, owner));
        assert_eq!(made, refused());
    }
    // The mask omits this field.
    for binds in [true, false] {
        assert_eq!(posted(false, binds, |change| mkc::QPN.set(&mut change.umr.context, 0x77u32)), PASSES);
    }
}

#[test]
fn a_window_is_rejected_with_a_list_that_is_not_one_piece() {
    for two in [false, true] {
        let lists: [fn(&mut Change); 9] = [
            |change| change.control(umr_ctrl::KLM_OCTOWORDS, 0),
            |change| change.control(umr_ctrl::KLM_OCTOWORDS, 1),
            |change| change.list.clear(),
            |change| {
                change.control(umr_ctrl::KLM_OCTOWORDS, 8);
                change.list.resize(128, 0);
            },
            |change| {
                change.control(umr_ctrl::INLINE, 0);
                change.list = element(0, 64, 0x100).to_vec();
            },
            |change| change.control(umr_ctrl::TRANSLATION_OFFSET, 4),
            |change| change.control(umr_ctrl::TRANSLATION_OFFSET_42_16, 1),
            |change| klm::BYTE_COUNT.set(&mut change.list, 0xffu32),
            |change| {
                klm::BYTE_COUNT.set(&mut change.list, 0u32);
                mkc::LEN.set(&mut change.umr.context, 0u32);
            },
        ];
        for (number, list) in lists.into_iter().enumerate() {
            assert_eq!(posted(two, true, list), refused(), "type 2 {two}, list {number}");
        }
        let with_list = |change: &mut Change| {
            change.control(umr_ctrl::KLM_OCTOWORDS, 4);
            change.list = vec![0; 64];
        };
        assert_eq!(posted(two, false, with_list), refused());
        assert_eq!(posted(two, false, |change| change.control(umr_ctrl::KLM_OCTOWORDS, 4)), refused());
    }
}

#[test]
fn checks_flags_and_padding_that_libmlx5_does_not_write_are_reported() {
    for (two, binds) in ALL {
        // No check, a check for a free window, and a check for a valid window.
        for check in [0, 1, 2] {
            let expected = if check == u32::from(two && binds) { PASSES } else { reported() };
            let made = posted(two, binds, |change| change.control(umr_ctrl::CHECK_FREE, check));
            assert_eq!(made, expected, "type 2 {two}, bind {binds}, check {check}");
        }
        for check in [0, 1] {
            let expected = if check == u32::from(two && !binds) { PASSES } else { reported() };
            let made = posted(two, binds, |change| change.control(umr_ctrl::CHECK_QPN, check));
            assert_eq!(made, expected, "type 2 {two}, bind {binds}, check of the queue pair {check}");
        }
        let flag = |change: &mut Change| change.control(umr_ctrl::TRANSLATION_OFFSET_EN, 0);
        assert_eq!(posted(two, binds, flag), reported());
        if binds {
            assert_eq!(posted(two, true, |change| change.list[16] = 1), reported());
            assert_eq!(posted(two, true, |change| change.list[63] = 1), reported());
        } else {
            assert_eq!(posted(two, false, |change| change.control(umr_ctrl::INLINE, 0)), reported());
        }
    }
}

#[test]
fn a_program_that_confuses_the_types_of_windows_breaks_no_rule() {
    // `ibv_wr_bind_mw` and `IBV_WR_LOCAL_INV` treat every window as type 2.
    let bind = |change: &mut Change| {
        change.set_mask(change.mask() | QPN);
        change.control(umr_ctrl::CHECK_FREE, 1);
    };
    let (mut bed, mut cq, mut one, _, memory, _) = bed();
    let key = window(&mut bed, false);
    let mut request = Change::bind(&one, key | 5, true, (&memory, 0x2000, 0x100));
    bind(&mut request);
    let wqe = request.wqe(&bed, &one, key);
    bed.post(&mut one, &wqe);
    assert_eq!(bed.poll(&mut cq).map(|entry| error(&entry)), Some(BIND_ERROR));
    let unbind = |change: &mut Change| {
        change.set_mask(change.mask() | QPN);
        change.control(umr_ctrl::CHECK_QPN, 1);
    };
    assert_eq!(posted(false, false, unbind), PASSES);
}
