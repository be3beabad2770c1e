//! Completion queue entries of 64 bytes. A 128-byte entry contains such an entry in its second
//! half.
//!
//! # References
//! ConnectX programmer's reference manual, "completion queue entry"; `include/linux/mlx5/device.h`

use super::layout;

layout! {
    /// A completion queue entry.
    cqe: 0x40 {
        WQE_ID 0x00 15 0;
        RSS_HASH_RESULT 0x0c 31 0;
        RSS_HASH_TYPE 0x10 31 24;
        ML_PATH 0x10 22 16;
        CHECK_SUM 0x14 31 16;
        SLID 0x14 15 0;
        GRH 0x18 29 28;
        SL 0x18 27 24;
        RQPN 0x18 23 0;
        L4_OK 0x1c 26 26;
        L3_OK 0x1c 25 25;
        L2_OK 0x1c 24 24;
        HDR_TYPE 0x1c 23 16;
        VLAN_INFO 0x1c 15 0;
        SRQN_USER_INDEX 0x20 23 0;
        IMM_INVAL_PKEY 0x24 31 0;
        BYTE_CNT 0x2c 31 0;
        TIMESTAMP 0x30 63 0;
        WQE_OPCODE 0x38 31 24;
        QPN 0x38 23 0;
        WQE_COUNTER 0x3c 31 16;
        SIGNATURE 0x3c 15 8;
        OPCODE 0x3c 7 4;
        FORMAT 0x3c 3 2;
        SE 0x3c 1 1;
        OWNER 0x3c 0 0;
    }

    /// The fields of a completion queue entry that differ in tag matching completions.
    tm_cqe: 0x40 {
        SUCCESS 0x00 31 31;
        HW_PHASE_CNT 0x04 31 16;
        TMH bytes 0x00 0x10;
        APP 0x28 31 24;
        APP_OP 0x28 23 16;
        APP_INFO 0x28 15 0;
    }

    /// A mini entry: the fields in which a completion of a compressed block differs from the title.
    /// For receives, the first dword has one of several formats, selected by the queue.
    mini_cqe: 0x08 {
        RX_HASH_RESULT 0x00 31 0;
        CHECKSUM 0x00 31 16;
        WQE_COUNTER 0x00 31 16;
        S_WQE_OPCODE 0x00 15 8;
        BYTE_CNT 0x04 31 0;
    }

    /// A completion queue entry with an error.
    error_cqe: 0x40 {
        SRQN_USER_INDEX 0x20 23 0;
        HW_ERROR_SYNDROME 0x34 31 24;
        HW_SYNDROME_TYPE 0x34 23 16;
        VENDOR_ERROR_SYNDROME 0x34 15 8;
        SYNDROME 0x34 7 0;
        WQE_OPCODE 0x38 31 24;
        QPN 0x38 23 0;
        WQE_COUNTER 0x3c 31 16;
        SIGNATURE 0x3c 15 8;
        OPCODE 0x3c 7 4;
        OWNER 0x3c 0 0;
    }
}
