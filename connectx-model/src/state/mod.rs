//! The state of each kind of object. The modules above this one use it to execute commands and
//! requests.
//!
//! | module | contents |
//! |---|---|
//! | [`hca`] | the stage of the function, its pages and numbers, the command queue |
//! | [`config_space`], [`iseg`], [`uar`] | registers |
//! | [`eth`], [`work_queue`], [`pacing`] | Ethernet queues, their rings and rates |
//! | [`steering`] | flow tables |
//! | [`qp`], [`work`], [`srq`] | queue pairs, waiting requests, shared queues |
//! | [`cq`], [`compression`], [`eq`] | completion and event queues, compressed blocks |
//! | [`mkey`], [`paging`] | memory keys, page faults |

pub(crate) mod compression;
pub(crate) mod config_space;
pub(crate) mod cq;
pub(crate) mod eq;
pub(crate) mod eth;
pub(crate) mod hca;
pub(crate) mod iseg;
pub(crate) mod mkey;
pub(crate) mod pacing;
pub(crate) mod paging;
pub(crate) mod qp;
pub(crate) mod srq;
pub(crate) mod steering;
pub(crate) mod uar;
pub(crate) mod work;
pub(crate) mod work_queue;
