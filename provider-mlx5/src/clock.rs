//! [`Clock`]: the device's clock, and the system's time by it.
//!
//! | page, for reading alone | what it has |
//! |---|---|
//! | core clock | a register of the device: its clock, in two halves |
//! | clock info | the kernel's conversion of the device's clock to the time since 1970 |
//!
//! # Safety
//! The kernel and the device alone write the pages, and both are read by value.
//!
//! # References
//! `ibv_query_rt_values_ex(3)`, `mlx5dv_get_clock_info(3)`; rdma-core `providers/mlx5/mlx5.c`
#![allow(unsafe_code)]

use core::mem::offset_of;

use uverbs_abi::ib_user_verbs::IbUverbsClockInfo;
use uverbs_abi::mlx5_abi::{
    MLX5_IB_CLOCK_INFO_KERNEL_UPDATING, MLX5_IB_CLOCK_INFO_V1, Mlx5IbAllocUcontextResp,
    Mlx5IbAllocUcontextRespMask, Mlx5IbMmapCmd,
};
use verbs_core::ring::{Region, barrier, page_size};

use crate::kernel::Kernel;

/// The device's clock, as far as the kernel offers it.
#[derive(Debug)]
pub(crate) struct Clock {
    /// The register's page, and its place there.
    cycles: Option<(Region, usize)>,
    info: Option<Region>,
}

impl Clock {
    /// Maps what the driver offers in its reply to the creation of the context. A page that cannot
    /// be mapped is not there.
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

    /// Returns the device's clock; `None` if it cannot be read.
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

    /// Returns whether times of the device can be converted to those of the system.
    pub(crate) const fn has_wall_clock(&self) -> bool {
        self.info.is_some()
    }

    /// Returns the time since 1970 of a reading of the device's clock, in nanoseconds; `None` if
    /// the kernel offers no conversion, or does not finish to update it.
    pub(crate) fn wall_clock(&self, cycles: u64) -> Option<u64> {
        Some(Conversion::read(self.info.as_ref()?)?.apply(cycles))
    }
}

/// The kernel's conversion at a moment.
#[derive(Clone, Copy, Debug)]
struct Conversion {
    nsec: u64,
    cycles: u64,
    frac: u64,
    mult: u32,
    shift: u32,
    mask: u64,
}

/// The number of reads of a page that the kernel updates: an update takes a few stores.
const PATIENCE: u32 = 1 << 20;

impl Conversion {
    fn read(page: &Region) -> Option<Self> {
        macro_rules! field {
            ($name:ident) => {
                // SAFETY: no code of this process writes the page.
                unsafe { page.read(offset_of!(IbUverbsClockInfo, $name)) }
            };
        }
        for _ in 0..PATIENCE {
            let before: u32 = field!(sign);
            barrier::from_device();
            if before & MLX5_IB_CLOCK_INFO_KERNEL_UPDATING != 0 {
                core::hint::spin_loop();
                continue;
            }
            let conversion = Self {
                nsec: field!(nsec),
                cycles: field!(cycles),
                frac: field!(frac),
                mult: field!(mult),
                shift: field!(shift),
                mask: field!(mask),
            };
            barrier::from_device();
            let after: u32 = field!(sign);
            if before == after {
                return Some(conversion);
            }
        }
        None
    }

    fn apply(&self, cycles: u64) -> u64 {
        let scale = |delta: u64| delta.wrapping_mul(self.mult.into());
        let shift = |scaled: u64| scaled.checked_shr(self.shift).unwrap_or(0);
        let ahead = cycles.wrapping_sub(self.cycles) & self.mask;
        if ahead <= self.mask / 2 {
            return self.nsec.wrapping_add(shift(scale(ahead).wrapping_add(self.frac)));
        }
        // A time before the last update.
        let behind = self.cycles.wrapping_sub(cycles) & self.mask;
        self.nsec.wrapping_sub(shift(scale(behind).wrapping_sub(self.frac)))
    }
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
    fn times_before_and_behind_the_last_update_are_converted() {
        let conversion = Conversion::read(&page(2)).unwrap();
        assert_eq!(conversion.apply(500), 1_000_000);
        assert_eq!(conversion.apply(600), 1_000_000 + (100 * 13 + 2) / 4);
        assert_eq!(conversion.apply(400), 1_000_000 - (100 * 13 - 2) / 4);
        // The counter has 16 bits.
        assert_eq!(conversion.apply(0x1_0000 + 600), conversion.apply(600));
        assert_eq!(conversion.apply(500 + 0x7fff), 1_000_000 + (0x7fff * 13 + 2) / 4);
    }

    #[test]
    fn a_page_that_stays_in_an_update_has_no_time() {
        assert!(Conversion::read(&page(3)).is_none());
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
