//! Work queue entries: segments of work requests and elements of receives.
//!
//! # References
//! ConnectX programmer's reference manual, "work queue element"; rdma-core
//! `providers/mlx5/mlx5dv.h`

use super::layout;

layout! {
    /// Control segment: the first segment of every work request in a send queue.
    ctrl: 0x10 {
        OPMOD 0x00 31 24;
        WQE_INDEX 0x00 23 8;
        OPCODE 0x00 7 0;
        QPN 0x04 31 8;
        DS 0x04 5 0;
        SIGNATURE 0x08 31 24;
        DCI_STREAM 0x08 23 8;
        FM 0x08 7 5;
        CE 0x08 3 2;
        SE 0x08 1 1;
        IMM 0x0c 31 0;
    }

    /// XRC segment: contains the number of the peer's shared receive queue.
    xrc: 0x10 {
        SRQN 0x00 23 0;
    }

    /// Datagram segment: the destination, with an extended address vector.
    datagram: 0x30 {
        Q_KEY 0x00 31 0;
        EXTENDED 0x08 31 31;
        DQPN 0x08 23 0;
        STAT_RATE 0x0c 31 28;
        SL 0x0c 27 24;
        FORCE_LOOPBACK 0x0c 23 23;
        MLID_PATH_BITS 0x0c 22 16;
        RLID_UDP_SPORT 0x0c 15 0;
        RMAC bytes 0x14 0x6;
        TCLASS 0x18 15 8;
        HOP_LIMIT 0x18 7 0;
        GRH 0x1c 30 30;
        SGID_INDEX 0x1c 27 20;
        FLOW_LABEL 0x1c 19 0;
        RGID bytes 0x20 0x10;
    }

    /// Remote address segment: the address and key of the peer's memory.
    remote_address: 0x10 {
        VA 0x00 63 0;
        RKEY 0x08 31 0;
    }

    /// Atomic segment: the operands of an atomic operation.
    atomic: 0x10 {
        SWAP_ADD 0x00 63 0;
        COMPARE 0x08 63 0;
    }

    /// Data segment: an element of a scatter/gather list.
    data: 0x10 {
        BYTE_COUNT 0x00 30 0;
        LKEY 0x04 31 0;
        ADDRESS 0x08 63 0;
    }

    /// Header of an inline data segment.
    inline: 0x4 {
        IS_INLINE 0x00 31 31;
        BYTE_COUNT 0x00 9 0;
    }

    /// Checksum segment: the first 16 bytes of a receive with a checksum.
    recv_signature: 0x10 {
        SIGNATURE 0x04 31 24;
    }

    /// Next segment: the first 16 bytes of an entry in a shared receive queue.
    srq_next: 0x10 {
        NEXT_WQE_INDEX 0x00 15 0;
        SIGNATURE 0x04 31 24;
    }

    /// Tag matching segment: a change to a matching list.
    tag_matching: 0x20 {
        OPCODE 0x00 31 28;
        CQE_REQ 0x00 23 23;
        SW_CNT_VALID 0x00 22 22;
        INDEX 0x00 15 0;
        SW_CNT 0x04 15 0;
        APPEND_TAG 0x10 63 0;
        APPEND_MASK 0x18 63 0;
    }

    /// UMR control segment: selects which fields of a memory key to change.
    umr_ctrl: 0x30 {
        INLINE 0x00 31 31;
        CHECK_FREE 0x00 30 29;
        TRANSLATION_OFFSET_EN 0x00 28 28;
        CHECK_QPN 0x00 27 27;
        KLM_OCTOWORDS 0x04 31 16;
        TRANSLATION_OFFSET 0x04 15 0;
        MKEY_MASK 0x08 63 0;
        TRANSLATION_OFFSET_42_16 0x10 26 0;
    }

    /// An entry in the list of an indirect memory key.
    klm: 0x10 {
        BYTE_COUNT 0x00 31 0;
        MKEY 0x04 31 0;
        VA 0x08 63 0;
    }

    /// Ethernet segment. Its last two bytes hold the start of the inline header, or the VLAN tag to
    /// insert.
    eth: 0x10 {
        L4_CSUM 0x04 31 31;
        L3_CSUM 0x04 30 30;
        L4_INNER_CSUM 0x04 29 29;
        L3_INNER_CSUM 0x04 28 28;
        MSS 0x04 13 0;
        FLOW_TABLE_METADATA 0x08 31 0;
        INSERT_VLAN 0x0c 31 31;
        INSERT_SVLAN 0x0c 30 30;
        INLINE_HEADER_SIZE 0x0c 25 16;
        INLINE_HEADER_START bytes 0xe 0x2;
    }
}
