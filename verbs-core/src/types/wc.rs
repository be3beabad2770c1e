//! [`Wc`]: the completion of a work request.

use core::fmt;

use super::flags::bitflags;
use super::open_enum;

open_enum! {
    /// The outcome of a work request.
    ///
    /// # References
    /// `ibv_poll_cq(3)`, IBTA volume 1, section 11.6.2
    #[doc(alias = "ibv_wc_status")]
    #[doc(alias = "ibv_wc_status_str")]
    pub enum WcStatus(u32) {
        /// The operation was executed.
        #[doc(alias = "IBV_WC_SUCCESS")]
        SUCCESS = 0, "success";
        /// The local memory was too short, or the message too long.
        #[doc(alias = "IBV_WC_LOC_LEN_ERR")]
        LOC_LEN_ERR = 1, "local length error";
        /// The queue pair detected an internal inconsistency.
        #[doc(alias = "IBV_WC_LOC_QP_OP_ERR")]
        LOC_QP_OP_ERR = 2, "local QP operation error";
        /// An end-to-end context detected an internal inconsistency.
        #[doc(alias = "IBV_WC_LOC_EEC_OP_ERR")]
        LOC_EEC_OP_ERR = 3, "local EE context operation error";
        /// A local key did not cover the memory.
        #[doc(alias = "IBV_WC_LOC_PROT_ERR")]
        LOC_PROT_ERR = 4, "local protection error";
        /// The queue pair entered the error state before the operation was executed.
        #[doc(alias = "IBV_WC_WR_FLUSH_ERR")]
        WR_FLUSH_ERR = 5, "Work Request Flushed Error";
        /// A memory window could not be bound.
        #[doc(alias = "IBV_WC_MW_BIND_ERR")]
        MW_BIND_ERR = 6, "memory management operation error";
        /// The peer's response was malformed or unexpected.
        #[doc(alias = "IBV_WC_BAD_RESP_ERR")]
        BAD_RESP_ERR = 7, "bad response error";
        /// A local access failed while a peer's message was being received.
        #[doc(alias = "IBV_WC_LOC_ACCESS_ERR")]
        LOC_ACCESS_ERR = 8, "local access error";
        /// The peer rejected the request as invalid.
        #[doc(alias = "IBV_WC_REM_INV_REQ_ERR")]
        REM_INV_REQ_ERR = 9, "remote invalid request error";
        /// The peer's key does not allow the access.
        #[doc(alias = "IBV_WC_REM_ACCESS_ERR")]
        REM_ACCESS_ERR = 10, "remote access error";
        /// The peer could not execute the request.
        #[doc(alias = "IBV_WC_REM_OP_ERR")]
        REM_OP_ERR = 11, "remote operation error";
        /// The peer did not acknowledge the request after `retry_cnt` retries.
        #[doc(alias = "IBV_WC_RETRY_EXC_ERR")]
        RETRY_EXC_ERR = 12, "transport retry counter exceeded";
        /// The peer had no receive posted after `rnr_retry` retries.
        #[doc(alias = "IBV_WC_RNR_RETRY_EXC_ERR")]
        RNR_RETRY_EXC_ERR = 13, "RNR retry counter exceeded";
        /// The queue pair's reliable datagram domain (RDD) does not match.
        #[doc(alias = "IBV_WC_LOC_RDD_VIOL_ERR")]
        LOC_RDD_VIOL_ERR = 14, "local RDD violation error";
        /// The peer rejected an RD request.
        #[doc(alias = "IBV_WC_REM_INV_RD_REQ_ERR")]
        REM_INV_RD_REQ_ERR = 15, "remote invalid RD request";
        /// The peer aborted the request.
        #[doc(alias = "IBV_WC_REM_ABORT_ERR")]
        REM_ABORT_ERR = 16, "aborted error";
        /// The end-to-end context number is invalid.
        #[doc(alias = "IBV_WC_INV_EECN_ERR")]
        INV_EECN_ERR = 17, "invalid EE context number";
        /// The end-to-end context is in the wrong state.
        #[doc(alias = "IBV_WC_INV_EEC_STATE_ERR")]
        INV_EEC_STATE_ERR = 18, "invalid EE context state";
        /// The device has failed.
        #[doc(alias = "IBV_WC_FATAL_ERR")]
        FATAL_ERR = 19, "fatal error";
        /// The peer did not respond in time.
        #[doc(alias = "IBV_WC_RESP_TIMEOUT_ERR")]
        RESP_TIMEOUT_ERR = 20, "response timeout error";
        /// Any other error.
        #[doc(alias = "IBV_WC_GENERAL_ERR")]
        GENERAL_ERR = 21, "general error";
        /// Tag matching failed.
        #[doc(alias = "IBV_WC_TM_ERR")]
        TM_ERR = 22, "TM error";
        /// Tag matching: software must complete the rendezvous.
        #[doc(alias = "IBV_WC_TM_RNDV_INCOMPLETE")]
        TM_RNDV_INCOMPLETE = 23, "TM software rendezvous";
    }
}

impl WcStatus {
    /// Returns the usual cause of a failure and its remedy; `None` for success and for a
    /// self-explanatory status.
    pub const fn hint(self) -> Option<&'static str> {
        Some(match self {
            Self::LOC_LEN_ERR => {
                "the message is longer than the memory of its receive, or than the queue pair or its port carries"
            }
            Self::LOC_QP_OP_ERR => {
                "the queue pair may not execute the request, or took a receive of another protection domain"
            }
            Self::LOC_PROT_ERR => {
                "local memory is outside of its registration, of another protection domain, or registered without \
                 LOCAL_WRITE"
            }
            Self::WR_FLUSH_ERR => {
                "the queue pair is in the error state: the cause is in an earlier completion, or the connection has ended"
            }
            Self::MW_BIND_ERR => "the window, or the memory that it is bound to, does not permit the bind",
            Self::LOC_ACCESS_ERR => {
                "a peer's message was not written, because this side's memory does not permit it"
            }
            Self::REM_INV_REQ_ERR => {
                "the peer's receive is shorter than the message, or its queue pair does not take the operation; of a \
                 receive: the message names a key that cannot be invalidated"
            }
            Self::REM_ACCESS_ERR => {
                "the key, the range or the rights of the peer's memory do not permit it, or the access flags of its queue \
                 pair"
            }
            Self::REM_OP_ERR => "the peer failed: the cause is in the completions of its side",
            Self::RETRY_EXC_ERR => {
                "the peer did not acknowledge: it is gone, its queue pair is not connected to this one, or packets are \
                 lost"
            }
            Self::RNR_RETRY_EXC_ERR => {
                "the peer posted no receive in time: post receives before the peer sends, or set rnr_retry to 7"
            }
            _ => return None,
        })
    }
}

/// Lets a program return the status of a completion with `?`. The error from [`Wc::ok`] also names
/// the request.
impl core::error::Error for WcStatus {}

open_enum! {
    /// The completed operation.
    #[doc(alias = "ibv_wc_opcode")]
    pub enum WcOpcode(u32) {
        /// A send.
        #[doc(alias = "IBV_WC_SEND")]
        SEND = 0, "send";
        /// An RDMA write.
        #[doc(alias = "IBV_WC_RDMA_WRITE")]
        RDMA_WRITE = 1, "rdma write";
        /// An RDMA read.
        #[doc(alias = "IBV_WC_RDMA_READ")]
        RDMA_READ = 2, "rdma read";
        /// A compare and swap.
        #[doc(alias = "IBV_WC_COMP_SWAP")]
        COMP_SWAP = 3, "compare and swap";
        /// A fetch and add.
        #[doc(alias = "IBV_WC_FETCH_ADD")]
        FETCH_ADD = 4, "fetch and add";
        /// A memory window bind.
        #[doc(alias = "IBV_WC_BIND_MW")]
        BIND_MW = 5, "bind mw";
        /// A local invalidate.
        #[doc(alias = "IBV_WC_LOCAL_INV")]
        LOCAL_INV = 6, "local invalidate";
        /// A segmented send.
        #[doc(alias = "IBV_WC_TSO")]
        TSO = 7, "tso";
        /// A flush.
        #[doc(alias = "IBV_WC_FLUSH")]
        FLUSH = 8, "flush";
        /// An atomic write.
        #[doc(alias = "IBV_WC_ATOMIC_WRITE")]
        ATOMIC_WRITE = 9, "atomic write";
        /// A receive completed by a send.
        #[doc(alias = "IBV_WC_RECV")]
        RECV = 128, "recv";
        /// A receive completed by an RDMA write with immediate data.
        #[doc(alias = "IBV_WC_RECV_RDMA_WITH_IMM")]
        RECV_RDMA_WITH_IMM = 129, "recv rdma with imm";
        /// A tag was added to a tag list.
        #[doc(alias = "IBV_WC_TM_ADD")]
        TM_ADD = 130, "tm add";
        /// A tag was removed from a tag list.
        #[doc(alias = "IBV_WC_TM_DEL")]
        TM_DEL = 131, "tm del";
        /// A tag list was synchronised.
        #[doc(alias = "IBV_WC_TM_SYNC")]
        TM_SYNC = 132, "tm sync";
        /// A receive of a message whose tag was in the tag list.
        #[doc(alias = "IBV_WC_TM_RECV")]
        TM_RECV = 133, "tm recv";
        /// A receive of a message without a tag.
        #[doc(alias = "IBV_WC_TM_NO_TAG")]
        TM_NO_TAG = 134, "tm no tag";
        /// A driver-specific operation.
        #[doc(alias = "IBV_WC_DRIVER1")]
        DRIVER1 = 135, "driver1";
        /// A driver-specific operation.
        #[doc(alias = "IBV_WC_DRIVER2")]
        DRIVER2 = 136, "driver2";
        /// A driver-specific operation.
        #[doc(alias = "IBV_WC_DRIVER3")]
        DRIVER3 = 137, "driver3";
    }
}

impl WcOpcode {
    /// Returns whether the opcode has the bit [`RECV`](Self::RECV) set, like `opcode & IBV_WC_RECV`
    /// in C.
    pub const fn is_recv(self) -> bool {
        self.0 & Self::RECV.0 != 0
    }
}

bitflags! {
    /// The valid optional fields of a completion.
    #[doc(alias = "ibv_wc_flags")]
    #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
    pub struct WcFlags: u32 {
        /// The first 40 bytes of the receive buffer hold a GRH (UD).
        #[doc(alias = "IBV_WC_GRH")]
        const GRH = 1;
        /// `imm_data` is valid.
        #[doc(alias = "IBV_WC_WITH_IMM")]
        const WITH_IMM = 1 << 1;
        /// IP checksums were verified.
        #[doc(alias = "IBV_WC_IP_CSUM_OK")]
        const IP_CSUM_OK = 1 << 2;
        /// `imm_data` is the key invalidated by the peer.
        #[doc(alias = "IBV_WC_WITH_INV")]
        const WITH_INV = 1 << 3;
        /// The tag list must be synchronised (tag matching).
        #[doc(alias = "IBV_WC_TM_SYNC_REQ")]
        const TM_SYNC_REQ = 1 << 4;
        /// The message matched a tag in the tag list (tag matching).
        #[doc(alias = "IBV_WC_TM_MATCH")]
        const TM_MATCH = 1 << 5;
        /// The data is in the receive's memory (tag matching).
        #[doc(alias = "IBV_WC_TM_DATA_VALID")]
        const TM_DATA_VALID = 1 << 6;

        const _ = !0;
    }
}

/// A completion, copied out of its queue.
///
/// Unless `status` is [`WcStatus::SUCCESS`], only `wr_id`, `status`, `qp_num` and `vendor_err` are
/// valid.
///
/// # References
/// `ibv_poll_cq(3)`
// Same field order as in `ib_uverbs_wc`, so that a provider with such entries can copy them whole.
#[doc(alias = "ibv_wc")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Wc {
    /// The work request's `wr_id`.
    pub wr_id: u64,
    /// The outcome.
    pub status: WcStatus,
    /// The operation.
    pub opcode: WcOpcode,
    /// The vendor-specific error syndrome.
    pub vendor_err: u32,
    /// The number of bytes received (receives, reads, atomics).
    pub byte_len: u32,
    /// Immediate data in host order, or the invalidated key; see `wc_flags`.
    pub imm_data: u32,
    /// The local queue pair number.
    pub qp_num: u32,
    /// The sender's queue pair number (UD).
    pub src_qp: u32,
    /// The valid optional fields.
    pub wc_flags: WcFlags,
    /// The index of the partition key.
    pub pkey_index: u16,
    /// The sender's local id (UD, InfiniBand).
    pub slid: u16,
    /// The service level (UD). On RoCE v2, ConnectX and soft devices report the kind of the IP
    /// header here: 1 for IPv6, 2 for IPv4.
    pub sl: u8,
    /// The low bits of the destination local id (UD, InfiniBand).
    pub dlid_path_bits: u8,
}

impl Wc {
    /// Returns the number of bytes received (receives, reads, atomics), as a slice length.
    pub const fn received(&self) -> usize {
        self.byte_len as usize
    }

    /// Returns `Ok` if the work request succeeded, and otherwise its failure as an error, for use
    /// with `?`.
    ///
    /// # Errors
    /// [`WcError`] for any `status` except [`WcStatus::SUCCESS`].
    pub fn ok(&self) -> Result<(), WcError> {
        if self.status == WcStatus::SUCCESS {
            return Ok(());
        }
        let Self { wr_id, status, vendor_err, opcode, qp_num, .. } = *self;
        Err(WcError { wr_id, status, vendor_err, opcode, qp_num, device: "" })
    }
}

/// A failed work request, as reported by its completion.
///
/// `Display` writes a sentence with the usual reason for the status: `work request 7 of queue pair
/// 0x11 of rxe0 failed: RNR retry counter exceeded: the peer posted no receive in time`. Converts
/// into [`Error`](crate::Error) and [`std::io::Error`].
///
/// # References
/// `ibv_poll_cq(3)`
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct WcError {
    /// The work request's `wr_id`.
    pub wr_id: u64,
    /// The status of the failed request.
    pub status: WcStatus,
    /// The vendor-specific error syndrome; 0 if there is none.
    pub vendor_err: u32,
    /// The operation, if the provider reports it for failures too; the specification leaves it
    /// undefined.
    pub opcode: WcOpcode,
    /// The local queue pair number.
    pub qp_num: u32,
    /// The name of the device; empty in an error from [`Wc::ok`], because a [`Wc`] does not contain
    /// the name.
    pub device: &'static str,
}

impl fmt::Display for WcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { wr_id, status, vendor_err, qp_num, device, .. } = self;
        write!(f, "work request {wr_id} of queue pair {qp_num:#x}")?;
        if !device.is_empty() {
            write!(f, " of {device}")?;
        }
        write!(f, " failed: {status}")?;
        if *vendor_err != 0 {
            write!(f, " (vendor error {vendor_err:#x})")?;
        }
        match status.hint() {
            Some(hint) => write!(f, ": {hint}"),
            None => Ok(()),
        }
    }
}

/// Formats like `Display`, because `main` prints a returned error with `Debug`.
impl fmt::Debug for WcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for WcError {}

impl Default for Wc {
    fn default() -> Self {
        Self {
            wr_id: 0,
            status: WcStatus::SUCCESS,
            opcode: WcOpcode::SEND,
            vendor_err: 0,
            byte_len: 0,
            imm_data: 0,
            qp_num: 0,
            src_qp: 0,
            wc_flags: WcFlags::empty(),
            pkey_index: 0,
            slid: 0,
            sl: 0,
            dlid_path_bits: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_completion_is_an_error_that_names_its_request() {
        assert_eq!(Wc::default().ok(), Ok(()));
        let wc = Wc {
            wr_id: 7,
            qp_num: 0x11,
            status: WcStatus::REM_ACCESS_ERR,
            vendor_err: 0x88,
            ..Wc::default()
        };
        let error = wc.ok().unwrap_err();
        let text = "work request 7 of queue pair 0x11 failed: remote access error (vendor error 0x88): the key, the \
                    range or the rights of the peer's memory do not permit it, or the access flags of its queue pair";
        assert_eq!(error.to_string(), text);
        let named = WcError { vendor_err: 0, status: WcStatus::GENERAL_ERR, device: "rxe0", ..error };
        assert_eq!(named.to_string(), "work request 7 of queue pair 0x11 of rxe0 failed: general error");
        let boxed: Box<dyn core::error::Error> = WcStatus::RNR_RETRY_EXC_ERR.into();
        assert_eq!(boxed.to_string(), "RNR retry counter exceeded");
    }

    #[test]
    fn every_failure_that_programs_meet_has_a_hint() {
        let without: Vec<_> = WcStatus::NAMED.iter().filter(|status| status.hint().is_none()).collect();
        for status in without {
            let rare = *status == WcStatus::SUCCESS || *status == WcStatus::BAD_RESP_ERR || status.0 >= 14;
            assert!(rare || status.name().is_some_and(|name| name.contains("EE context")), "{status}");
        }
    }
}
