//! Compares every message with bytes laid out by hand. Offsets and masks come from the tables in
//! IBTA 12.6 and from the handwritten structs and helpers of earlier Linux versions.

use ib_cm::wire::{
    Attribute, Gid, MAD_LEN, Mad, Malformed, Message, Method, MsgResponse, Mtu, PortSpace, PrivateData,
    Reason, ServiceId, apr, drep, dreq, ip, lap, mad, mra, path, rej, rep, req, rtu, sidr_rep, sidr_req,
};

const TID: u64 = 0x0102_0304_0506_0708;

/// Returns a MAD whose data, after the 24-byte header, contains the given bytes at the given
/// offsets.
fn laid_out(attribute: u8, parts: &[(usize, &[u8])]) -> Mad {
    let mut bytes = [0; MAD_LEN];
    let header = [1, 7, 2, 3, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, attribute, 0, 0, 0, 0, 0, 0];
    bytes[..24].copy_from_slice(&header);
    for (offset, part) in parts {
        bytes[24 + offset..24 + offset + part.len()].copy_from_slice(part);
    }
    bytes
}

fn check(message: impl Into<Message>, expected: &Mad) {
    let message = message.into();
    let emitted = message.emit(TID, 0);
    for (at, (got, want)) in emitted.iter().zip(expected).enumerate() {
        assert_eq!(
            got,
            want,
            "byte {at} of {:?}, byte {} of its data",
            message.attribute(),
            at as isize - 24
        );
    }
    let (header, parsed) = Message::parse(expected).unwrap();
    assert_eq!(parsed, message);
    assert_eq!(header, mad::Repr::message(message.attribute(), TID, 0));
}

fn gid(last: u8) -> Gid {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, last]
}

#[test]
fn a_req_has_the_bytes_of_table_106() {
    let private_data = req::Data::new(&[0xaa; 92]).unwrap();
    let primary = path::Repr {
        local_lid: 0xffff,
        remote_lid: 0xffff,
        local_gid: gid(1),
        remote_gid: gid(2),
        flow_label: 0xabcde,
        packet_rate: 0x21,
        traffic_class: 0x68,
        hop_limit: 64,
        sl: 5,
        subnet_local: false,
        local_ack_timeout: 17,
    };
    let alternate =
        path::Repr { local_lid: 0x1234, subnet_local: true, hop_limit: 1, sl: 0, flow_label: 1, ..primary };
    let message = req::Repr {
        local_comm_id: 0x1122_3344,
        vendor_id: 0x00_15b3,
        service_id: ServiceId::ip(PortSpace::TCP, 7174),
        local_ca_guid: 0x0255_c0ff_fe00_0001,
        local_qkey: 0x0123_4567,
        local_qpn: 0x00_0211,
        responder_resources: 1,
        local_eecn: 0x01_0203,
        initiator_depth: 2,
        remote_eecn: 0x04_0506,
        remote_cm_response_timeout: 20,
        transport_service_type: 3,
        end_to_end_flow_control: true,
        starting_psn: 0xab_cdef,
        local_cm_response_timeout: 21,
        retry_count: 7,
        partition_key: 0xffff,
        path_mtu: Mtu::B1024,
        rdc_exists: true,
        rnr_retry_count: 6,
        max_cm_retries: 15,
        srq: true,
        extended_transport_type: 1,
        primary,
        alternate,
        private_data,
    };
    let expected = laid_out(
        0x10,
        &[
            (0, &[0x11, 0x22, 0x33, 0x44]),
            (5, &[0x00, 0x15, 0xb3]),
            (8, &[0, 0, 0, 0, 0x01, 0x06, 0x1c, 0x06]),
            (16, &[0x02, 0x55, 0xc0, 0xff, 0xfe, 0, 0, 1]),
            (28, &[0x01, 0x23, 0x45, 0x67]),
            (32, &[0x00, 0x02, 0x11, 1]),
            (36, &[0x01, 0x02, 0x03, 2]),
            (40, &[0x04, 0x05, 0x06, 20 << 3 | 3 << 1 | 1]),
            (44, &[0xab, 0xcd, 0xef, 21 << 3 | 7]),
            (48, &[0xff, 0xff, 3 << 4 | 1 << 3 | 6, 15 << 4 | 1 << 3 | 1]),
            (52, &[0xff, 0xff, 0xff, 0xff]),
            (56, &gid(1)),
            (72, &gid(2)),
            (88, &[0xab, 0xcd, 0xe0, 0x21, 0x68, 64, 5 << 4, 17 << 3]),
            (96, &[0x12, 0x34, 0xff, 0xff]),
            (100, &gid(1)),
            (116, &gid(2)),
            (132, &[0x00, 0x00, 0x10, 0x21, 0x68, 1, 1 << 3, 17 << 3]),
            (140, &[0xaa; 92]),
        ],
    );
    assert!(message.has_alternate());
    check(message, &expected);
}

#[test]
fn an_mra_has_the_bytes_of_table_107() {
    let message = mra::Repr {
        local_comm_id: 1,
        remote_comm_id: 2,
        message_mraed: MsgResponse::REP,
        service_timeout: 24,
        private_data: mra::Data::new(&[0xbb; 222]).unwrap(),
    };
    let expected = laid_out(0x11, &[(0, &[0, 0, 0, 1, 0, 0, 0, 2, 1 << 6, 24 << 3]), (10, &[0xbb; 222])]);
    check(message, &expected);
}

#[test]
fn a_rej_has_the_bytes_of_table_108() {
    let message = rej::Repr {
        local_comm_id: 3,
        remote_comm_id: 4,
        message_rejected: MsgResponse::OTHER,
        reject_info_length: 72,
        reason: Reason::CONSUMER_DEFINED,
        ari: rej::Ari::new(&[0xcc; 72]).unwrap(),
        private_data: rej::Data::new(&[0xdd; 148]).unwrap(),
    };
    let expected = laid_out(
        0x12,
        &[(0, &[0, 0, 0, 3, 0, 0, 0, 4, 2 << 6, 72 << 1, 0, 28]), (12, &[0xcc; 72]), (84, &[0xdd; 148])],
    );
    check(message, &expected);
}

#[test]
fn a_rep_has_the_bytes_of_table_110() {
    let message = rep::Repr {
        local_comm_id: 0x0a0b_0c0d,
        remote_comm_id: 0x1122_3344,
        local_qkey: 7,
        local_qpn: 0x00_0212,
        local_eecn: 0x05_0607,
        starting_psn: 0x12_3456,
        responder_resources: 9,
        initiator_depth: 8,
        target_ack_delay: 15,
        failover_accepted: 1,
        end_to_end_flow_control: true,
        rnr_retry_count: 7,
        srq: true,
        local_ca_guid: 0x0255_c0ff_fe00_0002,
        private_data: rep::Data::new(&[0xee; 196]).unwrap(),
        ..rep::Repr::default()
    }
    .with_vendor_id(0x12_15b3);
    assert_eq!(message.vendor_id(), 0x12_15b3);
    let expected = laid_out(
        0x13,
        &[
            (0, &[0x0a, 0x0b, 0x0c, 0x0d, 0x11, 0x22, 0x33, 0x44]),
            (8, &[0, 0, 0, 7]),
            (12, &[0x00, 0x02, 0x12, 0x12]),
            (16, &[0x05, 0x06, 0x07, 0x15]),
            (20, &[0x12, 0x34, 0x56, 0xb3]),
            (24, &[9, 8, 15 << 3 | 1 << 1 | 1, 7 << 5 | 1 << 4]),
            (28, &[0x02, 0x55, 0xc0, 0xff, 0xfe, 0, 0, 2]),
            (36, &[0xee; 196]),
        ],
    );
    check(message, &expected);
}

#[test]
fn rtu_dreq_and_drep_have_the_bytes_of_their_tables() {
    let ids: (usize, &[u8]) = (0, &[0, 0, 0, 5, 0, 0, 0, 6]);
    let message = rtu::Repr { local_comm_id: 5, remote_comm_id: 6, private_data: [1; 224].into() };
    check(message, &laid_out(0x14, &[ids, (8, &[1; 224])]));
    let message = dreq::Repr {
        local_comm_id: 5,
        remote_comm_id: 6,
        remote_qpn: 0x12_3456,
        private_data: [2; 220].into(),
    };
    check(message, &laid_out(0x15, &[ids, (8, &[0x12, 0x34, 0x56, 0]), (12, &[2; 220])]));
    let message = drep::Repr { local_comm_id: 5, remote_comm_id: 6, private_data: [3; 224].into() };
    check(message, &laid_out(0x16, &[ids, (8, &[3; 224])]));
}

#[test]
fn service_id_resolution_has_the_bytes_of_its_tables() {
    let message = sidr_req::Repr {
        request_id: 0x0102_0304,
        partition_key: 0xffff,
        service_id: ServiceId::ip(PortSpace::UDP, 7174),
        private_data: [4; 216].into(),
    };
    let expected = laid_out(
        0x17,
        &[(0, &[1, 2, 3, 4, 0xff, 0xff, 0, 0]), (8, &[0, 0, 0, 0, 1, 0x11, 0x1c, 6]), (16, &[4; 216])],
    );
    check(message, &expected);

    let message = sidr_rep::Repr {
        request_id: 0x0102_0304,
        status: sidr_rep::Status::REJECTED,
        info_length: 72,
        qpn: 0x00_0213,
        service_id: ServiceId::ip(PortSpace::UDP, 7174),
        qkey: 0x0123_4567,
        info: [5; 72].into(),
        private_data: [6; 136].into(),
        ..sidr_rep::Repr::default()
    }
    .with_vendor_id(0x12_15b3);
    assert_eq!(message.vendor_id(), 0x12_15b3);
    let expected = laid_out(
        0x18,
        &[
            (0, &[1, 2, 3, 4, 2, 72, 0x12, 0x15]),
            (8, &[0x00, 0x02, 0x13, 0xb3]),
            (12, &[0, 0, 0, 0, 1, 0x11, 0x1c, 6]),
            (20, &[0x01, 0x23, 0x45, 0x67]),
            (24, &[5; 72]),
            (96, &[6; 136]),
        ],
    );
    check(message, &expected);
}

#[test]
fn alternate_paths_have_the_bytes_of_their_tables() {
    let message = lap::Repr {
        local_comm_id: 7,
        remote_comm_id: 8,
        remote_qpn: 0x12_3456,
        remote_cm_response_timeout: 20,
        local_lid: 0x0102,
        remote_lid: 0x0304,
        local_gid: gid(1),
        remote_gid: gid(2),
        flow_label: 0xabcde,
        traffic_class: 0x68,
        hop_limit: 64,
        packet_rate: 0x21,
        sl: 5,
        subnet_local: true,
        local_ack_timeout: 17,
        private_data: [7; 168].into(),
    };
    let expected = laid_out(
        0x19,
        &[
            (0, &[0, 0, 0, 7, 0, 0, 0, 8]),
            (12, &[0x12, 0x34, 0x56, 20 << 3]),
            (20, &[1, 2, 3, 4]),
            (24, &gid(1)),
            (40, &gid(2)),
            (56, &[0xab, 0xcd, 0xe0, 0x68, 64, 0x21, 5 << 4 | 1 << 3, 17 << 3]),
            (64, &[7; 168]),
        ],
    );
    check(message, &expected);

    let message = apr::Repr {
        local_comm_id: 7,
        remote_comm_id: 8,
        info_length: 72,
        ap_status: apr::Status::UNSUPPORTED,
        info: [8; 72].into(),
        private_data: [9; 148].into(),
    };
    let expected =
        laid_out(0x1a, &[(0, &[0, 0, 0, 7, 0, 0, 0, 8, 72, 2, 0, 0]), (12, &[8; 72]), (84, &[9; 148])]);
    check(message, &expected);
}

#[test]
fn the_header_of_a_message_carries_the_options_of_a_vendor() {
    let bytes = Message::from(rep::Repr::default()).emit(TID, 0x0a0b_0c0d);
    assert_eq!(bytes[20..24], [0x0a, 0x0b, 0x0c, 0x0d]);
    assert_eq!(Message::parse(&bytes).unwrap().0.attr_mod, 0x0a0b_0c0d);
}

#[test]
fn addresses_of_ipv4_lie_in_the_last_bytes_of_the_ip_header() {
    let header = ip::Repr {
        source_port: 0x1234,
        addresses: ip::Addresses::V4 { source: [192, 0, 2, 1].into(), target: [192, 0, 2, 2].into() },
    };
    let mut expected = [0; 36];
    expected[..4].copy_from_slice(&[0, 0x40, 0x12, 0x34]);
    expected[16..20].copy_from_slice(&[192, 0, 2, 1]);
    expected[32..36].copy_from_slice(&[192, 0, 2, 2]);
    assert_eq!(header.emit(), expected);
    assert_eq!(ip::Repr::parse(&expected), Ok(header));
    assert_eq!(header.target().to_string(), "192.0.2.2");
    expected[1] |= 0xf;
    assert_eq!(ip::Repr::parse(&expected), Ok(header), "reserved bits are ignored");
}

#[test]
fn addresses_of_ipv6_fill_the_ip_header() {
    let (source, target) = ([0x20; 16], [0x30; 16]);
    let header = ip::Repr {
        source_port: 1,
        addresses: ip::Addresses::V6 { source: source.into(), target: target.into() },
    };
    let bytes = header.emit();
    assert_eq!(bytes[..4], [0, 0x60, 0, 1]);
    assert_eq!(bytes[4..20], source);
    assert_eq!(bytes[20..], target);
    assert_eq!(ip::Repr::parse(&bytes), Ok(header));
}

#[test]
fn other_versions_of_the_ip_header_are_refused_by_name() {
    let header = ip::Repr {
        source_port: 1,
        addresses: ip::Addresses::V6 { source: [1; 16].into(), target: [2; 16].into() },
    };
    let bytes = header.emit();
    assert_eq!(ip::Repr::parse(&bytes[..35]), Err(Malformed::Truncated));
    assert_eq!(
        ip::Repr::parse(&{
            let mut b = bytes;
            b[0] = 1;
            b
        }),
        Err(Malformed::Version)
    );
    assert_eq!(
        ip::Repr::parse(&{
            let mut b = bytes;
            b[1] = 0x50;
            b
        }),
        Err(Malformed::IpVersion)
    );
}

#[test]
fn unknown_attributes_are_data() {
    let bytes = Message::Other(Attribute(0x1b)).emit(TID, 0);
    let (header, message) = Message::parse(&bytes).unwrap();
    assert_eq!(message, Message::Other(Attribute(0x1b)));
    assert_eq!(header.method, Method::SEND);
    assert_eq!(Message::parse(&bytes[..255]), Err(Malformed::Truncated));
}

#[test]
fn any_bytes_are_a_message_that_means_the_same_when_it_is_emitted() {
    let mut rng = ib_cm::sim::Rng::new(1);
    for round in 0..20_000_u64 {
        let mut bytes = [0; MAD_LEN];
        rng.fill(&mut bytes);
        bytes[16] = 0;
        bytes[17] = 0x0f + (round % 13) as u8;
        let (header, message) = Message::parse(&bytes).unwrap();
        let emitted = message.emit(header.tid, header.attr_mod);
        let (again, parsed) = Message::parse(&emitted).unwrap();
        assert_eq!(parsed, message);
        assert_eq!((again.tid, again.attr_mod, again.attr_id), (header.tid, header.attr_mod, header.attr_id));
        assert_eq!(parsed.emit(header.tid, header.attr_mod), emitted);
        let _ = (format!("{message:?}"), ip::Repr::parse(&bytes), PrivateData::<72>::new(&bytes));
    }
}
