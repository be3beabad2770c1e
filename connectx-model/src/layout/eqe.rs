//! Event queue entries, 64 bytes.
//!
//! # References
//! ConnectX programmer's reference manual, "event queue entry"; `include/linux/mlx5/device.h`

use super::layout;

layout! {
    /// The fields common to all events.
    eqe: 0x40 {
        EVENT_TYPE 0x00 23 16;
        EVENT_SUB_TYPE 0x00 7 0;
        EVENT_DATA bytes 0x20 0x1c;
        SIGNATURE 0x3c 15 8;
        OWNER 0x3c 0 0;
    }

    /// Data of a completion event.
    completion: 0x1c {
        CQN 0x18 23 0;
    }

    /// Data of a queue pair or shared receive queue event.
    qp_srq: 0x1c {
        TYPE 0x14 31 24;
        QPN_RQN_SQN 0x18 23 0;
    }

    /// Data of a completion queue error event.
    cq_error: 0x1c {
        CQN 0x00 23 0;
        SYNDROME 0x08 7 0;
    }

    /// Data of a port event.
    port: 0x1c {
        PORT_NUM 0x08 31 28;
    }

    /// Data of a command completion event.
    command: 0x1c {
        VECTOR 0x00 31 0;
    }

    /// Data of a page fault event caused by a work request.
    wqe_page_fault: 0x1c {
        BYTES_COMMITTED 0x00 31 0;
        WQE_INDEX 0x04 15 0;
        PACKET_LENGTH 0x08 15 0;
        TOKEN 0x0c 31 0;
        PFTYPE 0x18 26 24;
        WQ 0x18 23 0;
    }

    /// Data of a page fault event caused by a peer's access.
    rdma_page_fault: 0x1c {
        BYTES_COMMITTED 0x00 31 0;
        R_KEY 0x04 31 0;
        PACKET_LENGTH 0x08 15 0;
        RDMA_OP_LEN 0x0c 31 0;
        RDMA_VA 0x10 63 0;
        PFTYPE 0x18 31 24;
        TOKEN 0x18 23 0;
    }

    /// Data of a page request event.
    page_request: 0x1c {
        EC_FUNCTION 0x00 31 16;
        FUNCTION_ID 0x00 15 0;
        NUM_PAGES 0x04 31 0;
    }
}
