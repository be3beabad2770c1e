//! The definitions of a header, as the C compiler sees them: macros in the preprocessor's output,
//! types in the debug information. A C program prints their values and layouts, a line each:
//!
//! ```text
//! define NAME VALUE
//! enum TAG NAME VALUE             TAG is `anonymous` for an enum without one
//! struct NAME SIZE ALIGN          NAME is a path (`ib_uverbs_wc.ex`) without a tag; also `union`
//! field TYPE MEMBER OFFSET SIZE   members of anonymous types count as the outer type's
//! flex TYPE MEMBER OFFSET SIZE    an array without length; SIZE is one element's
//! ```
//!
//! If two members share one type without a tag, the type is listed under the first member's name.
//! Debian's `bindgen` loses the names of such types and all macros that are no literals; `pahole`
//! prints neither alignments nor enumerations without a tag.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::process::output;

/// A definition of a header.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Definition {
    /// A macro with a value.
    Macro(String),
    /// A macro with parameters, or a typedef: it has no layout of its own.
    Other(String),
    /// Statements that print a type or an enumeration.
    Printed(String),
}

/// Headers that are compiled together.
pub(super) struct Unit<'a> {
    pub(super) includes: &'a [&'a str],
    directories: &'a [&'a Path],
    scratch: &'a Path,
    preprocessed: String,
    /// The table of source files, as readelf prints it.
    files: String,
    entries: Vec<Entry>,
    /// Indices in `entries` by their offsets.
    by_offset: HashMap<String, usize>,
}

impl<'a> Unit<'a> {
    /// Compiles headers below `directories`.
    pub(super) fn new(
        includes: &'a [&'a str],
        directories: &'a [&'a Path],
        scratch: &'a Path,
    ) -> Result<Unit<'a>> {
        let mut unit = Unit {
            includes,
            directories,
            scratch,
            preprocessed: String::new(),
            files: String::new(),
            entries: Vec::new(),
            by_offset: HashMap::new(),
        };
        unit.preprocessed = unit.gcc("", &["-E", "-dD"])?;
        let debug = ["-g", "-gno-column-info", "-fno-eliminate-unused-debug-types", "-w", "-o", "types"];
        unit.gcc("", &debug)?;
        let dump = |what: &str| {
            let mut readelf = Command::new("readelf");
            output(readelf.args(["--wide", what, "types"]).current_dir(scratch).env("LC_ALL", "C"))
        };
        unit.files = dump("--debug-dump=rawline")?;
        unit.entries = entries(&dump("--debug-dump=info")?);
        unit.by_offset = unit.entries.iter().enumerate().map(|(at, e)| (e.offset.clone(), at)).collect();
        Ok(unit)
    }

    /// Returns the definitions of one header in their order; a type comes before the types declared
    /// inside it.
    pub(super) fn definitions(&self, header: &str) -> Vec<Definition> {
        let mut found = macros(&self.preprocessed, header);
        let name = header.rsplit('/').next().unwrap_or(header);
        let table = self.files.lines().skip_while(|line| !line.contains("The File Name Table"));
        let mut of_header = table.filter(|line| line.split_whitespace().last() == Some(name));
        let file = of_header.next().and_then(|line| line.split_whitespace().next());
        for (at, entry) in self.entries.iter().enumerate() {
            let (Some(line), true) = (entry.get("decl_line"), entry.depth == 1) else { continue };
            if file.is_none() || entry.get("decl_file") != file || entry.get("declaration").is_some() {
                continue;
            }
            let definition = match (entry.tag.as_str(), entry.get("name")) {
                ("enumeration_type", tag) => {
                    let prefix = format!("enum {}", tag.unwrap_or("anonymous"));
                    let names = self.children(at).filter_map(|(_, entry)| entry.get("name"));
                    Definition::Printed(names.map(|name| constant(&prefix, name)).collect())
                }
                ("structure_type" | "union_type", Some(tag)) => Definition::Printed(self.layout(at, tag)),
                ("typedef", Some(name)) => Definition::Other(name.to_owned()),
                _ => continue,
            };
            found.push((line.parse().unwrap_or(0), definition));
        }
        found.sort_by_key(|(line, _)| *line);
        found.into_iter().map(|(_, definition)| definition).collect()
    }

    /// Returns the statements that print a struct or union, and the types inside it; `tag` may be
    /// another name of it, by a macro. `None` if no type has the tag `original`.
    pub(super) fn renamed(&self, original: &str, tag: &str) -> Option<Definition> {
        let is_it = |entry: &Entry| entry.get("name") == Some(original) && entry.get("byte_size").is_some();
        let at = self.entries.iter().position(is_it)?;
        // The constants of an enumeration have names of their own.
        let is_enum = self.entries[at].tag == "enumeration_type";
        Some(Definition::Printed(if is_enum { String::new() } else { self.layout(at, tag) }))
    }

    /// Compiles and runs a program of the headers with these statements.
    pub(super) fn run(&self, statements: &str) -> Result<String> {
        self.gcc(statements, &["-Wall", "-Werror", "-o", "probe"])?;
        output(Command::new(self.scratch.join("probe")).current_dir(self.scratch))
    }

    fn gcc(&self, statements: &str, options: &[&str]) -> Result<String> {
        // Macros of the headers use definitions from headers that they do not include.
        let mut program = "#include <stddef.h>\n#include <stdio.h>\n#include <linux/netlink.h>\n".to_owned();
        program.extend(self.includes.iter().map(|include| format!("#include <{include}>\n")));
        fs::write(
            self.scratch.join("probe.c"),
            format!("{program}int main(void)\n{{\n{statements}return 0;\n}}\n"),
        )?;
        let mut gcc = Command::new("gcc");
        gcc.args(["-std=gnu11", "-m64", "probe.c"]).args(options).current_dir(self.scratch);
        self.directories.iter().for_each(|dir| {
            gcc.arg("-isystem").arg(dir);
        });
        output(&mut gcc)
    }

    fn children(&self, at: usize) -> impl Iterator<Item = (usize, &Entry)> {
        let depth = self.entries[at].depth;
        let inside = (at + 1..).zip(&self.entries[at + 1..]).take_while(move |(_, e)| e.depth > depth);
        inside.filter(move |(_, entry)| entry.depth == depth + 1)
    }

    fn layout(&self, at: usize, tag: &str) -> String {
        let root = format!("{} {tag}", self.entries[at].keyword());
        let mut type_ = Type { unit: self, root, out: String::new() };
        type_.print(at, tag, "");
        type_.out
    }
}

/// A struct or union with a tag that is being printed.
struct Type<'a> {
    unit: &'a Unit<'a>,
    /// Its name in C.
    root: String,
    out: String,
}

impl Type<'_> {
    /// Prints the type at an index, which the members `path` of the root lead to: `""`, or `"ex."`.
    fn print(&mut self, at: usize, name: &str, path: &str) {
        let (root, inner) = (&self.root, path.trim_end_matches('.'));
        let (this, start) = if inner.is_empty() {
            (root.clone(), "(size_t)0".to_owned())
        } else {
            (format!("__typeof__((({root} *)0)->{inner})"), format!("offsetof({root}, {inner})"))
        };
        let keyword = self.unit.entries[at].keyword();
        self.out +=
            &format!("printf(\"{keyword} {name} %zu %zu\\n\", sizeof({this}), __alignof__({this}));\n");
        let mut nested = Vec::new();
        self.members(at, name, path, &start, &mut nested);
        for (at, member) in nested {
            self.print(at, &format!("{name}.{member}"), &format!("{path}{member}."));
        }
    }

    fn members(&mut self, at: usize, name: &str, path: &str, start: &str, nested: &mut Vec<(usize, String)>) {
        for (_, entry) in self.unit.children(at).filter(|(_, entry)| entry.tag == "member") {
            let Some(of) = entry.get("type").and_then(|offset| self.unit.by_offset.get(offset)).copied()
            else {
                continue;
            };
            let type_ = &self.unit.entries[of];
            let is_nested =
                type_.get("name").is_none() && matches!(type_.tag.as_str(), "structure_type" | "union_type");
            let Some(member) = entry.get("name") else {
                self.members(of, name, path, start, nested);
                continue;
            };
            // Macros add members: __DECLARE_FLEX_ARRAY one without size, which C++ needs, and
            // libibverbs' RDMA_UAPI_PTR an integer beside the pointer. `__align` only aligns.
            if member.starts_with("__empty_") || member.ends_with("_data_u64") || member == "__align" {
                continue;
            }
            if is_nested && nested.iter().all(|(known, _)| *known != of) {
                nested.push((of, member.to_owned()));
            }
            let is_flexible = type_.tag == "array_type"
                && self.unit.children(of).any(|(_, range)| {
                    range.tag == "subrange_type"
                        && range.get("upper_bound").is_none()
                        && range.get("count").is_none_or(|count| count == "0")
                });
            let (kind, element) = if is_flexible { ("flex", "[0]") } else { ("field", "") };
            let root = &self.root;
            self.out += &format!(
                "printf(\"{kind} {name} {member} %zu %zu\\n\", offsetof({root}, {path}{member}) - {start}, \
                 sizeof((({root} *)0)->{path}{member}{element}));\n"
            );
        }
    }
}

/// Returns the statement that prints a constant.
pub(super) fn constant(prefix: &str, name: &str) -> String {
    format!("printf(\"{prefix} {name} %lld\\n\", (long long)({name}));\n")
}

/// An entry of debug information.
#[derive(Debug)]
struct Entry {
    depth: usize,
    offset: String,
    tag: String,
    /// The last word of each value, or the offset of a type.
    attributes: HashMap<String, String>,
}

impl Entry {
    fn get(&self, attribute: &str) -> Option<&str> {
        self.attributes.get(attribute).map(String::as_str)
    }

    fn keyword(&self) -> &'static str {
        if self.tag == "union_type" { "union" } else { "struct" }
    }
}

/// Reads the lines of readelf: ` <1><2e>: Abbrev Number: 3 (DW_TAG_typedef)`, and below each its
/// attributes, such as `    <36>   DW_AT_type        : (ref4) <0x3a>, long int`.
fn entries(text: &str) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    for line in text.lines() {
        if let Some((place, tag)) = line.split_once(">: Abbrev Number: ") {
            let (depth, offset) = place.trim_start_matches([' ', '<']).split_once("><").unwrap_or_default();
            entries.push(Entry {
                depth: depth.parse().unwrap_or(0),
                offset: offset.to_owned(),
                tag: tag.split_once("DW_TAG_").map_or("", |(_, tag)| tag.trim_end_matches(')')).to_owned(),
                attributes: HashMap::new(),
            });
        } else if let Some((name, value)) =
            line.split_once("DW_AT_").and_then(|(_, rest)| rest.split_once(':'))
        {
            let reference = value.split_once("<0x").and_then(|(_, rest)| rest.split_once('>'));
            let last = value.split_whitespace().last().unwrap_or_default();
            let value = reference.map_or(last, |(offset, _)| offset).to_owned();
            entries.last_mut().map(|entry| entry.attributes.insert(name.trim().to_owned(), value));
        }
    }
    entries
}

/// Returns the macros that a header defines, with their lines, from the preprocessor's output.
fn macros(preprocessed: &str, header: &str) -> Vec<(u32, Definition)> {
    let (mut found, mut number, mut is_here) = (Vec::new(), 0, false);
    for line in preprocessed.lines() {
        // `# 12 "/usr/include/rdma/x.h" 2 3 4`
        if let Some((next, file)) = line.strip_prefix("# ").and_then(|rest| rest.split_once(" \"")) {
            number = next.parse().unwrap_or(0);
            is_here = file.split('"').next().is_some_and(|file| file.ends_with(&format!("/{header}")));
            continue;
        }
        if let (true, Some(rest)) = (is_here, line.strip_prefix("#define ")) {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            let (name, value) = rest.split_at(end);
            if value.starts_with('(') {
                found.push((number, Definition::Other(name.to_owned())));
            } else if !value.trim().is_empty() {
                found.push((number, Definition::Macro(name.to_owned())));
            }
        }
        number += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_becomes_its_definitions_in_order_and_inner_types_follow_the_outer_one() {
        let dir = std::env::temp_dir().join(format!("xtask-abi-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let source = "#ifndef X\n#define X\n#define A 1 /* one */\n#define GET(x) \\\n\t(x)\nenum e { B, C = 5 };\n\
                      enum { D = -1 };\n#ifdef NONE\n#define E 1\n#endif\ntypedef unsigned long word;\nstruct t;\n\
                      struct s {\n union {\n  struct { char x; } deep;\n  long y;\n } u, v;\n\
                      union { char p; struct { char q; }; };\n word data[];\n};\n#define F (A + D)\n#endif\n";
        fs::write(dir.join("x.h"), source).unwrap();
        let directories = [dir.as_path()];
        let unit = Unit::new(&["x.h"], &directories, &dir).unwrap();
        let definitions = unit.definitions("x.h");
        let statements: String = definitions
            .iter()
            .map(|definition| match definition {
                Definition::Macro(name) => constant("define", name),
                Definition::Printed(statements) => statements.clone(),
                Definition::Other(name) => format!("printf(\"other {name}\\n\");\n"),
            })
            .collect();
        let printed = unit.run(&statements);
        fs::remove_dir_all(&dir).unwrap();
        let expected = "define A 1\nother GET\nenum e B 0\nenum e C 5\nenum anonymous D -1\nother word\n\
                        struct s 24 8\nfield s u 0 8\nfield s v 8 8\nfield s p 16 1\nfield s q 16 1\n\
                        flex s data 24 8\nunion s.u 8 8\nfield s.u deep 0 1\nfield s.u y 0 8\n\
                        struct s.u.deep 1 1\nfield s.u.deep x 0 1\ndefine F 0\n";
        assert_eq!(printed.unwrap(), expected);
    }
}
