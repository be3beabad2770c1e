//! The order of Debian versions.

use std::cmp::Ordering;

/// Compares two Debian versions.
///
/// # References
/// Debian Policy, section 5.6.12.
pub(crate) fn compare_versions(a: &str, b: &str) -> Ordering {
    fn split(v: &str) -> (u64, &str, &str) {
        let (epoch, rest) = v.split_once(':').unwrap_or(("0", v));
        let (upstream, revision) = rest.rsplit_once('-').unwrap_or((rest, ""));
        (epoch.parse().unwrap_or(0), upstream, revision)
    }
    let ((ea, ua, ra), (eb, ub, rb)) = (split(a), split(b));
    ea.cmp(&eb).then_with(|| compare_part(ua, ub)).then_with(|| compare_part(ra, rb))
}

fn compare_part(mut a: &str, mut b: &str) -> Ordering {
    // '~' sorts before the end, letters before everything else.
    let weight = |c: Option<u8>| match c {
        Some(b'~') => -1,
        None => 0,
        Some(c) if c.is_ascii_digit() => 0,
        Some(c) if c.is_ascii_alphabetic() => i32::from(c),
        Some(c) => i32::from(c) + 256,
    };
    let digits = |s: &str| s.find(|c: char| !c.is_ascii_digit()).unwrap_or(s.len());
    while !a.is_empty() || !b.is_empty() {
        loop {
            let (ca, cb) = (a.bytes().next(), b.bytes().next());
            let order = weight(ca).cmp(&weight(cb));
            if order != Ordering::Equal {
                return order;
            }
            if ca.is_none_or(|c| c.is_ascii_digit()) || cb.is_none_or(|c| c.is_ascii_digit()) {
                break;
            }
            // Equal weights of non-digits are equal bytes, and Debian versions are ASCII.
            (a, b) = (a.get(1..).unwrap_or_default(), b.get(1..).unwrap_or_default());
        }
        let (na, nb) = (&a[..digits(a)], &b[..digits(b)]);
        let (va, vb) = (na.trim_start_matches('0'), nb.trim_start_matches('0'));
        let order = va.len().cmp(&vb.len()).then_with(|| va.cmp(vb));
        if order != Ordering::Equal {
            return order;
        }
        (a, b) = (&a[na.len()..], &b[nb.len()..]);
    }
    Ordering::Equal
}
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_sort_as_debian_policy_says() {
        let ascending = [
            "1.0~rc1-1",
            "1.0-1",
            "1.0-1+b1",
            "1.0-2",
            "1.0a-1",
            "1.0.1-1",
            "1.9-1",
            "1.10-1",
            "5.10.223-1",
            "5.10.262-1",
            "6.1.99-1",
            "6.1.187-1",
            "6.12.9-1",
            "7.2.9-1",
            "7.2.13-1~bpo13+1",
            "7.2.13-1",
            "1:1.0-1",
        ];
        for pair in ascending.windows(2) {
            assert_eq!(compare_versions(pair[0], pair[1]), Ordering::Less, "{pair:?}");
            assert_eq!(compare_versions(pair[1], pair[0]), Ordering::Greater, "{pair:?}");
        }
        assert_eq!(compare_versions("1.01-1", "1.1-1"), Ordering::Equal);
    }
}
