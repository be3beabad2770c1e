//! [`OwnSegment`], [`PeerSegment`]: the memory of a link, in unnamed files.
//!
//! ```text
//!   owner   create ─► map for writing ─► write pages ─► seal ─► send the descriptor, close it
//!   peer                                 receive the descriptor ─► check seals ─► map for reading
//! ```
//!
//! The page of [`sleep`](super::sleep) works in the same way, but has only a header.
//!
//! The file of a segment is sparse. Its first [`SMALL_LEN`] bytes have pages from the start. The
//! owner adds the other pages when its packets become a stream ([`Outgoing::grow`]). The peer
//! checks that no page is missing before it reads there ([`Incoming::extend`]).
//!
//! # Safety
//! A [`Mapping`] is a new shared mapping of a memory file, at an address of the kernel's choice. It
//! is unmapped when its last user is dropped, so the addresses in [`Own`], [`OutRing`] and [`Peer`]
//! stay valid. All its bytes are in the file and initialised: the file has at least the length of
//! the mapping and cannot shrink (`F_SEAL_SHRINK`).
//!
//! No access raises SIGBUS, which the kernel sends if it has no memory for a missing page. Accesses
//! are limited to allocated pages: [`OutRing`] and [`Peer`] store the length of the part that has
//! pages, and check offsets against it. No process can remove a page (`F_SEAL_FUTURE_WRITE`). The
//! kernel itself adds pages for the owner, and returns an error if memory is short
//! (`MADV_POPULATE_WRITE`).
//!
//! Own memory is written by this process alone, because every other process can map it for reading
//! only. In this process, each byte has one writer: the words of the header are atomics, and the
//! ring belongs to the only [`OutRing`], which is changed through `&mut`. Other processes only
//! read. They are outside this program, like a device that reads memory by DMA. To the compiler
//! the memory has escaped: it comes from the kernel, so a release store makes the earlier plain
//! writes visible.
//!
//! A peer's memory may change at any time. No reference to its bytes exists; all loads are relaxed
//! atomic words at aligned addresses, which Rust guarantees to work in read-only memory.
//!
//! # References
//! `memfd_create(2)`, `fallocate(2)`, `fcntl(2)` (`F_ADD_SEALS`), `mmap(2)`, `madvise(2)`,
//! `lseek(2)` (`SEEK_HOLE`); [`core::sync::atomic`] ("Atomic accesses to read-only memory")
#![allow(unsafe_code)]

use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU64, Ordering};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::stat::fstat;
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};
use nix::unistd::{Whence, ftruncate, lseek};
use roce::wire::packet::MAX_LINK_PACKET_LEN;
use verbs_core::Errno;
use verbs_core::exposed::ExposedBytes;

use crate::shm::ring::{Incoming, Outgoing, PACKET, Progress, Shape};

/// This process's half of a link's memory.
#[derive(Debug)]
pub(crate) struct OwnSegment {
    file: OwnedFd,
    memory: Own,
}

impl OwnSegment {
    /// Creates a segment with an empty ring.
    ///
    /// # Errors
    /// - `ENOMEM`, `ENOSPC`: memory is short.
    /// - `EMFILE`, `ENFILE`: descriptors are short.
    /// - `EFBIG`: the limit of file sizes (`RLIMIT_FSIZE`) is lower than the segment, 2 MiB.
    /// - `EINVAL`: the kernel lacks the seals (before Linux 5.1).
    pub(crate) fn new() -> Result<Self, Errno> {
        let (file, memory) = Own::create(SEGMENT_LEN, SMALL_LEN, SEGMENT_MAGIC)?;
        Ok(Self { file, memory })
    }

    /// Returns the descriptor to send to the peer. It is closed when the segment is dropped or
    /// passed to [`ends`](crate::shm::ring::ends).
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Closes the descriptor and returns the parts for the producer and the consumer.
    pub(super) fn split(self) -> (OutRing, ConsumedWord) {
        let ring = OutRing { memory: self.memory.clone(), len: WINDOW_LEN };
        (ring, ConsumedWord { memory: self.memory })
    }
}

/// The producer's part of this process's segment: the ring and the word `waits`.
#[derive(Debug)]
pub(crate) struct OutRing {
    memory: Own,
    /// The length of the part of the ring that has pages, in bytes.
    len: usize,
}

impl OutRing {
    /// Returns the memory for the packet in the record at offset `at`.
    ///
    /// # Panics
    /// Panics if the longest record does not fit there, which is a bug in the caller.
    #[inline]
    pub(super) fn space(&mut self, at: usize) -> &mut [u8] {
        assert!(at <= self.len - PACKET - LONGEST_PACKET);
        let start = self.memory.ring(at + PACKET);
        // SAFETY: the bytes are in the ring by the check above. This process accesses them only
        // through this value, which is borrowed mutably as long as the slice lives.
        unsafe { core::slice::from_raw_parts_mut(start, LONGEST_PACKET) }
    }
}

impl Outgoing for OutRing {
    const SHAPE: Shape = SHAPE;

    #[inline]
    fn store_header(&mut self, at: usize, header: u64, order: Ordering) {
        assert!(at < self.len && at.is_multiple_of(8));
        // SAFETY: the word is in the ring and aligned by the check above. Only this value accesses
        // it in this process, and no slice borrows from it now.
        unsafe { AtomicU64::from_ptr(self.memory.ring(at).cast()) }.store(header, order);
    }

    #[inline]
    fn store_waits(&mut self, waits: bool) {
        self.memory.word(WAITS).store(waits.into(), Ordering::Relaxed);
    }

    #[cold]
    fn grow(&mut self) -> bool {
        if self.memory.mapping.populate(SMALL_LEN, SEGMENT_LEN) {
            self.len = RING_LEN;
        }
        self.len == RING_LEN
    }
}

/// The word of this process's segment that shows its consumer's progress.
#[derive(Debug)]
pub(crate) struct ConsumedWord {
    memory: Own,
}

impl Progress for ConsumedWord {
    #[inline]
    fn store_consumed(&mut self, position: u64) {
        self.memory.word(CONSUMED).store(position, Ordering::Release);
    }
}

/// The peer process's half of a link's memory.
#[derive(Debug)]
pub(crate) struct PeerSegment {
    memory: Peer,
    /// The descriptor, kept until all pages are known to be allocated. `None` in the producer's
    /// copy.
    file: Option<OwnedFd>,
}

impl PeerSegment {
    /// Maps the segment of a received descriptor.
    ///
    /// # Errors
    /// `EINVAL` if the file is not a sealed segment of this layout; `ENOMEM` if memory is short.
    pub(crate) fn map(file: OwnedFd) -> Result<Self, Errno> {
        let memory = Peer::map(file.as_fd(), SEGMENT_LEN, SMALL_LEN, SEGMENT_MAGIC)?;
        Ok(Self { memory, file: Some(file) })
    }

    /// Returns the same memory for the producer, which reads only the header.
    pub(super) fn header_only(&self) -> Self {
        Self { memory: self.memory.clone(), file: None }
    }
}

impl Incoming for PeerSegment {
    const SHAPE: Shape = SHAPE;

    #[cold]
    fn extend(&mut self) -> bool {
        let Some(file) = self.file.take_if(|file| has_pages(file.as_fd(), SEGMENT_LEN)) else { return false };
        drop(file);
        self.memory.extend();
        true
    }

    #[inline]
    fn header(&self, at: usize) -> u64 {
        self.memory.load(HEADER_LEN + at)
    }

    #[inline]
    fn read(&self, at: usize, into: &mut [u8]) -> bool {
        self.memory.bytes.read(HEADER_LEN + at, into)
    }

    #[inline]
    fn consumed(&self) -> u64 {
        self.memory.load(CONSUMED.0)
    }

    #[inline]
    fn waits(&self) -> bool {
        self.memory.load(WAITS.0) != 0
    }
}

/// The offset of a word in a header, in bytes; always one of this folder's constants. Processors
/// fetch cache lines in pairs, so each word has two lines to itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word(usize);

const MAGIC: Word = Word(0);
const CONSUMED: Word = Word(128);
const WAITS: Word = Word(256);
/// The sleep counter in the page of [`sleep`](super::sleep).
pub(super) const SLEEPS: Word = Word(128);

/// Memory written only by this process.
#[derive(Clone, Debug)]
pub(super) struct Own {
    mapping: Arc<Mapping>,
}

impl Own {
    /// Creates a sealed file of zeros with a magic number, and allocates pages for its first bytes.
    /// Returns its descriptor.
    pub(super) fn create(len: usize, with_pages: usize, magic: u64) -> Result<(OwnedFd, Self), Errno> {
        // Beyond the limit, the kernel would send a signal (`SIGXFSZ`).
        if getrlimit(Resource::RLIMIT_FSIZE).is_ok_and(|(limit, _)| limit < len as u64) {
            return Err(Errno::from_raw(libc::EFBIG));
        }
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        // The flag exists since Linux 6.3, and a sysctl can make kernels require it.
        let file = match memfd_create(NAME, flags | NOEXEC_SEAL) {
            Err(nix::Error::EINVAL) => memfd_create(NAME, flags),
            other => other,
        };
        let file = file.map_err(errno)?;
        // A pending signal interrupts the call.
        while let Err(error) = fallocate(&file, FallocateFlags::empty(), 0, with_pages as libc::off_t) {
            if error != nix::Error::EINTR {
                return Err(errno(error));
            }
        }
        ftruncate(&file, len as libc::off_t).map_err(errno)?;
        let mapping = Arc::new(Mapping::new(file.as_fd(), len, libc::PROT_READ | libc::PROT_WRITE)?);
        let own = Self { mapping };
        // A page that no process has written counts as missing ([`has_pages`]).
        for page in (0..with_pages).step_by(PAGE) {
            own.word(Word(page)).store(0, Ordering::Relaxed);
        }
        own.word(MAGIC).store(magic, Ordering::Relaxed);
        fcntl(&file, FcntlArg::F_ADD_SEALS(SEALS | SealFlag::F_SEAL_SEAL)).map_err(errno)?;
        Ok((file, own))
    }

    /// Returns a word of the header.
    #[inline]
    pub(super) fn word(&self, word: Word) -> &AtomicU64 {
        // SAFETY: all words of the header are aligned, in the mapping, and accessed as atomics
        // only. So are the first words of pages before the ring has an owner.
        unsafe { AtomicU64::from_ptr(self.mapping.base.as_ptr().add(word.0).cast()) }
    }

    /// Returns the address of offset `at` in the ring. `at` must not exceed the ring's length.
    #[inline]
    fn ring(&self, at: usize) -> *mut u8 {
        self.mapping.base.as_ptr().wrapping_add(HEADER_LEN + at)
    }
}

/// Memory written only by another process.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    /// The part of the memory that has pages.
    bytes: ExposedBytes,
    mapping: Arc<Mapping>,
}

impl Peer {
    /// Maps a file made by another process with [`Own::create`], and gives access to its first
    /// bytes.
    ///
    /// # Errors
    /// `EINVAL` for any other file.
    pub(super) fn map(
        file: BorrowedFd<'_>,
        len: usize,
        with_pages: usize,
        magic: u64,
    ) -> Result<Self, Errno> {
        let seals = fcntl(file, FcntlArg::F_GET_SEALS).map_err(errno)?;
        if !SealFlag::from_bits_retain(seals).contains(SEALS) {
            return Err(Errno::INVAL);
        }
        // The seals keep the size and the pages unchanged. Huge pages could be missing, so the file
        // must be on tmpfs, not hugetlbfs.
        let (stat, fs) = (fstat(file).map_err(errno)?, fstatfs(file).map_err(errno)?);
        let is_whole = stat.st_size == len as i64 && has_pages(file, with_pages);
        if !is_whole || fs.filesystem_type() != TMPFS_MAGIC {
            return Err(Errno::INVAL);
        }
        let mapping = Arc::new(Mapping::new(file, len, libc::PROT_READ)?);
        let peer = Self { bytes: mapping.exposed(with_pages), mapping };
        if peer.load(MAGIC.0) == magic { Ok(peer) } else { Err(Errno::INVAL) }
    }

    /// Gives access to the whole file. All its pages must be allocated.
    fn extend(&mut self) {
        self.bytes = self.mapping.exposed(self.mapping.len);
    }

    /// Returns a word of the header.
    #[inline]
    pub(super) fn word(&self, word: Word) -> u64 {
        self.load(word.0)
    }

    #[inline]
    fn load(&self, offset: usize) -> u64 {
        self.bytes.word(offset).expect("a word of the mapping").load(Ordering::Relaxed)
    }
}

/// A shared mapping of a file's first bytes.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: `base` blocked the auto impls. It is the address of a mapping that any thread may unmap;
// the types above have the rules for accesses.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: BorrowedFd<'_>, len: usize, protection: libc::c_int) -> Result<Self, Errno> {
        let (flags, file) = (libc::MAP_SHARED, file.as_raw_fd());
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, file, 0) };
        if base == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, len })
    }

    /// Allocates the missing pages of a range. Returns `false` if memory is short, or if the kernel
    /// could report that only by a signal (before Linux 5.14).
    fn populate(&self, start: usize, end: usize) -> bool {
        assert!(start <= end && end <= self.len);
        let (base, len) = (self.base.as_ptr().wrapping_add(start).cast(), end - start);
        // SAFETY: the part is mapped by the check above, and the call changes no byte of it.
        unsafe { libc::madvise(base, len, libc::MADV_POPULATE_WRITE) == 0 }
    }

    /// Returns the first `len` bytes of a peer's memory. The caller must drop them before this
    /// mapping.
    fn exposed(&self, len: usize) -> ExposedBytes {
        assert!(len <= self.len && len.is_multiple_of(8));
        // SAFETY: the bytes are mapped and initialised as long as the mapping lives, which the
        // caller owns. This process only loads them, through such values, and as the same words:
        // `base` and all lengths are multiples of 8.
        unsafe { ExposedBytes::new(self.base.as_ptr(), len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value alone, also in a forked child, which has a copy
        // of both. Nothing borrows from it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Returns whether all pages in a file's first `len` bytes are allocated.
fn has_pages(file: BorrowedFd<'_>, len: usize) -> bool {
    lseek(file, 0, Whence::SeekHole).is_ok_and(|hole| hole >= len as libc::off_t)
}

fn errno(error: nix::Error) -> Errno {
    Errno::from_raw(error as i32)
}

/// The file seals on which a peer relies.
const SEALS: SealFlag =
    SealFlag::F_SEAL_SHRINK.union(SealFlag::F_SEAL_GROW).union(SealFlag::F_SEAL_FUTURE_WRITE);

/// The name that the memory files have in `/proc/PID/maps`.
const NAME: &str = "verbs-soft";

/// `MFD_NOEXEC_SEAL`: the file cannot be executed.
const NOEXEC_SEAL: MFdFlags = MFdFlags::from_bits_retain(8);

/// The smallest page size, in bytes.
const PAGE: usize = 4096;

/// The length of a segment, in bytes.
const SEGMENT_LEN: usize = 2 << 20;

/// The length of the part of a segment that always has pages, in bytes. It is a multiple of every
/// page size up to 64 KiB.
const SMALL_LEN: usize = 64 << 10;

const HEADER_LEN: usize = 4096;
const RING_LEN: usize = SEGMENT_LEN - HEADER_LEN;

/// The length of a ring's window, in bytes: the part used unless packets are a stream.
const WINDOW_LEN: usize = SMALL_LEN - HEADER_LEN;

/// The sizes of the rings of links.
const SHAPE: Shape = Shape::new(WINDOW_LEN, RING_LEN, LONGEST_PACKET, RESERVE);

/// The length of the longest packet in a ring, in bytes.
const LONGEST_PACKET: usize = MAX_LINK_PACKET_LEN;

/// The number of bytes kept free so that an exiting process can send up to 31 acknowledgements
/// after its data.
const RESERVE: usize = 32 * 64;

/// The magic number of a segment. The last byte is the layout version.
const SEGMENT_MAGIC: u64 = u64::from_be_bytes(*b"vrbring\x02");

#[cfg(any(fuzzing, all(test, not(loom))))]
impl OwnSegment {
    /// Returns a hostile owner, which can also write the segment. The segment has no producer or
    /// consumer.
    pub(super) fn hostile(&self) -> HostileOwner {
        HostileOwner(self.memory.clone())
    }
}

/// A process that writes arbitrary words into its own segment.
#[cfg(any(fuzzing, all(test, not(loom))))]
pub(super) struct HostileOwner(Own);

#[cfg(any(fuzzing, all(test, not(loom))))]
impl HostileOwner {
    /// Stores `value` in the word `consumed` of the header.
    pub(super) fn store_consumed(&self, value: u64) {
        self.0.word(CONSUMED).store(value, Ordering::Relaxed);
    }

    /// Stores a word at an offset of the segment. The offset is reduced modulo the segment's length
    /// and aligned.
    pub(super) fn store(&self, offset: usize, value: u64) {
        let offset = (offset % SEGMENT_LEN) & !7;
        // SAFETY: an aligned word of the mapping. Other code of this process has no way to it,
        // because the segment has no ends.
        let word = unsafe { AtomicU64::from_ptr(self.0.mapping.base.as_ptr().add(offset).cast()) };
        word.store(value, Ordering::Relaxed);
    }

    /// Stores the header of the record at an offset of the ring.
    pub(super) fn store_header(&self, at: usize, header: u64) {
        self.store(HEADER_LEN + at, header);
    }

    /// Allocates the segment's missing pages.
    pub(super) fn grow(&self) {
        assert!(self.0.mapping.populate(SMALL_LEN, SEGMENT_LEN));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use core::ops::Range;
    use std::fs::File;
    use std::io::Write;
    use std::os::unix::fs::FileExt as _;

    use nix::sys::mman::{MapFlags, ProtFlags, mmap, mprotect};
    use nix::unistd::ftruncate;

    use super::*;

    fn duplicate(fd: BorrowedFd<'_>) -> OwnedFd {
        fd.try_clone_to_owned().unwrap()
    }

    #[test]
    fn the_descriptor_gives_its_receiver_no_way_to_write_resize_or_unseal() {
        let own = OwnSegment::new().unwrap();
        let fd = duplicate(own.fd());
        let len = core::num::NonZeroUsize::new(SEGMENT_LEN).unwrap();
        for (protection, allowed) in [(ProtFlags::PROT_READ, true), (ProtFlags::PROT_WRITE, false)] {
            // SAFETY: a new mapping at an address of the kernel's choice touches no existing
            // memory.
            let mapped = unsafe { mmap(None, len, protection, MapFlags::MAP_SHARED, &fd, 0) };
            assert_eq!(mapped.is_ok(), allowed, "{protection:?}");
            if let Ok(base) = mapped {
                // SAFETY: the mapping belongs to this test, and the call fails.
                let changed = unsafe { mprotect(base, SEGMENT_LEN, ProtFlags::PROT_WRITE) };
                assert_eq!(changed, Err(nix::Error::EACCES));
            }
        }
        for len in [0, SEGMENT_LEN as i64 - 1, SEGMENT_LEN as i64 + 1] {
            assert_eq!(ftruncate(&fd, len), Err(nix::Error::EPERM), "{len}");
        }
        let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        assert_eq!(fallocate(&fd, hole, 0, 4096), Err(nix::Error::EPERM));
        let seals = FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE);
        assert_eq!(fcntl(&fd, seals), Err(nix::Error::EPERM));
        assert!(File::from(fd).write(&[0]).is_err());
    }

    #[test]
    fn the_owner_cannot_remove_pages_that_a_peer_has_mapped() {
        let own = OwnSegment::new().unwrap();
        let _peer = PeerSegment::map(duplicate(own.fd())).unwrap();
        let base = own.memory.mapping.base.as_ptr();
        // SAFETY: the call fails. Otherwise it would set bytes of the segment to 0, which no other
        // code uses now.
        let removed = unsafe { libc::madvise(base.cast(), SEGMENT_LEN, libc::MADV_REMOVE) };
        assert_eq!((removed, Errno::last()), (-1, Errno::PERM));
    }

    /// Creates a file like a segment, but with this length, page range, magic number and seals.
    fn forged(len: usize, pages: Range<usize>, magic: u64, seals: SealFlag) -> OwnedFd {
        let file = memfd_create("forged", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).unwrap();
        ftruncate(&file, len as i64).unwrap();
        let writer = File::from(duplicate(file.as_fd()));
        writer.write_all_at(&vec![0; pages.len()], pages.start as u64).unwrap();
        writer.write_all_at(&magic.to_ne_bytes(), 0).unwrap();
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).unwrap();
        file
    }

    #[test]
    fn only_a_whole_sealed_file_of_the_right_size_and_kind_is_mapped() {
        let map = |len, pages, magic, seals| PeerSegment::map(forged(len, pages, magic, seals)).map(|_| ());
        assert_eq!(map(SEGMENT_LEN, 0..SMALL_LEN, SEGMENT_MAGIC, SEALS), Ok(()));
        for len in [0x8000, SMALL_LEN, SEGMENT_LEN - 1, SEGMENT_LEN + 1, SEGMENT_LEN * 2] {
            assert_eq!(map(len, 0..len, SEGMENT_MAGIC, SEALS), Err(Errno::INVAL), "{len}");
        }
        for pages in [0..PAGE, 0..SMALL_LEN - PAGE, PAGE * 2..SEGMENT_LEN] {
            assert_eq!(map(SEGMENT_LEN, pages, SEGMENT_MAGIC, SEALS), Err(Errno::INVAL), "it has holes");
        }
        assert_eq!(map(SEGMENT_LEN, 0..SMALL_LEN, SEGMENT_MAGIC + 1, SEALS), Err(Errno::INVAL));
        for missing in SEALS.iter() {
            let seals = SEALS.difference(missing);
            assert_eq!(map(SEGMENT_LEN, 0..SMALL_LEN, SEGMENT_MAGIC, seals), Err(Errno::INVAL), "{seals:?}");
        }
        let others = [File::open("/proc/self/exe").unwrap().into(), std::io::pipe().unwrap().0.into()];
        for other in others {
            assert_eq!(PeerSegment::map(other).map(|_| ()), Err(Errno::INVAL));
        }
        let (page, _) = Own::create(PAGE, PAGE, SEGMENT_MAGIC).unwrap();
        assert_eq!(PeerSegment::map(page).map(|_| ()), Err(Errno::INVAL));
    }

    #[test]
    fn a_segment_has_the_memory_of_its_window_until_it_grows() {
        let own = OwnSegment::new().unwrap();
        let fd = duplicate(own.fd());
        let allocated = || fstat(&fd).unwrap().st_blocks as usize * 512;
        let mut peer = PeerSegment::map(duplicate(own.fd())).unwrap();
        assert_eq!(allocated(), SMALL_LEN);
        assert!(!peer.extend() && !peer.read(WINDOW_LEN, &mut [0]));
        let (mut ring, _) = own.split();
        assert!(ring.grow());
        assert_eq!(allocated(), SEGMENT_LEN);
        ring.store_header(RING_LEN - 8, 7, Ordering::Relaxed);
        assert!(peer.extend());
        assert_eq!(peer.header(RING_LEN - 8), 7);
        assert!(!peer.read(RING_LEN, &mut [0]));
    }

    #[test]
    fn a_peer_is_given_access_behind_the_window_only_if_all_pages_exist() {
        for (pages, is_whole) in [
            (0..SMALL_LEN, false),
            (0..SMALL_LEN + PAGE, false),
            (0..SEGMENT_LEN - PAGE, false),
            (0..SEGMENT_LEN, true),
        ] {
            let file = forged(SEGMENT_LEN, pages.clone(), SEGMENT_MAGIC, SEALS);
            let mut peer = PeerSegment::map(duplicate(file.as_fd())).unwrap();
            let before = fstat(&file).unwrap().st_blocks;
            assert_eq!(peer.extend(), is_whole, "{pages:?}");
            assert_eq!(peer.read(WINDOW_LEN, &mut [0]), is_whole);
            assert_eq!(fstat(&file).unwrap().st_blocks, before, "the peer adds no page");
        }
    }

    #[test]
    fn pages_that_cannot_be_added_are_an_error_and_no_signal() {
        let file = memfd_create("short", MFdFlags::MFD_CLOEXEC).unwrap();
        ftruncate(&file, PAGE as i64).unwrap();
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // An access to the second half raises SIGBUS.
        let mapping = Mapping::new(file.as_fd(), 2 * SMALL_LEN, protection).unwrap();
        assert!(mapping.populate(0, PAGE));
        assert!(!mapping.populate(SMALL_LEN, 2 * SMALL_LEN));
    }

    #[test]
    fn a_mapping_outlives_the_descriptor_and_the_owner() {
        let own = OwnSegment::new().unwrap();
        own.hostile().store_consumed(64);
        let peer = PeerSegment::map(duplicate(own.fd())).unwrap();
        drop(own);
        assert_eq!(peer.header_only().consumed(), 64);
    }

    #[test]
    fn segments_are_unmapped_when_their_last_end_is_dropped() {
        let own = OwnSegment::new().unwrap();
        let inode = format!(" {} ", fstat(own.fd()).unwrap().st_ino);
        let is_mapped = || std::fs::read_to_string("/proc/self/maps").unwrap().contains(&inode);
        let (ring, consumed) = own.split();
        drop(ring);
        assert!(is_mapped());
        drop(consumed);
        assert!(!is_mapped());
    }
}
