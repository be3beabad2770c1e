//! [`Registers`]: the doorbell registers of a context, in pages of the device (UARs).
//!
//! ```text
//!   UAR, 4 KiB   0x020  requests for events of completion queues
//!                0x800  register 0: two halves ┐ each for one send queue; the others are the
//!                       register 1: two halves ┘ kernel's
//! ```
//!
//! A queue pair gets a register of its own while there are some, so that posting takes no lock.
//! Further queue pairs share a register that takes doorbells of 8 bytes alone, which one store
//! rings. The environment variables are libmlx5's:
//!
//! | variable | meaning |
//! |---|---|
//! | `MLX5_TOTAL_UUARS` | the number of registers of one queue pair each, 128 by default |
//! | `MLX5_SHUT_UP_BF` | `1`: none; all ring the shared register |
//! | `MLX5_POST_SEND_PREFER_BF` | `0`: only requests with inline data go into the register |
//!
//! A queue may outlive its queue pair. Its register, and the other one of the same UAR, then go to
//! no other queue pair: the device finds the queue pair by the number in the doorbell, may have
//! given the number to another one, and compares the UAR alone. A queue pair that was created in
//! the same UAR while the other one was being destroyed is created once more elsewhere. A late
//! doorbell in the shared register has no request: the device reads the records of the queue pair
//! with the number, which cover that one's own requests.
//!
//! # Safety
//! A register is one queue's as long as the value lives, except the shared one, which is only rung
//! with stores of 8 bytes.
//!
//! # References
//! `mlx5dv(7)`; rdma-core `providers/mlx5/verbs.c` (`mlx5_get_qp_uar`)
#![allow(unsafe_code)]

use core::ptr::NonNull;
use std::env;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use verbs_core::Result;
use verbs_core::cmd::mlx5::{UarType, alloc_uar, free_uar};
use verbs_core::ring::Region;

use crate::direct::RegisterDirect;
use crate::doorbell::{ArmRegister, BlueFlame};
use crate::kernel::Kernel;

/// The size of a UAR, in bytes.
const UAR: usize = 4096;

/// The place of the first register in a UAR.
const FIRST: usize = 0x800;

/// The place of the register that arms completion queues.
const ARM: usize = 0x20;

/// The registers of a UAR that user space has.
const REGISTERS: usize = 2;

/// The number of registers that queue pairs get for themselves, unless the environment has one.
const DEDICATED: usize = 128;

/// The registers of a context.
#[derive(Debug)]
pub(crate) struct Registers {
    /// The size of a register, in bytes: both halves.
    size: usize,
    /// UARs in a page that the kernel maps.
    uars_per_page: usize,
    /// The shared UAR.
    shared: Uar,
    /// The number of registers that queue pairs get for themselves.
    max_dedicated: usize,
    prefers_blue_flame: bool,
    dedicated: Mutex<Vec<Uar>>,
}

#[derive(Debug)]
struct Uar {
    region: Region,
    /// Its place in the region.
    base: usize,
    page_id: u32,
    map_offset: u64,
    /// Of the page, which has several UARs on some systems.
    handle: u32,
    uses: [Use; REGISTERS],
}

/// The use of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    None,
    /// By a queue pair.
    Own,
    /// By a queue whose queue pair was destroyed.
    Orphan,
}

/// The configuration from the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Config {
    max_dedicated: usize,
    prefers_blue_flame: bool,
}

impl Config {
    fn of(variable: impl Fn(&str) -> Option<String>) -> Self {
        let total = variable("MLX5_TOTAL_UUARS").and_then(|value| value.trim().parse().ok());
        let is_shut_up = variable("MLX5_SHUT_UP_BF").is_some_and(|value| value.trim() != "0");
        let prefers = variable("MLX5_POST_SEND_PREFER_BF").is_none_or(|value| value.trim() != "0");
        Self {
            max_dedicated: if is_shut_up { 0 } else { total.unwrap_or(DEDICATED) },
            prefers_blue_flame: prefers,
        }
    }
}

impl Registers {
    /// Allocates the shared UAR of a context whose registers have `size` bytes, with
    /// `uars_per_page` UARs in a page.
    ///
    /// # Errors
    /// Any errno that the kernel returns; notably `ENOMEM` for a device without a free UAR.
    pub(crate) fn new(kernel: &Kernel, size: usize, uars_per_page: usize) -> Result<Self> {
        let mut uars = map(kernel, UarType::MLX5_IB_UAPI_UAR_ALLOC_TYPE_NC, 1)?;
        let bad = || kernel.uverbs().bad_reply("alloc_uar", "a page of registers that is too short");
        let shared = uars.pop().ok_or_else(bad)?;
        let config = Config::of(|name| env::var(name).ok());
        Ok(Self::over(shared, size, uars_per_page, config))
    }

    fn over(shared: Uar, size: usize, uars_per_page: usize, config: Config) -> Self {
        Self {
            size,
            uars_per_page,
            shared,
            max_dedicated: if size == 0 { 0 } else { config.max_dedicated },
            prefers_blue_flame: config.prefers_blue_flame,
            dedicated: Mutex::default(),
        }
    }

    /// Returns the number of the UAR whose register arms completion queues.
    pub(crate) const fn arm_page_id(&self) -> u32 {
        self.shared.page_id
    }

    /// Returns the register that arms completion queues.
    pub(crate) fn arm(&self) -> ArmRegister {
        // SAFETY: the register is rung by single stores alone.
        unsafe { ArmRegister::new(&self.shared.region, self.shared.base + ARM) }
    }

    /// Returns the page of the register that arms completion queues, for direct access.
    pub(crate) fn arm_page(&self) -> NonNull<u8> {
        self.shared.region.pointer(self.shared.base, UAR)
    }

    /// Returns whether requests without inline data are stored into registers too.
    pub(crate) const fn prefers_blue_flame(&self) -> bool {
        self.prefers_blue_flame
    }

    /// Takes a register for a queue pair: one of its own while there are some, otherwise the shared
    /// one.
    pub(crate) fn take(self: &Arc<Self>, kernel: &Kernel) -> Register {
        self.take_from(|| map(kernel, UarType::MLX5_IB_UAPI_UAR_ALLOC_TYPE_BF, self.uars_per_page))
    }

    /// Returns the shared register, for a queue pair that sends nothing.
    pub(crate) fn share(self: &Arc<Self>) -> Register {
        let Uar { ref region, base, page_id, map_offset, .. } = self.shared;
        Register {
            of: Arc::clone(self),
            place: None,
            page_id,
            map_offset,
            region: region.clone(),
            base,
            is_orphan: AtomicBool::new(false),
        }
    }

    fn take_from(self: &Arc<Self>, more: impl FnOnce() -> Result<Vec<Uar>>) -> Register {
        let mut uars = self.dedicated.lock().unwrap_or_else(PoisonError::into_inner);
        let found = find(&uars).or_else(|| {
            if uars.len() * REGISTERS >= self.max_dedicated {
                return None;
            }
            // Where the device has no more, the queue pair shares.
            uars.extend(more().ok()?);
            find(&uars)
        });
        let place = found.map(|(uar, register)| {
            uars[uar].uses[register] = Use::Own;
            (uar, register)
        });
        let of = Arc::clone(self);
        let uar = place.map_or(&self.shared, |(uar, _)| &uars[uar]);
        let (page_id, map_offset, region, base) = (uar.page_id, uar.map_offset, uar.region.clone(), uar.base);
        Register { of, place, page_id, map_offset, region, base, is_orphan: AtomicBool::new(false) }
    }

    /// Gives the pages back to the kernel's driver, which has them until they are mapped no more.
    /// Nothing takes a register from now on.
    pub(crate) fn free(&self, kernel: &Kernel) {
        let uars = self.dedicated.lock().unwrap_or_else(PoisonError::into_inner);
        let mut handles: Vec<u32> = uars.iter().chain([&self.shared]).map(|uar| uar.handle).collect();
        handles.dedup();
        for handle in handles {
            // What the kernel does not free ends with the file.
            let _ = free_uar(kernel.uverbs(), handle);
        }
    }

    fn set(&self, (uar, register): (usize, usize), to: Use) {
        let mut uars = self.dedicated.lock().unwrap_or_else(PoisonError::into_inner);
        uars[uar].uses[register] = to;
    }
}

/// Returns a free register of a UAR that no orphan uses.
fn find(uars: &[Uar]) -> Option<(usize, usize)> {
    let candidates = uars.iter().enumerate().filter(|(_, uar)| !uar.uses.contains(&Use::Orphan));
    candidates.into_iter().find_map(|(number, uar)| {
        Some((number, uar.uses.iter().position(|&register| register == Use::None)?))
    })
}

/// Allocates a page of registers and maps it; `count` UARs are in it.
fn map(kernel: &Kernel, uar_type: UarType, count: usize) -> Result<Vec<Uar>> {
    let uverbs = kernel.uverbs();
    let info = alloc_uar(uverbs, uar_type)?;
    // SAFETY: the kernel has just allocated the page for this process and told where to map it. It
    // stays allocated as long as it is mapped.
    let region = unsafe { uverbs.map("alloc_uar", info.mmap_offset, info.length as usize) }?;
    let fit = (0..count).filter(|number| (number + 1) * UAR <= region.len());
    Ok(fit
        .map(|number| Uar {
            region: region.clone(),
            base: number * UAR,
            page_id: info.page_id.wrapping_add(number as u32),
            map_offset: info.mmap_offset,
            handle: info.handle,
            uses: [Use::None; REGISTERS],
        })
        .collect())
}

/// A register that was taken. It is free again when this is dropped: nothing rings it then.
#[derive(Debug)]
pub(crate) struct Register {
    of: Arc<Registers>,
    /// The UAR and its register; `None` for the shared one.
    place: Option<(usize, usize)>,
    page_id: u32,
    map_offset: u64,
    region: Region,
    base: usize,
    is_orphan: AtomicBool,
}

impl Register {
    /// Returns the number of its UAR.
    pub(crate) const fn page_id(&self) -> u32 {
        self.page_id
    }

    /// Returns the first byte of its UAR, for direct access.
    pub(crate) fn page(&self) -> NonNull<u8> {
        self.region.pointer(self.base, UAR)
    }

    /// Returns whether several queues ring it.
    pub(crate) const fn is_shared(&self) -> bool {
        self.place.is_none()
    }

    /// Describes the register for direct access.
    pub(crate) fn direct(&self) -> RegisterDirect {
        let (number, half) = self.place.map_or((0, 0), |(_, register)| (register, self.of.size / 2));
        let register = self.region.pointer(self.base + FIRST + number * self.of.size, size_of::<u64>());
        RegisterDirect { register, size: half as u32, map_offset: self.map_offset }
    }

    /// Returns the register for its send queue.
    ///
    /// # Safety
    /// The caller makes one of them for a value that it took or [leased](Self::lease), which is
    /// used as long as that lives, by the send queue of the queue pair that has the UAR.
    pub(crate) unsafe fn bell(&self) -> BlueFlame {
        let half = self.of.size / 2;
        match self.place {
            Some((_, register)) => {
                let at = self.base + FIRST + register * self.of.size;
                // SAFETY: the register is this one's, and the caller makes one `BlueFlame`.
                unsafe { BlueFlame::new(&self.region, at, half, true) }
            }
            // SAFETY: shared, and without halves it is only rung by single stores.
            None => unsafe { BlueFlame::new(&self.region, self.base + FIRST, 0, false) },
        }
    }

    /// Returns a share of a thread domain's register for a queue pair, unless one has it now, or an
    /// orphan has the other register of its UAR.
    pub(crate) fn lease(self: &Arc<Self>) -> Option<Arc<Self>> {
        let mut uars = self.of.dedicated.lock().unwrap_or_else(PoisonError::into_inner);
        // Shares are made here alone, under the lock, so the count only falls meanwhile.
        if Arc::strong_count(self) > 1 {
            return None;
        }
        // What the last user has stored comes first.
        fence(Ordering::Acquire);
        if let Some((uar, register)) = self.place {
            let uses = &mut uars[uar].uses;
            uses[register] = Use::Own;
            self.is_orphan.store(false, Ordering::Relaxed);
            if uses.contains(&Use::Orphan) {
                return None;
            }
        }
        Some(Arc::clone(self))
    }

    /// Tells whether the queue pair is destroyed, or may be at any moment, while its send queue may
    /// still ring.
    pub(crate) fn set_orphan(&self, is_orphan: bool) {
        if let Some(place) = self.place
            && self.is_orphan.swap(is_orphan, Ordering::Relaxed) != is_orphan
        {
            self.of.set(place, if is_orphan { Use::Orphan } else { Use::Own });
        }
    }

    /// Returns whether the other register of its UAR is an orphan's.
    pub(crate) fn is_beside_orphan(&self) -> bool {
        let uars = self.of.dedicated.lock().unwrap_or_else(PoisonError::into_inner);
        self.place.is_some_and(|(uar, register)| {
            let others = uars[uar].uses.iter().enumerate().filter(|(other, _)| *other != register);
            others.into_iter().any(|(_, of_other)| *of_other == Use::Orphan)
        })
    }
}

impl Drop for Register {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.of.set(place, Use::None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uar(page_id: u32) -> Uar {
        Uar {
            region: Region::plain(UAR),
            base: 0,
            page_id,
            map_offset: u64::from(page_id) << 12,
            handle: page_id,
            uses: [Use::None; REGISTERS],
        }
    }

    fn registers(max_dedicated: usize) -> Arc<Registers> {
        let config = Config { max_dedicated, prefers_blue_flame: true };
        Arc::new(Registers::over(uar(9), 512, 1, config))
    }

    fn take(registers: &Arc<Registers>, next: &mut u32) -> Register {
        registers.take_from(|| {
            *next += 1;
            Ok(vec![uar(*next)])
        })
    }

    #[test]
    fn queue_pairs_get_registers_of_their_own_and_then_share() {
        let (registers, mut next) = (registers(3), 0);
        let taken: Vec<Register> = (0..6).map(|_| take(&registers, &mut next)).collect();
        let page_ids: Vec<u32> = taken.iter().map(Register::page_id).collect();
        assert_eq!(page_ids, [1, 1, 2, 2, 9, 9]);
        // SAFETY: each register makes one.
        let max_units: Vec<u32> = taken.iter().map(|taken| unsafe { taken.bell() }.max_units).collect();
        assert_eq!(max_units, [16, 16, 16, 16, 0, 0]);
        let base = |register: &Register| register.region.pointer(0, 1).addr().get();
        let places: Vec<(usize, u32, u64)> = taken
            .iter()
            .map(|taken| (taken.direct(), base(taken)))
            .map(|(direct, base)| (direct.register.addr().get() - base, direct.size, direct.map_offset))
            .collect();
        let [first, second] = [0x800, 0xa00];
        let (one, two, shared) = (1 << 12, 2 << 12, 9 << 12);
        assert_eq!(places[..3], [(first, 256, one), (second, 256, one), (first, 256, two)]);
        assert_eq!(places[3..], [(second, 256, two), (first, 0, shared), (first, 0, shared)]);
        let second = taken.into_iter().nth(1);
        drop(second);
        assert_eq!(take(&registers, &mut next).page_id(), 1);
    }

    #[test]
    fn each_register_has_its_place_in_the_page() {
        let (registers, mut next) = (registers(2), 0);
        let taken = [(); 3].map(|()| take(&registers, &mut next));
        for (number, register) in taken.iter().enumerate() {
            // SAFETY: each register makes one.
            unsafe { register.bell() }.ring(number as u64 + 1);
        }
        registers.arm().ring(4, 5);
        // SAFETY: one thread.
        let at = |region: &Region, place| u64::from_be(unsafe { region.read::<u64>(place) });
        let own = [0x20, 0x800, 0x900, 0xa00].map(|place| at(&taken[0].region, place));
        assert_eq!(own, [0, 1, 0, 2]);
        let shared = [0x20, 0x800, 0x900, 0xa00].map(|place| at(&taken[2].region, place));
        assert_eq!(shared, [4 << 32 | 5, 3, 0, 0]);
    }

    #[test]
    fn a_device_without_a_free_page_lets_queue_pairs_share() {
        let registers = registers(8);
        let none = || Err(verbs_core::Error::new("alloc_uar", "mlx5_0", verbs_core::Errno::NOMEM));
        assert_eq!(registers.take_from(none).page_id(), 9);
    }

    #[test]
    fn the_page_of_a_queue_without_its_queue_pair_goes_to_no_other() {
        let (registers, mut next) = (registers(8), 0);
        let [first, second] = [0; 2].map(|_| take(&registers, &mut next));
        first.set_orphan(true);
        assert!(second.is_beside_orphan() && !first.is_beside_orphan());
        drop(second);
        assert_eq!(take(&registers, &mut next).page_id(), 2);
        drop(first);
        assert_eq!(take(&registers, &mut next).page_id(), 1);
    }

    #[test]
    fn a_thread_domain_lends_its_register_to_one_queue_pair_at_a_time() {
        let (registers, mut next) = (registers(8), 0);
        let [of_td, other] = [0; 2].map(|_| Arc::new(take(&registers, &mut next)));
        let first = of_td.lease().unwrap();
        assert!(of_td.lease().is_none());
        first.set_orphan(true);
        assert!(of_td.lease().is_none(), "its queue lives");
        drop(first);
        drop(of_td.lease().unwrap());
        other.set_orphan(true);
        assert!(of_td.lease().is_none(), "an orphan rings the UAR");
        drop(other);
        assert!(of_td.lease().is_some());
    }

    #[test]
    fn the_environment_is_read_as_libmlx5_reads_it() {
        let of = |pairs: &[(&str, &str)]| {
            Config::of(|name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).into()))
        };
        let default = Config { max_dedicated: DEDICATED, prefers_blue_flame: true };
        assert_eq!(of(&[]), default);
        assert_eq!(of(&[("MLX5_TOTAL_UUARS", "6")]), Config { max_dedicated: 6, ..default });
        assert_eq!(of(&[("MLX5_TOTAL_UUARS", "many")]), default);
        assert_eq!(of(&[("MLX5_SHUT_UP_BF", "1")]), Config { max_dedicated: 0, ..default });
        assert_eq!(of(&[("MLX5_SHUT_UP_BF", "0")]), default);
        let prefers = Config { prefers_blue_flame: false, ..default };
        assert_eq!(of(&[("MLX5_POST_SEND_PREFER_BF", "0")]), prefers);
    }
}
