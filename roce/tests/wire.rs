//! Properties of the wire formats: emitted headers can be parsed again, and no input makes a parser
//! panic.

use proptest::prelude::*;
use roce::wire::packet::{MAX_HEADER_LEN, pad_for};
use roce::wire::{
    Flow, Headers, ICRC_LEN, Icrc, Malformed, Opcode, Packet, Psn, Syndrome, Verdict, aeth, atomic_ack_eth,
    atomic_eth, bth, deth, feth, icrc, ieth, imm, reth, xrceth,
};

fn flow() -> Flow {
    Flow { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into(), src_port: 49152, dst_port: 4791 }
}

/// Returns headers with arbitrary contents. All headers that the opcode requires are present.
fn headers(opcode: impl Strategy<Value = u8>) -> impl Strategy<Value = Headers> {
    let numbers = prop::array::uniform8(any::<u64>());
    (opcode, prop::array::uniform6(any::<bool>()), 0u8..4, numbers).prop_map(|(opcode, bits, pad_cnt, n)| {
        let opcode = Opcode(opcode);
        let [se, mig_req, fecn, becn, ack_req, _] = bits;
        let low = |n: u64| n as u32;
        let low_24 = |n: u64| low(n) & 0xff_ffff;
        let bth = bth::Repr {
            opcode,
            se,
            mig_req,
            pad_cnt,
            pkey: n[0] as u16,
            fecn,
            becn,
            dest_qp: low_24(n[0] >> 16),
            ack_req,
            psn: Psn::new(low(n[0] >> 40)),
        };
        Headers {
            bth,
            deth: opcode.has_deth().then_some(deth::Repr { qkey: low(n[1]), src_qp: low_24(n[1] >> 32) }),
            xrceth: opcode.has_xrceth().then_some(xrceth::Repr { xrcsrq: low_24(n[1]) }),
            feth: opcode.has_feth().then_some(feth::Repr { plt: n[2] as u8 & 15, sel: n[2] as u8 >> 4 & 3 }),
            reth: opcode.has_reth().then_some(reth::Repr {
                va: n[3],
                rkey: low(n[4]),
                dmalen: low(n[4] >> 32),
            }),
            atomic_eth: opcode.has_atomic_eth().then_some(atomic_eth::Repr {
                va: n[3],
                rkey: low(n[4]),
                swap_add: n[5],
                compare: n[6],
            }),
            aeth: opcode
                .has_aeth()
                .then_some(aeth::Repr { syndrome: Syndrome(n[2] as u8), msn: low_24(n[2] >> 8) }),
            atomic_ack_eth: opcode.has_atomic_ack_eth().then_some(atomic_ack_eth::Repr { orig: n[5] }),
            imm: opcode.has_imm().then_some(imm::Repr { imm_data: low(n[7]) }),
            ieth: opcode.has_ieth().then_some(ieth::Repr { rkey: low(n[7]) }),
        }
    })
}

/// Returns a packet as an engine sends it: headers, payload, pad, ICRC.
fn packet(headers: &Headers, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; headers.len()];
    assert_eq!(headers.emit(&mut bytes), headers.len());
    bytes.extend(payload);
    bytes.resize(bytes.len() + usize::from(headers.bth.pad_cnt), 0);
    let crc = icrc::compute(Icrc::new(flow()).seed(0, true, bytes.len() + ICRC_LEN), &bytes);
    bytes.extend(crc.to_le_bytes());
    bytes
}

/// Calls every accessor of every header of the packet.
fn look_at_everything(bytes: &[u8]) {
    if let Ok(packet) = Packet::new_checked(bytes) {
        let headers = packet.headers();
        assert_eq!(Headers::parse(bytes).map(|(headers, _)| headers), Ok(headers));
        assert_eq!(
            headers.len() + packet.payload().len() + packet.pad().len() + ICRC_LEN,
            bytes.len(),
            "every byte has its place"
        );
        assert_eq!(packet.covered().len() + ICRC_LEN, bytes.len());
        let _ = (packet.icrc(), format!("{headers:?} {}", headers.bth.opcode));
        if let Some(aeth) = headers.aeth {
            let _ = aeth.syndrome.decode();
        }
    }
    let _ = Icrc::new(flow()).check(bytes, 0);
}

proptest! {
    #[test]
    fn what_is_emitted_is_parsed_again(
        headers in headers(any::<u8>()), payload in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let bytes = packet(&headers, &payload);
        let (parsed, range) = Headers::parse(&bytes).unwrap();
        prop_assert_eq!(parsed, headers);
        prop_assert_eq!(&bytes[range], &payload[..]);
        let view = Packet::new_checked(&bytes[..]).unwrap();
        prop_assert_eq!(view.headers(), headers);
        prop_assert_eq!(view.payload(), &payload[..]);
        prop_assert_eq!(view.pad().len(), usize::from(headers.bth.pad_cnt));
        prop_assert_eq!(Icrc::new(flow()).check(&bytes, 0), Verdict::Exact);
    }

    #[test]
    fn reserved_bits_do_not_change_what_is_parsed(headers in headers(any::<u8>()), reserved: [u8; 2]) {
        let mut bytes = packet(&headers, &[]);
        bytes[4] |= reserved[0] & 0x3f;
        bytes[8] |= reserved[1] & 0x7f;
        prop_assert_eq!(Headers::parse(&bytes).unwrap().0, headers);
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        look_at_everything(&bytes);
    }

    #[test]
    fn damaged_packets_do_not_panic(
        headers in headers(any::<u8>()), at: prop::sample::Index, value: u8, keep: prop::sample::Index,
    ) {
        let mut bytes = packet(&headers, &[1, 2, 3, 4, 5]);
        let at = at.index(bytes.len());
        bytes[at] = value;
        bytes.truncate(keep.index(bytes.len() + 1));
        look_at_everything(&bytes);
    }

    #[test]
    fn headers_alone_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        macro_rules! round {
            ($($header:ident)*) => {$(
                match $header::Packet::new_checked(&bytes[..]) {
                    Err(error) => prop_assert!(error == Malformed::Truncated && bytes.len() < $header::LEN),
                    Ok(packet) => {
                        let repr = $header::Repr::parse(&packet);
                        let mut again = $header::Packet::from([0; $header::LEN]);
                        repr.emit(&mut again);
                        prop_assert_eq!($header::Repr::parse(&again), repr);
                    }
                }
            )*};
        }
        round!(bth deth xrceth feth reth atomic_eth aeth atomic_ack_eth imm ieth);
    }

    #[test]
    fn a_short_buffer_is_left_alone(headers in headers(any::<u8>()), len in 0..MAX_HEADER_LEN) {
        let mut buffer = vec![0xaa; len];
        let written = headers.emit(&mut buffer);
        if len < headers.len() {
            prop_assert_eq!(written, 0);
            prop_assert!(buffer.iter().all(|byte| *byte == 0xaa));
        } else {
            prop_assert_eq!(written, headers.len());
            prop_assert!(buffer[written..].iter().all(|byte| *byte == 0xaa));
        }
    }
}

#[test]
fn a_packet_is_as_long_as_its_opcode_says() {
    for opcode in (0..=255).map(Opcode) {
        let bytes = packet(&Headers::new(bth::Repr::new(opcode, 1, Psn::new(2))), &[]);
        assert_eq!(Headers::parse(&bytes).unwrap().1, opcode.header_len()..opcode.header_len());
        assert_eq!(Headers::parse(&bytes[..bytes.len() - 1]), Err(Malformed::Truncated), "{opcode}");
        assert!(opcode.header_len() <= MAX_HEADER_LEN);
    }
}

#[test]
fn a_pad_longer_than_the_payload_is_malformed() {
    let mut bytes = packet(&Headers::new(bth::Repr::new(Opcode::RC_SEND_ONLY, 1, Psn::new(2))), &[]);
    bytes[1] |= 1 << 4;
    assert_eq!(Headers::parse(&bytes), Err(Malformed::Padding));
}

#[test]
fn another_transport_version_is_malformed() {
    let mut bytes = packet(&Headers::new(bth::Repr::new(Opcode::RC_SEND_ONLY, 1, Psn::new(2))), &[]);
    bytes[1] |= 1;
    assert_eq!(Headers::parse(&bytes), Err(Malformed::Version));
    assert_eq!(Packet::new_checked(&bytes[..]), Err(Malformed::Version));
}

#[test]
fn pad_makes_a_multiple_of_four() {
    for len in 0..20 {
        assert!(pad_for(len) < 4 && (len + usize::from(pad_for(len))).is_multiple_of(4), "{len}");
    }
}
