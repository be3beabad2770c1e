//! Endpoints as text, as bytes and for connecting.

use std::net::Ipv4Addr;

use crate::common::World;
use verbs::{
    AccessFlags, Cause, ConnectAttr, Context, CqInit, Endpoint, Errno, Gid, GidEntry, GidType, Mtu, Port,
    Provider, Qp, QpInit, QpState, QpType, RemoteAccess, state::Reset,
};

both! {
    connecting_takes_the_smaller_mtu_and_depths_of_both_sides
    a_queue_pair_that_cannot_be_connected_comes_back_in_reset
    a_datagram_queue_pair_cannot_be_connected
    an_mtu_that_does_not_exist_is_refused_whichever_side_names_it
}

const TEXT: &str = "qpn=0x000011,psn=0x3f21aa,lid=7,mtu=4096,rd_atomic=16,gid=192.0.2.1";

fn setup<P: Provider>(world: &World, context: &Context<P>, qp_type: QpType) -> (Port, Qp<Reset, P>) {
    world.state().reads = (12, 10);
    world.state().gids = vec![GidEntry {
        gid: Gid::from(Ipv4Addr::new(10, 0, 0, 1)),
        gid_index: 3,
        port_num: 1,
        gid_type: GidType::ROCE_V2,
        ndev_ifindex: 0,
    }];
    let cq = context.create_cq(&CqInit::new(4)).unwrap();
    let qp = context.alloc_pd().unwrap().create_qp(&QpInit::new(qp_type, &cq)).unwrap();
    (context.port(1).unwrap(), qp)
}

fn connecting_takes_the_smaller_mtu_and_depths_of_both_sides<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let remote: Endpoint = TEXT.parse().unwrap();
    let attr = ConnectAttr { access: RemoteAccess::READ, timeout: 9, ..ConnectAttr::default() };
    // The MTUs of the port and the peer, the program's maximum, and the result; the number of reads
    // the peer executes, the number the program wants, and the result.
    for (mtus, mtu, reads, depth) in [
        ([1024, 4096, 4096], 1024, (16, 255), 12),
        ([4096, 512, 2048], 512, (5, 255), 5),
        ([4096, 4096, 256], 256, (16, 3), 3),
    ] {
        let [port_mtu, remote_mtu, max_mtu] = mtus.map(|bytes| Mtu::from_bytes(bytes).unwrap());
        world.state().active_mtu = Some(port_mtu);
        let (port, qp) = setup(world, &context, QpType::RC);
        let own = qp.endpoint(&port);
        assert_eq!((own.qp_num, own.psn, own.mtu), (qp.qp_num(), qp.psn(), port_mtu));
        assert_eq!((own.gid, own.lid, own.max_dest_rd_atomic), (port.gid.gid, 0, 10));
        world.state().moves.clear();
        let remote = Endpoint { mtu: remote_mtu, max_dest_rd_atomic: reads.0, ..remote };
        let psn = qp.psn();
        let qp =
            qp.connect(&port, &remote, &ConnectAttr { max_mtu, max_rd_atomic: reads.1, ..attr }).unwrap();
        assert_eq!(qp.state().unwrap(), QpState::RTS);
        let state = world.state();
        assert_eq!(
            state.moves.iter().map(|(to, ..)| *to).collect::<Vec<_>>(),
            [QpState::INIT, QpState::RTR, QpState::RTS]
        );
        let [init, rtr, rts] = [0, 1, 2].map(|step| state.moves[step].2);
        assert_eq!((init.port_num, init.qp_access_flags), (1, AccessFlags::REMOTE_READ));
        assert_eq!(rtr.path_mtu, Mtu::from_bytes(mtu).unwrap(), "{mtus:?}");
        assert_eq!((rtr.dest_qp_num, rtr.rq_psn, rtr.max_dest_rd_atomic), (0x11, 0x3f_21aa, 10));
        let route = rtr.ah_attr.grh.expect("a global route on Ethernet");
        assert_eq!((route.dgid, route.sgid_index, route.hop_limit), (remote.gid, 3, 64));
        assert_eq!((rtr.ah_attr.port_num, rts.sq_psn, rts.timeout), (1, psn, 9));
        assert_eq!(rts.max_rd_atomic, depth, "{reads:?}");
    }
}

fn a_queue_pair_that_cannot_be_connected_comes_back_in_reset<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let remote: Endpoint = TEXT.parse().unwrap();
    for refused in [QpState::INIT, QpState::RTR, QpState::RTS] {
        let (port, qp) = setup(world, &context, QpType::RC);
        world.state().refuse_move = Some((refused, Errno::NETUNREACH));
        let before = qp.psn();
        let failed = qp.connect(&port, &remote, &ConnectAttr::default()).unwrap_err();
        assert_eq!(failed.error.errno, Errno::NETUNREACH);
        let qp = failed.handle;
        assert_eq!(qp.state().unwrap(), QpState::RESET, "{refused}");
        assert_eq!(qp.psn() == before, refused == QpState::INIT, "a peer was told the old number");
        world.state().refuse_move = None;
        let qp = qp.connect(&port, &remote, &ConnectAttr::default()).unwrap();
        assert_eq!(qp.state().unwrap(), QpState::RTS);
    }
}

fn a_datagram_queue_pair_cannot_be_connected<P: Provider>(world: &World, context: Context<P>) {
    let (port, qp) = setup(world, &context, QpType::UD);
    let failed = qp.connect(&port, &TEXT.parse().unwrap(), &ConnectAttr::default()).unwrap_err();
    assert!(failed.to_string().contains("has no peer"), "{failed}");
    assert_eq!(failed.handle.state().unwrap(), QpState::RESET);
    assert!(world.state().moves.is_empty());
}

fn an_mtu_that_does_not_exist_is_refused_whichever_side_names_it<P: Provider>(
    world: &World,
    context: Context<P>,
) {
    let (port, mut qp) = setup(world, &context, QpType::RC);
    let good: Endpoint = TEXT.parse().unwrap();
    for mtu in [Mtu(0), Mtu(9)] {
        let remote = Endpoint { mtu, ..good };
        let attr = ConnectAttr { max_mtu: mtu, ..ConnectAttr::default() };
        for (remote, attr) in [(remote, ConnectAttr::default()), (good, attr)] {
            let failed = qp.connect(&port, &remote, &attr).unwrap_err();
            assert_eq!(failed.error.cause, Cause::Mtu { mtu });
            qp = failed.handle;
        }
    }
    assert!(world.state().moves.is_empty());
}

/// Returns endpoints with every field at both ends of its range and at some points in between.
fn endpoints() -> Vec<Endpoint> {
    // Pseudo-random numbers over all bits, the same in each run.
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        seed >> 20
    };
    let mtus = [256, 512, 1024, 2048, 4096].map(|bytes| Mtu::from_bytes(bytes).unwrap());
    let mut endpoints: Vec<Endpoint> =
        (0..500)
            .map(|_| Endpoint {
                gid: Gid(
                    (u128::from(next()) << 84 | u128::from(next()) << 42 | u128::from(next())).to_be_bytes()
                ),
                lid: next() as u16,
                qp_num: next() as u32 & 0xff_ffff,
                psn: next() as u32 & 0xff_ffff,
                mtu: mtus[next() as usize % 5],
                max_dest_rd_atomic: next() as u8,
            })
            .collect();
    let first = endpoints[0];
    endpoints.push(Endpoint { qp_num: 0, psn: 0, lid: 0, max_dest_rd_atomic: 0, gid: Gid::ZERO, ..first });
    endpoints.push(Endpoint {
        qp_num: 0xff_ffff,
        psn: 0xff_ffff,
        lid: u16::MAX,
        max_dest_rd_atomic: 255,
        ..first
    });
    endpoints
}

#[test]
fn an_endpoint_travels_as_text_and_as_bytes() {
    for endpoint in endpoints() {
        let text = endpoint.to_string();
        assert_eq!(text.parse::<Endpoint>(), Ok(endpoint), "{text}");
        assert_eq!(Endpoint::from_bytes(&endpoint.to_bytes()).unwrap(), endpoint, "{text}");
    }
    let endpoint: Endpoint = TEXT.parse().unwrap();
    assert_eq!(endpoint.to_string(), TEXT);
    let shuffled = " gid=::ffff:192.0.2.1 ,new=1,psn=4137386, mtu = 4096,qpn=17\n";
    assert_eq!(shuffled.parse(), Ok(Endpoint { lid: 0, max_dest_rd_atomic: 1, ..endpoint }));
}

#[test]
fn malformed_text_is_an_error() {
    for missing in ["qpn", "psn", "mtu", "gid"] {
        let pairs: Vec<&str> = TEXT.split(',').filter(|pair| !pair.starts_with(missing)).collect();
        assert!(pairs.join(",").parse::<Endpoint>().is_err(), "without {missing}");
    }
    for (from, to) in [
        ("0x000011", "0x1000000"),
        ("0x3f21aa", "0x1000000"),
        ("0x3f21aa", "-1"),
        ("0x3f21aa", "0x"),
        ("4096", "1500"),
        ("4096", "0"),
        ("lid=7", "lid=65536"),
        ("rd_atomic=16", "rd_atomic=256"),
        ("rd_atomic=16", "rd_atomic"),
        ("192.0.2.1", "192.0.2.256"),
        ("gid=192.0.2.1", "gid="),
    ] {
        let text = TEXT.replace(from, to);
        assert_ne!(text, TEXT);
        let error = text.parse::<Endpoint>().expect_err(&text);
        assert!(!error.to_string().is_empty());
    }
    // No text causes a panic: each byte omitted, doubled or replaced.
    for at in 0..TEXT.len() {
        for with in ["", "=", ",", "0", "é", "\0"] {
            let _ = [&TEXT[..at], with, &TEXT[at + 1..]].concat().parse::<Endpoint>();
        }
        // A prefix of an address may itself be a valid address.
        let is_cut = TEXT[..at].parse::<Endpoint>().is_err();
        assert!(is_cut || TEXT[..at].contains("gid=::"), "{}", &TEXT[..at]);
    }
    assert!("".parse::<Endpoint>().is_err());
}

#[test]
fn malformed_bytes_are_an_error() {
    let good = TEXT.parse::<Endpoint>().unwrap().to_bytes();
    let long = [good, good].concat();
    for len in (0..=64).filter(|len| *len != 32) {
        assert!(Endpoint::from_bytes(&long[..len]).is_err(), "{len} bytes");
    }
    // The version, the MTU, and the highest bytes of the numbers.
    for (at, byte) in [(0, 0), (0, 2), (1, 0), (1, 6), (1, 255), (8, 1), (12, 1)] {
        let mut bytes = good;
        bytes[at] = byte;
        let error = Endpoint::from_bytes(&bytes).expect_err("it is malformed");
        assert!(matches!(error.cause, Cause::Parse(_)), "{at}: {byte}");
    }
    for at in 0..32 {
        for byte in 0..=255 {
            let mut bytes = good;
            bytes[at] = byte;
            if let Ok(endpoint) = Endpoint::from_bytes(&bytes) {
                assert!(
                    endpoint.qp_num < 1 << 24 && endpoint.psn < 1 << 24 && endpoint.mtu.bytes().is_some()
                );
            }
        }
    }
}

#[test]
#[cfg(feature = "serde")]
fn serde_writes_an_endpoint_as_its_text() {
    for endpoint in endpoints() {
        let json = serde_json::to_string(&endpoint).unwrap();
        assert_eq!(json, format!("\"{endpoint}\""));
        assert_eq!(serde_json::from_str::<Endpoint>(&json).unwrap(), endpoint);
        assert_eq!(
            serde_json::from_reader::<_, Endpoint>(json.as_bytes()).unwrap(),
            endpoint,
            "not borrowed"
        );
    }
    for json in ["\"qpn=1\"", "7", "null", "\"\""] {
        assert!(serde_json::from_str::<Endpoint>(json).is_err(), "{json}");
    }
}
