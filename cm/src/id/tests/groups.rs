//! Multicast groups.

use uverbs_abi::rdma_user_cm::RdmaUcmUdParam;

use super::*;

#[test]
fn events_of_a_group_name_the_id_and_the_membership() {
    let world = World::new();
    let id = world.id(9, PortSpace::UDP);
    world.replies([Reply::bytes(&[3, 0, 0, 0])]);
    let group = id.join_multicast(([239, 1, 2, 3], 0), false).unwrap();
    let ud = RdmaUcmUdParam { qp_num: 0xff_ffff, qkey: PortSpace::UDP_QKEY, ..RdmaUcmUdParam::default() };
    let joined = RdmaUcmEventResp {
        param: RdmaUcmEventRespParam::from_ud(ud),
        ..event(group.0, EventType::MULTICAST_JOIN, 0)
    };
    let found = world.event(&joined).unwrap();
    assert_eq!(found.id, id.key());
    match found.kind {
        EventKind::MulticastJoin { group: joined, ud } => {
            assert_eq!((joined, ud.qp_num, ud.qkey), (group, 0xff_ffff, PortSpace::UDP_QKEY));
        }
        other => panic!("{other:?}"),
    }
    let lost = world.event(&event(group.0, EventType::MULTICAST_ERROR, -5)).unwrap();
    assert!(lost.ok().unwrap_err().to_string().contains("the group was not joined, or is lost"));

    world.replies([Reply::ok()]);
    id.leave_multicast(group).unwrap();
    assert_eq!(world.kernel.seen().last().unwrap(), "17: in 00000000000000000300000000000000, out 4");
    assert!(world.event(&joined).is_none());
    assert_eq!(id.leave_multicast(group).unwrap_err().errno, Errno::ADDRNOTAVAIL);
    world.end(id);
}

#[test]
fn a_group_ends_with_its_id() {
    let world = World::new();
    let id = world.id(9, PortSpace::UDP);
    world.replies([Reply::bytes(&[3, 0, 0, 0])]);
    let group = id.join_multicast(([239, 1, 2, 3], 0), true).unwrap();
    world.end(id);
    assert!(world.event(&event(group.0, EventType::MULTICAST_JOIN, 0)).is_none());
    assert!(table::find(group.0.0, None).is_none());
}

#[test]
fn a_group_that_is_not_joined_leaves_nothing() {
    let world = World::new();
    let id = world.id(9, PortSpace::UDP);
    world.replies([Reply::Errno(Errno::INVAL)]);
    let error = id.join_multicast(([192, 0, 2, 1], 0), false).unwrap_err();
    assert!(error.to_string().contains("no group's"), "{error}");
    world.end(id);
    let old = World::with_ib(false);
    let id = old.id(9, PortSpace::UDP);
    assert_eq!(id.join_multicast(([239, 1, 2, 3], 0), true).unwrap_err().errno, Errno::OPNOTSUPP);
    old.end(id);
}

#[test]
fn kinds_of_ids_and_of_groups_do_not_mix() {
    let world = World::new();
    let id = world.id(9, PortSpace::UDP);
    world.replies([Reply::bytes(&[3, 0, 0, 0])]);
    let group = id.join_multicast(([239, 1, 2, 3], 0), false).unwrap();
    assert!(world.event(&event(group.0, EventType::ESTABLISHED, 0)).is_none());
    assert!(world.event(&event(id.key().0, EventType::MULTICAST_JOIN, 0)).is_none());
    world.end(id);
}
