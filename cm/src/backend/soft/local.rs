//! Whether an address of this machine has a device: a socket on UDP port 4791.
//!
//! On Linux the kernel rejects a request for which no program listens, on each of its addresses.
//! Without a device nothing would answer on an address such as 127.0.0.1, and a client that comes
//! before its server would wait more than a minute for the protocol to give up. The kernel's tables
//! of sockets show that without a packet to whoever else has the port.
//!
//! # References
//! `proc(5)` (`/proc/net/udp`)

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use verbs::Gid;
use verbs::soft::cm::Port;

/// Returns whether a device may have an address of this machine. Where the tables cannot be read,
/// one may.
pub(super) fn has_device(gid: Gid) -> bool {
    let ip = gid.to_ipv6().to_canonical();
    if Port::with_address(ip).is_some() {
        return true;
    }
    let tables = ["/proc/net/udp", "/proc/net/udp6"].map(fs::read_to_string);
    match tables {
        [Ok(v4), v6] => [v4, v6.unwrap_or_default()].iter().any(|table| has_socket(table, ip)),
        [Err(_), _] => true,
    }
}

/// Returns whether a table has a socket on the port of RoCEv2 that receives what is sent to an
/// address.
fn has_socket(table: &str, ip: IpAddr) -> bool {
    let locals = table.lines().skip(1).filter_map(|line| line.split_whitespace().nth(1));
    locals.filter_map(parse).any(|(local, port)| {
        // One on `::` may take IPv4 too.
        port == ROCE_PORT && (local == ip || local.is_unspecified())
    })
}

/// Parses an address: 32-bit words as the machine has them in memory, and the port.
fn parse(text: &str) -> Option<(IpAddr, u16)> {
    let (address, port) = text.split_once(':')?;
    let word = |at: usize| {
        let digits = address.get(at * 8..at * 8 + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    let ip = if address.len() == 8 {
        Ipv4Addr::from(word(0)?).into()
    } else {
        let mut octets = [0; 16];
        for (at, part) in octets.chunks_exact_mut(4).enumerate() {
            part.copy_from_slice(&word(at)?);
        }
        Ipv6Addr::from(octets).to_canonical()
    };
    Some((ip, u16::from_str_radix(port, 16).ok()?))
}

/// UDP port 4791.
const ROCE_PORT: u16 = 4791;

#[cfg(all(test, target_endian = "little"))]
mod tests {
    use super::*;

    const HEAD: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr\n";

    #[test]
    fn a_socket_on_the_port_is_a_device_on_its_address() {
        let table =
            format!("{HEAD}   1: 0201007F:12B7 00000000:0000 07\n   2: 0100007F:0035 00000000:0000 07\n");
        assert!(has_socket(&table, [127, 0, 1, 2].into()));
        assert!(!has_socket(&table, [127, 0, 0, 1].into()), "another port");
        let any = format!("{HEAD}   1: 00000000:12B7 00000000:0000 07\n");
        assert!(has_socket(&any, [127, 0, 0, 1].into()));
        assert!(!has_socket(HEAD, [127, 0, 0, 1].into()));
    }

    #[test]
    fn addresses_of_both_families_are_read() {
        let v6 = "00000000000000000000000001000000:12B7";
        assert_eq!(parse(v6), Some((Ipv6Addr::LOCALHOST.into(), 4791)));
        let mapped = "0000000000000000FFFF00000100007F:12B7";
        assert_eq!(parse(mapped), Some(([127, 0, 0, 1].into(), 4791)));
        for text in ["", ":", "0100007F", "0100007:12B7", "0100007F:", "zz00007F:12B7", "0100007F01:12B7"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
