//! `ibv_rc_pingpong` with features that no soft or kernel device here has. It uses the device from
//! the library's tests, which is simulated in this process.

#[path = "../../libibverbs-rs/tests/common/mod.rs"]
mod common;

use std::sync::Arc;

use common::{Kind, World};
use rdma_tools::console::{Console, Failed};
use rdma_tools::pingpong::endpoint::{Endpoint, SEND_WRID, To};
use rdma_tools::pingpong::options::Options;
use rdma_tools::pingpong::setup::{self, Setup};
use verbs::state::Init;
use verbs::{DeviceAttrEx, Errno, OdpGeneralCaps, OdpTransportCaps, RtrAttr, RtsAttr, SendFlags};

type Built = Result<(Setup, Endpoint<Init>), Failed>;

/// Builds all objects and returns the text on standard error.
fn build(name: &str, extended: fn(&mut DeviceAttrEx), options: &Options) -> (Arc<World>, Built, String) {
    let (world, device) = common::world(name);
    world.state().extended = Some(extended);
    let mut console = Console::captured("pp");
    let built = setup::build(&device, options, &mut console);
    (world, built, console.complaints())
}

fn in_device_memory() -> Options {
    Options { device_memory: true, size: 8000, rx_depth: 3, ..Options::default() }
}

#[test]
fn a_message_in_device_memory_is_posted_by_its_offset_and_never_inline() {
    let extend = |attr: &mut DeviceAttrEx| attr.max_dm_size = 8000;
    let (world, built, complaints) = build("paper::dm", extend, &in_device_memory());
    assert_eq!(complaints, "");
    let (setup, mut endpoint) = built.expect("all objects");
    assert_eq!(world.census(), [Kind::Pd, Kind::Mr, Kind::Cq, Kind::Qp, Kind::Dm]);
    let lkey = |requests: &[common::Request]| requests.iter().map(|request| request.sge[0].2).next();
    assert!(matches!(endpoint.post_recv(2), (2, None)));
    let lkey = lkey(&world.state().requests).expect("two receives");
    let endpoint = endpoint.connect(&[(RtrAttr::unconnected(), RtsAttr::default())]).expect("a connection");
    let (mut qps, _, message, _) = endpoint.into_parts();
    let flags = SendFlags::SIGNALED | SendFlags::INLINE;
    message.post_send(&mut qps[0], To::Peer, SEND_WRID as u32, flags).expect("a send that is not inline");
    let requests = std::mem::take(&mut world.state().requests);
    let posted: Vec<_> = requests.iter().map(|request| (request.wr_id, request.flags)).collect();
    assert_eq!(posted[2..], [(SEND_WRID, SendFlags::SIGNALED)]);
    for request in &requests {
        assert_eq!((&request.sge[..], &request.inline[..]), (&[(0, 8000, lkey)][..], &[][..]));
    }
    drop((qps, message, setup));
    world.assert_empty();
}

#[test]
fn a_message_is_copied_to_device_memory_and_back() {
    let extend = |attr: &mut DeviceAttrEx| attr.max_dm_size = 1 << 20;
    let (world, built, _) = build("paper::copies", extend, &in_device_memory());
    let (setup, mut endpoint) = built.expect("all objects");
    let message = endpoint.message();
    message.buffer().fill(5);
    message.copy_to_device().expect("a copy");
    message.buffer().fill(6);
    message.copy_from_device().expect("a copy");
    assert_eq!(message.buffer().first_wrong(5), None);
    drop((endpoint, setup));
    world.assert_empty();
}

#[test]
fn a_device_that_fetches_no_pages_ahead_is_used_nevertheless() {
    let extend = |attr: &mut DeviceAttrEx| {
        attr.odp_caps.general_caps = OdpGeneralCaps::SUPPORT;
        attr.odp_caps.rc_odp_caps = OdpTransportCaps::SEND | OdpTransportCaps::RECV;
    };
    let options = Options { odp: true, prefetch: true, ..Options::default() };
    let (_, built, complaints) = build("paper::prefetch", extend, &options);
    assert!(built.is_ok());
    let errno = Errno::OPNOTSUPP.raw();
    let line = format!("Couldn't prefetch MR({errno}). Continue anyway\npp: advise_mr on paper::prefetch: ");
    assert!(complaints.starts_with(&line) && complaints.lines().count() == 2, "{complaints}");
}

#[test]
fn a_parent_domain_holds_the_queue_and_lies_in_a_domain_of_its_own() {
    let options = Options { cc_unprotected: true, ..Options::default() };
    let (world, built, complaints) = build("paper::parent", |_| {}, &options);
    assert_eq!(complaints, "");
    let (setup, endpoint) = built.expect("all objects");
    let Setup { context, channel: _, pd, base_pd, cq, timestamp_mask: _ } = setup;
    let base = base_pd.expect("a domain below the parent domain").close().expect_err("it is in use");
    assert_eq!(base.error.cause, verbs::Cause::InUse { by: "parent domains" });
    drop((context, endpoint, base));
    let parent = pd.close().expect_err("it is in use");
    assert_eq!(parent.error.cause, verbs::Cause::InUse { by: "completion queues" });
    cq.close().expect("its queue pair is gone");
    parent.handle.close().expect("its queue is gone");
    world.assert_empty();
}
