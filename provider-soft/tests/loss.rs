//! Tests that a device handles every packet that the kernel delivers.

mod common;

use std::time::Instant;

use common::{Arena, End, PATIENCE, Shape, gid, open, pair_on};
use provider_soft::Soft;
use verbs::{Context, Cq, Mtu, QpCap, RtsAttr, SendFlags, SendOp, SendWr, WcStatus};

/// Whether packets between devices opened by [`common::open`] travel through memory.
const SHARED_MEMORY: bool = false;

const PAIRS: usize = 100;
const WRITES: usize = 32;
const LEN: usize = 3000;

/// Returns the number of datagrams that the kernel dropped because a device's buffer was full.
fn dropped(context: &Context<Soft>) -> u64 {
    let address = u32::from_ne_bytes(gid(context).to_ipv4().expect("a loopback address").octets());
    // UDP port 4791.
    let local = format!("{address:08X}:12B7");
    let table = std::fs::read_to_string("/proc/net/udp").expect("the kernel's UDP sockets");
    let line = table.lines().find(|line| line.split_whitespace().nth(1) == Some(&local));
    let drops = line.and_then(|line| line.split_whitespace().last()).expect("the device's socket");
    drops.parse().expect("a number")
}

fn poll(cq: &mut Cq<Soft>) -> usize {
    let mut count = 0;
    let mut completions = cq.poll();
    while let Some(completion) = completions.next() {
        assert_eq!(completion.status(), WcStatus::SUCCESS);
        count += 1;
    }
    count
}

#[test]
fn every_packet_that_the_kernel_delivered_is_handled() {
    // Without a timeout nothing is retransmitted: if a packet is lost, its queue pair waits
    // forever.
    let rts = RtsAttr { timeout: 0, ..Shape::default().rts };
    let cap = QpCap { max_send_wr: WRITES as u32, ..Shape::default().cap };
    let shape = Shape { cap, rts, path_mtu: Mtu::MTU_1024, ..Shape::default() };
    let (left, right) = (open(), open());
    let mut pairs: Vec<(End, End)> = (0..PAIRS).map(|_| pair_on(&left, &right, &shape)).collect();
    let arenas: Vec<(Arena, Arena)> =
        pairs.iter().map(|(a, b)| (Arena::new(&a.pd, LEN), Arena::new(&b.pd, LEN))).collect();
    let deadline = Instant::now() + PATIENCE;
    let mut posted = 0;
    let mut ended = 0;
    for round in 0..20 {
        // Messages travel in both directions at once, so requests, acknowledgements and gaps
        // between them arrive in bursts.
        for (n, ((a, b), (from, into))) in pairs.iter_mut().zip(&arenas).enumerate() {
            let op = |to: &Arena| SendOp::RdmaWrite { remote_addr: to.addr(), rkey: to.rkey() };
            for i in 0..1 + (n + round) % WRITES {
                let len = (n * 611 + i * 97) % LEN;
                for (end, from, into) in [(&mut *a, from, into), (&mut *b, into, from)] {
                    let sge = [from.sge(0..len)];
                    let wr = SendWr { wr_id: 0, op: op(into), sge: &sge, flags: SendFlags::SIGNALED };
                    common::post_send(&mut end.qp, &[wr]).expect("room in the queue");
                    posted += 1;
                }
            }
        }
        while ended < posted {
            ended += pairs.iter_mut().map(|(a, b)| poll(&mut a.cq) + poll(&mut b.cq)).sum::<usize>();
            if Instant::now() >= deadline {
                let counters = [&left, &right].map(|context| (dropped(context), context.raw().counters()));
                panic!("{ended} of {posted} writes ended; dropped by the kernel, and counters: {counters:?}");
            }
        }
    }
    // The last acknowledgements may still be in flight.
    loop {
        let drops = dropped(&left) + dropped(&right);
        let [a, b] = [&left, &right].map(|context| context.raw().counters());
        let (sent, received) = (a.sent + b.sent, a.received + b.received);
        assert_eq!((a.bad_icrc + b.bad_icrc, a.malformed + b.malformed), (0, 0));
        assert_eq!(drops, 0, "the receive buffer is too small for this test: see net.core.rmem_max");
        if sent == received {
            break;
        }
        assert!(Instant::now() < deadline, "{sent} packets were sent, {received} handled, none dropped");
        for (a, b) in &mut pairs {
            assert_eq!(poll(&mut a.cq) + poll(&mut b.cq), 0);
        }
    }
}
