//! Conversions between the kernel's connection management structs and verbs structs.
//!
//! With a null pointer, the functions convert nothing. Fields that the kernel's struct lacks stay
//! unchanged: `qp_state` and `rate_limit` of queue pair attributes.
//!
//! # Safety
//! The functions are exported under names reserved by this library's version script. They access
//! the caller's structs field by field through raw pointers, because they may be uninitialised.
#![allow(unsafe_code)]

use uverbs_abi::ib_user_sa::IbUserPathRec;
use uverbs_abi::ib_user_verbs::{IbUverbsAhAttr, IbUverbsQpAttr};
use uverbs_abi::{Be16, Be32};

use crate::abi::c::{ibv_ah_attr, ibv_gid, ibv_qp_attr, ibv_qp_cap, ibv_sa_path_rec};

/// Copies fields that have the same names in both structs.
macro_rules! copy {
    ($dst:ident <- $src:ident: $($($field:ident).+),* $(,)?) => {
        $((*$dst).$($field).+ = (*$src).$($field).+;)*
    };
}

/// Converts the attributes of an address handle.
///
/// # Safety
/// Each pointer must be null or point to its struct; `dst` is written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_ah_attr_from_kern(dst: *mut ibv_ah_attr, src: *const IbUverbsAhAttr) {
    if dst.is_null() || src.is_null() {
        return;
    }
    // SAFETY: both point to their structs, as the caller promises.
    unsafe {
        (*dst).grh.dgid = ibv_gid { raw: (*src).grh.dgid };
        copy!(dst <- src: grh.flow_label, grh.sgid_index, grh.hop_limit, grh.traffic_class);
        copy!(dst <- src: dlid, sl, src_path_bits, static_rate, is_global, port_num);
    }
}

/// Converts the attributes of a queue pair, except `qp_state` and `rate_limit`.
///
/// # Safety
/// Each pointer must be null or point to its struct; `dst` is written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_qp_attr_from_kern(dst: *mut ibv_qp_attr, src: *const IbUverbsQpAttr) {
    if dst.is_null() || src.is_null() {
        return;
    }
    // SAFETY: both point to their structs, as the caller promises, so field pointers are valid.
    unsafe {
        copy!(dst <- src:
            cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags,
            pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic,
            max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num,
            alt_timeout,
        );
        (*dst).cap = ibv_qp_cap {
            max_send_wr: (*src).max_send_wr,
            max_recv_wr: (*src).max_recv_wr,
            max_send_sge: (*src).max_send_sge,
            max_recv_sge: (*src).max_recv_sge,
            max_inline_data: (*src).max_inline_data,
        };
        ibv_copy_ah_attr_from_kern(&raw mut (*dst).ah_attr, &raw const (*src).ah_attr);
        ibv_copy_ah_attr_from_kern(&raw mut (*dst).alt_ah_attr, &raw const (*src).alt_ah_attr);
    }
}

/// Converts a path record from the kernel's form.
///
/// # Safety
/// Each pointer must be null or point to its struct; `dst` is written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_path_rec_from_kern(dst: *mut ibv_sa_path_rec, src: *const IbUserPathRec) {
    if dst.is_null() || src.is_null() {
        return;
    }
    // SAFETY: both point to their structs, as the caller promises.
    unsafe {
        (*dst).dgid = ibv_gid { raw: (*src).dgid };
        (*dst).sgid = ibv_gid { raw: (*src).sgid };
        (*dst).dlid = u16::from_ne_bytes((*src).dlid.to_bytes());
        (*dst).slid = u16::from_ne_bytes((*src).slid.to_bytes());
        (*dst).flow_label = u32::from_ne_bytes((*src).flow_label.to_bytes());
        (*dst).pkey = u16::from_ne_bytes((*src).pkey.to_bytes());
        (*dst).raw_traffic = (*src).raw_traffic.cast_signed();
        (*dst).reversible = (*src).reversible.cast_signed();
        (*dst).mtu = (*src).mtu as u8;
        copy!(dst <- src:
            hop_limit, traffic_class, numb_path, sl, mtu_selector, rate_selector, rate,
            packet_life_time, packet_life_time_selector, preference,
        );
    }
}

/// Converts a path record to the kernel's form.
///
/// # Safety
/// Each pointer must be null or point to its struct; `dst` is written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_path_rec_to_kern(dst: *mut IbUserPathRec, src: *const ibv_sa_path_rec) {
    if dst.is_null() || src.is_null() {
        return;
    }
    // SAFETY: both point to their structs, as the caller promises, and every byte of a GID is
    // initialised.
    unsafe {
        (*dst).dgid = (*src).dgid.raw;
        (*dst).sgid = (*src).sgid.raw;
        (*dst).dlid = Be16::from_bytes((*src).dlid.to_ne_bytes());
        (*dst).slid = Be16::from_bytes((*src).slid.to_ne_bytes());
        (*dst).flow_label = Be32::from_bytes((*src).flow_label.to_ne_bytes());
        (*dst).pkey = Be16::from_bytes((*src).pkey.to_ne_bytes());
        (*dst).raw_traffic = (*src).raw_traffic.cast_unsigned();
        (*dst).reversible = (*src).reversible.cast_unsigned();
        (*dst).mtu = (*src).mtu.into();
        copy!(dst <- src:
            hop_limit, traffic_class, numb_path, sl, mtu_selector, rate_selector, rate,
            packet_life_time, packet_life_time_selector, preference,
        );
    }
}

#[cfg(test)]
mod tests {
    use core::fmt::Write as _;
    use core::ptr;

    use super::*;

    #[repr(align(8))]
    struct Bytes([u8; 144]);

    /// Converts a source with the bytes 1, 2, 3, ... into a buffer filled with `ee`, and returns
    /// the buffer's bytes.
    fn converted<D, S>(convert: unsafe extern "C" fn(*mut D, *const S)) -> String {
        let src = Bytes(core::array::from_fn(|at| at as u8 + 1));
        let mut dst = Bytes([0xee; 144]);
        assert!(size_of::<S>() <= src.0.len() && size_of::<D>() <= dst.0.len());
        // SAFETY: both point to enough bytes for their structs; any byte values are valid.
        unsafe { convert((&raw mut dst).cast(), (&raw const src).cast()) };
        let (written, beyond) = dst.0.split_at(size_of::<D>());
        assert!(beyond.iter().all(|byte| *byte == 0xee), "bytes behind the struct");
        written.chunks(8).fold(String::new(), |mut text, chunk| {
            chunk.iter().for_each(|byte| write!(text, "{byte:02x}").unwrap());
            text + " "
        })
    }

    // The expected bytes are the results of rdma-core 44.0 for the same input.

    #[test]
    fn an_address_has_the_bytes_of_the_c_library() {
        let expected = "0102030405060708 090a0b0c0d0e0f10 11121314151617ee 191a1b1c1d1e1fee ";
        assert_eq!(converted(ibv_copy_ah_attr_from_kern), expected);
    }

    #[test]
    fn queue_pair_attributes_have_the_bytes_of_the_c_library_and_keep_the_state() {
        let expected = "eeeeeeee090a0b0c 0d0e0f1011121314 15161718191a1b1c 1d1e1f2021222324 \
                        25262728696a6b6c 6d6e6f7071727374 75767778797a7b7c 292a2b2c2d2e2f30 \
                        3132333435363738 393a3b3c3d3e3fee 41424344454647ee 494a4b4c4d4e4f50 \
                        5152535455565758 595a5b5c5d5e5fee 61626364656667ee 7d7e7f8081828384 \
                        85868788898a8bee eeeeeeeeeeeeeeee ";
        assert_eq!(converted(ibv_copy_qp_attr_from_kern), expected);
    }

    #[test]
    fn path_records_have_the_bytes_of_the_c_library() {
        let from = "0102030405060708 090a0b0c0d0e0f10 1112131415161718 191a1b1c1d1e1f20 \
                    2122232425262728 292a2b2c3738eeee 2d2e2f3039ee3536 3a3b313c3d3e3f40 ";
        assert_eq!(converted(ibv_copy_path_rec_from_kern), from);
        let to = "0102030405060708 090a0b0c0d0e0f10 1112131415161718 191a1b1c1d1e1f20 \
                  2122232425262728 292a2b2c31323334 3b00000037382d2e 35393a3c3d3e3f40 ";
        assert_eq!(converted(ibv_copy_path_rec_to_kern), to);
    }

    #[test]
    fn a_null_pointer_converts_nothing() {
        let mut path = IbUserPathRec { pkey: Be16::from_native(7), ..IbUserPathRec::default() };
        // SAFETY: null is allowed.
        unsafe {
            ibv_copy_path_rec_to_kern(&raw mut path, ptr::null());
            ibv_copy_path_rec_to_kern(ptr::null_mut(), ptr::null());
            ibv_copy_path_rec_from_kern(ptr::null_mut(), &raw const path);
            ibv_copy_ah_attr_from_kern(ptr::null_mut(), ptr::null());
            ibv_copy_qp_attr_from_kern(ptr::null_mut(), ptr::null());
        }
        assert_eq!(path.pkey.to_native(), 7);
    }
}
