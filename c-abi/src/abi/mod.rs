//! The boundary to C: its types, values converted to and from them, and functions that need no
//! device.
//!
//! | module | content |
//! |---|---|
//! | [`c`] | the types of `infiniband/verbs.h`, `rdma/rdma_cma.h` and `infiniband/mlx5dv.h` |
//! | [`convert`] | conversions between C attributes and `verbs_core` attributes |
//! | [`errno`] | `errno`, the log of failed calls, and the checks that begin a function |
//! | [`reserve`] | memory for small allocations when the process has none left |
//! | [`rates`], [`strings`] | numbers and names of values |
//! | [`marshall`], [`sysfs`] | copies between structs, sysfs files |

pub mod c;
pub mod marshall;
pub mod rates;
pub mod reserve;
pub mod strings;
pub mod sysfs;

pub(crate) mod convert;
pub(crate) mod errno;
