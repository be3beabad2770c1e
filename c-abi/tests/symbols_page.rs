//! docs/c-abi.md shows every symbol in the table, with one row per node and state.
//!
//! `BLESS=1 cargo test -p libibverbs-c --test symbols_page` rewrites the page's last section.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use ibverbs_c::symbols::{EFA, IBVERBS, MLX5, Node, PRIVATE, RDMACM, State};

/// The heading of the generated section, which extends to the end of the page.
const HEADING: &str = "## Symbols\n";

fn page() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/c-abi.md")
}

/// Returns the section, with one table per library.
fn section() -> String {
    let mut text = String::from(HEADING);
    let libraries: [(&str, &[&[Node]]); 4] = [
        ("libibverbs.so.1", &[IBVERBS, PRIVATE]),
        ("librdmacm.so.1", &[RDMACM]),
        ("libmlx5.so.1", &[MLX5]),
        ("libefa.so.1", &[EFA]),
    ];
    text.push_str("\n| library | symbols | served | partial | refused |\n|---|---|---|---|---|\n");
    for (library, nodes) in libraries {
        let states: Vec<_> = rows(nodes).map(|(_, _, state)| state).collect();
        let count = |is: fn(&State) -> bool| states.iter().filter(|state| is(state)).count();
        let _ = writeln!(
            text,
            "| {library} | {} | {} | {} | {} |",
            states.len(),
            count(|state| matches!(state, State::Served)),
            count(|state| matches!(state, State::Partial(_))),
            count(|state| matches!(state, State::Refused(_)))
        );
    }
    for (library, nodes) in libraries {
        let _ = writeln!(text, "\n### {library}\n\n| node | state | symbols |\n|---|---|---|");
        let mut groups: Vec<((&str, String), Vec<String>)> = Vec::new();
        for (name, node, state) in rows(nodes) {
            let (key, name) = ((node, described(state)), format!("`{name}`"));
            match groups.iter_mut().find(|(known, _)| *known == key) {
                Some((_, names)) => names.push(name),
                None => groups.push((key, vec![name])),
            }
        }
        for ((node, state), names) in groups {
            let _ = writeln!(text, "| {node} | {state} | {} |", names.join(", "));
        }
    }
    text
}

fn described(state: State) -> String {
    match state {
        State::Served => "served".to_owned(),
        State::Partial(why) => format!("partial: {why}"),
        State::Refused(why) => format!("refused: {why}"),
    }
}

fn rows(nodes: &[&'static [Node]]) -> impl Iterator<Item = (&'static str, &'static str, State)> {
    nodes
        .iter()
        .copied()
        .flatten()
        .flat_map(|node| node.symbols.iter().map(move |symbol| (symbol.name, node.name, symbol.state)))
}

#[test]
fn the_page_shows_every_symbol_with_its_state() {
    let path = page();
    let old = fs::read_to_string(&path).expect("docs/c-abi.md exists");
    let (head, _) = old.split_once(HEADING).expect("the page has the section");
    let new = format!("{head}{}", section());
    if std::env::var_os("BLESS").is_some() {
        fs::write(&path, &new).expect("docs/c-abi.md can be written");
    } else {
        assert!(old == new, "docs/c-abi.md differs from src/symbols.rs: BLESS=1 writes it");
    }
}

#[test]
fn every_reason_is_told() {
    for node in [IBVERBS, PRIVATE, RDMACM, MLX5, EFA].into_iter().flatten() {
        for symbol in node.symbols {
            if let State::Partial(why) | State::Refused(why) = symbol.state {
                assert!(!why.is_empty() && !why.contains('|'), "{}: {why:?}", symbol.name);
            }
        }
    }
}
