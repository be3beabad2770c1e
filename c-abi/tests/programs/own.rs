//! `c`: the C programs of `tests/c`, compiled against Debian's headers.
//!
//! Each program runs plain, under valgrind, and with AddressSanitizer's runtime, which also
//! replaces the libraries' allocator. Both checkers report invalid heap accesses, double frees, and
//! memory without references at the end. Runs under a checker are shorter. valgrind takes half of
//! the time of all tests in the workspace, so its runs need [`VALGRIND`], which `cargo xtask test`
//! sets. If it is set, plain runs are four times as long.
//!
//! `arguments.c` prints the results of calls with odd arguments, which are compared with the
//! results of rdma-core's library on kernel devices.
//!
//! `no_device.c` prints results that do not depend on a device. Its output must be the same as with
//! rdma-core's library.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use verbs_c_programs::arguments::{self, Device, ROWS, Row};
use verbs_harness::process::{self, Finished};
use verbs_harness::runner::{Case, CaseResult, Stop, fail, skip};

use crate::library;

const SUITE: &str = "c";
const LIMIT: Duration = Duration::from_secs(300);

/// The program whose output is compared with rdma-core's library.
const COMPARED: &str = "no_device";

/// The program whose main thread ends first.
const WITHOUT_MAIN_THREAD: &str = "main_thread";

/// The program with its own `malloc`.
const WITH_ALLOCATOR: &str = "large_tables";

/// The program that measures the stack of its calls.
const WITH_SMALL_STACK: &str = "small_stack";

/// The program that forks while its threads allocate.
const FORKS: &str = "fork_locks";

/// The variable that enables runs under valgrind and lengthens plain runs.
const VALGRIND: &str = "VERBS_TEST_VALGRIND";

/// A way to compile and run a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Plain,
    Valgrind,
    Address,
}

impl Mode {
    const ALL: [Self; 3] = [Self::Plain, Self::Valgrind, Self::Address];

    fn name(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Valgrind => " under valgrind",
            Self::Address => " under AddressSanitizer",
        }
    }

    /// Returns the number of rounds that a program runs.
    fn rounds(self) -> &'static str {
        match self {
            Self::Plain if is_thorough() => "20",
            Self::Plain => "5",
            Self::Valgrind | Self::Address => "2",
        }
    }
}

fn is_thorough() -> bool {
    std::env::var_os(VALGRIND).is_some()
}

/// Returns the cases of the suite.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for program in programs() {
        for mode in Mode::ALL {
            let name = format!("{program}{}", mode.name());
            let program = program.clone();
            cases.push(Case::new(SUITE, name, move || run(&program, mode)));
        }
    }
    cases.push(Case::new(SUITE, format!("{COMPARED} prints the same on rdma-core's library"), same_as_c));
    let name = "odd arguments have the results of the kernel's devices, or decided ones";
    cases.push(Case::new(SUITE, name, as_devices_of_the_kernel));
    cases
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c")
}

/// Returns the programs' names, in alphabetical order.
fn programs() -> Vec<String> {
    let files = fs::read_dir(directory()).into_iter().flatten().filter_map(|entry| {
        let path = entry.ok()?.path();
        let is_program = path.extension().is_some_and(|extension| extension == "c");
        is_program.then(|| path.file_stem()?.to_str().map(str::to_owned))?
    });
    let mut names: Vec<_> = files.collect();
    names.sort();
    names
}

/// Compiles a program.
fn compile(program: &str, mode: Mode) -> CaseResult<PathBuf> {
    compile_with(program, mode, &[])
}

/// Compiles a program with linker options.
pub(crate) fn compile_with(program: &str, mode: Mode, options: &[&str]) -> CaseResult<PathBuf> {
    let compiler = library::installed("cc", "gcc")?;
    if !Path::new("/usr/include/infiniband/verbs.h").exists() {
        return skip("rdma-core's headers are not installed (package libibverbs-dev)");
    }
    let place = library::target().join(format!("c-{mode:?}"));
    fs::create_dir_all(&place)?;
    let binary = place.join(program);
    let mut cc = Command::new(compiler);
    cc.args(["-std=gnu11", "-D_GNU_SOURCE", "-g", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&binary);
    if mode == Mode::Address {
        // Without optimisation, the program compiles twice as fast.
        cc.args(["-O0", "-fsanitize=address", "-fno-omit-frame-pointer"]);
    } else {
        cc.arg("-O1");
    }
    let source = directory().join(format!("{program}.c"));
    if fs::read_to_string(&source)?.contains("#include \"connections.h\"") {
        if !Path::new("/usr/include/rdma/rdma_cma.h").exists() {
            return skip("librdmacm's headers are not installed (package librdmacm-dev)");
        }
        cc.arg(&source).arg("-lrdmacm");
    } else {
        cc.arg(&source);
    }
    cc.args(["-libverbs", "-lpthread", "-ldl"]).args(options);
    match process::run_group(&mut cc, LIMIT)? {
        Ok(ended) if ended.status.success() => Ok(binary),
        Ok(ended) if ended.stderr.contains("libasan") => {
            skip("AddressSanitizer is not installed (package gcc)")
        }
        Ok(ended) | Err(ended) => fail(format_args!("{cc:?}: {}", ended.stderr)),
    }
}

/// Returns the command that runs a compiled program.
fn command(binary: &Path, mode: Mode) -> CaseResult<Command> {
    let mut command = match mode {
        Mode::Valgrind => {
            let mut valgrind = Command::new(library::installed("valgrind", "valgrind")?);
            valgrind.args(["-q", "--error-exitcode=9", "--leak-check=full", "--fair-sched=yes"]);
            valgrind.args(["--errors-for-leak-kinds=definite,indirect,possible", "--num-callers=40"]);
            valgrind.args(["--show-leak-kinds=definite,indirect,possible"]);
            valgrind.arg(format!("--suppressions={}", directory().join("valgrind.supp").display()));
            valgrind.arg(binary);
            valgrind
        }
        Mode::Plain | Mode::Address => Command::new(binary),
    };
    library::prepare(&mut command)?;
    if mode == Mode::Address {
        command.env("ASAN_OPTIONS", "exitcode=9:detect_leaks=1");
    }
    if mode != Mode::Plain {
        command.env("VERBS_TEST_CHECKED", "1");
    }
    command.arg(mode.rounds());
    Ok(command)
}

fn run(program: &str, mode: Mode) -> CaseResult {
    if mode == Mode::Valgrind && !is_thorough() {
        return skip(format_args!("{VALGRIND}=1 enables it; `cargo xtask test` sets it"));
    }
    if program == FORKS && mode == Mode::Address {
        return skip(
            "the allocator of gcc 12's AddressSanitizer keeps its locks in a forked child, which hangs",
        );
    }
    if program == WITHOUT_MAIN_THREAD && mode != Mode::Plain {
        return skip("checkers for leaks count what the main thread, which has ended, still reached");
    }
    if program == WITH_ALLOCATOR && mode != Mode::Plain {
        return skip("the program's own malloc takes the place of the checker's");
    }
    if program == WITH_SMALL_STACK && mode != Mode::Plain {
        return skip("checkers use the stack too");
    }
    let mut command = command(&compile(program, mode)?, mode)?;
    if program == COMPARED {
        command.env_remove("VERBS_SOFT");
    }
    succeeds(&mut command).map(drop)
}

fn succeeds(command: &mut Command) -> CaseResult<Finished> {
    let ended = process::run_group(command, LIMIT)?
        .map_err(|killed| Stop::Failed(format!("it did not end: {}{}", killed.stdout, killed.stderr)))?;
    if ended.status.success() && ended.stderr.is_empty() {
        return Ok(ended);
    }
    eprint!("{}{}", ended.stdout, ended.stderr);
    let line = ended.stderr.lines().find(|line| line.contains(".c:")).or_else(|| ended.stderr.lines().next());
    fail(format_args!("{}: {}", ended.status, line.unwrap_or("no message")))
}

/// Compares the output of `arguments.c` with its recorded output on rdma-core's library.
fn as_devices_of_the_kernel() -> CaseResult {
    let mut command = command(&compile(arguments::PROGRAM.name, Mode::Plain)?, Mode::Plain)?;
    let output = succeeds(&mut command)?.stdout;
    let all = arguments::of_no_device(&output);
    let undecided = arguments::undecided(Device::Soft, &all);
    let is_idle =
        |row: &&Row| row.devices == [Device::Soft] && !all.iter().any(|one| row.explains(Device::Soft, one));
    let idle: Vec<_> = ROWS.iter().filter(is_idle).map(|row| row.shown).collect();
    if undecided.is_empty() && idle.is_empty() {
        return Ok(());
    }
    let undecided: Vec<_> = undecided.iter().map(ToString::to_string).collect();
    fail(format_args!("not decided: {}; decided and not there: {idle:?}", undecided.join("; ")))
}

fn same_as_c() -> CaseResult {
    const THEIRS: &str = "/usr/lib/x86_64-linux-gnu/libibverbs.so.1";
    if !Path::new(THEIRS).exists() {
        return skip("rdma-core's library is not installed (package libibverbs1)");
    }
    let binary = compile(COMPARED, Mode::Plain)?;
    let on = |libraries: Option<PathBuf>| {
        let mut command = Command::new(&binary);
        command.env_remove("VERBS_SOFT").env_remove("LD_LIBRARY_PATH").env("LC_ALL", "C").arg("1");
        if let Some(libraries) = libraries {
            command.env("LD_LIBRARY_PATH", libraries);
        }
        succeeds(&mut command)
    };
    let (ours, theirs) = (on(Some(library::directory()?))?.stdout, on(None)?.stdout);
    let missing = theirs.lines().filter(|line| !ours.lines().any(|other| other == *line));
    let new = ours.lines().filter(|line| !theirs.lines().any(|other| other == *line));
    let differences: Vec<String> =
        missing.map(|line| format!("- {line}")).chain(new.map(|line| format!("+ {line}"))).collect();
    if ours == theirs && !ours.is_empty() {
        return Ok(());
    }
    fail(format_args!("other output than rdma-core's: {}", differences.join("; ")))
}
