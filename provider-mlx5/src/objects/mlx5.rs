//! [`Mlx5`]: the name of the provider in the types of its objects.

/// The provider for ConnectX devices.
#[derive(Debug)]
pub enum Mlx5 {}
