//! The kinds of RDMA device that a guest can have.

/// What `--device` accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Device {
    /// rxe0 on a veth with 10.9.9.1/24
    Rxe,
    /// A software model of a ConnectX under the kernel's own mlx5 driver: mlx5_0, and mlx5_1 with --functions 2
    Mlx5,
    /// The modules are loaded, and there is no device
    None,
}
