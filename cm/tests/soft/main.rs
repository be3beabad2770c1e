//! Connections by address on soft devices of this process, over loopback.
//!
//! | file | what it tests |
//! |---|---|
//! | [`support`] | devices, channels with deadlines, connected pairs |
//! | [`connect`] | connections: private data, data, rejects, backlogs |
#![allow(missing_docs)]

mod connect;
mod support;
