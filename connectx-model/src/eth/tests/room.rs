//! Limits on the frames that a function builds at a time, and on their length.

use super::*;
use crate::state::eth::MAX_OUTGOING;

/// Number of segments in the send that [`large`] returns.
const SEGMENTS: usize = 4096;
const BLOCKS: u16 = 2;

/// Returns a work request for a 64 KiB send in segments of 16 bytes.
fn large(one: &Host) -> Vec<u8> {
    let mut header = frame(PEER, 14);
    header[12..14].copy_from_slice(&[8, 0]);
    header.extend([0x45, 0, 0, 0, 0, 1, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
    header.extend([0x10, 0, 0x20, 0, 0, 0, 0, 0]);
    let mut request = vec![0; 30];
    ctrl::OPCODE.set(&mut request, 0x0eu32);
    ctrl::CE.set(&mut request, 2u32);
    ctrl::DS.set(&mut request, 6u32);
    eth::MSS.set(&mut request[16..], 16u32);
    request[28..30].copy_from_slice(&(header.len() as u16).to_be_bytes());
    request.extend(&header);
    request.resize(80, 0);
    let mut pointer = [0; 16];
    data::BYTE_COUNT.set(&mut pointer, 16 * SEGMENTS as u64);
    data::LKEY.set(&mut pointer, one.key);
    data::ADDRESS.set(&mut pointer, PAYLOAD);
    request.extend(pointer);
    request.resize(usize::from(BLOCKS) * 64, 0);
    request
}

/// Posts large sends, one at a time, until the queue must wait. Returns their number, including the
/// waiting one.
fn fill(one: &mut Host) -> usize {
    for posted in 1..100 {
        one.post(large(one));
        if one.function.core.eth.sqs[&one.sqn].rung.is_some() {
            return posted;
        }
    }
    panic!("it never waits");
}

fn completions(one: &mut Host) -> usize {
    std::iter::from_fn(|| one.completion(0)).count()
}

#[test]
fn a_queue_waits_while_there_is_too_much_to_send_and_goes_on_afterwards() {
    let mut one = Host::new(0);
    let posted = fill(&mut one);
    assert_eq!(completions(&mut one), posted - 1);
    one.post(large(&one));
    assert_eq!(completions(&mut one), 0, "what is rung for now waits as well");
    let bytes = one.function.core.eth.outgoing_bytes;
    let each = SEGMENTS * MIN_FRAME_COST;
    assert!((MAX_OUTGOING..MAX_OUTGOING + each).contains(&bytes), "{bytes}");
    let (mut frames, mut bursts) = (0, 0);
    while let Some((steps, frame)) = one.function.step_frames() {
        frames += usize::from(frame.is_some());
        bursts += usize::from(steps == BURST_STEPS);
    }
    assert_eq!((frames, bursts), ((posted + 1) * SEGMENTS, 1));
    assert_eq!(completions(&mut one), 2);
    assert_eq!(one.function.core.eth.outgoing_bytes, 0);
    assert!(one.function.take_complaints().is_empty());
    one.post(one.send(&frame(PEER, 100)));
    assert_eq!(completions(&mut one), 1, "it waits no more");
}

/// Minimum cost of a frame, in bytes.
const MIN_FRAME_COST: usize = frame::MIN_FRAME + FRAME_COST;

#[test]
fn a_ring_costs_no_more_when_nothing_is_to_leave() {
    let mut one = Host::new(0);
    one.function.core.set_port_enabled(false);
    one.function.core.eth.burst = MAX_OUTGOING - 1;
    // Each doorbell starts with the full burst limit.
    one.post(large(&one));
    assert_eq!(completions(&mut one), 1);
    assert!(one.function.core.eth.burst > SEGMENTS * MIN_FRAME_COST);
    assert!(one.function.step_frames().is_none());
}

#[test]
fn a_queue_that_waits_and_goes_to_reset_or_error_or_is_destroyed_sends_no_more() {
    for how in 0..3 {
        let mut one = Host::new(0);
        let posted = fill(&mut one);
        let destroy = Input::new(0x906, &commands::destroy_sq_in::TABLE);
        let command = match how {
            0 => one.modify_sq(1, 0),
            1 => one.modify_sq(1, 3),
            _ => destroy.set(commands::destroy_sq_in::SQN, one.sqn),
        };
        one.make(command);
        assert_eq!(std::iter::from_fn(|| one.function.next_frame()).count(), (posted - 1) * SEGMENTS);
        assert_eq!(completions(&mut one), posted - 1 + usize::from(how == 1), "flushed if in error");
        assert!(one.function.take_complaints().is_empty());
    }
}

#[test]
fn a_queue_that_waits_is_not_rung_again_for_the_same_nor_for_more_than_it_holds() {
    let mut one = Host::new(0);
    fill(&mut one);
    let doorbell = one.place(large(&one));
    one.sent -= BLOCKS;
    one.record();
    one.function.ring_eth(one.uar, doorbell, None);
    assert_eq!(one.complaint(), Rule::DoorbellRecordFirst);
    one.sent += 9;
    one.record();
    one.function.ring_eth(one.uar, doorbell, None);
    assert_eq!(one.complaint(), Rule::WqeOverrun);
}

#[test]
fn a_frame_that_the_port_does_not_take_completes_with_an_error_and_without_a_complaint() {
    let mut one = Host::new(0);
    let longest = one.function.core.port.longest_frame() - 4;
    one.post(one.send(&frame(PEER, longest)));
    assert_eq!(one.function.next_frame().map(|frame| frame.len()), Some(longest));
    assert_eq!(cqe::OPCODE.get32(&one.completion(0).unwrap()), 0);
    one.place(one.send(&frame(PEER, longest + 1)));
    one.post(one.send(&frame(PEER, longest)));
    let entries: Vec<_> = std::iter::from_fn(|| one.completion(0)).collect();
    let errors: Vec<_> = entries
        .iter()
        .map(|entry| (error_cqe::OPCODE.get32(entry), error_cqe::SYNDROME.get32(entry)))
        .collect();
    assert_eq!(errors, [(13, 1), (13, 5)], "a wrong length, and what is behind it is flushed");
    assert!(one.function.next_frame().is_none() && one.function.take_complaints().is_empty());
}
