//! The programs' libraries at run time: the C library alone. The packages that take part in their
//! build are checked in `tests/suites/tests/linkage.rs`.
#![cfg(not(target_feature = "crt-static"))]

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rdma_tools::{LAUNCHER, PROGRAMS};
use verbs_harness::process;

/// The C library and the language's runtime.
const LIBC: &[&str] = &[
    "ld-linux",
    "libc.",
    "libdl.",
    "libgcc_s.",
    "libm.",
    "libpthread.",
    "librt.",
    "linux-gate.",
    "linux-vdso.",
];

/// Returns the libraries in the output of `ldd`, without their directories.
fn libraries(ldd: &str) -> Vec<String> {
    let name = |line: &str| {
        let path = line.split_ascii_whitespace().next()?;
        Some(path.rsplit('/').next()?.to_owned())
    };
    ldd.lines().filter_map(name).collect()
}

/// Cargo builds all programs for the tests of this package, into one folder.
#[test]
fn the_programs_need_nothing_beyond_the_c_library() {
    const LIMIT: Duration = Duration::from_secs(60);
    let one = Path::new(env!("CARGO_BIN_EXE_ibv_devices"));
    for name in PROGRAMS.iter().chain([&LAUNCHER]) {
        let ended = process::run(Command::new("ldd").arg(one.with_file_name(name)), LIMIT);
        let libraries = libraries(&ended.expect("ldd starts").expect("ldd ends").stdout);
        assert!(libraries.iter().any(|library| library.starts_with("libc.")), "{name}: {libraries:?}");
        for library in libraries {
            let known = LIBC.iter().any(|prefix| library.starts_with(prefix));
            assert!(known, "{name} needs {library}");
        }
    }
}

#[test]
fn ldd_lines_are_read_by_name() {
    let text = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibibverbs.so.1 => /lib/x86_64-linux-gnu/libibverbs.so.1 (0x0)\n\
                \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
    assert_eq!(libraries(text), ["linux-vdso.so.1", "libibverbs.so.1", "ld-linux-x86-64.so.2"]);
}
