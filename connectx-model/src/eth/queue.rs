//! [`WorkQueue`]: the ring of a send or receive queue, described by the work queue part of its
//! context.
//!
//! Invariant: a ring's entries and its doorbell record are in guest memory when the ring is
//! created. Memory faults that occur later are reported.
//!
//! # References
//! PRM, "work queue context"

use crate::bus::Bus;
use crate::caps::{LOG_MAX_WQ, LOG_STRIDE};
use crate::checks::{bad, buffer, doorbell_record, none_of, reserved};
use crate::layout::srq::wq;
use crate::refusal::Refusal;
use crate::state::work_queue::WorkQueue;

/// The only supported type of work queue.
const CYCLIC: u32 = 1;

impl WorkQueue {
    /// Decodes a work queue and the page list after its context.
    pub(crate) fn new<B: Bus>(bus: &B, context: &[u8], list: &[u8]) -> Result<Self, Refusal> {
        reserved(&wq::TABLE, context)?;
        none_of(NOT_OFFERED, context)?;
        let kind = wq::WQ_TYPE.get32(context);
        if kind != CYCLIC {
            return Err(bad(format!("a work queue of type {kind}")));
        }
        let (log_stride, log_size) = (wq::LOG_WQ_STRIDE.get32(context), wq::LOG_WQ_SZ.get32(context));
        if !LOG_STRIDE.contains(&log_stride) || log_size > LOG_MAX_WQ {
            return Err(bad(format!("2^{log_size} entries of 2^{log_stride} bytes")));
        }
        let record = wq::DBR_ADDR.get(context);
        doorbell_record(bus, record)?;
        let stride = 1u64 << log_stride;
        let (log_page, offset) = (wq::LOG_WQ_PG_SZ.get32(context), wq::PAGE_OFFSET.get(context));
        let pages = buffer(bus, list, log_page, offset, stride << log_size)?;
        let (pd, uar) = (wq::PD.get32(context), wq::UAR_PAGE.get32(context));
        Ok(Self { pages, stride, log_size, doorbell_record: record, pd, uar })
    }
}

/// Fields of features that are not offered: signatures, striding, header splitting, peer queues.
const NOT_OFFERED: &[crate::layout::Field] = &[
    wq::WQ_SIGNATURE,
    wq::CD_SLAVE,
    wq::HDS_SKIP_FIRST_SGE,
    wq::LOG2_HDS_BUF_SIZE,
    wq::DBR_UMEM_VALID,
    wq::WQ_UMEM_VALID,
    wq::LOG_HAIRPIN_NUM_PACKETS,
    wq::LOG_HAIRPIN_DATA_SZ,
    wq::LOG_WQE_NUM_OF_STRIDES,
    wq::TWO_BYTE_SHIFT_EN,
    wq::LOG_WQE_STRIDE_SIZE,
    wq::SHAMPO_ENABLE,
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::PlainBus;
    use crate::complaint::Rule;
    use crate::log::Log;

    /// Returns the context of a work queue with 4 entries of 64 bytes at address 0x1000. Its
    /// doorbell record is at address 0x40.
    fn context() -> [u8; wq::SIZE] {
        let mut context = [0; wq::SIZE];
        wq::WQ_TYPE.set(&mut context, CYCLIC);
        wq::LOG_WQ_STRIDE.set(&mut context, 6u32);
        wq::LOG_WQ_SZ.set(&mut context, 2u32);
        wq::DBR_ADDR.set(&mut context, 0x40u64);
        context
    }

    fn made(context: &[u8], list: &[u64]) -> Result<WorkQueue, Rule> {
        let list: Vec<u8> = list.iter().flat_map(|page| page.to_be_bytes()).collect();
        WorkQueue::new(&PlainBus::new(0x2000), context, &list).map_err(|refusal| refusal.complaint.unwrap().0)
    }

    #[test]
    fn entries_are_read_around_the_end() {
        let bus = PlainBus::new(0x2000);
        bus.write(0x10fc, &[1, 2, 3, 4]).unwrap();
        bus.write(0x1000, &[5, 6]).unwrap();
        bus.write(0x44, &[0, 1, 2, 3]).unwrap();
        let queue = made(&context(), &[0x1000]).unwrap();
        let mut bytes = [0; 66];
        queue.read(&bus, 0xffff, &mut bytes).unwrap();
        assert_eq!(bytes[60..], [1, 2, 3, 4, 5, 6]);
        let log = &mut Log::default();
        assert_eq!((queue.receive_head(&bus, log), queue.send_head(&bus, log)), (Ok(0), Ok(0x203)));
        let broken: Vec<_> = log.complaints.take().iter().map(|complaint| complaint.rule).collect();
        assert_eq!(broken, [Rule::DoorbellRecordBits], "the send half has a bit above 16");
    }

    #[test]
    fn a_violation_is_rejected() {
        let with = |field: crate::layout::Field, value: u64| {
            let mut context = context();
            field.set(&mut context, value);
            made(&context, &[0x1000]).err()
        };
        assert_eq!(with(wq::WQ_TYPE, 0), Some(Rule::CommandParameter));
        assert_eq!(with(wq::LOG_WQ_STRIDE, 3), Some(Rule::CommandParameter));
        assert_eq!(with(wq::LOG_WQ_SZ, 16), Some(Rule::CommandParameter));
        assert_eq!(with(wq::WQ_SIGNATURE, 1), Some(Rule::CommandCapability));
        assert_eq!(with(wq::DBR_ADDR, 0x44), Some(Rule::CommandDoorbellRecord));
        assert_eq!(with(wq::DBR_ADDR, 1 << 40), Some(Rule::CommandDoorbellRecord));
        assert_eq!(with(wq::LOG_WQ_PG_SZ, 1), Some(Rule::CommandPages), "0x1000 is not aligned to 8 KiB");
        assert_eq!(made(&context(), &[]).err(), Some(Rule::CommandPages));
        assert_eq!(made(&context(), &[0x1000, 0x2000]).err(), Some(Rule::CommandPages));
        let mut reserved = context();
        reserved[0x50] = 1;
        assert_eq!(made(&reserved, &[0x1000]).err(), Some(Rule::CommandReserved));
    }
}
