//! The locations of a key's bytes at the boundaries of pages and pieces.

use roce::engine::{Fault, Memory};

use super::translate::{Miss, Place, READ, Target};
use super::*;
use crate::bus::{Bus as _, PlainBus};
use crate::layout::put;
use crate::memic::Memic;

fn context(mode: u32, start: u64, len: u64, log_page_size: u32) -> [u8; 64] {
    let mut context = [0; 64];
    mkc::ACCESS_MODE_1_0.set(&mut context, mode);
    mkc::START_ADDR.set(&mut context, start);
    mkc::LEN.set(&mut context, len);
    mkc::LOG_PAGE_SIZE.set(&mut context, log_page_size);
    context
}

fn key(context: [u8; 64], capacity: u32, list: &[u8]) -> Mkey {
    let mode = AccessMode::from_context(&context).unwrap();
    Mkey::new(context, Kind::Region, mode, capacity, List::new(mode, list))
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
    // The key has 0x20 bytes, 0x10 of them in the first page.
    let key = key(context(1, 0xdead_0ff0, 0x20, 12), 1, &words(&[0x8000 | 3, 0x3000 | 3]));
    let mapping = key.mapping().unwrap();
    assert_eq!(mapping.locate(0, READ), Ok((Place::Guest(0x8ff0), 0x10)));
    assert_eq!(mapping.locate(0xf, READ), Ok((Place::Guest(0x8fff), 1)));
    assert_eq!(mapping.locate(0x10, READ), Ok((Place::Guest(0x3000), 0x10)));
    assert_eq!(mapping.locate(0x1f, READ), Ok((Place::Guest(0x300f), 1)));
    assert_eq!(mapping.locate(0x20, READ), Err(Miss::Outside));
}

#[test]
fn large_pages_are_as_large_as_they_say() {
    let key = key(context(1, 0x1_0000_0000, 3 << 21, 21), 2, &words(&[2 << 21, 9 << 21, 5 << 21, 0]));
    let mapping = key.mapping().unwrap();
    assert_eq!(mapping.locate((1 << 21) + 5, READ), Ok((Place::Guest((9 << 21) + 5), (1 << 21) - 5)));
}

#[test]
fn a_list_that_is_too_short_means_nothing() {
    assert!(key(context(1, 0xff0, 0x20, 12), 1, &words(&[0x8000])).mapping().is_none());
    assert!(key(context(1, 0xff0, 0x10, 12), 1, &words(&[0x8000])).mapping().is_some());
    assert!(key(context(1, 0, 0x10, 49), 1, &words(&[0])).mapping().is_none());
}

const DOMAIN: Pd = Pd(4);

/// Returns a target with this index. An odd index stands for two pages at 0x5000, an even one for
/// physical addresses from 0x100.
fn target(index: u32) -> Target {
    let key = match index % 2 {
        1 => key(context(1, 0x5000, 0x2000, 12), 1, &words(&[0x8000, 0x2000])),
        _ => key(context(0, 0x100, 0x100, 0), 0, &[]),
    };
    let MemoryAttr { iova, length, .. } = attr(&key.context);
    let mapping = key.mapping().unwrap();
    Target { key: index << 8 | 0x42, pd: DOMAIN, readable: true, writable: true, iova, length, mapping }
}

fn pieces(list: &[u8]) -> Region {
    let key = key(context(2, 0, 16, 0), 4, list);
    Region { index: 3, pd: DOMAIN, mapping: key.mapping().unwrap() }
}

fn memory(targets: impl IntoIterator<Item = Target>) -> Translated<PlainBus> {
    let memory =
        Translated { bus: PlainBus::new(0x10000), memic: Memic::default(), targets: Targets::default() };
    targets.into_iter().for_each(|target| memory.targets.insert(target));
    memory
}

#[test]
fn pieces_follow_each_other_wherever_their_bytes_are() {
    let mut memory = memory([target(1), target(2)]);
    // Four bytes at the end of a page, four in the next page, then eight at physical addresses.
    let region = pieces(&[piece(8, 0x142, 0x5ffc), piece(0, 0x999, 0), piece(8, 0x242, 0x180)].concat());
    for (address, byte) in [(0x8ffc, [1; 4]), (0x2000, [2; 4]), (0x180, [3; 4]), (0x184, [3; 4])] {
        memory.bus.write(address, &byte).unwrap();
    }
    let mut all = [0; 16];
    memory.read(&region, 0, &mut all).unwrap();
    assert_eq!(all, [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3]);
    memory.write(&region, 3, &[7; 6]).unwrap();
    memory.read(&region, 0, &mut all).unwrap();
    assert_eq!(all, [1, 1, 1, 7, 7, 7, 7, 7, 7, 3, 3, 3, 3, 3, 3, 3]);
    assert!(memory.read(&region, 9, &mut [0; 8]).is_err());
    assert_eq!(memory.fetch_add(&region, 0, 1), Err(Fault), "8 bytes that lie in two pages");
    assert!(memory.fetch_add(&region, 8, 1).is_ok());
}

#[test]
fn pieces_of_nothing_of_pieces_and_beyond_a_key_open_nothing() {
    for (list, why) in [
        (piece(8, 0x542, 0x5000), "no such key"),
        (piece(8, 0x142, 0x6ff9), "longer than the key"),
        (piece(8, 0x142, 0x4fff), "before the key"),
        (piece(8, 0x342, 0), "itself"),
    ] {
        assert_eq!(memory([target(1)]).read(&pieces(&list), 0, &mut [0; 1]), Err(Fault), "{why}");
    }
}

/// Returns whether a piece of this key allows reads, writes and atomic operations.
fn opens(memory: &mut Translated<PlainBus>, key: u32) -> (bool, bool, bool) {
    let region = pieces(&piece(8, key, 0x5000));
    (
        memory.read(&region, 0, &mut [0; 8]).is_ok(),
        memory.write(&region, 0, &[0; 8]).is_ok(),
        memory.compare_swap(&region, 0, 0, 0).is_ok(),
    )
}

const ALL: (bool, bool, bool) = (true, true, true);
const NONE: (bool, bool, bool) = (false, false, false);

#[test]
fn a_piece_names_its_key_with_all_bits() {
    let mut memory = memory([target(1)]);
    assert_eq!((opens(&mut memory, 0x142), opens(&mut memory, 0x143)), (ALL, NONE));
    memory.targets.insert(Target { key: 0x143, ..target(1) });
    assert_eq!((opens(&mut memory, 0x142), opens(&mut memory, 0x143)), (NONE, ALL), "its variant has moved");
}

#[test]
fn a_piece_of_a_key_of_another_domain_opens_nothing() {
    assert_eq!(opens(&mut memory([Target { pd: Pd(5), ..target(1) }]), 0x142), NONE);
}

#[test]
fn a_piece_opens_no_more_than_the_rights_of_its_key() {
    assert_eq!(opens(&mut memory([Target { writable: false, ..target(1) }]), 0x142), (true, false, false));
    assert_eq!(opens(&mut memory([Target { readable: false, ..target(1) }]), 0x142), (false, true, false));
}

#[test]
fn a_key_that_the_engine_invalidated_gives_no_access_to_keys_that_refer_to_it() {
    let mut memory = memory([target(1)]);
    assert_eq!(opens(&mut memory, 0x142), ALL);
    memory.invalidated(&Region { index: 1, pd: DOMAIN, mapping: Mapping::Nothing });
    assert_eq!(opens(&mut memory, 0x142), NONE);
}

#[test]
fn a_list_goes_with_its_key_and_is_counted_as_long_as_it_is_there() {
    let mut keys = Mkeys::default();
    keys.insert(1, key(context(1, 0x5000, 0x2000, 12), 1, &words(&[0x8000, 0x2000]))).unwrap();
    let list = Arc::downgrade(keys.get(1).unwrap().list());
    let mut memory = memory([]);
    memory.targets = keys.targets();
    memory.targets.insert(Target { mapping: keys.get(1).unwrap().mapping().unwrap(), ..target(1) });
    let region = pieces(&piece(8, 0x142, 0x5000));
    assert_eq!((keys.listed > 0, memory.read(&region, 0, &mut [0; 8])), (true, Ok(())));
    keys.remove(1);
    assert_eq!((keys.listed, memory.read(&region, 0, &mut [0; 8])), (0, Err(Fault)));
    assert_eq!(list.strong_count(), 0);
}

#[test]
fn a_list_grows_by_supplied_entries_up_to_its_capacity() {
    let mut keys = Mkeys::default();
    keys.insert(1, key(context(1, 0, 0x4000, 12), 2, &words(&[0x1000, 0x2000]))).unwrap();
    let listed = keys.listed;
    assert!(keys.fill(1, 24, &[0; 8]).is_err(), "a hole");
    assert!(keys.fill(1, 16, &[0; 24]).is_err(), "too many");
    assert!(keys.fill(1, usize::MAX, &[0; 8]).is_err());
    assert_eq!(keys.listed, listed);
    let undo = keys.fill(1, 8, &words(&[0x7000, 0x3000, 0x4000])).unwrap();
    let peek = |keys: &Mkeys| {
        let mut all = [0xff; 40];
        keys.get(1).unwrap().list().peek(&mut all);
        all
    };
    assert_eq!(peek(&keys)[..32].to_vec(), words(&[0x1003, 0x7000, 0x3000, 0x4000]));
    assert_eq!((peek(&keys)[32], keys.listed), (0xff, listed + 16));
    keys.undo(1, &undo);
    assert_eq!(peek(&keys)[..16].to_vec(), words(&[0x1003, 0x2003]));
    assert_eq!((peek(&keys)[16], keys.listed), (0xff, listed));
}

#[test]
fn lists_that_are_too_long_together_are_refused_and_change_nothing() {
    let mut keys = Mkeys::default();
    keys.insert(1, key(context(1, 0, 0, 12), 2, &[])).unwrap();
    keys.listed = MAX_LISTED - 8;
    assert_eq!(keys.fill(1, 0, &[0; 8]).err(), Some(Refused::NoRoom));
    assert_eq!(keys.insert(2, key(context(1, 0, 0, 12), 2, &[1; 8])), Err(Refused::NoRoom));
    assert_eq!((keys.listed, keys.get(1).unwrap().list().len()), (MAX_LISTED - 8, 0));
}

#[test]
fn a_list_tracks_misaligned_pages_through_every_change() {
    let mut keys = Mkeys::default();
    keys.insert(1, key(context(1, 0, 0, 12), 1000, &words(&[0x2000; 1000]))).unwrap();
    let odd = |keys: &Mkeys, shift, count| keys.get(1).unwrap().list().misaligned(shift, count);
    assert_eq!((odd(&keys, 13, 1000), odd(&keys, 14, 1)), (None, Some(0x2000)));
    let undo = keys.fill(1, 900 * 8, &words(&[0x3001 + 2])).unwrap();
    assert_eq!((odd(&keys, 13, 900), odd(&keys, 13, 901), odd(&keys, 12, 1000)), (None, Some(0x3000), None));
    keys.undo(1, &undo);
    assert_eq!(odd(&keys, 13, 1000), None);
}

#[test]
fn pieces_are_found_after_some_of_them_have_changed() {
    let list = [piece(8, 0x142, 0), piece(8, 0x142, 8), piece(8, 0x142, 16)].concat();
    let mut keys = Mkeys::default();
    keys.insert(1, key(context(2, 0, 24, 0), 4, &list)).unwrap();
    let addr = |keys: &Mkeys, at| keys.get(1).unwrap().list().piece(at).map(|p| p.addr + p.inside);
    let undo = keys.fill(1, 16, &piece(2, 0x142, 100)).unwrap();
    assert_eq!(
        [7, 8, 9, 10, 17, 18].map(|at| addr(&keys, at)),
        [Some(7), Some(100), Some(101), Some(16), Some(23), None]
    );
    keys.undo(1, &undo);
    assert_eq!([7, 8, 23, 24].map(|at| addr(&keys, at)), [Some(7), Some(8), Some(23), None]);
}
