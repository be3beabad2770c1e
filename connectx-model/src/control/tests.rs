use super::*;
use crate::bus::PlainBus;
use crate::config::BAR0;
use crate::layout::eqe::eqe;
use crate::layout::iseg::initial_seg;
use crate::port::PortKind;
use crate::qp::tests::{Bed, RECV_ERROR, SEND_ERROR, SUCCESS, Shape, brief, error};

/// Executes a line and returns the complete reply.
fn say(bed: &mut Bed, line: &str) -> String {
    let now = bed.now;
    bed.fabric.control(line, now)
}

fn register(fabric: &mut Fabric<PlainBus>, offset: usize, now: Time) -> u32 {
    let mut bytes = [0; 4];
    fabric.bar_read(0, BAR0, offset as u64, &mut bytes, now);
    u32::from_be_bytes(bytes)
}

/// Every syndrome in the manual that a program can see, and an undefined one.
const SYNDROMES: [u32; 14] = [1, 2, 4, 5, 6, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x22, 0x77];

#[test]
fn a_send_ends_with_any_syndrome_that_was_asked_for() {
    for syndrome in SYNDROMES {
        let mut bed = Bed::ib();
        let mut cq = bed.cq(0, 4, 64);
        let (mut one, _two) = bed.connected([&cq, &cq], &Shape::default());
        let line = format!("completion qpn={:#x} syndrome={syndrome:#x} vendor=0x51", one.qpn);
        assert_eq!(say(&mut bed, &line), "ok waiting");
        let wqe = bed.send(&one, b"fails");
        bed.post(&mut one, &wqe);
        let entry = bed.poll(&mut cq).unwrap();
        assert_eq!(error(&entry), (SEND_ERROR, syndrome));
        assert_eq!(crate::layout::cqe::error_cqe::VENDOR_ERROR_SYNDROME.get(&entry), 0x51);
    }
}

#[test]
fn a_receive_fails_and_the_next_queue_pair_will_do() {
    let mut bed = Bed::ib();
    let (mut sent, mut got) = (bed.cq(0, 4, 64), bed.cq(0, 4, 64));
    let (mut one, mut two) = bed.connected([&sent, &got], &Shape::default());
    let memory = bed.memory(0, 1);
    bed.post_recv(&mut two, &[(memory.va, 64, memory.key)]);
    assert_eq!(say(&mut bed, "completion qpn=next syndrome=0x4 side=recv"), "ok waiting");
    let wqe = bed.send(&one, b"arrives");
    bed.post(&mut one, &wqe);
    assert_eq!(error(&bed.poll(&mut got).unwrap()), (RECV_ERROR, 4));
    assert_eq!(brief(&bed.poll(&mut sent).unwrap()).0, SEND_ERROR);
}

#[test]
fn a_command_fails_as_asked_and_then_works_again() {
    let mut bed = Bed::ib();
    assert_eq!(say(&mut bed, "command opcode=ALLOC_PD status=0x8 syndrome=0xabcd"), "ok");
    let output = bed.command(0, &crate::testing::input(0x800, 16));
    assert_eq!((output[0], &output[4..8]), (8, &[0, 0, 0xab, 0xcd][..]));
    bed.alloc_pd(0);
}

#[test]
fn held_events_arrive_when_they_are_released() {
    let mut bed = Bed::ib();
    say(&mut bed, "events hold");
    say(&mut bed, "port down");
    say(&mut bed, "port up");
    assert_eq!(bed.events(0), [0; 0]);
    assert_eq!(say(&mut bed, "events release 1"), "ok 1");
    let bus = bed.bus(0).clone();
    let first = bed.hosts[0].events.as_mut().unwrap().next(&bus).unwrap();
    assert_eq!((eqe::EVENT_TYPE.get(&first), eqe::EVENT_SUB_TYPE.get(&first)), (9, 1));
    assert_eq!(say(&mut bed, "events release"), "ok 1");
    assert_eq!(bed.events(0), [9]);
    say(&mut bed, "port down");
    assert_eq!(bed.events(0), [9]);
}

#[test]
fn a_completion_queue_overruns_and_takes_no_more() {
    let mut bed = Bed::ib();
    let mut cq = bed.cq(0, 4, 64);
    let (mut one, _two) = bed.connected([&cq, &cq], &Shape::default());
    let line = format!("cq-overrun cqn={:#x}", cq.cqn);
    assert_eq!(say(&mut bed, &line), "ok");
    assert_eq!(bed.events(0), [4]);
    let wqe = bed.nop(&one);
    bed.post(&mut one, &wqe);
    bed.pass(100_000_000);
    assert_eq!(bed.poll(&mut cq), None);
    assert_eq!(say(&mut bed, "cq-overrun cqn=0xffff"), "error completion queue 0xffff does not exist");
}

#[test]
fn a_failed_device_reports_it_in_its_health_buffer() {
    let mut bed = Bed::ib();
    let now = bed.now;
    assert_eq!(register(&mut bed.fabric, initial_seg::SYND.dword, now), 0);
    assert_eq!(say(&mut bed, "fatal syndrome=0x7"), "ok");
    let synd = register(&mut bed.fabric, initial_seg::SYND.dword, now).to_be_bytes();
    assert_eq!(synd[1], 7);
    let counter = register(&mut bed.fabric, initial_seg::HEALTH_COUNTER.dword, now);
    let later = now + 1_000_000_000;
    assert_eq!(register(&mut bed.fabric, initial_seg::HEALTH_COUNTER.dword, later), counter);
    assert_eq!(bed.events(0), [8]);
}

#[test]
fn a_function_that_was_pulled_out_is_all_ones_and_does_nothing() {
    let mut bed = Bed::ib();
    let mut cq = bed.cq(0, 4, 64);
    let (mut one, _two) = bed.connected([&cq, &cq], &Shape::default());
    assert_eq!(say(&mut bed, "remove"), "ok");
    let now = bed.now;
    assert_eq!(register(&mut bed.fabric, 0, now), u32::MAX);
    let mut config = [0; 4];
    bed.fabric.config_read(0, 0, &mut config);
    assert_eq!(config, [0xff; 4]);
    let wqe = bed.nop(&one);
    bed.post(&mut one, &wqe);
    bed.pass(100_000_000);
    assert_eq!((bed.poll(&mut cq), bed.events(0)), (None, vec![]));
    assert!(say(&mut bed, "list").starts_with("function 0 removed"));
    assert_eq!(say(&mut bed, "clear"), "ok");
    bed.fabric.config_read(0, 0, &mut config);
    assert_eq!(config[..2], [0xb3, 0x15]);
}

#[test]
fn a_line_waits_for_so_many_sends() {
    let mut bed = Bed::ib();
    let mut cq = bed.cq(0, 4, 64);
    let (mut one, _two) = bed.connected([&cq, &cq], &Shape::default());
    assert_eq!(say(&mut bed, "after send 2: port down"), "ok");
    for up in [true, false] {
        let wqe = bed.nop(&one);
        bed.post(&mut one, &wqe);
        bed.pass(50_000_000);
        assert_eq!(bed.fabric.functions[0].core.port.up, up);
    }
    assert_eq!(bed.drain(&mut cq).iter().map(|(opcode, _)| *opcode).collect::<Vec<_>>(), [SUCCESS; 2]);
    assert_eq!(bed.events(0), [9]);
}

#[test]
fn a_list_names_every_object() {
    let mut bed = Bed::ib();
    let cq = bed.cq(0, 4, 64);
    let (one, _) = bed.connected([&cq, &cq], &Shape::default());
    let list = say(&mut bed, "list");
    assert!(list.contains(&format!("qp function=0 qpn={:#x} service=Rc state=Rts", one.qpn)), "{list}");
    assert!(list.contains(&format!("cq function=0 cqn={:#x} state=ok", cq.cqn)), "{list}");
    assert!(list.ends_with("\nok"));
}

#[test]
fn complaints_are_handed_over_once_and_forgotten() {
    let mut bed = Bed::ib();
    bed.command(0, &crate::testing::input(0x999, 16));
    assert_eq!(say(&mut bed, "complaints"), "ok 1");
    let taken = say(&mut bed, "complaints take");
    assert!(taken.contains("CommandOpcode") && taken.ends_with("\nok 1"), "{taken}");
    assert_eq!((say(&mut bed, "complaints take"), bed.fabric.complaint_count()), ("ok 0".into(), 0));
}

#[test]
fn a_script_skips_comments_and_names_the_malformed_line() {
    let mut bed = Bed::new(PortKind::Ib, 2);
    let now = bed.now;
    assert_eq!(bed.fabric.script("# ports\n\nfunction 1 port down\n", now), Ok(()));
    assert!(bed.fabric.functions[0].core.port.up && !bed.fabric.functions[1].core.port.up);
    assert_eq!(bed.fabric.script("port down\ndance\n", now), Err("line 2: unknown verb \"dance\"".into()));
    assert_eq!(say(&mut bed, "function 2 remove"), "error the function does not exist");
    bed.events(0);
}

#[test]
fn sections_of_the_trace_are_compared() {
    use crate::trace::Trace;
    let path = std::env::temp_dir().join(format!("connectx-control-compare-{}", std::process::id()));
    let mut bed = Bed::ib();
    bed.fabric.functions[0].core.log.trace = Trace::to_file(&path).unwrap();
    for (mark, name) in [("one", "ALLOC_PD"), ("two", "ALLOC_PD"), ("three", "ALLOC_XRCD")] {
        assert_eq!(say(&mut bed, &format!("trace mark {mark}")), "ok");
        bed.fabric.functions[0].core.log.trace.line(|| format!("command name={name} out=0x3"));
    }
    assert_eq!(say(&mut bed, "trace compare one two"), "ok 1 lines");
    let answer = say(&mut bed, "trace compare one three");
    let lines: Vec<&str> = answer.lines().collect();
    assert_eq!(lines.last(), Some(&"ok different"));
    assert!(
        lines.len() > 2 && lines[..lines.len() - 1].iter().all(|line| line.starts_with("| ")),
        "{answer}"
    );
    assert!(say(&mut bed, "trace compare one four").starts_with("error the trace has no section \"four\""));
    std::fs::remove_file(&path).unwrap();
}
