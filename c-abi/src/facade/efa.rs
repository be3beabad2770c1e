//! `efadv_*`, the API of `libefa.so.1`.
//!
//! # References
//! `efadv.h` in rdma-core 65.

use super::facade;

facade! {
    errno {
        efadv_query_ah
        efadv_query_cq
        efadv_query_device
        efadv_query_mr
        efadv_query_qp_wqs
    }
    minus_errno {
        efadv_get_max_rq_depth
        efadv_get_max_sq_depth
    }
    null {
        efadv_cq_from_ibv_cq_ex
        efadv_create_comp_cntr
        efadv_create_cq
        efadv_create_driver_qp
        efadv_create_qp_ex
        efadv_qp_from_ibv_qp_ex
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depths_are_negative_errnos() {
        assert_eq!(efadv_get_max_sq_depth(), -libc::EOPNOTSUPP);
        assert_eq!(efadv_get_max_rq_depth(), -libc::EOPNOTSUPP);
        assert_eq!(efadv_query_device(), libc::EOPNOTSUPP);
    }
}
