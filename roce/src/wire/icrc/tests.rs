use super::*;
use proptest::prelude::*;

/// The definition of the CRC: one bit at a time.
fn bitwise(mut state: u32, bytes: &[u8]) -> u32 {
    for byte in bytes {
        state ^= u32::from(*byte);
        for _ in 0..8 {
            state = if state & 1 == 1 { state >> 1 ^ 0xedb8_8320 } else { state >> 1 };
        }
    }
    state
}

/// The definition of the ICRC: the whole masked pseudo packet in one piece.
fn reference(flow: Flow, id: u16, df: bool, udp_payload: &[u8]) -> u32 {
    let covered = udp_payload.len() - ICRC_LEN;
    let udp_len = (udp_payload.len() + 8) as u16;
    let mut bytes = vec![0xff; 8];
    match (flow.src, flow.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            bytes.extend([0x45, 0xff]);
            bytes.extend((udp_len + 20).to_be_bytes());
            bytes.extend(id.to_be_bytes());
            bytes.extend([if df { 0x40 } else { 0 }, 0, 0xff, 17, 0xff, 0xff]);
            bytes.extend(src.octets());
            bytes.extend(dst.octets());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            bytes.extend([0x6f, 0xff, 0xff, 0xff]);
            bytes.extend(udp_len.to_be_bytes());
            bytes.extend([17, 0xff]);
            bytes.extend(src.octets());
            bytes.extend(dst.octets());
        }
        _ => unreachable!("one family"),
    }
    bytes.extend(flow.src_port.to_be_bytes());
    bytes.extend(flow.dst_port.to_be_bytes());
    bytes.extend(udp_len.to_be_bytes());
    bytes.extend([0xff, 0xff]);
    let bth = bytes.len();
    bytes.extend(&udp_payload[..covered]);
    bytes[bth + 4] = 0xff;
    !bitwise(!0, &bytes)
}

fn flow() -> impl Strategy<Value = Flow> {
    let addresses = prop_oneof![
        any::<([u8; 4], [u8; 4])>().prop_map(|(a, b)| (IpAddr::from(a), IpAddr::from(b))),
        any::<([u8; 16], [u8; 16])>().prop_map(|(a, b)| (IpAddr::from(a), IpAddr::from(b))),
    ];
    (addresses, any::<u16>(), any::<u16>()).prop_map(|((src, dst), src_port, dst_port)| Flow {
        src,
        dst,
        src_port,
        dst_port,
    })
}

fn v4_flow() -> impl Strategy<Value = Flow> {
    flow().prop_filter("IPv4", |flow| flow.src.is_ipv4())
}

/// Returns a packet with a correct ICRC. Its length is a multiple of 4, at least 16 bytes.
fn sealed(flow: Flow, id: u16, df: bool, words: &[u32]) -> Vec<u8> {
    let mut packet = vec![0x5a; 12];
    packet.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    packet.extend([0; ICRC_LEN]);
    let crc = compute(Icrc::new(flow).seed(id, df, packet.len()), &packet[..packet.len() - ICRC_LEN]);
    let at = packet.len() - ICRC_LEN;
    packet[at..].copy_from_slice(&crc.to_le_bytes());
    packet
}

#[test]
fn the_check_value_of_crc_32_comes_out() {
    for backend in Backend::ALL {
        assert_eq!(!backend.update(!0, b"123456789"), 0xcbf4_3926, "{backend:?}");
    }
    assert_eq!(AFTER_LRH, 0xdebb_20e3);
}

#[test]
fn every_backend_agrees_with_the_definition_on_every_short_length() {
    let bytes: Vec<u8> = (0..1200u32).map(|i| (i.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect();
    for len in 0..bytes.len() {
        let expected = bitwise(0x1234_5678, &bytes[..len]);
        for backend in Backend::ALL.into_iter().filter(|b| b.is_available()) {
            assert_eq!(backend.update(0x1234_5678, &bytes[..len]), expected, "{backend:?}, {len} bytes");
        }
    }
}

/// `cargo xtask aarch64` sets `ROCE_HAS_CLMUL` because the emulated processor has the instructions.
/// Without these instructions, the tests of [`Backend::Clmul`] would compare the tables with
/// themselves.
#[test]
fn multiplication_is_available_where_the_environment_says_so() {
    if std::env::var_os("ROCE_HAS_CLMUL").is_some() {
        assert!(Backend::Clmul.is_available());
    }
}

#[test]
fn an_available_backend_computes_by_itself() {
    let bytes = [0x5a; 1200];
    assert_eq!(clmul::update(0, &bytes, 0).is_some(), Backend::Clmul.is_available());
    assert!(clmul::update512(0, &bytes, 0).is_some() || !Backend::Clmul512.is_available());
}

#[test]
fn every_identification_is_found() {
    let flow = Flow { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into(), src_port: 49152, dst_port: 4791 };
    let icrc = Icrc::new(flow);
    for id in 0..=u16::MAX {
        let packet = sealed(flow, id, true, &[1, 2, 3]);
        let expected = if id == 7 { Verdict::Exact } else { Verdict::WithId(id) };
        assert_eq!(icrc.check(&packet, 7), expected);
        assert_eq!(icrc.check(&sealed(flow, id, false, &[1, 2, 3]), 7), Verdict::WithId(id));
    }
}

#[test]
fn damage_is_taken_for_another_identification_once_in_2_to_the_15() {
    let flow = Flow { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into(), src_port: 49152, dst_port: 4791 };
    let icrc = Icrc::new(flow);
    let mut packet = sealed(flow, 0, true, &[0; 16]);
    let (mut random, mut taken) = (1u64, 0);
    for _ in 0..1 << 18 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        packet[20..28].copy_from_slice(&random.to_le_bytes());
        match icrc.check(&packet, 0) {
            Verdict::Exact => panic!("{random:#x} is Exact"),
            Verdict::WithId(_) => taken += 1,
            Verdict::Bad => {}
        }
    }
    // About 8 of the 2¹⁸ damaged packets are expected to pass.
    assert!((1..25).contains(&taken), "{taken}");
}

#[test]
fn an_empty_or_short_packet_is_bad() {
    let flow = Flow { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into(), src_port: 49152, dst_port: 4791 };
    for len in 0..ICRC_LEN {
        assert_eq!(Icrc::new(flow).check(&vec![0; len], 0), Verdict::Bad);
    }
}

#[test]
fn mapped_addresses_are_ipv4() {
    let v4 = Flow { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into(), src_port: 1, dst_port: 4791 };
    let mapped = |ip: IpAddr| match ip {
        IpAddr::V4(v4) => IpAddr::V6(v4.to_ipv6_mapped()),
        v6 => v6,
    };
    assert_eq!(Icrc::new(Flow { src: mapped(v4.src), dst: mapped(v4.dst), ..v4 }), Icrc::new(v4));
}

proptest! {
    #[test]
    fn every_backend_agrees_with_the_definition(
        state: u32,
        bytes in prop::collection::vec(any::<u8>(), 0..9000),
        ones: u64,
    ) {
        let mut masked = bytes.clone();
        for (byte, ones) in masked.iter_mut().zip(ones.to_le_bytes()) {
            *byte |= ones;
        }
        for backend in Backend::ALL.into_iter().filter(|b| b.is_available()) {
            prop_assert_eq!(backend.update(state, &bytes), bitwise(state, &bytes), "{:?}", backend);
            prop_assert_eq!(backend.absorb(state, &bytes, ones), bitwise(state, &masked), "{:?}", backend);
        }
    }

    #[test]
    fn a_seed_and_the_payload_make_the_icrc_of_the_whole(
        flow in flow(),
        id: u16,
        df: bool,
        payload in prop::collection::vec(any::<u8>(), 16..2000),
        cut in 8usize..12,
    ) {
        let expected = reference(flow, id, df, &payload);
        let seed = Icrc::new(flow).seed(id, df, payload.len());
        let covered = &payload[..payload.len() - ICRC_LEN];
        prop_assert_eq!(compute(seed, covered), expected);
        let pieces = finish(update(begin(seed, &covered[..cut]), &covered[cut..]));
        prop_assert_eq!(pieces, expected);
    }

    #[test]
    fn any_identification_explains_itself(
        flow in v4_flow(), id: u16, expected: u16, df: bool, words in prop::collection::vec(any::<u32>(), 0..1100),
    ) {
        let verdict = Icrc::new(flow).check(&sealed(flow, id, df, &words), expected);
        if id == expected && df {
            prop_assert_eq!(verdict, Verdict::Exact);
        } else {
            prop_assert_eq!(verdict, Verdict::WithId(id));
        }
    }

    #[test]
    fn a_flipped_bit_is_never_exact(
        flow in flow(), words in prop::collection::vec(any::<u32>(), 0..300), at: prop::sample::Index, bit in 0u8..8,
    ) {
        let mut packet = sealed(flow, 0, true, &words);
        let at = at.index(packet.len());
        packet[at] ^= 1 << bit;
        let verdict = Icrc::new(flow).check(&packet, 0);
        if at == 4 {
            // Routers may change this byte, so the ICRC remains correct.
            prop_assert_eq!(verdict, Verdict::Exact);
        } else if flow.src.is_ipv4() {
            prop_assert_ne!(verdict, Verdict::Exact);
        } else {
            prop_assert_eq!(verdict, Verdict::Bad);
        }
    }
}

#[test]
fn a_packet_may_be_used_unless_it_is_bad() {
    assert!(Verdict::Exact.is_ok() && Verdict::WithId(0).is_ok() && Verdict::WithId(7).is_ok());
    assert!(!Verdict::Bad.is_ok());
}
