//! The causes of an `EINVAL`, `EOPNOTSUPP` or `ENOMEM` from the kernel, as far as the device's
//! limits explain it.
//!
//! These functions run only after a command has failed, so successful commands cost nothing more.
//! The rules come from [`crate::explain`]; this file queries the limits that they need.

use nix::sys::resource::{Resource, getrlimit};

use super::KernelContext;
use crate::errno::Errno;
use crate::error::{Cause, Error};
use crate::provider::DeviceOps as _;
use crate::ring::page_size;
use crate::types::{
    AccessFlags, AhAttr, CqFlags, CqInitAttr, CqModeration, DeviceAttr, DeviceCapFlags, Gid, QpAttr,
    QpAttrMask, QpInitAttr, QpState, QpType, SrqAttr, SrqAttrMask, SrqInitAttr,
};
use crate::{explain, transition};

impl KernelContext {
    pub(super) fn explain_port(&self, error: Error, port_num: u8) -> Error {
        if error.errno != Errno::INVAL {
            return error;
        }
        let Ok(attr) = self.query_device() else { return error };
        limit(error, "port_num", port_num.into(), 1, attr.phys_port_cnt.into())
    }

    pub(super) fn explain_gid(&self, error: Error, port_num: u8, index: u32) -> Error {
        if error.errno != Errno::INVAL {
            return error;
        }
        match self.query_port(port_num) {
            Err(port) => error.because(port.cause),
            Ok(port) if index >= port.gid_tbl_len => {
                error.because(Cause::Gid { port_num, index, table_len: port.gid_tbl_len })
            }
            Ok(_) => error,
        }
    }

    pub(super) fn explain_pkey(&self, error: Error, port_num: u8, index: u16) -> Error {
        if error.errno != Errno::INVAL {
            return error;
        }
        match self.query_port(port_num) {
            Err(port) => error.because(port.cause),
            Ok(port) => {
                limit(error, "pkey index", index.into(), 0, u64::from(port.pkey_tbl_len).saturating_sub(1))
            }
        }
    }

    /// Adds to the error the reason why a region was rejected. `start` holds the start of its
    /// memory (or the offset in its file) and its address in work requests. `length` is `None` if
    /// the memory does not change.
    pub(super) fn explain_reg_mr(
        &self,
        error: Error,
        start: Option<(u64, u64)>,
        length: Option<u64>,
        access: AccessFlags,
    ) -> Error {
        let is_empty = length == Some(0);
        let length = length.unwrap_or_default();
        match error.errno {
            Errno::NOMEM => match getrlimit(Resource::RLIMIT_MEMLOCK) {
                Ok((soft, _)) if soft != libc::RLIM_INFINITY && soft < length => {
                    error.because(Cause::Memlock { limit: soft, asked: length })
                }
                _ => self.explain_shortage(error, "memory regions", |device| device.max_mr),
            },
            Errno::INVAL => {
                if let Err(cause) = explain::region_access(access) {
                    return error.because(cause);
                }
                let lacking = self.lacking_flushes(access);
                if !lacking.is_empty() {
                    return error.because(Cause::Access { access: lacking });
                }
                if let Some((start, iova)) = start
                    && (start ^ iova) & (page_size() as u64 - 1) != 0
                {
                    let reason = format!(
                        "{iova:#x}, the address in work requests, lies elsewhere in its page than {start:#x}"
                    );
                    return error.because(Cause::Other { reason: reason.into() });
                }
                if is_empty {
                    return error.because(Cause::Other { reason: "the memory has no bytes".into() });
                }
                let Ok(attr) = self.query_device() else { return error };
                let error = limit(error, "length", length, 0, attr.max_mr_size);
                // The device supports the right, but may not support it for this memory.
                if error.cause == Cause::Unknown && access.contains(AccessFlags::FLUSH_PERSISTENT) {
                    let reason =
                        "FLUSH_PERSISTENT is a right to persistent memory, and this memory may not be".into();
                    return error.because(Cause::Other { reason });
                }
                error
            }
            Errno::OPNOTSUPP => {
                let access = access - EVERY_DEVICE - AccessFlags::OPTIONAL_RANGE;
                if access.is_empty() { error } else { error.because(Cause::Access { access }) }
            }
            _ => error,
        }
    }

    /// Returns the flush rights in `access` that the device does not support. Kernels before Linux
    /// 6.3 support none.
    fn lacking_flushes(&self, access: AccessFlags) -> AccessFlags {
        let pairs = [
            (AccessFlags::FLUSH_GLOBAL, DeviceCapFlags::FLUSH_GLOBAL),
            (AccessFlags::FLUSH_PERSISTENT, DeviceCapFlags::FLUSH_PERSISTENT),
        ];
        if !pairs.iter().any(|(right, _)| access.contains(*right)) {
            return AccessFlags::empty();
        }
        let Ok(device) = self.query_device_ex() else { return AccessFlags::empty() };
        let lacks = pairs.into_iter().filter(|(_, cap)| !device.device_cap_flags_ex.contains(*cap));
        lacks.fold(AccessFlags::empty(), |lacking, (right, _)| lacking | access & right)
    }

    /// Adds the device's maximum number of objects to an `ENOMEM` error.
    pub(super) fn explain_shortage(
        &self,
        error: Error,
        what: &'static str,
        max: impl FnOnce(&DeviceAttr) -> u32,
    ) -> Error {
        if error.errno != Errno::NOMEM || error.cause != Cause::Unknown {
            return error;
        }
        match self.query_device() {
            Ok(device) => error.because(Cause::Shortage { what, max: max(&device).into() }),
            Err(_) => error,
        }
    }

    /// Adds to the error the reason why a completion queue was rejected: a violated limit or
    /// otherwise an unsupported flag.
    pub fn explain_create_cq(&self, error: Error, attr: &CqInitAttr<'_>) -> Error {
        let flags = attr.flags - CqFlags::SINGLE_THREADED;
        let with_flags = |error: Error| match error.cause {
            Cause::Unknown if !flags.is_empty() => error.because(Cause::CqFlags { flags }),
            _ => error,
        };
        if error.errno == Errno::OPNOTSUPP {
            return with_flags(error);
        }
        if error.errno == Errno::NOMEM {
            return self.explain_shortage(error, "completion queues", |device| device.max_cq);
        }
        if error.errno != Errno::INVAL {
            return error;
        }
        let Ok(device) = self.query_device() else { return with_flags(error) };
        let last = u64::from(self.num_comp_vectors()).saturating_sub(1);
        let error = limit(error, "cqe", attr.cqe.into(), 1, device.max_cqe.into());
        with_flags(limit(error, "comp_vector", attr.comp_vector.into(), 0, last))
    }

    /// Adds to the error the reason why a completion queue with `unread` unpolled completions could
    /// not be resized to `cqe`: a violated limit.
    pub fn explain_resize_cq(&self, error: Error, cqe: u32, unread: usize) -> Error {
        if error.errno != Errno::INVAL {
            return error;
        }
        let Ok(device) = self.query_device() else { return error };
        limit(error, "cqe", cqe.into(), unread.max(1) as u64, device.max_cqe.into())
    }

    /// Adds to the error the reason why a completion queue's moderation was rejected: a violated
    /// limit.
    pub fn explain_modify_cq(&self, error: Error, moderation: CqModeration) -> Error {
        if error.errno != Errno::INVAL {
            return error;
        }
        let Ok(device) = self.query_device_ex() else { return error };
        let (caps, CqModeration { cq_count, cq_period }) = (device.cq_mod_caps, moderation);
        let error = limit(error, "cq_count", cq_count.into(), 0, caps.max_cq_count.into());
        limit(error, "cq_period", cq_period.into(), 0, caps.max_cq_period.into())
    }

    /// Adds to the error the reason why a queue pair was rejected: a violated limit or otherwise an
    /// unsupported type. `max_inline` is the limit on inline data, which no query returns.
    pub fn explain_create_qp(
        &self,
        error: Error,
        attr: &QpInitAttr,
        max_inline: impl FnOnce() -> Option<u32>,
    ) -> Error {
        let of_type = Cause::QpType { qp_type: attr.qp_type };
        match error.errno {
            Errno::OPNOTSUPP => return error.because(of_type),
            Errno::INVAL | Errno::NOMEM => {}
            _ => return error,
        }
        let Ok(device) = self.query_device() else { return error };
        if let Err(cause) = explain::capacity(&attr.cap, &device, None) {
            return error.because(cause);
        }
        let shortage = Cause::Shortage { what: "queue pairs", max: device.max_qp.into() };
        let is_common = matches!(attr.qp_type, QpType::RC | QpType::UC | QpType::UD);
        if error.errno == Errno::INVAL && !is_common {
            return error.because(of_type);
        }
        if attr.cap.max_inline_data > 0
            && let Err(cause) = explain::capacity(&attr.cap, &device, max_inline())
        {
            return error.because(cause);
        }
        if error.errno == Errno::NOMEM { error.because(shortage) } else { error }
    }

    /// Adds to the error the reason why a shared receive queue was rejected: a violated limit.
    pub fn explain_create_srq(&self, error: Error, attr: &SrqInitAttr) -> Error {
        if error.errno == Errno::NOMEM {
            return self.explain_shortage(error, "shared receive queues", |device| device.max_srq);
        }
        if error.errno != Errno::INVAL {
            return error;
        }
        let Ok(device) = self.query_device() else { return error };
        let error = limit(error, "max_wr", attr.max_wr.into(), 1, device.max_srq_wr.into());
        let error = limit(error, "max_sge", attr.max_sge.into(), 0, device.max_srq_sge.into());
        limit(error, "srq_limit", attr.srq_limit.into(), 0, device.max_srq_wr.into())
    }

    /// Adds to the error the reason why a change to a shared receive queue was rejected: a violated
    /// limit of the device.
    pub fn explain_modify_srq(&self, error: Error, attr: &SrqAttr, mask: SrqAttrMask) -> Error {
        if error.errno != Errno::INVAL {
            return error;
        }
        let Ok(device) = self.query_device() else { return error };
        let mut error = error;
        if mask.contains(SrqAttrMask::MAX_WR) {
            error = limit(error, "max_wr", attr.max_wr.into(), 1, device.max_srq_wr.into());
        }
        if mask.contains(SrqAttrMask::LIMIT) {
            error = limit(error, "srq_limit", attr.srq_limit.into(), 0, device.max_srq_wr.into());
        }
        error
    }

    /// Adds to the error the reason why a transition of a queue pair in the state `at` was
    /// rejected: a mask outside the transition table or otherwise an invalid attribute value.
    pub fn explain_modify_qp(
        &self,
        error: Error,
        qp_type: QpType,
        at: QpState,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Error {
        if is_unreachable(&error) && mask.contains(QpAttrMask::AV) {
            return self.explain_path(error, &attr.ah_attr);
        }
        // ENODATA means that the source GID is an empty table entry.
        if error.cause != Cause::Unknown || !matches!(error.errno, Errno::INVAL | Errno::NODATA) {
            return error;
        }
        let (from, to) = transition::endpoints(at, attr, mask);
        if let Err(cause) = transition::check(qp_type, from, to, mask) {
            return error.because(cause);
        }
        if let Err(cause) = explain::present_state(at, attr, mask) {
            return error.because(cause);
        }
        let mut error = error;
        if mask.contains(QpAttrMask::PORT) {
            error = self.explain_port(error, attr.port_num);
        }
        if error.cause == Cause::Unknown
            && mask.contains(QpAttrMask::PORT | QpAttrMask::PKEY_INDEX)
            && let Ok(port) = self.query_port(attr.port_num)
        {
            let last = port.pkey_tbl_len.saturating_sub(1);
            error = limit(error, "pkey_index", attr.pkey_index.into(), 0, last.into());
        }
        if error.cause == Cause::Unknown && mask.contains(QpAttrMask::AV) {
            error = self.explain_path(error, &attr.ah_attr);
        }
        if error.cause == Cause::Unknown && mask.intersects(OF_DEVICE) {
            // Kernels truncate the other numbers, or use them unchanged.
            if let Err(cause) = explain::numbers_fit(attr, mask & OF_DEVICE) {
                return error.because(cause);
            }
            let Ok(device) = self.query_device() else { return error };
            if let Err(cause) = explain::numbers_of_device(attr, mask, &device) {
                return error.because(cause);
            }
        }
        if error.cause == Cause::Unknown
            && mask.contains(QpAttrMask::AV | QpAttrMask::PATH_MTU)
            && let Ok(port) = self.query_port(attr.ah_attr.port_num)
            && let (Some(asked), Some(max)) = (attr.path_mtu.bytes(), port.max_mtu.bytes())
        {
            error = limit(error, "path_mtu", asked.into(), 0, max.into());
        }
        error
    }

    /// Adds to the error the reason why a path was rejected: a nonexistent port, no GRH on an
    /// Ethernet port, a nonexistent source GID, or an unreachable destination.
    pub fn explain_path(&self, error: Error, attr: &AhAttr) -> Error {
        if is_unreachable(&error)
            && let Some(grh) = attr.grh
            && let Ok(Some(entry)) = self.query_gid_entry(attr.port_num, grh.sgid_index)
        {
            return error.because(Cause::Unreachable { from: entry.gid, to: grh.dgid });
        }
        if error.cause != Cause::Unknown || !matches!(error.errno, Errno::INVAL | Errno::NODATA) {
            return error;
        }
        let port_num = attr.port_num;
        let cause = match attr.grh {
            Some(grh) => match self.query_gid_entry(port_num, grh.sgid_index) {
                Ok(Some(entry)) if is_of_another_family(entry.gid, grh.dgid) => {
                    Cause::Unreachable { from: entry.gid, to: grh.dgid }
                }
                Ok(Some(_)) => Cause::Unknown,
                Ok(None) => Cause::Gid { port_num, index: grh.sgid_index, table_len: 0 },
                Err(gid) => gid.cause,
            },
            None => match self.query_port(port_num) {
                Ok(port) => explain::path_grh(attr, port.link_layer).err().unwrap_or(Cause::Unknown),
                Err(port) => port.cause,
            },
        };
        error.because(match cause {
            Cause::Limit { name: "port_num", asked, min, max } => {
                Cause::Limit { name: explain::PATH_PORT, asked, min, max }
            }
            cause => cause,
        })
    }
}

/// Returns whether the kernel could not reach the destination of a path. `ETIMEDOUT` means that the
/// destination's Ethernet address was not found in time.
fn is_unreachable(error: &Error) -> bool {
    error.cause == Cause::Unknown
        && matches!(error.errno, Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::TIMEDOUT)
}

/// Returns whether exactly one of the addresses is an IPv4 address.
fn is_of_another_family(from: Gid, to: Gid) -> bool {
    from.address().is_ipv4() != to.address().is_ipv4()
}

/// The access rights that every driver accepts without a capability flag.
const EVERY_DEVICE: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC);

/// The attributes that [`explain::numbers_of_device`] checks, and the narrow fields that
/// [`explain::numbers_fit`] checks.
const OF_DEVICE: QpAttrMask = QpAttrMask::TIMEOUT
    .union(QpAttrMask::RETRY_CNT)
    .union(QpAttrMask::RNR_RETRY)
    .union(QpAttrMask::MIN_RNR_TIMER)
    .union(QpAttrMask::MAX_QP_RD_ATOMIC)
    .union(QpAttrMask::MAX_DEST_RD_ATOMIC);

/// Returns the error with the limit as its cause, if the error has no cause yet and the value
/// `asked` is outside the limit.
fn limit(error: Error, name: &'static str, asked: u64, min: u64, max: u64) -> Error {
    match explain::within(name, asked, min, max) {
        Err(cause) if error.cause == Cause::Unknown => error.because(cause),
        _ => error,
    }
}
