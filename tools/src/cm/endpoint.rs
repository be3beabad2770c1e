//! [`Listener`] and [`Endpoint`]: ids with a private event channel and blocking calls, like
//! librdmacm's ids from `rdma_create_ep(3)`.
//!
//! ```text
//!   Listener::bind ─► listen ─► get_request ─► Endpoint ─► accept  ─┐
//!   Endpoint::resolve ───────────────────────► Endpoint ─► connect ─┴─► posts ─► disconnect
//! ```
//!
//! As in C, an endpoint has a completion queue for each direction, as large as the work queue for
//! that direction. An XRC target has no completion queues, but its shared receive queue has one.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rdmacm::{AddrInfo, Address, CmId, ConnParam, Event, EventChannel, EventKind, Hints, Peer};
use verbs::state::{Init, Rts};
use verbs::{
    Buf, Cause, CompChannel, Completed, Context, Cq, CqInit, Errno, Error, Pd, Qp, QpCap, QpInit, QpType,
    Result, SendFlags, SendOp, Srq, SrqInit, Xrcd, XrcdInit,
};

use super::address::{Unresolved, gai_strerror, rdma_getaddrinfo};
use super::{complete, open_event_channel};
use crate::console::Console;

/// Opens a channel and looks up an address, like the first two calls of the C programs.
///
/// # Errors
/// Returns the C program's return value if a call fails; the failure has been reported.
pub fn start(
    node: Option<&OsStr>,
    port: &OsStr,
    hints: &Hints,
    console: &mut Console,
) -> core::result::Result<(EventChannel, AddrInfo), i32> {
    let mut unresolved = |code: i32| {
        console.say(format_args!("rdma_getaddrinfo: {}\n", gai_strerror(code)));
        code
    };
    let channel = match open_event_channel() {
        Err(unusable) if unusable.errno == Errno::NODEV => {
            let code = unresolved(Unresolved::BADFLAGS);
            unusable.explain(console);
            return Err(code);
        }
        channel => channel,
    };
    let found = match rdma_getaddrinfo(node, Some(port), hints) {
        Ok(found) => found,
        Err(refused) => {
            let code = unresolved(refused.code);
            console.reason(refused.reason);
            return Err(code);
        }
    };
    let channel = channel.map_err(|unusable| {
        // In C, the channel's errno is lost.
        console.complain(format_args!("rdma_create_ep: {}", Errno::NOMEM.description()));
        unusable.explain(console);
        -1
    })?;
    Ok((channel, found))
}

/// A listening id.
#[derive(Debug)]
pub struct Listener {
    id: CmId,
    channel: EventChannel,
    cap: QpCap,
}

impl Listener {
    /// Creates an id with an address. Its connections get queue pairs with the capacity `cap`.
    ///
    /// # Errors
    /// The same errors as [`EventChannel::create_id_of`] and [`CmId::bind_addr`].
    pub fn bind(channel: EventChannel, info: &AddrInfo, cap: QpCap) -> Result<Self> {
        let id = channel.create_id_of(info.port_space, info.qp_type)?;
        id.bind_addr(address(info.source)?)?;
        Ok(Self { id, channel, cap })
    }

    /// Listens with the largest permitted backlog.
    ///
    /// # Errors
    /// The same errors as [`CmId::listen`].
    pub fn listen(&self) -> Result<()> {
        self.id.listen(0)
    }

    /// Waits for a connection request and creates its queue pair.
    ///
    /// # Errors
    /// Fails if the channel cannot be read or the queue pair cannot be created.
    pub fn get_request(&self) -> Result<Endpoint> {
        match complete(&self.channel)?.kind {
            EventKind::ConnectRequest(request) => {
                let channel = EventChannel::new()?;
                request.id.migrate(&channel)?;
                Endpoint::from_id(request.id, channel, self.cap)
            }
            kind => {
                let reason = format!("{kind:?} came instead of a request");
                Err(Error::new("get_cm_event", "", Errno::INVAL)
                    .because(Cause::Other { reason: reason.into() }))
            }
        }
    }
}

/// One end of a connection.
#[derive(Debug)]
pub struct Endpoint {
    /// The queue pair before it is connected.
    init: Option<Qp<Init>>,
    /// The connected queue pair. It is declared before the id, so it is dropped first.
    qp: Option<Qp<Rts>>,
    srq: Option<Srq>,
    sends: Option<Completions>,
    receives: Option<Completions>,
    xrcd: Option<Xrcd>,
    pd: Pd,
    context: Context,
    id: CmId,
    channel: EventChannel,
    /// Whether the connection has ended.
    ended: bool,
}

/// A completion queue and its channel.
#[derive(Debug)]
struct Completions {
    cq: Cq,
    channel: CompChannel,
}

impl Completions {
    fn new(context: &Context, entries: u32) -> Result<Option<Self>> {
        if entries == 0 {
            return Ok(None);
        }
        let channel = context.create_comp_channel()?;
        let cq = context.create_cq(&CqInit { channel: Some(&channel), ..CqInit::new(entries) })?;
        Ok(Some(Self { cq, channel }))
    }
}

impl Endpoint {
    /// Creates an id, resolves the address and route to its peer, then creates its queue pair.
    ///
    /// # Errors
    /// Fails if one of these steps fails or reports a failure.
    pub fn resolve(channel: EventChannel, info: &AddrInfo, cap: QpCap) -> Result<Self> {
        let id = channel.create_id_of(info.port_space, info.qp_type)?;
        id.resolve_addr(info.source, address(info.destination)?, RESOLVE)?;
        complete(&channel)?;
        id.resolve_route(RESOLVE)?;
        complete(&channel)?;
        Self::from_id(id, channel, cap)
    }

    fn from_id(id: CmId, channel: EventChannel, cap: QpCap) -> Result<Self> {
        let context = id.context()?;
        let pd = context.alloc_pd()?;
        let qp_type = id.qp_type();
        let xrcd = if qp_type == QpType::XRC_RECV {
            Some(context.open_xrcd(&XrcdInit { create: true, ..XrcdInit::default() })?)
        } else {
            None
        };
        let (sends, receives) = match xrcd {
            None => {
                (Completions::new(&context, cap.max_send_wr)?, Completions::new(&context, cap.max_recv_wr)?)
            }
            Some(_) => (None, None),
        };
        let qp = match (&xrcd, sends.as_ref().or(receives.as_ref())) {
            (Some(xrcd), _) => id.create_target(xrcd)?,
            (None, Some(first)) => {
                let mut init = QpInit { cap, sq_sig_all: true, ..QpInit::new(qp_type, &first.cq) };
                if let Some(receives) = &receives {
                    init.recv_cq = receives.cq.handle();
                }
                id.create_qp(&pd, &init)?
            }
            (None, None) => return Err(Error::new("create_qp", context.device_name(), Errno::INVAL)),
        };
        let (init, qp) = (Some(qp), None);
        Ok(Self { init, qp, srq: None, sends, receives, xrcd, pd, context, id, channel, ended: false })
    }

    /// Creates the shared receive queue of an XRC target and returns its number.
    ///
    /// # Errors
    /// `EINVAL` for any other kind of endpoint, and any error of [`Xrcd::create_srq`].
    pub fn create_srq(&mut self) -> Result<u32> {
        let xrcd = self.xrcd.as_ref().ok_or_else(|| self.invalid("create_srq"))?;
        let receives = Completions::new(&self.context, 1)?.ok_or_else(|| self.invalid("create_srq"))?;
        let srq = xrcd.create_srq(&self.pd, &receives.cq, &SrqInit::new(1))?;
        let number = srq.srq_num().ok_or_else(|| self.invalid("create_srq"))?;
        (self.srq, self.receives) = (Some(srq), Some(receives));
        Ok(number)
    }

    /// Returns whether the queue pair can send this many bytes inline.
    pub fn sends_inline(&self, len: usize) -> bool {
        self.init.as_ref().is_some_and(|qp| qp.cap().max_inline_data as usize >= len)
    }

    /// Registers memory for a message.
    ///
    /// # Errors
    /// The same errors as [`Pd::alloc_buf`].
    pub fn reg_msgs(&self, len: usize) -> Result<Buf> {
        self.pd.alloc_buf(len)
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// Any error from the queue's `post_recv_buf`.
    pub fn post_recv(&mut self, buf: Buf) -> Result<()> {
        let posted = match (&mut self.srq, &mut self.qp, &mut self.init) {
            (Some(srq), ..) => srq.post_recv_buf(buf, ..),
            (None, Some(qp), _) => qp.post_recv_buf(buf, ..),
            (None, None, Some(qp)) => qp.post_recv_buf(buf, ..),
            (None, None, None) => return Err(self.invalid("post_recv")),
        };
        Ok(posted.map(|_| ())?)
    }

    /// Sends a message: inline if `memory` is `None`, otherwise from `memory`. With XRC, `srqn` is
    /// the number of the peer's shared receive queue.
    ///
    /// # Errors
    /// `EINVAL` without a connection; otherwise any error from the queue's `post_send_buf`.
    pub fn post_send(&mut self, message: &[u8], memory: Option<Buf>, srqn: Option<u32>) -> Result<()> {
        let qp = self.qp.as_mut().ok_or_else(|| Error::new("post_send", "", Errno::INVAL))?;
        let op = match srqn {
            None => SendOp::Send,
            Some(remote_srqn) => SendOp::Xrc { remote_srqn, op: &SendOp::Send },
        };
        match memory {
            None => qp.post_send_inline(0, op, SendFlags::SIGNALED, message)?,
            Some(mut buf) => {
                let len = message.len().min(buf.len());
                buf[..len].copy_from_slice(&message[..len]);
                qp.post_send_buf(op, SendFlags::empty(), buf, ..len)?;
            }
        }
        Ok(())
    }

    /// Connects, waits until the connection is established and returns the peer's private data.
    ///
    /// # Errors
    /// The same errors as [`CmId::connect`]. Also fails if the connection is not established.
    pub fn connect(&mut self, param: &ConnParam<'_>) -> Result<Vec<u8>> {
        let qp = self.init.take().ok_or_else(|| self.invalid("connect"))?;
        self.id.connect(qp, param)?;
        self.established()
    }

    /// Accepts the connection and waits until it is established.
    ///
    /// # Errors
    /// The same errors as [`CmId::accept`]. Also fails if the connection is not established.
    pub fn accept(&mut self, param: &ConnParam<'_>) -> Result<()> {
        let qp = self.init.take().ok_or_else(|| self.invalid("accept"))?;
        self.id.accept(qp, param)?;
        self.established().map(|_| ())
    }

    fn established(&mut self) -> Result<Vec<u8>> {
        let Event { kind, .. } = complete(&self.channel)?;
        self.qp = self.id.take_qp();
        Ok(match kind {
            EventKind::Established(Peer::Conn(param)) => param.private_data,
            _ => Vec::new(),
        })
    }

    /// Waits for the completion of a send.
    ///
    /// # Errors
    /// Fails if the completion reports a failure, the peer has ended the connection, or waiting
    /// fails.
    pub fn send_comp(&mut self) -> Result<Completed> {
        wait(self.sends.as_mut(), &self.channel, &mut self.ended)
    }

    /// Waits for the completion of a receive.
    ///
    /// # Errors
    /// The same errors as [`send_comp`](Self::send_comp).
    pub fn recv_comp(&mut self) -> Result<Completed> {
        wait(self.receives.as_mut(), &self.channel, &mut self.ended)
    }

    /// Ends the connection and waits until a live peer confirms. Until then, the queue pair
    /// acknowledges incoming packets, whereas the C programs move it to the error state first.
    ///
    /// # Errors
    /// The same errors as [`CmId::disconnect`].
    pub fn disconnect(&mut self) -> Result<()> {
        self.id.disconnect()?;
        let deadline = Instant::now() + CONFIRMED_WITHIN;
        while !self.ended {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.channel.next_event_within(left)? {
                Some(event) => self.ended = ends(&event),
                None => break,
            }
        }
        Ok(())
    }

    fn invalid(&self, verb: &'static str) -> Error {
        Error::new(verb, self.context.device_name(), Errno::INVAL)
    }
}

/// Returns a lookup result's address for one side, or an error if it is missing.
fn address(address: Option<Address>) -> Result<Address> {
    address.ok_or_else(|| Error::new("create_ep", "", Errno::INVAL))
}

/// Waits for a completion. Returns an error if the connection ends. The C programs wait forever
/// when their peer is gone.
fn wait(completions: Option<&mut Completions>, events: &EventChannel, ended: &mut bool) -> Result<Completed> {
    let Some(Completions { cq, channel }) = completions else {
        return Err(Error::new("poll_cq", "", Errno::INVAL));
    };
    loop {
        if let Some(completed) = cq.poll_one() {
            return Ok(completed.ok()?);
        }
        cq.req_notify(false)?;
        // A completion that arrived before the queue was armed raises no event.
        if let Some(completed) = cq.poll_one() {
            return Ok(completed.ok()?);
        }
        if *ended {
            // The last completions may arrive after the event for the connection's end.
            let reason = "the peer has ended the connection".into();
            let gone = Error::new("poll_cq", "", Errno::NOLINK).because(Cause::Other { reason });
            return Ok(cq.poll_within(LAST_WITHIN).map_err(|_| gone)?.ok()?);
        }
        let mut fds = [channel.as_fd(), events.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(Error::new("poll", "", errno.into())),
        }
        while channel.next_event()?.is_some() {}
        while let Some(event) = events.try_next_event()? {
            *ended |= ends(&event);
        }
    }
}

/// Returns whether an event ends a connection.
fn ends(event: &Event) -> bool {
    matches!(event.kind, EventKind::Disconnected | EventKind::DeviceRemoval)
}

/// The timeout for resolving an address or route.
const RESOLVE: Duration = Duration::from_secs(2);

/// The time to wait for completions that arrive after the event for the connection's end. It is
/// long enough for a busy machine.
const LAST_WITHIN: Duration = Duration::from_secs(10);

/// The time allowed for a live peer to confirm the end of a connection.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(1);
