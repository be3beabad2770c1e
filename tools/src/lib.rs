//! rdma-core's programs: how they read command lines, numbers and addresses.

pub mod ctext;
pub mod getopt;
