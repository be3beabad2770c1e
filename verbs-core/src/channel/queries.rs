//! The queries that also reveal the state of a failed device: their replies, as the kernel returns
//! them. [`cmd`](crate::cmd) converts the replies into values.

use uverbs_abi::ib_user_ioctl_cmds::{
    UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS, UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX,
    UVERBS_ATTR_QUERY_GID_ENTRY_PORT, UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY,
    UVERBS_ATTR_QUERY_PORT_PORT_NUM, UVERBS_ATTR_QUERY_PORT_RESP, UVERBS_METHOD_QUERY_GID_ENTRY,
    UVERBS_METHOD_QUERY_PORT, UVERBS_OBJECT_DEVICE,
};
use uverbs_abi::ib_user_ioctl_verbs::{IbUverbsGidEntry, IbUverbsQueryPortRespEx};
use uverbs_abi::ib_user_verbs::{IB_USER_VERBS_CMD_QUERY_PORT, IbUverbsQueryPort};
use zerocopy::IntoBytes;

use super::{Attr, Uhw, Uverbs, WriteCmd};
use crate::errno::Errno;

/// Returns the kernel's reply to a port query.
pub(crate) fn port(uverbs: &Uverbs, port_num: u8) -> Result<IbUverbsQueryPortRespEx, Errno> {
    let mut reply = IbUverbsQueryPortRespEx::default();
    let mut attrs = [
        Attr::u64(UVERBS_ATTR_QUERY_PORT_PORT_NUM, port_num.into()),
        Attr::output(UVERBS_ATTR_QUERY_PORT_RESP, reply.as_mut_bytes()),
    ];
    if !uverbs.try_ioctl(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_PORT, &mut attrs)? {
        let request = IbUverbsQueryPort { response: 0, port_num, reserved: [0; 7] };
        let command = WriteCmd::new(
            IB_USER_VERBS_CMD_QUERY_PORT,
            request.as_bytes(),
            reply.legacy_resp.as_mut_bytes(),
            Uhw::none(),
        );
        uverbs.write(command)?;
    }
    Ok(reply)
}

/// Returns the kernel's reply to a GID entry query, which has no driver data; `None` if the kernel
/// lacks the method.
pub(crate) fn gid_entry(
    uverbs: &Uverbs,
    port_num: u8,
    gid_index: u32,
) -> Result<Option<IbUverbsGidEntry>, Errno> {
    let mut entry = IbUverbsGidEntry::default();
    let mut attrs = [
        Attr::u64(UVERBS_ATTR_QUERY_GID_ENTRY_PORT, port_num.into()),
        Attr::u64(UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX, gid_index.into()),
        Attr::u32(UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS, 0),
        Attr::output(UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY, entry.as_mut_bytes()),
    ];
    let done = uverbs.try_ioctl(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_GID_ENTRY, &mut attrs)?;
    Ok(done.then_some(entry))
}
