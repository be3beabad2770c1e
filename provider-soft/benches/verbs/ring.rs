//! A bare ring in shared memory between two processes, for one producer and one consumer: the
//! reference for packets through memory.
//!
//! Each 8-byte message has its own cache line, with the message number after the payload. The
//! consumer polls the number, so a message transfers only one cache line. The consumer frees a
//! quarter of the ring at a time.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::Result;
use crate::process::Peer;
use crate::rdma::{Patience, What, microseconds, shared_words};

/// The number of words in a cache line.
const LINE: usize = 8;
/// The number of messages in a ring.
const SLOTS: usize = 64;
/// The number of words in a ring: one line per message, and a line with the number of consumed
/// messages.
const RING: usize = (SLOTS + 1) * LINE;

/// One end of two rings, one for each direction.
struct End {
    out: &'static [AtomicU64],
    inward: &'static [AtomicU64],
    sent: u64,
    /// The number of messages consumed by the peer, as last read.
    consumed: u64,
    received: u64,
}

impl End {
    fn new(file: &File, first: bool) -> Result<Self> {
        let (a, b) = shared_words(file, 2 * RING)?.split_at(RING);
        let (out, inward) = if first { (a, b) } else { (b, a) };
        Ok(Self { out, inward, sent: 0, consumed: 0, received: 0 })
    }

    #[inline]
    fn send(&mut self, value: u64) -> Result<()> {
        if self.sent - self.consumed == SLOTS as u64 {
            let mut patience = Patience::new();
            while self.sent - self.consumed == SLOTS as u64 {
                self.consumed = self.out[SLOTS * LINE].load(Ordering::Acquire);
                patience.wait(What::Write)?;
            }
        }
        let slot = self.sent as usize % SLOTS * LINE;
        self.sent += 1;
        self.out[slot].store(value, Ordering::Relaxed);
        self.out[slot + 1].store(self.sent, Ordering::Release);
        Ok(())
    }

    #[inline]
    fn receive(&mut self) -> Result<u64> {
        let slot = self.received as usize % SLOTS * LINE;
        self.received += 1;
        let mut patience = Patience::new();
        while self.inward[slot + 1].load(Ordering::Acquire) != self.received {
            patience.wait(What::Write)?;
        }
        let value = self.inward[slot].load(Ordering::Relaxed);
        if self.received.is_multiple_of(SLOTS as u64 / 4) {
            self.inward[SLOTS * LINE].store(self.received, Ordering::Release);
        }
        Ok(value)
    }
}

/// Returns the median round trip time of 8 bytes, in microseconds.
pub(crate) fn round_trip(rounds: usize) -> Result<f64> {
    let file = File::from(memfd_create(c"ring", MFdFlags::MFD_CLOEXEC)?);
    file.set_len((2 * RING * size_of::<u64>()) as u64)?;
    let mut end = End::new(&file, true)?;
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    let mut peer = Peer::start(&["ring", &path])?;
    peer.exchange("mapped?")?;
    let mut times = Vec::with_capacity(rounds);
    for round in 0..rounds + rounds / 10 {
        let start = Instant::now();
        end.send(round as u64)?;
        let value = end.receive()?;
        let time = start.elapsed();
        if value != round as u64 {
            return Err("the reply has another number".into());
        }
        // The first tenth warms up.
        if round >= rounds / 10 {
            times.push(time);
        }
    }
    let times = microseconds(times);
    Ok(times[times.len() / 2])
}

/// Runs the other process: sends back each message, until this process is killed.
pub(crate) fn echo(path: &str) -> Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let mut end = End::new(&file, false)?;
    crate::process::exchange_with_parent("mapped")?;
    loop {
        let value = end.receive()?;
        end.send(value)?;
    }
}
