//! [`Connection`]: the client of one function, served message by message.
//!
//! Invariant: no call blocks. The connection stores an incomplete message, and responses that do
//! not fit into the socket yet. It reads the next message only after the response has been sent.
//!
//! Invariant: every message from a client either gets a response, possibly an error, or ends the
//! connection.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use roce::engine::Time;
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recv, recvmsg, send};

use super::bus::MappedBus;
use super::device::Device;
use super::protocol::{
    Body, HEADER, Header, MAX_FILES, MAX_TRANSFER, VERSION, command, dma, irqs, pci, words,
};
use crate::config::{BAR0, BAR0_SIZE, BAR2, BAR2_SIZE, VECTORS};

/// A connected client.
#[derive(Debug)]
pub(super) struct Connection {
    function: usize,
    stream: UnixStream,
    bus: MappedBus,
    /// Whether the client has negotiated the protocol version.
    greeted: bool,
    /// The received part of the next message; `wanted` is the message's expected length.
    message: Vec<u8>,
    wanted: usize,
    files: Vec<OwnedFd>,
    /// The pending responses. The first `sent` bytes have already been sent.
    out: Vec<u8>,
    sent: usize,
}

/// The reason why a connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The client closed the connection.
    Closed,
    /// The client sent a malformed message.
    Garbage,
    /// The socket has failed.
    Failed(Errno),
}

impl Connection {
    /// Returns the connection of a function's client. The stream must be non-blocking.
    pub(super) fn new(function: usize, stream: UnixStream, bus: MappedBus) -> Self {
        Self {
            function,
            stream,
            bus,
            greeted: false,
            message: Vec::new(),
            wanted: HEADER,
            files: Vec::new(),
            out: Vec::new(),
            sent: 0,
        }
    }

    /// Returns the socket to poll.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Returns whether the connection waits for space in the socket rather than for a message.
    pub(super) fn is_full(&self) -> bool {
        !self.out.is_empty()
    }

    /// Sends pending responses, or reads and executes at most one message.
    ///
    /// # Errors
    /// The reason if the connection has ended.
    pub(super) fn step(&mut self, device: &mut impl Device, now: Time) -> Result<(), Ended> {
        if !self.is_full() {
            // First the header is read, then the body. Files arrive with the first byte of a
            // message and thus belong to this message.
            if !self.fill()? {
                return Ok(());
            }
            if self.wanted == HEADER {
                self.wanted = self.header()?.size;
                if !self.fill()? {
                    return Ok(());
                }
            }
            self.handle_message(device, now)?;
        }
        self.flush()
    }

    /// Reads from the socket. Returns whether all expected bytes have arrived.
    fn fill(&mut self) -> Result<bool, Ended> {
        while self.message.len() < self.wanted {
            let start = self.message.len();
            self.message.resize(self.wanted, 0);
            let received = self.receive(start);
            self.message.truncate(start + received.unwrap_or(0));
            match received {
                Ok(0) => return Err(if start == 0 { Ended::Closed } else { Ended::Garbage }),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::CONNRESET) => return Err(Ended::Closed),
                Err(error) => return Err(Ended::Failed(error)),
            }
        }
        Ok(true)
    }

    fn receive(&mut self, start: usize) -> Result<usize, Errno> {
        let into = self.message.get_mut(start..).unwrap_or_default();
        if start >= HEADER {
            return recv(&self.stream, into, RecvFlags::DONTWAIT).map(|(count, _)| count);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(&self.stream, &mut [IoSliceMut::new(into)], &mut control, flags)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                let room = MAX_FILES.saturating_sub(self.files.len());
                self.files.extend(files.take(room));
            }
        }
        Ok(received.bytes)
    }

    fn header(&self) -> Result<Header, Ended> {
        self.message.first_chunk().and_then(Header::parse).ok_or(Ended::Garbage)
    }

    fn handle_message(&mut self, device: &mut impl Device, now: Time) -> Result<(), Ended> {
        let header = self.header()?;
        let message = std::mem::take(&mut self.message);
        let files = std::mem::take(&mut self.files);
        let body = Body(message.get(HEADER..).unwrap_or_default());
        let response = self.carry_out(header.command, body, files, device, now);
        if header.wants_reply() {
            header.reply(response, &mut self.out);
        }
        self.message = message;
        self.message.clear();
        self.wanted = HEADER;
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Ended> {
        while let Some(rest) = self.out.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match send(&self.stream, rest, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(count) => self.sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(Ended::Closed),
                Err(error) => return Err(Ended::Failed(error)),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(())
    }

    fn carry_out(
        &mut self,
        command: u16,
        body: Body<'_>,
        files: Vec<OwnedFd>,
        device: &mut impl Device,
        now: Time,
    ) -> Result<Vec<u8>, Errno> {
        if !self.greeted && command != command::VERSION {
            return Err(Errno::PROTO);
        }
        match command {
            command::VERSION => self.version(body),
            command::DMA_MAP => self.map(body, &files),
            command::DMA_UNMAP => self.unmap(body),
            command::DEVICE_GET_INFO => Ok(words(&[16, pci::DEVICE_FLAGS, pci::REGIONS, pci::INTERRUPTS])),
            command::DEVICE_GET_REGION_INFO => region_info(body),
            command::DEVICE_GET_IRQ_INFO => irq_info(body),
            command::DEVICE_SET_IRQS => self.set_irqs(body, files),
            command::REGION_READ => self.region_read(body, device, now),
            command::REGION_WRITE => self.region_write(body, device, now),
            command::DEVICE_RESET => {
                device.reset(self.function);
                Ok(Vec::new())
            }
            _ => Err(Errno::OPNOTSUPP),
        }
    }

    fn version(&mut self, body: Body<'_>) -> Result<Vec<u8>, Errno> {
        if self.greeted || body.u16(0)? != VERSION.0 {
            return Err(Errno::INVAL);
        }
        self.greeted = true;
        let capabilities = format!(
            "{{\"capabilities\":{{\"max_msg_fds\":{MAX_FILES},\"max_data_xfer_size\":{MAX_TRANSFER}}}}}\0"
        );
        let mut response = [VERSION.0.to_ne_bytes(), VERSION.1.to_ne_bytes()].concat();
        response.extend(capabilities.into_bytes());
        Ok(response)
    }

    fn map(&self, body: Body<'_>, files: &[OwnedFd]) -> Result<Vec<u8>, Errno> {
        let flags = body.u32(4)?;
        let (offset, address, len) = (body.u64(8)?, body.u64(16)?, body.u64(24)?);
        match files {
            // The client cannot share this memory, such as a ROM, and offers to copy it. The model
            // does not use such copies: for the function, this memory does not exist.
            [] => {}
            [file] => self.bus.map(file, offset, address, len, flags & dma::WRITE != 0)?,
            _ => return Err(Errno::INVAL),
        }
        Ok(Vec::new())
    }

    fn unmap(&self, body: Body<'_>) -> Result<Vec<u8>, Errno> {
        if body.u32(4)? & dma::UNMAP_ALL != 0 {
            self.bus.unmap_all();
        } else {
            self.bus.unmap(body.u64(8)?, body.u64(16)?)?;
        }
        Ok(body.bytes(0, 24)?.to_vec())
    }

    fn set_irqs(&self, body: Body<'_>, files: Vec<OwnedFd>) -> Result<Vec<u8>, Errno> {
        let (flags, index, start, count) = (body.u32(4)?, body.u32(8)?, body.u32(12)?, body.u32(16)?);
        let none = flags & irqs::DATA_NONE != 0;
        if index != pci::MSIX {
            // Other kinds of interrupts do not exist, so disabling them succeeds.
            return if index < pci::INTERRUPTS && none && count == 0 {
                Ok(Vec::new())
            } else {
                Err(Errno::INVAL)
            };
        }
        let end = start.checked_add(count).filter(|end| *end <= u32::from(VECTORS)).ok_or(Errno::INVAL)?;
        if flags & irqs::ACTION_TRIGGER == 0 {
            return Err(Errno::OPNOTSUPP);
        }
        if flags & irqs::DATA_EVENTFD != 0 {
            // With files, every vector gets an eventfd. Without files, every vector loses its
            // eventfd.
            if !files.is_empty() && files.len() != count as usize {
                return Err(Errno::INVAL);
            }
            let mut files = files.into_iter();
            for vector in start..end {
                self.bus.set_vector(vector as usize, files.next());
            }
        } else if none && count == 0 {
            for vector in 0..VECTORS {
                self.bus.set_vector(vector.into(), None);
            }
        } else if none || flags & irqs::DATA_BOOL != 0 {
            let chosen = if none { None } else { Some(body.bytes(20, count as usize)?) };
            for (place, vector) in (start..end).enumerate() {
                if chosen.is_none_or(|chosen| chosen.get(place) != Some(&0)) {
                    crate::bus::Bus::raise(&self.bus, vector as u16);
                }
            }
        } else {
            return Err(Errno::INVAL);
        }
        Ok(Vec::new())
    }

    fn region_read(&self, body: Body<'_>, device: &mut impl Device, now: Time) -> Result<Vec<u8>, Errno> {
        let (offset, region, count) = access(body)?;
        let mut response = body.bytes(0, ACCESS)?.to_vec();
        response.resize(ACCESS + count, 0);
        let data = response.get_mut(ACCESS..).unwrap_or_default();
        match region {
            pci::CONFIG_REGION => device.config_read(self.function, offset, data),
            BAR0 | BAR2 => device.bar_read(self.function, region, offset, data, now),
            _ => {}
        }
        Ok(response)
    }

    fn region_write(&self, body: Body<'_>, device: &mut impl Device, now: Time) -> Result<Vec<u8>, Errno> {
        let (offset, region, count) = access(body)?;
        let data = body.bytes(ACCESS, count)?;
        match region {
            pci::CONFIG_REGION => device.config_write(self.function, offset, data),
            BAR0 | BAR2 => device.bar_write(self.function, region, offset, data, now),
            _ => {}
        }
        Ok(body.bytes(0, ACCESS)?.to_vec())
    }
}

/// Number of bytes before the data in REGION_READ and REGION_WRITE messages: offset, region, count.
const ACCESS: usize = 16;

fn access(body: Body<'_>) -> Result<(u64, u32, usize), Errno> {
    let (offset, region, count) = (body.u64(0)?, body.u32(8)?, body.u32(12)? as usize);
    let end = offset.checked_add(count as u64).ok_or(Errno::INVAL)?;
    if region >= pci::REGIONS || count > MAX_TRANSFER || end > region_size(region) {
        return Err(Errno::INVAL);
    }
    Ok((offset, region, count))
}

fn region_size(region: u32) -> u64 {
    match region {
        BAR0 => BAR0_SIZE,
        BAR2 => BAR2_SIZE,
        pci::CONFIG_REGION => 4096,
        _ => 0,
    }
}

fn region_info(body: Body<'_>) -> Result<Vec<u8>, Errno> {
    let index = body.u32(8)?;
    if index >= pci::REGIONS {
        return Err(Errno::INVAL);
    }
    let size = region_size(index);
    let flags = if size > 0 { pci::REGION_FLAGS } else { 0 };
    let mut response = words(&[32, flags, index, 0]);
    response.extend([size, 0].map(u64::to_ne_bytes).as_flattened());
    Ok(response)
}

fn irq_info(body: Body<'_>) -> Result<Vec<u8>, Errno> {
    match body.u32(8)? {
        pci::MSIX => Ok(words(&[16, pci::INTERRUPT_FLAGS, pci::MSIX, VECTORS.into()])),
        index if index < pci::INTERRUPTS => Ok(words(&[16, 0, index, 0])),
        _ => Err(Errno::INVAL),
    }
}
