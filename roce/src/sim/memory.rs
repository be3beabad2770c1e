//! [`VecMemory`]: registered memory in vectors.

use alloc::vec;
use alloc::vec::Vec;

use crate::engine::{Fault, Memory, Sge};

/// Registered memory in vectors. Several registrations may share a buffer.
#[derive(Debug, Default)]
pub struct VecMemory {
    buffers: Vec<Held>,
    flushed: Vec<Flushed>,
}

/// A flush requested by a peer, with a copy of the bytes at the time of the flush.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Flushed {
    /// The buffer that contains the flushed bytes.
    pub buffer: Buffer,
    /// The offset of the first flushed byte in the buffer.
    pub start: u64,
    /// A copy of the flushed bytes.
    pub bytes: Vec<u8>,
    /// Whether the peer requested persistence.
    pub persistent: bool,
}

#[derive(Debug)]
struct Held {
    bytes: Vec<u8>,
    gone: bool,
}

/// The index of a buffer in a [`VecMemory`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Buffer(usize);

/// A registration in a [`VecMemory`]: a part of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VecRegion {
    /// The buffer that contains the registered bytes.
    pub buffer: Buffer,
    /// The offset of the first registered byte in the buffer.
    pub start: u64,
    /// The length in bytes.
    pub length: u64,
}

/// A registration, as its owner and its peers use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Region {
    /// The key, which is both the local and the remote key.
    pub key: u32,
    /// The address of the first byte, as used in work requests.
    pub addr: u64,
    /// The length in bytes.
    pub length: u64,
    /// The buffer that contains the registered bytes.
    pub buffer: Buffer,
}

impl Region {
    /// Returns a scatter/gather element of `length` bytes at `offset`. The range is not checked,
    /// because tests need invalid ranges that the engine must reject.
    pub const fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: self.addr.wrapping_add(offset), length, lkey: self.key }
    }
}

impl VecMemory {
    /// Adds a buffer.
    pub fn add(&mut self, bytes: Vec<u8>) -> Buffer {
        self.buffers.push(Held { bytes, gone: false });
        Buffer(self.buffers.len() - 1)
    }

    /// Returns the bytes of a buffer; an empty slice if the buffer belongs to another memory.
    pub fn bytes(&self, buffer: Buffer) -> &[u8] {
        self.buffers.get(buffer.0).map_or(&[], |held| &held.bytes)
    }

    /// Returns the bytes of a buffer for changes by a program.
    pub fn bytes_mut(&mut self, buffer: Buffer) -> &mut [u8] {
        self.buffers.get_mut(buffer.0).map_or(&mut [], |held| &mut held.bytes)
    }

    /// Removes the pages of a buffer: every later access by the engine fails with [`Fault`].
    pub fn lose(&mut self, buffer: Buffer) {
        if let Some(held) = self.buffers.get_mut(buffer.0) {
            held.gone = true;
        }
    }

    /// Returns all flushes, oldest first.
    pub fn flushed(&self) -> &[Flushed] {
        &self.flushed
    }

    /// Returns the bytes of a range that the engine requests.
    ///
    /// # Panics
    /// If the range lies outside the registration. The engine guarantees not to request such a
    /// range.
    fn at(&mut self, region: &VecRegion, offset: u64, len: usize) -> Result<&mut [u8], Fault> {
        let end = offset.checked_add(len as u64);
        assert!(
            end.is_some_and(|end| end <= region.length),
            "the engine accesses {len} bytes at {offset} of a registration of {} bytes",
            region.length
        );
        let held = self.buffers.get_mut(region.buffer.0).ok_or(Fault)?;
        if held.gone {
            return Err(Fault);
        }
        let start = (region.start + offset) as usize;
        held.bytes.get_mut(start..start + len).ok_or(Fault)
    }

    fn word(&mut self, region: &VecRegion, offset: u64) -> Result<&mut [u8; 8], Fault> {
        self.at(region, offset, 8)?.first_chunk_mut().ok_or(Fault)
    }
}

impl Memory for VecMemory {
    type Region = VecRegion;

    fn read(&mut self, region: &VecRegion, offset: u64, dst: &mut [u8]) -> Result<(), Fault> {
        dst.copy_from_slice(self.at(region, offset, dst.len())?);
        Ok(())
    }

    fn write(&mut self, region: &VecRegion, offset: u64, src: &[u8]) -> Result<(), Fault> {
        self.at(region, offset, src.len())?.copy_from_slice(src);
        Ok(())
    }

    fn compare_swap(
        &mut self,
        region: &VecRegion,
        offset: u64,
        compare: u64,
        swap: u64,
    ) -> Result<u64, Fault> {
        let word = self.word(region, offset)?;
        let found = u64::from_ne_bytes(*word);
        if found == compare {
            *word = swap.to_ne_bytes();
        }
        Ok(found)
    }

    fn atomic_write(&mut self, region: &VecRegion, offset: u64, data: [u8; 8]) -> Result<(), Fault> {
        *self.word(region, offset)? = data;
        Ok(())
    }

    /// Records the flush, which succeeds with or without `persistent`, because vectors are
    /// considered durable.
    fn flush(&mut self, region: &VecRegion, offset: u64, length: u64, persistent: bool) -> Result<(), Fault> {
        let bytes = self.at(region, offset, length as usize)?.to_vec();
        let start = region.start + offset;
        self.flushed.push(Flushed { buffer: region.buffer, start, bytes, persistent });
        Ok(())
    }

    fn fetch_add(&mut self, region: &VecRegion, offset: u64, add: u64) -> Result<u64, Fault> {
        let word = self.word(region, offset)?;
        let found = u64::from_ne_bytes(*word);
        *word = found.wrapping_add(add).to_ne_bytes();
        Ok(found)
    }
}

impl From<Vec<Vec<u8>>> for VecMemory {
    fn from(buffers: Vec<Vec<u8>>) -> Self {
        let mut memory = Self { buffers: vec![], flushed: vec![] };
        for bytes in buffers {
            memory.add(bytes);
        }
        memory
    }
}
