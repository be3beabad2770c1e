//! `ibv_rc_pingpong` on soft with `ibv_rc_pingpong` on rxe.

use std::process::Command;
use std::time::Duration;

use super::wire::{Family, SOFT, Wire};
use super::{SUITE, finish_both};
use crate::process::{self, Finished, Running};
use crate::runner::{Case, CaseResult, fail};
use crate::tools::{LIMIT, Maker};

/// Links that take packets of every path MTU.
const LINK_MTU: u32 = 9000;

/// Size, rounds, path MTU, address family, further flags.
const WAYS: &[(u32, u32, u32, Family, &[&str])] = &[
    (1, 30, 1024, Family::V4, &[]),
    (4096, 30, 1024, Family::V4, &["-e"]),
    (65536, 6, 256, Family::V4, &[]),
    (65536, 6, 512, Family::V4, &[]),
    (65536, 6, 1024, Family::V4, &["-e"]),
    (65536, 6, 2048, Family::V4, &[]),
    (1 << 20, 2, 4096, Family::V4, &[]),
    (1, 30, 1024, Family::V6, &[]),
    (1 << 20, 2, 1024, Family::V6, &["-e"]),
];

pub(super) fn cases() -> impl Iterator<Item = Case> {
    [Maker::Ours, Maker::Theirs].into_iter().flat_map(|maker| {
        [true, false].map(|soft_serves| {
            let maker = maker.clone();
            let name = if soft_serves {
                format!("pingpong ours on soft serves {maker} on rxe")
            } else {
                format!("pingpong {maker} on rxe serves ours on soft")
            };
            Case::new(SUITE, name, move || {
                let wire = Wire::new(LINK_MTU)?;
                for way in WAYS {
                    pingpong(&wire, &maker, soft_serves, way).map_err(|stop| {
                        stop.of(format_args!("size {}, MTU {}, {:?}", way.0, way.2, way.3))
                    })?;
                }
                Ok(())
            })
        })
    })
}

fn pingpong(
    wire: &Wire,
    maker: &Maker,
    soft_serves: bool,
    &(size, iters, mtu, family, flags): &(u32, u32, u32, Family, &[&str]),
) -> CaseResult {
    let port = process::free_port()?;
    let command = |maker: &Maker, device: &str, gid: u32| -> CaseResult<Command> {
        let mut command = maker.tool("ibv_rc_pingpong")?;
        command.args(["-c", "-d", device, "-g", &gid.to_string(), "-p", &port.to_string()]);
        command.args(["-s", &size.to_string(), "-n", &iters.to_string(), "-m", &mtu.to_string()]).args(flags);
        if maker == &Maker::Ours {
            command.args(["-r", "500"]);
        }
        Ok(command)
    };
    let (rxe, gid) = wire.at_rxe(family)?;
    let mut on_rxe = command(maker, rxe, gid)?;
    let mut on_soft = command(&Maker::Ours, SOFT, 0)?;
    // Numbers are told over IPv4 in any case: a tool need not listen on both.
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
        let bytes = format!("{} bytes in ", u64::from(size) * u64::from(iters) * 2);
        let is_told = stdout.lines().any(|line| line.starts_with(&bytes));
        if !status.success() || !stderr.is_empty() || !is_told {
            return fail(format_args!("{role}: {status}, out {stdout:?}, err {stderr:?}"));
        }
    }
    Ok(())
}
