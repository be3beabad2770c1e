//! The definitions in a header. ctags lists them from the preprocessor's output, and a C program
//! prints their values and layouts, one per line.
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
//! Debian's `bindgen` loses the names of such types and all macros except literals. `pahole` prints
//! neither alignments nor enumerations without a tag.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use serde::Deserialize;

use crate::process::output;

/// A definition in a header.
#[derive(Debug)]
pub(super) struct Definition {
    pub(super) name: String,
    /// The statements for printing the definition; `None` for a macro with parameters or a typedef,
    /// which have no layout.
    pub(super) statements: Option<String>,
}

/// Headers compiled together.
pub(super) struct Unit<'a> {
    pub(super) includes: &'a [&'a str],
    directories: &'a [&'a Path],
    scratch: &'a Path,
    tags: Vec<Tag>,
}

/// A line in ctags' output.
#[derive(Deserialize)]
struct Tag {
    kind: Kind,
    /// The name; `__anon` and a number for a type without a tag.
    name: String,
    /// The path of the header.
    path: String,
    /// The line in the header, as a regular expression.
    pattern: String,
    /// The names of the enclosing types, joined by `::`.
    #[serde(default)]
    scope: String,
    /// A member's type, after its kind and a colon.
    #[serde(default)]
    typeref: String,
    /// A macro's parameters.
    signature: Option<String>,
    /// A macro's value.
    #[serde(default)]
    macrodef: String,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Macro,
    Enum,
    Enumerator,
    Struct,
    Union,
    Member,
    Typedef,
}

/// Arguments for ctags, which then writes the fields of [`Tag`].
const CTAGS: &str = "--options=NONE --language-force=C --line-directives=yes --sort=no \
                     --kinds-C=degmstu --fields=+KsStZ --fields-C=+{macrodef} \
                     --pattern-length-limit=0 --output-format=json -o - unit.i";

impl<'a> Unit<'a> {
    /// Reads headers below `directories`.
    pub(super) fn new(
        includes: &'a [&'a str],
        directories: &'a [&'a Path],
        scratch: &'a Path,
    ) -> Result<Unit<'a>> {
        let mut unit = Unit { includes, directories, scratch, tags: Vec::new() };
        fs::write(scratch.join("unit.i"), unit.gcc("", &["-E", "-dD"])?)?;
        let mut ctags = Command::new("ctags-universal");
        let tags = output(ctags.args(CTAGS.split_whitespace()).current_dir(scratch))?;
        unit.tags = tags.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
        Ok(unit)
    }

    /// Returns the definitions in one header, in order. A type comes before the types declared
    /// inside it.
    pub(super) fn definitions(&self, header: &str) -> Vec<Definition> {
        let end = format!("/{header}");
        let tags = self.tags.iter().filter(|tag| tag.path.ends_with(&end));
        tags.filter_map(|tag| self.definition(tag)).collect()
    }

    fn definition(&self, tag: &Tag) -> Option<Definition> {
        let statements = match tag.kind {
            Kind::Macro if tag.signature.is_some() => None,
            Kind::Macro if tag.macrodef.is_empty() => return None,
            Kind::Macro => Some(constant("define", &tag.name)),
            Kind::Enum => {
                let prefix = format!("enum {}", if tag.is_anonymous() { "anonymous" } else { &tag.name });
                Some(self.inside(tag).iter().map(|value| constant(&prefix, &value.name)).collect())
            }
            Kind::Struct | Kind::Union if !tag.is_anonymous() => Some(self.layout(tag, &tag.name)),
            Kind::Typedef => None,
            Kind::Struct | Kind::Union | Kind::Member | Kind::Enumerator => return None,
        };
        Some(Definition { name: tag.name.clone(), statements })
    }

    /// Returns a struct or union, with the types inside it, under the name that a macro gives it.
    /// `None` if no type has the tag `original`.
    pub(super) fn renamed(&self, original: &str, name: &str) -> Option<Definition> {
        let is_type = |tag: &&Tag| tag.kind == Kind::Enum || tag.is_struct();
        let tag = self.tags.iter().filter(is_type).find(|tag| tag.name == original)?;
        // An enumeration's constants are listed by their own names.
        let statements = if tag.kind == Kind::Enum { String::new() } else { self.layout(tag, name) };
        Some(Definition { name: name.to_owned(), statements: Some(statements) })
    }

    /// Compiles and runs a program that includes the headers and has these statements.
    pub(super) fn run(&self, statements: &str) -> Result<String> {
        self.gcc(statements, &["-Wall", "-Werror", "-o", "probe"])?;
        output(Command::new(self.scratch.join("probe")).current_dir(self.scratch))
    }

    fn gcc(&self, statements: &str, options: &[&str]) -> Result<String> {
        // Macros in the headers use definitions from headers that they do not include.
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

    /// Returns a type's members or an enumeration's constants, with the types declared among them.
    fn inside(&self, of: &Tag) -> Vec<&Tag> {
        let outer = if of.scope.is_empty() { String::new() } else { format!("{}::", of.scope) };
        let scope = outer + &of.name;
        self.tags.iter().filter(|tag| tag.scope == scope).collect()
    }

    /// Returns the members of a struct or union, including the members of anonymous types inside
    /// it.
    fn members(&self, of: &Tag) -> Vec<&Tag> {
        let mut members = Vec::new();
        for tag in self.inside(of) {
            if tag.kind == Kind::Member {
                members.push(tag);
            } else if tag.is_struct() && tag.is_anonymous() && !self.tags.iter().any(|it| it.has_type(tag)) {
                members.extend(self.members(tag));
            }
        }
        members
    }

    /// Returns the statements for printing a type and the types inside it under a name.
    fn layout(&self, tag: &Tag, name: &str) -> String {
        self.layout_inside(&format!("{} {name}", tag.keyword()), "", tag, name)
    }

    /// Like `layout`, for a type reached from `root` through the members `path`, such as `"ex."`.
    fn layout_inside(&self, root: &str, path: &str, tag: &Tag, name: &str) -> String {
        let inner = path.trim_end_matches('.');
        let (this, start) = if inner.is_empty() {
            (root.to_owned(), "(size_t)0".to_owned())
        } else {
            (format!("__typeof__((({root} *)0)->{inner})"), format!("offsetof({root}, {inner})"))
        };
        let keyword = tag.keyword();
        let mut statements =
            format!("printf(\"{keyword} {name} %zu %zu\\n\", sizeof({this}), __alignof__({this}));\n");
        let mut nested: Vec<(&Tag, &String)> = Vec::new();
        for member in self.members(tag) {
            // Skips members that macros add: a C++ member without a size (__DECLARE_FLEX_ARRAY) and
            // an integer beside the pointer (RDMA_UAPI_PTR). `__align` only aligns.
            let field = &member.name;
            if field.starts_with("__empty_") || field.ends_with("_data_u64") || field == "__align" {
                continue;
            }
            let (kind, element) = if member.is_flexible_array() { ("flex", "[0]") } else { ("field", "") };
            statements += &format!(
                "printf(\"{kind} {name} {field} %zu %zu\\n\", offsetof({root}, {path}{field}) - {start}, \
                 sizeof((({root} *)0)->{path}{field}{element}));\n"
            );
            let is_its_type = |tag: &&Tag| tag.is_anonymous() && member.typeref.ends_with(&tag.name);
            let inner = self.tags.iter().filter(|tag| tag.is_struct()).find(is_its_type);
            let is_new = |tag: &&Tag| nested.iter().all(|(known, _)| known.name != tag.name);
            nested.extend(inner.filter(is_new).map(|inner| (inner, field)));
        }
        for (inner, field) in nested {
            statements +=
                &self.layout_inside(root, &format!("{path}{field}."), inner, &format!("{name}.{field}"));
        }
        statements
    }
}

impl Tag {
    fn is_anonymous(&self) -> bool {
        self.name.starts_with("__anon")
    }

    fn is_struct(&self) -> bool {
        matches!(self.kind, Kind::Struct | Kind::Union)
    }

    fn keyword(&self) -> &'static str {
        if self.kind == Kind::Union { "union" } else { "struct" }
    }

    /// Returns whether this tag is a member with this type, or an array of this type.
    fn has_type(&self, of: &Tag) -> bool {
        self.typeref.rsplit(':').next().is_some_and(|name| name.starts_with(&of.name))
    }

    fn is_flexible_array(&self) -> bool {
        ["[]", "[0]"].iter().any(|length| self.pattern.contains(&format!("{}{length}", self.name)))
    }
}

/// Returns the statement for printing a constant.
fn constant(prefix: &str, name: &str) -> String {
    format!("printf(\"{prefix} {name} %lld\\n\", (long long)({name}));\n")
}

#[test]
fn a_header_becomes_its_definitions_in_order_and_inner_types_follow_the_outer_one() {
    let dir = std::env::temp_dir().join(format!("xtask-abi-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let source = "#ifndef X\n#define X\n#define A 1 /* one */\n#define GET(x) \\\n\t(x)\nenum e { B, C = 5 };\n\
                  enum { D = -1 };\n#ifdef NONE\n#define E 1\n#endif\ntypedef unsigned long word;\nstruct t;\n\
                  struct s {\n union {\n  struct { char x; } deep;\n  long y;\n } u, v;\n\
                  union { char p; struct { char q; }; struct { char r; } w; };\n word data[];\n};\n#define F (A + D)\n#endif\n";
    fs::write(dir.join("x.h"), source).unwrap();
    let directories = [dir.as_path()];
    let unit = Unit::new(&["x.h"], &directories, &dir).unwrap();
    let other = |name| format!("printf(\"other {name}\\n\");\n");
    let definitions = unit.definitions("x.h").into_iter();
    let statements =
        definitions.map(|Definition { name, statements }| statements.unwrap_or_else(|| other(name)));
    let printed = unit.run(&statements.collect::<String>());
    fs::remove_dir_all(&dir).unwrap();
    let expected = "define A 1\nother GET\nenum e B 0\nenum e C 5\nenum anonymous D -1\nother word\n\
                    struct s 24 8\nfield s u 0 8\nfield s v 8 8\nfield s p 16 1\nfield s q 16 1\n\
                    field s w 16 1\nflex s data 24 8\nunion s.u 8 8\nfield s.u deep 0 1\nfield s.u y 0 8\n\
                    struct s.u.deep 1 1\nfield s.u.deep x 0 1\nstruct s.w 1 1\n\
                    field s.w r 0 1\ndefine F 0\n";
    assert_eq!(printed.unwrap(), expected);
}
