//! Packets from the kernel's rxe and their meaning. The packets were captured on a veth pair with
//! Linux 6.1 and run from the IP header to the ICRC.

use core::net::IpAddr;
use roce::wire::{Flow, Headers, Icrc, Opcode, Packet, Psn, Verdict, bth, deth, icrc};

/// An RC send of 21 bytes with a path MTU of 256, over IPv4.
const RC_SEND_V4: &str = "4500004489d9400040118abb0a0909010a090902d35312b7003000000430ffff00000123808d998f7b7b7b7b7b7b7b7b7b7b7b7b7b\
     7b7b7b7b7b7b7b7b000000f8c875ef";
/// The same packet, resent after the time-out with a different IPv4 identification and ICRC.
const RC_SEND_V4_AGAIN: &str = "4500004489db400040118ab90a0909010a090902d35312b7003000000430ffff00000123808d998f7b7b7b7b7b7b7b7b7b7b7b7b7b\
     7b7b7b7b7b7b7b7b0000001ac3ed3d";
/// An RC send of 9 bytes, over IPv6.
const RC_SEND_V6: &str = "6000000000241140fe80000000000000d8fe6afffe894d80fe800000000000000000000000000002d47612b7002400000430ffff00000\
     123803f718e7b7b7b7b7b7b7b7b7b000000fad48692";
/// A UD send of 6 bytes, over IPv4.
const UD_SEND_V4: &str = "4500003c8cc64000401187d60a0909010a090902d07812b7002800006420ffff0000012300bb881111111111000000137b7b7b7b7b7b0\
     000315f5154";
/// The last packet of a UC send of 300 bytes with a path MTU of 256, over IPv4.
const UC_SEND_LAST_V4: &str = "450000588efe4000401185820a0909010a090902d6bc12b7004400002200ffff0000012300b99f197b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b\
     7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b7b38e6dd34";

struct Captured {
    flow: Flow,
    id: u16,
    udp_payload: Vec<u8>,
}

fn captured(hex: &str) -> Captured {
    let bytes: Vec<u8> =
        (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect();
    let address = |range: core::ops::Range<usize>| match bytes[range] {
        [a, b, c, d] => IpAddr::from([a, b, c, d]),
        ref sixteen => IpAddr::from(<[u8; 16]>::try_from(sixteen).unwrap()),
    };
    let (src, dst, udp) = match bytes[0] >> 4 {
        4 => (address(12..16), address(16..20), 20),
        _ => (address(8..24), address(24..40), 40),
    };
    let number = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    assert_eq!(usize::from(number(udp + 4)), bytes.len() - udp, "UDP length");
    Captured {
        flow: Flow { src, dst, src_port: number(udp), dst_port: number(udp + 2) },
        id: number(4),
        udp_payload: bytes[udp + 8..].to_vec(),
    }
}

#[test]
fn the_icrc_is_the_kernels() {
    for hex in [RC_SEND_V4, RC_SEND_V4_AGAIN, RC_SEND_V6, UD_SEND_V4, UC_SEND_LAST_V4] {
        let Captured { flow, id, udp_payload } = captured(hex);
        let icrc = Icrc::new(flow);
        let (covered, tail) = udp_payload.split_last_chunk::<4>().unwrap();
        let computed = icrc::compute(icrc.seed(id, true, udp_payload.len()), covered);
        assert_eq!(computed.to_le_bytes(), *tail, "{hex}");
        assert_eq!(Packet::new_checked(&udp_payload[..]).unwrap().icrc(), computed);
        assert_eq!(icrc.check(&udp_payload, id), Verdict::Exact);
    }
}

#[test]
fn the_kernels_identification_is_found() {
    for (hex, id) in [(RC_SEND_V4, 0x89d9), (RC_SEND_V4_AGAIN, 0x89db), (UD_SEND_V4, 0x8cc6)] {
        let Captured { flow, udp_payload, .. } = captured(hex);
        assert_eq!(Icrc::new(flow).check(&udp_payload, 0), Verdict::WithId(id));
    }
    let Captured { flow, udp_payload, .. } = captured(RC_SEND_V6);
    assert_eq!(Icrc::new(flow).check(&udp_payload, 0x1234), Verdict::Exact);
}

#[test]
fn headers_and_payload_are_what_was_sent() {
    let rc = bth::Repr {
        mig_req: false,
        pad_cnt: 3,
        ack_req: true,
        ..bth::Repr::new(Opcode::RC_SEND_ONLY, 0x123, Psn::new(0x8d998f))
    };
    let ud = Headers {
        deth: Some(deth::Repr { qkey: 0x1111_1111, src_qp: 0x13 }),
        ..Headers::new(bth::Repr {
            mig_req: false,
            pad_cnt: 2,
            ..bth::Repr::new(Opcode::UD_SEND_ONLY, 0x123, Psn::new(0xbb8811))
        })
    };
    let uc = bth::Repr { mig_req: false, ..bth::Repr::new(Opcode::UC_SEND_LAST, 0x123, Psn::new(0xb99f19)) };
    for (hex, expected, payload_len) in
        [(RC_SEND_V4, Headers::new(rc), 21), (UD_SEND_V4, ud, 6), (UC_SEND_LAST_V4, Headers::new(uc), 44)]
    {
        let Captured { udp_payload, .. } = captured(hex);
        let (headers, payload) = Headers::parse(&udp_payload).unwrap();
        assert_eq!(headers, expected);
        assert_eq!(&udp_payload[payload], &vec![b'{'; payload_len]);
        let mut emitted = [0; 64];
        let len = headers.emit(&mut emitted);
        assert_eq!(emitted[..len], udp_payload[..len]);
    }
}
