//! Why the kernel said `EINVAL` or `ENOMEM`, as far as its own limits tell.
//!
//! All of this runs only after a command failed: a command that succeeds costs nothing more.

use nix::sys::resource::{Resource, getrlimit};

use super::KernelContext;
use crate::types::{QpAttr, QpAttrMask, QpInitAttr, QpState, QpType};
use crate::{Cause, Errno, Error, transition};

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

    pub(super) fn explain_reg_mr(&self, error: Error, length: usize) -> Error {
        let length = length as u64;
        match error.errno {
            Errno::NOMEM => match getrlimit(Resource::RLIMIT_MEMLOCK) {
                Ok((soft, _)) if soft != libc::RLIM_INFINITY && soft < length => {
                    error.because(Cause::Memlock { limit: soft, asked: length })
                }
                _ => error,
            },
            Errno::INVAL => {
                let Ok(attr) = self.query_device() else { return error };
                limit(error, "length", length, 0, attr.max_mr_size)
            }
            _ => error,
        }
    }

    /// Names the limit that a completion queue passed.
    pub fn explain_create_cq(&self, error: Error, cqe: u32, comp_vector: u32) -> Error {
        if error.errno != Errno::INVAL {
            return error;
        }
        let Ok(attr) = self.query_device() else { return error };
        let error = limit(error, "cqe", cqe.into(), 1, attr.max_cqe.into());
        limit(
            error,
            "comp_vector",
            comp_vector.into(),
            0,
            u64::from(self.num_comp_vectors()).saturating_sub(1),
        )
    }

    /// Names the limit that a queue pair passed. The limit of inline data is the provider's to know.
    pub fn explain_create_qp(
        &self,
        error: Error,
        attr: &QpInitAttr,
        max_inline: impl FnOnce() -> Option<u32>,
    ) -> Error {
        if !matches!(error.errno, Errno::INVAL | Errno::NOMEM) {
            return error;
        }
        let Ok(device) = self.query_device() else { return error };
        let cap = &attr.cap;
        let error = limit(error, "max_send_wr", cap.max_send_wr.into(), 0, device.max_qp_wr.into());
        let error = limit(error, "max_recv_wr", cap.max_recv_wr.into(), 0, device.max_qp_wr.into());
        let error = limit(error, "max_send_sge", cap.max_send_sge.into(), 0, device.max_sge.into());
        let error = limit(error, "max_recv_sge", cap.max_recv_sge.into(), 0, device.max_sge.into());
        if error.cause != Cause::Unknown || cap.max_inline_data == 0 {
            return error;
        }
        match max_inline() {
            Some(max) => limit(error, "max_inline_data", cap.max_inline_data.into(), 0, max.into()),
            None => error,
        }
    }

    /// Names what was wrong with a transition.
    pub fn explain_modify_qp(
        &self,
        error: Error,
        qp_type: QpType,
        at: QpState,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Error {
        // ENODATA: the source GID is an empty entry of the table.
        if !matches!(error.errno, Errno::INVAL | Errno::NODATA) {
            return error;
        }
        let (from, to) = transition::endpoints(at, attr, mask);
        if let Err(cause) = transition::check(qp_type, from, to, mask) {
            return error.because(cause);
        }
        let mut error = error;
        if mask.contains(QpAttrMask::PORT) {
            error = self.explain_port(error, attr.port_num);
        }
        if error.cause == Cause::Unknown
            && mask.contains(QpAttrMask::AV)
            && let Some(grh) = attr.ah_attr.grh
        {
            error = self.explain_source_gid(error, attr.ah_attr.port_num, grh.sgid_index);
        }
        error
    }

    /// Names a source GID that does not exist.
    pub fn explain_source_gid(&self, error: Error, port_num: u8, sgid_index: u8) -> Error {
        let index = sgid_index.into();
        match self.query_gid_entry(port_num, index) {
            Ok(Some(_)) => error,
            Ok(None) => error.because(Cause::Gid { port_num, index, table_len: 0 }),
            Err(gid) => error.because(gid.cause),
        }
    }
}

/// Adds the limit that was passed to an error that has no cause yet.
fn limit(error: Error, name: &'static str, asked: u64, min: u64, max: u64) -> Error {
    if error.cause == Cause::Unknown && !(min..=max).contains(&asked) {
        error.because(Cause::Limit { name, asked, min, max })
    } else {
        error
    }
}
