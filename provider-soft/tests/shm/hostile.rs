//! [`Hostile`]: a process of the same user that performs the rendezvous of `shm::peers` by hand,
//! incorrectly.

use std::fs::File;
use std::io::IoSlice;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::process::ExitCode;
use std::thread::JoinHandle;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, accept, bind, connect,
    listen, recv, send, sendmsg, setsockopt, socket, sockopt::ReceiveTimeout,
};
use nix::sys::time::{TimeVal, TimeValLike as _};
use nix::unistd::geteuid;

use crate::common::PATIENCE;
use crate::peer::Peer;

/// Kinds of invalid messages. The device closes the connection as soon as it has read one.
pub(crate) const MALFORMED: [&str; 13] = [
    "empty message",
    "short message",
    "long message",
    "wrong version",
    "no files",
    "one file",
    "three files",
    "pipes",
    "unsealed files",
    "small files",
    "sparse files",
    "/dev/null",
    "swapped files",
];

/// Kinds of invalid rings. The device closes the connection as soon as it has looked at one.
pub(crate) const INVALID_RINGS: [&str; 6] = [
    "invalid header",
    "short record",
    "long record",
    "invalid second record",
    "records in missing pages",
    "records beyond the end",
];

/// A process that makes connections with invalid messages or rings.
#[derive(Debug)]
pub(crate) struct Hostile(Peer);

impl Hostile {
    /// Starts the process and waits until it has sent its messages.
    pub(crate) fn start(what: &str, name: &str, count: u32) -> Self {
        let mut process = Peer::start_as(&["hostile", what, name, &count.to_string()], |_| {});
        process.execute("connect");
        Self(process)
    }

    /// Waits until the device has closed all connections.
    pub(crate) fn finish(mut self) {
        self.0.execute("wait for the end");
    }
}

pub(crate) fn run() -> ExitCode {
    let args: Vec<_> = std::env::args().skip(2).collect();
    let [what, name, count] = &args[..] else { panic!("{args:?}") };
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    println!("begun");
    let mut connections = Vec::new();
    for command in std::io::stdin().lines() {
        if command.expect("text") == "connect" {
            connections.extend((0..count.parse().unwrap()).map(|number| attack(what, name, number)));
        } else {
            for connection in &connections {
                let timeout = TimeVal::seconds(PATIENCE.as_secs().cast_signed());
                setsockopt(connection, ReceiveTimeout, &timeout).unwrap();
                // Replies and doorbells may arrive before the end.
                while !matches!(
                    recv(connection.as_raw_fd(), &mut [0; 64], MsgFlags::empty()),
                    Ok(0) | Err(nix::Error::ECONNRESET)
                ) {}
            }
        }
        println!("ok");
    }
    ExitCode::SUCCESS
}

fn stream() -> OwnedFd {
    socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap()
}

/// Connects to a device and sends a message with the kind of defect named by `what`.
fn attack(what: &str, name: &str, number: u32) -> OwnedFd {
    let socket = stream();
    connect(socket.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes()).unwrap()).unwrap();
    if what == "silent" {
        return socket;
    }
    let [.., high, low] = number.to_be_bytes();
    let mut message = [0; 24];
    message[..5].copy_from_slice(b"VSM3\x07");
    message[18..].copy_from_slice(&[0xff, 0xff, 127, 254, high, low]);
    let mut bytes = message.to_vec();
    let mut files = vec![ring(&[]), page()];
    match what {
        "empty message" => bytes.clear(),
        "short message" => bytes.truncate(23),
        "long message" => bytes.push(0),
        "wrong version" => bytes[3] = b'1',
        "no files" => files.clear(),
        "one file" => files.truncate(1),
        "three files" => files.push(page()),
        "pipes" => {
            let (reader, writer) = std::io::pipe().unwrap();
            files = vec![reader.into(), writer.into()];
        }
        "unsealed files" => files = vec![file(RING, WINDOW, RING_MAGIC, &[], SealFlag::empty()), page()],
        "small files" => files = vec![file(WINDOW, WINDOW, RING_MAGIC, &[], SEALS), page()],
        "sparse files" => files = vec![file(RING, WINDOW - PAGE, RING_MAGIC, &[], SEALS), page()],
        "/dev/null" => files = vec![null(), null()],
        "swapped files" => files.reverse(),
        "invalid header" => files[0] = ring(&[u64::MAX]),
        "short record" => files[0] = ring(&[11]),
        "long record" => files[0] = ring(&[60_000]),
        "invalid second record" => files[0] = ring(&[44, 1 << 63]),
        "records in missing pages" => files[0] = ring(&[44; (WINDOW - PAGE) / 64]),
        "records beyond the end" => files[0] = ring(&[44; (RING - PAGE) / 64]),
        "ring of packets" => files[0] = ring(&[44; 500]),
        other => panic!("{other}"),
    }
    let fds: Vec<_> = files.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&fds)];
    let rights = if fds.is_empty() { &[][..] } else { &rights[..] };
    let bytes = [IoSlice::new(&bytes)];
    match sendmsg::<()>(socket.as_raw_fd(), &bytes, rights, MsgFlags::MSG_NOSIGNAL, None) {
        // A device without free descriptors has already closed the connection.
        Ok(_) | Err(nix::Error::EPIPE | nix::Error::ECONNRESET) => {}
        Err(error) => panic!("{error}"),
    }
    socket
}

fn null() -> OwnedFd {
    File::open("/dev/null").unwrap().into()
}

/// Returns a valid ring file with these record headers, 64 bytes apart.
fn ring(headers: &[u64]) -> OwnedFd {
    let words: Vec<_> = headers.iter().enumerate().map(|(n, header)| (4096 + n * 64, *header)).collect();
    let pages = if headers.len() * 64 < WINDOW { WINDOW } else { RING };
    file(RING, pages, RING_MAGIC, &words, SEALS)
}

/// Returns a valid sleep page, which shows that the device sleeps.
fn page() -> OwnedFd {
    file(PAGE, PAGE, PAGE_MAGIC, &[(128, 1)], SEALS)
}

/// Creates a file of `len` bytes and allocates its first `pages` bytes.
fn file(len: usize, pages: usize, magic: [u8; 8], words: &[(usize, u64)], seals: SealFlag) -> OwnedFd {
    let file = memfd_create("hostile", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING).unwrap();
    let file = File::from(file);
    file.set_len(len as u64).unwrap();
    file.write_all_at(&vec![0; pages], 0).unwrap();
    file.write_all_at(&u64::from_be_bytes(magic).to_ne_bytes(), 0).unwrap();
    for (at, word) in words {
        file.write_all_at(&word.to_ne_bytes(), *at as u64).unwrap();
    }
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).unwrap();
    file.into()
}

const RING: usize = 2 << 20;
const WINDOW: usize = 64 << 10;
const PAGE: usize = 4096;
const RING_MAGIC: [u8; 8] = *b"vrbring\x02";
const PAGE_MAGIC: [u8; 8] = *b"vrbslep\x01";
const SEALS: SealFlag =
    SealFlag::F_SEAL_SHRINK.union(SealFlag::F_SEAL_GROW).union(SealFlag::F_SEAL_FUTURE_WRITE);

/// Accepts one connection at an unshared address, replies as a device does that has made a
/// connection with precedence, and closes the connection.
pub(crate) fn reject_one(address: IpAddr) -> JoinHandle<()> {
    let listener = stream();
    let name = format!("verbs-soft/link/3/{}/{address}%0/4791/0", geteuid());
    bind(listener.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes()).unwrap()).unwrap();
    listen(&listener, Backlog::new(1).unwrap()).unwrap();
    std::thread::spawn(move || {
        let accepted = accept(listener.as_raw_fd()).unwrap();
        send(accepted, b"P", MsgFlags::empty()).unwrap();
        nix::unistd::close(accepted).unwrap();
    })
}
