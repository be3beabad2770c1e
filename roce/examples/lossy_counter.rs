//! Five clients increment a counter on a server over links that lose, duplicate and reorder
//! packets. Each increment takes effect exactly once.
//!
//! ```text
//! cargo run -p roce --example lossy_counter [SEED]
//! ```

use std::error::Error;

use roce::engine::{Access, CqId, Payload, SendFlags, SendOp, SendWr, Status};
use roce::sim::{Chance, Fabric, Link};

const CLIENTS: usize = 5;
const TIMES: u64 = 20;

fn main() -> Result<(), Box<dyn Error>> {
    let seed = std::env::args().nth(1).map_or(Ok(1), |seed| seed.parse())?;
    let mut fabric = Fabric::new(seed);
    fabric.keep_trace(20);
    fabric.set_default_link(Link {
        loss: Chance::percent(5),
        duplicate: Chance::percent(5),
        reorder: Chance::percent(5),
        ..Link::default()
    });

    let server = fabric.add_endpoint();
    let counter = fabric.register(server, vec![0; 8], Access::LOCAL_WRITE | Access::REMOTE_ATOMIC)?;
    for _ in 0..CLIENTS {
        let client = fabric.add_endpoint();
        let (qp, _) = fabric.rc_pair(client, server)?;
        let found = fabric.register(client, vec![0; 8], Access::LOCAL_WRITE)?;
        for wr_id in 0..TIMES {
            let wr = SendWr {
                wr_id,
                op: SendOp::FetchAdd { addr: counter.addr, rkey: counter.key, add: 1 },
                flags: SendFlags { signaled: true, ..SendFlags::default() },
                payload: Payload::Sges(&[found.sge(0, 8)]),
                remote_srq: 0,
            };
            fabric.post_send(client, qp, &wr)?;
        }
    }

    let minute = 60_000_000_000;
    let end = fabric.run_until_idle(minute)?;
    println!("the last packets:");
    fabric.trace().for_each(|record| println!("{record}"));

    let value = u64::from_ne_bytes(fabric.bytes(server, &counter).try_into()?);
    println!("{value} counted in {} us of virtual time; seed {seed}", end.0 / 1000);
    assert_eq!(value, CLIENTS as u64 * TIMES);
    for client in (1..=CLIENTS).map(roce::sim::EndpointId) {
        while let Some(wc) = fabric.poll(client, CqId(0)) {
            assert_eq!(wc.status, Status::Success);
        }
    }
    Ok(())
}
