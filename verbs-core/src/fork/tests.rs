//! Tests of page counts, page sizes, and the order of calls.

use std::cell::RefCell;

use super::*;

/// A kernel that records advice, and rejects pages at and above an address.
struct Recording {
    calls: RefCell<Vec<(Range<usize>, bool)>>,
    refused_from: usize,
}

impl Recording {
    fn new(refused_from: usize) -> Self {
        Self { calls: RefCell::default(), refused_from }
    }

    /// Returns the calls of `advise` since the previous check, with page numbers instead of
    /// addresses.
    fn calls(&self) -> Vec<(Range<usize>, bool)> {
        let pages = |(range, exclude): (Range<usize>, bool)| (range.start / PAGE..range.end / PAGE, exclude);
        self.calls.take().into_iter().map(pages).collect()
    }
}

impl Advise for Recording {
    fn advise(&self, pages: Range<usize>, exclude: bool) -> Result<(), Errno> {
        if pages.end > self.refused_from {
            return Err(Errno::NOMEM);
        }
        self.calls.borrow_mut().push((pages, exclude));
        Ok(())
    }
}

const PAGE: usize = 4096;

fn numbered(pages: Range<usize>) -> Range<usize> {
    pages.start * PAGE..pages.end * PAGE
}

#[test]
fn only_the_first_region_of_a_page_excludes_it_and_the_last_one_gives_it_back() {
    let (kernel, mut pages) = (Recording::new(usize::MAX), Pages::default());
    pages.exclude(&numbered(1..3), &kernel).unwrap();
    assert_eq!(kernel.calls(), [(1..3, true)]);
    pages.exclude(&numbered(2..4), &kernel).unwrap();
    assert_eq!(kernel.calls(), [(3..4, true)]);
    pages.exclude(&numbered(2..4), &kernel).unwrap();
    assert_eq!(kernel.calls(), []);
    pages.release(&numbered(1..3), &kernel).unwrap();
    assert_eq!(kernel.calls(), [(1..2, false)]);
    pages.release(&numbered(2..4), &kernel).unwrap();
    assert_eq!(kernel.calls(), []);
    pages.release(&numbered(2..4), &kernel).unwrap();
    assert_eq!(kernel.calls(), [(2..4, false)]);
    assert!(pages.0.is_empty(), "{pages:?}");
}

#[test]
fn a_region_around_others_excludes_the_pages_between_them() {
    let (kernel, mut pages) = (Recording::new(usize::MAX), Pages::default());
    for range in [2..3, 5..6] {
        pages.exclude(&numbered(range), &kernel).unwrap();
    }
    kernel.calls();
    pages.exclude(&numbered(0..8), &kernel).unwrap();
    assert_eq!(kernel.calls(), [(0..2, true), (3..5, true), (6..8, true)]);
    for range in [5..6, 2..3] {
        pages.release(&numbered(range), &kernel).unwrap();
    }
    assert_eq!(kernel.calls(), []);
    pages.release(&numbered(0..8), &kernel).unwrap();
    assert_eq!(kernel.calls(), [(0..8, false)]);
    assert!(pages.0.is_empty(), "{pages:?}");
}

#[test]
fn random_regions_exclude_exactly_the_pages_that_some_region_covers() {
    struct Flags(RefCell<[bool; 32]>);
    impl Advise for Flags {
        fn advise(&self, pages: Range<usize>, exclude: bool) -> Result<(), Errno> {
            for page in pages.start / PAGE..pages.end / PAGE {
                let was = std::mem::replace(&mut self.0.borrow_mut()[page], exclude);
                assert_ne!(was, exclude, "page {page} is advised twice");
            }
            Ok(())
        }
    }
    let (kernel, mut pages) = (Flags(RefCell::new([false; 32])), Pages::default());
    let mut live: Vec<Range<usize>> = Vec::new();
    let mut seed = 7_u64;
    let mut draw = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as usize % below
    };
    for _ in 0..5000 {
        if live.len() > draw(12) {
            let range = live.swap_remove(draw(live.len()));
            pages.release(&numbered(range), &kernel).unwrap();
        } else {
            let start = draw(31);
            let range = start..start + 1 + draw(31 - start);
            pages.exclude(&numbered(range.clone()), &kernel).unwrap();
            live.push(range);
        }
        for page in 0..32 {
            let covered = live.iter().any(|range| range.contains(&page));
            assert_eq!(kernel.0.borrow()[page], covered, "page {page} of {live:?}");
        }
        assert!(!live.is_empty() || pages.0.is_empty(), "{pages:?}");
    }
}

#[test]
fn a_region_whose_pages_cannot_all_be_excluded_excludes_none() {
    let (kernel, mut pages) = (Recording::new(5 * PAGE), Pages::default());
    pages.exclude(&numbered(2..3), &kernel).unwrap();
    let before = pages.0.clone();
    kernel.calls();
    assert_eq!(pages.exclude(&numbered(1..8), &kernel), Err(Errno::NOMEM));
    assert_eq!(kernel.calls(), [(1..2, true), (1..2, false)]);
    assert_eq!(pages.0, before);
}

#[test]
fn protection_comes_before_the_first_region_or_not_at_all() {
    let kernel = Recording::new(usize::MAX);
    let mut state = State { mode: Mode::TooLate, pages: Pages::default() };
    assert_eq!(state.enable(&kernel), Err(Errno::INVAL));
    state.mode = Mode::Off;
    assert_eq!(state.enable(&Recording::new(0)), Err(Errno::NOSYS));
    assert_eq!(state.mode, Mode::Off);
    state.enable(&kernel).unwrap();
    state.enable(&kernel).unwrap();
    assert_eq!((state.mode, kernel.calls().len()), (Mode::On, 2), "one page is tried, once");
}

#[test]
fn bytes_are_in_the_pages_from_the_first_to_the_last() {
    assert_eq!(pages(PAGE + 1, 1, PAGE), numbered(1..2));
    assert_eq!(pages(PAGE, PAGE, PAGE), numbered(1..2));
    assert_eq!(pages(PAGE + 1, PAGE, PAGE), numbered(1..3));
    assert_eq!(pages(3 << 20, 4096, 2 << 20), 2 << 20..4 << 20, "huge pages");
}

#[test]
fn the_page_size_is_that_of_the_mapping_around_an_address() {
    let smaps = "7f0000000000-7f0000200000 rw-p 00000000 00:00 0 \n\
                 Size:               2048 kB\n\
                 KernelPageSize:        4 kB\n\
                 7f0000200000-7f0000600000 rw-p 00000000 00:0f 1 /anon_hugepage (deleted)\n\
                 Size:               4096 kB\n\
                 KernelPageSize:     2048 kB\n";
    let size = |addr| page_size_in(smaps.as_bytes(), addr);
    assert_eq!(size(0x7f00_0000_0000), Some(4096));
    assert_eq!(size(0x7f00_0020_0000), Some(2 << 20));
    assert_eq!(size(0x7f00_0060_0000), None);
    assert_eq!(page_size_in("0-1000 rw-p\nKernelPageSize: 3 kB\n".as_bytes(), 0), None);
}

#[test]
fn the_running_kernel_takes_the_advice() {
    let mut state = State { mode: Mode::Off, pages: Pages::default() };
    state.enable(&Kernel).unwrap();
    let map = memmap2::MmapMut::map_anon(8 * page_size()).unwrap();
    let pages = pages(map.as_ptr().expose_provenance(), map.len(), page_size());
    state.pages.exclude(&pages, &Kernel).unwrap();
    assert!(flags_at(pages.start).contains(" dc"), "not excluded: {}", flags_at(pages.start));
    state.pages.release(&pages, &Kernel).unwrap();
    assert!(!flags_at(pages.start).contains(" dc"), "still excluded: {}", flags_at(pages.start));
}

/// Returns the flags of the mapping around an address; `dc` stands for "do not copy on fork".
fn flags_at(addr: usize) -> String {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut inside = false;
    for line in smaps.lines() {
        if let Some((start, end)) = line.split(' ').next().and_then(|range| range.split_once('-')) {
            let number = |text| usize::from_str_radix(text, 16);
            if let (Ok(start), Ok(end)) = (number(start), number(end)) {
                inside = (start..end).contains(&addr);
            }
        } else if inside && let Some(flags) = line.strip_prefix("VmFlags:") {
            return flags.to_owned();
        }
    }
    panic!("no mapping at {addr:#x}")
}
