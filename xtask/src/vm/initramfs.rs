//! The initramfs: busybox, the modules that mount the host's root and drive the device, and a
//! script that loads the modules, mounts the host's root and starts [`super::guest`].
//!
//! The cache entry is named by a hash of all inputs. The archive is plain cpio, uncompressed: QEMU
//! copies it into the guest's memory at once, while an emulated processor would take seconds to
//! unpack it. Debian's initramfs-tools and dracut do not fit, because they make archives for the
//! host's own kernel and configuration.

use std::fs::{self, File};
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use super::image::unpack;
use super::job::Device;
use super::kernel::Kernel;
use crate::progress::say;
use crate::{apt, cache};

/// Modules, one per line: those that every guest needs, then those for bad networks and for RDMA.
/// Modules that a kernel has built in or does not know are left out. Loading the others in this
/// order, dependencies first, is sufficient.
const MODULES: &str = include_str!("modules.txt");

/// The additional module for all devices except a ConnectX.
const RXE: &str = "rdma_rxe";

/// The driver for a ConnectX.
const MLX5: &str = "mlx5_ib";

const INIT: &str = include_str!("init.sh");

/// Returns the initramfs for a kernel and a device. Builds it if the cache has none. Its busybox is
/// the host's, or comes from a folder with Debian's programs.
pub(crate) fn find_or_build(kernel: &Kernel, device: Device, debian: Option<&Path>) -> Result<PathBuf> {
    let busybox = match debian {
        Some(root) => root.join("usr/bin/busybox"),
        None => apt::static_busybox().context("busybox-static is missing")?,
    };
    let driver = if device == Device::Mlx5 { MLX5 } else { RXE };
    let modules = load_order(kernel, &MODULES.lines().chain([driver]).collect::<Vec<_>>())?;
    let has_driver = modules.iter().any(|path| name(path) == driver);
    ensure!(has_driver, "Linux {} has no module {driver}, which the device needs", kernel.version);
    let files: Vec<&Path> = [&busybox].into_iter().chain(&modules).map(PathBuf::as_path).collect();
    let identity = cache::hash(&[INIT.as_bytes(), cache::stamps(&files)?.as_bytes()]);
    let path = cache::dir()?.join("initramfs").join(format!("{}-{identity:016x}.cpio", kernel.release));
    if path.exists() {
        return Ok(path);
    }
    say(&format!("building an initramfs of {} modules", modules.len()));
    let entry = |name: &str, mode, content| (cpio::NewcBuilder::new(name).mode(mode), Cursor::new(content));
    let folders = ["bin", "debian", "dev", "host", "modules", "new", "proc", "rw", "sys"];
    let mut entries: Vec<_> = folders.iter().map(|name| entry(name, 0o040_755, Vec::new())).collect();
    entries.push(entry("bin/busybox", 0o100_755, fs::read(&busybox)?));
    entries.push(entry("init", 0o100_755, INIT.into()));
    for (index, module) in modules.iter().enumerate() {
        entries.push(entry(
            &format!("modules/{index:02}-{}.ko", name(module)),
            0o100_644,
            read_module(module)?,
        ));
    }
    // Several processes may build the same archive; the last rename replaces it with the same
    // content.
    let making = path.with_extension(std::process::id().to_string());
    fs::create_dir_all(path.with_file_name(""))?;
    fs::write(&making, cpio::write_cpio(entries.into_iter(), Vec::new())?)?;
    fs::rename(&making, &path)?;
    Ok(path)
}

/// Returns the name of the module in a file such as `ib_core.ko.xz`.
fn name(module: &Path) -> String {
    let file = module.file_name().unwrap_or_default().to_string_lossy();
    file.split(".ko").next().unwrap_or_default().replace('-', "_")
}

/// Returns the files of modules and of their dependencies in modprobe's loading order, dependencies
/// first.
fn load_order(kernel: &Kernel, wanted: &[&str]) -> Result<Vec<PathBuf>> {
    let root = kernel.modules.ancestors().nth(2).context("no root of lib/modules")?;
    let modprobe = apt::find_program("modprobe").context("modprobe (package kmod) is missing")?;
    // The status only shows whether all modules exist.
    let output = Command::new(modprobe)
        .args(["--config", "/dev/null", "--show-depends", "--all", "--set-version", &kernel.release])
        .arg("--dirname")
        .arg(root)
        .args(wanted)
        .stdin(Stdio::null())
        .output()?;
    let mut files: Vec<PathBuf> = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        // `insmod /.../mlx5_core.ko.xz `, or `builtin mlx5_core`.
        let file = line.strip_prefix("insmod ").map(|path| PathBuf::from(path.trim_end()));
        files.extend(file.filter(|file| !files.contains(file)));
    }
    let why = String::from_utf8_lossy(&output.stderr);
    ensure!(!files.is_empty(), "no modules of Linux {}: {why}", kernel.version);
    Ok(files)
}

fn read_module(path: &Path) -> Result<Vec<u8>> {
    let unpacker = match path.extension().and_then(|e| e.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        _ => return fs::read(path).with_context(|| format!("cannot read {}", path.display())),
    };
    unpack(unpacker, File::open(path)?).with_context(|| format!("cannot unpack {}", path.display()))
}
