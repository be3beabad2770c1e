//! `empty_root`: static builds of the tools, in a root with only the tools, `/dev/infiniband`,
//! `/sys` and `/proc`.
//!
//! `VERBS_STATIC_DIR` is the folder with the glibc builds; `VERBS_MUSL_DIR` is the folder with the
//! musl builds.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::unistd::{chdir, chroot};
use verbs_harness::listening::wait_for_listening_id;
use verbs_harness::pair::both;
use verbs_harness::port;
use verbs_harness::process::Running;
use verbs_harness::runner::{Case, CaseResult, skip};
use verbs_harness::sandbox::{bind, cover, private_mounts};
use verbs_harness::tools::{DEVICE, LIMIT, Maker, PROGRAMS, PingPong, run};

const SUITE: &str = "empty_root";

/// A check on the static builds in a folder.
type Check = fn(&Path) -> CaseResult;

/// Returns the suite's cases.
pub fn cases() -> Vec<Case> {
    const BUILDS: &[(&str, &str)] = &[("glibc", "VERBS_STATIC_DIR"), ("musl", "VERBS_MUSL_DIR")];
    const CASES: &[(&str, Check)] = &[
        ("no tool needs a loader", no_tool_needs_a_loader),
        ("ibv_devinfo tells all", ibv_devinfo_tells_all),
        ("pingpong runs", pingpong_runs),
        ("rping connects by an address", rping_connects),
    ];
    let all = BUILDS.iter().flat_map(|build| CASES.iter().map(move |case| (build, case)));
    all.map(|(&(libc, variable), &(name, case))| {
        Case::new(SUITE, format!("{libc} {name}"), move || case(&dir_of(variable)?))
    })
    .collect()
}

fn no_tool_needs_a_loader(dir: &Path) -> CaseResult {
    for tool in PROGRAMS {
        let elf = fs::read(dir.join(tool))?;
        assert!(!has_interpreter(&elf), "{tool} names a dynamic loader");
    }
    // This program is dynamically linked and has an interpreter, which shows that the check works.
    assert!(has_interpreter(&fs::read("/proc/self/exe")?));
    Ok(())
}

fn ibv_devinfo_tells_all(dir: &Path) -> CaseResult {
    let outside = run(Maker::Ours.tool("ibv_devinfo")?.arg("-v"))?;
    let outside_devices = run(&mut Maker::Ours.tool("ibv_devices")?)?;
    enter(dir)?;
    let inside = run(Maker::Static.tool("ibv_devinfo")?.arg("-v"))?;
    assert!(inside.status.success() && inside.stdout.contains(DEVICE), "{inside:?}");
    assert_eq!(inside, outside);
    assert_eq!(run(&mut Maker::Static.tool("ibv_devices")?)?, outside_devices);
    Ok(())
}

fn pingpong_runs(dir: &Path) -> CaseResult {
    enter(dir)?;
    PingPong { server: Maker::Static, client: Maker::Static, flags: &["-e", "-c"], ..PingPong::OURS }
        .run()?;
    Ok(())
}

/// Runs both ends of `rping` inside the root. This process stays outside, where it can list the
/// kernel's listeners.
fn rping_connects(dir: &Path) -> CaseResult {
    let (root, port) = (make(dir)?, port::free()?);
    let rping = |role: &str| {
        let mut command = Command::new("chroot");
        command.arg(root).args(["/rping", role, "-a", "10.9.9.1", "-p", &port.to_string()]);
        command.args(["-C", "10", "-v", "-V"]);
        command
    };
    let mut server = Running::start(&mut rping("-s"))?;
    wait_for_listening_id(port, &mut server)?;
    let ended = both(server, Running::start(&mut rping("-c"))?, LIMIT)?;
    for (end, last) in ended.iter().zip(["server ping data: rdma-ping-9: ", "ping data: rdma-ping-9: "]) {
        assert!(end.stdout.lines().any(|line| line.starts_with(last)), "no {last:?}: {ended:?}");
    }
    Ok(())
}

fn dir_of(variable: &str) -> CaseResult<PathBuf> {
    match std::env::var_os(variable) {
        Some(dir) => Ok(dir.into()),
        None => skip(format_args!("{variable} does not say where such builds of the tools are")),
    }
}

/// Makes an empty root in a new mount namespace for this process and returns the root's path.
fn make(static_dir: &Path) -> CaseResult<&'static Path> {
    private_mounts()?;
    let root = Path::new("/run/empty-root");
    fs::create_dir_all(root)?;
    cover(root)?;
    for tree in ["dev/infiniband", "sys", "proc"] {
        let target = root.join(tree);
        fs::create_dir_all(&target)?;
        bind(&Path::new("/").join(tree), &target)?;
    }
    for tool in PROGRAMS {
        fs::copy(static_dir.join(tool), root.join(tool))?;
    }
    Ok(root)
}

/// Makes an empty root and moves this process into it.
fn enter(static_dir: &Path) -> CaseResult {
    chroot(make(static_dir)?)?;
    chdir("/")?;
    let mut names: Vec<_> = fs::read_dir("/")?.flatten().map(|entry| entry.file_name()).collect();
    names.sort();
    let mut expected = [PROGRAMS, &["dev", "proc", "sys"]].concat();
    expected.sort_unstable();
    assert_eq!(names, expected);
    assert!(!Path::new("/dev/null").exists());
    Ok(())
}

/// Returns whether a 64-bit ELF file in this machine's byte order has a PT_INTERP program header.
fn has_interpreter(elf: &[u8]) -> bool {
    const PT_INTERP: u64 = 3;
    let number = |at: usize, size: usize| {
        let mut bytes = [0; 8];
        bytes[..size].copy_from_slice(&elf[at..at + size]);
        u64::from_le_bytes(bytes) as usize
    };
    assert!(elf.starts_with(b"\x7fELF\x02\x01"), "not a 64-bit little-endian ELF file");
    let (table, size, count) = (number(32, 8), number(54, 2), number(56, 2));
    (0..count).any(|index| number(table + index * size, 4) as u64 == PT_INTERP)
}
