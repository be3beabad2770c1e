//! Commands in a normal form for comparing two programs. In this form, numbers do not depend on the
//! run.
//!
//! | number | normal form |
//! |---|---|
//! | handles, files, keys, queue numbers, pages, offsets | the step that created the object |
//! | addresses in the program's memory, which is at a fixed address | unchanged |
//! | addresses in a library's memory | their alignment, up to the device's unit |
//! | `user_handle`, `response` | omitted: chosen by the library, and unused in an ioctl |
//! | `reserved` of `OPEN_QP` | omitted: rdma-core 44 sends uninitialised stack memory |

use std::collections::{BTreeMap, HashMap};

use super::Call;
use super::decode::{self, Command, Value};

/// The address range of the program's memory.
const OWN_MEMORY: core::ops::Range<u64> = 0x2000_0000_0000..0x2000_1000_0000;

/// The commands of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// The step's name, numbered unless it is the first step with that name.
    pub name: String,
    /// The step's commands, in order.
    pub commands: Vec<Normal>,
}

/// A command in the normal form, in which numbers do not depend on the run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Normal {
    /// The command's name.
    pub name: String,
    /// The errno of a failed command.
    pub errno: Option<i64>,
    /// The values of the command's fields, by field name.
    pub fields: BTreeMap<String, String>,
}

/// Returns the steps that a program ran. Calls before the first step form a step without a name.
pub fn steps(calls: &[Call]) -> Vec<Step> {
    let mut names = Names::default();
    let mut steps = vec![Step::default()];
    let mut counts: HashMap<&str, u32> = HashMap::new();
    for call in calls {
        let command = match call {
            Call::Step(name) => {
                let count = counts.entry(name).or_default();
                *count += 1;
                let name = numbered(name, *count);
                names.begin(&name);
                steps.push(Step { name, commands: Vec::new() });
                continue;
            }
            Call::Ioctl(call) => decode::ioctl(call),
            Call::Write(call) => decode::write(call),
            Call::Map(call) => decode::map(call),
        };
        let normal = names.normal(&command);
        if let Some(step) = steps.last_mut() {
            step.commands.push(normal);
        }
    }
    steps
}

/// Returns the name of the `count`-th step called `name`.
pub fn numbered(name: &str, count: u32) -> String {
    if count > 1 { format!("{name} #{count}") } else { name.to_owned() }
}

/// The kinds of numbers chosen by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Object,
    File,
    Key,
    Queue,
    Page,
    Offset,
}

/// The names given to the numbers that the kernel returns.
#[derive(Debug, Default)]
struct Names {
    step: String,
    /// The number of names given in this step, by kind of object.
    given: HashMap<String, u32>,
    names: HashMap<(Kind, u64), String>,
}

impl Names {
    fn begin(&mut self, step: &str) {
        step.clone_into(&mut self.step);
        self.given.clear();
    }

    fn normal(&mut self, command: &Command) -> Normal {
        let named = command.fields.iter().filter_map(|(name, value)| {
            let value = self.value(command, name, value)?;
            Some((name.clone(), value))
        });
        let fields = named.collect();
        for (name, number) in &command.replies {
            self.learn(command, name, *number);
        }
        Normal { name: command.name.clone(), errno: command.errno, fields }
    }

    /// Records a symbolic name for the number that a reply returned in `field`.
    fn learn(&mut self, command: &Command, field: &str, number: u64) {
        let what = last_word(field);
        let kind = match what {
            "RESP_LKEY" | "RESP_RKEY" | "lkey" | "rkey" => Kind::Key,
            "RESP_QP_NUM" | "RESP_SRQ_NUM" | "qpn" | "srqn" => Kind::Queue,
            "PAGE_ID" => Kind::Page,
            "MMAP_OFFSET" => Kind::Offset,
            "fd" | "FD_HANDLE" => Kind::File,
            _ if what.to_lowercase().ends_with("handle") => Kind::Object,
            _ => return,
        };
        // A region's two keys may be the same number.
        let what = match kind {
            Kind::Object => object_of(command, field),
            Kind::File => "file".to_owned(),
            Kind::Key => what.trim_start_matches("RESP_").to_lowercase(),
            Kind::Queue => "number".to_owned(),
            Kind::Page => "page".to_owned(),
            Kind::Offset => "offset".to_owned(),
        };
        if kind == Kind::Key && what == "rkey" && self.names.contains_key(&(kind, number)) {
            return;
        }
        let count = self.given.entry(what.clone()).or_default();
        *count += 1;
        let place = if *count > 1 { format!(" #{count}") } else { String::new() };
        self.names.insert((kind, number), format!("{what} of \"{}\"{place}", self.step));
    }

    fn name(&self, kind: Kind, number: u64) -> String {
        self.names.get(&(kind, number)).cloned().unwrap_or_else(|| format!("{number:#x}"))
    }

    /// Returns a field's value in the normal form; `None` if it is not compared.
    fn value(&self, command: &Command, field: &str, value: &Value) -> Option<String> {
        if (command.name.as_str(), field) == ("write OPEN_QP", "reserved") {
            return None;
        }
        let number = match value {
            Value::Bytes(bytes) => {
                let is_zero = bytes.iter().all(|byte| *byte == 0);
                let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                return Some(if is_zero { format!("{} zeros", bytes.len()) } else { text });
            }
            Value::Handle(number) => {
                let is_file = ["CHANNEL", "EVENT_FD"].iter().any(|end| field.ends_with(end));
                let kind = if is_file { Kind::File } else { Kind::Object };
                return Some(self.name(kind, *number));
            }
            Value::Number(number) => *number,
        };
        if field.ends_with(".flags") && field.starts_with(|first: char| first.is_ascii_uppercase()) {
            return Some(if number & 1 != 0 { "mandatory".to_owned() } else { "optional".to_owned() });
        }
        Some(match last_word(field) {
            "user_handle" | "USER_HANDLE" | "response" => return None,
            "offset" if command.name == "mmap" => self.name(Kind::Offset, number),
            "comp_channel" | "fd" if number == u64::from(u32::MAX) => "no file".to_owned(),
            "comp_channel" => self.name(Kind::File, number),
            // Files that are not kernel objects.
            "fd" | "MR_FD" => "a file".to_owned(),
            "lkey" | "rkey" => self.name(Kind::Key, number),
            "qpn" | "srqn" => self.name(Kind::Queue, number),
            "uar_page_index" | "bfreg_index" | "UAR_INDEX" => self.name(Kind::Page, number),
            // A doorbell record has an offset within a cache line; a queue starts at a page
            // boundary.
            "db_addr" => address(number, 64),
            "buf_addr" | "sq_buf_addr" => address(number, 4096),
            // The library's allocator chooses this address.
            "counters_data" => address(number, 16),
            "start" | "addr" | "hca_va" | "ADDR" if !OWN_MEMORY.contains(&number) && number >= 1 << 32 => {
                address(number, 4096)
            }
            word if word.ends_with("_handle") => {
                // 0 means no object but is also a valid object number.
                let name = self.name(Kind::Object, number);
                let of = name.split(' ').next().unwrap_or_default().to_lowercase();
                if number == 0 && !word.contains(&of) { "0x0".to_owned() } else { name }
            }
            _ => format!("{number:#x}"),
        })
    }
}

/// Returns the last word of a field's name, which identifies its kind.
fn last_word(field: &str) -> &str {
    const ENDS: [&str; 11] = [
        "MR_FD",
        "USER_HANDLE",
        "FD_HANDLE",
        "RESP_LKEY",
        "RESP_RKEY",
        "RESP_QP_NUM",
        "RESP_SRQ_NUM",
        "PAGE_ID",
        "MMAP_OFFSET",
        "UAR_INDEX",
        "REG_MR_ADDR",
    ];
    let field = field.rsplit('.').next().unwrap_or(field);
    match ENDS.iter().find(|end| field.ends_with(*end)) {
        Some(&"REG_MR_ADDR") => "ADDR",
        Some(end) => end,
        None => field,
    }
}

/// Returns the kind of a new object, such as `cq`.
fn object_of(command: &Command, field: &str) -> String {
    let of_field = field.to_lowercase();
    let of_field = of_field.trim_end_matches("_handle");
    let word = of_field.rsplit('_').next().unwrap_or_default();
    match (command.name.as_str(), word) {
        (_, "tbl") => "ind_tbl".to_owned(),
        // `DM` names both device memory and regions of it.
        ("DM_MR_REG", _) => "mr".to_owned(),
        (_, "alloc") => "uar".to_owned(),
        _ => word.to_owned(),
    }
}

fn address(address: u64, most: u64) -> String {
    match address {
        0 => "0x0".to_owned(),
        _ => format!("aligned to {}", most.min(1 << address.trailing_zeros())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(name: &str, fields: &[(&str, Value)], replies: &[(&str, u64)]) -> Command {
        Command {
            name: name.to_owned(),
            errno: None,
            fields: fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
            replies: replies.iter().map(|(name, number)| ((*name).to_owned(), *number)).collect(),
        }
    }

    fn number(number: u64) -> Value {
        Value::Number(number)
    }

    #[test]
    fn numbers_of_the_kernel_are_named_after_the_step_that_made_them() {
        for handle in [3, 17] {
            let mut names = Names::default();
            names.begin("alloc_pd");
            names.normal(&command("write ALLOC_PD", &[], &[("pd_handle", handle)]));
            names.begin("reg_mr");
            let fields = [("pd_handle", number(handle)), ("start", number(0x2000_0000_0000))];
            let one = names.normal(&command("write REG_MR", &fields, &[("lkey", handle << 8)]));
            assert_eq!(one.fields["pd_handle"], "pd of \"alloc_pd\"");
            assert_eq!(one.fields["start"], "0x200000000000");
            let advice = names.normal(&command("ADVISE_MR", &[("SGE.0.lkey", number(handle << 8))], &[]));
            assert_eq!(advice.fields["SGE.0.lkey"], "lkey of \"reg_mr\"");
        }
    }

    #[test]
    fn a_number_that_is_given_again_has_the_name_of_its_last_step() {
        let mut names = Names::default();
        for step in ["first", "second"] {
            names.begin(step);
            names.normal(&command("CQ_CREATE", &[], &[("CREATE_CQ_HANDLE", 4)]));
        }
        let one = names.normal(&command("CQ_DESTROY", &[("DESTROY_CQ_HANDLE", Value::Handle(4))], &[]));
        assert_eq!(one.fields["DESTROY_CQ_HANDLE"], "cq of \"second\"");
    }

    #[test]
    fn addresses_of_a_library_keep_their_alignment_and_its_own_numbers_are_left_out() {
        let names = Names::default();
        let fields = [
            ("driver.buf_addr", number(0x7fff_1234_5000)),
            ("driver.db_addr", number(0x7fff_1234_5040)),
            ("driver.sq_buf_addr", number(0)),
            ("CREATE_CQ_USER_HANDLE", number(0x7fff_0000)),
            ("response", number(0x7fff_0000)),
        ];
        let one = Names::normal(&mut { names }, &command("CQ_CREATE", &fields, &[]));
        assert_eq!(one.fields["driver.buf_addr"], "aligned to 4096");
        assert_eq!(one.fields["driver.db_addr"], "aligned to 64");
        assert_eq!(one.fields["driver.sq_buf_addr"], "0x0");
        assert_eq!(one.fields.len(), 3);
    }

    #[test]
    fn a_field_without_an_object_is_told_from_the_first_object() {
        let mut names = Names::default();
        names.begin("alloc_pd");
        names.normal(&command("write ALLOC_PD", &[], &[("pd_handle", 0)]));
        let fields = [("pd_handle", number(0)), ("srq_handle", number(0))];
        let one = names.normal(&command("write CREATE_QP", &fields, &[]));
        assert_eq!(one.fields["pd_handle"], "pd of \"alloc_pd\"");
        assert_eq!(one.fields["srq_handle"], "0x0");
    }

    #[test]
    fn steps_of_one_name_are_numbered() {
        let calls = ["a", "b", "a"].map(|name| Call::Step(name.to_owned()));
        let names: Vec<String> = steps(&calls).into_iter().map(|step| step.name).collect();
        assert_eq!(names, ["", "a", "b", "a #2"]);
    }
}
