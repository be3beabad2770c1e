//! [`Inlined`]: the inline bytes of work requests that have elements too.
//!
//! The engine takes a message either from elements or from inline bytes. Therefore, inline bytes in
//! front of elements become an element whose key is private to the model. The bytes stay readable
//! at an address under this key as long as the send queue owns them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Inline bytes, by address. All clones share the bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inlined(Arc<Mutex<BTreeMap<u64, Weak<[u8]>>>>);

/// The distance between the addresses of two byte strings. No work request is as long.
const STEP: u64 = 1 << 12;

impl Inlined {
    fn entries(&self) -> MutexGuard<'_, BTreeMap<u64, Weak<[u8]>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds bytes, which can be read as long as the caller keeps the `Arc`. Returns their address.
    pub(crate) fn add(&self, bytes: &Arc<[u8]>) -> u64 {
        let mut entries = self.entries();
        entries.retain(|_, bytes| bytes.strong_count() > 0);
        let address = entries.last_key_value().map_or(0, |(last, _)| last + STEP);
        entries.insert(address, Arc::downgrade(bytes));
        address
    }

    /// Copies bytes, starting at address `at`; `None` if some of them do not exist.
    pub(super) fn read(&self, at: u64, into: &mut [u8]) -> Option<()> {
        let bytes = self.entries().get(&(at & !(STEP - 1)))?.upgrade()?;
        let from = usize::try_from(at & (STEP - 1)).ok()?;
        into.copy_from_slice(bytes.get(from..from.checked_add(into.len())?)?);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_from_any_of_them_on_until_they_are_dropped() {
        let inlined = Inlined::default();
        let [one, other]: [Arc<[u8]>; 2] = [Arc::from(*b"one"), Arc::from(*b"other")];
        let at = [inlined.add(&one), inlined.add(&other)];
        let read = |at, len| {
            let mut bytes = vec![0; len];
            inlined.read(at, &mut bytes).map(|()| bytes)
        };
        assert_eq!(read(at[0], 3).as_deref(), Some(&b"one"[..]));
        assert_eq!(read(at[1] + 2, 3).as_deref(), Some(&b"her"[..]));
        assert_eq!((read(at[0] + 1, 3), read(at[1] + STEP, 1)), (None, None), "beyond");
        drop(one);
        assert_eq!(read(at[0], 1), None);
        assert_eq!(read(at[1], 1).as_deref(), Some(&b"o"[..]));
    }
}
