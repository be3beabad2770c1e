//! Completion queue entries in the device's format: 64 bytes of big-endian fields.
//!
//! # Safety
//! [`Cqe`] reads an entry the device has handed over and will not write again until the poller
//! returns it. Every field lies inside the 64 bytes, at a constant offset.
//!
//! # References
//! rdma-core `providers/mlx5/mlx5dv.h` (`mlx5_cqe64`), `cq.c`; Linux `include/linux/mlx5/device.h`
#![allow(unsafe_code)]

use core::marker::PhantomData;
use core::mem::offset_of;
use core::ptr::NonNull;

use verbs_core::types::{Wc, WcFlags, WcOpcode, WcStatus, WcTmInfo};

use crate::queue::record::Kind;
use crate::queue::srq::Completed;
use crate::wqe::opcode;
use crate::wqe::tag::{self, done};

/// The size of an entry's fields, in bytes. A 128-byte entry has them in its second half.
pub(crate) const CQE64: usize = 64;

/// The kinds of entries, in the upper half of the last byte.
pub(crate) mod cqe_opcode {
    /// A request of the send queue succeeded.
    pub(crate) const REQ: u8 = 0;
    pub(crate) const RESP_WR_IMM: u8 = 1;
    pub(crate) const RESP_SEND: u8 = 2;
    pub(crate) const RESP_SEND_IMM: u8 = 3;
    pub(crate) const RESP_SEND_INV: u8 = 4;
    /// A tag matching operation without a message.
    pub(crate) const NO_PACKET: u8 = 6;
    /// The end of a replaced ring.
    pub(crate) const RESIZE: u8 = 5;
    pub(crate) const REQ_ERR: u8 = 13;
    pub(crate) const RESP_ERR: u8 = 14;
    /// The device has not written the entry yet.
    pub(crate) const INVALID: u8 = 15;
}

/// The owner bit in an entry's last byte. It alternates with each round through the queue.
pub(crate) const OWNER: u8 = 1;

/// The format bits in an entry's last byte, for data or other completions in the entry.
pub(crate) const FORMAT: u8 = 0xc;

/// The `op_own` byte of an entry the device has not written yet.
pub(crate) const FRESH: u8 = cqe_opcode::INVALID << 4;

/// The offsets of the fields, in bytes.
pub(crate) mod at {
    pub(crate) const TM_SUCCESS: usize = 0;
    pub(crate) const TM_COUNT: usize = 4;
    pub(crate) const TM_PRIVATE: usize = 4;
    pub(crate) const TM_TAG: usize = 8;
    pub(crate) const ML_PATH: usize = 17;
    pub(crate) const SLID: usize = 22;
    pub(crate) const FLAGS_RQPN: usize = 24;
    pub(crate) const CHECKSUMS: usize = 28;
    pub(crate) const HEADERS: usize = 29;
    pub(crate) const VLAN_INFO: usize = 30;
    pub(crate) const SRQN_UIDX: usize = 32;
    pub(crate) const IMM_INVAL_PKEY: usize = 36;
    pub(crate) const APP: usize = 40;
    pub(crate) const APP_OP: usize = 41;
    pub(crate) const APP_INFO: usize = 42;
    pub(crate) const BYTE_CNT: usize = 44;
    pub(crate) const TIMESTAMP: usize = 48;
    pub(crate) const VENDOR_SYNDROME: usize = 54;
    pub(crate) const SYNDROME: usize = 55;
    pub(crate) const SOP_DROP_QPN: usize = 56;
    pub(crate) const WQE_COUNTER: usize = 60;
    pub(crate) const OP_OWN: usize = 63;
}

/// An entry that the device has handed over.
#[derive(Clone, Copy)]
pub(crate) struct Cqe<'a> {
    fields: NonNull<u8>,
    _queue: PhantomData<&'a ()>,
}

/// Reads a big-endian field.
macro_rules! field {
    ($cqe:expr, $type:ty, $at:expr) => {{
        const { assert!($at + size_of::<$type>() <= CQE64 && $at % align_of::<$type>() == 0) };
        // SAFETY: inside the entry and aligned, as asserted; every bit pattern is a number.
        <$type>::from_be(unsafe { $cqe.fields.byte_add($at).cast::<$type>().read_volatile() })
    }};
}

impl<'a> Cqe<'a> {
    /// Returns the entry with a lifetime that the caller chooses.
    ///
    /// # Safety
    /// Same as [`new`](Self::new), for the new lifetime.
    #[inline(always)]
    pub(crate) const unsafe fn lent<'b>(self) -> Cqe<'b> {
        Cqe { fields: self.fields, _queue: PhantomData }
    }

    /// Returns the entry whose fields are at `fields`.
    ///
    /// # Safety
    /// For `'a`, the 64 bytes at `fields` are an entry the device has handed over, aligned to 8
    /// bytes.
    #[inline(always)]
    pub(crate) const unsafe fn new(fields: NonNull<u8>) -> Self {
        Self { fields, _queue: PhantomData }
    }

    /// Returns the address of the fields.
    pub(super) const fn fields(self) -> NonNull<u8> {
        self.fields
    }

    /// Clears the fields that data has overwritten.
    pub(super) fn forget_data(self) {
        for byte in 0..at::SRQN_UIDX {
            // SAFETY: inside the entry, which only the poller accesses until it returns it.
            unsafe { self.fields.add(byte).write_volatile(0) };
        }
    }

    /// Clears the vendor's syndrome, which is only defined for errors.
    pub(super) fn forget_syndrome(self) {
        // SAFETY: as above.
        unsafe { self.fields.add(at::VENDOR_SYNDROME).write_volatile(0) };
    }

    /// Returns the kind of the entry and its owner bit.
    #[inline(always)]
    pub(crate) fn op_own(self) -> u8 {
        field!(self, u8, at::OP_OWN)
    }

    /// Returns the user index of the queue pair or the shared receive queue.
    pub(crate) fn user_index(self) -> u32 {
        field!(self, u32, at::SRQN_UIDX) & 0xff_ffff
    }

    /// Returns the [`user_index`](Self::user_index) with its three bytes in reverse order. This
    /// costs a little-endian processor only one shift, to drop the reserved byte. The result is
    /// never `u32::MAX`.
    #[inline(always)]
    pub(crate) fn raw_user_index(self) -> u32 {
        field!(self, u32, at::SRQN_UIDX).swap_bytes() >> 8
    }

    #[inline(always)]
    pub(crate) fn vlan_info(self) -> u16 {
        field!(self, u16, at::VLAN_INFO)
    }

    #[inline(always)]
    pub(crate) fn timestamp(self) -> u64 {
        field!(self, u64, at::TIMESTAMP)
    }

    /// Returns `IP_CSUM_OK` if the device verified a frame's IPv4 checksum and its transport
    /// checksum, otherwise no flags.
    pub(crate) fn checksums(self) -> WcFlags {
        const NETWORK_OK: u8 = 1 << 1;
        const TRANSPORT_OK: u8 = 1 << 2;
        const IPV4: u8 = 2;
        let ok = field!(self, u8, at::CHECKSUMS) & (NETWORK_OK | TRANSPORT_OK);
        let network = field!(self, u8, at::HEADERS) >> 2 & 3;
        if ok == NETWORK_OK | TRANSPORT_OK && network == IPV4 {
            WcFlags::IP_CSUM_OK
        } else {
            WcFlags::empty()
        }
    }

    /// Returns the tag of the flow rule a received packet matched.
    #[inline(always)]
    pub(crate) fn flow_tag(self) -> u32 {
        field!(self, u32, at::SOP_DROP_QPN) & 0xff_ffff
    }

    #[inline(always)]
    pub(crate) fn wqe_counter(self) -> u16 {
        field!(self, u16, at::WQE_COUNTER)
    }

    /// Returns a 32-bit number with [`wqe_counter`](Self::wqe_counter) in its upper half.
    #[inline(always)]
    pub(crate) fn wqe_counter_word(self) -> u32 {
        field!(self, u32, at::WQE_COUNTER)
    }

    #[inline(always)]
    pub(crate) fn qp_num(self) -> u32 {
        field!(self, u32, at::SOP_DROP_QPN) & 0xff_ffff
    }

    #[inline(always)]
    pub(crate) fn wqe_opcode(self) -> u8 {
        (field!(self, u32, at::SOP_DROP_QPN) >> 24) as u8
    }

    #[inline(always)]
    pub(crate) fn byte_cnt(self) -> u32 {
        field!(self, u32, at::BYTE_CNT)
    }

    #[inline(always)]
    pub(crate) fn imm_inval_pkey(self) -> u32 {
        field!(self, u32, at::IMM_INVAL_PKEY)
    }

    #[inline(always)]
    pub(crate) fn flags_rqpn(self) -> u32 {
        field!(self, u32, at::FLAGS_RQPN)
    }

    #[inline(always)]
    pub(crate) fn slid(self) -> u16 {
        field!(self, u16, at::SLID)
    }

    #[inline(always)]
    pub(crate) fn ml_path(self) -> u8 {
        field!(self, u8, at::ML_PATH)
    }

    /// Returns the vendor syndrome of an error.
    pub(crate) fn vendor_syndrome(self) -> u8 {
        field!(self, u8, at::VENDOR_SYNDROME)
    }

    /// Returns the completion status for an error.
    #[cold]
    pub(crate) fn error_status(self) -> WcStatus {
        match field!(self, u8, at::SYNDROME) {
            0x01 => WcStatus::LOC_LEN_ERR,
            0x02 => WcStatus::LOC_QP_OP_ERR,
            0x04 => WcStatus::LOC_PROT_ERR,
            0x05 => WcStatus::WR_FLUSH_ERR,
            0x06 => WcStatus::MW_BIND_ERR,
            0x10 => WcStatus::BAD_RESP_ERR,
            0x11 => WcStatus::LOC_ACCESS_ERR,
            0x12 => WcStatus::REM_INV_REQ_ERR,
            0x13 => WcStatus::REM_ACCESS_ERR,
            0x14 => WcStatus::REM_OP_ERR,
            0x15 => WcStatus::RETRY_EXC_ERR,
            0x16 => WcStatus::RNR_RETRY_EXC_ERR,
            0x22 => WcStatus::REM_ABORT_ERR,
            _ => WcStatus::GENERAL_ERR,
        }
    }
}

/// A successful request's operation and the source of its data length.
#[derive(Clone, Copy)]
struct Sent {
    opcode: WcOpcode,
    length: Length,
}

/// The source of a request's data length.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Length {
    /// The completion has no length, as for a send.
    None,
    /// The length is in the entry.
    Read,
    /// The length is 8 bytes.
    Atomic,
    /// The completion has no length, and the request's kind gives the operation.
    Key,
}

/// The operations, indexed by the low 6 bits of the opcode.
const SENT: [Sent; 64] = {
    let mut sent = [Sent { opcode: WcOpcode::SEND, length: Length::None }; 64];
    let written = Sent { opcode: WcOpcode::RDMA_WRITE, length: Length::None };
    sent[opcode::RDMA_WRITE as usize] = written;
    sent[opcode::RDMA_WRITE_IMM as usize] = written;
    sent[opcode::TSO as usize] = Sent { opcode: WcOpcode::TSO, length: Length::None };
    sent[opcode::RDMA_READ as usize] = Sent { opcode: WcOpcode::RDMA_READ, length: Length::Read };
    sent[opcode::ATOMIC_CS as usize] = Sent { opcode: WcOpcode::COMP_SWAP, length: Length::Atomic };
    sent[opcode::ATOMIC_FA as usize] = Sent { opcode: WcOpcode::FETCH_ADD, length: Length::Atomic };
    sent[opcode::UMR as usize] = Sent { opcode: WcOpcode::BIND_MW, length: Length::Key };
    sent
};

impl Cqe<'_> {
    /// Returns the operation of a successful request.
    #[inline(always)]
    pub(crate) fn sent_opcode(self, kind: Kind) -> WcOpcode {
        let Sent { opcode, length } = SENT[(self.wqe_opcode() & 0x3f) as usize];
        match kind {
            Kind::INVALIDATE if length == Length::Key => WcOpcode::LOCAL_INV,
            Kind::RAW => WcOpcode::DRIVER2,
            _ => opcode,
        }
    }

    /// Returns the data length of a successful request.
    #[inline(always)]
    pub(crate) fn sent_len(self, kind: Kind) -> u32 {
        if !kind.has_more() {
            return 0;
        }
        match SENT[(self.wqe_opcode() & 0x3f) as usize].length {
            Length::Read => self.byte_cnt(),
            Length::Atomic => 8,
            Length::None | Length::Key => 0,
        }
    }

    /// Writes the completion of a successful request.
    #[inline(always)]
    pub(crate) fn write_sent(self, wr_id: u64, kind: Kind, wc: &mut Wc) {
        self.write_plain(wr_id, kind, wc);
        if kind.is_special() {
            wc.opcode = self.sent_opcode(kind);
        }
    }

    /// Writes the completion of a successful request that is not special, as
    /// [`write_sent`](Self::write_sent) does.
    #[inline(always)]
    pub(crate) fn write_plain(self, wr_id: u64, kind: Kind, wc: &mut Wc) {
        self.write_operation(wr_id, self.qp_num_word(), wc);
        wc.byte_len = self.sent_len(kind);
    }

    /// Writes the completion of a successful request, with 0 in all fields except `wr_id`,
    /// `status`, `opcode` and `qp_num`. The entry must name the operation. `qp_num` is the entry's
    /// [`qp_num_word`](Self::qp_num_word).
    #[inline(always)]
    pub(crate) fn write_operation(self, wr_id: u64, qp_num: u64, wc: &mut Wc) {
        let sent = SENT_WORDS[usize::from(field!(self, u8, at::SOP_DROP_QPN))];
        let words = [wr_id, sent, 0, qp_num, 0, 0];
        // Fewer and wider stores than one per field.
        // SAFETY: the words are as long as the completion and need no wider alignment; every bit
        // pattern is a completion, whose fields are integers.
        unsafe { core::ptr::from_mut(wc).cast::<[u64; 6]>().write(words) };
    }
}

impl Cqe<'_> {
    /// Returns the queue pair number as the second of two adjacent completion fields, after a 0.
    #[inline(always)]
    pub(crate) fn qp_num_word(self) -> u64 {
        if cfg!(target_endian = "little") {
            // The bytes of the entry in reverse order, which includes the shift.
            let opcode_and_number = u64::from(field!(self, u32, at::SOP_DROP_QPN).to_be());
            (opcode_and_number & !0xff).swap_bytes()
        } else {
            joined(0, self.qp_num())
        }
    }
}

/// Joins two adjacent fields into one number.
const fn joined(first: u32, second: u32) -> u64 {
    if cfg!(target_endian = "little") {
        (second as u64) << 32 | first as u64
    } else {
        (first as u64) << 32 | second as u64
    }
}

/// The fields used by tag matching.
impl Cqe<'_> {
    /// Returns whether a completion without an error belongs to a tag matching operation.
    #[inline(always)]
    pub(crate) fn is_of_tag(self) -> bool {
        let opcode = self.op_own() >> 4;
        (cqe_opcode::RESP_WR_IMM..=cqe_opcode::RESP_SEND_INV).contains(&opcode)
            && field!(self, u8, at::APP) == tag::APP
            || opcode == cqe_opcode::NO_PACKET
    }

    /// Returns the fields of a tag matching completion.
    pub(crate) fn completed(self) -> Completed {
        Completed {
            app_op: self.app_op(),
            index: field!(self, u16, at::APP_INFO),
            entry: self.wqe_counter(),
            success: field!(self, u32, at::TM_SUCCESS) >> 31 != 0,
            unexpected: field!(self, u16, at::TM_COUNT),
        }
    }

    fn app_op(self) -> u8 {
        field!(self, u8, at::APP_OP)
    }

    /// Returns the operation of a tag matching completion.
    pub(crate) fn tag_opcode(self) -> WcOpcode {
        match self.app_op() {
            done::APPEND => WcOpcode::TM_ADD,
            done::REMOVE => WcOpcode::TM_DEL,
            done::NOOP => WcOpcode::TM_SYNC,
            done::NO_TAG => WcOpcode::TM_NO_TAG,
            _ => WcOpcode::TM_RECV,
        }
    }

    /// Returns the flags of a tag matching completion.
    pub(crate) fn tag_flags(self, kind: Kind) -> WcFlags {
        let opcode = self.op_own() >> 4;
        let received = if opcode == cqe_opcode::NO_PACKET {
            WcFlags::empty()
        } else {
            RECEIVED[usize::from(opcode & 7)].flags
        };
        let matched = match self.app_op() {
            done::CONSUMED_MESSAGE | done::CONSUMED_MESSAGE_SOFTWARE | done::CANCELED => {
                WcFlags::TM_MATCH | WcFlags::TM_DATA_VALID
            }
            done::CONSUMED | done::CONSUMED_SOFTWARE => WcFlags::TM_MATCH,
            done::EXPECTED => WcFlags::TM_DATA_VALID,
            _ => WcFlags::empty(),
        };
        let asks = if kind == Kind::TAG_OUT_OF_STEP { WcFlags::TM_SYNC_REQ } else { WcFlags::empty() };
        received | matched | asks
    }

    /// Returns the message's tag and the sender's private data, if the completion has them.
    pub(crate) fn tm_info(self) -> Option<WcTmInfo> {
        let has_header = matches!(
            self.app_op(),
            done::CONSUMED
                | done::CONSUMED_SOFTWARE
                | done::CONSUMED_MESSAGE
                | done::CONSUMED_MESSAGE_SOFTWARE
                | done::CANCELED
        );
        has_header.then(|| WcTmInfo {
            tag: field!(self, u64, at::TM_TAG),
            private: field!(self, u32, at::TM_PRIVATE),
        })
    }
}

/// The success status and an operation from [`SENT`] combined into one word, indexed by the first
/// byte of the field at `SOP_DROP_QPN`.
const SENT_WORDS: [u64; 256] = {
    assert!(size_of::<Wc>() == size_of::<[u64; 6]>() && align_of::<Wc>() >= align_of::<u64>());
    assert!(offset_of!(Wc, status) == 8 && offset_of!(Wc, opcode) == 12 && offset_of!(Wc, qp_num) == 28);
    let mut words = [0; 256];
    let mut at = 0;
    while at < words.len() {
        words[at] = joined(WcStatus::SUCCESS.0, SENT[at & 0x3f].opcode.0);
        at += 1;
    }
    words
};

/// The properties of a successful receive, which follow from the kind of its entry.
#[derive(Clone, Copy)]
struct Received {
    opcode: WcOpcode,
    flags: WcFlags,
    /// The mask for the immediate data or the key: all bits or none.
    imm: u32,
}

/// The properties of receive completions, indexed by the kind of the entry.
const RECEIVED: [Received; 8] = {
    let sent = Received { opcode: WcOpcode::RECV, flags: WcFlags::empty(), imm: 0 };
    let mut received = [sent; 8];
    let with_imm = Received { flags: WcFlags::WITH_IMM, imm: u32::MAX, ..sent };
    received[cqe_opcode::RESP_SEND_IMM as usize] = with_imm;
    received[cqe_opcode::RESP_WR_IMM as usize] =
        Received { opcode: WcOpcode::RECV_RDMA_WITH_IMM, ..with_imm };
    received[cqe_opcode::RESP_SEND_INV as usize] = Received { flags: WcFlags::WITH_INV, ..with_imm };
    received
};

impl Cqe<'_> {
    /// Returns whether a received packet had a global route header.
    fn grh(flags_rqpn: u32) -> WcFlags {
        if flags_rqpn >> 28 & 3 != 0 { WcFlags::GRH } else { WcFlags::empty() }
    }

    /// Returns the operation of a successful receive. `opcode` is the kind of the entry.
    #[inline(always)]
    pub(crate) fn received_opcode(opcode: u8) -> WcOpcode {
        RECEIVED[usize::from(opcode & 7)].opcode
    }

    /// Returns the immediate data or the key of a successful receive; 0 without either.
    #[inline(always)]
    pub(crate) fn received_imm(self, opcode: u8) -> u32 {
        self.imm_inval_pkey() & RECEIVED[usize::from(opcode & 7)].imm
    }

    /// Returns the flags of a successful receive.
    #[inline(always)]
    pub(crate) fn received_flags(self, opcode: u8, kind: Kind) -> WcFlags {
        let flags = RECEIVED[usize::from(opcode & 7)].flags | Self::grh(self.flags_rqpn());
        if kind == Kind::FRAME && opcode == cqe_opcode::RESP_SEND { flags | self.checksums() } else { flags }
    }

    /// Writes the completion of a successful receive. `opcode` is the kind of the entry.
    #[inline(always)]
    pub(crate) fn write_received(self, opcode: u8, wr_id: u64, kind: Kind, wc: &mut Wc) {
        let Received { opcode: operation, flags, imm } = RECEIVED[usize::from(opcode & 7)];
        let (flags_rqpn, imm_inval_pkey) = (self.flags_rqpn(), self.imm_inval_pkey());
        *wc = Wc {
            wr_id,
            status: WcStatus::SUCCESS,
            opcode: operation,
            vendor_err: 0,
            byte_len: self.byte_cnt(),
            imm_data: imm_inval_pkey & imm,
            qp_num: self.qp_num(),
            src_qp: flags_rqpn & 0xff_ffff,
            wc_flags: flags | Self::grh(flags_rqpn),
            pkey_index: imm_inval_pkey as u16,
            slid: self.slid(),
            sl: (flags_rqpn >> 24 & 0xf) as u8,
            dlid_path_bits: self.ml_path() & 0x7f,
        };
        if kind == Kind::FRAME && opcode == cqe_opcode::RESP_SEND {
            wc.wc_flags |= self.checksums();
        }
    }
}
