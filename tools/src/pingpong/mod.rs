//! `ibv_rc_pingpong`, `ibv_uc_pingpong`, `ibv_ud_pingpong`, `ibv_srq_pingpong` and
//! `ibv_xsrq_pingpong`: messages back and forth. They use a reliable connection, an unreliable
//! connection, datagrams, connections with a shared receive queue, and XRC.
//!
//! The first four programs are variants of a single program, and [`Program`] lists their
//! differences. `ibv_xsrq_pingpong` shares only their command line and message.
//!
//! | file | content |
//! |---|---|
//! | [`options`] | the programs and their command lines |
//! | [`setup`] | from the device to the queue pair |
//! | [`dest`], [`exchange`] | addresses of two peers and their exchange, as in rdma-core |
//! | [`advice`] | reasons for failed connections |
//! | [`peer`] | detection of the other side's end |
//! | [`endpoint`] | raw posting; the only unsafe code of the tools |
//! | [`run`], [`stamps`] | the messages and their timing |
//! | [`xsrq`] | `ibv_xsrq_pingpong` |
//!
//! # References
//! `ibv_rc_pingpong(1)`, `ibv_uc_pingpong(1)`, `ibv_ud_pingpong(1)`, `ibv_srq_pingpong(1)`,
//! `ibv_xsrq_pingpong(1)`

pub mod advice;
pub mod dest;
pub mod endpoint;
pub mod exchange;
pub mod options;
pub mod peer;
pub mod run;
pub mod setup;
pub mod stamps;
pub mod xsrq;

use std::ffi::OsString;

use nix::unistd::{SysconfVar, sysconf};
use verbs::state::{Init, Rts};
use verbs::{AhAttr, Error, Gid, GlobalRoute, LinkLayer, PortAttr, RtrAttr, RtsAttr};

use crate::console::{Console, Failed, list_devices};
use crate::getopt::Getopt;
use advice::{NO_LID, advise_gid};
use dest::Dest;
use endpoint::{Endpoint, Steps};
use options::{Options, Program};
use peer::Peer;
use run::Summary;
use setup::Setup;

/// Runs a program with its command line and returns the exit status.
pub fn main(program: Program, mut args: impl Iterator<Item = OsString>) -> u8 {
    let name = args.next().unwrap_or_else(|| program.name().into());
    let mut console = Console::new(name.clone());
    let posixly_correct = std::env::var_os("POSIXLY_CORRECT").is_some();
    let getopt = Getopt::new(program.spec(), name, args.collect(), posixly_correct);
    let run = if program == Program::Xsrq { xsrq::ping_pong } else { ping_pong };
    match Options::parse(program, getopt, &mut console).and_then(|options| run(&options, &mut console)) {
        Ok(()) => 0,
        Err(Failed) => 1,
    }
}

fn ping_pong(options: &Options, console: &mut Console) -> Result<(), Failed> {
    let list = list_devices(console).ok_or(Failed)?;
    let device = setup::choose(&list, options, console)?;
    let (mut setup, mut endpoint) = setup::build(&device, options, console)?;

    let (posted, refused) = endpoint.post_recv(options.rx_depth);
    if let Some(error) = refused {
        console.complain(format_args!("Couldn't post receive ({posted})"));
        return Err(console.because(error));
    }
    if options.events
        && let Err(error) = setup.cq.req_notify(false)
    {
        console.complain("Couldn't request CQ notification");
        return Err(console.because(error));
    }

    let (port, local) = local_addresses(&setup, &endpoint, options, console)?;
    for local in &local {
        let mut said = local.to_string();
        if options.program == Program::Ud {
            // As in C, this applies only to the local address.
            said = said.replacen(", GID", ": GID", 1);
        }
        console.say(format_args!("  local address:  {said}\n"));
    }
    console.flush();
    let (mut endpoint, mut peer) = meet(&setup, endpoint, &port, &local, options, console)?;

    let client = options.server.is_some();
    if client {
        let message = endpoint.message();
        if options.validate {
            let buffer = message.buffer();
            buffer.pages(page_size()).for_each(|page| buffer.write(page, FIRST_OF_PAGE));
        }
        if let Err(error) = message.copy_to_device() {
            console.complain(run::NOT_COPIED_TO);
            return Err(console.because(error));
        }
    }
    let (elapsed, stamps) = run::play(&mut endpoint, &mut setup, &mut peer, options, console)?;
    console.say(Summary { size: options.size, iters: options.iters, elapsed });
    if let Some(stamps) = stamps {
        console.say(stamps);
    }
    if !client && options.validate {
        let message = endpoint.message();
        if let Err(error) = message.copy_from_device() {
            console.complain(run::NOT_COPIED_FROM);
            return Err(console.because(error));
        }
        let buffer = message.buffer();
        for (number, page) in buffer.pages(page_size()).enumerate() {
            if buffer.read(page) != FIRST_OF_PAGE {
                console.say(format_args!("invalid data in page {number}\n"));
            }
        }
    }
    close(setup, endpoint, console)
}

/// Returns the port and the address of each queue pair.
fn local_addresses(
    setup: &Setup,
    endpoint: &Endpoint<Init>,
    options: &Options,
    console: &mut Console,
) -> Result<(PortAttr, Vec<Dest>), Failed> {
    let port = setup.context.query_port(options.ib_port).map_err(|error| {
        console.complain("Couldn't get port info");
        console.because(error)
    })?;
    // As in C, the destination of datagrams may be a port without a LID.
    if options.program != Program::Ud && port.link_layer != LinkLayer::ETHERNET && port.lid == 0 {
        console.complain("Couldn't get local LID");
        return Err(console.because(NO_LID));
    }
    let gid = match options.gid_idx {
        None => Gid::ZERO,
        Some(index) => setup.context.query_gid(options.ib_port, index).map_err(|error| {
            match options.program {
                Program::Rc | Program::Uc => {
                    console.complain(format_args!("can't read sgid of index {index}"));
                }
                _ => {
                    console.complain(format_args!("Could not get local gid for gid index {index}"));
                }
            }
            console.because(error)
        })?,
    };
    let local = endpoint.numbers().map(|(qpn, psn)| Dest { lid: port.lid, qpn, psn, gid }).collect();
    Ok((port, local))
}

/// Exchanges addresses with the peer and connects to its queue pairs. The server connects before it
/// replies, so a client never sends to a queue pair that isn't ready.
fn meet(
    setup: &Setup,
    endpoint: Endpoint<Init>,
    port: &PortAttr,
    local: &[Dest],
    options: &Options,
    console: &mut Console,
) -> Result<(Endpoint<Rts>, Peer), Failed> {
    let refused = |(line, error): (String, Error), more: &[&str], remote: &[Dest], console: &mut Console| {
        console.complain(line);
        more.iter().for_each(|line| console.complain(line));
        console.reason(error);
        advise_gid(&setup.context, port, remote[0].gid, options, console);
        Failed
    };
    let say_remote = |remote: &[Dest], console: &mut Console| {
        for remote in &remote[..local.len()] {
            console.say(format_args!("  remote address: {remote}\n"));
        }
        console.flush();
    };
    match &options.server {
        Some(host) => {
            let (remote, peer) = exchange::ask(host, options.port, options.program, local, console)?;
            say_remote(&remote, console);
            let connected = connect(setup, endpoint, local, &remote, options);
            let endpoint = connected.map_err(|why| refused(why, &[], &remote, console))?;
            Ok((endpoint, peer))
        }
        None => {
            let (client, remote) = exchange::wait(options.port, options.program, console)?;
            let endpoint = connect(setup, endpoint, local, &remote, options)
                .map_err(|why| refused(why, &["Couldn't connect to remote QP"], &remote, console))?;
            let peer = client.answer(local, console)?;
            say_remote(&remote, console);
            Ok((endpoint, peer))
        }
    }
}

fn connect(
    setup: &Setup,
    endpoint: Endpoint<Init>,
    local: &[Dest],
    remote: &[Dest],
    options: &Options,
) -> Result<Endpoint<Rts>, (String, Error)> {
    // As in C, the first address's GID applies to all of them.
    let gid = remote[0].gid;
    let grh = (gid.interface_id() != 0).then(|| GlobalRoute {
        dgid: gid,
        // As in C, where "no index" is -1 and the kernel gets only 8 bits.
        sgid_index: options.gid_idx.unwrap_or(u32::MAX) & 0xff,
        hop_limit: if options.program == Program::Ud { 64 } else { 1 },
        ..GlobalRoute::default()
    });
    let path = |remote: &Dest| AhAttr {
        grh,
        dlid: remote.lid,
        sl: options.sl,
        port_num: options.ib_port,
        ..AhAttr::default()
    };
    let steps: Vec<Steps> = local
        .iter()
        .zip(remote)
        .map(|(local, remote)| {
            let rtr = RtrAttr::new(path(remote), remote.qpn, remote.psn);
            let rtr = RtrAttr { path_mtu: options.mtu, ..rtr };
            (rtr, RtsAttr { sq_psn: Some(local.psn), ..RtsAttr::default() })
        })
        .collect();
    let mut endpoint = endpoint.connect(&steps)?;
    if options.program == Program::Ud {
        let ah = setup.pd.create_ah(&path(&remote[0]));
        endpoint.address(ah.map_err(|error| ("Failed to create AH".to_owned(), error))?, remote[0].qpn);
    }
    Ok(endpoint)
}

/// Destroys all objects and reports each failure.
fn close(setup: Setup, endpoint: Endpoint<Rts>, console: &mut Console) -> Result<(), Failed> {
    let Setup { context, channel, pd, base_pd, cq, timestamp_mask: _ } = setup;
    let (qps, srq, message, ah) = endpoint.into_parts();
    let (mr, dm) = message.into_parts();
    let mut fail = |line: &str, error: Error| {
        console.complain(line);
        console.because(error)
    };
    for (index, qp) in qps.into_iter().enumerate() {
        let line =
            if srq.is_some() { &*format!("Couldn't destroy QP[{index}]") } else { "Couldn't destroy QP" };
        qp.close().map_err(|failed| fail(line, failed.error))?;
    }
    if let Some(srq) = srq {
        srq.close().map_err(|failed| fail("Couldn't destroy SRQ", failed.error))?;
    }
    cq.close().map_err(|failed| fail("Couldn't destroy CQ", failed.error))?;
    mr.close().map_err(|failed| fail("Couldn't deregister MR", failed.error))?;
    if let Some(dm) = dm {
        dm.close().map_err(|failed| fail("Couldn't free DM", failed.error))?;
    }
    if let Some(ah) = ah {
        ah.close().map_err(|failed| fail("Couldn't destroy AH", failed.error))?;
    }
    pd.close().map_err(|failed| fail("Couldn't deallocate PD", failed.error))?;
    if let Some(base) = base_pd {
        base.close().map_err(|failed| fail("Couldn't deallocate base PD", failed.error))?;
    }
    if let Some(channel) = channel {
        channel.close().map_err(|failed| fail("Couldn't destroy completion channel", failed.error))?;
    }
    context.close().map_err(|failed| fail("Couldn't release context", failed.error))
}

fn page_size() -> usize {
    let told = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
    told.and_then(|size| usize::try_from(size).ok()).filter(|size| *size > 0).unwrap_or(4096)
}

/// The byte that `--chk` writes at the start of each page and expects there. In C, it is the page
/// number modulo 256.
const FIRST_OF_PAGE: u8 = 0;
