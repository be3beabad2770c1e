//! Event queue commands and context.
//!
//! # References
//! ConnectX programmer's reference manual; `include/linux/mlx5/mlx5_ifc.h`

use super::layout;

layout! {
    /// The CREATE_EQ input.
    create_eq_in: 0x110 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        EQ_CONTEXT_ENTRY bytes 0x10 0x40;
        EVENT_BITMASK bytes 0x58 0x20;
        PAS @ 0x110;
    }

    /// The CREATE_EQ output.
    create_eq_out: 0x10 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        EQ_NUMBER 0x08 7 0;
    }

    /// The DESTROY_EQ input.
    destroy_eq_in: 0x10 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        EQ_NUMBER 0x08 7 0;
    }

    /// The QUERY_EQ input.
    query_eq_in: 0x10 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        EQ_NUMBER 0x08 7 0;
    }

    /// The QUERY_EQ output.
    query_eq_out: 0x110 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        EQ_CONTEXT_ENTRY bytes 0x10 0x40;
        EVENT_BITMASK 0x58 63 0;
        PAS @ 0x110;
    }

    /// Event queue context.
    eqc: 0x40 {
        STATUS 0x00 31 28;
        EC 0x00 18 18;
        OI 0x00 17 17;
        ST 0x00 11 8;
        PAGE_OFFSET 0x08 11 6;
        LOG_EQ_SIZE 0x0c 28 24;
        UAR_PAGE 0x0c 23 0;
        INTR 0x14 11 0;
        LOG_PAGE_SIZE 0x18 28 24;
        CONSUMER_COUNTER 0x28 23 0;
        PRODUCER_COUNTER 0x2c 23 0;
    }
}
