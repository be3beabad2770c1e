//! The path between post and poll: queues in memory that the device reads and writes.
//!
//! | module | content |
//! |---|---|
//! | [`cq`] | polling: the entries of a completion queue |
//! | [`sizes`] | the shapes of queues |
//! | [`srq`] | posting shared receives, and operations on tag lists |
//! | [`rq`], [`sq`] | posting receives and sends |
//! | [`entries`] | the memory of receive queues |
//! | [`record`] | the requests in a queue, shared by poster and poller |
//! | [`resources`] | the resources of a queue, released once its object and both queues are gone |

pub(crate) mod cq;
pub(crate) mod entries;
pub(crate) mod record;
pub(crate) mod resources;
pub(crate) mod rq;
pub(crate) mod sizes;
pub(crate) mod sq;
pub(crate) mod srq;
