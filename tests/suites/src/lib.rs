//! Conformance and interoperability cases and the tools to run them in guests.
//!
//! | module | content |
//! |---|---|
//! | [`cm_sides`] | the sides of tools that connect by address, on one device or two functions |
//! | [`suites`] | the cases |
//!
//! The features `soft`, `rxe` and `mlx5` choose the providers named in cases and random calls:
//! `soft`, the default, for programs of the host; `rxe`, `mlx5` or both for programs of guests, which
//! need the feature `guest`. `kernel` is all three.
//!
//! # Tests in other places
//! | test | place |
//! |---|---|
//! | the harness: cases, processes, tools | `tests/harness` |
//! | pairs, connected ids, peers | `tests/fixtures` |
//! | programs in C and their output | `tests/c` |
//! | random calls | `tests/api-fuzz` |
//! | pages compared with sources | `tests/suites/tests`, `tests/paths`, `c-abi/tests`, `cm/tests/names` |
//! | C programs on our libraries and soft devices | `c-abi/tests/programs`, `c-abi/tests/c` |
//! | interleavings of threads (loom) | `provider-soft`, `verbs-core`, `libibverbs-rs` |
//! | protocols in virtual time, with faults | `roce/tests/sim`, `ib-cm/tests/sim.rs` |
//! | the order of barriers in the built code | `provider-mlx5/benches/sites` |
//! | fuzz targets, sanitizers, other targets | `fuzz`, `sanitizer`, `aarch64`, `musl` of xtask |

pub mod cm_sides;
pub mod suites;

/// Compiles the examples of READMEs whose packages do not depend on the API as doctests.
#[cfg(doctest)]
mod readmes {
    #[doc = include_str!("../../../README.md")]
    struct Project;
    #[doc = include_str!("../../../provider-mlx5/README.md")]
    struct Mlx5;
    #[doc = include_str!("../../../provider-rxe/README.md")]
    struct Rxe;
    #[doc = include_str!("../../../provider-soft/README.md")]
    struct Soft;
}
