//! Calls with odd arguments: `c-abi/tests/c/arguments.c`. The program prints a line for each call.
//! Two libraries, or two devices, must print the same lines, apart from the decided differences.
//!
//! | compared | where |
//! |---|---|
//! | rdma-core's library with this project's, on one device | the guests with rxe and ConnectX |
//! | rdma-core's library with [its output](Recorded) on Linux 6.1 | the same guests |
//! | soft devices with the recorded output of rdma-core's library | `tests/programs` in c-abi |
//!
//! [`ROWS`] lists the decided differences, as does `docs/c-abi.md`.

use core::fmt;
use std::process::Command;

use verbs_harness::runner::{CaseResult, fail};
use verbs_harness::tools::{self, Maker};

use crate::compiled::{Program, compiled};

/// The C program.
pub const PROGRAM: Program = Program {
    name: "arguments",
    source: include_str!("../../../c-abi/tests/c/arguments.c"),
    options: &["-libverbs"],
};

const RECORDED: &str = include_str!("../../../c-abi/tests/arguments.txt");

/// rdma-core's output for a call that fails without setting `errno`.
const NO_ERRNO: &str = "refused without an errno";

/// This project's output where rdma-core prints [`NO_ERRNO`].
const WITH_ERRNO: &str = "EINVAL or EOPNOTSUPP";

/// A kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// The kernel's rxe driver.
    Rxe,
    /// ConnectX.
    ConnectX,
    /// Soft devices.
    Soft,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rxe => "rxe",
            Self::ConnectX => "ConnectX",
            Self::Soft => "soft",
        })
    }
}

/// An intended difference from rdma-core.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The prefixes of the calls, as printed by the program.
    pub calls: &'static [&'static str],
    /// The devices that show the difference.
    pub devices: &'static [Device],
    /// The prefix of rdma-core's result, as printed by the program.
    pub theirs: &'static str,
    /// The prefix of this project's result, as printed by the program.
    pub ours: &'static str,
    /// The call as shown in `docs/c-abi.md`.
    pub shown: &'static str,
    /// The reason for the difference.
    pub reason: &'static str,
}

/// The decided differences, each with a reason.
pub const ROWS: &[Row] = &[
    Row {
        calls: &[""],
        devices: &[Device::Rxe, Device::ConnectX, Device::Soft],
        theirs: NO_ERRNO,
        ours: WITH_ERRNO,
        shown: "refusals that leave `errno` as it was",
        reason: "a program that prints `errno` should find a reason there",
    },
    Row {
        calls: &[
            "create_qp type 2 with a shared queue",
            "create_qp type 3 with a shared queue",
            "create_qp type 4 with a shared queue",
            "create_qp_ex initiator",
            "create_qp_ex target",
        ],
        devices: &[Device::ConnectX, Device::Soft],
        theirs: "EINVAL",
        ours: "ok",
        shown: "receive sizes beyond the device's, with a shared receive queue or of XRC",
        reason: "`ibv_create_qp(3)` calls them ignored (linux-rdma/rdma-core#1624)",
    },
    Row {
        calls: &["create_qp inline -1"],
        devices: &[Device::ConnectX],
        theirs: "ok",
        ours: "EINVAL",
        shown: "`max_inline_data` of almost 2^32",
        reason: "libmlx5's sum overflows, and the queue pair takes no inline data",
    },
    Row {
        calls: &["modify_qp path_mtu 0"],
        devices: &[Device::Rxe],
        theirs: "ok",
        ours: "to RTR EINVAL",
        shown: "`path_mtu` 0",
        reason: "rxe takes it for a size of 2^32 - 1 bytes, and sends packets that are longer than any MTU",
    },
    Row {
        calls: &["alloc_mw type 0", "alloc_mw type 3"],
        devices: &[Device::Rxe],
        theirs: "EOPNOTSUPP",
        ours: "EINVAL",
        shown: "a type of memory window that does not exist",
        reason: "Linux 5.10 has no windows on rxe, and does not check the type",
    },
    Row {
        calls: &["modify_qp pkey_index 5"],
        devices: &[Device::Soft],
        theirs: "ok",
        ours: "to INIT EINVAL",
        shown: "`pkey_index` beyond the table",
        reason: "an error in InfiniBand (IBTA volume 1, 11.2.5.2), and on ConnectX; rxe does not look at it",
    },
    Row {
        calls: &["modify_qp max_dest_rd_atomic 0", "modify_qp max_rd_atomic 0"],
        devices: &[Device::Soft],
        theirs: "ok",
        ours: "ok",
        shown: "`max_rd_atomic` 0, `max_dest_rd_atomic` 0",
        reason: "none, as on rxe; the numbers of ConnectX are powers of two, and a query returns 1",
    },
    Row {
        calls: &["modify_qp static_rate 31"],
        devices: &[Device::Soft],
        theirs: "to RTR EINVAL",
        ours: "ok",
        shown: "`static_rate` that does not exist",
        reason: "ignored, as by rxe: neither has rates",
    },
    Row {
        calls: &["reg_mr of memory for no access", "reg_mr of memory for writes"],
        devices: &[Device::Soft],
        theirs: "ok",
        ours: "EFAULT",
        shown: "memory of `PROT_NONE`; memory of `PROT_WRITE` alone, without local write access",
        reason: "as on Linux 6.2 and newer; older kernels pin the pages by force, and an access would end the process",
    },
    Row {
        calls: &["reg_mr_iova 0x123"],
        devices: &[Device::Soft],
        theirs: "EINVAL",
        ours: "ok",
        shown: "an `iova` whose place in the page is not the address's",
        reason: "a limit of hardware's page tables, which soft devices do not have",
    },
];

impl Row {
    /// Returns whether the row explains a difference.
    #[must_use]
    pub fn explains(&self, device: Device, difference: &Difference<'_>) -> bool {
        self.devices.contains(&device)
            && self.calls.iter().any(|call| difference.call.starts_with(call))
            && difference.theirs.starts_with(self.theirs)
            && match self.ours {
                WITH_ERRNO => ["EINVAL", "EOPNOTSUPP"].contains(&difference.ours),
                ours => difference.ours.starts_with(ours),
            }
    }

    /// Returns the row as shown in `docs/c-abi.md`.
    #[must_use]
    pub fn to_markdown(&self) -> String {
        let devices: Vec<_> = self.devices.iter().map(ToString::to_string).collect();
        // For an error, the table shows only the errno.
        let result = |text: &'static str| match text {
            NO_ERRNO => "no errno".to_owned(),
            WITH_ERRNO => "`EINVAL` or `EOPNOTSUPP`".to_owned(),
            "ok" => "success".to_owned(),
            error => format!("`{}`", error.rsplit(' ').next().unwrap_or(error)),
        };
        let (theirs, ours) = (result(self.theirs), result(self.ours));
        format!("| {} | {} | {theirs} | {ours} | {} |", self.shown, devices.join(", "), self.reason)
    }
}

/// A call with different results in the two libraries.
#[derive(Clone, Copy, Debug)]
pub struct Difference<'a> {
    /// The call, as the program prints it.
    pub call: &'a str,
    /// The result with rdma-core's library.
    pub theirs: &'a str,
    /// The result with this project's library.
    pub ours: &'a str,
}

impl fmt::Display for Difference<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { call, theirs, ours } = self;
        write!(f, "{call}: {theirs:?} on rdma-core's library, {ours:?} here")
    }
}

/// Returns the calls in an output with their results.
pub fn calls(output: &str) -> impl Iterator<Item = (&str, &str)> {
    output.lines().filter_map(|line| line.split_once(": "))
}

/// Returns the differences between two outputs of the program. A call missing from an output has an
/// empty result there.
#[must_use]
pub fn differences<'a>(theirs: &'a str, ours: &'a str) -> Vec<Difference<'a>> {
    let of = |output: &'a str, call| calls(output).find(|(other, _)| *other == call);
    let here =
        calls(ours).map(|(call, ours)| (call, of(theirs, call).map_or("", |(_, theirs)| theirs), ours));
    let only_theirs =
        calls(theirs).filter(|(call, _)| of(ours, call).is_none()).map(|(call, theirs)| (call, theirs, ""));
    here.chain(only_theirs)
        .filter(|(_, theirs, ours)| theirs != ours)
        .map(|(call, theirs, ours)| Difference { call, theirs, ours })
        .collect()
}

/// The results of a call with the library of rdma-core 44, on Linux 6.1.
#[derive(Clone, Copy, Debug)]
pub struct Recorded {
    /// The call, as the program prints it.
    pub call: &'static str,
    /// The result on rxe.
    pub rxe: Option<&'static str>,
    /// The result on ConnectX with an Ethernet port.
    pub connectx: Option<&'static str>,
}

impl Recorded {
    /// Returns all recorded results.
    pub fn all() -> impl Iterator<Item = Self> {
        RECORDED.lines().filter(|line| !line.starts_with('#')).map(|line| {
            let mut columns = line.split(" | ");
            let mut next = || columns.next().filter(|text| *text != "-");
            Self { call: next().unwrap_or_default(), rxe: next(), connectx: next() }
        })
    }

    /// Returns the result recorded on rxe or ConnectX; `None` for a soft device.
    #[must_use]
    pub fn on(&self, device: Device) -> Option<&'static str> {
        if device == Device::ConnectX { self.connectx } else { self.rxe }
    }
}

/// Returns the soft device's results that match neither rxe nor ConnectX. Results of `modify_qp`
/// must match ConnectX.
#[must_use]
pub fn of_no_device(output: &str) -> Vec<Difference<'_>> {
    let mut found = Vec::new();
    for recorded in Recorded::all() {
        let call = recorded.call;
        let theirs = recorded.connectx.or(recorded.rxe).unwrap_or_default();
        let ours = calls(output).find(|(other, _)| *other == call).map_or("", |(_, result)| result);
        let is_of_rxe = recorded.rxe == Some(ours) && !call.starts_with("modify_qp");
        if ours != theirs && !is_of_rxe {
            found.push(Difference { call, theirs, ours });
        }
    }
    let is_known = |call: &str| Recorded::all().any(|recorded| recorded.call == call);
    let unknown = calls(output).filter(|(call, _)| !is_known(call));
    found.extend(unknown.map(|(call, ours)| Difference { call, theirs: "", ours }));
    found
}

/// Returns the differences that no row explains.
#[must_use]
pub fn undecided<'a>(device: Device, all: &[Difference<'a>]) -> Vec<Difference<'a>> {
    all.iter().filter(|one| !ROWS.iter().any(|row| row.explains(device, one))).copied().collect()
}

/// Runs the program with both libraries and compares their outputs. On Linux 6.1 it also compares
/// the output of rdma-core's library with the recorded output, if the device has one.
///
/// # Errors
/// Skips the case if a library is missing; fails with the list of undecided differences, if any.
pub fn same_on_both_libraries(device: Device, name: &str, is_recorded: bool) -> CaseResult {
    let program = compiled(&PROGRAM)?;
    let output = |maker: Maker| -> CaseResult<String> {
        let mut command = Command::new(&program);
        command.env("VERBS_TEST_DEVICE", name).env_remove("LD_LIBRARY_PATH");
        maker.prepare(&mut command)?;
        let ended = tools::run(&mut command)?;
        if ended.status.success() {
            return Ok(ended.stdout);
        }
        let last = ended.stdout.lines().last().unwrap_or_default();
        fail(format_args!("on the library {maker}: {} after {last:?}: {}", ended.status, ended.stderr))
    };
    let (ours, theirs) = (output(Maker::Linked)?, output(Maker::Theirs)?);
    let mut found = undecided(device, &differences(&theirs, &ours));
    let release = nix::sys::utsname::uname()?.release().to_string_lossy().into_owned();
    if is_recorded && release.starts_with("6.1.") {
        let recorded = Recorded::all();
        let then: String =
            recorded.filter_map(|one| Some(format!("{}: {}\n", one.call, one.on(device)?))).collect();
        for other in differences(&then, &theirs) {
            eprintln!("recorded otherwise: {}: {:?}, now {:?}", other.call, other.theirs, other.ours);
        }
        if !differences(&then, &theirs).is_empty() {
            return fail("c-abi/tests/arguments.txt has other results than rdma-core's library here");
        }
    }
    for difference in &found {
        eprintln!("not decided: {difference}");
    }
    match found.pop() {
        None => Ok(()),
        Some(last) => {
            fail(format_args!("{} differences are not decided, among them {last}", found.len() + 1))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_shows_the_decided_differences() {
        const DOCUMENT: &str = include_str!("../../../docs/c-abi.md");
        const HEAD: &str = "| arguments | device | rdma-core | here | why |\n|---|---|---|---|---|\n";
        let table: Vec<_> = ROWS.iter().map(Row::to_markdown).collect();
        let table = format!("{HEAD}{}\n", table.join("\n"));
        assert!(DOCUMENT.contains(&table), "docs/c-abi.md should have\n\n{table}");
    }

    #[test]
    fn a_difference_is_a_line_that_the_other_output_does_not_have() {
        let all = differences("a: ok\nb: EINVAL\nc: ok\n", "a: ok\nb: ok\nd: ok\n");
        let shown: Vec<_> = all.iter().map(|one| (one.call, one.theirs, one.ours)).collect();
        assert_eq!(shown, [("b", "EINVAL", "ok"), ("d", "", "ok"), ("c", "ok", "")]);
    }

    #[test]
    fn a_row_explains_its_calls_on_its_devices_alone() {
        let mtu = Difference { call: "modify_qp path_mtu 0", theirs: "ok, ...", ours: "to RTR EINVAL" };
        assert!(undecided(Device::Rxe, &[mtu]).is_empty());
        assert_eq!(undecided(Device::ConnectX, &[mtu]).len(), 1);
        let silent = Difference { call: "create_ah port 0", theirs: NO_ERRNO, ours: "EINVAL" };
        assert!(undecided(Device::ConnectX, &[silent]).is_empty());
        for ours in ["ok", "EFAULT"] {
            assert_eq!(undecided(Device::ConnectX, &[Difference { ours, ..silent }]).len(), 1);
        }
        let shared = "create_qp type 2 with a shared queue, receive requests 16777216, elements 1";
        let shared = Difference { call: shared, theirs: "EINVAL", ours: "ok" };
        assert!(undecided(Device::Soft, &[shared]).is_empty());
        assert_eq!(undecided(Device::Soft, &[Difference { call: "create_qp type 0x5", ..shared }]).len(), 1);
    }

    #[test]
    fn recorded_results_have_a_column_for_each_device() {
        let all: Vec<_> = Recorded::all().collect();
        assert!(all.len() > 200 && all.iter().all(|one| one.rxe.is_some() || one.connectx.is_some()));
        let pkey = all.iter().find(|one| one.call == "modify_qp pkey_index 5").unwrap();
        assert!(pkey.on(Device::Rxe).is_some() && pkey.on(Device::ConnectX).is_none());
    }
}
