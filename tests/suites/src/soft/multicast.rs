//! Multicast between soft and the kernel's rxe, both members of one group.
//!
//! Both ends are in this process. The soft device belongs to a thread in the network namespace at
//! its end of the wire.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use nix::sched::{CloneFlags, setns};
use verbs::{AhAttr, Context, GidEntry, Provider, QpType, RecvWr, SendOp, UdAddr, Wc, WcOpcode, WcStatus};
use verbs_fixtures::fabric::{
    Arena, PATIENCE, QKEY, Remote, Shape, connect_from, create_qp, imm, post_recv, post_send, signalled,
    wait_one,
};
use verbs_harness::runner::{Case, CaseResult, fail};

use super::ends::SUITE;
use super::wire::{Family, NAMESPACE, RXE, Wire};

pub(super) fn cases() -> impl Iterator<Item = Case> {
    let run = || each_hears_the_other_in_a_group();
    [Case::new(SUITE, "multicast_each_member_hears_the_other", run)].into_iter()
}

/// The multicast group.
const GROUP: Ipv4Addr = Ipv4Addr::new(239, 9, 8, 1);

/// The immediate data in messages from rxe.
const OF_RXE: u32 = 1;
/// The immediate data in messages from the soft device.
const OF_SOFT: u32 = 2;

fn each_hears_the_other_in_a_group() -> CaseResult {
    let wire = Wire::new(1500)?;
    let rxe = verbs::devices()?.find(RXE)?.open()?;
    let (_, index) = wire.at_rxe(Family::V4)?;
    let Some(source) = rxe.query_gid_entry(1, index)? else { return fail("rxe has lost its GID") };
    // rxe leaves the IP-level join to another program, usually a connection manager.
    let IpAddr::V4(local) = Family::V4.rxe() else { return fail("an IPv6 address") };
    let joined = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    joined.join_multicast_v4(&GROUP, &local)?;

    let ((to_soft, from_rxe), (to_rxe, from_soft)) = (mpsc::channel(), mpsc::channel());
    let soft = thread::spawn(move || {
        setns(File::open(format!("/run/netns/{NAMESPACE}"))?, CloneFlags::CLONE_NEWNET)?;
        let context = verbs::soft::bind(Family::V4.soft())?.open()?;
        let source = context.find_gid(1)?;
        member(&context, &source, &to_rxe, &from_rxe, OF_SOFT, OF_RXE)
    });
    let ours = member(&rxe, &source, &to_soft, &from_soft, OF_RXE, OF_SOFT);
    let theirs = soft.join().unwrap_or_else(|_| fail("the soft end panicked"));
    ours.map_err(|stop| stop.context("rxe"))?;
    theirs.map_err(|stop| stop.context("soft"))
}

/// Runs one end: attaches a queue pair to the group, notifies the other end, and sends once both
/// are attached. Receives until the other end's message arrives.
fn member<P: Provider>(
    context: &Context<P>,
    source: &GidEntry,
    tell: &Sender<()>,
    hear: &Receiver<()>,
    own: u32,
    other: u32,
) -> CaseResult {
    let (pd, shape) = (context.alloc_pd()?, Shape::for_type(QpType::UD));
    let mut cq = context.create_cq(&verbs::CqInit::new(16))?;
    let qp = create_qp(&pd, &cq, &shape)?;
    let mut qp = connect_from(source, qp, &shape, Remote { qp_num: 0, psn: 0 })?;
    let arena = Arena::new(&pd, 256)?;
    qp.attach_mcast(&GROUP.into(), 0)?;
    for wr_id in [100, 101, 102, 103] {
        post_recv(&mut qp, &[RecvWr { wr_id, sge: &[arena.sge(64..128)] }])?;
    }
    let ah = pd.create_ah(&AhAttr::new(source, GROUP.into()))?;
    let lost = |_| verbs_harness::runner::Stop::Failed("the other end has failed".to_owned());
    tell.send(()).map_err(|_| lost(()))?;
    hear.recv_timeout(PATIENCE).map_err(|_| lost(()))?;
    let op = SendOp::UdSendWithImm { to: ah.to(UdAddr::MULTICAST_QPN, QKEY), imm_data: own };
    post_send(&mut qp, &[signalled(1, op, &[arena.sge(0..8)])])?;
    loop {
        let wc: Wc = wait_one(&mut cq)?;
        assert_eq!(wc.status, WcStatus::SUCCESS, "{wc:?}");
        // A member receives its own messages as well.
        if wc.opcode == WcOpcode::RECV && imm(&wc) == Some(other) {
            break;
        }
    }
    // Keeps this end alive until the other end has received its message.
    tell.send(()).map_err(|_| lost(()))?;
    hear.recv_timeout(PATIENCE).map_err(|_| lost(()))?;
    Ok(())
}
