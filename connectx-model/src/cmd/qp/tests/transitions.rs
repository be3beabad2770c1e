//! Tests every transition command in every state. IBTA figure 124 is the table of expected results.

use super::*;

/// The transition commands, each with the state that it requires (`None` for any) and the state
/// afterwards.
const COMMANDS: [(u16, Option<State>, State); 9] = [
    (RST2INIT, Some(State::Reset), State::Init),
    (INIT2INIT, Some(State::Init), State::Init),
    (INIT2RTR, Some(State::Init), State::Rtr),
    (RTR2RTS, Some(State::Rtr), State::Rts),
    (RTS2RTS, Some(State::Rts), State::Rts),
    (SQERR2RTS, Some(State::Sqe), State::Rts),
    (SQD2RTS, Some(State::Sqd), State::Rts),
    (TO_ERR, None, State::Err),
    (TO_RST, None, State::Reset),
];

#[test]
fn a_queue_pair_goes_only_where_the_figure_has_an_arrow() {
    for service in ALL {
        for from in [State::Reset, State::Init, State::Rtr, State::Rts, State::Sqd, State::Err] {
            for (opcode, begins, ends) in COMMANDS {
                let mut bench = Bench::new(PortKind::Ib);
                let qpn = in_state(&mut bench, service, from);
                let (status, _) = bench.send(&step(opcode, qpn));
                let rules: Vec<_> = bench.function.take_complaints().iter().map(|c| c.rule).collect();
                let (state, _) = bench.function.engine.query_qp(Qpn(qpn)).unwrap();
                let case = format!("{service:?} {from:?} {opcode:#x}");
                if begins.is_none_or(|begins| begins == from) {
                    assert_eq!((status, rules), (0, vec![]), "{case}");
                    // The figure has no transition from RESET to the error state, because nothing
                    // can be posted in RESET.
                    let ends = if (from, ends) == (State::Reset, State::Err) { State::Reset } else { ends };
                    assert_eq!(state, ends, "{case}");
                } else {
                    // A queue pair may fail without the driver's knowledge, so the driver has
                    // broken no rule.
                    let blamed = if from == State::Err { vec![] } else { vec![Rule::QpTransition] };
                    assert_eq!((status, rules), (Status::BadQpState as u8, blamed), "{case}");
                    assert_eq!(state, from, "{case}");
                }
            }
        }
    }
}

#[test]
fn optional_attributes_are_taken_where_the_mask_names_them() {
    let mut bench = Bench::new(PortKind::Ib);
    let qpn = in_state(&mut bench, Service::Rc, State::Rts);
    let changes = [(qpc::RRE, 0), (qpc::RWE, 0), (qpc::RAE, 1), (qpc::ATOMIC_MODE, 1), (qpc::MIN_RNR_NAK, 1)];
    let mut command = with(&step(RTS2RTS, qpn), &changes);
    bench.ok(&command);
    let context = asked(&mut bench, qpn);
    assert_eq!((qpc::RRE.get(&context), qpc::RAE.get(&context)), (1, 0), "nothing was named");
    // Selects remote reads and the RNR timer.
    rst2init_qp_in::OPT_PARAM_MASK.set(&mut command, 1u32 << 1 | 1 << 6);
    bench.ok(&command);
    let context = asked(&mut bench, qpn);
    assert_eq!((qpc::RRE.get(&context), qpc::RWE.get(&context), qpc::RAE.get(&context)), (0, 1, 0));
    assert_eq!(qpc::MIN_RNR_NAK.get(&context), 1);
    // Selects remote atomics.
    rst2init_qp_in::OPT_PARAM_MASK.set(&mut command, 1u32 << 2);
    bench.ok(&command);
    let (_, attr) = bench.function.engine.query_qp(Qpn(qpn)).unwrap();
    assert_eq!(attr.access, roce::engine::Access::REMOTE_WRITE | roce::engine::Access::REMOTE_ATOMIC);
}

#[test]
fn a_counter_set_is_bound_with_nothing_else_said() {
    for service in [Service::Rc, Service::Ud, Service::Uc, Service::XrcTarget] {
        let mut bench = Bench::new(PortKind::Ib);
        let qpn = in_state(&mut bench, service, State::Rts);
        let mut command = input(RTS2RTS, rst2init_qp_in::SIZE);
        rst2init_qp_in::QPN.set(&mut command, qpn);
        rst2init_qp_in::OPT_PARAM_MASK.set(&mut command, 1u32 << 25);
        let command = with(&command, &[(qpc::COUNTER_SET_ID, 7)]);
        bench.ok(command);
        let context = asked(&mut bench, qpn);
        assert_eq!((qpc::COUNTER_SET_ID.get(&context), qpc::STATE.get(&context)), (7, 3));
    }
}

#[test]
fn a_reset_queue_pair_begins_anew() {
    let mut bench = Bench::new(PortKind::Ib);
    let qpn = in_state(&mut bench, Service::Rc, State::Rts);
    bench.function.core.qps.get_mut(&qpn).unwrap().run.recv.fetched = 9;
    bench.ok(naming(TO_RST, qpn));
    assert_eq!(bench.function.core.qps.get(&qpn).unwrap().run.recv.fetched, 0);
    for opcode in [RST2INIT, INIT2RTR, RTR2RTS] {
        bench.ok(step(opcode, qpn));
    }
    let context = asked(&mut bench, qpn);
    assert_eq!((qpc::STATE.get(&context), qpc::NEXT_SEND_PSN.get(&context)), (3, 0x22_2222));
}

#[test]
fn a_send_queue_that_failed_goes_on() {
    let mut bench = Bench::new(PortKind::Ib);
    let qpn = in_state(&mut bench, Service::Ud, State::Rts);
    // Posts a datagram that uses a nonexistent key.
    let function = &mut bench.function;
    let to = roce::engine::UdDestination { path: roce::engine::Path::default(), qpn: 5, qkey: 0 };
    let sges = [roce::engine::Sge { addr: 0, length: 8, lkey: 0xffff_ff00 }];
    let wr = roce::engine::SendWr {
        wr_id: 0,
        op: roce::engine::SendOp::Datagram { to, imm: None },
        flags: roce::engine::SendFlags::default(),
        payload: roce::engine::Payload::Sges(&sges),
        remote_srq: 0,
    };
    function.engine.post_send(Qpn(qpn), &wr, function.core.now, &mut function.core).unwrap();
    let urgency = roce::engine::Urgency::All;
    function.engine.poll_transmit(function.core.now, urgency, &mut [0; 4096], &mut function.core);
    function.take_complaints();
    assert_eq!(qpc::STATE.get(&asked(&mut bench, qpn)), 4);
    bench.unlucky(step(RTS2RTS, qpn), Status::BadQpState);
    bench.ok(step(SQERR2RTS, qpn));
    assert_eq!(qpc::STATE.get(&asked(&mut bench, qpn)), 3);
}
