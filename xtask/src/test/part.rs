//! The parts of the checks that take too long for every commit.

/// Values of `--whole`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(super) enum Part {
    /// Each feature alone, the oldest Rust, tests with musl
    Builds,
    /// Every fuzz target and more simulations, for minutes
    Fuzz,
    /// Tests of the libraries and random calls under both sanitizers
    Sanitizers,
    /// Every mutant of the ConnectX provider
    Mutants,
    /// Unit tests, suites, programs and guests for aarch64, emulated
    Aarch64,
    /// Third-party programs on our C libraries
    Programs,
    /// All suites on rxe, on Linux 5.10
    #[value(name = "rxe-5.10")]
    Rxe5_10,
    /// The same on Linux 6.1, and conformance without ioctls
    #[value(name = "rxe-6.1")]
    Rxe6_1,
    /// The same as rxe-5.10 on Linux 6.12
    #[value(name = "rxe-6.12")]
    Rxe6_12,
    /// The same on Linux 7.2
    #[value(name = "rxe-7.2")]
    Rxe7_2,
    /// All suites on the ConnectX model with either kind of port, on Linux 6.1
    #[value(name = "mlx5-6.1")]
    Mlx5_6_1,
    /// Suites divided between the two kinds of port, on Linux 6.12
    #[value(name = "mlx5-6.12")]
    Mlx5_6_12,
    /// The same on Linux 7.2
    #[value(name = "mlx5-7.2")]
    Mlx5_7_2,
}
