//! Commands and contexts of memory keys, protection domains, XRC domains and transport domains.
//!
//! # References
//! ConnectX programmer's reference manual; `include/linux/mlx5/mlx5_ifc.h`

use super::layout;

layout! {
    /// The CREATE_MKEY input.
    create_mkey_in: 0x110 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        PG_ACCESS 0x0c 31 31;
        MKEY_UMEM_VALID 0x0c 30 30;
        DATA_DIRECT 0x0c 29 29;
        MEMORY_KEY_MKEY_ENTRY bytes 0x10 0x40;
        TRANSLATIONS_OCTWORD_ACTUAL_SIZE 0x60 31 0;
        KLM_PAS_MTT @ 0x110;
    }

    /// The CREATE_MKEY output.
    create_mkey_out: 0x10 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        MKEY_INDEX 0x08 23 0;
    }

    /// The DESTROY_MKEY input.
    destroy_mkey_in: 0x10 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        MKEY_INDEX 0x08 23 0;
    }

    /// The QUERY_MKEY input.
    query_mkey_in: 0x10 {
        OPCODE 0x00 31 16;
        OP_MOD 0x04 15 0;
        MKEY_INDEX 0x08 23 0;
        PG_ACCESS 0x0c 31 31;
    }

    /// The QUERY_MKEY output.
    query_mkey_out: 0x130 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        MEMORY_KEY_MKEY_ENTRY bytes 0x10 0x40;
        BSF0_KLM0_PAS_MTT0_1 bytes 0x110 0x10;
        BSF1_KLM1_PAS_MTT2_3 bytes 0x120 0x10;
    }

    /// The ALLOC_PD input.
    alloc_pd_in: 0x10 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
    }

    /// The ALLOC_PD output.
    alloc_pd_out: 0x10 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        PD 0x08 23 0;
    }

    /// The DEALLOC_PD input.
    dealloc_pd_in: 0x10 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        PD 0x08 23 0;
    }

    /// The ALLOC_XRCD input.
    alloc_xrcd_in: 0x10 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
    }

    /// The ALLOC_XRCD output.
    alloc_xrcd_out: 0x10 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        XRCD 0x08 23 0;
    }

    /// The DEALLOC_XRCD input.
    dealloc_xrcd_in: 0x10 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        XRCD 0x08 23 0;
    }

    /// The ALLOC_TRANSPORT_DOMAIN input.
    alloc_transport_domain_in: 0x10 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
    }

    /// The ALLOC_TRANSPORT_DOMAIN output.
    alloc_transport_domain_out: 0x10 {
        STATUS 0x00 31 24;
        SYNDROME 0x04 31 0;
        TRANSPORT_DOMAIN 0x08 23 0;
    }

    /// The DEALLOC_TRANSPORT_DOMAIN input.
    dealloc_transport_domain_in: 0x10 {
        OPCODE 0x00 31 16;
        UID 0x00 15 0;
        OP_MOD 0x04 15 0;
        TRANSPORT_DOMAIN 0x08 23 0;
    }

    /// Memory key context.
    mkc: 0x40 {
        FREE 0x00 30 30;
        ACCESS_MODE_4_2 0x00 28 26;
        RELAXED_ORDERING_WRITE 0x00 18 18;
        SMALL_FENCE_ON_RDMA_READ_RESPONSE 0x00 16 16;
        UMR_EN 0x00 15 15;
        A 0x00 14 14;
        RW 0x00 13 13;
        RR 0x00 12 12;
        LW 0x00 11 11;
        LR 0x00 10 10;
        ACCESS_MODE_1_0 0x00 9 8;
        MA_TRANSLATION_MODE 0x00 5 4;
        QPN 0x04 31 8;
        MKEY_7_0 0x04 7 0;
        LENGTH64 0x0c 31 31;
        BSF_EN 0x0c 30 30;
        SYNC_UMR 0x0c 29 29;
        EXPECTED_SIGERR_COUNT 0x0c 26 26;
        EN_RINVAL 0x0c 24 24;
        PD 0x0c 23 0;
        START_ADDR 0x10 63 0;
        LEN 0x18 63 0;
        BSF_OCTWORD_SIZE 0x20 31 0;
        CROSSING_TARGET_VHCA_ID 0x30 31 16;
        TRANSLATIONS_OCTWORD_SIZE 0x34 31 0;
        RELAXED_ORDERING_READ 0x38 6 6;
        LOG_PAGE_SIZE 0x38 5 0;
        PCIE_TPH_EN 0x3c 26 26;
        PCIE_TPH_PH 0x3c 25 24;
        PCIE_TPH_STEERING_TAG_INDEX 0x3c 23 16;
    }
}
