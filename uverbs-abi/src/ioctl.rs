//! ioctl numbers, encoded as `include/uapi/asm-generic/ioctl.h` does.
//!
//! This encoding holds on x86, arm, riscv, s390 and loongarch. mips, powerpc and sparc encode the
//! direction differently and are not supported.

#[cfg(any(
    target_arch = "mips",
    target_arch = "mips64",
    target_arch = "powerpc",
    target_arch = "powerpc64",
    target_arch = "sparc",
    target_arch = "sparc64"
))]
compile_error!("this architecture encodes ioctl numbers differently");

const IOC_WRITE: u32 = 1;
const IOC_READ: u32 = 2;

const fn ioc(direction: u32, r#type: u32, nr: u32, size: usize) -> u32 {
    assert!(r#type < 1 << 8 && nr < 1 << 8 && size < 1 << 14);
    direction << 30 | (size as u32) << 16 | r#type << 8 | nr
}

/// Returns the number of an ioctl without an argument struct (C: `_IO`).
#[cfg(feature = "mad")]
pub(crate) const fn io(r#type: u32, nr: u32) -> u32 {
    ioc(0, r#type, nr, 0)
}

/// Returns the number of an ioctl whose argument of `size` bytes the kernel writes (C: `_IOR`).
#[cfg(feature = "mad")]
pub(crate) const fn ior(r#type: u32, nr: u32, size: usize) -> u32 {
    ioc(IOC_READ, r#type, nr, size)
}

/// Returns the number of an ioctl whose argument of `size` bytes the kernel reads (C: `_IOW`).
#[cfg(feature = "mad")]
pub(crate) const fn iow(r#type: u32, nr: u32, size: usize) -> u32 {
    ioc(IOC_WRITE, r#type, nr, size)
}

/// Returns the number of an ioctl whose argument of `size` bytes the kernel reads and writes (C:
/// `_IOWR`).
pub(crate) const fn iowr(r#type: u32, nr: u32, size: usize) -> u32 {
    ioc(IOC_READ | IOC_WRITE, r#type, nr, size)
}
