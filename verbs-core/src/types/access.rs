//! [`AccessFlags`]: what a key lets be done to memory.

use bitflags::bitflags;

bitflags! {
    /// What the device, and through it a peer, may do to a memory region.
    ///
    /// Local read is always allowed. Bits that this library has no name for are kept.
    ///
    /// # References
    /// `ibv_reg_mr(3)`, `enum ib_uverbs_access_flags` in `rdma/ib_user_ioctl_verbs.h`
    #[doc(alias = "ibv_access_flags")]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct AccessFlags: u32 {
        /// The device may write the region: receives, RDMA reads, atomic results.
        const LOCAL_WRITE = 1;
        /// A peer may write the region. Needs [`LOCAL_WRITE`](Self::LOCAL_WRITE).
        const REMOTE_WRITE = 1 << 1;
        /// A peer may read the region.
        const REMOTE_READ = 1 << 2;
        /// A peer may run atomics on the region. Needs [`LOCAL_WRITE`](Self::LOCAL_WRITE).
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to the region.
        const MW_BIND = 1 << 4;
        /// Remote addresses count from 0 rather than from the region's address.
        const ZERO_BASED = 1 << 5;
        /// Pages are not pinned; the device faults them in (on-demand paging).
        const ON_DEMAND = 1 << 6;
        /// The region consists of huge pages.
        const HUGETLB = 1 << 7;
        /// A peer may flush to global visibility.
        const FLUSH_GLOBAL = 1 << 8;
        /// A peer may flush to persistence.
        const FLUSH_PERSISTENT = 1 << 9;
        /// PCIe relaxed ordering. An optional right: dropped where the kernel does not know it.
        const RELAXED_ORDERING = 1 << 20;

        const _ = !0;
    }
}

impl AccessFlags {
    /// The bits that a kernel without support for them may be spared (`IB_UVERBS_ACCESS_OPTIONAL_RANGE`).
    pub const OPTIONAL_RANGE: Self = Self::from_bits_retain(0x3ff0_0000);

    /// Does this let a peer touch the memory?
    pub const fn is_remote(self) -> bool {
        self.intersects(
            Self::REMOTE_WRITE
                .union(Self::REMOTE_READ)
                .union(Self::REMOTE_ATOMIC)
                .union(Self::FLUSH_GLOBAL)
                .union(Self::FLUSH_PERSISTENT)
                .union(Self::MW_BIND),
        )
    }
}
