//! [`Parsed`]: the headers of an Ethernet frame. This file also provides a NIC's offloads:
//! checksums and segmentation.
//!
//! Invariant: a frame holds arbitrary bytes from a guest. A truncated header counts as absent.
//!
//! # References
//! IEEE 802.3, RFC 791, 8200, 9293, 768, 1071 (checksum)

/// Minimum frame length, in bytes, without the check sequence; shorter frames are padded.
pub(crate) const MIN_FRAME: usize = 60;
/// Length of an Ethernet header, in bytes: both addresses and the type.
pub(crate) const ETHERNET_HEADER: usize = 14;
const VLAN_TAG: usize = 4;
const TYPE_VLAN: u16 = 0x8100;
const TYPE_SERVICE_VLAN: u16 = 0x88a8;
const TYPE_IPV4: u16 = 0x0800;
const TYPE_IPV6: u16 = 0x86dd;
/// Maximum number of segments, because a hostile guest may request one-byte segments.
const MAX_SEGMENTS: usize = 4096;
/// IP protocol numbers.
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;

/// The header fields of a frame and the offsets of its headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parsed {
    /// The VLAN tag, if one is present.
    pub(crate) vlan: Option<u16>,
    /// Whether the VLAN tag is a service provider's tag (802.1ad).
    pub(crate) service_vlan: bool,
    /// The EtherType after the VLAN tag, if any.
    pub(crate) ethertype: u16,
    /// Offset of the header that `ethertype` announces.
    pub(crate) l3: usize,
    pub(crate) ip: Option<Ip>,
}

/// The fields of an IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ip {
    /// The IP version: 4 or 6.
    pub(crate) version: u8,
    /// The IPv4 type of service or the IPv6 traffic class.
    pub(crate) tos: u8,
    pub(crate) ttl: u8,
    /// Whether the packet is a fragment.
    pub(crate) fragment: bool,
    pub(crate) protocol: u8,
    /// Offset of the header that the protocol number announces.
    pub(crate) l4: usize,
    /// Offset of the end of the IP packet; padding may follow.
    pub(crate) end: usize,
    /// Whether the packet's stated length exceeds the frame. The packet then ends with the frame;
    /// its headers are used anyway.
    pub(crate) cut: bool,
}

impl Parsed {
    /// Parses the headers of a frame. Returns `None` if the Ethernet header is incomplete.
    pub(crate) fn new(frame: &[u8]) -> Option<Self> {
        let mut ethertype = word(frame, 12)?;
        let (mut vlan, mut service_vlan, mut l3) = (None, false, ETHERNET_HEADER);
        if matches!(ethertype, TYPE_VLAN | TYPE_SERVICE_VLAN) {
            service_vlan = ethertype == TYPE_SERVICE_VLAN;
            vlan = Some(word(frame, ETHERNET_HEADER)?);
            ethertype = word(frame, ETHERNET_HEADER + 2)?;
            l3 += VLAN_TAG;
        }
        let ip = match ethertype {
            TYPE_IPV4 => ipv4(frame, l3),
            TYPE_IPV6 => ipv6(frame, l3),
            _ => None,
        };
        Some(Self { vlan, service_vlan, ethertype, l3, ip })
    }
}

fn ipv4(frame: &[u8], l3: usize) -> Option<Ip> {
    let header: &[u8; 20] = frame.get(l3..)?.first_chunk()?;
    let length = usize::from(header[0] & 0xf) * 4;
    let end = l3 + usize::from(word(header, 2)?);
    if header[0] >> 4 != 4 || length < 20 || end.min(frame.len()) < l3 + length {
        return None;
    }
    let fragment = word(header, 6)? & 0x3fff != 0;
    Some(Ip {
        version: 4,
        tos: header[1],
        ttl: header[8],
        fragment,
        protocol: header[9],
        l4: l3 + length,
        end: end.min(frame.len()),
        cut: end > frame.len(),
    })
}

fn ipv6(frame: &[u8], l3: usize) -> Option<Ip> {
    let header: &[u8; 40] = frame.get(l3..)?.first_chunk()?;
    let end = l3 + 40 + usize::from(word(header, 4)?);
    if header[0] >> 4 != 6 {
        return None;
    }
    Some(Ip {
        version: 6,
        tos: header[0] << 4 | header[1] >> 4,
        ttl: header[7],
        fragment: header[6] == 44,
        protocol: header[6],
        l4: l3 + 40,
        end: end.min(frame.len()),
        cut: end > frame.len(),
    })
}

/// Returns whether a frame's destination is a group address, such as broadcast.
pub(crate) fn is_group(frame: &[u8]) -> bool {
    frame.first().is_some_and(|first| first & 1 != 0)
}

/// Returns the one's complement sum of `start` and the big-endian words in `bytes`, folded to 16
/// bits.
pub(crate) fn sum(bytes: &[u8], start: u32) -> u16 {
    let (words, rest) = bytes.as_chunks::<2>();
    let mut sum =
        u64::from(start) + words.iter().map(|word| u64::from(u16::from_be_bytes(*word))).sum::<u64>();
    if let [last] = rest {
        sum += u64::from(*last) << 8;
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Returns the sum of the pseudo-header, not folded, for a TCP or UDP checksum.
fn pseudo(frame: &[u8], parsed: &Parsed, ip: &Ip) -> u32 {
    let addresses = match ip.version {
        4 => parsed.l3 + 12..parsed.l3 + 20,
        _ => parsed.l3 + 8..parsed.l3 + 40,
    };
    let length = (ip.end - ip.l4) as u32;
    let addresses = u32::from(sum(frame.get(addresses).unwrap_or_default(), 0));
    addresses + (length >> 16) + (length & 0xffff) + u32::from(ip.protocol)
}

/// Returns the offset of the TCP or UDP checksum; `None` for other protocols.
fn l4_checksum_at(ip: &Ip) -> Option<usize> {
    let at = match ip.protocol {
        TCP => ip.l4 + 16,
        UDP => ip.l4 + 6,
        _ => return None,
    };
    (at + 2 <= ip.end).then_some(at)
}

/// Writes the checksums of the IPv4 header (`l3`) and of TCP or UDP (`l4`) into a frame with such
/// headers.
pub(crate) fn fill_checksums(frame: &mut [u8], l3: bool, l4: bool) {
    let Some(parsed) = Parsed::new(frame) else { return };
    let Some(ip) = parsed.ip else { return };
    if l3 && ip.version == 4 {
        put(frame, parsed.l3 + 10, 0);
        let value = !sum(frame.get(parsed.l3..ip.l4).unwrap_or_default(), 0);
        put(frame, parsed.l3 + 10, value);
    }
    let Some(at) = l4_checksum_at(&ip).filter(|_| l4 && !ip.fragment && !ip.cut) else { return };
    put(frame, at, 0);
    let value = !sum(frame.get(ip.l4..ip.end).unwrap_or_default(), pseudo(frame, &parsed, &ip));
    // In UDP, the value 0 stands for the absence of a checksum.
    put(frame, at, if value == 0 && ip.protocol == UDP { 0xffff } else { value });
}

/// The result of verifying a frame's checksums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Checked {
    /// Whether the IP header is complete and its checksum correct.
    pub(crate) l3_ok: bool,
    /// Whether the packet is TCP or UDP and its checksum correct.
    pub(crate) l4_ok: bool,
    /// The one's complement sum of the IP packet; without one, the sum of all bytes after the
    /// Ethernet header.
    pub(crate) sum: u16,
}

/// Verifies the checksums of a frame.
pub(crate) fn check(frame: &[u8]) -> Checked {
    let Some(parsed) = Parsed::new(frame) else { return Checked::default() };
    let Some(ip) = parsed.ip else {
        return Checked { sum: sum(frame.get(parsed.l3..).unwrap_or_default(), 0), ..Checked::default() };
    };
    let header = frame.get(parsed.l3..ip.l4).unwrap_or_default();
    let segment = frame.get(ip.l4..ip.end).unwrap_or_default();
    let whole = |at| word(frame, at).is_some_and(|value| value != 0 || ip.protocol == TCP);
    let l4_ok = !ip.fragment
        && !ip.cut
        && l4_checksum_at(&ip).is_some_and(whole)
        && sum(segment, pseudo(frame, &parsed, &ip)) == 0xffff;
    Checked {
        l3_ok: !ip.cut && (ip.version == 6 || sum(header, 0) == 0xffff),
        l4_ok,
        sum: sum(frame.get(parsed.l3..ip.end).unwrap_or_default(), 0),
    }
}

/// Splits a large TCP or UDP send into frames with at most `mss` bytes of payload, each with a copy
/// of `header` adapted to it. Returns `None` if the header belongs to another protocol.
///
/// # References
/// PRM, "large send offload"; RFC 9293 (flags of the last segment)
pub(crate) fn segment(header: &[u8], payload: &[u8], mss: usize) -> Option<Vec<Vec<u8>>> {
    // The length fields in `header` are 0 or cover the whole send. The offsets of the headers do
    // not depend on these fields.
    let (version, l3, l4, protocol) = large_headers(header)?;
    if mss == 0 {
        return None;
    }
    let count = payload.len().div_ceil(mss);
    if count > MAX_SEGMENTS {
        return None;
    }
    let mut frames = Vec::with_capacity(count);
    for (number, part) in payload.chunks(mss).enumerate() {
        let mut frame = [header, part].concat();
        let total = u16::try_from(frame.len() - l3).ok()?;
        if version == 4 {
            let id = word(header, l3 + 4)?.wrapping_add(number as u16);
            put(&mut frame, l3 + 2, total);
            put(&mut frame, l3 + 4, id);
        } else {
            put(&mut frame, l3 + 4, total.checked_sub(40)?);
        }
        if protocol == TCP {
            let sequence: [u8; 4] = *header.get(l4 + 4..)?.first_chunk()?;
            let sequence = u32::from_be_bytes(sequence).wrapping_add((number * mss) as u32);
            frame.get_mut(l4 + 4..l4 + 8)?.copy_from_slice(&sequence.to_be_bytes());
            let flags = frame.get_mut(l4 + 13)?;
            // FIN and PSH belong in the last segment, CWR in the first.
            *flags &= if number + 1 < count { !0x09 } else { !0 };
            *flags &= if number > 0 { !0x80 } else { !0 };
        } else {
            put(&mut frame, l4 + 4, u16::try_from(part.len() + 8).ok()?);
        }
        fill_checksums(&mut frame, true, true);
        frames.push(frame);
    }
    Some(frames)
}

/// Returns the IP version, the offset of the IP header, the offset of the TCP or UDP header, and
/// the protocol number. Returns `None` unless all of these headers are complete.
fn large_headers(header: &[u8]) -> Option<(u8, usize, usize, u8)> {
    let parsed = Parsed::new(header)?;
    let l3 = parsed.l3;
    let (version, l4, protocol) = match parsed.ethertype {
        TYPE_IPV4 => (4, l3 + usize::from(header.get(l3)? & 0xf) * 4, *header.get(l3 + 9)?),
        TYPE_IPV6 => (6, l3 + 40, *header.get(l3 + 6)?),
        _ => return None,
    };
    let length = match protocol {
        TCP => usize::from(header.get(l4 + 12)? >> 4) * 4,
        UDP => 8,
        _ => return None,
    };
    let least = if protocol == TCP { 20 } else { 8 };
    (l4 >= l3 + 20 && length >= least && l4 + length == header.len()).then_some((version, l3, l4, protocol))
}

/// Inserts a VLAN tag after a frame's MAC addresses.
pub(crate) fn insert_vlan(frame: &mut Vec<u8>, service: bool, tag: u16) {
    if frame.len() >= ETHERNET_HEADER {
        let kind = if service { TYPE_SERVICE_VLAN } else { TYPE_VLAN };
        let bytes = [kind.to_be_bytes(), tag.to_be_bytes()].concat();
        frame.splice(12..12, bytes);
    }
}

/// Removes the VLAN tag from a frame.
pub(crate) fn strip_vlan(frame: &mut Vec<u8>) {
    if frame.len() >= ETHERNET_HEADER + VLAN_TAG {
        frame.drain(12..12 + VLAN_TAG);
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|chunk| u16::from_be_bytes(*chunk))
}

fn put(bytes: &mut [u8], at: usize, value: u16) {
    if let Some(place) = bytes.get_mut(at..at + 2) {
        place.copy_from_slice(&value.to_be_bytes());
    }
}

#[cfg(test)]
mod tests;
