//! InfiniBand: datagrams with or without a GRH.

use super::*;

fn within_the_subnet() -> Arrival {
    Arrival { network: Network::Local, slid: 7, dlid: 9, sl: 3, ..Arrival::default() }
}

#[test]
fn without_a_grh_the_first_40_bytes_are_counted_and_nobody_writes_them() {
    let mut f = Fixture::new();
    f.post(1, 64);
    let headers = f.headers(&[9; 4]);
    f.host.arrive_from(&within_the_subnet(), &headers, &[9; 4]);
    let done = f.host.completions()[0];
    assert_eq!((done.status, done.byte_len, done.grh), (Status::Success, 44, false));
    assert_eq!((done.slid, done.sl, done.src_qpn), (7, 3, 0x333));
    let received = f.received(45);
    assert_eq!(received[..40], (0..40).collect::<Vec<u8>>());
    assert_eq!(received[40..], [9, 9, 9, 9, 44]);
}

#[test]
fn the_first_40_bytes_may_be_nobodys_memory_without_a_grh_and_must_not_with_one() {
    for (network, expected) in [(Network::Local, Status::Success), (Network::Grh, Status::LocalProtection)] {
        let mut f = Fixture::new();
        let sges = [crate::engine::Sge { lkey: !f.mr.key, ..f.mr.sge(0, 40) }, f.mr.sge(0, 4)];
        f.host.post_recv(f.qpn, 1, &sges);
        let headers = f.headers(&[9; 4]);
        f.host.arrive_from(&Arrival { network, ..within_the_subnet() }, &headers, &[9; 4]);
        assert_eq!(f.host.completions()[0].status, expected);
    }
}

#[test]
fn a_receive_has_to_hold_the_40_bytes_all_the_same() {
    let mut f = Fixture::new();
    f.post(1, 43);
    let headers = f.headers(&[9; 4]);
    f.host.arrive_from(&within_the_subnet(), &headers, &[9; 4]);
    assert_eq!(f.host.completions()[0].status, Status::LocalLength);
}

#[test]
fn a_grh_says_that_a_transport_of_infiniband_follows() {
    let mut f = Fixture::new();
    f.post(1, 64);
    let headers = f.headers(&[9; 4]);
    let arrival = Arrival { network: Network::Grh, flow_label: 0xabcde, ..arrival() };
    f.host.arrive_from(&arrival, &headers, &[9; 4]);
    assert!(f.host.completions()[0].grh);
    let received = f.received(44);
    // The payload length is 28: BTH 12, DETH 8, payload 4, ICRC 4. GIDs that resemble IPv4
    // addresses are still GIDs here.
    assert_eq!(received[..8], [0x62, 0x0a, 0xbc, 0xde, 0, 28, 0x1b, 61]);
    assert_eq!((&received[8..24], &received[24..40]), (&THERE[..], &HERE[..]));
}

#[test]
fn a_group_is_in_the_grh() {
    let mut f = Fixture::new();
    let group = [0xff, 0x12, 0x40, 0x1b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    f.host.engine.attach_mcast(f.qpn, group).unwrap();
    f.post(1, 64);
    let mut headers = f.headers(&[1; 4]);
    headers.bth.dest_qp = MULTICAST_QPN;
    for (network, heard) in [(Network::Local, 0), (Network::Grh, 1)] {
        f.host.arrive_from(&Arrival { network, local: group, ..within_the_subnet() }, &headers, &[1; 4]);
        assert_eq!(f.host.completions().len(), heard, "{network:?}");
    }
}
