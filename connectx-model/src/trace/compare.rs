//! [`compare`]: finds the first difference between two traces.
//!
//! Fields fall into three classes:
//! - omitted: fields without meaning or with a meaning that other fields give too (raw bytes of a
//!   decoded line, operands that the driver did not write, addresses);
//! - mapped: handles (object numbers, keys, UAR pages). A handle must always correspond to the same
//!   handle in the other trace;
//! - compared: all other fields.
//!
//! Addresses are omitted instead of mapped, because a buffer often has another address in the next
//! run. The buffer's key is mapped instead.

use std::collections::HashMap;
use std::fmt;

use crate::trace::parse::Entry;

/// The first difference between two traces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// A description of the difference.
    pub what: String,
    /// The first trace's line that differs, after up to three lines before it.
    pub first: Vec<Entry>,
    /// The corresponding lines of the second trace.
    pub second: Vec<Entry>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.what)?;
        for (name, entries) in [("first", &self.first), ("second", &self.second)] {
            writeln!(f, "{name}:")?;
            for entry in entries {
                writeln!(f, "  {entry}")?;
            }
        }
        Ok(())
    }
}

/// Finds the first difference between two traces; `None` if they match.
pub fn compare(first: &[Entry], second: &[Entry]) -> Option<Difference> {
    let mut handles = Handles::default();
    let mut place = 0;
    let what = loop {
        match (first.get(place), second.get(place)) {
            (None, None) => return None,
            (Some(_), None) => break "the second trace ends before the first".to_owned(),
            (None, Some(_)) => break "the first trace ends before the second".to_owned(),
            (Some(one), Some(other)) => {
                if let Some(what) = differs(one, other, &mut handles) {
                    break what;
                }
            }
        }
        place += 1;
    };
    let context = |entries: &[Entry]| {
        let end = (place + 1).min(entries.len());
        entries.get(place.saturating_sub(CONTEXT).min(end)..end).unwrap_or_default().to_vec()
    };
    Some(Difference { what, first: context(first), second: context(second) })
}

/// Maximum number of lines shown before a difference.
const CONTEXT: usize = 3;

fn differs(one: &Entry, other: &Entry, handles: &mut Handles) -> Option<String> {
    if (one.function, &one.kind) != (other.function, &other.kind) {
        return Some(format!(
            "{} of function {} and {} of function {}",
            one.kind, one.function, other.kind, other.function
        ));
    }
    let function = one.function;
    let (one, other) = (fields(one), fields(other));
    let keys = one.iter().chain(&other).map(|(key, _)| key);
    for key in keys {
        let value = |fields: &[(String, String)]| {
            fields.iter().find(|(known, _)| known == key).map(|(_, value)| value.clone())
        };
        let (left, right) = (value(&one), value(&other));
        let (left, right) = (left.as_deref().unwrap_or("0x0"), right.as_deref().unwrap_or("0x0"));
        match kind_of(key) {
            Kind::Meaningless => {}
            Kind::Handle(class) => {
                if let Some(why) = handles.map(function, class, left, right) {
                    return Some(format!("{key} is {left} in the first and {right} in the second: {why}"));
                }
            }
            Kind::Value if left != right => {
                return Some(format!("{key} is {left} in the first and {right} in the second"));
            }
            Kind::Value => {}
        }
    }
    None
}

/// Returns the fields of a line, in the form in which they are compared. Fields that have a meaning
/// only together are combined.
pub(super) fn fields(entry: &Entry) -> Vec<(String, String)> {
    let mut fields = entry.fields.clone();
    let hex = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    match entry.kind.as_str() {
        // An event queue may contain earlier events, so the index of an event depends on earlier
        // activity.
        "eqe" => fields.retain(|(key, _)| key != "index"),
        "store" if entry.get("eqn").is_some() => fields.retain(|(key, _)| key != "index"),
        // The register and its half form a handle; the offset in the half does not belong to it.
        "store" => {
            let offset = entry.get("offset").and_then(hex).unwrap_or(0);
            if offset >= 0x800 {
                let uar = entry.get("uar").unwrap_or_default();
                fields.retain(|(key, _)| key != "offset");
                fields.push(("half".into(), format!("{uar}+{:#x}", offset & !0xff)));
                fields.push(("at".into(), format!("{:#x}", offset & 0xff)));
            }
        }
        // The number that a command returns is a handle. The kind of the created object is the
        // handle's class.
        "command" => {
            if let Some(out) = fields.iter_mut().find(|(key, _)| key == "out") {
                let name = entry.get("name").unwrap_or_default();
                let object = name.trim_start_matches("CREATE_").trim_start_matches("ALLOC_");
                out.0 = format!("out.{}", object.to_ascii_lowercase());
            }
        }
        // The operand of a send with invalidation is a memory key.
        "cqe" if entry.get("opcode") == Some("0x4") => {
            if let Some(field) = fields.iter_mut().find(|(key, _)| key == "imm_inval_pkey") {
                field.0 = "rkey".into();
            }
        }
        "wqe" if matches!(entry.get("name"), Some("SEND_INVAL" | "UMR")) => {
            if let Some(field) = fields.iter_mut().find(|(key, _)| key == "ctrl.imm") {
                field.0 = "rkey".into();
            }
        }
        _ => {}
    }
    fields
}

/// The way a field is compared.
pub(super) enum Kind {
    Meaningless,
    Handle(&'static str),
    Value,
}

/// Returns how the field `key` is compared.
pub(super) fn kind_of(key: &str) -> Kind {
    let last = key.rsplit('.').next().unwrap_or(key);
    match last {
        // These bytes are decoded in other fields, or the driver never wrote them.
        "bytes" | "stale" => Kind::Meaningless,
        // Addresses and times.
        "address" | "va" | "addr" | "start_addr" | "dbr_addr" | "dbr_umem_id" | "timestamp"
        | "page_offset" | "db_record_addr_h" | "db_record_addr_l" => Kind::Meaningless,
        // The page sizes and page counts of a buffer.
        "log_page_size" | "log_wq_pg_sz" | "list" | "translations_octword_size" => Kind::Meaningless,
        // The driver counts up this part of the key.
        "mkey_7_0" => Kind::Meaningless,
        // The numbers of send and receive queues come from one range. Work requests and completions
        // name both in the same fields.
        "qpn" | "input_qpn" | "remote_qpn" | "dqpn" | "rqpn" | "qpn_rqn_sqn" | "qp" | "deth_sqpn" | "sqn"
        | "rqn" | "sq" | "rq" | "inline_rqn" => Kind::Handle("queue pair"),
        "cqn" | "cqn_snd" | "cqn_rcv" | "cq" => Kind::Handle("completion queue"),
        "srqn" | "xrc_srqn" | "rmpn" | "xrqn" | "srqn_rmpn_xrqn" | "srq" | "xrc_srq" | "rmp" | "xrq" => {
            Kind::Handle("shared receive queue")
        }
        "eqn" | "c_eqn" | "c_eqn_or_apu_element" | "eq" => Kind::Handle("event queue"),
        "srqn_user_index" | "user_index" | "user_index_equal_xrc_srqn" => Kind::Handle("user index"),
        "pd" | "pdn" => Kind::Handle("protection domain"),
        "xrcd" => Kind::Handle("XRC domain"),
        "transport_domain" => Kind::Handle("transport domain"),
        "uar" | "uar_page" => Kind::Handle("UAR page"),
        "half" => Kind::Handle("BlueFlame register"),
        "lkey" | "rkey" => Kind::Handle("key"),
        // An entry in the list of an indirect key contains a complete key.
        "mkey" if key.starts_with("klm") => Kind::Handle("key"),
        "mkey_index" | "mkey" => Kind::Handle("memory key"),
        // Programs choose these values at random.
        "next_send_psn" | "next_rcv_psn" => Kind::Handle("first sequence number"),
        "counter_set_id" | "q_counter" => Kind::Handle("counter"),
        "tisn" | "tis" | "tis_num_0" | "tirn" | "tir" | "rqtn" | "rqt" | "indirect_table" => {
            Kind::Handle("Ethernet object")
        }
        "table_id" | "table_miss_id" | "group_id" | "flow_table" | "flow_group" => {
            Kind::Handle("steering object")
        }
        "flow_counter_id" | "flow_counter" => Kind::Handle("flow counter"),
        _ => Kind::Value,
    }
}

/// The mapping between the handles of both traces, per function and class.
#[derive(Default)]
struct Handles {
    forth: HashMap<(usize, &'static str, String), String>,
    back: HashMap<(usize, &'static str, String), String>,
}

impl Handles {
    /// Records that two handles name the same object. Returns a reason if this contradicts an
    /// earlier record.
    fn map(&mut self, function: usize, class: &'static str, left: &str, right: &str) -> Option<String> {
        if is_fixed(class, left) || is_fixed(class, right) {
            return (left != right).then(|| format!("one of them is no {class} of its own"));
        }
        let forth = self.forth.entry((function, class, left.to_owned())).or_insert_with(|| right.to_owned());
        if forth != right {
            return Some(format!("the {class} was {forth} in the second before"));
        }
        let back = self.back.entry((function, class, right.to_owned())).or_insert_with(|| left.to_owned());
        (back != left).then(|| format!("the {class} was {back} in the first before"))
    }
}

/// Returns whether a handle has the same meaning in every trace: no object, special queue pairs,
/// multicast, or the key that ends a list.
pub(super) fn is_fixed(class: &str, handle: &str) -> bool {
    match class {
        "queue pair" => matches!(handle, "0x0" | "0x1" | "0xffffff"),
        "key" => matches!(handle, "0x0" | "0x100"),
        "user index" => matches!(handle, "0x0" | "0xffffff"),
        _ => handle == "0x0",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::parse::parse;

    fn difference(first: &str, second: &str) -> Option<Difference> {
        compare(&parse(first).unwrap(), &parse(second).unwrap())
    }

    const RUN: &str = "\
0 command name=CREATE_QP opcode=0x500 status=0x0 syndrome=0x0 in.qpc.pd=0x3 in.qpc.dbr_addr=0x1000 out=0x40
0 record queue=sq qpn=0x40 value=0x1
0 wqe qpn=0x40 index=0x0 name=RDMA_WRITE ctrl.opcode=0x8 ctrl.qpn=0x40 ctrl.ds=0x3 raddr.va=0x2000 raddr.rkey=0x500 data0.byte_count=0x8 data0.lkey=0x500 data0.address=0x3000 bytes=00aa
0 store uar=0x21 offset=0x800 size=0x8 index=0x0 opcode=0x8 qpn=0x40 ds=0x3 bytes=11
0 store uar=0x21 offset=0x808 size=0x8 bytes=22
0 cqe cqn=0x7 index=0x0 qpn=0x40 timestamp=0x123
";

    #[test]
    fn other_numbers_keys_and_addresses_are_the_same_run() {
        let other = RUN
            .replace("0x40", "0x99")
            .replace("0x500 ", "0x700 ")
            .replace("opcode=0x700", "opcode=0x500")
            .replace("uar=0x21 offset=0x8", "uar=0x44 offset=0xb")
            .replace("0x2000", "0x12000")
            .replace("0x123", "0x456")
            .replace("bytes=00aa", "bytes=00bb");
        assert_ne!(RUN, other);
        assert_eq!(difference(RUN, &other), None);
        assert_eq!(difference(RUN, RUN), None);
    }

    #[test]
    fn another_opcode_is_found_and_shown_with_earlier_lines() {
        let other = RUN.replace("name=RDMA_WRITE", "name=RDMA_READ");
        let difference = difference(RUN, &other).unwrap();
        assert_eq!(difference.what, "name is RDMA_WRITE in the first and RDMA_READ in the second");
        assert_eq!((difference.first.len(), difference.first[2].line), (3, 3));
        let shown = difference.to_string();
        assert!(shown.contains("     1: 0 command") && shown.contains("     3: 0 wqe"), "{shown}");
    }

    #[test]
    fn another_order_is_found() {
        let mut lines: Vec<&str> = RUN.lines().collect();
        lines.swap(1, 3);
        let difference = difference(RUN, &lines.join("\n")).unwrap();
        assert_eq!(difference.what, "record of function 0 and store of function 0");
    }

    #[test]
    fn one_object_in_the_first_is_one_object_in_the_second() {
        let other = RUN.replace("cqe cqn=0x7 index=0x0 qpn=0x40", "cqe cqn=0x7 index=0x0 qpn=0x41");
        assert!(
            difference(RUN, &other).unwrap().what.contains("the queue pair was 0x40 in the second before")
        );
        assert!(
            difference(&other, RUN).unwrap().what.contains("the queue pair was 0x40 in the first before")
        );
        let keys = RUN.replace("data0.lkey=0x500", "data0.lkey=0x600");
        assert!(difference(RUN, &keys).unwrap().what.contains("key was 0x500"));
    }

    #[test]
    fn functions_number_their_objects_apart() {
        let first = "0 cqe cqn=0x1 qpn=0x40\n1 cqe cqn=0x1 qpn=0x40\n";
        let other = "0 cqe cqn=0x1 qpn=0x40\n1 cqe cqn=0x2 qpn=0x41\n";
        assert_eq!(difference(first, other), None);
    }

    #[test]
    fn a_later_run_of_the_same_is_the_same() {
        let run = |psn: &str, pages: &str, event: &str| {
            format!(
                "0 command name=CREATE_QP opcode=0x500 status=0x0 in.qpc.log_page_size={pages} in.list=0x8 out=0x40\n\
                 0 command name=RTR2RTS_QP opcode=0x504 status=0x0 in.qpn=0x40 in.qpc.next_send_psn={psn}\n\
                 0 eqe eqn=0x1 index={event} type=0xa\n\
                 0 store uar=0x4 offset=0x40 size=0x4 eqn=0x1 index={event} bytes=01\n"
            )
        };
        assert_eq!(difference(&run("0x5", "0x0", "0x1"), &run("0x77", "0x3", "0x30")), None);
        let twice = |psn: &str| run("0x5", "0x0", "0x1") + &run(psn, "0x0", "0x2").replace("0x40", "0x41");
        assert!(difference(&twice("0x5"), &twice("0x6")).is_some());
    }

    #[test]
    fn the_key_of_a_window_bind_is_compared() {
        let bind = "0 wqe qpn=0x40 name=UMR klm0.byte_count=0x100 klm0.mkey=0x500 klm0.va=0x1000\n";
        assert_eq!(difference(bind, &bind.replace("0x500", "0x700").replace("0x1000", "0x2000")), None);
        assert!(difference(bind, &bind.replace("0x100 ", "0x200 ")).is_some());
        let both = |key: &str| format!("{bind}0 wqe qpn=0x40 name=SEND data0.lkey={key}\n");
        assert!(difference(&both("0x500"), &both("0x600")).is_some());
    }

    #[test]
    fn a_number_that_means_something_is_not_mapped() {
        let first = "0 receive queue=rq qpn=0x40 index=0x0 data0.lkey=0x100\n";
        assert!(difference(first, &first.replace("0x100", "0x200")).is_some());
        assert!(difference(first, &first.replace("0x40", "0x1")).is_some());
        assert_eq!(difference(first, &first.replace("0x40", "0x41")), None);
    }

    #[test]
    fn stale_bytes_are_omitted_and_their_neighbours_are_compared() {
        let first = "0 wqe qpn=0x1 atomic.add=0x5 atomic.stale=0x77\n";
        assert_eq!(difference(first, &first.replace("0x77", "0x88")), None);
        assert!(difference(first, &first.replace("0x5", "0x6")).is_some());
    }

    #[test]
    fn halves_of_a_register_keep_their_turns() {
        let rings = |halves: [&str; 3]| {
            halves.map(|half| format!("0 store uar=0x21 offset={half} size=0x8 bytes=00\n")).concat()
        };
        assert_eq!(
            difference(&rings(["0x800", "0x900", "0x800"]), &rings(["0xb00", "0xa00", "0xb00"])),
            None
        );
        assert!(
            difference(&rings(["0x800", "0x900", "0x800"]), &rings(["0x800", "0x900", "0x900"])).is_some()
        );
        assert!(
            difference(&rings(["0x800", "0x900", "0x808"]), &rings(["0x800", "0x900", "0x810"])).is_some()
        );
    }

    #[test]
    fn a_trace_that_ends_early_is_different() {
        let short = RUN.lines().take(3).collect::<Vec<_>>().join("\n");
        assert_eq!(difference(RUN, &short).unwrap().what, "the second trace ends before the first");
        assert_eq!(difference(&short, RUN).unwrap().what, "the first trace ends before the second");
        assert_eq!(difference("", ""), None);
    }

    #[test]
    fn a_field_that_is_left_out_is_zero() {
        let first = "0 wqe qpn=0x1 ctrl.fm=0x0\n";
        assert_eq!(difference(first, "0 wqe qpn=0x1\n"), None);
        assert!(difference("0 wqe qpn=0x1 ctrl.fm=0x4\n", "0 wqe qpn=0x1\n").is_some());
    }
}
