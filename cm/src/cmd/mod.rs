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
//! | [`convert`] | the kernel's structs of verbs as values |
//!
//! # Old and new forms
//! Structs grew at their ends, and the kernel takes and writes as many bytes as it knows:
//!
//! | struct | grew by | an older kernel |
//! |---|---|---|
//! | `CONNECT`, `ACCEPT` | ECE | ignores it |
//! | `GET_EVENT` | ECE | leaves it as it was: zero, no options |
//! | `QUERY`, `QUERY_ROUTE` | `ibdev_index` | leaves it as it was: `u32::MAX`, unknown |
//! | `REJECT` | `reason`, once padding | rejects as `CONSUMER_DEFINED` |
//!
//! A reply starts with the values that stand for "not written". Counts in replies are claims: no
//! more records are read than there was room for.

pub(crate) mod addr;
pub(crate) mod conn;
pub(crate) mod convert;
pub(crate) mod event;
pub(crate) mod id;
pub(crate) mod mcast;
pub(crate) mod option;
pub(crate) mod query;

use verbs::{Cause, Errno, Error};

use crate::types::Address;

/// Returns the error of an address that the command cannot carry.
fn family_error(verb: &'static str, address: &Address) -> Error {
    let reason = format!("{address} is no IP address, and this kernel takes no other");
    Error::new(verb, "", Errno::AFNOSUPPORT).because(Cause::Other { reason: reason.into() })
}

/// Returns the error of a reply that misses what was asked for.
fn bad_reply(verb: &'static str, what: &'static str) -> Error {
    Error::new(verb, "", Errno::IO).because(Cause::BadReply { what })
}

#[cfg(test)]
mod tests;
