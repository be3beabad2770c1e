//! [`Load`]: an id's messages.
//!
//! As in C, all messages of an id share one buffer. The device may read and write it at the same
//! time.

use std::thread;

use rdmacm::CmId;
use verbs::state::{CanPostRecv, Rts};
use verbs::{AccessFlags, Cq, Errno, Error, Pd, Qp, SendFlags, Wc};

use super::{Result, Ret};
use crate::console::{Console, describe};
use crate::pingpong::endpoint::{Buffer, Message, RECV_WRID, SEND_WRID, To};

/// The number of messages and their length in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// The number of messages (`-C`).
    pub count: i32,
    /// The length of a message (`-S`), in bytes.
    pub size: i32,
}

impl Load {
    /// The programs' default load.
    pub const DEFAULT: Self = Self { count: 10, size: 100 };

    /// Returns the load of a run. It has no messages if the message size is 0.
    pub fn of_run(self) -> Self {
        if self.size == 0 { Self { count: 0, ..self } } else { self }
    }

    /// Returns whether there are messages.
    pub fn is_some(self) -> bool {
        self.count != 0
    }

    /// Returns the number of messages as a queue's capacity. A negative number becomes a huge one,
    /// which every device rejects.
    pub fn capacity(self) -> u32 {
        self.count as u32
    }

    /// Checks whether a message fits into a packet.
    ///
    /// # Errors
    /// Fails if the message does not fit or the port cannot be queried. The failure has been
    /// reported.
    pub fn fits(self, name: &str, id: &CmId, console: &mut Console) -> Result {
        let port = id.context().and_then(|context| context.query_port(id.port_num()?.unwrap_or(1)));
        let port = port.map_err(|error| {
            console.reason(&error);
            Ret(error.errno.raw())
        })?;
        let mtu = 1_i64 << (port.active_mtu.0 + 7).min(62);
        if self.is_some() && i64::from(self.size) > mtu {
            let size = self.size;
            console.say(format_args!("{name}: message_size {size} is larger than active mtu {mtu}\n"));
            return Err(Ret::negative(Errno::INVAL));
        }
        Ok(())
    }

    /// Allocates the memory of the messages, after a header of `header` bytes. Returns `None` if
    /// no messages are requested.
    ///
    /// # Errors
    /// Fails if there is not enough memory, or it cannot be registered; the failure has been
    /// reported.
    pub fn message(
        self,
        name: &str,
        pd: &Pd,
        header: usize,
        console: &mut Console,
    ) -> Result<Option<Message>> {
        if !self.is_some() {
            return Ok(None);
        }
        let made = match self.buffer(header) {
            Err(error) => {
                console.say("failed message allocation\n");
                console.reason(error);
                None
            }
            Ok(buffer) => match buffer.register(pd, AccessFlags::LOCAL_WRITE) {
                Ok(mr) => Some(Message::new(buffer, mr)),
                Err(error) => {
                    console.say("failed to reg MR\n");
                    console.reason(error);
                    None
                }
            },
        };
        made.map(Some).ok_or_else(|| {
            console.say(format_args!("{name}: failed to create messages: -1\n"));
            Ret::CALL
        })
    }

    fn buffer(self, header: usize) -> Result<Buffer, String> {
        let size = usize::try_from(self.size).map_err(|_| format!("-S {} is negative", self.size))?;
        Buffer::map(header, size, 0).map_err(|error| describe(&error))
    }

    /// Posts a receive for each message.
    ///
    /// # Errors
    /// Fails if the queue rejects a request; the failure has been reported.
    pub fn post_recvs<S: CanPostRecv>(
        self,
        message: Option<&Message>,
        qp: &mut Qp<S>,
        console: &mut Console,
    ) -> Result {
        let Some(message) = message else { return Ok(()) };
        match message.post_recv(qp, self.capacity()) {
            (_, None) => Ok(()),
            (_, Some(error)) => Err(refused("receives", error.into(), console)),
        }
    }

    /// Posts a send for each message.
    ///
    /// # Errors
    /// Fails if the queue rejects a request; the failure has been reported.
    pub fn post_sends(
        self,
        message: Option<&Message>,
        qp: &mut Qp<Rts>,
        to: To<'_>,
        flags: SendFlags,
        console: &mut Console,
    ) -> Result {
        let Some(message) = message else { return Ok(()) };
        for _ in 0..self.count {
            message
                .post_send(qp, to, SEND_WRID as u32, flags)
                .map_err(|error| refused("sends", error.into(), console))?;
        }
        Ok(())
    }
}

fn refused(what: &str, error: Error, console: &mut Console) -> Ret {
    console.say(format_args!("failed to post {what}: {}\n", error.errno.raw()));
    console.reason(&error);
    Ret(error.errno.raw())
}

/// The progress of waiting for a queue's completions.
#[derive(Debug)]
pub struct Polls {
    left: i64,
    empty: u32,
    wcs: [Wc; 8],
}

/// The outcome of a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polled {
    /// All messages have completed.
    Done,
    /// Some messages have completed. The value is the first completion of this poll.
    Some(Wc),
    /// No message has completed.
    None,
    /// No message has completed in many polls. The caller should check for events.
    Idle,
}

impl Polls {
    /// Starts waiting for a load's messages.
    pub fn new(load: Load) -> Self {
        Self { left: load.count.into(), empty: 0, wcs: [Wc::default(); 8] }
    }

    /// Polls once, yielding to other threads if the queue is empty.
    ///
    /// # Errors
    /// Fails if a work request has failed; the failure has been reported.
    pub fn poll(&mut self, cq: &mut Cq, console: &mut Console) -> Result<Polled> {
        if self.left <= 0 {
            return Ok(Polled::Done);
        }
        let polled = cq.poll_into(&mut self.wcs);
        let wcs = &self.wcs[..polled];
        for wc in wcs {
            if let Err(error) = wc.ok() {
                let what = if wc.wr_id == RECV_WRID { "a receive" } else { "a send" };
                console.reason(format_args!("{what} failed: {error}"));
                return Err(Ret::negative(Errno::IO));
            }
        }
        let Some(first) = wcs.first() else {
            thread::yield_now();
            self.empty = self.empty.wrapping_add(1);
            return Ok(if self.empty.is_multiple_of(POLLS_A_LOOK) { Polled::Idle } else { Polled::None });
        };
        self.left -= polled as i64;
        Ok(Polled::Some(*first))
    }
}

/// The number of empty polls between checks of the event channel.
const POLLS_A_LOOK: u32 = 64;
