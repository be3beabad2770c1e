//! [`Step`]: the steps; [`Times`]: when each step began and ended; [`Table`]: the printed result.

use std::fmt;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// A step, with its number in C, which the peers exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Step {
    /// All steps up to the established connection.
    FullConnect,
    /// Creating the id.
    CreateId,
    /// Binding the id to an address.
    Bind,
    /// Resolving the address of the peer.
    ResolveAddr,
    /// Resolving the route.
    ResolveRoute,
    /// Creating the queue pair.
    CreateQp,
    /// Querying the attributes for INIT.
    InitQpAttr,
    /// Moving the queue pair to INIT.
    InitQp,
    /// Querying the attributes for RTR.
    RtrQpAttr,
    /// Moving the queue pair to RTR.
    RtrQp,
    /// Querying the attributes for RTS.
    RtsQpAttr,
    /// Moving the queue pair to RTS.
    RtsQp,
    /// Connecting, from the request until the connection is established.
    Connect,
    /// Notifying the peer.
    Establish,
    /// Disconnecting.
    Disconnect,
    /// Destroying the id.
    DestroyId,
    /// Destroying the queue pair.
    DestroyQp,
}

impl Step {
    /// All steps, in the order of their numbers.
    pub const ALL: [Self; 17] = [
        Self::FullConnect,
        Self::CreateId,
        Self::Bind,
        Self::ResolveAddr,
        Self::ResolveRoute,
        Self::CreateQp,
        Self::InitQpAttr,
        Self::InitQp,
        Self::RtrQpAttr,
        Self::RtrQp,
        Self::RtsQpAttr,
        Self::RtsQp,
        Self::Connect,
        Self::Establish,
        Self::Disconnect,
        Self::DestroyId,
        Self::DestroyQp,
    ];

    /// The number of steps.
    pub const COUNT: usize = Self::ALL.len();

    const fn name(self) -> &'static str {
        match self {
            Self::FullConnect => "full connect",
            Self::CreateId => "create id",
            Self::Bind => "bind addr",
            Self::ResolveAddr => "resolve addr",
            Self::ResolveRoute => "resolve route",
            Self::CreateQp => "create qp",
            Self::InitQpAttr => "init qp attr",
            Self::InitQp => "init qp",
            Self::RtrQpAttr => "rtr qp attr",
            Self::RtrQp => "rtr qp",
            Self::RtsQpAttr => "rts qp attr",
            Self::RtsQp => "rts qp",
            Self::Connect => "cm connect",
            Self::Establish => "establish",
            Self::Disconnect => "disconnect",
            Self::DestroyId => "destroy id",
            Self::DestroyQp => "destroy qp",
        }
    }
}

/// The start and end times of the steps of a connection or a run, in microseconds of a clock that
/// starts at 1. The time 0 means that the step did not happen.
#[derive(Debug, Default)]
pub struct Times([(AtomicU64, AtomicU64); Step::COUNT]);

impl Times {
    /// Records the start of a step.
    pub fn start(&self, step: Step) {
        self.0[step as usize].0.store(now(), Ordering::Relaxed);
    }

    /// Records the end of a step.
    pub fn end(&self, step: Step) {
        self.0[step as usize].1.store(now(), Ordering::Relaxed);
    }

    /// Clears all times.
    pub fn clear(&self) {
        for (start, end) in &self.0 {
            start.store(0, Ordering::Relaxed);
            end.store(0, Ordering::Relaxed);
        }
    }

    fn interval(&self, step: Step) -> (u64, u64) {
        let (start, end) = &self.0[step as usize];
        (start.load(Ordering::Relaxed), end.load(Ordering::Relaxed))
    }
}

fn now() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_micros() as u64 + 1
}

/// A run's table.
#[derive(Debug)]
pub struct Table<'a, C> {
    /// Whether the run used queue pairs.
    pub with_qps: bool,
    /// The number of worker threads.
    pub threads: i32,
    /// The run's times.
    pub run: &'a Times,
    /// The times of each connection.
    pub conns: C,
}

impl<'a, C: Iterator<Item = &'a Times> + Clone> fmt::Display for Table<'a, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.conns.clone().count() as u64;
        let kind = if self.with_qps { "qp_conn" } else { "cm_conn" };
        writeln!(f, "{kind}        {count:10}")?;
        writeln!(f, "threads        {:10}", self.threads)?;
        f.write_str("step             avg/conn  total(us)    us/conn    sum(us)    max(us)    min(us)\n")?;
        for step in Step::ALL {
            let (mut sum, mut max, mut min) = (0, 0, u64::from(u32::MAX));
            for (start, end) in self.conns.clone().map(|times| times.interval(step)) {
                if start != 0 && end != 0 {
                    // As in C, the difference has 32 bits.
                    let diff = u64::from(end.wrapping_sub(start) as u32);
                    sum += diff;
                    max = max.max(diff);
                    min = min.min(diff);
                }
            }
            if min == u64::from(u32::MAX) {
                min = 0;
            }
            if step == Step::FullConnect {
                // The sum has no meaning, because the steps overlap.
                sum = 0;
            }
            let (start, end) = self.run.interval(step);
            let total = end.wrapping_sub(start);
            let each = |time: u64| time.checked_div(count).unwrap_or(0);
            writeln!(
                f,
                "{:<13}  {:10} {total:10} {:10} {sum:10} {max:10} {min:10}",
                step.name(),
                each(total),
                each(sum)
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(of: &[(Step, u64, u64)]) -> Times {
        let times = Times::default();
        for &(step, start, end) in of {
            times.0[step as usize].0.store(start, Ordering::Relaxed);
            times.0[step as usize].1.store(end, Ordering::Relaxed);
        }
        times
    }

    #[test]
    fn the_numbers_of_steps_are_those_that_peers_exchange() {
        assert!(Step::ALL.iter().enumerate().all(|(number, step)| *step as usize == number));
        assert_eq!([Step::InitQp as u8, Step::Connect as u8, Step::Disconnect as u8], [7, 12, 14]);
    }

    #[test]
    fn the_table_has_the_columns_of_c() {
        let run = times(&[(Step::Connect, 100, 1100), (Step::FullConnect, 1, 2001)]);
        let conns = [
            times(&[(Step::Connect, 100, 400), (Step::FullConnect, 1, 1001)]),
            times(&[(Step::Connect, 100, 1000), (Step::Bind, 5, 0)]),
        ];
        let table = Table { with_qps: true, threads: 4, run: &run, conns: conns.iter() }.to_string();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 20);
        assert_eq!(
            lines[..4],
            [
                "qp_conn                 2",
                "threads                 4",
                "step             avg/conn  total(us)    us/conn    sum(us)    max(us)    min(us)",
                "full connect         1000       2000          0          0       1000       1000",
            ]
        );
        let line = |name: &str| lines.iter().find(|line| line.starts_with(name)).copied();
        let connect = "cm connect            500       1000        600       1200        900        300";
        assert_eq!(line("cm connect"), Some(connect));
        let bind = "bind addr               0          0          0          0          0          0";
        assert_eq!(line("bind addr"), Some(bind));
    }

    #[test]
    fn no_connections_have_a_table_of_zeros() {
        let run = Times::default();
        let table = Table { with_qps: false, threads: 1, run: &run, conns: [].iter() }.to_string();
        assert!(table.starts_with("cm_conn                 0\n"), "{table}");
    }
}
