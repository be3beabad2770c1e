//! [`Datagrams`]: an id's datagram queue pair, and its destination.

use rdmacm::{CmId, PeerUd};
use verbs::state::Rts;
use verbs::{
    Ah, Context, Cq, CqInit, Errno, Grh, Pd, Qp, QpAttrMask, QpCap, QpCreateAttr, QpCreateFlags, QpInit,
    QpType, SendFlags, Wc,
};

use super::load::{Load, Polled, Polls};
use super::{Result, Ret, call_failed};
use crate::console::Console;
use crate::pingpong::endpoint::{Message, To};

/// An id's objects, in drop order.
#[derive(Debug)]
pub struct Datagrams {
    /// The path to the peer.
    pub ah: Option<Ah>,
    /// The queue pair number and queue key of the peer.
    pub remote: (u32, u32),
    /// The queue pair.
    pub qp: Qp<Rts>,
    /// The messages, if there are any.
    pub message: Option<Message>,
    /// The completion queue of both sends and receives.
    pub cq: Cq,
    /// The protection domain of the id's objects.
    pub pd: Pd,
}

impl Datagrams {
    /// Creates the objects of an id with a device. The queue pair receives its own multicast
    /// packets only if `loopback` is true.
    ///
    /// # Errors
    /// Fails if an object cannot be created; the failure has been reported.
    pub fn new(name: &str, id: &CmId, load: Load, loopback: bool, console: &mut Console) -> Result<Self> {
        let (context, pd) = alloc_pd(name, id, console)?;
        let depth = if load.is_some() { load.capacity() } else { 1 };
        let cq = create_cq(name, &context, depth.wrapping_mul(2), console)?;
        let mut init = QpInit::new(QpType::UD, &cq);
        init.cap = QpCap { max_send_wr: depth, max_recv_wr: depth, ..init.cap };
        if !loopback {
            let create_flags = QpCreateFlags::BLOCK_SELF_MCAST_LB;
            init.ex = QpCreateAttr { create_flags, ..QpCreateAttr::default() };
        }
        let qp = id
            .create_ud_qp(&pd, &init)
            .map_err(|error| call_failed(name, "unable to create QP", &error, console))?;
        let message = load.message(name, &pd, Grh::LEN, console)?;
        Ok(Self { ah: None, remote: (0, 0), qp, message, cq, pd })
    }

    /// Directs future messages to the peer named by an event.
    ///
    /// # Errors
    /// Fails if the address handle cannot be created; the failure has been reported.
    pub fn send_to(&mut self, name: &str, peer: &PeerUd, console: &mut Console) -> Result {
        self.remote = (peer.qp_num, peer.qkey);
        let ah = self.pd.create_ah(&peer.ah_attr).map_err(|error| {
            console.say(format_args!("{name}: failure creating address handle\n"));
            console.reason(error);
            Ret::CALL
        })?;
        self.ah = Some(ah);
        Ok(())
    }

    /// Directs future messages to the sender of a received message. The immediate data holds the
    /// sender's queue pair number. The sender's queue key is the same as this queue pair's.
    fn reply_to(&mut self, name: &str, wc: &Wc, port_num: u8, console: &mut Console) -> Result {
        let header = self.message.as_mut().map(|message| message.buffer().header()).unwrap_or_default();
        let reply = self.pd.create_ah_from_wc(port_num, wc, &header).and_then(|ah| {
            let (attr, _) = self.qp.query(QpAttrMask::QKEY)?;
            Ok((ah, attr.qkey))
        });
        let (ah, qkey) = reply.map_err(|error| {
            console.say(format_args!("{name}: failed to create reply AH\n"));
            console.reason(error);
            Ret::CALL
        })?;
        self.ah = Some(ah);
        self.remote = (wc.imm_data, qkey);
        Ok(())
    }

    /// Posts a receive for each message.
    ///
    /// # Errors
    /// Fails if the queue rejects a request; the failure has been reported.
    pub fn post_recvs(&mut self, load: Load, console: &mut Console) -> Result {
        load.post_recvs(self.message.as_ref(), &mut self.qp, console)
    }

    /// Posts the messages to the peer, with this queue pair's number as immediate data.
    ///
    /// # Errors
    /// Fails if the queue rejects a request, or the peer is unknown. The failure has been reported.
    pub fn post_sends(&mut self, load: Load, flags: SendFlags, console: &mut Console) -> Result {
        if self.message.is_none() {
            return Ok(());
        }
        let Some(ah) = &self.ah else {
            console.reason("no message has arrived that names the peer");
            return Err(Ret(Errno::INVAL.raw()));
        };
        let (qp_num, qkey) = self.remote;
        let to = To::WithImm(ah.to(qp_num, qkey), self.qp.qp_num());
        load.post_sends(self.message.as_ref(), &mut self.qp, to, flags, console)
    }

    /// Polls once. If the messages have no peer yet, directs them to the first sender, through
    /// device port `replies`. If `replies` is `None`, they stay without a peer.
    ///
    /// # Errors
    /// The same errors as [`Polls::poll`]. Also fails if no address handle can be created. The
    /// failure has been reported.
    pub fn poll(
        &mut self,
        name: &str,
        polls: &mut Polls,
        replies: Option<u8>,
        console: &mut Console,
    ) -> Result<Polled> {
        let polled = polls.poll(&mut self.cq, console)?;
        if let (Polled::Some(wc), None, Some(port_num)) = (&polled, &self.ah, replies) {
            self.reply_to(name, wc, port_num, console)?;
        }
        Ok(polled)
    }
}

/// Allocates a protection domain on an id's device.
///
/// # Errors
/// Fails if the protection domain cannot be allocated; the failure has been reported.
pub fn alloc_pd(name: &str, id: &CmId, console: &mut Console) -> Result<(Context, Pd)> {
    let made = id.context().and_then(|context| {
        let pd = context.alloc_pd()?;
        Ok((context, pd))
    });
    made.map_err(|error| {
        console.say(format_args!("{name}: unable to allocate PD\n"));
        console.reason(error);
        Ret::negative(Errno::NOMEM)
    })
}

/// Creates a completion queue.
///
/// # Errors
/// Fails if the completion queue cannot be created; the failure has been reported.
pub fn create_cq(name: &str, context: &Context, cqe: u32, console: &mut Console) -> Result<Cq> {
    context.create_cq(&CqInit::new(cqe)).map_err(|error| {
        console.say(format_args!("{name}: unable to create CQ\n"));
        console.reason(error);
        Ret::negative(Errno::NOMEM)
    })
}
