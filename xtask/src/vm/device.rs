//! The kinds of RDMA device that a guest can have.

/// Values of `--device`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Device {
    /// rxe0 on a veth with 10.9.9.1/24
    Rxe,
    /// A software model of a ConnectX under the kernel's mlx5 driver: mlx5_0, and mlx5_1 with
    /// --functions 2
    Mlx5,
    /// No device; the modules are loaded
    None,
}
