//! [`Mlx5`]: the marker type that identifies this provider in its objects' types.

/// The provider for ConnectX devices.
#[derive(Debug)]
pub enum Mlx5 {}
