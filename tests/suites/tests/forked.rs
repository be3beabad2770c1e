//! Functions in child processes. Runs without a harness, because a process with threads cannot
//! fork.

use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Command;
use std::thread;
use std::time::Duration;

use nix::unistd::{Pid, getpgrp};
use verbs_harness::forked::{Group, run_group, wait_for_any};
use verbs_harness::process::{Finished, wait_until};

const LONG: Duration = Duration::from_secs(60);

fn main() {
    let checks: [(&str, fn()); 8] = [
        ("output and status come back", output_and_status_come_back),
        ("more output than a pipe holds is read", more_output_than_a_pipe_holds_is_read),
        ("closed output is no end", closed_output_is_no_end),
        ("a signal is the status", a_signal_is_the_status),
        ("a child that outlives its limit is killed", a_child_that_outlives_its_limit_is_killed),
        ("a group is killed with its leader's end", a_group_is_killed_with_its_leaders_end),
        ("several groups end in their own order", several_groups_end_in_their_own_order),
        ("a process with threads is refused", a_process_with_threads_is_refused),
    ];
    for (name, check) in checks {
        check();
        println!("ok {name}");
    }
    println!("{} passed, 0 failed, 0 skipped", checks.len());
}

fn ended(run: impl FnOnce() -> u8) -> Finished {
    run_group(run, LONG).unwrap().unwrap()
}

fn output_and_status_come_back() {
    let mut variable = 1;
    let finished = ended(|| {
        variable += 1;
        println!("out {variable} {}", getpgrp() == Pid::this());
        eprintln!("err");
        3
    });
    assert_eq!(finished.status.code(), Some(3));
    assert_eq!((&*finished.stdout, &*finished.stderr), ("out 2 true\n", "err\n"));
    assert_eq!(variable, 1, "the child has memory of its own");
}

fn more_output_than_a_pipe_holds_is_read() {
    let finished = ended(|| u8::from(std::io::stdout().write_all(&[b'x'; 1_000_000]).is_err()));
    assert_eq!((finished.status.code(), finished.stdout.len()), (Some(0), 1_000_000));
}

fn closed_output_is_no_end() {
    let finished = ended(|| {
        let _ = nix::unistd::dup2_stdout(std::fs::File::open("/dev/null").unwrap());
        let _ = nix::unistd::dup2_stderr(std::fs::File::open("/dev/null").unwrap());
        Command::new("true").status().map_or(1, |status| if status.success() { 7 } else { 2 })
    });
    assert_eq!(finished.status.code(), Some(7));
}

fn a_signal_is_the_status() {
    let finished = ended(|| {
        nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL).unwrap();
        0
    });
    assert_eq!(finished.status.signal(), Some(libc::SIGKILL));
}

fn a_child_that_outlives_its_limit_is_killed() {
    let killed = run_group(
        || {
            println!("started");
            loop {
                thread::park();
            }
        },
        Duration::from_millis(200),
    );
    let killed = killed.unwrap().unwrap_err();
    assert_eq!((killed.status.signal(), &*killed.stdout), (Some(libc::SIGKILL), "started\n"));
}

fn a_group_is_killed_with_its_leaders_end() {
    let finished = ended(|| {
        let shell = Command::new("sh").args(["-c", "sleep 1000 & echo $!"]).status().unwrap();
        u8::from(!shell.success())
    });
    let pid: u32 = finished.stdout.trim().parse().unwrap();
    let is_gone = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
        // A dead process counts as gone even before its new parent reaps it.
        stat.map_or(true, |stat| stat.contains(") Z "))
    };
    assert!(wait_until(LONG, is_gone));
}

fn a_process_with_threads_is_refused() {
    thread::scope(|scope| {
        let other = scope.spawn(thread::park);
        assert!(run_group(|| 0, LONG).is_err());
        other.thread().unpark();
    });
}

fn several_groups_end_in_their_own_order() {
    let long = || loop {
        thread::park();
    };
    let mut groups = vec![
        Group::start(long, Duration::from_millis(200)).unwrap(),
        Group::start(|| u8::from(std::io::stdout().write_all(&[b'x'; 1_000_000]).is_err()), LONG).unwrap(),
    ];
    assert_eq!(wait_for_any(&mut groups).unwrap(), 1);
    let written = groups.remove(1).finish().unwrap().unwrap();
    assert_eq!((written.status.code(), written.stdout.len()), (Some(0), 1_000_000));
    assert_eq!(wait_for_any(&mut groups).unwrap(), 0);
    assert!(groups.remove(0).finish().unwrap().is_err(), "killed at its limit");
}
