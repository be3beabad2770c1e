//! [`Pci`]: the contents of the configuration space.

use crate::config::{BAR0_SIZE, BAR2_SIZE, VECTORS};
use crate::port::PortKind;

/// Size of the configuration space, in bytes.
pub(crate) const CONFIG_SIZE: usize = 0x1000;

/// Offset of the MSI-X pending bits in BAR 2.
pub(crate) const PENDING_OFFSET: u64 = BAR2_SIZE / 2;

/// Offset of the PCI Express capability in the configuration space.
pub(crate) const EXPRESS: usize = 0x60;

/// Offset of the MSI-X capability in the configuration space.
pub(crate) const MSIX: usize = 0x9c;

/// The configuration space of the function.
#[derive(Debug)]
pub(crate) struct Pci {
    bytes: Vec<u8>,
    writable: Vec<u8>,
}

impl Pci {
    /// Returns the configuration space in its power-on state.
    pub(crate) fn new(port: PortKind) -> Self {
        let mut pci = Self { bytes: vec![0; CONFIG_SIZE], writable: vec![0; CONFIG_SIZE] };
        // Vendor and device ID of a ConnectX-5.
        pci.fixed(0x00, &[0xb3, 0x15, 0x17, 0x10]);
        // Memory space, bus master, parity, SERR and INTx disable are writable. The status bit for
        // a capability list is set.
        pci.open(0x04, &[0x46, 0x05]);
        pci.fixed(0x06, &[0x10, 0x00]);
        // Network controller: Ethernet or InfiniBand.
        pci.fixed(0x08, &[0x00, 0x00, if port == PortKind::Ib { 0x07 } else { 0x00 }, 0x02]);
        pci.open(0x0c, &[0xff]);
        pci.bar(0x10, BAR0_SIZE, 0xc);
        pci.bar(0x18, BAR2_SIZE, 0x4);
        // The subsystem IDs.
        pci.fixed(0x2c, &[0xb3, 0x15, 0x08, 0x00]);
        pci.fixed(0x34, &[EXPRESS as u8]);
        pci.open(0x3c, &[0xff]);
        // Endpoint, version 2, with function level reset; gen 3, 16 lanes.
        pci.fixed(EXPRESS, &[0x10, MSIX as u8, 0x02, 0x00]);
        pci.fixed(EXPRESS + 0x04, &0x1000_8fe2u32.to_le_bytes());
        // Error reporting, relaxed ordering, sizes. The function level reset bit reads as 0.
        pci.fixed(EXPRESS + 0x08, &0x2830u16.to_le_bytes());
        pci.open(EXPRESS + 0x08, &0x78ffu16.to_le_bytes());
        pci.fixed(EXPRESS + 0x0c, &0x0000_0103u32.to_le_bytes());
        pci.open(EXPRESS + 0x10, &0x00c3u16.to_le_bytes());
        pci.fixed(EXPRESS + 0x12, &0x0103u16.to_le_bytes());
        pci.fixed(EXPRESS + 0x2c, &0x0000_000eu32.to_le_bytes());
        // MSI-X table and pending bits are in BAR 2; the driver may enable MSI-X and mask all
        // vectors.
        pci.fixed(MSIX, &[0x11, 0x00]);
        pci.fixed(MSIX + 2, &(VECTORS - 1).to_le_bytes());
        pci.open(MSIX + 2, &0xc000u16.to_le_bytes());
        pci.fixed(MSIX + 4, &2u32.to_le_bytes());
        pci.fixed(MSIX + 8, &(PENDING_OFFSET as u32 | 2).to_le_bytes());
        pci
    }

    fn fixed(&mut self, offset: usize, bytes: &[u8]) {
        self.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn open(&mut self, offset: usize, mask: &[u8]) {
        self.writable[offset..offset + mask.len()].copy_from_slice(mask);
    }

    /// Adds a 64-bit BAR. Address bits below the size are read-only, so that a driver can determine
    /// the size.
    fn bar(&mut self, offset: usize, size: u64, flags: u8) {
        self.fixed(offset, &[flags]);
        self.open(offset, &(!(size - 1)).to_le_bytes());
    }

    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) {
        for (place, byte) in into.iter_mut().enumerate() {
            let at = usize::try_from(offset).ok().and_then(|offset| offset.checked_add(place));
            // Bytes beyond the end read as ones, as on a bus.
            *byte = at.and_then(|at| self.bytes.get(at)).copied().unwrap_or(0xff);
        }
    }

    /// Writes the writable bits. Returns whether the driver has requested a function level reset.
    pub(crate) fn write(&mut self, offset: u64, from: &[u8]) -> bool {
        let mut reset = false;
        for (place, &byte) in from.iter().enumerate() {
            let at = usize::try_from(offset).ok().and_then(|offset| offset.checked_add(place));
            let Some(at) = at.filter(|at| *at < CONFIG_SIZE) else { continue };
            let mask = self.writable[at];
            self.bytes[at] = self.bytes[at] & !mask | byte & mask;
            reset |= at == EXPRESS + 0x09 && byte & 0x80 != 0;
        }
        reset
    }
}
