//! The objects in the kernel, as `rdma resource show` counts them, and the process's descriptors.
//! Also defines the suite's name.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};

use verbs_fixtures::fabric::{eventually, is_soft, under_test};
use verbs_harness::runner::{CaseResult, Stop, fail, skip};

pub(super) const SUITE: &str = "lifecycle";

/// The number of the device's objects in the kernel, by kind.
pub(crate) type Resources = BTreeMap<String, u64>;

pub(crate) fn resources() -> CaseResult<Resources> {
    if is_soft()? {
        let count = |of: &str| {
            Ok::<_, Stop>((of.to_owned(), fs::read_dir(format!("/proc/self/{of}"))?.count() as u64))
        };
        return ["fd", "task"].into_iter().map(count).collect();
    }
    // Uses no threads, because their stacks would count as the process's memory.
    let shown = match Command::new("rdma").args(["resource", "show"]).stdin(Stdio::null()).output() {
        Ok(shown) => shown,
        Err(why) => return skip(format_args!("no rdma tool (package iproute2): {why}")),
    };
    assert!(shown.status.success(), "{shown:?}");
    let shown = String::from_utf8_lossy(&shown.stdout);
    match parse_resources(&shown, under_test()) {
        Some(resources) => Ok(resources),
        None => fail(format_args!("no {} in {shown:?}", under_test())),
    }
}

/// Parses a line such as `0: rxe0: pd 1 cq 1 qp 1 cm_id 0 mr 0 ctx 0 srq 0`.
pub fn parse_resources(text: &str, device: &str) -> Option<Resources> {
    let line = text.lines().find_map(|line| line.split_once(&format!(": {device}: ")))?.1;
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    words.chunks(2).map(|pair| Some(((*pair.first()?).to_owned(), pair.get(1)?.parse().ok()?))).collect()
}

/// Waits until the counts are back at the baseline, because objects may be destroyed in the
/// background.
pub(crate) fn back_to(baseline: &Resources) -> CaseResult {
    back_to_one_of(&[baseline])
}

/// Waits until the counts are back at a baseline taken before the first connection. A soft device
/// keeps a socket for the address on this host that it has connected to.
pub(crate) fn back_to_first(baseline: &Resources) -> CaseResult {
    let mut with_socket = baseline.clone();
    if is_soft()? {
        with_socket.entry("fd".to_owned()).and_modify(|count| *count += 1);
    }
    back_to_one_of(&[baseline, &with_socket])
}

fn back_to_one_of(baselines: &[&Resources]) -> CaseResult {
    let mut now = resources()?;
    let is_back = eventually("resources are back to what they were", || {
        now = resources().unwrap_or_default();
        baselines.contains(&&now)
    });
    is_back.or_else(|_| fail(format_args!("the kernel has {now:?}, and had {:?}", baselines[0])))
}

pub(super) fn fds() -> CaseResult<usize> {
    Ok(fs::read_dir("/proc/self/fd")?.count())
}
