//! Rules that steer packets, and counters.
//!
//! | file | content |
//! |---|---|
//! | [`flow`] | rules that steer packets, and their actions |
//! | [`counters`] | counters of packets and completions |

pub(crate) mod counters;
pub(crate) mod flow;
