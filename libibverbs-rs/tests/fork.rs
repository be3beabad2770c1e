//! Scopes and the pages that a fork copies.
//!
//! Fork protection applies to the whole process, so no other test runs in this process.

mod common;

use common::World;
use memmap2::MmapMut;
use verbs::state::Rts;
use verbs::{Context, ForkStatus, Provider, Qp, fork_init, is_fork_initialized};

both! {
    pages_of_a_scope_are_excluded_from_forks_until_it_ends
}

const PAGE: usize = 4096;

/// Returns the queue pairs for a scope that posts no requests: none.
fn no_queue_pairs<P: Provider>() -> Vec<Qp<Rts, P>> {
    Vec::new()
}

/// Returns whether a forked child gets the page at an address; `dc` stands for "do not copy on
/// fork".
fn is_copied(addr: *const u8) -> bool {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut inside = false;
    for line in smaps.lines() {
        if let Some((start, end)) = line.split(' ').next().and_then(|range| range.split_once('-')) {
            let number = |text| usize::from_str_radix(text, 16);
            if let (Ok(start), Ok(end)) = (number(start), number(end)) {
                inside = (start..end).contains(&addr.addr());
            }
        } else if inside && let Some(flags) = line.strip_prefix("VmFlags:") {
            return !flags.contains(" dc");
        }
    }
    panic!("no mapping at {addr:?}")
}

fn pages_of_a_scope_are_excluded_from_forks_until_it_ends<P: Provider>(_: &World, context: Context<P>) {
    fork_init().unwrap();
    // A kernel that copies registered pages needs no exclusion.
    let is_needed = is_fork_initialized() == ForkStatus::Enabled;
    let pd = context.alloc_pd().unwrap();
    let mut map = MmapMut::map_anon(3 * PAGE).unwrap();
    let start = map.as_ptr();
    let copied = || [0, 1, 2].map(|page| is_copied(start.wrapping_add(page * PAGE)));
    let (read, written) = map.split_at_mut(PAGE);
    pd.scope(no_queue_pairs::<P>(), |scope, _| {
        let _read = scope.register_bytes(read).unwrap();
        // Registering part of a page excludes all of it.
        let _written = scope.register(&mut written[100..200]).unwrap();
        assert_eq!(copied(), [!is_needed, !is_needed, true], "in the scope");
    });
    assert_eq!(copied(), [true; 3], "after the scope");
}
