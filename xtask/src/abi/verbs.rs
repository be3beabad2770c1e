//! The golden files of c-abi: `infiniband/verbs.h` of several releases of libibverbs, the path
//! record of `infiniband/sa.h`, and `rdma/rdma_cma.h` of librdmacm.
//!
//! A program that was compiled against an old header runs on a new library, so the types of c-abi,
//! which are those of the newest release, are compared with old ones too.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use super::header::{Definition, Unit};
use super::{Golden, Headers, Set, golden, say};

const SUITES: &[&str] = &["bookworm", "trixie", "sid"];
const PACKAGE: &str = "libibverbs-dev";
const RDMA_PACKAGE: &str = "librdmacm-dev";

const VERBS: &str = "infiniband/verbs.h";
/// Types of the subnet administrator. Functions take only [`PATH_RECORD`].
const SA: &str = "infiniband/sa.h";
const PATH_RECORD: &str = "ibv_sa_path_rec";
/// Renames definitions of the kernel's header.
const NAMES: &str = "infiniband/verbs_api.h";
/// Connections by address.
const RDMA: &str = "rdma/rdma_cma.h";

/// Definitions that have neither a value nor a layout, and their counterparts in c-abi.
const LEFT_OUT: &[(&str, &str)] = &[
    ("__attribute_const", "macro that stands for an attribute of functions"),
    ("vext_field_avail", "macro with parameters, for programs"),
    ("verbs_get_ctx_op", "macro with parameters, for programs"),
    ("ibv_query_port", "macro with parameters, for programs"),
    ("ibv_reg_mr", "macro with parameters, for programs"),
    ("ibv_reg_mr_iova", "macro with parameters, for programs"),
    ("__VERBS_ABI_IS_EXTENDED", "a pointer; in Rust VERBS_ABI_IS_EXTENDED"),
    ("IBV_ALLOCATOR_USE_DEFAULT", "a pointer; in Rust a constant of the same name"),
];

/// Returns the golden files of Debian's releases. They describe x86-64; on other machines there is
/// no set.
pub(super) fn set(scratch: &Path) -> Result<Option<Set>> {
    if !cfg!(target_arch = "x86_64") {
        say("leaving out c-abi, whose golden files describe x86-64");
        return Ok(None);
    }
    let (verbs, mut rdma) = (releases(PACKAGE, scratch)?, releases(RDMA_PACKAGE, scratch)?);
    let mut files = Vec::new();
    for (release, headers) in &verbs {
        say(&format!("probing {}", headers.origin));
        files.push(golden_of(*release, headers, scratch)?);
        let of_rdma = rdma.remove(release);
        let of_rdma = of_rdma.with_context(|| format!("no suite carries {RDMA_PACKAGE} {release}"))?;
        say(&format!("probing {}", of_rdma.origin));
        files.push(rdma_golden_of(*release, &of_rdma, headers, scratch)?);
    }
    let origins: Vec<_> = verbs.into_values().map(|headers| headers.origin).collect();
    // The file of a release that Debian no longer carries stays, because programs of it do.
    Ok(Some(Set { package: "c-abi", files, origin: origins.join(", "), complete: false }))
}

/// Returns Debian's headers of a package by release of rdma-core.
fn releases(package: &str, scratch: &Path) -> Result<BTreeMap<u32, Headers>> {
    let mut releases = BTreeMap::new();
    for suite in SUITES {
        let headers = Headers::newest(package, &[suite], scratch)?;
        releases.insert(release_of(headers.origin.rsplit(' ').next().unwrap_or_default())?, headers);
    }
    ensure!(releases.len() >= 2, "the suites carry fewer than two releases of {package}");
    Ok(releases)
}

/// Returns the release of rdma-core in a version: `44` of `44.0-2`.
fn release_of(version: &str) -> Result<u32> {
    let release = version.split('.').next().unwrap_or_default();
    release.parse().with_context(|| format!("{version} is not a version of rdma-core"))
}

/// `verbs` has the headers that librdmacm's includes.
fn rdma_golden_of(release: u32, headers: &Headers, verbs: &Headers, scratch: &Path) -> Result<Golden> {
    let directories = [headers.include.as_path(), verbs.include.as_path()];
    let unit = Unit::new(&[RDMA], &directories, scratch)?;
    let preamble = format!("# From {}; x86-64, glibc.\n", headers.origin);
    golden(&format!("rdmacm-{release}"), &[RDMA], &unit, &unit.definitions(RDMA), LEFT_OUT, &preamble)
}

fn golden_of(release: u32, headers: &Headers, scratch: &Path) -> Result<Golden> {
    let directories = [headers.include.as_path()];
    let unit = Unit::new(&[VERBS, SA], &directories, scratch)?;
    let mut definitions = renamed(&unit)?;
    definitions.extend(unit.definitions(VERBS));
    definitions.extend(unit.renamed(PATH_RECORD, PATH_RECORD));
    let preamble = format!("# From {}; x86-64, glibc.\n", headers.origin);
    golden(&format!("verbs-{release}"), &[VERBS, SA], &unit, &definitions, LEFT_OUT, &preamble)
}

/// Returns the definitions that libibverbs renames: constants as they are, and the kernel's
/// `ib_uverbs_x` under its new name `ibv_x`.
fn renamed(unit: &Unit<'_>) -> Result<Vec<Definition>> {
    let mut definitions = Vec::new();
    for definition in unit.definitions(NAMES) {
        let Definition::Macro(name) = &definition else {
            // The macro that declares a pointer of 64 bits; the members it declares are covered.
            let is_pointer = definition == Definition::Other("RDMA_UAPI_PTR".into());
            ensure!(is_pointer, "{NAMES}: unexpected {definition:?}");
            continue;
        };
        let Some(stem) = name.strip_prefix("ibv_") else {
            definitions.push(definition);
            continue;
        };
        let of_kernel = unit.renamed(&format!("ib_uverbs_{stem}"), name);
        definitions.push(of_kernel.with_context(|| format!("{NAMES}: {name} names no type of the kernel"))?);
    }
    Ok(definitions)
}
