//! The position of each attribute in `MODIFY_QP` and `QUERY_QP`: byte offsets of
//! `struct ib_uverbs_modify_qp` and `struct ib_uverbs_query_qp_resp`, written by hand.

use super::{Expect, Reply, Scripted, Uhw, on, qp};
use crate::errno::Errno;
use crate::types::{
    AccessFlags, AhAttr, Gid, GlobalRoute, MigState, Mtu, QpAttr, QpAttrMask, QpCap, QpState, Rate,
};

/// The size of `struct ib_uverbs_modify_qp` and the offsets of its alternate path and of the first
/// field after both paths.
const SIZE: usize = 112;
const ALT_DEST: usize = 32;
const QP_HANDLE: usize = 64;
const ATTR_MASK: usize = 68;

/// An offset and the bytes there.
type Bytes = (usize, Vec<u8>);

const HANDLE: u32 = 0x5152_5354;

/// Returns attributes with a unique value in every byte.
fn attr() -> QpAttr {
    QpAttr {
        qp_state: QpState(0x61),
        cur_qp_state: QpState(0x62),
        path_mtu: Mtu(3),
        path_mig_state: MigState(0x64),
        qkey: 0x7172_7374,
        rq_psn: 0x0076_7778,
        sq_psn: 0x007a_7b7c,
        dest_qp_num: 0x007e_7f80,
        qp_access_flags: AccessFlags::from_bits_retain(0x8182_8384),
        ah_attr: path(0x11),
        alt_ah_attr: path(0x31),
        pkey_index: 0x8586,
        alt_pkey_index: 0x8788,
        en_sqd_async_notify: true,
        sq_draining: true,
        max_rd_atomic: 0x65,
        max_dest_rd_atomic: 0x66,
        min_rnr_timer: 0x67,
        port_num: 0x68,
        timeout: 0x69,
        retry_cnt: 0x6a,
        rnr_retry: 0x6b,
        alt_port_num: 0x6c,
        alt_timeout: 0x6d,
        rate_limit: 0x9192_9394,
        ..QpAttr::default()
    }
}

fn path(first: u8) -> AhAttr {
    let grh = GlobalRoute {
        dgid: Gid(core::array::from_fn(|n| first + n as u8)),
        flow_label: u32::from_ne_bytes([first + 16, first + 17, first + 18, 0xa0]),
        sgid_index: u32::from(first) + 19,
        hop_limit: first + 20,
        traffic_class: first + 21,
    };
    AhAttr {
        grh: Some(grh),
        dlid: u16::from_ne_bytes([first + 22, first + 23]),
        sl: first + 24,
        src_path_bits: first + 25,
        static_rate: Rate(first + 26),
        port_num: first + 27,
    }
}

/// Returns the 32 bytes of `struct ib_uverbs_qp_dest` for [`path`].
fn dest(first: u8) -> [u8; 32] {
    let mut bytes = [0; 32];
    for n in 0..19 {
        bytes[usize::from(n)] = first + n; // dgid, flow_label
    }
    bytes[19] = 0xa0;
    bytes[20..22].copy_from_slice(&[first + 22, first + 23]); // dlid, then 2 reserved bytes
    bytes[24..27].copy_from_slice(&[first + 19, first + 20, first + 21]); // sgid_index, hop_limit, traffic_class
    bytes[27..30].copy_from_slice(&[first + 24, first + 25, first + 26]); // sl, src_path_bits, static_rate
    bytes[30..32].copy_from_slice(&[1, first + 27]); // is_global, port_num
    bytes
}

/// Returns the bytes written by each bit of the mask.
fn fields() -> Vec<(QpAttrMask, Vec<Bytes>)> {
    use QpAttrMask as M;
    let one = |at: usize, byte: u8| vec![(at, vec![byte])];
    let four = |at: usize, value: u32| vec![(at, value.to_ne_bytes().to_vec())];
    vec![
        (M::STATE, one(96, 0x61)),
        (M::CUR_STATE, one(97, 0x62)),
        (M::EN_SQD_ASYNC_NOTIFY, one(100, 1)),
        (M::ACCESS_FLAGS, four(88, 0x8182_8384)),
        (M::PKEY_INDEX, vec![(92, 0x8586_u16.to_ne_bytes().to_vec())]),
        (M::PORT, one(104, 0x68)),
        (M::QKEY, four(72, 0x7172_7374)),
        (M::AV, vec![(0, dest(0x11).to_vec())]),
        (M::PATH_MTU, one(98, 3)),
        (M::TIMEOUT, one(105, 0x69)),
        (M::RETRY_CNT, one(106, 0x6a)),
        (M::RNR_RETRY, one(107, 0x6b)),
        (M::RQ_PSN, four(76, 0x0076_7778)),
        (M::MAX_QP_RD_ATOMIC, one(101, 0x65)),
        (
            M::ALT_PATH,
            vec![
                (ALT_DEST, dest(0x31).to_vec()),
                (94, 0x8788_u16.to_ne_bytes().to_vec()),
                (108, vec![0x6c]),
                (109, vec![0x6d]),
            ],
        ),
        (M::MIN_RNR_TIMER, one(103, 0x67)),
        (M::SQ_PSN, four(80, 0x007a_7b7c)),
        (M::MAX_DEST_RD_ATOMIC, one(102, 0x66)),
        (M::PATH_MIG_STATE, one(99, 0x64)),
        (M::DEST_QPN, four(84, 0x007e_7f80)),
    ]
}

fn command(mask: QpAttrMask, fields: &[Bytes]) -> Vec<u8> {
    let mut bytes = vec![0; SIZE];
    let numbers =
        [(QP_HANDLE, HANDLE.to_ne_bytes().to_vec()), (ATTR_MASK, mask.bits().to_ne_bytes().to_vec())];
    for (at, value) in numbers.iter().chain(fields) {
        bytes[*at..at + value.len()].copy_from_slice(value);
    }
    bytes
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn each_attribute_goes_to_its_place_and_nothing_else_goes_with_it() {
    let all = fields();
    let everything = all.iter().fold(QpAttrMask::empty(), |mask, (bit, _)| mask | *bit);
    let every_field: Vec<_> = all.iter().flat_map(|(_, fields)| fields.clone()).collect();
    let scripted = Scripted::new([Expect::anything(Reply::Errno(Errno::NOTTY))]);
    let uverbs = on(&scripted);
    let whole = [(everything, every_field), (QpAttrMask::empty(), Vec::new())];
    for (mask, fields) in all.into_iter().chain(whole) {
        let text = format!("write 26: in {}, out 0+0", hex(&command(mask, &fields)));
        scripted.expect([Expect::command(&text, Reply::ok())]);
        qp::modify_qp(&uverbs, HANDLE, &attr(), mask).unwrap();
    }
}

#[test]
fn a_path_without_a_global_route_is_local() {
    let scripted = Scripted::new([Expect::anything(Reply::Errno(Errno::NOTTY))]);
    let local = AhAttr { grh: None, ..path(0x11) };
    let attr = QpAttr { ah_attr: local, alt_ah_attr: AhAttr { grh: None, ..path(0x31) }, ..attr() };
    let strip = |mut dest: [u8; 32]| {
        dest[..20].fill(0);
        dest[24..27].fill(0);
        dest[30] = 0;
        dest.to_vec()
    };
    let mask = QpAttrMask::AV | QpAttrMask::ALT_PATH;
    let fields = [
        (0, strip(dest(0x11))),
        (ALT_DEST, strip(dest(0x31))),
        (94, 0x8788_u16.to_ne_bytes().to_vec()),
        (108, vec![0x6c, 0x6d]),
    ];
    let text = format!("write 26: in {}, out 0+0", hex(&command(mask, &fields)));
    scripted.expect([Expect::command(&text, Reply::ok())]);
    qp::modify_qp(&on(&scripted), HANDLE, &attr, mask).unwrap();
}

#[test]
fn a_rate_limit_goes_behind_the_other_attributes_of_an_extended_command() {
    let scripted = Scripted::new([Expect::anything(Reply::Errno(Errno::NOTTY))]);
    let mask = QpAttrMask::STATE | QpAttrMask::RATE_LIMIT;
    let base = command(mask, &[(96, vec![0x61])]);
    let rate_limit = [&0x9192_9394_u32.to_ne_bytes()[..], &[0; 4]].concat();
    let text = format!("write_ex 26: in {}{}, out 8+0", hex(&base), hex(&rate_limit));
    scripted.expect([Expect::command(&text, Reply::ok())]);
    qp::modify_qp(&on(&scripted), HANDLE, &attr(), mask).unwrap();
}

#[test]
fn the_extended_command_carries_the_part_of_the_driver_in_both_directions() {
    let base = command(QpAttrMask::STATE, &[(96, vec![0x61])]);
    let core = format!("{}{}", hex(&base), "00".repeat(8));
    let invoke = format!(
        "ioctl 0.0: 0x2 u64 0x8000001a, 0x0 in {core}, 0x1 out 8 bytes, 0x1000 in 0a0b0c0d0e0f1011, 0x1001 out 8 bytes"
    );
    let write = format!("write_ex 26: in {core}+0a0b0c0d0e0f1011, out 8+8");
    let reply = || Reply::outputs([&[8, 0, 0, 0, 0, 0, 0, 0][..], &[1, 2, 3, 4, 5, 6, 7, 8]]);
    // INVOKE_WRITE; a kernel without it; then `write()` at once.
    let ways = [
        vec![Expect::command(&invoke, reply())],
        vec![
            Expect::command(&invoke, Reply::Errno(Errno::PROTONOSUPPORT)),
            Expect::command(&write, reply()),
            Expect::command(&write, reply()),
        ],
    ];
    for way in ways {
        let commands = way.len().max(2) - 1;
        let scripted = Scripted::new(way);
        let uverbs = on(&scripted);
        for _ in 0..commands {
            let mut output = [0; 8];
            let uhw = Uhw { input: &[0x0a, 0x0b, 0x0c, 0x0d, 0x0e, 0x0f, 0x10, 0x11], output: &mut output };
            qp::modify_qp_ex(&uverbs, HANDLE, &attr(), QpAttrMask::STATE, uhw).unwrap();
            assert_eq!(output, [1, 2, 3, 4, 5, 6, 7, 8]);
        }
        assert_eq!(scripted.remaining(), 0);
    }
}

#[test]
fn a_rate_limit_that_the_mask_does_not_name_stays_zero() {
    let scripted = Scripted::new([Expect::anything(Reply::Errno(Errno::NOTTY))]);
    let text =
        format!("write_ex 26: in {}{}, out 8+0", hex(&command(QpAttrMask::empty(), &[])), "00".repeat(8));
    scripted.expect([Expect::command(&text, Reply::ok())]);
    qp::modify_qp_ex(&on(&scripted), HANDLE, &attr(), QpAttrMask::empty(), Uhw::none()).unwrap();
}

#[test]
fn numbers_that_do_not_fit_are_refused_by_the_extended_command_too() {
    let scripted = Scripted::new([]);
    let no_mtu = QpAttr { path_mtu: Mtu(6), ..attr() };
    let error =
        qp::modify_qp_ex(&on(&scripted), HANDLE, &no_mtu, QpAttrMask::PATH_MTU, Uhw::none()).unwrap_err();
    assert_eq!((error.verb, error.errno), ("modify_qp", Errno::INVAL));
    let error = qp::query_qp(&on(&scripted), HANDLE, QpAttrMask::RATE_LIMIT).unwrap_err();
    assert_eq!((error.verb, error.errno), ("query_qp", Errno::OPNOTSUPP));
}

#[test]
fn each_attribute_is_found_at_its_place() {
    let mut reply = vec![0_u8; 128];
    let mut put = |at: usize, bytes: &[u8]| reply[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &dest(0x11));
    put(32, &dest(0x31));
    for (n, cap) in [0xc1_u32, 0xc2, 0xc3, 0xc4, 0xc5].into_iter().enumerate() {
        put(64 + 4 * n, &cap.to_ne_bytes());
    }
    put(84, &0x7172_7374_u32.to_ne_bytes()); // qkey
    put(88, &0x0076_7778_u32.to_ne_bytes()); // rq_psn
    put(92, &0x007a_7b7c_u32.to_ne_bytes()); // sq_psn
    put(96, &0x007e_7f80_u32.to_ne_bytes()); // dest_qp_num
    put(100, &0x8182_8384_u32.to_ne_bytes()); // qp_access_flags
    put(104, &0x8586_u16.to_ne_bytes()); // pkey_index
    put(106, &0x8788_u16.to_ne_bytes()); // alt_pkey_index
    put(108, &[0x61, 0x62, 3, 0x64, 1]); // qp_state, cur_qp_state, path_mtu, path_mig_state, sq_draining
    put(113, &[0x65, 0x66, 0x67, 0x68]); // max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num
    put(117, &[0x69, 0x6a, 0x6b, 0x6c, 0x6d]); // timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout
    let cap = QpCap {
        max_send_wr: 0xc1,
        max_recv_wr: 0xc2,
        max_send_sge: 0xc3,
        max_recv_sge: 0xc4,
        max_inline_data: 0xc5,
    };
    // The kernel does not report these two attributes.
    let expected = QpAttr { cap, en_sqd_async_notify: false, rate_limit: 0, ..attr() };
    let mask = QpAttrMask::STATE | QpAttrMask::AV;
    let text = "write 25: in 00000000000000005453525181000000, out 128+0";
    for sq_sig_all in [0, 1] {
        reply[122] = sq_sig_all;
        let found = Expect::command(text, Reply::outputs([&reply]));
        let scripted = Scripted::new([Expect::anything(Reply::Errno(Errno::NOTTY)), found]);
        let (attr, info) = qp::query_qp(&on(&scripted), HANDLE, mask).unwrap();
        assert_eq!(attr, expected);
        assert_eq!((info.cap, info.sq_sig_all), (cap, sq_sig_all == 1));
    }
    reply[112] = 0;
    let scripted = Scripted::new([Expect::anything(Reply::outputs([&reply]))]);
    assert!(!qp::query_qp(&on(&scripted), HANDLE, mask).unwrap().0.sq_draining);
}
