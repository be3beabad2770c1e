//! One function for each kernel method, named after it.
//!
//! | file | methods |
//! |---|---|
//! | [`id`] | `CREATE_ID`, `DESTROY_ID`, `MIGRATE_ID` |
//! | [`addr`] | `BIND`, `RESOLVE_ADDR`, their forms for IP, `RESOLVE_ROUTE`, `RESOLVE_IB_SERVICE` |
//! | [`query`] | `QUERY_ROUTE`, `QUERY` (addresses, GIDs, paths, services) |
//! | [`conn`] | `LISTEN`, `CONNECT`, `ACCEPT`, `REJECT`, `DISCONNECT`, `NOTIFY`, `INIT_QP_ATTR` |
//! | [`event`] | `GET_EVENT`, `WRITE_CM_EVENT` |
//! | [`mcast`] | `JOIN_IP_MCAST`, `JOIN_MCAST`, `LEAVE_MCAST` |
//! | [`option`] | `SET_OPTION`, `GET_OPTION` |
//! | [`probe`] | detects the kernel's features by trying commands |
//!
//! # Old and new forms
//! Structs grew at their ends. The kernel reads and writes only the fields it supports:
//!
//! | struct | grew by | an older kernel |
//! |---|---|---|
//! | `CONNECT`, `ACCEPT` | ECE | ignores it |
//! | `GET_EVENT` | ECE | does not write it: it stays zero, no options |
//! | `QUERY`, `QUERY_ROUTE` | `ibdev_index` | does not write it: it stays `u32::MAX`, unknown |
//! | `REJECT` | `reason`, once padding | rejects as `CONSUMER_DEFINED` |
//!
//! A reply buffer is initialised with values that mean "not written". Counts in replies are not
//! trusted: no more records are read than the buffer can hold.

pub(crate) mod addr;
pub(crate) mod conn;
pub(crate) mod event;
pub(crate) mod id;
pub(crate) mod mcast;
pub(crate) mod option;
pub(crate) mod probe;
pub(crate) mod query;

use verbs::{Cause, Errno, Error};

use crate::types::Address;

/// Returns the error for an address that the command cannot carry.
fn family_error(verb: &'static str, address: &Address) -> Error {
    let reason = format!("{address} is no IP address, and this kernel takes no other");
    Error::new(verb, "", Errno::AFNOSUPPORT).because(Cause::Other { reason: reason.into() })
}

/// Returns the error for a reply without the requested data.
fn bad_reply(verb: &'static str, what: &'static str) -> Error {
    Error::new(verb, "", Errno::IO).because(Cause::BadReply { what })
}

#[cfg(test)]
mod tests;
