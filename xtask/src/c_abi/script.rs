//! The linker's version scripts, from the table of symbols.

use std::fmt::Write as _;

use super::symbols::{EFA, IBVERBS, MLX5, Node, PRIVATE, RDMACM};

/// Returns the script of `libibverbs.so.1`: every node, with its symbols.
pub(super) fn of_image() -> String {
    let mut script = String::new();
    for nodes in [IBVERBS, RDMACM, MLX5, EFA] {
        chain(&mut script, nodes, true);
    }
    // A symbol with a version of its own, from a `.symver` directive, finds its node by that. Its
    // name in more than one node of a script would be an error.
    for node in PRIVATE {
        let _ = writeln!(script, "{} {{\n}};", node.name);
    }
    script
}

/// Returns the script of a library that has nodes and no symbol of its own.
pub(super) fn of_facade(nodes: &[Node]) -> String {
    let mut script = String::new();
    chain(&mut script, nodes, false);
    script
}

/// Writes nodes of which each inherits from the one before it. The first of libibverbs hides what
/// no node names.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_hides_what_no_node_names_and_each_node_inherits_from_the_one_before() {
        let script = of_image();
        assert_eq!(script.matches("local: *;").count(), 1);
        assert!(script.starts_with("IBVERBS_1.0 {\n\tglobal:\n\t\tibv_copy_path_rec_from_kern;\n"));
        assert!(
            script
                .contains("} IBVERBS_1.1;\nIBVERBS_1.6 {\n\tglobal:\n\t\tibv_qp_to_qp_ex;\n} IBVERBS_1.5;\n")
        );
        assert!(script.contains("IBVERBS_PRIVATE_34 {\n};\n"));
    }

    #[test]
    fn a_facade_has_nodes_and_no_symbol() {
        let script = of_facade(EFA);
        assert!(script.starts_with("EFA_1.0 {\n\tlocal: *;\n};\nEFA_1.1 {\n} EFA_1.0;\n"), "{script}");
        assert!(!script.contains("efadv"));
    }
}
