//! Domain commands: rejections and destruction.

use super::*;
use crate::cmd::bench::{Bench, input, naming};
use crate::complaint::Rule;
use crate::port::PortKind;

#[test]
fn a_domain_is_given_back_once() {
    for (alloc, dealloc) in [(0x800, 0x801), (0x80e, 0x80f), (0x816, 0x817)] {
        let mut bench = Bench::new(PortKind::Ib);
        let output = bench.ok(input(alloc, 16));
        let number = alloc_pd_out::PD.get32(&output);
        bench.ok(naming(dealloc, number));
        bench.refused(naming(dealloc, number), Status::BadResource, Rule::CommandObject);
        let again = alloc_pd_out::PD.get32(&bench.ok(input(alloc, 16)));
        assert_ne!(again, number, "a stale number does not soon name another");
    }
}

#[test]
fn bits_that_mean_nothing_are_refused() {
    let mut bench = Bench::new(PortKind::Ib);
    let mut command = input(0x800, 16);
    command[8] = 1;
    bench.refused(&command, Status::BadParam, Rule::CommandReserved);
}

#[test]
fn a_domain_that_is_used_stays() {
    let mut bench = Bench::new(PortKind::Ib);
    let (pd, xrcd) = (bench.pd, bench.xrcd);
    let cqn = bench.cq();
    let srq = bench.create_xrc_srq(cqn);
    let srqn = alloc_pd_out::PD.get32(&bench.ok(srq));
    bench.refused(naming(0x801, pd), Status::ResourceBusy, Rule::CommandBusy);
    bench.refused(naming(0x80f, xrcd), Status::ResourceBusy, Rule::CommandBusy);
    bench.ok(naming(0x706, srqn));
    bench.ok(naming(0x801, pd));
    bench.ok(naming(0x80f, xrcd));
}
