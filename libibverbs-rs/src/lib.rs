//! RDMA verbs in pure Rust, from the system call up: no C library linked.
