//! [`Rxe`]: the marker type that identifies this provider in its objects' types.

/// The provider for rxe devices.
#[derive(Debug)]
pub enum Rxe {}
