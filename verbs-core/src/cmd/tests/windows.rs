//! Memory windows, through each command form.

use super::on;
use crate::channel::{Expect, Reply, Scripted, Uhw};
use crate::cmd::mw::{MwInfo, alloc_mw, dealloc_mw};
use crate::errno::Errno;
use crate::types::MwType;

const ALLOC_INVOKE: &str = "ioctl 0.0: 0x2 u64 0xe, 0x0 in 00000000000000000300000002000000, 0x1 out 8 bytes";
const ALLOC_WRITE: &str = "write 14: in 00000000000000000300000002000000, out 8+0";
const DESTROY: &str = "ioctl 8.0: 0x0 handle 9";
const DEALLOC_INVOKE: &str = "ioctl 0.0: 0x2 u64 0x10, 0x0 in 09000000";
const DEALLOC_WRITE: &str = "write 16: in 09000000, out 0+0";

fn allocated() -> Reply {
    Reply::outputs([&[9_u32.to_ne_bytes(), 0x4711_u32.to_ne_bytes()].concat()])
}

#[test]
fn a_window_is_allocated_through_its_write_struct() {
    let scripted = Scripted::new([
        Expect::command(ALLOC_INVOKE, allocated()),
        Expect::command(ALLOC_INVOKE, Reply::Errno(Errno::PROTONOSUPPORT)),
        Expect::command(ALLOC_WRITE, allocated()),
    ]);
    let uverbs = on(&scripted);
    for _ in 0..2 {
        let info = alloc_mw(&uverbs, 3, MwType::TYPE_2, Uhw::none()).unwrap();
        assert_eq!(info, MwInfo { handle: 9, rkey: 0x4711 });
    }
    assert_eq!(scripted.remaining(), 0);
}

#[test]
fn a_window_is_deallocated_by_its_method_or_by_its_write_struct() {
    let scripted = Scripted::new([
        Expect::command(DESTROY, Reply::ok()),
        Expect::command(DESTROY, Reply::Errno(Errno::PROTONOSUPPORT)),
        Expect::command(DEALLOC_INVOKE, Reply::ok()),
        Expect::command(DEALLOC_INVOKE, Reply::Errno(Errno::NOTTY)),
        Expect::command(DEALLOC_WRITE, Reply::ok()),
    ]);
    let uverbs = on(&scripted);
    for _ in 0..3 {
        dealloc_mw(&uverbs, 9).unwrap();
    }
    assert_eq!(scripted.remaining(), 0);
}

#[test]
fn a_driver_without_windows_is_named_with_its_errno() {
    let scripted = Scripted::new([Expect::command(ALLOC_INVOKE, Reply::Errno(Errno::OPNOTSUPP))]);
    let error = alloc_mw(&on(&scripted), 3, MwType::TYPE_2, Uhw::none()).unwrap_err();
    assert_eq!((error.verb, error.errno), ("alloc_mw", Errno::OPNOTSUPP));
    let scripted = Scripted::new([Expect::command(DESTROY, Reply::Errno(Errno::BUSY))]);
    let error = dealloc_mw(&on(&scripted), 9).unwrap_err();
    assert_eq!((error.verb, error.errno), ("dealloc_mw", Errno::BUSY));
}
