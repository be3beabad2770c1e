//! Parses any UDP payload, reads its fields and checks its ICRC. None of this may panic or give
//! contradictory results.
//!
//! Run `cargo +nightly fuzz run packet` in the directory of the package `roce`. The test
//! `wire_seeds` writes the seeds and checks that they still match the wire formats.

#![no_main]

use libfuzzer_sys::fuzz_target;
use roce::wire::{Flow, Headers, ICRC_LEN, Icrc, Packet, Verdict, icrc};

fuzz_target!(|bytes: &[u8]| {
    let parsed = Headers::parse(bytes);
    match Packet::new_checked(bytes) {
        Err(error) => assert_eq!(parsed, Err(error)),
        Ok(packet) => {
            let (headers, payload) = parsed.expect("both entries check the same");
            assert_eq!(packet.headers(), headers);
            assert_eq!(packet.payload(), &bytes[payload.clone()]);
            assert_eq!(payload.start, headers.len());
            assert_eq!(payload.end + packet.pad().len() + ICRC_LEN, bytes.len());
            // Headers that are emitted again in front of the remaining bytes must keep their
            // meaning.
            let mut again = bytes.to_vec();
            assert_eq!(headers.emit(&mut again), headers.len());
            assert_eq!(Headers::parse(&again), Ok((headers, payload)));
            if let Some(aeth) = headers.aeth {
                core::hint::black_box(aeth.syndrome.decode());
            }
        }
    }

    let v4 = Flow { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into(), src_port: 49152, dst_port: 4791 };
    let v6 = Flow { src: [1; 16].into(), dst: [2; 16].into(), ..v4 };
    for flow in [v4, v6] {
        let checker = Icrc::new(flow);
        let verdict = checker.check(bytes, 0);
        if let Some((covered, tail)) = bytes.split_last_chunk::<ICRC_LEN>() {
            let with =
                |id| icrc::compute(checker.seed(id, true, bytes.len()), covered).to_le_bytes() == *tail;
            let without =
                |id| icrc::compute(checker.seed(id, false, bytes.len()), covered).to_le_bytes() == *tail;
            match verdict {
                Verdict::Exact => assert!(with(0)),
                Verdict::WithId(id) => assert!(with(id) || without(id)),
                _ => assert!(!with(0) && !without(0)),
            }
        } else {
            assert_eq!(verdict, Verdict::Bad);
        }
    }
});
