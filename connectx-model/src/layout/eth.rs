//! Commands and contexts of Ethernet send and receive queues, TIR, TIS and RQT.
//!
//! # References
//! ConnectX programmer's reference manual; `include/linux/mlx5/mlx5_ifc.h`

use super::layout;

layout! {
    /// The CREATE_SQ input.
    create_sq_in: 0x110 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        CTX bytes 0x20 0xf0;
    }

    /// The CREATE_SQ output.
    create_sq_out: 0x10 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        SQN 0x08 23 0;
    }

    /// The MODIFY_SQ input.
    modify_sq_in: 0x110 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        SQ_STATE 0x08 31 28;
        SQN 0x08 23 0;
        MODIFY_BITMASK 0x10 63 0;
        CTX bytes 0x20 0xf0;
    }

    /// The SET_PP_RATE_LIMIT input.
    set_pp_rate_limit_in: 0x40 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        RATE_LIMIT_INDEX 0x08 15 0;
        RATE_LIMIT 0x10 31 0;
        BURST_UPPER_BOUND 0x14 31 0;
        TYPICAL_PACKET_SIZE 0x18 15 0;
    }

    /// The DESTROY_SQ input.
    destroy_sq_in: 0x10 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        SQN 0x08 23 0;
    }

    /// The QUERY_SQ input.
    query_sq_in: 0x10 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        SQN 0x08 23 0;
    }

    /// The QUERY_SQ output.
    query_sq_out: 0x110 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        SQ_CONTEXT bytes 0x20 0xf0;
    }

    /// The CREATE_RQ input.
    create_rq_in: 0x110 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        CTX bytes 0x20 0xf0;
    }

    /// The CREATE_RQ output.
    create_rq_out: 0x10 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        RQN 0x08 23 0;
    }

    /// The MODIFY_RQ input.
    modify_rq_in: 0x110 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        RQ_STATE 0x08 31 28;
        RQN 0x08 23 0;
        MODIFY_BITMASK 0x10 63 0;
        CTX bytes 0x20 0xf0;
    }

    /// The DESTROY_RQ input.
    destroy_rq_in: 0x10 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        RQN 0x08 23 0;
    }

    /// The QUERY_RQ input.
    query_rq_in: 0x10 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        RQN 0x08 23 0;
    }

    /// The QUERY_RQ output.
    query_rq_out: 0x110 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        RQ_CONTEXT bytes 0x20 0xf0;
    }

    /// The CREATE_TIS input.
    create_tis_in: 0xc0 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        CTX bytes 0x20 0xa0;
    }

    /// The CREATE_TIS output.
    create_tis_out: 0x10 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        TISN 0x08 23 0;
    }

    /// The MODIFY_TIS input.
    modify_tis_in: 0xc0 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        TISN 0x08 23 0;
        LAG_TX_PORT_AFFINITY 0x14 2 2;
        STRICT_LAG_TX_PORT_AFFINITY 0x14 1 1;
        PRIO 0x14 0 0;
        CTX bytes 0x20 0xa0;
    }

    /// The DESTROY_TIS input.
    destroy_tis_in: 0x10 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        TISN 0x08 23 0;
    }

    /// The QUERY_TIS input.
    query_tis_in: 0x10 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        TISN 0x08 23 0;
    }

    /// The QUERY_TIS output.
    query_tis_out: 0xb0 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        TIS_CONTEXT bytes 0x10 0xa0;
    }

    /// The CREATE_TIR input.
    create_tir_in: 0x110 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        CTX bytes 0x20 0xf0;
    }

    /// The CREATE_TIR output.
    create_tir_out: 0x10 {
        STATUS 0x00 31 24;
        ICM_ADDRESS_63_40 0x00 23 0;
        SYNDROME 0x04 31 0;
        ICM_ADDRESS_39_32 0x08 31 24;
        TIRN 0x08 23 0;
        ICM_ADDRESS_31_0 0x0c 31 0;
    }

    /// The MODIFY_TIR input.
    modify_tir_in: 0x110 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        TIRN 0x08 23 0;
        SELF_LB_EN 0x14 4 4;
        HASH 0x14 2 2;
        PACKET_MERGE 0x14 0 0;
        CTX bytes 0x20 0xf0;
    }

    /// The DESTROY_TIR input.
    destroy_tir_in: 0x10 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        TIRN 0x08 23 0;
    }

    /// The QUERY_TIR input.
    query_tir_in: 0x10 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        TIRN 0x08 23 0;
    }

    /// The QUERY_TIR output.
    query_tir_out: 0x110 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        TIR_CONTEXT bytes 0x20 0xf0;
    }

    /// The CREATE_RQT input.
    create_rqt_in: 0x110 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        RQT_CONTEXT bytes 0x20 0xf0;
    }

    /// The CREATE_RQT output.
    create_rqt_out: 0x10 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        RQTN 0x08 23 0;
    }

    /// The MODIFY_RQT input.
    modify_rqt_in: 0x110 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        RQTN 0x08 23 0;
        RQN_LIST 0x14 0 0;
        CTX bytes 0x20 0xf0;
    }

    /// The DESTROY_RQT input.
    destroy_rqt_in: 0x10 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        RQTN 0x08 23 0;
    }

    /// The QUERY_RQT input.
    query_rqt_in: 0x10 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        RQTN 0x08 23 0;
    }

    /// The QUERY_RQT output.
    query_rqt_out: 0x110 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        RQT_CONTEXT bytes 0x20 0xf0;
    }

    /// Send queue context.
    sqc: 0xf0 {
        RLKY 0x00 31 31;
        CD_MASTER 0x00 30 30;
        FRE 0x00 29 29;
        FLUSH_IN_ERROR_EN 0x00 28 28;
        ALLOW_MULTI_PKT_SEND_WQE 0x00 27 27;
        MIN_WQE_INLINE_MODE 0x00 26 24;
        STATE 0x00 23 20;
        REG_UMR 0x00 19 19;
        ALLOW_SWP 0x00 18 18;
        HAIRPIN 0x00 17 17;
        NON_WIRE 0x00 16 16;
        TS_FORMAT 0x00 5 4;
        USER_INDEX 0x04 23 0;
        CQN 0x08 23 0;
        HAIRPIN_PEER_RQ 0x0c 23 0;
        HAIRPIN_PEER_VHCA 0x10 15 0;
        TS_CQE_TO_DEST_CQN 0x18 23 0;
        PACKET_PACING_RATE_LIMIT_INDEX 0x1c 15 0;
        TIS_LST_SZ 0x20 31 16;
        QOS_QUEUE_GROUP_ID 0x20 15 0;
        TIS_NUM_0 0x2c 23 0;
        WQ bytes 0x30 0xc0;
    }

    /// Receive queue context.
    rqc: 0xf0 {
        RLKY 0x00 31 31;
        DELAY_DROP_EN 0x00 30 30;
        SCATTER_FCS 0x00 29 29;
        VSD 0x00 28 28;
        MEM_RQ_TYPE 0x00 27 24;
        STATE 0x00 23 20;
        FLUSH_IN_ERROR_EN 0x00 18 18;
        HAIRPIN 0x00 17 17;
        TS_FORMAT 0x00 5 4;
        USER_INDEX 0x04 23 0;
        CQN 0x08 23 0;
        COUNTER_SET_ID 0x0c 31 24;
        RMPN 0x10 23 0;
        HAIRPIN_PEER_SQ 0x14 23 0;
        HAIRPIN_PEER_VHCA 0x18 15 0;
        SHAMPO_NO_MATCH_ALIGNMENT_GRANULARITY 0x24 25 24;
        SHAMPO_MATCH_CRITERIA_TYPE 0x24 17 16;
        RESERVATION_TIMEOUT 0x24 15 0;
        WQ bytes 0x30 0xc0;
    }

    /// Transport interface send context.
    tisc: 0xa0 {
        STRICT_LAG_TX_PORT_AFFINITY 0x00 31 31;
        TLS_EN 0x00 30 30;
        LAG_TX_PORT_AFFINITY 0x00 27 24;
        PRIO 0x00 19 16;
        TRANSPORT_DOMAIN 0x24 23 0;
        UNDERLAY_QPN 0x28 23 0;
        PD 0x2c 23 0;
    }

    /// Transport interface receive context.
    tirc: 0xf0 {
        DISP_TYPE 0x04 31 28;
        TLS_EN 0x04 27 27;
        LRO_TIMEOUT_PERIOD_USECS 0x10 27 12;
        PACKET_MERGE_MASK 0x10 11 8;
        LRO_MAX_IP_PAYLOAD_SIZE 0x10 7 0;
        INLINE_RQN 0x1c 23 0;
        RX_HASH_SYMMETRIC 0x20 31 31;
        TUNNELED_OFFLOAD_EN 0x20 29 29;
        INDIRECT_TABLE 0x20 23 0;
        RX_HASH_FN 0x24 31 28;
        SELF_LB_BLOCK 0x24 25 24;
        TRANSPORT_DOMAIN 0x24 23 0;
        RX_HASH_TOEPLITZ_KEY bytes 0x28 0x28;
        RX_HASH_FIELD_SELECTOR_OUTER_L3_PROT_TYPE 0x50 31 31;
        RX_HASH_FIELD_SELECTOR_OUTER_L4_PROT_TYPE 0x50 30 30;
        RX_HASH_FIELD_SELECTOR_OUTER_SELECTED_FIELDS 0x50 29 0;
        RX_HASH_FIELD_SELECTOR_INNER_L3_PROT_TYPE 0x54 31 31;
        RX_HASH_FIELD_SELECTOR_INNER_L4_PROT_TYPE 0x54 30 30;
        RX_HASH_FIELD_SELECTOR_INNER_SELECTED_FIELDS 0x54 29 0;
    }

    /// Receive queue table context.
    rqtc: 0xf0 {
        LIST_Q_TYPE 0x14 26 24;
        RQT_MAX_SIZE 0x14 15 0;
        RQ_VHCA_ID_FORMAT 0x18 31 31;
        RQT_ACTUAL_SIZE 0x18 15 0;
        RQ_NUM @ 0xf0;
        RQ_VHCA @ 0xf0;
    }
}
