//! [`Link`]: the TCP connection over which two peers exchange numbers and synchronise.
//!
//! It carries lines. A side that fails reports so in its last line, so that the other side does not
//! wait for it.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use verbs_harness::process;
use verbs_harness::runner::{CaseResult, fail};

/// One end of the connection.
#[derive(Debug)]
pub struct Link {
    reader: BufReader<TcpStream>,
    writer: TcpStream,
}

/// Beyond the time of a step, with retries, in an emulated guest on a busy machine.
const PATIENCE: Duration = Duration::from_secs(100);
/// The prefix of the last line of a failed side.
const FAILED: &str = "failed: ";

impl Link {
    /// Waits for the other side to connect.
    ///
    /// # Errors
    /// Any errno of binding the address; no connection in time.
    pub fn listen(address: SocketAddr) -> CaseResult<Self> {
        Self::accept(&TcpListener::bind(address)?, PATIENCE)
    }

    fn accept(listener: &TcpListener, limit: Duration) -> CaseResult<Self> {
        let timeout = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
        if poll(&mut [PollFd::new(listener.as_fd(), PollFlags::POLLIN)], timeout)? == 0 {
            return fail(format_args!("the peer did not come within {limit:?}"));
        }
        Self::new(listener.accept()?.0)
    }

    /// Connects to the other side, which may not be listening yet.
    ///
    /// # Errors
    /// No listener in time.
    pub fn connect(address: SocketAddr) -> CaseResult<Self> {
        let mut last = None;
        let connected = process::wait_until(PATIENCE, || match TcpStream::connect(address) {
            Ok(stream) => {
                last = Some(Ok(stream));
                true
            }
            Err(error) => {
                last = Some(Err(error));
                false
            }
        });
        match last {
            Some(Ok(stream)) if connected => Self::new(stream),
            other => fail(format_args!("nobody answers at {address}: {other:?}")),
        }
    }

    /// Returns both ends in one process.
    ///
    /// # Errors
    /// Any errno of connecting over loopback.
    pub fn pair() -> CaseResult<(Self, Self)> {
        let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0))?;
        let one = TcpStream::connect(listener.local_addr()?)?;
        Ok((Self::new(one)?, Self::new(listener.accept()?.0)?))
    }

    fn new(stream: TcpStream) -> CaseResult<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { reader: BufReader::new(stream.try_clone()?), writer: stream })
    }

    /// Sends a line.
    ///
    /// # Errors
    /// The other side is gone.
    pub fn tell(&mut self, line: &str) -> io::Result<()> {
        self.writer.write_all(format!("{line}\n").as_bytes())
    }

    /// Waits for a line.
    ///
    /// # Errors
    /// The other side is gone, is silent for too long, or reports a failure.
    pub fn hear(&mut self) -> CaseResult<String> {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(0) => fail("the peer hung up"),
            Ok(_) => match line.strip_prefix(FAILED) {
                Some(why) => fail(format_args!("the peer failed: {}", why.trim_end())),
                None => Ok(line.trim_end().to_owned()),
            },
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                fail(format_args!("the peer said nothing for {PATIENCE:?}"))
            }
            Err(error) => fail(format_args!("the peer is gone: {error}")),
        }
    }

    /// Returns whether [`hear`](Self::hear) would return at once, with a line or because the other
    /// side is gone.
    pub fn has_heard(&self) -> bool {
        let mut fds = [PollFd::new(self.writer.as_fd(), PollFlags::POLLIN)];
        !self.reader.buffer().is_empty() || poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }

    /// Sends a line and waits for the other side's.
    ///
    /// # Errors
    /// As [`tell`](Self::tell) and [`hear`](Self::hear).
    pub fn swap(&mut self, line: &str) -> CaseResult<String> {
        self.tell(line)?;
        self.hear()
    }

    /// Waits until the other side has reached the same point.
    ///
    /// # Errors
    /// The other side is at another point; as [`swap`](Self::swap).
    pub fn meet(&mut self, place: &str) -> CaseResult {
        let other = self.swap(place)?;
        if other == place {
            Ok(())
        } else {
            fail(format_args!("the peer is at {other:?}, this is {place:?}"))
        }
    }

    /// Reports a failure to the other side.
    pub fn give_up(&mut self, why: &str) {
        // Fails if the other side is gone, which needs no report then.
        let _ = self.tell(&format!("{FAILED}{}", why.replace('\n', " | ")));
    }
}

#[cfg(test)]
mod tests {
    use verbs_harness::runner::Stop;

    use super::*;

    #[test]
    fn sides_in_step_meet_and_others_are_told_where_the_peer_is() {
        let (mut one, mut other) = Link::pair().unwrap();
        other.tell("here").unwrap();
        one.meet("here").unwrap();
        assert_eq!(other.hear().unwrap(), "here");
        other.tell("there").unwrap();
        let Err(Stop::Failed(why)) = one.meet("here") else { panic!("they met") };
        assert_eq!(why, r#"the peer is at "there", this is "here""#);
    }

    #[test]
    fn a_peer_that_does_not_come_is_not_waited_for_beyond_the_limit() {
        let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).unwrap();
        let Err(Stop::Failed(why)) = Link::accept(&listener, Duration::from_millis(1)) else {
            panic!("there is a peer")
        };
        assert_eq!(why, "the peer did not come within 1ms");
    }

    #[test]
    fn a_line_or_the_end_of_the_other_side_is_noticed_without_waiting() {
        let (mut one, mut other) = Link::pair().unwrap();
        assert!(!one.has_heard());
        other.tell("first\nsecond").unwrap();
        for line in ["first", "second"] {
            assert!(process::wait_until(PATIENCE, || one.has_heard()));
            assert_eq!(one.hear().unwrap(), line);
        }
        assert!(!one.has_heard());
        drop(other);
        assert!(process::wait_until(PATIENCE, || one.has_heard()));
    }

    #[test]
    fn a_failure_is_told_in_one_line_and_a_hang_up_is_one() {
        let (mut one, mut other) = Link::pair().unwrap();
        other.give_up("two\nlines");
        drop(other);
        assert_eq!(one.hear(), fail("the peer failed: two | lines"));
        assert_eq!(one.hear(), fail("the peer hung up"));
    }
}
