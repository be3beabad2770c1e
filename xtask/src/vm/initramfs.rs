//! The initramfs: busybox, the modules that mounting the host's root takes, those of the device,
//! and a script that mounts the host's root and starts [`super::guest`].
//!
//! The script loads `/modules`. `/device` holds the driver of a device that the machine has: the
//! script only copies it, and process 1 loads it, so that a failure names the module.
//!
//! The cache entry is named by a hash of all inputs. The archive is plain cpio, uncompressed: QEMU
//! copies it into the guest's memory at once, while an emulated processor would take seconds to
//! unpack it.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::device::Device;
use super::kernel::Kernel;
use super::progress::Progress;
use crate::{apt, cache};

/// Modules that every guest needs, then those for bad networks and for RDMA. Names that a kernel
/// has built in or does not know are left out. Loading the others in this order, dependencies
/// first, is sufficient.
const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_console",
    "9pnet_virtio",
    "9p",
    "overlay",
    "crc32_generic",
    "crc32-pclmul",
    "crc32c-intel",
    "veth",
    "dummy",
    "sch_netem",
    "ib_uverbs",
    "rdma_ucm",
    "ib_umad",
];

/// The additional module for all devices except a ConnectX.
const RXE: &str = "rdma_rxe";

/// The driver of a ConnectX.
const MLX5: &str = "mlx5_ib";

const INIT: &str = include_str!("init.sh");

/// Returns the initramfs for a kernel and a device, and builds it if the cache has none. Its
/// busybox is the host's, or that of a folder of Debian's programs.
///
/// # Errors
/// busybox or a module cannot be read or unpacked, the kernel has no driver for the device, or the
/// cache cannot be written.
pub(crate) fn find_or_build(
    kernel: &Kernel,
    device: Device,
    debian: Option<&Path>,
    progress: &Progress,
) -> Result<PathBuf> {
    let busybox = match debian {
        Some(root) => root.join("usr/bin/busybox"),
        None => apt::static_busybox().context("busybox-static is missing")?,
    };
    let modules = kernel.modules.join(&kernel.release);
    let modules_dep = fs::read_to_string(modules.join("modules.dep"))
        .with_context(|| format!("cannot read {}/modules.dep", modules.display()))?;
    let (list, of_device) = match device {
        Device::Rxe | Device::None => (load_order(&modules_dep, &[MODULES, &[RXE]].concat()), Vec::new()),
        Device::Mlx5 => {
            let list = load_order(&modules_dep, MODULES);
            let rest = load_order(&modules_dep, &[MODULES, &[MLX5]].concat()).split_off(list.len());
            ensure!(
                !rest.is_empty(),
                "Linux {} has no module {MLX5}, so it can have no mlx5 device",
                kernel.version
            );
            (list, rest)
        }
    };
    let busybox = fs::read(&busybox).with_context(|| format!("cannot read {}", busybox.display()))?;

    // A module's size and modification time stand for its content: hashing all of them would cost
    // more than building.
    let mut stamps = String::new();
    for (directory, list) in [("modules", &list), ("device", &of_device)] {
        for path in list {
            let metadata = fs::metadata(modules.join(path))?;
            stamps += &format!("{directory} {path} {} {:?}\n", metadata.len(), metadata.modified()?);
        }
    }
    let identity = cache::hash(&[
        INIT.as_bytes(),
        &busybox,
        modules.as_os_str().as_encoded_bytes(),
        stamps.as_bytes(),
        env!("CARGO_PKG_VERSION").as_bytes(),
    ]);
    let home = cache::dir()?.join("initramfs");
    let path = home.join(format!("{}-{identity:016x}.cpio", kernel.release));
    if path.exists() {
        return Ok(path);
    }
    fs::create_dir_all(&home)?;
    progress.say(&format!("building an initramfs of {} modules", list.len() + of_device.len()));
    let mut cpio = Cpio::default();
    for dir in ["bin", "debian", "dev", "device", "host", "modules", "new", "proc", "rw", "sys"] {
        cpio.directory(dir);
    }
    cpio.file("bin/busybox", 0o755, &busybox);
    cpio.file("init", 0o755, INIT.as_bytes());
    for (directory, list) in [("modules", &list), ("device", &of_device)] {
        for (index, module) in list.iter().enumerate() {
            let path = format!("{directory}/{index:02}-{}.ko", module_name(module));
            cpio.file(&path, 0o644, &read_module(&modules.join(module))?);
        }
    }
    // Several processes may build the same archive; the last rename replaces it with the same
    // bytes.
    let temporary = home.join(format!(".{identity:016x}-{}", std::process::id()));
    fs::write(&temporary, cpio.finish())?;
    fs::rename(&temporary, &path)?;
    Ok(path)
}

/// Returns the paths of modules and their dependencies, dependencies first, from the text of
/// modules.dep.
fn load_order<'a>(modules_dep: &'a str, wanted: &[&str]) -> Vec<&'a str> {
    fn visit<'a>(
        path: &'a str,
        lines: &[(&'a str, &'a str)],
        seen: &mut HashSet<&'a str>,
        out: &mut Vec<&'a str>,
    ) {
        // `seen` also keeps a damaged, circular file from causing a loop.
        if !seen.insert(path) {
            return;
        }
        let dependencies = lines.iter().find(|(p, _)| *p == path).map_or("", |(_, d)| d);
        for dependency in dependencies.split_whitespace() {
            visit(dependency, lines, seen, out);
        }
        out.push(path);
    }
    let lines: Vec<_> =
        modules_dep.lines().filter_map(|l| l.split_once(':')).map(|(p, d)| (p.trim(), d)).collect();
    let (mut seen, mut out) = (HashSet::new(), Vec::new());
    for name in wanted {
        let name = name.replace('-', "_");
        if let Some((path, _)) = lines.iter().find(|(path, _)| module_name(path) == name) {
            visit(path, &lines, &mut seen, &mut out);
        }
    }
    out
}

/// Returns a module's name: 9pnet_virtio for `kernel/net/9p/9pnet_virtio.ko.xz`. The kernel treats
/// '-' and '_' in names as equal.
fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split(".ko").next().unwrap_or(file).replace('-', "_")
}

fn read_module(path: &Path) -> Result<Vec<u8>> {
    let unpacker = match path.extension().and_then(|e| e.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        _ => return fs::read(path).with_context(|| format!("cannot read {}", path.display())),
    };
    let program = apt::find_program(unpacker).with_context(|| format!("{unpacker} is missing"))?;
    let output = Command::new(program).args(["-q", "-d", "-c"]).arg(path).output()?;
    ensure!(output.status.success(), "{unpacker} cannot unpack {}", path.display());
    Ok(output.stdout)
}

/// A writer of "newc" cpio archives, the format that the kernel unpacks.
///
/// # References
/// The kernel's Documentation/driver-api/early-userspace/buffer-format.rst.
#[derive(Default)]
struct Cpio {
    bytes: Vec<u8>,
    inode: u32,
}

impl Cpio {
    fn directory(&mut self, path: &str) {
        self.entry(path, 0o040_755, &[]);
    }

    fn file(&mut self, path: &str, mode: u32, data: &[u8]) {
        self.entry(path, 0o100_000 | mode, data);
    }

    fn entry(&mut self, path: &str, mode: u32, data: &[u8]) {
        self.inode += 1;
        let links = 1 + u32::from(mode & 0o040_000 != 0);
        let size = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let name_size = u32::try_from(path.len() + 1).unwrap_or(u32::MAX);
        // ino, mode, uid, gid, nlink, mtime, filesize, devmajor, devminor, rdevmajor, rdevminor,
        // namesize, check
        let fields = [self.inode, mode, 0, 0, links, 0, size, 0, 0, 0, 0, name_size, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(data);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads an archive back: the path, mode and data of every entry before the trailer.
    fn read_back(bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let (mut at, mut entries) = (0, Vec::new());
        loop {
            let field = |n: usize| {
                let start = at + 6 + n * 8;
                u32::from_str_radix(std::str::from_utf8(&bytes[start..start + 8]).unwrap(), 16).unwrap()
            };
            assert_eq!(&bytes[at..at + 6], b"070701", "at {at}");
            let (mode, size, name_size) = (field(1), field(6) as usize, field(11) as usize);
            let name = &bytes[at + 110..at + 110 + name_size];
            assert_eq!(name.last(), Some(&0));
            let name = String::from_utf8(name[..name_size - 1].to_vec()).unwrap();
            let data = (at + 110 + name_size).next_multiple_of(4);
            at = (data + size).next_multiple_of(4);
            if name == "TRAILER!!!" {
                assert_eq!(at, bytes.len());
                return entries;
            }
            entries.push((name, mode, bytes[data..data + size].to_vec()));
        }
    }

    #[test]
    fn a_cpio_archive_reads_back_whatever_the_lengths() {
        let mut cpio = Cpio::default();
        cpio.directory("d");
        for n in 0..9 {
            cpio.file(&"n".repeat(n + 1), 0o755, &vec![7; n]);
        }
        let entries = read_back(&cpio.finish());
        assert_eq!(entries[0], ("d".into(), 0o040_755, vec![]));
        for n in 0..9 {
            assert_eq!(entries[n + 1], ("n".repeat(n + 1), 0o100_755, vec![7; n]));
        }
    }

    #[test]
    fn dependencies_load_before_what_needs_them_and_only_once() {
        let dep = "kernel/a/rdma_rxe.ko.xz: kernel/b/ib-uverbs.ko.xz kernel/c/ib_core.ko.xz\n\
                   kernel/b/ib-uverbs.ko.xz: kernel/c/ib_core.ko.xz\n\
                   kernel/c/ib_core.ko.xz:\n\
                   kernel/d/other.ko:\n";
        assert_eq!(
            load_order(dep, &["ib_uverbs", "not-there", "rdma_rxe"]),
            ["kernel/c/ib_core.ko.xz", "kernel/b/ib-uverbs.ko.xz", "kernel/a/rdma_rxe.ko.xz"]
        );
    }

    #[test]
    fn a_drivers_modules_follow_those_that_every_guest_loads_and_repeat_none() {
        let dep = "k/mlx5_ib.ko: k/mlx5_core.ko k/mlxfw.ko k/ib_uverbs.ko k/ib_core.ko\n\
                   k/mlx5_core.ko: k/mlxfw.ko k/psample.ko\nk/mlxfw.ko:\nk/psample.ko:\n\
                   k/ib_uverbs.ko: k/ib_core.ko\nk/ib_core.ko:\n";
        let base = load_order(dep, &["ib_uverbs"]);
        assert_eq!(base, ["k/ib_core.ko", "k/ib_uverbs.ko"]);
        let all = load_order(dep, &["ib_uverbs", MLX5]);
        assert_eq!(all[..2], base);
        assert_eq!(all[2..], ["k/mlxfw.ko", "k/psample.ko", "k/mlx5_core.ko", "k/mlx5_ib.ko"]);
    }

    #[test]
    fn circular_dependencies_end() {
        assert_eq!(load_order("a.ko: b.ko\nb.ko: a.ko\n", &["a"]), ["b.ko", "a.ko"]);
    }
}
