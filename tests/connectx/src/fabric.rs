//! [`Fabric`]: functions connected with each other.

use crate::bus::Bus;
use crate::function::Function;

/// One or two functions, and the wire between their ports.
#[derive(Debug)]
pub struct Fabric<B: Bus> {
    functions: Vec<Function<B>>,
}
