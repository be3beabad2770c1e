//! Links the libraries: the image from a static library, and the facades (librdmacm and the
//! provider libraries), which need the image.
//!
//! ```text
//! libibverbs_c_image.a ──► cc -shared, symbols in their nodes ──► libibverbs.so.1
//!                          cc -shared, nodes alone            ──► librdmacm, libmlx5, libefa
//! ```
//!
//! rustc's own shared objects (`cdylib`) cannot have version nodes: it passes a version script
//! without names, and linkers reject or ignore a second script.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use super::points::POINTS;
use super::script;
use super::symbols::{EFA, MLX5, Node, RDMACM};
use super::verify::{self, Binutils};
use crate::process::output;
use crate::progress::say;
use crate::{apt, cache, cargo};

/// The Cargo profile for the shipped libraries.
pub(crate) const PROFILE: &str = "c-abi";

/// The name of the static library linked into `libibverbs.so.1`.
pub(crate) const ARCHIVE: &str = "libibverbs_c_image.a";

/// The libraries, starting with the image.
pub(super) const LIBRARIES: [&str; 4] = ["libibverbs.so.1", "librdmacm.so.1", "libmlx5.so.1", "libefa.so.1"];

/// Builds, links and checks the libraries with a Cargo profile unless they are up to date, and
/// returns their folder. Cargo does not add this folder to LD_LIBRARY_PATH, where rdma-core's tools
/// would find the libraries in every test.
pub(crate) fn build(profile: &str) -> Result<PathBuf> {
    let archive = archive(profile)?;
    let mut out = cargo::target_directory()?.join(PROFILE);
    if profile != PROFILE {
        out.push(profile);
    }
    Linking { binutils: Binutils::Native, archive: &archive, out: &out, strip: false }.link()?;
    Ok(out)
}

/// Links and checks libraries for aarch64 from an existing static library and returns their folder.
pub(crate) fn link_for_aarch64(archive: &Path) -> Result<PathBuf> {
    let out = archive.with_file_name(PROFILE);
    Linking { binutils: Binutils::Aarch64, archive, out: &out, strip: false }.link()?;
    Ok(out)
}

/// Builds the static library with a Cargo profile.
pub(super) fn archive(profile: &str) -> Result<PathBuf> {
    let package = ["--package", "libibverbs-c-image"];
    let archive = cargo::profile_directory(profile)?.join(ARCHIVE);
    if !archive.exists() {
        say(&format!("building libibverbs-c-image with the profile {profile}"));
    }
    cargo::build(&[&["--quiet", "--profile", profile], &package[..]].concat())?;
    Ok(archive)
}

/// The libraries that have version nodes but no symbols.
const FACADES: [(&str, &[Node]); 3] = [(LIBRARIES[1], RDMACM), (LIBRARIES[2], MLX5), (LIBRARIES[3], EFA)];

/// Options for both kinds of library. A program cannot unload the libraries, because the image's
/// threads and destructors would continue in unmapped memory.
const COMMON: &[&str] = &["-shared", "-Wl,-z,nodelete", "-Wl,-z,noexecstack", "-Wl,-z,relro,-z,now"];

/// Options for the image. Calls within the image are bound to its own functions, even if a program
/// has loaded rdma-core's libibverbs first.
const IMAGE: &[&str] =
    &["-Wl,--gc-sections", "-Wl,-Bsymbolic-functions", "-Wl,-z,defs", "-Wl,-O1", "-Wl,--build-id"];

/// C libraries that Rust's standard library needs (`--print native-static-libs`).
const SYSTEM: &[&str] = &["-Wl,--as-needed", "-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl", "-lc"];

/// The libraries from one build.
#[derive(Clone, Copy)]
pub(super) struct Linking<'a> {
    pub(super) binutils: Binutils,
    /// The static library.
    pub(super) archive: &'a Path,
    /// The folder for the libraries.
    pub(super) out: &'a Path,
    /// Whether to remove debug information and the names of local functions.
    pub(super) strip: bool,
}

impl Linking<'_> {
    /// Links and checks the libraries, unless they were linked from the same static library with
    /// the same options. Compares contents rather than times, because a cache may restore an older
    /// static library over a newer one.
    pub(super) fn link(&self) -> Result<()> {
        let work = self.out.join("link");
        fs::create_dir_all(&work).with_context(|| format!("cannot create {}", work.display()))?;
        let _lock = cache::lock_file(&work.join("lock"), || ())?;
        let record = work.join("record");
        // Read first, so that a static library changed meanwhile is linked the next time.
        let inputs = self.inputs()?;
        let exist = LIBRARIES.iter().all(|name| self.out.join(name).exists());
        if exist && fs::read_to_string(&record).is_ok_and(|old| old == inputs) {
            return Ok(());
        }
        apt::ensure_tools(&[if self.is_native() { apt::Tools::CAbi } else { apt::Tools::Aarch64 }])?;
        // Without the record, the next run links again if this run fails.
        let _ = fs::remove_file(&record);
        verify::archive(self.binutils, self.archive)?;
        // The image comes first, because the facades need it.
        let image = self.cc(&work, LIBRARIES[0], &script::of_image(), &self.image_arguments())?;
        verify::image(self.binutils, &image)?;
        // Running programs keep the older library.
        fs::rename(&image, self.out.join(LIBRARIES[0]))?;
        for (name, nodes) in FACADES {
            let facade = self.cc(&work, name, &script::of_facade(nodes), &self.facade_arguments())?;
            verify::facade(self.binutils, &facade, nodes)?;
            fs::rename(&facade, self.out.join(name))?;
        }
        Ok(fs::write(&record, inputs)?)
    }

    fn is_native(&self) -> bool {
        matches!(self.binutils, Binutils::Native)
    }

    /// Returns a text with all inputs of the linked libraries.
    fn inputs(&self) -> Result<String> {
        let mut text = format!("{:?}\n{:?}\n", self.image_arguments(), self.facade_arguments());
        text.push_str(&script::of_image());
        text.extend(FACADES.map(|(_, nodes)| script::of_facade(nodes)));
        Ok(text + &output(Command::new("sha256sum").arg("--").arg(self.archive))?)
    }

    fn image_arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = COMMON.iter().chain(IMAGE).map(Into::into).collect();
        arguments.extend(self.strip.then(|| "-Wl,--strip-all".into()));
        // A thread cancelled in one of these functions would leave its locks held.
        let replaced = POINTS.raw.iter().chain(&POINTS.guarded);
        arguments.extend(replaced.map(|name| format!("-Wl,--wrap={name}").into()));
        arguments.push("-Wl,--whole-archive".into());
        arguments.push(self.archive.into());
        arguments.push("-Wl,--no-whole-archive".into());
        arguments.extend(SYSTEM.iter().map(Into::into));
        arguments
    }

    fn facade_arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = COMMON.iter().map(Into::into).collect();
        // The facade needs the image in its folder, although it uses none of its symbols.
        arguments.extend(["-nostdlib", "-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN"].map(Into::into));
        arguments.extend(self.strip.then(|| "-Wl,--strip-all".into()));
        arguments.push(self.out.join(LIBRARIES[0]).into());
        arguments
    }

    /// Links a library in the folder `work` with a version script.
    fn cc(&self, work: &Path, name: &str, script: &str, arguments: &[OsString]) -> Result<PathBuf> {
        let (map, linked) = (work.join(format!("{name}.map")), work.join(name));
        fs::write(&map, script).with_context(|| format!("cannot write {}", map.display()))?;
        let mut version_script = OsString::from("-Wl,--version-script,");
        version_script.push(&map);
        let mut cc = Command::new(self.binutils.program(if self.is_native() { "cc" } else { "gcc" }));
        cc.arg("-o").arg(&linked).arg(format!("-Wl,-soname,{name}")).arg(version_script).args(arguments);
        output(&mut cc).with_context(|| format!("cannot link {name}"))?;
        Ok(linked)
    }
}

/// Copies the libraries into another folder, each completely or not at all.
pub(super) fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
    for name in LIBRARIES {
        let part = to.join(format!(".{name}"));
        fs::copy(from.join(name), &part).with_context(|| format!("cannot write {}", part.display()))?;
        fs::rename(&part, to.join(name))?;
    }
    Ok(())
}

#[test]
fn libraries_are_linked_again_when_the_content_of_the_archive_changed_whatever_the_times_are() {
    let archive = std::env::temp_dir().join(format!("verbs-link-{}", std::process::id()));
    let linking =
        Linking { binutils: Binutils::Native, archive: &archive, out: Path::new("/o"), strip: false };
    fs::write(&archive, "new").unwrap();
    let new = linking.inputs().unwrap();
    assert_ne!(Linking { strip: true, ..linking }.inputs().unwrap(), new);
    fs::write(&archive, "old").unwrap();
    fs::File::options().write(true).open(&archive).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    assert_ne!(linking.inputs().unwrap(), new);
    fs::remove_file(&archive).unwrap();
}
