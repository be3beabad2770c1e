//! [`Capture`]: copies of the packets that devices send and receive, in a pcap file.
//!
//! Sockets pass only the UDP payload, so this module writes the IP and UDP headers, from a packet's
//! addresses and the fields that the kernel reports. Other fields have the values of this host's
//! own packets. The link header used by `tcpdump -i any` (`LINKTYPE_LINUX_SLL2`) precedes them and
//! shows whether the packet was sent or received.
//!
//! A packet to send is copied when it is first offered to the kernel, so its copy precedes any
//! packet received in response. The kernel may still reject it.
//!
//! Processes may share a file, as both ends of a test do. Each record is one `write(2)` at the end
//! of the file (`O_APPEND`), so records of several processes do not mix. The file header is written
//! under a lock.
//!
//! # References
//! pcap-savefile(5); <https://www.tcpdump.org/linktypes/LINKTYPE_LINUX_SLL2.html>

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use verbs_core::Errno;

/// A pcap file that receives copies of packets.
#[derive(Debug)]
pub(crate) struct Capture {
    file: File,
    /// The buffer for one record.
    record: Mutex<Vec<u8>>,
    /// Whether the capture has ended because a record could not be written.
    has_ended: AtomicBool,
}

/// The fields for a packet's IP and UDP headers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Headers {
    /// The address and UDP port of the sender.
    pub(super) source: (IpAddr, u16),
    /// The address and UDP port of the receiver.
    pub(super) destination: (IpAddr, u16),
    pub(super) traffic_class: u8,
    /// The hop limit; 0 if unknown.
    pub(super) hop_limit: u8,
    /// The IPv4 identification.
    pub(super) id: u16,
}

/// The direction of a packet, as encoded in `LINKTYPE_LINUX_SLL2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Received = 0,
    Sent = 4,
}

/// The file header: version 2.4, nanosecond times, packets of up to 256 KiB,
/// `LINKTYPE_LINUX_SLL2`.
const FILE_HEADER: [u8; 24] = {
    let fields = [0xa1b2_3c4d_u32, 2 | 4 << 16, 0, 0, 256 << 10, 276];
    let mut header = [0; 24];
    let mut at = 0;
    while at < header.len() {
        header[at] = fields[at / 4].to_ne_bytes()[at % 4];
        at += 1;
    }
    header
};

/// The hop limit written for received packets if the kernel reports none: the default of Linux.
const USUAL_HOP_LIMIT: u8 = 64;

impl Capture {
    /// Opens a file, or creates it for this user alone, because packets contain program data.
    /// Packets already in the file are kept.
    ///
    /// # Errors
    /// `EEXIST` if the file has other contents; `EINVAL` for a pipe or device; any errno of
    /// `open(2)`, `read(2)` and `write(2)`.
    #[cold]
    #[inline(never)]
    pub(crate) fn open(path: &Path) -> Result<Box<Self>, Errno> {
        Self::open_file(path).map(Box::new).map_err(|error| Errno::from_io(&error))
    }

    fn open_file(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        // So that opening a FIFO does not block.
        options
            .append(true)
            .read(true)
            .create(true)
            .mode(0o600)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC);
        let mut file = options.open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        file.lock()?;
        let mut header = [0; FILE_HEADER.len()];
        let mut len = 0;
        while len < header.len() {
            match file.read(&mut header[len..])? {
                0 => break,
                read => len += read,
            }
        }
        if len == 0 {
            if !has_room(&file, header.len()) {
                return Err(io::Error::from_raw_os_error(libc::EFBIG));
            }
            file.write_all(&FILE_HEADER)?;
        } else if header != FILE_HEADER {
            return Err(io::Error::from_raw_os_error(libc::EEXIST));
        }
        file.unlock()?;
        Ok(Self { file, record: Mutex::default(), has_ended: AtomicBool::new(false) })
    }

    /// Appends a packet, from BTH to ICRC, to the file.
    #[cold]
    pub(super) fn packet(&self, direction: Direction, headers: &Headers, packet: &[u8]) {
        if self.has_ended.load(Ordering::Relaxed) {
            return;
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        record.clear();
        record.extend((now.as_secs() as u32).to_ne_bytes());
        record.extend(now.subsec_nanos().to_ne_bytes());
        // The captured length and the original length, filled in below.
        record.extend([0; 8]);
        append_headers(&mut record, direction, headers, packet.len());
        record.extend(packet);
        let len = (record.len() - RECORD_HEADER) as u32;
        record[8..12].copy_from_slice(&len.to_ne_bytes());
        record[12..16].copy_from_slice(&len.to_ne_bytes());
        // If a full file system truncates a record, readers cannot find the records after it.
        let is_written = has_room(&self.file, record.len())
            && (&self.file).write(&record).is_ok_and(|len| len == record.len());
        self.has_ended.store(!is_written, Ordering::Relaxed);
    }
}

/// The length of a record's header, in bytes.
const RECORD_HEADER: usize = 16;

/// The length of a UDP header, in bytes.
const UDP_HEADER: usize = 8;

/// Appends the link, IP and UDP headers of a packet of `len` bytes.
fn append_headers(record: &mut Vec<u8>, direction: Direction, headers: &Headers, len: usize) {
    let Headers { source: (source, source_port), destination: (destination, port), .. } = *headers;
    let ethertype: u16 = if source.is_ipv4() { 0x0800 } else { 0x86dd };
    record.extend(ethertype.to_be_bytes());
    // Reserved; no interface index; the type of an unknown interface; no link-layer address.
    record.extend([0; 2 + 4]);
    record.extend(libc::ARPHRD_VOID.to_be_bytes());
    record.extend([direction as u8, 0]);
    record.extend([0; 8]);
    let hop_limit = if headers.hop_limit == 0 { USUAL_HOP_LIMIT } else { headers.hop_limit };
    let udp_len = ((UDP_HEADER + len) as u16).to_be_bytes();
    let start = record.len();
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            record.extend([0x45, headers.traffic_class]);
            record.extend(((20 + UDP_HEADER + len) as u16).to_be_bytes());
            record.extend(headers.id.to_be_bytes());
            record.extend(0x4000_u16.to_be_bytes());
            record.extend([hop_limit, libc::IPPROTO_UDP as u8, 0, 0]);
            record.extend(source.octets());
            record.extend(destination.octets());
            let sum = checksum(&record[start..]);
            record[start + 10..start + 12].copy_from_slice(&sum.to_be_bytes());
        }
        _ => {
            let class = u32::from(headers.traffic_class);
            record.extend((6 << 28 | class << 20).to_be_bytes());
            record.extend(udp_len);
            record.extend([libc::IPPROTO_UDP as u8, hop_limit]);
            record.extend(v6(source));
            record.extend(v6(destination));
        }
    }
    record.extend(source_port.to_be_bytes());
    record.extend(port.to_be_bytes());
    record.extend(udp_len);
    // RoCE v2 packets have the ICRC instead of a UDP checksum.
    record.extend([0; 2]);
}

fn v6(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Returns the checksum of an IPv4 header whose checksum field is 0.
fn checksum(header: &[u8]) -> u16 {
    let words = header.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

/// Returns whether the process may make the file `len` bytes longer. Otherwise, a write would kill
/// the process (`SIGXFSZ`).
fn has_room(file: &File, len: usize) -> bool {
    let Ok((limit, _)) = getrlimit(Resource::RLIMIT_FSIZE) else { return false };
    limit == RLIM_INFINITY || file.metadata().is_ok_and(|of| of.len() + len as u64 <= limit)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::fs;
    use std::net::{Ipv4Addr, Ipv6Addr};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// The path of a file for a test to create. Dropping the path removes the file.
    struct Path(std::path::PathBuf);

    impl Path {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("verbs-capture-{name}-{}", std::process::id()));
            let _ = fs::remove_file(&path);
            Self(path)
        }
    }

    impl Drop for Path {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    fn headers(source: IpAddr, destination: IpAddr) -> Headers {
        let (source, destination) = ((source, 4791), (destination, 4791));
        Headers { source, destination, traffic_class: 8, hop_limit: 3, id: 2 }
    }

    const FROM: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    const TO: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));

    #[test]
    fn a_packet_has_the_headers_that_the_wire_has() {
        let path = Path::new("headers");
        let capture = Capture::open(&path.0).unwrap();
        capture.packet(Direction::Sent, &headers(FROM, TO), &[7; 20]);
        let bytes = fs::read(&path.0).unwrap();
        assert_eq!(bytes[..24], FILE_HEADER);
        let record = &bytes[24..];
        assert_eq!(record.len(), 16 + 20 + 20 + 8 + 20);
        assert_eq!(
            (record[8..12] == 68_u32.to_ne_bytes(), record[12..16] == 68_u32.to_ne_bytes()),
            (true, true)
        );
        assert_eq!(record[16..36], [8, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let ip = &record[36..56];
        assert_eq!(ip[..10], [0x45, 8, 0, 48, 0, 2, 0x40, 0, 3, 17]);
        assert_eq!(ip[12..], [192, 0, 2, 1, 192, 0, 2, 2]);
        assert_eq!(checksum(ip), 0, "the checksum of a header with its checksum is 0");
        assert_eq!(record[56..64], [0x12, 0xb7, 0x12, 0xb7, 0, 28, 0, 0]);
        assert_eq!(record[64..], [7; 20]);
        assert_eq!(fs::metadata(&path.0).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn an_ipv6_packet_has_its_header() {
        let path = Path::new("ipv6");
        let capture = Capture::open(&path.0).unwrap();
        let [from, to] = [1, 2].map(|last| IpAddr::from(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last)));
        capture.packet(Direction::Received, &Headers { hop_limit: 0, ..headers(from, to) }, &[7; 20]);
        let record = &fs::read(&path.0).unwrap()[24..];
        assert_eq!((&record[16..18], record[26]), (&[0x86, 0xdd][..], 0));
        let ip = &record[36..76];
        assert_eq!(ip[..8], [0x60, 0x80, 0, 0, 0, 28, 17, USUAL_HOP_LIMIT]);
        assert_eq!((ip[8], ip[23], ip[24], ip[39]), (0xfd, 1, 0xfd, 2));
        assert_eq!(record[76..84], [0x12, 0xb7, 0x12, 0xb7, 0, 28, 0, 0]);
    }

    #[test]
    fn processes_add_to_one_file_and_keep_other_files() {
        let path = Path::new("shared");
        let captures = [(); 2].map(|()| Capture::open(&path.0).unwrap());
        for capture in &captures {
            capture.packet(Direction::Sent, &headers(FROM, TO), &[1; 100]);
        }
        let bytes = fs::read(&path.0).unwrap();
        assert_eq!(bytes.len(), 24 + 2 * (16 + 48 + 100));
        assert_eq!(bytes.windows(4).filter(|bytes| *bytes == &FILE_HEADER[..4]).count(), 1);
        for contents in ["a", "a text that is longer than the header of a file"] {
            fs::write(&path.0, contents).unwrap();
            assert_eq!(Capture::open(&path.0).unwrap_err(), Errno::EXIST);
            assert_eq!(fs::read_to_string(&path.0).unwrap(), contents);
        }
        for (path, errno) in [("/no/such/folder/file", Errno::NOENT), ("/dev/null", Errno::INVAL)] {
            assert_eq!(Capture::open(path.as_ref()).unwrap_err(), errno);
        }
    }

    #[test]
    fn a_file_that_cannot_grow_ends_the_capture_alone() {
        let full = Capture {
            file: OpenOptions::new().write(true).open("/dev/full").unwrap(),
            record: Mutex::default(),
            has_ended: AtomicBool::new(false),
        };
        full.packet(Direction::Sent, &headers(FROM, TO), &[1; 100]);
        assert!(full.has_ended.load(Ordering::Relaxed));
    }
}
