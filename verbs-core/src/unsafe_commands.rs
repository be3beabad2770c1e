//! Attempts to command the kernel without unsafe code. None of them compiles.
//!
//! Each program exists twice, with `unsafe` around the step and without. The first compiles, so the
//! second fails only because `unsafe` is missing.

/// A step that needs `unsafe`: the names in scope, the program's values, and the step.
macro_rules! needs_unsafe {
    ($name:ident, $uses:literal, $values:literal, $step:literal) => {
        #[doc = concat!(
            "```compile_fail\n#![forbid(unsafe_code)]\n", $uses, "\nfn attack(", $values, ") {\nlet _ = ", $step, ";\n}\n```"
        )]
        #[doc = concat!("```no_run\n", $uses, "\nfn attack(", $values, ") {\nlet _ = unsafe { ", $step, " };\n}\n```")]
        struct $name;
    };
}

/// A step that is never permitted and a permitted alternative.
macro_rules! impossible {
    ($name:ident, $uses:literal, $values:literal, $step:literal, instead $other:literal) => {
        #[doc = concat!("```compile_fail\n", $uses, "\nfn attack(", $values, ") {\nlet _ = ", $step, ";\n}\n```")]
        #[doc = concat!("```no_run\n", $uses, "\nfn attack(", $values, ") {\nlet _ = ", $other, ";\n}\n```")]
        struct $name;
    };
}

impossible!(
    ADeviceWithAnotherFile,
    "use verbs_core::discovery::DeviceInfo;",
    "device: &mut DeviceInfo",
    "{ device.cdev_path = \"/dev/null\".into() }",
    instead "device.cdev_path()"
);

impossible!(
    ADeviceWithAnotherNumber,
    "use verbs_core::discovery::{DevNum, DeviceInfo};",
    "device: &DeviceInfo",
    "DeviceInfo { dev: Some(DevNum { major: 1, minor: 3 }), ..device.clone() }",
    instead "device.dev()"
);

needs_unsafe!(
    ADeviceOfPartsOfOnesOwn,
    "use verbs_core::discovery::{DeviceInfo, DeviceParts};",
    "parts: DeviceParts",
    "DeviceInfo::from_parts(parts)"
);

needs_unsafe!(
    ADiscoveryWithOtherFiles,
    "use verbs_core::{Errno, discovery::{Roots, discover_at}};",
    "roots: &Roots",
    "discover_at(roots, Err(Errno::NODEV))"
);

needs_unsafe!(
    TheCommandsOfAFile,
    "use verbs_core::{channel::Uverbs, discovery::DeviceInfo};",
    "device: &DeviceInfo",
    "Uverbs::open(device, 14)"
);

needs_unsafe!(
    TheCommandsOfAContext,
    "use verbs_core::kernel::KernelContext;",
    "context: &KernelContext",
    "context.uverbs()"
);

needs_unsafe!(
    TheRightToAContext,
    "use std::sync::Arc; use verbs_core::kernel::{Kernel, KernelContext};",
    "context: Arc<KernelContext>",
    "Kernel::new(context)"
);

needs_unsafe!(
    AKernelOfOnesOwn,
    "use verbs_core::channel::{Scripted, Uverbs};",
    "kernel: Scripted",
    "Uverbs::new(Box::new(kernel), 14, \"rxe0\")"
);

needs_unsafe!(
    AMethodOfADriver,
    "use verbs_core::channel::{Attr, Uverbs};",
    "uverbs: &Uverbs, address: u64",
    "uverbs.driver_ioctl(\"verb\", \"what\", 1, 0x1000, &mut [Attr::u64(0x1000, address)])"
);

needs_unsafe!(
    AQueueMappedFromTheFile,
    "use std::os::fd::BorrowedFd; use verbs_core::ring::Region;",
    "file: BorrowedFd<'_>",
    "Region::map(file, 0x1000, 4096)"
);

needs_unsafe!(
    AQueueMappedByACommandChannel,
    "use verbs_core::channel::Channel;",
    "channel: &dyn Channel",
    "channel.map(0x1000, 4096)"
);

needs_unsafe!(AnIndexOfAQueue, "use verbs_core::ring::Region;", "queue: &Region", "queue.index(128)");

needs_unsafe!(
    ASlotOfAQueue,
    "use verbs_core::ring::Region;",
    "queue: &Region",
    "queue.write(384, 0x1122_3344_5566_7788_u64)"
);

needs_unsafe!(
    ADoorbellOfAPage,
    "use verbs_core::ring::{Doorbell, Region};",
    "page: &Region",
    "Doorbell::new(page, 0x20)"
);

needs_unsafe!(
    MemoryForADevice,
    "use verbs_core::{channel::Uverbs, cmd::mr::reg_mr, types::AccessFlags};",
    "uverbs: &Uverbs, memory: &[u8]",
    "reg_mr(uverbs, 1, memory.as_ptr().cast_mut(), memory.len(), 0, AccessFlags::LOCAL_WRITE)"
);
