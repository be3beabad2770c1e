//! Counters for flow rules (`COUNTERS_*`) and for completions (`COMP_CNTR_*`). These methods exist
//! only as ioctls, without write structs.

use uverbs_abi::ib_user_ioctl_cmds::{
    UVERBS_ATTR_CREATE_COMP_CNTR_HANDLE, UVERBS_ATTR_CREATE_COUNTERS_HANDLE,
    UVERBS_ATTR_DESTROY_COMP_CNTR_HANDLE, UVERBS_ATTR_DESTROY_COUNTERS_HANDLE,
    UVERBS_ATTR_MODIFY_COMP_CNTR_ENTRY, UVERBS_ATTR_MODIFY_COMP_CNTR_HANDLE, UVERBS_ATTR_MODIFY_COMP_CNTR_OP,
    UVERBS_ATTR_MODIFY_COMP_CNTR_VALUE, UVERBS_ATTR_QP_ATTACH_COMP_CNTR_CNTR_HANDLE,
    UVERBS_ATTR_QP_ATTACH_COMP_CNTR_HANDLE, UVERBS_ATTR_QP_ATTACH_COMP_CNTR_OP_MASK,
    UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_MAX_COUNTERS, UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_MAX_VALUE,
    UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_SUPPORTED_QP_ATTACH_OPS, UVERBS_ATTR_READ_COMP_CNTR_ENTRY,
    UVERBS_ATTR_READ_COMP_CNTR_HANDLE, UVERBS_ATTR_READ_COMP_CNTR_RESP_VALUE, UVERBS_ATTR_READ_COUNTERS_BUFF,
    UVERBS_ATTR_READ_COUNTERS_FLAGS, UVERBS_ATTR_READ_COUNTERS_HANDLE, UVERBS_METHOD_COMP_CNTR_CREATE,
    UVERBS_METHOD_COMP_CNTR_DESTROY, UVERBS_METHOD_COMP_CNTR_MODIFY, UVERBS_METHOD_COMP_CNTR_READ,
    UVERBS_METHOD_COUNTERS_CREATE, UVERBS_METHOD_COUNTERS_DESTROY, UVERBS_METHOD_COUNTERS_READ,
    UVERBS_METHOD_QP_ATTACH_COMP_CNTR, UVERBS_METHOD_QUERY_COMP_CNTR_CAPS, UVERBS_OBJECT_COMP_CNTR,
    UVERBS_OBJECT_COUNTERS, UVERBS_OBJECT_DEVICE, UVERBS_OBJECT_QP,
};
use uverbs_abi::ib_user_ioctl_verbs::IbUverbsCompCntrModifyOp;
use zerocopy::IntoBytes;

use crate::channel::{Attr, DriverAttrs, Uverbs};
use crate::error::Result;
use crate::types::{CompCntrAttachOps, CompCntrCaps, CompCntrEntry, ReadCountersFlags};

/// Creates a counters object and returns its handle.
///
/// # Errors
/// `EOPNOTSUPP` if the device or the kernel has no counters; any other errno the kernel returns.
#[doc(alias = "ibv_create_counters")]
pub fn create_counters(uverbs: &Uverbs) -> Result<u32> {
    let mut handle = 0;
    let mut attrs = [Attr::new_handle(UVERBS_ATTR_CREATE_COUNTERS_HANDLE, &mut handle)];
    let (object, method) = (UVERBS_OBJECT_COUNTERS, UVERBS_METHOD_COUNTERS_CREATE);
    uverbs.ioctl_only("create_counters", COUNTERS, object, method, &mut attrs)?;
    Ok(handle)
}

/// Reads the values of a counters object.
///
/// # Errors
/// Any errno the kernel returns; notably `EINVAL` if `values` has fewer values than the object has
/// counters, or if no flow rule uses the object.
#[doc(alias = "ibv_read_counters")]
pub fn read_counters(
    uverbs: &Uverbs,
    handle: u32,
    values: &mut [u64],
    flags: ReadCountersFlags,
) -> Result<()> {
    let mut attrs = [
        Attr::handle(UVERBS_ATTR_READ_COUNTERS_HANDLE, handle),
        Attr::output(UVERBS_ATTR_READ_COUNTERS_BUFF, values.as_mut_bytes()),
        Attr::u32(UVERBS_ATTR_READ_COUNTERS_FLAGS, flags.bits()),
    ];
    let (object, method) = (UVERBS_OBJECT_COUNTERS, UVERBS_METHOD_COUNTERS_READ);
    uverbs.ioctl_only("read_counters", COUNTERS, object, method, &mut attrs)
}

/// Destroys a counters object.
///
/// # Errors
/// Any errno the kernel returns; notably `EBUSY` while flow rules use it.
#[doc(alias = "ibv_destroy_counters")]
pub fn destroy_counters(uverbs: &Uverbs, handle: u32) -> Result<()> {
    let mut attrs = [Attr::handle(UVERBS_ATTR_DESTROY_COUNTERS_HANDLE, handle)];
    let (object, method) = (UVERBS_OBJECT_COUNTERS, UVERBS_METHOD_COUNTERS_DESTROY);
    uverbs.ioctl_only("destroy_counters", COUNTERS, object, method, &mut attrs)
}

/// Queries the device's completion counters.
///
/// # Errors
/// `EOPNOTSUPP` if the device or the kernel has no completion counters; any other errno the kernel
/// returns.
#[doc(alias = "ibv_query_comp_cntr_caps")]
#[doc(alias = "_ibv_query_comp_cntr_caps")]
pub fn query_comp_cntr_caps(uverbs: &Uverbs) -> Result<CompCntrCaps> {
    let (mut max_counters, mut max_value, mut ops) = (0_u32, 0_u64, 0_u32);
    let mut attrs = [
        Attr::output(UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_MAX_COUNTERS, max_counters.as_mut_bytes()),
        Attr::output(UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_MAX_VALUE, max_value.as_mut_bytes()),
        Attr::output(UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_SUPPORTED_QP_ATTACH_OPS, ops.as_mut_bytes()),
    ];
    let (object, method) = (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_COMP_CNTR_CAPS);
    uverbs.ioctl_only("query_comp_cntr_caps", COMP_CNTR, object, method, &mut attrs)?;
    let supported_qp_attach_ops = CompCntrAttachOps::from_bits_retain(ops);
    Ok(CompCntrCaps { max_value, max_counters, supported_qp_attach_ops })
}

/// Creates a completion counter and returns its handle. `driver` contains the driver's attributes,
/// such as the memory for the counter values on EFA.
///
/// # Errors
/// `EOPNOTSUPP` if the device or the kernel has no completion counters; any other errno the kernel
/// returns.
#[doc(alias = "ibv_create_comp_cntr")]
pub fn create_comp_cntr(uverbs: &Uverbs, driver: DriverAttrs<'_>) -> Result<u32> {
    let mut handle = 0;
    let mut attrs = vec![Attr::new_handle(UVERBS_ATTR_CREATE_COMP_CNTR_HANDLE, &mut handle)];
    attrs.extend(driver.0);
    let (object, method) = (UVERBS_OBJECT_COMP_CNTR, UVERBS_METHOD_COMP_CNTR_CREATE);
    uverbs.ioctl_only("create_comp_cntr", COMP_CNTR, object, method, &mut attrs)?;
    Ok(handle)
}

/// Sets one of the values of a completion counter.
///
/// # Errors
/// Any errno the kernel returns; notably `EINVAL` for a value beyond the device's maximum.
#[doc(alias = "ibv_set_comp_cntr")]
#[doc(alias = "ibv_set_err_comp_cntr")]
pub fn set_comp_cntr(uverbs: &Uverbs, handle: u32, entry: CompCntrEntry, value: u64) -> Result<()> {
    let op = IbUverbsCompCntrModifyOp::IB_UVERBS_COMP_CNTR_MODIFY_OP_SET;
    modify_comp_cntr(uverbs, "set_comp_cntr", handle, entry, op, value)
}

/// Adds `amount` to one of the values of a completion counter.
///
/// # Errors
/// The errors of [`set_comp_cntr`].
#[doc(alias = "ibv_inc_comp_cntr")]
#[doc(alias = "ibv_inc_err_comp_cntr")]
pub fn inc_comp_cntr(uverbs: &Uverbs, handle: u32, entry: CompCntrEntry, amount: u64) -> Result<()> {
    let op = IbUverbsCompCntrModifyOp::IB_UVERBS_COMP_CNTR_MODIFY_OP_INC;
    modify_comp_cntr(uverbs, "inc_comp_cntr", handle, entry, op, amount)
}

/// Reads one of the values of a completion counter.
///
/// # Errors
/// Any errno the kernel returns; notably `EIO` after the device was unplugged.
#[doc(alias = "ibv_read_comp_cntr")]
#[doc(alias = "ibv_read_err_comp_cntr")]
pub fn read_comp_cntr(uverbs: &Uverbs, handle: u32, entry: CompCntrEntry) -> Result<u64> {
    let mut value = 0_u64;
    let mut attrs = [
        Attr::handle(UVERBS_ATTR_READ_COMP_CNTR_HANDLE, handle),
        Attr::u64(UVERBS_ATTR_READ_COMP_CNTR_ENTRY, entry.0.into()),
        Attr::output(UVERBS_ATTR_READ_COMP_CNTR_RESP_VALUE, value.as_mut_bytes()),
    ];
    let (object, method) = (UVERBS_OBJECT_COMP_CNTR, UVERBS_METHOD_COMP_CNTR_READ);
    uverbs.ioctl_only("read_comp_cntr", COMP_CNTR, object, method, &mut attrs)?;
    Ok(value)
}

/// Destroys a completion counter.
///
/// # Errors
/// Any errno the kernel returns; notably `EBUSY` while a queue pair uses it.
#[doc(alias = "ibv_destroy_comp_cntr")]
pub fn destroy_comp_cntr(uverbs: &Uverbs, handle: u32) -> Result<()> {
    let mut attrs = [Attr::handle(UVERBS_ATTR_DESTROY_COMP_CNTR_HANDLE, handle)];
    let (object, method) = (UVERBS_OBJECT_COMP_CNTR, UVERBS_METHOD_COMP_CNTR_DESTROY);
    uverbs.ioctl_only("destroy_comp_cntr", COMP_CNTR, object, method, &mut attrs)
}

/// Makes a completion counter count the operations `ops` of a queue pair.
///
/// # Errors
/// Any errno the kernel returns; notably `EOPNOTSUPP` for operations the device cannot count, and
/// `EINVAL` for a queue pair beyond the state INIT.
#[doc(alias = "ibv_qp_attach_comp_cntr")]
pub fn qp_attach_comp_cntr(
    uverbs: &Uverbs,
    qp_handle: u32,
    comp_cntr_handle: u32,
    ops: CompCntrAttachOps,
) -> Result<()> {
    let mut attrs = [
        Attr::handle(UVERBS_ATTR_QP_ATTACH_COMP_CNTR_HANDLE, qp_handle),
        Attr::handle(UVERBS_ATTR_QP_ATTACH_COMP_CNTR_CNTR_HANDLE, comp_cntr_handle),
        Attr::u32(UVERBS_ATTR_QP_ATTACH_COMP_CNTR_OP_MASK, ops.bits()),
    ];
    let (object, method) = (UVERBS_OBJECT_QP, UVERBS_METHOD_QP_ATTACH_COMP_CNTR);
    uverbs.ioctl_only("qp_attach_comp_cntr", COMP_CNTR, object, method, &mut attrs)
}

fn modify_comp_cntr(
    uverbs: &Uverbs,
    verb: &'static str,
    handle: u32,
    entry: CompCntrEntry,
    op: IbUverbsCompCntrModifyOp,
    value: u64,
) -> Result<()> {
    let mut attrs = [
        Attr::handle(UVERBS_ATTR_MODIFY_COMP_CNTR_HANDLE, handle),
        Attr::u64(UVERBS_ATTR_MODIFY_COMP_CNTR_ENTRY, entry.0.into()),
        Attr::u64(UVERBS_ATTR_MODIFY_COMP_CNTR_OP, op.0.into()),
        Attr::u64(UVERBS_ATTR_MODIFY_COMP_CNTR_VALUE, value),
    ];
    let (object, method) = (UVERBS_OBJECT_COMP_CNTR, UVERBS_METHOD_COMP_CNTR_MODIFY);
    uverbs.ioctl_only(verb, COMP_CNTR, object, method, &mut attrs)
}

const COUNTERS: &str = "counters of flow rules";
const COMP_CNTR: &str = "completion counters";
