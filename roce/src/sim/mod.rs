//! A fabric of many engines in virtual time, with seeded faults: a network for tests.
//!
//! No call waits, and the seed determines all random numbers. The same seed and calls give the same
//! packets at the same times. The seed thus reproduces a failure, and the [trace](Fabric::trace)
//! explains it.
//!
//! | module | contents |
//! |---|---|
//! | `fabric` | **start here**: [`Fabric`], virtual time and the event queue |
//! | `calls` | calls at an endpoint: memory, queue pairs, work requests, completions |
//! | `endpoint` | [`Endpoint`], an engine with its memory, completions and events |
//! | `link` | [`Link`], one direction between two endpoints: latency, bandwidth, faults |
//! | `memory` | [`VecMemory`], registered memory in vectors |
//! | `trace` | the packets, completions and events, as text |
//!
//! # Example
//! Two endpoints, a link that loses a tenth of its packets, and a message that arrives
//! nevertheless:
//! ```
//! use roce::engine::{Access, CqId, Payload, RecvWr, SendFlags, SendOp, SendWr, Status};
//! use roce::sim::{Chance, Fabric, Link};
//!
//! let mut fabric = Fabric::new(42);
//! fabric.set_default_link(Link { loss: Chance::percent(10), ..Link::default() });
//! let (a, b) = (fabric.add_endpoint(), fabric.add_endpoint());
//! let (qp_a, qp_b) = fabric.rc_pair(a, b)?;
//!
//! let source = fabric.register(a, vec![7; 5000], Access::NONE)?;
//! let target = fabric.register(b, vec![0; 8192], Access::LOCAL_WRITE)?;
//! fabric.post_recv(b, qp_b, &RecvWr { wr_id: 1, sges: &[target.sge(0, 8192)] })?;
//! fabric.post_send(a, qp_a, &SendWr {
//!     wr_id: 2,
//!     op: SendOp::Send { imm: Some(3) },
//!     flags: SendFlags { signaled: true, ..SendFlags::default() },
//!     payload: Payload::Sges(&[source.sge(0, 5000)]),
//!     remote_srq: 0,
//! })?;
//! let second = 1_000_000_000;
//! fabric.run_until_idle(second)?;
//!
//! let received = fabric.poll(b, CqId(0)).expect("a receive has completed");
//! assert_eq!((received.wr_id, received.status, received.byte_len), (1, Status::Success, 5000));
//! assert_eq!(received.imm, Some(3));
//! assert_eq!(fabric.bytes(b, &target)[..5000], [7; 5000]);
//! assert_eq!(fabric.poll(a, CqId(0)).map(|sent| sent.wr_id), Some(2));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod calls;
mod endpoint;
mod fabric;
mod link;
mod memory;
#[cfg(test)]
mod tests;
mod trace;

pub use calls::connected_attr;
pub use endpoint::{Endpoint, EndpointId, Program, Report};
pub use fabric::{Fabric, NotIdle, ReadResponses};
pub use link::{Cable, Carried, Link};
pub use memory::{Buffer, Flushed, Region, VecMemory, VecRegion};
pub use rdma_sans_io::{Chance, Rng};
pub use trace::{Fate, Record, Traced};
