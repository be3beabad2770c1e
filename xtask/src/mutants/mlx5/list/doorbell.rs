//! Mutants of doorbell records, of registers, and of requests for events.

use super::Kind::{Arm, BlueFlame, Record, Register};
use super::Mutant;

const BELL: &str = "doorbell.rs";
const QUEUE: &str = "sq/mod.rs";
const PLAIN: &str = "sq/plain.rs";
const REGISTERS: &str = "registers.rs";
const CONTROL: &str = "cq/control.rs";

pub(super) const LIST: &[Mutant] = &[
    Mutant::new(
        "record-send-bits",
        Record,
        QUEUE,
        "store(self.next_block().into());\n        if self.carries_blocks {",
        "store(self.next_block() as u32 | 1 << 16);\n        if self.carries_blocks {",
    ),
    Mutant::new("record-recv-bits", Record, "rq.rs", "COUNTER: u32 = 0xffff", "COUNTER: u32 = u32::MAX"),
    Mutant::new(
        "record-srq-bits",
        Record,
        "srq/mod.rs",
        "store(self.counter & 0xffff)",
        "store(self.counter)",
    ),
    Mutant::new("record-cq-bits", Record, "cq/mod.rs", "store(self.index & COUNTER)", "store(self.index)"),
    Mutant::new("record-cq-bits-of-one", Record, "cq/runs.rs", "store(behind & COUNTER)", "store(behind)"),
    Mutant::new("record-order-of-bytes", Record, BELL, "store(counter.to_be(), ", "store(counter, "),
    Mutant::new(
        "record-halves",
        Record,
        "qp.rs",
        "record(Slot::SECOND), life.records().record(Slot::FIRST)",
        "record(Slot::FIRST), life.records().record(Slot::SECOND)",
    ),
    Mutant::new(
        "record-before-entry",
        Record,
        PLAIN,
        "let flags_imm = self.flags[",
        "self.record.store(self.next_block().wrapping_add(1).into());\n        let flags_imm = self.flags[",
    ),
    Mutant::new(
        "record-behind-register",
        Record,
        QUEUE,
        "        self.record.store(self.next_block().into());
        if self.carries_blocks {
            // SAFETY: the request is in the queue, and has been stored; it has one block.
            unsafe { self.bell.ring_block(at) };
        } else {
            self.ring_other(at, 1);
        }
",
        "        if self.carries_blocks {
            // SAFETY: the request is in the queue, and has been stored; it has one block.
            unsafe { self.bell.ring_block(at) };
        } else {
            self.ring_other(at, 1);
        }
        self.record.store(self.next_block().into());
",
    ),
    Mutant::new(
        "record-behind-register-of-many",
        Record,
        QUEUE,
        "        self.record.store(self.next_block().into());
        let last = self.last_block();
        // SAFETY: the last request is in the queue, and has been stored.
        self.bell.ring(unsafe { wqe::head(last) });
",
        "        let last = self.last_block();
        // SAFETY: the last request is in the queue, and has been stored.
        self.bell.ring(unsafe { wqe::head(last) });
        self.record.store(self.next_block().into());
",
    ),
    Mutant::new(
        "record-send-at-reset",
        Record,
        QUEUE,
        "self.slots = NonNull::from(self.requests.slots()).cast();\n            self.record.store(0);",
        "self.slots = NonNull::from(self.requests.slots()).cast();",
    ),
    Mutant::new(
        "record-recv-at-reset",
        Record,
        "rq.rs",
        "self.requests = RecvRecord::new(self.entries.count());\n            self.record.store(0);",
        "self.requests = RecvRecord::new(self.entries.count());",
    ),
    Mutant::new("record-held-back", Record, "rq.rs", "self.head & self.published", "self.head & COUNTER"),
    Mutant::new(
        "record-held-back-until",
        Record,
        "rq.rs",
        "QpState::RESET | QpState::INIT",
        "QpState::RESET",
    ),
    Mutant::new("record-second-place", Record, "dbrec.rs", "SECOND: usize = 4", "SECOND: usize = 8"),
    Mutant::new(
        "record-lent",
        Record,
        "dbrec.rs",
        "\n            && !self.is_lent.load(Ordering::Acquire)",
        "",
    ),
    Mutant::new(
        "record-not-cleared",
        Record,
        "dbrec.rs",
        "self.record(record) }.store(0);",
        "self.record(record) }.load();",
    ),
    // Whole requests in registers.
    Mutant::new("blueflame-half", BlueFlame, BELL, "half.get() ^ self.size", "half.get()"),
    Mutant::new(
        "blueflame-size",
        BlueFlame,
        BELL,
        "{ size / crate::wqe::UNIT }",
        "{ 2 * size / crate::wqe::UNIT }",
    ),
    Mutant::new("blueflame-blocks", BlueFlame, BELL, "1..units.div_ceil(4)", "1..units / 4"),
    Mutant::new("blueflame-wrap", BlueFlame, BELL, "from = if from == end { start } else { from };", ""),
    Mutant::new(
        "blueflame-block-order",
        BlueFlame,
        BELL,
        "            \"movups [{to} + 16], {b}\",\n            \"movups [{to} + 32], {c}\",\n",
        "            \"movups [{to} + 32], {c}\",\n            \"movups [{to} + 16], {b}\",\n",
    ),
    Mutant::new(
        "blueflame-block-backwards",
        BlueFlame,
        BELL,
        "            \"movups [{to}], {a}\",
            \"movups [{to} + 16], {b}\",
            \"movups [{to} + 32], {c}\",
            \"movups [{to} + 48], {d}\",
",
        "            \"movups [{to} + 48], {d}\",
            \"movups [{to} + 32], {c}\",
            \"movups [{to} + 16], {b}\",
            \"movups [{to}], {a}\",
",
    ),
    Mutant::new("blueflame-rest", BlueFlame, BELL, "if units > 4 {", "if units > 8 {"),
    Mutant::new(
        "blueflame-order-of-bytes",
        BlueFlame,
        BELL,
        "register.store(value.to_be(), ",
        "register.store(value, ",
    ),
    Mutant::new(
        "blueflame-of-many",
        BlueFlame,
        QUEUE,
        "            1 => {\n                self.lone_limit",
        "            1.. => {\n                self.lone_limit",
    ),
    Mutant::new(
        "blueflame-of-waiting",
        BlueFlame,
        PLAIN,
        "        if put.is_none() {\n            return false;\n        }\n        self.lone_limit = place.head;\n",
        "        if put.is_none() {\n            return false;\n        }\n",
    ),
    Mutant::new(
        "blueflame-of-waiting-special",
        BlueFlame,
        QUEUE,
        "        self.lone_limit = self.head;\n",
        "",
    ),
    Mutant::new("blueflame-never-again", BlueFlame, QUEUE, "(self.limit, None);", "(self.lone_limit, None);")
        .equivalent("Requests that are rung for alone take the long path for ever."),
    Mutant::new(
        "blueflame-empty",
        BlueFlame,
        QUEUE,
        "        if self.last.is_some() {\n            return self.ring_special();",
        "        if self.last.is_some() && self.waiting() > 1 {\n            return self.ring_special();",
    ),
    Mutant::new("blueflame-of-some", BlueFlame, QUEUE, "ds.div_ceil(4) == blocks", "ds <= blocks"),
    Mutant::new("blueflame-small", BlueFlame, QUEUE, "&& bell.max_units >= (BLOCK / UNIT) as u32", ""),
    Mutant::new("blueflame-of-many-long", BlueFlame, QUEUE, "is_alone && ds > 1 &&", "ds > 1 &&"),
    Mutant::new("blueflame-without-data", BlueFlame, QUEUE, "is_alone && ds > 1 &&", "is_alone &&"),
    Mutant::new(
        "blueflame-not-preferred",
        BlueFlame,
        QUEUE,
        "&& (self.prefers_blue_flame || is_inline())",
        "",
    ),
    Mutant::new(
        "blueflame-inline",
        BlueFlame,
        QUEUE,
        "&& (self.prefers_blue_flame || is_inline())",
        "&& self.prefers_blue_flame",
    ),
    Mutant::new(
        "blueflame-short-not-preferred",
        BlueFlame,
        QUEUE,
        "parts.prefers_blue_flame && bell",
        "bell",
    ),
    Mutant::new(
        "blueflame-kind",
        BlueFlame,
        "record.rs",
        "_ if is_inline => Self::INLINE,",
        "_ if is_inline => Self::PLAIN,",
    ),
    Mutant::new(
        "blueflame-too-long",
        BlueFlame,
        QUEUE,
        "may_carry && ds <= self.bell.max_units",
        "may_carry",
    ),
    Mutant::new(
        "blueflame-after-end",
        BlueFlame,
        QUEUE,
        "fn ring_one(&mut self, at: NonNull<u8>) {\n        if self.life.is_over() {",
        "fn ring_one(&mut self, at: NonNull<u8>) {\n        if false {",
    ),
    Mutant::new(
        "doorbell-after-end",
        BlueFlame,
        QUEUE,
        "self.lone_limit = self.limit;\n        if self.life.is_over() {",
        "self.lone_limit = self.limit;\n        if false {",
    ),
    Mutant::new(
        "doorbell-after-end-of-any",
        BlueFlame,
        QUEUE,
        "if blocks == 0 || self.life.is_over() {",
        "if blocks == 0 {",
    ),
    Mutant::new(
        "doorbell-without-opcode",
        BlueFlame,
        QUEUE,
        "            self.bell.ring(head);",
        "            self.bell.ring(head & !(0xff << 32));",
    ),
    Mutant::new(
        "doorbell-of-many-without-opcode",
        BlueFlame,
        QUEUE,
        "self.bell.ring(unsafe { wqe::head(last) });",
        "self.bell.ring(unsafe { wqe::head(last) } & !(0xff << 32));",
    ),
    // The choice of registers.
    Mutant::new("register-place", Register, REGISTERS, "self.number * self.of.size\n", "self.number\n"),
    Mutant::new("register-first", Register, REGISTERS, "FIRST: usize = 0x800", "FIRST: usize = 0xa00"),
    Mutant::new(
        "register-shared",
        Register,
        REGISTERS,
        "self.of.size / 2, !self.is_shared())",
        "self.of.size / 2, true)",
    ),
    Mutant::new(
        "register-of-orphan",
        Register,
        REGISTERS,
        ".filter(|(_, one)| !one.uses.contains(&Use::Orphan))",
        "",
    ),
    Mutant::new(
        "register-lease-of-orphan",
        Register,
        REGISTERS,
        "if uses.contains(&Use::Orphan) {",
        "if false {",
    ),
    Mutant::new(
        "register-lease-twice",
        Register,
        REGISTERS,
        "strong_count(self) > 1",
        "strong_count(self) > 2",
    ),
    Mutant::new("register-lease-own", Register, REGISTERS, "uses[self.number] = Use::Own;", ""),
    Mutant::new("register-beside", Register, REGISTERS, "*other != self.number", "*other == self.number"),
    Mutant::new("register-returned", Register, REGISTERS, "self.of.set(place, self.number, Use::None);", ""),
    Mutant::new(
        "register-limit",
        Register,
        REGISTERS,
        "dedicated.len() * REGISTERS >=",
        "dedicated.len() >=",
    ),
    Mutant::new("register-shut-up", Register, REGISTERS, "if is_shut_up { 0 }", "if !is_shut_up { 0 }"),
    Mutant::new("register-orphan-at-end", Register, "life.rs", "self.set_orphan(true);", ""),
    // Requests for events.
    Mutant::new("arm-register", Arm, REGISTERS, "ARM: usize = 0x20", "ARM: usize = 0x28"),
    Mutant::new("arm-swapped", Arm, BELL, "pair(word, cqn)", "pair(cqn, word)"),
    Mutant::new("arm-number", Arm, CONTROL, "(events & 3) << 28", "events << 28"),
    Mutant::new("arm-number-place", Arm, CONTROL, "(events & 3) << 28", "(events & 3) << 24"),
    Mutant::new(
        "arm-kind",
        Arm,
        CONTROL,
        "if is_any { 0 } else { SOLICITED_ONLY }",
        "if is_any { SOLICITED_ONLY } else { 0 }",
    ),
    Mutant::new(
        "arm-kind-bit",
        Arm,
        CONTROL,
        "SOLICITED_ONLY: u32 = 1 << 24",
        "SOLICITED_ONLY: u32 = 1 << 25",
    ),
    Mutant::new("arm-wider", Arm, CONTROL, "if !solicited_only {", "if true {"),
    Mutant::new(
        "arm-wider-forgotten",
        Arm,
        CONTROL,
        "self.any_at.load(Ordering::Relaxed) == u64::from(events)",
        "!solicited_only",
    ),
    Mutant::new("arm-record", Arm, CONTROL, "self.arm_record.store(word);", ""),
    Mutant::new(
        "arm-order",
        Arm,
        CONTROL,
        "self.arm_record.store(word);\n        self.arm.ring(word, self.cqn);",
        "self.arm.ring(word, self.cqn);\n        self.arm_record.store(word);",
    ),
    Mutant::new(
        "arm-consumer",
        Arm,
        CONTROL,
        "number | kind | self.poller.place()",
        "number | kind | self.poller.place().saturating_sub(1)",
    ),
    Mutant::new("arm-place", Arm, CONTROL, "number | kind | self.poller.place()", "number | kind"),
    Mutant::new("arm-place-bits", Arm, "cq/resize.rs", "self.index & 0xff_ffff\n", "self.index\n"),
];
