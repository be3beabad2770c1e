//! [`Tags`]: the tag matching list of a shared receive queue.
//!
//! ```text
//!   APPEND ──► listed, oldest first ──► consumed by a message ──► its data has arrived: free
//!                     └──── REMOVE ────────────────────────────────────────────────────► free
//! ```
//! The first entry has index 0; each APPEND names the index of the next entry. A message may arrive
//! before or after its entry is appended. So the device counts messages without a match (its
//! phase), and software reports how many of these it has handled (its phase). An entry takes part
//! in matching once both phases are equal. Before that, software may have an older message for the
//! entry.
//!
//! Invariant: an index is in at most one of `listed` and `consumed`, and at most once.
//!
//! # References
//! rdma-core `Documentation/tag_matching.md`, `providers/mlx5/qp.c` (`mlx5_post_srq_ops`),
//! `providers/mlx5/cq.c` (`handle_tag_matching`)

use std::collections::BTreeMap;

use roce::engine::Sge;

/// A tag matching list.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tags {
    /// Number of indexes in the list, log2.
    pub(crate) log_size: u32,
    /// Whether the device executes rendezvous for expected messages.
    pub(crate) rendezvous: bool,
    /// The index of the next entry to append.
    pub(crate) next: u16,
    /// Number of unexpected messages that software has handled.
    pub(crate) software: u16,
    /// Number of unexpected messages that the device has counted.
    pub(crate) hardware: u16,
    /// The listed entries, oldest first.
    listed: Vec<Listed>,
    /// The entries whose message has not ended, by index.
    consumed: BTreeMap<u16, Consumed>,
}

/// An entry that waits for a matching message.
#[derive(Clone, Copy, Debug)]
struct Listed {
    index: u16,
    tag: u64,
    mask: u64,
    buffer: Option<Sge>,
    enabled: bool,
}

/// An entry that a message has matched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Consumed {
    /// The number of the queue pair that receives the message.
    pub(crate) qpn: u32,
    pub(crate) buffer: Option<Sge>,
    /// The tag matching header of the message.
    pub(crate) header: [u8; HEADER],
    pub(crate) transfer: Transfer,
}

/// The way in which a message's data is transferred to the buffer of its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transfer {
    /// The message consists of one packet, which contains the data.
    Whole,
    /// Further packets contain the rest of the data.
    Packets,
    /// The device reads the data from the sender's memory (rendezvous).
    Read(Remote),
    /// Software reads the data (rendezvous): the buffer receives the request.
    Software,
}

/// The sender's memory in a rendezvous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
    pub(crate) length: u32,
    /// The request's header for this memory, unchanged.
    pub(crate) header: [u8; REMOTE],
}

/// The kind of a message, as given by its tag matching header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// A message without a tag.
    Untagged,
    /// A message whose data follows the header.
    Eager { tag: u64 },
    /// A rendezvous request, which contains the address of the data in the sender's memory.
    Rendezvous { tag: u64, remote: Remote },
}

/// Size of a tag matching header, in bytes: operation, reserved, application context, tag.
pub(crate) const HEADER: usize = 16;
/// Size of a rendezvous header, in bytes: address, key, length.
pub(crate) const REMOTE: usize = 16;
/// Maximum length of a rendezvous request, in bytes, including its data for software.
///
/// # References
/// Linux `drivers/infiniband/hw/mlx5/mlx5_ib.h`, `MLX5_TM_MAX_RNDV_MSG_SIZE`
pub(crate) const LONGEST_REQUEST: usize = 64;

/// Operation codes in tag matching headers.
///
/// # References
/// rdma-core `libibverbs/tm_types.h`
pub(crate) mod operation {
    pub(crate) const RENDEZVOUS: u8 = 1;
    pub(crate) const FINISHED: u8 = 2;
    pub(crate) const EAGER: u8 = 3;
}

impl Message {
    /// Decodes the tag matching header at the start of a message's first packet.
    ///
    /// A message with a truncated header has no tag. A rendezvous request without a second header,
    /// or longer than [`LONGEST_REQUEST`], goes to software like a message without a tag, because a
    /// device's behaviour in this case is unknown.
    pub(crate) fn read(packet: &[u8], whole: bool) -> Self {
        let Some((header, rest)) = packet.split_first_chunk::<HEADER>() else { return Self::Untagged };
        let tag = header.last_chunk().map_or(0, |tag| u64::from_be_bytes(*tag));
        match (header[0], rest.first_chunk::<REMOTE>()) {
            (operation::EAGER, _) => Self::Eager { tag },
            (operation::RENDEZVOUS, Some(remote)) if whole && packet.len() <= LONGEST_REQUEST => {
                Self::Rendezvous { tag, remote: Remote::read(remote) }
            }
            _ => Self::Untagged,
        }
    }

    fn tag(&self) -> Option<u64> {
        match self {
            Self::Untagged => None,
            Self::Eager { tag } | Self::Rendezvous { tag, .. } => Some(*tag),
        }
    }
}

impl Remote {
    fn read(header: &[u8; REMOTE]) -> Self {
        let (addr, rest) = header.split_first_chunk().unwrap_or((&[0; 8], &[]));
        let (rkey, length) = rest.split_first_chunk().unwrap_or((&[0; 4], &[]));
        Self {
            addr: u64::from_be_bytes(*addr),
            rkey: u32::from_be_bytes(*rkey),
            length: length.first_chunk().map_or(0, |length| u32::from_be_bytes(*length)),
            header: *header,
        }
    }
}

impl Tags {
    pub(crate) fn new(log_size: u32, rendezvous: bool) -> Self {
        Self { log_size, rendezvous, ..Self::default() }
    }

    /// Records the number of unexpected messages that software has handled.
    pub(crate) fn report(&mut self, software: u16) {
        self.software = software;
        if self.in_step() {
            self.listed.iter_mut().for_each(|entry| entry.enabled = true);
        }
    }

    fn in_step(&self) -> bool {
        self.software == self.hardware
    }

    /// Appends an entry and returns its index. `next` becomes the index of the next entry.
    ///
    /// # Errors
    /// Returns a description of the violation if `next` is not an index of the list or is in use.
    pub(crate) fn append(
        &mut self,
        next: u16,
        tag: u64,
        mask: u64,
        buffer: Option<Sge>,
    ) -> Result<u16, String> {
        let index = self.next;
        if u32::from(next) >= 1 << self.log_size {
            return Err(format!("the next index is {next} in a list of 2^{}", self.log_size));
        }
        if next == index || self.is_used(next) {
            return Err(format!("the next index {next} is in use"));
        }
        self.listed.push(Listed { index, tag, mask, buffer, enabled: self.in_step() });
        self.next = next;
        Ok(index)
    }

    /// Removes a listed entry. Returns whether it was listed.
    ///
    /// # Errors
    /// Returns a description of the violation if `index` is not an index of the list.
    pub(crate) fn remove(&mut self, index: u16) -> Result<bool, String> {
        if u32::from(index) >= 1 << self.log_size {
            return Err(format!("index {index} of a list of 2^{}", self.log_size));
        }
        let before = self.listed.len();
        self.listed.retain(|entry| entry.index != index);
        Ok(self.listed.len() < before)
    }

    fn is_used(&self, index: u16) -> bool {
        self.consumed.contains_key(&index) || self.listed.iter().any(|entry| entry.index == index)
    }

    /// Removes the oldest listed entry that matches a message. Returns the entry's index and its
    /// buffer.
    pub(crate) fn take(&mut self, message: &Message) -> Option<(u16, Option<Sge>)> {
        let tag = message.tag()?;
        let at = self.listed.iter().position(|entry| entry.enabled && tag & entry.mask == entry.tag)?;
        let entry = self.listed.remove(at);
        Some((entry.index, entry.buffer))
    }

    /// Stores an entry with its message until [`end`](Self::end).
    pub(crate) fn consume(&mut self, index: u16, entry: Consumed) {
        self.consumed.insert(index, entry);
    }

    /// Returns the entry at `index` if its message has not ended.
    pub(crate) fn consumed(&self, index: u16) -> Option<&Consumed> {
        self.consumed.get(&index)
    }

    /// Frees an entry whose message has ended, and returns it.
    pub(crate) fn end(&mut self, index: u16) -> Option<Consumed> {
        self.consumed.remove(&index)
    }

    /// Returns the indexes of the entries that unfinished messages of this queue pair have matched.
    pub(crate) fn for_qp(&self, qpn: u32) -> Vec<u16> {
        self.consumed.iter().filter(|(_, entry)| entry.qpn == qpn).map(|(index, _)| *index).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn eager(tag: u64) -> Message {
        Message::Eager { tag }
    }

    fn consumed() -> Consumed {
        Consumed { qpn: 1, buffer: None, header: [0; HEADER], transfer: Transfer::Whole }
    }

    #[test]
    fn the_oldest_entry_that_matches_is_taken() {
        let mut tags = Tags::new(3, true);
        assert_eq!(tags.append(5, 0x12, 0xff, None), Ok(0));
        assert_eq!(tags.append(2, 0x10, 0xf0, None), Ok(5));
        assert_eq!(tags.append(3, 0, 0, None), Ok(2));
        assert_eq!(tags.take(&eager(0x13)).map(|(index, _)| index), Some(5), "masked");
        assert_eq!(tags.take(&eager(0xff12)).map(|(index, _)| index), Some(0));
        assert_eq!(tags.take(&Message::Untagged), None);
        assert_eq!(tags.take(&eager(7)).map(|(index, _)| index), Some(2), "a mask of 0 matches all");
        assert_eq!(tags.take(&eager(7)), None);
    }

    #[test]
    fn a_tag_with_bits_beyond_its_mask_matches_nothing() {
        let mut tags = Tags::new(2, true);
        tags.append(1, 0x112, 0xff, None).unwrap();
        assert_eq!(tags.take(&eager(0x112)), None);
    }

    #[test]
    fn an_index_is_used_again_only_after_it_is_free() {
        let mut tags = Tags::new(2, true);
        tags.append(1, 1, !0, None).unwrap();
        assert!(tags.append(0, 2, !0, None).is_err(), "listed");
        assert!(tags.append(1, 2, !0, None).is_err(), "its own");
        assert!(tags.append(4, 2, !0, None).is_err(), "beyond the list");
        assert_eq!(tags.append(3, 2, !0, None), Ok(1), "a refused entry changes nothing");
        let (index, _) = tags.take(&eager(1)).unwrap();
        tags.consume(index, consumed());
        assert!(tags.append(0, 3, !0, None).is_err(), "consumed");
        assert_eq!(tags.for_qp(1), [0]);
        assert!(tags.end(0).is_some());
        assert_eq!(tags.append(0, 3, !0, None), Ok(3));
    }

    #[test]
    fn an_entry_is_removed_once() {
        let mut tags = Tags::new(2, true);
        tags.append(1, 1, !0, None).unwrap();
        assert_eq!((tags.remove(0), tags.remove(0), tags.remove(3)), (Ok(true), Ok(false), Ok(false)));
        assert!(tags.remove(4).is_err());
        assert_eq!(tags.take(&eager(1)), None);
    }

    #[test]
    fn entries_after_an_unexpected_message_wait_until_software_has_handled_it() {
        let mut tags = Tags::new(3, true);
        tags.append(1, 1, !0, None).unwrap();
        tags.hardware = 2;
        tags.report(1);
        tags.append(2, 2, !0, None).unwrap();
        assert_eq!(tags.take(&eager(2)), None);
        assert!(tags.take(&eager(1)).is_some(), "it was there before");
        tags.report(2);
        assert!(tags.take(&eager(2)).is_some());
    }

    #[test]
    fn a_header_is_read_from_a_first_packet() {
        let mut packet = [0; 64];
        packet[15] = 9;
        packet[23] = 0x11;
        packet[27] = 0x22;
        packet[31] = 0x33;
        let read = |operation, len: usize, whole| {
            let mut packet = packet;
            packet[0] = operation;
            Message::read(&packet[..len], whole)
        };
        assert_eq!(read(0, 64, true), Message::Untagged);
        assert_eq!(read(operation::FINISHED, 64, true), Message::Untagged);
        assert_eq!(read(operation::EAGER, 16, false), eager(9));
        assert_eq!(read(operation::EAGER, 15, true), Message::Untagged);
        let Message::Rendezvous { tag: 9, remote } = read(operation::RENDEZVOUS, 32, true) else { panic!() };
        assert_eq!((remote.addr, remote.rkey, remote.length), (0x11, 0x22, 0x33));
        assert_eq!(read(operation::RENDEZVOUS, 31, true), Message::Untagged);
        assert_eq!(read(operation::RENDEZVOUS, 32, false), Message::Untagged);
        assert_eq!(read(operation::RENDEZVOUS, 64, true).tag(), Some(9));
        assert_eq!(Message::read(&[1; 65], true), Message::Untagged);
        assert_eq!(read(4, 64, true), Message::Untagged);
    }
}
