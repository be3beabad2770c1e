//! Devices on loopback, and connected queue pairs for 8-byte messages.
//!
//! # Safety
//! Work requests are posted raw and name only memory that is leaked, has no references, and is
//! accessed by nothing but the device.
#![allow(unsafe_code)]

use provider_soft::Soft;
use verbs::state::{Reset, Rts};
use verbs::{
    AccessFlags, ConnectAttr, Context, Cq, CqInit, Endpoint, Mr, Pd, Port, Qp, QpCap, QpInit, QpType, RecvWr,
    SendFlags, SendOp, SendWr, Wc, WcStatus,
};

use crate::Result;

pub(crate) const PORT: u8 = 1;

/// A device with a completion queue and memory for messages.
pub(crate) struct Side {
    pub(crate) cq: Cq<Soft>,
    mr: Mr<Soft>,
    pub(crate) pd: Pd<Soft>,
    pub(crate) port: Port,
    pub(crate) context: Context<Soft>,
}

impl Side {
    /// Creates a device. Packets within the machine travel through memory if `is_shared`.
    pub(crate) fn new(cqe: usize, is_shared: bool) -> Result<Self> {
        let context = verbs::soft::builder().shared_memory(is_shared).auto()?.open_as()?;
        let pd: Pd<Soft> = context.alloc_pd()?;
        let mr = register(&pd, 8)?;
        let cq = context.create_cq(&CqInit::new(cqe as u32))?;
        let port = context.port(PORT)?;
        Ok(Self { cq, mr, pd, port, context })
    }

    pub(crate) fn create_qp(&self) -> Result<Qp<Reset, Soft>> {
        let cap =
            QpCap { max_send_wr: 2, max_recv_wr: 2, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        Ok(self.pd.create_qp(&QpInit { cap, ..QpInit::new(QpType::RC, &self.cq) })?)
    }

    /// Posts an 8-byte send to a queue pair.
    #[inline]
    pub(crate) fn send(&self, qp: &mut Qp<Rts, Soft>) -> Result<()> {
        let sge = [self.mr.sge(0..8)];
        let wr = SendWr { wr_id: SEND, op: SendOp::Send, sge: &sge, flags: SendFlags::SIGNALED };
        // SAFETY: the request names the leaked memory.
        unsafe { qp.post_send(&[wr])? };
        Ok(())
    }

    /// Posts an 8-byte receive to a queue pair.
    #[inline]
    pub(crate) fn recv(&self, qp: &mut Qp<Rts, Soft>) -> Result<()> {
        let sge = [self.mr.sge(0..8)];
        // SAFETY: as above.
        unsafe { qp.post_recv(&[RecvWr { wr_id: RECV, sge: &sge }])? };
        Ok(())
    }

    /// Polls once and returns the `wr_id` of a completed request, if any.
    #[inline]
    pub(crate) fn poll(&mut self) -> Result<Option<u64>> {
        let mut wcs = [Wc::default(); 1];
        if self.cq.poll_into(&mut wcs) == 0 {
            return Ok(None);
        }
        match wcs[0].status {
            WcStatus::SUCCESS => Ok(Some(wcs[0].wr_id)),
            status => Err(status.to_string().into()),
        }
    }

    /// Polls until a message has arrived.
    #[inline]
    pub(crate) fn wait_for_message(&mut self) -> Result<()> {
        for _ in 0..PATIENCE {
            if self.poll()? == Some(RECV) {
                return Ok(());
            }
        }
        Err("nothing happened".into())
    }
}

/// Connects a queue pair to a peer's endpoint.
pub(crate) fn connect_to(side: &Side, qp: Qp<Reset, Soft>, peer: &Endpoint) -> Result<Qp<Rts, Soft>> {
    Ok(qp.connect(&side.port, peer, &ConnectAttr::default())?)
}

/// Connects two queue pairs.
pub(crate) fn connect(sides: [&Side; 2], [one, other]: [Qp<Reset, Soft>; 2]) -> Result<[Qp<Rts, Soft>; 2]> {
    let [to_one, to_other] = [one.endpoint(&sides[0].port), other.endpoint(&sides[1].port)];
    Ok([connect_to(sides[0], one, &to_other)?, connect_to(sides[1], other, &to_one)?])
}

/// Registers memory that is never freed.
pub(crate) fn register(pd: &Pd<Soft>, len: usize) -> Result<Mr<Soft>> {
    let base = vec![0_u64; len.div_ceil(8)].leak().as_mut_ptr();
    // SAFETY: leaked, so it stays mapped; no reference is left.
    Ok(unsafe { pd.reg_mr(base.cast(), len, AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND) }?)
}

const SEND: u64 = 1;
const RECV: u64 = 2;

/// The number of polls after which a message is considered lost.
pub(crate) const PATIENCE: u32 = 100_000_000;
