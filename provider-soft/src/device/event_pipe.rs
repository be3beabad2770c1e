//! [`EventPipe`]: carries events to a program waiting in `poll(2)` or in a blocking read.
//!
//! The program has a descriptor for reading records of a fixed size, like the kernel's completion
//! channels and asynchronous files. For asynchronous events it is one end of a stream socket; a
//! completion channel is a socket [connected to itself](crate::objects::comp_channel). Writing
//! never blocks and never raises a signal. Records that do not fit are kept in order, and the
//! worker writes them once there is space. No event is lost while the process has memory. Once the
//! program has closed its end, records are dropped. When an object is destroyed, its unread records
//! are removed, as in the kernel, so that the program's end is readable only if it contains an
//! event.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use nix::errno::Errno as NixErrno;
use nix::sys::socket::{MsgFlags, recv, send};
use verbs_core::Errno;

/// The writing end of a pipe for events.
#[derive(Debug)]
pub(crate) struct EventPipe {
    writer: Arc<OwnedFd>,
    kept: Mutex<VecDeque<Record>>,
    /// The length of a record, in bytes.
    record_len: usize,
}

/// A record, at most as long as an asynchronous event.
#[derive(Clone, Copy, Debug)]
struct Record {
    bytes: [u8; 16],
    len: usize,
}

/// The outcome of writing records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// All records were written, or dropped because the program has closed its end.
    All,
    /// Some records did not fit and are kept.
    Kept,
}

impl EventPipe {
    /// Returns a writing end for records of `record_len` bytes, at most 16, and the program's end.
    ///
    /// # Errors
    /// Any errno of `socketpair(2)`, notably `EMFILE`.
    pub(crate) fn pair(record_len: usize) -> Result<(Self, OwnedFd), Errno> {
        let (stream, theirs) = UnixStream::pair().map_err(|error| Errno::from_io(&error))?;
        Ok((Self::looped(stream.into(), record_len), theirs.into()))
    }

    /// Returns a writing end for a socket connected to itself.
    pub(crate) fn looped(socket: OwnedFd, record_len: usize) -> Self {
        Self { writer: Arc::new(socket), kept: Mutex::default(), record_len }
    }

    /// Returns the socket. If it is connected to itself, the program also reads records from it.
    pub(crate) fn socket(&self) -> &Arc<OwnedFd> {
        &self.writer
    }

    /// Writes a record, after any kept records.
    pub(crate) fn write(&self, bytes: &[u8]) -> Written {
        let mut record = Record { bytes: [0; 16], len: bytes.len() };
        record.bytes[..bytes.len()].copy_from_slice(bytes);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        // The kernel also loses events when memory is short.
        if kept.try_reserve(1).is_ok() {
            kept.push_back(record);
        }
        self.write_kept(&mut kept)
    }

    /// Reads unread records through the reading end, drops the records selected by `dropped`, and
    /// returns the number of dropped records. A program that reads at the same time still gets the
    /// other records, but perhaps out of order. Even then the number is exact, because the socket
    /// gives each record to only one reader. If memory is short, remaining records may be lost,
    /// like any record.
    pub(crate) fn take_back(
        &self,
        reader: BorrowedFd<'_>,
        dropped: impl Fn(&[u8]) -> bool,
    ) -> (u32, Written) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut unread, mut count) = (VecDeque::new(), 0);
        loop {
            let mut record = Record { bytes: [0; 16], len: self.record_len };
            match recv(reader.as_raw_fd(), &mut record.bytes[..self.record_len], MsgFlags::MSG_DONTWAIT) {
                Ok(0) => break,
                Ok(len) if dropped(&record.bytes[..len]) => count += 1,
                Ok(len) => {
                    record.len = len;
                    if unread.try_reserve(1).is_ok() {
                        unread.push_back(record);
                    }
                }
                Err(NixErrno::EINTR) => {}
                Err(_) => break,
            }
        }
        let all = kept.len();
        kept.retain(|record| !dropped(&record.bytes[..record.len]));
        count += (all - kept.len()) as u32;
        // Records from the socket are older than the kept records.
        if kept.try_reserve(unread.len()).is_ok() {
            unread.into_iter().rev().for_each(|record| kept.push_front(record));
        }
        (count, self.write_kept(&mut kept))
    }

    /// Writes as many kept records as fit.
    pub(crate) fn retry(&self) -> Written {
        self.write_kept(&mut self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn write_kept(&self, kept: &mut VecDeque<Record>) -> Written {
        while let Some(record) = kept.front() {
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            match send(self.writer.as_raw_fd(), &record.bytes[..record.len], flags) {
                // A socket accepts a record of this size entirely or not at all.
                Ok(_) => drop(kept.pop_front()),
                Err(NixErrno::EINTR) => {}
                Err(NixErrno::EAGAIN | NixErrno::ENOBUFS | NixErrno::ENOMEM) => return Written::Kept,
                Err(_) => kept.clear(),
            }
        }
        Written::All
    }
}

/// The descriptor is writable when there is space for kept records.
impl AsFd for EventPipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.writer.as_fd()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io::Read;
    use std::time::Duration;

    use super::*;

    /// Returns the reading end. Reading from it fails instead of waiting if a record was lost.
    fn nonblocking(theirs: OwnedFd) -> UnixStream {
        let stream = UnixStream::from(theirs);
        stream.set_nonblocking(true).unwrap();
        stream
    }

    #[test]
    fn records_that_do_not_fit_come_later_in_order() {
        let (pipe, theirs) = EventPipe::pair(8).unwrap();
        let mut count = 0_u64;
        while pipe.write(&count.to_ne_bytes()) == Written::All {
            count += 1;
        }
        for more in count + 1..count + 10 {
            assert_eq!(pipe.write(&more.to_ne_bytes()), Written::Kept);
        }
        let mut file = nonblocking(theirs);
        for expected in 0..count + 10 {
            let mut record = [0; 8];
            file.read_exact(&mut record).unwrap();
            assert_eq!(u64::from_ne_bytes(record), expected);
            pipe.retry();
        }
        assert_eq!(pipe.retry(), Written::All);
    }

    #[test]
    fn unread_records_are_taken_back_and_the_rest_stay_in_order() {
        let (pipe, theirs) = EventPipe::pair(8).unwrap();
        let mut count = 0_u64;
        // Some records are now in the stream and others are kept.
        while pipe.write(&(count % 3).to_ne_bytes()) == Written::All {
            count += 1;
        }
        for more in count + 1..count + 6 {
            assert_eq!(pipe.write(&(more % 3).to_ne_bytes()), Written::Kept);
        }
        let is_one = |bytes: &[u8]| bytes == 1_u64.to_ne_bytes();
        let (ones, others): (Vec<u64>, Vec<u64>) = (0..count + 6).map(|n| n % 3).partition(|n| *n == 1);
        assert_eq!(pipe.take_back(theirs.as_fd(), is_one), (ones.len() as u32, Written::All));
        let mut file = nonblocking(theirs);
        for expected in others {
            let mut record = [0; 8];
            file.read_exact(&mut record).unwrap();
            assert_eq!(u64::from_ne_bytes(record), expected);
        }
        assert_eq!(pipe.take_back(file.as_fd(), |_| true), (0, Written::All), "of nothing");
        drop(pipe);
        assert_eq!(file.read(&mut [0; 8]).unwrap(), 0, "nothing more");
    }

    #[test]
    fn records_that_a_thread_reads_meanwhile_and_those_taken_back_are_all_records() {
        const RECORDS: u32 = 20_000;
        let (pipe, theirs) = EventPipe::pair(8).unwrap();
        let reader = theirs.try_clone().unwrap();
        let read = std::thread::scope(|scope| {
            let counter = scope.spawn(|| {
                let mut file = UnixStream::from(theirs);
                file.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
                let (mut count, mut record) = (0, [0; 8]);
                // The last record has different content.
                while file.read_exact(&mut record).is_ok() && record != 1_u64.to_ne_bytes() {
                    count += 1;
                }
                count
            });
            let (mut written, mut taken) = (0, 0);
            while written < RECORDS {
                for _ in 0..10 {
                    pipe.write(&0_u64.to_ne_bytes());
                    written += 1;
                }
                taken += pipe.take_back(reader.as_fd(), |_| true).0;
            }
            pipe.write(&1_u64.to_ne_bytes());
            (taken, counter.join().unwrap())
        });
        assert_eq!(read.0 + read.1, RECORDS, "taken back, and read");
    }

    #[test]
    fn a_program_that_closed_its_end_is_no_error() {
        let (pipe, theirs) = EventPipe::pair(16).unwrap();
        drop(theirs);
        assert_eq!(pipe.write(&[0; 16]), Written::All);
    }
}
