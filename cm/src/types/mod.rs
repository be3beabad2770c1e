//! The values that calls take and events carry.
//!
//! | file | content |
//! |---|---|
//! | [`address`] | [`Address`]: an IP address with its port, or an InfiniBand service |
//! | [`event_type`] | [`EventType`]: the number of an event |
//! | [`param`] | the parameters of a connection, as sent and as received |
//! | [`path`] | [`PathRecord`]: a path through an InfiniBand fabric |
//! | [`port_space`] | [`PortSpace`]: the meaning of a port number |
//! | [`reject`] | [`RejectReason`]: the reason why a peer did not accept |
//! | [`service`] | [`Service`], [`ServiceRecord`]: services of a subnet administrator |
//!
//! Invariant: numbers from the kernel and from peers are kept as received. A number without a name
//! is data, not an error.

pub(crate) mod address;
pub(crate) mod event_type;
pub(crate) mod param;
pub(crate) mod path;
pub(crate) mod port_space;
pub(crate) mod reject;
pub(crate) mod service;

pub use address::{Address, IbAddress};
pub use event_type::EventType;
pub use param::{ConnParam, PeerParam, PeerUd};
pub use path::PathRecord;
pub use port_space::PortSpace;
pub use reject::RejectReason;
pub use service::{Service, ServiceRecord};

/// Defines a newtype over a number with named values. An unnamed value is kept and displayed as its
/// number.
macro_rules! open_numbers {
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

            /// Returns the text of the value, or `None` for an unnamed value.
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

pub(crate) use open_numbers;
