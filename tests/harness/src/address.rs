//! [`own`]: an address for a case's soft devices.
//!
//! Processes at one address forward messages to each other. When a process ends, a message that it
//! has not forwarded yet is lost, like a packet in a network. Cases that run at the same time
//! therefore have different addresses.

use std::net::Ipv4Addr;

/// Returns a loopback address that only this process uses.
pub fn own() -> Ipv4Addr {
    // A process id has at most 22 bits.
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 128 | high, middle, low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_holds_the_number_of_the_process() {
        let number = u32::from(own()) & 0x003f_ffff;
        assert_eq!(number, std::process::id());
    }
}
