//! [`Shapes`]: the sizes of a queue pair's queues and their positions in its memory.

use verbs_core::ring::page_size;
use verbs_core::types::{QpCap, QpInitAttr, QpType};
use verbs_core::{Cause, Errno, Result, explain};

use crate::device::Device;
use crate::queue::record::{RecvRecord, SendRecord};
use crate::queue::sizes::{self, Room};
use crate::queue::{rq, sq};
use crate::wqe::{BLOCK, UNIT};

/// The shapes of a queue pair's queues.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shapes {
    pub(super) send: Option<sq::Shape>,
    pub(super) recv: Option<rq::Shape>,
    /// Whether the two queues lie in separate pages, because the driver maps a raw packet queue
    /// pair's send queue separately.
    is_split: bool,
    /// Whether send queue entries have space for operations on keys.
    pub(super) has_keys: bool,
}

impl Shapes {
    /// The shapes of a queue pair without queues.
    pub(super) const NONE: Self = Self { send: None, recv: None, is_split: false, has_keys: false };

    pub(super) fn new(
        device: &Device,
        attr: &QpInitAttr,
        max_tso_header: u32,
        room_for: Room,
        has_recv: bool,
    ) -> Result<Self> {
        let refused = |cause| {
            let errno = match cause {
                Cause::QpType { qp_type } => explain::without_type(qp_type),
                _ => Errno::INVAL,
            };
            device.error("create_qp", errno).because(cause)
        };
        let has_send = attr.qp_type != QpType::XRC_RECV;
        let send_cap = if has_send { attr.cap } else { QpCap { max_send_wr: 0, ..attr.cap } };
        let send = sizes::send(attr.qp_type, &send_cap, max_tso_header, room_for, &device.limits)
            .map_err(refused)?;
        let recv = if has_recv { sizes::recv(&attr.cap, &device.limits).map_err(refused)? } else { None };
        Ok(Self { send, recv, is_split: attr.qp_type == QpType::RAW_PACKET, has_keys: room_for.keys })
    }

    /// Returns the size of the queues' request records, in bytes.
    pub(super) fn records_len(&self) -> usize {
        let sends = self.send.map_or(0, |shape| SendRecord::size(shape.blocks));
        sends + self.recv.map_or(0, |shape| RecvRecord::size(shape.entries))
    }

    /// Returns the size of the receive queue, in bytes.
    pub(super) fn recv_len(&self) -> usize {
        self.recv.map_or(0, |shape| shape.entries as usize * shape.units as usize * UNIT)
    }

    /// Returns the offset of the send queue in the memory, in bytes.
    pub(super) fn send_at(&self) -> usize {
        if self.is_split { self.recv_len().next_multiple_of(page_size()) } else { self.recv_len() }
    }

    /// Returns the size of the send queue, in bytes.
    pub(super) fn send_len(&self) -> usize {
        self.send.map_or(0, |shape| shape.blocks as usize * BLOCK)
    }

    /// Returns the capacity to report to the program.
    pub(super) fn cap(&self, asked: &QpCap) -> QpCap {
        let send = self.send.map(|shape| shape.cap).unwrap_or_default();
        let recv = self.recv.map(|shape| shape.cap).unwrap_or_default();
        QpCap {
            max_send_wr: send.max_send_wr,
            max_send_sge: if self.send.is_some() { send.max_send_sge } else { asked.max_send_sge },
            max_inline_data: send.max_inline_data,
            max_recv_wr: recv.max_recv_wr,
            max_recv_sge: recv.max_recv_sge,
        }
    }
}
