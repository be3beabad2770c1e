//! UMRs that change memory keys.

use super::*;
use crate::layout::wqe::{klm, umr_ctrl};

/// The mask bits that the kernel selects to make a key valid.
const LEND: u64 = 1 | 1 << 1 | 1 << 6 | 1 << 8 | 1 << 13 | 0x1f << 17 | 1 << 23 | 1 << 29;
pub(super) const FREE: u64 = 1 << 29;
pub(super) const KEY: u64 = 1 << 13;
pub(super) const QPN: u64 = 1 << 14;

/// Creates a free key for `pages` pages.
pub(super) fn fast_key(bed: &mut Bed, pages: u32) -> u32 {
    let mut input = input(0x200, create_mkey_in::KLM_PAS_MTT);
    let context = create_mkey_in::MEMORY_KEY_MKEY_ENTRY.bytes_mut(&mut input);
    for field in [mkc::FREE, mkc::UMR_EN, mkc::LR, mkc::ACCESS_MODE_1_0] {
        field.set(context, 1u32);
    }
    mkc::QPN.set(context, 0xff_ffffu32);
    mkc::PD.set(context, bed.pds[0]);
    mkc::TRANSLATIONS_OCTWORD_SIZE.set(context, pages.div_ceil(2).next_multiple_of(4));
    mkc::LOG_PAGE_SIZE.set(context, 12u32);
    create_mkey_out::MKEY_INDEX.get32(&bed.ok(0, &input)) << 8
}

/// The control segment and the key context of a UMR.
pub(super) struct Umr {
    pub(super) control: [u8; umr_ctrl::SIZE],
    pub(super) context: [u8; mkc::SIZE],
}

impl Umr {
    pub(super) fn new(mask: u64) -> Self {
        let mut control = [0; umr_ctrl::SIZE];
        umr_ctrl::MKEY_MASK.set(&mut control, mask);
        umr_ctrl::INLINE.set(&mut control, 1u32);
        let mut context = [0; mkc::SIZE];
        mkc::QPN.set(&mut context, 0xff_ffffu32);
        Self { control, context }
    }

    pub(super) fn control(mut self, field: Field, value: u32) -> Self {
        field.set(&mut self.control, value);
        self
    }

    pub(super) fn context(mut self, field: Field, value: u64) -> Self {
        field.set(&mut self.context, value);
        self
    }

    pub(super) fn wqe(&self, bed: &Bed, pair: &Pair, key: u32, list: &[u8]) -> Vec<u8> {
        let wqe = bed.begin(pair, opcode::UMR).set(ctrl::IMM, key);
        wqe.raw(&self.control).raw(&self.context).raw(list).done()
    }
}

pub(super) fn lender(key: u32, va: u64, length: u64) -> Umr {
    let mut umr = Umr::new(LEND)
        .control(umr_ctrl::CHECK_FREE, 1)
        .context(mkc::START_ADDR, va)
        .context(mkc::LEN, length)
        .context(mkc::LOG_PAGE_SIZE, 12)
        .context(mkc::EN_RINVAL, 1)
        .context(mkc::MKEY_7_0, (key & 0xff).into());
    for right in [mkc::LR, mkc::LW, mkc::RR, mkc::RW] {
        right.set(&mut umr.context, 1u32);
    }
    umr
}

/// Returns a UMR that maps a free key to the two pages at `address`.
pub(super) fn lend(bed: &Bed, pair: &Pair, key: u32, va: u64, address: u64) -> Vec<u8> {
    let umr = lender(key, va, 2 * PAGE).control(umr_ctrl::KLM_OCTOWORDS, 4);
    let mut list = [0; 64];
    list[..8].copy_from_slice(&(address | 3).to_be_bytes());
    list[8..16].copy_from_slice(&((address + PAGE) | 3).to_be_bytes());
    umr.wqe(bed, pair, key, &list)
}

/// Returns a bed with two connected queue pairs on one function, registered memory, and a free key.
pub(super) fn bed() -> (Bed, Cq, Pair, Pair, Memory, u32) {
    let (mut bed, cq, one, two, memory) = sends::bed(RC);
    let key = fast_key(&mut bed, 4);
    (bed, cq, one, two, memory, key)
}

pub(super) fn write(bed: &mut Bed, pair: &mut Pair, va: u64, key: u32) {
    let wqe = bed.begin(pair, opcode::WRITE).remote(va, key).inline(b"through it").done();
    bed.post(pair, &wqe);
}

/// Returns the opcode and the syndrome of a completion. Without an error, the syndrome is 0.
pub(super) fn outcome(entry: &[u8; 64]) -> (u32, u32) {
    let (opcode, syndrome) = error(entry);
    (opcode, if opcode == SEND_ERROR { syndrome } else { 0 })
}

pub(super) const BIND_ERROR: (u32, u32) = (13, 0x06);
pub(super) const ACCESS_ERROR: (u32, u32) = (13, 0x13);

#[test]
fn a_free_key_lends_pages_from_the_next_work_request_on() {
    let (mut bed, mut cq, mut one, _, memory, key) = bed();
    let wqe = lend(&bed, &one, key | 9, 0x5_0000, memory.address + 0x1000);
    // The work request names the new key, whose low 8 bits are in the context.
    bed.put(&mut one, &wqe);
    let behind = bed.begin(&one, opcode::WRITE).remote(0x5_0ffb, key | 9).inline(b"through it").done();
    bed.post(&mut one, &behind);
    assert_eq!(bed.drain(&mut cq), [(SUCCESS, 0), (SUCCESS, 3)]);
    assert_eq!(&bed.peek::<10>(0, memory.address + 0x1ffb), b"through it");
    // The old key is invalid.
    write(&mut bed, &mut one, 0x5_0000, key);
    let mut entries = std::iter::from_fn(|| bed.poll(&mut cq)).map(|entry| error(&entry));
    assert!(entries.any(|entry| entry == ACCESS_ERROR));
}

#[test]
fn a_list_comes_from_memory_and_at_an_offset() {
    let (mut bed, mut cq, mut one, _, memory, key) = bed();
    let at = |bed: &Bed, n: u64, page: u64| bed.poke(0, memory.address + n * 8, &(page | 3).to_be_bytes());
    at(&bed, 0, memory.address + 0x2000);
    for n in 1..8 {
        at(&bed, n, memory.address + 0x1000);
    }
    let pointer = element(memory.va, 64, memory.key);
    let fill = Umr::new(0)
        .control(umr_ctrl::INLINE, 0)
        .control(umr_ctrl::CHECK_FREE, 1)
        .control(umr_ctrl::KLM_OCTOWORDS, 4)
        .wqe(&bed, &one, key, &pointer);
    bed.post(&mut one, &fill);
    assert_eq!(bed.drain(&mut cq), [(SUCCESS, 0)]);
    // Only the first pages of the list are written, and the key becomes valid.
    let open = lender(key, 0x9000, 2 * PAGE).wqe(&bed, &one, key, &[]);
    bed.post(&mut one, &open);
    assert_eq!(bed.drain(&mut cq).len(), 1);
    write(&mut bed, &mut one, 0x9008, key);
    assert_eq!(bed.drain(&mut cq).len(), 1);
    assert_eq!(&bed.peek::<10>(0, memory.address + 0x2008), b"through it");
}

#[test]
fn work_requests_before_a_change_execute_with_the_old_key() {
    let (mut bed, mut cq, mut one, _, memory, _) = bed();
    let first = bed.begin(&one, opcode::WRITE).remote(memory.va, memory.key).inline(b"before").done();
    bed.put(&mut one, &first);
    let free = Umr::new(FREE).context(mkc::FREE, 1).wqe(&bed, &one, memory.key, &[]);
    bed.put(&mut one, &free);
    let last = bed.begin(&one, opcode::WRITE).remote(memory.va, memory.key).inline(b"after").done();
    bed.post(&mut one, &last);
    assert_eq!(bed.drain(&mut cq)[..2], [(SUCCESS, 0), (SUCCESS, 1)]);
    assert_eq!(&bed.peek::<6>(0, memory.address), b"before");
    bed.events(0);
}

#[test]
fn rights_and_domain_of_registered_memory_change() {
    let mut bed = Bed::ib();
    let mut cq = bed.cq(0, 6, 64);
    let other = bed.alloc_pd(0);
    let more = &[(qpc::RQ_TYPE, 3)];
    let mut kernel = bed.pair(&cq, &Shape { service: REG_UMR, more, ..Shape::default() });
    bed.init(&kernel, REG_UMR);
    let itself = kernel.clone();
    bed.connect(&kernel, REG_UMR, &itself);
    let memory = bed.memory(0, 1);
    let mask = 0x1f << 17 | 1 << 7;
    let change = Umr::new(mask)
        .control(umr_ctrl::CHECK_FREE, 2)
        .context(mkc::LR, 1)
        .context(mkc::PD, other.into())
        .wqe(&bed, &kernel, memory.key, &[]);
    bed.post(&mut kernel, &change);
    assert_eq!(bed.drain(&mut cq), [(SUCCESS, 0)]);
    let (_, attr) = bed.fabric.functions[0].engine.mr_by_index(memory.key >> 8).unwrap();
    assert_eq!((attr.pd.0, attr.access.contains(roce::engine::Access::REMOTE_WRITE)), (other, false));
    // The UMR revokes the key: the key becomes free and returns to the first domain.
    let revoke = Umr::new(FREE | 1 << 7).context(mkc::FREE, 1).context(mkc::PD, bed.pds[0].into());
    let wqe = revoke.wqe(&bed, &kernel, memory.key, &[]);
    bed.post(&mut kernel, &wqe);
    assert_eq!(bed.drain(&mut cq).len(), 1);
    assert_eq!(bed.fabric.functions[0].engine.mr_is_valid(memory.key >> 8), Some(false));
}

#[test]
fn a_key_in_the_wrong_state_or_of_another_domain_is_a_bind_error() {
    type Make = fn(&mut Bed, &Pair, &Memory, u32) -> Vec<u8>;
    let cases: [Make; 3] = [
        // A check for a valid key fails if the key is free.
        |bed, one, _, key| Umr::new(0).control(umr_ctrl::CHECK_FREE, 2).wqe(bed, one, key, &[]),
        // A check for a free key fails if the key is valid.
        |bed, one, memory, _| Umr::new(0).control(umr_ctrl::CHECK_FREE, 1).wqe(bed, one, memory.key, &[]),
        // The key does not exist.
        |bed, one, _, _| Umr::new(0).wqe(bed, one, 0x00ab_cd00, &[]),
    ];
    for make in cases {
        let (mut bed, mut cq, mut one, _, memory, key) = bed();
        let wqe = make(&mut bed, &one, &memory, key);
        bed.post(&mut one, &wqe);
        assert_eq!(bed.poll(&mut cq).map(|entry| error(&entry)), Some(BIND_ERROR));
    }
}

#[test]
fn a_change_of_rights_leaves_the_list_where_it_is() {
    let (mut bed, mut cq, mut one, _, memory, _) = bed();
    let list = |bed: &Bed| {
        std::sync::Arc::clone(bed.fabric.functions[0].core.mkeys.get(memory.key >> 8).unwrap().list())
    };
    let before = list(&bed);
    let change = Umr::new(0x1f << 17).context(mkc::LR, 1).wqe(&bed, &one, memory.key, &[]);
    bed.post(&mut one, &change);
    assert_eq!(bed.drain(&mut cq), [(SUCCESS, 0)]);
    assert!(std::sync::Arc::ptr_eq(&before, &list(&bed)));
}

#[test]
fn a_list_is_changed_in_its_place() {
    let (mut bed, mut cq, mut one, _, memory, key) = bed();
    let place =
        |bed: &Bed| std::sync::Arc::as_ptr(bed.fabric.functions[0].core.mkeys.get(key >> 8).unwrap().list());
    let wqe = lend(&bed, &one, key, 0x5_0000, memory.address);
    bed.post(&mut one, &wqe);
    assert_eq!(bed.drain(&mut cq), [(SUCCESS, 0)]);
    let before = place(&bed);
    let mut pages = [0; 64];
    pages[..8].copy_from_slice(&((memory.address + 2 * PAGE) | 3).to_be_bytes());
    pages[8..16].copy_from_slice(&((memory.address + 3 * PAGE) | 3).to_be_bytes());
    let change = Umr::new(0).control(umr_ctrl::KLM_OCTOWORDS, 4).wqe(&bed, &one, key, &pages);
    bed.post(&mut one, &change);
    assert_eq!(bed.drain(&mut cq).len(), 1);
    assert_eq!(place(&bed), before);
    write(&mut bed, &mut one, 0x5_0000, key);
    assert_eq!(bed.drain(&mut cq).len(), 1);
    assert_eq!(&bed.peek::<10>(0, memory.address + 2 * PAGE), b"through it");
}

#[test]
fn a_key_that_was_invalidated_gives_no_access_to_keys_that_refer_to_it() {
    let (mut bed, mut cq, mut one, _, memory, key) = bed();
    let wqe = lend(&bed, &one, key, 0x5_0000, memory.address);
    bed.post(&mut one, &wqe);
    assert_eq!(bed.drain(&mut cq), [(SUCCESS, 0)]);
    let mut input = input(0x200, create_mkey_in::KLM_PAS_MTT);
    create_mkey_in::TRANSLATIONS_OCTWORD_ACTUAL_SIZE.set(&mut input, 1u32);
    let context = create_mkey_in::MEMORY_KEY_MKEY_ENTRY.bytes_mut(&mut input);
    for (field, value) in [
        (mkc::LR, 1),
        (mkc::ACCESS_MODE_1_0, 2),
        (mkc::QPN, 0xff_ffff),
        (mkc::PD, bed.pds[0]),
        (mkc::LEN, 0x100),
        (mkc::TRANSLATIONS_OCTWORD_SIZE, 1),
    ] {
        field.set(context, value);
    }
    let mut piece = [0; 16];
    klm::BYTE_COUNT.set(&mut piece, 0x100u32);
    klm::MKEY.set(&mut piece, key);
    klm::VA.set(&mut piece, 0x5_0000u64);
    input.extend(piece);
    let made = create_mkey_out::MKEY_INDEX.get32(&bed.ok(0, &input)) << 8;
    let sge = roce::engine::Sge { addr: 0, length: 8, lkey: made };
    let pd = roce::engine::Pd(bed.pds[0]);
    assert!(bed.fabric.functions[0].engine.gather(pd, &[sge], &mut [0; 8]).is_ok());
    let wqe = bed.begin(&one, opcode::SEND_INVAL).set(ctrl::IMM, key).inline(b"x").done();
    bed.post(&mut one, &wqe);
    assert!(!bed.drain(&mut cq).is_empty());
    assert!(bed.fabric.functions[0].engine.gather(pd, &[sge], &mut [0; 8]).is_err());
}

#[test]
fn a_refused_change_leaves_list_and_context() {
    let (mut bed, mut cq, mut one, _, memory, _) = bed();
    let state = |bed: &Bed| {
        let function = &bed.fabric.functions[0];
        let key = function.core.mkeys.get(memory.key >> 8).unwrap();
        let mut list = vec![0xff; 64];
        key.list().peek(&mut list);
        (key.context, list)
    };
    let before = state(&bed);
    let mut odd = [[0, 0, 0, 0, 0, 0, 0x12, 0]; 8].concat();
    // The 64-byte unit of the UMR's list is larger than the key's list.
    odd[32..].fill(0);
    let change = Umr::new(1 << 17).control(umr_ctrl::KLM_OCTOWORDS, 4).wqe(&bed, &one, memory.key, &odd);
    bed.post(&mut one, &change);
    assert_eq!(bed.rules(), [Rule::WqeUmr]);
    assert_eq!(bed.poll(&mut cq).map(|entry| error(&entry)), Some(BIND_ERROR));
    assert_eq!(state(&bed), before);
    let sge = roce::engine::Sge { addr: memory.va, length: 8, lkey: memory.key };
    let pd = roce::engine::Pd(bed.pds[0]);
    bed.poke(0, memory.address, b"as it is");
    let mut bytes = [0; 8];
    bed.fabric.functions[0].engine.gather(pd, &[sge], &mut bytes).unwrap();
    assert_eq!(&bytes, b"as it is");
}

#[test]
fn a_umr_that_breaks_a_rule_is_refused() {
    type Make = fn(&Bed, &Pair, u32) -> Vec<u8>;
    let cases: [(Rule, Make); 14] = [
        (Rule::WqeUmr, |bed, one, key| Umr::new(1 << 40).wqe(bed, one, key, &[])),
        (Rule::WqeUmr, |bed, one, key| Umr::new(0).control(umr_ctrl::CHECK_FREE, 3).wqe(bed, one, key, &[])),
        // A list that is announced but missing, and a list that exceeds the key's capacity.
        (Rule::WqeUmr, |bed, one, key| {
            Umr::new(0).control(umr_ctrl::KLM_OCTOWORDS, 4).wqe(bed, one, key, &[])
        }),
        (Rule::WqeUmr, |bed, one, key| {
            Umr::new(0).control(umr_ctrl::KLM_OCTOWORDS, 8).wqe(bed, one, key, &[1; 128])
        }),
        // Misaligned pages, and an invalid page size.
        (Rule::WqeUmr, |bed, one, key| {
            let umr = lender(key, 0, 2 * PAGE).control(umr_ctrl::KLM_OCTOWORDS, 4);
            umr.wqe(bed, one, key, &[[0, 0, 0, 0, 0, 0, 0x12, 0]; 8].concat())
        }),
        (Rule::WqeUmr, |bed, one, key| {
            let umr = lender(key, 0, 2).context(mkc::LOG_PAGE_SIZE, 50).control(umr_ctrl::KLM_OCTOWORDS, 4);
            umr.wqe(bed, one, key, &[0; 64])
        }),
        // A key that becomes valid without any pages.
        (Rule::WqeUmr, |bed, one, key| lender(key, 0, 2 * PAGE).wqe(bed, one, key, &[])),
        (Rule::WqeSize, |bed, one, key| Umr::new(0).wqe(bed, one, key, &[0; 32])),
        // A list longer or shorter than announced, inline and in memory.
        (Rule::WqeUmr, |bed, one, key| {
            lender(key, 0, 2).control(umr_ctrl::KLM_OCTOWORDS, 3).wqe(bed, one, key, &[0; 64])
        }),
        (Rule::WqeUmr, |bed, one, key| {
            let umr = Umr::new(0).control(umr_ctrl::INLINE, 0).control(umr_ctrl::KLM_OCTOWORDS, 4);
            umr.wqe(bed, one, key, &element(0x1000, 128, key))
        }),
        // An offset without the flag that announces an offset.
        (Rule::WqeUmr, |bed, one, key| {
            let umr = Umr::new(0).control(umr_ctrl::TRANSLATION_OFFSET, 4);
            umr.control(umr_ctrl::KLM_OCTOWORDS, 4).wqe(bed, one, key, &[0; 64])
        }),
        // A list for a key that becomes free.
        (Rule::WqeUmr, |bed, one, key| {
            let umr = Umr::new(FREE).context(mkc::FREE, 1).control(umr_ctrl::KLM_OCTOWORDS, 4);
            umr.wqe(bed, one, key, &[0; 64])
        }),
        // Another protection domain, which only the kernel's own queue pair may select.
        (Rule::WqeUmr, |bed, one, key| {
            Umr::new(1 << 7).context(mkc::PD, bed.pds[0].into()).wqe(bed, one, key, &[])
        }),
        // A restriction of the key to one queue pair.
        (Rule::WqeUmr, |bed, one, key| {
            Umr::new(QPN).context(mkc::QPN, one.qpn.into()).wqe(bed, one, key, &[])
        }),
    ];
    for (rule, make) in cases {
        let (mut bed, mut cq, mut one, _, _, key) = bed();
        let wqe = make(&bed, &one, key);
        bed.post(&mut one, &wqe);
        assert_eq!(bed.rules(), [rule]);
        assert_eq!(bed.poll(&mut cq).map(|entry| error(&entry).0), Some(SEND_ERROR));
    }
}

#[test]
fn fields_that_the_mask_leaves_out_keep_their_values() {
    let (mut bed, mut cq, mut one, _, memory, _) = bed();
    let state = |bed: &Bed| {
        let function = &bed.fabric.functions[0];
        let (key, attr) = function.engine.mr_by_index(memory.key >> 8).unwrap();
        (key, attr, function.core.mkeys.get(memory.key >> 8).unwrap().context)
    };
    let (key, before, context) = state(&bed);
    let change = |mask, value| Umr { context: [value; mkc::SIZE], ..Umr::new(mask) };
    // The bytes of length, addresses, rights, domain, key number and queue pair differ, but the
    // mask does not select them.
    for value in [0xff, 0] {
        let wqe = change(1 << 17, value).context(mkc::LR, 1).wqe(&bed, &one, memory.key, &[]);
        bed.post(&mut one, &wqe);
        assert_eq!(bed.drain(&mut cq).len(), 1);
        assert_eq!(state(&bed), (key, before, context));
    }
    let wqe = change(1, 0xff).context(mkc::LEN, PAGE).context(mkc::LENGTH64, 0);
    let wqe = wqe.wqe(&bed, &one, memory.key, &[]);
    bed.post(&mut one, &wqe);
    assert_eq!(bed.drain(&mut cq).len(), 1);
    let after = roce::engine::MemoryAttr { length: PAGE, ..before };
    assert_eq!(state(&bed).1, after);
    let wqe = change(1 << 20, 0).wqe(&bed, &one, memory.key, &[]);
    bed.post(&mut one, &wqe);
    assert_eq!(bed.drain(&mut cq).len(), 1);
    let mut access = after.access;
    access.0 &= !roce::engine::Access::REMOTE_WRITE.0;
    assert_eq!(state(&bed).1, roce::engine::MemoryAttr { access, ..after });
}
