//! Conversions between C attributes and `verbs_core` attributes.

use core::ffi::{c_int, c_uint};

use verbs_core::types::{AccessFlags, AhAttr, Gid, GlobalRoute, MigState, Mtu, QpAttr, QpCap, QpState, Rate};

use crate::abi::c::{ibv_ah_attr, ibv_gid, ibv_global_route, ibv_qp_attr, ibv_qp_cap};

/// Converts a C enumeration to the narrower type used here. A value that does not fit becomes the
/// maximum value, which no enumeration uses.
pub(crate) fn narrow(value: c_uint) -> u8 {
    u8::try_from(value).unwrap_or(u8::MAX)
}

/// Converts path attributes from C.
pub(crate) fn ah_attr_from_c(attr: &ibv_ah_attr) -> AhAttr {
    let grh = (attr.is_global != 0).then(|| GlobalRoute {
        dgid: gid_from_c(&attr.grh.dgid),
        flow_label: attr.grh.flow_label,
        sgid_index: attr.grh.sgid_index.into(),
        hop_limit: attr.grh.hop_limit,
        traffic_class: attr.grh.traffic_class,
    });
    AhAttr {
        grh,
        dlid: attr.dlid,
        sl: attr.sl,
        src_path_bits: attr.src_path_bits,
        static_rate: Rate(attr.static_rate),
        port_num: attr.port_num,
    }
}

/// Converts path attributes to C.
pub(crate) fn ah_attr_to_c(attr: &AhAttr) -> ibv_ah_attr {
    let grh = attr.grh.unwrap_or(GlobalRoute { hop_limit: 0, ..GlobalRoute::default() });
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: gid_to_c(&grh.dgid),
            flow_label: grh.flow_label,
            sgid_index: grh.sgid_index as u8,
            hop_limit: grh.hop_limit,
            traffic_class: grh.traffic_class,
        },
        dlid: attr.dlid,
        sl: attr.sl,
        src_path_bits: attr.src_path_bits,
        static_rate: attr.static_rate.0,
        is_global: attr.grh.is_some().into(),
        port_num: attr.port_num,
    }
}

pub(crate) fn gid_from_c(gid: &ibv_gid) -> Gid {
    // SAFETY: every member of the union consists of bytes.
    #[allow(unsafe_code)]
    Gid(unsafe { gid.raw })
}

pub(crate) const fn gid_to_c(gid: &Gid) -> ibv_gid {
    ibv_gid { raw: gid.0 }
}

pub(crate) const fn cap_from_c(cap: &ibv_qp_cap) -> QpCap {
    QpCap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

pub(crate) const fn cap_to_c(cap: &QpCap) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

/// Converts queue pair attributes from C. Members outside the mask may hold anything. Only the
/// lower 8 bits of an enumeration are used, as in rdma-core's commands.
pub(crate) fn qp_attr_from_c(attr: &ibv_qp_attr) -> QpAttr {
    QpAttr {
        qp_state: QpState(attr.qp_state as u8),
        cur_qp_state: QpState(attr.cur_qp_state as u8),
        path_mtu: Mtu(attr.path_mtu as u8),
        path_mig_state: MigState(attr.path_mig_state as u8),
        qkey: attr.qkey,
        rq_psn: attr.rq_psn,
        sq_psn: attr.sq_psn,
        dest_qp_num: attr.dest_qp_num,
        qp_access_flags: AccessFlags::from_bits_retain(attr.qp_access_flags),
        cap: cap_from_c(&attr.cap),
        ah_attr: ah_attr_from_c(&attr.ah_attr),
        alt_ah_attr: ah_attr_from_c(&attr.alt_ah_attr),
        pkey_index: attr.pkey_index,
        alt_pkey_index: attr.alt_pkey_index,
        en_sqd_async_notify: attr.en_sqd_async_notify != 0,
        sq_draining: attr.sq_draining != 0,
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port_num,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        alt_port_num: attr.alt_port_num,
        alt_timeout: attr.alt_timeout,
        rate_limit: attr.rate_limit,
    }
}

/// Converts queue pair attributes to C.
pub(crate) fn qp_attr_to_c(attr: &QpAttr) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: attr.qp_state.0.into(),
        cur_qp_state: attr.cur_qp_state.0.into(),
        path_mtu: attr.path_mtu.0.into(),
        path_mig_state: attr.path_mig_state.0.into(),
        qkey: attr.qkey,
        rq_psn: attr.rq_psn,
        sq_psn: attr.sq_psn,
        dest_qp_num: attr.dest_qp_num,
        qp_access_flags: attr.qp_access_flags.bits(),
        cap: cap_to_c(&attr.cap),
        ah_attr: ah_attr_to_c(&attr.ah_attr),
        alt_ah_attr: ah_attr_to_c(&attr.alt_ah_attr),
        pkey_index: attr.pkey_index,
        alt_pkey_index: attr.alt_pkey_index,
        en_sqd_async_notify: attr.en_sqd_async_notify.into(),
        sq_draining: attr.sq_draining.into(),
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port_num,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        alt_port_num: attr.alt_port_num,
        alt_timeout: attr.alt_timeout,
        rate_limit: attr.rate_limit,
    }
}

/// Converts a C count; `None` for a negative count.
pub(crate) fn count(number: c_int) -> Option<usize> {
    usize::try_from(number).ok()
}
