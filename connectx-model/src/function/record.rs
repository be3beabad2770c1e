//! Doorbell records: counters in guest memory that the driver advances.
//!
//! | record | first word | second word |
//! |---|---|---|
//! | queue pair, Ethernet queue | receives, 16 bits | basic blocks of sends, 16 bits |
//! | shared receive queue | receives, 16 bits | |
//! | completion queue | consumer index, 24 bits | arm word, see [`cq`](crate::cq) |
//!
//! # References
//! PRM, "doorbell record"; rdma-core `providers/mlx5` (`db`, `dbrec`, `recv_db`); Linux
//! `drivers/infiniband/hw/mlx5/wr.c`, `srq.c`, `drivers/net/ethernet/mellanox/mlx5/core/wq.h`

use crate::bus::Bus;
use crate::complaint::Rule;
use crate::function::Core;
use crate::log::CONSUMED;

impl<B: Bus> Core<B> {
    /// Reads a word of a doorbell record. Returns `None`, with a complaint, if the record is not in
    /// guest memory.
    pub(crate) fn record(&mut self, address: u64) -> Option<u32> {
        let mut word = [0; 4];
        match self.bus.read(address, &mut word) {
            Ok(()) => Some(u32::from_be_bytes(word)),
            Err(fault) => {
                self.log.complain(Rule::DmaFault, format!("a doorbell record: {fault}"));
                None
            }
        }
    }

    /// Reads a counter of posted work requests. Complains if bits above the counter are set.
    pub(crate) fn posted(&mut self, address: u64) -> Option<u16> {
        let word = self.record(address)?;
        Some(self.log.posted(word))
    }

    /// Reads a consumer index. Complains if bits above the index are set.
    pub(crate) fn consumed(&mut self, address: u64) -> Option<u32> {
        let word = self.record(address)?;
        Some(self.log.counter(word, CONSUMED))
    }

    /// Complains unless the counter of posted work requests is 0, as it must be when its queue
    /// starts.
    pub(crate) fn needs_start(&mut self, address: u64, of: &str) {
        let Some(word) = self.record(address) else { return };
        if word != 0 {
            self.log.complain(Rule::DoorbellRecordStart, format!("{of}: the record holds {word:#x}"));
        }
    }
}
