//! Names of completion statuses, events, port states and node types, as C strings.
//!
//! The names come from `verbs_core` and are identical to rdma-core's, because programs compare and
//! parse them.
//!
//! # Safety
//! The functions are exported under names reserved by this library's version script.
#![allow(unsafe_code)]

use core::ffi::c_char;

use verbs_core::discovery::NodeType;
use verbs_core::types::{AsyncEventType, PortState, WcStatus};

use crate::abi::c::{ibv_event_type, ibv_node_type, ibv_port_state, ibv_wc_status};

/// A name, with its terminator and zero padding.
type Name = [u8; 48];

/// The text for a value without a name.
static UNKNOWN: Name = name("unknown");

const fn name(text: &str) -> Name {
    let mut name = [0; size_of::<Name>()];
    assert!(text.len() < name.len(), "there is room for the terminator");
    let mut at = 0;
    while at < text.len() {
        name[at] = text.as_bytes()[at];
        at += 1;
    }
    name
}

/// Defines, for each enumeration whose named values are numbered from 0, an exported function that
/// returns the name of a value.
macro_rules! names {
    ($($(#[$doc:meta])* $function:ident($argument:ident: $c:ty) of $values:ident;)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $function($argument: $c) -> *const c_char {
            static NAMES: [Name; $values::NAMED.len()] = {
                let mut names = [UNKNOWN; $values::NAMED.len()];
                let mut number = 0;
                while number < names.len() {
                    match $values(number as _).name() {
                        Some(text) => names[number] = name(text),
                        None => panic!("a number below the highest has no name"),
                    }
                    number += 1;
                }
                names
            };
            usize::try_from($argument).ok().and_then(|number| NAMES.get(number)).unwrap_or(&UNKNOWN).as_ptr().cast()
        }
    )*};
}

names! {
    /// Returns the name of a completion status, or `unknown`.
    ///
    /// # References
    /// `ibv_poll_cq(3)`
    ibv_wc_status_str(status: ibv_wc_status) of WcStatus;

    /// Returns the name of an asynchronous event, or `unknown`.
    ///
    /// # References
    /// `ibv_event_type_str(3)`
    ibv_event_type_str(event: ibv_event_type) of AsyncEventType;

    /// Returns the name of a port state, or `unknown`.
    ///
    /// # References
    /// `ibv_event_type_str(3)`
    ibv_port_state_str(port_state: ibv_port_state) of PortState;

    /// Returns the name of a node type, or `unknown`.
    ///
    /// # References
    /// `ibv_event_type_str(3)`
    ibv_node_type_str(node_type: ibv_node_type) of NodeType;
}

#[cfg(test)]
mod tests {
    use core::ffi::CStr;

    use super::*;

    fn text(name: *const c_char) -> &'static str {
        // SAFETY: the functions return a static, terminated array.
        unsafe { CStr::from_ptr(name) }.to_str().unwrap()
    }

    /// The names that rdma-core 44.0 returns for 0, 1, 2, ... All other numbers return `unknown`.
    const WC_STATUS: &[&str] = &[
        "success",
        "local length error",
        "local QP operation error",
        "local EE context operation error",
        "local protection error",
        "Work Request Flushed Error",
        "memory management operation error",
        "bad response error",
        "local access error",
        "remote invalid request error",
        "remote access error",
        "remote operation error",
        "transport retry counter exceeded",
        "RNR retry counter exceeded",
        "local RDD violation error",
        "remote invalid RD request",
        "aborted error",
        "invalid EE context number",
        "invalid EE context state",
        "fatal error",
        "response timeout error",
        "general error",
        "TM error",
        "TM software rendezvous",
    ];

    /// Same as [`WC_STATUS`], except that the last name is from rdma-core 61.
    const EVENT_TYPE: &[&str] = &[
        "CQ error",
        "local work queue catastrophic error",
        "invalid request local work queue error",
        "local access violation work queue error",
        "communication established",
        "send queue drained",
        "path migrated",
        "path migration request error",
        "local catastrophic error",
        "port active",
        "port error",
        "LID change",
        "P_Key change",
        "SM change",
        "SRQ catastrophic error",
        "SRQ limit reached",
        "last WQE reached",
        "client reregistration",
        "GID table change",
        "WQ fatal",
        "Device link speed change",
    ];

    /// Same as [`WC_STATUS`].
    const PORT_STATE: &[&str] = &["no state change (NOP)", "down", "init", "armed", "active", "active defer"];

    /// Same as [`WC_STATUS`].
    const NODE_TYPE: &[&str] = &[
        "unknown",
        "InfiniBand channel adapter",
        "InfiniBand switch",
        "InfiniBand router",
        "iWARP NIC",
        "usNIC",
        "usNIC UDP",
        "unspecified",
    ];

    #[test]
    fn names_are_those_that_the_c_library_returns() {
        type Case = (&'static [&'static str], fn(i32) -> *const c_char);
        let functions: [Case; 4] = [
            (WC_STATUS, |number| ibv_wc_status_str(number as _)),
            (EVENT_TYPE, |number| ibv_event_type_str(number as _)),
            (PORT_STATE, |number| ibv_port_state_str(number as _)),
            (NODE_TYPE, |number| ibv_node_type_str(number as _)),
        ];
        for (names, function) in functions {
            for number in (-2..40).chain([255, 256, i32::MIN, i32::MAX]) {
                let expected = usize::try_from(number).ok().and_then(|number| names.get(number));
                assert_eq!(text(function(number)), *expected.unwrap_or(&"unknown"), "{number}");
            }
        }
    }
}
