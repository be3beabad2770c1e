//! Tests of both ends over real segments.

use core::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::*;

const SHAPE: Shape = OutRing::SHAPE;
const LONGEST: usize = SHAPE.longest_packet;

/// Returns the ends of two processes.
fn link() -> [(Producer, Consumer); 2] {
    let (a, b) = (OwnSegment::new().unwrap(), OwnSegment::new().unwrap());
    let [of_a, of_b] = [&a, &b].map(map);
    [ends(a, of_b), ends(b, of_a)]
}

fn map(segment: &OwnSegment) -> PeerSegment {
    PeerSegment::map(segment.fd().try_clone_to_owned().unwrap()).unwrap()
}

/// Returns numbers below a bound.
fn random(mut seed: u64) -> impl FnMut(usize) -> usize {
    move |below| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as usize % below
    }
}

/// Returns a packet that differs from the ones before and after it.
fn packet(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + number) as u8).collect()
}

/// Takes out the current packet.
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
    assert_eq!(offsets.len(), (SHAPE.ring - record_len(LONGEST)) / LINE + 1, "each possible offset");
}

#[test]
fn a_ring_without_room_for_long_packets_takes_the_acknowledgements_of_a_process_that_ends() {
    const ACK: usize = bth::LEN + 4;
    for before in 0..70 {
        fill_with_acknowledgements(before, ACK);
    }
}

/// Fills a ring with longest packets, which begin behind some short ones, then with short ones.
fn fill_with_acknowledgements(before: usize, ack: usize) {
    let [(mut producer, _), (_, mut consumer)] = link();
    for _ in 0..before {
        producer.copy_in(&packet(0, ack), 0, 0);
        assert!(take(&mut consumer).is_some());
    }
    let mut sent = 0;
    let mut send = |producer: &mut Producer, len| {
        producer.copy_in(&packet(sent, len), 0, 0);
        sent += 1;
    };
    while producer.has_room().unwrap() {
        send(&mut producer, LONGEST);
    }
    let mut acks = 0;
    while producer.has_room_for(ack).unwrap() {
        send(&mut producer, ack);
        acks += 1;
    }
    assert!(acks >= 30, "{acks}");
    for number in 0..sent {
        let len = if number < sent - acks { LONGEST } else { ack };
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
    assert!(sent * LINE >= SHAPE.ring - 2 * record_len(LONGEST) - SHAPE.reserve, "{sent}");
    let mut consumed = 0;
    while !producer.has_room().unwrap() {
        assert!(take(&mut consumer).is_some());
        consumed += LINE;
    }
    assert_eq!(consumed, SHAPE.ring / 4);
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
    for header in [1, bth::LEN as u64 - 1, longest + 1, u64::from(u32::MAX), 20 | 1 << 49, 1 << 40, u64::MAX]
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
    theirs.hostile().store_consumed(0x7000);
    fill(&mut producer);
    for consumed in [0, 0x6fff, producer.position + 1, 1 << 63, u64::MAX] {
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
                let header = (bth::LEN + draw(LONGEST)) as u64;
                peer.store_header(LINE * draw(SHAPE.ring / LINE), [0, header, header, u64::MAX][draw(4)]);
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
            assert!(consumer.at + record_len(LONGEST) <= SHAPE.ring);
            if producer.has_room() == Ok(true) {
                producer.copy_in(&bytes[..100], 0, 0);
            }
        }
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(records, 2000, "the writer does not run");
    });
}
