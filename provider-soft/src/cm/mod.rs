//! The parts of soft devices that a connection manager needs: management datagrams, and the devices
//! behind IP addresses.
//!
//! | item | what it is |
//! |---|---|
//! | [`Port`] | a device of this process by its address; GID, GUID, MTU, partition |
//! | [`Gsi`] | queue pair 1 of a device: management datagrams (MADs) in and out |
//! | [`resolve`] | from the address that a program connects to, to a [`Route`]: port and peer |
//! | [`Answers`] | the same, for a connection manager that asks each listener once |
//! | [`ports_of`] | from the address that a program listens on, to ports |
//! | [`Listening`] | the name under which other processes of this machine find a listener |
//! | [`DeviceOwner`] | the process of a device of this machine, to learn of its end |
//! | [`is_taken`] | whether a listener of this machine has an address and port |
//! | [`AddressWatch`], [`at_new_port`] | addresses that go, and devices that appear |
//! | [`at_exit`] | a function that runs when the process exits, to take leave of peers |
//! | [`ForkMark`] | whether this process is a forked child, without a system call |
//!
//! # Threads
//! Nothing here calls back. A MAD that arrives goes into a bounded queue, and makes the [`Gsi`]'s
//! descriptor readable. So a connection manager waits in a thread of its own for the descriptors of
//! all devices, for those of its [`Listening`] and [`Lookup`] values, and until its next deadline;
//! one thread per process is enough. The device's worker holds the lock of the data path, and
//! acknowledgements wait for it: a state machine must not run there, nor in a thread that polls a
//! completion queue and happens to receive the packet.
//!
//! # Addresses
//! The address of a device is reachable as any IP address is, and belongs to one process, because
//! the device has UDP port 4791 of it. Programs use three kinds of addresses that are no device's:
//!
//! | a program | with | means |
//! |---|---|---|
//! | listens on | `0.0.0.0`, `::` | all ports of the process |
//! | listens on | a loopback address that no device has | any port of the process |
//! | connects to | an address of this machine | the process that listens there |
//!
//! [`ports_of`] has the first two. The third is what `localhost` and the host's name stand for,
//! while a device of `VERBS_SOFT=auto` has an address of 127.0.0.0/8 that depends on the process.
//! A listener therefore takes a *name* for its port ([`Listening`]), and returns the addresses of
//! its devices to clients that ask under that name. [`resolve`] asks for destinations on this
//! machine. A connection manager that takes a name for each address that its listeners have, those
//! of devices included, lets its peers see where nothing listens any more, or another program does
//! ([`Answers::find`]): a device alone does not say so, because its program may have no connection
//! manager.
//!
//! # References
//! `rdma_cm(7)`, `rdma_resolve_addr(3)`; IBTA volume 1, chapter 12 (communication management)

mod answers;
mod gsi;
mod owner;
mod port;
mod presence;
mod process;
mod rendezvous;
mod resolve;
mod signal;

pub use crate::exit::at_exit;
pub use crate::fork::ForkMark;
pub use answers::{Answers, Found};
pub(crate) use gsi::GsiEnd;
pub use gsi::{Gsi, MAD_LEN, MadAddress, ReceivedMad};
pub use port::Port;
pub(crate) use presence::report_new;
pub use presence::{AddressWatch, at_new_port};
pub use process::{DeviceOwner, PeerProcess};
pub use rendezvous::{Listening, is_taken};
pub use resolve::{Lookup, Question, Resolution, Route, ports_of, resolve};
