//! Programs in C. The host compiles the suites' own programs. This crate also parses the output of
//! programs written for rdma-core.
//!
//! | module or folder | content |
//! |---|---|
//! | [`arguments`] | C calls with odd arguments, and the decided differences from rdma-core |
//! | [`beside_poller`] | a C program that ends a queue pair while another thread polls |
//! | [`together`] | two programs that disconnect together |
//! | [`compiled`] | compiled C programs for the suites |
//! | [`record`] | a program's uverbs commands, recorded and compared |
//! | [`perftest`], [`pyverbs`], [`ucx`] | results of programs written for rdma-core |
//! | [`compare`] | the output of our tools compared with rdma-core's |
//! | `differential`, `direct`, `compressed` | sources of programs on mlx5 devices |

pub mod arguments;
pub mod beside_poller;
pub mod compare;
pub mod compiled;
pub mod perftest;
pub mod pyverbs;
pub mod record;
pub mod together;
pub mod ucx;
