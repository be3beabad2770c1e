//! [`compare`]: compares the traces of two runs of one program, each with another library. Each run
//! opened the device separately.
//!
//! Both traces are translated into a common form, and the resulting lines must be equal:
//! - only the program's objects and the activity of their queues are compared, not keys in the
//!   kernel's cache or the moderation of kernel queues;
//! - the number of an object, a key or a register is replaced by its index in the order of first
//!   use;
//! - for each doorbell, the line says whether it uses the same half of the register as the previous
//!   doorbell; the first doorbell after the creation of a queue pair on the register's page has no
//!   predecessor;
//! - addresses of data are compared, because the program keeps its data at fixed addresses;
//!   addresses of queues and doorbell records are not;
//! - in completions, shared receives are numbered in the order in which the device fetches them,
//!   tags in the order of addition, and queues in the order of creation;
//! - bytes that the driver did not write are omitted: libmlx5 leaves stale values in the immediate
//!   field of requests without immediate data, and in the context of a key that it invalidates.
//!
//! Invariant: every other permitted difference has an entry in [`COMMANDS`] or [`FIELDS`].

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use crate::trace::compare::{Kind, fields, is_fixed, kind_of};
use crate::trace::parse::Entry;

/// Commands that are not compared: the start of their names, and the reason why they may differ.
pub const COMMANDS: &[(&str, &str)] = &[
    ("QUERY_", "the libraries read the device's attributes at other times"),
    ("ACCESS_REG", "the kernel reads a port's speed whenever a library asks for attributes"),
    ("MANAGE_PAGES", "the kernel gives the device memory when it runs short"),
];

/// A field that may differ in lines of this kind.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// The kind of line that contains the field.
    pub kind: &'static str,
    /// The name of the command or work request; empty for any name.
    pub name: &'static str,
    /// The key of the field.
    pub key: &'static str,
    /// The reason why the field may differ.
    pub why: &'static str,
}

/// All fields that may differ.
pub const FIELDS: &[Field] = &[
    Field {
        kind: "command",
        name: "CREATE_MKEY",
        key: "in.translations_octword_actual_size",
        why: "the kernel merges pages that happen to be neighbours in memory",
    },
    Field { kind: "command", name: "CREATE_RMP", key: "in.ctx.wq.log_wq_sz", why: SPARE },
    Field {
        kind: "command",
        name: "CREATE_XRC_SRQ",
        key: "in.xrc_srq_context_entry.log_xrc_srq_size",
        why: SPARE,
    },
    Field { kind: "command", name: "CREATE_SRQ", key: "in.srq_context_entry.log_srq_size", why: SPARE },
    Field { kind: "command", name: "CREATE_XRQ", key: "in.xrq_context.wq.log_wq_sz", why: SPARE },
];

const SPARE: &str =
    "libmlx5 doubles a shared receive queue, to let entries rest whose pages the device had to fault in";

/// Compares a section of one trace with a section of another. Returns the number of compared lines.
///
/// # Errors
/// Returns a description of the first difference, with up to three lines before it.
pub fn compare(first: &[Entry], second: &[Entry]) -> Result<usize, String> {
    let (one, other) = (canonical(first), canonical(second));
    if one.is_empty() {
        return Err("the first section has no line to compare".to_owned());
    }
    let len = one.len().max(other.len());
    let Some(place) = (0..len).find(|&place| text(&one, place) != text(&other, place)) else {
        return Ok(len);
    };
    let mut report = format!("{} and {} lines; the first difference:\n", one.len(), other.len());
    for (name, lines) in [("first", &one), ("second", &other)] {
        for (line, text) in lines.iter().take(place + 1).skip(place.saturating_sub(CONTEXT)) {
            let _ = writeln!(report, "{name} {line}: {text}");
        }
        if lines.len() <= place {
            let _ = writeln!(report, "{name} ends");
        }
    }
    if let (Some(one), Some(other)) = (text(&one, place), text(&other, place)) {
        let _ = writeln!(
            report,
            "only the first has {:?}, only the second {:?}",
            rest(one, other),
            rest(other, one)
        );
    }
    Err(report)
}

/// Maximum number of lines shown before a difference.
const CONTEXT: usize = 3;

fn text(lines: &[(usize, String)], place: usize) -> Option<&str> {
    lines.get(place).map(|(_, text)| text.as_str())
}

/// Returns the fields of `line` that `other` lacks.
fn rest<'a>(line: &'a str, other: &str) -> Vec<&'a str> {
    line.split(' ').filter(|field| !other.split(' ').any(|known| known == *field)).collect()
}

/// Translates a section into the common form. Returns the lines with their line numbers.
fn canonical(section: &[Entry]) -> Vec<(usize, String)> {
    let mut form = Form::default();
    section.iter().filter_map(|entry| Some((entry.line, form.line(entry)?))).collect()
}

/// The state of the translation of a section into the common form.
#[derive(Default)]
struct Form {
    /// The number that replaces each handle, by function, class and handle.
    names: HashMap<(usize, &'static str, String), usize>,
    /// Count of handles that `names` contains, per class of handles.
    counts: HashMap<&'static str, usize>,
    /// The handles of the objects created in the section.
    own: HashSet<(usize, &'static str, String)>,
    /// The position of each queue in the order of creation, by function and by the user index in
    /// its completions.
    users: HashMap<(usize, u64), usize>,
    /// Count of queues created in the section.
    created: usize,
    /// The position of each shared receive in the order in which the device fetched them, by
    /// function and entry index.
    receives: HashMap<(usize, u64), usize>,
    /// Count of shared receives that the device has fetched in the section.
    taken: usize,
    /// The position of each tag in the order of addition, by function and tag index.
    tags: HashMap<(usize, u64), usize>,
    /// The index of the next tag, and the count of tags added in the section.
    next_tag: (u64, usize),
    /// The half of each register that the last doorbell used.
    registers: HashMap<(usize, u64, u64), u64>,
}

impl Form {
    /// Returns a line in the common form; `None` if the line is not compared.
    fn line(&mut self, entry: &Entry) -> Option<String> {
        match entry.kind.as_str() {
            "command" => self.command(entry),
            "store" => self.store(entry),
            "wqe" => self.owned(entry, &["qpn"]).then(|| self.wqe(entry)),
            "cqe" => self.owned(entry, &["cqn"]).then(|| self.cqe(entry)),
            "receive" => self.owned(entry, &["qpn", "srqn"]).then(|| self.receive(entry)),
            "record" | "eqe" => {
                self.owned(entry, &["qpn", "srqn", "cqn", "qpn_rqn_sqn"]).then(|| self.fields(entry))
            }
            // A complaint is a difference between the libraries unless both cause it.
            "complaint" => Some(self.fields(entry)),
            _ => None,
        }
    }

    fn command(&mut self, entry: &Entry) -> Option<String> {
        let name = entry.get("name").unwrap_or_default();
        // These concern keys in the kernel's cache and the moderation of kernel queues.
        let is_foreign = match name {
            "DESTROY_MKEY" => !self.owned(entry, &["in.mkey_index"]),
            "MODIFY_CQ" => !self.owned(entry, &["in.cqn"]),
            _ => false,
        };
        if COMMANDS.iter().any(|(start, _)| name.starts_with(start)) || is_cached(entry) || is_foreign {
            return None;
        }
        for (key, value) in fields(entry) {
            if let (Some(_), Kind::Handle(class)) = (key.strip_prefix("out."), kind_of(&key)) {
                self.own.insert((entry.function, class, value));
            }
        }
        let mut entry = entry.clone();
        if name == "CREATE_XRQ" {
            (self.next_tag, self.tags) = ((0, 0), HashMap::new());
        }
        if QUEUES.contains(&name) {
            let is_user =
                |key: &str| key.ends_with(".user_index") || key.ends_with(".user_index_equal_xrc_srqn");
            let user = entry.fields.iter().find(|(key, _)| is_user(key)).and_then(|(_, value)| number(value));
            entry.fields.retain(|(key, _)| !is_user(key));
            self.created += 1;
            self.users.insert((entry.function, user.unwrap_or(0)), self.created);
        }
        let uar = match name {
            "CREATE_QP" => entry.get("in.qpc.uar_page"),
            "CREATE_SQ" => entry.get("in.ctx.wq.uar_page"),
            _ => None,
        };
        if let Some(uar) = uar.and_then(number) {
            // If an earlier queue pair has used a register, libmlx5 continues with the other half,
            // while this project starts with the first half.
            self.registers.retain(|(function, page, _), _| (*function, *page) != (entry.function, uar));
            // The library may choose any of the page's free registers.
            let page = format!("{uar:#x}+");
            self.names.retain(|(function, class, handle), _| {
                (*function, *class) != (entry.function, "register") || !handle.starts_with(&page)
            });
        }
        Some(self.fields(&entry))
    }

    /// Translates a completion. The library chooses the user index of the completion's queue.
    fn cqe(&mut self, entry: &Entry) -> String {
        let value = |key: &str| entry.get(key).and_then(number).unwrap_or(0);
        let (function, user, slot) = (entry.function, value("srqn_user_index"), value("wqe_counter"));
        let operation = entry.get("tm.app").map(|_| value("tm.app_op"));
        // A message that matches a tag uses no receive.
        let tag = operation.filter(|operation| !matches!(*operation, UNEXPECTED | NO_TAG));
        let is_responder = matches!(value("opcode"), 1..=4 | 14) && tag.is_none();
        let shared = if is_responder { self.receives.remove(&(function, slot)) } else { None };
        let mut kept = entry.clone();
        kept.fields.retain(|(key, _)| match key.as_str() {
            "srqn_user_index" => false,
            "wqe_counter" => shared.is_none(),
            "tm.app_info" => tag.is_none(),
            _ => true,
        });
        if let Some(operation) = tag {
            let index = (operation != NOOP).then(|| value("tm.app_info"));
            let tag = index.and_then(|index| self.tags.get(&(function, index)));
            kept.fields.push(("added".into(), format!("{tag:?}")));
        }
        let mut line = self.fields(&kept);
        let _ = write!(line, " user={:?} shared={shared:?}", self.users.get(&(function, user)));
        line
    }

    /// Translates a receive. The library chooses the order of the entries in a shared queue.
    fn receive(&mut self, entry: &Entry) -> String {
        let mut entry = entry.clone();
        if entry.get("queue") == Some("srq") {
            let slot = entry.get("index").and_then(number).unwrap_or(0);
            self.taken += 1;
            self.receives.insert((entry.function, slot), self.taken);
            entry.fields.retain(|(key, _)| key != "index");
        }
        self.fields(&entry)
    }

    /// Returns whether the line concerns an object created in the section. The first of `keys` that
    /// occurs in the line names the object.
    fn owned(&self, entry: &Entry, keys: &[&str]) -> bool {
        let found = keys.iter().find_map(|key| Some((key, entry.get(key)?)));
        found.is_some_and(|(key, value)| match kind_of(key) {
            Kind::Handle(class) => self.own.contains(&(entry.function, class, value.to_owned())),
            Kind::Meaningless | Kind::Value => false,
        })
    }

    fn store(&mut self, entry: &Entry) -> Option<String> {
        let function = entry.function;
        let (uar, offset) = (number(entry.get("uar")?)?, number(entry.get("offset")?)?);
        if entry.get("cqn").is_some() {
            return self.owned(entry, &["cqn"]).then(|| self.fields(entry));
        }
        let (register, half, at) = (offset & !0x1ff, offset >> 8 & 1, offset & 0xff);
        let place = (function, uar, register);
        let size = entry.get("size").unwrap_or_default();
        if entry.get("qpn").is_none() {
            // These are the words of a BlueFlame store after the first word. They contain the work
            // request, which the model checks, and then stale bytes.
            let turn = turn(Some(*self.registers.get(&place)?), half);
            let name = self.name(function, "register", &format!("{uar:#x}+{register:#x}"));
            return Some(format!("{function} store register={name} {turn} at={at:#x} size={size}"));
        }
        if !self.owned(entry, &["qpn"]) {
            return None;
        }
        let turn = turn(self.registers.insert(place, half), half);
        let name = self.name(function, "register", &format!("{uar:#x}+{register:#x}"));
        let mut line = format!("{function} store register={name} {turn} at={at:#x} size={size}");
        for key in ["index", "opcode", "qpn", "ds"] {
            self.field(&mut line, entry, key, entry.get(key).unwrap_or_default());
        }
        Some(line)
    }

    fn wqe(&mut self, entry: &Entry) -> String {
        let mut entry = entry.clone();
        if !matches!(entry.get("name"), Some("SEND_IMM" | "RDMA_WRITE_IMM" | "SEND_INVAL" | "UMR")) {
            entry.fields.retain(|(key, _)| key != "ctrl.imm");
        }
        let is_written: &[&str] = match (entry.get("name"), entry.get("mkey.free")) {
            (Some("UMR"), Some("0x1")) => INVALIDATED,
            _ => BOUND,
        };
        entry.fields.retain(|(key, _)| !key.starts_with("mkey.") || is_written.contains(&key.as_str()));
        if is_written == INVALIDATED {
            // This UMR has no list.
            entry.fields.retain(|(key, _)| !["list_bytes", "address"].contains(&key.as_str()));
        } else if entry.get("name") == Some("UMR") {
            // The new remote key that the UMR gives to a window.
            let key = entry.get("ctrl.imm").and_then(number).unwrap_or(0) & !0xff
                | entry.get("mkey.mkey_7_0").and_then(number).unwrap_or(0);
            entry.fields.push(("new.rkey".into(), format!("{key:#x}")));
            if let Some([count, mkey, va, rest]) = entry.get("address").and_then(element) {
                entry.fields.retain(|(key, _)| key != "address");
                let element = [("count", count), ("rkey", mkey), ("klm.address", va), ("rest", rest)];
                entry.fields.extend(element.map(|(key, value)| (key.to_owned(), value)));
            }
        }
        if entry.get("name") == Some("TAG_MATCHING") {
            self.tag_operation(&mut entry);
        }
        self.fields(&entry)
    }

    /// Translates an operation on a tag list. The library chooses the index of a tag when it adds
    /// the previous tag.
    fn tag_operation(&mut self, entry: &mut Entry) {
        let function = entry.function;
        let index = entry.get("tm.index").and_then(number).unwrap_or(0);
        let tag = match entry.get("tm.opcode") {
            Some(APPEND) => {
                let (taken, count) = self.next_tag;
                self.next_tag = (index, count + 1);
                self.tags.insert((function, taken), count + 1);
                Some(count + 1)
            }
            Some(REMOVE) => self.tags.get(&(function, index)).copied(),
            _ => None,
        };
        let is_append = entry.get("tm.opcode") == Some(APPEND);
        let has_count = entry.get("tm.sw_cnt_valid").is_some();
        entry.fields.retain(|(key, _)| match key.as_str() {
            "tm.index" => false,
            // In other operations, these fields are stale.
            "tm.append_tag" | "tm.append_mask" => is_append,
            "tm.sw_cnt" => has_count,
            _ => true,
        });
        entry.fields.push(("added".into(), format!("{tag:?}")));
    }

    fn fields(&mut self, entry: &Entry) -> String {
        let mut line = format!("{} {}", entry.function, entry.kind);
        for (key, value) in fields(entry) {
            self.field(&mut line, entry, &key, &value);
        }
        line
    }

    /// Appends a field to a translated line.
    fn field(&mut self, line: &mut String, entry: &Entry, key: &str, value: &str) {
        let name = entry.get("name").unwrap_or_default();
        let is_this = |field: &&Field| {
            field.kind == entry.kind && field.key == key && (field.name.is_empty() || field.name == name)
        };
        if FIELDS.iter().any(|field| is_this(&field)) {
            return;
        }
        let value = match kind_of(key) {
            _ if is_data_address(entry, key) => value.to_owned(),
            Kind::Meaningless => return,
            Kind::Handle(class) if !is_fixed(class, value) => {
                self.name(entry.function, class, value).to_string()
            }
            Kind::Handle(_) | Kind::Value if number(value) == Some(0) => return,
            Kind::Handle(class) => format!("{class} {value}"),
            Kind::Value => value.to_owned(),
        };
        let _ = write!(line, " {key}={value}");
    }

    /// Returns the number that replaces a handle: the handles of a class are numbered in the order
    /// of first use.
    fn name(&mut self, function: usize, class: &'static str, handle: &str) -> usize {
        let count = self.counts.entry(class).or_default();
        *self.names.entry((function, class, handle.to_owned())).or_insert_with(|| {
            *count += 1;
            *count
        })
    }
}

/// Returns whether a command creates a key for the kernel's cache. Newer kernels register all
/// memory with keys from this cache, which have no memory at first: the kernel adds it with work
/// requests. Whether the cache has a key of the right size depends on earlier runs.
fn is_cached(entry: &Entry) -> bool {
    let is = |key: &str, value| entry.get(&format!("in.memory_key_mkey_entry.{key}")) == Some(value);
    entry.get("name") == Some("CREATE_MKEY") && is("free", "0x1") && is("access_mode_1_0", "0x1")
}

/// The operation codes of tag list operations that name a tag.
const APPEND: &str = "0x1";
const REMOVE: &str = "0x2";

/// The operation codes of tag matching completions that name no tag.
const UNEXPECTED: u64 = 0x3;
const NO_TAG: u64 = 0x4;
const NOOP: u64 = 0x7;

/// Commands that create a queue. The library chooses the user index in the queue's completions.
const QUEUES: &[&str] =
    &["CREATE_QP", "CREATE_RMP", "CREATE_XRC_SRQ", "CREATE_SRQ", "CREATE_XRQ", "CREATE_SQ", "CREATE_RQ"];

/// The fields of a key's context that an invalidation writes; its mask selects no others.
const INVALIDATED: &[&str] = &["mkey.free", "mkey.qpn"];

/// The fields of a key's context that a bind writes.
const BOUND: &[&str] = &[
    "mkey.a",
    "mkey.free",
    "mkey.len",
    "mkey.length64",
    "mkey.lr",
    "mkey.lw",
    "mkey.mkey_7_0",
    "mkey.qpn",
    "mkey.rr",
    "mkey.rw",
    "mkey.start_addr",
];

/// Returns whether a field is the address of data, rather than of a queue or doorbell record.
fn is_data_address(entry: &Entry, key: &str) -> bool {
    let is_request = matches!(entry.kind.as_str(), "wqe" | "receive");
    is_request && (key.ends_with(".address") || key.ends_with(".va") || key.ends_with(".start_addr"))
}

/// Describes a register half relative to the half that the last doorbell used.
fn turn(last: Option<u64>, half: u64) -> &'static str {
    match last {
        None => "half=first",
        Some(last) if last == half => "half=same",
        Some(_) => "half=other",
    }
}

/// Splits a list with one element, in hexadecimal, into the element's length, key and address and
/// the remaining bytes.
fn element(hex: &str) -> Option<[String; 4]> {
    let part = |range: std::ops::Range<usize>| u64::from_str_radix(hex.get(range)?, 16).ok();
    let (count, mkey, va) = (part(0..8)?, part(8..16)?, part(16..32)?);
    let rest = hex.get(32..)?.trim_end_matches('0').to_owned();
    Some([format!("{count:#x}"), format!("{mkey:#x}"), format!("{va:#x}"), format!("len{}{rest}", hex.len())])
}

fn number(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::parse::parse;

    fn compared(first: &str, second: &str) -> Result<usize, String> {
        compare(&parse(first).unwrap(), &parse(second).unwrap())
    }

    /// A shortened trace of rdma-core 44 on the model: the creation of both queues of a queue pair,
    /// one send through BlueFlame and one through a doorbell.
    const RUN: &str = "\
0 command name=ALLOC_PD opcode=0x800 status=0x0 syndrome=0x0 in.opcode=0x800 out=0x100046
0 eqe eqn=0x1 index=0xc9 type=0xa subtype=0x0 vector=0x1
0 store uar=0x4 offset=0x40 size=0x4 eqn=0x1 index=0x1ca bytes=010001ca
0 command name=CREATE_CQ opcode=0x400 status=0x0 syndrome=0x0 in.opcode=0x400 in.cq_context.log_cq_size=0x6 in.cq_context.uar_page=0x12 in.cq_context.dbr_addr=0x89a3000 in.list=0x8 out=0x12
0 command name=QUERY_ADAPTER opcode=0x101 status=0x0 syndrome=0x0 in.opcode=0x101
0 command name=CREATE_QP opcode=0x500 status=0x0 syndrome=0x0 in.opcode=0x500 in.qpc.pd=0x100046 in.qpc.uar_page=0x13 in.qpc.cqn_snd=0x12 out=0x100049
0 store uar=0x12 offset=0x20 size=0x8 cqn=0x12 sequence=0x0 command=0x0 index=0x0 bytes=00
0 store uar=0x13 offset=0x800 size=0x8 index=0x0 opcode=0x8 qpn=0x100049 ds=0x3 bytes=00
0 record queue=sq qpn=0x100049 value=0x1
0 wqe qpn=0x100049 index=0x0 name=RDMA_WRITE ctrl.opcode=0x8 ctrl.qpn=0x100049 ctrl.ds=0x3 ctrl.ce=0x2 raddr.va=0x200000040040 raddr.rkey=0x10004b14 data0.byte_count=0x8 data0.lkey=0x10004711 data0.address=0x200000000040 bytes=00
0 cqe cqn=0x12 index=0x0 timestamp=0xa6022461 wqe_opcode=0x8 qpn=0x100049
0 store uar=0x13 offset=0x808 size=0x8 bytes=00
0 wqe qpn=0x7 index=0x0 name=UMR ctrl.opcode=0x25 bytes=00
0 store uar=0x13 offset=0x900 size=0x8 index=0x1 opcode=0xa qpn=0x100049 ds=0x2 bytes=00
0 store uar=0x13 offset=0x800 size=0x8 index=0x2 opcode=0xa qpn=0x100049 ds=0x2 bytes=00
";

    #[test]
    fn a_run_on_other_objects_is_the_same() {
        let other = RUN
            .replace("0x100049", "0x100058")
            .replace("0x12 ", "0x31 ")
            .replace("out=0x12\n", "out=0x31\n")
            .replace("uar=0x13", "uar=0x17")
            .replace("uar_page=0x13", "uar_page=0x17")
            .replace("0x10004b14", "0x20004b15")
            .replace("0x10004711", "0x20004711")
            .replace("dbr_addr=0x89a3000", "dbr_addr=0x777000")
            .replace("timestamp=0xa6022461", "timestamp=0x1");
        assert_ne!(RUN, other);
        assert_eq!(compared(RUN, &other), Ok(11));
    }

    #[test]
    fn activity_of_others_is_left_out() {
        let other: String = RUN
            .lines()
            .filter(|line| !line.contains("QUERY_") && !line.contains("eqn=") && !line.contains("qpn=0x7 "))
            .map(|line| format!("{line}\n"))
            .collect();
        assert_eq!(compared(RUN, &other), Ok(11));
    }

    #[test]
    fn moderation_of_the_programs_queues_counts_and_that_of_the_kernels_does_not() {
        let destroyed = "0 command name=DESTROY_PD opcode=0x801 in.opcode=0x801\n";
        let with = |queue: &str| {
            format!("{RUN}0 command name=MODIFY_CQ opcode=0x403 in.cqn={queue} in.cq_period=0x1\n{destroyed}")
        };
        let without = format!("{RUN}{destroyed}");
        assert_eq!(compared(&with("0x1"), &without), Ok(12));
        assert!(compared(&with("0x12"), &without).is_err());
    }

    #[test]
    fn every_changed_field_is_a_difference() {
        for (from, to) in [
            ("log_cq_size=0x6", "log_cq_size=0x7"),
            ("ctrl.ce=0x2", "ctrl.ce=0x0"),
            ("ctrl.ds=0x3", "ctrl.ds=0x4"),
            ("value=0x1", "value=0x2"),
            ("data0.byte_count=0x8", "data0.byte_count=0x9"),
            ("data0.address=0x200000000040", "data0.address=0x200000000048"),
            ("raddr.va=0x200000040040", "raddr.va=0x0"),
            ("data0.lkey=0x10004711", "data0.lkey=0x10004b14"),
            ("wqe_opcode=0x8", "wqe_opcode=0xa"),
            ("offset=0x900", "offset=0x800"),
            ("offset=0x808", "offset=0x810"),
            ("offset=0x808 size=0x8", "offset=0x808 size=0x40"),
            ("command=0x0", "command=0x1"),
            ("name=ALLOC_PD", "name=ALLOC_XRCD"),
        ] {
            let other = RUN.replacen(from, to, 1);
            assert_ne!(RUN, other, "{from}");
            assert!(compared(RUN, &other).is_err(), "{from} {to}");
        }
    }

    #[test]
    fn a_missing_or_moved_line_is_a_difference() {
        let lines: Vec<&str> = RUN.lines().collect();
        for place in [0, 3, 5, 6, 7, 8, 9, 10, 11, 13, 14] {
            let mut other = lines.clone();
            other.remove(place);
            assert!(compared(RUN, &other.join("\n")).is_err(), "{place}");
        }
        let mut other = lines.clone();
        other.swap(8, 9);
        assert!(compared(RUN, &other.join("\n")).is_err());
        assert!(compared("", "").is_err());
        let shown = compared(RUN, &lines[..14].join("\n")).unwrap_err();
        assert!(shown.contains("second ends") && shown.contains("first 15: 0 store"), "{shown}");
    }

    #[test]
    fn a_shared_receive_and_its_completion_are_paired() {
        let run = "\
0 command name=CREATE_CQ opcode=0x400 status=0x0 out=0x1
0 command name=CREATE_RMP opcode=0x90c status=0x0 in.ctx.wq.log_wq_sz=0x5 in.ctx.user_index=0x2 out=0x5
0 receive queue=srq srqn=0x5 index=0x3 data0.byte_count=0x8
0 receive queue=srq srqn=0x5 index=0x4 data0.byte_count=0x9
0 cqe cqn=0x1 index=0x0 srqn_user_index=0x2 wqe_counter=0x3 opcode=0x2
0 cqe cqn=0x1 index=0x1 srqn_user_index=0x2 wqe_counter=0x4 opcode=0x2
";
        let other = run
            .replace("log_wq_sz=0x5", "log_wq_sz=0x4")
            .replace("user_index=0x2", "user_index=0x7")
            .replace("index=0x4", "index=0x1")
            .replace("wqe_counter=0x4", "wqe_counter=0x1");
        assert_eq!(compared(run, &other), Ok(6));
        let swapped =
            run.replace("wqe_counter=0x3", "wqe_counter=0x9").replace("wqe_counter=0x4", "wqe_counter=0x3");
        assert!(compared(run, &swapped).is_err());
        let user = "srqn_user_index=0x2 wqe_counter=0x4";
        assert!(compared(run, &run.replace(user, "srqn_user_index=0x3 wqe_counter=0x4")).is_err());
    }

    #[test]
    fn ethernet_objects_may_have_other_numbers() {
        let run = "\
0 command name=CREATE_TIS opcode=0x912 status=0x0 out=0x3
0 command name=CREATE_SQ opcode=0x904 status=0x0 in.ctx.tis_num_0=0x3 in.ctx.user_index=0x1 out=0x40010
0 command name=CREATE_RQ opcode=0x908 status=0x0 in.ctx.wq.log_wq_sz=0x4 in.ctx.user_index=0x2 out=0x40011
0 command name=CREATE_RQT opcode=0x916 status=0x0 in.rqt_context.rqt_max_size=0x2 in.list=0x8 out=0x5
0 command name=CREATE_TIR opcode=0x900 status=0x0 in.ctx.indirect_table=0x5 out=0x6
0 command name=CREATE_TIR opcode=0x900 status=0x0 in.ctx.inline_rqn=0x40011 out=0x7
0 command name=CREATE_FLOW_TABLE opcode=0x930 status=0x0 in.level=0x1 in.table_miss_id=0x8 out=0x9
0 command name=CREATE_FLOW_GROUP opcode=0x933 status=0x0 in.table_id=0x9 out=0xa
0 command name=SET_FLOW_TABLE_ENTRY opcode=0x936 status=0x0 in.table_id=0x9 in.flow_context.group_id=0xa in.flow_context.action=0x4
0 wqe qpn=0x40010 index=0x0 name=SEND eth.l3_csum=0x1 eth.inline_header_size=0x12 header=0102 data0.byte_count=0x2a
0 receive queue=rq qpn=0x40011 index=0x0 data0.byte_count=0x40
";
        let renumbered = [
            ("out=0x3\n", "out=0x23\n"),
            ("tis_num_0=0x3", "tis_num_0=0x23"),
            ("0x40010", "0x40020"),
            ("0x40011", "0x40021"),
            ("out=0x5\n", "out=0x25\n"),
            ("indirect_table=0x5", "indirect_table=0x25"),
            ("table_miss_id=0x8", "table_miss_id=0x28"),
            ("out=0x9\n", "out=0x29\n"),
            ("in.table_id=0x9", "in.table_id=0x29"),
            ("out=0xa\n", "out=0x2a\n"),
            ("group_id=0xa", "group_id=0x2a"),
        ];
        let other = renumbered.iter().fold(run.to_owned(), |run, (from, to)| run.replace(from, to));
        assert_eq!(compared(run, &other), Ok(11));
        for (from, to) in [
            ("tis_num_0=0x3", "tis_num_0=0x5"),
            ("inline_rqn=0x40011", "inline_rqn=0x40010"),
            ("indirect_table=0x5", "indirect_table=0x3"),
            ("group_id=0xa", "group_id=0x9"),
            ("flow_context.action=0x4", "flow_context.action=0x2"),
            ("log_wq_sz=0x4", "log_wq_sz=0x5"),
            ("rqt_max_size=0x2", "rqt_max_size=0x1"),
            ("l3_csum=0x1", "l3_csum=0x0"),
            ("header=0102", "header=0103"),
            ("data0.byte_count=0x2a", "data0.byte_count=0x2b"),
            ("data0.byte_count=0x40", "data0.byte_count=0x41"),
        ] {
            let other = run.replacen(from, to, 1);
            assert_ne!(run, other, "{from}");
            let report = compared(run, &other).unwrap_err();
            let field = from.split('=').next().unwrap();
            assert!(report.contains("only the first has") && report.contains(field), "{report}");
        }
    }

    #[test]
    fn keys_of_the_kernels_cache_do_not_count() {
        let cached = "0 command name=CREATE_MKEY opcode=0x200 status=0x0 in.memory_key_mkey_entry.free=0x1 \
                      in.memory_key_mkey_entry.access_mode_1_0=0x1 out=0x8\n";
        let window = cached.replace("access_mode_1_0=0x1", "access_mode_1_0=0x2").replace("0x8", "0x9");
        let destroy =
            |key| format!("0 command name=DESTROY_MKEY opcode=0x202 status=0x0 in.mkey_index={key}\n");
        let of_window = window.clone() + &destroy("0x9");
        assert_eq!(compared(&of_window, &of_window), Ok(2));
        assert_eq!(compared(&(cached.to_owned() + &destroy("0x8") + &of_window), &of_window), Ok(2));
        assert!(compared(&of_window, &window).is_err());
        assert!(compared(&of_window, &destroy("0x9")).is_err());
    }

    #[test]
    fn a_tag_is_followed_from_its_index_to_its_completions() {
        let run = |[one, two]: [&str; 2], stale: &str| {
            format!(
                "\
0 command name=CREATE_XRQ opcode=0x717 status=0x0 in.xrq_context.user_index=0x1 out=0x5
0 command name=CREATE_CQ opcode=0x400 status=0x0 out=0x7
0 command name=CREATE_QP opcode=0x500 status=0x0 out=0x40
0 wqe qpn=0x40 index=0x0 name=TAG_MATCHING tm.opcode=0x1 tm.index={one} tm.append_tag=0x9{stale}
0 wqe qpn=0x40 index=0x1 name=TAG_MATCHING tm.opcode=0x1 tm.index={two} tm.append_tag=0xa
0 cqe cqn=0x7 opcode=0x6 tm.app=0x1 tm.app_op=0x5 tm.app_info={one}
0 wqe qpn=0x40 index=0x2 name=TAG_MATCHING tm.opcode=0x2 tm.index={one}{stale}
0 cqe cqn=0x7 opcode=0x2 tm.app=0x1 tm.app_op=0xa tm.app_info=0x0
"
            )
        };
        let first = run(["0x1", "0x2"], "");
        assert_eq!(compared(&first, &run(["0x5", "0x3"], " tm.sw_cnt=0x77")), Ok(8));
        for (from, to) in [
            ("tm.app_op=0x5 tm.app_info=0x1", "tm.app_op=0x5 tm.app_info=0x0"),
            ("tm.opcode=0x2 tm.index=0x1", "tm.opcode=0x2"),
            ("tm.append_tag=0xa", "tm.append_tag=0xb"),
            ("tm.append_tag=0x9", "tm.append_tag=0x9 tm.sw_cnt_valid=0x1"),
        ] {
            let other = first.replacen(from, to, 1);
            assert_ne!(first, other, "{from}");
            assert!(compared(&first, &other).is_err(), "{from}");
        }
        let noop = format!("{first}0 wqe qpn=0x40 index=0x3 name=TAG_MATCHING ");
        assert_eq!(
            compared(&noop, &format!("{noop}tm.append_tag=0x9 tm.append_mask=0x1 tm.index=0x3")),
            Ok(9)
        );
    }

    #[test]
    fn bytes_that_no_one_wrote_are_left_out() {
        let head = "0 command name=CREATE_QP opcode=0x500 status=0x0 out=0x4a\n";
        let same = |one: &str, other: &str| {
            compared(&format!("{head}0 wqe qpn=0x4a {one}\n"), &format!("{head}0 wqe qpn=0x4a {other}\n"))
                .is_ok()
        };
        assert!(same("name=SEND ctrl.imm=0x5", "name=SEND"));
        assert!(!same("name=SEND_IMM ctrl.imm=0x5", "name=SEND_IMM"));
        assert!(!same("name=RDMA_WRITE_IMM ctrl.imm=0x5", "name=RDMA_WRITE_IMM ctrl.imm=0x6"));
        assert!(same("name=UMR mkey.free=0x1 mkey.pd=0x5", "name=UMR mkey.free=0x1"));
        assert!(!same("name=UMR mkey.free=0x1 umr.mkey_mask=0x5", "name=UMR mkey.free=0x1"));
        assert!(!same("name=UMR mkey.rw=0x1", "name=UMR"));
        assert!(same("name=UMR mkey.rw=0x1 mkey.pd=0x5", "name=UMR mkey.rw=0x1"));
    }

    #[test]
    fn the_key_that_a_bind_makes_is_followed() {
        let run = "\
0 command name=CREATE_QP opcode=0x500 status=0x0 out=0x4a
0 wqe qpn=0x4a index=0x0 name=UMR ctrl.imm=0x10004b13 mkey.mkey_7_0=0x14 list_bytes=0x40 address=00000200100048120000200000040040000000 bytes=00
0 wqe qpn=0x4a index=0x4 name=RDMA_WRITE raddr.rkey=0x10004b14 bytes=00
";
        let other = run.replace("10004b", "10005b").replace("13 mkey.mkey_7_0=0x14", "18 mkey.mkey_7_0=0x19");
        assert_eq!(compared(run, &other.replace("4b14", "5b19").replace("5b14", "5b19")), Ok(3));
        assert!(compared(run, &other).is_err());
        assert!(compared(run, &run.replace("00000200", "00000100")).is_err());
        assert!(compared(run, &run.replace("0000200000040040", "0000200000040048")).is_err());
    }
}
