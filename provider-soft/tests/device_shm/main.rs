//! The tests of `device`, with packets through memory instead of UDP. Tests that inject or count
//! socket packets are left out.
#![allow(missing_docs)]

#[path = "../common/mod.rs"]
mod common;

#[path = "../device/causes.rs"]
mod causes;
#[path = "../device/dm.rs"]
mod dm;
#[path = "../device/events.rs"]
mod events;
#[path = "../device/events_read.rs"]
mod events_read;
#[path = "../device/failures.rs"]
mod failures;
mod links;
#[path = "../device/multicast.rs"]
mod multicast;
#[path = "../device/odp.rs"]
mod odp;
#[path = "../device/scale.rs"]
mod scale;
#[path = "../device/traffic.rs"]
mod traffic;
#[path = "../device/xrcd.rs"]
mod xrcd;

/// Whether packets between devices opened by [`common::open`] travel through memory.
const SHARED_MEMORY: bool = true;
