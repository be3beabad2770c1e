//! `cmtime`: measures each step of making and ending connections by address.
//!
//! | file | content |
//! |---|---|
//! | [`options`] | the command line |
//! | [`control`] | the control connection: addresses of all peers, synchronised steps |
//! | [`steps`] | the steps, their times, the table |
//! | [`work`] | the worker threads and their queue |
//! | [`run`] | a run: its connections, and the steps of both sides |
//! | [`events`] | the thread that reads the event channel |
//! | [`sockets`] | the same steps with TCP sockets (`-S`) |
//!
//! ```text
//!   client     create ids ─ bind ─ resolve ─ create QPs ─┬─ connect ─┬─ disconnect ─┬─ destroy
//!   control                                              sync        sync           sync
//!   server     listen ───────────────────────────────────┴─ accept ──┴─ disconnect ─┴─ destroy
//! ```
//!
//! A run warms up with one connection for each pair of peers. It then measures all connections with
//! queue pairs, or with pauses in place of queue pairs (`-m`). With two peers, it then measures
//! them again with neither.
//!
//! # Differences from the C program
//! - The `cmtime` of rdma-core 44 (Debian 12) is a different program without a control connection.
//!   It does not interoperate with this one.
//! - `-S` works. The C program allocates no connections for this mode and crashes. If both peers
//!   run our program, the client waits for the server's socket.
//! - If a peer exits, its control connection fails with an error. The C program continues and waits
//!   forever.
//! - A request beyond the number of connections is rejected. The C program writes past its array.
//! - In C, the main thread polls until a step is complete. Ours sleeps.
//!
//! # References
//! `cmtime(1)`

pub mod control;
pub mod events;
pub mod options;
pub mod run;
pub mod sockets;
pub mod steps;
pub mod work;

use std::ffi::OsString;
use std::sync::Arc;

use rdmacm::{Hints, PortSpace};
use verbs::QpType;

use crate::cm;
use crate::cm::address::rdma_getaddrinfo;
use crate::console::{Console, Failed, describe};
use control::{Control, PeerInfo};
use options::{Options, Role};
use run::Run;

/// Runs the program with its command line and returns the exit status.
pub fn main(mut args: impl Iterator<Item = OsString>) -> u8 {
    let mut console = Console::new(args.next().unwrap_or_else(|| "cmtime".into()));
    let ran = Options::parse(args.collect(), &mut console).and_then(|options| measure(options, console));
    match ran {
        Ok(()) => 0,
        Err(Failed) => 1,
    }
}

fn measure(options: Options, mut console: Console) -> Result<(), Failed> {
    let hints = Hints {
        passive: true,
        port_space: Some(PortSpace::TCP),
        qp_type: Some(QpType::RC),
        ..Hints::default()
    };
    let source = rdma_getaddrinfo(Some(&options.source), None, &hints)
        .map_err(|unresolved| (unresolved.text(), unresolved.reason))
        .and_then(|found| found.source.ok_or(("no address", String::new())));
    let source = source.map_err(|(text, reason)| {
        console.complain(format_args!("rdma_getaddrinfo: {text}"));
        console.because(reason)
    })?;
    let channel = cm::create_event_channel(&mut console).map_err(|errno| {
        console.complain(format_args!("create_event_channel: {}", errno.description()));
        Failed
    })?;
    if options.threads < 1 {
        // The C program waits forever for the first step.
        return Err(console.because("-n: there is no thread to do the work"));
    }
    let control = Control::meet(&options, &mut console)?;
    if options.sockets {
        return sockets::run(&options, control, console);
    }
    // This must happen before addresses are exchanged, so that a client never connects too early.
    let listener = match options.role {
        Role::Listen => Some(run::listen(&channel, source, &mut console)?),
        Role::Connect => None,
    };
    let own = listener
        .as_ref()
        .map(|listener| listener.local_addr())
        .transpose()
        .map_err(|error| console.because(error))?;
    let own = PeerInfo { address: own.flatten().and_then(|own| own.ip()), role: options.role };
    let (control, peers) = control
        .exchange(own, options.peers)
        .map_err(|error| console.because(format_args!("the control connection: {}", describe(&error))))?;
    let run = Arc::new(Run::new(options, source, channel, control, peers, console)?);
    let threads = run::start(&run, events::read);
    run.measure();
    run.flush();
    run.stop();
    // The thread that reads the event channel waits until the process ends.
    for thread in threads {
        let _ = thread.join();
    }
    drop(listener);
    Ok(())
}
