//! The options of an id.
//!
//! # Safety
//! See [`rdmacm`](super). An option's value has the length that the program states.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_void};

use rdmacm::PathRecord;
use uverbs_abi::ib_user_sa::{IB_PATH_BIDIRECTIONAL, IB_PATH_GMP, IB_PATH_PRIMARY};
use verbs_core::Errno;

use super::id::private;
use super::{Result, given, refuse, status};
use crate::abi::c::{
    RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, RDMA_OPTION_ID_AFONLY,
    RDMA_OPTION_ID_REUSEADDR, RDMA_OPTION_ID_TOS, rdma_cm_id,
};

/// `rdma_set_option(3)`.
///
/// # Safety
/// `id` must be live; `optval` must point to `optlen` readable bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: usize,
) -> c_int {
    given!(id, optval);
    // SAFETY: guaranteed by the caller.
    let value = unsafe { core::slice::from_raw_parts(optval.cast::<u8>(), optlen) };
    // SAFETY: as above.
    status(unsafe { set(id, level, optname, value) })
}

/// Sets an option.
///
/// # Errors
/// `ENOSYS` for an unknown option and `EINVAL` for a value of the wrong length, as from the kernel;
/// any error from setting the option.
///
/// # Safety
/// `id` must be live.
pub(super) unsafe fn set(id: *mut rdma_cm_id, level: c_int, name: c_int, value: &[u8]) -> Result {
    // SAFETY: guaranteed by the caller.
    let private = unsafe { private(id) };
    match (level, name) {
        (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS) => {
            let tos = byte(value)?;
            private.call(|cm| cm.set_tos(tos))
        }
        (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR) => {
            let on = flag(value)?;
            private.call(|cm| cm.set_reuse_addr(on))
        }
        (RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY) => {
            let on = flag(value)?;
            private.call(|cm| cm.set_af_only(on))
        }
        (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT) => {
            let timeout = byte(value)?;
            private.call(|cm| cm.set_ack_timeout(timeout))
        }
        (RDMA_OPTION_IB, RDMA_OPTION_IB_PATH) => {
            let paths = paths(value)?;
            private.call(|cm| cm.set_ib_path(&paths))
        }
        _ => Err(refuse("set_option", Errno::NOSYS, "an unknown option")),
    }
}

/// Returns the error for a value whose length is not the option's.
#[cold]
fn wrong_length() -> Errno {
    refuse("set_option", Errno::INVAL, "the value has another length than the option's")
}

fn byte(value: &[u8]) -> Result<u8> {
    match value {
        [byte] => Ok(*byte),
        _ => Err(wrong_length()),
    }
}

fn flag(value: &[u8]) -> Result<bool> {
    value.try_into().map(|bytes| c_int::from_ne_bytes(bytes) != 0).map_err(|_| wrong_length())
}

/// Parses an array of `ibv_path_data`: flags, 4 bytes, and the path record. The kernel uses the
/// bidirectional paths that are meant for the connection's messages.
fn paths(value: &[u8]) -> Result<Vec<PathRecord>> {
    const LEN: usize = 72;
    const FLAGS: u32 = IB_PATH_GMP | IB_PATH_PRIMARY | IB_PATH_BIDIRECTIONAL;
    if !value.len().is_multiple_of(LEN) {
        return Err(wrong_length());
    }
    let of = |data: &[u8]| {
        let (flags, record) = (data.first_chunk()?, data.last_chunk()?);
        (u32::from_ne_bytes(*flags) == FLAGS).then(|| PathRecord::from_bytes(record))
    };
    let paths: Vec<_> = value.chunks_exact(LEN).filter_map(of).collect();
    if paths.is_empty() {
        return Err(refuse("set_option", Errno::INVAL, "none of the paths is primary and bidirectional"));
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_another_length_is_refused() {
        assert_eq!((byte(&[7]), byte(&[7, 0]), byte(&[])), (Ok(7), Err(Errno::INVAL), Err(Errno::INVAL)));
        assert_eq!((flag(&[0, 0, 1, 0]), flag(&[0; 4])), (Ok(true), Ok(false)));
        assert_eq!(flag(&[1]), Err(Errno::INVAL));
    }

    #[test]
    fn of_an_array_of_paths_those_of_the_connection_are_taken() {
        let path = |flags: u32, hop_limit| {
            let mut data = [0; 72];
            data[..4].copy_from_slice(&flags.to_ne_bytes());
            data[8 + 47] = hop_limit;
            data
        };
        let found = paths(&[path(43, 5), path(4, 6)].concat()).unwrap();
        assert_eq!(found.iter().map(|path| path.hop_limit).collect::<Vec<_>>(), [5]);
        for wrong in [&path(4, 6)[..], &[0; 71], &[]] {
            assert_eq!(paths(wrong), Err(Errno::INVAL));
        }
    }
}
