//! The output of perftest.

/// The results that a program printed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// Size of a message in bytes.
    pub bytes: u64,
    /// Number of messages.
    pub iterations: u64,
    /// Average bandwidth, or typical latency.
    pub result: f64,
}

/// Parses the line after the header that begins with `#bytes`. Returns `None` without such a line.
pub fn row(stdout: &str) -> Option<Row> {
    let mut lines = stdout.lines().skip_while(|line| !line.trim_start().starts_with("#bytes"));
    let average = if lines.next()?.contains("t_min") { 4 } else { 3 };
    let words: Vec<&str> = lines.next()?.split_ascii_whitespace().collect();
    Some(Row {
        bytes: words.first()?.parse().ok()?,
        iterations: words.get(1)?.parse().ok()?,
        result: words.get(average)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_row_of_a_bandwidth_test_is_read() {
        let text = "----\n local address: LID 0x01 QPN 0x011e\n----\n \
                    #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n \
                    4096       20               102.70             42.17  \t\t   0.010794\n----\n";
        assert_eq!(row(text), Some(Row { bytes: 4096, iterations: 20, result: 42.17 }));
    }

    #[test]
    fn the_row_of_a_latency_test_is_read() {
        let text = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]\n \
                    8       20          250.71         8000.87      260.01             300.5          1.5\n";
        assert_eq!(row(text), Some(Row { bytes: 8, iterations: 20, result: 260.01 }));
    }

    #[test]
    fn a_program_that_stopped_before_its_numbers_has_none() {
        let headings = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n";
        assert_eq!(row(headings), None);
        assert_eq!(row(&format!("{headings}----\n")), None);
        assert_eq!(row(""), None);
    }
}
