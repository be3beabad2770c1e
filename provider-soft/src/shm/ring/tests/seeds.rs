//! The seeds of the fuzz target `ring`: the writes of an honest peer, and inputs with one invalid
//! value each. These tests also replay the whole corpus.
//!
//! To rewrite the seeds after an intended change: `PROVIDER_SOFT_WRITE_SEEDS=1 cargo test -p
//! provider-soft --lib seeds`.

use std::fs;
use std::path::{Path, PathBuf};

use super::super::hostile::{run, step};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/ring")
}

/// Returns the bytes of a script step with its numeric operands.
fn with(step: u8, numbers: &[u64]) -> Vec<u8> {
    [vec![step], numbers.iter().flat_map(|number| number.to_le_bytes()).collect()].concat()
}

/// Returns the script steps for a record that the peer writes and this process reads.
fn record(len: u64, ends_lap: bool) -> Vec<u8> {
    let hop_limit = if ends_lap { 64 } else { 63 };
    [with(step::RECORD, &[len]), vec![hop_limit], with(step::LOOK, &[0, len]), vec![step::ADVANCE]].concat()
}

fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    const LONG: u64 = 16_000;
    // `LONG` is an even number, which selects long packets.
    let send = |time| with(step::SEND, &[LONG, time]);
    let all_consumed = with(step::PROGRESS, &[0]);
    let stream: Vec<_> =
        (0..12).flat_map(|time| [send(time * 1000), all_consumed.clone()].concat()).collect();
    vec![
        ("short_records.bin", (12..40).flat_map(|len| record(len, false)).collect()),
        ("laps.bin", (0..12).flat_map(|number| record(LONG, number % 3 == 2)).collect()),
        ("long_lap.bin", [vec![step::GROW], record(LONG, false).repeat(12)].concat()),
        ("lap_in_missing_pages.bin", record(LONG, false).repeat(12)),
        ("invalid_header.bin", [with(step::HEADER, &[u64::MAX]), with(step::LOOK, &[0, 0])].concat()),
        ("short_record.bin", [with(step::HEADER, &[11]), with(step::LOOK, &[0, 11])].concat()),
        ("stream.bin", stream),
        (
            "full_ring.bin",
            [with(step::SEND, &[1, 0]), with(step::PROGRESS, &[64]), with(step::SEND, &[1, 0])].concat(),
        ),
        ("impossible_progress.bin", [send(0), with(step::CONSUMED, &[u64::MAX]), send(0)].concat()),
        ("changed_magic.bin", [with(step::STORE, &[0, 0]), record(100, false)].concat()),
    ]
}

#[test]
fn the_committed_seeds_of_a_hostile_peer_are_what_this_test_makes() {
    for (name, script) in seeds() {
        let path = folder().join(name);
        if std::env::var_os("PROVIDER_SOFT_WRITE_SEEDS").is_some() {
            fs::create_dir_all(folder()).unwrap();
            fs::write(&path, &script).unwrap();
        }
        let committed = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(committed == script, "{} is not what the test makes", path.display());
    }
}

#[test]
fn the_corpus_of_a_hostile_peer_runs() {
    for entry in fs::read_dir(folder()).unwrap() {
        run(&fs::read(entry.unwrap().path()).unwrap());
    }
}
