//! No C is compiled or linked: checks the packages that take part in building programs. The
//! libraries that the tools load are checked in `tools/tests/linkage.rs`.

use std::collections::{BTreeSet, HashMap};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use verbs_harness::process;

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

fn cargo(arguments: &[&str]) -> String {
    const LIMIT: Duration = Duration::from_secs(300);
    let output = process::run(Command::new(env!("CARGO")).args(arguments), LIMIT).expect("it starts");
    let output =
        output.unwrap_or_else(|killed| panic!("cargo did not end within {LIMIT:?}: {}", killed.stderr));
    assert!(output.status.success(), "cargo {arguments:?}: {}", output.stderr);
    output.stdout
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
