//! `faults`: what programs see of a device that fails.

use super::Setup;
use crate::runner::Case;

/// The suite.
pub fn cases(_: Setup) -> Vec<Case> {
    Vec::new()
}
