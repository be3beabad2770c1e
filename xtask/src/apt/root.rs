//! [`Programs`]: Debian's programs of another suite or architecture, unpacked in the cache with
//! their libraries, never installed. The machine's apt learns nothing of them.
//!
//! Invariant: a folder in the cache is complete, because it is renamed into place, and its name
//! tells which packages were asked for.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use super::{Archive, PrivateApt, unpack};
use crate::arch::Arch;
use crate::cache;

/// Packages of a suite, to which apt adds their dependencies down to the C library.
pub(crate) struct Programs {
    /// The words of messages for them.
    pub(crate) name: &'static str,
    pub(crate) arch: Arch,
    pub(crate) suite: &'static str,
    pub(crate) packages: &'static [&'static str],
}

/// Programs of rdma-core that are newer than this machine's: the `cmtime` of Debian 12 is another
/// program.
pub(crate) const RDMA_CORE: Programs = Programs {
    name: "rdma-core's newest programs",
    arch: Arch::X86_64,
    suite: "sid",
    packages: &["ibverbs-providers", "rdmacm-utils"],
};

impl Programs {
    /// Returns the folder of the programs, and downloads them if the cache has none.
    ///
    /// # Errors
    /// The packages cannot be downloaded or unpacked.
    pub(crate) fn root(&self, say: &dyn Fn(&str)) -> Result<PathBuf> {
        let Self { name, arch, suite, packages } = self;
        let inputs: Vec<&[u8]> = packages.iter().chain([suite]).map(|word| word.as_bytes()).collect();
        let home = cache::dir()?.join("debian");
        let root = home.join(format!("{}-{suite}-{:016x}", arch.debian(), cache::hash(&inputs)));
        if root.exists() {
            return Ok(root);
        }
        let _lock = cache::lock("debian", || say(&format!("another xtask is downloading {name}")))?;
        if !root.exists() {
            fs::create_dir_all(&home)?;
            let temporary = home.join(format!(".{}", std::process::id()));
            let _ = fs::remove_dir_all(&temporary);
            let made = self.download(&temporary, &root, say);
            // Best effort: a leftover costs space, and its name keeps it from being used.
            let _ = fs::remove_dir_all(&temporary);
            made.with_context(|| format!("{name} are not available"))?;
        }
        Ok(root)
    }

    fn download(&self, temporary: &Path, complete: &Path, say: &dyn Fn(&str)) -> Result<()> {
        let (debs, root) = (temporary.join("debs"), temporary.join("root"));
        fs::create_dir_all(&debs)?;
        fs::create_dir_all(&root)?;
        let state = cache::dir()?.join("apt").join(format!("{}-{}", self.arch.debian(), self.suite));
        let apt = PrivateApt::of(self.arch, state, &[(Archive::Main, self.suite)])?;
        apt.update()?;
        let packages = apt.with_dependencies(self.packages, self.suite)?;
        say(&format!("downloading {}, {} packages", self.name, packages.len()));
        apt.download(&packages, &debs, true)?;
        // A package of the suite's has all files below /usr, to which these are links.
        let loader = self.loader_in(&root);
        for name in ["bin", "lib", "lib64", "sbin"] {
            if name == "lib64" && !loader.starts_with(root.join(name)) {
                continue;
            }
            fs::create_dir_all(root.join("usr").join(name))?;
            symlink(Path::new("usr").join(name), root.join(name))?;
        }
        unpack(&debs, &root)?;
        ensure!(loader.exists(), "the packages brought no {}", loader.display());
        fs::rename(&root, complete).with_context(|| format!("cannot rename to {}", complete.display()))
    }

    fn loader_in(&self, root: &Path) -> PathBuf {
        let folder = match self.arch {
            Arch::X86_64 => "lib64",
            Arch::Aarch64 => "lib",
        };
        root.join(folder).join(self.arch.loader())
    }
}
