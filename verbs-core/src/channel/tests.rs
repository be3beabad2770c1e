//! Tests that [`Uverbs`] detects the methods that the kernel supports.

use super::{Expect, Reply, Scripted, Uhw, Uverbs, WriteCmd};
use crate::cmd;
use crate::errno::Errno;

#[allow(unsafe_code)]
fn uverbs(script: impl IntoIterator<Item = Expect>) -> Uverbs {
    // SAFETY: the script's descriptors belong to the test, and no memory is at stake in its queues.
    unsafe { Uverbs::new(Box::new(Scripted::new(script)), 18, "rxe0") }
}

/// Creates a context with a scripted kernel and a device whose state is queried after an `EIO`.
#[allow(unsafe_code)]
fn of_device(script: impl IntoIterator<Item = Expect>) -> Uverbs {
    // SAFETY: as in `uverbs`.
    unsafe { Uverbs::new(Box::new(Scripted::of_device(script)), 0, "mlx5_0") }
}

fn handle(number: u32) -> Vec<u8> {
    number.to_ne_bytes().to_vec()
}

const ALLOC_PD_INVOKE: &str = "ioctl 0.0: 0x2 u64 0x3, 0x0 in 0000000000000000, 0x1 out 4 bytes";
const ALLOC_PD_WRITE: &str = "write 3: in 0000000000000000, out 4+0";
const PD_DESTROY: &str = "ioctl 1.0: 0x0 handle 7";
const DEALLOC_PD_INVOKE: &str = "ioctl 0.0: 0x2 u64 0x4, 0x0 in 07000000";
const DEALLOC_PD_WRITE: &str = "write 4: in 07000000, out 0+0";

#[test]
fn a_new_kernel_gets_everything_by_ioctl() {
    let uverbs = uverbs([
        Expect::command(ALLOC_PD_INVOKE, Reply::outputs([&handle(7)])),
        Expect::command(PD_DESTROY, Reply::ok()),
    ]);
    assert_eq!(cmd::pd::alloc_pd(&uverbs, Uhw::none()).unwrap(), 7);
    cmd::pd::dealloc_pd(&uverbs, 7).unwrap();
}

#[test]
fn enotty_turns_every_ioctl_off_for_good() {
    let uverbs = uverbs([
        Expect::command(ALLOC_PD_INVOKE, Reply::Errno(Errno::NOTTY)),
        Expect::command(ALLOC_PD_WRITE, Reply::outputs([&handle(7)])),
        // Neither the method nor INVOKE_WRITE is tried again.
        Expect::command(DEALLOC_PD_WRITE, Reply::ok()),
        Expect::command(ALLOC_PD_WRITE, Reply::outputs([&handle(8)])),
    ]);
    assert_eq!(cmd::pd::alloc_pd(&uverbs, Uhw::none()).unwrap(), 7);
    cmd::pd::dealloc_pd(&uverbs, 7).unwrap();
    assert_eq!(cmd::pd::alloc_pd(&uverbs, Uhw::none()).unwrap(), 8);
}

#[test]
fn eprotonosupport_turns_one_method_off_and_no_other() {
    let uverbs = uverbs([
        Expect::command(PD_DESTROY, Reply::Errno(Errno::PROTONOSUPPORT)),
        Expect::command(DEALLOC_PD_INVOKE, Reply::ok()),
        // The method is not tried again, but INVOKE_WRITE is.
        Expect::command(DEALLOC_PD_INVOKE, Reply::ok()),
        Expect::command(ALLOC_PD_INVOKE, Reply::outputs([&handle(7)])),
    ]);
    cmd::pd::dealloc_pd(&uverbs, 7).unwrap();
    cmd::pd::dealloc_pd(&uverbs, 7).unwrap();
    cmd::pd::alloc_pd(&uverbs, Uhw::none()).unwrap();
}

#[test]
fn without_invoke_write_the_native_methods_stay() {
    let uverbs = uverbs([
        Expect::command(ALLOC_PD_INVOKE, Reply::Errno(Errno::PROTONOSUPPORT)),
        Expect::command(ALLOC_PD_WRITE, Reply::outputs([&handle(7)])),
        Expect::command(PD_DESTROY, Reply::ok()),
        Expect::command(ALLOC_PD_WRITE, Reply::outputs([&handle(7)])),
    ]);
    cmd::pd::alloc_pd(&uverbs, Uhw::none()).unwrap();
    cmd::pd::dealloc_pd(&uverbs, 7).unwrap();
    cmd::pd::alloc_pd(&uverbs, Uhw::none()).unwrap();
}

#[test]
fn any_other_errno_is_the_answer_and_nothing_is_tried_after_it() {
    for errno in
        [Errno::INVAL, Errno::NOMEM, Errno::PERM, Errno::OPNOTSUPP, Errno::BUSY, Errno::from_raw(524)]
    {
        let uverbs = uverbs([
            Expect::command(ALLOC_PD_INVOKE, Reply::Errno(errno)),
            Expect::command(PD_DESTROY, Reply::Errno(errno)),
        ]);
        let error = cmd::pd::alloc_pd(&uverbs, Uhw::none()).unwrap_err();
        assert_eq!((error.verb, &*error.device, error.errno), ("alloc_pd", "rxe0", errno));
        assert_eq!(cmd::pd::dealloc_pd(&uverbs, 7).unwrap_err().errno, errno);
    }
}

#[test]
fn an_object_is_destroyed_when_the_kernel_confirms_it_and_no_errno_does() {
    for errno in [Errno::NODEV, Errno::IO, Errno::NOENT, Errno::TIMEDOUT, Errno::BUSY] {
        let uverbs = uverbs([
            Expect::command(PD_DESTROY, Reply::Errno(errno)),
            // The device has been unplugged: the kernel confirms its own cleanup.
            Expect::command(PD_DESTROY, Reply::ok()),
        ]);
        assert_eq!(cmd::pd::dealloc_pd(&uverbs, 7).unwrap_err().errno, errno);
        cmd::pd::dealloc_pd(&uverbs, 7).unwrap();
        let uverbs = self::uverbs([
            Expect::command(PD_DESTROY, Reply::Errno(Errno::NOTTY)),
            Expect::command(DEALLOC_PD_WRITE, Reply::Errno(errno)),
            Expect::command(DEALLOC_PD_WRITE, Reply::ok()),
        ]);
        assert_eq!(cmd::pd::dealloc_pd(&uverbs, 7).unwrap_err().errno, errno);
        cmd::pd::dealloc_pd(&uverbs, 7).unwrap();
    }
}

#[test]
fn an_object_or_method_beyond_the_table_is_asked_every_time() {
    let uverbs = uverbs([
        Expect::command("ioctl 4096.3:", Reply::Errno(Errno::PROTONOSUPPORT)),
        Expect::command("ioctl 4096.3:", Reply::ok()),
        Expect::command("ioctl 1.4097:", Reply::Errno(Errno::PROTONOSUPPORT)),
        Expect::command("ioctl 1.4097:", Reply::ok()),
    ]);
    assert_eq!(uverbs.try_ioctl(4096, 3, &mut []), Ok(false));
    assert_eq!(uverbs.try_ioctl(4096, 3, &mut []), Ok(true));
    assert_eq!(uverbs.try_ioctl(1, 4097, &mut []), Ok(false));
    assert_eq!(uverbs.try_ioctl(1, 4097, &mut []), Ok(true));
}

#[test]
fn the_drivers_half_travels_on_every_way() {
    let mut reply = [0; 16];
    let uverbs = uverbs([
        Expect::command(
            "ioctl 0.0: 0x2 u64 0x3, 0x0 in 0000000000000000, 0x1 out 4 bytes, 0x1001 out 16 bytes",
            Reply::outputs([&handle(1), &[0xaa; 16]]),
        ),
        Expect::anything(Reply::Errno(Errno::NOTTY)),
        Expect::command("write 3: in 0000000000000000, out 4+16", Reply::outputs([&handle(2), &[0xbb; 16]])),
    ]);
    assert_eq!(cmd::pd::alloc_pd(&uverbs, Uhw::reply(&mut reply)).unwrap(), 1);
    assert_eq!(reply, [0xaa; 16]);
    assert_eq!(cmd::pd::alloc_pd(&uverbs, Uhw::reply(&mut reply)).unwrap(), 2);
    assert_eq!(reply, [0xbb; 16]);
}

#[test]
fn an_extended_command_says_so_in_its_number() {
    let uverbs = uverbs([
        Expect::command("ioctl 0.0: 0x2 u64 0x80000001, 0x0 in 0000000000000000", Reply::Errno(Errno::NOTTY)),
        Expect::command("write_ex 1: in 0000000000000000, out 0+0", Reply::ok()),
    ]);
    uverbs.write(WriteCmd::extended(1, &[0; 8], &mut [], Uhw::none())).unwrap();
}

const GID: &str = "ioctl 0.6: 0x0 u64 0x1, 0x1 u64 0x0, 0x2 u32 0x0, 0x3 out 32 bytes";

/// Returns the error text of a command that failed with `errno`, on a device that sends these
/// replies next.
fn sentence(errno: Errno, replies: &[(&str, Reply)]) -> String {
    let replies = replies.iter().map(|(command, reply)| Expect::command(command, reply.clone()));
    of_device(replies).error("create_qp", errno).to_string()
}

#[test]
fn a_device_without_a_context_is_gone() {
    let said = sentence(Errno::IO, &[(GID, Reply::Errno(Errno::IO))]);
    assert!(said.starts_with("create_qp on mlx5_0: the device is gone") && said.ends_with("(EIO)"), "{said}");
}

#[test]
fn a_device_that_queries_nothing_has_failed() {
    const PORT: &str = "ioctl 0.2: 0x0 u64 0x1, 0x1 out 48 bytes";
    for gid in [Reply::ok(), Reply::Errno(Errno::NODATA)] {
        for errno in [Errno::IO, Errno::TIMEDOUT, Errno::NXIO] {
            let replies = [(GID, gid.clone()), (PORT, Reply::Errno(errno))];
            let said = sentence(Errno::IO, &replies);
            assert!(said.starts_with("create_qp on mlx5_0: the device has failed"), "{said}");
        }
    }
    let said = sentence(Errno::IO, &[(GID, Reply::ok()), (PORT, Reply::ok())]);
    assert!(said.starts_with("create_qp on mlx5_0: the device failed the command"), "{said}");
    let said = sentence(Errno::NXIO, &[(GID, Reply::ok()), (PORT, Reply::ok())]);
    assert_eq!(said, "create_qp on mlx5_0: No such device or address (ENXIO)");
}

#[test]
fn a_kernel_without_the_query_of_a_gid_is_asked_for_the_port_alone() {
    const WRITE: &str = "write 2: in 00000000000000000100000000000000, out 40+0";
    let said = sentence(Errno::IO, &[(GID, Reply::Errno(Errno::NOTTY)), (WRITE, Reply::Errno(Errno::IO))]);
    assert!(said.starts_with("create_qp on mlx5_0: the device has failed"), "{said}");
}

#[test]
fn other_errors_ask_nothing() {
    for errno in [Errno::INVAL, Errno::NOMEM, Errno::TIMEDOUT] {
        let said = sentence(errno, &[]);
        assert_eq!(said, format!("create_qp on mlx5_0: {} ({errno})", errno.description()));
    }
}
