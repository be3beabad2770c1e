//! Turns a header's definitions into a C program that prints the golden file's lines, and runs it.
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

use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use super::parse::{Item, Type};

/// Returns the C program that prints the layout of `items`, which `includes` define.
pub(super) fn program(includes: &[&str], items: &[&Item]) -> String {
    let mut c = String::from("#include <stddef.h>\n#include <stdio.h>\n");
    // Macros of the headers use definitions from headers that they do not include.
    c.push_str("#include <linux/netlink.h>\n");
    for include in includes {
        let _ = writeln!(c, "#include <{include}>");
    }
    c.push_str("\nint main(void)\n{\n");
    for item in items {
        match item {
            Item::Define(name) => constant(&mut c, "define", name),
            Item::Enum { tag, names } => {
                let tag = format!("enum {}", tag.as_deref().unwrap_or("anonymous"));
                names.iter().for_each(|name| constant(&mut c, &tag, name));
            }
            Item::Type(ty) => layout(&mut c, ty),
            Item::FunctionMacro(_) | Item::Typedef(_) => {}
        }
    }
    c.push_str("\treturn 0;\n}\n");
    c
}

fn constant(c: &mut String, prefix: &str, name: &str) {
    let _ = writeln!(c, "\tprintf(\"{prefix} {name} %lld\\n\", (long long)({name}));");
}

fn layout(c: &mut String, ty: &Type) {
    let keyword = |union| if union { "union" } else { "struct" };
    let root = format!("{} {}", keyword(ty.root.union), ty.root.tag);
    let name = std::iter::once(&ty.root.tag).chain(&ty.path).cloned().collect::<Vec<_>>().join(".");
    // C reaches a type without a tag through the members that lead to it.
    let prefix: String = ty.path.iter().map(|member| format!("{member}.")).collect();
    let inner = prefix.trim_end_matches('.');
    let (this, start) = if inner.is_empty() {
        (root.clone(), "(size_t)0".to_owned())
    } else {
        (format!("__typeof__((({root} *)0)->{inner})"), format!("offsetof({root}, {inner})"))
    };
    let _ = writeln!(
        c,
        "\tprintf(\"{} {name} %zu %zu\\n\", sizeof({this}), __alignof__({this}));",
        keyword(ty.union)
    );
    for member in &ty.members {
        let (kind, element) = if member.flexible { ("flex", "[0]") } else { ("field", "") };
        let member = &member.name;
        let _ = writeln!(
            c,
            "\tprintf(\"{kind} {name} {member} %zu %zu\\n\", offsetof({root}, {prefix}{member}) - {start}, \
             sizeof((({root} *)0)->{prefix}{member}{element}));"
        );
    }
}

/// Compiles `program` against the headers below `include` (and `asm`, the architecture's own) and
/// runs it.
///
/// # Errors
/// gcc cannot be run, it rejects the program (the error has its messages), or the program fails.
pub(super) fn run(program: &str, include: &[&Path], scratch: &Path) -> Result<String> {
    let (source, binary) = (scratch.join("probe.c"), scratch.join("probe"));
    std::fs::write(&source, program)?;
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=gnu11", "-Wall", "-Werror", "-m64"]).stdin(Stdio::null());
    for dir in include {
        gcc.arg("-isystem").arg(dir);
    }
    let output = gcc.arg("-o").arg(&binary).arg(&source).output().context("cannot run gcc")?;
    ensure!(
        output.status.success(),
        "gcc rejects the probe {}:\n{}",
        source.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    let output = Command::new(&binary).stdin(Stdio::null()).output().context("cannot run the probe")?;
    ensure!(output.status.success(), "the probe failed ({})", output.status);
    Ok(String::from_utf8(output.stdout)?)
}
