//! [`CqeCompression`]: the format of a queue's [compressed](super::compressed) completions.
//!
//! # References
//! `mlx5dv_create_cq(3)`

use core::ops::Range;

use uverbs_abi::mlx5_abi::{Mlx5IbCqeCompCaps, Mlx5IbCqeCompResFormat};
use verbs_core::types::CqWcFlags;
use verbs_core::{Cause, Errno, Result};

use super::cqe::CQE64;
use crate::device::Device;

/// A format for compressed receive completions: the field kept for each completion besides the
/// length. Send completions have only one format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "mlx5dv_cqe_comp_res_format")]
#[non_exhaustive]
pub enum CqeCompression {
    /// The hash of the received packet.
    #[doc(alias = "MLX5DV_CQE_RES_FORMAT_HASH")]
    Hash,
    /// The checksum of the received packet.
    #[doc(alias = "MLX5DV_CQE_RES_FORMAT_CSUM")]
    Csum,
    /// The checksum of the received packet and its stride in a striding receive queue. This library
    /// has no striding receive queues.
    #[doc(alias = "MLX5DV_CQE_RES_FORMAT_CSUM_STRIDX")]
    CsumStridx,
}

impl CqeCompression {
    /// Returns the format's code in the kernel's command.
    pub(crate) const fn bits(self) -> u32 {
        let form = match self {
            Self::Hash => Mlx5IbCqeCompResFormat::MLX5_IB_CQE_RES_FORMAT_HASH,
            Self::Csum => Mlx5IbCqeCompResFormat::MLX5_IB_CQE_RES_FORMAT_CSUM,
            Self::CsumStridx => Mlx5IbCqeCompResFormat::MLX5_IB_CQE_RES_FORMAT_CSUM_STRIDX,
        };
        form.bits()
    }

    /// Returns whether a device offers the format.
    pub(crate) const fn is_offered(self, caps: &Mlx5IbCqeCompCaps) -> bool {
        caps.max_num > 0 && caps.supported_format & self.bits() != 0
    }

    /// Returns the format for a new queue: the format requested by the program, or hashes if
    /// [`VARIABLE`] is set and the device offers hashes. The variable does not apply if the program
    /// reads timestamps, because a block has only one timestamp, or if entries have an unusual
    /// size.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for a requested format the device does not offer.
    pub(crate) fn of_queue(
        device: &Device,
        asked: Option<Self>,
        variable: Option<String>,
        fields: CqWcFlags,
        stride: usize,
    ) -> Result<Option<Self>> {
        let Some(form) = asked else {
            let times = CqWcFlags::COMPLETION_TIMESTAMP | CqWcFlags::COMPLETION_TIMESTAMP_WALLCLOCK;
            let is_on = variable.is_some_and(|value| value.trim() != "0");
            let may = is_on && stride == CQE64 && !fields.intersects(times);
            let is_offered =
                |form: &Self| device.queried().is_ok_and(|queried| form.is_offered(&queried.cqe_comp_caps));
            return Ok(Some(Self::Hash).filter(|form| may && is_offered(form)));
        };
        if form.is_offered(&device.queried()?.cqe_comp_caps) {
            return Ok(asked);
        }
        let reason = "the device does not compress completions in this form".into();
        Err(device.error("create_cq", Errno::OPNOTSUPP).because(Cause::Other { reason }))
    }

    /// Returns the range of an entry's bytes that the first bytes of a mini entry replace.
    pub(super) const fn received(self) -> Range<usize> {
        match self {
            Self::Hash => at::HASH..at::HASH + 4,
            Self::Csum | Self::CsumStridx => at::CHECKSUM..at::CHECKSUM + 2,
        }
    }
}

/// The environment variable that requests compressed completions, unless it is 0. The variable
/// comes from Mellanox OFED's libmlx5, which also expands compressed completions.
pub(crate) const VARIABLE: &str = "MLX5_ENABLE_CQE_COMPRESSION";

/// The offsets of fields used only by compression, in bytes.
mod at {
    pub(super) const HASH: usize = 12;
    pub(super) const CHECKSUM: usize = 20;
}
