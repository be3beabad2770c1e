//! Conformance cases, interop, and what the guest's side of testing is made of.
//!
//! | module | what it is |
//! |---|---|
//! | [`api_fuzz`] | random calls of the public API in safe code |
//! | [`arguments`] | C calls with odd arguments, and the decided differences from rdma-core |
//! | [`beside_poller`] | a C program that ends a queue pair beside a poller |
//! | [`runner`] | cases, each in a process of its own with a deadline |
//! | [`forked`] | functions in processes of their own |
//! | [`process`] | commands with a deadline, servers |
//! | [`port`] | TCP ports for servers |
//! | [`fabric`] | two connected queue pairs, memory for them, waiting |
//! | [`compiled`] | the C programs of suites, compiled |
//! | [`together`] | two programs that disconnect together |
//! | [`pair`] | two programs that connect over TCP |
//! | [`pattern`] | bytes and choices that follow from a number |
//! | [`peer`] | two processes that try everything on each other |
//! | [`cm_fabric`] | listeners and connected ids, as [`fabric`] has queue pairs |
//! | [`cm_peer`] | two processes that connect by address |
//! | [`cm_sides`] | the sides of tools that connect by address, on one device or two functions |
//! | [`record`] | the commands that a program sends to uverbs, recorded and compared |
//! | [`refuse`] | work under a filter that refuses commands to uverbs |
//! | [`sandbox`] | what a case may do to its own process |
//! | [`perftest`], [`pyverbs`], [`ucx`] | results of programs that do not know this project |
//! | [`suites`] | the cases themselves |
//! | [`compare`] | what our tools say next to what rdma-core's say |
//! | [`tools`] | the tools, ours and rdma-core's |
//!
//! Without the feature `suites`, on by default, there is only what `api-fuzz` needs: it is built
//! for sanitizers, which takes long. The features `soft`, `rxe` and `mlx5` choose the providers
//! that cases and random calls name: `soft`, the default, for programs of the host; `rxe`, `mlx5`
//! or both for those of guests, which the feature `guest` adds. `kernel` is all three.

pub mod api_fuzz;
#[cfg(feature = "suites")]
pub mod arguments;
#[cfg(feature = "suites")]
pub mod beside_poller;
#[cfg(feature = "suites")]
pub mod cm_fabric;
#[cfg(feature = "suites")]
pub mod cm_peer;
#[cfg(feature = "suites")]
pub mod cm_sides;
#[cfg(feature = "suites")]
pub mod compare;
#[cfg(feature = "suites")]
pub mod compiled;
#[cfg(feature = "suites")]
pub mod fabric;
pub mod forked;
#[cfg(feature = "suites")]
pub mod pair;
pub mod pattern;
#[cfg(feature = "suites")]
pub mod peer;
#[cfg(feature = "suites")]
pub mod perftest;
#[cfg(feature = "suites")]
pub mod port;
pub mod process;
#[cfg(feature = "suites")]
pub mod pyverbs;
#[cfg(feature = "suites")]
pub mod record;
#[cfg(feature = "suites")]
pub mod refuse;
pub mod runner;
#[cfg(feature = "suites")]
pub mod sandbox;
#[cfg(feature = "suites")]
pub mod suites;
#[cfg(feature = "suites")]
pub mod together;
#[cfg(feature = "suites")]
pub mod tools;
#[cfg(feature = "suites")]
pub mod ucx;
