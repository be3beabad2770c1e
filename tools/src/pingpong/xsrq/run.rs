//! The messages: each side replies to each message, `--num_tests` times.

use verbs::{Context, SendFlags, Wc, WcStatus};

use super::Connected;
use super::setup::Setup;
use crate::console::{Console, Failed};
use crate::pingpong::endpoint::To;
use crate::pingpong::options::Options;
use crate::pingpong::peer::{MISSED, has_ended};
use crate::pingpong::run::{LOOK_EVERY, vendor_err, wait_for_event};

/// Runs until each peer has sent all its messages and received all of ours.
///
/// # Errors
/// Fails if a verb or a completion fails, or a peer ends early. The failure has been reported.
pub(super) fn play(
    setup: &mut Setup,
    peers: &mut [Connected],
    options: &Options,
    console: &mut Console,
) -> Result<(), Failed> {
    let tests = options.tests.max(0);
    for peer in peers.iter() {
        peer.stream.set_nonblocking(true).map_err(|error| console.because(error))?;
    }
    if options.server.is_none() && tests > 0 {
        (0..peers.len()).try_for_each(|index| send(setup, peers, index, tests, console))?;
    }
    let total = peers.len() as u64 * tests as u64;
    let mut received: u64 = 0;
    let mut sent = 0;
    let mut empty: u32 = 0;
    while received < total {
        if let Some(channel) = &setup.channel {
            let send_cq = &mut setup.send_cq;
            let look = |console: &mut Console| look(&setup.context, send_cq, peers, &mut sent, console);
            wait_for_event(channel, &mut setup.recv_cq, look, console)?;
        }
        let mut wcs = [Wc::default()];
        while setup.recv_cq.poll_into(&mut wcs) > 0 {
            succeeded(&setup.context, &wcs[0], console)?;
            if let (_, Some(error)) = setup.message.post_srq_recv(&mut setup.srq, 1) {
                console.complain("Failed to post receive to SRQ");
                return Err(console.because(error));
            }
            let from = find(peers, wcs[0].qp_num, console);
            if peers[from].sent < tests {
                send(setup, peers, from, tests, console)?;
            }
            (received, empty) = (received + 1, 0);
        }
        empty = empty.wrapping_add(1);
        if empty.is_multiple_of(LOOK_EVERY) {
            look(&setup.context, &mut setup.send_cq, peers, &mut sent, console)?;
        }
    }
    // The last message to each peer is signalled.
    while tests > 0 && sent < peers.len() {
        look(&setup.context, &mut setup.send_cq, peers, &mut sent, console)?;
    }
    Ok(())
}

/// Posts the message for a peer. As in C, messages for clients on the same device alternate between
/// all connections to them, because these clients share an XRC domain.
fn send(
    setup: &mut Setup,
    peers: &mut [Connected],
    index: usize,
    tests: i32,
    console: &mut Console,
) -> Result<(), Failed> {
    let remote = peers[index].remote;
    let same_device = |peer: &Connected| (peer.remote.gid, peer.remote.lid) == (remote.gid, remote.lid);
    let ways: Vec<usize> =
        (index..peers.len()).chain(0..index).filter(|way| same_device(&peers[*way])).collect();
    let way = ways[peers[index].sent as usize % ways.len()];
    peers[index].sent += 1;
    let is_last = peers[index].sent >= tests;
    let flags = if is_last { SendFlags::SIGNALED } else { SendFlags::empty() };
    let posted =
        setup.message.post_send(&mut peers[way].pair.send, To::Srq(remote.srqn), index as u32, flags);
    posted.map_err(|error| {
        console.complain("Couldn't post send");
        console.because(error)
    })
}

/// Returns the index of the peer whose message arrived on this queue pair.
fn find(peers: &[Connected], qp_num: u32, console: &mut Console) -> usize {
    let found = peers.iter().position(|peer| peer.pair.recv.qp_num() == qp_num);
    match found {
        Some(index) => index,
        None if peers.len() == 1 => 0,
        None => {
            console.complain(format_args!("Unable to find qp {qp_num:x}"));
            0
        }
    }
}

/// Counts completed sends and checks that no peer has ended.
fn look(
    context: &Context,
    send_cq: &mut verbs::Cq,
    peers: &[Connected],
    sent: &mut usize,
    console: &mut Console,
) -> Result<(), Failed> {
    let mut wcs = [Wc::default()];
    while send_cq.poll_into(&mut wcs) > 0 {
        succeeded(context, &wcs[0], console)?;
        *sent += 1;
    }
    if peers.iter().any(|peer| has_ended(&peer.stream)) {
        return Err(console.because(MISSED));
    }
    Ok(())
}

fn succeeded(context: &Context, wc: &Wc, console: &mut Console) -> Result<(), Failed> {
    if wc.status == WcStatus::SUCCESS {
        return Ok(());
    }
    console.complain(format_args!("Work completion error {}", wc.status.0));
    let vendor = vendor_err(wc, context.vendor_err_text(wc.vendor_err));
    Err(console.because(format_args!("{} ({vendor})", wc.status)))
}
