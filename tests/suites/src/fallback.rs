//! `fallback`: everything works where a kernel or a filter rejects the newer interfaces.
//!
//! Rejections and writes are counted outside the process, so that a case cannot pass without
//! trying.

use uverbs_abi::ib_user_verbs::{
    IB_USER_VERBS_CMD_CREATE_QP, IB_USER_VERBS_CMD_GET_CONTEXT, IB_USER_VERBS_CMD_MODIFY_QP,
    IB_USER_VERBS_CMD_REG_MR,
};
use verbs_c_programs::compare::same_lines;
use verbs_harness::refuse::{Counts, Mode};
use verbs_harness::runner::{Case, CaseResult, fail};
use verbs_harness::tools::{Maker, PingPong, refused, run};

const SUITE: &str = "fallback";

/// Returns the suite's cases.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for mode in Mode::ALL {
        for flags in [&[] as &[_], &["-c"], &["-e", "-c"]] {
            let name = format!("pingpong without {} {}", mode.name(), flags.join(" "));
            cases.push(Case::new(SUITE, name.trim_end(), move || pingpong(mode, flags)));
        }
        for (tool, args) in [("ibv_devinfo", &["-v"] as &[_]), ("ibv_devinfo", &["-l"]), ("ibv_devices", &[])]
        {
            let name = format!("{tool} {} without {}", args.join(" "), mode.name()).replace("  ", " ");
            cases.push(Case::new(SUITE, name, move || output(mode, tool, args)));
        }
    }
    cases
}

fn pingpong(mode: Mode, flags: &'static [&'static str]) -> CaseResult {
    // Each doorbell costs a round trip to the supervisor, so there are only few rounds.
    let ends = PingPong { refuse: Some(mode), flags, iters: 50, ..PingPong::OURS }.run()?;
    for counts in ends.into_iter().flatten() {
        check(mode, &counts);
        assert!(counts.doorbells > 0, "{counts}");
        let by_writing: &[u32] = match mode {
            Mode::Ioctl => &[
                IB_USER_VERBS_CMD_GET_CONTEXT,
                IB_USER_VERBS_CMD_CREATE_QP,
                IB_USER_VERBS_CMD_REG_MR,
                IB_USER_VERBS_CMD_MODIFY_QP,
            ],
            Mode::InvokeWrite => &[IB_USER_VERBS_CMD_REG_MR, IB_USER_VERBS_CMD_MODIFY_QP],
            Mode::Netlink => &[],
        };
        for command in by_writing {
            assert!(counts.written.contains_key(command), "command {command} was not written: {counts}");
        }
    }
    Ok(())
}

fn output(mode: Mode, tool: &str, args: &[&str]) -> CaseResult {
    let mut command = Maker::Ours.tool(tool)?;
    command.args(args);
    let unhindered = run(&mut command)?;
    let hindered = run(&mut refused(mode, &command)?)?;
    same_lines("standard output", &hindered.stdout, &unhindered.stdout)?;
    assert!(hindered.status.success() && unhindered.status.success());
    let Some(counts) = Counts::parse(&hindered.stderr) else {
        return fail(format_args!("what was refused is not told: {}", hindered.stderr));
    };
    if args == ["-v"] {
        check(mode, &counts);
    } else {
        // Listing devices needs no uverbs.
        assert_eq!(
            (counts.refused > 0, counts.passed, counts.writes()),
            (mode == Mode::Netlink, 0, 0),
            "{counts}"
        );
    }
    Ok(())
}

/// Checks that calls were rejected and that the library fell back to other calls.
fn check(mode: Mode, counts: &Counts) {
    assert!(counts.refused > 0, "nothing was refused: {counts}");
    // The library caches a rejection per context or per method, so it tries no call twice.
    assert!(counts.refused <= 4, "refused again and again: {counts}");
    assert_eq!(counts.passed == 0, mode == Mode::Ioctl, "{counts}");
    assert_eq!(counts.writes() == 0, mode == Mode::Netlink, "{counts}");
}
