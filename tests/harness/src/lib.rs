//! The harness: cases, their processes and the tools they start. It does not use our API, so every
//! package's tests can use it.
//!
//! | module | content |
//! |---|---|
//! | [`sandbox`] | a case's changes to its process: mounts, privileges |
//! | [`listening`] | servers that listen with a librdmacm id |
//! | [`pair`] | two programs that connect over TCP |
//! | [`tools`] | the tools, ours and rdma-core's |
//! | [`refuse`] | programs under a filter that rejects uverbs commands |
//! | [`runner`] | runs each case in a separate process with a deadline |
//! | [`address`] | an address for a case's soft devices |
//! | [`forked`] | functions in child processes |
//! | [`process`] | commands with a deadline, and servers |
//! | [`port`] | TCP ports for servers |
//! | [`pattern`] | bytes and choices derived from a seed |

pub mod address;
pub mod forked;
pub mod listening;
pub mod pair;
pub mod pattern;
pub mod port;
pub mod process;
pub mod refuse;
pub mod runner;
pub mod sandbox;
pub mod tools;
