//! The parts of a work queue entry: blocks, built by value and stored once each.
//!
//! ```text
//!   send queue (rxe_send_wqe)                         receive queue (rxe_recv_wqe)
//!   0    Head      wr_id, opcode, flags, immediate    0   RecvHead  wr_id
//!   24   by opcode                                     16  RxeDmaInfo
//!   144  Progress  initial state for the kernel       40  scatter list
//!   184  RxeDmaInfo
//!   208  gather list, or inline data
//! ```
//!
//! A slot still holds the bytes of its previous use. These blocks contain every field that any
//! kernel since 5.10 reads before writing it. Of the 120 bytes between `Head` and `Progress`, only
//! the bytes used by the opcode are written. `status` and `state` matter in particular: the
//! kernel's completer treats a status other than 0 as an error of the work request, and the
//! requester starts only an entry in the state 0 ("posted").
//!
//! # References
//! `rdma/rdma_user_rxe.h`; Linux `drivers/infiniband/sw/rxe/rxe_req.c`, `rxe_comp.c`

use core::mem::{offset_of, size_of};

use uverbs_abi::Be32;
use uverbs_abi::ib_user_verbs::IbUverbsWrOpcode;
use uverbs_abi::rdma_user_rxe::{
    RxeAv, RxeDmaInfo, RxeRecvWqe, RxeSendWqe, RxeSendWr, RxeSendWrAtomic, RxeSendWrFlush, RxeSendWrMw,
    RxeSendWrRdma, RxeSendWrUd,
};
use verbs_core::types::{MwBindInfo, OpKind, RecvWr, SendOp, SendWr};
use zerocopy::{FromZeros, Immutable, IntoBytes};

use crate::queue::Slot;

/// The offset of the part that depends on the opcode, in bytes.
const OP: usize = offset_of!(RxeSendWr, wr);
/// The offset of a datagram's address vector in bytes, for kernels that do not number address
/// handles.
const AV: usize = OP + offset_of!(RxeSendWrUd, av);
const PROGRESS: usize = offset_of!(RxeSendWqe, status);
const DMA: usize = offset_of!(RxeSendWqe, dma);

/// The start of `rxe_send_wr`.
#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
struct Head {
    wr_id: u64,
    reserved: u32,
    opcode: u32,
    send_flags: u32,
    imm_data: Be32,
}

/// The start of `rxe_send_wr.wr.ud`, up to its padding.
#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
struct UdHead {
    remote_qpn: u32,
    remote_qkey: u32,
    pkey_index: u16,
    reserved: u16,
    ah_num: u32,
}

/// The initial values of the fields that the kernel updates in an entry. The kernel sets `ssn`
/// itself if needed.
#[derive(Clone, Copy, FromZeros, IntoBytes, Immutable)]
#[repr(C)]
struct Progress {
    status: u32,
    state: u32,
    iova: u64,
    mask: u32,
    first_psn: u32,
    last_psn: u32,
    ack_length: u32,
    ssn: u32,
    has_rd_atomic: u32,
}

/// The start of `rxe_recv_wqe`.
#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
struct RecvHead {
    wr_id: u64,
    reserved: u32,
    padding: u32,
}

const _: () = {
    assert!(size_of::<Head>() == OP && offset_of!(RxeSendWqe, wr) == 0);
    assert!(offset_of!(Head, opcode) == offset_of!(RxeSendWr, opcode));
    assert!(offset_of!(Head, imm_data) == offset_of!(RxeSendWr, ex));
    assert!(offset_of!(UdHead, ah_num) == offset_of!(RxeSendWrUd, ah_num));
    assert!(size_of::<UdHead>() == offset_of!(RxeSendWrUd, pad));
    assert!(PROGRESS + size_of::<Progress>() == DMA);
    assert!(PROGRESS + offset_of!(Progress, iova) == offset_of!(RxeSendWqe, iova));
    assert!(PROGRESS + offset_of!(Progress, ssn) == offset_of!(RxeSendWqe, ssn));
    assert!(DMA + size_of::<RxeDmaInfo>() == size_of::<RxeSendWqe>());
    assert!(size_of::<RecvHead>() == offset_of!(RxeRecvWqe, dma));
};

/// The operands of a send, write or read. These operations differ only in their operands.
#[derive(Clone, Copy)]
pub(crate) struct Plain {
    opcode: IbUverbsWrOpcode,
    imm_data: u32,
    remote_addr: u64,
    rkey: u32,
}

impl Plain {
    /// Returns whether operations of this kind are plain, that is, not datagrams, atomics,
    /// operations on keys, or kinds unknown to this provider.
    #[inline(always)]
    pub(crate) const fn is(kind: OpKind) -> bool {
        matches!(
            kind,
            OpKind::SEND
                | OpKind::SEND_WITH_IMM
                | OpKind::RDMA_WRITE
                | OpKind::RDMA_WRITE_WITH_IMM
                | OpKind::RDMA_READ
        )
    }

    /// Returns the operands of a plain operation, with zeros for missing operands. The caller has
    /// checked that the operation is plain.
    #[inline(always)]
    pub(crate) const fn from_op(op: &SendOp<'_>) -> Self {
        use IbUverbsWrOpcode as Op;
        let (opcode, imm_data, remote_addr, rkey) = match *op {
            SendOp::SendWithImm { imm_data } => (Op::IB_UVERBS_WR_SEND_WITH_IMM, imm_data, 0, 0),
            SendOp::RdmaWrite { remote_addr, rkey } => (Op::IB_UVERBS_WR_RDMA_WRITE, 0, remote_addr, rkey),
            SendOp::RdmaWriteWithImm { remote_addr, rkey, imm_data } => {
                (Op::IB_UVERBS_WR_RDMA_WRITE_WITH_IMM, imm_data, remote_addr, rkey)
            }
            SendOp::RdmaRead { remote_addr, rkey } => (Op::IB_UVERBS_WR_RDMA_READ, 0, remote_addr, rkey),
            _ => (Op::IB_UVERBS_WR_SEND, 0, 0, 0),
        };
        Self { opcode, imm_data, remote_addr, rkey }
    }
}

/// The path of a datagram, as stored in the entry.
#[derive(Clone, Copy)]
pub(crate) enum Path<'a> {
    /// The number of the kernel's address handle.
    Numbered(u32),
    /// An address vector in the entry, for kernels that do not number address handles: the bytes of
    /// an `rxe_av`.
    Spelled(&'a [u8; size_of::<RxeAv>()]),
}

/// Stores all of an entry except its gather list or inline data.
#[inline(always)]
pub(crate) fn put_plain(slot: &mut Slot<'_, RxeSendWqe>, wr: &SendWr<'_>, plain: Plain, length: u32) {
    put_common(slot, wr, plain.opcode, plain.imm_data, plain.remote_addr, length);
    // For a send, both are zero.
    slot.put::<OP, _>(RxeSendWrRdma { remote_addr: plain.remote_addr, rkey: plain.rkey, reserved: 0 });
}

/// The operands of a datagram.
#[derive(Clone, Copy)]
pub(crate) struct Datagram<'a> {
    pub(crate) remote_qpn: u32,
    pub(crate) remote_qkey: u32,
    pub(crate) path: Path<'a>,
    pub(crate) imm_data: Option<u32>,
}

/// Same as [`put_plain`], for a datagram.
#[inline(always)]
pub(crate) fn put_datagram(
    slot: &mut Slot<'_, RxeSendWqe>,
    wr: &SendWr<'_>,
    datagram: &Datagram<'_>,
    length: u32,
) {
    let opcode = match datagram.imm_data {
        Some(_) => IbUverbsWrOpcode::IB_UVERBS_WR_SEND_WITH_IMM,
        None => IbUverbsWrOpcode::IB_UVERBS_WR_SEND,
    };
    put_common(slot, wr, opcode, datagram.imm_data.unwrap_or(0), 0, length);
    let ah_num = match datagram.path {
        Path::Numbered(ah_num) => ah_num,
        Path::Spelled(av) => {
            slot.put::<AV, _>(*av);
            0
        }
    };
    slot.put::<OP, _>(UdHead {
        remote_qpn: datagram.remote_qpn,
        remote_qkey: datagram.remote_qkey,
        pkey_index: 0,
        reserved: 0,
        ah_num,
    });
}

/// The operands of an atomic: compare and swap if there is a `swap`, else fetch and add.
#[derive(Clone, Copy)]
pub(crate) struct Atomic {
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
    pub(crate) compare_add: u64,
    pub(crate) swap: Option<u64>,
}

/// Same as [`put_plain`], for an atomic.
#[inline(always)]
pub(crate) fn put_atomic(slot: &mut Slot<'_, RxeSendWqe>, wr: &SendWr<'_>, atomic: &Atomic, length: u32) {
    let opcode = match atomic.swap {
        Some(_) => IbUverbsWrOpcode::IB_UVERBS_WR_ATOMIC_CMP_AND_SWP,
        None => IbUverbsWrOpcode::IB_UVERBS_WR_ATOMIC_FETCH_AND_ADD,
    };
    put_common(slot, wr, opcode, 0, atomic.remote_addr, length);
    slot.put::<OP, _>(RxeSendWrAtomic {
        remote_addr: atomic.remote_addr,
        compare_add: atomic.compare_add,
        swap: atomic.swap.unwrap_or(0),
        rkey: atomic.rkey,
        reserved: 0,
    });
}

/// Same as [`put_plain`], for a send that invalidates one of the peer's keys.
pub(crate) fn put_send_with_inv(
    slot: &mut Slot<'_, RxeSendWqe>,
    wr: &SendWr<'_>,
    invalidate_rkey: u32,
    length: u32,
) {
    put_key(slot, wr, IbUverbsWrOpcode::IB_UVERBS_WR_SEND_WITH_INV, invalidate_rkey, length);
}

/// Same as [`put_plain`], for the invalidation of a local key.
pub(crate) fn put_local_inv(slot: &mut Slot<'_, RxeSendWqe>, wr: &SendWr<'_>, invalidate_rkey: u32) {
    put_key(slot, wr, IbUverbsWrOpcode::IB_UVERBS_WR_LOCAL_INV, invalidate_rkey, 0);
}

/// Stores an entry with a key to invalidate, in host order, in place of immediate data.
fn put_key(
    slot: &mut Slot<'_, RxeSendWqe>,
    wr: &SendWr<'_>,
    opcode: IbUverbsWrOpcode,
    invalidate_rkey: u32,
    length: u32,
) {
    put_common(slot, wr, opcode, u32::from_be(invalidate_rkey), 0, length);
    slot.put::<OP, _>(RxeSendWrRdma::default());
}

/// Same as [`put_plain`], for a large send with its header; the kernel completes it with
/// `IBV_WC_LOC_QP_OP_ERR`.
pub(crate) fn put_tso(slot: &mut Slot<'_, RxeSendWqe>, wr: &SendWr<'_>, length: u32) {
    put_common(slot, wr, IbUverbsWrOpcode::IB_UVERBS_WR_TSO, 0, 0, length);
    slot.put::<OP, _>(RxeSendWrRdma::default());
}

/// The operands of a bind.
#[derive(Clone, Copy)]
pub(crate) struct Bind<'a> {
    pub(crate) rkey: u32,
    pub(crate) new_rkey: u32,
    pub(crate) bind_info: &'a MwBindInfo,
}

/// Same as [`put_plain`], for the bind of a memory window.
pub(crate) fn put_bind(slot: &mut Slot<'_, RxeSendWqe>, wr: &SendWr<'_>, bind: &Bind<'_>) {
    put_common(slot, wr, IbUverbsWrOpcode::IB_UVERBS_WR_BIND_MW, 0, 0, 0);
    let Bind { rkey, new_rkey, bind_info } = *bind;
    slot.put::<OP, _>(RxeSendWrMw {
        addr: bind_info.addr,
        length: bind_info.length,
        mr_lkey: bind_info.lkey,
        mw_rkey: rkey,
        rkey: new_rkey,
        access: bind_info.mw_access_flags.bits(),
    });
}

/// The operands of a flush, except for the length of its range.
#[derive(Clone, Copy)]
pub(crate) struct Flush {
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
    pub(crate) r#type: u8,
    pub(crate) level: u8,
}

/// Same as [`put_plain`], for a flush of a range of `length` bytes. The kernel takes the length
/// from the transfer state and sends no payload.
///
/// The caller stores an empty element after the entry. The kernel accepts a read response for a
/// flush (`check_ack`) and copies its payload up to the length (`do_read`). It uses the first
/// element before it checks the number of elements (`copy_data`): otherwise a peer could write to
/// the memory of the slot's previous request.
pub(crate) fn put_flush(slot: &mut Slot<'_, RxeSendWqe>, wr: &SendWr<'_>, flush: &Flush, length: u32) {
    put_common(slot, wr, IbUverbsWrOpcode::IB_UVERBS_WR_FLUSH, 0, flush.remote_addr, length);
    slot.put::<OP, _>(RxeSendWrFlush {
        remote_addr: flush.remote_addr,
        length,
        rkey: flush.rkey,
        r#type: flush.r#type,
        level: flush.level,
        _pad: [0; 6],
    });
}

/// Same as [`put_plain`], for an atomic write. The written bytes replace the list.
pub(crate) fn put_atomic_write(
    slot: &mut Slot<'_, RxeSendWqe>,
    wr: &SendWr<'_>,
    remote_addr: u64,
    rkey: u32,
    length: u32,
) {
    put_common(slot, wr, IbUverbsWrOpcode::IB_UVERBS_WR_ATOMIC_WRITE, 0, remote_addr, length);
    slot.put::<OP, _>(RxeSendWrRdma { remote_addr, rkey, reserved: 0 });
}

#[inline(always)]
fn put_common(
    slot: &mut Slot<'_, RxeSendWqe>,
    wr: &SendWr<'_>,
    opcode: IbUverbsWrOpcode,
    imm_data: u32,
    iova: u64,
    length: u32,
) {
    slot.put::<0, _>(Head {
        wr_id: wr.wr_id,
        reserved: 0,
        opcode: opcode.0,
        send_flags: wr.flags.bits(),
        imm_data: Be32::from_native(imm_data),
    });
    slot.put::<PROGRESS, _>(Progress { iova, ..Progress::new_zeroed() });
    slot.put::<DMA, _>(dma(length, wr.sge.len() as u32));
}

/// Stores all of an entry except its scatter list.
#[inline(always)]
pub(crate) fn put_recv(slot: &mut Slot<'_, RxeRecvWqe>, wr: &RecvWr<'_>, length: u32) {
    slot.put::<0, _>(RecvHead { wr_id: wr.wr_id, reserved: 0, padding: 0 });
    slot.put::<{ offset_of!(RxeRecvWqe, dma) }, _>(dma(length, wr.sge.len() as u32));
}

/// Returns the transfer state of a message before its first byte is transferred.
#[inline(always)]
const fn dma(length: u32, num_sge: u32) -> RxeDmaInfo {
    RxeDmaInfo { length, resid: length, cur_sge: 0, num_sge, sge_offset: 0, reserved: 0 }
}
