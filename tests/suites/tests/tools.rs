//! The suites compare each of our tools, listed in `rdma_tools::PROGRAMS`, with rdma-core's.

use rdma_tools::PROGRAMS;
use verbs_tests::{interop, negative};

#[test]
fn every_tool_is_compared_with_rdma_cores_when_it_is_misused() {
    let cases = interop::cases();
    for tool in PROGRAMS {
        let start = format!("interop.misuse of {tool} ");
        assert!(cases.iter().any(|case| case.name.starts_with(&start)), "no case {start:?}");
    }
}

#[test]
fn every_tool_is_compared_with_rdma_cores_without_a_device() {
    // The cmtime of rdma-core 44 has other options.
    for tool in PROGRAMS.iter().filter(|tool| **tool != "cmtime") {
        let compared = negative::TOOLS_WITHOUT_DEVICES.iter().any(|(name, _)| name == tool);
        assert!(compared, "{tool} is not in TOOLS_WITHOUT_DEVICES");
    }
}
