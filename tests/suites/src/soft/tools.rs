//! Tools for connections by address, ours on soft and rdma-core's on rxe: over IPv6, over
//! link-local IPv6 and over IPv4 with lost and duplicated packets. The cases belong to the suite
//! [`cm_flags`](crate::cm_flags).

use std::fs;
use std::process::Command;
use std::time::Duration;

use verbs_harness::listening::wait_for_listening_id;
use verbs_harness::pair::told;
use verbs_harness::process::{self, Running};
use verbs_harness::runner::{Case, CaseResult, fail};
use verbs_harness::tools::{LIMIT, Maker};

use super::wire::{Family, Wire};

/// A tool: its port, the kernel's number for its port space in hexadecimal, the server's flags and
/// the client's flags. The last flag of each takes the address.
struct Tool {
    name: &'static str,
    port: u16,
    space: &'static str,
    serve: &'static [&'static str],
    connect: &'static [&'static str],
}

const TOOLS: &[Tool] = &[
    Tool {
        name: "rping",
        port: 7174,
        space: "106",
        serve: &["-s", "-a"],
        connect: &["-c", "-C", "5", "-V", "-a"],
    },
    Tool { name: "ucmatose", port: 7471, space: "106", serve: &["-b"], connect: &["-s"] },
    Tool { name: "udaddy", port: 7174, space: "111", serve: &["-b"], connect: &["-s"] },
];

/// A way to connect both ends.
struct Way {
    name: &'static str,
    family: Family,
    /// netem's settings, which apply at both ends.
    netem: Option<&'static str>,
    tools: &'static [Tool],
}

const WAYS: &[Way] = &[
    Way { name: "over IPv6", family: Family::V6, netem: None, tools: TOOLS },
    Way { name: "over IPv6 of the link", family: Family::Link, netem: None, tools: TOOLS },
    Way { name: "over IPv4", family: Family::V4, netem: None, tools: TOOLS },
    Way {
        name: "over IPv4 under duplication",
        family: Family::V4,
        netem: Some("duplicate 20%"),
        tools: TOOLS,
    },
    // Without udaddy, whose server ends after it has sent its only reply, which may be lost.
    Way {
        name: "over IPv4 under loss and duplication",
        family: Family::V4,
        netem: Some("loss 2% duplicate 20%"),
        tools: TOOLS.split_at(2).0,
    },
];

/// Returns the cases, as part of the given suite.
pub(crate) fn cases(suite: &'static str) -> impl Iterator<Item = Case> {
    WAYS.iter().flat_map(move |way| {
        [true, false].into_iter().map(move |soft_listens| {
            let ends = if soft_listens { "ours on soft serve theirs" } else { "theirs serve ours on soft" };
            Case::new(suite, format!("tools {}, {ends}", way.name), move || {
                let wire = Wire::new(1500)?;
                way.netem.map_or(Ok(()), |netem| wire.disturb(netem))?;
                way.tools.iter().try_for_each(|tool| tool.run(&wire, way.family, soft_listens))
            })
        })
    })
}

impl Tool {
    fn run(&self, wire: &Wire, family: Family, soft_listens: bool) -> CaseResult {
        let host = if soft_listens { family.soft() } else { family.rxe() };
        let command = |listens: bool| -> CaseResult<Command> {
            let on_soft = listens == soft_listens;
            let maker = if on_soft { Maker::Ours } else { Maker::Theirs };
            let mut command = maker.tool(self.name)?;
            let scope = match (family, on_soft) {
                (Family::Link, true) => "%vs1",
                (Family::Link, false) => "%vs0",
                (Family::V4 | Family::V6, _) => "",
            };
            command.args(if listens { self.serve } else { self.connect }).arg(format!("{host}{scope}"));
            Ok(if on_soft { wire.in_namespace(&command, family) } else { command })
        };
        let mut serves = Running::start(&mut command(true)?)?;
        if soft_listens {
            self.wait_for_soft(&mut serves)?;
        } else {
            wait_for_listening_id(self.port, &mut serves)?;
        }
        let client = process::run(&mut command(false)?, LIMIT)?;
        let is_well = client.as_ref().is_ok_and(|end| end.status.success());
        let server = serves.finish(if is_well { LIMIT } else { LAST_WORDS })?;
        if is_well && server.as_ref().is_ok_and(|end| end.status.success()) {
            return Ok(());
        }
        fail(format_args!("{}: server {}; client {}", self.name, told(&server), told(&client)))
    }

    /// Waits for the socket that makes a server on a soft device visible to local processes.
    fn wait_for_soft(&self, server: &mut Running) -> CaseResult {
        let names = format!("/proc/{}/net/unix", server.pid());
        let name = format!("@verbs-soft/cm/2/{}/{}/", self.space, self.port);
        let listens = || fs::read_to_string(&names).is_ok_and(|names| names.contains(&name));
        if process::wait_until(LIMIT, || listens() || server.has_ended()) {
            return Ok(());
        }
        fail(format_args!("{} does not listen", self.name))
    }
}

/// The time for a server without its client to print its last messages.
const LAST_WORDS: Duration = Duration::from_secs(5);
