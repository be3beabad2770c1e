//! Tables of receive work queues (RSS): `CREATE_RWQ_IND_TBL`, `RWQ_IND_TBL_DESTROY`.

use uverbs_abi::ib_user_ioctl_cmds::{
    UVERBS_ATTR_DESTROY_RWQ_IND_TBL_HANDLE, UVERBS_METHOD_RWQ_IND_TBL_DESTROY, UVERBS_OBJECT_RWQ_IND_TBL,
};
use uverbs_abi::ib_user_verbs::{
    IB_USER_VERBS_EX_CMD_CREATE_RWQ_IND_TBL, IB_USER_VERBS_EX_CMD_DESTROY_RWQ_IND_TBL,
    IB_USER_VERBS_MAX_LOG_IND_TBL_SIZE, IbUverbsExCreateRwqIndTable, IbUverbsExCreateRwqIndTableResp,
    IbUverbsExDestroyRwqIndTable,
};
use zerocopy::IntoBytes;

use super::{Destroy, write_ex_only};
use crate::channel::{Uhw, Uverbs, WriteCmd};
use crate::errno::Errno;
use crate::error::{Cause, Result};

/// The kernel's description of a new table of work queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RwqIndTableInfo {
    /// The table's handle.
    pub handle: u32,
    /// The table's number on the device.
    pub ind_tbl_num: u32,
}

/// Creates a table of work queues, given by their handles. A queue may occur more than once.
///
/// # Errors
/// `EINVAL` with [`Cause::Limit`] for more than 8192 entries, and with [`Cause::Other`] for a
/// number of entries that is not a power of 2; otherwise any errno the kernel returns, notably
/// `EOPNOTSUPP` from a device without such tables.
#[doc(alias = "ibv_create_rwq_ind_table")]
pub fn create_rwq_ind_table(uverbs: &Uverbs, wq_handles: &[u32], uhw: Uhw<'_>) -> Result<RwqIndTableInfo> {
    const VERB: &str = "create_rwq_ind_table";
    let log_ind_tbl_size =
        log_size(wq_handles.len()).map_err(|cause| uverbs.error(VERB, Errno::INVAL).because(cause))?;
    let head = IbUverbsExCreateRwqIndTable { comp_mask: 0, log_ind_tbl_size };
    let mut request = [head.as_bytes(), wq_handles.as_bytes()].concat();
    // The command's length is counted in 8-byte words.
    request.resize(request.len().next_multiple_of(8), 0);
    let mut reply = IbUverbsExCreateRwqIndTableResp::default();
    let command =
        WriteCmd::extended(IB_USER_VERBS_EX_CMD_CREATE_RWQ_IND_TBL, &request, reply.as_mut_bytes(), uhw);
    uverbs.write(command).map_err(|errno| uverbs.error(VERB, errno))?;
    let IbUverbsExCreateRwqIndTableResp { ind_tbl_handle, ind_tbl_num, response_length, .. } = reply;
    if (response_length as usize) < size_of_val(&reply) {
        return Err(uverbs.bad_reply(VERB, "a table without a number"));
    }
    Ok(RwqIndTableInfo { handle: ind_tbl_handle, ind_tbl_num })
}

/// Destroys a table of work queues, but not the work queues.
///
/// # Errors
/// Any errno the kernel returns; notably `EBUSY` while queue pairs use it.
#[doc(alias = "ibv_destroy_rwq_ind_table")]
pub fn destroy_rwq_ind_table(uverbs: &Uverbs, handle: u32) -> Result<()> {
    Destroy {
        verb: "destroy_rwq_ind_table",
        object_id: UVERBS_OBJECT_RWQ_IND_TBL,
        method_id: UVERBS_METHOD_RWQ_IND_TBL_DESTROY,
        handle_attr: UVERBS_ATTR_DESTROY_RWQ_IND_TBL_HANDLE,
        handle,
        reply: None,
    }
    .run(uverbs, || {
        let request = IbUverbsExDestroyRwqIndTable { comp_mask: 0, ind_tbl_handle: handle };
        write_ex_only(uverbs, IB_USER_VERBS_EX_CMD_DESTROY_RWQ_IND_TBL, request.as_bytes())
    })
}

/// Returns the base-2 logarithm of a table's size.
fn log_size(entries: usize) -> Result<u32, Cause> {
    const MAX: u64 = 1 << IB_USER_VERBS_MAX_LOG_IND_TBL_SIZE;
    crate::explain::within("entries of a table of work queues", entries as u64, 1, MAX)?;
    if !entries.is_power_of_two() {
        let reason = format!("a table of work queues has a power of 2 as its size, not {entries}");
        return Err(Cause::Other { reason: reason.into() });
    }
    Ok(entries.ilog2())
}
