//! The linker's version scripts, from the table of symbols. [`super::verify`] checks what the
//! linker made from them.

use std::fmt::Write as _;

use super::symbols::{EFA, IBVERBS, MLX5, Node, PRIVATE, RDMACM};

/// Returns the script for `libibverbs.so.1`: every node, with its symbols.
pub(super) fn of_image() -> String {
    let mut script = String::new();
    for nodes in [IBVERBS, RDMACM, MLX5, EFA] {
        chain(&mut script, nodes, true);
    }
    // A symbol with a version from a `.symver` directive finds its node by that version. Its name
    // in more than one node of a script would be an error.
    for node in PRIVATE {
        let _ = writeln!(script, "{} {{\n}};", node.name);
    }
    script
}

/// Returns the script for a library with nodes but no symbols.
pub(super) fn of_facade(nodes: &[Node]) -> String {
    let mut script = String::new();
    chain(&mut script, nodes, false);
    script
}

/// Writes nodes. Each inherits from the node before it. libibverbs' first node hides the
/// symbols that no node names.
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
