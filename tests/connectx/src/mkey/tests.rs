//! Where the bytes of keys are, at the borders of pages and pieces.

use super::*;
use crate::bus::PlainBus;
use crate::layout::put;

fn context(mode: u32, start: u64, len: u64, log_page_size: u32) -> [u8; 64] {
    let mut context = [0; 64];
    mkc::ACCESS_MODE_1_0.set(&mut context, mode);
    mkc::START_ADDR.set(&mut context, start);
    mkc::LEN.set(&mut context, len);
    mkc::LOG_PAGE_SIZE.set(&mut context, log_page_size);
    context
}

fn key(context: [u8; 64], capacity: u32, list: &[u8]) -> Mkey {
    let mut key = Mkey::new(context, Kind::Region, AccessMode::of(&context).unwrap(), capacity);
    assert!(key.fill(0, list));
    key
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn piece(len: u32, key: u32, addr: u64) -> Vec<u8> {
    let mut bytes = vec![0; OCTWORD];
    put(&mut bytes, 0, &len.to_be_bytes());
    put(&mut bytes, 4, &key.to_be_bytes());
    put(&mut bytes, 8, &addr.to_be_bytes());
    bytes
}

#[test]
fn an_address_is_found_in_the_page_that_its_low_bits_and_the_start_say() {
    // 0x20 bytes, of which 0x10 are in the first page.
    let key = key(context(1, 0xdead_0ff0, 0x20, 12), 1, &words(&[0x8000 | 3, 0x3000 | 3]));
    let mut keys = Mkeys::default();
    keys.insert(7, key);
    let mapping = keys.resolve(7).unwrap();
    assert_eq!(mapping.locate(0), Some((0x8ff0, 0x10)));
    assert_eq!(mapping.locate(0xf), Some((0x8fff, 1)));
    assert_eq!(mapping.locate(0x10), Some((0x3000, 0x10)));
    assert_eq!(mapping.locate(0x1f), Some((0x300f, 1)));
    assert_eq!(mapping.locate(0x20), None);
}

#[test]
fn large_pages_are_as_large_as_they_say() {
    let key = key(context(1, 0x1_0000_0000, 3 << 21, 21), 2, &words(&[2 << 21, 9 << 21, 5 << 21, 0]));
    let mut keys = Mkeys::default();
    keys.insert(7, key);
    let mapping = keys.resolve(7).unwrap();
    assert_eq!(mapping.locate((1 << 21) + 5), Some(((9 << 21) + 5, (1 << 21) - 5)));
}

#[test]
fn a_list_that_is_too_short_means_nothing() {
    let mut keys = Mkeys::default();
    keys.insert(7, key(context(1, 0xff0, 0x20, 12), 1, &words(&[0x8000])));
    assert!(keys.resolve(7).is_none());
    assert!(keys.resolve(8).is_none());
}

#[test]
fn pieces_follow_each_other_wherever_their_bytes_are() {
    let bus = PlainBus::new(0x10000);
    let mut keys = Mkeys::default();
    keys.insert(1, key(context(1, 0x5000, 0x2000, 12), 1, &words(&[0x8000, 0x2000])));
    keys.insert(2, key(context(0, 0x100, 0x100, 0), 0, &[]));
    for index in [1, 2] {
        let mapping = keys.resolve(index).unwrap();
        keys.get_mut(index).unwrap().mapping = mapping;
    }
    // Four bytes at the end of a page and four of the next, then eight at physical addresses.
    let list = [piece(8, 0x142, 0x5ffc), piece(0, 0x999, 0), piece(8, 0x200, 0x180)].concat();
    keys.insert(3, key(context(2, 0, 16, 0), 4, &list));
    let mapping = keys.resolve(3).unwrap();
    bus.write(0x8ffc, &[1; 4]).unwrap();
    bus.write(0x2000, &[2; 4]).unwrap();
    bus.write(0x180, &[3; 8]).unwrap();
    let mut memory = Translated { bus: bus.clone() };
    let mut all = [0; 16];
    memory.read(&mapping, 0, &mut all).unwrap();
    assert_eq!(all, [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3]);
    memory.write(&mapping, 3, &[7; 6]).unwrap();
    memory.read(&mapping, 0, &mut all).unwrap();
    assert_eq!(all, [1, 1, 1, 7, 7, 7, 7, 7, 7, 3, 3, 3, 3, 3, 3, 3]);
    assert!(memory.read(&mapping, 9, &mut [0; 8]).is_err());
    assert_eq!(memory.fetch_add(&mapping, 0, 1), Err(Fault), "8 bytes that lie in two pages");
    assert!(memory.fetch_add(&mapping, 8, 1).is_ok());
}

#[test]
fn pieces_of_nothing_of_pieces_and_beyond_a_key_mean_nothing() {
    let mut keys = Mkeys::default();
    keys.insert(1, key(context(1, 0x5000, 0x1000, 12), 1, &words(&[0x8000, 0])));
    for (list, why) in [
        (piece(8, 0x500, 0), "no such key"),
        (piece(8, 0x100, 0x5ff9), "longer than the key"),
        (piece(8, 0x100, 0x4fff), "before the key"),
        (piece(8, 0x200, 0), "itself"),
    ] {
        let mapping = keys.resolve(1).unwrap();
        keys.get_mut(1).unwrap().mapping = mapping;
        keys.insert(2, key(context(2, 0, 8, 0), 1, &list));
        assert!(keys.resolve(2).is_none(), "{why}");
    }
}

#[test]
fn a_list_grows_by_what_it_is_given_and_never_beyond_its_capacity() {
    let mut key = key(context(1, 0, 0x4000, 12), 2, &words(&[0x1000, 0x2000]));
    assert!(!key.fill(24, &[0; 8]), "a hole");
    assert!(!key.fill(16, &[0; 24]), "too many");
    assert!(!key.fill(usize::MAX, &[0; 8]));
    assert!(key.fill(8, &words(&[0x7000, 0x3000, 0x4000])));
    let mut all = [0xff; 40];
    key.peek(&mut all);
    assert_eq!(all[..32].to_vec(), words(&[0x1000, 0x7000, 0x3000, 0x4000]));
    assert_eq!(all[32..], [0xff; 8]);
}
