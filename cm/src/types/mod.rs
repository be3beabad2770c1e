//! The values that calls accept and events carry.
//!
//! | file | content |
//! |---|---|
//! | [`address`] | [`Address`]: an IP address with its port, or an InfiniBand service |
//! | [`convert`] | conversions from the kernel's verbs structs |
//! | [`event_type`] | [`EventType`]: the type of an event |
//! | [`param`] | the parameters of a connection, as sent and as received |
//! | [`path`] | [`PathRecord`]: a path through an InfiniBand fabric |
//! | [`port_space`] | [`PortSpace`]: the meaning of a port number |
//! | [`reject`] | [`RejectReason`]: the reason why a peer did not accept |
//! | [`service`] | [`Service`], [`ServiceRecord`]: services of a subnet administrator |
//!
//! Invariant: values from the kernel and from peers are kept as received. A value without a name is
//! data, not an error ([`verbs_core::open_enum`]).

pub(crate) mod address;
pub(crate) mod convert;
pub(crate) mod event_type;
pub(crate) mod param;
pub(crate) mod path;
pub(crate) mod port_space;
pub(crate) mod reject;
pub(crate) mod service;

pub use address::{Address, IbAddress};
pub use event_type::EventType;
pub use param::{ConnParam, Peer, PeerParam, PeerUd};
pub use path::PathRecord;
pub use port_space::PortSpace;
pub use reject::RejectReason;
pub use service::{Service, ServiceRecord};
