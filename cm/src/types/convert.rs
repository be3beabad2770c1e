//! Conversions from the kernel's verbs structs to values.

use uverbs_abi::ib_user_verbs::{IbUverbsAhAttr, IbUverbsQpAttr};
use verbs::{AccessFlags, AhAttr, Gid, GlobalRoute, MigState, Mtu, QpAttr, QpAttrMask, QpCap, QpState, Rate};

/// The mask bits for kernel-only attributes: the MAC addresses and VLANs of both paths. Some
/// kernels report them, but none accepts them.
const KERNEL_ONLY: u32 = 0xf << 21;

/// Returns the address handle attributes in the kernel's struct.
pub(crate) fn ah_attr(attr: &IbUverbsAhAttr) -> AhAttr {
    AhAttr {
        grh: (attr.is_global != 0).then_some(GlobalRoute {
            dgid: Gid(attr.grh.dgid),
            flow_label: attr.grh.flow_label,
            sgid_index: attr.grh.sgid_index.into(),
            hop_limit: attr.grh.hop_limit,
            traffic_class: attr.grh.traffic_class,
        }),
        dlid: attr.dlid,
        sl: attr.sl,
        src_path_bits: attr.src_path_bits,
        static_rate: Rate(attr.static_rate),
        port_num: attr.port_num,
    }
}

/// Returns the attributes of a queue pair. Their mask lacks the kernel-only bits.
pub(crate) fn qp_attr(attr: &IbUverbsQpAttr) -> (QpAttr, QpAttrMask) {
    // All known states and codes fit in one byte. Larger values become 255, which is unknown too.
    let byte = |number: u32| u8::try_from(number).unwrap_or(u8::MAX);
    let value = QpAttr {
        qp_state: QpState(byte(attr.qp_state)),
        cur_qp_state: QpState(byte(attr.cur_qp_state)),
        path_mtu: Mtu(byte(attr.path_mtu)),
        path_mig_state: MigState(byte(attr.path_mig_state)),
        qkey: attr.qkey,
        rq_psn: attr.rq_psn,
        sq_psn: attr.sq_psn,
        dest_qp_num: attr.dest_qp_num,
        qp_access_flags: AccessFlags::from_bits_retain(attr.qp_access_flags),
        cap: QpCap {
            max_send_wr: attr.max_send_wr,
            max_recv_wr: attr.max_recv_wr,
            max_send_sge: attr.max_send_sge,
            max_recv_sge: attr.max_recv_sge,
            max_inline_data: attr.max_inline_data,
        },
        ah_attr: ah_attr(&attr.ah_attr),
        alt_ah_attr: ah_attr(&attr.alt_ah_attr),
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
        rate_limit: 0,
    };
    (value, QpAttrMask::from_bits_retain(attr.qp_attr_mask & !KERNEL_ONLY))
}

#[cfg(test)]
mod tests {
    use uverbs_abi::ib_user_verbs::IbUverbsGlobalRoute;

    use super::*;

    #[test]
    fn the_bits_of_mac_addresses_and_vlans_are_taken_off_the_mask() {
        let mask = QpAttrMask::STATE | QpAttrMask::AV | QpAttrMask::DEST_QPN;
        for extra in [0, 1 << 21, 0xf << 21] {
            let attr = IbUverbsQpAttr { qp_attr_mask: mask.bits() | extra, ..IbUverbsQpAttr::default() };
            assert_eq!(qp_attr(&attr).1, mask);
        }
        let rate = IbUverbsQpAttr { qp_attr_mask: 1 << 25, ..IbUverbsQpAttr::default() };
        assert_eq!(qp_attr(&rate).1, QpAttrMask::RATE_LIMIT);
    }

    #[test]
    fn a_number_beyond_a_byte_is_of_no_state() {
        let attr = IbUverbsQpAttr { qp_state: 0x102, path_mtu: 0x105, ..IbUverbsQpAttr::default() };
        let (value, _) = qp_attr(&attr);
        assert_eq!((value.qp_state, value.path_mtu.bytes()), (QpState(0xff), None));
    }

    #[test]
    fn a_path_has_a_global_route_only_where_it_says_so() {
        let grh = IbUverbsGlobalRoute { dgid: [9; 16], hop_limit: 64, ..IbUverbsGlobalRoute::default() };
        let attr = IbUverbsAhAttr { grh, dlid: 3, ..IbUverbsAhAttr::default() };
        assert_eq!(ah_attr(&attr), AhAttr { port_num: 0, ..AhAttr::lid(1, 3) });
        let global = ah_attr(&IbUverbsAhAttr { is_global: 1, ..attr });
        assert_eq!(global.grh.map(|grh| (grh.dgid, grh.hop_limit)), Some((Gid([9; 16]), 64)));
    }
}
