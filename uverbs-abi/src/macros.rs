//! `header!`: defines the types and constants of one kernel header in nearly ordinary Rust. It also
//! records their layout for the golden test.
//!
//! | item | becomes |
//! |---|---|
//! | `pub struct Name = c_name { pub field: Type, .. }` | `#[repr(C)]`, `IntoBytes`, `FromBytes` |
//! | `pub request Name = c_name { pub field: Type, .. }` | the same without `FromBytes` |
//! | `pub union Name = c_name: u64 { pub m: Type => as_m, from_m, .. }` | words with conversions |
//! | `pub enum Name = c_name: u32 { C_NAME = 0, .. }` | an open newtype: unknown values are kept |
//! | `pub flags Name = c_name: u32 { C_NAME = 1 << 0, .. }` | bitflags: unknown bits are kept |
//! | `pub consts c_name: u16 { C_NAME = 0, .. }` | constants of the C enum |
//!
//! `consts anonymous` stands for unnamed C enums, `consts define` for `#define`s.
//!
//! Derives dominate this crate's compile time. Since zerocopy 0.8.32, `FromBytes` has four impls
//! per field and takes more than half of that time. A `request` therefore lacks it, and Cargo.lock
//! pins 0.8.31. An input with an array of more than 32 elements is still a `struct`, because its
//! `Default` comes from `FromBytes`. `KnownLayout` is only needed for borrowed views of bytes. No
//! type derives it, because every user copies by value. Enums and flags have no zerocopy traits,
//! because fields of these types are integers, as in C.
//!
//! A type declared inside another one in C is named by its path: `ib_uverbs_send_wr.wr.rdma`. In a
//! struct, `field: Type | other` means C's anonymous union has the second name `other` for the
//! field. `field: Type [a b]` means C also accesses `a` and `b` of `Type` without naming the field.
//! Fields named `_pad..` stand for padding that is implicit in C. C's flexible array members are
//! omitted; where such a member raises the alignment, `#[repr(align(8))]` does so instead.

/// Defines the types and constants of a kernel header. Also defines `LAYOUT`, their description for
/// the golden test.
macro_rules! header {
    ($path:literal;
     $( $(#[$m:meta])* pub $kind:ident $name:ident $(= $c:ident $(. $cp:ident)*)? $(: $repr:ident)? { $($body:tt)* } )*
    ) => {
        $( $crate::macros::item! {
            $kind $name
            [concat!($(stringify!($c) $(, ".", stringify!($cp))*)?)] [$($repr)?] [$(#[$m])*] { $($body)* }
        } )*

        /// The layout of all definitions above.
        #[cfg(feature = "layout")]
        #[doc(hidden)]
        pub const LAYOUT: $crate::layout::Header = $crate::layout::Header {
            path: $path,
            items: &[$( $crate::macros::item_layout! {
                $kind $name
                [concat!($(stringify!($c) $(, ".", stringify!($cp))*)?)] [$($repr)?] { $($body)* }
            } ),*],
        };
    };
}
pub(crate) use header;

/// Expands one item of [`header!`] to Rust code.
macro_rules! item {
    (struct $name:ident [$c:expr] [] [$($m:tt)*] $fields:tt) => {
        $crate::macros::item! { record $name [$c] [$($m)* #[derive(zerocopy::FromBytes)]] $fields }

        impl Default for $name {
            fn default() -> Self {
                zerocopy::FromZeros::new_zeroed()
            }
        }
    };

    (request $name:ident [$c:expr] [] [$($m:tt)*] $fields:tt) => {
        $crate::macros::item! { record $name [$c] [$($m)* #[derive(Default)]] $fields }
    };

    (record $name:ident [$c:expr] [$($m:tt)*] {
        $( $(#[$fm:meta])* pub $f:ident : $t:ty $(| $alias:ident)* $([ $($sub:ident)* ])? ),* $(,)?
    }) => {
        $($m)*
        #[doc = ""]
        #[doc = concat!("C: `struct ", $c, "`.")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, zerocopy::IntoBytes, zerocopy::Immutable)]
        #[repr(C)]
        pub struct $name {
            $( $(#[$fm])* #[doc = ""] #[doc = concat!("C: `", $c, ".", stringify!($f), "`.")] pub $f: $t, )*
        }
    };

    (union $name:ident [$c:expr] [$repr:ident] [$($m:tt)*] {
        $( $(#[$fm:meta])* pub $f:ident : $t:ty => $as_f:ident, $from_f:ident ),* $(,)?
    }) => {
        $($m)*
        #[doc = ""]
        #[doc = concat!("C: `union ", $c, "`. Bytes beyond the member in use are zero.")]
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable,
        )]
        #[repr(C)]
        pub struct $name {
            raw: [$repr; $crate::layout::words(&[$(size_of::<$t>()),*], size_of::<$repr>())],
        }

        impl $name {
            $(
                $(#[$fm])*
                #[doc = ""]
                #[doc = concat!("Reads the bytes as `", $c, ".", stringify!($f), "`.")]
                #[inline(always)]
                #[must_use]
                pub fn $as_f(&self) -> $t {
                    $crate::layout::read_member(self)
                }

                $(#[$fm])*
                #[doc = ""]
                #[doc = concat!("Sets `", $c, ".", stringify!($f), "`, the rest to zero.")]
                #[inline(always)]
                #[must_use]
                pub fn $from_f(value: $t) -> Self {
                    $crate::layout::write_member(&value)
                }
            )*
        }

        impl Default for $name {
            fn default() -> Self {
                zerocopy::FromZeros::new_zeroed()
            }
        }
    };

    (enum $name:ident [$c:expr] [$repr:ident] [$($m:tt)*] {
        $( $(#[$fm:meta])* $n:ident = $v:expr ),* $(,)?
    }) => {
        $($m)*
        #[doc = ""]
        #[doc = concat!("C: `enum ", $c, "`. Any number is a valid value; unknown ones are kept.")]
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(pub $repr);

        impl $name {
            $(
                $(#[$fm])*
                #[doc = ""]
                #[doc = concat!("`", stringify!($n), "` of `enum ", $c, "`: ", stringify!($v), ".")]
                pub const $n: Self = Self($v);
            )*

            /// Returns the C name of this value, or `None` for a value without a name in the kernel
            /// header.
            #[must_use]
            pub fn name(self) -> Option<&'static str> {
                const NAMES: &[($repr, &str)] = &[$(($v, stringify!($n))),*];
                NAMES.iter().find(|(value, _)| *value == self.0).map(|(_, name)| *name)
            }
        }

        impl From<$repr> for $name {
            fn from(value: $repr) -> Self {
                Self(value)
            }
        }

        impl From<$name> for $repr {
            fn from(value: $name) -> Self {
                value.0
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, concat!(stringify!($name), "({})"), self.0),
                }
            }
        }
    };

    (flags $name:ident [$c:expr] [$repr:ident] [$($m:tt)*] {
        $( $(#[$fm:ident $($fa:tt)*])* $n:ident = $v:expr ),* $(,)?
    }) => {
        $($m)*
        #[doc = ""]
        #[doc = concat!("C: `enum ", $c, "`. Unknown bits are kept.")]
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(pub $repr);

        bitflags::bitflags! {
            impl $name: $repr {
                $(
                    $(#[$fm $($fa)*])*
                    #[doc = ""]
                    #[doc = concat!("`", stringify!($n), "` of `enum ", $c, "`: ", stringify!($v), ".")]
                    const $n = $v;
                )*
                const _ = !0;
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                $crate::layout::debug_flags(f, stringify!($name), self.0, &[$((stringify!($n), $v)),*])
            }
        }
    };

    (consts $group:ident [$c:expr] [$repr:ident] $docs:tt {
        $( $(#[$fm:meta])* $n:ident = $v:expr ),* $(,)?
    }) => {
        $( $crate::macros::constant! { $group $docs [$(#[$fm])*] $n: $repr = $v } )*
    };
}
pub(crate) use item;

/// Expands to one plain constant; `$docs` is the documentation of its group.
macro_rules! constant {
    (define [$($docs:tt)*] [$($own:tt)*] $n:ident : $repr:ident = $v:expr) => {
        $($own)*
        #[doc = ""]
        $($docs)*
        pub const $n: $repr = $v;
    };
    (anonymous [$($docs:tt)*] [$($own:tt)*] $n:ident : $repr:ident = $v:expr) => {
        $($own)*
        #[doc = ""]
        $($docs)*
        pub const $n: $repr = $v;
    };
    ($group:ident [$($docs:tt)*] [$($own:tt)*] $n:ident : $repr:ident = $v:expr) => {
        $($own)*
        #[doc = ""]
        $($docs)*
        #[doc = ""]
        #[doc = concat!("`", stringify!($n), "` of `enum ", stringify!($group), "`.")]
        pub const $n: $repr = $v;
    };
}
pub(crate) use constant;

/// Expands one item of [`header!`] to a description of its layout.
#[cfg(feature = "layout")]
macro_rules! item_layout {
    (request $($rest:tt)*) => { $crate::macros::item_layout! { struct $($rest)* } };

    (struct $name:ident [$c:expr] [] {
        $( $(#[$fm:meta])* pub $f:ident : $t:ty $(| $alias:ident)* $([ $($sub:ident)* ])? ),* $(,)?
    }) => {
        $crate::layout::Item::Type($crate::layout::Type {
            c_name: $c,
            rust_name: stringify!($name),
            union: false,
            size: size_of::<$name>(),
            align: align_of::<$name>(),
            fields: &[$(
                $crate::layout::Field {
                    name: stringify!($f),
                    offset: core::mem::offset_of!($name, $f),
                    size: size_of::<$t>(),
                },
                $( $crate::layout::Field {
                    name: stringify!($alias),
                    offset: core::mem::offset_of!($name, $f),
                    size: size_of::<$t>(),
                }, )*
                $($( $crate::layout::Field {
                    name: stringify!($sub),
                    offset: core::mem::offset_of!($name, $f.$sub),
                    size: $crate::layout::size_of_field(|s: &$name| &s.$f.$sub),
                }, )*)?
            )*],
        })
    };

    (union $name:ident [$c:expr] [$repr:ident] {
        $( $(#[$fm:meta])* pub $f:ident : $t:ty => $as_f:ident, $from_f:ident ),* $(,)?
    }) => {
        $crate::layout::Item::Type($crate::layout::Type {
            c_name: $c,
            rust_name: stringify!($name),
            union: true,
            size: size_of::<$name>(),
            align: align_of::<$name>(),
            fields: &[$(
                $crate::layout::Field { name: stringify!($f), offset: 0, size: size_of::<$t>() }
            ),*],
        })
    };

    (consts $group:ident [$c:expr] [$repr:ident] { $( $(#[$fm:meta])* $n:ident = $v:expr ),* $(,)? }) => {
        $crate::layout::Item::Constants($crate::layout::Constants {
            c_name: stringify!($group),
            rust_name: None,
            bits: $repr::BITS,
            constants: &[$((stringify!($n), $n as i128)),*],
        })
    };

    ($kind:ident $name:ident [$c:expr] [$repr:ident] { $( $(#[$fm:meta])* $n:ident = $v:expr ),* $(,)? }) => {
        $crate::layout::Item::Constants($crate::layout::Constants {
            c_name: $c,
            rust_name: Some(stringify!($name)),
            bits: $repr::BITS,
            constants: &[$((stringify!($n), $name::$n.0 as i128)),*],
        })
    };
}
#[cfg(feature = "layout")]
pub(crate) use item_layout;
