//! ICRCs of packets, computed from the cached states of recent peers.

use std::net::IpAddr;

use roce::wire::ICRC_LEN;
use roce::wire::icrc::{Flow, Icrc, compute};

/// A direct-mapped cache of the ICRC states of flows. Preparing a state costs more than the CRC of
/// a short packet.
#[derive(Debug)]
pub(crate) struct Flows {
    entries: Box<[Option<(Flow, Icrc)>; Flows::LEN]>,
}

impl Flows {
    const LEN: usize = 64;

    pub(crate) fn new() -> Self {
        Self { entries: Box::new([None; Self::LEN]) }
    }

    /// Returns the ICRC state of a flow.
    #[inline]
    pub(crate) fn icrc(&mut self, flow: Flow) -> Icrc {
        let entry = &mut self.entries[Self::index(&flow)];
        match entry {
            Some((known, icrc)) if *known == flow => *icrc,
            _ => entry.insert((flow, Icrc::new(flow))).1,
        }
    }

    /// Returns the cache index of a flow. Consecutive addresses, and the ports of one peer, have
    /// different indices.
    fn index(flow: &Flow) -> usize {
        let fold = |address: IpAddr| match address {
            IpAddr::V4(v4) => v4.to_bits(),
            IpAddr::V6(v6) => {
                let bits = v6.to_bits();
                (bits >> 96 ^ bits >> 64 ^ bits >> 32 ^ bits) as u32
            }
        };
        let mixed = fold(flow.src).rotate_left(5) ^ fold(flow.dst) ^ u32::from(flow.src_port).rotate_left(11);
        (mixed.wrapping_mul(0x9e37_79b1) >> 26) as usize % Self::LEN
    }
}

/// Writes the ICRC of a packet into its last 4 bytes.
#[inline]
pub(super) fn seal(packet: &mut [u8], icrc: Icrc, ip_id: u16) {
    let seed = icrc.seed(ip_id, true, packet.len());
    if let Some((covered, end)) = packet.split_last_chunk_mut::<ICRC_LEN>() {
        *end = compute(seed, covered).to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_that_share_an_entry_do_not_share_a_state() {
        let mut flows = Flows::new();
        for round in 0..2 {
            for host in 0..=255 {
                let flow = Flow {
                    src: [10, 0, 0, host].into(),
                    dst: [10, 0, 0, 1].into(),
                    src_port: 4791,
                    dst_port: 4791,
                };
                assert_eq!(flows.icrc(flow), Icrc::new(flow), "host {host}, round {round}");
            }
        }
    }
}
