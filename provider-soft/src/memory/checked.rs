//! [`CheckedMemory`]: selects the registered memory that the kernel accesses for the device.

use verbs_core::types::AtomicCap;

use crate::memory::paged;

/// Registered memory whose pages may disappear without ending the process.
///
/// Unlike hardware, a soft device pins no pages: it accesses the memory of the process when a
/// packet arrives. An ordinary access to a missing page ends the process with SIGBUS or SIGSEGV.
/// The kernel accesses checked memory on the process's behalf (`process_vm_readv`): a request with
/// a missing page fails but the process continues. The price is a system call per packet. Atomics
/// on checked memory are atomic only among the accesses of one device. Atomic writes to it are
/// rejected.
///
/// Memory is classified at registration, from `/proc/thread-self/maps`. Without `/proc`,
/// file-backed memory is not recognised. A seccomp filter may forbid `process_vm_readv` and
/// `process_vm_writev` ([`is_supported`](Self::is_supported)). They are called only for memory to
/// be checked, for on-demand paged regions, and by a query of the extended device attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CheckedMemory {
    /// No memory is checked. For programs whose mapped files are never truncated.
    None,
    /// File-backed memory is checked. Any process with write access to the file can truncate it. If
    /// the kernel does not access memory for the process, such memory is accessed like any other.
    /// Otherwise a program could not even register its static data, which is file-backed.
    ///
    /// A file mapping that the kernel cannot access, such as a device's memory (a PCI BAR), cannot
    /// be registered (`EFAULT`).
    #[default]
    Files,
    /// All registered memory is checked: the program may unmap or protect it while it is
    /// registered. If the kernel does not access memory for the process, registration fails
    /// (`EOPNOTSUPP`).
    All,
}

impl CheckedMemory {
    /// Returns whether the kernel accesses memory for this process. If not, memory cannot be
    /// checked.
    pub fn is_supported() -> bool {
        paged::is_supported()
    }

    /// Returns the atomicity that the device guarantees on all registered memory. On checked
    /// memory, atomics are atomic only among the accesses of one device.
    pub(crate) fn atomic_cap(self) -> AtomicCap {
        if self == Self::None { AtomicCap::GLOB } else { AtomicCap::HCA }
    }
}
