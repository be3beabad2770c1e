//! [`Uar`]: a page of the device's doorbell registers and the ways to get UARs from the driver.
//!
//! | driver | registers shared by queue pairs | registers dedicated to one queue pair each |
//! |---|---|---|
//! | Linux 5.8 and newer | [`alloc`], without write combining | [`alloc`] |
//! | older, or on demand | [`of_context`]: the driver chooses | [`alloc_later`], Linux 4.16 |
//!
//! A queue pair's register is named to the driver by the [`Name`] of its UAR.
//!
//! # Safety
//! The driver has allocated the pages mapped here for the context, as stated in its replies. It
//! frees them with the context, or later if they are still mapped.
//!
//! # References
//! rdma-core `providers/mlx5/verbs.c` (`mlx5_alloc_dyn_uar`), `mlx5.c` (`get_uar_mmap_offset`);
//! Linux `drivers/infiniband/hw/mlx5/main.c` (`uar_mmap`), `qp.c` (`bfregn_to_uar_index`)
#![allow(unsafe_code)]

use uverbs_abi::mlx5_abi::{
    MLX5_QP_FLAG_BFREG_INDEX, MLX5_QP_FLAG_UAR_PAGE_INDEX, Mlx5IbAllocUcontextResp, Mlx5IbMmapCmd,
};
use verbs_core::kernel::Kernel;
use verbs_core::ring::{Region, page_size};
use verbs_core::{Errno, Result};

use crate::cmd::{UarType, alloc_uar, free_uar};

/// The size of a UAR, in bytes.
pub(crate) const UAR: usize = 4096;

/// The number of user-space registers in a UAR.
pub(crate) const REGISTERS: usize = 2;

/// The number of registers in a UAR as the driver counts them in its replies, including the
/// kernel's.
const COUNTED: usize = 4;

/// The maximum number of registers a driver allocates with a context.
const MAX_OF_CONTEXT: usize = 512;

/// A page of doorbell registers (UAR).
#[derive(Clone, Debug)]
pub(crate) struct Uar {
    pub(crate) region: Region,
    /// The offset of the UAR in the region, in bytes.
    pub(crate) base: usize,
    pub(crate) name: Name,
    /// The offset in the device's file for mapping the UAR's page.
    pub(crate) map_offset: u64,
    /// The driver's handle for the UAR's page; `None` if the page came with the context. On some
    /// systems, a page contains several UARs.
    pub(crate) handle: Option<u32>,
}

/// The name of a UAR in the driver's commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    /// The UAR's number in the device.
    Page(u32),
    /// The number of the UAR's first register, among the registers allocated after the context.
    Later(u32),
    /// The command names no UAR: the context already has one, and the driver selects it.
    Chosen,
}

impl Name {
    /// Returns the flag and the index that identify the UAR in the command for creating a queue
    /// pair.
    pub(crate) const fn of_qp(self) -> (u32, u32) {
        match self {
            Self::Page(number) => (MLX5_QP_FLAG_UAR_PAGE_INDEX, number),
            Self::Later(number) => (MLX5_QP_FLAG_BFREG_INDEX, number),
            Self::Chosen => (0, 0),
        }
    }
}

/// Returns the index of the context's UAR and the index of the register in it, for a register
/// number in a driver's reply; `None` for a register of the kernel.
pub(crate) fn chosen(bfreg_index: u32) -> Option<(usize, usize)> {
    let (uar, register) = (bfreg_index as usize / COUNTED, bfreg_index as usize % COUNTED);
    (register < REGISTERS).then_some((uar, register))
}

/// Allocates a page of registers with `count` UARs as a driver object.
///
/// # Errors
/// Same as [`alloc_uar`]; any errno of `mmap(2)`.
pub(crate) fn alloc(kernel: &Kernel, uar_type: UarType, count: usize) -> Result<Vec<Uar>> {
    let uverbs = kernel.uverbs();
    let info = alloc_uar(uverbs, uar_type)?;
    // SAFETY: the kernel has just allocated the page for this process and reported where to map it.
    // It stays allocated as long as it is mapped.
    let mapped = unsafe { uverbs.map("alloc_uar", info.mmap_offset, info.length as usize) };
    let region = mapped.inspect_err(|_| {
        // If the kernel does not free the page, closing the file does.
        let _ = free_uar(uverbs, info.handle);
    })?;
    let name = |number| Name::Page(info.page_id.wrapping_add(number));
    let mut all = uars(&region, info.mmap_offset, count, name);
    all.iter_mut().for_each(|uar| uar.handle = Some(info.handle));
    Ok(all)
}

/// Maps the pages that the driver has allocated with the context, according to its reply.
///
/// # Errors
/// `EPROTO` for a reply without a page, or with more registers than any driver allocates; any errno
/// of `mmap(2)`.
pub(crate) fn of_context(kernel: &Kernel, reply: &Mlx5IbAllocUcontextResp) -> Result<Vec<Uar>> {
    const VERB: &str = "open_device";
    let (uverbs, registers, count) = (kernel.uverbs(), reply.tot_bfregs as usize, per_page(reply));
    let pages = registers / (REGISTERS * count);
    if pages == 0 || registers > MAX_OF_CONTEXT {
        return Err(uverbs.bad_reply(VERB, "a number of registers that no context has"));
    }
    let mut all = Vec::with_capacity(pages * count);
    for page in 0..pages {
        // These registers get only single stores, which gain nothing from write combining. Drivers
        // before Linux 4.10 map all pages with it.
        let map = |command| {
            let offset = offset(command, page);
            // SAFETY: the driver has allocated this many pages, and they live as long as the
            // context.
            unsafe { uverbs.map(VERB, offset, page_size()) }.map(|region| (region, offset))
        };
        let (region, offset) = map(Mlx5IbMmapCmd::MLX5_IB_MMAP_NC_PAGE)
            .or_else(|_| map(Mlx5IbMmapCmd::MLX5_IB_MMAP_REGULAR_PAGE))?;
        all.extend(uars(&region, offset, count, |_| Name::Chosen));
    }
    Ok(all)
}

/// Allocates a page of registers after the context was created, by mapping it. `page` is its index
/// among the pages the driver's reply permits.
///
/// # Errors
/// `ENOMEM` if `page` is beyond the last permitted page; any errno of `mmap(2)`.
pub(crate) fn alloc_later(kernel: &Kernel, reply: &Mlx5IbAllocUcontextResp, page: usize) -> Result<Vec<Uar>> {
    const VERB: &str = "alloc_uar";
    let (uverbs, count) = (kernel.uverbs(), per_page(reply));
    if page >= reply.num_dyn_bfregs as usize / (REGISTERS * count) {
        return Err(uverbs.error(VERB, Errno::NOMEM));
    }
    let offset = offset(Mlx5IbMmapCmd::MLX5_IB_MMAP_ALLOC_WC, page);
    // SAFETY: the driver allocates the page when it is mapped, and the page lives as long as the
    // context.
    let region = unsafe { uverbs.map(VERB, offset, page_size()) }?;
    let first = page * count * REGISTERS;
    Ok(uars(&region, offset, count, |number| Name::Later(first as u32 + number * REGISTERS as u32)))
}

/// Returns the number of UARs in a page the driver maps: 1 if the driver does not report it.
pub(crate) fn per_page(reply: &Mlx5IbAllocUcontextResp) -> usize {
    (reply.num_uars_per_page as usize).clamp(1, (page_size() / UAR).max(1))
}

/// Returns the UARs in a region.
fn uars(region: &Region, map_offset: u64, count: usize, name: impl Fn(u32) -> Name) -> Vec<Uar> {
    let fit = (0..count).filter(|number| (number + 1) * UAR <= region.len());
    fit.map(|number| Uar {
        region: region.clone(),
        base: number * UAR,
        name: name(number as u32),
        map_offset,
        handle: None,
    })
    .collect()
}

/// Returns the offset in the device's file for a page number: the low 8 bits of the number, then
/// the command, then the number's remaining bits.
fn offset(command: Mlx5IbMmapCmd, page: usize) -> u64 {
    let (low, high) = (page as u64 & 0xff, page as u64 >> 8);
    (high << 16 | u64::from(command.0) << 8 | low) * page_size() as u64
}

#[cfg(test)]
mod tests {
    use verbs_core::channel::{Expect, Reply};

    use super::*;
    use crate::device::tests::kernel;

    fn reply(tot_bfregs: u32, num_dyn_bfregs: u32) -> Mlx5IbAllocUcontextResp {
        Mlx5IbAllocUcontextResp { tot_bfregs, num_dyn_bfregs, ..Default::default() }
    }

    #[test]
    fn the_place_of_a_page_has_its_number_in_two_parts() {
        let page = page_size() as u64;
        assert_eq!(offset(Mlx5IbMmapCmd::MLX5_IB_MMAP_REGULAR_PAGE, 3), 3 * page);
        assert_eq!(offset(Mlx5IbMmapCmd::MLX5_IB_MMAP_NC_PAGE, 3), 0x303 * page);
        assert_eq!(offset(Mlx5IbMmapCmd::MLX5_IB_MMAP_ALLOC_WC, 0x1ff), 0x1_06ff * page);
    }

    #[test]
    fn the_pages_of_a_context_are_mapped_without_write_combining_where_the_driver_can() {
        let (kernel, script) = kernel();
        let page = page_size() as u64;
        script.expect_map(0x300 * page, page_size(), Region::plain(page_size()));
        script.expect_map(0x301 * page, page_size(), Region::plain(page_size()));
        let uars = of_context(&kernel, &reply(4, 0)).unwrap();
        let places: Vec<_> = uars.iter().map(|uar| (uar.name, uar.map_offset, uar.base)).collect();
        assert_eq!(places, [(Name::Chosen, 0x300 * page, 0), (Name::Chosen, 0x301 * page, 0)]);
    }

    #[test]
    fn a_driver_without_such_mappings_maps_its_pages_as_it_can() {
        let (kernel, script) = kernel();
        let page = page_size() as u64;
        script.refuse_map(0x300 * page, Errno::INVAL);
        script.expect_map(0, page_size(), Region::plain(page_size()));
        let uars = of_context(&kernel, &reply(2, 0)).unwrap();
        assert_eq!(uars[0].map_offset, 0);
        script.refuse_map(0x300 * page, Errno::INVAL);
        script.refuse_map(0, Errno::NOMEM);
        assert_eq!(of_context(&kernel, &reply(2, 0)).unwrap_err().errno, Errno::NOMEM);
    }

    #[test]
    fn a_page_that_cannot_be_mapped_is_freed() {
        let (kernel, script) = kernel();
        let page = [2_u32.to_ne_bytes(), 4096_u32.to_ne_bytes(), 7_u32.to_ne_bytes()];
        let reply = Reply::outputs([&page[0], &0x4000_u64.to_ne_bytes(), &page[1], &page[2]]);
        script.expect([
            Expect::anything(reply),
            Expect::command("ioctl 4104.4097: 0x1000 handle 2", Reply::ok()),
        ]);
        script.refuse_map(0x4000, Errno::NOMEM);
        let error = alloc(&kernel, UarType::MLX5_IB_UAPI_UAR_ALLOC_TYPE_BF, 1).unwrap_err();
        assert_eq!((error.errno, script.remaining()), (Errno::NOMEM, 0));
    }

    #[test]
    fn numbers_of_registers_that_no_driver_gives_are_refused() {
        let (kernel, _) = kernel();
        for tot_bfregs in [1, 514, u32::MAX] {
            assert_eq!(of_context(&kernel, &reply(tot_bfregs, 0)).unwrap_err().errno, Errno::PROTO);
        }
    }

    #[test]
    fn later_pages_are_allocated_by_number_up_to_the_drivers_limit() {
        let (kernel, script) = kernel();
        let page = page_size() as u64;
        script.expect_map(0x1_0601 * page, page_size(), Region::plain(page_size()));
        let uars = alloc_later(&kernel, &reply(16, 1024), 0x101).unwrap();
        assert_eq!(uars[0].name, Name::Later(0x202));
        assert_eq!(uars[0].name.of_qp(), (MLX5_QP_FLAG_BFREG_INDEX, 0x202));
        for (num_dyn_bfregs, number) in [(1024, 512), (0, 0), (1, 0)] {
            let error = alloc_later(&kernel, &reply(16, num_dyn_bfregs), number).unwrap_err();
            assert_eq!(error.errno, Errno::NOMEM, "{num_dyn_bfregs}, {number}");
        }
    }

    #[test]
    fn a_reply_counts_the_registers_of_the_kernel_too() {
        assert_eq!([0, 1, 4, 5, 29].map(chosen), [(0, 0), (0, 1), (1, 0), (1, 1), (7, 1)].map(Some));
        assert_eq!([2, 3, 7].map(chosen), [None; 3]);
    }
}
