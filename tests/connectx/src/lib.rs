//! A strict software ConnectX: the device that the unmodified mlx5 kernel driver and user-space providers drive.
//!
//! What it is for: testing drivers and providers without the hardware. What hardware would refuse is refused, and complained
//! of ([`complaint::Rule`]), so that a run that breaks a rule fails. What it does not prove: that a real ConnectX, with its
//! firmware, its timing and its limits, behaves so.
//!
//! ```text
//!   vfio (server, guest memory, MSI-X) ──┐
//!                                         ├──► Fabric ──► Function ──► roce::engine
//!   a test (PlainBus) ───────────────────┘   (one or two)
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | [`bus`] | memory and interrupts, as a PCI function reaches them |
//! | [`layout`] | the device's structures as tables |
//! | [`complaint`] | the rules, and who broke them |
//! | [`trace`] | what happened, in text; a comparer |
//! | [`fabric`] | functions connected with each other; time |
//! | [`function`] | one PCI function: configuration space, initialisation segment, doorbells |
//! | `cmd` | the command interface |
//! | [`caps`] | capabilities |
//! | `eq`, `cq`, `mkey`, `qp`, `srq` | objects of the data path |
//! | `eth` | Ethernet queues of a RoCE port |
//! | `ids` | numbers of objects |
//! | [`port`] | the port: InfiniBand or RoCE |
//! | [`fault`] | what tests inject |
//! | [`vfio`] | the front end for QEMU |
//!
//! Invariant: a guest is hostile. Nothing that it stores, in a register or in its memory, makes the model panic, loop without end,
//! or allocate without bound.
//!
//! Invariant: the model asks nobody for the time, and does no input or output but through [`bus::Bus`]; only [`vfio`] does.
//!
//! # References
//! ConnectX (Ethernet adapters) programmer's reference manual, "PRM" in comments; Linux `include/linux/mlx5`;
//! InfiniBand Architecture Specification, volume 1

#![recursion_limit = "2048"]

pub mod bus;
pub mod caps;
mod cmd;
pub mod complaint;
mod cq;
mod eq;
mod eth;
pub mod fabric;
pub mod fault;
pub mod function;
mod ids;
pub mod layout;
mod mkey;
pub mod port;
mod qp;
mod srq;
#[cfg(test)]
mod testing;
pub mod trace;
pub mod vfio;
