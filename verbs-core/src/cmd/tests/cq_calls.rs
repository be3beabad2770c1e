//! Completion queues: flags, resizing and moderation, through each command form.

use super::{cq_attr, driver_attrs, on};
use crate::channel::{Attr, Expect, Reply, Scripted, Uhw};
use crate::cmd::cq;
use crate::errno::Errno;
use crate::error::{Cause, Result};
use crate::types::{CqFlags, CqInitAttr, CqModeration, CqWcFlags};

fn create(scripted: &Scripted, attr: &CqInitAttr<'_>) -> Result<(cq::CqInfo, [u8; 16])> {
    let mut mminfo = [0; 16];
    let info = cq::create_cq(&on(scripted), attr, None, Uhw::reply(&mut mminfo))?;
    Ok((info, mminfo))
}

const FLAGS: &[(CqFlags, CqWcFlags, u32)] = &[
    (CqFlags::IGNORE_OVERRUN, CqWcFlags::empty(), 2),
    (CqFlags::empty(), CqWcFlags::COMPLETION_TIMESTAMP, 1),
    (CqFlags::empty(), CqWcFlags::COMPLETION_TIMESTAMP_WALLCLOCK, 1),
    (CqFlags::all(), CqWcFlags::all(), 3),
];

#[test]
fn flags_that_the_kernel_knows_are_an_attribute_of_the_ioctl() {
    for &(flags, wc_flags, expected) in FLAGS {
        let ioctl = format!(
            "ioctl 3.0: 0x0 new handle, 0x6 out 4 bytes, 0x1 u32 0x10, 0x2 u64 0x100000002, 0x4 u32 0x1, \
             0x5 u32 {expected:#x}, 0x1001 out 16 bytes"
        );
        let reply = Reply::outputs([&9_u32.to_ne_bytes(), &31_u32.to_ne_bytes(), &[7; 16]]);
        let scripted = Scripted::new([Expect::command(&ioctl, reply)]);
        let attr = CqInitAttr { flags, wc_flags, ..cq_attr() };
        assert_eq!(create(&scripted, &attr).unwrap(), (cq::CqInfo { handle: 9, cqe: 31 }, [7; 16]));
    }
}

#[test]
fn attributes_of_the_driver_go_in_the_ioctl_alone() {
    let create = |scripted: &Scripted| {
        let driver = driver_attrs([Attr::u32(0x1002, 0x1_0000)]);
        cq::create_cq_with(&on(scripted), &cq_attr(), None, driver, Uhw::none())
    };
    let ioctl = "ioctl 3.0: 0x0 new handle, 0x6 out 4 bytes, 0x1 u32 0x10, 0x2 u64 0x100000002, 0x4 u32 0x1, \
                 0x1002 u32 0x10000";
    create(&Scripted::new([Expect::command(ioctl, Reply::ok())])).unwrap();
    let without = Scripted::new([Expect::anything(Reply::Errno(Errno::NOTTY))]);
    let error = create(&without).unwrap_err();
    assert_eq!(error.errno, Errno::OPNOTSUPP);
    assert!(matches!(error.cause, Cause::KernelLacks { .. }), "{error}");
}

#[test]
fn without_the_ioctl_flags_go_in_the_extended_write() {
    let core: Vec<u8> = [9_u32, 31, 0, 16].iter().flat_map(|n| n.to_ne_bytes()).collect();
    for &(flags, wc_flags, expected) in FLAGS {
        let write = format!(
            "write_ex 18: in 02000000010000001000000001000000ffffffff00000000{expected:02x}00000000000000, out 16+16"
        );
        let scripted = Scripted::new([
            Expect::anything(Reply::Errno(Errno::NOTTY)),
            Expect::command(&write, Reply::outputs([&core, &[7; 16]])),
        ]);
        let attr = CqInitAttr { flags, wc_flags, ..cq_attr() };
        assert_eq!(create(&scripted, &attr).unwrap(), (cq::CqInfo { handle: 9, cqe: 31 }, [7; 16]));
    }
}

#[test]
fn a_queue_for_one_thread_or_with_a_tag_is_the_kernels_usual_queue() {
    let ioctl = "ioctl 3.0: 0x0 new handle, 0x6 out 4 bytes, 0x1 u32 0x10, 0x2 u64 0x100000002, 0x4 u32 0x1, \
                 0x1001 out 16 bytes";
    let scripted = Scripted::new([Expect::command(ioctl, Reply::ok())]);
    let wc_flags = CqWcFlags::STANDARD | CqWcFlags::FLOW_TAG | CqWcFlags::CVLAN;
    create(&scripted, &CqInitAttr { flags: CqFlags::SINGLE_THREADED, wc_flags, ..cq_attr() }).unwrap();
}

#[test]
fn resize_cq_returns_the_size_and_the_drivers_reply_on_each_way() {
    let core: Vec<u8> = [63_u32, 0].iter().flat_map(|n| n.to_ne_bytes()).collect();
    let invoked = "ioctl 0.0: 0x2 u64 0x13, 0x0 in 00000000000000000500000021000000, 0x1 out 8 bytes, \
                   0x1001 out 16 bytes";
    let written = "write 19: in 00000000000000000500000021000000, out 8+16";
    let scripted = Scripted::new([
        Expect::command(invoked, Reply::outputs([&core, &[7; 16]])),
        Expect::anything(Reply::Errno(Errno::PROTONOSUPPORT)),
        Expect::command(written, Reply::outputs([&core, &[7; 16]])),
        Expect::anything(Reply::Errno(Errno::INVAL)),
    ]);
    let uverbs = on(&scripted);
    for _ in 0..2 {
        let mut mminfo = [0; 16];
        assert_eq!(cq::resize_cq(&uverbs, 5, 33, Uhw::reply(&mut mminfo)), Ok(63));
        assert_eq!(mminfo, [7; 16]);
    }
    let mut mminfo = [0; 16];
    let error = cq::resize_cq(&uverbs, 5, 33, Uhw::reply(&mut mminfo)).unwrap_err();
    assert_eq!((error.verb, error.errno, mminfo), ("resize_cq", Errno::INVAL, [0; 16]));
}

#[test]
fn modify_cq_sends_the_moderation_on_each_way() {
    let moderation = CqModeration { cq_count: 0x0102, cq_period: 0x0304 };
    let bytes = "05000000010000000201040300000000";
    let invoked = format!("ioctl 0.0: 0x2 u64 0x80000039, 0x0 in {bytes}");
    let written = format!("write_ex 57: in {bytes}, out 0+0");
    let scripted = Scripted::new([
        Expect::command(&invoked, Reply::ok()),
        Expect::anything(Reply::Errno(Errno::PROTONOSUPPORT)),
        Expect::command(&written, Reply::ok()),
        Expect::anything(Reply::Errno(Errno::OPNOTSUPP)),
    ]);
    let uverbs = on(&scripted);
    cq::modify_cq(&uverbs, 5, moderation).unwrap();
    cq::modify_cq(&uverbs, 5, moderation).unwrap();
    let error = cq::modify_cq(&uverbs, 5, moderation).unwrap_err();
    assert_eq!((error.verb, error.errno), ("modify_cq", Errno::OPNOTSUPP));
}
