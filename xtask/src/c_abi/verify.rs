//! Compares the symbols that object files define and export, as `nm` and `readelf` print them, with
//! the table of symbols.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

use super::points::POINTS;
use super::symbols::{self, EFA, IBVERBS, MLX5, Node, RDMACM};
use crate::process::output;

/// The libraries that the image may need at run time: parts of the C library and gcc's unwinder.
const NEEDED: &[&str] =
    &["libc.so", "libm.so", "libgcc_s.so", "libpthread.so", "libdl.so", "librt.so", "libutil.so", "ld-linux"];

/// The compiler for linking, with the programs for inspecting the result.
#[derive(Clone, Copy)]
pub(super) enum Binutils {
    Native,
    Aarch64,
}

impl Binutils {
    /// Returns the name of a program.
    pub(super) fn program(self, name: &str) -> String {
        match self {
            Self::Native => name.to_owned(),
            Self::Aarch64 => format!("aarch64-linux-gnu-{name}"),
        }
    }
}

/// Checks the functions that the archive defines under C API names.
pub(super) fn archive(binutils: Binutils, path: &Path) -> Result<()> {
    let text = words(&binutils.program("nm"), &["--defined-only", "--extern-only", "--format=posix"], path)?;
    // Private nodes name the functions that `.symver` directives refer to.
    let expected: BTreeSet<_> =
        [IBVERBS, RDMACM, MLX5, EFA].into_iter().flatten().flat_map(names).map(str::to_owned).collect();
    let defined: BTreeSet<_> = posix_names(&text).filter(|name| is_public(name)).map(str::to_owned).collect();
    compare("the archive", &expected, &defined)
}

/// Checks the symbols of `libibverbs.so.1`, their nodes, and the libraries it needs.
pub(super) fn image(binutils: Binutils, path: &Path) -> Result<()> {
    let newest = symbols::PRIVATE.last().map_or("", |node| node.name);
    let expected = symbols::nodes()
        .flat_map(|node| {
            // If a name is in several nodes, the newest is the default version.
            let hidden = node.name.starts_with("IBVERBS_PRIVATE_") && node.name != newest;
            names(node).map(move |name| format!("{name}{}{}", if hidden { "@" } else { "@@" }, node.name))
        })
        .collect();
    compare("libibverbs.so.1", &expected, &exported(binutils, path)?)?;
    nodes(path, symbols::nodes())?;
    let dynamic = words("readelf", &["--wide", "--dynamic"], path)?;
    let foreign: Vec<_> = bracketed(&dynamic, "(NEEDED)")
        .filter(|name| !NEEDED.iter().any(|known| name.starts_with(known)))
        .collect();
    ensure!(foreign.is_empty(), "libibverbs.so.1 needs {}, which is no library of C", foreign.join(", "));
    let text = words(&binutils.program("nm"), &["--dynamic", "--undefined-only", "--format=posix"], path)?;
    let points = cancellation_points(&text);
    ensure!(
        points.is_empty(),
        "libibverbs.so.1 calls {}, where pthread_cancel(3) can end a thread that has locks: \
         c-abi/image/src/cancellation.rs must replace it",
        points.join(", ")
    );
    Ok(())
}

/// Returns the cancellation points among nm's undefined names, except guarded functions and waits.
/// A version follows an `@`.
fn cancellation_points(text: &str) -> Vec<&str> {
    posix_names(text)
        .map(|name| name.split('@').next().unwrap_or_default())
        .filter(|name| POINTS.forbids(name))
        .collect()
}

/// Checks a library that has version nodes but no symbols.
pub(super) fn facade(binutils: Binutils, path: &Path, expected: &[Node]) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    compare(&name, &BTreeSet::new(), &exported(binutils, path)?)?;
    nodes(path, expected)?;
    let dynamic = words("readelf", &["--wide", "--dynamic"], path)?;
    ensure!(
        bracketed(&dynamic, "(NEEDED)").any(|name| name == "libibverbs.so.1"),
        "{name} does not need libibverbs.so.1, which has its functions"
    );
    Ok(())
}

fn names(node: &'static Node) -> impl Iterator<Item = &'static str> {
    node.symbols.iter().map(|symbol| symbol.name)
}

fn exported(binutils: Binutils, path: &Path) -> Result<BTreeSet<String>> {
    let text = words(
        &binutils.program("nm"),
        &["--dynamic", "--defined-only", "--extern-only", "--with-symbol-versions", "--format=posix"],
        path,
    )?;
    Ok(posix_names(&text).filter(|name| !is_node(name)).map(str::to_owned).collect())
}

/// Returns whether a symbol is the absolute symbol that GNU ld defines for each node.
fn is_node(symbol: &str) -> bool {
    let name = symbol.split('@').next().unwrap_or_default();
    symbols::nodes().any(|node| node.name == name)
}

fn nodes<'a>(path: &Path, expected: impl IntoIterator<Item = &'a Node>) -> Result<()> {
    let text = words("readelf", &["--wide", "--version-info"], path)?;
    let expected = expected.into_iter().map(|node| node.name.to_owned()).collect();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    compare(&format!("the list of nodes of {name}"), &expected, &defined_nodes(&text))
}

fn compare(place: &str, expected: &BTreeSet<String>, found: &BTreeSet<String>) -> Result<()> {
    let list = |of: &BTreeSet<String>, without: &BTreeSet<String>| {
        of.difference(without).map(String::as_str).collect::<Vec<_>>().join(", ")
    };
    let (missing, extra) = (list(expected, found), list(found, expected));
    ensure!(missing.is_empty(), "{place} lacks what c-abi/src/symbols.rs lists: {missing}");
    ensure!(extra.is_empty(), "{place} has what c-abi/src/symbols.rs does not list: {extra}");
    Ok(())
}

/// Returns whether a name looks like a C API function that programs call in the image.
fn is_public(name: &str) -> bool {
    let name = name.trim_start_matches('_');
    let name = name.strip_prefix("mult_to_").or_else(|| name.strip_prefix("mbps_to_")).unwrap_or(name);
    let is_prefixed = ["ibv_", "rdma_", "mlx5dv_", "efadv_"].iter().any(|prefix| name.starts_with(prefix));
    // librdmacm's socket functions are named like the C library's, with a leading `r`.
    (is_prefixed || RDMACM.iter().flat_map(names).any(|known| known == name)) && !name.contains('@')
}

/// Returns the names in nm's lines `name type value size`, without the headings of an archive's
/// members.
fn posix_names(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.ends_with(':')).filter_map(|line| line.split(' ').next())
}

/// Returns the names of the nodes that a library defines, from readelf lines such as `Rev: 1 Flags:
/// none Index: 2 Cnt: 1 Name: NODE`. Lines with `BASE` name the library itself.
fn defined_nodes(text: &str) -> BTreeSet<String> {
    text.lines()
        .filter(|line| line.contains("Rev: ") && !line.contains("Flags: BASE"))
        .filter_map(|line| Some(line.split_once("Name: ")?.1.trim().to_owned()))
        .collect()
}

/// Returns the names in brackets on readelf's lines with a tag.
fn bracketed<'a>(text: &'a str, tag: &'a str) -> impl Iterator<Item = &'a str> {
    text.lines()
        .filter(move |line| line.contains(tag))
        .filter_map(|line| Some(line.split_once('[')?.1.split_once(']')?.0))
}

fn words(program: &str, arguments: &[&str], path: &Path) -> Result<String> {
    // The output depends on the language.
    output(Command::new(program).args(arguments).arg(path).env("LC_ALL", "C"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_in_which_a_thread_could_be_cancelled_are_found_except_in_waits() {
        let text = "__read@GLIBC_2.2.5 U\nmalloc@GLIBC_2.2.5 U\nwrite@GLIBC_2.2.5 U\n\
                    pthread_join@GLIBC_2.34 U\nrecvmmsg U\nioctl@GLIBC_2.2.5 U\n";
        assert_eq!(cancellation_points(text), ["write", "recvmmsg"]);
    }

    #[test]
    fn nodes_are_read_from_definitions() {
        let text = "Version definition section '.gnu.version_d' contains 3 entries:\n\
            \x20 000000: Rev: 1  Flags: BASE  Index: 1  Cnt: 1  Name: libefa.so.1\n\
            \x20 0x001c: Rev: 1  Flags: none  Index: 2  Cnt: 1  Name: EFA_1.0\n\
            \x20 0x0038: Rev: 1  Flags: none  Index: 3  Cnt: 2  Name: EFA_1.1\n\
            \x20 0x0054: Parent 1: EFA_1.0\n";
        assert_eq!(defined_nodes(text).into_iter().collect::<Vec<_>>(), ["EFA_1.0", "EFA_1.1"]);
    }
}
