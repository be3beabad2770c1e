//! Functions that fail on every device: parts of the providers' own APIs, `mlx5dv_*` and `efadv_*`,
//! for programs that link `libmlx5.so.1` or `libefa.so.1`, and the sockets of `librdmacm.so.1`. The
//! working functions are in `mlx5dv` and `rdmacm`.
//!
//! | kind | returns | errno |
//! |---|---|---|
//! | `errno` | `EOPNOTSUPP` | unchanged |
//! | `minus_errno` | `-EOPNOTSUPP` | unchanged |
//! | `minus_one`, `minus_one_size` | -1, of type `int` or `ssize_t` | `EOPNOTSUPP` |
//! | `null` | a null pointer | `EOPNOTSUPP` |
//! | `nothing` | | unchanged |
//!
//! Functions of a provider's API fail as they do in rdma-core on another vendor's device, if the C
//! function checks the device. Programs then fall back to plain verbs.
//!
//! # Safety
//! Unsafe code is used to export functions under their C names. No other function in the image has
//! these names: the linker rejects duplicates. The functions declare no parameters, although C
//! passes some. In the C calling conventions on Linux, the caller owns and releases the argument
//! registers and the argument area of the stack, so a callee may ignore both. Only
//! `_mlx5dv_get_export_sizes` has parameters; it states its contract.
#![allow(unsafe_code)]

mod efa;
mod mlx5;
mod rsocket;

/// Defines and exports functions that fail, grouped by the way they fail.
macro_rules! facade {
    ($($error:ident { $($name:ident)* })*) => { $($($crate::facade::unsupported! { $error $name })*)* };
}
use facade;

/// Defines and exports one function that fails.
macro_rules! unsupported {
    (errno $name:ident) => {
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> core::ffi::c_int {
            $crate::facade::log(stringify!($name));
            libc::EOPNOTSUPP
        }
    };
    (minus_errno $name:ident) => {
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> core::ffi::c_int {
            $crate::facade::log(stringify!($name));
            -libc::EOPNOTSUPP
        }
    };
    (minus_one $name:ident) => {
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> core::ffi::c_int {
            $crate::facade::log(stringify!($name));
            nix::errno::Errno::EOPNOTSUPP.set();
            -1
        }
    };
    (minus_one_size $name:ident) => {
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> libc::ssize_t {
            $crate::facade::log(stringify!($name));
            nix::errno::Errno::EOPNOTSUPP.set();
            -1
        }
    };
    (null $name:ident) => {
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> *mut core::ffi::c_void {
            $crate::facade::log(stringify!($name));
            nix::errno::Errno::EOPNOTSUPP.set();
            core::ptr::null_mut()
        }
    };
    (nothing $name:ident) => {
        #[unsafe(no_mangle)]
        extern "C" fn $name() {}
    };
}
use unsupported;

/// Logs a call of a function that fails on every device. `errno` is unchanged.
#[cold]
fn log(name: &str) {
    let errno = nix::errno::Errno::last_raw();
    crate::abi::errno::log(&format_args!("{name}: this library has no such function (EOPNOTSUPP)"));
    nix::errno::Errno::set_raw(errno);
}
