//! Compares every type and constant of this crate with `golden/*.txt`, which `cargo xtask abi`
//! writes with a C compiler from the kernel's own headers. `xtask/src/abi/header.rs` describes the
//! file format.

use std::collections::BTreeMap;
use std::path::Path;

use uverbs_abi::HEADERS;
use uverbs_abi::layout::{Header, Item};

/// The definitions in a golden file, by kind.
#[derive(Default)]
struct Golden {
    /// `enum TAG NAME` or `define NAME`, and its value.
    constants: BTreeMap<String, i128>,
    /// `struct NAME` or `union NAME` and `SIZE ALIGN`; `field TYPE MEMBER` and `OFFSET SIZE`.
    layout: BTreeMap<String, (usize, usize)>,
    /// Flexible array members: the type, the member's name and its offset.
    flexible: Vec<(String, String, usize)>,
}

impl Golden {
    fn parse(text: &str) -> Self {
        let mut golden = Golden::default();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let words: Vec<_> = line.split(' ').collect();
            let number = |i: usize| words[i].parse().unwrap_or_else(|e| panic!("{line}: {e}"));
            let fresh = match words[..] {
                ["define", name, value] => {
                    golden.constants.insert(format!("define {name}"), value.parse().unwrap()).is_none()
                }
                ["enum", tag, name, value] => {
                    golden.constants.insert(format!("enum {tag} {name}"), value.parse().unwrap()).is_none()
                }
                ["struct" | "union", name, _, _] => {
                    golden.layout.insert(format!("{} {name}", words[0]), (number(2), number(3))).is_none()
                }
                ["field", ty, member, _, _] => {
                    golden.layout.insert(format!("field {ty} {member}"), (number(3), number(4))).is_none()
                }
                ["flex", ty, member, _, _] => {
                    golden.flexible.push((ty.to_owned(), member.to_owned(), number(3)));
                    true
                }
                _ => panic!("not understood: {line}"),
            };
            assert!(fresh, "twice in the file: {line}");
        }
        golden
    }
}

fn golden_texts() -> Vec<String> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden");
    std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap())
        .collect()
}

fn golden_of(header: &Header) -> Golden {
    let first = format!("# Layout of {}, ", header.path);
    let text = golden_texts().into_iter().find(|text| text.starts_with(&first));
    Golden::parse(&text.unwrap_or_else(|| panic!("no golden file for {}", header.path)))
}

/// The definitions of this crate, in the notation of the golden files.
#[derive(Default)]
struct Ours {
    /// The value, and the width of its type in bits.
    constants: BTreeMap<String, (i128, u32)>,
    layout: BTreeMap<String, (usize, usize)>,
}

fn ours(header: &Header) -> Ours {
    let Ours { mut constants, mut layout } = Ours::default();
    for item in header.items {
        match item {
            Item::Constants(group) => {
                for (name, value) in group.constants {
                    let key = match group.c_name {
                        "define" => format!("define {name}"),
                        tag => format!("enum {tag} {name}"),
                    };
                    assert!(constants.insert(key, (*value, group.bits)).is_none(), "{name} is defined twice");
                }
            }
            Item::Type(ty) => {
                let kind = if ty.union { "union" } else { "struct" };
                layout.insert(format!("{kind} {}", ty.c_name), (ty.size, ty.align));
                for field in ty.fields.iter().filter(|field| !field.name.starts_with("_pad")) {
                    let name = field.name.trim_start_matches("r#");
                    let key = format!("field {} {name}", ty.c_name);
                    assert!(layout.insert(key, (field.offset, field.size)).is_none(), "{name} twice");
                }
            }
        }
    }
    Ours { constants, layout }
}

/// Returns the keys of `left` missing from `right`.
fn lacking<A, B>(left: &BTreeMap<String, A>, right: &BTreeMap<String, B>) -> Vec<String> {
    left.keys().filter(|key| !right.contains_key(*key)).cloned().collect()
}

#[test]
fn every_definition_of_the_headers_is_here_and_nothing_else() {
    let mut report = Vec::new();
    for header in HEADERS {
        let golden = golden_of(header);
        let Ours { constants, layout } = ours(header);
        let lacks = [lacking(&golden.constants, &constants), lacking(&golden.layout, &layout)].concat();
        let extra = [lacking(&constants, &golden.constants), lacking(&layout, &golden.layout)].concat();
        report.extend(lacks.into_iter().map(|what| format!("{}: missing here: {what}", header.path)));
        report.extend(extra.into_iter().map(|what| format!("{}: only here: {what}", header.path)));
    }
    assert!(report.is_empty(), "{}", report.join("\n"));
}

#[test]
fn every_size_alignment_and_offset_is_the_c_compilers() {
    let mut report = Vec::new();
    let mut compared = 0;
    for header in HEADERS {
        let golden = golden_of(header);
        for (what, numbers) in ours(header).layout {
            let Some(c) = golden.layout.get(&what) else { continue };
            compared += 1;
            if *c != numbers {
                let words = if what.starts_with("field") { "offset and size" } else { "size and alignment" };
                report.push(format!("{}: {what}: {words} {numbers:?}, in C {c:?}", header.path));
            }
        }
    }
    assert!(report.is_empty(), "{}", report.join("\n"));
    assert!(compared > 1000, "only {compared} sizes and offsets were compared");
}

#[test]
fn every_constant_has_the_value_of_c() {
    let mut report = Vec::new();
    let mut compared = 0;
    for header in HEADERS {
        let golden = golden_of(header);
        for (what, (value, bits)) in ours(header).constants {
            let Some(c) = golden.constants.get(&what) else { continue };
            compared += 1;
            // `~x` is a negative int in C. Only the bits within the width of this crate's type are
            // compared.
            let c = if *c < 0 { c & ((1 << bits) - 1) } else { *c };
            if c != value {
                report.push(format!("{}: {what}: {value}, in C {c}", header.path));
            }
        }
    }
    assert!(report.is_empty(), "{}", report.join("\n"));
    assert!(compared > 700, "only {compared} constants were compared");
}

#[test]
fn what_follows_a_struct_starts_where_the_struct_ends() {
    for header in HEADERS {
        let layout = ours(header).layout;
        for (ty, member, offset) in golden_of(header).flexible {
            let (size, _) = layout[&format!("struct {ty}")];
            assert_eq!(size, offset, "{ty}.{member}");
        }
    }
}

#[test]
fn every_golden_file_belongs_to_a_module() {
    for text in golden_texts() {
        let first = text.lines().next().unwrap_or_default();
        let path =
            first.strip_prefix("# Layout of ").and_then(|rest| rest.split_once(',')).map(|(path, _)| path);
        assert!(HEADERS.iter().any(|header| Some(header.path) == path), "no module for: {first}");
    }
}

#[test]
fn rust_names_are_the_c_names_in_camel_case() {
    let camel = |tag: &str| -> String {
        tag.split('_')
            .filter(|word| !word.is_empty())
            .map(|word| word[..1].to_ascii_uppercase() + &word[1..])
            .collect()
    };
    for header in HEADERS {
        for item in header.items {
            let (c_name, rust_name) = match item {
                Item::Type(ty) if ty.c_name.contains('.') => continue,
                Item::Type(ty) => (ty.c_name, ty.rust_name),
                Item::Constants(group) => match group.rust_name {
                    Some(rust_name) => (group.c_name, rust_name),
                    None => continue,
                },
            };
            assert_eq!(rust_name, camel(c_name), "{}", header.path);
        }
    }
}
