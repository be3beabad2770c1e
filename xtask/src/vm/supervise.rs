//! Follows a guest from boot to power-off: reads its streams, enforces its time limits, and kills
//! it if it does not end. QEMU itself ends when the kernel panics.
//!
//! ```text
//! Booting ──ready──► Running ──exit, signal, time is up──► Stopping ──streams end──► done
//!    └──too long, silent, failed: from any────────────────────┘  (given up: QEMU is killed)
//! ```
//!
//! The host keeps the time, because an emulated guest's clock can run at a different speed.
//!
//! No process crate (see [`crate::process`]) has a time limit for each of these states.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::qemu::Streams;
use crate::process::Process;
use crate::progress::say;

/// The way a guest ended.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Ended {
    /// The command ended, with this exit status for the caller.
    Status(u8),
    TimedOut,
    /// The VM failed, for this reason.
    Failed(String),
    /// The VM failed before process 1 had sent anything, for this reason.
    NeverUp(String),
}

/// Messages from the threads that read QEMU's streams to the main thread.
pub(super) enum Event {
    /// A line from the guest's process 1.
    Control(String),
    /// A stream has ended, as all do when QEMU ends.
    End,
    /// The device model has ended, although it should outlive QEMU.
    ModelEnded,
}

/// The number of streams that must end before the guest has ended: control, out and err.
const STREAMS: usize = 3;

/// Starts a thread for each stream, which reports to `send`. With `interactive`, our stdin becomes
/// the command's stdin.
pub(super) fn pump_streams(streams: &Streams, interactive: bool, send: &Sender<Event>) -> Result<()> {
    // Sending fails only once the guest is no longer followed.
    let (control, events) = (streams.control.try_clone()?, send.clone());
    thread::spawn(move || {
        for line in BufReader::new(control).lines().map_while(Result::ok) {
            let _ = events.send(Event::Control(line));
        }
        let _ = events.send(Event::End);
    });
    let outputs: [(_, Box<dyn Write + Send>); 2] =
        [(&streams.out, Box::new(std::io::stdout())), (&streams.err, Box::new(std::io::stderr()))];
    for (from, to) in outputs {
        let (from, events) = (from.try_clone()?, send.clone());
        thread::spawn(move || {
            copy_out(from, to);
            let _ = events.send(Event::End);
        });
    }
    if interactive {
        let mut input = streams.input.try_clone()?;
        thread::spawn(move || {
            let _ = std::io::copy(&mut std::io::stdin().lock(), &mut input);
            // When our stdin ends, so does the guest's.
            let _ = input.shutdown(std::net::Shutdown::Write);
        });
    }
    Ok(())
}

/// Copies the command's output. After an error on our side, reads and drops the rest, because the
/// guest must not block.
fn copy_out(mut from: impl Read, mut to: impl Write) {
    let (mut buffer, mut open) = (vec![0; 64 * 1024], true);
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        open = open && to.write_all(&buffer[..count]).and_then(|()| to.flush()).is_ok();
    }
}

/// The phase of a guest's life.
enum Phase {
    Booting,
    /// The command runs, until this time if there is a limit.
    Running(Option<Instant>),
    /// The command has ended, or is being killed.
    Stopping(Ended),
}

/// The time limit for a boot, which takes a minute under emulation on a busy host.
pub(super) const BOOT_LIMIT: Duration = Duration::from_secs(180);
/// The time limit for silence from process 1, which sends a line every [`super::guest::HEARTBEAT`].
const SILENCE_LIMIT: Duration = Duration::from_secs(90);
/// The time limit for a guest to end after its processes were killed.
const KILL_LIMIT: Duration = Duration::from_secs(30);
/// The time limit for powering off. Drivers unload; mlx5 destroys thousands of cached memory keys,
/// each with a command.
const POWER_OFF_LIMIT: Duration = Duration::from_secs(150);

/// Follows a guest until it ends, or kills it. Afterwards, QEMU is gone and every stream has been
/// read to its end. The two limits are for the boot and for the command.
pub(super) fn to_the_end(
    qemu: &mut Process,
    mut control: &UnixStream,
    events: &Receiver<Event>,
    (boot_limit, timeout): (Duration, Option<Duration>),
) -> Ended {
    let started = Instant::now();
    let (mut phase, mut limit) = (Phase::Booting, started + boot_limit);
    let (mut has_spoken, mut open) = (false, STREAMS);
    while open > 0 {
        let until = if let Phase::Running(Some(end)) = phase { limit.min(end) } else { limit };
        match events.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(Event::End) => open -= 1,
            Ok(Event::ModelEnded) => {
                // If QEMU ends first, at least one of its streams ends before the model notices.
                if open == STREAMS && !matches!(phase, Phase::Stopping(_)) {
                    qemu.kill();
                    let reason = "the ConnectX model ended while the guest ran".to_owned();
                    (phase, limit) = (Phase::Stopping(Ended::Failed(reason)), Instant::now() + KILL_LIMIT);
                }
            }
            Ok(Event::Control(line)) => {
                has_spoken = true;
                if line == "ready" {
                    say(&format!("up after {:.1} s", started.elapsed().as_secs_f64()));
                    phase = Phase::Running(timeout.and_then(|timeout| Instant::now().checked_add(timeout)));
                }
                phase = match (phase, verdict(&line)) {
                    (Phase::Stopping(ended), _) => Phase::Stopping(ended),
                    (_, Some(ended)) => {
                        limit = Instant::now() + POWER_OFF_LIMIT;
                        Phase::Stopping(ended)
                    }
                    (Phase::Running(end), None) => {
                        limit = Instant::now() + SILENCE_LIMIT;
                        Phase::Running(end)
                    }
                    (Phase::Booting, None) => Phase::Booting,
                };
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) if until < limit => {
                say("time is up, ending the command");
                // If this fails, the guest is gone and its streams end.
                let _ = control.write_all(b"kill\n");
                (phase, limit) = (Phase::Stopping(Ended::TimedOut), Instant::now() + POWER_OFF_LIMIT);
            }
            Err(RecvTimeoutError::Timeout) => {
                qemu.kill();
                (phase, limit) = (Phase::Stopping(gave_up(phase, boot_limit)), Instant::now() + KILL_LIMIT);
            }
        }
    }
    // The streams end only when QEMU does, so this does not take long.
    let _ = qemu.wait(Instant::now() + KILL_LIMIT);
    match phase {
        Phase::Stopping(ended) => ended,
        Phase::Booting if !has_spoken => {
            Ended::NeverUp("the guest ended before the command started".to_owned())
        }
        Phase::Booting => Ended::Failed("the guest ended before the command started".to_owned()),
        Phase::Running(_) => Ended::Failed("the guest ended before the command did".to_owned()),
    }
}

/// Returns how the command ended, if a control line from the guest reports that.
fn verdict(line: &str) -> Option<Ended> {
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    match (word, rest.trim().parse::<u8>()) {
        ("exit", Ok(status)) => Some(Ended::Status(status)),
        ("signal", Ok(signal)) => Some(Ended::Status(128u8.saturating_add(signal))),
        ("failed", _) => Some(Ended::Failed(format!("the guest could not be set up: {rest}"))),
        _ => None,
    }
}

/// Returns the result for a guest given up in this phase.
fn gave_up(phase: Phase, boot_limit: Duration) -> Ended {
    let [boot, silence, power_off] =
        [boot_limit, SILENCE_LIMIT, POWER_OFF_LIMIT].map(|limit| limit.as_secs());
    match phase {
        Phase::Booting => Ended::NeverUp(format!("the guest did not come up within {boot} s")),
        Phase::Running(_) => Ended::Failed(format!("the guest hangs: it has sent nothing for {silence} s")),
        Phase::Stopping(ended @ (Ended::NeverUp(_) | Ended::Failed(_))) => ended,
        Phase::Stopping(Ended::TimedOut) => Ended::Failed(format!(
            "the guest did not power off within {power_off} s of the command's time limit"
        )),
        Phase::Stopping(Ended::Status(_)) => {
            Ended::Failed(format!("the command ended, but the guest did not power off within {power_off} s"))
        }
    }
}

#[test]
fn control_lines_become_exit_statuses() {
    assert_eq!(verdict("exit 7"), Some(Ended::Status(7)));
    assert_eq!(verdict("signal 9"), Some(Ended::Status(137)));
    assert_eq!(verdict("exit rubbish"), None);
    assert!(matches!(verdict("failed x"), Some(Ended::Failed(text)) if text.contains('x')));
    assert_eq!(verdict("alive"), None);
}
