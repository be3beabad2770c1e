//! The seeds of the fuzz target `responder`: small conversations with each service. Also runs the
//! target's whole corpus.
//!
//! To rewrite the seeds after an intended change:
//! `ROCE_WRITE_SEEDS=1 cargo test -p roce --test responder_seeds`.

#[path = "../fuzz/fuzz_targets/responder/driver.rs"]
mod driver;

use std::fs;
use std::path::{Path, PathBuf};

use driver::{Step, call};
use proptest::prelude::*;
use roce::wire::opcode::operation as op;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/responder")
}

/// Returns a step with a valid packet that carries `len` bytes for the first region.
fn packet(qp: u8, opcode: u8, len: u16) -> Step {
    Step { qp, opcode, len, dmalen: u32::from(len), va: 16, flags: 1, ..Step::default() }
}

fn after(step: Step, call: u8, count: u8) -> Step {
    Step { call, count, ..step }
}

fn only(step: Step, call: u8, count: u8) -> Step {
    Step { flags: 0x80, call, count, ..step }
}

fn seeds() -> Vec<(&'static str, Vec<Step>)> {
    let send = |qp| after(packet(qp, op::SEND_ONLY, 64), call::POST_RECV, 32);
    let read = |psn| Step { psn, dmalen: 700, ..packet(0, op::RDMA_READ_REQUEST, 0) };
    let atomic = |psn| Step { psn, ..packet(0, op::FETCH_ADD, 0) };
    let long = |qp, first, middle, last| {
        vec![
            Step { dmalen: 522, ..after(packet(qp, first, 256), call::POST_RECV, 40) },
            packet(qp, middle, 256),
            packet(qp, last, 10),
        ]
    };
    let mad = |len| Step { key: 1, rest: 1, ..packet(7, op::SEND_ONLY, len) };
    let xrc = |step: Step| Step { qp: 4, ..step };
    vec![
        ("rc_send", vec![send(0), send(0), only(send(0), call::DRAIN, 0)]),
        ("rc_send_long", long(0, op::SEND_FIRST, op::SEND_MIDDLE, op::SEND_LAST_WITH_IMMEDIATE)),
        (
            "rc_write_long",
            long(0, op::RDMA_WRITE_FIRST, op::RDMA_WRITE_MIDDLE, op::RDMA_WRITE_LAST_WITH_IMMEDIATE),
        ),
        ("rc_rnr", vec![packet(0, op::SEND_ONLY, 4), after(packet(0, op::SEND_ONLY, 4), call::POST_RECV, 4)]),
        (
            "rc_gap",
            vec![Step { psn: 1, ..packet(0, op::RDMA_WRITE_ONLY, 4) }, packet(0, op::RDMA_WRITE_ONLY, 4)],
        ),
        ("rc_read_again", vec![read(0), after(read(-3), call::TRANSMIT, 5), after(read(-3), call::DRAIN, 0)]),
        (
            "rc_read_deregistered",
            vec![read(0), after(read(0), call::TRANSMIT, 2), only(read(0), call::REREGISTER, 0)],
        ),
        (
            "rc_read_depth",
            vec![read(0), read(0), after(read(0), call::MODIFY, 2), after(read(-3), call::MODIFY, 7)],
        ),
        ("rc_atomic_again", vec![atomic(0), atomic(-1), after(atomic(-1), call::DRAIN, 0)]),
        ("rc_wrong_key", vec![send(0), Step { key: 200, ..packet(0, op::RDMA_WRITE_ONLY, 4) }]),
        ("rc_too_long", vec![after(packet(0, op::SEND_ONLY, 64), call::POST_RECV, 1), send(0)]),
        ("rc_sealed", vec![Step { key: 3, ..packet(0, op::RDMA_WRITE_ONLY, 4) }]),
        (
            "rc_shared",
            vec![
                only(send(1), call::ARM_SRQ, 1),
                after(packet(1, op::SEND_FIRST, 256), call::POST_SRQ, 32),
                only(send(1), call::RECONNECT, 0),
            ],
        ),
        (
            "rc_window",
            vec![
                Step { rest: 1, dmalen: 2, len: 64, key: 0, ..only(send(0), call::BIND, 7) },
                only(send(0), call::DRAIN, 0),
                Step { key: 5, ..packet(0, op::RDMA_WRITE_ONLY, 8) },
                Step { key: 5, ..after(packet(0, op::SEND_ONLY_WITH_INVALIDATE, 8), call::POST_RECV, 8) },
            ],
        ),
        (
            "rc_requester",
            vec![
                only(send(0), call::SEND, 40),
                only(send(0), call::DRAIN, 0),
                Step { rest: 0x1f, psn: -1, ..packet(0, op::ACKNOWLEDGE, 0) },
                only(send(0), call::READ, 4),
                only(send(0), call::DRAIN, 0),
                Step { rest: 0x1f, psn: -1, ..packet(0, op::RDMA_READ_RESPONSE_ONLY, 64) },
            ],
        ),
        (
            "rc_requester_lost",
            vec![
                only(send(0), call::SEND, 40),
                only(send(0), call::DRAIN, 0),
                Step { dmalen: 1 << 30, ..only(send(0), call::TIMEOUT, 0) },
                only(send(0), call::DRAIN, 0),
            ],
        ),
        (
            "rc_replaced",
            vec![send(0), packet(0, op::SEND_FIRST, 256), only(send(0), call::REPLACE, 0), send(0)],
        ),
        ("uc_long", long(2, op::SEND_FIRST, op::SEND_MIDDLE, op::SEND_LAST)),
        (
            "uc_hole",
            vec![
                after(packet(2, op::SEND_FIRST, 256), call::POST_RECV, 64),
                Step { psn: 1, ..packet(2, op::SEND_LAST, 4) },
                send(2),
            ],
        ),
        (
            "ud",
            vec![
                send(3),
                packet(6, op::SEND_ONLY, 4),
                after(packet(6, op::SEND_ONLY, 4), call::POST_RECV, 32),
            ],
        ),
        (
            "mad",
            vec![
                mad(256),
                Step { rest: 0xff, ..mad(256) },
                mad(252),
                Step { flags: 0x20, ..mad(256) },
                after(mad(256), call::SEND_MAD, 3),
                after(mad(256), call::REOPEN_GSI, 0),
                only(mad(0), call::DRAIN, 0),
            ],
        ),
        (
            "xrc",
            vec![
                xrc(after(packet(4, op::SEND_ONLY_WITH_IMMEDIATE, 8), call::POST_SRQ, 8)),
                xrc(packet(4, op::RDMA_WRITE_ONLY, 8)),
                xrc(read(0)),
                xrc(Step { rest: 0xff, ..packet(4, op::SEND_ONLY, 8) }),
            ],
        ),
    ]
}

#[test]
fn the_committed_seeds_are_what_this_test_makes() {
    let write = std::env::var_os("ROCE_WRITE_SEEDS").is_some();
    for (name, steps) in seeds() {
        let path = folder().join(format!("{name}.bin"));
        let bytes: Vec<u8> = steps.iter().flat_map(Step::bytes).collect();
        if write {
            fs::write(&path, &bytes).unwrap();
        }
        let found = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert!(found == bytes, "{name}");
    }
}

#[test]
fn the_corpus_runs() {
    let mut run = 0;
    for entry in fs::read_dir(folder()).unwrap() {
        driver::run(&fs::read(entry.unwrap().path()).unwrap());
        run += 1;
    }
    assert!(run >= seeds().len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn anything_runs(bytes in prop::collection::vec(any::<u8>(), 0..3200)) {
        driver::run(&bytes);
    }

    #[test]
    fn conversations_run_together(picks in prop::collection::vec((any::<prop::sample::Index>(), any::<u16>()), 1..12)) {
        let seeds = seeds();
        let mut bytes: Vec<u8> =
            picks.iter().flat_map(|(pick, _)| pick.get(&seeds).1.iter().flat_map(Step::bytes)).collect();
        // Some of the picks change one byte.
        for (_, change) in &picks {
            let at = usize::from(change >> 8) * 7 % bytes.len();
            if change % 3 == 0 {
                bytes[at] = *change as u8;
            }
        }
        driver::run(&bytes);
    }
}
