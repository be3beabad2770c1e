//! [`ScatterToCqe`]: whether [data comes with completions](crate::queue::cq).
//!
//! # References
//! rdma-core `providers/mlx5/verbs.c` (`use_scatter_to_cqe`)

use uverbs_abi::mlx5_abi::{MLX5_QP_FLAG_ALLOW_SCATTER_CQE, MLX5_QP_FLAG_SCATTER_CQE};
use verbs_core::environment;

use crate::device::Device;

/// The environment variable that lets completions contain data unless it is set to 0. The variable
/// comes from libmlx5, where completions contain data even without it.
const SCATTER_TO_CQE: &str = "MLX5_SCATTER_TO_CQE";

/// Whether completions may contain the data of short receives and of short replies to reads and
/// atomics. Polling then copies the data to the request's memory.
///
/// The device checks no key for such data. Polling checks the key, but knows only the regions
/// registered by this context. A request with another key completes with the status `LOC_PROT_ERR`,
/// and the queue pair stays unchanged. The same happens with memory that this process cannot
/// access. Therefore the feature is used only if a program requests it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScatterToCqe {
    /// No data, unless the environment variable `MLX5_SCATTER_TO_CQE` is set and not 0. With the
    /// variable, completions contain the data of receives on RC and UC, and of reads and atomics on
    /// an RC queue pair that signals all requests, as in libmlx5. They contain no data while the
    /// context is imported or has regions whose memory this process cannot access.
    #[default]
    Usual,
    /// No data.
    Never,
    /// Same as `Usual` with the variable, but regardless of the context's regions, and also for
    /// reads and atomics on a queue pair with unsignalled requests.
    Always,
}

impl ScatterToCqe {
    /// Returns the flags for the create command.
    pub(super) fn flags(self, device: &Device) -> u32 {
        let is_on = || environment::variable_os(SCATTER_TO_CQE).is_some_and(|value| value != "0");
        match self {
            Self::Usual if !is_on() || device.is_imported || !device.regions.all_in_reach() => 0,
            Self::Usual => MLX5_QP_FLAG_SCATTER_CQE,
            Self::Never => 0,
            Self::Always => MLX5_QP_FLAG_SCATTER_CQE | MLX5_QP_FLAG_ALLOW_SCATTER_CQE,
        }
    }
}
