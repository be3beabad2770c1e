//! The fence required between a UMR and the next work request.
//!
//! ```text
//! value  0: none   1: small fence   2: fence   3: strong ordering   4: small fence and fence
//! ```
//! With a small fence, a work request sees the memory key as the previous work request left it. A
//! fence (2) waits only for reads and atomics.
//!
//! After a bind or an invalidation, libmlx5 writes a small fence into the next work request, even
//! if a doorbell separates the two. If the program also requests a fence for this work request,
//! libmlx5 writes 4. The Linux driver does the same after a registration, but not after an
//! invalidation; a registration right after another has strong ordering. On the driver's own queue
//! pair, every UMR has a small fence.
//!
//! The first work request after a RESET needs no fence. Programs that write work requests
//! themselves (`mlx5dv_wr_raw_wqe`) also choose the fence. libmlx5's `ibv_post_send` loses the
//! pending fence if it rejects the next work request while writing that request's segments.
//!
//! # References
//! rdma-core `fm_cache`; Linux `wr.c` (`next_fence`, `umr_fence`), `umr.c` (`mlx5r_umr_post_send`)

use crate::layout::mkey::mkc;
use crate::layout::wqe::{ctrl, umr_ctrl};
use crate::qp::request::opcode;
use crate::qp::umr::FREE;
use crate::state::qp::SendRun;

impl SendRun {
    /// Records the next work request. Returns whether it lacks a fence that the previous one
    /// requires.
    pub(super) fn lacks_fence(&mut self, wqe: &[u8]) -> bool {
        let needed = std::mem::replace(&mut self.after_umr, needs_fence(wqe));
        needed && !matches!(ctrl::FM.get32(wqe), 1 | 3 | 4)
    }
}

/// Returns whether the work request that follows this one needs a fence.
fn needs_fence(wqe: &[u8]) -> bool {
    let control = wqe.get(ctrl::SIZE..).unwrap_or_default();
    let context = control.get(umr_ctrl::SIZE..).unwrap_or_default();
    // The Linux driver's invalidation needs none.
    let only_frees = umr_ctrl::MKEY_MASK.get(control) == 1 << FREE && mkc::FREE.is_set(context);
    ctrl::OPCODE.get(wqe) == u64::from(opcode::UMR) && !only_frees
}
