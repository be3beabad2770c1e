//! c-abi's golden files: `infiniband/verbs.h` from several libibverbs releases, the path record in
//! `infiniband/sa.h`, and librdmacm's `rdma/rdma_cma.h`.
//!
//! A program compiled against an old header runs on a new library. c-abi's types match the newest
//! release and are compared with older releases too.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use super::Headers;
use super::header::{Definition, Unit};

const SUITES: &[&str] = &["bookworm", "trixie", "sid"];
const PACKAGE: &str = "libibverbs-dev";
const RDMA_PACKAGE: &str = "librdmacm-dev";

const VERBS: &str = "infiniband/verbs.h";
/// The subnet administrator's types. [`PATH_RECORD`] is the only type that functions accept.
const SA: &str = "infiniband/sa.h";
const PATH_RECORD: &str = "ibv_sa_path_rec";
/// The header that renames definitions in the kernel's header.
const NAMES: &str = "infiniband/verbs_api.h";
/// librdmacm's header for connections by address.
const RDMA: &str = "rdma/rdma_cma.h";

/// Writes the golden files for the releases in Debian. The file for a release that Debian no longer
/// carries is kept, because programs compiled against that release remain in use.
pub(super) fn write(scratch: &Path) -> Result<()> {
    let (verbs, rdma) = (releases(PACKAGE, scratch)?, releases(RDMA_PACKAGE, scratch)?);
    for (release, headers) in &verbs {
        let include = headers.include.as_path();
        let directories = [include];
        let unit = Unit::new(&[VERBS, SA], &directories, scratch)?;
        let mut definitions = renamed(&unit)?;
        definitions.extend(unit.definitions(VERBS));
        definitions.extend(unit.renamed(PATH_RECORD, PATH_RECORD));
        write_one("verbs", *release, headers, &unit, &definitions)?;

        let of_rdma = rdma.get(release);
        let of_rdma = of_rdma.with_context(|| format!("no suite carries {RDMA_PACKAGE} {release}"))?;
        // librdmacm's header includes libibverbs' headers.
        let directories = [of_rdma.include.as_path(), include];
        let unit = Unit::new(&[RDMA], &directories, scratch)?;
        write_one("rdmacm", *release, of_rdma, &unit, &unit.definitions(RDMA))?;
    }
    Ok(())
}

fn write_one(
    stem: &str,
    release: u32,
    headers: &Headers,
    unit: &Unit<'_>,
    definitions: &[Definition],
) -> Result<()> {
    let preamble = format!("# From {}; x86-64, glibc.\n", headers.origin);
    super::write(&format!("c-abi/golden/{stem}-{release}.txt"), unit, definitions, &preamble)
}

/// Returns Debian's headers in a package, by rdma-core release.
fn releases(package: &str, scratch: &Path) -> Result<BTreeMap<u32, Headers>> {
    let mut releases = BTreeMap::new();
    for suite in SUITES {
        let headers = Headers::newest(package, &[suite], scratch)?;
        // The `44` in `libibverbs-dev 44.0-2`.
        let release = headers.origin.split([' ', '.']).nth(1).and_then(|release| release.parse().ok());
        releases.insert(
            release.with_context(|| format!("no release of rdma-core: {}", headers.origin))?,
            headers,
        );
    }
    ensure!(releases.len() >= 2, "the suites carry fewer than two releases of {package}");
    Ok(releases)
}

/// Returns the definitions that libibverbs renames: constants under their own names, and the
/// kernel's `ib_uverbs_x` under its new name `ibv_x`.
fn renamed(unit: &Unit<'_>) -> Result<Vec<Definition>> {
    let mut definitions = Vec::new();
    for definition in unit.definitions(NAMES) {
        let name = &definition.name;
        if definition.statements.is_none() {
            // This macro declares a 64-bit pointer, and the members that it declares are covered.
            ensure!(name == "RDMA_UAPI_PTR", "{NAMES}: unexpected {name}");
            continue;
        }
        let Some(stem) = name.strip_prefix("ibv_") else {
            definitions.push(definition);
            continue;
        };
        let of_kernel = unit.renamed(&format!("ib_uverbs_{stem}"), name);
        definitions.push(of_kernel.with_context(|| format!("{NAMES}: {name} names no type of the kernel"))?);
    }
    Ok(definitions)
}
