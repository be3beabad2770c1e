//! Forks and signals in a process that waits for events.
//!
//! # Safety
//! The signal handler only changes an atomic number, which is safe at any time.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use rdmacm::{CmId, Event, EventChannel, EventKind, EventType, PortSpace};
use verbs::Errno;
use verbs_fixtures::cm_fabric::{Connected, RESOLVING, arrived, connect, expect, is_asleep};
use verbs_fixtures::fabric::PATIENCE;
use verbs_harness::cases;
use verbs_harness::forked;
use verbs_harness::process::wait_until;
use verbs_harness::runner::{Case, CaseResult, fail};

use super::server::{SUITE, at, here, server};

/// Returns the cases for the kernel's connection manager.
pub(super) fn of_interface() -> Vec<Case> {
    cases!(SUITE, a_forked_child_gets_no_events_and_ends_nothing)
}

/// Returns the cases for any device.
pub(super) fn of_any_device() -> Vec<Case> {
    cases!(SUITE, a_signal_does_not_end_the_wait_for_an_event)
}

/// A child cannot use its parent's file: for each command, the kernel compares the caller's
/// credentials with the credentials stored when the file was opened. A child has its own copy of
/// the credentials.
fn a_forked_child_gets_no_events_and_ends_nothing() -> CaseResult {
    const LIMIT: Duration = Duration::from_secs(60);
    let Connected { server, client, ends, accepted, .. } = connect(at(here()?))?;
    let channel = EventChannel::new()?;
    let id = channel.create_id(PortSpace::TCP)?;
    id.resolve_addr(None, server.address, RESOLVING)?;
    arrived(&channel)?;
    let connected = Cell::new(Some(client.id));
    let in_child = || -> CaseResult {
        let connected = connected.take();
        let ended = connected.as_ref().map(CmId::disconnect);
        for error in [channel.try_next_event().err(), ended.and_then(Result::err)] {
            if error.as_ref().is_none_or(|error| error.errno != Errno::ACCESS) {
                return fail(format_args!("{error:?} instead of EACCES"));
            }
        }
        Ok(())
    };
    let run = || match in_child() {
        Ok(()) => 0,
        Err(stop) => {
            println!("{stop:?}");
            1
        }
    };
    match forked::run_group(run, LIMIT)? {
        Ok(child) if child.status.success() => {}
        other => return fail(format_args!("the child: {other:?}")),
    }
    assert_eq!(expect(&channel, EventType::ADDR_RESOLVED)?.id, id.key());
    let Some(connected) = connected.take() else { return fail("the child's memory is the parent's") };
    let [(connects, mut here), (mut accepts, there)] = ends;
    connects.send(&mut here, b"still here")?;
    assert_eq!(accepts.receive()?, b"still here");
    connected.disconnect()?;
    assert_eq!(expect(&server.channel, EventType::DISCONNECTED)?.id, accepted.key());
    drop((here, there));
    Ok(())
}

/// The number of handled signals.
static HANDLED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn handle(_: i32) {
    HANDLED.fetch_add(1, Ordering::Relaxed);
}

fn a_signal_does_not_end_the_wait_for_an_event() -> CaseResult {
    let server = server(PortSpace::TCP)?;
    let channel = EventChannel::new()?;
    let id = channel.create_id(PortSpace::TCP)?;
    // Without SA_RESTART, which would hide the interruption.
    let action = SigAction::new(SigHandler::Handler(handle), SaFlags::empty(), SigSet::empty());
    // SAFETY: see the head of the file.
    unsafe { sigaction(Signal::SIGUSR1, &action) }?;
    let (started, starts) = mpsc::channel();
    thread::scope(|scope| {
        let reader = scope.spawn(|| -> CaseResult<Event> {
            let _ = started.send(fs::read_link("/proc/thread-self"));
            Ok(channel.next_event()?)
        });
        let interrupted = || -> CaseResult {
            let task = starts.recv_timeout(PATIENCE)??;
            is_asleep(&task)?;
            let number = task.file_name().and_then(|name| name.to_str()?.parse::<i32>().ok());
            let Some(number) = number else { return fail(format_args!("{task:?} is no thread")) };
            for count in 1..=2 {
                // SAFETY: the call takes only three numbers. The scope keeps the thread alive.
                let sent =
                    unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), number, libc::SIGUSR1) };
                assert_eq!(sent, 0);
                if !wait_until(PATIENCE, || HANDLED.load(Ordering::Relaxed) == count) {
                    return fail("the signal was not handled");
                }
                is_asleep(&task)?;
            }
            Ok(())
        };
        let interrupted = interrupted();
        // The event ends the thread, whether or not the signals did.
        id.resolve_addr(None, server.address, RESOLVING)?;
        let event = reader.join().unwrap_or_else(|_| fail("the reader panicked"))?;
        interrupted?;
        assert!(event.id == id.key() && matches!(event.kind, EventKind::AddrResolved), "{event:?}");
        Ok(())
    })
}
