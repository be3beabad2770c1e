//! Tests that read the sources and pages of the workspace as text. They use no library of the
//! workspace. In one package with the suites, each test would have to wait for the suites' build.
//!
//! | test | content |
//! |---|---|
//! | `barrier_sites` | each barrier and each ordered access has a row in docs/barriers.md |
//! | `environment` | only one file of the libraries reads the environment |
//! | `folders` | folders import only folders below them |
//! | `libibverbs` | docs/libibverbs.md has a true row for each libibverbs name |
//! | `nameable` | a program can name each type in a public signature |
//! | `platforms` | the compiler rejects unsupported targets, with a one-sentence error |
