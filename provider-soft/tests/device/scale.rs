//! Tests with many objects on one device.

use std::collections::BTreeSet;

use verbs::{CqInit, QpCap, QpInit, QpType, SendOp, WcStatus};

use crate::common::{Arena, Remote, Shape, connect, gid, open, recv, send, wait};

const MANY: usize = 10_000;

/// The maximum number of messages in flight.
const BATCH: usize = 50;

#[test]
fn a_message_arrives_on_each_of_10_000_connections() {
    let (a, b) = (open(), open());
    let cap = QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let shape = Shape { cap, ..Shape::default() };
    let [mut from, mut to] = [&a, &b].map(|context| {
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(&CqInit::new(BATCH as u32)).unwrap());
        let init = QpInit { cap, ..QpInit::new(QpType::RC, &cq) };
        let qps: Vec<_> = (0..MANY).map(|_| pd.create_qp(&init).unwrap()).collect();
        (Arena::new(&pd, 8 * MANY), cq, qps)
    });
    let pairs = from.2.drain(..).zip(to.2.drain(..));
    let (to_a, to_b) = (gid(&a), gid(&b));
    let mut pairs: Vec<_> = pairs
        .map(|(one, other)| {
            let (to_one, to_other) = (Remote::from_qp(&one), Remote::from_qp(&other));
            (connect(one, &shape, to_b, to_other), connect(other, &shape, to_a, to_one))
        })
        .collect();
    for (batch, pairs) in pairs.chunks_mut(BATCH).enumerate() {
        for (number, (sender, receiver)) in (batch * BATCH..).zip(pairs.iter_mut()) {
            let bytes = 8 * number..8 * number + 8;
            recv(receiver, number as u64, &[to.0.sge(bytes.clone())]);
            from.0.write(bytes.start, &number.to_ne_bytes());
            send(sender, number as u64, SendOp::Send, &[from.0.sge(bytes)]);
        }
        for cq in [&mut to.1, &mut from.1] {
            let wcs = wait(cq, pairs.len());
            assert!(wcs.iter().all(|wc| wc.status == WcStatus::SUCCESS), "{wcs:?}");
        }
    }
    assert!((0..MANY).all(|number| to.0.number(8 * number) == number as u64));
    let counters = a.raw().counters();
    let sent = if crate::SHARED_MEMORY { counters.shm_sent } else { counters.sent };
    assert!(sent >= MANY as u64, "{counters:?}");
}

#[test]
fn a_device_has_room_for_10_000_objects_of_each_kind() {
    let context = open();
    let pd = context.alloc_pd().unwrap();
    let cqs: Vec<_> = (0..MANY).map(|_| context.create_cq(&CqInit::new(1)).unwrap()).collect();
    let pds: Vec<_> = (0..MANY).map(|_| context.alloc_pd().unwrap()).collect();
    let srqs: Vec<_> = (0..MANY).map(|_| pd.create_srq(&verbs::SrqInit::new(1)).unwrap()).collect();
    let mws: Vec<_> = (0..MANY).map(|_| pd.alloc_mw(verbs::MwType::TYPE_2).unwrap()).collect();
    let mrs: Vec<_> = (0..MANY).map(|_| pd.alloc_null_mr().unwrap()).collect();
    let keys = mws.iter().map(verbs::Mw::rkey).chain(mrs.iter().map(verbs::Mr::lkey));
    assert_eq!(keys.collect::<BTreeSet<_>>().len(), 2 * MANY);
    drop((cqs, pds, srqs));
}
