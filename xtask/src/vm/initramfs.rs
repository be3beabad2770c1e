//! The initramfs: busybox, the modules that mounting the host's root takes, those of the device,
//! and a script that mounts the host's root and starts [`super::guest`].
//!
//! The script loads `/modules`. `/device` holds the driver of a device that the machine has: the
//! script only copies it, and process 1 loads it, so that a failure names the module.
//!
//! The cache entry is named by a hash of all inputs. The archive is plain cpio, uncompressed: QEMU
//! copies it into the guest's memory at once, while an emulated processor would take seconds to
//! unpack it.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use super::Device;
use super::Progress;
use super::kernel::Kernel;
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
pub(crate) fn find_or_build(
    kernel: &Kernel,
    device: Device,
    debian: Option<&Path>,
    progress: &Progress,
) -> Result<PathBuf> {
    let own_busybox = apt::static_busybox().context("busybox-static is missing")?;
    let busybox = debian.map_or_else(|| own_busybox.clone(), |root| root.join("usr/bin/busybox"));
    let (list, of_device) = match device {
        Device::Rxe | Device::None => (load_order(kernel, &[MODULES, &[RXE]].concat())?, Vec::new()),
        Device::Mlx5 => {
            let list = load_order(kernel, MODULES)?;
            let rest = load_order(kernel, &[MODULES, &[MLX5]].concat())?.split_off(list.len());
            ensure!(
                !rest.is_empty(),
                "Linux {} has no module {MLX5}, so it can have no mlx5 device",
                kernel.version
            );
            (list, rest)
        }
    };
    // A file's size and modification time stand for its content: hashing all of them would cost
    // more than building.
    let mut stamps = String::new();
    for path in [&busybox].into_iter().chain(&list).chain(&of_device) {
        let metadata = fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?;
        stamps += &format!("{path:?} {} {:?}\n", metadata.len(), metadata.modified()?);
    }
    let device = format!("{device:?}");
    let identity = cache::hash(&[INIT.as_bytes(), stamps.as_bytes(), device.as_bytes()]);
    let home = cache::dir()?.join("initramfs");
    let path = home.join(format!("{}-{identity:016x}.cpio", kernel.release));
    if path.exists() {
        return Ok(path);
    }
    progress.say(&format!("building an initramfs of {} modules", list.len() + of_device.len()));
    // Several processes may build the same archive; the last rename replaces it with the same
    // content.
    let making = home.join(format!(".{identity:016x}-{}", std::process::id()));
    let (tree, archive) = (making.join("tree"), making.join("cpio"));
    for dir in ["bin", "debian", "dev", "device", "host", "modules", "new", "proc", "rw", "sys"] {
        fs::create_dir_all(tree.join(dir))?;
    }
    fs::copy(&busybox, tree.join("bin/busybox"))?;
    fs::write(tree.join("init"), INIT)?;
    fs::set_permissions(tree.join("init"), fs::Permissions::from_mode(0o755))?;
    for (directory, list) in [("modules", &list), ("device", &of_device)] {
        for (index, module) in list.iter().enumerate() {
            let file = module.file_name().unwrap_or_default().to_string_lossy();
            let name = file.split(".ko").next().unwrap_or_default().replace('-', "_");
            fs::write(tree.join(format!("{directory}/{index:02}-{name}.ko")), read_module(module)?)?;
        }
    }
    let status = Command::new("sh")
        .args(["-c", "find . | \"$0\" cpio -o -H newc"])
        .arg(own_busybox)
        .current_dir(&tree)
        .stdout(File::create(&archive)?)
        .stderr(Stdio::null())
        .status()?;
    ensure!(status.success(), "busybox cpio failed: {status}");
    fs::rename(&archive, &path)?;
    fs::remove_dir_all(&making)?;
    Ok(path)
}

/// Returns the files of modules and their dependencies, dependencies first, in the order in which
/// modprobe would load them.
fn load_order(kernel: &Kernel, wanted: &[&str]) -> Result<Vec<PathBuf>> {
    let root = kernel.modules.ancestors().nth(2).context("no root of lib/modules")?;
    let modprobe = apt::find_program("modprobe").context("modprobe (package kmod) is missing")?;
    // The status tells only whether all exist.
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
    let program = apt::find_program(unpacker).with_context(|| format!("{unpacker} is missing"))?;
    let output = Command::new(program).args(["-q", "-d", "-c"]).arg(path).output()?;
    ensure!(output.status.success(), "{unpacker} cannot unpack {}", path.display());
    Ok(output.stdout)
}
