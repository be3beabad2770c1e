//! Ping-pongs between our tools on soft and either our tools or rdma-core's on rxe.

use std::process::Command;
use std::time::Duration;

use verbs_harness::port;
use verbs_harness::process::{self, Finished, Running};
use verbs_harness::runner::{Case, CaseResult, fail};
use verbs_harness::tools::{LIMIT, Maker};

use super::ends::{SUITE, finish_both};
use super::wire::{Family, SOFT, Wire};

/// A link MTU large enough for every path MTU.
const LINK_MTU: u32 = 9000;

/// A way to run a ping-pong.
struct Way {
    size: u32,
    rounds: u32,
    /// The path MTU in bytes; `None` for datagrams.
    mtu: Option<u32>,
    family: Family,
    flags: &'static [&'static str],
}

const fn way(size: u32, rounds: u32, mtu: u32, family: Family, flags: &'static [&'static str]) -> Way {
    Way { size, rounds, mtu: Some(mtu), family, flags }
}

const fn datagrams(size: u32, rounds: u32, family: Family, flags: &'static [&'static str]) -> Way {
    Way { size, rounds, mtu: None, family, flags }
}

const RC: &[Way] = &[
    way(1, 30, 1024, Family::V4, &[]),
    way(4096, 30, 1024, Family::V4, &["-e"]),
    way(65536, 6, 256, Family::V4, &[]),
    way(65536, 6, 512, Family::V4, &[]),
    way(65536, 6, 1024, Family::V4, &["-e"]),
    way(65536, 6, 2048, Family::V4, &[]),
    way(1 << 20, 2, 4096, Family::V4, &[]),
    way(1, 30, 1024, Family::V6, &[]),
    way(1 << 20, 2, 1024, Family::V6, &["-e"]),
];

/// UC does not retransmit, so the messages must fit into the socket's buffer.
const UC: &[Way] = &[
    way(1, 30, 1024, Family::V4, &[]),
    way(4096, 30, 1024, Family::V4, &["-e"]),
    way(16384, 6, 4096, Family::V6, &[]),
];

const UD: &[Way] = &[
    datagrams(1, 30, Family::V4, &[]),
    datagrams(1024, 30, Family::V4, &["-e"]),
    datagrams(4096, 6, Family::V6, &[]),
];

const SRQ: &[Way] = &[
    way(1, 60, 1024, Family::V4, &["-q", "3"]),
    way(4096, 60, 1024, Family::V4, &["-e"]),
    way(65536, 12, 4096, Family::V6, &["-q", "2"]),
];

const TOOLS: &[(&str, &[Way])] =
    &[("ibv_rc_pingpong", RC), ("ibv_uc_pingpong", UC), ("ibv_ud_pingpong", UD), ("ibv_srq_pingpong", SRQ)];

pub(super) fn cases() -> impl Iterator<Item = Case> {
    TOOLS.iter().flat_map(|(tool, ways)| {
        let name = tool.trim_start_matches("ibv_").replace('_', " ");
        [Maker::Ours, Maker::Theirs].into_iter().flat_map(move |maker| {
            let name = name.clone();
            [true, false].map(|soft_serves| {
                let maker = maker.clone();
                let name = if soft_serves {
                    format!("{name} ours on soft serves {maker} on rxe")
                } else {
                    format!("{name} {maker} on rxe serves ours on soft")
                };
                Case::new(SUITE, name, move || {
                    let wire = Wire::new(LINK_MTU)?;
                    for way in *ways {
                        pingpong(&wire, tool, &maker, soft_serves, way).map_err(|stop| {
                            stop.context(format_args!(
                                "size {}, MTU {:?}, {:?}",
                                way.size, way.mtu, way.family
                            ))
                        })?;
                    }
                    Ok(())
                })
            })
        })
    })
}

fn pingpong(
    wire: &Wire,
    tool: &str,
    maker: &Maker,
    soft_serves: bool,
    &Way { size, rounds, mtu, family, flags }: &Way,
) -> CaseResult {
    let port = port::free()?;
    let command = |maker: &Maker, device: &str, gid: u32| -> CaseResult<Command> {
        let mut command = maker.tool(tool)?;
        command.args(["-c", "-d", device, "-g", &gid.to_string(), "-p", &port.to_string()]);
        command.args(["-s", &size.to_string(), "-n", &rounds.to_string()]).args(flags);
        if let Some(mtu) = mtu {
            command.args(["-m", &mtu.to_string()]);
        }
        if maker == &Maker::Ours {
            command.args(["-r", "500"]);
        }
        Ok(command)
    };
    let (rxe, gid) = wire.at_rxe(family)?;
    let mut on_rxe = command(maker, rxe, gid)?;
    let mut on_soft = command(&Maker::Ours, SOFT, 0)?;
    // Queue pair numbers always travel over IPv4, because a tool may not listen on both IP
    // versions.
    if soft_serves {
        on_rxe.arg(Family::V4.soft().to_string());
    } else {
        on_soft.arg(Family::V4.rxe().to_string());
    }
    let on_soft = wire.in_namespace(&on_soft, family);
    let (mut serves, mut connects) = if soft_serves { (on_soft, on_rxe) } else { (on_rxe, on_soft) };
    let mut server = Running::start(&mut serves)?;
    if !process::wait_for_listener_of(server.pid(), port, LIMIT, || !server.has_ended()) {
        return fail(format_args!("the server does not listen: {:?}", server.finish(Duration::ZERO)?));
    }
    let client = Running::start(&mut connects)?;
    let [server, client] = finish_both([server, client], LIMIT)?;
    let (Ok(server), Ok(client)) = (&server, &client) else {
        return fail(format_args!("not done: server {server:?}; client {client:?}"));
    };
    for (role, Finished { status, stdout, stderr }) in [("server", server), ("client", client)] {
        let bytes = format!("{} bytes in ", u64::from(size) * u64::from(rounds) * 2);
        let is_told = stdout.lines().any(|line| line.starts_with(&bytes));
        if !status.success() || !stderr.is_empty() || !is_told {
            return fail(format_args!("{role}: {status}, out {stdout:?}, err {stderr:?}"));
        }
    }
    Ok(())
}
