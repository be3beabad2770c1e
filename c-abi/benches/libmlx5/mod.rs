//! Instruction counts of rdma-core's libmlx5, shown beside ours if it is installed. `cost.c` is a C
//! program that makes the same calls as cost.rs, and `kernel.c` is its ConnectX device, in plain
//! memory like ours.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use callgrind::count_in;

use crate::library::cc;

/// The number of calls to each function in `cost.c`.
const CALLS: u32 = 256;
const EMPTY: &str = "c_cost_nothing";
/// The exit status of `cost.c` if no library drives the device.
const NOT_INSTALLED: i32 = 2;

/// The device's sysfs files, as libibverbs reads them. The device file is /dev/zero, 1:5.
const SYSFS: &[(&str, &str)] = &[
    ("infiniband_verbs/abi_version", "6"),
    ("infiniband_verbs/uverbs0/ibdev", "mlx5_0"),
    ("infiniband_verbs/uverbs0/dev", "1:5"),
    ("infiniband_verbs/uverbs0/abi_version", "1"),
    ("infiniband/mlx5_0/node_type", "1: CA"),
    ("infiniband/mlx5_0/node_guid", "0000:0000:0000:0002"),
    ("infiniband/mlx5_0/device/modalias", "pci:v000015B3d00001017sv000015B3sd00000000bc02sc00i00"),
];

/// The installed library, and a folder with the program and the device's files. Dropping this value
/// removes the folder.
pub(crate) struct Libmlx5 {
    pub(crate) version: String,
    folder: PathBuf,
    /// The number of instructions that the empty function takes.
    empty: f64,
}

impl Libmlx5 {
    /// Returns the installed library. Without the library, or without a C compiler and verbs.h,
    /// prints the reason instead.
    ///
    /// # Errors
    /// Fails if the device's files cannot be written, or if the C program or valgrind fails
    /// although the library is installed.
    pub(crate) fn find() -> Result<Option<Self>, String> {
        let folder = std::env::temp_dir().join(format!("libmlx5-{}", std::process::id()));
        let mut library = Self { version: String::new(), folder, empty: 0.0 };
        library.write().map_err(|error| format!("{}: {error}", library.folder.display()))?;
        match compile(&library.program()).and_then(|()| library.start()) {
            Ok(version) => library.version = version?,
            Err(why) => {
                println!("libmlx5 was not counted beside ours: {why}");
                return Ok(None);
            }
        }
        library.empty = library.count_all(EMPTY)?;
        Ok(Some(library))
    }

    /// Returns the instructions that one call of a `cost.c` function takes, minus the instructions
    /// of the empty function.
    ///
    /// # Errors
    /// Fails if the C program or valgrind fails.
    pub(crate) fn count(&self, symbol: &str) -> Result<f64, String> {
        Ok(self.count_all(symbol)? - self.empty)
    }

    fn count_all(&self, symbol: &str) -> Result<f64, String> {
        let mut valgrind = Command::new("valgrind");
        valgrind.env("SYSFS_PATH", &self.folder);
        count_in(valgrind, &self.program(), &[symbol], symbol, CALLS)
    }

    fn program(&self) -> PathBuf {
        self.folder.join("cost")
    }

    fn write(&self) -> std::io::Result<()> {
        for (file, content) in SYSFS {
            let path = self.folder.join("class").join(file);
            fs::create_dir_all(path.parent().unwrap_or(&path))?;
            fs::write(path, format!("{content}\n"))?;
        }
        Ok(())
    }

    /// Opens the device and returns the version of the library that drives it, or the reason why no
    /// library does. The outer error means that an installed library failed.
    fn start(&self) -> Result<Result<String, String>, String> {
        let program = self.program();
        let started = Command::new(&program).env("SYSFS_PATH", &self.folder).output();
        let output = started.map_err(|error| format!("{}: {error}", program.display()))?;
        if output.status.code() == Some(NOT_INSTALLED) {
            return Err("it is not installed (package ibverbs-providers)".to_owned());
        }
        if !output.status.success() {
            return Ok(Err(format!("libmlx5: {}", String::from_utf8_lossy(&output.stderr).trim())));
        }
        let file = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        version(&file).map(|version| Ok(version.to_owned())).ok_or(format!("the device is driven by {file}"))
    }
}

impl Drop for Libmlx5 {
    fn drop(&mut self) {
        // Any remaining files are in the folder for temporary files.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn compile(program: &Path) -> Result<(), String> {
    let source = |name| format!("{}/benches/libmlx5/{name}", env!("CARGO_MANIFEST_DIR"));
    // If the program exports its functions, libraries find these in place of libc's. Some compilers
    // fortify libc's functions, which then cannot be redefined.
    let flags = ["-D_GNU_SOURCE", "-U_FORTIFY_SOURCE", "-rdynamic"].map(str::to_owned);
    cc(program, &[&flags[..], &[source("cost.c"), source("kernel.c")]].concat())
}

/// Returns rdma-core's version, such as 44.0 for libmlx5.so.1.24.44.0.
fn version(file: &str) -> Option<&str> {
    let (_, numbers) = file.rsplit_once("/libmlx5.so.1.")?;
    numbers.split_once('.').map(|(_, version)| version)
}
