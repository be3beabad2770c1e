//! `verbs-peer` on soft with `verbs-peer` on rxe.

use std::net::SocketAddr;
use std::time::Duration;

use verbs_fixtures::fabric::rxe_is_before;
use verbs_harness::port;
use verbs_harness::process::{self, Finished, Running};
use verbs_harness::runner::{Case, CaseResult, fail, skip};
use verbs_harness::tools::{LIMIT, Maker};

use super::ends::{SUITE, finish_both};
use super::wire::{Family, SOFT, Wire};

/// A link MTU large enough for every path MTU.
const LARGE: u32 = 9000;
/// The time limit for a case.
const DEADLINE: Duration = Duration::from_secs(300);

const EVERY_MTU: &[&str] = &["256", "512", "1024", "2048", "4096"];

pub(super) fn cases() -> impl Iterator<Item = Case> {
    let case = |name: &str, run: Run| {
        Case::new(SUITE, name, move || {
            can_take_part()?;
            run.run(&Wire::new(run.link_mtu)?)
        })
        .within(DEADLINE)
    };
    // Zero-length messages are sent only one at a time (rc_messages), even without packet loss.
    // When a busy machine delays a read until it is retransmitted, rxe repeats the read with the
    // length of its latest request. If that is zero, rxe does not look up the memory and sends a
    // NAK for a remote access error (Linux 6.12, read_reply in rxe_resp.c).
    let usual = Run {
        link_mtu: LARGE,
        family: Family::V4,
        soft_listens: true,
        mtus: EVERY_MTU,
        args: &["--max-size", "8200", "--operations", "100", "--without", "rc_refused", "--no-empty"],
        rxe_reads: true,
    };
    // rxe does not respond to a repeated zero-length read, so there is a minimum size. rxe treats a
    // late or duplicate read response as an error and warns in the kernel log (Linux 7.2,
    // rxe_completer), so it reads only where each response either arrives in order or does not
    // arrive.
    let faults = [
        ("loss", "loss 2%", true),
        ("reordering", "delay 1ms reorder 75% 50%", false),
        ("duplication", "duplicate 5%", false),
        ("everything at once", "delay 1ms reorder 90% loss 1% duplicate 1%", false),
    ];
    let disturbed = faults.into_iter().map(move |(name, netem, rxe_reads)| {
        let run = Run {
            rxe_reads,
            mtus: &["1024", "4096"],
            args: &[
                "--step",
                "rc_messages",
                "--step",
                "rc_traffic",
                "--step",
                "rc_atomics",
                "--max-size",
                "20000",
                "--operations",
                "250",
                "--no-empty",
                "--min-size",
                "1",
            ],
            ..usual
        };
        Case::new(SUITE, format!("peers under {name}"), move || {
            can_take_part()?;
            let wire = Wire::new(run.link_mtu)?;
            wire.disturb(netem)?;
            run.run(&wire)
        })
        .within(DEADLINE)
    });
    [
        case("peers over ipv4", usual),
        case(
            "peers refuse what is not the other's to touch",
            Run { mtus: &["1024"], args: &["--step", "rc_refused"], ..usual },
        ),
        case(
            "peers over ipv6",
            Run { family: Family::V6, soft_listens: false, mtus: &["1024", "4096"], ..usual },
        ),
        case("peers over a link of 1500 bytes", Run { link_mtu: 1500, mtus: &["1024"], ..usual }),
        case(
            "peers with messages of a megabyte",
            Run { mtus: &["256", "4096"], args: &["--step", "rc_messages", "--min-size", "60000"], ..usual },
        ),
    ]
    .into_iter()
    .chain(disturbed)
}

/// Skips the case on Linux 5.10. There, rxe reports rejected requests to no peer, not even to
/// another rxe (as the suite `conformance` expects). Even without rejections, it was seen to hang
/// in these steps, for unknown reasons. Its device can then no longer be deleted ("waiting for vs0
/// to become free"), which makes the guest useless for later cases.
fn can_take_part() -> CaseResult {
    if rxe_is_before(5, 11)? {
        return skip(
            "before Linux 5.11 rxe does not answer what it refuses, and never lets go of its device after it",
        );
    }
    Ok(())
}

/// A pair of `verbs-peer`s.
#[derive(Clone, Copy)]
struct Run {
    link_mtu: u32,
    family: Family,
    soft_listens: bool,
    mtus: &'static [&'static str],
    args: &'static [&'static str],
    /// Whether rxe supports reads and atomics.
    rxe_reads: bool,
}

impl Run {
    fn run(&self, wire: &Wire) -> CaseResult {
        let port = port::free()?;
        let server = if self.soft_listens { self.family.soft() } else { self.family.rxe() };
        let address = SocketAddr::new(server, port).to_string();
        let command = |listens: bool, device: &str| -> CaseResult<_> {
            let mut command = Maker::Ours.tool("verbs-peer")?;
            command.args([if listens { "--listen" } else { "--connect" }, &address, "--device", device]);
            command.args(self.mtus.iter().flat_map(|mtu| ["--mtu", *mtu])).args(self.args);
            Ok(command)
        };
        let (rxe, gid) = wire.at_rxe(self.family)?;
        let mut on_rxe = command(!self.soft_listens, rxe)?;
        // rxe loses fenced requests (`Limits::fence`).
        on_rxe.args(["--no-fence", "--gid-index", &gid.to_string()]);
        if !self.rxe_reads {
            on_rxe.arg("--no-reads");
        }
        let on_soft = wire.in_namespace(&command(self.soft_listens, SOFT)?, self.family);
        let (mut listens, mut connects) =
            if self.soft_listens { (on_soft, on_rxe) } else { (on_rxe, on_soft) };
        let mut listener = Running::start(&mut listens)?;
        if !process::wait_for_listener_of(listener.pid(), port, LIMIT, || !listener.has_ended()) {
            return fail(format_args!("nobody listens: {:?}", listener.finish(Duration::ZERO)?));
        }
        let connector = Running::start(&mut connects)?;
        let [listener, connector] = finish_both([listener, connector], DEADLINE)?;
        let (listener_is, connector_is) = if self.soft_listens { ("soft", "rxe") } else { ("rxe", "soft") };
        let mut why = Vec::new();
        for (name, end) in [(listener_is, listener), (connector_is, connector)] {
            match end {
                Ok(Finished { status, stderr, .. }) if status.success() && stderr.is_empty() => {}
                Ok(Finished { stderr, status, .. }) => {
                    why.push(format!("{name}: {status}: {}", stderr.trim_end()));
                }
                Err(Finished { stdout, stderr, .. }) => {
                    let last = stdout.lines().last().unwrap_or("nothing");
                    why.push(format!("{name} was not done, {last:?} was its last: {}", stderr.trim_end()));
                }
            }
        }
        if why.is_empty() { Ok(()) } else { fail(why.join("; ")) }
    }
}
