//! Checks that no C is compiled or linked except the C library: inspects the packages that build
//! the programs, and the programs' libraries at run time.
#![cfg(not(target_feature = "crt-static"))]

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rdma_tools::LAUNCHER;
use serde_json::Value;
use verbs_harness::process;
use verbs_harness::tools::PROGRAMS;

/// Every package of this project that is part of a program.
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

/// Packages that run a C compiler or search for a C library.
const BUILDERS: &[&str] = &["bindgen", "cc", "cmake", "pkg-config", "system-deps", "vcpkg"];

/// The C library and the compiler's runtime library.
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

fn cargo(arguments: &[&str]) -> String {
    const LIMIT: Duration = Duration::from_secs(300);
    let output = process::run(Command::new(env!("CARGO")).args(arguments), LIMIT).expect("it starts");
    let output =
        output.unwrap_or_else(|killed| panic!("cargo did not end within {LIMIT:?}: {}", killed.stderr));
    assert!(output.status.success(), "cargo {arguments:?}: {}", output.stderr);
    output.stdout
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
    // The lowest packages have been seen, so the walk was complete.
    for needed in ["libc", "nix", "zerocopy", "netlink-packet-core"] {
        assert!(seen.iter().any(|id| name(id) == needed), "{needed} was not seen");
    }
    for id in seen {
        assert!(packages[id]["links"].is_null(), "{} links {}", name(id), packages[id]["links"]);
        assert!(!BUILDERS.contains(&name(id)), "{} takes part in the build", name(id));
    }
}

/// Checks each program beside `ibv_devices`, because Cargo builds all of them into one folder.
#[test]
fn the_programs_need_nothing_beyond_the_c_library() {
    const LIMIT: Duration = Duration::from_secs(60);
    let one = Path::new(env!("CARGO_BIN_EXE_ibv_devices"));
    for name in PROGRAMS.iter().chain([&LAUNCHER]) {
        let ended = process::run(Command::new("ldd").arg(one.with_file_name(name)), LIMIT);
        let libraries = libraries(&ended.expect("ldd starts").expect("ldd ends").stdout);
        assert!(libraries.iter().any(|library| library.starts_with("libc.")), "{name}: {libraries:?}");
        for library in libraries {
            let known = LIBC.iter().any(|prefix| library.starts_with(prefix));
            assert!(known, "{name} needs {library}");
        }
    }
}

#[test]
fn ldd_lines_are_read_by_name() {
    let text = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibibverbs.so.1 => /lib/x86_64-linux-gnu/libibverbs.so.1 (0x0)\n\
                \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
    assert_eq!(libraries(text), ["linux-vdso.so.1", "libibverbs.so.1", "ld-linux-x86-64.so.2"]);
}
