//! Messages of the vfio-user protocol: constants, the header, and bodies as bytes.
//!
//! A message consists of a 16-byte header and a body. Numbers are in native byte order, because
//! both sides run on the same machine. Received bodies may be longer than the fields known here.
//!
//! # References
//! QEMU `docs/interop/vfio-user.rst`; Linux `include/uapi/linux/vfio.h` for requests and
//! flags

use rustix::io::Errno;

/// The numbers of the message commands.
pub(super) mod command {
    pub(crate) const VERSION: u16 = 1;
    pub(crate) const DMA_MAP: u16 = 2;
    pub(crate) const DMA_UNMAP: u16 = 3;
    pub(crate) const DEVICE_GET_INFO: u16 = 4;
    pub(crate) const DEVICE_GET_REGION_INFO: u16 = 5;
    pub(crate) const DEVICE_GET_IRQ_INFO: u16 = 7;
    pub(crate) const DEVICE_SET_IRQS: u16 = 8;
    pub(crate) const REGION_READ: u16 = 9;
    pub(crate) const REGION_WRITE: u16 = 10;
    pub(crate) const DEVICE_RESET: u16 = 13;
}

/// The fixed numbers of a PCI device's regions and interrupt kinds.
pub(super) mod pci {
    /// Number of regions: BARs 0 to 5, ROM, configuration space, VGA.
    pub(crate) const REGIONS: u32 = 9;
    pub(crate) const CONFIG_REGION: u32 = 7;
    /// Number of interrupt kinds: INTx, MSI, MSI-X, errors, requests.
    pub(crate) const INTERRUPTS: u32 = 5;
    pub(crate) const MSIX: u32 = 2;
    /// Device flags: a PCI device that supports reset.
    pub(crate) const DEVICE_FLAGS: u32 = 1 | 2;
    /// Region flags: readable and writable.
    pub(crate) const REGION_FLAGS: u32 = 1 | 2;
    /// Interrupt flags: signalled through an eventfd.
    pub(crate) const INTERRUPT_FLAGS: u32 = 1;
}

/// Flag bits of DMA_MAP and DMA_UNMAP.
pub(super) mod dma {
    pub(crate) const WRITE: u32 = 1 << 1;
    pub(crate) const UNMAP_ALL: u32 = 1 << 1;
}

/// Flag bits of DEVICE_SET_IRQS: the type of data, and the action.
pub(super) mod irqs {
    pub(crate) const DATA_NONE: u32 = 1 << 0;
    pub(crate) const DATA_BOOL: u32 = 1 << 1;
    pub(crate) const DATA_EVENTFD: u32 = 1 << 2;
    pub(crate) const ACTION_TRIGGER: u32 = 1 << 5;
}

/// Size of a message header, in bytes.
pub(super) const HEADER: usize = 16;

/// Maximum number of data bytes in a REGION_READ or REGION_WRITE, as reported to the client.
pub(super) const MAX_TRANSFER: usize = 1 << 16;

/// Maximum number of files passed with a message, as reported to the client; QEMU passes at most
/// 16.
pub(super) const MAX_FILES: usize = 16;

/// Maximum size of a message, in bytes.
pub(super) const MAX_MESSAGE: usize = MAX_TRANSFER + 4096;

/// The supported protocol version: major, minor.
pub(super) const VERSION: (u16, u16) = (0, 0);

const REPLY: u32 = 1;
const TYPE_MASK: u32 = 0xf;
const NO_REPLY: u32 = 1 << 4;
const ERROR: u32 = 1 << 5;

/// The header of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) id: u16,
    pub(super) command: u16,
    /// Length of the message, in bytes, including the header.
    pub(super) size: usize,
    flags: u32,
}

impl Header {
    /// Decodes a header. Returns `None` if the message is not a request or has an impossible
    /// length. The rest of the stream is then unreadable.
    pub(super) fn parse(bytes: &[u8; HEADER]) -> Option<Self> {
        let body = Body(bytes);
        let size = usize::try_from(body.u32(4).ok()?).ok()?;
        let flags = body.u32(8).ok()?;
        let header = Self { id: body.u16(0).ok()?, command: body.u16(2).ok()?, size, flags };
        (flags & TYPE_MASK == 0 && (HEADER..=MAX_MESSAGE).contains(&size)).then_some(header)
    }

    /// Returns whether the client expects a response.
    pub(super) fn wants_reply(&self) -> bool {
        self.flags & NO_REPLY == 0
    }

    /// Appends the response to the message to `out`.
    pub(super) fn reply(&self, response: Result<Vec<u8>, Errno>, out: &mut Vec<u8>) {
        let (flags, error, body) = match response {
            Ok(body) => (REPLY, 0, body),
            Err(error) => (REPLY | ERROR, error.raw_os_error().unsigned_abs(), Vec::new()),
        };
        let size = u32::try_from(HEADER + body.len()).unwrap_or(u32::MAX);
        out.extend(self.id.to_ne_bytes());
        out.extend(self.command.to_ne_bytes());
        out.extend([size, flags, error].map(u32::to_ne_bytes).as_flattened());
        out.extend(body);
    }
}

/// The body of a received message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Body<'a>(pub(super) &'a [u8]);

impl<'a> Body<'a> {
    fn chunk<const N: usize>(self, at: usize) -> Result<[u8; N], Errno> {
        self.0.get(at..).and_then(|rest| rest.first_chunk()).copied().ok_or(Errno::INVAL)
    }

    pub(super) fn u16(self, at: usize) -> Result<u16, Errno> {
        self.chunk(at).map(u16::from_ne_bytes)
    }

    pub(super) fn u32(self, at: usize) -> Result<u32, Errno> {
        self.chunk(at).map(u32::from_ne_bytes)
    }

    pub(super) fn u64(self, at: usize) -> Result<u64, Errno> {
        self.chunk(at).map(u64::from_ne_bytes)
    }

    /// Returns the `len` bytes of the body at offset `at`.
    pub(super) fn bytes(self, at: usize, len: usize) -> Result<&'a [u8], Errno> {
        self.0.get(at..).and_then(|rest| rest.get(..len)).ok_or(Errno::INVAL)
    }
}

/// Returns a body that consists of 4-byte numbers, as most responses do.
pub(super) fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}
