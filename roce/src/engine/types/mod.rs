//! Values: object numbers, attributes, work requests, completions. No type here owns an object
//! or points to memory.

mod mad;
mod refused;

pub use mad::{GSI_QKEY, GSI_QPN, MAD_LEN, Mad, MadDestination, ReceivedMad};
pub use refused::{PostRefused, Refused};

use core::ops::BitOr;

pub use rdma_sans_io::Time;

use crate::wire::feth;

/// A 128-bit address: an IPv6 address, or an IPv4 address mapped into one (`::ffff:192.0.2.1`).
pub type Gid = [u8; 16];

/// The number of a queue pair, 24 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Qpn(pub u32);

/// A protection domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pd(pub u32);

/// A completion queue, identified by a number assigned by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CqId(pub u32);

/// A shared receive queue, identified by the 24-bit number in XRC requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SrqId(pub u32);

/// The memory visible through a bound window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WindowRange {
    /// The window's key.
    pub rkey: u32,
    /// The address of the window's first byte, as used in requests.
    pub iova: u64,
    /// The window's length in bytes.
    pub length: u64,
    /// The key of the region below the window.
    pub lkey: u32,
    /// The address of the window's first byte in the region.
    pub addr: u64,
}

/// An access to memory whose pages are not present ([`Sink::postpone`](super::Sink::postpone)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stall {
    /// The bytes of a send, a write or a datagram. The send queue stops.
    Send {
        /// The `wr_id` of the work request.
        wr_id: u64,
        /// The number of bytes already sent.
        done: u32,
    },
    /// The target of a response to a read or an atomic. The send queue stops and sends the request
    /// again.
    Response {
        /// The `wr_id` of the work request.
        wr_id: u64,
        /// The number of bytes already received.
        done: u32,
    },
    /// The memory of a receive. The peer gets a receiver-not-ready NAK.
    Receive {
        /// The `wr_id` of the receive.
        wr_id: u64,
        /// The shared receive queue that the receive was taken from.
        srq: Option<SrqId>,
        /// The number of bytes already received.
        done: u32,
        /// The number of bytes in the packet.
        packet: u32,
    },
    /// Memory named by a peer's request. The peer gets a receiver-not-ready NAK.
    Remote {
        /// The key.
        rkey: u32,
        /// The first address named by the packet.
        addr: u64,
        /// The number of bytes from there to the end of the message.
        left: u32,
        /// The number of bytes in the packet.
        packet: u32,
        /// Whether the access is a write.
        write: bool,
    },
    /// The memory of a read response, which may have begun. Responses stop.
    ReadResponse {
        /// The key.
        rkey: u32,
        /// The address of the first byte that the packet would carry.
        addr: u64,
        /// The number of bytes from there to the end of the response.
        left: u32,
    },
}

/// An XRC domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct XrcDomain(pub u32);

/// The configuration of an engine.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The maximum number of queue pairs.
    pub max_qp: u32,
    /// The maximum number of memory regions and windows together.
    pub max_keys: u32,
    /// The maximum number of shared receive queues.
    pub max_srq: u32,
    /// The maximum number of protection domains.
    pub max_pd: u32,
    /// The maximum number of multicast groups with members.
    pub max_groups: u32,
    /// The maximum number of members of one group.
    pub max_group_members: u32,
    /// The maximum number of unacknowledged request bytes, across all queue pairs. The receiver's
    /// socket or buffer must hold them. A queue pair may always have one packet in flight. It may
    /// use at most three quarters of the window, so silent peers do not stall others.
    pub window_bytes: u32,
    /// The rate, in bytes per microsecond, of read responses and results of atomics to one peer,
    /// beyond a burst of `window_bytes`. With 0, responses leave as fast as the caller fetches
    /// packets.
    ///
    /// A request of a few bytes may request 2 GiB. The part of a response beyond the window or the
    /// rate waits until [`deadline`](super::Engine::deadline) while responses to other peers leave.
    /// As in the window, the cost of each packet is its length from BTH to pad plus 768 bytes.
    pub response_rate: u32,
    /// The number of message bytes after which a packet requests an acknowledgement, at the latest.
    pub ack_every: u32,
    /// The number of packets sent in a row by one queue pair before the next queue pair sends.
    pub burst: u32,
    /// The upper 8 bits of all queue pair numbers, for engines that share an address. The other 16
    /// bits are random. With 0, all 24 bits are random.
    pub qpn_prefix: u8,
    /// Whether a connected queue pair accepts only one UDP source port: the port of its peer's
    /// first accepted packet.
    ///
    /// A packet is accepted if it advances the queue pair: the expected request or the response to
    /// an outstanding one. An unreliable queue pair expects no sequence number and accepts any
    /// packet that places data or takes a receive. Packets from other ports are dropped and counted
    /// ([`Engine::unexpected_ports`](super::Engine::unexpected_ports)). Setting the path or
    /// resetting the queue pair clears the port. Datagram queue pairs have no peer and accept all
    /// ports. Packets without a port ([`Arrival::src_port`]) are accepted and leave it unchanged.
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
            response_rate: 0,
            ack_every: 32 << 10,
            burst: 16,
            qpn_prefix: 0,
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
    /// Just created. Work requests and packets are rejected.
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

/// Access rights, with the bits of `ibv_access_flags`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Access(pub u32);

impl Access {
    /// Local read only.
    pub const NONE: Self = Self(0);
    /// The owner may write: receives, read data, results of atomics.
    pub const LOCAL_WRITE: Self = Self(1);
    /// Peers may write.
    pub const REMOTE_WRITE: Self = Self(1 << 1);
    /// Peers may read.
    pub const REMOTE_READ: Self = Self(1 << 2);
    /// Peers may run atomics.
    pub const REMOTE_ATOMIC: Self = Self(1 << 3);
    /// Windows may be bound to the region.
    pub const MW_BIND: Self = Self(1 << 4);
    /// Addresses start at 0.
    pub const ZERO_BASED: Self = Self(1 << 5);
    /// Peers may flush to global visibility.
    pub const FLUSH_GLOBAL: Self = Self(1 << 8);
    /// Peers may flush to persistence.
    pub const FLUSH_PERSISTENT: Self = Self(1 << 9);

    /// Returns whether these rights include all rights of `other`.
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

/// The header before the transport headers of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Network {
    /// IP and UDP (RoCEv2). GIDs identify peers.
    #[default]
    Udp,
    /// A GRH (InfiniBand): multicast, and peers of another subnet. GIDs identify peers.
    Grh,
    /// Only local ids (InfiniBand). They identify peers in the subnet.
    Local,
}

/// The path to a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Path {
    /// The header before the transport headers. If it has no GIDs, the local ids identify the peer.
    pub network: Network,
    /// The source address of packets.
    pub local: Gid,
    /// The destination address of packets.
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
    /// Whether the peer is on this machine and detects this from the queue pair's packets: see
    /// [`Arrival::on_link`]. The packets then carry up to
    /// [`LINK_MTU`](crate::wire::packet::LINK_MTU) bytes instead of the path MTU, which then limits
    /// only datagrams. Constant while a queue pair is connected.
    pub on_link: bool,
}

/// The capacities of a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCap {
    /// The maximum number of outstanding sends.
    pub max_send_wr: u32,
    /// The maximum number of outstanding receives.
    pub max_recv_wr: u32,
    /// The maximum number of scatter/gather elements per send.
    pub max_send_sge: u32,
    /// The maximum number of scatter/gather elements per receive.
    pub max_recv_sge: u32,
    /// The maximum number of inline bytes per send.
    pub max_inline_data: u32,
}

/// The parameters of a new queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpInit {
    /// The transport service.
    pub service: Service,
    /// The protection domain.
    pub pd: Pd,
    /// The completion queue for sends.
    pub send_cq: CqId,
    /// The completion queue for receives.
    pub recv_cq: CqId,
    /// The shared receive queue to take receives from, if any.
    pub srq: Option<SrqId>,
    /// The XRC domain whose shared receive queues may be named by requests (XRC target).
    pub xrc_domain: Option<XrcDomain>,
    /// The capacities.
    pub cap: QpCap,
    /// Whether every send is signalled.
    pub sq_sig_all: bool,
    /// A well-known number, 0 (subnet management) or 1 (general services). It addresses this queue
    /// pair in addition to the queue pair's own number and is the source number of its datagrams
    /// (UD). Packets for a well-known number are accepted in any partition, so the caller must
    /// check the partition. For 0, any queue key is accepted.
    ///
    /// # References
    /// IBTA 3.9.1, 10.2.4 (queue keys), 10.9 (partitioning)
    pub well_known: Option<u32>,
    /// The source number in the queue pair's datagrams, 24 bits, if it differs from the queue
    /// pair's number. The queue pair receives no packets for this source number.
    pub deth_source: Option<u32>,
    /// The limits for completions carrying the bytes of a message.
    pub inline_completion: InlineCompletion,
}

impl QpInit {
    /// Returns parameters with no capacities and no options.
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

/// The largest number of bytes carried by a completion, through
/// [`Sink::complete_with_data`](super::Sink::complete_with_data). These bytes are not written to
/// the elements of the work request, whose keys are then not checked. With 0, completions carry no
/// bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InlineCompletion {
    /// The limit for a signalled read or atomic whose response is one packet.
    pub requester: u32,
    /// The limit for a single-packet send (not a datagram).
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
    /// The partition key of sent packets.
    pub pkey: u16,
    /// The queue key (UD).
    pub qkey: u32,
    /// The peer's access rights.
    pub access: Access,
    /// The first sequence number sent by this side.
    pub sq_psn: u32,
    /// The first sequence number expected by this side.
    pub rq_psn: u32,
    /// The acknowledgement time-out, a 5-bit code: *T* = 4.096 µs × 2ᵗⁱᵐᵉᵒᵘᵗ, at least 1 ms; 0
    /// waits indefinitely.
    ///
    /// The timer starts with the first packet in flight and restarts with each progress. Without
    /// progress, the requester retries after *T*, again after 2 *T*, and from then on every 4 *T*:
    /// IBTA 9.7.6.1.3 lets a timer of this code end between *T* and 4 *T*. A silent peer is given
    /// up after *T* with [`retry_cnt`](Self::retry_cnt) 0, 3 *T* with 1, and (4 × `retry_cnt` − 1)
    /// *T* with more: 27 *T*, or 1.8 s, with code 14 and 7 retries.
    pub timeout: u8,
    /// The number of retries without progress before the queue pair fails, 0 to 7.
    pub retry_cnt: u8,
    /// The number of retries after RNR NAKs without progress, 0 to 6; 7 means no limit.
    pub rnr_retry: u8,
    /// The delay requested by this responder's RNR NAKs, a 5-bit code.
    pub min_rnr_timer: u8,
    /// The maximum number of outstanding reads, atomics, flushes and atomic writes as requester.
    pub max_rd_atomic: u8,
    /// The maximum number of outstanding reads, atomics, flushes and atomic writes as responder.
    pub max_dest_rd_atomic: u8,
    /// Whether to raise [`Event::SqDrained`].
    pub sq_drained_event: bool,
}

/// Changes to attributes and state. `None` leaves a value unchanged.
///
/// The caller must check which attributes a transition requires and allows. The engine rejects only
/// nonexistent transitions.
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

/// The attributes of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryAttr {
    /// The protection domain.
    pub pd: Pd,
    /// The first address, as used in work requests.
    pub iova: u64,
    /// The length in bytes.
    pub length: u64,
    /// The rights.
    pub access: Access,
}

/// The type of a memory window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MwType {
    /// Bound by a verb, for every queue pair of the domain.
    One,
    /// Bound by a work request, for its queue pair only.
    Two,
}

/// A piece of registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// The address, in the region's address space.
    pub addr: u64,
    /// The length in bytes.
    pub length: u32,
    /// The region's local key.
    pub lkey: u32,
}

/// Options of a send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendFlags {
    /// Whether the send generates a completion even on success.
    pub signaled: bool,
    /// Whether the send raises a solicited event at the peer.
    pub solicited: bool,
    /// Whether the send waits for earlier reads and atomics.
    pub fence: bool,
}

/// The destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdDestination {
    /// The path.
    pub path: Path,
    /// The destination queue pair; 0xffffff for multicast.
    pub qpn: u32,
    /// The queue key. If its top bit is set, the queue key of the sending queue pair applies.
    pub qkey: u32,
}

/// The operation of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum SendOp {
    /// Sends into a receive of the peer. The receive's completion carries `imm`.
    Send { imm: Option<u32> },
    /// Sends as `Send` does and invalidates a key of the peer.
    SendInvalidate { rkey: u32 },
    /// Sends a datagram.
    Datagram { to: UdDestination, imm: Option<u32> },
    /// Writes to the peer's memory. With `imm`, also consumes a receive of the peer.
    Write { addr: u64, rkey: u32, imm: Option<u32> },
    /// Reads from the peer's memory.
    Read { addr: u64, rkey: u32 },
    /// Compares and swaps 8 bytes.
    CompareSwap { addr: u64, rkey: u32, compare: u64, swap: u64 },
    /// Adds to 8 bytes and fetches the previous value.
    FetchAdd { addr: u64, rkey: u32, add: u64 },
    /// Binds a window (by its key) to `length` bytes at `addr` of the region `lkey`. `new_rkey`
    /// sets the low 8 bits of the window's key; its upper bits are ignored.
    Bind { window: u32, new_rkey: u32, lkey: u32, addr: u64, length: u64, access: Access },
    /// Invalidates a key of this side.
    LocalInvalidate { rkey: u32 },
    /// Makes earlier writes to the peer's memory visible or persistent there.
    /// [`sel`](feth::Repr::sel) selects the range: `length` bytes at `addr` or the whole region. No
    /// local bytes are used.
    Flush { addr: u64, rkey: u32, length: u32, feth: feth::Repr },
    /// Atomically stores 8 bytes in the peer's memory. No local bytes are used.
    AtomicWrite { addr: u64, rkey: u32, data: [u8; 8] },
    /// Fails with `status` when it becomes the oldest send. Posters use this for errors to be
    /// reported by a completion. No local bytes are used.
    Faulty { status: Status, opcode: Opcode },
}

/// The local bytes of a send.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Payload<'a> {
    /// Registered memory: the source of bytes or the target of reads and atomics.
    Sges(&'a [Sge]),
    /// Bytes copied when the send is posted.
    Inline(&'a [u8]),
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// The identifier in the completion.
    pub wr_id: u64,
    /// The operation.
    pub op: SendOp,
    /// The options.
    pub flags: SendFlags,
    /// The local bytes.
    pub payload: Payload<'a>,
    /// The peer's shared receive queue (XRC initiator); ignored for other services.
    pub remote_srq: u32,
}

/// A receive work request.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// The identifier in the completion.
    pub wr_id: u64,
    /// The memory for a message, filled in order.
    pub sges: &'a [Sge],
}

/// The status of a completion, with the values of `ibv_wc_status`.
///
/// # References
/// IBTA 11.6.2
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs)]
#[non_exhaustive]
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

/// The operation of a completion, with the values of `ibv_wc_opcode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum Opcode {
    Send = 0,
    Write = 1,
    Read = 2,
    CompareSwap = 3,
    FetchAdd = 4,
    Bind = 5,
    LocalInvalidate = 6,
    Flush = 8,
    AtomicWrite = 9,
    Recv = 128,
    RecvWriteImm = 129,
}

/// The completion of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The identifier of the work request.
    pub wr_id: u64,
    /// The status.
    pub status: Status,
    /// The operation.
    pub opcode: Opcode,
    /// The local queue pair.
    pub qpn: Qpn,
    /// The number of bytes received (receives, reads, atomics; including a GRH) or sent.
    pub byte_len: u32,
    /// Immediate data.
    pub imm: Option<u32>,
    /// The key invalidated by the peer.
    pub invalidated: Option<u32>,
    /// The sender's queue pair (UD).
    pub src_qpn: u32,
    /// Whether the first 40 bytes of the receive hold a GRH or its substitute (UD). If not, these
    /// bytes are unchanged.
    pub grh: bool,
    /// Whether the sender requested a solicited event or the work request failed.
    pub solicited: bool,
    /// The service level (UD).
    pub sl: u8,
    /// The source's local id (InfiniBand).
    pub slid: u16,
    /// A vendor error, for diagnosis.
    pub vendor_err: u32,
}

/// An asynchronous event: anything except the end of a work request.
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

/// The number of datagrams dropped by an engine, by reason.
///
/// A multicast datagram counts once for each member that drops it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DroppedDatagrams {
    /// All dropped datagrams: the sum of the counts below.
    pub total: u64,
    /// No receive was posted.
    pub no_receive: u64,
    /// The receive was too short for the datagram plus the 40 bytes before it. It completed with
    /// [`Status::LocalLength`].
    pub too_short: u64,
    /// The queue key was not the queue pair's (Q_Key violation).
    pub wrong_qkey: u64,
    /// No queue pair has the destination number.
    pub unknown_qpn: u64,
    /// No queue pair has joined the destination group.
    pub not_member: u64,
    /// The caller had no space for a management datagram ([`Sink::mad`](super::Sink::mad)).
    pub mads_full: u64,
    /// The queue pair has another service or does not receive in its state, the partition key is
    /// invalid, the receive's memory cannot be written or the packet is malformed. A packet for the
    /// general services interface is malformed unless it is a single send of [`MAD_LEN`] bytes.
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
            DropReason::MadsFull => &mut self.mads_full,
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
    MadsFull,
    Other,
}

/// The kinds of packets to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Urgency {
    /// Requests, NAKs, read responses and results of atomics, which must be sent now.
    Now,
    /// All packets, including plain acknowledgements. Acknowledgements may wait until the caller is
    /// otherwise idle, but peers stall without them.
    All,
    /// Only acknowledgements and NAKs: the packets owed to peers before destroying their queue
    /// pairs.
    Owed,
}

/// A written packet, with the information needed to send it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Transmit {
    /// The length of the packet in its [`Space`](super::Space), from BTH to pad. The caller appends
    /// the ICRC.
    pub len: usize,
    /// The path to the packet's destination.
    pub path: Path,
    /// The sending queue pair, which selects the UDP source port; [`GSI_QPN`] for a management
    /// datagram.
    pub qpn: Qpn,
}

/// The origin of a received packet.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arrival {
    /// The header before the packet's transport headers.
    pub network: Network,
    /// The source address.
    pub remote: Gid,
    /// The destination address: this engine's or a multicast group's.
    pub local: Gid,
    /// The UDP source port. `None` if the packet was not sent by UDP: it comes from a program that
    /// the caller trusts, and strict ports do not apply to it.
    pub src_port: Option<u16>,
    /// Traffic class.
    pub traffic_class: u8,
    /// The hop limit on arrival; 0 if unknown.
    pub hop_limit: u8,
    /// The flow label; 0 if unknown.
    pub flow_label: u32,
    /// Service level.
    pub sl: u8,
    /// Source local id (InfiniBand).
    pub slid: u16,
    /// Destination local id (InfiniBand).
    pub dlid: u16,
    /// Whether the packet was sent on a path with [`Path::on_link`].
    pub on_link: bool,
}
