//! `ibv_xsrq_pingpong`: a server and its clients over XRC. Each side has one shared receive queue,
//! and each message names its destination queue.
//!
//! ```text
//! server                                     client, one of -c
//!   Srq ◄── XRC target ◄──────── XRC initiator ── message for the server's Srq
//!           XRC initiator ─────► XRC target ──► Srq
//! ```
//!
//! | file | content |
//! |---|---|
//! | [`setup`] | from the device to the queue pairs |
//! | [`address`] | addresses of two peers, as in rdma-core |
//! | [`run`] | the messages |
//!
//! As in C, each side keeps the TCP connection until the end. Our program also uses it to detect
//! the end of the other side. The C program waits forever for a message from a killed peer, or
//! reads endlessly from its closed connection.
//!
//! # References
//! `ibv_xsrq_pingpong(1)`

pub mod address;
pub mod run;
pub mod setup;

use std::io::Write;
use std::net::TcpStream;

use verbs::state::{Init, Rts};
use verbs::{AhAttr, Error, Gid, GlobalRoute, RtrAttr, RtsAttr};

use super::advice::advise_gid;
use super::exchange::{connect, listen, read_all, why_short};
use super::options::Options;
use crate::console::{Console, Failed, describe};
use address::{Address, WIRE_LEN};
use setup::{Pair, Setup};

/// A connected peer.
#[derive(Debug)]
pub struct Connected {
    pair: Pair<Rts>,
    remote: Address,
    stream: TcpStream,
    /// The number of messages sent to this peer.
    sent: i32,
}

/// Runs the program after its command line has been parsed.
pub(super) fn ping_pong(options: &Options, console: &mut Console) -> Result<(), Failed> {
    let (mut setup, pairs) = setup::build(options, console)?;
    let Setup { message, srq, .. } = &mut setup;
    if let (_, Some(error)) = message.post_srq_recv(srq, pairs.len() as u32) {
        console.complain("Failed to post receive to SRQ");
        console.complain("Couldn't post receives");
        return Err(console.because(error));
    }
    let listener = match &options.server {
        Some(_) => None,
        None => Some(listen(options.port, console)?),
    };
    let mut meet = |(index, pair): (usize, Pair<Init>)| {
        let (stream, local, remote) = match (&listener, &options.server) {
            (Some(listener), _) => {
                let (mut stream, _) = listener.accept().map_err(|error| {
                    console.complain(format_args!("accept() failed for client {index}"));
                    console.because(describe(&error))
                })?;
                let remote = receive_remote(&mut stream, index, console)?;
                let local = send_local(&setup, &pair, &mut stream, options, console)?;
                (stream, local, remote)
            }
            (None, host) => {
                let host = host.as_deref().unwrap_or_default();
                let mut stream = connect(host, options.port, console)?;
                let local = send_local(&setup, &pair, &mut stream, options, console)?;
                let remote = receive_remote(&mut stream, index, console)?;
                (stream, local, remote)
            }
        };
        let pair = connect_pair(&setup, pair, index, &local, &remote, options, console)?;
        Ok(Connected { pair, remote, stream, sent: 0 })
    };
    let mut peers = pairs.into_iter().enumerate().map(&mut meet).collect::<Result<Vec<_>, _>>()?;
    drop(listener);
    run::play(&mut setup, &mut peers, options, console)?;
    terminate(&mut peers, options.server.is_some(), console)?;
    close(setup, peers, console)?;
    console.say("success\n");
    Ok(())
}

/// Sends the address of a pair of queue pairs to the peer.
fn send_local(
    setup: &Setup,
    pair: &Pair<Init>,
    stream: &mut TcpStream,
    options: &Options,
    console: &mut Console,
) -> Result<Address, Failed> {
    let gid = match options.gid_idx {
        None => Gid::ZERO,
        Some(index) => setup.context.query_gid(options.ib_port, index).map_err(|error| {
            console.complain(format_args!("can't read sgid of index {index}"));
            console.because(error)
        })?,
    };
    let Some(srqn) = setup.srq.srq_num() else {
        console.complain("Couldn't get SRQ num");
        return Err(Failed);
    };
    let Pair { recv, send } = pair;
    let (recv_qpn, send_qpn) = (recv.qp_num(), send.qp_num());
    let local = Address { lid: setup.port.lid, recv_qpn, send_qpn, psn: send.psn(), srqn, gid };
    console.say(format_args!("{:>8}: {local}\n", "local"));
    console.flush();
    stream.write_all(&local.to_wire()).map_err(|error| {
        console.complain("Couldn't send local address");
        console.because(describe(&error))
    })?;
    Ok(local)
}

fn receive_remote(stream: &mut TcpStream, index: usize, console: &mut Console) -> Result<Address, Failed> {
    let mut wire = [0; WIRE_LEN];
    let (count, failure) = read_all(stream, &mut wire);
    let line = format!("{count}/{WIRE_LEN}: Couldn't read remote address [{index}]");
    if count < WIRE_LEN {
        console.complain(format_args!("client read: {}", why_short(count, failure)));
        console.complain(line);
        return Err(Failed);
    }
    let Some(remote) = Address::from_wire(&wire) else {
        console.complain(line);
        let wire = wire.escape_ascii();
        let form = "lid:recv_qpn:send_qpn:psn:srqn:gid";
        return Err(console.because(format_args!("the peer sent \"{wire}\", which is no {form}")));
    };
    console.say(format_args!("{:>8}: {remote}\n", "remote"));
    console.flush();
    Ok(remote)
}

/// Connects the target to the peer's initiator, and the initiator to the peer's target.
fn connect_pair(
    setup: &Setup,
    pair: Pair<Init>,
    index: usize,
    local: &Address,
    remote: &Address,
    options: &Options,
    console: &mut Console,
) -> Result<Pair<Rts>, Failed> {
    let grh = (remote.gid.interface_id() != 0).then(|| GlobalRoute {
        dgid: remote.gid,
        // As in C, where "no index" is -1 and the kernel gets only 8 bits.
        sgid_index: options.gid_idx.unwrap_or(u32::MAX) & 0xff,
        hop_limit: 5,
        ..GlobalRoute::default()
    });
    let path =
        AhAttr { grh, dlid: remote.lid, sl: options.sl, port_num: options.ib_port, ..AhAttr::default() };
    let rtr = |qpn| RtrAttr { path_mtu: options.mtu, ..RtrAttr::new(path, qpn, remote.psn) };
    let rts = RtsAttr { sq_psn: Some(local.psn), max_rd_atomic: 0, ..RtsAttr::default() };
    let mut failed = |which: &str, state: &str, error: Error| {
        console.complain(format_args!("Failed to modify {which} QP[{index}] to {state}"));
        console.reason(error);
        advise_gid(&setup.context, &setup.port, remote.gid, options, console);
        Failed
    };
    let Pair { recv, send } = pair;
    let recv_rtr = RtrAttr { max_dest_rd_atomic: 0, ..rtr(remote.send_qpn) };
    let recv = recv.to_rtr(&recv_rtr).map_err(|refused| failed("recv", "RTR", refused.error))?;
    let recv = recv.to_rts(&rts).map_err(|refused| failed("recv", "RTS", refused.error))?;
    let send = send.to_rtr(&rtr(remote.recv_qpn));
    let send = send.map_err(|refused| failed("send", "RTR", refused.error))?;
    let send = send.to_rts(&rts).map_err(|refused| failed("send", "RTS", refused.error))?;
    Ok(Pair { recv, send })
}

/// Waits until neither side needs the other. Each client reports when it has all messages, and the
/// server replies once all clients have done so.
fn terminate(peers: &mut [Connected], client: bool, console: &mut Console) -> Result<(), Failed> {
    for peer in peers.iter() {
        // This cannot fail on an open socket, and the read below would report a failure.
        let _ = peer.stream.set_nonblocking(false);
    }
    for says in [client, !client] {
        for peer in peers.iter_mut() {
            if says {
                peer.stream.write_all(END).map_err(|error| {
                    console.complain("Couldn't send termination ack");
                    console.because(describe(&error))
                })?;
            } else {
                let mut said = [0; END.len()];
                let (count, failure) = read_all(&mut peer.stream, &mut said);
                if count < END.len() {
                    let line = "Couldn't read remote termination ack";
                    console.complain(format_args!("client read: {}", why_short(count, failure)));
                    console.complain(format_args!("{count}/{}: {line}", END.len()));
                    return Err(Failed);
                }
                if &said != END {
                    console.complain("Invalid termination ack was accepted");
                    return Err(console.because(format_args!("the peer sent {}", said.escape_ascii())));
                }
            }
        }
    }
    Ok(())
}

/// Destroys all objects and reports each failure.
fn close(setup: Setup, peers: Vec<Connected>, console: &mut Console) -> Result<(), Failed> {
    let Setup { context, port: _, channel, pd, message, file, xrcd, recv_cq, send_cq, srq } = setup;
    let mut fail = |line: &str, error: Error| {
        console.complain(line);
        console.because(error)
    };
    for (index, peer) in peers.into_iter().enumerate() {
        let Pair { recv, send } = peer.pair;
        let line = |which| format!("Couldn't destroy {which} QP[{index}]");
        send.close().map_err(|failed| fail(&line("INI"), failed.error))?;
        recv.close().map_err(|failed| fail(&line("TGT"), failed.error))?;
    }
    srq.close().map_err(|failed| fail("Couldn't destroy SRQ", failed.error))?;
    xrcd.close().map_err(|failed| fail("Couldn't close the XRC Domain", failed.error))?;
    drop(file);
    send_cq.close().map_err(|failed| fail("Couldn't destroy send CQ", failed.error))?;
    recv_cq.close().map_err(|failed| fail("Couldn't destroy recv CQ", failed.error))?;
    let (mr, _) = message.into_parts();
    mr.close().map_err(|failed| fail("Couldn't deregister MR", failed.error))?;
    pd.close().map_err(|failed| fail("Couldn't deallocate PD", failed.error))?;
    if let Some(channel) = channel {
        channel.close().map_err(|failed| fail("Couldn't destroy completion channel", failed.error))?;
    }
    context.close().map_err(|failed| fail("Couldn't release context", failed.error))
}

const END: &[u8; 4] = b"END\0";
