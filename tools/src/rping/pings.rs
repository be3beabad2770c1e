//! The pings.
//!
//! ```text
//!   client                                           server
//!     │ address and key of its data ─────────────────► │
//!     │                                 reads the data │
//!     │ ◄────────────────────────────────── "go ahead" │
//!     │ address and key of memory for the echo ──────► │
//!     │                                writes the data │
//!     │ ◄────────────────────────────────── "go ahead" │
//! ```
//!
//! The C server sends its message buffer, all zeros, as "go ahead". Only the length counts.

use verbs::{Buf, Error, Exposed, RemoteMr, SendFlags, SendOp};

use super::session::{End, Session, State};
use super::wire::RdmaInfo;

impl Session<'_> {
    /// Serves pings until the client ends the connection.
    ///
    /// # Errors
    /// Returns any failure, which has been reported. The end of the connection is not an error.
    pub(super) fn serve(&mut self) -> Result<(), End> {
        loop {
            if let Err(end) = self.serve_one() {
                return self.ended(end);
            }
        }
    }

    fn serve_one(&mut self) -> Result<(), End> {
        self.wait_for(State::ReadAdv, "wait for RDMA_READ_ADV")?;
        self.debug("server received sink adv\n");
        let remote = self.remote;
        self.post_data("rdma read", remote.size, RemoteMr::read)?;
        self.debug("server posted rdma read req \n");
        self.wait_for(State::ReadComplete, "wait for RDMA_READ_COMPLETE")?;
        self.debug("server received read complete\n");
        if self.options.verbose {
            let data = self.buffers.data.as_deref().map(text).unwrap_or_default();
            self.console.say(format_args!("server ping data: {data}\n"));
        }
        self.post_send(RdmaInfo::default())?;
        self.debug("server posted go ahead\n");

        self.wait_for(State::WriteAdv, "wait for RDMA_WRITE_ADV")?;
        self.debug("server received sink adv\n");
        let length = self.buffers.data.as_deref().map_or(0, echo_length);
        if let Some(data) = &self.buffers.data {
            let (lkey, addr) = (data.lkey(), data.addr());
            self.debug(format_args!("rdma write from lkey {lkey:x} laddr {addr:x} len {length}\n"));
        }
        self.post_data("rdma write", length, RemoteMr::write)?;
        self.wait_for(State::WriteComplete, "wait for RDMA_WRITE_COMPLETE")?;
        self.debug("server rdma write complete \n");
        self.post_send(RdmaInfo::default())?;
        self.debug("server posted go ahead\n");
        Ok(())
    }

    /// Pings the server as often as the options request.
    ///
    /// # Errors
    /// The same errors as [`serve`](Self::serve).
    pub(super) fn ping(&mut self) -> Result<(), End> {
        let limit = self.options.count;
        let mut number = 0_u32;
        while limit == 0 || number < limit {
            if let Err(end) = self.ping_once(number) {
                return self.ended(end);
            }
            // The C program's number is an `int`, which also wraps around in an unlimited run.
            number = number.wrapping_add(1) & i32::MAX as u32;
        }
        Ok(())
    }

    fn ping_once(&mut self, number: u32) -> Result<(), End> {
        let (Some(start), Some(echo)) = (self.buffers.start.clone(), self.buffers.echo.clone()) else {
            return Err(End::Failed(-1));
        };
        self.state = State::ReadAdv;
        let sent = ping_data(number, self.options.size);
        start.write_at(0, &sent);
        self.announce(&start)?;
        self.wait_for(State::WriteAdv, "wait for RDMA_WRITE_ADV")?;
        self.announce(&echo)?;
        self.wait_for(State::WriteComplete, "wait for RDMA_WRITE_COMPLETE")?;
        if !self.options.validate && !self.options.verbose {
            return Ok(());
        }
        let mut received = vec![0; sent.len()];
        echo.read_at(0, &mut received);
        if self.options.validate
            && let Some(at) = sent.iter().zip(&received).position(|(sent, received)| sent != received)
        {
            self.console.complain("data mismatch!");
            let (wanted, found) = (sent[at], received[at]);
            self.console.reason(format_args!("byte {at} is {found:#04x}, and was {wanted:#04x}"));
            return Err(End::Failed(-1));
        }
        if self.options.verbose {
            self.console.say(format_args!("ping data: {}\n", text(&received)));
        }
        Ok(())
    }

    /// Returns the outcome of the pings after the failure that ended them.
    fn ended(&self, end: End) -> Result<(), End> {
        match end {
            End::Failed(_) if self.state == State::Disconnected => Ok(()),
            end => Err(end),
        }
    }

    /// Announces the client's memory.
    fn announce(&mut self, memory: &Exposed) -> Result<(), End> {
        let size = self.options.size as u32;
        let info = RdmaInfo { buf: memory.addr(), rkey: memory.rkey(), size };
        self.debug(format_args!("RDMA addr {:x} rkey {:x} len {size}\n", info.buf, info.rkey));
        self.post_send(info)
    }

    /// Posts a message.
    fn post_send(&mut self, info: RdmaInfo) -> Result<(), End> {
        let posted = self.message(info).and_then(|message| {
            let gone = || Error::new("post_send", "", verbs::Errno::INVAL);
            let qp = self.objects.as_mut().and_then(|objects| objects.qp.as_mut()).ok_or_else(gone)?;
            Ok(qp.post_send_buf(SendOp::Send, SendFlags::empty(), message, ..)?)
        });
        posted.map(|_| ()).map_err(|error| self.not_posted(&error))
    }

    /// Returns the memory for a message. The previous message may still be in flight.
    fn message(&mut self, info: RdmaInfo) -> Result<Buf, Error> {
        let mut message = match (self.buffers.sends.pop(), &self.objects) {
            (Some(message), _) => message,
            (None, Some(objects)) => objects.pd.alloc_buf(RdmaInfo::LEN)?,
            (None, None) => return Err(Error::new("post_send", "", verbs::Errno::INVAL)),
        };
        message.copy_from_slice(&info.to_bytes());
        Ok(message)
    }

    /// Posts a read into the server's data or a write from it. The other side is the memory that
    /// the client announced.
    fn post_data(
        &mut self,
        what: &str,
        length: u32,
        op: impl Fn(&RemoteMr) -> SendOp<'static>,
    ) -> Result<(), End> {
        let Some(data) = self.buffers.data.take() else { return Err(End::Failed(-1)) };
        let (length, room) = (length as usize, data.len());
        if length > room {
            // The C server posts this request, and its device rejects the part beyond the memory.
            self.console.complain("cq completion failed status 4");
            self.console.reason(format_args!(
                "{what}: the client announces {length} bytes, and this side has room for {room}: give both \
                 the same -S"
            ));
            self.state = State::Error;
            let next = if what == "rdma read" { "RDMA_READ_COMPLETE" } else { "RDMA_WRITE_COMPLETE" };
            self.console.complain(format_args!("wait for {next} state {}", self.state as u8));
            return Err(End::Failed(-1));
        }
        let RdmaInfo { buf, rkey, size } = self.remote;
        let op = op(&RemoteMr { addr: buf, length: size.into(), rkey });
        let Some(qp) = self.objects.as_mut().and_then(|objects| objects.qp.as_mut()) else {
            return Err(End::Failed(-1));
        };
        let posted = qp.post_send_buf(op, SendFlags::empty(), data, ..length).map_err(Error::from);
        posted.map(|_| ()).map_err(|error| self.not_posted(&error))
    }

    fn not_posted(&mut self, error: &Error) -> End {
        let ret = error.errno.raw();
        self.console.complain(format_args!("post send error {ret}"));
        self.console.reason(error);
        End::Failed(ret)
    }
}

/// Returns the data of a ping: its number as text, then letters that shift by one with each ping,
/// and a final zero.
fn ping_data(number: u32, size: usize) -> Vec<u8> {
    const LETTERS: u32 = 122 - 65 + 1;
    let mut data = format!("rdma-ping-{number}: ").into_bytes();
    let first = number % LETTERS;
    let mut letters = (first..LETTERS).chain((0..LETTERS).cycle()).map(|letter| 65 + letter as u8);
    data.truncate(size);
    data.resize_with(size, || letters.next().unwrap_or(0));
    if let Some(last) = data.last_mut() {
        *last = 0;
    }
    data
}

/// Returns the text up to the first zero.
fn text(data: &[u8]) -> String {
    let end = data.iter().position(|&byte| byte == 0).unwrap_or(data.len());
    String::from_utf8_lossy(&data[..end]).into_owned()
}

/// Returns the length of the text with its zero. This is the part that the server writes back.
fn echo_length(data: &[u8]) -> u32 {
    let end = data.iter().position(|&byte| byte == 0).map_or(data.len(), |at| at + 1);
    u32::try_from(end).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pings_are_told_apart_by_their_number_and_first_letter() {
        assert_eq!(text(&ping_data(0, 23)), "rdma-ping-0: ABCDEFGHI");
        assert_eq!(text(&ping_data(1, 23)), "rdma-ping-1: BCDEFGHIJ");
        assert_eq!(text(&ping_data(57, 23)), "rdma-ping-57: zABCDEFG");
        assert_eq!(text(&ping_data(58, 23)), "rdma-ping-58: ABCDEFGH");
        assert_eq!(text(&ping_data(2_147_483_647, 23)), "rdma-ping-2147483647: ");
        // 65 to 122: the letters and the characters between them.
        assert!(text(&ping_data(0, 100)).contains("XYZ[\\]^_`abc"));
        assert!(text(&ping_data(0, 100)).contains("xyzAB"));
    }

    #[test]
    fn data_ends_with_its_only_zero_and_all_of_it_comes_back() {
        for size in [23, 64, 65_535] {
            let data = ping_data(7, size);
            assert_eq!((data.len(), data.iter().position(|&byte| byte == 0)), (size, Some(size - 1)));
            assert_eq!(echo_length(&data) as usize, size);
        }
    }

    #[test]
    fn data_without_a_zero_is_not_read_beyond_its_end() {
        assert_eq!((text(b"abc"), echo_length(b"abc")), ("abc".into(), 3));
        assert_eq!((text(b"a\0c"), echo_length(b"a\0c")), ("a".into(), 2));
    }
}
