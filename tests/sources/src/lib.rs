//! Tests that read the sources and pages of the workspace as text. They use no library of the
//! workspace. In one package with the suites, each would have to wait for the other's build.
//!
//! | test | content |
//! |---|---|
//! | `barrier_sites` | each place that orders memory has a row in docs/barriers.md |
//! | `environment` | the libraries read the environment in one place |
//! | `folders` | folders import only folders below them |
//! | `libibverbs` | docs/libibverbs.md has a true row for each libibverbs name |
//! | `nameable` | a program can name each type in a public signature |
//! | `platforms` | the compiler rejects unsupported targets, with a one-sentence error |
