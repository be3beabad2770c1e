//! The ConnectX provider and its features beyond verbs.
//!
//! Programs that name the provider ([`Device::open_as`](crate::Device::open_as),
//! [`Context::downcast`](crate::Context::downcast)) use these features through methods on the usual
//! handles:
//!
//! - [`Context::create_cq_with`](crate::Context::create_cq_with): completion queues with 128-byte
//!   or compressed entries;
//! - [`Pd::create_qp_with`](crate::Pd::create_qp_with): queue pairs whose completions contain short
//!   data;
//! - [`Qp::post_raw`](crate::Qp::post_raw), [`WrBatch::put_raw`](crate::WrBatch::put_raw),
//!   [`SendBatch::put_raw`](crate::SendBatch::put_raw): requests in the device's own format;
//! - `direct` of each handle: the addresses of its queues and registers ([`direct`]).
//!
//! The page [`connectx`](crate::guide::connectx) of the guide shows them in use.

// Re-exported by name to leave out `paper`, the simulated queues for the provider's own tests.
pub use provider_mlx5::{
    Ah, Completion, Context, Counters, Cq, CqHandle, CqeCompression, Dm, Flow, Mlx5, Mr, Pd, Qp, Rq,
    ScatterToCqe, Sq, Srq, SrqQueue, Td, Wq, Xrcd, direct, vendor_err_text,
};
use verbs_core::Result;
pub use verbs_core::kernel::KernelMw as Mw;

use crate::device::context;
use crate::device::pd;
use crate::memory::dm;
use crate::qp;
use crate::qp::attr::QpInit;
use crate::qp::state::{Reset, State};
use crate::queue::cq::{self, CqInit};
use crate::queue::srq;
use crate::queue::wq;
use direct::{ContextDirect, CqDirect, DmDirect, PdDirect, QpDirect, SrqDirect, WqDirect};

/// The completion queue options specific to ConnectX: `CqOptions { cqe_size: Some(128),
/// ..CqOptions::default() }`.
#[doc(alias = "mlx5dv_cq_init_attr")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CqOptions {
    /// The size of an entry in bytes, 64 or 128; `None` selects the size in the environment
    /// variable `MLX5_CQE_SIZE`, or 64 if it is not set.
    #[doc(alias = "MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE")]
    pub cqe_size: Option<u32>,
    /// The format of compressed completions, which save bus bandwidth; polling expands them.
    /// Completions compressed together share the timestamp of the first. `None` disables
    /// compression unless the environment variable `MLX5_ENABLE_CQE_COMPRESSION` is set.
    #[doc(alias = "MLX5DV_CQ_INIT_ATTR_MASK_COMPRESSED_CQE")]
    pub compression: Option<CqeCompression>,
}

/// The queue pair options specific to ConnectX.
#[doc(alias = "mlx5dv_qp_init_attr")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpOptions {
    /// Whether completions may contain the data of short receives, reads and atomics. Has no effect
    /// on a queue pair with [`QpInit::rss`].
    #[doc(alias = "MLX5DV_QP_CREATE_ALLOW_SCATTER_TO_CQE")]
    #[doc(alias = "MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE")]
    pub scatter_to_cqe: ScatterToCqe,
}

impl context::Context<Mlx5> {
    /// Creates a completion queue as [`create_cq`](Self::create_cq) does, with ConnectX options.
    ///
    /// # Errors
    /// Same as [`create_cq`](Self::create_cq); `EINVAL` for an entry size other than 64 or 128;
    /// `EOPNOTSUPP` for an unsupported format of compressed completions or an entry size the device
    /// does not compress.
    ///
    /// # References
    /// `mlx5dv_create_cq(3)`
    #[doc(alias = "mlx5dv_create_cq")]
    pub fn create_cq_with(&self, init: &CqInit<'_, Mlx5>, options: CqOptions) -> Result<cq::Cq<Mlx5>> {
        let CqOptions { cqe_size, compression } = options;
        cq::Cq::create_by(self, init, |parent_domain, attr| match compression {
            None => self.raw().create_cq_sized(parent_domain, attr, cqe_size),
            Some(form) => self.raw().create_cq_compressed(parent_domain, attr, cqe_size, form),
        })
    }

    /// Describes the device for [direct access](direct).
    ///
    /// # References
    /// `mlx5dv_query_device(3)`
    #[doc(alias = "mlx5dv_query_device")]
    pub fn direct(&self) -> ContextDirect {
        self.raw().direct()
    }
}

impl pd::Pd<Mlx5> {
    /// Creates a queue pair as [`create_qp`](Self::create_qp) does, with ConnectX options.
    ///
    /// # Errors
    /// Same as [`create_qp`](Self::create_qp).
    ///
    /// # References
    /// `mlx5dv_create_qp(3)`
    #[doc(alias = "mlx5dv_create_qp")]
    pub fn create_qp_with(&self, init: &QpInit<Mlx5>, options: QpOptions) -> Result<qp::Qp<Reset, Mlx5>> {
        let context = self.context().raw();
        qp::Qp::create_by(self, init, |parents, attr, extras| {
            context.create_qp_scattering(parents, attr, extras, options.scatter_to_cqe)
        })
    }

    /// Describes the protection domain for [direct access](direct).
    ///
    /// # Errors
    /// For an imported domain, any errno the kernel returns for a query of the domain's number.
    /// Other domains cause no error.
    ///
    /// # References
    /// `mlx5dv_init_obj(3)`
    #[doc(alias = "mlx5dv_init_obj")]
    pub fn direct(&self) -> Result<PdDirect> {
        self.raw().direct()
    }
}

impl srq::Srq<Mlx5> {
    /// Describes the queue for [direct access](direct). The free entries form a linked list from
    /// the head to the tail.
    ///
    /// # References
    /// `mlx5dv_init_obj(3)`
    // The panic below is unreachable.
    #[allow(clippy::missing_panics_doc)]
    #[doc(alias = "mlx5dv_init_obj")]
    pub fn direct(&mut self) -> SrqDirect {
        let (srq, queue) = self.parts_mut();
        srq.direct(queue).expect("a handle has the queue of its object")
    }
}

/// Defines `direct` for handles whose provider object describes itself.
macro_rules! describes {
    ($([$($generics:tt)*] $handle:ty => $description:ident, $what:literal;)*) => {
        $(impl<$($generics)*> $handle {
            #[doc = concat!("Describes the ", $what, " for [direct access](direct).")]
            ///
            /// # References
            /// `mlx5dv_init_obj(3)`
            #[doc(alias = "mlx5dv_init_obj")]
            pub fn direct(&self) -> $description {
                self.raw().direct()
            }
        })*
    };
}

describes! {
    [S: State] qp::Qp<S, Mlx5> => QpDirect, "queue pair";
    [] cq::Cq<Mlx5> => CqDirect, "completion queue";
    [] wq::Wq<Mlx5> => WqDirect, "work queue";
    [] dm::Dm<Mlx5> => DmDirect, "device memory";
}
