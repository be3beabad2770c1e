//! [`check`]: finds memory that cannot be registered because it is inaccessible, and file-backed
//! memory, which may become inaccessible at any time.
//!
//! A kernel driver pins the pages of a region and fails with `EFAULT` if a page is not mapped or
//! lacks an access right. Nothing is pinned here: once a packet needs such a page, an access would
//! kill the process with SIGSEGV. Registration therefore compares the range with the process's
//! mappings:
//!
//! | mapping | access | result |
//! |---|---|---|
//! | none, or a hole in the range | any | `EFAULT` |
//! | `PROT_NONE` | any | `EFAULT` |
//! | `PROT_READ` | with write rights | `EFAULT` |
//! | `PROT_WRITE` alone | without write rights | `EFAULT`, as in Linux 6.2 and newer |
//! | of a file, the range's last page beyond its end | any | `EFAULT` (Linux 5.14) |
//! | of a device's memory, or of `memfd_secret(2)` | any | `EFAULT`, as with pinned pages |
//!
//! The pages of a mapped file disappear when any process truncates the file; an access then raises
//! SIGBUS. [`check`] reports such memory, so that the kernel can access it
//! ([`crate::memory::paged`]). Shared mappings without a descriptor cannot be truncated:
//! `MAP_SHARED` with `MAP_ANONYMOUS`, huge pages without a file, and System V segments.
//!
//! The kernel does not access a device's memory (a PCI BAR, `VM_PFNMAP`) for a process, just as
//! drivers cannot pin it. If such memory were registered and checked, every request would fail.
//! [`check`] therefore probes the first byte of each readable mapping.
//!
//! Processors can read any writable memory, so `PROT_WRITE` alone is enough for a region with write
//! rights.
//!
//! The mappings come from `/proc/thread-self/maps` (`/proc/self` is empty once the main thread has
//! ended). Reading them costs about 40 µs in a small process and 0.6 ms with 5,000 mappings,
//! for a range of any length. Touching each page instead, as pinning does, took 0.05 s to
//! read and 1.6 s to write 1 GiB of fresh memory in pages of 4 KiB (Linux 6.18). It also commits
//! pages that no packet ever reaches.
//!
//! The file may change while it is read. The kernel guarantees to report memory that stays mapped
//! meanwhile. A range that looks unmapped is read once more before it is rejected. Without `/proc`
//! no range is rejected and file-backed memory is not recognised. Guard pages
//! (`MADV_GUARD_INSTALL`) and changes to a mapping after registration are not detected either; the
//! latter are the responsibility of the caller of `reg_mr`.
//!
//! # Safety
//! The unsafe call is `madvise` with `MADV_POPULATE_READ`, which faults in one page without
//! changing its content.
//!
//! # References
//! `proc_pid_maps(5)`, `madvise(2)`; the kernel's Documentation/filesystems/proc.rst (what a walk
//! of the mappings guarantees) and drivers/infiniband/core/umem.c
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, BufRead, BufReader};

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::{fstat, major, minor};
use verbs_core::fork::ForkLock;
use verbs_core::ring::page_size;

/// A range of addresses that cannot be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inaccessible {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// The property that the addresses lack, such as `readable`.
    pub(crate) lacks: &'static str,
}

/// The owner of the pages that back registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    /// The process: pages stay until the process unmaps them.
    Process,
    /// A file: at least one page belongs to it and disappears if the file is truncated.
    File,
}

/// Checks that `length` bytes at `start` can be read, and also written if `writable`. `probe`
/// receives an address in a mapped page and the page's owner. It returns whether the kernel can
/// access the byte there.
///
/// # Errors
/// The first range of inaccessible addresses.
pub(crate) fn check(
    start: u64,
    length: u64,
    writable: bool,
    probe: impl Fn(u64, Backing) -> bool,
) -> Result<Backing, Inaccessible> {
    check_in(|| File::open("/proc/thread-self/maps").map(BufReader::new), start, length, writable, &probe)
}

fn check_in<R: BufRead>(
    open: impl Fn() -> io::Result<R>,
    start: u64,
    length: u64,
    writable: bool,
    probe: &dyn Fn(u64, Backing) -> bool,
) -> Result<Backing, Inaccessible> {
    if length == 0 {
        return Ok(Backing::Process);
    }
    let Some(end) = start.checked_add(length) else {
        return Err(Inaccessible { start, end: u64::MAX, lacks: MAPPED });
    };
    let look =
        || open().map_or(Ok(Backing::Process), |maps| check_against(maps, start, end, writable, probe));
    // Other threads may map and unmap while the kernel writes the list.
    look().or_else(|range| if range.lacks == MAPPED { look() } else { Err(range) })
}

fn check_against(
    mut maps: impl BufRead,
    start: u64,
    end: u64,
    writable: bool,
    probe: &dyn Fn(u64, Backing) -> bool,
) -> Result<Backing, Inaccessible> {
    let mut at = start;
    let mut backing = Backing::Process;
    let mut line = Vec::new();
    while at < end {
        line.clear();
        let Ok(length) = maps.read_until(b'\n', &mut line) else { return Ok(backing) };
        if length == 0 {
            break;
        }
        let Some(mapping) = Mapping::parse(&line) else { return Ok(backing) };
        if mapping.end <= at {
            continue;
        }
        if mapping.start > at {
            return Err(Inaccessible { start: at, end: end.min(mapping.start), lacks: MAPPED });
        }
        let stop = end.min(mapping.end);
        if !mapping.readable && (!writable || !mapping.writable) {
            return Err(Inaccessible { start: at, end: stop, lacks: "readable" });
        }
        if writable && !mapping.writable {
            return Err(Inaccessible { start: at, end: stop, lacks: "writable" });
        }
        if mapping.of_file {
            if is_beyond_file(stop - 1) {
                return Err(Inaccessible { start: at, end: stop, lacks: "within the mapped file" });
            }
            backing = Backing::File;
        }
        let its = if mapping.of_file { Backing::File } else { Backing::Process };
        if mapping.readable && !probe(at, its) {
            return Err(Inaccessible { start: at, end: stop, lacks: PINNABLE });
        }
        at = stop;
    }
    if at < end { Err(Inaccessible { start: at, end, lacks: MAPPED }) } else { Ok(backing) }
}

/// One line of `/proc/thread-self/maps`.
#[derive(Debug)]
struct Mapping {
    start: u64,
    end: u64,
    readable: bool,
    writable: bool,
    /// Whether the pages belong to a file that can be truncated.
    of_file: bool,
}

impl Mapping {
    /// Parses a line of the form `start-end rwxp offset device inode path`. Returns `None` for any
    /// other line.
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(u8::is_ascii_whitespace);
        let mut addresses = fields.next()?.splitn(2, |byte| *byte == b'-');
        let mut address = || u64::from_str_radix(str::from_utf8(addresses.next()?).ok()?, 16).ok();
        let (start, end) = (address()?, address()?);
        let rights = fields.next()?;
        let device = fields.nth(1)?;
        let inode = fields.next()?;
        let name = line.windows(2).position(|pair| pair == b" /").map_or(&[][..], |at| &line[at + 1..]);
        Some(Self {
            start,
            end,
            readable: *rights.first()? == b'r',
            writable: *rights.get(1)? == b'w',
            of_file: (device != b"00:00" || inode != b"0")
                && !(is_internal(device) && UNCUT.iter().any(|prefix| name.starts_with(prefix))),
        })
    }
}

/// Returns whether a device number, as written in the list of mappings, belongs to one of the
/// kernel's internal file systems for memory without a path. Users can create files with any name
/// and inode number, but not in these file systems.
fn is_internal(device: &[u8]) -> bool {
    static INTERNAL: ForkLock<Option<&[String]>> = ForkLock::new(None);
    let internal = INTERNAL.get_or_init(|| {
        let kinds = [MFdFlags::empty(), MFdFlags::MFD_HUGETLB];
        kinds.into_iter().filter_map(|kind| device_of_memory(kind).ok()).collect::<Vec<_>>().leak()
    });
    internal.iter().any(|name| name.as_bytes() == device)
}

/// Returns the device number of the file system of `memfd_create(2)` files of a kind, as written in
/// the list of mappings.
fn device_of_memory(kind: MFdFlags) -> nix::Result<String> {
    let device = fstat(memfd_create("verbs-soft", kind | MFdFlags::MFD_CLOEXEC)?)?.st_dev;
    Ok(format!("{:02x}:{:02x}", major(device), minor(device)))
}

/// Returns whether the page at an address in a file mapping lies beyond the end of the file, where
/// an access raises SIGBUS. If this page is within the file, so are the pages before it.
fn is_beyond_file(address: u64) -> bool {
    let size = page_size();
    let page = address as usize & !(size - 1);
    // SAFETY: the call reads a page on the process's behalf and fails if it cannot; it changes no
    // byte and no mapping.
    let populated =
        unsafe { libc::madvise(core::ptr::without_provenance_mut(page), size, libc::MADV_POPULATE_READ) };
    // Older kernels report EINVAL, and all kernels do so for device mappings.
    populated != 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT)
}

const MAPPED: &str = "mapped";
const PINNABLE: &str = "accessible to the kernel: memory of devices and secret memory cannot be registered";

/// Name prefixes of shared memory mappings that have an inode but no descriptor, in one of the
/// [kernel's internal](is_internal) file systems. No process can truncate such memory.
const UNCUT: [&[u8]; 3] = [b"/dev/zero (deleted)", b"/anon_hugepage (deleted)", b"/SYSV"];

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;
    use std::num::NonZeroUsize;

    use nix::sys::mman::{MapFlags, ProtFlags, mmap};

    use super::*;

    /// A sample list of mappings; `INTERNAL` stands for the device number of the kernel's memory
    /// files.
    const MAPS: &str = "\
1000-3000 r--p 00000000 00:00 0          [heap]\n\
3000-5000 rw-p 00000000 00:00 0\n\
6000-7000 rw-s 00000000 00:00 0\n\
7000-8000 ---p 00000000 00:00 0\n\
9000-a000 rw-s 00000000 INTERNAL 42         /dev/zero (deleted)\n\
a000-b000 rw-s 00000000 INTERNAL 43         /SYSV00000000 (deleted)\n\
b000-c000 rw-s 00000000 00:7a 44         /dev/shm/dev/zero (deleted)\n\
c000-d000 rw-s 00000000 INTERNAL 45         /memfd:a /SYSV name (deleted)\n\
d000-e000 rw-s 00000000 00:7a 46         /SYSV00000000\n\
e000-f000 rw-s 00000000 00:7a 0          /in/a/file/system/of/a/user\n\
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]\n";

    fn maps() -> Vec<u8> {
        MAPS.replace("INTERNAL", &device_of_memory(MFdFlags::empty()).unwrap()).into_bytes()
    }

    fn check_maps(start: u64, end: u64, writable: bool) -> Result<Backing, (u64, u64, &'static str)> {
        check_against(&maps()[..], start, end, writable, &|_, _| true)
            .map_err(|Inaccessible { start, end, lacks }| (start, end, lacks))
    }

    #[test]
    fn a_range_within_adjacent_mappings_can_be_registered() {
        assert_eq!(check_maps(0x1fff, 0x5000, false), Ok(Backing::Process));
        assert_eq!(check_maps(0x3000, 0x5000, true), Ok(Backing::Process));
        assert_eq!(check_maps(0x6000, 0x6001, true), Ok(Backing::Process));
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
    fn memory_of_a_file_is_told_from_shared_memory_that_cannot_be_cut() {
        let maps = maps();
        let lines: Vec<_> = maps.split_inclusive(|byte| *byte == b'\n').collect();
        let of_file: Vec<_> = lines.iter().map(|line| Mapping::parse(line).unwrap().of_file).collect();
        assert_eq!(of_file, [false, false, false, false, false, false, true, true, true, true, false]);
        let page = 4096_u64;
        let file = File::from(memfd_create("backing", MFdFlags::MFD_CLOEXEC).unwrap());
        file.set_len(page).unwrap();
        let length = NonZeroUsize::new(page as usize).unwrap();
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let mapped = unsafe { mmap(None, length, ProtFlags::PROT_READ, MapFlags::MAP_SHARED, file, 0) };
        let start = mapped.unwrap().as_ptr().addr() as u64;
        assert_eq!(check(start, page, false, |_, _| true), Ok(Backing::File));
    }

    #[test]
    fn a_mapping_that_the_kernel_cannot_access_is_refused() {
        let probed = |refused| {
            let probe = move |address, _| address != refused;
            check_against(&maps()[..], 0xa800, 0xd800, true, &probe)
        };
        assert_eq!(probed(0xb001), Ok(Backing::File), "one byte of a mapping is probed");
        for start in [0xa800, 0xc000, 0xd000] {
            let Inaccessible { start: found, lacks, .. } = probed(start).unwrap_err();
            assert_eq!((found, lacks), (start, PINNABLE));
        }
    }

    #[test]
    fn a_range_that_looks_unmapped_is_looked_at_twice() {
        let maps = maps();
        let looks = Cell::new(0);
        let open = |torn| {
            let (looks, maps) = (&looks, &maps);
            move || {
                looks.set(looks.get() + 1);
                Ok(if looks.get() <= torn { &maps[..0] } else { &maps[..] })
            }
        };
        assert_eq!(check_in(open(1), 0x1000, 0x1000, false, &|_, _| true), Ok(Backing::Process));
        looks.set(0);
        assert_eq!(check_in(open(2), 0x1000, 0x1000, false, &|_, _| true).unwrap_err().lacks, "mapped");
        looks.set(0);
        assert_eq!(check_in(open(0), 0x7000, 0x1000, false, &|_, _| true).unwrap_err().lacks, "readable");
        assert_eq!(looks.get(), 1, "rights do not come and go");
    }

    #[test]
    fn memory_that_can_only_be_written_serves_regions_with_write_rights() {
        const WRITABLE: &[u8] = b"1000-3000 -w-p 00000000 00:00 0\n";
        let checked = |writable| check_against(WRITABLE, 0x1000, 0x2000, writable, &|_, _| true);
        assert_eq!(checked(true), Ok(Backing::Process));
        assert_eq!(checked(false).unwrap_err().lacks, "readable");
    }

    #[test]
    fn memory_of_this_process_can_be_registered_and_what_wraps_cannot() {
        let bytes = [0_u8; 100];
        let start = bytes.as_ptr().addr() as u64;
        assert_eq!(check(start, 100, true, |_, _| true), Ok(Backing::Process));
        assert_eq!(check(0, 0, true, |_, _| true), Ok(Backing::Process), "no bytes");
        assert_eq!(check(start, u64::MAX, false, |_, _| true).unwrap_err().lacks, "mapped");
    }
}
