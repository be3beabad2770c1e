//! The sizes of queues, computed from the capacity a program requests, as in libmlx5, so that both
//! report the same capacity.
//!
//! A queue pair has one buffer: the receive queue, followed by the send queue. An entry of the send
//! queue has space for the largest fixed segments of the queue pair's type and for the list or the
//! inline data after them.
//!
//! # References
//! rdma-core `providers/mlx5/verbs.c` (`mlx5_calc_wq_size`), `srq.c`
//! (`mlx5_alloc_srq_buf`)

use verbs_core::types::{QpCap, QpSendOps, QpType, SrqInitAttr};
use verbs_core::{Cause, explain};

use crate::device::Limits;
use crate::queue::{rq, sq, srq};
use crate::wqe::{BLOCK, UNIT};

/// The optional operations that fit into send queue entries, besides sends, writes and reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) atomics: bool,
    /// Whether there is space for binds of windows and for invalidations.
    pub(crate) keys: bool,
}

impl Room {
    /// Returns the space for the operations that a program requests; all operations if `asked` is
    /// `None`.
    pub(crate) fn for_ops(asked: Option<QpSendOps>) -> Self {
        let has = |ops| asked.is_none_or(|asked| asked.intersects(ops));
        Self {
            atomics: has(QpSendOps::ATOMIC_CMP_AND_SWP | QpSendOps::ATOMIC_FETCH_AND_ADD),
            keys: has(QpSendOps::BIND_MW | QpSendOps::LOCAL_INV),
        }
    }
}

/// The size of a control segment and the segments of the longest operation on a key (`sq::umr`), in
/// bytes.
const CONTROL_AND_KEY: u32 = 16 + 48 + 64 + 64;

/// The size of a control segment and an address in bytes; an atomic's operands follow.
const CONTROL_AND_ADDRESS: u32 = 16 + 16;

/// Returns the number of bytes before an entry's data, and how many of these bytes no request with
/// data uses.
///
/// # Errors
/// [`Cause::QpType`] for a type that this provider does not support.
const fn overhead(qp_type: QpType, room: Room) -> Result<(u32, u32), Cause> {
    // Posting does not distinguish XRC operations.
    let has_atomics = room.atomics || matches!(qp_type, QpType::XRC_SEND | QpType::XRC_RECV);
    let longest = match room {
        Room { keys: true, .. } => CONTROL_AND_KEY,
        _ if has_atomics => CONTROL_AND_ADDRESS + 16,
        _ => CONTROL_AND_ADDRESS,
    };
    let unused = longest - CONTROL_AND_ADDRESS;
    match qp_type {
        QpType::RC | QpType::UC => Ok((longest, unused)),
        QpType::XRC_SEND | QpType::XRC_RECV => Ok((longest + 16, unused)),
        QpType::UD => Ok((16 + 48, 0)),
        QpType::RAW_PACKET => Ok((16 + 32, 0)),
        _ => Err(Cause::QpType { qp_type }),
    }
}

/// The maximum size of an entry in bytes: as many units as 6 bits can count, rounded up to whole
/// blocks.
const MAX_ENTRY: u32 = 64 * UNIT as u32;

/// The maximum size of a request in bytes: its number of units has 6 bits.
const MAX_REQUEST: u32 = 63 * UNIT as u32;

/// Returns the shape of a send queue; `None` for a queue without capacity. Requests on raw packet
/// queue pairs may have a header of `max_tso_header` bytes.
///
/// # Errors
/// [`Cause::Limit`] for a capacity beyond the device's limits; [`Cause::QpType`] for a type that
/// this provider does not support.
pub(crate) fn send(
    qp_type: QpType,
    cap: &QpCap,
    max_tso_header: u32,
    room_for: Room,
    limits: &Limits,
) -> Result<Option<sq::Shape>, Cause> {
    let (overhead, unused) = overhead(qp_type, room_for)?;
    if cap.max_send_wr == 0 {
        return Ok(None);
    }
    let longest = limits.max_sq_desc_sz.min(MAX_REQUEST + unused).min(MAX_ENTRY);
    let room = longest.saturating_sub(overhead);
    explain::within("max_tso_header", max_tso_header.into(), 0, room.into())?;
    let header = max_tso_header.next_multiple_of(UNIT as u32);
    let max_sge = room.saturating_sub(header) / UNIT as u32;
    explain::within("max_send_sge", cap.max_send_sge.into(), 0, max_sge.into())?;
    let max_inline = (room - room % UNIT as u32).saturating_sub(INLINE_HEADER);
    explain::within("max_inline_data", cap.max_inline_data.into(), 0, max_inline.into())?;
    let inline = match cap.max_inline_data {
        0 => 0,
        bytes => (bytes + INLINE_HEADER).next_multiple_of(UNIT as u32),
    };
    let list = header + cap.max_send_sge * UNIT as u32;
    let entry = (overhead + inline.max(list)).next_multiple_of(BLOCK as u32);
    let blocks_of_request = entry / BLOCK as u32;
    // The number of blocks is a power of two.
    let max_blocks = 1 << limits.max_send_wqebb.min(MAX_COUNT).checked_ilog2().unwrap_or(0);
    explain::within("max_send_wr", cap.max_send_wr.into(), 0, (max_blocks / blocks_of_request).into())?;
    let blocks = (cap.max_send_wr * blocks_of_request).next_power_of_two();
    let max_post = blocks / blocks_of_request;
    // An entry of 64 units has one more unit than a request can use.
    let max_inline_data = entry.min(MAX_REQUEST + unused).saturating_sub(overhead + INLINE_HEADER);
    let cap = QpCap { max_send_wr: max_post, max_inline_data, ..*cap };
    Ok(Some(sq::Shape { blocks, blocks_of_request, max_post, cap }))
}

/// Returns the shape of a receive queue; `None` for a queue without capacity.
///
/// # Errors
/// [`Cause::Limit`] for a capacity beyond the device's limits.
pub(crate) fn recv(cap: &QpCap, limits: &Limits) -> Result<Option<rq::Shape>, Cause> {
    if cap.max_recv_wr == 0 {
        return Ok(None);
    }
    let max_sge = limits.max_rq_desc_sz / UNIT as u32;
    explain::within("max_recv_sge", cap.max_recv_sge.into(), 0, max_sge.into())?;
    let max_wr = limits.max_recv_wr.min(MAX_COUNT);
    explain::within("max_recv_wr", cap.max_recv_wr.into(), 0, max_wr.into())?;
    let units = cap.max_recv_sge.max(1).next_power_of_two();
    // The memory has at least one block.
    let entries = cap.max_recv_wr.next_power_of_two().max(BLOCK as u32 / UNIT as u32 / units);
    let cap = QpCap { max_recv_wr: entries, max_recv_sge: units, ..*cap };
    Ok(Some(rq::Shape { entries, units, cap }))
}

/// Returns the shape of a shared receive queue.
///
/// # Errors
/// [`Cause::Limit`] for a capacity beyond the device's limits.
pub(crate) fn srq(attr: &SrqInitAttr, limits: &Limits) -> Result<srq::Shape, Cause> {
    // An entry has a link before its elements and a power of two of units.
    let max_units = limits.max_rq_desc_sz / UNIT as u32;
    let max_sge = (1 << max_units.checked_ilog2().unwrap_or(0)) - 1;
    explain::within("max_sge", attr.max_sge.into(), 0, max_sge)?;
    let max_wr = limits.max_srq_recv_wr.min(srq::MAX_ENTRIES - 1);
    explain::within("max_wr", attr.max_wr.into(), 1, max_wr.into())?;
    let shape = srq::Shape {
        entries: (attr.max_wr + 1).next_power_of_two(),
        units: (attr.max_sge + 1).next_power_of_two().max(2),
    };
    explain::within("srq_limit", attr.srq_limit.into(), 0, shape.max_wr().into())?;
    Ok(shape)
}

/// The length of the header before inline data, in bytes.
const INLINE_HEADER: u32 = 4;

/// The maximum number of blocks or entries in a queue, because a completion names a block or entry
/// with 16 bits.
const MAX_COUNT: u32 = 1 << 15;

#[cfg(test)]
mod tests {
    use verbs_core::types::{SrqType, TmCap};

    use super::*;

    const LIMITS: Limits = Limits {
        max_sq_desc_sz: 1024,
        max_rq_desc_sz: 512,
        max_send_wqebb: 32768,
        max_recv_wr: 32768,
        max_srq_recv_wr: 32767,
    };

    const ALL: Room = Room { atomics: true, keys: true };

    fn cap(max_send_wr: u32, max_send_sge: u32, max_inline_data: u32) -> QpCap {
        QpCap { max_send_wr, max_send_sge, max_inline_data, max_recv_wr: 1, max_recv_sge: 1 }
    }

    #[test]
    fn entries_have_room_for_the_operations_that_a_program_asks_for() {
        use QpSendOps as Ops;
        for (qp_type, ops, asked, blocks, blocks_of_request, max_post) in [
            (QpType::RC, Ops::RDMA_WRITE, cap(16384, 1, 0), 16384, 1, 16384),
            (QpType::RC, Ops::RDMA_WRITE | Ops::SEND_WITH_INV, cap(32768, 2, 0), 32768, 1, 32768),
            (QpType::RC, Ops::ATOMIC_FETCH_AND_ADD, cap(16, 1, 0), 16, 1, 16),
            (QpType::RC, Ops::ATOMIC_FETCH_AND_ADD, cap(16, 2, 0), 32, 2, 16),
            (QpType::RC, Ops::RDMA_READ | Ops::BIND_MW, cap(1, 1, 0), 4, 4, 1),
            (QpType::RC, Ops::LOCAL_INV, cap(1, 1, 0), 4, 4, 1),
            (QpType::UC, Ops::RDMA_WRITE, cap(16, 4, 0), 32, 2, 16),
            // An atomic has 5 units.
            (QpType::XRC_SEND, Ops::RDMA_WRITE, cap(16, 1, 0), 32, 2, 16),
            (QpType::UD, Ops::SEND, cap(10, 1, 0), 32, 2, 16),
        ] {
            let shape = send(qp_type, &asked, 0, Room::for_ops(Some(ops)), &LIMITS).unwrap().unwrap();
            let got = (shape.blocks, shape.blocks_of_request, shape.max_post);
            assert_eq!(got, (blocks, blocks_of_request, max_post), "{qp_type:?} {ops:?}");
        }
        assert_eq!(Room::for_ops(None), ALL);
    }

    /// The expected shapes are the shapes reported by rdma-core 65 for the same capacities.
    #[test]
    fn send_queues_have_the_shapes_of_libmlx5() {
        for (qp_type, asked, blocks, blocks_of_request, max_post, max_inline) in [
            (QpType::RC, cap(1, 1, 0), 4, 4, 1, 60),
            (QpType::RC, cap(100, 1, 0), 512, 4, 128, 60),
            (QpType::RC, cap(16, 5, 0), 128, 5, 25, 124),
            (QpType::RC, cap(16, 1, 100), 128, 5, 25, 124),
            (QpType::UC, cap(128, 4, 61), 1024, 5, 204, 124),
            (QpType::UD, cap(10, 1, 0), 32, 2, 16, 60),
            (QpType::XRC_SEND, cap(1, 3, 0), 4, 4, 1, 44),
            (QpType::RAW_PACKET, cap(10, 1, 0), 16, 1, 16, 12),
            (QpType::RAW_PACKET, cap(10, 2, 64), 32, 2, 16, 76),
        ] {
            let shape = send(qp_type, &asked, 0, ALL, &LIMITS).unwrap().unwrap();
            let got = (shape.blocks, shape.blocks_of_request, shape.max_post, shape.cap.max_inline_data);
            assert_eq!(got, (blocks, blocks_of_request, max_post, max_inline), "{qp_type:?} {asked:?}");
            assert_eq!((shape.cap.max_send_wr, shape.cap.max_send_sge), (max_post, asked.max_send_sge));
        }
        for qp_type in [QpType::RC, QpType::UC, QpType::UD] {
            let shape = send(qp_type, &cap(4, 0, 0), 0, ALL, &LIMITS).unwrap().unwrap();
            assert_eq!(shape.cap.max_inline_data, 0, "{qp_type:?}");
        }
        assert_eq!(send(QpType::RC, &cap(0, 1, 0), 0, ALL, &LIMITS), Ok(None));
    }

    #[test]
    fn a_segmented_send_has_its_header_in_front_of_its_list() {
        for (header, asked, blocks_of_request, max_inline) in [
            (16, cap(1, 1, 0), 2, 76),
            (54, cap(1, 1, 0), 2, 76),
            (64, cap(1, 1, 0), 2, 76),
            (65, cap(1, 1, 0), 3, 140),
            (54, cap(1, 1, 140), 3, 140),
        ] {
            let shape = send(QpType::RAW_PACKET, &asked, header, ALL, &LIMITS).unwrap().unwrap();
            let got = (shape.blocks_of_request, shape.cap.max_inline_data);
            assert_eq!(got, (blocks_of_request, max_inline), "{header} {asked:?}");
        }
        let limit = |cause| match cause {
            Cause::Limit { name, max, .. } => (name, max),
            cause => panic!("{cause}"),
        };
        let refused = |sges, header| {
            limit(send(QpType::RAW_PACKET, &cap(1, sges, 0), header, ALL, &LIMITS).unwrap_err())
        };
        assert_eq!(refused(1, 1000), ("max_tso_header", 960));
        assert_eq!(refused(60, 16), ("max_send_sge", 59));
    }

    #[test]
    fn a_request_has_at_most_63_units() {
        let shape = send(QpType::UD, &cap(1, 1, 940), 0, ALL, &LIMITS).unwrap().unwrap();
        assert_eq!((shape.blocks_of_request, shape.cap.max_inline_data), (16, 940));
    }

    #[test]
    fn a_completion_names_each_block_and_each_entry_by_16_bits() {
        let limits =
            Limits { max_send_wqebb: 1 << 20, max_recv_wr: 1 << 20, max_srq_recv_wr: 1 << 20, ..LIMITS };
        let most = |cause: Cause| match cause {
            Cause::Limit { max, .. } => max,
            cause => panic!("{cause}"),
        };
        let many = QpCap { max_recv_wr: 1 << 17, ..cap(1 << 17, 1, 0) };
        assert_eq!(most(send(QpType::UD, &many, 0, ALL, &limits).unwrap_err()), 1 << 14);
        assert_eq!(most(recv(&many, &limits).unwrap_err()), 1 << 15);
        assert_eq!(most(srq(&shared(1 << 17, 1), &limits).unwrap_err()), (1 << 16) - 1);
    }

    #[test]
    fn receive_queues_have_powers_of_two() {
        for (wr, sge, entries, units) in
            [(1, 1, 4, 1), (5, 1, 8, 1), (1, 0, 4, 1), (3, 3, 4, 4), (1, 9, 1, 16)]
        {
            let asked = QpCap { max_recv_wr: wr, max_recv_sge: sge, ..cap(1, 1, 0) };
            let shape = recv(&asked, &LIMITS).unwrap().unwrap();
            assert_eq!((shape.entries, shape.units), (entries, units), "{asked:?}");
            assert_eq!((shape.cap.max_recv_wr, shape.cap.max_recv_sge), (entries, units));
        }
    }

    #[test]
    fn capacities_beyond_the_device_name_the_limit() {
        let name = |cause: Cause| match cause {
            Cause::Limit { name, asked, max, .. } => (name, asked, max),
            cause => panic!("{cause}"),
        };
        let refused = |cap| name(send(QpType::RC, &cap, 0, ALL, &LIMITS).unwrap_err());
        assert_eq!(refused(cap(1, 53, 0)), ("max_send_sge", 53, 52));
        assert!(send(QpType::RC, &cap(1, 52, 0), 0, ALL, &LIMITS).is_ok());
        assert_eq!(refused(cap(1, 1, 829)), ("max_inline_data", 829, 828));
        assert!(send(QpType::RC, &cap(1, 1, 828), 0, ALL, &LIMITS).is_ok());
        assert_eq!(refused(cap(8193, 1, 0)), ("max_send_wr", 8193, 8192));
        assert_eq!(refused(cap(u32::MAX, 1, 0)), ("max_send_wr", u32::MAX.into(), 8192));
        let refused = |max_recv_wr, max_recv_sge| {
            name(recv(&QpCap { max_recv_wr, max_recv_sge, ..cap(1, 1, 0) }, &LIMITS).unwrap_err())
        };
        assert_eq!(refused(32769, 1), ("max_recv_wr", 32769, 32768));
        assert_eq!(refused(1, 33), ("max_recv_sge", 33, 32));
        let name_ud = name(send(QpType::UD, &cap(1, 60, 0), 0, ALL, &LIMITS).unwrap_err());
        assert_eq!(name_ud, ("max_send_sge", 60, 59));
        assert!(matches!(send(QpType(99), &cap(1, 1, 0), 0, ALL, &LIMITS), Err(Cause::QpType { .. })));
    }

    const fn shared(max_wr: u32, max_sge: u32) -> SrqInitAttr {
        let tm = TmCap { max_num_tags: 0, max_ops: 0 };
        SrqInitAttr { srq_type: SrqType::BASIC, max_wr, max_sge, srq_limit: 0, tm, user_handle: 0 }
    }

    /// The expected capacities are the capacities computed by libmlx5 for the same requests.
    #[test]
    fn shared_receive_queues_have_the_capacity_of_libmlx5() {
        for (max_wr, max_sge, granted_wr, granted_sge) in [
            (1, 1, 1, 1),
            (2, 0, 3, 1),
            (3, 2, 3, 3),
            (4, 3, 7, 3),
            (100, 4, 127, 7),
            (127, 1, 127, 1),
            (128, 1, 255, 1),
            (32767, 31, 32767, 31),
        ] {
            let shape = srq(&shared(max_wr, max_sge), &LIMITS).unwrap();
            assert_eq!((shape.max_wr(), shape.max_sge()), (granted_wr, granted_sge), "{max_wr}, {max_sge}");
        }
    }

    #[test]
    fn shared_receives_beyond_the_device_name_the_limit() {
        for (max_wr, max_sge, name, max) in [
            (0, 1, "max_wr", 32767),
            (32768, 1, "max_wr", 32767),
            (u32::MAX, 1, "max_wr", 32767),
            (1, 32, "max_sge", 31),
            (1, u32::MAX, "max_sge", 31),
        ] {
            let cause = srq(&shared(max_wr, max_sge), &LIMITS).unwrap_err();
            let Cause::Limit { name: named, max: limit, .. } = cause else { panic!("{cause}") };
            assert_eq!((named, limit), (name, max));
        }
        let limited = |srq_limit| srq(&SrqInitAttr { srq_limit, ..shared(4, 1) }, &LIMITS);
        assert!(limited(7).is_ok());
        assert!(matches!(limited(8), Err(Cause::Limit { name: "srq_limit", max: 7, .. })));
    }
}
