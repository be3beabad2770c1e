//! [`check`]: finds memory that cannot be registered, because it cannot be accessed.
//!
//! A kernel driver pins the pages of a region, which fails with `EFAULT` where a page is not mapped
//! or lacks a right. Nothing is pinned here, and an access to such a page would end the process
//! with SIGSEGV once a packet needs it. So registration compares the range with the process'
//! mappings:
//!
//! | mapping | access | result |
//! |---|---|---|
//! | none, or a hole in the range | any | `EFAULT` |
//! | `PROT_NONE` | any | `EFAULT` |
//! | `PROT_READ` | with write rights | `EFAULT` |
//! | of a file, the range's last page beyond its end | any | `EFAULT` (Linux 5.14) |
//!
//! The mappings come from `/proc/self/maps`, which costs about 40 µs in a small process and 0.6 ms
//! in one with 5,000 mappings, whatever the length of the range. Touching each page instead, as
//! pinning does, took 0.05 s to read and 1.6 s to write 1 GiB of fresh memory in pages of 4 KiB
//! (Linux 6.18), and commits pages that no packet ever reaches.
//!
//! The file may change while it is read. The kernel guarantees that it reports memory that is
//! mapped all the while, so a range that its owner leaves alone is never refused by mistake.
//! Without `/proc` no range is refused. Not detected either: guard pages (`MADV_GUARD_INSTALL`),
//! and what becomes of a mapping after registration, for which the caller of `reg_mr` is
//! responsible.
//!
//! # Safety
//! The unsafe calls are `sysconf`, and `madvise` with `MADV_POPULATE_READ`, which faults in one
//! page and changes nothing that a program can read.
//!
//! # References
//! `proc_pid_maps(5)`, `madvise(2)`; the kernel's Documentation/filesystems/proc.rst (what a walk
//! of the mappings guarantees) and drivers/infiniband/core/umem.c
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{BufRead, BufReader};

/// Addresses that cannot be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inaccessible {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// The property that they lack: they are not `lacks`.
    pub(crate) lacks: &'static str,
}

/// Checks that `length` bytes from `start` on can be read, and written where `writable`.
///
/// # Errors
/// The first addresses that cannot.
pub(crate) fn check(start: u64, length: u64, writable: bool) -> Result<(), Inaccessible> {
    if length == 0 {
        return Ok(());
    }
    let Some(end) = start.checked_add(length) else {
        return Err(Inaccessible { start, end: u64::MAX, lacks: MAPPED });
    };
    let Ok(maps) = File::open("/proc/self/maps") else { return Ok(()) };
    check_against(BufReader::new(maps), start, end, writable)
}

fn check_against(mut maps: impl BufRead, start: u64, end: u64, writable: bool) -> Result<(), Inaccessible> {
    let mut at = start;
    let mut line = Vec::new();
    while at < end {
        line.clear();
        let Ok(length) = maps.read_until(b'\n', &mut line) else { return Ok(()) };
        if length == 0 {
            break;
        }
        let Some(mapping) = Mapping::parse(&line) else { return Ok(()) };
        if mapping.end <= at {
            continue;
        }
        if mapping.start > at {
            return Err(Inaccessible { start: at, end: end.min(mapping.start), lacks: MAPPED });
        }
        let stop = end.min(mapping.end);
        if !mapping.readable {
            return Err(Inaccessible { start: at, end: stop, lacks: "readable" });
        }
        if writable && !mapping.writable {
            return Err(Inaccessible { start: at, end: stop, lacks: "writable" });
        }
        if mapping.of_file && is_beyond_file(stop - 1) {
            return Err(Inaccessible { start: at, end: stop, lacks: "within the mapped file" });
        }
        at = stop;
    }
    if at < end { Err(Inaccessible { start: at, end, lacks: MAPPED }) } else { Ok(()) }
}

/// A line of the file.
#[derive(Debug)]
struct Mapping {
    start: u64,
    end: u64,
    readable: bool,
    writable: bool,
    of_file: bool,
}

impl Mapping {
    /// Reads `start-end rwxp offset device inode path`; `None` for a line of another form.
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(u8::is_ascii_whitespace);
        let mut addresses = fields.next()?.splitn(2, |byte| *byte == b'-');
        let mut address = || u64::from_str_radix(str::from_utf8(addresses.next()?).ok()?, 16).ok();
        let (start, end) = (address()?, address()?);
        let rights = fields.next()?;
        let inode = fields.nth(2)?;
        Some(Self {
            start,
            end,
            readable: *rights.first()? == b'r',
            writable: *rights.get(1)? == b'w',
            of_file: inode != b"0",
        })
    }
}

/// Returns whether the page at an address of a file's mapping lies beyond the end of the file,
/// where an access raises SIGBUS. The pages before it do not, if it does not.
fn is_beyond_file(address: u64) -> bool {
    // SAFETY: the call takes and returns numbers.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let page = address as usize & !(size - 1);
    // SAFETY: the call reads a page on the process' behalf, and fails where it cannot; it changes
    // no byte and no mapping.
    let populated =
        unsafe { libc::madvise(core::ptr::without_provenance_mut(page), size, libc::MADV_POPULATE_READ) };
    // An older kernel reports EINVAL, as does one for mappings of a device.
    populated != 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT)
}

const MAPPED: &str = "mapped";

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const MAPS: &[u8] = b"\
1000-3000 r--p 00000000 00:00 0          [heap]\n\
3000-5000 rw-p 00000000 00:00 0\n\
6000-7000 rw-s 00000000 00:00 0\n\
7000-8000 ---p 00000000 00:00 0\n\
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]\n";

    fn check_maps(start: u64, end: u64, writable: bool) -> Result<(), (u64, u64, &'static str)> {
        check_against(MAPS, start, end, writable)
            .map_err(|Inaccessible { start, end, lacks }| (start, end, lacks))
    }

    #[test]
    fn a_range_within_adjacent_mappings_can_be_registered() {
        assert_eq!(check_maps(0x1fff, 0x5000, false), Ok(()));
        assert_eq!(check_maps(0x3000, 0x5000, true), Ok(()));
        assert_eq!(check_maps(0x6000, 0x6001, true), Ok(()));
    }

    #[test]
    fn the_first_inaccessible_part_of_a_range_is_named() {
        assert_eq!(check_maps(0x10, 0x2000, false), Err((0x10, 0x1000, "mapped")));
        assert_eq!(check_maps(0x4000, 0x6800, true), Err((0x5000, 0x6000, "mapped")));
        assert_eq!(check_maps(0x6800, 0x8000, false), Err((0x7000, 0x8000, "readable")));
        assert_eq!(check_maps(0x2000, 0x4000, true), Err((0x2000, 0x3000, "writable")));
        assert_eq!(check_maps(0x8000, 0x9000, true), Err((0x8000, 0x9000, "mapped")));
        assert_eq!(check_maps(u64::MAX - 1, u64::MAX, true), Err((u64::MAX - 1, u64::MAX, "mapped")));
    }

    #[test]
    fn memory_of_this_process_can_be_registered_and_what_wraps_cannot() {
        let bytes = [0_u8; 100];
        let start = bytes.as_ptr().addr() as u64;
        assert_eq!(check(start, 100, true), Ok(()));
        assert_eq!(check(0, 0, true), Ok(()), "no bytes");
        assert_eq!(check(start, u64::MAX, false).unwrap_err().lacks, "mapped");
    }
}
