//! Fences after UMRs that change memory keys.

use super::umr::{FREE, Umr, bed, fast_key, lend};
use super::windows::{Change, window};
use super::*;

/// Posts a UMR, and after it a work request with this fence mode. If `together` is set, one
/// doorbell announces both; otherwise each has a doorbell. Returns the broken rules.
fn behind(change: impl FnOnce(&mut Bed, &Pair, &Memory) -> Vec<u8>, fence: u32, together: bool) -> Vec<Rule> {
    let (mut bed, mut cq, mut one, _, memory, _) = bed();
    let change = change(&mut bed, &one, &memory);
    bed.put(&mut one, &change);
    if !together {
        bed.ring(&mut one);
    }
    let next = write(&bed, &one, &memory, fence);
    bed.post(&mut one, &next);
    assert_eq!(bed.drain(&mut cq).iter().map(|(opcode, _)| *opcode).collect::<Vec<_>>(), [SUCCESS; 2]);
    bed.rules()
}

fn write(bed: &Bed, one: &Pair, memory: &Memory, fence: u32) -> Vec<u8> {
    let wqe = bed.begin(one, opcode::WRITE).set(ctrl::FM, fence);
    wqe.remote(memory.va + 0x2000, memory.key).inline(b"x").done()
}

fn bind(bed: &mut Bed, one: &Pair, memory: &Memory) -> Vec<u8> {
    let key = window(bed, true);
    Change::bind(one, key | 1, true, (memory, 0, 8)).wqe(bed, one, key)
}

fn invalidate(bed: &mut Bed, one: &Pair, _: &Memory) -> Vec<u8> {
    let key = window(bed, true);
    Change::unbind(key, true).wqe(bed, one, key)
}

fn register(bed: &mut Bed, one: &Pair, memory: &Memory) -> Vec<u8> {
    let key = fast_key(bed, 4);
    lend(bed, one, key, 0x1000, memory.address)
}

/// Returns an invalidation as the Linux driver posts it.
fn invalidate_as_linux(bed: &mut Bed, one: &Pair, _: &Memory) -> Vec<u8> {
    let key = fast_key(bed, 4);
    Umr::new(FREE).context(mkc::FREE, 1).wqe(bed, one, key, &[])
}

#[test]
fn a_work_request_after_a_change_of_a_key_has_a_small_fence_or_stronger_ordering() {
    for change in [bind, invalidate, register] {
        for together in [true, false] {
            for fence in 0..=4 {
                let expected = if matches!(fence, 0 | 2) { vec![Rule::UmrFence] } else { vec![] };
                assert_eq!(behind(change, fence, together), expected, "fence {fence}, {together}");
            }
        }
    }
}

#[test]
fn the_linux_drivers_invalidation_needs_no_fence_after_it() {
    for together in [true, false] {
        assert_eq!(behind(invalidate_as_linux, 0, together), []);
    }
    // A UMR with the same mask can make a key valid.
    let open = |bed: &mut Bed, one: &Pair, memory: &Memory| Umr::new(FREE).wqe(bed, one, memory.key, &[]);
    assert_eq!(behind(open, 1, false), [Rule::UmrForm]);
    assert_eq!(behind(open, 0, false), [Rule::UmrForm, Rule::UmrFence]);
}

#[test]
fn only_the_next_work_request_needs_a_fence() {
    let (mut bed, mut cq, mut one, _, memory, _) = bed();
    for fence in [0u32, 1] {
        // If the next work request is another UMR, it needs a fence too.
        let mut wqe = bind(&mut bed, &one, &memory);
        ctrl::FM.set(&mut wqe, fence);
        bed.post(&mut one, &wqe);
    }
    for fence in [1, 0] {
        let next = write(&bed, &one, &memory, fence);
        bed.post(&mut one, &next);
    }
    assert_eq!(bed.drain(&mut cq).len(), 4);
    assert_eq!(bed.rules(), []);
    for _ in 0..2 {
        let mut wqe = bind(&mut bed, &one, &memory);
        ctrl::FM.set(&mut wqe, 0u32);
        bed.post(&mut one, &wqe);
    }
    assert_eq!(bed.rules(), [Rule::UmrFence]);
}

#[test]
fn the_first_work_request_after_a_reset_needs_no_fence() {
    let (mut bed, mut cq, mut one, two, memory, _) = bed();
    let wqe = bind(&mut bed, &one, &memory);
    bed.post(&mut one, &wqe);
    assert_eq!(bed.drain(&mut cq).len(), 1);
    bed.name(&one, 0x50a);
    one.head = 0;
    bed.update_record(&one);
    bed.init(&one, RC);
    bed.connect(&one, RC, &two);
    let next = write(&bed, &one, &memory, 0);
    bed.post(&mut one, &next);
    assert_eq!(bed.drain(&mut cq).len(), 1);
}

#[test]
fn a_work_request_that_is_flushed_takes_the_fence() {
    for flushed in [false, true] {
        let (mut bed, mut cq, mut one, _, memory) = sends::bed(UC);
        // The checks for a free and for a valid key conflict.
        let key = fast_key(&mut bed, 4);
        let mut broken = lend(&bed, &one, key, 0, memory.address);
        broken[16] = 0x60;
        bed.post(&mut one, &broken);
        assert_eq!(bed.rules(), [Rule::WqeUmr]);
        assert_eq!(bed.state(&one), State::Sqe);
        if flushed {
            let next = write(&bed, &one, &memory, 1);
            bed.post(&mut one, &next);
        }
        assert_eq!(bed.drain(&mut cq).len(), 1 + usize::from(flushed));
        let mut context = [0; qpc::SIZE];
        qpc::RWE.set(&mut context, 1u32);
        bed.modify(&one, 0x506, &context);
        let next = write(&bed, &one, &memory, 0);
        bed.post(&mut one, &next);
        assert_eq!(bed.drain(&mut cq).len(), 1);
        assert_eq!(bed.rules(), if flushed { vec![] } else { vec![Rule::UmrFence] });
    }
}
