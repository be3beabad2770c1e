//! Queries and rare objects on a soft device, through the symbols and tables that C programs use.
//!
//! Each test restarts itself in a process that has the device, because an environment variable
//! requests the device.
//!
//! # Safety
//! The tests call this library's functions under their C names, with the types of verbs.h. They
//! pass live objects and memory of the stated sizes.
#![allow(unsafe_code)]

mod abi;

use core::ffi::c_int;
use core::mem::zeroed;
use core::ptr::{null, null_mut};
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use ibverbs_c::c::mlx5dv::*;
use ibverbs_c::c::*;
use libc::{EFAULT, EINVAL, ENODATA, ENOENT, EOPNOTSUPP, ssize_t};

use self::abi::*;

/// Runs a test's case with an open soft device, in a separate process.
fn on_soft<F: FnOnce(*mut ibv_context)>(case: F) {
    if std::env::var_os("VERBS_SOFT").is_none() {
        // The case is a closure of the test: `soft_device::test::{{closure}}`.
        again_with_soft(core::any::type_name::<F>().split("::").nth(1).unwrap());
        return;
    }
    with_device(|name| name.starts_with("soft"), case);
}

/// Runs a test again in a process that has a soft device. Returns its stderr output.
fn again_with_soft(test: &str) -> String {
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", test, "--nocapture"]).env("VERBS_SOFT", "auto");
    let output = again.env("VERBS_LOG_LEVEL", "1").output().unwrap();
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    let has_passed = output.status.success() && out.contains("1 passed");
    assert!(has_passed, "{test} with a soft device: {}\n{out}\n{err}", output.status);
    err.into_owned()
}

#[test]
fn a_device_query_writes_as_many_bytes_as_the_program_knows() {
    on_soft(|context| {
        const ORIG: usize = size_of::<ibv_device_attr>();
        const FULL: usize = size_of::<ibv_device_attr_ex>();
        let query = table(context).query_device_ex.unwrap();
        let sized = |size| {
            filled(|attr| {
                // SAFETY: the memory has `size` bytes.
                assert_eq!(unsafe { query(context, null(), attr, size) }, 0, "{size}");
            })
        };
        let all = sized(FULL);
        assert_ne!(all[0], 0, "a version of the firmware");
        let orig = filled(|attr| {
            // SAFETY: the pointer refers to a struct.
            assert_eq!(unsafe { ibv_query_device(context, attr) }, 0);
        });
        assert!(untouched(&orig[ORIG..]));
        for size in [ORIG, ORIG + 8, FULL - 8, FULL, FULL + 40] {
            let bytes = sized(size);
            let known = size.min(FULL);
            assert_eq!(bytes[..known], all[..known], "{size}");
            assert!(bytes[known..size].iter().all(|byte| *byte == 0), "zeros for fields of later releases");
            assert!(untouched(&bytes[size..]), "{size}");
            assert_eq!(bytes[..ORIG], orig[..ORIG], "{size}");
        }
        let refused = filled(|attr| {
            let input = ibv_query_device_ex_input { comp_mask: 1 };
            // SAFETY: the memory has the stated sizes.
            unsafe {
                assert_eq!(query(context, null(), attr, ORIG - 1), EINVAL);
                assert_eq!(query(context, &raw const input, attr, FULL), EINVAL);
            }
        });
        assert!(untouched(&refused));
    });
}

#[test]
fn device_attributes_are_those_of_the_device() {
    on_soft(|context| {
        // SAFETY: zeroed integers are valid; the call writes the struct.
        let attr = unsafe {
            let mut attr: ibv_device_attr_ex = zeroed();
            let query = table(context).query_device_ex.unwrap();
            let size = size_of::<ibv_device_attr_ex>();
            let input = ibv_query_device_ex_input { comp_mask: 0 };
            assert_eq!(query(context, &raw const input, &raw mut attr, size), 0);
            attr
        };
        assert_eq!((attr.orig_attr.phys_port_cnt, attr.phys_port_cnt_ex, attr.comp_mask), (1, 1, 0));
        assert!(attr.orig_attr.max_qp > 0 && attr.orig_attr.max_mw > 0 && attr.orig_attr.max_pkeys == 1);
        assert_ne!(attr.orig_attr.node_guid, 0);
        assert_eq!(attr.device_cap_flags_ex as u32, attr.orig_attr.device_cap_flags);
    });
}

#[test]
fn a_port_query_writes_as_many_bytes_as_the_program_knows() {
    on_soft(|context| {
        const FULL: usize = size_of::<ibv_port_attr>();
        let query = table(context).query_port.unwrap();
        let sized = |size| {
            filled(|attr| {
                // SAFETY: the memory has `size` bytes.
                assert_eq!(unsafe { query(context, 1, attr, size) }, 0, "{size}");
            })
        };
        let all = sized(FULL);
        // 52 bytes is the size of the struct in release 44.
        for size in [0, 4, 48, 52, FULL, FULL + 8] {
            let bytes = sized(size);
            let known = size.min(FULL);
            assert_eq!(bytes[..known], all[..known], "{size}");
            assert!(bytes[known..size].iter().all(|byte| *byte == 0), "{size}");
            assert!(untouched(&bytes[size..]), "{size}");
        }
        let old = filled(|attr| {
            // SAFETY: the pointer refers to a struct.
            assert_eq!(unsafe { ibv_query_port(context, 1, attr) }, 0);
        });
        assert_eq!((&old[..48], untouched(&old[48..])), (&all[..48], true));
        let refused = filled(|attr| {
            // SAFETY: the memory has the stated sizes.
            unsafe {
                assert_eq!((query(context, 0, attr, FULL), errno()), (EINVAL, EINVAL));
                assert_eq!(query(context, 2, attr, FULL), EINVAL);
            }
        });
        assert!(untouched(&refused));
    });
}

#[test]
fn the_speed_of_a_port_is_known_and_of_no_other() {
    on_soft(|context| {
        let mut speed = 0;
        // SAFETY: the pointer refers to a number.
        unsafe {
            assert_eq!(ibv_query_port_speed(context, 1, &raw mut speed), 0);
            assert!(speed > 0);
            for port in [0, 2, 257] {
                assert_eq!(ibv_query_port_speed(context, port, &raw mut speed), EINVAL, "{port}");
            }
        }
    });
}

#[test]
fn an_empty_gid_is_zero_or_no_data() {
    on_soft(|context| {
        // SAFETY: zeroed bytes and integers are valid; each call gets a pointer to its type.
        unsafe {
            let mut gid: ibv_gid = zeroed();
            assert_eq!(ibv_query_gid(context, 1, 0, &raw mut gid), 0);
            let first = gid.raw;
            assert_ne!(first, [0; 16]);
            for index in 1..4 {
                assert_eq!(ibv_query_gid(context, 1, index, &raw mut gid), 0);
                assert_eq!(gid.raw, first, "the address at the indexes of rxe and network cards");
            }
            assert_eq!(ibv_query_gid(context, 1, 4, &raw mut gid), 0);
            assert_eq!(gid.raw, [0; 16], "an empty entry");
            for (port, index) in [(1, -1), (1, 8), (0, 0), (2, 0)] {
                assert_eq!((ibv_query_gid(context, port, index, &raw mut gid), errno()), (-1, EINVAL));
            }

            let size = size_of::<ibv_gid_entry>();
            let mut entry: ibv_gid_entry = zeroed();
            assert_eq!(_ibv_query_gid_ex(context, 1, 0, &raw mut entry, 0, size), 0);
            assert_eq!((entry.gid.raw, entry.gid_index, entry.port_num), (first, 0, 1));
            assert_eq!(entry.gid_type, IBV_GID_TYPE_ROCE_V2);
            assert_eq!(_ibv_query_gid_ex(context, 1, 3, &raw mut entry, 0, size), 0);
            assert_eq!((entry.gid.raw, entry.gid_index, entry.port_num), (first, 3, 1));
            assert_eq!(_ibv_query_gid_ex(context, 1, 4, &raw mut entry, 0, size), ENODATA);
            assert_eq!(errno(), ENODATA);
            for (port, index, flags, size) in
                [(1, 8, 0, size), (1, 0, 1, size), (1, 0, 0, size - 1), (257, 0, 0, size), (0, 0, 0, size)]
            {
                let result = _ibv_query_gid_ex(context, port, index, &raw mut entry, flags, size);
                assert_eq!(result, EINVAL, "port {port}, index {index}, flags {flags}, {size} bytes");
            }
            let grown = filled(|entry| {
                assert_eq!(_ibv_query_gid_ex(context, 1, 0, entry, 0, size + 8), 0);
            });
            assert_eq!((&grown[..16], &grown[size..size + 8]), (&first[..], &[0; 8][..]));
            assert!(untouched(&grown[size + 8..]));
        }
    });
}

#[test]
fn a_gid_table_has_entries_of_the_size_that_the_program_knows() {
    on_soft(|context| {
        let table = |max, flags, size| {
            let mut count = 0;
            let bytes = filled(|entries| {
                // SAFETY: the memory has the stated sizes.
                count = unsafe { _ibv_query_gid_table(context, entries, max, flags, size) };
            });
            (count, bytes)
        };
        let full = size_of::<ibv_gid_entry>();
        let (count, all) = table(8, 0, full);
        assert_eq!(count, 4, "the device has one address, at four indexes");
        assert!(untouched(&all[4 * full..]));
        for size in [16, full, full + 8] {
            let (count, bytes) = table(4, 0, size);
            let known = size.min(full);
            assert_eq!((count, &bytes[..known]), (4, &all[..known]));
            assert!(
                bytes[known..size].iter().all(|byte| *byte == 0) && untouched(&bytes[4 * size..]),
                "{size}"
            );
        }
        for (max, flags, size) in [(0, 0, full), (3, 0, full), (8, 1, full), (8, 0, 0)] {
            let (count, bytes) = table(max, flags, size);
            assert_eq!((count, untouched(&bytes)), (-(EINVAL as ssize_t), true), "{max} {flags} {size}");
        }
    });
}

#[test]
fn a_partition_key_is_found_in_network_order() {
    on_soft(|context| {
        let mut pkey = 0;
        // SAFETY: the pointer refers to a number.
        unsafe {
            assert_eq!(ibv_query_pkey(context, 1, 0, &raw mut pkey), 0);
            assert_eq!(pkey, 0xffff);
            for (port, index) in [(1, -1), (1, 1), (1, 0x1_0000), (2, 0)] {
                assert_eq!(ibv_query_pkey(context, port, index, &raw mut pkey), -1, "{port} {index}");
            }
            assert_eq!(ibv_get_pkey_index(context, 1, pkey), 0);
            assert_eq!(ibv_get_pkey_index(context, 1, 0x7fff_u16.to_be()), -1);
            assert_eq!(ibv_get_pkey_index(context, 2, pkey), -1);
        }
    });
}

#[test]
fn the_clock_is_read_if_the_mask_asks() {
    on_soft(|context| {
        let query = table(context).query_rt_values.unwrap();
        let read = |comp_mask| {
            let raw_clock = libc::timespec { tv_sec: 7, tv_nsec: 7 };
            let mut values = ibv_values_ex { comp_mask, raw_clock };
            // SAFETY: the pointer refers to a struct.
            let result = unsafe { query(context, &raw mut values) };
            (result, values.comp_mask, values.raw_clock.tv_sec, values.raw_clock.tv_nsec)
        };
        assert_eq!(read(0), (0, 0, 7, 7));
        let (result, mask, sec, first) = read(IBV_VALUES_MASK_RAW_CLOCK);
        assert_eq!((result, mask, sec), (0, IBV_VALUES_MASK_RAW_CLOCK, 0));
        let (.., second) = read(IBV_VALUES_MASK_RAW_CLOCK);
        assert!(second >= first && first != 7);
        assert_eq!(read(IBV_VALUES_MASK_RESERVED).0, EINVAL);
    });
}

#[test]
fn a_window_has_a_key_and_ends_by_its_own_handle() {
    on_soft(|context| {
        // SAFETY: the objects are live until they are destroyed.
        unsafe {
            let ops = &(*context).ops;
            let (alloc, dealloc) = (ops.alloc_mw.unwrap(), ops.dealloc_mw.unwrap());
            let pd = ibv_alloc_pd(context);
            let windows = [IBV_MW_TYPE_1, IBV_MW_TYPE_2].map(|type_| {
                let mw = alloc(pd, type_);
                assert!(!mw.is_null(), "{}", errno());
                assert_eq!(((*mw).context, (*mw).pd, (*mw).type_), (context, pd, type_));
                mw
            });
            assert_ne!((*windows[0]).rkey, (*windows[1]).rkey);
            for type_ in [0, 3, 257] {
                assert_null(alloc(pd, type_), EINVAL, "another type");
            }
            assert_null(alloc(null_mut(), IBV_MW_TYPE_1), EINVAL, "no domain");
            (*windows[0]).handle ^= 1;
            assert_eq!((dealloc(windows[0]), errno()), (ENOENT, ENOENT));
            (*windows[0]).handle ^= 1;
            windows.iter().for_each(|mw| assert_eq!(dealloc(*mw), 0));
            assert_eq!(dealloc(null_mut()), EINVAL);
            assert_eq!(ibv_dealloc_pd(pd), 0);
        }
    });
}

/// Moves a queue pair to RTS, connected to a queue pair of the same device.
unsafe fn connect(context: *mut ibv_context, qp: *mut ibv_qp, peer: u32) {
    // SAFETY: the queue pair is live; zeroed integers are valid.
    unsafe {
        let mut attr: ibv_qp_attr = zeroed();
        let to = |state, attr: &mut ibv_qp_attr, mask| {
            attr.qp_state = state;
            assert_eq!(ibv_modify_qp(qp, attr, (IBV_QP_STATE | mask) as c_int), 0, "{state}");
        };
        attr.port_num = 1;
        attr.qp_access_flags = IBV_ACCESS_REMOTE_READ as _;
        to(IBV_QPS_INIT, &mut attr, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
        assert_eq!(ibv_query_gid(context, 1, 0, &raw mut attr.ah_attr.grh.dgid), 0);
        (attr.ah_attr.is_global, attr.ah_attr.port_num, attr.ah_attr.grh.hop_limit) = (1, 1, 1);
        (attr.path_mtu, attr.dest_qp_num, attr.max_dest_rd_atomic) = (IBV_MTU_1024, peer, 1);
        let path = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
        to(IBV_QPS_RTR, &mut attr, path | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
        (attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.max_rd_atomic) = (14, 7, 7, 1);
        let sends = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN;
        to(IBV_QPS_RTS, &mut attr, sends | IBV_QP_MAX_QP_RD_ATOMIC);
    }
}

/// Polls one completion.
unsafe fn completion(context: *mut ibv_context, cq: *mut ibv_cq) -> ibv_wc {
    let end = Instant::now() + Duration::from_secs(20);
    // SAFETY: the queue is live; zeroed integers are valid.
    unsafe {
        let mut wc: ibv_wc = zeroed();
        while (*context).ops.poll_cq.unwrap()(cq, 1, &raw mut wc) == 0 {
            assert!(Instant::now() < end, "no completion");
        }
        wc
    }
}

#[test]
fn a_peer_reads_through_the_key_that_a_bind_gave() {
    on_soft(|context| {
        let mut memory = [*b"windowed", [0; 8]];
        // SAFETY: the objects are live; the memory is registered while the device accesses it.
        // Zeroed integers and null pointers are valid.
        unsafe {
            let pd = ibv_alloc_pd(context);
            let cq = ibv_create_cq(context, 8, null_mut(), null_mut(), 0);
            let mut init: ibv_qp_init_attr = zeroed();
            (init.send_cq, init.recv_cq, init.qp_type) = (cq, cq, IBV_QPT_RC);
            (init.cap.max_send_wr, init.cap.max_send_sge, init.sq_sig_all) = (2, 1, 1);
            let [owner, peer] = [(); 2].map(|()| ibv_create_qp(pd, &raw mut init));
            assert!(!owner.is_null() && !peer.is_null(), "{}", errno());
            connect(context, owner, (*peer).qp_num);
            connect(context, peer, (*owner).qp_num);
            let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND;
            let at = memory.as_mut_ptr();
            let mr = ibv_reg_mr(pd, at.cast(), size_of_val(&memory), access as c_int);
            assert!(!mr.is_null(), "{}", errno());
            let mw = (*context).ops.alloc_mw.unwrap()(pd, IBV_MW_TYPE_1);
            let unbound = (*mw).rkey;

            let mut bind: ibv_mw_bind = zeroed();
            (bind.wr_id, bind.bind_info.mr) = (3, mr);
            (bind.bind_info.addr, bind.bind_info.length) = (at as u64, 8);
            bind.bind_info.mw_access_flags = IBV_ACCESS_REMOTE_READ as _;
            assert_eq!((*context).ops.bind_mw.unwrap()(owner, mw, &raw mut bind), 0);
            assert_eq!((*mw).rkey, unbound & !0xff | unbound.wrapping_add(1) & 0xff);
            let wc = completion(context, cq);
            assert_eq!((wc.wr_id, wc.status, wc.opcode), (3, IBV_WC_SUCCESS, IBV_WC_BIND_MW));

            let mut sge = ibv_sge { addr: at.add(1) as u64, length: 8, lkey: (*mr).lkey };
            let mut read: ibv_send_wr = zeroed();
            (read.sg_list, read.num_sge, read.opcode) = (&raw mut sge, 1, IBV_WR_RDMA_READ);
            read.wr.rdma = ibv_send_wr_rdma { remote_addr: at as u64, rkey: (*mw).rkey };
            let mut bad = null_mut();
            assert_eq!((*context).ops.post_send.unwrap()(peer, &raw mut read, &raw mut bad), 0);
            assert_eq!(completion(context, cq).status, IBV_WC_SUCCESS);
            assert_eq!(at.add(1).read_volatile(), *b"windowed");

            assert_eq!((*context).ops.dealloc_mw.unwrap()(mw), 0);
            assert_eq!((ibv_destroy_qp(owner), ibv_destroy_qp(peer)), (0, 0));
            assert_eq!((ibv_dereg_mr(mr), ibv_destroy_cq(cq), ibv_dealloc_pd(pd)), (0, 0, 0));
        }
    });
}

#[test]
fn a_device_without_rules_and_work_queues_refuses_both() {
    on_soft(|context| {
        let t = table(context);
        // SAFETY: the objects are live; zeroed integers and null pointers are valid.
        unsafe {
            let pd = ibv_alloc_pd(context);
            let cq = ibv_create_cq(context, 8, null_mut(), null_mut(), 0);
            let mut init: ibv_qp_init_attr = zeroed();
            (init.send_cq, init.recv_cq, init.qp_type) = (cq, cq, IBV_QPT_UD);
            let qp = ibv_create_qp(pd, &raw mut init);
            let mut rule: ibv_flow_attr = zeroed();
            rule.port = 1;
            let create = t.ibv_create_flow.unwrap();
            assert_null(create(qp, &raw mut rule), EOPNOTSUPP, "create_flow");
            let mut wq: ibv_wq_init_attr = zeroed();
            (wq.pd, wq.cq, wq.max_wr, wq.max_sge) = (pd, cq, 1, 1);
            assert_null(t.create_wq.unwrap()(context, &raw mut wq), EOPNOTSUPP, "create_wq");
            assert_eq!((ibv_destroy_qp(qp), ibv_destroy_cq(cq), ibv_dealloc_pd(pd)), (0, 0, 0));
        }
    });
}

#[test]
fn options_that_the_device_lacks_are_not_logged_and_other_refusals_are() {
    on_soft(|context| {
        let log = std::env::temp_dir().join(format!("ibverbs-c-log-{}", std::process::id()));
        // SAFETY: no other thread of this process reads the environment. The objects are live;
        // zeroed integers and null pointers are valid.
        unsafe {
            std::env::set_var("VERBS_LOG_LEVEL", "1");
            std::env::set_var("VERBS_LOG_FILE", &log);
            let pd = ibv_alloc_pd(context);
            let cq = ibv_create_cq(context, 8, null_mut(), null_mut(), 0);
            let mut init: ibv_qp_init_attr = zeroed();
            (init.send_cq, init.recv_cq, init.qp_type) = (cq, cq, IBV_QPT_RC);
            let qp = ibv_create_qp(pd, &raw mut init);
            let mut ece: ibv_ece = zeroed();
            assert_eq!(ibv_query_ece(qp, &raw mut ece), EOPNOTSUPP);
            let mut pkey = 0;
            assert_eq!(ibv_query_pkey(context, 1, 9, &raw mut pkey), -1);
            assert_eq!((ibv_destroy_qp(qp), ibv_destroy_cq(cq), ibv_dealloc_pd(pd)), (0, 0, 0));
        }
        let lines = std::fs::read_to_string(&log).unwrap();
        std::fs::remove_file(&log).unwrap();
        assert!(!lines.contains("query_ece") && lines.contains("query_pkey"), "{lines}");
    });
}

/// Applies a seccomp verdict to `process_vm_readv` and `process_vm_writev`, in this thread and in
/// threads that it starts later.
fn filter_accesses_by_the_kernel(verdict: u32) {
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    // The system call number is the first word of `struct seccomp_data`.
    let mut program = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 2, 0, libc::SYS_process_vm_readv as u32),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, 0, libc::SYS_process_vm_writev as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, verdict),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the calls take numbers, and the address of a program that outlives the call.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter), 0);
    }
}

#[test]
fn the_log_says_once_that_memory_of_files_cannot_be_checked() {
    const NAME: &str = "the_log_says_once_that_memory_of_files_cannot_be_checked";
    /// File-backed memory, because the library or the program is a file.
    static mut STATIC: [u8; 64] = [1; 64];
    if std::env::var_os("VERBS_SOFT").is_none() {
        let log = again_with_soft(NAME);
        assert_eq!(log.matches("VERBS_SOFT_CHECKED_MEMORY").count(), 1, "{log}");
        assert!(log.contains("process_vm_readv"), "{log}");
        return;
    }
    filter_accesses_by_the_kernel(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
    for _ in 0..2 {
        on_soft(|context| {
            // SAFETY: the memory is static; the objects are live.
            unsafe {
                let pd = ibv_alloc_pd(context);
                let mr = ibv_reg_mr(pd, (&raw mut STATIC).cast(), 64, IBV_ACCESS_LOCAL_WRITE as c_int);
                assert!(!mr.is_null(), "{}", errno());
                assert_eq!((ibv_dereg_mr(mr), ibv_dealloc_pd(pd)), (0, 0));
            }
        });
    }
}

#[test]
fn memory_of_the_heap_is_registered_under_a_filter_that_ends_the_process() {
    const NAME: &str = "memory_of_the_heap_is_registered_under_a_filter_that_ends_the_process";
    if std::env::var_os("VERBS_SOFT").is_none() {
        let log = again_with_soft(NAME);
        assert!(!log.contains("process_vm_readv"), "{log}");
        return;
    }
    filter_accesses_by_the_kernel(libc::SECCOMP_RET_KILL_PROCESS);
    on_soft(|context| {
        let mut memory = vec![0_u8; 4096];
        // SAFETY: the memory outlives its region; the objects are live; zeroed integers are valid.
        unsafe {
            let mut attr: ibv_device_attr = zeroed();
            assert_eq!(ibv_query_device(context, &raw mut attr), 0);
            let pd = ibv_alloc_pd(context);
            let start = memory.as_mut_ptr().cast();
            let mr = ibv_reg_mr(pd, start, 4096, IBV_ACCESS_LOCAL_WRITE as c_int);
            assert!(!mr.is_null(), "{}", errno());
            assert_eq!((ibv_dereg_mr(mr), ibv_dealloc_pd(pd)), (0, 0));
        }
    });
}

#[test]
fn an_xrc_domain_opens_with_a_file_or_without() {
    on_soft(|context| {
        let (open, close) = (table(context).open_xrcd.unwrap(), table(context).close_xrcd.unwrap());
        let opened = |comp_mask, fd, oflags| {
            let mut attr = ibv_xrcd_init_attr { comp_mask, fd, oflags };
            // SAFETY: the pointer refers to attributes.
            unsafe { open(context, &raw mut attr) }
        };
        let both = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
        let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        for (fd, oflags) in [(-1, libc::O_CREAT), (fd, libc::O_CREAT)] {
            let xrcd = opened(both, fd, oflags);
            assert!(!xrcd.is_null(), "{}", errno());
            // SAFETY: the domain is live.
            unsafe {
                assert_eq!((*xrcd).context, context);
                assert_eq!(close(xrcd), 0);
            }
        }
        assert_null(opened(both, fd, 0), libc::EAGAIN, "no domain of the file");
        assert_null(opened(IBV_XRCD_INIT_ATTR_FD, -1, 0), EINVAL, "no flags");
        assert_null(opened(both, -2, 0), libc::EBADF, "no file");
        // SAFETY: null is allowed and rejected.
        assert_eq!(unsafe { close(null_mut()) }, EINVAL);
    });
}

#[test]
fn what_the_device_lacks_is_not_supported() {
    on_soft(|context| {
        let t = table(context);
        // SAFETY: zeroed integers and null pointers are valid; no objects are created.
        unsafe {
            assert_null(ibv_import_dm(context, 1), EOPNOTSUPP, "import_dm");
            assert_eq!((ibv_dm_export_dmabuf_fd(null_mut()), errno()), (-1, EINVAL));
            let mut hints: ibv_dmah_init_attr = zeroed();
            assert_null(ibv_alloc_dmah(context, &raw mut hints), EOPNOTSUPP, "alloc_dmah");

            let mut counters = ibv_counters_init_attr { comp_mask: 0 };
            let create = t.create_counters.unwrap();
            assert_null(create(context, &raw mut counters), EOPNOTSUPP, "create_counters");
            let mut cntr: ibv_comp_cntr_init_attr = zeroed();
            assert_null(ibv_create_comp_cntr(context, &raw mut cntr), EOPNOTSUPP, "create_comp_cntr");
            let size = size_of::<ibv_comp_cntr_caps>();
            let caps = filled(|caps| {
                assert_eq!(_ibv_query_comp_cntr_caps(context, caps, size), EOPNOTSUPP);
            });
            assert_eq!((&caps[..size], untouched(&caps[size..])), (&[0; 16][..], true));
            let short = filled(|caps| {
                assert_eq!(_ibv_query_comp_cntr_caps(context, caps, size - 1), EINVAL);
            });
            assert!(untouched(&short[size - 1..]));

            let mut esp: ibv_flow_action_esp_attr = zeroed();
            let create = t.create_flow_action_esp.unwrap();
            assert_null(create(context, &raw mut esp), EOPNOTSUPP, "create_flow_action_esp");
            let mut wq: ibv_wq_init_attr = zeroed();
            assert_null(t.create_wq.unwrap()(context, &raw mut wq), EINVAL, "create_wq of nothing");
            let mut table: ibv_rwq_ind_table_init_attr = zeroed();
            let create = t.create_rwq_ind_table.unwrap();
            assert_null(create(context, &raw mut table), EINVAL, "create_rwq_ind_table of nothing");
        }
    });
}

#[test]
fn device_memory_is_copied_and_registered_and_stays_while_a_region_has_it() {
    on_soft(|context| {
        let t = table(context);
        // SAFETY: the objects are live until they are freed; copies stay within the arrays.
        // Zeroed integers and null pointers are valid.
        unsafe {
            let mut attr = ibv_alloc_dm_attr { length: 64, log_align_req: 0, comp_mask: 1 };
            assert_null(t.alloc_dm.unwrap()(context, &raw mut attr), EINVAL, "alloc_dm, mask");
            attr.comp_mask = 0;
            let dm = t.alloc_dm.unwrap()(context, &raw mut attr);
            assert!(!dm.is_null(), "{}", errno());
            let (to, from) = ((*dm).memcpy_to_dm.unwrap(), (*dm).memcpy_from_dm.unwrap());
            let (bytes, mut back) = ([7_u8; 8], [0_u8; 64]);
            assert_eq!(to(dm, 56, bytes.as_ptr().cast(), 8), 0);
            assert_eq!(to(dm, 60, bytes.as_ptr().cast(), 8), EFAULT, "beyond the end");
            assert_eq!(from(back.as_mut_ptr().cast(), dm, 0, 64), 0);
            assert_eq!((&back[..56], &back[56..]), (&[0; 56][..], &bytes[..]));

            let pd = ibv_alloc_pd(context);
            let reg = t.reg_dm_mr.unwrap();
            let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED;
            assert_null(reg(pd, dm, 32, 64, access), EINVAL, "reg_dm_mr beyond the end");
            let mr = reg(pd, dm, 32, 32, access);
            assert!(!mr.is_null(), "{}", errno());
            assert_eq!(t.free_dm.unwrap()(dm), libc::EBUSY);
            assert_eq!((ibv_dereg_mr(mr), t.free_dm.unwrap()(dm), ibv_dealloc_pd(pd)), (0, 0, 0));
        }
    });
}

#[test]
fn null_is_refused() {
    on_soft(|context| {
        let t = table(context);
        // SAFETY: null is allowed and rejected.
        unsafe {
            let codes = [
                ("query_device", ibv_query_device(context, null_mut())),
                ("query_device, context", ibv_query_device(null_mut(), null_mut())),
                ("query_device_ex", t.query_device_ex.unwrap()(context, null(), null_mut(), 400)),
                ("query_port", t.query_port.unwrap()(context, 1, null_mut(), 56)),
                ("query_port, old", ibv_query_port(context, 1, null_mut())),
                ("query_port_speed", ibv_query_port_speed(context, 1, null_mut())),
                ("query_gid_ex", _ibv_query_gid_ex(context, 1, 0, null_mut(), 0, 32)),
                ("query_rt_values", t.query_rt_values.unwrap()(context, null_mut())),
                ("query_comp_cntr_caps", _ibv_query_comp_cntr_caps(context, null_mut(), 16)),
                ("free_dm", t.free_dm.unwrap()(null_mut())),
                ("destroy_wq", t.destroy_wq.unwrap()(null_mut())),
                ("modify_wq", t.modify_wq.unwrap()(null_mut(), null_mut())),
                ("destroy_rwq_ind_table", t.destroy_rwq_ind_table.unwrap()(null_mut())),
                ("destroy_flow", t.ibv_destroy_flow.unwrap()(null_mut())),
                ("destroy_flow_action", t.destroy_flow_action.unwrap()(null_mut())),
                ("destroy_counters", t.destroy_counters.unwrap()(null_mut())),
                ("read_counters", t.read_counters.unwrap()(null_mut(), null_mut(), 0, 0)),
                ("bind_mw", (*context).ops.bind_mw.unwrap()(null_mut(), null_mut(), null_mut())),
            ];
            for (name, code) in codes {
                assert_eq!(code, EINVAL, "{name}");
            }
            assert_eq!((ibv_query_gid(context, 1, 0, null_mut()), errno()), (-1, EINVAL));
            assert_eq!((ibv_query_pkey(context, 1, 0, null_mut()), errno()), (-1, EINVAL));
            assert_eq!((ibv_get_pkey_index(null_mut(), 1, 0), errno()), (-1, EINVAL));
            let none = _ibv_query_gid_table(context, null_mut(), 8, 0, 32);
            assert_eq!((none, errno()), (-(EINVAL as ssize_t), EINVAL));
            assert_null(t.ibv_create_flow.unwrap()(null_mut(), null_mut()), EINVAL, "create_flow");
            assert_null(t.alloc_dm.unwrap()(context, null_mut()), EINVAL, "alloc_dm");
            assert_null(t.open_xrcd.unwrap()(context, null_mut()), EINVAL, "open_xrcd");
        }
    });
}

#[test]
fn programs_of_2013_find_the_flow_operations_in_the_placeholders() {
    on_soft(|context| {
        let t = table(context);
        assert_eq!(t.ABI_placeholder1.map(|f| f as usize), t.ibv_create_flow.map(|f| f as usize));
        assert_eq!(t.ABI_placeholder2.map(|f| f as usize), t.ibv_destroy_flow.map(|f| f as usize));
    });
}

unsafe extern "C" {
    fn mlx5dv_is_supported(device: *mut ibv_device) -> bool;
    fn mlx5dv_open_device(device: *mut ibv_device, attr: *mut mlx5dv_context_attr) -> *mut ibv_context;
    fn mlx5dv_query_device(context: *mut ibv_context, attrs: *mut mlx5dv_context) -> c_int;
    fn mlx5dv_get_clock_info(context: *mut ibv_context, info: *mut mlx5dv_clock_info) -> c_int;
    fn mlx5dv_reserved_qpn_dealloc(context: *mut ibv_context, qpn: u32) -> c_int;
    fn mlx5dv_init_obj(obj: *mut mlx5dv_obj, obj_type: u64) -> c_int;
    fn mlx5dv_create_qp(
        context: *mut ibv_context,
        attr: *mut ibv_qp_init_attr_ex,
        mlx5_attr: *mut mlx5dv_qp_init_attr,
    ) -> *mut ibv_qp;
    fn mlx5dv_devx_alloc_uar(context: *mut ibv_context, flags: u32) -> *mut mlx5dv_devx_uar;
    fn mlx5dv_devx_free_uar(uar: *mut mlx5dv_devx_uar);
}

#[test]
fn direct_access_to_another_providers_device_is_refused() {
    on_soft(|context| {
        // SAFETY: the device is open, and its objects are live. Zeroed integers, null pointers and
        // absent functions are valid.
        unsafe {
            let device = (*context).device;
            assert!(!mlx5dv_is_supported(device) && !mlx5dv_is_supported(null_mut()));
            assert!(mlx5dv_open_device(device, null_mut()).is_null());
            assert_eq!(errno(), EOPNOTSUPP);
            let mut attrs: mlx5dv_context = zeroed();
            attrs.comp_mask = u64::MAX;
            assert_eq!(mlx5dv_query_device(context, &raw mut attrs), EOPNOTSUPP);
            assert_eq!((attrs.comp_mask, attrs.flags), (u64::MAX, 0));
            assert_eq!(mlx5dv_query_device(null_mut(), &raw mut attrs), EINVAL);
            let mut info: mlx5dv_clock_info = zeroed();
            assert_eq!(mlx5dv_get_clock_info(context, &raw mut info), EOPNOTSUPP);
            assert_eq!(mlx5dv_reserved_qpn_dealloc(context, 1), EOPNOTSUPP);
            let mut init: ibv_qp_init_attr_ex = zeroed();
            assert!(mlx5dv_create_qp(context, &raw mut init, null_mut()).is_null());
            assert_eq!(errno(), EOPNOTSUPP);
            assert!(mlx5dv_devx_alloc_uar(context, 0).is_null());
            mlx5dv_devx_free_uar(null_mut());

            let pd = ibv_alloc_pd(context);
            let (mut obj, mut out): (mlx5dv_obj, mlx5dv_pd) = (zeroed(), zeroed());
            (obj.pd.in_, obj.pd.out) = (pd, &raw mut out);
            assert_eq!(mlx5dv_init_obj(&raw mut obj, 0), EINVAL, "no object");
            assert_eq!(mlx5dv_init_obj(&raw mut obj, MLX5DV_OBJ_QP), EINVAL, "a null object");
            assert_eq!(mlx5dv_init_obj(&raw mut obj, MLX5DV_OBJ_PD), EOPNOTSUPP);
            assert_eq!(mlx5dv_init_obj(&raw mut obj, MLX5DV_OBJ_DEVX), EOPNOTSUPP);
            assert_eq!(ibv_dealloc_pd(pd), 0);
        }
    });
}

/// Returns the text in a C array.
fn text(array: &[core::ffi::c_char]) -> String {
    array.iter().take_while(|byte| **byte != 0).map(|byte| char::from(*byte as u8)).collect()
}

#[test]
fn the_files_of_a_device_say_what_its_queries_say_and_end_with_the_process() {
    if std::env::var_os("VERBS_SOFT").is_none() {
        let test = "the_files_of_a_device_say_what_its_queries_say_and_end_with_the_process";
        let err = again_with_soft(test);
        let root = err.lines().find_map(|line| line.strip_prefix("root ")).expect("the folder is named");
        assert!(!Path::new(root).exists(), "{root} is left");
        return;
    }
    with_device(
        |name| name.starts_with("soft"),
        |context| {
            // SAFETY: the device of an open context is live; the structs are written by the calls.
            let (device, guid, gid, attr) = unsafe {
                let device = &*(*context).device;
                let (mut gid, mut attr): (ibv_gid, ibv_port_attr) = (zeroed(), zeroed());
                assert_eq!(ibv_query_gid(context, 1, 0, &raw mut gid), 0);
                assert_eq!(
                    table(context).query_port.unwrap()(context, 1, &raw mut attr, size_of_val(&attr)),
                    0
                );
                (device, ibv_get_device_guid((*context).device), gid.raw, attr)
            };
            let [ibdev, dev] = [&device.ibdev_path, &device.dev_path].map(|path| PathBuf::from(text(path)));
            let read = |name: &str| {
                std::fs::read_to_string(ibdev.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
            };
            let groups = |bytes: &[u8]| {
                let pairs: Vec<_> =
                    bytes.chunks(2).map(|two| format!("{:02x}{:02x}", two[0], two[1])).collect();
                pairs.join(":") + "\n"
            };
            assert_eq!(read("node_type"), "1: CA\n");
            assert_eq!(read("node_guid"), groups(&guid.to_ne_bytes()));
            assert_eq!(read("ports/1/gids/0"), groups(&gid));
            assert_eq!(read("ports/1/gids/3"), groups(&gid));
            assert_eq!(read("ports/1/gids/4"), groups(&[0; 16]));
            assert_eq!(read("ports/1/gid_attrs/types/3"), "RoCE v2\n");
            let interface = CString::new(read("ports/1/gid_attrs/ndevs/3").trim()).unwrap();
            // SAFETY: the name is a C string.
            assert_ne!(unsafe { libc::if_nametoindex(interface.as_ptr()) }, 0, "{interface:?}");
            assert!(read("ports/1/state").starts_with(&format!("{}: ", attr.state)));
            assert!(read("ports/1/phys_state").starts_with(&format!("{}: ", attr.phys_state)));
            assert_eq!(read("ports/1/cap_mask"), format!("{:#010x}\n", attr.port_cap_flags));
            assert_eq!(read("ports/1/pkeys/0"), "0xffff\n");
            assert_eq!(read("ports/1/counters/port_xmit_packets"), "0\n");
            // The only memory node, which UCCL needs, or none in particular.
            let nodes = std::fs::read_to_string("/sys/devices/system/node/online").unwrap_or_default();
            let node = if nodes == "0\n" { "0\n" } else { "-1\n" };
            assert_eq!(read("device/numa_node"), node);
            assert!(ibdev.join("../..").canonicalize().is_ok() && !read("fw_ver").trim().is_empty());
            assert_eq!(std::fs::read_to_string(dev.join("ibdev")).unwrap().trim(), text(&device.name));
            assert_eq!(dev.file_name().unwrap().to_str(), Some(&*text(&device.dev_name)));
            assert_eq!(ibdev.file_name().unwrap().to_str(), Some(&*text(&device.name)));
            // A path that programs build as for sysfs.
            assert!(ibdev.join("device/infiniband").join(text(&device.name)).join("ports/1/state").exists());
            let root = ibdev.ancestors().nth(3).unwrap();
            let mode = std::os::unix::fs::MetadataExt::mode(&root.metadata().unwrap());
            assert_eq!(mode & 0o777, 0o700);
            // SAFETY: the child calls only `exit`, which runs the library's exit functions.
            unsafe {
                let child = libc::fork();
                if child == 0 {
                    libc::exit(0);
                }
                assert_eq!(libc::waitpid(child, null_mut(), 0), child);
            }
            assert!(root.join("class/infiniband").is_dir(), "a child has removed its parent's folder");
            eprintln!("root {}", root.display());
        },
    );
}
