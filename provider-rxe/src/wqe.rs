//! What a work queue entry consists of, as blocks that are built by value and stored once each.
//!
//! ```text
//!   send queue (rxe_send_wqe)                         receive queue (rxe_recv_wqe)
//!   0    Head      wr_id, opcode, flags, immediate    0   RecvHead  wr_id
//!   24   Rdma | Atomic | Datagram, by opcode          16  RxeDmaInfo
//!   144  Progress  the kernel's, to start from        40  scatter list
//!   184  RxeDmaInfo
//!   208  gather list, or inline data
//! ```
//!
//! A slot holds what its last use left there. Every field that any kernel since 5.10 reads before it writes it is in one
//! of these blocks; of the 120 bytes between `Head` and `Progress` only those that the opcode gives a meaning to.
//! `status` and `state` matter in particular: the kernel's completer takes a status other than 0 for an error of the
//! work request, and only an entry in the state 0 ("posted") is started.
//!
//! # References
//! `rdma/rdma_user_rxe.h`; Linux `drivers/infiniband/sw/rxe/rxe_req.c`, `rxe_comp.c`

use core::mem::{offset_of, size_of};

use uverbs_abi::Be32;
use uverbs_abi::ib_user_verbs::IbUverbsWrOpcode;
use uverbs_abi::rdma_user_rxe::{
    RxeAv, RxeDmaInfo, RxeRecvWqe, RxeSendWqe, RxeSendWr, RxeSendWrAtomic, RxeSendWrRdma, RxeSendWrUd,
};
use verbs_core::types::{RecvWr, SendFlags, SendOp};
use zerocopy::{Immutable, IntoBytes};

use crate::queue::Slot;

/// Where the part that depends on the opcode starts.
const OP: usize = offset_of!(RxeSendWr, wr);
/// Where a datagram's address vector starts, for kernels that have no numbers for address handles.
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
struct Datagram {
    remote_qpn: u32,
    remote_qkey: u32,
    pkey_index: u16,
    reserved: u16,
    ah_num: u32,
}

/// What the kernel keeps of its own in an entry, to start from.
#[derive(Clone, Copy, IntoBytes, Immutable)]
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
    assert!(offset_of!(Datagram, ah_num) == offset_of!(RxeSendWrUd, ah_num));
    assert!(size_of::<Datagram>() == offset_of!(RxeSendWrUd, pad));
    assert!(PROGRESS + size_of::<Progress>() == DMA);
    assert!(PROGRESS + offset_of!(Progress, iova) == offset_of!(RxeSendWqe, iova));
    assert!(PROGRESS + offset_of!(Progress, ssn) == offset_of!(RxeSendWqe, ssn));
    assert!(DMA + size_of::<RxeDmaInfo>() == size_of::<RxeSendWqe>());
    assert!(size_of::<RecvHead>() == offset_of!(RxeRecvWqe, dma));
};

/// An operation's number, to the kernel and in sets of operations.
#[inline(always)]
pub(crate) const fn opcode(op: &SendOp<'_>) -> Option<u32> {
    let opcode = match op {
        SendOp::Send | SendOp::UdSend { .. } => IbUverbsWrOpcode::IB_UVERBS_WR_SEND,
        SendOp::SendWithImm { .. } | SendOp::UdSendWithImm { .. } => {
            IbUverbsWrOpcode::IB_UVERBS_WR_SEND_WITH_IMM
        }
        SendOp::RdmaWrite { .. } => IbUverbsWrOpcode::IB_UVERBS_WR_RDMA_WRITE,
        SendOp::RdmaWriteWithImm { .. } => IbUverbsWrOpcode::IB_UVERBS_WR_RDMA_WRITE_WITH_IMM,
        SendOp::RdmaRead { .. } => IbUverbsWrOpcode::IB_UVERBS_WR_RDMA_READ,
        SendOp::AtomicCmpAndSwp { .. } => IbUverbsWrOpcode::IB_UVERBS_WR_ATOMIC_CMP_AND_SWP,
        SendOp::AtomicFetchAndAdd { .. } => IbUverbsWrOpcode::IB_UVERBS_WR_ATOMIC_FETCH_AND_ADD,
        _ => return None,
    };
    Some(opcode.0)
}

/// Where a datagram goes, as the entry says it.
#[derive(Clone, Copy)]
pub(crate) enum Path<'a> {
    /// Not a datagram.
    Connected,
    /// By the number of the kernel's address handle.
    Numbered(u32),
    /// By an address vector in the entry, for kernels that number no address handles: the bytes of an `rxe_av`.
    Spelled(&'a [u8; size_of::<RxeAv>()]),
}

/// An accepted send work request, but for its data.
pub(crate) struct Accepted<'a, 'w> {
    pub(crate) wr_id: u64,
    pub(crate) op: &'a SendOp<'w>,
    pub(crate) opcode: u32,
    pub(crate) flags: SendFlags,
    pub(crate) path: Path<'a>,
    /// The queue key of a datagram.
    pub(crate) qkey: u32,
    pub(crate) ssn: u32,
    pub(crate) length: u32,
    pub(crate) num_sge: u32,
}

/// Stores all of an entry except its gather list or inline data.
#[inline(always)]
pub(crate) fn put_send(slot: &mut Slot<'_, RxeSendWqe>, send: &Accepted<'_, '_>) {
    let (imm_data, iova) = match *send.op {
        SendOp::SendWithImm { imm_data } | SendOp::UdSendWithImm { imm_data, .. } => (imm_data, 0),
        SendOp::RdmaWriteWithImm { imm_data, remote_addr, .. } => (imm_data, remote_addr),
        SendOp::RdmaWrite { remote_addr, .. }
        | SendOp::RdmaRead { remote_addr, .. }
        | SendOp::AtomicCmpAndSwp { remote_addr, .. }
        | SendOp::AtomicFetchAndAdd { remote_addr, .. } => (0, remote_addr),
        _ => (0, 0),
    };
    slot.put::<0, _>(Head {
        wr_id: send.wr_id,
        reserved: 0,
        opcode: send.opcode,
        send_flags: send.flags.bits(),
        imm_data: Be32::from_native(imm_data),
    });
    match *send.op {
        SendOp::RdmaWrite { remote_addr, rkey }
        | SendOp::RdmaWriteWithImm { remote_addr, rkey, .. }
        | SendOp::RdmaRead { remote_addr, rkey } => {
            slot.put::<OP, _>(RxeSendWrRdma { remote_addr, rkey, reserved: 0 });
        }
        SendOp::AtomicCmpAndSwp { remote_addr, rkey, compare, swap } => {
            slot.put::<OP, _>(RxeSendWrAtomic { remote_addr, compare_add: compare, swap, rkey, reserved: 0 });
        }
        SendOp::AtomicFetchAndAdd { remote_addr, rkey, add } => {
            slot.put::<OP, _>(RxeSendWrAtomic { remote_addr, compare_add: add, swap: 0, rkey, reserved: 0 });
        }
        SendOp::UdSend { to } | SendOp::UdSendWithImm { to, .. } => {
            let ah_num = match send.path {
                Path::Numbered(ah_num) => ah_num,
                Path::Spelled(av) => {
                    slot.put::<AV, _>(*av);
                    0
                }
                Path::Connected => 0,
            };
            slot.put::<OP, _>(Datagram {
                remote_qpn: to.remote_qpn,
                remote_qkey: send.qkey,
                pkey_index: 0,
                reserved: 0,
                ah_num,
            });
        }
        _ => {}
    }
    slot.put::<PROGRESS, _>(Progress {
        status: 0,
        state: 0,
        iova,
        mask: 0,
        first_psn: 0,
        last_psn: 0,
        ack_length: 0,
        ssn: send.ssn,
        has_rd_atomic: 0,
    });
    slot.put::<DMA, _>(dma(send.length, send.num_sge));
}

/// Stores all of an entry except its scatter list.
#[inline(always)]
pub(crate) fn put_recv(slot: &mut Slot<'_, RxeRecvWqe>, wr: &RecvWr<'_>, length: u32) {
    slot.put::<0, _>(RecvHead { wr_id: wr.wr_id, reserved: 0, padding: 0 });
    slot.put::<{ offset_of!(RxeRecvWqe, dma) }, _>(dma(length, wr.sge.len() as u32));
}

/// A message of which nothing was moved yet.
#[inline(always)]
const fn dma(length: u32, num_sge: u32) -> RxeDmaInfo {
    RxeDmaInfo { length, resid: length, cur_sge: 0, num_sge, sge_offset: 0, reserved: 0 }
}
