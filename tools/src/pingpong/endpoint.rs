//! [`Message`]: the single buffer of all messages, with raw posting. [`Endpoint`]: the queue pairs
//! that exchange them.
//!
//! As in C, all posted receives and the send use the same bytes. The program measures time, and
//! `--chk` checks that the received bytes match the sent ones. Safe posting would need a buffer for
//! each request, so this module posts raw requests.
//!
//! # Safety
//! - The buffer is mapped once and never unmapped, so the device cannot reach freed memory, even if
//!   a queue pair cannot be destroyed or is dropped with posted receives.
//! - No reference to the buffer exists once the device knows its address. This module keeps only a
//!   bare pointer. `--chk` and `--verify` access the bytes one by one, volatile, so a peer that
//!   writes at the wrong time corrupts only the message.
//! - If the message is in device memory, the addresses in its elements are offsets in that memory,
//!   not addresses of this process. Such a message is never posted inline, which would read this
//!   process's memory.
//! - Sends and receives overlap on purpose: the device may write a message while it still reads the
//!   previous one from the same bytes. Only the device makes both accesses, which at worst corrupt
//!   the message.
//! - The top bit of every work request's `wr_id` is clear.

#![allow(unsafe_code)]

use std::io;

use memmap2::MmapMut;
use verbs::state::{CanPostRecv, Init, Rts, State};
use verbs::{
    AccessFlags, Advice, AdviseFlags, Ah, Dm, Error, Mr, Pd, PostError, Qp, RecvWr, Result, RtrAttr, RtsAttr,
    SendFlags, SendOp, SendWr, Sge, Srq, UdAddr,
};

/// The `wr_id` of receives, as in C. It is printed if a request fails.
pub const RECV_WRID: u64 = 1;

/// The `wr_id` of sends.
pub const SEND_WRID: u64 = 2;

/// The queue key of datagrams, as in C.
pub const QKEY: u32 = 0x1111_1111;

/// Memory for one message and, before it, the header of a received message. The memory is never
/// unmapped. Offsets count from the start of the message.
#[derive(Debug)]
pub struct Buffer {
    /// The first byte of the header.
    start: *mut u8,
    header: usize,
    /// The length of the message, in bytes.
    len: usize,
}

impl Buffer {
    /// Maps page-aligned memory, filled with `byte`, for a header and a message with these lengths.
    ///
    /// # Errors
    /// Any error from `mmap(2)`; notably `ENOMEM`.
    pub fn map(header: usize, len: usize, byte: u8) -> io::Result<Self> {
        let mut map = MmapMut::map_anon(header + len)?;
        if byte != 0 {
            map.fill(byte);
        }
        let start = map.as_mut_ptr();
        std::mem::forget(map);
        Ok(Self { start, header, len })
    }

    /// Registers the buffer.
    ///
    /// # Errors
    /// Any error from [`Pd::reg_mr`]; notably `ENOMEM` beyond the limit on locked memory.
    pub fn register(&self, pd: &Pd, access: AccessFlags) -> Result<Mr> {
        // SAFETY: the bytes stay mapped forever, and no references to them exist.
        unsafe { pd.reg_mr(self.start, self.header + self.len, access) }
    }

    /// Reads a byte that the device may be writing.
    ///
    /// # Panics
    /// Panics if `at` is outside the buffer.
    pub fn read(&self, at: usize) -> u8 {
        assert!(at < self.len, "{at} is outside of {} bytes", self.len);
        // SAFETY: the byte is inside the buffer, after the header, and stays mapped.
        unsafe { self.start.add(self.header + at).read_volatile() }
    }

    /// Writes a byte that the device may be reading.
    ///
    /// # Panics
    /// Panics if `at` is outside the buffer.
    pub fn write(&mut self, at: usize, byte: u8) {
        assert!(at < self.len, "{at} is outside of {} bytes", self.len);
        // SAFETY: the byte is inside the buffer, after the header, and stays mapped.
        unsafe { self.start.add(self.header + at).write_volatile(byte) }
    }

    /// Copies the header, which the device may be writing.
    pub fn header(&self) -> Vec<u8> {
        // SAFETY: the byte is inside the header and stays mapped.
        (0..self.header).map(|at| unsafe { self.start.add(at).read_volatile() }).collect()
    }

    /// Fills the buffer with the pattern for a message number.
    pub fn fill(&mut self, message: u32) {
        for at in 0..self.len {
            self.write(at, pattern(message, at));
        }
    }

    /// Returns the index and the value of the first byte that does not match this message.
    pub fn first_wrong(&self, message: u32) -> Option<(usize, u8)> {
        (0..self.len).map(|at| (at, self.read(at))).find(|(at, byte)| *byte != pattern(message, *at))
    }

    /// Returns the index of each page's first byte.
    pub fn pages(&self, page_size: usize) -> impl Iterator<Item = usize> + use<> {
        (0..self.len).step_by(page_size)
    }
}

/// Registers all present and future memory of this process for implicit on-demand paging.
///
/// # Errors
/// Any error from [`Pd::reg_mr`].
pub fn register_everything(pd: &Pd, access: AccessFlags) -> Result<Mr> {
    debug_assert!(!access.is_remote());
    // SAFETY: the region has no remote rights, so the device reaches only the memory that this
    // program's own work requests name: the buffer of an `Endpoint`, which stays mapped forever.
    unsafe { pd.reg_mr(std::ptr::null_mut(), usize::MAX, access) }
}

/// The registered buffer of all messages, and how they are posted. If the message is in device
/// memory, the buffer is only the program's copy.
#[derive(Debug)]
pub struct Message {
    buffer: Buffer,
    mr: Mr,
    /// The device memory that the region covers in place of the buffer.
    dm: Option<Dm>,
    /// The receive element: the header and the message.
    recv: Sge,
    /// The send element: the message.
    send: Sge,
}

/// The destination of a message.
#[derive(Clone, Copy, Debug)]
pub enum To<'a> {
    /// The queue pair's peer.
    Peer,
    /// A datagram queue pair: the address handle and the queue pair number.
    Datagram(&'a Ah, u32),
    /// A datagram queue pair with its queue key, plus 32 bits of immediate data.
    WithImm(UdAddr<'a>, u32),
    /// The shared receive queue with this number, in the XRC domain of the queue pair's peer.
    Srq(u32),
}

impl Message {
    /// Combines a buffer with its region.
    pub fn new(buffer: Buffer, mr: Mr) -> Self {
        let (length, header) = (buffer.len as u32, buffer.header as u32);
        let addr = buffer.start.expose_provenance() as u64;
        let recv = Sge { addr, length: header + length, lkey: mr.lkey() };
        let send = Sge { addr: addr + u64::from(header), length, lkey: mr.lkey() };
        Self { buffer, mr, dm: None, recv, send }
    }

    /// Combines a buffer without a header, device memory of the same length, and the region that
    /// covers all of the device memory.
    pub fn in_device_memory(buffer: Buffer, mr: Mr, dm: Dm) -> Self {
        debug_assert_eq!(buffer.header, 0);
        let element = Sge { addr: 0, length: buffer.len as u32, lkey: mr.lkey() };
        Self { buffer, mr, dm: Some(dm), recv: element, send: element }
    }

    /// Advises the device to prefetch the message's pages for writing.
    ///
    /// # Errors
    /// Any error from [`Pd::advise_mr`]; notably `EOPNOTSUPP` if the device lacks support.
    pub fn prefetch(&self, pd: &Pd) -> Result<()> {
        pd.advise_mr(Advice::PREFETCH_WRITE, AdviseFlags::FLUSH, &[self.send])
    }

    /// Returns the buffer.
    pub fn buffer(&mut self) -> &mut Buffer {
        &mut self.buffer
    }

    /// Copies the buffer to the device memory, if there is any.
    ///
    /// # Errors
    /// Any error from [`Dm::copy_to`].
    pub fn copy_to_device(&self) -> Result<()> {
        let Some(dm) = &self.dm else { return Ok(()) };
        let bytes: Vec<u8> = (0..self.buffer.len).map(|at| self.buffer.read(at)).collect();
        dm.copy_to(0, &bytes)
    }

    /// Copies the device memory to the buffer, if there is any.
    ///
    /// # Errors
    /// Any error from [`Dm::copy_from`].
    pub fn copy_from_device(&mut self) -> Result<()> {
        let Some(dm) = &self.dm else { return Ok(()) };
        let mut bytes = vec![0; self.buffer.len];
        dm.copy_from(0, &mut bytes)?;
        (0..).zip(bytes).for_each(|(at, byte)| self.buffer.write(at, byte));
        Ok(())
    }

    /// Returns the region and the device memory, if any, for the caller to close.
    pub fn into_parts(self) -> (Mr, Option<Dm>) {
        (self.mr, self.dm)
    }

    /// Posts up to `count` receives. Returns the number of accepted receives and the error that
    /// stopped the posting, if any.
    pub fn post_recv<S: CanPostRecv>(&self, qp: &mut Qp<S>, count: u32) -> (u32, Option<PostError>) {
        // SAFETY: the element of each request covers device memory, or the buffer, which stays
        // mapped forever and is never borrowed. The top bit of its `wr_id` is clear.
        self.post_batches(count, |wrs| unsafe { qp.post_recv(wrs) })
    }

    /// Like [`post_recv`](Self::post_recv), but posts to a shared receive queue.
    pub fn post_srq_recv(&self, srq: &mut Srq, count: u32) -> (u32, Option<PostError>) {
        // SAFETY: the element of each request covers device memory, or the buffer, which stays
        // mapped forever and is never borrowed. The top bit of its `wr_id` is clear.
        self.post_batches(count, |wrs| unsafe { srq.post_recv(wrs) })
    }

    /// Passes receives to `post` in batches. Each has an element that covers the buffer and a
    /// `wr_id` whose top bit is clear.
    fn post_batches(
        &self,
        count: u32,
        mut post: impl FnMut(&[RecvWr<'_>]) -> Result<(), PostError>,
    ) -> (u32, Option<PostError>) {
        let wrs = [RecvWr { wr_id: RECV_WRID, sge: std::slice::from_ref(&self.recv) }; BATCH];
        let mut posted = 0;
        while posted < count {
            let batch = &wrs[..BATCH.min((count - posted) as usize)];
            match post(batch) {
                Ok(()) => posted += batch.len() as u32,
                Err(error) => return (posted + error.accepted as u32, Some(error)),
            }
        }
        (posted, None)
    }

    /// Posts a send of the message.
    ///
    /// # Errors
    /// Any error from the queue's `post_send`; notably that the queue is full.
    #[inline]
    pub fn post_send(
        &self,
        qp: &mut Qp<Rts>,
        to: To<'_>,
        wr_id: u32,
        flags: SendFlags,
    ) -> Result<(), PostError> {
        let op = match to {
            To::Peer => SendOp::Send,
            To::Datagram(ah, remote_qpn) => SendOp::UdSend { to: ah.to(remote_qpn, QKEY) },
            To::WithImm(to, imm_data) => SendOp::UdSendWithImm { to, imm_data },
            To::Srq(remote_srqn) => SendOp::Xrc { remote_srqn, op: &SendOp::Send },
        };
        let flags = if self.dm.is_some() { flags.difference(SendFlags::INLINE) } else { flags };
        let wr = SendWr { wr_id: wr_id.into(), op, sge: std::slice::from_ref(&self.send), flags };
        // SAFETY: the element covers the buffer, which stays mapped forever and is never borrowed,
        // so it is readable memory of this process if the message is inline. Otherwise it covers
        // device memory, and the message is not inline. The `wr_id` has 32 bits, so its top bit is
        // clear.
        unsafe { qp.post_send(&[wr]) }
    }
}

/// The queue pairs, the message and, if there is one, the shared receive queue.
#[derive(Debug)]
pub struct Endpoint<S: State> {
    qps: Vec<Qp<S>>,
    srq: Option<Srq>,
    message: Message,
    flags: SendFlags,
    /// The destination of datagrams: the address handle and the peer's queue pair number.
    peer: Option<(Ah, u32)>,
}

/// The attributes for a queue pair's transitions to RTR and RTS.
pub type Steps = (RtrAttr, RtsAttr);

impl Endpoint<Init> {
    /// Combines queue pairs and a message. Without a shared receive queue there is one queue pair.
    pub fn new(qps: Vec<Qp<Init>>, srq: Option<Srq>, message: Message) -> Self {
        let inline = qps.iter().all(|qp| qp.cap().max_inline_data >= message.send.length);
        let flags = if inline { SendFlags::SIGNALED | SendFlags::INLINE } else { SendFlags::SIGNALED };
        Self { qps, srq, message, flags, peer: None }
    }

    /// Connects each queue pair to its peer. Datagrams also need [`address`](Endpoint::address).
    ///
    /// # Errors
    /// Fails if a transition to RTR or RTS fails. Returns the C program's message and the error
    /// from the modify verb.
    pub fn connect(self, steps: &[Steps]) -> Result<Endpoint<Rts>, (String, Error)> {
        let Self { qps, srq, message, flags, peer } = self;
        let connect = |(index, (qp, (rtr, rts))): (usize, (Qp<Init>, &Steps))| {
            let failed = |state: &str, error: Error| {
                let which = if srq.is_some() { format!("QP[{index}]") } else { "QP".to_owned() };
                (format!("Failed to modify {which} to {state}"), error)
            };
            let qp = qp.to_rtr(rtr).map_err(|refused| failed("RTR", refused.error))?;
            qp.to_rts(rts).map_err(|refused| failed("RTS", refused.error))
        };
        let qps = qps.into_iter().zip(steps).enumerate().map(connect).collect::<Result<_, _>>()?;
        Ok(Endpoint { qps, srq, message, flags, peer })
    }
}

impl<S: State> Endpoint<S> {
    /// Returns the number and the first PSN of each queue pair. The PSN is drawn from the
    /// system's random source.
    pub fn numbers(&self) -> impl Iterator<Item = (u32, u32)> {
        self.qps.iter().map(|qp| (qp.qp_num(), qp.psn()))
    }

    /// Returns the message.
    pub fn message(&mut self) -> &mut Message {
        &mut self.message
    }

    /// Returns the queue pairs, the shared receive queue, the message and the address handle, for
    /// the caller to close.
    pub fn into_parts(self) -> (Vec<Qp<S>>, Option<Srq>, Message, Option<Ah>) {
        (self.qps, self.srq, self.message, self.peer.map(|(ah, _)| ah))
    }
}

impl<S: CanPostRecv> Endpoint<S> {
    /// Posts up to `count` receives. Returns the number of accepted receives and the error that
    /// stopped the posting, if any.
    pub fn post_recv(&mut self, count: u32) -> (u32, Option<PostError>) {
        match (&mut self.srq, &mut self.qps[..]) {
            (Some(srq), _) => self.message.post_srq_recv(srq, count),
            (None, [qp, ..]) => self.message.post_recv(qp, count),
            (None, []) => (0, None),
        }
    }
}

impl Endpoint<Rts> {
    /// Sends future messages to this peer as datagrams.
    pub fn address(&mut self, ah: Ah, remote_qpn: u32) {
        self.peer = Some((ah, remote_qpn));
    }

    /// Returns the number of queue pairs.
    pub fn qps(&self) -> usize {
        self.qps.len()
    }

    /// Returns the index of the queue pair with this number. `None` without a shared receive queue.
    #[inline]
    pub fn find_qp(&self, qp_num: u32) -> Option<usize> {
        if self.srq.is_none() {
            return Some(0);
        }
        self.qps.iter().position(|qp| qp.qp_num() == qp_num)
    }

    /// Posts the message to a queue pair.
    ///
    /// # Errors
    /// Same as [`Message::post_send`].
    ///
    /// # Panics
    /// Panics if `index` is not below the number of queue pairs.
    #[inline]
    pub fn post_send(&mut self, index: usize) -> Result<(), PostError> {
        let to = match &self.peer {
            None => To::Peer,
            Some((ah, remote_qpn)) => To::Datagram(ah, *remote_qpn),
        };
        self.message.post_send(&mut self.qps[index], to, SEND_WRID as u32, self.flags)
    }
}

/// Returns a byte of a message's pattern, which differs by message and position.
fn pattern(message: u32, at: usize) -> u8 {
    let mixed = (at as u32).wrapping_mul(0x9e37_79b1) ^ message.wrapping_mul(0x85eb_ca6b);
    (mixed.wrapping_mul(0xc2b2_ae35) >> 24) as u8
}

/// The number of receives posted in one call.
const BATCH: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_filled_and_keeps_what_is_written() {
        let mut buffer = Buffer::map(40, 10_000, 0x7b).expect("memory");
        assert_eq!((buffer.read(0), buffer.read(9999)), (0x7b, 0x7b));
        buffer.write(4096, 0);
        assert_eq!((buffer.read(4095), buffer.read(4096), buffer.read(4097)), (0x7b, 0, 0x7b));
        assert_eq!(buffer.pages(4096).collect::<Vec<_>>(), [0, 4096, 8192]);
    }

    #[test]
    fn a_message_is_told_from_the_one_before_and_from_a_garbled_one() {
        let mut buffer = Buffer::map(40, 10_000, 0x7b).expect("memory");
        buffer.fill(7);
        assert_eq!(buffer.first_wrong(7), None);
        assert!(buffer.first_wrong(6).is_some_and(|(at, _)| at < 4));
        let garbled = !buffer.read(9_999);
        buffer.write(9_999, garbled);
        assert_eq!(buffer.first_wrong(7), Some((9_999, garbled)));
    }

    #[test]
    #[should_panic(expected = "10 is outside of 10 bytes")]
    fn what_is_outside_of_a_buffer_is_not_read() {
        Buffer::map(0, 10, 0).expect("memory").read(10);
    }
}
