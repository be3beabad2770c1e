//! The parts of soft devices that a connection manager needs: management datagrams and the devices
//! behind IP addresses.
//!
//! | item | content |
//! |---|---|
//! | [`Port`] | a device of this process: its address, GID, GUID, MTU and partition |
//! | [`Gsi`] | queue pair 1 of a device: management datagrams (MADs) in and out |
//! | [`resolve`] | the [`Route`] to an address that a program connects to: port and peer |
//! | [`ListenerCache`] | the same, for a connection manager that sends each listener one request |
//! | [`ports_of`] | the ports for an address that a program listens on |
//! | [`ListenerName`] | a name that leads other processes of this machine to a listener |
//! | [`Mailbox`], [`Forwarder`] | requests between processes that share an address |
//! | [`DeviceOwner`] | the process that owns a device of this machine, to detect when it ends |
//! | [`is_taken`] | whether a listener of this machine has an address and port |
//! | [`AddressWatch`], [`at_new_port`] | addresses that disappear and devices that appear |
//! | [`at_exit`] | a function that runs at process exit, to disconnect from peers |
//! | [`ForkMark`] | whether this process is a forked child, without a system call |
//!
//! # Threads
//! MADs are not delivered by callbacks. A received MAD goes into a bounded queue and makes the
//! [`Gsi`]'s descriptor readable. One connection manager thread per process is therefore enough.
//! The thread waits for the descriptors of all devices and of its [`ListenerName`] and [`Lookup`]
//! values, at most until its next deadline. The device's worker holds the lock of the data path,
//! for which acknowledgements wait. A connection's state machine must not run in the worker, nor in
//! a thread that polls a completion queue and happens to receive the packet.
//!
//! # Addresses
//! The address of a device is reachable like any IP address. Processes of the same user may share
//! the address; each service then belongs to one process ([`Mailbox`]). Programs use three kinds of
//! addresses that belong to no device:
//!
//! | a program | with | means |
//! |---|---|---|
//! | listens on | `0.0.0.0`, `::` | all ports of the process |
//! | listens on | a loopback address that no device has | any port of the process |
//! | connects to | an address of this machine | the process that listens there |
//!
//! [`ports_of`] handles the first two rows. For the third, programs connect to `localhost` or the
//! host name, but the `VERBS_SOFT=auto` devices of different users may have different addresses. A
//! listener therefore binds a *name* for its port ([`ListenerName`]) and sends the addresses of its
//! devices to clients that connect to this name. [`resolve`] connects to such names for
//! destinations on this machine.
//!
//! A connection manager should bind a name for each address of its listeners, including devices'
//! addresses. Peers then detect that no program listens any more, or that another program does
//! ([`ListenerCache::find`]). A device alone does not show this, because its program may have no
//! connection manager.
//!
//! # References
//! `rdma_cm(7)`, `rdma_resolve_addr(3)`; IBTA volume 1, chapter 12 (communication management)

mod device_owner;
mod forward;
mod gsi;
mod listener_cache;
mod port;
mod presence;
mod rendezvous;
mod resolve;

pub use crate::device::at_new_port;
pub use crate::device::exit::at_exit;
pub use crate::device::fork::ForkMark;
pub use crate::io::spare::SpareFd;
pub use device_owner::{DeviceOwner, PeerProcess};
pub use forward::{Forwarder, Mailbox};
pub use gsi::{Gsi, MAD_LEN, MadAddress, ReceivedMad};
pub use listener_cache::{Found, ListenerCache};
pub use port::Port;
pub use presence::AddressWatch;
pub use rendezvous::{ListenerName, is_taken};
pub use resolve::{Lookup, LookupId, Resolution, Route, ports_of, resolve};
