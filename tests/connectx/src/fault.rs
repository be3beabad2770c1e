//! [`Faults`]: what tests inject.

/// What is to go wrong.
#[derive(Debug, Default)]
pub struct Faults {}
