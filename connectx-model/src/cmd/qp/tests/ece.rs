//! Connection (ECE) options of queue pairs.

use super::super::ece::{OPTIONS, VERSION_1};
use super::*;
use crate::layout::qp::{query_qp_in, rst2init_qp_out, sqerr2rts_qp_in};

const HERE: u32 = VERSION_1 | OPTIONS;

/// Creates a queue pair that requests these options. Returns its number and the offered options.
fn asking(bench: &mut Bench, service: Service, options: u32) -> (u32, u32) {
    let mut input = request(bench, service);
    create_qp_in::ECE.set(&mut input, options);
    let output = bench.ok(input);
    (create_qp_out::QPN.get32(&output), create_qp_out::ECE.get32(&output))
}

/// Executes a transition with these options. Returns the options that the device accepts.
fn setting(bench: &mut Bench, opcode: u16, qpn: u32, options: u32) -> u32 {
    let mut command = step(opcode, qpn);
    rst2init_qp_in::ECE.set(&mut command, options);
    rst2init_qp_out::ECE.get32(&bench.ok(command))
}

fn queried(bench: &mut Bench, qpn: u32) -> u32 {
    let mut command = input(0x50b, query_qp_in::SIZE);
    query_qp_in::QPN.set(&mut command, qpn);
    query_qp_out::ECE.get32(&bench.ok(command))
}

#[test]
fn a_new_queue_pair_offers_options_to_a_driver_that_knows_of_them() {
    let mut bench = Bench::new(PortKind::Ib);
    for service in [Service::Rc, Service::Uc, Service::XrcInitiator] {
        let (qpn, options) = asking(&mut bench, service, VERSION_1);
        assert_eq!((options, queried(&mut bench, qpn)), (HERE, HERE), "{service:?}");
        assert_eq!(asking(&mut bench, service, 0).1, 0, "{service:?}");
    }
    assert_eq!(asking(&mut bench, Service::Ud, VERSION_1).1, 0, "datagrams have no connection");
    assert_eq!(asking(&mut bench, Service::Rc, 3 << 28 | 0x7f0).1, HERE, "a later version");
}

#[test]
fn transitions_take_the_options_that_both_sides_have() {
    let mut bench = Bench::new(PortKind::Ib);
    let (qpn, _) = asking(&mut bench, Service::Rc, VERSION_1);
    assert_eq!(setting(&mut bench, RST2INIT, qpn, u32::MAX), HERE);
    assert_eq!(setting(&mut bench, INIT2RTR, qpn, VERSION_1 | 0x10 | 0x1), VERSION_1 | 0x1);
    assert_eq!(queried(&mut bench, qpn), VERSION_1 | 0x1);
    assert_eq!(setting(&mut bench, RTR2RTS, qpn, 0), 0);
    assert_eq!(queried(&mut bench, qpn), VERSION_1 | 0x1, "no options change none");
}

#[test]
fn options_without_a_version_are_none() {
    let mut bench = Bench::new(PortKind::Ib);
    let (qpn, _) = asking(&mut bench, Service::Rc, VERSION_1);
    assert_eq!(setting(&mut bench, RST2INIT, qpn, OPTIONS), 0);
    assert_eq!(queried(&mut bench, qpn), 0);
}

#[test]
fn a_transition_that_is_refused_leaves_the_options() {
    let mut bench = Bench::new(PortKind::Ib);
    let (qpn, _) = asking(&mut bench, Service::Rc, VERSION_1);
    let mut command = step(INIT2RTR, qpn);
    rst2init_qp_in::ECE.set(&mut command, VERSION_1);
    bench.refused(command, Status::BadQpState, Rule::QpTransition);
    assert_eq!(queried(&mut bench, qpn), HERE);
}

#[test]
fn a_transition_without_options_has_none() {
    let mut bench = Bench::new(PortKind::Ib);
    let qpn = create(&mut bench, Service::Rc);
    let mut command = step(SQERR2RTS, qpn);
    assert_eq!(command.len(), sqerr2rts_qp_in::SIZE);
    rst2init_qp_in::ECE.set(&mut command, VERSION_1);
    bench.refused(command, Status::BadParam, Rule::CommandReserved);
}
