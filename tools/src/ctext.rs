//! Conversions that differ between the C library and Rust: numbers on a command line, addresses and
//! floats.

use std::fmt;

/// Parses a number like `strtol(text, NULL, 0)`: blanks, a sign, `0x` or `0` for the base, digits.
/// The rest is ignored. Without digits, the result is 0. A number out of range is clamped.
///
/// # References
/// `strtol(3)`
pub fn strtol(text: &[u8]) -> i64 {
    let (negative, magnitude) = integer(text);
    clamped(negative, magnitude)
}

/// Parses a number like glibc's `atoi(text)`: blanks, a sign, decimal digits. A number with more
/// than 32 bits keeps its low 32 bits.
///
/// # References
/// `atoi(3)`
pub fn atoi(text: &[u8]) -> i32 {
    let (negative, magnitude) = number(text, |digits| (10, digits));
    clamped(negative, magnitude) as i32
}

/// Parses a number like `strtoul(text, NULL, 0)`. Unlike in [`strtol`], a minus sign negates the
/// number modulo 2⁶⁴, and a number out of range becomes 2⁶⁴ − 1.
///
/// # References
/// `strtoul(3)`
pub fn strtoul(text: &[u8]) -> u64 {
    match integer(text) {
        (_, None) => u64::MAX,
        (true, Some(magnitude)) => magnitude.wrapping_neg(),
        (false, Some(magnitude)) => magnitude,
    }
}

/// Returns whether the whole text is a 32-bit number. [`strtol`] and [`strtoul`] then return the
/// expected value.
pub fn is_number(text: &[u8]) -> bool {
    let (_, magnitude) = integer(text);
    let digits = text.trim_ascii().strip_prefix(b"-").or_else(|| text.trim_ascii().strip_prefix(b"+"));
    let digits = digits.unwrap_or(text.trim_ascii());
    let (base, digits) = match digits {
        [b'0', b'x' | b'X', digits @ ..] => (16, digits),
        [b'0', _, ..] => (8, digits),
        _ => (10, digits),
    };
    let is_whole = !digits.is_empty() && digits.iter().all(|byte| char::from(*byte).is_digit(base));
    is_whole && magnitude.is_some_and(|magnitude| magnitude <= u32::MAX.into())
}

/// Returns the number, or the nearest number in range.
fn clamped(negative: bool, magnitude: Option<u64>) -> i64 {
    let limit = if negative { u64::MAX / 2 + 1 } else { u64::MAX / 2 };
    let magnitude = magnitude.unwrap_or(limit).min(limit);
    if negative { magnitude.wrapping_neg() as i64 } else { magnitude as i64 }
}

/// Returns the sign and magnitude of a number with a base prefix. The magnitude is `None` if it is
/// out of range.
fn integer(text: &[u8]) -> (bool, Option<u64>) {
    number(text, |digits| match digits {
        [b'0', b'x' | b'X', digits @ ..] if digits.first().is_some_and(u8::is_ascii_hexdigit) => (16, digits),
        [b'0', ..] => (8, digits),
        _ => (10, digits),
    })
}

/// Returns the sign and magnitude of a number. `base` strips the prefix and returns the base.
fn number(text: &[u8], base: impl FnOnce(&[u8]) -> (u32, &[u8])) -> (bool, Option<u64>) {
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t'..=b'\r');
    let start = text.iter().position(|byte| !blank(byte)).unwrap_or(text.len());
    let (negative, digits) = match &text[start..] {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] | digits => (false, digits),
    };
    let (base, digits) = base(digits);
    let mut magnitude = Some(0_u64);
    for digit in digits.iter().map_while(|&byte| char::from(byte).to_digit(base)) {
        magnitude = magnitude.and_then(|so_far| so_far.checked_mul(base.into())?.checked_add(digit.into()));
    }
    (negative, magnitude)
}

/// Prints 16 bytes like glibc's `inet_ntop(AF_INET6, ...)`, which uses dotted forms more often than
/// Rust.
///
/// # References
/// `inet_ntop(3)`
#[derive(Clone, Copy, Debug)]
pub struct Ntop(pub [u8; 16]);

impl fmt::Display for Ntop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<u16> =
            self.0.as_chunks::<2>().0.iter().map(|pair| u16::from_be_bytes(*pair)).collect();
        let (base, len) = longest_zeros(&words);
        let dotted = base == 0 && (len == 6 || (len == 5 && words[5] == 0xffff));
        for (i, word) in words.iter().enumerate() {
            if (base..base + len).contains(&i) {
                if i == base {
                    f.write_str(":")?;
                }
                continue;
            }
            if i != 0 {
                f.write_str(":")?;
            }
            if i == 6 && dotted {
                let [.., a, b, c, d] = self.0;
                return write!(f, "{a}.{b}.{c}.{d}");
            }
            write!(f, "{word:x}")?;
        }
        if len > 0 && base + len == words.len() { f.write_str(":") } else { Ok(()) }
    }
}

/// Returns the start and length of the first longest run of two or more zeros. The length is 0
/// without such a run.
fn longest_zeros(words: &[u16]) -> (usize, usize) {
    let mut best = (0, 0);
    let mut start = 0;
    for end in 1..=words.len() {
        if words[end - 1] != 0 {
            start = end;
        } else if end - start > best.1.max(1) {
            best = (start, end - start);
        }
    }
    best
}

/// Prints a number like `%.2f` in C. This includes infinities and NaN, because a run that is too
/// short divides by zero.
#[derive(Clone, Copy, Debug)]
pub struct Fixed2(pub f64);

impl fmt::Display for Fixed2 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            number if !number.is_nan() => write!(f, "{number:.2}"),
            number if number.is_sign_negative() => f.write_str("-nan"),
            _ => f.write_str("nan"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strtol_takes_what_it_can_and_ignores_the_rest() {
        let cases: [(&str, i64); 18] = [
            ("", 0),
            ("x", 0),
            ("1", 1),
            (" \t-7", -7),
            ("+7", 7),
            ("0x1F", 31),
            ("0X1f", 31),
            ("0x", 0),
            ("0xg", 0),
            ("010", 8),
            ("09", 0),
            ("12abc", 12),
            ("1e3", 1),
            ("- 5", 0),
            ("9223372036854775807", i64::MAX),
            ("9223372036854775808", i64::MAX),
            ("-9223372036854775808", i64::MIN),
            ("-99999999999999999999", i64::MIN),
        ];
        for (text, number) in cases {
            assert_eq!(strtol(text.as_bytes()), number, "{text:?}");
        }
    }

    #[test]
    fn atoi_takes_decimal_digits_alone_and_keeps_32_bits() {
        for (text, number) in
            [("", 0), (" -7x", -7), ("0x10", 0), ("010", 10), ("4294967297", 1), ("99999999999999999999", -1)]
        {
            assert_eq!(atoi(text.as_bytes()), number, "{text:?}");
        }
    }

    #[test]
    fn strtoul_counts_back_from_the_end_for_a_minus() {
        assert_eq!(strtoul(b"-1"), u64::MAX);
        assert_eq!(strtoul(b"18446744073709551615"), u64::MAX);
        assert_eq!(strtoul(b"18446744073709551616"), u64::MAX);
        assert_eq!(strtoul(b"-18446744073709551616"), u64::MAX);
        assert_eq!(strtoul(b"65536"), 65536);
    }

    #[test]
    fn addresses_print_as_glibcs() {
        // Expected results were printed by glibc 2.36.
        let cases: [([u16; 8], &str); 11] = [
            ([0; 8], "::"),
            ([0, 0, 0, 0, 0, 0, 0, 1], "::1"),
            ([1, 0, 0, 0, 0, 0, 0, 0], "1::"),
            ([0, 0, 0, 0, 0, 0xffff, 0x0a09, 0x0901], "::ffff:10.9.9.1"),
            ([0, 0, 0, 0, 0, 0, 0x0102, 0x0304], "::1.2.3.4"),
            ([0, 0, 0, 0, 0, 0, 5, 0], "::0.5.0.0"),
            ([0, 0, 0, 0, 0, 0xfffe, 1, 2], "::fffe:1:2"),
            ([0xfe80, 0, 0, 0, 0x5831, 0x56ff, 0xfe57, 0x076e], "fe80::5831:56ff:fe57:76e"),
            ([1, 0, 2, 3, 4, 5, 6, 7], "1:0:2:3:4:5:6:7"),
            ([1, 0, 0, 2, 0, 0, 3, 4], "1::2:0:0:3:4"),
            ([1, 2, 3, 4, 5, 6, 0, 0], "1:2:3:4:5:6::"),
        ];
        for (words, text) in cases {
            let mut bytes = [0; 16];
            for (pair, word) in bytes.as_chunks_mut::<2>().0.iter_mut().zip(words) {
                *pair = word.to_be_bytes();
            }
            assert_eq!(Ntop(bytes).to_string(), text);
        }
    }

    #[test]
    fn a_run_of_no_time_prints_as_c_does() {
        assert_eq!(Fixed2(f64::INFINITY).to_string(), "inf");
        assert_eq!(Fixed2(f64::NAN.copysign(-1.0)).to_string(), "-nan");
        assert_eq!(Fixed2(f64::NAN.copysign(1.0)).to_string(), "nan");
        assert_eq!(Fixed2(0.125).to_string(), "0.12");
        assert_eq!(Fixed2(5562.31).to_string(), "5562.31");
    }
}
