//! Tests of a ring's producer and consumer in real segments.

mod seeds;

use core::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::*;
use crate::shm::segment::HostileOwner;

const SHAPE: Shape = OutRing::SHAPE;
const LONGEST: usize = SHAPE.longest_packet;

/// Returns both ends of a link for each of its two processes.
fn link() -> [(Producer, Consumer); 2] {
    let (a, b) = (OwnSegment::new().unwrap(), OwnSegment::new().unwrap());
    let [of_a, of_b] = [&a, &b].map(map);
    [ends(a, of_b), ends(b, of_a)]
}

fn map(segment: &OwnSegment) -> PeerSegment {
    PeerSegment::map(segment.fd().try_clone_to_owned().unwrap()).unwrap()
}

/// Returns a function that draws pseudorandom numbers below its argument.
fn random(mut seed: u64) -> impl FnMut(usize) -> usize {
    move |below| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as usize % below
    }
}

/// Returns a packet that differs from the packets with neighbouring numbers.
fn packet(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + number) as u8).collect()
}

/// Reads and removes the current packet.
fn take(consumer: &mut Consumer) -> Option<Vec<u8>> {
    let record = consumer.peek().unwrap()?;
    let mut packet = vec![0; record.len];
    assert!(consumer.copy(0, &mut packet));
    let _ = consumer.advance();
    Some(packet)
}

#[test]
fn packets_of_any_length_arrive_in_order_in_both_directions() {
    let mut draw = random(1);
    for (from, to) in [(0, 1), (1, 0)] {
        let mut link = link();
        let (mut sent, mut received) = (0, 0);
        let mut lens = std::collections::VecDeque::new();
        while sent < 3000 {
            while draw(8) > 0 && link[from].0.has_room().unwrap() {
                let len = bth::LEN + [draw(64), draw(LONGEST - bth::LEN + 1)][draw(2)];
                link[from].0.copy_in(&packet(sent, len), sent as u8, (sent >> 3) as u8);
                lens.push_back(len);
                sent += 1;
            }
            while draw(8) > 0
                && let Some(len) = lens.pop_front()
            {
                let consumer = &mut link[to].1;
                let (traffic_class, hop_limit) = (received as u8, (received >> 3) as u8);
                assert!(!consumer.is_empty());
                let record = Record { len, traffic_class, hop_limit, on_link: false };
                assert_eq!(consumer.peek(), Ok(Some(record)));
                assert_eq!(take(consumer), Some(packet(received, len)));
                received += 1;
            }
            assert_eq!(link[to].1.is_empty(), lens.is_empty());
        }
        assert!(sent - received < 1000, "{received} of {sent}");
    }
}

#[test]
fn an_empty_ring_has_room_for_the_longest_packet_at_every_offset() {
    let [(mut producer, _), (_, mut consumer)] = link();
    let mut draw = random(2);
    let mut offsets = std::collections::BTreeSet::new();
    for number in 0..100_000 {
        assert_eq!(producer.has_room(), Ok(true), "at {}", producer.at);
        offsets.insert(producer.at);
        let len = if draw(16) > 0 { bth::LEN } else { bth::LEN + draw(LONGEST - bth::LEN + 1) };
        producer.copy_in(&packet(number, len), 0, 0);
        assert!(take(&mut consumer).is_some() && consumer.is_empty());
    }
    assert_eq!(offsets.len(), (SHAPE.window - record_len(LONGEST)) / LINE + 1, "each possible offset");
}

/// Exchanges packets of maximum length until the producer begins another lap. Returns the offset
/// where the last lap ended.
fn finish_lap(producer: &mut Producer, consumer: &mut Consumer, clock: &mut Time, step: u64) -> usize {
    loop {
        *clock = *clock + step;
        producer.copy_in_at(*clock, &[0; LONGEST]);
        assert!(take(consumer).is_some());
        if producer.at == 0 {
            return producer.last_end;
        }
    }
}

/// The time between packets of maximum length in a stream, in nanoseconds. The next constant is for
/// a slow sender.
const AT_ONCE: u64 = 1000;
const SLOWLY: u64 = 30_000;

#[test]
fn a_stream_uses_the_whole_ring_and_slow_packets_its_window() {
    let [(mut producer, _), (_, mut consumer)] = link();
    let mut clock = Time(0);
    let mut laps = |steps: [u64; 6]| {
        steps.map(|step| {
            let end = finish_lap(&mut producer, &mut consumer, &mut clock, step);
            [SHAPE.window, SHAPE.area].map(|len| (len - record_len(LONGEST) + 1..=len).contains(&end))
        })
    };
    let [small, whole] = [[true, false], [false, true]];
    let [f, s] = [AT_ONCE, SLOWLY];
    assert_eq!(laps([s, f, f, s, f, f]), [small; 6], "streams of less than four windows");
    assert_eq!(laps([f, f, f, s, f, f]), [small, whole, whole, small, whole, whole]);
}

#[test]
fn a_stream_that_becomes_slow_returns_to_the_window_at_the_end_of_the_next_one() {
    let [(mut producer, _), (_, mut consumer)] = link();
    let mut clock = Time(0);
    while finish_lap(&mut producer, &mut consumer, &mut clock, AT_ONCE) < SHAPE.window {}
    while producer.at < SHAPE.area / 2 {
        clock = clock + AT_ONCE;
        producer.copy_in_at(clock, &[0; LONGEST]);
        assert!(take(&mut consumer).is_some());
    }
    let end = finish_lap(&mut producer, &mut consumer, &mut clock, SLOWLY);
    assert!(end < SHAPE.area / 2 + 2 * SHAPE.window, "{end}");
    assert!(finish_lap(&mut producer, &mut consumer, &mut clock, SLOWLY) <= SHAPE.window);
}

#[test]
fn a_ring_that_must_not_grow_stays_in_its_window() {
    let [(mut producer, _), (_, mut consumer)] = link();
    for number in 0..1000 {
        producer.copy_in(&packet(number, LONGEST), 0, 0);
        assert_eq!(take(&mut consumer), Some(packet(number, LONGEST)));
        assert!(producer.at < SHAPE.window);
    }
    assert!(!producer.is_large());
}

#[test]
fn packets_arrive_in_order_while_laps_change_their_length() {
    let mut draw = random(5);
    let [(mut producer, _), (_, mut consumer)] = link();
    let mut lens = std::collections::VecDeque::new();
    let (mut sent, mut received, mut ends) = (0, 0, std::collections::BTreeSet::new());
    let (mut clock, mut speed, mut burst) = (Time(0), 1, 1);
    while sent < 20_000 {
        if draw(50) == 0 {
            (speed, burst) = ([1, 300, 5000][draw(3)], [1, 8, 200][draw(3)]);
        }
        while draw(burst) > 0 && producer.has_room().unwrap() {
            let len = bth::LEN + [draw(64), draw(LONGEST - bth::LEN + 1)][draw(2)];
            clock = clock + draw(speed) as u64;
            producer.copy_in_at(clock, &packet(sent, len));
            lens.push_back(len);
            sent += 1;
            if producer.at == 0 {
                ends.insert(producer.last_end / SHAPE.window);
            }
        }
        let is_blocked = !producer.has_room().unwrap();
        while (is_blocked || draw(burst) > 0)
            && let Some(len) = lens.pop_front()
        {
            assert_eq!(take(&mut consumer), Some(packet(received, len)), "{received}");
            received += 1;
            if is_blocked && draw(40) == 0 {
                break;
            }
        }
        assert_eq!(consumer.is_empty(), lens.is_empty());
        assert!(!lens.is_empty() || producer.has_room().unwrap(), "an empty ring has room");
    }
    assert!(ends.len() > 5 && ends.contains(&0) && ends.last() >= Some(&33), "{ends:?}");
}

#[test]
fn a_ring_without_room_for_long_packets_takes_the_acknowledgements_of_a_process_that_ends() {
    for (laps, step, first) in
        [(0, SLOWLY, 0..70), (1, SLOWLY, 0..70), (4, AT_ONCE, 60..64), (5, AT_ONCE, 0..2)]
    {
        for before in first {
            for pace in [AT_ONCE, SLOWLY] {
                let [(mut producer, _), (_, mut consumer)] = link();
                let mut clock = Time(0);
                for _ in 0..laps {
                    finish_lap(&mut producer, &mut consumer, &mut clock, step);
                }
                assert_eq!(producer.is_large(), laps > 3);
                fill_with_acknowledgements((producer, consumer), (clock, pace), before);
            }
        }
    }
}

/// Fills a ring with `before` short packets, then packets of maximum length, then short packets.
fn fill_with_acknowledgements(
    (mut producer, mut consumer): (Producer, Consumer),
    (mut clock, pace): (Time, u64),
    before: usize,
) {
    const ACK: usize = bth::LEN + 4;
    for _ in 0..before {
        producer.copy_in_at(clock, &packet(0, ACK));
        assert!(take(&mut consumer).is_some());
    }
    let mut sent = 0;
    let mut send = |producer: &mut Producer, len| {
        clock = clock + pace;
        producer.copy_in_at(clock, &packet(sent, len));
        sent += 1;
    };
    while producer.has_room().unwrap() {
        send(&mut producer, LONGEST);
    }
    let mut acks = 0;
    while producer.has_room_for(ACK).unwrap() {
        send(&mut producer, ACK);
        acks += 1;
    }
    assert!(acks >= 30, "{acks}");
    for number in 0..sent {
        let len = if number < sent - acks { LONGEST } else { ACK };
        assert_eq!(take(&mut consumer), Some(packet(number, len)));
    }
    assert_eq!((producer.has_room(), consumer.is_empty()), (Ok(true), true));
}

#[test]
fn a_full_ring_has_room_again_once_a_quarter_was_consumed() {
    let [(mut producer, _), (_, mut consumer)] = link();
    let mut sent = 0;
    while producer.has_room().unwrap() {
        producer.copy_in(&packet(sent, bth::LEN), 0, 0);
        sent += 1;
    }
    // The last record, the header behind it and the end of the ring stay free.
    assert!(sent * LINE >= SHAPE.window - 2 * record_len(LONGEST) - SHAPE.reserve, "{sent}");
    let mut consumed = 0;
    while !producer.has_room().unwrap() {
        assert!(take(&mut consumer).is_some());
        consumed += LINE;
    }
    assert_eq!(consumed, SHAPE.window / 4);
}

#[test]
fn the_consumer_rings_only_for_a_producer_that_waits() {
    let [(mut producer, _), (_, mut consumer)] = link();
    for waits in [false, true, false] {
        while producer.has_room().unwrap() {
            producer.copy_in(&[0; LONGEST], 0, 0);
        }
        assert!(!waits || !producer.request_room().unwrap());
        let mut rings = 0;
        while consumer.peek().unwrap().is_some() {
            rings += usize::from(consumer.advance());
        }
        assert_eq!(rings > 0, waits, "{rings}");
        assert_eq!(producer.request_room(), Ok(true));
    }
}

#[test]
fn any_piece_of_the_current_packet_can_be_copied_and_nothing_beyond_it() {
    let [(mut producer, _), (_, mut consumer)] = link();
    let packet = packet(3, 300);
    producer.copy_in(&packet, 0, 0);
    assert!(!consumer.copy(0, &mut [0]), "no record is current before it was looked at");
    consumer.peek().unwrap().unwrap();
    for from in 0..300 {
        for len in [0, 1, 4, 7, 8, 9, 12, 32, 100, 288, 300] {
            let mut piece = vec![0; len];
            assert_eq!(consumer.copy(from, &mut piece), from + len <= 300, "{from} {len}");
            let expected = if from + len <= 300 { packet[from..from + len].to_vec() } else { vec![0; len] };
            assert_eq!(piece, expected, "{from} {len}");
        }
    }
    assert!(!consumer.copy(usize::MAX, &mut [0; 2]));
    let _ = consumer.advance();
    assert!(!consumer.copy(0, &mut [0]) && !consumer.advance());
}

#[test]
fn payload_behind_a_bth_is_aligned_and_the_space_holds_the_longest_packet() {
    let [(mut producer, _), _] = link();
    let space = producer.space();
    assert_eq!(space.len(), LONGEST);
    assert_eq!(space[bth::LEN..].as_ptr().addr() % 32, 0);
}

#[test]
fn an_impossible_header_breaks_the_link() {
    let (own, theirs) = (OwnSegment::new().unwrap(), OwnSegment::new().unwrap());
    let (_producer, mut consumer) = ends(own, map(&theirs));
    let longest = LONGEST as u64;
    for header in [1, bth::LEN as u64 - 1, longest + 1, u64::from(u32::MAX), 20 | 1 << 50, 1 << 40, u64::MAX]
    {
        theirs.hostile().store_header(0, header);
        assert_eq!(consumer.peek(), Err(Broken), "{header:#x}");
        assert!(!consumer.copy(0, &mut [0]) && !consumer.advance());
    }
    for len in [bth::LEN as u64, longest] {
        theirs.hostile().store_header(0, len | 0xff << 40);
        assert!(consumer.peek().is_ok_and(|record| record.is_some_and(|record| record.hop_limit == 0xff)));
        consumer.current = None;
    }
}

/// Stores headers for packets of 4000 bytes, starting at offset 0. Returns their number and the
/// offset where they end.
fn store_records(peer: &HostileOwner, until: usize) -> (u32, usize) {
    let step = record_len(4000);
    let count = until.div_ceil(step);
    (0..count).for_each(|n| peer.store_header(n * step, 4000));
    (count as u32, count * step)
}

#[test]
fn a_record_behind_the_window_breaks_the_link_unless_its_memory_exists() {
    let (own, theirs) = (OwnSegment::new().unwrap(), OwnSegment::new().unwrap());
    let (_producer, mut consumer) = ends(own, map(&theirs));
    let peer = theirs.hostile();
    let (count, end) = store_records(&peer, SHAPE.window - record_len(LONGEST) + LINE);
    assert_eq!(consumer.count(count - 1), Ok(count - 1));
    for _ in 1..count {
        assert!(consumer.peek().is_ok_and(|record| record.is_some()));
        let _ = consumer.advance();
    }
    assert_eq!([consumer.count(1).map(|_| ()), consumer.peek().map(|_| ())], [Err(Broken); 2]);
    assert!(!consumer.advance());
    peer.grow();
    assert_eq!(consumer.count(2), Ok(1));
    assert!(consumer.peek().is_ok_and(|record| record.is_some()));
    let _ = consumer.advance();
    assert_eq!((consumer.at, consumer.peek()), (end, Ok(None)));
}

#[test]
fn a_lap_beyond_the_end_of_the_ring_breaks_the_link() {
    let (own, theirs) = (OwnSegment::new().unwrap(), OwnSegment::new().unwrap());
    let (_producer, mut consumer) = ends(own, map(&theirs));
    let peer = theirs.hostile();
    peer.grow();
    let (count, end) = store_records(&peer, SHAPE.area - record_len(LONGEST) + LINE);
    assert_eq!(consumer.count(count - 1), Ok(count - 1));
    assert_eq!(consumer.count(u32::MAX), Err(Broken));
    peer.store_header(end - record_len(4000), 4000 | ENDS_LAP);
    peer.store_header(0, UNPUBLISHED);
    consumer.at = record_len(4000);
    assert_eq!(consumer.count(u32::MAX), Ok(count - 1), "the lap ends within the ring");
}

#[test]
fn a_lap_of_one_record_is_that_record_again_and_takes_no_longer_than_it() {
    let (own, theirs) = (OwnSegment::new().unwrap(), OwnSegment::new().unwrap());
    let (_producer, mut consumer) = ends(own, map(&theirs));
    theirs.hostile().store_header(0, 100 | ENDS_LAP);
    assert_eq!(consumer.count(1000), Ok(1000));
    for _ in 0..1000 {
        assert!(consumer.peek().is_ok_and(|record| record.is_some_and(|record| record.len == 100)));
        let _ = consumer.advance();
        assert_eq!(consumer.at, 0);
    }
    assert_eq!(consumer.position, 1000 * record_len(100) as u64);
}

#[test]
fn a_header_that_changes_after_it_was_read_has_no_effect() {
    let (own, theirs) = (OwnSegment::new().unwrap(), OwnSegment::new().unwrap());
    let (_producer, mut consumer) = ends(own, map(&theirs));
    theirs.hostile().store_header(0, 100);
    let record = consumer.peek().unwrap();
    theirs.hostile().store_header(0, 4000);
    assert_eq!(consumer.peek(), Ok(record));
    assert!(!consumer.copy(0, &mut [0; 101]));
    let _ = consumer.advance();
    assert_eq!(consumer.at, record_len(100));
}

#[test]
fn progress_backwards_or_beyond_the_last_packet_breaks_the_link() {
    let (own, theirs) = (OwnSegment::new().unwrap(), OwnSegment::new().unwrap());
    let (mut producer, _consumer) = ends(own, map(&theirs));
    let fill = |producer: &mut Producer| {
        while producer.has_room().unwrap() {
            producer.copy_in(&[0; 4000], 0, 0);
        }
    };
    fill(&mut producer);
    theirs.hostile().store_consumed(0x6000);
    fill(&mut producer);
    for consumed in [0, 0x5fff, producer.position + 1, 1 << 63, u64::MAX] {
        theirs.hostile().store_consumed(consumed);
        assert_eq!(
            (producer.has_room(), producer.request_room()),
            (Err(Broken), Err(Broken)),
            "{consumed:#x}"
        );
    }
    theirs.hostile().store_consumed(producer.position);
    assert_eq!(producer.has_room(), Ok(true));
}

#[test]
fn random_scripts_of_a_hostile_peer_neither_stop_an_end_nor_lead_it_out_of_the_ring() {
    let mut draw = random(3);
    for _ in 0..300 {
        let mut script = vec![0; 2000];
        script.fill_with(|| if draw(4) > 0 { draw(256) as u8 } else { draw(2) as u8 });
        hostile::run(&script);
    }
}

#[test]
fn a_peer_that_writes_at_any_time_cannot_lead_an_end_out_of_the_ring() {
    let (own, theirs) = (OwnSegment::new().unwrap(), OwnSegment::new().unwrap());
    let (mut producer, mut consumer) = ends(own, map(&theirs));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (peer, mut draw) = (theirs.hostile(), random(4));
            while !is_over.load(Ordering::Relaxed) {
                let header = (bth::LEN + draw(LONGEST)) as u64 | (ENDS_LAP * draw(2) as u64);
                peer.store_header(LINE * draw(SHAPE.window / LINE), [0, header, header, u64::MAX][draw(4)]);
                peer.store(draw(1 << 16), draw(1 << 16) as u64);
            }
        });
        let (mut records, mut bytes) = (0, [0; LONGEST]);
        let deadline = Instant::now() + Duration::from_secs(60);
        while records < 2000 && Instant::now() < deadline {
            if let Ok(Some(record)) = consumer.peek() {
                assert!(SHAPE.is_packet(record.len));
                assert!(consumer.copy(0, &mut bytes[..record.len]));
                let _ = consumer.advance();
                records += 1;
            }
            assert!(consumer.at + record_len(LONGEST) <= SHAPE.window);
            if producer.has_room() == Ok(true) {
                producer.copy_in(&bytes[..100], 0, 0);
            }
        }
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(records, 2000, "the writer does not run");
    });
}
