//! Tests of regions destroyed in time, late or never.
//!
//! # Safety
//! A paper device does not access the registered memory, and its script passes no descriptor.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};

use verbs_core::channel::{Expect, Reply};
use verbs_core::provider::ContextOps;
use verbs_core::types::{Advice, AdviseFlags, Sge};

use super::*;
use crate::paper::PaperDevice;

/// A kernel whose deregistration takes a given time.
struct Slow {
    /// The clock's readings, in reverse order.
    times: RefCell<Vec<Duration>>,
    tasks: Cell<Result<(), Errno>>,
    waits: Cell<u32>,
}

impl Slow {
    fn taking(time: Duration) -> Self {
        Self {
            times: RefCell::new(vec![time, Duration::ZERO]),
            tasks: Cell::new(Ok(())),
            waits: Cell::new(0),
        }
    }
}

impl World for Slow {
    fn now(&self) -> Duration {
        self.times.borrow_mut().pop().expect("the clock is read before and after")
    }

    fn wait_for_tasks(&self) -> Result<(), Errno> {
        self.waits.set(self.waits.get() + 1);
        self.tasks.get()
    }
}

const QUICK: Duration = Duration::from_millis(1);

fn region(access: AccessFlags) -> (PaperDevice, Mr) {
    // SAFETY: no queues exist, and the script gives away no file descriptors.
    let device = unsafe { PaperDevice::new() };
    let reply: Vec<u8> = [8_u32, 0x101, 0x102].iter().flat_map(|n| n.to_ne_bytes()).collect();
    device.script.expect([Expect::anything(Reply::outputs([&reply]))]);
    // SAFETY: a paper device does not access the memory.
    let mr = unsafe { device.context.reg_mr(&device.pd, core::ptr::null_mut(), 4096, 0, access) };
    (device, mr.unwrap())
}

#[test]
fn a_region_that_the_kernel_confirms_in_time_is_destroyed() {
    let (device, mr) = region(AccessFlags::LOCAL_WRITE);
    assert_eq!((mr.handle(), mr.lkey(), mr.rkey()), (8, 0x101, 0x102));
    device.script.expect([Expect::anything(Reply::ok())]);
    let world = Slow::taking(PATIENCE - QUICK);
    mr.destroy_in(&world).unwrap();
    assert_eq!(world.waits.get(), 0, "no peer can write to it");
}

#[test]
fn a_region_that_the_kernel_rejects_to_end_stays_alive() {
    let (device, mr) = region(AccessFlags::LOCAL_WRITE);
    device.script.expect([Expect::anything(Reply::Errno(Errno::BUSY)), Expect::anything(Reply::ok())]);
    let (mr, error) = mr.destroy_in(&Slow::taking(PATIENCE)).unwrap_err();
    assert_eq!((error.errno, mr.lkey()), (Errno::BUSY, 0x101));
    mr.destroy().unwrap();
}

#[test]
fn a_kernel_that_gave_up_waiting_is_never_trusted() {
    for access in [AccessFlags::LOCAL_WRITE, AccessFlags::REMOTE_WRITE | AccessFlags::LOCAL_WRITE] {
        let (device, mr) = region(access);
        device.script.expect([Expect::anything(Reply::ok())]);
        let (mut mr, mut error) = mr.destroy_in(&Slow::taking(PATIENCE)).unwrap_err();
        for _ in 0..2 {
            assert_eq!(
                error.to_string(),
                "dereg_mr on rxe0: still in use by the kernel, which gave up waiting for its own references \
                 (see its log) (ETIMEDOUT)"
            );
            assert_eq!((mr.handle(), mr.lkey(), mr.rkey()), (8, 0x101, 0x102));
            // No command is sent again, because the handle may now belong to another object.
            (mr, error) = mr.destroy().unwrap_err();
        }
    }
}

#[test]
fn exposed_memory_is_free_when_the_tasks_have_ended() {
    let (write, read) = (AccessFlags::REMOTE_WRITE, AccessFlags::REMOTE_READ);
    for right in [write, read, AccessFlags::REMOTE_ATOMIC, AccessFlags::MW_BIND] {
        let (device, mr) = region(AccessFlags::LOCAL_WRITE | right);
        device.script.expect([Expect::anything(Reply::ok())]);
        let world = Slow::taking(QUICK);
        world.tasks.set(Err(Errno::NOSYS));
        let (mr, error) = mr.destroy_in(&world).unwrap_err();
        assert_eq!((error.verb, error.errno), ("dereg_mr", Errno::NOSYS));
        // No command is sent again after the kernel's confirmation.
        let (mr, _) = mr.destroy_in(&world).unwrap_err();
        assert_eq!((mr.rkey(), world.waits.get()), (0x102, 2));
        world.tasks.set(Ok(()));
        mr.destroy_in(&world).unwrap();
    }
}

/// Changes a region on a paper device.
fn rereg(device: &PaperDevice, mr: &mut Mr, change: &MrChange<'_, Rxe>) -> Result<(), ReregError> {
    // SAFETY: a paper device does not access the memory.
    unsafe { device.context.rereg_mr(mr, change) }
}

#[test]
fn a_refused_change_tells_whether_the_region_can_be_used() {
    let (device, mut mr) = region(AccessFlags::LOCAL_WRITE);
    let access = Some(AccessFlags::LOCAL_WRITE | AccessFlags::HUGETLB);
    for (change, state) in [
        (MrChange { access, ..MrChange::default() }, RegionState::Unchanged),
        (MrChange { pd: Some(&device.pd), ..MrChange::default() }, RegionState::Unchanged),
        (MrChange { pd: Some(&device.pd), access, ..MrChange::default() }, RegionState::Unusable),
    ] {
        device.script.expect([Expect::anything(Reply::Errno(Errno::OPNOTSUPP))]);
        let failed = rereg(&device, &mut mr, &change).unwrap_err();
        assert_eq!((failed.error.errno, failed.region), (Errno::OPNOTSUPP, state));
    }
    assert_eq!((mr.lkey(), mr.rkey()), (0x101, 0x102));
}

#[test]
fn memory_that_was_exposed_by_a_change_is_free_when_the_tasks_have_ended() {
    let (device, mut mr) = region(AccessFlags::LOCAL_WRITE);
    for access in [AccessFlags::REMOTE_READ, AccessFlags::empty()] {
        let keys: Vec<u8> = [0x101_u32, 0x102].iter().flat_map(|n| n.to_ne_bytes()).collect();
        device.script.expect([Expect::anything(Reply::outputs([&keys]))]);
        rereg(&device, &mut mr, &MrChange { access: Some(access), ..MrChange::default() }).unwrap();
    }
    device.script.expect([Expect::anything(Reply::ok())]);
    let world = Slow::taking(QUICK);
    mr.destroy_in(&world).unwrap();
    assert_eq!(world.waits.get(), 1, "a request may have begun before the second change");
}

#[test]
fn a_region_that_the_kernel_no_longer_has_is_not_changed() {
    let (device, mr) = region(AccessFlags::LOCAL_WRITE);
    device.script.expect([Expect::anything(Reply::ok())]);
    let (mut mr, _) = mr.destroy_in(&Slow::taking(PATIENCE)).unwrap_err();
    let change = MrChange { access: Some(AccessFlags::empty()), ..MrChange::default() };
    let failed = rereg(&device, &mut mr, &change).unwrap_err();
    assert_eq!((failed.error.errno, failed.region), (Errno::INVAL, RegionState::Unusable));
}

/// Expects advice about a region with this key and sends this reply.
fn advised(key: u32, reply: Reply) -> Expect {
    let key: String = key.to_ne_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let sge = format!("002000000000000010000000{key}");
    Expect::command(&format!("ioctl 7.2: 0x0 handle 2, 0x1 u64 0x0, 0x2 u32 0x1, 0x3 in {sge}"), reply)
}

#[test]
fn the_kernel_gets_the_key_of_paged_regions_only_while_they_live() {
    let sges = [Sge { addr: 0x2000, length: 16, lkey: 0x101 }];
    let advise = |device: &PaperDevice| {
        device.context.advise_mr(&device.pd, Advice::PREFETCH, AdviseFlags::FLUSH, &sges)
    };
    let (device, mr) = region(AccessFlags::LOCAL_WRITE | AccessFlags::ON_DEMAND);
    device.script.expect([advised(0x101, Reply::ok()), Expect::anything(Reply::Errno(Errno::BUSY))]);
    advise(&device).unwrap();
    let (mr, _) = mr.destroy_in(&Slow::taking(QUICK)).unwrap_err();
    device.script.expect([advised(0x101, Reply::ok()), Expect::anything(Reply::ok())]);
    advise(&device).unwrap();
    mr.destroy_in(&Slow::taking(QUICK)).unwrap();
    device.script.expect([advised(0, Reply::Errno(Errno::INVAL))]);
    assert_eq!(advise(&device).unwrap_err().errno, Errno::INVAL);
}

#[test]
fn advice_about_pinned_memory_names_its_key_in_the_error_and_not_to_the_kernel() {
    let (device, mr) = region(AccessFlags::LOCAL_WRITE);
    let sges = [Sge { addr: 0x2000, length: 16, lkey: mr.lkey() }];
    let errors = [Errno::INVAL, Errno::OPNOTSUPP].map(|errno| {
        device.script.expect([advised(0, Reply::Errno(errno))]);
        device.context.advise_mr(&device.pd, Advice::PREFETCH, AdviseFlags::FLUSH, &sges).unwrap_err()
    });
    assert_eq!(
        errors[0].to_string(),
        "advise_mr on rxe0: the key 0x101 names no on-demand paged region of this context (EINVAL)"
    );
    // A kernel without advice support reports this first.
    assert_eq!((errors[1].errno, &errors[1].cause), (Errno::OPNOTSUPP, &Cause::Unknown));
}
