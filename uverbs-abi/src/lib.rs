//! The Linux kernel's RDMA user ABI as Rust types: uverbs, rdma netlink, rdma_cm, umad, rxe, mlx5.
#![no_std]
#![forbid(unsafe_code)]
