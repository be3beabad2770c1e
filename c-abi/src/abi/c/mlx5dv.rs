//! The types in `infiniband/mlx5dv.h`, release 65, that the supported functions use. Older releases
//! lack fields at the ends of structs; programs built with them do not set the corresponding bits
//! in `comp_mask`.

use core::ffi::c_void;
use core::mem::offset_of;

use super::{ibv_ah, ibv_cq, ibv_dm, ibv_pd, ibv_qp, ibv_srq, ibv_wq};

macro_rules! structs {
    ($($(#[$m:meta])* pub struct $name:ident: $size:literal { $($field:ident: $type:ty,)* })*) => { $(
        $(#[$m])*
        #[derive(Clone, Copy, Debug)]
        #[repr(C)]
        pub struct $name {
            $(pub $field: $type,)*
        }
        const _: () = assert!(size_of::<$name>() == $size);
    )* };
}

macro_rules! constants {
    ($type:ty: $($name:ident = $value:expr),* $(,)?) => { $(pub const $name: $type = $value;)* };
}

constants! { u64:
    MLX5DV_CONTEXT_MASK_CQE_COMPRESION = 1 << 0,
    MLX5DV_CONTEXT_MASK_SWP = 1 << 1,
    MLX5DV_CONTEXT_MASK_STRIDING_RQ = 1 << 2,
    MLX5DV_CONTEXT_MASK_TUNNEL_OFFLOADS = 1 << 3,
    MLX5DV_CONTEXT_MASK_DYN_BFREGS = 1 << 4,
    MLX5DV_CONTEXT_MASK_CLOCK_INFO_UPDATE = 1 << 5,
    MLX5DV_CONTEXT_MASK_FLOW_ACTION_FLAGS = 1 << 6,
    MLX5DV_CONTEXT_MASK_DC_ODP_CAPS = 1 << 7,
    MLX5DV_CONTEXT_MASK_HCA_CORE_CLOCK = 1 << 8,
    MLX5DV_CONTEXT_MASK_SIGNATURE_OFFLOAD = 1 << 10,
    MLX5DV_CONTEXT_MASK_DCI_STREAMS = 1 << 11,
    MLX5DV_CONTEXT_MASK_WR_MEMCPY_LENGTH = 1 << 12,
    MLX5DV_CONTEXT_MASK_CRYPTO_OFFLOAD = 1 << 13,
    MLX5DV_CONTEXT_MASK_MAX_DC_RD_ATOM = 1 << 14,
    MLX5DV_CONTEXT_MASK_REG_C0 = 1 << 15,
    MLX5DV_CONTEXT_MASK_OOO_RECV_WRS = 1 << 16,

    MLX5DV_CONTEXT_FLAGS_CQE_V1 = 1 << 0,
    MLX5DV_CONTEXT_FLAGS_MPW_ALLOWED = 1 << 2,
    MLX5DV_CONTEXT_FLAGS_ENHANCED_MPW = 1 << 3,
    MLX5DV_CONTEXT_FLAGS_CQE_128B_COMP = 1 << 4,
    MLX5DV_CONTEXT_FLAGS_CQE_128B_PAD = 1 << 5,
    MLX5DV_CONTEXT_FLAGS_PACKET_BASED_CREDIT_MODE = 1 << 6,
    MLX5DV_CONTEXT_FLAGS_REAL_TIME_TS = 1 << 7,
    MLX5DV_CONTEXT_FLAGS_BLUEFLAME = 1 << 8,

    MLX5DV_CQ_INIT_ATTR_MASK_COMPRESSED_CQE = 1 << 0,
    MLX5DV_CQ_INIT_ATTR_MASK_FLAGS = 1 << 1,
    MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE = 1 << 2,

    MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS = 1 << 0,
    MLX5DV_QP_INIT_ATTR_MASK_DC = 1 << 1,
    MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS = 1 << 2,
    MLX5DV_QP_INIT_ATTR_MASK_DCI_STREAMS = 1 << 3,

    MLX5DV_QP_EX_WITH_RAW_WQE = 1 << 3,
    MLX5DV_QP_EX_WITH_MEMCPY = 1 << 4,

    MLX5DV_WQ_INIT_ATTR_MASK_STRIDING_RQ = 1 << 0,

    MLX5DV_QP_MASK_UAR_MMAP_OFFSET = 1 << 0,
    MLX5DV_QP_MASK_RAW_QP_HANDLES = 1 << 1,
    MLX5DV_QP_MASK_RAW_QP_TIR_ADDR = 1 << 2,
    MLX5DV_SRQ_MASK_SRQN = 1 << 0,
    MLX5DV_DM_MASK_REMOTE_VA = 1 << 0,

    MLX5DV_CONTEXT_ATTR_MASK_FD_ARRAY = 1 << 0,

    MLX5DV_OBJ_QP = 1 << 0,
    MLX5DV_OBJ_CQ = 1 << 1,
    MLX5DV_OBJ_SRQ = 1 << 2,
    MLX5DV_OBJ_RWQ = 1 << 3,
    MLX5DV_OBJ_DM = 1 << 4,
    MLX5DV_OBJ_AH = 1 << 5,
    MLX5DV_OBJ_PD = 1 << 6,
    MLX5DV_OBJ_DEVX = 1 << 7,
}

constants! { u32:
    MLX5DV_CONTEXT_FLAGS_DEVX = 1 << 0,
    MLX5DV_CQ_INIT_ATTR_FLAGS_CQE_PAD = 1 << 0,
    MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE = 1 << 3,
    MLX5DV_QP_CREATE_ALLOW_SCATTER_TO_CQE = 1 << 4,
    MLX5DV_QP_CREATE_OOO_DP = 1 << 7,
    MLX5DV_DM_TYPE_MEMIC = 0,
    MLX5DV_UAR_ALLOC_TYPE_BF = 0,
    MLX5DV_UAR_ALLOC_TYPE_NC = 1,
}

structs! {
    pub struct mlx5dv_cqe_comp_caps: 8 {
        max_num: u32,
        supported_format: u32,
    }

    pub struct mlx5dv_sw_parsing_caps: 8 {
        sw_parsing_offloads: u32,
        supported_qpts: u32,
    }

    pub struct mlx5dv_striding_rq_caps: 20 {
        min_single_stride_log_num_of_bytes: u32,
        max_single_stride_log_num_of_bytes: u32,
        min_single_wqe_log_num_of_strides: u32,
        max_single_wqe_log_num_of_strides: u32,
        supported_qpts: u32,
    }

    pub struct mlx5dv_dci_streams_caps: 2 {
        max_log_num_concurent: u8,
        max_log_num_errored: u8,
    }

    pub struct mlx5dv_sig_caps: 16 {
        block_size: u64,
        block_prot: u32,
        t10dif_bg: u16,
        crc_type: u16,
    }

    pub struct mlx5dv_crypto_caps: 12 {
        failed_selftests: u16,
        crypto_engines: u8,
        wrapped_import_method: u8,
        log_max_num_deks: u8,
        flags: u32,
    }

    pub struct mlx5dv_reg: 8 {
        value: u32,
        mask: u32,
    }

    pub struct mlx5dv_ooo_recv_wrs_caps: 20 {
        max_rc: u32,
        max_xrc: u32,
        max_dct: u32,
        max_ud: u32,
        max_uc: u32,
    }

    /// The attributes of a device (`mlx5dv_query_device(3)`).
    pub struct mlx5dv_context: 200 {
        version: u8,
        flags: u64,
        comp_mask: u64,
        cqe_comp_caps: mlx5dv_cqe_comp_caps,
        sw_parsing_caps: mlx5dv_sw_parsing_caps,
        striding_rq_caps: mlx5dv_striding_rq_caps,
        tunnel_offloads_caps: u32,
        max_dynamic_bfregs: u32,
        max_clock_info_update_nsec: u64,
        flow_action_flags: u32,
        dc_odp_caps: u32,
        hca_core_clock: *mut c_void,
        num_lag_ports: u8,
        sig_caps: mlx5dv_sig_caps,
        dci_streams_caps: mlx5dv_dci_streams_caps,
        max_wr_memcpy_length: usize,
        crypto_caps: mlx5dv_crypto_caps,
        max_dc_rd_atom: u64,
        max_dc_init_rd_atom: u64,
        reg_c0: mlx5dv_reg,
        ooo_recv_wrs_caps: mlx5dv_ooo_recv_wrs_caps,
    }

    /// The attributes for opening a device (`mlx5dv_open_device(3)`).
    pub struct mlx5dv_context_attr: 24 {
        flags: u32,
        comp_mask: u64,
        fds: *mut c_void,
    }

    /// The parameters for converting the device's clock (`mlx5dv_get_clock_info(3)`).
    pub struct mlx5dv_clock_info: 40 {
        nsec: u64,
        last_cycles: u64,
        frac: u64,
        mult: u32,
        shift: u32,
        mask: u64,
    }

    /// The attributes for creating a completion queue (`mlx5dv_create_cq(3)`).
    pub struct mlx5dv_cq_init_attr: 24 {
        comp_mask: u64,
        cqe_comp_res_format: u8,
        flags: u32,
        cqe_size: u16,
    }

    pub struct mlx5dv_dc_init_attr: 16 {
        dc_type: u32,
        dct_access_key: u64,
    }

    /// The attributes for creating a queue pair (`mlx5dv_create_qp(3)`).
    pub struct mlx5dv_qp_init_attr: 40 {
        comp_mask: u64,
        create_flags: u32,
        dc_init_attr: mlx5dv_dc_init_attr,
        send_ops_flags: u64,
    }

    pub struct mlx5dv_striding_rq_init_attr: 12 {
        single_stride_log_num_of_bytes: u32,
        single_wqe_log_num_of_strides: u32,
        two_byte_shift_en: u8,
    }

    /// The attributes for creating a work queue.
    pub struct mlx5dv_wq_init_attr: 24 {
        comp_mask: u64,
        striding_rq_attrs: mlx5dv_striding_rq_init_attr,
    }

    /// The attributes for allocating device memory (`mlx5dv_alloc_dm(3)`).
    pub struct mlx5dv_alloc_dm_attr: 16 {
        type_: u32,
        comp_mask: u64,
    }

    /// A page of doorbell registers (`mlx5dv_devx_alloc_uar(3)`).
    pub struct mlx5dv_devx_uar: 40 {
        reg_addr: *mut c_void,
        base_addr: *mut c_void,
        page_id: u32,
        mmap_off: i64,
        comp_mask: u64,
    }

    pub struct mlx5dv_qp_queue: 16 {
        buf: *mut c_void,
        wqe_cnt: u32,
        stride: u32,
    }

    pub struct mlx5dv_qp_bf: 16 {
        reg: *mut c_void,
        size: u32,
    }

    /// The description of a queue pair (`mlx5dv_init_obj(3)`).
    pub struct mlx5dv_qp: 96 {
        dbrec: *mut u32,
        sq: mlx5dv_qp_queue,
        rq: mlx5dv_qp_queue,
        bf: mlx5dv_qp_bf,
        comp_mask: u64,
        uar_mmap_offset: i64,
        tirn: u32,
        tisn: u32,
        rqn: u32,
        sqn: u32,
        tir_icm_addr: u64,
    }

    /// The description of a completion queue.
    pub struct mlx5dv_cq: 48 {
        buf: *mut c_void,
        dbrec: *mut u32,
        cqe_cnt: u32,
        cqe_size: u32,
        cq_uar: *mut c_void,
        cqn: u32,
        comp_mask: u64,
    }

    /// The description of a shared receive queue.
    pub struct mlx5dv_srq: 48 {
        buf: *mut c_void,
        dbrec: *mut u32,
        stride: u32,
        head: u32,
        tail: u32,
        comp_mask: u64,
        srqn: u32,
    }

    /// The description of a work queue.
    pub struct mlx5dv_rwq: 32 {
        buf: *mut c_void,
        dbrec: *mut u32,
        wqe_cnt: u32,
        stride: u32,
        comp_mask: u64,
    }

    /// The description of device memory.
    pub struct mlx5dv_dm: 32 {
        buf: *mut c_void,
        length: u64,
        comp_mask: u64,
        remote_va: u64,
    }

    /// The description of an address handle.
    pub struct mlx5dv_ah: 16 {
        av: *const c_void,
        comp_mask: u64,
    }

    /// The description of a protection domain.
    pub struct mlx5dv_pd: 16 {
        pdn: u32,
        comp_mask: u64,
    }

    /// The ConnectX-specific operations of a queue pair.
    pub struct mlx5dv_qp_ex: 104 {
        comp_mask: u64,
        wr_set_dc_addr: Option<unsafe extern "C" fn()>,
        wr_mr_interleaved: Option<unsafe extern "C" fn()>,
        wr_mr_list: Option<unsafe extern "C" fn()>,
        wr_mkey_configure: Option<unsafe extern "C" fn()>,
        wr_set_mkey_access_flags: Option<unsafe extern "C" fn()>,
        wr_set_mkey_layout_list: Option<unsafe extern "C" fn()>,
        wr_set_mkey_layout_interleaved: Option<unsafe extern "C" fn()>,
        wr_set_mkey_sig_block: Option<unsafe extern "C" fn()>,
        wr_raw_wqe: Option<unsafe extern "C" fn(mqp: *mut mlx5dv_qp_ex, wqe: *const c_void)>,
        wr_set_dc_addr_stream: Option<unsafe extern "C" fn()>,
        wr_memcpy: Option<unsafe extern "C" fn()>,
        wr_set_mkey_crypto: Option<unsafe extern "C" fn()>,
    }

    /// The objects to describe, and where to write their descriptions.
    pub struct mlx5dv_obj: 128 {
        qp: mlx5dv_obj_of<ibv_qp, mlx5dv_qp>,
        cq: mlx5dv_obj_of<ibv_cq, mlx5dv_cq>,
        srq: mlx5dv_obj_of<ibv_srq, mlx5dv_srq>,
        rwq: mlx5dv_obj_of<ibv_wq, mlx5dv_rwq>,
        dm: mlx5dv_obj_of<ibv_dm, mlx5dv_dm>,
        ah: mlx5dv_obj_of<ibv_ah, mlx5dv_ah>,
        pd: mlx5dv_obj_of<ibv_pd, mlx5dv_pd>,
        devx: mlx5dv_obj_of<c_void, c_void>,
    }
}

/// An object to describe, and where to write its description.
#[derive(Debug)]
#[repr(C)]
pub struct mlx5dv_obj_of<I, O> {
    pub in_: *mut I,
    pub out: *mut O,
}

impl<I, O> Clone for mlx5dv_obj_of<I, O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<I, O> Copy for mlx5dv_obj_of<I, O> {}

/// The offsets that a C compiler reports for the structs in the header.
const _: () = {
    assert!(offset_of!(mlx5dv_context, cqe_comp_caps) == 24);
    assert!(offset_of!(mlx5dv_context, striding_rq_caps) == 40);
    assert!(offset_of!(mlx5dv_context, tunnel_offloads_caps) == 60);
    assert!(offset_of!(mlx5dv_context, max_clock_info_update_nsec) == 72);
    assert!(offset_of!(mlx5dv_context, dc_odp_caps) == 84);
    assert!(offset_of!(mlx5dv_context, hca_core_clock) == 88);
    assert!(offset_of!(mlx5dv_context, sig_caps) == 104);
    assert!(offset_of!(mlx5dv_context, dci_streams_caps) == 120);
    assert!(offset_of!(mlx5dv_context, max_wr_memcpy_length) == 128);
    assert!(offset_of!(mlx5dv_context, crypto_caps) == 136);
    assert!(offset_of!(mlx5dv_context, max_dc_rd_atom) == 152);
    assert!(offset_of!(mlx5dv_context, reg_c0) == 168);
    assert!(offset_of!(mlx5dv_context, ooo_recv_wrs_caps) == 176);
    assert!(offset_of!(mlx5dv_cq_init_attr, cqe_size) == 16);
    assert!(offset_of!(mlx5dv_qp_init_attr, dc_init_attr) == 16);
    assert!(offset_of!(mlx5dv_qp_init_attr, send_ops_flags) == 32);
    assert!(offset_of!(mlx5dv_devx_uar, mmap_off) == 24);
    assert!(offset_of!(mlx5dv_qp, rq) == 24);
    assert!(offset_of!(mlx5dv_qp, bf) == 40);
    assert!(offset_of!(mlx5dv_qp, comp_mask) == 56);
    assert!(offset_of!(mlx5dv_qp, uar_mmap_offset) == 64);
    assert!(offset_of!(mlx5dv_qp, tirn) == 72);
    assert!(offset_of!(mlx5dv_qp, tir_icm_addr) == 88);
    assert!(offset_of!(mlx5dv_cq, cq_uar) == 24);
    assert!(offset_of!(mlx5dv_cq, comp_mask) == 40);
    assert!(offset_of!(mlx5dv_srq, comp_mask) == 32);
    assert!(offset_of!(mlx5dv_srq, srqn) == 40);
    assert!(offset_of!(mlx5dv_rwq, comp_mask) == 24);
    assert!(offset_of!(mlx5dv_qp_ex, wr_raw_wqe) == 72);
};
