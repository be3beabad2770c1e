//! The example runs: it records the kernel's replies even on a machine without RDMA devices.
#![allow(missing_docs)]

use std::path::Path;
use std::process::Command;

#[test]
fn discovery_is_recorded() {
    let test = std::env::current_exe().expect("a test has a program file");
    let folder = test.ancestors().nth(2).map(|folder| folder.join("examples"));
    let program = folder.expect("it lies in target/PROFILE/deps").join("record_discovery");
    assert!(program.exists(), "run `cargo build -p verbs-core --examples` first: {}", program.display());
    let output = Command::new(&program).output().expect("it can be started");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.starts_with("# Linux "), "{output:?}");
    assert!(text.contains("# told by "), "{text}");
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    assert_eq!(examples.read_dir().expect("the folder of examples").count(), 1, "another one has no test");
}
