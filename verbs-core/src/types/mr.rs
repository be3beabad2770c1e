//! Types for memory regions, DMA handles and device memory, apart from access rights.

use super::flags::bitflags;
use super::open_enum;

open_enum! {
    /// Advice to the device about the pages of on-demand paged regions.
    ///
    /// # References
    /// `ibv_advise_mr(3)`, `enum ib_uverbs_advise_mr_advice` in `rdma/ib_user_ioctl_verbs.h`
    #[doc(alias = "ibv_advise_mr_advice")]
    pub enum Advice(u32) {
        /// The device will soon read the pages, and faults them in now.
        #[doc(alias = "IBV_ADVISE_MR_ADVICE_PREFETCH")]
        PREFETCH = 0, "prefetch";
        /// The device will soon write to the pages, and faults them in for writing now.
        #[doc(alias = "IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE")]
        PREFETCH_WRITE = 1, "prefetch for writing";
        /// The pages are present already. The device looks up their addresses without faults.
        #[doc(alias = "IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT")]
        PREFETCH_NO_FAULT = 2, "prefetch without faults";
    }
}

bitflags! {
    /// Options of an [`Advice`]. Bits without a name here are kept.
    ///
    /// # References
    /// `ibv_advise_mr(3)`, `enum ib_uverbs_advise_mr_flag` in `rdma/ib_user_ioctl_verbs.h`
    #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
    pub struct AdviseFlags: u32 {
        /// The call returns once the device has followed the advice, with an error if the device
        /// failed. Without the flag, the device follows the advice later, and errors are lost.
        #[doc(alias = "IBV_ADVISE_MR_FLAG_FLUSH")]
        const FLUSH = 1;

        const _ = !0;
    }
}

/// The kernel's description of a memory region, as queried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MrAttr {
    /// The local key, for work requests of this process.
    pub lkey: u32,
    /// The remote key, for peers.
    pub rkey: u32,
    /// The length in bytes.
    pub length: u64,
    /// The address of the first byte in work requests; 0 on kernels that do not report it.
    pub iova: u64,
}

open_enum! {
    /// The memory type in a DMA handle's processing hints.
    ///
    /// # References
    /// `ibv_alloc_dmah(3)`, PCIe 6.2, TLP processing hints
    #[doc(alias = "ibv_tph_mem_type")]
    pub enum TphMemType(u8) {
        /// Volatile memory.
        #[doc(alias = "IBV_TPH_MEM_TYPE_VM")]
        VOLATILE = 0, "volatile";
        /// Persistent memory.
        #[doc(alias = "IBV_TPH_MEM_TYPE_PM")]
        PERSISTENT = 1, "persistent";
    }
}

/// The processing hints in a DMA handle; `None` omits a hint.
///
/// # References
/// `ibv_alloc_dmah(3)`
#[doc(alias = "ibv_dmah_init_attr")]
#[doc(alias = "ibv_dmah_init_attr_mask")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DmahAttr {
    /// The CPU whose cache should receive the data. It must be in the calling thread's CPU mask.
    #[doc(alias = "IBV_DMAH_INIT_ATTR_MASK_CPU_ID")]
    pub cpu_id: Option<u32>,
    /// The type of the accessed memory.
    #[doc(alias = "IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE")]
    pub tph_mem_type: Option<TphMemType>,
    /// The processing hint for the accesses, from 0 to 3.
    #[doc(alias = "IBV_DMAH_INIT_ATTR_MASK_PH")]
    pub ph: Option<u8>,
}

/// The size and alignment of device memory to allocate.
///
/// # References
/// `ibv_alloc_dm(3)`
#[doc(alias = "ibv_alloc_dm_attr")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DmAttr {
    /// The length in bytes.
    pub length: u64,
    /// The base-2 logarithm of the alignment in bytes.
    pub log_align: u32,
}
