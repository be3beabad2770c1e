//! A strict software ConnectX: a device model for the unmodified mlx5 kernel driver and user-space
//! providers.
//!
//! The model tests drivers and providers without hardware. It rejects requests that hardware would
//! reject and records a complaint ([`complaint::Rule`]), so a run that breaks a rule fails. It does
//! not prove that a real ConnectX, with its firmware, timing and limits, behaves the same.
//!
//! ```text
//!   vfio (server, guest memory, MSI-X) ──┐
//!                                         ├──► Fabric ──► Function ──► roce::engine
//!   a test (PlainBus) ───────────────────┘   (one or two)
//! ```
//!
//! The modules, from top to bottom. A module imports only modules below it:
//!
//! | module | contents |
//! |---|---|
//! | [`vfio`] | the front end for QEMU |
//! | `control` | executes lines that inject faults and read the state |
//! | [`fabric`] | connected functions; packets and time |
//! | `cmd` | the command interface |
//! | `pci` | configuration space and BAR 0: initialisation segment, doorbells, device memory |
//! | `eth` | data path of Ethernet queues: work requests to frames, frames to completions |
//! | `paging` | page faults: memory whose pages are not present |
//! | `qp` | data path of queue pairs: work requests, receives, tag matching, completions |
//! | `cq`, `mkey` | completions in guest memory; changes to memory keys |
//! | `eq` | events and interrupts |
//! | [`function`] | one PCI function: its state, and the doorbell records |
//! | [`caps`] | capabilities |
//! | `state` | the state of each object: **start at** `state/qp.rs` |
//! | `memic` | device memory |
//! | `config` | the parameters of a function, and its BARs |
//! | [`port`] | the port, InfiniBand or RoCE |
//! | `frame`, `tags` | Ethernet frames; tag lists of shared receive queues |
//! | `checks` | checks that several commands share |
//! | `refusal`, `log`, `pages` | rejected commands; complaints and trace; buffers of guest pages |
//! | [`fault`] | injected faults and their language |
//! | [`trace`] | a text trace of device activity, and a tool to compare traces |
//! | [`layout`] | the device's structures as tables |
//! | [`complaint`] | the rules and the complaints about violations |
//! | [`bus`] | guest memory and interrupts, as seen by a PCI function |
//! | `destination`, `ids` | destination MAC addresses of RoCE senders; object numbers |
//! | `testing` | a small driver on plain memory, for tests |
//!
//! # Path of a doorbell
//! ```text
//!   Fabric::bar_write       fabric            QEMU's message: a store of the guest
//!   Function::uar_write     pci/uar           the register; BlueFlame is compared with the queue
//!   fetch, decode           qp/sq, qp/wqe     doorbell record, work requests, all of their rules
//!   Engine::post_send       roce::engine      the engine of soft devices; packets to the peer
//!   Sink::complete          qp/completion     a completion in guest memory, an event, an interrupt
//! ```
//!
//! Invariant: a guest may be hostile. No store to a register or to memory makes the model panic,
//! loop forever or allocate without bound.
//!
//! Invariant: the model reads no clock and performs I/O only through [`bus::Bus`]. The only
//! exception is [`vfio`].
//!
//! # References
//! ConnectX (Ethernet adapters) programmer's reference manual, "PRM" in comments; Linux
//! `include/linux/mlx5`; InfiniBand Architecture Specification, volume 1

#![recursion_limit = "2048"]

pub mod bus;
pub mod caps;
mod checks;
mod cmd;
pub mod complaint;
mod config;
mod control;
mod cq;
mod destination;
mod eq;
mod eth;
pub mod fabric;
pub mod fault;
mod frame;
pub mod function;
mod ids;
pub mod layout;
mod log;
mod memic;
mod mkey;
mod pages;
mod paging;
mod pci;
pub mod port;
mod qp;
mod refusal;
mod state;
mod tags;
#[cfg(test)]
mod testing;
pub mod trace;
pub mod vfio;
