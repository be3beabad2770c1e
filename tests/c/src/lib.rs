//! Programs in C. The suites' own are compiled on the host. The output of programs written for
//! rdma-core is read here.
//!
//! | module or folder | content |
//! |---|---|
//! | [`arguments`] | C calls with odd arguments, and the decided differences from rdma-core |
//! | [`beside_poller`] | a C program that ends a queue pair beside a poller |
//! | [`together`] | two programs that disconnect together |
//! | [`compiled`] | the C programs of suites, compiled |
//! | [`record`] | a program's commands to uverbs, recorded and compared |
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
