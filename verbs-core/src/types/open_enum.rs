//! [`open_enum!`]: an enumeration that preserves unknown values. `rdma-cm` uses it too.

/// Defines a newtype over an integer with named values. Unnamed values are preserved and shown as
/// numbers.
#[doc(hidden)]
#[macro_export]
macro_rules! open_enum {
    (
        $(#[$meta:meta])*
        pub enum $name:ident($raw:ty) {
            $($(#[$vmeta:meta])* $variant:ident = $value:expr, $text:literal;)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub $raw);

        impl $name {
            $($(#[$vmeta])* pub const $variant: Self = Self($value);)*

            /// Every named value, in numerical order.
            pub const NAMED: &'static [Self] = &[$(Self::$variant),*];

            /// Returns the value's text (the same as rdma-core's, if it has one), or `None` for an
            /// unnamed value.
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$variant => Some($text),)*
                    _ => None,
                }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => f.pad(name),
                    None => write!(f, "unknown ({})", self.0),
                }
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match *self {
                    $(Self::$variant => f.write_str(stringify!($variant)),)*
                    _ => write!(f, concat!(stringify!($name), "({})"), self.0),
                }
            }
        }
    };
}

pub(crate) use open_enum;
