//! Commands and contexts of shared receive queues: SRQ, XRC SRQ, RMP, XRQ.
//!
//! # References
//! ConnectX programmer's reference manual; `include/linux/mlx5/mlx5_ifc.h`

use super::layout;

layout! {
    /// The CREATE_SRQ input.
    create_srq_in: 0x110 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        SRQ_CONTEXT_ENTRY bytes 0x10 0x40;
        PAS @ 0x110;
    }

    /// The CREATE_SRQ output.
    create_srq_out: 0x10 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        SRQN 0x08 23 0;
    }

    /// The DESTROY_SRQ input.
    destroy_srq_in: 0x10 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        SRQN 0x08 23 0;
    }

    /// The QUERY_SRQ input.
    query_srq_in: 0x10 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        SRQN 0x08 23 0;
    }

    /// The QUERY_SRQ output.
    query_srq_out: 0x110 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        SRQ_CONTEXT_ENTRY bytes 0x10 0x40;
        PAS @ 0x110;
    }

    /// The ARM_RQ input.
    arm_rq_in: 0x10 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        SRQ_NUMBER 0x08 23 0;
        LWM 0x0c 15 0;
    }

    /// The CREATE_XRC_SRQ input.
    create_xrc_srq_in: 0x110 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        XRC_SRQ_CONTEXT_ENTRY bytes 0x10 0x40;
        XRC_SRQ_UMEM_VALID 0x5c 31 31;
        PAS @ 0x110;
    }

    /// The CREATE_XRC_SRQ output.
    create_xrc_srq_out: 0x10 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        XRC_SRQN 0x08 23 0;
    }

    /// The DESTROY_XRC_SRQ input.
    destroy_xrc_srq_in: 0x10 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        XRC_SRQN 0x08 23 0;
    }

    /// The QUERY_XRC_SRQ input.
    query_xrc_srq_in: 0x10 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        XRC_SRQN 0x08 23 0;
    }

    /// The QUERY_XRC_SRQ output.
    query_xrc_srq_out: 0x110 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        XRC_SRQ_CONTEXT_ENTRY bytes 0x10 0x40;
        PAS @ 0x110;
    }

    /// The ARM_XRC_SRQ input.
    arm_xrc_srq_in: 0x10 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        XRC_SRQN 0x08 23 0;
        LWM 0x0c 15 0;
    }

    /// The CREATE_RMP input.
    create_rmp_in: 0x110 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        CTX bytes 0x20 0xf0;
    }

    /// The CREATE_RMP output.
    create_rmp_out: 0x10 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        RMPN 0x08 23 0;
    }

    /// The MODIFY_RMP input.
    modify_rmp_in: 0x110 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        RMP_STATE 0x08 31 28;
        RMPN 0x08 23 0;
        LWM 0x14 0 0;
        CTX bytes 0x20 0xf0;
    }

    /// The DESTROY_RMP input.
    destroy_rmp_in: 0x10 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        RMPN 0x08 23 0;
    }

    /// The QUERY_RMP input.
    query_rmp_in: 0x10 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        RMPN 0x08 23 0;
    }

    /// The QUERY_RMP output.
    query_rmp_out: 0x110 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        RMP_CONTEXT bytes 0x20 0xf0;
    }

    /// The CREATE_XRQ input.
    create_xrq_in: 0x150 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        XRQ_CONTEXT bytes 0x10 0x140;
    }

    /// The CREATE_XRQ output.
    create_xrq_out: 0x10 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        XRQN 0x08 23 0;
    }

    /// The DESTROY_XRQ input.
    destroy_xrq_in: 0x10 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        XRQN 0x08 23 0;
    }

    /// The QUERY_XRQ input.
    query_xrq_in: 0x10 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        XRQN 0x08 23 0;
    }

    /// The QUERY_XRQ output.
    query_xrq_out: 0x150 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        XRQ_CONTEXT bytes 0x10 0x140;
    }

    /// Context of a tag matching queue (XRQ).
    xrqc: 0x140 {
        STATE 0x00 31 28;
        RLKEY 0x00 27 27;
        TOPOLOGY 0x00 11 8;
        OFFLOAD 0x00 3 0;
        USER_INDEX 0x04 23 0;
        CQN 0x08 23 0;
        LOG_MATCHING_LIST_SZ 0x20 31 28;
        APPEND_NEXT_INDEX 0x20 15 0;
        SW_PHASE_CNT 0x24 31 16;
        HW_PHASE_CNT 0x24 15 0;
        WQ bytes 0x80 0xc0;
    }

    /// Shared receive queue context.
    srqc: 0x40 {
        STATE 0x00 31 28;
        LOG_SRQ_SIZE 0x00 27 24;
        WQ_SIGNATURE 0x04 31 31;
        CONT_SRQ 0x04 30 30;
        RLKY 0x04 28 28;
        LOG_RQ_STRIDE 0x04 26 24;
        XRCD 0x04 23 0;
        PAGE_OFFSET 0x08 31 26;
        CQN 0x08 23 0;
        LOG_PAGE_SIZE 0x10 29 24;
        PD 0x18 23 0;
        LWM 0x1c 31 16;
        WQE_CNT 0x1c 15 0;
        DBR_ADDR 0x28 63 0;
    }

    /// XRC shared receive queue context.
    xrc_srqc: 0x40 {
        STATE 0x00 31 28;
        LOG_XRC_SRQ_SIZE 0x00 27 24;
        WQ_SIGNATURE 0x04 31 31;
        CONT_SRQ 0x04 30 30;
        RLKY 0x04 28 28;
        BASIC_CYCLIC_RCV_WQE 0x04 27 27;
        LOG_RQ_STRIDE 0x04 26 24;
        XRCD 0x04 23 0;
        PAGE_OFFSET 0x08 31 26;
        DBR_UMEM_VALID 0x08 24 24;
        CQN 0x08 23 0;
        USER_INDEX_EQUAL_XRC_SRQN 0x10 31 31;
        LOG_PAGE_SIZE 0x10 29 24;
        USER_INDEX 0x10 23 0;
        PD 0x18 23 0;
        LWM 0x1c 31 16;
        WQE_CNT 0x1c 15 0;
        DB_RECORD_ADDR_H 0x28 31 0;
        DB_RECORD_ADDR_L 0x2c 31 2;
    }

    /// Receive memory pool context.
    rmpc: 0xf0 {
        STATE 0x00 23 20;
        BASIC_CYCLIC_RCV_WQE 0x04 31 31;
        WQ bytes 0x30 0xc0;
    }

    /// Work queue context.
    wq: 0xc0 {
        WQ_TYPE 0x00 31 28;
        WQ_SIGNATURE 0x00 27 27;
        END_PADDING_MODE 0x00 26 25;
        CD_SLAVE 0x00 24 24;
        HDS_SKIP_FIRST_SGE 0x04 31 31;
        LOG2_HDS_BUF_SIZE 0x04 30 28;
        PAGE_OFFSET 0x04 20 16;
        LWM 0x04 15 0;
        PD 0x08 23 0;
        UAR_PAGE 0x0c 23 0;
        DBR_ADDR 0x10 63 0;
        HW_COUNTER 0x18 31 0;
        SW_COUNTER 0x1c 31 0;
        LOG_WQ_STRIDE 0x20 19 16;
        LOG_WQ_PG_SZ 0x20 12 8;
        LOG_WQ_SZ 0x20 4 0;
        DBR_UMEM_VALID 0x24 31 31;
        WQ_UMEM_VALID 0x24 30 30;
        LOG_HAIRPIN_NUM_PACKETS 0x24 28 24;
        LOG_HAIRPIN_DATA_SZ 0x24 20 16;
        LOG_WQE_NUM_OF_STRIDES 0x24 11 8;
        TWO_BYTE_SHIFT_EN 0x24 7 7;
        LOG_WQE_STRIDE_SIZE 0x24 2 0;
        DBR_UMEM_ID 0x28 31 0;
        WQ_UMEM_ID 0x2c 31 0;
        WQ_UMEM_OFFSET 0x30 63 0;
        HEADERS_MKEY 0x38 31 0;
        SHAMPO_ENABLE 0x3c 31 31;
        SHAMPO_MODE 0x3c 29 28;
        LOG_RESERVATION_SIZE 0x3c 26 24;
        LOG_MAX_NUM_OF_PACKETS_PER_RESERVATION 0x3c 18 16;
        LOG_HEADERS_ENTRY_SIZE 0x3c 9 8;
        LOG_HEADERS_BUFFER_ENTRY_NUM 0x3c 3 0;
        PAS @ 0xc0;
    }
}
