//! [`Stamps`]: the statistics of `-t`.

use std::fmt;

/// The times between received messages, in cycles of the clock used for completion timestamps. The
/// text is the same as in C, and empty unless there were two messages.
#[derive(Clone, Copy, Debug)]
pub struct Stamps {
    /// The mask of valid timestamp bits. After the largest value, the clock wraps to 0.
    mask: u64,
    /// The timestamp of the last message.
    previous: Option<u64>,
    max: u64,
    min: u64,
    total: u64,
    /// The number of measured times.
    count: u32,
}

impl Stamps {
    /// Creates the statistics for a device with this `completion_timestamp_mask`.
    pub const fn new(mask: u64) -> Self {
        // As in C, the minimum is capped at 2³² - 1 cycles.
        Self { mask, previous: None, max: 0, min: 0xffff_ffff, total: 0, count: 0 }
    }

    /// Adds a received message's timestamp.
    pub fn receive(&mut self, stamp: u64) {
        let Some(previous) = self.previous.replace(stamp) else { return };
        let delta = if stamp >= previous {
            stamp - previous
        } else {
            self.mask.wrapping_sub(previous).wrapping_add(stamp).wrapping_add(1)
        };
        self.max = self.max.max(delta);
        self.min = self.min.min(delta);
        self.total = self.total.wrapping_add(delta);
        self.count += 1;
    }
}

impl fmt::Display for Stamps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { max, min, total, count, .. } = *self;
        if count == 0 {
            return Ok(());
        }
        let average = total as f64 / f64::from(count);
        writeln!(f, "Max receive completion clock cycles = {max}")?;
        writeln!(f, "Min receive completion clock cycles = {min}")?;
        writeln!(f, "Average receive completion clock cycles = {average:.6}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(mask: u64, stamps: &[u64]) -> String {
        let mut all = Stamps::new(mask);
        stamps.iter().for_each(|stamp| all.receive(*stamp));
        all.to_string()
    }

    fn lines(max: &str, min: &str, average: &str) -> String {
        let [max, min, average] = [("Max", max), ("Min", min), ("Average", average)]
            .map(|(name, value)| format!("{name} receive completion clock cycles = {value}\n"));
        format!("{max}{min}{average}")
    }

    #[test]
    fn the_time_between_messages_needs_two_of_them() {
        assert_eq!(printed(u64::MAX, &[]), "");
        assert_eq!(printed(u64::MAX, &[7]), "");
        assert_eq!(printed(u64::MAX, &[7, 7]), lines("0", "0", "0.000000"));
        assert_eq!(printed(u64::MAX, &[5, 10, 30, 31]), lines("20", "1", "8.666667"));
    }

    #[test]
    fn a_clock_that_started_again_at_zero_has_gone_on() {
        assert_eq!(printed(0xffff, &[0xfffe, 2]), lines("4", "4", "4.000000"));
        assert_eq!(printed(u64::MAX, &[u64::MAX, 0]), lines("1", "1", "1.000000"));
    }

    #[test]
    fn the_shortest_time_is_limited_as_in_c() {
        assert_eq!(
            printed(u64::MAX, &[0, 1 << 40]),
            lines("1099511627776", "4294967295", "1099511627776.000000")
        );
    }
}
