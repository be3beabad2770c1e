//! `interop`: our tools and rdma-core's tools on ConnectX devices, against each other and side by
//! side.

use verbs_fixtures::functions::{Setup, device};
use verbs_harness::runner::{Case, CaseResult};
use verbs_harness::tools::{Maker, run};

use super::pingpong::TRANSPORTS;

const SUITE: &str = "interop";

/// Returns the suite's cases.
pub fn cases(setup: Setup) -> Vec<Case> {
    let mut cases = Vec::new();
    for makers in [[Maker::Ours, Maker::Theirs], [Maker::Theirs, Maker::Ours], [Maker::Ours, Maker::Ours]] {
        for way in TRANSPORTS {
            let name = format!("{}, {} serve {}", way.name(), makers[0], makers[1]);
            let makers = makers.clone();
            cases.push(Case::new(SUITE, name, move || {
                way.run(setup, makers.clone(), [0, 0], setup.usual_gid(0)?)
            }));
        }
    }
    if setup.functions > 1 {
        for client in [Maker::Theirs, Maker::Ours] {
            for way in TRANSPORTS {
                let (name, functions) = (way.name(), [0, 1].map(device));
                let name = format!("{name}, ours from {} serve {client} from {}", functions[0], functions[1]);
                let makers = [Maker::Ours, client.clone()];
                cases.push(Case::new(SUITE, name, move || way.run(setup, makers.clone(), [0, 1], None)));
            }
        }
    }
    cases.push(Case::new(SUITE, "output of ibv_devices", || outputs("ibv_devices", &[])));
    for args in [&[][..], &["-l"], &["-v"]] {
        let name = format!("output of ibv_devinfo {}", args.join(" "));
        cases.push(Case::new(SUITE, name.trim_end(), move || outputs("ibv_devinfo", args)));
    }
    for function in setup.numbers() {
        let name = format!("output of ibv_devinfo -v -d {} -i 1", device(function));
        cases.push(Case::new(SUITE, name, move || {
            outputs("ibv_devinfo", &["-v", "-d", &device(function), "-i", "1"])
        }));
    }
    cases
}

/// Compares our tool, and rdma-core's tool on our `libibverbs.so.1`, with rdma-core's tool on its
/// own library: the output, byte for byte, and the exit status.
fn outputs(tool: &str, args: &[&str]) -> CaseResult {
    let theirs = run(Maker::Theirs.tool(tool)?.args(args))?;
    assert!(theirs.status.success() && theirs.stderr.is_empty(), "{theirs:?}");
    for maker in [Maker::Ours, Maker::Linked] {
        let other = run(maker.tool(tool)?.args(args))?;
        assert_eq!(other.stdout, theirs.stdout, "{maker}");
        assert_eq!((other.status, &other.stderr), (theirs.status, &theirs.stderr), "{maker}");
    }
    Ok(())
}
