//! `ibv_query_gid_type`, the only private function of libibverbs that programs import.
//!
//! A program imports it from the private node of the release it was built with, such as
//! `IBVERBS_PRIVATE_34`. The assembler gives one function a name in each node of
//! [`PRIVATE`](crate::symbols::PRIVATE).
//!
//! # Safety
//! Unsafe code is used to export a function and to name it in assembly. The name
//! `ibverbs_c_query_gid_type` exists nowhere else; the `.symver` directives add names to it but no
//! code. The directives are in the function's module, because the assembler requires the definition
//! in the same unit.
#![allow(unsafe_code)]

use core::arch::global_asm;
use core::ffi::{c_int, c_uint};

use crate::abi::c::ibv_context;
use crate::verbs::query;

/// Writes the type of a GID: 0 for InfiniBand or RoCE v1, 1 for RoCE v2.
///
/// # Safety
/// Same as for rdma-core's `ibv_query_gid_type`: `context` must be open; `gid_type` must point to
/// an `enum ibv_gid_type_sysfs`.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibverbs_c_query_gid_type(
    context: *mut ibv_context,
    port_num: u8,
    index: c_uint,
    gid_type: *mut c_uint,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { query::query_gid_type(context, port_num, index, gid_type) }
}

/// Names `ibverbs_c_query_gid_type` in several nodes. `@@` makes the last node the default version,
/// which `dlsym` finds.
macro_rules! in_nodes {
    ($($older:literal)* ; $newest:literal) => {
        global_asm!(
            $(concat!(".symver ibverbs_c_query_gid_type, ibv_query_gid_type@IBVERBS_PRIVATE_", $older),)*
            concat!(".symver ibverbs_c_query_gid_type, ibv_query_gid_type@@IBVERBS_PRIVATE_", $newest),
        );
    };
}

in_nodes! { 22 25 33 34 57 59 64; 65 }
