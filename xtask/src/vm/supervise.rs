//! Follows a guest from boot to power-off: reads its streams, keeps its time limits, kills it if it
//! does not end. QEMU itself ends when the kernel panics.
//!
//! ```text
//! Booting ──ready──► Running ──exit, signal──► Stopping ──streams end──► done
//!    │                  │ time is up: "kill"       ▲
//!    │                  ▼                          │
//!    │               Killing ──exit, signal────────┤
//!    └──too long, silent, failed: from any─────────┘  (given up: QEMU is killed)
//! ```

use std::io::{BufRead as _, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::Progress;
use super::qemu::{Qemu, Streams};

/// The end of a guest.
pub(super) enum Ended {
    /// The command ended; its exit status for the caller.
    Status(u8),
    TimedOut,
    /// The VM failed; the reason.
    Failed(String),
    /// The VM failed before process 1 had sent anything; the reason.
    NeverUp(String),
}

/// Messages from the threads that read QEMU's streams to the main thread.
pub(super) enum Event {
    /// A line from the guest's process 1.
    Control(String),
    /// One stream has ended, with QEMU.
    End,
    /// The device's model has ended; it should outlive QEMU.
    ModelEnded,
}

/// Streams that must end before the guest has ended: control, out and err.
const STREAMS: usize = 3;

/// Starts a thread for each stream, which reports to `send`. With `interactive`, our stdin is the
/// command's.
pub(super) fn pump_streams(streams: &Streams, interactive: bool, send: Sender<Event>) -> Result<()> {
    let (stream, events_of_control) = (streams.control.try_clone()?, send.clone());
    thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            let _ = events_of_control.send(Event::Control(line));
        }
        let _ = events_of_control.send(Event::End);
    });
    let (stream, done) = (streams.out.try_clone()?, send.clone());
    thread::spawn(move || copy_out(stream, std::io::stdout(), &done));
    let stream = streams.err.try_clone()?;
    thread::spawn(move || copy_out(stream, std::io::stderr(), &send));
    if interactive {
        let stream = streams.input.try_clone()?;
        thread::spawn(move || copy_in(stream));
    }
    Ok(())
}

/// Copies the command's output. After an error on our side the rest is read and dropped, because
/// the guest must not block.
fn copy_out(mut from: UnixStream, mut to: impl Write, done: &Sender<Event>) {
    let (mut buffer, mut open) = (vec![0; 64 * 1024], true);
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        open = open && to.write_all(&buffer[..count]).and_then(|()| to.flush()).is_ok();
    }
    let _ = done.send(Event::End);
}

/// Copies our stdin until its end, which the guest sees as the end of its own.
fn copy_in(mut to: UnixStream) {
    let mut stdin = std::io::stdin().lock();
    let _ = std::io::copy(&mut stdin, &mut to);
    let _ = to.shutdown(std::net::Shutdown::Write);
}

/// The phase of a guest's life, with the time at which the supervisor gives up.
enum Phase {
    Booting(Instant),
    Running(Option<Instant>),
    /// The time limit has passed, and the host has told process 1 to kill the command.
    Killing(Instant),
    /// The command has ended.
    Stopping(Ended, Instant),
}

/// The limit on a boot, which takes a minute under emulation on a busy host.
const BOOT_LIMIT: Duration = Duration::from_secs(180);
/// The limit on silence of process 1, which sends a line every [`super::guest::HEARTBEAT`].
const SILENCE_LIMIT: Duration = Duration::from_secs(90);
/// The limit on ending a command, or dying.
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// The limit on powering off: drivers unload, and that of mlx5 destroys thousands of cached memory
/// keys, with a command each.
const POWER_OFF_LIMIT: Duration = Duration::from_secs(150);

/// Follows a guest to its end, or kills it. Afterwards QEMU is gone and every stream has been read
/// to its end.
pub(super) fn to_the_end(
    qemu: &mut Qemu,
    control: &UnixStream,
    events: &Receiver<Event>,
    timeout: Option<Duration>,
    progress: &Progress,
    started: Instant,
) -> Ended {
    let mut phase = Phase::Booting(Instant::now() + BOOT_LIMIT);
    let mut last_heard = Instant::now();
    let mut has_spoken = false;
    let mut open = STREAMS;
    while open > 0 {
        let limit = match &phase {
            Phase::Booting(limit) | Phase::Killing(limit) | Phase::Stopping(_, limit) => *limit,
            Phase::Running(limit) => {
                let silent = last_heard + SILENCE_LIMIT;
                limit.map_or(silent, |limit| limit.min(silent))
            }
        };
        match events.recv_timeout(limit.saturating_duration_since(Instant::now())) {
            Ok(Event::End) => open -= 1,
            Ok(Event::ModelEnded) => {
                // If QEMU ends first, at least one of its streams ends before the model notices.
                if open == STREAMS && !matches!(phase, Phase::Stopping(..)) {
                    qemu.kill();
                    let reason = "the ConnectX model ended while the guest ran".to_owned();
                    phase = Phase::Stopping(Ended::Failed(reason), Instant::now() + STOP_LIMIT);
                }
            }
            Ok(Event::Control(line)) => {
                (last_heard, has_spoken) = (Instant::now(), true);
                let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
                if word == "ready" {
                    let took = started.elapsed().as_secs_f64();
                    progress.say(&format!("up after {took:.1} s"));
                    phase = Phase::Running(timeout.map(|t| Instant::now() + t));
                } else if let Some(ended) = verdict(word, rest, matches!(phase, Phase::Killing(_))) {
                    phase = Phase::Stopping(ended, Instant::now() + POWER_OFF_LIMIT);
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                let silent = last_heard.elapsed() >= SILENCE_LIMIT;
                phase = match phase {
                    Phase::Running(_) if !silent => {
                        let mut control = control;
                        // If this fails the guest is gone, and its streams end.
                        let _ = control.write_all(b"kill\n");
                        progress.say("time is up, ending the command");
                        Phase::Killing(Instant::now() + STOP_LIMIT)
                    }
                    other => {
                        qemu.kill();
                        Phase::Stopping(gave_up(other), Instant::now() + STOP_LIMIT)
                    }
                };
            }
        }
    }
    // The streams end only with QEMU, so this does not wait.
    let _ = qemu.wait();
    match phase {
        Phase::Stopping(ended, _) => ended,
        Phase::Booting(_) => {
            let reason = "the guest ended before the command started".to_owned();
            if has_spoken { Ended::Failed(reason) } else { Ended::NeverUp(reason) }
        }
        Phase::Running(_) | Phase::Killing(_) => {
            Ended::Failed("the guest ended before the command did".to_owned())
        }
    }
}

/// Returns the end of the command that a control line of the guest reports, if it reports one.
fn verdict(word: &str, rest: &str, killed: bool) -> Option<Ended> {
    let number = rest.trim().parse::<u8>();
    match (word, number) {
        ("exit" | "signal", Ok(_)) if killed => Some(Ended::TimedOut),
        ("exit", Ok(status)) => Some(Ended::Status(status)),
        ("signal", Ok(signal)) => Some(Ended::Status(128u8.saturating_add(signal))),
        ("failed", _) => Some(Ended::Failed(format!("the guest could not be set up: {rest}"))),
        _ => None,
    }
}

/// Returns the reason for giving up a guest in this phase.
fn gave_up(phase: Phase) -> Ended {
    let text = match phase {
        Phase::Booting(_) => {
            let limit = BOOT_LIMIT.as_secs();
            return Ended::NeverUp(format!("the guest did not come up within {limit} s"));
        }
        Phase::Running(_) => {
            format!("the guest hangs: it has sent nothing for {} s", SILENCE_LIMIT.as_secs())
        }
        Phase::Killing(_) => {
            format!(
                "the command did not end in time, and was still running {} s after it was killed",
                STOP_LIMIT.as_secs()
            )
        }
        Phase::Stopping(Ended::NeverUp(reason), _) => return Ended::NeverUp(reason),
        Phase::Stopping(Ended::Failed(reason), _) => reason,
        Phase::Stopping(..) => {
            let limit = POWER_OFF_LIMIT.as_secs();
            format!("the command ended, but the guest did not power off within {limit} s")
        }
    };
    Ended::Failed(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_lines_become_exit_statuses() {
        let status = |word, rest, killed| match verdict(word, rest, killed) {
            Some(Ended::Status(status)) => Some(status),
            _ => None,
        };
        assert_eq!(status("exit", "7", false), Some(7));
        assert_eq!(status("signal", "9", false), Some(137));
        assert_eq!(status("exit", "rubbish", false), None);
        assert_eq!(status("exit", "0", true), None);
        assert!(matches!(verdict("exit", "0", true), Some(Ended::TimedOut)));
        assert!(matches!(verdict("failed", "x", false), Some(Ended::Failed(text)) if text.contains('x')));
        assert!(verdict("alive", "", false).is_none());
    }
}
