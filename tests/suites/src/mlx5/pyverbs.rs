//! `pyverbs`: rdma-core's own Python test suite, as packaged by Debian. On rdma-core's library, it
//! tests the model. `c_abi.pyverbs` runs it on our library, alone and beside rdma-core's. The parts
//! of a case are the tests.
//!
//! A skipped test reports its reason, usually a feature that the device lacks. Each case requires a
//! minimum number of passed tests and names some required tests. Tests that pass on rdma-core's
//! library must pass on ours ([`verbs_c_programs::pyverbs::compare`]), unless they are [`REFUSED`].
//! The few tests in [`IMPOSSIBLE`] fail on any device and count as skipped.
//!
//! If `VERBS_PYVERBS` names modules, such as `test_cq test_mr`, only their tests run.

use std::time::Duration;

use verbs_c_programs::pyverbs::{self, Outcome, Run, compare};
use verbs_fixtures::functions::{Port, Setup, device};
use verbs_harness::runner::{self, Case, CaseResult, Stop, fail, skip};
use verbs_harness::tools::{Maker, linked_dir};

const SUITE: &str = "pyverbs";

/// The name of the suite that uses this project's library.
const OURS: &str = "c_abi.pyverbs";

const ENOUGH: &str = "enough of rdma-core's own tests pass";

/// The environment variable that names modules.
const MODULES: &str = "VERBS_PYVERBS";

/// The time limit for a run, which takes about half a minute.
const LIMIT: Duration = Duration::from_secs(600);

/// Tests that cannot pass, with the reason.
const IMPOSSIBLE: &[(&str, &str)] = &[(
    "test_mlx5_dc.DCTest.test_odp_dc_traffic",
    "it registers memory for on-demand paging without a check that the device supports it",
)];

/// Tests that pass with rdma-core's library but are skipped with ours, because ours rejects calls
/// that they make (docs/c-abi.md).
const REFUSED: &[&str] = &[
    "test_mlx5_dr.Mlx5DrDumpTest.test_domain_dump",
    "test_mlx5_flow.Mlx5MatcherTest.test_create_empty_matcher",
    "test_mlx5_flow.Mlx5MatcherTest.test_create_smac_matcher",
    "test_mlx5_flow.Mlx5MatcherTest.test_smac_matcher_to_qp_flow",
];

/// Returns the minimum number of tests that must pass with either library. It is a little below the
/// number that passes with rdma-core's library, because some results depend on the state of the
/// guest.
pub const fn least(port: Port) -> usize {
    match port {
        Port::Ib => 148,
        Port::Roce => 169,
    }
}

/// Tests that must pass with either type of port.
const REQUIRED: &[&str] = &[
    "test_cq.CQTest.test_resize_cq",
    "test_device.DMTest.test_dm_read",
    "test_device.SharedDMTest.test_import_dm",
    "test_mr.DeviceMemoryTest.test_dm_remote_traffic",
    "test_mr.DeviceMemoryTest.test_dm_traffic",
    "test_mr.MRTest.test_mr_rereg_access",
    "test_mr.MRTest.test_mr_rereg_access_bad_flow",
    "test_mr.MRTest.test_mr_rereg_addr",
    "test_mr.MRTest.test_mr_rereg_pd",
    "test_atomic.AtomicTest.test_xrc_atomic_cmp_and_swap",
    "test_atomic.AtomicTest.test_xrc_atomic_fetch_and_add",
    "test_cqex.CqExTestCase.test_xrc_traffic_cq_ex",
    "test_qpex.QpExTestCase.test_qp_ex_xrc_send",
    "test_qpex.QpExTestCase.test_qp_ex_xrc_send_imm",
    "test_qp.QPTest.test_modify_ud_qp",
    "test_mlx5_cq.DvCqTest.test_dv_cq_cqe_size_128",
    "test_mlx5_cq.DvCqTest.test_dv_cq_traffic",
    "test_mlx5_raw_wqe.RawWqeTest.test_mixed_raw_wqe_traffic",
    "test_mlx5_timestamp.TimeStampTest.test_timestamp_free_running_rc_traffic",
    "test_mlx5_uar.Mlx5UarTestCase.test_alloc_uar",
    "test_parent_domain.ParentDomainTrafficTest.test_mem_align_rc_traffic",
    "test_parent_domain.ParentDomainTrafficTest.test_mem_align_srq_excq_rc_traffic",
];

/// Tests that must pass with an InfiniBand port.
const REQUIRED_ON_IB: &[&str] = &[
    "test_tag_matching.TMTest.test_tm_no_tag",
    "test_tag_matching.TMTest.test_tm_rndv",
    "test_tag_matching.TMTest.test_tm_traffic",
    "test_tag_matching.TMTest.test_tm_unexpected_tag",
];

/// Returns the tests that must pass with a type of port.
pub fn required(port: Port) -> impl Iterator<Item = &'static str> {
    let more = if port == Port::Ib { REQUIRED_ON_IB } else { &[] };
    REQUIRED.iter().chain(more).copied()
}

/// Returns the case with rdma-core's library.
pub fn cases(setup: Setup) -> Vec<Case> {
    let run = move || judge(setup, &Maker::Theirs, SUITE, &chosen()).map(drop);
    vec![Case::new(SUITE, ENOUGH, run).within(LIMIT + Duration::from_secs(60))]
}

/// Returns the cases with our library, alone and compared with rdma-core's library.
pub fn linked(setup: Setup) -> Vec<Case> {
    let alone = move || {
        linked_dir()?;
        judge(setup, &Maker::Linked, OURS, &chosen()).map(drop)
    };
    let beside = move || both(setup);
    vec![
        Case::new(OURS, ENOUGH, alone).within(LIMIT + Duration::from_secs(60)),
        Case::new(OURS, "each test that passes on C's library passes on ours", beside)
            .within(2 * LIMIT + Duration::from_secs(60)),
    ]
}

/// Returns the modules that the environment variable names.
fn chosen() -> String {
    std::env::var(MODULES).unwrap_or_default()
}

/// Runs the tests with one library.
fn run(setup: Setup, maker: &Maker, modules: &str) -> CaseResult<Run> {
    let gid = setup.usual_gid(0)?.unwrap_or(0);
    let modules: Vec<&str> = modules.split_ascii_whitespace().collect();
    let mut prepared = Ok(());
    let run = pyverbs::run(&device(0), gid, &modules, LIMIT, |python| {
        prepared = maker.prepare(python);
    })?;
    prepared.and(Ok(run))
}

/// Runs the tests with one library and judges them as parts of a suite.
fn judge(setup: Setup, maker: &Maker, suite: &str, modules: &str) -> CaseResult<Vec<Outcome>> {
    let run = run(setup, maker, modules)?;
    let outcomes: Vec<Outcome> = run.outcomes.into_iter().map(judged).collect();
    for Outcome { test, verdict } in &outcomes {
        runner::part(format_args!("{suite}.{test}"), verdict.clone());
    }
    run.verdict?;
    if modules.is_empty() {
        let least = enough(&outcomes, setup.port)?;
        runner::part(format_args!("{suite}.at least {least} tests pass, and those that must"), Ok(()));
    }
    Ok(outcomes)
}

fn both(setup: Setup) -> CaseResult {
    linked_dir()?;
    let modules = chosen();
    let theirs = judge(setup, &Maker::Theirs, SUITE, &modules)?;
    let ours = run(setup, &Maker::Linked, &modules)?;
    for Outcome { test, verdict } in &ours.outcomes {
        let other = theirs.iter().find(|other| other.test == *test);
        let verdict = match verdict {
            Err(Stop::Skipped(why)) if REFUSED.contains(&&**test) => {
                skip(format_args!("rules in the device's own format are not built: {why}"))
            }
            _ => compare::judged(verdict, other.map(|other| &other.verdict)),
        };
        runner::part(format_args!("{OURS}.{test}"), verdict);
    }
    ours.verdict?;
    let missing = compare::missing(&theirs, &ours.outcomes);
    if !missing.is_empty() {
        return fail(format_args!("did not run on ours: {}", missing.join(", ")));
    }
    Ok(())
}

/// Returns the outcome, turned into a skip if the test failed and is in [`IMPOSSIBLE`].
fn judged(outcome: Outcome) -> Outcome {
    let reason = IMPOSSIBLE.iter().find(|(test, _)| *test == outcome.test).map(|(_, why)| why);
    match (reason, &outcome.verdict) {
        (Some(reason), Err(Stop::Failed(why))) => {
            let verdict = skip(format_args!("cannot pass: {reason} ({why})"));
            Outcome { verdict, ..outcome }
        }
        _ => outcome,
    }
}

/// Checks the results of all tests. Returns the minimum number of tests that must pass.
///
/// # Errors
/// Fails if a required test did not pass or too few tests passed.
pub fn enough(outcomes: &[Outcome], port: Port) -> CaseResult<usize> {
    let least = least(port);
    let passed: Vec<&str> =
        outcomes.iter().filter(|outcome| outcome.verdict.is_ok()).map(|outcome| &*outcome.test).collect();
    let missing: Vec<_> = required(port).filter(|test| !passed.contains(test)).collect();
    let passed = passed.len();
    if passed < least || !missing.is_empty() {
        return fail(format_args!(
            "{passed} tests passed, at least {least} must; required ones that did not: {missing:?}"
        ));
    }
    Ok(least)
}
