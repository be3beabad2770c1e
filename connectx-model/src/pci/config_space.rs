//! The configuration space, with device identity, BARs, PCI Express and MSI-X.
//!
//! | offset | contents |
//! |---|---|
//! | 0x00 | header: 15b3:1017, BAR 0 (64 bits, prefetchable), BAR 2 |
//! | 0x60 | PCI Express endpoint, with function level reset |
//! | 0x9c | MSI-X: table at the start of BAR 2, pending bits in its second half |
//!
//! Invariant: bits that are read-only for the guest keep their values.

use crate::bus::Bus;
use crate::function::Function;

impl<B: Bus> Function<B> {
    /// Reads the configuration space.
    pub fn config_read(&mut self, offset: u64, into: &mut [u8]) {
        if self.core.faults.removed() {
            into.fill(0xff);
        } else {
            self.core.pci.read(offset, into);
        }
    }

    /// Writes the configuration space. One bit requests a function level reset.
    pub fn config_write(&mut self, offset: u64, from: &[u8]) {
        if !self.core.faults.removed() && self.core.pci.write(offset, from) {
            self.reset();
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::VECTORS;
    use crate::port::PortKind;
    use crate::state::config_space::Pci;

    fn dword(pci: &Pci, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        pci.read(offset, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    #[test]
    fn the_size_of_a_bar_is_found_by_writing_ones() {
        let mut pci = Pci::new(PortKind::Ib);
        pci.write(0x10, &[0xff; 8]);
        assert_eq!((dword(&pci, 0x10), dword(&pci, 0x14)), (0xfc00_000c, 0xffff_ffff));
        pci.write(0x18, &[0xff; 8]);
        assert_eq!(dword(&pci, 0x18), 0xffff_e004);
    }

    #[test]
    fn the_devices_identity_is_read_only() {
        let mut pci = Pci::new(PortKind::Roce);
        pci.write(0, &[0xff; 4]);
        assert_eq!(dword(&pci, 0), 0x1017_15b3);
        assert_eq!(dword(&pci, 0x08), 0x0200_0000);
    }

    #[test]
    fn capabilities_are_a_chain_to_msix_with_its_vectors() {
        let pci = Pci::new(PortKind::Ib);
        let express = dword(&pci, 0x34) & 0xff;
        let msix = dword(&pci, express.into()) >> 8 & 0xff;
        let header = dword(&pci, msix.into());
        assert_eq!((header & 0xffff, header >> 16), (0x0011, u32::from(VECTORS) - 1));
    }

    #[test]
    fn a_function_level_reset_is_seen_and_reads_as_0() {
        let mut pci = Pci::new(PortKind::Ib);
        assert!(!pci.write(0x69, &[0x28]));
        assert!(pci.write(0x68, &[0x30, 0xa8]));
        assert_eq!(dword(&pci, 0x68) & 0x8000, 0);
        pci.write(u64::MAX, &[1, 2]);
    }
}
