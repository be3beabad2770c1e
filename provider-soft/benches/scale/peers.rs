//! The cost of a round trip with one peer beside idle peers, and of an idle peer. Each peer is a
//! connected device of another process.

use std::fs;
use std::time::Instant;

use provider_soft::Soft;
use verbs::state::{Reset, Rts};
use verbs::{Endpoint, Qp};

use crate::ends::{Side, connect_to};
use crate::process::{Peer, exchange_with_parent};
use crate::{Result, Table, median};

const COUNTS: [usize; 4] = [1, 10, 100, 1000];

/// The number of round trips in one timed block.
const BLOCK: usize = 2000;

/// A device with a connection to each device of another process.
struct World {
    side: Side,
    qps: Vec<Qp<Rts, Soft>>,
    process: Peer,
    /// The number of descriptors, and of bytes of private memory, per idle peer.
    idle: [f64; 2],
}

impl World {
    fn new(count: usize, is_shared: bool) -> Result<Self> {
        let mut process = Peer::start(&[&count.to_string(), &is_shared.to_string()])?;
        let side = Side::new(4, is_shared)?;
        let qps = (0..count).map(|_| side.create_qp()).collect::<Result<Vec<_>>>()?;
        let theirs = parse(&process.exchange(&addresses(qps.iter().map(|qp| (&side, qp))))?)?;
        let before = usage()?;
        let ends = qps.into_iter().zip(theirs);
        let mut qps = ends.map(|(qp, its)| connect_to(&side, qp, &its)).collect::<Result<Vec<_>>>()?;
        // The peers connect afterwards, so that no two devices connect to each other at the same
        // time.
        process.exchange("connected")?;
        let after = usage()?;
        process.exchange("connected")?;
        side.recv(&mut qps[0])?;
        let idle = [0, 1].map(|at| (after[at] - before[at]) / count as f64);
        Ok(Self { side, qps, process, idle })
    }

    /// Makes a block of round trips with the first peer. Returns the time per round trip, in
    /// nanoseconds.
    fn block(&mut self) -> Result<f64> {
        self.process.exchange("go")?;
        let qp = &mut self.qps[0];
        let start = Instant::now();
        for _ in 0..BLOCK {
            self.side.send(qp)?;
            self.side.wait_for_message()?;
            self.side.recv(qp)?;
        }
        Ok(start.elapsed().as_nanos() as f64 / BLOCK as f64)
    }
}

pub(crate) fn measure(table: &mut Table) -> Result<()> {
    for (is_shared, way) in [(false, "UDP"), (true, "memory")] {
        let name = |count| format!("round trip, {count} peers, {way}");
        let counts = COUNTS[1..].iter().filter(|count| table.is_full || **count <= 10);
        let counts: Vec<_> = counts.copied().filter(|count| table.wants(&name(*count))).collect();
        for count in counts {
            let (mut one, mut many) = (World::new(1, is_shared)?, World::new(count, is_shared)?);
            let mut times = vec![[one.block()?, many.block()?]];
            for _ in 0..if table.is_full { 21 } else { 0 } {
                times.push([one.block()?, many.block()?]);
            }
            let ratio = median(times.iter().map(|[few, many]| many / few).collect());
            let [few, most] = [0, 1].map(|at| median(times.iter().map(|times| times[at]).collect()));
            table.row(&name(count), few, most, ratio, Some(if is_shared { 1.5 } else { 1.15 }));
            let [descriptors, bytes] = many.idle;
            println!("    each idle peer: {descriptors:.2} descriptors, {:.1} KiB", bytes / 1024.0);
        }
    }
    Ok(())
}

/// Runs the other process, with one device per peer. The first device returns messages, one block
/// at a time.
pub(crate) fn serve(count: usize, is_shared: bool) -> Result<()> {
    let mut sides = (0..count).map(|_| Side::new(4, is_shared)).collect::<Result<Vec<_>>>()?;
    let qps = sides.iter().map(Side::create_qp).collect::<Result<Vec<_>>>()?;
    let theirs = parse(&exchange_with_parent(&addresses(sides.iter().zip(&qps)))?)?;
    exchange_with_parent("connected")?;
    let ends = sides.iter().zip(qps).zip(theirs);
    let mut qps = ends.map(|((side, qp), its)| connect_to(side, qp, &its)).collect::<Result<Vec<_>>>()?;
    let (side, qp) = (&mut sides[0], &mut qps[0]);
    side.recv(qp)?;
    exchange_with_parent("connected")?;
    // Runs until this process is killed.
    loop {
        exchange_with_parent("go")?;
        for _ in 0..BLOCK {
            side.wait_for_message()?;
            side.recv(qp)?;
            side.send(qp)?;
        }
    }
}

/// Formats the endpoints of queue pairs as one line.
fn addresses<'a>(qps: impl Iterator<Item = (&'a Side, &'a Qp<Reset, Soft>)>) -> String {
    let hex = |(side, qp): (&Side, &Qp<Reset, Soft>)| -> String {
        qp.endpoint(&side.port).to_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    };
    qps.map(hex).collect::<Vec<_>>().join(" ")
}

fn parse(line: &str) -> Result<Vec<Endpoint>> {
    let endpoint = |hex: &str| -> Result<Endpoint> {
        let digits = |at: usize| hex.get(at..at + 2).ok_or("an odd number of digits");
        let bytes = (0..hex.len()).step_by(2).map(|at| Ok(u8::from_str_radix(digits(at)?, 16)?));
        let bytes = bytes.collect::<Result<Vec<_>>>()?;
        Ok(Endpoint::from_bytes(&bytes)?)
    };
    line.split_whitespace().map(endpoint).collect()
}

/// Returns the number of this process's open descriptors, and its private memory in bytes.
fn usage() -> Result<[f64; 2]> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).ok_or("no RssAnon")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok([fs::read_dir("/proc/self/fd")?.count() as f64, kib * 1024.0])
}
