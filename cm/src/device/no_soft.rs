//! Stand-ins for a build without soft devices (the feature `soft`). The process has no soft port,
//! so code that looks for a port is the same in both builds.

use std::net::IpAddr;

use verbs::{Device, Guid, Skipped};

/// A port of a soft device. This type has no values.
#[derive(Clone, Debug)]
pub(crate) enum Port {}

impl Port {
    pub(crate) fn all() -> Vec<Self> {
        Vec::new()
    }

    pub(crate) fn missing() -> Option<Skipped> {
        None
    }

    pub(crate) fn with_address(_: IpAddr) -> Option<Self> {
        None
    }

    pub(crate) fn address(&self) -> IpAddr {
        match *self {}
    }

    pub(crate) fn node_guid(&self) -> Guid {
        match *self {}
    }

    pub(crate) fn reaches_network(&self) -> bool {
        match *self {}
    }
}

/// Returns the verbs device of a port.
pub(crate) fn verbs_device(port: &Port) -> Device {
    match *port {}
}
