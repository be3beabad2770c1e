//! Data in completions: the device puts the data of a short receive, or of a short reply to a read
//! or an atomic, into the entry of the completion queue. The poller copies it to the elements of
//! the request.
//!
//! | entry size | data | place of the data |
//! |---|---|---|
//! | 64 bytes | up to 32 bytes | the first bytes of the fields, which such completions do not use |
//! | 128 bytes | up to 32 bytes | the same |
//! | 128 bytes | up to 64 bytes | the half before the fields |
//!
//! The device does this for queue pairs that request it on creation: for receives on RC and UC, and
//! for reads and atomics on RC if every request completes, or if the program [allows
//! it](crate::ScatterToCqe::Always). Receives of shared receive queues are included.
//!
//! The elements are read from the request's entry: the poller copies before it frees the entry. It
//! copies to the bytes of an element's [region](crate::device::regions) in this process; no region
//! can be deregistered during the copy. If an element has no such region, the request completes
//! with `LOC_PROT_ERR`. Unlike an error the device detects, this leaves the queue pair unchanged,
//! and the peer sees success.
//!
//! # Safety
//! A request's memory belongs to the device until its completion was polled, or its queue pair was
//! destroyed or reset. Copying is part of polling. Ending a queue takes the lock of
//! [`SharedCq`](super::SharedCq) before it returns, and the copy is made under this lock, for a
//! queue that has not ended. A completion is accepted only if it names a request in the queue: the
//! next receive, a posted entry, or an entry whose control segment has the completion's number and
//! operation.
//!
//! # References
//! rdma-core `providers/mlx5/qp.c` (`mlx5_copy_to_recv_wqe`, `mlx5_copy_to_send_wqe`), `verbs.c`
//! (`use_scatter_to_cqe`); Linux `drivers/infiniband/hw/mlx5/qp.c` (`configure_requester_scat_cqe`)
#![allow(unsafe_code)]

#[cfg(test)]
mod tests;

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Weak};

use verbs_core::types::WcStatus;

use super::completion::Completion;
use super::cqe::{self, CQE64, Cqe, cqe_opcode};
use super::lists::{Lists, RecvLists, SendLists};
use super::poller::Poller;
use super::shared_cq::{PendingChange, widen};
use super::table::{Queues, Receives, lies_before};
use crate::device::regions::{Regions, Target};
use crate::queue::record::{Kind, RecvRecord, SendRecord};
use crate::queue::resources::QueueResources;
use crate::wqe::{self, BLOCK, INVALID_LKEY, UNIT, opcode};

/// The [`FORMAT`](cqe::FORMAT) bits: the data is in the fields, or in the half before the fields.
const IN_FIELDS: u8 = 0x4;
const BEFORE_FIELDS: u8 = 0x8;

/// The maximum number of data bytes in the fields.
const ROOM_IN_FIELDS: usize = 32;

/// The data in a completion.
struct Data {
    at: NonNull<u8>,
    length: usize,
}

impl Data {
    /// Returns the data in an entry of `stride` bytes; `None` if such an entry cannot hold `length`
    /// bytes.
    fn from_cqe(cqe: Cqe<'_>, stride: usize, length: u32) -> Option<Self> {
        let length = length as usize;
        let fields = cqe.fields();
        match cqe.op_own() & cqe::FORMAT {
            IN_FIELDS if length <= ROOM_IN_FIELDS => Some(Self { at: fields, length }),
            BEFORE_FIELDS if stride == 2 * CQE64 && length <= CQE64 => {
                // SAFETY: the first half of the entry.
                Some(Self { at: unsafe { fields.sub(CQE64) }, length })
            }
            _ => None,
        }
    }

    /// Copies the data to elements of a list.
    ///
    /// # Safety
    /// The elements belong to an unfinished request; the data lies in an entry that the device has
    /// handed over.
    unsafe fn copy_to(
        self,
        elements: impl Iterator<Item = wqe::Words>,
        regions: &Regions,
        pd: u32,
    ) -> WcStatus {
        // The view keeps regions from being removed during the copy.
        let Ok(regions) = regions.view() else { return WcStatus::GENERAL_ERR };
        let (mut from, mut left) = (self.at, self.length);
        for [head, address] in elements {
            if left == 0 {
                break;
            }
            let (length, lkey) = ((head >> 32) as u32, head as u32);
            if length == 0 && lkey == INVALID_LKEY {
                break;
            }
            let count = left.min(length as usize);
            let target = match regions.target(pd, lkey, address, count as u32) {
                Some(Target::At(target)) => target,
                Some(Target::Discard) => {
                    // SAFETY: inside the data.
                    from = unsafe { from.add(count) };
                    left -= count;
                    continue;
                }
                None => return WcStatus::LOC_PROT_ERR,
            };
            for byte in 0..count {
                // SAFETY: inside the data. The region contains the byte of the request, which
                // belongs to the device until its completion was polled. Other code may read it
                // with atomic accesses, as for any memory written by the device.
                unsafe {
                    let to = core::ptr::with_exposed_provenance_mut::<u8>(target + byte);
                    AtomicU8::from_ptr(to).store(from.add(byte).read_volatile(), Ordering::Relaxed);
                }
            }
            // SAFETY: inside the data, or at its end.
            from = unsafe { from.add(count) };
            left -= count;
        }
        if left == 0 { WcStatus::SUCCESS } else { WcStatus::LOC_LEN_ERR }
    }
}

/// Reads one unit of an entry.
///
/// # Safety
/// The unit belongs to a stored entry, which is not overwritten before the request ends.
unsafe fn unit(at: NonNull<u8>) -> wqe::Words {
    // SAFETY: the caller's promise; queues are aligned to a unit.
    unsafe { at.cast::<wqe::Words>().read_volatile() }.map(u64::from_be)
}

impl SendLists {
    /// Copies the response to a read or an atomic into the request's scatter/gather elements.
    ///
    /// # Safety
    /// The queue must be live throughout the call; the entry must belong to an unfinished request.
    unsafe fn copy(
        &self,
        resources: &QueueResources,
        cqe: Cqe<'_>,
        kind: Kind,
        stride: usize,
        regions: &Regions,
    ) -> WcStatus {
        let units = self.blocks as usize * (BLOCK / UNIT);
        let start = resources.memory().region().pointer(self.offset, units * UNIT);
        let first = usize::from(cqe.wqe_counter()) * (BLOCK / UNIT);
        // SAFETY: the number is below the number of units. The entry was stored before its
        // doorbell, and the device has processed it.
        let at = |number: usize| unsafe { unit(start.add((number % units) * UNIT)) };
        let control = at(first)[0];
        let (index, operation) = ((control >> 40) as u16, (control >> 32) as u8);
        let before = match operation {
            opcode::RDMA_READ => 2,
            opcode::ATOMIC_CS | opcode::ATOMIC_FA => 3,
            _ => return WcStatus::GENERAL_ERR,
        };
        if index != cqe.wqe_counter() || operation != cqe.wqe_opcode() {
            return WcStatus::GENERAL_ERR;
        }
        let Some(data) = Data::from_cqe(cqe, stride, cqe.sent_len(kind)) else {
            return WcStatus::GENERAL_ERR;
        };
        let ds = (control & 0x3f) as usize;
        // SAFETY: the elements after the address, as counted by the control segment.
        unsafe { data.copy_to((before..ds).map(|number| at(first + number)), regions, self.pd) }
    }
}

impl RecvLists {
    /// Copies received data into the scatter/gather elements of its receive.
    ///
    /// # Safety
    /// Same as [`SendLists::copy`].
    unsafe fn copy(
        &self,
        resources: &QueueResources,
        cqe: Cqe<'_>,
        stride: usize,
        regions: &Regions,
    ) -> WcStatus {
        let (entries, units) = (self.entries as usize, self.units as usize);
        let start = resources.memory().region().pointer(0, entries * units * UNIT);
        let first = usize::from(cqe.wqe_counter()) % entries * units;
        let Some(data) = Data::from_cqe(cqe, stride, cqe.byte_cnt()) else { return WcStatus::GENERAL_ERR };
        let list = self.head as usize..units;
        // SAFETY: units of the entry, which lies within the memory.
        let elements = list.map(|number| unsafe { unit(start.add((first + number) * UNIT)) });
        // SAFETY: the list of the request.
        unsafe { data.copy_to(elements, regions, self.pd) }
    }
}

impl RecvRecord {
    /// Returns whether an entry holds the receive that completes next.
    fn is_next(&self, entry: u16, entries: u32) -> bool {
        (self.tail() ^ u32::from(entry)) & (entries - 1) == 0
    }
}

impl Lists {
    /// Copies the data in a completion to the request's scatter/gather elements. Returns the
    /// resulting status.
    ///
    /// # Safety
    /// The resources belong to the queues; neither queue has ended or ends during the call.
    unsafe fn copy(
        &self,
        queues: &Queues,
        resources: &ListResources,
        cqe: Cqe<'_>,
        stride: usize,
    ) -> WcStatus {
        let regions = &self.regions;
        // SAFETY: the caller's promise; the request is found in the queue.
        unsafe {
            match cqe.op_own() >> 4 {
                cqe_opcode::REQ => match (&self.send, &resources.send, fetch(queues.send.as_deref(), cqe)) {
                    (Some(lists), Some(resources), Some(kind)) => {
                        lists.copy(resources, cqe, kind, stride, regions)
                    }
                    _ => WcStatus::GENERAL_ERR,
                },
                cqe_opcode::RESP_SEND..=cqe_opcode::RESP_SEND_INV => match (&self.recv, &resources.recv) {
                    (Some(lists), Some(resources)) => {
                        let is_posted = match &queues.recv {
                            Some(Receives::Own(own)) => own.is_next(cqe.wqe_counter(), lists.entries),
                            Some(Receives::Shared(shared)) => shared.is_posted(cqe.wqe_counter()),
                            Some(Receives::Tagged(_)) | None => false,
                        };
                        if is_posted {
                            lists.copy(resources, cqe, stride, regions)
                        } else {
                            WcStatus::GENERAL_ERR
                        }
                    }
                    _ => WcStatus::GENERAL_ERR,
                },
                _ => WcStatus::GENERAL_ERR,
            }
        }
    }
}

/// Returns the kind of a request if it fetches data or is raw; `None` for other requests.
fn fetch(requests: Option<&SendRecord>, cqe: Cqe<'_>) -> Option<Kind> {
    let kind = requests?.kind(cqe.wqe_counter().into());
    (kind == Kind::FETCH || kind == Kind::RAW).then_some(kind)
}

/// The owners of the memory that holds the lists. They are kept until the lock is released, because
/// dropping the last owner may call the program's allocator.
struct ListResources {
    send: Option<Arc<QueueResources>>,
    recv: Option<Arc<QueueResources>>,
}

impl Poller {
    /// Handles an entry that contains data or other completions: data is copied to the request's
    /// memory. Returns the completion; `None` if the completion must be skipped.
    #[cold]
    #[inline(never)]
    pub(super) fn scattered<'a>(&self, queues: &Queues, cqe: Cqe<'a>, at: u32) -> Option<Completion<'a>> {
        if self.ring.block(cqe).is_some() {
            return self.first_of_block(queues, cqe, at);
        }
        let user_index = cqe.user_index();
        let lists = queues.lists.as_ref();
        let upgrade = |resources: &Weak<QueueResources>| resources.upgrade();
        let resources = ListResources {
            send: lists.and_then(|lists| upgrade(&lists.send.as_ref()?.resources)),
            recv: lists.and_then(|lists| upgrade(&lists.recv.as_ref()?.resources)),
        };
        let status = self.shared.with_changes(|changes| {
            let has_ended = changes.iter().any(|one| match one {
                PendingChange::Ends { user_index: of, until, .. } => {
                    *of == user_index && lies_before(at, widen(*until, at))
                }
                PendingChange::Begins { .. } => false,
            });
            if has_ended || !self.copies {
                return None;
            }
            let Some(lists) = lists else { return Some(WcStatus::GENERAL_ERR) };
            // SAFETY: no queue ends while the changes are locked, and the queue's has not ended.
            Some(unsafe { lists.copy(queues, &resources, cqe, self.ring.stride()) })
        });
        let status = status.unwrap_or(Some(WcStatus::GENERAL_ERR));
        let (wr_id, kind) = match cqe.op_own() >> 4 {
            cqe_opcode::REQ => queues.send.as_ref()?.complete(cqe.wqe_counter()),
            cqe_opcode::RESP_WR_IMM..=cqe_opcode::RESP_SEND_INV => {
                (queues.recv.as_ref()?.complete(cqe.wqe_counter())?, queues.recv_kind)
            }
            _ => return None,
        };
        if cqe.op_own() & IN_FIELDS != 0 {
            cqe.forget_data();
        }
        let status = status?;
        if status != WcStatus::SUCCESS {
            cqe.forget_syndrome();
        }
        Some(Completion::new(cqe, wr_id, status, kind))
    }
}
