//! The golden files of c-abi: `infiniband/verbs.h` of several releases of libibverbs, the path
//! record of `infiniband/sa.h`, and `rdma/rdma_cma.h` of librdmacm.
//!
//! A program that was compiled against an old header runs on a new library, so the types of c-abi,
//! which are those of the newest release, are compared with old ones too.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};

use super::parse::{self, Item};
use super::{Golden, Headers, Set, golden, say, unpacked};
use crate::apt::{self, Archive, PrivateApt};
use crate::cache;

const SUITES: &[(Archive, &str)] =
    &[(Archive::Main, "bookworm"), (Archive::Main, "trixie"), (Archive::Main, "sid")];
const PACKAGE: &str = "libibverbs-dev";
const RDMA_PACKAGE: &str = "librdmacm-dev";

const VERBS: &str = "infiniband/verbs.h";
/// Types of the subnet administrator. Functions take only [`PATH_RECORD`].
const SA: &str = "infiniband/sa.h";
const PATH_RECORD: &str = "ibv_sa_path_rec";
/// Renames definitions of the kernel's header.
const NAMES: &str = "infiniband/verbs_api.h";
/// The kernel's header as libibverbs ships it.
const KERNEL: &str = "infiniband/ib_user_ioctl_verbs.h";
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
    let (verbs, mut rdma) = (releases(PACKAGE)?, releases(RDMA_PACKAGE)?);
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
fn releases(package: &str) -> Result<BTreeMap<u32, Headers>> {
    let _lock = cache::lock(package, || say("waiting for another xtask to download headers"))?;
    let apt = PrivateApt::new(cache::dir()?.join("apt").join(package), SUITES)?;
    say("reading the package lists of bookworm, trixie and sid");
    apt.update()?;
    let mut versions = apt.versions(package)?;
    versions.sort_by(|a, b| apt::compare_versions(&a.version, &b.version));
    let home = cache::dir()?.join(format!("headers-{}", package.trim_end_matches("-dev")));
    let mut releases = BTreeMap::new();
    for version in versions {
        releases.insert(release_of(&version.version)?, unpacked(&apt, version, &home)?);
    }
    ensure!(releases.len() >= 2, "the suites carry fewer than two releases of {package}");
    Ok(releases)
}

/// Returns the release of rdma-core in a version: `44` of `44.0-2`.
fn release_of(version: &str) -> Result<u32> {
    let release = version.split('.').next().unwrap_or_default();
    release.parse().with_context(|| format!("{version} is not a version of rdma-core"))
}

/// Returns the definitions of a header.
fn parsed(headers: &Headers, header: &str, parse: fn(&str) -> Result<Vec<Item>>) -> Result<Vec<Item>> {
    let path = headers.include.join(header);
    let source = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&source).with_context(|| format!("cannot understand {}", path.display()))
}

/// `verbs` has the headers that librdmacm's includes.
fn rdma_golden_of(release: u32, headers: &Headers, verbs: &Headers, scratch: &Path) -> Result<Golden> {
    let items = parsed(headers, RDMA, parse::library::parse)?;
    let preamble = format!("# From {}; x86-64, glibc.\n", headers.origin);
    let directories = [headers.include.as_path(), verbs.include.as_path()];
    golden(&format!("rdmacm-{release}"), &[RDMA], &items, LEFT_OUT, &preamble, &directories, scratch)
}

fn golden_of(release: u32, headers: &Headers, scratch: &Path) -> Result<Golden> {
    let parsed = |header: &str, parse: fn(&str) -> Result<Vec<Item>>| parsed(headers, header, parse);
    let mut items = named(parsed(NAMES, parse::library::parse)?, &parsed(KERNEL, parse::parse)?)?;
    items.extend(parsed(VERBS, parse::library::parse)?);
    let path_record = |item: &Item| matches!(item, Item::Type(ty) if ty.root.tag == PATH_RECORD);
    items.extend(parsed(SA, parse::library::parse)?.into_iter().filter(path_record));
    let preamble = format!("# From {}; x86-64, glibc.\n", headers.origin);
    golden(
        &format!("verbs-{release}"),
        &[VERBS, SA],
        &items,
        LEFT_OUT,
        &preamble,
        &[&headers.include],
        scratch,
    )
}

/// Returns the definitions that libibverbs renames: constants as they are, and the kernel's
/// `ib_uverbs_x` under its new name `ibv_x`.
fn named(names: Vec<Item>, kernel: &[Item]) -> Result<Vec<Item>> {
    let mut items = Vec::new();
    for item in names {
        let Item::Define(name) = &item else {
            // The macro that declares a pointer of 64 bits; the members it declares are covered.
            ensure!(item == Item::FunctionMacro("RDMA_UAPI_PTR".into()), "{NAMES}: unexpected {item:?}");
            continue;
        };
        let Some(stem) = name.strip_prefix("ibv_") else {
            items.push(item);
            continue;
        };
        let of_kernel = format!("ib_uverbs_{stem}");
        let is = |candidate: &&Item| match candidate {
            Item::Type(ty) => ty.root.tag == of_kernel,
            Item::Enum { tag, .. } => tag.as_ref() == Some(&of_kernel),
            _ => false,
        };
        match kernel.iter().find(is) {
            Some(Item::Type(ty)) => {
                let mut ty = ty.clone();
                ty.root.tag.clone_from(name);
                items.push(Item::Type(ty));
            }
            // Its constants have names of their own.
            Some(_) => {}
            None => bail!("{NAMES}: {name} names nothing in {KERNEL}"),
        }
    }
    Ok(items)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_types_are_probed_under_the_names_of_libibverbs() {
        let names = "#define ibv_s ib_uverbs_s\n#define ibv_e ib_uverbs_e\n#define IBV_A IB_UVERBS_A\n\
                     #define RDMA_UAPI_PTR(t, n) t n\n";
        let kernel = "enum ib_uverbs_e { IB_UVERBS_A };\nstruct ib_uverbs_s {\n\t__u32 x;\n};\n";
        let parsed = parse::parse(kernel).unwrap();
        let items = named(parse::library::parse(names).unwrap(), &parsed).unwrap();
        assert_eq!(items.len(), 2);
        assert!(matches!(&items[0], Item::Type(ty) if ty.root.tag == "ibv_s" && ty.members[0].name == "x"));
        assert_eq!(items[1], Item::Define("IBV_A".into()));

        let unknown = parse::library::parse("#define ibv_t ib_uverbs_t\n").unwrap();
        let error = named(unknown, &parsed).unwrap_err();
        assert!(error.to_string().contains("ibv_t"), "{error}");
    }

    #[test]
    fn a_version_starts_with_the_release() {
        assert_eq!(release_of("44.0-2").unwrap(), 44);
        assert_eq!(release_of("65.0").unwrap(), 65);
        assert!(release_of("1:7").is_err());
    }
}
