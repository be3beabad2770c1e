//! Silent peers, and their effect on queue pairs connected to other peers.

use super::*;

/// Returns a fixture with `silent` more queue pairs, which have no time-out. An operation on 4 MiB
/// is posted to each of them, but its peer is silent. The fixture's first queue pair is connected
/// to a live peer.
fn beside(silent: u32, op: SendOp) -> Fixture {
    let mut f = Fixture::with(
        Service::Rc,
        &AttrChange { path_mtu: Some(1024), timeout: Some(0), ..AttrChange::default() },
    );
    let alive = f.qpn;
    let (own, large) = (f.mr, f.host.register(4 << 20, ALL));
    f.mr = large;
    let init = f.host.init(Service::Rc);
    for _ in 0..silent {
        f.qpn = f.host.qp(&init, &AttrChange { path_mtu: Some(1024), timeout: Some(0), ..connected() });
        f.post(op, 4 << 20);
    }
    let sent = f.leaves().len();
    assert!(sent >= silent as usize && sent < 1000, "{sent}");
    (f.qpn, f.mr, f.wr_id) = (alive, own, 0);
    f
}

#[test]
fn a_silent_peer_does_not_stall_the_other_queue_pairs() {
    for op in [WRITE, READ] {
        for silent in [1, 2, 16] {
            let mut f = beside(silent, op);
            for nth in 0..10 {
                let wr = f.post(SEND, 64);
                let sent = f.host.sent();
                assert_eq!(sent.len(), 1, "{silent} silent ones");
                assert!(sent[0].0.bth.ack_req);
                f.ack(nth);
                assert_eq!(f.ended(), [(wr, Status::Success)], "{silent} silent ones");
            }
        }
    }
}

#[test]
fn a_long_message_goes_on_beside_silent_peers() {
    for silent in [1, 16] {
        let mut f = beside(silent, WRITE);
        let wr = f.post(WRITE, 100 << 10);
        let mut upto = 0;
        while upto < 100 {
            let sent = f.host.sent();
            assert!(!sent.is_empty(), "stuck at {upto}");
            upto += sent.len() as u32;
            assert!(sent.last().unwrap().0.bth.ack_req, "otherwise nothing would wake the queue pair");
            f.ack(upto - 1);
        }
        assert_eq!(f.ended(), [(wr, Status::Success)]);
    }
}

#[test]
fn what_was_sent_unasked_is_not_left_behind_when_silent_peers_fill_the_window() {
    let mut f = Fixture::with(Service::Rc, &AttrChange { timeout: Some(0), ..AttrChange::default() });
    let init = f.host.init(Service::Rc);
    let silent: Vec<_> = (0..4).map(|_| f.host.qp(&init, &connected())).collect();
    // These first packets of a message do not request an acknowledgement.
    let wr = f.post(WRITE, 256 * 64);
    for _ in 0..3 {
        let (headers, _) = f.host.transmit(crate::engine::Urgency::Now).unwrap();
        assert!(!headers.bth.ack_req);
    }
    f.host.engine.set_window(4096);
    let alive = f.qpn;
    for qpn in silent {
        f.qpn = qpn;
        f.post(WRITE, 256 * 64);
    }
    f.qpn = alive;
    let mut upto = 3;
    while upto < 64 {
        let sent = f.host.sent();
        let own: Vec<_> = sent.iter().filter(|(headers, _)| nth(headers) >= upto).collect();
        assert!(own.last().is_some_and(|(headers, _)| headers.bth.ack_req), "stuck at {upto}");
        upto = own.iter().map(|(headers, _)| nth(headers)).max().unwrap() + 1;
        f.ack(upto - 1);
    }
    assert!(f.ended().contains(&(wr, Status::Success)));
}

#[test]
fn a_read_beside_silent_peers_asks_for_no_more_than_a_packet_at_a_time() {
    let mut f = beside(16, WRITE);
    f.post(READ, 8 << 10);
    let sent = f.host.sent();
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].0.reth.unwrap().dmalen, 1024);
}
