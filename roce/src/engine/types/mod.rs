//! Values: numbers of objects, attributes, work requests, completions. No handle, no pointer that
//! is followed.

mod refused;

pub use refused::{PostRefused, Refused};

use core::ops::{Add, BitOr};

/// Nanoseconds since an origin of the caller's choice. It never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Add<u64> for Time {
    type Output = Self;
    fn add(self, nanoseconds: u64) -> Self {
        Self(self.0.saturating_add(nanoseconds))
    }
}

/// A 128-bit address: an IPv6 address, or an IPv4 address mapped into one (`::ffff:192.0.2.1`).
pub type Gid = [u8; 16];

/// A queue pair's number, 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Qpn(pub u32);

/// A protection domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pd(pub u32);

/// A completion queue of the caller's, by the caller's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CqId(pub u32);

/// A shared receive queue; what XRC requests carry, 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SrqId(pub u32);

/// An XRC domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct XrcDomain(pub u32);

/// What an engine is made with.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The most queue pairs.
    pub max_qp: u32,
    /// The most memory regions and windows together.
    pub max_keys: u32,
    /// The most shared receive queues.
    pub max_srq: u32,
    /// The most protection domains.
    pub max_pd: u32,
    /// The most multicast groups with members.
    pub max_groups: u32,
    /// The most members of one of them.
    pub max_group_members: u32,
    /// How many bytes of requests may be on their way, unacknowledged, of all queue pairs together:
    /// the receiver's socket or buffer must hold them. One packet of each queue pair is always let
    /// through, and three quarters are the most that one may have, so that peers that are silent do
    /// not stall the others.
    pub window_bytes: u32,
    /// Bytes per microsecond of answers (read responses, atomics' results) that one peer is sent at
    /// most, beyond a burst of `window_bytes`. 0: as fast as the caller takes them.
    ///
    /// A request names a few bytes and may ask for 2 GiB. Where the window or the rate is smaller
    /// than what a peer asks for, the rest waits ([`deadline`](super::Engine::deadline) says until
    /// when), and others are answered meanwhile. As in the window, each packet counts its bytes
    /// from BTH to pad and 768 more.
    pub answer_rate: u32,
    /// An acknowledgement is asked for at least after so many bytes of a message.
    pub ack_every: u32,
    /// How many packets of one queue pair leave in a row before the next one's turn.
    pub burst: u32,
    /// The numbers of queue pairs that are alive at a time differ modulo this power of two, at
    /// least twice `max_qp`, for a caller that finds its own objects by them; 1: they differ, no
    /// more.
    pub qpn_modulus: u32,
    /// A connected queue pair hears one UDP source port only, the one that its peer's first
    /// accepted packet came from.
    ///
    /// A packet is accepted that moves the queue pair on: the request that is expected, the answer
    /// to one that is outstanding. An unreliable queue pair expects no number: it accepts what
    /// places data or takes a receive. What comes from other ports is dropped and counted
    /// ([`Engine::unexpected_ports`](super::Engine::unexpected_ports)). The port is forgotten when
    /// the path is set or the queue pair is reset. Datagram queue pairs have no peer, and hear all
    /// ports.
    pub strict_ports: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_qp: 4096,
            max_keys: 65536,
            max_srq: 1024,
            max_pd: 4096,
            max_groups: 8192,
            max_group_members: 4096,
            window_bytes: 128 << 10,
            answer_rate: 0,
            ack_every: 32 << 10,
            burst: 16,
            qpn_modulus: 1,
            strict_ports: false,
        }
    }
}

/// The transport service of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// The sending side of an extended reliable connection.
    XrcInitiator,
    /// The receiving side of an extended reliable connection.
    XrcTarget,
}

/// The state of a queue pair.
///
/// # References
/// IBTA 10.3.1
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Just made. Nothing is accepted.
    Reset,
    /// Receives may be posted.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send.
    Rts,
    /// The send queue drains, or has drained.
    Sqd,
    /// The send queue failed (UC, UD).
    Sqe,
    /// Everything is flushed.
    Err,
}

/// Rights, with the bits of `ibv_access_flags`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Access(pub u32);

impl Access {
    /// Local read only.
    pub const NONE: Self = Self(0);
    /// The owner may write: receive, read into, atomics' results.
    pub const LOCAL_WRITE: Self = Self(1);
    /// Peers may write.
    pub const REMOTE_WRITE: Self = Self(1 << 1);
    /// Peers may read.
    pub const REMOTE_READ: Self = Self(1 << 2);
    /// Peers may run atomics.
    pub const REMOTE_ATOMIC: Self = Self(1 << 3);
    /// Windows may be bound to it.
    pub const MW_BIND: Self = Self(1 << 4);
    /// Addresses start at 0.
    pub const ZERO_BASED: Self = Self(1 << 5);

    /// Does it contain all of `other`?
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Access {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// What stands before the transport headers of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Network {
    /// IP and UDP: RoCEv2. Peers know each other by GIDs.
    #[default]
    Udp,
    /// A GRH (InfiniBand): multicast, and peers of another subnet. They know each other by GIDs.
    Grh,
    /// Local ids alone (InfiniBand): peers of the subnet know each other by them.
    Local,
}

/// The path to a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Path {
    /// What stands before the transport headers; without GIDs there, the local ids count.
    pub network: Network,
    /// The address that packets leave from.
    pub local: Gid,
    /// The address they go to.
    pub remote: Gid,
    /// Traffic class: TOS, DSCP.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level.
    pub sl: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Destination local id (InfiniBand).
    pub dlid: u16,
    /// Source local id (InfiniBand).
    pub slid: u16,
}

/// How much a queue pair holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCap {
    /// Outstanding sends.
    pub max_send_wr: u32,
    /// Outstanding receives.
    pub max_recv_wr: u32,
    /// Scatter/gather elements of a send.
    pub max_send_sge: u32,
    /// Scatter/gather elements of a receive.
    pub max_recv_sge: u32,
    /// Inline bytes of a send.
    pub max_inline_data: u32,
}

/// What a queue pair is made with.
#[derive(Clone, Copy, Debug)]
pub struct QpInit {
    /// The transport service.
    pub service: Service,
    /// The protection domain.
    pub pd: Pd,
    /// Where sends complete.
    pub send_cq: CqId,
    /// Where receives complete.
    pub recv_cq: CqId,
    /// Where receives come from, instead of a queue of its own.
    pub srq: Option<SrqId>,
    /// The domain whose shared receive queues requests may name (XRC target).
    pub xrc_domain: Option<XrcDomain>,
    /// How much it holds.
    pub cap: QpCap,
    /// Every send is signalled.
    pub sq_sig_all: bool,
    /// Packets for this queue pair number, 0 (subnet management) or 1 (general services), are its,
    /// and its datagrams come from it (UD). They are heard whatever their partition, which is the
    /// port's to check, and by 0 whatever their queue key.
    ///
    /// # References
    /// IBTA 3.9.1, 10.2.4 (queue keys), 10.9 (partitioning)
    pub well_known: Option<u32>,
    /// Its datagrams come from this number instead of its own, 24 bits; what is sent there is not
    /// its.
    pub deth_source: Option<u32>,
    /// Which completions bring their bytes along.
    pub inline_completion: InlineCompletion,
}

impl QpInit {
    /// One that holds nothing, and does nothing that is not asked for.
    pub fn new(service: Service, pd: Pd, send_cq: CqId, recv_cq: CqId) -> Self {
        Self {
            service,
            pd,
            send_cq,
            recv_cq,
            srq: None,
            xrc_domain: None,
            cap: QpCap::default(),
            sq_sig_all: false,
            well_known: None,
            deth_source: None,
            inline_completion: InlineCompletion::default(),
        }
    }
}

/// Up to how many bytes a completion brings along, through
/// [`Sink::complete_with_data`](super::Sink::complete_with_data), instead of their going to the
/// elements of its work request. The keys of those are not looked at then. 0: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InlineCompletion {
    /// What a signalled read or atomic found, where it fits a packet.
    pub requester: u32,
    /// A send of a single packet (not a datagram).
    pub responder: u32,
}

/// The attributes of a queue pair.
///
/// # References
/// IBTA 11.2.5.2
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attr {
    /// The path to the peer (connected services).
    pub path: Path,
    /// The peer's queue pair, 24 bits.
    pub dest_qpn: u32,
    /// The largest payload of a packet, in bytes: 256 to 4096.
    pub path_mtu: u32,
    /// The partition key that packets carry.
    pub pkey: u16,
    /// The queue key (UD).
    pub qkey: u32,
    /// What a peer may do.
    pub access: Access,
    /// The first sequence number sent.
    pub sq_psn: u32,
    /// The first sequence number expected.
    pub rq_psn: u32,
    /// The acknowledgement time-out, a 5-bit code: *T* = 4.096 µs × 2ᵗⁱᵐᵉᵒᵘᵗ, at least 1 ms; 0
    /// waits for ever.
    ///
    /// The timer starts with the first packet in flight and again with each progress. Without
    /// progress, the requester retries after *T*, again after 2 *T*, and from then on every 4 *T*:
    /// IBTA 9.7.6.1.3 lets a timer of this code end between *T* and 4 *T*. A silent peer is given
    /// up after *T* with [`retry_cnt`](Self::retry_cnt) 0, 3 *T* with 1, and (4 × `retry_cnt` − 1)
    /// *T* with more: 27 *T*, or 1.8 s, with code 14 and 7 retries.
    pub timeout: u8,
    /// Retries without progress before the queue pair fails, 0 to 7.
    pub retry_cnt: u8,
    /// Retries after RNR NAKs without progress, 0 to 6; 7: without limit.
    pub rnr_retry: u8,
    /// What this responder's RNR NAKs ask for, 5-bit code.
    pub min_rnr_timer: u8,
    /// Outstanding reads and atomics as requester.
    pub max_rd_atomic: u8,
    /// Outstanding reads and atomics as responder.
    pub max_dest_rd_atomic: u8,
    /// Raise [`Event::SqDrained`].
    pub sq_drained_event: bool,
}

/// A change of attributes and state: what is `None` stays.
///
/// Which attributes a transition needs and allows is the caller's to check; the engine refuses only
/// transitions that do not exist.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct AttrChange {
    pub state: Option<State>,
    pub path: Option<Path>,
    pub dest_qpn: Option<u32>,
    pub path_mtu: Option<u32>,
    pub pkey: Option<u16>,
    pub qkey: Option<u32>,
    pub access: Option<Access>,
    pub sq_psn: Option<u32>,
    pub rq_psn: Option<u32>,
    pub timeout: Option<u8>,
    pub retry_cnt: Option<u8>,
    pub rnr_retry: Option<u8>,
    pub min_rnr_timer: Option<u8>,
    pub max_rd_atomic: Option<u8>,
    pub max_dest_rd_atomic: Option<u8>,
    pub sq_drained_event: Option<bool>,
}

/// A registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryAttr {
    /// The protection domain.
    pub pd: Pd,
    /// The first address that work requests use for it.
    pub iova: u64,
    /// How many bytes.
    pub length: u64,
    /// The rights.
    pub access: Access,
}

/// The kind of a memory window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MwType {
    /// Bound by the verb, usable by every queue pair of the domain.
    One,
    /// Bound by a work request, to its queue pair.
    Two,
}

/// A piece of registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// Where it starts, in the region's address space.
    pub addr: u64,
    /// How long it is.
    pub length: u32,
    /// The region's local key.
    pub lkey: u32,
}

/// How a send is carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendFlags {
    /// Complete also on success.
    pub signaled: bool,
    /// Raise a solicited event at the peer.
    pub solicited: bool,
    /// Wait for earlier reads and atomics.
    pub fence: bool,
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdDestination {
    /// The path.
    pub path: Path,
    /// The queue pair there; 0xffffff for multicast.
    pub qpn: u32,
    /// The queue key; with the top bit set, the sender's own is used.
    pub qkey: u32,
}

/// What a send does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum SendOp {
    /// Into a receive of the peer; `imm` comes with the completion there.
    Send { imm: Option<u32> },
    /// As `Send`, and the peer's key is no longer valid there.
    SendInvalidate { rkey: u32 },
    /// A datagram.
    Datagram { to: UdDestination, imm: Option<u32> },
    /// Into the peer's memory; with `imm` it takes a receive of the peer.
    Write { addr: u64, rkey: u32, imm: Option<u32> },
    /// From the peer's memory.
    Read { addr: u64, rkey: u32 },
    /// Compare and swap of 8 bytes.
    CompareSwap { addr: u64, rkey: u32, compare: u64, swap: u64 },
    /// Fetch and add of 8 bytes.
    FetchAdd { addr: u64, rkey: u32, add: u64 },
    /// Binds a window (by its key) to `length` bytes at `addr` of the region `lkey`; the window's
    /// key becomes `new_rkey`.
    Bind { window: u32, new_rkey: u32, lkey: u32, addr: u64, length: u64, access: Access },
    /// Takes a key of this side back.
    LocalInvalidate { rkey: u32 },
}

/// The bytes of a send.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Registered memory, gathered (scattered to, for reads and atomics).
    Sges(&'a [Sge]),
    /// Copied now.
    Inline(&'a [u8]),
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// How.
    pub flags: SendFlags,
    /// The local bytes.
    pub payload: Payload<'a>,
    /// The peer's shared receive queue (XRC initiator); ignored otherwise.
    pub remote_srq: u32,
}

/// A receive work request.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Where a message goes.
    pub sges: &'a [Sge],
}

/// How a work request ended, with the numbers of `ibv_wc_status`.
///
/// # References
/// IBTA 11.6.2
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum Status {
    Success = 0,
    LocalLength = 1,
    LocalQpOperation = 2,
    LocalProtection = 4,
    Flushed = 5,
    WindowBind = 6,
    BadResponse = 7,
    LocalAccess = 8,
    RemoteInvalidRequest = 9,
    RemoteAccess = 10,
    RemoteOperation = 11,
    RetryExceeded = 12,
    RnrRetryExceeded = 13,
    General = 21,
}

/// What a completion completes, with the numbers of `ibv_wc_opcode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum Opcode {
    Send = 0,
    Write = 1,
    Read = 2,
    CompareSwap = 3,
    FetchAdd = 4,
    Bind = 5,
    LocalInvalidate = 6,
    Recv = 128,
    RecvWriteImm = 129,
}

/// How a work request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The work request's own.
    pub wr_id: u64,
    /// How it ended.
    pub status: Status,
    /// Which operation.
    pub opcode: Opcode,
    /// The local queue pair.
    pub qpn: Qpn,
    /// How many bytes arrived (receives, reads, atomics; a GRH counts), or were sent.
    pub byte_len: u32,
    /// Immediate data.
    pub imm: Option<u32>,
    /// The key that the peer took back.
    pub invalidated: Option<u32>,
    /// The sender's queue pair (UD).
    pub src_qpn: u32,
    /// The first 40 bytes of the receive hold a GRH, or what stands for it (UD); otherwise they are
    /// as they were.
    pub grh: bool,
    /// The sender asked for a solicited event, or it failed.
    pub solicited: bool,
    /// The service level (UD).
    pub sl: u8,
    /// The source's local id (InfiniBand).
    pub slid: u16,
    /// More about what went wrong, for people.
    pub vendor_err: u32,
}

/// Something that is not the end of a work request.
///
/// # References
/// IBTA 11.6.3
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Event {
    CqError(CqId),
    QpFatal(Qpn),
    QpRequestError(Qpn),
    QpAccessError(Qpn),
    CommunicationEstablished(Qpn),
    SqDrained(Qpn),
    LastWqeReached(Qpn),
    SrqLimitReached(SrqId),
    SrqError(SrqId),
}

/// The number of datagrams that an engine dropped, by reason.
///
/// A multicast datagram counts once for each member that drops it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DroppedDatagrams {
    /// All of them, in case a caller only wants to know whether the numbers have changed.
    pub total: u64,
    /// No receive was posted.
    pub no_receive: u64,
    /// The receive was too short for the datagram and the 40 bytes before it. It completed with
    /// [`Status::LocalLength`].
    pub too_short: u64,
    /// The queue key was not the queue pair's (Q_Key violation).
    pub wrong_qkey: u64,
    /// No queue pair has the destination number.
    pub unknown_qpn: u64,
    /// No queue pair has joined the destination group.
    pub not_member: u64,
    /// The queue pair is of another service or does not receive in its state, the partition key is
    /// not its own, the receive's memory cannot be written, or the packet is malformed.
    pub other: u64,
}

impl DroppedDatagrams {
    /// Counts a datagram.
    pub(crate) fn count(&mut self, reason: DropReason) {
        self.total += 1;
        *match reason {
            DropReason::NoReceive => &mut self.no_receive,
            DropReason::TooShort => &mut self.too_short,
            DropReason::WrongQkey => &mut self.wrong_qkey,
            DropReason::UnknownQpn => &mut self.unknown_qpn,
            DropReason::NotMember => &mut self.not_member,
            DropReason::Other => &mut self.other,
        } += 1;
    }
}

/// The reason why a datagram was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DropReason {
    NoReceive,
    TooShort,
    WrongQkey,
    UnknownQpn,
    NotMember,
    Other,
}

/// How soon a packet should leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// Requests, NAKs, read responses, atomics' results: now.
    Now,
    /// Plain acknowledgements as well: they can wait until the caller has nothing better to do, but
    /// no peer goes on without them.
    All,
    /// Acknowledgements and refusals alone: what the caller owes to peers before it destroys their
    /// queue pairs.
    Owed,
}

/// A packet that was written: what the caller needs to send it.
#[derive(Clone, Copy, Debug)]
pub struct Transmit {
    /// How many bytes of the buffer it takes, from BTH to pad; the caller appends the ICRC.
    pub len: usize,
    /// Where it goes.
    pub path: Path,
    /// Whose packet it is; chooses the UDP source port.
    pub qpn: Qpn,
}

/// Where a packet came from, and how.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arrival {
    /// What stood before its transport headers.
    pub network: Network,
    /// Its source.
    pub remote: Gid,
    /// Its destination: an address of this engine, or a multicast group.
    pub local: Gid,
    /// The UDP port it came from; 0 where there is none.
    pub src_port: u16,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit as it arrived; 0 where it is not known.
    pub hop_limit: u8,
    /// Flow label; 0 where it is not known.
    pub flow_label: u32,
    /// Service level.
    pub sl: u8,
    /// Source local id (InfiniBand).
    pub slid: u16,
    /// Destination local id (InfiniBand).
    pub dlid: u16,
}
