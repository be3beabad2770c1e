//! Soft-RoCE (rdma_rxe) provider: mapped queues plus the kick.
