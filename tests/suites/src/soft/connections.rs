//! `cm-peer` on soft with `cm-peer` on rxe: this project's connection manager with the kernel's.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use verbs_fixtures::cm_peer::outlive::State;
use verbs_fixtures::fabric::rxe_is_before;
use verbs_harness::port;
use verbs_harness::runner::{Case, CaseResult, Stop, fail, skip};

use super::ends::{SUITE, finish_both};
use super::wire::{Family, Wire};
use crate::cm::killed;

/// The time limit for a case. Each lost connection manager message costs 4.3 s.
const DEADLINE: Duration = Duration::from_secs(300);

/// The MTU of a link, large enough for a path MTU of 1024 bytes.
const LINK_MTU: u32 = 1500;

/// The disturbances: a name, netem's settings and the options for both sides.
const DISTURBANCES: &[(&str, &str, &[&str])] = &[
    ("loss", "loss 2%", &["--rounds", "10"]),
    ("duplication", "duplicate 30%", &["--rounds", "10"]),
    ("reordering", "delay 10ms 8ms reorder 50% 50%", &["--rounds", "5"]),
    ("everything at once", "delay 5ms 4ms loss 3% duplicate 10%", &["--rounds", "5"]),
    // With so much loss, a data message of many packets would never complete.
    (
        "loss of a fifth",
        "loss 20%",
        &[
            "--step",
            "many",
            "--connections",
            "16",
            "--step",
            "rejected",
            "--step",
            "dropped",
            "--step",
            "nobody",
            "--step",
            "datagrams",
            "--step",
            "datagrams rejected",
            "--rounds",
            "3",
        ],
    ),
];

pub(super) fn cases() -> impl Iterator<Item = Case> {
    let roles = || [true, false].into_iter();
    let plain = Family::ALL.into_iter().flat_map(move |family| {
        roles().map(move |soft_listens| {
            let name = format!("connections over {} {}", name_of(family), listening(soft_listens));
            Case::new(SUITE, name, move || Run { family, soft_listens, args: &[] }.run(&Wire::new(LINK_MTU)?))
                .within(DEADLINE)
        })
    });
    let disturbed = DISTURBANCES.iter().flat_map(move |&(name, netem, args)| {
        roles().map(move |soft_listens| {
            let name = format!("connections under {name} {}", listening(soft_listens));
            Case::new(SUITE, name, move || {
                let wire = Wire::new(LINK_MTU)?;
                wire.disturb(netem)?;
                let ended = Run { family: Family::V4, soft_listens, args }.run(&wire);
                if netem.contains("delay") { unless_rxe_stalls(ended) } else { ended }
            })
            .within(DEADLINE)
        })
    });
    let killed = roles().map(|soft_dies| {
        let (dead, survivor) = if soft_dies { ("soft", "rxe") } else { ("rxe", "soft") };
        let name = format!("connections of a killed {dead} peer end for {survivor} in every state");
        Case::new(SUITE, name, move || outlive(soft_dies)).within(DEADLINE)
    });
    let idle = Case::new(SUITE, "connections of a killed soft peer end for an idle rxe", || {
        skip("a soft device dies with its process, and nothing tells rxe (docs/connecting.md, \"The end\")")
    });
    plain.chain(disturbed).chain(killed).chain([idle])
}

/// Skips a failed case if rxe has stalled. netem's delay reorders packets, which stalls rxe on
/// Linux 6.1: neither end gets a completion. With rdma-core's `ucmatose` between two rxe devices,
/// on a veth pair with the same delay as in the case "reordering", the sender counted
/// `retry_exceeded_err` in both of two runs. Its client hung.
fn unless_rxe_stalls(ended: CaseResult) -> CaseResult {
    match ended {
        Err(Stop::Failed(why)) if why.contains("no completion within") && rxe_is_before(6, 12)? => {
            skip("rxe of this kernel stalls when packets change their order, with C's programs too")
        }
        ended => ended,
    }
}

fn name_of(family: Family) -> &'static str {
    match family {
        Family::V4 => "ipv4",
        Family::V6 => "ipv6",
        Family::Link => "ipv6 of the link",
    }
}

fn listening(soft_listens: bool) -> &'static str {
    if soft_listens { "to soft" } else { "to rxe" }
}

/// A pair of `cm-peer`s.
#[derive(Clone, Copy)]
struct Run {
    family: Family,
    soft_listens: bool,
    args: &'static [&'static str],
}

impl Run {
    fn run(self, wire: &Wire) -> CaseResult {
        let Self { family, soft_listens, args } = self;
        let port = port::free()?;
        let to = if soft_listens { family.soft() } else { family.rxe() };
        let command =
            |is_rxe: bool| killed::peer(is_rxe != soft_listens, &family.with_port(to, port, is_rxe), args);
        let (mut on_rxe, on_soft) = (command(true)?, command(false)?);
        let mut on_soft = wire.in_namespace(&on_soft, family);
        let (listens, connects) =
            if soft_listens { (&mut on_soft, &mut on_rxe) } else { (&mut on_rxe, &mut on_soft) };
        let ends = finish_both(killed::start(listens, connects, port)?, DEADLINE)?;
        let names = if soft_listens { ["soft", "rxe"] } else { ["rxe", "soft"] };
        let why: Vec<_> =
            names.into_iter().zip(ends).filter_map(|(name, end)| killed::complaint(name, end)).collect();
        if why.is_empty() { Ok(()) } else { fail(why.join("; ")) }
    }
}

/// Kills one side of a pair in each state. A soft device disappears silently, which an idle
/// survivor does not notice.
fn outlive(soft_dies: bool) -> CaseResult {
    let wire = Wire::new(LINK_MTU)?;
    let mut number = 10;
    let is_chosen = |state| !soft_dies || state != State::Idle;
    let ended = killed::outlive(is_chosen, |state, dead_listens| {
        // Each process's device needs its own address.
        number += 1;
        let soft = wire.add_address(number)?;
        let soft_listens = soft_dies == dead_listens;
        let port = port::free()?;
        let to = if soft_listens { soft } else { Family::V4.rxe() };
        let [listens, mut connects] =
            killed::pair(&SocketAddr::new(to, port).to_string(), state, dead_listens)?;
        if !soft_listens {
            // Otherwise the kernel would choose the interface's first address, which no device has.
            connects.args(["--source", &soft.to_string()]);
        }
        let on_soft = |command: &Command| {
            let mut inside = wire.in_namespace(command, Family::V4);
            inside.env("VERBS_SOFT", soft.to_string());
            inside
        };
        let pair = if soft_listens { [on_soft(&listens), connects] } else { [listens, on_soft(&connects)] };
        Ok((pair, port))
    })?;
    if soft_dies { Ok(()) } else { killed::are_told_at_once(&ended) }
}
