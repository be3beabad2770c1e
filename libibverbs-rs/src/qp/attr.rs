//! The attributes for creating a queue pair and moving it between states, one value per step.

use verbs_core::provider::{Erased, Provider};
use verbs_core::transition;
use verbs_core::types::{AccessFlags, AhAttr, Mtu, QpAttr, QpAttrMask, QpCap, QpCreateAttr, QpState, QpType};

use crate::queue::cq::CqHandle;
use crate::queue::srq::SrqHandle;
use crate::queue::wq::Rss;

/// The attributes of a new queue pair:
/// `QpInit { sq_sig_all: true, ..QpInit::new(QpType::RC, &cq) }`.
///
/// The completion queues must belong to the queue pair's provider:
///
/// ```compile_fail,E0277
/// # fn f<P: verbs::Provider>(pd: verbs::Pd<P>, cq: verbs::Cq) {
/// pd.create_qp(&verbs::QpInit::<P>::new(verbs::QpType::RC, cq.handle()));
/// # }
/// ```
#[doc(alias = "ibv_qp_init_attr")]
#[doc(alias = "ibv_qp_init_attr_mask")]
#[derive(Clone, Debug)]
pub struct QpInit<P: Provider = Erased> {
    /// The transport service of the queue pair.
    pub qp_type: QpType,
    /// The completion queue for sends.
    pub send_cq: CqHandle<P>,
    /// The completion queue for receives; may be the same queue.
    pub recv_cq: CqHandle<P>,
    /// The shared receive queue that supplies receives; `None` for a separate receive queue.
    pub srq: Option<SrqHandle<P>>,
    /// The table of work queues to receive through (RSS). `None` for a separate receive queue.
    /// Neither rxe nor soft devices have such tables.
    #[doc(alias = "IBV_QP_INIT_ATTR_IND_TABLE")]
    pub rss: Option<Rss<P>>,
    /// The minimum capacity; the device may round up. With a shared receive queue or a table of
    /// work queues, the receive capacity is ignored.
    pub cap: QpCap,
    /// Set to signal every send, even without [`SendFlags::SIGNALED`](crate::SendFlags::SIGNALED).
    pub sq_sig_all: bool,
    /// Attributes that only some devices support; none by default. Neither rxe nor soft devices
    /// support any.
    pub ex: QpCreateAttr,
}

impl<P: Provider> QpInit<P> {
    /// Returns the attributes of a queue pair with one completion queue, given as a `&Cq` or a
    /// [`CqHandle`]. The capacity is 16 sends and 16 receives of one piece of memory each, without
    /// inline data ([`QpCap::USUAL`]):
    ///
    /// ```no_run
    /// # fn f(pd: verbs::Pd, cq: verbs::Cq) -> Result<(), verbs::Error> {
    /// use verbs::{QpCap, QpInit, QpType};
    /// let cap = QpCap { max_send_wr: 256, max_inline_data: 64, ..QpCap::USUAL };
    /// let qp = pd.create_qp(&QpInit { cap, ..QpInit::new(QpType::RC, &cq) })?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(qp_type: QpType, cq: impl Into<CqHandle<P>>) -> Self {
        let cq = cq.into();
        Self {
            qp_type,
            send_cq: cq.clone(),
            recv_cq: cq,
            srq: None,
            rss: None,
            cap: QpCap::USUAL,
            sq_sig_all: false,
            ex: QpCreateAttr::default(),
        }
    }
}

/// The attributes of the step from RESET to INIT.
#[doc(alias = "ibv_qp_attr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitAttr {
    /// The number of the local port, from 1.
    pub port_num: u8,
    /// The index of the partition key.
    pub pkey_index: u16,
    /// The peer's rights to access exposed memory; none by default (RC, UC).
    pub access: AccessFlags,
    /// The Q_Key that senders must know (UD).
    pub qkey: u32,
}

impl Default for InitAttr {
    fn default() -> Self {
        Self { port_num: 1, pkey_index: 0, access: AccessFlags::empty(), qkey: 0 }
    }
}

/// The attributes of the step from INIT to RTR, which connects the queue pair to the peer's queue
/// pair.
///
/// The type has no default: with a known sequence number such as 0, an attacker would need 16
/// million times fewer packets before the queue pair accepted one. [`new`](Self::new) takes the
/// peer's values and sets the others to usual values:
///
/// ```
/// # fn f(ah_attr: verbs::AhAttr, qp_num: u32, psn: u32) {
/// use verbs::{Mtu, RtrAttr};
/// let rtr = RtrAttr { path_mtu: Mtu::MTU_4096, ..RtrAttr::new(ah_attr, qp_num, psn) };
/// # }
/// ```
#[doc(alias = "ibv_qp_attr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtrAttr {
    /// The path to the peer (RC, UC).
    pub ah_attr: AhAttr,
    /// The peer's queue pair number, 24 bits (RC, UC).
    pub dest_qp_num: u32,
    /// The first packet sequence number expected, 24 bits: the peer's [`psn`](crate::Qp::psn) (RC,
    /// UC).
    pub rq_psn: u32,
    /// The maximum payload of a packet (RC, UC).
    pub path_mtu: Mtu,
    /// The maximum number of the peer's RDMA reads and atomics executed at a time (RC).
    pub max_dest_rd_atomic: u8,
    /// The time that the peer waits before it retries when no receive is posted, as a 5-bit code
    /// from IBTA table 45 (RC).
    pub min_rnr_timer: u8,
}

impl RtrAttr {
    /// Returns the attributes for connecting to the peer's queue pair `dest_qp_num`, whose first
    /// sequence number is `rq_psn`, along the path `ah_attr`. Packets have up to 1024 bytes, this
    /// side executes one read at a time, and the peer waits 0.64 ms (code 12) when no receive is
    /// posted.
    pub const fn new(ah_attr: AhAttr, dest_qp_num: u32, rq_psn: u32) -> Self {
        Self {
            ah_attr,
            dest_qp_num,
            rq_psn,
            path_mtu: Mtu::MTU_1024,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
        }
    }

    /// Returns attributes without a peer, for a datagram queue pair (UD). The queue pair's step to
    /// RTR ignores them.
    pub fn unconnected() -> Self {
        Self::new(AhAttr::default(), 0, 0)
    }
}

/// The attributes of the step from RTR to RTS.
#[doc(alias = "ibv_qp_attr")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RtsAttr {
    /// The first packet sequence number sent, 24 bits; must equal the peer's `rq_psn`. `None`
    /// selects the queue pair's own [`psn`](crate::Qp::psn).
    pub sq_psn: Option<u32>,
    /// The acknowledgement time-out: 4.096 µs × 2ᵗⁱᵐᵉᵒᵘᵗ; 0 waits forever (RC). Devices wait up to
    /// four times as long before each retry (IBTA 9.7.6.1.3). Soft devices wait one time-out before
    /// the first retry, two before the second, and four before each later one.
    pub timeout: u8,
    /// The number of retries after a time-out, 0 to 7 (RC).
    pub retry_cnt: u8,
    /// The number of retries while the peer has no receive posted, 0 to 6; 7 retries forever (RC).
    pub rnr_retry: u8,
    /// The maximum number of outstanding RDMA reads and atomics from this side (RC).
    pub max_rd_atomic: u8,
}

/// The queue pair's own sequence number, a time-out of 67 ms (code 14), 7 retries, endless retries
/// while the peer has no receive posted, and one outstanding read.
impl Default for RtsAttr {
    fn default() -> Self {
        Self { sq_psn: None, timeout: 14, retry_cnt: 7, rnr_retry: 7, max_rd_atomic: 1 }
    }
}

/// A state transition that converts into the attributes for `modify`.
pub(crate) trait Step {
    /// Returns the attributes for a queue pair with this [`psn`](crate::Qp::psn).
    fn attr(&self, psn: u32) -> QpAttr;
}

impl Step for InitAttr {
    fn attr(&self, _psn: u32) -> QpAttr {
        QpAttr {
            port_num: self.port_num,
            pkey_index: self.pkey_index,
            qp_access_flags: self.access,
            qkey: self.qkey,
            ..QpAttr::default()
        }
    }
}

impl Step for RtrAttr {
    fn attr(&self, _psn: u32) -> QpAttr {
        QpAttr {
            ah_attr: self.ah_attr,
            dest_qp_num: self.dest_qp_num,
            rq_psn: self.rq_psn,
            path_mtu: self.path_mtu,
            max_dest_rd_atomic: self.max_dest_rd_atomic,
            min_rnr_timer: self.min_rnr_timer,
            ..QpAttr::default()
        }
    }
}

impl Step for RtsAttr {
    fn attr(&self, psn: u32) -> QpAttr {
        QpAttr {
            sq_psn: self.sq_psn.unwrap_or(psn),
            timeout: self.timeout,
            retry_cnt: self.retry_cnt,
            rnr_retry: self.rnr_retry,
            max_rd_atomic: self.max_rd_atomic,
            ..QpAttr::default()
        }
    }
}

/// Returns the attributes required by a transition; a step sets only these.
pub(crate) fn required(qp_type: QpType, from: QpState, to: QpState) -> QpAttrMask {
    transition::lookup(qp_type, from, to).map_or(QpAttrMask::empty(), |transition| transition.required)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_accepted_by_the_table_for_every_type_that_has_it() {
        let ladder =
            [(QpState::RESET, QpState::INIT), (QpState::INIT, QpState::RTR), (QpState::RTR, QpState::RTS)];
        for qp_type in [QpType::RC, QpType::UC, QpType::UD, QpType::RAW_PACKET] {
            for (from, to) in ladder {
                let mask = required(qp_type, from, to) | QpAttrMask::STATE;
                assert_eq!(transition::check(qp_type, from, to, mask), Ok(()), "{qp_type} {from} {to}");
            }
        }
        let rc = required(QpType::RC, QpState::INIT, QpState::RTR);
        assert!(
            rc.contains(QpAttrMask::AV | QpAttrMask::DEST_QPN | QpAttrMask::RQ_PSN | QpAttrMask::PATH_MTU)
        );
        assert!(required(QpType::UD, QpState::RESET, QpState::INIT).contains(QpAttrMask::QKEY));
    }
}
