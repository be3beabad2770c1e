//! Memory keys and windows changed by work requests.

use super::*;
use crate::layout::wqe::{klm, umr_ctrl};

/// Bits of a mask that lends memory: what the kernel names for it.
const LEND: u64 = 1 | 1 << 1 | 1 << 6 | 1 << 8 | 1 << 13 | 0x1f << 17 | 1 << 23 | 1 << 29;
const FREE: u64 = 1 << 29;
const KEY: u64 = 1 << 13;

/// A free key for so many pages.
pub(super) fn fast_key(bed: &mut Bed, pages: u32) -> u32 {
    let mut input = input(0x200, create_mkey_in::KLM_PAS_MTT);
    let context = create_mkey_in::MEMORY_KEY_MKEY_ENTRY.of_mut(&mut input);
    for field in [mkc::FREE, mkc::UMR_EN, mkc::LR, mkc::ACCESS_MODE_1_0] {
        field.set(context, 1u32);
    }
    mkc::QPN.set(context, 0xff_ffffu32);
    mkc::PD.set(context, bed.pds[0]);
    mkc::TRANSLATIONS_OCTWORD_SIZE.set(context, pages.div_ceil(2).next_multiple_of(4));
    mkc::LOG_PAGE_SIZE.set(context, 12u32);
    create_mkey_out::MKEY_INDEX.get32(&bed.ok(0, &input)) << 8
}

/// A UMR's control and context.
pub(super) struct Umr {
    control: [u8; umr_ctrl::SIZE],
    context: [u8; mkc::SIZE],
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

    fn control(mut self, field: Field, value: u32) -> Self {
        field.set(&mut self.control, value);
        self
    }

    fn context(mut self, field: Field, value: u64) -> Self {
        field.set(&mut self.context, value);
        self
    }

    fn wqe(&self, bed: &Bed, pair: &Pair, key: u32, list: &[u8]) -> Vec<u8> {
        let wqe = bed.begin(pair, opcode::UMR).set(ctrl::IMM, key);
        wqe.raw(&self.control).raw(&self.context).raw(list).done()
    }
}

fn lender(key: u32, va: u64, length: u64) -> Umr {
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

/// A work request that makes a free key name the two pages at `address`.
pub(super) fn lend(bed: &Bed, pair: &Pair, key: u32, va: u64, address: u64) -> Vec<u8> {
    let umr = lender(key, va, 2 * PAGE).control(umr_ctrl::KLM_OCTOWORDS, 4);
    let mut list = [0; 64];
    list[..8].copy_from_slice(&(address | 3).to_be_bytes());
    list[8..16].copy_from_slice(&(address + PAGE | 3).to_be_bytes());
    umr.wqe(bed, pair, key, &list)
}
