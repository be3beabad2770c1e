//! Conformance cases, interop, and what the guest's side of testing is made of.
//!
//! | module | what it is |
//! |---|---|
//! | [`api_fuzz`] | random calls of the public API in safe code |
//! | [`runner`] | cases, each in a process of its own with a deadline |
//! | [`forked`] | functions in processes of their own |
//! | [`process`] | commands with a deadline, servers |
//! | [`port`] | TCP ports for servers |
//! | [`fabric`] | two connected queue pairs, memory for them, waiting |
//! | [`pair`] | two programs that connect over TCP |
//! | [`peer`] | two processes that try everything on each other |
//! | [`refuse`] | work under a filter that refuses commands to uverbs |
//! | [`sandbox`] | what a case may do to its own process |
//! | [`perftest`], [`pyverbs`] | results of programs that do not know this project |
//! | [`suites`] | the cases themselves |
//! | [`compare`] | what our tools say next to what rdma-core's say |
//! | [`tools`] | the tools, ours and rdma-core's |

pub mod api_fuzz;
pub mod compare;
pub mod fabric;
pub mod forked;
pub mod pair;
pub mod peer;
pub mod perftest;
pub mod port;
pub mod process;
pub mod pyverbs;
pub mod refuse;
pub mod runner;
pub mod sandbox;
pub mod suites;
pub mod tools;
