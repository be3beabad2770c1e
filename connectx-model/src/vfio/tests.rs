//! Tests of the server, with clients in the same process and a small test device.

use std::io::{BufRead as _, BufReader, IoSlice, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use roce::engine::Time;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::protocol::command;
use super::{Device, MappedBus, Server};
use crate::bus::Bus as _;

/// Time limit for the server, far longer than it needs on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// A test device. A store to BAR 0 contains an address: the device adds 1 to the guest memory there
/// and raises vector 2. A store to BAR 2 sets a timer. A read at offset 8 of BAR 0 returns the
/// number of times the timer has expired.
struct Probe {
    buses: Vec<MappedBus>,
    config: [u8; 4096],
    faults: u32,
    resets: u32,
    deadline: Option<Time>,
    expired: u32,
}

impl Device for Probe {
    fn bar_read(&mut self, function: usize, bar: u32, offset: u64, into: &mut [u8], _: Time) {
        let value: u32 = match (bar, offset) {
            (0, 0) => self.faults,
            (0, 4) => self.resets,
            (0, 8) => self.expired,
            _ => function as u32,
        };
        let value = value.to_ne_bytes();
        let len = into.len().min(4);
        into[..len].copy_from_slice(&value[..len]);
    }

    fn bar_write(&mut self, function: usize, bar: u32, _: u64, from: &[u8], now: Time) {
        if bar == 2 {
            self.deadline = Some(now + 1_000_000);
            return;
        }
        let address = u64::from_ne_bytes(from.try_into().unwrap());
        match self.buses[function].fetch_add(address, 1) {
            Ok(_) => self.buses[function].raise(2),
            Err(_) => self.faults += 1,
        }
    }

    fn config_read(&mut self, _: usize, offset: u64, into: &mut [u8]) {
        into.copy_from_slice(&self.config[offset as usize..][..into.len()]);
    }

    fn config_write(&mut self, _: usize, offset: u64, from: &[u8]) {
        self.config[offset as usize..][..from.len()].copy_from_slice(from);
    }

    fn reset(&mut self, _: usize) {
        self.resets += 1;
    }

    fn expire(&mut self, now: Time) {
        assert!(self.deadline.is_some_and(|deadline| deadline <= now));
        self.deadline = None;
        self.expired += 1;
        self.buses[0].raise(7);
    }

    fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    fn control(&mut self, line: &str, _: Time) -> String {
        format!("you said\nok {line}\n")
    }
}

/// A server on a thread, with the paths of its sockets.
struct Running {
    directory: PathBuf,
    thread: Option<JoinHandle<std::io::Result<u32>>>,
}

impl Running {
    fn start(functions: usize) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("connectx-{}-{count}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let paths: Vec<PathBuf> = (0..functions).map(|n| directory.join(n.to_string())).collect();
        let control = directory.join("control");
        let (send, listening) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || {
            let buses: Vec<MappedBus> = paths.iter().map(|_| MappedBus::new()).collect();
            let sockets = paths.iter().map(PathBuf::as_path).zip(buses.iter().cloned()).collect();
            let mut server = Server::listen(sockets, &control).unwrap();
            send.send(()).unwrap();
            let mut probe =
                Probe { buses, config: [0; 4096], faults: 0, resets: 0, deadline: None, expired: 0 };
            server.run(&mut probe)?;
            Ok(probe.resets)
        });
        listening.recv_timeout(PATIENCE).expect("the server listens");
        Self { directory, thread: Some(thread) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn end(mut self) -> std::io::Result<u32> {
        let thread = self.thread.take().unwrap();
        let deadline = Instant::now() + PATIENCE;
        while !thread.is_finished() {
            assert!(Instant::now() < deadline, "the server did not end within {PATIENCE:?}");
            thread::yield_now();
        }
        thread.join().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

struct Client {
    stream: UnixStream,
    id: u16,
}

impl Client {
    fn new(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { stream, id: 0 }
    }

    fn greeted(path: &Path) -> Self {
        let mut client = Self::new(path);
        let response = client.call(command::VERSION, b"\0\0\0\0{}\0", &[]).unwrap();
        assert!(response.ends_with(b"}\0"));
        client
    }

    fn message(&mut self, command: u16, flags: u32, body: &[u8]) -> Vec<u8> {
        self.id += 1;
        let mut message = [self.id.to_ne_bytes(), command.to_ne_bytes()].concat();
        for word in [16 + body.len() as u32, flags, 0] {
            message.extend(word.to_ne_bytes());
        }
        message.extend(body);
        message
    }

    fn send(&mut self, message: &[u8], files: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(files)));
        }
        sendmsg(&self.stream, &[IoSlice::new(message)], &mut control, SendFlags::empty()).unwrap();
    }

    /// Receives a response. Returns its body, or its error number.
    fn response(&mut self) -> Result<Vec<u8>, i32> {
        let mut header = [0; 16];
        self.stream.read_exact(&mut header).unwrap();
        let word = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().unwrap());
        assert_eq!(header[..2], self.id.to_ne_bytes());
        let mut body = vec![0; word(4) as usize - 16];
        self.stream.read_exact(&mut body).unwrap();
        match word(8) {
            1 => Ok(body),
            0x21 => Err(word(12) as i32),
            flags => panic!("flags {flags:#x}"),
        }
    }

    fn call(&mut self, command: u16, body: &[u8], files: &[BorrowedFd<'_>]) -> Result<Vec<u8>, i32> {
        let message = self.message(command, 0, body);
        self.send(&message, files);
        self.response()
    }

    fn map(&mut self, file: &OwnedFd, address: u64, len: u64) -> Result<Vec<u8>, i32> {
        let body = [&words(&[32, 3])[..], &longs(&[0, address, len])].concat();
        self.call(command::DMA_MAP, &body, &[file.as_fd()])
    }

    fn set_irqs(&mut self, words: [u32; 5], files: &[BorrowedFd<'_>]) -> Result<Vec<u8>, i32> {
        self.call(command::DEVICE_SET_IRQS, &self::words(&words), files)
    }

    fn read(&mut self, region: u32, offset: u64, count: u32) -> Result<Vec<u8>, i32> {
        let body = [&longs(&[offset])[..], &words(&[region, count])].concat();
        self.call(command::REGION_READ, &body, &[]).map(|response| response[16..].to_vec())
    }

    fn read_word(&mut self, offset: u64) -> u32 {
        u32::from_ne_bytes(self.read(0, offset, 4).unwrap().try_into().unwrap())
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<Vec<u8>, i32> {
        let body = [&longs(&[offset])[..], &words(&[region, data.len() as u32]), data].concat();
        self.call(command::REGION_WRITE, &body, &[])
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    super::protocol::words(words)
}

fn longs(longs: &[u64]) -> Vec<u8> {
    longs.iter().flat_map(|long| long.to_ne_bytes()).collect()
}

fn memory(len: u64) -> OwnedFd {
    let file = memfd_create("memory", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, len).unwrap();
    file
}

/// Waits until the eventfd is signalled. Returns the number of interrupts.
fn raised(event: &OwnedFd) -> u64 {
    let limit = Timespec::try_from(PATIENCE).unwrap();
    let ready = poll(&mut [PollFd::new(event, PollFlags::IN)], Some(&limit)).unwrap();
    assert_eq!(ready, 1, "no interrupt within {PATIENCE:?}");
    let mut count = [0; 8];
    rustix::io::read(event, &mut count).unwrap();
    u64::from_ne_bytes(count)
}

fn word_at(file: &OwnedFd, at: u64) -> u64 {
    let mut bytes = [0; 8];
    rustix::io::pread(file, &mut bytes, at).unwrap();
    u64::from_ne_bytes(bytes)
}

const EINVAL: i32 = 22;

#[test]
fn a_store_reaches_memory_by_its_guest_address_and_raises_a_vector() {
    let running = Running::start(1);
    let mut client = Client::greeted(&running.path("0"));
    let file = memory(0x4000);
    client.map(&file, 0x10_0000, 0x4000).unwrap();
    let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    client.set_irqs([20, 4 | 32, 2, 2, 1], &[event.as_fd()]).unwrap();
    client.write(0, 0x800, &longs(&[0x10_2008])).unwrap();
    assert_eq!(raised(&event), 1);
    assert_eq!(word_at(&file, 0x2008), 1);
    drop(client);
    running.end().unwrap();
}

#[test]
fn memory_that_is_unmapped_is_not_reached_any_more() {
    let running = Running::start(1);
    let mut client = Client::greeted(&running.path("0"));
    let file = memory(0x2000);
    client.map(&file, 0x1000, 0x1000).unwrap();
    client.map(&file, 0x8000, 0x2000).unwrap();
    let unmap = |flags, address, len| [&words(&[24, flags])[..], &longs(&[address, len])].concat();
    assert_eq!(client.call(command::DMA_UNMAP, &unmap(0, 0x8000, 0x1000), &[]), Err(EINVAL));
    let body = unmap(0, 0x1000, 0x1000);
    assert_eq!(client.call(command::DMA_UNMAP, &body, &[]), Ok(body.clone()));
    client.write(0, 0, &longs(&[0x1000])).unwrap();
    assert_eq!(client.read_word(0), 1);
    client.write(0, 0, &longs(&[0x8000])).unwrap();
    assert_eq!(client.read_word(0), 1);
    client.call(command::DMA_UNMAP, &unmap(2, 0, 0), &[]).unwrap();
    client.write(0, 0, &longs(&[0x8000])).unwrap();
    assert_eq!(client.read_word(0), 2);
}

#[test]
fn memory_without_a_file_is_taken_and_is_not_there() {
    let running = Running::start(1);
    let mut client = Client::greeted(&running.path("0"));
    let body = [&words(&[32, 1])[..], &longs(&[0, 0x1000, 0x1000])].concat();
    client.call(command::DMA_MAP, &body, &[]).unwrap();
    client.write(0, 0, &longs(&[0x1000])).unwrap();
    assert_eq!(client.read_word(0), 1);
}

#[test]
fn a_client_learns_of_regions_and_interrupts() {
    let running = Running::start(1);
    let mut client = Client::greeted(&running.path("0"));
    let info = client.call(command::DEVICE_GET_INFO, &words(&[16, 0, 0, 0]), &[]).unwrap();
    assert_eq!(info, words(&[16, 3, 9, 5]));
    let mut region = |index| {
        let body = [&words(&[32, 0, index, 0])[..], &longs(&[0, 0])].concat();
        client.call(command::DEVICE_GET_REGION_INFO, &body, &[])
    };
    for (index, size) in [(0, 64 << 20), (1, 0), (2, 0x2000), (6, 0), (7, 4096), (8, 0)] {
        let flags = if size > 0 { 3 } else { 0 };
        let expected = [&words(&[32, flags, index, 0])[..], &longs(&[size, 0])].concat();
        assert_eq!(region(index), Ok(expected));
    }
    assert_eq!(region(9), Err(EINVAL));
    for (index, flags, count) in [(0, 0, 0), (2, 1, 8), (4, 0, 0)] {
        let response = client.call(command::DEVICE_GET_IRQ_INFO, &words(&[16, 0, index, 0]), &[]);
        assert_eq!(response, Ok(words(&[16, flags, index, count])));
    }
    assert_eq!(client.call(command::DEVICE_GET_IRQ_INFO, &words(&[16, 0, 5, 0]), &[]), Err(EINVAL));
}

#[test]
fn vectors_are_set_up_triggered_and_taken_away() {
    let running = Running::start(1);
    let mut client = Client::greeted(&running.path("0"));
    let events: Vec<OwnedFd> =
        (0..3).map(|_| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()).collect();
    let files: Vec<BorrowedFd<'_>> = events.iter().map(AsFd::as_fd).collect();
    client.set_irqs([20, 4 | 32, 2, 1, 3], &files).unwrap();
    // First the vectors are triggered by number, then with a byte for each.
    client.set_irqs([20, 1 | 32, 2, 2, 1], &[]).unwrap();
    client
        .call(command::DEVICE_SET_IRQS, &[&words(&[23, 2 | 32, 2, 1, 3])[..], &[0, 1, 1]].concat(), &[])
        .unwrap();
    let mut count = [0; 8];
    assert!(rustix::io::read(&events[0], &mut count).is_err());
    assert_eq!((raised(&events[1]), raised(&events[2])), (2, 1));
    // First one vector loses its file, then all of them do.
    client.set_irqs([20, 4 | 32, 2, 2, 1], &[]).unwrap();
    client.set_irqs([20, 1 | 32, 2, 0, 8], &[]).unwrap();
    assert!(rustix::io::read(&events[1], &mut count).is_err());
    assert_eq!((raised(&events[0]), raised(&events[2])), (1, 1));
    client.set_irqs([20, 1 | 32, 2, 0, 0], &[]).unwrap();
    client.set_irqs([20, 1 | 32, 2, 0, 8], &[]).unwrap();
    assert!(rustix::io::read(&events[0], &mut count).is_err());
    // Vectors, interrupt kinds and data types that do not exist.
    for wrong in
        [[20, 4 | 32, 2, 7, 2], [20, 4 | 32, 2, u32::MAX, 2], [20, 4 | 32, 9, 0, 1], [20, 32, 2, 0, 1]]
    {
        assert_eq!(client.set_irqs(wrong, &files[..2]), Err(EINVAL), "{wrong:?}");
    }
    assert_eq!(client.set_irqs([20, 4 | 32, 2, 0, 2], &files), Err(EINVAL));
    client.set_irqs([20, 1 | 32, 0, 0, 0], &[]).unwrap();
}

#[test]
fn the_configuration_space_is_read_and_written_and_the_function_reset() {
    let running = Running::start(1);
    let mut client = Client::greeted(&running.path("0"));
    client.write(7, 0xffe, &[1, 2]).unwrap();
    assert_eq!(client.read(7, 0xffc, 4), Ok(vec![0, 0, 1, 2]));
    client.call(command::DEVICE_RESET, &[], &[]).unwrap();
    assert_eq!(client.read_word(4), 1);
    drop(client);
    assert_eq!(running.end().unwrap(), 1);
}

#[test]
fn accesses_outside_of_regions_are_refused() {
    let running = Running::start(1);
    let mut client = Client::greeted(&running.path("0"));
    for (region, offset, count) in [
        (7, 0xfff, 2),
        (0, 64 << 20, 1),
        (2, u64::MAX, 4),
        (9, 0, 4),
        (1, 0, 4),
        (0, 0, 1 << 20),
        (0, 0, u32::MAX),
    ] {
        assert_eq!(client.read(region, offset, count), Err(EINVAL), "{region} {offset:#x} {count}");
    }
    // A count of 8 without as many bytes.
    let body = [&longs(&[0])[..], &words(&[0, 8]), &[1; 4]].concat();
    assert_eq!(client.call(command::REGION_WRITE, &body, &[]), Err(EINVAL));
}

#[test]
fn deadlines_are_met_without_messages() {
    let running = Running::start(1);
    let mut client = Client::greeted(&running.path("0"));
    let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    client.set_irqs([20, 4 | 32, 2, 7, 1], &[event.as_fd()]).unwrap();
    client.write(2, 0, &[0; 4]).unwrap();
    assert_eq!(raised(&event), 1);
    assert_eq!(client.read_word(8), 1);
}

#[test]
fn a_message_in_pieces_is_a_message_and_blocks_no_other_client() {
    let running = Running::start(2);
    let mut slow = Client::greeted(&running.path("0"));
    let mut other = Client::greeted(&running.path("1"));
    let message = slow.message(command::REGION_READ, 0, &[&longs(&[0x40])[..], &words(&[0, 4])].concat());
    for byte in &message[..message.len() - 1] {
        slow.stream.write_all(&[*byte]).unwrap();
        assert_eq!(other.read_word(0x40), 1);
    }
    slow.stream.write_all(&message[message.len() - 1..]).unwrap();
    assert_eq!(slow.response().unwrap()[16..], words(&[0]));
}

#[test]
fn a_message_without_a_reply_flag_gets_no_response() {
    let running = Running::start(1);
    let mut client = Client::greeted(&running.path("0"));
    let message = client.message(command::DEVICE_RESET, 1 << 4, &[]);
    client.send(&message, &[]);
    assert_eq!(client.read_word(4), 1);
}

#[test]
fn nothing_is_done_before_the_version_is_agreed() {
    let running = Running::start(1);
    let mut client = Client::new(&running.path("0"));
    assert!(client.call(command::DEVICE_RESET, &[], &[]).is_err());
    assert_eq!(client.call(command::VERSION, b"\x01\0\0\0{}\0", &[]), Err(EINVAL));
    client.call(command::VERSION, b"\0\0\x01\0{}\0", &[]).unwrap();
    assert_eq!(client.call(command::VERSION, b"\0\0\0\0{}\0", &[]), Err(EINVAL));
    assert_eq!(client.read_word(4), 0);
}

#[test]
fn unknown_requests_and_short_ones_are_refused_and_the_next_is_served() {
    let running = Running::start(1);
    let mut client = Client::greeted(&running.path("0"));
    for command in [0, 6, 11, 12, 14, 15, u16::MAX] {
        assert!(client.call(command, &[0; 64], &[]).is_err());
    }
    for command in 2..=10 {
        if command != command::DEVICE_GET_INFO {
            assert!(client.call(command, &[0; 7], &[]).is_err(), "{command}");
        }
    }
    let file = memory(0x1000);
    let body = [&words(&[32, 3])[..], &longs(&[0, 0, 0x1000])].concat();
    assert_eq!(client.call(command::DMA_MAP, &body, &[file.as_fd(), file.as_fd()]), Err(EINVAL));
    assert_eq!(client.map(&file, 0, 0x2000), Err(EINVAL));
    assert_eq!(client.read_word(0), 0);
}

#[test]
fn a_malformed_message_ends_the_connection_and_is_reported_at_the_end() {
    for header in [[0u32, 4, 0, 0], [0, u32::MAX, 0, 0], [0, 16, 1, 0]] {
        let running = Running::start(1);
        let mut client = Client::new(&running.path("0"));
        client.stream.write_all(&words(&header)).unwrap();
        assert_eq!(client.stream.read(&mut [0; 1]).unwrap(), 0);
        assert!(running.end().unwrap_err().to_string().contains("function 0"));
    }
}

#[test]
fn it_ends_when_all_clients_have_gone() {
    let running = Running::start(2);
    let first = Client::greeted(&running.path("0"));
    let mut second = Client::greeted(&running.path("1"));
    drop(first);
    assert_eq!(second.read_word(4), 0);
    drop(second);
    running.end().unwrap();
}

#[test]
fn a_line_of_the_control_socket_is_answered_in_lines() {
    let running = Running::start(1);
    let client = Client::greeted(&running.path("0"));
    let control = UnixStream::connect(running.path("control")).unwrap();
    control.set_read_timeout(Some(PATIENCE)).unwrap();
    (&control).write_all(b"port do").unwrap();
    (&control).write_all(b"wn\n\n  list \n").unwrap();
    let mut lines = BufReader::new(&control).lines().map(Result::unwrap);
    assert_eq!(
        lines.by_ref().take(4).collect::<Vec<_>>(),
        ["you said", "ok port down", "you said", "ok list"]
    );
    // A client is disconnected if its line is too long.
    let endless = UnixStream::connect(running.path("control")).unwrap();
    endless.set_read_timeout(Some(PATIENCE)).unwrap();
    let _ = (&endless).write_all(&[b'x'; 5000]);
    assert!(matches!((&endless).read(&mut [0; 1]), Ok(0) | Err(_)));
    drop(client);
    running.end().unwrap();
}

#[test]
fn a_path_that_is_taken_is_named() {
    let running = Running::start(1);
    let taken = running.path("0");
    let error = Server::listen(vec![(&taken, MappedBus::new())], &running.path("other")).unwrap_err();
    assert!(error.to_string().contains(taken.to_str().unwrap()), "{error}");
    drop(Client::greeted(&taken));
    running.end().unwrap();
}
