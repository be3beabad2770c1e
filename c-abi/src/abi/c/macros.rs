//! `c_types!`: defines the types and constants of verbs.h in nearly ordinary Rust, and records
//! their layout for the golden test.
//!
//! | item | becomes |
//! |---|---|
//! | `pub struct ibv_pd { field: Type, .. }` | a `#[repr(C)]` struct with public fields |
//! | `pub union ibv_gid { member: Type, .. }` | a `#[repr(C)]` union with public members |
//! | `pub enum ibv_mtu: c_uint { IBV_MTU_256 = 1, .. }` | an alias of the type and constants |
//! | `pub consts define: c_int { NAME = 1, .. }` | constants |
//!
//! `consts anonymous` is for C enums without a name, and `consts define` for `#define`s. A C enum
//! is an alias of the compiler's integer type, because a program may pass any number.
//!
//! A type declared inside another C type is named `<struct>_<field>`, followed by `=` and the path
//! that leads to it in C: `ibv_send_wr.wr.rdma`. An empty path marks a type that C declares without
//! a name. C reaches its members through the outer type, and Rust reaches them through an extra
//! field (`ibv_send_wr_ext` is the type of `ibv_send_wr.ext`).

/// Defines the types and constants of verbs.h, and `LAYOUT`, which describes them for the golden
/// test.
macro_rules! c_types {
    ($(
        $(#[$m:meta])* pub $kind:ident $name:ident $(= $path:literal)? $(: $repr:ty)? { $($body:tt)* }
    )*) => {
        $( $crate::abi::c::macros::item! { $kind $name [$($repr)?] [$(#[$m])*] { $($body)* } } )*

        /// The layouts of all definitions above.
        pub(super) const LAYOUT: &[$crate::abi::c::layout::Item] = &[$(
            $crate::abi::c::macros::item_layout! { $kind $name [$($path)?] { $($body)* } }
        ),*];
    };
}
pub(super) use c_types;

/// Expands one item of [`c_types!`] to Rust code.
macro_rules! item {
    (struct $name:ident [] [$($m:tt)*] { $( $(#[$fm:meta])* $f:ident : $t:ty ),* $(,)? }) => {
        $($m)*
        #[derive(Clone, Copy, Debug)]
        #[repr(C)]
        pub struct $name {
            $( $(#[$fm])* pub $f: $t, )*
        }
    };

    (union $name:ident [] [$($m:tt)*] { $( $(#[$fm:meta])* $f:ident : $t:ty ),* $(,)? }) => {
        $($m)*
        #[derive(Clone, Copy)]
        #[repr(C)]
        pub union $name {
            $( $(#[$fm])* pub $f: $t, )*
        }

        // The active member is unknown here, so no member is printed.
        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    };

    (enum $name:ident [$repr:ty] [$($m:tt)*] { $( $(#[$cm:meta])* $n:ident = $v:expr ),* $(,)? }) => {
        $($m)*
        pub type $name = $repr;
        $( $(#[$cm])* pub const $n: $name = $v; )*
    };

    (consts $group:ident [$repr:ty] [] { $( $(#[$cm:meta])* $n:ident = $v:expr ),* $(,)? }) => {
        $( $(#[$cm])* pub const $n: $repr = $v; )*
    };
}
pub(super) use item;

/// Expands one item of [`c_types!`] to the description of its layout.
macro_rules! item_layout {
    (enum $name:ident [] { $( $(#[$cm:meta])* $n:ident = $v:expr ),* $(,)? }) => {
        $crate::abi::c::layout::Item::Constants(&[$((stringify!($n), $n as i128)),*])
    };

    (consts $group:ident [] { $( $(#[$cm:meta])* $n:ident = $v:expr ),* $(,)? }) => {
        $crate::abi::c::layout::Item::Constants(&[$((stringify!($n), $n as i128)),*])
    };

    ($kind:ident $name:ident [$($path:literal)?] { $( $(#[$fm:meta])* $f:ident : $t:ty ),* $(,)? }) => {
        $crate::abi::c::layout::Item::Type($crate::abi::c::layout::Type {
            rust_name: stringify!($name),
            path: $crate::abi::c::layout::path(&[$($path)?]),
            size: size_of::<$name>(),
            align: align_of::<$name>(),
            fields: &[$(
                $crate::abi::c::layout::Field {
                    name: stringify!($f),
                    offset: core::mem::offset_of!($name, $f),
                    size: size_of::<$t>(),
                }
            ),*],
        })
    };
}
pub(super) use item_layout;
