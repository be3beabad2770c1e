//! Send, receive and shared receive queues: preallocated rings of work requests.

mod recv;
mod send;

pub(crate) use recv::{MAX_SRQ_SGE, RecvQueue, Srq};
pub(crate) use send::{Bytes, SendQueue, Wqe};
