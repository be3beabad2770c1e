//! Queue pair and multicast group commands, queue pair context, address path.
//!
//! # References
//! ConnectX programmer's reference manual; `include/linux/mlx5/mlx5_ifc.h`

use super::layout;

layout! {
    /// The CREATE_QP input.
    create_qp_in: 0x110 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        QPC_EXT 0x08 31 31;
        INPUT_QPN 0x08 23 0;
        OPT_PARAM_MASK 0x10 31 0;
        ECE 0x14 31 0;
        QPC bytes 0x18 0xe8;
        WQ_UMEM_OFFSET 0x100 63 0;
        WQ_UMEM_ID 0x108 31 0;
        WQ_UMEM_VALID 0x10c 31 31;
        PAS @ 0x110;
    }

    /// The CREATE_QP output.
    create_qp_out: 0x10 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        QPN 0x08 23 0;
        ECE 0x0c 31 0;
    }

    /// The DESTROY_QP input.
    destroy_qp_in: 0x10 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        QPN 0x08 23 0;
    }

    /// The QUERY_QP input.
    query_qp_in: 0x10 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        QPC_EXT 0x08 31 31;
        QPN 0x08 23 0;
    }

    /// The QUERY_QP output.
    query_qp_out: 0x1d0 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        OPT_PARAM_MASK 0x10 31 0;
        ECE 0x14 31 0;
        QPC bytes 0x18 0xe8;
        QP_PAS_LIST @ 0x110;
        HW_ERROR_SYNDROME 0x11c 31 24;
        HW_SYNDROME_TYPE 0x11c 23 20;
        VENDOR_ERROR_SYNDROME 0x11c 15 8;
        PAS @ 0x1d0;
    }

    /// The RST2INIT_QP input.
    rst2init_qp_in: 0x110 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        QPN 0x08 23 0;
        OPT_PARAM_MASK 0x10 31 0;
        ECE 0x14 31 0;
        QPC bytes 0x18 0xe8;
    }

    /// The RST2INIT_QP output.
    rst2init_qp_out: 0x10 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        ECE 0x0c 31 0;
    }

    /// The INIT2INIT_QP input.
    init2init_qp_in: 0x110 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        QPN 0x08 23 0;
        OPT_PARAM_MASK 0x10 31 0;
        ECE 0x14 31 0;
        QPC bytes 0x18 0xe8;
    }

    /// The INIT2INIT_QP output.
    init2init_qp_out: 0x10 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        ECE 0x0c 31 0;
    }

    /// The INIT2RTR_QP input.
    init2rtr_qp_in: 0x110 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        QPN 0x08 23 0;
        OPT_PARAM_MASK 0x10 31 0;
        ECE 0x14 31 0;
        QPC bytes 0x18 0xe8;
    }

    /// The INIT2RTR_QP output.
    init2rtr_qp_out: 0x10 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        ECE 0x0c 31 0;
    }

    /// The RTR2RTS_QP input.
    rtr2rts_qp_in: 0x110 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        QPN 0x08 23 0;
        OPT_PARAM_MASK 0x10 31 0;
        ECE 0x14 31 0;
        QPC bytes 0x18 0xe8;
    }

    /// The RTR2RTS_QP output.
    rtr2rts_qp_out: 0x10 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        ECE 0x0c 31 0;
    }

    /// The RTS2RTS_QP input.
    rts2rts_qp_in: 0x110 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        QPN 0x08 23 0;
        OPT_PARAM_MASK 0x10 31 0;
        ECE 0x14 31 0;
        QPC bytes 0x18 0xe8;
    }

    /// The RTS2RTS_QP output.
    rts2rts_qp_out: 0x10 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        ECE 0x0c 31 0;
    }

    /// The SQERR2RTS_QP input.
    sqerr2rts_qp_in: 0x110 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        QPN 0x08 23 0;
        OPT_PARAM_MASK 0x10 31 0;
        QPC bytes 0x18 0xe8;
    }

    /// The SQD2RTS_QP input.
    sqd2rts_qp_in: 0x110 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        QPN 0x08 23 0;
        OPT_PARAM_MASK 0x10 31 0;
        QPC bytes 0x18 0xe8;
    }

    /// The QP_2ERR input.
    qp_2err_in: 0x10 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        QPN 0x08 23 0;
    }

    /// The QP_2RST input.
    qp_2rst_in: 0x10 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        QPN 0x08 23 0;
    }

    /// The ATTACH_TO_MCG input.
    attach_to_mcg_in: 0x20 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        QPN 0x08 23 0;
        MULTICAST_GID bytes 0x10 0x10;
    }

    /// The DETACH_FROM_MCG input.
    detach_from_mcg_in: 0x20 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        QPN 0x08 23 0;
        MULTICAST_GID bytes 0x10 0x10;
    }

    /// Queue pair context.
    qpc: 0xe8 {
        STATE 0x00 31 28;
        LAG_TX_PORT_AFFINITY 0x00 27 24;
        ST 0x00 23 16;
        ISOLATE_VL_TC 0x00 13 13;
        PM_STATE 0x00 12 11;
        REQ_E2E_CREDIT_MODE 0x00 9 8;
        OFFLOAD_TYPE 0x00 7 4;
        END_PADDING_MODE 0x00 3 2;
        WQ_SIGNATURE 0x04 31 31;
        BLOCK_LB_MC 0x04 30 30;
        ATOMIC_LIKE_WRITE_EN 0x04 29 29;
        LATENCY_SENSITIVE 0x04 28 28;
        DRAIN_SIGERR 0x04 26 26;
        DP_ORDERING_FORCE 0x04 24 24;
        PD 0x04 23 0;
        MTU 0x08 31 29;
        LOG_MSG_MAX 0x08 28 24;
        LOG_RQ_SIZE 0x08 22 19;
        LOG_RQ_STRIDE 0x08 18 16;
        NO_SQ 0x08 15 15;
        LOG_SQ_SIZE 0x08 14 11;
        RETRY_MODE 0x08 9 8;
        TS_FORMAT 0x08 7 6;
        RLKY 0x08 4 4;
        ULP_STATELESS_OFFLOAD_MODE 0x08 3 0;
        COUNTER_SET_ID 0x0c 31 24;
        UAR_PAGE 0x0c 23 0;
        USER_INDEX 0x10 23 0;
        LOG_PAGE_SIZE 0x14 28 24;
        REMOTE_QPN 0x14 23 0;
        PRIMARY_ADDRESS_PATH bytes 0x18 0x2c;
        SECONDARY_ADDRESS_PATH bytes 0x44 0x2c;
        LOG_ACK_REQ_FREQ 0x70 31 28;
        LOG_SRA_MAX 0x70 23 21;
        RETRY_COUNT 0x70 18 16;
        RNR_RETRY 0x70 15 13;
        FRE 0x70 11 11;
        CUR_RNR_RETRY 0x70 10 8;
        CUR_RETRY_COUNT 0x70 7 5;
        PACKET_PACING_RATE_LIMIT_INDEX 0x74 15 0;
        NEXT_SEND_PSN 0x78 23 0;
        LOG_NUM_DCI_STREAM_CHANNELS 0x7c 28 24;
        CQN_SND 0x7c 23 0;
        LOG_NUM_DCI_ERRORED_STREAMS 0x80 28 24;
        DETH_SQPN 0x80 23 0;
        LAST_ACKED_PSN 0x88 23 0;
        SSN 0x8c 23 0;
        LOG_RRA_MAX 0x90 23 21;
        ATOMIC_MODE 0x90 19 16;
        RRE 0x90 15 15;
        RWE 0x90 14 14;
        RAE 0x90 13 13;
        PAGE_OFFSET 0x90 11 6;
        DP_ORDERING_1 0x90 3 3;
        CD_SLAVE_RECEIVE 0x90 2 2;
        CD_SLAVE_SEND 0x90 1 1;
        CD_MASTER 0x90 0 0;
        MIN_RNR_NAK 0x94 28 24;
        NEXT_RCV_PSN 0x94 23 0;
        XRCD 0x98 23 0;
        CQN_RCV 0x9c 23 0;
        DBR_ADDR 0xa0 63 0;
        Q_KEY 0xa8 31 0;
        RQ_TYPE 0xac 26 24;
        SRQN_RMPN_XRQN 0xac 23 0;
        RMSN 0xb0 23 0;
        HW_SQ_WQEBB_COUNTER 0xb4 31 16;
        SW_SQ_WQEBB_COUNTER 0xb4 15 0;
        HW_RQ_COUNTER 0xb8 31 0;
        SW_RQ_COUNTER 0xbc 31 0;
        CGS 0xc4 16 16;
        CS_REQ 0xc4 15 8;
        CS_RES 0xc4 7 0;
        DC_ACCESS_KEY 0xc8 63 0;
        DBR_UMEM_VALID 0xd0 28 28;
    }

    /// Address path in a queue pair context.
    ads: 0x2c {
        FL 0x00 31 31;
        FREE_AR 0x00 30 30;
        PKEY_INDEX 0x00 15 0;
        PLANE_INDEX 0x04 31 24;
        GRH 0x04 23 23;
        MLID 0x04 22 16;
        RLID 0x04 15 0;
        ACK_TIMEOUT 0x08 31 27;
        SRC_ADDR_INDEX 0x08 23 16;
        STAT_RATE 0x08 11 8;
        HOP_LIMIT 0x08 7 0;
        TCLASS 0x0c 27 20;
        FLOW_LABEL 0x0c 19 0;
        RGID_RIP bytes 0x10 0x10;
        F_DSCP 0x20 27 27;
        F_ECN 0x20 26 26;
        F_ETH_PRIO 0x20 24 24;
        ECN 0x20 23 22;
        DSCP 0x20 21 16;
        UDP_SPORT 0x20 15 0;
        DEI_CFI 0x24 31 31;
        ETH_PRIO 0x24 30 28;
        SL 0x24 27 24;
        VHCA_PORT_NUM 0x24 23 16;
        RMAC_47_32 0x24 15 0;
        RMAC_31_0 0x28 31 0;
    }
}
