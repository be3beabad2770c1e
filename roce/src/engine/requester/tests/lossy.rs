//! A requester and a responder connected by links that lose, duplicate and reorder packets.

use super::*;
use crate::engine::{Access, Attr, CqId, PostRefused};
use crate::sim::{Chance, Fabric, Link, Region, connected_attr};

const LENGTH: u32 = 20_000;

/// Writes data, reads it back and increments a counter, many times.
fn traffic(seed: u64, link: Link) {
    traffic_with(seed, link, connected_attr());
}

fn traffic_with(seed: u64, link: Link, attr: Attr) {
    let mut fabric = Fabric::new(seed);
    fabric.set_default_link(link);
    let (a, b) = (fabric.add_endpoint(), fabric.add_endpoint());
    let qp_a = fabric.create_qp(a, &fabric.qp_init(a, Service::Rc)).unwrap();
    let qp_b = fabric.create_qp(b, &fabric.qp_init(b, Service::Rc)).unwrap();
    let attr = Attr { sq_psn: 0xff_fff0, rq_psn: 0x7f_fff0, ..attr };
    fabric.connect((a, qp_a), (b, qp_b), &attr).unwrap();
    let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let pattern = |seed: u8| (0..LENGTH).map(|n| (n as u8).wrapping_mul(31) ^ seed).collect::<Vec<u8>>();
    let source = fabric.register(a, pattern(1), all).unwrap();
    let target = fabric.register(b, pattern(2), all).unwrap();
    let back = fabric.register(a, pattern(3), all).unwrap();
    let counter = fabric.register(b, [0; 8].into(), all).unwrap();
    let found = fabric.register(a, [0; 8].into(), all).unwrap();

    let (write, read, add) = (
        SendOp::Write { addr: target.addr, rkey: target.key, imm: None },
        SendOp::Read { addr: target.addr, rkey: target.key },
        SendOp::FetchAdd { addr: counter.addr, rkey: counter.key, add: 1 },
    );
    let mut ended = Vec::new();
    let mut posted = 0;
    for round in 0..30 {
        let works: [(SendOp, &Region, u32); 3] =
            [(write, &source, LENGTH), (read, &back, LENGTH), (add, &found, 8)];
        for (op, local, length) in works {
            let sges = [Sge { addr: local.addr, length, lkey: local.key }];
            let flags = SendFlags { signaled: true, ..SendFlags::default() };
            let wr = SendWr { wr_id: posted, op, flags, payload: Payload::Sges(&sges), remote_srq: 0 };
            assert_ne!(fabric.post_send(a, qp_a, &wr), Err(PostRefused::InvalidState), "round {round}");
            posted += 1;
        }
        if round % 4 == 3 || round == 29 {
            fabric.run_until_idle(60_000_000_000).unwrap();
        }
        ended.extend(core::iter::from_fn(|| fabric.poll(a, CqId(0))).map(|c| (c.wr_id, c.status)));
    }
    let expected: Vec<_> = (0..posted).map(|wr_id| (wr_id, Status::Success)).collect();
    assert_eq!(ended, expected, "seed {seed}");
    assert_eq!(fabric.bytes(b, &target), pattern(1), "seed {seed}");
    assert_eq!(fabric.bytes(a, &back), pattern(1), "seed {seed}");
    assert_eq!(fabric.bytes(b, &counter), 30u64.to_ne_bytes(), "seed {seed}: each once");
    assert_eq!(fabric.bytes(a, &found), 29u64.to_ne_bytes(), "seed {seed}");
}

#[test]
fn a_clean_link() {
    traffic(0, Link::default());
}

#[test]
fn a_link_that_loses() {
    (0..8).for_each(|seed| traffic(seed, Link { loss: Chance::percent(2), ..Link::default() }));
}

#[test]
fn a_link_that_doubles_and_reorders() {
    let link = Link {
        duplicate: Chance::percent(5),
        reorder: Chance::percent(5),
        reorder_delay: 20_000,
        ..Link::default()
    };
    (0..8).for_each(|seed| traffic(seed, link.clone()));
}

#[test]
fn a_link_that_does_everything() {
    let link = Link {
        loss: Chance::percent(3),
        duplicate: Chance::percent(3),
        reorder: Chance::percent(3),
        reorder_delay: 50_000,
        jitter: 3_000,
        corrupt: Chance::percent(1),
        ..Link::default()
    };
    (100..108).for_each(|seed| traffic(seed, link.clone()));
}

#[test]
fn a_response_that_was_asked_for_again_is_not_in_the_way_of_the_next() {
    let link =
        Link { reorder: Chance::percent(20), reorder_delay: 30_000, jitter: 10_000, ..Link::default() };
    let attr = Attr { max_rd_atomic: 1, max_dest_rd_atomic: 1, ..connected_attr() };
    (0..20).for_each(|seed| traffic_with(seed, link.clone(), attr));
}
