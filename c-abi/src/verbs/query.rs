//! Queries for devices, ports, GIDs and partition keys.
//!
//! # Safety
//! See the crate documentation. Results are written only up to the size of the program's struct.
#![allow(unsafe_code)]

use core::ffi::{c_char, c_int, c_uint};
use core::mem::MaybeUninit;
use core::ptr;

use libc::{ssize_t, timespec};
use verbs_core::provider::DeviceOps;
use verbs_core::types::{DeviceAttr, DeviceAttrEx, GidEntry, GidType, PortAttr};
use verbs_core::{Errno, Error};

use crate::abi::c::{
    _compat_ibv_port_attr, IBV_VALUES_MASK_RAW_CLOCK, ibv_context, ibv_cq_moderation_caps, ibv_device_attr,
    ibv_device_attr_ex, ibv_gid, ibv_gid_entry, ibv_odp_caps, ibv_odp_caps_per_transport_caps,
    ibv_packet_pacing_caps, ibv_pci_atomic_caps, ibv_port_attr, ibv_query_device_ex_input, ibv_rss_caps,
    ibv_tm_caps, ibv_tso_caps, ibv_values_ex,
};
use crate::abi::convert::gid_to_c;
use crate::abi::errno::{self, code, fail, not_null, not_null_or_minus_one, refused};
use crate::handle::context::{device_ops, erased};

/// Writes a struct into memory of `size` bytes: either only its first bytes, or the whole struct
/// followed by zeros. `write` gets a zeroed struct, so padding and unwritten fields are zero as
/// well.
///
/// # Safety
/// `to` must point to `size` bytes, and zeros must be a valid value of the struct.
unsafe fn write_sized<T>(to: *mut T, size: usize, write: impl FnOnce(*mut T)) {
    let mut all = MaybeUninit::<T>::zeroed();
    write(all.as_mut_ptr());
    let to = to.cast::<u8>();
    // SAFETY: guaranteed by the caller.
    unsafe {
        to.write_bytes(0, size);
        ptr::copy_nonoverlapping(all.as_ptr().cast(), to, size.min(size_of::<T>()));
    }
}

/// Writes the attributes of a device.
///
/// # Safety
/// `to` must point to a zeroed struct.
unsafe fn write_device_attr(attr: &DeviceAttr, to: *mut ibv_device_attr) {
    /// Copies fields that have the same name.
    macro_rules! copy {
        ($($field:ident),*) => {
            $((*to).$field = attr.$field as _;)*
        };
    }
    // SAFETY: guaranteed by the caller.
    unsafe {
        let fw_ver = &raw mut (*to).fw_ver;
        // The last byte stays zero as the terminator.
        let length = attr.fw_ver.len().min(size_of_val(&(*to).fw_ver) - 1);
        ptr::copy_nonoverlapping(attr.fw_ver.as_ptr().cast::<c_char>(), fw_ver.cast(), length);
        (*to).node_guid = attr.node_guid.0.to_be();
        (*to).sys_image_guid = attr.sys_image_guid.0.to_be();
        (*to).device_cap_flags = attr.device_cap_flags.bits() as c_uint;
        (*to).atomic_cap = attr.atomic_cap.0;
        copy!(max_mr_size, page_size_cap, vendor_id, vendor_part_id, hw_ver, phys_port_cnt);
        verbs_core::with_device_limits!(copy);
    }
}

/// Writes the attributes of a device, including those added by later releases. Each field is
/// written in place, so the bytes of the struct stay initialised.
///
/// # Safety
/// `to` must point to a zeroed struct.
unsafe fn write_device_attr_ex(attr: &DeviceAttrEx, to: *mut ibv_device_attr_ex) {
    /// Writes each field of a struct.
    macro_rules! fill {
        ($($outer:ident).+: $type:ident { $($field:ident: $value:expr),* $(,)? }) => {
            let ibv_target: *mut $type = &raw mut (*to).$($outer).+;
            $((*ibv_target).$field = $value;)*
        };
    }
    let (odp, tso, rss, pacing) = (&attr.odp_caps, &attr.tso_caps, &attr.rss_caps, &attr.packet_pacing_caps);
    let (tm, moderation, atomics) = (&attr.tm_caps, &attr.cq_mod_caps, &attr.pci_atomic_caps);
    // SAFETY: guaranteed by the caller.
    unsafe {
        write_device_attr(&attr.orig_attr, &raw mut (*to).orig_attr);
        fill!(odp_caps: ibv_odp_caps { general_caps: odp.general_caps.bits() });
        fill!(odp_caps.per_transport_caps: ibv_odp_caps_per_transport_caps {
            rc_odp_caps: odp.rc_odp_caps.bits(),
            uc_odp_caps: odp.uc_odp_caps.bits(),
            ud_odp_caps: odp.ud_odp_caps.bits(),
        });
        (*to).completion_timestamp_mask = attr.completion_timestamp_mask;
        (*to).hca_core_clock = attr.hca_core_clock;
        (*to).device_cap_flags_ex = attr.device_cap_flags_ex.bits();
        fill!(tso_caps: ibv_tso_caps { max_tso: tso.max_tso, supported_qpts: tso.supported_qpts });
        fill!(rss_caps: ibv_rss_caps {
            supported_qpts: rss.supported_qpts,
            max_rwq_indirection_tables: rss.max_rwq_indirection_tables,
            max_rwq_indirection_table_size: rss.max_rwq_indirection_table_size,
            rx_hash_fields_mask: rss.rx_hash_fields_mask,
            rx_hash_function: rss.rx_hash_function,
        });
        (*to).max_wq_type_rq = attr.max_wq_type_rq;
        fill!(packet_pacing_caps: ibv_packet_pacing_caps {
            qp_rate_limit_min: pacing.qp_rate_limit_min,
            qp_rate_limit_max: pacing.qp_rate_limit_max,
            supported_qpts: pacing.supported_qpts,
        });
        (*to).raw_packet_caps = attr.raw_packet_caps.bits();
        fill!(tm_caps: ibv_tm_caps {
            max_rndv_hdr_size: tm.max_rndv_hdr_size,
            max_num_tags: tm.max_num_tags,
            flags: tm.flags.bits(),
            max_ops: tm.max_ops,
            max_sge: tm.max_sge,
        });
        fill!(cq_mod_caps: ibv_cq_moderation_caps {
            max_cq_count: moderation.max_cq_count,
            max_cq_period: moderation.max_cq_period,
        });
        (*to).max_dm_size = attr.max_dm_size;
        fill!(pci_atomic_caps: ibv_pci_atomic_caps {
            fetch_add: atomics.fetch_add.bits(),
            swap: atomics.swap.bits(),
            compare_swap: atomics.compare_swap.bits(),
        });
        (*to).xrc_odp_caps = attr.xrc_odp_caps.bits();
        (*to).phys_port_cnt_ex = attr.phys_port_cnt_ex;
    }
}

/// `ibv_query_device(3)`.
///
/// # Safety
/// `context` must be open; `device_attr` must point to attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    device_attr: *mut ibv_device_attr,
) -> c_int {
    not_null!(context, device_attr);
    // SAFETY: guaranteed by the caller.
    code(unsafe {
        device_attr.write_bytes(0, 1);
        device_ops(context).query_device().map(|found| write_device_attr(&found, device_attr))
    })
}

/// `ibv_query_device_ex(3)`.
///
/// # Safety
/// `context` must be open, `input` must be null or point to input, and `attr` must point to
/// `attr_size` bytes.
pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    attr_size: usize,
) -> c_int {
    not_null!(context, attr);
    // SAFETY: guaranteed by the caller.
    unsafe {
        let asks_more = !input.is_null() && (*input).comp_mask != 0;
        if asks_more || attr_size < size_of::<ibv_device_attr>() {
            let reason = "an input with members, or a result shorter than the plain attributes";
            return fail(&refused("query_device_ex", Errno::INVAL, reason));
        }
        attr.cast::<u8>().write_bytes(0, attr_size);
        let device = device_ops(context);
        if attr_size == size_of::<ibv_device_attr>() {
            return ibv_query_device(context, attr.cast());
        }
        code(device.query_device_ex().map(|found| {
            write_sized(attr, attr_size, |to| write_device_attr_ex(&found, to));
        }))
    }
}

/// Writes the attributes of a port.
///
/// # Safety
/// `to` must point to a zeroed struct.
unsafe fn write_port_attr(attr: &PortAttr, to: *mut ibv_port_attr) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        (*to).state = attr.state.0.into();
        (*to).max_mtu = attr.max_mtu.0.into();
        (*to).active_mtu = attr.active_mtu.0.into();
        (*to).gid_tbl_len = attr.gid_tbl_len as c_int;
        (*to).port_cap_flags = attr.port_cap_flags.bits();
        (*to).max_msg_sz = attr.max_msg_sz;
        (*to).bad_pkey_cntr = attr.bad_pkey_cntr;
        (*to).qkey_viol_cntr = attr.qkey_viol_cntr;
        (*to).pkey_tbl_len = attr.pkey_tbl_len;
        (*to).lid = attr.lid;
        (*to).sm_lid = attr.sm_lid;
        (*to).lmc = attr.lmc;
        (*to).max_vl_num = attr.max_vl_num;
        (*to).sm_sl = attr.sm_sl;
        (*to).subnet_timeout = attr.subnet_timeout;
        (*to).init_type_reply = attr.init_type_reply;
        (*to).active_width = attr.active_width.0;
        (*to).active_speed = attr.active_speed.0 as u8;
        (*to).phys_state = attr.phys_state;
        (*to).link_layer = attr.link_layer.0;
        (*to).flags = attr.flags.bits();
        (*to).port_cap_flags2 = attr.port_cap_flags2.bits();
        (*to).active_speed_ex = attr.active_speed_ex.0;
    }
}

/// `ibv_query_port(3)`, with the size of the program's struct.
///
/// # Safety
/// `context` must be open; `port_attr` must point to `port_attr_len` bytes.
pub(crate) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port_num: u8,
    port_attr: *mut ibv_port_attr,
    port_attr_len: usize,
) -> c_int {
    not_null!(context, port_attr);
    // SAFETY: guaranteed by the caller.
    code(unsafe {
        device_ops(context)
            .query_port(port_num)
            .map(|found| write_sized(port_attr, port_attr_len, |to| write_port_attr(&found, to)))
    })
}

/// `ibv_query_port(3)` for programs built against older releases, without the newer fields after
/// `flags`.
///
/// # Safety
/// `context` must be open; `port_attr` must point to attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port_num: u8,
    port_attr: *mut _compat_ibv_port_attr,
) -> c_int {
    // SAFETY: guaranteed by the caller; this struct is a prefix of the larger struct.
    unsafe { query_port(context, port_num, port_attr.cast(), size_of::<_compat_ibv_port_attr>()) }
}

/// `ibv_query_port_speed(3)`.
///
/// # Safety
/// `context` must be open; `port_speed` must be valid for writing a `u64`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port_speed(
    context: *mut ibv_context,
    port_num: u32,
    port_speed: *mut u64,
) -> c_int {
    const VERB: &str = "query_port_speed";
    not_null!(context, port_speed);
    // SAFETY: guaranteed by the caller.
    code(unsafe {
        u8::try_from(port_num)
            .map_err(|_| refused(VERB, Errno::INVAL, NO_PORT))
            .and_then(|port_num| device_ops(context).query_port_speed(port_num))
            .map(|found| port_speed.write(found))
    })
}

/// `ibv_query_rt_values_ex(3)`.
///
/// # Safety
/// `context` must be open; `values` must point to a struct.
pub(crate) unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    not_null!(context, values);
    // SAFETY: guaranteed by the caller.
    code(unsafe {
        match (*values).comp_mask {
            0 => Ok(()),
            IBV_VALUES_MASK_RAW_CLOCK => erased(context)
                .query_rt_values()
                .map(|found| (*values).raw_clock = timespec { tv_sec: 0, tv_nsec: found.raw_clock as i64 })
                .inspect_err(|_| (*values).comp_mask = 0),
            _ => Err(refused("query_rt_values", Errno::INVAL, "values unknown to this library")),
        }
    })
}

fn gid_entry_to_c(entry: &GidEntry) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: gid_to_c(&entry.gid),
        gid_index: entry.gid_index,
        port_num: entry.port_num,
        gid_type: entry.gid_type.0,
        ndev_ifindex: entry.ndev_ifindex,
    }
}

/// The reason for rejecting a port number that no device has.
const NO_PORT: &str = "a port number is at most 255";

/// Returns a GID table entry; `None` if the entry is empty.
fn gid_entry(device: &dyn DeviceOps, port_num: u32, index: u32) -> Result<Option<GidEntry>, Error> {
    let port_num = u8::try_from(port_num).map_err(|_| refused("query_gid_ex", Errno::INVAL, NO_PORT))?;
    Ok(device.query_gid_entry(port_num, index)?.filter(|entry| !entry.gid.is_zero()))
}

/// `ibv_query_gid(3)`: an empty entry is written as zeros. Errors return -1.
///
/// # Safety
/// `context` must be open; `gid` must point to a GID.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port_num: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    not_null_or_minus_one!(context, gid);
    // SAFETY: guaranteed by the caller.
    unsafe {
        // As an unsigned number, a negative index exceeds the index of every entry.
        match gid_entry(device_ops(context), port_num.into(), index as u32) {
            Ok(entry) => {
                gid.write(gid_to_c(&entry.map(|entry| entry.gid).unwrap_or_default()));
                0
            }
            Err(error) => {
                fail(&error);
                -1
            }
        }
    }
}

/// `ibv_query_gid_ex(3)`, with the size of the program's struct. For an empty entry, fails with
/// `ENODATA`.
///
/// # Safety
/// `context` must be open; `entry` must point to `entry_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port_num: u32,
    gid_index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    entry_size: usize,
) -> c_int {
    not_null!(context, entry);
    // The struct has had all fields since its first release. No flags are defined.
    if flags != 0 || entry_size < size_of::<ibv_gid_entry>() {
        return fail(&refused("query_gid_ex", Errno::INVAL, "flags, or a result that is too short"));
    }
    // SAFETY: guaranteed by the caller.
    unsafe {
        match gid_entry(device_ops(context), port_num, gid_index) {
            Ok(Some(found)) => {
                write_sized(entry, entry_size, |to| to.write(gid_entry_to_c(&found)));
                0
            }
            // Programs query every index, so an empty entry is not logged as a failure.
            Ok(None) => errno::refuse(Errno::NODATA),
            Err(error) => fail(&error),
        }
    }
}

/// `ibv_query_gid_table(3)`, with the size of the program's entries. Returns the number of entries,
/// or a negative errno: `EINVAL` if not all entries fit.
///
/// # Safety
/// `context` must be open; `entries` must point to `max_entries` times `entry_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
    entry_size: usize,
) -> ssize_t {
    const VERB: &str = "query_gid_table";
    let is_sound =
        !context.is_null() && !entries.is_null() && max_entries > 0 && flags == 0 && entry_size > 0;
    if !is_sound {
        return -(fail(&refused(VERB, Errno::INVAL, "a null pointer, no room, or flags")) as ssize_t);
    }
    // SAFETY: guaranteed by the caller.
    unsafe {
        match table(device_ops(context), max_entries) {
            Ok(found) => {
                for (index, entry) in found.iter().enumerate() {
                    let to = entries.byte_add(index * entry_size);
                    write_sized(to, entry_size, |to| to.write(gid_entry_to_c(entry)));
                }
                found.len() as ssize_t
            }
            Err(error) => -(fail(&error) as ssize_t),
        }
    }
}

/// Returns the GID table if it has at most `max_entries` entries.
fn table(device: &dyn DeviceOps, max_entries: usize) -> Result<Vec<GidEntry>, Error> {
    let mut found = device.query_gid_table()?;
    found.retain(|entry| !entry.gid.is_zero());
    if found.len() > max_entries {
        return Err(refused("query_gid_table", Errno::INVAL, "the table has more entries than the array"));
    }
    Ok(found)
}

/// Writes the type of a GID: 1 for RoCE v2; 0 for InfiniBand, RoCE v1 and an empty entry. Returns
/// -1 on error.
///
/// # Safety
/// `context` must be open; `gid_type` must be valid for writing an `unsigned int`.
pub(crate) unsafe fn query_gid_type(
    context: *mut ibv_context,
    port_num: u8,
    index: c_uint,
    gid_type: *mut c_uint,
) -> c_int {
    not_null_or_minus_one!(context, gid_type);
    // SAFETY: guaranteed by the caller.
    unsafe {
        match gid_entry(device_ops(context), port_num.into(), index) {
            Ok(entry) => {
                gid_type.write(entry.is_some_and(|entry| entry.gid_type == GidType::ROCE_V2).into());
                0
            }
            Err(error) => {
                fail(&error);
                -1
            }
        }
    }
}

/// Returns an entry of a port's partition key table, in host byte order.
fn pkey(device: &dyn DeviceOps, port_num: u8, index: c_int) -> Result<u16, Error> {
    let index = u16::try_from(index)
        .map_err(|_| refused("query_pkey", Errno::INVAL, "an index is a number of 16 bits"))?;
    device.query_pkey(port_num, index)
}

/// `ibv_query_pkey(3)`: returns -1 on error.
///
/// # Safety
/// `context` must be open; `pkey` must be valid for writing a `u16`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port_num: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    not_null_or_minus_one!(context, pkey);
    // SAFETY: guaranteed by the caller.
    unsafe {
        match self::pkey(device_ops(context), port_num, index) {
            Ok(found) => {
                pkey.write(found.to_be());
                0
            }
            Err(error) => {
                fail(&error);
                -1
            }
        }
    }
}

/// `ibv_get_pkey_index(3)`: returns -1 on error, or if the table lacks the key.
///
/// # Safety
/// `context` must be open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_pkey_index(context: *mut ibv_context, port_num: u8, pkey: u16) -> c_int {
    not_null_or_minus_one!(context);
    // SAFETY: the context is open.
    let device = unsafe { device_ops(context) };
    for index in 0.. {
        match self::pkey(device, port_num, index) {
            Ok(found) if found == u16::from_be(pkey) => return index,
            Ok(_) => {}
            Err(error) => {
                fail(&error);
                break;
            }
        }
    }
    -1
}
