//! [`Clock`]: the device's clock and its conversion to the system's time.
//!
//! | read-only page | contents |
//! |---|---|
//! | core clock | a device register with the clock, in two halves |
//! | clock info | the kernel's conversion of the device's clock to the time since 1970 |
//!
//! # Safety
//! Only the kernel and the device write the pages. Both are read by value.
//!
//! # References
//! `ibv_query_rt_values_ex(3)`, `mlx5dv_get_clock_info(3)`; rdma-core `providers/mlx5/mlx5.c`;
//! Linux `drivers/net/ethernet/mellanox/mlx5/core/lib/clock.h` (`mlx5_real_time_cyc2time`)
#![allow(unsafe_code)]

use core::mem::offset_of;
use core::ptr::NonNull;

use uverbs_abi::ib_user_verbs::IbUverbsClockInfo;
use uverbs_abi::mlx5_abi::{
    MLX5_IB_CLOCK_INFO_KERNEL_UPDATING, MLX5_IB_CLOCK_INFO_V1, Mlx5IbAllocUcontextResp,
    Mlx5IbAllocUcontextRespMask, Mlx5IbMmapCmd,
};
use verbs_core::Errno;
use verbs_core::kernel::Kernel;
use verbs_core::ring::{Region, barrier, page_size};

use crate::direct::ClockInfo;

/// The device's clock, as far as the kernel offers access to it.
#[derive(Debug)]
pub(crate) struct Clock {
    /// The page with the register and the register's offset in the page.
    cycles: Option<(Region, usize)>,
    info: Option<Region>,
}

impl Clock {
    /// Maps the pages offered by the driver in its reply to the command that creates the context.
    /// Pages that cannot be mapped are treated as missing.
    pub(crate) fn new(kernel: &Kernel, reply: &Mlx5IbAllocUcontextResp) -> Self {
        let mask = Mlx5IbAllocUcontextRespMask::from_bits_retain(reply.comp_mask);
        let has_cycles =
            mask.contains(Mlx5IbAllocUcontextRespMask::MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_CORE_CLOCK_OFFSET);
        let has_info = reply.clock_info_versions & (1 << MLX5_IB_CLOCK_INFO_V1) != 0;
        let map = |command: Mlx5IbMmapCmd| {
            let page = page_size();
            let offset = (u64::from(command.0) << 8) * page as u64;
            // SAFETY: the driver offers the page for reading, in its reply.
            unsafe { kernel.uverbs().map_read_only("open_device", offset, page) }.ok()
        };
        let place = reply.hca_core_clock_offset as usize % page_size();
        let cycles = has_cycles.then(|| map(Mlx5IbMmapCmd::MLX5_IB_MMAP_CORE_CLOCK)).flatten();
        Self {
            cycles: cycles
                .filter(|page| place.is_multiple_of(4) && place + 8 <= page.len())
                .map(|page| (page, place)),
            info: has_info.then(|| map(Mlx5IbMmapCmd::MLX5_IB_MMAP_CLOCK_INFO)).flatten(),
        }
    }

    /// Returns the current reading of the device's clock; `None` if the clock cannot be read.
    pub(crate) fn cycles(&self) -> Option<u64> {
        let (page, place) = self.cycles.as_ref()?;
        // SAFETY: no code of this process writes the page.
        let half = |place| u32::from_be(unsafe { page.read::<u32>(place) });
        let mut high = half(*place);
        loop {
            let low = half(place + 4);
            let again = half(*place);
            // The lower half may have wrapped between the reads, which it does every few seconds.
            if again == high {
                return Some(u64::from(high) << 32 | u64::from(low));
            }
            high = again;
        }
    }

    /// Returns whether device times can be converted to system times.
    pub(crate) const fn has_wall_clock(&self) -> bool {
        self.info.is_some()
    }

    /// Returns the address of the device's clock register.
    pub(crate) fn register(&self) -> Option<NonNull<u8>> {
        self.cycles.as_ref().map(|(page, place)| page.pointer(*place, 8))
    }

    /// Returns the validity period of a conversion, in nanoseconds.
    pub(crate) fn overflow_period(&self) -> Option<u64> {
        // SAFETY: no code of this process writes the page.
        self.info.as_ref().map(|page| unsafe { page.read(offset_of!(IbUverbsClockInfo, overflow_period)) })
    }

    /// Returns the kernel's conversion of the device's clock to nanoseconds since 1970.
    ///
    /// # Errors
    /// `EINVAL` if the kernel offers no conversion; `EBUSY` if the kernel keeps updating it.
    pub(crate) fn info(&self) -> Result<ClockInfo, Errno> {
        let page = self.info.as_ref().ok_or(Errno::INVAL)?;
        read(page).ok_or(Errno::BUSY)
    }

    /// Converts a reading of the device's clock to nanoseconds since 1970. Returns `None` if the
    /// kernel offers no conversion or keeps updating it.
    pub(crate) fn wall_clock(&self, cycles: u64) -> Option<u64> {
        Some(apply(&read(self.info.as_ref()?)?, cycles))
    }
}

/// Converts a time written by the device, in seconds and nanoseconds since 1970, to nanoseconds.
pub(crate) fn real_time(timestamp: u64) -> u64 {
    let (seconds, nanoseconds) = (timestamp >> 32, timestamp & u64::from(u32::MAX));
    seconds.wrapping_mul(1_000_000_000).wrapping_add(nanoseconds)
}

/// The maximum number of reads of a page while the kernel updates it; an update takes only a few
/// stores.
const PATIENCE: u32 = 1 << 20;

/// Reads the clock conversion from a page; `None` if the kernel's update does not finish.
fn read(page: &Region) -> Option<ClockInfo> {
    macro_rules! field {
        ($name:ident) => {
            // SAFETY: no code of this process writes the page.
            unsafe { page.read(offset_of!(IbUverbsClockInfo, $name)) }
        };
    }
    for _ in 0..PATIENCE {
        let before: u32 = field!(sign);
        barrier::seqlock_read();
        if before & MLX5_IB_CLOCK_INFO_KERNEL_UPDATING != 0 {
            core::hint::spin_loop();
            continue;
        }
        let conversion = ClockInfo {
            nsec: field!(nsec),
            last_cycles: field!(cycles),
            frac: field!(frac),
            mult: field!(mult),
            shift: field!(shift),
            mask: field!(mask),
        };
        barrier::seqlock_read();
        let after: u32 = field!(sign);
        if before == after {
            return Some(conversion);
        }
    }
    None
}

/// Converts a reading of the device's clock to nanoseconds since 1970.
fn apply(info: &ClockInfo, cycles: u64) -> u64 {
    let scale = |delta: u64| delta.wrapping_mul(info.mult.into());
    let shift = |scaled: u64| scaled.checked_shr(info.shift).unwrap_or(0);
    let ahead = cycles.wrapping_sub(info.last_cycles) & info.mask;
    if ahead <= info.mask / 2 {
        return info.nsec.wrapping_add(shift(scale(ahead).wrapping_add(info.frac)));
    }
    // The reading precedes the last update.
    let behind = info.last_cycles.wrapping_sub(cycles) & info.mask;
    info.nsec.wrapping_sub(shift(scale(behind).wrapping_sub(info.frac)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(sign: u32) -> Region {
        let page = Region::plain(size_of::<IbUverbsClockInfo>());
        let info = IbUverbsClockInfo {
            sign,
            resv: 0,
            nsec: 1_000_000,
            cycles: 500,
            frac: 2,
            mult: 13,
            shift: 2,
            mask: 0xffff,
            overflow_period: 0,
        };
        // SAFETY: the test has one thread.
        unsafe { page.write(0, info) };
        page
    }

    #[test]
    fn a_devices_time_has_seconds_and_nanoseconds() {
        assert_eq!(real_time(1_700_000_000 << 32 | 999_999_999), 1_700_000_000_999_999_999);
    }

    #[test]
    fn times_before_and_behind_the_last_update_are_converted() {
        let conversion = read(&page(2)).unwrap();
        assert_eq!(apply(&conversion, 500), 1_000_000);
        assert_eq!(apply(&conversion, 600), 1_000_000 + (100 * 13 + 2) / 4);
        assert_eq!(apply(&conversion, 400), 1_000_000 - (100 * 13 - 2) / 4);
        // The counter has 16 bits.
        assert_eq!(apply(&conversion, 0x1_0000 + 600), apply(&conversion, 600));
        assert_eq!(apply(&conversion, 500 + 0x7fff), 1_000_000 + (0x7fff * 13 + 2) / 4);
    }

    #[test]
    fn a_page_that_stays_in_an_update_has_no_time() {
        assert!(read(&page(3)).is_none());
    }

    #[test]
    fn the_halves_of_the_clock_are_big_endian() {
        let register = Region::plain(16);
        // SAFETY: the test has one thread.
        unsafe { register.write(8, [0x12_u32.to_be(), 0x3456_u32.to_be()]) };
        let clock = Clock { cycles: Some((register, 8)), info: None };
        assert_eq!(clock.cycles(), Some(0x12_0000_3456));
        assert_eq!((clock.has_wall_clock(), clock.wall_clock(5)), (false, None));
    }
}
