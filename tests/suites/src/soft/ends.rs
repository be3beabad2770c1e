//! [`finish_both`]: waits for both peers' processes. Also defines the suite's name.

use std::io;
use std::time::Duration;

use verbs_harness::process::{self, Finished, Running};

pub(super) const SUITE: &str = "soft_interop";

/// Waits for both ends, the server first. If one fails, the other has only a short time to finish.
pub(super) fn finish_both(
    mut ends: [Running; 2],
    limit: Duration,
) -> io::Result<[Result<Finished, Finished>; 2]> {
    /// The time for an end without its peer to print its last messages.
    const LAST_WORDS: Duration = Duration::from_secs(5);
    let both_or_a_failure = || {
        let [one, other] = ends.each_mut().map(|end| end.status());
        let has_failed = |status: Option<bool>| status == Some(false);
        one.is_some() && other.is_some() || has_failed(one) || has_failed(other)
    };
    process::wait_until(limit, both_or_a_failure);
    let [server, client] = ends;
    Ok([server.finish(LAST_WORDS)?, client.finish(LAST_WORDS)?])
}
