//! The reasons for failed connections.

use verbs::{Context, Gid, LinkLayer, PortAttr};

use super::options::Options;
use crate::console::Console;

/// The reason why a port has no LID.
pub const NO_LID: &str = "no subnet manager has given the port one: is one running?";

/// If the connection failed without `-g`, suggests a value for this option, because every RoCE
/// connection needs one.
pub fn advise_gid(context: &Context, port: &PortAttr, remote: Gid, options: &Options, console: &mut Console) {
    let missing = match options.gid_idx {
        None => "this side",
        Some(_) if remote.interface_id() == 0 => "the other side",
        Some(_) => return,
    };
    if port.link_layer != LinkLayer::ETHERNET {
        return;
    }
    let example = match context.find_gid(options.ib_port) {
        Ok(entry) => format!(", such as -g {} ({}) here", entry.gid_index, entry.gid.to_ipv6()),
        Err(_) => String::new(),
    };
    console.reason(format_args!("an Ethernet port needs a GID on both sides: give {missing} -g{example}"));
}
