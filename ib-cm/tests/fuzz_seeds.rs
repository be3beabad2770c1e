//! The seeds of the fuzz target `cm`: a sequence of steps for each state. This test also runs the
//! target's whole corpus and random steps.
//!
//! To rewrite the seeds after an intended change:
//! `IB_CM_WRITE_SEEDS=1 cargo test -p ib-cm --test fuzz_seeds`.

#[path = "../fuzz/fuzz_targets/cm/driver.rs"]
mod driver;

use std::fs;
use std::path::{Path, PathBuf};

use driver::{Step, call};
use ib_cm::cm::State;
use ib_cm::sim::Rng;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/cm")
}

/// The values of [`Step::message`] for each attribute.
const REQ: u8 = 0;
const MRA: u8 = 1;
const REJ: u8 = 2;
const REP: u8 = 3;
const RTU: u8 = 4;
const DREQ: u8 = 5;
const DREP: u8 = 6;
const SIDR_REQ: u8 = 7;
const SIDR_REP: u8 = 8;
const LAP: u8 = 9;
const APR: u8 = 10;
const NO_MESSAGE: u8 = 11;

fn calls(call: u8) -> Step {
    Step { call, message: NO_MESSAGE, number: 16, ..Step::default() }
}

fn arrives(message: u8) -> Step {
    Step { call: call::NONE, message, number: 16, ..Step::default() }
}

/// Returns a step in which a message with `number` arrives, for example a REJ or an MRA.
fn says(message: u8, number: u8) -> Step {
    Step { number, ..arrives(message) }
}

fn later(time: u8) -> Step {
    Step { time, ..calls(call::NONE) }
}

/// Returns each state's name and value, and the steps that lead to it.
fn states() -> Vec<(&'static str, Option<State>, Vec<Step>)> {
    let asked = [calls(call::CONNECT)];
    let answered = [asked[0], arrives(REP)];
    let connected = [answered[0], answered[1], calls(call::READY)];
    let accepted = [arrives(REQ), calls(call::ACCEPT)];
    let mra_for_req = says(MRA, 20 << 2);
    let mra_for_rep = says(MRA, 20 << 2 | 1);
    vec![
        ("req_sent", Some(State::ReqSent), asked.to_vec()),
        ("mra_req_rcvd", Some(State::MraReqRcvd), [&asked[..], &[mra_for_req]].concat()),
        ("rep_rcvd", Some(State::RepRcvd), answered.to_vec()),
        ("mra_rep_sent", Some(State::MraRepSent), [&answered[..], &[calls(call::SEND_MRA)]].concat()),
        ("active", Some(State::Established), connected.to_vec()),
        ("dreq_sent", Some(State::DreqSent), [&connected[..], &[calls(call::DISCONNECT)]].concat()),
        ("dreq_rcvd", Some(State::DreqRcvd), [&connected[..], &[arrives(DREQ)]].concat()),
        (
            "timewait",
            Some(State::Timewait),
            [&connected[..], &[arrives(DREQ), calls(call::DISCONNECT)]].concat(),
        ),
        ("orphan", None, [&connected[..], &[calls(call::DESTROY)]].concat()),
        ("req_rcvd", Some(State::ReqRcvd), vec![arrives(REQ)]),
        ("mra_req_sent", Some(State::MraReqSent), vec![arrives(REQ), calls(call::PREPARE_MRA)]),
        ("rep_sent", Some(State::RepSent), accepted.to_vec()),
        ("mra_rep_rcvd", Some(State::MraRepRcvd), [&accepted[..], &[mra_for_rep]].concat()),
        ("passive", Some(State::Established), [&accepted[..], &[arrives(RTU)]].concat()),
        (
            "passive_by_packet",
            Some(State::Established),
            [&accepted[..], &[calls(call::ESTABLISHED)]].concat(),
        ),
        ("sidr_req_sent", Some(State::SidrReqSent), vec![calls(call::SIDR_REQUEST)]),
        ("sidr_req_rcvd", Some(State::SidrReqRcvd), vec![arrives(SIDR_REQ)]),
        (
            "unlistened",
            None,
            vec![calls(call::UNLISTEN), arrives(REQ), arrives(SIDR_REQ), calls(call::LISTEN)],
        ),
    ]
}

/// Returns two seeds for each state. After reaching the state, the first lets every message arrive,
/// from a stranger and from the peer. The second only lets time pass.
fn seeds() -> Vec<(String, Vec<u8>)> {
    let all = [REQ, MRA, REJ, REP, RTU, DREQ, DREP, SIDR_REQ, SIDR_REP, LAP, APR];
    let mut seeds = Vec::new();
    for (name, _, steps) in states() {
        let mut seed = steps.clone();
        for message in all {
            seed.push(Step { flags: 1, ..arrives(message) });
            seed.push(Step { flags: 6, ..arrives(message) });
            seed.push(arrives(message));
            seed.push(Step { time: 100, ..calls(call::SIDR_REPLY) });
        }
        seed.push(calls(call::REJECT));
        seeds.push((name.to_owned(), seed));
        let mut waits = steps;
        waits.extend([later(255), later(255), calls(call::TIMEOUT), calls(call::TIMEOUT)]);
        seeds.push((format!("{name}_waits"), waits));
    }
    let bytes = |seed: Vec<Step>| seed.into_iter().flat_map(Step::emit).collect();
    seeds.into_iter().map(|(name, seed)| (name, bytes(seed))).collect()
}

#[test]
fn the_committed_seeds_are_those_of_the_driver_and_run() {
    if std::env::var_os("IB_CM_WRITE_SEEDS").is_some() {
        fs::create_dir_all(folder()).unwrap();
        for (name, seed) in seeds() {
            fs::write(folder().join(format!("{name}.bin")), seed).unwrap();
        }
    }
    for (name, seed) in seeds() {
        let committed = fs::read(folder().join(format!("{name}.bin"))).unwrap_or_default();
        assert_eq!(committed, seed, "{name}.bin: IB_CM_WRITE_SEEDS=1 writes it");
    }
    let mut files = 0;
    for entry in fs::read_dir(folder()).unwrap() {
        driver::run(&fs::read(entry.unwrap().path()).unwrap());
        files += 1;
    }
    assert!(files >= seeds().len());
}

#[test]
fn the_steps_of_each_seed_lead_to_its_state() {
    for (name, state, steps) in states() {
        let bytes: Vec<_> = steps.into_iter().flat_map(Step::emit).collect();
        assert_eq!(driver::state_after(&bytes), state, "{name}");
    }
}

#[test]
fn random_steps_leave_nothing() {
    let seeds = seeds();
    for round in 0..1500 {
        let mut rng = Rng::new(round);
        let mut bytes = vec![0; 8 * 60];
        rng.fill(&mut bytes);
        for chunk in bytes.chunks_exact_mut(8) {
            // Use few slots and known messages, most of them valid.
            (chunk[1], chunk[2]) = (chunk[1] % 4, chunk[2] % 12);
            if chunk[3] & 3 != 0 {
                chunk[3] = 0;
            }
        }
        // Often start from a state that is hard to reach.
        let (_, seed) = &seeds[rng.below(seeds.len() as u64) as usize];
        let start = &seed[..seed.len().min(8 * rng.below(5) as usize)];
        driver::run(&[start, &bytes].concat());
    }
}
