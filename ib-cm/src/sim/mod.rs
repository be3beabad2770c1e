//! A network of communication managers in virtual time with seeded faults, for tests.
//!
//! No call waits, and all randomness comes from the seed. The same seed and calls give the same
//! messages at the same times, so a seed reproduces a failure. The [trace](Net::trace) then
//! explains the failure.
//!
//! # Example
//! A handshake over a network that loses a third of all messages:
//! ```
//! use ib_cm::cm::{AcceptParams, ConnectParams, Event};
//! use ib_cm::sim::{Faults, Net};
//! use ib_cm::wire::{PortSpace, ServiceId};
//!
//! let mut net = Net::new(42);
//! net.set_faults(Faults { loss: 33, ..Faults::default() });
//! let (a, b) = (net.add_node(), net.add_node());
//! let service_id = ServiceId::ip(PortSpace::TCP, 7174);
//! net.cm(b).listen(service_id, u64::MAX, 16)?;
//! let path = net.path(a, b);
//! let now = net.now();
//! let params = ConnectParams { path, service_id, ..ConnectParams::default() };
//! let id = net.cm(a).connect(now, &params)?;
//!
//! let mut established = 0;
//! while let Some((node, event)) = net.next() {
//!     let now = net.now();
//!     match event {
//!         Event::Request(request) => {
//!             net.cm(node).accept(now, request.id, &AcceptParams::default())?;
//!         }
//!         Event::Reply(reply) => net.cm(node).ready_to_use(reply.id, Default::default())?,
//!         Event::Established { .. } => established += 1,
//!         other => panic!("{other:?}\n{}", net.trace()),
//!     }
//! }
//! assert_eq!(established, 1);
//! assert_eq!(net.cm(a).state(id), Some(ib_cm::cm::State::Established));
//! # Ok::<(), ib_cm::cm::Refused>(())
//! ```

mod net;

pub use net::{Faults, Net, NodeId};
pub use rdma_sans_io::{Chance, Rng};
