//! A strict software ConnectX: a device model for the unmodified mlx5 kernel driver and user-space
//! providers.
//!
//! The model tests drivers and providers without hardware. It rejects what hardware would reject
//! and records a complaint ([`complaint::Rule`]), so a run that breaks a rule fails. It does not
//! prove that a real ConnectX, with its firmware, timing and limits, behaves the same.
//!
//! ```text
//!   vfio (server, guest memory, MSI-X) ──┐
//!                                         ├──► Fabric ──► Function ──► roce::engine
//!   a test (PlainBus) ───────────────────┘   (one or two)
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`bus`] | guest memory and interrupts, as seen by a PCI function |
//! | [`layout`] | the device's structures as tables |
//! | [`complaint`] | the rules, and complaints about violations |
//! | [`trace`] | a text trace of device activity; a comparer |
//! | [`fabric`] | connected functions; time |
//! | [`function`] | one PCI function: configuration space, initialisation segment, doorbells |
//! | `cmd` | the command interface |
//! | [`caps`] | capabilities |
//! | `eq`, `cq`, `mkey`, `qp`, `srq` | objects of the data path |
//! | `tags` | tag lists of shared receive queues |
//! | `memic` | device memory |
//! | `paging` | page faults: memory whose pages are not present |
//! | `eth` | Ethernet queues of a RoCE port |
//! | `destination` | destination MAC addresses of RoCE senders |
//! | `ids` | allocation of object numbers |
//! | [`port`] | the port: InfiniBand or RoCE |
//! | [`fault`] | fault injection |
//! | [`vfio`] | the front end for QEMU |
//! | `testing` | a small driver for tests, on plain memory |
//!
//! # Path of a doorbell
//! ```text
//!   Fabric::bar_write       fabric            QEMU's message: a store of the guest
//!   Function::uar_write     function/uar      the register; BlueFlame is compared with the queue
//!   fetch, decode           qp/sq, qp/wqe     doorbell record, work requests, all of their rules
//!   Engine::post_send       roce::engine      the engine of soft devices; packets to the peer
//!   Sink::complete          qp/completion     a completion in guest memory, an event, an interrupt
//! ```
//!
//! Invariant: a guest is hostile. No store into a register or into memory makes the model panic,
//! loop forever or allocate without bound.
//!
//! Invariant: the model reads no clock and does input and output only through [`bus::Bus`]. The
//! only exception is [`vfio`].
//!
//! # References
//! ConnectX (Ethernet adapters) programmer's reference manual, "PRM" in comments; Linux
//! `include/linux/mlx5`; InfiniBand Architecture Specification, volume 1

#![recursion_limit = "2048"]

pub mod bus;
pub mod caps;
mod cmd;
pub mod complaint;
mod cq;
mod destination;
mod eq;
mod eth;
pub mod fabric;
pub mod fault;
pub mod function;
mod ids;
pub mod layout;
mod memic;
mod mkey;
mod paging;
pub mod port;
mod qp;
mod srq;
mod tags;
#[cfg(test)]
mod testing;
pub mod trace;
pub mod vfio;
