//! Tests that read the sources and the pages of the workspace as text. They use no library of the
//! workspace. In a package with the suites, each of the two would wait for the build of the other.
//!
//! | test | content |
//! |---|---|
//! | `barrier_sites` | each place that orders memory has a row in docs/barriers.md |
//! | `environment` | the libraries read the environment in one place |
//! | `folders` | folders import only folders below them |
//! | `libibverbs` | docs/libibverbs.md has a true row for each name of libibverbs |
//! | `nameable` | a program can name each type in a public signature |
//! | `platforms` | the compiler rejects unsupported targets, with a sentence |
