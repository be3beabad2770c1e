//! Shared memory that carries packets between processes of this machine, in place of UDP.
//!
//! | module | content |
//! |---|---|
//! | [`links`] | the peers of a device, used with its lock held |
//! | [`peers`] | the rendezvous: finds devices of this machine and exchanges descriptors |
//! | [`place`] | the names of listening devices: abstract names, or files in a folder |
//! | [`ring`] | **start here**: both ends of a ring, which carry packets |
//! | [`sleep`] | a page that shows whether the threads of a device sleep |
//! | [`segment`] | memory files and their mappings: the only unsafe code here |
//!
//! Each process of a link creates one [`OwnSegment`], sends its descriptor to the other process
//! over a Unix socket (`SCM_RIGHTS`), and maps the received segment as a [`PeerSegment`]. A packet
//! travels in the sender's segment. The receiver's progress travels back in the receiver's segment.
//!
//! [`OwnSegment`]: segment::OwnSegment
//! [`PeerSegment`]: segment::PeerSegment
//!
//! ```text
//!            process A                                     process B
//!   Producer ── packets ───► ┌─────────────┐ ── packets ───► Consumer
//!            ── waits ─────► │ A's segment │ ── waits ─────►
//!   Consumer ── consumed ──► └─────────────┘ ── consumed ──► Producer
//!
//!   Consumer ◄── packets ─── ┌─────────────┐ ◄── packets ─── Producer
//!            ◄── waits ───── │ B's segment │ ◄── waits ─────
//!   Producer ◄── consumed ── └─────────────┘ ◄── consumed ── Consumer
//! ```
//!
//! # Layout of a segment
//! A segment is 2 MiB long. Its first 64 KiB always have pages. Integers are in the processor's
//! byte order.
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 8 | a number for the layout and its version |
//! | 128 | 8 | `consumed`: bytes of the peer's ring that the owner has consumed |
//! | 256 | 8 | `waits`: 1 while the owner's producer wants a doorbell, otherwise 0 |
//! | 4096 | 61,440 | the window of the ring: packets from the owner to the peer |
//! | 65,536 | 2,031,616 | the other part of the ring, which gets memory for a stream |
//!
//! The ring consists of lines of 64 bytes. A record starts with a line and occupies whole lines:
//!
//! ```text
//!   0        8              20                              20 + len
//!   ┌────────┬──────────────┬────────────────────────────────┬─────────────┐
//!   │ header │    unused    │ packet, from its BTH on        │ unused      │
//!   └────────┴──────────────┴────────────────────────────────┴─────────────┘
//!    bits 0 to 31: len      │ 12: the payload behind a BTH   │ 64-byte boundary
//!    bits 32 to 39: traffic class    starts at byte 32
//!    bits 40 to 47: hop limit; bit 48: the queue pair has long packets
//!    bit 49: the record ends its lap; bits 50 to 63: 0
//! ```
//!
//! The first record is at offset 0 of the ring. The next record follows, or is at offset 0 again if
//! the previous record ends its lap. The longest record fits at each of these offsets, so no record
//! wraps. Positions count the bytes of records since the start. The producer alone decides where a
//! lap ends ([`ring`]): in the window, or in a stream behind it, up to the end of the ring.
//!
//! # Memory
//! A ring grows to its whole length once, when its packets become a stream, and never shrinks. At
//! most 16 rings of a device grow, to 32 MiB in total. The owner allocates the memory with one
//! system call. If this fails because memory is short, the ring keeps its window. Before a consumer
//! reads behind the window, it checks with another system call that all pages are allocated. A read
//! of a missing page would allocate it, or raise SIGBUS. The consumer keeps the descriptor of the
//! peer's segment until this check.
//!
//! # Protocol
//! A header of 0 is an unpublished record. The producer writes a packet, then 0 to the header of
//! the *following* record, and finally the header of this record. The consumer therefore polls one
//! word, in the same cache line as a short packet. The two ends share no tail index.
//!
//! The producer needs free memory for a longest record and 2048 bytes behind it. The 2048 bytes are
//! for acknowledgements that a process owes before it ends, and for the header behind a record. The
//! producer reads `consumed` only if the last value read shows too little, and at the end of each
//! window. The consumer stores `consumed` each time it has consumed another quarter of the window.
//! This suffices: when the ring is empty, the part consumed but not yet stored is less than a
//! quarter. The other three quarters are more than the producer needs.
//!
//! A producer without space may poll [`has_room`](ring::Producer::has_room), or set `waits` with
//! [`request_room`](ring::Producer::request_room) and sleep. Then
//! [`advance`](ring::Consumer::advance) reports to the consumer that a doorbell is wanted. At this
//! time, more than a quarter of the window is still unconsumed. The consumer therefore stores
//! `consumed` at least once more and then sends the doorbell.
//!
//! # Memory order
//! | end | steps in this order |
//! |---|---|
//! | producer | stores packet and next header, **releases**, stores header |
//! | consumer | loads header, **acquires**, reads packet and next header |
//!
//! The consumer sees the whole packet. It never mistakes old packet bytes for the next header.
//!
//! | end | steps in this order |
//! |---|---|
//! | consumer | reads packet, **releases**, stores `consumed` |
//! | producer | loads `consumed`, **acquires**, writes another packet there |
//!
//! The producer overwrites only bytes that the consumer has read.
//!
//! | end | steps in this order |
//! |---|---|
//! | producer | stores `waits`, **fence**, loads `consumed` |
//! | consumer | stores `consumed`, **fence**, loads `waits` |
//!
//! Both fences are sequentially consistent, so one comes first: either the producer sees the free
//! space, or the consumer sees `waits`. The fences of [`sleep`] work in the same way.
//!
//! The model checker tries the interleavings of each table (`models` in [`ring`] and [`sleep`]).
//! Loads of the peer's memory acquire by a relaxed load and a fence, because Rust guarantees only
//! relaxed loads for read-only memory.
//!
//! # Trust
//! Only the owner can write a segment. It is sealed once the owner has mapped it: the receiver of
//! the descriptor can map it for reading only, and no process can resize it or remove pages. A peer
//! therefore cannot change a packet that this process writes, and cannot cause a SIGBUS.
//!
//! The peer may change its own segment at any time, to any value. Hence it is read only as relaxed
//! atomic words, copied once and then checked. After an invalid header, a record outside the ring
//! or its memory, or an invalid `consumed`, a call returns [`Broken`](ring::Broken); the caller
//! then closes the link. No value makes a call loop, wait or panic. Packet bytes may change until
//! they are copied, so a caller copies headers first and parses the copy. If a peer stores a wrong
//! `consumed` that is in range, packets to this peer are lost.
//!
//! # Fork
//! A child inherits the mappings. It could write the parent's segment, but its device is marked as
//! forked and makes no calls (`device/fork.rs`). Forks copy both mappings: a segment dropped in the
//! child then unmaps the child's own copy. With `MADV_DONTFORK`, the child could have a later
//! mapping at this address, which the drop would unmap.
//!
//! # References
//! `memfd_create(2)`, `fcntl(2)` (file sealing), `unix(7)` (`SCM_RIGHTS`)

pub(crate) mod links;
pub(crate) mod peers;
pub(crate) mod place;
pub(crate) mod ring;
pub(crate) mod segment;
pub(crate) mod sleep;
