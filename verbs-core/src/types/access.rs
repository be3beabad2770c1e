//! [`AccessFlags`]: the access rights to a memory region.

use super::flags::bitflags;

bitflags! {
    /// The access rights that the device and, through it, peers have to a memory region.
    ///
    /// Local read is always allowed. Unnamed bits are preserved.
    ///
    /// # References
    /// `ibv_reg_mr(3)`, `enum ib_uverbs_access_flags` in `rdma/ib_user_ioctl_verbs.h`
    #[doc(alias = "ibv_access_flags")]
    #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
    pub struct AccessFlags: u32 {
        /// The device may write the region: receives, RDMA reads, atomic results.
        #[doc(alias = "IBV_ACCESS_LOCAL_WRITE")]
        const LOCAL_WRITE = 1;
        /// A peer may write the region. Needs [`LOCAL_WRITE`](Self::LOCAL_WRITE).
        #[doc(alias = "IBV_ACCESS_REMOTE_WRITE")]
        const REMOTE_WRITE = 1 << 1;
        /// A peer may read the region.
        #[doc(alias = "IBV_ACCESS_REMOTE_READ")]
        const REMOTE_READ = 1 << 2;
        /// A peer may run atomics on the region. Needs [`LOCAL_WRITE`](Self::LOCAL_WRITE).
        #[doc(alias = "IBV_ACCESS_REMOTE_ATOMIC")]
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to the region.
        #[doc(alias = "IBV_ACCESS_MW_BIND")]
        const MW_BIND = 1 << 4;
        /// Remote addresses are offsets from the start of the region instead of virtual addresses.
        #[doc(alias = "IBV_ACCESS_ZERO_BASED")]
        const ZERO_BASED = 1 << 5;
        /// Pages are not pinned; the device faults them in (on-demand paging).
        #[doc(alias = "IBV_ACCESS_ON_DEMAND")]
        const ON_DEMAND = 1 << 6;
        /// The region consists of huge pages.
        #[doc(alias = "IBV_ACCESS_HUGETLB")]
        const HUGETLB = 1 << 7;
        /// A peer may flush to global visibility.
        #[doc(alias = "IBV_ACCESS_FLUSH_GLOBAL")]
        const FLUSH_GLOBAL = 1 << 8;
        /// A peer may flush to persistence.
        #[doc(alias = "IBV_ACCESS_FLUSH_PERSISTENT")]
        const FLUSH_PERSISTENT = 1 << 9;
        /// PCIe relaxed ordering. This right is optional: it is omitted for kernels without
        /// support.
        #[doc(alias = "IBV_ACCESS_RELAXED_ORDERING")]
        const RELAXED_ORDERING = 1 << 20;

        const _ = !0;
    }
}

impl AccessFlags {
    /// The optional rights, which are omitted for kernels that do not support them
    /// (`IB_UVERBS_ACCESS_OPTIONAL_RANGE`).
    #[doc(alias = "IBV_ACCESS_OPTIONAL_RANGE")]
    pub const OPTIONAL_RANGE: Self = Self::from_bits_retain(0x3ff0_0000);

    /// The rights that a memory window can grant to peers. A window of type 1 cannot be
    /// [`ZERO_BASED`](Self::ZERO_BASED).
    ///
    /// # References
    /// IBTA volume 1, section 10.6.7.2
    pub const WINDOW_RIGHTS: Self =
        Self::REMOTE_WRITE.union(Self::REMOTE_READ).union(Self::REMOTE_ATOMIC).union(Self::ZERO_BASED);

    /// Returns whether the flags grant peers access to the memory.
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
