//! Options of an id: `SET_OPTION`, `GET_OPTION`.

use core::mem::offset_of;

use uverbs_abi::rdma_user_cm::{
    RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, RDMA_OPTION_ID_AFONLY,
    RDMA_OPTION_ID_REUSEADDR, RDMA_OPTION_ID_TOS, RDMA_USER_CM_CMD_GET_OPTION, RDMA_USER_CM_CMD_SET_OPTION,
    RdmaUcmSetOption,
};
use verbs::{Errno, Error, Result};
use zerocopy::IntoBytes;

use crate::channel::{Command, Ucma};
use crate::types::PathRecord;

/// An option and its value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum IdOption<'a> {
    /// The type of service of the connection's packets.
    Tos(u8),
    /// Whether the id may share a port with another id. Both ids must permit it.
    ReuseAddr(bool),
    /// Whether a listener on an IPv6 address excludes IPv4 connections.
    AfOnly(bool),
    /// The acknowledgement time-out, a 5-bit code n: 4.096 µs × 2ⁿ.
    AckTimeout(u8),
    /// The path of the connection, set instead of resolving a route.
    IbPath(&'a [PathRecord]),
}

const VERB: &str = "set_option";

/// Sets an option.
///
/// # Errors
/// `ENOSYS` for an option unknown to the kernel, `EINVAL` for an invalid value or an id in the
/// wrong state; any other errno the kernel returns.
#[doc(alias = "rdma_set_option")]
pub(crate) fn set_option(ucma: &Ucma, id: u32, option: IdOption<'_>) -> Result<()> {
    let (level, optname, value) = match option {
        IdOption::Tos(tos) => (RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, vec![tos]),
        IdOption::ReuseAddr(on) => (RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, int(on)),
        IdOption::AfOnly(on) => (RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, int(on)),
        IdOption::AckTimeout(timeout) => (RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, vec![timeout]),
        IdOption::IbPath(paths) => {
            let bytes = paths.iter().flat_map(|path| path.to_wire().as_bytes().to_vec());
            (RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, bytes.collect())
        }
    };
    let optlen = u32::try_from(value.len()).map_err(|_| Error::new(VERB, "", Errno::INVAL))?;
    let request = RdmaUcmSetOption { optval: 0, id, level, optname, optlen };
    let command = Command {
        value: Some((offset_of!(RdmaUcmSetOption, optval), &value)),
        ..Command::new(RDMA_USER_CM_CMD_SET_OPTION, request.as_bytes())
    };
    ucma.write(VERB, command)
}

/// Queries an option. The method has a number but no struct, because no kernel has ever implemented
/// it.
///
/// # Errors
/// `ENOSYS` from every current kernel.
#[cfg_attr(not(test), expect(dead_code, reason = "no kernel has the method; the test keeps its number"))]
pub(crate) fn get_option(ucma: &Ucma) -> Result<()> {
    ucma.write("get_option", Command::new(RDMA_USER_CM_CMD_GET_OPTION, &[]))
}

/// Returns a C `int` as bytes.
fn int(on: bool) -> Vec<u8> {
    i32::from(on).to_ne_bytes().to_vec()
}
