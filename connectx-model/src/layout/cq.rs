//! Completion queue commands and context.
//!
//! # References
//! ConnectX programmer's reference manual; `include/linux/mlx5/mlx5_ifc.h`

use super::layout;

layout! {
    /// The CREATE_CQ input.
    create_cq_in: 0x110 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        CQ_CONTEXT bytes 0x10 0x40;
        CQ_UMEM_VALID 0x5c 31 31;
        PAS @ 0x110;
    }

    /// The CREATE_CQ output.
    create_cq_out: 0x10 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        CQN 0x08 23 0;
    }

    /// The DESTROY_CQ input.
    destroy_cq_in: 0x10 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        CQN 0x08 23 0;
    }

    /// The QUERY_CQ input.
    query_cq_in: 0x10 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        CQN 0x08 23 0;
    }

    /// The QUERY_CQ output.
    query_cq_out: 0x110 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        CQ_CONTEXT bytes 0x10 0x40;
        PAS @ 0x110;
    }

    /// The MODIFY_CQ input.
    modify_cq_in: 0x110 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        CQN 0x08 23 0;
        MODIFY_FIELD_SELECT 0x0c 31 0;
        RESIZE_FIELD_SELECT 0x0c 31 0;
        CQ_CONTEXT bytes 0x10 0x40;
        CQ_UMEM_VALID 0x5c 31 31;
        PAS @ 0x110;
    }

    /// Completion queue context.
    cqc: 0x40 {
        STATUS 0x00 31 28;
        DBR_UMEM_VALID 0x00 25 25;
        APU_CQ 0x00 24 24;
        CQE_SZ 0x00 23 21;
        CC 0x00 20 20;
        SCQE_BREAK_MODERATION_EN 0x00 18 18;
        OI 0x00 17 17;
        CQ_PERIOD_MODE 0x00 16 15;
        CQE_COMP_EN 0x00 14 14;
        MINI_CQE_RES_FORMAT 0x00 13 12;
        ST 0x00 11 8;
        CQE_COMPRESSION_LAYOUT 0x00 1 0;
        PAGE_OFFSET 0x08 11 6;
        LOG_CQ_SIZE 0x0c 28 24;
        UAR_PAGE 0x0c 23 0;
        CQ_PERIOD 0x10 27 16;
        CQ_MAX_COUNT 0x10 15 0;
        C_EQN_OR_APU_ELEMENT 0x14 31 0;
        LOG_PAGE_SIZE 0x18 28 24;
        LAST_NOTIFIED_INDEX 0x20 23 0;
        LAST_SOLICIT_INDEX 0x24 23 0;
        CONSUMER_COUNTER 0x28 23 0;
        PRODUCER_COUNTER 0x2c 23 0;
        DBR_ADDR 0x38 63 0;
    }
}
