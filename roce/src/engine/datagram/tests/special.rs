//! Queue pairs that have a well-known number or send with such a source number.

use super::*;
use crate::engine::{Path, Payload, QpInit, SendFlags, SendOp, SendWr, UdDestination};

/// Creates a queue pair with the partition key and queue key of [`connected`].
fn with(f: &mut Fixture, well_known: Option<u32>, deth_source: Option<u32>) -> Result<Qpn, Refused> {
    let init = QpInit { well_known, deth_source, ..f.host.init(Service::Ud) };
    let qpn = f.host.engine.create_qp(&init)?;
    for state in [State::Init, State::Rtr, State::Rts] {
        f.host.modify(qpn, &crate::engine::AttrChange { state: Some(state), ..connected() });
    }
    Ok(qpn)
}

/// Returns the source queue pair number of a datagram sent by this queue pair.
fn source(f: &mut Fixture, qpn: Qpn) -> u32 {
    let path = Path { local: HERE, remote: THERE, ..Path::default() };
    let op = SendOp::Datagram { to: UdDestination { path, qpn: 1, qkey: QKEY }, imm: None };
    let wr =
        SendWr { wr_id: 0, op, flags: SendFlags::default(), payload: Payload::Inline(&[1]), remote_srq: 0 };
    f.host.engine.post_send(qpn, &wr, f.host.now, &mut f.host.log).unwrap();
    f.host.sent()[0].0.deth.unwrap().src_qp
}

#[test]
fn packets_for_a_well_known_number_go_to_its_owner() {
    let mut f = Fixture::new();
    let owners = [with(&mut f, Some(0), None).unwrap(), with(&mut f, Some(1), None).unwrap()];
    for number in [1, 0] {
        let sge = f.mr.sge(0, 64);
        f.host.post_recv(owners[number as usize], number.into(), &[sge]);
        let mut headers = f.headers(&[1; 4]);
        headers.bth.dest_qp = number;
        f.host.arrive(&headers, &[1; 4]);
        let done = f.host.completions();
        assert_eq!((done.len(), done[0].qpn, done[0].wr_id), (1, owners[number as usize], number.into()));
        assert_eq!(source(&mut f, owners[number as usize]), number);
    }
}

#[test]
fn a_well_known_number_has_one_owner_at_a_time() {
    let mut f = Fixture::new();
    let owner = with(&mut f, Some(1), None).unwrap();
    assert_eq!(with(&mut f, Some(1), None), Err(Refused::Busy));
    f.host.engine.destroy_qp(owner).unwrap();
    let mut headers = f.headers(&[1; 4]);
    headers.bth.dest_qp = 1;
    f.host.arrive(&headers, &[1; 4]);
    assert!(f.host.completions().is_empty());
    assert!(with(&mut f, Some(1), None).is_ok());
    assert!(matches!(with(&mut f, Some(2), None), Err(Refused::Invalid(_))));
    assert!(matches!(with(&mut f, None, Some(1 << 24)), Err(Refused::Invalid(_))));
    let init = QpInit { well_known: Some(0), ..f.host.init(Service::Rc) };
    assert!(matches!(f.host.engine.create_qp(&init), Err(Refused::Invalid(_))));
}

#[test]
fn several_may_send_as_one_that_hears_the_responses() {
    let mut f = Fixture::new();
    let owner = with(&mut f, Some(1), None).unwrap();
    let senders = [with(&mut f, None, Some(1)).unwrap(), with(&mut f, None, Some(1)).unwrap()];
    for qpn in [owner, senders[0], senders[1]] {
        let sge = f.mr.sge(0, 64);
        f.host.post_recv(qpn, 5, &[sge]);
        assert_eq!(source(&mut f, qpn), 1);
    }
    let mut headers = f.headers(&[1; 4]);
    headers.bth.dest_qp = 1;
    f.host.arrive(&headers, &[1; 4]);
    let heard: Vec<_> = f.host.completions().iter().map(|done| done.qpn).collect();
    assert_eq!(heard, [owner]);
    let qpn = f.qpn;
    assert_eq!(source(&mut f, qpn), qpn.0);
}

#[test]
fn partitions_are_the_ports_to_check_and_subnet_management_has_no_queue_key() {
    for (number, pkey, qkey, heard) in [(0, 0x1234, 0, 1), (1, 0x1234, QKEY, 1), (1, 0xffff, QKEY ^ 1, 0)] {
        let mut f = Fixture::new();
        let owner = with(&mut f, Some(number), None).unwrap();
        let sge = f.mr.sge(0, 64);
        f.host.post_recv(owner, 5, &[sge]);
        let mut headers = f.headers(&[1; 4]);
        (headers.bth.dest_qp, headers.bth.pkey) = (number, pkey);
        headers.deth = Some(deth::Repr { qkey, src_qp: 1 });
        f.host.arrive(&headers, &[1; 4]);
        assert_eq!(f.host.completions().len(), heard, "{number} {pkey:#x} {qkey:#x}");
    }
}
