//! Behaviour of the types that the `header!` macro defines: open enums, flags, unions, structs.

use uverbs_abi::Be32;
use uverbs_abi::ib_user_ioctl_verbs::{IbUverbsAccessFlags, RdmaDriverId};
use uverbs_abi::ib_user_verbs::{IbUverbsWc, IbUverbsWcEx, IbUverbsWcOpcode};
use uverbs_abi::rdma_user_ioctl_cmds::{IbUverbsAttr, IbUverbsIoctlHdr, RDMA_VERBS_IOCTL};
use uverbs_abi::rdma_user_rxe::{RxeSendWqe, RxeSendWrOp, RxeSendWrRdma};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

#[test]
fn an_unknown_enum_value_is_kept_and_prints_as_a_number() {
    let known = IbUverbsWcOpcode::from(2);
    assert_eq!(known, IbUverbsWcOpcode::IB_UVERBS_WC_RDMA_READ);
    assert_eq!(format!("{known:?}"), "IB_UVERBS_WC_RDMA_READ");

    let unknown = IbUverbsWcOpcode::from(0xffff_fffe);
    assert_eq!(u32::from(unknown), 0xffff_fffe);
    assert_eq!(unknown.name(), None);
    assert_eq!(format!("{unknown:?}"), "IbUverbsWcOpcode(4294967294)");
}

#[test]
fn a_number_with_two_names_prints_as_the_first() {
    assert_eq!(RdmaDriverId::RDMA_DRIVER_IRDMA, RdmaDriverId::RDMA_DRIVER_I40IW);
    assert_eq!(RdmaDriverId::RDMA_DRIVER_IRDMA.name(), Some("RDMA_DRIVER_I40IW"));
}

#[test]
fn unknown_flags_are_kept_by_every_constructor_and_print_as_a_number() {
    let bits = IbUverbsAccessFlags::IB_UVERBS_ACCESS_LOCAL_WRITE.0 | 1 << 30;
    let flags = IbUverbsAccessFlags::from_bits_retain(bits);
    assert_eq!(flags.bits(), bits);
    assert_eq!(IbUverbsAccessFlags::from_bits_truncate(bits), flags);
    assert_eq!(IbUverbsAccessFlags::from_bits(bits), Some(flags));
    assert!(flags.contains(IbUverbsAccessFlags::IB_UVERBS_ACCESS_LOCAL_WRITE));
    assert_eq!(format!("{flags:?}"), "IbUverbsAccessFlags(IB_UVERBS_ACCESS_LOCAL_WRITE | 0x40000000)");
    assert_eq!(format!("{:?}", IbUverbsAccessFlags::default()), "IbUverbsAccessFlags(0)");
}

#[test]
fn a_union_holds_one_member_and_zeros_behind_it() {
    let rdma = RxeSendWrRdma { remote_addr: 0x1122_3344_5566_7788, rkey: 0x99aa_bbcc, reserved: 0 };
    let op = RxeSendWrOp::from_rdma(rdma);
    assert_eq!(op.as_rdma(), rdma);
    assert!(op.as_bytes()[size_of::<RxeSendWrRdma>()..].iter().all(|b| *b == 0));
    // The members overlap, as in C.
    assert_eq!(op.as_atomic().remote_addr, rdma.remote_addr);
    assert_eq!(op.as_atomic().compare_add.as_bytes(), &rdma.as_bytes()[8..]);
}

#[test]
fn immediate_data_and_the_invalidated_key_share_bytes() {
    let ex = IbUverbsWcEx::from_imm_data(Be32::from_native(0x0102_0304));
    assert_eq!(ex.as_bytes(), [1, 2, 3, 4]);
    assert_eq!(ex.as_invalidate_rkey(), u32::from_ne_bytes([1, 2, 3, 4]));
}

#[test]
fn structs_are_read_from_exactly_their_bytes_and_default_to_zero() {
    let bytes: Vec<u8> = (0..size_of::<IbUverbsWc>() as u8).collect();
    let wc = IbUverbsWc::read_from_bytes(&bytes).unwrap();
    assert_eq!(wc.as_bytes(), bytes);
    for length in 0..bytes.len() {
        assert!(IbUverbsWc::read_from_bytes(&bytes[..length]).is_err(), "{length} bytes");
    }
    assert_eq!(RxeSendWqe::default(), RxeSendWqe::new_zeroed());
}

#[test]
fn an_ioctl_is_a_header_and_attributes_of_these_sizes() {
    // RDMA_VERBS_IOCTL encodes the size of the header without its attributes.
    assert_eq!((RDMA_VERBS_IOCTL, size_of::<IbUverbsIoctlHdr>()), (0xc018_1b01, 24));
    assert_eq!(size_of::<IbUverbsAttr>(), 16);
}
