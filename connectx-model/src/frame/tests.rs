//! Frames: parsing, checksums, segmentation.

use super::*;

/// Returns a frame with an IPv4 UDP datagram. Its checksums are 0.
fn udp(payload: &[u8]) -> Vec<u8> {
    let total = (28 + payload.len()) as u16;
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
    frame.extend(total.to_be_bytes());
    frame.extend([0, 7, 0, 0, 64, UDP, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
    frame.extend([0x10, 0, 0x20, 0]);
    frame.extend((total - 20).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(payload);
    frame
}

fn tcp6_header() -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, TCP, 64];
    frame.extend([0xfd; 16]);
    frame.extend([0xfe; 16]);
    // Ports, sequence number, acknowledgement number; a 20-byte header with CWR, ACK, PSH and FIN.
    frame.extend([0, 1, 0, 2, 0xff, 0xff, 0xff, 0xf0, 0, 0, 0, 0, 0x50, 0x99, 1, 0, 0, 0, 0, 0]);
    frame
}

#[test]
fn checksums_that_were_filled_in_are_found_right_and_one_flipped_bit_is_found() {
    for payload in [&b"odd"[..], b"even", b""] {
        let mut frame = udp(payload);
        let before = check(&frame);
        assert!(!before.l3_ok && !before.l4_ok, "no checksum yet");
        fill_checksums(&mut frame, true, true);
        let checked = check(&frame);
        assert!(checked.l3_ok && checked.l4_ok, "{payload:?}");
        frame[26] ^= 1;
        let checked = check(&frame);
        assert!(!checked.l3_ok && !checked.l4_ok, "an address counts in both");
    }
}

#[test]
fn the_checksum_of_a_known_header_is_that_of_rfc_1071() {
    // The sum of the words 0001 f203 f4f5 f6f7 is ddf2, as in section 3 of RFC 1071.
    assert_eq!(sum(&[0, 1, 0xf2, 3, 0xf4, 0xf5, 0xf6, 0xf7], 0), 0xddf2);
}

#[test]
fn padding_behind_the_packet_does_not_count() {
    let mut frame = udp(b"x");
    fill_checksums(&mut frame, true, true);
    let sum = check(&frame).sum;
    frame.resize(MIN_FRAME, 0xaa);
    assert!(check(&frame).l4_ok);
    assert_eq!(check(&frame).sum, sum);
}

#[test]
fn a_fragment_has_no_checksum_of_its_own_and_a_header_cut_short_is_none() {
    let mut frame = udp(b"data");
    frame[20] = 0x20;
    fill_checksums(&mut frame, true, true);
    assert_eq!(&frame[40..42], [0, 0], "the fragment is left alone");
    assert!(check(&frame).l3_ok && !check(&frame).l4_ok);
    assert_eq!(Parsed::new(&frame[..33]).unwrap().ip, None);
    assert_eq!(Parsed::new(&frame[..13]), None);
    for length in 0..frame.len() {
        check(&frame[..length]);
    }
}

#[test]
fn the_headers_of_a_packet_longer_than_its_frame_are_parsed_but_not_correct() {
    let mut frame = udp(b"data");
    fill_checksums(&mut frame, true, true);
    let whole = Parsed::new(&frame).unwrap().ip.unwrap();
    frame.pop();
    let ip = Parsed::new(&frame).unwrap().ip.unwrap();
    assert_eq!(ip, Ip { end: whole.end - 1, cut: true, ..whole });
    assert!(!check(&frame).l3_ok && !check(&frame).l4_ok);
    let mut frame = tcp6_header();
    assert!(!Parsed::new(&frame).unwrap().ip.unwrap().cut);
    frame[19] = 21;
    let ip = Parsed::new(&frame).unwrap().ip.unwrap();
    assert_eq!((ip.version, ip.protocol, ip.l4, ip.end, ip.cut), (6, TCP, 54, frame.len(), true));
    let before = frame.clone();
    fill_checksums(&mut frame, true, true);
    assert_eq!(frame, before, "nothing is filled in");
    assert!(!check(&frame).l3_ok);
}

#[test]
fn a_tag_comes_and_goes() {
    let mut frame = udp(b"data");
    let plain = frame.clone();
    insert_vlan(&mut frame, false, 0x6005);
    let parsed = Parsed::new(&frame).unwrap();
    assert_eq!((parsed.vlan, parsed.ethertype, parsed.l3), (Some(0x6005), 0x0800, 18));
    assert_eq!(parsed.ip.unwrap().protocol, UDP);
    strip_vlan(&mut frame);
    assert_eq!(frame, plain);
}

#[test]
fn a_large_send_becomes_segments_with_their_own_lengths_sequences_flags_and_checksums() {
    let payload: Vec<u8> = (0..250).map(|n| n as u8).collect();
    let frames = segment(&tcp6_header(), &payload, 100).unwrap();
    let seen: Vec<_> = frames
        .iter()
        .map(|frame| (frame[18..20].to_vec(), frame[58..62].to_vec(), frame[67], frame.len()))
        .collect();
    assert_eq!(
        seen,
        [
            (vec![0, 120], vec![0xff, 0xff, 0xff, 0xf0], 0x90, 174),
            (vec![0, 120], vec![0, 0, 0, 0x54], 0x10, 174),
            (vec![0, 70], vec![0, 0, 0, 0xb8], 0x19, 124),
        ]
    );
    assert!(frames.iter().all(|frame| check(frame).l4_ok));
    assert_eq!(frames.iter().flat_map(|frame| frame[74..].to_vec()).collect::<Vec<_>>(), payload);
}

#[test]
fn a_large_datagram_is_cut_into_datagrams() {
    let frames = segment(&udp(b""), &[7; 30], 16).unwrap();
    let lengths: Vec<_> = frames.iter().map(|frame| (frame[17], frame[19], frame[39])).collect();
    assert_eq!(lengths, [(44, 7, 24), (42, 8, 22)]);
    assert!(frames.iter().all(|frame| check(frame).l3_ok && check(frame).l4_ok));
}

#[test]
fn only_tcp_and_udp_are_segmented() {
    let mut header = udp(b"");
    header[23] = 1;
    assert_eq!(segment(&header, &[0; 10], 5), None);
    assert_eq!(segment(&tcp6_header()[..70], &[0; 10], 5), None);
    assert_eq!(segment(&tcp6_header(), &[0; 10], 0), None);
}
