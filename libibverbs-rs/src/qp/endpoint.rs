//! [`Port`], [`Endpoint`] and connecting: from RESET to RTS in one call.
//!
//! Two programs that want to communicate send each other an [`Endpoint`] over any means they share:
//! a TCP connection, a file, the command line.

use core::fmt;
use core::str::FromStr;
use std::io::{self, ErrorKind, Read, Write};

use verbs_core::provider::Provider;
use verbs_core::types::{AhAttr, Gid, GidEntry, GlobalRoute, LinkLayer, Mtu, ParseError, QpType};
use verbs_core::{Cause, Errno, Result};

use super::Qp;
use super::attr::{InitAttr, RtrAttr, RtsAttr};
use super::state::{Reset, Rts, State};
use crate::device::context::Context;
use crate::handle::error::HandleError;
use crate::memory::exposed::RemoteAccess;

/// A local port, with the addresses and limits that its queue pairs use. Made by [`Context::port`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Port {
    /// The port's number, from 1.
    pub port_num: u8,
    /// The GID table entry used for sent packets; the best entry unless the program sets another.
    pub gid: GidEntry,
    /// The port's local id (InfiniBand).
    pub lid: u16,
    /// The link layer. Paths on Ethernet and between subnets need a global route.
    pub link_layer: LinkLayer,
    /// The port's current maximum packet payload.
    pub active_mtu: Mtu,
    /// The maximum number of outstanding RDMA reads and atomics per queue pair.
    pub max_rd_atomic: u8,
    /// The maximum number of a peer's RDMA reads and atomics that a queue pair executes at a time.
    pub max_dest_rd_atomic: u8,
}

impl<P: Provider> Context<P> {
    /// Queries a port and selects its best GID ([`find_gid`](Self::find_gid)), for [`Qp::endpoint`]
    /// and [`Qp::connect`]. Port numbers start at 1.
    ///
    /// # Errors
    /// - `EINVAL` with [`Cause::Limit`] for a port that does not exist.
    /// - `ENODATA` with [`Cause::Gid`] if the port has no GID.
    /// - Any other errno the kernel returns; notably `EIO` once the device is gone.
    pub fn port(&self, port_num: u8) -> Result<Port> {
        let attr = self.query_port(port_num)?;
        let gid = self.find_gid(port_num)?;
        let device = self.query_device()?;
        let depth = |depth: u32| u8::try_from(depth).unwrap_or(u8::MAX);
        Ok(Port {
            port_num,
            gid,
            lid: attr.lid,
            link_layer: attr.link_layer,
            active_mtu: attr.active_mtu,
            max_rd_atomic: depth(device.max_qp_init_rd_atom),
            max_dest_rd_atomic: depth(device.max_qp_rd_atom),
        })
    }
}

/// The address of a queue pair, with everything a peer needs to connect to it. Made by
/// [`Qp::endpoint`].
///
/// Programs exchange it as text ([`Display`](fmt::Display), [`FromStr`]), as 32 bytes
/// ([`to_bytes`](Self::to_bytes)), or through serde with the feature `serde`:
///
/// ```
/// use verbs::Endpoint;
/// let text = "qpn=0x000011,psn=0x3f21aa,lid=0,mtu=1024,rd_atomic=16,gid=192.0.2.1";
/// let endpoint: Endpoint = text.parse()?;
/// assert_eq!(endpoint.to_string(), text);
/// assert_eq!(Endpoint::from_bytes(&endpoint.to_bytes())?, endpoint);
/// # Ok::<(), verbs::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The GID of the port.
    pub gid: Gid,
    /// The local id of the port (InfiniBand); 0 on RoCE.
    pub lid: u16,
    /// The queue pair's number, 24 bits.
    pub qp_num: u32,
    /// The first packet sequence number sent by the queue pair, 24 bits.
    pub psn: u32,
    /// The port's maximum packet payload.
    pub mtu: Mtu,
    /// The maximum number of a peer's RDMA reads and atomics that the queue pair executes at a
    /// time.
    pub max_dest_rd_atomic: u8,
}

/// The attributes of a connection:
/// `ConnectAttr { access: RemoteAccess::WRITE, ..ConnectAttr::default() }`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectAttr {
    /// The peer's rights to access exposed memory.
    pub access: RemoteAccess,
    /// The maximum packet payload, unless either side's port allows less.
    pub max_mtu: Mtu,
    /// The maximum number of outstanding RDMA reads and atomics, unless either side allows fewer
    /// (RC).
    pub max_rd_atomic: u8,
    /// The acknowledgement time-out: 4.096 µs × 2ᵗⁱᵐᵉᵒᵘᵗ; 0 waits forever (RC). See
    /// [`RtsAttr::timeout`].
    pub timeout: u8,
    /// The number of retries after a time-out, 0 to 7 (RC).
    pub retry_cnt: u8,
    /// The number of retries while the peer has no receive posted, 0 to 6; 7 retries forever (RC).
    pub rnr_retry: u8,
    /// The time that the peer waits before it retries when no receive is posted, as a 5-bit code
    /// from IBTA table 45 (RC).
    pub min_rnr_timer: u8,
    /// The index of the partition key.
    pub pkey_index: u16,
    /// The service level of sent packets.
    pub sl: u8,
    /// The traffic class of packets with a global route.
    pub traffic_class: u8,
    /// The hop limit of packets with a global route.
    pub hop_limit: u8,
}

/// No access for the peer, the largest packets and the most outstanding reads allowed by both
/// sides, a time-out of 67 ms (code 14), 7 retries, and endless retries while the peer has no
/// receive posted. The peer waits 0.64 ms (code 12) when this side has no receive posted.
impl Default for ConnectAttr {
    fn default() -> Self {
        let (rtr, rts) = (RtrAttr::unconnected(), RtsAttr::default());
        Self {
            access: RemoteAccess::empty(),
            max_mtu: Mtu::MTU_4096,
            max_rd_atomic: u8::MAX,
            timeout: rts.timeout,
            retry_cnt: rts.retry_cnt,
            rnr_retry: rts.rnr_retry,
            min_rnr_timer: rtr.min_rnr_timer,
            pkey_index: 0,
            sl: 0,
            traffic_class: 0,
            hop_limit: HOP_LIMIT,
        }
    }
}

impl<S: State, P: Provider> Qp<S, P> {
    /// Returns the address that a peer needs to connect to this queue pair through a port of its
    /// device.
    pub fn endpoint(&self, port: &Port) -> Endpoint {
        Endpoint {
            gid: port.gid.gid,
            lid: port.lid,
            qp_num: self.qp_num(),
            psn: self.psn(),
            mtu: port.active_mtu,
            max_dest_rd_atomic: port.max_dest_rd_atomic,
        }
    }
}

impl<P: Provider> Qp<Reset, P> {
    /// Connects the queue pair to a peer's queue pair (RC, UC): from RESET to RTS, ready to send
    /// and receive.
    ///
    /// The MTU is the smaller of the two ports' MTUs. The number of outstanding RDMA reads and
    /// atomics is the smaller of this side's limit and the number that the peer executes at a time.
    ///
    /// ```no_run
    /// # use std::{error::Error, net::TcpStream};
    /// # use verbs::{Context, Cq, Pd};
    /// # fn f(context: Context, pd: Pd, cq: Cq, mut stream: TcpStream)
    /// # -> Result<(), Box<dyn Error>> {
    /// use verbs::{ConnectAttr, QpInit, QpType};
    /// let port = context.port(1)?;
    /// let qp = pd.create_qp(&QpInit::new(QpType::RC, &cq))?;
    /// let peer = qp.endpoint(&port).exchange(&mut stream)?;
    /// let qp = qp.connect(&port, &peer, &ConnectAttr::default())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// To post receives before the peer can send, or to set attributes not in [`ConnectAttr`], take
    /// the steps one by one: [`to_init`](Self::to_init), [`to_rtr`](Qp::to_rtr),
    /// [`to_rts`](Qp::to_rts).
    ///
    /// # Errors
    /// Returns the queue pair, in RESET again, with the error. After a failed step to RTR or RTS,
    /// the queue pair has a new [`psn`](Self::psn) to send to the peer.
    ///
    /// - `EINVAL` with [`Cause::Other`] for types other than RC and UC.
    /// - `EINVAL` with [`Cause::Mtu`] for an invalid MTU.
    /// - The errors of [`to_init`](Self::to_init), [`to_rtr`](Qp::to_rtr) and
    ///   [`to_rts`](Qp::to_rts).
    ///
    /// # References
    /// `ibv_modify_qp(3)`
    #[doc(alias = "ibv_modify_qp")]
    pub fn connect(
        self,
        port: &Port,
        remote: &Endpoint,
        attr: &ConnectAttr,
    ) -> Result<Qp<Rts, P>, HandleError<Self>> {
        let steps = match self.qp_type() {
            QpType::RC | QpType::UC => None,
            QpType::UD => {
                Some("a datagram queue pair has no peer: move it by to_init, to_rtr and to_rts".into())
            }
            qp_type => Some(format!(
                "connect is for RC and UC: move a queue pair of the type {qp_type} by to_init, to_rtr and to_rts"
            )),
        };
        if let Some(reason) = steps {
            let registry = &self.core.dependencies().registry;
            let cause = Cause::Other { reason: reason.into() };
            let error = registry.error("connect", Errno::INVAL).because(cause);
            return Err(HandleError { handle: self, error });
        }
        for mtu in [attr.max_mtu, remote.mtu] {
            if mtu.bytes().is_none() {
                let registry = &self.core.dependencies().registry;
                let error = registry.error("connect", Errno::INVAL).because(Cause::Mtu { mtu });
                return Err(HandleError { handle: self, error });
            }
        }
        let init = InitAttr {
            port_num: port.port_num,
            pkey_index: attr.pkey_index,
            access: attr.access.into(),
            qkey: 0,
        };
        let rtr = RtrAttr {
            path_mtu: Mtu(attr.max_mtu.0.min(port.active_mtu.0).min(remote.mtu.0)),
            max_dest_rd_atomic: port.max_dest_rd_atomic,
            min_rnr_timer: attr.min_rnr_timer,
            ..RtrAttr::new(path(port, remote, attr), remote.qp_num, remote.psn)
        };
        let rts = RtsAttr {
            sq_psn: None,
            timeout: attr.timeout,
            retry_cnt: attr.retry_cnt,
            rnr_retry: attr.rnr_retry,
            max_rd_atomic: attr.max_rd_atomic.min(port.max_rd_atomic).min(remote.max_dest_rd_atomic),
        };
        let qp = self.to_init(&init)?;
        let qp = qp.to_rtr(&rtr).map_err(back_to_reset)?;
        qp.to_rts(&rts).map_err(back_to_reset)
    }
}

/// Returns the error for a stream closed by the peer after `have` bytes of its endpoint.
fn unfinished(have: usize) -> io::Error {
    let reason = match have {
        0 => "exchange of endpoints: the peer closed the stream without sending its own".into(),
        _ => format!("exchange of endpoints: the peer closed the stream after {have} of 32 bytes"),
    };
    io::Error::new(ErrorKind::UnexpectedEof, reason)
}

/// Returns the path to a peer, with a global route on Ethernet and between subnets.
fn path(port: &Port, remote: &Endpoint, attr: &ConnectAttr) -> AhAttr {
    let path = AhAttr { sl: attr.sl, ..AhAttr::new(&port.gid, remote.gid) };
    let is_local = port.link_layer != LinkLayer::ETHERNET
        && remote.lid != 0
        && remote.gid.subnet_prefix() == port.gid.gid.subnet_prefix();
    if is_local {
        return AhAttr { grh: None, dlid: remote.lid, port_num: port.port_num, ..path };
    }
    let GlobalRoute { dgid, flow_label, sgid_index, .. } = path.grh.unwrap_or_default();
    let route = GlobalRoute {
        dgid,
        flow_label,
        sgid_index,
        hop_limit: attr.hop_limit,
        traffic_class: attr.traffic_class,
    };
    AhAttr { grh: Some(route), dlid: remote.lid, port_num: port.port_num, ..path }
}

/// Moves a queue pair back to RESET after a failure to connect.
fn back_to_reset<S: State, P: Provider>(failed: HandleError<Qp<S, P>>) -> HandleError<Qp<Reset, P>> {
    let HandleError { handle, error } = failed;
    // If this fails too, the kernel rejects the next step; the type of the handle permits no
    // posting.
    let handle = handle.to_reset().unwrap_or_else(|failed| failed.handle.in_state());
    HandleError { handle, error }
}

impl Endpoint {
    /// Returns the endpoint as bytes, in network order:
    ///
    /// | bytes | field |
    /// |---|---|
    /// | 0 | version, 1 |
    /// | 1 | MTU code |
    /// | 2 | [`max_dest_rd_atomic`](Self::max_dest_rd_atomic) |
    /// | 4 to 5 | LID |
    /// | 8 to 11 | queue pair number |
    /// | 12 to 15 | first packet sequence number |
    /// | 16 to 31 | GID |
    ///
    /// The other bytes are 0.
    pub fn to_bytes(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[..3].copy_from_slice(&[VERSION, self.mtu.0, self.max_dest_rd_atomic]);
        bytes[4..6].copy_from_slice(&self.lid.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.qp_num.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.psn.to_be_bytes());
        bytes[16..].copy_from_slice(&self.gid.0);
        bytes
    }

    /// Returns the endpoint from the bytes of [`to_bytes`](Self::to_bytes).
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Parse`] for bytes with another length or version, an invalid MTU, or
    /// numbers beyond 24 bits.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let bytes: &[u8; 32] = bytes.try_into().map_err(|_| LENGTH)?;
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let mut gid = Gid::ZERO;
        gid.0.copy_from_slice(&bytes[16..]);
        if bytes[0] != VERSION {
            return Err(LENGTH.into());
        }
        let endpoint = Self {
            gid,
            lid: u16::from_be_bytes([bytes[4], bytes[5]]),
            qp_num: word(8),
            psn: word(12),
            mtu: Mtu(bytes[1]),
            max_dest_rd_atomic: bytes[2],
        };
        Ok(endpoint.checked()?)
    }

    /// Sends the endpoint to the peer at the other end of a stream and returns the peer's endpoint.
    /// Both sides must call this.
    ///
    /// ```no_run
    /// # use std::error::Error;
    /// # use verbs::{Port, Qp, state::Reset};
    /// # fn f(qp: Qp<Reset>, port: Port) -> Result<(), Box<dyn Error>> {
    /// let mut stream = std::net::TcpStream::connect("192.0.2.1:7471")?;
    /// let peer = qp.endpoint(&port).exchange(&mut stream)?;
    /// let qp = qp.connect(&port, &peer, &verbs::ConnectAttr::default())?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Any error from the stream, notably `UnexpectedEof` if the peer closed it; `InvalidData` for
    /// invalid bytes, which the message contains.
    pub fn exchange(&self, stream: &mut (impl Read + Write)) -> io::Result<Self> {
        let named = |error: io::Error| {
            io::Error::new(error.kind(), format!("exchange of endpoints with the peer: {error}"))
        };
        stream.write_all(&self.to_bytes()).and_then(|()| stream.flush()).map_err(named)?;
        let mut bytes = [0; 32];
        let mut have = 0;
        while have < bytes.len() {
            match stream.read(&mut bytes[have..]) {
                Ok(0) => return Err(unfinished(have)),
                Ok(more) => have += more,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(named(error)),
            }
        }
        Self::from_bytes(&bytes).map_err(|_| {
            let sent = bytes.escape_ascii();
            let reason =
                format!("exchange of endpoints: the peer sent something else, which begins with \"{sent}\"");
            io::Error::new(ErrorKind::InvalidData, reason)
        })
    }

    /// Checks the fields, because any program may have sent them.
    ///
    /// # Errors
    /// [`ParseError`] for an invalid MTU, or for numbers beyond 24 bits.
    fn checked(self) -> Result<Self, ParseError> {
        let is_valid = self.mtu.bytes().is_some() && self.qp_num <= BITS_24 && self.psn <= BITS_24;
        if is_valid { Ok(self) } else { Err(RANGE) }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gid, lid, qp_num, psn, mtu, max_dest_rd_atomic } = self;
        let mtu = mtu.bytes().unwrap_or(0);
        write!(
            f,
            "qpn={qp_num:#08x},psn={psn:#08x},lid={lid},mtu={mtu},rd_atomic={max_dest_rd_atomic},gid={gid}"
        )
    }
}

/// Parses the text written by `Display`. Keys may come in any order; `lid` (0) and `rd_atomic` (1)
/// may be absent; unknown keys are skipped.
impl FromStr for Endpoint {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let (mut qp_num, mut psn, mut mtu, mut gid) = (None, None, None, None);
        let (mut lid, mut max_dest_rd_atomic) = (0, 1);
        for pair in text.trim().split(',') {
            let (key, value) = pair.split_once('=').ok_or(FORM)?;
            match key.trim() {
                "qpn" => qp_num = Some(number(value)?),
                "psn" => psn = Some(number(value)?),
                "lid" => lid = u16::try_from(number(value)?).map_err(|_| RANGE)?,
                "mtu" => mtu = Some(Mtu::from_bytes(number(value)?).ok_or(RANGE)?),
                "rd_atomic" => max_dest_rd_atomic = u8::try_from(number(value)?).map_err(|_| RANGE)?,
                "gid" => gid = Some(value.trim().parse()?),
                _ => {}
            }
        }
        let (Some(qp_num), Some(psn), Some(mtu), Some(gid)) = (qp_num, psn, mtu, gid) else {
            return Err(FORM);
        };
        Self { gid, lid, qp_num, psn, mtu, max_dest_rd_atomic }.checked()
    }
}

fn number(text: &str) -> Result<u32, ParseError> {
    let text = text.trim();
    match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    }
    .map_err(|_| FORM)
}

#[cfg(feature = "serde")]
crate::memory::remote::serde_as_text!(Endpoint);

/// The version of the layout of [`Endpoint::to_bytes`].
const VERSION: u8 = 1;
const BITS_24: u32 = 0xff_ffff;
/// The default hop limit of most hosts.
const HOP_LIMIT: u8 = 64;

const FORM: ParseError =
    ParseError::new("endpoint", "qpn=0x11,psn=0x3f21aa,mtu=1024,gid=192.0.2.1 and the like");
const RANGE: ParseError = ParseError::new("endpoint", "of an MTU that exists, and of numbers of 24 bits");
const LENGTH: ParseError = ParseError::new("endpoint", "32 bytes of version 1");
