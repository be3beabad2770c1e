//! Device memory commands.
//!
//! # References
//! Linux `include/linux/mlx5/mlx5_ifc.h`

use super::layout;

layout! {
    /// The ALLOC_MEMIC input.
    alloc_memic_in: 0x20 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        LOG_MEMIC_ADDR_ALIGNMENT 0x0c 7 0;
        RANGE_START_ADDR 0x10 63 0;
        RANGE_SIZE 0x18 31 0;
        MEMIC_SIZE 0x1c 31 0;
    }

    /// The ALLOC_MEMIC output.
    alloc_memic_out: 0x10 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        MEMIC_START_ADDR 0x08 63 0;
    }

    /// The DEALLOC_MEMIC input.
    dealloc_memic_in: 0x20 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        MEMIC_START_ADDR 0x10 63 0;
        MEMIC_SIZE 0x18 31 0;
    }
}
