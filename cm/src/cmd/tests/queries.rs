//! Commands whose replies are structs: complete, as short as from an older kernel, truncated
//! anywhere, or invalid.

use uverbs_abi::Be16;
use uverbs_abi::ib_user_sa::{IbUserPathRec, IbUserServiceRec};
use uverbs_abi::ib_user_verbs::IbUverbsQpAttr;
use uverbs_abi::rdma_user_cm::{
    RdmaUcmConnParam, RdmaUcmEce, RdmaUcmEventResp, RdmaUcmEventRespParam, RdmaUcmQueryAddrResp,
    RdmaUcmQueryRouteResp,
};
use verbs::{Guid, QpAttrMask, QpState};

use super::*;

const GUID: Guid = Guid(0x5054_00ff_fe12_3456);

fn addr_reply() -> RdmaUcmQueryAddrResp {
    let (local, src_size) = v4().to_storage().unwrap();
    let (peer, dst_size) = ib().to_storage().unwrap();
    RdmaUcmQueryAddrResp {
        node_guid: GUID.0.to_be(),
        port_num: 1,
        pkey: 0xfffe_u16.to_be(),
        src_size,
        dst_size,
        src_addr: local,
        dst_addr: peer,
        ibdev_index: 3,
        ..RdmaUcmQueryAddrResp::default()
    }
}

#[test]
fn the_addresses_of_an_id_come_with_its_device() {
    let len = size_of::<RdmaUcmQueryAddrResp>();
    let text = format!("19: in 00000000000000000900000000000000, out {len}");
    let (_kernel, ucma) = kernel(&text, Reply::bytes(addr_reply().as_bytes()));
    let found = query::query_addr(&ucma, 9).unwrap();
    assert_eq!((found.local, found.peer), (Some(v4()), Some(ib())));
    assert_eq!(found.device, Some(query::DeviceKey { guid: GUID, index: Some(3) }));
    assert_eq!((found.port_num, found.pkey), (1, 0xfffe));
}

#[test]
fn an_older_kernel_reports_no_index_of_the_device() {
    let whole = addr_reply();
    let short = &whole.as_bytes()[..core::mem::offset_of!(RdmaUcmQueryAddrResp, ibdev_index)];
    let found = query::query_addr(&replying(Reply::bytes(short)), 9).unwrap();
    assert_eq!(found.device, Some(query::DeviceKey { guid: GUID, index: None }));
}

#[test]
fn an_id_that_is_not_bound_has_no_addresses_and_no_device() {
    let nothing = RdmaUcmQueryAddrResp::default();
    let found = query::query_addr(&replying(Reply::bytes(nothing.as_bytes())), 9).unwrap();
    assert_eq!(found, query::Addresses::default());
}

#[test]
fn wherever_a_reply_ends_a_query_returns() {
    let mut absurd = addr_reply();
    (absurd.src_size, absurd.dst_size) = (u16::MAX, u16::MAX);
    for whole in [addr_reply(), absurd] {
        for len in 0..=size_of::<RdmaUcmQueryAddrResp>() {
            let reply = Reply::bytes(&whole.as_bytes()[..len]);
            let _ = query::query_addr(&replying(reply.clone()), 9);
            let _ = query::query_gid(&replying(reply), 9);
        }
    }
    for byte in [0, 1, 0x7f, 0xff] {
        let reply = Reply::bytes(&[byte; 4096]);
        let _ = query::query_addr(&replying(reply.clone()), 9);
        let _ = query::query_gid(&replying(reply.clone()), 9);
        let _ = query::query_path(&replying(reply.clone()), 9);
        let _ = query::query_route(&replying(reply.clone()), 9);
        let _ = conn::init_qp_attr(&replying(reply.clone()), 9, QpState::RTR);
        let _ = event::get_event(&replying(reply));
    }
}

#[test]
fn gids_come_as_infiniband_addresses() {
    let (storage, size) = ib().to_storage().unwrap();
    let reply = RdmaUcmQueryAddrResp {
        src_size: size,
        dst_size: size,
        src_addr: storage,
        dst_addr: storage,
        ..RdmaUcmQueryAddrResp::default()
    };
    let len = size_of::<RdmaUcmQueryAddrResp>();
    let text = format!("19: in 00000000000000000900000002000000, out {len}");
    let (_kernel, ucma) = kernel(&text, Reply::bytes(reply.as_bytes()));
    let gids = query::query_gid(&ucma, 9).unwrap();
    assert_eq!((gids.local, gids.peer), (Gid([1; 16]), Gid([1; 16])));
    let error = query::query_gid(&replying(Reply::bytes(addr_reply().as_bytes())), 9).unwrap_err();
    assert_eq!(error.errno, Errno::IO);
}

#[test]
fn the_older_query_has_addresses_gids_and_paths_in_one() {
    let record = IbUserPathRec {
        dgid: [1; 16],
        sgid: [2; 16],
        pkey: Be16::from_native(0xffff),
        ..IbUserPathRec::default()
    };
    let mut reply = RdmaUcmQueryRouteResp {
        node_guid: GUID.0.to_be(),
        ib_route: [record; 2],
        src_addr: v4().to_in6().unwrap(),
        dst_addr: v4().to_in6().unwrap(),
        num_paths: 1,
        port_num: 1,
        ibdev_index: 3,
        ..RdmaUcmQueryRouteResp::default()
    };
    let len = size_of::<RdmaUcmQueryRouteResp>();
    let text = format!("5: in 00000000000000000900000000000000, out {len}");
    let (_kernel, ucma) = kernel(&text, Reply::bytes(reply.as_bytes()));
    let (addresses, gids, paths) = query::query_route(&ucma, 9).unwrap();
    assert_eq!((addresses.local, addresses.peer, addresses.pkey), (Some(v4()), Some(v4()), 0xffff));
    assert_eq!((gids.local, gids.peer, paths.len()), (Gid([2; 16]), Gid([1; 16]), 1));
    // Counts are not trusted.
    reply.num_paths = u32::MAX;
    let (.., paths) = query::query_route(&replying(Reply::bytes(reply.as_bytes())), 9).unwrap();
    assert_eq!(paths.len(), 2);
}

#[test]
fn no_more_paths_are_read_than_there_was_room_for() {
    let text = "19: in 00000000000000000900000001000000, out 440";
    for (claimed, read) in [(0_u32, 0), (1, 1), (6, 6), (7, 6), (u32::MAX, 6)] {
        let (_kernel, ucma) = kernel(text, Reply::bytes(&claimed.to_ne_bytes()));
        assert_eq!(query::query_path(&ucma, 9).unwrap().len(), read, "{claimed}");
    }
}

#[test]
fn services_beyond_the_first_room_are_asked_for_once_more() {
    let services = |claimed: u32, count: usize| {
        let mut bytes = [claimed.to_ne_bytes(), [0; 4]].concat();
        let record = IbUserServiceRec { name: [b'n'; 64], ..IbUserServiceRec::default() };
        (0..count).for_each(|_| bytes.extend_from_slice(record.as_bytes()));
        Reply::bytes(&bytes)
    };
    let ask = |room: usize| format!("19: in 00000000000000000900000003000000, out {}", 8 + 176 * room);
    let (_kernel, ucma) = kernel(&ask(6), services(2, 2));
    assert_eq!(query::query_ib_service(&ucma, 9).unwrap().len(), 2);
    for (claimed, room) in [(8, 8), (u32::MAX, 372)] {
        let kernel = Scripted::new([
            Expect::command(&ask(6), services(claimed, 6)),
            Expect::command(&ask(room), services(claimed, 7)),
        ]);
        assert_eq!(query::query_ib_service(&kernel.ucma(true), 9).unwrap().len(), room);
    }
}

#[test]
fn the_attributes_of_a_step_come_without_the_kernels_own_bits() {
    let reply = IbUverbsQpAttr {
        qp_attr_mask: (QpAttrMask::STATE | QpAttrMask::SQ_PSN).bits() | 0xf << 21,
        qp_state: 3,
        sq_psn: 0x12_3456,
        ..IbUverbsQpAttr::default()
    };
    let len = size_of::<IbUverbsQpAttr>();
    let text = format!("11: in 00000000000000000900000003000000, out {len}");
    let (_kernel, ucma) = kernel(&text, Reply::bytes(reply.as_bytes()));
    let (attr, mask) = conn::init_qp_attr(&ucma, 9, QpState::RTS).unwrap();
    assert_eq!((attr.qp_state, attr.sq_psn), (QpState::RTS, 0x12_3456));
    assert_eq!(mask, QpAttrMask::STATE | QpAttrMask::SQ_PSN);
}

fn event_reply() -> RdmaUcmEventResp {
    let conn = RdmaUcmConnParam { qp_num: 0x11, private_data_len: 2, ..RdmaUcmConnParam::default() };
    RdmaUcmEventResp {
        uid: 5,
        id: 9,
        event: 9,
        param: RdmaUcmEventRespParam::from_conn(conn),
        ece: RdmaUcmEce { vendor_id: 0x2c9, attr_mod: 7 },
        ..RdmaUcmEventResp::default()
    }
}

#[test]
fn an_event_is_read_whole_or_without_the_options_of_newer_kernels() {
    let whole = event_reply();
    let text = format!("12: in 0000000000000000, out {}", size_of::<RdmaUcmEventResp>());
    let (_kernel, ucma) = kernel(&text, Reply::bytes(whole.as_bytes()));
    assert_eq!(event::get_event(&ucma), Ok(Some(whole)));
    let short = &whole.as_bytes()[..core::mem::offset_of!(RdmaUcmEventResp, reserved)];
    let read = event::get_event(&replying(Reply::bytes(short))).unwrap().unwrap();
    assert_eq!((read.uid, read.ece), (5, RdmaUcmEce::default()));
}

#[test]
fn no_event_is_none_and_a_failure_is_an_error() {
    for errno in [Errno::AGAIN, Errno::INTR] {
        assert_eq!(event::get_event(&replying(Reply::Errno(errno))), Ok(None));
    }
    let error = event::get_event(&replying(Reply::Errno(Errno::NOMEM))).unwrap_err();
    assert_eq!((error.verb, error.errno), ("get_cm_event", Errno::NOMEM));
}
