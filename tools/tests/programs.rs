//! The programs on the command line: misuse, and a machine without RDMA.
//!
//! `recorded` holds the output of rdma-core 44. The output of `ibv_asyncwatch` and all ping-pongs
//! except `ibv_rc_pingpong` comes from the sources of rdma-core 65. Each test states where newer
//! versions differ.

mod common;

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

const ASYNCWATCH: &str = env!("CARGO_BIN_EXE_ibv_asyncwatch");
const DEVICES: &str = env!("CARGO_BIN_EXE_ibv_devices");
const DEVINFO: &str = env!("CARGO_BIN_EXE_ibv_devinfo");
const PINGPONG: &str = env!("CARGO_BIN_EXE_ibv_rc_pingpong");
const UC_PINGPONG: &str = env!("CARGO_BIN_EXE_ibv_uc_pingpong");
const UD_PINGPONG: &str = env!("CARGO_BIN_EXE_ibv_ud_pingpong");
const SRQ_PINGPONG: &str = env!("CARGO_BIN_EXE_ibv_srq_pingpong");
const XSRQ_PINGPONG: &str = env!("CARGO_BIN_EXE_ibv_xsrq_pingpong");

/// Returns the exit status, standard output and standard error of a program named `prog`.
fn run(program: &str, args: &[impl AsRef<OsStr>]) -> (Option<i32>, String, String) {
    let mut command = Command::new(program);
    command.arg0("prog").args(args).env_remove("POSIXLY_CORRECT").env_remove("VERBS_SOFT");
    let output = common::run(command.stdin(Stdio::null()).stdout(Stdio::piped()));
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// Returns a recorded text in the newer wording, with `prog` as the program's name.
fn usage(recorded: &str, name: &str, newer: &[(&str, &str)]) -> String {
    newer.iter().fold(recorded.replace(name, "prog"), |text, (old, new)| {
        assert!(text.contains(old), "{old:?} is not in the recorded text");
        text.replace(old, new)
    })
}

fn devinfo_usage() -> String {
    let newer = [("(default first device found)", "(default all devices)")];
    usage(include_str!("recorded/ibv_devinfo-usage.txt"), "ibv_devinfo", &newer)
}

fn pingpong_usage() -> String {
    let last = "  -N, --new_send            use new post send WR API\n";
    let more = "  -U, --allow-cc-unprotected  allow allocation of unprotected/shared\n                            \
                memory on CoCo guests\n";
    let newer = [(last, &*format!("{last}{more}"))];
    usage(include_str!("recorded/ibv_rc_pingpong-usage.txt"), "ibv_rc_pingpong", &newer)
}

fn uc_usage() -> String {
    usage(include_str!("recorded/ibv_uc_pingpong-usage.txt"), "ibv_uc_pingpong", &[])
}

fn ud_usage() -> String {
    usage(include_str!("recorded/ibv_ud_pingpong-usage.txt"), "ibv_ud_pingpong", &[])
}

fn srq_usage() -> String {
    usage(include_str!("recorded/ibv_srq_pingpong-usage.txt"), "ibv_srq_pingpong", &[])
}

fn xsrq_usage() -> String {
    usage(include_str!("recorded/ibv_xsrq_pingpong-usage.txt"), "ibv_xsrq_pingpong", &[])
}

#[test]
fn srq_and_xsrq_pingpong_answer_misuse_with_gnus_complaint_and_their_own_usage() {
    for (program, usage) in [(SRQ_PINGPONG, srq_usage()), (XSRQ_PINGPONG, xsrq_usage())] {
        for (args, complaint) in [
            (&["-h"][..], "prog: invalid option -- 'h'\n"),
            (&["--verify"], "prog: unrecognized option '--verify'\n"),
            (&["--od=1"], "prog: option '--odp' doesn't allow an argument\n"),
            (&["--s=1"], "prog: option '--s=1' is ambiguous; possibilities: '--size' '--sl'\n"),
            (&["-p", "70000"], ""),
            (&["-i", "-1"], ""),
            (&["-m", "1000"], ""),
            (&["one", "two"], ""),
        ] {
            assert_eq!(run(program, args), (Some(1), usage.clone(), complaint.into()), "{program} {args:?}");
        }
    }
    assert_eq!(run(SRQ_PINGPONG, &["-s", "0"]), (Some(1), srq_usage(), String::new()));
    let too_small = "rx_depth 3 is too small for 16 QPs -- must have at least one receive per QP.\n";
    assert_eq!(run(SRQ_PINGPONG, &["-r", "3"]), (Some(1), String::new(), too_small.into()));
}

#[test]
fn uc_and_ud_pingpong_answer_misuse_with_gnus_complaint_and_their_own_usage() {
    for (program, usage) in [(UC_PINGPONG, uc_usage()), (UD_PINGPONG, ud_usage())] {
        for (args, complaint) in [
            (&["-h"][..], "prog: invalid option -- 'h'\n"),
            (&["--odp"], "prog: unrecognized option '--odp'\n"),
            (&["-N"], "prog: invalid option -- 'N'\n"),
            (&["-p", "70000"], ""),
            (&["-i", "0"], ""),
            (&["one", "two"], ""),
        ] {
            assert_eq!(run(program, args), (Some(1), usage.clone(), complaint.into()), "{program} {args:?}");
        }
    }
    assert_eq!(run(UC_PINGPONG, &["-m", "1000"]), (Some(1), uc_usage(), String::new()));
    let no_mtu = "prog: invalid option -- 'm'\n".to_owned();
    assert_eq!(run(UD_PINGPONG, &["-m", "1024"]), (Some(1), ud_usage(), no_mtu));
}

#[test]
fn asyncwatch_prints_its_usage_for_help_and_for_misuse() {
    let usage = usage(include_str!("recorded/ibv_asyncwatch-usage.txt"), "ibv_asyncwatch", &[]);
    for args in ["-h", "--help", "--he"] {
        assert_eq!(run(ASYNCWATCH, &[args]), (Some(0), usage.clone(), String::new()), "{args}");
    }
    let complaint = "prog: invalid option -- 'x'\n".to_owned();
    assert_eq!(run(ASYNCWATCH, &["-x"]), (Some(1), usage, complaint));
}

#[test]
fn devinfo_answers_misuse_with_gnus_complaint_and_the_usage() {
    for (args, complaint) in [
        (&["-h"][..], "prog: invalid option -- 'h'\n"),
        (&["--help"], "prog: unrecognized option '--help'\n"),
        (&["-v", "operand", "-zl"], "prog: invalid option -- 'z'\n"),
        (&["-d"], "prog: option requires an argument -- 'd'\n"),
        (&["--ib=x"], "prog: option '--ib=x' is ambiguous; possibilities: '--ib-dev' '--ib-port'\n"),
        (&["--list=3"], "prog: option '--list' doesn't allow an argument\n"),
        (&["--jso"], "prog: unrecognized option '--jso'\n"),
    ] {
        assert_eq!(run(DEVINFO, args), (Some(255), devinfo_usage(), complaint.into()), "{args:?}");
    }
}

#[test]
fn a_port_that_is_no_number_is_answered_with_the_usage_and_1() {
    for (port, warning) in [
        ("0", ""),
        ("-1", ""),
        ("x", "prog: -i x is not a 32-bit number and is read as 0\n"),
        ("", "prog: -i  is not a 32-bit number and is read as 0\n"),
    ] {
        assert_eq!(run(DEVINFO, &["-i", port]), (Some(1), devinfo_usage(), String::new()), "{port:?}");
        assert_eq!(run(PINGPONG, &["-i", port]), (Some(1), pingpong_usage(), warning.into()), "{port:?}");
    }
}

#[test]
fn pingpong_answers_misuse_with_gnus_complaint_and_the_usage() {
    let ambiguous =
        "prog: option '--i=3' is ambiguous; possibilities: '--ib-dev' '--ib-port' '--iters' '--iodp'\n";
    for (args, complaint) in [
        (&["-h"][..], "prog: invalid option -- 'h'\n"),
        (&["--i=3"], ambiguous),
        (&["-p", "70000"], ""),
        (&["-m", "1000"], ""),
        (&["one", "two"], ""),
    ] {
        assert_eq!(run(PINGPONG, args), (Some(1), pingpong_usage(), complaint.into()), "{args:?}");
    }
}

#[test]
fn pingpong_names_what_cannot_be_had_together() {
    for (args, complaint) in [
        ("-oj", "DM memory region can't be on demand\n"),
        ("-OU", "CoCo unprotected memory cannot be used with ODP\n"),
        ("-jU", "CoCo unprotected memory cannot be used with device memory\n"),
        ("-P", "prefetch is valid only with on-demand memory region\n"),
    ] {
        assert_eq!(run(PINGPONG, &[args]), (Some(1), String::new(), complaint.into()), "{args}");
    }
}

/// Returns whether RDMA is loaded in this kernel.
fn has_rdma() -> bool {
    fs::exists("/sys/class/infiniband_verbs").is_ok_and(|has| has)
}

#[test]
fn a_kernel_without_rdma_is_said_as_c_says_it_and_then_what_to_do() {
    let expected = "Failed to get IB devices list: Function not implemented\n\
                    prog: this kernel has no RDMA loaded: modprobe ib_uverbs and the device's driver, or set \
                    VERBS_SOFT=auto for a device over UDP that needs neither\n";
    for (program, args, status) in [
        (DEVICES, &[][..], 1),
        (DEVICES, &["--json"], 1),
        (DEVICES, &["ignored", "-z"], 1),
        (DEVINFO, &[], 255),
        (DEVINFO, &["-l", "-z"], 255),
        (DEVINFO, &["-d", "rxe0", "-v"], 255),
        (PINGPONG, &["-d", "nope"], 1),
        (UC_PINGPONG, &["-d", "nope"], 1),
        (UD_PINGPONG, &["-d", "nope"], 1),
        (SRQ_PINGPONG, &["-d", "nope"], 1),
        (XSRQ_PINGPONG, &["-d", "nope"], 1),
        (ASYNCWATCH, &["-d", "nope"], 1),
    ] {
        if has_rdma() {
            // With RDMA loaded, listing devices does not fail.
            let (_, _, complaint) = run(program, args);
            assert!(!complaint.contains("Failed to get IB devices list"), "{program} {args:?}: {complaint}");
        } else {
            let seen = run(program, args);
            let mut expected = expected.to_owned();
            if program == XSRQ_PINGPONG {
                // The program's first message lacks a line break.
                expected = expected.replacen(": Function not implemented", "Failed to open device", 1);
            }
            assert_eq!(seen, (Some(status), String::new(), expected), "{program} {args:?}");
        }
    }
}

#[test]
fn a_reader_that_went_away_ends_the_program_as_it_ends_cs() {
    let (reader, writer) = io::pipe().expect("a pipe");
    drop(reader);
    let output = common::run(Command::new(DEVINFO).arg("-h").stdin(Stdio::null()).stdout(writer));
    let complaint = String::from_utf8(output.stderr).expect("text");
    // 128 + SIGPIPE, without a message, which is a shell's report for the C program.
    assert_eq!(output.status.code(), Some(141), "{complaint}");
    assert_eq!(complaint, format!("{DEVINFO}: invalid option -- 'h'\n"));
}
