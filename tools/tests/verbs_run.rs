//! `verbs-run` presents devices to a program without changing the machine.
//!
//! This test has no harness, because it starts itself again to forbid system calls. Each case runs
//! as the test's user. If that user is root, it also runs as another user. A case is skipped if the
//! host does not permit namespaces.
//!
//! # Safety
//! `prctl(2)` gets a filter that lives until the call returns.
#![allow(missing_docs, unsafe_code)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output, Stdio};

mod common;

use common::{finish, run};

/// The reason for skipping a case.
struct Skip(String);

type Case = fn(&Place) -> Result<(), Skip>;

/// The cases, by name.
const CASES: [(&str, Case); 14] = [
    ("devices_are_where_programs_look", devices_are_where_programs_look),
    ("the_rest_of_the_system_looks_as_before", the_rest_looks_as_before),
    ("nothing_stays_after_an_exit_or_a_kill", nothing_stays),
    ("the_program_replaces_verbs_run", the_program_replaces_verbs_run),
    ("a_command_that_cannot_start_has_the_status_of_a_shell", statuses),
    ("a_library_in_a_wheel_is_covered_by_ours", a_wheel_is_covered),
    ("without_a_namespace_a_link_with_its_name_comes_first", a_wheel_is_linked),
    ("a_verbs_run_in_another_presents_its_own_devices", nested),
    ("devices_of_the_kernel_stay_in_the_lists", kernel_devices_stay),
    ("without_soft_devices_nothing_is_presented", no_soft),
    ("an_address_that_cannot_be_had_is_reported", an_address_is_reported),
    ("a_refused_namespace_is_one_sentence_and_the_program_runs", refused_namespace),
    ("refused_mounts_are_one_sentence_and_the_user_stays", refused_mounts),
    ("a_limit_of_zero_namespaces_is_named", limit_of_zero),
];

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    if let Some([forbid, call, errno, program, rest @ ..]) = arguments.get(..)
        && forbid == FORBID
    {
        let number = |text: &std::ffi::OsStr| text.to_str().unwrap().parse().unwrap();
        forbid_call(number(call), number(errno));
        panic!("{}", Command::new(program).args(rest).exec());
    }
    let mut users = vec![("own user", None)];
    if nix::unistd::geteuid().is_root() {
        users.push(("plain user", Some(PLAIN_USER)));
    }
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for (user, id) in users {
        for (name, case) in CASES {
            let place = Place::make(id);
            match catch_unwind(AssertUnwindSafe(|| case(&place))) {
                Ok(Ok(())) => passed += 1,
                Ok(Err(Skip(why))) => {
                    println!("skip verbs_run.{name} ({user}): {why}");
                    skipped += 1;
                }
                Err(_) => {
                    println!("FAIL verbs_run.{name} ({user})");
                    failed += 1;
                }
            }
        }
    }
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    ExitCode::from(failed)
}

/// A folder that the user may read, with `verbs-run` and libraries.
struct Place {
    root: PathBuf,
    user: Option<u32>,
}

impl Place {
    fn make(user: Option<u32>) -> Self {
        let root = std::env::temp_dir().join(format!("verbs-run-test-{}", std::process::id()));
        for folder in ["bin", "lib/verbs-run"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        let copy = |from: &Path, name: &str| {
            fs::copy(from, root.join("bin").join(name)).unwrap();
        };
        copy(Path::new(env!("CARGO_BIN_EXE_verbs-run")), "verbs-run");
        copy(&std::env::current_exe().unwrap(), "test");
        for name in ["libibverbs.so.1", "librdmacm.so.1", "libmlx5.so.1", "libefa.so.1"] {
            fs::write(root.join("lib/verbs-run").join(name), format!("VERBS_SOFT {name}\n")).unwrap();
        }
        for entry in [root.clone(), root.join("bin"), root.join("lib"), root.join("lib/verbs-run")] {
            fs::set_permissions(entry, fs::Permissions::from_mode(0o755)).unwrap();
        }
        Self { root, user }
    }

    /// Returns a command for the case's user, without the environment variables of the libraries.
    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        for name in ["VERBS_SOFT", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "XDG_RUNTIME_DIR"] {
            command.env_remove(name);
        }
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        command
    }

    /// Returns a command that runs `verbs-run`.
    fn verbs_run(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(self.root.join("bin/verbs-run"));
        command.args(arguments);
        command
    }

    /// Runs a shell script under `verbs-run` and returns its standard output. The script must
    /// succeed and print no error.
    #[track_caller]
    fn script(&self, options: &[&str], script: &str) -> Result<String, Skip> {
        self.needs_namespaces()?;
        let output = run(&mut self.verbs_run(&[options, &["sh", "-c", script]].concat()));
        let (out, err) = texts(&output);
        assert!(output.status.success() && err.is_empty(), "{script}: {output:?}");
        Ok(out)
    }

    /// Skips a case if the host does not permit namespaces.
    fn needs_namespaces(&self) -> Result<(), Skip> {
        let checked = run(&mut self.verbs_run(&["--check", "--no-soft"]));
        if checked.status.success() { Ok(()) } else { Err(Skip(texts(&checked).1.trim().to_owned())) }
    }

    /// Runs `verbs-run` with a shell script while a system call fails.
    fn forbidding(&self, call: libc::c_long, errno: i32, options: &[&str], script: &str) -> Output {
        let mut command = self.command(self.root.join("bin/test"));
        command.args([FORBID, &call.to_string(), &errno.to_string()]);
        command.arg(self.root.join("bin/verbs-run")).args(options);
        run(command.args(["sh", "-c", script]))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.root).expect("the folder of the case");
    }
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
    (text(&output.stdout), text(&output.stderr))
}

fn devices_are_where_programs_look(place: &Place) -> Result<(), Skip> {
    let script = "
        set -e
        cat /sys/class/infiniband/soft0/node_guid
        cat /sys/class/infiniband/soft0/ports/1/gids/0
        uverbs=$(basename /sys/class/infiniband/soft0/device/infiniband_verbs/*)
        cat /sys/class/infiniband_verbs/$uverbs/ibdev
        test -c /dev/infiniband/$uverbs
        test -r /dev/infiniband/$uverbs
        test -w /dev/infiniband/$uverbs
        realpath /sys/class/infiniband/soft0
        realpath /sys/class/infiniband/soft0/../..
        test -s /sys/class/infiniband/soft0/device/numa_node
        cat /sys/class/infiniband_verbs/abi_version
        echo $VERBS_SOFT
    ";
    let expected = "0200:5efe:7f4d:4d4d\n0000:0000:0000:0000:0000:ffff:7f4d:4d4d\nsoft0\n\
                    /sys/devices/soft/soft0/infiniband/soft0\n/sys/devices/soft/soft0\n6\n127.77.77.77\n";
    assert_eq!(place.script(&["--soft=127.77.77.77"], script)?, expected);
    // Other users can read the files regardless of this user's mask.
    let modes = "stat -Lc %a /sys/class/infiniband/soft0 /sys/class/infiniband/soft0/node_guid";
    let mut command = place.command("sh");
    let program = place.root.join("bin/verbs-run").display().to_string();
    command.args(["-c", &format!("umask 077; {program} sh -c '{modes}; umask'")]);
    assert_eq!(texts(&run(&mut command)).0, "755\n644\n0077\n");
    let checked = run(&mut place.verbs_run(&["--check", "--soft", "127.77.77.77,127.77.77.78"]));
    let (out, err) = texts(&checked);
    let lines: Vec<_> = out.lines().collect();
    assert!(checked.status.success() && err.is_empty() && lines.len() == 2, "{checked:?}");
    assert!(lines[1].starts_with("soft1 is /sys/class/infiniband/soft1 and /dev/infiniband/uverbs"), "{out}");
    Ok(())
}

fn the_rest_looks_as_before(place: &Place) -> Result<(), Skip> {
    // Other programs meanwhile create terminals and files in /dev/shm, so folders are compared by
    // file system and number.
    let script = "
        id -u; id -g; id -ru
        for class in /sys/class/*; do
            case $class in */infiniband | */infiniband_verbs) ;; *) echo $class $(ls $class);; esac
        done
        for entry in /sys/class/net/*; do realpath $entry; done
        ls /sys/devices | grep -v '^soft$'
        ls /sys/devices/system/cpu | head
        ls -l /dev/ | grep -v -e infiniband -e ptmx -e '^total' |
            awk '/^d/ { print $1, $NF; next } /^l/ { print $1, $(NF-2), $NF; next }
                { print $1, $5, $6, $NF }'
        stat -c '%n %d %i' /dev/pts /dev/shm /dev/mqueue /dev/hugepages 2>/dev/null
        stat -Lc '%F %a %t %T' /dev/null /dev/zero /dev/urandom /dev/ptmx
        stat -f -c %T /dev/shm
        head -c 3 /dev/zero | od -c
        echo x > /dev/null && echo written
        (: < /dev/ptmx) && echo a terminal
        pwd; umask; ulimit -n
    ";
    let without = run(place.command("sh").args(["-c", script]));
    let (expected, _) = texts(&without);
    assert!(without.status.success() && expected.contains("a terminal"), "{without:?}");
    assert_eq!(place.script(&[], script)?, expected);
    Ok(())
}

/// Returns everything that a program in a namespace could leave behind: mounts, entries and files
/// in memory.
fn machine() -> [String; 3] {
    let list = |folder: &str| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries.map(|entry| entry.path().display().to_string()).collect();
        names.retain(|name| !name.contains("verbs-soft-"));
        names.sort();
        names.join("\n")
    };
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    [mounts, list("/sys/class") + &list("/sys/class/infiniband"), list("/dev") + &list("/dev/infiniband")]
}

fn nothing_stays(place: &Place) -> Result<(), Skip> {
    place.needs_namespaces()?;
    let before = machine();
    let script = "test -e /sys/class/infiniband/soft0 && echo here && exec sleep 1000";
    let mut child = place.verbs_run(&["sh", "-c", script]).spawn().unwrap();
    let mut line = String::new();
    let out = child.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).unwrap();
    assert_eq!(line, "here\n");
    assert_eq!(machine(), before, "the machine has changed");
    child.kill().unwrap();
    assert_eq!(finish(child, "sleep").status.signal(), Some(libc::SIGKILL));
    assert_eq!(machine(), before);
    place.script(&[], "true")?;
    assert_eq!(machine(), before);
    Ok(())
}

fn the_program_replaces_verbs_run(place: &Place) -> Result<(), Skip> {
    place.needs_namespaces()?;
    // These are the process number, an inherited descriptor, the arguments and the exit status.
    let script = "echo $$ \"$1\" \"$2\"; cat <&3; exit 7";
    let mut command = place.command("sh");
    let program = place.root.join("bin/verbs-run").display().to_string();
    command.args(["-c", &format!("echo text > {0}/text", place.root.display())]);
    fs::set_permissions(&place.root, fs::Permissions::from_mode(0o777)).unwrap();
    assert!(run(&mut command).status.success());
    let mut command = place.command("sh");
    let wrapped =
        format!("exec 3< {}/text; exec {program} sh -c '{script}' sh 'a b' --soft", place.root.display());
    let child = command.args(["-c", &wrapped]).spawn().unwrap();
    let pid = child.id();
    let output = finish(child, "sh");
    assert_eq!(texts(&output), (format!("{pid} a b --soft\ntext\n"), String::new()));
    assert_eq!(output.status.code(), Some(7));
    // A script without `#!`, which a shell runs.
    let script = place.root.join("script");
    fs::write(&script, "echo $1 $VERBS_SOFT\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let output = run(&mut place.verbs_run(&[script.to_str().unwrap(), "word"]));
    assert_eq!(texts(&output), ("word auto\n".to_owned(), String::new()));
    let killed = run(&mut place.verbs_run(&["sh", "-c", "kill -TERM $$"]));
    assert_eq!(killed.status.signal(), Some(libc::SIGTERM));
    Ok(())
}

fn statuses(place: &Place) -> Result<(), Skip> {
    for (arguments, status, word) in [
        (&["no-such-command"] as &[&str], 127, "there is no command `no-such-command`"),
        (&["/dev/null/x"], 126, "cannot execute"),
        (&["/"], 126, "cannot execute"),
        (&[], 125, "no command"),
        (&["--hard", "true"], 125, "unknown option --hard"),
        (&["--libraries", "/dev", "true"], 125, "there is no libibverbs.so.1 in /dev"),
    ] {
        let output = run(&mut place.verbs_run(&[&["--no-namespace"], arguments].concat()));
        let (out, err) = texts(&output);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {err}");
        assert!(
            err.starts_with("verbs-run: ") && err.contains(word) && out.is_empty(),
            "{arguments:?}: {err}"
        );
    }
    fs::remove_file(place.root.join("lib/verbs-run/libmlx5.so.1")).unwrap();
    let output = run(&mut place.verbs_run(&["true"]));
    assert!(output.status.code() == Some(125) && texts(&output).1.contains("--libraries DIR"), "{output:?}");
    Ok(())
}

/// The name of a library in a wheel.
const BUNDLED: &str = "libibverbs-1de1263b.so.1.14.48.0";

/// Creates a package with libibverbs and returns its folder.
fn wheel(place: &Place) -> PathBuf {
    let site = place.root.join("venv/lib/python3.11/site-packages");
    fs::create_dir_all(site.join("nixl.libs")).unwrap();
    fs::write(site.join("nixl.libs").join(BUNDLED), "theirs\n").unwrap();
    site
}

fn a_wheel_is_covered(place: &Place) -> Result<(), Skip> {
    let site = wheel(place);
    let path = site.join("nixl.libs").join(BUNDLED);
    let script = format!("cat {}", path.display());
    let scan = place.root.join("venv").display().to_string();
    assert_eq!(place.script(&["--scan", &scan], &script)?, "VERBS_SOFT libibverbs.so.1\n");
    assert_eq!(place.script(&["--no-soft", "--scan", &scan], &script)?, "VERBS_SOFT libibverbs.so.1\n");
    assert_eq!(place.script(&[], &script)?, "theirs\n");
    let output = run(place.verbs_run(&["sh", "-c", &script]).env("PYTHONPATH", &site));
    assert_eq!(texts(&output).0, "VERBS_SOFT libibverbs.so.1\n");
    let output = run(place.verbs_run(&["sh", "-c", &script]).env("VIRTUAL_ENV", place.root.join("venv")));
    assert_eq!(texts(&output).0, "VERBS_SOFT libibverbs.so.1\n");
    assert_eq!(fs::read_to_string(&path).unwrap(), "theirs\n");
    Ok(())
}

fn a_wheel_is_linked(place: &Place) -> Result<(), Skip> {
    wheel(place);
    let own = place.root.join("run");
    fs::create_dir(&own).unwrap();
    fs::set_permissions(&own, fs::Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::chown(&own, place.user, place.user).unwrap();
    let scan = place.root.display().to_string();
    let first = "${LD_LIBRARY_PATH%%:*}";
    // A descriptor of the program holds the lock.
    let script = format!(
        "echo {first}; cat {first}/{BUNDLED}; flock -n {first}/../lock true || echo locked; echo $LD_LIBRARY_PATH"
    );
    let arguments = ["--no-namespace", "--scan", &scan, "sh", "-c", &script];
    let output = run(place.verbs_run(&arguments).env("XDG_RUNTIME_DIR", &own));
    let (out, err) = texts(&output);
    let lines: Vec<_> = out.lines().collect();
    assert!(output.status.success() && err.is_empty() && lines.len() == 4, "{output:?}");
    assert!(lines[0].starts_with(own.to_str().unwrap()) && lines[0].ends_with("/libraries"), "{out}");
    assert_eq!(lines[1..3], ["VERBS_SOFT libibverbs.so.1", "locked"]);
    let ours = place.root.join("lib/verbs-run");
    assert_eq!(lines[3], format!("{}:{}", lines[0], ours.display()));
    // If the command cannot be executed, no folder remains.
    let arguments = ["--no-namespace", "--scan", &scan, "no-such-command"];
    let before = fs::read_dir(&own).unwrap().count();
    assert_eq!(run(place.verbs_run(&arguments).env("XDG_RUNTIME_DIR", &own)).status.code(), Some(127));
    assert_eq!(fs::read_dir(&own).unwrap().count(), before);
    Ok(())
}

fn nested(place: &Place) -> Result<(), Skip> {
    let program = place.root.join("bin/verbs-run").display().to_string();
    let script = format!(
        "{program} --soft=127.77.77.2 sh -c 'ls /sys/class/infiniband /dev/infiniband | wc -l
         cat /sys/class/infiniband/*/ports/1/gids/0'"
    );
    // There are two header lines, a blank line and two names.
    let outer = place.script(&["--soft=127.77.77.1,127.77.77.3"], "ls /dev/infiniband | wc -l")?;
    let kernels = outer.trim().parse::<usize>().unwrap() - 2;
    let expected = format!("{}\n0000:0000:0000:0000:0000:ffff:7f4d:4d02\n", 5 + 2 * kernels);
    if kernels > 0 {
        return Err(Skip("this machine has RDMA devices".into()));
    }
    assert_eq!(place.script(&["--soft=127.77.77.1,127.77.77.3"], &script)?, expected);
    Ok(())
}

fn kernel_devices_stay(place: &Place) -> Result<(), Skip> {
    place.needs_namespaces()?;
    if place.user.is_some() || !nix::unistd::geteuid().is_root() {
        return Err(Skip("only root can play the kernel's devices".into()));
    }
    // A kernel's RDMA device as in sysfs, in this script's mount namespace.
    let script = "
        set -e
        mount -t tmpfs kernel /sys/class
        cd /sys/class
        mkdir infiniband infiniband_verbs
        ln -s ../../devices/virtual/net/lo infiniband/mlx5_0
        echo 6 > infiniband_verbs/abi_version
        mkdir infiniband_verbs/uverbs4
        echo mlx5_0 > infiniband_verbs/uverbs4/ibdev
        mount -t tmpfs kernel /dev
        mkdir -p /dev/infiniband
        touch /dev/infiniband/uverbs4 /dev/infiniband/rdma_cm /dev/null
        mount --bind /dev/infiniband/rdma_cm /dev/null
        exec \"$0\" sh -c '
            cd /sys/class
            echo infiniband/* infiniband_verbs/* /dev/infiniband/*
            cat infiniband_verbs/uverbs4/ibdev infiniband_verbs/uverbs5/ibdev
            realpath infiniband/mlx5_0'
    ";
    let mut command = place.command("unshare");
    command.args(["-m", "sh", "-c", script]).arg(place.root.join("bin/verbs-run"));
    let output = run(&mut command);
    let expected = "infiniband/mlx5_0 infiniband/soft0 infiniband_verbs/abi_version infiniband_verbs/uverbs4 \
                    infiniband_verbs/uverbs5 /dev/infiniband/rdma_cm /dev/infiniband/uverbs4 \
                    /dev/infiniband/uverbs5\nmlx5_0\nsoft0\n/sys/devices/virtual/net/lo\n";
    assert_eq!(texts(&output), (expected.to_owned(), String::new()));
    Ok(())
}

fn no_soft(place: &Place) -> Result<(), Skip> {
    let output = run(place
        .verbs_run(&["--no-soft", "sh", "-c", "ls -d /sys/class/infiniband/soft0; echo ${VERBS_SOFT-unset}"])
        .env("VERBS_SOFT", "auto"));
    assert_eq!(texts(&output).0, "unset\n");
    let output =
        run(&mut place.verbs_run(&["--no-namespace", "sh", "-c", "echo $VERBS_SOFT $LD_LIBRARY_PATH"]));
    let ours = place.root.join("lib/verbs-run");
    assert_eq!(texts(&output), (format!("auto {}\n", ours.display()), String::new()));
    Ok(())
}

fn an_address_is_reported(place: &Place) -> Result<(), Skip> {
    place.needs_namespaces()?;
    let output =
        run(&mut place.verbs_run(&["--soft=192.0.2.1,127.77.77.77", "ls", "/sys/class/infiniband/"]));
    let (out, err) = texts(&output);
    assert!(out.lines().any(|line| line == "soft1") && !out.contains("soft0"), "{out}");
    assert!(err.lines().count() == 1 && err.contains("192.0.2.1 is not an address of this machine"), "{err}");
    let checked = run(&mut place.verbs_run(&["--check", "--soft=192.0.2.1,127.77.77.77"]));
    assert_eq!((checked.status.code(), texts(&checked).1), (Some(1), err));
    Ok(())
}

/// Checks the output of a program that `verbs-run` runs without devices in `/sys`.
#[track_caller]
fn check_refused(output: &Output, user: Option<u32>, words: &[&str]) {
    let (out, err) = texts(output);
    let user = user.unwrap_or_else(|| nix::unistd::geteuid().as_raw());
    assert_eq!((out, output.status.code()), (format!("{user} auto\n"), Some(7)), "{err}");
    assert!(err.starts_with("verbs-run: ") && err.lines().count() == 1, "{err}");
    for word in [&["/sys/class/infiniband", "UCX"], words].concat() {
        assert!(err.contains(word), "{word}: {err}");
    }
}

/// Prints the user and the devices.
const SHOW: &str = "echo $(id -u) $VERBS_SOFT; exit 7";

fn refused_namespace(place: &Place) -> Result<(), Skip> {
    // Docker's profile makes unshare fail with EPERM.
    let output = place.forbidding(libc::SYS_unshare, libc::EPERM, &[], SHOW);
    check_refused(&output, place.user, &["user namespace", "seccomp"]);
    let output = place.forbidding(libc::SYS_unshare, libc::EPERM, &["--check"], SHOW);
    assert_eq!((output.status.code(), texts(&output).1.lines().count()), (Some(1), 1), "{output:?}");
    let output = place.forbidding(libc::SYS_unshare, libc::EPERM, &["--no-namespace"], SHOW);
    assert_eq!(texts(&output).1, "");
    Ok(())
}

fn refused_mounts(place: &Place) -> Result<(), Skip> {
    place.needs_namespaces()?;
    // With Ubuntu's restriction, the namespace exists, but mounts fail with EACCES.
    let output = place.forbidding(libc::SYS_mount, libc::EACCES, &[], SHOW);
    check_refused(&output, place.user, &["mounts"]);
    Ok(())
}

fn limit_of_zero(place: &Place) -> Result<(), Skip> {
    place.needs_namespaces()?;
    let script = "
        echo 0 > /proc/sys/user/max_user_namespaces || exit 77
        exec setpriv --bounding-set -all --inh-caps -all \"$0\" sh -c 'echo $(id -u) $VERBS_SOFT; exit 7'
    ";
    let mut command = place.command("unshare");
    command.args(["--user", "--map-root-user", "sh", "-c", script]).arg(place.root.join("bin/verbs-run"));
    let output = run(&mut command);
    if matches!(output.status.code(), Some(77 | 1)) {
        return Err(Skip(format!("no user namespace with a limit: {}", texts(&output).1)));
    }
    check_refused(&output, Some(0), &["user.max_user_namespaces is 0"]);
    Ok(())
}

/// Makes a system call fail in this process and in the programs that it executes.
fn forbid_call(call: u32, errno: u32) {
    let statement = |code, k| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let mut filter = [
        // The number is the first field of `seccomp_data`.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        libc::sock_filter { jf: 1, ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call) },
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | errno),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    nix::sys::prctl::set_no_new_privs().unwrap();
    // SAFETY: the filter and its length belong together and live until the call returns.
    let done = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// The argument for forbidding a system call and executing another program.
const FORBID: &str = "--forbid";

/// The id of a user without special rights.
const PLAIN_USER: u32 = 65533;
