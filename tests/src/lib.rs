//! Conformance cases, interop, and what the guest's side of testing is made of.
//!
//! | module | what it is |
//! |---|---|
//! | [`runner`] | cases, each in a process of its own with a deadline |
//! | [`process`] | commands with a deadline, servers |
//! | [`fabric`] | two connected queue pairs, memory for them, waiting |
//! | [`refuse`] | work under a filter that refuses commands to uverbs |
//! | [`suites`] | the cases themselves |
//! | [`tools`] | the tools, ours and rdma-core's |

pub mod fabric;
pub mod process;
pub mod refuse;
pub mod runner;
pub mod suites;
pub mod tools;
