//! The packets, completions and events of a fabric, as values and as text.

use alloc::collections::VecDeque;
use alloc::string::String;
use core::fmt;

use super::endpoint::EndpointId;
use crate::engine::{Completion, CqId, Event, Gid, Time};
use crate::wire::{Headers, aeth};

/// The fate of a packet sent over a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fate {
    /// The packet arrives at the given time.
    Arrives(Time),
    /// A second copy of the packet arrives at the given time.
    Again(Time),
    /// The packet is lost.
    Lost,
    /// The link is down, so the packet is lost.
    Down,
    /// A bit flips, and the receiver detects the error.
    Corrupted,
    /// A bit flips, but the packet still arrives, at the given time.
    Damaged(Time),
    /// No endpoint has the destination address.
    NoRoute(Gid),
}

/// A record of the trace.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Record {
    /// The virtual time of the record.
    pub at: Time,
    /// The recorded occurrence.
    pub what: Traced,
}

/// The contents of a trace record.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Traced {
    /// A packet was sent.
    Packet {
        /// The sender.
        from: EndpointId,
        /// The receiver, or the sender itself if no endpoint has the address.
        to: EndpointId,
        /// The packet's headers as sent; `None` if the packet is malformed.
        headers: Option<Headers>,
        /// The number of payload bytes, without pad.
        payload: usize,
        /// The fate of the packet.
        fate: Fate,
    },
    /// A work request completed at an endpoint.
    Completed(EndpointId, CqId, Completion),
    /// An endpoint's engine raised an event.
    Event(EndpointId, Event),
    /// A remark by a test.
    Note(String),
}

/// The most recent records.
#[derive(Debug)]
pub(super) struct Trace {
    records: VecDeque<Record>,
    keep: usize,
}

impl Trace {
    pub(super) fn new(keep: usize) -> Self {
        Self { records: VecDeque::new(), keep }
    }

    pub(super) fn keep(&mut self, records: usize) {
        self.keep = records;
        while self.records.len() > records {
            self.records.pop_front();
        }
    }

    pub(super) fn add(&mut self, at: Time, what: Traced) {
        if self.keep == 0 {
            return;
        }
        if self.records.len() >= self.keep {
            self.records.pop_front();
        }
        self.records.push_back(Record { at, what });
    }

    pub(super) fn records(&self) -> impl DoubleEndedIterator<Item = &Record> {
        self.records.iter()
    }
}

/// A time in nanoseconds, formatted as microseconds.
struct Micros(Time);

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>9}.{:03}", self.0.0 / 1000, self.0.0 % 1000)
    }
}

/// Formats a record as one line, with times in µs. `A` is an acknowledge request.
impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", Micros(self.at))?;
        match &self.what {
            Traced::Packet { from, to, headers, payload, fate } => {
                write!(f, "{from} -> {to} ")?;
                match headers {
                    Some(headers) => show(f, headers)?,
                    None => f.write_str("malformed")?,
                }
                write!(f, ", {payload} B: {fate}")
            }
            Traced::Completed(on, cq, wc) => {
                write!(
                    f,
                    "{on}: cq {} qp {:06x} {:?} wr {} {:?}",
                    cq.0, wc.qpn.0, wc.opcode, wc.wr_id, wc.status
                )?;
                write!(f, ", {} B", wc.byte_len)?;
                wc.imm.map_or(Ok(()), |imm| write!(f, ", imm {imm:#x}"))
            }
            Traced::Event(on, event) => write!(f, "{on}: event {event:?}"),
            Traced::Note(text) => f.write_str(text),
        }
    }
}

fn show(f: &mut fmt::Formatter<'_>, headers: &Headers) -> fmt::Result {
    let bth = &headers.bth;
    write!(f, "qp {:06x} psn {:06x} {:?}", bth.dest_qp, bth.psn.value(), bth.opcode)?;
    if bth.ack_req {
        f.write_str(" A")?;
    }
    if let Some(reth) = headers.reth {
        write!(f, " [{:#x}+{} key {:#x}]", reth.va, reth.dmalen, reth.rkey)?;
    }
    if let Some(atomic) = headers.atomic_eth {
        write!(f, " [{:#x} key {:#x}]", atomic.va, atomic.rkey)?;
    }
    let Some(aeth) = headers.aeth else { return Ok(()) };
    match aeth.syndrome.decode() {
        aeth::Kind::Ack(_) => f.write_str(" ack")?,
        aeth::Kind::RnrNak(timer) => write!(f, " rnr nak {} us", timer.nanoseconds() / 1000)?,
        aeth::Kind::Nak(code) => write!(f, " nak {}", code.0)?,
        aeth::Kind::Reserved(code) => write!(f, " syndrome {code:#x}")?,
    };
    write!(f, " msn {}", aeth.msn)
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Arrives(at) => write!(f, "arrives {}", Micros(*at)),
            Self::Again(at) => write!(f, "arrives {} (duplicate)", Micros(*at)),
            Self::Damaged(at) => write!(f, "arrives {} (damaged)", Micros(*at)),
            Self::Lost => f.write_str("lost"),
            Self::Down => f.write_str("lost, link down"),
            Self::Corrupted => f.write_str("dropped, corrupted"),
            Self::NoRoute(gid) => write!(f, "no endpoint has the address {gid:x?}"),
        }
    }
}
