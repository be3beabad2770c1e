//! The thread that reads the event channel.

use rdmacm::{Event, EventKind};

use super::options::Role;
use super::run::Run;
use super::steps::Step;

/// Reads events until the process ends.
pub fn read(run: &Run) {
    loop {
        match run.channel().next_event() {
            Ok(event) => handle(run, event),
            Err(error) => run.fatal("rdma_get_cm_event", &error),
        }
    }
}

fn handle(run: &Run, event: Event) {
    if let EventKind::ConnectRequest(request) = event.kind {
        // A surplus request is rejected by dropping its id.
        if let Some(index) = run.take_request(request.id) {
            run.later(Run::answer_request, index);
        }
        return;
    }
    // Events for ids from the previous phase are ignored.
    let Some(index) = run.find(event.id) else { return };
    let (name, status) = (event.event_type(), event.status.0);
    match event.kind {
        EventKind::AddrResolved => resolved(run, index, Step::ResolveAddr),
        EventKind::RouteResolved => resolved(run, index, Step::ResolveRoute),
        EventKind::ConnectResponse(_) => run.later(Run::answer_response, index),
        EventKind::Established(_) => {
            run.times().end(Step::Connect);
            run.complete(Step::Connect);
        }
        EventKind::AddrError if run.retry(index, Step::ResolveAddr) => {}
        EventKind::RouteError if run.retry(index, Step::ResolveRoute) => {}
        EventKind::AddrError | EventKind::RouteError => {
            run.fatal_event(&format!("{name}, error: {status}\n"), event.ok().err());
        }
        EventKind::ConnectError | EventKind::Unreachable | EventKind::Rejected(_) => {
            run.fatal_event(&format!("event: {name}, error: {status}\n"), event.ok().err());
        }
        EventKind::Disconnected => {
            if run.role() == Role::Listen {
                run.peer_disconnected();
                run.later(Run::answer_disconnect, index);
            }
        }
        EventKind::TimewaitExit => {}
        _ => {
            run.fatal_event(&format!("Unhandled event: {} ({name})\n", name.0), event.ok().err());
        }
    }
}

fn resolved(run: &Run, index: usize, step: Step) {
    run.conn_times(index).end(step);
    run.complete(step);
}
