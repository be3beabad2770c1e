//! The function as a PCI device: its configuration space and BAR 0.
//!
//! | module | contents |
//! |---|---|
//! | [`config_space`] | configuration space |
//! | [`iseg`] | the initialisation segment |
//! | [`uar`] | doorbells |
//! | [`memic`] | device memory |

pub(crate) mod config_space;
pub(crate) mod iseg;
pub(crate) mod memic;
pub(crate) mod uar;
