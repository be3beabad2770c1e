//! The linker's version scripts, from the table of symbols. [`super::verify`] compares what a
//! linker made of them.

use std::fmt::Write as _;

use super::symbols::{EFA, IBVERBS, MLX5, Node, PRIVATE, RDMACM};

/// Returns the script of `libibverbs.so.1`: every node, with its symbols.
pub(super) fn of_image() -> String {
    let mut script = String::new();
    for nodes in [IBVERBS, RDMACM, MLX5, EFA] {
        chain(&mut script, nodes, true);
    }
    // A symbol with a version from a `.symver` directive finds its node by this version. Its
    // name in more than one node of a script would be an error.
    for node in PRIVATE {
        let _ = writeln!(script, "{} {{\n}};", node.name);
    }
    script
}

/// Returns the script of a library with nodes and without symbols.
pub(super) fn of_facade(nodes: &[Node]) -> String {
    let mut script = String::new();
    chain(&mut script, nodes, false);
    script
}

/// Writes nodes, each inheriting from the one before it. The first of libibverbs hides the symbols
/// that no node names.
fn chain(script: &mut String, nodes: &[Node], with_symbols: bool) {
    let mut parent = "";
    for node in nodes {
        let _ = writeln!(script, "{} {{", node.name);
        if with_symbols && !node.symbols.is_empty() {
            script.push_str("\tglobal:\n");
            for symbol in node.symbols {
                let _ = writeln!(script, "\t\t{};", symbol.name);
            }
        }
        if parent.is_empty() && (!with_symbols || node.name == IBVERBS[0].name) {
            script.push_str("\tlocal: *;\n");
        }
        let _ = writeln!(script, "}}{}{parent};", if parent.is_empty() { "" } else { " " });
        parent = node.name;
    }
}
