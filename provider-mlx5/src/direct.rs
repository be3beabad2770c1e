//! Direct access: the addresses of an object's queues and registers, for programs that fill entries
//! and ring doorbells themselves. Corresponds to `mlx5dv_init_obj` and `mlx5dv_query_device`.
//!
//! | object | described by |
//! |---|---|
//! | [`Context`](crate::Context) | [`ContextDirect`], [`ClockInfo`], [`UarDirect`] |
//! | [`Qp`](crate::Qp) | [`QpDirect`] |
//! | [`Cq`](crate::Cq) | [`CqDirect`] |
//! | [`Srq`](crate::Srq) | [`SrqDirect`] |
//! | [`Wq`](crate::Wq) | [`WqDirect`] |
//! | [`Pd`](crate::Pd) | [`PdDirect`] |
//! | [`Dm`](crate::Dm) | [`DmDirect`] |
//! | [`Ah`](crate::Ah) | [`Ah::address_vector`](crate::Ah::address_vector) |
//!
//! A description consists of numbers and addresses and is safe to obtain. Using an address is
//! unsafe. The program must ensure the following:
//! - The object lives and is not resized while the address is used.
//! - After the first use, the program no longer posts to the queue, polls it or requests its events
//!   through this library, because neither side sees the other's entries. The same rule applies to
//!   `mlx5dv_init_obj`. State changes, queries and destruction still go through this library; a
//!   reset sets the doorbell records of a queue pair to 0.
//! - Entries, doorbell records and registers are written with the formats and barriers from the
//!   device's manual. Requests meet the requirements of
//!   [`SendQueue`](verbs_core::provider::SendQueue) on the memory they name.
//!
//! # References
//! `mlx5dv_init_obj(3)`, `mlx5dv_query_device(3)`, `mlx5dv_get_clock_info(3)`

use core::ptr::NonNull;

use uverbs_abi::mlx5_abi::Mlx5IbQueryDeviceResp;

use crate::doorbell::registers::Register;

/// The location and the layout of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueDirect {
    /// The address of the first entry.
    pub buf: NonNull<u8>,
    /// The number of entries: a power of two, or 0 if the queue is missing. In a send queue, an
    /// entry is a basic block.
    pub entries: u32,
    /// The size of an entry in bytes; 1 if the queue is missing.
    pub stride: u32,
}

impl QueueDirect {
    /// Returns the description of a missing queue.
    pub(crate) const fn none(buf: NonNull<u8>) -> Self {
        Self { buf, entries: 0, stride: 1 }
    }
}

/// The location of a send queue's doorbell register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegisterDirect {
    /// The address of the first half. The second half follows after `size` bytes.
    pub register: NonNull<u8>,
    /// The size of a half in bytes; 0 if the register is shared and takes only 8-byte doorbells.
    pub size: u32,
    /// The offset in the device's file for mapping the register's page.
    pub map_offset: u64,
}

impl RegisterDirect {
    /// Describes a register.
    pub(crate) fn new(register: &Register) -> Self {
        let (size, map_offset) = (register.half_size() as u32, register.map_offset());
        Self { register: register.first_half(), size, map_offset }
    }
}

/// A page of doorbell registers, with one register for the program.
///
/// Dropping this value frees the register unless the page is shared. The program must not ring the
/// register afterwards.
#[derive(Debug)]
pub struct UarDirect {
    pub(crate) register: Register,
    pub(crate) page_id: u32,
}

impl UarDirect {
    /// Returns a pointer to the page's first byte.
    pub fn base(&self) -> NonNull<u8> {
        self.register.page()
    }

    /// Returns the page's number in the device.
    pub const fn page_id(&self) -> u32 {
        self.page_id
    }

    /// Returns the register that was taken or, for the shared page, a register that queue pairs
    /// also use.
    pub fn register(&self) -> RegisterDirect {
        RegisterDirect::new(&self.register)
    }
}

/// The device's numbers for the parts of a raw packet queue pair. A number is 0 if the part is
/// missing or the driver does not report it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RawQpDirect {
    /// The number of the transport interface for receives.
    pub tirn: u32,
    /// The number of the transport interface for sends.
    pub tisn: u32,
    /// The number of the receive queue.
    pub rqn: u32,
    /// The number of the send queue.
    pub sqn: u32,
    /// The address of the transport interface for receives, in device memory.
    pub tir_icm_addr: u64,
}

/// The queues, the doorbell records and the register of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpDirect {
    /// The address of the doorbell records, big-endian: receives, then sends.
    pub records: NonNull<u32>,
    /// The send queue.
    pub sq: QueueDirect,
    /// The receive queue.
    pub rq: QueueDirect,
    /// The register of the send queue, if it has one.
    pub register: Option<RegisterDirect>,
    /// The device's numbers for the parts of a raw packet queue pair.
    pub raw: RawQpDirect,
}

/// The ring, the doorbell records and the registers of a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CqDirect {
    /// The ring of entries.
    pub ring: QueueDirect,
    /// The address of the doorbell records, big-endian: the consumer's index, then the event
    /// request.
    pub records: NonNull<u32>,
    /// The address of the register page. The register for event requests is at offset 0x20.
    pub registers: NonNull<u8>,
    /// The queue's number in the device.
    pub cqn: u32,
}

/// The entries and the doorbell record of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SrqDirect {
    /// The entries, linked by their first 16 bytes.
    pub queue: QueueDirect,
    /// The address of the doorbell record, which is big-endian.
    pub record: NonNull<u32>,
    /// The index of the first entry without a receive.
    pub head: u32,
    /// The index of the last entry of the list that begins at `head`.
    pub tail: u32,
    /// The queue's number in the device.
    pub srqn: u32,
}

/// The entries and the doorbell record of a work queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WqDirect {
    /// The entries.
    pub queue: QueueDirect,
    /// The address of the doorbell record, which is big-endian.
    pub record: NonNull<u32>,
}

/// The number of a protection domain on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PdDirect {
    /// The domain's number in the device.
    pub pdn: u32,
}

/// The location of device memory in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DmDirect {
    /// The address of the first byte. The device supports only 4-byte accesses to this memory.
    pub buf: NonNull<u8>,
    /// The length in bytes.
    pub length: u64,
}

/// The properties of an open device.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ContextDirect {
    /// The version of the completion queue entry format.
    pub cqe_version: u8,
    /// Whether the device can write system times into completions.
    pub has_real_time: bool,
    /// Whether the device has registers that take whole requests.
    pub has_blue_flame: bool,
    /// The maximum number of registers allocated by mapping them after the context was created: the
    /// interface before Linux 5.8.
    pub max_dynamic_registers: u32,
    /// Nanoseconds after which [`ClockInfo`] is out of date; `None` if the kernel offers no
    /// conversion.
    pub max_clock_info_update_nsec: Option<u64>,
    /// The address of the device's clock: two big-endian halves of 4 bytes.
    pub core_clock: Option<NonNull<u8>>,
    /// The flow actions that the device supports: `MLX5_USER_ALLOC_UCONTEXT_FLOW_ACTION_FLAGS_*`
    /// bits.
    pub flow_action_flags: u32,
    /// The driver-specific part of the device's attributes; zeros if not reported.
    pub queried: Mlx5IbQueryDeviceResp,
}

/// A snapshot of the kernel's conversion of the device's clock to the time since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClockInfo {
    /// The time since 1970, in nanoseconds.
    pub nsec: u64,
    /// The device's clock at that time.
    pub last_cycles: u64,
    /// The part of a nanosecond beyond `nsec`, in units of `2^-shift`.
    pub frac: u64,
    /// Nanoseconds per cycle, in units of `2^-shift`.
    pub mult: u32,
    /// The binary scale of `mult` and `frac`: their units are `2^-shift`.
    pub shift: u32,
    /// The valid bits of the clock.
    pub mask: u64,
}
