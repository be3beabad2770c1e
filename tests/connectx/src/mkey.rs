//! [`Mkeys`] and [`Translated`]: memory keys and what they mean to the transport engine.

use roce::engine::{Fault, Memory};

use crate::bus::Bus;
use crate::function::pages::Pages;

/// What the model keeps of memory keys beside what the engine does.
#[derive(Debug, Default)]
pub(crate) struct Mkeys {}

/// Where the bytes of a memory key are.
#[derive(Clone, Debug)]
pub(crate) enum Mapping {
    /// At the guest-physical address that is the offset.
    Physical,
    /// In pages.
    Pages(Pages),
}

/// Guest memory as the transport engine reaches it: by memory key.
#[derive(Clone, Debug)]
pub(crate) struct Translated<B: Bus> {
    pub(crate) bus: B,
}

impl<B: Bus> Translated<B> {
    fn word(&self, mapping: &Mapping, offset: u64) -> Result<u64, Fault> {
        match mapping {
            Mapping::Physical => Ok(offset),
            Mapping::Pages(pages) => match pages.locate(offset) {
                Some((address, 8..)) => Ok(address),
                _ => Err(Fault),
            },
        }
    }
}

impl<B: Bus> Memory for Translated<B> {
    type Region = Mapping;

    fn read(&mut self, region: &Mapping, offset: u64, dst: &mut [u8]) -> Result<(), Fault> {
        match region {
            Mapping::Physical => self.bus.read(offset, dst),
            Mapping::Pages(pages) => pages.read(&self.bus, offset, dst),
        }
        .map_err(|_| Fault)
    }

    fn write(&mut self, region: &Mapping, offset: u64, src: &[u8]) -> Result<(), Fault> {
        match region {
            Mapping::Physical => self.bus.write(offset, src),
            Mapping::Pages(pages) => pages.write(&self.bus, offset, src),
        }
        .map_err(|_| Fault)
    }

    fn compare_swap(&mut self, region: &Mapping, offset: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
        self.bus.compare_swap(self.word(region, offset)?, compare, swap).map_err(|_| Fault)
    }

    fn fetch_add(&mut self, region: &Mapping, offset: u64, add: u64) -> Result<u64, Fault> {
        self.bus.fetch_add(self.word(region, offset)?, add).map_err(|_| Fault)
    }
}
