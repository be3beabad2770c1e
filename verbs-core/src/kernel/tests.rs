//! Tests of the causes found after the kernel has returned an errno.

use core::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use uverbs_abi::ib_user_ioctl_verbs::{IbUverbsGidEntry, IbUverbsQueryPortRespEx};
use uverbs_abi::ib_user_verbs::{IbUverbsExQueryDeviceResp, IbUverbsQueryDeviceResp};
use zerocopy::IntoBytes;

use super::{KernelContext, KernelDmah, KernelMr, KernelPd};
use crate::channel::{DriverAttrs, Expect, Reply, Scripted, Uhw, Uverbs};
use crate::errno::Errno;
use crate::error::{Cause, Error};
use crate::provider::{Destroy, DeviceOps as _, DmahOps, MrOps, PdOps};
use crate::types::{
    AccessFlags, AhAttr, CqFlags, CqInitAttr, DeviceCapFlags, DmahAttr, Gid, GlobalRoute, Mtu, QpAttr,
    QpAttrMask, QpCap, QpInitAttr, QpState, QpType,
};

pub(super) fn context(core_support: u64) -> (Arc<KernelContext>, Scripted) {
    context_at(Path::new("/nonexistent"), core_support)
}

/// Opens a scripted context whose sysfs directory is `ibdev_path`.
#[allow(unsafe_code)]
fn context_at(ibdev_path: &Path, core_support: u64) -> (Arc<KernelContext>, Scripted) {
    let scripted =
        Scripted::new([Expect::anything(Reply::outputs([&2_u32.to_ne_bytes(), core_support.as_bytes()]))]);
    // SAFETY: the script's descriptors belong to the test, and no memory is posted to its queues.
    let uverbs = unsafe { Uverbs::new(Box::new(scripted.clone()), 18, "rxe0") };
    let context = KernelContext::new(uverbs, ibdev_path, |_| String::new(), Uhw::none()).unwrap();
    (context, scripted)
}

fn device() -> Expect {
    let reply = IbUverbsQueryDeviceResp {
        max_qp_wr: 1_048_576,
        max_sge: 32,
        max_cqe: 32_767,
        max_mr_size: 1 << 40,
        phys_port_cnt: 1,
        ..Default::default()
    };
    Expect::anything(Reply::outputs([reply.as_bytes()]))
}

fn port() -> Expect {
    let mut reply = IbUverbsQueryPortRespEx::default();
    reply.legacy_resp.gid_tbl_len = 1024;
    reply.legacy_resp.pkey_tbl_len = 1;
    reply.legacy_resp.link_layer = 2;
    Expect::anything(Reply::outputs([reply.as_bytes()]))
}

fn refused(errno: Errno) -> Expect {
    Expect::anything(Reply::Errno(errno))
}

fn invalid(verb: &'static str) -> Error {
    Error::new(verb, "rxe0", Errno::INVAL)
}

#[test]
fn a_port_that_does_not_exist_names_those_that_do() {
    for (port_num, text) in [
        (0, "query_port on rxe0: port_num 0 is out of range: the device has 1 alone (EINVAL)"),
        (9, "query_port on rxe0: port_num 9 is out of range: the device has 1 alone (EINVAL)"),
    ] {
        let (context, scripted) = context(0);
        scripted.expect([refused(Errno::INVAL), device()]);
        assert_eq!(context.query_port(port_num).unwrap_err().to_string(), text);
    }
}

#[test]
fn a_gid_outside_the_table_names_its_length() {
    let (context, scripted) = context(0);
    scripted.expect([refused(Errno::INVAL), port()]);
    assert_eq!(
        context.query_gid_entry(1, 5000).unwrap_err().to_string(),
        "query_gid on rxe0: port 1 has no GID at index 5000: its table has 1024 entries (EINVAL)"
    );
}

#[test]
fn a_visit_of_gids_in_sysfs_reads_no_further_than_it_is_told() {
    let root = std::env::temp_dir().join(format!("verbs-kernel-gids-{}", std::process::id()));
    let gids = root.join("ports/1/gids");
    std::fs::create_dir_all(&gids).unwrap();
    for index in 0..4 {
        let last = if index == 1 { 0 } else { 0xa00 + index };
        std::fs::write(gids.join(index.to_string()), format!("{}{last:04x}\n", "0000:".repeat(7))).unwrap();
    }
    let (context, scripted) = context_at(&root, 0);
    let lacks = || refused(Errno::PROTONOSUPPORT);
    scripted.expect([lacks(), port(), lacks(), port()]);
    let visit = |until: u32| {
        let mut seen = Vec::new();
        let done = context.visit_gids(1, &mut |entry| {
            seen.push(entry.gid_index);
            if entry.gid_index == until { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        (seen, done.map_err(|error| error.errno))
    };
    assert_eq!(visit(2), (vec![0, 2], Ok(())), "the entry 1 is empty");
    // The port has 1,024 entries, most of them missing from this directory.
    assert_eq!(visit(9), (vec![0, 2, 3], Err(Errno::INVAL)));
    std::fs::remove_dir_all(root).unwrap();
}

#[test]
fn a_gid_of_a_port_that_does_not_exist_names_the_port() {
    let (context, scripted) = context(0);
    scripted.expect([refused(Errno::INVAL), refused(Errno::INVAL), device()]);
    assert_eq!(
        context.query_gid_entry(9, 0).unwrap_err().to_string(),
        "query_gid on rxe0: port_num 9 is out of range: the device has 1 alone (EINVAL)"
    );
}

#[test]
fn a_pkey_outside_the_table_names_its_length() {
    let (context, scripted) = context(0);
    scripted.expect([port()]);
    assert_eq!(
        context.query_pkey(1, 1).unwrap_err().to_string(),
        "query_pkey on rxe0: pkey index 1 is out of range: the only one is 0 (EINVAL)"
    );
}

#[test]
fn a_completion_queue_of_nothing_or_too_much_names_the_limit() {
    for (cqe, vector, text) in [
        (0, 0, "create_cq on rxe0: cqe 0 is below the least possible, 1 (EINVAL)"),
        (32_768, 0, "create_cq on rxe0: cqe 32768 exceeds the device's 32767 (EINVAL)"),
        (1, 2, "create_cq on rxe0: comp_vector 2 is out of range: the device has 0 to 1 (EINVAL)"),
        (1, 1, "create_cq on rxe0: Invalid argument (EINVAL)"),
    ] {
        let (context, scripted) = context(0);
        scripted.expect([device()]);
        let attr = CqInitAttr { comp_vector: vector, ..CqInitAttr::new(cqe) };
        assert_eq!(context.explain_create_cq(invalid("create_cq"), &attr).to_string(), text);
    }
}

#[test]
fn a_queue_pair_too_large_names_the_first_limit_it_passes() {
    let fits = QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    for (cap, text) in [
        (QpCap { max_send_wr: 2_000_000, ..fits }, "max_send_wr 2000000 exceeds the device's 1048576"),
        (QpCap { max_recv_wr: 1_048_577, ..fits }, "max_recv_wr 1048577 exceeds the device's 1048576"),
        (QpCap { max_send_sge: 33, ..fits }, "max_send_sge 33 exceeds the device's 32"),
        (QpCap { max_recv_sge: 99, ..fits }, "max_recv_sge 99 exceeds the device's 32"),
        (QpCap { max_inline_data: 513, ..fits }, "max_inline_data 513 exceeds the device's 512"),
        (fits, "Invalid argument"),
    ] {
        let (context, scripted) = context(0);
        scripted.expect([device()]);
        let attr = QpInitAttr { qp_type: QpType::RC, cap, sq_sig_all: false, user_handle: 0 };
        let error = context.explain_create_qp(invalid("create_qp"), &attr, || Some(512));
        assert_eq!(error.to_string(), format!("create_qp on rxe0: {text} (EINVAL)"));
    }
}

#[test]
fn a_transition_with_the_wrong_attributes_names_them_without_asking_the_kernel() {
    let (context, _) = context(0);
    let attr = QpAttr { qp_state: QpState::INIT, ..QpAttr::default() };
    let mask = QpAttrMask::STATE | QpAttrMask::PORT | QpAttrMask::QKEY;
    let error = context.explain_modify_qp(invalid("modify_qp"), QpType::RC, QpState::RESET, &attr, mask);
    assert_eq!(
        error.to_string(),
        "modify_qp on rxe0: RC RESET to INIT misses ACCESS_FLAGS, PKEY_INDEX and does not take QKEY (EINVAL)"
    );
    let attr = QpAttr { qp_state: QpState::RTS, ..QpAttr::default() };
    let error =
        context.explain_modify_qp(invalid("modify_qp"), QpType::RC, QpState::RESET, &attr, QpAttrMask::STATE);
    assert!(matches!(error.cause, Cause::IllegalTransition { from: QpState::RESET, to: QpState::RTS, .. }));
}

#[test]
fn a_source_gid_that_is_empty_is_named() {
    let (context, scripted) = context(0);
    scripted.expect([refused(Errno::NODATA)]);
    let grh = GlobalRoute { sgid_index: 7, ..GlobalRoute::default() };
    let attr = QpAttr {
        qp_state: QpState::RTR,
        path_mtu: Mtu::MTU_1024,
        ah_attr: AhAttr { grh: Some(grh), port_num: 1, ..AhAttr::default() },
        ..QpAttr::default()
    };
    let error = context.explain_modify_qp(invalid("modify_qp"), QpType::RC, QpState::INIT, &attr, TO_RTR);
    assert_eq!(error.to_string(), "modify_qp on rxe0: port 1 has no GID at index 7 (EINVAL)");
}

/// The attributes required for the transition to RTR.
const TO_RTR: QpAttrMask = QpAttrMask::STATE
    .union(QpAttrMask::AV)
    .union(QpAttrMask::PATH_MTU)
    .union(QpAttrMask::DEST_QPN)
    .union(QpAttrMask::RQ_PSN)
    .union(QpAttrMask::MAX_DEST_RD_ATOMIC)
    .union(QpAttrMask::MIN_RNR_TIMER);

fn to_rtr(ah_attr: AhAttr) -> QpAttr {
    QpAttr { qp_state: QpState::RTR, path_mtu: Mtu::MTU_1024, ah_attr, ..QpAttr::default() }
}

#[test]
fn a_path_without_a_grh_on_an_ethernet_port_is_named() {
    let text = "port 1 is Ethernet (RoCE), where every path needs a GRH: set ah_attr.grh, or make the path with \
                AhAttr::new (EINVAL)";
    let (context, scripted) = context(0);
    scripted.expect([port(), port()]);
    let attr = to_rtr(AhAttr::lid(1, 5));
    let error = context.explain_modify_qp(invalid("modify_qp"), QpType::RC, QpState::INIT, &attr, TO_RTR);
    assert_eq!(error.to_string(), format!("modify_qp on rxe0: {text}"));
    let error = context.explain_path(invalid("create_ah"), &attr.ah_attr);
    assert_eq!(error.to_string(), format!("create_ah on rxe0: {text}"));
}

#[test]
fn a_destination_that_the_kernel_did_not_reach_is_named_beside_the_source() {
    for (errno, dgid, text) in [
        (Errno::TIMEDOUT, "::ffff:10.9.9.77", "10.9.9.77 is not reached from 10.9.9.1: there is no route"),
        (Errno::NETUNREACH, "::ffff:192.0.2.1", "192.0.2.1 is not reached from 10.9.9.1: there is no route"),
        (
            Errno::INVAL,
            "2001:db8::9",
            "2001:db8::9 is not reached from 10.9.9.1, which is of another address family",
        ),
    ] {
        let dgid = dgid.parse().unwrap();
        let path = AhAttr {
            port_num: 1,
            grh: Some(GlobalRoute { dgid, ..GlobalRoute::default() }),
            ..AhAttr::default()
        };
        let own: Gid = "::ffff:10.9.9.1".parse().unwrap();
        let entry = || {
            let mut entry = IbUverbsGidEntry { port_num: 1, gid_type: 2, ..Default::default() };
            entry.gid.as_mut_bytes().copy_from_slice(&own.0);
            Expect::anything(Reply::outputs([entry.as_bytes()]))
        };
        let (context, scripted) = context(0);
        scripted.expect([entry(), entry()]);
        let error = context.explain_path(Error::new("create_ah", "rxe0", errno), &path);
        assert!(error.to_string().starts_with(&format!("create_ah on rxe0: {text}")), "{error}");
        let (failed, attr) = (Error::new("modify_qp", "rxe0", errno), to_rtr(path));
        let error = context.explain_modify_qp(failed, QpType::RC, QpState::INIT, &attr, TO_RTR);
        assert!(error.to_string().starts_with(&format!("modify_qp on rxe0: {text}")), "{error}");
    }
}

#[test]
fn the_port_of_a_path_is_told_from_the_port_of_a_queue_pair() {
    let grh = Some(GlobalRoute::default());
    for path in [AhAttr::lid(9, 5), AhAttr { grh, ..AhAttr::lid(9, 0) }] {
        let (context, scripted) = context(0);
        // First the GID table entry is queried, then the port, then the device.
        scripted.expect(path.grh.map(|_| refused(Errno::INVAL)));
        scripted.expect([refused(Errno::INVAL), device()]);
        let error =
            context.explain_modify_qp(invalid("modify_qp"), QpType::RC, QpState::INIT, &to_rtr(path), TO_RTR);
        assert_eq!(
            error.to_string(),
            "modify_qp on rxe0: ah_attr.port_num 9 is out of range: the device has 1 alone (EINVAL)"
        );
    }
}

#[test]
fn a_number_beyond_what_the_device_has_is_named() {
    let grh = Some(GlobalRoute::default());
    let attr = QpAttr { min_rnr_timer: 32, ..to_rtr(AhAttr { grh, ..AhAttr::default() }) };
    let (context, scripted) = context(0);
    scripted.expect([Expect::anything(Reply::ok())]);
    let error = context.explain_modify_qp(invalid("modify_qp"), QpType::RC, QpState::INIT, &attr, TO_RTR);
    assert_eq!(
        error.to_string(),
        "modify_qp on rxe0: min_rnr_timer 32 does not fit into 5 bits: the most is 31 (EINVAL)"
    );
}

#[test]
fn a_type_of_queue_pair_that_the_device_lacks_is_named() {
    let attr = QpInitAttr {
        qp_type: QpType::RAW_PACKET,
        cap: QpCap { max_inline_data: 1, ..QpCap::default() },
        sq_sig_all: false,
        user_handle: 0,
    };
    for (errno, name) in [(Errno::OPNOTSUPP, "EOPNOTSUPP"), (Errno::INVAL, "EINVAL")] {
        let (context, scripted) = context(0);
        scripted.expect((errno == Errno::INVAL).then(device));
        let error = context.explain_create_qp(Error::new("create_qp", "rxe0", errno), &attr, || Some(0));
        let text = "create_qp on rxe0: the device has no queue pairs of the type RAW_PACKET";
        assert_eq!(error.to_string(), format!("{text} ({name})"));
    }
}

#[test]
fn rights_that_a_region_cannot_have_are_named() {
    let exposed = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
    for (errno, access, text) in [
        (Errno::INVAL, exposed, "reg_mr on rxe0: REMOTE_WRITE needs LOCAL_WRITE as well (EINVAL)"),
        (
            Errno::OPNOTSUPP,
            exposed | AccessFlags::LOCAL_WRITE | AccessFlags::ON_DEMAND,
            "reg_mr on rxe0: the device does not have the rights ON_DEMAND (EOPNOTSUPP)",
        ),
    ] {
        let (context, _) = context(0);
        let error = Error::new("reg_mr", "rxe0", errno);
        assert_eq!(context.explain_reg_mr(error, None, Some(4096), access).to_string(), text);
    }
}

#[test]
fn persistence_is_named_only_where_nothing_else_explains_a_refused_region() {
    let invalid = Errno::INVAL;
    let shifted = "0x2010, the address in work requests, lies elsewhere in its page than 0x1000";
    let persistent = "FLUSH_PERSISTENT is a right to persistent memory, and this memory may not be";
    for (start, length, reason) in [
        (Some((0x1000, 0x2010)), Some(64), shifted),
        (Some((0x1000, 0x2000)), Some(0), "the memory has no bytes"),
        (Some((0x1010, 0x2010)), Some(64), persistent),
        (None, Some(64), persistent),
        (None, None, persistent),
    ] {
        let (context, scripted) = context(0);
        let mut caps = IbUverbsExQueryDeviceResp::default();
        caps.response_length = size_of_val(&caps) as u32;
        caps.device_cap_flags_ex = DeviceCapFlags::FLUSH_PERSISTENT.bits();
        scripted.expect([Expect::anything(Reply::outputs([caps.as_bytes()]))]);
        scripted.expect((reason == persistent).then(device));
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::FLUSH_PERSISTENT;
        let error = context.explain_reg_mr(Error::new("reg_mr", "rxe0", invalid), start, length, access);
        assert_eq!(error.to_string(), format!("reg_mr on rxe0: {reason} (EINVAL)"));
    }
}

#[test]
fn a_completion_queue_with_a_flag_that_the_driver_lacks_names_the_flag() {
    for (errno, cqe, text) in [
        (Errno::OPNOTSUPP, 1, "the device has no completion queues with IGNORE_OVERRUN (EOPNOTSUPP)"),
        (Errno::INVAL, 1, "the device has no completion queues with IGNORE_OVERRUN (EINVAL)"),
        (Errno::INVAL, 32_768, "cqe 32768 exceeds the device's 32767 (EINVAL)"),
    ] {
        let (context, scripted) = context(0);
        if errno == Errno::INVAL {
            scripted.expect([device()]);
        }
        let attr = CqInitAttr { flags: CqFlags::IGNORE_OVERRUN, ..CqInitAttr::new(cqe) };
        let error = context.explain_create_cq(Error::new("create_cq", "rxe0", errno), &attr);
        assert_eq!(error.to_string(), format!("create_cq on rxe0: {text}"));
    }
}

#[test]
fn a_size_below_the_completions_in_the_queue_names_their_number() {
    for (cqe, unread, text) in [
        (7, 8, "resize_cq on rxe0: cqe 7 is below the least possible, 8 (EINVAL)"),
        (0, 0, "resize_cq on rxe0: cqe 0 is below the least possible, 1 (EINVAL)"),
        (32_768, 0, "resize_cq on rxe0: cqe 32768 exceeds the device's 32767 (EINVAL)"),
        (9, 8, "resize_cq on rxe0: Invalid argument (EINVAL)"),
    ] {
        let (context, scripted) = context(0);
        scripted.expect([device()]);
        assert_eq!(context.explain_resize_cq(invalid("resize_cq"), cqe, unread).to_string(), text);
    }
}

#[test]
fn another_errno_is_left_alone() {
    let (context, _) = context(0);
    for errno in [Errno::PERM, Errno::FAULT, Errno::BUSY] {
        let error = Error::new("create_cq", "rxe0", errno);
        assert_eq!(context.explain_create_cq(error.clone(), &CqInitAttr::new(0)), error);
    }
}

#[test]
fn optional_rights_are_spared_a_kernel_that_does_not_know_them() {
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::RELAXED_ORDERING;
    for (core_support, sent) in [(0, "01000000"), (1, "01001000")] {
        let (context, scripted) = context(core_support);
        scripted.expect([Expect::anything(Reply::outputs([&3_u32.to_ne_bytes()]))]);
        let pd = KernelPd::alloc(&context).unwrap();
        assert_eq!(pd.handle(), 3);
        let command = format!(
            "ioctl 0.0: 0x2 u64 0x9, 0x0 in {}0010{}03000000{sent}, 0x1 out 12 bytes",
            "00".repeat(16),
            "00".repeat(14)
        );
        scripted.expect([Expect::command(&command, Reply::ok())]);
        #[allow(unsafe_code)]
        // SAFETY: a scripted kernel does not access the memory.
        unsafe { pd.reg_mr(core::ptr::null_mut(), 4096, 0, access) }.unwrap();
    }
}

#[test]
fn asynchronous_events_get_one_file_descriptor_when_they_are_first_needed() {
    let (context, scripted) = context(0);
    let events = crate::cmd::context::tests::event_file(libc::EFD_CLOEXEC);
    let fd = std::os::fd::IntoRawFd::into_raw_fd(events);
    scripted.expect([Expect::command("ioctl 16.0: 0x0 new fd", Reply::outputs([&fd.to_ne_bytes()]))]);
    let first = std::os::fd::AsRawFd::as_raw_fd(&context.async_fd().unwrap());
    let second = std::os::fd::AsRawFd::as_raw_fd(&context.async_fd().unwrap());
    assert_eq!((first, second), (fd, fd));
    // A completion channel must not be the same descriptor.
    scripted.expect([Expect::anything(Reply::outputs([&fd.to_ne_bytes()]))]);
    let error = context.create_comp_channel().unwrap_err();
    assert_eq!(error.cause, Cause::BadReply { what: "a file descriptor that the context has already" });
}

#[test]
fn a_region_knows_the_three_numbers_that_the_kernel_told() {
    let (context, scripted) = context(0);
    scripted.expect([
        Expect::anything(Reply::outputs([&3_u32.to_ne_bytes()])),
        Expect::anything(Reply::outputs([[0x11_u32, 0x22, 0x33].as_bytes()])),
    ]);
    let pd = KernelPd::alloc(&context).unwrap();
    let mr = reg_mr(&pd, 4096).unwrap();
    assert_eq!((mr.handle(), mr.lkey(), mr.rkey()), (0x11, 0x22, 0x33));
    scripted.expect([Expect::command("ioctl 7.1: 0x0 handle 17", Reply::ok())]);
    assert!(mr.destroy().is_ok());
    scripted.expect([Expect::command("ioctl 1.0: 0x0 handle 3", Reply::ok())]);
    assert!(pd.destroy().is_ok());
}

/// Registers `length` bytes with a scripted kernel, which does not access them.
#[allow(unsafe_code)]
fn reg_mr(pd: &KernelPd, length: usize) -> crate::Result<KernelMr> {
    // SAFETY: a scripted kernel does not access the memory.
    unsafe { pd.reg_mr(core::ptr::null_mut(), length, 0, AccessFlags::empty()) }
}

#[test]
fn a_registration_that_fails_names_the_limit_that_it_passed() {
    // Lowers the limit of this process for the duration of the test. Nothing else here locks
    // memory.
    let (soft, hard) = getrlimit(Resource::RLIMIT_MEMLOCK).unwrap();
    let limit = hard.min(8 << 20);
    setrlimit(Resource::RLIMIT_MEMLOCK, limit, hard).unwrap();
    let causes: Vec<_> = [
        (Errno::NOMEM, limit + 1, None),
        (Errno::NOMEM, limit, Some(device())),
        (Errno::PERM, limit + 1, None),
        (Errno::INVAL, (1 << 40) + 1, Some(device())),
        (Errno::INVAL, 1 << 40, Some(device())),
    ]
    .into_iter()
    .map(|(errno, length, device)| {
        let (context, scripted) = context(0);
        scripted.expect([Expect::anything(Reply::outputs([&3_u32.to_ne_bytes()])), refused(errno)]);
        scripted.expect(device);
        let pd = KernelPd::alloc(&context).unwrap();
        let error = reg_mr(&pd, length as usize).unwrap_err();
        assert_eq!((error.verb, error.errno), ("reg_mr", errno));
        error.cause
    })
    .collect();
    setrlimit(Resource::RLIMIT_MEMLOCK, soft, hard).unwrap();
    assert_eq!(
        causes,
        [
            Cause::Memlock { limit, asked: limit + 1 },
            Cause::Shortage { what: "memory regions", max: 0 },
            Cause::Unknown,
            Cause::Limit { name: "length", asked: (1 << 40) + 1, min: 0, max: 1 << 40 },
            Cause::Unknown,
        ]
    );
}

/// Changes a region's rights with a scripted kernel.
#[allow(unsafe_code)]
fn rereg(mr: &mut KernelMr, access: AccessFlags) -> crate::Result<()> {
    // SAFETY: a scripted kernel does not access the memory.
    unsafe { mr.rereg(None, None, Some(access)) }
}

#[test]
fn a_changed_region_has_new_keys_and_one_that_was_not_changed_its_old_ones() {
    let (context, scripted) = context(0);
    let pd = KernelPd::import(&context, 3);
    scripted.expect([Expect::anything(Reply::outputs([[0x11_u32, 0x22, 0x33].as_bytes()]))]);
    let mut mr = reg_mr(&pd, 4096).unwrap();
    scripted.expect([refused(Errno::INVAL)]);
    let error = rereg(&mut mr, AccessFlags::REMOTE_WRITE).unwrap_err();
    assert_eq!(error.to_string(), "rereg_mr on rxe0: REMOTE_WRITE needs LOCAL_WRITE as well (EINVAL)");
    assert_eq!((mr.handle(), mr.lkey(), mr.rkey()), (0x11, 0x22, 0x33));
    // Optional rights are removed here too.
    let text = format!(
        "ioctl 0.0: 0x2 u64 0xb, 0x0 in {}1100000004000000{}01000000, 0x1 out 8 bytes",
        "00".repeat(8),
        "00".repeat(28)
    );
    scripted.expect([Expect::command(&text, Reply::outputs([[0x44_u32, 0x55].as_bytes()]))]);
    rereg(&mut mr, AccessFlags::LOCAL_WRITE | AccessFlags::RELAXED_ORDERING).unwrap();
    assert_eq!((mr.handle(), mr.lkey(), mr.rkey()), (0x11, 0x44, 0x55));
}

#[test]
fn an_imported_object_is_left_to_its_owner() {
    let (context, scripted) = context(0);
    let pd = KernelPd::import(&context, 3);
    let (lkey, rkey, length) = (0x22_u32.to_ne_bytes(), 0x33_u32.to_ne_bytes(), 4096_u64.to_ne_bytes());
    let text =
        "ioctl 7.3: 0x0 handle 17, 0x1 out 4 bytes, 0x2 out 4 bytes, 0x3 out 8 bytes, 0x4? out 8 bytes";
    scripted.expect([Expect::command(text, Reply::outputs([&lkey, &rkey, &length]))]);
    let (mr, attr) = pd.import_mr(17).unwrap();
    assert_eq!((mr.handle(), mr.lkey(), mr.rkey(), attr.length), (17, 0x22, 0x33, 4096));
    // No command is sent.
    assert!(mr.destroy().is_ok());
    assert!(pd.destroy().is_ok());
}

#[test]
fn a_dma_handle_is_freed_by_its_handle() {
    let (context, scripted) = context(0);
    scripted.expect([
        Expect::command("ioctl 17.0: 0x0 new handle, 0x1 u32 0x1", Reply::outputs([&5_u32.to_ne_bytes()])),
        Expect::command("ioctl 17.1: 0x0 handle 5", Reply::Errno(Errno::BUSY)),
        Expect::command("ioctl 17.1: 0x0 handle 5", Reply::ok()),
    ]);
    let dmah = KernelDmah::alloc(&context, &DmahAttr { cpu_id: Some(1), ..DmahAttr::default() }).unwrap();
    let (dmah, error) = dmah.destroy().unwrap_err();
    assert_eq!((dmah.handle(), error.errno), (5, Errno::BUSY));
    assert!(dmah.destroy().is_ok());
}

#[test]
#[allow(unsafe_code)]
fn a_shared_context_is_queried_and_not_made_again() {
    let query = "ioctl 0.4: 0x0 out 4 bytes, 0x1 out 8 bytes";
    let scripted =
        Scripted::new([Expect::command(query, Reply::outputs([&2_u32.to_ne_bytes(), &1_u64.to_ne_bytes()]))]);
    // SAFETY: as in `context`.
    let uverbs = unsafe { Uverbs::new(Box::new(scripted), 18, "rxe0") };
    let imported =
        KernelContext::import_over(uverbs, Path::new("/nonexistent"), |_| String::new(), DriverAttrs::none());
    assert_eq!(imported.unwrap().num_comp_vectors(), 2);
}

#[test]
fn the_speed_of_a_port_is_computed_where_the_kernel_has_none() {
    let port = |active_width, active_speed_ex| {
        let mut reply = IbUverbsQueryPortRespEx { active_speed_ex, ..Default::default() };
        (reply.legacy_resp.active_width, reply.legacy_resp.active_speed) = (active_width, 1);
        Expect::anything(Reply::outputs([reply.as_bytes()]))
    };
    let (context, scripted) = context(0);
    scripted.expect([Expect::anything(Reply::outputs([&8005_u64.to_ne_bytes()]))]);
    assert_eq!(context.query_port_speed(1), Ok(8005));
    // 4X EDR, 1X SDR in the older attribute, and a width without a name.
    scripted.expect([refused(Errno::PROTONOSUPPORT), port(2, 32), port(1, 0), port(3, 32)]);
    assert_eq!(context.query_port_speed(1), Ok(1000));
    assert_eq!(context.query_port_speed(1), Ok(25));
    let error = context.query_port_speed(1).unwrap_err();
    assert_eq!((error.verb, error.errno), ("query_port_speed", Errno::OPNOTSUPP));
}
