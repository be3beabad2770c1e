//! `negative`: rejections, with their reasons.
//!
//! Cases whose result is the status of a work request are in
//! [`verbs_conformance::failures`].
//!
//! # Safety
//! Cases build device lists that discovery did not return. Only the kernel's devices are opened.
//! The lists leave out the altered devices.
#![allow(unsafe_code)]

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;

use nix::sys::resource::{Resource, setrlimit};
use nix::sys::stat::{Mode, SFlag, mknod};
use verbs::state::{Init, Rts};
use verbs::{
    Cause, CqInit, DeviceList, Errno, Error, HandleError, PostError, PostReason, QpAttr, QpAttrMask, QpCap,
    QpState, QpType, RecvWr, RtsAttr, SendFlags, SendOp, SendWr, Sge, SkipReason, Source,
};
use verbs_c_programs::compare::{same, same_but_for_reasons};
use verbs_core::discovery::{self, Roots};
use verbs_fixtures::fabric::{
    self, Arena, PORT, Pair, Remote, Shape, create_qp, eventually, init_attr, is_mlx5, is_rxe, open,
    post_recv, post_send, rtr_attr, signalled, under_test, wait, wait_for,
};
use verbs_harness::cases;
use verbs_harness::refuse;
use verbs_harness::runner::{Case, CaseResult, Stop, fail};
use verbs_harness::sandbox::{become_nobody, cover, private_mounts};
use verbs_harness::tools::{DEVICE, Maker, refused, run};

const SUITE: &str = "negative";

/// Returns the suite's cases. The last case removes the device and adds it again.
pub fn cases() -> Vec<Case> {
    let mut cases = cases!(
        SUITE,
        an_unknown_driver_is_skipped_with_the_reason,
        an_abi_out_of_range_is_skipped_with_the_reason,
        without_netlink_sysfs_tells_of_the_same_device,
        a_missing_node_is_skipped_with_its_path,
        a_node_without_permission_is_an_error_with_its_path,
        a_node_of_another_device_is_not_used,
        a_region_beyond_the_memlock_limit_names_the_limit,
    );
    cases.extend(of_any_device());
    cases.extend(cases!(
        SUITE,
        without_rdma_in_the_kernel_there_is_no_device_and_the_reason_is_told,
        tools_say_the_same_of_a_missing_node,
        tools_say_the_same_without_permission,
        without_any_device_the_list_is_empty_and_the_tools_say_the_same,
    ));
    cases
}

/// Returns the part of the suite that needs nothing from the kernel and therefore also runs on a
/// provider's own devices.
pub fn of_any_device() -> Vec<Case> {
    cases!(
        SUITE,
        an_unknown_name_is_answered_with_those_that_are_there,
        ports_0_and_9_are_refused_with_those_that_there_are,
        a_gid_index_out_of_range_is_refused_with_the_table_length,
        a_source_gid_that_does_not_exist_is_named,
        completion_queues_of_0_and_of_one_too_many_are_refused,
        a_queue_pair_beyond_a_limit_names_it,
        an_illegal_transition_names_the_states,
        a_transition_without_its_attributes_names_them,
        a_port_that_does_not_exist_is_named_by_the_transition,
        posting_on_a_full_queue_is_refused_and_completions_make_room,
        posting_what_does_not_fit_is_refused_and_the_queue_is_as_before,
        posting_in_a_state_that_does_not_take_it_is_refused,
    )
}

fn infiniband() -> &'static Path {
    Path::new("/dev/infiniband")
}

fn error_of<T>(result: Result<T, Error>, what: &str) -> CaseResult<Error> {
    match result {
        Ok(_) => fail(format_args!("{what} was accepted")),
        Err(error) => Ok(error),
    }
}

/// Checks that an error is `EINVAL` and names the exceeded limit.
fn is_limit(error: &Error, name: &str, asked: u64) {
    match error.cause {
        Cause::Limit { name: told, asked: told_asked, min, max } => {
            assert_eq!((told, told_asked), (name, asked), "{error}");
            assert!(asked < min || asked > max, "{error}");
        }
        _ => panic!("no limit is named: {error:?}"),
    }
    let text = error.to_string();
    assert!(
        text.contains(under_test()) && text.contains(name) && text.contains(&asked.to_string()),
        "{text}"
    );
}

fn an_unknown_name_is_answered_with_those_that_are_there() -> CaseResult {
    let error = error_of(verbs::devices()?.find("nosuch"), "nosuch")?;
    assert_eq!(error.errno, Errno::NODEV);
    let names: Vec<_> = verbs::devices()?.iter().map(|device| device.name().to_owned()).collect();
    assert!(names.iter().any(|name| name == under_test()), "{names:?}");
    let expected = format!("open_device: there is no RDMA device nosuch, only {} (ENODEV)", names.join(", "));
    assert_eq!(error.to_string(), expected);
    Ok(())
}

/// Returns the device list after a change to the first discovered device.
fn list_if(change: impl FnOnce(&mut verbs::DeviceParts)) -> CaseResult<DeviceList> {
    let mut found = discovery::discover()?;
    let mut parts = found.devices[0].parts().expect("discovery finds devices of the kernel");
    change(&mut parts);
    // SAFETY: the lists below leave the device out, so it is never opened.
    found.devices[0] = unsafe { verbs::DeviceInfo::from_parts(parts) };
    Ok(DeviceList::from_found(found, &[]))
}

fn only_skipped(list: &DeviceList) -> CaseResult<&SkipReason> {
    assert!(list.is_empty());
    match list.skipped() {
        [skipped] if skipped.name == DEVICE => Ok(&skipped.reason),
        other => fail(format_args!("{other:?}")),
    }
}

fn an_unknown_driver_is_skipped_with_the_reason() -> CaseResult {
    let list = list_if(|info| {
        info.driver_id = info.driver_id.map(|mut id| {
            id.0 = 4242;
            id
        });
    })?;
    assert!(matches!(only_skipped(&list)?, SkipReason::NoProvider { driver_id: Some(id) } if id.0 == 4242));
    let text = error_of(list.first(), "a device without a provider")?.to_string();
    assert!(text.contains("no provider") && text.contains("4242") && text.contains(DEVICE), "{text}");
    // Without a driver id, the name decides. This name matches no provider.
    let list = list_if(|info| {
        info.driver_id = None;
        info.name = "ghost".to_owned();
    })?;
    let [skipped] = list.skipped() else { return fail(format_args!("{list:?}")) };
    assert!(matches!(skipped.reason, SkipReason::NoProvider { driver_id: None }) && list.is_empty());
    Ok(())
}

fn an_abi_out_of_range_is_skipped_with_the_reason() -> CaseResult {
    for (abi, side) in [(99, "update this program"), (0, "update the kernel")] {
        let list = list_if(|info| info.abi_version = abi)?;
        let expected = SkipReason::AbiOutOfRange { abi, provider: "rxe", min: 1, max: 2 };
        assert_eq!(*only_skipped(&list)?, expected);
        let text = error_of(list.find(DEVICE), "a device of another ABI")?.to_string();
        assert!(text.contains(&format!("ABI version {abi}")) && text.contains(side), "{text}");
    }
    Ok(())
}

fn without_netlink_sysfs_tells_of_the_same_device() -> CaseResult {
    let told = discovery::discover()?;
    // SAFETY: the files are the kernel's.
    let found = unsafe { discovery::discover_at(&Roots::system(), Err(Errno::PROTONOSUPPORT)) }?;
    assert_eq!(found.source, Source::Sysfs);
    let ([by_netlink], [by_sysfs]) = (&told.devices[..], &found.devices[..]) else {
        return fail(format_args!("{told:?}, {found:?}"));
    };
    // The parts reported only by netlink are missing; the rest is equal.
    let expected = by_netlink.parts().map(|all| verbs::DeviceParts {
        index: None,
        driver_id: None,
        phys_port_cnt: None,
        ..all
    });
    assert_eq!(by_sysfs.parts(), expected);
    let context = DeviceList::from_found(found, &[]).find(DEVICE)?.open()?;
    Pair::new(&context, &Shape::default())?;
    Ok(())
}

fn a_missing_node_is_skipped_with_its_path() -> CaseResult {
    private_mounts()?;
    cover(infiniband())?;
    let list = verbs::devices()?;
    let path = infiniband().join("uverbs0");
    assert_eq!(*only_skipped(&list)?, SkipReason::NodeMissing { path, errno: Errno::NOENT });
    let text = error_of(list.find(DEVICE), "a device without a node")?.to_string();
    assert!(text.contains("/dev/infiniband/uverbs0 is missing"), "{text}");
    Ok(())
}

/// Creates a device node with the device's number plus `offset`, in a `/dev/infiniband` that only
/// this process sees.
fn own_node(mode: u32, offset: u64) -> CaseResult {
    let rdev = fs::metadata(infiniband().join("uverbs0"))?.rdev();
    private_mounts()?;
    cover(infiniband())?;
    fs::set_permissions(infiniband(), fs::Permissions::from_mode(0o755))?;
    let path = infiniband().join("uverbs0");
    mknod(&path, SFlag::S_IFCHR, Mode::from_bits_truncate(mode), rdev + offset)?;
    // Undoes the effect of the umask.
    fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
    // Closes the second path to the device.
    let by_number = Path::new("/dev/char");
    if by_number.exists() {
        cover(by_number)?;
    }
    Ok(())
}

fn a_node_without_permission_is_an_error_with_its_path() -> CaseResult {
    own_node(0o600, 0)?;
    become_nobody()?;
    let list = verbs::devices()?;
    let error = error_of(list.find(DEVICE)?.open(), "a device without permission")?;
    assert_eq!(error.errno, Errno::ACCESS, "{error}");
    let Cause::File { path, hint } = &error.cause else { return fail(format_args!("{error:?}")) };
    assert_eq!(&**path, "/dev/infiniband/uverbs0");
    assert!(!hint.is_empty(), "no hint");
    let text = error.to_string();
    assert!(text.contains("/dev/infiniband/uverbs0") && text.contains("EACCES"), "{text}");
    Ok(())
}

fn a_node_of_another_device_is_not_used() -> CaseResult {
    // No device has this number. Opening the node would fail with a different error.
    own_node(0o666, 1)?;
    let error = error_of(verbs::devices()?.find(DEVICE)?.open(), "a node of another device")?;
    assert!(error.to_string().contains("/dev/"), "{error}");
    assert!(matches!(error.cause, Cause::File { .. }), "{error:?}");
    Ok(())
}

fn ports_0_and_9_are_refused_with_those_that_there_are() -> CaseResult {
    let context = open()?;
    assert_eq!(context.query_port(PORT)?.gid_tbl_len > 0, context.query_device()?.phys_port_cnt == 1);
    for port_num in [0, 2, 9, 255] {
        let error = error_of(context.query_port(port_num), "a port that does not exist")?;
        assert_eq!(error.errno, Errno::INVAL);
        is_limit(&error, "port_num", port_num.into());
        for error in [
            error_of(context.query_gid_entry(port_num, 0), "a GID of a port that does not exist")?,
            error_of(context.query_pkey(port_num, 0).map(drop), "a key of a port that does not exist")?,
        ] {
            is_limit(&error, "port_num", port_num.into());
        }
    }
    Ok(())
}

fn a_gid_index_out_of_range_is_refused_with_the_table_length() -> CaseResult {
    let context = open()?;
    let len = context.query_port(PORT)?.gid_tbl_len;
    // rxe's table is far longer than its contents.
    if is_rxe()? {
        assert!(context.query_gid_entry(PORT, len - 1)?.is_none(), "the last entry is empty");
        assert!(context.query_gid(PORT, len - 1)?.is_zero());
    }
    for index in [len, len + 1, u32::MAX] {
        let error = error_of(context.query_gid(PORT, index), "an index out of range")?;
        assert_eq!(error.errno, Errno::INVAL);
        let expected = Cause::Gid { port_num: PORT, index, table_len: len };
        assert_eq!(error.cause, expected, "{error}");
        assert!(error.to_string().contains(&format!("has {len} entries")), "{error}");
    }
    is_limit(&error_of(context.query_pkey(PORT, 1000), "a key index out of range")?, "pkey index", 1000);
    Ok(())
}

fn a_source_gid_that_does_not_exist_is_named() -> CaseResult {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let mut attr = fabric::path(&context.find_gid(PORT)?);
    attr.grh = attr.grh.map(|grh| verbs::GlobalRoute { sgid_index: 200, ..grh });
    let names_it = |error: &Error| {
        assert!(matches!(error.cause, Cause::Gid { port_num: PORT, index: 200, .. }), "{error:?}");
        assert!(error.to_string().contains("GID at index 200"), "{error}");
    };
    names_it(&error_of(pd.create_ah(&attr).map(drop), "an address handle from nowhere")?);
    let cq = context.create_cq(&CqInit::new(4))?;
    let shape = Shape::default();
    let qp = create_qp(&pd, &cq, &shape)?.to_init(&init_attr())?;
    let nobody = Remote { qp_num: 1, psn: 0 };
    let rtr = verbs::RtrAttr { ah_attr: attr, ..rtr_attr(&context, &shape, nobody)? };
    let Err(HandleError { handle: qp, error }) = qp.to_rtr(&rtr) else {
        return fail("a connection from nowhere was accepted");
    };
    names_it(&error);
    // The error returned the queue pair unchanged.
    qp.to_rtr(&rtr_attr(&context, &shape, nobody)?)?;
    Ok(())
}

fn a_region_beyond_the_memlock_limit_names_the_limit() -> CaseResult {
    const LIMIT: u64 = 64 << 10;
    const LENGTH: usize = 1 << 20;
    let context = open()?;
    let pd = context.alloc_pd()?;
    setrlimit(Resource::RLIMIT_MEMLOCK, LIMIT, LIMIT)?;
    become_nobody()?;
    let error = error_of(pd.alloc_buf(LENGTH).map(drop), "a region beyond the limit")?;
    assert_eq!(error.errno, Errno::NOMEM);
    assert_eq!(error.cause, Cause::Memlock { limit: LIMIT, asked: LENGTH as u64 });
    let text = error.to_string();
    assert!(text.contains("RLIMIT_MEMLOCK is 65536") && text.contains("1048576"), "{text}");
    pd.alloc_buf(4096)?;
    Ok(())
}

fn completion_queues_of_0_and_of_one_too_many_are_refused() -> CaseResult {
    let context = open()?;
    let max = context.query_device()?.max_cqe;
    for cqe in [0, max + 1, u32::MAX] {
        let error = error_of(context.create_cq(&CqInit::new(cqe)).map(drop), "such a completion queue")?;
        is_limit(&error, "cqe", cqe.into());
    }
    assert!(context.create_cq(&CqInit::new(max))?.cqe() >= max);
    let vectors = context.num_comp_vectors();
    let init = CqInit { comp_vector: vectors, ..CqInit::new(1) };
    is_limit(
        &error_of(context.create_cq(&init).map(drop), "a vector that does not exist")?,
        "comp_vector",
        vectors.into(),
    );
    Ok(())
}

fn a_queue_pair_beyond_a_limit_names_it() -> CaseResult {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(&CqInit::new(4))?;
    let device = context.query_device()?;
    let cap = QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    // ConnectX reports the lowest limit among its queues and queue pair types, so `max + 1` may
    // succeed.
    let beyond = |max: u32| if is_mlx5().unwrap_or(false) { 1 << 20 } else { max + 1 };
    let (wr, sge) = (beyond(device.max_qp_wr), beyond(device.max_sge));
    const INLINE: u32 = 100_000;
    for (name, asked, cap) in [
        ("max_send_wr", wr, QpCap { max_send_wr: wr, ..cap }),
        ("max_recv_wr", wr, QpCap { max_recv_wr: wr, ..cap }),
        ("max_send_sge", sge, QpCap { max_send_sge: sge, ..cap }),
        ("max_recv_sge", sge, QpCap { max_recv_sge: sge, ..cap }),
        ("max_inline_data", INLINE, QpCap { max_inline_data: INLINE, ..cap }),
        ("max_send_wr", u32::MAX, QpCap { max_send_wr: u32::MAX, ..cap }),
    ] {
        for qp_type in [QpType::RC, QpType::UC, QpType::UD] {
            let shape = Shape { cap, ..Shape::for_type(qp_type) };
            let error = error_of(create_qp(&pd, &cq, &shape).map(drop), name)?;
            is_limit(&error, name, asked.into());
            assert!(error.to_string().starts_with(&format!("create_qp on {}: ", under_test())), "{error}");
        }
    }
    // The limit itself is available.
    let sge = device.max_sge;
    let cap = QpCap { max_send_sge: sge, max_recv_sge: sge, ..cap };
    let given = create_qp(&pd, &cq, &Shape { cap, ..Shape::default() })?.cap();
    assert!(given.max_send_sge >= sge && given.max_recv_sge >= sge, "{given:?}");
    Ok(())
}

fn an_illegal_transition_names_the_states() -> CaseResult {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(&CqInit::new(4))?;
    let qp = create_qp(&pd, &cq, &Shape::default())?;
    let Err(HandleError { handle: qp, error }) = qp.modify_to::<Rts>(&QpAttr::default(), QpAttrMask::empty())
    else {
        return fail("RESET to RTS was accepted");
    };
    let (from, to) = (QpState::RESET, QpState::RTS);
    assert_eq!(error.cause, Cause::IllegalTransition { qp_type: QpType::RC, from, to });
    assert!(error.to_string().contains("RC queue pair cannot go from RESET to RTS"), "{error}");
    assert_eq!(qp.state()?, QpState::RESET);
    Ok(())
}

fn a_transition_without_its_attributes_names_them() -> CaseResult {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(&CqInit::new(4))?;
    let qp = create_qp(&pd, &cq, &Shape::default())?;
    let attr = QpAttr { port_num: PORT, ..QpAttr::default() };
    let Err(HandleError { handle: qp, error }) =
        qp.modify_to::<Init>(&attr, QpAttrMask::PKEY_INDEX | QpAttrMask::QKEY)
    else {
        return fail("RESET to INIT without a port was accepted");
    };
    assert_eq!(
        error.to_string(),
        format!(
            "modify_qp on {}: RC RESET to INIT misses ACCESS_FLAGS, PORT and does not take QKEY (EINVAL)",
            under_test()
        )
    );
    // The error returned the queue pair unchanged.
    qp.to_init(&init_attr())?;
    Ok(())
}

fn a_port_that_does_not_exist_is_named_by_the_transition() -> CaseResult {
    let context = open()?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(&CqInit::new(4))?;
    for port_num in [0, 9] {
        let qp = create_qp(&pd, &cq, &Shape::default())?;
        let Err(HandleError { error, .. }) = qp.to_init(&verbs::InitAttr { port_num, ..init_attr() }) else {
            return fail(format_args!("port {port_num} was accepted"));
        };
        is_limit(&error, "port_num", port_num.into());
    }
    Ok(())
}

fn posting_on_a_full_queue_is_refused_and_completions_make_room() -> CaseResult {
    let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    // The peer is gone and the timeout is infinite, so nothing completes.
    let rts = RtsAttr { timeout: 0, ..Shape::default().rts };
    let pair = Pair::new(&open()?, &Shape { cap, rts, ..Shape::default() })?;
    let (mut qp, mut cq) = (pair.a.qp, pair.a.cq);
    pair.b.qp.close()?;
    let arena = Arena::new(&pair.pd, 64)?;
    let (sge, into) = ([arena.sge(0..8)], [arena.sge(8..16)]);
    let fill = |post: &mut dyn FnMut(u64) -> Result<(), PostError>| {
        let mut posted = 0;
        let refused = loop {
            match post(posted) {
                Ok(()) => posted += 1,
                Err(error) => break error,
            }
            assert!(posted < 1000, "a queue of 4 took a thousand");
        };
        assert_eq!((refused.accepted, refused.reason), (0, PostReason::QueueFull));
        assert!(posted >= 4 && refused.to_string().contains("full"), "{refused} after {posted}");
        posted
    };
    let sent = fill(&mut |n| post_send(&mut qp, &[signalled(n, SendOp::Send, &sge)]));
    let received = fill(&mut |n| post_recv(&mut qp, &[RecvWr { wr_id: 1000 + n, sge: &into }]));
    let mut qp = qp.to_error()?;
    let mut ids: Vec<_> = wait(&mut cq, (sent + received) as usize)?.iter().map(|wc| wc.wr_id).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..sent).chain(1000..1000 + received).collect::<Vec<_>>());
    post_recv(&mut qp, &[RecvWr { wr_id: 2000, sge: &into }])?;
    post_send(&mut qp, &[signalled(3000, SendOp::Send, &sge)])?;
    Ok(())
}

fn posting_what_does_not_fit_is_refused_and_the_queue_is_as_before() -> CaseResult {
    let mut pair = Pair::new(&open()?, &Shape::default())?;
    let arena = Arena::new(&pair.pd, 4096)?;
    let cap = pair.a.qp.cap();
    let (remote_addr, rkey) = (arena.addr() + 8, arena.rkey());
    let (max_sge, max_inline) = (cap.max_send_sge, cap.max_inline_data);
    let many = vec![arena.sge(0..1); max_sge as usize + 1];
    let long = [arena.sge(0..max_inline as usize + 1)];
    let huge = [Sge { length: u32::MAX, ..long[0] }];
    let (four, eight, sixteen) = ([arena.sge(0..4)], [arena.sge(0..8)], [arena.sge(0..16)]);
    let add = SendOp::AtomicFetchAndAdd { remote_addr, rkey, add: 1 };
    let odd = SendOp::AtomicCmpAndSwp { remote_addr: remote_addr + 4, rkey, compare: 0, swap: 1 };
    let inline = SendFlags::INLINE;
    let given = u64::from(max_inline) + 1;
    for (op, sge, flags, reason) in [
        (
            SendOp::Send,
            &many[..],
            SendFlags::empty(),
            PostReason::TooManySge { given: max_sge as usize + 1, max: max_sge },
        ),
        (SendOp::Send, &long, inline, PostReason::InlineTooLong { given, max: max_inline }),
        (SendOp::Send, &huge, SendFlags::empty(), PostReason::MessageTooLong { given: u32::MAX.into() }),
        (add, &four, SendFlags::empty(), PostReason::AtomicLength { given: 4 }),
        (add, &sixteen, SendFlags::empty(), PostReason::AtomicLength { given: 16 }),
        (odd, &eight, SendFlags::empty(), PostReason::AtomicMisaligned { remote_addr: remote_addr + 4 }),
        (
            SendOp::RdmaRead { remote_addr, rkey },
            &eight,
            inline,
            PostReason::UnsupportedFlags { op: verbs::OpKind::RDMA_READ, flags: inline },
        ),
    ] {
        let wr = SendWr { wr_id: 1, op, sge, flags };
        let error = match post_send(&mut pair.a.qp, &[wr]) {
            Err(error) => error,
            Ok(()) => return fail(format_args!("{wr:?} was accepted")),
        };
        assert_eq!((error.accepted, error.reason), (0, reason));
        // The queue accepts the next request as before.
        post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 2, sge: &[arena.sge(100..108)] }])?;
        post_send(&mut pair.a.qp, &[signalled(3, SendOp::Send, &eight)])?;
        wait_for(&mut pair.a.cq, 3, verbs::WcOpcode::SEND)?;
        wait_for(&mut pair.b.cq, 2, verbs::WcOpcode::RECV)?;
    }
    let max = cap.max_recv_sge;
    let many = vec![arena.sge(0..1); max as usize + 1];
    let error = match post_recv(&mut pair.b.qp, &[RecvWr { wr_id: 1, sge: &many }]) {
        Err(error) => error,
        Ok(()) => return fail("a receive of too many elements was accepted"),
    };
    assert_eq!(error.reason, PostReason::TooManySge { given: max as usize + 1, max });
    Ok(())
}

fn posting_in_a_state_that_does_not_take_it_is_refused() -> CaseResult {
    let mut pair = Pair::new(&open()?, &Shape::default())?;
    let arena = Arena::new(&pair.pd, 64)?;
    let sge = [arena.sge(0..8)];
    // The change is not visible in the type, only in the queue.
    let reset = QpAttr { qp_state: QpState::RESET, ..QpAttr::default() };
    pair.a.qp.modify(&reset, QpAttrMask::STATE)?;
    let error = post_send(&mut pair.a.qp, &[signalled(1, SendOp::Send, &sge)]).map_err(|error| error.reason);
    assert_eq!(error, Err(PostReason::InvalidState));
    let recv = RecvWr { wr_id: 1, sge: &sge };
    let error = post_recv(&mut pair.a.qp, &[recv]).map_err(|error| error.reason);
    assert_eq!(error, Err(PostReason::InvalidState));
    Ok(())
}

/// Runs both makers' tools without a device. Both must print the same and exit with the same
/// status.
fn tools_agree() -> CaseResult {
    for (tool, args) in TOOLS_WITHOUT_DEVICES {
        let theirs = run(Maker::Theirs.tool(tool)?.args(*args))?;
        let mut ours = run(Maker::Ours.tool(tool)?.args(*args))?;
        // The C rping exits with the errno that perror(3) leaves, which need not be the error.
        if *tool == "rping" && theirs.stderr.contains("event channel") && !ours.status.success() {
            ours.status = theirs.status;
        }
        same(tool, &ours, &theirs).map_err(|stop| stop.context(format_args!("{tool} {args:?}")))?;
    }
    Ok(())
}

fn without_rdma_in_the_kernel_there_is_no_device_and_the_reason_is_told() -> CaseResult {
    private_mounts()?;
    cover(Path::new("/sys/class"))?;
    let (list, counts) = refuse::run(refuse::Mode::Netlink, verbs::devices)?;
    let list = list?;
    assert!(counts.refused > 0, "{counts}");
    assert!(list.is_empty() && list.skipped().is_empty() && list.source() == Source::None, "{list:?}");
    let netlink = list.netlink_error().map(ToString::to_string);
    assert!(netlink.is_some_and(|text| text.contains("EPROTONOSUPPORT")), "{list:?}");
    assert_eq!(error_of(list.first(), "no device")?.errno, Errno::NODEV);
    for (tool, args) in TOOLS_WITHOUT_DEVICES {
        let ask = |maker: Maker| -> CaseResult<_> {
            let mut command = maker.tool(tool)?;
            run(&mut refused(refuse::Mode::Netlink, command.args(*args))?)
        };
        let (theirs, mut ours) = (ask(Maker::Theirs)?, ask(Maker::Ours)?);
        let reason = ours.stderr.contains("has no RDMA loaded");
        assert!(reason, "{tool} does not say why: {ours:?}");
        // The counts differ, because each run has its own filter.
        let is_count = |line: &&str| !line.starts_with("refuse: ");
        let said =
            |text: &str| text.lines().filter(is_count).map(|line| format!("{line}\n")).collect::<String>();
        ours.stderr = said(&ours.stderr);
        // The wrapper starts a tool by its path, which the tool prints as its name.
        let path = |maker: Maker| Ok::<_, Stop>(maker.tool(tool)?.get_program().display().to_string());
        let [our_path, their_path] = [path(Maker::Ours)?, path(Maker::Theirs)?];
        same_but_for_reasons(&our_path, &ours.stderr, &said(&theirs.stderr))?;
        let their_stdout = theirs.stdout.replace(&their_path, &our_path);
        assert_eq!((ours.status, ours.stdout), (theirs.status, their_stdout), "{tool}");
    }
    Ok(())
}

/// Programs, with their arguments, to compare with rdma-core's tools on a machine without devices.
pub const TOOLS_WITHOUT_DEVICES: &[(&str, &[&str])] = &[
    ("ibv_asyncwatch", &[]),
    ("ibv_asyncwatch", &["-d", DEVICE]),
    ("ibv_devices", &[]),
    ("ibv_devinfo", &[]),
    ("ibv_devinfo", &["-l"]),
    ("ibv_devinfo", &["-d", DEVICE]),
    ("ibv_rc_pingpong", &["-p", "1", "127.0.0.1"]),
    ("ibv_rc_pingpong", &["-d", DEVICE, "-p", "1", "127.0.0.1"]),
    ("ibv_uc_pingpong", &["-d", DEVICE, "-p", "1", "127.0.0.1"]),
    ("ibv_ud_pingpong", &["-d", DEVICE, "-p", "1", "127.0.0.1"]),
    ("ibv_srq_pingpong", &["-d", DEVICE, "-p", "1", "127.0.0.1"]),
    ("ibv_xsrq_pingpong", &["-p", "1", "127.0.0.1"]),
    ("ibv_xsrq_pingpong", &["-d", DEVICE, "-p", "1", "127.0.0.1"]),
    ("rdma_client", &["-p", "1"]),
    ("rdma_server", &[]),
    ("rdma_xclient", &["-p", "1", "-c", "x"]),
    ("rdma_xserver", &["-c", "x"]),
    ("rping", &["-s"]),
    ("rping", &["-c", "-a", "127.0.0.1", "-p", "1"]),
    ("mckey", &["-m", "239.9.8.4"]),
    ("ucmatose", &["-s", "127.0.0.1"]),
    ("udaddy", &["-s", "127.0.0.1"]),
];

fn tools_say_the_same_of_a_missing_node() -> CaseResult {
    private_mounts()?;
    cover(infiniband())?;
    tools_agree()
}

fn tools_say_the_same_without_permission() -> CaseResult {
    own_node(0o600, 0)?;
    become_nobody()?;
    tools_agree()
}

fn rdma_link(args: &[&str]) -> CaseResult {
    let done = run(Command::new("rdma").arg("link").args(args))?;
    if done.status.success() { Ok(()) } else { fail(format_args!("rdma link {args:?}: {done:?}")) }
}

fn without_any_device_the_list_is_empty_and_the_tools_say_the_same() -> CaseResult {
    rdma_link(&["delete", DEVICE])?;
    let seen = without_a_device();
    // Restores the device even after a failure, because other cases need it.
    rdma_link(&["add", DEVICE, "type", "rxe", "netdev", "veth0"])?;
    eventually("the device is back, with its address", || {
        open().is_ok_and(|context| context.find_gid(PORT).is_ok_and(|gid| gid.gid.to_ipv4().is_some()))
    })?;
    seen
}

fn without_a_device() -> CaseResult {
    let list = verbs::devices()?;
    assert!(list.is_empty() && list.skipped().is_empty(), "{list:?}");
    let text = error_of(list.first(), "no device")?.to_string();
    let hint = "VERBS_SOFT=auto in the environment makes one in software (soft0)";
    assert_eq!(text, format!("open_device: there is no RDMA device; {hint} (ENODEV)"));
    let text = error_of(list.find(DEVICE), "no device")?.to_string();
    assert_eq!(text, format!("open_device: there is no RDMA device {DEVICE}; {hint} (ENODEV)"));
    match tools_agree() {
        // The checks above still count if rdma-core's tools are missing.
        Err(Stop::Skipped(_)) => Ok(()),
        other => other,
    }
}
