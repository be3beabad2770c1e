//! `fallback`: everything works where a kernel, or a filter, refuses the newer ways to it.
//!
//! Refusals and writes are counted outside of the process, so that a case cannot pass by never trying.

use uverbs_abi::ib_user_verbs::{
    IB_USER_VERBS_CMD_CREATE_QP, IB_USER_VERBS_CMD_GET_CONTEXT, IB_USER_VERBS_CMD_MODIFY_QP,
    IB_USER_VERBS_CMD_REG_MR,
};

use crate::refuse::{Counts, Mode};
use crate::runner::{Case, CaseResult, fail};
use crate::tools::{Maker, PingPong, refused, run};

const SUITE: &str = "fallback";

/// The suite.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for mode in [Mode::Ioctl, Mode::InvokeWrite] {
        for flags in [&[] as &[_], &["-c"], &["-e", "-c"]] {
            let name = format!("pingpong without {} {}", mode.name(), flags.join(" "));
            cases.push(Case::new(SUITE, name.trim_end(), move || pingpong(mode, flags)));
        }
        for args in [&["-v"] as &[_], &["-l"]] {
            let name = format!("ibv_devinfo {} without {}", args.join(" "), mode.name());
            cases.push(Case::new(SUITE, name, move || devinfo(mode, args)));
        }
    }
    cases
}

fn pingpong(mode: Mode, flags: &'static [&'static str]) -> CaseResult {
    // Each doorbell asks the supervisor, so few rounds do.
    let ends = PingPong { refuse: Some(mode), flags, iters: 50, ..PingPong::OURS }.run()?;
    for counts in ends.into_iter().flatten() {
        was_written(mode, &counts, &[IB_USER_VERBS_CMD_REG_MR, IB_USER_VERBS_CMD_MODIFY_QP])?;
        assert!(counts.doorbells > 0, "{counts}");
        if mode == Mode::Ioctl {
            was_written(mode, &counts, &[IB_USER_VERBS_CMD_GET_CONTEXT, IB_USER_VERBS_CMD_CREATE_QP])?;
        }
    }
    Ok(())
}

fn devinfo(mode: Mode, args: &[&str]) -> CaseResult {
    let mut command = Maker::Ours.tool("ibv_devinfo")?;
    command.args(args);
    let unhindered = run(&mut command)?;
    let hindered = run(&mut refused(mode, &command)?)?;
    assert_eq!(hindered.stdout, unhindered.stdout);
    assert!(hindered.status.success() && unhindered.status.success());
    let Some(counts) = Counts::parse(&hindered.stderr) else {
        return fail(format_args!("what was refused is not told: {}", hindered.stderr));
    };
    // A list needs nothing of uverbs.
    if args == ["-v"] { was_written(mode, &counts, &[]) } else { Ok(()) }
}

/// Was something refused, and were commands, among them these, written instead?
fn was_written(mode: Mode, counts: &Counts, commands: &[u32]) -> CaseResult {
    assert!(counts.refused > 0, "nothing was refused: {counts}");
    assert!(counts.writes() > 0, "nothing was written: {counts}");
    assert_eq!(counts.passed == 0, mode == Mode::Ioctl, "{counts}");
    for command in commands {
        assert!(counts.written.contains_key(command), "command {command} was not written: {counts}");
    }
    // A refusal is learned, for the whole context or for the method: there is no second attempt of each.
    assert!(counts.refused <= 4, "refused again and again: {counts}");
    Ok(())
}
