//! Paper's device memory, DMA handles, thread domains and XRC domains.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use verbs::provider::{DmOps, DmahOps, TdOps, XrcdOps};
use verbs::{Cause, Errno, Result};

use super::provider::Handle;
use super::{Kind, Object, World};

objects! {
    PaperDm = "free_dm" { world: Arc<World>, bytes: Mutex<Vec<u8>> };
    PaperDmah = "dealloc_dmah" {};
    PaperTd = "dealloc_td" {};
    PaperXrcd = "close_xrcd" {};
}

fn object(world: &Arc<World>, kind: Kind) -> Handle {
    Handle::new(world, Object { kind, ..Object::default() })
}

impl PaperDm {
    pub fn create(world: &Arc<World>, length: u64) -> Self {
        let bytes = Mutex::new(vec![0; usize::try_from(length).unwrap()]);
        Self { handle: object(world, Kind::Dm), world: Arc::clone(world), bytes }
    }

    /// Returns the index range of `len` bytes at `offset`.
    fn range(&self, verb: &'static str, offset: u64, len: usize) -> Result<std::ops::Range<usize>> {
        let length = self.length();
        match offset.checked_add(len as u64) {
            Some(end) if end <= length => Ok(offset as usize..end as usize),
            end => {
                let cause = Cause::Range { start: offset, end: end.unwrap_or(u64::MAX), length };
                Err(self.world.error(verb, Errno::INVAL).because(cause))
            }
        }
    }
}

impl PaperDmah {
    pub fn create(world: &Arc<World>) -> Self {
        Self { handle: object(world, Kind::Dmah) }
    }
}

impl PaperTd {
    pub fn create(world: &Arc<World>) -> Self {
        Self { handle: object(world, Kind::Td) }
    }

    pub fn number(&self) -> u32 {
        self.handle.number()
    }
}

impl PaperXrcd {
    pub fn create(world: &Arc<World>) -> Self {
        Self { handle: object(world, Kind::Xrcd) }
    }
}

impl DmOps for PaperDm {
    fn handle(&self) -> u32 {
        self.handle.number()
    }
    fn length(&self) -> u64 {
        self.bytes.lock().unwrap().len() as u64
    }
    fn copy_to(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let range = self.range("memcpy_to_dm", offset, bytes.len())?;
        self.bytes.lock().unwrap()[range].copy_from_slice(bytes);
        Ok(())
    }
    fn copy_from(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let range = self.range("memcpy_from_dm", offset, bytes.len())?;
        bytes.copy_from_slice(&self.bytes.lock().unwrap()[range]);
        Ok(())
    }
    fn export_dmabuf_fd(&self) -> Result<OwnedFd> {
        Err(self.world.error("dm_export_dmabuf_fd", Errno::OPNOTSUPP))
    }
}

impl DmahOps for PaperDmah {
    fn handle(&self) -> u32 {
        self.handle.number()
    }
}

impl TdOps for PaperTd {}

impl XrcdOps for PaperXrcd {
    fn handle(&self) -> u32 {
        self.handle.number()
    }
}
