//! [`Capabilities`]: what the function offers, and what the driver has chosen of it.

/// The capability structures, each as the largest that is offered and as it is now.
#[derive(Debug, Default)]
pub struct Capabilities {}
