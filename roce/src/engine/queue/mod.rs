//! Send, receive and shared receive queues: preallocated rings of work requests.

use alloc::vec::Vec;

use crate::engine::room;
use crate::engine::types::Refused;

mod recv;
mod send;

pub(crate) use recv::{MAX_SRQ_SGE, RecvQueue, Srq};
pub(crate) use send::{Bytes, SendQueue, Wqe};

/// Allocates `len` copies of a value. Programs choose `len`, so the allocation may fail.
///
/// # Errors
/// [`Refused::NoMemory`] if the allocation fails.
fn filled<T: Clone>(value: T, len: usize) -> Result<Vec<T>, Refused> {
    let mut values = room::with_room(len)?;
    values.resize(len, value);
    Ok(values)
}
