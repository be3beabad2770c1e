//! An attack on a device by a peer that requests as much data as it can.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use provider_soft::Counters;
use roce::wire::icrc::{Flow, Icrc, compute};
use roce::wire::{Headers, ICRC_LEN, Opcode, Psn, UDP_PORT, bth, reth};
use verbs::{Gid, Mtu, QpInit, SendOp, WcStatus};

use super::{Arena, PATIENCE, Remote, Shape, connect, gid, open, pair_on, recv, send};

const HOSTILE_QPS: usize = 64;
const READ: u32 = 256 << 20;
pub const ROUND_TRIPS: usize = 100;
/// The maximum number of bytes sent by a device in one turn: 512 KiB plus one packet.
pub const TURN: u64 = (512 << 10) + PACKET;
/// The maximum number of packets sent by a device in one turn.
pub const TURN_PACKETS: u64 = 128;
/// The maximum length of a packet, in bytes.
pub const PACKET: u64 = 4096 + 64;
/// The maximum window for a peer, and for the kernel's send queue, in bytes.
pub const WINDOW: u64 = 512 << 10;

/// A peer without an engine: it sends requests and never reads the responses.
struct Hostile {
    socket: UdpSocket,
    icrc: Icrc,
    victim: (IpAddr, u16),
    rkey: u32,
    va: u64,
}

impl Hostile {
    fn new(victim: Ipv4Addr, arena: &Arena) -> Self {
        // An address unused by other tests: device addresses end in 1 to 254.
        let own = Ipv4Addr::new(127, 255, (std::process::id() % 200) as u8, 255);
        let socket = UdpSocket::bind((own, UDP_PORT)).expect("a free address");
        let flow = Flow { src: own.into(), dst: victim.into(), src_port: UDP_PORT, dst_port: UDP_PORT };
        let victim = (victim.into(), UDP_PORT);
        Self { socket, icrc: Icrc::new(flow), victim, rkey: arena.rkey(), va: arena.addr() }
    }

    fn gid(&self) -> Gid {
        let IpAddr::V4(own) = self.socket.local_addr().expect("bound").ip() else { unreachable!() };
        Gid(own.to_ipv6_mapped().octets())
    }

    /// Sends the read request number `nth`, each for 256 MiB.
    fn read(&self, qpn: u32, nth: u32) {
        let psn = Psn::new(0) + (nth * (READ / 4096)) % (1 << 24);
        let bth = bth::Repr { pkey: 0xffff, ..bth::Repr::new(Opcode::RC_RDMA_READ_REQUEST, qpn, psn) };
        let reth = Some(reth::Repr { va: self.va, rkey: self.rkey, dmalen: READ });
        let headers = Headers { reth, ..Headers::new(bth) };
        let mut packet = vec![0; headers.len()];
        headers.emit(&mut packet);
        let seed = self.icrc.seed(0, true, packet.len() + ICRC_LEN);
        packet.extend(compute(seed, &packet).to_le_bytes());
        self.socket.send_to(&packet, self.victim).expect("loopback takes it");
    }
}

/// Round trips between a victim and an innocent peer, while another peer keeps reading 256 MiB from
/// the victim.
#[derive(Debug)]
pub struct Attack {
    /// For each round trip, the number of bytes sent by the victim, and the duration.
    pub waits: Vec<(u64, Duration)>,
    /// For each round trip, the number of bytes sent by the victim. At most one turn is counted
    /// between two polls, because the program may have been descheduled between them.
    pub seen: Vec<u64>,
    /// The duration of the attack.
    pub lasted: Duration,
    pub victim: Counters,
    pub innocent: Counters,
}

/// Attacks a device and makes [`ROUND_TRIPS`] round trips with the device meanwhile.
pub fn attack() -> Attack {
    let shape = Shape { path_mtu: Mtu::MTU_4096, ..Shape::default() };
    let (victim, innocent) = (open(), open());
    let (mut a, mut b) = pair_on(&victim, &innocent, &shape);
    let (at_a, at_b) = (Arena::new(&a.pd, 64), Arena::new(&b.pd, 64));
    let large = Arena::new(&a.pd, READ as usize);
    let hostile = Hostile::new(gid(&victim).to_ipv4().expect("an IPv4 device"), &large);
    let qps: Vec<_> = (0..HOSTILE_QPS)
        .map(|_| {
            let (cap, qp_type) = (shape.cap, shape.qp_type);
            let init = QpInit { cap, ..QpInit::new(qp_type, &a.cq) };
            let qp = a.pd.create_qp(&init).expect("a queue pair");
            connect(qp, &shape, hostile.gid(), Remote { qp_num: 77, psn: 0 })
        })
        .collect();
    let attacked = Instant::now();
    // Four requests on each queue pair, as many as the depth allows: 64 GiB in all.
    for nth in 0..4 {
        qps.iter().for_each(|qp| hostile.read(qp.qp_num(), nth));
    }
    let counters = || victim.raw().counters();
    let deadline = Instant::now() + PATIENCE;
    while counters().sent_bytes < 8 * TURN {
        assert!(Instant::now() < deadline, "the attack has no effect: {:?}", counters());
        assert!(a.cq.poll().next().is_none());
    }
    let (mut waits, mut seen) = (Vec::new(), Vec::new());
    for n in 0..ROUND_TRIPS as u64 {
        let (began, before) = (Instant::now(), counters().sent_bytes);
        // On a busy machine, one round trip may take hundreds of milliseconds.
        let deadline = began + PATIENCE;
        recv(&mut a.qp, n, &[at_a.sge(0..8)]);
        recv(&mut b.qp, n, &[at_b.sge(0..8)]);
        send(&mut b.qp, n + 1000, SendOp::Send, &[at_b.sge(8..16)]);
        // Each side completes one receive and one send.
        let (mut left, mut answered) = (4, false);
        let (mut latest, mut sent_at_polls) = (before, 0);
        while left > 0 {
            let sent = counters().sent_bytes;
            sent_at_polls += (sent - latest).min(TURN);
            latest = sent;
            for end in [&mut a, &mut b] {
                let mut completions = end.cq.poll();
                while let Some(completion) = completions.next() {
                    assert_eq!(completion.status(), WcStatus::SUCCESS);
                    left -= 1;
                }
            }
            if !answered && left < 4 {
                answered = true;
                send(&mut a.qp, n + 1000, SendOp::Send, &[at_a.sge(8..16)]);
            }
            assert!(
                Instant::now() < deadline,
                "round trip {n} after {:?}: {:?}",
                began.elapsed(),
                counters()
            );
        }
        let sent = counters().sent_bytes - before;
        waits.push((sent, began.elapsed()));
        seen.push(sent_at_polls);
    }
    Attack {
        waits,
        seen,
        lasted: attacked.elapsed(),
        victim: counters(),
        innocent: innocent.raw().counters(),
    }
}
