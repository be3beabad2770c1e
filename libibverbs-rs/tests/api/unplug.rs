//! A device that the kernel removes while in use (`disassociate_ucontext`, as on mlx5): waits end,
//! calls fail with `EIO`, and every object can be released.

use std::thread;

use crate::common::setup::{Setup, ready};
use crate::common::{Kind, World, within};
use verbs::{
    AsyncEventType, Context, CqInit, Element, Errno, Provider, QpState, RemoteAccess, SendFlags, SendOp,
};

both! {
    what_waits_for_an_unplugged_device_ends
    memory_in_flight_returns_from_an_unplugged_device
}

/// Raises the event for an unplugged device and closes its event files as the kernel does.
fn unplug(world: &World) {
    world.raise_async(0, AsyncEventType::DEVICE_FATAL.0);
    let mut state = world.state();
    state.live.values_mut().for_each(|object| object.channel = None);
    state.refuse_reg = Some(Errno::IO);
    state.refuse_move = Some((QpState::ERR, Errno::IO));
    drop(state);
    world.hang_up();
}

fn what_waits_for_an_unplugged_device_ends<P: Provider>(world: &World, context: Context<P>) {
    let events = context.async_events().unwrap();
    let channel = context.create_comp_channel().unwrap();
    let mut cq = context.create_cq(&CqInit { channel: Some(&channel), ..CqInit::new(4) }).unwrap();
    cq.req_notify(false).unwrap();
    let waiting = thread::spawn(move || (channel.wait(None).map_err(|error| error.errno), channel));
    let watching = thread::spawn(move || {
        let told = events.wait(None).unwrap();
        (told, events.wait(None).map_err(|error| error.errno), events.next_event().is_err())
    });
    unplug(world);
    let (waited, channel) = within("the wait for a completion", move || waiting.join().unwrap());
    assert_eq!(waited, Err(Errno::IO));
    let (told, then, fails_again) = within("the wait for an event", move || watching.join().unwrap());
    let told = told.map(|event| (event.element, event.event_type));
    assert_eq!(told, Some((Element::Device, AsyncEventType::DEVICE_FATAL)));
    assert_eq!((then, fails_again), (Err(Errno::IO), true));
    // A channel fails on every call.
    assert_eq!(channel.next_event().unwrap_err().errno, Errno::IO);
    cq.close().unwrap();
    channel.close().unwrap();
    context.close().unwrap();
    world.assert_empty();
}

fn memory_in_flight_returns_from_an_unplugged_device<P: Provider>(world: &World, context: Context<P>) {
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(&CqInit::new(64)).unwrap();
    let mut s = Setup { qp: ready(&pd, &cq), cq, pd };
    let _events = context.async_events().unwrap();
    let exposed = s.pd.expose(s.buf(b"peers"), RemoteAccess::READ).unwrap();
    let (out, room) = (s.buf(b"out"), s.buf(b"room"));
    s.qp.post_send_buf(SendOp::Send, SendFlags::empty(), out, ..).unwrap();
    s.qp.post_recv_buf(room, ..).unwrap();
    unplug(world);
    assert_eq!(s.pd.alloc_buf(8).unwrap_err().errno, Errno::IO);
    let refused = s.qp.to_error().unwrap_err();
    assert_eq!(refused.error.errno, Errno::IO);
    // Nothing completes any more. The kernel confirms the destruction of the objects.
    assert!(s.cq.poll_one().is_none());
    assert_eq!(refused.handle.dismantle().unwrap().len(), 2);
    assert_eq!(&exposed.unexpose().unwrap()[..], b"peers");
    s.cq.close().unwrap();
    assert_eq!(world.census(), [Kind::Pd]);
    s.pd.close().unwrap();
}
