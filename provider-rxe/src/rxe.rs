//! [`Rxe`]: the name of the provider in the types of its objects.

/// The provider for rxe devices.
#[derive(Debug)]
pub enum Rxe {}
