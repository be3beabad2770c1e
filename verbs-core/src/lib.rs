//! What RDMA verbs and their providers share: discovery, the uverbs command channel, provider contract, ring primitives.
