//! [`Registers`]: the doorbell registers of a context, in pages of the device (UARs).
//!
//! ```text
//!   UAR, 4 KiB   0x020  requests for events of completion queues
//!                0x800  register 0: two halves ┐ each for one send queue; the others are the
//!                       register 1: two halves ┘ kernel's
//! ```
//!
//! A queue pair gets its own register while registers are left, so posting takes no lock. Further
//! queue pairs share registers that take only 8-byte doorbells, each rung with a single store. Each
//! queue pair alternates between the halves independently, like the kernel's queue pairs. The two
//! kinds of registers lie in separate UARs. Except for the last variable, the environment variables
//! come from libmlx5:
//!
//! | variable | meaning |
//! |---|---|
//! | `MLX5_TOTAL_UUARS` | the number of registers dedicated to one queue pair each; default 128 |
//! | `MLX5_NUM_LOW_LAT_UUARS` | how many of that total (or 16) are dedicated; at least all but 12 |
//! | `MLX5_SHUT_UP_BF` | any value but `0`: no dedicated registers; all ring shared ones |
//! | `MLX5_POST_SEND_PREFER_BF` | `0`: only requests with inline data are stored into registers |
//! | `MLX5_DYN_UAR` | `0`: registers come with the context (see `device`) |
//!
//! A queue may outlive its queue pair. Then no other queue pair gets its register or the other
//! register in the same UAR: the device finds the queue pair by the number in the doorbell, which
//! may have been reused, and compares only the UAR. If a queue pair was created in a UAR while the
//! previous queue pair there was being destroyed, the new queue pair is created once more in
//! another UAR.
//!
//! A late doorbell in a shared register contains no request: the device reads the doorbell records
//! of the queue pair that now has the number, and they cover only that queue pair's requests.
//! Therefore it does not matter how a driver distributes the registers that came with the context,
//! because all of them are shared.
//!
//! # Safety
//! A register belongs to one queue as long as its value lives. Shared registers are only rung with
//! 8-byte stores.
//!
//! # References
//! `mlx5dv(7)`; rdma-core `providers/mlx5/verbs.c` (`mlx5_get_qp_uar`)
#![allow(unsafe_code)]

use core::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use uverbs_abi::mlx5_abi::Mlx5IbAllocUcontextResp;
use verbs_core::fork::ForkLock;
use verbs_core::kernel::Kernel;
use verbs_core::{Result, environment};

use crate::cmd::{UarType, free_uar};
use crate::doorbell::uar::{self, Name, REGISTERS, UAR, Uar};
use crate::doorbell::{ArmRegister, BlueFlame};

/// The offset of the first register in a UAR, in bytes.
const FIRST: usize = 0x800;

/// The offset in a UAR of the register that arms completion queues, in bytes.
const ARM: usize = 0x20;

/// The default number of registers dedicated to one queue pair each.
const DEDICATED: usize = 128;

/// libmlx5's default total number of registers. The environment can set how many of them are
/// dedicated.
const TOTAL: usize = 16;

/// The maximum number of registers that queue pairs share in libmlx5.
const MAX_SHARED: usize = 12;

/// The doorbell registers of a context.
#[derive(Debug)]
pub(crate) struct Registers {
    /// The size of a register in bytes, including both halves.
    size: usize,
    /// The driver's reply to the command that creates the context.
    reply: Mlx5IbAllocUcontextResp,
    /// The UARs with shared registers: one, or all that came with the context. Never empty.
    shared: Vec<Uar>,
    /// The maximum number of dedicated registers.
    max_dedicated: usize,
    prefers_blue_flame: bool,
    /// The UARs with dedicated registers. In a forked child whose parent was using the list, queue
    /// pairs share registers, and nothing is freed.
    dedicated: ForkLock<Vec<Dedicated>>,
}

/// A UAR with dedicated registers.
#[derive(Debug)]
struct Dedicated {
    uar: Uar,
    uses: [Use; REGISTERS],
}

/// The current use of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    None,
    /// Used by a queue pair.
    Own,
    /// Used by a queue whose queue pair was destroyed.
    Orphan,
}

/// The register configuration from the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Config {
    max_dedicated: usize,
    prefers_blue_flame: bool,
}

impl Config {
    fn from_env(variable: impl Fn(&str) -> Option<String>) -> Self {
        let number = |name| variable(name).and_then(|value| value.trim().parse().ok());
        let total: Option<usize> = number("MLX5_TOTAL_UUARS");
        let max_dedicated = match number("MLX5_NUM_LOW_LAT_UUARS") {
            Some(low_latency) => {
                let total = total.unwrap_or(TOTAL);
                total.saturating_sub(MAX_SHARED).max(low_latency).min(total)
            }
            None => total.unwrap_or(DEDICATED),
        };
        let is_shut_up = variable("MLX5_SHUT_UP_BF").is_some_and(|value| value.trim() != "0");
        let prefers = variable("MLX5_POST_SEND_PREFER_BF").is_none_or(|value| value.trim() != "0");
        Self { max_dedicated: if is_shut_up { 0 } else { max_dedicated }, prefers_blue_flame: prefers }
    }
}

impl Registers {
    /// Prepares a context's registers according to the driver's reply to the command that created
    /// the context.
    ///
    /// # Errors
    /// Any errno the kernel returns; notably `ENOMEM` for a device without a free UAR.
    pub(crate) fn new(kernel: &Kernel, reply: &Mlx5IbAllocUcontextResp) -> Result<Self> {
        let shared = if reply.tot_bfregs == 0 {
            uar::alloc(kernel, UarType::MLX5_IB_UAPI_UAR_ALLOC_TYPE_NC, 1)?
        } else {
            uar::of_context(kernel, reply)?
        };
        if shared.is_empty() {
            return Err(kernel.uverbs().bad_reply("alloc_uar", "a page of registers that is too short"));
        }
        Ok(Self::over(shared, *reply, Config::from_env(environment::variable)))
    }

    fn over(shared: Vec<Uar>, reply: Mlx5IbAllocUcontextResp, config: Config) -> Self {
        // Without a sensible size, all queue pairs ring with single stores.
        let is_size = |size: &u32| size.is_power_of_two() && (16..=512).contains(size);
        let size = Some(reply.bf_reg_size).filter(is_size).unwrap_or(0) as usize;
        Self {
            size,
            reply,
            shared,
            max_dedicated: if size == 0 { 0 } else { config.max_dedicated },
            prefers_blue_flame: config.prefers_blue_flame,
            dedicated: ForkLock::default(),
        }
    }

    /// Returns the UAR that contains the register for arming completion queues.
    fn arm_uar(&self) -> &Uar {
        &self.shared[0]
    }

    /// Returns the number of the UAR that contains the register for arming completion queues;
    /// `None` if the driver chose the UAR.
    pub(crate) fn arm_page_id(&self) -> Option<u32> {
        match self.arm_uar().name {
            Name::Page(number) => Some(number),
            Name::Later(_) | Name::Chosen => None,
        }
    }

    /// Returns the register for arming completion queues.
    pub(crate) fn arm(&self) -> ArmRegister {
        // SAFETY: the register is rung only by single stores.
        unsafe { ArmRegister::new(&self.arm_uar().region, self.arm_uar().base + ARM) }
    }

    /// Returns the address of the page with the register for arming completion queues, for direct
    /// access.
    pub(crate) fn arm_page(&self) -> NonNull<u8> {
        self.arm_uar().region.pointer(self.arm_uar().base, UAR)
    }

    /// Returns whether requests without inline data are also stored into registers.
    pub(crate) const fn prefers_blue_flame(&self) -> bool {
        self.prefers_blue_flame
    }

    /// Takes a register for a queue pair: a dedicated register if one is free, otherwise a shared
    /// register.
    pub(crate) fn take(self: &Arc<Self>, kernel: &Kernel) -> Register {
        self.take_from(|taken| {
            if self.reply.tot_bfregs == 0 {
                let uar_type = UarType::MLX5_IB_UAPI_UAR_ALLOC_TYPE_BF;
                return uar::alloc(kernel, uar_type, uar::per_page(&self.reply));
            }
            uar::alloc_later(kernel, &self.reply, taken.div_ceil(uar::per_page(&self.reply)))
        })
    }

    /// Returns a shared register, for a queue pair that has no sends or finds no free register.
    pub(crate) fn share(self: &Arc<Self>) -> Register {
        Register {
            of: Arc::clone(self),
            place: None,
            uar: self.shared[0].clone(),
            number: 0,
            is_orphan: AtomicBool::new(false),
        }
    }

    /// Takes a register. `more` allocates UARs; its argument is the number of UARs already
    /// allocated.
    fn take_from(self: &Arc<Self>, more: impl FnOnce(usize) -> Result<Vec<Uar>>) -> Register {
        let Ok(mut dedicated) = self.dedicated.lock() else { return self.share() };
        let found = find(&dedicated).or_else(|| {
            if dedicated.len() * REGISTERS >= self.max_dedicated {
                return None;
            }
            // If the device has no more UARs, the queue pair shares a register.
            let more = more(dedicated.len()).ok()?;
            dedicated.extend(more.into_iter().map(|uar| Dedicated { uar, uses: [Use::None; REGISTERS] }));
            find(&dedicated)
        });
        let Some((place, number)) = found else { return self.share() };
        dedicated[place].uses[number] = Use::Own;
        Register {
            of: Arc::clone(self),
            place: Some(place),
            uar: dedicated[place].uar.clone(),
            number,
            is_orphan: AtomicBool::new(false),
        }
    }

    /// Returns the pages to the driver, which keeps them until they are unmapped. The caller takes
    /// no register afterwards.
    pub(crate) fn free(&self, kernel: &Kernel) {
        let Ok(dedicated) = self.dedicated.lock() else { return };
        let uars = dedicated.iter().map(|one| &one.uar).chain(&self.shared);
        let mut handles: Vec<u32> = uars.filter_map(|uar| uar.handle).collect();
        handles.dedup();
        for handle in handles {
            // If the kernel does not free the page, closing the file does.
            let _ = free_uar(kernel.uverbs(), handle);
        }
    }

    fn set(&self, place: usize, number: usize, to: Use) {
        if let Ok(mut dedicated) = self.dedicated.lock() {
            dedicated[place].uses[number] = to;
        }
    }
}

/// Finds a free register in a UAR that no orphan uses.
fn find(dedicated: &[Dedicated]) -> Option<(usize, usize)> {
    let candidates = dedicated.iter().enumerate().filter(|(_, one)| !one.uses.contains(&Use::Orphan));
    candidates
        .into_iter()
        .find_map(|(place, one)| Some((place, one.uses.iter().position(|&register| register == Use::None)?)))
}

/// A register in use. Dropping this value frees the register, because no code rings it any more.
#[derive(Debug)]
pub(crate) struct Register {
    of: Arc<Registers>,
    /// The index of the register's UAR among the UARs with dedicated registers; `None` for a shared
    /// register.
    place: Option<usize>,
    uar: Uar,
    /// The register's number in the UAR.
    number: usize,
    is_orphan: AtomicBool,
}

impl Register {
    /// Returns the name of the register's UAR.
    pub(crate) const fn name(&self) -> Name {
        self.uar.name
    }

    /// Returns the register of a new queue pair, given the register number in the driver's reply.
    /// Returns this register unless the driver chose another. Returns `None` if the context has no
    /// register with that number.
    pub(crate) fn settled(self: Arc<Self>, bfreg_index: u32) -> Option<Arc<Self>> {
        if self.uar.name != Name::Chosen {
            return Some(self);
        }
        let (uar, number) = uar::chosen(bfreg_index)?;
        let uar = self.of.shared.get(uar)?.clone();
        let of = Arc::clone(&self.of);
        Some(Arc::new(Self { of, place: None, uar, number, is_orphan: AtomicBool::new(false) }))
    }

    /// Returns a pointer to the first byte of the register's UAR, for direct access.
    pub(crate) fn page(&self) -> NonNull<u8> {
        self.uar.region.pointer(self.uar.base, UAR)
    }

    /// Returns the register's offset in the UAR's region.
    fn at(&self) -> usize {
        self.uar.base + FIRST + self.number * self.of.size
    }

    /// Returns whether several queues ring the register.
    pub(crate) const fn is_shared(&self) -> bool {
        self.place.is_none()
    }

    /// Returns a pointer to the first half, for direct access.
    pub(crate) fn first_half(&self) -> NonNull<u8> {
        self.uar.region.pointer(self.at(), size_of::<u64>())
    }

    /// Returns the size of a half in bytes; 0 if the register is shared and takes no whole
    /// requests.
    pub(crate) fn half_size(&self) -> usize {
        if self.is_shared() { 0 } else { self.of.size / 2 }
    }

    /// Returns the offset in the device's file for mapping the register's UAR.
    pub(crate) const fn map_offset(&self) -> u64 {
        self.uar.map_offset
    }

    /// Returns the doorbell for the send queue that uses the register.
    ///
    /// # Safety
    /// The caller creates only one doorbell per value it took or [leased](Self::lease). The
    /// doorbell is used while that value lives, by the send queue of the queue pair that has the
    /// UAR.
    pub(crate) unsafe fn bell(&self) -> BlueFlame {
        // SAFETY: the register is this value's, and the caller creates one `BlueFlame`; or it is
        // shared and takes no requests.
        unsafe { BlueFlame::new(&self.uar.region, self.at(), self.of.size / 2, !self.is_shared()) }
    }

    /// Returns a reference to a thread domain's register for a queue pair, or `None` if another
    /// queue pair has the register or an orphan has the other register in the UAR.
    pub(crate) fn lease(self: &Arc<Self>) -> Option<Arc<Self>> {
        let mut dedicated = self.of.dedicated.lock().ok()?;
        // Shares are created only here, under the lock, so the count can only fall meanwhile.
        if Arc::strong_count(self) > 1 {
            return None;
        }
        // The previous user's stores precede the next user's.
        fence(Ordering::Acquire);
        if let Some(place) = self.place {
            let uses = &mut dedicated[place].uses;
            uses[self.number] = Use::Own;
            self.is_orphan.store(false, Ordering::Relaxed);
            if uses.contains(&Use::Orphan) {
                return None;
            }
        }
        Some(Arc::clone(self))
    }

    /// Sets whether the register's queue pair is or may be destroyed while its send queue may still
    /// ring.
    pub(crate) fn set_orphan(&self, is_orphan: bool) {
        if let Some(place) = self.place
            && self.is_orphan.swap(is_orphan, Ordering::Relaxed) != is_orphan
        {
            self.of.set(place, self.number, if is_orphan { Use::Orphan } else { Use::Own });
        }
    }

    /// Returns whether an orphan uses the other register in the UAR.
    pub(crate) fn is_beside_orphan(&self) -> bool {
        self.place.is_some_and(|place| {
            let Ok(dedicated) = self.of.dedicated.lock() else { return true };
            let others = dedicated[place].uses.iter().enumerate().filter(|(other, _)| *other != self.number);
            others.into_iter().any(|(_, of_other)| *of_other == Use::Orphan)
        })
    }
}

impl Drop for Register {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.of.set(place, self.number, Use::None);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use verbs_core::ring::Region;

    use super::*;
    use crate::direct::RegisterDirect;
    use crate::forked::is_true_in_child;

    fn uar(page_id: u32) -> Uar {
        let (name, map_offset) = (Name::Page(page_id), u64::from(page_id) << 12);
        Uar { region: Region::plain(UAR), base: 0, name, map_offset, handle: Some(page_id) }
    }

    fn registers(max_dedicated: usize) -> Arc<Registers> {
        on_page(9, max_dedicated)
    }

    /// Returns registers whose shared page has the number `page_id`.
    pub(crate) fn on_page(page_id: u32, max_dedicated: usize) -> Arc<Registers> {
        let config = Config { max_dedicated, prefers_blue_flame: true };
        let reply = Mlx5IbAllocUcontextResp { bf_reg_size: 512, ..Default::default() };
        Arc::new(Registers::over(vec![uar(page_id)], reply, config))
    }

    /// Returns registers that came with the context, in two UARs.
    fn of_context() -> Arc<Registers> {
        let config = Config { max_dedicated: 2, prefers_blue_flame: true };
        let reply = Mlx5IbAllocUcontextResp { bf_reg_size: 512, tot_bfregs: 4, ..Default::default() };
        let shared = [8, 9].map(|number| Uar { name: Name::Chosen, ..uar(number) });
        Arc::new(Registers::over(shared.to_vec(), reply, config))
    }

    fn take(registers: &Arc<Registers>, next: &mut u32) -> Register {
        registers.take_from(|_| {
            *next += 1;
            Ok(vec![uar(*next)])
        })
    }

    fn page_id(register: &Register) -> u32 {
        match register.name() {
            Name::Page(number) => number,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn queue_pairs_get_registers_of_their_own_and_then_share() {
        let (registers, mut next) = (registers(3), 0);
        let taken: Vec<Register> = (0..6).map(|_| take(&registers, &mut next)).collect();
        let page_ids: Vec<u32> = taken.iter().map(page_id).collect();
        assert_eq!(page_ids, [1, 1, 2, 2, 9, 9]);
        // SAFETY: each register creates one doorbell.
        let max_units: Vec<u32> = taken.iter().map(|taken| unsafe { taken.bell() }.max_units).collect();
        assert_eq!(max_units, [16, 16, 16, 16, 0, 0]);
        let base = |register: &Register| register.uar.region.pointer(0, 1).addr().get();
        let places: Vec<(usize, u32, u64)> = taken
            .iter()
            .map(|taken| (RegisterDirect::new(taken), base(taken)))
            .map(|(direct, base)| (direct.register.addr().get() - base, direct.size, direct.map_offset))
            .collect();
        let [first, second] = [0x800, 0xa00];
        let (one, two, shared) = (1 << 12, 2 << 12, 9 << 12);
        assert_eq!(places[..3], [(first, 256, one), (second, 256, one), (first, 256, two)]);
        assert_eq!(places[3..], [(second, 256, two), (first, 0, shared), (first, 0, shared)]);
        let second = taken.into_iter().nth(1);
        drop(second);
        assert_eq!(page_id(&take(&registers, &mut next)), 1);
    }

    #[test]
    fn each_register_has_its_place_in_the_page() {
        let (registers, mut next) = (registers(2), 0);
        let taken = [(); 3].map(|()| take(&registers, &mut next));
        for (number, register) in taken.iter().enumerate() {
            // SAFETY: each register creates one doorbell.
            unsafe { register.bell() }.ring(number as u64 + 1);
        }
        registers.arm().ring(4, 5);
        // SAFETY: one thread.
        let at = |region: &Region, place| u64::from_be(unsafe { region.read::<u64>(place) });
        let own = [0x20, 0x800, 0x900, 0xa00].map(|place| at(&taken[0].uar.region, place));
        assert_eq!(own, [0, 1, 0, 2]);
        let shared = [0x20, 0x800, 0x900, 0xa00].map(|place| at(&taken[2].uar.region, place));
        assert_eq!(shared, [4 << 32 | 5, 3, 0, 0]);
    }

    #[test]
    fn a_device_without_a_free_page_lets_queue_pairs_share() {
        let registers = registers(8);
        let none = |_| Err(verbs_core::Error::new("alloc_uar", "mlx5_0", verbs_core::Errno::NOMEM));
        assert_eq!(page_id(&registers.take_from(none)), 9);
    }

    #[test]
    fn a_register_that_the_driver_chooses_takes_doorbells_alone() {
        let registers = of_context();
        let none = |_| Err(verbs_core::Error::new("alloc_uar", "mlx5_0", verbs_core::Errno::NOMEM));
        let take = || Arc::new(registers.take_from(none));
        assert_eq!(take().name().of_qp(), (0, 0));
        for (reply, uar, at) in [(0, 0, 0x800), (1, 0, 0xa00), (4, 1, 0x800), (5, 1, 0xa00)] {
            let register = take().settled(reply).unwrap();
            assert!(register.is_shared() && register.lease().is_some());
            // SAFETY: shared.
            let mut bell = unsafe { register.bell() };
            assert_eq!((bell.max_units, register.half_size()), (0, 0));
            assert_eq!(register.page(), registers.shared[uar].region.pointer(0, UAR));
            for (number, half) in [(7, 0), (8, 0x100), (9, 0)] {
                bell.ring(number);
                // SAFETY: one thread.
                let stored = unsafe { registers.shared[uar].region.read::<u64>(at + half) };
                assert_eq!(u64::from_be(stored), number);
            }
        }
        for reply in [2, 3, 8, u32::MAX] {
            assert!(take().settled(reply).is_none(), "{reply}");
        }
        assert_eq!(registers.arm_page_id(), None);
        registers.arm().ring(4, 5);
        // SAFETY: one thread.
        assert_eq!(u32::from_be(unsafe { registers.shared[0].region.read::<u32>(0x20) }), 4);
    }

    #[test]
    fn a_register_that_the_program_chose_stays_whatever_the_driver_replies() {
        let (registers, mut next) = (of_context(), 0);
        let own = Arc::new(take(&registers, &mut next));
        let settled = Arc::clone(&own).settled(u32::MAX).unwrap();
        assert!(Arc::ptr_eq(&own, &settled) && !own.is_shared());
    }

    #[test]
    fn the_driver_learns_how_many_pages_came_before() {
        let registers = registers(8);
        let taken: Vec<_> =
            (0..5).map(|_| registers.take_from(|taken| Ok(vec![uar(taken as u32)]))).collect();
        assert_eq!(taken.iter().map(page_id).collect::<Vec<_>>(), [0, 0, 1, 1, 2]);
    }

    #[test]
    fn the_page_of_a_queue_without_its_queue_pair_goes_to_no_other() {
        let (registers, mut next) = (registers(8), 0);
        let [first, second] = [0; 2].map(|_| take(&registers, &mut next));
        first.set_orphan(true);
        assert!(second.is_beside_orphan() && !first.is_beside_orphan());
        drop(second);
        assert_eq!(page_id(&take(&registers, &mut next)), 2);
        drop(first);
        assert_eq!(page_id(&take(&registers, &mut next)), 1);
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
            Config::from_env(|name| {
                pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).into())
            })
        };
        let default = Config { max_dedicated: DEDICATED, prefers_blue_flame: true };
        assert_eq!(of(&[]), default);
        assert_eq!(of(&[("MLX5_TOTAL_UUARS", "6")]), Config { max_dedicated: 6, ..default });
        assert_eq!(of(&[("MLX5_TOTAL_UUARS", "many")]), default);
        let dedicated = |low_latency, total| {
            of(&[("MLX5_NUM_LOW_LAT_UUARS", low_latency), ("MLX5_TOTAL_UUARS", total)]).max_dedicated
        };
        assert_eq!(of(&[("MLX5_NUM_LOW_LAT_UUARS", "7")]), Config { max_dedicated: 7, ..default });
        assert_eq!([dedicated("4", "64"), dedicated("60", "64"), dedicated("80", "64")], [52, 60, 64]);
        assert_eq!([dedicated("0", "6"), dedicated("few", "6"), dedicated("0", "many")], [0, 6, 4]);
        assert_eq!(of(&[("MLX5_SHUT_UP_BF", "1")]), Config { max_dedicated: 0, ..default });
        assert_eq!(of(&[("MLX5_SHUT_UP_BF", "0")]), default);
        let prefers = Config { prefers_blue_flame: false, ..default };
        assert_eq!(of(&[("MLX5_POST_SEND_PREFER_BF", "0")]), prefers);
    }

    #[test]
    fn a_child_shares_a_register_while_its_parent_was_taking_one() {
        let (registers, mut next) = (registers(8), 0);
        let own = Arc::new(take(&registers, &mut next));
        let _taking = registers.dedicated.lock();
        assert!(is_true_in_child(|| {
            own.set_orphan(true);
            let is_refused = own.lease().is_none() && own.is_beside_orphan();
            drop(own);
            is_refused && registers.take_from(|_| unreachable!()).is_shared()
        }));
    }
}
