//! The harness: cases, their processes, and the tools they start. It does not use our API, so tests
//! of every package can use it.
//!
//! | module | content |
//! |---|---|
//! | [`sandbox`] | a case's changes to its process: mounts, privileges |
//! | [`listening`] | servers that listen with an id of librdmacm |
//! | [`pair`] | two programs that connect over TCP |
//! | [`tools`] | the tools, ours and rdma-core's |
//! | [`refuse`] | programs under a filter that rejects commands to uverbs |
//! | [`runner`] | runs each case in a separate process with a deadline |
//! | [`address`] | an address for a case's soft devices |
//! | [`forked`] | functions in child processes |
//! | [`process`] | commands with a deadline, servers |
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
