//! Connecting, accepting, rejecting and disconnecting.

use verbs::state::Init;
use verbs::{Cause, Ece, Errno, Error, Qp, Result};

use super::connection::{Connection, HeldQp};
use super::qp::rnr_timer;
use super::{CmId, IdInner, explain};
use crate::cmd::query::Addresses;
use crate::device::Limits;
use crate::types::{Address, ConnParam};

/// A kind of message that carries private data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Message {
    /// The request sent by [`connect`](CmId::connect).
    Connect,
    /// The reply sent by [`accept`](CmId::accept).
    Accept,
    /// The reject sent by [`reject`](CmId::reject).
    Reject,
}

impl CmId {
    /// Sends a connection request for a queue pair created by [`create_qp`](Self::create_qp).
    ///
    /// The outcome is [`Established`](crate::EventKind::Established), after which
    /// [`take_qp`](Self::take_qp) returns the queue pair in RTS. On failure, the outcome is
    /// [`Rejected`](crate::EventKind::Rejected), [`Unreachable`](crate::EventKind::Unreachable) or
    /// [`ConnectError`](crate::EventKind::ConnectError), after which
    /// [`reclaim_qp`](Self::reclaim_qp) returns the queue pair.
    ///
    /// The thread that reads the channel changes the queue pair's state before it returns the
    /// event.
    ///
    /// # Errors
    /// After an error the id still holds the queue pair, except after `EBUSY`, which drops it.
    ///
    /// - `EINVAL` for an id whose route is not resolved; with [`Cause::Limit`] for private data
    ///   beyond [`max_private_data`](Self::max_private_data) or a `min_rnr_timer` beyond 31.
    /// - `EBUSY` for an id that already holds a queue pair.
    /// - On a soft device, if the listener is on this machine: `EAGAIN` while thousands of clients
    ///   wait for its reply (retry the call later); `EPERM` or `EACCES` if this process may not
    ///   connect to abstract Unix sockets; `EMFILE`.
    /// - Any other errno the kernel returns.
    ///
    /// # References
    /// `rdma_connect(3)`
    #[doc(alias = "rdma_connect")]
    pub fn connect(&self, qp: Qp<Init>, param: &ConnParam<'_>) -> Result<()> {
        let mut connection = self.inner.connection();
        connection.check_free("connect")?;
        let param = connection.param_for(&qp, param);
        connection.qp = HeldQp::Init(qp);
        connection.its_rnr_timer = rnr_timer("connect", param.min_rnr_timer)?;
        self.inner.connect(&connection, &param)
    }

    /// Sends a connection request for the queue pair whose number is in `param`, or looks up a
    /// datagram service. The program changes the queue pair's state itself. For a connection,
    /// success is [`ConnectResponse`](crate::EventKind::ConnectResponse) instead of
    /// [`Established`](crate::EventKind::Established); other outcomes are as for
    /// [`connect`](Self::connect).
    ///
    /// # Errors
    /// Same as [`connect`](Self::connect).
    ///
    /// # References
    /// `rdma_connect(3)`
    #[doc(alias = "rdma_connect")]
    pub fn connect_with(&self, param: &ConnParam<'_>) -> Result<()> {
        let connection = self.inner.connection();
        self.inner.connect(&connection, param)
    }

    /// Moves a queue pair created by [`create_qp`](Self::create_qp) to RTS and accepts this id's
    /// request with it. [`take_qp`](Self::take_qp) returns the queue pair. The outcome is
    /// [`Established`](crate::EventKind::Established),
    /// [`ConnectError`](crate::EventKind::ConnectError) or
    /// [`Unreachable`](crate::EventKind::Unreachable).
    ///
    /// # Errors
    /// After an error the id still holds the queue pair for [`reclaim_qp`](Self::reclaim_qp),
    /// except after `EBUSY`, which drops it.
    ///
    /// - `EINVAL` for an id without a pending request; with [`Cause::Limit`] for private data
    ///   beyond [`max_private_data`](Self::max_private_data) or a `min_rnr_timer` beyond 31.
    /// - `EBUSY` for an id that already holds a queue pair.
    /// - The errors of moving the queue pair; any other errno the kernel returns.
    ///
    /// # References
    /// `rdma_accept(3)`
    #[doc(alias = "rdma_accept")]
    pub fn accept(&self, qp: Qp<Init>, param: &ConnParam<'_>) -> Result<()> {
        const VERB: &str = "accept";
        let mut connection = self.inner.connection();
        connection.check_free(VERB)?;
        let param = connection.param_for(&qp, param);
        let chosen = rnr_timer(VERB, param.min_rnr_timer)
            .and_then(|timer| Ok((timer, self.inner.depths(VERB, &connection, &param)?)));
        let param = match chosen {
            Ok((timer, param)) => {
                connection.its_rnr_timer = timer;
                param
            }
            Err(error) => {
                connection.qp = HeldQp::Init(qp);
                return Err(error);
            }
        };
        let depths =
            Limits { responder_resources: param.responder_resources, initiator_depth: param.initiator_depth };
        self.inner.prepare(&mut connection, qp, depths)?;
        let accepted = self.inner.accept(&connection, &param);
        if accepted.is_err() {
            connection.fail();
        }
        accepted
    }

    /// Accepts this id's request with the queue pair whose number is in `param`. The program must
    /// have moved the queue pair to RTS already. For a datagram service, this is a queue pair
    /// created by [`create_ud_qp`](Self::create_ud_qp).
    ///
    /// # Errors
    /// Same as [`accept`](Self::accept).
    ///
    /// # References
    /// `rdma_accept(3)`
    #[doc(alias = "rdma_accept")]
    pub fn accept_with(&self, param: &ConnParam<'_>) -> Result<()> {
        let connection = self.inner.connection();
        let param = self.inner.depths("accept", &connection, param)?;
        self.inner.accept(&connection, &param)
    }

    /// Confirms to the peer that the queue pair of [`connect_with`](Self::connect_with) is in RTS,
    /// after the event [`ConnectResponse`](crate::EventKind::ConnectResponse). The connection is
    /// established when the call returns; no event follows.
    ///
    /// # Errors
    /// `EINVAL` for an id that holds its queue pair, or whose peer did not accept; any other errno
    /// the kernel returns.
    ///
    /// # References
    /// `rdma_establish(3)`
    #[doc(alias = "rdma_establish")]
    pub fn establish(&self) -> Result<()> {
        let connection = self.inner.connection();
        if !matches!(connection.qp, HeldQp::None) {
            let reason = "the id holds its queue pair, and tells the peer itself";
            let error = Error::new("establish", "", Errno::INVAL);
            return Err(self.inner.named(error.because(Cause::Other { reason: reason.into() })));
        }
        let told = self.inner.backend.accept(0, None, Ece::default());
        // The kernel reports the error under the verb `accept`.
        self.inner.explained(told.map_err(|error| Error { verb: "establish", ..error }))
    }

    /// Rejects this id's request with private data for the peer. Dropping the id rejects the
    /// request without private data.
    ///
    /// # Errors
    /// `EINVAL` for an id without a pending request; with [`Cause::Limit`] for private data beyond
    /// [`max_private_data`](Self::max_private_data).
    ///
    /// # References
    /// `rdma_reject(3)`
    #[doc(alias = "rdma_reject")]
    pub fn reject(&self, private_data: &[u8]) -> Result<()> {
        self.inner.reject(private_data, 0)
    }

    /// Rejects this id's request because of the peer's ECE options
    /// ([`VENDOR_OPTION_NOT_SUPPORTED`](crate::RejectReason::VENDOR_OPTION_NOT_SUPPORTED)).
    ///
    /// # Errors
    /// Same as [`reject`](Self::reject).
    ///
    /// # References
    /// `rdma_reject_ece(3)`
    #[doc(alias = "rdma_reject_ece")]
    pub fn reject_ece(&self, private_data: &[u8]) -> Result<()> {
        self.inner.reject(private_data, 35)
    }

    /// Ends the connection, or confirms the peer's disconnect. The outcome is
    /// [`Disconnected`](crate::EventKind::Disconnected) on both sides.
    ///
    /// The call does not touch the queue pair. If the program first moves it to the error state
    /// ([`to_error`](verbs::Qp::to_error)), the queue pair sends nothing more and posted requests
    /// complete as flushed. librdmacm's call does this itself.
    ///
    /// # Errors
    /// `EINVAL` for an id without a connection; any other errno the kernel returns.
    ///
    /// # References
    /// `rdma_disconnect(3)`
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&self) -> Result<()> {
        self.inner.explained(self.inner.backend.disconnect())
    }

    /// Returns the maximum length of a message's private data on InfiniBand and RoCE, in bytes.
    /// iWARP permits more.
    ///
    /// A request between IP addresses also carries a header, unlike a request between InfiniBand
    /// addresses. For an id without an address, the result assumes IP.
    ///
    /// # References
    /// IBTA volume 1, sections 12.6, 12.11 and annex A11, whose header takes 36 bytes of a request;
    /// linux `cma_user_data_offset`
    pub fn max_private_data(&self, message: Message) -> usize {
        self.inner.max_private_data(message)
    }
}

impl Connection {
    /// Checks that the id holds no queue pair.
    ///
    /// # Errors
    /// `EBUSY` for an id that already holds a queue pair.
    fn check_free(&self, verb: &'static str) -> Result<()> {
        if matches!(self.qp, HeldQp::None) {
            return Ok(());
        }
        Err(Error::new(verb, "", Errno::BUSY).because(Cause::InUse { by: "another queue pair of the id" }))
    }

    /// Returns the parameters for connecting with this queue pair.
    fn param_for<'a>(&self, qp: &Qp<Init>, param: &ConnParam<'a>) -> ConnParam<'a> {
        let qp_num = qp.qp_num();
        let srq = match self.made {
            Some((made, srq)) if made == qp_num => srq,
            _ => param.srq,
        };
        ConnParam { qp_num, srq, ..*param }
    }

    /// Moves the id's queue pair to the error state, if possible.
    fn fail(&mut self) {
        self.qp = core::mem::take(&mut self.qp).failed();
    }
}

impl IdInner {
    fn connect(&self, connection: &Connection, param: &ConnParam<'_>) -> Result<()> {
        let param = self.depths("connect", connection, param)?;
        check_qp_num("connect", &param)?;
        let length = param.private_data.len();
        let sent = self.backend.connect(&param, connection.local_ece);
        let explained =
            |error| explain::private_data(error, length, || self.max_private_data(Message::Connect));
        self.explained(sent.map_err(explained))
    }

    fn accept(&self, connection: &Connection, param: &ConnParam<'_>) -> Result<()> {
        // The reply names the peer's vendor, so that the peer can interpret the options.
        let ece = Ece { vendor_id: connection.remote_ece.vendor_id, options: connection.local_ece.options };
        check_qp_num("accept", param)?;
        let length = param.private_data.len();
        let sent = self.backend.accept(self.cookie.0, Some(param), ece);
        let explained =
            |error| explain::private_data(error, length, || self.max_private_data(Message::Accept));
        self.explained(sent.map_err(explained))
    }

    fn reject(&self, private_data: &[u8], reason: u8) -> Result<()> {
        let sent = self.backend.reject(private_data, reason);
        let max = || self.max_private_data(Message::Reject);
        self.explained(sent.map_err(|error| explain::private_data(error, private_data.len(), max)))
    }

    /// Replaces depths that stand for the maximum with the device's limits. The peer's request also
    /// limits the depths of an accept.
    fn depths<'a>(
        &self,
        verb: &'static str,
        connection: &Connection,
        param: &ConnParam<'a>,
    ) -> Result<ConnParam<'a>> {
        let mut param = *param;
        let most = ConnParam::MAX_DEPTH;
        // Datagrams have no depths. Explicit depths need no device.
        if self.is_ud() || (param.responder_resources != most && param.initiator_depth != most) {
            return Ok(param);
        }
        let device = self.limits(verb)?;
        let asked = connection.asked.unwrap_or(Limits { responder_resources: most, initiator_depth: most });
        if param.responder_resources == most {
            param.responder_resources = device.responder_resources.min(asked.responder_resources);
        }
        if param.initiator_depth == most {
            param.initiator_depth = device.initiator_depth.min(asked.initiator_depth);
        }
        Ok(param)
    }

    fn max_private_data(&self, message: Message) -> usize {
        /// The length of the header in requests between IP addresses, in bytes.
        const HEADER: usize = 36;
        let header = || match self.backend.addresses() {
            Ok(Addresses { local: Some(Address::Ib(_)), .. }) => 0,
            _ => HEADER,
        };
        match (message, self.is_ud()) {
            (Message::Connect, false) => 92 - header(),
            (Message::Accept, false) => 196,
            (Message::Reject, false) => 148,
            (Message::Connect, true) => 216 - header(),
            (Message::Accept | Message::Reject, true) => 136,
        }
    }
}

/// Checks that the queue pair number in `param` has at most 24 bits.
///
/// # Errors
/// `EINVAL` for a queue pair number beyond the protocol's 24 bits.
fn check_qp_num(verb: &'static str, param: &ConnParam<'_>) -> Result<()> {
    const MAX: u32 = 0xff_ffff;
    if param.qp_num <= MAX {
        return Ok(());
    }
    let reason = format!("qp_num {:#x} has more than 24 bits", param.qp_num).into();
    Err(Error::new(verb, "", Errno::INVAL).because(Cause::Other { reason }))
}
