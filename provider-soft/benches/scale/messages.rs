//! The cost of a message when there are many connections.

use std::time::Instant;

use provider_soft::Soft;
use verbs::Qp;
use verbs::state::Rts;

use crate::ends::{PATIENCE, Side, connect};
use crate::{Result, Table, median};

/// The numbers of connections, each with the limit for the cost of a message relative to one
/// connection. For 1,000 connections, the limit is above the target of 1.15.
const COUNTS: [(usize, f64); 4] = [(10, 1.15), (100, 1.15), (1000, 1.2), (10_000, 1.5)];

/// The number of messages in one timed block.
const BLOCK: usize = 1000;

/// Connections between two devices of this process. Their messages travel over UDP.
struct World {
    sides: [Side; 2],
    pairs: Vec<[Qp<Rts, Soft>; 2]>,
    /// The index of the connection for the next message.
    next: usize,
}

impl World {
    fn new(count: usize) -> Result<Self> {
        let sides = [Side::new(4, false)?, Side::new(4, false)?];
        let mut pairs = Vec::new();
        for _ in 0..count {
            let qps = [sides[0].create_qp()?, sides[1].create_qp()?];
            pairs.push(connect([&sides[0], &sides[1]], qps)?);
        }
        for [_, receiver] in &mut pairs {
            sides[1].recv(receiver)?;
        }
        Ok(Self { sides, pairs, next: 0 })
    }

    /// Sends a message on the next connection and waits for both completions.
    fn message(&mut self) -> Result<()> {
        let [one, other] = &mut self.sides;
        let [sender, receiver] = &mut self.pairs[self.next];
        one.send(sender)?;
        let (mut is_sent, mut is_received) = (false, false);
        for _ in 0..PATIENCE {
            // The acknowledgement is sent when a later poll finds nothing.
            is_received |= other.poll()?.is_some();
            is_sent |= one.poll()?.is_some();
            if is_sent && is_received {
                other.recv(receiver)?;
                self.next = (self.next + 1) % self.pairs.len();
                return Ok(());
            }
        }
        Err("nothing happened".into())
    }

    /// Sends a block of messages and returns the time per message, in nanoseconds.
    fn block(&mut self) -> Result<f64> {
        let start = Instant::now();
        for _ in 0..BLOCK {
            self.message()?;
        }
        Ok(start.elapsed().as_nanos() as f64 / BLOCK as f64)
    }
}

pub(crate) fn measure(table: &mut Table) -> Result<()> {
    let name = |count| format!("messages, {count} queue pairs, UDP");
    let counts = COUNTS.iter().filter(|(count, _)| table.is_full || *count <= 10);
    let counts: Vec<_> = counts.filter(|(count, _)| table.wants(&name(*count))).collect();
    let mut one = World::new(1)?;
    let rounds = if table.is_full { 41 } else { 1 };
    for (count, limit) in counts {
        let mut many = World::new(*count)?;
        // Each connection is used once before the measurement.
        for _ in 0..*count {
            many.message()?;
        }
        one.block()?;
        let mut times = Vec::new();
        for _ in 0..rounds {
            times.push([one.block()?, many.block()?]);
        }
        let ratio = median(times.iter().map(|[few, many]| many / few).collect());
        let [few, many] = [0, 1].map(|at| median(times.iter().map(|times| times[at]).collect()));
        table.row(&name(*count), few, many, ratio, Some(*limit));
    }
    Ok(())
}
