//! Memory regions of every kind, device memory, DMA handles, import and export: the exact
//! attributes of each command.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

use zerocopy::IntoBytes as _;

use super::{driver_attrs, on};
use crate::channel::{Attr, DriverAttrs, Expect, Reply, Scripted, Uverbs};
use crate::cmd::context::tests::event_file;
use crate::cmd::{context, dm, dmah, mr};
use crate::errno::Errno;
use crate::error::{Cause, Result};
use crate::types::{AccessFlags, Advice, AdviseFlags, DmAttr, DmahAttr, MrAttr, Sge, TphMemType};

// `rdma/mlx5_user_ioctl_cmds.h`
const MLX5_IB_ATTR_ALLOC_DM_RESP_START_OFFSET: u16 = 0x1000;
const MLX5_IB_ATTR_ALLOC_DM_RESP_PAGE_INDEX: u16 = 0x1001;
const MLX5_IB_ATTR_ALLOC_DM_REQ_TYPE: u16 = 0x1002;
const MLX5_IB_ATTR_QUERY_CONTEXT_RESP_UCTX: u16 = 0x1000;

const KEYS: mr::MrInfo = mr::MrInfo { handle: 9, lkey: 0x11, rkey: 0x22 };

/// Returns the reply to an ioctl that creates a region.
fn keys() -> Reply {
    Reply::outputs([&9_u32.to_ne_bytes(), &0x11_u32.to_ne_bytes(), &0x22_u32.to_ne_bytes()])
}

/// Returns the reply to a write command that creates a region.
fn keys_by_write() -> Reply {
    Reply::outputs([&[9_u32, 0x11, 0x22].map(u32::to_ne_bytes).concat()])
}

fn scripted(script: impl IntoIterator<Item = (&'static str, Reply)>) -> (Uverbs, Scripted) {
    let scripted = Scripted::new(script.into_iter().map(|(command, reply)| Expect::command(command, reply)));
    (on(&scripted), scripted)
}

fn addr(addr: usize) -> *mut u8 {
    ptr::without_provenance_mut(addr)
}

/// Registers 4096 bytes in protection domain 5.
#[allow(unsafe_code)]
fn reg_mr_ex(uverbs: &Uverbs, memory: mr::Memory<'_>, iova: u64, dmah: Option<u32>) -> Result<mr::MrInfo> {
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ;
    // SAFETY: a scripted kernel does not access the memory.
    unsafe { mr::reg_mr_ex(uverbs, 5, memory, 4096, iova, access, dmah) }
}

#[allow(unsafe_code)]
fn rereg_mr(uverbs: &Uverbs, change: &mr::Change) -> Result<mr::MrInfo> {
    // SAFETY: as above.
    unsafe { mr::rereg_mr(uverbs, 9, change) }
}

#[allow(unsafe_code)]
fn reg_dmabuf_mr(uverbs: &Uverbs, fd: BorrowedFd<'_>) -> Result<mr::MrInfo> {
    // SAFETY: as above.
    unsafe { mr::reg_dmabuf_mr(uverbs, 5, fd, 0x2000, 4096, 0x7000, AccessFlags::LOCAL_WRITE) }
}

fn file() -> OwnedFd {
    event_file(libc::EFD_CLOEXEC)
}

#[test]
fn all_memory_is_the_most_bytes_that_the_command_can_name() {
    let write = "write 9: in 00000000000000000000000000000000ffffffffffffffff0000000000000000\
                 0500000040000000, out 12+0";
    let (uverbs, _scripted) = scripted([
        (
            "ioctl 0.0: 0x2 u64 0x9, 0x0 in 00000000000000000000000000000000ffffffffffffffff0000000000000000\
          0500000040000000, 0x1 out 12 bytes",
            Reply::Errno(Errno::PROTONOSUPPORT),
        ),
        (write, keys_by_write()),
    ]);
    // SAFETY: a scripted kernel does not access the memory.
    #[allow(unsafe_code)]
    let info = unsafe { mr::reg_mr(&uverbs, 5, ptr::null_mut(), usize::MAX, 0, AccessFlags::ON_DEMAND) };
    assert_eq!(info.unwrap(), KEYS);
}

#[test]
fn a_region_of_this_process_names_its_address_and_no_descriptor() {
    let (uverbs, _scripted) = scripted([(
        "ioctl 7.5: 0x0 new handle, 0x9 out 4 bytes, 0xa out 4 bytes, 0x1 handle 5, 0x5 u64 0x1000, \
         0x3 u64 0x7000, 0x4 u64 0x2000, 0x6 u32 0x5",
        keys(),
    )]);
    assert_eq!(reg_mr_ex(&uverbs, mr::Memory::Addr(addr(0x2000)), 0x7000, None).unwrap(), KEYS);
}

#[test]
fn a_region_of_a_dma_buf_names_its_descriptor_its_offset_and_the_dma_handle() {
    let fd = file();
    let text = format!(
        "ioctl 7.5: 0x0 new handle, 0x9 out 4 bytes, 0xa out 4 bytes, 0x1 handle 5, 0x5 u64 0x1000, \
         0x3 u64 0x7000, 0x7 fd {}, 0x8 u64 0x2000, 0x2 handle 3, 0x6 u32 0x5",
        fd.as_raw_fd()
    );
    let scripted = Scripted::new([Expect::command(&text, keys())]);
    let memory = mr::Memory::DmaBuf { fd: fd.as_fd(), offset: 0x2000 };
    assert_eq!(reg_mr_ex(&on(&scripted), memory, 0x7000, Some(3)).unwrap(), KEYS);
}

#[test]
fn older_kernels_register_by_their_own_commands_what_needs_no_dma_handle() {
    let old = Reply::Errno(Errno::PROTONOSUPPORT);
    let write = "write 9: in 00000000000000000020000000000000001000000000000000700000000000000500000005000000, \
                 out 12+0";
    let scripted = Scripted::new([
        Expect::anything(old.clone()),
        Expect::anything(old.clone()),
        Expect::command(write, keys_by_write()),
    ]);
    let info = reg_mr_ex(&on(&scripted), mr::Memory::Addr(addr(0x2000)), 0x7000, None);
    assert_eq!(info.unwrap(), KEYS);

    let fd = file();
    let memory = mr::Memory::DmaBuf { fd: fd.as_fd(), offset: 0x2000 };
    let dmabuf = format!(
        "ioctl 7.4: 0x0 new handle, 0x7 out 4 bytes, 0x8 out 4 bytes, 0x1 handle 5, 0x2 u64 0x2000, \
         0x3 u64 0x1000, 0x4 u64 0x7000, 0x5 u32 {:#x}, 0x6 u32 0x5",
        fd.as_raw_fd()
    );
    let scripted = Scripted::new([Expect::anything(old.clone()), Expect::command(&dmabuf, keys())]);
    assert_eq!(reg_mr_ex(&on(&scripted), memory, 0x7000, None).unwrap(), KEYS);

    for memory in [memory, mr::Memory::Addr(addr(0x2000))] {
        let scripted = Scripted::new([Expect::anything(old.clone())]);
        let error = reg_mr_ex(&on(&scripted), memory, 0x7000, Some(3)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "reg_mr on rxe0: this kernel, or its driver, has no registration with DMA handles (EOPNOTSUPP)"
        );
    }
}

#[test]
fn a_changed_region_names_what_changes_and_nothing_else() {
    let keys = || Reply::outputs([&[0x11_u32, 0x22].map(u32::to_ne_bytes).concat()]);
    let memory = Some((addr(0x2000), 4096, 0x7000));
    let (zeros, tail) = ("00".repeat(8), "00".repeat(24));
    let moved = "00200000000000000010000000000000007000000000000000000000";
    for (change, fields) in [
        (mr::Change { memory, ..mr::Change::default() }, format!("01000000{moved}00000000")),
        (
            mr::Change { pd_handle: Some(6), ..mr::Change::default() },
            format!("02000000{tail}0600000000000000"),
        ),
        (
            mr::Change { access: Some(AccessFlags::REMOTE_READ), ..mr::Change::default() },
            format!("04000000{tail}0000000004000000"),
        ),
    ] {
        let scripted = Scripted::new([Expect::anything(Reply::Errno(Errno::NOTTY))]);
        let text = format!("write 11: in {zeros}09000000{fields}, out 8+0");
        scripted.expect([Expect::command(&text, keys())]);
        assert_eq!(rereg_mr(&on(&scripted), &change).unwrap(), KEYS);
    }
    let (uverbs, _scripted) = scripted([(
        "ioctl 0.0: 0x2 u64 0xb, 0x0 in 000000000000000009000000070000000020000000000000001000000000000000\
         700000000000000600000001000000, 0x1 out 8 bytes",
        keys(),
    )]);
    let all = mr::Change { memory, pd_handle: Some(6), access: Some(AccessFlags::LOCAL_WRITE) };
    assert_eq!(rereg_mr(&uverbs, &all).unwrap(), KEYS);
}

#[test]
fn advice_carries_its_elements_in_order() {
    let sges = [Sge { addr: 0x1000, length: 16, lkey: 7 }, Sge { addr: 0x2000, length: 32, lkey: 8 }];
    let (uverbs, _scripted) = scripted([(
        "ioctl 7.2: 0x0 handle 5, 0x1 u64 0x1, 0x2 u32 0x1, \
         0x3 in 00100000000000001000000007000000\
         00200000000000002000000008000000",
        Reply::ok(),
    )]);
    mr::advise_mr(&uverbs, 5, Advice::PREFETCH_WRITE, AdviseFlags::FLUSH, &sges).unwrap();
}

#[test]
fn a_queried_region_reads_as_the_kernel_keeps_it_with_or_without_its_address() {
    let text = "ioctl 7.3: 0x0 handle 9, 0x1 out 4 bytes, 0x2 out 4 bytes, 0x3 out 8 bytes, 0x4? out 8 bytes";
    let (lkey, rkey, length) = (0x11_u32.to_ne_bytes(), 0x22_u32.to_ne_bytes(), 4096_u64.to_ne_bytes());
    let (uverbs, _scripted) = scripted([
        (text, Reply::outputs([&lkey, &rkey, &length, &0x7000_u64.to_ne_bytes()])),
        (text, Reply::outputs([&lkey, &rkey, &length])),
    ]);
    for iova in [0x7000, 0] {
        let expected = MrAttr { lkey: 0x11, rkey: 0x22, length: 4096, iova };
        assert_eq!(mr::query_mr(&uverbs, 9).unwrap(), expected);
    }
}

#[test]
fn device_memory_is_allocated_registered_and_freed() {
    let (uverbs, _scripted) = scripted([
        (
            "ioctl 14.0: 0x0 new handle, 0x1 u64 0x1000, 0x2 u32 0x6, 0x1000 out 8 bytes, \
             0x1001? out 2 bytes, 0x1002 u64 0x1",
            Reply::outputs([&4_u32.to_ne_bytes(), &0x5000_u64.to_ne_bytes(), &7_u16.to_ne_bytes()]),
        ),
        (
            "ioctl 7.0: 0x0 new handle, 0x6 out 4 bytes, 0x7 out 4 bytes, 0x3 handle 5, 0x5 handle 4, \
             0x1 u64 0x40, 0x2 u64 0x80, 0x4 u32 0x21",
            keys(),
        ),
        ("ioctl 14.1: 0x0 handle 4", Reply::ok()),
    ]);
    let (mut start_offset, mut page_index) = (0_u64, 0_u16);
    let driver = driver_attrs([
        Attr::output(MLX5_IB_ATTR_ALLOC_DM_RESP_START_OFFSET, start_offset.as_mut_bytes()),
        Attr::output(MLX5_IB_ATTR_ALLOC_DM_RESP_PAGE_INDEX, page_index.as_mut_bytes()).optional(),
        Attr::u64(MLX5_IB_ATTR_ALLOC_DM_REQ_TYPE, 1),
    ]);
    let attr = DmAttr { length: 4096, log_align: 6 };
    assert_eq!(dm::alloc_dm(&uverbs, &attr, driver).unwrap(), 4);
    assert_eq!((start_offset, page_index), (0x5000, 7));
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::ZERO_BASED;
    assert_eq!(mr::reg_dm_mr(&uverbs, 5, 4, 64, 128, access).unwrap(), KEYS);
    dm::free_dm(&uverbs, 4).unwrap();
}

#[test]
fn a_dma_handle_sends_only_the_hints_that_there_are() {
    let handle = || Reply::outputs([&3_u32.to_ne_bytes()]);
    let (uverbs, _scripted) = scripted([
        ("ioctl 17.0: 0x0 new handle, 0x1 u32 0x2, 0x2 enum 1 in , 0x3 u8 0x3", handle()),
        ("ioctl 17.0: 0x0 new handle", handle()),
        ("ioctl 17.1: 0x0 handle 3", Reply::ok()),
    ]);
    let all = DmahAttr { cpu_id: Some(2), tph_mem_type: Some(TphMemType::PERSISTENT), ph: Some(3) };
    assert_eq!(dmah::alloc_dmah(&uverbs, &all).unwrap(), 3);
    assert_eq!(dmah::alloc_dmah(&uverbs, &DmahAttr::default()).unwrap(), 3);
    dmah::dealloc_dmah(&uverbs, 3).unwrap();
}

#[test]
fn an_exported_dma_buf_is_owned_if_the_kernel_can_have_opened_it() {
    use std::os::fd::IntoRawFd;
    let text = "ioctl 18.0: 0x0 new fd, 0x1 u64 0x3000";
    let fd = file().into_raw_fd();
    let (uverbs, _scripted) = scripted([(text, Reply::outputs([&fd.to_ne_bytes()])), (text, Reply::ok())]);
    assert_eq!(dm::export_dmabuf(&uverbs, 0x3000).unwrap().as_raw_fd(), fd);
    let error = dm::export_dmabuf(&uverbs, 0x3000).unwrap_err();
    assert!(matches!(error.cause, Cause::BadReply { .. }), "{error}");
}

#[test]
fn an_imported_context_tells_its_vectors_and_has_no_events_yet() {
    let (uverbs, _scripted) = scripted([(
        "ioctl 0.4: 0x0 out 4 bytes, 0x1 out 8 bytes, 0x1000 out 8 bytes",
        Reply::outputs([&4_u32.to_ne_bytes(), &1_u64.to_ne_bytes(), &[5; 8]]),
    )]);
    let mut resp = [0; 8];
    let driver = driver_attrs([Attr::output(MLX5_IB_ATTR_QUERY_CONTEXT_RESP_UCTX, &mut resp)]);
    let info = context::query_context(&uverbs, driver).unwrap();
    assert_eq!((info.num_comp_vectors, info.core_support, info.async_fd.is_none()), (4, 1, true));
    assert_eq!(resp, [5; 8]);
}

type Command = (&'static str, &'static str, fn(&Uverbs) -> Result<()>);

/// The commands without a write struct, each with the feature that is missing from a kernel without
/// the method.
const IOCTL_ONLY: &[Command] = &[
    ("reg_dmabuf_mr", "registration of dma-bufs", |u| reg_dmabuf_mr(u, file().as_fd()).map(drop)),
    ("reg_dm_mr", "registration of device memory", |u| {
        mr::reg_dm_mr(u, 1, 2, 0, 8, AccessFlags::ZERO_BASED).map(drop)
    }),
    ("advise_mr", "advice about memory regions", |u| {
        mr::advise_mr(u, 1, Advice::PREFETCH, AdviseFlags::empty(), &[Sge { addr: 0, length: 1, lkey: 1 }])
    }),
    ("import_mr", "queries of memory regions", |u| mr::query_mr(u, 1).map(drop)),
    ("import_device", "import of devices", |u| context::query_context(u, DriverAttrs::none()).map(drop)),
    ("alloc_dm", "device memory", |u| dm::alloc_dm(u, &DmAttr::default(), DriverAttrs::none()).map(drop)),
    ("free_dm", "device memory", |u| dm::free_dm(u, 1)),
    ("export_dmabuf_fd", "export of dma-bufs", |u| dm::export_dmabuf(u, 0).map(drop)),
    ("alloc_dmah", "DMA handles", |u| dmah::alloc_dmah(u, &DmahAttr::default()).map(drop)),
    ("dealloc_dmah", "DMA handles", |u| dmah::dealloc_dmah(u, 1)),
];

#[test]
fn a_kernel_without_a_method_is_said_to_lack_it_and_is_not_asked_again() {
    for (verb, what, command) in IOCTL_ONLY {
        let scripted = Scripted::new([Expect::anything(Reply::Errno(Errno::PROTONOSUPPORT))]);
        let uverbs = on(&scripted);
        for _ in 0..2 {
            let error = command(&uverbs).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("{verb} on rxe0: this kernel, or its driver, has no {what} (EOPNOTSUPP)")
            );
        }
    }
}

#[test]
fn every_errno_of_the_memory_commands_names_the_verb() {
    let change = mr::Change { pd_handle: Some(1), ..mr::Change::default() };
    for errno in [Errno::INVAL, Errno::OPNOTSUPP, Errno::IO, Errno::BUSY] {
        let refuse = || on(&Scripted::new([Expect::anything(Reply::Errno(errno))]));
        for (verb, _, command) in IOCTL_ONLY {
            let error = command(&refuse()).unwrap_err();
            assert_eq!((error.verb, error.errno, error.cause), (*verb, errno, Cause::Unknown));
        }
        let error = rereg_mr(&refuse(), &change).unwrap_err();
        assert_eq!((error.verb, error.errno), ("rereg_mr", errno));
        let error = reg_mr_ex(&refuse(), mr::Memory::Addr(addr(0)), 0, None).unwrap_err();
        assert_eq!((error.verb, error.errno), ("reg_mr", errno));
    }
}
