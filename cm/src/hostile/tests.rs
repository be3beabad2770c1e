//! The seeds of the fuzz target `ucma`: complete exchanges with the kernel. These tests also run
//! the target's whole corpus and random steps.
//!
//! To rewrite the seeds after an intended change: `RDMA_CM_WRITE_SEEDS=1 cargo test -p rdma-cm
//! --lib hostile`.

#[path = "../../fuzz/fuzz_targets/ucma/driver.rs"]
mod driver;

use std::fs;
use std::path::{Path, PathBuf};

use driver::{Step, call};

use crate::types::EventType;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/ucma")
}

fn calls(call: u8) -> Step {
    Step { call, nth: u8::MAX, arg: 2, ..Step::default() }
}

/// Returns a call that is followed by an event.
fn then(call: u8, event: EventType) -> Step {
    Step { event: event.0 as u8 + 1, ..calls(call) }
}

fn comes(event: EventType) -> Step {
    then(call::NONE, event)
}

/// Returns the steps of a connecting program.
fn connects() -> Vec<Step> {
    vec![
        calls(call::CREATE),
        then(call::RESOLVE_ADDR, EventType::ADDR_RESOLVED),
        then(call::RESOLVE_ROUTE, EventType::ROUTE_RESOLVED),
        then(call::CONNECT, EventType::CONNECT_RESPONSE),
        calls(call::TAKE_QP),
        comes(EventType::DISCONNECTED),
        then(call::DISCONNECT, EventType::TIMEWAIT_EXIT),
        calls(call::DROP),
    ]
}

/// Returns the steps of a program that listens with its first id and accepts with the second.
fn listens() -> Vec<Step> {
    let second = |step| Step { slot: 1, ..step };
    vec![
        calls(call::CREATE),
        calls(call::BIND),
        then(call::LISTEN, EventType::CONNECT_REQUEST),
        second(then(call::ACCEPT, EventType::ESTABLISHED)),
        second(calls(call::TAKE_QP)),
        second(comes(EventType::DISCONNECTED)),
        second(calls(call::DROP)),
        comes(EventType::CONNECT_REQUEST),
        second(Step { flags: 1 << 3, ..comes(EventType::REJECTED) }),
        second(calls(call::REJECT)),
    ]
}

/// Returns the exchanges by name, each with the selected kernel and its steps.
fn conversations() -> Vec<(&'static str, u8, Vec<Step>)> {
    let of_space = |arg| Step { arg, ..calls(call::CREATE) };
    let datagrams = vec![
        of_space(1),
        then(call::RESOLVE_ADDR, EventType::ADDR_RESOLVED),
        then(call::RESOLVE_ROUTE, EventType::ROUTE_RESOLVED),
        then(call::CONNECT_WITH, EventType::ESTABLISHED),
        calls(call::QUERY),
        then(call::CONNECT_WITH, EventType::UNREACHABLE),
    ];
    let groups = vec![
        of_space(1),
        calls(call::BIND),
        calls(call::JOIN),
        Step { slot: 1, ..comes(EventType::MULTICAST_JOIN) },
        Step { slot: 1, ..comes(EventType::MULTICAST_ERROR) },
        Step { slot: 1, ..comes(EventType::CONNECT_REQUEST) },
        calls(call::LEAVE),
        calls(call::JOIN),
    ];
    let moves = vec![
        calls(call::CREATE),
        comes(EventType::ADDR_RESOLVED),
        Step { flags: 1 << 6, ..calls(call::MIGRATE) },
        comes(EventType::DEVICE_REMOVAL),
        comes(EventType::USER),
        Step { flags: 1 << 4, ..comes(EventType::ADDR_CHANGE) },
        comes(EventType(77)),
    ];
    let mut calls_alone = vec![calls(call::CREATE)];
    calls_alone.extend((call::NONE..call::COUNT).map(calls));
    let mut events = listens();
    events.truncate(3);
    events.extend((0..24).map(|event| comes(EventType(event))));
    let mut rejected = connects();
    rejected.truncate(4);
    rejected[3].event = EventType::REJECTED.0 as u8 + 1;
    rejected.push(calls(call::TAKE_QP));
    vec![
        ("connects", 0, connects()),
        ("connects_without_a_device", 1, connects()),
        ("connects_by_an_old_kernel", 2, connects()),
        ("listens", 0, listens()),
        ("rejected", 0, rejected),
        ("datagrams", 0, datagrams),
        ("groups", 0, groups),
        ("moves", 0, moves),
        ("calls", 0, calls_alone),
        ("events", 0, events),
    ]
}

/// Returns the seeds: each exchange unchanged, then with one reply of each step missing or
/// truncated.
fn seeds() -> Vec<(String, Vec<u8>)> {
    let bytes = |kind: u8, steps: &[Step]| -> Vec<u8> {
        [kind].into_iter().chain(steps.iter().flat_map(|step| step.emit())).collect()
    };
    let mut seeds = Vec::new();
    for (name, kind, steps) in conversations() {
        seeds.push((name.to_owned(), bytes(kind, &steps)));
        for (what, flags, at, value) in [("fails", 1, 0, 22), ("is_cut", 2, 3, 0), ("lies", 4, 4, 0xff)] {
            let wrong: Vec<_> = steps
                .iter()
                .map(|step| Step { nth: 0, at, value, flags: step.flags | flags, ..*step })
                .collect();
            seeds.push((format!("{name}_{what}"), bytes(kind, &wrong)));
        }
    }
    seeds
}

#[test]
fn the_committed_seeds_are_those_of_the_driver_and_run() {
    if std::env::var_os("RDMA_CM_WRITE_SEEDS").is_some() {
        fs::create_dir_all(folder()).unwrap();
        for (name, seed) in seeds() {
            fs::write(folder().join(format!("{name}.bin")), seed).unwrap();
        }
    }
    for (name, seed) in seeds() {
        let committed = fs::read(folder().join(format!("{name}.bin"))).unwrap_or_default();
        assert_eq!(committed, seed, "{name}.bin: RDMA_CM_WRITE_SEEDS=1 writes it");
    }
    let mut files = 0;
    for entry in fs::read_dir(folder()).unwrap() {
        driver::run(&fs::read(entry.unwrap().path()).unwrap());
        files += 1;
    }
    assert!(files >= seeds().len());
}

#[test]
fn the_conversations_reach_what_they_are_about() {
    let steps = |name: &str| {
        let found = conversations().into_iter().find(|(of, ..)| *of == name);
        let (_, kind, steps) = found.unwrap();
        [kind].into_iter().chain(steps.into_iter().flat_map(Step::emit)).collect::<Vec<_>>()
    };
    assert_eq!(driver::queue_pairs_taken(&steps("connects")), 1);
    assert_eq!(driver::queue_pairs_taken(&steps("listens")), 1);
    assert_eq!(driver::queue_pairs_taken(&steps("connects_without_a_device")), 0);
}

#[test]
fn whichever_reply_of_a_connection_is_wrong_nothing_is_left() {
    for steps in [connects(), listens()] {
        for wrong in 0..steps.len() {
            for nth in 0..8 {
                for (flags, at, value) in [(1, 0, 5), (2, 0, 0), (2, 8, 0), (4, 0, 0xff), (4, 12, 0x80)] {
                    let mut steps = steps.clone();
                    let step = &mut steps[wrong];
                    *step = Step { nth, at, value, flags: step.flags | flags, ..*step };
                    let bytes: Vec<u8> =
                        [0].into_iter().chain(steps.into_iter().flat_map(Step::emit)).collect();
                    driver::run(&bytes);
                }
            }
        }
    }
}

#[test]
fn random_steps_leave_nothing() {
    let seeds = seeds();
    for round in 0..400 {
        let mut rng = ib_cm::sim::Rng::new(round);
        let mut bytes = vec![0; Step::LEN * 40];
        rng.fill(&mut bytes);
        for chunk in bytes.chunks_exact_mut(Step::LEN) {
            // Use few ids, known events, few commands and usually no anomaly.
            (chunk[1], chunk[3], chunk[4]) = (chunk[1] % 3, chunk[3] % 22, chunk[4] % 4);
            if chunk[7] & 3 != 0 {
                chunk[7] = 0;
            }
        }
        let (_, seed) = &seeds[rng.below(seeds.len() as u64) as usize];
        let start = &seed[..seed.len().min(1 + Step::LEN * rng.below(5) as usize)];
        driver::run(&[start, &bytes].concat());
    }
}
