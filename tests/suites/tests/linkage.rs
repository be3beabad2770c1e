//! No C is compiled or linked: checks the tools' libraries at run time, and the packages that take
//! part in building them.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use verbs_harness::process::{self, Finished};

/// Every package of this project that is part of programs.
const PACKAGES: &[&str] = &[
    "uverbs-abi",
    "verbs-core",
    "provider-rxe",
    "rdma-sans-io",
    "roce",
    "provider-soft",
    "libibverbs-rs",
    "rdma-cm",
    "libibverbs-c",
    "libibverbs-c-image",
    "rdma-tools",
];

/// Packages that call a C compiler or look for a C library.
const BUILDERS: &[&str] = &["bindgen", "cc", "cmake", "pkg-config", "system-deps", "vcpkg"];

/// The C library and the language's runtime.
const LIBC: &[&str] = &[
    "ld-linux",
    "libc.",
    "libdl.",
    "libgcc_s.",
    "libm.",
    "libpthread.",
    "librt.",
    "linux-gate.",
    "linux-vdso.",
];

/// Runs a command to its end. Cargo may have to build all tools on a busy machine.
fn ended(command: &mut Command) -> Finished {
    const LIMIT: Duration = Duration::from_secs(1800);
    let finished = process::run(command, LIMIT).expect("it starts");
    finished.unwrap_or_else(|killed| panic!("{command:?} did not end within {LIMIT:?}: {}", killed.stderr))
}

fn cargo(arguments: &[&str]) -> String {
    let output = ended(Command::new(env!("CARGO")).args(arguments));
    assert!(output.status.success(), "cargo {arguments:?}: {}", output.stderr);
    output.stdout
}

fn tools() -> Vec<PathBuf> {
    let messages =
        cargo(&["build", "--quiet", "--package", "rdma-tools", "--bins", "--message-format", "json"]);
    let messages = messages.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    messages.filter_map(|message| message["executable"].as_str().map(PathBuf::from)).collect()
}

/// Returns the libraries in the output of `ldd`, without their directories.
fn libraries(ldd: &str) -> Vec<String> {
    let name = |line: &str| {
        let path = line.split_ascii_whitespace().next()?;
        Some(path.rsplit('/').next()?.to_owned())
    };
    ldd.lines().filter_map(name).collect()
}

#[test]
fn a_normal_build_of_the_tools_needs_nothing_beyond_the_c_library() {
    let tools = tools();
    let names: BTreeSet<_> = tools.iter().filter_map(|path| path.file_name()?.to_str()).collect();
    let expected = rdma_tools::PROGRAMS.iter().copied().chain([rdma_tools::LAUNCHER]);
    assert_eq!(names, expected.collect());
    for tool in &tools {
        let libraries = libraries(&ended(Command::new("ldd").arg(tool)).stdout);
        assert!(libraries.iter().any(|name| name.starts_with("libc.")), "{}: {libraries:?}", tool.display());
        for name in libraries {
            let known = LIBC.iter().any(|prefix| name.starts_with(prefix));
            assert!(known, "{} needs {name}", tool.display());
        }
    }
}

#[test]
fn ldd_lines_are_read_by_name() {
    let text = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibibverbs.so.1 => /lib/x86_64-linux-gnu/libibverbs.so.1 (0x0)\n\
                \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
    assert_eq!(libraries(text), ["linux-vdso.so.1", "libibverbs.so.1", "ld-linux-x86-64.so.2"]);
}

#[test]
fn no_package_in_the_tree_builds_or_links_c() {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let metadata: Value =
        serde_json::from_str(&cargo(&["metadata", "--format-version", "1", "--filter-platform", &target]))
            .unwrap();
    let packages: HashMap<&str, &Value> =
        metadata["packages"].as_array().unwrap().iter().map(|p| (p["id"].as_str().unwrap(), p)).collect();
    let nodes: HashMap<&str, &Value> = metadata["resolve"]["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|n| (n["id"].as_str().unwrap(), n))
        .collect();
    let name = |id: &str| packages[id]["name"].as_str().unwrap();
    let mut waiting: Vec<&str> = packages.keys().filter(|id| PACKAGES.contains(&name(id))).copied().collect();
    assert_eq!(waiting.len(), PACKAGES.len());
    let mut seen = BTreeSet::new();
    while let Some(id) = waiting.pop() {
        if !seen.insert(id) {
            continue;
        }
        for dependency in nodes[id]["deps"].as_array().unwrap() {
            let is_dev = |kind: &Value| kind["kind"].as_str() == Some("dev");
            if !dependency["dep_kinds"].as_array().unwrap().iter().all(is_dev) {
                waiting.push(dependency["pkg"].as_str().unwrap());
            }
        }
    }
    // The lowest packages were seen, so the walk was complete.
    for needed in ["libc", "nix", "zerocopy", "netlink-packet-core"] {
        assert!(seen.iter().any(|id| name(id) == needed), "{needed} was not seen");
    }
    for id in seen {
        assert!(packages[id]["links"].is_null(), "{} links {}", name(id), packages[id]["links"]);
        assert!(!BUILDERS.contains(&name(id)), "{} takes part in the build", name(id));
    }
}
