//! `ucx`: UCX's benchmark, with both ends on one function or on two functions.
//!
//! The transports `rc_v` and `ud_v` use libibverbs. With `rc_x` and `ud_x`, UCX would fill the
//! queues itself and send requests with inline data before other elements, which the model rejects
//! (`WqeInline`).

use std::fs;
use std::process::Command;
use std::time::Duration;

use verbs_c_programs::ucx::{Test, batch, check};
use verbs_fixtures::functions::{Setup, device};
use verbs_harness::pair::meet;
use verbs_harness::port;
use verbs_harness::runner::{Case, CaseResult, skip};
use verbs_harness::tools::Maker;

const SUITE: &str = "ucx";

/// The time limit for all tests in a case, which run one after another.
const LIMIT: Duration = Duration::from_secs(120);

const TRANSPORTS: &[&str] = &["rc_v", "ud_v"];

/// The tests. UCX sends the long message in several parts, or the receiver reads it from the
/// sender's memory.
const TESTS: &[Test] = &[
    ("tag", "tag_lat", "8"),
    ("kilobyte-tag", "tag_lat", "1024"),
    ("long-tag", "tag_bw", "65536"),
    ("put", "ucp_put_lat", "1024"),
    ("get", "ucp_get", "1024"),
    ("fadd", "ucp_fadd", "8"),
    ("stream", "stream_bw", "1024"),
];

/// Returns the suite's cases.
pub fn cases(setup: Setup) -> Vec<Case> {
    let mut cases = Vec::new();
    for transport in TRANSPORTS {
        cases.push(Case::new(SUITE, *transport, move || run(setup, transport, [0, 0])).within(2 * LIMIT));
        if setup.functions > 1 {
            let name = format!("{transport} from {} to {}", device(0), device(1));
            cases.push(Case::new(SUITE, name, move || run(setup, transport, [1, 0])).within(2 * LIMIT));
        }
    }
    cases
}

/// Runs all tests between two functions, the server's and the client's, which may be the same.
fn run(setup: Setup, transport: &str, [server, client]: [u8; 2]) -> CaseResult {
    let file = std::env::temp_dir().join(format!("ucx-tests-{}", std::process::id()));
    fs::write(&file, batch(TESTS))?;
    let port = port::free()?;
    let command = |function: u8| -> CaseResult<Command> {
        let Ok(mut command) = Maker::Theirs.tool("ucx_perftest") else {
            return skip("UCX's benchmark is not installed (package ucx-utils)");
        };
        command.args(["-p", &port.to_string(), "-b"]).arg(&file);
        command.env("UCX_NET_DEVICES", format!("{}:1", device(function)));
        command.env("UCX_TLS", format!("{transport},self"));
        if let Some(index) = setup.usual_gid(function)? {
            command.env("UCX_IB_GID_INDEX", index.to_string());
        }
        Ok(command)
    };
    let [_, client] = meet(&mut command(server)?, command(client)?.arg("127.0.0.1"), port, LIMIT)?;
    check(&client, TESTS)
}
