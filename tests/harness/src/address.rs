//! [`own`]: an address for the soft devices of a case.
//!
//! Processes at one address forward messages to each other. A process that ends may take a message
//! along that it has not forwarded yet, like a network that loses a packet. Cases that run at the
//! same time therefore have different addresses.

use std::net::Ipv4Addr;

/// Returns an address of the loopback interface that belongs to this process.
pub fn own() -> Ipv4Addr {
    // The largest number of a process has 22 bits.
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
