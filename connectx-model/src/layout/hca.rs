//! Commands for the lifecycle of the function: enabling, pages, capabilities, ISSI, adapter.
//!
//! # References
//! ConnectX programmer's reference manual; `include/linux/mlx5/mlx5_ifc.h`

use super::layout;

layout! {
    /// The ENABLE_HCA input.
    enable_hca_in: 0x10 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        EMBEDDED_CPU_FUNCTION 0x08 31 31;
        FUNCTION_ID_TYPE 0x08 28 28;
        FUNCTION_ID 0x08 15 0;
    }

    /// The DISABLE_HCA input.
    disable_hca_in: 0x10 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        EMBEDDED_CPU_FUNCTION 0x08 31 31;
        FUNCTION_ID_TYPE 0x08 28 28;
        FUNCTION_ID 0x08 15 0;
    }

    /// The INIT_HCA input.
    init_hca_in: 0x20 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        SW_VHCA_ID 0x0c 29 16;
        SW_OWNER_ID bytes 0x10 0x10;
    }

    /// The TEARDOWN_HCA input.
    teardown_hca_in: 0x10 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        PROFILE 0x08 15 0;
    }

    /// The TEARDOWN_HCA output.
    teardown_hca_out: 0x10 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        STATE 0x0c 0 0;
    }

    /// The QUERY_ISSI input.
    query_issi_in: 0x10 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
    }

    /// The QUERY_ISSI output.
    query_issi_out: 0x70 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        CURRENT_ISSI 0x08 15 0;
        SUPPORTED_ISSI_DW0 0x6c 31 0;
    }

    /// The SET_ISSI input.
    set_issi_in: 0x10 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        CURRENT_ISSI 0x08 15 0;
    }

    /// The QUERY_PAGES input.
    query_pages_in: 0x10 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        EMBEDDED_CPU_FUNCTION 0x08 31 31;
        FUNCTION_ID 0x08 15 0;
    }

    /// The QUERY_PAGES output.
    query_pages_out: 0x10 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        EMBEDDED_CPU_FUNCTION 0x08 31 31;
        FUNCTION_ID 0x08 15 0;
        NUM_PAGES 0x0c 31 0;
    }

    /// The MANAGE_PAGES input.
    manage_pages_in: 0x10 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        EMBEDDED_CPU_FUNCTION 0x08 31 31;
        FUNCTION_ID 0x08 15 0;
        INPUT_NUM_ENTRIES 0x0c 31 0;
        PAS @ 0x10;
    }

    /// The MANAGE_PAGES output.
    manage_pages_out: 0x10 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        OUTPUT_NUM_ENTRIES 0x08 31 0;
        PAS @ 0x10;
    }

    /// The QUERY_HCA_CAP input.
    query_hca_cap_in: 0x10 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        OTHER_FUNCTION 0x08 31 31;
        EC_VF_FUNCTION 0x08 30 30;
        FUNCTION_ID_TYPE 0x08 28 28;
        FUNCTION_ID 0x08 15 0;
    }

    /// The QUERY_HCA_CAP output.
    query_hca_cap_out: 0x1010 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        CAPABILITY bytes 0x10 0x1000;
    }

    /// The SET_HCA_CAP input.
    set_hca_cap_in: 0x1010 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        OTHER_FUNCTION 0x08 31 31;
        EC_VF_FUNCTION 0x08 30 30;
        FUNCTION_ID_TYPE 0x08 28 28;
        FUNCTION_ID 0x08 15 0;
        CAPABILITY bytes 0x10 0x1000;
    }

    /// The QUERY_ADAPTER input.
    query_adapter_in: 0x10 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
    }

    /// The QUERY_ADAPTER output.
    query_adapter_out: 0x110 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        IEEE_VENDOR_ID 0x28 23 0;
        VSD_VENDOR_ID 0x2c 15 0;
        VSD bytes 0x30 0xd0;
        VSD_CONTD_PSID bytes 0x100 0x10;
    }

    /// The QUERY_SPECIAL_CONTEXTS input.
    query_special_contexts_in: 0x10 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
    }

    /// The QUERY_SPECIAL_CONTEXTS output.
    query_special_contexts_out: 0x20 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        DUMP_FILL_MKEY 0x08 31 0;
        RESD_LKEY 0x0c 31 0;
        NULL_MKEY 0x10 31 0;
        TERMINATE_SCATTER_LIST_MKEY 0x14 31 0;
        REPEATED_MKEY 0x18 31 0;
    }

    /// The PAGE_FAULT_RESUME input.
    page_fault_resume_in: 0x10 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        ERROR 0x08 31 31;
        PAGE_FAULT_TYPE 0x08 26 24;
        WQ_NUMBER 0x08 23 0;
        TOKEN 0x0c 23 0;
    }

    /// The SET_DRIVER_VERSION input.
    set_driver_version_in: 0x50 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        DRIVER_VERSION bytes 0x10 0x40;
    }

    /// The ALLOC_UAR input.
    alloc_uar_in: 0x10 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
    }

    /// The ALLOC_UAR output.
    alloc_uar_out: 0x10 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        UAR 0x08 23 0;
    }

    /// The DEALLOC_UAR input.
    dealloc_uar_in: 0x10 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        UAR 0x08 23 0;
    }

    /// The ALLOC_Q_COUNTER input.
    alloc_q_counter_in: 0x10 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
    }

    /// The ALLOC_Q_COUNTER output.
    alloc_q_counter_out: 0x10 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        COUNTER_SET_ID 0x08 7 0;
    }

    /// The DEALLOC_Q_COUNTER input.
    dealloc_q_counter_in: 0x10 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        COUNTER_SET_ID 0x08 7 0;
    }

    /// The QUERY_Q_COUNTER input.
    query_q_counter_in: 0x20 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        OTHER_VPORT 0x08 31 31;
        VPORT_NUMBER 0x08 15 0;
        CLEAR 0x18 31 31;
        AGGREGATE 0x18 30 30;
        COUNTER_SET_ID 0x1c 7 0;
    }

    /// The QUERY_Q_COUNTER output.
    query_q_counter_out: 0x100 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        RX_WRITE_REQUESTS 0x10 31 0;
        RX_READ_REQUESTS 0x18 31 0;
        RX_ATOMIC_REQUESTS 0x20 31 0;
        RX_DCT_CONNECT 0x28 31 0;
        OUT_OF_BUFFER 0x30 31 0;
        OUT_OF_SEQUENCE 0x38 31 0;
        DUPLICATE_REQUEST 0x40 31 0;
        RNR_NAK_RETRY_ERR 0x48 31 0;
        PACKET_SEQ_ERR 0x50 31 0;
        IMPLIED_NAK_SEQ_ERR 0x58 31 0;
        LOCAL_ACK_TIMEOUT_ERR 0x60 31 0;
        REQ_RNR_RETRIES_EXCEEDED 0x70 31 0;
        RESP_LOCAL_LENGTH_ERROR 0x78 31 0;
        REQ_LOCAL_LENGTH_ERROR 0x7c 31 0;
        RESP_LOCAL_QP_ERROR 0x80 31 0;
        LOCAL_OPERATION_ERROR 0x84 31 0;
        RESP_LOCAL_PROTECTION 0x88 31 0;
        REQ_LOCAL_PROTECTION 0x8c 31 0;
        RESP_CQE_ERROR 0x90 31 0;
        REQ_CQE_ERROR 0x94 31 0;
        REQ_MW_BINDING 0x98 31 0;
        REQ_BAD_RESPONSE 0x9c 31 0;
        REQ_REMOTE_INVALID_REQUEST 0xa0 31 0;
        RESP_REMOTE_INVALID_REQUEST 0xa4 31 0;
        REQ_REMOTE_ACCESS_ERRORS 0xa8 31 0;
        RESP_REMOTE_ACCESS_ERRORS 0xac 31 0;
        REQ_REMOTE_OPERATION_ERRORS 0xb0 31 0;
        REQ_TRANSPORT_RETRIES_EXCEEDED 0xb4 31 0;
        CQ_OVERFLOW 0xb8 31 0;
        RESP_CQE_FLUSH_ERROR 0xbc 31 0;
        REQ_CQE_FLUSH_ERROR 0xc0 31 0;
        ROCE_ADP_RETRANS 0xc8 31 0;
        ROCE_ADP_RETRANS_TO 0xcc 31 0;
        ROCE_SLOW_RESTART 0xd0 31 0;
        ROCE_SLOW_RESTART_CNPS 0xd4 31 0;
        ROCE_SLOW_RESTART_TRANS 0xd8 31 0;
    }

    /// The NOP input.
    nop_in: 0x10 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
    }
}
