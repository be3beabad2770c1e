//! `faults`: how programs, the driver and the kernel react to a failing device. The control channel
//! injects the faults.
//!
//! Small pyverbs programs (`faults.py`) print their observations, which the cases check. The last
//! case breaks the device. The [removal] of a device runs after all other cases.
//!
//! [removal]: removal

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use verbs::{Cause, Context, CqInit, Errno};
use verbs_fixtures::control::Control;
use verbs_fixtures::fabric;
use verbs_fixtures::functions::{Port, Setup, address, device, read_sysfs, sysfs};
use verbs_fixtures::with_named;
use verbs_harness::process::{self, Finished, Running};
use verbs_harness::runner::{self, Case, CaseResult, Stop, fail, skip};
use verbs_harness::sandbox::ip;
use verbs_harness::tools::{LIMIT, Maker, is_linked};

use super::commands::{self, STATUSES};
use super::live;

const SUITE: &str = "faults";

const SCRIPT: &str = include_str!("faults.py");

/// The time limit for the driver to detect a dead device: it polls every two seconds and needs
/// several failed polls.
const DYING: Duration = Duration::from_secs(100);

/// Returns the suite's cases.
pub fn cases(setup: Setup) -> Vec<Case> {
    let one = |name: &str, run: fn(Setup) -> CaseResult| Case::new(SUITE, name, move || run(setup));
    vec![
        one("a port that goes down and up changes sysfs and sends events", port),
        one("the status of a command becomes an errno", commands),
        one("our API tells a failed command from a device that has failed", our_command),
        one("a failed command leaves what was there, and the call succeeds later", failed_commands),
        one("a failed command fails C's ping-pong", ping_pong),
        one("the syndrome of a completion becomes a status", completions),
        one("a held event arrives when it is released", held),
        one("an overrun of a completion queue is reported to its owner", overrun),
        one("a device failure is reported to its users, and the device recovers", fatal)
            .within(4 * DYING + LIMIT),
    ]
}

/// Returns the case that removes function 0, which does not come back.
pub fn removal() -> Vec<Case> {
    const NAME: &str = "removal of a function ends its users' calls, and harms no other program";
    vec![Case::new(SUITE, NAME, removed).within(4 * DYING + LIMIT)]
}

/// Runs one of the small programs and returns its lines.
fn program(setup: Setup, name: &str) -> CaseResult<Vec<String>> {
    lines(name, start(setup, name)?)
}

/// Starts one of the small programs.
fn start(setup: Setup, name: &str) -> CaseResult<Running> {
    let script = PathBuf::from(format!("/tmp/faults-{}.py", std::process::id()));
    fs::write(&script, SCRIPT)?;
    let gid = setup.usual_gid(0)?.unwrap_or(0).to_string();
    let mut python = Command::new("/usr/bin/python3");
    python.arg(&script).args([name, &*device(0), &*setup.port.to_string(), &*gid]);
    Maker::Theirs.prepare(&mut python)?;
    Ok(Running::start(&mut python)?)
}

/// Waits until one of the small programs ends and returns its lines.
fn lines(name: &str, program: Running) -> CaseResult<Vec<String>> {
    match program.finish(LIMIT)? {
        Ok(ended) if ended.status.success() => Ok(ended.stdout.lines().map(str::to_owned).collect()),
        Ok(ended) if ended.stderr.contains("No module named 'pyverbs'") => {
            skip("pyverbs is not installed (package python3-pyverbs)")
        }
        Ok(Finished { status, stdout, stderr }) | Err(Finished { status, stdout, stderr }) => {
            fail(format_args!("{name} ended with {status}: {stderr}; it printed {stdout:?}"))
        }
    }
}

/// Compares lines with the expected lines and reports each as a part.
fn tell_lines(what: &str, said: &[String], wanted: &[String]) -> CaseResult {
    for (line, wanted) in said.iter().zip(wanted) {
        let verdict =
            if line == wanted { Ok(()) } else { fail(format_args!("{line:?} rather than {wanted:?}")) };
        let name = wanted.split(' ').take(2).collect::<Vec<_>>().join(" ");
        let library = if is_linked() { "c_abi." } else { "" };
        runner::part(format_args!("{library}{SUITE}.{what} {name}"), verdict);
    }
    if said.len() == wanted.len() {
        Ok(())
    } else {
        fail(format_args!("{} lines rather than {}", said.len(), wanted.len()))
    }
}

fn port(_: Setup) -> CaseResult {
    let mut control = Control::open()?;
    let state_is = |wanted: &str| {
        let is_it = || read_sysfs(0, "ports/1/state").is_ok_and(|state| state.ends_with(wanted));
        if process::wait_until(LIMIT, is_it) {
            return Ok(());
        }
        fail(format_args!("the port is {:?} rather than {wanted}", read_sysfs(0, "ports/1/state")))
    };
    let asyncwatch = Maker::Theirs.tool("ibv_asyncwatch")?;
    // With a pipe, the program would buffer its output until it exits, which it never does.
    let mut watch = Command::new("stdbuf");
    watch.arg("-oL").arg(asyncwatch.get_program()).args(["-d", &device(0)]);
    Maker::Theirs.prepare(&mut watch)?;
    let mut watch = Running::start(&mut watch)?;
    let mut said = |text: &str| {
        if watch.wait_for_output(LIMIT, |all| all.contains(text)) {
            return Ok(());
        }
        fail(format_args!("ibv_asyncwatch does not print {text:?}"))
    };
    let seen = (|| {
        said("async event FD")?;
        control.say("port down")?;
        state_is("DOWN")?;
        said("IBV_EVENT_PORT_ERR (10), port 1")
    })();
    // Brings the port up even after a failure, because later cases need it.
    control.say("port up")?;
    seen?;
    state_is("ACTIVE")?;
    said("IBV_EVENT_PORT_ACTIVE (9), port 1")
}

fn commands(setup: Setup) -> CaseResult {
    let mut wanted: Vec<_> = STATUSES.iter().map(|(status, errno)| format!("{status:#x} {errno}")).collect();
    wanted.push("after 0".to_owned());
    tell_lines("command status", &program(setup, "commands")?, &wanted)
}

fn our_command(_: Setup) -> CaseResult {
    let context = fabric::open()?;
    let pd = context.alloc_pd()?;
    // Newer drivers send additional commands with the first object of a kind.
    drop(context.create_cq(&CqInit::new(1))?);
    let max = context.query_device()?.max_cq.into();
    for (status, errno, wanted) in [
        (0x1, Errno::IO, Cause::CommandFailed),
        (0x51, Errno::IO, Cause::CommandFailed),
        (0x8, Errno::NOMEM, Cause::Shortage { what: "completion queues", max }),
    ] {
        Control::tell(&format!("command opcode=CREATE_CQ status={status:#x}"))?;
        let Err(error) = context.create_cq(&CqInit::new(1)) else { return fail("the command succeeds") };
        if (error.errno, &error.cause) != (errno, &wanted) {
            return fail(format_args!("{error} rather than {wanted:?} after the status {status:#x}"));
        }
    }
    // The device still works.
    drop(context.create_cq(&CqInit::new(1))?);
    Ok(pd.close()?)
}

/// Queries the device until the kernel has detached it from the context. Until then, each failure
/// must say that the device has failed.
fn until_gone(context: &Context) -> CaseResult {
    let mut seen: Vec<verbs::Error> = Vec::new();
    let gone = process::wait_until(DYING, || {
        let Err(error) = context.query_port(fabric::PORT) else { return false };
        let is_gone = error.cause == Cause::DeviceGone;
        if seen.last() != Some(&error) {
            seen.push(error);
        }
        is_gone
    });
    seen.iter().for_each(|error| println!("{error}"));
    let is_wrong = |error: &&verbs::Error| !matches!(error.cause, Cause::DeviceFailed | Cause::DeviceGone);
    if let Some(error) = seen.iter().find(is_wrong) {
        return fail(format_args!("{error} of a device that has failed"));
    }
    if !gone {
        return fail(format_args!("the device is not gone: {seen:?}"));
    }
    match context.alloc_pd() {
        Err(error) if (error.errno, &error.cause) == (Errno::IO, &Cause::DeviceGone) => Ok(()),
        other => fail(format_args!("{other:?} rather than an error of a device that is gone")),
    }
}

fn failed_commands(setup: Setup) -> CaseResult {
    // The guest with the other type of port runs the other form of the API.
    match setup.port {
        Port::Ib => commands::leave_what_was_there(&fabric::open()?),
        Port::Roce => with_named!(fabric::open_named()?, |context| commands::leave_what_was_there(&context)),
    }
}

fn ping_pong(_: Setup) -> CaseResult {
    let run = || -> CaseResult<_> {
        let mut tool = Maker::Theirs.tool("ibv_rc_pingpong")?;
        Ok(process::run(tool.args(["-d", &device(0), "-g", "0", "127.0.0.1"]), LIMIT)?)
    };
    // Newer drivers create an internal queue pair with the first memory region; the fault must not
    // hit it.
    match run()? {
        Ok(end) if end.stderr.contains("Couldn't connect") => {}
        end => return fail(format_args!("before the fault: {end:?}")),
    }
    Control::tell("command opcode=CREATE_QP status=0x8")?;
    match run()? {
        Ok(end) if end.status.code() == Some(1) && end.stderr.contains("Couldn't create QP") => Ok(()),
        end => fail(format_args!("{end:?}")),
    }
}

fn completions(setup: Setup) -> CaseResult {
    /// The values of `IBV_WC_WR_FLUSH_ERR` and `IBV_QPS_ERR`.
    const AFTER: &str = "5 6";
    // Syndromes, each with the value of its enum ibv_wc_status.
    const SENDS: &[(u8, u8)] = &[
        (0x01, 1),
        (0x02, 2),
        (0x04, 4),
        (0x05, 5),
        (0x06, 6),
        (0x10, 7),
        (0x11, 8),
        (0x12, 9),
        (0x13, 10),
        (0x14, 11),
        (0x15, 12),
        (0x16, 13),
        (0x22, 16),
    ];
    const RECEIVES: &[(u8, u8)] = &[(0x01, 1), (0x04, 4), (0x05, 5), (0x11, 8), (0x12, 9), (0x14, 11)];
    let sends = SENDS.iter().map(|(syndrome, status)| format!("send {syndrome:#x} {status} 0x5a {AFTER}"));
    let receives =
        RECEIVES.iter().map(|(syndrome, status)| format!("recv {syndrome:#x} {status} 0xa5 {AFTER}"));
    let wanted: Vec<_> = sends.chain(receives).collect();
    tell_lines("completion of", &program(setup, "completions")?, &wanted)
}

fn held(setup: Setup) -> CaseResult {
    let said = program(setup, "held")?;
    let wanted = ["completed yes", "event-while-held no", "event-after-release yes", "event-at-once yes"];
    if said == wanted { Ok(()) } else { fail(format_args!("{said:?} rather than {wanted:?}")) }
}

fn overrun(setup: Setup) -> CaseResult {
    /// The value of `IBV_EVENT_CQ_ERR`.
    const WANTED: &str = "event 0";
    let said = program(setup, "overrun")?;
    if said == [WANTED] { Ok(()) } else { fail(format_args!("{said:?} rather than {WANTED:?}")) }
}

fn fatal(setup: Setup) -> CaseResult {
    /// The last number is the value of `IBV_EVENT_DEVICE_FATAL`.
    const WANTED: [&str; 2] = ["ready", "event 8"];
    let mut program = start(setup, "fatal")?;
    if !program.wait_for_output(LIMIT, |said| said.starts_with(WANTED[0])) {
        return lines("fatal", program).and_then(|said| fail(format_args!("it printed {said:?}")));
    }
    // The kernel removes the device. The driver then resets it and restarts it as a new device with
    // the same name.
    live::while_it_dies(DYING, || Control::tell("fatal").map(drop), || Ok(()))?;
    let said = lines("fatal", program)?;
    if said != WANTED {
        return fail(format_args!("{said:?} rather than {WANTED:?}"));
    }
    // On InfiniBand, the port becomes active by itself. On Ethernet, the new netdev must be set up.
    let mut is_set_up = setup.port == Port::Ib;
    let mut is_back = || {
        if !is_set_up {
            is_set_up = set_up_netdev().is_ok();
        }
        is_set_up
            && read_sysfs(0, "ports/1/state").is_ok_and(|now| now.ends_with("ACTIVE"))
            && setup.usual_gid(0).is_ok()
            && fabric::open().is_ok()
    };
    if !process::wait_until(DYING, &mut is_back) {
        let state = read_sysfs(0, "ports/1/state");
        return fail(format_args!("the device does not recover: its port is {state:?}"));
    }
    let devinfo = process::run(Maker::Theirs.tool("ibv_devinfo")?.args(["-d", &device(0)]), LIMIT)?;
    if !devinfo.as_ref().is_ok_and(|end| end.status.success()) {
        return fail(format_args!("{devinfo:?}"));
    }
    live::works()
}

/// Gives the first function's netdev its address.
fn set_up_netdev() -> CaseResult {
    let Some(netdev) = fs::read_dir(sysfs(0, "device/net"))?.next() else { return fail("no netdev") };
    let netdev = netdev?.file_name();
    let netdev = netdev.to_string_lossy();
    ip(&["link", "set", &netdev, "up"])?;
    ip(&["addr", "add", &format!("{}/24", address(0)), "dev", &netdev])
}

fn removed() -> CaseResult {
    let ours = fabric::open()?;
    let function = fs::canonicalize(sysfs(0, "device"))?;
    let unplug = || {
        // Removes the function as the driver of an empty slot would. The write returns once the
        // function is gone.
        let mut write = Command::new("sh");
        write.args(["-c", "echo 1 >\"$0/remove\""]).arg(&function);
        match process::run(&mut write, DYING)? {
            Ok(end) if end.status.success() => Ok(()),
            end => fail(format_args!("the removal of {}: {end:?}", function.display())),
        }
    };
    live::while_it_dies(DYING, || Control::tell("remove").map(drop), unplug)?;
    if verbs::devices()?.find(&device(0)).is_ok() {
        return fail("a function that was removed is listed");
    }
    // Programs that use it must fail rather than hang.
    let ended = process::run(
        Maker::Theirs.tool("ibv_rc_pingpong")?.args(["-d", &device(0), "-g", "0", "127.0.0.1"]),
        DYING,
    )?;
    match ended {
        Ok(end) if !end.status.success() => until_gone(&ours),
        end => Err(Stop::Failed(format!("{end:?}"))),
    }
}
