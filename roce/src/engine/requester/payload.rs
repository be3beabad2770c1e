//! Message bytes: checks them, gathers them from registered memory and scatters them to it.
//!
//! Every failure here is a local protection error (IBTA 10.6.3.3, 10.8.2.2).

use crate::engine::environment::Environment;
use crate::engine::memory::{Memory, Sink};
use crate::engine::qp::Qp;
use crate::engine::queue::Bytes;
use crate::engine::scatter;
use crate::engine::types::{Access, Status};

/// Checks that all elements of the work request at `position` allow the access `need`.
pub(super) fn check<M: Memory, S: Sink>(
    qp: &Qp,
    env: &Environment<'_, M, S>,
    position: u32,
    need: Access,
) -> Result<(), Status> {
    match qp.sq.bytes(position) {
        Bytes::Sges(sges) if !scatter::check(env.memory_regions, qp.pd, sges, need) => {
            Err(Status::LocalProtection)
        }
        _ => Ok(()),
    }
}

/// Copies `out.len()` bytes of the message at `position`, starting at `offset`, into `out`.
#[inline]
pub(super) fn gather<M: Memory, S: Sink>(
    qp: &Qp,
    env: &mut Environment<'_, M, S>,
    position: u32,
    offset: u32,
    out: &mut [u8],
) -> Result<(), Status> {
    match qp.sq.bytes(position) {
        Bytes::Inline(bytes) => {
            let from = offset as usize;
            let bytes = bytes.get(from..from + out.len()).ok_or(Status::LocalProtection)?;
            out.copy_from_slice(bytes);
            Ok(())
        }
        Bytes::Sges(sges) => {
            scatter::gather(env.memory_regions, env.memory, qp.pd, sges, u64::from(offset), out)
                .map_err(|_| Status::LocalProtection)
        }
    }
}

/// Copies `data` into the memory of the message at `position`, starting at `offset`.
#[inline]
pub(super) fn spread<M: Memory, S: Sink>(
    qp: &Qp,
    env: &mut Environment<'_, M, S>,
    position: u32,
    offset: u32,
    data: &[u8],
) -> Result<(), Status> {
    let Bytes::Sges(sges) = qp.sq.bytes(position) else { return Err(Status::LocalProtection) };
    scatter::scatter(env.memory_regions, env.memory, qp.pd, sges, u64::from(offset), data)
        .map_err(|_| Status::LocalProtection)
}
