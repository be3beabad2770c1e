//! Access to memory regions and windows by key.

use proptest::prelude::*;

use super::*;
use crate::engine::testing::random;

const PD: Pd = Pd(1);
const QPN: Qpn = Qpn(17);
const ALL: Access = Access(0xf | 1 << 4);

fn regions() -> MemoryRegions<char> {
    MemoryRegions::new(100)
}

fn attr(iova: u64, length: u64) -> MemoryAttr {
    MemoryAttr { pd: PD, iova, length, access: ALL }
}

/// Returns a table with a window of 16 bytes at 0x1010, bound to a region of 64 bytes at 0x1000.
/// Also returns the keys of the region and the window.
fn bound(kind: MwType) -> (MemoryRegions<char>, u32, u32) {
    let mut regions = regions();
    let lkey = regions.insert(&attr(0x1000, 64), 'a', &mut random()).unwrap();
    let window = regions.insert_window(PD, kind, &mut random()).unwrap();
    regions.bind(PD, QPN, &bind(window, lkey)).unwrap();
    (regions, lkey, window ^ 1)
}

fn bind(window: u32, lkey: u32) -> Bind {
    Bind { window, new_rkey: window ^ 1, lkey, addr: 0x1010, length: 16, access: Access::REMOTE_READ }
}

fn readable(regions: &MemoryRegions<char>, rkey: u32, addr: u64, length: u64) -> Option<(char, u64)> {
    regions.remote(PD, QPN, rkey, addr, length, Access::REMOTE_READ).map(|(region, offset)| (*region, offset))
}

#[test]
fn a_range_is_inside_or_it_is_not() {
    let mut regions = regions();
    let key = regions.insert(&attr(0x1000, 64), 'a', &mut random()).unwrap();
    let local =
        |addr, length| regions.local(PD, key, addr, length, Access::LOCAL_WRITE).map(|(_, offset)| offset);
    assert_eq!((local(0x1000, 64), local(0x103f, 1), local(0x1040, 0)), (Some(0), Some(63), Some(64)));
    for (addr, length) in
        [(0xfff, 1), (0x1000, 65), (0x1040, 1), (0x1041, 0), (u64::MAX, 2), (0x1001, u64::MAX)]
    {
        assert_eq!(local(addr, length), None, "{length} bytes at {addr:#x}");
    }
}

#[test]
fn all_bits_of_a_windows_key_are_drawn() {
    let (mut regions, mut random) = (MemoryRegions::<char>::new(100), random());
    let drawn: Vec<u32> =
        (0..32).map(|_| regions.insert_window(PD, MwType::Two, &mut random).unwrap()).collect();
    let (ones, zeros) = drawn.iter().fold((0, 0), |(ones, zeros), key| (ones | key, zeros | !key));
    // For a given bit, the probability of 32 equal draws is 1 in 2³¹.
    assert_eq!((ones, zeros), (u32::MAX, u32::MAX), "{drawn:x?}");
}

#[test]
fn a_region_may_end_where_addresses_end_and_not_wrap() {
    let mut regions = regions();
    let key = regions.insert(&attr(u64::MAX, 1), 'a', &mut random()).unwrap();
    assert!(regions.local(PD, key, u64::MAX, 1, Access::NONE).is_some());
    assert!(regions.local(PD, key, u64::MAX, 2, Access::NONE).is_none());
    assert!(matches!(regions.insert(&attr(u64::MAX, 2), 'b', &mut random()), Err(Refused::Invalid(_))));
    assert!(regions.insert(&attr(u64::MAX, 0), 'c', &mut random()).is_ok());
}

#[test]
fn what_peers_may_change_the_owner_may_change() {
    let mut regions = regions();
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
        let attr = MemoryAttr { access, ..attr(0, 8) };
        assert!(matches!(regions.insert(&attr, 'a', &mut random()), Err(Refused::Invalid(_))));
        assert!(
            regions
                .insert(&MemoryAttr { access: access | Access::LOCAL_WRITE, ..attr }, 'a', &mut random())
                .is_ok()
        );
    }
}

#[test]
fn a_key_opens_with_its_domain_and_rights_only() {
    let mut regions = regions();
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let key = regions.insert(&MemoryAttr { access, ..attr(0, 8) }, 'a', &mut random()).unwrap();
    assert!(regions.remote(PD, QPN, key, 0, 8, Access::REMOTE_READ).is_some());
    assert!(regions.remote(PD, QPN, key, 0, 8, Access::REMOTE_WRITE).is_none());
    assert!(regions.remote(Pd(2), QPN, key, 0, 8, Access::REMOTE_READ).is_none());
    assert!(regions.local(Pd(2), key, 0, 8, Access::NONE).is_none());
    for bit in 0..32 {
        assert!(regions.local(PD, key ^ 1 << bit, 0, 8, Access::NONE).is_none(), "bit {bit}");
    }
}

#[test]
fn a_key_that_was_given_back_opens_nothing() {
    let mut regions = regions();
    let (mut random, mut seen) = (random(), vec![]);
    for _ in 0..1000 {
        let key = regions.insert(&attr(0, 8), 'a', &mut random).unwrap();
        assert!(!seen.contains(&key));
        assert_eq!(regions.remove_region(key), Ok((PD, 'a')));
        assert_eq!(regions.remove_region(key), Err(Refused::NoSuchObject));
        assert!(regions.local(PD, key, 0, 8, Access::NONE).is_none());
        seen.push(key);
    }
}

#[test]
fn a_window_shows_a_part_of_its_region() {
    let (regions, lkey, rkey) = bound(MwType::One);
    assert_eq!(readable(&regions, rkey, 0x1010, 16), Some(('a', 16)));
    assert_eq!(readable(&regions, rkey, 0x101f, 1), Some(('a', 31)));
    assert_eq!(readable(&regions, rkey, 0x100f, 1), None);
    assert_eq!(readable(&regions, rkey, 0x1010, 17), None);
    assert_eq!(readable(&regions, rkey ^ 1, 0x1010, 16), None, "its key before the bind");
    assert!(regions.remote(PD, QPN, rkey, 0x1010, 1, Access::REMOTE_WRITE).is_none());
    assert!(regions.remote(Pd(2), QPN, rkey, 0x1010, 1, Access::REMOTE_READ).is_none());
    assert!(regions.local(PD, rkey, 0x1010, 1, Access::NONE).is_none(), "a window is no region");
    assert_eq!(readable(&regions, lkey, 0x1000, 64), Some(('a', 0)));
}

#[test]
fn addresses_in_a_window_may_begin_at_zero() {
    let (mut regions, lkey, window) = bound(MwType::One);
    let access = Access::REMOTE_READ | Access::ZERO_BASED;
    regions.bind(PD, QPN, &Bind { access, ..bind(window, lkey) }).unwrap();
    assert_eq!(readable(&regions, window ^ 1, 0, 16), Some(('a', 16)));
    assert_eq!(readable(&regions, window ^ 1, 0x1010, 1), None);
}

#[test]
fn a_window_of_type_2_belongs_to_its_queue_pair() {
    let (mut regions, lkey, rkey) = bound(MwType::Two);
    assert!(regions.remote(PD, Qpn(18), rkey, 0x1010, 1, Access::REMOTE_READ).is_none());
    assert_eq!(regions.invalidate(PD, Qpn(18), rkey), Err(KeyRefused));
    assert_eq!(regions.bind(PD, QPN, &bind(rkey, lkey)), Err(KeyRefused), "it is bound");
    regions.invalidate(PD, QPN, rkey).unwrap();
    assert_eq!(readable(&regions, rkey, 0x1010, 1), None);
    assert_eq!(regions.bind(PD, QPN, &Bind { length: 0, ..bind(rkey, lkey) }), Err(KeyRefused));
    regions.bind(PD, QPN, &bind(rkey, lkey)).unwrap();
    assert!(readable(&regions, rkey ^ 1, 0x1010, 1).is_some());
    regions.drop_windows_of(Qpn(18));
    assert!(readable(&regions, rkey ^ 1, 0x1010, 1).is_some());
    regions.drop_windows_of(QPN);
    assert!(readable(&regions, rkey ^ 1, 0x1010, 1).is_none());
}

#[test]
fn a_window_of_type_1_is_bound_again_and_unbound_by_a_bind_to_nothing() {
    let (mut regions, lkey, rkey) = bound(MwType::One);
    assert!(regions.remote(PD, Qpn(18), rkey, 0x1010, 1, Access::REMOTE_READ).is_some());
    assert_eq!(regions.invalidate(PD, QPN, rkey), Err(KeyRefused));
    let other = regions.insert(&attr(0x1000, 64), 'b', &mut random()).unwrap();
    regions.bind(PD, QPN, &bind(rkey, other)).unwrap();
    assert_eq!(readable(&regions, rkey ^ 1, 0x1010, 1), Some(('b', 16)));
    assert!(regions.remove_region(lkey).is_ok(), "no window is bound to it any more");
    regions.bind(PD, QPN, &Bind { length: 0, lkey: 0, ..bind(rkey ^ 1, 0) }).unwrap();
    assert_eq!(readable(&regions, rkey, 0x1010, 1), None);
    assert!(regions.remove_region(other).is_ok());
}

#[test]
fn binds_that_may_not_be() {
    let (mut regions, lkey, window) = bound(MwType::One);
    let right = bind(window, lkey);
    let no_bind =
        regions.insert(&MemoryAttr { access: Access(0xf), ..attr(0x1000, 64) }, 'b', &mut random()).unwrap();
    let access = Access::MW_BIND | Access::REMOTE_READ;
    let no_write = regions.insert(&MemoryAttr { access, ..attr(0x1000, 64) }, 'c', &mut random()).unwrap();
    let elsewhere =
        regions.insert(&MemoryAttr { pd: Pd(2), ..attr(0x1000, 64) }, 'd', &mut random()).unwrap();
    for (name, wrong) in [
        ("no window", Bind { window: lkey, new_rkey: lkey ^ 1, ..right }),
        ("a window that is not", Bind { window: window ^ 1, ..right }),
        ("a window as region", Bind { lkey: window, ..right }),
        ("a region without the right", Bind { lkey: no_bind, ..right }),
        ("a region of another domain", Bind { lkey: elsewhere, ..right }),
        ("to write what the owner may not", Bind { lkey: no_write, access: Access::REMOTE_WRITE, ..right }),
        ("beyond the region", Bind { length: 49, ..right }),
        ("before the region", Bind { addr: 0xfff, ..right }),
        ("around the end", Bind { length: u64::MAX, ..right }),
    ] {
        assert_eq!(regions.bind(PD, QPN, &wrong), Err(KeyRefused), "{name}");
    }
    assert_eq!(regions.bind(Pd(2), QPN, &right), Err(KeyRefused));
    assert_eq!(readable(&regions, window, 0x1010, 16), Some(('a', 16)), "a refused bind changes nothing");
    regions.bind(PD, QPN, &Bind { lkey: no_write, ..right }).unwrap();
}

#[test]
fn a_bind_takes_only_the_low_8_bits_of_the_new_key() {
    for kind in [MwType::One, MwType::Two] {
        let mut regions = regions();
        let lkey = regions.insert(&attr(0x1000, 64), 'a', &mut random()).unwrap();
        let window = regions.insert_window(PD, kind, &mut random()).unwrap();
        regions.bind(PD, QPN, &Bind { new_rkey: 0x1234_5600, ..bind(window, lkey) }).unwrap();
        assert_eq!(readable(&regions, window & !0xff, 0x1010, 16), Some(('a', 16)), "{kind:?}");
        assert_eq!(readable(&regions, 0x1234_5600, 0x1010, 16), None, "{kind:?}");
    }
}

#[test]
fn a_region_with_windows_stays() {
    let (mut regions, lkey, rkey) = bound(MwType::Two);
    assert_eq!(regions.remove_region(lkey), Err(Refused::Busy));
    assert_eq!(regions.remove_region(rkey), Err(Refused::NoSuchObject), "a window is no region");
    assert_eq!(regions.remove_window(lkey), Err(Refused::NoSuchObject), "a region is no window");
    assert_eq!(regions.remove_window(rkey), Ok(PD));
    assert_eq!(regions.remove_region(lkey), Ok((PD, 'a')));
    regions.drop_windows_of(QPN);
}

proptest! {
    #[test]
    fn an_offset_is_given_exactly_where_the_range_fits(iova: u64, size: u64, addr: u64, length: u64, near: bool) {
        let (addr, length) =
            if near { (iova.wrapping_add(addr % 8).wrapping_sub(2), (size % 16).wrapping_add(length % 8)) } else { (addr, length) };
        let size = if near { size % 16 } else { size };
        let (begin, end) = (u128::from(addr), u128::from(addr) + u128::from(length));
        let fits = begin >= u128::from(iova) && end <= u128::from(iova) + u128::from(size);
        prop_assert_eq!(offset(iova, size, addr, length), fits.then(|| addr.wrapping_sub(iova)));
    }
}
