//! Conformance cases, interop, and what the guest's side of testing is made of.
//!
//! | module | what it is |
//! |---|---|
//! | [`refuse`] | work under a filter that refuses commands to uverbs |

pub mod refuse;
