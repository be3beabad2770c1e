//! The GID and partition key tables of ports: `QUERY_GID_TABLE` and `QUERY_GID_ENTRY`, or sysfs.

use std::fs;
use std::path::Path;

use uverbs_abi::ib_user_ioctl_cmds::{
    UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE, UVERBS_ATTR_QUERY_GID_TABLE_FLAGS,
    UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES, UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES,
    UVERBS_METHOD_QUERY_GID_TABLE, UVERBS_OBJECT_DEVICE,
};
use uverbs_abi::ib_user_ioctl_verbs::IbUverbsGidEntry;
use zerocopy::IntoBytes;

use crate::channel::{Attr, Uverbs, queries};
use crate::errno::Errno;
use crate::error::Result;
use crate::room;
use crate::types::{Gid, GidEntry, GidType, LinkLayer};

/// The maximum number of entries that fit into an attribute, which holds at most 64 KiB minus one
/// byte.
const MAX_ENTRIES: usize = u16::MAX as usize / size_of::<IbUverbsGidEntry>();

/// Returns every valid entry of all ports' tables in one call; `None` if the kernel lacks the
/// method.
///
/// # Errors
/// Any errno the kernel returns; notably `EINVAL` for more entries than one call can return (2047).
/// `ENOMEM` if this process has no memory for the entries.
/// [`Cause::BadReply`](crate::Cause::BadReply) if the kernel reports more entries than requested.
#[doc(alias = "ibv_query_gid_table")]
pub fn query_gid_table(uverbs: &Uverbs) -> Result<Option<Vec<GidEntry>>> {
    let no_memory = |errno| uverbs.error("query_gid_table", errno);
    let mut entries = room::copies(IbUverbsGidEntry::default(), MAX_ENTRIES).map_err(no_memory)?;
    let mut count = 0_u64;
    let mut attrs = [
        Attr::u64(UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE, size_of::<IbUverbsGidEntry>() as u64),
        Attr::u32(UVERBS_ATTR_QUERY_GID_TABLE_FLAGS, 0),
        Attr::output(UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES, entries.as_mut_bytes()),
        Attr::output(UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES, count.as_mut_bytes()),
    ];
    let done = uverbs
        .try_ioctl(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_GID_TABLE, &mut attrs)
        .map_err(|errno| uverbs.error("query_gid_table", errno))?;
    if !done {
        return Ok(None);
    }
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let told = entries
        .get(..count)
        .ok_or_else(|| uverbs.bad_reply("query_gid_table", "more entries than there is room for"))?;
    let mut found = Vec::new();
    found.try_reserve_exact(told.len()).map_err(|_| no_memory(Errno::NOMEM))?;
    found.extend(told.iter().map(from_kernel));
    Ok(Some(found))
}

/// Returns one entry of a port's GID table; `Ok(None)` if the entry is empty.
///
/// # Errors
/// `Err(None)` if the kernel lacks the method; otherwise any errno the kernel returns, notably
/// `EINVAL` for an index outside the table.
#[doc(alias = "ibv_query_gid_ex")]
pub fn query_gid_entry(
    uverbs: &Uverbs,
    port_num: u8,
    gid_index: u32,
) -> core::result::Result<Option<GidEntry>, Option<crate::Error>> {
    match queries::gid_entry(uverbs, port_num, gid_index) {
        Ok(Some(entry)) => Ok(Some(from_kernel(&entry))),
        Ok(None) => Err(None),
        Err(Errno::NODATA) => Ok(None),
        Err(errno) => Err(Some(uverbs.error("query_gid", errno))),
    }
}

fn from_kernel(entry: &IbUverbsGidEntry) -> GidEntry {
    let mut gid = [0; 16];
    gid.copy_from_slice(entry.gid.as_bytes());
    GidEntry {
        gid: Gid(gid),
        gid_index: entry.gid_index,
        port_num: entry.port_num,
        gid_type: GidType(entry.gid_type),
        ndev_ifindex: entry.netdev_ifindex,
    }
}

/// Returns one GID table entry from sysfs (`ports/P/gids/I` and related files); `Ok(None)` if the
/// entry is empty.
///
/// # Errors
/// `ENOENT` for an index outside the table, `EBADMSG` for text that is not a GID, or any other
/// errno from reading the file.
pub fn sysfs_gid_entry(
    ibdev_path: &Path,
    port_num: u8,
    gid_index: u32,
    link_layer: LinkLayer,
) -> Result<Option<GidEntry>, Errno> {
    let port = ibdev_path.join(format!("ports/{port_num}"));
    let text = read(&port.join(format!("gids/{gid_index}")))?;
    let gid = parse_gid(&text).ok_or(Errno::BADMSG)?;
    if gid.is_zero() {
        return Ok(None);
    }
    // Without the directory, or on InfiniBand ports (EINVAL), GIDs have only one type.
    let gid_type = match read(&port.join(format!("gid_attrs/types/{gid_index}"))) {
        Ok(text) if text == "RoCE v2" => GidType::ROCE_V2,
        Ok(_) | Err(_) if link_layer == LinkLayer::ETHERNET => GidType::ROCE_V1,
        Ok(_) | Err(_) => GidType::IB,
    };
    let ndev_ifindex = read(&port.join(format!("gid_attrs/ndevs/{gid_index}")))
        .ok()
        .and_then(|name| nix::net::if_::if_nametoindex(name.as_str()).ok())
        .unwrap_or(0);
    Ok(Some(GidEntry { gid, gid_index, port_num: port_num.into(), gid_type, ndev_ifindex }))
}

/// Returns one entry of a port's partition key table (`ports/P/pkeys/I`), in host order.
///
/// # Errors
/// `ENOENT` for an index outside the table, `EBADMSG` for text that is not a partition key, or any
/// other errno from reading the file.
#[doc(alias = "ibv_query_pkey")]
pub fn sysfs_pkey(ibdev_path: &Path, port_num: u8, index: u16) -> Result<u16, Errno> {
    let text = read(&ibdev_path.join(format!("ports/{port_num}/pkeys/{index}")))?;
    let digits = text.strip_prefix("0x").ok_or(Errno::BADMSG)?;
    u16::from_str_radix(digits, 16).map_err(|_| Errno::BADMSG)
}

fn read(path: &Path) -> Result<String, Errno> {
    let text = fs::read_to_string(path).map_err(|error| Errno::from_io(&error))?;
    Ok(text.trim_end().to_owned())
}

/// Parses a GID written as eight groups of four hexadecimal digits.
fn parse_gid(text: &str) -> Option<Gid> {
    let mut gid = [0; 16];
    let mut groups = text.split(':');
    for pair in gid.as_chunks_mut::<2>().0 {
        let group =
            groups.next().filter(|group| group.len() == 4 && group.bytes().all(|b| b.is_ascii_hexdigit()))?;
        *pair = u16::from_str_radix(group, 16).ok()?.to_be_bytes();
    }
    groups.next().is_none().then_some(Gid(gid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gid_of_sysfs_parses_to_the_value_that_prints_the_same() {
        let text = "fe80:0000:0000:0000:5054:00ff:fe12:3456";
        assert_eq!(format!("{:#}", parse_gid(text).unwrap()), text);
    }

    #[test]
    fn text_that_is_not_a_gid_is_rejected() {
        for text in
            ["", ":", "fe80", "fe80::1", "+e80:0:0:0:0:0:0:0", "0000:0000:0000:0000:0000:0000:0000:0000:0000"]
        {
            assert_eq!(parse_gid(text), None, "{text:?}");
        }
    }
}
