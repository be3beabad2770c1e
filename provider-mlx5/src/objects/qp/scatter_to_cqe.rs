//! [`ScatterToCqe`]: whether [data comes with completions](crate::queue::cq).
//!
//! # References
//! rdma-core `providers/mlx5/verbs.c` (`use_scatter_to_cqe`)

use uverbs_abi::mlx5_abi::{MLX5_QP_FLAG_ALLOW_SCATTER_CQE, MLX5_QP_FLAG_SCATTER_CQE};
use verbs_core::environment;

use crate::device::Device;

/// The environment variable that lets data come with completions unless it is 0. It comes from
/// libmlx5, where data comes with completions even without the variable.
const SCATTER_TO_CQE: &str = "MLX5_SCATTER_TO_CQE";

/// Whether the device may put the data of short receives, and of short replies to reads and
/// atomics, into completions. Polling then copies it to the request's memory.
///
/// The device compares no key in this case. Polling does, but only has the regions registered by
/// this context. A request with another key completes with the status `LOC_PROT_ERR`, and the queue
/// pair stays unchanged. The same happens for memory out of this process's reach. The feature is
/// therefore for programs that request it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScatterToCqe {
    /// No data, unless the environment variable `MLX5_SCATTER_TO_CQE` is set to a value other than
    /// 0. With it, as in libmlx5: receives of RC and UC and reads and atomics of an RC queue pair
    ///    with all requests signalled. Not while the context has regions of memory out of this
    ///    process's reach, or is imported.
    #[default]
    Usual,
    /// No data.
    Never,
    /// Same as `Usual` with the variable, regardless of the regions, and with reads and atomics
    /// even if some requests are unsignalled.
    Always,
}

impl ScatterToCqe {
    /// Returns the flags for the command.
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
