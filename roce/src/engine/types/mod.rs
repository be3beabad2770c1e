//! Value types: object numbers, attributes, work requests, completions. No type here owns an object
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

/// A protection domain, identified by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pd(pub u32);

/// A completion queue, identified by a number assigned by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CqId(pub u32);

/// A shared receive queue, identified by the 24-bit number that XRC requests carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SrqId(pub u32);

/// The memory range that a bound window makes accessible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WindowRange {
    /// The window's key.
    pub rkey: u32,
    /// The address of the window's first byte, as used in peers' requests.
    pub iova: u64,
    /// The window's length in bytes.
    pub length: u64,
    /// The local key of the region that the window is bound to.
    pub lkey: u32,
    /// The address of the window's first byte in the region's address space.
    pub addr: u64,
}

/// An access to memory whose pages are not present ([`Sink::postpone`](super::Sink::postpone)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stall {
    /// The source bytes of a send, a write or a datagram. The send queue stops.
    Send {
        /// The `wr_id` of the work request.
        wr_id: u64,
        /// The number of bytes already sent.
        done: u32,
    },
    /// The target of a read or atomic response. The send queue stops, and the request is sent again
    /// on resumption.
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
        /// The remote key in the request.
        rkey: u32,
        /// The first address that the packet accesses.
        addr: u64,
        /// The number of bytes from that address to the end of the message.
        left: u32,
        /// The number of bytes in the packet.
        packet: u32,
        /// Whether the access is a write.
        write: bool,
    },
    /// The source of a read response, which may have been sent in part. The responder stops sending
    /// responses.
    ReadResponse {
        /// The remote key in the read request.
        rkey: u32,
        /// The address of the first byte that the packet would carry.
        addr: u64,
        /// The number of bytes from that address to the end of the response.
        left: u32,
    },
}

/// An XRC domain, identified by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct XrcDomain(pub u32);

/// The configuration of an engine.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The maximum number of queue pairs.
    pub max_qp: u32,
    /// The maximum number of memory regions and windows, counted together.
    pub max_keys: u32,
    /// The maximum number of shared receive queues.
    pub max_srq: u32,
    /// The maximum number of protection domains.
    pub max_pd: u32,
    /// The maximum number of multicast groups that have members.
    pub max_groups: u32,
    /// The maximum number of members of one group.
    pub max_group_members: u32,
    /// The maximum number of unacknowledged request bytes, across all queue pairs. The receiver's
    /// socket or buffer must have space for all these bytes. A queue pair may always have one
    /// packet in flight. It may use at most three quarters of the window, so silent peers do not
    /// stall others.
    pub window_bytes: u32,
    /// The rate, in bytes per microsecond, of read responses and atomic results to one peer, beyond
    /// a burst of `window_bytes`. With 0, responses are sent as fast as the caller fetches packets.
    ///
    /// A request of a few bytes may ask for 2 GiB. The part of a response that exceeds the window
    /// or the rate waits until [`deadline`](super::Engine::deadline), while responses to other
    /// peers are sent. Each packet counts as its length from BTH to pad plus 768 bytes.
    pub response_rate: u32,
    /// The number of message bytes after which, at the latest, a packet requests an
    /// acknowledgement.
    pub ack_every: u32,
    /// The maximum number of consecutive packets from one queue pair while others have packets to
    /// send.
    pub burst: u32,
    /// The upper 8 bits of all queue pair numbers, for engines that share an address. The other 16
    /// bits are random. With 0, all 24 bits are random.
    pub qpn_prefix: u8,
    /// Whether a connected queue pair accepts only one UDP source port: the port of its peer's
    /// first accepted packet.
    ///
    /// A packet is accepted if it advances the queue pair: the expected request or the response to
    /// an outstanding request. An unreliable queue pair expects no sequence number and accepts any
    /// packet that places data or takes a receive. Packets from other ports are dropped and counted
    /// ([`Engine::unexpected_ports`](super::Engine::unexpected_ports)). Setting the path or
    /// resetting the queue pair clears the port. Datagram queue pairs have no peer and accept all
    /// ports. Packets without a port ([`Arrival::src_port`]) are accepted and leave the stored port
    /// unchanged.
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
    /// The initial state. Work requests are rejected and packets are dropped.
    Reset,
    /// Receives may be posted.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send.
    Rts,
    /// The send queue is draining or has drained.
    Sqd,
    /// The send queue has failed, but receives continue (UC, UD).
    Sqe,
    /// The queue pair has failed. All work requests are flushed.
    Err,
}

/// Access rights, with the bits of `ibv_access_flags`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Access(pub u32);

impl Access {
    /// No rights except local reads.
    pub const NONE: Self = Self(0);
    /// The owner may write to the region: receives, read data, results of atomics.
    pub const LOCAL_WRITE: Self = Self(1);
    /// Peers may write to the memory.
    pub const REMOTE_WRITE: Self = Self(1 << 1);
    /// Peers may read the memory.
    pub const REMOTE_READ: Self = Self(1 << 2);
    /// Peers may execute atomics on the memory.
    pub const REMOTE_ATOMIC: Self = Self(1 << 3);
    /// Windows may be bound to the region.
    pub const MW_BIND: Self = Self(1 << 4);
    /// Addresses in requests start at 0.
    pub const ZERO_BASED: Self = Self(1 << 5);
    /// Peers may flush data to global visibility.
    pub const FLUSH_GLOBAL: Self = Self(1 << 8);
    /// Peers may flush data to persistence.
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
    /// A GRH (InfiniBand), for multicast and for peers in other subnets. GIDs identify peers.
    Grh,
    /// No GRH (InfiniBand). Local ids identify peers in the subnet.
    Local,
}

/// The path to a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Path {
    /// The header before the transport headers. If this header has no GIDs, the local ids identify
    /// the peer.
    pub network: Network,
    /// The GID from which packets are sent.
    pub local: Gid,
    /// The GID to which packets are sent.
    pub remote: Gid,
    /// The traffic class (IPv6) or TOS byte (IPv4), which contains the DSCP.
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
    /// Whether the peer is on this machine and can tell so from the queue pair's packets: see
    /// [`Arrival::on_link`]. If so, packets carry up to [`LINK_MTU`](crate::wire::packet::LINK_MTU)
    /// bytes, and the path MTU limits only datagrams. Constant while a queue pair is connected.
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
    /// The maximum number of bytes of inline data per send.
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
    /// The shared receive queue from which receives are taken, if any.
    pub srq: Option<SrqId>,
    /// The XRC domain whose shared receive queues requests may name (XRC target).
    pub xrc_domain: Option<XrcDomain>,
    /// The maximum numbers of outstanding requests, elements and inline bytes.
    pub cap: QpCap,
    /// Whether every send generates a completion.
    pub sq_sig_all: bool,
    /// A well-known queue pair number, 0 (subnet management) or 1 (general services). It addresses
    /// this queue pair in addition to the queue pair's own number and is the source number of its
    /// datagrams (UD). Packets for a well-known number are accepted in any partition, so the caller
    /// must check the partition. Packets for number 0 are accepted with any queue key.
    ///
    /// # References
    /// IBTA 3.9.1, 10.2.4 (queue keys), 10.9 (partitioning)
    pub well_known: Option<u32>,
    /// The source number in the queue pair's datagrams, 24 bits, if it differs from the queue
    /// pair's number. The queue pair receives no packets for this source number.
    pub deth_source: Option<u32>,
    /// The maximum numbers of message bytes that completions carry.
    pub inline_completion: InlineCompletion,
}

impl QpInit {
    /// Returns parameters with zero capacities and no optional settings.
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

/// The maximum numbers of bytes that completions carry, through
/// [`Sink::complete_with_data`](super::Sink::complete_with_data). These bytes are not written to
/// the elements of the work request, and the elements' keys are not checked. With 0, completions
/// carry no bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InlineCompletion {
    /// The limit for a signalled read or atomic with a single-packet response.
    pub requester: u32,
    /// The limit for the receive of a single-packet send (not a datagram).
    pub responder: u32,
}

/// The attributes of a queue pair.
///
/// # References
/// IBTA 11.2.5.2
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attr {
    /// The path to the peer; connected services only.
    pub path: Path,
    /// The number of the peer's queue pair, 24 bits.
    pub dest_qpn: u32,
    /// The path MTU, the largest payload of a packet, in bytes: 256 to 4096.
    pub path_mtu: u32,
    /// The partition key of sent packets.
    pub pkey: u16,
    /// The queue key that received datagrams must carry (UD).
    pub qkey: u32,
    /// The access rights of the peer.
    pub access: Access,
    /// The sequence number of the first packet that this side sends.
    pub sq_psn: u32,
    /// The sequence number of the first packet that this side expects.
    pub rq_psn: u32,
    /// The acknowledgement time-out, a 5-bit code: *T* = 4.096 µs × 2ᵗⁱᵐᵉᵒᵘᵗ, at least 1 ms. With
    /// code 0, the requester waits indefinitely.
    ///
    /// The timer starts with the first packet in flight and restarts on each progress. Without
    /// progress, the requester retries after *T*, again after 2 *T*, and from then on every 4 *T*:
    /// IBTA 9.7.6.1.3 lets a timer with this code expire between *T* and 4 *T*. If the peer is
    /// silent, the queue pair fails after *T* with [`retry_cnt`](Self::retry_cnt) 0, after 3 *T*
    /// with 1, and after (4 × `retry_cnt` − 1) *T* with more: 27 *T*, or 1.8 s, with code 14 and 7
    /// retries.
    pub timeout: u8,
    /// The number of retries without progress before the queue pair fails, 0 to 7.
    pub retry_cnt: u8,
    /// The number of retries after RNR NAKs without progress, 0 to 6; 7 means no limit.
    pub rnr_retry: u8,
    /// The delay that this responder's RNR NAKs request, a 5-bit code.
    pub min_rnr_timer: u8,
    /// The maximum number of outstanding reads, atomics, flushes and atomic writes that this side
    /// has requested.
    pub max_rd_atomic: u8,
    /// The maximum number of outstanding reads, atomics, flushes and atomic writes that the peer
    /// has requested.
    pub max_dest_rd_atomic: u8,
    /// Whether to raise [`Event::SqDrained`] once the send queue has drained.
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
    /// The protection domain of the registration.
    pub pd: Pd,
    /// The address of the first byte, as used in work requests.
    pub iova: u64,
    /// The length in bytes.
    pub length: u64,
    /// The access rights of the owner and the peers.
    pub access: Access,
}

/// The type of a memory window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MwType {
    /// A type 1 window: bound by a verb, for use by every queue pair of the protection domain.
    One,
    /// A type 2 window: bound by a work request, for use only by the queue pair that bound it.
    Two,
}

/// A scatter/gather element: a piece of registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// The address of the first byte, in the region's address space.
    pub addr: u64,
    /// The length in bytes.
    pub length: u32,
    /// The local key of the region.
    pub lkey: u32,
}

/// The options of a send work request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendFlags {
    /// Whether the request generates a completion even on success.
    pub signaled: bool,
    /// Whether the request raises a solicited event at the peer.
    pub solicited: bool,
    /// Whether the request waits for earlier reads and atomics to complete.
    pub fence: bool,
}

/// The destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdDestination {
    /// The path to the destination.
    pub path: Path,
    /// The number of the destination queue pair; 0xffffff for multicast.
    pub qpn: u32,
    /// The queue key. If its top bit is set, the sending queue pair's own queue key is sent
    /// instead.
    pub qkey: u32,
}

/// The operation of a send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum SendOp {
    /// Sends a message into one of the peer's receives, whose completion carries `imm`.
    Send { imm: Option<u32> },
    /// Sends a message as `Send` does and invalidates a memory key of the peer.
    SendInvalidate { rkey: u32 },
    /// Sends a datagram to the destination `to`.
    Datagram { to: UdDestination, imm: Option<u32> },
    /// Writes to the peer's memory. With `imm`, also consumes one of the peer's receives.
    Write { addr: u64, rkey: u32, imm: Option<u32> },
    /// Reads from the peer's memory.
    Read { addr: u64, rkey: u32 },
    /// Replaces 8 bytes of the peer's memory with `swap` if they equal `compare`.
    CompareSwap { addr: u64, rkey: u32, compare: u64, swap: u64 },
    /// Adds `add` to 8 bytes of the peer's memory and fetches their previous value.
    FetchAdd { addr: u64, rkey: u32, add: u64 },
    /// Binds a memory window, named by its key, to `length` bytes at `addr` of the region `lkey`.
    /// `new_rkey` sets the low 8 bits of the window's key; its upper bits are ignored.
    Bind { window: u32, new_rkey: u32, lkey: u32, addr: u64, length: u64, access: Access },
    /// Invalidates a local memory key.
    LocalInvalidate { rkey: u32 },
    /// Makes earlier writes to the peer's memory visible or persistent there.
    /// [`sel`](feth::Repr::sel) selects the range: `length` bytes at `addr` or the whole region.
    /// Uses no local memory.
    Flush { addr: u64, rkey: u32, length: u32, feth: feth::Repr },
    /// Atomically stores 8 bytes in the peer's memory. Uses no local memory.
    AtomicWrite { addr: u64, rkey: u32, data: [u8; 8] },
    /// Fails with `status` once it is the oldest send. Callers post it in place of an invalid send
    /// to report the error in a completion. Uses no local memory.
    Faulty { status: Status, opcode: Opcode },
}

/// The local memory of a send: its source or target.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Payload<'a> {
    /// Registered memory: the source of sends and writes, or the target of reads and atomics.
    Sges(&'a [Sge]),
    /// Inline data, copied when the send is posted.
    Inline(&'a [u8]),
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// The caller's identifier, reported in the completion.
    pub wr_id: u64,
    /// The operation and its parameters.
    pub op: SendOp,
    /// The options of the request.
    pub flags: SendFlags,
    /// The local memory that the operation reads or writes.
    pub payload: Payload<'a>,
    /// The number of the peer's shared receive queue (XRC initiator); other services ignore it.
    pub remote_srq: u32,
}

/// A receive work request.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// The caller's identifier, reported in the completion.
    pub wr_id: u64,
    /// The memory for a message. The elements are filled in order.
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
    /// The `wr_id` of the work request.
    pub wr_id: u64,
    /// Whether the work request succeeded, or the reason why it failed.
    pub status: Status,
    /// The kind of operation that completed.
    pub opcode: Opcode,
    /// The number of the local queue pair.
    pub qpn: Qpn,
    /// The number of bytes received (receives, reads, atomics) or sent. A GRH counts as received.
    pub byte_len: u32,
    /// Immediate data from the peer, if any.
    pub imm: Option<u32>,
    /// The key that the peer's send invalidated, if any.
    pub invalidated: Option<u32>,
    /// The number of the sender's queue pair (UD).
    pub src_qpn: u32,
    /// Whether the first 40 bytes of the receive hold a GRH or its substitute (UD). If not, these
    /// bytes are unchanged.
    pub grh: bool,
    /// Whether the sender requested a solicited event or the work request failed.
    pub solicited: bool,
    /// The service level of the received packet (UD).
    pub sl: u8,
    /// The source's local id (InfiniBand).
    pub slid: u16,
    /// A vendor-specific error code, for diagnosis.
    pub vendor_err: u32,
}

/// An asynchronous event: anything the engine reports except the completion of a work request.
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
    /// The total number of dropped datagrams: the sum of the counts below.
    pub total: u64,
    /// Datagrams for which no receive was posted.
    pub no_receive: u64,
    /// Datagrams too long for their receive's memory, which must also hold 40 bytes for a GRH. The
    /// receive completed with [`Status::LocalLength`].
    pub too_short: u64,
    /// Datagrams whose queue key differed from the queue pair's (Q_Key violation).
    pub wrong_qkey: u64,
    /// Datagrams for a queue pair number that is not in use.
    pub unknown_qpn: u64,
    /// Datagrams for a multicast group that no queue pair has joined.
    pub not_member: u64,
    /// Management datagrams for which the caller had no space ([`Sink::mad`](super::Sink::mad)).
    pub mads_full: u64,
    /// Datagrams dropped for any other reason: the queue pair has another service or does not
    /// receive in its state, the partition key is invalid, the receive's memory cannot be written
    /// or the packet is malformed. A packet for the general services interface is malformed unless
    /// it is a single send of [`MAD_LEN`] bytes.
    pub other: u64,
}

impl DroppedDatagrams {
    /// Counts a dropped datagram.
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

/// The kinds of packets to send now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Urgency {
    /// Requests, NAKs, read responses and atomic results: packets that must not be delayed.
    Now,
    /// All packets, including plain acknowledgements. Acknowledgements may wait until the caller is
    /// otherwise idle, but peers stall without them.
    All,
    /// Only acknowledgements and NAKs: the packets to send to peers before their queue pairs are
    /// destroyed.
    Owed,
}

/// A written packet, with the information needed to send it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Transmit {
    /// The length, in bytes, of the packet in its [`Space`](super::Space), from BTH to pad. The
    /// caller appends the ICRC.
    pub len: usize,
    /// The path to the packet's destination.
    pub path: Path,
    /// The number of the sending queue pair, which selects the UDP source port; [`GSI_QPN`] for a
    /// management datagram.
    pub qpn: Qpn,
}

/// The origin of a received packet and the fields of its outer headers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arrival {
    /// The header before the packet's transport headers.
    pub network: Network,
    /// The source GID of the packet.
    pub remote: Gid,
    /// The destination GID of the packet: this engine's or a multicast group's.
    pub local: Gid,
    /// The UDP source port. `None` if the packet did not arrive over UDP; the caller must trust its
    /// sender, because strict ports do not apply to it.
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
