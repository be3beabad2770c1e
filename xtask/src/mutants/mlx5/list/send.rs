//! Mutants of send queues: the entries byte by byte.

use super::Kind::{Atomic, Fence, Immediate, Inline, List, Signal, Umr};
use super::Mutant;

const QUEUE: &str = "sq/mod.rs";
const PLAIN: &str = "sq/plain.rs";
const SPECIAL: &str = "sq/special.rs";
const WINDOW: &str = "sq/umr.rs";
const WQE: &str = "wqe.rs";

pub(super) const LIST: &[Mutant] = &[
    // The mask of fields.
    Mutant::new("umr-mask-length", Umr, WINDOW, "BIND: u64 = LEN | START_ADDR", "BIND: u64 = START_ADDR"),
    Mutant::new("umr-mask-address", Umr, WINDOW, "LEN | START_ADDR | LOCAL_WRITE", "LEN | LOCAL_WRITE"),
    Mutant::new("umr-mask-atomic", Umr, WINDOW, "REMOTE_WRITE | ATOMIC;", "REMOTE_WRITE;"),
    Mutant::new("umr-mask-free", Umr, WINDOW, "mask::FREE | mask::MKEY", "mask::MKEY"),
    Mutant::new("umr-mask-key", Umr, WINDOW, "mask::FREE | mask::MKEY", "mask::FREE"),
    Mutant::new("umr-mask-qpn", Umr, WINDOW, "mask |= if is_type_2 { mask::QPN } else { 0 };", ""),
    Mutant::new("umr-mask-qpn-of-type-1", Umr, WINDOW, "if is_type_2 { mask::QPN } else { 0 }", "mask::QPN"),
    Mutant::new(
        "umr-mask-of-invalidation",
        Umr,
        WINDOW,
        "if is_bind { mask::BIND } else { 0 }",
        "mask::BIND",
    ),
    // The fields.
    Mutant::new(
        "umr-qpn-of-type-1",
        Umr,
        WINDOW,
        "if is_bind && is_type_2 { qp_num }",
        "if is_bind { qp_num }",
    ),
    Mutant::new(
        "umr-qpn-of-invalidation",
        Umr,
        WINDOW,
        "if is_bind && is_type_2 { qp_num }",
        "if is_type_2 { qp_num }",
    ),
    Mutant::new("umr-length", Umr, WINDOW, "bind.addr }, bind.length]", "bind.addr }, bind.length - 1]"),
    Mutant::new("umr-zero-based", Umr, WINDOW, "[if is_zero_based { 0 } else { bind.addr }", "[bind.addr"),
    Mutant::new("umr-list-address", Umr, WINDOW, "bind.lkey), bind.addr]", "bind.lkey), 0]"),
    Mutant::new(
        "umr-list-swapped",
        Umr,
        WINDOW,
        "pair(bind.length as u32, bind.lkey)",
        "pair(bind.lkey, bind.length as u32)",
    ),
    Mutant::new(
        "umr-access-place",
        Umr,
        WINDOW,
        "rights(bind.mw_access_flags) << 8",
        "rights(bind.mw_access_flags)",
    ),
    Mutant::new("umr-access-atomic", Umr, WINDOW, "REMOTE_ATOMIC, 1 << 6", "REMOTE_ATOMIC, 1 << 7"),
    Mutant::new("umr-access-read", Umr, WINDOW, "REMOTE_READ, 1 << 4", "REMOTE_READ, 1 << 5"),
    Mutant::new("umr-access-local", Umr, WINDOW, "LOCAL_WRITE, 1 << 3", "LOCAL_WRITE, 1 << 2")
        .equivalent("The checks refuse a window with local rights, which it has from its region."),
    Mutant::new("umr-octowords", Umr, WINDOW, "LIST_OCTOWORDS: u32 = 4", "LIST_OCTOWORDS: u32 = 1"),
    Mutant::new("umr-octowords-place", Umr, WINDOW, "octowords << 16", "octowords"),
    Mutant::new(
        "umr-checks-swapped",
        Umr,
        WINDOW,
        "if is_bind { flag::CHECK_FREE } else { flag::CHECK_QPN }",
        "if is_bind { flag::CHECK_QPN } else { flag::CHECK_FREE }",
    ),
    Mutant::new("umr-check-of-type-1", Umr, WINDOW, "if is_type_2 {\n", "if true {\n"),
    Mutant::new("umr-flag-inline", Umr, WINDOW, "TRANSLATION_OFFSET | flag::INLINE;", "TRANSLATION_OFFSET;"),
    Mutant::new("umr-free", Umr, WINDOW, "const FREE: u32 = 1 << 6;", "const FREE: u32 = 1 << 5;"),
    Mutant::new("umr-new-key", Umr, WINDOW, "(new_rkey & 0xff)", "new_rkey"),
    Mutant::new("umr-longest", Umr, WINDOW, "MAX_LENGTH: u64 = 1 << 31", "MAX_LENGTH: u64 = 1 << 32"),
    Mutant::new("umr-old-key", Umr, SPECIAL, "opcode::UMR, rkey,", "opcode::UMR, 0,"),
    // Inline data.
    Mutant::new("inline-bit", Inline, WQE, "INLINE: u32 = 1 << 31", "INLINE: u32 = 1 << 30"),
    Mutant::new(
        "inline-units",
        Inline,
        WQE,
        "(length + 4 + (UNIT as u32 - 1))",
        "(length + (UNIT as u32 - 1))",
    ),
    Mutant::new("inline-wrap", Inline, WQE, "let count = left.min(room);", "let count = left;"),
    Mutant::new("inline-length", Inline, WQE, "write((length | INLINE).to_be())", "write(length | INLINE)"),
    Mutant::new("inline-empty", Inline, WQE, "if length == 0 {\n            return;\n        }", ""),
    Mutant::new(
        "inline-short-room",
        Inline,
        PLAIN,
        "(BLOCK - units * UNIT - size_of::<u32>()) as u32",
        "(BLOCK - units * UNIT) as u32",
    ),
    Mutant::new("inline-short-length", Inline, WQE, "(INLINE | length).to_be()", "(INLINE | length)"),
    Mutant::new(
        "inline-short-check",
        Inline,
        PLAIN,
        "max_inline.min(Self::room(units))",
        "Self::room(units)",
    ),
    Mutant::new("inline-behind", Inline, WQE, "self.skip(units);", "")
        .equivalent("Inline data is the last segment of every entry, so nothing is stored behind it."),
    // Lists.
    Mutant::new("list-swapped", List, WQE, "pair(sge.length, sge.lkey)", "pair(sge.lkey, sge.length)"),
    Mutant::new("list-empty-element", List, WQE, "if sge.length > 0 {", "if true {"),
    Mutant::new("list-wrap", List, WQE, "if self.at == self.end {", "if self.at == self.start {"),
    Mutant::new("list-size", List, WQE, "self.ds += 1;", "self.ds += 2;"),
    Mutant::new("list-blocks", List, SPECIAL, "behind(ds.div_ceil(4))", "behind(ds / 4 + 1)"),
    Mutant::new("list-short-empty", List, PLAIN, "length.wrapping_sub(1) >= max", "length > max"),
    Mutant::new(
        "list-remote-swapped",
        List,
        WQE,
        "[remote_addr, pair(rkey, 0)]",
        "[pair(rkey, 0), remote_addr]",
    ),
    // Flags of the control segment.
    Mutant::new("fence-bit", Fence, WQE, "FENCE: u8 = 0x80", "FENCE: u8 = 0x40"),
    Mutant::new("fence-small-bit", Fence, WQE, "SMALL_FENCE: u8 = 0x20", "SMALL_FENCE: u8 = 0x40"),
    Mutant::new(
        "fence-behind-invalidation",
        Fence,
        "record.rs",
        "Self::BIND | Self::INVALIDATE =>",
        "Self::BIND =>",
    ),
    Mutant::new(
        "fence-behind-bind",
        Fence,
        "record.rs",
        "Self::BIND | Self::INVALIDATE =>",
        "Self::INVALIDATE =>",
    ),
    Mutant::new(
        "fence-of-program",
        Fence,
        SPECIAL,
        "self.fence != 0 && !wr.flags.contains(SendFlags::FENCE)",
        "self.fence != 0",
    ),
    Mutant::new("fence-short", Fence, SPECIAL, "self.limit = self.head;", ""),
    Mutant::new(
        "fence-twice",
        Fence,
        SPECIAL,
        "self.fence = kind.fence_behind();",
        "self.fence |= kind.fence_behind();",
    ),
    Mutant::new(
        "fence-at-reset",
        Fence,
        QUEUE,
        "(self.next, self.head, self.fence) = (0, 0, 0);",
        "(self.next, self.head) = (0, 0);",
    ),
    Mutant::new(
        "fence-taken-back",
        Fence,
        QUEUE,
        "fence = self.requests.kind(block.into()).fence_behind();",
        "",
    ),
    Mutant::new(
        "fence-short-taken-back",
        Fence,
        QUEUE,
        "(self.limit, self.lone_limit) = (self.head, self.head);",
        "",
    ),
    Mutant::new("signal-solicited-bit", Signal, WQE, "SOLICITED: u8 = 0x02", "SOLICITED: u8 = 0x01"),
    Mutant::new("signal-update-bit", Signal, WQE, "CQ_UPDATE: u8 = 0x08", "CQ_UPDATE: u8 = 0x04"),
    Mutant::new("signal-solicited", Signal, QUEUE, "control::SOLICITED)", "control::CQ_UPDATE)"),
    Mutant::new("signal-all", Signal, QUEUE, "let all = if sq_sig_all {", "let all = if !sq_sig_all {"),
    Mutant::new("signal-all-of-program", Signal, "qp.rs", "sq_sig_all: attr.sq_sig_all", "sq_sig_all: false"),
    Mutant::new(
        "signal-flags",
        Signal,
        PLAIN,
        "(wr.flags.bits() & CONTROL_FLAGS)",
        "(wr.flags.bits() & 0x7)",
    )
    .equivalent("Bit 3 says that data is inline, and has no bit in the control segment."),
    // Immediate data, operands.
    Mutant::new("immediate-order", Immediate, PLAIN, "joined(0, imm.to_be())", "joined(0, imm)"),
    Mutant::new(
        "immediate-of-write",
        Immediate,
        PLAIN,
        "RDMA_WRITE_IMM, imm_data, remote)",
        "RDMA_WRITE_IMM, 0, remote)",
    ),
    Mutant::new(
        "immediate-of-long-write",
        Immediate,
        PLAIN,
        "Some((RDMA_WRITE_IMM, imm_data, Some",
        "Some((RDMA_WRITE_IMM, 0, Some",
    ),
    Mutant::new(
        "immediate-of-long-send",
        Immediate,
        PLAIN,
        "Some((SEND_IMM, imm_data, None))",
        "Some((SEND_IMM, 0, None))",
    ),
    Mutant::new(
        "immediate-key",
        Immediate,
        SPECIAL,
        "(opcode::SEND_INVAL, invalidate_rkey)",
        "(opcode::SEND_INVAL, 0)",
    ),
    Mutant::new(
        "immediate-of-datagram",
        Immediate,
        SPECIAL,
        "opcode::SEND_IMM, *imm_data,",
        "opcode::SEND_IMM, 0,",
    ),
    Mutant::new("atomic-swapped", Atomic, SPECIAL, "[swap, compare]", "[compare, swap]"),
    Mutant::new("atomic-add", Atomic, SPECIAL, "[add, 0]", "[0, add]"),
    Mutant::new("atomic-opcode", Atomic, SPECIAL, "(opcode::ATOMIC_FA, 0)", "(opcode::ATOMIC_CS, 0)"),
];
