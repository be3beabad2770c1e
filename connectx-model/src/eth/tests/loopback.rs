//! Frames that a function sends to itself.

use super::*;
use crate::layout::vport::{modify_nic_vport_context_in as modify, nic_vport_context};
use crate::state::eth::Traffic;

const GROUP: [u8; 6] = [1, 0x50, 0x56, 0x19, 0x20, 0xa7];
const BROADCAST: [u8; 6] = [0xff; 6];

/// Returns a host with posted receives. Its TIR and its send queue have different transport
/// domains.
fn host() -> Host {
    let mut one = Host::new(0);
    let other = one.make(Input::new(0x816, &mkey::alloc_transport_domain_in::TABLE));
    let tisn = one.function.core.eth.sqs[&one.sqn].tisn.unwrap();
    one.function.core.eth.tises.get_mut(&tisn).unwrap().domain = other;
    one.post_receives(8);
    one
}

/// Sends a frame to this address. Returns whether the frame is looped back, and whether it leaves
/// the port.
fn sent(one: &mut Host, to: [u8; 6]) -> (bool, bool) {
    one.post(one.send(&frame(to, 100)));
    let leaves = std::iter::from_fn(|| one.function.next_frame()).count() == 1;
    let back = one.completion(1).is_some_and(|entry| cqe::BYTE_CNT.get32(&entry) == 100);
    assert!(one.function.take_complaints().is_empty());
    (back, leaves)
}

fn disable(one: &mut Host, groups: bool, unicast: bool) {
    one.make(
        Input::new(0x755, &modify::TABLE)
            .set(modify::DISABLE_MC_LOCAL_LB, 1u32)
            .set(modify::DISABLE_UC_LOCAL_LB, 1u32)
            .part(modify::NIC_VPORT_CONTEXT, |context| {
                nic_vport_context::DISABLE_MC_LOCAL_LB.set(context, groups);
                nic_vport_context::DISABLE_UC_LOCAL_LB.set(context, unicast);
            }),
    );
}

/// Lets the TIR receive frames from its own transport domain.
fn hear_own_domain(one: &mut Host, bits: u32) {
    let tirn = one.tirn;
    one.make(
        Input::new(0x901, &commands::modify_tir_in::TABLE)
            .set(commands::modify_tir_in::TIRN, tirn)
            .set(commands::modify_tir_in::SELF_LB_EN, 1u32)
            .part(commands::modify_tir_in::CTX, |context| tirc::SELF_LB_BLOCK.set(context, bits)),
    );
}

#[test]
fn frames_to_a_group_loop_back_to_other_domains_and_leave() {
    let mut one = host();
    let heard = one.function.core.eth.counters.received;
    assert_eq!(sent(&mut one, GROUP), (true, true));
    assert_eq!(sent(&mut one, BROADCAST), (true, true));
    assert_eq!(one.buffer(0, 100), frame(GROUP, 100));
    let received = one.function.core.eth.counters.received;
    assert_eq!((heard, received), (Traffic::default(), one.function.core.eth.counters.sent));
}

#[test]
fn frames_to_an_own_address_loop_back_and_others_leave() {
    let mut one = host();
    let own = one.function.core.port.mac();
    assert_eq!(sent(&mut one, own), (true, false));
    assert_eq!(sent(&mut one, PEER), (false, true));
    one.function.core.port.lists[0] = [&[0, 0][..], &PEER].concat();
    assert_eq!(sent(&mut one, PEER), (true, false), "the driver has listed it");
    one.function.core.port.lists = [vec![], [&[0, 0][..], &PEER].concat(), vec![]];
    assert_eq!(sent(&mut one, PEER), (false, true), "not as a unicast address");
}

#[test]
fn frames_that_the_ports_context_excludes_do_not_loop_back() {
    let mut one = host();
    let own = one.function.core.port.mac();
    disable(&mut one, true, false);
    assert_eq!(sent(&mut one, GROUP), (false, true));
    assert_eq!(sent(&mut one, own), (true, false));
    disable(&mut one, false, true);
    assert_eq!(sent(&mut one, GROUP), (true, true));
    assert_eq!(sent(&mut one, own), (false, true));
}

#[test]
fn a_tir_receives_frames_of_its_own_domain_by_its_bits_and_all_of_others() {
    let mut one = Host::new(0);
    one.post_receives(8);
    let own = one.function.core.port.mac();
    let mut heard = |bits| {
        hear_own_domain(&mut one, bits);
        [GROUP, own].map(|to| sent(&mut one, to))
    };
    let [group, unicast] = [(false, true), (false, false)];
    assert_eq!(heard(0), [group, unicast], "an own address never leaves");
    assert_eq!(heard(1), [group, (true, false)]);
    assert_eq!(heard(2), [(true, true), unicast]);
    assert_eq!(heard(3), [(true, true), (true, false)]);
    let counters = one.function.core.eth.counters;
    assert_eq!((counters.unwanted, counters.out_of_buffer), (0, 0));
    let mut other = host();
    hear_own_domain(&mut other, 0);
    assert_eq!(sent(&mut other, GROUP), (true, true));
}

#[test]
fn a_port_that_is_down_does_not_hear_itself() {
    let mut one = host();
    one.post(one.send(&frame(GROUP, 100)));
    one.function.core.set_port_enabled(false);
    while one.function.next_frame().is_some() {}
    assert!(one.completion(1).is_none());
}
