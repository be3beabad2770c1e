//! The initialisation segment, and the entries and mailboxes of the command queue.
//!
//! # References
//! ConnectX programmer's reference manual, "initialization segment", "command interface";
//! `include/linux/mlx5/mlx5_ifc.h`, `device.h`

use super::layout;

layout! {
    /// The initialisation segment, at the start of BAR 0.
    initial_seg: 0x4000 {
        FW_REV_MINOR 0x00 31 16;
        FW_REV_MAJOR 0x00 15 0;
        CMD_INTERFACE_REV 0x04 31 16;
        FW_REV_SUBMINOR 0x04 15 0;
        CMDQ_PHY_ADDR_63_32 0x10 31 0;
        CMDQ_PHY_ADDR_31_12 0x14 31 12;
        NIC_INTERFACE 0x14 9 8;
        LOG_CMDQ_SIZE 0x14 7 4;
        LOG_CMDQ_STRIDE 0x14 3 0;
        COMMAND_DOORBELL_VECTOR 0x18 31 0;
        INITIALIZING 0x1fc 31 31;
        NIC_INTERFACE_SUPPORTED 0x1fc 26 24;
        EMBEDDED_CPU 0x1fc 23 23;
        ASSERT_EXISTPTR 0x220 31 0;
        ASSERT_CALLRA 0x224 31 0;
        TIME 0x22c 31 0;
        FW_VERSION 0x230 31 0;
        HW_ID 0x234 31 0;
        RFR 0x238 31 31;
        VALID 0x238 27 27;
        SEVERITY 0x238 26 24;
        IRISC_INDEX 0x23c 31 24;
        SYND 0x23c 23 16;
        EXT_SYND 0x23c 15 0;
        NO_DRAM_NIC_OFFSET 0x240 31 0;
        CLEAR_INT 0x100c 0 0;
        HEALTH_SYNDROME 0x1010 31 24;
        HEALTH_COUNTER 0x1010 23 0;
        INTERNAL_TIMER_H 0x1000 31 0;
        INTERNAL_TIMER_L 0x1004 31 0;
        REAL_TIME_H 0x1040 31 0;
        REAL_TIME_L 0x1044 31 0;
    }

    /// An entry of the command queue.
    command_entry: 0x40 {
        TYPE 0x00 31 24;
        INPUT_LENGTH 0x04 31 0;
        INPUT_MAILBOX 0x08 63 0;
        INPUT_INLINE bytes 0x10 0x10;
        OUTPUT_INLINE bytes 0x20 0x10;
        OUTPUT_MAILBOX 0x30 63 0;
        OUTPUT_LENGTH 0x38 31 0;
        TOKEN 0x3c 31 24;
        SIGNATURE 0x3c 23 16;
        STATUS 0x3c 7 1;
        OWNER 0x3c 0 0;
    }

    /// A mailbox: one block of a command's input or output.
    mailbox: 0x240 {
        DATA bytes 0x0 0x200;
        NEXT 0x230 63 0;
        BLOCK_NUMBER 0x238 31 0;
        TOKEN 0x23c 23 16;
        CTRL_SIGNATURE 0x23c 15 8;
        SIGNATURE 0x23c 7 0;
    }

    /// The first bytes of every command's input.
    command_in: 0x10 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
    }

    /// The first bytes of every command's output.
    command_out: 0x8 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
    }
}
