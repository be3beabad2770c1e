//! [`Dm`]: device memory (MEMIC), mapped by the process for copies.
//!
//! The device supports only 4-byte accesses, so a copy is a sequence of atomic accesses.
//! Copies by several threads may interleave; they do not race.
//!
//! The mapping is write-combining. A copy to the memory ends with a flush, so that the copied data
//! precedes the doorbell of any thread synchronised with the copy; libmlx5 leaves the flush to the
//! doorbell, which covers only stores by the same thread. A copy from the memory starts only after
//! the program has read the completion that announces the data.
//!
//! # Safety
//! Only [`Dm::copy_to`] and [`Dm::copy_from`] access the mapping; their accesses are atomic and in
//! bounds. Work requests and peers access the same bytes through the device.
//!
//! # References
//! `ibv_alloc_dm(3)`; rdma-core `providers/mlx5/verbs.c` (`mlx5_access_dm`, `dm_mmap`); Linux
//! `drivers/infiniband/hw/mlx5/dm.c`
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicU32, Ordering};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use uverbs_abi::mlx5_abi::Mlx5IbMmapCmd;
use uverbs_abi::mlx5_user_ioctl_cmds::{
    MLX5_IB_ATTR_ALLOC_DM_REQ_TYPE, MLX5_IB_ATTR_ALLOC_DM_RESP_PAGE_INDEX,
    MLX5_IB_ATTR_ALLOC_DM_RESP_START_OFFSET,
};
use uverbs_abi::mlx5_user_ioctl_verbs::Mlx5IbUapiDmType;
use verbs_core::channel::{Attr, DriverAttrs};
use verbs_core::provider::{Destroy, DeviceOps as _, DmOps};
use verbs_core::ring::{Region, barrier, page_size};
use verbs_core::types::DmAttr;
use verbs_core::{Cause, Errno, Error, Result, cmd, explain};
use zerocopy::IntoBytes;

use crate::cmd::{DmInfo, query_dm};
use crate::device::Device;
use crate::direct::DmDirect;

/// The size of an access, in bytes.
const WORD: usize = size_of::<u32>();

/// Device memory.
#[derive(Debug)]
pub struct Dm {
    device: Arc<Device>,
    handle: u32,
    length: u64,
    region: Region,
    /// The offset of the memory in the region, in bytes.
    start: usize,
    map_offset: u64,
    is_own: bool,
}

/// Returns the offset in the device file for mapping a page of device memory.
fn map_offset(page_index: u16) -> u64 {
    let index = u64::from(page_index);
    let page = u64::from(Mlx5IbMmapCmd::MLX5_IB_MMAP_DEVICE_MEM.0) << 8 | index & 0xff | (index >> 8) << 16;
    page * page_size() as u64
}

impl Dm {
    /// Allocates device memory.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for a device without device memory; `EINVAL` with [`Cause::Limit`] for a length
    /// of 0 or more than the device has; any other errno the kernel returns, notably `ENOMEM`.
    pub(crate) fn alloc(device: &Arc<Device>, attr: &DmAttr) -> Result<Self> {
        const VERB: &str = "alloc_dm";
        // The driver rounds a length up without checking its size.
        let most = device.kernel.query_device_ex()?.max_dm_size;
        if most == 0 {
            let reason = "the device has no memory for programs".into();
            return Err(device.error(VERB, Errno::OPNOTSUPP).because(Cause::Other { reason }));
        }
        explain::within("length", attr.length, 1, most)
            .map_err(|cause| device.error(VERB, Errno::INVAL).because(cause))?;
        let mut info = DmInfo { length: attr.length, ..DmInfo::default() };
        // Linux before 5.3 has only one kind and ignores the attribute.
        let kind = u64::from(Mlx5IbUapiDmType::MLX5_IB_UAPI_DM_TYPE_MEMIC.0);
        let driver = [
            Attr::u64(MLX5_IB_ATTR_ALLOC_DM_REQ_TYPE, kind).optional(),
            Attr::output(MLX5_IB_ATTR_ALLOC_DM_RESP_START_OFFSET, info.start_offset.as_mut_bytes()),
            Attr::output(MLX5_IB_ATTR_ALLOC_DM_RESP_PAGE_INDEX, info.page_index.as_mut_bytes()),
        ];
        // SAFETY: the attributes are the driver's and lend `info` for the duration of the command.
        let driver = unsafe { DriverAttrs::new(driver) };
        let uverbs = device.kernel.uverbs();
        let handle = cmd::dm::alloc_dm(uverbs, attr, driver)?;
        Self::over(device, VERB, handle, info, true).inspect_err(|_| {
            // If this also fails, the allocation lasts as long as the context.
            let _ = cmd::dm::free_dm(uverbs, handle);
        })
    }

    /// Maps device memory allocated by another owner of the same open file.
    ///
    /// # Errors
    /// Same as [`query_dm`]; any errno `mmap(2)` returns.
    pub(crate) fn import(device: &Arc<Device>, handle: u32) -> Result<Self> {
        let info = query_dm(device.kernel.uverbs(), handle)?;
        Self::over(device, "import_dm", handle, info, false)
    }

    fn over(
        device: &Arc<Device>,
        verb: &'static str,
        handle: u32,
        info: DmInfo,
        is_own: bool,
    ) -> Result<Self> {
        let uverbs = device.kernel.uverbs();
        let bad = || uverbs.bad_reply(verb, "device memory outside of its pages");
        let length = usize::try_from(info.length).map_err(|_| bad())?;
        let size = length.checked_next_multiple_of(page_size()).ok_or_else(bad)?;
        let start = info.start_offset as usize & (page_size() - 1);
        if !start.is_multiple_of(WORD) || start.checked_add(length).is_none_or(|end| end > size) {
            return Err(bad());
        }
        let map_offset = map_offset(info.page_index);
        // SAFETY: the kernel reported where the memory is mapped; only this object has the mapping.
        let region = unsafe { uverbs.map(verb, map_offset, size) }?;
        let device = Arc::clone(device);
        Ok(Self { device, handle, length: info.length, region, start, map_offset, is_own })
    }

    /// Returns the open device the memory belongs to.
    pub(crate) const fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Describes the memory for direct access: see [`direct`](crate::direct).
    pub fn direct(&self) -> DmDirect {
        DmDirect { buf: self.region.pointer(self.start, self.length as usize), length: self.length }
    }

    /// Checks that a range lies within the memory.
    ///
    /// # Errors
    /// `EINVAL` with [`Cause::Range`] for a range that ends outside the memory.
    pub(crate) fn check(&self, verb: &'static str, offset: u64, length: u64) -> Result<()> {
        if offset.checked_add(length).is_some_and(|end| end <= self.length) {
            return Ok(());
        }
        let cause = Cause::Range { start: offset, end: offset.saturating_add(length), length: self.length };
        Err(self.device.error(verb, Errno::INVAL).because(cause))
    }

    /// Returns the 4-byte words a copy accesses.
    fn words(
        &self,
        verb: &'static str,
        offset: u64,
        length: usize,
    ) -> Result<impl Iterator<Item = &AtomicU32>> {
        self.check(verb, offset, length as u64)?;
        if !(offset | length as u64).is_multiple_of(WORD as u64) {
            let reason = "offset and length of a copy are multiples of 4 bytes".into();
            return Err(self.device.error(verb, Errno::INVAL).because(Cause::Other { reason }));
        }
        let start = self.start + offset as usize;
        Ok((start..start + length).step_by(WORD).map(|at| {
            let word = self.region.pointer(at, WORD).cast();
            // SAFETY: within the region, which lives as long as `self`, and aligned: the mapping
            // starts at a page, and `start` and the offset are multiples of 4 (`over`, above). This
            // process accesses the memory only by such words.
            unsafe { AtomicU32::from_ptr(word.as_ptr()) }
        }))
    }
}

impl DmOps for Dm {
    fn handle(&self) -> u32 {
        self.handle
    }

    fn length(&self) -> u64 {
        self.length
    }

    fn copy_to(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let words = self.words("memcpy_to_dm", offset, bytes.len())?;
        let (values, _) = bytes.as_chunks::<WORD>();
        for (word, value) in words.zip(values) {
            word.store(u32::from_ne_bytes(*value), Ordering::Relaxed);
        }
        barrier::flush_wc();
        Ok(())
    }

    fn copy_from(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let words = self.words("memcpy_from_dm", offset, bytes.len())?;
        let (values, _) = bytes.as_chunks_mut::<WORD>();
        barrier::wc_read_start();
        for (word, value) in words.zip(values) {
            *value = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        Ok(())
    }

    fn export_dmabuf_fd(&self) -> Result<OwnedFd> {
        cmd::dm::export_dmabuf(self.device.kernel.uverbs(), self.map_offset)
    }
}

impl Destroy for Dm {
    fn destroy(self) -> Result<(), (Self, Error)> {
        if !self.is_own {
            return Ok(());
        }
        match cmd::dm::free_dm(self.device.kernel.uverbs(), self.handle) {
            Ok(()) => Ok(()),
            Err(error) => Err((self, error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use uverbs_abi::ib_user_verbs::IbUverbsExQueryDeviceResp;
    use verbs_core::channel::{Expect, Reply, Scripted};

    use super::*;
    use crate::device::tests::device;

    /// The memory's page number and its offset in the page, as the driver reports them.
    const PLACE: u64 = 8 << 8 | 0x34 | 0x12 << 16;
    const START: u64 = 0x1_0040;

    fn most(max_dm_size: u64) -> Expect {
        let mut reply = IbUverbsExQueryDeviceResp { max_dm_size, ..Default::default() };
        reply.response_length = size_of_val(&reply) as u32;
        Expect::anything(Reply::outputs([reply.as_bytes()]))
    }

    fn dm(script: &Scripted, device: &Arc<Device>, region: &Region) -> Dm {
        let command = "ioctl 14.0: 0x0 new handle, 0x1 u64 0x80, 0x2 u32 0x6, 0x1002? u64 0x0, 0x1000 out 8 bytes, \
                       0x1001 out 2 bytes";
        let outputs = [&5_u32.to_ne_bytes()[..], &START.to_ne_bytes(), &0x1234_u16.to_ne_bytes()];
        script.expect([most(4096), Expect::command(command, Reply::outputs(outputs))]);
        script.expect_map(PLACE * page_size() as u64, page_size(), region.clone());
        Dm::alloc(device, &DmAttr { length: 128, log_align: 6 }).unwrap()
    }

    #[test]
    fn device_memory_is_mapped_and_copied_in_words() {
        let (device, script) = device();
        let region = Region::plain(page_size());
        let dm = dm(&script, &device, &region);
        assert_eq!((dm.handle(), dm.length()), (5, 128));
        let (direct, start) = (dm.direct(), region.pointer(0x40, 1));
        assert_eq!(direct, DmDirect { buf: start, length: 128 });
        dm.copy_to(4, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
        // SAFETY: no other thread runs.
        let copied = unsafe { region.read::<[u8; 16]>(0x40) };
        assert_eq!(copied, [0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0]);
        let mut bytes = [0xaa; 8];
        dm.copy_from(8, &mut bytes).unwrap();
        assert_eq!(bytes, [5, 6, 7, 8, 0, 0, 0, 0]);
        for (offset, len) in [(2, 4), (4, 2), (128, 4), (0, 132), (u64::MAX - 3, 4)] {
            let mut bytes = vec![1; len];
            for result in [dm.copy_to(offset, &bytes), dm.copy_from(offset, &mut bytes)] {
                assert_eq!(result.unwrap_err().errno, Errno::INVAL, "{len} bytes at {offset}");
            }
        }
        dm.copy_to(128, &[]).unwrap();
        script.expect([Expect::command("ioctl 14.1: 0x0 handle 5", Reply::ok())]);
        dm.destroy().map_err(|(_, error)| error).unwrap();
    }

    #[test]
    fn memory_beyond_the_device_is_refused_before_the_command() {
        let (device, script) = device();
        for (length, has, errno) in [
            (1, 0, Errno::OPNOTSUPP),
            (0, 4096, Errno::INVAL),
            (4097, 4096, Errno::INVAL),
            (u64::MAX, 4096, Errno::INVAL),
        ] {
            script.expect([most(has)]);
            let error = Dm::alloc(&device, &DmAttr { length, log_align: 0 }).unwrap_err();
            assert_eq!(error.errno, errno, "{length} of {has}");
        }
    }

    #[test]
    fn memory_outside_of_its_pages_is_freed_again() {
        let (device, script) = device();
        let outputs = [&5_u32.to_ne_bytes()[..], &4_u64.to_ne_bytes(), &0_u16.to_ne_bytes()];
        script.expect([
            most(page_size() as u64),
            Expect::anything(Reply::outputs(outputs)),
            Expect::command("ioctl 14.1: 0x0 handle 5", Reply::ok()),
        ]);
        let error = Dm::alloc(&device, &DmAttr { length: page_size() as u64, log_align: 0 }).unwrap_err();
        assert!(matches!(error.cause, Cause::BadReply { .. }), "{error}");
    }

    #[test]
    fn imported_memory_is_not_freed() {
        let (device, script) = device();
        let command = "ioctl 14.4097: 0x1000 handle 7, 0x1001 out 8 bytes, 0x1002 out 2 bytes, \
                       0x1003 out 8 bytes";
        let outputs = [&START.to_ne_bytes()[..], &0x1234_u16.to_ne_bytes(), &64_u64.to_ne_bytes()];
        script.expect([Expect::command(command, Reply::outputs(outputs))]);
        script.expect_map(PLACE * page_size() as u64, page_size(), Region::plain(page_size()));
        let dm = Dm::import(&device, 7).unwrap();
        assert_eq!((dm.handle(), dm.length()), (7, 64));
        dm.destroy().map_err(|(_, error)| error).unwrap();
    }
}
