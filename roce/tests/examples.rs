//! The example `lossy_counter` runs and behaves as documented.
#![allow(missing_docs)]

use std::path::Path;
use std::process::Command;

#[test]
fn a_counter_behind_lossy_links_counts_each_increment_once() {
    let test = std::env::current_exe().expect("a test has a program file");
    let folder = test.ancestors().nth(2).map(|folder| folder.join("examples"));
    let program = folder.expect("it lies in target/PROFILE/deps").join("lossy_counter");
    assert!(program.exists(), "run `cargo build -p roce --examples` first: {}", program.display());
    for seed in ["1", "2", "3"] {
        let output = Command::new(&program).arg(seed).output().expect("it can be started");
        assert!(output.status.success() && !output.stdout.is_empty(), "{output:?}");
    }
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    assert_eq!(examples.read_dir().expect("the folder of examples").count(), 1, "another one has no test");
}
