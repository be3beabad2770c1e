//! Cases, and the runner, which runs each case in a separate process with a deadline.
//!
//! A case is a function. The runner forks a child for each case, in a new process group. A case may
//! change its limits, user or mounts, crash or hang without affecting the next case. Processes that
//! a case leaves running are killed with its group. `--case NAME` runs a case in the program's own
//! process. Several cases run at the same time if [`Options::at_once`] says so.
//!
//! | case | output |
//! |---|---|
//! | returns `Ok` | `ok NAME` |
//! | returns an error, panics, dies or exceeds its deadline | `FAIL NAME: why` |
//! | returns [`skip`] | `skip NAME: why` |
//! | reports [`part`]s and returns `Ok` | one of these lines for each part, and no other |
//!
//! Parts are for a case that runs another program with many tests. Each test is reported and
//! counted under its own name. Parts reported before the case fails or dies remain in the output.
//!
//! libtest-mimic 0.8 does not fit, because its formats are fixed and a case has a single result.

use core::fmt;
use core::str::FromStr;
use std::cell::RefCell;
use std::io::{self, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::panic;
use std::process::{Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use crate::forked::{self, Group};
use crate::process::Finished;

/// The result of a case.
pub type CaseResult<T = ()> = Result<T, Stop>;

/// The reason why a case ended early. Every error converts into a failure, so `?` works in cases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The case failed.
    Failed(String),
    /// The case cannot run here.
    Skipped(String),
}

impl Stop {
    /// Prefixes the reason with a context.
    #[must_use]
    pub fn context(self, what: impl fmt::Display) -> Self {
        match self {
            Self::Failed(why) => Self::Failed(format!("{what}: {why}")),
            Self::Skipped(why) => Self::Skipped(format!("{what}: {why}")),
        }
    }
}

impl<E: std::error::Error> From<E> for Stop {
    fn from(error: E) -> Self {
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            let cause_text = cause.to_string();
            if !text.contains(&cause_text) {
                text = format!("{text}: {cause_text}");
            }
            source = cause.source();
        }
        Self::Failed(text)
    }
}

/// Skips the case, which cannot run here.
///
/// # Errors
/// Always returns an error.
pub fn skip<T>(why: impl fmt::Display) -> CaseResult<T> {
    Err(Stop::Skipped(why.to_string()))
}

/// Fails the case.
///
/// # Errors
/// Always returns an error.
pub fn fail<T>(why: impl fmt::Display) -> CaseResult<T> {
    Err(Stop::Failed(why.to_string()))
}

/// Reports the verdict of a part of the running case. The name has the form `suite.what_is_true`.
pub fn part(name: impl fmt::Display, verdict: CaseResult) {
    // Starts a new line, because other output may have left its line unfinished.
    println!("\n{PART}{name}\t{}", verdict_text(verdict));
}

/// A case of a suite.
pub struct Case {
    /// The name, in the form `suite.what_is_true`.
    pub name: String,
    /// The time limit.
    pub deadline: Duration,
    /// The case's function.
    pub run: Box<dyn Fn() -> CaseResult>,
}

impl Case {
    /// Returns a case with the default deadline.
    pub fn new(suite: &str, name: impl fmt::Display, run: impl Fn() -> CaseResult + 'static) -> Self {
        Self::boxed(format_args!("{suite}.{name}"), Box::new(run))
    }

    fn boxed(name: fmt::Arguments<'_>, run: Box<dyn Fn() -> CaseResult>) -> Self {
        Self { name: name.to_string(), deadline: DEADLINE, run }
    }

    /// Returns the case with a setup step that runs before it in the same process.
    #[must_use]
    pub fn after(self, setup: impl Fn() -> io::Result<()> + 'static) -> Self {
        let Self { name, deadline, run } = self;
        let run = move || {
            setup()?;
            run()
        };
        Self { name, deadline, run: Box::new(run) }
    }

    /// Returns the case with another deadline.
    #[must_use]
    pub fn within(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Case({}, {:?})", self.name, self.deadline)
    }
}

/// Builds cases from functions and their names: `cases!("suite", first, second)`.
#[macro_export]
macro_rules! cases {
    ($suite:expr, $($function:path),* $(,)?) => {
        vec![$($crate::runner::Case::new($suite, stringify!($function), $function)),*]
    };
}

/// A time limit far beyond the duration of any case, even in an emulated guest on a busy machine.
const DEADLINE: Duration = Duration::from_secs(120);

/// Whether a case uses our API with the provider erased or known at compile time. The end of the
/// case's name shows the form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The provider's type is erased, so calls are indirect.
    Erased,
    /// The provider's type is known at compile time, so calls are direct.
    Static,
}

impl Form {
    /// Returns the value of `--form`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Erased => "erased",
            Self::Static => "static",
        }
    }

    /// Returns whether a case has this form, or no form.
    fn has(self, name: &str) -> bool {
        let other = match self {
            Self::Erased => Self::Static,
            Self::Static => Self::Erased,
        };
        !name.strip_suffix(other.name()).is_some_and(|rest| rest.ends_with(' '))
    }
}

/// Parses a `--skip` value, `SUITE` or `SUITE: WHY`, for [`Options::skip`].
pub fn left_out(value: &str) -> (String, String) {
    let (name, why) = value.split_once(": ").unwrap_or((value, "asked for with --skip"));
    (name.to_owned(), why.to_owned())
}

impl FromStr for Form {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Erased, Self::Static]
            .into_iter()
            .find(|form| form.name() == text)
            .ok_or_else(|| format!("--form {text}: erased or static"))
    }
}

/// Command-line options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Whether to print the names without running any case.
    pub list: bool,
    /// The name prefixes of cases to skip, each with a reason.
    pub skip: Vec<(String, String)>,
    /// The name prefixes of the cases to run; all cases if empty.
    pub only: Vec<String>,
    /// The form to run, for cases that exist with the provider both erased (`erased`) and known at
    /// compile time (`static`); `None` runs both forms.
    pub form: Option<Form>,
    /// The only case to run, in the program's own process.
    pub case: Option<String>,
    /// Environment variables for the cases, in addition to this process's environment.
    pub env: Vec<(String, String)>,
    /// The number of cases that run at the same time; one if 0.
    pub at_once: usize,
}

/// Returns the number of processors, for [`Options::at_once`].
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Runs the selected cases and returns the exit status.
pub fn main(options: &Options, cases: &[Case]) -> ExitCode {
    if let Some(name) = &options.case {
        return match cases.iter().find(|case| case.name == *name) {
            Some(case) => ExitCode::from(be(case)),
            None => {
                eprintln!("guest: there is no case {name}");
                ExitCode::from(2)
            }
        };
    }
    let is_chosen =
        |case: &&Case| options.only.is_empty() || options.only.iter().any(|only| is_of(&case.name, only));
    let has_form = |case: &&Case| options.form.is_none_or(|form| form.has(&case.name));
    let (chosen, of_other_form): (Vec<&Case>, Vec<&Case>) =
        cases.iter().filter(is_chosen).partition(has_form);
    if options.list {
        for case in chosen {
            println!("{}", case.name);
        }
        return ExitCode::SUCCESS;
    }
    if let Some(only) = options.only.iter().find(|only| !cases.iter().any(|case| is_of(&case.name, only))) {
        eprintln!("guest: no suite and no case is called {only}");
        return ExitCode::from(2);
    }
    if options.env.iter().any(|(name, value)| std::env::var(name).as_ref() != Ok(value)) {
        // Restarts once for all cases, which inherit the environment.
        let env = options.env.iter().map(|(name, value)| (name, value));
        let error = Command::new("/proc/self/exe").args(std::env::args_os().skip(1)).envs(env).exec();
        eprintln!("guest: cannot start again with the environment of the cases: {error}");
        return ExitCode::from(3);
    }
    let mut tally = Tally::default();
    run_all(&chosen, options, |case, ended| {
        for line in tally.lines(&case.name, ended) {
            println!("{line}");
        }
    });
    if let Some(form) = options.form
        && !of_other_form.is_empty()
    {
        // One line stands for all of them, because the same cases have run in the requested form.
        let why = format!("{} cases are in the other form than --form {}", of_other_form.len(), form.name());
        println!("{}", tally.line("other_form", skip(why)));
    }
    println!("{tally}");
    ExitCode::from(u8::from(tally.failed > 0))
}

/// Returns whether `wanted` is the case's name, its suite, or a prefix of its name that ends at a
/// word boundary.
fn is_of(name: &str, wanted: &str) -> bool {
    name.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '_', ' ']))
}

/// The numbers of passed, failed and skipped cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    passed: u64,
    failed: u64,
    skipped: u64,
}

/// The outcome of a case.
struct Ended {
    parts: Vec<(String, CaseResult)>,
    verdict: CaseResult,
}

impl Tally {
    /// Returns the output lines for a case: a line per part, and one for the case itself unless it
    /// succeeded with parts.
    fn lines(&mut self, name: &str, ended: Ended) -> Vec<String> {
        let says_it_all = ended.verdict.is_ok() && !ended.parts.is_empty();
        let mut lines: Vec<_> =
            ended.parts.into_iter().map(|(part, verdict)| self.line(&part, verdict)).collect();
        if !says_it_all {
            lines.push(self.line(name, ended.verdict));
        }
        lines
    }

    fn line(&mut self, name: &str, verdict: CaseResult) -> String {
        match verdict {
            Ok(()) => {
                self.passed += 1;
                format!("ok {name}")
            }
            Err(Stop::Failed(why)) => {
                self.failed += 1;
                format!("FAIL {name}: {}", one_line(&why))
            }
            Err(Stop::Skipped(why)) => {
                self.skipped += 1;
                format!("skip {name}: {}", one_line(&why))
            }
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { passed, failed, skipped } = self;
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}

/// Puts a reason on one line and shortens it. Two compared buffers can be very long. The case's own
/// output shows them in full.
fn one_line(text: &str) -> String {
    const LONGEST: usize = 1000;
    let line = text.trim_end().replace('\n', " | ");
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{} … ({} bytes)", &line[..end], line.len()),
        None => line,
    }
}

/// Runs each case in a child process, several at the same time. Reports their results in order of
/// completion.
fn run_all(cases: &[&Case], options: &Options, mut done: impl FnMut(&Case, Ended)) {
    let mut waiting = cases.iter();
    let (mut running, mut groups) = (Vec::new(), Vec::new());
    loop {
        while groups.len() < options.at_once.max(1)
            && let Some(case) = waiting.next()
        {
            if let Some((_, why)) = options.skip.iter().find(|(prefix, _)| is_of(&case.name, prefix)) {
                done(case, Ended { parts: Vec::new(), verdict: Err(Stop::Skipped(why.clone())) });
                continue;
            }
            match Group::start(|| be(case), case.deadline) {
                Ok(group) => {
                    running.push((case, Instant::now()));
                    groups.push(group);
                }
                Err(error) => done(case, Ended { parts: Vec::new(), verdict: Err(error.into()) }),
            }
        }
        if groups.is_empty() {
            return;
        }
        let (index, error) = match forked::wait_for_any(&mut groups) {
            Ok(index) => (index, None),
            Err(error) => (0, Some(error)),
        };
        let ((case, started), group) = (running.swap_remove(index), groups.swap_remove(index));
        let finished = error.map_or_else(|| group.finish(), Err);
        done(case, read_ended(finished, started.elapsed()));
    }
}

/// Reads a case's results from the output of its process.
fn read_ended(finished: io::Result<Result<Finished, Finished>>, time: Duration) -> Ended {
    let finished = match finished {
        Ok(finished) => finished,
        Err(error) => return Ended { parts: Vec::new(), verdict: Err(error.into()) },
    };
    let verdict = finished.as_ref().map_or_else(
        |unfinished| fail(format!("not done after {:.0} s", time.as_secs_f64()) + &said(unfinished)),
        |finished| read_verdict(finished.status, &finished.stdout),
    );
    let (Ok(Finished { stdout, stderr, .. }) | Err(Finished { stdout, stderr, .. })) = &finished;
    let parts = read_parts(stdout);
    if [&verdict].into_iter().chain(parts.iter().map(|(_, v)| v)).any(|v| matches!(v, Err(Stop::Failed(_)))) {
        let is_ours = |line: &&str| line.starts_with(VERDICT) || line.starts_with(PART);
        for line in stdout.lines().chain(stderr.lines()).filter(|line| !is_ours(line)) {
            eprintln!("    {line}");
        }
    }
    Ended { parts, verdict }
}

fn said(finished: &Finished) -> String {
    match finished.stderr.lines().chain(finished.stdout.lines()).last() {
        Some(line) => format!("; the last it said was: {line}"),
        None => String::new(),
    }
}

/// The prefix of a case's verdict, which is the last line that its process prints.
const VERDICT: &str = "verdict: ";

/// The prefix of a part's line. The part's name and verdict follow.
const PART: &str = "part: ";

fn verdict_text(verdict: CaseResult) -> String {
    match verdict {
        Ok(()) => "ok".to_owned(),
        Err(Stop::Failed(why)) => format!("FAIL {}", one_line(&why)),
        Err(Stop::Skipped(why)) => format!("skip {}", one_line(&why)),
    }
}

/// Parses the output of [`verdict_text`].
fn read_verdict_text(text: &str) -> Option<CaseResult> {
    match text.split_once(' ') {
        None if text == "ok" => Some(Ok(())),
        Some(("skip", why)) => Some(skip(why)),
        Some(("FAIL", why)) => Some(fail(why)),
        _ => None,
    }
}

fn read_parts(stdout: &str) -> Vec<(String, CaseResult)> {
    let lines = stdout.lines().filter_map(|line| line.strip_prefix(PART)?.split_once('\t'));
    lines
        .map(|(name, text)| {
            let verdict = read_verdict_text(text).unwrap_or_else(|| fail(format!("no verdict but {text:?}")));
            (name.to_owned(), verdict)
        })
        .collect()
}

fn read_verdict(status: ExitStatus, stdout: &str) -> CaseResult {
    if let Some(signal) = status.signal() {
        return fail(format!("killed by signal {signal}"));
    }
    let verdict = stdout.lines().last().and_then(|line| line.strip_prefix(VERDICT));
    match (status.code(), verdict) {
        (Some(0), Some(text)) => {
            read_verdict_text(text).unwrap_or_else(|| fail(format!("no verdict but {text:?}")))
        }
        // A tool that calls `exit` in a case is a defect, so even status 0 is a failure.
        (code, _) => fail(format!("its process ended with status {code:?} and without a verdict")),
    }
}

/// Runs a case in this process and prints its verdict.
fn be(case: &Case) -> u8 {
    let text = verdict_text(caught(&case.run));
    // Starts a new line, because the case may have left its last line unfinished.
    let written = write!(io::stdout(), "\n{VERDICT}{text}\n").and_then(|()| io::stdout().flush());
    u8::from(written.is_err())
}

/// Runs a case and converts a panic into a failure with its location.
fn caught(run: &dyn Fn() -> CaseResult) -> CaseResult {
    thread_local! { static WHERE: RefCell<String> = const { RefCell::new(String::new()) } }
    let before = panic::take_hook();
    panic::set_hook(Box::new(|info| {
        let place = info.location().map(|l| format!("{}:{}: ", l.file(), l.line())).unwrap_or_default();
        let payload = info.payload();
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        let text = text.unwrap_or("a panic without a message");
        WHERE.with_borrow_mut(|whole| *whole = format!("{place}{text}"));
        // The panic may be in another thread, whose `WHERE` is never read.
        eprintln!("panic at {place}{text}");
    }));
    let result = panic::catch_unwind(panic::AssertUnwindSafe(run));
    panic::set_hook(before);
    result.unwrap_or_else(|_| fail(WHERE.take()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(verdict: CaseResult) -> String {
        Tally::default().line("suite.case", verdict)
    }

    #[test]
    fn a_verdict_is_one_line_whatever_is_in_it() {
        assert_eq!(line(Ok(())), "ok suite.case");
        assert_eq!(line(fail("first\nsecond\n")), "FAIL suite.case: first | second");
        assert_eq!(line(skip("no\ndevice")), "skip suite.case: no | device");
        let long = line(fail("é".repeat(5000)));
        assert!(long.len() < 2100 && long.ends_with("… (10000 bytes)"), "{long}");
    }

    #[test]
    fn a_form_has_its_cases_and_those_without_a_form() {
        let names = ["a.b erased", "a.b static", "a.b", "a.is_not_static"];
        let of = |form: Form| names.into_iter().filter(|name| form.has(name)).collect::<Vec<_>>();
        assert_eq!(of(Form::Erased), ["a.b erased", "a.b", "a.is_not_static"]);
        assert_eq!(of(Form::Static), ["a.b static", "a.b", "a.is_not_static"]);
        assert_eq!("erased".parse(), Ok(Form::Erased));
        assert!("hidden".parse::<Form>().is_err());
    }

    #[test]
    fn what_is_left_out_has_the_reason_of_the_command_line() {
        let read = |value| {
            let (name, why) = left_out(value);
            format!("{name} | {why}")
        };
        assert_eq!(read("a.b -c: takes minutes: here"), "a.b -c | takes minutes: here");
        assert_eq!(read("a.b"), "a.b | asked for with --skip");
    }

    #[test]
    fn the_tally_ends_as_its_reader_expects() {
        let mut tally = Tally::default();
        for verdict in [Ok(()), Ok(()), fail("x"), skip("y")] {
            tally.line("a", verdict);
        }
        assert_eq!(tally.to_string(), "2 passed, 1 failed, 1 skipped");
    }

    #[test]
    fn parts_are_told_and_counted_and_the_case_only_if_they_do_not_say_it_all() {
        let texts = [Ok(()), skip("no\ndevice"), fail("broken")].map(verdict_text);
        let stdout: String = texts.iter().map(|text| format!("noise\npart: a.b c\t{text}\n")).collect();
        let parts = read_parts(&stdout);
        assert_eq!(parts.len(), 3);
        let lines = ["ok a.b c", "skip a.b c: no | device", "FAIL a.b c: broken"];
        let mut tally = Tally::default();
        assert_eq!(tally.lines("a.case", Ended { parts: parts.clone(), verdict: Ok(()) }), lines);
        assert_eq!(tally.to_string(), "1 passed, 1 failed, 1 skipped");
        let died = tally.lines("a.case", Ended { parts, verdict: fail("it died") });
        assert_eq!((&died[..3], &*died[3]), (&lines.map(str::to_owned)[..], "FAIL a.case: it died"));
        assert_eq!(tally.lines("a.case", Ended { parts: Vec::new(), verdict: Ok(()) }), ["ok a.case"]);
    }

    #[test]
    fn a_panic_is_a_failure_that_says_where() {
        let Err(Stop::Failed(why)) = caught(&|| panic!("broken {}", 7)) else { panic!("no failure") };
        assert!(why.contains("runner.rs:") && why.ends_with("broken 7"), "{why}");
        assert_eq!(caught(&|| skip("why")), Err(Stop::Skipped("why".to_owned())));
    }

    #[test]
    fn errors_keep_their_causes() {
        let inner = io::Error::from_raw_os_error(libc::EACCES);
        let Stop::Failed(why) = Stop::from(inner) else { panic!("no failure") };
        assert!(why.starts_with("Permission denied"), "{why}");
    }

    #[test]
    fn only_a_verdict_with_status_0_counts() {
        let exit = |code: i32| ExitStatus::from_raw(code << 8);
        assert_eq!(read_verdict(exit(0), "noise\nverdict: ok\n"), Ok(()));
        assert_eq!(read_verdict(exit(0), "verdict: skip no device\n"), skip("no device"));
        assert_eq!(read_verdict(exit(0), "verdict: FAIL it broke\n"), fail("it broke"));
        for (status, stdout) in [
            (exit(0), ""),
            (exit(0), "verdict: ok\nmore\n"),
            (exit(1), "verdict: ok\n"),
            (ExitStatus::from_raw(libc::SIGSEGV), "verdict: ok\n"),
        ] {
            assert!(matches!(read_verdict(status, stdout), Err(Stop::Failed(_))), "{status} {stdout:?}");
        }
    }

    #[test]
    fn cases_are_chosen_by_suite_group_or_name() {
        let name = "interop.pingpong ours to theirs, -e";
        for wanted in ["interop", "interop.pingpong", name] {
            assert!(is_of(name, wanted), "{wanted}");
        }
        for wanted in ["inter", "interop.ping", "pingpong", "interop.pingpong x"] {
            assert!(!is_of(name, wanted), "{wanted}");
        }
    }
}
