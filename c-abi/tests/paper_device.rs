//! Rare objects, through the symbols and tables that C programs use, on a device that supports them
//! all: the in-process device from the tests of `libibverbs-rs`.
//!
//! # Safety
//! The tests pass live objects and memory of the stated sizes.
#![allow(unsafe_code)]

mod abi;
#[path = "../../libibverbs-rs/tests/common/mod.rs"]
mod common;

use core::ffi::{c_int, c_void};
use core::mem::zeroed;
use core::ptr::{null, null_mut};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::thread;
use std::time::Instant;

use ibverbs_c::c::*;
use libc::{EBUSY, EFAULT, EINVAL, ENOENT, EOPNOTSUPP};
use verbs::provider::EventsRead;
use verbs::{DeviceInfo, Driver, Guid, NamedProvider, OwnDevice, Skipped};
use verbs_core::provider::TAG_LIST;
use verbs_core::types::{
    CqModerationCaps, DeviceCapFlags, OdpCaps, OdpGeneralCaps, OdpTransportCaps, PacketPacingCaps,
    PciAtomicCaps, PciAtomicOpSize, RawPacketCaps, RssCaps, TmCapFlags, TmCaps, TsoCaps,
};

use self::abi::*;
use self::common::{Kind, Paper, World};

static DEVICES: Mutex<Vec<DeviceInfo>> = Mutex::new(Vec::new());

fn devices() -> Vec<Result<DeviceInfo, Skipped>> {
    DEVICES.lock().unwrap().iter().cloned().map(Ok).collect()
}

/// Runs a case with a newly opened device and checks that no objects remain.
fn on_paper(name: &str, case: impl FnOnce(&Arc<World>, *mut ibv_context)) {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| verbs::register(Driver { devices, ..Paper::DRIVER }));
    let (world, _) = common::world(name);
    let info = DeviceInfo::brought(name, Paper::DRIVER.driver_id, Guid(1), OwnDevice::new(()));
    DEVICES.lock().unwrap().push(info);
    with_device(|found| found == name, |context| case(&world, context));
    world.assert_empty();
}

/// A protection domain, a completion queue, and a queue pair.
struct Setup {
    pd: *mut ibv_pd,
    cq: *mut ibv_cq,
    qp: *mut ibv_qp,
}

impl Setup {
    unsafe fn new(context: *mut ibv_context) -> Self {
        // SAFETY: the context is open; zeroed integers and null pointers are valid.
        unsafe {
            let pd = ibv_alloc_pd(context);
            let cq = ibv_create_cq(context, 8, null_mut(), null_mut(), 0);
            let mut init: ibv_qp_init_attr = zeroed();
            (init.send_cq, init.recv_cq, init.qp_type) = (cq, cq, IBV_QPT_RC);
            let qp = ibv_create_qp(pd, &raw mut init);
            assert!(!qp.is_null(), "{}", errno());
            Self { pd, cq, qp }
        }
    }

    unsafe fn destroy(self) {
        // SAFETY: the objects are live.
        unsafe {
            assert_eq!(ibv_destroy_qp(self.qp), 0);
            assert_eq!(ibv_destroy_cq(self.cq), 0);
            assert_eq!(ibv_dealloc_pd(self.pd), 0);
        }
    }
}

#[test]
fn every_extended_attribute_of_a_device_has_its_place() {
    on_paper("attributes", |world, context| {
        let query = table(context).query_device_ex.unwrap();
        // SAFETY: zeroed integers are valid.
        let mut attr: ibv_device_attr_ex = unsafe { zeroed() };
        let mut query = || {
            // SAFETY: the pointer refers to a struct of this size.
            let result = unsafe { query(context, null(), &raw mut attr, size_of_val(&attr)) };
            (result, attr)
        };
        assert_eq!(query().0, EOPNOTSUPP, "verbs.h then makes the older query");
        world.state().extended = Some(|attr| {
            attr.odp_caps = OdpCaps {
                general_caps: OdpGeneralCaps::from_bits_retain(1 << 40),
                rc_odp_caps: OdpTransportCaps::from_bits_retain(2),
                uc_odp_caps: OdpTransportCaps::from_bits_retain(3),
                ud_odp_caps: OdpTransportCaps::from_bits_retain(4),
            };
            attr.completion_timestamp_mask = 5 << 32;
            attr.hca_core_clock = 6 << 32;
            attr.device_cap_flags_ex = DeviceCapFlags::from_bits_retain(7 << 32);
            attr.tso_caps = TsoCaps { max_tso: 8, supported_qpts: 9 };
            attr.rss_caps = RssCaps {
                supported_qpts: 10,
                max_rwq_indirection_tables: 11,
                max_rwq_indirection_table_size: 12,
                rx_hash_fields_mask: 13 << 32,
                rx_hash_function: 14,
            };
            attr.max_wq_type_rq = 15;
            attr.packet_pacing_caps =
                PacketPacingCaps { qp_rate_limit_min: 16, qp_rate_limit_max: 17, supported_qpts: 18 };
            attr.raw_packet_caps = RawPacketCaps::from_bits_retain(19);
            attr.tm_caps = TmCaps {
                max_rndv_hdr_size: 20,
                max_num_tags: 21,
                flags: TmCapFlags::from_bits_retain(22),
                max_ops: 23,
                max_sge: 24,
            };
            attr.cq_mod_caps = CqModerationCaps { max_cq_count: 25, max_cq_period: 26 };
            attr.max_dm_size = 27 << 32;
            attr.pci_atomic_caps = PciAtomicCaps {
                fetch_add: PciAtomicOpSize::from_bits_retain(28),
                swap: PciAtomicOpSize::from_bits_retain(29),
                compare_swap: PciAtomicOpSize::from_bits_retain(30),
            };
            attr.xrc_odp_caps = OdpTransportCaps::from_bits_retain(31);
            attr.phys_port_cnt_ex = 32;
        });
        let (result, attr) = query();
        assert_eq!((result, attr.orig_attr.node_guid), (0, 1_u64.to_be()));
        let odp = attr.odp_caps.per_transport_caps;
        assert_eq!(attr.odp_caps.general_caps, 1 << 40);
        assert_eq!((odp.rc_odp_caps, odp.uc_odp_caps, odp.ud_odp_caps), (2, 3, 4));
        assert_eq!((attr.completion_timestamp_mask, attr.hca_core_clock), (5 << 32, 6 << 32));
        assert_eq!(attr.device_cap_flags_ex, 7 << 32);
        assert_eq!((attr.tso_caps.max_tso, attr.tso_caps.supported_qpts), (8, 9));
        let rss = attr.rss_caps;
        assert_eq!((rss.supported_qpts, rss.max_rwq_indirection_tables), (10, 11));
        assert_eq!((rss.max_rwq_indirection_table_size, rss.rx_hash_function), (12, 14));
        assert_eq!((rss.rx_hash_fields_mask, attr.max_wq_type_rq), (13 << 32, 15));
        let pacing = attr.packet_pacing_caps;
        assert_eq!((pacing.qp_rate_limit_min, pacing.qp_rate_limit_max), (16, 17));
        assert_eq!((pacing.supported_qpts, attr.raw_packet_caps), (18, 19));
        let tm = attr.tm_caps;
        assert_eq!((tm.max_rndv_hdr_size, tm.max_num_tags, tm.flags), (20, 21, 22));
        assert_eq!((tm.max_ops, tm.max_sge), (23, 24));
        assert_eq!((attr.cq_mod_caps.max_cq_count, attr.cq_mod_caps.max_cq_period), (25, 26));
        let atomics = attr.pci_atomic_caps;
        assert_eq!((atomics.fetch_add, atomics.swap, atomics.compare_swap), (28, 29, 30));
        assert_eq!((attr.max_dm_size, attr.xrc_odp_caps, attr.phys_port_cnt_ex), (27 << 32, 31, 32));
    });
}

/// The variable set in the process that also has a soft device.
const TWO_PROVIDERS: &str = "VERBS_SOFT";

#[test]
fn an_object_with_the_context_of_another_provider_is_not_found() {
    const NAME: &str = "an_object_with_the_context_of_another_provider_is_not_found";
    if std::env::var_os(TWO_PROVIDERS).is_none() {
        let mut again = Command::new(std::env::current_exe().unwrap());
        let output = again.args(["--exact", NAME, "--nocapture"]).env(TWO_PROVIDERS, "auto").output();
        let output = output.unwrap();
        let has_passed = String::from_utf8_lossy(&output.stdout).contains("1 passed");
        assert!(output.status.success() && has_passed, "{output:?}");
        return;
    }
    on_paper("first", |_, paper| {
        with_device(
            |found| found.starts_with("soft"),
            |soft| {
                for (own, other) in [(paper, soft), (soft, paper)] {
                    // SAFETY: the objects are live, and their contexts are restored.
                    unsafe { objects_are_not_found(own, other) };
                }
            },
        );
    });
}

unsafe fn objects_are_not_found(own: *mut ibv_context, other: *mut ibv_context) {
    // SAFETY: the contexts are open; zeroed integers and null pointers are valid.
    unsafe {
        let (setup, theirs) = (Setup::new(own), Setup::new(other));
        let Setup { pd, cq, qp } = setup;
        let mut memory = vec![0_u8; 4096];
        let mr = ibv_reg_mr(pd, memory.as_mut_ptr().cast(), 4096, 0);
        let mut srq_init: ibv_srq_init_attr = zeroed();
        (srq_init.attr.max_wr, srq_init.attr.max_sge) = (4, 1);
        let srq = ibv_create_srq(pd, &raw mut srq_init);
        assert!(!mr.is_null() && !srq.is_null(), "{}", errno());
        let changed = |context: *mut *mut ibv_context, call: &dyn Fn() -> c_int| {
            context.write(other);
            let result = call();
            context.write(own);
            result
        };
        let mut attr: ibv_qp_attr = zeroed();
        attr.qp_state = IBV_QPS_ERR;
        let attr = &raw mut attr;
        assert_eq!(changed(&raw mut (*pd).context, &|| ibv_dealloc_pd(pd)), ENOENT);
        assert_eq!(changed(&raw mut (*cq).context, &|| ibv_resize_cq(cq, 20)), ENOENT);
        assert_eq!(changed(&raw mut (*cq).context, &|| ibv_destroy_cq(cq)), ENOENT);
        let mask = IBV_QP_STATE as c_int;
        assert_eq!(changed(&raw mut (*qp).context, &|| ibv_modify_qp(qp, attr, mask)), ENOENT);
        assert_eq!(changed(&raw mut (*qp).context, &|| ibv_destroy_qp(qp)), ENOENT);
        assert_eq!(changed(&raw mut (*mr).context, &|| ibv_dereg_mr(mr)), ENOENT);
        assert_eq!(changed(&raw mut (*srq).context, &|| ibv_destroy_srq(srq)), ENOENT);
        // Objects of two providers in one call.
        let mut init: ibv_qp_init_attr = zeroed();
        (init.send_cq, init.recv_cq, init.qp_type) = (cq, theirs.cq, IBV_QPT_RC);
        assert_null(ibv_create_qp(pd, &raw mut init), ENOENT, "a completion queue of another provider");
        (init.recv_cq, init.srq) = (cq, srq);
        assert_null(ibv_create_qp(theirs.pd, &raw mut init), ENOENT, "queues of another provider");
        assert_eq!((ibv_destroy_srq(srq), ibv_dereg_mr(mr)), (0, 0));
        setup.destroy();
        theirs.destroy();
    }
}

#[test]
fn a_device_without_a_clock_has_no_value_in_the_mask() {
    on_paper("clock", |_, context| {
        let raw_clock = libc::timespec { tv_sec: 7, tv_nsec: 7 };
        let mut values = ibv_values_ex { comp_mask: IBV_VALUES_MASK_RAW_CLOCK, raw_clock };
        // SAFETY: the pointer refers to a struct.
        let result = unsafe { table(context).query_rt_values.unwrap()(context, &raw mut values) };
        assert_eq!((result, values.comp_mask, values.raw_clock.tv_nsec), (EOPNOTSUPP, 0, 7));
    });
}

#[test]
fn device_memory_is_copied_inside_of_its_bounds_and_registered_from_zero() {
    on_paper("dm", |world, context| {
        let t = table(context);
        // SAFETY: the objects are live; the copies have the stated lengths.
        unsafe {
            let mut attr = ibv_alloc_dm_attr { length: 16, log_align_req: 0, comp_mask: 0 };
            let dm = t.alloc_dm.unwrap()(context, &raw mut attr);
            assert!(!dm.is_null(), "{}", errno());
            assert_eq!(((*dm).context, (*dm).comp_mask), (context, IBV_DM_MASK_HANDLE));
            let (to, from) = ((*dm).memcpy_to_dm.unwrap(), (*dm).memcpy_from_dm.unwrap());
            let (bytes, mut back) = (*b"12345678", [0_u8; 8]);
            let (host, back_at): (*const c_void, *mut c_void) =
                (bytes.as_ptr().cast(), back.as_mut_ptr().cast());
            assert_eq!(to(dm, 8, host, 8), 0);
            assert_eq!(from(back_at, dm, 7, 8), 0);
            assert_eq!(back, *b"\x001234567");
            for (offset, length) in [(9, 8), (17, 0), (u64::MAX, 1), (0, usize::MAX)] {
                assert_eq!(to(dm, offset, host, length), EFAULT, "{offset} {length}");
                assert_eq!(from(back_at, dm, offset, length), EFAULT, "{offset} {length}");
            }
            assert_eq!(back, *b"\x001234567", "as it was");
            assert_eq!((to(dm, 16, null_mut(), 0), from(null_mut(), dm, 16, 0)), (0, 0));
            assert_eq!((to(dm, 0, null_mut(), 1), from(null_mut(), dm, 0, 1)), (EINVAL, EINVAL));

            let pd = ibv_alloc_pd(context);
            let reg = t.reg_dm_mr.unwrap();
            assert_null(reg(pd, dm, 0, 8, IBV_ACCESS_LOCAL_WRITE as _), EINVAL, "not from zero");
            let mr = reg(pd, dm, 4, 8, (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED) as _);
            assert!(!mr.is_null(), "{}", errno());
            assert_eq!(((*mr).pd, (*mr).context, (*mr).addr, (*mr).length), (pd, context, null_mut(), 8));
            world.state().refuse.insert(Kind::Dm, verbs::Errno::BUSY);
            assert_eq!((t.free_dm.unwrap()(dm), errno()), (EBUSY, EBUSY), "still usable");
            assert_eq!(from(back_at, dm, 8, 8), 0);
            assert_eq!(back, bytes);
            world.allow(Kind::Dm);
            assert_eq!(ibv_dereg_mr(mr), 0);
            assert_eq!((ibv_dm_export_dmabuf_fd(dm), errno()), (-1, EOPNOTSUPP));
            assert_eq!(t.free_dm.unwrap()(dm), 0);
            assert_eq!(ibv_dealloc_pd(pd), 0);

            let mut hints: ibv_dmah_init_attr = zeroed();
            let dmah = ibv_alloc_dmah(context, &raw mut hints);
            assert_eq!(world.census(), [Kind::Dmah]);
            assert_eq!(ibv_dealloc_dmah(dmah), 0);
        }
    });
}

#[test]
fn a_work_queue_takes_receives_and_changes_its_state() {
    on_paper("wq", |world, context| {
        let t = table(context);
        // SAFETY: the objects are live; zeroed integers and null pointers are valid.
        unsafe {
            let setup = Setup::new(context);
            let mut attr: ibv_wq_init_attr = zeroed();
            (attr.pd, attr.cq, attr.max_wr, attr.max_sge) = (setup.pd, setup.cq, 2, 1);
            attr.wq_context = context.cast();
            let wq = t.create_wq.unwrap()(context, &raw mut attr);
            assert!(!wq.is_null(), "{}", errno());
            assert_eq!(((*wq).wq_context, (*wq).pd, (*wq).cq), (context.cast(), setup.pd, setup.cq));
            assert_eq!(((*wq).wq_num, (*wq).state), ((*wq).handle + 100, IBV_WQS_RESET));
            assert_eq!(world.user_handle(Kind::Wq), wq as u64, "events carry the address");

            let mut sge = ibv_sge { addr: 0x1000, length: 4, lkey: 9 };
            let mut wrs = [1, 2, 3].map(|wr_id| ibv_recv_wr {
                wr_id,
                next: null_mut(),
                sg_list: &raw mut sge,
                num_sge: 1,
            });
            (wrs[0].next, wrs[1].next) = (&raw mut wrs[1], &raw mut wrs[2]);
            let mut bad = null_mut();
            let post = (*wq).post_recv.unwrap();
            assert_ne!(post(wq, &raw mut wrs[0], &raw mut bad), 0, "room for two");
            assert_eq!(bad, &raw mut wrs[2]);
            let posted: Vec<_> = world.state().requests.iter().map(|wr| (wr.wr_id, wr.is_recv)).collect();
            assert_eq!(posted, [(1, true), (2, true)]);

            let modify = t.modify_wq.unwrap();
            let attr_mask = IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_CURR_STATE;
            let mut change = ibv_wq_attr {
                attr_mask,
                wq_state: IBV_WQS_RDY,
                curr_wq_state: IBV_WQS_ERR,
                flags: 0,
                flags_mask: 0,
            };
            assert_eq!((modify(wq, &raw mut change), (*wq).state), (EINVAL, IBV_WQS_RESET));
            change.attr_mask = IBV_WQ_ATTR_STATE;
            assert_eq!((modify(wq, &raw mut change), (*wq).state), (0, IBV_WQS_RDY));
            change.attr_mask = IBV_WQ_ATTR_RESERVED;
            assert_eq!(modify(wq, &raw mut change), EINVAL);

            let mut wqs = [wq, wq];
            let mut entries =
                ibv_rwq_ind_table_init_attr { log_ind_tbl_size: 1, ind_tbl: wqs.as_mut_ptr(), comp_mask: 0 };
            let rwq = t.create_rwq_ind_table.unwrap()(context, &raw mut entries);
            assert!(!rwq.is_null(), "{}", errno());
            assert_eq!((*rwq).ind_tbl_num, (*rwq).ind_tbl_handle + 200);
            let destroy = t.destroy_rwq_ind_table.unwrap();
            (*rwq).ind_tbl_handle += 1;
            assert_eq!(destroy(rwq), ENOENT);
            (*rwq).ind_tbl_handle -= 1;
            assert_eq!(destroy(rwq), 0);

            let destroy = t.destroy_wq.unwrap();
            (*wq).handle += 1;
            assert_eq!((destroy(wq), modify(wq, &raw mut change)), (ENOENT, EINVAL));
            (*wq).handle -= 1;
            world.refuse(Kind::Wq, verbs::Errno::BUSY);
            assert_eq!(destroy(wq), EBUSY);
            world.allow(Kind::Wq);
            change.attr_mask = IBV_WQ_ATTR_STATE;
            assert_eq!(modify(wq, &raw mut change), 0, "still usable");
            assert_eq!(destroy(wq), 0);
            setup.destroy();
        }
    });
}

/// A pointer to pass to another thread.
#[derive(Clone, Copy)]
struct SendPtr<T>(*mut T);

// SAFETY: the test's threads use the object as the manual pages allow.
unsafe impl<T> Send for SendPtr<T> {}

#[test]
fn the_end_of_a_work_queue_waits_for_an_event_that_was_read() {
    on_paper("wq-event", |world, context| {
        let t = table(context);
        // SAFETY: the objects are live; zeroed integers and null pointers are valid.
        unsafe {
            let setup = Setup::new(context);
            let mut attr: ibv_wq_init_attr = zeroed();
            (attr.pd, attr.cq, attr.max_wr, attr.max_sge) = (setup.pd, setup.cq, 1, 1);
            let wq = t.create_wq.unwrap()(context, &raw mut attr);
            world.raise_async(wq as u64, IBV_EVENT_WQ_FATAL);
            let mut event: ibv_async_event = zeroed();
            assert_eq!(ibv_get_async_event(context, &raw mut event), 0);
            assert_eq!((event.event_type, event.element.wq), (IBV_EVENT_WQ_FATAL, wq));
            world.state().events_read.insert(Kind::Wq, EventsRead { comp: 0, asynchronous: 1 });

            let (shared, is_over) = (SendPtr(wq), Arc::new(AtomicBool::new(false)));
            let (destroy, over) = (t.destroy_wq.unwrap(), Arc::clone(&is_over));
            let thread = thread::spawn(move || {
                let shared = shared;
                let result = destroy(shared.0);
                over.store(true, Ordering::SeqCst);
                result
            });
            let end = Instant::now() + common::PATIENCE;
            while !world.state().destroyed.iter().any(|(kind, _)| *kind == Kind::Wq) {
                assert!(Instant::now() < end, "the device does not destroy the queue");
                thread::yield_now();
            }
            assert_eq!(((*wq).events_completed, is_over.load(Ordering::SeqCst)), (0, false));
            // An event handler may use the queue until it acknowledges the event.
            let mut change: ibv_wq_attr = zeroed();
            (change.attr_mask, change.wq_state) = (IBV_WQ_ATTR_STATE, IBV_WQS_RDY);
            assert_eq!(t.modify_wq.unwrap()(wq, &raw mut change), EINVAL);
            let mut wr: ibv_recv_wr = zeroed();
            let mut bad = null_mut();
            assert_eq!((*wq).post_recv.unwrap()(wq, &raw mut wr, &raw mut bad), 0);
            assert_eq!(t.destroy_wq.unwrap()(wq), EINVAL);
            ibv_ack_async_event(&raw mut event);
            assert_eq!(common::within("the end of the queue", move || thread.join().unwrap()), 0);
            setup.destroy();
        }
    });
}

#[test]
fn an_event_of_a_tag_list_is_an_error_of_its_shared_receive_queue() {
    on_paper("tag-list-event", |world, context| {
        // SAFETY: the objects are live; zeroed integers and null pointers are valid.
        unsafe {
            let setup = Setup::new(context);
            let mut init: ibv_srq_init_attr_ex = zeroed();
            init.comp_mask =
                IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM;
            (init.srq_type, init.pd, init.cq) = (IBV_SRQT_TM, setup.pd, setup.cq);
            (init.attr.max_wr, init.attr.max_sge) = (4, 1);
            init.tm_cap = ibv_tm_cap { max_num_tags: 4, max_ops: 4 };
            let srq = table(context).create_srq_ex.unwrap()(context, &raw mut init);
            assert!(!srq.is_null(), "{}", errno());
            let user_handle = world.user_handle(Kind::Srq);
            assert_eq!(user_handle, srq as u64, "events carry the address");

            // The program does not know the queue pair of the tag list.
            world.raise_async(user_handle | TAG_LIST, IBV_EVENT_QP_FATAL);
            let mut event: ibv_async_event = zeroed();
            assert_eq!(ibv_get_async_event(context, &raw mut event), 0);
            assert_eq!((event.event_type, event.element.srq), (IBV_EVENT_SRQ_ERR, srq));
            ibv_ack_async_event(&raw mut event);
            assert_eq!((*srq).events_completed, 1);
            assert_eq!(ibv_destroy_srq(srq), 0);
            setup.destroy();
        }
    });
}

/// A rule followed by an action and counters, packed as programs pack them.
#[repr(C, packed)]
struct Packed {
    attr: ibv_flow_attr,
    drop: ibv_flow_spec_action_drop,
    action: ibv_flow_spec_action_handle,
    counters: ibv_flow_spec_counter_action,
}

#[test]
fn a_flow_rule_uses_the_action_and_the_counters_that_it_names() {
    on_paper("flow", |world, context| {
        let t = table(context);
        // SAFETY: the objects are live; zeroed integers and null pointers are valid.
        unsafe {
            let setup = Setup::new(context);
            let mut esp: ibv_flow_action_esp_attr = zeroed();
            let action = t.create_flow_action_esp.unwrap()(context, &raw mut esp);
            let mut none = ibv_counters_init_attr { comp_mask: 0 };
            let counters = t.create_counters.unwrap()(context, &raw mut none);
            assert!(!action.is_null() && !counters.is_null(), "{}", errno());
            assert_eq!(t.modify_flow_action_esp.unwrap()(action, &raw mut esp), 0);
            esp.comp_mask = 2;
            assert_eq!(t.modify_flow_action_esp.unwrap()(action, &raw mut esp), EOPNOTSUPP);

            let mut rule = Packed {
                attr: ibv_flow_attr { num_of_specs: 3, port: 1, ..zeroed() },
                drop: ibv_flow_spec_action_drop { type_: IBV_FLOW_SPEC_ACTION_DROP, size: 8 },
                action: ibv_flow_spec_action_handle { type_: IBV_FLOW_SPEC_ACTION_HANDLE, size: 16, action },
                counters: ibv_flow_spec_counter_action {
                    type_: IBV_FLOW_SPEC_ACTION_COUNT,
                    size: 16,
                    counters,
                },
            };
            let create = t.ibv_create_flow.unwrap();
            let flow = create(setup.qp, (&raw mut rule).cast());
            assert!(!flow.is_null(), "{}", errno());
            assert_eq!(((*flow).context, (*flow).comp_mask), (context, 0));
            let uses = world.state().live[&(*flow).handle].uses.clone();
            let kinds: Vec<_> = uses.iter().map(|handle| world.state().live[handle].kind).collect();
            assert_eq!(kinds, [Kind::Action, Kind::Counters, Kind::Qp]);
            rule.drop.size = 12;
            assert_null(create(setup.qp, (&raw mut rule).cast()), EINVAL, "a wrong size");

            let destroy = t.ibv_destroy_flow.unwrap();
            (*flow).handle += 100;
            assert_eq!(destroy(flow), ENOENT);
            (*flow).handle -= 100;
            assert_eq!(destroy(flow), 0);
            assert_eq!(t.destroy_flow_action.unwrap()(action), 0);
            assert_eq!(t.destroy_counters.unwrap()(counters), 0);
            setup.destroy();
        }
    });
}

#[test]
fn counters_of_rules_are_read_by_index() {
    on_paper("counters", |_, context| {
        let t = table(context);
        // SAFETY: the objects are live; the array has the stated number of values.
        unsafe {
            let mut none = ibv_counters_init_attr { comp_mask: 0 };
            let counters = t.create_counters.unwrap()(context, &raw mut none);
            let attach = t.attach_counters_point_flow.unwrap();
            for (counter_desc, index) in [(IBV_COUNTER_PACKETS, 1), (IBV_COUNTER_BYTES, 0)] {
                let mut attr = ibv_counter_attach_attr { counter_desc, index, comp_mask: 0 };
                assert_eq!(attach(counters, &raw mut attr, null_mut()), 0);
                attr.comp_mask = 1;
                assert_eq!(attach(counters, &raw mut attr, null_mut()), EOPNOTSUPP);
            }
            let read = t.read_counters.unwrap();
            let mut values = [7; 3];
            assert_eq!(read(counters, values.as_mut_ptr(), 2, 0), 0);
            assert_eq!(values, [11, 1, 7], "no more than asked");
            assert_eq!(read(counters, null_mut(), 2, 0), EINVAL);
            assert_eq!(read(counters, values.as_mut_ptr(), u32::MAX, 0), EINVAL);
            assert_eq!(t.destroy_counters.unwrap()(counters), 0);

            none.comp_mask = 1;
            assert_null(t.create_counters.unwrap()(context, &raw mut none), EOPNOTSUPP, "a mask");
        }
    });
}

#[test]
fn a_completion_counter_has_two_values_and_counts_for_queue_pairs() {
    on_paper("comp-cntr", |_, context| {
        // SAFETY: the objects are live; zeroed integers are valid.
        unsafe {
            let mut attr: ibv_comp_cntr_init_attr = zeroed();
            let cntr = ibv_create_comp_cntr(context, &raw mut attr);
            assert!(!cntr.is_null(), "{}", errno());
            let read = || {
                let (mut completions, mut errors) = (0, 0);
                assert_eq!(ibv_read_comp_cntr(cntr, &raw mut completions), 0);
                assert_eq!(ibv_read_err_comp_cntr(cntr, &raw mut errors), 0);
                (completions, errors)
            };
            assert_eq!((ibv_set_comp_cntr(cntr, 5), ibv_set_err_comp_cntr(cntr, 7)), (0, 0));
            assert_eq!(read(), (5, 7));
            assert_eq!((ibv_inc_comp_cntr(cntr, 10), ibv_inc_err_comp_cntr(cntr, 20)), (0, 0));
            assert_eq!(read(), (15, 27));

            let setup = Setup::new(context);
            let attach = |comp_mask, op_mask| {
                let mut attr = ibv_qp_attach_comp_cntr_attr { comp_mask, op_mask };
                ibv_qp_attach_comp_cntr(setup.qp, cntr, &raw mut attr)
            };
            assert_eq!((attach(1, 1), attach(0, 1 << 6)), (EINVAL, EINVAL));
            // The paper device adds the operations to the error count.
            assert_eq!(attach(0, IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE), 0);
            assert_eq!(read(), (15, 27 + 16));
            assert_eq!(ibv_destroy_qp(setup.qp), 0);

            (*cntr).handle += 100;
            assert_eq!((ibv_set_comp_cntr(cntr, 1), ibv_destroy_comp_cntr(cntr)), (ENOENT, ENOENT));
            assert_eq!(ibv_read_comp_cntr(cntr, null_mut()), EINVAL);
            (*cntr).handle -= 100;
            assert_eq!(ibv_destroy_comp_cntr(cntr), 0);
            assert_eq!((ibv_destroy_cq(setup.cq), ibv_dealloc_pd(setup.pd)), (0, 0));

            attr.flags = 1;
            assert_null(ibv_create_comp_cntr(context, &raw mut attr), EOPNOTSUPP, "a flag");
        }
    });
}
